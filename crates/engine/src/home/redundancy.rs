//! Redundancy: whether it is whole, and how many more devices the array can do without.
//!
//! Invariant: derived from the segments, the journal and the members, never stored.

use std::rc::Rc;

use ashlar_format::root::Epoch;
use ashlar_format::slot::SegmentKind;

use crate::home::Home;
use crate::journal::sets::{losses_left, too_few};
use crate::planted::{self, Bug};
use crate::segment::Segment;
use crate::status::ArrayState;

impl Home {
    /// Whether some segment has less redundancy than its layout wants.
    pub(crate) fn is_degraded(&self) -> bool {
        // A device that is to be taken out has set the mark.
        if !self.core.failing.maybe_degraded() {
            return false;
        }
        let any = |short: &dyn Fn(&Segment) -> bool| {
            let segments = self.core.segments.borrow();
            segments.values().any(|s| short(s))
        };
        let journal = self.journal_is_short() && !planted::on(Bug::OptimalTooSoon);
        let degraded = journal || self.unsettled() || any(&|s| self.redundancy_lost(s) > 0);
        // Segments change only for the worse by a failure or by being made short: both set the mark. One that
        // was made short counts only once it holds something, and keeps the mark until then.
        let failing = !self.core.failing.is_empty();
        let marked = degraded || failing || any(&|s| self.columns_lacking(s) > 0);
        self.core.failing.set_maybe_degraded(marked);
        degraded
    }

    /// Whether redundancy that is there in memory is not durable yet: a power cut would take it back.
    pub(crate) fn unsettled(&self) -> bool {
        let commit = self.core.failing.before_commit();
        let short = commit.is_some_and(|(short, _)| short);
        self.core.failing.maybe_degraded() && (short || !self.log.unrecorded().is_empty())
    }

    /// Whether the journal still needs records of an epoch whose device set has lost a member: what they
    /// hold has less redundancy until a commit has folded it.
    pub(crate) fn journal_is_short(&self) -> bool {
        let online = |index: &u16| self.core.member(*index).is_read();
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
        let failing = self.core.failing.count();
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
        let left = holding.map(|s| self.redundancy_if_cut(s).unwrap_or(0));
        let commit = self.core.failing.before_commit().map(|(_, losses)| losses);
        let others = [usize::from(self.shape.m), self.losses_left_to_journal()];
        left.chain(commit).chain(others).min().unwrap_or(0)
    }

    /// How many more columns of a segment can be lost if the power goes with them: columns whose new places no record
    /// tells yet are missing then.
    fn redundancy_if_cut(&self, segment: &Segment) -> Option<usize> {
        let unrecorded = self.log.unrecorded();
        let moved = |column| unrecorded.contains(&(segment.number, column));
        segment.survives(|c| moved(c) || !self.core.column_usable(segment, c))
    }

    /// How many more devices, whichever they are, the journal can do without.
    pub(crate) fn losses_left_to_journal(&self) -> usize {
        let gone = |i: u16| !self.core.member(i).is_read();
        let left = |e: &Epoch| losses_left(&self.shape, &self.core.domains, e, gone);
        let root = self.root.borrow();
        root.epochs.iter().map(left).min().unwrap_or(usize::MAX)
    }

    /// Whether the journal could not be read without these members, where `others` are gone as well: too many of an
    /// epoch that is still needed are.
    pub(crate) fn journal_needs(&self, members: &[u16], others: &[u16]) -> bool {
        let gone =
            |i: u16| members.contains(&i) || others.contains(&i) || !self.core.member(i).is_read();
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
            SegmentKind::Meta => self.metadata_m().min(self.shape.most_lost()),
        };
        wanted.saturating_sub(self.core.redundancy(segment).unwrap_or(0))
    }

    /// How the array is: the worst of its live segments, and of what only the journal has.
    pub(crate) fn state(&self) -> ArrayState {
        let segments = self.core.segments.borrow();
        let holding = || segments.values().filter(|s| !self.holds_nothing(s));
        let lost = |s: &Rc<Segment>| self.core.redundancy(s).is_none();
        let short = self.journal_is_short() || self.unsettled();
        if !self.core.bad.lost.borrow().is_empty() || holding().any(lost) {
            ArrayState::Failed
        } else if !short && holding().all(|s| self.columns_lacking(s) == 0) {
            ArrayState::Optimal
        } else if self.shape.m > 0 && self.losses_left() == 0 {
            ArrayState::Critical
        } else {
            ArrayState::Degraded
        }
    }
}
