//! The one load generator: workers in a closed loop on raw devices or on a volume.
//!
//! **Invariants**: raw devices and volumes get the same operations in the same order of choice; every
//! read of what was written before is compared with what was written there (the engine's own
//! verification is not taken for granted); time is the runtime's.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ashlar_device::{DeviceRef, Fault};
use ashlar_engine::{Volume, VolumeError};
use ashlar_rt::{BLOCK, Buf, Nanos, Rt, Slice};

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Reads, and compares with what [`Op::Write`] puts there.
    Read,
    /// Writes.
    Write,
    /// So many of a hundred are reads, chosen at random, the others writes.
    Mixed(u8),
}

/// Where operations go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Anywhere, uniformly.
    Random,
    /// One after the other, from 0; from 0 again at the end.
    Sequential,
}

/// When a write counts as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// When it is acknowledged.
    Cached,
    /// As [`Durability::Cached`], but each worker flushes after so many of its writes and waits.
    FlushEvery(u32),
    /// When it would survive a power cut.
    Durable,
}

/// A load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// What.
    pub op: Op,
    /// Where.
    pub pattern: Pattern,
    /// Bytes of an operation, a multiple of 4096.
    pub bytes: usize,
    /// Operations in flight, in all.
    pub depth: usize,
    /// When a write is done.
    pub durability: Durability,
    /// Operations before measuring begins.
    pub warm: u64,
    /// Operations measured.
    pub count: u64,
}

/// What is driven.
#[derive(Clone)]
pub enum Target {
    /// Devices side by side, without redundancy: operation n of a sequence goes to device n modulo
    /// their count.
    Raw(Vec<DeviceRef>),
    /// A volume.
    Volume(Volume),
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::Raw(devices) => write!(f, "Raw({})", devices.len()),
            Target::Volume(volume) => write!(f, "{volume:?}"),
        }
    }
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Operations.
    pub count: u64,
    /// Nanoseconds they took together.
    pub elapsed: Nanos,
    /// Mean time of one, in nanoseconds.
    pub mean: f64,
    /// The time that 99 in 100 took at most.
    pub p99: Nanos,
}

impl Measured {
    /// Operations a second.
    pub fn per_second(&self) -> f64 {
        self.count as f64 * 1e9 / self.elapsed.max(1) as f64
    }
}

/// Why a load ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// A device failed.
    #[error("a device failed: {0:?}")]
    Device(Fault),
    /// The volume refused.
    #[error("the volume answered: {0:?}")]
    Volume(VolumeError),
    /// Bytes that nobody wrote there.
    #[error("wrong bytes were read at unit {0}")]
    WrongBytes(u64),
}

/// Different contents of a block, so that one read from a wrong address is seen.
pub(crate) const CONTENTS: u64 = 61;

/// Bytes of a block that are not zero: enough to tell contents apart. In memory a modelled device takes that for each
/// block, and for each of its parity.
const HEAD: usize = 64;

/// A run of blocks such that the content of block b of a target begins at block b modulo
/// [`CONTENTS`] of it, for operations of `bytes`.
pub(crate) fn contents(bytes: usize) -> Slice {
    let blocks = usize::try_from(CONTENTS).expect("small") + bytes / BLOCK;
    let mut buf = Buf::zeroed(blocks * BLOCK);
    for (number, block) in (0u64..).zip(buf.chunks_exact_mut(BLOCK)) {
        let mut state = (number % CONTENTS).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        for word in block[..HEAD].chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
    }
    buf.freeze()
}

struct State {
    load: Load,
    units: u64,
    contents: Slice,
    mark: Box<dyn Fn()>,
    issued: Cell<u64>,
    done: Cell<u64>,
    begin: Cell<Nanos>,
    end: Cell<Nanos>,
    times: RefCell<Vec<Nanos>>,
    stop: Cell<Option<Stop>>,
}

/// Runs `load` on `target`; `mark` is called when measuring begins and when it ends.
///
/// # Errors
/// What ended it early.
pub async fn run(
    rt: &Rt,
    target: &Target,
    load: Load,
    mark: impl Fn() + 'static,
) -> Result<Measured, Stop> {
    let unit = load.bytes as u64;
    let units = match target {
        Target::Raw(devices) => {
            devices
                .iter()
                .map(|d| d.info().size_bytes / unit)
                .min()
                .unwrap_or(0)
                * devices.len() as u64
        }
        Target::Volume(volume) => volume.info().size_bytes / unit,
    };
    let state = Rc::new(State {
        load,
        units: units.max(1),
        contents: contents(load.bytes),
        issued: Cell::new(0),
        done: Cell::new(0),
        begin: Cell::new(rt.now()),
        end: Cell::new(rt.now()),
        times: RefCell::default(),
        stop: Cell::new(None),
        mark: Box::new(mark),
    });
    if load.warm == 0 {
        (state.mark)();
    }
    let mut joins = Vec::new();
    for _ in 0..load.depth.max(1) {
        let worker = worker(rt.clone(), target.clone(), state.clone());
        joins.push(rt.spawn(worker));
    }
    for join in joins {
        join.await;
    }
    if let Some(stop) = state.stop.get() {
        return Err(stop);
    }
    let mut times = state.times.borrow_mut();
    times.sort_unstable();
    let sum: u128 = times.iter().map(|t| u128::from(*t)).sum();
    Ok(Measured {
        count: load.count,
        elapsed: state.end.get() - state.begin.get(),
        mean: sum as f64 / times.len().max(1) as f64,
        p99: times.get(times.len() * 99 / 100).copied().unwrap_or(0),
    })
}

