//! What thin volumes may still take: counted anew by each commit, charged in between.
//!
//! Invariants:
//! - A new block is charged before it gets a place, with all that it may take; that counts until a commit has
//!   counted the block itself.
//! - A count tells what is left by what is folded, and how much of that others may come to take.

use std::cell::Cell;

use crate::member::add;

/// What was left of the room for thin volumes when it was counted, in bytes of stripes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThinCount {
    /// By what was folded, which tells exactly.
    pub folded: u64,
    /// Less what may be taken by blocks that were not.
    pub left: u64,
}

/// What had been charged at some moment.
#[derive(Debug, Clone, Copy)]
pub struct Charged {
    ever: u64,
    placing: u64,
}

/// The room for thin volumes, in bytes of stripes.
#[derive(Debug, Default)]
pub struct Thin {
    left: Cell<u64>,
    counted: Cell<ThinCount>,
    node_bytes: Cell<u64>,
    ever: Cell<u64>,
    placing: Cell<u64>,
}

/// A block that was charged for and has no place yet.
#[derive(Debug)]
pub struct Charge<'a> {
    thin: &'a Thin,
    bytes: u64,
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        let placing = &self.thin.placing;
        placing.set(placing.get() - self.bytes);
    }
}

impl Thin {
    /// What may still be charged.
    pub fn left(&self) -> u64 {
        self.left.get()
    }

    /// The last count: nothing is left before the first.
    pub fn counted(&self) -> ThinCount {
        self.counted.get()
    }

    /// What a node takes.
    pub fn node_bytes(&self) -> u64 {
        self.node_bytes.get()
    }

    /// Takes what was promised to another volume.
    pub fn promise(&self, bytes: u64) {
        self.left.set(self.left().saturating_sub(bytes));
    }

    /// Charges a block, until the end of the answer's life as one that has no place.
    pub fn charge(&self, bytes: u64) -> Charge<'_> {
        self.promise(bytes);
        add(&self.ever, bytes);
        add(&self.placing, bytes);
        Charge { thin: self, bytes }
    }

    /// What has been charged, for [`Thin::count`].
    pub fn charged(&self) -> Charged {
        Charged {
            ever: self.ever.get(),
            placing: self.placing.get(),
        }
    }

    /// Counts anew: of what is left by what is folded, `pending` bytes may be taken by blocks that had a place and
    /// were not folded, and all that had none `before` these were counted, or has been charged since.
    pub fn count(&self, folded: u64, pending: u64, before: Charged, node_bytes: u64) {
        let since = self.ever.get() - before.ever;
        let left = folded.saturating_sub(pending + before.placing + since);
        self.left.set(left);
        self.counted.set(ThinCount { folded, left });
        self.node_bytes.set(node_bytes);
    }
}
