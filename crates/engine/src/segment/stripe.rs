//! Writing a stripe: rows, parity, and one device write per column, the course's summary with its
//! last stripe.
//!
//! Crash argument (R1, R4, R14): nothing here makes a stripe part of the array. Its blocks count only
//! once a journal record that names the stripe is durable, and that record is built after every column
//! written here was flushed. The slots it writes to hold nothing live: the segment is open, and the
//! stripe number is handed out once. A torn or lost column is found by its rows, which the record
//! carries until the course's summary is itself flushed.

use std::rc::Rc;

use ashlar_digest::Kind;
use ashlar_format::context::Context;
use ashlar_format::geometry::ROWS_PER_SUMMARY;
use ashlar_format::slot::SegmentKind;
use ashlar_format::summary::{self, Owner, Row, SummaryId};
use ashlar_format::{BLOCK, BLOCK_U64};
use ashlar_rt::{Buf, Slice, join_all};

use crate::counters::add;
use crate::planted::{self, Bug};
use crate::segment::table::Core;
use crate::segment::{Column, Pinned, Segment, coder};

/// A stripe ready to be written: its parity computed, its rows known.
#[derive(Debug)]
pub struct Stripe {
    /// The segment.
    pub segment: Pinned,
    /// Its number.
    pub number: u32,
    /// Data strips that are written; the others count as zeros.
    pub used_strips: u16,
    /// Rows of each column; none for strips that are not written.
    pub rows: Vec<Vec<Row>>,
    columns: Vec<Vec<Slice>>,
}

/// Columns that lie together are written together, up to so many bytes.
const LONGEST_WRITE: u64 = 1 << 20;

/// The stripe could not be written with enough columns to be read back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooFewColumns;

/// Prepares stripe `number` of `segment`. `data` is all data strips one after another; `owners` say what
/// the blocks from the front hold, with their digests; the rest is padding.
///
/// Stripes may be computed in any order. Their rows are put down in that of their numbers, so that the last
/// stripe of a course finds all its rows.
pub async fn prepare(
    core: Rc<Core>,
    segment: Pinned,
    number: u32,
    data: Slice,
    owners: Vec<(Owner, [u8; 16])>,
) -> Stripe {
    let (core, segment) = (&core, &segment);
    let geometry = segment.geometry;
    let strip_blocks = geometry.strip_blocks as usize;
    let strip_bytes = strip_blocks * BLOCK;
    let k = usize::from(geometry.k);
    assert_eq!(
        data.len(),
        k * strip_bytes,
        "a stripe is all its data strips"
    );
    assert!(!owners.is_empty(), "an empty stripe is not written");
    let used = owners.len().div_ceil(strip_blocks);
    let coded = if planted::on(Bug::ParityOfOldData) && used == k && k > 1 {
        let old = Slice::zeroed(strip_bytes);
        vec![data.cut(0..(k - 1) * strip_bytes), old]
    } else {
        vec![data.clone()]
    };
    let (parity, digests) = coder::encode(core, segment, number, coded).await;
    if !planted::on(Bug::RowsOutOfTurn) {
        segment.turn_of(number).await;
    }
    let rows = make_rows(core, segment, number, &data, &owners, &digests);
    let mut columns: Vec<Vec<Slice>> = Vec::with_capacity(geometry.width());
    for strip in 0..k {
        let written = strip < used;
        columns.push(if written {
            vec![data.cut(strip * strip_bytes..(strip + 1) * strip_bytes)]
        } else {
            vec![]
        });
    }
    columns.extend(parity.into_iter().map(|p| vec![p]));
    segment.rows.borrow_mut().insert(number, rows.clone());
    segment.end_turn(number);
    if used < k {
        let used = u16::try_from(used).expect("at most 256 strips");
        segment.short.borrow_mut().insert(number, used);
    }
    let course = geometry.course_of(number);
    let last = number + 1 == course * geometry.course_strips() + geometry.strips_in(course);
    if last {
        for (column, slices) in columns.iter_mut().enumerate() {
            slices.push(course_summary(core, segment, course, column));
        }
    }
    Stripe {
        segment: segment.clone(),
        number,
        used_strips: u16::try_from(used).expect("at most 256 strips"),
        rows,
        columns,
    }
}

