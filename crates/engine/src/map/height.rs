//! The height of a map's trees: it stands in the root of each, and only grows, from the top.
//!
//! Invariants:
//! - A tree is raised in memory only. Until its new nodes have places, roots name the old top with the old height.
//! - A volume may be larger than its trees reach: beyond that nothing is mapped. It may be smaller, too: then its trees
//!   stay as they are. One that has no node left is as high as the volume needs.

use ashlar_format::BLOCK;
use ashlar_format::node::{FANOUT, INNER_ENTRY, NodeEntry};
use ashlar_rt::Buf;

use super::{Key, NodeStore};

/// One tree of one partition.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tree {
    /// Levels above the leaves.
    pub(super) height: u8,
    /// How many a volume of this size needs: what the tree is raised to.
    full: u8,
    pub(super) top: Option<NodeEntry>,
    /// While the new nodes of a tree that was raised have no places: what roots say of it.
    named: Option<NodeEntry>,
}

/// Levels above the leaves that `leaves` leaves need.
pub fn height_for(leaves: u64) -> u8 {
    let mut height = 0;
    let mut reach = 1u64;
    while reach < leaves {
        reach = reach.saturating_mul(FANOUT as u64);
        height += 1;
    }
    height
}

/// Levels above the leaves of the lowest tree that has a node.
fn needs((_, _, level, index): Key) -> u8 {
    level + height_for(index + 1)
}

impl NodeStore {
    /// Adds a tree, of a volume that has so many leaves in this partition.
    pub fn add_tree(&self, tree: u32, partition: u16, leaves: u64, top: Option<NodeEntry>) {
        let full = height_for(leaves);
        let tree_of = Tree {
            // The catalog was refused if this is no height.
            height: top.map_or(full, |top| top.height().unwrap_or(full)),
            full,
            top,
            named: None,
        };
        self.trees.borrow_mut().insert((tree, partition), tree_of);
    }

    /// The volume of a tree has so many leaves in this partition from now on.
    pub fn set_leaves(&self, tree: u32, partition: u16, leaves: u64) {
        let mut trees = self.trees.borrow_mut();
        let Some(of) = trees.get_mut(&(tree, partition)) else {
            return;
        };
        of.full = height_for(leaves);
        let dirty = self.dirty.borrow();
        if of.top.is_none() && !dirty.keys().any(|k| (k.0, k.1) == (tree, partition)) {
            of.height = of.full;
        }
    }

    /// The roots of all trees, with their heights.
    pub fn roots(&self) -> Vec<((u32, u16), Option<NodeEntry>)> {
        let root = |tree: &Tree| {
            let top = tree.top.map(|top| top.as_top(tree.height));
            tree.named.or(top)
        };
        let trees = self.trees.borrow();
        trees.iter().map(|(key, tree)| (*key, root(tree))).collect()
    }

    /// Levels of a tree above its leaves; 0 where there is no tree.
    pub(super) fn height(&self, tree: u32, partition: u16) -> u8 {
        let trees = self.trees.borrow();
        trees.get(&(tree, partition)).map_or(0, |t| t.height)
    }

    /// The most levels that a tree has above its leaves.
    pub(crate) fn highest(&self) -> u8 {
        let trees = self.trees.borrow();
        trees.values().map(|tree| tree.height).max().unwrap_or(0)
    }

    /// Whether a leaf is beyond the reach of its tree: merged, it has more nodes written than its path.
    pub(crate) fn is_too_low_for(&self, tree: u32, partition: u16, leaf: u64) -> bool {
        let trees = self.trees.borrow();
        let low = |tree: &Tree| tree.height < needs((0, 0, 0, leaf));
        trees.get(&(tree, partition)).is_some_and(low)
    }

    /// Makes a tree high enough for a node that is to be made: nodes come above the old top, which is the first below
    /// them.
    ///
    /// Crash argument: nothing is written here. The old top keeps its place, and roots name it with its height, until
    /// all the new nodes have places; they get them together. What they are named by is a root that was written after
    /// them, as for all nodes.
    pub(super) fn raise_for(&self, key: Key) {
        let mut trees = self.trees.borrow_mut();
        let (tree, partition, ..) = key;
        let Some(of) = trees.get_mut(&(tree, partition)) else {
            return;
        };
        let needs = needs(key);
        if needs <= of.height {
            return;
        }
        let (old, height) = (of.height, of.full.max(needs));
        of.height = height;
        let Some(top) = of.top.take() else {
            return; // nothing has a place: the path of the new node is made when places are given
        };
        of.named = of.named.or(Some(top.as_top(old)));
        let mut dirty = self.dirty.borrow_mut();
        for level in old + 1..=height {
            let mut node = Buf::zeroed(BLOCK);
            if level == old + 1 {
                NodeEntry::write(Some(&top.as_top(0)), &mut node[..INNER_ENTRY]);
            }
            dirty.insert((tree, partition, level, 0), node);
        }
    }

