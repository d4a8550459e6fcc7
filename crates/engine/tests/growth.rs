//! Devices that have grown, and that the array uses whole from then on.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::rc::Rc;

use ashlar_device::{Device, DeviceRef, Effect, Fault, FaultFilter, MemDevice, OpKind, Rule};
use ashlar_engine::status::ArrayState;
use ashlar_engine::{Array, Error, Import};
use ashlar_format::geometry::super_bytes;
use ashlar_format::superblock::Superblock;
use ashlar_rt::{MILLISECOND, Rt};

use crate::common::{
    self, DISK, SIZE, copies, create, devices, geometry, pattern, read, refs, story, without, write,
};

const MIB: u64 = 1 << 20;
/// Bytes of a second volume, written where devices have grown.
const MORE: u64 = 24 * MIB;

async fn import(rt: &Rt, disks: &[Rc<MemDevice>], away: &[usize]) -> Array {
    let array = Array::import(rt, without(disks, away), Import::default()).await;
    array.unwrap_or_else(|e| panic!("without {away:?}: {e}"))
}

/// These devices with another size.
fn resized(disks: &[Rc<MemDevice>], bytes: u64) -> Vec<Rc<MemDevice>> {
    disks.iter().map(|d| Rc::new(d.resize(bytes))).collect()
}

async fn write_more(array: &Array, version: u64) {
    let w = array.volume("w").unwrap();
    common::fill(&w, MORE, 16 << 10, version, "written").await;
}

async fn read_more(array: &Array, version: u64, what: &str) {
    common::check(&array.volume("w").unwrap(), MORE, version, what).await;
}

/// Devices grow twice while the array serves: there is more room each time, it holds data, and any one may be lost.
#[test]
fn devices_that_have_grown_are_used() {
    for layout in ["ec2+1", "raid5", "raid10", "jbod"] {
        let mut disks = devices(4, DISK);
        let kept = disks.clone();
        story(async move |rt| drop(create(&rt, &kept, layout).await));
        for (bytes, version) in [(3 * DISK, 2), (8 * DISK, 3)] {
            let kept = disks.clone();
            let before = disks.clone();
            story(async move |rt| {
                let array = import(&rt, &kept, &[]).await;
                let before = array.status().await.capacity.usable_bytes;
                drop(resized(&kept, bytes));
                for index in 0..4 {
                    let grown = array.use_all_of(index).await.unwrap();
                    assert_eq!(grown.size_bytes, bytes, "{layout}");
                    let again = array.use_all_of(index).await;
                    assert!(matches!(again, Err(Error::NotGrown { .. })), "{again:?}");
                }
                let status = array.status().await;
                let more = status.capacity.usable_bytes * 100 / before;
                assert!(more > 200, "{layout}: {more} % of the space");
                assert!(status.devices.iter().all(|d| d.size_bytes == bytes));
                if version == 2 {
                    array
                        .volume_create("w", common::volume(MORE))
                        .await
                        .unwrap();
                }
                write(&array, version).await;
                write_more(&array, version).await;
                array.wait_idle(&[]).await;
                assert_eq!(array.status().await.state, ArrayState::Optimal, "{layout}");
                read(&array, version, layout).await;
                read_more(&array, version, layout).await;
            });
            disks = resized(&before, bytes);
            assert!(geometry(&disks[0]).further_pages().len() > 1, "many slots");
            let losses: &[&[usize]] = match layout {
                "jbod" => &[&[]],
                _ => &[&[], &[0], &[3]],
            };
            for away in losses {
                let disks = copies(&disks);
                story(async move |rt| {
                    let array = import(&rt, &disks, away).await;
                    read(&array, version, layout).await;
                    read_more(&array, version, layout).await;
                    array.export().await.unwrap();
                });
            }
        }
    }
}

