//! Scrub: everything that is stored is read and verified, and what is bad is repaired.
//!
//! Segments in the order of their numbers, several at once, all columns of a stretch together; at the end what each
//! device keeps of its own (`home/own.rs`).
//!
//! Invariants:
//! - Only what a record named before it was read is judged.
//! - A fault counts against the device that it lies on, as failed reads or as wrong bytes (P6), once a scrub.
//! - What is found is told together with the cursor that has passed it. Segments that were not looked at whole are looked
//!   at again, and those after them: of these what was repaired is told at once.
//! - While data lacks redundancy that can be restored, it waits: rebuild comes first.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use ashlar_format::scrub::{Finding, Part, State};
use ashlar_format::slot::SlotHeader;
use ashlar_format::{BLOCK, BLOCK_U64, SegmentNumber};
use ashlar_rt::{Join, MILLISECOND, SECOND};

use crate::background::Background;
use crate::home::scrub::{Aim, Seen, bytes_of_courses};
use crate::planted::{self, Bug};
use crate::segment::bad::{BadBlock, Faults, Found, SUMMARY, fault_of};
use crate::segment::header::header_bytes;
use crate::segment::look::look_at;
use crate::segment::{Column, Pinned};
use crate::status::Work;

/// A schedule is looked at this often.
const LOOK: u64 = 60 * SECOND;

/// Bad blocks that are given to repair together.
const REPAIRED_AT_ONCE: usize = 4096;

/// Bytes of segments that are looked at together, and how many pieces each device is to have waiting meanwhile: a
/// segment is done only with its last column, so with fewer devices often have none.
const BYTES_AT_ONCE: u64 = 512 << 20;
const PIECES: usize = 4;

/// Counts of a part of a device: of blocks it did not give and of wrong ones, those that stay so and those repaired.
#[derive(Default)]
struct Tally(BTreeMap<(u16, Part), [[u64; 2]; 2]>);

impl Tally {
    /// One more.
    fn add(&mut self, device: u16, part: Part, found: Found, repaired: bool) {
        let counts = self.0.entry((device, part)).or_default();
        counts[usize::from(found == Found::Wrong)][usize::from(repaired)] += 1;
    }

    /// All of another.
    fn take(&mut self, other: Tally) {
        for (key, more) in other.0 {
            let counts = self.0.entry(key).or_default();
            let all = counts.as_flattened_mut().iter_mut();
            all.zip(more.as_flattened())
                .for_each(|(sum, more)| *sum += more);
        }
    }

    /// Forgets what stays bad.
    fn keep_repaired(&mut self) {
        self.0.values_mut().flatten().for_each(|c| c[0] = 0);
        self.0.retain(|_, counts| counts.iter().any(|c| c[1] > 0));
    }
}

/// The header of a column's slot that is bad.
type BadHeader = (usize, Column, Found);

impl Background {
    pub(super) async fn scrub_forever(self: Rc<Self>) {
        while !self.core.closed.get() {
            if self.home.is_scrub_due() && self.home.start_scrub(false, None).is_ok() {
                let text = "a scrub was started, as the setting scrub.every wants".to_string();
                self.core.events.note("scrub-started", None, text);
            }
            let waits = self.why_scrub_waits();
            self.home.show_scrub(waits);
            match self.home.scrubs.aim() {
                Some(aim) if waits.is_empty() => self.scrub_some(aim).await,
                Some(_) => self.core.rt.sleep(SECOND).await,
                None => {
                    let changed = self.home.scrubs.changed();
                    let _ = self.core.rt.timeout(LOOK, changed).await;
                }
            }
        }
    }

