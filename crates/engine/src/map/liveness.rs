//! Liveness: one record a segment on disk. A root's records are the exact image of that root's trees.
//!
//! Invariants:
//! - A record's number is the segment's while the segment exists; all records of an array have one size, in
//!   whole nodes or an even part of one, so that a record is found by arithmetic.
//! - A node holds the image of all its records, whichever of them made it be written.
//! - A block comes to life once and dies once, whatever happens within the redundancy; the simulator fails
//!   at the event `inconsistent`.

use std::cell::{RefCell, RefMut};

use ashlar_format::liveness::{self, RecordHeader};
use ashlar_format::node::Place;
use ashlar_format::slot::SegmentForm;
use ashlar_format::{BLOCK, SegmentNumber};

use crate::map::records::Records;
use crate::map::system::SysTree;
use crate::planted::{self, Bug};
use crate::segment::Segment;
use crate::segment::table::Core;

/// The records of all segments, and the tree that they lie in.
#[derive(Debug)]
pub struct Liveness {
    tree: RefCell<SysTree>,
    records: Records,
}

/// Writes the bytes of a segment's record from byte `at` on, a multiple of 8, into `part`.
///
/// Crash argument: `sealed` tells recovery that every row stands in a summary, and to ignore the rows that
/// the journal still has. So it is said only once the last summary has been flushed: rows hang on nothing.
fn encode_part(segment: &Segment, at: usize, part: &mut [u8]) {
    let live = segment.live.borrow();
    let header = RecordHeader {
        segment: segment.number,
        recorded: segment.recorded.get(),
        sealed: segment.is_closed(),
        live: live.count(),
        sealed_in: segment.sealed_in.get(),
        form: Some(SegmentForm {
            k: segment.geometry.k,
            m: segment.geometry.m,
            code: segment.code,
            kind: segment.kind,
            strip_blocks: segment.geometry.strip_blocks,
        }),
    };
    liveness::encode_part(header, &live, at, part);
}

impl Liveness {
    /// Liveness as a root has it.
    pub fn new(tree: SysTree, records: Records) -> Liveness {
        Liveness {
            tree: RefCell::new(tree),
            records,
        }
    }

