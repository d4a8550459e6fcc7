//! Walking trees from their roots: every node is read, proven by its parent, and noted as used.
//!
//! **Invariants**: a node that does not match the digest in its parent is never looked into; what a place is
//! used for is noted whether or not the bytes there are good.

use crate::array::{Array, Segment};
use crate::digest::NodeAt;
use crate::node::{Inner, Leaf, Place, Slot};
use crate::report::{At, Kind, Report};
use crate::root::Top;
use crate::slots::Owner;
use crate::strips::{RowCache, Unit};
use crate::wire::BLOCK;

/// Entries of an inner node.
const FANOUT: u64 = 64;
/// Entries of a leaf.
const LEAF_ENTRIES: u64 = 128;
/// The most levels that a tree can have above its leaves: 64^10 is beyond any address.
const MOST_LEVELS: u8 = 10;

/// How many levels a tree has above its leaves, by the entry of its top.
pub(crate) fn height(top: &Inner) -> Option<u8> {
    let level = u8::try_from(top.merged).ok()?;
    (level <= MOST_LEVELS).then_some(level)
}

/// A walk through one array.
pub(crate) struct Walk<'w, 'a> {
    pub(crate) array: &'w mut Array<'a>,
    pub(crate) rows: &'w RowCache,
    pub(crate) report: &'w mut Report,
    /// Entries were marked lost: what only they named may live on.
    pub(crate) lost_entries: bool,
    /// If set, volume blocks are listed here and not read.
    pub(crate) placed: Option<&'w mut Vec<Placed>>,
}

/// Where a volume block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Placed {
    pub(crate) volume_block: u64,
    pub(crate) place: Place,
}

/// What the map of a partition has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mapped {
    /// Volume blocks.
    pub(crate) blocks: u64,
    /// Nodes.
    pub(crate) nodes: u64,
}

/// A volume as its map needs it.
#[derive(Clone, Debug)]
pub(crate) struct Volume {
    pub(crate) number: u32,
    /// Volume blocks.
    pub(crate) blocks: u64,
    /// Blocks a volume block.
    pub(crate) pieces: u32,
    pub(crate) partitions: u64,
}

impl Volume {
    fn tile(&self) -> u64 {
        let pieces = u64::from(self.pieces.max(1));
        (256 / pieces).max(128).next_multiple_of(128)
    }

    /// The volume block of an entry.
    fn address(&self, partition: u16, leaf: u64, entry: u64) -> Option<u64> {
        let leaves = self.tile() / 128;
        let tile = (leaf / leaves)
            .checked_mul(self.partitions)?
            .checked_add(u64::from(partition))?;
        tile.checked_mul(self.tile())?
            .checked_add(leaf % leaves * 128 + entry)
    }
}

/// What a block is, mixed with where it lies, so that sums over a segment can be compared.
pub(crate) fn mark(block: u32, owner: Owner, digest: Option<[u8; 16]>) -> u64 {
    let mut bytes = [0; 36];
    bytes[..4].copy_from_slice(&block.to_le_bytes());
    bytes[4..20].copy_from_slice(&owner.bytes());
    bytes[20..].copy_from_slice(&digest.unwrap_or_default());
    xxhash_rust::xxh3::xxh3_64(&bytes)
}

impl<'w, 'a> Walk<'w, 'a> {
    pub(crate) fn new(
        array: &'w mut Array<'a>,
        rows: &'w RowCache,
        report: &'w mut Report,
    ) -> Walk<'w, 'a> {
        Walk {
            array,
            rows,
            report,
            lost_entries: false,
            placed: None,
        }
    }

    /// The segment of a place, if there is such a block in it.
    fn segment(&self, place: Place, count: u32) -> Option<&Segment> {
        let segment = self.array.segments.get(&place.segment)?;
        let end = place.block.checked_add(count)?;
        (end <= segment.shape.data_blocks()).then_some(segment)
    }

    /// Notes that a block is pointed to.
    fn note(&mut self, place: Place, owner: Owner, digest: Option<[u8; 16]>) {
        let Some(segment) = self.array.segments.get_mut(&place.segment) else {
            return;
        };
        let new = segment.used.set(place.block);
        segment.owners = segment
            .owners
            .wrapping_add(mark(place.block, owner, digest));
        if !new {
            let found = self.report.find(Kind::DoubleUse).segment(place.segment);
            found.at(At::Block(place.block));
        }
    }

