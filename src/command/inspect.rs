//! `inspect`: what a device's own structures say, read without a daemon, an engine, or writing.
//!
//! **Invariants**: the device is opened read-only and not held, so one in use can be looked at;
//! damaged bytes are an answer, not a panic; of two copies each is judged by itself, and the newer
//! good one is shown.

mod balance;
mod found;
mod journal;
mod map;

use std::fs::File;
use std::path::Path;

use ashlar_engine::uuid_text;
use ashlar_format::root::Root;
use ashlar_format::slot::{ENTRIES_PER_PAGE, SegmentKind, SlotEntry, TablePage};
use ashlar_format::superblock::{MemberState, Superblock};
use ashlar_format::{BLOCK, FormatError, geometry};
use ashlar_rt::Rt;
use serde_json::{Value, json};

use crate::cli::InspectArgs;
use crate::daemon::open::{Access, Opener, on_thread};
use crate::failure::Failure;
use crate::print::{document, out};
use crate::seat::seat;
use crate::units::size;
use crate::view::{safe, table};
use found::{Found, Placed, header, slot_blocks};

/// `inspect`.
///
/// # Errors
/// If the device cannot be read, or holds no array's device.
pub(crate) fn inspect(args: &InspectArgs, json: bool) -> Result<(), Failure> {
    if let Some(volume) = &args.map {
        return map::map(args, volume, json);
    }
    let found = read(&args.device)?;
    if let Some(number) = args.segment {
        return segment(&found, number, json);
    }
    if args.journal {
        return if json {
            out(&document("inspect", &journal::value(&found))?)
        } else {
            out(&journal::text(&found))
        };
    }
    if args.balance {
        return if json {
            out(&document("inspect", &balance::value(&found))?)
        } else {
            out(&balance::text(&found))
        };
    }
    if json {
        out(&document("inspect", &value(&found, args.slots))?)
    } else {
        out(&text(&found, args.slots))
    }
}

/// The last copy: at the end of the device, or, of one that has grown since, where the first copy has its end.
fn last_superblock(
    file: &Placed,
    bytes: u64,
    first: Option<&Superblock>,
) -> Result<Superblock, String> {
    let end = bytes.checked_sub(geometry::super_bytes(bytes));
    let last = match end {
        Some(end) => superblock(file, end),
        None => Err(FormatError::Magic.to_string()),
    };
    let known = first.map(|first| first.geometry.super_offset(1));
    match known.filter(|known| Some(*known) != end) {
        Some(known) if last.is_err() => superblock(file, known),
        _ => last,
    }
}

fn read(path: &Path) -> Result<Found, Failure> {
    let at = path.display();
    // Through the device library first: it says best why something cannot be opened.
    let rt = Rt::start().map_err(|e| Failure::broken(format!("cannot start: {e}")))?;
    let (opener, wanted) = (Opener::new(&rt), path.to_path_buf());
    let (first, device) = rt.block_on(async move {
        let bare = opener.open_bare(&wanted, Access::Look).await?;
        let seated = on_thread(move || seat(bare)).await?;
        let first = seated.shown().map_or(0, |part| part.first);
        Ok::<_, Failure>((first, opener.serve(seated)))
    })?;
    let bytes = device.info().size_bytes;
    let file = File::open(path).map_err(|e| Failure::broken(format!("{at}: {e}")))?;
    let file = Placed { file, first };
    let first = superblock(&file, 0);
    let second = last_superblock(&file, bytes, first.as_ref().ok());
    let copies =
        [&first, &second].map(|copy| copy.as_ref().map(|s| s.writes).map_err(Clone::clone));
    let newest = [first, second]
        .into_iter()
        .flatten()
        .max_by_key(|superblock| superblock.writes);
    let Some(superblock) = newest else {
        let signature = rt.block_on(async move { ashlar_device::signature(&device).await });
        return Err(Failure::not_found(match signature {
            Some(signature) => format!("{at} holds {signature}; it is not a device of an array"),
            None => format!("{at} is not a device of an array"),
        }));
    };
    let mut roots: Vec<Root> = (0..geometry::ROOT_COUNT)
        .filter_map(|index| root(&file, &superblock, index).ok())
        .collect();
    roots.sort_by_key(|root| std::cmp::Reverse(root.order()));
    let newest = roots.first().map(|root| root.checkpoint);
    let (slots, damaged_pages) = slot_table(&file, &superblock, newest);
    Ok(Found {
        file,
        superblock,
        copies,
        roots,
        slots,
        damaged_pages,
    })
}

