//! Known bad blocks: those to be repaired, and those that could not be.
//!
//! Invariant: a block is counted against its device once, however often it is found, as long as the device is there.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use ashlar_device::Fault;
use ashlar_format::SegmentNumber;
use ashlar_rt::{Buf, Gate};

/// Bad blocks remembered at most. Those found beyond that are counted, and repaired when they are found
/// again.
const MOST_KNOWN: usize = 1 << 17;

/// Blocks repaired at once: they share a flush.
const AT_ONCE: usize = 64;

/// As [`BadBlock::within`]: the summary of the stripe's course.
pub const SUMMARY: u32 = u32::MAX;

/// A block of a strip that does not match its row or the map, or a summary that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BadBlock {
    /// Its segment.
    pub segment: SegmentNumber,
    /// The column.
    pub column: u16,
    /// The stripe.
    pub stripe: u32,
    /// The block of the strip, or [`SUMMARY`] with the first stripe of the course.
    pub within: u32,
}

/// How a bad block was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Its device does not give it: a failed read, which is counted as that.
    Unreadable,
    /// Its device gives other bytes.
    Wrong,
}

/// What is wrong with bytes that a device gave, or that it did not give them; one that does not answer is not judged.
pub fn fault_of(bytes: Result<Buf, Fault>, is_good: impl FnOnce(&[u8]) -> bool) -> Option<Found> {
    match bytes {
        Ok(bytes) => (!is_good(&bytes)).then_some(Found::Wrong),
        Err(Fault::Media) => Some(Found::Unreadable),
        Err(_) => None,
    }
}

impl std::fmt::Display for BadBlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "segment {} column {} ", self.segment, self.column)?;
        match self.within {
            SUMMARY => write!(f, "summary from stripe {} on", self.stripe),
            within => write!(f, "stripe {} block {within}", self.stripe),
        }
    }
}

/// What of an array cannot be read.
#[derive(Debug, Default)]
pub struct Bad {
    /// Blocks of columns.
    pub repairs: RefCell<Repairs>,
    /// Opens when one is to be repaired.
    pub found: Gate,
    /// Of segments that a scrub looks at: blocks that turn out bad meanwhile, each with its device.
    watched: RefCell<BTreeMap<SegmentNumber, Faults>>,
    /// Blocks of volumes: tree and address.
    pub lost: RefCell<BTreeSet<(u32, u64)>>,
    /// What is lost is read again: how often that was asked for since the last time all was.
    pub again: Cell<u32>,
    /// The journal is short: leaves that cannot be read must let go of it.
    pub give_up_lost: Cell<bool>,
}

/// Bad blocks, each with the device it was read from and how it is bad.
pub type Faults = BTreeMap<BadBlock, (u16, Found)>;

impl Bad {
    /// From now on keeps the blocks of a segment that turn out bad.
    pub fn watch(&self, segment: SegmentNumber) {
        self.watched.borrow_mut().insert(segment, Faults::new());
    }

    /// Those kept since.
    pub fn take_watched(&self, segment: SegmentNumber) -> Faults {
        let mut watched = self.watched.borrow_mut();
        watched
            .get_mut(&segment)
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// Keeps no more of them.
    pub fn unwatch(&self, segment: SegmentNumber) {
        self.watched.borrow_mut().remove(&segment);
    }

    /// A block turned out bad.
    pub fn tell(&self, block: BadBlock, device: u16, found: Found) {
        if let Some(faults) = self.watched.borrow_mut().get_mut(&block.segment) {
            faults.insert(block, (device, found));
        }
    }
}

/// The bad blocks that are known.
#[derive(Debug, Default)]
pub struct Repairs {
    /// To be repaired, those being repaired included: how each was found.
    due: BTreeMap<BadBlock, Found>,
    /// Could not be repaired: too little of their stripe can be verified, or the device keeps nothing.
    hopeless: BTreeSet<BadBlock>,
    /// Could not be repaired, and may be now: tried again when they are found again, but counted already.
    counted: BTreeSet<BadBlock>,
}

impl Repairs {
    /// Whether a block is known to be bad.
    pub fn knows(&self, block: &BadBlock) -> bool {
        self.due.contains_key(block) || self.hopeless.contains(block)
    }

    /// Whether a block is to be repaired.
    pub fn is_due(&self, block: &BadBlock) -> bool {
        self.due.contains_key(block)
    }

    /// Whether the device of one of these, that are to be repaired, gave other bytes.
    pub fn is_any_wrong(&self, blocks: &[BadBlock]) -> bool {
        let found = |block| self.due.get(block);
        blocks.iter().any(|b| found(b) == Some(&Found::Wrong))
    }

    /// Whether a block is bad: to be repaired, or not to be.
    pub fn is_bad(&self, block: &BadBlock) -> bool {
        self.knows(block) || self.counted.contains(block)
    }

