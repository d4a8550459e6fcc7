//! What every strip block holds, kept by watching the disks: each write into a slot is judged when it
//! is submitted, before anything can be lost.
//!
//! Invariants:
//! - A block of a column is written once: whatever is written there later, by a repair or a reconstruct
//!   in whatever slot, must be the same bytes (P4). Only summaries are written again with more rows.
//! - When all columns of a row of blocks are known, the parity must be that of the data, computed here
//!   one byte at a time.
//! - No segment of data crosses groups; none is laid with more than M columns in a failure domain.
//! - A data block with a client's bytes holds bytes of one place of one volume that were written.
//!
//! It knows the engine only through the format of superblocks and slot headers.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::sync::LazyLock;

use ashlar_format::SegmentGeometry;
use ashlar_format::slot::{SegmentKind, SlotEntry, SlotHeader};
use ashlar_format::superblock::Superblock;
use ashlar_rt::{BLOCK, Slice};

use crate::config::Align;
use crate::content::{self, Origin, zeros};
use crate::disk::Io;
use crate::world::World;

/// Which columns of a row of blocks are known.
type Columns = BTreeMap<u16, Slice>;

/// How superblocks begin.
const SUPERBLOCK: &[u8] = b"ASHLAR01";

/// A segment as the ledger knows it.
#[derive(Debug)]
struct Segment {
    entry: SlotEntry,
    /// By block of the slot.
    rows: BTreeMap<u32, Columns>,
    /// Slots that hold a column of it.
    slots: u32,
    /// The disk of its first column.
    disk: usize,
}

/// Where things lie on a disk, in pages.
#[derive(Clone, Debug)]
struct Places {
    /// Both copies of its slot table.
    tables: [Range<usize>; 2],
    /// The first slot.
    slots: usize,
    /// A slot has so many.
    slot_pages: usize,
}

/// The ledger of one array.
#[derive(Debug)]
pub struct Ledger {
    world: Weak<World>,
    array: Cell<Option<[u8; 16]>>,
    /// By disk.
    places: RefCell<BTreeMap<usize, Places>>,
    /// By disk and slot: what was begun there last.
    owners: RefCell<BTreeMap<(usize, usize), SlotEntry>>,
    segments: RefCell<BTreeMap<u64, Segment>>,
    /// Disks with a superblock of another: which device they are taken for nobody knows.
    mistakable: RefCell<BTreeSet<usize>>,
    compared: Cell<u64>,
    rows: Cell<u64>,
}

/// Watches every disk of `world`.
pub fn watch(world: &Rc<World>) -> Rc<Ledger> {
    let ledger = Rc::new(Ledger {
        world: Rc::downgrade(world),
        array: Cell::new(None),
        places: RefCell::default(),
        owners: RefCell::default(),
        segments: RefCell::default(),
        mistakable: RefCell::default(),
        compared: Cell::new(0),
        rows: Cell::new(0),
    });
    let to = ledger.clone();
    let recorder: crate::disk::Recorder = Rc::new(move |disk, io| {
        match io {
            Io::Submit { page, pages, .. } => to.submitted(disk, page, &pages),
            Io::Replaced => to.forget(disk),
            // Another disk's superblock: it may be taken for that one.
            Io::Rot { content, .. } if content.starts_with(SUPERBLOCK) => {
                to.forget(disk);
                to.mistakable.borrow_mut().insert(disk);
            }
            // A page of its slot table: an older one may count from now on, and repairs follow that.
            Io::Rot { page, .. } if to.is_table(disk, page) => to.forget(disk),
            _ => {}
        }
    });
    for disk in &world.disks {
        disk.record(Some(recorder.clone()));
    }
    ledger
}

impl Ledger {
    /// Strip blocks that were written again and compared, and rows whose parity was computed.
    pub fn counts(&self) -> (u64, u64) {
        (self.compared.get(), self.rows.get())
    }

