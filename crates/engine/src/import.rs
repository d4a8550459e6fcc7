//! Importing: from the members that `assemble` found to a running array, by replay and recovery.
//!
//! Order of an import, and why (S3, S4, S7, S10):
//! 1. The newest generation any device knows decides who is a member; too few of them is refused.
//! 2. The newest valid root is used, or the import is refused: old roots are never a way back.
//! 3. Slot tables (each page the newest not later than the root) locate segments; liveness tells which
//!    exist; the catalog names the volumes; the journal is read to its first gap.
//! 4. Table pages newer than the root, left by a commit that never ended, are written over; the last
//!    record, which may have been torn, is written again on all its devices, since from now on it counts
//!    as acknowledged and must have its full redundancy. Then a root
//!    that closes the old epoch is made durable. From now on what was recovered is final.
//! 5. Only now anything is allocated: data records are placed anew, open segments are sealed, and a
//!    batch makes it durable under the new epoch. No batch and no commit runs before the shards have
//!    all that the journal had.
//!
//! A crash in 4 or 5 leaves the old epoch's records in place, so the next import finds the same.
//!
//! A read-only import does the same, and its members keep in memory what 4 and 5 write: no device changes.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ashlar_codec::{Code, CodeKind};
use ashlar_device::DeviceRef;
use ashlar_digest::Kind;
use ashlar_format::catalog::Catalog;
use ashlar_format::geometry::{ROOT_BYTES, ROOT_COUNT};
use ashlar_format::journal::{Entry, Ring, decode_entries};
use ashlar_format::root::{MAX_EPOCH_BYTES, Root};
use ashlar_format::slot::{ENTRIES_PER_PAGE, SlotEntry, TablePage};
use ashlar_format::superblock::Superblock;
use ashlar_format::{BLOCK, FormatError, SegmentGeometry};
use ashlar_layout::{Layout, Shape};
use ashlar_rt::{Buf, Rt, Sender, mailbox};

use crate::array::{Import, Settings};
use crate::assemble::{Spread, assemble, make_members};
use crate::core::Core;
use crate::error::Error;
use crate::home::{CATALOG_TREE, Home, HomeParts, LIVENESS_TREE, metadata_survives};
use crate::journal::{self, Journal, Recovered};
use crate::liveness::{self, RecordShape};
use crate::member::Member;
use crate::messages::{Adopted, ShardMessage, VolumeShape, ask};
use crate::partition::Partitioning;
use crate::planted::{self, Bug};
use crate::read::read_unit;
use crate::record_sets::too_few;
use crate::segment::{Column, NO_SLOT, Segment};
use crate::shard::{Bounds, Shard};
use crate::systree::SysTree;

/// The newest valid root on any member. Members hold the same roots, so bytes seen before are not
/// decoded again.
async fn newest_root(core: &Rc<Core>) -> Option<Root> {
    let mut joins = Vec::new();
    for index in core.online() {
        for entry in 0..ROOT_COUNT {
            let core2 = core.clone();
            joins.push(core.rt.spawn(async move {
                let member = core2.member(index);
                let at = member.geometry.root_offset(entry);
                member.read(at, ROOT_BYTES as usize).await.ok()
            }));
        }
    }
    let mut seen: Vec<Buf> = Vec::new();
    let mut newest: Option<Root> = None;
    for join in joins {
        let Some(bytes) = join.await else { continue };
        if seen.iter().any(|other| other[..] == bytes[..]) {
            continue;
        }
        let Ok(root) = Root::decode(&core.array, &bytes) else {
            continue;
        };
        seen.push(bytes);
        if newest
            .as_ref()
            .is_none_or(|n| planted::on(Bug::AnyRoot) || root.order() > n.order())
        {
            newest = Some(root);
        }
    }
    newest
}

/// A journal entry with its record's sequence.
type Sequenced = (u64, Entry);

/// Claims of columns, by segment.
type Claims = BTreeMap<u64, BTreeMap<u16, (Column, SlotEntry)>>;

