//! Reading blocks: verified, and decoded from the other columns when they do not come or do not match.
//!
//! A device error, a missing device, a mismatch and a deadline are one thing: a missing strip. [`plan_read`] says what
//! is read, decoded and checked by rows; what does not come, or does not match the map's digest, is trusted less by the
//! next plan. A bad block found on the way is counted against its device and repaired in the background
//! (`segment/bad.rs`).
//!
//! Invariants: bytes are returned only if their digest matches (P1); the caller holds the segment, so
//! its slots cannot be reused under a read (R12).

use std::rc::Rc;

use ashlar_format::BLOCK;
use ashlar_format::geometry::ROWS_PER_SUMMARY;
use ashlar_format::summary::{self, Row, SummaryId};
use ashlar_rt::{Buf, Join};

use crate::planted::{self, Bug};
use crate::segment::bad::{BadBlock, Found, SUMMARY};
use crate::segment::coder::Survivor;
use crate::segment::plan::{How, Span, Step, Trust, Unit, plan_read};
use crate::segment::stripe::{device_offset, row_matches};
use crate::segment::table::Core;
use crate::segment::{Column, Pinned, Segment};

/// More is lost than the redundancy covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost;

/// Reads data blocks, which lie in one stripe and are checked as one by `check`; `wrong`: their bytes as their devices
/// have just given them, which did not match. Blocks of which a second read is right are counted as well.
pub async fn read_unit(
    core: &Rc<Core>,
    segment: &Pinned,
    unit: Unit,
    wrong: Option<&[u8]>,
    check: &dyn Fn(&[u8]) -> bool,
) -> Result<Buf, Lost> {
    let Unit { block, count } = unit;
    let mut bytes = Buf::zeroed(count as usize * BLOCK);
    let before = places_of(core, segment, unit);
    let note = async |at: u32, found: Found| {
        let place = before[(at - block) as usize];
        let (stripe, strip, within) = segment.geometry.locate(at);
        let span = Span::block(stripe, usize::from(strip), within);
        note_bad_strip(core, segment, span, place, found).await;
    };
    let (mut trust, mut found) = (Trust::Devices, Found::Wrong);
    if wrong.is_some() {
        trust = trust.less(unit, Vec::new()).ok_or(Lost)?;
    }
    loop {
        let mut missing = Vec::new();
        for step in plan_read(segment.geometry, unit, &trust) {
            match take_step(core, segment, &step).await {
                Some(read) => {
                    let start = (step.block - block) as usize * BLOCK;
                    bytes[start..start + read.len()].copy_from_slice(&read);
                }
                None if trust == Trust::Rows => return Err(Lost),
                None => missing.extend(step.block..step.block + step.span.count),
            }
            if trust == Trust::OtherRows && check(&bytes) {
                note(step.block, Found::Wrong).await;
                return Ok(bytes);
            }
        }
        let unchecked = match trust {
            Trust::Devices => planted::on(Bug::ReadUnverified),
            Trust::But(_) => planted::on(Bug::DecodedUnverified),
            Trust::Rows | Trust::OtherRows => false,
        };
        if missing.is_empty() && (unchecked || check(&bytes)) {
            let suspects = match (trust, wrong) {
                (Trust::But(suspects), _) => suspects,
                (_, None) => Vec::new(),
                (_, Some(wrong)) => {
                    let both = wrong.chunks(BLOCK).zip(bytes.chunks(BLOCK));
                    let differ = (block..).zip(both).filter(|(_, (was, is))| was != is);
                    differ.map(|(at, _)| at).collect()
                }
            };
            for at in suspects {
                note(at, found).await;
            }
            return Ok(bytes);
        }
        if !missing.is_empty() && wrong.is_none() {
            found = Found::Unreadable;
        }
        trust = trust.less(unit, missing).ok_or(Lost)?;
    }
}

/// The blocks of a step, had as it says; one that does not match its row is counted.
async fn take_step(core: &Rc<Core>, segment: &Pinned, step: &Step) -> Option<Buf> {
    let now = usable_place(core, segment, step.span.column);
    match (step.otherwise, step.how) {
        (Some(otherwise), How::Verified) => match read_matching(core, segment, step.span).await {
            Ok(read) => Some(read),
            Err(found) => {
                note_bad_strip(core, segment, step.span, now, found).await;
                fetch(core, segment, step.span, otherwise).await
            }
        },
        (_, how) => fetch(core, segment, step.span, how).await,
    }
}

