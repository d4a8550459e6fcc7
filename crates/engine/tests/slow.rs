//! Devices that hang or are slow: clients wait no longer than they must, nobody else is blamed, and the device is in use
//! again once it is as fast as the others.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ashlar_device::{Delay, DelayFilter, DeviceRef, MemDevice};
use ashlar_engine::status::{ArrayState, DeviceState};
use ashlar_engine::{Array, Volume};
use ashlar_rt::{MICROSECOND, MILLISECOND, Nanos, Rt, SECOND};

use crate::common::{
    self, DISK, SIZE, copies, devices, read, small, story, volume, without, write,
};

/// What a healthy device takes.
const USUAL: Nanos = 100 * MICROSECOND;

fn delay(nanos: Nanos) -> Delay {
    Delay {
        read: nanos,
        write: nanos,
        flush: nanos,
        ..Delay::default()
    }
}

fn late(rt: &Rt, disks: &[Rc<MemDevice>]) -> Vec<Rc<DelayFilter>> {
    let filter = |disk: &Rc<MemDevice>| DelayFilter::new(rt, disk.clone(), delay(USUAL));
    disks.iter().map(filter).collect()
}

fn refs(filters: &[Rc<DelayFilter>]) -> Vec<DeviceRef> {
    filters.iter().map(|f| f.clone() as DeviceRef).collect()
}

/// An array with a volume, all of which is written in version 1.
async fn create(rt: &Rt, filters: &[Rc<DelayFilter>], layout: &str) -> Array {
    let array = Array::create(rt, refs(filters), small(layout))
        .await
        .unwrap();
    array.volume_create("v", volume(SIZE)).await.unwrap();
    write(&array, 1).await;
    array
}

/// Runs a story of some length.
fn long_story(run: impl AsyncFnOnce(Rt) + 'static) {
    let rt = Rt::simulated(7);
    let handle = rt.clone();
    rt.block_on(async move { run(handle).await });
    rt.shutdown();
}

async fn states(array: &Array) -> Vec<DeviceState> {
    let status = array.status().await;
    status.devices.iter().map(|d| d.state).collect()
}

/// Clients: one writes durably, others read, one request after another, until they are to stop.
struct Clients {
    stop: Cell<bool>,
    left: Cell<usize>,
    reads: RefCell<Vec<Nanos>>,
    writes: RefCell<Vec<Nanos>>,
}

const READERS: usize = 4;

impl Clients {
    fn start(rt: &Rt, array: &Array, pause: Nanos) -> Rc<Clients> {
        let clients = Rc::new(Clients {
            stop: Cell::new(false),
            left: Cell::new(1 + READERS),
            reads: RefCell::default(),
            writes: RefCell::default(),
        });
        for number in 0..=READERS {
            let (clients, rt2) = (clients.clone(), rt.clone());
            let v: Volume = array.volume("v").unwrap();
            rt.spawn(async move {
                let rt = rt2;
                while !clients.stop.get() {
                    let begun = rt.now();
                    if number == 0 {
                        let block = rt.random_below(common::SIZE / common::BLOCK);
                        let bytes = common::run(block, 1, 1);
                        v.write(block * common::BLOCK, bytes, true).await.unwrap();
                        clients.writes.borrow_mut().push(rt.now() - begun);
                    } else {
                        let block = rt.random_below(common::SIZE / common::BLOCK);
                        v.read(block * common::BLOCK, 4096).await.unwrap();
                        clients.reads.borrow_mut().push(rt.now() - begun);
                    }
                    rt.sleep(pause).await;
                }
                clients.left.set(clients.left.get() - 1);
            });
        }
        clients
    }

    /// The longest read and write since this was asked last, and the 99th percentile of reads.
    fn longest(&self) -> (Nanos, Nanos, Nanos) {
        let (mut reads, writes) = (self.reads.take(), self.writes.take());
        reads.sort_unstable();
        let p99 = reads[reads.len() * 99 / 100];
        (
            *reads.last().unwrap(),
            writes.into_iter().max().unwrap(),
            p99,
        )
    }

    async fn end(&self, rt: &Rt) {
        self.stop.set(true);
        while self.left.get() > 0 {
            rt.sleep(MILLISECOND).await;
        }
    }
}

/// Waits until a device is in this state; how long that took.
async fn until(rt: &Rt, array: &Array, device: usize, state: DeviceState, most: Nanos) -> Nanos {
    let begun = rt.now();
    while states(array).await[device] != state {
        let waited = rt.now() - begun;
        assert!(
            waited <= most,
            "device {device} is not {state:?} after {waited} ns"
        );
        rt.sleep(20 * MILLISECOND).await;
    }
    rt.now() - begun
}

