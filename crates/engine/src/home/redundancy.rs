//! Redundancy: whether it is full, and how many more devices may be lost.
//!
//! Invariant: derived from the segments, the journal and the members, never stored.

use ashlar_format::root::Epoch;
use ashlar_format::slot::SegmentKind;
use ashlar_space::plan::nodes_survive;
use ashlar_space::topology::Area;

use crate::home::Home;
use crate::home::log::Move;
use crate::journal::sets::{losses_left, too_few};
use crate::planted::{self, Bug};
use crate::segment::Segment;
use crate::status::ArrayState;

/// With fewer segments, builds for tests count what segments can do without in both ways.
const CHECKED: usize = 10_000;

impl Home {
    /// Whether some segment has less redundancy than its layout wants.
    pub(crate) fn is_degraded(&self) -> bool {
        // A device that is to be taken out has set the mark.
        if !self.core.failing.maybe_degraded() {
            return false;
        }
        let journal = self.journal_is_short() && !planted::on(Bug::OptimalTooSoon);
        let degraded = journal || self.unsettled() || self.lacks(self.least_redundancy());
        // Segments change only for the worse by a failure or by being made short: both set the mark. One that
        // was made short counts only once it holds something, and keeps the mark until then.
        let failing = !self.core.failing.is_empty();
        let lacking = |s: &Segment| self.columns_lacking(s) > 0;
        let marked = degraded || failing || !self.core.pin_unsettled(lacking).is_empty();
        self.core.failing.set_maybe_degraded(marked);
        degraded
    }

    /// Devices that may be lost, whichever they are, so that everything is still there: of nodes, and of data. `None`:
    /// there is none; less than 0: something is lost.
    ///
    /// What is settled is counted by the index; a segment that holds nothing is not settled.
    fn least_redundancy(&self) -> [Option<i32>; 2] {
        self.refresh_index();
        let mut least = [None; 2];
        let mut note = |kind: SegmentKind, redundancy: i32| {
            let of = &mut least[usize::from(kind == SegmentKind::Data)];
            *of = Some(of.map_or(redundancy, |least: i32| least.min(redundancy)));
        };
        for (area, variant) in self.space.index().holding() {
            let kind = match area {
                Area::Nodes => SegmentKind::Meta,
                Area::Group(_) => SegmentKind::Data,
            };
            note(kind, variant.redundancy.max(-1));
        }
        let left = |s: &Segment| self.core.redundancy(s).map_or(-1, |left| left as i32);
        for segment in self.core.pin_unsettled(|s| !self.holds_nothing(s)) {
            note(segment.kind, left(&segment));
        }
        let few = self.core.segments.borrow().len() < CHECKED;
        debug_assert!(
            !few || least == self.least_of_all(),
            "nothing about a settled segment changes"
        );
        least
    }

    /// The same, counted by looking at all segments.
    fn least_of_all(&self) -> [Option<i32>; 2] {
        let segments = self.core.segments.borrow();
        [SegmentKind::Meta, SegmentKind::Data].map(|kind| {
            let holding = segments
                .values()
                .filter(|s| s.kind == kind && !self.holds_nothing(s));
            let left = holding.map(|s| self.core.redundancy(s).map_or(-1, |left| left as i32));
            left.min()
        })
    }

    /// Whether a segment that holds something has fewer parity columns than its kind should, where nodes and data can
    /// do without so many devices.
    fn lacks(&self, [nodes, data]: [Option<i32>; 2]) -> bool {
        let short = |least: Option<i32>, kind| {
            least.is_some_and(|left| left.max(0) < self.columns_wanted(kind) as i32)
        };
        short(nodes, SegmentKind::Meta) || short(data, SegmentKind::Data)
    }

    /// Whether redundancy that is there in memory is not durable yet: a power cut would take it back.
    pub(crate) fn unsettled(&self) -> bool {
        let checkpoint = self.core.failing.before_checkpoint();
        let short = checkpoint.is_some_and(|(short, _)| short);
        self.core.failing.maybe_degraded()
            && (short || self.log.unrecorded().iter().any(|m| self.is_lost_if_cut(m)))
    }

    /// Whether the journal still needs records of an epoch whose device set has lost a member: what they
    /// hold has less redundancy until a checkpoint has merged it.
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

    /// Whether the array is degraded, and how many more devices may be lost, for a checkpoint that begins now.
    pub(crate) fn before_checkpoint(&self) -> (bool, usize) {
        let failing = self.core.failing.count();
        if self.is_degraded() {
            (true, self.losses_left().saturating_sub(failing))
        } else {
            (
                false,
                usize::from(self.topology().shape().m).saturating_sub(failing),
            )
        }
    }