fn superblock(file: &Placed, offset: u64) -> Result<Superblock, String> {
    let mut bytes = vec![0; BLOCK];
    file.read_exact_at(&mut bytes, offset)
        .map_err(|e| e.to_string())?;
    let length = Superblock::encoded_bytes(&bytes).map_err(|e| e.to_string())?;
    bytes.resize(length, 0);
    file.read_exact_at(&mut bytes, offset)
        .map_err(|e| e.to_string())?;
    Superblock::decode(&bytes).map_err(|e| e.to_string())
}

fn root(file: &Placed, superblock: &Superblock, index: u64) -> Result<Root, String> {
    let mut bytes = vec![0; usize::try_from(geometry::ROOT_BYTES).unwrap_or(BLOCK)];
    let offset = superblock.geometry.root_offset(index);
    file.read_exact_at(&mut bytes, offset)
        .map_err(|e| e.to_string())?;
    Root::decode(&superblock.array, &bytes).map_err(|e| e.to_string())
}

/// Of each page the newest good copy that no checkpoint after that of the newest root here wrote.
fn slot_table(
    file: &Placed,
    superblock: &Superblock,
    newest: Option<u64>,
) -> (Vec<Option<SlotEntry>>, u32) {
    let geometry = &superblock.geometry;
    let slots = usize::try_from(geometry.slots).unwrap_or(0);
    let (mut table, mut damaged) = (vec![None; slots], 0);
    for page in 0..geometry.table_pages() {
        let copy = |copy| {
            let mut bytes = vec![0; BLOCK];
            file.read_exact_at(&mut bytes, geometry.page_offset(page, copy))
                .ok()?;
            let blocks = slot_blocks(superblock);
            TablePage::decode(&superblock.array, superblock.index, page, blocks, &bytes).ok()
        };
        let fits = |page: &TablePage| newest.is_none_or(|newest| page.checkpoint <= newest);
        let newest = [copy(0), copy(1)]
            .into_iter()
            .flatten()
            .filter(fits)
            .max_by_key(|p| p.checkpoint);
        let Some(newest) = newest else {
            damaged += 1;
            continue;
        };
        let from = usize::try_from(page * ENTRIES_PER_PAGE).unwrap_or(slots);
        for (slot, entry) in table.iter_mut().skip(from).zip(newest.entries) {
            *slot = entry;
        }
    }
    (table, damaged)
}

fn count(found: &Found, kind: SegmentKind) -> usize {
    found
        .slots
        .iter()
        .flatten()
        .filter(|entry| entry.kind == kind)
        .count()
}

