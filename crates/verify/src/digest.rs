//! Seals and keyed digests, as docs/format.md defines them.
//!
//! **Invariants**: the context says what the bytes are and where they belong, so that a right block in a
//! wrong place has a wrong digest; a tag without a function gives no digest.

use xxhash_rust::xxh3;

/// Tag of keyed BLAKE3.
pub(crate) const BLAKE3: u8 = 1;
/// Tag of XXH3 with 128 bits.
pub(crate) const XXH3: u8 = 2;

/// Unkeyed BLAKE3.
pub(crate) fn plain(bytes: &[u8]) -> [u8; 32] {
    *blake3::hash(bytes).as_bytes()
}

/// The bytes before the seal, if it is right.
pub(crate) fn unseal<'a>(context: &[u8], bytes: &'a [u8]) -> Option<&'a [u8]> {
    let (body, seal) = bytes.split_at_checked(bytes.len().checked_sub(32)?)?;
    let padding = [0; 32];
    let whole = [body, context, padding.get(context.len()..)?].concat();
    (plain(&whole) == seal).then_some(body)
}

/// The key of an array's digests.
#[derive(Clone, Copy)]
pub(crate) struct Key {
    key: [u8; 32],
    seed: u64,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    pub(crate) fn new(key: [u8; 32]) -> Key {
        Key {
            key,
            seed: xxh3::xxh3_64(&key),
        }
    }

    /// The digest of `parts`, one after the other; `None` if nothing has this tag.
    fn keyed<'a>(
        &self,
        tag: u8,
        context: &[u8],
        parts: impl Iterator<Item = &'a [u8]>,
    ) -> Option<[u8; 32]> {
        let length = (context.len() as u64).to_le_bytes();
        let mut digest = [0; 32];
        match tag {
            BLAKE3 => {
                let mut state = blake3::Hasher::new_keyed(&self.key);
                parts.for_each(|part| {
                    state.update(part);
                });
                state.update(context);
                state.update(&length);
                digest = *state.finalize().as_bytes();
            }
            XXH3 => {
                let mut state = xxh3::Xxh3Builder::new().with_seed(self.seed).build();
                parts.for_each(|part| state.update(part));
                state.update(context);
                state.update(&length);
                digest[..16].copy_from_slice(&state.digest128().to_be_bytes());
            }
            _ => return None,
        }
        Some(digest)
    }

    fn short(&self, tag: u8, context: &[u8], bytes: &[u8]) -> Option<[u8; 16]> {
        let whole = self.keyed(tag, context, std::iter::once(bytes))?;
        whole[..16].try_into().ok()
    }

    /// Of a volume block.
    pub(crate) fn block(&self, tag: u8, volume: u32, at: u64, bytes: &[u8]) -> Option<[u8; 16]> {
        let mut context = [1; 13];
        context[1..5].copy_from_slice(&volume.to_le_bytes());
        context[5..].copy_from_slice(&at.to_le_bytes());
        self.short(tag, &context, bytes)
    }

    /// Of one of several pieces of a volume block.
    pub(crate) fn piece(
        &self,
        tag: u8,
        (volume, at, piece): (u32, u64, u8),
        bytes: &[u8],
    ) -> Option<[u8; 16]> {
        let mut context = [2; 14];
        context[1..5].copy_from_slice(&volume.to_le_bytes());
        context[5..13].copy_from_slice(&at.to_le_bytes());
        context[13] = piece;
        self.short(tag, &context, bytes)
    }

    /// Of a node.
    pub(crate) fn node(&self, node: NodeAt, bytes: &[u8]) -> Option<[u8; 16]> {
        self.short(BLAKE3, &node.context(3), bytes)
    }

    /// The content root of a node with these parts of its entries.
    pub(crate) fn content<'a>(
        &self,
        node: NodeAt,
        parts: impl Iterator<Item = &'a [u8]>,
    ) -> Option<[u8; 32]> {
        self.keyed(BLAKE3, &node.context(5), parts)
    }

    /// Of a parity block, or of padding in a data column.
    pub(crate) fn parity(&self, at: StripBlock, bytes: &[u8]) -> Option<[u8; 16]> {
        let mut context = [4; 19];
        context[1..9].copy_from_slice(&at.segment.to_le_bytes());
        context[9..13].copy_from_slice(&at.stripe.to_le_bytes());
        context[13..15].copy_from_slice(&at.column.to_le_bytes());
        context[15..].copy_from_slice(&at.block.to_le_bytes());
        self.short(BLAKE3, &context, bytes)
    }
}

/// Which node of which tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeAt {
    /// The tree: a volume's number, 1 for liveness, 2 for the catalog.
    pub tree: u32,
    /// The partition of the volume.
    pub partition: u16,
    /// 0 for a leaf.
    pub level: u8,
    /// Its number within the level.
    pub index: u64,
}

impl NodeAt {
    fn context(self, kind: u8) -> [u8; 16] {
        let mut context = [kind; 16];
        context[1..5].copy_from_slice(&self.tree.to_le_bytes());
        context[5..7].copy_from_slice(&self.partition.to_le_bytes());
        context[7] = self.level;
        context[8..].copy_from_slice(&self.index.to_le_bytes());
        context
    }
}

/// Which block of which strip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StripBlock {
    /// The segment.
    pub segment: u64,
    /// The stripe of it.
    pub stripe: u32,
    /// The column of it.
    pub column: u16,
    /// The block of the strip.
    pub block: u32,
}
