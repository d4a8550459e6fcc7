//! What an array says of itself: space that adds up, what it can still take, why work does not go on, events that
//! do not drown each other, memory that is given and taken.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ashlar_device::{Delay, DelayFilter, DeviceRef};
use ashlar_engine::Work;
use ashlar_engine::status::{ArrayState, ArrayStatus, Service};
use ashlar_engine::{Array, Create, Error, Import, plan};
use ashlar_rt::{MILLISECOND, Rt, SECOND};

use crate::common::{BLOCK, check, devices, fill, pattern, refs, small, volume, without};

const MIB: u64 = 1 << 20;

fn adds_up(status: &ArrayStatus) {
    let c = &status.capacity;
    let parts = c.usable_bytes + c.parity_bytes + c.spare_bytes + c.reserved_bytes;
    assert_eq!(c.raw_bytes, parts, "{c:?}");
    let (held, free) = (c.used_bytes + c.promised_bytes, c.free_bytes);
    assert_eq!(c.usable_bytes.max(held), held + free, "{c:?}");
}

#[test]
fn space_adds_up_and_is_what_the_devices_in_use_hold() {
    for (layout, count, spare) in [
        ("ec4+2", 13, 2),
        ("ec4+2", 6, 0),
        ("raid10", 6, 0),
        ("raid0", 4, 0),
        ("raid60:2", 12, 0),
    ] {
        let disks = devices(count, 16 * MIB);
        let rt = Rt::simulated(1);
        let handle = rt.clone();
        rt.block_on(async move {
            let options = Create {
                spare,
                ..small(layout)
            };
            let planned = plan(&vec![16 * MIB; count], &options).unwrap();
            let array = Array::create(&handle, refs(&disks), options).await.unwrap();
            let fresh = array.status().await;
            adds_up(&fresh);
            assert_eq!(
                planned.usable_bytes, fresh.capacity.usable_bytes,
                "{layout}"
            );
            assert_eq!(fresh.capacity.raw_bytes, 16 * MIB * count as u64);
            assert_eq!(fresh.capacity.free_bytes, array.room_for(4096));
            let size = 4 * MIB;
            array.volume_create("v", volume(size)).await.unwrap();
            let promised = array.status().await;
            adds_up(&promised);
            assert_eq!(promised.capacity.promised_bytes, size);
            // A volume has a map, whose nodes take room as well.
            let left = fresh.capacity.free_bytes - size;
            assert!(promised.capacity.free_bytes <= left);
            assert!(promised.capacity.free_bytes >= left - MIB, "{layout}");
            assert_eq!(promised.capacity.free_bytes, array.room_for(4096));
            let v = array.volume("v").unwrap();
            for block in 0..256 {
                v.write(block * BLOCK, pattern(block, 1), true)
                    .await
                    .unwrap();
            }
            handle.sleep(40 * SECOND).await;
            let written = array.status().await;
            adds_up(&written);
            assert_eq!(written.capacity.used_bytes, MIB);
            assert_eq!(written.capacity.promised_bytes, size - MIB);
            if written.m == 0 {
                return;
            }
            // Spare space stands for devices that are gone; those after them take something with them.
            for gone in 1..=spare + 1 {
                array.fail(gone, false).await.unwrap();
                array.wait_idle(&[]).await;
                let left = array.status().await;
                adds_up(&left);
                assert_eq!(left.health.devices_gone, gone);
                let bytes = 16 * MIB * (count as u64 - u64::from(gone));
                assert_eq!(left.capacity.raw_bytes, bytes);
                let (now, before) = (&left.capacity, &promised.capacity);
                if gone <= spare {
                    assert_eq!(now.usable_bytes, before.usable_bytes, "{layout}");
                } else {
                    assert!(now.usable_bytes < before.usable_bytes, "{layout}");
                    let asked = now.free_bytes + BLOCK;
                    let refused = array.volume_create("w", volume(asked)).await;
                    assert!(matches!(refused, Err(Error::NoSpace { .. })), "{layout}");
                }
            }
        });
        rt.shutdown();
    }
}

/// A layout as wide as the array lacks a device, and no room, once one is gone.
#[test]
fn a_rebuild_that_waits_for_a_device_says_so() {
    for (layout, count) in [("raid1", 2), ("raid1", 3)] {
        let disks = devices(count, 16 * MIB);
        let rt = Rt::simulated(1);
        let handle = rt.clone();
        rt.block_on(async move {
            let array = Array::create(&handle, refs(&disks), small(layout))
                .await
                .unwrap();
            array.volume_create("v", volume(MIB)).await.unwrap();
            let v = array.volume("v").unwrap();
            for block in 0..128 {
                let data = pattern(block, 1);
                v.write(block * BLOCK, data, false).await.unwrap();
            }
            v.flush().await.unwrap();
            array.fail(1, false).await.unwrap();
            array.wait_idle(&[]).await;
            let tasks = array.status().await.tasks;
            let rebuild = tasks.iter().find(|t| t.id == Work::Rebuild.id());
            let why = &rebuild.unwrap().reason;
            let words = "too few devices are left for the layout: replace one";
            assert!(why.starts_with(words), "{layout}: {tasks:?}");
        });
        rt.shutdown();
    }
}