    /// Whether nothing is to be repaired.
    pub fn is_empty(&self) -> bool {
        self.due.is_empty()
    }

    /// How many are to be repaired.
    pub fn due(&self) -> usize {
        self.due.len()
    }

    /// How many are bad: to be repaired, or not to be.
    pub fn bad(&self) -> usize {
        self.due.len() + self.hopeless.len() + self.counted.len()
    }

    /// Has a block repaired. Whether it is to be counted: not if it was before.
    pub fn add(&mut self, block: BadBlock, found: Found) -> bool {
        let new = !self.counted.remove(&block);
        if self.bad() < MOST_KNOWN {
            self.due.insert(block, found);
        }
        new
    }

    /// The next blocks to repair.
    pub fn next(&self) -> Vec<BadBlock> {
        self.due.keys().take(AT_ONCE).copied().collect()
    }

    /// A block has been tried.
    pub fn tried(&mut self, block: BadBlock, healed: bool) {
        self.due.remove(&block);
        if !healed {
            self.hopeless.insert(block);
        }
    }

    /// A segment has changed for the better: what could not be repaired may be now, when it is found again.
    pub fn forget(&mut self, segment: SegmentNumber) {
        let mine = |b: &BadBlock| b.segment == segment;
        self.counted
            .extend(self.hopeless.iter().filter(|b| mine(b)).copied());
        self.hopeless.retain(|b| !mine(b));
    }

    /// A column lies elsewhere now: nothing is known of it.
    pub fn moved(&mut self, segment: SegmentNumber, column: u16) {
        self.forget(segment);
        self.counted
            .retain(|b| (b.segment, b.column) != (segment, column));
    }

    /// Keeps only blocks of columns that are `there`: one whose device is away is missing, and nothing is known of what
    /// is on it when it is back.
    pub fn retain(&mut self, there: impl Fn(&BadBlock) -> bool) {
        self.hopeless.retain(&there);
        self.counted.retain(&there);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn block(segment: SegmentNumber, stripe: u32) -> BadBlock {
        BadBlock {
            segment,
            column: 0,
            stripe,
            within: 0,
        }
    }

    #[test]
    fn a_bad_block_is_counted_once_until_its_column_moves() {
        let mut repairs = Repairs::default();
        let bad = block(1, 0);
        assert!(repairs.add(bad, Found::Wrong) && repairs.knows(&bad));
        assert!(repairs.is_any_wrong(&[bad]));
        assert_eq!(repairs.next(), vec![bad]);
        repairs.tried(bad, false);
        assert!(
            repairs.is_empty() && repairs.knows(&bad),
            "it is not tried for ever"
        );
        // Its segment got better: tried again, and not counted again.
        repairs.forget(1);
        assert!(!repairs.knows(&bad) && !repairs.add(bad, Found::Wrong));
        repairs.tried(bad, false);
        repairs.moved(1, 0);
        assert!(
            repairs.add(bad, Found::Unreadable),
            "another place, another count"
        );
        assert!(!repairs.is_any_wrong(&[bad]));
        repairs.tried(bad, true);
        assert!(!repairs.knows(&bad));
    }

    #[test]
    fn what_turns_out_bad_of_a_watched_segment_is_kept() {
        let bad = Bad::default();
        bad.tell(block(1, 0), 4, Found::Wrong);
        bad.watch(1);
        assert!(bad.take_watched(1).is_empty());
        bad.tell(block(1, 3), 4, Found::Unreadable);
        bad.tell(block(2, 3), 4, Found::Wrong);
        assert_eq!(bad.take_watched(1)[&block(1, 3)], (4, Found::Unreadable));
        assert!(bad.take_watched(1).is_empty() && bad.take_watched(2).is_empty());
        bad.unwatch(1);
        bad.tell(block(1, 3), 4, Found::Wrong);
        assert!(bad.take_watched(1).is_empty());
    }

    #[test]
    fn what_is_known_is_bounded_and_goes_with_its_segment() {
        let mut repairs = Repairs::default();
        for stripe in 0..=u32::try_from(MOST_KNOWN).unwrap() {
            assert!(
                repairs.add(block(1, stripe), Found::Unreadable),
                "all are counted"
            );
        }
        assert_eq!(repairs.due(), MOST_KNOWN);
        assert_eq!(repairs.next().len(), AT_ONCE);
        let (first, second) = (block(1, 0), block(2, 0));
        let mut repairs = Repairs::default();
        for bad in [first, second] {
            repairs.add(bad, Found::Wrong);
            repairs.tried(bad, false);
        }
        assert_eq!(repairs.bad(), 2);
        repairs.retain(|bad| bad.segment == 2);
        assert!(!repairs.knows(&first) && repairs.knows(&second));
        repairs.forget(2);
        assert_eq!(repairs.bad(), 1, "it is bad until it has been tried again");
    }
}
