//! `inspect --map`: where a volume's blocks lie, from the newest root down.
//!
//! **Invariants**: nothing is written and no device is held, so an array in use can be looked at: as of its
//! newest root, some seconds ago.

use ashlar_verify::{Source, VolumeMap};
use serde_json::{Value, json};

use crate::cli::InspectArgs;
use crate::failure::Failure;
use crate::print::{document, out};
use crate::seat;
use crate::units::size;
use crate::view::{safe, table};

/// `inspect DEV... --map VOL`.
///
/// # Errors
/// If a device cannot be read, the catalog is not to be had from these devices, or has no such volume.
pub(super) fn map(args: &InspectArgs, volume: &str, json: bool) -> Result<(), Failure> {
    let mut sources = Vec::new();
    for path in std::iter::once(&args.device).chain(&args.others) {
        let part = seat::place(path).map_err(|e| Failure::broken(e.to_string()))?;
        sources.push(seat::source(path, part)?);
    }
    let sources: Vec<&dyn Source> = sources.iter().map(|s| s as &dyn Source).collect();
    let map = ashlar_verify::map(&sources, volume).map_err(Failure::not_found)?;
    if json {
        out(&document("inspect", &value(volume, &map))?)
    } else {
        out(&text(volume, &map))
    }
}

fn value(volume: &str, map: &VolumeMap) -> Value {
    let extents = map.extents.iter().map(|e| {
        json!({
            "offset_bytes": e.offset_bytes, "length_bytes": e.length_bytes,
            "segment": e.segment, "block": e.block, "devices": e.devices,
        })
    });
    json!({
        "volume": volume, "number": map.number, "root": map.root, "whole": map.whole,
        "block_bytes": map.block_bytes, "extents": extents.collect::<Vec<_>>(),
    })
}

fn text(volume: &str, map: &VolumeMap) -> String {
    let mapped: u64 = map.extents.iter().map(|e| e.length_bytes).sum();
    let mut text = format!(
        "volume {} (number {}) as of root {}: {} mapped, {} extents\n",
        safe(volume),
        map.number,
        map.root,
        size(mapped),
        map.extents.len()
    );
    if !map.whole {
        text += "part of its map cannot be read from these devices and is not shown; name its other devices too\n";
    }
    let rows = map.extents.iter().map(|e| {
        let device = |d: &Option<u16>| d.map_or("-".to_string(), |d| d.to_string());
        let devices: Vec<String> = e.devices.iter().map(device).collect();
        vec![
            e.offset_bytes.to_string(),
            e.length_bytes.to_string(),
            e.segment.to_string(),
            e.block.to_string(),
            devices.join(" "),
        ]
    });
    let titles = ["OFFSET", "LENGTH", "SEGMENT", "BLOCK", "DEVICES"];
    text + &table::table(&titles, rows.collect(), &[0, 1, 2, 3], false)
}
