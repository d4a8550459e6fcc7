//! Liveness: one record a segment on disk. A root's records are the exact image of that root's trees.
//!
//! Invariants:
//! - A record's number is the segment's while the segment exists; all records of an array have one size, in
//!   whole nodes or an even part of one, so that a record is found by arithmetic.
//! - A node holds the image of all its records, whichever of them made it be written.
//! - A block comes to life once and dies once, whatever happens within the redundancy; the simulator fails
//!   at the event `inconsistent`.

use ashlar_format::BLOCK;
use ashlar_format::liveness::{self, RecordHeader};

use crate::home::Home;
use crate::planted::{self, Bug};
use crate::segment::Segment;

/// Writes the bytes of a segment's record from byte `at` on, a multiple of 8, into `part`.
///
/// Crash argument: `sealed` tells recovery that every row stands in a summary, and to ignore the rows that
/// the journal still has. So it is said only once the last summary has been flushed: rows hang on nothing.
fn encode_part(segment: &Segment, at: usize, part: &mut [u8]) {
    let live = segment.live.borrow();
    let header = RecordHeader {
        segment: segment.number,
        recorded: segment.recorded.get(),
        sealed: segment.sealed.get() && segment.rows_since.get().is_none(),
        live: live.count(),
    };
    liveness::encode_part(header, &live, at, part);
}

impl Home {
    /// Nodes of the liveness tree with all records that exist.
    pub(crate) fn record_nodes_total(&self) -> usize {
        let leaves = self.records.leaves();
        leaves + leaves / 32 + 4
    }

    /// Notes that a segment's record, whole, is to be written.
    pub(crate) fn mark_record(&self, segment: &Segment) {
        for leaf in self.records.shape.leaves_of(segment.record.get()) {
            self.liveness.borrow_mut().mark(leaf);
        }
    }

    /// Notes that the header of a segment's record is to be written.
    pub(crate) fn mark_header(&self, segment: &Segment) {
        self.mark_byte(segment, 0);
    }

    fn mark_byte(&self, segment: &Segment, byte: usize) {
        let (leaf, _) = self.records.shape.locate(segment.record.get(), byte);
        self.liveness.borrow_mut().mark(leaf);
    }

    /// Marks blocks live or dead in memory, and their records to be written.
    pub(crate) fn set_live(&self, place: ashlar_format::node::Place, count: u32, live: bool) {
        // A block of a segment that is gone: its journal records were lost beyond M, and the operator
        // chose to go on. The entry stays and reads as lost.
        let Some(segment) = self.core.segment(place.segment) else {
            return;
        };
        if place.block + count > segment.geometry.data_blocks() {
            return;
        }
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
                self.note_inconsistent(place, live);
            }
            if imaged {
                self.mark_byte(&segment, liveness::HEADER_BYTES + block as usize / 8);
            }
        }
    }

    /// Two addresses name one block, or one that nothing names was given up: never within the redundancy.
    /// Beyond it the records of two histories may have met; reads are judged by digests all the same.
    fn note_inconsistent(&self, place: ashlar_format::node::Place, live: bool) {
        let text = format!(
            "block {} of segment {} was {} already: more was lost than the redundancy covers; copy what can be read, then destroy the array",
            place.block,
            place.segment,
            if live { "live" } else { "dead" }
        );
        self.core.events.note("inconsistent", None, text);
    }

    /// The bytes of one leaf of the liveness tree; `None` if none of its segments is left.
    pub(crate) fn record_leaf_bytes(&self, leaf: u64) -> Option<Vec<u8>> {
        let mut node = None;
        for (record, number) in self.records.in_leaf(leaf) {
            let Some(segment) = self.core.segment(number) else {
                continue;
            };
            let (at, place) = self.records.shape.part_in(record, leaf);
            let node = node.get_or_insert_with(|| vec![0; BLOCK]);
            encode_part(&segment, at, &mut node[place]);
        }
        node
    }

    /// Whether a leaf of the liveness tree has a segment.
    pub(crate) fn record_exists(&self, leaf: u64) -> bool {
        !self.records.in_leaf(leaf).is_empty()
    }
}
