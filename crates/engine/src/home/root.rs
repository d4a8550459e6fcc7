//! A checkpoint's end: the slot table pages that it writes, then the root.
//!
//! Invariant: no two checkpoints have the same number, whether they ended or not, so a page that one of them wrote
//! counts only under roots that go on from it. A change of membership while a checkpoint runs makes roots, and no
//! checkpoint.

use std::cell::{Cell, Ref, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use ashlar_format::SegmentNumber;
use ashlar_format::root::Root;
use ashlar_format::slot::SlotEntry;
use ashlar_rt::join_all;

use crate::home::Home;
use crate::planted::{self, Bug};

/// The last root, and numbers that the next one tells of.
#[derive(Debug)]
pub struct Roots {
    last: RefCell<Root>,
    /// The number of the last checkpoint, shared with the shards.
    birth: Rc<Cell<u64>>,
    next_checkpoint: Cell<u64>,
    next_segment: Cell<SegmentNumber>,
}

impl Roots {
    /// The root that an array begins with, and the number of the next checkpoint: above that of any before, whether it
    /// ended or not.
    pub fn new(root: Root, next_checkpoint: u64, birth: Rc<Cell<u64>>) -> Roots {
        Roots {
            next_checkpoint: Cell::new(next_checkpoint),
            next_segment: Cell::new(root.next_segment),
            last: RefCell::new(root),
            birth,
        }
    }

    /// The last root.
    pub fn borrow(&self) -> Ref<'_, Root> {
        self.last.borrow()
    }

    /// A root is durable.
    pub fn set(&self, root: Root) {
        self.birth.set(root.checkpoint);
        self.last.replace(root);
    }

    /// No epoch that it names lies on a member that is new.
    pub fn leave_out(&self, index: u16) {
        if planted::on(Bug::NewcomerInOldEpochs) {
            return;
        }
        for epoch in &mut self.last.borrow_mut().epochs {
            epoch.excluded.push(index);
        }
    }

    /// The number of the last checkpoint: the birth of what is written now.
    pub fn birth(&self) -> u64 {
        self.birth.get()
    }

    /// The number that the checkpoint under way takes.
    pub fn next_checkpoint(&self) -> u64 {
        self.next_checkpoint.get()
    }

    /// The number of a checkpoint that begins to write, which no other has had.
    fn take_checkpoint_number(&self) -> u64 {
        self.next_checkpoint.replace(self.next_checkpoint.get() + 1)
    }

    /// The number of the next new segment.
    pub fn next_segment(&self) -> SegmentNumber {
        self.next_segment.get()
    }

    /// The number of a new segment, which no other has had.
    pub fn take_segment_number(&self) -> SegmentNumber {
        self.next_segment.replace(self.next_segment.get() + 1)
    }
}

impl Home {
    /// Writes slot table pages and a new root. After a clean one nothing is journalled: what runs in the
    /// background until the array stops must not make that root untrue.
    ///
    /// The slots of segments that are not `known` stay free in a clean root's table: who opened them since
    /// liveness was imaged has written nothing that counts.
    pub(super) async fn write_root(
        self: &Rc<Self>,
        cut: u64,
        imaged: u64,
        known: Option<BTreeSet<u64>>,
    ) {
        let clean = known.is_some();
        let mut ended = self.log.turn.lock().await;
        let mut root = self.root.borrow().clone();
        root.number += 1;
        root.checkpoint = self.root.take_checkpoint_number();
        root.clean = clean;
        root.next_segment = self.root.next_segment();
        root.next_tree = self.catalog.next_number();
        root.cut = cut;
        root.imaged = imaged;
        root.delta_tail = self
            .journal
            .window
            .delta_position(cut, self.journal.positions()[0]);
        root.data_tail = self.journal.data_tail();
        root.catalog = self.catalog.tree().root();
        root.liveness = self.liveness.tree().root();
        let open = root.epochs.last().map_or(0, |e| e.number);
        root.epochs.retain(|e| {
            e.number == open
                || (!planted::on(Bug::EpochDroppedEarly) && e.end.is_none_or(|end| end > cut))
        });
        let pages = self.write_pages(root.checkpoint, known.as_ref()).await;
        self.publish(root).await;
        *ended = clean;
        for (member, page) in pages {
            let slots = &self.core.member(member).slots;
            slots.set_page_copy(page, 1 - slots.page_copy(page));
        }
        let root = self.root.borrow();
        self.journal
            .tails_are_durable(root.delta_tail, root.data_tail);
        self.journal.window.cut(cut);
    }

    /// Writes every changed page to its other copy; which were written.
    async fn write_pages(
        self: &Rc<Self>,
        checkpoint: u64,
        known: Option<&BTreeSet<u64>>,
    ) -> Vec<(u16, u32)> {
        let counts = |entry: &SlotEntry| known.is_none_or(|known| known.contains(&entry.segment));
        let mut written = Vec::new();
        let mut joins = Vec::new();
        for member in &self.core.members {
            let mut pages = member.slots.take_changed_pages();
            if !member.is_written() {
                continue;
            }
            if pages.is_empty() {
                // Each checkpoint leaves its number on each member: so one that was away proves what it has seen.
                let turn = checkpoint % u64::from(member.geometry().table_pages().max(1));
                pages.insert(u32::try_from(turn).expect("less than the pages"));
            }
            for number in pages {
                let array = &self.core.identity.array;
                let bytes = member.table_page(array, number, checkpoint, counts);
                let mut copy = 1 - member.slots.page_copy(number);
                copy ^= u8::from(planted::on(Bug::PagesInPlace));
                let offset = member.geometry().page_offset(number, u32::from(copy));
                let (core, index) = (self.core.clone(), member.index);
                written.push((index, number));
                let write = async move { core.write(index, offset, bytes).await };
                joins.push(self.core.rt.spawn(write));
            }
        }
        join_all(joins).await;
        let touched: BTreeSet<u16> = written.iter().map(|(member, _)| *member).collect();
        if !planted::on(Bug::PagesNotFlushed) && !planted::on(Bug::RootBeforeNodes) {
            self.flush_members(touched.into_iter().collect()).await;
        }
        written
    }
}
