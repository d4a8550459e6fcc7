//! Devices in use that others take the place of, while the array serves.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::Cell;
use std::rc::Rc;

use ashlar_device::{Effect, FaultFilter, MemDevice, OpKind, Rule};
use ashlar_engine::status::{ArrayState, ArrayStatus, DeviceState};
use ashlar_engine::{Array, Error, Import};
use ashlar_rt::{MILLISECOND, Rt, SECOND};

use crate::common::{
    self, DISK, SIZE, copies, create, devices, read, refs, small, story, volume, without,
};

const MIB: u64 = 1 << 20;

async fn import(rt: &Rt, disks: &[Rc<MemDevice>], away: &[usize]) -> Array {
    let array = Array::import(rt, without(disks, away), Import::default()).await;
    array.unwrap_or_else(|e| panic!("without {away:?}: {e}"))
}

fn state_of(status: &ArrayStatus, index: u16) -> Option<DeviceState> {
    let device = status.devices.iter().find(|d| d.index == index);
    device.map(|d| d.state)
}

/// Looks at the array again and again until it is told to end: no redundancy is missing. How often it looked.
async fn watch(rt: Rt, array: Array, ends: Rc<Cell<bool>>, what: String) -> usize {
    let mut looks = 0;
    while !ends.get() {
        let status = array.status().await;
        assert_eq!(status.state, ArrayState::Optimal, "{what}, look {looks}");
        looks += 1;
        rt.yield_now().await;
        if looks % 50 == 0 {
            rt.sleep(MILLISECOND).await;
        }
    }
    looks
}

/// A device in use is replaced under writes: no redundancy is missing at any moment, the new one holds what the old one
/// held, and without any one device all is there.
#[test]
fn a_device_in_use_is_replaced_under_writes() {
    for (layout, count) in [("raid5", 3), ("raid10", 4), ("ec2+1", 5), ("raid1", 3)] {
        for old in [0, count - 1] {
            let disks = devices(count + 1, DISK);
            let kept = disks.clone();
            let what = format!("{layout}, device {old}");
            let said = what.clone();
            let index = u16::try_from(old).unwrap();
            story(async move |rt| {
                let array = create(&rt, &kept[..count], layout).await;
                array.wait_idle(&[]).await;
                let before = array.status().await;
                let ends = Rc::new(Cell::new(false));
                let watcher = watch(rt.clone(), array.clone(), ends.clone(), said.clone());
                let watcher = rt.spawn(watcher);
                let would = array.check_replacement_in_use(index, DISK).unwrap();
                assert_eq!(would.moved_bytes, before.devices[old].used_bytes);
                let new = kept[count].clone();
                let added = array.replace_in_use(index, new).await.unwrap();
                assert_eq!(usize::from(added.index), count, "{said}");
                common::write(&array, 2).await;
                array.wait_idle(&[]).await;
                ends.set(true);
                let looks = watcher.await;
                assert!(looks > 20, "{said}: {looks}");
                let after = array.status().await;
                let stuck = array.stuck(&[]);
                assert_eq!(state_of(&after, index), None, "{said}: {stuck:?}");
                assert_eq!(after.devices_total, before.devices_total, "{said}");
                let usable = |status: &ArrayStatus| status.capacity.usable_bytes;
                assert!(
                    usable(&after).abs_diff(usable(&before)) * 20 <= usable(&before),
                    "{said}"
                );
                let new = after.devices.iter().find(|d| d.index == added.index);
                assert!(new.unwrap().used_bytes > 0, "{said}");
                common::write(&array, 3).await;
                read(&array, 3, &said).await;
            });
            for lost in (0..=count).filter(|lost| *lost != old) {
                let (disks, said) = (copies(&disks), what.clone());
                story(async move |rt| {
                    let array = import(&rt, &disks, &[old, lost]).await;
                    read(&array, 3, &format!("{said}, without {lost}")).await;
                });
            }
        }
    }
}

