//! What an import makes of crashes, damage and devices that changed, and what the operator may have it do.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::rc::Rc;

use ashlar_device::{DeviceRef, FaultFilter, MemDevice};
use ashlar_engine::Work;
use ashlar_engine::status::ArrayState;
use ashlar_engine::{Array, Error, Import};
use ashlar_rt::{Rt, SECOND};

use crate::common::room::{give_up_after, put};
use crate::common::{BLOCK, devices, pattern, refs, small, volume};

const MIB: u64 = 1 << 20;

/// An array that crashes after every import, before its first checkpoint.
#[test]
fn an_array_may_crash_after_every_import() {
    let disks = devices(2, 1024 * MIB); // so large a journal that nothing presses for a checkpoint
    let rt = Rt::simulated(1);
    let (handle, kept) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let mut options = small("raid1");
        options.slot_bytes = Some(MIB);
        let array = Array::create(&handle, kept, options).await.unwrap();
        array.volume_create("v", volume(MIB)).await.unwrap();
    });
    rt.shutdown();
    for round in 0..560 {
        let rt = Rt::simulated(2 + round);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let array = Array::import(&handle, kept, Import::default())
                .await
                .unwrap();
            let v = array.volume("v").unwrap();
            v.write(0, pattern(0, round), true).await.unwrap();
        });
        rt.shutdown();
    }
}

/// What has not been merged yet counts as well where a device is to be given up.
#[test]
fn a_device_that_unmerged_data_hang_on_is_not_given_up() {
    let disks = devices(5, 16 * MIB);
    let rt = Rt::simulated(1);
    let (handle, kept) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let array = Array::create(&handle, kept, small("ec4+1")).await.unwrap();
        array.volume_create("v", volume(4 * MIB)).await.unwrap();
        let v = array.volume("v").unwrap();
        for block in 0..256 {
            put(&v, block, 1).await.unwrap();
        }
        v.flush().await.unwrap();
        array.fail(0, false).await.unwrap();
        let second = array.fail(1, false).await;
        assert!(matches!(second, Err(Error::WouldLose(1))), "{second:?}");
    });
    rt.shutdown();
}

/// A flipped bit of the format version, in both superblocks of one device: one damaged device, not a newer
/// program's array.
#[test]
fn a_damaged_version_costs_its_device_only() {
    let bytes = 16 * MIB;
    let disks = devices(3, bytes);
    let rt = Rt::simulated(1);
    let (handle, kept) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let array = Array::create(&handle, kept, small("ec2+1")).await.unwrap();
        array.export().await.unwrap();
    });
    rt.shutdown();
    let area = ashlar_format::geometry::super_bytes(bytes);
    for offset in [0, bytes - area] {
        let mut held = vec![0; BLOCK as usize];
        disks[0].peek(offset, &mut held);
        held[9] ^= 1;
        disks[0].poke(offset, &held);
    }
    let rt = Rt::simulated(2);
    let (handle, kept) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let array = Array::import(&handle, kept, Import::default()).await;
        array.unwrap().export().await.unwrap();
    });
    rt.shutdown();
}

/// `fail -f` speaks for the devices that are gone then, not for a majority that goes later (R10), also where
/// the operator did not wait for its end (#127).
#[test]
fn the_operators_word_is_for_one_change_of_devices() {
    for polls in [1, u64::MAX] {
        let disks = devices(5, 16 * MIB);
        let filters: Vec<Rc<FaultFilter>> = disks
            .iter()
            .map(|d| FaultFilter::new(d.clone() as DeviceRef))
            .collect();
        let rt = Rt::simulated(6);
        let handle = rt.clone();
        rt.block_on(async move {
            let members = filters.iter().map(|f| f.clone() as DeviceRef).collect();
            let array = Array::create(&handle, members, small("raid1"))
                .await
                .unwrap();
            array.volume_create("v", volume(MIB)).await.unwrap();
            let v = array.volume("v").unwrap();
            give_up_after(polls, array.fail(4, true)).await;
            handle.sleep(SECOND).await;
            for gone in &filters[1..4] {
                gone.set_offline(true);
            }
            let done = handle.spawn(async move { v.write(0, pattern(0, 1), true).await });
            handle.sleep(200 * SECOND).await;
            let waits = |array: &Array| array.events(0).iter().any(|e| e.kind == "writes-wait");
            assert!(waits(&array), "one device of four went on by itself");
            // Said once, it is for all of them, though one alone was named.
            let said = handle.timeout(100 * SECOND, array.fail(1, true)).await;
            said.expect("no second word is asked for").unwrap();
            let written = handle.timeout(100 * SECOND, done).await;
            written.expect("writes go on").unwrap();
        });
        rt.shutdown();
    }
}

/// A device that says it is smaller than its superblock does is one that answers with errors there.
#[test]
fn a_device_that_shrank_costs_no_more_than_itself() {
    let mut disks = devices(8, 32 * MIB);
    let rt = Rt::simulated(8);
    let (handle, all) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let array = Array::create(&handle, all, small("ec4+2")).await.unwrap();
        array.volume_create("v", volume(16 * MIB)).await.unwrap();
        let v = array.volume("v").unwrap();
        for block in 0..1000 {
            put(&v, block, 1).await.unwrap();
        }
        v.flush().await.unwrap();
    });
    rt.shutdown();
    let mut kept = vec![0; 24 << 20];
    disks[4].peek(0, &mut kept);
    let shrunk = MemDevice::new("shrunk", 24 * MIB);
    shrunk.poke(0, &kept);
    disks[4] = Rc::new(shrunk);

    for seed in [9, 10] {
        let rt = Rt::simulated(seed);
        let (handle, all) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let array = Array::import(&handle, all, Import::default())
                .await
                .unwrap();
            let v = array.volume("v").unwrap();
            for block in 0..1000 {
                let found = v.read(block * BLOCK, BLOCK as usize).await.unwrap();
                assert_eq!(found[8..16], 1u64.to_le_bytes(), "block {block}");
                put(&v, block + 1000, seed).await.unwrap();
            }
            v.flush().await.unwrap();
            array.fail(0, false).await.unwrap(); // every superblock is written, also at the end
            array.wait_idle(&[Work::Rebuild]).await;
            assert_eq!(array.status().await.state, ArrayState::Optimal);
            array.export().await.unwrap();
        });
        rt.shutdown();
    }
}