async fn worker(rt: Rt, target: Target, state: Rc<State>) {
    let total = state.load.warm + state.load.count;
    let mut unflushed = 0;
    // As many are in flight when measuring ends as when it begins.
    while state.done.get() < total && state.stop.get().is_none() {
        let number = state.issued.replace(state.issued.get() + 1);
        let unit = match state.load.pattern {
            Pattern::Random => rt.random_below(state.units),
            Pattern::Sequential => number % state.units,
        };
        let started = rt.now();
        let op = match state.load.op {
            Op::Mixed(reads) if rt.random_below(100) < u64::from(reads) => Op::Read,
            Op::Mixed(_) => Op::Write,
            op => op,
        };
        let mut result = one(&target, &state, op, unit).await;
        unflushed += 1;
        if let Durability::FlushEvery(every) = state.load.durability
            && unflushed == every
            && result.is_ok()
        {
            unflushed = 0;
            result = flush(&target, unit).await;
        }
        if let Err(stop) = result {
            state.stop.set(Some(stop));
            return;
        }
        let done = state.done.replace(state.done.get() + 1) + 1;
        if done <= state.load.warm {
            state.begin.set(rt.now());
        } else if done <= total {
            state.end.set(rt.now());
            state.times.borrow_mut().push(rt.now() - started);
        }
        if done == state.load.warm || done == total {
            (state.mark)();
        }
    }
}

async fn one(target: &Target, state: &State, op: Op, unit: u64) -> Result<(), Stop> {
    let bytes = state.load.bytes;
    let first = unit * (bytes / BLOCK) as u64 % CONTENTS;
    let start = usize::try_from(first).expect("small") * BLOCK;
    let content = state.contents.cut(start..start + bytes);
    let durable = state.load.durability == Durability::Durable;
    match (target, op) {
        (Target::Raw(devices), op) => {
            let (device, offset) = place(devices, unit, bytes as u64);
            if op == Op::Read {
                return device
                    .read(offset, Buf::zeroed(bytes))
                    .await
                    .1
                    .map_err(Stop::Device);
            }
            device
                .write(offset, vec![content])
                .await
                .map_err(Stop::Device)?;
            if durable {
                device.flush().await.map_err(Stop::Device)
            } else {
                Ok(())
            }
        }
        (Target::Volume(volume), Op::Read) => {
            let read = volume
                .read(unit * bytes as u64, bytes)
                .await
                .map_err(Stop::Volume)?;
            if read[..] == content[..] {
                Ok(())
            } else {
                Err(Stop::WrongBytes(unit))
            }
        }
        (Target::Volume(volume), _) => {
            let write = volume.write(unit * bytes as u64, content, durable);
            write.await.map_err(Stop::Volume)
        }
    }
}

async fn flush(target: &Target, unit: u64) -> Result<(), Stop> {
    match target {
        Target::Raw(devices) => {
            let (device, _) = place(devices, unit, 1);
            device.flush().await.map_err(Stop::Device)
        }
        Target::Volume(volume) => volume.flush().await.map_err(Stop::Volume),
    }
}

pub(crate) fn place(devices: &[DeviceRef], unit: u64, bytes: u64) -> (&DeviceRef, u64) {
    let count = devices.len() as u64;
    let device = usize::try_from(unit % count).expect("a device's index");
    (&devices[device], unit / count * bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use ashlar_device::{Content, ModelDevice, ModelOptions, Profile};

    fn rate(op: Op, pattern: Pattern, bytes: usize, devices: usize, profile: Profile) -> f64 {
        let rt = Rt::simulated(3);
        let options = ModelOptions {
            content: Content::Discard,
            erased: false,
            ..ModelOptions::new(1 << 30)
        };
        let device = |_| Rc::new(ModelDevice::new(&rt, "raw", profile, options)) as DeviceRef;
        let target = Target::Raw((0..devices).map(device).collect());
        let load = Load {
            op,
            pattern,
            bytes,
            depth: 64 * devices,
            durability: Durability::Cached,
            warm: 2000 * devices as u64,
            count: 20_000 * devices as u64,
        };
        let handle = rt.clone();
        rt.block_on(async move { run(&handle, &target, load, || {}).await })
            .unwrap()
            .per_second()
    }

    #[test]
    fn the_generator_gives_the_profiles_own_numbers() {
        let profile = Profile::DATA24;
        let close = |measured: f64, expected: u64| {
            let ratio = measured / expected as f64;
            assert!((0.99..1.01).contains(&ratio), "{measured} of {expected}");
        };
        close(
            rate(Op::Read, Pattern::Random, 4096, 1, profile),
            profile.read_iops,
        );
        close(
            rate(Op::Write, Pattern::Random, 4096, 1, profile),
            profile.write_iops,
        );
        close(
            rate(Op::Read, Pattern::Sequential, 131_072, 1, profile) * 131_072.0,
            profile.read_bytes_per_second,
        );
        close(
            rate(Op::Write, Pattern::Sequential, 131_072, 1, profile) * 131_072.0,
            profile.write_bytes_per_second,
        );
        close(
            rate(Op::Write, Pattern::Random, 4096, 4, profile) / 4.0,
            profile.write_iops,
        );
    }
}
