//! Repair of single blocks and summaries that did not match when they were read.
//!
//! Invariants:
//! - Only a block known bad is rewritten, in its place, while the segment is held (R12), with bytes
//!   computed from others that match their rows (P4); flushed and read back.
//! - The whole column of a block that its device twice does not keep is rebuilt into another slot. Where the device gives
//!   other bytes than it said were written and flushed, that counts as a failed write; where it gives none, as what that
//!   is, a failed read.
//! - What cannot be repaired is remembered and not tried again before something of its segment has changed
//!   for the better: repair ends, whatever is lost.
//! - A bad block counts against its device once, however often it is read before it is right again. One on a device
//!   that is away is missing, not bad.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ashlar_format::{BLOCK, SegmentNumber};

use crate::background::Background;
use crate::background::column::Leaves;
use crate::background::stretch::Read;
use crate::counters::add;
use crate::home::jobs::End;
use crate::protocol::Reach;
use crate::segment::bad::{BadBlock, SUMMARY};
use crate::segment::course::read_course_rows;
use crate::segment::plan::{How, Span};
use crate::segment::read::fetch;
use crate::segment::stripe::{device_offset, summary_bytes};
use crate::segment::{Column, Pinned};
use crate::status::{TaskState, Work};

/// How often a block is written before its device counts as not keeping it.
const ATTEMPTS: usize = 2;

/// What came of a column's summary of a course.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Summary {
    /// It can be read.
    Fine,
    /// It was written and read back.
    Repaired,
    /// It was written, and is not there.
    NotKept,
    /// It cannot be computed or written.
    Failed,
}

/// How an attempt at one block went before the flush.
enum Attempt {
    /// It is right already.
    Fine,
    /// It has been written, to this device.
    Written(u16),
    /// It cannot be computed or written.
    Failed,
}

impl Background {
    pub(super) async fn repair_forever(self: Rc<Self>) {
        while !self.core.closed.get() {
            self.core
                .bad
                .found
                .until(|| !self.core.bad.repairs.borrow().is_empty() || self.core.closed.get())
                .await;
            if self.core.closed.get() {
                return;
            }
            let due = self.core.bad.repairs.borrow().next();
            self.show_repairing(TaskState::Running);
            self.repair_some(due).await;
            self.core.forget_missing();
            if self.core.bad.repairs.borrow().is_empty() {
                self.show_repairing(TaskState::Done);
            }
            self.core.progress.open();
        }
    }

    /// How far repair is.
    fn show_repairing(&self, state: TaskState) {
        let due = self.core.bad.repairs.borrow().due() as u64;
        let repair = &mut self.home.tasks.borrow_mut().repair;
        let now = self.core.rt.now();
        if state == TaskState::Running && repair.state != TaskState::Running {
            repair.speed.begin(now, repair.done);
        }
        repair.state = state;
        repair.done = repair.healed * BLOCK as u64;
        repair.speed.reach(now, repair.done);
        repair.total = (repair.healed + due) * BLOCK as u64;
    }

    /// Repairs these blocks, all at once.
    async fn repair_some(self: &Rc<Self>, due: Vec<BadBlock>) {
        let mut summaries = BTreeMap::new();
        let (mut left, mut unkept) = (Vec::new(), Vec::new());
        for block in due {
            let Some((segment, _)) = self.repairable(&block) else {
                self.tried(block, None, false);
                continue;
            };
            let course = segment.geometry.course_of(block.stripe);
            let key = (block.segment, block.column, course);
            let found = match summaries.get(&key) {
                Some(found) => *found,
                None => {
                    let index = usize::from(block.column);
                    let found = self.repair_summary(&segment, index, course).await;
                    summaries.insert(key, found);
                    if found == Summary::Repaired {
                        let place = segment.columns.borrow()[index];
                        let whole = BadBlock {
                            stripe: course * segment.geometry.course_strips(),
                            within: SUMMARY,
                            ..block
                        };
                        self.tried(whole, Some(place.device), true);
                    }
                    found
                }
            };
            match found {
                Summary::NotKept => unkept.push(block),
                _ if block.within != SUMMARY => left.push((block, found)),
                Summary::Repaired => {} // told above
                found => self.tried(block, None, found == Summary::Fine),
            }
        }
        for _ in 0..ATTEMPTS {
            left = self.rewrite(left).await;
        }
        for (block, summary) in left {
            match summary {
                // Without its row nothing says that it is there.
                Summary::Failed => self.tried(block, None, false),
                _ => unkept.push(block),
            }
        }
        if !unkept.is_empty() {
            self.relocate(unkept).await;
        }
    }

