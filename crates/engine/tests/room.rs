//! Where room is short: what volumes were promised fits, whatever their blocks and whatever the failure domains,
//! and what is written once devices are gone stays as redundant as what was there.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::ops::Range;
use std::rc::Rc;

use ashlar_device::{
    Delay, DelayFilter, Device, DeviceRef, Effect, Fault, FaultFilter, MemDevice, OpKind, Rule,
};
use ashlar_engine::Work;
use ashlar_engine::status::{ArrayState, DeviceState};
use ashlar_engine::{Array, Create, Error, Import, Settings, Volume, VolumeError, VolumeOptions};
use ashlar_rt::{Rt, SECOND};

use common::{
    BLOCK, check, devices, fill, image, pattern, refs, small, thin_volume, volume, without,
};

const MIB: u64 = 1 << 20;

/// The power goes, and the array starts without some devices: on copies, so that the next start finds the same.
fn starts_without(disks: &[Rc<MemDevice>], gone: &[usize], size: u64, version: u64, what: &str) {
    let rt = Rt::simulated(7);
    let handle = rt.clone();
    let copy = |disk: &Rc<MemDevice>| {
        let copy = MemDevice::new(&disk.info().name, disk.info().size_bytes);
        copy.poke(0, &image(disk));
        Rc::new(copy)
    };
    let copies: Vec<Rc<MemDevice>> = disks.iter().map(copy).collect();
    let (kept, what) = (without(&copies, gone), what.to_string());
    // Also where half of them or more are gone.
    let degraded = Import {
        degraded: true,
        ..Import::default()
    };
    rt.block_on(async move {
        let array = Array::import(&handle, kept, degraded).await;
        let array = array.unwrap_or_else(|error| panic!("{what}: {error}"));
        check(&array.volume("v").unwrap(), size, version, &what).await;
    });
    rt.shutdown();
}

/// Volume blocks that do not fill a stripe leave a part of each empty: that counts as taken, and a thick volume
/// that was promised all the room can be written again and again.
#[test]
fn volume_blocks_that_do_not_fill_stripes_have_room() {
    for (layout, count, strip, block) in [
        ("ec3+1", 6, 8 << 10, 16 << 10),
        ("ec3+1", 8, 4 << 10, 8 << 10),
        ("ec5+2", 8, 4 << 10, 16 << 10),
    ] {
        let disks = devices(count, 8 * MIB);
        let rt = Rt::simulated(1);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let create = Create {
                strip_bytes: Some(strip),
                ..small(layout)
            };
            let array = Array::create(&handle, kept, create).await.unwrap();
            let unit = u64::from(block);
            let size = array.room_for(block) / unit * unit;
            assert!(size < array.room_for(4096), "{layout}");
            let options = VolumeOptions {
                block_bytes: block,
                ..volume(size)
            };
            array.volume_create("v", options).await.unwrap();
            let v = array.volume("v").unwrap();
            for version in 1..4 {
                fill(&v, size, unit, version, layout).await;
            }
            check(&v, size, 3, layout).await;
            let c = array.status().await.capacity;
            assert_eq!(
                c.usable_bytes,
                c.used_bytes + c.free_bytes,
                "{layout}: {c:?}"
            );
        });
        rt.shutdown();
    }
}

/// Writes every block of `v` in an order that leaps about, many at a time.
async fn scatter(rt: &Rt, v: &Volume, size: u64, version: u64, what: &str) {
    let blocks = size / BLOCK;
    let leap = (0..)
        .map(|n| 7919 + n)
        .find(|n| !blocks.is_multiple_of(*n))
        .unwrap();
    let order: Vec<u64> = (0..blocks).map(|n| n * leap % blocks).collect();
    for some in order.chunks(512) {
        let write = |block: u64| {
            let v = v.clone();
            rt.spawn(async move { v.write(block * BLOCK, pattern(block, version), false).await })
        };
        let under_way: Vec<_> = some.iter().map(|block| write(*block)).collect();
        for write in under_way {
            let done = write.await;
            assert!(done.is_ok(), "{what}, version {version}: {done:?}");
        }
    }
}

/// An array with a thick volume of so many percent of its space, and that.
async fn mostly_thick(
    rt: &Rt,
    disks: Vec<DeviceRef>,
    create: Create,
    percent: u64,
) -> (Array, Volume, u64) {
    let array = Array::create(rt, disks, create).await.unwrap();
    let size = array.room_for(4096) / 100 * percent / BLOCK * BLOCK;
    array.volume_create("v", volume(size)).await.unwrap();
    let v = array.volume("v").unwrap();
    (array, v, size)
}

/// Devices of so many MiB each.
fn devices_of(sizes: &[u64]) -> Vec<Rc<MemDevice>> {
    let sizes = sizes.iter().enumerate();
    let made = sizes.map(|(i, size)| Rc::new(MemDevice::new(&format!("mem{i}"), size * MIB)));
    made.collect()
}

/// An array is optimal, unless volumes were promised more than what is left of it holds.
async fn assert_whole(array: &Array, what: &str) {
    let status = array.status().await;
    let whole = status.state == ArrayState::Optimal || status.capacity.overpromised;
    assert!(whole, "{what}: {status:?}");
}

/// An array with a thin volume of all its space, and that.
async fn all_thin(rt: &Rt, disks: Vec<DeviceRef>, create: Create) -> (Array, Volume, u64) {
    let array = Array::create(rt, disks, create).await.unwrap();
    let size = array.room_for(4096) / BLOCK * BLOCK;
    let options = thin_volume(size);
    array.volume_create("v", options).await.unwrap();
    let v = array.volume("v").unwrap();
    (array, v, size)
}

