//! Reading blocks of segments: straight, or decoded from the other columns.
//!
//! **Invariants**: what is given back matched its digest; rows say which inputs to trust first, but a result
//! is judged by its digest alone; what a short stripe did not write counts as zeros.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::array::{Array, Segment};
use crate::digest::{NodeAt, StripBlock};
use crate::slots::{METADATA, Owner, ROWS, Row, SummaryAt, summary};
use crate::wire::BLOCK;

/// Courses whose rows are kept.
const KEPT: usize = 64;
/// Sets of columns that are left out in turn when no row helps.
const TRIES: usize = 1024;

/// The rows of a course, by column; `None` where a summary block is not good.
pub(crate) type CourseRows = Vec<Vec<Option<Row>>>;

/// Rows that were read.
#[derive(Default)]
pub(crate) struct RowCache(RefCell<BTreeMap<(u64, u32), Rc<CourseRows>>>);

/// What is known of a block of a strip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// It matches its row, or counts as zeros.
    Good(Vec<u8>),
    /// It was read; no row says what it should be.
    Unproven(Vec<u8>),
    /// It cannot be read, or does not match its row.
    Bad,
}

/// A volume block or node that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// As it lies there.
    Straight,
    /// Decoded.
    Decoded,
    /// Not to be had.
    Lost,
}