    /// Writes these blocks, flushes them and reads them back; those that are not there.
    async fn rewrite(
        self: &Rc<Self>,
        blocks: Vec<(BadBlock, Summary)>,
    ) -> Vec<(BadBlock, Summary)> {
        let rt = &self.core.rt;
        let mut attempts = Vec::new();
        for (block, summary) in blocks {
            let background = self.clone();
            let write = rt.spawn(async move { background.write_repaired(&block).await });
            attempts.push((block, summary, write));
        }
        let (mut written, mut devices) = (Vec::new(), BTreeSet::new());
        for (block, summary, write) in attempts {
            match write.await {
                Attempt::Written(device) => {
                    devices.insert(device);
                    written.push((block, summary));
                }
                Attempt::Fine => self.tried(block, None, true),
                Attempt::Failed => self.tried(block, None, false),
            }
        }
        self.home.flush(devices.into_iter().collect()).await;
        let mut reads = Vec::new();
        for (block, summary) in written {
            let background = self.clone();
            let kept = rt.spawn(async move {
                let (segment, place) = background.repairable(&block)?;
                let read = background.read_repaired(&segment, &block).await;
                Some((place.device, read))
            });
            reads.push((block, summary, kept));
        }
        let mut unkept = Vec::new();
        for (block, summary, kept) in reads {
            match kept.await {
                Some((device, true)) => self.tried(block, Some(device), true),
                Some((_, false)) => unkept.push((block, summary)),
                None => self.tried(block, None, false), // gone meanwhile
            }
        }
        unkept
    }

    /// Reconstructs the columns of blocks that their device does not keep into other slots.
    async fn relocate(self: &Rc<Self>, blocks: Vec<BadBlock>) {
        let mut columns: BTreeMap<(SegmentNumber, u16), Vec<BadBlock>> = BTreeMap::new();
        for block in blocks {
            let column = columns.entry((block.segment, block.column)).or_default();
            column.push(block);
        }
        for ((number, column), blocks) in columns {
            let found = blocks.first().and_then(|block| self.repairable(block));
            let Some((segment, place)) = found else {
                for block in blocks {
                    self.tried(block, None, false);
                }
                continue;
            };
            if self.core.bad.repairs.borrow().is_any_wrong(&blocks) {
                add(&self.core.member(place.device).counters.write_errors, 1);
            }
            let moved = self.relocate_column(&segment, usize::from(column)).await;
            let what = if moved {
                "it was moved to another slot"
            } else {
                "no other slot is free for it: fail the device with 'ashlar fail'"
            };
            let text = format!(
                "device {}: segment {number} column {column} was repaired twice and is still bad; {what}",
                place.device
            );
            self.core.events.repeat("not-kept", place.device, text);
            for block in blocks {
                self.tried(block, None, moved);
            }
        }
        self.home.group_commit(Reach::Closed).await; // the new places are durable
    }

    /// Whether a column now lies in another slot, verified.
    async fn relocate_column(self: &Rc<Self>, segment: &Pinned, index: usize) -> bool {
        if !segment.sealed.get() {
            self.home.group_commit(Reach::Closed).await;
            if segment.sealed.get() || segment.recorded.get() != segment.next_stripe.get() {
                return false;
            }
            self.home.seal(segment).await;
        }
        let column = u16::try_from(index).expect("at most 256 columns");
        let Some((target, claim)) = self.home.relocate(segment, column) else {
            return false;
        };
        let acquired = self.home.space.ledger().acquire_slot(&claim, target);
        self.home.space.ledger().give_back(claim);
        let targets = [(index, target)];
        let moved = acquired
            && (self
                .rebuild_columns(segment, &targets, (Work::Repair, Leaves::Unkept))
                .await)
                > 0;
        let end = if moved { End::Gained } else { End::Refused };
        self.home.end_job(segment.number, end);
        moved
    }

