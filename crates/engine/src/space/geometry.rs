//! The sizes of an array that free space is computed with.
//!
//! Invariant: functions of facts; an array that is created and one that runs ask the same.

use ashlar_format::BLOCK_U64;
use ashlar_space::capacity::{Geometry, step_nodes};
use ashlar_space::plan::least_node_k;
use ashlar_space::topology::Topology;

/// What `clean.reserve` may be, in percent.
pub const CLEAN_RESERVE: std::ops::RangeInclusive<u8> = 2..=50;

/// `clean.reserve` where it was not set, in percent.
pub const DEFAULT_CLEAN_RESERVE: u8 = 10;

/// Segments of data of each group that are being filled at once: two streams of a few shards.
const OPEN_SEGMENTS: u32 = 8;

/// Nodes of a partition of a volume's map that holds little: a leaf, and those above it.
const PARTITION_NODES: u32 = 3;

/// Facts of an array besides its devices.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Blocks of a strip.
    pub strip_blocks: u32,
    /// Blocks of a slot.
    pub slot_blocks: u32,
    /// Data columns that a stripe has at least, so that the largest volume block fits.
    pub least_data: u16,
    /// Percent of the space that is kept for cleaning.
    pub clean_reserve: u8,
    /// Nodes of the catalog.
    pub catalog_nodes: u32,
    /// Volumes; an array is reckoned with one at least.
    pub volumes: usize,
    /// Partitions of a volume's map.
    pub partitions: u16,
}

/// The sizes of an array that free space is reckoned with.
pub fn geometry(topology: &Topology, sizes: &Sizes) -> Geometry {
    let volumes = u32::try_from(sizes.volumes.max(1)).unwrap_or(u32::MAX);
    let maps = volumes.saturating_mul(u32::from(sizes.partitions) * PARTITION_NODES);
    Geometry {
        strip_blocks: sizes.strip_blocks,
        slot_blocks: sizes.slot_blocks,
        least_data: sizes.least_data,
        clean_reserve: sizes.clean_reserve,
        step_nodes: step_nodes(topology, sizes.slot_blocks, sizes.catalog_nodes),
        least_node_k: least_node_k(topology),
        open_segments: OPEN_SEGMENTS,
        fixed_nodes: sizes.catalog_nodes.saturating_add(maps),
    }
}

/// Bytes of one slot, in blocks.
pub fn slot_blocks(slot_bytes: u64) -> u32 {
    u32::try_from(slot_bytes / BLOCK_U64).expect("a slot is at most 1 GiB")
}
