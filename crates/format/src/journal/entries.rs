//! Entries of a journal record, and their bytes in a payload.
//!
//! Invariants: [`entry_bytes`] is what [`encode_entries`] writes of an entry; what
//! [`decode_entries`] accepts has counts and lengths that the format allows.

use crate::node::Place;
use crate::slot::SegmentKind;
use crate::summary::{OWNER_BYTES, Row};
use crate::wire::{Reader, Writer};
use crate::{BLOCK, FormatError, SegmentNumber};

/// A delta that a stripe makes valid: its block's owner is in the row of the same block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeDelta {
    /// Data block within the stripe at which the volume block begins.
    pub block: u32,
    /// The volume block's digest for the map.
    pub digest: [u8; 16],
    /// If it moves a block: the place it moves it from. The delta holds only if the map still says so.
    pub from: Option<Place>,
}

/// A written and flushed stripe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StripeEntry {
    /// Its segment.
    pub segment: SegmentNumber,
    /// Its number within the segment.
    pub stripe: u32,
    /// Its first data block within the segment.
    pub first_block: u32,
    /// Data strips that were written; the others count as zeros.
    pub used_strips: u16,
    /// The checkpoint that new blocks of it are born under.
    pub birth: u64,
    /// Summary rows: `strip_blocks` for each written data strip, then for each parity strip.
    pub rows: Vec<Row>,
    /// The deltas, in the order of their blocks.
    pub deltas: Vec<StripeDelta>,
}

/// A block whose stripe is not yet written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataEntry {
    /// The volume.
    pub tree: u32,
    /// The volume block.
    pub address: u64,
    /// The place it has in its open stripe.
    pub place: Place,
    /// Digest algorithm.
    pub algorithm: u8,
    /// Its digest for the map.
    pub digest: [u8; 16],
    /// Its bytes: whole blocks.
    pub bytes: Vec<u8>,
}

/// One thing a record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A segment begins; its slots' headers are durable.
    Open {
        /// Its number.
        segment: SegmentNumber,
        /// What it holds.
        kind: SegmentKind,
        /// Erasure code.
        code: u8,
        /// Data strips a stripe.
        k: u16,
        /// Parity strips a stripe.
        m: u16,
        /// Blocks a strip.
        strip_blocks: u32,
        /// Device and slot of every column; slot `u32::MAX`: the column was never there.
        columns: Vec<(u16, u32)>,
    },
    /// A stripe is written and flushed.
    Stripe(StripeEntry),
    /// A block is durable here until its stripe is.
    Data(DataEntry),
    /// Volume blocks are unmapped.
    Unmap {
        /// The volume.
        tree: u32,
        /// First volume block.
        first: u64,
        /// How many.
        count: u64,
        /// Only blocks of partitions p with p modulo the first equal to the second: a shard speaks
        /// for its own partitions.
        part: (u16, u16),
    },
    /// A column of a segment now lies elsewhere; its bytes and header are durable there.
    Column {
        /// The segment.
        segment: SegmentNumber,
        /// The column.
        column: u16,
        /// Its version there.
        version: u32,
        /// The device.
        device: u16,
        /// The slot.
        slot: u32,
    },
}

/// Serializes entries into a payload.
pub fn encode_entries(entries: &[Entry]) -> Vec<u8> {
    let mut w = Writer::new();
    for entry in entries {
        encode_entry(&mut w, entry);
    }
    w.0
}

fn place(w: &mut Writer, place: Place) {
    w.u64(place.segment).u32(place.block);
}

