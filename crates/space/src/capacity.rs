//! The capacity of an array: the inequality for free slots, asked of an empty array.
//!
//! Invariants:
//! - The capacity leaves the floors of clients, open segments, and nodes twice: so promised blocks can be
//!   written, and written again.
//! - Devices that are gone, or that are being drained, count nowhere.

use ashlar_format::liveness::RecordShape;
use ashlar_format::{BLOCK_U64, SegmentGeometry};

use crate::fits::{Sites, Wanted, greatest};
use crate::floors::{Class, Facts, Floors, twice};
use crate::template::{Plan, Template};
use crate::topology::{Area, Topology};

/// Sizes of an array, besides those of its devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks of a strip of data, 1 to 256.
    pub strip_blocks: u32,
    /// Blocks of a slot.
    pub slot_blocks: u32,
    /// Data columns that a stripe has at least, 1 to K, so that the largest volume block fits in one.
    pub least_data: u16,
    /// Percent of the space that is kept for cleaning, 0 to 50 (`clean.reserve`).
    pub clean_reserve: u8,
    /// Nodes that one step of a checkpoint writes at most, with those that it renews.
    pub step_nodes: u32,
    /// Data columns of segments of nodes once as many devices are gone as may be: the floors are kept for these.
    pub least_node_k: u16,
    /// Segments of data of each group that are being filled at once, at most.
    pub open_segments: u32,
    /// Nodes that there are however little volumes hold: of the catalog, and of each partition of a volume's map.
    pub fixed_nodes: u32,
}

#[cfg(test)]
impl Geometry {
    /// Sizes for tests.
    pub(crate) const SAMPLE: Geometry = Geometry {
        strip_blocks: 16,
        slot_blocks: 256,
        least_data: 1,
        clean_reserve: 10,
        step_nodes: 560,
        least_node_k: 8,
        open_segments: 8,
        fixed_nodes: 0,
    };
}

impl Geometry {
    /// Blocks of data that a segment of `k` data columns holds.
    #[must_use]
    pub fn data_blocks(&self, k: u16) -> u64 {
        u64::from(self.segment(k, self.strip_blocks).data_blocks())
    }

    /// Nodes that a segment of `k` data columns holds.
    #[must_use]
    pub fn node_blocks(&self, k: u16) -> u64 {
        u64::from(self.segment(k, 1).data_blocks())
    }

    fn segment(&self, k: u16, strip_blocks: u32) -> SegmentGeometry {
        SegmentGeometry {
            k,
            m: 1,
            strip_blocks,
            slot_blocks: self.slot_blocks,
        }
    }

    /// Nodes that so many full segments of data need: 32 bytes a block for the map, and a record a segment.
    #[must_use]
    pub fn nodes_for(&self, segments: u64, k: u16) -> u64 {
        let blocks = u128::from(segments) * u128::from(self.data_blocks(k));
        // A leaf has 32 bytes for each block, and a node above 63 leaves.
        let map = (blocks * 32 * 64).div_ceil(u128::from(BLOCK_U64) * 63);
        let record = RecordShape::new(self.slot_blocks, k);
        let records = (segments as f64 * record.leaves_per_record()).ceil() as u64;
        u64::try_from(map)
            .unwrap_or(u64::MAX)
            .saturating_add(records)
    }

    /// The facts for the floors, with so many live nodes and slots in segments of nodes.
    #[must_use]
    pub fn facts(&self, nodes: &Template, live_nodes: u64, node_slots: u64) -> Facts {
        Facts {
            step_nodes: self.step_nodes.into(),
            step_segment_nodes: self.node_blocks(nodes.k.min(self.least_node_k)).max(1),
            live_nodes,
            node_slots,
            segment_nodes: self.node_blocks(nodes.k).max(1),
            segment_columns: nodes.laid().max(1).into(),
            movers: 1,
        }
    }
}

/// One block of so many is padding: stripes are closed before they are full where somebody waits for them.
const PADDING: u64 = 64;

/// Blocks of a leaf of a map, each of which may lie in another segment, as may the one that it replaces.
const LEAF_BLOCKS: f64 = 128.0;
/// Nodes of a map from a leaf up, at most.
const PATH_NODES: u32 = 8;
/// Leaves of records under one node.
const FAN_OUT: f64 = 32.0;

/// Nodes that one step of a checkpoint writes at most, with those that it renews: one leaf of a map, all records that
/// its blocks change, a catalog of so many nodes; and as many again.
#[must_use]
pub fn step_nodes(topology: &Topology, slot_blocks: u32, catalog: u32) -> u32 {
    let shape = topology.shape();
    // No segment lies on a device of no group: one that was removed, or a hot spare.
    let devices = shape.groups.iter().flatten();
    let slots: f64 = devices.map(|d| f64::from(topology.slots(*d))).sum();
    let segments = slots / f64::from(shape.m + 1);
    let records = RecordShape::new(slot_blocks, shape.k).leaves_per_record() * segments;
    let records = records.ceil().min(2.0 * LEAF_BLOCKS);
    let above = (records / FAN_OUT).ceil() + 4.0;
    2 * (PATH_NODES + catalog + (records + above) as u32)
}

