//! Thin volumes take all the room there is, and none that was promised to others.
#![allow(clippy::unwrap_used, reason = "tests")]

use ashlar_engine::{Array, Create, VolumeError};
use ashlar_rt::{Rt, SECOND};

use crate::common::room::{all_thin, scatter};
use crate::common::{BLOCK, check, devices, fill, pattern, refs, small, thin_volume, volume};

const MIB: u64 = 1 << 20;

/// A thin volume that has an array to itself takes all that a thick one would be promised, whatever is under way
/// at once and however its blocks lie: what is not merged was charged a node for each block, and more than was left
/// once a thousand of them were; a map of several trees was charged for having them (#130).
#[test]
fn a_thin_volume_takes_all_the_room_there_is() {
    for (layout, count, shards) in [("raid0", 4, 1), ("raid1", 2, 2), ("ec4+2", 8, 2)] {
        let disks = devices(count, 16 * MIB);
        let rt = Rt::simulated(1);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let mut create = small(layout);
            create.settings.shards = shards;
            let (array, v, size) = all_thin(&handle, kept, create).await;
            for version in 1..4 {
                scatter(&handle, &v, size, version, layout).await;
            }
            check(&v, size, 3, layout).await;
            let other = thin_volume(MIB);
            array.volume_create("w", other).await.unwrap();
            let w = array.volume("w").unwrap();
            let mut refused = 0;
            for block in 0..MIB / BLOCK {
                let done = w.write(block * BLOCK, pattern(block, 1), false).await;
                refused += u32::from(matches!(done, Err(VolumeError::NoSpace)));
            }
            assert!(
                refused > 200,
                "{layout}: no room is left for another: {refused}"
            );
        });
        rt.shutdown();
    }
}

/// Writes far apart, hundreds at once, each under a leaf of its own, where little is free: what is not merged yet
/// takes no more nodes than there is room for. Merging it used up the last slots, and the array hung for good (#133).
/// And what was promised to another volume stays: on fewer devices each node takes more room (#134).
#[test]
fn writes_far_apart_leave_room_to_merge_them() {
    for (gone, seed) in [(2, 3), (2, 4), (1, 2), (0, 1)] {
        let disks = devices(5, 16 * MIB);
        let rt = Rt::simulated(seed);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let mut create = small("ec2+2");
            create.settings.memory_bytes = 128 << 10;
            let array = Array::create(&handle, kept, create).await.unwrap();
            array.volume_create("thick", volume(2 * MIB)).await.unwrap();
            let options = thin_volume(1 << 30);
            array.volume_create("thin", options).await.unwrap();
            let (thick, thin) = (
                array.volume("thick").unwrap(),
                array.volume("thin").unwrap(),
            );
            fill(&thick, 2 * MIB, BLOCK, 1, "all there").await;
            for device in 0..gone {
                array.fail(device, false).await.unwrap();
            }
            let mut refused = 0;
            for round in 0..12u64 {
                let write = |n: u64| {
                    let (thin, block) = (thin.clone(), (round * 512 + n) * 7919 % (1 << 18));
                    let data = pattern(block, 1);
                    handle.spawn(async move { thin.write(block * BLOCK, data, true).await })
                };
                let under_way: Vec<_> = (0..512).map(write).collect();
                for write in under_way {
                    let done = handle.timeout(900 * SECOND, write).await;
                    let done = done.unwrap_or_else(|| panic!("{gone} gone: round {round} hangs"));
                    refused += u32::from(matches!(done, Err(VolumeError::NoSpace)));
                }
            }
            assert!(refused > 0, "{gone} gone: the array was filled");
            let what = format!("{gone} gone, what was promised");
            fill(&thick, 2 * MIB, BLOCK, 2, &what).await;
            check(&thick, 2 * MIB, 2, &what).await;
        });
        rt.shutdown();
    }
}

/// A thin volume that has an array to itself, overwritten while a device is gone and new blocks have to wait for their
/// places: those that wait with them are not refused what these may not come to take (#137).
#[test]
fn who_waits_for_a_place_keeps_no_one_from_the_rest() {
    for (layout, count, gone) in [("ec2+1", 3, 1), ("ec2+2", 5, 2), ("ec3+2", 6, 2)] {
        let disks = devices(count, 8 * MIB);
        let rt = Rt::simulated(1);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let create = Create {
                slot_bytes: Some(128 << 10),
                strip_bytes: Some(16 << 10),
                ..small(layout)
            };
            let (array, v, size) = all_thin(&handle, kept, create).await;
            scatter(&handle, &v, size, 1, layout).await;
            for device in 0..gone {
                array.fail(device, false).await.unwrap();
            }
            for version in 2..10 {
                let unmapped = (version * 11) % (size / BLOCK - 8);
                v.trim(unmapped * BLOCK, 7 * BLOCK, false).await.unwrap();
                scatter(&handle, &v, size, version, layout).await;
            }
            check(&v, size, 9, layout).await;
        });
        rt.shutdown();
    }
}

