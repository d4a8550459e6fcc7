//! Writing a root: the slot table pages tagged with it first, then the root itself.

use std::collections::BTreeSet;
use std::rc::Rc;

use ashlar_format::slot::SlotEntry;
use ashlar_rt::join_all;

use crate::home::Home;
use crate::planted::{self, Bug};

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
        let _log = self.log_lock.lock().await;
        let mut root = self.root.borrow().clone();
        root.number += 1;
        root.clean = clean;
        root.next_segment = self.next_segment.get();
        root.next_tree = self.next_tree.get();
        root.cut = cut;
        root.imaged = imaged;
        root.delta_tail = self.window.delta_position(cut, self.journal.positions()[0]);
        root.data_tail = self.journal.data_tail();
        root.catalog = self.catalog_tree.borrow().root();
        root.liveness = self.liveness.borrow().root();
        let open = root.epochs.last().map_or(0, |e| e.number);
        root.epochs.retain(|e| {
            e.number == open
                || (!planted::on(Bug::EpochDroppedEarly) && e.end.is_none_or(|end| end > cut))
        });
        let pages = self.write_pages(root.number, known.as_ref()).await;
        self.publish(root).await;
        self.log_ended.set(clean);
        for (member, page) in pages {
            let mut copies = self.core.member(member).page_copy.borrow_mut();
            copies[page as usize] = 1 - copies[page as usize];
        }
        let root = self.root.borrow();
        self.journal
            .tails_are_durable(root.delta_tail, root.data_tail);
        self.window.cut(cut);
    }

    /// Writes every changed page to its other copy; which were written.
    async fn write_pages(
        self: &Rc<Self>,
        root: u64,
        known: Option<&BTreeSet<u64>>,
    ) -> Vec<(u16, u32)> {
        let counts = |entry: &SlotEntry| known.is_none_or(|known| known.contains(&entry.segment));
        let mut written = Vec::new();
        let mut joins = Vec::new();
        for member in &self.core.members {
            let pages = std::mem::take(&mut *member.dirty_pages.borrow_mut());
            if !member.is_online() {
                continue;
            }
            for number in pages {
                let bytes = member.table_page(&self.core.array, number, root, counts);
                let mut copy = 1 - member.page_copy.borrow()[number as usize];
                copy ^= u8::from(planted::on(Bug::PagesInPlace));
                let offset = member.geometry.page_offset(number, u32::from(copy));
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
