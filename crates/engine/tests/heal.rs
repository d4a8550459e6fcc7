//! Bad blocks: repaired once and for good; beyond the redundancy, given up.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use ashlar_device::{
    Device, DeviceInfo, DeviceRef, Effect, Fault, FaultFilter, IoFuture, MemDevice, OpKind, Rule,
};
use ashlar_engine::Work;
use ashlar_engine::status::{ArrayState, ArrayStatus, DeviceState, LostRange};
use ashlar_engine::{Array, Create, Import, VolumeError};
use ashlar_rt::{Buf, Rt, Slice};

use crate::common::{self, check, devices, fill, image, refs, small, story, volume, without};

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;
/// Polls after which something that should end counts as endless.
const ENDLESS: u64 = 2_000_000;

/// Bytes that occur nowhere else.
fn pattern(block: u64) -> Slice {
    let mut buf = Buf::zeroed(BLOCK);
    for (chunk, at) in buf.chunks_mut(16).zip(0u64..) {
        chunk[..8].copy_from_slice(&(block + 1).to_le_bytes());
        chunk[8..].copy_from_slice(&(at ^ 0x5EED).to_le_bytes());
    }
    buf.freeze()
}

/// Overwrites every copy of a block that the device has with noise; how many there were.
fn corrupt(device: &MemDevice, bytes: u64, block: u64) -> usize {
    let (wanted, mut found) = (pattern(block), 0);
    let mut held = vec![0; BLOCK];
    for at in (0..bytes).step_by(BLOCK) {
        device.peek(at, &mut held);
        if held == wanted[..] {
            held.fill(0xA5);
            device.poke(at, &held);
            found += 1;
        }
    }
    found
}

async fn create(rt: &Rt, devices: Vec<DeviceRef>, layout: &str, blocks: u64) -> Array {
    let array = Array::create(rt, devices, small(layout)).await.unwrap();
    array.volume_create("v", volume(4 * MIB)).await.unwrap();
    let v = array.volume("v").unwrap();
    for block in 0..blocks {
        let offset = block * BLOCK as u64;
        v.write(offset, pattern(block), false).await.unwrap();
    }
    v.flush().await.unwrap();
    array
}

/// Regression: blocks of a device that had only been pulled counted as bad blocks that could not be repaired, also when
/// it was back.
#[test]
fn what_lies_on_a_device_that_is_away_is_not_bad() {
    let (disks, blocks) = (devices(4, 16 * MIB), 200);
    story(async move |rt| {
        let filters: Vec<_> = refs(&disks).into_iter().map(FaultFilter::new).collect();
        let filtered = filters.iter().map(|f| f.clone() as DeviceRef).collect();
        let array = create(&rt, filtered, "ec2+1", blocks).await;
        array.merge().await.unwrap();
        let bad = async || {
            assert!(read_all(&array, blocks).await.is_empty());
            array.wait_idle(&[]).await;
            let status = array.status().await;
            let repair = status.tasks.iter().find(|t| t.kind == "heal");
            let repair = repair.map_or((0, 0), |t| (t.found, t.healed));
            (status.devices[1].state, repair.0 - repair.1)
        };
        filters[1].set_offline(true);
        assert_eq!(bad().await, (DeviceState::Missing, 0));
        array.online(disks[1].clone(), false).await.unwrap();
        assert_eq!(bad().await, (DeviceState::Online, 0));
    });
}

/// The devices of such an array, exported.
fn exported(count: usize, bytes: u64, layout: &'static str, blocks: u64) -> Vec<Rc<MemDevice>> {
    let disks = devices(count, bytes);
    let rt = Rt::simulated(1);
    let (handle, kept) = (rt.clone(), disks.clone());
    rt.block_on(async move {
        let array = create(&handle, refs(&kept), layout, blocks).await;
        array.export().await.unwrap();
    });
    rt.shutdown();
    disks
}

/// Reads every block; those that are lost.
async fn read_all(array: &Array, blocks: u64) -> Vec<u64> {
    let v = array.volume("v").unwrap();
    let mut lost = Vec::new();
    for block in 0..blocks {
        match v.read(block * BLOCK as u64, BLOCK).await {
            Ok(bytes) => assert_eq!(&*bytes, &*pattern(block), "block {block}"),
            Err(VolumeError::Lost) => lost.push(block),
            Err(error) => panic!("block {block}: {error}"),
        }
    }
    lost
}

fn errors(status: &ArrayStatus) -> Vec<u64> {
    status.devices.iter().map(|d| d.errors.digest).collect()
}

