//! The journal: group commits of any size, what lets go of it, and what is merged from it.
#![allow(clippy::unwrap_used, reason = "tests")]

use ashlar_engine::{Array, Create, Import, Settings};
use ashlar_rt::{MILLISECOND, Rt, SECOND};

use crate::common::room::{all_thin, far_apart, put, scatter, slow};
use crate::common::{BLOCK, check, devices, pattern, refs, small, thin_volume, volume};

const MIB: u64 = 1 << 20;

/// An import that takes its time, with the journal more than half full: nothing is freed, or cut from the
/// journal, that is still to be adopted.
#[test]
fn nothing_is_merged_before_the_journal_is_adopted() {
    let disks = devices(6, 32 * MIB);
    let rt = Rt::simulated(1);
    let (handle, slow_disks) = (rt.clone(), slow(&rt, &disks, 2 * MILLISECOND));
    let written = rt.block_on(async move {
        let mut options = small("ec4+2");
        options.strip_bytes = Some(16 << 10);
        options.settings.shards = 32;
        options.settings.partitions = Some(32);
        let array = Array::create(&handle, slow_disks, options).await.unwrap();
        let thin = thin_volume(512 * MIB);
        array.volume_create("v", thin).await.unwrap();
        let v = array.volume("v").unwrap();
        // A block of each shard but one stays in the data ring: recovery gives each a segment.
        let mut written: Vec<u64> = (0..24).map(|shard| 256 * shard).collect();
        for block in &written {
            let offset = block * BLOCK;
            v.write(offset, pattern(*block, 1), true).await.unwrap();
        }
        // The last one fills half of the delta ring.
        for block in (0..4096 * 32).filter(|b| b / 256 % 32 == 31) {
            put(&v, block, 1).await.unwrap();
            written.push(block);
            if written.len().is_multiple_of(64) {
                v.flush().await.unwrap();
                let journal = array.status().await.journal;
                if journal.used_bytes / journal.devices > (256 + 192) << 10 {
                    return written;
                }
            }
        }
        panic!("{:?}", array.status().await.journal);
    });
    rt.shutdown();
    let rt = Rt::simulated(2);
    let (handle, slow_disks) = (rt.clone(), slow(&rt, &disks, SECOND));
    let mut import = Import::default();
    import.settings.shards = 32;
    rt.block_on(async move {
        let array = Array::import(&handle, slow_disks, import).await.unwrap();
        let v = array.volume("v").unwrap();
        for block in written {
            let read = v.read(block * BLOCK, BLOCK as usize).await;
            assert_eq!(read.as_deref(), Ok(&*pattern(block, 1)), "block {block}");
        }
    });
    rt.shutdown();
}

/// What the cleaner moves at once takes more of the journal than its ring has: records have one data column, since
/// failure domains leave no more.
#[test]
fn a_group_commit_may_be_larger_than_its_ring() {
    let disks = devices(20, 8 * MIB);
    let rt = Rt::simulated(1);
    let handle = rt.clone();
    rt.block_on(async move {
        let domains = (0..20).map(|device| format!("enclosure {}", device % 2));
        let create = Create {
            domains: domains.collect(),
            slot_bytes: Some(128 << 10),
            strip_bytes: Some(16384),
            ..small("ec3+1")
        };
        let array = Array::create(&handle, refs(&disks), create).await.unwrap();
        let size = array.room_for(4096);
        array.volume_create("v", volume(size)).await.unwrap();
        let v = array.volume("v").unwrap();
        let blocks = size / BLOCK;
        for round in 0..4 {
            for i in 0..blocks {
                let block = if round == 0 {
                    i
                } else {
                    (i * 7919 + round) % blocks
                };
                let done = handle.timeout(1000 * SECOND, put(&v, block, 1)).await;
                assert!(
                    done.is_some_and(|done| done.is_ok()),
                    "a write hangs, round {round}"
                );
            }
            v.flush().await.unwrap();
        }
        let events = array.events(0);
        let full = events.iter().find(|e| e.kind == "journal-full");
        assert!(full.is_none(), "{full:?}");
    });
    rt.shutdown();
}

