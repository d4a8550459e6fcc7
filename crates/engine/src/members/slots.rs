//! The slots of a member: their columns, the free ones, and the changed pages of the slot table.
//!
//! Invariants:
//! - A slot that was freed is free again only after the root that freed it is durable (R3).
//! - A slot that is being discarded is not free.
//! - A slot that did not keep what was written is tried once more, and then not again until the next import.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use ashlar_format::slot::{ENTRIES_PER_PAGE, SlotEntry, TablePage};

use crate::planted::{self, Bug};

/// The copy of a table page that counts, given the checkpoints that wrote the two copies as far as they can be read:
/// the newest not later than `checkpoint`. Also the copies to rewrite: later ones, and those that cannot be read.
pub fn choose_copy(copies: [Option<u64>; 2], checkpoint: u64) -> (Option<u8>, Vec<u8>) {
    let valid = |copy: &u8| copies[usize::from(*copy)].is_some_and(|of| of <= checkpoint);
    let (kept, replaced): (Vec<u8>, Vec<u8>) = [0, 1].into_iter().partition(valid);
    let age = |copy: &u8| match planted::on(Bug::StalePage) {
        true => copies[usize::from(*copy)].map(|of| u64::MAX - of),
        false => copies[usize::from(*copy)],
    };
    let newest = kept.into_iter().rev().max_by_key(age);
    (newest, replaced)
}

/// The slots of a member.
#[derive(Debug)]
pub struct Slots {
    entries: RefCell<Vec<Option<SlotEntry>>>,
    free: RefCell<BTreeSet<u32>>,
    /// Slots that did not keep what was written, neither used nor free.
    aside: RefCell<BTreeSet<u32>>,
    /// All that were ever set aside since import.
    unkept: RefCell<BTreeSet<u32>>,
    /// How many of them were set aside again, after which they are never released.
    unkept_again: Cell<usize>,
    coming_back: Cell<usize>,
    life: Cell<u32>,
    dirty_pages: RefCell<BTreeSet<u32>>,
    /// Which copy of each table page is the present one.
    page_copy: RefCell<Vec<u8>>,
}

impl Slots {
    /// So many slots, all free, in a table of so many pages.
    pub fn new(slots: u32, pages: u32) -> Slots {
        Slots {
            entries: RefCell::new(vec![None; slots as usize]),
            free: RefCell::new((0..slots).collect()),
            aside: RefCell::default(),
            unkept: RefCell::default(),
            unkept_again: Cell::default(),
            coming_back: Cell::default(),
            life: Cell::default(),
            dirty_pages: RefCell::default(),
            page_copy: RefCell::new(vec![0; pages as usize]),
        }
    }

    /// A device takes the place of this one: all its slots are free, and the table says nothing.
    pub fn renew(&self, slots: u32, pages: u32) {
        let new = Slots::new(slots, pages);
        self.entries.swap(&new.entries);
        self.free.swap(&new.free);
        self.aside.swap(&new.aside);
        self.unkept.swap(&new.unkept);
        self.unkept_again.set(0);
        self.dirty_pages.swap(&new.dirty_pages);
        self.page_copy.swap(&new.page_copy);
        self.life.set(self.life.get() + 1);
    }

    /// The device has grown: it has so many slots now, in a table of so many pages; those that it has more are free.
    pub fn grow(&self, slots: u32, pages: u32) {
        let mut entries = self.entries.borrow_mut();
        let had = u32::try_from(entries.len()).expect("slots have 32-bit numbers");
        self.free.borrow_mut().extend(had..slots);
        entries.resize(slots as usize, None);
        self.page_copy.borrow_mut().resize(pages as usize, 0);
    }

    /// How often [`Slots::renew`] was called: a slot taken in an earlier life is nobody's.
    pub fn life(&self) -> u32 {
        self.life.get()
    }

    /// Slots free.
    pub fn free(&self) -> usize {
        self.free.borrow().len()
    }

    /// Slots that hold something.
    pub fn used(&self) -> usize {
        self.entries.borrow().iter().flatten().count()
    }

    /// Whether every slot is free, or set aside: nothing lies here, and nothing is on its way here.
    pub fn are_empty(&self) -> bool {
        let aside = self.aside.borrow().len() + self.unkept_again.get();
        self.free() + aside == self.entries.borrow().len()
    }

    /// Takes the lowest free slot for `entry`.
    pub fn take(&self, entry: SlotEntry) -> Option<u32> {
        let slot = self.free.borrow_mut().pop_first()?;
        if planted::on(Bug::DoubleAllocation) && slot % 8 == 5 {
            self.free.borrow_mut().insert(slot);
        }
        self.set(slot, Some(entry));
        Some(slot)
    }

