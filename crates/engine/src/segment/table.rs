//! What every part of the engine shares: the members, the table of segments, codes, keys, events.
//!
//! Invariants: the segment table and the members' slots are changed by the home only; shards read
//! them. (With a thread a shard, each gets a replica that the home's changes are sent to.)

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use ashlar_codec::{Code, CodeKind};
use ashlar_digest::Kind;
use ashlar_format::SegmentNumber;
use ashlar_format::context::Context;
use ashlar_rt::{Gate, Rt, Slice};

use crate::counters::add;
use crate::members::Member;
use crate::members::events::Events;
use crate::phases::Phases;
use crate::segment::bad::{BadBlock, Heals};
use crate::segment::coder::{Accelerators, Coder};
use crate::segment::{Pinned, Segment};
use crate::space::domains::Domains;
use crate::space::thin::Thin;

/// Shared state of an array.
pub struct Core {
    /// The runtime.
    pub rt: Rt,
    /// The array's identity.
    pub array: [u8; 16],
    /// Key of its digests.
    pub key: [u8; 32],
    /// Blocks a slot.
    pub slot_blocks: u32,
    /// Every member.
    pub members: Vec<Member>,
    /// Which of them may be lost together.
    pub domains: Domains,
    /// Every segment.
    pub segments: RefCell<BTreeMap<SegmentNumber, Rc<Segment>>>,
    codes: RefCell<BTreeMap<(u8, u16, u16), Code>>,
    /// What computes parity and lost columns.
    pub coder: Coder,
    /// What happened.
    pub events: Rc<Events>,
    /// Members that failed an operation and are to be taken out by a generation change.
    pub failing: RefCell<Vec<u16>>,
    /// Opens when something was added to `failing`.
    pub failing_gate: Gate,
    /// The array has stopped: nothing is accepted any more.
    pub closed: Cell<bool>,
    /// Opens when reported members have been taken out.
    pub settled: Gate,
    /// Whether some segment may have less redundancy than the layout wants: false saves looking.
    pub maybe_degraded: Cell<bool>,
    /// While a commit is under way: whether the array was degraded when it began, or a device failed since, and
    /// how many more may be lost. What it has freed or moved in memory is needed as it was until its root is
    /// durable.
    pub before_commit: Cell<Option<(bool, usize)>>,
    /// Opens when a segment, a member or free space changes: what background work waits for.
    pub progress: Gate,
    /// Volume blocks found unreadable: (volume, address).
    pub lost: RefCell<BTreeMap<(u32, u64), ()>>,
    /// Bad blocks: those to be healed, and those that could not be.
    pub heals: RefCell<Heals>,
    /// Opens when a heal is due.
    pub heal_gate: Gate,
    /// Host blocks written, and all data blocks written, since import.
    pub amplification: (Cell<u64>, Cell<u64>),
    /// The journal is short: leaves that cannot be read must let go of it.
    pub give_up_lost: Cell<bool>,
    /// How many nodes the free slots take, as of the last commit and the last segment of data.
    pub meta_room: Cell<usize>,
    /// The room for thin volumes.
    pub thin: Thin,
    /// Where the time goes.
    pub phases: Phases,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("members", &self.members)
            .finish_non_exhaustive()
    }
}

impl Core {
    /// The state of an array with these members.
    pub fn new(
        rt: &Rt,
        array: [u8; 16],
        key: [u8; 32],
        slot_blocks: u32,
        members: Vec<Member>,
        accelerators: &Accelerators,
    ) -> Rc<Core> {
        Rc::new(Core {
            rt: rt.clone(),
            array,
            key,
            slot_blocks,
            domains: Domains::new(members.iter().map(|m| m.domain.as_str())),
            members,
            segments: RefCell::default(),
            codes: RefCell::default(),
            coder: Coder::new(accelerators),
            events: Events::new(rt),
            failing: RefCell::default(),
            failing_gate: Gate::default(),
            closed: Cell::new(false),
            settled: Gate::default(),
            maybe_degraded: Cell::new(true),
            before_commit: Cell::new(None),
            progress: Gate::default(),
            lost: RefCell::default(),
            heals: RefCell::default(),
            heal_gate: Gate::default(),
            amplification: Default::default(),
            give_up_lost: Cell::new(false),
            meta_room: Cell::new(usize::MAX),
            phases: Phases::default(),
            thin: Thin::default(), // counted by the first commit that is asked for it
        })
    }

    /// A member by index.
    pub fn member(&self, index: u16) -> &Member {
        &self.members[usize::from(index)]
    }

