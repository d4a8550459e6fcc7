//! The spare space of an array, set while it runs.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::rc::Rc;

use ashlar_device::MemDevice;
use ashlar_engine::{Array, Error, Import, Work};
use ashlar_rt::{Rt, SECOND};

use crate::common::room::{all_promised, give_up_after, slow};
use crate::common::{
    self, DISK, copies, create, devices, read, refs, small, story, volume, without, write,
};

const MIB: u64 = 1 << 20;

async fn import(rt: &Rt, disks: &[Rc<MemDevice>], away: &[usize]) -> Array {
    let array = Array::import(rt, without(disks, away), Import::default()).await;
    array.unwrap_or_else(|e| panic!("without {away:?}: {e}"))
}

/// What `get` and `status` say of it, and usable space.
async fn spare(array: &Array) -> (String, u16, u64) {
    let status = array.status().await;
    let got = array.get(Some("spare")).unwrap().remove(0).1;
    (got, status.spare, status.capacity.usable_bytes)
}

/// It takes space from what may be promised and gives it back, and an import finds it as it was set.
#[test]
fn spare_space_is_set_and_found_again() {
    for (layout, count) in [
        ("ec2+1", 5),
        ("ec3+2", 7),
        ("raid1:2", 4),
        ("grid:5(2+1+0)", 5),
    ] {
        let disks = devices(count, DISK);
        let kept = disks.clone();
        let (without_spare, with_spare) = story(async move |rt| {
            let array = create(&rt, &kept, layout).await;
            let (_, none, before) = spare(&array).await;
            assert_eq!(none, 0);
            let generation = array.status().await.generation;
            array.set("spare", "1").await.unwrap();
            let (got, shown, after) = spare(&array).await;
            assert_eq!((got.as_str(), shown), ("1", 1), "{layout}");
            assert!(after < before, "{layout}: {after} of {before}");
            assert_eq!(array.status().await.generation, generation + 1);
            array.set("spare", "1").await.unwrap();
            let now = array.status().await.generation;
            assert_eq!(now, generation + 1, "what is so already changes nothing");
            write(&array, 2).await;
            array.volume("v").unwrap().flush().await.unwrap();
            (before, after)
        });
        for away in [&[][..], &[0], &[3]] {
            let disks = copies(&disks);
            story(async move |rt| {
                let array = import(&rt, &disks, away).await;
                let (got, shown, usable) = spare(&array).await;
                assert_eq!((got.as_str(), shown), ("1", 1), "{layout} without {away:?}");
                assert_eq!(
                    usable, with_spare,
                    "{layout} without {away:?}: it stands for one"
                );
                read(&array, 2, layout).await;
                array.set("spare", "0").await.unwrap();
                let (got, _, usable) = spare(&array).await;
                assert_eq!(got, "0");
                if away.is_empty() {
                    assert_eq!(usable, without_spare, "{layout}");
                }
                read(&array, 2, layout).await;
            });
        }
    }
}

/// With spare space for a device the loss of one takes nothing of what was promised.
#[test]
fn spare_space_holds_what_a_lost_device_held() {
    let disks = devices(5, 16 * MIB);
    story(async move |rt| {
        let array = Array::create(&rt, refs(&disks), small("ec2+1"))
            .await
            .unwrap();
        array.set("spare", "1").await.unwrap();
        let size = array.room_for(4096);
        array.volume_create("v", volume(size)).await.unwrap();
        common::fill(&array.volume("v").unwrap(), size, 16 << 10, 1, "full").await;
        array.fail(0, false).await.unwrap();
        array.wait_idle(&[Work::Rebuild]).await;
        let status = array.status().await;
        assert!(!status.capacity.overpromised, "{:?}", status.capacity);
        assert!(
            status.exposure.iter().all(|e| e.redundancy == 1),
            "{:?}",
            status.exposure
        );
        common::check(&array.volume("v").unwrap(), size, 1, "rebuilt").await;
    });
}

