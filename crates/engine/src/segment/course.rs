//! Courses of a column: all its strips and rows, for work on whole segments.
//!
//! Strips and summaries of successive courses lie one behind the other: several are read at once, which spares a drive
//! with a head most of its seeks.
//!
//! Invariant: what is returned is not verified yet, but its rows are those of this column, segment and course.

use std::ops::Range;
use std::rc::Rc;

use ashlar_format::BLOCK;
use ashlar_format::summary::{self, Row, SummaryId};
use ashlar_rt::Buf;

use crate::segment::coder::Survivor;
use crate::segment::read::{read_summary_part, usable_place};
use crate::segment::stripe::device_offset;
use crate::segment::table::Core;
use crate::segment::{Pinned, Segment};

/// The rows of a column of a course that are in memory.
pub(super) fn rows_in_memory(segment: &Segment, course: u32, column: usize) -> Option<Vec<Row>> {
    let geometry = segment.geometry;
    let first = course * geometry.course_strips();
    let rows = segment.rows.borrow();
    rows.get(&first)?;
    let mut all = Vec::new();
    for stripe in first..first + geometry.strips_in(course) {
        let start = all.len();
        if let Some(columns) = rows.get(&stripe) {
            all.extend_from_slice(&columns[column]);
        }
        all.resize(start + geometry.strip_blocks as usize, Row::default());
    }
    Some(all)
}

/// All rows of a column of a course: from memory, else from its summary; `None` if it cannot be read, which counts
/// against its device.
pub async fn read_course_rows(
    core: &Rc<Core>,
    segment: &Pinned,
    course: u32,
    column: usize,
) -> Option<Vec<Row>> {
    if let Some(rows) = rows_in_memory(segment, course, column) {
        return Some(rows);
    }
    let (geometry, mut all) = (segment.geometry, Vec::new());
    for part in 0..geometry.summary_blocks(geometry.strips_in(course)) {
        all.extend(read_summary_part(core, segment, course, column, part).await?);
    }
    (all.len() == rows_of(segment, course)).then_some(all)
}

/// How many rows a column of a course has.
pub(super) fn rows_of(segment: &Segment, course: u32) -> usize {
    let geometry = segment.geometry;
    (geometry.strips_in(course) * geometry.strip_blocks) as usize
}

/// Strips that were never written are zeros.
pub(super) fn blank_unwritten(rows: &[Row], bytes: &mut [u8]) {
    for (row, block) in rows.iter().zip(bytes.chunks_mut(BLOCK)) {
        if row.digest == [0; 16] {
            block.fill(0);
        }
    }
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
    let read = core.member(place.device).read(offset, rows.len() * BLOCK);
    let mut bytes = read.await.ok()?;
    blank_unwritten(&rows, &mut bytes);
    Some(Survivor {
        column,
        place,
        bytes: bytes.freeze(),
        rows,
    })
}

/// The same of several courses of a segment that is closed, with one device read for all of them. Those whose rows are
/// not good are left out: [`read_course`] says more of them.
pub async fn read_courses(
    core: &Rc<Core>,
    segment: &Pinned,
    courses: Range<u32>,
    column: usize,
) -> Vec<(u32, Survivor)> {
    let geometry = segment.geometry;
    let (Some(place), Some(last)) = (usable_place(core, segment, column), courses.clone().last())
    else {
        return Vec::new();
    };
    let first = geometry.strip_block(courses.start * geometry.course_strips());
    let end = geometry.summary_block(last) + geometry.summary_blocks(geometry.strips_in(last));
    let offset = device_offset(core, place, first);
    let length = (end - first) as usize * BLOCK;
    let Ok(mut bytes) = core.member(place.device).read(offset, length).await else {
        return Vec::new();
    };
    let at = |block: u32| (block - first) as usize * BLOCK;
    let rows_of = |bytes: &Buf, course: u32| {
        rows_in_memory(segment, course, column).or_else(|| {
            rows_in(
                core,
                segment,
                (course, column),
                &bytes[at(geometry.summary_block(course))..],
            )
        })
    };
    let mut found: Vec<(u32, Range<usize>, Vec<Row>)> = Vec::new();
    for course in courses {
        let start = at(geometry.strip_block(course * geometry.course_strips()));
        if let Some(rows) = rows_of(&bytes, course) {
            let range = start..start + rows.len() * BLOCK;
            blank_unwritten(&rows, &mut bytes[range.clone()]);
            found.push((course, range, rows));
        }
    }
    let bytes = bytes.freeze();
    let survivor = |(course, range, rows): (u32, Range<usize>, Vec<Row>)| {
        let bytes = bytes.cut(range);
        let survivor = Survivor {
            column,
            place,
            bytes,
            rows,
        };
        (course, survivor)
    };
    found.into_iter().map(survivor).collect()
}

/// The rows in the summary of a course of a column that begins these bytes; `None` if it is not that.
fn rows_in(
    core: &Core,
    segment: &Segment,
    (course, column): (u32, usize),
    bytes: &[u8],
) -> Option<Vec<Row>> {
    let parts = segment
        .geometry
        .summary_blocks(segment.geometry.strips_in(course));
    let mut all = Vec::new();
    for (part, block) in (0..parts).zip(bytes.chunks_exact(BLOCK)) {
        let id = SummaryId {
            segment: segment.number,
            column: u16::try_from(column).expect("at most 256 columns"),
            course,
            part,
        };
        all.extend(summary::decode(&core.identity.array, id, block).ok()?);
    }
    (all.len() == rows_of(segment, course)).then_some(all)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::segment::stripe::summary_bytes;
    use crate::testing::bed;

    #[test]
    fn a_summary_is_of_its_segment_and_column_only() {
        let bed = bed(4);
        let segment = bed.segment(1, 2, 2);
        let mut rows = vec![Row::default(); rows_of(&segment, 0)];
        rows[1].digest = [7; 16];
        let summary = summary_bytes(&bed.core, &segment, 0, 1, &rows);
        assert_eq!(
            rows_in(&bed.core, &segment, (0, 1), &summary),
            Some(rows.clone())
        );
        assert_eq!(rows_in(&bed.core, &segment, (0, 2), &summary), None);
        let other = bed.segment(2, 2, 2);
        assert_eq!(rows_in(&bed.core, &other, (0, 1), &summary), None);
        assert_eq!(rows_in(&bed.core, &segment, (0, 1), &[0; BLOCK]), None);

        let mut bytes = vec![9; rows.len() * BLOCK];
        blank_unwritten(&rows, &mut bytes);
        let written = |at: usize| bytes[at * BLOCK..(at + 1) * BLOCK].iter().all(|b| *b == 9);
        let is: Vec<bool> = (0..rows.len()).map(written).collect();
        assert!((0..rows.len()).all(|at| is[at] == (at == 1)));
    }
}
