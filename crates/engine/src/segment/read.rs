//! Reading blocks: verified, and decoded from the other columns when they do not come or do not match.
//!
//! A device error, a missing device, a mismatch and a deadline are one thing: a missing strip. The
//! first attempt decodes from the other columns as they are read, and checks the result by the map's
//! digest; only if that fails is each of these columns checked, by its summary row. A bad block found on
//! the way is counted against its device and repaired in the background (`segment/bad.rs`).
//!
//! Invariants: bytes are returned only if their digest matches (P1); the caller holds the segment, so
//! its slots cannot be reused under a read (R12).

use std::rc::Rc;

use ashlar_format::BLOCK;
use ashlar_format::geometry::ROWS_PER_SUMMARY;
use ashlar_format::summary::{self, Row, SummaryId};
use ashlar_rt::{Buf, Join};

use crate::planted::{self, Bug};
use crate::segment::bad::{BadBlock, SUMMARY};
use crate::segment::coder::Survivor;
use crate::segment::stripe::{device_offset, row_matches};
use crate::segment::table::Core;
use crate::segment::{Column, Pinned, Segment};

/// More is lost than the redundancy covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost;

/// Reads `count` data blocks from `block` on, which lie in one stripe and are checked as one by
/// `check`.
pub async fn read_unit(
    core: &Rc<Core>,
    segment: &Pinned,
    block: u32,
    count: u32,
    check: &dyn Fn(&[u8]) -> bool,
) -> Result<Buf, Lost> {
    let mut unit = Buf::zeroed(count as usize * BLOCK);
    let before = places_of(core, segment, block, count);
    let missing = read_direct(core, segment, block, &mut unit).await;
    if missing.is_empty() && (planted::on(Bug::ReadUnverified) || check(&unit)) {
        return Ok(unit);
    }
    // Decode what did not come; if everything came but does not match and is one block, decode that.
    let suspects: Vec<u32> = if missing.is_empty() && count == 1 {
        vec![block]
    } else {
        missing.clone()
    };
    if !suspects.is_empty() {
        let mut decoded = true;
        for at in &suspects {
            match decode_block(core, segment, *at, false).await {
                Some(bytes) => put(&mut unit, block, *at, &bytes),
                None => decoded = false,
            }
        }
        if decoded && (planted::on(Bug::DecodedUnverified) || check(&unit)) {
            for at in suspects {
                note_bad(core, segment, at, before[(at - block) as usize]).await;
            }
            return Ok(unit);
        }
    }
    // Look at every input: each block by its own row, the rest decoded from what verifies.
    for at in block..block + count {
        let (stripe, strip, within) = segment.geometry.locate(at);
        let now = usable_place(core, segment, usize::from(strip));
        let good = match read_verified(core, segment, stripe, usize::from(strip), within).await {
            Some(bytes) => Some(bytes),
            None => {
                note_bad(core, segment, at, now).await;
                decode_block(core, segment, at, true).await
            }
        };
        put(&mut unit, block, at, &good.ok_or(Lost)?);
    }
    if check(&unit) {
        return Ok(unit);
    }
    // Every row agrees with its block, but the map does not: a write was lost together with its row.
    // Trust no row of the unit's own columns.
    for at in block..block + count {
        if let Some(bytes) = decode_block(core, segment, at, true).await {
            put(&mut unit, block, at, &bytes);
        }
        if check(&unit) {
            note_bad(core, segment, at, before[(at - block) as usize]).await;
            return Ok(unit);
        }
    }
    Err(Lost)
}

fn put(unit: &mut Buf, first: u32, at: u32, bytes: &[u8]) {
    let start = (at - first) as usize * BLOCK;
    unit[start..start + BLOCK].copy_from_slice(bytes);
}

/// Where a column can be read just now: what a bad block found there is held against.
fn usable_place(core: &Core, segment: &Segment, column: usize) -> Option<Column> {
    let usable = core.column_usable(segment, column);
    usable.then(|| segment.columns.borrow()[column])
}

/// Where the columns of these data blocks can be read just now.
fn places_of(core: &Core, segment: &Segment, block: u32, count: u32) -> Vec<Option<Column>> {
    let strip = |at| usize::from(segment.geometry.locate(at).1);
    (block..block + count)
        .map(|at| usable_place(core, segment, strip(at)))
        .collect()
}

/// Counts a bad data block against its device and has it healed.
async fn note_bad(core: &Rc<Core>, segment: &Pinned, at: u32, before: Option<Column>) {
    let (stripe, strip, within) = segment.geometry.locate(at);
    note_bad_strip(core, segment, stripe, usize::from(strip), within, before).await;
}

