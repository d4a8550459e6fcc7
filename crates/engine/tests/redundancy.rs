//! Redundancy returns after a loss as far as there is room, and an array comes to rest.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::rc::Rc;

use ashlar_device::{Delay, DelayFilter, DeviceRef, MemDevice};
use ashlar_engine::Work;
use ashlar_engine::status::ArrayState;
use ashlar_engine::{Array, Create};
use ashlar_rt::{Rt, SECOND};

use crate::common::room::{all_thick, assert_whole, far_apart, mostly_thick, put, slow};
use crate::common::{BLOCK, check, devices, fill, pattern, refs, small, thin_volume, volume};

const MIB: u64 = 1 << 20;

/// Whether the array was optimal again after its losses.
fn keeps_redundancy(layout: &'static str, count: usize, gone: u16, size: u64) -> bool {
    let disks = devices(count, 16 * MIB);
    let rt = Rt::simulated(size);
    let handle = rt.clone();
    let (kept, title) = (
        refs(&disks),
        format!("{layout} of {count}, {} MiB", size >> 20),
    );
    let healed = rt.block_on(async move {
        let array = Array::create(&handle, kept, small(layout)).await.unwrap();
        if array.volume_create("v", volume(size)).await.is_err() {
            return false;
        }
        let v = array.volume("v").unwrap();
        for block in 0..size / BLOCK {
            v.write(block * BLOCK, pattern(block, 1), false)
                .await
                .unwrap();
        }
        v.flush().await.unwrap();
        for device in 0..gone {
            array.fail(device, false).await.unwrap();
            array.wait_idle(&[Work::Rebuild]).await;
        }
        let status = array.status().await;
        if status.state != ArrayState::Optimal || status.capacity.overpromised {
            return false;
        }
        let blocks = size / BLOCK;
        for round in 0..12 {
            for i in 0..blocks / 16 {
                let block = (i * 37 + round * 101) % blocks;
                let done = v.write(block * BLOCK, pattern(block, 2), false).await;
                assert!(done.is_ok(), "{title}: {done:?}");
            }
            v.flush().await.unwrap();
            handle.sleep(40 * SECOND).await; // a checkpoint
            let status = array.status().await;
            assert_eq!(
                status.state,
                ArrayState::Optimal,
                "{title}, round {round}: {:?}",
                status.exposure
            );
        }
        array.export().await.unwrap();
        true
    });
    rt.shutdown();
    healed
}

/// Full redundancy comes back to what was written as wide as ever, without the columns of a device that is
/// gone, while room was short.
#[test]
fn redundancy_returns_when_there_is_room_again() {
    let disks = devices(5, 16 * MIB);
    let rt = Rt::simulated(1);
    let handle = rt.clone();
    let story = rt.run_for(8_000_000, async move {
        let array = Array::create(&handle, refs(&disks), small("ec4+1"))
            .await
            .unwrap();
        let size = array.room_for(4096);
        array.volume_create("v", volume(size)).await.unwrap();
        let v = array.volume("v").unwrap();
        let blocks = size / BLOCK;
        for block in 0..blocks / 4 {
            put(&v, block, 1).await.unwrap();
        }
        v.flush().await.unwrap();
        array.fail(0, false).await.unwrap();
        array.wait_idle(&[]).await;
        handle.sleep(100 * SECOND).await;
        let state = array.status().await.state;
        assert_eq!(state, ArrayState::Optimal);
        for block in 0..blocks {
            put(&v, block, 2).await.unwrap();
        }
        v.flush().await.unwrap();
        handle.sleep(100 * SECOND).await;
        let state = array.status().await.state;
        assert_eq!(
            state,
            ArrayState::Critical,
            "room is short: as wide as ever"
        );
        v.trim(blocks / 4 * BLOCK, size - blocks / 4 * BLOCK, true)
            .await
            .unwrap();
        for version in 3..20 {
            v.write(0, pattern(0, version), true).await.unwrap(); // enough to be merged
        }
        handle.sleep(100 * SECOND).await;
        array.wait_idle(&[]).await;
        assert_eq!(array.status().await.state, ArrayState::Optimal);
    });
    assert!(story.is_ok(), "{story:?}");
    rt.shutdown();
}