/// Reads all slot tables: of each page the newest not later than `root`. Also the pages whose other
/// copy is later than the root.
async fn read_tables(core: &Rc<Core>, root: u64) -> (Claims, Vec<(u16, u32)>) {
    let mut claims = Claims::new();
    let mut later = Vec::new();
    let mut joins = Vec::new();
    for index in core.online() {
        let core2 = core.clone();
        joins.push((
            index,
            core.rt
                .spawn(async move { read_table(&core2, index, root).await }),
        ));
    }
    for (index, join) in joins {
        let (entries, pages) = join.await;
        later.extend(pages.into_iter().map(|page| (index, page)));
        for (slot, entry) in entries {
            // The next root's page says what becomes of the claim: it is not to stay if it comes to nothing.
            let page = slot / ENTRIES_PER_PAGE;
            core.member(index).dirty_pages.borrow_mut().insert(page);
            let column = Column {
                device: index,
                slot,
                version: entry.version,
            };
            claim(&mut claims, column, entry);
        }
    }
    (claims, later)
}

fn claim(claims: &mut Claims, column: Column, entry: SlotEntry) {
    let columns = claims.entry(entry.segment).or_default();
    if columns
        .get(&entry.column)
        .is_none_or(|(held, _)| held.version < entry.version)
    {
        columns.insert(entry.column, (column, entry));
    }
}

async fn read_table(core: &Rc<Core>, index: u16, root: u64) -> (Vec<(u32, SlotEntry)>, Vec<u32>) {
    let member = core.member(index);
    let geometry = member.geometry;
    let (mut entries, mut later) = (Vec::new(), Vec::new());
    let length = geometry.table_pages() as usize * 2 * BLOCK;
    let whole = member.read(geometry.page_offset(0, 0), length).await;
    for page in 0..geometry.table_pages() {
        let mut best: Option<(u8, TablePage)> = None;
        for copy in 0..2u8 {
            let at = (page as usize * 2 + usize::from(copy)) * BLOCK;
            let single;
            let bytes = match &whole {
                Ok(bytes) => &bytes[at..at + BLOCK],
                Err(_) => match member
                    .read(geometry.page_offset(page, u32::from(copy)), BLOCK)
                    .await
                {
                    Ok(bytes) => {
                        single = bytes;
                        &single[..]
                    }
                    Err(_) => continue,
                },
            };
            let Ok(found) = TablePage::decode(&core.array, index, page, core.slot_blocks, bytes)
            else {
                continue;
            };
            if found.root > root {
                later.push(page);
            } else if best.as_ref().is_none_or(|(_, b)| found.root > b.root) {
                best = Some((copy, found));
            }
        }
        if let Some((copy, found)) = best {
            member.page_copy.borrow_mut()[page as usize] = copy;
            let slots = (page * ENTRIES_PER_PAGE..geometry.slots).zip(found.entries);
            entries.extend(slots.filter_map(|(slot, entry)| Some((slot, entry?))));
        }
    }
    (entries, later)
}

/// Makes the segments of the table, without their liveness yet.
fn make_segments(core: &Core, claims: &Claims) {
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
        let segment = Segment::new(*number, entry.kind, geometry, entry.code, places, u32::MAX);
        core.segments.borrow_mut().insert(*number, segment);
    }
}

/// Loads one of the home's trees.
async fn load_tree(
    core: &Rc<Core>,
    number: u32,
    root: &ashlar_format::root::TreeRoot,
) -> Result<(SysTree, BTreeMap<u64, Vec<u8>>), ()> {
    SysTree::load(number, root, async |id, entry| {
        let segment = core.segment(entry.place.segment).ok_or(())?;
        if entry.place.block >= segment.geometry.data_blocks() {
            return Err(());
        }
        let check = |bytes: &[u8]| core.node_digest(number, 0, id.0, id.1, bytes) == entry.digest;
        let bytes = read_unit(core, &segment, entry.place.block, 1, &check)
            .await
            .map_err(|_| ())?;
        Ok(bytes.to_vec())
    })
    .await
}