fn value(found: &Found, slots: bool) -> Value {
    let (s, g) = (&found.superblock, &found.superblock.geometry);
    let newest = found.roots.first();
    let member = |m: &ashlar_format::superblock::MemberEntry| json!({ "uuid": uuid_text(&m.uuid), "state": member_state(m.state), "slots": m.slots, "domain": m.domain });
    let mut value = json!({
        "array": s.name,
        "array_uuid": uuid_text(&s.array),
        "device_uuid": uuid_text(&s.device),
        "index": s.index,
        "devices_total": s.members.len(),
        "generation": s.generation.number,
        "layout": s.layout,
        "spare": s.spare,
        "partitions": s.partitions,
        "strip_bytes": u64::from(s.strip_blocks) * BLOCK as u64,
        "clean": newest.is_some_and(|root| root.clean),
        "size_bytes": g.size_bytes,
        "superblocks": found.copies.iter().map(|copy| match copy {
            Ok(writes) => json!({ "good": true, "writes": writes }),
            Err(reason) => json!({ "good": false, "reason": reason }),
        }).collect::<Vec<_>>(),
        "geometry": {
            "slot_bytes": g.slot_bytes, "slots": g.slots,
            "delta_ring_bytes": g.delta_ring_bytes, "data_ring_bytes": g.data_ring_bytes,
            "first_slot_offset": g.slot_offset(0),
        },
        "roots": found.roots.iter().map(|root| json!({
            "number": root.number, "generation": root.generation, "clean": root.clean,
            "epochs": root.epochs.len(), "next_segment": root.next_segment, "cut": root.cut,
        })).collect::<Vec<_>>(),
        "root_set": s.root_set,
        "slots_used": { "data": count(found, SegmentKind::Data), "meta": count(found, SegmentKind::Meta) },
        "damaged_table_pages": found.damaged_pages,
        "members": s.members.iter().map(member).collect::<Vec<_>>(),
    });
    if slots {
        let rows = found.slots.iter().enumerate();
        let rows = rows.filter_map(|(slot, entry)| entry.as_ref().map(|e| slot_json(slot, e)));
        value["slots"] = rows.collect();
    }
    value
}

fn slot_json(slot: usize, e: &SlotEntry) -> Value {
    json!({
        "slot": slot, "segment": e.segment, "column": e.column, "version": e.version, "k": e.k, "m": e.m,
        "kind": kind_name(e.kind), "strip_bytes": u64::from(e.strip_blocks) * BLOCK as u64,
    })
}

fn member_state(state: MemberState) -> &'static str {
    match state {
        MemberState::Online => "online",
        MemberState::Failed => "failed",
        MemberState::Stale => "stale",
        MemberState::Offline => "offline",
        MemberState::Spare => "spare",
        MemberState::Removing => "removing",
        MemberState::Removed => "removed",
    }
}

fn kind_name(kind: SegmentKind) -> &'static str {
    match kind {
        SegmentKind::Data => "data",
        SegmentKind::Meta => "meta",
    }
}

/// Which device of which array it is, and how it is laid out: each under its name.
fn shape(found: &Found) -> Vec<(&'static str, String)> {
    let (s, g) = (&found.superblock, &found.superblock.geometry);
    let copy = |copy: &Result<u64, String>| match copy {
        Ok(writes) => format!("good (write {writes})"),
        Err(reason) => format!("BAD: {reason}"),
    };
    let (data, meta) = (
        count(found, SegmentKind::Data),
        count(found, SegmentKind::Meta),
    );
    vec![
        (
            "array",
            format!("{}  {}", safe(&s.name), uuid_text(&s.array)),
        ),
        (
            "device",
            format!(
                "{} of {}  {}",
                s.index,
                s.members.len(),
                uuid_text(&s.device)
            ),
        ),
        (
            "layout",
            format!(
                "{}, {} spare, strip {}",
                safe(&s.layout),
                s.spare,
                size(u64::from(s.strip_blocks) * BLOCK as u64)
            ),
        ),
        (
            "size",
            format!("{} ({} bytes)", size(g.size_bytes), g.size_bytes),
        ),
        ("generation", s.generation.number.to_string()),
        (
            "superblock",
            format!(
                "first {}, last {}",
                copy(&found.copies[0]),
                copy(&found.copies[1])
            ),
        ),
        (
            "journal",
            format!(
                "delta ring {}, data ring {}",
                size(g.delta_ring_bytes),
                size(g.data_ring_bytes)
            ),
        ),
        (
            "slots",
            format!(
                "{} of {}: {data} data, {meta} metadata, {} free",
                g.slots,
                size(g.slot_bytes),
                found.slots.len() - data - meta
            ),
        ),
    ]
}