fn encode_entry(w: &mut Writer, entry: &Entry) {
    match entry {
        Entry::Open {
            segment,
            kind,
            code,
            k,
            m,
            strip_blocks,
            columns,
        } => {
            w.u8(1)
                .u64(*segment)
                .u8(*kind as u8)
                .u8(*code)
                .u16(*k)
                .u16(*m)
                .u32(*strip_blocks)
                .u32(0);
            for (device, slot) in columns {
                w.u16(*device).u32(*slot);
            }
        }
        Entry::Stripe(s) => {
            w.u8(2)
                .u64(s.segment)
                .u32(s.stripe)
                .u32(s.first_block)
                .u16(s.used_strips)
                .u64(s.birth);
            w.u32(u32::try_from(s.rows.len()).expect("256 strips of 256 blocks"));
            for row in &s.rows {
                w.bytes(&row.digest).bytes(&row.owner);
            }
            w.u32(u32::try_from(s.deltas.len()).expect("fewer than the rows"));
            for delta in &s.deltas {
                w.u32(delta.block)
                    .bytes(&delta.digest)
                    .u8(u8::from(delta.from.is_some()));
                if let Some(from) = delta.from {
                    place(w, from);
                }
            }
        }
        Entry::Data(d) => {
            w.u8(3).u32(d.tree).u64(d.address);
            place(w, d.place);
            w.u8(d.algorithm).bytes(&d.digest);
            w.u32(u32::try_from(d.bytes.len()).expect("128 KiB at most"))
                .bytes(&d.bytes);
        }
        Entry::Unmap {
            tree,
            first,
            count,
            part,
        } => {
            w.u8(4)
                .u32(*tree)
                .u64(*first)
                .u64(*count)
                .u16(part.0)
                .u16(part.1);
        }
        Entry::Column {
            segment,
            column,
            version,
            device,
            slot,
        } => {
            w.u8(6)
                .u64(*segment)
                .u16(*column)
                .u32(*version)
                .u16(*device)
                .u32(*slot);
        }
    }
}

/// Bytes an entry takes in a payload.
pub fn entry_bytes(entry: &Entry) -> usize {
    match entry {
        Entry::Open { columns, .. } => 23 + columns.len() * 6,
        Entry::Stripe(s) => {
            35 + s.rows.len() * 32
                + s.deltas
                    .iter()
                    .map(|d| if d.from.is_some() { 33 } else { 21 })
                    .sum::<usize>()
        }
        Entry::Data(d) => 46 + d.bytes.len(),
        Entry::Unmap { .. } => 25,
        Entry::Column { .. } => 21,
    }
}

/// Reads the entries of a payload (whose digest has been checked).
pub fn decode_entries(payload: &[u8]) -> Result<Vec<Entry>, FormatError> {
    let mut r = Reader::new(payload);
    let mut entries = Vec::new();
    while !r.rest().is_empty() {
        entries.push(decode_entry(&mut r)?);
    }
    Ok(entries)
}

fn read_place(r: &mut Reader<'_>) -> Result<Place, FormatError> {
    Ok(Place {
        segment: r.u64()?,
        block: r.u32()?,
    })
}

fn decode_entry(r: &mut Reader<'_>) -> Result<Entry, FormatError> {
    Ok(match r.u8()? {
        1 => {
            let (segment, kind) = (r.u64()?, SegmentKind::from_byte(r.u8()?)?);
            let (code, k, m, strip_blocks) = (r.u8()?, r.u16()?, r.u16()?, r.u32()?);
            let width = usize::from(k) + usize::from(m);
            // Roles that rotate and local groups are features that are not known here.
            let plain = r.u32()? == 0;
            if !plain || k == 0 || width > 256 || !(1..=256).contains(&strip_blocks) {
                return Err(FormatError::Value);
            }
            let columns = (0..width)
                .map(|_| Ok((r.u16()?, r.u32()?)))
                .collect::<Result<_, _>>()?;
            Entry::Open {
                segment,
                kind,
                code,
                k,
                m,
                strip_blocks,
                columns,
            }
        }
        2 => Entry::Stripe(decode_stripe(r)?),
        3 => {
            let (tree, address, place) = (r.u32()?, r.u64()?, read_place(r)?);
            let (algorithm, digest) = (r.u8()?, r.array()?);
            let length = r.u32()? as usize;
            if length == 0 || !length.is_multiple_of(BLOCK) || length > 32 * BLOCK {
                return Err(FormatError::Value);
            }
            Entry::Data(DataEntry {
                tree,
                address,
                place,
                algorithm,
                digest,
                bytes: r.bytes(length)?.to_vec(),
            })
        }
        4 => {
            let (tree, first, count, part) = (r.u32()?, r.u64()?, r.u64()?, (r.u16()?, r.u16()?));
            if part.0 == 0 || part.1 >= part.0 {
                return Err(FormatError::Value);
            }
            Entry::Unmap {
                tree,
                first,
                count,
                part,
            }
        }
        6 => Entry::Column {
            segment: r.u64()?,
            column: r.u16()?,
            version: r.u32()?,
            device: r.u16()?,
            slot: r.u32()?,
        },
        _ => return Err(FormatError::Value),
    })
}

