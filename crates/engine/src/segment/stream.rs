//! Streams: where a shard puts blocks of one temperature. A stream fills one stripe at a time, and
//! gives the segments of its row one stripe each in turn, so that one stream keeps all devices busy.
//!
//! Invariants: a stripe number is taken when the stripe is opened, and stripes of a segment close in
//! that order; a volume block never spans two stripes.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use ashlar_format::node::Place;
use ashlar_format::summary::Owner;
use ashlar_format::{BLOCK, SegmentNumber};
use ashlar_rt::{Buf, Gate, Slice};

use crate::segment::Pinned;
use crate::segment::stripe::Stripe;

/// What a stripe holds besides padding: one item a volume block.
#[derive(Debug, Clone, Copy)]
pub struct Item {
    /// The volume.
    pub tree: u32,
    /// The volume block.
    pub address: u64,
    /// Data block within the stripe at which it begins.
    pub block: u32,
    /// Blocks it takes.
    pub pieces: u32,
    /// Digest for the map.
    pub digest: [u8; 16],
    /// Digest algorithm.
    pub algorithm: u8,
    /// Stamp of its version.
    pub stamp: u64,
    /// If it moves a block: where from.
    pub from: Option<Place>,
}

/// Where a stripe is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Takes blocks.
    Filling,
    /// Being written.
    Writing,
    /// Written on enough columns, not yet flushed and recorded.
    Written,
    /// Could not be written; its live blocks have been placed again. Recorded as an empty stripe.
    Void,
}

enum Data {
    Filling(Buf),
    Frozen(Slice),
}

/// A stripe in memory.
pub struct OpenStripe {
    /// Its segment.
    pub segment: Pinned,
    /// Its number.
    pub number: u32,
    data: RefCell<Data>,
    /// Row owners and digests of its blocks, from the front.
    pub owners: RefCell<Vec<(Owner, [u8; 16])>>,
    /// Its volume blocks.
    pub items: RefCell<Vec<Item>>,
    /// Where it is.
    pub phase: Cell<Phase>,
    /// Opens when the phase changes.
    pub gate: Gate,
    /// The written form, once closed.
    pub written: RefCell<Option<Rc<Stripe>>>,
    /// A record of data holds blocks of it, until it is recorded itself.
    pub journaled: Cell<bool>,
    /// Blocks that clients were admitted with, until it is written.
    pub credits: Cell<usize>,
}

impl std::fmt::Debug for OpenStripe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "OpenStripe({}/{}, {:?})",
            self.segment.number,
            self.number,
            self.phase.get()
        )
    }
}

impl OpenStripe {
    /// Opens the next stripe of `segment`.
    pub fn open(segment: &Pinned) -> Rc<OpenStripe> {
        let bytes = segment.geometry.stripe_blocks() as usize * BLOCK;
        Rc::new(OpenStripe {
            segment: segment.clone(),
            number: segment.take_stripe(),
            data: RefCell::new(Data::Filling(Buf::scratch(bytes))),
            owners: RefCell::default(),
            items: RefCell::default(),
            phase: Cell::new(Phase::Filling),
            gate: Gate::default(),
            written: RefCell::new(None),
            journaled: Cell::new(false),
            credits: Cell::new(0),
        })
    }

    /// Its segment, and its number there.
    pub fn id(&self) -> (SegmentNumber, u32) {
        (self.segment.number, self.number)
    }

    /// Blocks taken.
    pub fn filled(&self) -> u32 {
        u32::try_from(self.owners.borrow().len()).expect("a stripe has fewer than 2^32 blocks")
    }

    /// Blocks still free.
    pub fn room(&self) -> u32 {
        self.segment.geometry.stripe_blocks() - self.filled()
    }

    /// It is written: its segment leaves so much more empty.
    pub fn count_padding(&self) {
        let largest = self.items.borrow().iter().map(|i| i.pieces).max();
        let rest = self.segment.left_empty(self.filled(), largest.unwrap_or(1));
        let padding = &self.segment.padding;
        padding.set(padding.get().map(|sum| sum + rest));
    }

    /// Data block within the segment of a block of this stripe.
    pub fn block_in_segment(&self, block: u32) -> u32 {
        self.number * self.segment.geometry.stripe_blocks() + block
    }

