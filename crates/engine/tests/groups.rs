//! Layouts of several groups: each may lose M devices, at the same time as the others.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use ashlar_engine::status::ArrayState;
use ashlar_engine::{Array, Import, Volume};
use ashlar_rt::Rt;

use common::{BLOCK, devices, pattern, refs, small, volume, without};

const MIB: u64 = 1 << 20;

async fn check(v: &Volume, blocks: u64) {
    for block in 0..blocks {
        let found = v.read(block * BLOCK, BLOCK as usize).await.unwrap();
        assert_eq!(found[..], pattern(block, 1)[..], "block {block}");
    }
}

/// The power goes, and with it M devices of every group: all data are still readable, so must be what leads to
/// them.
#[test]
fn every_group_may_lose_m_devices_at_once() {
    for (layout, count, gone) in [
        ("raid10", 8, &[0, 3, 5][..]),
        ("raid50:3", 9, &[1, 4, 8]),
        ("raid60:2", 12, &[0, 5, 6, 7]),
    ] {
        let disks = devices(count, 16 * MIB);
        let rt = Rt::simulated(1);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let array = Array::create(&handle, kept, small(layout)).await.unwrap();
            array.volume_create("v", volume(4 * MIB)).await.unwrap();
            let v = array.volume("v").unwrap();
            for block in 0..600 {
                v.write(block * BLOCK, pattern(block, 1), false)
                    .await
                    .unwrap();
            }
            v.flush().await.unwrap();
        });
        rt.shutdown();
        let rt = Rt::simulated(2);
        let (handle, kept) = (rt.clone(), without(&disks, gone));
        rt.block_on(async move {
            let array = Array::import(&handle, kept, Import::default()).await;
            let array = array.unwrap_or_else(|error| panic!("{layout}: {error}"));
            check(&array.volume("v").unwrap(), 600).await;
        });
        rt.shutdown();
    }
}

/// A pair has one device left. What is acknowledged from then on has two copies all the same, in the journal
/// too: without that device nothing is missing.
#[test]
fn a_pair_with_one_device_left_holds_no_record_alone() {
    let disks = devices(4, 16 * MIB);
    let rt = Rt::simulated(1);
    let (handle, kept) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let array = Array::create(&handle, kept, small("raid10")).await.unwrap();
        array.volume_create("v", volume(4 * MIB)).await.unwrap();
        array.fail(0, false).await.unwrap();
        array.wait_idle(&["reconstruct"]).await;
        assert_eq!(array.status().await.state, ArrayState::Optimal);
        let v = array.volume("v").unwrap();
        for block in 0..20 {
            v.write(block * BLOCK, pattern(block, 1), true)
                .await
                .unwrap();
        }
    });
    rt.shutdown();
    let rt = Rt::simulated(2);
    let (handle, kept) = (rt.clone(), without(&disks, &[0, 1]));
    rt.block_on(async move {
        let array = Array::import(&handle, kept, Import::default()).await;
        check(&array.unwrap().volume("v").unwrap(), 20).await;
    });
    rt.shutdown();
}