    /// Why nothing is looked at now, or empty.
    fn why_scrub_waits(&self) -> &'static str {
        if self.home.agreement.waiting().is_some() {
            "writes and background work are paused: too few devices are left"
        } else if !self.core.failing.is_empty() || self.rebuilding.get() > 0 {
            "rebuild comes first"
        } else {
            ""
        }
    }

    /// Whether the scrub that has this to look at still runs.
    fn goes_on(&self, aim: &Aim) -> bool {
        let now = self.home.scrubs.aim();
        !self.core.closed.get() && now.is_some_and(|now| now.scrub == aim.scrub)
    }

    /// Looks at segments, several at once, as long as nothing comes first; once there are none, at what devices keep of
    /// their own. The cursor passes them one by one, in order.
    async fn scrub_some(self: &Rc<Self>, aim: Aim) {
        let mut looking: VecDeque<(SegmentNumber, Join<_>)> = VecDeque::new();
        loop {
            let goes_on = self.goes_on(&aim) && self.why_scrub_waits().is_empty();
            if goes_on {
                let last = looking.back().map(|(number, _)| *number);
                let next = self.home.next_to_scrub(self.scrubbed_at_once());
                for number in next
                    .into_iter()
                    .filter(|n| last.is_none_or(|last| *n > last))
                {
                    let background = self.clone();
                    let look = async move { background.scrub_segment(number, &aim).await };
                    looking.push_back((number, self.core.rt.spawn(look)));
                }
            }
            let Some((number, look)) = looking.pop_front() else {
                if goes_on {
                    self.end_of_scrub(aim).await;
                }
                return;
            };
            let looked = look.await.filter(|_| self.home.scrubs.is_open(&aim));
            let skips = planted::on(Bug::ScrubSkips).then(|| (0, 0, Tally::default()));
            let Some((bytes, skipped, tally)) = looked.or(skips) else {
                for (_, look) in looking {
                    if let Some((_, _, tally)) = look.await {
                        self.rests_after(&aim, tally);
                    }
                }
                return;
            };
            let found = !tally.0.is_empty();
            self.home
                .scrubbed(Some(number + 1), self.seen(tally, (bytes, skipped)));
            if found {
                self.home.checkpoint(0).await; // a crash does not forget it
            }
        }
    }

    /// What was looked at is looked at again, as the scrub was told to rest meanwhile: that will not find what was
    /// repaired.
    fn rests_after(&self, aim: &Aim, mut tally: Tally) {
        tally.keep_repaired();
        if !tally.0.is_empty() && self.home.scrubs.is_open(aim) {
            self.home.scrubbed(None, self.seen(tally, (0, 0)));
        }
    }

    /// How many segments are looked at together.
    fn scrubbed_at_once(&self) -> usize {
        let devices = self.core.readable().len();
        let geometry = self.geometry();
        let width = geometry.width();
        let most = BYTES_AT_ONCE / self.bytes_at_once(geometry).max(1);
        let most = usize::try_from(most).unwrap_or(usize::MAX).max(1);
        (PIECES * devices).div_ceil(width).clamp(1, most)
    }

    fn seen(&self, tally: Tally, bytes: (u64, u64)) -> Seen {
        type Counts = ((u16, Part), [[u64; 2]; 2]);
        let finding = |((device, part), [unreadable, wrong]): Counts| Finding {
            device,
            uuid: self.core.member(device).uuid(),
            part,
            unreadable: unreadable.iter().sum(),
            wrong: wrong.iter().sum(),
            repaired: unreadable[1] + wrong[1],
        };
        Seen {
            bytes,
            findings: tally.0.into_iter().map(finding).collect(),
        }
    }

    /// Looks at a segment; bytes that were looked at and that could not be, and what was found. `None`: it was told to
    /// rest meanwhile.
    async fn scrub_segment(
        self: &Rc<Self>,
        number: SegmentNumber,
        aim: &Aim,
    ) -> Option<(u64, u64, Tally)> {
        let segment = self.core.segment(number);
        // A record that names a stripe comes after the headers: before that power may have gone between them (#206).
        let Some(segment) = segment.filter(|s| s.recorded.get() > 0) else {
            return Some((0, 0, Tally::default())); // it was freed meanwhile, or is empty
        };
        self.core.bad.watch(number);
        // What could not be repaired may be now.
        self.core.bad.repairs.borrow_mut().forget(number);
        let seen = self.scrub_pinned(&segment, aim).await;
        self.core.bad.unwatch(number);
        seen
    }

    async fn scrub_pinned(
        self: &Rc<Self>,
        segment: &Pinned,
        aim: &Aim,
    ) -> Option<(u64, u64, Tally)> {
        let (mut faults, mut bytes) = (Faults::new(), (0, 0));
        let headers = self.bad_headers(segment, &mut bytes).await;
        for stretch in self.stretches(segment) {
            if !self.goes_on(aim) {
                return None;
            }
            self.look_at_stretch(segment, &stretch, &mut faults, &mut bytes)
                .await;
        }
        let mut tally = Tally::default();
        let (mut untold, mut skipped) = (BTreeSet::new(), BTreeSet::new());
        if aim.check {
            for (_, place, found) in &headers {
                tally.add(place.device, Part::Header, *found, false);
            }
        } else {
            tally.take(self.repair_headers(segment, &headers).await);
            untold = self.repair_blocks(segment, &mut faults, &mut skipped).await;
        }
        for (block, (device, found)) in &faults {
            let is_good = !untold.contains(block) && self.is_repaired(segment, block);
            let repaired = !aim.check && is_good;
            tally.add(*device, part_of(segment, block), *found, repaired);
            if block.within == SUMMARY && !repaired {
                // Nothing says what the blocks under it should be.
                skipped.insert(course_of(segment, block));
            }
        }
        let of_course =
            |(course, _): &(u32, usize)| bytes_of_courses(segment.geometry, *course..*course + 1);
        // These were read, but could not be verified.
        let unverified = skipped.iter().map(of_course).sum::<u64>().min(bytes.0);
        Some((bytes.0 - unverified, bytes.1 + unverified, tally))
    }

    /// Looks at all columns of a stretch.
    async fn look_at_stretch(
        self: &Rc<Self>,
        segment: &Pinned,
        courses: &Range<u32>,
        faults: &mut Faults,
        bytes: &mut (u64, u64),
    ) {
        let geometry = segment.geometry;
        let of_column = bytes_of_courses(geometry, courses.clone());
        let look = |index: usize| {
            let (background, segment, courses) = (self.clone(), segment.clone(), courses.clone());
            self.core.rt.spawn(async move {
                let turn = background.turn_of(Work::Scrub, &segment, index, of_column);
                let _turn = turn.await;
                look_at(&background.core, &segment, courses, index).await
            })
        };
        let looking: Vec<_> = (0..geometry.width()).map(look).collect();
        for looked in looking {
            match looked.await {
                Some((device, bad)) => {
                    bytes.0 += of_column;
                    let bad = bad
                        .into_iter()
                        .map(|(block, found)| (block, (device, found)));
                    faults.extend(bad);
                }
                None => bytes.1 += of_column,
            }
        }
    }

    /// Has bad blocks repaired and waits for that. Under a summary that was bad, blocks are looked at once it is good;
    /// others turn out bad where they are needed for a repair. Gives those that could not even be remembered, and adds
    /// what a column has of a course that could not be looked at.
    async fn repair_blocks(
        self: &Rc<Self>,
        segment: &Pinned,
        faults: &mut Faults,
        skipped: &mut BTreeSet<(u32, usize)>,
    ) -> BTreeSet<BadBlock> {
        let (mut due, mut untold) = (faults.clone(), BTreeSet::new());
        while !due.is_empty() {
            let all: Vec<_> = due.iter().collect();
            for some in all.chunks(REPAIRED_AT_ONCE) {
                self.repair_some_of(segment, some, &mut untold).await;
            }
            let summaries: BTreeSet<(u32, usize)> = due
                .keys()
                .filter(|block| block.within == SUMMARY && self.is_repaired(segment, block))
                .map(|block| course_of(segment, block))
                .collect();
            due = self.core.bad.take_watched(segment.number);
            for (course, index) in summaries {
                let looked = look_at(&self.core, segment, course..course + 1, index).await;
                let (device, bad) = looked.unwrap_or_else(|| {
                    skipped.insert((course, index));
                    Default::default()
                });
                due.extend(
                    bad.into_iter()
                        .map(|(block, found)| (block, (device, found))),
                );
            }
            due.retain(|block, _| !faults.contains_key(block));
            faults.extend(due.clone());
        }
        untold
    }

    /// Has these blocks repaired and waits for that. Those of which too many are known already are `untold`.
    async fn repair_some_of(
        &self,
        segment: &Pinned,
        some: &[(&BadBlock, &(u16, Found))],
        untold: &mut BTreeSet<BadBlock>,
    ) {
        let mut waiting: Vec<BadBlock> = Vec::new();
        for (block, (device, found)) in some {
            if !self.core.column_usable(segment, block.column.into()) {
                continue;
            }
            self.core.report_bad(*device, **block, *found);
            match self.core.bad.repairs.borrow().knows(block) {
                true => waiting.push(**block),
                false => drop(untold.insert(**block)),
            }
        }
        while !self.core.closed.get() {
            waiting.retain(|block| self.core.bad.repairs.borrow().is_due(block));
            if waiting.is_empty() {
                break;
            }
            let repaired = self.core.progress.wait();
            let _ = self.core.rt.timeout(100 * MILLISECOND, repaired).await;
        }
    }

    /// Whether a block that was bad is not any more.
    fn is_repaired(&self, segment: &Pinned, block: &BadBlock) -> bool {
        let there = self.core.column_usable(segment, block.column.into());
        there && !self.core.bad.repairs.borrow().is_bad(block)
    }

    /// The columns whose slot has another header than it should.
    async fn bad_headers(
        self: &Rc<Self>,
        segment: &Pinned,
        bytes: &mut (u64, u64),
    ) -> Vec<BadHeader> {
        let mut bad = Vec::new();
        for index in 0..segment.geometry.width() {
            let place = segment.columns.borrow()[index];
            if !self.core.column_usable(segment, index) {
                bytes.1 += BLOCK_U64;
                continue;
            }
            bytes.0 += BLOCK_U64;
            let turn = self.turn(Work::Scrub, place.device, BLOCK_U64).await;
            let found = self.header_fault(segment, index, place).await;
            drop(turn);
            let leaves = self.core.failing.is_leaving(place.device);
            let stands = segment.columns.borrow()[index] == place && !leaves;
            if let Some(found) = found
                && stands
                && self.core.column_usable(segment, index)
            {
                bad.push((index, place, found));
            }
        }
        bad
    }

    /// How the header of a column's slot is bad, if it is.
    async fn header_fault(&self, segment: &Pinned, index: usize, place: Column) -> Option<Found> {
        let member = self.core.member(place.device);
        let offset = member.geometry().slot_offset(place.slot);
        let (array, blocks) = (&self.core.identity.array, self.core.slot_blocks);
        let column = u16::try_from(index).expect("at most 256 columns");
        let entry = segment.slot_entry(column, place.version);
        fault_of(member.read(offset, BLOCK).await, |bytes| {
            SlotHeader::decode(array, blocks, bytes).is_ok_and(|header| header.entry == entry)
        })
    }

    /// Writes headers again.
    ///
    /// Crash argument: a header is one block, and only one that is bad is written, in its place, with what it said when
    /// the column was placed, while the segment is held (R12): torn, it is as bad as before.
    async fn repair_headers(&self, segment: &Pinned, bad: &[BadHeader]) -> Tally {
        let mut tally = Tally::default();
        for (index, place, found) in bad {
            let devices = segment.columns.borrow().iter().map(|c| c.device).collect();
            let array = &self.core.identity.array;
            let header = header_bytes(array, segment, *index, *place, devices);
            let offset = self
                .core
                .member(place.device)
                .geometry()
                .slot_offset(place.slot);
            let stands = segment.columns.borrow()[*index] == *place
                && self.core.column_usable(segment, *index);
            let repaired = stands
                && self.core.write_durably(place.device, offset, header).await
                && self.header_fault(segment, *index, *place).await.is_none();
            tally.add(place.device, Part::Header, *found, repaired);
        }
        tally
    }

    /// All segments have been looked at: what devices keep of their own is left.
    async fn end_of_scrub(self: &Rc<Self>, aim: Aim) {
        let mut tally = Tally::default();
        let (own, whole) = self.home.look_at_own(aim.check).await;
        for (device, part, found, repaired) in own {
            tally.add(device, part, found, repaired);
        }
        let skipped = u64::from(!whole) * BLOCK_U64;
        if !self.goes_on(&aim) {
            return self.rests_after(&aim, tally);
        }
        self.home.scrubbed(None, self.seen(tally, (0, skipped)));
        self.home.end_scrub(State::Done);
        let report = self.home.scrubs.reports().last().cloned();
        if let Some(report) = report {
            let (found, repaired) = report.found();
            let text = format!(
                "a scrub has ended: {} bytes were verified, bad blocks found: {found}, repaired: {repaired}",
                report.done_bytes
            );
            self.core.events.note("scrub-ended", None, text);
            let left = found.saturating_sub(repaired);
            if left > 0 {
                let text = format!(
                    "bad blocks that the scrub found and that are not repaired: {left}; see 'ashlar status'"
                );
                self.core.events.note("scrub-left", None, text);
            }
        }
        self.home.checkpoint(0).await;
    }
}

/// The course of a block, and its column.
fn course_of(segment: &Pinned, block: &BadBlock) -> (u32, usize) {
    (
        segment.geometry.course_of(block.stripe),
        block.column.into(),
    )
}

/// The part of a device that a block is of.
fn part_of(segment: &Pinned, block: &BadBlock) -> Part {
    match block.within {
        SUMMARY => Part::Summary,
        _ if block.column < segment.geometry.k => Part::Data,
        _ => Part::Parity,
    }
}
