//! Stretches: several courses of a column that are read and written together.
//!
//! Invariant: a stretch is only a copy of what is asked for. What cannot be read so is read course by course.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use ashlar_format::{BLOCK_U64, SegmentGeometry};

use crate::background::Background;
use crate::home::scrub::bytes_of_courses;
use crate::members::Member;
use crate::segment::coder::Survivor;
use crate::segment::course::read_courses;
use crate::segment::{Pinned, Segment};
use crate::status::Work;

/// Bytes of a column that are read and written together at most: on drives with a head, of 100 MB/s, so many that seeks
/// are a third of the time; on others no more than the courses of which each needs.
const STRETCH: [u64; 2] = [256 << 10, 2 << 20];

/// The same of all columns of a segment.
const BYTES_OF_JOB: u64 = 32 << 20;

/// Courses of columns, by course and column.
type Courses = BTreeMap<(u32, usize), Survivor>;

/// Those of a stretch that were read, and not asked for yet.
pub(super) type Read = RefCell<Courses>;

/// Courses of such a segment that take so many bytes of a column.
fn courses_in(geometry: SegmentGeometry, stretch: u64) -> u32 {
    let strips = geometry.course_strips().min(geometry.stripes()).max(1);
    let course = u64::from(strips) * u64::from(geometry.strip_blocks) * BLOCK_U64;
    let most = (BYTES_OF_JOB / geometry.width() as u64).min(stretch) / course;
    let most = u32::try_from(most).unwrap_or(1);
    most.clamp(1, geometry.courses().max(1))
}

impl Background {
    /// Bytes of a column that are read and written together at most.
    pub(super) fn stretch_bytes(&self) -> u64 {
        let has_head = |m: &Member| m.held().is_some_and(|device| device.info().rotational);
        let some = self
            .core
            .members
            .iter()
            .filter(|m| m.is_written())
            .any(has_head);
        STRETCH[usize::from(some)]
    }

    /// Bytes of all columns of such a segment that are read together.
    pub(super) fn bytes_at_once(&self, geometry: SegmentGeometry) -> u64 {
        let strips = geometry.course_strips().min(geometry.stripes());
        let strips = courses_in(geometry, self.stretch_bytes()) * strips;
        u64::from(strips * geometry.strip_blocks) * geometry.width() as u64 * BLOCK_U64
    }

    /// The courses of a segment of which something is recorded, so many at once as are read and written together.
    pub(super) fn stretches(&self, segment: &Segment) -> Vec<Range<u32>> {
        let at_once = courses_in(segment.geometry, self.stretch_bytes());
        let all = segment.recorded.get();
        let all = all.div_ceil(segment.geometry.course_strips());
        let starts = (0..all).step_by(at_once as usize);
        let stretch = |start: u32| start..(start + at_once).min(all);
        starts.map(stretch).collect()
    }

    /// The columns to read where these are copied and those are computed: of others K that can be read, on devices that
    /// jobs keep least busy.
    pub(super) fn columns_to_read(
        &self,
        segment: &Segment,
        copied: Vec<usize>,
        computed: &[usize],
    ) -> Vec<usize> {
        let mut columns = copied;
        if !computed.is_empty() {
            let moves = |c: &usize| columns.contains(c) || computed.contains(c);
            let usable = |c: &usize| !moves(c) && self.core.column_usable(segment, *c);
            let mut others: Vec<usize> = (0..segment.geometry.width()).filter(usable).collect();
            let (places, index) = (segment.columns.borrow(), self.home.space.index());
            others.sort_by_key(|c| index.load(places[*c].device));
            columns.extend(others.into_iter().take(segment.geometry.k.into()));
        }
        columns
    }

    /// Reads several courses of these columns, each when it is the turn of its device.
    pub(super) async fn read_stretch(
        self: &Rc<Self>,
        segment: &Pinned,
        columns: &[usize],
        courses: &Range<u32>,
        work: Work,
    ) -> Read {
        let bytes = bytes_of_courses(segment.geometry, courses.clone());
        let ask = |column: &usize| {
            let (background, column) = (self.clone(), *column);
            let (segment, courses) = (segment.clone(), courses.clone());
            self.core.rt.spawn(async move {
                let _turn = background.turn_of(work, &segment, column, bytes).await;
                read_courses(&background.core, &segment, courses, column).await
            })
        };
        let asked: Vec<_> = columns.iter().map(ask).collect();
        let mut read = Courses::default();
        for answer in asked {
            let courses = answer.await.into_iter();
            read.extend(courses.map(|(course, found)| ((course, found.column), found)));
        }
        Read::new(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Data columns, blocks of a slot, bytes of a stretch, and the courses in it.
    #[test]
    fn a_stretch_is_of_whole_courses_of_the_segment() {
        for (k, slot_blocks, stretch, courses) in [
            (8, 2048, 2 << 20, 4),
            (8, 2048, 256 << 10, 1),
            (8, 256, 2 << 20, 3),    // no more than there are
            (8, 16, 2 << 20, 1),     // less than one
            (254, 2048, 2 << 20, 1), // many columns
        ] {
            let geometry = SegmentGeometry {
                k,
                m: 2,
                strip_blocks: 4,
                slot_blocks,
            };
            assert_eq!(courses_in(geometry, stretch), courses, "{k} {slot_blocks}");
        }
    }
}
