//! Healing of single blocks and summaries that did not match when they were read.
//!
//! Invariants:
//! - Only a block known bad is rewritten, in its place, while the segment is held (S12), with bytes
//!   computed from others that match their rows (P4); flushed and read back.
//! - What cannot be healed is remembered and not tried again before something of its segment has changed
//!   for the better: healing ends, whatever is lost.
//! - A bad block counts against its device once, however often it is read before it is right again.

use std::collections::BTreeSet;
use std::rc::Rc;

use ashlar_format::{BLOCK, SegmentNumber};

use crate::home::Home;
use crate::read::{decode_column, read_course_rows, read_verified};
use crate::segment::{Column, Segment};
use crate::stripe::{device_offset, summary_bytes};

/// Bad blocks remembered at most. Those found beyond that are counted, and healed when they are found
/// again.
const MOST_KNOWN: usize = 1 << 17;
/// Blocks healed at once: they share a flush.
const AT_ONCE: usize = 64;

/// A block of a strip that does not match its row or the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BadBlock {
    /// Its segment.
    pub segment: SegmentNumber,
    /// The column.
    pub column: u16,
    /// The stripe.
    pub stripe: u32,
    /// The block of the strip.
    pub within: u32,
}

/// The bad blocks that are known.
#[derive(Debug, Default)]
pub struct Heals {
    /// To be healed, those being healed included.
    due: BTreeSet<BadBlock>,
    /// Could not be healed: too little of their stripe can be verified, or the device keeps nothing.
    hopeless: BTreeSet<BadBlock>,
}

impl Heals {
    /// Whether a block is known to be bad.
    pub fn knows(&self, block: &BadBlock) -> bool {
        self.due.contains(block) || self.hopeless.contains(block)
    }

    /// Whether nothing is to be healed.
    pub fn is_empty(&self) -> bool {
        self.due.is_empty()
    }

    /// Has a block healed.
    pub fn add(&mut self, block: BadBlock) {
        if self.due.len() + self.hopeless.len() < MOST_KNOWN {
            self.due.insert(block);
        }
    }

    /// The next blocks to heal.
    fn next(&self) -> Vec<BadBlock> {
        self.due.iter().take(AT_ONCE).copied().collect()
    }

    /// A block has been tried.
    fn tried(&mut self, block: BadBlock, healed: bool) {
        self.due.remove(&block);
        if !healed {
            self.hopeless.insert(block);
        }
    }

    /// A segment has changed for the better: what could not be healed may be now, when it is found again.
    pub fn forget(&mut self, segment: SegmentNumber) {
        self.hopeless.retain(|b| b.segment != segment);
    }

    /// Keeps only blocks of segments that still exist.
    fn retain(&mut self, exists: impl Fn(SegmentNumber) -> bool) {
        self.hopeless.retain(|b| exists(b.segment));
    }
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

impl Home {
    pub(super) async fn heal_forever(self: Rc<Self>) {
        while !self.core.closed.get() {
            self.core
                .heal_gate
                .until(|| !self.core.heals.borrow().is_empty() || self.core.closed.get())
                .await;
            if self.core.closed.get() {
                return;
            }
            let due = self.core.heals.borrow().next();
            self.show_healing("running");
            self.heal_some(due).await;
            let exists = |number| self.core.segments.borrow().contains_key(&number);
            self.core.heals.borrow_mut().retain(exists);
            if self.core.heals.borrow().is_empty() {
                self.show_healing("done");
            }
            self.core.progress.open();
        }
    }

    /// How far healing is: every bad block counts as found when it is noticed.
    fn show_healing(&self, state: &'static str) {
        let due = self.core.heals.borrow().due.len() as u64;
        let heal = &mut self.tasks.borrow_mut().heal;
        if state == "running" && heal.state != "running" {
            heal.since = self.core.rt.now();
        }
        heal.state = state;
        heal.found = heal.tried + due;
        heal.done = heal.healed * BLOCK as u64;
        heal.total = heal.found * BLOCK as u64;
    }

