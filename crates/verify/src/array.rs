//! The array as root and slot tables describe it: which segments there are, and where their columns lie.
//!
//! **Invariants**: a column lies where the claim of the highest version says; what two claims of the same
//! version say is a finding, and the first one read is kept.

use std::collections::{BTreeMap, BTreeSet};

use crate::code::Code;
use crate::digest::Key;
use crate::journal::{self, Entry, Journal, Moved, Open, Stripe};
use crate::members::{Device, Members, roots_of};
use crate::report::{At, Kind, Report};
use crate::root::Root;
use crate::slots::{METADATA, Page, Row, Shape, SlotEntry, header};
use crate::superblock::PAGE_ENTRIES;
use crate::wire::{BLOCK, BLOCK_BYTES};

/// Where a column lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) device: u16,
    pub(crate) slot: u32,
    pub(crate) version: u32,
}

/// A segment.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) number: u64,
    pub(crate) shape: Shape,
    pub(crate) columns: Vec<Option<Column>>,
    /// Rows that the journal has, by stripe and column; none for strips that were not written.
    pub(crate) rows: BTreeMap<u32, Vec<Vec<Row>>>,
    /// Stripes that the journal has as written.
    pub(crate) recorded: u32,
    /// An Open entry that counts names it.
    pub(crate) opened: bool,
    /// What liveness says, if anything.
    pub(crate) record: Option<Record>,
    /// Blocks that something points to.
    pub(crate) used: Bits,
    /// The sum of what these blocks are said to be.
    pub(crate) owners: u64,
}

/// A record of liveness.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) recorded: u32,
    pub(crate) sealed: bool,
    pub(crate) live: Bits,
}

/// A set of data blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bits(Vec<u8>);

impl Bits {
    pub(crate) fn of(bytes: &[u8]) -> Bits {
        Bits(bytes.to_vec())
    }

    pub(crate) fn get(&self, bit: u32) -> bool {
        let byte = self.0.get((bit / 8) as usize).copied().unwrap_or(0);
        byte >> (bit % 8) & 1 == 1
    }

    /// Adds a bit; whether it is new.
    pub(crate) fn set(&mut self, bit: u32) -> bool {
        let at = (bit / 8) as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        let new = !self.get(bit);
        self.0[at] |= 1 << (bit % 8);
        new
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|b| u64::from(b.count_ones())).sum()
    }

    /// The bits in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let bytes = (0u32..).zip(&self.0).filter(|(_, byte)| **byte != 0);
        bytes.flat_map(|(at, byte)| {
            (0..8)
                .filter(move |bit| byte >> bit & 1 == 1)
                .map(move |bit| at * 8 + bit)
        })
    }
}

impl Segment {
    pub(crate) fn new(number: u64, shape: Shape) -> Segment {
        Segment {
            number,
            shape,
            columns: vec![None; shape.width()],
            rows: BTreeMap::new(),
            recorded: 0,
            opened: false,
            record: None,
            used: Bits::default(),
            owners: 0,
        }
    }

    /// Stripes that are written: those that record or journal count, and any with a live block.
    pub(crate) fn written(&self) -> u32 {
        let record = self.record.as_ref();
        let counted = record.map_or(0, |r| r.recorded).max(self.recorded);
        let last = record.and_then(|r| r.live.iter().last());
        let live = last.map_or(0, |block| self.shape.locate(block).0 + 1);
        counted.max(live).min(self.shape.stripes())
    }
}

/// Everything that reading needs.
pub(crate) struct Array<'a> {
    pub(crate) members: Members<'a>,
    pub(crate) id: [u8; 16],
    pub(crate) key: Key,
    pub(crate) slot_blocks: u32,
    pub(crate) root: Root,
    pub(crate) journal: Journal,
    pub(crate) segments: BTreeMap<u64, Segment>,
    /// Those of them that no table names, only the journal.
    rebuilt: BTreeSet<u64>,
    pub(crate) codes: BTreeMap<(u8, u16, u16), Option<Code>>,
}

