//! Members that leave and come back, and devices that take the place of others: what counts again is there, whatever
//! else is lost afterwards.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::rc::Rc;

use ashlar_device::{Delay, DelayFilter, DeviceRef, FaultFilter, MemDevice};
use ashlar_engine::status::{ArrayState, DeviceState};
use ashlar_engine::{Array, Error, Import, Work};
use ashlar_rt::{MICROSECOND, MILLISECOND, Rt, SECOND};

use crate::common::{
    self, DISK, SIZE, copies, devices, image, read, refs, small, story, volume, without, write,
};

async fn create(rt: &Rt, disks: Vec<DeviceRef>, layout: &str) -> Array {
    let array = Array::create(rt, disks, small(layout)).await.unwrap();
    array.volume_create("v", volume(SIZE)).await.unwrap();
    array
}

async fn import(rt: &Rt, disks: Vec<DeviceRef>) -> Array {
    Array::import(rt, disks, Import::default()).await.unwrap()
}

async fn optimal(array: &Array, what: &str) {
    array.wait_idle(&[]).await;
    let status = array.status().await;
    assert_eq!(
        status.state,
        ArrayState::Optimal,
        "{what}: {:?}",
        array.stuck(&[])
    );
    assert!(status.lost.is_empty(), "{what}");
}

/// Any one device may be lost, and all of this version is read.
fn survives_one(disks: &[Rc<MemDevice>], version: u64) {
    for gone in 0..disks.len() {
        let disks = copies(disks);
        story(async move |rt| {
            let array = import(&rt, without(&disks, &[gone])).await;
            read(&array, version, &format!("without {gone}")).await;
        });
    }
}

/// What was written while a device was away is on it once the array says that it is optimal; what had been written
/// before was not written again.
#[test]
fn a_device_that_was_away_keeps_what_it_had() {
    let disks = devices(5, DISK);
    let kept = disks.clone();
    let (first, second) = story(async move |rt| {
        let array = create(&rt, refs(&kept), "ec2+1").await;
        write(&array, 1).await;
        array.merge().await.unwrap();
        array.offline(1).await.unwrap();
        array.wait_idle(&[]).await;
        let status = array.status().await;
        assert_eq!(status.devices[1].state, DeviceState::Offline);
        assert_eq!(
            status.state,
            ArrayState::Critical,
            "nothing is rebuilt while it is awaited"
        );
        let v = array.volume("v").unwrap();
        v.write(0, common::run(0, 8, 1), true).await.unwrap();
        let first = array.online(kept[1].clone(), false).await.unwrap();
        optimal(&array, "back").await;
        // The same, with everything overwritten meanwhile.
        array.offline(1).await.unwrap();
        write(&array, 2).await;
        let second = array.online(kept[1].clone(), false).await.unwrap();
        optimal(&array, "back again").await;
        read(&array, 2, "back again").await;
        (first, second)
    });
    assert!(first.kept > 4 && first.lacking < first.kept, "{first:?}");
    assert_eq!((first.index, second.index), (1, 1));
    survives_one(&disks, 2);
}

/// A device that is missing at an import is awaited, and taken in while the array runs.
#[test]
fn a_device_that_is_late_is_taken_in() {
    let disks = devices(5, DISK);
    let kept = disks.clone();
    story(async move |rt| {
        let array = create(&rt, refs(&kept), "ec2+1").await;
        write(&array, 1).await;
        array.export().await.unwrap();
    });
    let kept = disks.clone();
    story(async move |rt| {
        let array = import(&rt, without(&kept, &[2])).await;
        let status = array.status().await;
        assert_eq!(status.devices[2].state, DeviceState::Missing);
        assert_eq!(array.awaited().len(), 1);
        let v = array.volume("v").unwrap();
        v.write(0, common::run(0, 8, 1), true).await.unwrap();
        let taken = array.online(kept[2].clone(), false).await.unwrap();
        assert!(taken.kept > 4, "{taken:?}");
        assert!(array.awaited().is_empty());
        optimal(&array, "taken in").await;
        read(&array, 1, "taken in").await;
    });
    survives_one(&disks, 1);
}

