//! The alphabet of short workloads, and how one is run.
//!
//! Invariants: a workload's run follows from its letters and the geometry alone; only what comes
//! after the preamble is recorded.

use std::rc::Rc;

use ashlar_rt::{Nanos, SECOND};

use crate::client::Session;
use crate::config::{Config, Mode, Options, VolumeConfig};
use crate::disk::Rot;
use crate::machine::{Driver, Machine, Opened};
use crate::returns;
use crate::store::{Store, StoreStatus};
use crate::world::World;

const KIB: u64 = 1024;
/// The volume most letters are about.
const MAIN: &str = "v0";
/// A small one beside it, which is thin: it can grow whatever devices are gone.
const SIDE: &str = "v1";
/// An operation of a device that hangs takes so much longer: when it ends the array has long gone on
/// without the device and, but for what is still under way, would have taken it in again.
const HANGS: Nanos = 25 * SECOND;
/// The array goes on without a device that hangs within this.
const OUT_WITHIN: Nanos = 5 * SECOND;
/// A device that hung is in use again within this.
const RETURNS_WITHIN: Nanos = 120 * SECOND;

/// One letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Writes `length` bytes at `offset` of the main volume.
    Write(u64, u64, bool),
    /// Writes 4 KiB to the small volume.
    WriteSide(bool),
    /// Two writes of 16 KiB at once that overlap.
    Race,
    /// Trims (`true`) or zeroes a range, durably or not.
    Zero(bool, u64, u64, bool),
    /// Flushes the main volume.
    Flush,
    /// Flushes the small volume.
    FlushSide,
    /// Reads everything.
    Read,
    /// Makes another volume.
    Create,
    /// Destroys the small volume.
    Destroy,
    /// Makes the small volume smaller, and as large as it was.
    Resize,
    /// The operator fails a device.
    Fail(u16),
    /// The operator takes a device out for a while.
    Away(usize),
    /// A device that the array does without is taken in again.
    Back(usize),
    /// A device is added.
    Add,
    /// A device is taken out for good, once what lies on it has moved.
    Leave(usize),
    /// Another device takes the place of one in use.
    Swap(usize),
    /// A device goes away during a write and comes back with its cache.
    Blink(usize),
    /// A device hangs, and the array goes on without it; what it was sent it ends much later. Meanwhile
    /// a client writes durably or, with `true`, makes a volume, which takes a checkpoint.
    Hang(usize, bool),
    /// A device that hung is as fast as the others again: waits until the array has taken it in by itself, and has its
    /// full redundancy.
    Return(usize),
    /// A page of a device is damaged; then everything is read.
    Rot(usize),
    /// Everything is scrubbed.
    Scrub,
    /// Waits for background work and full redundancy.
    Repair,
    /// Nothing, for so many milliseconds: checkpoints and merges come by.
    Sleep(u64),
    /// Exports and imports.
    Reopen,
    /// The daemon dies; the next one imports.
    Restart,
}