impl<'a> Array<'a> {
    /// Root, slot tables and journal of the array of these members.
    pub(crate) fn open(members: Members<'a>, report: &mut Report) -> Option<Array<'a>> {
        let superblock = &members.superblock;
        report.array.clone_from(&superblock.name);
        report.uuid = superblock.array;
        report.generation = superblock.generation;
        let root = newest_root(&members, report)?;
        report.root = root.number;
        report.clean = root.clean;
        let journal = journal::read(&members, &root);
        let mut array = Array {
            id: superblock.array,
            key: Key::new(superblock.key),
            slot_blocks: superblock.geometry.slot_blocks(),
            root,
            journal,
            segments: BTreeMap::new(),
            rebuilt: BTreeSet::new(),
            codes: BTreeMap::new(),
            members,
        };
        array.read_tables(report);
        array.find_rebuilt(report);
        array.take_rows(report);
        array.make_codes();
        Some(array)
    }

    /// Makes the codes of all segments.
    pub(crate) fn make_codes(&mut self) {
        for segment in self.segments.values() {
            let s = segment.shape;
            self.codes
                .entry((s.code, s.k, s.m))
                .or_insert_with(|| Code::new(s.code, usize::from(s.k), usize::from(s.m)));
        }
    }

    pub(crate) fn code(&self, shape: Shape) -> Option<&Code> {
        self.codes.get(&(shape.code, shape.k, shape.m))?.as_ref()
    }

    pub(crate) fn device(&self, index: u16) -> Option<&Device<'a>> {
        self.members.here.get(&index)
    }

    /// Reads blocks of a column's slot; `None` if it is not here or cannot be read.
    pub(crate) fn read(&self, column: Option<Column>, block: u32, count: u32) -> Option<Vec<u8>> {
        let column = column?;
        let device = self.device(column.device)?;
        let mut bytes = vec![0; count as usize * BLOCK];
        let at = device.geometry.slot(column.slot) + u64::from(block) * BLOCK_BYTES;
        device.source.read(at, &mut bytes).ok()?;
        Some(bytes)
    }

