//! Devices that are added to an array while it serves.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::rc::Rc;

use ashlar_device::MemDevice;
use ashlar_engine::status::{ArrayState, DeviceState};
use ashlar_engine::{Array, Error, Import};
use ashlar_rt::Rt;

use common::{check, copies, devices, fill, refs, small, story, volume, without};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 2 * MIB;
const DISK: u64 = 8 * MIB;

async fn create(rt: &Rt, disks: &[Rc<MemDevice>], layout: &str) -> Array {
    let array = Array::create(rt, refs(disks), small(layout)).await.unwrap();
    array.volume_create("v", volume(SIZE)).await.unwrap();
    write(&array, 1).await;
    array
}

async fn write(array: &Array, version: u64) {
    let v = array.volume("v").unwrap();
    fill(&v, SIZE, 16 << 10, version, "written").await;
}

async fn read(array: &Array, version: u64, what: &str) {
    check(&array.volume("v").unwrap(), SIZE, version, what).await;
}

async fn import(rt: &Rt, disks: &[Rc<MemDevice>], away: &[usize]) -> Array {
    let array = Array::import(rt, without(disks, away), Import::default()).await;
    array.unwrap_or_else(|e| panic!("without {away:?}: {e}"))
}

/// An array grows: there is more room, new data lie on the new devices, and any one may be lost.
#[test]
fn devices_are_added_and_used() {
    for layout in ["ec2+1", "raid5", "raid10", "grid:4(2+1+1)", "jbod"] {
        let disks = devices(6, DISK);
        let kept = disks.clone();
        story(async move |rt| {
            let array = create(&rt, &kept[..4], layout).await;
            let before = array.status().await;
            for (index, disk) in [(4, &kept[4]), (5, &kept[5])] {
                let added = array.add(disk.clone(), "").await.unwrap();
                assert_eq!((added.index, added.kept), (index, 0), "{layout}");
            }
            let after = array.status().await;
            assert_eq!((after.k, after.m), (before.k, before.m), "{layout}");
            assert_eq!(after.devices_total, 6);
            let more = after.capacity.usable_bytes * 100 / before.capacity.usable_bytes;
            assert!(more > 130, "{layout}: {more} % of the space");
            for version in 2..6 {
                write(&array, version).await;
            }
            array.wait_idle(&[]).await;
            let after = array.status().await;
            assert_eq!(after.state, ArrayState::Optimal, "{layout}");
            assert!(
                after.devices[4].used_bytes > 0 && after.devices[5].used_bytes > 0,
                "{layout}"
            );
            read(&array, 5, layout).await;
        });
        let losses: &[&[usize]] = if layout == "jbod" {
            &[&[]]
        } else {
            &[&[], &[0], &[4], &[5]]
        };
        for away in losses {
            let (disks, away) = (copies(&disks), away.to_vec());
            story(async move |rt| read(&import(&rt, &disks, &away).await, 5, layout).await);
        }
    }
}

/// What is added leaves again, and its place in the table is not given to another.
#[test]
fn a_device_comes_and_goes() {
    let disks = devices(6, DISK);
    story(async move |rt| {
        let array = create(&rt, &disks[..4], "ec2+1").await;
        array.add(disks[4].clone(), "shelf").await.unwrap();
        write(&array, 2).await;
        array.remove(4).await.unwrap();
        array.wait_idle(&[]).await;
        let added = array.add(disks[5].clone(), "").await.unwrap();
        assert_eq!(added.index, 5);
        let status = array.status().await;
        assert_eq!(status.devices_total, 5);
        assert!(
            status
                .devices
                .iter()
                .all(|d| d.state == DeviceState::Online)
        );
        array.export().await.unwrap();
        let array = import(&rt, &disks, &[4]).await;
        assert_eq!(array.status().await.devices_total, 5);
        read(&array, 2, "imported").await;
        let small = Rc::new(MemDevice::new("small", MIB));
        let refused = array.add(small, "").await;
        assert!(
            matches!(refused, Err(Error::TooSmallToAdd { .. })),
            "{refused:?}"
        );
        assert_eq!(array.status().await.devices_total, 5);
    });
}

/// The power goes at some moment of an addition: without any one device all is there.
#[test]
fn the_power_may_go_at_any_moment_of_an_addition() {
    let before = devices(5, DISK);
    let kept = before.clone();
    story(async move |rt| {
        let array = create(&rt, &kept[..4], "ec2+1").await;
        array.merge().await.unwrap();
        write(&array, 2).await;
        let v = array.volume("v").unwrap();
        v.flush().await.unwrap();
    });
    let (mut ended, mut seen) = (0, [0; 3]);
    for cut in (0..60).map(|n| 100 + n * 150) {
        let disks = copies(&before);
        let kept = disks.clone();
        let rt = Rt::simulated(cut);
        let handle = rt.clone();
        let done = rt.run_for(cut, async move {
            let array = import(&handle, &kept, &[4]).await;
            array.add(kept[4].clone(), "").await.unwrap();
            write(&array, 3).await;
        });
        rt.shutdown();
        ended += u32::from(done.is_ok());
        for lost in [None, Some(0), Some(3), Some(4)] {
            let disks = copies(&disks);
            let found = story(async move |rt| {
                let away: Vec<usize> = lost.into_iter().collect();
                let array = import(&rt, &disks, &away).await;
                let status = array.status().await;
                let v = array.volume("v").unwrap();
                // Each block is of the second version or the third.
                for at in (0..SIZE).step_by(4096) {
                    let bytes = v.read(at, 4096).await.unwrap();
                    let is = |version| bytes[..] == common::pattern(at / 4096, version)[..];
                    assert!(is(2) || is(3), "cut {cut}, without {lost:?}: {at}");
                }
                status
                    .devices
                    .iter()
                    .find(|d| d.index == 4)
                    .map(|d| d.state)
            });
            if lost.is_none() {
                let states = [None, Some(DeviceState::Spare), Some(DeviceState::Online)];
                let at = states.iter().position(|state| *state == found);
                seen[at.unwrap_or_else(|| panic!("{found:?}"))] += 1;
            }
        }
    }
    assert!(
        (1..60).contains(&ended),
        "some cuts were before the end: {ended}"
    );
    assert!(seen[0] > 0 && seen[2] > 0, "before and after: {seen:?}");
}