/// What does not help is refused, and nothing is changed.
#[test]
fn a_device_that_has_not_grown_is_refused() {
    let disks = devices(4, DISK);
    story(async move |rt| {
        let array = create(&rt, &disks, "ec2+1").await;
        let generation = array.status().await.generation;
        for bytes in [DISK, DISK + 4096, DISK - MIB] {
            drop(disks[1].resize(bytes));
            let refused = array.use_all_of(1).await.unwrap_err();
            let fits = match bytes {
                DISK => matches!(refused, Error::NotGrown { index: 1, .. }),
                more if more > DISK => matches!(refused, Error::GrownTooLittle { more: 4096, .. }),
                _ => matches!(refused, Error::Shrunk { .. }),
            };
            assert!(fits, "{bytes}: {refused}");
        }
        drop(disks[1].resize(2 * DISK));
        let none = array.use_all_of(9).await;
        assert!(matches!(none, Err(Error::NoDevice(9))), "{none:?}");
        array.offline(1).await.unwrap();
        let out = array.use_all_of(1).await;
        assert!(matches!(out, Err(Error::NotInUse(1))), "{out:?}");
        assert_eq!(array.status().await.generation, generation + 1, "offline's");
        read(&array, 1, "as it was").await;
    });
}

/// A device that has grown and is not used whole is found with its newest superblock, wherever that lies.
#[test]
fn a_device_that_has_grown_is_known_again() {
    for changes in 1..5 {
        let disks = devices(4, DISK);
        let kept = disks.clone();
        story(async move |rt| drop(create(&rt, &kept, "ec2+1").await));
        let disks = resized(&disks, 2 * DISK);
        story(async move |rt| {
            let array = import(&rt, &disks, &[]).await;
            for _ in 0..changes {
                array.offline(3).await.unwrap();
                array.online(disks[3].clone(), false).await.unwrap();
            }
            array.wait_idle(&[]).await;
            array.export().await.unwrap();
            let array = import(&rt, &disks, &[]).await;
            assert_eq!(array.status().await.state, ArrayState::Optimal, "{changes}");
            read(&array, 1, "imported").await;
        });
    }
}

/// One whose superblock at the start is torn is found by what that says of its size: the other lies where its end was.
#[test]
fn a_device_that_has_grown_is_known_by_the_superblock_inside() {
    let disks = devices(4, DISK);
    let kept = disks.clone();
    story(async move |rt| {
        let array = create(&rt, &kept, "ec2+1").await;
        array.export().await.unwrap();
    });
    let disks = resized(&disks, 2 * DISK);
    let mut block = [0; 4096];
    disks[3].peek(0, &mut block);
    block[1000] ^= 1;
    disks[3].poke(0, &block);
    story(async move |rt| {
        let array = import(&rt, &disks, &[]).await;
        assert_eq!(array.status().await.state, ArrayState::Optimal);
        read(&array, 1, "imported").await;
    });
}

/// What another device of the same size has left at the end that a device has got again is not taken for its own.
#[test]
fn a_device_that_has_grown_over_the_end_of_another_is_known_again() {
    let disks = devices(4, DISK);
    let kept = disks.clone();
    story(async move |rt| drop(create(&rt, &kept, "ec2+1").await));
    let others = devices(4, 2 * DISK);
    let kept = others.clone();
    story(async move |rt| {
        let _of_its_own: [u8; 16] = rt.random_bytes(); // the identities that follow are others
        drop(create(&rt, &kept, "ec2+1").await);
    });
    let disks = resized(&disks, 2 * DISK);
    for (disk, other) in disks.iter().zip(&others) {
        let end = geometry(other).super_offset(1);
        let mut left = vec![0; usize::try_from(2 * DISK - end).unwrap()];
        other.peek(end, &mut left);
        disk.poke(end, &left);
    }
    story(async move |rt| {
        let array = import(&rt, &disks, &[]).await;
        assert_eq!(array.status().await.state, ArrayState::Optimal);
        for index in 0..4 {
            array.use_all_of(index).await.unwrap();
        }
        array.export().await.unwrap();
        read(&import(&rt, &disks, &[]).await, 1, "imported").await;
    });
}