/// Every letter, by name.
pub const ALPHABET: [(&str, Op); 53] = [
    ("w512", Op::Write(0, 512, false)),
    ("w512d", Op::Write(512, 512, true)),
    ("w2k-odd", Op::Write(3 * KIB, 2 * KIB, false)),
    ("w2k-oddd", Op::Write(3 * KIB, 2 * KIB, true)),
    ("w4k", Op::Write(0, 4 * KIB, false)),
    ("w4kd", Op::Write(0, 4 * KIB, true)),
    ("w4k-next", Op::Write(4 * KIB, 4 * KIB, false)),
    ("w4k-nextd", Op::Write(4 * KIB, 4 * KIB, true)),
    ("w4k-far", Op::Write(400 * KIB, 4 * KIB, false)),
    ("w4k-fard", Op::Write(400 * KIB, 4 * KIB, true)),
    ("w16k", Op::Write(0, 16 * KIB, false)),
    ("w16kd", Op::Write(8 * KIB, 16 * KIB, true)),
    ("w32k", Op::Write(0, 32 * KIB, false)),
    ("w32kd", Op::Write(0, 32 * KIB, true)),
    ("w40k", Op::Write(12 * KIB, 40 * KIB, false)),
    ("w64kd", Op::Write(32 * KIB, 64 * KIB, true)),
    ("w128k", Op::Write(0, 128 * KIB, false)),
    ("w128kd", Op::Write(64 * KIB, 128 * KIB, true)),
    ("side", Op::WriteSide(false)),
    ("sided", Op::WriteSide(true)),
    ("race", Op::Race),
    ("trim4k", Op::Zero(true, 0, 4 * KIB, false)),
    ("trim4kd", Op::Zero(true, 0, 4 * KIB, true)),
    ("trim64k", Op::Zero(true, 0, 64 * KIB, false)),
    ("trim-alld", Op::Zero(true, 0, 512 * KIB, true)),
    ("zero2k", Op::Zero(false, KIB, 2 * KIB, false)),
    ("zero4kd", Op::Zero(false, 0, 4 * KIB, true)),
    ("zero32kd", Op::Zero(false, 0, 32 * KIB, true)),
    ("flush", Op::Flush),
    ("flush-side", Op::FlushSide),
    ("read", Op::Read),
    ("create", Op::Create),
    ("destroy", Op::Destroy),
    ("fail0", Op::Fail(0)),
    ("fail1", Op::Fail(1)),
    ("away1", Op::Away(1)),
    ("back0", Op::Back(0)),
    ("back1", Op::Back(1)),
    ("add", Op::Add),
    ("leave0", Op::Leave(0)),
    ("swap1", Op::Swap(1)),
    ("blink1", Op::Blink(1)),
    ("rot2", Op::Rot(2)),
    ("heal", Op::Repair),
    ("sleep1", Op::Sleep(1_000)),
    ("sleep61", Op::Sleep(61_000)),
    ("reopen", Op::Reopen),
    ("restart", Op::Restart),
    ("resize", Op::Resize),
    ("scrub", Op::Scrub),
    ("hang1", Op::Hang(1, false)),
    ("hang1-create", Op::Hang(1, true)),
    ("return1", Op::Return(1)),
];

/// The letter called `name`.
pub fn letter(name: &str) -> Option<Op> {
    ALPHABET.iter().find(|(n, _)| *n == name).map(|(_, op)| *op)
}

/// The geometries that are enumerated: layout, K, M, devices.
pub const GEOMETRIES: [(&str, usize, usize, usize); 4] = [
    ("ec2+1", 2, 1, 3),
    ("raid1", 1, 1, 2),
    ("ec2+2", 2, 2, 5),
    ("ec1+2", 1, 2, 4),
];

/// The configuration of geometry number `geometry`.
pub fn config(geometry: usize) -> Config {
    let options = Options {
        mode: Some(Mode::Within),
        ..Options::default()
    };
    let (layout, k, m, devices) = GEOMETRIES[geometry];
    let mut config = Config::random(1, options).reshaped(layout, k, m, devices + 1);
    config.more = 1;
    config.device_bytes = 16 << 20;
    config.memory_bytes = 16 << 20;
    (config.strip_bytes, config.shards, config.full) = (Some(16_384), 1, None);
    let volume = |size: u64, thin: bool| VolumeConfig {
        size,
        block_bytes: 4096,
        thin,
        fast_digest: false,
        sparse: false,
    };
    config.volumes = vec![volume(512 * KIB, false), volume(64 * KIB, true)];
    config
}

