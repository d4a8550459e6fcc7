//! Too few devices for a stripe: volume blocks that a narrow one would not hold, and stripes that lose more
//! columns than they have parity while they are written.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::Cell;
use std::rc::Rc;

use ashlar_device::{Delay, DelayFilter, DeviceRef, FaultFilter, MemDevice};
use ashlar_engine::Work;
use ashlar_engine::status::ArrayState;
use ashlar_engine::{Array, Create, Error, Import, Volume, VolumeOptions};
use ashlar_rt::{MILLISECOND, Rt, SECOND};

use crate::common::{self, BLOCK, devices, pattern, refs, run, small, volume, without};

const MIB: u64 = 1 << 20;
/// Polls after which something that should end counts as endless.
const ENDLESS: u64 = 2_000_000;

/// 4+2 with stripes that a block does not fill.
fn large_strips() -> Create {
    Create {
        strip_bytes: Some(16384),
        ..small("ec4+2")
    }
}

fn large_blocks(block_bytes: u32) -> VolumeOptions {
    VolumeOptions {
        block_bytes,
        ..volume(2 * MIB)
    }
}

async fn fill(v: &Volume, version: u64) {
    for first in (0..2 * MIB / BLOCK).step_by(8) {
        let done = v.write(first * BLOCK, run(first, 8, version), false).await;
        assert!(done.is_ok(), "block {first}, version {version}: {done:?}");
    }
    v.flush().await.unwrap();
}

async fn check(v: &Volume, version: u64) {
    for first in (0..2 * MIB / BLOCK).step_by(8) {
        let read = v.read(first * BLOCK, 8 * BLOCK as usize).await.unwrap();
        assert!(*read == *run(first, 8, version), "block {first}");
    }
}

/// K+M devices, and volume blocks that need more data columns than a stripe of full redundancy has once
/// devices are gone: they are written with what redundancy is left. Also those of a volume that is made only
/// then, when streams fill segments that are too narrow for it.
#[test]
fn a_volume_block_may_be_larger_than_a_narrow_stripe() {
    for (layout, count, block, lost) in [
        ("ec4+2", 6, 16 << 10, 1),
        ("ec4+2", 6, 16 << 10, 2),
        ("ec3+2", 5, 8 << 10, 2),
        ("ec8+3", 11, 32 << 10, 3),
        ("raid5", 5, 16 << 10, 1),
        ("raid0", 4, 16 << 10, 0),
    ] {
        let disks = devices(count, 16 * MIB);
        let rt = Rt::simulated(1);
        let handle = rt.clone();
        let title = format!("{layout} without {lost}");
        rt.block_on(async move {
            let array = Array::create(&handle, refs(&disks), small(layout));
            let array = array.await.unwrap();
            array.volume_create("small", volume(2 * MIB)).await.unwrap();
            let small = array.volume("small").unwrap();
            fill(&small, 1).await;
            for device in 0..lost {
                array.fail(device, false).await.unwrap();
            }
            fill(&small, 2).await;
            array.volume_create("v", large_blocks(block)).await.unwrap();
            let v = array.volume("v").unwrap();
            fill(&v, 3).await;
            fill(&small, 3).await;
            check(&v, 3).await;
            let status = array.status().await;
            assert_ne!(status.state, ArrayState::Failed, "{title}");
            array.export().await.unwrap();
            let array = Array::import(&handle, refs(&disks), Import::default())
                .await
                .unwrap();
            let v = array.volume("v").unwrap();
            check(&v, 3).await;
            fill(&v, 4).await;
            fill(&array.volume("small").unwrap(), 4).await;
            check(&v, 4).await;
        });
        rt.shutdown();
    }
}

/// Clients wait for room on a full array while a device without which stripes cannot be written goes away:
/// what such a stripe held finds a place, or the array stops, but nobody waits for ever, and what was flushed
/// is there or its device is.
#[test]
fn a_full_array_does_not_wait_for_a_stripe_that_cannot_be_written() {
    for (layout, count) in [("raid0", 4), ("raid10", 4), ("ec2+1", 4)] {
        for moment in (0..40).step_by(4) {
            stripe_lost_in_flight(layout, count, moment);
        }
    }
}

