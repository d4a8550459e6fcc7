//! How fast background work goes: beside clients at its minimum, without them at its maximum, and never so slowly that
//! clients wait for it.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::Cell;
use std::rc::Rc;

use ashlar_device::{Delay, DelayFilter, DeviceRef, MemDevice, OpKind, TraceFilter};
use ashlar_engine::status::{ArrayState, TaskStatus};
use ashlar_engine::{Array, Work};
use ashlar_rt::{MILLISECOND, Nanos, Rt, SECOND};

use crate::common::room::{all_promised, put};
use crate::common::{BLOCK, DISK, check, devices, fill, small, story, volume};

const SIZE: u64 = 8 << 20;
/// Devices with so many slots that several jobs run at once.
const LARGE: u64 = 64 << 20;
/// The most that is read or written at once here: a slot.
const PIECE: u64 = 64 << 10;
const RATE: u64 = 256 << 10;

/// Devices that take some time, and what they are asked.
fn traced(rt: &Rt, disks: &[Rc<MemDevice>]) -> (Vec<Rc<TraceFilter>>, Vec<DeviceRef>) {
    let delay = Delay {
        read: 5 * MILLISECOND,
        write: 5 * MILLISECOND,
        ..Delay::default()
    };
    let slow = |d: &Rc<MemDevice>| DelayFilter::new(rt, d.clone() as DeviceRef, delay);
    let trace = |d| TraceFilter::new(rt, slow(d) as DeviceRef, 1 << 20);
    let traces: Vec<_> = disks.iter().map(trace).collect();
    let seen = traces.iter().map(|t| t.clone() as DeviceRef).collect();
    (traces, seen)
}

async fn written(rt: &Rt, seen: Vec<DeviceRef>) -> Array {
    let array = Array::create(rt, seen, small("ec2+1")).await.unwrap();
    array.volume_create("v", volume(SIZE)).await.unwrap();
    fill(&array.volume("v").unwrap(), SIZE, PIECE, 1, "written").await;
    rt.sleep(SECOND).await;
    array
}

/// Clients that read everywhere, always, until told to stop.
fn readers(rt: &Rt, array: &Array) -> Rc<Cell<bool>> {
    let stop = Rc::new(Cell::new(false));
    for client in 0..24u64 {
        let (v, stop) = (array.volume("v").unwrap(), stop.clone());
        drop(rt.spawn(async move {
            let mut block = client * 89;
            while !stop.get() {
                block = (block * 5 + 977) % (SIZE / BLOCK);
                v.read(block * BLOCK, BLOCK as usize).await.unwrap();
            }
        }));
    }
    stop
}

/// Bytes that background work has read and written on each device since the last call: clients and nodes take a block
/// at a time.
fn moved(traces: &[Rc<TraceFilter>]) -> Vec<u64> {
    let of = |trace: &Rc<TraceFilter>| {
        let entries = trace.entries();
        trace.reset();
        let large = entries.iter().filter(|e| {
            let of_slots = matches!(e.op, OpKind::Read | OpKind::Write) && e.offset > 1 << 20;
            of_slots && e.length > BLOCK
        });
        large.map(|e| e.length).sum()
    };
    traces.iter().map(of).collect()
}

async fn task(array: &Array, work: Work) -> TaskStatus {
    let tasks = array.status().await.tasks;
    tasks.into_iter().find(|t| t.id == work.id()).unwrap()
}

/// Seconds until it is whole again.
async fn rebuilt(rt: &Rt, array: &Array) -> f64 {
    let begun = rt.now();
    array.wait_idle(&[Work::Rebuild]).await;
    assert_eq!(array.status().await.state, ArrayState::Optimal);
    (rt.now() - begun) as f64 / SECOND as f64
}

/// Beside clients that never rest a rebuild has its minimum of each device; without them all it can use, or its maximum.
#[test]
fn a_rebuild_has_its_minimum_beside_clients_and_its_maximum_without() {
    let disks = devices(7, LARGE);
    story(async move |rt| {
        let (traces, seen) = traced(&rt, &disks);
        let array = written(&rt, seen).await;
        array.set("reconstruct.min", "256K").await.unwrap();
        let stop = readers(&rt, &array);
        rt.sleep(SECOND).await;
        array.fail(0, false).await.unwrap();
        rt.sleep(SECOND).await;
        moved(&traces);
        rt.sleep(3 * SECOND).await;
        let of = moved(&traces);
        let most = 3 * RATE + 2 * PIECE;
        assert!(of.iter().all(|bytes| *bytes <= most), "{of:?}");
        assert!(of.iter().any(|bytes| *bytes >= 3 * RATE - PIECE), "{of:?}");
        let held = task(&array, Work::Rebuild).await;
        let why = "clients are at work: held to rebuild.min (256K a second and device)";
        assert_eq!((held.state.as_str(), &*held.reason), ("running", why));
        assert!(held.bytes_per_second > 0 && held.eta_seconds.is_some());

        stop.set(true);
        let seconds = rebuilt(&rt, &array).await;
        assert!(seconds < 1.5, "{seconds}");

        array.set("reconstruct.max", "256K").await.unwrap();
        array.fail(1, false).await.unwrap();
        rt.sleep(SECOND).await;
        moved(&traces);
        rt.sleep(3 * SECOND).await;
        let of = moved(&traces);
        assert!(of.iter().all(|bytes| *bytes <= most), "{of:?}");
        assert!(of.iter().any(|bytes| *bytes >= 3 * RATE - PIECE), "{of:?}");
        let held = task(&array, Work::Rebuild).await;
        assert_eq!(
            held.reason,
            "held to rebuild.max (256K a second and device)"
        );

        // A change of a setting is heard at once.
        array.set("reconstruct.max", "none").await.unwrap();
        let seconds = rebuilt(&rt, &array).await;
        assert!(seconds < 2.5, "{seconds}");
        check(&array.volume("v").unwrap(), SIZE, 1, "rebuilt").await;
    });
}

