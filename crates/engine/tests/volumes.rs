//! Making and destroying volumes.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::Cell;
use std::rc::Rc;

use ashlar_device::{Device, DeviceInfo, Fault, IoFuture, MemDevice};
use ashlar_engine::{Array, Error, Import, Volume, VolumeError, VolumeOptions};
use ashlar_rt::{Buf, MILLISECOND, Rt, SECOND, Slice};

use crate::common::room::{give_up_after, put, slow};
use crate::common::{BLOCK, check, devices, fill, pattern, refs, small, thin_volume, volume};

const MIB: u64 = 1 << 20;

/// A device that counts the roots written to it.
struct Roots(Rc<MemDevice>, Rc<Cell<usize>>);

impl Device for Roots {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }
    fn read(&self, offset: u64, buf: Buf) -> IoFuture<(Buf, Result<(), Fault>)> {
        self.0.read(offset, buf)
    }
    fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<Result<(), Fault>> {
        let roots = data.iter().filter(|d| d.starts_with(b"ASHROOT1")).count();
        self.1.set(self.1.get() + roots);
        self.0.write(offset, data)
    }
    fn flush(&self) -> IoFuture<Result<(), Fault>> {
        self.0.flush()
    }
    fn discard(&self, offset: u64, length: u64) -> IoFuture<Result<(), Fault>> {
        self.0.discard(offset, length)
    }
}

/// A write that waits for room while its volume is destroyed must not keep the journal for ever.
#[test]
fn a_destroyed_volume_lets_go_of_the_journal() {
    let disks = devices(6, 16 * MIB);
    let rt = Rt::simulated(1);
    let (handle, kept) = (rt.clone(), slow(&rt, &disks, MILLISECOND));
    let story = rt.run_for(4_000_000, async move {
        let array = Array::create(&handle, kept, small("ec4+2")).await.unwrap();
        for name in ["gone", "kept"] {
            array.volume_create(name, volume(16 * MIB)).await.unwrap();
        }
        // Clients that go on writing to a volume that is being destroyed.
        let mut joins = Vec::new();
        for client in 0..8 {
            let (v, rt) = (array.volume("gone").unwrap(), handle.clone());
            joins.push(handle.spawn(async move {
                for round in 0..2000 {
                    let block = client * 512 + round % 512;
                    if put(&v, block, round).await.is_err() {
                        return true;
                    }
                    if round % 16 == 0 {
                        rt.sleep(MILLISECOND).await;
                    }
                }
                false
            }));
        }
        handle.sleep(100 * MILLISECOND).await;
        let before = array.room_for(4096);
        array.volume_destroy("gone").await.unwrap();
        for join in joins {
            assert!(join.await, "a write to a volume that is gone fails");
        }
        handle.sleep(10 * SECOND).await;
        assert!(
            array.room_for(4096) >= before + 16 * MIB,
            "its space is back"
        );
        let v = array.volume("kept").unwrap();
        for round in 0..30 {
            for block in 0..4096 {
                put(&v, block, round).await.unwrap();
            }
            v.flush().await.unwrap();
        }
        let full = array
            .events(0)
            .iter()
            .filter(|e| e.kind == "journal-full")
            .count();
        assert_eq!(full, 0);
    });
    assert!(story.is_ok(), "{story:?}");
    rt.shutdown();
}

/// Two ask for one name at once.
#[test]
fn a_name_is_given_once() {
    let disks = devices(2, 8 * MIB);
    let rt = Rt::simulated(1);
    let (handle, kept) = (rt.clone(), slow(&rt, &disks, MILLISECOND));
    rt.block_on(async move {
        let array = Array::create(&handle, kept, small("raid1")).await.unwrap();
        let ask = || {
            let array = array.clone();
            handle.spawn(async move { array.volume_create("v", volume(MIB)).await.is_ok() })
        };
        let (first, second) = (ask(), ask());
        assert_eq!(u32::from(first.await) + u32::from(second.await), 1);
        assert_eq!(array.volume_names(), ["v"]);
    });
    rt.shutdown();
}