/// What devices that are gone cost is rebuilt into room that garbage takes: the cleaner had what it needs, and left
/// that to lie, while rebuild waited for some slots more (#184).
#[test]
fn garbage_keeps_no_one_from_redundancy() {
    for stride in [1, 2, 3, 5, 7] {
        let disks = devices(8, 16 * MIB);
        let rt = Rt::simulated(stride);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let create = Create {
                slot_bytes: Some(32 << 10),
                spare: 2,
                ..small("ec4+2")
            };
            let (array, v, size) = all_thick(&handle, kept, create).await;
            fill(&v, size, BLOCK, 1, "at first").await;
            array.fail(1, false).await.unwrap();
            array.wait_idle(&[]).await;
            for n in 0..size / BLOCK / 3 {
                let block = n * stride * 31 % (size / BLOCK);
                v.write(block * BLOCK, pattern(block, 1), false)
                    .await
                    .unwrap();
            }
            array.fail(2, false).await.unwrap();
            array.wait_idle(&[]).await;
            assert_whole(&array, "without two").await;
            check(&v, size, 1, "without two").await;
        });
        rt.shutdown();
    }
}

/// Rebuild takes long on devices that read slowly, and what it has still to look at dies meanwhile: its room
/// comes back with the next checkpoint, not with the end of rebuild.
#[test]
fn what_dies_while_rebuild_runs_is_free() {
    let (size, disks) = (8 * MIB, devices(6, 16 * MIB));
    let rt = Rt::simulated(1);
    let handle = rt.clone();
    rt.block_on(async move {
        let delay = Delay {
            read: SECOND,
            ..Delay::default()
        };
        let slow = |d: &Rc<MemDevice>| {
            DelayFilter::new(&handle, d.clone() as DeviceRef, delay) as DeviceRef
        };
        let members = disks.iter().map(slow).collect();
        let array = Array::create(&handle, members, small("ec2+1"))
            .await
            .unwrap();
        array.volume_create("v", volume(size)).await.unwrap();
        let v = array.volume("v").unwrap();
        fill(&v, size, 64 << 10, 1, "all there").await;
        array.fail(0, false).await.unwrap();
        let before = array.status().await.clean.free_slots;
        handle.sleep(3 * SECOND).await;
        fill(&v, size, 64 << 10, 2, "without one").await;
        // Two checkpoints: one that kills what was replaced, one that frees what that made empty.
        for name in ["a", "b"] {
            array.volume_create(name, volume(BLOCK)).await.unwrap();
        }
        handle.sleep(35 * SECOND).await;
        let free = array.status().await.clean.free_slots;
        let written = size * 3 / 2 / (64 << 10);
        assert!(
            free + written / 3 > before,
            "{free} of {before} slots are free, {written} were written"
        );
    });
    rt.shutdown();
}

/// An array that lost devices, and has all its redundancy back, keeps it while nothing else fails: its metadata
/// lies in narrow segments then, and goes on doing so where data leave little room.
#[test]
fn redundancy_that_came_back_stays() {
    let mut healed = 0;
    for (layout, count, gone) in [
        ("ec1+3", 7, 3),
        ("ec1+3", 7, 2),
        ("ec4+2", 8, 2),
        ("ec2+2", 7, 3),
    ] {
        for mib in [3, 5, 6, 7, 8, 10, 13] {
            healed += usize::from(keeps_redundancy(layout, count, gone, mib << 20));
        }
    }
    assert!(healed >= 10, "only {healed} arrays were optimal again");
}

/// What lost its last redundancy is rewritten only where that leaves cleaning its room: a full array that two devices
/// left while it was overwritten could not be cleaned any more, and writes got `NoSpace` (#151).
#[test]
fn what_is_redundant_again_leaves_cleaning_its_room() {
    let disks = devices(10, 48 * MIB);
    let rt = Rt::simulated(1);
    let (handle, kept) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let create = Create {
            spare: 2,
            ..small("raid50:2")
        };
        let array = Array::create(&handle, kept, create).await.unwrap();
        array.set("clean.reserve", "2%").await.unwrap();
        let size = array.room_for(4096) / BLOCK * BLOCK;
        let options = thin_volume(size);
        array.volume_create("v", options).await.unwrap();
        let v = array.volume("v").unwrap();
        fill(&v, size / 32768 * 32768, 32768, 1, "all there").await;
        for (gone, stride) in [(1, 9), (7, 5)] {
            array.fail(gone, false).await.unwrap();
            for block in (0..size / BLOCK).step_by(stride) {
                let done = v.write(block * BLOCK, pattern(block, 2), false).await;
                assert!(done.is_ok(), "{gone} gone, block {block}: {done:?}");
            }
        }
        array.wait_idle(&[]).await;
        assert_whole(&array, "both are gone").await;
    });
    rt.shutdown();
}