/// Counts a bad block of a strip against its device and has it healed. Not in a stripe without rows: it was written,
/// and what was known of it went with lost records of the journal. What it is taken for is no device's fault, and
/// nothing says what it should be (#147).
async fn note_bad_strip(
    core: &Rc<Core>,
    segment: &Pinned,
    stripe: u32,
    column: usize,
    within: u32,
    before: Option<Column>,
) {
    if !is_rowless(core, segment, stripe, within).await {
        note_bad_block(core, segment, stripe, column, within, before);
    }
}

/// Whether no row that can be read, of the columns that every stripe is written to, says anything.
async fn is_rowless(core: &Rc<Core>, segment: &Pinned, stripe: u32, within: u32) -> bool {
    let mut rowless = false;
    for column in segment.always_written() {
        match read_row(core, segment, stripe, column, within).await {
            Some(row) if row.digest != [0; 16] => return false,
            Some(_) => rowless = true,
            None => {}
        }
    }
    rowless
}

/// Counts a bad block against the device it was read from: only if the column could be read when the
/// reading began (`before`) and still lies there. A column that was missing, or has been reconstructed
/// elsewhere meanwhile, is no fault of where it lies now.
fn note_bad_block(
    core: &Rc<Core>,
    segment: &Segment,
    stripe: u32,
    column: usize,
    within: u32,
    before: Option<Column>,
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
    core.report_bad(place.device, block);
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
            let place = Some(survivor.place);
            note_bad_block(core, segment, stripe, survivor.column, within, place);
        }
    }
}

/// Reads data blocks straight from their columns, strip by strip; gives the blocks that did not come.
async fn read_direct(core: &Rc<Core>, segment: &Pinned, block: u32, unit: &mut Buf) -> Vec<u32> {
    let count = u32::try_from(unit.len() / BLOCK).expect("a unit is small");
    let mut missing = Vec::new();
    let mut at = block;
    while at < block + count {
        let (stripe, strip, within) = segment.geometry.locate(at);
        let run = (segment.geometry.strip_blocks - within).min(block + count - at);
        match read_column(core, segment, stripe, usize::from(strip), within, run).await {
            Some(bytes) => {
                let start = (at - block) as usize * BLOCK;
                unit[start..start + bytes.len()].copy_from_slice(&bytes);
            }
            None => missing.extend(at..at + run),
        }
        at += run;
    }
    missing
}

/// Reads blocks of one strip, unverified; `None` if the column is missing or fails.
pub async fn read_column(
    core: &Rc<Core>,
    segment: &Pinned,
    stripe: u32,
    column: usize,
    within: u32,
    count: u32,
) -> Option<Buf> {
    if column < usize::from(segment.geometry.k) && is_absent(segment, stripe, column) {
        return Some(Buf::zeroed(count as usize * BLOCK));
    }
    read_placed(core, segment, stripe, column, within, count).await
}

/// Reads blocks of one strip from where its column lies.
async fn read_placed(
    core: &Rc<Core>,
    segment: &Segment,
    stripe: u32,
    column: usize,
    within: u32,
    count: u32,
) -> Option<Buf> {
    let place = usable_place(core, segment, column)?;
    let offset = device_offset(core, place, segment.geometry.strip_block(stripe) + within);
    let bytes = count as usize * BLOCK;
    core.member(place.device).read(offset, bytes).await.ok()
}

/// Whether a data strip is known never to have been written.
fn is_absent(segment: &Segment, stripe: u32, strip: usize) -> bool {
    segment
        .short
        .borrow()
        .get(&stripe)
        .is_some_and(|used| strip >= usize::from(*used))
}

/// How many blocks are computed, and from which inputs.
#[derive(Clone, Copy)]
enum Inputs {
    /// From blocks that match their rows.
    Verified(u32),
    /// From blocks as they are read: whoever asks checks the result.
    AsRead(u32),
}

/// Computes one data block from the same block of other columns. With `verified`, only from inputs
/// that match their rows.
async fn decode_block(
    core: &Rc<Core>,
    segment: &Pinned,
    block: u32,
    verified: bool,
) -> Option<Buf> {
    let (stripe, strip, within) = segment.geometry.locate(block);
    let inputs = match verified {
        true => Inputs::Verified(1),
        false => Inputs::AsRead(1),
    };
    decode(core, segment, stripe, usize::from(strip), within, inputs).await
}

