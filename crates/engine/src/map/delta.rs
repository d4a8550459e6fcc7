//! Deltas: map changes that are in memory (and in the journal) but not yet in the map.
//!
//! Invariants:
//! - The versions of a block are kept in the order of their stamps; the last is what a read sees.
//! - Versions lie together by leaf of the map, as they are merged: a leaf is held exactly if a version of it is.
//! - Once a version is durable as place or unmapped range (`Recorded`), older ones are gone.
//! - A version holds its segment, so the segment's slots stay as long as the delta needs them.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use ashlar_format::node::{LEAF_ENTRIES, Place};

use crate::segment::Pinned;
use crate::segment::stream::OpenStripe;

/// Bytes of memory that a delta counts for: a version, and its part of the lists and the tree that hold it.
pub const DELTA_BYTES: usize = 200;

const _: () = assert!(size_of::<Version>() <= DELTA_BYTES);

/// How far a version has come.
#[derive(Debug, Clone)]
pub enum State {
    /// In a stripe that is open or being written: its bytes are in memory.
    Open(Rc<OpenStripe>),
    /// Named by the durable journal record of this sequence (or a later one of its group commit).
    Recorded(u64),
}

/// What a version says.
#[derive(Debug, Clone)]
pub enum What {
    /// Unmapped.
    Unmapped,
    /// Mapped.
    Block {
        /// The segment.
        segment: Pinned,
        /// First data block in it.
        block: u32,
        /// Digest for the map.
        digest: [u8; 16],
        /// Digest algorithm.
        algorithm: u8,
        /// The checkpoint it is born under.
        birth: u64,
        /// If it moves a block: where from. It holds only if the map still says so.
        from: Option<Place>,
    },
}

/// One version of a volume block.
#[derive(Debug, Clone)]
pub struct Version {
    /// Its place in the order of all changes of this shard.
    pub stamp: u64,
    /// What it says.
    pub what: What,
    /// How far it has come.
    pub state: State,
    /// Whether a durable data record holds its bytes.
    pub journaled: bool,
}

/// Which of a volume's blocks belong to a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Blocks a tile.
    pub tile: u64,
    /// Partitions of the volume.
    pub partitions: u16,
    /// Partitions p with p modulo `of` equal to `rest`.
    pub of: u16,
    /// See `of`.
    pub rest: u16,
}

impl Part {
    fn has(&self, address: u64) -> bool {
        address / self.tile % u64::from(self.partitions) % u64::from(self.of)
            == u64::from(self.rest)
    }
}

/// A run of volume blocks unmapped by one TRIM.
#[derive(Debug, Clone, Copy)]
pub struct UnmappedRange {
    /// The volume.
    pub tree: u32,
    /// First volume block.
    pub first: u64,
    /// How many.
    pub count: u64,
    /// Only blocks of some partitions: tile, partitions, and the modulus and rest of their numbers.
    pub part: Part,
    /// Its place in the order of changes.
    pub stamp: u64,
    /// The journal sequence that made it durable.
    pub recorded: Option<u64>,
}

impl UnmappedRange {
    /// Whether it unmaps a block.
    pub fn covers(&self, tree: u32, address: u64) -> bool {
        self.tree == tree
            && address >= self.first
            && address - self.first < self.count
            && self.part.has(address)
    }
}

/// A version, and of which block.
#[derive(Debug)]
struct Held {
    address: u64,
    version: Version,
}

/// Versions of the blocks of one leaf, in the order of addresses, and of stamps for each.
type OfLeaf = VecDeque<Held>;

/// The leaf of a block: tiles are whole leaves, so the blocks of a leaf follow each other.
fn leaf_of(address: u64) -> u64 {
    address / LEAF_ENTRIES as u64
}

/// Where the versions of a block are in its leaf.
fn place_in(leaf: &OfLeaf, address: u64) -> Range<usize> {
    let start = leaf.partition_point(|held| held.address < address);
    let versions = leaf.range(start..);
    start..start + versions.take_while(|held| held.address == address).count()
}