/// If nobody comes, what lies on a missing device is rebuilt after the delay; a device that comes later is taken in all
/// the same.
#[test]
fn a_device_that_does_not_come_is_rebuilt_after_the_delay() {
    let disks = devices(6, DISK);
    let kept = disks.clone();
    story(async move |rt| {
        let array = create(&rt, refs(&kept), "ec2+2").await;
        write(&array, 1).await;
        array.export().await.unwrap();
    });
    let kept = disks.clone();
    story(async move |rt| {
        let array = import(&rt, without(&kept, &[2])).await;
        rt.sleep(60_000_000_000).await;
        assert_eq!(
            array.status().await.state,
            ArrayState::Degraded,
            "it is awaited"
        );
        let began = rt.now();
        optimal(&array, "rebuilt").await;
        assert!(rt.now() - began > 400_000_000_000, "after ten minutes");
        let taken = array.online(kept[2].clone(), false).await.unwrap();
        assert_eq!(taken.kept, 0, "all of it lies elsewhere");
        write(&array, 3).await;
        optimal(&array, "taken in").await;
    });
    survives_one(&disks, 3);
}

/// A wait for the rebuild goes on over the end of the delay, whenever that is asked: the rebuild is under way then.
#[test]
fn a_wait_goes_on_over_the_end_of_the_delay() {
    let disks = devices(6, DISK);
    story(async move |rt| {
        let array = create(&rt, refs(&disks), "ec2+2").await;
        write(&array, 1).await;
        array.export().await.unwrap();
        let array = import(&rt, without(&disks, &[2])).await;
        array.set("reconstruct.delay", "10s").await.unwrap();
        while array.status().await.state != ArrayState::Optimal {
            let ended = rt.timeout(MILLISECOND, array.wait_idle(&[])).await;
            let why = ended.and_then(|()| array.stuck(&[]));
            assert_eq!(why, None, "the rebuild comes, or runs");
        }
    });
}

/// An older image of a device is judged by what it holds, not by what it held when it left.
#[test]
fn an_older_image_counts_for_what_it_proves() {
    let disks = devices(5, DISK);
    let kept = disks.clone();
    story(async move |rt| {
        let array = create(&rt, refs(&kept), "ec2+1").await;
        write(&array, 1).await;
        array.merge().await.unwrap();
        let old = image(&kept[3]);
        write(&array, 2).await;
        array.merge().await.unwrap();
        array.offline(3).await.unwrap();
        kept[3].poke(0, &old);
        let _ = array.online(kept[3].clone(), false).await.unwrap();
        optimal(&array, "an old image").await;
        write(&array, 3).await;
        array.merge().await.unwrap();
        array.offline(3).await.unwrap();
        kept[3].poke(0, &old);
        let again = array.online(kept[3].clone(), false).await;
        // Its generation is one of the array's, and the image says that it is member 3.
        assert!(again.is_ok(), "{again:?}");
        optimal(&array, "twice").await;
    });
    survives_one(&disks, 3);
}

/// An older image of a member in use that is put back while the array is exported does not count.
#[test]
fn an_older_image_at_an_import_does_not_count() {
    let disks = devices(5, DISK);
    let kept = disks.clone();
    story(async move |rt| {
        let array = create(&rt, refs(&kept), "ec2+1").await;
        write(&array, 1).await;
        array.merge().await.unwrap();
        let old = image(&kept[3]);
        array.offline(2).await.unwrap();
        array.online(kept[2].clone(), false).await.unwrap();
        optimal(&array, "another came back").await;
        write(&array, 2).await;
        array.export().await.unwrap();
        kept[3].poke(0, &old);
    });
    let kept = disks.clone();
    story(async move |rt| {
        let array = import(&rt, refs(&kept)).await;
        assert_eq!(array.status().await.devices[3].state, DeviceState::Missing);
        read(&array, 2, "with an old image").await;
        let taken = array.online(kept[3].clone(), false).await.unwrap();
        assert_eq!(taken.kept, 0);
        optimal(&array, "taken in").await;
    });
    survives_one(&disks, 2);
}

