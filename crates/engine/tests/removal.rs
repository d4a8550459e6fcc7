//! Devices that are taken out of an array for good: emptied first, while they serve.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::rc::Rc;

use ashlar_device::{DeviceRef, FaultFilter, MemDevice};
use ashlar_engine::status::{ArrayState, ArrayStatus, DeviceState};
use ashlar_engine::{Array, Create, Error, Import, Work};
use ashlar_rt::{Rt, SECOND};

use crate::common::{
    self, DISK, SIZE, copies, create, devices, image, read, refs, small, story, volume, without,
    write,
};

fn state_of(status: &ArrayStatus, index: u16) -> Option<DeviceState> {
    let device = status.devices.iter().find(|d| d.index == index);
    device.map(|d| d.state)
}

/// Without the device, optimal, and all of this version is there.
async fn is_gone(array: &Array, index: u16, version: u64, what: &str) {
    array.wait_idle(&[]).await;
    let status = array.status().await;
    let stuck = array.stuck(&[]);
    assert_eq!(state_of(&status, index), None, "{what}: {stuck:?}");
    assert_eq!(status.state, ArrayState::Optimal, "{what}: {stuck:?}");
    read(array, version, what).await;
}

/// Any one of these devices may be lost, and all of this version is read.
fn survives_one(disks: &[Rc<MemDevice>], here: &[usize], version: u64) {
    let gone: Vec<usize> = (0..disks.len()).filter(|d| !here.contains(d)).collect();
    for lost in here {
        let disks = copies(disks);
        let away = [&gone[..], &[*lost]].concat();
        story(async move |rt| {
            let array = Array::import(&rt, without(&disks, &away), Import::default()).await;
            read(&array.unwrap(), version, &format!("without {away:?}")).await;
        });
    }
}

/// What moves is read where it is, and once more where it was written; what is bad there is computed from the others.
#[test]
fn what_moves_is_copied() {
    for bad in [false, true] {
        let disks = devices(9, DISK);
        story(async move |rt| {
            let array = create(&rt, &disks, "ec6+2").await;
            array.merge().await.unwrap();
            array.wait_idle(&[]).await;
            if bad {
                let held = image(&disks[1]);
                let blocks = (0..SIZE / 4096).filter(|block| block % 9 < 3);
                let hit = blocks.filter(|block| {
                    let wanted = common::pattern(*block, 1);
                    let at = held.chunks(4096).position(|held| held == &wanted[..]);
                    at.inspect(|at| disks[1].poke(4096 * *at as u64, &[0xA5; 4096]))
                        .is_some()
                });
                let hit = hit.count();
                assert!(hit > 5, "{hit} blocks");
            }
            let reads = async || {
                let devices = array.status().await.devices.into_iter();
                let others = devices.filter(|d| d.index != 1);
                others.map(|d| d.read_bytes).sum::<u64>()
            };
            let before = reads().await;
            let moved = array.remove(1).await.unwrap().moved_bytes;
            is_gone(&array, 1, 1, "moved").await;
            let after = reads().await - SIZE; // `is_gone` reads all of the volume
            let copied = after - before < 2 * moved;
            assert_eq!(
                copied,
                !bad,
                "{} of {moved} bytes were read",
                after - before
            );
        });
    }
}

/// On drives with a head columns move, and are rebuilt, several courses at once: so too where blocks and summaries are
/// bad.
#[test]
fn courses_are_read_together_on_drives_with_a_head() {
    const LARGE: u64 = 8 << 20;
    for leaves in [false, true] {
        let disk = |i| Rc::new(MemDevice::new(&format!("disk{i}"), 96 << 20).with_head());
        let disks: Vec<Rc<MemDevice>> = (0..7).map(disk).collect();
        let kept = disks.clone();
        story(async move |rt| {
            let options = Create {
                slot_bytes: Some(2 << 20),
                ..small("ec3+2")
            };
            let array = Array::create(&rt, refs(&kept), options).await.unwrap();
            array.volume_create("v", volume(LARGE)).await.unwrap();
            let v = array.volume("v").unwrap();
            common::fill(&v, LARGE, 64 << 10, 1, "written").await;
            array.merge().await.unwrap();
            array.wait_idle(&[]).await;
            // Some blocks of one other device, summaries among them.
            for (at, block) in image(&kept[2]).chunks(4096).enumerate() {
                if at > 4096 && at % 5 == 0 && block.iter().any(|byte| *byte != 0) {
                    kept[2].poke(4096 * at as u64, &[0xA5; 4096]);
                }
            }
            match leaves {
                true => drop(array.remove(1).await.unwrap()),
                false => array.fail(1, false).await.unwrap(),
            }
            array.wait_idle(&[]).await;
            let status = array.status().await;
            assert_eq!(status.state, ArrayState::Optimal, "{:?}", array.stuck(&[]));
            common::check(&v, LARGE, 1, "moved").await;
            array.export().await.unwrap();
        });
        for away in [[0, 1], [1, 3], [1, 6]] {
            let disks = copies(&disks);
            story(async move |rt| {
                let array = Array::import(&rt, without(&disks, &away), Import::default()).await;
                let v = array.unwrap().volume("v").unwrap();
                common::check(&v, LARGE, 1, &format!("without {away:?}")).await;
            });
        }
    }
}