/// The deltas of one shard.
#[derive(Debug, Default)]
pub struct Deltas {
    /// By volume and leaf.
    held: BTreeMap<(u32, u64), OfLeaf>,
    /// Unmapped ranges, in the order of their stamps.
    pub unmapped: Vec<UnmappedRange>,
    count: usize,
    /// How many leaves are held, by volume.
    leaves: BTreeMap<u32, usize>,
}

/// What the deltas say of a block.
#[derive(Debug, Clone)]
pub enum Lookup {
    /// Nothing: the map decides.
    Unknown,
    /// Unmapped.
    Unmapped(u64),
    /// This version.
    Version(Version),
}

impl Lookup {
    /// The stamp of what was found; 0 if nothing.
    pub fn stamp(&self) -> u64 {
        match self {
            Lookup::Unknown => 0,
            Lookup::Unmapped(stamp) => *stamp,
            Lookup::Version(version) => version.stamp,
        }
    }
}

impl Deltas {
    /// Versions held.
    pub fn len(&self) -> usize {
        self.count + self.unmapped.len()
    }

    /// Leaves of maps that versions held here are of, by volume.
    pub fn leaves(&self) -> impl Iterator<Item = (u32, usize)> + '_ {
        self.leaves.iter().map(|(tree, leaves)| (*tree, *leaves))
    }

    /// The versions of a block.
    fn of_block(&self, tree: u32, address: u64) -> impl DoubleEndedIterator<Item = &Version> {
        let leaf = self.held.get(&(tree, leaf_of(address)));
        let versions = leaf.map(|leaf| leaf.range(place_in(leaf, address)));
        versions.into_iter().flatten().map(|held| &held.version)
    }

    /// The versions of a volume's blocks from `first` up to `end`.
    fn of_blocks(&self, tree: u32, first: u64, end: u64) -> impl Iterator<Item = &Held> {
        let leaves = (tree, leaf_of(first))..=(tree, leaf_of(end.max(first)));
        let of_leaf = move |leaf: &'_ OfLeaf| {
            let at = |address| leaf.partition_point(|held| held.address < address);
            at(first)..at(end)
        };
        let all = self.held.range(leaves);
        all.flat_map(move |(_, leaf)| leaf.range(of_leaf(leaf)))
    }

    /// Changes the versions of a block that are held: those stay that `stays` says.
    fn retain(&mut self, tree: u32, address: u64, mut stays: impl FnMut(&mut Version) -> bool) {
        let key = (tree, leaf_of(address));
        let Some(leaf) = self.held.get_mut(&key) else {
            return;
        };
        let place = place_in(leaf, address);
        let mut at = place.start;
        for _ in place {
            if stays(&mut leaf[at].version) {
                at += 1;
            } else {
                leaf.remove(at);
                self.count -= 1;
            }
        }
        if leaf.is_empty() {
            self.forget(key);
        }
    }

    /// Nothing is held of a leaf any more.
    fn forget(&mut self, key: (u32, u64)) {
        if self.held.remove(&key).is_some() {
            let leaves = self.leaves.get_mut(&key.0).expect("it has this one");
            *leaves -= 1;
            if *leaves == 0 {
                self.leaves.remove(&key.0);
            }
        }
    }

    /// The blocks of a volume that more is held of than that they were moved.
    pub fn written_of(&self, tree: u32) -> impl Iterator<Item = u64> {
        let moved = |v: &Version| matches!(&v.what, What::Block { from: Some(_), .. });
        let all = self.of_blocks(tree, 0, u64::MAX);
        let written = all.filter(move |held| !moved(&held.version));
        let mut last = None;
        let blocks = written.map(|held| held.address);
        blocks.filter(move |address| last.replace(*address) != Some(*address))
    }

    /// The blocks from `first` up to `end` for which [`Deltas::take_recorded`] may have something, in order.
    pub fn recorded_in(&self, tree: u32, first: u64, end: u64) -> Vec<u64> {
        let unmapped = |h: &UnmappedRange| h.tree == tree && h.recorded.is_some();
        if self.unmapped.iter().any(unmapped) {
            return (first..end).collect();
        }
        let held = self.of_blocks(tree, first, end);
        let mut blocks: Vec<u64> = held.map(|held| held.address).collect();
        blocks.dedup();
        blocks
    }

    /// The newest of what is known of a block.
    pub fn lookup(&self, tree: u32, address: u64) -> Lookup {
        let version = self.of_block(tree, address).next_back();
        let unmapped = self.unmapped_stamp(tree, address, false);
        match version {
            Some(version) if version.stamp > unmapped => match version.what {
                What::Unmapped => Lookup::Unmapped(version.stamp),
                What::Block { .. } => Lookup::Version(version.clone()),
            },
            _ if unmapped > 0 => Lookup::Unmapped(unmapped),
            _ => Lookup::Unknown,
        }
    }

    /// Whether nothing is known of a volume's blocks from `first` up to `end`: the map decides for all.
    pub fn none_in(&self, tree: u32, first: u64, end: u64) -> bool {
        let of_unmapped = |h: &UnmappedRange| {
            h.tree == tree && h.first < end && first < h.first.saturating_add(h.count)
        };
        let mut versions = self.of_blocks(tree, first, end);
        versions.next().is_none() && !self.unmapped.iter().any(of_unmapped)
    }

    /// The newest stamp of an unmapped range over a block; 0 if there is none.
    fn unmapped_stamp(&self, tree: u32, address: u64, recorded_only: bool) -> u64 {
        self.unmapped
            .iter()
            .filter(|h| h.covers(tree, address) && (!recorded_only || h.recorded.is_some()))
            .map(|h| h.stamp)
            .max()
            .unwrap_or(0)
    }

    /// Adds a version, newer than all of its block.
    pub fn push(&mut self, tree: u32, address: u64, version: Version) {
        let leaf = self.held.entry((tree, leaf_of(address)));
        let leaf = leaf.or_insert_with(|| {
            *self.leaves.entry(tree).or_insert(0) += 1;
            OfLeaf::with_capacity(1) // most, where writes are scattered
        });
        let place = place_in(leaf, address);
        let newest = place.clone().next_back().map(|at| leaf[at].version.stamp);
        assert!(
            newest.is_none_or(|stamp| stamp < version.stamp),
            "stamps only grow"
        );
        leaf.insert(place.end, Held { address, version });
        self.count += 1;
    }

    /// The version of a block with this stamp.
    pub fn get(&self, tree: u32, address: u64, stamp: u64) -> Option<&Version> {
        self.of_block(tree, address).find(|v| v.stamp == stamp)
    }

    /// The newest stamp of a block that is durable in some form: recorded, or held by a data record.
    pub fn durable_stamp(&self, tree: u32, address: u64) -> u64 {
        let durable = |v: &&Version| v.journaled || matches!(v.state, State::Recorded(_));
        let versions = self.of_block(tree, address).filter(durable);
        let of_versions = versions.map(|v| v.stamp).max().unwrap_or(0);
        of_versions.max(self.unmapped_stamp(tree, address, true))
    }

    /// Notes that a data record holds a version.
    pub fn journaled(&mut self, tree: u32, address: u64, stamp: u64) {
        self.retain(tree, address, |version| {
            version.journaled |= version.stamp == stamp;
            true
        });
    }

    /// Notes that a version is durable as what it says; drops what it replaces. A version that is no
    /// longer here was replaced by a durable newer one.
    pub fn recorded(&mut self, tree: u32, address: u64, stamp: u64, sequence: u64) {
        if self.get(tree, address, stamp).is_some() {
            self.retain(tree, address, |version| {
                if version.stamp == stamp {
                    version.state = State::Recorded(sequence);
                }
                version.stamp >= stamp
            });
        }
    }

    /// Drops versions that a durable unmapped range covers.
    fn drop_below(&mut self, unmapped: UnmappedRange) {
        let end = unmapped.first.saturating_add(unmapped.count);
        let held = self.of_blocks(unmapped.tree, unmapped.first, end);
        let below = held.filter(|held| held.version.stamp <= unmapped.stamp);
        let blocks: Vec<u64> = below.map(|held| held.address).collect();
        for address in blocks {
            if unmapped.covers(unmapped.tree, address) {
                self.retain(unmapped.tree, address, |version| {
                    version.stamp > unmapped.stamp
                });
            }
        }
    }

    /// Notes that an unmapped range is durable.
    pub fn unmapped_recorded(&mut self, stamp: u64, sequence: u64) {
        let mut found = None;
        for unmapped in &mut self.unmapped {
            if unmapped.stamp == stamp {
                unmapped.recorded = Some(sequence);
                found = Some(*unmapped);
            }
        }
        if let Some(unmapped) = found {
            self.drop_below(unmapped);
        }
    }

    /// The oldest sequence that what is recorded here hangs on.
    pub fn oldest(&self) -> Option<u64> {
        let recorded = self.recorded_blocks().map(|(_, sequence)| sequence);
        recorded
            .chain(self.unmapped.iter().filter_map(|h| h.recorded))
            .min()
    }

    /// Blocks with something recorded, in address order, with the sequence.
    pub fn recorded_blocks(&self) -> impl Iterator<Item = ((u32, u64), u64)> + '_ {
        let held = self.held.iter();
        let all = held.flat_map(|((tree, _), leaf)| leaf.iter().map(|held| (*tree, held)));
        all.filter_map(|(tree, held)| match held.version.state {
            State::Recorded(sequence) => Some(((tree, held.address), sequence)),
            State::Open(_) => None,
        })
    }

    /// Takes what is recorded of a block, to be merged: the version unless a durable unmapped range is
    /// newer. `Some(None)` is an unmapped range.
    pub fn take_recorded(&mut self, tree: u32, address: u64) -> Option<What> {
        let unmapped = self.unmapped_stamp(tree, address, true);
        let (mut taken, mut found) = (None, false);
        self.retain(tree, address, |version| {
            if found || !matches!(version.state, State::Recorded(_)) {
                return true;
            }
            found = true;
            if version.stamp > unmapped {
                taken = Some(version.what.clone());
            }
            // While an older unmapped range still covers the block, its version must stay to be seen;
            // merging it again changes nothing.
            unmapped > 0 && version.stamp > unmapped
        });
        if taken.is_none() && unmapped > 0 {
            Some(What::Unmapped)
        } else {
            taken
        }
    }

    /// In replay: what a move becomes when the block's newest delta lies where it moves from.
    pub fn moved_onto(&self, tree: u32, address: u64, moved: &What) -> Option<What> {
        let What::Block {
            segment,
            block,
            from: Some(from),
            ..
        } = moved
        else {
            return None;
        };
        let Lookup::Version(Version {
            what:
                What::Block {
                    segment: at,
                    block: at_block,
                    digest,
                    algorithm,
                    birth,
                    ..
                },
            ..
        }) = self.lookup(tree, address)
        else {
            return None;
        };
        (at.place(at_block) == *from).then(|| What::Block {
            segment: segment.clone(),
            block: *block,
            digest,
            algorithm,
            birth,
            from: None,
        })
    }

    /// Drops one version: a move that could not be written, or merged.
    pub fn remove(&mut self, tree: u32, address: u64, stamp: u64) {
        self.retain(tree, address, |version| version.stamp != stamp);
    }

    /// Drops what is recorded of the moves of these blocks: they stay where the map says.
    pub fn drop_moves(&mut self, tree: u32, blocks: Range<u64>) {
        let is_move = |v: &Version| {
            let moves = matches!(v.what, What::Block { from: Some(_), .. });
            moves && matches!(v.state, State::Recorded(_))
        };
        let held = self.of_blocks(tree, blocks.start, blocks.end);
        let moves = held.filter(|held| is_move(&held.version));
        let moves: Vec<(u64, u64)> = moves.map(|h| (h.address, h.version.stamp)).collect();
        for (address, stamp) in moves {
            self.remove(tree, address, stamp);
        }
    }

    /// Drops everything of a volume that is gone.
    pub fn forget_tree(&mut self, tree: u32) {
        let held = self.held.range((tree, 0)..=(tree, u64::MAX));
        let keys: Vec<(u32, u64)> = held.map(|(key, _)| *key).collect();
        for key in keys {
            self.count -= self.held[&key].len();
            self.forget(key);
        }
        self.unmapped.retain(|h| h.tree != tree);
    }

    /// The newest sequence of anything recorded here: what a leaf that takes all of it is merged to.
    pub fn newest_recorded(&self) -> u64 {
        let of_unmapped = self
            .unmapped
            .iter()
            .filter_map(|h| h.recorded)
            .max()
            .unwrap_or(0);
        self.recorded_blocks()
            .map(|(_, sequence)| sequence)
            .max()
            .unwrap_or(0)
            .max(of_unmapped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unmapped(stamp: u64) -> Version {
        Version {
            stamp,
            what: What::Unmapped,
            state: State::Recorded(stamp),
            journaled: false,
        }
    }

    #[test]
    fn a_block_written_after_a_trim_is_seen_until_the_trim_is_merged_everywhere() {
        let mut deltas = Deltas::default();
        let part = Part {
            tile: 256,
            partitions: 4,
            of: 1,
            rest: 0,
        };
        deltas.unmapped.push(UnmappedRange {
            tree: 1,
            first: 0,
            count: 1000,
            part,
            stamp: 1,
            recorded: Some(10),
        });
        deltas.push(1, 5, unmapped(2)); // stands for any newer version
        assert!(deltas.take_recorded(1, 5).is_some());
        assert_eq!(
            deltas.lookup(1, 5).stamp(),
            2,
            "the fold must not uncover the older trim"
        );
        deltas.unmapped.clear();
        assert!(deltas.take_recorded(1, 5).is_some());
        assert_eq!(deltas.lookup(1, 5).stamp(), 0);
    }

    #[test]
    fn a_newer_unmapped_range_wins_and_an_older_one_does_not() {
        let mut deltas = Deltas::default();
        deltas.push(1, 5, unmapped(3));
        let part = Part {
            tile: 256,
            partitions: 4,
            of: 1,
            rest: 0,
        };
        deltas.unmapped.push(UnmappedRange {
            tree: 1,
            first: 0,
            count: 10,
            part,
            stamp: 7,
            recorded: None,
        });
        assert_eq!(deltas.lookup(1, 5).stamp(), 7);
        assert_eq!(deltas.lookup(1, 9).stamp(), 7);
        assert_eq!(deltas.lookup(1, 10).stamp(), 0);
        assert_eq!(deltas.durable_stamp(1, 5), 3);
        deltas.unmapped_recorded(7, 40);
        assert_eq!(deltas.durable_stamp(1, 5), 7);
        assert_eq!(deltas.len(), 1);
        assert_eq!(deltas.oldest(), Some(40));
    }

    #[test]
    fn leaves_are_counted_once() {
        let mut deltas = Deltas::default();
        let mut stamp = 0;
        let mut push = |deltas: &mut Deltas, tree, address| {
            stamp += 1;
            deltas.push(tree, address, unmapped(stamp));
            stamp
        };
        let leaves = |deltas: &Deltas| deltas.leaves().map(|(_, leaves)| leaves).sum::<usize>();
        let first = push(&mut deltas, 1, 0);
        push(&mut deltas, 1, 127);
        push(&mut deltas, 1, 127);
        assert_eq!(leaves(&deltas), 1);
        let next = push(&mut deltas, 1, 128);
        push(&mut deltas, 2, 128);
        assert_eq!(leaves(&deltas), 3);
        deltas.remove(1, 0, first);
        assert_eq!(leaves(&deltas), 3, "127 is left");
        deltas.remove(1, 128, next);
        assert_eq!(leaves(&deltas), 2);
        assert!(deltas.take_recorded(1, 127).is_some());
        assert_eq!(leaves(&deltas), 2, "a newer version is left");
        assert!(deltas.take_recorded(1, 127).is_some());
        assert_eq!(leaves(&deltas), 1);
        deltas.forget_tree(2);
        assert_eq!((leaves(&deltas), deltas.len()), (0, 0));
    }
}