    fn fail(&self, text: impl FnOnce() -> String) {
        // An operator who goes on from an old root gets its segment numbers and slots a second time.
        if let Some(world) = self.world.upgrade().filter(|w| !w.loose.get()) {
            world.fail(|| format!("WRONG STRIP: {}", text()));
        }
    }

    /// What lies in the slots of this disk is told by headers that nobody saw being written there.
    fn forget(&self, disk: usize) {
        self.owners.borrow_mut().retain(|(of, _), _| *of != disk);
    }

    fn submitted(&self, disk: usize, page: usize, pages: &[Slice]) {
        let Some(first) = pages.first() else { return };
        if first.starts_with(SUPERBLOCK) {
            self.superblock(disk, pages);
        }
        let Some(places) = self.places.borrow().get(&disk).cloned() else {
            return;
        };
        for (at, content) in (page..).zip(pages) {
            if let Some(at) = at.checked_sub(places.slots) {
                let (slot, block) = (at / places.slot_pages, at % places.slot_pages);
                self.block(disk, slot, block, content);
            }
        }
    }

    fn is_table(&self, disk: usize, page: usize) -> bool {
        let places = self.places.borrow();
        places
            .get(&disk)
            .is_some_and(|p| p.tables.iter().any(|t| t.contains(&page)))
    }

    /// How many pages a slot of this disk has.
    fn slot_pages(&self, disk: usize) -> usize {
        self.places.borrow().get(&disk).map_or(1, |p| p.slot_pages)
    }

