//! Promises: the space promised to volumes, and how much more may be promised, in blocks of stripes.
//!
//! Invariants:
//! - A thick volume is promised all of its size; a thin one only its mapped blocks, with the nodes that its map has
//!   beyond their share.
//! - A volume block lies whole in a stripe: room that this leaves empty counts as taken.
//! - A new block of a thin volume is charged before it gets a place, with all that it may take. That counts until a
//!   checkpoint has counted the block itself, or until it has turned out that it gets no place.

use ashlar_format::BLOCK_U64;

use crate::capacity::Geometry;
use crate::template::Template;

/// One volume, as of the last checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Volume {
    /// Its size.
    pub size_bytes: u64,
    /// Bytes that are mapped.
    pub mapped_bytes: u64,
    /// Blocks of a volume block, 1 to 32; 0 counts as 1.
    pub block_blocks: u16,
    /// Whether it was promised no space.
    pub thin: bool,
    /// Nodes of its map beyond the share of its mapped blocks: 0 for a thick volume.
    pub nodes_apart: u64,
}

/// The promises to all volumes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Promises {
    /// The volumes.
    pub volumes: Vec<Volume>,
}

impl Promises {
    /// Blocks of stripes that volumes were promised, and that their mapped blocks take, with data and nodes laid so.
    #[must_use]
    pub fn blocks(&self, geometry: &Geometry, data: &Template, nodes: &Template) -> (u64, u64) {
        let packing = Packing::new(data.k, geometry.strip_blocks);
        let apart = node_blocks(nodes, data);
        let taken = |v: &Volume, bytes: u64| {
            packing.taken(bytes.div_ceil(BLOCK_U64), v.block_blocks) + v.nodes_apart * apart
        };
        let volumes = || self.volumes.iter();
        let size = |v: &Volume| if v.thin { v.mapped_bytes } else { v.size_bytes };
        let promised = volumes().map(|v| taken(v, size(v))).sum();
        let used = volumes().map(|v| taken(v, v.mapped_bytes)).sum();
        (promised, used)
    }
}

/// Blocks of data that a node takes the room of: at the redundancy that nodes have, twice, since replaced nodes
/// are cleaned later.
#[must_use]
pub fn node_blocks(nodes: &Template, data: &Template) -> u64 {
    let columns = 2 * u64::from(nodes.laid()) * u64::from(data.k);
    columns.div_ceil(u64::from(nodes.k.max(1)) * u64::from(data.laid().max(1)))
}

/// How volume blocks fill stripes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packing {
    stripe_blocks: u64,
}

impl Packing {
    /// Stripes of `k` strips.
    #[must_use]
    pub fn new(k: u16, strip_blocks: u32) -> Packing {
        Packing {
            stripe_blocks: u64::from(k) * u64::from(strip_blocks),
        }
    }

    /// Volume blocks of so many blocks that a stripe holds, and whether they fill it.
    fn each(self, block: u16) -> (u64, bool) {
        let block = u64::from(block.max(1));
        let each = (self.stripe_blocks / block).max(1);
        (each, each * block >= self.stripe_blocks)
    }

    /// Blocks of stripes that `blocks` in volume blocks of so many take.
    #[must_use]
    pub fn taken(self, blocks: u64, block: u16) -> u64 {
        let (each, filled) = self.each(block);
        if filled {
            return blocks;
        }
        let units = blocks.div_ceil(u64::from(block.max(1)));
        let taken = u128::from(units) * u128::from(self.stripe_blocks);
        u64::try_from(taken.div_ceil(u128::from(each))).unwrap_or(u64::MAX)
    }

    /// Blocks in such volume blocks that `free` blocks of stripes take.
    #[must_use]
    pub fn fits(self, free: u64, block: u16) -> u64 {
        let (each, filled) = self.each(block);
        if filled {
            return free;
        }
        free / self.stripe_blocks * each * u64::from(block.max(1))
    }
}

/// The room of thin volumes, in bytes of stripes: recounted by each checkpoint, charged in between.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Thin {
    counted: u64,
    /// How much of the count may be taken by blocks that it did not know.
    taken: u64,
    ever: u64,
    placing: u64,
    returned: u64,
}

/// The charges up to some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Charged {
    ever: u64,
    placing: u64,
    returned: u64,
}

