//! Cleaning gains room, in parts and within its reserve.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::Cell;
use std::rc::Rc;

use ashlar_device::{Device, DeviceInfo, DeviceRef, Fault, IoFuture, MemDevice};
use ashlar_engine::status::ArrayState;
use ashlar_engine::{Array, Create, Import, VolumeOptions};
use ashlar_rt::{Buf, MILLISECOND, Rt, Slice};

use crate::common::room::{all_thick, put};
use crate::common::{BLOCK, devices, fill, pattern, refs, small, volume};

const MIB: u64 = 1 << 20;

/// A device whose reads take a while: the bytes of those under way, on all devices, and the most there were.
struct Reading(Rt, Rc<MemDevice>, Rc<[Cell<usize>; 2]>);

impl Device for Reading {
    fn info(&self) -> &DeviceInfo {
        self.1.info()
    }
    fn read(&self, offset: u64, buf: Buf) -> IoFuture<(Buf, Result<(), Fault>)> {
        let (rt, inner, counts) = (self.0.clone(), self.1.clone(), self.2.clone());
        let bytes = buf.len();
        counts[0].set(counts[0].get() + bytes);
        counts[1].set(counts[1].get().max(counts[0].get()));
        Box::pin(self.0.spawn(async move {
            rt.sleep(MILLISECOND).await;
            counts[0].set(counts[0].get() - bytes);
            inner.read(offset, buf).await
        }))
    }
    fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<Result<(), Fault>> {
        self.1.write(offset, data)
    }
    fn flush(&self) -> IoFuture<Result<(), Fault>> {
        self.1.flush()
    }
    fn discard(&self, offset: u64, length: u64) -> IoFuture<Result<(), Fault>> {
        self.1.discard(offset, length)
    }
}

/// What is read to move the live blocks of a segment does not grow with the segment: one of 1 GiB slots would take as
/// much memory as many a machine has. Here segments of 128 MiB have lost their last redundancy, and are rewritten.
#[test]
fn a_large_segment_is_moved_in_parts() {
    let disks = devices(9, 1 << 30);
    let rt = Rt::simulated(1);
    let counts = Rc::new([const { Cell::new(0) }; 2]);
    let reading = |d: &Rc<MemDevice>| Reading(rt.clone(), d.clone(), counts.clone());
    let kept = disks
        .iter()
        .map(|d| Rc::new(reading(d)) as DeviceRef)
        .collect();
    let (handle, most) = (rt.clone(), counts.clone());
    rt.block_on(async move {
        let create = Create {
            slot_bytes: Some(16 << 20),
            strip_bytes: Some(64 << 10),
            ..small("ec8+1")
        };
        let array = Array::create(&handle, kept, create).await.unwrap();
        array.volume_create("v", volume(256 * MIB)).await.unwrap();
        let v = array.volume("v").unwrap();
        for block in 0..40_000 {
            put(&v, block, 1).await.unwrap();
        }
        v.flush().await.unwrap();
        most[1].set(0);
        array.fail(3, false).await.unwrap();
        array.wait_idle(&[]).await;
        let status = array.status().await;
        assert_eq!(status.state, ArrayState::Optimal);
        let most = most[1].get();
        assert!(most > 16 << 20 && most <= 66 << 20, "{most} bytes at once");
        for block in (0..40_000).step_by(97) {
            let read = v.read(block * BLOCK, BLOCK as usize).await.unwrap();
            assert!(*read == *pattern(block, 1), "block {block}");
        }
    });
    rt.shutdown();
}

/// A full array that is overwritten here and there, with little kept for cleaning: checkpoints write nodes of their
/// own, and where cleaning made one for every few blocks it gained nothing, and a thick volume got `NoSpace` (#181).
#[test]
fn cleaning_does_not_use_up_what_it_gains() {
    let disks = devices(3, 48 * MIB);
    let rt = Rt::simulated(1);
    let (handle, kept) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let create = Create {
            strip_bytes: Some(16 << 10),
            slot_bytes: Some(128 << 10),
            ..small("raid0")
        };
        let (_array, v, size) = all_thick(&handle, kept, create).await;
        fill(&v, size, BLOCK, 1, "at first").await;
        let blocks = size / BLOCK;
        for n in 0..blocks / 4 {
            let block = n * 47 % blocks;
            let written = v.write(block * BLOCK, pattern(block, 2), false).await;
            assert!(written.is_ok(), "block {n} of {blocks}: {written:?}");
        }
    });
    rt.shutdown();
}

