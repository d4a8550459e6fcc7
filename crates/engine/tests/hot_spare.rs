//! Devices that hold nothing until another is lost.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::rc::Rc;

use ashlar_device::{DeviceRef, Effect, Fault, FaultFilter, MemDevice, OpKind, Rule};
use ashlar_engine::status::{ArrayState, ArrayStatus, DeviceState};
use ashlar_engine::{Array, Create, Due, Error, Import, Work};
use ashlar_rt::{Rt, SECOND};

use crate::common::{
    DISK, SIZE, copies, create, devices, image, read, refs, run, small, story, volume, without,
    write,
};

async fn import(rt: &Rt, disks: &[Rc<MemDevice>], away: &[usize]) -> Array {
    let array = Array::import(rt, without(disks, away), Import::default()).await;
    array.unwrap_or_else(|e| panic!("without {away:?}: {e}"))
}

fn options(name: Option<&str>) -> Import {
    Import {
        name: name.map(String::from),
        ..Import::default()
    }
}

/// What a device says of itself: its array's name, and its row.
async fn says(disk: &Rc<MemDevice>) -> (String, u16) {
    let device: DeviceRef = disk.clone();
    let label = ashlar_engine::probe(&device).await.unwrap().unwrap();
    (label.array_name, label.index)
}

/// An array of four devices with a fifth as a hot spare.
async fn with_spare(rt: &Rt, disks: &[Rc<MemDevice>]) -> Array {
    let array = create(rt, &disks[..4], "ec2+1").await;
    let before = array.status().await;
    assert_eq!(array.add_hot_spare(disks[4].clone(), "").await.unwrap(), 4);
    let after = array.status().await;
    let usable = |s: &ArrayStatus| s.capacity.usable_bytes;
    assert_eq!(usable(&after), usable(&before), "it counts for nothing");
    assert_eq!((after.devices_total, after.state), (4, ArrayState::Optimal));
    assert_eq!(after.devices[4].state, DeviceState::Spare);
    assert_eq!(after.devices[4].path, "mem4");
    assert_eq!(
        array.use_hot_spare().await.unwrap(),
        None,
        "nothing is lost"
    );
    array
}

async fn used_for(rt: &Rt, array: &Array, lost: u16) {
    let due = array.use_hot_spare().await.unwrap();
    assert_eq!(due, Some(Due { spare: 4, lost }));
    assert_eq!(array.use_hot_spare().await.unwrap(), None, "once");
    array.wait_idle(&[Work::Rebuild]).await;
    rt.sleep(5 * SECOND).await;
    let status = array.status().await;
    assert_eq!(status.state, ArrayState::Optimal);
    assert_eq!((status.devices.len(), status.health.devices_gone), (4, 0));
    assert_eq!(status.devices[usize::from(lost)].path, "mem4");
    read(array, 1, "rebuilt").await;
}

/// A device that could take the place of none is refused, and nothing is changed.
#[test]
fn a_hot_spare_is_as_large_as_the_smallest_device() {
    let disks = devices(4, DISK);
    let small = Rc::new(MemDevice::new("small", DISK / 2));
    story(async move |rt| {
        let array = create(&rt, &disks, "ec2+1").await;
        let refused = array.add_hot_spare(small.clone(), "").await;
        assert!(
            matches!(refused, Err(Error::TooSmallToSpare { .. })),
            "{refused:?}"
        );
        assert_eq!(array.status().await.devices.len(), 4);
        assert!(image(&small).iter().all(|byte| *byte == 0));
    });
}

#[test]
fn a_hot_spare_takes_the_place_of_a_failed_device() {
    let disks = devices(5, DISK);
    let kept = disks.clone();
    story(async move |rt| {
        let array = with_spare(&rt, &kept).await;
        array.offline(2).await.unwrap();
        assert_eq!(array.use_hot_spare().await.unwrap(), None, "it is awaited");
        array.fail(2, false).await.unwrap();
        used_for(&rt, &array, 2).await;
        array.export().await.unwrap();
    });
    story(async move |rt| {
        let array = import(&rt, &disks, &[2]).await;
        assert_eq!(array.status().await.state, ArrayState::Optimal);
        write(&array, 2).await;
        read(&array, 2, "imported").await;
    });
}

