//! How far background work is, and whether it could still gain anything.
//!
//! Invariant: work that gained nothing [`Rest`]s until something has changed that could let it gain.

use std::collections::BTreeSet;
use std::rc::Rc;

use ashlar_rt::Nanos;

use crate::home::Home;
use crate::segment::Segment;
use crate::status::{TaskState, Work};

/// Rounds of cleaning without any gain after which clients are told that there is no space.
const FRUITLESS_MOST: u32 = 12;

/// Progress of one kind of work.
#[derive(Debug, Default, Clone)]
pub struct Progress {
    /// How it is.
    pub state: TaskState,
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

impl Home {
    /// Whether some device is short of free slots; so it is, too, if columns that were lost wait for what garbage takes.
    pub(crate) fn low_on_slots(&self) -> bool {
        let need = self.metadata_need();
        let wants_room = self.tasks.borrow().wants_room;
        let kept = wants_room.then(|| self.kept_from_lost());
        let mut online = self.core.members.iter().filter(|m| m.takes_slots());
        online.any(|m| {
            let below = self.clean_below(m, need);
            m.free_slots() < kept.as_ref().map_or(below, |kept| below.max(kept(m) + 1))
        })
    }

    /// Whether the cleaner could free anything: then a client may wait instead of getting ENOSPC.
    pub(crate) fn cleaner_can_gain(&self) -> bool {
        if self.tasks.borrow().cleaning || self.tasks.borrow().folding {
            return true;
        }
        if self.cleaner_rests() {
            return false;
        }
        !self.pick_victims(None, 1).is_empty()
            || self.pending_frees()
            || !self.reserved.renewed.borrow().is_empty()
            || self.core.meters.host.get() != self.commits.folded_at.get()
    }

    /// Whether cleaning has gained nothing for so long that it ended, and nothing was overwritten since.
    pub(crate) fn cleaner_rests(&self) -> bool {
        let now = self.garbage();
        self.tasks.borrow().clean_rest.rests(FRUITLESS_MOST, &now)
    }

    /// Segments that are dead already and only wait for a commit, or blocks that deltas have replaced.
    fn pending_frees(&self) -> bool {
        let segments = self.core.segments.borrow();
        segments
            .values()
            .any(|s| s.live.borrow().is_empty() && s.recorded.get() > 0 && s.is_unpinned())
    }

    /// What the cleaner depends on, now.
    pub(crate) fn garbage(&self) -> Garbage {
        Garbage {
            generation: self.superblock.borrow().generation.number,
            written: self.core.meters.host.get(),
            unmapped: self.tasks.borrow().unmapped,
        }
    }

    /// What reconstruct depends on, now.
    pub(crate) fn redundancy(&self) -> Redundancy {
        let segments = self.core.segments.borrow();
        let missing = |s: &&Rc<Segment>| self.core.missing_columns(s) > 0;
        let short: Vec<u64> = segments
            .values()
            .filter(missing)
            .map(|s| s.number)
            .collect();
        Redundancy {
            generation: self.superblock.borrow().generation.number,
            gains: self.tasks.borrow().gains,
            narrow: self.narrow_policy(),
            short: (short.len(), short.last().copied().unwrap_or(0)),
        }
    }

    /// Whether reconstruct has done what it can, and the room that it waits for, if it does, has not come.
    pub(crate) fn reconstruct_rests(&self) -> bool {
        let now = self.redundancy();
        let tasks = self.tasks.borrow();
        let room_came = tasks.wants_room && !self.low_on_slots();
        !room_came && tasks.reconstruct_rest.rests(1, &now)
    }
}

impl Tasks {
    /// How far work of one kind is.
    pub fn progress(&self, work: Work) -> &Progress {
        match work {
            Work::Rebuild => &self.reconstruct,
            Work::Clean => &self.clean,
            Work::Repair => &self.heal,
        }
    }
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