/// A large volume is destroyed in steps, each a root: what one changes is in memory until it is written, and would grow
/// with the volume, again at every import, where there is not so much.
#[test]
fn a_large_volume_is_destroyed_in_steps() {
    let leaves = 5000;
    let disks = devices(3, 256 * MIB);
    let rt = Rt::simulated(1);
    let roots = Rc::new(Cell::new(0));
    let mut kept = refs(&disks);
    kept[0] = Rc::new(Roots(disks[0].clone(), roots.clone()));
    let handle = rt.clone();
    rt.block_on(async move {
        let mut create = small("ec2+1");
        create.settings.memory_bytes = 1 << 20;
        let array = Array::create(&handle, kept, create).await.unwrap();
        let thin = thin_volume(leaves * 512 * 1024);
        array.volume_create("v", thin).await.unwrap();
        let v = array.volume("v").unwrap();
        for leaf in 0..leaves {
            put(&v, leaf * 128, 1).await.unwrap();
        }
        handle.sleep(40 * SECOND).await; // all of it is merged
        let before = roots.get();
        array.volume_destroy("v").await.unwrap();
        array.wait_idle(&[]).await;
        handle.sleep(40 * SECOND).await;
        let steps = roots.get() - before;
        assert!((5..20).contains(&steps), "{steps} roots");
        let capacity = array.status().await.capacity;
        assert_eq!(capacity.used_bytes, 0, "{capacity:?}");
        array.export().await.unwrap();
    });
    rt.shutdown();
}

/// The block's bytes as written in this version, or zeros.
async fn assert_block(v: &Volume, block: u64, version: Option<u64>, what: &str) {
    let read = v.read(block * BLOCK, BLOCK as usize).await;
    let read = read.unwrap_or_else(|e| panic!("{what}: block {block}: {e}"));
    let is = match version {
        Some(version) => *read == *pattern(block, version),
        None => read.iter().all(|byte| *byte == 0),
    };
    assert!(is, "{what}: block {block}");
}

/// Exports the array and imports it again.
async fn reopened(rt: &Rt, array: Array, disks: &[Rc<MemDevice>]) -> Array {
    array.export().await.unwrap();
    Array::import(rt, refs(disks), Import::default())
        .await
        .unwrap()
}

/// A thin volume grows until its maps are several levels higher, with blocks at the end of each size and in between:
/// what was there stays, what is new reads as zeros.
#[test]
fn a_volume_grows_over_the_heights_of_its_maps() {
    for block_bytes in [4096, 131_072] {
        let disks = devices(3, 32 * MIB);
        let rt = Rt::simulated(1);
        let handle = rt.clone();
        rt.block_on(async move {
            let mut create = small("ec2+1");
            (create.strip_bytes, create.slot_bytes) = (Some(64 << 10), Some(1 << 20));
            let mut array = Array::create(&handle, refs(&disks), create).await.unwrap();
            let options = VolumeOptions {
                block_bytes,
                ..thin_volume(MIB)
            };
            array.volume_create("v", options).await.unwrap();
            let mut written = Vec::new();
            let sizes = [MIB, 3 * MIB, 300 * MIB, 64 << 30, 16 << 40, 1 << 60];
            for (size, version) in sizes.into_iter().zip(1..) {
                let what = format!("{block_bytes}, {size}");
                array.volume_resize("v", size).await.unwrap();
                let v = array.volume("v").unwrap();
                assert_eq!(v.info().size_bytes, size);
                let end = size / BLOCK;
                for block in [0, end / 3, end - 1] {
                    let known = written.iter().rev().find(|(b, _)| *b == block);
                    assert_block(&v, block, known.map(|(_, version)| *version), &what).await;
                    put(&v, block, version).await.unwrap();
                    written.retain(|(b, _)| *b != block);
                    written.push((block, version));
                }
                assert_block(&v, end / 2 + 64, None, &what).await;
                if version % 2 == 0 {
                    array = reopened(&handle, array, &disks).await;
                } else {
                    array.merge().await.unwrap();
                }
                let v = array.volume("v").unwrap();
                for (block, version) in &written {
                    assert_block(&v, *block, Some(*version), &what).await;
                }
            }
            let too_large = array.volume_resize("v", (1 << 60) + BLOCK).await;
            assert!(
                matches!(too_large, Err(Error::Size { .. })),
                "{too_large:?}"
            );
            array.export().await.unwrap();
        });
        rt.shutdown();
    }
}