#[test]
fn what_is_lost_keeps_nothing_busy_and_is_counted_once() {
    let bytes = 16 * MIB;
    let disks: Vec<_> = devices(2, bytes);
    let rt = Rt::simulated(1);
    let handle = rt.clone();
    let story = rt.run_for(ENDLESS, async move {
        let array = create(&handle, refs(&disks), "raid1", 200).await;
        for (device, blocks) in [(0, 40..60), (1, 50..70)] {
            for block in blocks {
                assert_eq!(corrupt(&disks[device], bytes, block), 1, "{block}");
            }
        }
        let lost: Vec<u64> = (50..60).collect();
        for _ in 0..3 {
            assert_eq!(read_all(&array, 200).await, lost);
            array.wait_idle(&[]).await;
        }
        let status = array.status().await;
        let ranges: Vec<_> = status
            .lost
            .iter()
            .map(|r| (r.volume.as_str(), r.offset_bytes, r.length_bytes))
            .collect();
        assert_eq!(ranges, [("v", 50 * 4096, 10 * 4096)]);
        // Whatever is read how often: a bad block is one error. The second copy is looked at only where
        // the first is bad.
        assert!(
            errors(&status).iter().all(|n| (10..=20).contains(n)),
            "{:?}",
            errors(&status)
        );
        // What is overwritten is whole again.
        let v = array.volume("v").unwrap();
        for block in lost {
            v.write(block * 4096, pattern(block), false).await.unwrap();
        }
        v.flush().await.unwrap();
        assert!(read_all(&array, 200).await.is_empty());
        assert!(array.status().await.lost.is_empty());
    });
    assert!(story.is_ok(), "background work does not end: {story:?}");
    rt.shutdown();
}

/// What was lost before an import is listed again to the block, whatever volumes have become meanwhile.
#[test]
fn what_was_lost_before_an_import_is_listed_again() {
    let bytes = 16 * MIB;
    let disks = exported(2, bytes, "raid1", 200);
    for block in 50..60 {
        assert!(disks.iter().all(|disk| corrupt(disk, bytes, block) > 0));
    }
    story(async move |rt| {
        let import = Array::import(&rt, refs(&disks), Import::default());
        let array = import.await.unwrap();
        let range = |volume: &str, first: u64, blocks: u64| LostRange {
            volume: volume.into(),
            offset_bytes: first * 4096,
            length_bytes: blocks * 4096,
        };
        let before = [
            range("gone", 0, 9),
            range("v", 40, 15),
            range("v", 58, 1 << 20),
        ];
        array.read_lost(&before).await;
        assert_eq!(
            array.status().await.lost,
            [range("v", 50, 5), range("v", 58, 2)]
        );
    });
}

#[test]
fn repairs_last_over_a_crash() {
    let (bytes, blocks) = (16 * MIB, 1000);
    let disks: Vec<_> = devices(6, bytes);
    let rt = Rt::simulated(1);
    let (handle, kept) = (rt.clone(), disks.clone());
    let story = rt.run_for(ENDLESS, async move {
        let array = create(&handle, refs(&kept), "ec4+2", blocks).await;
        let liar = (0..kept.len()).max_by_key(|d| {
            let mut held = vec![0; BLOCK];
            (0..bytes)
                .step_by(BLOCK)
                .filter(|at| {
                    kept[*d].peek(*at, &mut held);
                    held[8..16] == 0x5EEDu64.to_le_bytes()
                })
                .count()
        });
        let liar = liar.unwrap();
        let hit: usize = (0..blocks).map(|b| corrupt(&kept[liar], bytes, b)).sum();
        assert!(hit > 100, "{hit}");
        assert!(read_all(&array, blocks).await.is_empty());
        array.wait_idle(&[Work::Repair]).await;
        let status = array.status().await;
        assert_eq!(errors(&status)[liar], hit as u64);
        let repair = status.tasks.iter().find(|t| t.kind == "heal").unwrap();
        assert_eq!((repair.found, repair.healed), (hit as u64, hit as u64));
    });
    assert!(story.is_ok(), "{story:?}");
    rt.shutdown();
    let rt = Rt::simulated(2);
    let handle = rt.clone();
    let story = rt.run_for(ENDLESS, async move {
        let array = Array::import(&handle, refs(&disks), Import::default())
            .await
            .unwrap();
        for _ in 0..2 {
            assert!(read_all(&array, blocks).await.is_empty());
            assert_eq!(errors(&array.status().await), [0; 6], "found again");
            array.wait_idle(&[]).await;
        }
    });
    assert!(story.is_ok(), "{story:?}");
    rt.shutdown();
}

/// Devices with the bytes of others.
fn copies(disks: &[Rc<MemDevice>], bytes: u64) -> Vec<Rc<MemDevice>> {
    let copy = |(i, disk): (usize, &Rc<MemDevice>)| {
        let new = MemDevice::new(&format!("copy{i}"), bytes);
        new.poke(0, &image(disk));
        Rc::new(new)
    };
    disks.iter().enumerate().map(copy).collect()
}

