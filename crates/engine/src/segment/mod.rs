//! Segments in memory: where their columns lie, which stripes are written, which blocks live.
//!
//! Invariants:
//! - A segment's number is never reused. Who still needs a segment holds a [`Pinned`] of it; its slots are
//!   given back only when nobody does (rule R12).
//! - Stripes are handed out in order and recorded in order: those below `recorded` are written,
//!   flushed and named by a durable journal record (or the root).
//! - `live` is the exact image of the trees as of the last merge; a delta's block is not in it yet.

pub mod bad;
pub mod behind;
pub mod coder;
pub mod course;
pub mod header;
pub mod identity;
pub mod look;
pub mod plan;
pub mod read;
pub mod stream;
pub mod stripe;
pub mod summary;
pub mod table;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::rc::Rc;

use ashlar_digest::Kind;
use ashlar_format::bitmap::Bitmap;
use ashlar_format::context::Context;
use ashlar_format::node::Place;
use ashlar_format::slot::{SegmentKind, SlotEntry};
use ashlar_format::summary::{Owner, Row};
use ashlar_format::{SegmentGeometry, SegmentNumber};
use ashlar_rt::Gate;

/// Slot number of a column that was never there (a full-width segment written degraded).
pub const NO_SLOT: u32 = u32::MAX;

/// Where one column lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// The device; meaningless if `slot` is [`NO_SLOT`].
    pub device: u16,
    /// The slot on it.
    pub slot: u32,
    /// How often the column has been placed.
    pub version: u32,
}

impl Column {
    /// A column that is nowhere.
    pub const MISSING: Column = Column {
        device: 0,
        slot: NO_SLOT,
        version: 0,
    };

    /// Whether there is a slot.
    pub fn is_placed(&self) -> bool {
        self.slot != NO_SLOT
    }
}

/// Summary rows of a course that is still being filled, by stripe then column.
pub type CourseRows = BTreeMap<u32, Vec<Vec<Row>>>;

/// A segment that somebody needs: its slots are not given back while this is held (rule R12). Everybody but the table
/// holds segments so.
#[derive(Debug)]
pub struct Pinned(Rc<Segment>);

impl Clone for Pinned {
    fn clone(&self) -> Pinned {
        self.0.pin()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.0.pins.set(self.0.pins.get() - 1);
    }
}

impl Deref for Pinned {
    type Target = Segment;
    fn deref(&self) -> &Segment {
        &self.0
    }
}

impl Pinned {
    /// What the table holds: it does not count as a pin.
    pub fn entry(&self) -> Rc<Segment> {
        self.0.clone()
    }
}

/// The order in which the stripes of a segment are coded.
#[derive(Debug, Default)]
struct Turns {
    /// Stripes handed out whose rows are not known yet.
    uncoded: RefCell<BTreeSet<u32>>,
    coded: Gate,
}

/// Whether the headers of a segment have been written.
#[derive(Debug, Default)]
struct Headers {
    written: Cell<bool>,
    gate: Gate,
}

/// A segment.
#[derive(Debug)]
pub struct Segment {
    /// Its number.
    pub number: SegmentNumber,
    /// What it holds.
    pub kind: SegmentKind,
    /// Its shape.
    pub geometry: SegmentGeometry,
    /// Its erasure code's tag.
    pub code: u8,
    /// Where its columns lie.
    pub columns: RefCell<Vec<Column>>,
    /// The next stripe to hand out.
    pub next_stripe: Cell<u32>,
    turns: Turns,
    headers: Headers,
    /// Stripes recorded.
    pub recorded: Cell<u32>,
    /// Takes no more stripes, and everything of it is durable.
    pub sealed: Cell<bool>,
    /// The checkpoint whose image was the first to say that it is sealed; 0: none was.
    pub sealed_in: Cell<u64>,
    /// Takes no more stripes; sealed when the last one is recorded.
    pub retired: Cell<bool>,
    /// Written strips of stripes that were closed short, as far as known; the summary is the authority.
    pub short: RefCell<BTreeMap<u32, u16>>,
    /// Rows of the course being filled: kept until its summary is written.
    pub rows: RefCell<CourseRows>,
    /// The oldest journal sequence that holds rows of a course without summary.
    pub rows_since: Cell<Option<u64>>,
    /// The oldest sequence of a stripe that the last root's record of this segment does not count.
    pub image_behind: Cell<Option<u64>>,
    /// Live data blocks.
    pub live: RefCell<Bitmap>,
    /// Blocks that its stripes leave empty for the size of their volume blocks ([`Segment::left_empty`]). None: it is of
    /// an earlier process, and nobody has looked yet.
    pub padding: Cell<Option<u32>>,
    /// Its record in the liveness tree.
    pub record: Cell<u32>,
    /// How many hold it, besides the table.
    pins: Cell<u32>,
}

