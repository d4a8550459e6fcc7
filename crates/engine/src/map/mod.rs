//! The map's nodes in a shard: a cache over trees of 4 KiB nodes, changed in memory and written by
//! checkpoints.
//!
//! Invariants:
//! - A clean node in the cache is what the durable tree holds; a dirty one is kept until a checkpoint has
//!   given it a place. A node's bytes are used only if they match the digest in its parent.
//! - Node places change only in [`NodeStore::place`], which advances `epoch`: a read that was under way
//!   across it starts over, so an old node never enters the cache.
//! - A node that has a place stays in memory until its bytes are there ([`NodeStore::written`]).
//! - A tree is as high as its root says, whatever the volume's size; where it does not reach, nothing is mapped.

pub mod catalog;
pub mod delta;
mod height;
pub mod liveness;
mod place;
pub mod records;
pub mod system;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use ashlar_format::BLOCK;
use ashlar_format::node::{
    FANOUT, INNER_ENTRY, LEAF_ENTRIES, LEAF_ENTRY, LOST_INNER_ENTRY, LOST_LEAF_ENTRY, LeafEntry,
    NodeEntry, Place,
};
use ashlar_rt::{Buf, Slice};
use lru::LruCache;

use crate::segment::plan::Unit;
use crate::segment::read::{Lost, read_unit};
use crate::segment::table::Core;

use height::Tree;
pub use height::height_for;
pub use place::NodeWrite;

/// A node: tree, partition, level (0 is a leaf), index.
pub type Key = (u32, u16, u8, u64);

/// The trees of a shard's partitions.
pub struct NodeStore {
    core: Rc<Core>,
    trees: RefCell<BTreeMap<(u32, u16), Tree>>,
    dirty: RefCell<BTreeMap<Key, Buf>>,
    /// Nodes with a new place, which a checkpoint is still writing there.
    placed: RefCell<BTreeMap<Key, Slice>>,
    merged: RefCell<BTreeMap<Key, u64>>,
    /// Clean nodes above the leaves, which stay as long as they fit: each leads to many leaves.
    inner: RefCell<BTreeMap<Key, Slice>>,
    /// The other clean nodes: those that were used last.
    used: RefCell<LruCache<Key, Slice>>,
    budget_nodes: Cell<usize>,
    epoch: Cell<u64>,
}

impl std::fmt::Debug for NodeStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeStore")
            .field("dirty", &self.dirty.borrow().len())
            .finish_non_exhaustive()
    }
}

fn nodes_in(budget_bytes: u64) -> usize {
    usize::try_from(budget_bytes / BLOCK as u64)
        .unwrap_or(usize::MAX)
        .max(16)
}

/// How many nodes of a cache of `budget` nodes may be nodes above the leaves.
fn inner_nodes_in(budget: usize) -> usize {
    budget / 4 * 3
}

/// The leaves under node `index` of `level`.
fn leaves_under(level: u8, index: u64) -> Range<u64> {
    index << (6 * level)..(index + 1) << (6 * level)
}

/// The children of node `index` of `level`, above the leaves, that have some of these leaves under them.
fn children_above(level: u8, index: u64, leaves: &Range<u64>) -> impl Iterator<Item = u64> {
    let children = index * FANOUT as u64..(index + 1) * FANOUT as u64;
    children.filter(move |child| {
        let under = leaves_under(level - 1, *child);
        under.start < leaves.end && under.end > leaves.start
    })
}

fn inner_entry(bytes: &[u8], slot: usize) -> Result<Option<NodeEntry>, Lost> {
    NodeEntry::read(&bytes[slot * INNER_ENTRY..(slot + 1) * INNER_ENTRY]).map_err(|_| Lost)
}

impl NodeStore {
    /// A store whose clean nodes take at most `budget_bytes`.
    pub fn new(core: &Rc<Core>, budget_bytes: u64) -> NodeStore {
        NodeStore {
            core: core.clone(),
            trees: RefCell::default(),
            dirty: RefCell::default(),
            placed: RefCell::default(),
            merged: RefCell::default(),
            inner: RefCell::default(),
            used: RefCell::new(LruCache::unbounded()),
            budget_nodes: Cell::new(nodes_in(budget_bytes)),
            epoch: Cell::new(0),
        }
    }