/// What cleaning leaves alone is less than what is kept for it: where that was less than a twentieth, and as much of
/// each segment was dead, a volume that was promised all the room got `NoSpace` (#149).
#[test]
fn a_small_reserve_is_enough_for_cleaning() {
    let disks = devices(6, 64 * MIB);
    let rt = Rt::simulated(1);
    let (handle, kept) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let (_array, v, size) = all_thick(&handle, kept, small("ec4+2")).await;
        fill(&v, size, BLOCK, 1, "all of it").await;
        for first in 0..6 {
            for block in (first..size / BLOCK).step_by(56) {
                let done = v.write(block * BLOCK, pattern(block, 2), false).await;
                assert!(done.is_ok(), "{first}, block {block}: {done:?}");
            }
        }
    });
    rt.shutdown();
}

/// A full array of devices of different sizes, with little kept for cleaning, loses some, and a little of each segment
/// is overwritten: segments without a column of those that are gone are worth cleaning by what they hold. Reckoned as
/// if all new ones had as many columns as the widest none was, and a thick volume got `NoSpace` (#176).
#[test]
fn what_is_laid_unequally_is_worth_cleaning() {
    for (stride, offset, gone) in [(45, 7, [3, 6]), (60, 0, [6, 3]), (30, 0, [3, 6])] {
        let slots = [112, 180, 200, 180, 200, 112, 180].iter().enumerate();
        let made = slots.map(|(i, n)| Rc::new(MemDevice::new(&format!("mem{i}"), n << 16)));
        let disks: Vec<_> = made.collect();
        let rt = Rt::simulated(1);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let mut create = Create {
                strip_bytes: Some(16384),
                ..small("ec4+2")
            };
            create.settings.memory_bytes = 64 << 10;
            let (array, v, size) = all_thick(&handle, kept, create).await;
            fill(&v, size, BLOCK, 1, "all of it").await;
            for round in 0..8 {
                let what = format!("each {stride}th from {offset} on, {gone:?}, round {round}");
                if round == 2 || round == 4 {
                    array.fail(gone[round / 4], false).await.unwrap();
                }
                let first = (round as u64 * 3 + offset) % stride;
                let blocks = (first..size / BLOCK).step_by(stride as usize);
                let write = |block: u64| {
                    let v = v.clone();
                    let bytes = pattern(block, 2);
                    handle.spawn(async move { v.write(block * BLOCK, bytes, false).await })
                };
                let under_way: Vec<_> = blocks.map(write).collect();
                for write in under_way {
                    let done = write.await;
                    assert!(done.is_ok(), "{what}: {done:?}");
                }
            }
        });
        rt.shutdown();
    }
}

/// Volume blocks of 128 KiB leave a third of each stripe of three strips empty, which no cleaning gains: also after an
/// import, when nobody knows how stripes were filled.
#[test]
fn what_large_blocks_leave_empty_is_not_cleaned_after_an_import() {
    let disks = devices(4, 48 * MIB);
    let rt = Rt::simulated(1);
    let (handle, kept) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let create = Create {
            strip_bytes: Some(64 << 10),
            slot_bytes: Some(512 << 10),
            ..small("ec3+1")
        };
        let array = Array::create(&handle, kept.clone(), create).await.unwrap();
        array.set("clean.reserve", "2%").await.unwrap();
        let unit = 128 << 10;
        let size = array.room_for(unit) / u64::from(unit) * u64::from(unit);
        let options = VolumeOptions {
            block_bytes: unit,
            ..volume(size)
        };
        array.volume_create("v", options).await.unwrap();
        let v = array.volume("v").unwrap();
        fill(&v, size, unit.into(), 1, "all of it").await;
        array.export().await.unwrap();
        drop((v, array));
        let array = Array::import(&handle, kept, Import::default())
            .await
            .unwrap();
        let v = array.volume("v").unwrap();
        // What is overwritten here dies whole segments at a time: nothing else is worth moving.
        for version in 2..6 {
            let part = size / 4 / u64::from(unit) * u64::from(unit);
            fill(&v, part, unit.into(), version, "a part").await;
        }
        let written = array.status().await.clean.write_amplification.unwrap();
        assert!(written < 1.1, "{written} blocks written for each");
    });
    rt.shutdown();
}