/// All redundancy is there while a device is emptied, and nothing says afterwards that it was a member.
#[test]
fn a_device_is_emptied_and_leaves() {
    let disks = devices(6, DISK);
    let kept = disks.clone();
    story(async move |rt| {
        let array = create(&rt, &kept, "ec2+1").await;
        let before = array.status().await;
        assert!(before.devices[1].used_bytes > 0);
        let without = array.remove(1).await.unwrap();
        assert_eq!(without.moved_bytes, before.devices[1].used_bytes);
        assert!(without.promised_bytes >= SIZE && without.usable_bytes > SIZE);
        let status = array.status().await;
        assert_eq!(state_of(&status, 1), Some(DeviceState::Removing));
        assert_eq!(status.state, ArrayState::Optimal);
        let again = array.remove(1).await.unwrap(); // said twice; some may have moved meanwhile
        assert_eq!(again.usable_bytes, without.usable_bytes);
        assert!(again.moved_bytes <= without.moved_bytes);
        write(&array, 2).await;
        is_gone(&array, 1, 2, "emptied").await;
        let status = array.status().await;
        assert_eq!((status.devices_total, status.health.more_losses), (5, 1));
        assert!(status.capacity.raw_bytes < before.capacity.raw_bytes);
        assert!(matches!(array.remove(1).await, Err(Error::NoDevice(1))));
        assert!(matches!(
            array.fail(1, false).await,
            Err(Error::NoDevice(1))
        ));
        write(&array, 3).await;
        array.export().await.unwrap();
    });
    let left = &image(&disks[1])[..4096];
    assert!(left.iter().all(|byte| *byte == 0), "no superblock is left");
    survives_one(&disks, &[0, 2, 3, 4, 5], 3);
}

/// A device that was to leave stays, and takes columns again.
#[test]
fn a_device_may_stay_after_all() {
    let disks = devices(6, DISK);
    let kept = disks.clone();
    story(async move |rt| {
        let array = create(&rt, &kept, "ec2+1").await;
        array.remove(1).await.unwrap();
        array.stay(1).await.unwrap();
        array.stay(1).await.unwrap();
        for version in 2..6 {
            write(&array, version).await;
        }
        array.wait_idle(&[]).await;
        let status = array.status().await;
        assert_eq!(state_of(&status, 1), Some(DeviceState::Online));
        assert!(status.devices[1].used_bytes > 0);
    });
    survives_one(&disks, &[0, 1, 2, 3, 4, 5], 5);
}

/// What is out of use takes no columns: with a device of four gone, three are left, and none of these can go.
#[test]
fn devices_that_are_gone_do_not_stand_for_others() {
    let disks = devices(4, DISK);
    story(async move |rt| {
        let array = create(&rt, &disks, "ec2+1").await;
        array.fail(3, false).await.unwrap();
        array.wait_idle(&[]).await;
        let refused = array.remove(0).await;
        let expected = matches!(
            refused,
            Err(Error::TooFewLeft {
                index: 0,
                have: 2,
                need: 3
            })
        );
        assert!(expected, "{refused:?}");
        array.remove(3).await.unwrap();
    });
}

/// A generation that too few stored is followed by none: with all devices back the array starts.
#[test]
fn a_change_that_too_few_agree_to_keeps_nobody_out() {
    for add in [false, true] {
        let disks = devices(6, DISK);
        let kept = disks.clone();
        let rt = Rt::simulated(7);
        let handle = rt.clone();
        let _ = rt.run_for(300_000, async move {
            let flaky: Vec<_> = kept.iter().map(|d| FaultFilter::new(d.clone())).collect();
            let all = flaky[..5].iter().map(|d| d.clone() as DeviceRef).collect();
            let array = Array::create(&handle, all, small("ec2+1")).await.unwrap();
            array.volume_create("v", volume(SIZE)).await.unwrap();
            write(&array, 1).await;
            array.merge().await.unwrap();
            flaky[2..5].iter().for_each(|d| d.set_offline(true));
            match add {
                true => drop(array.add(kept[5].clone(), "").await),
                false => drop(array.remove(0).await),
            }
        });
        rt.shutdown();
        story(async move |rt| {
            let array = Array::import(&rt, refs(&disks[..5]), Import::default()).await;
            let array = array.unwrap_or_else(|e| panic!("add {add}: {e}"));
            read(&array, 1, "all are back").await;
        });
    }
}

