//! Devices that are added to an array while it serves.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::Cell;
use std::rc::Rc;

use ashlar_device::{Effect, Fault, FaultFilter, MemDevice, OpKind, Rule};
use ashlar_engine::status::{ArrayState, DeviceState, DeviceStatus};
use ashlar_engine::{Array, Error, Import, Work};
use ashlar_rt::{MILLISECOND, Rt, SECOND};

use crate::common::{
    self, DISK, SIZE, copies, create, devices, read, refs, small, story, without, write,
};

const MIB: u64 = 1 << 20;

async fn import(rt: &Rt, disks: &[Rc<MemDevice>], away: &[usize]) -> Array {
    let array = Array::import(rt, without(disks, away), Import::default()).await;
    array.unwrap_or_else(|e| panic!("without {away:?}: {e}"))
}

/// An array grows: there is more room, new data lie on the new devices, and any one may be lost.
#[test]
fn devices_are_added_and_used() {
    for layout in ["ec2+1", "raid5", "raid10", "grid:4(2+1+1)", "jbod"] {
        let disks = devices(6, DISK);
        let kept = disks.clone();
        story(async move |rt| {
            let array = create(&rt, &kept[..4], layout).await;
            let before = array.status().await;
            for (index, disk) in [(4, &kept[4]), (5, &kept[5])] {
                let added = array.add(disk.clone(), "").await.unwrap();
                assert_eq!((added.index, added.kept), (index, 0), "{layout}");
            }
            let after = array.status().await;
            assert_eq!((after.k, after.m), (before.k, before.m), "{layout}");
            assert_eq!(after.devices_total, 6);
            let more = after.capacity.usable_bytes * 100 / before.capacity.usable_bytes;
            assert!(more > 130, "{layout}: {more} % of the space");
            for version in 2..6 {
                write(&array, version).await;
            }
            array.wait_idle(&[]).await;
            let after = array.status().await;
            assert_eq!(after.state, ArrayState::Optimal, "{layout}");
            assert!(
                after.devices[4].used_bytes > 0 && after.devices[5].used_bytes > 0,
                "{layout}"
            );
            read(&array, 5, layout).await;
        });
        let losses: &[&[usize]] = if layout == "jbod" {
            &[&[]]
        } else {
            &[&[], &[0], &[4], &[5]]
        };
        for away in losses {
            let (disks, away) = (copies(&disks), away.to_vec());
            story(async move |rt| read(&import(&rt, &disks, &away).await, 5, layout).await);
        }
    }
}

/// A full array lays new data with all their redundancy while a device joins it: none is gone (#210).
#[test]
fn a_device_that_joins_a_full_array_is_none_that_is_gone() {
    for (layout, count) in [("raid1", 2), ("ec2+1", 3)] {
        let disks = devices(count + 1, DISK);
        story(async move |rt| {
            let slow = common::room::slow(&rt, &disks, 20 * MILLISECOND);
            let array = Array::create(&rt, refs(&disks[..count]), small(layout));
            let array = array.await.unwrap();
            array.set("clean.reserve", "2%").await.unwrap();
            let size = array.status().await.capacity.usable_bytes / (16 << 10) * (16 << 10);
            let created = array.volume_create("w", common::volume(size)).await;
            created.unwrap();
            let w = array.volume("w").unwrap();
            common::fill(&w, size, 16 << 10, 1, "written").await;
            let (handle, coming) = (array.clone(), slow[count].clone());
            let done = Rc::new(Cell::new(false));
            let told = done.clone();
            let adding = rt.spawn(async move {
                let added = handle.add(coming, "").await;
                told.set(true);
                added
            });
            let mut written = 0;
            while !done.get() {
                let at = written * 16384 % size;
                w.write(at, common::pattern(written, 2), true)
                    .await
                    .unwrap();
                written += 1;
                let status = array.status().await;
                assert_eq!(
                    status.state,
                    ArrayState::Optimal,
                    "{layout}, {written} written"
                );
                rt.sleep(MILLISECOND).await;
            }
            adding.await.unwrap();
            assert!(written > 50, "{layout}: {written}");
        });
    }
}