#[test]
fn health_says_what_can_still_be_lost() {
    let disks = devices(8, 16 * MIB);
    let rt = Rt::simulated(1);
    let handle = rt.clone();
    rt.block_on(async move {
        let array = Array::create(&handle, refs(&disks), small("ec4+2"))
            .await
            .unwrap();
        array.volume_create("v", volume(4 * MIB)).await.unwrap();
        let v = array.volume("v").unwrap();
        for block in 0..512 {
            v.write(block * BLOCK, pattern(block, 1), false)
                .await
                .unwrap();
        }
        v.flush().await.unwrap();
        for gone in 0..=2 {
            if gone > 0 {
                array.fail(gone, false).await.unwrap();
                array.wait_idle(&[]).await;
            }
            let status = array.status().await;
            assert_eq!(status.state, ArrayState::Optimal);
            assert_eq!(status.health.devices_gone, gone);
            assert_eq!(status.health.more_losses, 2);
            assert_eq!(status.health.reconstructs, 2 - gone);
            assert_eq!(array.stuck(&[Work::Rebuild]), None);
        }
        // No device is left over for the next.
        array.fail(7, false).await.unwrap();
        array.wait_idle(&[]).await;
        let status = array.status().await;
        assert_eq!(
            (status.state, status.health.more_losses),
            (ArrayState::Degraded, 1)
        );
        let why = array.stuck(&[Work::Rebuild]).unwrap();
        assert!(why.contains("too few devices"), "{why}");
        assert_eq!(array.stuck(&[Work::Clean]), None);
        assert_eq!(status.service, Service::Full);
        array.export().await.unwrap();
        assert_eq!(array.status().await.service, Service::Stopped);
        let kept = refs(&disks);
        let import = Import {
            read_only: true,
            ..Import::default()
        };
        let array = Array::import(&handle, kept, import).await.unwrap();
        assert_eq!(array.status().await.service, Service::ReadOnly);
        assert!(array.stuck(&[]).unwrap().contains("read-only"));
    });
    rt.shutdown();
}

/// The last copies of a pair that lost a device stayed so, whatever room the other pairs had.
#[test]
fn the_last_copy_goes_where_there_is_room_for_two() {
    for thin in [false, true] {
        let disks = devices(6, 16 * MIB);
        let rt = Rt::simulated(1);
        let handle = rt.clone();
        rt.block_on(async move {
            let array = Array::create(&handle, refs(&disks), small("raid10"))
                .await
                .unwrap();
            let mut options = volume(array.room_for(4096));
            options.thin = thin;
            array.volume_create("v", options).await.unwrap();
            let v = array.volume("v").unwrap();
            for block in 0..1200 {
                v.write(block * BLOCK, pattern(block, 1), false)
                    .await
                    .unwrap();
            }
            v.flush().await.unwrap();
            for gone in [0, 3] {
                array.fail(gone, false).await.unwrap();
                array.wait_idle(&[Work::Rebuild]).await;
                let status = array.status().await;
                assert_eq!(status.state, ArrayState::Optimal, "{:?}", status.exposure);
            }
            // Also what is left of the pairs can go.
            array.fail(1, false).await.unwrap();
            for block in 0..1200 {
                let found = v.read(block * BLOCK, BLOCK as usize).await.unwrap();
                assert_eq!(found[..], pattern(block, 1)[..], "block {block}");
            }
        });
        rt.shutdown();
    }
}