    /// Clean nodes take at most `budget_bytes` from now on.
    pub fn set_budget(&self, budget_bytes: u64) {
        let budget = nodes_in(budget_bytes);
        self.budget_nodes.set(budget);
        if self.inner.borrow().len() > inner_nodes_in(budget) {
            self.inner.borrow_mut().clear();
        }
        self.keep_to_budget();
    }

    /// Forgets a tree and its nodes.
    pub fn remove_tree(&self, tree: u32) {
        self.trees.borrow_mut().retain(|key, _| key.0 != tree);
        self.dirty.borrow_mut().retain(|key, _| key.0 != tree);
        self.placed.borrow_mut().retain(|key, _| key.0 != tree);
        self.merged.borrow_mut().retain(|key, _| key.0 != tree);
        self.inner.borrow_mut().retain(|key, _| key.0 != tree);
        let mut used = self.used.borrow_mut();
        let of_tree: Vec<Key> = used
            .iter()
            .map(|(key, _)| *key)
            .filter(|k| k.0 == tree)
            .collect();
        of_tree.iter().for_each(|key| drop(used.pop(key)));
        drop(used);
        self.epoch.set(self.epoch.get() + 1);
    }

    /// Bytes of nodes in memory.
    pub fn cached_bytes(&self) -> u64 {
        let clean = self.inner.borrow().len() + self.used.borrow().len();
        let nodes = self.dirty.borrow().len() + self.placed.borrow().len() + clean;
        (nodes * BLOCK) as u64
    }

    fn with_cached<T>(&self, key: Key, look: impl FnOnce(&[u8]) -> T) -> Option<T> {
        if let Some(buf) = self.dirty.borrow().get(&key) {
            return Some(look(buf));
        }
        if let Some(slice) = self.placed.borrow().get(&key) {
            return Some(look(slice));
        }
        if key.2 > 0
            && let Some(slice) = self.inner.borrow().get(&key)
        {
            return Some(look(slice));
        }
        self.used.borrow_mut().get(&key).map(|slice| look(slice))
    }

    fn insert_clean(&self, key: Key, slice: Slice) {
        let budget = self.budget_nodes.get();
        let mut inner = self.inner.borrow_mut();
        if key.2 > 0 && (inner.len() < inner_nodes_in(budget) || inner.contains_key(&key)) {
            inner.insert(key, slice);
        } else {
            self.used.borrow_mut().put(key, slice);
        }
        drop(inner);
        self.keep_to_budget();
    }

    /// Lets go of the clean nodes that were not used for longest, as far as there are too many.
    fn keep_to_budget(&self) {
        let most = self
            .budget_nodes
            .get()
            .saturating_sub(self.inner.borrow().len());
        let mut used = self.used.borrow_mut();
        while used.len() > most {
            used.pop_lru();
        }
    }

    /// Brings a node into memory; false if there is none.
    pub async fn load(&self, key: Key) -> Result<bool, Lost> {
        loop {
            let epoch = self.epoch.get();
            let (tree, partition, level, index) = key;
            let Some(Tree { height, top, .. }) =
                self.trees.borrow().get(&(tree, partition)).copied()
            else {
                return Ok(false);
            };
            if level > height {
                return Ok(false);
            }
            // The nearest ancestor in memory tells where the next node down lies.
            let mut at = level;
            let mut entry = None;
            while at <= height {
                let node = (tree, partition, at, index >> (6 * (at - level)));
                if at == level {
                    if self.with_cached(node, |_| ()).is_some() {
                        return Ok(true);
                    }
                } else {
                    let slot = (index >> (6 * (at - 1 - level))) as usize % FANOUT;
                    if let Some(found) = self.with_cached(node, |bytes| inner_entry(bytes, slot)) {
                        entry = found?;
                        break;
                    }
                }
                at += 1;
            }
            if at > height {
                if index >> (6 * (height - level)) != 0 {
                    return Ok(false);
                }
                entry = top;
            }
            let Some(entry) = entry else { return Ok(false) };
            let node = (tree, partition, at - 1, index >> (6 * (at - 1 - level)));
            let bytes = self.read(node, &entry).await?;
            if self.epoch.get() == epoch && self.with_cached(node, |_| ()).is_none() {
                self.insert_clean(node, bytes);
            }
        }
    }