/// Reads or computes blocks of one strip.
pub async fn fetch(core: &Rc<Core>, segment: &Pinned, span: Span, how: How) -> Option<Buf> {
    match how {
        How::Read => read_as_is(core, segment, span).await,
        How::Verified => read_matching(core, segment, span).await.ok(),
        How::Decoded => decode(core, segment, span, How::Read).await,
        How::DecodedVerified => decode(core, segment, span, How::Verified).await,
    }
}

/// Where a column can be read just now: what a bad block found there is held against.
pub fn usable_place(core: &Core, segment: &Segment, column: usize) -> Option<Column> {
    let usable = core.column_usable(segment, column);
    usable.then(|| segment.columns.borrow()[column])
}

/// Where the columns of these data blocks can be read just now.
fn places_of(core: &Core, segment: &Segment, unit: Unit) -> Vec<Option<Column>> {
    let strip = |at| usize::from(segment.geometry.locate(at).1);
    (unit.block..unit.block + unit.count)
        .map(|at| usable_place(core, segment, strip(at)))
        .collect()
}

/// Counts a bad block of a strip against its device and has it repaired. Not in a stripe without rows: it was written,
/// and what was known of it went with lost records of the journal. What it is taken for is no device's fault, and
/// nothing says what it should be (#147).
async fn note_bad_strip(
    core: &Rc<Core>,
    segment: &Pinned,
    span: Span,
    before: Option<Column>,
    found: Found,
) {
    if !is_rowless(core, segment, span).await {
        let place = (span.stripe, span.column, span.within);
        note_bad_block(core, segment, place, before, found);
    }
}

/// Whether no row that can be read, of the columns that every stripe is written to, says anything.
async fn is_rowless(core: &Rc<Core>, segment: &Pinned, span: Span) -> bool {
    let mut rowless = false;
    for column in segment.always_written() {
        let span = Span::block(span.stripe, column, span.within);
        match read_rows(core, segment, span).await.as_deref() {
            Some([row, ..]) if row.digest != [0; 16] => return false,
            Some([_, ..]) => rowless = true,
            _ => {}
        }
    }
    rowless
}

/// Counts a bad block against the device it was read from: only if the column could be read when the
/// reading began (`before`) and still lies there. A column that was missing, or has been rebuilt
/// elsewhere meanwhile, is no fault of where it lies now.
fn note_bad_block(
    core: &Rc<Core>,
    segment: &Segment,
    (stripe, column, within): (u32, usize, u32),
    before: Option<Column>,
    found: Found,
) {
    let Some(place) = before.filter(|b| usable_place(core, segment, column) == Some(*b)) else {
        return;
    };
    let block = BadBlock {
        segment: segment.number,
        column: u16::try_from(column).expect("at most 256 columns"),
        stripe,
        within,
    };
    core.report_bad(place.device, block, found);
}

/// Counts blocks of a column of a course that turned out bad after it was read. Those of stripes that no record names
/// count for nothing: power may have gone while they were written.
pub fn note_bad_blocks(
    core: &Rc<Core>,
    segment: &Segment,
    course: u32,
    survivor: &Survivor,
    bad: &[usize],
) {
    for at in bad {
        let at = u32::try_from(*at).expect("a course is small");
        let (stripe, within) = segment.geometry.in_course(course, at);
        if stripe < segment.recorded.get() {
            let (block, place) = ((stripe, survivor.column, within), Some(survivor.place));
            note_bad_block(core, segment, block, place, Found::Wrong);
        }
    }
}

/// Reads blocks of one strip, unverified; `None` if the column is missing or fails.
async fn read_as_is(core: &Rc<Core>, segment: &Segment, span: Span) -> Option<Buf> {
    if span.column < usize::from(segment.geometry.k) && is_absent(segment, span.stripe, span.column)
    {
        return Some(Buf::zeroed(span.count as usize * BLOCK));
    }
    read_placed(core, segment, span).await
}

