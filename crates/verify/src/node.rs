//! Entries of nodes: the 32 bytes of a leaf's, the 64 of an inner node's.
//!
//! **Invariants**: all zero is no entry; a lost one is neither an entry nor none; anything else that the
//! format does not allow is malformed, and names nothing.

use crate::wire::little_endian;

/// What stands in the place of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot<T> {
    /// Nothing below.
    Empty,
    /// Nothing is known of what is below.
    Lost,
    /// Bytes that no writer makes.
    Malformed,
    /// An entry.
    Entry(T),
}

/// Where a block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) segment: u64,
    pub(crate) block: u32,
}

/// An inner entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inner {
    pub(crate) place: Place,
    pub(crate) merged: u64,
    pub(crate) digest: [u8; 16],
    pub(crate) content: [u8; 32],
}

/// A leaf entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    pub(crate) place: Place,
    /// Stored length in blocks.
    pub(crate) blocks: u32,
    /// Tag of the digest.
    pub(crate) tag: u8,
    pub(crate) birth: u64,
    pub(crate) digest: [u8; 16],
}

fn is_all(bytes: &[u8], value: u8) -> bool {
    bytes.iter().all(|byte| *byte == value)
}

/// What is no entry but no damage either.
fn special<T>(bytes: &[u8], upper: usize) -> Option<Slot<T>> {
    let (low, high) = bytes.split_at_checked(upper)?;
    match (is_all(low, 0), is_all(high, 0), is_all(high, 0xFF)) {
        (true, true, _) => Some(Slot::Empty),
        (true, _, true) => Some(Slot::Lost),
        _ => None,
    }
}

impl Inner {
    /// Reads 64 bytes.
    pub(crate) fn parse(bytes: &[u8]) -> Slot<Inner> {
        if let Some(slot) = special(bytes, 32) {
            return slot;
        }
        let parsed = || {
            let segment = little_endian(bytes.get(..5)?);
            let block = u32::try_from(little_endian(bytes.get(5..9)?)).ok()?;
            let entry = Inner {
                place: Place { segment, block },
                merged: little_endian(bytes.get(9..16)?),
                digest: bytes.get(16..32)?.try_into().ok()?,
                content: bytes.get(32..64)?.try_into().ok()?,
            };
            (segment > 0).then_some(Slot::Entry(entry))
        };
        parsed().unwrap_or(Slot::Malformed)
    }
}

impl Leaf {
    /// Reads 32 bytes.
    pub(crate) fn parse(bytes: &[u8]) -> Slot<Leaf> {
        if let Some(slot) = special(bytes, 16) {
            return slot;
        }
        let parsed = || {
            let segment = little_endian(bytes.get(..5)?);
            let packed = little_endian(bytes.get(5..11)?);
            let (place, length, flags) = (packed & 0x1FFF_FFFF, packed >> 29 & 0x1FF, packed >> 38);
            // Bits 0-2 are compression, 7-9 are to be zero.
            let sound = segment > 0
                && place.is_multiple_of(8)
                && (1..=256).contains(&length)
                && length.is_multiple_of(8)
                && flags & 0b11_1000_0111 == 0;
            let entry = Leaf {
                place: Place {
                    segment,
                    block: u32::try_from(place / 8).ok()?,
                },
                blocks: u32::try_from(length / 8).ok()?,
                tag: u8::try_from(flags >> 3 & 0xF).ok()?,
                birth: little_endian(bytes.get(11..16)?),
                digest: bytes.get(16..32)?.try_into().ok()?,
            };
            sound.then_some(Slot::Entry(entry))
        };
        parsed().unwrap_or(Slot::Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_told_from_nothing_and_from_lost_ones() {
        let mut bytes = [0; 64];
        assert_eq!(Inner::parse(&bytes), Slot::Empty);
        assert_eq!(Leaf::parse(&bytes[..32]), Slot::Empty);
        bytes[32..].fill(0xFF);
        assert_eq!(Inner::parse(&bytes), Slot::Lost);
        bytes[16..32].fill(0xFF);
        assert_eq!(Leaf::parse(&bytes[..32]), Slot::Lost);
        assert_eq!(Inner::parse(&bytes), Slot::Malformed);
        bytes[0] = 7;
        bytes[5] = 3;
        let Slot::Entry(inner) = Inner::parse(&bytes) else {
            panic!("an entry")
        };
        assert_eq!((inner.place.segment, inner.place.block), (7, 3));
        assert_eq!(Leaf::parse(&bytes[..32]), Slot::Malformed);
        let packed = 24u64 | 8 << 29 | 1 << 41;
        bytes[5..11].copy_from_slice(&packed.to_le_bytes()[..6]);
        let Slot::Entry(leaf) = Leaf::parse(&bytes[..32]) else {
            panic!("an entry")
        };
        assert_eq!((leaf.place.block, leaf.blocks, leaf.tag), (3, 1, 1));
        assert_eq!(Leaf::parse(&bytes[..9]), Slot::Malformed);
    }
}