/// An array that keeps as little as can be for cleaning, with a thick volume of all its space, and that.
async fn all_thick(rt: &Rt, disks: Vec<DeviceRef>, create: Create) -> (Array, Volume, u64) {
    let array = Array::create(rt, disks, create).await.unwrap();
    array.set("clean.reserve", "2%").await.unwrap();
    let size = array.room_for(4096) / BLOCK * BLOCK;
    array.volume_create("v", volume(size)).await.unwrap();
    let v = array.volume("v").unwrap();
    (array, v, size)
}

/// These devices, as an array takes them, and what makes the first one fail.
fn first_filtered(disks: &[Rc<MemDevice>]) -> (Vec<DeviceRef>, Rc<FaultFilter>) {
    let filter = FaultFilter::new(disks[0].clone() as DeviceRef);
    let mut kept = refs(disks);
    kept[0] = filter.clone();
    (kept, filter)
}

/// A thin volume that has an array to itself takes all that a thick one would be promised, whatever is under way
/// at once and however its blocks lie: what is not folded was charged a node for each block, and more than was left
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

/// Writes far apart, hundreds at once, each under a leaf of its own, where little is free: what is not folded yet
/// takes no more nodes than there is room for. Folding it used up the last slots, and the array hung for good (#133).
/// And what was promised to another volume stays: on fewer devices each node takes more room (#134).
#[test]
fn writes_far_apart_leave_room_to_fold_them() {
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
                let holes = (version * 11) % (size / BLOCK - 8);
                v.trim(holes * BLOCK, 7 * BLOCK, false).await.unwrap();
                scatter(&handle, &v, size, version, layout).await;
            }
            check(&v, size, 9, layout).await;
        });
        rt.shutdown();
    }
}

/// Writers of parts of the same new block, the last one there is room for: one has to read anew what another has
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

/// Where the largest devices are gone, what is written does without the columns that it would have had on these, which
/// are more than their number says: with as many as on any device a full array had no room for what was promised (#139).
#[test]
fn large_devices_that_are_gone_take_their_share_along() {
    for (layout, gone) in [
        ("ec1+3", &[1, 4][..]),
        ("ec2+2", &[1, 4]),
        ("ec1+3", &[1, 3, 4]),
    ] {
        let disks = devices_of(&[10, 15, 10, 15, 15, 10, 15]);
        let rt = Rt::simulated(1);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let array = Array::create(&handle, kept, small(layout)).await.unwrap();
            array.set("clean.reserve", "2%").await.unwrap();
            let size = array.room_for(4096) / 100 * 95 / BLOCK * BLOCK;
            array.volume_create("v", volume(size)).await.unwrap();
            let thin = thin_volume(4 << 30);
            array.volume_create("thin", thin).await.unwrap();
            let (v, thin) = (array.volume("v").unwrap(), array.volume("thin").unwrap());
            scatter(&handle, &v, size, 1, layout).await;
            for n in 0..400 {
                let _ = thin.write(far_apart(n), pattern(n, 1), false).await; // until it is full
            }
            for device in gone {
                array.fail(*device, false).await.unwrap();
            }
            for version in 2..8 {
                scatter(&handle, &v, size, version, layout).await;
            }
            check(&v, size, 7, layout).await;
        });
        rt.shutdown();
    }
}

/// Beyond M, where nodes take more room than is free: they are written anew with the redundancy that is left only as
/// far as there is room for that. All at once took the last slot, and the array hung for good (#136).
#[test]
fn beyond_m_nodes_are_written_anew_as_far_as_there_is_room() {
    for (gone, count) in [
        ([0, 1, 2, 4, 5], 1400),
        ([0, 1, 2, 4, 6], 1500),
        ([2, 3, 4, 5, 0], 1600),
    ] {
        let disks = devices(7, 16 * MIB);
        let written = written_far_apart(&disks, &gone[..2], count, true);
        let (stopped, lost) = left_alone(&disks, gone, written, false);
        assert_eq!(stopped, "", "{count} blocks");
        assert!(lost < count / 2, "{lost} of {count} blocks are lost");
    }
}

/// The same where the journal has what was not folded, which an import folds first: what it moved at once, to clean,
/// took more than was left for that (#181).
#[test]
fn beyond_m_what_an_import_finds_is_folded_as_far_as_there_is_room() {
    let gone = [0, 1, 2, 4, 6];
    // Nearly full. (With some other counts no room is left to commit in: open, docs/reliability.md.)
    for count in [700, 704, 708, 710] {
        let disks = devices(7, 8 * MIB);
        let written = written_far_apart(&disks, &gone[..2], count, false);
        let (stopped, lost) = left_alone(&disks, gone, written, false);
        assert_eq!(stopped, "", "{count} blocks");
        assert!(lost < written / 2, "{lost} of {written} blocks are lost");
    }
}