    /// Adds blocks with their rows; the block at which they begin.
    pub fn push(&self, bytes: &[u8], rows: &[(Owner, [u8; 16])]) -> u32 {
        let at = self.filled();
        assert!(
            rows.len() * BLOCK == bytes.len() && self.room() as usize >= rows.len(),
            "blocks fit their stripe"
        );
        let mut data = self.data.borrow_mut();
        let Data::Filling(buf) = &mut *data else {
            panic!("a closed stripe takes no blocks")
        };
        let start = at as usize * BLOCK;
        buf[start..start + bytes.len()].copy_from_slice(bytes);
        self.owners.borrow_mut().extend_from_slice(rows);
        at
    }

    /// A copy of some of its blocks.
    pub fn copy(&self, block: u32, count: u32, out: &mut [u8]) {
        let range = block as usize * BLOCK..(block + count) as usize * BLOCK;
        match &*self.data.borrow() {
            Data::Filling(buf) => out.copy_from_slice(&buf[range]),
            Data::Frozen(slice) => out.copy_from_slice(&slice[range]),
        }
    }

    /// Ends filling: what it has not taken is zeros, and from now on its bytes do not change.
    pub fn freeze(&self) -> Slice {
        let mut data = self.data.borrow_mut();
        if let Data::Filling(buf) = &mut *data {
            let mut buf = std::mem::replace(buf, Buf::zeroed(0));
            buf[self.filled() as usize * BLOCK..].fill(0);
            *data = Data::Frozen(buf.freeze());
        }
        let Data::Frozen(slice) = &*data else {
            unreachable!("frozen just now")
        };
        slice.clone()
    }
}

/// A stream.
#[derive(Debug, Default)]
pub struct Stream {
    /// The stripe being filled.
    pub current: Option<Rc<OpenStripe>>,
    /// Segments that take stripes in turn.
    pub row: VecDeque<Pinned>,
}

impl Stream {
    /// The next segment of the row that has room; full ones leave the row.
    pub fn next_segment(&mut self) -> Option<Pinned> {
        for _ in 0..self.row.len() {
            let segment = self.row.pop_front()?;
            if segment.has_room() {
                self.row.push_back(segment.clone());
                return Some(segment);
            }
        }
        None
    }

    /// Lets go of segments and stripes that take no more blocks.
    pub fn prune(&mut self) {
        self.row.retain(|s| s.has_room());
        if self
            .current
            .as_ref()
            .is_some_and(|s| s.phase.get() != Phase::Filling)
        {
            self.current = None;
        }
    }

    /// Segments of the row that still have room.
    pub fn open_segments(&self) -> usize {
        self.row.iter().filter(|s| s.has_room()).count()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::testing::{bed, blocks};

    #[test]
    fn a_stripe_takes_blocks_until_it_is_full_and_then_keeps_its_bytes() {
        let bed = bed(3);
        let segment = bed.segment(1, 2, 1);
        let stripe = OpenStripe::open(&segment);
        let (data, rows) = blocks(&bed.core, 3, 1);
        assert_eq!(stripe.push(&data, &rows), 0);
        assert_eq!((stripe.filled(), stripe.room()), (3, 1));
        assert_eq!(stripe.block_in_segment(2), 2);
        let frozen = stripe.freeze();
        assert!(frozen[..data.len()] == data[..] && frozen[data.len()..].iter().all(|b| *b == 0));
        let mut copy = vec![0; BLOCK];
        stripe.copy(1, 1, &mut copy);
        assert!(copy[..] == data[BLOCK..2 * BLOCK]);
        assert_eq!(OpenStripe::open(&segment).block_in_segment(0), 4);
    }

    #[test]
    fn segments_of_a_row_take_turns_and_full_ones_leave() {
        let bed = bed(3);
        let (a, b) = (bed.segment(1, 2, 1), bed.segment(2, 2, 1));
        let mut stream = Stream::default();
        stream.row.extend([a.clone(), b.clone()]);
        let mut next = || stream.next_segment().map(|s| s.number);
        assert_eq!((next(), next(), next()), (Some(1), Some(2), Some(1)));
        b.retired.set(true);
        assert_eq!((next(), next()), (Some(1), Some(1)));
        let stripe = OpenStripe::open(&a);
        a.retired.set(true);
        assert_eq!(next(), None);
        stream.current = Some(stripe);
        stream.current.as_ref().unwrap().phase.set(Phase::Writing);
        stream.prune();
        assert!(stream.current.is_none() && stream.open_segments() == 0);
    }
}
