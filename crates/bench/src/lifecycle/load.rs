//! The suites' workloads, on several arrays at once or on their devices raw.
//!
//! **Invariants**: arrays and raw devices get the same operations in the same order of choice; what is
//! read from a volume is compared with what was written there; the time of each operation is kept, so
//! that a run can be cut into windows afterwards.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ashlar_rt::{BLOCK, Buf, Nanos, Rt};

use crate::load::{CONTENTS, Stop, Target, contents, place};

/// What a workload does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// What it is called, without its number.
    pub name: &'static str,
    /// Reads in a hundred operations.
    pub reads: u64,
    /// Bytes of an operation.
    pub bytes: usize,
    /// How operations choose their place.
    pub order: Order,
    /// Bytes of a slot of the array; 0: those of the options.
    pub slot_bytes: u64,
    /// Whose rate the figure is: that of the clients, or that of a check of the array.
    pub figure: Figure,
}

/// Whose rate a workload is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// The clients'.
    Clients,
    /// That of a check that runs beside the clients.
    Check,
    /// That of a check with no client.
    CheckAlone,
}

/// How operations choose their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Anywhere, uniformly.
    Random,
    /// One after the other, all workers of an array together.
    Sequential,
    /// The addresses are divided between [`JOBS`] jobs; each goes through its part in order.
    Split,
    /// The addresses are divided between so many streams, those of all arrays together; each goes through its part in
    /// order, with so many operations in flight.
    Streams(u16, u16),
    /// As streams, where their number is none that is swept: threads, each with a file.
    Files(u16, u16),
    /// One after the other within one part of so many, once.
    Part(u16, u16),
}

/// Jobs of an array in [`Order::Split`].
pub const JOBS: usize = 8;

const SMALL: usize = 4 << 10;
const LARGE: usize = 128 << 10;

impl Work {
    pub(super) const fn new(name: &'static str, reads: u64, bytes: usize, order: Order) -> Work {
        Work {
            name,
            reads,
            bytes,
            order,
            slot_bytes: 0,
            figure: Figure::Clients,
        }
    }

    const fn random(name: &'static str, reads: u64) -> Work {
        Work::new(name, reads, SMALL, Order::Random)
    }

    const fn large(name: &'static str, reads: u64, order: Order) -> Work {
        Work::new(name, reads, LARGE, order)
    }

    /// Its name in results: with the number of what is swept.
    pub fn label(&self) -> String {
        let name = match self.figure {
            Figure::Clients => self.name.to_string(),
            Figure::Check => format!("check beside {}", self.name),
            Figure::CheckAlone => "check".to_string(),
        };
        match (self.order, self.slot_bytes) {
            (_, slot) if slot >= 1 << 20 => format!("{name} in runs of {}M", slot >> 20),
            (_, slot) if slot > 0 => format!("{name} in runs of {}K", slot >> 10),
            (Order::Streams(streams, _), _) => format!("{name} x{streams}"),
            (Order::Part(index, of), _) => {
                let end = (u32::from(index) + 1) * 100 / u32::from(of.max(1));
                format!("{name} to {end} %")
            }
            _ => name,
        }
    }

    /// Whether a check of the arrays runs beside it.
    pub fn is_checked(&self) -> bool {
        self.figure == Figure::Check || self.name.ends_with("while checked")
    }

    /// Operations of 4 KiB: rates are in operations.
    pub fn is_small(&self) -> bool {
        self.bytes == SMALL
    }

    /// Spec Sheet Random: 4 KiB writes, 70 % reads, reads.
    pub const RANDOM: [Work; 3] = [
        Work::random("RW", 0),
        Work::random("RM", 70),
        Work::random("RR", 100),
    ];

    /// Spec Sheet Sequential: 128 KiB reads and writes, and both split by job.
    pub const SEQUENTIAL: [Work; 4] = [
        Work::large("SR", 100, Order::Sequential),
        Work::large("SW", 0, Order::Sequential),
        Work::large("SR-JS", 100, Order::Split),
        Work::large("SW-JS", 0, Order::Split),
    ];

    /// Writes everything once, in order.
    pub(super) const FILL: Work = Work::large("fill", 0, Order::Sequential);

    /// Writes a part of everything.
    pub(super) const fn fill_part(bytes: usize, index: u16, of: u16) -> Work {
        Work::new("fill", 0, bytes, Order::Part(index, of))
    }
}