/// The new device is of the old one's group, also where another group is smaller, and in its failure domain.
#[test]
fn the_new_device_has_the_group_and_the_domain_of_the_old_one() {
    let disks = devices(6, DISK);
    story(async move |rt| {
        let mut options = small("raid10");
        options.domains = ["a", "b", "c", "d"].map(String::from).to_vec();
        let array = Array::create(&rt, refs(&disks[..4]), options)
            .await
            .unwrap();
        array.volume_create("v", volume(SIZE)).await.unwrap();
        common::write(&array, 1).await;
        // The first of the two groups has three devices then.
        array.add(disks[4].clone(), "e").await.unwrap();
        array.replace_in_use(1, disks[5].clone()).await.unwrap();
        array.wait_idle(&[]).await;
        let status = array.status().await;
        assert_eq!(state_of(&status, 1), None);
        assert_eq!(status.devices.last().unwrap().domain, "b");
        // Two devices of the first group may go, one after the other, and none of the second: its pair is all it has.
        for (index, enough) in [(0, true), (2, false)] {
            let without = array.check_removal(index);
            match enough {
                true => drop(without.unwrap()),
                false => assert!(matches!(without, Err(Error::TooFewLeft { .. }))),
            }
        }
        read(&array, 1, "replaced").await;
    });
}

/// What stands against it is said before anything is changed.
#[test]
fn what_cannot_be_replaced_is_refused() {
    let disks = devices(6, DISK);
    story(async move |rt| {
        let array = create(&rt, &disks[..4], "raid5").await;
        let total = array.status().await.capacity.usable_bytes;
        let more = volume(total - SIZE - (1 << 20));
        array.volume_create("w", more).await.unwrap();
        let before = array.next_device();
        let sized = |bytes: u64| Rc::new(MemDevice::new("new", bytes));
        let tiny = array.replace_in_use(1, sized(1 << 20)).await;
        assert!(matches!(tiny, Err(Error::TooSmallToAdd { .. })), "{tiny:?}");
        let short = array.replace_in_use(1, sized(DISK / 2)).await;
        let says = "the new device is too small: with it in place of device 1";
        assert!(short.is_err_and(|e| e.to_string().starts_with(says)));
        assert!(matches!(
            array.replace_in_use(9, disks[4].clone()).await,
            Err(Error::NoDevice(9))
        ));
        array.fail(3, false).await.unwrap();
        let few = array.replace_in_use(1, disks[4].clone()).await;
        let (have, need) = (3, 4);
        let wanted = |e: &Error| matches!(e, Error::TooFewWith { old: 1, have: h, need: n } if (*h, *n) == (have, need));
        assert!(few.as_ref().is_err_and(wanted), "{few:?}");
        let out = array.replace_in_use(3, disks[4].clone()).await;
        assert!(matches!(out, Err(Error::NotInUse(3))), "{out:?}");
        assert_eq!(array.next_device(), before, "nothing was changed");
        let status = array.status().await;
        assert_eq!(state_of(&status, 1), Some(DeviceState::Online));
    });
}

/// The old device fails while the new one is taken in: that one stays, and it is said what is to be done.
#[test]
fn a_device_that_was_added_is_named_if_the_old_one_does_not_leave() {
    let disks = devices(5, DISK);
    story(async move |rt| {
        let array = create(&rt, &disks[..4], "ec2+1").await;
        array.wait_idle(&[]).await;
        let slow = FaultFilter::new(disks[4].clone());
        slow.add(Rule::once(OpKind::Write, 0, Effect::Hang));
        let (asked, new) = (array.clone(), slow.clone());
        let replaced = rt.spawn(async move { asked.replace_in_use(1, new).await });
        rt.sleep(SECOND).await;
        assert!(slow.hits() > 0, "it is under way");
        array.fail(1, false).await.unwrap();
        slow.release();
        let error = replaced.await.unwrap_err();
        assert!(
            matches!(
                error,
                Error::OldStays {
                    index: 4,
                    old: 1,
                    ..
                }
            ),
            "{error:?}"
        );
        let text = error.to_string();
        assert!(text.contains("added as device 4"), "{text}");
        assert!(text.ends_with("'ashlar remove ARRAY 1'"), "{text}");
        array.wait_idle(&[]).await;
        assert_eq!(array.status().await.state, ArrayState::Optimal);
        array.remove(1).await.unwrap();
        let status = array.status().await;
        assert_eq!(state_of(&status, 4), Some(DeviceState::Online));
        read(&array, 1, "replaced").await;
    });
}