    fn read_tables(&mut self, report: &mut Report) {
        let devices: Vec<(u16, Device<'a>)> =
            self.members.here.iter().map(|(i, d)| (*i, *d)).collect();
        for (index, device) in devices {
            for page in 0..device.geometry.pages() {
                let Some(entries) = self.read_page(index, &device, page, report) else {
                    continue;
                };
                let slots = page * PAGE_ENTRIES..device.geometry.slots;
                for (slot, entry) in slots.zip(entries) {
                    if let Some(entry) = entry {
                        report.counts.slots_used += 1;
                        self.claim(index, device.position, slot, entry, report);
                    }
                }
            }
        }
    }

    /// The newest copy of a page that is not later than the root.
    fn read_page(
        &self,
        index: u16,
        device: &Device<'_>,
        page: u32,
        report: &mut Report,
    ) -> Option<Vec<Option<SlotEntry>>> {
        let mut best: Option<Page> = None;
        let mut bad = 0;
        for copy in 0..2 {
            let mut bytes = vec![0; BLOCK];
            let read = device
                .source
                .read(device.geometry.page(page, copy), &mut bytes);
            let parsed = Page::parse(&self.id, (index, page), self.slot_blocks, &bytes);
            let Some(found) = parsed.filter(|_| read.is_ok()) else {
                // A copy that no checkpoint has written yet is all zero.
                bad += u32::from(read.is_err() || bytes.iter().any(|byte| *byte != 0));
                continue;
            };
            let newest = best.as_ref().map(|page| page.checkpoint);
            if found.checkpoint > self.root.checkpoint {
                report
                    .find(Kind::PageLater)
                    .device(device.position)
                    .at(At::Page(page));
            } else if newest < Some(found.checkpoint) {
                best = Some(found);
            }
        }
        let kind = match (&best, bad) {
            (None, _) => Some(Kind::Page),
            (Some(_), 1..) => Some(Kind::PageCopy),
            _ => None,
        };
        if let Some(kind) = kind {
            report.find(kind).device(device.position).at(At::Page(page));
        }
        best.map(|page| page.entries)
    }

    fn claim(
        &mut self,
        device: u16,
        position: usize,
        slot: u32,
        entry: SlotEntry,
        report: &mut Report,
    ) {
        let segments = &mut self.segments;
        let segment = segments
            .entry(entry.segment)
            .or_insert_with(|| Segment::new(entry.segment, entry.shape));
        let mut find = |kind| {
            report
                .find(kind)
                .device(position)
                .segment(entry.segment)
                .at(At::Slot(slot));
        };
        if segment.shape != entry.shape {
            find(Kind::ShapeDiffers);
            return;
        }
        let Some(held) = segment.columns.get_mut(usize::from(entry.column)) else {
            return;
        };
        let claim = Column {
            device,
            slot,
            version: entry.version,
        };
        match held {
            Some(h) if h.version == claim.version => find(Kind::ColumnTwice),
            Some(h) if h.version > claim.version => find(Kind::StaleClaim),
            Some(_) => {
                find(Kind::StaleClaim);
                *held = Some(claim);
            }
            None => *held = Some(claim),
        }
    }

    /// Takes the headers of columns that were rebuilt since the tables were written, of segments that no table
    /// of a device here names.
    pub(crate) fn find_rebuilt(&mut self, report: &mut Report) {
        let records = self.journal.records.iter().filter(|r| r.ring == 0);
        let entries = records.flat_map(|r| journal::entries(&r.payload).unwrap_or_default());
        let mut found = Vec::new();
        for entry in entries {
            if let Entry::Column(moved) = entry
                && !self.segments.contains_key(&moved.segment)
                && let Some(entry) = self.moved_header(&moved)
            {
                found.push((moved, entry));
            }
        }
        for (moved, entry) in found {
            self.rebuilt.insert(moved.segment);
            let position = self.device(moved.device).map_or(0, |d| d.position);
            self.claim(moved.device, position, moved.slot, entry, report);
        }
    }

    /// What the header says of a column that lies elsewhere now, if it is of just that column.
    fn moved_header(&self, moved: &Moved) -> Option<SlotEntry> {
        if !self.is_slot(moved.device, moved.slot) {
            return None;
        }
        let place = Column {
            device: moved.device,
            slot: moved.slot,
            version: moved.version,
        };
        let entry = header(&self.id, self.slot_blocks, &self.read(Some(place), 0, 1)?)?;
        let named = (moved.segment, moved.column, moved.version);
        ((entry.segment, entry.column, entry.version) == named).then_some(entry)
    }

    /// Gives segments of the tables the rows that the journal has of their stripes.
    fn take_rows(&mut self, report: &mut Report) {
        report.counts.journal_records = self.journal.records.len() as u64;
        for record in &self.journal.records {
            if record.columns_bad > 0 {
                report
                    .find(Kind::JournalColumn)
                    .at(At::Sequence(record.sequence));
            }
            let Some(entries) = journal::entries(&record.payload) else {
                report
                    .find(Kind::JournalEntry)
                    .at(At::Sequence(record.sequence));
                continue;
            };
            for entry in entries {
                if let Entry::Stripe(stripe) = entry
                    && let Some(segment) = self.segments.get_mut(&stripe.segment)
                {
                    segment.take_stripe(&stripe);
                }
            }
        }
        if !self.root.clean {
            report.find_times(Kind::JournalLost, self.journal.lost);
        }
    }

    /// Takes what the journal says of segments, once it is known which ones liveness names.
    pub(crate) fn take_segments(&mut self, report: &mut Report) {
        let records = std::mem::take(&mut self.journal.records);
        for record in records.iter().filter(|record| record.ring == 0) {
            for entry in journal::entries(&record.payload).unwrap_or_default() {
                match entry {
                    Entry::Open(open) => self.open_segment(&open, record.sequence),
                    Entry::Stripe(stripe) => {
                        if let Some(segment) = self.segments.get_mut(&stripe.segment) {
                            segment.take_stripe(&stripe);
                        }
                    }
                    Entry::Column(moved) => self.move_column(&moved),
                    Entry::Other => {}
                }
            }
        }
        self.make_codes();
        self.check_segments(report);
    }

    fn is_slot(&self, device: u16, slot: u32) -> bool {
        let known = self.device(device);
        known.is_some_and(|device| slot < device.geometry.slots)
    }

    fn open_segment(&mut self, open: &Open, sequence: u64) {
        let named = self.segments.get(&open.segment);
        let named = named.is_some_and(|s| s.record.is_some());
        if sequence < self.root.imaged && !named {
            return; // freed since
        }
        let shape = Shape {
            k: open.k,
            m: open.m,
            code: open.code,
            kind: open.kind,
            strip: open.strip,
            slot: self.slot_blocks,
        };
        if !shape.is_sound() || open.segment == 0 {
            return;
        }
        let places: Vec<Option<Column>> = open
            .columns
            .iter()
            .map(|(device, slot)| {
                self.is_slot(*device, *slot).then_some(Column {
                    device: *device,
                    slot: *slot,
                    version: 1,
                })
            })
            .collect();
        let segment = self
            .segments
            .entry(open.segment)
            .or_insert_with(|| Segment::new(open.segment, shape));
        segment.opened = true;
        if segment.shape == shape {
            for (held, opened) in segment.columns.iter_mut().zip(places) {
                *held = held.or(opened);
            }
        }
    }

    fn move_column(&mut self, moved: &Moved) {
        let there = self.is_slot(moved.device, moved.slot);
        let Some(segment) = self.segments.get_mut(&moved.segment) else {
            return;
        };
        if let Some(held) = segment.columns.get_mut(usize::from(moved.column))
            && held.is_none_or(|held| held.version < moved.version)
        {
            *held = there.then_some(Column {
                device: moved.device,
                slot: moved.slot,
                version: moved.version,
            });
        }
    }

    /// Which segments exist, whether no slot has two, and what their headers say. Segments that do not
    /// exist are gone afterwards.
    fn check_segments(&mut self, report: &mut Report) {
        let gone = |s: &&Segment| s.record.is_none() && !s.opened;
        // Between a claim and the Open entry power may go; what was exported has no such segments.
        let kind = if self.root.clean {
            Kind::SlotOfNobody
        } else {
            Kind::SlotLeft
        };
        // What only the journal names was freed since: no table has it.
        let by_tables = |s: &&Segment| !self.rebuilt.contains(&s.number);
        for segment in self.segments.values().filter(gone).filter(by_tables) {
            for column in segment.columns.iter().flatten() {
                let device = self.members.here.get(&column.device);
                let position = device.map_or(0, |device| device.position);
                report
                    .find(kind)
                    .device(position)
                    .segment(segment.number)
                    .at(At::Slot(column.slot));
            }
        }
        self.segments.retain(|_, s| s.exists());
        report.counts.segments = self.segments.len() as u64;
        let mut taken: BTreeMap<(u16, u32), u64> = BTreeMap::new();
        for segment in self.segments.values() {
            self.check_columns(segment, &mut taken, report);
        }
    }

    /// Metadata has more parity than data. On few devices a segment of it may be short of columns and survive what data
    /// do: it is not rewritten for that.
    fn kind_of_missing(&self, segment: &Segment) -> Kind {
        let superblock = &self.members.superblock;
        let missing = segment.columns.iter().filter(|c| c.is_none()).count();
        let left = usize::from(segment.shape.m).checked_sub(missing);
        let survives = left.is_some_and(|left| left >= usize::from(superblock.most_lost));
        match segment.shape.kind == METADATA && survives {
            true => Kind::ColumnToSpare,
            false => Kind::ColumnMissing,
        }
    }

    fn check_columns(
        &self,
        segment: &Segment,
        taken: &mut BTreeMap<(u16, u32), u64>,
        report: &mut Report,
    ) {
        let number = segment.number;
        if self.root.clean && number >= self.root.next_segment {
            report.find(Kind::SegmentNumber).segment(number);
        }
        let missing = self.kind_of_missing(segment);
        let mut devices = Vec::new();
        for (index, column) in (0u16..).zip(&segment.columns) {
            let Some(column) = column else {
                report.find(missing).segment(number).at(At::Column(index));
                continue;
            };
            let position = self.device(column.device).map_or(0, |d| d.position);
            let mut find = |kind| {
                report
                    .find(kind)
                    .device(position)
                    .segment(number)
                    .at(At::Slot(column.slot));
            };
            if taken.insert((column.device, column.slot), number).is_some() {
                find(Kind::SlotTwice);
            }
            if devices.contains(&column.device) {
                find(Kind::DeviceTwice);
            }
            devices.push(column.device);
            let expected = SlotEntry {
                segment: number,
                version: column.version,
                column: index,
                shape: segment.shape,
            };
            if segment.written() == 0 && !self.root.clean {
                continue; // just begun: power went before its headers were durable
            }
            let bytes = self.read(Some(*column), 0, 1);
            match bytes.and_then(|bytes| header(&self.id, self.slot_blocks, &bytes)) {
                None => find(Kind::Header),
                Some(found) if found != expected => find(Kind::HeaderDiffers),
                Some(_) => {}
            }
        }
    }
}

impl Segment {
    /// Whether liveness names it, or the journal opened it and has a stripe of it.
    fn exists(&self) -> bool {
        self.record.is_some() || self.opened && self.recorded > 0
    }