#[test]
fn a_hot_spare_is_found_by_an_import_and_not_missed() {
    let disks = devices(5, DISK);
    let kept = disks.clone();
    story(async move |rt| drop(with_spare(&rt, &kept).await));
    let gone = copies(&disks);
    story(async move |rt| {
        let array = import(&rt, &gone, &[4]).await;
        let status = array.status().await;
        assert_eq!(status.state, ArrayState::Optimal);
        array.fail(0, false).await.unwrap();
        assert_eq!(array.use_hot_spare().await.unwrap(), None, "it is not here");
    });
    story(async move |rt| {
        let array = import(&rt, &disks, &[1]).await;
        array.set("reconstruct.delay", "1h").await.unwrap();
        assert_eq!(
            array.use_hot_spare().await.unwrap(),
            None,
            "it may come back"
        );
        array.set("reconstruct.delay", "0").await.unwrap();
        used_for(&rt, &array, 1).await;
    });
}

#[test]
fn a_hot_spare_that_is_removed_or_destroyed_is_erased() {
    for destroyed in [false, true] {
        let disks = devices(5, DISK);
        let kept = disks.clone();
        story(async move |rt| {
            let array = with_spare(&rt, &kept).await;
            match destroyed {
                true => array.destroy().await.unwrap(),
                false => {
                    array.remove(4).await.unwrap();
                    array.fail(0, false).await.unwrap();
                    assert_eq!(array.use_hot_spare().await.unwrap(), None);
                }
            }
        });
        let before = image(&disks[4]);
        assert!(before[..4096].iter().all(|b| *b == 0), "{destroyed}");
        let found = story(async move |rt| {
            Array::import(&rt, without(&disks, &[0, 1, 2, 3]), Import::default())
                .await
                .map(drop)
        });
        assert!(
            matches!(found, Err(Error::NoArray)),
            "{destroyed}: {found:?}"
        );
    }
}

/// Nothing can be taken from a hot spare but itself: a device that was lost is not made of it.
#[test]
fn a_hot_spare_can_only_be_removed() {
    let disks = devices(6, DISK);
    story(async move |rt| {
        let array = with_spare(&rt, &disks[..5]).await;
        let refused = [
            array.offline(4).await,
            array.fail(4, true).await,
            array.replace(4, disks[5].clone(), true).await.map(drop),
            array.online(disks[4].clone(), true).await.map(drop),
            array.set_domain(4, "x").await.map(drop),
            array.use_all_of(4).await.map(drop),
        ];
        for refused in refused {
            assert!(matches!(refused, Err(Error::HotSpare(4))), "{refused:?}");
        }
        let status = array.status().await;
        assert_eq!(
            (status.devices_total, status.state),
            (4, ArrayState::Optimal)
        );
        assert_eq!(status.devices[4].state, DeviceState::Spare);
        array.fail(0, false).await.unwrap();
        used_for(&rt, &array, 0).await;
        array.fail(1, false).await.unwrap();
        assert_eq!(array.use_hot_spare().await.unwrap(), None, "it is used");
        let none = array.remove(4).await;
        assert!(matches!(none, Err(Error::NoDevice(4))), "{none:?}");
    });
}

/// Two devices are lost and one spare is there: it takes the place of one, and the other is rebuilt as without it.
#[test]
fn a_hot_spare_is_used_once() {
    let disks = devices(6, DISK);
    story(async move |rt| {
        let array = create(&rt, &disks[..5], "ec2+2").await;
        assert_eq!(array.add_hot_spare(disks[5].clone(), "").await.unwrap(), 5);
        array.fail(0, false).await.unwrap();
        array.fail(3, false).await.unwrap();
        let both = [array.clone(), array.clone()];
        let both = both.map(|array| rt.spawn(async move { array.use_hot_spare().await }));
        let mut used = Vec::new();
        for use_of_it in both {
            match use_of_it.await {
                Ok(due) => used.extend(due),
                Err(error) => assert!(matches!(error, Error::ComesIn(_)), "{error}"),
            }
        }
        assert_eq!(used, [Due { spare: 5, lost: 0 }]);
        assert_eq!(array.use_hot_spare().await.unwrap(), None);
        array.wait_idle(&[Work::Rebuild]).await;
        let paths: Vec<String> = array.device_paths().into_iter().map(|p| p.1).collect();
        assert_eq!(paths, ["mem5", "mem1", "mem2", "mem4"]);
        read(&array, 1, "after both").await;
    });
}

