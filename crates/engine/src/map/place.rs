//! The dirty nodes that a checkpoint takes from the trees of a shard, and their places.
//!
//! Invariant: from [`NodeStore::close_dirty`] to the end of [`NodeStore::place`] every ancestor of a dirty node is
//! dirty too; nothing waits within `place`, so no reader sees half of it.

use std::collections::BTreeMap;

use ashlar_format::DigestContext;
use ashlar_format::node::{FANOUT, INNER_ENTRY, LEAF_ENTRY, NodeEntry, Place};
use ashlar_rt::{Buf, Slice};

use super::{Key, NodeStore, inner_entry};
use crate::planted::{self, Bug};
use crate::segment::read::Lost;

/// A node that a checkpoint is to write.
#[derive(Debug, Clone)]
pub struct NodeWrite {
    /// Which node.
    pub key: Key,
    /// Where.
    pub place: Place,
    /// Its digest.
    pub digest: [u8; 16],
    /// Its bytes.
    pub bytes: Slice,
}

/// What placing the dirty nodes changed.
#[derive(Debug, Default)]
pub struct Placed {
    /// Nodes to write.
    pub writes: Vec<NodeWrite>,
    /// Places of nodes that are no longer part of a tree.
    pub freed: Vec<Place>,
    /// By tree: nodes more (or fewer) than before.
    pub nodes: BTreeMap<u32, i64>,
}

impl NodeStore {
    /// The dirty nodes of a level.
    fn dirty_of(&self, level: u8) -> Vec<Key> {
        let dirty = self.dirty.borrow();
        dirty.keys().filter(|k| k.2 == level).copied().collect()
    }

    /// Brings every ancestor of every dirty node into memory and makes it dirty too. Returns how many
    /// nodes are then dirty: at most so many places are needed.
    pub async fn close_dirty(&self) -> Result<usize, Lost> {
        let mut level = 0;
        loop {
            let mut above = false;
            for (tree, partition, _, index) in self.dirty_of(level) {
                if level < self.height(tree, partition) {
                    self.make_dirty((tree, partition, level + 1, index / FANOUT as u64), true)
                        .await?;
                    above = true;
                }
            }
            let higher = self.dirty.borrow().keys().any(|k| k.2 > level);
            if !above && !higher {
                return Ok(self.dirty.borrow().len());
            }
            level += 1;
        }
    }

    /// Gives every dirty node a place and its parent the new entry, from the leaves up. `places` has one
    /// for every dirty node; those of nodes that turned out empty stay unused. No wait lies in here.
    pub fn place(&self, places: &mut dyn Iterator<Item = Place>) -> Placed {
        let mut placed = Placed::default();
        self.epoch.set(self.epoch.get() + 1);
        for level in 0..=u8::MAX {
            for key in self.dirty_of(level) {
                let buf = self.dirty.borrow_mut().remove(&key).expect("listed above");
                let merged = self.merged.borrow_mut().remove(&key);
                self.place_one(key, buf, merged, places, &mut placed);
            }
            if self.dirty.borrow().is_empty() {
                break;
            }
        }
        self.raised_are_placed();
        placed
    }

    /// The nodes placed so far are written: from now on they are read from there, if not from the cache.
    pub fn written(&self) {
        let placed = std::mem::take(&mut *self.placed.borrow_mut());
        for (key, bytes) in placed {
            if !self.dirty.borrow().contains_key(&key) {
                self.insert_clean(key, bytes);
            }
        }
    }

    fn place_one(
        &self,
        key: Key,
        buf: Buf,
        merged: Option<u64>,
        places: &mut dyn Iterator<Item = Place>,
        placed: &mut Placed,
    ) {
        let (tree, partition, level, index) = key;
        let old = self.parent_entry(key);
        placed.freed.extend(old.map(|e| e.place));
        let empty = buf.iter().all(|b| *b == 0);
        *placed.nodes.entry(tree).or_insert(0) += i64::from(!empty) - i64::from(old.is_some());
        if empty {
            self.set_parent_entry(key, None);
            return;
        }
        let digest = self
            .core
            .identity
            .node_digest(tree, partition, level, index, &buf);
        let place = places.next().expect("a place for every dirty node");
        let merged = merged.or(old.map(|e| e.merged)).unwrap_or(0);
        let content = self.content(key, &buf);
        self.set_parent_entry(
            key,
            Some(NodeEntry {
                place,
                merged,
                digest,
                content,
            }),
        );
        let bytes = buf.freeze();
        if planted::on(Bug::NodeReadTooSoon) {
            self.insert_clean(key, bytes.clone());
        } else {
            self.placed.borrow_mut().insert(key, bytes.clone());
        }
        placed.writes.push(NodeWrite {
            key,
            place,
            digest,
            bytes,
        });
    }

    fn parent_entry(&self, key: Key) -> Option<NodeEntry> {
        let (tree, partition, level, index) = key;
        let root = *self.trees.borrow().get(&(tree, partition))?;
        if level == root.height {
            return root.top;
        }
        let slot = index as usize % FANOUT;
        let parent = (tree, partition, level + 1, index / FANOUT as u64);
        let dirty = self.dirty.borrow();
        let bytes = dirty
            .get(&parent)
            .expect("close_dirty brought the ancestors in");
        inner_entry(bytes, slot).ok().flatten()
    }

