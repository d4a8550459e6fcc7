//! The part of the journal that is still needed: where its records lie, and which records of data hold blocks whose
//! stripes no record names yet.
//!
//! Invariants:
//! - Records stand in the order of the log.
//! - A record of data is needed until every block in it lies in a recorded stripe; and while an import places again
//!   what the data ring had, all of it is (see [`Window::data_tail`]).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};

use ashlar_format::journal::Ring;
use ashlar_format::root::RingPosition;

use crate::journal::Appended;
use crate::journal::recover::Record;

/// A data record that recovery would still need.
#[derive(Debug)]
struct DataRecord {
    sequence: u64,
    /// Position before it.
    position: RingPosition,
    /// Items whose stripe has not been recorded.
    outstanding: usize,
}

/// Which records are needed.
#[derive(Debug, Default)]
pub struct Window {
    data: RefCell<VecDeque<DataRecord>>,
    /// Sequences of records of data that hold blocks of a stripe, by segment and stripe.
    by_stripe: RefCell<BTreeMap<(u64, u32), Vec<u64>>>,
    /// Positions of delta records, to cut the ring at a sequence.
    deltas: RefCell<VecDeque<(u64, RingPosition)>>,
    /// The first sequence of the group commit under way, of which the shards have not been told yet.
    untold: Cell<Option<u64>>,
    /// The oldest data record that recovery is still placing again.
    recovering: Cell<Option<u64>>,
}

impl Window {
    /// Notes where the records that an import found lie in the ring of deltas.
    pub fn note_recovered(&self, records: &[Record]) {
        let deltas = records.iter().filter(|r| r.header.ring == Ring::Delta);
        let positions = deltas.map(|r| (r.header.sequence, r.header.position[0]));
        self.deltas.borrow_mut().extend(positions);
    }

    /// A record of deltas was written.
    pub fn deltas_appended(&self, appended: Appended) {
        let Appended { sequence, position } = appended;
        let mut deltas = self.deltas.borrow_mut();
        assert!(
            deltas
                .back()
                .is_none_or(|(s, p)| *s < sequence && p.count < position.count),
            "records stand in the order of the log"
        );
        deltas.push_back((sequence, position));
    }

    /// A record of data was written, with a block of each of these stripes (segment and stripe).
    pub fn data_appended(&self, appended: Appended, stripes: impl Iterator<Item = (u64, u32)>) {
        let Appended { sequence, position } = appended;
        let mut by_stripe = self.by_stripe.borrow_mut();
        let mut outstanding = 0;
        for stripe in stripes {
            by_stripe.entry(stripe).or_default().push(sequence);
            outstanding += 1;
        }
        let mut data = self.data.borrow_mut();
        assert!(
            data.back()
                .is_none_or(|r| r.sequence < sequence && r.position.count < position.count),
            "records stand in the order of the log"
        );
        data.push_back(DataRecord {
            sequence,
            position,
            outstanding,
        });
    }

    /// A stripe is named by a durable record: what records of data hold of it is no longer needed.
    pub fn stripe_recorded(&self, segment: u64, stripe: u32) {
        let settled = self.by_stripe.borrow_mut().remove(&(segment, stripe));
        for sequence in settled.into_iter().flatten() {
            let mut data = self.data.borrow_mut();
            if let Some(record) = data.iter_mut().find(|r| r.sequence == sequence) {
                record.outstanding -= 1;
            }
        }
    }

    /// Where the needed part of the data ring begins, whose records go on at `end`; `None` while recovery still places
    /// what the ring had.
    ///
    /// Crash argument: while recovery places what the ring had, the ring is all that has it until the group commit of
    /// these stripes is durable; a checkpoint before that must not name a later tail.
    pub fn data_tail(&self, end: RingPosition) -> Option<RingPosition> {
        if self.is_recovering() {
            return None;
        }
        let mut data = self.data.borrow_mut();
        while data.front().is_some_and(|r| r.outstanding == 0) {
            data.pop_front();
        }
        Some(data.front().map_or(end, |r| r.position))
    }

