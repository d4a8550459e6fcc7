//! Layouts of several groups: each may lose M devices, at the same time as the others.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::rc::Rc;

use ashlar_device::{Delay, DelayFilter, FaultFilter, MemDevice};
use ashlar_engine::Work;
use ashlar_engine::status::ArrayState;
use ashlar_engine::{Array, Create, Import, Volume};
use ashlar_format::slot::{SegmentKind, SlotHeader};
use ashlar_format::superblock::Superblock;
use ashlar_rt::{Nanos, Rt, SECOND};

use crate::common::room::{all_promised, assert_whole, devices_of, mostly_thick, put, scatter};
use crate::common::{self, BLOCK, devices, image, pattern, refs, small, volume, without};

const MIB: u64 = 1 << 20;

async fn check(v: &Volume, blocks: u64) {
    for block in 0..blocks {
        let found = v.read(block * BLOCK, BLOCK as usize).await.unwrap();
        assert_eq!(found[..], pattern(block, 1)[..], "block {block}");
    }
}

/// The power goes, and with it M devices of every group: all data are still readable, so must be what leads to
/// them.
#[test]
fn every_group_may_lose_m_devices_at_once() {
    for (layout, count, gone) in [
        ("raid10", 8, &[0, 3, 5][..]),
        ("raid50:3", 9, &[1, 4, 8]),
        ("raid60:2", 12, &[0, 5, 6, 7]),
    ] {
        let disks = devices(count, 16 * MIB);
        let rt = Rt::simulated(1);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let array = Array::create(&handle, kept, small(layout)).await.unwrap();
            array.volume_create("v", volume(4 * MIB)).await.unwrap();
            let v = array.volume("v").unwrap();
            for block in 0..600 {
                v.write(block * BLOCK, pattern(block, 1), false)
                    .await
                    .unwrap();
            }
            v.flush().await.unwrap();
        });
        rt.shutdown();
        let rt = Rt::simulated(2);
        let (handle, kept) = (rt.clone(), without(&disks, gone));
        rt.block_on(async move {
            let array = Array::import(&handle, kept, Import::default()).await;
            let array = array.unwrap_or_else(|error| panic!("{layout}: {error}"));
            check(&array.volume("v").unwrap(), 600).await;
        });
        rt.shutdown();
    }
}

/// A pair has one device left. What is acknowledged from then on has two copies all the same, in the journal
/// too: without that device nothing is missing.
#[test]
fn a_pair_with_one_device_left_holds_no_record_alone() {
    let disks = devices(4, 16 * MIB);
    let rt = Rt::simulated(1);
    let (handle, kept) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let array = Array::create(&handle, kept, small("raid10")).await.unwrap();
        array.volume_create("v", volume(4 * MIB)).await.unwrap();
        array.fail(0, false).await.unwrap();
        array.wait_idle(&[Work::Rebuild]).await;
        assert_eq!(array.status().await.state, ArrayState::Optimal);
        let v = array.volume("v").unwrap();
        for block in 0..20 {
            v.write(block * BLOCK, pattern(block, 1), true)
                .await
                .unwrap();
        }
    });
    rt.shutdown();
    let rt = Rt::simulated(2);
    let (handle, kept) = (rt.clone(), without(&disks, &[0, 1]));
    rt.block_on(async move {
        let array = Array::import(&handle, kept, Import::default()).await;
        check(&array.unwrap().volume("v").unwrap(), 20).await;
    });
    rt.shutdown();
}

/// The segments that headers on a device name.
fn segments_on(disk: &MemDevice) -> BTreeSet<u64> {
    let image = image(disk);
    let size = Superblock::encoded_bytes(&image).unwrap();
    let array = Superblock::decode(&image[..size]).unwrap().array;
    let headers = image.chunks(BLOCK as usize);
    let headers = headers.filter_map(|block| SlotHeader::decode(&array, 16, block).ok());
    let data = headers.filter(|h| h.entry.kind == SegmentKind::Data);
    data.map(|header| header.entry.segment).collect()
}

/// A segment's last column goes while a missing one is computed from it: no other gets a slot in another group (#162).
#[test]
fn columns_stay_in_their_group() {
    for moment in 4..12 {
        last_column_goes(moment * SECOND / 4);
    }
}

