//! Slots: the table that says which segment's column each slot holds, and the header each begins with.
//!
//! Invariants: a table page exists twice and names the checkpoint it was written by; a slot's header and
//! its table entry tell the same story, and any one of them locates the column.

pub use crate::geometry::ENTRIES_PER_PAGE;
use crate::wire::{Reader, Writer, seal, unseal};
use crate::{BLOCK, FormatError, SegmentGeometry, SegmentNumber};

const PAGE_MAGIC: &[u8; 8] = b"ASHTABLE";
const HEADER_MAGIC: &[u8; 8] = b"ASHSLOT1";

/// What a segment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum SegmentKind {
    /// Volume blocks.
    Data = 1,
    /// Nodes of trees.
    Meta = 2,
}

impl SegmentKind {
    /// From its stored byte.
    pub fn from_byte(byte: u8) -> Result<SegmentKind, FormatError> {
        match byte {
            1 => Ok(SegmentKind::Data),
            2 => Ok(SegmentKind::Meta),
            _ => Err(FormatError::Value),
        }
    }
}

/// What a segment is, as slot tables and liveness say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentForm {
    /// Data strips a stripe.
    pub k: u16,
    /// Parity strips a stripe.
    pub m: u16,
    /// Erasure code.
    pub code: u8,
    /// What the segment holds.
    pub kind: SegmentKind,
    /// Blocks a strip.
    pub strip_blocks: u32,
}

impl SegmentForm {
    /// Bytes that it takes.
    pub const BYTES: usize = 10;

    /// What stripes of the segment are like.
    pub fn geometry(&self, slot_blocks: u32) -> SegmentGeometry {
        SegmentGeometry {
            k: self.k,
            m: self.m,
            strip_blocks: self.strip_blocks,
            slot_blocks,
        }
    }

    pub(crate) fn write(&self, w: &mut Writer) {
        w.u16(self.k)
            .u16(self.m)
            .u8(self.code)
            .u8(self.kind as u8)
            .u32(self.strip_blocks);
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<SegmentForm, FormatError> {
        Ok(SegmentForm {
            k: r.u16()?,
            m: r.u16()?,
            code: r.u8()?,
            kind: SegmentKind::from_byte(r.u8()?)?,
            strip_blocks: r.u32()?,
        })
    }
}

/// What a slot holds: one column of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotEntry {
    /// The segment.
    pub segment: SegmentNumber,
    /// Which column.
    pub column: u16,
    /// Counts the places this column has had: of two claims the higher holds.
    pub version: u32,
    /// Data strips a stripe.
    pub k: u16,
    /// Parity strips a stripe.
    pub m: u16,
    /// Erasure code.
    pub code: u8,
    /// What the segment holds.
    pub kind: SegmentKind,
    /// Blocks a strip.
    pub strip_blocks: u32,
}

impl SlotEntry {
    fn write(entry: Option<&SlotEntry>, w: &mut Writer) {
        let Some(e) = entry else {
            w.bytes(&[0; 32]);
            return;
        };
        w.u64(e.segment).u32(e.version).u16(e.column);
        e.form().write(w);
        w.bytes(&[0; 8]);
    }

    fn read(r: &mut Reader<'_>, slot_blocks: u32) -> Result<Option<SlotEntry>, FormatError> {
        let mut r = Reader::new(r.bytes(32)?);
        let segment = r.u64()?;
        if segment == 0 {
            return Ok(None);
        }
        let (version, column) = (r.u32()?, r.u16()?);
        let SegmentForm {
            k,
            m,
            code,
            kind,
            strip_blocks,
        } = SegmentForm::read(&mut r)?;
        let entry = SlotEntry {
            segment,
            column,
            version,
            k,
            m,
            code,
            kind,
            strip_blocks,
        };
        if r.u64()? != 0 {
            return Err(FormatError::Value); // roles that rotate, local groups: features that are not known here
        }
        if entry.geometry(slot_blocks).is_sound()
            && usize::from(column) < usize::from(k) + usize::from(m)
        {
            Ok(Some(entry))
        } else {
            Err(FormatError::Value)
        }
    }

    /// What the segment is.
    pub fn form(&self) -> SegmentForm {
        SegmentForm {
            k: self.k,
            m: self.m,
            code: self.code,
            kind: self.kind,
            strip_blocks: self.strip_blocks,
        }
    }

    /// The geometry of the segment it belongs to.
    pub fn geometry(&self, slot_blocks: u32) -> SegmentGeometry {
        self.form().geometry(slot_blocks)
    }
}

