//! Progress of background work, for the status report (`jobs.rs` has the jobs).

use ashlar_rt::Nanos;

use crate::home::Home;
use crate::segment::{Pinned, Segment};
use crate::status::{TaskState, Work};

/// Progress of one kind of work.
#[derive(Debug, Default, Clone)]
pub struct Progress {
    /// How it is.
    pub state: TaskState,
    /// Bytes done.
    pub done: u64,
    /// Bytes known to be to do.
    pub total: u64,
    /// When it started.
    pub since: Nanos,
    /// Why it waits.
    pub reason: &'static str,
    /// Bad blocks found.
    pub found: u64,
    /// Of those, tried to repair.
    pub tried: u64,
    /// Repaired.
    pub healed: u64,
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
    /// Columns rebuilt, blocks repaired.
    pub gains: u64,
    /// Group commits that unmapped something: what they unmapped can be cleaned.
    pub unmapped: u64,
    /// Whether a volume is being released.
    pub releasing: usize,
}

impl Home {
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
    /// How far work of one kind is.
    pub fn progress(&self, work: Work) -> &Progress {
        match work {
            Work::Rebuild => &self.rebuild,
            Work::Clean => &self.clean,
            Work::Repair => &self.repair,
            Work::Rebalance => &self.rebalance,
        }
    }

    /// The same, to be changed.
    pub fn progress_mut(&mut self, work: Work) -> &mut Progress {
        match work {
            Work::Rebuild => &mut self.rebuild,
            Work::Clean => &mut self.clean,
            Work::Repair => &mut self.repair,
            Work::Rebalance => &mut self.rebalance,
        }
    }
}
