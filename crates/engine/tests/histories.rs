//! An array that lost its newest root goes on from an older one. What the lost history left in the rings
//! must not be taken for a part of the new one.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::rc::Rc;

use ashlar_device::{DeviceRef, Effect, Fault, FaultFilter, MemDevice, OpKind, Rule, TraceFilter};
use ashlar_engine::status::ArrayState;
use ashlar_engine::{Array, Error, Import, VolumeOptions, wipe};
use ashlar_format::geometry::{ROOT_BYTES, ROOT_COUNT};
use ashlar_format::slot::TablePage;
use ashlar_format::superblock::Superblock;
use ashlar_rt::{Buf, Rt, Slice};

use crate::common::{
    check, devices, fill, geometry, image, refs, run, small, tables, volume, without,
};

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;
/// The roots of a device, each with its place.
fn roots(disk: &MemDevice) -> Vec<(u64, Vec<u8>)> {
    let geometry = geometry(disk);
    let root = |entry| {
        let offset = geometry.root_offset(entry);
        let mut bytes = vec![0; usize::try_from(ROOT_BYTES).unwrap()];
        disk.peek(offset, &mut bytes);
        (offset, bytes)
    };
    (0..ROOT_COUNT).map(root).collect()
}

/// Puts roots back.
fn put_roots(disk: &MemDevice, roots: &[(u64, Vec<u8>)]) {
    for (offset, bytes) in roots {
        disk.poke(*offset, bytes);
    }
}

fn block(byte: u8) -> Slice {
    Buf::copy_of(&[byte; BLOCK]).freeze()
}

fn options(degraded: bool) -> Import {
    Import {
        degraded,
        ..Import::default()
    }
}

/// Opens the array, writes blocks durably one by one, and dies. The first byte of the first 16 blocks as
/// it was found.
fn session(disk: &Rc<MemDevice>, degraded: bool, writes: &[(u64, u8)]) -> Result<Vec<u8>, Error> {
    // Two sessions have no identity in common.
    let rt = Rt::simulated(writes.first().map_or(0, |(number, _)| *number));
    let (handle, device, writes) = (rt.clone(), disk.clone() as DeviceRef, writes.to_vec());
    let found = rt.block_on(async move {
        let array = Array::import(&handle, vec![device], options(degraded)).await?;
        let told = array.events(0).iter().any(|e| e.kind == "journal-lost");
        assert_eq!(told, degraded, "what is given up is told");
        let v = array.volume("v").unwrap();
        let found = v.read(0, 16 * BLOCK).await.unwrap();
        for (number, byte) in writes {
            let offset = number * BLOCK as u64;
            v.write(offset, block(byte), true).await.unwrap();
        }
        Ok(found.chunks(BLOCK).map(|b| b[0]).collect())
    });
    rt.shutdown();
    found
}

#[test]
fn records_of_a_lost_history_are_not_replayed_into_another() {
    let disk = Rc::new(MemDevice::new("mem0", 16 * MIB));
    let rt = Rt::simulated(1);
    let (handle, device) = (rt.clone(), disk.clone() as DeviceRef);
    rt.block_on(async move {
        let array = Array::create(&handle, vec![device], small("raid0"))
            .await
            .unwrap();
        array.volume_create("v", volume(MIB)).await.unwrap();
        let v = array.volume("v").unwrap();
        v.write(0, block(1), true).await.unwrap();
    });
    rt.shutdown();
    let older = roots(&disk);

    // A session whose root is lost with all it says, though its records stand in the journal.
    session(&disk, false, &[(1, 2), (2, 2), (3, 2)]).unwrap();
    put_roots(&disk, &older);
    // Another, which begins where the lost one began.
    let found = session(&disk, false, &[(4, 3)]).unwrap();
    assert_eq!(found[..5], [1, 0, 0, 0, 0], "the lost session is gone");

    // Its records are of an epoch of the same number, and of another identity.
    let found = session(&disk, false, &[(5, 4)]).unwrap();
    assert_eq!(
        found[..6],
        [1, 0, 0, 0, 3, 0],
        "nothing of the lost session"
    );
    // From here on it is one history again.
    for round in 6..12 {
        let found = session(&disk, false, &[(u64::from(round), round)]).unwrap();
        let mut expected = vec![1, 0, 0, 0, 3, 4];
        expected.extend(6..round);
        assert_eq!(found[..expected.len()], expected[..]);
    }
}

