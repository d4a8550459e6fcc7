//! The trees of the home, liveness and catalog, which are small enough for memory. Every entry is in memory; payload
//! nodes are recreated when they change.
//!
//! Invariant: `entries` is exactly the durable tree, less leaves that are gone since.

use std::collections::{BTreeMap, BTreeSet};

use ashlar_format::BLOCK;
use ashlar_format::node::{FANOUT, INNER_ENTRY, NodeEntry, Place};
use ashlar_format::root::TreeRoot;

/// Level and index of a node.
pub type NodeId = (u8, u64);

/// A tree.
#[derive(Debug, Default)]
pub struct SysTree {
    height: u8,
    entries: BTreeMap<NodeId, NodeEntry>,
    /// Leaves whose payload changed, or that were removed.
    dirty: BTreeSet<u64>,
    /// Nodes placed by the checkpoint under way.
    placed: BTreeMap<NodeId, Place>,
    payload_bytes: u64,
}

impl SysTree {
    /// The tree below a root: `read` fetches a node's bytes.
    pub async fn load<E>(
        root: &TreeRoot,
        mut read: impl AsyncFnMut(NodeId, NodeEntry) -> Result<Vec<u8>, E>,
    ) -> Result<(SysTree, BTreeMap<u64, Vec<u8>>), E> {
        let mut tree = SysTree {
            payload_bytes: root.bytes,
            ..SysTree::default()
        };
        let mut payloads = BTreeMap::new();
        let Some(top) = root.top else {
            return Ok((tree, payloads));
        };
        tree.height = top.height().unwrap_or(0);
        let mut level = vec![((tree.height, 0u64), top)];
        while let Some((id, entry)) = level.pop() {
            tree.entries.insert(id, entry);
            let bytes = read(id, entry).await?;
            if id.0 == 0 {
                payloads.insert(id.1, bytes);
                continue;
            }
            for slot in 0..FANOUT {
                let child = NodeEntry::read(&bytes[slot * INNER_ENTRY..(slot + 1) * INNER_ENTRY])
                    .ok()
                    .flatten();
                if let Some(child) = child {
                    level.push(((id.0 - 1, id.1 * FANOUT as u64 + slot as u64), child));
                }
            }
        }
        Ok((tree, payloads))
    }

    /// What a root says of this tree.
    pub fn root(&self) -> TreeRoot {
        let top = self.entries.get(&(self.height, 0));
        let top = top.map(|e| e.as_top(self.height));
        TreeRoot {
            top,
            bytes: self.payload_bytes,
        }
    }

    /// Nodes that have a place.
    pub fn nodes(&self) -> usize {
        self.entries.len()
    }

    /// Notes that a leaf's payload changed.
    pub fn mark(&mut self, leaf: u64) {
        self.dirty.insert(leaf);
    }

    /// Bytes of payload, for trees that are one string.
    pub fn set_payload_bytes(&mut self, bytes: u64) {
        self.payload_bytes = bytes;
    }

    /// Whether a node lies there.
    pub fn lies_at(&self, id: NodeId, place: Place) -> bool {
        self.entries.get(&id).is_some_and(|e| e.place == place)
    }

    /// A node is to be rewritten: as above a leaf that changed. Whether there is such a leaf does not matter,
    /// and above the records of segments that are all gone there is none (#159).
    pub fn touch(&mut self, id: NodeId) {
        if self.entries.contains_key(&id) {
            self.dirty.insert(id.1 << (6 * u32::from(id.0)));
        }
    }

    /// Nodes that must be placed: `leaf_exists` tells which dirty leaves still have a payload. Grows
    /// while placing makes more leaves dirty; called until it gives nothing new.
    pub fn unplaced(&mut self, leaf_exists: impl Fn(u64) -> bool) -> Vec<NodeId> {
        let most = self
            .dirty
            .iter()
            .filter(|l| leaf_exists(**l))
            .max()
            .copied()
            .unwrap_or(0);
        let height = crate::map::height_for(most + 1).max(self.height);
        let mut ids = BTreeSet::new();
        if height > self.height {
            // The old top becomes an inner node of the taller tree.
            for level in self.height + 1..=height {
                if self.entries.keys().any(|k| k.0 < level) {
                    ids.insert((level, 0));
                }
            }
            self.height = height;
        }
        for leaf in &self.dirty {
            for level in 0..=self.height {
                let id = (level, leaf >> (6 * u32::from(level)));
                if level > 0 || leaf_exists(*leaf) {
                    ids.insert(id);
                }
            }
        }
        ids.into_iter()
            .filter(|id| !self.placed.contains_key(id))
            .collect()
    }

    /// Gives a node its place; the place it had before.
    pub fn set_place(&mut self, id: NodeId, place: Place) -> Option<Place> {
        self.placed.insert(id, place);
        self.entries.get(&id).map(|e| e.place)
    }

