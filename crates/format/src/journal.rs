//! Journal records: their entries, and the columns that store them.
//!
//! A record's payload is a run of entries. It is cut into w shares, m parity shares are computed, and
//! each share is stored behind a header of 1 KiB as one column, on a device of its own; any w columns
//! give the payload back. All columns of a record lie at the same offset of their devices' ring.
//!
//! Invariants: a header is sealed and carries the digest of its share, so a column is whole or not
//! there; columns of different attempts never mix, since the header names the attempt.

mod entries;

pub use entries::{
    DataEntry, Entry, StripeDelta, StripeEntry, decode_entries, encode_entries, entry_bytes,
};

use crate::root::RingPosition;
use crate::wire::{Reader, Writer, seal, unseal};
use crate::{BLOCK, FormatError};

const MAGIC: &[u8; 8] = b"ASHJRNL1";
/// Bytes of a column before its share.
pub const HEADER_BYTES: usize = 1024;

/// Which ring a record lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Ring {
    /// Map changes and segment changes.
    Delta = 0,
    /// Blocks whose stripe is not yet written.
    Data = 1,
}

/// The header of one column of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnHeader {
    /// The epoch.
    pub epoch: u64,
    /// The identity of the epoch.
    pub epoch_id: [u8; 16],
    /// The record's sequence, over both rings.
    pub sequence: u64,
    /// Counts the attempts to write this sequence.
    pub attempt: u32,
    /// The ring it lies in.
    pub ring: Ring,
    /// Data columns.
    pub w: u16,
    /// Parity columns.
    pub m: u16,
    /// This column: below w + m.
    pub column: u16,
    /// Bytes of the payload.
    pub payload_bytes: u32,
    /// Digest of the whole payload.
    pub hash: [u8; 32],
    /// The highest sequence known durable when this record was built.
    pub acknowledged: u64,
    /// Where the record lies: positions of both rings before it.
    pub position: [RingPosition; 2],
    /// Where the data ring's needed part began when this record was built.
    pub data_tail: RingPosition,
    /// Digest of this column's share.
    pub share_digest: [u8; 32],
    /// The devices of all columns.
    pub devices: Vec<u16>,
}

impl ColumnHeader {
    /// Bytes of a share.
    pub fn share_bytes(&self) -> usize {
        (self.payload_bytes as usize).div_ceil(usize::from(self.w))
    }

    /// Bytes of a stored column: whole blocks.
    pub fn column_bytes(&self) -> usize {
        (HEADER_BYTES + self.share_bytes()).next_multiple_of(BLOCK)
    }

    /// The first [`HEADER_BYTES`] of the column.
    pub fn encode(&self, array: &[u8; 16]) -> Vec<u8> {
        let mut w = Writer::new();
        w.bytes(MAGIC)
            .u64(self.epoch)
            .bytes(&self.epoch_id)
            .u64(self.sequence)
            .u32(self.attempt)
            .u8(self.ring as u8)
            .u8(0);
        w.u16(self.w)
            .u16(self.m)
            .u16(self.column)
            .u32(self.payload_bytes);
        w.bytes(&self.hash).u64(self.acknowledged);
        for position in [self.position[0], self.position[1], self.data_tail] {
            w.u64(position.count).u64(position.bytes);
        }
        let arena_position = 0;
        w.u64(arena_position).bytes(&self.share_digest);
        for device in &self.devices {
            w.u16(*device);
        }
        let mut bytes = w.padded(HEADER_BYTES);
        seal(array, &mut bytes);
        bytes
    }

    /// Reads a header from the front of a column.
    pub fn decode(array: &[u8; 16], bytes: &[u8]) -> Result<ColumnHeader, FormatError> {
        let bytes = bytes.get(..HEADER_BYTES).ok_or(FormatError::Value)?;
        if !bytes.starts_with(MAGIC) {
            return Err(FormatError::Magic);
        }
        let mut r = Reader::new(unseal(array, bytes)?);
        r.bytes(8)?;
        let (epoch, epoch_id) = (r.u64()?, r.array()?);
        let (sequence, attempt) = (r.u64()?, r.u32()?);
        let ring = match r.u8()? {
            0 => Ring::Delta,
            1 => Ring::Data,
            _ => return Err(FormatError::Value),
        };
        if r.u8()? != 0 {
            return Err(FormatError::Value); // a record that only a root can make count: a feature not known here
        }
        let (w, m, column, payload_bytes) = (r.u16()?, r.u16()?, r.u16()?, r.u32()?);
        let (hash, acknowledged) = (r.array()?, r.u64()?);
        let mut position = || -> Result<RingPosition, FormatError> {
            Ok(RingPosition {
                count: r.u64()?,
                bytes: r.u64()?,
            })
        };
        let (delta, data, data_tail) = (position()?, position()?, position()?);
        r.u64()?;
        let share_digest = r.array()?;
        let width = usize::from(w) + usize::from(m);
        if w == 0 || width > 256 || usize::from(column) >= width || payload_bytes > 1 << 30 {
            return Err(FormatError::Value);
        }
        let devices = (0..width).map(|_| r.u16()).collect::<Result<_, _>>()?;
        Ok(ColumnHeader {
            epoch,
            epoch_id,
            sequence,
            attempt,
            ring,
            w,
            m,
            column,
            payload_bytes,
            hash,
            acknowledged,
            position: [delta, data],
            data_tail,
            share_digest,
            devices,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_header_survives_its_bytes() {
        let header = ColumnHeader {
            epoch: 3,
            epoch_id: [8; 16],
            sequence: 99,
            attempt: 1,
            ring: Ring::Data,
            w: 2,
            m: 1,
            column: 2,
            payload_bytes: 9001,
            hash: [1; 32],
            acknowledged: 98,
            position: [
                RingPosition { count: 1, bytes: 2 },
                RingPosition { count: 3, bytes: 4 },
            ],
            data_tail: RingPosition { count: 2, bytes: 1 },
            share_digest: [4; 32],
            devices: vec![3, 1, 2],
        };
        assert_eq!(header.share_bytes(), 4501);
        assert_eq!(header.column_bytes(), 8192);
        let mut bytes = header.encode(&[7; 16]);
        assert_eq!(ColumnHeader::decode(&[7; 16], &bytes).unwrap(), header);
        bytes[100] ^= 1;
        assert!(ColumnHeader::decode(&[7; 16], &bytes).is_err());
    }
}
