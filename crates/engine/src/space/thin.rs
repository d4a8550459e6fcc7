//! What thin volumes may still take: counted anew by each commit, charged in between.
//!
//! Invariants:
//! - A new block is charged before it gets a place, with all that it may take; that counts until a commit has
//!   counted the block itself, or it has turned out that it gets no place.
//! - Every charge whose block has no place is part of what counts as taken.

use std::cell::Cell;

use ashlar_rt::Gate;

use crate::counters::add;
use crate::space::shape::VolumeShape;

/// What a commit counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThinCount {
    /// Bytes of stripes left by what was folded, which tells exactly.
    pub folded: u64,
    /// The oldest sequence that was not.
    pub oldest: Option<u64>,
}

/// What had been charged at some moment, in all, and of that for blocks that had no place yet or got none.
#[derive(Debug, Clone, Copy)]
pub struct Charged {
    ever: u64,
    placing: u64,
    returned: u64,
}

/// The room for thin volumes, in bytes of stripes.
#[derive(Debug, Default)]
pub struct Thin {
    counted: Cell<ThinCount>,
    /// How much of what was left by what was folded may be taken by what was not.
    taken: Cell<u64>,
    node_bytes: Cell<u64>,
    ever: Cell<u64>,
    placing: Cell<u64>,
    returned: Cell<u64>,
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
        let thin = self.thin;
        thin.placing.set(thin.placing.get() - self.bytes);
        if !self.keeps {
            add(&thin.returned, self.bytes);
            thin.taken.set(thin.taken.get() - self.bytes);
        }
        if !self.keeps || !thin.is_placing() {
            thin.placed.open();
        }
    }
}

impl Thin {
    /// What may still be charged.
    pub fn left(&self) -> u64 {
        let counted = self.counted.get();
        counted.folded.saturating_sub(self.taken.get())
    }

    /// Whether nothing is charged, so that what is left is known exactly.
    pub fn is_exact(&self) -> bool {
        self.taken.get() == 0
    }

    /// The last count: nothing is left before the first.
    pub fn counted(&self) -> ThinCount {
        self.counted.get()
    }

    /// What a new block may take, with nodes of its own.
    pub fn block_bytes(&self, shape: VolumeShape) -> u64 {
        shape.takes_bytes + shape.own_nodes() as u64 * self.node_bytes.get()
    }

    /// Takes what was promised to another volume, until the next count.
    pub fn promise(&self, bytes: u64) {
        let mut counted = self.counted();
        counted.folded = counted.folded.saturating_sub(bytes);
        self.counted.set(counted);
    }

    /// Charges a block, until the end of the answer's life as one that has no place.
    pub fn charge(&self, bytes: u64) -> Charge<'_> {
        add(&self.taken, bytes);
        add(&self.ever, bytes);
        add(&self.placing, bytes);
        Charge {
            thin: self,
            bytes,
            keeps: false,
        }
    }

    /// Whether blocks that were charged for wait for their places.
    pub fn is_placing(&self) -> bool {
        self.placing.get() > 0
    }

    /// Waits until all of these have their places, or one gets none.
    pub async fn placed(&self) {
        self.placed.wait().await;
    }

    /// What has been charged, for [`Thin::count`].
    pub fn charged(&self) -> Charged {
        Charged {
            ever: self.ever.get(),
            placing: self.placing.get(),
            returned: self.returned.get(),
        }
    }

    /// Counts anew: of what is left by what is folded, `pending` bytes may be taken by blocks that had a place and
    /// were not folded, and all that had none `before` these were counted, or has been charged since.
    pub fn count(&self, counted: ThinCount, pending: u64, before: Charged, node_bytes: u64) {
        let since = self.ever.get() - before.ever;
        let returned = self.returned.get() - before.returned;
        self.taken.set(pending + before.placing + since - returned);
        self.counted.set(counted);
        self.node_bytes.set(node_bytes);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// A block counts as taken from when it is charged, whether or not it has its place, until a commit has counted it.
    #[test]
    fn what_is_charged_counts_until_it_is_counted() {
        let thin = Thin::default();
        assert_eq!(thin.left(), 0, "nothing is left before the first count");
        let counted = ThinCount {
            folded: 100,
            oldest: None,
        };
        thin.count(counted, 0, thin.charged(), 0);
        assert!(thin.is_exact());
        thin.charge(30).keep();
        let returned = thin.charge(20);
        assert!(thin.is_placing());
        assert_eq!(thin.left(), 50);
        drop(returned);
        assert!(!thin.is_placing());
        assert_eq!(thin.left(), 70);
        // A commit begins here: it folds the first; of the next one it knows nothing.
        let before = thin.charged();
        thin.charge(10).keep();
        let counted = ThinCount {
            folded: 70,
            oldest: None,
        };
        thin.count(counted, 0, before, 0);
        assert_eq!(thin.left(), 60);
        // What has a place and is not folded is given as pending.
        thin.count(counted, 10, thin.charged(), 0);
        assert_eq!(thin.left(), 60);
        thin.promise(100);
        assert_eq!(thin.left(), 0);
    }

    /// A block without a place when a commit begins counts after that commit, and comes back if it gets none.
    #[test]
    fn a_block_without_a_place_outlives_the_count() {
        let thin = Thin::default();
        let counted = ThinCount {
            folded: 100,
            oldest: None,
        };
        let waiting = thin.charge(40);
        thin.count(counted, 0, thin.charged(), 0);
        assert_eq!(thin.left(), 60);
        drop(waiting);
        assert_eq!(thin.left(), 100);
    }
}
