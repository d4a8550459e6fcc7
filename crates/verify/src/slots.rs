//! Slots: table pages, headers, summaries, and how a segment's columns are cut.
//!
//! **Invariants**: a shape that was accepted has at least one stripe, and every place computed from it lies
//! within the slot; a page, header or summary that names another place than its own is refused.

use crate::digest::unseal;
use crate::superblock::PAGE_ENTRIES;
use crate::wire::{BLOCK, Fields};

/// Rows of a summary block.
pub(crate) const ROWS: u32 = 126;

/// What a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) k: u16,
    pub(crate) m: u16,
    pub(crate) code: u8,
    /// 1 data, 2 metadata.
    pub(crate) kind: u8,
    /// Blocks a strip.
    pub(crate) strip: u32,
    /// Blocks a slot.
    pub(crate) slot: u32,
}

/// Kind of segments that hold nodes.
pub(crate) const METADATA: u8 = 2;

impl Shape {
    /// Reads the 10 bytes by which slot tables and liveness say it.
    pub(crate) fn parse(f: &mut Fields<'_>, slot_blocks: u32) -> Option<Shape> {
        Some(Shape {
            k: f.u16()?,
            m: f.u16()?,
            code: f.u8()?,
            kind: f.u8()?,
            strip: f.u32()?,
            slot: slot_blocks,
        })
    }

    pub(crate) fn is_sound(&self) -> bool {
        (1..=256).contains(&self.strip)
            && (8..=1 << 18).contains(&self.slot)
            && self.k > 0
            && self.width() <= 256
            && matches!(self.kind, 1 | 2)
            && self.stripes() > 0
    }

    pub(crate) fn width(&self) -> usize {
        usize::from(self.k) + usize::from(self.m)
    }

    /// Strips of a full course.
    pub(crate) fn course_strips(&self) -> u32 {
        (126 / self.strip).max(1)
    }

    fn summary_blocks(&self, strips: u32) -> u32 {
        (strips * self.strip).div_ceil(ROWS)
    }

    /// Blocks of a full course.
    fn course_blocks(&self) -> u32 {
        let strips = self.course_strips();
        strips * self.strip + self.summary_blocks(strips)
    }

    pub(crate) fn stripes(&self) -> u32 {
        let (body, course) = (self.slot - 1, self.course_blocks());
        let rest = body % course;
        let fits = |s: &u32| s * self.strip + self.summary_blocks(*s) <= rest;
        let last = (1..=self.course_strips()).filter(fits).max().unwrap_or(0);
        body / course * self.course_strips() + last
    }

    pub(crate) fn course_of(&self, stripe: u32) -> u32 {
        stripe / self.course_strips()
    }

    pub(crate) fn courses(&self) -> u32 {
        self.stripes().div_ceil(self.course_strips())
    }

    pub(crate) fn strips_in(&self, course: u32) -> u32 {
        let before = course * self.course_strips();
        self.stripes()
            .saturating_sub(before)
            .min(self.course_strips())
    }

    /// The block of the slot at which a stripe's strip begins.
    pub(crate) fn strip_block(&self, stripe: u32) -> u32 {
        let course = self.course_of(stripe);
        1 + course * self.course_blocks() + stripe % self.course_strips() * self.strip
    }

    /// The block of the slot at which a course's summary begins, and the blocks of the summary.
    pub(crate) fn summary(&self, course: u32) -> (u32, u32) {
        let strips = self.strips_in(course);
        let at = 1 + course * self.course_blocks() + strips * self.strip;
        (at, self.summary_blocks(strips))
    }

    /// Data blocks of a stripe.
    pub(crate) fn stripe_blocks(&self) -> u32 {
        u32::from(self.k) * self.strip
    }

    pub(crate) fn data_blocks(&self) -> u32 {
        self.stripes() * self.stripe_blocks()
    }

    /// Stripe, column and block of the strip of data block `block`.
    pub(crate) fn locate(&self, block: u32) -> (u32, u16, u32) {
        let within = block % self.stripe_blocks();
        let column = u16::try_from(within / self.strip).unwrap_or(0);
        (block / self.stripe_blocks(), column, within % self.strip)
    }
}

/// A slot entry: which column of which segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotEntry {
    pub(crate) segment: u64,
    pub(crate) version: u32,
    pub(crate) column: u16,
    pub(crate) shape: Shape,
}

impl SlotEntry {
    /// Reads 32 bytes; the inner `None` is a free slot.
    fn parse(bytes: &[u8], slot_blocks: u32) -> Option<Option<SlotEntry>> {
        let mut f = Fields(bytes);
        let segment = f.u64()?;
        if segment == 0 {
            return Some(None);
        }
        let (version, column) = (f.u32()?, f.u16()?);
        let shape = Shape::parse(&mut f, slot_blocks)?;
        let plain = f.u64()? == 0; // no rotation of roles, no local groups
        let sound = plain
            && segment < 1 << 40
            && version > 0
            && shape.is_sound()
            && usize::from(column) < shape.width();
        sound.then_some(Some(SlotEntry {
            segment,
            version,
            column,
            shape,
        }))
    }
}

/// A page of a slot table.
#[derive(Debug)]
pub(crate) struct Page {
    /// The checkpoint that wrote it.
    pub(crate) checkpoint: u64,
    pub(crate) entries: Vec<Option<SlotEntry>>,
}