/// What is there moves to devices that are added, until all hold about as much; as much as was foretold; then it rests.
#[test]
fn what_is_there_moves_to_new_devices() {
    const MORE: u64 = 6 << 20;
    for layout in ["ec2+1", "raid5", "raid10", "grid:4(2+1+1)", "raid0"] {
        let disks = devices(6, DISK);
        let kept = disks.clone();
        story(async move |rt| {
            let array = create(&rt, &kept[..4], layout).await;
            array
                .volume_create("w", common::volume(MORE))
                .await
                .unwrap();
            let w = array.volume("w").unwrap();
            common::fill(&w, MORE, 16 << 10, 1, "written").await;
            array.wait_idle(&[]).await;
            let mut foretold = 0;
            for disk in &kept[4..] {
                let with = array.check_addition(&[(DISK, String::new())]).unwrap();
                foretold += with.moved_bytes;
                array.add(disk.clone(), "").await.unwrap();
            }
            for _ in 0..2000 {
                // Redundancy is full all the while.
                assert_eq!(array.status().await.state, ArrayState::Optimal, "{layout}");
                rt.sleep(MILLISECOND / 10).await;
            }
            array.wait_idle(&[Work::Rebalance]).await;
            assert_eq!(array.stuck(&[]), None, "{layout}");
            let status = array.status().await;
            let task = status
                .tasks
                .iter()
                .find(|t| t.id == Work::Rebalance.id())
                .unwrap();
            assert_eq!(task.state, "done", "{layout}: {task:?}");
            assert_eq!(task.done_bytes, task.total_bytes, "{layout}");
            assert!(foretold > 0 && task.done_bytes > 0, "{layout}");
            let used: Vec<u64> = status.devices.iter().map(|d| d.used_bytes).collect();
            let (least, most) = (used.iter().min().unwrap(), used.iter().max().unwrap());
            assert!(most - least <= DISK / 8, "{layout}: {used:?}");
            rt.sleep(60 * SECOND).await;
            let before = moved(&array).await;
            rt.sleep(600 * SECOND).await;
            assert_eq!(moved(&array).await, before, "{layout}");
            read(&array, 1, layout).await;
            common::check(&w, MORE, 1, layout).await;
        });
        let losses: &[&[usize]] = match layout {
            "raid0" => &[&[]],
            _ => &[&[], &[0], &[4], &[5]],
        };
        for away in losses {
            let disks = copies(&disks);
            story(async move |rt| {
                let array = import(&rt, &disks, away).await;
                read(&array, 1, layout).await;
                common::check(&array.volume("w").unwrap(), MORE, 1, layout).await;
            });
        }
    }
}

/// Where devices differ in size, what placement does is not undone: writes move nothing.
#[test]
fn writes_move_nothing() {
    const ALL: u64 = 8 << 20;
    let sizes = [16, 16, 16, 8, 8, 8, 4];
    let disk = |mib: u64| Rc::new(MemDevice::new("disk", mib << 20));
    let disks: Vec<Rc<MemDevice>> = sizes.map(disk).to_vec();
    story(async move |rt| {
        let array = Array::create(&rt, refs(&disks), small("ec2+1"))
            .await
            .unwrap();
        array.volume_create("v", common::volume(ALL)).await.unwrap();
        let v = array.volume("v").unwrap();
        for version in 1..12 {
            common::fill(&v, ALL, 16 << 10, version, "written").await;
            array.wait_idle(&[]).await;
        }
        let moved = moved(&array).await;
        let of_written = moved * 1000 / (11 * ALL * 3 / 2);
        assert!(of_written <= 20, "{of_written} of 1000 bytes moved again");
        let used = array
            .status()
            .await
            .devices
            .into_iter()
            .map(|d| d.used_bytes);
        let used: Vec<u64> = used.collect();
        assert!(used[0] > used[3] && used[3] > used[6], "{used:?}");
    });
}

/// Bytes of columns that have moved.
async fn moved(array: &Array) -> u64 {
    let tasks = array.status().await.tasks;
    let task = tasks.iter().find(|t| t.id == Work::Rebalance.id());
    task.map_or(0, |t| t.done_bytes)
}

