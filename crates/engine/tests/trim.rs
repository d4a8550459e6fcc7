//! Trim: devices are told which slots are free, and nothing else; the setting `discard`.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ashlar_device::{Device, DeviceInfo, DeviceRef, Fault, IoFuture, MemDevice};
use ashlar_engine::{Array, Error, Import, Left, Trimmed, Volume};
use ashlar_rt::{Buf, MILLISECOND, Nanos, Rt, SECOND, Slice};

use crate::common::room::{all_thick, starts_without};
use crate::common::{self, BLOCK, check, devices, fill, pattern, refs, small, story, volume};

const MIB: u64 = 1 << 20;

/// A device that notes where it is told to discard, takes so long for it, and does it to the end, whoever waits; and
/// that fails a test in which it is written where it discards.
struct Discarding {
    rt: Rt,
    disk: Rc<MemDevice>,
    info: DeviceInfo,
    takes: Cell<Nanos>,
    told: RefCell<Vec<u64>>,
    at: Rc<RefCell<Vec<(u64, u64)>>>,
}

impl Discarding {
    fn of(rt: &Rt, disk: &Rc<MemDevice>, takes: Nanos, unit: u64) -> Rc<Discarding> {
        Rc::new(Discarding {
            rt: rt.clone(),
            disk: disk.clone(),
            info: DeviceInfo {
                discard_bytes: unit,
                ..disk.info().clone()
            },
            takes: Cell::new(takes),
            told: RefCell::default(),
            at: Rc::default(),
        })
    }

    fn all(rt: &Rt, disks: &[Rc<MemDevice>], takes: Nanos) -> Vec<Rc<Discarding>> {
        let one = |disk| Discarding::of(rt, disk, takes, BLOCK);
        disks.iter().map(one).collect()
    }
}

fn taken(devices: &[Rc<Discarding>]) -> Vec<DeviceRef> {
    devices.iter().map(|d| d.clone() as DeviceRef).collect()
}

fn discards(devices: &[Rc<Discarding>]) -> usize {
    devices.iter().map(|d| d.told.borrow().len()).sum()
}

impl Device for Discarding {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn read(&self, offset: u64, buf: Buf) -> IoFuture<(Buf, Result<(), Fault>)> {
        self.disk.read(offset, buf)
    }
    fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<Result<(), Fault>> {
        let end = offset + data.iter().map(|s| s.len() as u64).sum::<u64>();
        let hit = |(from, to): &(u64, u64)| *from < end && offset < *to;
        assert!(!self.at.borrow().iter().any(hit), "written while discarded");
        self.disk.write(offset, data)
    }
    fn flush(&self) -> IoFuture<Result<(), Fault>> {
        self.disk.flush()
    }
    fn discard(&self, offset: u64, length: u64) -> IoFuture<Result<(), Fault>> {
        self.told.borrow_mut().push(offset);
        let range = (offset, offset + length);
        self.at.borrow_mut().push(range);
        let (rt, disk, at, takes) = (
            self.rt.clone(),
            self.disk.clone(),
            self.at.clone(),
            self.takes.get(),
        );
        let work = async move {
            rt.sleep(takes).await;
            at.borrow_mut().retain(|other| *other != range);
            disk.discard(offset, length).await
        };
        Box::pin(self.rt.spawn(work)) // it goes on whether or not anybody waits
    }
}

/// A small array with a volume of half its space, all of which is written.
async fn half_full(rt: &Rt, devices: Vec<DeviceRef>) -> (Array, Volume, u64) {
    let array = Array::create(rt, devices, small("ec2+1")).await.unwrap();
    let size = array.room_for(4096) / 2 / (4 * BLOCK) * (4 * BLOCK);
    array.volume_create("v", volume(size)).await.unwrap();
    let v = array.volume("v").unwrap();
    fill(&v, size, 4 * BLOCK, 1, "at first").await;
    (array, v, size)
}

fn bytes(trimmed: &[Trimmed]) -> u64 {
    trimmed.iter().map(|t| t.discarded_bytes).sum()
}