/// Reads blocks of one strip from where its column lies.
async fn read_placed(core: &Rc<Core>, segment: &Segment, span: Span) -> Option<Buf> {
    let place = usable_place(core, segment, span.column)?;
    let at = segment.geometry.strip_block(span.stripe) + span.within;
    let bytes = span.count as usize * BLOCK;
    let member = core.member(place.device);
    member
        .read(device_offset(core, place, at), bytes)
        .await
        .ok()
}

/// Whether a data strip is known never to have been written.
fn is_absent(segment: &Segment, stripe: u32, strip: usize) -> bool {
    segment
        .short
        .borrow()
        .get(&stripe)
        .is_some_and(|used| strip >= usize::from(*used))
}

/// What the first `k` of these columns give that give anything, as many asked at once as are still needed; `None` if
/// fewer do.
pub async fn first_found<T>(
    k: usize,
    mut columns: impl Iterator<Item = usize>,
    ask: impl Fn(usize) -> Join<Option<T>>,
) -> Option<Vec<(usize, T)>> {
    let mut found = Vec::with_capacity(k);
    while found.len() < k {
        let next = columns.by_ref().take(k - found.len());
        let asked: Vec<_> = next.map(|column| (column, ask(column))).collect();
        if asked.is_empty() {
            return None;
        }
        for (column, answer) in asked {
            found.extend(answer.await.map(|given| (column, given)));
        }
    }
    Some(found)
}

/// Computes blocks of one strip from the same blocks of other columns, each of which is read once for all.
async fn decode(core: &Rc<Core>, segment: &Pinned, span: Span, from: How) -> Option<Buf> {
    let (k, width) = (usize::from(segment.geometry.k), segment.geometry.width());
    let read = |column| {
        let (core2, segment) = (core.clone(), segment.clone());
        let span = Span { column, ..span };
        core.rt
            .spawn(async move { read_input(&core2, &segment, span, from).await })
    };
    let others = (0..width).filter(|column| *column != span.column);
    let found = first_found(k, others, read).await?;
    let mut inputs: Vec<Option<Buf>> = (0..width).map(|_| None).collect();
    for (column, bytes) in found {
        inputs[column] = Some(bytes);
    }
    let bytes = inputs.iter().flatten().next()?.len();
    let mut out = Buf::scratch(bytes);
    let strips: Vec<Option<&[u8]>> = inputs.iter().map(|i| i.as_deref()).collect();
    core.code(segment)
        .decode(&strips, &[span.column], &mut [&mut out])
        .ok()?;
    Some(out)
}

/// Reads blocks of a column to compute those of another from. In a run a block that does not match only keeps the
/// column from being used; whoever then computes block by block counts it.
async fn read_input(core: &Rc<Core>, segment: &Pinned, span: Span, how: How) -> Option<Buf> {
    if how == How::Read {
        return read_as_is(core, segment, span).await;
    }
    let before = usable_place(core, segment, span.column);
    match read_matching(core, segment, span).await {
        Ok(read) => Some(read),
        Err(found) => {
            if span.count == 1 {
                note_bad_strip(core, segment, span, before, found).await;
            }
            None
        }
    }
}

/// Reads blocks of one strip with their rows; the blocks if all match. A strip that was never written gives zeros.
async fn read_matching(core: &Rc<Core>, segment: &Pinned, span: Span) -> Result<Buf, Found> {
    let rows = read_rows(core, segment, span).await;
    let rows = rows.ok_or(Found::Unreadable)?; // the summary is at fault, and counted as it is
    if rows.iter().all(|row| row.digest == [0; 16]) {
        let absent = span.column < usize::from(segment.geometry.k);
        let zeros = absent.then(|| Buf::zeroed(rows.len() * BLOCK));
        return zeros.ok_or(Found::Wrong);
    }
    let bytes = read_placed(core, segment, span).await;
    let bytes = bytes.ok_or(Found::Unreadable)?;
    let column = u16::try_from(span.column).expect("at most 256 columns");
    let mut blocks = (span.within..).zip(rows.iter().zip(bytes.chunks(BLOCK)));
    let matches = |(within, (row, block))| {
        row_matches(core, segment, span.stripe, column, within, row, block)
    };
    match blocks.all(matches) {
        true => Ok(bytes),
        false => Err(Found::Wrong),
    }
}