/// How much of a workload is run.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// Operations in flight on each target.
    pub depth: usize,
    /// Operations before measuring begins, all targets together.
    pub warm: u64,
    /// Operations measured.
    pub count: u64,
    /// Operations in flight, all targets together.
    pub in_flight: u64,
}

/// What was measured.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// When each operation ended, from the beginning of measuring, in order.
    pub ends: Vec<Nanos>,
    /// How long each took.
    pub times: Vec<Nanos>,
}

struct State {
    work: Work,
    amount: Amount,
    units: Vec<u64>,
    targets: Vec<Target>,
    cursors: Vec<Vec<Cell<u64>>>,
    contents: ashlar_rt::Slice,
    done: Cell<u64>,
    begin: Cell<Option<Nanos>>,
    ended: Cell<bool>,
    series: RefCell<Series>,
    over: Rc<Cell<bool>>,
    stop: Cell<Option<Stop>>,
    mark: Box<dyn Fn()>,
}

/// Runs `work` on all targets at once until `amount` is done or `over` is set; `mark` is called when measuring
/// begins and when it ends.
///
/// # Errors
/// What ended it early.
pub async fn run(
    rt: &Rt,
    targets: Vec<Target>,
    work: Work,
    amount: Amount,
    over: Rc<Cell<bool>>,
    mark: impl Fn() + 'static,
) -> Result<Series, Stop> {
    let units = targets
        .iter()
        .map(|t| units(t, work.bytes as u64))
        .collect();
    let streams = streams(work.order, targets.len());
    let cursors = streams.iter().map(|n| vec![Cell::new(0); *n]).collect();
    let state = Rc::new(State {
        work,
        amount,
        units,
        cursors,
        contents: contents(work.bytes),
        done: Cell::new(0),
        begin: Cell::new(None),
        ended: Cell::new(false),
        series: RefCell::default(),
        over,
        stop: Cell::new(None),
        mark: Box::new(mark),
        targets,
    });
    state.progress(rt);
    let mut joins = Vec::new();
    let workers = |target: usize| match work.order {
        Order::Streams(_, ahead) | Order::Files(_, ahead) => streams[target] * usize::from(ahead),
        _ => amount.depth.max(1),
    };
    let most = (0..state.targets.len()).map(workers).max().unwrap_or(0);
    for worker_number in 0..most {
        for (target, streams) in streams.iter().enumerate() {
            if worker_number < workers(target) {
                let worker = worker(rt.clone(), state.clone(), target, worker_number % streams);
                joins.push(rt.spawn(worker));
            }
        }
    }
    for join in joins {
        join.await;
    }
    match state.stop.get() {
        Some(stop) => Err(stop),
        None => Ok(state.series.take()),
    }
}

/// How many streams each target has: a cursor for each.
fn streams(order: Order, targets: usize) -> Vec<usize> {
    match order {
        Order::Random | Order::Sequential | Order::Part(..) => vec![1; targets],
        Order::Split => vec![JOBS; targets],
        Order::Streams(all, _) | Order::Files(all, _) => {
            let all = usize::from(all);
            let share = |target| all / targets.max(1) + usize::from(target < all % targets.max(1));
            (0..targets).map(share).collect()
        }
    }
}

/// How many units a target has, of so many bytes.
pub(super) fn units(target: &Target, bytes: u64) -> u64 {
    let units = match target {
        Target::Raw(devices) => {
            let least = devices.iter().map(|d| d.info().size_bytes / bytes).min();
            least.unwrap_or(0) * devices.len() as u64
        }
        Target::Volume(volume) => volume.info().size_bytes / bytes,
    };
    units.max(1)
}

impl State {
    /// Begins and ends measuring when it is time.
    fn progress(&self, rt: &Rt) {
        if self.begin.get().is_none() && self.done.get() >= self.amount.warm {
            self.begin.set(Some(rt.now()));
            (self.mark)();
        }
        let enough = self.series.borrow().ends.len() as u64 >= self.amount.count;
        if self.begin.get().is_some() && !self.ended.get() && (enough || self.over.get()) {
            self.ended.set(true);
            (self.mark)();
        }
    }