/// With `discard=off` no freed slot is discarded, and a trim catches up on it.
#[test]
fn discard_off_discards_nothing_and_a_trim_catches_up() {
    let disks = devices(4, 8 * MIB);
    story(async move |rt| {
        let devices = Discarding::all(&rt, &disks, MILLISECOND);
        let (array, v, size) = half_full(&rt, taken(&devices)).await;
        let overwrite = async |version: u64| {
            for version in version..version + 4 {
                fill(&v, size, 4 * BLOCK, version, "again").await;
            }
            array.merge().await.unwrap();
            array.wait_idle(&[]).await;
        };
        overwrite(2).await;
        let on = discards(&devices);
        assert!(on > 0, "it is on unless set");
        array.set("discard", "off").await.unwrap();
        rt.sleep(SECOND).await;
        let before = discards(&devices);
        overwrite(6).await;
        assert_eq!(discards(&devices), before, "nothing is discarded");
        let wrong = array.set("discard", "perhaps").await.unwrap_err();
        assert!(matches!(wrong, Error::Setting { .. }), "{wrong}");
        let trimmed = array.trim().await.unwrap();
        assert!(trimmed.iter().all(|t| t.left.is_none()), "{trimmed:?}");
        assert_eq!(
            bytes(&trimmed),
            (discards(&devices) - before) as u64 * (64 << 10)
        );
        check(&v, size, 9, "after the trim").await;
        array.set("discard", "on").await.unwrap();
        let before = discards(&devices);
        overwrite(10).await;
        assert!(discards(&devices) > before, "it is on again");
        array.export().await.unwrap();
    });
}

/// A device that cannot discard, or only in units that a slot is no multiple of, is named, and gets nothing; one that
/// fails to is told no more.
#[test]
fn devices_that_do_not_discard_are_left_out_and_named() {
    let disks = devices(4, 8 * MIB);
    story(async move |rt| {
        let units = [0, 48 << 10, BLOCK, 64 << 10];
        let one = |(disk, unit)| Discarding::of(&rt, disk, MILLISECOND, unit);
        let devices: Vec<_> = disks.iter().zip(units).map(one).collect();
        let (array, v, size) = half_full(&rt, taken(&devices)).await;
        array.merge().await.unwrap();
        let trimmed = array.trim().await.unwrap();
        let left: Vec<_> = trimmed.iter().map(|t| t.left).collect();
        let not = Some(Left::NoDiscard);
        assert_eq!(left, [not, not, None, None]);
        let told = |d: usize| devices[d].told.borrow().len() as u64;
        assert!(told(0) == 0 && told(1) == 0 && told(2) > 20 && told(3) > 20);
        assert_eq!(
            (trimmed[0].discarded_bytes, &trimmed[0].path[..]),
            (0, "mem0")
        );
        check(&v, size, 1, "after the trim").await;
    });
}

/// One trim at a time; none of an array that is only read, or that has been exported. An export ends the one under way.
#[test]
fn a_trim_is_refused_or_ends_where_it_must() {
    let disks = devices(3, 8 * MIB);
    story(async move |rt| {
        let slow = Discarding::all(&rt, &disks, SECOND);
        let (array, ..) = half_full(&rt, taken(&slow)).await;
        array.merge().await.unwrap();
        let other = array.clone();
        let first = rt.spawn(async move { other.trim().await });
        rt.sleep(3 * SECOND).await;
        assert!(matches!(array.trim().await, Err(Error::Trimming)));
        let before = rt.now();
        array.export().await.unwrap();
        assert!(rt.now() - before < 5 * SECOND, "{}", rt.now() - before);
        let first = first.await.unwrap();
        assert!(
            first.iter().all(|t| t.left == Some(Left::Ended)),
            "{first:?}"
        );
        assert!(bytes(&first) > 0);
        assert!(matches!(array.trim().await, Err(Error::Closed)));
        let told = discards(&slow);
        rt.sleep(60 * SECOND).await;
        let read_only = Import {
            read_only: true,
            ..Import::default()
        };
        let array = Array::import(&rt, taken(&slow), read_only).await.unwrap();
        assert!(matches!(array.trim().await, Err(Error::ReadOnly)));
        assert_eq!(discards(&slow), told);
        array.export().await.unwrap();
        let array = Array::import(&rt, taken(&slow), Import::default()).await;
        let array = array.unwrap();
        let trimmed = array.trim().await.unwrap();
        assert!(trimmed.iter().all(|t| t.left.is_none()), "{trimmed:?}");
    });
}