/// Blocks of data that volumes may be promised, on the devices that take new columns, laid by this plan.
#[must_use]
pub fn capacity(topology: &Topology, geometry: &Geometry, plan: &Plan) -> u64 {
    capacity_where(topology, geometry, plan, |_| true)
}

/// The same in groups of which these templates count.
#[must_use]
pub fn capacity_where(
    topology: &Topology,
    geometry: &Geometry,
    plan: &Plan,
    counts: impl Fn(&Template) -> bool,
) -> u64 {
    let segments = segments_of(topology, geometry, plan, true);
    blocks_in(geometry, plan, &segments, counts)
}

/// The same without the nodes' own room, which is a mistake that tests make on purpose.
#[doc(hidden)]
#[must_use]
pub fn capacity_without_nodes(topology: &Topology, geometry: &Geometry, plan: &Plan) -> u64 {
    let segments = segments_of(topology, geometry, plan, false);
    blocks_in(geometry, plan, &segments, |_| true)
}

fn blocks_in(
    geometry: &Geometry,
    plan: &Plan,
    segments: &[u64],
    counts: impl Fn(&Template) -> bool,
) -> u64 {
    let of = |(n, t): (&u64, &Template)| n * geometry.data_blocks(t.k);
    let counted = segments.iter().zip(&plan.groups).filter(|(_, t)| counts(t));
    let blocks: u64 = counted.map(of).sum();
    let reserve = u128::from(blocks) * u128::from(geometry.clean_reserve) / 100;
    let reserve = u64::try_from(reserve).unwrap_or(blocks);
    blocks.saturating_sub(reserve + blocks / PADDING)
}

/// Full segments of data that each group holds so.
fn segments_of(topology: &Topology, geometry: &Geometry, plan: &Plan, nodes: bool) -> Vec<u64> {
    let slots: Vec<u32> = topology.members().iter().map(|m| m.slots).collect();
    let sites = Sites::new(topology);
    let empty = Floors::reckon(&geometry.facts(&plan.nodes, 0, 0));
    let kept = |data: &[u64]| -> Wanted {
        let of = |(n, t): (&u64, &Template)| geometry.nodes_for(*n, t.k);
        let live: u64 = data.iter().zip(&plan.groups).map(of).sum();
        let live = live + u64::from(geometry.fixed_nodes);
        let live = if nodes { live } else { 0 };
        let grown = twice(live.div_ceil(geometry.node_blocks(plan.nodes.k).max(1)));
        let floor = Floors {
            growth: u32::try_from(grown).unwrap_or(u32::MAX),
            ..empty
        };
        let mut wanted = floor.wanted(Class::Client, topology.groups());
        for (each, n) in wanted.groups.iter_mut().zip(data) {
            let n = u32::try_from(*n).unwrap_or(u32::MAX);
            *each = each
                .saturating_add(geometry.open_segments)
                .saturating_add(n);
        }
        wanted
    };
    let groups = topology.groups();
    let all = |group: u16| {
        let area = Area::Group(group);
        let columns: u64 = topology
            .taking(group)
            .map(|d| u64::from(slots[usize::from(d)]))
            .sum();
        let most = columns / u64::from(plan.of(area).laid().max(1));
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        u64::from(greatest(most, |n| {
            let mut data = vec![0; usize::from(groups)];
            data[usize::from(group)] = n.into();
            sites.fits(&slots, plan, &kept(&data), area)
        }))
    };
    let most: Vec<u64> = (0..groups).map(all).collect();
    // Together they have less, as nodes lie on the devices of all: each group the same part of what it has alone.
    let largest = most.iter().copied().max().unwrap_or(0);
    let part = |of: u32| -> Vec<u64> {
        let share = |n: &u64| u128::from(*n) * u128::from(of) / u128::from(largest.max(1));
        most.iter()
            .map(|n| u64::try_from(share(n)).unwrap_or(0))
            .collect()
    };
    let largest = u32::try_from(largest).unwrap_or(u32::MAX);
    let together = greatest(largest, |of| {
        let data = part(of);
        let wanted = kept(&data);
        let holds = |group: u16| {
            data[usize::from(group)] == 0 || sites.fits(&slots, plan, &wanted, Area::Group(group))
        };
        (0..groups).all(holds)
    });
    part(together)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::domains::Domains;
    use crate::topology::Member;

    /// Devices that were removed take nothing from what is left: one of the same size takes the place of another.
    #[test]
    fn devices_of_no_group_count_in_no_step() {
        let layout: ashlar_layout::Layout = "ec2+2".parse().unwrap();
        let shape = layout.resolve_with_spare(4, 0).unwrap();
        let all = Topology::new(vec![Member::in_use(900); 4], shape, Domains::default());
        let steps = |all: &Topology| step_nodes(all, 16, 10);
        let mut now = all.clone();
        for old in 0..4 {
            now = now.and(900, Some(0), None).without(old);
            assert_eq!(steps(&now), steps(&all), "{old}");
        }
        assert!(steps(&all.and(900, Some(0), None)) > steps(&all));
    }
}
