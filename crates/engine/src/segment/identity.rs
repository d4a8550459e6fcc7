//! Identity of an array's blocks and nodes.

use ashlar_digest::Kind;
use ashlar_format::context::Context;

/// The identity of an array, and the key of its digests.
#[derive(Debug)]
pub struct Identity {
    /// The identity, which stands in all that is written.
    pub array: [u8; 16],
    /// The key.
    pub key: [u8; 32],
}

impl Identity {
    /// Those of an array.
    pub fn new(array: [u8; 16], key: [u8; 32]) -> Identity {
        Identity { array, key }
    }

    /// The digest of a block, cut to 16 bytes.
    pub fn digest(&self, kind: Kind, context: Context, bytes: &[u8]) -> [u8; 16] {
        ashlar_digest::block(kind, &self.key, context.bytes(), bytes)
    }

    /// The digest of a volume block.
    pub fn block_digest(&self, kind: Kind, tree: u32, address: u64, bytes: &[u8]) -> [u8; 16] {
        self.digest(kind, Context::block(tree, address), bytes)
    }

    /// The digests of blocks of a volume that follow each other, `unit` bytes each, computed side by side.
    pub fn block_digests(
        &self,
        kind: Kind,
        (tree, first): (u32, u64),
        bytes: &[u8],
        unit: usize,
    ) -> Vec<[u8; 16]> {
        let context = |(address, bytes)| (Context::block(tree, address), bytes);
        let blocks: Vec<_> = (first..).zip(bytes.chunks(unit)).map(context).collect();
        let mut digests = vec![[0; 16]; blocks.len()];
        ashlar_digest::blocks(kind, &self.key, &blocks, &mut digests);
        digests
    }

    /// The digest of a tree's node.
    pub fn node_digest(
        &self,
        tree: u32,
        partition: u16,
        level: u8,
        index: u64,
        bytes: &[u8],
    ) -> [u8; 16] {
        let context = Context::node(tree, partition, level, index);
        self.digest(Kind::Blake3, context, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Digests that are taken side by side are those taken one by one, and each is bound to its address.
    #[test]
    fn a_digest_is_bound_to_its_block() {
        let identity = Identity::new([1; 16], [2; 32]);
        let bytes = [7; 3 * 4096];
        let together = identity.block_digests(Kind::Blake3, (16, 40), &bytes, 4096);
        let one = |address| identity.block_digest(Kind::Blake3, 16, address, &bytes[..4096]);
        assert_eq!(together, vec![one(40), one(41), one(42)]);
        assert_ne!(one(40), one(41));
        let node = |level| identity.node_digest(16, 0, level, 40, &bytes[..4096]);
        assert_ne!(node(0), node(1));
        let other = Identity::new([1; 16], [3; 32]);
        assert_ne!(
            other.block_digest(Kind::Blake3, 16, 40, &bytes[..4096]),
            one(40)
        );
    }
}