/// Gives every segment that liveness names its record; whether each payload makes sense.
fn take_liveness(
    core: &Core,
    payloads: &BTreeMap<u64, Vec<u8>>,
    shape: RecordShape,
) -> Result<BTreeSet<u64>, FormatError> {
    let mut named = BTreeSet::new();
    for (record, bytes) in shape.split(payloads) {
        let header = liveness::decode_header(&bytes)?;
        let Some(segment) = core.segment(header.segment) else {
            continue;
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
            .iter()
            .last()
            .map_or(0, |block| segment.geometry.locate(block).0 + 1);
        segment.recorded.set(segment.recorded.get().max(written));
        segment.next_stripe.set(segment.recorded.get());
        segment.sealed.set(header.sealed);
        if header.sealed {
            crate::stripe::finish_course(&segment, u32::MAX);
        }
        *segment.live.borrow_mut() = live;
        named.insert(header.segment);
    }
    Ok(named)
}

/// Gives segments of the table the rows of their unfinished courses, so that what the root names can be
/// verified and decoded before anything else is known.
fn take_rows(core: &Core, recovered: &Recovered) -> Result<(), FormatError> {
    for record in recovered
        .records
        .iter()
        .filter(|r| r.header.ring == Ring::Delta)
    {
        for entry in decode_entries(&record.payload)? {
            if let Entry::Stripe(stripe) = entry
                && let Some(segment) = core.segment(stripe.segment)
            {
                replay_stripe(&segment, &stripe, record.header.sequence);
            }
        }
    }
    Ok(())
}

/// Replays what concerns segments; returns what concerns blocks, in order, with sequences, and which
/// segments the journal opened.
fn replay_segments(
    core: &Core,
    recovered: &Recovered,
    root: &Root,
    named: &BTreeSet<u64>,
) -> Result<(Vec<Sequenced>, BTreeSet<u64>), FormatError> {
    let mut rest = Vec::new();
    let mut opened = BTreeSet::new();
    for record in &recovered.records {
        let sequence = record.header.sequence;
        if sequence < root.cut && record.header.ring == Ring::Data {
            continue; // its stripe was recorded, and folded
        }
        for entry in decode_entries(&record.payload)? {
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
                    let places: Vec<Column> = columns
                        .iter()
                        .map(|(device, slot)| opened_column(core, *device, *slot))
                        .collect();
                    if let Some(found) = core.segment(*segment) {
                        // The tables may know only some of its columns: pages of different age.
                        for (held, opened) in found.columns.borrow_mut().iter_mut().zip(places) {
                            if !held.is_placed() {
                                *held = opened;
                            }
                        }
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
                        let made = Segment::new(*segment, *kind, geometry, *code, places, u32::MAX);
                        core.segments.borrow_mut().insert(*segment, made);
                    }
                }
                Entry::Stripe(stripe) => {
                    if let Some(segment) = core.segment(stripe.segment) {
                        replay_stripe(&segment, stripe, sequence);
                    }
                    rest.push((sequence, entry));
                }
                Entry::Column {
                    segment,
                    column,
                    version,
                    device,
                    slot,
                } => {
                    if let Some(found) = core.segment(*segment)
                        && let Some(place) =
                            found.columns.borrow_mut().get_mut(usize::from(*column))
                        && place.version < *version
                    {
                        *place = Column {
                            version: *version,
                            ..opened_column(core, *device, *slot)
                        };
                    }
                }
                Entry::Seal { segment } => {
                    if let Some(found) = core.segment(*segment) {
                        found.sealed.set(true);
                    }
                }
                Entry::Data(_) | Entry::Hole { .. } => rest.push((sequence, entry)),
            }
        }
    }
    Ok((rest, opened))
}

fn opened_column(core: &Core, device: u16, slot: u32) -> Column {
    let known = core
        .members
        .get(usize::from(device))
        .is_some_and(|m| slot < m.geometry.slots);
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
        crate::stripe::finish_course(segment, end);
    } else if segment.rows_since.get().is_none() {
        segment.rows_since.set(Some(sequence));
    }
}

/// Drops segments that neither the root nor the journal names, and claims the slots of the others.
fn settle_segments(core: &Core, named: &BTreeSet<u64>, opened: &BTreeSet<u64>) {
    core.segments
        .borrow_mut()
        .retain(|number, _| named.contains(number) || opened.contains(number));
    // Two segments can name one slot only if a root newer than this one was lost beyond its
    // redundancy: the newer segment was given what that root had freed, and has overwritten it.
    let mut taken = BTreeSet::new();
    for segment in core.segments.borrow().values().rev() {
        for (column, index) in segment.columns.borrow_mut().iter_mut().zip(0u16..) {
            if !column.is_placed() {
                continue;
            }
            if !taken.insert((column.device, column.slot)) {
                *column = Column::MISSING;
                continue;
            }
            let entry = SlotEntry {
                segment: segment.number,
                column: index,
                version: column.version,
                k: segment.geometry.k,
                m: segment.geometry.m,
                code: segment.code,
                kind: segment.kind,
                strip_blocks: segment.geometry.strip_blocks,
            };
            core.member(column.device).claim_slot(column.slot, entry);
        }
    }
}