/// Where no device ends a discard, slots that are freed do not come back, and no room is left to commit in: the array
/// stops and says so. Read-only it serves what there is, and imported with devices that discard it goes on.
#[test]
fn an_array_without_room_to_commit_stops() {
    let disks = devices(3, 8 * MIB);
    let filters: Vec<Rc<FaultFilter>> = disks
        .iter()
        .map(|d| FaultFilter::new(d.clone() as DeviceRef))
        .collect();
    let rt = Rt::simulated(1);
    let handle = rt.clone();
    let kept = filters.iter().map(|f| f.clone() as DeviceRef).collect();
    let size = rt.block_on(async move {
        let (array, v, size) = all_thick(&handle, kept, small("ec2+1")).await;
        fill(&v, size, BLOCK, 1, "at first").await;
        v.flush().await.unwrap();
        for filter in &filters {
            filter.add(Rule::always(OpKind::Discard, Effect::Hang));
        }
        for n in 0.. {
            assert!(n < 1000, "commits need room");
            // Any change of the settings is a commit.
            let narrow = ["never", "critical"][n % 2];
            if array.set("reconstruct.narrow", narrow).await.is_err() {
                break;
            }
        }
        let mut events = array.events(0).into_iter();
        let stopped = events.find(|e| e.kind == "halted").map(|e| e.text);
        let stopped = stopped.unwrap_or_default();
        assert!(stopped.contains("no room is left to commit"), "{stopped}");
        size
    });
    rt.shutdown();
    for read_only in [true, false] {
        let rt = Rt::simulated(2);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let import = Import {
                read_only,
                ..Import::default()
            };
            let array = Array::import(&handle, kept, import).await.unwrap();
            let v = array.volume("v").unwrap();
            check(&v, size, 1, "imported").await;
            if !read_only {
                fill(&v, size, BLOCK, 2, "afterwards").await;
                check(&v, size, 2, "afterwards").await;
            }
        });
        rt.shutdown();
    }
}

/// The `n`th address that is written far apart.
fn far_apart(n: u64) -> u64 {
    n * 7919 % (1 << 18) * BLOCK
}

/// An array of seven devices that lost two of them and was written far apart, `count` blocks or until it was full; how
/// many were. Where it was not exported, the journal has what was not folded.
fn written_far_apart(disks: &[Rc<MemDevice>], gone: &[usize], count: u64, exported: bool) -> u64 {
    let rt = Rt::simulated(1);
    let (handle, kept, gone) = (rt.clone(), refs(disks), gone.to_vec());
    let written = rt.block_on(async move {
        let create = Create {
            slot_bytes: Some(32 << 10),
            ..small("ec2+2")
        };
        let array = Array::create(&handle, kept, create).await.unwrap();
        let options = thin_volume(1 << 30);
        array.volume_create("v", options).await.unwrap();
        let v = array.volume("v").unwrap();
        for device in gone {
            array.fail(device.try_into().unwrap(), false).await.unwrap();
        }
        let mut written = 0;
        while written < count {
            let write = v.write(far_apart(written), pattern(written, 1), false);
            if write.await.is_err() {
                break;
            }
            written += 1;
        }
        if exported {
            array.export().await.unwrap();
        } else {
            v.flush().await.unwrap();
        }
        written
    });
    rt.shutdown();
    written
}

/// Imports such an array with these devices gone and waits for its background work to end; why it stopped if it did,
/// and how many blocks cannot be read.
fn left_alone(
    disks: &[Rc<MemDevice>],
    gone: [usize; 5],
    written: u64,
    read_only: bool,
) -> (String, u64) {
    let rt = Rt::simulated(1);
    let (handle, kept) = (rt.clone(), without(disks, &gone));
    let outcome = rt.block_on(async move {
        let import = Import {
            degraded: true,
            read_only,
            ..Import::default()
        };
        let array = Array::import(&handle, kept, import).await.unwrap();
        let idle = handle.timeout(3600 * SECOND, array.wait_idle(&[])).await;
        assert!(idle.is_some(), "{written} blocks: background work ends");
        let mut events = array.events(0).into_iter();
        let stopped = events.find(|e| e.kind == "halted").map(|e| e.text);
        let v = array.volume("v").unwrap();
        let mut lost = 0;
        for n in 0..written {
            match v.read(far_apart(n), BLOCK as usize).await {
                // What only lost records of the journal held was given up.
                Ok(read) if read.iter().all(|byte| *byte == 0) => lost += 1,
                Ok(read) => assert!(*read == *pattern(n, 1), "block {n}"),
                Err(VolumeError::Lost | VolumeError::Closed) => lost += 1,
                Err(error) => panic!("block {n}: {error}"),
            }
        }
        (stopped.unwrap_or_default(), lost)
    });
    rt.shutdown();
    outcome
}

/// An array of groups that all lack devices, and hold more than what is left has room for with all columns: what is
/// moved into another group has to be laid as it was reckoned. It got all its columns there, wherever there was
/// room, and that took more: it went back and forth (#135).
#[test]
fn cleaning_does_not_go_back_and_forth_between_groups() {
    let disks = devices(18, 7 * MIB);
    let rt = Rt::simulated(1);
    let (handle, kept) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let create = Create {
            spare: 3,
            ..small("raid60:3")
        };
        let array = Array::create(&handle, kept, create).await.unwrap();
        let size = array.room_for(4096) / 100 * 95 / BLOCK * BLOCK;
        array.volume_create("v", volume(size)).await.unwrap();
        let v = array.volume("v").unwrap();
        fill(&v, size, BLOCK, 1, "all there").await;
        for device in [0, 5, 6, 11, 12, 17] {
            array.fail(device, false).await.unwrap();
        }
        for version in 2..4 {
            scatter(&handle, &v, size, version, "without two of each group").await;
        }
        let written = async || -> u64 {
            let devices = array.status().await.devices;
            devices.iter().map(|d| d.written_bytes).sum()
        };
        let before = written().await;
        let idle = handle.timeout(3600 * SECOND, array.wait_idle(&[])).await;
        assert!(idle.is_some(), "background work ends");
        let moved = written().await - before;
        assert!(
            moved < size,
            "{moved} bytes were written to move some of {size}"
        );
        check(&v, size, 3, "without two of each group").await;
    });
    rt.shutdown();
}

