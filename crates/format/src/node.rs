//! Map nodes: leaf entries of 32 bytes, inner entries of 64 bytes. A node is 4 KiB without a header;
//! what it is (tree, level, index) is bound by its digest, which stands in its parent.

use crate::{BLOCK, FormatError, SegmentNumber};

/// Entries of an inner node.
pub const FANOUT: usize = 64;
/// Bytes of an inner entry.
pub const INNER_ENTRY: usize = 64;
/// Bytes of a leaf entry with a 16-byte digest.
pub const LEAF_ENTRY: usize = 32;
/// Entries of a leaf with 16-byte digests.
pub const LEAF_ENTRIES: usize = BLOCK / LEAF_ENTRY;

/// The most levels that a tree has above its leaves: with 64^10 of them it reaches beyond any address.
pub const MOST_LEVELS: u8 = 10;

/// A leaf entry of which nothing is known: its leaf could not be read, and was rewritten. Neither a block
/// nor unmapped: reading it is an error.
pub const LOST_LEAF_ENTRY: [u8; LEAF_ENTRY] = lost_entry(16);
/// An inner entry of which nothing is known: whatever it covers is lost.
pub const LOST_INNER_ENTRY: [u8; INNER_ENTRY] = lost_entry(32);

/// No segment, and what enters the content root (from `content` on) is that of no block.
const fn lost_entry<const N: usize>(content: usize) -> [u8; N] {
    let mut entry = [0; N];
    let mut at = content;
    while at < N {
        entry[at] = 0xFF;
        at += 1;
    }
    entry
}

/// Where a block or node lies: segment number and offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The segment's number; 0 is no segment.
    pub segment: SegmentNumber,
    /// Data block within the segment.
    pub block: u32,
}

/// A leaf entry: one volume block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafEntry {
    /// Where it lies.
    pub place: Place,
    /// Stored length in units of 512 bytes, 1 to 256.
    pub length: u16,
    /// Compression (bits 0-2; 0 is none), digest algorithm (bits 3-6), rest zero.
    pub flags: u16,
    /// The last checkpoint when it was first written: below 2^40.
    pub birth: u64,
    /// The block's digest, cut to 16 bytes.
    pub digest: [u8; 16],
}

impl LeafEntry {
    /// Reads one entry; `None` is an unmapped block (all zero).
    pub fn read(bytes: &[u8]) -> Result<Option<LeafEntry>, FormatError> {
        let bytes: &[u8; LEAF_ENTRY] = bytes.try_into().map_err(|_| FormatError::Value)?;
        if bytes == &[0; LEAF_ENTRY] {
            return Ok(None);
        }
        let segment = le(&bytes[0..5]);
        let packed = le(&bytes[5..11]);
        let entry = LeafEntry {
            place: Place {
                segment,
                block: u32::try_from((packed & 0x1FFF_FFFF) / 8).unwrap_or(0),
            },
            length: u16::try_from(packed >> 29 & 0x1FF).unwrap_or(0),
            flags: u16::try_from(packed >> 38).unwrap_or(0),
            birth: le(&bytes[11..16]),
            digest: bytes[16..32].try_into().map_err(|_| FormatError::Value)?,
        };
        if segment == 0 || entry.length == 0 || entry.length > 256 || packed & 7 != 0 {
            return Err(FormatError::Value);
        }
        Ok(Some(entry))
    }

    /// Writes one entry, or an unmapped block.
    pub fn write(entry: Option<&LeafEntry>, bytes: &mut [u8]) {
        bytes.fill(0);
        let Some(entry) = entry else { return };
        assert!(
            entry.place.segment < 1 << 40 && entry.place.segment > 0,
            "segment numbers have 40 bits"
        );
        let packed = (u64::from(entry.place.block) << 3)
            | (u64::from(entry.length) << 29)
            | (u64::from(entry.flags) << 38);
        assert!(
            u64::from(entry.place.block) < 1 << 26 && entry.flags < 1 << 10,
            "packed fields fit"
        );
        bytes[0..5].copy_from_slice(&entry.place.segment.to_le_bytes()[..5]);
        bytes[5..11].copy_from_slice(&packed.to_le_bytes()[..6]);
        bytes[11..16].copy_from_slice(&entry.birth.to_le_bytes()[..5]);
        bytes[16..32].copy_from_slice(&entry.digest);
    }
}

