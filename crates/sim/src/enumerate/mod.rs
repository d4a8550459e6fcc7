//! Crash enumeration: every short workload, the power cut after every device operation, every
//! subset of what was not flushed; recovered, read, and checked with the model. Then the same inside
//! the recovery, and with M devices lost in the outage.
//!
//! Invariants: everything follows from the workload's letters, so a failure is a command; what is
//! sampled rather than tried in full is sampled the same way each time.

pub mod log;
pub mod ops;

use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::disk::SimDisk;
use crate::judge::inspect;
use crate::machine::{Driver, guarded};
use crate::pages::Pages;
use crate::rng::{Rng, mix};
use crate::store::Subject;
use crate::trace::Trace;
use crate::world::World;

use log::{Effort, Image, Known, Log, answered};
use ops::{ALPHABET, GEOMETRIES, Op};

/// A power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Before which step.
    pub at: usize,
    /// What it leaves.
    pub image: Image,
}

/// One thing that is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// Number of the geometry.
    pub geometry: usize,
    /// Numbers of the letters.
    pub letters: Vec<usize>,
    /// When the power goes.
    pub cut: Cut,
    /// Devices lost in the outage: a mask.
    pub lost: u64,
    /// When the power goes again, in the recovery.
    pub again: Option<Cut>,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.letters.iter().map(|at| ALPHABET[*at].0).collect();
        write!(
            f,
            "ashlar-sim enumerate --layout {} --workload {} --at {} --image {} --lost {:x}",
            GEOMETRIES[self.geometry].0,
            names.join(","),
            self.cut.at,
            self.cut.image,
            self.lost
        )?;
        if let Some(again) = self.again {
            write!(f, " --again {} --again-image {}", again.at, again.image)?;
        }
        Ok(())
    }
}

/// What to enumerate.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Letters a workload, at most.
    pub length: usize,
    /// And at least.
    pub least: usize,
    /// One workload in so many of the longest ones; shorter ones are all run.
    pub one_in: u64,
    /// Shifts which ones these are.
    pub offset: u64,
    /// At each point.
    pub effort: Effort,
    /// One recovery in so many is crashed again, at each of its points.
    pub again_one_in: u64,
    /// Only this workload, if it is one.
    pub only: Option<Vec<usize>>,
    /// The geometries: a mask.
    pub geometries: u64,
    /// Threads.
    pub jobs: usize,
    /// Begin no further workload, and go no further in one, after so many seconds.
    pub seconds: Option<u64>,
    /// Failures after which it ends.
    pub most_failures: usize,
}

/// What was done.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Workloads run.
    pub workloads: u64,
    /// Of those, ones that time was up for before their last point.
    pub unfinished: u64,
    /// Points crashed at.
    pub points: u64,
    /// Images recovered and checked.
    pub recoveries: u64,
    /// Of those, with devices lost in the outage.
    pub lost: u64,
    /// Of those, crashed a second time.
    pub again: u64,
    /// Failures: the replay command, and what went wrong.
    pub failures: Vec<(String, String)>,
}

impl Summary {
    fn add(&mut self, other: Summary) {
        self.workloads += other.workloads;
        self.unfinished += other.unfinished;
        self.points += other.points;
        self.recoveries += other.recoveries;
        self.lost += other.lost;
        self.again += other.again;
        self.failures.extend(other.failures);
    }
}

/// Every workload of the plan: geometry and letters.
pub fn workloads(plan: &Plan) -> Vec<(usize, Vec<usize>)> {
    let mut all = Vec::new();
    for geometry in (0..GEOMETRIES.len()).filter(|g| plan.geometries >> g & 1 == 1) {
        if let Some(word) = &plan.only {
            all.push((geometry, word.clone()));
            continue;
        }
        let mut words: Vec<Vec<usize>> = vec![Vec::new()];
        for length in 1..=plan.length {
            words = words
                .iter()
                .flat_map(|word| (0..ALPHABET.len()).map(move |at| [&word[..], &[at]].concat()))
                .collect();
            for word in &words {
                let number = word.iter().fold(7, |n, at| mix(n ^ *at as u64));
                let chosen = mix(number ^ plan.offset).is_multiple_of(plan.one_in.max(1));
                let all_of_them = length < plan.length || length == 1;
                if length >= plan.least && (all_of_them || chosen) {
                    all.push((geometry, word.clone()));
                }
            }
        }
    }
    // Long and short ones mixed, so that a part of the list is a fair part.
    all.sort_by_key(|(geometry, word)| {
        word.iter()
            .fold(mix(*geometry as u64 ^ plan.offset), |n, at| {
                mix(n ^ *at as u64)
            })
    });
    all
}

