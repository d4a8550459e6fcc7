//! Liveness records: one a segment: a header of 64 bytes, then the bitmap of live blocks.
//!
//! Invariants:
//! - All records of an array have one size, in whole nodes or an even part of one, so that a record is found by
//!   arithmetic.
//! - A record is written leaf by leaf as it would be as a whole.

use std::collections::BTreeMap;

use crate::bitmap::Bitmap;
use crate::slot::SegmentForm;
use crate::wire::{Reader, Writer};
use crate::{BLOCK, BLOCK_U64, FormatError, SegmentGeometry};

/// Bytes of a record before its bitmap.
pub const HEADER_BYTES: usize = 64;

/// How the records of an array lie in the leaves of the liveness tree: each in a few leaves of its own, or,
/// where segments are small, some in each leaf. Else a checkpoint of an array with small slots would write a
/// node for every segment it touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordShape {
    /// Leaves of a record; 1 if records share leaves.
    leaves: u64,
    /// Records in a leaf; 1 if a record has leaves of its own.
    per_leaf: u64,
}

impl RecordShape {
    /// The shape that an array with slots of `slot_blocks` and data segments of `k` is created with.
    pub fn new(slot_blocks: u32, k: u16) -> RecordShape {
        RecordShape::of_blocks(RecordShape::data_blocks(slot_blocks, k))
    }

    /// The data blocks that a record has a bit for in an array that is created with slots of `slot_blocks` and data
    /// segments of `k`.
    pub fn data_blocks(slot_blocks: u32, k: u16) -> u32 {
        u32::from(k.max(8)) * slot_blocks
    }

    /// The shape of records with a bit for each of so many data blocks.
    pub fn of_blocks(data_blocks: u32) -> RecordShape {
        let bytes = HEADER_BYTES + (data_blocks as usize).div_ceil(8);
        RecordShape {
            leaves: bytes.div_ceil(BLOCK) as u64,
            per_leaf: (BLOCK / bytes.next_power_of_two()).max(1) as u64,
        }
    }

    /// Leaves that a record takes, or shares.
    pub fn leaves(self) -> usize {
        self.leaves as usize
    }

    /// Bytes of a record.
    pub fn bytes(self) -> usize {
        (self.leaves * BLOCK_U64 / self.per_leaf) as usize
    }

    /// The leaf and the byte in it at which `byte` of a record lies.
    pub fn locate(self, record: u32, byte: usize) -> (u64, usize) {
        let first = u64::from(record) * self.leaves / self.per_leaf;
        let start = (u64::from(record) % self.per_leaf) as usize * (BLOCK / self.per_leaf as usize);
        (
            first + ((start + byte) / BLOCK) as u64,
            (start + byte) % BLOCK,
        )
    }

    /// The leaves of a record.
    pub fn leaves_of(self, record: u32) -> std::ops::Range<u64> {
        let first = self.locate(record, 0).0;
        first..first + self.leaves
    }

    /// From which byte on a record lies in one of its leaves, and where there.
    pub fn part_in(self, record: u32, leaf: u64) -> (usize, std::ops::Range<usize>) {
        let (first, start) = self.locate(record, 0);
        let at = (leaf - first) as usize * BLOCK;
        (at, start..start + (self.bytes() - at).min(BLOCK))
    }

    /// The records of a leaf.
    pub fn records_of(self, leaf: u64) -> std::ops::Range<u32> {
        let first = leaf * self.per_leaf / self.leaves;
        let number = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        number(first)..number(first + self.per_leaf)
    }

    /// The most leaves that `count` records numbered below `end` take.
    pub fn most_leaves(self, count: usize, end: u32) -> usize {
        let all = u64::from(end) * self.leaves;
        (count * self.leaves as usize).min(all.div_ceil(self.per_leaf) as usize)
    }

    /// Leaves for each segment, on average.
    pub fn leaves_per_record(self) -> f64 {
        self.leaves as f64 / self.per_leaf as f64
    }

    /// All records in the leaves of a liveness tree, by number.
    pub fn split(self, leaves: &BTreeMap<u64, Vec<u8>>) -> BTreeMap<u32, Vec<u8>> {
        let mut records: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        for (leaf, payload) in leaves {
            for record in self.records_of(*leaf) {
                let bytes = records
                    .entry(record)
                    .or_insert_with(|| vec![0; self.bytes()]);
                let (at, place) = self.part_in(record, *leaf);
                bytes[at..at + place.len()].copy_from_slice(&payload[place]);
            }
        }
        records
    }
}

/// What a record says besides the bitmap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    /// The segment.
    pub segment: u64,
    /// Stripes recorded.
    pub recorded: u32,
    /// Takes no more.
    pub sealed: bool,
    /// Live blocks.
    pub live: u32,
    /// The checkpoint that first said that it takes no more; 0 if none has.
    pub sealed_in: u64,
    /// What the segment is, for an import that finds none of its columns; records of earlier programs do not say it.
    pub form: Option<SegmentForm>,
}

/// Writes the bytes of a record from byte `at` on, a multiple of 8, into `part`: of a large one a checkpoint writes the
/// leaves that changed, and looks at no others.
pub fn encode_part(header: RecordHeader, live: &Bitmap, at: usize, part: &mut [u8]) {
    let mut w = Writer::new();
    w.u64(header.segment)
        .u32(header.recorded)
        .u8(u8::from(header.sealed))
        .u32(header.live)
        .u64(header.sealed_in);
    if let Some(form) = &header.form {
        form.write(&mut w);
    }
    let header = w.padded(HEADER_BYTES);
    let of_header = header.get(at..).unwrap_or(&[]);
    let (head, bitmap) = part.split_at_mut(of_header.len().min(part.len()));
    head.copy_from_slice(&of_header[..head.len()]);
    live.write_bytes(at.saturating_sub(HEADER_BYTES), bitmap);
}