#[test]
fn what_comes_in_numbers_is_told_in_few_events() {
    let bytes = 16 * MIB;
    let disks = devices(2, bytes);
    let rt = Rt::simulated(1);
    let handle = rt.clone();
    rt.block_on(async move {
        let array = Array::create(&handle, refs(&disks), small("raid1"))
            .await
            .unwrap();
        array.volume_create("v", volume(4 * MIB)).await.unwrap();
        let v = array.volume("v").unwrap();
        for block in 0..1000 {
            v.write(block * BLOCK, pattern(block, 1), false)
                .await
                .unwrap();
        }
        v.flush().await.unwrap();
        let mut held = vec![0; BLOCK as usize];
        for at in (2 * MIB..bytes - 2 * MIB).step_by(4096) {
            disks[1].peek(at, &mut held);
            if held.iter().any(|b| *b != 0) {
                held.fill(0xA5);
                disks[1].poke(at, &held);
            }
        }
        for _ in 0..4 {
            for block in 0..1000 {
                let found = v.read(block * BLOCK, BLOCK as usize).await.unwrap();
                assert_eq!(found[..], pattern(block, 1)[..]);
            }
        }
        array.wait_idle(&[Work::Repair]).await;
        handle.sleep(15 * SECOND).await;
        let errors = array.status().await.devices[1].errors.digest;
        assert!(errors > 300, "{errors}");
        for (kind, most) in [("bad-block", errors), ("healed", errors)] {
            let events = array.events(0);
            let events: Vec<_> = events.iter().filter(|e| e.kind == kind).collect();
            assert!((2..10).contains(&events.len()), "{} {kind}", events.len());
            assert_eq!(events.iter().map(|e| e.count).sum::<u64>(), most, "{kind}");
            assert!(events.iter().all(|e| e.device == Some(1)));
        }
    });
    rt.shutdown();
}

#[test]
fn memory_can_be_taken_and_given_while_an_array_works() {
    let disks = devices(6, 64 * MIB);
    let rt = Rt::simulated(1);
    let handle = rt.clone();
    rt.block_on(async move {
        let array = Array::create(&handle, refs(&disks), small("ec4+2"))
            .await
            .unwrap();
        array.volume_create("v", volume(96 * MIB)).await.unwrap();
        let v = array.volume("v").unwrap();
        let write = |version: u64| {
            let v = v.clone();
            async move {
                for block in (0..96 * MIB / BLOCK).step_by(8) {
                    v.write(block * BLOCK, pattern(block, version), false)
                        .await
                        .unwrap();
                }
                v.flush().await.unwrap();
            }
        };
        write(1).await;
        handle.sleep(60 * SECOND).await;
        let cached = array.status().await.map.cached_bytes;
        assert!(cached > 400_000, "{cached}");
        array.set_memory(256 << 10).await;
        let status = array.status().await;
        assert_eq!(status.memory.limit_bytes, 256 << 10);
        assert!(
            status.map.cached_bytes <= 128 << 10,
            "{}",
            status.map.cached_bytes
        );
        write(2).await;
        handle.sleep(60 * SECOND).await;
        for block in (0..96 * MIB / BLOCK).step_by(8) {
            let found = v.read(block * BLOCK, BLOCK as usize).await.unwrap();
            assert_eq!(found[..], pattern(block, 2)[..]);
        }
        assert!(array.status().await.map.cached_bytes <= 128 << 10);
        array.set_memory(256 << 20).await;
        for block in (0..96 * MIB / BLOCK).step_by(8) {
            v.read(block * BLOCK, BLOCK as usize).await.unwrap();
        }
        assert!(array.status().await.map.cached_bytes > 400_000);
    });
    rt.shutdown();
}

/// #123: what only the journal had did not count for the losses that an array was said to survive, and columns
/// that rebuild had moved counted before that was durable.
#[test]
fn as_many_more_may_be_lost_as_is_told() {
    for (layout, count, m) in [("ec2+1", 5, 1), ("ec2+2", 7, 2)] {
        let mut told = vec![0; m + 1];
        for blocks in [1, 40, 79, 118] {
            for polls in (0..1500).step_by(37) {
                if let Some(more) = losses_told(layout, count, blocks, polls) {
                    told[more] += 1;
                }
            }
        }
        assert!(told[m - 1].min(told[m]) > 0, "{layout}: {told:?}");
    }
}

