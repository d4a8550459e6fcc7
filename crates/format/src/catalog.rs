//! The catalog: what the array holds, by name. A byte string in the leaves of the catalog tree.
//!
//! Invariants: names are unique; a volume's number is never reused; every partition of a volume has
//! its own map root.

use crate::node::NodeEntry;
use crate::wire::{Reader, Writer};
use crate::{FormatError, VERSION};

/// Longest volume name, setting key and frontend field.
pub const MAX_NAME: usize = 255;

/// A volume as the catalog keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeEntry {
    /// Its number: never reused; also the tree of its map.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Volume block, in 4 KiB blocks: 1 to 32.
    pub block_blocks: u16,
    /// Digest algorithm of new blocks.
    pub digest: u8,
    /// 0 auto, 1 on, 2 off.
    pub write_cache: u8,
    /// Whether it may exceed the space there is.
    pub thin: bool,
    /// Being destroyed: its blocks are being released.
    pub destroying: bool,
    /// Bytes of it that its map holds, as of the root.
    pub mapped_bytes: u64,
    /// Nodes of its maps, as of the root.
    pub map_nodes: u64,
    /// Snapshot of this volume number, 0 for a volume; and the checkpoint at which it was taken.
    pub snapshot_of: (u32, u64),
    /// Clone of this snapshot's number, 0 if not.
    pub clone_of: u32,
    /// How it is served: kind and address.
    pub frontends: Vec<(String, String)>,
    /// Map roots, one a partition: the entry of the tree's top, with the tree's height.
    pub maps: Vec<Option<NodeEntry>>,
}

/// Everything the catalog says.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Catalog {
    /// Volumes, by number.
    pub volumes: Vec<VolumeEntry>,
    /// Settings, by key.
    pub settings: Vec<(String, String)>,
    /// Tasks that survive a restart: kind and progress, as the engine keeps them.
    pub tasks: Vec<(String, Vec<u8>)>,
}

impl Catalog {
    /// The byte string.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u32(VERSION)
            .u32(u32::try_from(self.volumes.len()).expect("volumes have 32-bit numbers"));
        for v in &self.volumes {
            let bytes = encode_volume(v);
            w.u32(u32::try_from(bytes.len()).expect("65,535 maps take 4 MiB"))
                .bytes(&bytes);
        }
        w.u16(u16::try_from(self.settings.len()).expect("few settings"));
        for (key, value) in &self.settings {
            w.string(key).string(value);
        }
        w.u16(u16::try_from(self.tasks.len()).expect("few tasks"));
        for (kind, progress) in &self.tasks {
            w.string(kind)
                .u32(u32::try_from(progress.len()).expect("small"))
                .bytes(progress);
        }
        w.0
    }

    /// Reads the byte string (whose digest the tree has checked).
    pub fn decode(bytes: &[u8]) -> Result<Catalog, FormatError> {
        let mut r = Reader::new(bytes);
        let version = r.u32()?;
        if version != VERSION {
            return Err(FormatError::Version(version));
        }
        let mut catalog = Catalog::default();
        for _ in 0..r.u32()? {
            let length = r.u32()? as usize;
            // What follows the fields known here are fields of a compatible feature.
            let volume = read_volume(&mut Reader::new(r.bytes(length)?))?;
            catalog.volumes.push(volume);
        }
        for _ in 0..r.u16()? {
            catalog
                .settings
                .push((r.string(MAX_NAME)?, r.string(4096)?));
        }
        for _ in 0..r.u16()? {
            let kind = r.string(MAX_NAME)?;
            let length = r.u32()? as usize;
            catalog.tasks.push((kind, r.bytes(length)?.to_vec()));
        }
        Ok(catalog)
    }
}

/// Bytes of a digest in the map (32 and 64 come with a feature).
const MAP_DIGEST_BYTES: u8 = 16;
/// Bytes of a logical sector (512 comes with a feature).
const SECTOR_BYTES: u16 = 4096;

