//! `inspect --journal`: the records whose columns lie in this device's rings.
//!
//! **Invariants**: rings are read a block at a time, so neither their size nor what stands in them costs
//! memory; what does not decode as a column is passed over, since rings are full of what was there before.

use ashlar_format::BLOCK;
use ashlar_format::journal::{ColumnHeader, Entry, HEADER_BYTES, Ring, decode_entries};
use serde_json::{Value, json};

use super::found::Found;
use crate::units::size;
use crate::view::table;

/// One column of a record, as it stands here.
struct Stored {
    offset: u64,
    header: ColumnHeader,
    /// The share matches its digest.
    whole: bool,
    /// What the record says, where this column is all of it.
    entries: Option<String>,
}

/// The columns of both rings, oldest record first.
fn stored(found: &Found) -> Vec<Stored> {
    let g = &found.superblock.geometry;
    let rings = [
        (g.delta_ring_offset(), g.delta_ring_bytes),
        (g.data_ring_offset(), g.data_ring_bytes),
    ];
    let mut stored: Vec<Stored> = rings
        .into_iter()
        .flat_map(|(start, bytes)| (start..start + bytes).step_by(BLOCK))
        .filter_map(|offset| column(found, offset))
        .collect();
    stored.sort_by_key(|s| (s.header.sequence, s.header.attempt, s.header.column));
    stored
}

fn column(found: &Found, offset: u64) -> Option<Stored> {
    let mut first = vec![0; HEADER_BYTES];
    found.file.read_exact_at(&mut first, offset).ok()?;
    let header = ColumnHeader::decode(&found.superblock.array, &first).ok()?;
    let g = &found.superblock.geometry;
    let share = header.share_bytes();
    let ring = g.delta_ring_bytes.max(g.data_ring_bytes);
    let mut bytes = vec![0; if share as u64 <= ring { share } else { 0 }];
    let read = found
        .file
        .read_exact_at(&mut bytes, offset + HEADER_BYTES as u64);
    let whole = read.is_ok() && ashlar_digest::plain(&[&bytes]) == header.share_digest;
    let payload = bytes.get(..header.payload_bytes as usize);
    let entries = payload
        .filter(|_| whole && header.w == 1)
        .and_then(|payload| decode_entries(payload).ok())
        .map(|entries| summed_up(&entries));
    Some(Stored {
        offset,
        header,
        whole,
        entries,
    })
}

/// How many entries there are of each kind.
fn summed_up(entries: &[Entry]) -> String {
    let kinds = ["opened", "stripes", "blocks", "holes", "columns"];
    let kind = |entry: &Entry| match entry {
        Entry::Open { .. } => 0,
        Entry::Stripe(_) => 1,
        Entry::Data(_) => 2,
        Entry::Unmap { .. } => 3,
        Entry::Column { .. } => 4,
    };
    let counted = kinds.iter().enumerate().filter_map(|(index, name)| {
        let count = entries.iter().filter(|e| kind(e) == index).count();
        (count > 0).then(|| format!("{count} {name}"))
    });
    counted.collect::<Vec<_>>().join(", ")
}

fn ring_name(ring: Ring) -> &'static str {
    match ring {
        Ring::Delta => "delta",
        Ring::Data => "data",
    }
}

/// Whether recovery from this device's newest root would look at a record; `None` without a root.
fn needed(found: &Found, header: &ColumnHeader) -> Option<bool> {
    let root = found.roots.first()?;
    Some(header.sequence >= root.cut)
}

/// For `-j`.
pub(super) fn value(found: &Found) -> Value {
    let records = stored(found).into_iter().map(|s| {
        json!({
            "sequence": s.header.sequence, "attempt": s.header.attempt, "epoch": s.header.epoch,
            "ring": ring_name(s.header.ring), "offset": s.offset, "column": s.header.column,
            "w": s.header.w, "m": s.header.m, "devices": s.header.devices,
            "payload_bytes": s.header.payload_bytes, "whole": s.whole,
            "needed": needed(found, &s.header), "entries": s.entries,
        })
    });
    json!({ "journal": records.collect::<Vec<_>>() })
}

/// For people.
pub(super) fn text(found: &Found) -> String {
    let rows = stored(found).into_iter().map(|s| {
        vec![
            s.header.sequence.to_string(),
            s.header.epoch.to_string(),
            ring_name(s.header.ring).to_string(),
            format!("{:#x}", s.offset),
            format!("{} of {}+{}", s.header.column, s.header.w, s.header.m),
            size(s.header.payload_bytes.into()),
            if s.whole { "good" } else { "BAD" }.to_string(),
            match needed(found, &s.header) {
                Some(true) => "yes",
                Some(false) => "no",
                None => "-",
            }
            .to_string(),
            s.entries.unwrap_or_default(),
        ]
    });
    let titles = [
        "RECORD", "EPOCH", "RING", "OFFSET", "COLUMN", "PAYLOAD", "SHARE", "NEEDED", "SAYS",
    ];
    table::table(&titles, rows.collect(), &[0, 1, 3, 5], false)
}