/// A root was lost with a volume that it had made, but not the journal's record of what was written there:
/// the next volume must not be given that (#79).
#[test]
fn a_new_volume_is_not_given_what_a_lost_one_was_written() {
    let disk = Rc::new(MemDevice::new("mem0", 16 * MIB));
    let rt = Rt::simulated(1);
    let (handle, device) = (rt.clone(), disk.clone() as DeviceRef);
    let kept = disk.clone();
    let older = rt.block_on(async move {
        let array = Array::create(&handle, vec![device], small("raid0"))
            .await
            .unwrap();
        array.volume_create("v", volume(MIB)).await.unwrap();
        let older = roots(&kept);
        array.volume_create("lost", volume(MIB)).await.unwrap();
        // What is not merged yet keeps the journal, also over the next checkpoints.
        let v = array.volume("v").unwrap();
        v.write(0, block(6), true).await.unwrap();
        let lost = array.volume("lost").unwrap();
        lost.write(0, block(7), true).await.unwrap();
        older
    });
    rt.shutdown();
    put_roots(&disk, &older);

    for round in 2..5 {
        let rt = Rt::simulated(round);
        let (handle, device) = (rt.clone(), disk.clone() as DeviceRef);
        rt.block_on(async move {
            let array = Array::import(&handle, vec![device], options(true))
                .await
                .unwrap();
            assert!(array.volume("lost").is_none());
            if round == 2 {
                let thin = VolumeOptions {
                    thin: true, // making it merges nothing
                    ..volume(MIB)
                };
                array.volume_create("new", thin).await.unwrap();
            }
            let found = array.volume("new").unwrap().read(0, BLOCK).await.unwrap();
            assert_eq!(found[0], 0, "import {round}");
        });
        rt.shutdown();
    }
}

/// #115: a device lost its slot table, and was given another column of a segment; then an older copy of it turned
/// up in its place, whose table had the one it was made with. Both counted: without that device two were gone.
#[test]
fn an_older_copy_of_a_device_holds_one_column_of_a_segment() {
    let (disks, size) = (devices(6, 16 * MIB), 2 * MIB);
    let session = |gone: &[usize], narrow: &'static str| {
        let rt = Rt::simulated(1);
        let (handle, left) = (rt.clone(), without(&disks, gone));
        rt.block_on(async move {
            let array = Array::import(&handle, left, options(false)).await.unwrap();
            check(&array.volume("v").unwrap(), size, 1, "read").await;
            array.set("reconstruct.narrow", narrow).await.unwrap();
            array.wait_idle(&[]).await;
            array.export().await.unwrap();
        });
        rt.shutdown();
    };
    let rt = Rt::simulated(1);
    let (handle, all) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let array = Array::create(&handle, all, small("ec4+2")).await.unwrap();
        array.volume_create("v", volume(size)).await.unwrap();
        let v = array.volume("v").unwrap();
        fill(&v, size, BLOCK as u64, 1, "all there").await;
        array.export().await.unwrap();
    });
    rt.shutdown();
    let copy = image(&disks[4]);
    for table in tables(&disks[4]) {
        let length = usize::try_from(table.end - table.start).unwrap();
        disks[4].poke(table.start, &vec![0xA5; length]);
    }
    session(&[2], "never");
    disks[4].poke(0, &copy);
    session(&[2], "always");
    session(&[2, 4, 5], "never");
}

/// #121: an import wrote the last record of the journal again, where it lay. Power that went meanwhile could take
/// with it what had been acknowledged.
#[test]
fn an_import_writes_no_record_that_is_there() {
    let disk = Rc::new(MemDevice::new("mem0", 16 * MIB));
    let rt = Rt::simulated(1);
    let (handle, device) = (rt.clone(), disk.clone() as DeviceRef);
    rt.block_on(async move {
        let array = Array::create(&handle, vec![device], small("raid0"));
        let array = array.await.unwrap();
        array.volume_create("v", volume(MIB)).await.unwrap();
        let v = array.volume("v").unwrap();
        for number in 0..3 {
            v.write(number * BLOCK as u64, block(7), true)
                .await
                .unwrap();
        }
    });
    rt.shutdown();
    let held = image(&disk);
    let rt = Rt::simulated(2);
    let trace = TraceFilter::new(&rt, disk.clone() as DeviceRef, 10_000);
    let (handle, device) = (rt.clone(), trace.clone() as DeviceRef);
    rt.block_on(async move {
        let imported = Array::import(&handle, vec![device], options(false)).await;
        imported.unwrap().export().await.unwrap();
    });
    rt.shutdown();
    let of = geometry(&disk);
    let rings = of.delta_ring_offset()..of.data_ring_offset() + of.data_ring_bytes;
    let mut written = 0;
    for entry in trace.entries() {
        if entry.op == OpKind::Write && rings.contains(&entry.offset) {
            let at = usize::try_from(entry.offset).unwrap();
            let before = &held[at..at + usize::try_from(entry.length).unwrap()];
            assert!(before.iter().all(|b| *b == 0), "a record at {at}");
            written += 1;
        }
    }
    assert!(written > 0, "records were written elsewhere");
}

