//! The same questions by Monte Carlo, with independent code, on the real placement.
//!
//! Segments are placed by `ashlar-layout` as the engine places them, or, to compare with the exact
//! method's model, each on a random set of devices drawn anew for every trial. A trial fails all devices one
//! after the other in random order and notes after how many the first segment was lost, and what
//! share of the segments had how much redundancy left; so one trial serves every number of
//! failures. (The estimates for neighbouring numbers of failures are therefore correlated; each by
//! itself is unbiased.)
//!
//! **Invariants.** The result depends on the seed and the number of trials, not on the number of
//! threads; nothing here computes as [`crate::exact`] does.

use ashlar_layout::Placement;

use crate::exact::segments_of;
use crate::random::Random;
use crate::system::{Group, System};

/// Trials run on one random stream.
const BLOCK: u64 = 64;

/// Strip losses that a simulation follows unless trials are given: a second or two.
const BUDGET: f64 = 1e8;
/// Trials unless given, and at least.
const TRIALS: (u64, u64) = (200, 20_000);

/// How the segments of declustered groups are placed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placing {
    /// As the array places them.
    #[default]
    Layout,
    /// Each on an independently chosen random set, drawn anew for every trial: what the exact
    /// method assumes.
    Random,
}

/// What to simulate.
#[derive(Debug, Clone, Copy)]
pub struct MonteCarlo {
    /// Trials, at least 1; `None`: as many as take a second or two, at most 20,000.
    pub trials: Option<u64>,
    /// Seed of all randomness.
    pub seed: u64,
    /// Segments of each declustered group; `None`: as many as its slots allow. (Groups as wide as
    /// their stripes have one set of devices, whatever the number of segments.)
    pub segments: Option<u32>,
    /// How they are placed.
    pub placing: Placing,
    /// Threads; 0: as many as the machine has.
    pub threads: usize,
}

impl Default for MonteCarlo {
    fn default() -> MonteCarlo {
        MonteCarlo {
            trials: None,
            seed: 1,
            segments: None,
            placing: Placing::Layout,
            threads: 0,
        }
    }
}

/// An estimate with its standard error.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The mean over the trials.
    pub mean: f64,
    /// Its standard error. Never 0 for probabilities: half a trial is added on either side.
    pub stderr: f64,
}

/// Estimates after a number of random failures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Devices failed.
    pub failures: u32,
    /// Probability that any segment is lost.
    pub any_loss: Estimate,
    /// Expected share of the data lost.
    pub lost: Estimate,
    /// Expected share with no redundancy left (single copies only, else 0).
    pub critical: Estimate,
    /// Expected share with some but not all redundancy lost (single copies only, else 0).
    pub degraded: Estimate,
}

/// The simulation cannot run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MonteCarloError {
    /// No trials.
    #[error("--trials must be at least 1")]
    NoTrials,
    /// No segments.
    #[error("at least one segment a group is needed")]
    NoSegments,
    /// More failures than devices.
    #[error("{failures} failures, but only {devices} devices")]
    MoreFailuresThanDevices {
        /// Failures asked for.
        failures: u32,
        /// Devices there are.
        devices: u32,
    },
}

/// One unit of data: it is lost when more than `m` devices of each of its copies are.
#[derive(Debug)]
struct Unit {
    m: u16,
    weight: f64,
}

/// The placed system: for each device the (unit, copy) pairs it holds a strip of.
#[derive(Debug)]
struct Placed {
    copies: usize,
    units: Vec<Unit>,
    holds: Vec<Vec<u32>>,
}