    /// Indexes of the members in use.
    pub fn online(&self) -> Vec<u16> {
        self.members
            .iter()
            .filter(|m| m.is_online())
            .map(|m| m.index)
            .collect()
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

    /// Adds a segment to the table.
    pub fn add_segment(&self, segment: &Pinned) {
        self.segments
            .borrow_mut()
            .insert(segment.number, segment.entry());
    }

    /// The code of a segment.
    pub fn code(&self, segment: &Segment) -> Code {
        let id = (segment.code, segment.geometry.k, segment.geometry.m);
        self.codes
            .borrow_mut()
            .entry(id)
            .or_insert_with(|| {
                CodeKind::from_tag(id.0)
                    .and_then(|kind| Code::new(kind, usize::from(id.1), usize::from(id.2)).ok())
                    .expect("an import refuses, and the allocator never makes, a segment without a code")
            })
            .clone()
    }

    /// Whether column `column` of a segment can be read and written.
    pub fn column_usable(&self, segment: &Segment, column: usize) -> bool {
        let place = segment.columns.borrow()[column];
        place.is_placed() && self.member(place.device).is_online()
    }

    /// The columns of a segment that are missing.
    pub fn missing<'a>(&'a self, segment: &'a Segment) -> impl Iterator<Item = usize> + 'a {
        (0..segment.geometry.width()).filter(|c| !self.column_usable(segment, *c))
    }

    /// How many columns of a segment are missing.
    pub fn missing_columns(&self, segment: &Segment) -> usize {
        self.missing(segment).count()
    }

    /// Whether a column that was written is missing (not one that never had a slot).
    pub fn has_lost_column(&self, segment: &Segment) -> bool {
        let columns = segment.columns.borrow();
        let mut placed = columns.iter().filter(|c| c.is_placed());
        placed.any(|c| !self.member(c.device).is_online())
    }

    /// The digest of a block, cut to 16 bytes.
    pub fn digest(&self, kind: Kind, context: Context, bytes: &[u8]) -> [u8; 16] {
        ashlar_digest::block(kind, &self.key, context.bytes(), bytes)
    }

    /// The digest of a volume block.
    pub fn block_digest(&self, kind: Kind, tree: u32, address: u64, bytes: &[u8]) -> [u8; 16] {
        self.digest(kind, Context::block(tree, address), bytes)
    }

    /// The digests of blocks of a volume that follow each other, `unit` bytes each, computed side by side.
    pub fn block_digests(
        &self,
        kind: Kind,
        (tree, first): (u32, u64),
        bytes: &[u8],
        unit: usize,
    ) -> Vec<[u8; 16]> {
        let context = |(address, bytes)| (Context::block(tree, address), bytes);
        let blocks: Vec<_> = (first..).zip(bytes.chunks(unit)).map(context).collect();
        let mut digests = vec![[0; 16]; blocks.len()];
        ashlar_digest::blocks(kind, &self.key, &blocks, &mut digests);
        digests
    }

    /// The digest of a tree's node.
    pub fn node_digest(
        &self,
        tree: u32,
        partition: u16,
        level: u8,
        index: u64,
        bytes: &[u8],
    ) -> [u8; 16] {
        let context = Context::node(tree, partition, level, index);
        self.digest(Kind::Blake3, context, bytes)
    }

    /// Asks for a member to be taken out, after a failed write, flush or a device that is gone.
    pub fn report_failed(&self, member: u16) {
        let mut failing = self.failing.borrow_mut();
        if self.member(member).is_online() && !failing.contains(&member) {
            failing.push(member);
        }
        drop(failing);
        self.maybe_degraded.set(true);
        let before = self.before_commit.get();
        self.before_commit
            .set(before.map(|(_, losses)| (true, losses.saturating_sub(1))));
        self.failing_gate.open();
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

    /// Writes to a member and flushes it; one that cannot is reported. Whether what was written would survive a power cut.
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

    /// Notes a bad block of a column that is otherwise in use: counted against the device the first time,
    /// and healed in the background.
    pub fn report_bad(self: &Rc<Self>, device: u16, block: BadBlock) {
        if self.heals.borrow().knows(&block) {
            return;
        }
        if self.heals.borrow_mut().add(block) {
            add(&self.member(device).counters.digest_errors, 1);
            let text = format!(
                "device {device}: {block} is bad; it is read from the others and will be repaired"
            );
            self.events.repeat("bad-block", device, text);
        }
        self.heal_gate.open();
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

    /// A device that fails is reported once, and a commit under way counts one loss less to come.
    #[test]
    fn a_failed_device_is_reported_once() {
        let bed = bed(3);
        bed.core.before_commit.set(Some((false, 2)));
        bed.core.report_failed(1);
        bed.core.report_failed(1);
        assert_eq!(*bed.core.failing.borrow(), vec![1]);
        assert_eq!(bed.core.before_commit.get(), Some((true, 0)));
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
