//! Members whose device has grown: the array uses what is new of it.
//!
//! Invariants:
//! - What lies on the device stays where it is: slots are added behind those that it has, and further pages of its slot
//!   table lie behind the end that it had.
//! - Its newer superblock lies where an import of the device as it is now looks for it, at every moment.
//!
//! Crash argument. What is written first lies behind the end that the device had, where nothing lies: both copies of the
//! further pages of its slot table, which say what the durable root says of their slots, and the superblock as it is, of
//! the same generation and with the old geometry. They are flushed. Then a generation is stored, and with it, over the
//! superblock at the beginning, the new geometry. A write of that which is cut off leaves the superblock at the end. A
//! crash before it leaves the old geometry: what was written behind its end is nowhere named, and is written again next
//! time. A crash after it leaves the new one, with a table that is whole, whether or not that generation takes effect:
//! what is laid on a device its own superblock says, not the table of members. No checkpoint runs meanwhile, which would
//! write a page where it was, and no group commit: a record names a new slot only after the root that follows the
//! generation.

use std::rc::Rc;

use ashlar_device::{DeviceRef, Fault};
use ashlar_format::slot::{ENTRIES_PER_PAGE, TablePage};
use ashlar_format::{BLOCK, DeviceGeometry};
use ashlar_rt::{Buf, Slice};

use crate::error::Error;
use crate::home::Home;
use crate::members::{DEADLINE, Member};

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

impl Home {
    /// Uses all of a member's device, which has grown.
    pub(crate) async fn grow(self: &Rc<Self>, index: u16) -> Result<Grown, Error> {
        self.make_room_for_epochs().await?;
        let checkpoint = self.checkpoints.turn.lock().await;
        let log = self.log.turn.lock().await;
        if *log || self.core.closed.get() {
            return Err(Error::Closed);
        }
        let member = self.core.member(index);
        let held = member.held().filter(|_| member.is_read());
        let held = held.ok_or(Error::NotInUse(index))?;
        let failed = |fault| Error::Device {
            device: index.into(),
            fault,
        };
        let resized = self.core.rt.timeout(DEADLINE, held.resized()).await;
        let resized = resized.unwrap_or(Err(Fault::Timeout)).map_err(failed)?;
        let device = resized.unwrap_or(held);
        let had = member.geometry();
        let geometry = grown(index, &had, device.info().size_bytes)?;
        self.prepare(member, &device, &geometry)
            .await
            .map_err(failed)?;
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

    /// Writes what has to lie at the end of a device before it is used up to there.
    async fn prepare(
        &self,
        member: &Member,
        device: &DeviceRef,
        geometry: &DeviceGeometry,
    ) -> Result<(), Fault> {
        for page in geometry.further_pages() {
            let bytes = self.page_as_it_is(member, page, geometry.slots).await?;
            for copy in 0..2 {
                let offset = geometry.page_offset(page, copy);
                self.write_to(device, offset, bytes.clone()).await?;
            }
        }
        self.superblock.borrow_mut().writes += 1;
        let bytes = self.superblock_for(member.index);
        self.write_to(device, geometry.super_offset(1), bytes)
            .await?;
        let flush = self.core.rt.timeout(DEADLINE, device.flush());
        flush.await.unwrap_or(Err(Fault::Timeout))
    }

    async fn write_to(&self, device: &DeviceRef, offset: u64, bytes: Slice) -> Result<(), Fault> {
        let write = self
            .core
            .rt
            .timeout(DEADLINE, device.write(offset, vec![bytes]));
        write.await.unwrap_or(Err(Fault::Timeout))
    }

    /// A page of a member's slot table as the durable root has it; an empty one if there is none yet.
    async fn page_as_it_is(&self, member: &Member, page: u32, slots: u32) -> Result<Slice, Fault> {
        let (array, index) = (&self.core.identity.array, member.index);
        let had = member.geometry();
        if page < had.table_pages() {
            let copy = member.slots.page_copy(page);
            let bytes = member
                .read(had.page_offset(page, copy.into()), BLOCK)
                .await?;
            let valid = TablePage::decode(array, index, page, self.core.slot_blocks, &bytes);
            return valid.map(|_| bytes.freeze()).map_err(|_| Fault::Media);
        }
        let entries = (slots - page * ENTRIES_PER_PAGE).min(ENTRIES_PER_PAGE);
        let empty = TablePage {
            page,
            checkpoint: self.root.borrow().checkpoint,
            entries: vec![None; entries as usize],
        };
        Ok(Buf::copy_of(&empty.encode(array, index)).freeze())
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
}