/// A device that is gone counts with the slots that it had, also where it was gone before: it was given those of
/// the device that its superblock was read from, so a thin volume was refused what an array has room for (#131).
#[test]
fn a_device_that_was_gone_before_counts_with_its_own_size() {
    let sizes = [8 * MIB, 8 * MIB, 16 * MIB, 16 * MIB, 16 * MIB];
    let disks: Vec<Rc<MemDevice>> = (sizes.iter().enumerate())
        .map(|(i, bytes)| Rc::new(MemDevice::new(&format!("mem{i}"), *bytes)))
        .collect();
    let rt = Rt::simulated(1);
    let (handle, kept) = (rt.clone(), refs(&disks));
    let usable = rt.block_on(async move {
        let array = Array::create(&handle, kept, small("ec2+1")).await.unwrap();
        let usable = array.room_for(4096);
        let options = thin_volume(usable);
        array.volume_create("v", options).await.unwrap();
        usable
    });
    rt.shutdown();
    // At the first start it goes, at the second it was gone.
    for start in 1..3 {
        let rt = Rt::simulated(start);
        let (handle, kept) = (rt.clone(), without(&disks, &[4]));
        rt.block_on(async move {
            let array = Array::import(&handle, kept, Import::default()).await;
            let array = array.unwrap();
            let gone = &array.status().await.devices[4];
            assert!(gone.size_bytes > 15 * MIB, "start {start}: {gone:?}");
            let v = array.volume("v").unwrap();
            fill(&v, usable, BLOCK, start, "without one").await;
        });
        rt.shutdown();
    }
}

/// Failure domains of different sizes: what is promised is what fits with no more than M columns in a domain,
/// and a full array still loses any domain.
#[test]
fn a_full_array_may_lose_any_domain() {
    for (layout, domains) in [
        ("ec2+1", &[0, 0, 1, 2][..]),
        ("ec4+2", &[0, 0, 0, 0, 1, 1, 1, 2, 2, 2]),
        ("ec2+2", &[0, 0, 0, 1, 1, 2, 2]),
        ("ec4+2", &[0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]),
    ] {
        for lost in 0..3 {
            let disks = devices(domains.len(), 8 * MIB);
            let rt = Rt::simulated(1);
            let (handle, kept) = (rt.clone(), refs(&disks));
            let size = rt.block_on(async move {
                let create = Create {
                    domains: domains.iter().map(|d| format!("enclosure {d}")).collect(),
                    ..small(layout)
                };
                let array = Array::create(&handle, kept, create).await.unwrap();
                let size = array.room_for(4096);
                array.volume_create("v", volume(size)).await.unwrap();
                let v = array.volume("v").unwrap();
                for version in 1..3 {
                    fill(&v, size, BLOCK, version, layout).await;
                }
                size
            });
            rt.shutdown();
            let gone = (0..domains.len()).filter(|d| domains[*d] == lost);
            let what = format!("{layout} without domain {lost}");
            starts_without(&disks, &gone.collect::<Vec<_>>(), size, 2, &what);
        }
    }
}

/// Failure domains that cannot be lost in any case cost no room: a thick volume of all of it can be written also where
/// some have fewer devices than others (#153).
#[test]
fn domains_that_cannot_be_lost_cost_no_room() {
    for (layout, domains) in [
        ("ec4+2", &[0, 0, 0, 0, 0, 0, 1, 1, 1][..]),
        ("ec4+2", &[0, 1, 0, 1, 0, 1, 0]),
        ("ec3+1", &[0, 0, 0, 1, 1]),
        ("ec5+1", &[0, 0, 0, 1, 1, 2, 2]),
    ] {
        let disks = devices(domains.len(), 16 * MIB);
        let rt = Rt::simulated(1);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let create = Create {
                domains: domains.iter().map(|d| format!("enclosure {d}")).collect(),
                ..small(layout)
            };
            let (array, v, size) = all_thick(&handle, kept, create).await;
            let what = format!("{layout} on {domains:?}");
            let survives = array.status().await.health.survives_domain;
            assert_eq!(survives, Some(false), "{what}");
            for version in 1..3 {
                fill(&v, size, BLOCK, version, &what).await;
            }
            check(&v, size, 2, &what).await;
        });
        rt.shutdown();
    }
}

/// Where the domains can carry their loss only with all devices there, spare ones included, they constrain placement
/// until one is gone: a thick volume is promised no more than that holds (#157).
#[test]
fn domains_that_need_the_spare_devices_have_room() {
    for (layout, domains, spare) in [
        ("ec3+1", &[0, 0, 1, 1, 2, 2, 3][..], 1),
        ("ec2+1", &[0, 0, 0, 1, 1, 1, 2], 1),
        ("ec4+2", &[0, 0, 0, 1, 1, 1, 2, 2], 1),
    ] {
        let disks = devices(domains.len(), 10 * MIB);
        let rt = Rt::simulated(1);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let create = Create {
                domains: domains.iter().map(|d| format!("enclosure {d}")).collect(),
                spare,
                ..small(layout)
            };
            let (array, v, size) = all_thick(&handle, kept, create).await;
            let what = format!("{layout} on {domains:?}");
            let survives = array.status().await.health.survives_domain;
            assert_eq!(survives, Some(true), "{what}");
            for version in 1..3 {
                fill(&v, size, BLOCK, version, &what).await;
            }
            check(&v, size, 2, &what).await;
        });
        rt.shutdown();
    }
}

