//! The state that every part of the engine shares: the members, the table of segments, codes, keys, events.
//!
//! Invariants: the segment table and the members' slots are changed by the home only; shards read
//! them. (With a thread a shard, each gets a replica that the home's changes are sent to.)

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ashlar_codec::Code;
use ashlar_format::SegmentNumber;
use ashlar_format::root::Epoch;
use ashlar_rt::{Gate, Rt, Slice};
use ashlar_space::domains::Domains;

use crate::counters::{Traffic, add};
use crate::members::beat::Beat;
use crate::members::closed::Closed;
use crate::members::events::Events;
use crate::members::failing::Failing;
use crate::members::sent::Lateness;
use crate::members::{Member, Members};
use crate::phases::Meters;
use crate::segment::bad::{Bad, BadBlock, Found};
use crate::segment::coder::{Accelerators, Coder};
use crate::segment::identity::Identity;
use crate::segment::{Pinned, Segment};
use crate::space::thin::Thin;

/// Shared state of an array.
pub struct Core {
    /// The runtime.
    pub rt: Rt,
    /// The array's identity, and the key of its digests.
    pub identity: Identity,
    /// Blocks a slot.
    pub slot_blocks: u32,
    /// Every member.
    pub members: Members,
    /// Those that failed and are to be taken out.
    pub failing: Failing,
    /// Every segment.
    pub segments: RefCell<BTreeMap<SegmentNumber, Rc<Segment>>>,
    /// Those that are not sealed and merged, that need the journal, or that have changed: whoever keeps books of
    /// segments looks at them again.
    pub unsettled: RefCell<BTreeSet<SegmentNumber>>,
    /// What computes parity and lost columns.
    pub coder: Coder,
    /// What happened.
    pub events: Rc<Events>,
    /// Whether the array has stopped: nothing is accepted any more.
    pub closed: Rc<Closed>,
    /// Opens when a segment, a member or free space changes: what background work waits for.
    pub progress: Gate,
    /// What cannot be read.
    pub bad: Bad,
    /// How many nodes the free slots take, as of the last checkpoint and the last segment of data.
    pub meta_room: Cell<usize>,
    /// The room for thin volumes.
    pub thin: Thin,
    /// How much was written, and where the time goes.
    pub meters: Meters,
    /// Requests of clients under way.
    pub clients: Traffic,
    /// By which other hosts see that the array is in use.
    pub beat: Rc<Beat>,
    /// Who is late.
    pub lateness: Rc<Lateness>,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("members", &self.members.len())
            .finish_non_exhaustive()
    }
}

impl Core {
    /// The failure domains that an epoch of the journal is judged by: those that its records were laid by, with each
    /// device that has moved since alone.
    pub fn domains_of(&self, epoch: &Epoch) -> Domains {
        let label = |m: &Member| match m.domain_since() > epoch.number {
            true => String::new(),
            false => m.domain(),
        };
        let labels: Vec<String> = self.members.iter().map(label).collect();
        Domains::new(labels.iter().map(String::as_str))
    }

    /// The state of an array with these members.
    pub fn new(
        rt: &Rt,
        array: [u8; 16],
        key: [u8; 32],
        slot_blocks: u32,
        members: Vec<Member>,
        accelerators: &Accelerators,
        beat: &Rc<Beat>,
    ) -> Rc<Core> {
        let closed = Rc::new(Closed::default());
        let lateness = Rc::new(Lateness::default());
        members.iter().for_each(|m| m.sent.tell(&lateness));
        Rc::new(Core {
            rt: rt.clone(),
            identity: Identity::new(array, key),
            slot_blocks,
            members: members.into_iter().map(Box::new).collect(),
            failing: Failing::default(),
            segments: RefCell::default(),
            unsettled: RefCell::default(),
            coder: Coder::new(accelerators),
            events: Events::new(rt, &closed),
            closed,
            progress: Gate::default(),
            bad: Bad::default(),
            meta_room: Cell::new(usize::MAX),
            thin: Thin::default(), // counted by the first checkpoint that is asked for it
            meters: Meters::default(),
            clients: Traffic::default(),
            beat: beat.clone(),
            lateness,
        })
    }

