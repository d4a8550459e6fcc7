//! Progress of background work, for the status report (`jobs.rs` has the jobs), and what of it is paused.
//!
//! **Invariants**:
//! - What gives clients room is never paused: writes would wait for it without end.
//! - A pause is kept in memory only, but that of a scrub: after an import all other work goes on.

use ashlar_format::BLOCK_U64;
use ashlar_rt::Nanos;
use ashlar_space::work::Paused;

use crate::error::Error;
use crate::home::Home;
use crate::home::speed::Speed;
use crate::segment::{Pinned, Segment};
use crate::status::{TaskState, Work};

/// The rate that holds work back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// The least that it has, since clients are at work.
    Min,
    /// The most that it may have.
    Max,
}

/// Progress of one kind of work.
#[derive(Debug, Default, Clone)]
pub struct Progress {
    /// How it is.
    pub state: TaskState,
    /// Bytes done.
    pub done: u64,
    /// Bytes known to be to do.
    pub total: u64,
    /// How fast it goes.
    pub speed: Speed,
    /// Why it waits.
    pub reason: &'static str,
    /// When it was last held back, and by which rate.
    pub held: Option<(Nanos, Bound)>,
    /// When the operator paused it, if it is paused. The other fields are as it left them.
    pub paused: Option<Nanos>,
    /// Bad blocks repaired.
    pub healed: u64,
}

impl Progress {
    /// It begins, with nothing done.
    pub fn begin(&mut self, now: Nanos) {
        self.done = 0;
        self.speed.begin(now, 0);
        (self.state, self.reason) = (TaskState::Running, "");
    }

    /// So many bytes more are done.
    pub fn advance(&mut self, now: Nanos, bytes: u64) {
        self.done += bytes;
        self.speed.reach(now, self.done);
    }

    /// Whether all that was to do was done, or there was nothing: what comes next is other work.
    pub fn is_over(&self) -> bool {
        matches!(self.state, TaskState::New | TaskState::Done)
    }
}

/// What missing redundancy looks like. As long as it is the same, what could not be settled cannot be.
#[derive(Debug, PartialEq, Eq, Clone)]
pub struct Redundancy {
    generation: u64,
    /// Columns rebuilt, blocks repaired.
    gains: u64,
    /// Segments with missing columns that are not settled, and the youngest of them.
    short: (usize, u64),
    /// The oldest record that the journal is needed from, its last epoch, and the segments that keep records of others.
    journal: (u64, u64, usize),
}

/// The background work of an array.
#[derive(Debug, Default)]
pub struct Tasks {
    /// Rebuild.
    pub rebuild: Progress,
    /// The cleaner.
    pub clean: Progress,
    /// Repair of single blocks.
    pub repair: Progress,
    /// Moves of columns.
    pub rebalance: Progress,
    /// The last scrub, as its report says it.
    pub scrub: Progress,
    /// Columns rebuilt, blocks repaired.
    pub gains: u64,
    /// Group commits that unmapped something: what they unmapped can be cleaned.
    pub unmapped: u64,
    /// Whether a volume is being released.
    pub releasing: usize,
}

impl Home {
    /// Bytes of the columns that segments miss, be they to be had or lost.
    pub(crate) fn bytes_missing(&self) -> u64 {
        let segments = self.core.segments.borrow();
        let holding = segments.values().filter(|s| !self.holds_nothing(s));
        holding.map(|s| self.bytes_missing_of(s)).sum()
    }

    /// Bytes of the columns that a segment misses, as progress counts them: one that was written across too few devices
    /// misses those of its kind.
    pub(crate) fn bytes_missing_of(&self, segment: &Segment) -> u64 {
        let missing = self.core.missing_columns(segment);
        let columns = missing.max(self.columns_lacking(segment));
        columns as u64 * u64::from(self.core.slot_blocks) * BLOCK_U64
    }

    /// Whether there is work of a kind that may be paused, done or not.
    pub(crate) fn is_due(&self, work: Work) -> bool {
        match work {
            Work::Rebuild => self.is_degraded(),
            Work::Rebalance => self.bytes_to_move().is_some(),
            Work::Scrub => self.bytes_to_scrub() > 0,
            Work::Clean | Work::Repair => false,
        }
    }