/// Whether this program has the code of every segment.
fn check_codes(core: &Core) -> Result<(), FormatError> {
    for segment in core.segments.borrow().values() {
        let (k, m) = (
            usize::from(segment.geometry.k),
            usize::from(segment.geometry.m),
        );
        let known = CodeKind::from_tag(segment.code).and_then(|kind| Code::new(kind, k, m).ok());
        known.ok_or(FormatError::Unsupported(u32::from(segment.code)))?;
    }
    Ok(())
}

/// Whether this program has the array's code and the digests of its volumes.
fn check_tags(superblock: &Superblock, catalog: &Catalog) -> Result<(), FormatError> {
    let known = CodeKind::from_tag(superblock.code).is_some();
    let code = (!known).then_some(superblock.code);
    let digests = catalog.volumes.iter().map(|v| v.digest);
    let unknown = code.or_else(|| digests.into_iter().find(|d| Kind::from_tag(*d).is_none()));
    unknown.map_or(Ok(()), |tag| Err(FormatError::Unsupported(u32::from(tag))))
}

/// The bounds of a shard: what it may hold so that one commit fits the last reserve (S15).
fn bounds(core: &Core, shape: &Shape, strip_blocks: u32, settings: &Settings) -> Bounds {
    let meta = SegmentGeometry {
        k: 8,
        m: 1,
        strip_blocks: 1,
        slot_blocks: core.slot_blocks,
    };
    let fits = meta.data_blocks() as usize * (crate::alloc::commit_slots(core.slot_blocks) - 2) / 2;
    let stripe_blocks = usize::from(shape.k) * strip_blocks as usize;
    let memory =
        usize::try_from(settings.memory_bytes).unwrap_or(usize::MAX) / settings.shards.max(1);
    let stripes = (memory / 4 / (stripe_blocks * BLOCK)).clamp(2, 32);
    let deltas = (memory / 4 / 200).max(4 * stripe_blocks).max(256);
    Bounds {
        stripes,
        deltas: deltas.min((fits * 64).max(4 * stripe_blocks)),
    }
}

/// Starts the shards of an array.
pub fn start_shards(
    core: &Rc<Core>,
    shape: &Shape,
    superblock: &Superblock,
    settings: &Settings,
    birth: &Rc<Cell<u64>>,
) -> (
    Vec<Sender<ShardMessage>>,
    Sender<crate::messages::HomeMessage>,
    ashlar_rt::Mailbox<crate::messages::HomeMessage>,
) {
    let (to_home, at_home) = mailbox();
    let shards = settings.shards.clamp(1, usize::from(superblock.partitions));
    let bounds = bounds(core, shape, superblock.strip_blocks, settings);
    let cache = settings.memory_bytes / 2 / shards as u64;
    let mut senders = Vec::new();
    for index in 0..shards {
        let (sender, receiver) = mailbox();
        Shard::start(
            core,
            to_home.clone(),
            receiver,
            index,
            shards,
            superblock.partitions,
            birth.clone(),
            cache,
            bounds,
        );
        senders.push(sender);
    }
    (senders, to_home, at_home)
}

/// A stand-in, outside the table, for a segment that was freed since the stripe was recorded.
fn gone_segment(stripe: &ashlar_format::journal::StripeEntry) -> Option<Rc<Segment>> {
    let geometry = SegmentGeometry {
        k: 1,
        m: 0,
        strip_blocks: 1,
        slot_blocks: 8,
    };
    let kind = ashlar_format::slot::SegmentKind::Data;
    (!stripe.rows.is_empty()).then(|| {
        Segment::new(
            stripe.segment,
            kind,
            geometry,
            0,
            vec![Column::MISSING],
            u32::MAX,
        )
    })
}

/// Tells every shard of a volume.
pub async fn add_volume(
    shards: &[Sender<ShardMessage>],
    volume: &ashlar_format::catalog::VolumeEntry,
) {
    for shard in shards {
        ask(shard, |reply| {
            ShardMessage::AddVolume(volume_shape(volume), volume.maps.clone(), reply)
        })
        .await;
    }
}

