//! Summary rows: for every strip block of a course its digest, and who owns it.
//!
//! Invariants: a column's summary holds the digests of that column's own blocks, so that it is lost
//! only together with them. The 16 owner bytes of the parity columns are the parity of the data
//! columns' owner bytes, so that the owners of a lost column can be decoded from any K others.

use crate::wire::{Reader, Writer, seal, unseal};
use crate::{BLOCK, FormatError, SegmentNumber, geometry::ROWS_PER_SUMMARY};

const MAGIC: &[u8; 8] = b"ASHSUMRY";
/// Bytes of the owner part of a row.
pub const OWNER_BYTES: usize = 16;

/// What a strip block holds, as far as moving it needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Owner {
    /// Volume or system tree; 0 is nobody (padding, or a strip that was never written).
    pub tree: u32,
    /// 0 for a volume's data; 1 + level for a tree's node.
    pub kind: u8,
    /// Digest algorithm of the row's digest (see the digest crate's tags).
    pub algorithm: u8,
    /// Which 4 KiB piece of its volume block this is, and of how many (0 for 1).
    pub piece: u8,
    /// Blocks of the volume block, less one.
    pub pieces_less_one: u8,
    /// Volume block address, or partition (upper 16 bits) and node index.
    pub address: u64,
}

impl Owner {
    /// The stored form.
    pub fn to_bytes(self) -> [u8; OWNER_BYTES] {
        let mut w = Writer::new();
        w.u32(self.tree)
            .u8(self.kind)
            .u8(self.algorithm)
            .u8(self.piece)
            .u8(self.pieces_less_one);
        w.u64(self.address);
        w.0.try_into().expect("sixteen bytes")
    }

    /// Reads the stored form; any bytes are some owner.
    pub fn from_bytes(bytes: &[u8; OWNER_BYTES]) -> Owner {
        let mut r = Reader::new(bytes);
        let mut read = || -> Result<Owner, FormatError> {
            Ok(Owner {
                tree: r.u32()?,
                kind: r.u8()?,
                algorithm: r.u8()?,
                piece: r.u8()?,
                pieces_less_one: r.u8()?,
                address: r.u64()?,
            })
        };
        read().unwrap_or_default()
    }
}

/// One row: the digest of a strip block, and its owner (in parity columns: the owners' parity).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Row {
    /// The block's digest, cut to 16 bytes; all zero: the strip was never written and counts as zeros.
    pub digest: [u8; 16],
    /// Owner bytes.
    pub owner: [u8; OWNER_BYTES],
}

/// What identifies a summary block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SummaryId {
    /// The segment.
    pub segment: SegmentNumber,
    /// The column.
    pub column: u16,
    /// The course.
    pub course: u32,
    /// Which of the course's summary blocks.
    pub part: u32,
}

/// The 4 KiB of one summary block.
pub fn encode(array: &[u8; 16], id: SummaryId, rows: &[Row]) -> Vec<u8> {
    assert!(
        rows.len() <= ROWS_PER_SUMMARY as usize,
        "a summary block has {ROWS_PER_SUMMARY} rows"
    );
    let mut w = Writer::new();
    w.bytes(MAGIC).u64(id.segment).u16(id.column);
    w.u16(u16::try_from(rows.len()).expect("126 at most"))
        .u32(id.course)
        .u32(id.part);
    let mut w = Writer(w.padded(32));
    for row in rows {
        w.bytes(&row.digest).bytes(&row.owner);
    }
    let mut bytes = w.padded(BLOCK);
    seal(array, &mut bytes);
    bytes
}

/// Reads a summary block that must be `id`'s.
pub fn decode(array: &[u8; 16], id: SummaryId, bytes: &[u8]) -> Result<Vec<Row>, FormatError> {
    if bytes.len() != BLOCK || !bytes.starts_with(MAGIC) {
        return Err(FormatError::Magic);
    }
    let mut r = Reader::new(unseal(array, bytes)?);
    r.bytes(8)?;
    let (segment, column, count) = (r.u64()?, r.u16()?, usize::from(r.u16()?));
    let found = SummaryId {
        segment,
        column,
        course: r.u32()?,
        part: r.u32()?,
    };
    if found != id || count > ROWS_PER_SUMMARY as usize {
        return Err(FormatError::Value);
    }
    r.bytes(4)?;
    (0..count)
        .map(|_| {
            Ok(Row {
                digest: r.array()?,
                owner: r.array()?,
            })
        })
        .collect()
}

/// Splits the address of a node's owner into partition and index.
pub fn node_address(address: u64) -> (u16, u64) {
    ((address >> 48) as u16, address & 0xFFFF_FFFF_FFFF)
}

/// The address of a node's owner.
pub fn node_owner_address(partition: u16, index: u64) -> u64 {
    assert!(index < 1 << 48, "node indexes have 48 bits");
    u64::from(partition) << 48 | index
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_summary_is_only_its_own() {
        let owner = Owner {
            tree: 5,
            kind: 0,
            algorithm: 1,
            piece: 2,
            pieces_less_one: 3,
            address: 77,
        };
        assert_eq!(Owner::from_bytes(&owner.to_bytes()), owner);
        let rows = vec![
            Row {
                digest: [3; 16],
                owner: owner.to_bytes()
            };
            126
        ];
        let id = SummaryId {
            segment: 4,
            column: 1,
            course: 2,
            part: 0,
        };
        let mut bytes = encode(&[9; 16], id, &rows);
        assert_eq!(decode(&[9; 16], id, &bytes).unwrap(), rows);
        assert_eq!(decode(&[8; 16], id, &bytes), Err(FormatError::Digest));
        assert_eq!(
            decode(&[9; 16], SummaryId { column: 2, ..id }, &bytes),
            Err(FormatError::Value)
        );
        bytes[2000] ^= 1;
        assert_eq!(decode(&[9; 16], id, &bytes), Err(FormatError::Digest));
    }
}