/// A full array that is overwritten here and there, with little kept for cleaning: commits write nodes of their own, and
/// where cleaning made one for every few blocks it gained nothing, and a thick volume got `NoSpace` (#181).
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

/// What devices that are gone cost is reconstructed into room that garbage takes: the cleaner had what it needs, and left
/// that to lie, while reconstruct waited for some slots more (#184).
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

/// A thin volume took its last block under a leaf that nothing was left for. With every device there what one had lost
/// stayed without redundancy then, as if devices were gone without which not all fits (#183).
#[test]
fn a_last_leaf_too_many_costs_no_redundancy() {
    let disks = devices(2, 20 * MIB);
    let rt = Rt::simulated(1);
    let (handle, kept) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let create = Create {
            slot_bytes: Some(512 << 10),
            strip_bytes: Some(128 << 10),
            ..small("raid1")
        };
        let array = Array::create(&handle, kept, create).await.unwrap();
        array.volume_create("thick", volume(2 * MIB)).await.unwrap();
        let options = thin_volume(512 * MIB);
        array.volume_create("v", options).await.unwrap();
        let v = array.volume("v").unwrap();
        let write = |n: u64| v.write(n * 6 * BLOCK, pattern(n, 1), false);
        let mut count = 0;
        while write(count).await.is_ok() {
            count += 1;
        }
        v.flush().await.unwrap();
        handle.sleep(100 * SECOND).await;
        let c = array.status().await.capacity;
        assert!(c.used_bytes + c.promised_bytes > c.usable_bytes, "{c:?}");
        // Little more is free than the cleaner wants.
        for n in 0.. {
            write(n % count).await.unwrap();
            v.flush().await.unwrap();
            if array.status().await.clean.free_slots <= 36 {
                break;
            }
        }
    });
    rt.shutdown();
    // Nobody knows any more where the columns on one device lie.
    let (kept, filter) = first_filtered(&disks);
    filter.add(Rule::within(
        OpKind::Read,
        128 << 10..136 << 10, // its slot table
        Effect::Fail(Fault::Media),
    ));
    let rt = Rt::simulated(2);
    let handle = rt.clone();
    rt.block_on(async move {
        let array = Array::import(&handle, kept, Import::default())
            .await
            .unwrap();
        filter.clear();
        array.wait_idle(&[]).await;
        assert_whole(&array, "imported").await;
    });
    rt.shutdown();
}

/// Slots that did not keep what was written are used again where volumes need the room that they were promised: what
/// a device loses for a while takes none of it for good (#161).
#[test]
fn slots_that_did_not_keep_what_was_written_are_tried_again() {
    let disks = devices(3, 8 * MIB);
    let (kept, filter) = first_filtered(&disks);
    let rt = Rt::simulated(1);
    let handle = rt.clone();
    rt.block_on(async move {
        let (array, v, size) = all_thick(&handle, kept, small("ec2+1")).await;
        fill(&v, size, BLOCK, 1, "at first").await;
        let unkept = |array: &Array| {
            let events = array.events(0);
            events.iter().filter(|e| e.kind == "not-kept").count()
        };
        // Strips of many slots are overwritten behind the array's back, and what heals them is lost.
        let bytes = disks[0].info().size_bytes;
        for part in 2..8 {
            let area = bytes / 8 * part..bytes / 8 * (part + 1);
            for at in area.clone().step_by(32 << 10) {
                disks[0].poke(at, &[0xA5; BLOCK as usize]);
            }
            filter.add(Rule::within(OpKind::Write, area, Effect::Lose));
            check(&v, size, 1, "while writes are lost").await;
            array.wait_idle(&[]).await;
            filter.clear();
        }
        assert!(unkept(&array) > 0);
        for version in 2..4 {
            fill(&v, size, BLOCK, version, "afterwards").await;
        }
        check(&v, size, 3, "afterwards").await;
    });
    rt.shutdown();
}

/// A device that never keeps what is written to a part of it takes room for good, also from slots that are tried again.
/// Where volumes were promised that room it is given up, as one that fails writes is, rather than clients be told that
/// there is no space (#180). Where they need none of it, it stays.
#[test]
fn a_device_whose_slots_keep_nothing_is_given_up_where_room_is_short() {
    let areas = [2..4, 2..5, 3..6];
    let given_up = areas.map(|eighths| given_up_for_losing_writes(&eighths));
    let known = given_up.iter().flatten().all(|device| *device == 0);
    assert!(known && given_up.contains(&Some(0)), "{given_up:?}");
}

