//! The test of the tests: the engine with one bug made on purpose, and how many seeds it takes until
//! the simulator notices.
//!
//! Invariants: a seed counts as having found the bug only if it passes without it; the seeds and
//! their order do not depend on the bug. For a bug that no seed finds workloads of the crash
//! enumeration are run instead, under the same rule.

pub use ashlar_engine::planted::Bug;

use ashlar_engine::planted::plant;

use crate::config::{Mode, Options};
use crate::driver::run_seed;
use crate::engine::Engine;
use crate::enumerate::log::Effort;
use crate::enumerate::ops::{ALPHABET, GEOMETRIES};
use crate::enumerate::{Plan, enumerate};
use crate::run::{Batch, run_batch};

/// How a hunt ended.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Histories run.
    pub runs: u64,
    /// What they are: seeds, or workloads.
    pub kind: &'static str,
    /// With which options it was found, and what was noticed.
    pub found: Option<(String, String)>,
}

/// Seeds run with one set of options before another's turn.
const TURN: u64 = 150;

/// The options a bug is hunted with, in turn: what the seeds are mostly run with, and where the bug
/// needs them full arrays, whose cleaner has work, or damage beyond M.
fn kinds(bug: Bug) -> &'static [(&'static str, Mode, bool)] {
    match bug {
        Bug::LostReadsAsZeros => &[("beyond", Mode::Beyond, false)],
        Bug::SlotsFreedEarly
        | Bug::FreedInUse
        | Bug::UnconditionalMove
        | Bug::MoveOverWrite
        | Bug::OverwrittenStaysLive => &[
            ("crash, full", Mode::Crash, true),
            ("within, full", Mode::Within, true),
            ("crash", Mode::Crash, false),
        ],
        // Also with a journal that presses, and an import that takes its time.
        Bug::GroupCommitsBeforeAdoption => &[
            ("crash, full", Mode::Crash, true),
            ("crash", Mode::Crash, false),
        ],
        Bug::StaleMemberTrusted
        | Bug::GenerationNotStored
        | Bug::GenerationOldestWins
        | Bug::OptimalTooSoon
        | Bug::FlushRetried
        | Bug::ReadUnverified
        | Bug::DecodedUnverified
        | Bug::RebuildUnverified
        | Bug::RebuildWithoutSummary
        | Bug::ShortParityForgotten
        | Bug::ParityOfOldData
        | Bug::RemovedBeforeEmpty
        | Bug::NewcomerInOldEpochs
        | Bug::SpareUsedTwice
        | Bug::SlowNeeded
        | Bug::RowsOutOfTurn => &[("within", Mode::Within, false)],
        _ => &[
            ("crash", Mode::Crash, false),
            ("within", Mode::Within, false),
        ],
    }
}

/// The letters that workloads begin with in which a bug is hunted by crash enumeration, if it is: what
/// was given up must still be under way when the device is back, 10 s later, and clients must write
/// then. Sessions of seeds are seldom that long.
fn beginning(bug: Bug) -> Option<&'static [&'static str]> {
    match bug {
        Bug::LateWriteForgotten => Some(&["hang1", "return1"]),
        _ => None,
    }
}

fn without_limit(plan: &Plan) -> Plan {
    Plan {
        seconds: None,
        ..plan.clone()
    }
}

/// Enumerates the crashes of workloads with `bug` that begin with `first` and end with any letter.
fn hunt_workloads(bug: Bug, first: &[&str], most: u64, seconds: u64) -> Answer {
    let begun = std::time::Instant::now();
    let number = |name: &&str| ALPHABET.iter().position(|letter| letter.0 == *name);
    let first: Vec<usize> = first.iter().filter_map(number).collect();
    let answer = |runs, found| Answer {
        runs,
        kind: "workloads",
        found,
    };
    let mut runs = 0;
    for (last, geometry) in
        (0..ALPHABET.len()).flat_map(|last| (0..GEOMETRIES.len()).map(move |g| (last, g)))
    {
        let left = seconds.saturating_sub(begun.elapsed().as_secs());
        if runs >= most || left == 0 {
            break;
        }
        let plan = Plan {
            length: first.len() + 1,
            least: 1,
            one_in: 1,
            offset: 0,
            effort: Effort {
                full: false,
                samples: 4,
                torn: 1,
            },
            again_one_in: u64::MAX,
            only: Some([&first[..], &[last]].concat()),
            geometries: 1 << geometry,
            jobs: 1,
            seconds: Some(left),
            most_failures: 1,
        };
        let summary = enumerate(&plan, || {
            plant(Some(bug));
            Engine
        });
        runs += summary.workloads;
        if let Some((case, failure)) = summary.failures.first()
            && enumerate(&without_limit(&plan), || Engine)
                .failures
                .is_empty()
        {
            let found = Some((case.clone(), failure.clone()));
            return answer(runs, found);
        }
    }
    answer(runs, None)
}

/// Runs seeds with `bug` until one fails that passes without it; at most `most`, and no more after
/// `seconds`.
pub fn hunt(bug: Bug, most: u64, seconds: u64, jobs: usize) -> Answer {
    if let Some(first) = beginning(bug) {
        return hunt_workloads(bug, first, most, seconds);
    }
    let begun = std::time::Instant::now();
    let kinds = kinds(bug);
    let mut seeds = 0;
    let mut turn = 0;
    while seeds < most && begun.elapsed().as_secs() < seconds {
        let (name, mode, full) = kinds[turn % kinds.len()];
        let options = Options {
            mode: Some(mode),
            full,
            roomy: !full,
            pressed: bug == Bug::GroupCommitsBeforeAdoption,
            late: bug == Bug::RowsOutOfTurn,
            ..Options::default()
        };
        let batch = Batch {
            jobs,
            most_failures: 1,
            twice: false,
            seconds: Some(seconds.saturating_sub(begun.elapsed().as_secs())),
            options,
        };
        let mut first = 1_000_000 + turn as u64 * TURN;
        let end = first + if full { TURN / 5 } else { TURN };
        while first < end {
            let summary = run_batch(first..end, batch, || {
                plant(Some(bug));
                Engine
            });
            seeds += summary.seeds;
            let Some((seed, failure)) = summary.failures.first() else {
                break;
            };
            if run_seed(&Engine, *seed, options).failure.is_none() {
                let how = format!("seed {seed} ({name})");
                return Answer {
                    runs: seeds,
                    kind: "seeds",
                    found: Some((how, failure.clone())),
                };
            }
            first = seed + 1; // it fails by itself: no evidence
        }
        turn += 1;
    }
    Answer {
        runs: seeds,
        kind: "seeds",
        found: None,
    }
}
