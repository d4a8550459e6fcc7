//! Which host has the array.
//!
//! Invariants: no two machines, and no two boots, have the same number.

use std::cell::Cell;

/// The machine that has the array, and its boot.
#[derive(Debug, Default)]
pub struct Hosts {
    machine: Cell<u8>,
    boot: Cell<u8>,
}

impl Hosts {
    /// The machine, and its boot.
    pub fn this(&self) -> (u8, u8) {
        (self.machine.get(), self.boot.get())
    }

    /// The machine boots.
    pub fn boots(&self) {
        self.boot.set(self.boot.get().wrapping_add(1));
    }

    /// Another machine comes.
    pub fn next(&self) {
        self.machine.set(self.machine.get() + 1);
        self.boots();
    }
}