/// Records of the epoch that begins with a new device lie where an import looks for them.
#[test]
fn what_is_written_after_an_addition_is_durable() {
    for layout in ["ec2+1", "raid5", "raid1"] {
        let disks = devices(4, DISK);
        let kept = disks.clone();
        story(async move |rt| {
            let array = create(&rt, &kept[..3], layout).await;
            array.add(kept[3].clone(), "").await.unwrap();
            let v = array.volume("v").unwrap();
            v.write(0, common::run(0, 8, 2), true).await.unwrap();
        });
        for away in [[].as_slice(), &[0], &[1], &[2], &[3]] {
            let (disks, away) = (copies(&disks), away.to_vec());
            story(async move |rt| {
                let v = import(&rt, &disks, &away).await.volume("v").unwrap();
                let bytes = v.read(0, 8 * 4096).await.unwrap();
                let same = bytes[..] == common::run(0, 8, 2)[..];
                assert!(same, "{layout}, without {away:?}");
            });
        }
    }
}

/// Where one of a mirror of two is gone, the device that is added holds a copy of all records from the first on (R5): then
/// the other may go.
#[test]
fn records_lie_on_a_device_that_is_added() {
    let disks = devices(3, DISK);
    let kept = disks.clone();
    story(async move |rt| {
        let array = create(&rt, &kept[..2], "raid1").await;
        array.fail(1, false).await.unwrap();
        array.add(kept[2].clone(), "").await.unwrap();
        array.wait_idle(&[]).await;
        let status = array.status().await;
        assert_eq!(
            (status.state, status.health.more_losses),
            (ArrayState::Optimal, 1)
        );
        let v = array.volume("v").unwrap();
        v.write(0, common::run(0, 8, 2), true).await.unwrap();
    });
    for away in [vec![0, 1], vec![1, 2]] {
        let disks = copies(&disks);
        story(async move |rt| {
            let how = Import {
                degraded: true,
                ..Import::default()
            };
            let array = Array::import(&rt, without(&disks, &away), how)
                .await
                .unwrap();
            let v = array.volume("v").unwrap();
            let bytes = v.read(0, 8 * 4096).await.unwrap();
            assert!(bytes[..] == common::run(0, 8, 2)[..], "without {away:?}");
        });
    }
}

/// What is added leaves again, and its place in the table is not given to another.
#[test]
fn a_device_comes_and_goes() {
    let disks = devices(6, DISK);
    story(async move |rt| {
        let array = create(&rt, &disks[..4], "ec2+1").await;
        array.add(disks[4].clone(), "shelf").await.unwrap();
        write(&array, 2).await;
        array.remove(4).await.unwrap();
        array.wait_idle(&[]).await;
        let added = array.add(disks[5].clone(), "").await.unwrap();
        assert_eq!(added.index, 5);
        let status = array.status().await;
        assert_eq!(status.devices_total, 5);
        assert!(
            status
                .devices
                .iter()
                .all(|d| d.state == DeviceState::Online)
        );
        array.export().await.unwrap();
        let array = import(&rt, &disks, &[4]).await;
        assert_eq!(array.status().await.devices_total, 5);
        read(&array, 2, "imported").await;
        let small = Rc::new(MemDevice::new("small", MIB));
        let refused = array.add(small, "").await;
        assert!(
            matches!(refused, Err(Error::TooSmallToAdd { .. })),
            "{refused:?}"
        );
        assert_eq!(array.status().await.devices_total, 5);
    });
}