    /// The tree of records.
    pub fn tree(&self) -> RefMut<'_, SysTree> {
        self.tree.borrow_mut()
    }

    /// Nodes of the tree with all records that exist.
    pub fn nodes_total(&self) -> usize {
        let leaves = self.records.leaves();
        leaves + leaves / 32 + 4
    }

    /// Nodes that are not written yet.
    pub fn nodes_unwritten(&self) -> usize {
        self.nodes_total()
            .saturating_sub(self.tree.borrow().nodes())
    }

    /// Leaves that one record takes.
    pub fn leaves_each(&self) -> usize {
        self.records.shape.leaves()
    }

    /// A record for a segment.
    pub fn take_record(&self, segment: SegmentNumber) -> u32 {
        self.records.take(segment)
    }

    /// A segment is no more: its record is to be written without it, and taken again after [`Liveness::release`].
    pub fn give_up(&self, segment: &Segment) {
        self.mark_record(segment);
        self.records.give_up(segment.record.get());
    }

    /// The root that freed a segment is durable.
    pub fn release(&self, segment: &Segment) {
        self.records.release(segment.record.get());
    }

    /// Notes that a segment's record, whole, is to be written.
    fn mark_record(&self, segment: &Segment) {
        for leaf in self.records.shape.leaves_of(segment.record.get()) {
            self.tree.borrow_mut().mark(leaf);
        }
    }

    /// Notes that the header of a segment's record is to be written.
    pub fn mark_header(&self, segment: &Segment) {
        self.mark_byte(segment, 0);
    }

    fn mark_byte(&self, segment: &Segment, byte: usize) {
        let (leaf, _) = self.records.shape.locate(segment.record.get(), byte);
        self.tree.borrow_mut().mark(leaf);
    }

    /// Marks blocks live or dead in memory, and their records to be written.
    pub fn set_live(&self, core: &Core, place: Place, count: u32, live: bool) {
        // A block of a segment that is gone: its journal records were lost beyond M, and the operator
        // chose to go on. The entry stays and reads as lost.
        let Some(segment) = core.segment(place.segment) else {
            return;
        };
        if place.block + count > segment.geometry.data_blocks() {
            return;
        }
        core.unsettled.borrow_mut().insert(segment.number);
        let imaged = !planted::on(Bug::LivenessNotImaged);
        if imaged {
            self.mark_header(&segment);
        }
        for block in place.block..place.block + count {
            let changed = if live {
                segment.live.borrow_mut().set(block)
            } else {
                segment.live.borrow_mut().clear(block)
            };
            if !changed {
                note_inconsistent(core, place, live);
            }
            if imaged {
                self.mark_byte(&segment, liveness::HEADER_BYTES + block as usize / 8);
            }
        }
    }

    /// The bytes of one leaf of the tree, for this checkpoint; `None` if none of its segments is left.
    ///
    /// Crash argument: what was written of a sealed segment was written before, and all devices are flushed before the
    /// root of this checkpoint. So a member that was counted by that root, or by a later one, holds its column whole.
    pub fn leaf_bytes(&self, core: &Core, leaf: u64, checkpoint: u64) -> Option<Vec<u8>> {
        let mut node = None;
        for (record, number) in self.records.in_leaf(leaf) {
            let Some(segment) = core.segment(number) else {
                continue;
            };
            if segment.is_closed() && segment.sealed_in.get() == 0 {
                segment.sealed_in.set(checkpoint);
            }
            let (at, place) = self.records.shape.part_in(record, leaf);
            let node = node.get_or_insert_with(|| vec![0; BLOCK]);
            encode_part(&segment, at, &mut node[place]);
        }
        node
    }

    /// Whether a leaf of the tree has a segment.
    pub fn has_leaf(&self, leaf: u64) -> bool {
        !self.records.in_leaf(leaf).is_empty()
    }
}

/// Two addresses name one block, or one that nothing names was given up: never within the redundancy.
/// Beyond it the records of two histories may have met; reads are judged by digests all the same.
fn note_inconsistent(core: &Core, place: Place, live: bool) {
    let text = format!(
        "the map contradicts itself: block {} of segment {} was {} already, since more was lost than parity \
         covers; copy the data that can be read, then destroy the array",
        place.block,
        place.segment,
        if live { "live" } else { "dead" }
    );
    core.events.note("inconsistent", None, text);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::collections::BTreeMap;

    use ashlar_format::liveness::RecordShape;

    use super::*;
    use crate::testing::bed;

    #[test]
    fn a_block_that_comes_to_life_twice_is_told() {
        let bed = bed(4);
        let segment = bed.segment(7, 2, 2);
        let shape = RecordShape::new(segment.geometry.slot_blocks, 2);
        let liveness = Liveness::new(SysTree::default(), Records::new(shape, BTreeMap::new()));
        segment.record.set(liveness.take_record(7));
        let place = segment.place(3);
        liveness.set_live(&bed.core, place, 2, true);
        assert!(bed.core.events.after(0).is_empty());
        let bytes = liveness.leaf_bytes(&bed.core, 0, 7).unwrap();
        assert!(liveness.has_leaf(0) && bytes.iter().any(|b| *b != 0));
        assert!(
            !liveness
                .tree()
                .unplaced(|leaf| liveness.has_leaf(leaf))
                .is_empty()
        );
        liveness.set_live(&bed.core, place, 1, true);
        assert_eq!(bed.core.events.after(0)[0].kind, "inconsistent");
        liveness.give_up(&segment);
        assert!(!liveness.has_leaf(0), "it has no segment any more");
        assert_eq!(
            liveness.take_record(8),
            1,
            "not before the root that freed it"
        );
        liveness.release(&segment);
        assert_eq!(liveness.take_record(9), 0);
    }
}
