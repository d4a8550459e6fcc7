//! The contents of the next journal records, and the turn to write one.
//!
//! Invariants:
//! - After a clean root nothing is journalled.
//! - A column that was moved counts as unrecorded until the record that names its new place is durable.

use std::cell::{Cell, Ref, RefCell};

use ashlar_format::SegmentNumber;
use ashlar_format::journal::Entry;
use ashlar_format::slot::SegmentKind;
use ashlar_rt::Lock;

use crate::locks;
use crate::segment::{Pinned, Segment};

/// A column that was moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// Its segment.
    pub segment: SegmentNumber,
    /// Its number.
    pub column: usize,
    /// The device that it was whole on, and the life of the slots there: until the record is durable, a power cut takes it
    /// back there. `None`: it was missing.
    pub from: Option<(u16, u32)>,
}

/// Entries that wait for a record.
#[derive(Debug)]
pub struct Log {
    /// Held by whoever writes a record, a root or a generation; true: the last root has been written.
    pub turn: Lock<bool>,
    /// Held by the group commit under way.
    pub group_commit: Lock<()>,
    opened: RefCell<Vec<Pinned>>,
    extra: RefCell<Vec<Entry>>,
    unrecorded: RefCell<Vec<Move>>,
    recorded_at: Cell<u64>,
}

impl Default for Log {
    fn default() -> Log {
        Log {
            turn: Lock::ranked(false, locks::LOG),
            group_commit: Lock::ranked((), locks::GROUP_COMMIT),
            opened: RefCell::default(),
            extra: RefCell::default(),
            unrecorded: RefCell::default(),
            recorded_at: Cell::default(),
        }
    }
}

impl Log {
    /// A segment was made: a record is to say so before one names a stripe of it.
    pub fn opened(&self, segment: Pinned) {
        self.opened.borrow_mut().push(segment);
    }

    /// The segments of one kind that were made since the last call: group commits journal those that hold data,
    /// checkpoints those that hold nodes.
    ///
    /// Crash argument: whoever journals a stripe has journalled its segment before, or does in the same
    /// entries. If either took the other's segments, a group commit could make a stripe durable, and be
    /// acknowledged, while the segment waits in a checkpoint that power then ends: the stripe would be
    /// known, but not where it lies.
    pub fn take_opened(&self, kind: SegmentKind) -> Vec<Pinned> {
        let mut opened = self.opened.borrow_mut();
        let (taken, left) = opened.drain(..).partition(|s| s.kind == kind);
        *opened = left;
        taken
    }

    /// No record had room for these: they are still to be told of.
    pub fn opened_again(&self, segments: Vec<Pinned>) {
        self.opened.borrow_mut().extend(segments);
    }

    /// Of segments for which `gone` holds there is nothing to tell.
    pub fn forget_opened(&self, gone: impl Fn(&Segment) -> bool) {
        self.opened.borrow_mut().retain(|segment| !gone(segment));
    }

    /// A column of a segment was moved: the next group commit says so.
    pub fn moved(&self, of: Move, entry: Entry) {
        self.unrecorded.borrow_mut().push(of);
        self.extra.borrow_mut().push(entry);
    }

    /// Moves that no group commit has taken yet.
    pub fn moves(&self) -> usize {
        self.extra.borrow().len()
    }

    /// Takes the moves that no group commit has taken yet.
    pub fn take_moves(&self) -> Vec<Entry> {
        self.extra.take()
    }

    /// The first `count` moves are durable.
    pub fn moves_recorded(&self, count: usize) {
        self.unrecorded.borrow_mut().drain(..count);
    }

    /// The columns of which no durable record tells the new place.
    pub fn unrecorded(&self) -> Ref<'_, Vec<Move>> {
        self.unrecorded.borrow()
    }

    /// All that clients had written when this many host blocks were is recorded.
    pub fn recorded(&self, host_blocks: u64) {
        self.recorded_at.set(host_blocks);
    }

    /// See [`Log::recorded`].
    pub fn recorded_at(&self) -> u64 {
        self.recorded_at.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::bed;

    #[test]
    fn group_commits_and_checkpoints_take_their_own_segments() {
        let bed = bed(4);
        let log = Log::default();
        log.opened(bed.segment(1, 2, 2));
        assert!(log.take_opened(SegmentKind::Meta).is_empty());
        log.forget_opened(|s| s.number != 1);
        let taken = log.take_opened(SegmentKind::Data);
        assert_eq!(taken.len(), 1);
        assert!(log.take_opened(SegmentKind::Data).is_empty(), "once");
        log.opened_again(taken);
        assert_eq!(log.take_opened(SegmentKind::Data)[0].number, 1);
    }

    #[test]
    fn a_move_is_unrecorded_until_its_record_is_durable() {
        let log = Log::default();
        let entry = |segment| Entry::Unmap {
            tree: 0,
            first: segment,
            count: 1,
            part: (1, 0),
        };
        let of = |segment| Move {
            segment,
            column: 1,
            from: None,
        };
        log.moved(of(3), entry(3));
        let taken = log.take_moves();
        log.moved(of(4), entry(4));
        assert_eq!((taken.len(), log.moves()), (1, 1));
        assert_eq!(*log.unrecorded(), vec![of(3), of(4)]);
        log.moves_recorded(taken.len());
        assert_eq!(*log.unrecorded(), vec![of(4)]);
    }
}