/// The rows of a stripe, column by column; `parity` are the digests of the parity blocks.
fn make_rows(
    core: &Core,
    segment: &Segment,
    number: u32,
    data: &Slice,
    owners: &[(Owner, [u8; 16])],
    parity: &[[u8; 16]],
) -> Vec<Vec<Row>> {
    let geometry = segment.geometry;
    let strip_blocks = geometry.strip_blocks as usize;
    let (k, m) = (usize::from(geometry.k), usize::from(geometry.m));
    let used = owners.len().div_ceil(strip_blocks);
    let mut rows: Vec<Vec<Row>> = vec![Vec::new(); k + m];
    for (strip, rows) in rows.iter_mut().enumerate().take(used) {
        for block in 0..strip_blocks {
            let index = strip * strip_blocks + block;
            let row = match owners.get(index) {
                Some((owner, digest)) => Row {
                    digest: *digest,
                    owner: owner.to_bytes(),
                },
                None => {
                    let bytes = &data[index * BLOCK..(index + 1) * BLOCK];
                    let (column, block) = (
                        u16::try_from(strip).unwrap_or(0),
                        u32::try_from(block).unwrap_or(0),
                    );
                    let context = Context::parity(segment.number, number, column, block);
                    let digest = core.identity.digest(Kind::Blake3, context, bytes);
                    Row {
                        digest,
                        owner: Owner::default().to_bytes(),
                    }
                }
            };
            rows.push(row);
        }
    }
    let owner_parity = encode_owners(core, segment, &rows[..k]);
    let strips = parity.chunks(strip_blocks).zip(owner_parity);
    for (rows, (digests, owners)) in rows[k..].iter_mut().zip(strips) {
        let (owners, []) = owners.as_chunks() else {
            unreachable!("whole owners")
        };
        let row = |(digest, owner): (&[u8; 16], &[u8; summary::OWNER_BYTES])| Row {
            digest: *digest,
            owner: *owner,
        };
        *rows = digests.iter().zip(owners).map(row).collect();
    }
    rows
}

/// The parity of the data columns' owner bytes: for each parity column, 16 bytes a block.
fn encode_owners(core: &Core, segment: &Segment, data_rows: &[Vec<Row>]) -> Vec<Vec<u8>> {
    let bytes = segment.geometry.strip_blocks as usize * summary::OWNER_BYTES;
    let strips: Vec<Vec<u8>> = data_rows
        .iter()
        .map(|rows| {
            let mut strip: Vec<u8> = rows.iter().flat_map(|r| r.owner).collect();
            strip.resize(bytes, 0);
            strip
        })
        .collect();
    let mut parity = vec![vec![0; bytes]; usize::from(segment.geometry.m)];
    let strips: Vec<&[u8]> = strips.iter().map(Vec::as_slice).collect();
    let mut out: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    core.code(segment).encode(&strips, &mut out);
    parity
}

/// The summary blocks of one column of a course, from the rows in memory; strips without rows were
/// never written.
pub fn course_summary(core: &Core, segment: &Segment, course: u32, column: usize) -> Slice {
    let geometry = segment.geometry;
    let strip_blocks = geometry.strip_blocks as usize;
    let rows = segment.rows.borrow();
    let first = course * geometry.course_strips();
    let mut all: Vec<Row> = Vec::new();
    for stripe in first..first + geometry.strips_in(course) {
        let start = all.len();
        if let Some(columns) = rows.get(&stripe) {
            all.extend_from_slice(&columns[column]);
        }
        all.resize(start + strip_blocks, Row::default());
    }
    summary_bytes(core, segment, course, column, &all)
}

/// The summary blocks that hold `rows`.
pub fn summary_bytes(
    core: &Core,
    segment: &Segment,
    course: u32,
    column: usize,
    rows: &[Row],
) -> Slice {
    let blocks = segment
        .geometry
        .summary_blocks(segment.geometry.strips_in(course));
    let mut buf = Buf::zeroed(blocks as usize * BLOCK);
    let parts = rows.chunks(ROWS_PER_SUMMARY as usize);
    for ((part, rows), out) in (0u32..).zip(parts).zip(buf.chunks_mut(BLOCK)) {
        let column = u16::try_from(column).expect("at most 256 columns");
        let id = SummaryId {
            segment: segment.number,
            column,
            course,
            part,
        };
        out.copy_from_slice(&summary::encode(&core.identity.array, id, rows));
    }
    buf.freeze()
}

/// The offset, on its device, of a block of a column's slot.
pub fn device_offset(core: &Core, column: Column, block: u32) -> u64 {
    core.member(column.device)
        .geometry()
        .slot_offset(column.slot)
        + u64::from(block) * BLOCK_U64
}

/// A write of one device: whole columns of stripes, one after another.
struct ColumnWrite {
    device: u16,
    offset: u64,
    bytes: u64,
    slices: Vec<Slice>,
    /// The stripes it writes columns of, by their place in the list, and which.
    stripes: Vec<(usize, usize)>,
}