/// Where both devices of a mirror have the same block that is no client's: some of these are nodes of the map.
fn nodes_on_both(disks: &[Rc<MemDevice>]) -> Vec<(u64, u64)> {
    let (first, second) = (image(&disks[0]), image(&disks[1]));
    let offsets = || (0..).step_by(BLOCK);
    let on_second: BTreeMap<&[u8], u64> = second.chunks(BLOCK).zip(offsets()).collect();
    let client = |b: &[u8]| b[8..16] == 0x5EEDu64.to_le_bytes();
    let blocks = first.chunks(BLOCK).zip(offsets());
    let blocks = blocks.filter(|(block, _)| !client(block) && *block != [0; BLOCK]);
    blocks
        .filter_map(|(block, at)| Some((at, *on_second.get(block)?)))
        .collect()
}

/// Blocks of a node of the map were lost, and nothing but their readers' errors said so.
#[test]
fn blocks_under_a_lost_node_are_listed() {
    let (bytes, blocks) = (16 * MIB, 200);
    let disks = exported(2, bytes, "raid1", blocks);
    let mut listed = 0;
    for (first, second) in nodes_on_both(&disks) {
        let disks = copies(&disks, bytes);
        disks[0].poke(first, &[0xA5; BLOCK]);
        disks[1].poke(second, &[0xA5; BLOCK]);
        let rt = Rt::simulated(2);
        let handle = rt.clone();
        listed += rt.block_on(async move {
            let imported = Array::import(&handle, refs(&disks), Import::default()).await;
            let Ok(array) = imported else { return 0 }; // a root's own trees: refused
            if array.volume("v").is_none() {
                return 0;
            }
            let lost = read_all(&array, blocks).await;
            let mut expected: Vec<u64> = lost.iter().map(|b| b / 64 * 64).collect();
            expected.dedup();
            let ranges = array.status().await.lost;
            let covered: Vec<u64> = ranges
                .iter()
                .flat_map(|r| (r.offset_bytes..r.offset_bytes + r.length_bytes).step_by(64 * BLOCK))
                .map(|offset| offset / BLOCK as u64)
                .collect();
            assert_eq!(covered, expected, "lost {lost:?}");
            lost.len()
        });
        rt.shutdown();
    }
    assert!(
        listed >= blocks as usize,
        "each leaf was lost once: {listed}"
    );
}

/// Where the device has a block.
fn find(device: &MemDevice, bytes: u64, block: u64) -> u64 {
    let (wanted, mut held) = (pattern(block), vec![0; BLOCK]);
    let found = (0..bytes).step_by(BLOCK).find(|at| {
        device.peek(*at, &mut held);
        held == wanted[..]
    });
    found.unwrap()
}

/// A place that takes writes and keeps none: the column moves to another slot, of another device if
/// there is one, and the device is blamed once for what it did not write.
#[test]
fn a_column_leaves_a_place_that_keeps_no_repair() {
    for count in [2, 3] {
        let bytes = 16 * MIB;
        let disks: Vec<_> = (0..count)
            .map(|i| Rc::new(MemDevice::new(&format!("mem{i}"), bytes)))
            .collect();
        let filters: Vec<_> = disks
            .iter()
            .map(|d| FaultFilter::new(d.clone() as DeviceRef))
            .collect();
        let devices = filters.iter().map(|f| f.clone() as DeviceRef).collect();
        let rt = Rt::simulated(1);
        let handle = rt.clone();
        let story = rt.run_for(ENDLESS, async move {
            let array = create(&handle, devices, "ec1+1", 200).await;
            let holders: Vec<usize> = (0..count)
                .filter(|d| {
                    let mut held = vec![0; BLOCK];
                    (0..bytes).step_by(BLOCK).any(|at| {
                        disks[*d].peek(at, &mut held);
                        held == pattern(7)[..]
                    })
                })
                .collect();
            let [bad, good] = holders[..] else {
                panic!("{holders:?}");
            };
            let at = find(&disks[bad], bytes, 7);
            let lose = Rule::within(OpKind::Write, at..at + BLOCK as u64, Effect::Lose);
            filters[bad].add(lose);
            assert_eq!(corrupt(&disks[bad], bytes, 7), 1);
            // Whichever copy a read prefers.
            for _ in 0..4 {
                assert!(read_all(&array, 200).await.is_empty());
                array.wait_idle(&[]).await;
            }
            if errors(&array.status().await).iter().sum::<u64>() == 0 {
                return; // the other copy is the one that is read
            }
            let status = array.status().await;
            let blamed: Vec<_> = status.devices.iter().map(|d| d.errors.write).collect();
            let mut expected = vec![0; count];
            expected[bad] = 1;
            assert_eq!(blamed, expected, "{count} devices");
            let unkept = array.events(0);
            assert_eq!(unkept.iter().filter(|e| e.kind == "not-kept").count(), 1);
            // The copy that moved is as good as the other.
            assert_eq!(corrupt(&disks[good], bytes, 7), 1);
            assert!(read_all(&array, 200).await.is_empty());
        });
        assert!(story.is_ok(), "{count} devices: {story:?}");
        rt.shutdown();
    }
}

