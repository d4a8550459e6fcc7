//! The test of the tests: the engine with one bug made on purpose, and how many seeds it takes until
//! the simulator notices.
//!
//! Invariants: a seed counts as having found the bug only if it passes without it; the seeds and
//! their order do not depend on the bug.

pub use ashlar_engine::planted::Bug;

use ashlar_engine::planted::plant;

use crate::config::{Mode, Options};
use crate::driver::run_seed;
use crate::engine::Engine;
use crate::run::{Batch, run_batch};

/// How a hunt ended.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Seeds run.
    pub seeds: u64,
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
        | Bug::LateWriteForgotten
        | Bug::RowsOutOfTurn => &[("within", Mode::Within, false)],
        _ => &[
            ("crash", Mode::Crash, false),
            ("within", Mode::Within, false),
        ],
    }
}

/// Runs seeds with `bug` until one fails that passes without it; at most `most`, and no more after
/// `seconds`.
pub fn hunt(bug: Bug, most: u64, seconds: u64, jobs: usize) -> Answer {
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
                    seeds,
                    found: Some((how, failure.clone())),
                };
            }
            first = seed + 1; // it fails by itself: no evidence
        }
        turn += 1;
    }
    Answer { seeds, found: None }
}