/// Both devices of a pair are lost, and with them some data: these keep the spare from no other that is lost.
#[test]
fn a_device_that_cannot_be_given_up_does_not_keep_the_spare_from_another() {
    let disks = devices(7, DISK);
    story(async move |rt| {
        let array = create(&rt, &disks[..6], "raid10").await;
        array.merge().await.unwrap();
        array.add_hot_spare(disks[6].clone(), "").await.unwrap();
        array.fail(0, false).await.unwrap();
        array.fail(1, true).await.unwrap();
        assert_eq!(array.hot_spares_due(), []);
        array.fail(4, true).await.unwrap();
        let first = Due { spare: 6, lost: 4 };
        assert_eq!(array.hot_spares_due(), [first]);
        assert_eq!(array.use_hot_spare().await.unwrap(), Some(first));
        assert_eq!(array.use_hot_spare().await.unwrap(), None);
    });
}

/// After an import nobody knows which columns lie on devices that are out of use: a hot spare takes the place of none that
/// may have the last copy of something, nor does another device.
#[test]
fn an_import_does_not_give_a_device_up_that_may_have_the_last_copy() {
    for mend in [false, true] {
        let disks = devices(8, DISK);
        let kept = disks.clone();
        story(async move |rt| {
            let array = create(&rt, &kept[..6], "ec2+1").await;
            array.merge().await.unwrap();
            array.add_hot_spare(kept[6].clone(), "").await.unwrap();
            array.pause(Work::Rebuild, true).unwrap();
            array.fail(0, false).await.unwrap();
            array.fail(1, true).await.unwrap();
            assert_eq!(array.hot_spares_due(), []);
            array.merge().await.unwrap();
            array.export().await.unwrap();
        });
        story(async move |rt| {
            let array = import(&rt, &disks, &[0, 1]).await;
            assert_eq!(array.hot_spares_due(), [], "both may have the last copy");
            let other = array.replace(0, disks[7].clone(), false).await;
            assert!(matches!(other, Err(Error::LastCopy(0))), "{other:?}");
            if mend {
                // What the one that is back holds is known: what is lost without the other lies on that.
                array.online(disks[1].clone(), true).await.unwrap();
                array.wait_idle(&[Work::Rebuild]).await;
                read(&array, 1, "with one of them").await;
                let due = array.use_hot_spare().await.unwrap();
                assert_eq!(due, Some(Due { spare: 6, lost: 0 }));
            } else {
                array.fail(2, true).await.unwrap();
                let due: Vec<u16> = array.hot_spares_due().iter().map(|d| d.lost).collect();
                assert_eq!(due, [], "device 2 has the last copy of some as well");
                // The operator may give it up.
                array.replace(0, disks[7].clone(), true).await.unwrap();
            }
        });
    }
}

/// All devices of some segments were away at an import: what these hold counts again when they are back, and until then
/// nothing takes their place.
#[test]
fn devices_that_were_all_away_bring_back_what_they_hold() {
    let disks = devices(7, DISK);
    let kept = disks.clone();
    story(async move |rt| {
        let array = create(&rt, &kept[..6], "raid10").await;
        array.merge().await.unwrap();
        array.export().await.unwrap();
    });
    for backs in [&[0usize][..], &[1], &[0, 1]] {
        let kept = copies(&disks);
        story(async move |rt| {
            let options = Import {
                degraded: true,
                ..Import::default()
            };
            let away = without(&kept, &[0, 1, 6]);
            let array = Array::import(&rt, away, options).await.unwrap();
            let status = array.status().await;
            assert_eq!(status.state, ArrayState::Failed);
            assert!(status.unreadable_bytes > 0);
            array.add_hot_spare(kept[6].clone(), "").await.unwrap();
            array.set("reconstruct.delay", "0").await.unwrap();
            assert_eq!(array.hot_spares_due(), []);
            array.merge().await.unwrap();
            for index in [0, 1] {
                let check = array.check_replacement(index, DISK, false);
                assert!(matches!(check, Err(Error::LastCopy(_))), "{check:?}");
            }
            for index in backs {
                let back = array.online(kept[*index].clone(), false).await.unwrap();
                assert!(back.kept > 0, "{back:?}");
            }
            let status = array.status().await;
            assert_eq!(status.unreadable_bytes, 0);
            read(&array, 1, "back").await;
            array.wait_idle(&[]).await;
            array.export().await.unwrap();
            let array = import(&rt, &kept, &[]).await;
            read(&array, 1, "imported").await;
        });
    }
}