/// An inner entry: a node one level down, or the root of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeEntry {
    /// Where the node lies.
    pub place: Place,
    /// For a leaf: the journal sequence it is merged to (56 bits). For the top of a tree, where a root or the catalog
    /// names it: the tree's height ([`NodeEntry::as_top`]).
    pub merged: u64,
    /// The digest of the node's bytes, cut to 16 bytes.
    pub digest: [u8; 16],
    /// The content root of what it covers.
    pub content: [u8; 32],
}

impl NodeEntry {
    /// The entry as a root or the catalog has it, for the top of a tree with so many levels above its leaves.
    pub fn as_top(self, height: u8) -> NodeEntry {
        NodeEntry {
            merged: u64::from(height),
            ..self
        }
    }

    /// How many levels the tree has above its leaves, if this is the entry of its top.
    pub fn height(&self) -> Result<u8, FormatError> {
        let height = u8::try_from(self.merged).map_err(|_| FormatError::Value)?;
        (height <= MOST_LEVELS)
            .then_some(height)
            .ok_or(FormatError::Value)
    }

    /// Reads one entry; `None` is an absent node (nothing mapped below).
    pub fn read(bytes: &[u8]) -> Result<Option<NodeEntry>, FormatError> {
        let bytes: &[u8; INNER_ENTRY] = bytes.try_into().map_err(|_| FormatError::Value)?;
        if bytes == &[0; INNER_ENTRY] {
            return Ok(None);
        }
        let segment = le(&bytes[0..5]);
        if segment == 0 {
            return Err(FormatError::Value);
        }
        Ok(Some(NodeEntry {
            place: Place {
                segment,
                block: u32::try_from(le(&bytes[5..9])).unwrap_or(0),
            },
            merged: le(&bytes[9..16]),
            digest: bytes[16..32].try_into().map_err(|_| FormatError::Value)?,
            content: bytes[32..64].try_into().map_err(|_| FormatError::Value)?,
        }))
    }

    /// Writes one entry, or an absent node.
    pub fn write(entry: Option<&NodeEntry>, bytes: &mut [u8]) {
        bytes.fill(0);
        let Some(entry) = entry else { return };
        assert!(
            entry.place.segment < 1 << 40 && entry.place.segment > 0,
            "segment numbers have 40 bits"
        );
        assert!(entry.merged < 1 << 56, "sequences have 56 bits");
        bytes[0..5].copy_from_slice(&entry.place.segment.to_le_bytes()[..5]);
        bytes[5..9].copy_from_slice(&entry.place.block.to_le_bytes());
        bytes[9..16].copy_from_slice(&entry.merged.to_le_bytes()[..7]);
        bytes[16..32].copy_from_slice(&entry.digest);
        bytes[32..64].copy_from_slice(&entry.content);
    }
}

fn le(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |value, byte| value << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_lost_entry_is_neither_a_block_nor_unmapped() {
        assert!(LeafEntry::read(&LOST_LEAF_ENTRY).is_err());
        assert!(NodeEntry::read(&LOST_INNER_ENTRY).is_err());
        assert_eq!(LOST_LEAF_ENTRY[..16], [0; 16]);
        assert_eq!(LOST_INNER_ENTRY[..32], [0; 32]);
    }

    #[test]
    fn entries_survive_their_bytes() {
        let leaf = LeafEntry {
            place: Place {
                segment: (1 << 40) - 1,
                block: (1 << 26) - 1,
            },
            length: 256,
            flags: 0x3FF,
            birth: (1 << 40) - 1,
            digest: [7; 16],
        };
        let mut bytes = [0; LEAF_ENTRY];
        LeafEntry::write(Some(&leaf), &mut bytes);
        assert_eq!(LeafEntry::read(&bytes).unwrap(), Some(leaf));
        LeafEntry::write(None, &mut bytes);
        assert_eq!(LeafEntry::read(&bytes).unwrap(), None);
        let inner = NodeEntry {
            place: Place {
                segment: 9,
                block: u32::MAX,
            },
            merged: (1 << 56) - 1,
            digest: [1; 16],
            content: [2; 32],
        };
        let mut bytes = [0; INNER_ENTRY];
        NodeEntry::write(Some(&inner), &mut bytes);
        assert_eq!(NodeEntry::read(&bytes).unwrap(), Some(inner));
        assert!(inner.height().is_err(), "it is no top");
        assert_eq!(inner.as_top(MOST_LEVELS).height(), Ok(MOST_LEVELS));
        assert!(inner.as_top(MOST_LEVELS + 1).height().is_err());
    }
}
