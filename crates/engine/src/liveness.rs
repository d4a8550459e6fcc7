//! Liveness on disk: one record a segment, of one or more nodes: a header of 64 bytes, then the bitmap
//! of live blocks. A root's records are the exact image of that root's trees.
//!
//! Invariants:
//! - A record's number is the segment's while the segment exists; its nodes are a fixed count for the whole
//!   array, so that a record is found by arithmetic.
//! - A block comes to life once and dies once, whatever happens within the redundancy; the simulator fails
//!   at the event `inconsistent`.

use ashlar_format::wire::{Reader, Writer};
use ashlar_format::{BLOCK, FormatError, SegmentGeometry};

use crate::home::Home;
use crate::planted::{self, Bug};
use crate::segment::{Bitmap, Segment};

const HEADER: usize = 64;

/// Nodes of a record in an array with slots of `slot_blocks` and data segments of `k`.
pub fn nodes_per_record(slot_blocks: u32, k: u16) -> u64 {
    let data_blocks = usize::from(k.max(8)) * slot_blocks as usize;
    (HEADER + data_blocks.div_ceil(8)).div_ceil(BLOCK) as u64
}

/// What a record says besides the bitmap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    /// The segment.
    pub segment: u64,
    /// Stripes recorded.
    pub recorded: u32,
    /// Takes no more.
    pub sealed: bool,
    /// Live blocks.
    pub live: u32,
}

/// All bytes of a segment's record.
pub fn encode(segment: &Segment, nodes: u64) -> Vec<u8> {
    let mut w = Writer::new();
    let live = segment.live.borrow();
    w.u64(segment.number)
        .u32(segment.recorded.get())
        .u8(u8::from(segment.sealed.get()))
        .u32(live.count());
    let mut w = Writer(w.padded(HEADER));
    w.bytes(&live.to_bytes());
    w.padded(usize::try_from(nodes).expect("few nodes") * BLOCK)
}

/// Reads a record's header.
pub fn decode_header(bytes: &[u8]) -> Result<RecordHeader, FormatError> {
    let mut r = Reader::new(bytes);
    let (segment, recorded, sealed, live) = (r.u64()?, r.u32()?, r.u8()? != 0, r.u32()?);
    Ok(RecordHeader {
        segment,
        recorded,
        sealed,
        live,
    })
}

/// Reads a record's bitmap.
pub fn decode_bitmap(geometry: SegmentGeometry, bytes: &[u8]) -> Bitmap {
    Bitmap::from_bytes(geometry.data_blocks(), bytes.get(HEADER..).unwrap_or(&[]))
}

impl Home {
    pub(crate) fn record_nodes(&self) -> u64 {
        nodes_per_record(self.core.slot_blocks, self.shape.k)
    }

    /// The leaf of the liveness tree that holds `block` of a segment's bitmap (block 0: the header too).
    pub(crate) fn record_leaf(&self, segment: &Segment, block: u32) -> u64 {
        let byte = HEADER + block as usize / 8;
        u64::from(segment.record.get()) * self.record_nodes() + (byte / BLOCK) as u64
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
        let mut liveness = self.liveness.borrow_mut();
        if !planted::on(Bug::LivenessNotImaged) {
            liveness.mark(self.record_leaf(&segment, 0));
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
            if !planted::on(Bug::LivenessNotImaged) {
                liveness.mark(self.record_leaf(&segment, block));
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
        self.core.event("inconsistent", None, text);
    }

    /// The bytes of one leaf of the liveness tree; `None` if its segment is gone.
    pub(crate) fn record_leaf_bytes(&self, leaf: u64) -> Option<Vec<u8>> {
        let nodes = self.record_nodes();
        let record = u32::try_from(leaf / nodes).ok()?;
        let number = *self.records.borrow().get(&record)?;
        let segment = self.core.segment(number)?;
        let bytes = encode(&segment, nodes);
        let start = usize::try_from(leaf % nodes).ok()? * BLOCK;
        Some(bytes[start..start + BLOCK].to_vec())
    }

    /// Whether a leaf of the liveness tree has a segment.
    pub(crate) fn record_exists(&self, leaf: u64) -> bool {
        let record = u32::try_from(leaf / self.record_nodes()).unwrap_or(u32::MAX);
        self.records.borrow().contains_key(&record)
    }
}
