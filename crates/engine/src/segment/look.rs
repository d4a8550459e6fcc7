//! Looks at courses of a column as they are on its device: which blocks and summaries are bad, and how.
//!
//! Invariants:
//! - It counts and repairs nothing.
//! - A block is judged if a record named its stripe before it was read; a summary, if it was written by then.
//! - A column that its device left or is to leave, or that was moved meanwhile, is not judged.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use ashlar_device::Fault;
use ashlar_format::BLOCK;
use ashlar_format::summary::Row;
use ashlar_rt::Buf;

use crate::segment::bad::{BadBlock, Found, SUMMARY};
use crate::segment::coder::Survivor;
use crate::segment::coder::verify_course;
use crate::segment::course::{blank_unwritten, read_courses, rows_in_memory, rows_of};
use crate::segment::read::{summary_part, usable_place};
use crate::segment::stripe::device_offset;
use crate::segment::table::Core;
use crate::segment::{Column, Pinned, Segment};

/// A column that is looked at: its index, where it lies, and the stripes that count.
#[derive(Clone, Copy)]
struct At {
    index: usize,
    place: Column,
    recorded: u32,
    closed: bool,
}

impl At {
    fn block(&self, segment: &Segment, stripe: u32, within: u32) -> BadBlock {
        BadBlock {
            segment: segment.number,
            column: u16::try_from(self.index).expect("at most 256 columns"),
            stripe,
            within,
        }
    }
}

/// What is bad of these courses of a column, on which device; `None` if they could not be looked at: the column is
/// missing, was moved meanwhile, or its device does not answer.
pub async fn look_at(
    core: &Rc<Core>,
    segment: &Pinned,
    courses: Range<u32>,
    index: usize,
) -> Option<(u16, Vec<(BadBlock, Found)>)> {
    let at = At {
        index,
        place: usable_place(core, segment, index)?,
        recorded: segment.recorded.get(),
        closed: segment.is_closed(),
    };
    let read = read_courses(core, segment, courses.clone(), index).await;
    let mut read: BTreeMap<u32, Survivor> = read.into_iter().collect();
    let mut bad = Vec::new();
    for course in courses {
        match read.remove(&course) {
            Some(column) => verify(core, segment, course, at, column, &mut bad).await,
            None => look_closer(core, segment, course, at, &mut bad).await?,
        }
    }
    // What was written without a device that is to be taken out is not on it.
    let leaves = core.failing.is_leaving(at.place.device);
    let stands = usable_place(core, segment, index) == Some(at.place) && !leaves;
    stands.then_some((at.place.device, bad))
}

/// Blocks of a column of a course that are not what their rows say.
async fn verify(
    core: &Core,
    segment: &Segment,
    course: u32,
    at: At,
    column: Survivor,
    bad: &mut Vec<(BadBlock, Found)>,
) {
    for wrong in verify_course(core, segment, course, &column).await {
        let wrong = u32::try_from(wrong).expect("a course is small");
        let (stripe, within) = segment.geometry.in_course(course, wrong);
        if stripe < at.recorded {
            bad.push((at.block(segment, stripe, within), Found::Wrong));
        }
    }
}

/// Looks at a course that could not be read in one piece, or whose summary is bad; `None` if its device does not answer.
async fn look_closer(
    core: &Rc<Core>,
    segment: &Pinned,
    course: u32,
    at: At,
    bad: &mut Vec<(BadBlock, Found)>,
) -> Option<()> {
    let geometry = segment.geometry;
    let first = course * geometry.course_strips();
    let rows = match rows_in_memory(segment, course, at.index) {
        Some(rows) => rows,
        None => match rows_on_device(core, segment, course, at).await {
            Ok(rows) => rows,
            Err(Found::Unreadable) if !core.member(at.place.device).answers() => return None,
            Err(found) => {
                let is_written = at.closed || at.recorded >= first + geometry.strips_in(course);
                if is_written {
                    bad.push((at.block(segment, first, SUMMARY), found));
                }
                return Some(());
            }
        },
    };
    let member = core.member(at.place.device);
    let offset = device_offset(core, at.place, geometry.strip_block(first));
    let mut bytes = Buf::zeroed(rows.len() * BLOCK);
    let mut judged = rows;
    for (number, block) in (0u32..).zip(bytes.chunks_mut(BLOCK)) {
        let row = &mut judged[number as usize];
        match member
            .read(offset + u64::from(number) * BLOCK as u64, BLOCK)
            .await
        {
            Ok(read) => block.copy_from_slice(&read),
            Err(Fault::Media) => {
                let (stripe, within) = geometry.in_course(course, number);
                if stripe < at.recorded && row.digest != [0; 16] {
                    bad.push((at.block(segment, stripe, within), Found::Unreadable));
                }
                *row = Row::default(); // its bytes are not judged
            }
            Err(_) => return None,
        }
    }
    blank_unwritten(&judged, &mut bytes);
    let column = Survivor {
        column: at.index,
        place: at.place,
        bytes: bytes.freeze(),
        rows: judged,
    };
    verify(core, segment, course, at, column, bad).await;
    Some(())
}

/// The rows in the summary of a course.
async fn rows_on_device(
    core: &Core,
    segment: &Segment,
    course: u32,
    at: At,
) -> Result<Vec<Row>, Found> {
    let (geometry, mut all) = (segment.geometry, Vec::new());
    for part in 0..geometry.summary_blocks(geometry.strips_in(course)) {
        all.extend(summary_part(core, segment, at.place, course, at.index, part).await?);
    }
    let complete = all.len() == rows_of(segment, course);
    complete.then_some(all).ok_or(Found::Wrong)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use ashlar_format::superblock::MemberState;

    use super::*;
    use crate::testing::bed;

    #[test]
    fn a_summary_is_judged_once_it_was_written_and_a_column_while_it_is_there() {
        let bed = bed(4);
        let segment = bed.segment(1, 2, 2);
        let core = bed.core.clone();
        bed.rt.block_on(async move {
            let look = async || look_at(&core, &segment, 0..1, 1).await;
            segment.recorded.set(1); // its course is open, and its rows are lost
            assert_eq!(look().await, Some((1, Vec::new())));
            segment.sealed.set(true);
            let (device, bad) = look().await.unwrap();
            assert_eq!((device, bad.len()), (1, 1));
            assert_eq!((bad[0].0.within, bad[0].1), (SUMMARY, Found::Wrong));
            // What was written once it was to be taken out is not on it, and no fault of its (#211).
            core.failing.report(1, true);
            assert_eq!(look().await, None);
            core.report_bad(1, bad[0].0, Found::Wrong);
            assert_eq!(core.member(1).counters.digest_errors.get(), 0);
            core.failing.take();
            assert_eq!(look().await, None, "it is being taken out");
            core.failing.settle();
            core.member(1).take_out(MemberState::Failed);
            assert_eq!(look().await, None);
        });
    }
}