impl Placed {
    /// Places as the array does, or at random.
    fn new(system: &System, segments: Option<u32>, mut random: Option<&mut Random>) -> Placed {
        let copies = usize::from(system.copies);
        let one = system.devices() / u32::from(system.copies);
        let mut holds = vec![Vec::new(); system.devices() as usize];
        let mut units: Vec<Unit> = Vec::new();
        let mut first = 0_u32;
        let all = system.data_devices();
        for group in &system.groups {
            let mut members: Vec<u16> = (0..group.devices).collect();
            let width = usize::from(group.width());
            let count = segments_of(*group, segments);
            let data = f64::from(group.devices) * f64::from(group.k) / f64::from(group.width());
            let mut row = Vec::new();
            let mut tile = 0;
            for _ in 0..count {
                let set = match random.as_mut() {
                    None => {
                        if row.is_empty() {
                            row = Placement::default().even_row(tile, &members, width);
                            row.reverse();
                            tile += 1;
                        }
                        row.pop().unwrap_or_default()
                    }
                    Some(random) => {
                        for at in 0..width {
                            let other = at + random.below(small(members.len() - at)) as usize;
                            members.swap(at, other);
                        }
                        members[..width].to_vec()
                    }
                };
                for copy in 0..copies {
                    for &device in &set {
                        let device = small(copy) * one + first + u32::from(device);
                        holds[device as usize].push(small(units.len() * copies + copy));
                    }
                }
                units.push(Unit {
                    m: group.m,
                    weight: data / all / f64::from(count),
                });
            }
            first += u32::from(group.devices);
        }
        Placed {
            copies,
            units,
            holds,
        }
    }
}