/// Fills an array of volumes without a slot to spare, whose first device loses what is written to these eighths of it:
/// the device that was given up for it.
fn given_up_for_losing_writes(eighths: &Range<u64>) -> Option<u16> {
    let disks = devices(3, 8 * MIB);
    let (kept, filter) = first_filtered(&disks);
    let rt = Rt::simulated(1);
    let handle = rt.clone();
    let eighth = disks[0].info().size_bytes / 8;
    let area = eighth * eighths.start..eighth * eighths.end;
    let given_up = rt.block_on(async move {
        let (array, v, size) = all_thick(&handle, kept, small("ec2+1")).await;
        filter.add(Rule::within(OpKind::Write, area, Effect::Lose));
        for percent in (50..=100).step_by(10).chain([100; 4]) {
            let size = size * percent / 100 / BLOCK * BLOCK;
            fill(&v, size, BLOCK, percent, "while writes are lost").await;
            check(&v, size, percent, "while writes are lost").await;
            array.wait_idle(&[]).await;
        }
        let events = array.events(0);
        let given_up = events.iter().find(|e| e.text.contains("it is given up"));
        let given_up = given_up.and_then(|e| e.device);
        let state = array.status().await.devices[0].state;
        assert_eq!(state == DeviceState::Failed, given_up.is_some());
        given_up
    });
    rt.shutdown();
    given_up
}

/// Failure domains of different sizes fill unequally. Once devices of the small ones are gone, what a thick volume
/// was promised needs the room that is left in the large one as well (#106).
#[test]
fn a_full_array_goes_on_without_devices_of_small_domains() {
    let domains = [0, 0, 0, 0, 1, 1, 1, 2, 2, 2];
    for percent in [80, 84, 88] {
        let disks = devices(domains.len(), 7 * MIB);
        let rt = Rt::simulated(1);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let create = Create {
                domains: domains.iter().map(|d| format!("enclosure {d}")).collect(),
                ..small("ec4+2")
            };
            let (array, v, size) = mostly_thick(&handle, kept, create, percent).await;
            fill(&v, size, BLOCK, 1, "all there").await;
            for device in [4, 7] {
                array.fail(device, false).await.unwrap();
                array.wait_idle(&[Work::Rebuild]).await;
            }
            let status = array.status().await;
            assert_eq!(status.state, ArrayState::Optimal);
            assert!(!status.capacity.overpromised);
            // Here and there, so that every segment keeps most of what it holds.
            let blocks = size / BLOCK;
            for n in 0..2 * blocks {
                let block = n * 7919 % blocks;
                let done = v.write(block * BLOCK, pattern(block, 2), false).await;
                let what = format!("{percent} % full, write {n} of {}", 2 * blocks);
                assert!(done.is_ok(), "{what}: {done:?}");
            }
            check(&v, size, 2, "without two").await;
            assert_eq!(array.status().await.state, ArrayState::Optimal);
        });
        rt.shutdown();
    }
}

/// One device is gone and all is redundant again, on the others; then a second goes, which leaves too little
/// room for that. What is written from then on has to do without one column, not two: one device more may go.
#[test]
fn shares_are_those_of_the_devices_that_had_room() {
    let (size, disks) = (37 * MIB / 2, devices(10, 7 * MIB));
    let rt = Rt::simulated(1);
    let (handle, kept) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let array = Array::create(&handle, kept, small("ec4+2")).await.unwrap();
        array.volume_create("v", volume(size)).await.unwrap();
        let v = array.volume("v").unwrap();
        fill(&v, size, BLOCK, 1, "all there").await;
        array.fail(6, false).await.unwrap();
        array.wait_idle(&[Work::Rebuild]).await;
        let status = array.status().await;
        assert_eq!(status.state, ArrayState::Optimal);
        assert!(!status.capacity.overpromised);
        array.fail(4, false).await.unwrap();
        fill(&v, size, BLOCK, 2, "without two").await;
        let status = array.status().await;
        assert!(status.capacity.overpromised);
    });
    rt.shutdown();
    for gone in [0, 9] {
        starts_without(&disks, &[4, 6, gone], size, 2, "without three");
    }
}