    /// Takes the lowest free slot without a word in the table: until [`Slots::set`] says what it
    /// holds it is as free as before to whoever imports the array.
    pub fn reserve(&self) -> Option<u32> {
        self.free.borrow_mut().pop_first()
    }

    /// The lowest free slot from this one on.
    pub fn free_from(&self, slot: u32) -> Option<u32> {
        self.free.borrow().range(slot..).next().copied()
    }

    /// Takes a free slot that is to be discarded: nobody is given it until its discard has ended.
    pub fn take_for_discard(&self, slot: u32) {
        assert!(self.free.borrow_mut().remove(&slot), "it is free");
        self.discard_goes_on();
    }

    /// Notes what a slot holds, without touching the free list.
    pub fn set(&self, slot: u32, entry: Option<SlotEntry>) {
        self.entries.borrow_mut()[slot as usize] = entry;
        self.page_changed(slot / ENTRIES_PER_PAGE);
    }

    /// Claims a particular slot (at import).
    pub fn claim(&self, slot: u32, entry: SlotEntry) {
        self.free.borrow_mut().remove(&slot);
        self.set(slot, Some(entry));
    }

    /// Gives a slot back for reuse. Only after the root that freed it is durable.
    pub fn release(&self, slot: u32) {
        assert!(
            self.entries.borrow()[slot as usize].is_none(),
            "a slot in use is not released"
        );
        self.free.borrow_mut().insert(slot);
    }

    /// The device is discarding a slot, and no checkpoint waits for it.
    pub fn discard_goes_on(&self) {
        self.coming_back.set(self.coming_back.get() + 1);
    }

    /// Such a discard has ended.
    pub fn discard_has_ended(&self) {
        self.coming_back.set(self.coming_back.get() - 1);
    }

    /// Whether slots are free once their discards have ended, which no checkpoint waits for.
    pub fn are_coming_back(&self) -> bool {
        self.coming_back.get() > 0
    }

    /// Takes a slot out of use that did not keep what was written: until the next import, or until room is short,
    /// for that only once. Whether it is out of use for good.
    pub fn set_aside(&self, slot: u32) -> bool {
        self.set(slot, None);
        let first = self.unkept.borrow_mut().insert(slot);
        if first {
            self.aside.borrow_mut().insert(slot);
        } else {
            self.unkept_again.set(self.unkept_again.get() + 1);
        }
        !first
    }

    /// One of the slots that were set aside, to be tried again.
    pub fn take_aside(&self) -> Option<u32> {
        self.aside.borrow_mut().pop_first()
    }

    /// The segment that a slot holds a column of.
    pub fn segment_in(&self, slot: u32) -> Option<u64> {
        let entries = self.entries.borrow();
        Some((*entries.get(slot as usize)?)?.segment)
    }

    /// How many slots are out of use until the next import: they did not keep what was written, twice.
    pub fn unkept(&self) -> usize {
        self.unkept_again.get()
    }

    /// A page of the table as a checkpoint writes it, with the entries that count.
    pub fn page(
        &self,
        page: u32,
        checkpoint: u64,
        counts: impl Fn(&SlotEntry) -> bool,
    ) -> TablePage {
        let entries = self.entries.borrow();
        let first = (page * ENTRIES_PER_PAGE) as usize;
        let end = entries.len().min(first + ENTRIES_PER_PAGE as usize);
        let entries = entries[first..end].iter();
        TablePage {
            page,
            checkpoint,
            entries: entries.map(|e| e.filter(&counts)).collect(),
        }
    }

    /// A page of the table is to be written with the next root.
    pub fn page_changed(&self, page: u32) {
        self.dirty_pages.borrow_mut().insert(page);
    }

    /// Takes the pages that changed since the last root.
    pub fn take_changed_pages(&self) -> BTreeSet<u32> {
        self.dirty_pages.take()
    }

    /// Pages of the table.
    pub fn pages(&self) -> u32 {
        u32::try_from(self.page_copy.borrow().len()).expect("fewer than slots")
    }

    /// Which of the two copies of a page is the present one.
    pub fn page_copy(&self, page: u32) -> u8 {
        self.page_copy.borrow()[page as usize]
    }