/// #122: of a page of a device's slot table both copies were newer than the root, as that root's successors are
/// lost. One of them stayed, and a root to come would have made its claims valid.
#[test]
fn nothing_newer_than_the_root_stays_in_a_slot_table() {
    const SIZE: u64 = 4 * MIB;
    let disks = devices(4, 16 * MIB);
    // Both copies of the first device's second page: nothing is allocated there before the first page is full.
    let copies = |disk: &MemDevice| {
        [0, 1].map(|copy| {
            let mut page = vec![0; BLOCK];
            disk.peek(geometry(disk).page_offset(1, copy), &mut page);
            page
        })
    };
    // The checkpoints that wrote them.
    let pages = |disk: &MemDevice| {
        let mut bytes = vec![0; BLOCK];
        disk.peek(0, &mut bytes);
        bytes.resize(Superblock::encoded_bytes(&bytes).unwrap(), 0);
        disk.peek(0, &mut bytes);
        let array = Superblock::decode(&bytes).unwrap().array;
        copies(disk).map(|page| {
            TablePage::decode(&array, 0, 1, 16, &page).map_or(0, |page| page.checkpoint)
        })
    };
    let rt = Rt::simulated(1);
    let (handle, all) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let array = Array::create(&handle, all, small("ec2+1")).await.unwrap();
        array.volume_create("v", volume(SIZE)).await.unwrap();
        let v = array.volume("v").unwrap();
        fill(&v, SIZE, 64 << 10, 1, "before").await;
        array.volume_create("rest", volume(4 * SIZE)).await.unwrap();
        array.export().await.unwrap();
    });
    rt.shutdown();
    let before: Vec<_> = disks.iter().map(|disk| image(disk)).collect();
    let session = |version| {
        let rt = Rt::simulated(2);
        let (handle, all) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let array = Array::import(&handle, all, options(false)).await.unwrap();
            let v = array.volume("v").unwrap();
            check(&v, SIZE, version, "found").await;
            if version == 1 {
                let rest = array.volume("rest").unwrap();
                fill(&rest, 4 * SIZE, 64 << 10, 1, "written").await;
            }
            fill(&v, SIZE, 64 << 10, version + 1, "written").await;
            array.export().await.unwrap();
        });
        rt.shutdown();
    };
    for version in 1..4 {
        session(version);
    }
    let newer = pages(&disks[0]);
    let later = copies(&disks[0]);
    for (disk, bytes) in disks.iter().zip(&before) {
        disk.poke(0, bytes);
    }
    let root = pages(&disks[0]).into_iter().max();
    assert!(newer.into_iter().min() > root);
    for (copy, page) in (0..).zip(&later) {
        disks[0].poke(geometry(&disks[0]).page_offset(1, copy), page);
    }
    let rt = Rt::simulated(2);
    let (handle, all) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let array = Array::import(&handle, all, options(false)).await.unwrap();
        check(&array.volume("v").unwrap(), SIZE, 1, "found").await;
    });
    rt.shutdown();
    let left = pages(&disks[0]);
    assert!(
        left.into_iter().max() < newer.into_iter().min(),
        "{left:?} of {newer:?}, {root:?} before"
    );
}