fn small(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Sums over trials, by number of failures.
#[derive(Debug, Clone, Default)]
struct Sums {
    any: Vec<u64>,
    /// Per share (lost, critical, degraded): sum and sum of squares.
    shares: Vec<[(f64, f64); 3]>,
}

impl Sums {
    fn new(most: usize) -> Sums {
        Sums {
            any: vec![0; most + 1],
            shares: vec![[(0.0, 0.0); 3]; most + 1],
        }
    }

    fn add(&mut self, other: &Sums) {
        self.any
            .iter_mut()
            .zip(&other.any)
            .for_each(|(a, b)| *a += b);
        for (a, b) in self.shares.iter_mut().zip(&other.shares) {
            for (a, b) in a.iter_mut().zip(b) {
                *a = (a.0 + b.0, a.1 + b.1);
            }
        }
    }
}

/// Strips missing per unit and copy, and copies lost per unit; all 0 between trials.
#[derive(Debug, Default)]
struct Scratch {
    missing: Vec<u16>,
    copies_lost: Vec<u16>,
}

/// One random order of failures, up to `most` of them.
fn trial(
    placed: &Placed,
    most: usize,
    order: &mut [u32],
    random: &mut Random,
    scratch: &mut Scratch,
    sums: &mut Sums,
) {
    let Scratch {
        missing,
        copies_lost,
    } = scratch;
    missing.resize(placed.units.len() * placed.copies, 0);
    copies_lost.resize(placed.units.len(), 0);
    let [mut lost, mut critical, mut degraded] = [0.0_f64; 3];
    let mut any = false;
    for x in 1..=most {
        let pick = x - 1 + random.below(small(order.len() - x + 1)) as usize;
        order.swap(x - 1, pick);
        for &held in &placed.holds[order[x - 1] as usize] {
            let held = held as usize;
            let unit = &placed.units[held / placed.copies];
            missing[held] += 1;
            if missing[held] == unit.m + 1 {
                copies_lost[held / placed.copies] += 1;
                if usize::from(copies_lost[held / placed.copies]) == placed.copies {
                    any = true;
                    lost += unit.weight;
                }
            }
            if placed.copies == 1 {
                // From one class to the next: whole, degraded, critical, lost.
                let class = |missing: u16| match missing {
                    0 => None,
                    j if j < unit.m => Some(false),
                    j if j == unit.m => Some(true),
                    _ => None,
                };
                for (step, count) in [
                    (-unit.weight, missing[held] - 1),
                    (unit.weight, missing[held]),
                ] {
                    match class(count) {
                        Some(true) => critical += step,
                        Some(false) => degraded += step,
                        None => {}
                    }
                }
            }
        }
        sums.any[x] += u64::from(any);
        for (sum, share) in sums.shares[x].iter_mut().zip([lost, critical, degraded]) {
            *sum = (sum.0 + share, sum.1 + share * share);
        }
    }
    for &device in &order[..most] {
        for &held in &placed.holds[device as usize] {
            missing[held as usize] = 0;
            copies_lost[held as usize / placed.copies] = 0;
        }
    }
}

impl MonteCarlo {
    /// Runs the trials; one [`Point`] for every number of failures in the range.
    ///
    /// # Errors
    /// [`MonteCarloError`].
    pub fn run(
        &self,
        system: &System,
        failures: std::ops::RangeInclusive<u32>,
    ) -> Result<Vec<Point>, MonteCarloError> {
        let devices = system.devices();
        if *failures.end() > devices {
            let failures = *failures.end();
            return Err(MonteCarloError::MoreFailuresThanDevices { failures, devices });
        }
        if self.trials == Some(0) {
            return Err(MonteCarloError::NoTrials);
        }
        if self.segments == Some(0) {
            return Err(MonteCarloError::NoSegments);
        }
        let most = *failures.end();
        let trials = self.trials_for(system, most);
        let sums = self.sums(system, trials, most as usize);
        let n = trials as f64;
        let share = |(sum, squares): (f64, f64)| {
            let mean = sum / n;
            let variance = (squares / n - mean * mean).max(0.0);
            Estimate {
                mean,
                stderr: (variance / (n - 1.0).max(1.0)).sqrt(),
            }
        };
        Ok(failures
            .map(|failures| {
                let hits = sums.any[failures as usize] as f64;
                let smoothed = (hits + 0.5) / (n + 1.0);
                let [lost, critical, degraded] = sums.shares[failures as usize].map(share);
                Point {
                    failures,
                    any_loss: Estimate {
                        mean: hits / n,
                        stderr: (smoothed * (1.0 - smoothed) / n).sqrt(),
                    },
                    lost,
                    critical,
                    degraded,
                }
            })
            .collect())
    }

    /// The trials that will be run for up to `most` failures.
    #[must_use]
    pub fn trials_for(&self, system: &System, most: u32) -> u64 {
        let strips = |g: &Group| f64::from(segments_of(*g, self.segments)) * f64::from(g.width());
        let all: f64 = system.groups.iter().map(strips).sum::<f64>() * f64::from(system.copies);
        let each = match self.placing {
            Placing::Layout => all * f64::from(most) / f64::from(system.devices()),
            Placing::Random => all * 4.0,
        };
        let (least, usual) = TRIALS;
        self.trials
            .unwrap_or_else(|| ((BUDGET / each.max(1.0)) as u64).clamp(least, usual))
    }

    fn sums(&self, system: &System, trials: u64, most: usize) -> Sums {
        let fixed = match self.placing {
            Placing::Random if system.declustered() => None,
            _ => Some(Placed::new(system, self.segments, None)),
        };
        let blocks = trials.div_ceil(BLOCK);
        let threads = match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let threads = (threads as u64).min(blocks);
        // Blocks are given out in fixed runs and their sums added in order, so that rounding does
        // not depend on the number of threads either.
        let work = |thread: u64| -> Vec<Sums> {
            (blocks * thread / threads..blocks * (thread + 1) / threads)
                .map(|block| {
                    let mut random = Random::new(self.seed, block);
                    let (mut sums, mut scratch) = (Sums::new(most), Scratch::default());
                    let mut order: Vec<u32> = (0..system.devices()).collect();
                    for _ in block * BLOCK..((block + 1) * BLOCK).min(trials) {
                        let drawn = match fixed {
                            Some(_) => None,
                            None => Some(Placed::new(system, self.segments, Some(&mut random))),
                        };
                        if let Some(placed) = drawn.as_ref().or(fixed.as_ref()) {
                            trial(
                                placed,
                                most,
                                &mut order,
                                &mut random,
                                &mut scratch,
                                &mut sums,
                            );
                        }
                    }
                    sums
                })
                .collect()
        };
        let parts: Vec<Vec<Sums>> = if threads <= 1 {
            vec![work(0)]
        } else {
            std::thread::scope(|scope| {
                let handles: Vec<_> = (0..threads)
                    .map(|thread| scope.spawn(move || work(thread)))
                    .collect();
                handles
                    .into_iter()
                    .map(|handle| {
                        handle
                            .join()
                            .unwrap_or_else(|e| std::panic::resume_unwind(e))
                    })
                    .collect()
            })
        };
        let mut total = Sums::new(most);
        parts.iter().flatten().for_each(|sums| total.add(sums));
        total
    }
}