/// A hot spare that has become smaller is let go: neither the import nor what follows writes behind its end.
#[test]
fn a_hot_spare_that_has_shrunk_is_not_used() {
    let disks = devices(5, DISK);
    let kept = disks.clone();
    story(async move |rt| drop(with_spare(&rt, &kept).await));
    let small = Rc::new(disks[4].resize(DISK / 2));
    let mut disks = disks;
    disks[4] = small;
    story(async move |rt| {
        let named = Import {
            name: Some("other".into()),
            ..Import::default()
        };
        let array = Array::import(&rt, refs(&disks), named).await.unwrap();
        array.fail(0, false).await.unwrap();
        assert_eq!(array.use_hot_spare().await.unwrap(), None);
        let told = array.events(0);
        let told = told.iter().find(|e| e.kind == "hot-spare-failed").unwrap();
        assert!(told.text.contains("has shrunk"), "{}", told.text);
        let back = array.online(disks[4].clone(), false).await;
        assert!(
            matches!(back, Err(Error::Shrunk { index: 4, .. })),
            "{back:?}"
        );
        array.remove(4).await.unwrap();
        read(&array, 1, "without it").await;
    });
}

/// A row of a hot spare that is away is no place for a device that would hold data.
#[test]
fn a_hot_spare_that_is_away_is_not_replaced() {
    let disks = devices(6, DISK);
    let kept = disks.clone();
    story(async move |rt| drop(with_spare(&rt, &kept[..5]).await));
    story(async move |rt| {
        let array = import(&rt, &disks[..4], &[]).await;
        let refused = array.replace(4, disks[5].clone(), true).await;
        assert!(matches!(refused, Err(Error::HotSpare(4))), "{refused:?}");
        assert!(image(&disks[5]).iter().all(|byte| *byte == 0));
    });
}

/// A device that is lost while it is replaced has its place taken already, and one that is removed leaves none.
#[test]
fn no_hot_spare_is_used_for_a_device_that_was_leaving() {
    for replaced in [true, false] {
        let disks = devices(6, DISK);
        story(async move |rt| {
            let array = with_spare(&rt, &disks[..5]).await;
            match replaced {
                true => drop(array.replace_in_use(1, disks[5].clone()).await.unwrap()),
                false => {
                    array.add(disks[5].clone(), "").await.unwrap();
                    let _ = array.remove(1).await.unwrap();
                }
            }
            assert_eq!(array.leaving(), [1]);
            array.fail(1, false).await.unwrap();
            assert_eq!(array.use_hot_spare().await.unwrap(), None, "it was leaving");
            array.wait_idle(&[Work::Rebuild]).await;
            rt.sleep(5 * SECOND).await;
            array.remove(1).await.unwrap();
            assert_eq!(array.status().await.state, ArrayState::Optimal);
            read(&array, 1, "rebuilt").await;
            // It is there for the next that is lost.
            array.fail(2, false).await.unwrap();
            let due = array.use_hot_spare().await.unwrap();
            assert_eq!(due, Some(Due { spare: 4, lost: 2 }));
        });
    }
}

/// A device that fails as it is taken in is no spare any more, and the next one is used.
#[test]
fn a_hot_spare_that_fails_makes_room_for_the_next() {
    let disks = devices(6, DISK);
    let broken = FaultFilter::new(disks[4].clone());
    story(async move |rt| {
        let array = create(&rt, &disks[..4], "ec2+1").await;
        assert_eq!(array.add_hot_spare(broken.clone(), "").await.unwrap(), 4);
        assert_eq!(array.add_hot_spare(disks[5].clone(), "").await.unwrap(), 5);
        broken.add(Rule::within(
            OpKind::Write,
            0..DISK,
            Effect::Fail(Fault::Media),
        ));
        array.fail(2, false).await.unwrap();
        let failed = array.use_hot_spare().await;
        assert!(matches!(failed, Err(Error::Device { .. })), "{failed:?}");
        let due = array.use_hot_spare().await.unwrap();
        assert_eq!(due, Some(Due { spare: 5, lost: 2 }));
        let events = array.events(0);
        let kinds = |kind| events.iter().filter(|e| e.kind == kind).count();
        assert_eq!((kinds("hot-spare-failed"), kinds("hot-spare-used")), (1, 1));
        array.wait_idle(&[Work::Rebuild]).await;
        read(&array, 1, "rebuilt").await;
    });
}

