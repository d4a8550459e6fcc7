//! What each device keeps of its own, as a scrub looks at it: superblocks, the root, the slot table, the journal.
//!
//! Invariants:
//! - What looks bad is looked at again while nobody writes it (the log lock): only then it is.
//! - What is bad is written again in its place, or by the next checkpoint in its other place, and read back.
//!
//! Crash argument: a superblock or root in its place is written only where it is bad, with what the others of its kind
//! say: torn, it is as bad as before, and the other copy, or the other devices, decide as they did.

use std::rc::Rc;

use ashlar_device::Fault;
use ashlar_format::BLOCK;
use ashlar_format::scrub::Part;
use ashlar_format::slot::TablePage;
use ashlar_format::superblock::Superblock;
use ashlar_rt::{Buf, Slice};

use crate::home::Home;
use crate::journal::look::look;
use crate::segment::bad::{Found, fault_of};

/// Something of a device's own that is bad: the device, of which part, how, and whether it is repaired.
pub type Own = (u16, Part, Found, bool);

impl Home {
    /// What is bad of it, repaired as far as it can be, unless this is only a `check`; and whether all of it could be looked
    /// at.
    pub(crate) async fn look_at_own(self: &Rc<Self>, check: bool) -> (Vec<Own>, bool) {
        let mut all = Vec::new();
        for device in self.core.readable() {
            if !self.core.member(device).is_written() || self.core.closed.get() {
                continue;
            }
            for copy in 0..2 {
                self.look_at_superblock(device, copy, check, &mut all).await;
            }
            self.look_at_root(device, check, &mut all).await;
        }
        self.look_at_tables(check, &mut all).await;
        let whole = self.look_at_journal(check, &mut all).await;
        (all, whole)
    }

    async fn look_at_superblock(
        self: &Rc<Self>,
        device: u16,
        copy: u32,
        check: bool,
        all: &mut Vec<Own>,
    ) {
        if self.superblock_fault(device, copy).await.is_none() {
            return;
        }
        let log = self.log.turn.lock().await;
        if *log || self.core.closed.get() {
            return; // the last root is written
        }
        let Some(found) = self.superblock_fault(device, copy).await else {
            return;
        };
        let offset = self.core.member(device).geometry().super_offset(copy);
        let bytes = self.superblock_for(device);
        let repaired = !check
            && self.core.write_durably(device, offset, bytes).await
            && self.superblock_fault(device, copy).await.is_none();
        all.push((device, Part::Superblock, found, repaired));
    }

    /// How a superblock is bad, if it is: it is none of this device, or the copy in effect is of an older generation.
    async fn superblock_fault(&self, device: u16, copy: u32) -> Option<Found> {
        let member = self.core.member(device);
        let offset = member.geometry().super_offset(copy);
        let bytes = self.superblock_bytes(device, offset).await;
        let now = self.superblock.borrow().generation.number;
        let in_effect = copy == member.super_copy.get();
        fault_of(bytes, |bytes| {
            Superblock::decode(bytes).is_ok_and(|found| {
                let mine = (found.array, found.device) == (self.core.identity.array, member.uuid());
                mine && (!in_effect || found.generation.number >= now)
            })
        })
    }

    /// The bytes of a superblock of any size.
    async fn superblock_bytes(&self, device: u16, offset: u64) -> Result<Buf, Fault> {
        let member = self.core.member(device);
        let first = member.read(offset, BLOCK).await?;
        match Superblock::encoded_bytes(&first) {
            Ok(bytes) if bytes > BLOCK => member.read(offset, bytes).await,
            _ => Ok(first),
        }
    }

    async fn look_at_root(self: &Rc<Self>, device: u16, check: bool, all: &mut Vec<Own>) {
        if self.root_fault(device).await.is_none() {
            return;
        }
        let log = self.log.turn.lock().await;
        if *log || self.core.closed.get() {
            return;
        }
        let Some(found) = self.root_fault(device).await else {
            return;
        };
        let (offset, bytes) = self.present_root(device);
        let repaired = !check
            && self.core.write_durably(device, offset, bytes).await
            && self.root_fault(device).await.is_none();
        all.push((device, Part::Root, found, repaired));
    }