    async fn read(&self, key: Key, entry: &NodeEntry) -> Result<Slice, Lost> {
        let segment = self.core.segment(entry.place.segment).ok_or(Lost)?;
        if entry.place.block >= segment.geometry.data_blocks() {
            return Err(Lost);
        }
        let core = self.core.clone();
        let digest = entry.digest;
        let check = move |bytes: &[u8]| {
            core.identity.node_digest(key.0, key.1, key.2, key.3, bytes) == digest
        };
        Ok(read_unit(
            &self.core,
            &segment,
            Unit::one(entry.place.block),
            None,
            &check,
        )
        .await?
        .freeze())
    }

    /// The leaf entry at `slot` of leaf `index`.
    pub async fn leaf_entry(
        &self,
        tree: u32,
        partition: u16,
        index: u64,
        slot: usize,
    ) -> Result<Option<LeafEntry>, Lost> {
        let key = (tree, partition, 0, index);
        loop {
            if let Some(entry) = self.cached_leaf_entry(tree, partition, index, slot) {
                return entry;
            }
            if !self.load(key).await? {
                return Ok(None);
            }
        }
    }

    /// As [`NodeStore::leaf_entry`], if the leaf is in memory.
    pub fn cached_leaf_entry(
        &self,
        tree: u32,
        partition: u16,
        index: u64,
        slot: usize,
    ) -> Option<Result<Option<LeafEntry>, Lost>> {
        assert!(slot < LEAF_ENTRIES, "a leaf has {LEAF_ENTRIES} entries");
        self.with_cached((tree, partition, 0, index), |bytes| {
            LeafEntry::read(&bytes[slot * LEAF_ENTRY..(slot + 1) * LEAF_ENTRY]).map_err(|_| Lost)
        })
    }

    /// Which entries of a leaf are mapped, if that is known in memory: none where [`NodeStore::load`] found
    /// no leaf. `None` if an entry is lost.
    pub fn mapped_entries(&self, leaf: Key, there: bool) -> Option<[bool; LEAF_ENTRIES]> {
        let mut mapped = [false; LEAF_ENTRIES];
        if !there {
            return Some(mapped);
        }
        let all_known = self.with_cached(leaf, |bytes| {
            let mut entries = mapped.iter_mut().zip(bytes.chunks(LEAF_ENTRY));
            entries.all(|(mapped, entry)| {
                let entry = LeafEntry::read(entry);
                *mapped = matches!(entry, Ok(Some(_)));
                entry.is_ok()
            })
        });
        (all_known == Some(true)).then_some(mapped)
    }