/// Without any one device all is there that was written.
fn survives_one(disks: &[Rc<MemDevice>]) {
    for gone in 0..disks.len() {
        let disks = copies(disks);
        story(async move |rt| {
            let import = ashlar_engine::Import::default();
            let array = Array::import(&rt, without(&disks, &[gone]), import)
                .await
                .unwrap();
            read(&array, 1, &format!("without {gone}")).await;
        });
    }
}

/// One device hangs: no read and no durable write waits longer than `slow.timeout`, the others are not blamed, and it is
/// in use again by itself.
#[test]
fn a_device_that_hangs_stalls_nobody() {
    let disks = devices(8, DISK);
    let kept = disks.clone();
    long_story(async move |rt| {
        let slow = late(&rt, &kept);
        let array = create(&rt, &slow, "ec4+2").await;
        let clients = Clients::start(&rt, &array, MILLISECOND);
        rt.sleep(2 * SECOND).await;
        clients.longest();
        slow[3].set(delay(20 * SECOND));
        until(&rt, &array, 3, DeviceState::Slow, 2 * SECOND).await;
        rt.sleep(SECOND).await;
        let (read, written, _) = clients.longest();
        assert!(
            read <= 2 * SECOND && written <= 2 * SECOND,
            "{read} {written}"
        );
        slow[3].set(delay(USUAL));
        let back = until(&rt, &array, 3, DeviceState::Online, 60 * SECOND).await;
        assert!(back > 10 * SECOND, "it has to prove itself: {back}");
        clients.end(&rt).await;
        array.wait_idle(&[]).await;
        let status = array.status().await;
        assert_eq!(status.state, ArrayState::Optimal);
        for device in &status.devices {
            let errors = &device.errors;
            let blamed = errors.read + errors.write + errors.digest;
            assert_eq!(blamed, 0, "late is no error: {device:?}");
        }
        let events = array.events(0);
        let kinds: Vec<&str> = events.iter().map(|e| e.kind.as_str()).collect();
        let told = |kind: &str| kinds.iter().filter(|k| **k == kind).count();
        assert_eq!(
            (told("device-slow"), told("device-back")),
            (1, 1),
            "{kinds:?}"
        );
        array.export().await.unwrap();
    });
    survives_one(&disks);
}

/// One device is a hundred times as slow: within 10 s reads are as fast as they were, and it is back within a minute of
/// being as fast again.
#[test]
fn a_device_that_is_slower_than_its_peers_is_read_around() {
    let disks = devices(8, DISK);
    let kept = disks.clone();
    long_story(async move |rt| {
        let slow = late(&rt, &kept);
        let array = create(&rt, &slow, "ec4+2").await;
        let clients = Clients::start(&rt, &array, MILLISECOND);
        rt.sleep(10 * SECOND).await;
        let healthy = clients.longest();
        slow[5].set(delay(100 * USUAL));
        until(&rt, &array, 5, DeviceState::Slow, 10 * SECOND).await;
        let (read, written, _) = clients.longest();
        assert!(
            read <= 2 * SECOND && written <= 2 * SECOND,
            "{read} {written}"
        );
        rt.sleep(5 * SECOND).await;
        let (_, written, p99) = clients.longest();
        assert!(p99 <= 2 * healthy.2, "{p99} {healthy:?}");
        assert!(written <= 2 * SECOND, "{written}");
        assert_eq!(
            states(&array).await[5],
            DeviceState::Slow,
            "it is still slow"
        );
        slow[5].set(delay(USUAL));
        until(&rt, &array, 5, DeviceState::Online, 60 * SECOND).await;
        clients.end(&rt).await;
        array.wait_idle(&[]).await;
        assert_eq!(array.status().await.state, ArrayState::Optimal);
        array.export().await.unwrap();
    });
    survives_one(&disks);
}

/// No more are taken out at once than there is parity, and none where all are late.
#[test]
fn no_more_are_taken_out_than_there_is_parity() {
    let disks = devices(6, DISK);
    long_story(async move |rt| {
        let slow = late(&rt, &disks);
        let array = create(&rt, &slow, "ec2+1").await;
        let v = array.volume("v").unwrap();
        for device in &slow {
            device.set(delay(5 * SECOND));
        }
        v.write(0, common::run(0, 8, 1), true).await.unwrap();
        assert!(
            states(&array)
                .await
                .iter()
                .all(|s| *s == DeviceState::Online),
            "all are late"
        );
        for device in &slow {
            device.set(delay(USUAL));
        }
        rt.sleep(30 * SECOND).await;
        slow[0].set(delay(20 * SECOND));
        v.write(0, common::run(0, 8, 1), true).await.unwrap();
        until(&rt, &array, 0, DeviceState::Slow, 2 * SECOND).await;
        slow[1].set(delay(4 * SECOND));
        let begun = rt.now();
        while rt.now() < begun + 10 * SECOND {
            v.write(0, common::run(0, 8, 1), true).await.unwrap();
        }
        assert_eq!(states(&array).await[1], DeviceState::Online, "it is needed");
        slow[0].set(delay(USUAL));
        slow[1].set(delay(USUAL));
        until(&rt, &array, 0, DeviceState::Online, 90 * SECOND).await;
        array.wait_idle(&[]).await;
        read(&array, 1, "afterwards").await;
    });
}