/// Reads a record's header; `None`: no segment has the record.
///
/// # Errors
/// It makes no sense.
pub fn decode_header(bytes: &[u8]) -> Result<Option<RecordHeader>, FormatError> {
    let mut r = Reader::new(bytes);
    let (segment, recorded, sealed, live) = (r.u64()?, r.u32()?, r.u8()? != 0, r.u32()?);
    if segment == 0 {
        return Ok(None);
    }
    let header = RecordHeader {
        segment,
        recorded,
        sealed,
        live,
        sealed_in: r.u64()?,
        form: read_form(r.bytes(SegmentForm::BYTES)?)?,
    };
    Ok(Some(header))
}

/// Zeros say nothing.
fn read_form(bytes: &[u8]) -> Result<Option<SegmentForm>, FormatError> {
    match bytes {
        [0, 0, ..] => Ok(None), // K is never 0
        said => SegmentForm::read(&mut Reader::new(said)).map(Some),
    }
}

/// Reads a record's bitmap.
pub fn decode_bitmap(geometry: SegmentGeometry, bytes: &[u8]) -> Bitmap {
    Bitmap::from_bytes(
        geometry.data_blocks(),
        bytes.get(HEADER_BYTES..).unwrap_or(&[]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot::SegmentKind;

    /// Records of every size find their bytes again, and only their own.
    #[test]
    fn records_are_found_by_arithmetic() {
        let shapes = [
            (16, 8),
            (16, 80),
            (256, 8),
            (4096, 8),
            (65_536, 8),
            (16_384, 200),
        ];
        for (slot_blocks, k) in shapes {
            let shape = RecordShape::new(slot_blocks, k);
            assert!(shape.bytes() >= HEADER_BYTES + usize::from(k) * slot_blocks as usize / 8);
            assert!(shape.leaves == 1 || shape.per_leaf == 1);
            let mut leaves: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
            for record in 0..70 {
                for leaf in shape.leaves_of(record) {
                    assert!(shape.records_of(leaf).contains(&record));
                }
                for byte in 0..shape.bytes() {
                    let (leaf, at) = shape.locate(record, byte);
                    assert!(shape.leaves_of(record).contains(&leaf));
                    let node = leaves.entry(leaf).or_insert_with(|| vec![0; BLOCK]);
                    assert_eq!(node[at], 0, "two bytes at one place");
                    node[at] = record as u8 + 1;
                }
            }
            assert!(leaves.len() <= shape.most_leaves(70, 70));
            let split = shape.split(&leaves);
            for (record, bytes) in split.range(..70) {
                assert!(bytes.iter().all(|b| *b == *record as u8 + 1));
            }
        }
    }

    /// Leaf by leaf a record has the bytes that are on disk: a header, the bitmap, and zeros. And it is read as what
    /// it was.
    #[test]
    fn a_record_is_written_leaf_by_leaf() {
        for (slot_blocks, k) in [
            (16, 1),
            (16, 80),
            (256, 8),
            (4096, 8),
            (8192, 3),
            (4096, 80),
        ] {
            let geometry = SegmentGeometry {
                k,
                m: 1,
                strip_blocks: 2,
                slot_blocks,
            };
            let blocks = geometry.data_blocks();
            let mut live = Bitmap::new(blocks);
            for block in (0..blocks).filter(|b| b % 7 == 3 || b / 64 % 3 == 1 || *b == blocks - 1) {
                live.set(block);
            }
            let header = RecordHeader {
                segment: 0x0102_0304_0506,
                recorded: 7,
                sealed: true,
                live: live.count(),
                sealed_in: 0x0708_090a_0b0c,
                form: Some(SegmentForm {
                    k,
                    m: 1,
                    code: 1,
                    kind: SegmentKind::Data,
                    strip_blocks: 2,
                }),
            };
            let shape = RecordShape::new(slot_blocks, k);
            let mut whole = Writer::new();
            whole.u64(header.segment).u32(7).u8(1).u32(header.live);
            whole.u64(header.sealed_in).u16(k).u16(1).u8(1).u8(1).u32(2);
            let mut whole = whole.padded(shape.bytes());
            for block in live.iter() {
                whole[HEADER_BYTES + block as usize / 8] |= 1 << (block % 8);
            }
            for record in [0, 1, 33] {
                for leaf in shape.leaves_of(record) {
                    let (at, place) = shape.part_in(record, leaf);
                    let mut node = vec![0xA5; BLOCK];
                    encode_part(header, &live, at, &mut node[place.clone()]);
                    let what = format!("{slot_blocks} blocks, k {k}, record {record}, leaf {leaf}");
                    assert!(node[place.clone()] == whole[at..at + place.len()], "{what}");
                    let outside = [&node[..place.start], &node[place.end..]].concat();
                    assert!(outside.iter().all(|byte| *byte == 0xA5), "{what}");
                }
            }
            let read = decode_bitmap(geometry, &whole);
            assert!(
                decode_header(&whole) == Ok(Some(header))
                    && read == live
                    && read.last() == Some(blocks - 1)
            );
        }
    }
}