impl Thin {
    /// Bytes that may still be charged.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.counted.saturating_sub(self.taken)
    }

    /// The bytes that were left by the last count: none before the first.
    #[must_use]
    pub fn counted(&self) -> u64 {
        self.counted
    }

    /// Whether nothing is charged, so that the last count is exact.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.taken == 0
    }

    /// Charges a block that has no place yet, with all that it may take: [`Thin::placed`] or [`Thin::refused`] follows.
    pub fn charge(&mut self, bytes: u64) {
        self.taken += bytes;
        self.ever += bytes;
        self.placing += bytes;
    }

    /// A block that was charged so has its place.
    pub fn placed(&mut self, bytes: u64) {
        self.placing -= bytes;
    }

    /// A block that was charged so gets no place.
    pub fn refused(&mut self, bytes: u64) {
        self.placing -= bytes;
        self.returned += bytes;
        self.taken = self.taken.saturating_sub(bytes);
    }

    /// Whether blocks that were charged for wait for their places: one that is refused may give others room.
    #[must_use]
    pub fn is_placing(&self) -> bool {
        self.placing > 0
    }

    /// The charges up to now, for [`Thin::count`].
    #[must_use]
    pub fn charged(&self) -> Charged {
        Charged {
            ever: self.ever,
            placing: self.placing,
            returned: self.returned,
        }
    }

    /// Takes a promise to another volume off, until the next count.
    pub fn promise(&mut self, bytes: u64) {
        self.counted = self.counted.saturating_sub(bytes);
    }

    /// Recounts: `counted` bytes are left after the merge. Of these, `pending` may be taken by blocks that had a
    /// place and were not merged, and more by those that had none `before` the merge, or were charged since.
    pub fn count(&mut self, counted: u64, pending: u64, before: Charged) {
        let since = self.ever - before.ever;
        let returned = self.returned - before.returned;
        self.taken = (pending + before.placing + since).saturating_sub(returned);
        self.counted = counted;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// Data columns, blocks of a volume block, blocks: what they take of stripes of 16-block strips.
    #[test]
    fn volume_blocks_lie_whole_in_a_stripe() {
        for (k, block, blocks, taken) in [
            (8, 1, 1000, 1000),
            (8, 32, 1000, 1000),
            (3, 32, 32, 48),
            (3, 32, 320, 480),
            (1, 32, 32, 32), // more than a stripe: nothing that could be counted
            (5, 32, 64, 80),
        ] {
            let packing = Packing::new(k, 16);
            assert_eq!(packing.taken(blocks, block), taken, "{k} {block}");
            assert!(packing.fits(taken, block) >= blocks / u64::from(block) * u64::from(block));
        }
    }

    #[test]
    fn thick_volumes_are_promised_all_and_thin_ones_what_they_have() {
        let geometry = Geometry::SAMPLE;
        let template = |k, m| Template {
            k,
            m,
            absent: 0,
            cap: k + m,
        };
        let volume = Volume {
            size_bytes: 100 * BLOCK_U64,
            mapped_bytes: 30 * BLOCK_U64,
            block_blocks: 1,
            thin: false,
            nodes_apart: 0,
        };
        let thin = Volume {
            thin: true,
            nodes_apart: 5,
            ..volume
        };
        let (data, nodes) = (template(8, 2), template(8, 3));
        assert_eq!(node_blocks(&nodes, &data), 3);
        assert_eq!(node_blocks(&template(1, 2), &template(1, 1)), 3);
        for (volumes, is) in [
            (vec![], (0, 0)),
            (vec![volume], (100, 30)),
            (vec![thin], (45, 45)),
            (vec![volume, thin], (145, 75)),
        ] {
            let promises = Promises { volumes };
            assert_eq!(promises.blocks(&geometry, &data, &nodes), is);
        }
    }

    /// A block counts from when it is charged until a checkpoint has counted it, or it gets no place.
    #[test]
    fn what_is_charged_counts_until_it_is_counted() {
        let mut thin = Thin::default();
        assert_eq!(thin.left(), 0, "nothing is left before the first count");
        thin.count(100, 0, thin.charged());
        assert!(thin.is_exact());
        thin.charge(30);
        thin.placed(30);
        thin.charge(20);
        assert!(thin.is_placing() && thin.left() == 50);
        thin.refused(20);
        assert!(!thin.is_placing() && thin.left() == 70);
        // A merge begins here: it counts the first; of the next it knows nothing.
        let before = thin.charged();
        thin.charge(10);
        thin.placed(10);
        thin.count(70, 0, before);
        assert_eq!((thin.left(), thin.counted()), (60, 70));
        thin.count(70, 10, thin.charged());
        assert_eq!(thin.left(), 60);
        thin.charge(40);
        thin.count(60, 0, thin.charged());
        assert_eq!(thin.left(), 20, "it outlives the count");
        thin.refused(40);
        assert_eq!(thin.left(), 60);
        thin.promise(100);
        assert_eq!(thin.left(), 0);
    }
}