/// Makes the array and its first contents, calls `begin`, then runs the letters. False if something
/// failed; the world says what.
pub(crate) fn run(driver: &mut Driver<'_>, ops: &[Op], begin: &dyn Fn()) -> bool {
    let mut machine = driver.machine();
    let Some(mut store) = driver.create(&machine.0) else {
        return false;
    };
    let session = open_session(driver, &machine, &store);
    let first = async move {
        session.write(0, MAIN, 0, 64 * KIB, true).await;
        session.write(0, SIDE, 32 * KIB, 16 * KIB, true).await;
        session.rt.sleep(61 * SECOND).await;
        session.write(0, MAIN, 16 * KIB, 8 * KIB, true).await;
        session.write(0, SIDE, 0, 8 * KIB, true).await;
    };
    if driver.finish(&machine.0, "preamble", first).is_none() {
        return false;
    }
    begin();
    for op in ops {
        match op {
            Op::Reopen | Op::Restart => {
                if *op == Op::Reopen && !driver.export(&machine.0, &store) {
                    return false;
                }
                drop(store);
                driver.power_off(&machine);
                if *op == Op::Restart {
                    driver.world.crash_models();
                }
                machine = driver.machine();
                let Opened::Store(opened) = driver.open(&machine.0, false) else {
                    return false;
                };
                store = opened;
                driver.check_volumes(&store);
                driver.restore_sizes(&machine.0, &store);
            }
            Op::Repair => {
                let session = open_session(driver, &machine, &store);
                let give_up = async move {
                    returns::give_up_offline(&session.world, &session.rt, &session.store).await;
                };
                if driver.finish(&machine.0, "giving up", give_up).is_none() {
                    return false;
                }
                driver.repair(&machine.0, &store);
            }
            _ => {
                let session = open_session(driver, &machine, &store);
                let future = perform(session, *op);
                if driver.finish(&machine.0, "workload", future).is_none() {
                    return false;
                }
            }
        }
        if driver.world.failed() {
            return false;
        }
    }
    let rt = machine.0.clone();
    let settle = async move { rt.sleep(SECOND / 2).await };
    driver.finish(&machine.0, "settling", settle).is_some()
}

fn open_session(driver: &Driver<'_>, machine: &Machine, store: &Rc<dyn Store>) -> Session {
    Session {
        world: driver.world.clone(),
        rt: machine.0.clone(),
        store: store.clone(),
    }
}

async fn perform(session: Session, op: Op) {
    let world: &World = &session.world;
    match op {
        Op::Write(at, length, durable) => session.write(1, MAIN, at, length, durable).await,
        Op::WriteSide(durable) => session.write(1, SIDE, 4096, 4096, durable).await,
        Op::Race => {
            let other = session.clone();
            let task = session.rt.spawn(async move {
                other.write(2, MAIN, 8 * KIB, 16 * KIB, false).await;
            });
            session.write(1, MAIN, 0, 16 * KIB, false).await;
            task.await;
        }
        Op::Zero(trim, at, length, durable) => {
            session.zero(1, MAIN, at, length, trim, durable).await;
        }
        Op::Flush => session.flush(1, MAIN).await,
        Op::FlushSide => session.flush(1, SIDE).await,
        Op::Read => read_all(&session).await,
        Op::Create => create(&session, "v2").await,
        Op::Destroy => session.destroy_volume(1, SIDE).await,
        Op::Resize => session.shrink_and_grow(1, SIDE, 4 * KIB).await,
        Op::Fail(device) => {
            if fits(world, usize::from(device)) {
                world.damage(usize::from(device), false);
                let future = session.store.fail(device, false);
                session.bounded("fail device", future).await;
            }
        }
        Op::Away(device) => {
            if fits(world, device) {
                world.damage(device, false);
                let number = u16::try_from(device).expect("few devices");
                let future = session.store.offline(number);
                session.bounded("take a device out", future).await;
            }
        }
        Op::Back(device) => {
            returns::comes_back(world, &session.rt, &session.store, device).await;
        }
        Op::Add => returns::add(world, &session.rt, &session.store, None).await,
        Op::Leave(device) => {
            returns::leaves(world, &session.rt, &session.store, device).await;
        }
        Op::Swap(device) => {
            returns::add(world, &session.rt, &session.store, Some(device)).await;
        }
        Op::Blink(device) => {
            if fits(world, device) {
                world.damage(device, false);
                world.disks[device].set_offline();
                session.write(1, MAIN, 0, 48 * KIB, false).await;
                world.disks[device].set_online(false);
                session.rt.sleep(SECOND / 100).await;
            }
        }
        Op::Hang(device, at_checkpoint) => hang(&session, device, at_checkpoint).await,
        Op::Return(device) => come_back(&session, device).await,
        Op::Rot(device) => {
            let device = device.min(world.config.first_devices() - 1);
            if fits(world, device) {
                world.damage(device, true);
                world.disks[device].rot(Rot::Garbage);
                read_all(&session).await;
            }
        }
        Op::Scrub => session.scrub_now().await,
        Op::Sleep(milliseconds) => session.rt.sleep(milliseconds * SECOND / 1_000).await,
        Op::Repair | Op::Reopen | Op::Restart => unreachable!("done by the caller"),
    }
}