/// The new slots are there once the device says that it has them: the first of them lies over the end that it had.
#[test]
fn new_slots_are_taken_once_the_device_says_so() {
    let disks = devices(4, DISK);
    let kept = disks.clone();
    story(async move |rt| drop(create(&rt, &kept, "ec2+1").await));
    let disks = resized(&disks, 3 * DISK);
    story(async move |rt| {
        let flaky = FaultFilter::new(disks[2].clone());
        let mut all = refs(&disks);
        all[2] = flaky.clone();
        let array = Array::import(&rt, all, Import::default()).await.unwrap();
        array.wait_idle(&[]).await;
        let raw = array.status().await.capacity.raw_bytes;
        flaky.add(Rule::within(OpKind::Write, 0..4096, Effect::Hang));
        let grows = array.clone();
        let grown = rt.spawn(async move { grows.use_all_of(2).await });
        while flaky.hits() == 0 {
            rt.sleep(MILLISECOND).await;
        }
        assert_eq!(array.status().await.capacity.raw_bytes, raw, "not yet");
        assert!(grown.await.is_err());
        array.wait_idle(&[]).await;
        let status = array.status().await;
        assert_eq!(status.health.devices_gone, 1, "it is out of use");
        read(&array, 1, "without it").await;
    });
}

/// Writes fail on the device that has grown: it stays as it was, or is out of use as any device whose writes fail.
#[test]
fn a_growth_that_fails_loses_nothing() {
    let disks = devices(4, DISK);
    let kept = disks.clone();
    story(async move |rt| drop(create(&rt, &kept, "ec2+1").await));
    let disks = resized(&disks, 3 * DISK);
    let mut failed = 0;
    for skip in 0..12 {
        let disks = copies(&disks);
        failed += story(async move |rt| {
            let flaky = FaultFilter::new(disks[0].clone());
            let mut all = refs(&disks);
            all[0] = flaky.clone();
            let array = Array::import(&rt, all, Import::default()).await.unwrap();
            array.wait_idle(&[]).await;
            flaky.add(Rule {
                skip,
                ..Rule::always(OpKind::Write, Effect::Fail(Fault::Media))
            });
            let grown = array.use_all_of(0).await;
            write(&array, 2).await;
            array.wait_idle(&[]).await;
            read(&array, 2, "afterwards").await;
            drop(array);
            let array = import(&rt, &disks, &[]).await;
            read(&array, 2, "imported").await;
            usize::from(grown.is_err())
        });
    }
    assert!(failed >= 3, "{failed} of 12 failed");
}

/// The power goes at any moment of a growth under writes, the first and the second time: without any one device all is
/// there, and the growth can be made again.
#[test]
fn the_power_may_go_at_any_moment_of_a_growth() {
    let mut disks = devices(4, DISK);
    let kept = disks.clone();
    story(async move |rt| drop(create(&rt, &kept, "ec2+1").await));
    for bytes in [3 * DISK, 8 * DISK] {
        let before = disks.clone();
        let (mut seen, mut ended) = ([0; 2], 0);
        for cut in (0..32).map(|n| 100 + n * 133) {
            let cut_off = resized(&copies(&before), bytes);
            let kept = cut_off.clone();
            let rt = Rt::simulated(cut);
            let handle = rt.clone();
            let done = rt.run_for(cut, async move {
                let array = import(&handle, &kept, &[]).await;
                let writer = array.clone();
                let writes = handle.spawn(async move { write(&writer, 3).await });
                array.use_all_of(2).await.unwrap();
                writes.await;
            });
            rt.shutdown();
            ended += usize::from(done.is_ok());
            let new = geometry_of(&cut_off[2], bytes).size_bytes == bytes;
            seen[usize::from(new)] += 1;
            for lost in [None, Some(2)] {
                let disks = copies(&cut_off);
                story(async move |rt| {
                    let away: Vec<usize> = lost.into_iter().collect();
                    let array = import(&rt, &disks, &away).await;
                    let v = array.volume("v").unwrap();
                    for at in (0..SIZE).step_by(4096) {
                        let read = v.read(at, 4096).await.unwrap();
                        let is = |version| read[..] == pattern(at / 4096, version)[..];
                        assert!(is(1) || is(3), "cut {cut}, without {lost:?}: {at}");
                    }
                    if lost.is_none() {
                        let again = array.use_all_of(2).await;
                        let was = matches!(again, Err(Error::NotGrown { .. }));
                        assert!(again.is_ok() || was, "cut {cut}: {again:?}");
                        write(&array, 4).await;
                        array.wait_idle(&[]).await;
                        array.export().await.unwrap();
                        read(&import(&rt, &disks, &[1]).await, 4, "once more").await;
                    }
                });
            }
        }
        assert!(seen[0] > 0 && seen[1] > 0, "before and after: {seen:?}");
        assert!((1..32).contains(&ended), "{ended} came to their end");
        // As much as there is now holds data, also in the slots that are new.
        disks = resized(&before, bytes);
        let kept = disks.clone();
        story(async move |rt| {
            let array = import(&rt, &kept, &[]).await;
            for index in 0..4 {
                array.use_all_of(index).await.unwrap();
            }
            if bytes == 3 * DISK {
                array
                    .volume_create("w", common::volume(MORE))
                    .await
                    .unwrap();
            }
            write_more(&array, 1).await;
        });
    }
}