    /// The oldest sequence that a record of data is needed for.
    pub fn oldest_data(&self) -> Option<u64> {
        self.data.borrow().front().map(|r| r.sequence)
    }

    /// The position of the first delta record at or after a sequence, in a ring that goes on at `end`.
    pub fn delta_position(&self, cut: u64, end: RingPosition) -> RingPosition {
        let deltas = self.deltas.borrow();
        let mut needed = deltas.iter().filter(|(sequence, _)| *sequence >= cut);
        needed.next().map_or(end, |(_, position)| *position)
    }

    /// A root is durable that cuts the journal at a sequence.
    pub fn cut(&self, cut: u64) {
        let mut deltas = self.deltas.borrow_mut();
        while deltas.front().is_some_and(|(sequence, _)| *sequence < cut) {
            deltas.pop_front();
        }
    }

    /// A group commit is under way whose records begin at `next`; `None`: the shards have been told of it.
    pub fn set_untold(&self, next: Option<u64>) {
        self.untold.set(next);
    }

    /// One past the last sequence that every shard has been told of, where `next` is the next.
    pub fn applied(&self, next: u64) -> u64 {
        self.untold.get().unwrap_or(next)
    }

    /// Recovery places again what records of data from this one on held; `None`: it is done.
    pub fn set_recovering(&self, oldest: Option<u64>) {
        self.recovering.set(oldest);
    }

    /// Whether it does.
    pub fn is_recovering(&self) -> bool {
        self.recovering.get().is_some()
    }

    /// The oldest record of data that it still places.
    pub fn oldest_recovering(&self) -> Option<u64> {
        self.recovering.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(sequence: u64) -> Appended {
        Appended {
            sequence,
            position: position(sequence),
        }
    }

    fn position(count: u64) -> RingPosition {
        RingPosition {
            count,
            bytes: count * 4096,
        }
    }

    /// The tail stands before the oldest record that has a block in a stripe which no record names.
    #[test]
    fn data_is_needed_until_its_stripes_are_recorded() {
        let window = Window::default();
        window.data_appended(at(1), [(7, 0), (7, 1)].into_iter());
        window.data_appended(at(2), [(7, 1)].into_iter());
        let end = position(9);
        assert_eq!(window.data_tail(end), Some(position(1)));
        window.stripe_recorded(7, 0);
        assert_eq!(window.data_tail(end), Some(position(1)), "stripe 1 is not");
        window.stripe_recorded(7, 2);
        window.stripe_recorded(7, 1);
        assert_eq!(window.data_tail(end), Some(end));
        assert_eq!(window.oldest_data(), None);
    }

    /// A later record whose blocks are all recorded does not let go of an earlier one.
    #[test]
    fn the_tail_stops_at_the_oldest() {
        let window = Window::default();
        window.data_appended(at(1), [(7, 0)].into_iter());
        window.data_appended(at(2), [(7, 1)].into_iter());
        window.stripe_recorded(7, 1);
        assert_eq!(window.data_tail(position(9)), Some(position(1)));
        window.set_recovering(Some(1));
        window.stripe_recorded(7, 0);
        assert_eq!(
            window.data_tail(position(9)),
            None,
            "recovery needs all of it"
        );
        window.set_recovering(None);
        assert_eq!(window.data_tail(position(9)), Some(position(9)));
    }

    #[test]
    fn the_ring_of_deltas_is_cut_at_a_sequence() {
        let window = Window::default();
        for sequence in [3, 5, 8] {
            window.deltas_appended(at(sequence));
        }
        let end = position(9);
        let found = |cut| window.delta_position(cut, end);
        assert_eq!(
            (found(1), found(4), found(5), found(9)),
            (position(3), position(5), position(5), end)
        );
        window.cut(8);
        assert_eq!(window.delta_position(1, end), position(8));
        assert_eq!((window.applied(9), window.is_recovering()), (9, false));
        window.set_untold(Some(6));
        assert_eq!(window.applied(9), 6);
    }
}
