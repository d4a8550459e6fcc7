//! Requests that are given up, and requests of an array that has stopped.
#![allow(clippy::unwrap_used, reason = "tests")]

use ashlar_device::{DeviceRef, FaultFilter};
use ashlar_engine::status::Frontend;
use ashlar_engine::{Array, Error, Import};
use ashlar_rt::{MILLISECOND, Rt, SECOND};

use crate::common::room::{give_up_after, put, slow};
use crate::common::{BLOCK, devices, pattern, refs, small, volume};

const MIB: u64 = 1 << 20;

/// No device is left: whoever waits is told.
#[test]
fn nobody_waits_for_an_array_that_has_stopped() {
    for what in 0..3 {
        let disks = devices(3, 8 * MIB);
        let filters: Vec<_> = disks
            .iter()
            .map(|d| FaultFilter::new(d.clone() as DeviceRef))
            .collect();
        let rt = Rt::simulated(1);
        let (handle, kept) = (
            rt.clone(),
            filters.iter().map(|f| f.clone() as DeviceRef).collect(),
        );
        rt.block_on(async move {
            let array = Array::create(&handle, kept, small("ec2+1")).await.unwrap();
            array.volume_create("v", volume(MIB)).await.unwrap();
            let v = array.volume("v").unwrap();
            for block in 0..100 {
                put(&v, block, 1).await.unwrap();
            }
            for filter in &filters {
                filter.set_offline(true);
            }
            let work = async {
                match what {
                    0 => array.volume_create("w", volume(MIB)).await,
                    1 => array.set("clean.reserve", "12%").await,
                    _ => array.export().await,
                }
            };
            let ended = handle.timeout(1000 * SECOND, work).await;
            assert!(
                matches!(ended, Some(Err(Error::Closed))),
                "{what}: {ended:?}"
            );
        });
        rt.shutdown();
    }
}

/// Whoever gives up waiting for a change leaves nothing half done: it is made to its end, and so are all that
/// come after it.
#[test]
fn a_change_that_was_begun_is_made() {
    for (what, polls) in (0..7).flat_map(|what| (1..40).map(move |polls| (what, polls))) {
        let disks = devices(5, 8 * MIB);
        let rt = Rt::simulated(polls);
        let (handle, members) = (rt.clone(), slow(&rt, &disks, MILLISECOND));
        let kept = rt.block_on(async move {
            let array = Array::create(&handle, members, small("ec3+2"));
            let array = array.await.unwrap();
            array.volume_create("v", volume(MIB)).await.unwrap();
            array.volume_create("x", volume(MIB)).await.unwrap();
            let v = array.volume("v").unwrap();
            for block in 0..50 {
                put(&v, block, 1).await.unwrap();
            }
            match what {
                0 => give_up_after(polls, array.set("clean.reserve", "12%")).await,
                1 => give_up_after(polls, array.volume_create("w", volume(MIB))).await,
                2 => give_up_after(polls, array.volume_destroy("x")).await,
                3 => give_up_after(polls, array.volume_set("x", "write-cache", "off")).await,
                4 => {
                    let nbd = Frontend {
                        kind: "nbd".into(),
                        address: "10809".into(),
                    };
                    give_up_after(polls, array.set_frontends("x", vec![nbd])).await;
                }
                5 => give_up_after(polls, array.fail(1, true)).await,
                _ => give_up_after(polls, array.export()).await,
            }
            if what < 6 {
                for block in 50..100 {
                    put(&v, block, 1).await.unwrap();
                }
                array.set("reconstruct.narrow", "never").await.unwrap();
                let told = |kind: &str| array.events(0).iter().any(|e| e.kind == kind);
                match what {
                    // The first of its waits is for room: nothing has changed yet.
                    1 => assert!(polls == 1 || array.volume("w").is_some()),
                    2 => assert!(told("volume-destroyed") && array.volume("x").is_none()),
                    5 => assert!(told("device-failed")),
                    _ => {}
                }
                array.export().await.unwrap();
            }
            handle.sleep(60 * SECOND).await;
            assert!(!array.is_open());
            disks
        });
        rt.shutdown();

        let rt = Rt::simulated(1);
        let handle = rt.clone();
        rt.block_on(async move {
            let title = format!("change {what} given up after {polls} polls");
            let array = Array::import(&handle, refs(&kept), Import::default()).await;
            let array = array.unwrap_or_else(|e| panic!("{title}: {e}"));
            let v = array.volume("v").unwrap();
            for block in 0..if what < 6 { 100 } else { 50 } {
                let read = v.read(block * BLOCK, 4096).await.unwrap();
                assert!(*read == *pattern(block, 1), "{title}: block {block}");
            }
            let status = array.status().await;
            let named = |name: &str| status.volumes.iter().find(|v| v.name == name);
            let made = match what {
                0 => array.get(Some("clean.reserve")).unwrap()[0].1 == "12%",
                1 => polls == 1 || named("w").is_some(),
                2 => named("x").is_none(),
                3 => named("x").unwrap().write_cache == "off",
                4 => named("x").unwrap().frontends.len() == 1,
                _ => true,
            };
            assert!(made, "{title}");
        });
        rt.shutdown();
    }
}