    fn take_stripe(&mut self, stripe: &Stripe) {
        let shape = self.shape;
        let sealed = self.record.as_ref().is_some_and(|r| r.sealed);
        if stripe.stripe >= shape.stripes() || sealed {
            return;
        }
        self.recorded = self.recorded.max(stripe.stripe + 1);
        let (k, used) = (usize::from(shape.k), usize::from(stripe.used));
        let strip = shape.strip as usize;
        let whole = stripe.rows.len() == (used + usize::from(shape.m)) * strip;
        if used > k || used > 0 && !whole {
            return;
        }
        let mut runs = stripe.rows.chunks(strip).map(<[Row]>::to_vec);
        let mut columns: Vec<Vec<Row>> = runs.by_ref().take(used).collect();
        columns.resize(k, Vec::new());
        columns.extend(runs);
        columns.resize(shape.width(), Vec::new());
        self.rows.insert(stripe.stripe, columns);
    }
}

/// The newest root of all members; devices of the root set that do not have it are findings.
fn newest_root(members: &Members<'_>, report: &mut Report) -> Option<Root> {
    let array = &members.superblock.array;
    let roots = |device: &Device<'_>| roots_of(device.source, &device.geometry, array);
    let here = members.here.iter();
    let of_members: Vec<(u16, Vec<Root>)> = here.map(|(i, d)| (*i, roots(d))).collect();
    let all = of_members.iter().flat_map(|(_, roots)| roots);
    let Some(newest) = all.max_by_key(|root| root.order()).cloned() else {
        report.find(Kind::NoRoot);
        return None;
    };
    if newest.epochs.is_empty() {
        report.find(Kind::NoRoot);
        return None;
    }
    for (index, roots) in &of_members {
        if members.superblock.root_set.contains(index) && !roots.contains(&newest) {
            let position = members.here.get(index).map_or(0, |device| device.position);
            report.find(Kind::RootCopy).device(position);
        }
    }
    // A generation takes a device out, or in: the root that follows says the same.
    let same = newest.generation == members.superblock.generation;
    let open = newest.epochs.last().filter(|_| same);
    let left_out = |index: &u16| open.is_some_and(|epoch| epoch.absent.contains(index));
    for index in members.superblock.journalling().filter(left_out) {
        let position = members.here.get(&index).map_or(0, |device| device.position);
        report.find(Kind::EpochDiffers).device(position);
    }
    Some(newest)
}