impl Segment {
    /// A new, empty segment.
    pub fn create(
        number: SegmentNumber,
        kind: SegmentKind,
        geometry: SegmentGeometry,
        code: u8,
        columns: Vec<Column>,
        record: u32,
    ) -> Pinned {
        assert!(
            geometry.is_sound() && columns.len() == geometry.width(),
            "a segment has all its columns"
        );
        let segment = Segment {
            number,
            kind,
            geometry,
            code,
            columns: RefCell::new(columns),
            next_stripe: Cell::new(0),
            turns: Turns::default(),
            headers: Headers::default(),
            recorded: Cell::new(0),
            sealed: Cell::new(false),
            sealed_in: Cell::new(0),
            retired: Cell::new(false),
            short: RefCell::default(),
            rows: RefCell::default(),
            rows_since: Cell::new(None),
            image_behind: Cell::new(None),
            live: RefCell::new(Bitmap::new(geometry.data_blocks())),
            padding: Cell::new(None),
            record: Cell::new(record),
            pins: Cell::new(0),
        };
        Rc::new(segment).pin()
    }

    /// Blocks that a stripe of it leaves empty, as the largest of its volume blocks fill one only so far: volumes are
    /// promised room as if their blocks leave as much (`Packing`). A stripe that is closed sooner leaves more, which
    /// rewriting gains.
    pub fn left_empty(&self, filled: u32, largest: u32) -> u32 {
        let stripe = self.geometry.stripe_blocks();
        (stripe - filled).min(stripe % largest.max(1))
    }

    /// Keeps it from being freed.
    pub fn pin(self: &Rc<Self>) -> Pinned {
        self.pins.set(self.pins.get() + 1);
        Pinned(self.clone())
    }

    /// Whether nobody needs it but, perhaps, the trees.
    pub fn is_unpinned(&self) -> bool {
        self.pins.get() == 0
    }

    /// Whether the journal still has something of it that neither a summary nor the trees say.
    pub fn needs_journal(&self) -> bool {
        self.rows_since.get().is_some() || self.image_behind.get().is_some()
    }

    /// The columns that every stripe is written to: the first data strip and all parity. At most M of these M + 1 are
    /// missing as long as anything can be read.
    pub fn always_written(&self) -> impl Iterator<Item = usize> + use<> {
        let parity = usize::from(self.geometry.k)..self.geometry.width();
        std::iter::once(0).chain(parity)
    }

    /// How many more columns can be lost, whichever they are, where `missing` ones are; `None`: what it holds cannot be
    /// decoded. Every question of what may be lost is asked here. Every code there is is MDS, so that only the number
    /// of missing columns counts; a code that repairs locally answers by which they are.
    pub fn survives(&self, missing: impl Fn(usize) -> bool) -> Option<usize> {
        let missing = (0..self.geometry.width()).filter(|c| missing(*c)).count();
        usize::from(self.geometry.m).checked_sub(missing)
    }

    /// The context of the strip block at stripe, column and block `at`, and its digest function. `None`: its owner
    /// names a function that this program does not know.
    pub fn context_of(&self, at: (u32, u16, u32), owner: &Owner) -> Option<(Kind, Context)> {
        Context::of_strip(self.number, self.geometry.k, at, owner)
    }

    /// Whether it is sealed, and no row of it hangs on the journal.
    pub fn is_closed(&self) -> bool {
        self.sealed.get() && self.rows_since.get().is_none()
    }

    /// Blocks of the stripes that it still takes.
    pub fn room(&self) -> u64 {
        let stripes = self.geometry.stripes() - self.next_stripe.get();
        u64::from(stripes) * u64::from(self.geometry.stripe_blocks())
    }

    /// Whether another stripe fits.
    pub fn has_room(&self) -> bool {
        !self.sealed.get()
            && !self.retired.get()
            && self.next_stripe.get() < self.geometry.stripes()
    }

    /// Takes the next stripe number.
    pub fn take_stripe(&self) -> u32 {
        let stripe = self.next_stripe.get();
        assert!(self.has_room(), "a sealed or full segment takes no stripe");
        self.next_stripe.set(stripe + 1);
        self.turns.uncoded.borrow_mut().insert(stripe);
        stripe
    }

    /// Waits until the rows of every stripe handed out before `stripe` are known, or it is known that they
    /// have none: the last stripe of a course is written with all of them.
    pub async fn turn_of(&self, stripe: u32) {
        let turns = &self.turns;
        let first = || turns.uncoded.borrow().first().copied();
        turns
            .coded
            .until(|| first().is_none_or(|s| s >= stripe))
            .await;
    }

    /// The rows of `stripe` are known, or that it has none.
    pub fn end_turn(&self, stripe: u32) {
        self.turns.uncoded.borrow_mut().remove(&stripe);
        self.turns.coded.open();
    }