/// Of two devices left in a group one has lost its tables, and the other goes so long after the import.
fn last_column_goes(moment: Nanos) {
    // The other group has more room in the end: what was written there, first for that, is trimmed.
    let size = |device| if device < 4 { 8 * MIB } else { 16 * MIB };
    let made = (0..8).map(|i| Rc::new(MemDevice::new(&format!("mem{i}"), size(i))));
    let disks: Vec<_> = made.collect();
    let rt = Rt::simulated(1);
    let (handle, kept) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let create = Array::create(&handle, kept, small("raid70:2"));
        let array = create.await.unwrap();
        array.volume_create("v", volume(8 * MIB)).await.unwrap();
        let v = array.volume("v").unwrap();
        for block in 0..2000 {
            let bytes = pattern(block, 1);
            v.write(block * BLOCK, bytes, false).await.unwrap();
        }
        v.trim(0, 1750 * BLOCK, false).await.unwrap();
        array.wait_idle(&[]).await;
        array.export().await.unwrap();
    });
    rt.shutdown();
    let blocks = image(&disks[2]);
    for (block, at) in blocks
        .chunks(BLOCK as usize)
        .zip((0..).step_by(BLOCK as usize))
    {
        if block.starts_with(b"ASHTABLE") {
            disks[2].poke(at, &[0; BLOCK as usize]);
        }
    }
    let in_group = segments_on(&disks[3]);
    assert!(!in_group.is_empty());
    let rt = Rt::simulated(2);
    let (handle, mut kept) = (rt.clone(), without(&disks, &[0, 1]));
    let last = FaultFilter::new(disks[3].clone());
    let slow = |device, read, write| {
        let delay = Delay {
            read,
            write,
            ..Delay::default()
        };
        DelayFilter::new(&rt, device, delay)
    };
    kept[1] = slow(last.clone(), SECOND / 2, 0);
    // What is written there stays for a while.
    for other in &mut kept[2..] {
        *other = slow(other.clone(), 0, SECOND / 4);
    }
    rt.block_on(async move {
        let array = Array::import(&handle, kept, Import::default()).await;
        let array = array.unwrap();
        handle.sleep(moment).await;
        last.set_offline(true);
        array.fail(3, true).await.unwrap();
        for _ in 0..20 {
            handle.sleep(SECOND / 10).await;
            for other in &disks[4..] {
                let both = &segments_on(other) & &in_group;
                assert!(both.is_empty(), "{both:?} are in both groups");
            }
        }
    });
    rt.shutdown();
}

/// A device of a group is gone, room is short.
#[test]
fn groups_go_on_without_a_device_where_room_is_short() {
    for layout in ["raid60:2", "raid50:2", "raid10"] {
        let disks = devices(8, 8 * MIB);
        let rt = Rt::simulated(1);
        let handle = rt.clone();
        rt.block_on(async move {
            let (array, v, blocks) = all_promised(&handle, &disks, layout).await;
            for block in 0..blocks {
                put(&v, block, 1).await.unwrap();
            }
            v.flush().await.unwrap();
            array.fail(0, false).await.unwrap();
            for version in 2..4 {
                for block in 0..blocks {
                    let done = put(&v, block, version).await;
                    assert!(
                        done.is_ok(),
                        "{layout}: block {block} version {version}: {done:?}"
                    );
                }
                v.flush().await.unwrap();
            }
        });
        rt.shutdown();
    }
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
        common::fill(&v, size, BLOCK, 1, "all there").await;
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
        common::check(&v, size, 3, "without two of each group").await;
    });
    rt.shutdown();
}

/// A group that lost more devices than another has room while that one is full: data that cleaning moved into it, for
/// the redundancy it gives, took the room in which it cleans itself, and metadata, which is on all devices, grows
/// (#141).
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
            common::check(&v, size, 5, "two gone").await;
        });
        rt.shutdown();
    }
}

/// What a group has no room for to be whole again is rewritten in one that has, beyond what cleaning and volumes need
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
            common::check(&v, size, 2, "two gone").await;
        });
        rt.shutdown();
    }
}