    /// The unit of the next operation of a job.
    fn unit(&self, rt: &Rt, target: usize, job: usize) -> u64 {
        let units = self.units[target];
        let cursors = &self.cursors[target];
        let next = |part: u64, of: u64, cursor: &Cell<u64>| {
            let (first, end) = (part * units / of, (part + 1) * units / of);
            first + cursor.replace(cursor.get() + 1) % (end - first).max(1)
        };
        match self.work.order {
            Order::Random => rt.random_below(units),
            Order::Sequential => next(0, 1, &cursors[0]),
            Order::Part(index, of) => next(u64::from(index), u64::from(of), &cursors[0]),
            Order::Split | Order::Streams(..) | Order::Files(..) => {
                next(job as u64, cursors.len() as u64, &cursors[job])
            }
        }
    }
}

async fn worker(rt: Rt, state: Rc<State>, target: usize, job: usize) {
    // As many are in flight when measuring ends as when it begins.
    while !state.ended.get() && state.stop.get().is_none() {
        let unit = state.unit(&rt, target, job);
        let is_read = state.work.reads == 100 || rt.random_below(100) < state.work.reads;
        let started = rt.now();
        if let Err(stop) = one(&state, target, unit, is_read).await {
            state.stop.set(Some(stop));
            return;
        }
        if let Some(begin) = state.begin.get().filter(|_| !state.ended.get()) {
            let mut series = state.series.borrow_mut();
            series.ends.push(rt.now() - begin);
            series.times.push(rt.now() - started);
        }
        state.done.set(state.done.get() + 1);
        state.progress(&rt);
    }
}

async fn one(state: &State, target: usize, unit: u64, is_read: bool) -> Result<(), Stop> {
    let bytes = state.work.bytes;
    let first = unit * (bytes / BLOCK) as u64 % CONTENTS;
    let start = usize::try_from(first).expect("small") * BLOCK;
    let content = state.contents.cut(start..start + bytes);
    match &state.targets[target] {
        Target::Raw(devices) => {
            let (device, offset) = place(devices, unit, bytes as u64);
            if is_read {
                let read = device.read(offset, Buf::zeroed(bytes));
                return read.await.1.map_err(Stop::Device);
            }
            device
                .write(offset, vec![content])
                .await
                .map_err(Stop::Device)
        }
        Target::Volume(volume) => {
            let offset = unit * bytes as u64;
            if !is_read {
                return volume
                    .write(offset, content, false)
                    .await
                    .map_err(Stop::Volume);
            }
            let read = volume.read(offset, bytes).await.map_err(Stop::Volume)?;
            if read[..] == content[..] {
                Ok(())
            } else {
                Err(Stop::WrongBytes(unit))
            }
        }
    }
}

impl Series {
    /// Operations a second in `count` equal spans of the run.
    pub fn windows(&self, count: usize) -> Vec<f64> {
        let Some(last) = self.ends.last().filter(|last| **last > 0) else {
            return Vec::new();
        };
        let mut counts = vec![0u64; count];
        for end in &self.ends {
            let window = u128::from(*end) * count as u128 / (u128::from(*last) + 1);
            counts[usize::try_from(window).expect("below count")] += 1;
        }
        let span = *last as f64 / 1e9 / count as f64;
        counts.iter().map(|n| *n as f64 / span).collect()
    }

    /// Operations a second over the whole run.
    pub fn per_second(&self) -> Option<f64> {
        let last = self.ends.last().filter(|last| **last > 0)?;
        Some(self.ends.len() as f64 * 1e9 / *last as f64)
    }

    /// Mean and 99th percentile of an operation's time, microseconds.
    pub fn latency(&self) -> Option<(f64, f64)> {
        let mut times = self.times.clone();
        times.sort_unstable();
        let p99 = *times.get(times.len() * 99 / 100)?;
        let sum: u128 = times.iter().map(|t| u128::from(*t)).sum();
        Some((sum as f64 / times.len() as f64 / 1e3, p99 as f64 / 1e3))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_series_is_cut_into_equal_spans() {
        let series = Series {
            ends: vec![10, 20, 30, 40, 100, 110, 120, 200],
            times: vec![1000; 8],
        };
        let windows = series.windows(2);
        assert_eq!(windows.len(), 2);
        assert!(
            (windows[0] / windows[1] - 5.0 / 3.0).abs() < 1e-9,
            "{windows:?}"
        );
        assert!((series.per_second().unwrap() - 4e7).abs() < 1.0);
        assert_eq!(series.latency(), Some((1.0, 1.0)));
        assert!(Series::default().windows(4).is_empty());
    }
}