/// Reconstruct takes long on devices that read slowly, and what it has still to look at dies meanwhile: its room
/// comes back with the next commit, not with the end of reconstruct.
#[test]
fn what_dies_while_reconstruct_runs_is_free() {
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
        // Two commits: one that kills what was replaced, one that frees what that made empty.
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

/// The room that is kept for cleaning does not grow at the cost of what volumes were promised.
#[test]
fn a_reserve_takes_nothing_that_was_promised() {
    let disks = devices(6, 16 * MIB);
    let rt = Rt::simulated(1);
    let handle = rt.clone();
    rt.block_on(async move {
        let array = Array::create(&handle, refs(&disks), small("ec4+2"));
        let array = array.await.unwrap();
        let size = array.room_for(4096) / 4 * 3 / BLOCK * BLOCK;
        array.volume_create("v", volume(size)).await.unwrap();
        array.set("clean.reserve", "25%").await.unwrap();
        let refused = array.set("clean.reserve", "50%").await.unwrap_err();
        let Error::Promised { most } = refused else {
            panic!("{refused}");
        };
        assert!((26..50).contains(&most), "{most}");
        array
            .set("clean.reserve", &format!("{most}%"))
            .await
            .unwrap();
        assert!(
            array
                .set("clean.reserve", &format!("{}%", most + 1))
                .await
                .is_err()
        );
        array.set("clean.reserve", "2%").await.unwrap();
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
            handle.sleep(40 * SECOND).await; // a commit
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

/// #125: the segments that streams of many shards were filling took more of a small array than is reckoned for
/// them: a thick volume that had all its space got `NoSpace` as it was overwritten.
#[test]
fn an_array_of_many_shards_can_be_overwritten() {
    for shards in [1, 2, 4] {
        let disks = devices(4, 16 * MIB);
        let rt = Rt::simulated(1);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let settings = Settings {
                shards,
                ..Settings::default()
            };
            let create = Create {
                settings,
                ..small("ec2+1")
            };
            let (_array, v, size) = all_thick(&handle, kept, create).await;
            let v = Rc::new(v);
            let writers = (0..4).map(|writer: u64| {
                let v = v.clone();
                handle.spawn(async move {
                    let blocks = size / BLOCK;
                    for number in 0..3 * blocks / 4 {
                        let block = (number * 7919 + writer * blocks / 4) % blocks;
                        let done = v.write(block * BLOCK, pattern(block, number), false).await;
                        assert!(done.is_ok(), "{shards} shards, write {number}: {done:?}");
                    }
                })
            });
            for writer in writers.collect::<Vec<_>>() {
                writer.await;
            }
        });
        rt.shutdown();
    }
}

/// Segments of nodes that the journal had no room to tell of were held until it had: dead ones too, which took the room
/// that commits need before it had any (#140).
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

/// Reconstruct leaves metadata the room to be redundant too: data took a group's last slots, for more than was promised,
/// and metadata, which is on all devices, stayed degraded (#142).
#[test]
fn metadata_is_redundant_again_beside_data() {
    for percent in [90, 95] {
        let disks = devices(6, 16 * MIB);
        let rt = Rt::simulated(1);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let create = Create {
                slot_bytes: Some(32 << 10),
                strip_bytes: None,
                spare: 2,
                ..small("raid50:2")
            };
            let (array, v, size) = mostly_thick(&handle, kept, create, percent).await;
            array.fail(2, false).await.unwrap();
            scatter(&handle, &v, size, 1, "one is gone").await;
            array.fail(4, false).await.unwrap();
            array.wait_idle(&[]).await;
            let status = array.status().await;
            assert_eq!(status.state, ArrayState::Optimal, "{percent} %: {status:?}");
            check(&v, size, 1, "both are gone").await;
        });
        rt.shutdown();
    }
}

/// A batch waited for room in the journal that rows took whose course goes on with a stripe begun since: one that only the
/// next batch closes. Writers waited for ever (#143).
#[test]
fn a_batch_waits_for_nothing_that_the_next_one_brings() {
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

/// A group that lost more devices than another has room while that one is full: data that cleaning moved into it, for the
/// redundancy it gives, took the room in which it cleans itself, and metadata, which is on all devices, grows (#141).
#[test]
fn what_cleaning_moves_stays_in_its_group() {
    for percent in [80, 90] {
        let disks = devices(8, 16 * MIB);
        let rt = Rt::simulated(1);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let create = small("raid60:2");
            let (array, v, size) = mostly_thick(&handle, kept, create, percent).await;
            scatter(&handle, &v, size, 1, "all there").await;
            for device in [0, 1] {
                array.fail(device, false).await.unwrap();
            }
            for version in 2..6 {
                scatter(&handle, &v, size, version, "two gone").await;
                array.wait_idle(&[]).await;
                let status = array.status().await;
                let in_use = status.devices[2..].iter();
                let free = in_use.map(|d| (d.size_bytes - d.used_bytes) / status.slot_bytes);
                let reserve = status.clean.reserve_slots as u64 / 6;
                assert!(
                    free.min() >= Some(reserve - reserve / 6), // few segments are being filled
                    "{percent} %, version {version}: {status:?}"
                );
            }
            check(&v, size, 5, "two gone").await;
        });
        rt.shutdown();
    }
}

/// What a group has no room for to be whole again is written anew in one that has, beyond what cleaning and volumes need
/// there: nothing moved it before its last redundancy was gone (#145).
#[test]
fn what_one_group_cannot_take_whole_another_does() {
    for (percent, narrow) in [
        (85, "critical"),
        (90, "critical"),
        (90, "never"),
        (95, "critical"),
    ] {
        // The first group fills further than the second, and both are left with five devices as large as the smallest.
        let disks = devices_of(&[10, 15, 15, 10, 15, 15, 10, 15, 10, 10, 15, 15]);
        let rt = Rt::simulated(1);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let create = Create {
                spare: 2,
                ..small("raid60:2")
            };
            let (array, v, size) = mostly_thick(&handle, kept, create, percent).await;
            array.set("reconstruct.narrow", narrow).await.unwrap();
            array.fail(11, false).await.unwrap();
            scatter(&handle, &v, size, 1, "one gone").await;
            array.fail(5, false).await.unwrap();
            array.wait_idle(&[]).await;
            assert_whole(&array, &format!("{percent} % {narrow}")).await;
            scatter(&handle, &v, size, 2, "two gone").await;
            check(&v, size, 2, "two gone").await;
        });
        rt.shutdown();
    }
}

/// The segment of nodes that is being filled may lack a column for want of room. Once there is room for narrower ones
/// nothing replaced it until the next commit, and nothing then moved what it held (#146).
#[test]
fn an_open_segment_of_nodes_is_replaced_by_a_redundant_one() {
    for (percent, after) in [(85, 1), (90, 0), (90, 1), (90, 2), (95, 1)] {
        let disks = devices(6, 7 * MIB);
        let rt = Rt::simulated(1);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let create = Create {
                strip_bytes: None,
                spare: 2,
                ..small("raid50:2")
            };
            let (array, v, size) = all_thin(&handle, kept, create).await;
            let size = size / 100 * percent / BLOCK * BLOCK;
            array.fail(5, false).await.unwrap();
            scatter(&handle, &v, size, 1, "one gone").await;
            array.fail(0, false).await.unwrap();
            for n in 0..after {
                scatter(&handle, &v, size / 2, 2 + n, "two gone").await;
            }
            array.wait_idle(&[]).await;
            assert_whole(&array, &format!("{percent} % {after}")).await;
        });
        rt.shutdown();
    }
}