/// Runs the plan.
pub fn enumerate<S: Subject>(plan: &Plan, make: impl Fn() -> S + Sync) -> Summary {
    let all = workloads(plan);
    let next = AtomicUsize::new(0);
    let begun = std::time::Instant::now();
    let total = Mutex::new(Summary::default());
    let lock = || {
        total
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    };
    std::thread::scope(|scope| {
        for _ in 0..plan.jobs.max(1) {
            scope.spawn(|| {
                let subject = make();
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let late = || {
                        let most = plan.seconds;
                        most.is_some_and(|most| begun.elapsed().as_secs() >= most)
                    };
                    let Some((geometry, letters)) = all.get(at).filter(|_| !late()) else {
                        return;
                    };
                    let summary = workload(&subject, *geometry, letters, plan, &late);
                    let mut total = lock();
                    total.add(summary);
                    if total.failures.len() >= plan.most_failures {
                        next.store(all.len(), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    lock().clone()
}

/// Runs a workload without a crash, recorded: in the history as well, if it is kept.
fn run(
    subject: &dyn Subject,
    geometry: usize,
    letters: &[usize],
    trace: bool,
) -> (Rc<World>, Result<Log, String>) {
    let world = World::new(ops::config(geometry), trace);
    let ops: Vec<Op> = letters.iter().map(|at| ALPHABET[*at].1).collect();
    let log = Rc::new(std::cell::RefCell::new(None));
    guarded(&world, || {
        let mut driver = Driver {
            world: world.clone(),
            subject,
            read_only: false,
            paused: None,
            rng: Rng::new(0xE4),
        };
        ops::run(&mut driver, &ops, &|| {
            *log.borrow_mut() = Some(log::record(&world));
        });
    });
    let recorded = match (world.failure(), log.take()) {
        (Some(failure), _) => Err(failure),
        (None, None) => Err("the preamble did not end".to_string()),
        (None, Some(log)) => {
            log::finish(&world, &log);
            Ok(log.take())
        }
    };
    (world, recorded)
}

/// All cases of one workload, or as many as there is time for.
fn workload(
    subject: &dyn Subject,
    geometry: usize,
    letters: &[usize],
    plan: &Plan,
    late: &dyn Fn() -> bool,
) -> Summary {
    let mut summary = Summary {
        workloads: 1,
        ..Summary::default()
    };
    let mut case = Case {
        geometry,
        letters: letters.to_vec(),
        cut: Cut {
            at: 0,
            image: Image::Whole(0),
        },
        lost: 0,
        again: None,
    };
    let log = match run(subject, geometry, letters, false).1 {
        Ok(log) => log,
        Err(failure) => {
            summary.failures.push((case.to_string(), failure));
            return summary;
        }
    };
    let mut replay = log.replay();
    for (number, point) in log.points().iter().enumerate() {
        replay.advance(&log, point.at);
        let before = number.checked_sub(1).map(|n| &log.points()[n]);
        let images = replay.images(answered(before, point), plan.effort, point.at);
        summary.points += u64::from(!images.is_empty());
        for (order, image) in images.into_iter().enumerate() {
            if late() {
                summary.unfinished = 1;
                return summary;
            }
            case.cut = Cut {
                at: point.at,
                image,
            };
            // Every image as it is, and one in three without some devices, M in all.
            let turn = number * 7 + order;
            let without = (order % 3 == 0).then(|| lost(&point.known, geometry, turn));
            for lost in [Some(0), without.filter(|lost| *lost != 0)]
                .into_iter()
                .flatten()
            {
                case.lost = lost;
                let disks = replay.make(image);
                let chosen = mix(turn as u64 ^ lost ^ point.at as u64) % plan.again_one_in.max(1);
                let again = (chosen == 0).then_some(plan.effort);
                recover(subject, &mut case, disks, &point.known, again, &mut summary);
                if !summary.failures.is_empty() {
                    return summary;
                }
            }
        }
    }
    summary
}

/// The devices lost in the outage, number `turn` of the ways to choose them within M.
fn lost(known: &Known, geometry: usize, turn: usize) -> u64 {
    let (_, _, m, devices) = GEOMETRIES[geometry];
    let mut damaged = known.budget.damaged.clone();
    let mut lost = 0;
    for step in 0..devices {
        let device = (turn + step) % devices;
        if known.budget.gone.contains(&device) {
            continue;
        }
        if damaged.contains(&device) || damaged.len() < m {
            damaged.insert(device);
            lost |= 1 << device;
        }
    }
    lost
}

/// A world that begins with what a power cut left.
fn after(geometry: usize, disks: Vec<Pages>, known: &Known, lost: u64, trace: bool) -> Rc<World> {
    let trace = Rc::new(Trace::new(trace));
    let disks = disks.into_iter().enumerate();
    let disks = disks
        .map(|(index, pages)| SimDisk::with_pages(index, pages, 0xAF7E4, trace.clone()))
        .collect();
    let world = World::on(ops::config(geometry), disks, trace);
    *world.volumes.borrow_mut() = known.volumes.clone();
    *world.mishaps.scrubs.borrow_mut() = known.scrubs.clone();
    let mut budget = known.budget.clone();
    for device in (0..world.config.devices).filter(|d| lost >> d & 1 == 1) {
        budget.absent.insert(device);
        budget.damaged.insert(device);
    }
    *world.budget.borrow_mut() = budget;
    world.crash_models();
    world
}

/// Checks one case, and with `again` every crash in its recovery.
fn recover(
    subject: &dyn Subject,
    case: &mut Case,
    disks: Vec<Pages>,
    known: &Known,
    again: Option<Effort>,
    summary: &mut Summary,
) {
    let world = after(case.geometry, disks, known, case.lost, false);
    let log = again.map(|_| log::record(&world));
    inspect(subject, &world);
    summary.recoveries += 1;
    summary.lost += u64::from(case.lost != 0);
    if let Some(failure) = world.failure() {
        summary.failures.push((case.to_string(), failure));
        return;
    }
    let (Some(log), Some(effort)) = (log, again) else {
        return;
    };
    log::finish(&world, &log);
    let log = log.take();
    let mut replay = log.replay();
    let few = Effort {
        full: false,
        samples: effort.samples.min(3),
        torn: effort.torn.min(1),
    };
    for (number, point) in log.points().iter().enumerate() {
        replay.advance(&log, point.at);
        let last = number + 1 == log.points().len();
        for image in replay.images(last || number == 0, few, point.at) {
            case.again = Some(Cut {
                at: point.at,
                image,
            });
            let world = after(case.geometry, replay.make(image), &point.known, 0, false);
            inspect(subject, &world);
            summary.recoveries += 1;
            summary.again += 1;
            if let Some(failure) = world.failure() {
                summary.failures.push((case.to_string(), failure));
                return;
            }
        }
    }
    case.again = None;
}

/// Runs one case alone: what failed, if anything, and its story.
pub fn replay(subject: &dyn Subject, case: &Case) -> (Option<String>, Vec<String>) {
    let (first, log) = run(subject, case.geometry, &case.letters, true);
    let mut story = first.trace.tail(usize::MAX);
    let log = match log {
        Ok(log) => log,
        Err(failure) => return (Some(failure), story),
    };
    let Some((disks, known)) = cut(&log, case.cut) else {
        return (Some("there is no such point".to_string()), story);
    };
    story.push(format!("======== {case}"));
    let world = after(case.geometry, disks, &known, case.lost, true);
    let log = log::record(&world);
    inspect(subject, &world);
    let Some(again) = case.again.filter(|_| !world.failed()) else {
        story.extend(world.trace.tail(usize::MAX));
        return (world.failure(), story);
    };
    log::finish(&world, &log);
    let log = log.take();
    let Some((disks, known)) = cut(&log, again) else {
        return (Some("there is no such second point".to_string()), story);
    };
    let world = after(case.geometry, disks, &known, 0, true);
    inspect(subject, &world);
    story.extend(world.trace.tail(usize::MAX));
    (world.failure(), story)
}

/// The disks after `cut`, and what was known.
fn cut(log: &Log, cut: Cut) -> Option<(Vec<Pages>, Rc<Known>)> {
    let point = log.points().iter().find(|point| point.at == cut.at)?;
    let mut replay = log.replay();
    replay.advance(log, point.at);
    Some((replay.make(cut.image), point.known.clone()))
}
