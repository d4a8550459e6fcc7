//! A device that is about to be taken in: its slot table, read and written while it is not a member yet.
//!
//! Invariant: nothing here changes what the device says of itself: its superblock is another's to write.

use std::cell::Cell;
use std::rc::Rc;

use ashlar_device::{DeviceRef, Fault};
use ashlar_format::BLOCK;
use ashlar_format::geometry::{DeviceGeometry, ROOT_BYTES, ROOT_COUNT};
use ashlar_format::slot::{ENTRIES_PER_PAGE, SlotEntry, SlotHeader, TablePage};
use ashlar_format::superblock::Superblock;
use ashlar_rt::{Buf, Rt, Slice};

use crate::error::Error;
use crate::members::{DEADLINE, Member};

/// The device.
#[derive(Clone)]
pub struct Arrival {
    /// The row of the member table that it takes.
    pub index: u16,
    /// Its identity.
    pub uuid: [u8; 16],
    /// How it is reached.
    pub device: DeviceRef,
    /// Where things lie on it.
    pub geometry: DeviceGeometry,
    /// Which copy of its superblock is the newer one.
    pub super_copy: u32,
    /// Whether it is the member that left, and not another in its place.
    pub returns: bool,
    /// Whether it is behind the fence already: it was held since it left.
    pub guarded: bool,
    /// Reads that failed.
    pub failed_reads: Rc<Cell<u64>>,
    /// Whether what it held is being erased, or is.
    pub cleared: Rc<Cell<bool>>,
}

impl std::fmt::Debug for Arrival {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Arrival({})", self.index)
    }
}

/// The slot table that a device brings: of each page the copy that counts.
#[derive(Debug, Default)]
pub struct Brought {
    /// The numbers of the checkpoints on all copies of its pages.
    pub numbers: Vec<u64>,
    /// Which copy of each page counts, if one does.
    pub copies: Vec<Option<u8>>,
    /// Slots that hold a column, by what counts.
    pub entries: Vec<(u32, SlotEntry)>,
}

impl Brought {
    /// The table of a device that brings nothing.
    pub fn none(pages: u32) -> Brought {
        Brought {
            copies: vec![None; pages as usize],
            ..Brought::default()
        }
    }
}

impl Arrival {
    /// A device that takes a row, whatever it holds.
    pub fn new(index: u16, uuid: [u8; 16], device: DeviceRef, geometry: DeviceGeometry) -> Arrival {
        Arrival {
            index,
            uuid,
            device,
            geometry,
            super_copy: 1,
            returns: false,
            guarded: false,
            failed_reads: Rc::default(),
            cleared: Rc::default(),
        }
    }

    /// The device of a row that was away, with the superblock found on it, and which copy that is.
    pub fn returning(device: DeviceRef, found: &Superblock, super_copy: u32) -> Arrival {
        Arrival {
            super_copy,
            returns: true,
            ..Arrival::new(found.index, found.device, device, found.geometry)
        }
    }

    /// The device of a row that was away, and was held all the while.
    pub fn held(member: &Member, device: DeviceRef) -> Arrival {
        Arrival {
            super_copy: member.super_copy.get(),
            returns: true,
            guarded: true,
            ..Arrival::new(member.index, member.uuid(), device, member.geometry())
        }
    }

    /// Whether it is as large as it was.
    pub fn check_size(&self) -> Result<(), Error> {
        let (have, need) = (self.device.info().size_bytes, self.geometry.size_bytes);
        let index = self.index;
        (have >= need)
            .then_some(())
            .ok_or(Error::Shrunk { index, have, need })
    }

    async fn read(&self, rt: &Rt, offset: u64, length: usize) -> Result<Buf, Fault> {
        let within = Member::reaches(&self.device, offset + length as u64);
        let read = async {
            within?;
            let read = self.device.read(offset, Buf::scratch(length));
            match rt.timeout(DEADLINE, read).await {
                Some((bytes, Ok(()))) => Ok(bytes),
                Some((_, Err(fault))) => Err(fault),
                None => Err(Fault::Timeout),
            }
        };
        let read = read.await;
        if read.is_err() {
            self.failed_reads.set(self.failed_reads.get() + 1);
        }
        read
    }

    async fn write(&self, rt: &Rt, offset: u64, bytes: Slice) -> Result<(), Fault> {
        Member::reaches(&self.device, offset + bytes.len() as u64)?;
        let write = self.device.write(offset, vec![bytes]);
        rt.timeout(DEADLINE, write)
            .await
            .unwrap_or(Err(Fault::Timeout))
    }

    async fn flush(&self, rt: &Rt) -> Result<(), Fault> {
        let flush = self.device.flush();
        rt.timeout(DEADLINE, flush)
            .await
            .unwrap_or(Err(Fault::Timeout))
    }

