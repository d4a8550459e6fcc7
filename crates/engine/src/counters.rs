//! Counters of the work since an import.

use std::cell::Cell;

/// Adds to a counter.
pub fn add(counter: &Cell<u64>, amount: u64) {
    counter.set(counter.get() + amount);
}

/// What clients did.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) reads: Cell<u64>,
    pub(crate) writes: Cell<u64>,
    pub(crate) flushes: Cell<u64>,
    pub(crate) read_bytes: Cell<u64>,
    pub(crate) written_bytes: Cell<u64>,
}
