//! Every written stripe: its strips against their rows, its parity against its data, its owners against
//! what the maps say.
//!
//! **Invariants**: parity is judged only where K columns match their digests; what does not match is damage
//! of its device, and never makes parity wrong.

use crate::array::{Array, Segment};
use crate::code::Code;
use crate::digest::StripBlock;
use crate::report::{At, Kind, Report};
use crate::slots::{Owner, Row};
use crate::strips::{Content, CourseRows};
use crate::tree::mark;
use crate::wire::BLOCK;

/// What the rows of a segment's used blocks add up to.
#[derive(Default)]
struct Owners {
    sum: u64,
    /// All of them are known.
    whole: bool,
}

impl Array<'_> {
    /// Looks at every stripe of every segment.
    pub(crate) fn check_stripes(&self, report: &mut Report) {
        for segment in self.segments.values() {
            let Some(code) = self.code(segment.shape) else {
                report.find(Kind::EntryWrong).segment(segment.number);
                continue;
            };
            let mut owners = Owners {
                sum: 0,
                whole: true,
            };
            let written = segment.written();
            for course in 0..segment.shape.courses() {
                let first = course * segment.shape.course_strips();
                if first >= written {
                    break;
                }
                let rows = self.course_rows(segment, course);
                self.check_summaries(segment, course, &rows, report);
                let last = (first + segment.shape.strips_in(course)).min(written);
                for stripe in first..last {
                    let own = cut(&rows, segment, stripe - first);
                    self.check_stripe(segment, code, stripe, own, &mut owners, report);
                }
            }
            if owners.whole && owners.sum != segment.owners {
                report.find(Kind::OwnersDiffer).segment(segment.number);
            }
        }
    }

    /// Summary blocks that are not good though nothing else has their rows.
    fn check_summaries(
        &self,
        segment: &Segment,
        course: u32,
        rows: &CourseRows,
        report: &mut Report,
    ) {
        let shape = segment.shape;
        let first = course * shape.course_strips();
        let written = (segment.written() - first).min(shape.strips_in(course)) * shape.strip;
        let known = |rows: &[Option<Row>]| {
            rows[..(written as usize).min(rows.len())]
                .iter()
                .all(Option::is_some)
        };
        if rows.iter().all(|rows| !known(rows)) {
            let found = report.find(Kind::RowsUnknown).segment(segment.number);
            found.at(At::Strip(StripBlock {
                segment: segment.number,
                stripe: first,
                column: 0,
                block: 0,
            }));
            return;
        }
        for ((column, place), rows) in (0u16..).zip(&segment.columns).zip(rows) {
            let device = place.and_then(|place| self.device(place.device));
            if let Some(device) = device.filter(|_| !known(rows)) {
                let found = report.find(Kind::Summary).device(device.position);
                found.segment(segment.number).at(At::Strip(StripBlock {
                    segment: segment.number,
                    stripe: first,
                    column,
                    block: 0,
                }));
            }
        }
    }

    fn check_stripe(
        &self,
        segment: &Segment,
        code: &Code,
        stripe: u32,
        mut rows: CourseRows,
        owners: &mut Owners,
        report: &mut Report,
    ) {
        report.counts.stripes += 1;
        self.settle_rows(segment, stripe, &mut rows, report);
        let (shape, k) = (segment.shape, usize::from(segment.shape.k));
        for (column, rows) in rows.iter().take(k).enumerate() {
            for (within, row) in rows.iter().enumerate() {
                let block = stripe * shape.stripe_blocks()
                    + u32::try_from(column * shape.strip as usize + within).unwrap_or(0);
                if !segment.used.get(block) {
                    continue;
                }
                let Some(row) = row else {
                    owners.whole = false;
                    continue;
                };
                let owner = Owner::parse(&row.owner);
                let digest = (owner.kind > 0 || owner.pieces_less_one == 0).then_some(row.digest);
                owners.sum = owners.sum.wrapping_add(mark(block, owner, digest));
            }
        }
        // A void stripe was never written: nothing of it is anything.
        if rows.iter().flatten().flatten().all(Row::is_absent) {
            return;
        }
        self.check_owner_parity(segment, code, stripe, &rows, report);
        self.check_parity(segment, code, stripe, &rows, report);
    }

    /// A column whose rows say that a stripe was not written, while others say that it was, is not
    /// believed: an older summary is left there.
    ///
    /// Of a stripe closed short, reconstruct may have written a strip as padding that was not written before, so
    /// a later strip of a data segment tells of the ones before it only if it is somebody's.
    fn settle_rows(
        &self,
        segment: &Segment,
        stripe: u32,
        rows: &mut CourseRows,
        report: &mut Report,
    ) {
        let k = usize::from(segment.shape.k);
        let state = |rows: &[Option<Row>]| {
            let known: Vec<bool> = rows.iter().flatten().map(Row::is_absent).collect();
            let whole = known.len() == rows.len();
            (
                whole && known.iter().all(|absent| *absent),
                known.iter().any(|absent| !absent),
            )
        };
        let states: Vec<(bool, bool)> = rows.iter().map(|rows| state(rows)).collect();
        let whole = Self::holds_nodes(segment);
        let tells = |rows: &Vec<Option<Row>>| {
            let mut written = rows.iter().flatten().filter(|row| !row.is_absent());
            written.any(|row| whole || row.owner != [0; 16])
        };
        let last = rows.iter().take(k).rposition(tells);
        if states.iter().all(|(_, written)| !written) {
            return;
        }
        for (column, rows) in rows.iter_mut().enumerate() {
            let (absent, written) = states[column];
            let mixed = written && rows.iter().flatten().any(Row::is_absent);
            let later = last.is_some_and(|last| column < last);
            if mixed || absent && (column >= k || later) {
                let place = segment.columns.get(column).copied().flatten();
                let device = place.and_then(|place| self.device(place.device));
                let found = report.find(Kind::RowsDisagree).segment(segment.number);
                found
                    .device(device.map_or(0, |d| d.position))
                    .at(At::Strip(StripBlock {
                        segment: segment.number,
                        stripe,
                        column: u16::try_from(column).unwrap_or(0),
                        block: 0,
                    }));
                rows.fill(None);
            }
        }
    }

    /// The owner bytes of parity columns are the parity of those of the data columns.
    fn check_owner_parity(
        &self,
        segment: &Segment,
        code: &Code,
        stripe: u32,
        rows: &CourseRows,
        report: &mut Report,
    ) {
        let k = usize::from(segment.shape.k);
        let bytes = |rows: &Vec<Option<Row>>| -> Option<Vec<u8>> {
            let owners = rows.iter().map(|row| Some((*row)?.owner));
            Some(owners.collect::<Option<Vec<_>>>()?.concat())
        };
        let owners: Vec<Option<Vec<u8>>> = rows.iter().map(bytes).collect();
        let Some(wrong) = inconsistent(code, k, &owners) else {
            return;
        };
        for column in wrong {
            let found = report.find(Kind::OwnerParity).segment(segment.number);
            found.at(At::Strip(StripBlock {
                segment: segment.number,
                stripe,
                column: u16::try_from(column).unwrap_or(0),
                block: 0,
            }));
        }
    }

    fn check_parity(
        &self,
        segment: &Segment,
        code: &Code,
        stripe: u32,
        rows: &CourseRows,
        report: &mut Report,
    ) {
        let shape = segment.shape;
        let mut blocks: Vec<Vec<Option<Vec<u8>>>> = Vec::new();
        for ((column, place), rows) in (0u16..).zip(&segment.columns).zip(rows) {
            blocks.push(self.check_strip(segment, (stripe, column), *place, rows, report));
        }
        for block in 0..shape.strip {
            let at = block as usize;
            let row: Vec<Option<Vec<u8>>> = blocks.iter_mut().map(|b| b[at].take()).collect();
            let Some(wrong) = inconsistent(code, usize::from(shape.k), &row) else {
                continue;
            };
            report.counts.parity_blocks += u64::from(shape.m);
            for column in wrong {
                let found = report.find(Kind::ParityWrong).segment(segment.number);
                found.at(At::Strip(StripBlock {
                    segment: segment.number,
                    stripe,
                    column: u16::try_from(column).unwrap_or(0),
                    block,
                }));
            }
        }
    }

    /// The blocks of a strip that match their rows; those that do not are findings.
    fn check_strip(
        &self,
        segment: &Segment,
        (stripe, column): (u32, u16),
        place: Option<crate::array::Column>,
        rows: &[Option<Row>],
        report: &mut Report,
    ) -> Vec<Option<Vec<u8>>> {
        let shape = segment.shape;
        let device = place.and_then(|place| self.device(place.device));
        let start = shape.strip_block(stripe);
        let wanted = rows.iter().flatten().any(|row| !row.is_absent());
        let whole = if wanted {
            self.read(place, start, shape.strip)
        } else {
            None
        };
        let mut blocks = Vec::new();
        for (block, row) in (0u32..).zip(rows) {
            let bytes = match &whole {
                Some(whole) => Some(whole[block as usize * BLOCK..][..BLOCK].to_vec()),
                // One bad block does not make the others unreadable.
                None if wanted => self.read(place, start + block, 1),
                None => None,
            };
            let at = StripBlock {
                segment: segment.number,
                stripe,
                column,
                block,
            };
            report.counts.strip_blocks += u64::from(bytes.is_some());
            let content = if row.is_some() {
                self.judge(segment, at, *row, bytes)
            } else {
                Content::Bad
            };
            match (content, device) {
                (Content::Good(bytes), _) => {
                    blocks.push(Some(bytes));
                    continue;
                }
                (Content::Bad, Some(device)) if row.is_some() => {
                    let found = report.find(Kind::Strip).device(device.position);
                    found.segment(segment.number).at(At::Strip(at));
                }
                _ => {}
            }
            blocks.push(None);
        }
        blocks
    }
}

/// The rows of one stripe of a course, by column.
fn cut(rows: &CourseRows, segment: &Segment, number: u32) -> CourseRows {
    let strip = segment.shape.strip as usize;
    let at = number as usize * strip;
    rows.iter()
        .map(|rows| rows.get(at..at + strip).unwrap_or(&[]).to_vec())
        .collect()
}

/// The columns beyond K known ones that are not what these make of them; `None` if fewer than K are known,
/// or nothing is left to compare.
fn inconsistent(code: &Code, k: usize, columns: &[Option<Vec<u8>>]) -> Option<Vec<usize>> {
    let known: Vec<(usize, &[u8])> = columns
        .iter()
        .enumerate()
        .filter_map(|(column, bytes)| Some((column, bytes.as_deref()?)))
        .collect();
    let rest = known.get(k..).filter(|rest| !rest.is_empty())?;
    let wanted: Vec<usize> = rest.iter().map(|(column, _)| *column).collect();
    let made = code.decode(&known, &wanted)?;
    let wrong = rest
        .iter()
        .zip(&made)
        .filter(|((_, is), should)| *is != &should[..]);
    Some(wrong.map(|((column, _), _)| *column).collect())
}