/// A summary that cannot be read is one error, however often it is looked at, and is repaired.
#[test]
fn a_bad_summary_counts_once_and_is_repaired() {
    let bytes = 16 * MIB;
    let disks: Vec<_> = devices(2, bytes);
    let rt = Rt::simulated(1);
    let handle = rt.clone();
    let story = rt.run_for(ENDLESS, async move {
        let array = create(&handle, refs(&disks), "raid1", 200).await;
        array.export().await.unwrap();
        // Every summary of the first device, and one block that it has, are noise.
        let mut summaries = 0;
        let mut held = vec![0; BLOCK];
        for at in (0..bytes).step_by(BLOCK) {
            disks[0].peek(at, &mut held);
            if held.starts_with(b"ASHSUMRY") {
                disks[0].poke(at, &[0xA5; BLOCK]);
                summaries += 1;
            }
        }
        assert!(summaries > 2, "{summaries}");
        assert_eq!(corrupt(&disks[0], bytes, 7), 1);
        let array = Array::import(&handle, refs(&disks), Import::default())
            .await
            .unwrap();
        for _ in 0..3 {
            assert!(read_all(&array, 200).await.is_empty());
            array.wait_idle(&[]).await;
        }
        let found = errors(&array.status().await);
        assert_eq!(found[1], 0);
        assert!(
            (1..=summaries + 1).contains(&found[0]),
            "{found:?} of {summaries}"
        );
        array.tell_events();
        let healed = array.events(0);
        let healed = healed.iter().filter(|e| e.kind == "healed");
        let healed: u64 = healed.map(|e| e.count).sum();
        assert_eq!(healed, found[0], "what was found was healed");
        for _ in 0..3 {
            assert!(read_all(&array, 200).await.is_empty());
        }
        assert_eq!(errors(&array.status().await), found);
    });
    assert!(story.is_ok(), "{story:?}");
    rt.shutdown();
}

/// A leaf of the map that both devices lost kept the deltas of its blocks in the journal, which filled up:
/// no write ended any more.
#[test]
fn a_lost_leaf_does_not_keep_writes_waiting() {
    let (bytes, blocks) = (16 * MIB, 200);
    let disks = exported(2, bytes, "raid1", blocks);
    let mut tried = 0;
    for (first, second) in nodes_on_both(&disks) {
        let disks = copies(&disks, bytes);
        disks[0].poke(first, &[0xA5; BLOCK]);
        disks[1].poke(second, &[0xA5; BLOCK]);
        tried += usize::from(write_under_a_lost_leaf(&disks, blocks));
    }
    assert!(tried > 2, "{tried} leaves were lost");
}

/// Whether something is lost; if so writes go on, and of what is lost only that is found which was
/// written or unmapped again, also by the next imports.
fn write_under_a_lost_leaf(disks: &[Rc<MemDevice>], blocks: u64) -> bool {
    let rt = Rt::simulated(2);
    let (handle, devices) = (rt.clone(), refs(disks));
    let story = rt.run_for(ENDLESS, async move {
        let imported = Array::import(&handle, devices, Import::default()).await;
        let array = imported.ok().filter(|a| a.volume("v").is_some())?;
        let lost = read_all(&array, blocks).await;
        if lost.len() < 4 {
            return None;
        }
        let v = array.volume("v").unwrap();
        for block in [lost[0], lost[3]] {
            let offset = block * BLOCK as u64;
            v.write(offset, pattern(block), true).await.unwrap();
        }
        let offset = lost[1] * BLOCK as u64;
        v.trim(offset, BLOCK as u64, true).await.unwrap();
        // Many times what the journal holds.
        for round in 0..600 {
            let block = 300 + round % 40;
            let offset = block * BLOCK as u64;
            v.write(offset, pattern(block), true).await.unwrap();
        }
        Some(lost)
    });
    rt.shutdown();
    let Some(lost) = story.expect("writes go on") else {
        return false;
    };
    for round in 0..3 {
        let rt = Rt::simulated(3 + round);
        let (handle, devices, lost) = (rt.clone(), refs(disks), lost.clone());
        rt.block_on(async move {
            let imported = Array::import(&handle, devices, Import::default()).await;
            let array = imported.unwrap();
            let v = array.volume("v").unwrap();
            for block in 0..blocks {
                let read = v.read(block * BLOCK as u64, BLOCK).await;
                let again = block == lost[0] || block == lost[3];
                match read {
                    Err(VolumeError::Lost) => assert!(!again && lost.contains(&block), "{block}"),
                    Ok(found) if block == lost[1] => assert!(found.iter().all(|b| *b == 0)),
                    Ok(found) => {
                        assert!(again || !lost.contains(&block), "{block} is back");
                        assert_eq!(&*found, &*pattern(block), "block {block}");
                    }
                    Err(error) => panic!("block {block}: {error}"),
                }
            }
            if round == 1 {
                array.export().await.unwrap();
            }
        });
        rt.shutdown();
    }
    true
}

