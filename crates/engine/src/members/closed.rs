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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_that_has_stopped_says_why() {
        let closed = Closed::default();
        assert!(!closed.get() && closed.why().is_empty());
        closed.set("exported");
        assert!(closed.get());
        assert_eq!(closed.why(), "exported");
    }
}