/// A catalog entry as shards need it.
pub fn volume_shape(volume: &ashlar_format::catalog::VolumeEntry) -> VolumeShape {
    let unit = u64::from(volume.block_blocks) * BLOCK as u64;
    VolumeShape {
        tree: volume.number,
        blocks: volume.size_bytes.div_ceil(unit),
        pieces: u32::from(volume.block_blocks),
        algorithm: volume.digest,
        thin: volume.thin,
        leaving: volume.destroying,
    }
}

/// Imports the array on these devices.
pub async fn import(
    rt: &Rt,
    devices: Vec<DeviceRef>,
    options: &Import,
) -> Result<(Rc<Home>, Sender<crate::messages::HomeMessage>), Error> {
    let (newest, candidates, mut spread) = assemble(devices, options.degraded).await?;
    let layout: Layout = newest.layout.parse()?;
    let shape = layout.resolve_with_spare(
        u16::try_from(newest.members.len()).expect("parsed from 16 bits"),
        newest.spare,
    )?;
    let slot_blocks = crate::commit::slot_blocks(newest.geometry.slot_bytes);
    let (members, missing) = make_members(rt, &newest, candidates);
    spread.missing = missing;
    let core = Core::new(rt, newest.array, newest.key, slot_blocks, members);
    if options.read_only {
        // What is recovered is made durable in memory.
        core.members.iter().for_each(Member::keep_writes);
    }
    let online = |index: &u16| {
        let member = core.members.get(usize::from(*index));
        member.is_some_and(Member::is_online)
    };
    if !newest.root_set.iter().any(online) && !options.degraded {
        return Err(Error::NoRoot);
    }
    let root = newest_root(&core).await.ok_or(Error::NoRoot)?;
    let (claims, later) = read_tables(&core, root.number).await;
    make_segments(&core, &claims);
    let recovered = journal::recover(
        &core,
        &root.epochs,
        root.cut,
        [root.delta_tail, root.data_tail],
    )
    .await;
    let recovered = crate::chain::end_at_break(recovered, &root);
    let format = |source| Error::Format { device: 0, source };
    take_rows(&core, &recovered).map_err(format)?;
    check_codes(&core).map_err(format)?; // before anything is decoded
    let survives = metadata_survives(&shape);
    let beyond = |()| Error::Beyond {
        lost: spread.missing.len(),
        survives,
    };
    let (liveness, payloads) = load_tree(&core, LIVENESS_TREE, &root.liveness)
        .await
        .map_err(beyond)?;
    let records = RecordShape::new(slot_blocks, shape.k);
    let named = take_liveness(&core, &payloads, records).map_err(format)?;
    let (catalog_tree, parts) = load_tree(&core, CATALOG_TREE, &root.catalog)
        .await
        .map_err(beyond)?;
    let mut bytes: Vec<u8> = parts.into_values().flatten().collect();
    bytes.truncate(usize::try_from(root.catalog.bytes).unwrap_or(0));
    let catalog = Catalog::decode(&bytes).map_err(format)?;
    check_tags(&newest, &catalog).map_err(format)?;
    check_journal(&core, &shape, &root, &recovered, options.degraded)?;
    let (rest, opened) = replay_segments(&core, &recovered, &root, &named).map_err(format)?;
    settle_segments(&core, &named, &opened);
    check_codes(&core).map_err(format)?;
    let birth = Rc::new(Cell::new(root.number));
    let (shards, to_home, at_home) =
        start_shards(&core, &shape, &newest, &options.settings, &birth);
    for volume in &catalog.volumes {
        add_volume(&shards, volume).await;
    }
    let open = root.epochs.last().cloned().ok_or(Error::NoRoot)?;
    let journal = Journal::new(
        &core,
        open,
        recovered.next,
        recovered.position,
        recovered.tail,
        recovered.previous,
    );
    let mut root = root;
    root.next_segment = next_segment(&core, root.next_segment);
    if !root.clean {
        // If newer roots were lost, the journal may still name volumes made since: another volume of
        // such a number would be given what was written to them. Skip well past them.
        root.next_tree = root.next_tree.saturating_add(4096);
    }
    let home = Home::new(HomeParts {
        core,
        journal,
        shards,
        shape,
        superblock: newest,
        catalog,
        root,
        birth,
        liveness,
        catalog_tree,
    });
    for record in recovered
        .records
        .iter()
        .filter(|r| r.header.ring == Ring::Delta)
    {
        home.delta_positions
            .borrow_mut()
            .push_back((record.header.sequence, record.header.position[0]));
    }
    home.recover(
        &spread,
        &later,
        rest,
        at_home,
        recovered.records.last(),
        options.degraded,
    )
    .await?;
    Ok((home, to_home))
}