/// Writes the columns of stripes, all submitted before this waits; columns that lie together on a device are one write.
/// Failed devices are reported; a stripe stands as long as no more columns are missing than it has parity.
pub async fn write(core: Rc<Core>, stripes: Vec<Rc<Stripe>>) -> Result<(), TooFewColumns> {
    let mut missing = vec![Vec::new(); stripes.len()];
    let writes = column_writes(&core, &stripes, &mut missing);
    let submit = |w: ColumnWrite| {
        let writing = core.member(w.device).write(w.offset, w.slices);
        (w.device, w.stripes, writing)
    };
    let writes: Vec<_> = writes.into_iter().map(submit).collect();
    for (device, of, writing) in writes {
        if writing.await.is_err() {
            core.report_failed(device);
            for (stripe, column) in of {
                missing[stripe].push(column);
            }
        }
    }
    let mut stands = Ok(());
    for (stripe, missing) in stripes.iter().zip(missing) {
        let geometry = stripe.segment.geometry;
        if stripe.segment.kind == SegmentKind::Data {
            let blocks = u64::from(stripe.used_strips) * u64::from(geometry.strip_blocks);
            add(&core.meters.data, blocks);
        }
        if stripe.segment.survives(|c| missing.contains(&c)).is_none() {
            stands = Err(TooFewColumns);
        }
    }
    stands
}

/// The writes that put stripes on their devices, in the order in which they lie there; adds the columns that have no
/// device to go to to `missing`, by stripe.
fn column_writes(
    core: &Core,
    stripes: &[Rc<Stripe>],
    missing: &mut [Vec<usize>],
) -> Vec<ColumnWrite> {
    let mut writes = Vec::with_capacity(stripes.len() * stripes[0].columns.len());
    for (at, (stripe, missing)) in stripes.iter().zip(missing).enumerate() {
        let segment = &stripe.segment;
        for (index, slices) in stripe.columns.iter().enumerate() {
            if !core.column_usable(segment, index) {
                missing.push(index);
                continue;
            }
            let mut block = segment.geometry.strip_block(stripe.number);
            let strip_is_written =
                index < usize::from(stripe.used_strips) || index >= usize::from(segment.geometry.k);
            if !strip_is_written {
                if slices.is_empty() {
                    continue;
                }
                block += segment.geometry.strip_blocks; // the summary alone
            }
            let column = segment.columns.borrow()[index];
            let slices: Vec<Slice> = slices.iter().filter(|s| !s.is_empty()).cloned().collect();
            writes.push(ColumnWrite {
                device: column.device,
                offset: device_offset(core, column, block),
                bytes: slices.iter().map(|s| s.len() as u64).sum(),
                slices,
                stripes: vec![(at, index)],
            });
        }
    }
    if stripes.len() > 1 {
        writes.sort_by_key(|w| (w.device, w.offset));
        writes.dedup_by(|next, last| {
            let follows = next.device == last.device && next.offset == last.offset + last.bytes;
            let joins = follows && last.bytes + next.bytes <= LONGEST_WRITE;
            if joins {
                last.bytes += next.bytes;
                last.slices.append(&mut next.slices);
                last.stripes.append(&mut next.stripes);
            }
            joins
        });
    }
    writes
}

/// Ends an open segment: the summary of its unfinished course is written and flushed, so that its rows
/// no longer hang on the journal. Only when every stripe handed out has been recorded.
///
/// Crash argument: until this has been flushed and a root says `sealed`, the journal keeps the rows and
/// recovery writes the same summary again.
pub async fn seal(core: &Rc<Core>, segment: &Pinned) {
    if segment.sealed.get() {
        return;
    }
    assert_eq!(
        segment.recorded.get(),
        segment.next_stripe.get(),
        "no stripe of a segment being sealed is in flight"
    );
    segment.sealed.set(true);
    let geometry = segment.geometry;
    let recorded = segment.recorded.get();
    if recorded == 0
        || recorded.is_multiple_of(geometry.course_strips())
        || recorded == geometry.stripes()
    {
        finish_course(segment, u32::MAX);
        return;
    }
    // If the rows are not known they were in a summary when the journal was cut: it stays as it is.
    write_summary(core, segment, recorded).await;
    finish_course(segment, u32::MAX);
}