    /// Reads a node; `lost` is the finding if it cannot be had.
    fn node(&mut self, at: NodeAt, entry: &Inner, lost: Kind) -> Option<Vec<u8>> {
        let place = entry.place;
        let Some(segment) = self.segment(place, 1) else {
            self.report.find(Kind::OutOfRange).at(At::Node(at));
            self.report.find(lost).at(At::Node(at));
            return None;
        };
        if !Array::holds_nodes(segment) {
            let found = self.report.find(Kind::EntryWrong).segment(place.segment);
            found.at(At::Node(at));
        }
        let segment = self.array.segments.get(&place.segment)?;
        let check = |bytes: &[u8]| self.array.key.node(at, bytes) == Some(entry.digest);
        let (unit, bytes) = self
            .array
            .read_unit(self.rows, segment, (place.block, 1), &check);
        let owner = Owner {
            tree: at.tree,
            kind: at.level.saturating_add(1),
            tag: 0,
            piece: 0,
            pieces_less_one: 0,
            address: u64::from(at.partition) << 48 | at.index & 0xFFFF_FFFF_FFFF,
        };
        self.note(place, owner, Some(entry.digest));
        self.count(unit);
        if unit == Unit::Lost {
            let found = self.report.find(lost).segment(place.segment);
            found.at(At::Node(at));
            return None;
        }
        self.report.counts.nodes += 1;
        Some(bytes)
    }

    fn count(&mut self, unit: Unit) {
        self.report.counts.healed += u64::from(unit == Unit::Decoded);
    }

    /// The entries below an inner node.
    fn below(&mut self, at: NodeAt, bytes: &[u8]) -> Vec<(NodeAt, Inner)> {
        let mut below = Vec::new();
        for (slot, bytes) in (0u64..).zip(bytes.chunks_exact(64)) {
            let child = NodeAt {
                level: at.level.saturating_sub(1),
                index: at.index.wrapping_mul(FANOUT).wrapping_add(slot),
                ..at
            };
            match Inner::parse(bytes) {
                Slot::Empty => {}
                Slot::Lost => {
                    self.lost_entries = true;
                    self.report.find(Kind::EntryLost).at(At::Node(child));
                }
                Slot::Malformed => {
                    self.report.find(Kind::Malformed).at(At::Node(child));
                }
                Slot::Entry(entry) => below.push((child, entry)),
            }
        }
        below
    }

    /// The leaves of tree 1 or 2, by number; `None` if one of its nodes cannot be had.
    pub(crate) fn system(
        &mut self,
        tree: u32,
        top: Top,
        lost: Kind,
    ) -> Option<std::collections::BTreeMap<u64, Vec<u8>>> {
        let mut leaves = std::collections::BTreeMap::new();
        let entry = match top.entry {
            Slot::Empty => return Some(leaves),
            Slot::Entry(entry) => entry,
            Slot::Lost | Slot::Malformed => {
                self.report.find(lost);
                return None;
            }
        };
        let Some(level) = height(&entry) else {
            self.report.find(lost);
            return None;
        };
        let at = NodeAt {
            tree,
            partition: 0,
            level,
            index: 0,
        };
        let mut todo = vec![(at, entry)];
        while let Some((at, entry)) = todo.pop() {
            let bytes = self.node(at, &entry, lost)?;
            if at.level == 0 {
                leaves.insert(at.index, bytes);
            } else {
                todo.extend(self.below(at, &bytes));
            }
        }
        Some(leaves)
    }

    /// Walks the map of one partition.
    pub(crate) fn map(&mut self, volume: &Volume, partition: u16, top: &Slot<Inner>) -> Mapped {
        let mut mapped = Mapped::default();
        let level = match top {
            Slot::Entry(entry) => height(entry),
            _ => Some(0),
        };
        let at = NodeAt {
            tree: volume.number,
            partition,
            level: level.unwrap_or_default(),
            index: 0,
        };
        let mut todo = match top {
            Slot::Empty => return mapped,
            Slot::Entry(entry) if level.is_some() => vec![(at, *entry)],
            Slot::Lost => {
                self.lost_entries = true;
                self.report.find(Kind::EntryLost).at(At::Node(at));
                return mapped;
            }
            Slot::Malformed | Slot::Entry(_) => {
                self.report.find(Kind::Malformed).at(At::Node(at));
                return mapped;
            }
        };
        while let Some((at, entry)) = todo.pop() {
            let Some(bytes) = self.node(at, &entry, Kind::NodeLost) else {
                self.lost_entries = true; // nobody knows what it points to
                continue;
            };
            mapped.nodes += 1;
            let step = if at.level == 0 { 32 } else { 64 };
            let parts = bytes.chunks_exact(step).map(|entry| &entry[step / 2..]);
            if self.array.key.content(at, parts) != Some(entry.content) {
                self.report.find(Kind::ContentRoot).at(At::Node(at));
            }
            if at.level > 0 {
                todo.extend(self.below(at, &bytes));
            } else {
                mapped.blocks += self.leaf(volume, at, &bytes);
            }
        }
        mapped
    }