/// Computes one block of any column from the same block of other columns, which match their rows.
pub async fn decode_column(
    core: &Rc<Core>,
    segment: &Pinned,
    stripe: u32,
    wanted: usize,
    within: u32,
) -> Option<Buf> {
    decode_verified_run(core, segment, stripe, wanted, within, 1).await
}

/// Computes blocks of one strip from the same blocks of other columns, which all match their rows: each of these is read
/// once for all.
pub async fn decode_verified_run(
    core: &Rc<Core>,
    segment: &Pinned,
    stripe: u32,
    wanted: usize,
    within: u32,
    count: u32,
) -> Option<Buf> {
    let inputs = Inputs::Verified(count);
    decode(core, segment, stripe, wanted, within, inputs).await
}

/// Computes blocks of one strip from the same blocks of other columns, unverified: each of these is read once for all.
pub async fn decode_run(
    core: &Rc<Core>,
    segment: &Pinned,
    stripe: u32,
    wanted: usize,
    within: u32,
    count: u32,
) -> Option<Buf> {
    decode(core, segment, stripe, wanted, within, Inputs::AsRead(count)).await
}

/// What the first `k` of these columns give that give anything, as many asked at once as are still needed; `None` if fewer
/// do.
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

async fn decode(
    core: &Rc<Core>,
    segment: &Pinned,
    stripe: u32,
    wanted: usize,
    within: u32,
    from: Inputs,
) -> Option<Buf> {
    let (k, width) = (usize::from(segment.geometry.k), segment.geometry.width());
    let read = |column| {
        let (core2, segment) = (core.clone(), segment.clone());
        core.rt
            .spawn(async move { read_input(&core2, &segment, stripe, column, within, from).await })
    };
    let others = (0..width).filter(|column| *column != wanted);
    let found = first_found(k, others, read).await?;
    let mut inputs: Vec<Option<Buf>> = (0..width).map(|_| None).collect();
    for (column, bytes) in found {
        inputs[column] = Some(bytes);
    }
    let bytes = inputs.iter().flatten().next()?.len();
    let mut out = Buf::scratch(bytes);
    let strips: Vec<Option<&[u8]>> = inputs.iter().map(|i| i.as_deref()).collect();
    core.code(segment)
        .decode(&strips, &[wanted], &mut [&mut out])
        .ok()?;
    Some(out)
}

/// Reads blocks of a column to compute those of another from. In a run a block that does not match only keeps the column
/// from being used; whoever then computes block by block counts it.
async fn read_input(
    core: &Rc<Core>,
    segment: &Pinned,
    stripe: u32,
    column: usize,
    within: u32,
    from: Inputs,
) -> Option<Buf> {
    let count = match from {
        Inputs::AsRead(count) => {
            return read_column(core, segment, stripe, column, within, count).await;
        }
        Inputs::Verified(count) => count,
    };
    let before = usable_place(core, segment, column);
    let read = read_verified_run(core, segment, stripe, column, within, count).await;
    if read.is_none() && count == 1 {
        note_bad_strip(core, segment, stripe, column, within, before).await;
    }
    read
}

/// Reads one block and its row; the block if they match. A strip that was never written gives zeros.
pub async fn read_verified(
    core: &Rc<Core>,
    segment: &Pinned,
    stripe: u32,
    column: usize,
    within: u32,
) -> Option<Buf> {
    read_verified_run(core, segment, stripe, column, within, 1).await
}

/// Reads blocks of one strip with their rows; the blocks if all match. A strip that was never written gives zeros.
async fn read_verified_run(
    core: &Rc<Core>,
    segment: &Pinned,
    stripe: u32,
    column: usize,
    within: u32,
    count: u32,
) -> Option<Buf> {
    let rows = read_rows(core, segment, stripe, column, within, count).await?;
    if rows.iter().all(|row| row.digest == [0; 16]) {
        let absent = column < usize::from(segment.geometry.k);
        return absent.then(|| Buf::zeroed(rows.len() * BLOCK));
    }
    let bytes = read_placed(core, segment, stripe, column, within, count).await?;
    let number = u16::try_from(column).expect("at most 256 columns");
    let mut blocks = (within..).zip(rows.iter().zip(bytes.chunks(BLOCK)));
    let matches =
        |(within, (row, block))| row_matches(core, segment, stripe, number, within, row, block);
    blocks.all(matches).then_some(bytes)
}

/// The row of one block, from memory while its course is open, else from the column's summary.
async fn read_row(
    core: &Rc<Core>,
    segment: &Pinned,
    stripe: u32,
    column: usize,
    within: u32,
) -> Option<Row> {
    let rows = read_rows(core, segment, stripe, column, within, 1).await?;
    rows.first().copied()
}