    /// Heals these blocks, all at once.
    async fn heal_some(self: &Rc<Self>, due: Vec<BadBlock>) {
        let mut summaries = BTreeSet::new();
        for block in &due {
            if let Some((segment, _)) = self.healable(block) {
                let course = segment.geometry.course_of(block.stripe);
                if summaries.insert((block.segment, block.column, course)) {
                    self.heal_summary(&segment, usize::from(block.column), block.stripe)
                        .await;
                }
            }
        }
        let rt = &self.core.rt;
        let mut attempts = Vec::new();
        for block in due {
            let home = self.clone();
            let write = rt.spawn(async move { home.write_healed(&block).await });
            attempts.push((block, write));
        }
        let (mut written, mut devices) = (Vec::new(), BTreeSet::new());
        for (block, write) in attempts {
            match write.await {
                Attempt::Written(device) => {
                    devices.insert(device);
                    written.push(block);
                }
                Attempt::Fine => self.tried(block, None, true),
                Attempt::Failed => self.tried(block, None, false),
            }
        }
        self.flush(devices.into_iter().collect()).await;
        let mut reads = Vec::new();
        for block in written {
            let home = self.clone();
            let kept = rt.spawn(async move {
                let (segment, place) = home.healable(&block)?;
                let read = home.read_healed(&segment, &block).await;
                read.then_some(place.device)
            });
            reads.push((block, kept));
        }
        for (block, kept) in reads {
            let kept = kept.await;
            self.tried(block, kept, kept.is_some());
        }
    }

    /// The segment of a bad block and where its column lies, if it still can be healed.
    fn healable(&self, block: &BadBlock) -> Option<(Rc<Segment>, Column)> {
        let segment = self.core.segment(block.segment)?;
        let index = usize::from(block.column);
        let known = index < segment.geometry.width() && block.stripe < segment.geometry.stripes();
        if !known || !self.core.column_usable(&segment, index) {
            return None;
        }
        let place = segment.columns.borrow()[index];
        Some((segment, place))
    }

    async fn read_healed(self: &Rc<Self>, segment: &Rc<Segment>, block: &BadBlock) -> bool {
        let column = usize::from(block.column);
        read_verified(&self.core, segment, block.stripe, column, block.within)
            .await
            .is_some()
    }

    /// Writes one bad block as the others say it is, if that can be verified. A block whose row agrees
    /// with it may still not be what the map says, when both were lost together: the other columns decide.
    async fn write_healed(self: &Rc<Self>, block: &BadBlock) -> Attempt {
        let Some((segment, place)) = self.healable(block) else {
            return Attempt::Failed;
        };
        let (index, stripe, within) = (usize::from(block.column), block.stripe, block.within);
        let mine = read_verified(&self.core, &segment, stripe, index, within).await;
        let theirs = decode_column(&self.core, &segment, stripe, index, within, true).await;
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
        if member.write(offset, vec![good.freeze()]).await.is_err() {
            self.core.report_failed(place.device);
            return Attempt::Failed;
        }
        Attempt::Written(place.device)
    }

    /// Notes how an attempt ended; `device`: where the block was rewritten and read back, if it was.
    fn tried(&self, block: BadBlock, device: Option<u16>, healed: bool) {
        self.core.heals.borrow_mut().tried(block, healed);
        let mut tasks = self.tasks.borrow_mut();
        tasks.heal.tried += 1;
        tasks.heal.healed += u64::from(healed);
        drop(tasks);
        let Some(device) = device else { return };
        self.core.heals.borrow_mut().forget(block.segment);
        self.tasks.borrow_mut().gains += 1;
        let text = format!(
            "device {device}: segment {} column {} stripe {} block {} was healed and read back",
            block.segment, block.column, block.stripe, block.within
        );
        self.core.event("healed", Some(device), text);
    }

    /// Rewrites a column's summary if it cannot be read, computed as reconstruct would compute it.
    async fn heal_summary(self: &Rc<Self>, segment: &Rc<Segment>, index: usize, stripe: u32) {
        let geometry = segment.geometry;
        let course = geometry.course_of(stripe);
        if !segment.sealed.get()
            || read_course_rows(&self.core, segment, course, index)
                .await
                .is_some()
        {
            return;
        }
        let place = segment.columns.borrow()[index];
        let Some((_, rows)) = self.compute_course(segment, index, course).await else {
            return;
        };
        let summary = summary_bytes(&self.core, segment, course, index, &rows);
        let member = self.core.member(place.device);
        let offset = device_offset(&self.core, place, geometry.summary_block(course));
        if member.write(offset, vec![summary]).await.is_err() || member.flush().await.is_err() {
            self.core.report_failed(place.device);
            return;
        }
        let text = format!(
            "device {}: the summary of segment {} column {index} course {course} was healed",
            place.device, segment.number
        );
        self.core.event("healed", Some(place.device), text);
    }
}