    /// How many more devices, whichever they are, may be lost at once, also if the power goes with them.
    pub(crate) fn losses_left(&self) -> usize {
        let least = self.least_redundancy().into_iter().flatten().min();
        let least = least.map(|left| usize::try_from(left).unwrap_or(0));
        let unrecorded = self.log.unrecorded();
        let segments = self.core.segments.borrow();
        let moved = unrecorded
            .iter()
            .filter(|m| self.is_lost_if_cut(m))
            .filter_map(|m| segments.get(&m.segment));
        let moved = moved.filter(|s| !self.holds_nothing(s));
        let left = moved.map(|s| self.redundancy_if_cut(s).unwrap_or(0));
        let checkpoint = self
            .core
            .failing
            .before_checkpoint()
            .map(|(_, losses)| losses);
        let others = [
            usize::from(self.topology().shape().m),
            self.losses_left_to_journal(),
        ];
        let left = left.chain(least).chain(checkpoint).chain(others);
        left.min().unwrap_or(0)
    }

    /// Whether a power cut would leave a moved column missing: it was, or its old place is not read any more. Else it is
    /// there again: the tables that name the old place stand until a root whose records name the new one.
    fn is_lost_if_cut(&self, of: &Move) -> bool {
        let stands = |(device, life): (u16, u32)| {
            let member = self.core.member(device);
            member.is_read() && member.slots.life() == life
        };
        !of.from.is_some_and(stands)
    }

    /// How many more columns of a segment can be lost if the power goes with them: columns whose new places no record
    /// tells yet are missing then, if they were before.
    fn redundancy_if_cut(&self, segment: &Segment) -> Option<usize> {
        let unrecorded = self.log.unrecorded();
        let moved = |column| {
            let is = |m: &&Move| (m.segment, m.column) == (segment.number, column);
            unrecorded.iter().filter(is).any(|m| self.is_lost_if_cut(m))
        };
        segment.survives(|c| moved(c) || !self.core.column_usable(segment, c))
    }

    /// How many more devices, whichever they are, the journal can do without.
    pub(crate) fn losses_left_to_journal(&self) -> usize {
        let gone = |i: u16| !self.core.member(i).is_read();
        let topology = self.topology();
        let left = |e: &Epoch| {
            let domains = self.core.domains_of(e);
            losses_left(topology.shape(), &domains, e, gone)
        };
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
        let topology = self.topology();
        epochs.any(|e| {
            let holds = members.iter().any(|index| !e.excluded.contains(index));
            let domains = self.core.domains_of(e);
            holds && too_few(topology.shape(), &domains, e, gone).is_some()
        })
    }

    /// Whether a segment holds nothing, and will hold nothing of a stripe begun. What is not merged yet is held
    /// by those that have the segment pinned.
    pub(crate) fn holds_nothing(&self, segment: &Segment) -> bool {
        let stripes = segment.geometry.stripes();
        let full_and_merged = segment.recorded.get() == stripes && segment.is_unpinned();
        let untouched = segment.next_stripe.get() == 0;
        segment.live.borrow().is_empty() && (untouched || full_and_merged)
    }

    /// By how much fewer parity columns a segment has than its kind should, whatever it holds.
    pub(crate) fn columns_lacking(&self, segment: &Segment) -> usize {
        let wanted = self.columns_wanted(segment.kind);
        wanted.saturating_sub(self.core.redundancy(segment).unwrap_or(0))
    }

    /// Parity columns that segments of this kind should have.
    fn columns_wanted(&self, kind: SegmentKind) -> usize {
        let topology = self.topology();
        match kind {
            SegmentKind::Data => usize::from(topology.shape().m),
            SegmentKind::Meta => self.nodes_survive().min(topology.shape().most_lost()),
        }
    }

    /// How many lost devices nodes survive with all devices there.
    fn nodes_survive(&self) -> usize {
        let topology = self.topology();
        let devices = topology.shape().devices();
        nodes_survive(topology.shape()).min(devices.saturating_sub(1))
    }

    /// How the array is: the worst of its live segments, and of what only the journal has.
    pub(crate) fn state(&self) -> ArrayState {
        let least = self.least_redundancy();
        let lost = least.into_iter().flatten().any(|left| left < 0);
        let short = self.journal_is_short() || self.unsettled();
        if !self.core.bad.lost.borrow().is_empty() || lost {
            ArrayState::Failed
        } else if !short && !self.lacks(least) {
            ArrayState::Optimal
        } else if self.topology().shape().m > 0 && self.losses_left() == 0 {
            ArrayState::Critical
        } else {
            ArrayState::Degraded
        }
    }
}