/// The rows of blocks of one strip, from memory while their course is open, else from the column's summary: each block of
/// it is read once.
async fn read_rows(
    core: &Rc<Core>,
    segment: &Pinned,
    stripe: u32,
    column: usize,
    within: u32,
    count: u32,
) -> Option<Vec<Row>> {
    if let Some(known) = segment.rows.borrow().get(&stripe) {
        let row = |at: u32| known[column].get(at as usize).copied();
        let wanted = within..within + count;
        return Some(wanted.map(|at| row(at).unwrap_or_default()).collect());
    }
    let course = segment.geometry.course_of(stripe);
    let first = stripe % segment.geometry.course_strips() * segment.geometry.strip_blocks + within;
    let end = first + count;
    let mut wanted = Vec::with_capacity(count as usize);
    for part in first / ROWS_PER_SUMMARY..end.div_ceil(ROWS_PER_SUMMARY) {
        let rows = read_summary_part(core, segment, course, column, part).await?;
        let of_part = (part * ROWS_PER_SUMMARY..).zip(rows);
        wanted.extend(
            of_part
                .filter(|(at, _)| (first..end).contains(at))
                .map(|(_, row)| row),
        );
    }
    (wanted.len() == count as usize).then_some(wanted)
}

async fn read_summary_part(
    core: &Rc<Core>,
    segment: &Pinned,
    course: u32,
    column: usize,
    part: u32,
) -> Option<Vec<Row>> {
    let place = usable_place(core, segment, column)?;
    let rows = summary_part(core, segment, place, course, column, part).await?;
    if rows.is_none() {
        let stripe = course * segment.geometry.course_strips();
        note_bad_block(core, segment, stripe, column, SUMMARY, Some(place));
    }
    rows
}

/// A part of a column's summary of a course, if the device it lies on gives it; `Some(None)` if that is none.
async fn summary_part(
    core: &Rc<Core>,
    segment: &Pinned,
    place: Column,
    course: u32,
    column: usize,
    part: u32,
) -> Option<Option<Vec<Row>>> {
    let offset = device_offset(core, place, segment.geometry.summary_block(course) + part);
    let bytes = core.member(place.device).read(offset, BLOCK).await.ok()?;
    let number = u16::try_from(column).expect("at most 256 columns");
    let id = SummaryId {
        segment: segment.number,
        column: number,
        course,
        part,
    };
    Some(summary::decode(&core.identity.array, id, &bytes).ok())
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
            let Some(Some(found)) = found.await else {
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

/// All rows of a column of a course: from memory, else from its summary; `None` if it cannot be read.
pub async fn read_course_rows(
    core: &Rc<Core>,
    segment: &Pinned,
    course: u32,
    column: usize,
) -> Option<Vec<Row>> {
    let geometry = segment.geometry;
    let (first, strips) = (
        course * geometry.course_strips(),
        geometry.strips_in(course),
    );
    if segment.rows.borrow().contains_key(&first) {
        let rows = segment.rows.borrow();
        let mut all = Vec::new();
        for stripe in first..first + strips {
            let start = all.len();
            if let Some(columns) = rows.get(&stripe) {
                all.extend_from_slice(&columns[column]);
            }
            all.resize(start + geometry.strip_blocks as usize, Row::default());
        }
        return Some(all);
    }
    let mut all = Vec::new();
    for part in 0..geometry.summary_blocks(strips) {
        all.extend(read_summary_part(core, segment, course, column, part).await?);
    }
    (all.len() == (strips * geometry.strip_blocks) as usize).then_some(all)
}

/// All strips of a column of a course with one device read, not verified yet, with their rows. Strips that
/// were never written are zeros. `None` if rows or strips cannot be read.
pub async fn read_course(
    core: &Rc<Core>,
    segment: &Pinned,
    course: u32,
    column: usize,
) -> Option<Survivor> {
    let geometry = segment.geometry;
    let rows = read_course_rows(core, segment, course, column).await?;
    let first = course * geometry.course_strips();
    let place = segment.columns.borrow()[column];
    let offset = device_offset(core, place, geometry.strip_block(first));
    let mut bytes = core
        .member(place.device)
        .read(offset, rows.len() * BLOCK)
        .await
        .ok()?;
    for (row, block) in rows.iter().zip(bytes.chunks_mut(BLOCK)) {
        if row.digest == [0; 16] {
            block.fill(0);
        }
    }
    Some(Survivor {
        column,
        place,
        bytes: bytes.freeze(),
        rows,
    })
}

#[cfg(test)]
mod tests;
