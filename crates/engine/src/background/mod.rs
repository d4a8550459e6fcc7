//! Background work: what runs, how far it is, and whether any of it could still make progress.
//!
//! [`clean`] frees segments that are partly dead ([`victims`]: which; [`nodes`]: those of metadata), [`rebuild`] gives
//! lost columns new slots ([`mod@column`]: how), [`heal`] rewrites single bad blocks. Each is a loop of its own on the
//! home's thread.
//!
//! Invariants:
//! - None of them changes a map; what they write becomes part of the array by a journal record only.
//! - Work that gained nothing ends: it [`Rest`](crate::home::work::Rest)s until something has changed that could let it gain.
//!   What is lost beyond redundancy keeps nothing busy, and nobody waiting.
//! - Whether redundancy is whole (`is_degraded`) is derived from the segments, the journal and the
//!   members, never stored.

mod clean;
mod column;
mod heal;
mod nodes;
mod rebuild;
mod victims;

use std::rc::Rc;

use ashlar_format::root::Epoch;
use ashlar_format::slot::SegmentKind;

use crate::home::Home;
use crate::home::work::{Garbage, Redundancy};
use crate::journal::sets::{losses_left, too_few};
use crate::planted::{self, Bug};
use crate::segment::Segment;
use crate::status::ArrayState;

/// One segment more is worked on at once for so many slots of a device.
const SLOTS_PER_SEGMENT: usize = 128;

impl Home {
    /// Starts the background work.
    pub(crate) fn start_background(self: &Rc<Self>) {
        let rt = self.core.rt.clone();
        let home = self.clone();
        rt.spawn(async move { home.clean_forever().await });
        let home = self.clone();
        rt.spawn(async move { home.reconstruct_forever().await });
        let home = self.clone();
        rt.spawn(async move { home.heal_forever().await });
        let home = self.clone();
        rt.spawn(async move { home.commit_now_and_then().await });
    }

    /// Folds what lies in the journal even if nothing presses, so that recovery stays short and what was
    /// trimmed or overwritten is free.
    async fn commit_now_and_then(self: Rc<Self>) {
        let (mut last, mut folded) = (0, (0, 0));
        while !self.core.closed.get() {
            self.core.rt.sleep(30 * ashlar_rt::SECOND).await;
            // Any write or trim since; or records of the movers. A commit's own are no reason for another.
            let written = self.core.amplification.0.get();
            let seen = (written, self.tasks.borrow().unmapped);
            let due = seen != folded || self.journal.next() > last + 4;
            if due && !self.core.closed.get() {
                self.fold().await;
                (last, folded) = (self.journal.next(), seen);
            }
        }
    }

    /// On how many segments the cleaner or reconstruct works at once, at most `most`: where slots are few, on few, since
    /// how much room is left is looked at for each as it begins.
    pub(super) fn at_once(&self, most: usize) -> usize {
        let slots = self.core.members.iter().map(|m| m.geometry.slots as usize);
        (slots.min().unwrap_or(0) / SLOTS_PER_SEGMENT).clamp(1, most)
    }

    /// Whether some segment has less redundancy than its layout wants.
    pub(crate) fn is_degraded(&self) -> bool {
        let any = |short: &dyn Fn(&Segment) -> bool| {
            let segments = self.core.segments.borrow();
            segments.values().any(|s| short(s))
        };
        let journal = self.journal_is_short() && !planted::on(Bug::OptimalTooSoon);
        let lost = journal || self.unsettled() || any(&|s| self.redundancy_lost(s) > 0);
        let degraded = self.core.maybe_degraded.get() && lost;
        // Segments change only for the worse by a failure or by being made short: both set the mark. One that
        // was made short counts only once it holds something, and keeps the mark until then.
        let failing = !self.core.failing.borrow().is_empty();
        let marked = degraded
            || failing
            || self.core.maybe_degraded.get() && any(&|s| self.columns_lacking(s) > 0);
        self.core.maybe_degraded.set(marked);
        degraded
    }

    /// Whether redundancy that is there in memory is not durable yet: a power cut would take it back.
    pub(crate) fn unsettled(&self) -> bool {
        let commit = self.core.before_commit.get();
        let short = commit.is_some_and(|(short, _)| short);
        self.core.maybe_degraded.get() && (short || !self.unrecorded.borrow().is_empty())
    }

    /// Whether the journal still needs records of an epoch whose device set has lost a member: what they
    /// hold has less redundancy until a commit has folded it.
    pub(crate) fn journal_is_short(&self) -> bool {
        let online = |index: &u16| self.core.member(*index).is_online();
        let out: Vec<u16> = self
            .core
            .members
            .iter()
            .map(|m| m.index)
            .filter(|i| !online(i))
            .collect();
        self.root
            .borrow()
            .epochs
            .iter()
            .any(|e| out.iter().any(|i| !e.excluded.contains(i)))
    }

    /// Whether the array is degraded, and how many more devices may be lost, for a commit that begins now.
    pub(crate) fn before_commit(&self) -> (bool, usize) {
        let failing = self.core.failing.borrow().len();
        if self.is_degraded() {
            (true, self.losses_left().saturating_sub(failing))
        } else {
            (false, usize::from(self.shape.m).saturating_sub(failing))
        }
    }

