//! The space that the blocks and nodes of a volume take, and how much one merge may change.
//!
//! Invariant: values only; they are the same wherever they are looked at.

/// A volume as shards need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeShape {
    /// Its number.
    pub tree: u32,
    /// Volume blocks.
    pub blocks: u64,
    /// 4 KiB blocks of a volume block.
    pub pieces: u32,
    /// Levels of its maps above the leaves: of the highest, or as many as its size needs.
    pub height: u8,
    /// Digest algorithm of new blocks.
    pub algorithm: u8,
    /// Bytes of stripes that a block takes.
    pub takes_bytes: u64,
    /// Whether it was promised no space.
    pub thin: bool,
    /// Being destroyed: it takes no more writes.
    pub leaving: bool,
}

impl VolumeShape {
    /// Nodes that a leaf takes at most: itself and its path.
    pub fn path_nodes(&self) -> usize {
        (usize::from(self.height) + 1).max(MergeLimit::LEAF)
    }

    /// Nodes that a leaf takes which is far from others: but for the two highest levels, which are few nodes, its path
    /// is its own.
    pub fn own_nodes(&self) -> usize {
        self.path_nodes() - 2
    }
}

/// How much one merge may change, in nodes to be written.
#[derive(Debug, Clone, Copy)]
pub struct MergeLimit {
    /// Nodes in all.
    pub nodes: usize,
    /// Nodes of all liveness records: what blocks born and dead can change at most.
    pub records: usize,
}

impl MergeLimit {
    /// Nodes that a leaf takes at least: itself and its path.
    pub const LEAF: usize = 3;

    /// Whether leaves that with their paths are so many nodes, with so many blocks changed in them, are as much as may
    /// be merged. One leaf always may.
    pub fn reached(&self, nodes: usize, blocks: usize) -> bool {
        nodes > 0 && nodes + (2 * blocks).min(self.records) >= self.nodes
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn one_leaf_is_always_merged() {
        let limit = MergeLimit {
            nodes: 1,
            records: 8,
        };
        assert!(!limit.reached(0, 100));
        assert!(limit.reached(1, 0));
        let wide = MergeLimit {
            nodes: 20,
            records: 8,
        };
        assert!(!wide.reached(9, 5), "9 nodes and at most 8 of records");
        assert!(wide.reached(12, 5), "12 nodes and 8 of records");
    }

    #[test]
    fn far_leaves_share_the_two_highest_levels() {
        let mut shape = VolumeShape {
            tree: 16,
            blocks: 1,
            pieces: 1,
            height: 0,
            algorithm: 1,
            takes_bytes: 4096,
            thin: false,
            leaving: false,
        };
        for (height, path) in [(0, 3), (2, 3), (3, 4), (5, 6)] {
            shape.height = height;
            assert_eq!((shape.path_nodes(), shape.own_nodes()), (path, path - 2));
        }
    }
}