/// Clients fill an array of which every block was promised while it is trimmed again and again: none is told that there
/// is no space, nothing is written where a device discards, and all is there. So it is, too, where each discard is so late
/// that the trim gives its device up.
#[test]
fn an_array_is_filled_while_it_is_trimmed() {
    for (takes, whole) in [
        (MILLISECOND, true),
        (200 * MILLISECOND, true),
        (60 * SECOND, false),
    ] {
        let disks = devices(3, 8 * MIB);
        story(async move |rt| {
            let slow = Discarding::all(&rt, &disks, MILLISECOND);
            let (array, v, size) = all_thick(&rt, taken(&slow), small("ec2+1")).await;
            let done = Rc::new(Cell::new(false));
            let (trimming, ended) = (array.clone(), done.clone());
            let trims = rt.spawn(async move {
                let mut all = Vec::new();
                while !ended.get() {
                    all.extend(trimming.trim().await.unwrap());
                }
                all
            });
            slow.iter().for_each(|d| d.takes.set(takes));
            for version in 1..5 {
                fill(&v, size, BLOCK, version, "while it is trimmed").await;
                check(&v, size, version, "while it is trimmed").await;
            }
            done.set(true);
            let all = trims.await;
            assert!(all.iter().any(|t| t.discarded_bytes > 0) == whole);
            let late = Some(Left::Fault(Fault::Timeout));
            assert!(all.iter().any(|t| t.left == late) != whole);
            rt.sleep(200 * SECOND).await;
            fill(&v, size, BLOCK, 9, "afterwards").await;
            check(&v, size, 9, "afterwards").await;
            array.export().await.unwrap();
        });
    }
}

/// A device that is taken out in the middle of a discard, and comes back, has its slots to itself again.
#[test]
fn a_device_leaves_and_comes_back_while_it_discards() {
    for takes in [2 * SECOND, 50 * SECOND] {
        let disks = devices(4, 8 * MIB);
        story(async move |rt| {
            let slow = Discarding::all(&rt, &disks, MILLISECOND);
            let (array, v, size) = half_full(&rt, taken(&slow)).await;
            array.merge().await.unwrap();
            slow[1].takes.set(takes);
            let other = array.clone();
            let trim = rt.spawn(async move { other.trim().await.unwrap() });
            rt.sleep(SECOND).await;
            array.offline(1).await.unwrap();
            fill(&v, size, 4 * BLOCK, 2, "without it").await;
            let back = Discarding::of(&rt, &disks[1], MILLISECOND, BLOCK);
            array.online(back, false).await.unwrap();
            let trimmed = trim.await;
            assert!(trimmed[1].left.is_some(), "{trimmed:?}");
            fill(&v, size, 4 * BLOCK, 3, "with it").await;
            array.wait_idle(&[]).await;
            let trimmed = array.trim().await.unwrap();
            assert!(trimmed.iter().all(|t| t.left.is_none()), "{trimmed:?}");
            check(&v, size, 3, "with it").await;
            array.export().await.unwrap();
        });
    }
}

/// The power goes in the middle of a trim beside writes, at many moments: all that was durable is there, also without
/// one of the devices.
#[test]
fn power_cuts_during_a_trim_lose_nothing() {
    let mut cut_off = 0;
    for polls in (50..6000).step_by(279) {
        let disks = devices(4, 8 * MIB);
        let rt = Rt::simulated(polls);
        let (handle, kept) = (rt.clone(), disks.clone());
        let (array, v, size) = rt.block_on(async move {
            let takes = (polls % 4) * MILLISECOND;
            let devices = Discarding::all(&handle, &kept, takes);
            let (array, v, size) = half_full(&handle, taken(&devices)).await;
            array.set("discard", "off").await.unwrap();
            fill(&v, size, 4 * BLOCK, 2, "before").await;
            array.merge().await.unwrap();
            (array, v, size)
        });
        let handle = rt.clone();
        // The same bytes again: whichever of them are durable.
        rt.spawn(async move {
            for block in (0..size / BLOCK).cycle() {
                let _ = v.write(block * BLOCK, pattern(block, 2), false).await;
                handle.sleep(MILLISECOND / 4).await;
            }
        });
        let done = rt.run_for(polls, async move { array.trim().await.unwrap() });
        cut_off += u64::from(done.is_err());
        rt.shutdown();
        for gone in [&[][..], &[(polls % 4) as usize][..]] {
            starts_without(&disks, gone, size, 2, &format!("cut at {polls}"));
        }
    }
    assert!(cut_off > 5, "{cut_off}");
}

/// A trim of an array of which nothing was ever written tells devices of all their slots.
#[test]
fn a_new_array_is_trimmed_whole() {
    let disks = devices(3, 8 * MIB);
    story(async move |rt| {
        let array = Array::create(&rt, refs(&disks), small("ec2+1")).await;
        let array = array.unwrap();
        let trimmed = array.trim().await.unwrap();
        let slots = common::geometry(&disks[0]).slots;
        let most = u64::from(slots) * (64 << 10);
        assert!(trimmed.iter().all(|t| t.left.is_none()));
        assert!(bytes(&trimmed) > 3 * most * 9 / 10 && bytes(&trimmed) <= 3 * most);
    });
}