/// The power goes at some moment of a take-in: whatever was durable is there, and the device comes back afterwards.
#[test]
fn the_power_may_go_at_any_moment_of_a_take_in() {
    let before = devices(5, DISK);
    let kept = before.clone();
    story(async move |rt| {
        let array = create(&rt, refs(&kept), "ec2+1").await;
        write(&array, 1).await;
        array.merge().await.unwrap();
        array.offline(1).await.unwrap();
        write(&array, 2).await;
    });
    let mut ended = 0;
    for cut in (0..60).map(|n| 200 + n * 150) {
        let disks = copies(&before);
        let kept = disks.clone();
        let rt = Rt::simulated(cut);
        let handle = rt.clone();
        let done = rt.run_for(cut, async move {
            let array = import(&handle, without(&kept, &[1])).await;
            let _ = array.online(kept[1].clone(), false).await;
            array.wait_idle(&[]).await;
            true
        });
        rt.shutdown();
        ended += u32::from(done.is_ok());
        for gone in [None, Some(0), Some(4)] {
            // With one gone beside the one that was away not all of it need be there, unless that is in use again.
            let disks = copies(&disks);
            story(async move |rt| {
                let here = without(&disks, &gone.map_or(vec![], |gone| vec![gone]));
                let Ok(array) = Array::import(&rt, here, Import::default()).await else {
                    assert!(gone.is_some(), "{cut}");
                    return;
                };
                let missing =
                    |d: &ashlar_engine::status::DeviceStatus| d.state != DeviceState::Online;
                let out = array
                    .status()
                    .await
                    .devices
                    .iter()
                    .filter(|d| missing(d))
                    .count();
                if out <= 1 {
                    read(&array, 2, &format!("cut {cut}, without {gone:?}")).await;
                }
                if out == 1 && gone.is_none() {
                    array.online(disks[1].clone(), false).await.unwrap();
                    optimal(&array, "taken in after a cut").await;
                }
            });
        }
    }
    assert!(
        (1..60).contains(&ended),
        "some cuts were before the end: {ended}"
    );
}

/// A device that goes again while it is taken in is out again, and comes back later.
#[test]
fn a_device_may_go_again_while_it_is_taken_in() {
    for after in [0, 1, 2, 3, 5, 8, 13, 21, 34] {
        let disks = devices(5, DISK);
        let kept = disks.clone();
        story(async move |rt| {
            let flaky = FaultFilter::new(kept[1].clone());
            let mut all = refs(&kept);
            all[1] = flaky.clone();
            let array = create(&rt, all, "ec2+1").await;
            write(&array, 1).await;
            flaky.set_offline(true);
            write(&array, 2).await;
            assert_eq!(array.status().await.devices[1].state, DeviceState::Missing);
            flaky.set_offline(false);
            let (coming, device) = (array.clone(), flaky.clone());
            let join = rt.spawn(async move { coming.online(device, false).await });
            for _ in 0..after {
                rt.sleep(1).await;
            }
            flaky.set_offline(true);
            let _ = join.await;
            write(&array, 3).await;
            flaky.set_offline(false);
            if array.status().await.devices[1].state != DeviceState::Online {
                array.online(flaky, true).await.unwrap();
            }
            optimal(&array, "at last").await;
            read(&array, 3, "at last").await;
        });
        survives_one(&disks, 3);
    }
}

/// Of two take-ins of a device at once only one is made: the table that the one writes is not the other's to judge.
#[test]
fn a_device_is_taken_in_once_at_a_time() {
    let mut refused = 0;
    for after in (0..40).map(|n| n * 25 * MICROSECOND) {
        let disks = devices(5, DISK);
        let kept = disks.clone();
        refused += story(async move |rt| {
            let delay = Delay {
                read: 50 * MICROSECOND,
                write: 50 * MICROSECOND,
                flush: 50 * MICROSECOND,
                ..Delay::default()
            };
            let slow = |d: &Rc<MemDevice>| DelayFilter::new(&rt, d.clone(), delay) as DeviceRef;
            let all: Vec<DeviceRef> = kept.iter().map(slow).collect();
            let array = create(&rt, all.clone(), "ec2+1").await;
            write(&array, 1).await;
            array.merge().await.unwrap();
            array.offline(1).await.unwrap();
            let (other, device) = (array.clone(), all[1].clone());
            let join = rt.spawn(async move { other.online(device, false).await });
            rt.sleep(after).await;
            let second = array.online(all[1].clone(), false).await;
            let first = join.await;
            assert!(first.is_ok() != second.is_ok(), "{first:?}, {second:?}");
            while array.status().await.state != ArrayState::Optimal {
                rt.sleep(100 * MICROSECOND).await;
            }
            u32::from(matches!(second, Err(Error::ComesIn(1))))
        });
        survives_one(&disks, 1);
    }
    assert!(refused > 0, "they never met");
}

