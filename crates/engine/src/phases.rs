//! Time of the phases of an array: the count, the sum and the longest of each. `ashlar bench engine --where` shows
//! it.
//!
//! Invariant: counters only; nothing decides by them.

use std::cell::Cell;

use ashlar_rt::{Nanos, Rt};

/// A phase of the engine's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// A writer waits for its turn, then for memory of stripes, unrecorded stripes or deltas.
    Admit,
    /// A writer waits for the stream.
    StreamLock,
    /// A stream waits for a new segment.
    Allocate,
    /// A group commit waits for stripes that are being written.
    Collect,
    /// It flushes their devices.
    Flush,
    /// It is journalled, and the shards are told.
    Record,
    /// Shards merge their deltas into leaves, for a checkpoint.
    Merge,
    /// Places for liveness and catalog.
    PlaceNodes,
    /// Nodes are written.
    WriteNodes,
    /// All devices are flushed.
    FlushNodes,
    /// The rows of the nodes' stripes go into the journal.
    RecordNodes,
    /// Slot table pages and root are written and flushed.
    WriteRoot,
    /// Freed slots are discarded.
    Discard,
    /// The cleaner reads the summaries of a victim.
    CleanRows,
    /// It reads the victim's live blocks.
    CleanRead,
    /// It writes them elsewhere.
    CleanMove,
}

const COUNT: usize = Phase::CleanMove as usize + 1;

const NAMES: [&str; COUNT] = [
    "write: admitted",
    "write: stream",
    "write: new segment",
    "group commit: stripes",
    "group commit: flush",
    "group commit: record",
    "checkpoint: merge",
    "checkpoint: places",
    "checkpoint: nodes",
    "checkpoint: flush",
    "checkpoint: rows",
    "checkpoint: root",
    "checkpoint: discard",
    "clean: summaries",
    "clean: read",
    "clean: move",
];

/// What was counted of one phase.
#[derive(Clone, Copy, Debug, Default)]
pub struct PhaseTally {
    /// Its name.
    pub name: &'static str,
    /// Passes.
    pub count: u64,
    /// Nanoseconds of all passes.
    pub sum: Nanos,
    /// Nanoseconds of the longest.
    pub most: Nanos,
}

/// The counters.
#[derive(Debug, Default)]
pub struct Phases([Cell<PhaseTally>; COUNT]);

impl Phases {
    /// Counts a pass that began at `since`.
    pub fn end(&self, phase: Phase, rt: &Rt, since: Nanos) {
        let (cell, took) = (&self.0[phase as usize], rt.now() - since);
        let tally = cell.get();
        cell.set(PhaseTally {
            count: tally.count + 1,
            sum: tally.sum + took,
            most: tally.most.max(took),
            ..tally
        });
    }

    /// What was counted.
    pub fn tallies(&self) -> Vec<PhaseTally> {
        let named =
            |(cell, name): (&Cell<PhaseTally>, &'static str)| PhaseTally { name, ..cell.get() };
        self.0.iter().zip(NAMES).map(named).collect()
    }
}

/// Counts the phases of work that passes through several, one after another.
pub struct Laps<'a> {
    phases: &'a Phases,
    rt: &'a Rt,
    since: Nanos,
}

impl<'a> Laps<'a> {
    /// The first phase begins.
    pub fn begin(phases: &'a Phases, rt: &'a Rt) -> Laps<'a> {
        Laps {
            phases,
            rt,
            since: rt.now(),
        }
    }

    /// A phase ends, and the next begins.
    pub fn end(&mut self, phase: Phase) {
        self.phases.end(phase, self.rt, self.since);
        self.since = self.rt.now();
    }
}

/// How much was written, and where the time goes.
#[derive(Debug, Default)]
pub struct Meters {
    /// Blocks that clients have written since the import.
    pub host: Cell<u64>,
    /// All data blocks written since: also those that the cleaner moved.
    pub data: Cell<u64>,
    /// Where the time goes.
    pub phases: Phases,
}