/// Writers of parts of the same new block, the last one there is room for: one has to read again what another has
/// changed, and what it was charged meanwhile is there for the next (#138).
#[test]
fn writers_of_parts_of_the_last_block_all_write_it() {
    for seed in 1..4 {
        let disks = devices(6, 8 * MIB);
        let rt = Rt::simulated(seed);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let create = Create {
                slot_bytes: Some(128 << 10),
                strip_bytes: Some(16 << 10),
                ..small("ec4+2")
            };
            let (array, v, size) = all_thin(&handle, kept, create).await;
            scatter(&handle, &v, size, 1, "all there").await;
            for device in 0..2 {
                array.fail(device, false).await.unwrap();
            }
            for version in 2..6 {
                let last = (size / BLOCK - version * 17) * BLOCK;
                v.trim(last, BLOCK, false).await.unwrap();
                let part = |n: u64| {
                    let (v, data) = (v.clone(), pattern(n, version).cut(0..512));
                    handle.spawn(
                        async move { v.write(last + n * 512, data, n.is_multiple_of(2)).await },
                    )
                };
                let parts: Vec<_> = (0..8).map(part).collect();
                let other = |n: u64| {
                    let (v, data) = (v.clone(), pattern(n, version));
                    handle.spawn(async move { v.write(n * BLOCK, data, false).await })
                };
                let others: Vec<_> = (0..last / BLOCK).map(other).collect();
                for write in parts.into_iter().chain(others) {
                    let done = write.await;
                    assert!(done.is_ok(), "seed {seed}, version {version}: {done:?}");
                }
            }
        });
        rt.shutdown();
    }
}

/// #119: the map of a thin volume that is written far apart has a leaf for every few blocks; that was not counted,
/// and took the room of volumes that were promised theirs.
#[test]
fn a_thin_volume_written_far_apart_leaves_promised_space_alone() {
    for apart in [64, 16, 5] {
        let disks = devices(2, 24 * MIB);
        let rt = Rt::simulated(1);
        let (handle, kept) = (rt.clone(), refs(&disks));
        let story = rt.run_for(20_000_000, async move {
            let array = Array::create(&handle, kept, small("raid1")).await.unwrap();
            array.set("clean.reserve", "2%").await.unwrap();
            let thin = thin_volume(4 << 30);
            array.volume_create("thin", thin).await.unwrap();
            array.volume_create("thick", volume(2 * MIB)).await.unwrap();
            let thin = array.volume("thin").unwrap();
            let thick = array.volume("thick").unwrap();
            fill(&thick, 2 * MIB, BLOCK, 1, "before").await;
            let mut block = 0;
            while thin
                .write(block * BLOCK, pattern(block, 1), false)
                .await
                .is_ok()
            {
                block += apart;
            }
            println!(
                "{apart}: {} blocks, {:?}",
                block / apart,
                array.status().await.capacity
            );
            for version in 2..12 {
                fill(&thick, 2 * MIB, BLOCK, version, "the thin one is full").await;
            }
        });
        rt.shutdown();
        story.unwrap_or_else(|stopped| panic!("{apart} apart: {stopped:?}"));
    }
}

/// A volume so large that its map is high: a block that is written far from others takes up to six nodes of its own,
/// which were counted as one where writers were let in, and as three where a checkpoint was to fit. A thick volume lost
/// the space that it had been promised, or the array stopped with no room left to checkpoint in, and all its devices
/// there.
#[test]
fn a_high_map_leaves_promised_space_alone() {
    for layout in ["ec2+2", "raid1", "ec1+3"] {
        let disks = devices(5, 16 * MIB);
        let rt = Rt::simulated(1);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let array = Array::create(&handle, kept, small(layout)).await.unwrap();
            array.volume_create("thick", volume(2 * MIB)).await.unwrap();
            let options = thin_volume(1 << 60);
            array.volume_create("thin", options).await.unwrap();
            let (thick, thin) = (
                array.volume("thick").unwrap(),
                array.volume("thin").unwrap(),
            );
            fill(&thick, 2 * MIB, BLOCK, 1, layout).await;
            let mut blocks: Vec<u64> = (0..1000).map(|n| n * 7919 % (1 << 18)).collect();
            for version in 1..6 {
                let write = |block: u64| {
                    let (thin, data) = (thin.clone(), pattern(block, version));
                    handle.spawn(async move { thin.write(block << 42, data, true).await })
                };
                let under_way: Vec<_> =
                    blocks.iter().map(|block| (*block, write(*block))).collect();
                let mut written = Vec::new();
                for (block, write) in under_way {
                    let done = handle.timeout(900 * SECOND, write).await;
                    match done.unwrap_or_else(|| panic!("{layout}: {version} hangs")) {
                        Ok(()) => written.push(block),
                        Err(VolumeError::NoSpace) if version == 1 => {}
                        Err(error) => panic!("{layout}, {version}, block {block}: {error}"),
                    }
                }
                assert!(written.len() < 1000, "{layout}: the array was filled");
                // From here on these are written again.
                blocks = written;
                fill(&thick, 2 * MIB, BLOCK, version + 1, layout).await;
            }
            check(&thick, 2 * MIB, 6, layout).await;
        });
        rt.shutdown();
    }
}