/// One past every segment number that was ever handed out, as far as anyone knows. Numbers given to
/// segments that left no trace may have written headers: skip well past them.
fn next_segment(core: &Core, root: u64) -> u64 {
    let seen = core
        .segments
        .borrow()
        .last_key_value()
        .map_or(0, |(number, _)| number + 1);
    if planted::on(Bug::SegmentNumberReused) {
        return root;
    }
    root.max(seen) + 4096
}

fn check_journal(
    core: &Core,
    shape: &Shape,
    root: &Root,
    recovered: &Recovered,
    degraded: bool,
) -> Result<(), Error> {
    if degraded {
        return Ok(());
    }
    if recovered.lost > 0 {
        return Err(Error::JournalLoss(recovered.lost));
    }
    for epoch in root.epochs.iter().filter(|_| !root.clean) {
        let gone = |d: u16| !core.member(d).is_online();
        if let Some((missing, counted)) = too_few(shape, epoch, gone) {
            return Err(Error::TooFew {
                seen: counted - missing,
                counted,
                generation: root.generation,
            });
        }
    }
    Ok(())
}

impl Home {
    /// Steps 4 and 5 of an import.
    async fn recover(
        self: &Rc<Self>,
        spread: &Spread,
        later: &[(u16, u32)],
        rest: Vec<(u64, Entry)>,
        mailbox: ashlar_rt::Mailbox<crate::messages::HomeMessage>,
        last: Option<&journal::Record>,
        degraded: bool,
    ) -> Result<(), Error> {
        self.give_records(&rest);
        self.rewrite_pages(later).await;
        if let Some(last) = last {
            self.journal.complete(last).await;
        }
        let mut root = self.root.borrow().clone();
        for index in &spread.missing {
            self.core.event(
                "device-missing",
                Some(*index),
                format!("device {index} is missing; the array goes on without it"),
            );
        }
        {
            let _log = self.log_lock.lock().await;
            self.settle_generation(spread, degraded).await?;
            root.generation = self.superblock.borrow().generation.number;
            root.number += 1;
            root.clean = false;
            let next = self.journal.next();
            self.close_epoch(&mut root, next);
            if planted::on(Bug::RecoveryNotCommitted) {
                *self.root.borrow_mut() = root;
            } else {
                self.publish(root).await;
            }
        }
        self.start(mailbox);
        let oldest = rest
            .iter()
            .filter(|(_, e)| matches!(e, Entry::Data(_)))
            .map(|(s, _)| *s)
            .min();
        self.recovering.set(oldest);
        let early = planted::on(Bug::BatchesBeforeAdoption);
        if early {
            self.start_batches();
        }
        self.adopt_all(rest).await;
        if !early {
            self.start_batches();
        }
        let open: Vec<Rc<Segment>> = self
            .core
            .segments
            .borrow()
            .values()
            .filter(|s| !s.sealed.get())
            .cloned()
            .collect();
        for segment in open {
            if segment.recorded.get() == segment.next_stripe.get()
                && segment.number < self.root.borrow().next_segment
            {
                self.seal(&segment).await;
            }
        }
        self.batch(true).await;
        self.recovering.set(None);
        // Each import adds an epoch, and only commits drop them: an array that crashes again and again before
        // its first one would have more than a root can name.
        if self.root.borrow().epoch_bytes() * 2 > MAX_EPOCH_BYTES {
            self.commit(self.journal.next()).await;
        }
        Ok(())
    }

    /// Has the generation that decides in effect, and then one without the members that are missing.
    async fn settle_generation(
        self: &Rc<Self>,
        spread: &Spread,
        degraded: bool,
    ) -> Result<(), Error> {
        let enough = |stored: usize, counted: usize| {
            if stored * 2 < counted && !degraded {
                return Err(Error::NoQuorum { stored, counted });
            }
            Ok(())
        };
        if spread.unsure || spread.behind {
            let before = usize::from(self.superblock.borrow().generation.before);
            let stored = self.store_superblocks().await;
            if spread.unsure {
                enough(stored, before)?;
            }
        }
        if !spread.missing.is_empty() {
            self.forced.set(degraded);
            let counted = self.core.online().len() + spread.missing.len();
            let stored = self.store_generation().await;
            enough(stored, counted)?;
        }
        Ok(())
    }