/// The rows of blocks of one strip, from memory while their course is open, else from the column's summary: each block
/// of it is read once.
async fn read_rows(core: &Rc<Core>, segment: &Pinned, span: Span) -> Option<Vec<Row>> {
    if let Some(known) = segment.rows.borrow().get(&span.stripe) {
        let row = |at: u32| known[span.column].get(at as usize).copied();
        let wanted = span.within..span.within + span.count;
        return Some(wanted.map(|at| row(at).unwrap_or_default()).collect());
    }
    let geometry = segment.geometry;
    let course = geometry.course_of(span.stripe);
    let first = span.stripe % geometry.course_strips() * geometry.strip_blocks + span.within;
    let end = first + span.count;
    let mut wanted = Vec::with_capacity(span.count as usize);
    for part in first / ROWS_PER_SUMMARY..end.div_ceil(ROWS_PER_SUMMARY) {
        let rows = read_summary_part(core, segment, course, span.column, part).await?;
        let of_part = (part * ROWS_PER_SUMMARY..).zip(rows);
        wanted.extend(
            of_part
                .filter(|(at, _)| (first..end).contains(at))
                .map(|(_, row)| row),
        );
    }
    (wanted.len() == span.count as usize).then_some(wanted)
}

/// A part of a column's summary of a course; one that is bad counts against its device, and is repaired.
pub(super) async fn read_summary_part(
    core: &Rc<Core>,
    segment: &Pinned,
    course: u32,
    column: usize,
    part: u32,
) -> Option<Vec<Row>> {
    let place = usable_place(core, segment, column)?;
    match summary_part(core, segment, place, course, column, part).await {
        Ok(rows) => Some(rows),
        Err(Found::Unreadable) if !core.member(place.device).answers() => None,
        Err(found) => {
            let stripe = course * segment.geometry.course_strips();
            let summary = (stripe, column, SUMMARY);
            note_bad_block(core, segment, summary, Some(place), found);
            None
        }
    }
}

/// The same as it is on the device, which counts nothing.
pub(super) async fn summary_part(
    core: &Core,
    segment: &Segment,
    place: Column,
    course: u32,
    column: usize,
    part: u32,
) -> Result<Vec<Row>, Found> {
    let offset = device_offset(core, place, segment.geometry.summary_block(course) + part);
    let bytes = core.member(place.device).read(offset, BLOCK).await;
    let bytes = bytes.map_err(|_| Found::Unreadable)?;
    let number = u16::try_from(column).expect("at most 256 columns");
    let id = SummaryId {
        segment: segment.number,
        column: number,
        course,
        part,
    };
    summary::decode(&core.identity.array, id, &bytes).map_err(|_| Found::Wrong)
}

/// Whether the summaries of the course that a segment's last known stripe is of can all be read, and say all that the
/// rows in memory do: then they are no worse than what would be written from these.
pub async fn summary_stands(core: &Rc<Core>, segment: &Pinned) -> bool {
    let geometry = segment.geometry;
    let Some(last) = segment.recorded.get().checked_sub(1) else {
        return false;
    };
    let course = geometry.course_of(last);
    let (first, strips) = (
        course * geometry.course_strips(),
        geometry.strips_in(course),
    );
    let strip = geometry.strip_blocks as usize;
    for column in 0..geometry.width() {
        let Some(place) = usable_place(core, segment, column) else {
            continue;
        };
        let mut rows = Vec::new();
        for part in 0..geometry.summary_blocks(strips) {
            let found = summary_part(core, segment, place, course, column, part);
            let Ok(found) = found.await else {
                return false;
            };
            rows.extend(found);
        }
        let known = segment.rows.borrow();
        let mut here = (first..first + strips).zip(rows.chunks(strip));
        let stands = here.all(|(stripe, rows)| {
            let known = known.get(&stripe).map(|columns| &columns[column]);
            known.is_none_or(|known| known.is_empty() || known == rows)
        });
        if !stands {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests;
