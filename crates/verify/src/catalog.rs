//! The catalog: which volumes there are.
//!
//! **Invariants**: bytes that are no catalog give nothing; a volume has one map root for each partition.

use crate::node::{Inner, Slot};
use crate::report::Kind;
use crate::tree::{self, Volume, Walk};
use crate::wire::Fields;

/// Tree numbers of liveness and the catalog.
const LIVENESS: u32 = 1;
const CATALOG: u32 = 2;

/// A volume with what the catalog says of its map.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) volume: Volume,
    pub(crate) name: String,
    pub(crate) block_bytes: u64,
    pub(crate) mapped_bytes: u64,
    pub(crate) map_nodes: u64,
    pub(crate) maps: Vec<Slot<Inner>>,
}

/// Reads liveness, so that it is known which segments there are, and then the catalog.
pub(crate) fn volumes(walk: &mut Walk<'_, '_>) -> Option<Vec<Listed>> {
    let (liveness, catalog) = (walk.array.root.liveness, walk.array.root.catalog);
    let records = walk.system(LIVENESS, liveness, Kind::LivenessLost)?;
    walk.array.take_liveness(&records, walk.report)?;
    walk.array.take_segments(walk.report);
    let leaves = walk.system(CATALOG, catalog, Kind::CatalogLost)?;
    let partitions = walk.array.members.superblock.partitions;
    let volumes = parse(&tree::string(&leaves, catalog.bytes), partitions);
    if volumes.is_none() {
        walk.report.find(Kind::CatalogLost);
    }
    volumes
}

/// The volumes of a catalog; `None` if the bytes are none.
pub(crate) fn parse(bytes: &[u8], partitions: u16) -> Option<Vec<Listed>> {
    let mut f = Fields(bytes);
    if f.u32()? != 2 {
        return None;
    }
    let count = f.u32()?;
    let mut volumes: Vec<Listed> = Vec::new();
    for _ in 0..count {
        let length = f.u32()? as usize;
        let found = volume(&mut Fields(f.take(length)?), partitions)?;
        if volumes
            .iter()
            .any(|v| v.volume.number == found.volume.number)
        {
            return None;
        }
        volumes.push(found);
    }
    for _ in 0..f.u16()? {
        f.string(255)?;
        f.string(4096)?;
    }
    for _ in 0..f.u16()? {
        f.string(255)?;
        let length = f.u32()? as usize;
        f.take(length)?;
    }
    f.0.is_empty().then_some(volumes)
}

fn volume(f: &mut Fields<'_>, partitions: u16) -> Option<Listed> {
    let (number, name, size, blocks) = (f.u32()?, f.string(255)?, f.u64()?, f.u16()?);
    let (_tag, digest_bytes, compression) = (f.u8()?, f.u8()?, f.u8()?);
    let (layout, sector) = (f.string(255)?, f.u16()?);
    f.take(2)?; // write cache, flags
    let (mapped_bytes, map_nodes) = (f.u64()?, f.u64()?);
    f.take(16)?; // snapshots and clones
    for _ in 0..f.u16()? {
        f.string(255)?;
        f.string(4096)?;
    }
    let count = f.u16()?;
    let maps: Vec<Slot<Inner>> = (0..count)
        .map(|_| Some(Inner::parse(f.take(64)?)))
        .collect::<Option<_>>()?;
    let sound = number >= 16
        && (1..=32).contains(&blocks)
        && blocks.is_power_of_two()
        && digest_bytes == 16
        && compression == 0
        && layout.is_empty()
        && sector == 4096
        && count == partitions;
    let block_bytes = u64::from(blocks) * 4096;
    sound.then(|| Listed {
        volume: Volume {
            number,
            blocks: size.div_ceil(block_bytes),
            pieces: u32::from(blocks),
            partitions: u64::from(partitions),
        },
        name,
        block_bytes,
        mapped_bytes,
        map_nodes,
        maps,
    })
}
