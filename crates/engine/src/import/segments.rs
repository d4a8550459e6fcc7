//! Steps 1 to 3 of an import as far as segments go: what slot tables claim, what liveness keeps of it, and
//! what the journal adds.
//!
//! Invariants: a claim counts only if liveness or the journal names its segment (R7), and as
//! [`columns`](super::columns) says; what the journal opened counts only with a stripe (#182).

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ashlar_format::journal::{Entry, Ring, decode_entries};
use ashlar_format::liveness::{self, RecordShape};
use ashlar_format::root::Root;
use ashlar_format::slot::{ENTRIES_PER_PAGE, SlotEntry, SlotHeader, TablePage};
use ashlar_format::{BLOCK, FormatError, SegmentGeometry};

use crate::import::columns::{drop_void, fill, newer};
use crate::journal::recover::{Record, Recovered};
use crate::map::system::SysTree;
use crate::members::slots::choose_copy;
use crate::segment::plan::Unit;
use crate::segment::read::read_unit;
use crate::segment::table::Core;
use crate::segment::{Column, NO_SLOT, Segment};

/// A journal entry with its record's sequence.
type Sequenced = (u64, Entry);

/// What a record of the journal says.
#[derive(Debug)]
pub(super) struct Replayed {
    sequence: u64,
    ring: Ring,
    entries: Vec<Entry>,
}

/// Decodes the records that the root still needs: but for those of data whose stripes were recorded, and merged.
pub(super) fn decode_records(
    recovered: &Recovered,
    root: &Root,
) -> Result<Vec<Replayed>, FormatError> {
    let needed = |r: &&Record| r.header.ring == Ring::Delta || r.header.sequence >= root.cut;
    let decode = |record: &Record| {
        Ok(Replayed {
            sequence: record.header.sequence,
            ring: record.header.ring,
            entries: decode_entries(&record.payload)?,
        })
    };
    recovered
        .records
        .iter()
        .filter(needed)
        .map(decode)
        .collect()
}

/// Claims of columns, by segment.
pub(super) type Claims = BTreeMap<u64, BTreeMap<u16, (Column, SlotEntry)>>;

/// A copy of a slot table page: device, page, copy.
pub(super) type PageCopy = (u16, u32, u8);

/// What all slot tables say.
#[derive(Default)]
pub(super) struct Tables {
    /// Which columns lie where.
    pub claims: Claims,
    /// Copies of pages to rewrite: those that a later checkpoint wrote, and those that cannot be read, even a second
    /// time.
    pub replace: Vec<PageCopy>,
    /// The highest number of a checkpoint on any page.
    pub highest: u64,
}

/// The same of one device.
#[derive(Default)]
struct DeviceTable {
    entries: Vec<(u32, SlotEntry)>,
    replace: Vec<(u32, u8)>,
    highest: u64,
}

/// Reads all slot tables: of each page the newest that no checkpoint after `checkpoint` wrote.
pub(super) async fn read_tables(core: &Rc<Core>, checkpoint: u64) -> Tables {
    let mut tables = Tables::default();
    let mut joins = Vec::new();
    for index in core.readable() {
        let core2 = core.clone();
        joins.push((
            index,
            core.rt
                .spawn(async move { read_table(&core2, index, checkpoint).await }),
        ));
    }
    for (index, join) in joins {
        let table = join.await;
        let replace = table.replace.into_iter();
        tables
            .replace
            .extend(replace.map(|(page, copy)| (index, page, copy)));
        tables.highest = tables.highest.max(table.highest);
        for (slot, entry) in table.entries {
            // The next root's page says what becomes of the claim: it is not to stay if it comes to nothing.
            let page = slot / ENTRIES_PER_PAGE;
            core.member(index).slots.page_changed(page);
            let column = Column {
                device: index,
                slot,
                version: entry.version,
            };
            claim(&mut tables.claims, column, entry);
        }
    }
    tables
}

fn claim(claims: &mut Claims, column: Column, entry: SlotEntry) {
    let columns = claims.entry(entry.segment).or_default();
    let held = columns.entry(entry.column).or_insert((column, entry));
    if newer(held.0, column) != held.0 {
        *held = (column, entry);
    }
}