/// The power goes at some moment: without any one device all is there, and `remove` of the old one goes on.
#[test]
fn the_power_may_go_at_any_moment_of_a_replacement() {
    let before = devices(5, DISK);
    let kept = before.clone();
    story(async move |rt| {
        let array = create(&rt, &kept[..4], "raid5").await;
        array.merge().await.unwrap();
    });
    let mut seen = [0; 4];
    for cut in (0..200).map(|n| 1700 + n * 6) {
        let disks = copies(&before);
        let kept = disks.clone();
        let rt = Rt::simulated(cut);
        let handle = rt.clone();
        let _ = rt.run_for(cut, async move {
            let array = import(&handle, &kept, &[4]).await;
            array.replace_in_use(1, kept[4].clone()).await.unwrap();
            array.wait_idle(&[]).await;
        });
        rt.shutdown();
        for lost in [None, Some(0), Some(3), Some(4)] {
            let disks = copies(&disks);
            let at = story(async move |rt| {
                let away: Vec<usize> = lost.into_iter().collect();
                let array = import(&rt, &disks, &away).await;
                let what = format!("cut {cut}, without {lost:?}");
                let status = array.status().await;
                read(&array, 1, &what).await;
                if lost.is_some() {
                    return 0;
                }
                let (new, old) = (state_of(&status, 4), state_of(&status, 1));
                if new != Some(DeviceState::Online) {
                    assert_eq!(old, Some(DeviceState::Online), "{what}");
                    return 0;
                }
                if old == Some(DeviceState::Online) {
                    array.remove(1).await.unwrap();
                }
                array.wait_idle(&[]).await;
                let after = array.status().await;
                assert_eq!(state_of(&after, 1), None, "{what}");
                assert_eq!(after.state, ArrayState::Optimal, "{what}");
                read(&array, 1, &what).await;
                match old {
                    Some(DeviceState::Online) => 1,
                    Some(_) => 2,
                    None => 3,
                }
            });
            if lost.is_none() {
                seen[at] += 1;
            }
        }
    }
    assert!(
        seen.iter().all(|n| *n > 0),
        "before, between, after, at the end: {seen:?}"
    );
}

/// Where a device is missing already and all space was promised, a device may be replaced: there is no less space then.
#[test]
fn a_device_is_replaced_where_another_is_missing() {
    let disks = devices(9, DISK);
    story(async move |rt| {
        let array = Array::create(&rt, refs(&disks[..8]), small("ec4+2"));
        let array = array.await.unwrap();
        let all = array.status().await.capacity.usable_bytes / MIB * MIB;
        array.volume_create("v", volume(all)).await.unwrap();
        common::fill(&array.volume("v").unwrap(), SIZE, 16 << 10, 1, "written").await;
        array.fail(0, false).await.unwrap();
        array.wait_idle(&[]).await;
        let smaller = array.check_replacement_in_use(3, DISK / 2);
        assert!(
            matches!(smaller, Err(Error::NoRoomWith { .. })),
            "{smaller:?}"
        );
        array.replace_in_use(3, disks[8].clone()).await.unwrap();
        array.wait_idle(&[]).await;
        let status = array.status().await;
        assert_eq!(state_of(&status, 3), None, "{:?}", array.stuck(&[]));
        read(&array, 1, "replaced").await;
    });
}
