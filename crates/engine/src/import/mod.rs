//! Importing: from the members that `assemble` found to a running array, by replay and recovery.
//!
//! Order of an import, and why (R3, R4, R7, R10, R18). Before all: no other host is seen to use the array.
//! 1. The newest generation any device knows decides who is a member; too few of them is refused, and so is (as
//!    soon as segments are known) leaving out those without whom data cannot be read.
//! 2. The newest valid root is used, or the import is refused: old roots are never a way back.
//! 3. Slot tables (each page the newest not later than the root) locate segments, and the journal, read to its
//!    first gap, columns that were rebuilt since; liveness tells which segments exist; the catalog names the
//!    volumes.
//! 4. Copies of table pages that cannot be read, or that a checkpoint after the root wrote, are rewritten; the
//!    last record, which may have been torn, is written again on all its devices, since from now on it counts
//!    as acknowledged and must have its full redundancy. Then a root that closes the old epoch is made durable.
//!    From now on what was recovered is final.
//! 5. Only now anything is allocated: data records are placed again, open segments are sealed, and a
//!    group commit makes it durable under the new epoch. No group commit and no checkpoint runs before the shards have
//!    all that the journal had.
//!
//! A crash in 4 or 5 leaves the old epoch's records in place, so the next import finds the same.
//!
//! A read-only import does the same, and its members keep in memory what 4 and 5 write: no device changes.

pub mod assemble;
pub mod columns;
pub mod decide;

mod recover;
mod segments;
mod watch;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ashlar_codec::{Code, CodeKind};
use ashlar_device::DeviceRef;
use ashlar_digest::Kind;
use ashlar_format::FormatError;
use ashlar_format::catalog::Catalog;
use ashlar_format::geometry::{ROOT_BYTES, ROOT_COUNT};
use ashlar_format::liveness::RecordShape;
use ashlar_format::root::Root;
use ashlar_format::superblock::{MemberState, Superblock};
use ashlar_rt::{Buf, Rt, Sender};
use ashlar_space::plan::nodes_survive;
use ashlar_space::promise::Packing;
use ashlar_space::topology::Topology;

use crate::error::Error;
use crate::home::space::topology_of;
use crate::home::{CATALOG_TREE, Home, HomeParts, LIVENESS_TREE};
use crate::import::assemble::{
    Candidate, Spread, assemble, generations, hold_spares, make_members,
};
use crate::import::decide::is_majority;
use crate::import::segments::{
    PageCopy, Replayed, decode_records, find_rebuilt, load_tree, make_segments, read_tables,
    replay_segments, settle_segments, take_liveness, take_rows,
};
use crate::journal::recover::Recovered;
use crate::journal::sets::too_few;
use crate::journal::{self, Journal};
use crate::members::Member;
use crate::members::beat::Beat;
use crate::options::{Import, Watched, check_name};
use crate::planted::{self, Bug};
use crate::segment::Segment;
use crate::segment::table::Core;
use crate::shard::start::{add_volume, start_shards};
use crate::space::geometry::slot_blocks;

/// An import skips at least so many numbers of segments, and of trees after a crash.
const LEAST_SKIPPED: u32 = 4096;
/// An import skips fewer numbers of segments and checkpoints.
const MOST_SKIPPED: u64 = 1 << 20;