/// Where devices are gone, metadata gives back what full redundancy takes of it once what volumes were promised needs that:
/// there was room while a thick volume had not been written yet, which then got `NoSpace` (#148). Until then it is redundant.
#[test]
fn narrow_metadata_leaves_what_was_promised() {
    for (percent, nodes) in [(95, 50), (95, 100), (95, 200), (80, 400)] {
        let disks = devices(6, 10 * MIB);
        let rt = Rt::simulated(1);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let create = Create {
                strip_bytes: Some(8 << 10),
                ..small("ec4+2")
            };
            let (array, v, size) = mostly_thick(&handle, kept, create, percent).await;
            array.set("clean.reserve", "4%").await.unwrap();
            let thin = thin_volume(1 << 30);
            array.volume_create("thin", thin).await.unwrap();
            let thin = array.volume("thin").unwrap();
            let mut written = 0;
            for n in 0..nodes {
                written += u64::from(thin.write(far_apart(n), pattern(n, 1), false).await.is_ok());
            }
            for device in [2, 4] {
                array.fail(device, false).await.unwrap();
            }
            let what = format!("{percent} %, {written} blocks far apart");
            array.wait_idle(&[]).await;
            let status = array.status().await;
            assert_eq!(status.state, ArrayState::Optimal, "{what}: {status:?}");
            for version in 1..4 {
                scatter(&handle, &v, size, version, &what).await;
            }
            check(&v, size, 3, &what).await;
        });
        rt.shutdown();
    }
}

/// What cleaning leaves alone is less than what is kept for it: where that was less than a twentieth, and as much of each
/// segment was dead, a volume that was promised all the room got `NoSpace` (#149).
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

/// What lost its last redundancy is written anew only where that leaves cleaning its room: a full array that two devices
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

/// What is written anew for its redundancy leaves alone what the cleaner would take back: an array with more promised
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
            // Some of it is redundant again: what was promised leaves room for that.
            assert_eq!(exposure[0].len(), 2, "{exposure:?}");
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

/// Data segments are found to be cleaned, however many segments of nodes have more that is dead: hundreds of these, less
/// than half dead, hid them from the cleaner, and a volume that was promised its space got `NoSpace` for good.
#[test]
fn many_segments_of_nodes_hide_no_data_from_the_cleaner() {
    let disks = devices(4, 64 * MIB);
    let rt = Rt::simulated(1);
    let (handle, kept) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let create = Create {
            slot_bytes: Some(32 << 10),
            ..small("ec2+1")
        };
        let array = Array::create(&handle, kept, create).await.unwrap();
        let thin = thin_volume(4 << 30);
        array.set("clean.reserve", "2%").await.unwrap();
        array.volume_create("thin", thin).await.unwrap();
        let thin = array.volume("thin").unwrap();
        // One block under each leaf, which covers 128.
        let leaves = 3500;
        let write = async |leaf: u64, version: u64| {
            let block = leaf * 128;
            let done = thin.write(block * BLOCK, pattern(block, version), false);
            assert!(done.await.is_ok(), "leaf {leaf}, version {version}");
        };
        for leaf in 0..leaves {
            write(leaf, 1).await;
        }
        handle.sleep(40 * SECOND).await; // a commit
        let size = array.room_for(4096) / BLOCK * BLOCK;
        array.volume_create("v", volume(size)).await.unwrap();
        let v = array.volume("v").unwrap();
        fill(&v, size, BLOCK, 1, "all of it").await;
        let blocks = size / BLOCK;
        for n in 0..blocks / 8 {
            let block = n * 7919 % blocks;
            let done = v.write(block * BLOCK, pattern(block, 2), false).await;
            assert!(done.is_ok(), "write {n}: {done:?}");
        }
        // Of nearly 300 segments of nodes each is less than half dead, which is too little to clean it, and more than
        // any data segment is.
        for leaf in (0..leaves).filter(|leaf| leaf % 5 < 2) {
            write(leaf, 2).await;
        }
        handle.sleep(40 * SECOND).await; // a commit
        scatter(&handle, &v, size, 3, "beside nodes").await;
        check(&v, size, 3, "beside nodes").await;
    });
    rt.shutdown();
}

/// A run of holes is folded in steps where room is short, and goes on where it was written over meanwhile: each step took
/// the same leaves as the one before, for ever, and with them the journal, all writers and export stood still.
#[test]
fn holes_that_were_written_over_are_folded_to_the_end() {
    for count in [3900, 4000, 4200] {
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
            handle.sleep(40 * SECOND).await; // a commit
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

/// A volume so large that its map is high: a block that is written far from others takes up to six nodes of its own, which
/// were counted as one where writers were let in, and as three where a commit was to fit. A thick volume lost the space
/// that it had been promised, or the array stopped with no room left to commit in, and all its devices there.
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

/// A full array of devices of different sizes, with little kept for cleaning, loses some, and a little of each segment
/// is overwritten: segments without a column of those that are gone are worth cleaning by what they hold. Reckoned as if
/// all new ones had as many columns as the widest none was, and a thick volume got `NoSpace` (#176).
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