    /// Begins no more work of a kind, or begins it again; whether that changed anything.
    pub(crate) fn pause(&self, work: Work, paused: bool) -> Result<bool, Error> {
        match work {
            Work::Rebuild | Work::Rebalance => {}
            Work::Scrub => return self.rest_scrub(paused),
            Work::Clean => return Err(Error::CleaningNotPaused),
            Work::Repair => return Err(Error::RepairNotPaused),
        }
        let now = self.core.rt.now();
        let missing = self.bytes_missing();
        {
            let mut tasks = self.tasks.borrow_mut();
            let progress = tasks.progress_mut(work);
            if progress.paused.is_some() == paused {
                return Ok(false);
            }
            if !paused {
                progress.speed.begin(now, progress.done);
                if work == Work::Rebuild {
                    progress.total = progress.done + missing;
                }
            }
            progress.paused = paused.then_some(now);
        }
        self.try_again();
        self.space.index().unpark_all();
        self.demand.clean();
        self.core.progress.open();
        Ok(true)
    }

    /// The words for work that is paused.
    pub(crate) fn why_paused(&self, work: Work) -> String {
        let name = self.superblock.borrow().name.clone();
        let id = work.id();
        if work == Work::Scrub {
            return format!("paused: 'ashlar scrub {name} resume' goes on");
        }
        format!(
            "paused with 'ashlar task {name} {id} pause'; 'ashlar task {name} {id} resume' goes on"
        )
    }

    /// What missing redundancy looks like now.
    pub(crate) fn redundancy(&self) -> Redundancy {
        let missing = |s: &Segment| self.core.missing_columns(s) > 0;
        let short = self.core.pin_unsettled(missing);
        Redundancy {
            generation: self.superblock.borrow().generation.number,
            gains: self.tasks.borrow().gains,
            short: (short.len(), short.last().map_or(0, |s| s.number)),
            journal: self.journal_needed(),
        }
    }

    fn journal_needed(&self) -> (u64, u64, usize) {
        let old = self.old_rows().len();
        let root = self.root.borrow();
        let epoch = root.epochs.last().map_or(0, |e| e.number);
        (root.cut, epoch, old)
    }

    /// Segments whose rows lie in records of a closed epoch of the journal.
    pub(crate) fn old_rows(&self) -> Vec<Pinned> {
        let end = self.root.borrow().epochs.iter().filter_map(|e| e.end).max();
        let old = |s: &Segment| s.rows_since.get().is_some_and(|since| Some(since) < end);
        self.core.pin_unsettled(old)
    }
}

impl Tasks {
    /// Whether work of a kind is paused.
    pub fn is_paused(&self, work: Work) -> bool {
        self.progress(work).paused.is_some()
    }

    /// Paused work stays as it was. What is to do once all that was begun is done is other work, of which nothing is done.
    pub fn show_paused(&mut self, work: Work, running: usize, due: bool) {
        let progress = self.progress_mut(work);
        match (running, due) {
            (0, true) if progress.is_over() => {
                (progress.state, progress.done) = (TaskState::Waiting, 0)
            }
            (0, false) if !progress.is_over() => progress.state = TaskState::Done,
            _ => {}
        }
    }

    /// What the choice of jobs leaves out.
    pub fn paused(&self) -> Paused {
        Paused {
            restore: self.is_paused(Work::Rebuild),
            bring: self.is_paused(Work::Rebalance),
        }
    }

    /// How far work of one kind is.
    pub fn progress(&self, work: Work) -> &Progress {
        match work {
            Work::Rebuild => &self.rebuild,
            Work::Clean => &self.clean,
            Work::Repair => &self.repair,
            Work::Rebalance => &self.rebalance,
            Work::Scrub => &self.scrub,
        }
    }

    /// The same, to be changed.
    pub fn progress_mut(&mut self, work: Work) -> &mut Progress {
        match work {
            Work::Rebuild => &mut self.rebuild,
            Work::Clean => &mut self.clean,
            Work::Repair => &mut self.repair,
            Work::Rebalance => &mut self.rebalance,
            Work::Scrub => &mut self.scrub,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_paused_is_left_out_and_counts_under_its_own_name() {
        let mut tasks = Tasks::default();
        assert_eq!(tasks.paused(), Paused::default());
        tasks.progress_mut(Work::Rebuild).paused = Some(7);
        assert!(tasks.is_paused(Work::Rebuild) && !tasks.is_paused(Work::Rebalance));
        assert!(tasks.paused().restore && !tasks.paused().bring);
        for work in Work::ALL {
            tasks.progress_mut(work).done = work.id();
            assert_eq!(tasks.progress(work).done, work.id());
        }
    }
}