impl Page {
    /// Page `page` of device `device`.
    pub(crate) fn parse(
        array: &[u8; 16],
        (device, page): (u16, u32),
        slot_blocks: u32,
        bytes: &[u8],
    ) -> Option<Page> {
        let body = unseal(array, bytes)?;
        let mut f = Fields(body);
        if f.take(8)? != b"ASHTABLE" {
            return None;
        }
        let (checkpoint, number, owner, count) = (f.u64()?, f.u32()?, f.u16()?, f.u16()?);
        if (number, owner) != (page, device) || u32::from(count) > PAGE_ENTRIES {
            return None;
        }
        let mut rows = Fields(body.get(64..)?);
        let entries = (0..count).map(|_| SlotEntry::parse(rows.take(32)?, slot_blocks));
        Some(Page {
            checkpoint,
            entries: entries.collect::<Option<_>>()?,
        })
    }
}

/// The slot entry in a slot's header.
pub(crate) fn header(array: &[u8; 16], slot_blocks: u32, bytes: &[u8]) -> Option<SlotEntry> {
    let mut f = Fields(unseal(array, bytes)?);
    if f.take(8)? != b"ASHSLOT1" {
        return None;
    }
    SlotEntry::parse(f.take(32)?, slot_blocks)?
}

/// A row of a summary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) digest: [u8; 16],
    pub(crate) owner: [u8; 16],
}

impl Row {
    pub(crate) fn read(f: &mut Fields<'_>) -> Option<Row> {
        Some(Row {
            digest: f.array()?,
            owner: f.array()?,
        })
    }

    /// Whether the strip was never written.
    pub(crate) fn is_absent(&self) -> bool {
        self.digest == [0; 16]
    }
}

/// Who a data block belongs to, by its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) tree: u32,
    /// 0: volume data; 1 + level: a node.
    pub(crate) kind: u8,
    pub(crate) tag: u8,
    pub(crate) piece: u8,
    pub(crate) pieces_less_one: u8,
    pub(crate) address: u64,
}

impl Owner {
    pub(crate) fn parse(bytes: &[u8; 16]) -> Owner {
        let [a, b, c, d, kind, tag, piece, pieces_less_one, rest @ ..] = *bytes;
        Owner {
            tree: u32::from_le_bytes([a, b, c, d]),
            kind,
            tag,
            piece,
            pieces_less_one,
            address: u64::from_le_bytes(rest),
        }
    }

    pub(crate) fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&self.tree.to_le_bytes());
        bytes[4..8].copy_from_slice(&[self.kind, self.tag, self.piece, self.pieces_less_one]);
        bytes[8..].copy_from_slice(&self.address.to_le_bytes());
        bytes
    }
}

/// Which summary block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SummaryAt {
    pub(crate) segment: u64,
    pub(crate) column: u16,
    pub(crate) course: u32,
    pub(crate) part: u32,
}

/// The rows of a summary block.
pub(crate) fn summary(array: &[u8; 16], at: SummaryAt, bytes: &[u8]) -> Option<Vec<Row>> {
    debug_assert_eq!(bytes.len(), BLOCK, "a summary block is a block");
    let body = unseal(array, bytes)?;
    let mut f = Fields(body);
    if f.take(8)? != b"ASHSUMRY" {
        return None;
    }
    let (segment, column, count) = (f.u64()?, f.u16()?, f.u16()?);
    let found = SummaryAt {
        segment,
        column,
        course: f.u32()?,
        part: f.u32()?,
    };
    if found != at || u32::from(count) > ROWS {
        return None;
    }
    let mut rows = Fields(body.get(32..)?);
    (0..count).map(|_| Row::read(&mut rows)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(k: u16, m: u16, strip: u32, slot: u32) -> Shape {
        let (code, kind) = (1, 1);
        Shape {
            k,
            m,
            code,
            kind,
            strip,
            slot,
        }
    }

    #[test]
    fn every_block_of_a_slot_has_at_most_one_use() {
        for strip in [1, 2, 3, 16, 63, 64, 126, 127, 200, 256] {
            for slot in [8, 16, 130, 256, 1000, 4096] {
                let s = shape(3, 1, strip, slot);
                if !s.is_sound() {
                    continue;
                }
                let mut used = vec![0; slot as usize];
                used[0] = 1;
                for stripe in 0..s.stripes() {
                    for block in 0..strip {
                        used[(s.strip_block(stripe) + block) as usize] += 1;
                    }
                }
                let mut rows = 0;
                for course in 0..s.courses() {
                    let (at, count) = s.summary(course);
                    rows += s.strips_in(course) * strip;
                    (at..at + count).for_each(|b| used[b as usize] += 1);
                }
                assert!(used.iter().all(|n| *n <= 1), "strip {strip}, slot {slot}");
                assert_eq!(rows, s.stripes() * strip);
                assert_eq!(
                    s.locate(s.data_blocks() - 1),
                    (s.stripes() - 1, 2, strip - 1)
                );
            }
        }
    }

    #[test]
    fn owners_survive_their_bytes() {
        let owner = Owner {
            tree: 0x1234_5678,
            kind: 2,
            tag: 1,
            piece: 3,
            pieces_less_one: 7,
            address: 1 << 48 | 9,
        };
        assert_eq!(Owner::parse(&owner.bytes()), owner);
    }
}