/// A group commit too large for one part dies between two of them. In the first is the stripe whose blocks an earlier
/// record holds; of one of these a newer version is in the last: the first part settles that record, so it has to
/// say itself where the older version lies.
#[test]
fn a_group_commit_in_parts_keeps_what_was_durable_before() {
    let mut found = Vec::new();
    for polls in 0.. {
        let disks = devices(4, 16 * MIB);
        let rt = Rt::simulated(1);
        let (handle, kept) = (rt.clone(), refs(&disks));
        let v = rt.block_on(async move {
            let create = Create {
                slot_bytes: Some(256 << 10),
                strip_bytes: Some(64 << 10),
                ..small("raid1:4")
            };
            let array = Array::create(&handle, kept, create).await.unwrap();
            array.volume_create("v", volume(4 * MIB)).await.unwrap();
            let v = array.volume("v").unwrap();
            v.write(0, pattern(0, 1), true).await.unwrap();
            for block in 1..480 {
                put(&v, block, 1).await.unwrap();
            }
            put(&v, 0, 2).await.unwrap();
            v
        });
        let done = rt.run_for(polls, async move { v.flush().await }).is_ok();
        rt.shutdown();
        let rt = Rt::simulated(2);
        let handle = rt.clone();
        let version = rt.block_on(async move {
            let array = Array::import(&handle, refs(&disks), Import::default()).await;
            let v = array.unwrap().volume("v").unwrap();
            let read = v.read(0, BLOCK as usize).await.unwrap();
            let is = |version| *read == *pattern(0, version);
            let version = (1..3).find(|version| is(*version)).unwrap_or(0);
            assert!(version > 0, "after {polls} polls block 0 is gone");
            version
        });
        rt.shutdown();
        found.push(version);
        if done {
            break;
        }
    }
    assert!(found.contains(&1) && found.is_sorted() && found.ends_with(&[2]));
}

/// Each shard has a block in the data ring, which its open stripe settles, and then more to record than the delta ring
/// takes: the ring can be cut only once all of those stripes are recorded, so they come before all others (#179).
#[test]
fn a_group_commit_in_parts_lets_go_of_the_data_ring_first() {
    let disks = devices(8, 16 * MIB);
    let rt = Rt::simulated(1);
    let handle = rt.clone();
    rt.block_on(async move {
        let create = Create {
            slot_bytes: Some(256 << 10),
            strip_bytes: Some(64 << 10),
            settings: Settings {
                shards: 4,
                ..Settings::default()
            },
            ..small("ec1+7")
        };
        let array = Array::create(&handle, refs(&disks), create).await.unwrap();
        array.volume_create("v", volume(4 * MIB)).await.unwrap();
        let v = array.volume("v").unwrap();
        for round in 1..4 {
            for block in (0..1024).step_by(170) {
                put(&v, block, round).await.unwrap();
            }
            v.flush().await.unwrap();
            for block in 0..1024 {
                put(&v, block, round).await.unwrap();
            }
            let flushed = handle.timeout(100 * SECOND, v.flush()).await;
            assert!(flushed.is_some(), "a flush hangs, round {round}");
        }
        let events = array.events(0);
        let full = events.iter().find(|e| e.kind == "journal-full");
        assert!(full.is_none(), "{full:?}");
    });
    rt.shutdown();
}

