//! Splits a group commit into records, by sizes and counts.
//!
//! Invariants: the stripes of a shard keep their order; no part but one of a single stripe is larger than it may be.

use crate::protocol::Reach;

/// How far a group commit reaches, given size and use of the rings of deltas and of data. Unfinished stripes whose
/// blocks lie in the data ring would keep both rings from being cut: they are closed once half of the one is in use, or
/// 60 % of the other.
pub fn reach_for(wanted: Reach, deltas: (u64, u64), data: (u64, u64)) -> Reach {
    let pinned = deltas.1 * 2 > deltas.0 || data.1 * 10 > data.0 * 6;
    if pinned { Reach::Closed } else { wanted }
}

/// The stripes of a shard in a group commit.
#[derive(Clone, Debug)]
pub struct StripeSizes {
    /// So many of them, the first ones, let go of the data ring.
    pub settling: usize,
    /// Bytes of the entry of each.
    pub bytes: Vec<usize>,
}

impl StripeSizes {
    /// Sizes of those that let go of the data ring, and of the others.
    fn halves(&self) -> (&[usize], &[usize]) {
        self.bytes.split_at(self.settling.min(self.bytes.len()))
    }
}

/// Cuts a group commit into parts of at most `most` bytes, the first of which begins with `first` bytes of other
/// entries: of which shard each next stripe is. The stripes of all shards that let go of the data ring come first:
/// until they are recorded the journal cannot be cut, and they are few, one of each open segment at most.
pub fn cut(first: usize, shards: &[StripeSizes], most: usize) -> Vec<Vec<usize>> {
    let settling = shards.iter().map(|s| s.halves().0).enumerate();
    let others = shards.iter().map(|s| s.halves().1).enumerate();
    let mut parts = vec![Vec::new()];
    let mut bytes = first;
    for (shard, sizes) in settling.chain(others) {
        for size in sizes {
            if bytes + size > most && bytes > 0 {
                parts.push(Vec::new());
                bytes = 0;
            }
            bytes += size;
            parts.last_mut().expect("there is one").push(shard);
        }
    }
    parts
}

/// What becomes of the rows of an unfinished course, which keep the journal from being cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// The journal keeps them.
    Kept,
    /// They stand in the course's summary.
    InSummary,
    /// A summary of the stripes before this one is to be written.
    ToSummary(u32),
}

/// A course that is not all recorded.
#[derive(Clone, Copy, Debug)]
pub struct Course {
    /// Its first stripe.
    pub first: u32,
    /// The one after its last.
    pub end: u32,
    /// StripeSizes of the segment that are recorded.
    pub recorded: u32,
    /// StripeSizes of the segment that were begun.
    pub begun: u32,
}

/// What becomes of the rows of a course with these stripes of its segment in the group commit: numbers, and whether
/// each was written. The last stripe of a course is written with its summary; before that one can be written where
/// every stripe that was begun is recorded, or in the group commit.
pub fn rows_after(course: Course, stripes: impl Iterator<Item = (u32, bool)>) -> Rows {
    let (mut upto, mut ended) = (course.recorded, false);
    for (number, written) in stripes {
        upto = upto.max(number + 1).min(course.end);
        ended |= written && number + 1 == course.end;
    }
    if ended {
        Rows::InSummary
    } else if upto > course.first && upto == course.begun.min(course.end) {
        Rows::ToSummary(upto)
    } else {
        Rows::Kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_commit_reaches_as_far_as_the_rings_allow() {
        for wanted in [Reach::Written, Reach::All, Reach::Closed] {
            let t = |deltas, data, expected| {
                let reach = reach_for(wanted, (100, deltas), (100, data));
                assert_eq!(reach, expected, "{wanted:?}: {deltas} and {data} of 100");
            };
            t(0, 0, wanted);
            t(50, 60, wanted);
            t(51, 0, Reach::Closed);
            t(0, 61, Reach::Closed);
        }
    }

    #[test]
    fn parts_are_cut_by_size_those_that_let_go_first() {
        let t = |first, shards: &[(usize, &[usize])], most, expected: &[&[usize]]| {
            let stripes = shards.iter().map(|(settling, bytes)| StripeSizes {
                settling: *settling,
                bytes: bytes.to_vec(),
            });
            let parts = cut(first, &stripes.collect::<Vec<_>>(), most);
            assert_eq!(parts, expected, "{first}, {shards:?}, at most {most}");
        };
        t(0, &[], 100, &[&[]]);
        t(90, &[(0, &[])], 100, &[&[]]);
        t(0, &[(0, &[40, 40]), (0, &[40])], 200, &[&[0, 0, 1]]);
        t(0, &[(0, &[40, 40]), (0, &[40])], 100, &[&[0, 0], &[1]]);
        t(0, &[(0, &[40, 40]), (1, &[40])], 100, &[&[1, 0], &[0]]);
        t(0, &[(1, &[40, 40]), (1, &[40])], 100, &[&[0, 1], &[0]]);
        // What comes before the stripes takes room in the first part.
        t(70, &[(0, &[40, 40])], 100, &[&[], &[0, 0]]);
        // A stripe that is larger than a part is one.
        t(0, &[(0, &[300, 40])], 100, &[&[0], &[0]]);
        t(10, &[(0, &[300])], 100, &[&[], &[0]]);
        t(10, &[(0, &[300, 300])], usize::MAX, &[&[0, 0]]);
    }

    #[test]
    fn rows_let_go_of_the_journal_once_a_summary_has_them() {
        // A course of stripes 4 to 7: recorded, begun, stripes of the group commit.
        let t = |recorded, begun, stripes: &[(u32, bool)], expected| {
            let course = Course {
                first: 4,
                end: 8,
                recorded,
                begun,
            };
            let rows = rows_after(course, stripes.iter().copied());
            assert_eq!(rows, expected, "{recorded}, {begun}: {stripes:?}");
        };
        t(4, 4, &[], Rows::Kept); // it has no stripe
        t(6, 6, &[], Rows::ToSummary(6));
        t(6, 7, &[], Rows::Kept); // one was begun since
        t(6, 7, &[(6, true)], Rows::ToSummary(7));
        t(6, 7, &[(6, false)], Rows::ToSummary(7));
        t(6, 8, &[(6, true), (7, true)], Rows::InSummary);
        t(6, 8, &[(6, true), (7, false)], Rows::ToSummary(8)); // void: it wrote none
        t(6, 9, &[(6, true), (7, true), (8, true)], Rows::InSummary);
        t(
            6,
            9,
            &[(6, true), (7, false), (8, true)],
            Rows::ToSummary(8),
        );
        t(6, 8, &[(6, true)], Rows::Kept);
    }
}
