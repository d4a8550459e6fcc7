//! An array on memory devices: what is written is read, through export, crash and the loss of M devices.
#![allow(clippy::unwrap_used, reason = "tests")]

use ashlar_engine::Work;
use ashlar_engine::status::ArrayState;
use ashlar_engine::{Array, Create, Error, Import, Settings, VolumeError, VolumeOptions};
use ashlar_format::FormatError;
use ashlar_format::geometry::super_bytes;
use ashlar_format::superblock::Superblock;
use ashlar_rt::{Buf, Rt, SECOND, Slice};

use crate::common::{devices, refs, small, thin_volume, volume};

const MIB: u64 = 1 << 20;

fn create(layout: &str, shards: usize) -> Create {
    let mut create = small(layout);
    create.settings.shards = shards;
    create
}

fn pattern(seed: u64, bytes: usize) -> Slice {
    let mut buf = Buf::zeroed(bytes);
    let mut state = seed;
    for chunk in buf.chunks_mut(8) {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
    buf.freeze()
}

#[test]
fn what_is_written_is_read_back_after_a_crash_and_after_an_export() {
    for (layout, count) in [
        ("ec4+2", 6),
        ("ec8+3", 14),
        ("raid0", 3),
        ("raid1", 2),
        ("ec1+3", 4),
        ("raid10", 4),
        ("jbod", 3),
    ] {
        let disks = devices(count, 16 * MIB);
        let data = pattern(7, 300_000);
        let rt = Rt::simulated(1);
        let (handle, refs1, data1) = (rt.clone(), refs(&disks), data.clone());
        rt.block_on(async move {
            let array = Array::create(&handle, refs1, create(layout, 2))
                .await
                .unwrap();
            array.volume_create("v", volume(4 * MIB)).await.unwrap();
            let v = array.volume("v").unwrap();
            v.write(12_345, data1.clone(), false).await.unwrap();
            assert_eq!(&*v.read(12_345, data1.len()).await.unwrap(), &*data1);
            v.flush().await.unwrap();
            v.write(3 * MIB, pattern(9, 4096), true).await.unwrap();
            v.trim(20_000, 50_000, true).await.unwrap();
        });
        rt.shutdown();
        for round in 0..3 {
            let rt = Rt::simulated(2 + round);
            let (handle, refs1, data1) = (rt.clone(), refs(&disks), data.clone());
            rt.block_on(async move {
                let options = Import {
                    settings: Settings {
                        shards: 1 + round as usize % 2,
                        ..Settings::default()
                    },
                    ..Import::default()
                };
                let array = Array::import(&handle, refs1, options).await.unwrap();
                let v = array.volume("v").unwrap();
                let mut expected = data1.to_vec();
                expected[20_000 - 12_345..70_000 - 12_345].fill(0);
                assert_eq!(
                    &*v.read(12_345, data1.len()).await.unwrap(),
                    &expected[..],
                    "{layout} round {round}"
                );
                assert_eq!(&*v.read(3 * MIB, 4096).await.unwrap(), &*pattern(9, 4096));
                assert_eq!(&*v.read(0, 12_345).await.unwrap(), &[0u8; 12_345][..]);
                if round == 1 {
                    array.export().await.unwrap();
                }
            });
            rt.shutdown();
        }
    }
}

#[test]
fn m_devices_fail_under_writes_and_rebuild_makes_it_optimal_again() {
    let disks = devices(16, 16 * MIB);
    let rt = Rt::simulated(5);
    let handle = rt.clone();
    rt.block_on(async move {
        let array = Array::create(&handle, refs(&disks), create("ec8+3", 2))
            .await
            .unwrap();
        array.volume_create("v", volume(16 * MIB)).await.unwrap();
        let v = array.volume("v").unwrap();
        for i in 0..64u64 {
            v.write(i * 256 * 1024, pattern(i, 256 * 1024), false)
                .await
                .unwrap();
            if i % 16 == 7 {
                array
                    .fail(u16::try_from(i / 16).unwrap(), false)
                    .await
                    .unwrap();
            }
        }
        v.flush().await.unwrap();
        for i in 0..64u64 {
            assert_eq!(
                &*v.read(i * 256 * 1024, 256 * 1024).await.unwrap(),
                &*pattern(i, 256 * 1024)
            );
        }
        array.wait_idle(&[Work::Rebuild]).await;
        let status = array.status().await;
        assert_eq!(status.state, ArrayState::Optimal, "{:?}", status.tasks);
    });
    rt.shutdown();
}

#[test]
fn overwriting_a_full_volume_many_times_never_runs_out_of_space() {
    let disks = devices(6, 16 * MIB);
    let rt = Rt::simulated(5);
    let handle = rt.clone();
    rt.block_on(async move {
        let array = Array::create(&handle, refs(&disks), create("ec4+2", 1))
            .await
            .unwrap();
        let size = array.room_for(4096) / MIB * MIB;
        assert!(size > 20 * MIB, "{size}");
        array.volume_create("v", volume(size)).await.unwrap();
        let v = array.volume("v").unwrap();
        let blocks = size / 4096;
        let mut newest = vec![0u64; usize::try_from(blocks).unwrap()];
        for i in 0..blocks {
            v.write(i * 4096, pattern(i, 4096), false).await.unwrap();
            newest[usize::try_from(i).unwrap()] = i;
        }
        for i in blocks..4 * blocks {
            let at = handle.random_below(blocks);
            v.write(at * 4096, pattern(i, 4096), false).await.unwrap();
            newest[usize::try_from(at).unwrap()] = i;
        }
        for (at, i) in (0u64..).zip(newest) {
            assert_eq!(&*v.read(at * 4096, 4096).await.unwrap(), &*pattern(i, 4096));
        }
        let amplification = array.status().await.clean.write_amplification.unwrap();
        assert!(amplification < 8.0, "{amplification}");
    });
    rt.shutdown();
}

#[test]
fn space_is_warned_of_before_it_ends() {
    let disks = devices(6, 16 * MIB);
    let rt = Rt::simulated(8);
    let handle = rt.clone();
    rt.block_on(async move {
        let array = Array::create(&handle, refs(&disks), create("ec4+2", 1))
            .await
            .unwrap();
        let usable = array.status().await.capacity.usable_bytes;
        array.volume_create("v", volume(usable)).await.unwrap();
        let v = array.volume("v").unwrap();
        let warned = || {
            let events = array.events(0).into_iter();
            events.filter(|e| e.kind == "space-low").count()
        };
        let merged = |bytes: u64| {
            let (array, handle) = (array.clone(), handle.clone());
            async move {
                while array.status().await.capacity.used_bytes != bytes {
                    handle.sleep(SECOND).await;
                }
            }
        };
        let share = |percent: u64| usable / 100 * percent / 4096 * 4096;
        for (percent, warnings) in [(79, 0), (83, 1), (93, 2), (97, 3), (98, 3)] {
            let used = array.status().await.capacity.used_bytes;
            for at in (used..share(percent)).step_by(4096) {
                v.write(at, pattern(at, 4096), false).await.unwrap();
            }
            v.flush().await.unwrap();
            merged(share(percent)).await;
            assert_eq!(warned(), warnings, "at {percent} %");
        }
        // Below and back again: once more.
        v.trim(share(50), usable - share(50), true).await.unwrap();
        merged(share(50)).await;
        for at in (share(50)..share(83)).step_by(4096) {
            v.write(at, pattern(at, 4096), false).await.unwrap();
        }
        merged(share(83)).await;
        assert_eq!(warned(), 4);
    });
    rt.shutdown();
}

#[test]
fn a_thin_volume_leaves_promised_space_alone() {
    let disks = devices(6, 16 * MIB);
    let rt = Rt::simulated(6);
    let handle = rt.clone();
    rt.block_on(async move {
        let array = Array::create(&handle, refs(&disks), create("ec4+2", 2))
            .await
            .unwrap();
        let thin = thin_volume(64 * MIB);
        array.volume_create("thin", thin).await.unwrap();
        let thin = array.volume("thin").unwrap();
        let block = |at: u64| thin.write(at * 4096, pattern(at, 4096), false);
        for at in 0..32 {
            block(at).await.unwrap();
        }
        // What it has written is no longer to be promised; 64 blocks are left besides.
        let size = (array.room_for(4096) - 96 * 4096) / 4096 * 4096;
        array.volume_create("thick", volume(size)).await.unwrap();
        let mut at = 32;
        while block(at).await.is_ok() {
            at += 1;
        }
        assert_eq!(block(at).await, Err(VolumeError::NoSpace));
        assert!((90..=96).contains(&at), "{at} blocks of 96");
        block(3).await.unwrap(); // it may always overwrite what it has
        thin.trim(at * 4096 + 512, 512, true).await.unwrap(); // nor does making nothing of nothing cost any
        let thick = array.volume("thick").unwrap();
        for at in 0..size / 4096 {
            thick
                .write(at * 4096, pattern(at, 4096), false)
                .await
                .unwrap();
        }
        array.volume_destroy("thick").await.unwrap();
        while array.room_for(4096) < 8 * 4096 {
            handle.sleep(ashlar_rt::MILLISECOND).await; // it comes back in the background
        }
        block(at).await.unwrap();
    });
    rt.shutdown();
}

/// A code that the program does not know is refused at import, not taken for another.
#[test]
fn an_unknown_code_is_refused() {
    let bytes = 16 * MIB;
    let disks = devices(3, bytes);
    let rt = Rt::simulated(1);
    let (handle, refs1) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let array = Array::create(&handle, refs1, create("ec2+1", 1)).await;
        array.unwrap().export().await.unwrap();
    });
    rt.shutdown();
    for disk in &disks {
        for offset in [0, bytes - super_bytes(bytes)] {
            let mut held = vec![0; usize::try_from(super_bytes(bytes)).unwrap()];
            disk.peek(offset, &mut held);
            let size = Superblock::encoded_bytes(&held[..4096]).unwrap();
            let mut superblock = Superblock::decode(&held[..size]).unwrap();
            superblock.code = 200;
            disk.poke(offset, &superblock.encode());
        }
    }
    let rt = Rt::simulated(2);
    let handle = rt.clone();
    rt.block_on(async move {
        let imported = Array::import(&handle, refs(&disks), Import::default()).await;
        let source = FormatError::Unsupported(200);
        assert!(
            matches!(&imported, Err(Error::Format { source: s, .. }) if *s == source),
            "{:?}",
            imported.err()
        );
    });
    rt.shutdown();
}