fn stripe_lost_in_flight(layout: &'static str, count: usize, moment: u64) {
    let disks = devices(count, 6 * MIB);
    let rt = Rt::simulated(moment);
    let handle = rt.clone();
    let filters: Vec<Rc<FaultFilter>> = disks
        .iter()
        .map(|d| FaultFilter::new(d.clone() as DeviceRef))
        .collect();
    let delay = Delay {
        write: MILLISECOND,
        flush: MILLISECOND,
        ..Delay::default()
    };
    let members = filters
        .iter()
        .map(|f| DelayFilter::new(&rt, f.clone() as DeviceRef, delay) as DeviceRef)
        .collect();
    let title = format!("{layout}, moment {moment}");
    rt.block_on(async move {
        let array = Array::create(&handle, members, small(layout))
            .await
            .unwrap();
        let size = array.room_for(4096);
        array.volume_create("v", volume(size)).await.unwrap();
        let blocks = size / BLOCK;
        let v = Rc::new(array.volume("v").unwrap());
        for block in 0..blocks {
            let done = v.write(block * BLOCK, pattern(block, 1), false).await;
            done.unwrap();
        }
        v.flush().await.unwrap();
        let stop = Rc::new(Cell::new(false));
        let writers: Vec<_> = (0..4)
            .map(|writer: u64| {
                let (v, stop) = (v.clone(), stop.clone());
                handle.spawn(async move {
                    let mut at = writer * 7919;
                    while !stop.get() {
                        at += 7919;
                        let block = at % blocks;
                        let done = v.write(block * BLOCK, pattern(block, 2), false).await;
                        if done.is_err() {
                            return;
                        }
                    }
                })
            })
            .collect();
        handle
            .sleep(200 * MILLISECOND + moment * 3 * MILLISECOND / 2)
            .await;
        // More than any of these layouts survives.
        filters[0].set_offline(true);
        filters[1].set_offline(true);
        handle.sleep(60 * SECOND).await;
        // Whether it goes on depends on what is left; that it answers does not.
        stop.set(true);
        let flushed = handle.timeout(2000 * SECOND, v.flush()).await;
        let stopped = array.events(0).iter().any(|e| e.kind == "halted");
        let waits = array.events(0).iter().any(|e| e.kind == "writes-wait");
        assert!(
            flushed.is_some() || waits,
            "{title}: the flush is never answered (stopped: {stopped})"
        );
        if flushed.is_some() {
            for writer in writers {
                let ended = handle.timeout(2000 * SECOND, writer).await;
                assert!(ended.is_some(), "{title}: a write is never answered");
            }
        }
    });
    rt.shutdown();
}

/// What is written as wide as ever for the sake of large volume blocks has no redundancy left and will not get
/// any: it is not written again and again.
#[test]
fn what_cannot_be_narrower_is_left_alone() {
    for (layout, count, lost) in [("raid5", 3, 1), ("ec2+2", 4, 2), ("ec3+2", 5, 2)] {
        let disks = devices(count, 16 * MIB);
        let rt = Rt::simulated(1);
        let handle = rt.clone();
        rt.block_on(async move {
            let array = Array::create(&handle, refs(&disks), small(layout));
            let array = array.await.unwrap();
            let options = large_blocks(8 << 10);
            array.volume_create("v", options).await.unwrap();
            let v = array.volume("v").unwrap();
            fill(&v, 1).await;
            for device in 0..lost {
                array.fail(device, false).await.unwrap();
            }
            fill(&v, 2).await;
            let idle = handle.timeout(600 * SECOND, array.wait_idle(&[Work::Rebuild]));
            assert!(idle.await.is_some(), "{layout}: reconstruct does not end");
            check(&v, 2).await;
        });
        rt.shutdown();
    }
}

/// Fewer devices are left than a large volume block needs: a write is refused, and does not wait for room.
#[test]
fn a_write_that_too_few_devices_are_left_for_is_refused() {
    let disks = devices(6, 16 * MIB);
    let rt = Rt::simulated(1);
    let handle = rt.clone();
    rt.block_on(async move {
        let array = Array::create(&handle, refs(&disks), small("ec4+2"));
        let array = array.await.unwrap();
        let options = large_blocks(16 << 10);
        array.volume_create("v", options).await.unwrap();
        let v = array.volume("v").unwrap();
        fill(&v, 1).await;
        for device in 0..3 {
            array.fail(device, true).await.unwrap();
        }
        for first in (0..2 * MIB / BLOCK).step_by(8) {
            let write = v.write(first * BLOCK, run(first, 8, 2), false);
            let done = handle.timeout(100 * SECOND, write).await;
            assert!(matches!(done, Some(Err(_))), "block {first}: {done:?}");
        }
    });
    rt.shutdown();
}