/// #178: blocks of a leaf that is lost while a device is gone were moved all the same, to be narrower: none of that
/// could be merged, so that it was done again for ever. The array comes to rest, and all is there once the leaf can be
/// read again.
#[test]
fn blocks_under_a_lost_leaf_stay_where_they_are() {
    let (bytes, blocks) = (16 * MIB, 200);
    let disks = exported(3, bytes, "ec2+1", blocks);
    let mut tried = 0;
    for (first, second) in nodes_on_both(&disks) {
        let disks = copies(&disks[..2], bytes);
        let mut node = vec![0; BLOCK];
        disks[0].peek(first, &mut node);
        disks[0].poke(first, &[0xA5; BLOCK]);
        disks[1].poke(second, &[0xA5; BLOCK]);
        let rt = Rt::simulated(2);
        let (handle, left) = (rt.clone(), refs(&disks));
        let lost = rt.run_for(ENDLESS, async move {
            let imported = Array::import(&handle, left, Import::default()).await;
            let array = imported.ok().filter(|a| a.volume("v").is_some())?;
            let lost = read_all(&array, blocks).await;
            if lost.len() < 4 {
                return None;
            }
            array.wait_idle(&[]).await;
            let written = async || {
                let devices = array.status().await.devices;
                devices.iter().map(|d| d.written_bytes).sum::<u64>()
            };
            let minute = 60 * ashlar_rt::SECOND;
            handle.sleep(minute).await;
            let before = written().await;
            handle.sleep(60 * minute).await;
            assert_eq!(written().await, before, "node at {first}: at rest");
            assert_eq!(read_all(&array, blocks).await, lost);
            array.export().await.unwrap();
            Some(lost)
        });
        rt.shutdown();
        if lost.expect("it comes to rest").is_none() {
            continue;
        }
        disks[0].poke(first, &node);
        disks[1].poke(second, &node);
        let rt = Rt::simulated(3);
        let (handle, all) = (rt.clone(), refs(&disks));
        let lost = rt.block_on(async move {
            let array = Array::import(&handle, all, Import::default()).await;
            read_all(&array.unwrap(), blocks).await
        });
        assert!(lost.is_empty(), "node at {first}: {lost:?}");
        rt.shutdown();
        tried += 1;
    }
    assert!(tried > 2, "{tried} leaves were lost");
}

/// Blocks far apart, so that the map has inner nodes below its top in each partition.
const FAR: u64 = 331;

/// #112: an unmapped range above whose leaves a node was lost stayed in the journal, which filled up: no write
/// ended any more.
#[test]
fn a_trim_above_a_lost_node_does_not_keep_writes_waiting() {
    let (bytes, blocks) = (16 * MIB, 200);
    let disks: Vec<_> = devices(2, bytes);
    let rt = Rt::simulated(1);
    let (handle, kept) = (rt.clone(), disks.clone());
    rt.block_on(async move {
        let array = Array::create(&handle, refs(&kept), small("raid1"));
        let array = array.await.unwrap();
        let mut options = volume(512 * MIB);
        options.thin = true;
        array.volume_create("v", options).await.unwrap();
        let v = array.volume("v").unwrap();
        for block in (0..blocks).map(|n| n * FAR) {
            let offset = block * BLOCK as u64;
            v.write(offset, pattern(block), false).await.unwrap();
        }
        array.export().await.unwrap();
    });
    rt.shutdown();
    let mut tried = Vec::new();
    for (first, second) in nodes_on_both(&disks) {
        let disks = copies(&disks, bytes);
        disks[0].poke(first, &[0xA5; BLOCK]);
        disks[1].poke(second, &[0xA5; BLOCK]);
        tried.extend(trim_above_a_lost_node(&disks, blocks));
    }
    let (most, fewest) = (tried.iter().max(), tried.iter().min());
    assert!(
        most > fewest,
        "nodes of several levels were lost: {tried:?}"
    );
}