#[test]
fn a_map_asked_for_few_extents_is_not_looked_through_to_its_end() {
    let disks = devices(3, 32 * MIB);
    let rt = Rt::simulated(4);
    let (handle, refs) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let array = Array::create(&handle, refs, create("ec2+1", 2))
            .await
            .unwrap();
        let size = 16 * MIB;
        array.volume_create("v", volume(size)).await.unwrap();
        let v = array.volume("v").unwrap();
        for place in 0..16 {
            let offset = place * MIB + 8192;
            v.write(offset, pattern(place, 4096), false).await.unwrap();
        }
        let all = v.block_status(0, size, usize::MAX).await.unwrap();
        assert_eq!(all.iter().map(|e| e.length).sum::<u64>(), size);
        assert_eq!(all.len(), 33);
        for most in [1, 2, 5, 32] {
            let few = v.block_status(0, size, most).await.unwrap();
            assert!(few.len() > most && few.len() <= most + 3, "{}", few.len());
            assert_eq!(few[..most], all[..most]);
        }
    });
}

/// What is said to be mapped is what was written and not trimmed since, wherever that is known: in open
/// stripes, in the journal, in leaves, in leaves that were never made.
#[test]
fn a_map_says_of_every_block_whether_it_is_mapped() {
    const SIZE: u64 = 24 * MIB;
    let disks = devices(3, 32 * MIB);
    for (seed, block) in [(1, 4096), (2, 4096), (3, 8192)] {
        let rt = Rt::simulated(seed);
        let (handle, refs) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let create = create("ec2+1", 2);
            let mut array = Array::create(&handle, refs.clone(), create).await.unwrap();
            let options = VolumeOptions {
                block_bytes: u32::try_from(block).unwrap(),
                ..volume(SIZE)
            };
            array.volume_create("v", options).await.unwrap();
            let mut model = vec![false; usize::try_from(SIZE / block).unwrap()];
            for step in 0..120u64 {
                let v = array.volume("v").unwrap();
                let first = handle.random_below(SIZE / block);
                let most = (SIZE / block - first).min(if step % 5 == 0 { 1500 } else { 40 });
                let count = 1 + handle.random_below(most);
                let (at, bytes) = (first * block, count * block);
                let write = step % 3 != 0;
                if write {
                    let data = pattern(step, usize::try_from(bytes).unwrap());
                    v.write(at, data, step % 7 == 0).await.unwrap();
                } else {
                    v.trim(at, bytes, step % 2 == 0).await.unwrap();
                }
                let changed =
                    usize::try_from(first).unwrap()..usize::try_from(first + count).unwrap();
                model[changed].fill(write);
                if step % 30 == 29 {
                    array.export().await.unwrap();
                    let options = Import::default();
                    array = Array::import(&handle, refs.clone(), options).await.unwrap();
                }
                let v = array.volume("v").unwrap();
                let from = handle.random_below(SIZE / 2);
                for (offset, length) in [(0, SIZE), (from, SIZE / 2 - 1)] {
                    let mut end = offset;
                    for extent in v.block_status(offset, length, usize::MAX).await.unwrap() {
                        for at in (end / block)..(end + extent.length).div_ceil(block) {
                            let mapped = model[usize::try_from(at).unwrap()];
                            assert_eq!(mapped, !extent.hole, "step {step}, block {at}");
                        }
                        end += extent.length;
                    }
                    assert_eq!(end, offset + length);
                }
            }
        });
        rt.shutdown();
    }
}