/// What a volume loses as it becomes smaller is not there when it grows again: blocks, parts of its last block, and what
/// the journal still had of them; over restarts, and over maps that are higher than the volume needs.
#[test]
fn a_volume_that_shrinks_and_grows_again_has_zeros_at_its_end() {
    for (block_bytes, thin) in [
        (4096, false),
        (16384, false),
        (16384, true),
        (131_072, true),
    ] {
        let disks = devices(3, 32 * MIB);
        let rt = Rt::simulated(1);
        let handle = rt.clone();
        rt.block_on(async move {
            let mut create = small("ec2+1");
            (create.strip_bytes, create.slot_bytes) = (Some(64 << 10), Some(1 << 20));
            let mut array = Array::create(&handle, refs(&disks), create).await.unwrap();
            let options = VolumeOptions {
                block_bytes,
                thin,
                ..volume(8 * MIB)
            };
            array.volume_create("v", options).await.unwrap();
            let mut v = array.volume("v").unwrap();
            let mut expected = vec![None; 2048];
            let rounds = [
                4 * MIB,
                4 * MIB - 20 * BLOCK,
                2 * MIB + 3 * BLOCK,
                7 * BLOCK,
                BLOCK,
            ];
            for (size, version) in rounds.into_iter().zip(1..) {
                let what = format!("{block_bytes}, {thin}, {size}");
                fill(&v, 8 * MIB, 64 << 10, version, &what).await;
                if version % 2 == 0 {
                    array.merge().await.unwrap();
                }
                array.volume_resize("v", size).await.unwrap();
                for (block, holds) in (0..).zip(&mut expected) {
                    *holds = (block < size / BLOCK).then_some(version);
                }
                let (end, beyond) = (size - BLOCK, v.read(size, BLOCK as usize).await);
                assert_block(&v, end / BLOCK, Some(version), &what).await;
                assert_eq!(beyond.unwrap_err(), VolumeError::OutOfRange);
                if version % 2 == 1 {
                    array = reopened(&handle, array, &disks).await;
                }
                array.volume_resize("v", 8 * MIB).await.unwrap();
                v = array.volume("v").unwrap();
                for (block, holds) in (0..).zip(&expected) {
                    assert_block(&v, block, *holds, &what).await;
                }
            }
            array.export().await.unwrap();
        });
        rt.shutdown();
    }
}

/// A thick volume grows as far as space can be promised, and what it no longer has is another's to take.
#[test]
fn a_thick_volume_takes_and_gives_back_promised_space() {
    let disks = devices(3, 32 * MIB);
    let rt = Rt::simulated(1);
    let handle = rt.clone();
    rt.block_on(async move {
        let array = Array::create(&handle, refs(&disks), small("ec2+1"))
            .await
            .unwrap();
        array.volume_create("v", volume(8 * MIB)).await.unwrap();
        let room = array.room_for(4096) / MIB * MIB;
        let refused = array.volume_resize("v", 8 * MIB + room + MIB).await;
        let Err(Error::NoSpace { asked, free }) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!((asked, free / MIB * MIB), (room + MIB, room));
        assert_eq!(array.volume("v").unwrap().info().size_bytes, 8 * MIB);
        array.volume_resize("v", 8 * MIB + room).await.unwrap();
        let full = array.volume_create("w", volume(MIB)).await;
        assert!(matches!(full, Err(Error::NoSpace { .. })), "{full:?}");
        let v = array.volume("v").unwrap();
        fill(&v, 8 * MIB + room, 64 << 10, 1, "full").await;
        array.volume_resize("v", 4 * MIB).await.unwrap();
        check(&v, 4 * MIB, 1, "after").await;
        assert!(array.room_for(4096) >= 3 * MIB + room);
        array.volume_create("w", volume(room)).await.unwrap();
        let w = array.volume("w").unwrap();
        fill(&w, room, 64 << 10, 2, "the other").await;
        check(&v, 4 * MIB, 1, "still").await;
        let used = array.status().await.volumes[0].used_bytes;
        assert_eq!(used, 4 * MIB);
        let missing = array.volume_resize("x", MIB).await;
        assert!(matches!(missing, Err(Error::NoVolume(_))), "{missing:?}");
        array.export().await.unwrap();
    });
    rt.shutdown();
}

/// Who writes while a volume becomes smaller gets errors beyond its end, and leaves nothing there. One change of its
/// size is made at a time.
#[test]
fn writers_leave_nothing_beyond_the_end() {
    let disks = devices(4, 32 * MIB);
    for seed in 0..4 {
        let rt = Rt::simulated(seed);
        let (handle, kept) = (rt.clone(), slow(&rt, &disks, MILLISECOND));
        rt.block_on(async move {
            let array = Array::create(&handle, kept, small("ec2+1")).await.unwrap();
            array.volume_create("v", volume(8 * MIB)).await.unwrap();
            let mut joins = Vec::new();
            for client in 0..4 {
                let v = array.volume("v").unwrap();
                joins.push(handle.spawn(async move {
                    for round in 0..400 {
                        let block = (client * 512 + round * 7) % 2048;
                        let done = put(&v, block, round).await;
                        assert!(block >= 1024 || done.is_ok(), "{block}: {done:?}");
                        assert!(matches!(done, Ok(()) | Err(VolumeError::OutOfRange)));
                    }
                }));
            }
            handle.sleep((1 + seed) * 20 * MILLISECOND).await;
            let other = array.clone();
            let second = handle.spawn(async move {
                let result = other.volume_resize("v", 2 * MIB).await;
                assert!(matches!(result, Err(Error::Resizing(_))), "{result:?}");
                assert!(other.is_resizing("v"));
            });
            array.volume_resize("v", 4 * MIB).await.unwrap();
            second.await;
            assert!(!array.is_resizing("v"));
            for join in joins {
                join.await;
            }
            array.volume_resize("v", 8 * MIB).await.unwrap();
            let v = array.volume("v").unwrap();
            for block in 1024..2048 {
                assert_block(&v, block, None, "beyond").await;
            }
            array.destroy().await.unwrap();
        });
        rt.shutdown();
    }
}