/// A label that does not fit its place is refused: a superblock with it could not be read.
#[test]
fn a_domain_has_a_short_name() {
    let disks = devices(5, DISK);
    story(async move |rt| {
        let array = create(&rt, &disks[..4], "ec2+1").await;
        let long = "x".repeat(33);
        let refused = array.add(disks[4].clone(), &long).await;
        assert!(matches!(refused, Err(Error::Domain(_))), "{refused:?}");
        let refused = array.check_addition(&[(DISK, long)]);
        assert!(matches!(refused, Err(Error::Domain(_))), "{refused:?}");
        array
            .add(disks[4].clone(), &"\u{fc}".repeat(16))
            .await
            .unwrap();
        array.export().await.unwrap();
        read(&import(&rt, &disks, &[0]).await, 1, "imported").await;
        let mut options = small("ec2+1");
        options.domains = vec!["y".repeat(33); 4];
        let refused = Array::create(&rt, refs(&disks[..4]), options).await;
        assert!(matches!(refused, Err(Error::Domain(_))));
    });
}

/// A device that refuses what is written to it is not added, and nothing is reckoned with it.
#[test]
fn an_addition_that_fails_leaves_nothing() {
    let disks = devices(5, DISK);
    story(async move |rt| {
        let array = create(&rt, &disks[..4], "raid5").await;
        array.wait_idle(&[]).await;
        let before = array.status().await;
        for skip in 0..6 {
            let flaky = FaultFilter::new(disks[4].clone());
            let fail = Effect::Fail(Fault::Offline);
            let rule = Rule {
                skip,
                ..Rule::always(OpKind::Write, fail)
            };
            flaky.add(rule);
            let index = u16::try_from(array.next_device()).unwrap();
            let added = array.add(flaky, "").await;
            if added.is_ok() {
                break; // it failed later, as any device may
            }
            array.wait_idle(&[]).await;
            let after = array.status().await;
            assert_eq!(after.devices_total, 4, "{added:?}");
            // The plan may keep a shape that it took on for a moment.
            let (now, then) = (after.capacity.usable_bytes, before.capacity.usable_bytes);
            assert!(now.abs_diff(then) * 20 <= then, "{now}, {then}: {added:?}");
            assert_eq!(after.state, ArrayState::Optimal, "{added:?}");
            let replaced = array.check_replacement(index, DISK, false);
            assert!(matches!(replaced, Err(Error::NoDevice(_))), "{replaced:?}");
        }
        assert!(array.next_device() > 5, "some failed");
    });
}

/// A row that a crash has left is nothing: no space and no redundancy is reckoned with it. It is filled, or goes.
#[test]
fn a_row_without_a_device_counts_for_nothing() {
    let before = devices(5, DISK);
    let kept = before.clone();
    let capacity = story(async move |rt| {
        let array = create(&rt, &kept[..4], "raid5").await;
        array.wait_idle(&[]).await;
        array.status().await.capacity
    });
    let mut left = 0;
    for cut in (0..400).map(|n| 300 + n * 5) {
        let disks = copies(&before);
        let kept = disks.clone();
        let rt = Rt::simulated(3);
        let handle = rt.clone();
        let _ = rt.run_for(cut, async move {
            let array = import(&handle, &kept, &[4]).await;
            array.add(kept[4].clone(), "").await.unwrap();
        });
        rt.shutdown();
        left += story(async move |rt| {
            let array = import(&rt, &disks, &[]).await;
            array.wait_idle(&[]).await;
            let status = array.status().await;
            let spare = |d: &&DeviceStatus| d.state == DeviceState::Spare;
            let Some(row) = status.devices.iter().find(spare) else {
                return 0;
            };
            assert_eq!(status.capacity.usable_bytes, capacity.usable_bytes, "{cut}");
            assert_eq!(status.state, ArrayState::Optimal);
            array.remove(row.index).await.unwrap();
            if cut % 2 == 0 {
                array.add(disks[4].clone(), "").await.unwrap();
            }
            write(&array, 2).await;
            array.wait_idle(&[]).await;
            assert_eq!(array.status().await.state, ArrayState::Optimal);
            read(&array, 2, "afterwards").await;
            1
        });
    }
    assert!(left > 0, "no cut fell in between");
}