/// What is rewritten for its redundancy leaves alone what the cleaner would take back: an array with more promised
/// than two devices hold moved the same data back and forth for ever, a round each second (#152).
#[test]
fn a_degraded_array_comes_to_rest() {
    for (percent, filled) in [(70, 85), (85, 70)] {
        let disks = devices(3, 16 * MIB);
        let rt = Rt::simulated(1);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let create = Create {
                strip_bytes: Some(8 << 10),
                ..small("ec2+1")
            };
            let (array, v, size) = mostly_thick(&handle, kept, create, percent).await;
            let thin = thin_volume(1 << 30);
            array.volume_create("thin", thin).await.unwrap();
            let thin = array.volume("thin").unwrap();
            for n in 0..100 {
                let done = thin.write(far_apart(n), pattern(n, 1), false).await;
                assert!(done.is_ok(), "{done:?}");
            }
            fill(&v, size * filled / 100 / 8192 * 8192, 8192, 1, "filled").await;
            array.fail(1, false).await.unwrap();
            array.wait_idle(&[]).await;
            let mut exposure = Vec::new();
            for _ in 0..4 {
                handle.sleep(SECOND).await;
                array.wait_idle(&[]).await;
                exposure.push(array.status().await.exposure);
            }
            let changes = exposure.windows(2).any(|two| two[0] != two[1]);
            assert!(!changes, "{percent} %, {filled} % of it: {exposure:?}");
        });
        rt.shutdown();
    }
}

/// Columns that were laid while there was room give it back to what was promised, also those of small segments, of
/// which each is worth less than a block more (#166).
#[test]
fn small_segments_give_back_columns_too() {
    for seed in 1..4 {
        let disks = devices(8, 20 * MIB);
        let rt = Rt::simulated(seed);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let create = Create {
                slot_bytes: Some(32 << 10),
                strip_bytes: Some(8 << 10),
                ..small("ec1+3")
            };
            let (array, v, size) = mostly_thick(&handle, kept, create, 100).await;
            array.fail(5, false).await.unwrap();
            fill(&v, size, BLOCK, 1, "one gone").await;
            check(&v, size, 1, "one gone").await;
        });
        rt.shutdown();
    }
}

/// A second device is lost at many moments of the rebuild of the first: whoever waits for the rebuild does not hear that
/// nothing more can be done, though a job that reads from it has just failed.
#[test]
fn a_second_loss_in_a_rebuild_does_not_end_the_wait() {
    for moment in 0..40 {
        let disks = devices(6, 16 * MIB);
        let rt = Rt::simulated(moment);
        let handle = rt.clone();
        rt.block_on(async move {
            // What is asked of device 3 ends after it is lost.
            let delay = Delay {
                read: SECOND / 4,
                write: SECOND / 4,
                ..Delay::default()
            };
            let mut refs = slow(&handle, &disks, SECOND / 1000);
            refs[3] = DelayFilter::new(&handle, disks[3].clone() as DeviceRef, delay);
            let create = Create {
                domains: (0..6)
                    .map(|device| format!("shelf {}", device / 2))
                    .collect(),
                ..small("ec2+1")
            };
            let array = Array::create(&handle, refs, create).await.unwrap();
            let size = 6 * MIB;
            array.volume_create("v", volume(size)).await.unwrap();
            let v = array.volume("v").unwrap();
            fill(&v, size, MIB, 1, "before").await;
            v.flush().await.unwrap();
            array.fail(2, false).await.unwrap();
            handle.sleep(moment * SECOND / 50).await;
            array.fail(3, false).await.unwrap();
            array.wait_idle(&[Work::Rebuild]).await;
            assert_eq!(array.stuck(&[Work::Rebuild]), None, "{moment}");
            let state = array.status().await.state;
            assert_eq!(state, ArrayState::Optimal, "{moment}");
            check(&v, size, 1, "after").await;
        });
        rt.shutdown();
    }
}