/// How many blocks are lost, if enough to trim between them; then writes go on, what was trimmed is an unmapped range,
/// and nothing else is lost or back, also by the next imports.
fn trim_above_a_lost_node(disks: &[Rc<MemDevice>], blocks: u64) -> Option<usize> {
    let rt = Rt::simulated(2);
    let (handle, devices) = (rt.clone(), refs(disks));
    let read_far = move |array: Array| async move {
        let v = array.volume("v").unwrap();
        let (mut lost, mut unmapped) = (Vec::new(), Vec::new());
        for block in (0..blocks).map(|n| n * FAR) {
            match v.read(block * BLOCK as u64, BLOCK).await {
                Err(VolumeError::Lost) => lost.push(block),
                Ok(found) if found.iter().all(|b| *b == 0) => unmapped.push(block),
                Ok(found) => assert_eq!(&*found, &*pattern(block), "block {block}"),
                Err(error) => panic!("block {block}: {error}"),
            }
        }
        (array, lost, unmapped)
    };
    let story = rt.run_for(ENDLESS, async move {
        let imported = Array::import(&handle, devices, Import::default()).await;
        let array = imported.ok().filter(|a| a.volume("v").is_some())?;
        let (array, lost, _) = read_far(array).await;
        if lost.len() < 4 {
            return None;
        }
        let v = array.volume("v").unwrap();
        let (from, to) = (lost[1], lost[lost.len() - 1]);
        let length = (to - from) * BLOCK as u64;
        v.trim(from * BLOCK as u64, length, true).await.unwrap();
        // Many times what the journal holds, where nothing is lost.
        let mut sound = (0..blocks).map(|n| n * FAR).filter(|b| !lost.contains(b));
        let sound = sound.next()?;
        for _ in 0..600 {
            let offset = sound * BLOCK as u64;
            v.write(offset, pattern(sound), true).await.unwrap();
        }
        let trimmed = move |b: &u64| (from..to).contains(b) && *b != sound;
        Some((lost, trimmed))
    });
    rt.shutdown();
    let (lost, trimmed) = story.expect("writes go on")?;
    for round in 0..3 {
        let rt = Rt::simulated(3 + round);
        let (handle, devices) = (rt.clone(), refs(disks));
        let (still, unmapped) = rt.block_on(async move {
            let imported = Array::import(&handle, devices, Import::default()).await;
            let (array, still, unmapped) = read_far(imported.unwrap()).await;
            if round == 1 {
                array.export().await.unwrap();
            }
            (still, unmapped)
        });
        rt.shutdown();
        let all = (0..blocks).map(|n| n * FAR);
        assert_eq!(unmapped, all.filter(|b| trimmed(b)).collect::<Vec<_>>());
        let expected = lost.iter().copied().filter(|b| !trimmed(b));
        assert_eq!(still, expected.collect::<Vec<_>>());
    }
    Some(lost.len())
}

/// An import flushes its devices before anything else: those that cannot are done without, up to M of them and
/// whether they fail or never answer.
#[test]
fn devices_that_cannot_flush_at_an_import_are_done_without() {
    for effect in [Effect::Fail(Fault::Media), Effect::Hang] {
        let disks = devices(7, 8 * MIB);
        let rt = Rt::simulated(1);
        let (handle, all) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let array = Array::create(&handle, all, small("ec4+2")).await.unwrap();
            array.volume_create("v", volume(MIB)).await.unwrap();
            let v = array.volume("v").unwrap();
            fill(&v, MIB, common::BLOCK, 1, "all there").await;
        });
        rt.shutdown();
        let rt = Rt::simulated(2);
        let handle = rt.clone();
        let filtered = disks.iter().zip(0..).map(|(disk, index)| {
            let filter = FaultFilter::new(disk.clone() as DeviceRef);
            if index < 2 {
                filter.add(Rule::always(OpKind::Flush, effect));
            }
            filter as DeviceRef
        });
        let filtered = filtered.collect();
        rt.block_on(async move {
            let import = Array::import(&handle, filtered, Import::default());
            let array = import.await.unwrap();
            let v = array.volume("v").unwrap();
            check(&v, MIB, 1, "without two").await;
            fill(&v, MIB, common::BLOCK, 2, "without two").await;
            check(&v, MIB, 2, "without two").await;
            assert_eq!(array.status().await.health.devices_gone, 2, "{effect:?}");
        });
        rt.shutdown();
    }
}

fn copy(disk: &Rc<MemDevice>) -> Rc<MemDevice> {
    let bytes = image(disk);
    let copy = MemDevice::new("copy", bytes.len() as u64);
    copy.poke(0, &bytes);
    Rc::new(copy)
}

