//! The list of lost blocks: volume blocks that cannot be read, and all blocks under a node of the map that cannot be.
//!
//! Invariants: listed is what a reader would get an error for; of a leaf, the blocks within the volume that no delta
//! holds. A block that is written or unmapped again leaves the list, and one that is read: a device is back that has it.
//! An array that has stopped asks its devices for nothing more: what cannot be read then is not lost.

use std::ops::Range;

use ashlar_block::VolumeError;
use ashlar_format::node::LEAF_ENTRIES;

use crate::map::delta::{Lookup, Version, What};
use crate::shard::Shard;
use crate::space::shape::VolumeShape;

impl Shard {
    /// Notes that a leaf, or a node above it, cannot be read: what its readers get.
    pub(crate) fn lost_leaf(&self, shape: VolumeShape, partition: u16, leaf: u64) -> VolumeError {
        let start = self.partitioning(shape).leaf_start(partition, leaf);
        let end = (start + LEAF_ENTRIES as u64).min(shape.blocks);
        let deltas = self.deltas.borrow();
        let held = |address: &u64| match deltas.lookup(shape.tree, *address) {
            Lookup::Unmapped(_) => true,
            Lookup::Version(Version { what, .. }) => {
                matches!(what, What::Unmapped | What::Block { from: None, .. })
            }
            Lookup::Unknown => false,
        };
        self.lost(shape, (start..end).filter(|address| !held(address)))
    }

    /// Notes that volume blocks cannot be read: what their readers get.
    pub(crate) fn lost(
        &self,
        shape: VolumeShape,
        addresses: impl IntoIterator<Item = u64>,
    ) -> VolumeError {
        if self.core.closed.get() {
            return VolumeError::Closed;
        }
        let mut listed = self.core.bad.lost.borrow_mut();
        listed.extend(addresses.into_iter().map(|address| (shape.tree, address)));
        VolumeError::Lost
    }

    /// Notes that volume blocks were read.
    pub(crate) fn found(&self, tree: u32, addresses: Range<u64>) {
        let listed = &self.core.bad.lost;
        if !listed.borrow().is_empty() {
            let mut listed = listed.borrow_mut();
            addresses.for_each(|address| {
                listed.remove(&(tree, address));
            });
        }
    }
}
