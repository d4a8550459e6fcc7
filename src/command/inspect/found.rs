//! What was found on a device.
//!
//! **Invariants**: what is damaged is kept as what is wrong with it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use ashlar_format::BLOCK;
use ashlar_format::root::Root;
use ashlar_format::slot::{SlotEntry, SlotHeader};
use ashlar_format::superblock::Superblock;

/// A device, where it begins in a file or on a disk.
pub(super) struct Placed {
    pub(super) file: File,
    pub(super) first: u64,
}

impl Placed {
    pub(super) fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(bytes, self.first + offset)
    }
}

/// What was found on a device.
pub(super) struct Found {
    pub(super) file: Placed,
    pub(super) superblock: Superblock,
    /// Of both copies: good, or what is wrong.
    pub(super) copies: [Result<u64, String>; 2],
    /// Good roots, newest first.
    pub(super) roots: Vec<Root>,
    pub(super) slots: Vec<Option<SlotEntry>>,
    pub(super) damaged_pages: u32,
}

pub(super) fn slot_blocks(superblock: &Superblock) -> u32 {
    u32::try_from(superblock.geometry.slot_bytes / BLOCK as u64).unwrap_or(u32::MAX)
}

/// The header in a slot, and where it stands, in bytes.
pub(super) fn header(found: &Found, slot: usize) -> (u64, Result<SlotHeader, String>) {
    let s = &found.superblock;
    let slot = u32::try_from(slot).unwrap_or(u32::MAX);
    let offset = s.geometry.slot_offset(slot);
    let mut bytes = vec![0; BLOCK];
    let read = found.file.read_exact_at(&mut bytes, offset);
    let header = read.map_err(|e| e.to_string()).and_then(|()| {
        SlotHeader::decode(&s.array, slot_blocks(s), &bytes).map_err(|e| e.to_string())
    });
    (offset, header)
}