/// A column that was rebuilt counts from its journal record on, also when all the devices are lost that held
/// columns of its segment when the slot tables were written (#156).
#[test]
fn a_rebuilt_column_is_found_where_only_the_journal_names_it() {
    const BLOCKS: u64 = 40;
    let whole = devices(4, 16 * MIB);
    let rt = Rt::simulated(7);
    let (handle, all) = (rt.clone(), refs(&whole));
    rt.block_on(async move {
        let array = create(&handle, all, "ec1+1", BLOCKS).await;
        array.export().await.unwrap();
    });
    rt.shutdown();
    for polls in (0..).step_by(25) {
        let disks: Vec<_> = whole.iter().map(copy).collect();
        let session = |gone: &'static [usize]| (Rt::simulated(8), without(&disks, gone));
        // A process that dies somewhere while it reconstructs ...
        let (rt, left) = session(&[0]);
        let handle = rt.clone();
        let ended = rt.run_for(polls, async move {
            let array = Array::import(&handle, left, Import::default()).await;
            array.unwrap().wait_idle(&[]).await;
        });
        rt.shutdown();
        // ... and one that has little to do, and nothing to checkpoint.
        let (rt, left) = session(&[0]);
        let handle = rt.clone();
        rt.block_on(async move {
            let array = Array::import(&handle, left, Import::default()).await;
            let array = array.unwrap();
            array.wait_idle(&[]).await;
            assert_eq!(array.status().await.health.more_losses, 1, "{polls}");
        });
        rt.shutdown();
        for gone in [&[0, 1], &[0, 2], &[0, 3]] {
            let disks: Vec<_> = disks.iter().map(copy).collect();
            let rt = Rt::simulated(9);
            let (handle, left) = (rt.clone(), without(&disks, gone));
            rt.block_on(async move {
                let array = Array::import(&handle, left, Import::default()).await;
                let lost = read_all(&array.unwrap(), BLOCKS).await;
                assert_eq!(lost, [0u64; 0], "{polls}, {gone:?}");
            });
            rt.shutdown();
        }
        if ended.is_ok() {
            break;
        }
    }
}

/// A segment of which no column is left is nowhere: its blocks are listed as lost like any others.
#[test]
fn blocks_of_a_segment_that_is_nowhere_are_listed() {
    let disks = devices(3, 8 * MIB);
    let rt = Rt::simulated(1);
    let (handle, kept) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let array = Array::create(&handle, kept, small("jbod")).await.unwrap();
        array.volume_create("v", volume(MIB)).await.unwrap();
        let v = array.volume("v").unwrap();
        for block in 0..256 {
            let bytes = pattern(block);
            v.write(block * BLOCK as u64, bytes, false).await.unwrap();
        }
        array.export().await.unwrap();
    });
    rt.shutdown();
    let rt = Rt::simulated(2);
    let handle = rt.clone();
    rt.block_on(async move {
        let import = Import {
            degraded: true,
            ..Import::default()
        };
        let array = Array::import(&handle, without(&disks, &[1]), import).await;
        let array = array.unwrap();
        let v = array.volume("v").unwrap();
        let mut lost = 0;
        for block in 0..256 {
            match v.read(block * BLOCK as u64, BLOCK).await {
                Ok(read) => assert!(*read == *pattern(block), "block {block}"),
                Err(error) => {
                    assert_eq!(error, VolumeError::Lost);
                    lost += BLOCK as u64;
                }
            }
        }
        let status = array.status().await;
        let listed: u64 = status.lost.iter().map(|range| range.length_bytes).sum();
        assert!(lost > 0 && listed == lost, "{listed} of {lost} are listed");
        assert_eq!(status.state, ArrayState::Failed);
    });
    rt.shutdown();
}

/// A device that counts what is read of it.
struct Counted(Rc<MemDevice>, Rc<Cell<u32>>);

impl Device for Counted {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }
    fn read(&self, offset: u64, buf: Buf) -> IoFuture<(Buf, Result<(), Fault>)> {
        self.1.set(self.1.get() + 1);
        self.0.read(offset, buf)
    }
    fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<Result<(), Fault>> {
        self.0.write(offset, data)
    }
    fn flush(&self) -> IoFuture<Result<(), Fault>> {
        self.0.flush()
    }
    fn discard(&self, offset: u64, length: u64) -> IoFuture<Result<(), Fault>> {
        self.0.discard(offset, length)
    }
}