/// A new device takes the place of a failed one; the failed one is no member any more.
#[test]
fn a_failed_device_is_replaced() {
    let disks = devices(6, DISK);
    let kept = disks.clone();
    story(async move |rt| {
        let array = create(&rt, refs(&kept[..5]), "ec2+1").await;
        write(&array, 1).await;
        assert!(matches!(
            array.replace(1, kept[5].clone(), false).await,
            Err(Error::InUse(1))
        ));
        array.fail(1, false).await.unwrap();
        let failed = array.online(kept[1].clone(), false).await;
        assert!(matches!(failed, Err(Error::Untrusted(1))), "{failed:?}");
        let tiny = Rc::new(MemDevice::new("tiny", DISK / 2));
        let small = array.replace(1, tiny, false).await;
        assert!(
            matches!(small, Err(Error::SmallerThan { index: 1, .. })),
            "{small:?}"
        );
        let taken = array.replace(1, kept[5].clone(), false).await.unwrap();
        assert_eq!((taken.index, taken.kept), (1, 0));
        optimal(&array, "replaced").await;
        let old = array.online(kept[1].clone(), true).await;
        assert!(matches!(old, Err(Error::NotMember)), "{old:?}");
        write(&array, 2).await;
    });
    let mut now: Vec<Rc<MemDevice>> = disks[..5].to_vec();
    now[1] = disks[5].clone();
    survives_one(&now, 2);
}

/// A device that was imported without the others has another history.
#[test]
fn a_device_that_was_used_elsewhere_is_refused() {
    let disks = devices(5, DISK);
    let kept = disks.clone();
    story(async move |rt| {
        let array = create(&rt, refs(&kept), "ec2+2").await;
        write(&array, 1).await;
        array.export().await.unwrap();
    });
    let elsewhere = copies(&disks);
    let kept = elsewhere.clone();
    story(async move |rt| {
        let options = Import {
            degraded: true,
            ..Import::default()
        };
        let array = Array::import(&rt, refs(&kept[1..4]), options)
            .await
            .unwrap();
        write(&array, 9).await;
    });
    let kept = disks.clone();
    story(async move |rt| {
        let array = import(&rt, without(&kept, &[1])).await;
        let refused = array.online(elsewhere[1].clone(), true).await;
        assert!(
            matches!(refused, Err(Error::OtherHistory(1))),
            "{refused:?}"
        );
        array.online(kept[1].clone(), false).await.unwrap();
        optimal(&array, "the right one").await;
        read(&array, 1, "the right one").await;
    });
}

/// What could not be read while more devices were out of use than the layout survives is not lost once they are back.
#[test]
fn what_was_lost_without_a_device_is_found_with_it() {
    for reads in [false, true] {
        let disks = devices(4, DISK);
        story(async move |rt| {
            let array = create(&rt, refs(&disks), "ec2+1").await;
            write(&array, 1).await;
            array.merge().await.unwrap();
            array.pause(Work::Rebuild, true).unwrap();
            array.fail(0, false).await.unwrap();
            array.fail(1, true).await.unwrap();
            let v = array.volume("v").unwrap();
            for at in (0..SIZE).step_by(4096) {
                let _ = v.read(at, 4096).await;
            }
            let status = array.status().await;
            assert_eq!(status.state, ArrayState::Failed);
            assert!(!status.lost.is_empty());
            let lost: u64 = status.lost.iter().map(|range| range.length_bytes).sum();
            assert_eq!(
                status.unreadable_bytes, lost,
                "as many as a reader could not read"
            );
            let readable: u64 = status.exposure.iter().map(|e| e.bytes).sum();
            assert_eq!(readable + lost, SIZE);
            array.online(disks[1].clone(), true).await.unwrap();
            match reads {
                // Somebody reads before all of it was tried again.
                true => read(&array, 1, "back").await,
                false => rt.sleep(SECOND).await,
            }
            let status = array.status().await;
            assert_eq!(status.lost, [], "all can be read");
            assert_eq!(status.unreadable_bytes, 0);
            assert_eq!(status.state, ArrayState::Critical);
            array.online(disks[0].clone(), true).await.unwrap();
            array.pause(Work::Rebuild, false).unwrap();
            optimal(&array, "all back").await;
            read(&array, 1, "all back").await;
        });
    }
}
