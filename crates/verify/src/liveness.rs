//! Liveness: which blocks live, by segment, and whether that is exactly what the trees point to.
//!
//! **Invariants**: records are found by arithmetic alone; every difference is a finding of its own, by
//! segment and block.

use std::collections::BTreeMap;

use crate::array::{Array, Bits, Record, Segment};
use crate::report::{At, Kind, Report};
use crate::slots::Shape;
use crate::wire::{BLOCK, Fields};

/// Bytes of a record before its bits.
const HEADER: usize = 64;

/// How records lie in leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Records {
    /// Bytes of each.
    bytes: usize,
    /// Leaves of each; 1 if they share leaves.
    leaves: u64,
    /// In each leaf; 1 if they have leaves of their own.
    per_leaf: u64,
}

impl Records {
    /// Records with a bit for each of so many blocks.
    fn new(blocks: u32) -> Records {
        let bytes = HEADER + (blocks as usize).div_ceil(8);
        if bytes > BLOCK / 2 {
            let leaves = bytes.div_ceil(BLOCK);
            return Records {
                bytes: leaves * BLOCK,
                leaves: leaves as u64,
                per_leaf: 1,
            };
        }
        let bytes = bytes.next_power_of_two();
        Records {
            bytes,
            leaves: 1,
            per_leaf: (BLOCK / bytes) as u64,
        }
    }

    /// All records in these leaves, by number.
    fn split(self, leaves: &BTreeMap<u64, Vec<u8>>) -> Vec<Vec<u8>> {
        let mut records: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for (leaf, bytes) in leaves {
            if self.per_leaf > 1 {
                for (within, part) in (0u64..).zip(bytes.chunks_exact(self.bytes)) {
                    records.insert(leaf.saturating_mul(self.per_leaf) + within, part.to_vec());
                }
                continue;
            }
            let at = usize::try_from(leaf % self.leaves).unwrap_or(0) * BLOCK;
            let whole = records
                .entry(leaf / self.leaves)
                .or_insert_with(|| vec![0; self.bytes]);
            whole[at..at + BLOCK].copy_from_slice(bytes);
        }
        records.into_values().collect()
    }
}

impl Array<'_> {
    /// Gives segments their records.
    pub(crate) fn take_liveness(
        &mut self,
        leaves: &BTreeMap<u64, Vec<u8>>,
        report: &mut Report,
    ) -> Option<()> {
        for bytes in Records::new(self.members.superblock.record_blocks).split(leaves) {
            let mut f = Fields(&bytes);
            let (number, recorded, sealed) = (f.u64()?, f.u32()?, f.u8()?);
            if number == 0 {
                continue;
            }
            let count = f.u32()?;
            let bits = Bits::of(bytes.get(HEADER..)?);
            if bits.count() != u64::from(count) {
                report.find(Kind::RecordCount).segment(number);
            }
            let _sealed_in = f.u64()?;
            let shape = Shape::parse(&mut f, self.slot_blocks)?;
            // Records of earlier programs say no shape.
            let said = (shape.k > 0).then_some(shape);
            if said.is_some_and(|shape| !shape.is_sound()) {
                report.find(Kind::RecordShape).segment(number);
                continue;
            }
            // The devices that hold a segment may all be away.
            let all_here = self.members.here.len() == self.members.superblock.members.len();
            if let Some(shape) = said.filter(|_| !all_here) {
                let made = || Segment::new(number, shape);
                self.segments.entry(number).or_insert_with(made);
            }
            let Some(segment) = self.segments.get_mut(&number) else {
                // One that holds nothing any more, and only waits to be freed.
                if bits.count() > 0 || all_here {
                    report.find(Kind::SegmentNowhere).segment(number);
                }
                continue;
            };
            if said.is_some_and(|shape| shape != segment.shape) {
                report.find(Kind::RecordShape).segment(number);
            }
            let blocks = segment.shape.data_blocks();
            if bits.iter().any(|bit| bit >= blocks) || recorded > segment.shape.stripes() {
                report.find(Kind::RecordBits).segment(number);
            }
            if segment.record.is_some() {
                report.find(Kind::RecordTwice).segment(number);
                continue;
            }
            report.counts.live_blocks += bits.count();
            segment.record = Some(Record {
                recorded: recorded.min(segment.shape.stripes()),
                sealed: sealed != 0,
                live: bits,
            });
        }
        Some(())
    }

    /// Compares what is pointed to with what lives. `whole` is whether all that points was seen.
    pub(crate) fn compare_liveness(&self, whole: bool, report: &mut Report) {
        let none = Bits::default();
        for segment in self.segments.values() {
            let live = segment.record.as_ref().map_or(&none, |r| &r.live);
            for block in segment.used.iter().filter(|block| !live.get(*block)) {
                let found = report.find(Kind::NotLive).segment(segment.number);
                found.at(At::Block(block));
            }
            if !whole {
                continue;
            }
            for block in live.iter().filter(|block| !segment.used.get(*block)) {
                let found = report.find(Kind::Leak).segment(segment.number);
                found.at(At::Block(block));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_share_leaves_or_have_their_own() {
        let small = Records::new(8 * 16);
        assert_eq!((small.bytes, small.leaves, small.per_leaf), (128, 1, 32));
        let large = Records::new(8 * 4096);
        assert_eq!((large.bytes, large.leaves, large.per_leaf), (8192, 2, 1));
        let half = Records::new(8 * 1984);
        assert_eq!((half.bytes, half.leaves, half.per_leaf), (2048, 1, 2));
        let over = Records::new(8 * 2048);
        assert_eq!((over.bytes, over.leaves, over.per_leaf), (4096, 1, 1));
        let leaves = BTreeMap::from([(2, vec![1; BLOCK]), (3, vec![2; BLOCK])]);
        let split = large.split(&leaves);
        assert_eq!(split.len(), 1);
        assert_eq!((split[0][0], split[0][BLOCK]), (1, 2));
        assert_eq!(small.split(&leaves).len(), 64);
    }
}
