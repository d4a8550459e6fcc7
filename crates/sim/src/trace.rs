//! What happened, in order: a running hash of everything (determinism) and, when asked for, the
//! readable lines of a replay.
//!
//! Invariants: the hash does not depend on whether lines are kept; lines beyond the limit push out
//! the oldest, since what matters is near the failure.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};

use crate::rng::mix;

/// Lines kept at most.
const LIMIT: usize = 400_000;

/// The history of one seed.
#[derive(Debug)]
pub struct Trace {
    on: bool,
    hash: Cell<u64>,
    lines: RefCell<VecDeque<String>>,
    marks: RefCell<BTreeMap<&'static str, u64>>,
}

impl Trace {
    /// An empty history; `on` keeps readable lines.
    pub fn new(on: bool) -> Trace {
        Trace {
            on,
            hash: Cell::new(1),
            lines: RefCell::default(),
            marks: RefCell::default(),
        }
    }

    /// Whether lines are kept.
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Adds numbers to the hash.
    pub fn mix(&self, words: &[u64]) {
        let mut hash = self.hash.get();
        for word in words {
            hash = mix(hash ^ word).wrapping_add(0x51_7C_C1);
        }
        self.hash.set(hash);
    }

    /// Adds a line, made only if lines are kept.
    pub fn line(&self, line: impl FnOnce() -> String) {
        if self.on {
            let mut lines = self.lines.borrow_mut();
            if lines.len() == LIMIT {
                lines.pop_front();
            }
            lines.push_back(line());
        }
    }

    /// Counts something whose happening shows that the simulator reaches it.
    pub fn mark(&self, name: &'static str) {
        *self.marks.borrow_mut().entry(name).or_default() += 1;
    }

    /// Counts something that happened so many times.
    pub fn mark_times(&self, name: &'static str, count: u64) {
        if count > 0 {
            *self.marks.borrow_mut().entry(name).or_default() += count;
        }
    }

    /// What was counted.
    pub fn marks(&self) -> BTreeMap<&'static str, u64> {
        self.marks.borrow().clone()
    }

    /// The hash of the history so far.
    pub fn hash(&self) -> u64 {
        self.hash.get()
    }

    /// The last `count` lines.
    pub fn tail(&self, count: usize) -> Vec<String> {
        let lines = self.lines.borrow();
        lines
            .iter()
            .skip(lines.len().saturating_sub(count))
            .cloned()
            .collect()
    }
}