/// How it stands: damaged pages, roots, members that are not online.
fn condition(found: &Found, lines: &mut Vec<(&'static str, String)>) {
    if found.damaged_pages > 0 {
        lines.push((
            "slot table",
            format!(
                "{} pages have no good copy: 'ashlar verify' with all devices says what is at risk",
                found.damaged_pages
            ),
        ));
    }
    for root in &found.roots {
        let closed = if root.clean {
            "closed cleanly"
        } else {
            "in use, or not closed cleanly"
        };
        let text = format!(
            "{} of generation {}, next segment {}, {closed}",
            root.number, root.generation, root.next_segment
        );
        lines.push(("root", text));
    }
    if found.roots.is_empty() {
        lines.push(("root", "none on this device".to_string()));
    }
    for (index, member) in found
        .superblock
        .members
        .iter()
        .enumerate()
        .filter(|(_, m)| m.state != MemberState::Online)
    {
        lines.push((
            "member",
            format!("{index} is {}", member_state(member.state)),
        ));
    }
}

fn text(found: &Found, slots: bool) -> String {
    let mut lines = shape(found);
    condition(found, &mut lines);
    let mut out: String = lines
        .iter()
        .map(|(name, text)| format!("{name:<11} {text}\n"))
        .collect();
    if slots {
        let rows = found.slots.iter().enumerate().filter_map(|(slot, entry)| {
            let e = entry.as_ref()?;
            let shape = format!("{}+{}", e.k, e.m);
            let strip = size(u64::from(e.strip_blocks) * BLOCK as u64);
            let kind = kind_name(e.kind).to_string();
            Some(vec![
                slot.to_string(),
                e.segment.to_string(),
                e.column.to_string(),
                shape,
                strip,
                kind,
            ])
        });
        let titles = ["SLOT", "SEGMENT", "COLUMN", "SHAPE", "STRIP", "KIND"];
        out += &table::table(&titles, rows.collect(), &[0, 1, 2, 4], false);
    }
    out
}

/// One segment's column on this device: table entry and header.
fn segment(found: &Found, number: u64, json: bool) -> Result<(), Failure> {
    let at = found
        .slots
        .iter()
        .position(|e| e.as_ref().is_some_and(|e| e.segment == number));
    let Some((slot, entry)) = at.and_then(|slot| Some((slot, found.slots[slot]?))) else {
        return Err(Failure::not_found(format!(
            "segment {number} has no column in this device's slot table; --slots lists the segments that have one"
        )));
    };
    let (offset, header) = header(found, slot);
    let agrees = header
        .as_ref()
        .is_ok_and(|header| header.entry.segment == number);
    let mut value = slot_json(slot, &entry);
    value["offset_bytes"] = json!(offset);
    value["header"] = match &header {
        Ok(header) => {
            json!({ "good": agrees, "segment": header.entry.segment, "column": header.entry.column,
                              "version": header.entry.version, "devices": header.devices })
        }
        Err(reason) => json!({ "good": false, "reason": reason }),
    };
    if json {
        return out(&document("inspect", &value)?);
    }
    let header = match &header {
        Ok(header) if agrees => format!("good; devices {:?}", header.devices),
        Ok(header) => format!(
            "says segment {} column {}",
            header.entry.segment, header.entry.column
        ),
        Err(reason) => format!("BAD: {reason}"),
    };
    out(&format!(
        "segment     {number}, {} {}+{}, strip {}\ncolumn      {}, version {}\nslot        {slot}, at byte {offset}\nheader      {header}\n",
        kind_name(entry.kind),
        entry.k,
        entry.m,
        size(u64::from(entry.strip_blocks) * BLOCK as u64),
        entry.column,
        entry.version,
    ))
}