    fn leaf(&mut self, volume: &Volume, at: NodeAt, bytes: &[u8]) -> u64 {
        let mut mapped = 0;
        for (number, bytes) in (0..LEAF_ENTRIES).zip(bytes.chunks_exact(32)) {
            let slot = Leaf::parse(bytes);
            if slot == Slot::Empty {
                continue;
            }
            let address = volume.address(at.partition, at.index, number);
            let Some(block) = address.filter(|a| *a < volume.blocks) else {
                self.report.find(Kind::BeyondVolume).at(At::Node(at));
                continue;
            };
            let here = At::Volume {
                volume: volume.number,
                block,
            };
            match slot {
                Slot::Empty => {}
                Slot::Lost => {
                    self.lost_entries = true;
                    self.report.find(Kind::EntryLost).at(here);
                }
                Slot::Malformed => {
                    self.report.find(Kind::Malformed).at(here);
                }
                Slot::Entry(entry) => {
                    mapped += 1;
                    self.block(volume, block, &entry);
                }
            }
        }
        mapped
    }

    /// A volume block: its entry, its bytes.
    fn block(&mut self, volume: &Volume, block: u64, entry: &Leaf) {
        let (place, count) = (entry.place, entry.blocks);
        let here = At::Volume {
            volume: volume.number,
            block,
        };
        let Some(segment) = self.segment(place, count.max(1)) else {
            self.report.find(Kind::OutOfRange).at(here);
            self.report.find(Kind::BlockLost).at(here);
            return;
        };
        let (shape, holds_nodes) = (segment.shape, Array::holds_nodes(segment));
        if let Some(placed) = &mut self.placed {
            placed.push(Placed {
                volume_block: block,
                place,
            });
            return;
        }
        let last = place.block + count.max(1) - 1;
        let wrong = count != volume.pieces
            || entry.birth > self.array.root.checkpoint
            || holds_nodes
            || shape.locate(place.block).0 != shape.locate(last).0;
        if wrong {
            let found = self.report.find(Kind::EntryWrong).segment(place.segment);
            found.at(here);
        }
        let segment = &self.array.segments[&place.segment];
        let check = |bytes: &[u8]| {
            let digest = self.array.key.block(entry.tag, volume.number, block, bytes);
            digest == Some(entry.digest)
        };
        let unit = (place.block, count);
        let (unit, _) = self.array.read_unit(self.rows, segment, unit, &check);
        self.count(unit);
        if unit == Unit::Lost {
            let found = self.report.find(Kind::BlockLost).segment(place.segment);
            found.at(here);
        } else {
            self.report.counts.volume_blocks += 1;
        }
        let last = u8::try_from(count - 1).unwrap_or(u8::MAX);
        for piece in 0..count {
            let owner = Owner {
                tree: volume.number,
                kind: 0,
                tag: entry.tag,
                piece: u8::try_from(piece).unwrap_or(u8::MAX),
                pieces_less_one: last,
                address: block,
            };
            let at = Place {
                block: place.block + piece,
                ..place
            };
            self.note(at, owner, (count == 1).then_some(entry.digest));
        }
    }
}

/// The byte string in the leaves of a tree: leaves that are not there are zeros.
pub(crate) fn string(leaves: &std::collections::BTreeMap<u64, Vec<u8>>, bytes: u64) -> Vec<u8> {
    let most = leaves.last_key_value().map_or(0, |(last, _)| last + 1);
    let mut string = Vec::new();
    for leaf in 0..most.min(bytes.div_ceil(BLOCK as u64)) {
        match leaves.get(&leaf) {
            Some(bytes) => string.extend_from_slice(bytes),
            None => string.resize(string.len() + BLOCK, 0),
        }
    }
    string.truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
    string
}