/// Clients that ask for something now and then leave the rest to the rebuild.
#[test]
fn light_clients_leave_a_rebuild_the_gaps() {
    let disks = devices(6, LARGE);
    story(async move |rt| {
        let (_, seen) = traced(&rt, &disks);
        let array = written(&rt, seen).await;
        array.set("reconstruct.min", "64K").await.unwrap();
        let (v, handle) = (array.volume("v").unwrap(), rt.clone());
        drop(rt.spawn(async move {
            for block in (0..).map(|n| n * 977 % (SIZE / BLOCK)) {
                if v.read(block * BLOCK, BLOCK as usize).await.is_err() {
                    break;
                }
                handle.sleep(100 * MILLISECOND).await;
            }
        }));
        array.fail(0, false).await.unwrap();
        let seconds = rebuilt(&rt, &array).await;
        assert!(seconds < 5.0, "{seconds}; at its minimum it takes 25");
        array.export().await.unwrap();
    });
}

/// Two arrays of one daemon: the clients of one are nothing to the other, nor is what it has used.
#[test]
fn two_arrays_have_budgets_of_their_own() {
    let disks = devices(12, LARGE);
    story(async move |rt| {
        let one = written(&rt, traced(&rt, &disks[..6]).1).await;
        let two = written(&rt, traced(&rt, &disks[6..]).1).await;
        one.set("reconstruct.min", "64K").await.unwrap();
        let stop = readers(&rt, &one);
        one.fail(0, false).await.unwrap();
        two.fail(0, false).await.unwrap();
        let seconds = rebuilt(&rt, &two).await;
        assert!(seconds < 3.0, "{seconds}");
        assert_ne!(one.status().await.state, ArrayState::Optimal);
        stop.set(true);
        rebuilt(&rt, &one).await;
    });
}

/// The columns of a device that is to leave move at the rate of the rebalance, and a scrub reads at its own.
#[test]
fn rebalance_and_scrub_have_their_minimum_beside_clients() {
    let disks = devices(6, LARGE);
    story(async move |rt| {
        let (traces, seen) = traced(&rt, &disks);
        let array = written(&rt, seen).await;
        for key in ["rebalance.min", "scrub.min"] {
            array.set(key, "256K").await.unwrap();
        }
        let most = 3 * RATE + 2 * PIECE;
        let stop = readers(&rt, &array);
        let start = ashlar_engine::ScrubChange::Start {
            check: false,
            since: None,
        };
        array.scrub(start).await.unwrap();
        rt.sleep(SECOND).await;
        moved(&traces);
        rt.sleep(3 * SECOND).await;
        let of = moved(&traces);
        assert!(of.iter().all(|bytes| *bytes <= most), "{of:?}");
        // It looks at two segments at once here, and waits for both.
        assert!(of.iter().any(|bytes| *bytes >= 3 * RATE * 3 / 4), "{of:?}");
        let held = task(&array, Work::Scrub).await;
        assert!(held.reason.contains("held to scrub.min (256K"), "{held:?}");
        array.scrub(ashlar_engine::ScrubChange::Stop).await.unwrap();

        array.remove(0).await.unwrap();
        rt.sleep(2 * SECOND).await;
        moved(&traces);
        rt.sleep(3 * SECOND).await;
        let of = moved(&traces);
        assert!(of.iter().all(|bytes| *bytes <= most), "{of:?}");
        assert!(of[0] >= 3 * RATE - PIECE, "{of:?}");
        let held = task(&array, Work::Rebalance).await;
        let why = "held to rebalance.min (256K";
        assert!(held.reason.contains(why), "{held:?}");
        stop.set(true);
        array.wait_idle(&[]).await;
    });
}

/// A full array, clients that overwrite it, and a rebuild held to the least there is: writes find their space.
#[test]
fn clients_of_a_full_array_do_not_wait_for_a_rebuild_that_is_held_back() {
    let disks = devices(6, DISK);
    story(async move |rt| {
        let (array, v, blocks) = all_promised(&rt, &disks, "ec2+1").await;
        for key in ["reconstruct.min", "rebalance.min"] {
            array.set(key, "64K").await.unwrap();
        }
        fill(&v, blocks * BLOCK, BLOCK, 1, "written").await;
        array.fail(0, false).await.unwrap();
        let longest: Rc<Cell<Nanos>> = Rc::default();
        for round in 0..2u64 {
            for block in (0..blocks).map(|n| n * 7 % blocks) {
                let begun = rt.now();
                put(&v, block, 2 + round).await.unwrap();
                longest.set(longest.get().max(rt.now() - begun));
            }
        }
        assert!(longest.get() < 2 * SECOND, "{}", longest.get());
        array.wait_idle(&[]).await;
        v.flush().await.unwrap();
    });
}