    /// Waits until the headers of a segment made by this process have been written, or their devices reported.
    pub async fn headed(&self) {
        let headers = &self.headers;
        headers.gate.until(|| headers.written.get()).await;
    }

    /// Its headers are written.
    pub fn set_headed(&self) {
        self.headers.written.set(true);
        self.headers.gate.open();
    }

    /// What a slot with this version of a column says of it.
    pub fn slot_entry(&self, column: u16, version: u32) -> SlotEntry {
        SlotEntry {
            segment: self.number,
            column,
            version,
            k: self.geometry.k,
            m: self.geometry.m,
            code: self.code,
            kind: self.kind,
            strip_blocks: self.geometry.strip_blocks,
        }
    }

    /// The place of a data block.
    pub fn place(&self, block: u32) -> Place {
        Place {
            segment: self.number,
            block,
        }
    }

    /// Whether a column lies on one of these devices.
    pub fn lies_on(&self, column: usize, devices: &[u16]) -> bool {
        let place = self.columns.borrow()[column];
        place.is_placed() && devices.contains(&place.device)
    }

    /// Whether any column lies on one of these devices.
    pub fn lies_on_any(&self, devices: &[u16]) -> bool {
        let mut columns = 0..self.geometry.width();
        !devices.is_empty() && columns.any(|column| self.lies_on(column, devices))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use ashlar_codec::{Code, CodeKind};

    use super::*;
    use crate::testing::bed;

    #[test]
    fn stripes_are_handed_out_in_order_until_it_is_full() {
        let bed = bed(3);
        let segment = bed.segment(1, 2, 1);
        for stripe in 0..segment.geometry.stripes() {
            assert!(segment.has_room());
            assert_eq!(segment.take_stripe(), stripe);
        }
        assert!(!segment.has_room());
        let other = bed.segment(2, 2, 1);
        other.retired.set(true);
        assert!(!other.has_room(), "a retired one takes no more");
    }

    /// The judge of losses agrees with every code about every loss.
    #[test]
    fn a_loss_is_survived_if_the_code_decodes_it() {
        let bed = bed(6);
        for (number, (k, m)) in (1..).zip([(1, 0), (3, 0), (1, 1), (2, 1), (1, 3), (3, 2), (2, 4)])
        {
            let segment = bed.segment(number, k, m);
            let width = segment.geometry.width();
            for lost in 0..1u32 << width {
                let missing = |column: usize| lost >> column & 1 == 1;
                let left = segment.survives(missing);
                let beyond = usize::from(m).checked_sub(lost.count_ones() as usize);
                assert_eq!(left, beyond, "{k}+{m} without {lost:b}");
                for kind in CodeKind::ALL {
                    let Ok(code) = Code::new(kind, k.into(), m.into()) else {
                        continue;
                    };
                    let strip = [0; 64];
                    let strip = |c| (!missing(c)).then_some(&strip[..]);
                    let strips: Vec<_> = (0..width).map(strip).collect();
                    let wanted: Vec<usize> = (0..width).filter(|c| missing(*c)).collect();
                    let mut out = vec![[0; 64]; wanted.len()];
                    let mut out: Vec<_> = out.iter_mut().map(|o| &mut o[..]).collect();
                    let decoded = code.decode(&strips, &wanted, &mut out).is_ok();
                    assert_eq!(left.is_some(), decoded, "{kind:?} {k}+{m} without {lost:b}");
                }
            }
        }
    }

    #[test]
    fn columns_are_found_by_device() {
        let bed = bed(3);
        let segment = bed.segment(1, 2, 1);
        assert!(segment.lies_on(1, &[1, 2]) && !segment.lies_on(1, &[0, 2]));
        segment.columns.borrow_mut()[1] = Column::MISSING;
        assert!(!segment.lies_on(1, &[0, 1, 2]));
        assert_eq!(segment.always_written().collect::<Vec<_>>(), vec![0, 2]);
    }

    /// Rows of a stripe computed late are put down after those of the stripes before it.
    #[test]
    fn a_stripe_waits_for_its_turn() {
        let bed = bed(2);
        let segment = bed.segment(1, 1, 1);
        let (first, second) = (segment.take_stripe(), segment.take_stripe());
        let order = Rc::new(RefCell::new(Vec::new()));
        let (rt, turns) = (bed.rt.clone(), order.clone());
        bed.rt.block_on(async move {
            let (of_second, late) = (segment.clone(), turns.clone());
            let waiting = rt.spawn(async move {
                of_second.turn_of(second).await;
                late.borrow_mut().push(second);
                of_second.end_turn(second);
            });
            rt.sleep(1).await;
            segment.turn_of(first).await;
            turns.borrow_mut().push(first);
            segment.end_turn(first);
            waiting.await;
        });
        assert_eq!(*order.borrow(), vec![first, second]);
    }
}
