//! Partitions: how a volume's blocks spread over a fixed number of map trees.
//!
//! A volume is cut into tiles; tile t belongs to partition t modulo the count. Within its partition a
//! tile's blocks follow those of the partition's tile before, so every tree is dense. Invariant: a
//! tile is a whole number of leaves.

use crate::BLOCK_U64;
use crate::node::{FANOUT, LEAF_ENTRIES};

const LEAF: u64 = LEAF_ENTRIES as u64;

/// Where a volume block is in the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapAddress {
    /// Partition.
    pub partition: u16,
    /// Leaf of the partition's tree.
    pub leaf: u64,
    /// Entry of the leaf.
    pub slot: usize,
}

/// The partitioning of volumes whose blocks take `pieces` x 4 KiB.
#[derive(Debug, Clone, Copy)]
pub struct Partitioning {
    partitions: u64,
    tile: u64,
}

impl Partitioning {
    /// `partitions` of an array, `pieces` of a volume.
    pub fn new(partitions: u16, pieces: u32) -> Partitioning {
        let blocks_per_mib = (1 << 20) / (BLOCK_U64 * u64::from(pieces));
        Partitioning {
            partitions: u64::from(partitions),
            tile: blocks_per_mib.max(LEAF).next_multiple_of(LEAF),
        }
    }

    /// Volume blocks a tile.
    pub fn tile_blocks(&self) -> u64 {
        self.tile
    }

    /// The partition of a block.
    pub fn partition(&self, address: u64) -> u16 {
        u16::try_from(address / self.tile % self.partitions)
            .expect("partitions have 16-bit numbers")
    }

    /// Where a block is in the map.
    pub fn locate(&self, address: u64) -> MapAddress {
        let (tile, within) = (address / self.tile, address % self.tile);
        MapAddress {
            partition: self.partition(address),
            leaf: tile / self.partitions * (self.tile / LEAF) + within / LEAF,
            slot: usize::try_from(within % LEAF).expect("below 128"),
        }
    }

    /// The first block of a leaf.
    pub fn leaf_start(&self, partition: u16, leaf: u64) -> u64 {
        let per_tile = self.tile / LEAF;
        let tile = leaf / per_tile * self.partitions + u64::from(partition);
        tile * self.tile + leaf % per_tile * LEAF
    }

    /// Leaves of one partition of a volume of `blocks`.
    pub fn leaves(&self, blocks: u64) -> u64 {
        blocks.div_ceil(self.tile).div_ceil(self.partitions) * (self.tile / LEAF)
    }

    /// Nodes of the map of a volume of `blocks`, all of them mapped.
    pub fn map_nodes(&self, blocks: u64) -> u64 {
        let (mut level, mut inner) = (self.leaves(blocks), 0);
        while level > 1 {
            level = level.div_ceil(FANOUT as u64);
            inner += level;
        }
        let used = blocks.div_ceil(self.tile).min(self.partitions);
        blocks.div_ceil(LEAF) + used * inner
    }

    /// The leaves of a partition that may hold blocks of `first..end`.
    pub fn leaf_range(&self, first: u64, end: u64) -> (u64, u64) {
        let per_tile = self.tile / LEAF;
        let first_row = first / self.tile / self.partitions;
        let last_row = end.saturating_sub(1) / self.tile / self.partitions;
        (first_row * per_tile, (last_row + 1) * per_tile)
    }

    /// The leaves of a partition that hold no block but of `first..end`: those of all rows of tiles but the
    /// first and the last that [`Partitioning::leaf_range`] names.
    pub fn leaves_within(&self, first: u64, end: u64) -> std::ops::Range<u64> {
        let per_tile = self.tile / LEAF;
        let (first, end) = self.leaf_range(first, end);
        first + per_tile..end - per_tile
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_has_one_entry_and_leaves_know_their_blocks() {
        for (partitions, pieces) in [(1, 1), (4, 1), (64, 1), (3, 2), (4, 32)] {
            let p = Partitioning::new(partitions, pieces);
            let mut seen = std::collections::BTreeSet::new();
            for address in 0..20_000 {
                let at = p.locate(address);
                assert!(seen.insert((at.partition, at.leaf, at.slot)));
                assert_eq!(
                    p.leaf_start(at.partition, at.leaf) + at.slot as u64,
                    address
                );
                assert!(at.leaf < p.leaves(20_000));
                let (first, end) = p.leaf_range(address, address + 1);
                assert!((first..end).contains(&at.leaf));
            }
        }
    }

    #[test]
    fn leaves_within_a_run_hold_nothing_else() {
        for (partitions, pieces) in [(1, 1), (4, 1), (3, 2), (4, 32)] {
            let p = Partitioning::new(partitions, pieces);
            let row = p.tile * p.partitions;
            for (first, end) in [(5, 6), (1, 3 * row), (row, 4 * row), (row - 1, 5 * row + 1)] {
                let within = p.leaves_within(first, end);
                assert_eq!(within.is_empty(), end - first < 3 * row - 1);
                for address in (0..6 * row).filter(|a| !(first..end).contains(a)) {
                    assert!(!within.contains(&p.locate(address).leaf), "{address}");
                }
            }
        }
    }
}