    /// Segments that only the journal names get liveness records; those of which the journal says more
    /// than their record are to be written anew.
    fn give_records(&self, rest: &[(u64, Entry)]) {
        let mut changed: BTreeSet<u64> = BTreeSet::new();
        for (_, entry) in rest {
            if let Entry::Stripe(stripe) = entry {
                changed.insert(stripe.segment);
            }
        }
        for segment in self.core.segments.borrow().values() {
            let unknown = segment.record.get() == u32::MAX;
            if unknown {
                segment.record.set(self.take_record(segment.number));
            }
            if unknown || changed.contains(&segment.number) {
                self.mark_header(segment);
            }
        }
    }

    /// Table pages of a commit that never ended are replaced by what the root says, so that the next
    /// root does not make them valid.
    async fn rewrite_pages(&self, later: &[(u16, u32)]) {
        let number = self.root.borrow().number;
        for (index, page) in later {
            let member = self.core.member(*index);
            let first = (page * ENTRIES_PER_PAGE) as usize;
            let entries = {
                let slots = member.slots.borrow();
                slots[first..slots.len().min(first + ENTRIES_PER_PAGE as usize)].to_vec()
            };
            let table = TablePage {
                page: *page,
                root: number,
                entries,
            };
            let bytes = Buf::copy_of(&table.encode(&self.core.array, *index)).freeze();
            let copy = 1 - member.page_copy.borrow()[*page as usize];
            let written = member
                .write(
                    member.geometry.page_offset(*page, u32::from(copy)),
                    vec![bytes],
                )
                .await;
            if written.is_err() || member.flush().await.is_err() {
                self.core.report_failed(*index);
            }
        }
    }

    /// Hands the recovered deltas to their shards, in order.
    async fn adopt_all(self: &Rc<Self>, rest: Vec<(u64, Entry)>) {
        let pieces: BTreeMap<u32, u32> = self
            .catalog
            .borrow()
            .volumes
            .iter()
            .map(|v| (v.number, u32::from(v.block_blocks)))
            .collect();
        for (sequence, entry) in rest {
            match entry {
                Entry::Stripe(stripe) => {
                    // A segment freed since: its deltas are replaced by later ones, which may be moves
                    // that say where from.
                    let segment = self
                        .core
                        .segment(stripe.segment)
                        .or_else(|| gone_segment(&stripe));
                    let Some(segment) = segment else { continue };
                    for delta in &stripe.deltas {
                        let Some(row) = stripe.rows.get(delta.block as usize) else {
                            continue;
                        };
                        let owner = ashlar_format::summary::Owner::from_bytes(&row.owner);
                        let Some(pieces) = pieces.get(&owner.tree) else {
                            continue;
                        };
                        let block = stripe.first_block + delta.block;
                        let adopted = Adopted::Block {
                            tree: owner.tree,
                            address: owner.address,
                            segment: segment.clone(),
                            block,
                            digest: delta.digest,
                            algorithm: owner.algorithm,
                            birth: stripe.birth,
                            from: delta.from,
                            sequence,
                        };
                        self.adopt(*pieces, owner.address, adopted).await;
                    }
                }
                Entry::Data(data) => {
                    let Some(pieces) = pieces.get(&data.tree) else {
                        continue;
                    };
                    let bytes = Buf::copy_of(&data.bytes).freeze();
                    let adopted = Adopted::Data {
                        tree: data.tree,
                        address: data.address,
                        algorithm: data.algorithm,
                        digest: data.digest,
                        bytes,
                    };
                    self.adopt(*pieces, data.address, adopted).await;
                }
                Entry::Hole {
                    tree,
                    first,
                    count,
                    part,
                } => {
                    for shard in &self.shards {
                        let hole = Adopted::Holes {
                            tree,
                            first,
                            count,
                            part,
                            sequence,
                        };
                        ask(shard, |reply| ShardMessage::Adopt(hole, reply)).await;
                    }
                }
                _ => {}
            }
        }
    }

    async fn adopt(&self, pieces: u32, address: u64, adopted: Adopted) {
        let partition =
            Partitioning::new(self.superblock.borrow().partitions, pieces).partition(address);
        let shard = &self.shards[usize::from(partition) % self.shards.len()];
        ask(shard, |reply| ShardMessage::Adopt(adopted, reply)).await;
    }
}