/// An array of six devices with a small block that only the journal has, and blocks that take four devices: two
/// have failed, and, if that is `known`, a third one. Then the power goes.
fn a_block_in_the_journal(known: bool) -> Vec<Rc<MemDevice>> {
    let disks = devices(6, 16 * MIB);
    let rt = Rt::simulated(1);
    let (handle, kept) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let array = Array::create(&handle, kept, large_strips()).await.unwrap();
        array
            .volume_create("v", large_blocks(64 << 10))
            .await
            .unwrap();
        array.volume_create("w", volume(MIB)).await.unwrap();
        let (v, w) = (array.volume("v").unwrap(), array.volume("w").unwrap());
        fill(&v, 1).await;
        array.wait_idle(&[]).await;
        array.fail(0, true).await.unwrap();
        array.fail(1, true).await.unwrap();
        array.wait_idle(&[]).await; // nothing hangs on records of theirs
        w.write(0, pattern(0, 1), true).await.unwrap(); // in the journal: no stripe is full
        if known {
            array.fail(2, true).await.unwrap();
        }
    });
    rt.shutdown(); // the power goes
    disks
}

/// #114: what only the journal had, of blocks that the devices left cannot hold, was waited for for ever by
/// the import.
#[test]
fn an_import_does_not_wait_for_a_place_that_there_is_not() {
    for known in [true, false] {
        let disks = a_block_in_the_journal(known);
        for degraded in [false, true] {
            let rt = Rt::simulated(2);
            let (handle, left) = (rt.clone(), without(&disks, &[0, 1, 2]));
            let story = rt.run_for(ENDLESS, async move {
                let options = Import {
                    degraded,
                    ..Import::default()
                };
                let imported = Array::import(&handle, left, options).await;
                match imported {
                    Ok(array) => {
                        let events = array.events(0);
                        assert!(
                            events.iter().any(|e| e.kind == "journal-lost"),
                            "{events:?}"
                        );
                        assert!(degraded, "only with the operator's word");
                    }
                    Err(Error::TooFew { .. }) => assert!(!degraded && !known),
                    Err(Error::NoPlace(1)) => assert!(!degraded && known),
                    Err(error) => panic!("{error}"),
                }
            });
            rt.shutdown();
            story.expect("an import ends");
        }
    }
}

/// #113: a stripe begun, of which nothing was written yet, did not count: the array was optimal without a device
/// that this stripe then lacked, and M more lost what had been acknowledged.
#[test]
fn a_stripe_begun_counts_for_the_redundancy() {
    for failed in 0..7 {
        for other in 1..6 {
            let what = move || {
                format!("device {failed} failed, then {other} further on and the one before")
            };
            let disks = devices(7, 8 * MIB);
            let rt = Rt::simulated(1);
            let (handle, kept) = (rt.clone(), refs(&disks));
            rt.block_on(async move {
                let array = Array::create(&handle, kept, large_strips()).await.unwrap();
                array.volume_create("v", volume(MIB)).await.unwrap();
                let v = array.volume("v").unwrap();
                v.write(0, pattern(0, 1), true).await.unwrap(); // in the journal: no stripe is full
                array.fail(failed, false).await.unwrap();
                array.wait_idle(&[Work::Rebuild]).await;
                assert_eq!(
                    array.status().await.state,
                    ArrayState::Optimal,
                    "{}",
                    what()
                );
                array.export().await.unwrap();
            });
            rt.shutdown();
            let failed = usize::from(failed);
            let left = without(&disks, &[failed, (failed + other) % 7, (failed + 6) % 7]);
            let rt = Rt::simulated(2);
            let handle = rt.clone();
            rt.block_on(async move {
                let imported = Array::import(&handle, left, Import::default()).await;
                let array = imported.unwrap_or_else(|error| panic!("{}: {error}", what()));
                common::check(&array.volume("v").unwrap(), BLOCK, 1, &what()).await;
            });
            rt.shutdown();
        }
    }
}