/// Makes a volume, unless it is there.
async fn create(session: &Session, name: &str) {
    if session.world.volumes.borrow().contains_key(name) {
        return;
    }
    let side = VolumeConfig {
        thin: false,
        ..session.world.config.volumes[1].clone()
    };
    session.make_volume(1, name, &side).await;
}

async fn hang(session: &Session, device: usize, at_checkpoint: bool) {
    let world = &session.world;
    if !fits(world, device) {
        return;
    }
    world.damage(device, false);
    let disk = &world.disks[device];
    disk.set_hanging(HANGS);
    if at_checkpoint {
        create(session, "v3").await;
    } else {
        session.write(1, MAIN, 40 * KIB, 48 * KIB, true).await;
    }
    let until = session.rt.now() + OUT_WITHIN;
    while disk.is_busy() && is_in_use(session, device).await {
        if session.rt.now() > until {
            if !is_other_damaged(world, device) {
                world.fail(|| format!("device {device} hangs, and is in use"));
            }
            break;
        }
        session.rt.sleep(SECOND / 10).await;
    }
    disk.set_hanging(0);
}

async fn is_in_use(session: &Session, device: usize) -> bool {
    session.store.status().await.online.contains(&device)
}

/// Whether anything has happened to another device than this one that the array may need it for.
fn is_other_damaged(world: &World, device: usize) -> bool {
    let budget = world.budget.borrow();
    let others = budget.damaged.iter().any(|d| *d != device);
    others || !budget.leaving.is_empty() || budget.spent.values().any(|spent| *spent > 0)
}

async fn come_back(session: &Session, device: usize) {
    let (world, store) = (&session.world, &session.store);
    let mut status = store.status().await;
    if !status.slow.contains(&device) {
        return;
    }
    let until = session.rt.now() + RETURNS_WITHIN;
    let is_back = |s: &StoreStatus| s.optimal && s.online.contains(&device);
    while !is_back(&status) && session.rt.now() < until {
        session.rt.sleep(SECOND / 2).await;
        status = store.status().await;
    }
    if is_back(&status) {
        let mut budget = world.budget.borrow_mut();
        if !budget.tainted.contains(&device) {
            budget.damaged.remove(&device);
        }
    } else if !is_other_damaged(world, device) {
        world.fail(|| format!("device {device} is not back by itself: {status:?}"));
    }
}

/// Whether damage to `device` is still within M, with enough left to agree on a generation.
fn fits(world: &World, device: usize) -> bool {
    let budget = world.budget.borrow();
    let mut damaged = budget.damaged.clone();
    damaged.insert(device);
    let counted = world.config.devices - budget.gone.len();
    damaged.len() <= world.config.m
        && !budget.gone.contains(&device)
        && (counted - damaged.len()) * 2 >= counted
}

async fn read_all(session: &Session) {
    session.read(1, MAIN, 0, 512 * KIB).await;
    session.read(1, SIDE, 0, 64 * KIB).await;
}
