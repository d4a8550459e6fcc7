//! Members whose device has grown: the array uses what is new of it.
//!
//! Invariants:
//! - What lies on the device stays where it is: slots are added behind those that it has, and further pages of its slot
//!   table lie behind the end that it had.
//! - Its newer superblock lies where an import of the device as it is now looks for it, at every moment.
//!
//! Crash argument. What is written first lies behind the end that the device had, where nothing lies: both copies of the
//! further pages of its slot table, and the superblock as it is, of the same generation and with the old geometry. Pages
//! of slots that there were not are empty, whatever is laid meanwhile, so that they are written beside checkpoints and
//! group commits. Those that lay at the old end say what the durable root says of their slots: they, and the superblock,
//! are written while neither runs. All is flushed. Then the superblock at the beginning is written, of the same
//! generation and with the new geometry, and flushed. A write of that which is cut off leaves the superblock at the end.
//! A crash before it leaves the old geometry: what was written behind its end is nowhere named, and is written again next
//! time. A crash after it leaves the new one, with a table that is whole: what is laid on a device its own superblock
//! says, not the table of members. The row in that may say otherwise then: the import makes a generation in which it does
//! not (`import/recover.rs`). Only then are the new slots there to be taken: the first of them lies over the old end,
//! where the old geometry has pages of the slot table. Until then no checkpoint writes a page where it was either. A
//! device that does not say whether it stored the new geometry is failed: an import reads it by one or the other. One
//! growth of a device runs at a time, and no take-in or removal beside it: the end that it writes behind stays.

use std::ops::Range;
use std::rc::Rc;

use ashlar_device::{DeviceRef, Fault};
use ashlar_format::slot::{ENTRIES_PER_PAGE, TablePage};
use ashlar_format::{BLOCK, DeviceGeometry};
use ashlar_rt::{Buf, Slice};

use crate::error::Error;
use crate::home::Home;
use crate::members::{DEADLINE, Member};

/// Pages of a slot table that are read or written at once.
const PAGES_AT_ONCE: u32 = 256;

/// How much of a device the array uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grown {
    /// Bytes that it used.
    pub before_bytes: u64,
    /// Bytes that it uses now.
    pub size_bytes: u64,
}

/// How a device is laid out once it has so many bytes.
fn grown(index: u16, had: &DeviceGeometry, have: u64) -> Result<DeviceGeometry, Error> {
    let need = had.size_bytes;
    if have < need {
        return Err(Error::Shrunk { index, have, need });
    }
    let more = have - need;
    match had.grown_to(have) {
        Some(geometry) => Ok(geometry),
        None if more == 0 => Err(Error::NotGrown { index, have }),
        None => Err(Error::GrownTooLittle { index, more }),
    }
}

/// Pages in runs that are read or written at once.
fn runs(pages: Range<u32>) -> impl Iterator<Item = Range<u32>> {
    let end = pages.end;
    let firsts = pages.step_by(PAGES_AT_ONCE as usize);
    firsts.map(move |first| first..end.min(first + PAGES_AT_ONCE))
}

impl Home {
    /// Uses all of a member's device, which has grown.
    pub(crate) async fn grow(self: &Rc<Self>, index: u16) -> Result<Grown, Error> {
        let member = self.core.member(index);
        let in_use = || {
            let held = member.held().filter(|_| member.is_read());
            held.ok_or(Error::NotInUse(index))
        };
        let held = in_use()?;
        let _coming = member.come().ok_or(Error::ComesIn(index))?;
        let failed = |fault| Error::Device {
            device: index.into(),
            fault,
        };
        let resized = self.core.rt.timeout(DEADLINE, held.resized()).await;
        let resized = resized.unwrap_or(Err(Fault::Timeout)).map_err(failed)?;
        let device = resized.unwrap_or(held);
        let had = member.geometry();
        let geometry = grown(index, &had, device.info().size_bytes)?;
        let empty = self.write_empty_pages(member, &device, &geometry);
        empty.await.map_err(failed)?;
        self.make_room_for_epochs().await?;
        let checkpoint = self.checkpoints.turn.lock().await;
        let log = self.log.turn.lock().await;
        if *log || self.core.closed.get() {
            return Err(Error::Closed);
        }
        in_use()?; // it may have failed meanwhile
        self.prepare(member, &device, &geometry)
            .await
            .map_err(failed)?;
        let said = self.write_superblock(member, &device, geometry.super_offset(0), geometry);
        let said = said.await;
        if self.core.closed.get() {
            return Err(Error::Closed);
        }
        if said.is_err() {
            // Nobody knows by which geometry the next import would read it.
            self.core.report_failed(index);
        }
        said.map_err(failed)?;
        member.grow(device, geometry);
        self.publish_members().await;
        drop((log, checkpoint));
        match self.core.closed.get() {
            true => Err(Error::Closed),
            false => Ok(Grown {
                before_bytes: had.size_bytes,
                size_bytes: geometry.size_bytes,
            }),
        }
    }

