//! Contexts of digests: the identity that each digest covers besides the bytes (rule R19; docs/format.md, "Digests").
//!
//! Invariant: a context begins with what it is a context of, and contexts of one kind have one length, so
//! that no two things have the same.

use ashlar_digest::Kind;

use crate::summary::{Owner, node_address};
use crate::{DigestContext, SegmentNumber};

/// Bytes of the longest context.
pub const LONGEST: usize = 19;

/// The context of one block's digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    bytes: [u8; LONGEST],
    len: usize,
}

impl Context {
    fn new(kind: DigestContext, parts: &[&[u8]]) -> Context {
        let mut context = Context {
            bytes: [0; LONGEST],
            len: 1,
        };
        context.bytes[0] = kind as u8;
        for part in parts {
            context.bytes[context.len..context.len + part.len()].copy_from_slice(part);
            context.len += part.len();
        }
        context
    }

    /// Of a volume block.
    pub fn block(tree: u32, address: u64) -> Context {
        let parts: [&[u8]; 2] = [&tree.to_le_bytes(), &address.to_le_bytes()];
        Context::new(DigestContext::Block, &parts)
    }

    /// Of one 4 KiB piece of a larger volume block.
    pub fn piece(tree: u32, address: u64, piece: u8) -> Context {
        let parts: [&[u8]; 3] = [&tree.to_le_bytes(), &address.to_le_bytes(), &[piece]];
        Context::new(DigestContext::Piece, &parts)
    }

    /// Of a tree's node.
    pub fn node(tree: u32, partition: u16, level: u8, index: u64) -> Context {
        let (tree, partition) = (tree.to_le_bytes(), partition.to_le_bytes());
        let parts: [&[u8]; 4] = [&tree, &partition, &[level], &index.to_le_bytes()];
        Context::new(DigestContext::Node, &parts)
    }

    /// Of a parity block, or of padding.
    pub fn parity(segment: SegmentNumber, stripe: u32, column: u16, block: u32) -> Context {
        let (segment, stripe) = (segment.to_le_bytes(), stripe.to_le_bytes());
        let (column, block) = (column.to_le_bytes(), block.to_le_bytes());
        let parts: [&[u8]; 4] = [&segment, &stripe, &column, &block];
        Context::new(DigestContext::Parity, &parts)
    }

    /// Of the strip block at stripe, column and block `at` of a segment with `k` data columns, and its digest function.
    /// `None`: its owner names a function that this program does not know.
    pub fn of_strip(
        segment: SegmentNumber,
        k: u16,
        at: (u32, u16, u32),
        owner: &Owner,
    ) -> Option<(Kind, Context)> {
        let (stripe, column, block) = at;
        if column >= k || owner.tree == 0 {
            let context = Context::parity(segment, stripe, column, block);
            return Some((Kind::Blake3, context));
        }
        if owner.kind > 0 {
            let (partition, index) = node_address(owner.address);
            let context = Context::node(owner.tree, partition, owner.kind - 1, index);
            return Some((Kind::Blake3, context));
        }
        let kind = Kind::from_tag(owner.algorithm)?;
        let context = if owner.pieces_less_one == 0 {
            Context::block(owner.tree, owner.address)
        } else {
            Context::piece(owner.tree, owner.address, owner.piece)
        };
        Some((kind, context))
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Its bytes, filled up with zeros, and how many count.
    pub fn padded(&self) -> ([u8; LONGEST], u8) {
        (self.bytes, u8::try_from(self.len).expect("at most 19"))
    }
}

impl AsRef<[u8]> for Context {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}