/// The daemon dies at many moments of a change of size, and another goes on: the volume has the old size or the new one;
/// what both have is as it was; what lies beyond the old size reads as zeros once the volume is large again.
#[test]
fn a_size_survives_the_death_of_the_daemon_at_any_moment() {
    const SMALL: u64 = 2 * MIB + 3 * BLOCK;
    for (from, to) in [(8 * MIB, SMALL), (SMALL, 8 * MIB)] {
        let (mut moment, mut ended) = (1, false);
        let mut seen = std::collections::BTreeSet::new();
        while !ended {
            let disks = devices(5, 16 * MIB);
            let rt = Rt::simulated(moment);
            let (handle, kept) = (rt.clone(), slow(&rt, &disks, MILLISECOND / 10));
            let array = rt.block_on(async move {
                let array = Array::create(&handle, kept, small("ec4+1")).await.unwrap();
                let options = VolumeOptions {
                    block_bytes: 16384,
                    thin: true,
                    ..volume(8 * MIB)
                };
                array.volume_create("v", options).await.unwrap();
                let v = array.volume("v").unwrap();
                fill(&v, 8 * MIB, 64 << 10, 1, "before").await;
                array.volume_resize("v", from).await.unwrap();
                array
            });
            let before = array.clone();
            let resizing = async move { before.volume_resize("v", to).await.unwrap() };
            ended = rt.run_for(moment, resizing).is_ok();
            rt.shutdown();
            drop(array);
            let what = format!("{from} to {to}, died after {moment}");
            moment += moment / 8 + 1;

            let rt = Rt::simulated(2);
            let handle = rt.clone();
            let size = rt.block_on(async move {
                let array = Array::import(&handle, refs(&disks), Import::default());
                let array = array.await.unwrap_or_else(|e| panic!("{what}: {e}"));
                let size = array.volume("v").unwrap().info().size_bytes;
                assert!(size == from || size == to, "{what}: {size}");
                assert!(!ended || size == to, "{what}: durable when it returns");
                array.volume_resize("v", 8 * MIB).await.unwrap();
                let v = array.volume("v").unwrap();
                let (least, whole) = (SMALL / BLOCK, from == 8 * MIB && size == from);
                for block in 0..2048 {
                    if block < least || !whole {
                        let is = (block < least).then_some(1);
                        assert_block(&v, block, is, &what).await;
                    } else {
                        // Unmapped already, or as it was.
                        let read = v.read(block * BLOCK, BLOCK as usize).await.unwrap();
                        let zeros = read.iter().all(|byte| *byte == 0);
                        assert!(zeros || *read == *pattern(block, 1), "{what}: {block}");
                    }
                }
                array.export().await.unwrap();
                size
            });
            rt.shutdown();
            seen.insert(size);
        }
        assert_eq!(seen.len(), 2, "{from} to {to}: both sizes are found");
    }
}

/// A caller who does not wait for the end changes nothing about it.
#[test]
fn a_change_of_size_goes_on_without_its_caller() {
    let disks = devices(3, 16 * MIB);
    for polls in [1, 2, 3, 5] {
        let rt = Rt::simulated(1);
        let (handle, kept) = (rt.clone(), slow(&rt, &disks, MILLISECOND));
        rt.block_on(async move {
            let array = Array::create(&handle, kept, small("ec2+1")).await.unwrap();
            array.volume_create("v", volume(2 * MIB)).await.unwrap();
            for size in [3 * MIB, MIB] {
                give_up_after(polls, array.volume_resize("v", size)).await;
                handle.sleep(10 * SECOND).await;
                assert_eq!(array.volume("v").unwrap().info().size_bytes, size);
            }
            array.destroy().await.unwrap();
        });
        rt.shutdown();
    }
}