/// A device that fails once it was erased, as it takes the place of one that was only unplugged, takes nothing of that with
/// it: the other is awaited as before, and comes back with what it holds.
#[test]
fn a_device_that_fails_late_leaves_the_lost_one_its_row() {
    for spare in [true, false] {
        let disks = devices(5, DISK);
        let lost = FaultFilter::new(disks[2].clone());
        let late = FaultFilter::new(disks[4].clone());
        story(async move |rt| {
            let mut all = refs(&disks[..4]);
            all[2] = lost.clone();
            let array = Array::create(&rt, all, small("ec2+1")).await.unwrap();
            array.volume_create("v", volume(SIZE)).await.unwrap();
            write(&array, 1).await;
            array.merge().await.unwrap();
            if spare {
                array.add_hot_spare(late.clone(), "").await.unwrap();
            }
            lost.set_offline(true);
            let v = array.volume("v").unwrap();
            v.write(0, run(0, 8, 1), true).await.unwrap();
            let awaited = array.awaited();
            assert_eq!(awaited.len(), 1, "{awaited:?}");
            array.pause(Work::Rebuild, true).unwrap();
            array.set("reconstruct.delay", "0").await.unwrap();
            // Its first superblock is erased, and not written again.
            let superblock = Rule::within(OpKind::Write, 0..4096, Effect::Fail(Fault::Media));
            late.add(Rule {
                skip: 1,
                ..superblock
            });
            let failed = match spare {
                true => array.use_hot_spare().await.map(drop),
                false => array.replace(2, late.clone(), false).await.map(drop),
            };
            assert!(matches!(failed, Err(Error::Device { .. })), "{failed:?}");
            assert_eq!(array.awaited(), awaited, "with its own identity");
            let status = array.status().await;
            assert_eq!(status.devices[2].state, DeviceState::Missing);
            assert_eq!(status.devices.len(), 4, "the spare is none any more");
            lost.clear();
            let taken = array.online(lost.clone(), false).await.unwrap();
            assert!(taken.kept > 0, "{taken:?}");
            array.pause(Work::Rebuild, false).unwrap();
            array.wait_idle(&[Work::Rebuild]).await;
            rt.sleep(5 * SECOND).await;
            assert_eq!(array.status().await.state, ArrayState::Optimal);
            read(&array, 1, "the lost device is back").await;
        });
    }
}

/// The row of a lost device says its failure domain, and so must be the spare's.
#[test]
fn a_hot_spare_stays_in_its_failure_domain() {
    let disks = devices(6, DISK);
    story(async move |rt| {
        let options = Create {
            domains: ["a", "b", "c", "d"].map(String::from).to_vec(),
            ..small("ec2+1")
        };
        let array = Array::create(&rt, refs(&disks[..4]), options)
            .await
            .unwrap();
        for none in ["", "e"] {
            let refused = array.add_hot_spare(disks[4].clone(), none).await;
            assert!(
                matches!(refused, Err(Error::NoDomainToSpare(_))),
                "{refused:?}"
            );
        }
        array.add_hot_spare(disks[4].clone(), "a").await.unwrap();
        array.add_hot_spare(disks[5].clone(), "b").await.unwrap();
        let unused = || {
            let events = array.events(0).into_iter();
            events.filter(|e| e.kind == "hot-spare-unused").count()
        };
        array.set_domain(0, "x").await.unwrap();
        assert_eq!(unused(), 1, "no device is in a");
        array.set_domain(0, "a").await.unwrap();
        assert_eq!(unused(), 1);
        array.fail(2, false).await.unwrap();
        assert_eq!(array.hot_spares_due(), [], "it is in c");
        array.fail(1, true).await.unwrap();
        assert_eq!(array.hot_spares_due(), [Due { spare: 5, lost: 1 }]);
    });
}