/// What does not fit is refused with numbers, and changes nothing.
#[test]
fn spare_space_that_cannot_be_is_refused() {
    for (layout, count, wanted) in [
        ("ec2+1", 5, "3"),
        ("raid5", 4, "1"),
        ("raid10", 4, "2"),
        ("raid0", 3, "1"),
        ("raid50:2", 8, "1"),
        ("draid1:2d:5c:1s", 5, "2"),
        ("draid1:2d:5c:1s", 5, "0"),
        ("ec2+1", 5, "x"),
        ("ec2+1", 5, "65536"),
    ] {
        let disks = devices(count, DISK);
        story(async move |rt| {
            let array = create(&rt, &disks, layout).await;
            let (before, was) = (array.status().await, spare(&array).await);
            let error = array.set("spare", wanted).await.unwrap_err();
            let fits = match error {
                Error::TooFewToSpare { .. } => wanted == "3" || layout == "raid5",
                Error::SpareNamed { named: 1, .. } => layout.starts_with("draid"),
                Error::Layout(_) => ["raid10", "raid0", "raid50:2"].contains(&layout),
                Error::Setting { .. } => ["x", "65536"].contains(&wanted),
                _ => false,
            };
            assert!(fits, "{layout} {wanted}: {error}");
            assert_eq!(array.status().await.generation, before.generation);
            assert_eq!(spare(&array).await, was, "{layout} {wanted}");
        });
    }
    let disks = devices(5, 16 * MIB);
    story(async move |rt| {
        let (array, ..) = all_promised(&rt, &disks, "ec2+1").await;
        let (before, was) = (array.status().await, spare(&array).await);
        match array.set("spare", "1").await.unwrap_err() {
            Error::NoRoomToSpare {
                spare: 1,
                promised,
                usable,
            } => assert!(usable < promised, "{usable} of {promised}"),
            error => panic!("{error}"),
        }
        assert_eq!(array.status().await.generation, before.generation);
        assert_eq!(spare(&array).await, was);
        array.volume_destroy("v").await.unwrap();
        array.wait_idle(&[]).await;
        rt.sleep(60 * SECOND).await; // until nothing of it is left
        array.set("spare", "1").await.unwrap();
    });
}

/// A crash at any time leaves the number that was, or the one that was set.
#[test]
fn a_crash_leaves_one_number_or_the_other() {
    let mut seen = [false; 2];
    for polls in (0..40).chain((40..400).step_by(20)) {
        let disks = devices(5, DISK);
        let kept = disks.clone();
        story(async move |rt| {
            let array = create(&rt, &kept, "ec2+1").await;
            array.export().await.unwrap();
            let late = slow(&rt, &kept, SECOND / 100);
            let array = Array::import(&rt, late, Import::default()).await.unwrap();
            give_up_after(polls, array.set("spare", "1")).await;
            rt.sleep(polls * SECOND / 1000).await;
        });
        let found = story(async move |rt| {
            let array = import(&rt, &disks, &[]).await;
            read(&array, 1, "after a crash").await;
            let (got, shown, _) = spare(&array).await;
            assert_eq!(got, shown.to_string());
            array.set("spare", "2").await.unwrap();
            shown
        });
        seen[usize::from(found)] = true;
    }
    assert_eq!(seen, [true; 2], "crashes before and after it took effect");
}

/// Devices may not leave what spare space needs, and what it is set to already is judged as anew.
#[test]
fn no_device_leaves_that_spare_space_needs() {
    let disks = devices(6, DISK);
    story(async move |rt| {
        let array = create(&rt, &disks, "ec2+1").await;
        array.set("spare", "2").await.unwrap();
        array.remove(5).await.unwrap();
        array.wait_idle(&[]).await;
        let expected = Error::SpareNeeds {
            index: 4,
            have: 4,
            need: 5,
            spare: 2,
        };
        let refused = array.remove(4).await.unwrap_err();
        assert_eq!(refused.to_string(), expected.to_string());
        array.set("spare", "1").await.unwrap();
        array.remove(4).await.unwrap();
        array.wait_idle(&[]).await;
        assert_eq!(array.status().await.devices_total, 4);
        // One that is out of use leaves as ever: nothing is left for a spare then.
        array.fail(3, false).await.unwrap();
        array.wait_idle(&[]).await;
        array.merge().await.unwrap();
        array.wait_idle(&[]).await;
        array.remove(3).await.unwrap();
        let refused = array.set("spare", "1").await;
        let expected = matches!(
            refused,
            Err(Error::TooFewToSpare {
                have: 3,
                need: 4,
                ..
            })
        );
        assert!(expected, "{refused:?}");
    });
}