async fn read_table(core: &Rc<Core>, index: u16, checkpoint: u64) -> DeviceTable {
    let member = core.member(index);
    let geometry = member.geometry();
    let mut table = DeviceTable::default();
    let (further, mut whole) = (geometry.further_pages(), Vec::new());
    for copy in 0..2 {
        let mut pages = Vec::new();
        for run in [0..further.start, further.clone()] {
            let length = run.len() * BLOCK;
            if length == 0 {
                continue;
            }
            let offset = geometry.page_offset(run.start, copy);
            let bytes = member.read(offset, length).await.ok();
            let page = |at: usize| bytes.as_ref().map(|b| b[at..at + BLOCK].to_vec());
            pages.extend((0..length).step_by(BLOCK).map(page));
        }
        whole.push(pages);
    }
    for page in 0..geometry.table_pages() {
        let decode = |bytes: &[u8]| {
            TablePage::decode(&core.identity.array, index, page, core.slot_blocks, bytes)
        };
        let mut copies = [None, None];
        for (found, copy) in copies.iter_mut().zip(0u32..) {
            let bytes = whole[copy as usize][page as usize].as_ref();
            *found = bytes.and_then(|bytes| decode(bytes).ok());
            if found.is_none() {
                let again = member.read(geometry.page_offset(page, copy), BLOCK).await;
                *found = again.ok().and_then(|bytes| decode(&bytes).ok());
            }
        }
        let written_by = copies
            .each_ref()
            .map(|found| found.as_ref().map(|p| p.checkpoint));
        table.highest = written_by
            .into_iter()
            .flatten()
            .fold(table.highest, u64::max);
        let (newest, rewrite) = choose_copy(written_by, checkpoint);
        table
            .replace
            .extend(rewrite.into_iter().map(|copy| (page, copy)));
        if let Some(copy) = newest
            && let Some(found) = copies[usize::from(copy)].take()
        {
            member.slots.set_page_copy(page, copy);
            let slots = (page * ENTRIES_PER_PAGE..geometry.slots).zip(found.entries);
            table
                .entries
                .extend(slots.filter_map(|(slot, entry)| Some((slot, entry?))));
        }
    }
    table
}

/// Makes the segments of the table, without their liveness yet.
pub(super) fn make_segments(core: &Core, claims: &Claims) {
    for (number, columns) in claims {
        let Some((_, (_, entry))) = columns.first_key_value() else {
            continue;
        };
        let geometry = entry.geometry(core.slot_blocks);
        let mut places = vec![Column::MISSING; geometry.width()];
        for (index, (column, _)) in columns {
            if let Some(place) = places.get_mut(usize::from(*index)) {
                *place = *column;
            }
        }
        let segment = Segment::create(*number, entry.kind, geometry, entry.code, places, u32::MAX);
        core.add_segment(&segment);
    }
}

/// Loads one of the home's trees.
pub(super) async fn load_tree(
    core: &Rc<Core>,
    number: u32,
    root: &ashlar_format::root::TreeRoot,
) -> Result<(SysTree, BTreeMap<u64, Vec<u8>>), ()> {
    SysTree::load(root, async |id, entry| {
        let segment = core.segment(entry.place.segment).ok_or(())?;
        if entry.place.block >= segment.geometry.data_blocks() {
            return Err(());
        }
        let check =
            |bytes: &[u8]| core.identity.node_digest(number, 0, id.0, id.1, bytes) == entry.digest;
        let bytes = read_unit(core, &segment, Unit::one(entry.place.block), None, &check)
            .await
            .map_err(|_| ())?;
        Ok(bytes.to_vec())
    })
    .await
}