/// An array that is imported under another name has one name on all of its devices.
#[test]
fn a_hot_spare_gets_the_name_of_its_array() {
    let disks = devices(5, DISK);
    let kept = disks.clone();
    story(async move |rt| drop(with_spare(&rt, &kept).await));
    let kept = disks.clone();
    story(async move |rt| {
        assert_eq!(says(&kept[4]).await, ("tank".to_string(), 4));
        let array = Array::import(&rt, refs(&kept), options(Some("pool")))
            .await
            .unwrap();
        assert_eq!(says(&kept[4]).await, ("pool".to_string(), 4));
        array.export().await.unwrap();
    });
    // One that was away meanwhile gets it when it is back.
    let kept = disks.clone();
    story(async move |rt| {
        let without = without(&kept, &[4]);
        let array = Array::import(&rt, without, options(Some("lake")))
            .await
            .unwrap();
        assert_eq!(says(&kept[4]).await, ("pool".to_string(), 4));
        array.online(kept[4].clone(), false).await.unwrap();
        assert_eq!(says(&kept[4]).await, ("lake".to_string(), 4));
        array.export().await.unwrap();
    });
    // Or at the next import that finds it.
    let kept = disks.clone();
    story(async move |rt| {
        let without = without(&kept, &[4]);
        let array = Array::import(&rt, without, options(Some("sea"))).await;
        array.unwrap().export().await.unwrap();
    });
    story(async move |rt| {
        let array = import(&rt, &disks, &[]).await;
        assert_eq!(array.name(), "sea");
        assert_eq!(says(&disks[4]).await, ("sea".to_string(), 4));
        array.fail(3, false).await.unwrap();
        used_for(&rt, &array, 3).await;
    });
}

/// A generation names 64 before it, and a hot spare has superblocks of the one in which it was here last.
#[test]
fn a_hot_spare_that_was_away_for_long_comes_back() {
    let disks = devices(5, DISK);
    let kept = disks.clone();
    story(async move |rt| drop(with_spare(&rt, &kept).await));
    story(async move |rt| {
        let array = import(&rt, &disks, &[4]).await;
        for _ in 0..35 {
            array.offline(0).await.unwrap();
            array.online(disks[0].clone(), false).await.unwrap();
        }
        array.online(disks[4].clone(), false).await.unwrap();
        array.wait_idle(&[Work::Rebuild]).await;
        array.fail(2, false).await.unwrap();
        used_for(&rt, &array, 2).await;
    });
}

/// The power goes at some moment of an addition, or as the spare takes the place of a device: then the array has the
/// device as a spare, not at all, or in that place, and is whole once a spare that it has is used.
#[test]
fn the_power_may_go_at_any_moment_of_a_hot_spare() {
    let before = devices(5, DISK);
    let kept = before.clone();
    story(async move |rt| {
        create(&rt, &kept[..4], "ec2+1")
            .await
            .export()
            .await
            .unwrap()
    });
    let (mut ended, mut seen) = (0, [0; 3]);
    for cut in (0..120).map(|n| 50 + n * 25) {
        let disks = copies(&before);
        let kept = disks.clone();
        let rt = Rt::simulated(cut);
        let handle = rt.clone();
        let done = rt.run_for(cut, async move {
            let array = import(&handle, &kept, &[4]).await;
            array.add_hot_spare(kept[4].clone(), "").await.unwrap();
            array.fail(1, false).await.unwrap();
            array.use_hot_spare().await.unwrap();
        });
        rt.shutdown();
        ended += u32::from(done.is_ok());
        let kept = disks.clone();
        let (found, whole) = story(async move |rt| {
            let array = import(&rt, &kept, &[]).await;
            let devices = array.status().await.devices;
            let found = devices.into_iter().find(|d| d.path == "mem4");
            array.use_hot_spare().await.unwrap();
            array.wait_idle(&[Work::Rebuild]).await;
            rt.sleep(5 * SECOND).await;
            read(&array, 1, "after a power cut").await;
            let whole = array.status().await.state == ArrayState::Optimal;
            array.export().await.unwrap();
            (found.map(|d| (d.state, d.index)), whole)
        });
        let states = [
            None,
            Some((DeviceState::Spare, 4)),
            Some((DeviceState::Online, 1)),
        ];
        let at = states.iter().position(|state| *state == found);
        seen[at.unwrap_or_else(|| panic!("cut {cut}: {found:?}"))] += 1;
        assert!(whole, "cut {cut}: {found:?}");
        story(async move |rt| {
            let array = import(&rt, &disks, &[0]).await;
            read(&array, 1, "after a power cut and a loss").await;
        });
    }
    assert!(
        (1..120).contains(&ended),
        "some cuts were before the end: {ended}"
    );
    assert!(
        seen.iter().all(|n| *n > 0),
        "before, between and after: {seen:?}"
    );
}