    /// A member by index.
    pub fn member(&self, index: u16) -> &Member {
        &self.members[usize::from(index)]
    }

    /// The members that are used so, by index.
    fn members_where(&self, used: impl Fn(&Member) -> bool) -> Vec<u16> {
        let members = self.members.iter().filter(|m| used(m));
        members.map(|m| m.index).collect()
    }

    /// Indexes of the members that are read.
    pub fn readable(&self) -> Vec<u16> {
        self.members_where(Member::is_read)
    }

    /// Indexes of the members that are written.
    pub fn written(&self) -> Vec<u16> {
        self.members_where(Member::is_written)
    }

    /// Indexes of the members that hold roots and records of new epochs.
    pub fn journalling(&self) -> Vec<u16> {
        self.members_where(Member::journals)
    }

    /// Indexes of the members that must agree on a generation.
    pub fn counted(&self) -> Vec<u16> {
        self.members_where(Member::is_counted)
    }

    /// Indexes of the members that new columns are placed on.
    pub fn taking_slots(&self) -> Vec<u16> {
        self.members_where(Member::takes_slots)
    }

    /// A segment by number.
    pub fn segment(&self, number: SegmentNumber) -> Option<Pinned> {
        self.segments.borrow().get(&number).map(Segment::pin)
    }

    /// The segments for which `wanted` holds, in the order of their numbers.
    pub fn pin_where(&self, wanted: impl Fn(&Segment) -> bool) -> Vec<Pinned> {
        let segments = self.segments.borrow();
        let wanted = segments.values().filter(|segment| wanted(segment));
        wanted.map(Segment::pin).collect()
    }

    /// Of the segments that are open, or held, or that the journal is needed for, those for which `wanted` holds, in
    /// the order of their numbers: the others are settled, and nothing of this changes about them.
    pub fn pin_unsettled(&self, wanted: impl Fn(&Segment) -> bool) -> Vec<Pinned> {
        let (segments, unsettled) = (self.segments.borrow(), self.unsettled.borrow());
        let unsettled = unsettled.iter().filter_map(|number| segments.get(number));
        let wanted = unsettled.filter(|segment| wanted(segment));
        wanted.map(|segment| segment.pin()).collect()
    }

    /// Adds a segment to the table.
    pub fn add_segment(&self, segment: &Pinned) {
        self.segments
            .borrow_mut()
            .insert(segment.number, segment.entry());
        self.unsettled.borrow_mut().insert(segment.number);
    }

    /// The code of a segment.
    pub fn code(&self, segment: &Segment) -> Code {
        self.coder.code(segment)
    }

    /// Whether column `column` of a segment can be read and written.
    pub fn column_usable(&self, segment: &Segment, column: usize) -> bool {
        let place = segment.columns.borrow()[column];
        place.is_placed() && self.member(place.device).is_read()
    }

    /// The columns of a segment that are missing.
    pub fn missing<'a>(&'a self, segment: &'a Segment) -> impl Iterator<Item = usize> + 'a {
        (0..segment.geometry.width()).filter(|c| !self.column_usable(segment, *c))
    }

    /// How many columns of a segment are missing.
    pub fn missing_columns(&self, segment: &Segment) -> usize {
        self.missing(segment).count()
    }

    /// Whether any column of a segment that holds something is missing.
    pub fn is_missing_columns(&self) -> bool {
        let segments = self.segments.borrow();
        let mut held = segments.values().filter(|s| !s.live.borrow().is_empty());
        held.any(|s| self.missing_columns(s) > 0)
    }

    /// How many more columns of a segment can be lost, whichever they are; `None`: too many are missing.
    pub fn redundancy(&self, segment: &Segment) -> Option<usize> {
        segment.survives(|column| !self.column_usable(segment, column))
    }

