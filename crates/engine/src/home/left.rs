//! The work that merges leave, and whether each leaves less than the one before.
//!
//! Invariant: cleaning ends. A stripe that is closed before it is full costs room, and so do nodes: what single jobs
//! gain can be less than that, again and again.

use std::cell::Cell;

use ashlar_format::slot::SegmentKind;

use crate::home::Home;

/// So many merges one after another may leave no less to do than before.
const FRUITLESS_MOST: u32 = 12;

/// What a merge has left to do.
#[derive(Debug, Clone, Copy)]
struct Measured {
    /// What clients and members had changed: see [`crate::home::jobs::Seen::changes`].
    changes: (u64, u64, u64),
    /// Missing columns, columns elsewhere, and blocks of devices that segments of data take.
    data: (u64, u64, u64),
    /// Blocks of devices that segments of nodes take: each merge adds some, which renewing takes back later.
    nodes: u64,
}

/// The least that merges have left to do since clients or members changed something, and the merges since that have
/// left no less of anything.
#[derive(Debug, Default)]
pub struct Left {
    least: Cell<Option<Measured>>,
    fruitless: Cell<u32>,
}

impl Left {
    /// A merge has left so much.
    fn note(&self, now: Measured) {
        let before = self
            .least
            .get()
            .filter(|least| least.changes == now.changes);
        let Some(before) = before else {
            self.least.set(Some(now));
            self.fruitless.set(0);
            return;
        };
        let gained = now.data < before.data || now.nodes < before.nodes;
        self.fruitless.set(match gained {
            true => 0,
            false => self.fruitless.get() + 1,
        });
        self.least.set(Some(Measured {
            data: now.data.min(before.data),
            nodes: now.nodes.min(before.nodes),
            ..now
        }));
    }

    /// Whether the last merges have left no less, and nothing has changed since.
    fn is_fruitless(&self, changes: (u64, u64, u64)) -> bool {
        let least = self.least.get();
        least.is_some_and(|l| l.changes == changes) && self.fruitless.get() >= FRUITLESS_MOST
    }

    /// The next merge counts as the first.
    pub(super) fn forget(&self) {
        self.least.set(None);
    }
}

impl Home {
    /// Notes how much a merge has left to do.
    pub(super) fn note_left(&self) {
        self.refresh_index();
        let (missing, elsewhere) = self.space.index().left(&self.plan());
        let (nodes, data) = self.blocks_taken();
        self.space.jobs.left.note(Measured {
            changes: self.seen().changes(),
            data: (missing, elsewhere, data),
            nodes,
        });
    }

    /// Whether the last merges have left no less to do, and nothing has changed since.
    pub(super) fn is_fruitless(&self) -> bool {
        self.space.jobs.left.is_fruitless(self.seen().changes())
    }

    /// Blocks of devices that segments of nodes take, and those of data: of those being filled, what is full.
    fn blocks_taken(&self) -> (u64, u64) {
        let (index, slot) = (self.space.index(), u64::from(self.core.slot_blocks));
        let (nodes, data) = index.held();
        let mut taken = (nodes.columns * slot, data.columns * slot);
        for segment in self.core.pin_unsettled(|s| index.get(s.number).is_none()) {
            let columns = segment.geometry.width() - self.core.missing_columns(&segment);
            let of_slot = if segment.sealed.get() {
                slot
            } else {
                slot * u64::from(segment.next_stripe.get()) / u64::from(segment.geometry.stripes())
            };
            let of_kind = match segment.kind {
                SegmentKind::Meta => &mut taken.0,
                SegmentKind::Data => &mut taken.1,
            };
            *of_kind += columns as u64 * of_slot;
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Merges that leave no less of anything are fruitless after some, and no more once something has changed.
    #[test]
    fn merges_that_leave_no_less_end() {
        let left = Left::default();
        let measured = |changes, data, nodes| Measured {
            changes: (changes, 0, 0),
            data: (0, 0, data),
            nodes,
        };
        left.note(measured(1, 100, 10));
        for merge in 0..FRUITLESS_MOST {
            assert!(!left.is_fruitless((1, 0, 0)), "after {merge}");
            left.note(measured(1, 100, 10 + u64::from(merge)));
        }
        assert!(left.is_fruitless((1, 0, 0)) && !left.is_fruitless((2, 0, 0)));
        left.note(measured(1, 99, 20));
        assert!(!left.is_fruitless((1, 0, 0)), "it has left less data");
        left.note(measured(2, 500, 20));
        left.note(measured(2, 500, 19));
        assert!(!left.is_fruitless((2, 0, 0)));
    }
}
