//! Where a volume's blocks lie: its map, from the newest root down, without reading the blocks.
//!
//! **Invariants**: only nodes that match the digests in their parents are looked into; what cannot be
//! known is said, never guessed.

use crate::report::{Kind, Report};
use crate::source::Source;
use crate::strips::RowCache;
use crate::tree::{Placed, Walk};
use crate::{array::Array, catalog, members};

/// A run of a volume's blocks that follow each other in one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where in the volume, in bytes.
    pub offset_bytes: u64,
    /// How long, in bytes.
    pub length_bytes: u64,
    /// The segment's number.
    pub segment: u64,
    /// The first data block in the segment, of 4 KiB.
    pub block: u32,
    /// The devices that hold it, in order, each once; `None` for a column that no device holds.
    pub devices: Vec<Option<u16>>,
}

/// A volume's map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeMap {
    /// The volume's number: the tree that rows name as owner.
    pub number: u32,
    /// The root that it is of.
    pub root: u64,
    /// Bytes of a volume block.
    pub block_bytes: u64,
    /// By offset.
    pub extents: Vec<Extent>,
    /// All nodes could be read; else what lies where they are missing is not known.
    pub whole: bool,
}

/// The map of the volume `name`, as the newest root on these devices has it.
///
/// # Errors
/// A sentence that says why there is none: no array on these devices, too few of them, or no such volume.
pub fn map(devices: &[&dyn Source], name: &str) -> Result<VolumeMap, String> {
    let mut report = Report::default();
    let found = find(devices, name, &mut report);
    found.unwrap_or_else(|| {
        let missing = report.count_of(Kind::MemberMissing);
        let few = "the catalog of the array cannot be read from these devices";
        let more = match missing {
            0 => "`ashlar verify` says what is wrong".to_string(),
            n => format!("name its other devices too ({n} are missing)"),
        };
        Err(format!("{few}: {more}"))
    })
}

fn find(
    devices: &[&dyn Source],
    name: &str,
    report: &mut Report,
) -> Option<Result<VolumeMap, String>> {
    let members = members::assemble(devices, report)?;
    let mut array = Array::open(members, report)?;
    let (rows, root) = (RowCache::default(), array.root.checkpoint);
    let mut placed = Vec::new();
    let mut walk = Walk::new(&mut array, &rows, report);
    let volumes = catalog::volumes(&mut walk)?;
    let Some(listed) = volumes.iter().find(|v| v.name == name) else {
        let names: Vec<&str> = volumes.iter().map(|v| v.name.as_str()).collect();
        return Some(Err(format!(
            "no volume is called {name} here; there are: {}",
            names.join(", ")
        )));
    };
    walk.placed = Some(&mut placed);
    for (partition, top) in (0u16..).zip(&listed.maps) {
        walk.map(&listed.volume, partition, top);
    }
    let whole = !walk.lost_entries;
    placed.sort_unstable();
    Some(Ok(VolumeMap {
        number: listed.volume.number,
        root,
        block_bytes: listed.block_bytes,
        extents: extents(&array, &placed, listed.block_bytes),
        whole,
    }))
}

/// Runs of volume blocks, which are sorted.
fn extents(array: &Array<'_>, placed: &[Placed], block_bytes: u64) -> Vec<Extent> {
    let pieces = u32::try_from(block_bytes / 4096).unwrap_or(1);
    let mut extents: Vec<Extent> = Vec::new();
    for at in placed {
        let offset = at.volume_block * block_bytes;
        let follows = |e: &&mut Extent| {
            let blocks = u32::try_from(e.length_bytes / 4096).unwrap_or(u32::MAX);
            e.offset_bytes + e.length_bytes == offset
                && e.segment == at.place.segment
                && e.block.checked_add(blocks) == Some(at.place.block)
        };
        let extent = match extents.last_mut().filter(follows) {
            Some(extent) => {
                extent.length_bytes += block_bytes;
                extent
            }
            None => {
                extents.push(Extent {
                    offset_bytes: offset,
                    length_bytes: block_bytes,
                    segment: at.place.segment,
                    block: at.place.block,
                    devices: Vec::new(),
                });
                extents.last_mut().expect("just pushed")
            }
        };
        let segment = &array.segments[&at.place.segment];
        for piece in 0..pieces {
            let (_, column, _) = segment.shape.locate(at.place.block + piece);
            let column = segment.columns.get(usize::from(column)).copied().flatten();
            let device = column.map(|c| c.device);
            if !extent.devices.contains(&device) {
                extent.devices.push(device);
            }
        }
    }
    extents
}
