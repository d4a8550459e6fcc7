//! The catalog: volumes and settings, as they are now and as the last root has them.
//!
//! Invariant: `stored` is the catalog as it is in the leaves of the tree, or will be once the leaves that were marked
//! are written.

use std::cell::{Cell, Ref, RefCell, RefMut};

use ashlar_format::BLOCK;
use ashlar_format::catalog::Catalog;

use crate::map::system::SysTree;

/// The catalog, and the tree that it lies in.
#[derive(Debug)]
pub struct CatalogTree {
    now: RefCell<Catalog>,
    tree: RefCell<SysTree>,
    stored: RefCell<Vec<u8>>,
    next_number: Cell<u32>,
}

fn part(bytes: &[u8], leaf: usize) -> Option<&[u8]> {
    let start = leaf * BLOCK;
    bytes.get(start..bytes.len().min(start + BLOCK))
}

impl CatalogTree {
    /// The catalog of a root, whose next new volume has this number.
    pub fn new(catalog: Catalog, tree: SysTree, next_number: u32) -> CatalogTree {
        CatalogTree {
            stored: RefCell::new(catalog.encode()),
            now: RefCell::new(catalog),
            tree: RefCell::new(tree),
            next_number: Cell::new(next_number),
        }
    }

    /// The catalog as it is now.
    pub fn borrow(&self) -> Ref<'_, Catalog> {
        self.now.borrow()
    }

    /// The catalog, to be changed: the next checkpoint writes it.
    pub fn borrow_mut(&self) -> RefMut<'_, Catalog> {
        self.now.borrow_mut()
    }

    /// Its tree.
    pub fn tree(&self) -> RefMut<'_, SysTree> {
        self.tree.borrow_mut()
    }

    /// The number of a new volume, which no other has had.
    pub fn take_number(&self) -> u32 {
        self.next_number.replace(self.next_number.get() + 1)
    }

    /// The number of the next new volume.
    pub fn next_number(&self) -> u32 {
        self.next_number.get()
    }

    /// Leaves of the tree.
    pub fn leaves(&self) -> usize {
        self.stored.borrow().len().div_ceil(BLOCK)
    }

    /// Finds which leaves changed, and takes the catalog as it is now for what they hold.
    pub fn mark(&self) {
        let new = self.now.borrow().encode();
        let old = self.stored.replace(new.clone());
        let mut tree = self.tree.borrow_mut();
        for leaf in 0..new.len().max(old.len()).div_ceil(BLOCK) {
            if part(&new, leaf) != part(&old, leaf) || tree.root().top.is_none() {
                tree.mark(leaf as u64);
            }
        }
        tree.set_payload_bytes(new.len() as u64);
    }

    /// The bytes of a leaf, if it exists.
    pub fn leaf_bytes(&self, leaf: u64) -> Option<Vec<u8>> {
        let stored = self.stored.borrow();
        let bytes = part(&stored, usize::try_from(leaf).ok()?).filter(|part| !part.is_empty())?;
        let mut node = bytes.to_vec();
        node.resize(BLOCK, 0);
        Some(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_leaves_that_changed_are_marked() {
        let mut catalog = Catalog::default();
        catalog.settings.push(("first".into(), "x".repeat(5000)));
        let tree = CatalogTree::new(catalog, SysTree::default(), 16);
        tree.mark();
        let ids = |tree: &CatalogTree| {
            let leaves = tree.leaves() as u64;
            let placed = tree.tree().unplaced(|leaf| leaf < leaves);
            placed.into_iter().filter(|(level, _)| *level == 0).count()
        };
        assert_eq!((tree.leaves(), ids(&tree)), (2, 2), "none is written yet");
        assert!(tree.leaf_bytes(1).is_some() && tree.leaf_bytes(2).is_none());
        assert_eq!((tree.take_number(), tree.next_number()), (16, 17));
    }
}