    /// Changes a leaf in memory, with the sequence it is now merged to. The leaf is made if there was
    /// none. `change` must not wait; it runs on the leaf as it is then.
    pub async fn change_leaf<T>(
        &self,
        tree: u32,
        partition: u16,
        index: u64,
        merged: u64,
        change: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T, Lost> {
        let key = (tree, partition, 0, index);
        self.make_dirty(key, true).await?;
        let mut dirty = self.dirty.borrow_mut();
        let leaf = dirty.get_mut(&key).ok_or(Lost)?;
        self.merged.borrow_mut().insert(key, merged);
        Ok(change(leaf))
    }

    /// What the next checkpoint writes besides if those of these nodes that lie there are rewritten, which is how
    /// metadata is cleaned: these, and those above them. (Where nodes were lost, what lay below them may still count
    /// as live though it has been recreated elsewhere: to write that once more would gain nothing, for ever.)
    pub async fn path_of(&self, nodes: &[(Key, Place)]) -> BTreeSet<Key> {
        let mut path = BTreeSet::new();
        for (key, place) in nodes {
            let lies_there = |entry: NodeEntry| entry.place == *place;
            let there = self.entry(*key).await;
            if !there.is_ok_and(|entry| entry.is_some_and(lies_there)) {
                continue;
            }
            let (tree, partition, level, mut index) = *key;
            for level in level..=self.height(tree, partition) {
                let key = (tree, partition, level, index);
                if !self.dirty.borrow().contains_key(&key) {
                    path.insert(key);
                }
                index /= FANOUT as u64;
            }
        }
        path
    }

    /// What the node above says of one, if there is one.
    async fn entry(&self, key: Key) -> Result<Option<NodeEntry>, Lost> {
        let (tree, partition, level, index) = key;
        let Some(Tree { height, top, .. }) = self.trees.borrow().get(&(tree, partition)).copied()
        else {
            return Ok(None);
        };
        if level >= height {
            return Ok(top.filter(|_| (level, index) == (height, 0)));
        }
        let parent = (tree, partition, level + 1, index / FANOUT as u64);
        let slot = index as usize % FANOUT;
        loop {
            if let Some(found) = self.with_cached(parent, |bytes| inner_entry(bytes, slot)) {
                return found;
            }
            if !self.load(parent).await? {
                return Ok(None);
            }
        }
    }

    /// Takes a node into the changed set; with `create`, makes it if there is none. Whether it is there.
    pub(crate) async fn make_dirty(&self, key: Key, create: bool) -> Result<bool, Lost> {
        while !self.make_cached_dirty(key) {
            if !self.load(key).await? && !self.dirty.borrow().contains_key(&key) {
                let made = create && self.trees.borrow().contains_key(&(key.0, key.1));
                if made {
                    self.raise_for(key);
                    self.dirty.borrow_mut().insert(key, Buf::zeroed(BLOCK));
                }
                return Ok(made);
            }
        }
        Ok(true)
    }

    /// Takes a node into the changed set if it is in memory; whether it is.
    pub(crate) fn make_cached_dirty(&self, key: Key) -> bool {
        if self.dirty.borrow().contains_key(&key) {
            return true;
        }
        let Some(buf) = self.with_cached(key, Buf::copy_of) else {
            return false;
        };
        self.inner.borrow_mut().remove(&key);
        self.used.borrow_mut().pop(&key);
        self.dirty.borrow_mut().insert(key, buf);
        true
    }

    /// Whether a node is in memory.
    pub(crate) fn is_cached(&self, key: Key) -> bool {
        self.with_cached(key, |_| ()).is_some()
    }

    /// The nodes of one level that are these leaves or lie above them, without those that are changed already.
    pub(crate) fn unchanged_above(&self, leaves: &[(u32, u16, u64)], level: u8) -> BTreeSet<Key> {
        let dirty = self.dirty.borrow();
        let of_tree =
            |(tree, partition, _): &&(u32, u16, u64)| level <= self.height(*tree, *partition);
        let above = leaves.iter().filter(of_tree);
        let keys =
            above.map(|(tree, partition, leaf)| (*tree, *partition, level, leaf >> (6 * level)));
        keys.filter(|key| !dirty.contains_key(key)).collect()
    }

    /// Recreates, in memory, what cannot be read of a leaf and its path, with every entry marked lost.
    pub async fn give_up(&self, tree: u32, partition: u16, leaf: u64) {
        for level in (0..=self.height(tree, partition)).rev() {
            let key = (tree, partition, level, leaf >> (6 * level));
            if self.load(key).await.is_ok() {
                continue;
            }
            self.make_lost(key, 0..0);
        }
    }

    /// Recreates, in memory, the inner nodes above the leaves `range` that cannot be read. Their entries are
    /// marked lost, but for those all of whose leaves are within `covered`: nothing of them is wanted any
    /// more, and they are empty.
    pub async fn give_up_between(
        &self,
        tree: u32,
        partition: u16,
        range: Range<u64>,
        covered: Range<u64>,
    ) {
        let Some(Tree { height, .. }) = self.trees.borrow().get(&(tree, partition)).copied() else {
            return;
        };
        let mut nodes = vec![0];
        for level in (1..=height).rev() {
            let mut below = Vec::new();
            for index in nodes {
                let key = (tree, partition, level, index);
                if self.load(key).await.is_err() {
                    self.make_lost(key, covered.clone());
                }
                for child in children_above(level, index, &range) {
                    let slot = child as usize % FANOUT;
                    let entry = self.with_cached(key, |b| inner_entry(b, slot));
                    if !matches!(entry, None | Some(Ok(None))) {
                        below.push(child);
                    }
                }
            }
            nodes = below;
        }
    }

    /// Recreates a node that cannot be read: every entry is marked lost, or empty where all leaves under it
    /// are within `covered`.
    fn make_lost(&self, key: Key, covered: Range<u64>) {
        let (tree, partition, level, index) = key;
        let lost: &[u8] = match level {
            0 => &LOST_LEAF_ENTRY,
            _ => &LOST_INNER_ENTRY,
        };
        let mut node = Buf::zeroed(BLOCK);
        for (entry, slot) in node.chunks_mut(lost.len()).zip(0..) {
            let wanted = level == 0 || {
                let leaves = leaves_under(level - 1, index * FANOUT as u64 + slot);
                leaves.start < covered.start || leaves.end > covered.end
            };
            if wanted {
                entry.copy_from_slice(lost);
            }
        }
        self.dirty.borrow_mut().insert(key, node);
        self.core.events.note(
            "node-lost",
            None,
            format!("part of the map of volume number {tree} is lost (node {index}, level {level}, partition \
                {partition}) and was replaced so that writes go on: blocks below it are lost until they are \
                written again; restore them from a backup"),
        );
    }

    /// Gives up what cannot be read above dirty leaves.
    pub async fn give_up_above(&self) {
        let dirty: Vec<Key> = self.dirty.borrow().keys().copied().collect();
        for (tree, partition, level, index) in dirty {
            if level == 0 {
                self.give_up(tree, partition, index).await;
            }
        }
    }

    /// Indexes of the leaves that exist in `first..end`, ascending; absent subtrees cost nothing.
    pub async fn leaves_in(
        &self,
        tree: u32,
        partition: u16,
        first: u64,
        end: u64,
    ) -> Result<Vec<u64>, Lost> {
        let Some(Tree { height, .. }) = self.trees.borrow().get(&(tree, partition)).copied() else {
            return Ok(Vec::new());
        };
        let mut nodes = vec![0u64];
        for level in (0..height).rev() {
            let mut below = Vec::new();
            for index in nodes {
                let key = (tree, partition, level + 1, index);
                let loaded = self.load(key).await?;
                for child in children_above(level + 1, index, &(first..end)) {
                    // One that is lost is there: whoever wants it finds out.
                    let slot = child as usize % FANOUT;
                    let entry = self.with_cached(key, |b| inner_entry(b, slot));
                    let there = loaded && !matches!(entry, None | Some(Ok(None)));
                    let dirty = || self.has_dirty_below(tree, partition, level, child);
                    if there || dirty() {
                        below.push(child);
                    }
                }
            }
            nodes = below;
        }
        if height == 0 && self.load((tree, partition, 0, 0)).await == Ok(false) {
            nodes.clear();
        }
        Ok(nodes
            .into_iter()
            .filter(|leaf| (first..end).contains(leaf))
            .collect())
    }

    fn has_dirty_below(&self, tree: u32, partition: u16, level: u8, index: u64) -> bool {
        self.dirty.borrow().keys().any(|k| {
            k.0 == tree && k.1 == partition && k.2 <= level && k.3 >> (6 * (level - k.2)) == index
        })
    }
}

#[cfg(test)]
mod tests;