/// A device fails while so many blocks are written. So many polls later, if they are flushed, the array is asked
/// how many more may fail, and the power goes: without so many all blocks are there.
fn losses_told(layout: &'static str, count: usize, blocks: u64, polls: u64) -> Option<usize> {
    const GONE: u16 = 1;
    let disks = devices(count, 8 * MIB);
    let rt = Rt::simulated(1);
    let slow = Delay {
        write: MILLISECOND,
        flush: MILLISECOND,
        ..Delay::default()
    };
    let kept = refs(&disks)
        .into_iter()
        .map(|disk| DelayFilter::new(&rt, disk, slow) as DeviceRef)
        .collect();
    let handle = rt.clone();
    let (array, v) = rt.block_on(async move {
        let array = Array::create(&handle, kept, small(layout)).await.unwrap();
        array.volume_create("v", volume(MIB)).await.unwrap();
        let v = array.volume("v").unwrap();
        for block in 0..blocks {
            let data = pattern(block, 1);
            v.write(block * BLOCK, data, false).await.unwrap();
        }
        (array, v)
    });
    let flushed = Rc::new(Cell::new(false));
    let (failing, done) = (array.clone(), flushed.clone());
    let story = async move {
        failing.fail(GONE, false).await.unwrap();
        v.flush().await.unwrap();
        done.set(true);
        std::future::pending::<()>().await;
    };
    let _ = rt.run_for(polls, story);
    let asked = async move { array.status().await.health.more_losses };
    let more = rt.run_for(1000, asked);
    rt.shutdown(); // the power goes
    let more = usize::from(more.ok().filter(|_| flushed.get())?);
    let others: Vec<usize> = (0..count).filter(|d| *d != usize::from(GONE)).collect();
    for next in 0..others.len() {
        let mut gone: Vec<usize> = others
            .iter()
            .copied()
            .cycle()
            .skip(next)
            .take(more)
            .collect();
        gone.push(usize::from(GONE));
        let what = format!("{layout}, {blocks} blocks, {polls} polls, without {gone:?}");
        let rt = Rt::simulated(2);
        let (handle, left) = (rt.clone(), without(&disks, &gone));
        rt.block_on(async move {
            let options = Import {
                degraded: true,
                read_only: true, // the devices are as they were for the next ones
                ..Import::default()
            };
            let imported = Array::import(&handle, left, options).await;
            let array = imported.unwrap_or_else(|error| panic!("{what}: {error}"));
            check(&array.volume("v").unwrap(), blocks * BLOCK, 1, &what).await;
        });
        rt.shutdown();
    }
    Some(more)
}

/// #117, #118: what a checkpoint had freed, and columns that rebuild had moved, counted before that was durable;
/// #120: the import read the trees without columns that only the journal named. An array was optimal that could
/// not lose M more devices if the power went then.
#[test]
fn optimal_is_what_a_power_cut_leaves() {
    // With devices free, rebuild makes it optimal; without, what is merged.
    for (layout, count, m) in [("ec3+1", 6, 1), ("ec4+2", 13, 2), ("ec3+1", 4, 1)] {
        let optimal = (1500..12_000).step_by(29);
        let optimal = optimal.filter(|polls| is_optimal_after(*polls, layout, count, m));
        assert!(optimal.count() > 0);
    }
}

/// M devices fail, and all is written again; after so many polls the array is asked how it is, and the power
/// goes. If it said optimal, any M others may be missing.
fn is_optimal_after(polls: u64, layout: &'static str, count: usize, m: usize) -> bool {
    let disks = devices(count, 8 * MIB);
    let rt = Rt::simulated(1);
    let (handle, clock, kept) = (rt.clone(), rt.clone(), refs(&disks));
    let failed: Rc<RefCell<Option<Array>>> = Rc::default();
    let without_them = failed.clone();
    let story = async move {
        let array = Array::create(&handle, kept, small(layout)).await.unwrap();
        array.volume_create("v", volume(MIB)).await.unwrap();
        for other in 0..20 {
            // A catalog of which a checkpoint changes a part.
            array
                .volume_create(&format!("v{other}"), volume(BLOCK))
                .await
                .unwrap();
        }
        let v = array.volume("v").unwrap();
        fill(&v, MIB / 4, BLOCK, 1, "all there").await;
        for device in 0..m {
            array
                .fail(u16::try_from(device).unwrap(), false)
                .await
                .unwrap();
        }
        *without_them.borrow_mut() = Some(array.clone());
        array.set("reconstruct.narrow", "never").await.unwrap();
        for version in 2..6 {
            fill(&v, MIB / 4, BLOCK, version, "without them").await;
            array.wait_idle(&[Work::Rebuild]).await;
            clock.sleep(40 * SECOND).await; // merged
        }
    };
    let _ = rt.run_for(polls, story);
    let Some(array) = failed.take() else {
        rt.shutdown();
        return false;
    };
    let state = rt.run_for(1000, async move { array.status().await.state });
    rt.shutdown();
    if state != Ok(ArrayState::Optimal) {
        return false;
    }
    for next in m..count + 1 - m {
        let rt = Rt::simulated(2);
        let gone: Vec<usize> = (0..m).chain(next..next + m).collect();
        let (handle, left) = (rt.clone(), without(&disks, &gone));
        let options = Import {
            read_only: true, // the devices are as they were for the next ones
            ..Import::default()
        };
        let imported = rt.block_on(async move {
            let imported = Array::import(&handle, left, options).await;
            imported.map(drop)
        });
        rt.shutdown();
        assert!(
            imported.is_ok(),
            "{polls} polls, without {gone:?}: {imported:?}"
        );
    }
    true
}
