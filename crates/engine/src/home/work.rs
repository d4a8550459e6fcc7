//! How far background work is, and whether it could still gain anything.
//!
//! Invariant: work that gained nothing [`Rest`]s until something has changed that could let it gain.

use std::collections::BTreeSet;

use ashlar_rt::Nanos;

/// Progress of one kind of work.
#[derive(Debug, Default, Clone)]
pub struct Progress {
    /// `running`, `waiting`, `done`; empty: never ran.
    pub state: &'static str,
    /// Bytes done.
    pub done: u64,
    /// Bytes known to be to do.
    pub total: u64,
    /// When it started.
    pub since: Nanos,
    /// Why it waits.
    pub reason: &'static str,
    /// Bad blocks found.
    pub found: u64,
    /// Of those, tried to heal.
    pub tried: u64,
    /// Healed.
    pub healed: u64,
}

/// Whether work that gained nothing may end: the one notion of it, for every kind of work.
///
/// `seen` is what the work depends on, as it was when a round last gained nothing. As long as it is the
/// same, another round would gain nothing either.
#[derive(Debug)]
pub struct Rest<T> {
    seen: Option<T>,
    /// Rounds one after another that gained nothing.
    rounds: u32,
}

impl<T> Default for Rest<T> {
    fn default() -> Rest<T> {
        Rest {
            seen: None,
            rounds: 0,
        }
    }
}

impl<T: PartialEq> Rest<T> {
    /// A round has ended that began at `seen`.
    pub fn round(&mut self, gained: bool, seen: T) {
        if gained {
            *self = Rest::default();
            return;
        }
        if self.seen.as_ref() != Some(&seen) {
            self.rounds = 0;
        }
        self.seen = Some(seen);
        self.rounds += 1;
    }

    /// Whether `most` rounds have gained nothing, and nothing has changed since.
    pub fn rests(&self, most: u32, now: &T) -> bool {
        self.rounds >= most && self.seen.as_ref() == Some(now)
    }
}

/// What reconstruct depends on.
#[derive(Debug, PartialEq, Eq, Clone)]
pub struct Redundancy {
    pub(crate) generation: u64,
    /// Columns reconstructed, blocks healed, slots gained by the cleaner.
    pub(crate) gains: u64,
    /// What `reconstruct.narrow` says.
    pub(crate) narrow: String,
    /// Segments with missing columns, and the youngest of them.
    pub(crate) short: (usize, u64),
}

/// What the cleaner depends on.
#[derive(Debug, PartialEq, Eq, Clone)]
pub struct Garbage {
    pub(crate) generation: u64,
    /// Blocks written by clients: each may have left a dead one.
    pub(crate) written: u64,
    /// Batches that unmapped something.
    pub(crate) unmapped: u64,
}

/// The background work of an array.
#[derive(Debug, Default)]
pub struct Tasks {
    /// Reconstruct.
    pub reconstruct: Progress,
    /// The cleaner.
    pub clean: Progress,
    /// Healing of single blocks.
    pub heal: Progress,
    /// Whether reconstruct could gain anything.
    pub reconstruct_rest: Rest<Redundancy>,
    /// Slots of each device that metadata may still take where it has full redundancy, as of when reconstruct last
    /// gave a segment a column.
    pub meta_growth: usize,
    /// Whether reconstruct waits for room though what was promised fits: the cleaner may gain it.
    pub wants_room: bool,
    /// Whether the cleaner could gain anything.
    pub clean_rest: Rest<Garbage>,
    /// Whether a round of cleaning is under way.
    pub cleaning: bool,
    /// Segments that the cleaner is emptying, or has emptied, and that the commit after that has not freed yet.
    pub moved: BTreeSet<u64>,
    /// Whether the commit that frees what a round of cleaning has moved is under way.
    pub folding: bool,
    /// The least that segments took after a round of cleaning since this changed, in blocks.
    pub least_taken: Option<(Garbage, u64)>,
    /// Columns reconstructed, blocks healed, rounds in which the cleaner gained slots.
    pub gains: u64,
    /// Batches that unmapped something: what they unmapped can be cleaned.
    pub unmapped: u64,
    /// Whether a volume is being released.
    pub releasing: usize,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn work_rests_until_what_it_depends_on_changes() {
        let mut rest = Rest::default();
        rest.round(false, 1);
        assert!(!rest.rests(2, &1));
        rest.round(false, 1);
        assert!(rest.rests(2, &1));
        assert!(!rest.rests(2, &2), "something changed");
        rest.round(false, 2);
        assert!(!rest.rests(2, &2), "it is tried as often again");
        rest.round(true, 2);
        rest.round(false, 2);
        assert!(!rest.rests(2, &2), "a gain begins anew");
    }
}