    /// Where the last root lies on a device, and its bytes.
    fn present_root(&self, device: u16) -> (u64, Slice) {
        let root = self.root.borrow();
        let offset = self.core.member(device).geometry().root_offset(root.number);
        let bytes = root.encode(&self.core.identity.array);
        (offset, Buf::copy_of(&bytes).freeze())
    }

    /// How the last root is bad on a device that is to hold it, if it is.
    async fn root_fault(&self, device: u16) -> Option<Found> {
        if !self.superblock.borrow().root_set.contains(&device) {
            return None;
        }
        let (offset, expected) = self.present_root(device);
        let bytes = self.core.member(device).read(offset, expected.len()).await;
        fault_of(bytes, |bytes| *bytes == *expected)
    }

    /// The pages of all slot tables; those that are bad are written by a checkpoint.
    async fn look_at_tables(self: &Rc<Self>, check: bool, all: &mut Vec<Own>) {
        let mut bad = Vec::new();
        for device in self.core.readable() {
            let member = self.core.member(device);
            for page in 0..member.slots.pages() {
                if !member.is_written() || self.page_fault(device, page).await.is_none() {
                    continue;
                }
                let _log = self.log.turn.lock().await;
                if let Some(found) = self.page_fault(device, page).await {
                    bad.push((device, member.slots.life(), page, found));
                }
            }
        }
        // Another device may have come in the place of one.
        let stands = |device: u16, life: u32| {
            let member = self.core.member(device);
            member.is_read() && member.slots.life() == life
        };
        if !check && !bad.is_empty() {
            for (device, life, page, _) in &bad {
                if stands(*device, *life) {
                    self.core.member(*device).slots.page_changed(*page);
                }
            }
            self.checkpoint(0).await;
        }
        for (device, life, page, found) in bad {
            if stands(device, life) {
                let repaired = !check && self.page_fault(device, page).await.is_none();
                all.push((device, Part::Table, found, repaired));
            }
        }
    }

    /// How the present copy of a page is bad, if it is.
    async fn page_fault(&self, device: u16, page: u32) -> Option<Found> {
        let member = self.core.member(device);
        if !member.is_read() || page >= member.slots.pages() {
            return None; // another device is coming in its place
        }
        let copy = u32::from(member.slots.page_copy(page));
        let offset = member.geometry().page_offset(page, copy);
        let (array, blocks) = (&self.core.identity.array, self.core.slot_blocks);
        let bytes = member.read(offset, BLOCK).await;
        fault_of(bytes, |bytes| {
            TablePage::decode(array, device, page, blocks, bytes).is_ok()
        })
    }

    /// The needed records of the journal; whether all of them could be looked at.
    async fn look_at_journal(self: &Rc<Self>, check: bool, all: &mut Vec<Own>) -> bool {
        let epochs = self.root.borrow().epochs.clone();
        let (found, whole) = look(&self.core, &self.journal, &epochs).await;
        for record in found {
            let log = self.log.turn.lock().await;
            if *log || self.core.closed.get() || !self.journal.needs(&record) {
                continue;
            }
            let epochs = self.root.borrow().epochs.clone();
            let again = self.journal.look_again(&record, &epochs).await;
            let devices: Vec<u16> = again.iter().map(|(device, _)| *device).collect();
            let mut left = devices.clone();
            if !check && !devices.is_empty() {
                self.journal.restore(&record, &devices).await;
                let still = self.journal.look_again(&record, &epochs).await;
                left = still.iter().map(|(device, _)| *device).collect();
            }
            for (device, found) in again {
                all.push((device, Part::Journal, found, !left.contains(&device)));
            }
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_does_not_answer_is_not_judged() {
        let given = || Ok(Buf::zeroed(BLOCK));
        assert_eq!(fault_of(given(), |_| true), None);
        assert_eq!(fault_of(given(), |_| false), Some(Found::Wrong));
        assert_eq!(
            fault_of(Err(Fault::Media), |_| true),
            Some(Found::Unreadable)
        );
        for unanswered in [Fault::Offline, Fault::Timeout] {
            assert_eq!(fault_of(Err(unanswered), |_| true), None);
        }
    }
}