    /// Writes the pages of slots that the device did not have. Most are written here, so that nobody waits for them.
    async fn write_empty_pages(
        &self,
        member: &Member,
        device: &DeviceRef,
        geometry: &DeviceGeometry,
    ) -> Result<(), Fault> {
        let checkpoint = self.root.borrow().checkpoint;
        let empty = |page: u32| {
            let entries = (geometry.slots - page * ENTRIES_PER_PAGE).min(ENTRIES_PER_PAGE);
            let empty = TablePage {
                page,
                checkpoint,
                entries: vec![None; entries as usize],
            };
            Buf::copy_of(&empty.encode(&self.core.identity.array, member.index)).freeze()
        };
        for run in runs(member.geometry().table_pages()..geometry.table_pages()) {
            let pages = run.clone().map(empty).collect();
            self.write_pages_to(device, geometry, run.start, pages)
                .await?;
        }
        Ok(())
    }

    /// Writes what else has to lie at the end of a device before it is used up to there: pages that lay at its end
    /// before, and its superblock. The caller holds the locks of checkpoints and of the log.
    async fn prepare(
        &self,
        member: &Member,
        device: &DeviceRef,
        geometry: &DeviceGeometry,
    ) -> Result<(), Fault> {
        for run in runs(member.geometry().further_pages()) {
            let pages = self.pages_as_they_are(member, run.clone()).await?;
            self.write_pages_to(device, geometry, run.start, pages)
                .await?;
        }
        let now = member.geometry();
        self.write_superblock(member, device, geometry.super_offset(1), now)
            .await
    }

    /// Writes a superblock that is newer than all before, and that says that the device is laid out so; flushes what was
    /// written. The caller holds the locks of checkpoints and of the log.
    async fn write_superblock(
        &self,
        member: &Member,
        device: &DeviceRef,
        offset: u64,
        says: DeviceGeometry,
    ) -> Result<(), Fault> {
        self.superblock.borrow_mut().writes += 1;
        let bytes = self.superblock_of(member.index, member.uuid(), says);
        self.write_to(device, offset, vec![bytes]).await?;
        let flush = self.core.rt.timeout(DEADLINE, device.flush());
        flush.await.unwrap_or(Err(Fault::Timeout))
    }

    /// Writes both copies of pages that follow each other.
    async fn write_pages_to(
        &self,
        device: &DeviceRef,
        geometry: &DeviceGeometry,
        first: u32,
        pages: Vec<Slice>,
    ) -> Result<(), Fault> {
        for copy in 0..2 {
            let offset = geometry.page_offset(first, copy);
            self.write_to(device, offset, pages.clone()).await?;
        }
        Ok(())
    }

    async fn write_to(
        &self,
        device: &DeviceRef,
        offset: u64,
        data: Vec<Slice>,
    ) -> Result<(), Fault> {
        let write = device.write(offset, data);
        let write = self.core.rt.timeout(DEADLINE, write);
        write.await.unwrap_or(Err(Fault::Timeout))
    }

    /// Pages of a member's slot table as the durable root has them: some of those at the end of its device.
    async fn pages_as_they_are(
        &self,
        member: &Member,
        pages: Range<u32>,
    ) -> Result<Vec<Slice>, Fault> {
        let had = member.geometry();
        let (array, slot_blocks) = (&self.core.identity.array, self.core.slot_blocks);
        let mut copies = [None, None];
        for (run, copy) in copies.iter_mut().zip(0..) {
            let read = member.read(had.page_offset(pages.start, copy), pages.len() * BLOCK);
            *run = read.await.ok().map(Buf::freeze);
        }
        let mut present = Vec::new();
        for (at, page) in pages.enumerate() {
            let copy = member.slots.page_copy(page);
            let bytes = match &copies[usize::from(copy)] {
                Some(run) => run.cut(at * BLOCK..(at + 1) * BLOCK),
                None => {
                    let offset = had.page_offset(page, copy.into());
                    member.read(offset, BLOCK).await?.freeze()
                }
            };
            TablePage::decode(array, member.index, page, slot_blocks, &bytes)
                .map_err(|_| Fault::Media)?;
            present.push(bytes);
        }
        Ok(present)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_device_is_used_that_has_grown_enough() {
        const MIB: u64 = 1 << 20;
        let had = DeviceGeometry::lay_out(8 * MIB, 64 << 10, (MIB / 4, MIB / 4), 1).unwrap();
        let refused = |have: u64| grown(3, &had, have).unwrap_err().to_string();
        assert!(refused(8 * MIB).contains("device 3 has not grown"));
        assert!(refused(8 * MIB + 4096).contains("by 4096 bytes"));
        assert!(refused(7 * MIB).contains("has shrunk"));
        assert!(grown(3, &had, 12 * MIB).unwrap().slots > had.slots);
    }

    #[test]
    fn runs_are_all_pages_in_order() {
        for pages in [7..7, 7..8, 0..256, 3..1000] {
            let all: Vec<Range<u32>> = runs(pages.clone()).collect();
            assert!(all.iter().all(|run| run.len() <= PAGES_AT_ONCE as usize));
            assert!(all.into_iter().flatten().eq(pages));
        }
    }
}