/// Gives every segment that liveness names its record, and makes those that no table names, since every device is away
/// that holds a column: what they hold counts again once enough of these are back.
///
/// # Errors
/// A record makes no sense, or is of an earlier program and does not say what such a segment is.
pub(super) fn take_liveness(
    core: &Core,
    payloads: &BTreeMap<u64, Vec<u8>>,
    shape: RecordShape,
) -> Result<BTreeSet<u64>, FormatError> {
    let mut named = BTreeSet::new();
    for (record, bytes) in shape.split(payloads) {
        let Some(header) = liveness::decode_header(&bytes)? else {
            continue;
        };
        let segment = match core.segment(header.segment) {
            Some(segment) => segment,
            None => {
                let form = header.form.ok_or(FormatError::Value)?;
                let geometry = form.geometry(core.slot_blocks);
                if !geometry.is_sound() {
                    return Err(FormatError::Value);
                }
                let (number, columns) = (header.segment, vec![Column::MISSING; geometry.width()]);
                let segment =
                    Segment::create(number, form.kind, geometry, form.code, columns, u32::MAX);
                core.add_segment(&segment);
                segment
            }
        };
        segment.record.set(record);
        segment.recorded.set(
            header
                .recorded
                .min(segment.geometry.stripes())
                .max(segment.recorded.get()),
        );
        let live = liveness::decode_bitmap(segment.geometry, &bytes);
        // What lives was written, whatever the record's count says.
        let written = live
            .last()
            .map_or(0, |block| segment.geometry.locate(block).0 + 1);
        segment.recorded.set(segment.recorded.get().max(written));
        segment.next_stripe.set(segment.recorded.get());
        segment.sealed.set(header.sealed);
        segment.sealed_in.set(header.sealed_in);
        if header.sealed {
            crate::segment::stripe::finish_course(&segment, u32::MAX);
        }
        *segment.live.borrow_mut() = live;
        named.insert(header.segment);
    }
    Ok(named)
}

/// Makes the segments that no table names, since every device is gone that held a column when the tables were
/// written: the journal says where columns have been rebuilt since, and the headers there what they are of
/// (#156).
///
/// A header that counts is of the very column and version that the entry names; that it was written before the
/// entry is the crash argument of `reconstruct_columns`. A segment that was freed since is not named by liveness.
pub(super) async fn find_rebuilt(core: &Rc<Core>, records: &[Replayed]) {
    let mut claims = Claims::new();
    for record in records.iter().filter(|r| r.ring == Ring::Delta) {
        for entry in &record.entries {
            let Entry::Column {
                segment,
                column,
                version,
                device,
                slot,
            } = *entry
            else {
                continue;
            };
            let place = Column {
                version,
                ..opened_column(core, device, slot)
            };
            if core.segment(segment).is_some() || !place.is_placed() {
                continue;
            }
            let member = core.member(device);
            let read = member
                .read(member.geometry().slot_offset(slot), BLOCK)
                .await;
            let header = read
                .map(|bytes| SlotHeader::decode(&core.identity.array, core.slot_blocks, &bytes));
            if let Ok(Ok(SlotHeader { entry, .. })) = header
                && (entry.segment, entry.column, entry.version) == (segment, column, version)
            {
                claim(&mut claims, place, entry);
            }
        }
    }
    make_segments(core, &claims);
}

/// Gives segments of the table the rows of their unfinished courses, and the columns that were moved since their
/// table pages were written, so that what the root names can be verified and decoded before anything else is
/// known.
pub(super) fn take_rows(core: &Core, records: &[Replayed]) {
    for record in records.iter().filter(|r| r.ring == Ring::Delta) {
        for entry in &record.entries {
            match entry {
                Entry::Stripe(stripe) => {
                    if let Some(segment) = core.segment(stripe.segment) {
                        replay_stripe(&segment, stripe, record.sequence);
                    }
                }
                Entry::Column { .. } => move_column(core, entry),
                _ => {}
            }
        }
    }
}

/// Replays what concerns segments; returns what concerns blocks, in order, with sequences, and which
/// segments the journal opened.
pub(super) fn replay_segments(
    core: &Core,
    records: Vec<Replayed>,
    root: &Root,
    named: &BTreeSet<u64>,
) -> Result<(Vec<Sequenced>, BTreeSet<u64>), FormatError> {
    let mut rest = Vec::new();
    let mut opened = BTreeSet::new();
    for Replayed {
        sequence, entries, ..
    } in records
    {
        for entry in entries {
            match &entry {
                Entry::Open {
                    segment,
                    kind,
                    code,
                    k,
                    m,
                    strip_blocks,
                    columns,
                } => {
                    if sequence < root.imaged && !named.contains(segment) {
                        continue; // freed since, its slots may hold another
                    }
                    opened.insert(*segment);
                    let columns = columns.iter();
                    let places = columns.map(|(device, slot)| opened_column(core, *device, *slot));
                    if let Some(found) = core.segment(*segment) {
                        fill(&mut found.columns.borrow_mut(), places);
                    } else {
                        let geometry = SegmentGeometry {
                            k: *k,
                            m: *m,
                            strip_blocks: *strip_blocks,
                            slot_blocks: core.slot_blocks,
                        };
                        if !geometry.is_sound() {
                            return Err(FormatError::Value);
                        }
                        let places = places.collect();
                        let made =
                            Segment::create(*segment, *kind, geometry, *code, places, u32::MAX);
                        core.add_segment(&made);
                    }
                }
                Entry::Stripe(stripe) => {
                    if let Some(segment) = core.segment(stripe.segment) {
                        replay_stripe(&segment, stripe, sequence);
                    }
                    rest.push((sequence, entry));
                }
                Entry::Column { .. } => move_column(core, &entry),
                Entry::Data(_) | Entry::Unmap { .. } => rest.push((sequence, entry)),
            }
        }
    }
    Ok((rest, opened))
}