fn decode_stripe(r: &mut Reader<'_>) -> Result<StripeEntry, FormatError> {
    let (segment, stripe, first_block) = (r.u64()?, r.u32()?, r.u32()?);
    let (used_strips, birth) = (r.u16()?, r.u64()?);
    let count = r.u32()? as usize;
    let mut bytes = Reader::new(
        r.bytes(
            count
                .checked_mul(16 + OWNER_BYTES)
                .ok_or(FormatError::Value)?,
        )?,
    );
    let rows = (0..count)
        .map(|_| {
            Ok(Row {
                digest: bytes.array()?,
                owner: bytes.array()?,
            })
        })
        .collect::<Result<Vec<_>, _>>()?;
    let mut deltas = Vec::new();
    for _ in 0..r.u32()? {
        let (block, digest) = (r.u32()?, r.array()?);
        let from = if r.u8()? == 0 {
            None
        } else {
            Some(read_place(r)?)
        };
        deltas.push(StripeDelta {
            block,
            digest,
            from,
        });
    }
    Ok(StripeEntry {
        segment,
        stripe,
        first_block,
        used_strips,
        birth,
        rows,
        deltas,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn entries() -> Vec<Entry> {
        vec![
            Entry::Open {
                segment: 5,
                kind: SegmentKind::Data,
                code: 0,
                k: 2,
                m: 1,
                strip_blocks: 4,
                columns: vec![(0, 7), (1, 8), (2, u32::MAX)],
            },
            Entry::Stripe(StripeEntry {
                segment: 5,
                stripe: 0,
                first_block: 0,
                used_strips: 1,
                birth: 3,
                rows: vec![
                    Row {
                        digest: [1; 16],
                        owner: [2; 16]
                    };
                    8
                ],
                deltas: vec![
                    StripeDelta {
                        block: 0,
                        digest: [3; 16],
                        from: None,
                    },
                    StripeDelta {
                        block: 1,
                        digest: [4; 16],
                        from: Some(Place {
                            segment: 2,
                            block: 9,
                        }),
                    },
                ],
            }),
            Entry::Data(DataEntry {
                tree: 1,
                address: 77,
                place: Place {
                    segment: 5,
                    block: 9,
                },
                algorithm: 1,
                digest: [5; 16],
                bytes: vec![6; BLOCK],
            }),
            Entry::Unmap {
                tree: 1,
                first: 5,
                count: 6,
                part: (2, 1),
            },
            Entry::Column {
                segment: 5,
                column: 1,
                version: 2,
                device: 9,
                slot: 4,
            },
        ]
    }

    #[test]
    fn entries_survive_their_bytes_and_no_prefix_panics() {
        let payload = encode_entries(&entries());
        assert_eq!(
            payload.len(),
            entries().iter().map(entry_bytes).sum::<usize>()
        );
        assert_eq!(decode_entries(&payload).unwrap(), entries());
        for cut in 0..payload.len() {
            let _ = decode_entries(&payload[..cut]);
        }
    }
}