/// Writes and flushes the summary of the course that stripe `upto - 1` is of, with the rows of the
/// stripes below `upto`. False, and nothing is written, if not all of them are known.
///
/// Crash argument: where a summary is overwritten, it is by the same rows and perhaps more, so that a
/// torn write leaves every row that was there.
pub async fn write_summary(core: &Rc<Core>, segment: &Pinned, upto: u32) -> bool {
    let geometry = segment.geometry;
    let course = geometry.course_of(upto - 1);
    let first = course * geometry.course_strips();
    let known = (first..upto).all(|stripe| {
        let void = segment.short.borrow().get(&stripe) == Some(&0);
        void || segment.rows.borrow().contains_key(&stripe)
    });
    if !known {
        return false;
    }
    let mut joins = Vec::new();
    for index in 0..geometry.width() {
        if !core.column_usable(segment, index) {
            continue;
        }
        let summary = course_summary(core, segment, course, index);
        let column = segment.columns.borrow()[index];
        let core = core.clone();
        let offset = device_offset(&core, column, geometry.summary_block(course));
        joins.push(
            core.rt
                .clone()
                .spawn(async move { core.write_durably(column.device, offset, summary).await }),
        );
    }
    join_all(joins).await;
    true
}

/// Forgets the rows of stripes below `end`: the summary of their course is durable.
pub fn finish_course(segment: &Segment, end: u32) {
    segment.rows.borrow_mut().retain(|stripe, _| *stripe >= end);
    segment.rows_since.set(None);
}

/// Whether `bytes` are what `row` says block `block` of a stripe's column holds. An absent strip's row
/// (all zero) matches nothing: its content is zeros by definition, whatever is read.
pub fn row_matches(
    core: &Core,
    segment: &Segment,
    stripe: u32,
    column: u16,
    block: u32,
    row: &Row,
    bytes: &[u8],
) -> bool {
    if row.digest == [0; 16] {
        return false;
    }
    let owner = Owner::from_bytes(&row.owner);
    strip_digest(core, segment, (stripe, column, block), &owner, bytes) == Some(row.digest)
}

/// The digest that the row of a strip block with these bytes has; `at` is stripe, column and block of the
/// strip. `None`: its owner names a digest algorithm that this program does not know.
pub fn strip_digest(
    core: &Core,
    segment: &Segment,
    at: (u32, u16, u32),
    owner: &Owner,
    bytes: &[u8],
) -> Option<[u8; 16]> {
    let (kind, context) = segment.context_of(at, owner)?;
    Some(core.identity.digest(kind, context, bytes))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::testing::{bed, blocks};

    /// A stripe closed short has rows for the strips that were written and for parity; its parity is that of zeros
    /// beside them.
    #[test]
    fn a_short_stripe_writes_what_it_has() {
        let bed = bed(4);
        let segment = bed.segment(1, 3, 1);
        segment.set_headed();
        let (core, of) = (bed.core.clone(), segment.clone());
        let (data, owners) = blocks(&bed.core, 6, 3);
        let stripe = bed.rt.block_on(async move {
            let number = of.take_stripe();
            let first = owners[..1].to_vec();
            let stripe = Rc::new(prepare(core.clone(), of, number, data, first).await);
            write(core, vec![stripe.clone()]).await.unwrap();
            stripe
        });
        assert_eq!(stripe.used_strips, 1);
        let written: Vec<usize> = stripe.rows.iter().map(Vec::len).collect();
        assert_eq!(written, vec![2, 0, 0, 2]);
        assert_eq!(segment.short.borrow().get(&0), Some(&1));
        for column in [0u16, 3] {
            let place = segment.columns.borrow()[usize::from(column)];
            let mut bytes = vec![0; BLOCK];
            let offset = device_offset(&bed.core, place, segment.geometry.strip_block(0));
            bed.disks[usize::from(column)].peek(offset, &mut bytes);
            let row = stripe.rows[usize::from(column)][0];
            assert!(
                row_matches(&bed.core, &segment, 0, column, 0, &row, &bytes),
                "{column}"
            );
            bytes[9] ^= 1;
            assert!(!row_matches(
                &bed.core, &segment, 0, column, 0, &row, &bytes
            ));
        }
    }

    /// With more columns missing than parity a stripe cannot be read back, and is not reported as written.
    #[test]
    fn too_few_columns_are_an_error() {
        let bed = bed(3);
        let segment = bed.segment(1, 2, 1);
        segment.set_headed();
        let (data, owners) = blocks(&bed.core, 4, 1);
        let core = bed.core.clone();
        bed.rt.block_on(async move {
            let number = segment.take_stripe();
            let stripe = Rc::new(prepare(core.clone(), segment, number, data, owners).await);
            core.member(0)
                .take_out(ashlar_format::superblock::MemberState::Failed);
            write(core.clone(), vec![stripe.clone()]).await.unwrap();
            core.member(1)
                .take_out(ashlar_format::superblock::MemberState::Failed);
            assert_eq!(write(core, vec![stripe]).await, Err(TooFewColumns));
        });
    }
}