    fn superblock(&self, disk: usize, pages: &[Slice]) {
        let mut bytes = Vec::with_capacity(pages.len() * BLOCK);
        pages.iter().for_each(|page| bytes.extend_from_slice(page));
        let Ok(size) = Superblock::encoded_bytes(&bytes) else {
            return;
        };
        let Some(Ok(found)) = bytes.get(..size).map(Superblock::decode) else {
            return;
        };
        let pages = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX) / BLOCK;
        let geometry = &found.geometry;
        let table = |copy| {
            let end = geometry.page_offset(geometry.table_pages(), copy);
            pages(geometry.page_offset(0, copy))..pages(end)
        };
        let places = Places {
            tables: [table(0), table(1)],
            slots: pages(geometry.slot_offset(0)),
            slot_pages: pages(geometry.slot_bytes).max(1),
        };
        self.array.set(Some(found.array));
        self.places.borrow_mut().insert(disk, places);
    }

    fn block(&self, disk: usize, slot: usize, block: usize, content: &Slice) {
        if block == 0 {
            return self.begin(disk, slot, content);
        }
        let Some(entry) = self.owners.borrow().get(&(disk, slot)).copied() else {
            return;
        };
        let block = u32::try_from(block).expect("slots are small");
        if content.starts_with(b"ASHSUMRY") {
            return self.summary(disk, &entry, block);
        }
        if entry.kind == SegmentKind::Data && entry.column < entry.k {
            self.client_bytes(&entry, block, content);
        }
        let mut segments = self.segments.borrow_mut();
        let Some(segment) = segments.get_mut(&entry.segment) else {
            return;
        };
        let row = segment.rows.entry(block).or_default();
        match row.get(&entry.column) {
            // A stripe that no record names may be made up as never written.
            Some(_) if zeros(content) => {}
            Some(known) => {
                self.compared.set(self.compared.get() + 1);
                if known[..] != content[..] {
                    self.fail(|| {
                        format!(
                            "disk {disk}: segment {} column {} block {block} is written again with other bytes",
                            entry.segment, entry.column
                        )
                    });
                }
            }
            None => {
                row.insert(entry.column, content.clone());
                let full = (0..entry.k + entry.m).all(|column| row.contains_key(&column));
                if full && !zeros(content) {
                    self.rows.set(self.rows.get() + 1);
                    if let Some(bad) = wrong_parity(&entry, row, block) {
                        self.fail(|| {
                            format!(
                                "segment {} block {block}: parity column {bad} is not that of the data",
                                entry.segment
                            )
                        });
                    }
                }
            }
        }
    }

    /// A summary of a column: which course it ends.
    fn summary(&self, disk: usize, entry: &SlotEntry, block: u32) {
        let blocks = self.slot_pages(disk);
        let geometry = SegmentGeometry {
            k: entry.k,
            m: entry.m,
            strip_blocks: entry.strip_blocks,
            slot_blocks: u32::try_from(blocks).expect("slots are small"),
        };
        if geometry.courses() > 1
            && block >= geometry.summary_block(1)
            && let Some(world) = self.world.upgrade()
        {
            world.trace.mark(match entry.kind {
                SegmentKind::Data => "a second course ends",
                SegmentKind::Meta => "a second course of nodes ends",
            });
        }
    }

    /// A slot begins again: with a header, or with what a discard leaves.
    fn begin(&self, disk: usize, slot: usize, content: &Slice) {
        let array = self.array.get().unwrap_or_default();
        let pages = self.slot_pages(disk);
        let slot_blocks = u32::try_from(pages).expect("slots are small");
        let header = SlotHeader::decode(&array, slot_blocks, content).ok();
        let old = match &header {
            Some(header) => self.owners.borrow_mut().insert((disk, slot), header.entry),
            None => self.owners.borrow_mut().remove(&(disk, slot)),
        };
        let mut segments = self.segments.borrow_mut();
        if let Some(old) = old
            && let Some(segment) = segments.get_mut(&old.segment)
        {
            segment.slots -= 1;
            if segment.slots == 0 {
                segments.remove(&old.segment);
            }
        }
        if let Some(header) = header {
            let entry = header.entry;
            let segment = segments.entry(entry.segment).or_insert_with(|| Segment {
                entry,
                rows: BTreeMap::new(),
                slots: 0,
                disk,
            });
            segment.slots += 1;
            if segment.slots == 1 {
                let columns = u64::from(entry.k + entry.m);
                if let Some(world) = self.world.upgrade() {
                    world.mishaps.scrubs.borrow_mut().begun += columns * (pages * BLOCK) as u64;
                }
                self.domains(&header);
            }
            let shape = |e: &SlotEntry| (e.k, e.m, e.code, e.kind, e.strip_blocks);
            if shape(&segment.entry) != shape(&entry) {
                self.fail(|| format!("segment {} has two shapes", entry.segment));
            }
            let world = self.world.upgrade();
            let group = |disk| world.as_ref().map(|w| w.config.group_of(disk));
            let mistakable = self.mistakable.borrow();
            let known = |disk| !mistakable.contains(&disk);
            let both_known = known(disk) && known(segment.disk);
            if entry.kind == SegmentKind::Data && both_known && group(disk) != group(segment.disk) {
                self.fail(|| format!("segment {} crosses groups", entry.segment));
            }
        }
    }

    /// A segment is laid: while nothing has happened to any device, no domain has more of its columns than it
    /// has parity, where the domains can carry the layout.
    fn domains(&self, header: &SlotHeader) {
        let Some(world) = self.world.upgrade() else {
            return;
        };
        let (config, entry) = (&world.config, &header.entry);
        if config.domains.is_empty() || !world.mishaps.touched.borrow().is_empty() {
            return;
        }
        let carries = |group: usize| {
            let mut sizes: BTreeMap<usize, usize> = BTreeMap::new();
            let budget = world.budget.borrow();
            let there = |d: &usize| !budget.leaving.contains_key(d) && !budget.unborn.contains(d);
            let of = |d: &usize| config.group_of(*d) == group && there(d);
            for device in (0..config.devices).filter(of) {
                *sizes.entry(config.domains[device]).or_default() += 1;
            }
            let columns: usize = sizes.values().map(|size| config.m.min(*size)).sum();
            columns >= config.k + config.m
        };
        if !(0..config.groups).all(carries) {
            return; // they cannot carry it
        }
        let m = usize::from(entry.m);
        world.trace.mark("ledger: domains respected");
        let mut columns: BTreeMap<usize, usize> = BTreeMap::new();
        for device in &header.devices {
            *columns
                .entry(config.domains[usize::from(*device)])
                .or_default() += 1;
        }
        if columns.values().any(|count| *count > m) {
            self.fail(|| {
                format!(
                    "segment {} on {:?}: more than {m} columns in one domain of {:?}: {entry:?}",
                    entry.segment, header.devices, config.domains
                )
            });
        }
    }

    /// A data block: every whole cell that a client wrote belongs to one place.
    fn client_bytes(&self, entry: &SlotEntry, block: u32, content: &Slice) {
        let Some(world) = self.world.upgrade() else {
            return;
        };
        if world.config.align == Align::Byte {
            return; // cells may be mixed of two writes
        }
        let mut place: Option<(u16, u64)> = None;
        for (at, cell) in content.as_chunks().0.iter().enumerate() {
            match content::origin(cell) {
                Origin::Zeros => {}
                Origin::Write { volume, offset, .. } => {
                    let base = offset.wrapping_sub(at as u64 * content::CELL);
                    if *place.get_or_insert((volume, base)) != (volume, base) {
                        return self.fail(|| {
                            let found = content::explain(base, content);
                            format!(
                                "segment {} column {} block {block} mixes places: {found}",
                                entry.segment, entry.column
                            )
                        });
                    }
                }
                Origin::Unknown => {
                    return self.fail(|| {
                        let found = content::explain(0, content);
                        format!(
                            "segment {} column {} block {block} holds what nobody wrote: {found}",
                            entry.segment, entry.column
                        )
                    });
                }
            }
        }
    }
}