/// A device that was being taken in when power went is no loss: nothing lies on it.
#[test]
fn a_device_that_does_not_know_yet_is_not_missed() {
    for (layout, lost) in [("raid0", None), ("ec2+1", Some(0))] {
        let before = devices(6, DISK);
        let kept = before.clone();
        story(async move |rt| drop(create(&rt, &kept[..5], layout).await));
        let mut seen = [0; 2];
        for cut in (0..600).map(|n| 1500 + n * 2) {
            let disks = copies(&before);
            let kept = disks.clone();
            let rt = Rt::simulated(3);
            let handle = rt.clone();
            let _ = rt.run_for(cut, async move {
                let array = import(&handle, &kept, &[5]).await;
                array.add(kept[5].clone(), "").await.unwrap();
            });
            rt.shutdown();
            let state = story(async move |rt| {
                let away: Vec<usize> = lost.into_iter().collect();
                let array = import(&rt, &disks, &away).await;
                read(&array, 1, &format!("{layout}, cut {cut}")).await;
                let devices = array.status().await.devices;
                devices.iter().find(|d| d.index == 5).map(|d| d.state)
            });
            seen[0] += u32::from(state == Some(DeviceState::Spare));
            seen[1] += u32::from(state == Some(DeviceState::Online));
        }
        assert!(seen[0] > 0 && seen[1] > 0, "around it: {seen:?}");
    }
}

/// Changes of members one after the other leave no more epochs than a root has room for.
#[test]
fn many_changes_leave_room_in_roots() {
    let disks = devices(5, 64 * DISK); // rings that no checkpoint is due for
    story(async move |rt| {
        let array = create(&rt, &disks, "ec2+1").await;
        let v = array.volume("v").unwrap();
        array.pause(Work::Rebalance, true).unwrap(); // it holds what it has
        for _ in 0..150 {
            for leaves in [true, false] {
                match leaves {
                    true => drop(array.remove(4).await.unwrap()),
                    false => array.stay(4).await.unwrap(),
                }
                v.write(0, common::run(0, 1, 1), true).await.unwrap();
            }
        }
        array.export().await.unwrap();
        read(&import(&rt, &disks, &[]).await, 1, "imported").await;
    });
}

/// The power goes at some moment of an addition: without any one device all is there.
#[test]
fn the_power_may_go_at_any_moment_of_an_addition() {
    let before = devices(5, DISK);
    let kept = before.clone();
    story(async move |rt| {
        let array = create(&rt, &kept[..4], "ec2+1").await;
        array.merge().await.unwrap();
        write(&array, 2).await;
        let v = array.volume("v").unwrap();
        v.flush().await.unwrap();
    });
    let (mut ended, mut seen) = (0, [0; 3]);
    for cut in (0..60).map(|n| 100 + n * 150) {
        let disks = copies(&before);
        let kept = disks.clone();
        let rt = Rt::simulated(cut);
        let handle = rt.clone();
        let done = rt.run_for(cut, async move {
            let array = import(&handle, &kept, &[4]).await;
            array.add(kept[4].clone(), "").await.unwrap();
            write(&array, 3).await;
        });
        rt.shutdown();
        ended += u32::from(done.is_ok());
        for lost in [None, Some(0), Some(3), Some(4)] {
            let disks = copies(&disks);
            let found = story(async move |rt| {
                let away: Vec<usize> = lost.into_iter().collect();
                let array = import(&rt, &disks, &away).await;
                let status = array.status().await;
                let v = array.volume("v").unwrap();
                // Each block is of the second version or the third.
                for at in (0..SIZE).step_by(4096) {
                    let bytes = v.read(at, 4096).await.unwrap();
                    let is = |version| bytes[..] == common::pattern(at / 4096, version)[..];
                    assert!(is(2) || is(3), "cut {cut}, without {lost:?}: {at}");
                }
                status
                    .devices
                    .iter()
                    .find(|d| d.index == 4)
                    .map(|d| d.state)
            });
            if lost.is_none() {
                let states = [None, Some(DeviceState::Spare), Some(DeviceState::Online)];
                let at = states.iter().position(|state| *state == found);
                seen[at.unwrap_or_else(|| panic!("{found:?}"))] += 1;
            }
        }
    }
    assert!(
        (1..60).contains(&ended),
        "some cuts were before the end: {ended}"
    );
    assert!(seen[0] > 0 && seen[2] > 0, "before and after: {seen:?}");
}