    /// The same from now on.
    pub fn set_page_copy(&self, page: u32, copy: u8) {
        self.page_copy.borrow_mut()[page as usize] = copy;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use ashlar_format::slot::SegmentKind;

    use super::*;

    fn entry(segment: u64) -> SlotEntry {
        SlotEntry {
            segment,
            column: 0,
            version: 1,
            k: 1,
            m: 1,
            code: 1,
            kind: SegmentKind::Data,
            strip_blocks: 1,
        }
    }

    #[test]
    fn slots_are_taken_from_the_lowest_and_come_back_when_released() {
        let slots = Slots::new(16, 1);
        assert!(slots.are_empty());
        assert_eq!(slots.take(entry(1)), Some(0));
        assert_eq!(slots.reserve(), Some(1));
        assert_eq!(
            slots.used(),
            1,
            "the table says nothing of the reserved one"
        );
        slots.set(0, None);
        slots.release(1);
        assert_eq!(slots.free(), 15, "not before it is released");
        assert!(!slots.are_empty());
        slots.release(0);
        assert!(slots.are_empty());
        assert_eq!(slots.reserve(), Some(0));
        assert_eq!(slots.reserve(), Some(1));
        slots.release(0);
        assert_eq!(slots.take(entry(2)), Some(0));
        slots.claim(2, entry(3));
        assert_eq!(slots.reserve(), Some(3));
    }

    #[test]
    fn a_device_that_grows_has_more_slots() {
        let slots = Slots::new(124, 1);
        slots.take(entry(1));
        slots.grow(200, 2);
        assert_eq!(
            (slots.free(), slots.used(), slots.page_copy(1)),
            (199, 1, 0)
        );
        slots.claim(199, entry(2));
        assert_eq!(slots.page(1, 5, |_| true).entries.len(), 76);
    }

    #[test]
    fn a_late_discard_keeps_its_slot() {
        let slots = Slots::new(4, 1);
        slots.take(entry(1));
        slots.set(0, None);
        slots.discard_goes_on();
        assert!(slots.are_coming_back() && slots.free() == 3);
        slots.discard_has_ended();
        slots.release(0);
        assert!(!slots.are_coming_back() && slots.free() == 4);
    }

    #[test]
    fn a_slot_that_is_being_discarded_is_nobodys() {
        let slots = Slots::new(4, 1);
        slots.take(entry(1));
        assert_eq!((slots.free_from(0), slots.free_from(2)), (Some(1), Some(2)));
        slots.take_for_discard(1);
        assert_eq!((slots.free_from(0), slots.reserve()), (Some(2), Some(2)));
        assert!(slots.are_coming_back() && slots.used() == 1);
        slots.discard_has_ended();
        slots.release(1);
        assert_eq!((slots.reserve(), slots.free_from(4)), (Some(1), None));
    }

    /// A slot that did not keep what was written is tried once more, and then no longer.
    #[test]
    fn a_slot_set_aside_is_tried_once_more() {
        let slots = Slots::new(4, 1);
        slots.take(entry(1));
        assert!(!slots.set_aside(0));
        assert!(slots.are_empty());
        assert_eq!((slots.unkept(), slots.take_aside()), (0, Some(0)));
        assert!(!slots.are_empty(), "it is tried");
        assert!(slots.set_aside(0), "for good");
        assert!(slots.are_empty());
        assert_eq!((slots.unkept(), slots.take_aside()), (1, None));
    }

    #[test]
    fn a_page_names_the_entries_that_count() {
        let slots = Slots::new(4, 1);
        slots.take(entry(1));
        slots.take(entry(2));
        assert_eq!(slots.take_changed_pages(), BTreeSet::from([0]));
        let page = slots.page(0, 5, |e| e.segment == 2);
        assert_eq!(
            (page.checkpoint, page.entries[0], page.entries[1]),
            (5, None, Some(entry(2)))
        );
    }

    #[test]
    fn the_copy_of_a_page_that_counts() {
        // Checkpoints of the two copies; the one that counts as of checkpoint 7, those to rewrite.
        let t = |first, second, kept, replaced: &[u8]| {
            let found = choose_copy([first, second], 7);
            assert_eq!(found, (kept, replaced.to_vec()), "{first:?}, {second:?}");
        };
        t(Some(6), Some(7), Some(1), &[]);
        t(Some(7), Some(6), Some(0), &[]);
        t(Some(6), Some(6), Some(0), &[]);
        t(Some(6), Some(8), Some(0), &[1]);
        t(Some(8), Some(6), Some(1), &[0]);
        t(None, Some(6), Some(1), &[0]);
        t(Some(8), None, None, &[0, 1]);
        t(None, None, None, &[0, 1]);
    }
}