    /// Makes all placed nodes: bytes and places, from the leaves up. `payload` gives a leaf's bytes, `digest`
    /// that of a node.
    /// Leaves that are gone must have been forgotten ([`SysTree::gone`]).
    pub fn finish(
        &mut self,
        digest: impl Fn(NodeId, &[u8]) -> [u8; 16],
        payload: impl Fn(u64) -> Option<Vec<u8>>,
    ) -> Vec<(NodeId, Place, [u8; 16], Vec<u8>)> {
        let mut out = Vec::new();
        self.dirty.clear();
        for (id, place) in std::mem::take(&mut self.placed) {
            let bytes = if id.0 == 0 {
                payload(id.1).expect("a leaf without payload is gone")
            } else {
                let mut bytes = vec![0; BLOCK];
                for slot in 0..FANOUT {
                    let child = (id.0 - 1, id.1 * FANOUT as u64 + slot as u64);
                    NodeEntry::write(
                        self.entries.get(&child),
                        &mut bytes[slot * INNER_ENTRY..(slot + 1) * INNER_ENTRY],
                    );
                }
                bytes
            };
            assert_eq!(bytes.len(), BLOCK, "a node is one block");
            let digest = digest(id, &bytes);
            let content = [0; 32];
            self.entries.insert(
                id,
                NodeEntry {
                    place,
                    merged: 0,
                    digest,
                    content,
                },
            );
            out.push((id, place, digest, bytes));
        }
        out
    }

    /// Forgets dirty leaves that have no payload any more; the places they had, each once.
    pub fn gone(&mut self, leaf_exists: impl Fn(u64) -> bool) -> Vec<Place> {
        let gone = self.dirty.iter().filter(|l| !leaf_exists(**l));
        let gone = gone.map(|l| (0, *l)).collect::<Vec<NodeId>>();
        let place = |id: NodeId| {
            let old = self.entries.remove(&id).map(|e| e.place);
            // One that this checkpoint has placed before it was gone has been told of its old place.
            self.placed.remove(&id).or(old)
        };
        gone.into_iter().filter_map(place).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A leaf that a checkpoint has placed, and whose payload goes before that checkpoint ends, frees that place and no
    /// other; one that has a payload again gets another.
    #[test]
    fn a_leaf_may_go_in_the_checkpoint_that_places_it() {
        let digest = |_: NodeId, _: &[u8]| [0; 16];
        let place = |block| Place { segment: 7, block };
        let payload = |leaf: u64| Some(vec![leaf as u8; BLOCK]);
        let mut tree = SysTree::default();
        tree.mark(0);
        tree.mark(1);
        for (id, block) in tree.unplaced(|_| true).into_iter().zip(0..) {
            assert_eq!(tree.set_place(id, place(block)), None);
        }
        assert_eq!(
            tree.finish(digest, payload).len(),
            3,
            "two leaves, one above"
        );
        assert_eq!(tree.gone(|_| false), [], "nothing has changed");

        tree.mark(1);
        assert_eq!(tree.unplaced(|_| true), [(0, 1), (1, 0)]);
        assert_eq!(tree.set_place((0, 1), place(3)), Some(place(1)));
        assert_eq!(tree.set_place((1, 0), place(4)), Some(place(2)));
        assert_eq!(tree.gone(|leaf| leaf == 0), [place(3)]);
        assert_eq!(tree.gone(|leaf| leaf == 0), []);
        assert_eq!(tree.unplaced(|_| true), [(0, 1)], "it is there again");
        assert_eq!(tree.set_place((0, 1), place(5)), None);
        assert_eq!(tree.gone(|leaf| leaf == 0), [place(5)]);
        let left = |leaf: u64| payload(leaf).filter(|_| leaf == 0);
        let made = tree.finish(digest, left);
        let ids = made.iter().map(|(id, ..)| *id);
        assert_eq!(ids.collect::<Vec<_>>(), [(1, 0)]);
        assert_eq!(tree.nodes(), 2);
    }

    /// Writes all that is unplaced from block `from` on: the nodes, and the places that were left.
    fn write(
        tree: &mut SysTree,
        from: u32,
        is_there: impl Fn(u64) -> bool,
    ) -> (Vec<NodeId>, Vec<Place>) {
        let place = |block| Place { segment: 7, block };
        let mut left = tree.gone(&is_there);
        let ids = tree.unplaced(&is_there);
        for (id, block) in ids.iter().zip(from..) {
            left.extend(tree.set_place(*id, place(block)));
        }
        tree.finish(
            |_, _| [0; 16],
            |leaf| is_there(leaf).then(|| vec![1; BLOCK]),
        );
        (ids, left)
    }

    /// A node above leaves that are all gone can be written elsewhere, as what it lies in may have lost columns.
    #[test]
    fn a_node_without_leaves_may_be_written_anew() {
        let mut tree = SysTree::default();
        tree.mark(0);
        tree.mark(64);
        assert_eq!(write(&mut tree, 0, |_| true).0.len(), 5);
        tree.mark(64);
        let (ids, left) = write(&mut tree, 10, |leaf| leaf == 0);
        assert_eq!((&ids[..], left.len()), (&[(1, 1), (2, 0)][..], 3));
        let at = tree.entries[&(1, 1)].place;
        assert!(tree.lies_at((1, 1), at));
        tree.touch((1, 1));
        let (ids, left) = write(&mut tree, 20, |leaf| leaf == 0);
        assert_eq!(ids, [(1, 1), (2, 0)]);
        assert!(left.contains(&at));
        assert!(!tree.lies_at((1, 1), at));
        tree.touch((1, 2));
        assert_eq!(write(&mut tree, 30, |_| true).0, [], "there is none");
    }
}