/// A device that hangs again and again is out for longer each time.
#[test]
fn a_device_that_flaps_does_not_oscillate() {
    let disks = devices(8, DISK);
    let kept = disks.clone();
    long_story(async move |rt| {
        let slow = late(&rt, &kept);
        let array = create(&rt, &slow, "ec4+2").await;
        let clients = Clients::start(&rt, &array, 50 * MILLISECOND);
        for _ in 0..30 {
            slow[2].set(delay(3 * SECOND));
            rt.sleep(5 * SECOND).await;
            slow[2].set(delay(USUAL));
            rt.sleep(15 * SECOND).await;
        }
        clients.end(&rt).await;
        let events = array.events(0);
        let left = events.iter().filter(|e| e.kind == "device-slow").count();
        assert!((1..=3).contains(&left), "{left} times in 10 minutes");
        array.export().await.unwrap();
    });
    survives_one(&disks);
}

/// A device is taken in again only once the last write of before is on it, however fast it answers meanwhile: what that
/// write would overwrite may be another's by then.
#[test]
fn a_device_is_not_back_before_its_last_late_write() {
    let disks = devices(8, DISK);
    let kept = disks.clone();
    long_story(async move |rt| {
        let slow = late(&rt, &kept);
        let array = create(&rt, &slow, "ec4+2").await;
        let clients = Clients::start(&rt, &array, 20 * MILLISECOND);
        slow[4].set(Delay {
            write: 25 * SECOND,
            ..delay(USUAL)
        });
        let begun = rt.now();
        until(&rt, &array, 4, DeviceState::Slow, 3 * SECOND).await;
        slow[4].set(delay(USUAL));
        until(&rt, &array, 4, DeviceState::Online, 60 * SECOND).await;
        let took = rt.now() - begun;
        assert!(took > 25 * SECOND, "back after {took} ns");
        clients.end(&rt).await;
        array.wait_idle(&[]).await;
        assert_eq!(array.status().await.state, ArrayState::Optimal);
        array.export().await.unwrap();
    });
    survives_one(&disks);
}

/// `remove` of a device that is slow lets it go, and a mirror of two does without one that is slow.
#[test]
fn a_slow_device_is_removed_and_one_of_a_mirror_is_found() {
    let disks = devices(3, DISK);
    let kept = disks.clone();
    long_story(async move |rt| {
        let slow = late(&rt, &kept[..2]);
        let array = create(&rt, &slow, "raid1").await;
        let clients = Clients::start(&rt, &array, MILLISECOND);
        rt.sleep(10 * SECOND).await;
        slow[1].set(delay(100 * USUAL));
        until(&rt, &array, 1, DeviceState::Slow, 10 * SECOND).await;
        clients.end(&rt).await;
        array.set("slow.timeout", "30s").await.unwrap();
        array.replace(1, kept[2].clone(), false).await.unwrap();
        array.wait_idle(&[]).await;
        assert_eq!(array.status().await.state, ArrayState::Optimal);
        let old = Rc::downgrade(&slow[1]);
        drop(slow);
        rt.sleep(60 * SECOND).await;
        assert!(old.upgrade().is_none(), "the slow device is let go");
        read(&array, 1, "replaced").await;
        array.export().await.unwrap();
    });
}

/// What `slow.timeout` says holds at once.
#[test]
fn slow_timeout_is_how_long_a_device_may_take() {
    let disks = devices(8, DISK);
    long_story(async move |rt| {
        let slow = late(&rt, &disks);
        let array = create(&rt, &slow, "ec4+2").await;
        array.set("slow.timeout", "20s").await.unwrap();
        slow[3].set(delay(5 * SECOND));
        write(&array, 1).await;
        array.merge().await.unwrap();
        assert_eq!(states(&array).await[3], DeviceState::Online);
        array.set("slow.timeout", "1s").await.unwrap();
        let v = array.volume("v").unwrap();
        for block in 0..common::SIZE / common::BLOCK / 8 {
            v.write(
                block * 8 * common::BLOCK,
                common::run(block * 8, 8, 1),
                true,
            )
            .await
            .unwrap();
        }
        assert_eq!(states(&array).await[3], DeviceState::Slow);
        array.export().await.unwrap();
        drop(array);
        rt.sleep(60 * SECOND).await;
        assert_eq!(
            Rc::strong_count(&slow[3]),
            1,
            "an export lets a slow device go"
        );
    });
}