/// The product in GF(2^8) with polynomial 0x11d.
fn multiply(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        if b & 1 == 1 {
            product ^= a;
        }
        a = a << 1 ^ if a & 0x80 == 0 { 0 } else { 0x1d };
        b >>= 1;
    }
    product
}

/// All products, by factor.
static PRODUCTS: LazyLock<Vec<[u8; 256]>> = LazyLock::new(|| {
    (0..=255u8)
        .map(|a| std::array::from_fn(|b| multiply(a, u8::try_from(b).expect("a byte"))))
        .collect()
});

/// By element, the one whose product with it is 1; that of 0 is never asked for.
static INVERSES: LazyLock<[u8; 256]> = LazyLock::new(|| {
    std::array::from_fn(|a| {
        let product = |b: &u8| PRODUCTS[a][usize::from(*b)];
        (0..=255).find(|b| product(b) == 1).unwrap_or(0)
    })
});

fn inverse(a: u8) -> u8 {
    INVERSES[usize::from(a)]
}

/// The tag of the Cauchy code, the default; and of the one used where K or M is 1, whose first parity
/// is a copy or the sum.
const CAUCHY: u8 = 1;
const SUM: u8 = 3;

/// The first parity column of a full row that is not what the data give, looked at in one eighth of the
/// block: another one in each block.
fn wrong_parity(entry: &SlotEntry, row: &Columns, block: u32) -> Option<u16> {
    let part = (entry.segment as usize + block as usize) % 8 * (BLOCK / 8);
    let part = part..part + BLOCK / 8;
    for parity in 0..entry.m {
        let mut expected = [0; BLOCK / 8];
        for data in 0..entry.k {
            let factor = match entry.code {
                CAUCHY => inverse((entry.k + parity) as u8 ^ data as u8),
                SUM if entry.k == 1 || entry.m == 1 => 1,
                _ => return None,
            };
            let products = &PRODUCTS[usize::from(factor)];
            for (sum, byte) in expected.iter_mut().zip(&row[&data][part.clone()]) {
                *sum ^= products[usize::from(*byte)];
            }
        }
        if row[&(entry.k + parity)][part.clone()] != expected {
            return Some(entry.k + parity);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_is_a_field() {
        assert_eq!(multiply(0x80, 2), 0x1d);
        for a in 1..=255 {
            assert_eq!(multiply(a, inverse(a)), 1);
            assert_eq!(multiply(a, 7), multiply(7, a));
        }
    }
}
