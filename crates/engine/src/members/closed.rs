//! Whether the array has stopped, and why.

use std::cell::{Cell, RefCell};

/// Set once, when nothing is accepted any more.
#[derive(Debug, Default)]
pub struct Closed {
    closed: Cell<bool>,
    why: RefCell<String>,
}

impl Closed {
    /// Whether the array has stopped.
    pub fn get(&self) -> bool {
        self.closed.get()
    }

    /// It stops.
    pub fn set(&self, why: &str) {
        self.why.replace(why.to_string());
        self.closed.set(true);
    }

    /// Why it stopped; empty: it has not.
    pub fn why(&self) -> String {
        self.why.borrow().clone()
    }
}