    fn set_parent_entry(&self, key: Key, entry: Option<NodeEntry>) {
        let (tree, partition, level, index) = key;
        let mut trees = self.trees.borrow_mut();
        let Some(root) = trees.get_mut(&(tree, partition)) else {
            return;
        };
        if level == root.height {
            root.top = entry;
            return;
        }
        let slot = index as usize % FANOUT;
        let parent = (tree, partition, level + 1, index / FANOUT as u64);
        let mut dirty = self.dirty.borrow_mut();
        let bytes = dirty
            .get_mut(&parent)
            .expect("close_dirty brought the ancestors in");
        NodeEntry::write(
            entry.as_ref(),
            &mut bytes[slot * INNER_ENTRY..(slot + 1) * INNER_ENTRY],
        );
    }

    /// The content root of what a node covers: over addresses and block digests only.
    fn content(&self, key: Key, bytes: &[u8]) -> [u8; 32] {
        let (tree, partition, level, index) = key;
        let mut context = [0u8; 16];
        context[0] = DigestContext::Content as u8;
        context[1..5].copy_from_slice(&tree.to_le_bytes());
        context[5..7].copy_from_slice(&partition.to_le_bytes());
        context[7] = level;
        context[8..].copy_from_slice(&index.to_le_bytes());
        let parts: Vec<&[u8]> = if level == 0 {
            bytes.chunks(LEAF_ENTRY).map(|e| &e[16..]).collect()
        } else {
            bytes.chunks(INNER_ENTRY).map(|e| &e[32..]).collect()
        };
        ashlar_digest::keyed(
            ashlar_digest::Kind::Blake3,
            &self.core.identity.key,
            &context,
            &parts,
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use ashlar_format::node::LeafEntry;

    use super::*;
    use crate::testing::bed;

    const TREE: u32 = 16;
    const SLOT: usize = 3;

    fn entry(segment: u64) -> LeafEntry {
        LeafEntry {
            place: Place { segment, block: 1 },
            length: 8,
            flags: 8,
            birth: 2,
            digest: [4; 16],
        }
    }

    /// Maps or unmaps an entry of a leaf, and places what that changes in segment `into`.
    async fn change(
        store: &NodeStore,
        leaf: u64,
        mapped: Option<LeafEntry>,
        into: u64,
    ) -> (usize, Placed) {
        let write = |bytes: &mut [u8]| {
            let entry = &mut bytes[SLOT * LEAF_ENTRY..(SLOT + 1) * LEAF_ENTRY];
            LeafEntry::write(mapped.as_ref(), entry);
        };
        store.change_leaf(TREE, 0, leaf, 7, write).await.unwrap();
        let dirty = store.close_dirty().await.unwrap();
        let mut places = (0..).map(|block| Place {
            segment: into,
            block,
        });
        (dirty, store.place(&mut places))
    }

    /// A changed leaf is written with every node above it, bottom up; each names the one below by its place and digest.
    #[test]
    fn a_leaf_is_placed_with_its_path() {
        let bed = bed(1);
        let store = NodeStore::new(&bed.core, 1 << 20);
        store.add_tree(TREE, 0, 1000, None);
        bed.rt.block_on(async move {
            let (dirty, placed) = change(&store, 70, Some(entry(5)), 9).await;
            let keys: Vec<Key> = placed.writes.iter().map(|w| w.key).collect();
            assert_eq!(
                keys,
                vec![(TREE, 0, 0, 70), (TREE, 0, 1, 1), (TREE, 0, 2, 0)]
            );
            assert_eq!((dirty, placed.freed.len(), placed.nodes[&TREE]), (3, 0, 3));
            let [leaf, inner, top] = &placed.writes[..] else {
                panic!()
            };
            let named = inner_entry(&inner.bytes, 70 % FANOUT).unwrap().unwrap();
            assert_eq!(
                (named.place, named.digest, named.merged),
                (leaf.place, leaf.digest, 7)
            );
            assert_eq!(store.roots()[0].1.unwrap().place, top.place);
            // It is read from memory before it is written.
            assert_eq!(
                store.leaf_entry(TREE, 0, 70, SLOT).await,
                Ok(Some(entry(5)))
            );
            assert_eq!(store.leaf_entry(TREE, 0, 71, SLOT).await, Ok(None));
        });
    }

    /// A leaf that holds nothing any more is no node, nor are those above it that name nothing else.
    #[test]
    fn an_empty_leaf_goes_with_its_path() {
        let bed = bed(1);
        let store = NodeStore::new(&bed.core, 1 << 20);
        store.add_tree(TREE, 0, 1000, None);
        bed.rt.block_on(async move {
            change(&store, 70, Some(entry(5)), 9).await;
            store.written();
            let (_, placed) = change(&store, 0, Some(entry(6)), 10).await;
            store.written();
            assert_eq!(
                (placed.writes.len(), placed.freed.len()),
                (3, 1),
                "the old top is freed"
            );
            let (dirty, placed) = change(&store, 70, None, 11).await;
            store.written();
            let keys: Vec<Key> = placed.writes.iter().map(|w| w.key).collect();
            assert_eq!(
                (dirty, keys),
                (3, vec![(TREE, 0, 2, 0)]),
                "the top still has a child"
            );
            assert_eq!((placed.freed.len(), placed.nodes[&TREE]), (3, -2));
            let (_, placed) = change(&store, 0, None, 12).await;
            assert_eq!((placed.writes.len(), placed.nodes[&TREE]), (0, -3));
            assert_eq!(store.roots()[0].1, None);
        });
    }
}