/// Where only a device that is to leave is left nothing can be written: the array stops, and says so.
#[test]
fn a_device_that_is_to_leave_does_not_write_alone() {
    let disks = devices(3, DISK);
    story(async move |rt| {
        let flaky: Vec<_> = disks.iter().map(|d| FaultFilter::new(d.clone())).collect();
        let all = flaky.iter().map(|d| d.clone() as DeviceRef).collect();
        let array = Array::create(&rt, all, small("ec1+1")).await.unwrap();
        array.volume_create("v", volume(SIZE)).await.unwrap();
        write(&array, 1).await;
        array.merge().await.unwrap();
        array.pause(Work::Rebalance, true).unwrap();
        array.remove(2).await.unwrap();
        array.offline(0).await.unwrap();
        flaky[1].set_offline(true);
        let v = array.volume("v").unwrap();
        let mut outcome = Ok(());
        for _ in 0..10 {
            outcome = v.write(0, common::run(0, 1, 1), true).await;
            rt.sleep(SECOND).await;
        }
        assert!(outcome.is_err(), "{outcome:?}");
    });
}

/// A device that fails while it is emptied is rebuilt, and one that is out of use is taken out of the books.
#[test]
fn what_fails_on_its_way_out_is_rebuilt() {
    let disks = devices(6, DISK);
    story(async move |rt| {
        let array = create(&rt, &disks, "ec2+1").await;
        array.remove(1).await.unwrap();
        array.fail(1, false).await.unwrap();
        assert!(matches!(array.stay(1).await, Err(Error::NotInUse(1))));
        assert!(matches!(array.remove(1).await, Err(Error::NotRebuilt(1))));
        array.wait_idle(&[]).await;
        array.remove(1).await.unwrap();
        is_gone(&array, 1, 1, "failed").await;
        assert_eq!(array.status().await.health.devices_gone, 0);
        // The other four serve, and no further one can go.
        array.remove(2).await.unwrap();
        array.remove(3).await.unwrap();
        let refused = array.remove(4).await;
        let expected = matches!(
            refused,
            Err(Error::TooFewLeft {
                index: 4,
                have: 2,
                need: 3
            })
        );
        assert!(expected, "{refused:?}");
        is_gone(&array, 2, 1, "two at once").await;
        is_gone(&array, 3, 1, "two at once").await;
        array.export().await.unwrap();
        let array = Array::import(&rt, without(&disks, &[1, 2, 3]), Import::default()).await;
        is_gone(&array.unwrap(), 3, 1, "imported").await;
    });
}

/// What volumes were promised has to fit on the others.
#[test]
fn a_device_that_volumes_need_does_not_leave() {
    let disks = devices(4, DISK);
    story(async move |rt| {
        let array = create(&rt, &disks, "ec2+1").await;
        let free = array.status().await.capacity.free_bytes;
        array.volume_create("w", volume(free)).await.unwrap();
        let refused = array.remove(1).await;
        assert!(
            matches!(refused, Err(Error::NoRoomWithout { index: 1, .. })),
            "{refused:?}"
        );
        assert_eq!(
            state_of(&array.status().await, 1),
            Some(DeviceState::Online)
        );
        array.volume_destroy("w").await.unwrap();
        rt.sleep(10 * SECOND).await; // its space comes back in the background
        array.remove(1).await.unwrap();
        // What is promised from now on fits without it.
        let free = array.status().await.capacity.free_bytes;
        array.volume_create("w", volume(free)).await.unwrap();
        is_gone(&array, 1, 1, "full").await;
        assert!(!array.status().await.capacity.overpromised);
    });
}

/// The power goes at some moment of a removal: without any one device all is there, and the removal goes on.
#[test]
fn the_power_may_go_at_any_moment_of_a_removal() {
    let before = devices(5, DISK);
    let kept = before.clone();
    story(async move |rt| {
        let array = create(&rt, &kept, "ec2+1").await;
        array.merge().await.unwrap();
    });
    let (mut ended, mut seen) = (0, [0; 3]);
    for cut in (0..60).map(|n| 200 + n * 60) {
        let disks = copies(&before);
        let kept = disks.clone();
        let rt = Rt::simulated(cut);
        let handle = rt.clone();
        let done = rt.run_for(cut, async move {
            let array = Array::import(&handle, refs(&kept), Import::default()).await;
            let array = array.unwrap();
            array.remove(1).await.unwrap();
            array.wait_idle(&[]).await;
        });
        rt.shutdown();
        ended += u32::from(done.is_ok());
        for lost in [None, Some(0), Some(1), Some(4)] {
            let disks = copies(&disks);
            let what = format!("cut {cut}, without {lost:?}");
            let found = story(async move |rt| {
                let here = without(&disks, &lost.map_or(vec![], |lost| vec![lost]));
                let array = Array::import(&rt, here, Import::default()).await;
                let array = array.unwrap_or_else(|e| panic!("{what}: {e}"));
                let found = state_of(&array.status().await, 1);
                read(&array, 1, &what).await;
                if found == Some(DeviceState::Removing) && lost.is_none() {
                    is_gone(&array, 1, 1, &what).await;
                }
                found
            });
            if lost.is_none() {
                let states = [Some(DeviceState::Online), Some(DeviceState::Removing), None];
                let at = states.iter().position(|state| *state == found);
                seen[at.expect("one of these")] += 1;
            }
        }
    }
    assert!(
        (1..60).contains(&ended),
        "some cuts were before the end: {ended}"
    );
    assert!(
        seen.iter().all(|n| *n > 0),
        "before, during and after: {seen:?}"
    );
}
