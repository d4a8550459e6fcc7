//! What is lost though no block of it was bad: volume blocks under a node of the map that cannot be read.
//!
//! Invariant: listed is what a reader would get an error for: the blocks of the leaf, within the volume, that
//! no delta holds. A block that is written or unmapped again leaves the list as any other lost block.

use ashlar_format::node::LEAF_ENTRIES;

use crate::delta::{Lookup, Version, What};
use crate::error::VolumeError;
use crate::messages::VolumeShape;
use crate::shard::Shard;

impl Shard {
    /// Notes that a leaf, or a node above it, cannot be read: what its readers get.
    pub(crate) fn lost_leaf(&self, shape: VolumeShape, partition: u16, leaf: u64) -> VolumeError {
        let start = self.partitioning(shape).leaf_start(partition, leaf);
        let end = (start + LEAF_ENTRIES as u64).min(shape.blocks);
        let deltas = self.deltas.borrow();
        let held = |address: &u64| match deltas.lookup(shape.tree, *address) {
            Lookup::Hole(_) => true,
            Lookup::Version(Version { what, .. }) => {
                matches!(what, What::Hole | What::Block { from: None, .. })
            }
            Lookup::Unknown => false,
        };
        let lost = (start..end).filter(|address| !held(address));
        let mut listed = self.core.lost.borrow_mut();
        listed.extend(lost.map(|address| ((shape.tree, address), ())));
        VolumeError::Lost
    }
}