/// A column is where a Column entry says, if that is of a newer version.
fn move_column(core: &Core, entry: &Entry) {
    let Entry::Column {
        segment,
        column,
        version,
        device,
        slot,
    } = entry
    else {
        return;
    };
    if let Some(found) = core.segment(*segment)
        && let Some(place) = found.columns.borrow_mut().get_mut(usize::from(*column))
    {
        let moved = Column {
            version: *version,
            ..opened_column(core, *device, *slot)
        };
        *place = newer(*place, moved);
    }
}

fn opened_column(core: &Core, device: u16, slot: u32) -> Column {
    let known = core
        .members
        .get(usize::from(device))
        .is_some_and(|m| slot < m.geometry().slots);
    if known && slot != NO_SLOT {
        Column {
            device,
            slot,
            version: 1,
        }
    } else {
        Column::MISSING
    }
}

fn replay_stripe(segment: &Segment, stripe: &ashlar_format::journal::StripeEntry, sequence: u64) {
    let geometry = segment.geometry;
    if stripe.stripe >= geometry.stripes() || segment.sealed.get() {
        return;
    }
    segment
        .recorded
        .set(segment.recorded.get().max(stripe.stripe + 1));
    segment.next_stripe.set(segment.recorded.get());
    let (k, used) = (usize::from(geometry.k), usize::from(stripe.used_strips));
    let strip = geometry.strip_blocks as usize;
    if used < k {
        segment
            .short
            .borrow_mut()
            .insert(stripe.stripe, stripe.used_strips);
    }
    if used > 0 && stripe.rows.len() == (used + usize::from(geometry.m)) * strip {
        let mut runs = stripe.rows.chunks(strip).map(<[_]>::to_vec);
        let mut columns: Vec<Vec<_>> = runs.by_ref().take(used).collect();
        columns.resize(k, Vec::new());
        columns.extend(runs);
        segment.rows.borrow_mut().insert(stripe.stripe, columns);
    }
    let course = geometry.course_of(stripe.stripe);
    let end = course * geometry.course_strips() + geometry.strips_in(course);
    if stripe.stripe + 1 == end {
        crate::segment::stripe::finish_course(segment, end);
    } else if segment.rows_since.get().is_none() {
        segment.rows_since.set(Some(sequence));
    }
}

/// Drops segments that neither the root nor the journal names, and claims the slots of the others.
///
/// **Crash argument.** A segment that the journal opened and has no stripe of holds nothing: what a stripe holds is
/// found by its record, or by the root, whose liveness then names the segment. Its slots are free at once (#182). The
/// Open entry stays in the journal until a checkpoint images it: every import before that reads the same records of it,
/// and drops it again, whatever its slots were given to since; none may give its number to another segment
/// (`next_segment`).
pub(super) fn settle_segments(core: &Core, named: &BTreeSet<u64>, opened: &BTreeSet<u64>) {
    core.segments.borrow_mut().retain(|number, segment| {
        named.contains(number) || opened.contains(number) && segment.recorded.get() > 0
    });
    let mut taken = BTreeSet::new();
    for segment in core.segments.borrow().values().rev() {
        drop_void(&mut segment.columns.borrow_mut(), &mut taken);
        let columns = segment.columns.borrow();
        for (column, index) in columns.iter().zip(0u16..).filter(|(c, _)| c.is_placed()) {
            let entry = segment.slot_entry(index, column.version);
            core.member(column.device).slots.claim(column.slot, entry);
        }
    }
}
