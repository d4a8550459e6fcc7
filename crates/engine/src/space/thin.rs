//! Charges for the space of thin volumes: a charge that is dropped before its block has a place is given back, and
//! whoever waits for places hears of it.
//!
//! Invariants: those of [`ashlar_space::promise::Thin`], which counts.

use std::cell::{Cell, RefCell};

use ashlar_rt::Gate;
use ashlar_space::promise::{self, Charged};

use crate::space::shape::VolumeShape;

/// What a checkpoint counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThinCount {
    /// Bytes of stripes left by what was merged, which tells exactly.
    pub merged: u64,
    /// The oldest sequence that was not.
    pub oldest: Option<u64>,
}

/// The room for thin volumes, in bytes of stripes.
#[derive(Debug, Default)]
pub struct Thin {
    account: RefCell<promise::Thin>,
    /// The oldest sequence that the last count did not know.
    oldest: Cell<Option<u64>>,
    node_bytes: Cell<u64>,
    placed: Gate,
}

/// A block that was charged for and has no place yet. Dropped before it has one, it is not charged for.
#[derive(Debug)]
pub struct Charge<'a> {
    thin: &'a Thin,
    bytes: u64,
    keeps: bool,
}

impl Charge<'_> {
    /// The block has its place.
    pub fn keep(mut self) {
        self.keeps = true;
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        let mut account = self.thin.account.borrow_mut();
        if self.keeps {
            account.placed(self.bytes);
        } else {
            account.refused(self.bytes);
        }
        if !self.keeps || !account.is_placing() {
            self.thin.placed.open();
        }
    }
}

impl Thin {
    /// What may still be charged.
    pub fn left(&self) -> u64 {
        self.account.borrow().left()
    }

    /// Whether nothing is charged, so that what is left is known exactly.
    pub fn is_exact(&self) -> bool {
        self.account.borrow().is_exact()
    }

    /// The last count: nothing is left before the first.
    pub fn counted(&self) -> ThinCount {
        ThinCount {
            merged: self.account.borrow().counted(),
            oldest: self.oldest.get(),
        }
    }

    /// What a new block may take, with nodes of its own.
    pub fn block_bytes(&self, shape: VolumeShape) -> u64 {
        shape.takes_bytes + shape.own_nodes() as u64 * self.node_bytes.get()
    }

    /// Takes what was promised to another volume, until the next count.
    pub fn promise(&self, bytes: u64) {
        self.account.borrow_mut().promise(bytes);
    }

    /// Charges a block, until the end of the answer's life as one that has no place.
    pub fn charge(&self, bytes: u64) -> Charge<'_> {
        self.account.borrow_mut().charge(bytes);
        Charge {
            thin: self,
            bytes,
            keeps: false,
        }
    }

    /// Whether blocks that were charged for wait for their places.
    pub fn is_placing(&self) -> bool {
        self.account.borrow().is_placing()
    }

    /// Waits until all of these have their places, or one gets none.
    pub async fn placed(&self) {
        self.placed.wait().await;
    }

    /// The charges up to now, for [`Thin::count`].
    pub fn charged(&self) -> Charged {
        self.account.borrow().charged()
    }

    /// Recounts: see [`promise::Thin::count`]. `node_bytes`: what a node may take.
    pub fn count(&self, counted: ThinCount, pending: u64, before: Charged, node_bytes: u64) {
        let mut account = self.account.borrow_mut();
        account.count(counted.merged, pending, before);
        self.oldest.set(counted.oldest);
        self.node_bytes.set(node_bytes);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// A block without a place when a checkpoint begins counts after that checkpoint, and comes back if it gets none.
    #[test]
    fn a_block_without_a_place_outlives_the_count() {
        let thin = Thin::default();
        let counted = ThinCount {
            merged: 100,
            oldest: None,
        };
        let waiting = thin.charge(40);
        thin.count(counted, 0, thin.charged(), 0);
        assert_eq!(thin.left(), 60);
        drop(waiting);
        assert_eq!(thin.left(), 100);
        thin.charge(30).keep();
        assert_eq!((thin.left(), thin.is_placing()), (70, false));
    }
}