impl Array<'_> {
    /// The rows of a course, from the columns' summaries; what the journal has goes before them.
    pub(crate) fn course_rows(&self, segment: &Segment, course: u32) -> CourseRows {
        let shape = segment.shape;
        let (at, blocks) = shape.summary(course);
        let first = course * shape.course_strips();
        let strips = shape.strips_in(course);
        let sealed = segment.record.as_ref().is_some_and(|r| r.sealed);
        let mut all = Vec::new();
        for (column, place) in (0u16..).zip(&segment.columns) {
            let mut rows: Vec<Option<Row>> = Vec::new();
            for part in 0..blocks {
                let id = SummaryAt {
                    segment: segment.number,
                    column,
                    course,
                    part,
                };
                let bytes = self.read(*place, at + part, 1);
                let found = bytes.and_then(|bytes| summary(&self.id, id, &bytes));
                rows.extend(found.unwrap_or_default().into_iter().map(Some));
                rows.resize(((part + 1) * ROWS) as usize, None);
            }
            rows.resize((strips * shape.strip) as usize, None);
            for stripe in (first..first + strips).filter(|_| !sealed) {
                let Some(columns) = segment.rows.get(&stripe) else {
                    continue;
                };
                let own = columns.get(usize::from(column));
                for within in 0..shape.strip {
                    let row = own.and_then(|rows| rows.get(within as usize)).copied();
                    rows[((stripe - first) * shape.strip + within) as usize] =
                        Some(row.unwrap_or_default());
                }
            }
            all.push(rows);
        }
        all
    }

    /// As [`Array::course_rows`], kept for the next that asks.
    fn kept_rows(&self, rows: &RowCache, segment: &Segment, course: u32) -> Rc<CourseRows> {
        let key = (segment.number, course);
        if let Some(found) = rows.0.borrow().get(&key) {
            return found.clone();
        }
        let made = Rc::new(self.course_rows(segment, course));
        let mut kept = rows.0.borrow_mut();
        if kept.len() >= KEPT {
            kept.clear();
        }
        kept.insert(key, made.clone());
        made
    }

    /// The digest that the row of a strip block says, of these bytes; `None` if its owner makes no sense.
    pub(crate) fn row_digest(
        &self,
        segment: &Segment,
        at: StripBlock,
        owner: Owner,
        bytes: &[u8],
    ) -> Option<[u8; 16]> {
        if at.column >= segment.shape.k || owner.tree == 0 {
            return self.key.parity(at, bytes);
        }
        if owner.kind > 0 {
            let node = NodeAt {
                tree: owner.tree,
                partition: u16::try_from(owner.address >> 48).unwrap_or(0),
                level: owner.kind - 1,
                index: owner.address & 0xFFFF_FFFF_FFFF,
            };
            return self.key.node(node, bytes);
        }
        if owner.pieces_less_one == 0 {
            self.key.block(owner.tag, owner.tree, owner.address, bytes)
        } else {
            let id = (owner.tree, owner.address, owner.piece);
            self.key.piece(owner.tag, id, bytes)
        }
    }

    /// Judges the bytes of a strip block by its row.
    pub(crate) fn judge(
        &self,
        segment: &Segment,
        at: StripBlock,
        row: Option<Row>,
        bytes: Option<Vec<u8>>,
    ) -> Content {
        match (row, bytes) {
            // A strip that was not written counts as zeros, whatever is there.
            (Some(row), _) if row.is_absent() => {
                if at.column < segment.shape.k {
                    Content::Good(vec![0; BLOCK])
                } else {
                    Content::Bad
                }
            }
            (_, None) => Content::Bad,
            (None, Some(bytes)) => Content::Unproven(bytes),
            (Some(row), Some(bytes)) => {
                let owner = Owner::parse(&row.owner);
                if self.row_digest(segment, at, owner, &bytes) == Some(row.digest) {
                    Content::Good(bytes)
                } else {
                    Content::Bad
                }
            }
        }
    }

    /// Reads `count` data blocks from `block` on, which lie in one stripe; `check` says whether they are
    /// right.
    pub(crate) fn read_unit(
        &self,
        rows: &RowCache,
        segment: &Segment,
        (block, count): (u32, u32),
        check: &dyn Fn(&[u8]) -> bool,
    ) -> (Unit, Vec<u8>) {
        let shape = segment.shape;
        let mut unit = Vec::with_capacity(count as usize * BLOCK);
        let mut at = block;
        while at < block + count {
            let (stripe, column, within) = shape.locate(at);
            let run = (shape.strip - within).min(block + count - at);
            let place = segment.columns.get(usize::from(column)).copied().flatten();
            let Some(bytes) = self.read(place, shape.strip_block(stripe) + within, run) else {
                break;
            };
            unit.extend(bytes);
            at += run;
        }
        if at == block + count && check(&unit) {
            return (Unit::Straight, unit);
        }
        match self.decode_unit(rows, segment, (block, count), check) {
            Some(bytes) => (Unit::Decoded, bytes),
            None => (Unit::Lost, Vec::new()),
        }
    }

    /// The contents of the strip blocks with one number within their strips, by column.
    fn contents(
        &self,
        rows: &RowCache,
        segment: &Segment,
        stripe: u32,
        within: u32,
    ) -> Vec<Content> {
        let shape = segment.shape;
        let course = shape.course_of(stripe);
        let known = self.kept_rows(rows, segment, course);
        let row_at = (stripe % shape.course_strips() * shape.strip + within) as usize;
        let at = |column| StripBlock {
            segment: segment.number,
            stripe,
            column,
            block: within,
        };
        let columns = (0u16..).zip(&segment.columns).zip(known.iter());
        columns
            .map(|((column, place), rows)| {
                let row = rows.get(row_at).copied().flatten();
                let bytes = self.read(*place, shape.strip_block(stripe) + within, 1);
                self.judge(segment, at(column), row, bytes)
            })
            .collect()
    }

    fn decode_unit(
        &self,
        rows: &RowCache,
        segment: &Segment,
        (block, count): (u32, u32),
        check: &dyn Fn(&[u8]) -> bool,
    ) -> Option<Vec<u8>> {
        let shape = segment.shape;
        let places: Vec<(u32, u16, u32)> =
            (block..block + count).map(|b| shape.locate(b)).collect();
        let mut contents: BTreeMap<u32, Vec<Content>> = BTreeMap::new();
        for (stripe, _, within) in &places {
            contents
                .entry(*within)
                .or_insert_with(|| self.contents(rows, segment, *stripe, *within));
        }
        // First all that may be right is taken; then columns are left out: sets of those whose blocks are
        // wanted (even a row may have been lost together with its block) or have no row, or one other.
        let own: Vec<u16> = places.iter().map(|(_, column, _)| *column).collect();
        let unproven = |column: u16| {
            let all = contents.values();
            let mut of_column = all.filter_map(|contents| contents.get(usize::from(column)));
            of_column.any(|content| matches!(content, Content::Unproven(_)))
        };
        let width = u16::try_from(shape.width()).unwrap_or(0);
        let (order, others): (Vec<u16>, Vec<u16>) =
            (0..width).partition(|column| own.contains(column) || unproven(*column));
        let (mut sets, mut next) = (vec![Vec::new()], 0);
        sets.extend(others.iter().map(|column| vec![*column]));
        while next < sets.len() {
            let without: Vec<u16> = sets[next].clone();
            next += 1;
            let pieces = places.iter().map(|(_, column, within)| {
                self.piece(segment, &contents[within], *column, &without)
            });
            if let Some(unit) = pieces.collect::<Option<Vec<_>>>().map(|p| p.concat())
                && check(&unit)
            {
                return Some(unit);
            }
            let first = without
                .last()
                .and_then(|l| order.iter().position(|c| c == l));
            if without.len() < usize::from(shape.m) {
                for column in order.iter().skip(first.map_or(0, |at| at + 1)) {
                    if sets.len() < TRIES {
                        sets.push([&without[..], &[*column]].concat());
                    }
                }
            }
        }
        None
    }

    /// One block of a column, from the contents of all columns but some.
    fn piece(
        &self,
        segment: &Segment,
        contents: &[Content],
        column: u16,
        without: &[u16],
    ) -> Option<Vec<u8>> {
        let allowed = |at: usize| without.iter().all(|w| usize::from(*w) != at);
        let wanted = usize::from(column);
        if allowed(wanted)
            && let Content::Good(bytes) | Content::Unproven(bytes) = contents.get(wanted)?
        {
            return Some(bytes.clone());
        }
        let mut known: Vec<(usize, &[u8])> = Vec::new();
        let mut unproven: Vec<(usize, &[u8])> = Vec::new();
        for (at, content) in contents.iter().enumerate() {
            match content {
                _ if at == wanted || !allowed(at) => {}
                Content::Good(bytes) => known.push((at, bytes)),
                Content::Unproven(bytes) => unproven.push((at, bytes)),
                Content::Bad => {}
            }
        }
        known.extend(unproven);
        let code = self.code(segment.shape)?;
        code.decode(&known, &[wanted])?.pop()
    }

    /// Whether nodes may lie in this segment.
    pub(crate) fn holds_nodes(segment: &Segment) -> bool {
        segment.shape.kind == METADATA
    }
}