    /// The segment of a bad block and where its column lies, if it still can be repaired.
    fn repairable(&self, block: &BadBlock) -> Option<(Pinned, Column)> {
        let segment = self.core.segment(block.segment)?;
        let index = usize::from(block.column);
        let known = index < segment.geometry.width() && block.stripe < segment.geometry.stripes();
        if !known || !self.core.column_usable(&segment, index) {
            return None;
        }
        let place = segment.columns.borrow()[index];
        Some((segment, place))
    }

    async fn read_repaired(self: &Rc<Self>, segment: &Pinned, block: &BadBlock) -> bool {
        let span = Span::block(block.stripe, block.column.into(), block.within);
        let read = fetch(&self.core, segment, span, How::Verified).await;
        read.is_some()
    }

    /// Writes one bad block as the others say it is, if that can be verified. A block whose row agrees
    /// with it may still not be what the map says, when both were lost together: the other columns decide.
    async fn write_repaired(self: &Rc<Self>, block: &BadBlock) -> Attempt {
        let Some((segment, place)) = self.repairable(block) else {
            return Attempt::Failed;
        };
        let (index, stripe, within) = (usize::from(block.column), block.stripe, block.within);
        let span = Span::block(stripe, index, within);
        let mine = fetch(&self.core, &segment, span, How::Verified).await;
        let theirs = fetch(&self.core, &segment, span, How::DecodedVerified).await;
        let good = match (mine, theirs) {
            (Some(mine), Some(theirs)) if *mine == *theirs => return Attempt::Fine,
            (Some(_), None) => return Attempt::Fine,
            (_, Some(theirs)) => theirs,
            (None, None) => return Attempt::Failed,
        };
        let offset = device_offset(
            &self.core,
            place,
            segment.geometry.strip_block(stripe) + within,
        );
        let member = self.core.member(place.device);
        if self.repairable(block).is_none_or(|(_, now)| now != place) {
            return Attempt::Failed; // it was moved meanwhile, and its slot may be another's
        }
        if member.write(offset, vec![good.freeze()]).await.is_err() {
            self.core.report_failed(place.device);
            return Attempt::Failed;
        }
        Attempt::Written(place.device)
    }

    /// Notes how an attempt ended; `device`: where the block was rewritten and read back, if it was.
    fn tried(&self, block: BadBlock, device: Option<u16>, healed: bool) {
        self.core.bad.repairs.borrow_mut().tried(block, healed);
        self.home.tasks.borrow_mut().repair.healed += u64::from(healed);
        let Some(device) = device else { return };
        self.core.bad.repairs.borrow_mut().forget(block.segment);
        self.home.tasks.borrow_mut().gains += 1;
        let text = format!("device {device}: {block} was repaired and read back");
        self.core.events.repeat("healed", device, text);
    }

    /// Rewrites a column's summary of a course if it cannot be read, computed as a rebuild would compute it.
    async fn repair_summary(
        self: &Rc<Self>,
        segment: &Pinned,
        index: usize,
        course: u32,
    ) -> Summary {
        let geometry = segment.geometry;
        let core = &self.core;
        if read_course_rows(core, segment, course, index)
            .await
            .is_some()
        {
            return Summary::Fine;
        }
        let end = course * geometry.course_strips() + geometry.strips_in(course);
        if !segment.sealed.get() && segment.recorded.get() < end {
            return Summary::Failed;
        }
        let place = segment.columns.borrow()[index];
        let computed = self
            .compute_course(segment, &[index], course, &Read::default())
            .await;
        let Some((_, rows)) = computed.and_then(|mut columns| columns.pop()) else {
            return Summary::Failed;
        };
        let summary = summary_bytes(core, segment, course, index, &rows);
        let offset = device_offset(core, place, geometry.summary_block(course));
        let member = core.member(place.device);
        for _ in 0..ATTEMPTS {
            if segment.columns.borrow()[index] != place {
                return Summary::Failed;
            }
            let written = member.write(offset, vec![summary.clone()]).await;
            if written.is_err() || member.flush().await.is_err() {
                core.report_failed(place.device);
                return Summary::Failed;
            }
            if read_course_rows(core, segment, course, index)
                .await
                .is_some()
            {
                return Summary::Repaired;
            }
        }
        Summary::NotKept
    }
}