/// One page of a device's slot table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TablePage {
    /// The page's number.
    pub page: u32,
    /// The number of the checkpoint that wrote it.
    pub checkpoint: u64,
    /// What the slots from `page * ENTRIES_PER_PAGE` on hold.
    pub entries: Vec<Option<SlotEntry>>,
}

impl TablePage {
    /// The stored 4 KiB.
    pub fn encode(&self, array: &[u8; 16], device: u16) -> Vec<u8> {
        assert!(
            self.entries.len() <= ENTRIES_PER_PAGE as usize,
            "a page has {ENTRIES_PER_PAGE} entries"
        );
        let mut w = Writer::new();
        w.bytes(PAGE_MAGIC)
            .u64(self.checkpoint)
            .u32(self.page)
            .u16(device);
        w.u16(u16::try_from(self.entries.len()).expect("124 at most"));
        let mut w = Writer(w.padded(64));
        for entry in &self.entries {
            SlotEntry::write(entry.as_ref(), &mut w);
        }
        let mut bytes = w.padded(BLOCK);
        seal(array, &mut bytes);
        bytes
    }

    /// Reads page `page` of device `device`.
    pub fn decode(
        array: &[u8; 16],
        device: u16,
        page: u32,
        slot_blocks: u32,
        bytes: &[u8],
    ) -> Result<TablePage, FormatError> {
        if bytes.len() != BLOCK || !bytes.starts_with(PAGE_MAGIC) {
            return Err(FormatError::Magic);
        }
        let mut r = Reader::new(unseal(array, bytes)?);
        let mut body = r.clone();
        body.bytes(64)?;
        r.bytes(8)?;
        let (checkpoint, number, owner, count) = (r.u64()?, r.u32()?, r.u16()?, r.u16()?);
        if number != page || owner != device || u32::from(count) > ENTRIES_PER_PAGE {
            return Err(FormatError::Value);
        }
        let entries = (0..count)
            .map(|_| SlotEntry::read(&mut body, slot_blocks))
            .collect::<Result<_, _>>()?;
        Ok(TablePage {
            page,
            checkpoint,
            entries,
        })
    }
}

/// The header of a slot: enough to rebuild the table by a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotHeader {
    /// What the slot holds.
    pub entry: SlotEntry,
    /// The segment's devices, column by column, when this header was written.
    pub devices: Vec<u16>,
}

impl SlotHeader {
    /// The stored 4 KiB.
    pub fn encode(&self, array: &[u8; 16]) -> Vec<u8> {
        let mut w = Writer::new();
        w.bytes(HEADER_MAGIC);
        SlotEntry::write(Some(&self.entry), &mut w);
        for device in &self.devices {
            w.u16(*device);
        }
        let mut bytes = w.padded(BLOCK);
        seal(array, &mut bytes);
        bytes
    }

    /// Reads a header.
    pub fn decode(
        array: &[u8; 16],
        slot_blocks: u32,
        bytes: &[u8],
    ) -> Result<SlotHeader, FormatError> {
        if bytes.len() != BLOCK || !bytes.starts_with(HEADER_MAGIC) {
            return Err(FormatError::Magic);
        }
        let mut r = Reader::new(unseal(array, bytes)?);
        r.bytes(8)?;
        let entry = SlotEntry::read(&mut r, slot_blocks)?.ok_or(FormatError::Value)?;
        let width = usize::from(entry.k) + usize::from(entry.m);
        let devices = (0..width).map(|_| r.u16()).collect::<Result<_, _>>()?;
        Ok(SlotHeader { entry, devices })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn pages_and_headers_survive_their_bytes() {
        let entry = SlotEntry {
            segment: 88,
            column: 9,
            version: 2,
            k: 8,
            m: 2,
            code: 1,
            kind: SegmentKind::Data,
            strip_blocks: 16,
        };
        let page = TablePage {
            page: 3,
            checkpoint: 17,
            entries: vec![None, Some(entry), None],
        };
        let bytes = page.encode(&[1; 16], 4);
        assert_eq!(
            TablePage::decode(&[1; 16], 4, 3, 256, &bytes).unwrap(),
            page
        );
        assert!(TablePage::decode(&[1; 16], 5, 3, 256, &bytes).is_err());
        let header = SlotHeader {
            entry,
            devices: (0..10).collect(),
        };
        let bytes = header.encode(&[1; 16]);
        assert_eq!(SlotHeader::decode(&[1; 16], 256, &bytes).unwrap(), header);
        assert!(SlotHeader::decode(&[2; 16], 256, &bytes).is_err());
    }
}