    /// How many more devices, whichever they are, may be lost at once, also if the power goes with them.
    pub(crate) fn losses_left(&self) -> usize {
        let segments = self.core.segments.borrow();
        let holding = segments.values().filter(|s| !self.holds_nothing(s));
        let left =
            holding.map(|s| usize::from(s.geometry.m).saturating_sub(self.missing_if_cut(s)));
        let commit = self.core.before_commit.get().map(|(_, losses)| losses);
        let others = [usize::from(self.shape.m), self.losses_left_to_journal()];
        left.chain(commit).chain(others).min().unwrap_or(0)
    }

    /// How many columns of a segment would be missing if the power went: also those whose new places no record
    /// tells yet.
    pub(crate) fn missing_if_cut(&self, segment: &Segment) -> usize {
        let unrecorded = self.unrecorded.borrow();
        let moved = unrecorded.iter().filter(|s| **s == segment.number).count();
        self.core.missing_columns(segment) + moved
    }

    /// How many more devices, whichever they are, the journal can do without.
    pub(crate) fn losses_left_to_journal(&self) -> usize {
        let gone = |i: u16| !self.core.member(i).is_online();
        let left = |e: &Epoch| losses_left(&self.shape, &self.core.domains, e, gone);
        let root = self.root.borrow();
        root.epochs.iter().map(left).min().unwrap_or(usize::MAX)
    }

    /// Whether the journal could not be read without these members, where `others` are gone as well: too many of an
    /// epoch that is still needed are.
    pub(crate) fn journal_needs(&self, members: &[u16], others: &[u16]) -> bool {
        let gone = |i: u16| {
            members.contains(&i) || others.contains(&i) || !self.core.member(i).is_online()
        };
        let root = self.root.borrow();
        let mut epochs = root.epochs.iter();
        let domains = &self.core.domains;
        epochs.any(|e| {
            let holds = members.iter().any(|index| !e.excluded.contains(index));
            holds && too_few(&self.shape, domains, e, gone).is_some()
        })
    }

    /// By how much a segment's redundancy is below what its kind should have. One that holds nothing lacks
    /// nothing.
    pub(crate) fn redundancy_lost(&self, segment: &Segment) -> usize {
        if self.holds_nothing(segment) {
            return 0;
        }
        self.columns_lacking(segment)
    }

    /// Whether a segment holds nothing, and will hold nothing of a stripe begun. What is not folded yet is held
    /// by those that have the segment pinned.
    pub(crate) fn holds_nothing(&self, segment: &Segment) -> bool {
        let stripes = segment.geometry.stripes();
        let full_and_folded = segment.recorded.get() == stripes && segment.is_unpinned();
        let untouched = segment.next_stripe.get() == 0;
        segment.live.borrow().is_empty() && (untouched || full_and_folded)
    }

    /// By how much fewer parity columns a segment has than its kind should, whatever it holds.
    pub(crate) fn columns_lacking(&self, segment: &Segment) -> usize {
        let wanted = match segment.kind {
            SegmentKind::Data => usize::from(self.shape.m),
            SegmentKind::Meta => usize::from(self.meta_m).min(self.shape.most_lost()),
        };
        let left =
            usize::from(segment.geometry.m).saturating_sub(self.core.missing_columns(segment));
        wanted.saturating_sub(left)
    }

    /// Whether nothing of these kinds runs or could make progress.
    pub(crate) fn is_idle(&self, kinds: &[&str]) -> bool {
        let wants = |kind: &str| kinds.is_empty() || kinds.contains(&kind);
        if self.waiting_quorum.get().is_some() {
            return true; // everything waits for the operator
        }
        if wants("heal") && !self.core.heals.borrow().is_empty() {
            return false;
        }
        if wants("clean")
            && self.low_on_slots()
            && self.cleaner_can_gain()
            && self.tasks.borrow().clean.state == "running"
        {
            return false;
        }
        if wants("reconstruct") {
            let running = self.tasks.borrow().reconstruct.state == "running";
            let waits = self.tasks.borrow().wants_room && self.cleaner_can_gain();
            let due = self.is_degraded() && (!self.reconstruct_rests() || waits);
            return !running && !due && self.core.failing.borrow().is_empty();
        }
        true
    }

    /// Why something of these kinds is not done though none of it can go on without the operator; `None` if
    /// nothing is left to do, or the rest goes on by itself.
    pub(crate) fn stuck(&self, kinds: &[&str], read_only: bool) -> Option<String> {
        if let Some((stored, counted)) = self.waiting_quorum.get() {
            return Some(format!(
                "only {stored} of {counted} devices are left to agree on going on: writes wait, and all other work"
            ));
        }
        let wants = kinds.is_empty() || kinds.contains(&"reconstruct");
        if !wants || !self.is_idle(&["reconstruct"]) && !read_only || !self.is_degraded() {
            return None;
        }
        Some(if read_only {
            "nothing is rebuilt while it is imported read-only".to_string()
        } else if self.state() == ArrayState::Failed {
            "data is lost beyond its redundancy".to_string()
        } else {
            self.why_waiting().to_string()
        })
    }

    /// What reconstruct depends on, now.
    fn redundancy(&self) -> Redundancy {
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

    /// What the cleaner depends on, now.
    fn garbage(&self) -> Garbage {
        Garbage {
            generation: self.superblock.borrow().generation.number,
            written: self.core.amplification.0.get(),
            unmapped: self.tasks.borrow().unmapped,
        }
    }

    /// Whether reconstruct has done what it can, and the room that it waits for, if it does, has not come.
    fn reconstruct_rests(&self) -> bool {
        let now = self.redundancy();
        let tasks = self.tasks.borrow();
        let room_came = tasks.wants_room && !self.low_on_slots();
        !room_came && tasks.reconstruct_rest.rests(1, &now)
    }
}