/// Segments of nodes that the journal had no room to tell of were held until it had: dead ones too, which took the room
/// that checkpoints need before it had any (#140).
#[test]
fn dead_nodes_are_freed_while_the_journal_is_full() {
    for seed in 1..4 {
        let disks = devices(8, 20 * MIB);
        let rt = Rt::simulated(seed);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let mut create = Create {
                slot_bytes: Some(32 << 10),
                strip_bytes: None,
                domains: (0..8).map(|d| format!("enclosure {}", d / 4)).collect(),
                ..small("raid10")
            };
            create.settings.memory_bytes = 512 << 10;
            let (array, v, size) = all_thin(&handle, kept, create).await;
            for device in [0, 4, 6] {
                array.fail(device, false).await.unwrap();
            }
            for version in 1..3 {
                scatter(&handle, &v, size, version, "three gone").await;
            }
            check(&v, size, 2, "three gone").await;
        });
        rt.shutdown();
    }
}

/// A group commit waited for room in the journal that rows took whose course goes on with a stripe begun since: one
/// that only the next group commit closes. Writers waited for ever (#143).
#[test]
fn a_group_commit_waits_for_nothing_that_the_next_one_brings() {
    let disks = devices(15, 16 * MIB);
    let rt = Rt::simulated(1);
    let (handle, kept) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let mut create = Create {
            slot_bytes: Some(32 << 10),
            ..small("raid70:3")
        };
        create.settings.memory_bytes = 1 << 20;
        let array = Array::create(&handle, kept, create).await.unwrap();
        let size = array.room_for(4096) / 100 * 70 / BLOCK * BLOCK;
        array.volume_create("v", volume(size)).await.unwrap();
        let thin = thin_volume(1 << 30);
        array.volume_create("thin", thin).await.unwrap();
        let (v, thin) = (array.volume("v").unwrap(), array.volume("thin").unwrap());
        scatter(&handle, &v, size, 1, "all there").await;
        for device in [13, 14, 8, 1] {
            array.fail(device, false).await.unwrap();
        }
        for version in 2..4 {
            for n in 0..400 {
                let n = n + version * 400;
                let _ = thin.write(far_apart(n), pattern(n, 1), false).await; // until it is full
            }
            let written = scatter(&handle, &v, size, version, "four gone");
            let written = handle.timeout(20_000 * SECOND, written).await;
            written.expect("nobody waits for ever");
        }
        check(&v, size, 3, "four gone").await;
    });
    rt.shutdown();
}

/// An unmapped range is merged in steps where room is short, and goes on where it was written over meanwhile: each step
/// took the same leaves as the one before, for ever, and with them the journal, all writers and export stood still.
#[test]
fn unmapped_ranges_that_were_written_over_are_merged_to_the_end() {
    for count in [3500, 3600, 3800] {
        let disks = devices(5, 24 * MIB);
        let rt = Rt::simulated(1);
        let (handle, kept) = (rt.clone(), refs(&disks));
        let story = rt.run_for(2_000_000, async move {
            let mut create = small("ec2+1");
            create.settings.partitions = Some(1);
            let array = Array::create(&handle, kept, create).await.unwrap();
            array.set("clean.reserve", "2%").await.unwrap();
            let thin = thin_volume(4 << 30);
            array.volume_create("v", thin).await.unwrap();
            let v = array.volume("v").unwrap();
            // One block of each leaf, until nodes would not fit the free slots twice.
            let each_leaf = async |version: u64| {
                for leaf in 0..count {
                    let write = v.write(leaf * 128 * BLOCK, pattern(leaf, version), false);
                    let done = write.await;
                    assert!(done.is_ok(), "{count} leaves, {version}, {leaf}: {done:?}");
                }
            };
            each_leaf(1).await;
            handle.sleep(40 * SECOND).await; // a checkpoint
            v.trim(0, 4 << 30, false).await.unwrap();
            each_leaf(2).await;
            for leaf in 0..count {
                let read = v.read(leaf * 128 * BLOCK, BLOCK as usize).await.unwrap();
                assert!(*read == *pattern(leaf, 2), "{count} leaves, {leaf}");
            }
            array.export().await.unwrap();
        });
        rt.shutdown();
        story.unwrap_or_else(|stopped| panic!("{count} leaves: {stopped:?}"));
    }
}