    /// Whether a column that was written is missing (not one that never had a slot).
    pub fn has_lost_column(&self, segment: &Segment) -> bool {
        let columns = segment.columns.borrow();
        let mut placed = columns.iter().filter(|c| c.is_placed());
        placed.any(|c| !self.member(c.device).is_read())
    }

    /// Asks for a member to be taken out, after a failed write, flush or a device that is gone.
    pub fn report_failed(&self, member: u16) {
        self.failing
            .report(member, self.member(member).is_counted());
    }

    /// Writes to a member; one that cannot is reported. Whether it is written: what is in the device's own memory may
    /// still be lost.
    pub async fn write(&self, member: u16, offset: u64, bytes: Slice) -> bool {
        let written = self.member(member).write(offset, vec![bytes]).await.is_ok();
        if !written {
            self.report_failed(member);
        }
        written
    }

    /// Writes to a member and flushes it; one that cannot is reported. Whether what was written would survive a power
    /// cut.
    pub async fn write_durably(&self, member: u16, offset: u64, bytes: Slice) -> bool {
        if !self.write(member, offset, bytes).await {
            return false;
        }
        let flushed = self.member(member).flush().await.is_ok();
        if !flushed {
            self.report_failed(member);
        }
        flushed
    }

    /// Notes a bad block of a column that is otherwise in use: counted against the device the first time, wrong bytes as
    /// such, and repaired in the background.
    pub fn report_bad(self: &Rc<Self>, device: u16, block: BadBlock, found: Found) {
        if self.failing.is_leaving(device) {
            return; // what was written without it is not there, and its columns are missing soon
        }
        // Of a device that does not answer nothing is known.
        if found == Found::Wrong || self.member(device).answers() {
            self.bad.tell(block, device, found);
        }
        if self.bad.repairs.borrow().knows(&block) {
            return;
        }
        if self.bad.repairs.borrow_mut().add(block, found) {
            let what = match found {
                Found::Unreadable => "it cannot be read",
                Found::Wrong => {
                    add(&self.member(device).counters.digest_errors, 1);
                    "its bytes are wrong"
                }
            };
            let text = format!(
                "device {device}: {block} is bad: {what}; reads use the other devices, and it will be repaired"
            );
            self.events.repeat("bad-block", device, text);
        }
        self.bad.found.open();
    }

    /// Forgets what was bad of columns that are missing now.
    pub fn forget_missing(&self) {
        let segments = self.segments.borrow();
        let there = |bad: &BadBlock| {
            let segment = segments.get(&bad.segment);
            segment.is_some_and(|s| self.column_usable(s, bad.column.into()))
        };
        self.bad.repairs.borrow_mut().retain(there);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use ashlar_format::superblock::MemberState;

    use super::*;
    use crate::testing::bed;

    #[test]
    fn a_column_counts_as_missing_while_its_device_is_out() {
        let bed = bed(4);
        let segment = bed.segment(1, 2, 2);
        assert_eq!(bed.core.missing_columns(&segment), 0);
        bed.core.member(1).take_out(MemberState::Failed);
        assert_eq!(bed.core.missing(&segment).collect::<Vec<_>>(), vec![1]);
        assert!(bed.core.has_lost_column(&segment));
        segment.columns.borrow_mut()[1] = crate::segment::Column::MISSING;
        assert!(!bed.core.has_lost_column(&segment), "it was never there");
        assert_eq!(bed.core.missing_columns(&segment), 1);
    }

    #[test]
    fn a_write_to_a_member_that_is_out_is_not_durable() {
        let bed = bed(2);
        let core = bed.core.clone();
        bed.rt.block_on(async move {
            let bytes = Slice::zeroed(4096);
            assert!(core.write_durably(0, 0, bytes.clone()).await);
            core.member(1).take_out(MemberState::Failed);
            assert!(!core.write_durably(1, 0, bytes).await);
        });
    }
}