/// #192: an import could not read a device's slot table and gave its slots to others, of which no record told yet when
/// the power went. The next one could read it, and took columns that had been written over for sound: with the loss of
/// one more device, within parity, data was lost.
#[test]
fn a_slot_table_that_could_not_be_read_does_not_come_back() {
    const SIZE: u64 = MIB;
    let disks = devices(4, 4 * MIB);
    let rt = Rt::simulated(1);
    let (handle, all) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let array = Array::create(&handle, all, small("ec2+1")).await.unwrap();
        array.volume_create("v", volume(SIZE)).await.unwrap();
        fill(&array.volume("v").unwrap(), SIZE, 64 << 10, 1, "before").await;
        array.volume_create("new", volume(SIZE)).await.unwrap();
        array.export().await.unwrap();
    });
    rt.shutdown();
    let before: Vec<_> = disks.iter().map(|disk| image(disk)).collect();

    // Whether the session was over before it had taken so many polls.
    let blind_session = |polls| {
        let rt = Rt::simulated(2);
        let (handle, mut seen) = (rt.clone(), refs(&disks));
        let filter = FaultFilter::new(seen[0].clone());
        for table in tables(&disks[0]) {
            filter.add(Rule::within(OpKind::Read, table, Effect::Corrupt));
        }
        seen[0] = filter;
        let done = rt.run_for(polls, async move {
            let array = Array::import(&handle, seen, options(false)).await.unwrap();
            let new = array.volume("new").unwrap();
            new.write(0, run(0, 64, 2), false).await.unwrap();
            new.flush().await.unwrap();
        });
        rt.shutdown();
        done.is_ok()
    };
    for polls in 0.. {
        for (disk, bytes) in disks.iter().zip(&before) {
            disk.poke(0, bytes);
        }
        if blind_session(polls) {
            assert!(polls > 100);
            break;
        }
        let rt = Rt::simulated(3);
        let (handle, all) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let array = Array::import(&handle, all, options(false)).await.unwrap();
            array.wait_idle(&[]).await;
            assert_eq!(array.status().await.state, ArrayState::Optimal);
            array.export().await.unwrap();
        });
        rt.shutdown();
        let rt = Rt::simulated(4);
        let (handle, some) = (rt.clone(), without(&disks, &[1]));
        rt.block_on(async move {
            let array = Array::import(&handle, some, options(false)).await.unwrap();
            let what = format!("without device 1, after {polls} polls");
            check(&array.volume("v").unwrap(), SIZE, 1, &what).await;
        });
        rt.shutdown();
    }
}

/// A device on which a superblock of the array that was there before came back, as after a lost write, is as good as
/// missing to whoever names the array: the whole import was refused (#185).
#[test]
fn a_device_of_an_array_that_was_there_before_is_left_out() {
    const SUPER: usize = 64 << 10;
    let disks = devices(6, 16 * MIB);
    let make = |seed| {
        let rt = Rt::simulated(seed);
        let (handle, all) = (rt.clone(), refs(&disks));
        let array = rt.block_on(async move {
            let array = Array::create(&handle, all, small("ec4+2")).await.unwrap();
            array.volume_create("v", volume(MIB)).await.unwrap();
            fill(&array.volume("v").unwrap(), MIB, 64 << 10, seed, "made").await;
            array.uuid()
        });
        rt.shutdown();
        array
    };
    make(1);
    let former = image(&disks[3]);
    let array = make(2);
    disks[3].poke(0, &former[..SUPER]);
    disks[3].poke(16 * MIB - SUPER as u64, &former[former.len() - SUPER..]);

    let rt = Rt::simulated(3);
    let (handle, all) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let refused = Array::import(&handle, all.clone(), options(false)).await;
        assert!(matches!(refused, Err(Error::MixedArrays)), "{refused:?}");
        let named = Import {
            array: Some(array),
            ..Import::default()
        };
        let found = Array::import(&handle, all, named).await.unwrap();
        assert_eq!(found.uuid(), array);
        check(&found.volume("v").unwrap(), MIB, 2, "without device 3").await;
        let told = found.events(0);
        assert!(told.iter().any(|e| e.device == Some(3)), "{told:?}");
    });
    rt.shutdown();
}

/// The superblock that can be wiped is, also where the other cannot: the array was still found by it (#186).
#[test]
fn a_superblock_is_wiped_though_the_other_cannot_be() {
    let disks = devices(2, 16 * MIB);
    let filters: Vec<Rc<FaultFilter>> = refs(&disks).into_iter().map(FaultFilter::new).collect();
    let rt = Rt::simulated(1);
    let (handle, mine) = (rt.clone(), filters.clone());
    let seen: Vec<DeviceRef> = mine.iter().map(|f| f.clone() as DeviceRef).collect();
    let refuse = Rule::within(OpKind::Write, 0..4096, Effect::Fail(Fault::ReadOnly));
    rt.block_on(async move {
        let array = Array::create(&handle, seen.clone(), small("raid10"))
            .await
            .unwrap();
        mine[0].add(refuse.clone());
        let failed = array.destroy().await;
        assert!(
            matches!(failed, Err(Error::Device { device: 0, .. })),
            "{failed:?}"
        );
        mine[1].add(refuse);
        assert_eq!(wipe(&seen[1]).await, Err(Fault::ReadOnly));
    });
    rt.shutdown();
    for (number, disk) in disks.iter().enumerate() {
        let bytes = image(disk);
        let (first, second) = (&bytes[..4096], &bytes[bytes.len() - (64 << 10)..][..4096]);
        assert_eq!(first.iter().all(|b| *b == 0), number == 1);
        assert!(second.iter().all(|b| *b == 0), "device {number}");
    }
}