fn encode_volume(v: &VolumeEntry) -> Vec<u8> {
    let mut w = Writer::new();
    w.u32(v.number)
        .string(&v.name)
        .u64(v.size_bytes)
        .u16(v.block_blocks)
        .u8(v.digest);
    w.u8(MAP_DIGEST_BYTES)
        .u8(0)
        .string("")
        .u16(SECTOR_BYTES)
        .u8(v.write_cache);
    w.u8(u8::from(v.thin) | u8::from(v.destroying) << 1)
        .u64(v.mapped_bytes)
        .u64(v.map_nodes);
    w.u32(v.snapshot_of.0).u64(v.snapshot_of.1).u32(v.clone_of);
    w.u16(u16::try_from(v.frontends.len()).expect("few frontends"));
    for (kind, address) in &v.frontends {
        w.string(kind).string(address);
    }
    w.u16(u16::try_from(v.maps.len()).expect("at most 65,535 partitions"));
    for map in &v.maps {
        let mut bytes = [0; 64];
        NodeEntry::write(map.as_ref(), &mut bytes);
        w.bytes(&bytes);
    }
    w.0
}

fn read_volume(r: &mut Reader<'_>) -> Result<VolumeEntry, FormatError> {
    let (number, name, size_bytes, block_blocks) =
        (r.u32()?, r.string(MAX_NAME)?, r.u64()?, r.u16()?);
    let (digest, digest_bytes, compression) = (r.u8()?, r.u8()?, r.u8()?);
    let (layout, sector) = (r.string(MAX_NAME)?, r.u16()?);
    let (write_cache, flags) = (r.u8()?, r.u8()?);
    let (mapped_bytes, map_nodes) = (r.u64()?, r.u64()?);
    let (snapshot_of, clone_of) = ((r.u32()?, r.u64()?), r.u32()?);
    let mut frontends = Vec::new();
    for _ in 0..r.u16()? {
        frontends.push((r.string(MAX_NAME)?, r.string(4096)?));
    }
    let mut maps = Vec::new();
    for _ in 0..r.u16()? {
        let top = NodeEntry::read(r.bytes(64)?)?;
        if let Some(top) = &top {
            top.height()?;
        }
        maps.push(top);
    }
    let known = digest_bytes == MAP_DIGEST_BYTES
        && compression == 0
        && layout.is_empty()
        && sector == SECTOR_BYTES;
    if !known
        || number == 0
        || !(1..=32).contains(&block_blocks)
        || !block_blocks.is_power_of_two()
        || maps.is_empty()
    {
        return Err(FormatError::Value);
    }
    Ok(VolumeEntry {
        number,
        name,
        size_bytes,
        block_blocks,
        digest,
        write_cache,
        thin: flags & 1 != 0,
        destroying: flags & 2 != 0,
        mapped_bytes,
        map_nodes,
        snapshot_of,
        clone_of,
        frontends,
        maps,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::node::{MOST_LEVELS, Place};

    /// A volume with an empty map.
    fn catalog() -> Catalog {
        Catalog {
            volumes: vec![VolumeEntry {
                number: 3,
                name: "data".into(),
                size_bytes: 1 << 30,
                block_blocks: 1,
                digest: 1,
                write_cache: 0,
                thin: true,
                destroying: false,
                mapped_bytes: 0,
                map_nodes: 0,
                snapshot_of: (0, 0),
                clone_of: 0,
                frontends: vec![("nbd".into(), "unix:/tmp/x".into())],
                maps: vec![None; 4],
            }],
            settings: vec![("spare".into(), "1".into())],
            tasks: vec![("reconstruct".into(), vec![1, 2, 3])],
        }
    }

    /// The top of a map's tree says how high the tree is.
    #[test]
    fn a_map_higher_than_any_can_be_is_refused() {
        let mut catalog = catalog();
        let mut with_height = |height| {
            let place = Place {
                segment: 9,
                block: 3,
            };
            let top = NodeEntry {
                place,
                merged: 0,
                digest: [1; 16],
                content: [2; 32],
            };
            catalog.volumes[0].maps[2] = Some(top.as_top(height));
            Catalog::decode(&catalog.encode())
        };
        let high = with_height(3).unwrap();
        assert_eq!(high.volumes[0].maps[2].unwrap().height(), Ok(3));
        assert!(with_height(MOST_LEVELS + 1).is_err());
    }

    #[test]
    fn a_catalog_survives_its_bytes_and_no_prefix_panics() {
        let catalog = catalog();
        let bytes = catalog.encode();
        assert_eq!(Catalog::decode(&bytes).unwrap(), catalog);
        for cut in 0..bytes.len() {
            assert!(Catalog::decode(&bytes[..cut]).is_err());
        }
    }
}