/// The power goes when only the device that grows has stored the generation of its growth, and when only the others have.
/// The table of members may say other slots than the device then: after the next import it does not.
#[test]
fn a_growth_that_was_cut_off_is_in_the_table_after_an_import() {
    for hanging in [&[2][..], &[0, 1, 3]] {
        let disks = devices(4, DISK);
        let kept = disks.clone();
        story(async move |rt| drop(create(&rt, &kept, "ec2+1").await));
        let disks = resized(&disks, 3 * DISK);
        let kept = disks.clone();
        story(async move |rt| {
            let flaky: Vec<_> = kept.iter().map(|d| FaultFilter::new(d.clone())).collect();
            let all = flaky.iter().map(|f| f.clone() as DeviceRef).collect();
            let array = Array::import(&rt, all, Import::default()).await.unwrap();
            array.wait_idle(&[]).await;
            for index in hanging {
                // Of the device that grows the third: it says by two what it has, one after the other.
                let (ends, skip) = match index {
                    2 => (&[3 * DISK][..], 1),
                    _ => (&[DISK, 3 * DISK][..], 0),
                };
                let at = ends.iter().map(|end| end - super_bytes(*end));
                for at in at.chain((*index != 2).then_some(0)) {
                    let hangs = Rule::within(OpKind::Write, at..at + 4096, Effect::Hang);
                    flaky[*index].add(Rule { skip, ..hangs });
                }
            }
            rt.spawn(async move { array.use_all_of(2).await });
            while hanging.iter().any(|index| flaky[*index].hits() == 0) {
                rt.sleep(MILLISECOND).await;
            }
        });
        let says = |disks: &[Rc<MemDevice>]| {
            let rows = disks.iter().map(|disk| newest(disk).members[2].slots);
            (newest(&disks[2]).geometry.slots, rows.collect::<Vec<u32>>())
        };
        let (slots, rows) = says(&disks);
        assert!(rows.iter().any(|row| *row != slots), "{slots}: {rows:?}");
        let kept = disks.clone();
        story(async move |rt| {
            let array = import(&rt, &kept, &[]).await;
            read(&array, 1, "imported").await;
            array.export().await.unwrap();
        });
        let (slots, rows) = says(&disks);
        assert_eq!(rows, [slots; 4], "{hanging:?} were cut off");
    }
}

/// Where the newer superblock of a device says that its regions lie.
fn geometry_of(disk: &MemDevice, bytes: u64) -> ashlar_format::DeviceGeometry {
    assert_eq!(disk.info().size_bytes, bytes);
    newest(disk).geometry
}

/// The newest superblock of a device, whether or not it is used whole.
fn newest(disk: &MemDevice) -> Superblock {
    let ends = [DISK, 3 * DISK, 8 * DISK].into_iter();
    let ends = ends.filter(|end| *end <= disk.info().size_bytes);
    let offsets = ends.map(|end| end - super_bytes(end));
    let at = |offset: u64| {
        let mut block = vec![0; 4096];
        disk.peek(offset, &mut block);
        Superblock::decode(&block).ok()
    };
    let all = offsets.chain([0]).filter_map(at);
    all.max_by_key(|s| s.writes).unwrap()
}
