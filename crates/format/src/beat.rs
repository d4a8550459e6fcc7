//! The beat: the block by which the program that uses an array shows to other hosts that it does.
//!
//! Invariants: a block that does not unseal says nothing, since a write may have been torn; it never keeps an array
//! from being imported by itself.

use crate::wire::{Reader, Writer, seal, unseal};
use crate::{BLOCK, FormatError};

/// The first bytes of the block.
pub const MAGIC: &[u8; 8] = b"ASHBEAT1";
/// Where the name of the host stands.
const HOST_AT: usize = 128;
/// Longest name of a host that is kept.
pub const MAX_HOST: usize = 64;

/// What a device says of the program that uses it, or used it last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    /// Goes up with every block that the program writes.
    pub counter: u64,
    /// Whether the program uses the array; it has let it go otherwise.
    pub in_use: bool,
    /// Identity of the boot of its host.
    pub boot: [u8; 16],
    /// Identity of its host; 0: it has none.
    pub machine: [u8; 16],
    /// Random, another one at each import.
    pub instance: [u8; 16],
    /// The program writes nothing any more once its beat is older than this, in milliseconds.
    pub fence_ms: u32,
    /// Name of its host, at most [`MAX_HOST`] bytes.
    pub host: String,
}

impl Beat {
    /// The stored 4 KiB.
    ///
    /// # Panics
    /// If the name is too long.
    pub fn encode(&self, array: &[u8; 16]) -> Vec<u8> {
        assert!(self.host.len() <= MAX_HOST, "nobody could read it");
        let mut w = Writer::new();
        w.bytes(MAGIC)
            .u64(self.counter)
            .u32(u32::from(self.in_use))
            .u32(self.fence_ms)
            .bytes(&self.boot)
            .bytes(&self.machine)
            .bytes(&self.instance);
        let mut w = Writer(w.padded(HOST_AT));
        w.string(&self.host);
        let mut bytes = w.padded(BLOCK);
        seal(array, &mut bytes);
        bytes
    }

    /// Reads a block of this array.
    ///
    /// # Errors
    /// It says nothing: it is of no beat, of another array, or torn.
    pub fn decode(array: &[u8; 16], bytes: &[u8]) -> Result<Beat, FormatError> {
        if bytes.len() != BLOCK {
            return Err(FormatError::Value);
        }
        let mut r = Reader::new(bytes);
        if r.array::<8>()? != *MAGIC {
            return Err(FormatError::Magic);
        }
        let inner = unseal(array, bytes)?;
        let mut host = Reader::new(inner);
        host.bytes(HOST_AT)?;
        let mut r = Reader::new(inner);
        r.bytes(8)?;
        Ok(Beat {
            counter: r.u64()?,
            in_use: match r.u32()? {
                0 => false,
                1 => true,
                _ => return Err(FormatError::Value),
            },
            fence_ms: r.u32()?,
            boot: r.array()?,
            machine: r.array()?,
            instance: r.array()?,
            host: host.string(MAX_HOST)?,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn sample() -> Beat {
        Beat {
            counter: 0x0102_0304_0506_0708,
            in_use: true,
            boot: [1; 16],
            machine: [2; 16],
            instance: [3; 16],
            fence_ms: 40_000,
            host: "storage-1".into(),
        }
    }

    #[test]
    fn a_beat_survives_its_bytes() {
        for host in ["", "storage-1", &"h".repeat(MAX_HOST)] {
            for in_use in [true, false] {
                let host = host.to_string();
                let beat = Beat {
                    host,
                    in_use,
                    ..sample()
                };
                let bytes = beat.encode(&[7; 16]);
                assert_eq!(bytes.len(), BLOCK);
                assert_eq!(Beat::decode(&[7; 16], &bytes), Ok(beat));
            }
        }
    }

    /// The places of docs/format.md.
    #[test]
    fn fields_stand_where_the_norm_says() {
        let bytes = sample().encode(&[7; 16]);
        assert_eq!(&bytes[..8], b"ASHBEAT1");
        assert_eq!(bytes[8..16], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(bytes[16..20], [1, 0, 0, 0]);
        assert_eq!(bytes[20..24], 40_000u32.to_le_bytes());
        assert_eq!((bytes[24], bytes[40], bytes[56]), (1, 2, 3));
        assert_eq!(bytes[128..130], [9, 0]);
        assert_eq!(&bytes[130..139], b"storage-1");
    }

    #[test]
    fn a_torn_block_and_one_of_another_array_say_nothing() {
        let bytes = sample().encode(&[7; 16]);
        assert!(Beat::decode(&[8; 16], &bytes).is_err());
        assert!(Beat::decode(&[7; 16], &vec![0; BLOCK]).is_err());
        assert!(Beat::decode(&[7; 16], &bytes[..512]).is_err());
        for at in [0, 8, 16, 130, BLOCK - 1] {
            let mut torn = bytes.clone();
            torn[at] ^= 1;
            assert!(Beat::decode(&[7; 16], &torn).is_err(), "{at}");
        }
    }
}