/// An array of 64 KiB strips, exported with a volume of `size` bytes that was written once, and imported without its
/// first device; with it the count of what is read of the others.
async fn imported_without_a_device(rt: &Rt, size: u64, import: Import) -> (Array, Rc<Cell<u32>>) {
    let disks: Vec<_> = devices(5, 16 * MIB);
    let options = Create {
        strip_bytes: Some(64 << 10),
        slot_bytes: Some(256 << 10),
        ..small("ec4+1")
    };
    let array = Array::create(rt, refs(&disks), options).await.unwrap();
    array.volume_create("v", volume(size)).await.unwrap();
    let v = array.volume("v").unwrap();
    common::fill(&v, size, 64 * BLOCK as u64, 1, "before").await;
    array.export().await.unwrap();
    let reads = Rc::new(Cell::new(0));
    let count = |d: &Rc<MemDevice>| Rc::new(Counted(d.clone(), reads.clone())) as DeviceRef;
    let left = disks[1..].iter().map(count).collect();
    let array = Array::import(rt, left, import).await.unwrap();
    (array, reads)
}

/// A run of blocks on a device that is gone is computed as one: it was once K reads for each of its blocks.
#[test]
fn a_degraded_run_reads_each_strip_once() {
    let size = MIB;
    let rt = Rt::simulated(1);
    let handle = rt.clone();
    let reads = rt.block_on(async move {
        let import = Import {
            read_only: true,
            ..Import::default()
        };
        let (array, reads) = imported_without_a_device(&handle, size, import).await;
        let v = array.volume("v").unwrap();
        v.read(0, BLOCK).await.unwrap(); // the map
        let before = reads.get();
        for first in (0..size / BLOCK as u64).step_by(64) {
            let read = v.read(first * BLOCK as u64, 64 * BLOCK).await.unwrap();
            assert!(*read == *common::run(first, 64, 1), "block {first}");
        }
        reads.get() - before
    });
    rt.shutdown();
    // 16 strips, each read as one or from 4 others; and a few that the ends of reads cut in two.
    assert!(reads > 16 && reads <= 2 * 16 * 4, "{reads} device reads");
}

/// Strips of a device that is gone are computed as one where the cleaner moves their blocks: it was once K reads, and
/// as many of rows, for each of these.
#[test]
fn cleaning_without_a_device_reads_each_strip_once() {
    let size = 4 * MIB;
    let rt = Rt::simulated(1);
    let handle = rt.clone();
    let reads = rt.block_on(async move {
        let import = Import {
            degraded: true,
            ..Import::default()
        };
        let (array, reads) = imported_without_a_device(&handle, size, import).await;
        let before = reads.get();
        // Every segment lacks a column: all are moved to narrower ones.
        array.wait_idle(&[]).await;
        let moving = reads.get() - before;
        let v = array.volume("v").unwrap();
        common::check(&v, size, 1, "moved").await;
        moving
    });
    rt.shutdown();
    // 64 strips, a fifth of which are computed from 4 others; and their rows.
    println!("{reads} device reads");
    assert!(reads > 64 && reads <= 64 * 10, "{reads} device reads");
}

/// Regression: a block that its device could not read was counted as wrong bytes as well (P6).
#[test]
fn what_a_device_cannot_read_counts_as_a_failed_read_alone() {
    let bytes = 16 * MIB;
    let disks = devices(4, bytes);
    story(async move |rt| {
        let filters: Vec<_> = refs(&disks).into_iter().map(FaultFilter::new).collect();
        let seen = filters.iter().map(|f| f.clone() as DeviceRef).collect();
        let array = create(&rt, seen, "ec2+2", 200).await;
        let mut held = vec![0; BLOCK];
        let mut holds = |disk: &MemDevice| {
            (0..bytes).step_by(BLOCK).find(|at| {
                disk.peek(*at, &mut held);
                held == pattern(7)[..]
            })
        };
        let found = (0..disks.len()).find_map(|d| Some((d, holds(&disks[d])?)));
        let (device, at) = found.unwrap();
        let fault = Effect::Fail(Fault::Media);
        filters[device].add(Rule::within(OpKind::Read, at..at + BLOCK as u64, fault));
        assert!(read_all(&array, 200).await.is_empty());
        let status = array.status().await;
        let told = &status.devices[device].errors;
        assert!(told.read > 0 && told.digest == 0, "{told:?}");
        assert!(errors(&status).iter().all(|digest| *digest == 0));

        // Wrong bytes are told as such.
        filters[device].clear();
        array.wait_idle(&[]).await;
        let before = array.status().await.devices[device].errors.clone();
        assert!((8..60).any(|block| corrupt(&disks[device], bytes, block) > 0));
        assert!(read_all(&array, 200).await.is_empty());
        let after = array.status().await.devices[device].errors.clone();
        assert!(
            after.digest > 0 && after.read == before.read,
            "{before:?} {after:?}"
        );
    });
}