    /// Reads its slot table: of each page the newest copy not later than `since`.
    ///
    /// # Errors
    /// The device answers nothing.
    pub async fn table(
        &self,
        rt: &Rt,
        array: &[u8; 16],
        slot_blocks: u32,
        choose: impl Fn([Option<u64>; 2]) -> Option<u8>,
    ) -> Result<Brought, Fault> {
        let mut brought = Brought::default();
        for page in 0..self.geometry.table_pages() {
            let mut copies = [None, None];
            for (found, copy) in copies.iter_mut().zip(0u32..) {
                let bytes = self
                    .read(rt, self.geometry.page_offset(page, copy), BLOCK)
                    .await;
                *found = match bytes {
                    Ok(bytes) => {
                        TablePage::decode(array, self.index, page, slot_blocks, &bytes).ok()
                    }
                    Err(Fault::Media) => None,
                    Err(fault) => return Err(fault),
                };
            }
            let numbers = copies.each_ref().map(|c| c.as_ref().map(|c| c.checkpoint));
            brought.numbers.extend(numbers.into_iter().flatten());
            let chosen = choose(numbers);
            brought.copies.push(chosen);
            if let Some(table) = chosen.and_then(|copy| copies[usize::from(copy)].take()) {
                let slots = (page * ENTRIES_PER_PAGE..self.geometry.slots).zip(table.entries);
                brought
                    .entries
                    .extend(slots.filter_map(|(slot, e)| Some((slot, e?))));
            }
        }
        Ok(brought)
    }

    /// The header of a slot, if there is one.
    pub async fn header(
        &self,
        rt: &Rt,
        array: &[u8; 16],
        slot_blocks: u32,
        slot: u32,
    ) -> Option<SlotEntry> {
        let bytes = self
            .read(rt, self.geometry.slot_offset(slot), BLOCK)
            .await
            .ok()?;
        let header = SlotHeader::decode(array, slot_blocks, &bytes).ok()?;
        Some(header.entry)
    }

    /// Writes the whole slot table anew, as of a checkpoint: first over the copies that do not count, then over the
    /// others, so that what a page said before is nowhere. Which copy of each page was written first.
    ///
    /// # Errors
    /// What the device answered.
    pub async fn write_table(
        &self,
        rt: &Rt,
        array: &[u8; 16],
        pages: &[TablePage],
        copies: &[Option<u8>],
    ) -> Result<Vec<u8>, Fault> {
        let present: Vec<u8> = copies
            .iter()
            .map(|old| old.map_or(0, |old| 1 - old))
            .collect();
        for other in [0, 1] {
            for (table, copy) in pages.iter().zip(&present) {
                let copy = u32::from(copy ^ other);
                let bytes = Buf::copy_of(&table.encode(array, self.index)).freeze();
                self.write(rt, self.geometry.page_offset(table.page, copy), bytes)
                    .await?;
            }
            self.flush(rt).await?;
        }
        Ok(present)
    }

    /// Writes both copies of its superblock, first over the older one.
    ///
    /// # Errors
    /// What the device answered.
    pub async fn write_superblocks(&self, rt: &Rt, superblock: Slice) -> Result<(), Fault> {
        for copy in [1 - self.super_copy, self.super_copy] {
            let offset = self.geometry.super_offset(copy);
            self.write(rt, offset, superblock.clone()).await?;
            self.flush(rt).await?;
        }
        Ok(())
    }

    /// Clears what another device, or another array, has left: superblocks, roots and the beginning of the journal.
    ///
    /// # Errors
    /// What the device answered.
    pub async fn clear(&self, rt: &Rt) -> Result<(), Fault> {
        self.cleared.set(true);
        let geometry = self.geometry;
        for copy in 0..2 {
            self.write(rt, geometry.super_offset(copy), Slice::zeroed(BLOCK))
                .await?;
        }
        self.flush(rt).await?;
        let length = usize::try_from(ROOT_BYTES).expect("16 KiB");
        for entry in 0..ROOT_COUNT {
            self.write(rt, geometry.root_offset(entry), Slice::zeroed(length))
                .await?;
        }
        for ring in [geometry.delta_ring_offset(), geometry.data_ring_offset()] {
            self.write(rt, ring, Slice::zeroed(BLOCK)).await?;
        }
        self.flush(rt).await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::testing::bed;

    /// A table that was written is read again; a copy that does not count is not.
    #[test]
    fn a_table_is_written_over_the_copy_that_does_not_count() {
        let bed = bed(1);
        let (rt, core) = (bed.rt.clone(), bed.core.clone());
        let geometry = core.member(0).geometry();
        let arrival = Arrival {
            super_copy: 0,
            returns: true,
            ..Arrival::new(0, [0; 16], bed.disks[0].clone(), geometry)
        };
        let (array, blocks) = (core.identity.array, core.slot_blocks);
        let newest = |since: u64| {
            move |numbers: [Option<u64>; 2]| {
                let counts = |c: &u8| numbers[usize::from(*c)].is_some_and(|n| n <= since);
                (0..2)
                    .filter(counts)
                    .max_by_key(|c| numbers[usize::from(*c)])
            }
        };
        bed.rt.block_on(async move {
            let none = arrival.table(&rt, &array, blocks, newest(9)).await.unwrap();
            assert_eq!((none.copies.clone(), none.entries.len()), (vec![None], 0));
            for (checkpoint, copy) in [(5, 0), (6, 0), (7, 0)] {
                let before = arrival.table(&rt, &array, blocks, newest(9)).await.unwrap();
                let table = TablePage {
                    page: 0,
                    checkpoint,
                    entries: vec![None; geometry.slots as usize],
                };
                let written = arrival
                    .write_table(&rt, &array, &[table], &before.copies)
                    .await;
                assert_eq!(written.unwrap(), vec![copy]);
                let found = arrival.table(&rt, &array, blocks, newest(9)).await.unwrap();
                assert_eq!(found.numbers, vec![checkpoint; 2]);
            }
            arrival.clear(&rt).await.unwrap();
        });
    }
}