/// The newest valid root on any member, and the highest number of a checkpoint that any root names. Members hold
/// the same roots: bytes seen before are not decoded again.
async fn newest_root(core: &Rc<Core>) -> Option<(Root, u64)> {
    let mut joins = Vec::new();
    for index in core.readable() {
        for entry in 0..ROOT_COUNT {
            let core2 = core.clone();
            joins.push(core.rt.spawn(async move {
                let member = core2.member(index);
                let at = member.geometry().root_offset(entry);
                member.read(at, ROOT_BYTES as usize).await.ok()
            }));
        }
    }
    let mut seen: Vec<Buf> = Vec::new();
    let mut newest: Option<Root> = None;
    let mut highest = 0;
    for join in joins {
        let Some(bytes) = join.await else { continue };
        if seen.iter().any(|other| other[..] == bytes[..]) {
            continue;
        }
        let Ok(root) = Root::decode(&core.identity.array, &bytes) else {
            continue;
        };
        seen.push(bytes);
        highest = root.checkpoint.max(highest);
        if newest
            .as_ref()
            .is_none_or(|n| planted::on(Bug::AnyRoot) || root.order() > n.order())
        {
            newest = Some(root);
        }
    }
    Some((newest?, highest))
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

/// The catalog in the leaves of its tree.
fn decode_catalog(
    leaves: BTreeMap<u64, Vec<u8>>,
    root: &Root,
    superblock: &Superblock,
) -> Result<Catalog, FormatError> {
    let whole = leaves.keys().zip(0..).all(|(leaf, index)| *leaf == index);
    let mut bytes: Vec<u8> = leaves.into_values().flatten().collect();
    bytes.truncate(usize::try_from(root.catalog.bytes).unwrap_or(0));
    let catalog = Catalog::decode(&bytes)?;
    let maps = usize::from(superblock.partitions);
    if !whole || catalog.volumes.iter().any(|v| v.maps.len() != maps) {
        return Err(FormatError::Value);
    }
    check_tags(superblock, &catalog)?;
    Ok(catalog)
}

/// What devices hold of an array, before anything is decoded.
struct Found {
    newest: Superblock,
    spread: Spread,
    topology: Topology,
    core: Rc<Core>,
    root: Root,
    /// The highest number of a checkpoint on any page or root.
    checkpoint: u64,
    /// Copies of table pages that cannot be read.
    replace: Vec<PageCopy>,
    recovered: Recovered,
    /// What its records say.
    records: Vec<Replayed>,
    /// The beats of the devices.
    watched: Watched,
}

/// What `assemble` finds, under the name that the array gets.
///
/// Crash argument: a name is a label, which no decision reads. The superblocks are stored anew one by one; of those of
/// a generation the one written last has the name that counts, and where names differ all are stored again.
async fn assemble_named(
    devices: Vec<DeviceRef>,
    options: &Import,
) -> Result<(Superblock, Vec<Candidate>, Spread), Error> {
    options.name.as_deref().map_or(Ok(()), check_name)?;
    let (mut newest, candidates, mut spread) =
        assemble(devices, options.array, options.degraded).await?;
    if let Some(name) = &options.name {
        newest.name.clone_from(name);
    }
    spread.behind |= candidates.iter().any(|c| c.name() != newest.name);
    Ok((newest, candidates, spread))
}

/// Waits until it is known whether another host uses the array on these devices, which are only read: what an import is
/// given as [`Import::watched`], so that it need not wait.
///
/// # Errors
/// No array can be told from them, or another host uses it.
pub async fn watch(rt: &Rt, devices: Vec<DeviceRef>, options: &Import) -> Result<Watched, Error> {
    let (newest, candidates, _) = assemble(devices, options.array, options.degraded).await?;
    watch_all(rt, &newest, &candidates, options).await
}

async fn watch_all(
    rt: &Rt,
    newest: &Superblock,
    candidates: &[Candidate],
    options: &Import,
) -> Result<Watched, Error> {
    let Some(identity) = options.settings.beat.as_ref().filter(|_| newest.has_beat()) else {
        return Ok(Watched::default());
    };
    let places = candidates.iter().map(Candidate::beat).collect();
    watch::watch(rt, newest.array, places, identity, options).await
}

/// Finds the newest generation and root on these devices, the segments' columns, and the records of the journal.
async fn find(rt: &Rt, devices: Vec<DeviceRef>, options: &Import) -> Result<Found, Error> {
    let beat = Beat::new(rt, options.settings.beat.clone());
    let devices = devices.into_iter().map(|d| beat.guard(d)).collect();
    let (newest, candidates, mut spread) = assemble_named(devices, options).await?;
    let watched = match &options.watched {
        Some(watched) => watched.clone(),
        None => watch_all(rt, &newest, &candidates, options).await?,
    };
    let blocks = slot_blocks(newest.geometry.slot_bytes);
    let held = generations(&candidates);
    let (members, missing) = make_members(rt, &newest, candidates);
    spread.missing = missing;
    let core = Core::new(
        rt,
        newest.array,
        newest.key,
        blocks,
        members,
        &options.settings.accelerators,
        &beat,
    );
    let spares = std::mem::take(&mut spread.spares);
    spread.renamed = hold_spares(&core, spares, &newest.name);
    if options.read_only {
        // What is recovered is made durable in memory.
        core.members.iter().for_each(Member::keep_writes);
        spread.renamed.clear();
    }
    let online = |index: &u16| {
        let member = core.members.get(usize::from(*index));
        member.is_some_and(Member::is_read)
    };
    if !newest.root_set.iter().any(online) && !options.degraded {
        return Err(Error::NoRoot);
    }
    let (mut root, named) = newest_root(&core).await.ok_or(Error::NoRoot)?;
    leave_newcomers_out(&core, &mut root);
    leave_out(&core, &mut spread, &held, &root, options.degraded)?;
    let topology = topology_of(&core.members, newest.shape, newest.spare);
    let believed = match planted::on(Bug::PagesAdopted) {
        true => u64::MAX,
        false => root.checkpoint,
    };
    let tables = read_tables(&core, believed).await;
    make_segments(&core, &tables.claims);
    let recovered = journal::recover::recover(
        &core,
        &root.epochs,
        root.cut,
        [root.delta_tail, root.data_tail],
    )
    .await;
    let format = |source| Error::Format { device: 0, source };
    let records = decode_records(&recovered, &root).map_err(format)?;
    find_rebuilt(&core, &records).await;
    take_rows(&core, &records);
    check_codes(&core).map_err(format)?; // before anything is decoded
    Ok(Found {
        newest,
        spread,
        topology,
        core,
        root,
        checkpoint: named.max(tables.highest),
        replace: tables.replace,
        recovered,
        records,
        watched,
    })
}

/// No epoch of the journal that was begun before a member was added lies on it.
fn leave_newcomers_out(core: &Core, root: &mut Root) {
    if planted::on(Bug::NewcomerInOldEpochs) {
        return;
    }
    for epoch in &mut root.epochs {
        let newer = core.members.iter().filter(|m| m.first_epoch > epoch.number);
        for index in newer.map(|m| m.index) {
            if !epoch.excluded.contains(&index) {
                epoch.excluded.push(index);
            }
        }
    }
}

/// Members that do not count at this import: they are awaited. Those that are not here have seen the newest root. Of
/// those whose superblock is older than that root nothing is known: they were away when it was written, or their
/// content is an older image of it (rule A2 (a)).
fn leave_out(
    core: &Core,
    spread: &mut Spread,
    held: &[(u16, u64)],
    root: &Root,
    degraded: bool,
) -> Result<(), Error> {
    for index in &spread.missing {
        core.member(*index).stale_since.set(root.checkpoint);
    }
    let counted = core.counted().len() + spread.missing.len();
    for (index, generation) in held {
        let member = core.member(*index);
        let behind = *generation < root.generation;
        if behind && member.is_counted() {
            member.take_out(MemberState::Stale);
            member.set_unread();
            member.stale_since.set(0);
            spread.missing.push(*index);
        }
    }
    let seen = core.counted().len();
    match degraded || is_majority(seen, counted) {
        true => Ok(()),
        false => Err(Error::TooFew {
            seen,
            counted,
            generation: root.generation,
        }),
    }
}

/// Imports the array on these devices.
pub async fn import(
    rt: &Rt,
    devices: Vec<DeviceRef>,
    options: &Import,
) -> Result<(Rc<Home>, Sender<crate::protocol::HomeMessage>), Error> {
    let Found {
        newest,
        spread,
        topology,
        core,
        mut root,
        checkpoint,
        replace,
        recovered,
        records,
        watched,
    } = find(rt, devices, options).await?;
    let format = |source| Error::Format { device: 0, source };
    let survives = nodes_survive(topology.shape());
    let beyond = |()| Error::Beyond {
        lost: spread.missing.len(),
        survives,
    };
    let (liveness, payloads) = load_tree(&core, LIVENESS_TREE, &root.liveness)
        .await
        .map_err(beyond)?;
    let lie = RecordShape::of_blocks(newest.record_blocks);
    let named = take_liveness(&core, &payloads, lie).map_err(format)?;
    let (catalog_tree, parts) = load_tree(&core, CATALOG_TREE, &root.catalog)
        .await
        .map_err(beyond)?;
    let catalog = decode_catalog(parts, &root, &newest).map_err(format)?;
    check_journal(&core, &topology, &root, &recovered, options.degraded)?;
    let (rest, opened) = replay_segments(&core, records, &root, &named).map_err(format)?;
    settle_segments(&core, &named, &opened);
    if !options.degraded {
        let missing = missed(&core, &root, &spread.missing);
        check_missing(&core, &topology, &missing, newest.generation.number)?;
    }
    check_codes(&core).map_err(format)?;
    let birth = Rc::new(Cell::new(root.checkpoint));
    let (shards, to_home, at_home) =
        start_shards(&core, topology.shape(), &newest, &options.settings, &birth);
    let packing = Packing::new(topology.shape().k, newest.strip_blocks);
    for volume in &catalog.volumes {
        add_volume(&shards, volume, packing).await;
    }
    let journal = journal_after(&core, &root, &recovered)?;
    // Devices that are not here may have pages of a checkpoint that died: none that begins from here has its number.
    let next_checkpoint = checkpoint + 1 + rt.random_below(MOST_SKIPPED);
    root.next_segment = next_segment(&core, root.next_segment, &opened);
    root.next_tree = next_tree(&root);
    let home = Home::new(HomeParts {
        core,
        journal,
        shards,
        topology,
        superblock: newest,
        catalog,
        root,
        next_checkpoint,
        birth,
        liveness,
        catalog_tree,
    });
    home.journal.window.note_recovered(&recovered.records);
    let last = recovered.records.last();
    let done = async {
        recover::claim(&home, &spread, watched, options).await?;
        let degraded = options.degraded;
        recover::recover(&home, &spread, &replace, rest, at_home, last, degraded).await
    };
    let done = done.await;
    if done.is_err() {
        home.let_go("it was not imported").await;
    }
    done.map(|()| (home, to_home))
}

/// The journal as it goes on.
fn journal_after(core: &Rc<Core>, root: &Root, recovered: &Recovered) -> Result<Journal, Error> {
    let open = root.epochs.last().cloned().ok_or(Error::NoRoot)?;
    let (next, position, tail) = (recovered.next, recovered.position, recovered.tail);
    Ok(Journal::new(core, open, next, position, tail))
}

/// The number of the next volume. If newer roots were lost, the journal may still name volumes made since: another
/// volume of such a number would be given what was written to them. Skip well past them.
fn next_tree(root: &Root) -> u32 {
    match root.clean {
        true => root.next_tree,
        false => root.next_tree.saturating_add(LEAST_SKIPPED),
    }
}

/// One past every segment number that was ever handed out, as far as anyone knows. Numbers given to
/// segments that left no trace may have written headers: skip well past them, and so far that two imports that do
/// not know of each other hand out different ones.
fn next_segment(core: &Core, root: u64, opened: &BTreeSet<u64>) -> u64 {
    let held = core
        .segments
        .borrow()
        .last_key_value()
        .map(|(number, _)| *number);
    let seen = held.max(opened.last().copied()).map_or(0, |n| n + 1);
    if planted::on(Bug::SegmentNumberReused) {
        return root;
    }
    let least = u64::from(LEAST_SKIPPED);
    root.max(seen) + least + core.rt.random_below(MOST_SKIPPED - least)
}

/// Those of the members that are missing on which something may lie: on one that every epoch of the root leaves out
/// nothing does, unless a table or record names it. It was being taken in, and power went before it knew.
fn missed(core: &Core, root: &Root, missing: &[u16]) -> Vec<u16> {
    let left_out = |d: &u16| root.epochs.iter().all(|e| e.excluded.contains(d));
    let segments = core.segments.borrow();
    let named = |d: &u16| segments.values().any(|s| s.lies_on_any(&[*d]));
    let missed = missing.iter().copied();
    missed.filter(|d| !left_out(d) || named(d)).collect()
}

/// Whether the array can be imported without these devices.
fn check_missing(
    core: &Core,
    topology: &Topology,
    missing: &[u16],
    generation: u64,
) -> Result<(), Error> {
    if !needs_missing(core, topology, missing) {
        return Ok(());
    }
    let here = core.counted().len();
    Err(Error::TooFew {
        seen: here,
        counted: here + missing.len(),
        generation,
    })
}

/// Whether what lies on the array cannot be read, or may not be, without the members that are missing. They
/// would be members no more, so starting without them takes the operator's word.
fn needs_missing(core: &Core, topology: &Topology, missing: &[u16]) -> bool {
    if missing.is_empty() {
        return false;
    }
    let m = usize::from(topology.shape().m);
    let beyond = |group: &Vec<u16>| {
        let gone = group.iter().copied().filter(|d| missing.contains(d));
        topology.domains().survives(gone, m).is_none()
    };
    let lost = |segment: &Rc<Segment>| {
        !segment.live.borrow().is_empty() && core.redundancy(segment).is_none()
    };
    let groups = &topology.shape().groups;
    groups.iter().any(beyond) || core.segments.borrow().values().any(lost)
}

fn check_journal(
    core: &Core,
    topology: &Topology,
    root: &Root,
    recovered: &Recovered,
    degraded: bool,
) -> Result<(), Error> {
    if degraded {
        if recovered.lost > 0 {
            core.events.note(
                "journal-lost",
                None,
                format!("{} journal record(s) of acknowledged writes cannot be read: these writes are lost \
                    (--degraded was given)", recovered.lost),
            );
        }
        return Ok(());
    }
    if recovered.lost > 0 {
        return Err(Error::JournalLoss(recovered.lost));
    }
    for epoch in root.epochs.iter().filter(|_| !root.clean) {
        let gone = |d: u16| !core.member(d).is_read();
        let domains = core.domains_of(epoch);
        if let Some((missing, counted)) = too_few(topology.shape(), &domains, epoch, gone) {
            return Err(Error::TooFew {
                seen: counted - missing,
                counted,
                generation: root.generation,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ashlar_format::SegmentGeometry;
    use ashlar_format::slot::SegmentKind;
    use ashlar_rt::Rt;

    use super::{next_segment, settle_segments};
    use crate::Settings;
    use crate::members::beat::Beat;
    use crate::segment::Column;
    use crate::segment::Segment;
    use crate::segment::table::Core;

    /// What the journal opened and has no stripe of keeps no slots: imports that were killed again and again left none
    /// to checkpoint in. Its number is not given again, though no segment has it (#182).
    #[test]
    fn what_was_only_opened_is_room_and_keeps_its_number() {
        let geometry = SegmentGeometry {
            k: 2,
            m: 1,
            strip_blocks: 1,
            slot_blocks: 8,
        };
        let rt = Rt::simulated(1);
        let none = Settings::default().accelerators;
        let core = Core::new(
            &rt,
            [0; 16],
            [0; 32],
            8,
            Vec::new(),
            &none,
            &Beat::new(&rt, None),
        );
        for (number, stripes) in [(1, 0), (2, 3), (3, 1), (4, 0), (5, 2)] {
            let columns = vec![Column::MISSING; geometry.width()];
            let segment =
                Segment::create(number, SegmentKind::Data, geometry, 1, columns, u32::MAX);
            segment.recorded.set(stripes);
            core.add_segment(&segment);
        }
        // Of 5 only a table knows.
        let (named, opened) = (BTreeSet::from([1, 2]), BTreeSet::from([3, 4, 7]));
        settle_segments(&core, &named, &opened);
        let left: Vec<u64> = core.segments.borrow().keys().copied().collect();
        assert_eq!(left, [1, 2, 3]);
        assert!(next_segment(&core, 1, &opened) > 7);
    }
}
