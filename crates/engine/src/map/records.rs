//! Numbers of liveness records: one for each segment while it exists.
//!
//! Invariant: the record of a segment that was freed is taken again only after the root that freed it; until then it is
//! neither taken nor free.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use ashlar_format::SegmentNumber;
use ashlar_format::liveness::RecordShape;

/// The records of an array.
#[derive(Debug)]
pub struct Records {
    /// How they lie in leaves.
    pub shape: RecordShape,
    taken: RefCell<BTreeMap<u32, SegmentNumber>>,
    /// Records between those in use.
    free: RefCell<BTreeSet<u32>>,
    /// One past the highest record ever in use.
    end: Cell<u32>,
}

impl Records {
    /// The records of these segments.
    pub fn new(shape: RecordShape, taken: BTreeMap<u32, SegmentNumber>) -> Records {
        let end = taken.last_key_value().map_or(0, |(last, _)| *last + 1);
        let free = (0..end).filter(|r| !taken.contains_key(r)).collect();
        Records {
            shape,
            taken: RefCell::new(taken),
            free: RefCell::new(free),
            end: Cell::new(end),
        }
    }

    /// A record for a segment: the lowest that is free.
    pub fn take(&self, segment: SegmentNumber) -> u32 {
        let reused = self.free.borrow_mut().pop_first();
        let record = reused.unwrap_or_else(|| {
            self.end.set(self.end.get() + 1);
            self.end.get() - 1
        });
        self.taken.borrow_mut().insert(record, segment);
        record
    }

    /// The segment of a record is no more.
    pub fn give_up(&self, record: u32) {
        self.taken.borrow_mut().remove(&record);
    }

    /// The root that freed its segment is durable.
    pub fn release(&self, record: u32) {
        self.free.borrow_mut().insert(record);
    }

    /// Leaves that all records take, at most.
    pub fn leaves(&self) -> usize {
        self.shape
            .most_leaves(self.taken.borrow().len(), self.end.get())
    }

    /// The records in a leaf, with their segments.
    pub fn in_leaf(&self, leaf: u64) -> Vec<(u32, SegmentNumber)> {
        let taken = self.taken.borrow();
        let records = taken.range(self.shape.records_of(leaf));
        records.map(|(record, number)| (*record, *number)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_taken_again_only_after_its_release() {
        let shape = RecordShape::new(16, 8);
        let records = Records::new(shape, BTreeMap::from([(0, 10), (2, 12)]));
        assert_eq!(records.take(11), 1, "the gap");
        assert_eq!(records.take(13), 3);
        records.give_up(0);
        assert_eq!(records.take(14), 4, "not yet");
        records.release(0);
        assert_eq!(records.take(15), 0);
        let all: Vec<u64> = records.in_leaf(0).into_iter().map(|(_, s)| s).collect();
        assert_eq!(all, vec![15, 11, 12, 13, 14]);
        assert_eq!(records.leaves(), 1);
    }
}