    /// All dirty nodes have places: roots name the tops that trees have now.
    pub(super) fn raised_are_placed(&self) {
        for tree in self.trees.borrow_mut().values_mut() {
            tree.named = None;
            if tree.top.is_none() {
                tree.height = tree.full;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::collections::BTreeSet;

    use ashlar_format::node::{LEAF_ENTRY, LeafEntry, Place};

    use super::*;
    use crate::map::inner_entry;
    use crate::map::place::Placed;
    use crate::testing::bed;

    const TREE: u32 = 16;
    const WIDE: u64 = FANOUT as u64;

    fn entry(block: u32) -> LeafEntry {
        LeafEntry {
            place: Place { segment: 5, block },
            length: 8,
            flags: 8,
            birth: 2,
            digest: [4; 16],
        }
    }

    /// Maps or unmaps the first entry of a leaf, without placing.
    async fn change(store: &NodeStore, leaf: u64, mapped: Option<LeafEntry>) {
        let write = |bytes: &mut [u8]| LeafEntry::write(mapped.as_ref(), &mut bytes[..LEAF_ENTRY]);
        store.change_leaf(TREE, 0, leaf, 7, write).await.unwrap();
    }

    /// Places all that is dirty in segment `into`.
    async fn place(store: &NodeStore, into: u64) -> Placed {
        store.close_dirty().await.unwrap();
        let mut places = (0..).map(|block| Place {
            segment: into,
            block,
        });
        let placed = store.place(&mut places);
        store.written();
        placed
    }

    fn keys(placed: &Placed) -> BTreeSet<(u8, u64)> {
        placed.writes.iter().map(|w| (w.key.2, w.key.3)).collect()
    }

    fn root(store: &NodeStore) -> Option<NodeEntry> {
        store.roots()[0].1
    }

    #[test]
    fn a_tree_is_as_high_as_its_leaves_need() {
        for (leaves, height) in [(1, 0), (2, 1), (WIDE, 1), (WIDE + 1, 2), (u64::MAX, 11)] {
            assert_eq!(height_for(leaves), height, "{leaves}");
        }
        assert_eq!(needs((TREE, 0, 1, 0)), 1);
        assert_eq!(needs((TREE, 0, 1, WIDE)), 3);
    }

    /// A volume that has grown has trees that are too low. A leaf that they do not reach is not mapped; merged, it
    /// raises its tree, and the old top, which is not written again, is the first node below the new ones.
    #[test]
    fn a_tree_is_raised_for_a_leaf_beyond_its_reach() {
        let bed = bed(1);
        let store = NodeStore::new(&bed.core, 1 << 20);
        store.add_tree(TREE, 0, 1, None);
        bed.rt.block_on(async move {
            change(&store, 0, Some(entry(1))).await;
            let first = place(&store, 9).await;
            assert_eq!(keys(&first), BTreeSet::from([(0, 0)]));
            let low = root(&store).unwrap();
            assert_eq!(low.height(), Ok(0), "the only leaf is the top");

            store.set_leaves(TREE, 0, WIDE * WIDE);
            assert!(store.is_too_low_for(TREE, 0, 1) && !store.is_too_low_for(TREE, 0, 0));
            assert_eq!(store.leaf_entry(TREE, 0, 70, 0).await, Ok(None));
            assert_eq!(store.leaf_entry(TREE, 0, 0, 0).await, Ok(Some(entry(1))));
            assert_eq!(store.height(TREE, 0), 0, "reading raises nothing");

            change(&store, 70, Some(entry(2))).await;
            assert_eq!(store.height(TREE, 0), 2);
            assert_eq!(root(&store), Some(low), "until the new nodes have places");
            assert_eq!(store.leaf_entry(TREE, 0, 0, 0).await, Ok(Some(entry(1))));
            assert_eq!(store.leaf_entry(TREE, 0, 5, 0).await, Ok(None));
            let leaves = store.leaves_in(TREE, 0, 0, 1000).await;
            assert_eq!(leaves, Ok(vec![0, 70]));

            let placed = place(&store, 10).await;
            let all = BTreeSet::from([(0, 70), (1, 1), (1, 0), (2, 0)]);
            assert_eq!(keys(&placed), all);
            assert_eq!((placed.freed.len(), placed.nodes[&TREE]), (0, 4));
            let over = placed.writes.iter().find(|w| w.key.2 == 1 && w.key.3 == 0);
            let below = inner_entry(&over.unwrap().bytes, 0).unwrap().unwrap();
            assert_eq!((below.place, below.digest), (low.place, low.digest));
            let high = root(&store).unwrap();
            assert_eq!((high.height(), high.place.segment), (Ok(2), 10));
            for (leaf, mapped) in [(0, Some(entry(1))), (70, Some(entry(2))), (1, None)] {
                assert_eq!(store.leaf_entry(TREE, 0, leaf, 0).await, Ok(mapped));
            }
            assert!(!store.is_too_low_for(TREE, 0, WIDE * WIDE - 1));
        });
    }

    /// A tree whose top is changed as it is raised: the top's old place is freed once, and it has a new one.
    #[test]
    fn a_top_may_change_as_its_tree_is_raised() {
        let bed = bed(1);
        let store = NodeStore::new(&bed.core, 1 << 20);
        store.add_tree(TREE, 0, 2, None);
        bed.rt.block_on(async move {
            change(&store, 1, Some(entry(1))).await;
            place(&store, 9).await;
            let low = root(&store).unwrap();
            store.set_leaves(TREE, 0, 5 * WIDE);
            change(&store, 1, None).await;
            change(&store, 3 * WIDE, Some(entry(2))).await;
            change(&store, 0, Some(entry(3))).await;
            let placed = place(&store, 10).await;
            assert!(placed.freed.contains(&low.place));
            assert_eq!((placed.freed.len(), placed.nodes[&TREE]), (2, 3));
            let all = BTreeSet::from([(0, 0), (0, 3 * WIDE), (1, 0), (1, 3), (2, 0)]);
            assert_eq!(keys(&placed), all);
            assert_eq!(store.leaf_entry(TREE, 0, 1, 0).await, Ok(None));
        });
    }

    /// A tree keeps its height when its volume becomes smaller, and is as high as is needed once it is empty; so is
    /// one that never had a node.
    #[test]
    fn an_empty_tree_is_as_high_as_its_volume_needs() {
        let bed = bed(1);
        let store = NodeStore::new(&bed.core, 1 << 20);
        store.add_tree(TREE, 0, 1000, None);
        bed.rt.block_on(async move {
            change(&store, 0, Some(entry(1))).await;
            place(&store, 9).await;
            store.set_leaves(TREE, 0, 1);
            change(&store, 0, Some(entry(2))).await;
            place(&store, 10).await;
            assert_eq!(root(&store).unwrap().height(), Ok(2));
            change(&store, 0, None).await;
            place(&store, 11).await;
            assert_eq!((root(&store), store.height(TREE, 0)), (None, 0));
            store.set_leaves(TREE, 0, 1000);
            change(&store, 70, Some(entry(3))).await;
            let placed = place(&store, 12).await;
            assert_eq!(keys(&placed), BTreeSet::from([(0, 70), (1, 1), (2, 0)]));
        });
    }

    /// What a root says is what the tree is made of again, whatever the volume's size is by then.
    #[test]
    fn the_height_comes_from_the_root() {
        let bed = bed(1);
        let store = NodeStore::new(&bed.core, 1 << 20);
        let top = NodeEntry {
            place: Place {
                segment: 5,
                block: 1,
            },
            merged: 0,
            digest: [1; 16],
            content: [2; 32],
        };
        store.add_tree(TREE, 0, 1, Some(top.as_top(3)));
        assert_eq!(store.height(TREE, 0), 3);
        assert_eq!(root(&store), Some(top.as_top(3)));
        store.add_tree(TREE, 0, 1000, Some(top.as_top(1)));
        assert_eq!((store.height(TREE, 0), store.highest()), (1, 1));
    }
}
