//! Commits: a new root, and what it takes to be allowed to write one.
//!
//! Order, and why (S2, S3, S7, S9, S10):
//! 1. Shards fold and place their nodes; liveness becomes the image of these trees.
//! 2. Segments that no tree, no delta and no reader needs leave the table and their slots' entries.
//! 3. System nodes (catalog, liveness) get places; placing them changes liveness, so this runs until
//!    nothing new is to be placed. Then all bytes are known and every stripe of nodes is written.
//! 4. All devices are flushed; the rows of these stripes go into the journal, so that their owners are
//!    known whatever happens before their course's summary is written.
//! 5. Slot table pages go to the copy that the last root does not use, tagged with the new root's
//!    number, and are flushed; then the root, to every root-set device in use, and flushed.
//! 6. Only now the slots freed in 2 and the journal before the cut may be reused.
//!
//! A crash before 5 ends leaves the last root with all it names: nothing it reaches has been
//! overwritten, since slots and journal are reused only after 6. A crash in 5 may leave the new root on
//! some devices: it is complete wherever it is, because everything it names was flushed before.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ashlar_format::journal::{Entry, Ring};
use ashlar_format::node::Place;
use ashlar_format::root::{Epoch, MAX_EPOCH_BYTES, RingPosition, Root};
use ashlar_format::slot::{SegmentKind, SlotEntry};
use ashlar_format::summary::Owner;
use ashlar_format::{BLOCK, BLOCK_U64};
use ashlar_rt::Buf;

use crate::batch::open_entries;
use crate::domains::Domains;
use crate::home::{CATALOG_TREE, Home, LIVENESS_TREE};
use crate::messages::{Prepared, ShardMessage, ask};
use crate::metawriter::PlacedNode;
use crate::planted::{self, Bug};
use crate::record_sets::{RecordSet, record_sets};
use crate::segment::Segment;
use crate::stripe::{self, node_owner_address};
use crate::tree::NodeWrite;

impl Home {
    /// Makes a new root durable that has folded every delta recorded at or before `target`: in several
    /// steps, each a root, where free space is too short for one.
    pub(crate) async fn commit(self: &Rc<Self>, target: u64) {
        loop {
            // A step frees no slot by itself: the nodes it replaces lie among live ones. Where room is
            // tight, segments half dead are emptied before each step, by more nodes than it folds, so that
            // no number of steps uses up the room.
            if self.room_is_tight() {
                self.clean_metadata(self.clean_limit()).await;
            }
            let _one = self.commit_lock.lock().await;
            if self.core.closed.get() || !self.commit_locked(target, false).await {
                return;
            }
        }
    }

    /// One step of [`Home::commit`], by a caller that holds the commit lock. `clean` marks the array
    /// exported. Whether more is left to fold, and can be.
    pub(crate) async fn commit_locked(self: &Rc<Self>, target: u64, clean: bool) -> bool {
        let applied = self.applied();
        let recorded = self.recorded_at.get();
        let charged = self.core.thin_charged.get();
        self.seal_pinned().await;
        self.core.before_commit.set(Some(self.before_commit()));
        self.hold_room();
        let prepared = self.prepare_shards(target).await;
        let oldest = prepared.iter().filter_map(|p| p.oldest).min();
        let more = prepared.iter().any(|p| p.more);
        let pending = prepared.iter().map(|p| p.thin_pending).sum();
        let mut nodes = BTreeMap::new();
        for part in prepared {
            self.take_part(part, &mut nodes);
        }
        let imaged = self.journal.next();
        let freed = self.free_segments();
        self.place_system_nodes(&mut nodes).await;
        // What liveness knows: a clean root has no journal that could tell of others.
        let known: Option<BTreeSet<u64>> =
            clean.then(|| self.core.segments.borrow().keys().copied().collect());
        self.let_go_of_room();
        let Ok(stripes) = self.meta_write(&nodes).await else {
            self.halt(
                "a commit could not be written: more devices failed at once than metadata survives",
            );
            return false;
        };
        for shard in &self.shards {
            ask(shard, ShardMessage::Written).await;
        }
        let opened = self.take_opened(SegmentKind::Meta);
        let mut online = self.core.online();
        online.retain(|_| !planted::on(Bug::RootBeforeNodes));
        self.flush(online).await;
        let mut entries: Vec<Entry> = open_entries(&opened);
        entries.extend(stripes.iter().map(|(_, _, entry)| entry.clone()));
        if !entries.is_empty() {
            match self.journal_deltas(&entries, true).await {
                Some(sequence) => {
                    for (segment, stripe, _) in &stripes {
                        self.stripe_recorded_after_image(segment, *stripe, sequence);
                    }
                }
                None => {
                    self.opened.borrow_mut().extend(opened);
                    self.seal_instead(&stripes).await;
                }
            }
        }
        let cut = [
            Some(applied),
            oldest,
            self.oldest_data(),
            self.oldest_rows(),
            self.recovering.get(),
        ]
        .into_iter()
        .flatten()
        .min()
        .filter(|_| !planted::on(Bug::CutTooLate))
        .unwrap_or(applied);
        if planted::on(Bug::SlotsFreedEarly) {
            self.release(freed.clone()).await;
        }
        self.write_root(cut, imaged, known).await;
        self.core.before_commit.set(None);
        self.release(freed).await;
        self.count_thin(pending, self.core.thin_charged.get() - charged);
        self.warn_of_space();
        if !more && target + 1 >= applied {
            self.folded_at.set(recorded);
        }
        self.commits.set(self.commits.get() + 1);
        self.committed.open();
        self.core.progress.open();
        more
    }

    /// The journal has no room for the rows of this commit's nodes: their segments are sealed, so that
    /// the rows stand in summaries before the root names the nodes. What the image says of these
    /// segments is behind; recovery takes every stripe with a live block as recorded.
    async fn seal_instead(self: &Rc<Self>, stripes: &[(Rc<Segment>, u32, Entry)]) {
        for (segment, stripe, _) in stripes {
            self.stripe_recorded(segment, *stripe, self.journal.next());
        }
        for (segment, _, _) in stripes {
            self.seal(segment).await;
        }
    }

    async fn prepare_shards(&self, target: u64) -> Vec<Prepared> {
        let mut joins = Vec::new();
        let mut limit = self.fold_limit();
        limit.nodes /= self.shards.len();
        let (size, used) = self.journal.usage(Ring::Delta);
        self.core.give_up_lost.set(used * 2 > size);
        for shard in &self.shards {
            let shard = shard.clone();
            joins.push(self.core.rt.spawn(async move {
                ask(&shard, |reply| ShardMessage::Prepare(target, limit, reply)).await
            }));
        }
        let mut prepared = Vec::new();
        for join in joins {
            prepared.push(join.await.unwrap_or_default());
        }
        prepared
    }

    /// Takes a shard's part: map roots into the catalog, life and death into liveness.
    fn take_part(&self, part: Prepared, nodes: &mut BTreeMap<Place, PlacedNode>) {
        let mut catalog = self.catalog.borrow_mut();
        for ((tree, partition), root) in part.roots {
            if let Some(volume) = catalog.volumes.iter_mut().find(|v| v.number == tree) {
                volume.maps[usize::from(partition)] = root;
            }
        }
        for (tree, change) in part.mapped {
            if let Some(volume) = catalog.volumes.iter_mut().find(|v| v.number == tree) {
                volume.mapped_bytes = volume.mapped_bytes.saturating_add_signed(change);
            }
        }
        for (tree, change) in part.map_nodes {
            if let Some(volume) = catalog.volumes.iter_mut().find(|v| v.number == tree) {
                volume.map_nodes = volume.map_nodes.saturating_add_signed(change);
            }
        }
        drop(catalog);
        for (place, count) in part.born {
            self.set_live(place, count, true);
        }
        for (place, count) in part.dead {
            self.set_live(place, count, false);
        }
        for write in part.writes {
            nodes.insert(write.place, placed_node(&write));
        }
    }

    /// Takes segments out of the table that nothing needs: sealed, dead, and held by nobody else.
    fn free_segments(&self) -> Vec<Rc<Segment>> {
        let mut segments = self.core.segments.borrow_mut();
        let current = self.meta.borrow().current.as_ref().map(|s| s.number);
        for segment in segments.values() {
            // A full segment is sealed by its last stripe.
            if segment.recorded.get() == segment.geometry.stripes()
                && Some(segment.number) != current
            {
                segment.sealed.set(true);
            }
        }
        let free: Vec<u64> = segments
            .values()
            .filter(|s| {
                s.sealed.get()
                    && s.live.borrow().is_empty()
                    && (Rc::strong_count(s) == 1 || planted::on(Bug::FreedInUse))
                    && Some(s.number) != current
            })
            .map(|s| s.number)
            .collect();
        let freed: Vec<Rc<Segment>> = free.iter().filter_map(|n| segments.remove(n)).collect();
        for segment in &freed {
            self.mark_record(segment);
            self.records.borrow_mut().remove(&segment.record.get());
            for column in segment.columns.borrow().iter().filter(|c| c.is_placed()) {
                self.core.member(column.device).set_slot(column.slot, None);
            }
        }
        freed
    }

    /// After the root: the freed slots may be written again.
    async fn release(&self, freed: Vec<Rc<Segment>>) {
        for segment in freed {
            self.free_records.borrow_mut().insert(segment.record.get());
            let columns = segment.columns.take();
            for column in columns.iter().filter(|c| c.is_placed()) {
                let member = self.core.member(column.device);
                match member.discard_slot(column.slot).await {
                    Ok(()) => member.release_slot(column.slot),
                    Err(late) => {
                        let (core, column) = (self.core.clone(), *column);
                        self.core.rt.spawn(async move {
                            let _ = late.await; // discarding is advice
                            core.member(column.device).release_slot(column.slot);
                            core.progress.open();
                        });
                    }
                }
            }
        }
    }

    /// Places catalog and liveness nodes until nothing new is to be placed, then makes their bytes.
    async fn place_system_nodes(self: &Rc<Self>, nodes: &mut BTreeMap<Place, PlacedNode>) {
        self.mark_catalog();
        let catalog_leaves = self.catalog_bytes.borrow().len().div_ceil(BLOCK) as u64;
        loop {
            let catalog_ids = self
                .catalog_tree
                .borrow_mut()
                .unplaced(|leaf| leaf < catalog_leaves);
            let liveness_ids = self
                .liveness
                .borrow_mut()
                .unplaced(|leaf| self.record_exists(leaf));
            if catalog_ids.is_empty() && liveness_ids.is_empty() {
                break;
            }
            for (tree, ids) in [
                (&self.catalog_tree, catalog_ids),
                (&self.liveness, liveness_ids),
            ] {
                for id in ids {
                    let place = self.meta_place().await;
                    let old = tree.borrow_mut().set_place(id, place);
                    self.set_live(place, 1, true);
                    if let Some(old) = old {
                        self.set_dead(old);
                    }
                }
            }
            self.kill_gone(catalog_leaves);
        }
        let bytes = self.catalog_bytes.borrow().clone();
        let catalog_payload = |leaf: u64| {
            let start = usize::try_from(leaf).ok()? * BLOCK;
            let part = bytes
                .get(start..bytes.len().min(start + BLOCK))
                .filter(|p| !p.is_empty())?;
            let mut node = part.to_vec();
            node.resize(BLOCK, 0);
            Some(node)
        };
        let catalog = self
            .catalog_tree
            .borrow_mut()
            .finish(&self.core, catalog_payload);
        let liveness = self
            .liveness
            .borrow_mut()
            .finish(&self.core, |leaf| self.record_leaf_bytes(leaf));
        for (number, made) in [(CATALOG_TREE, catalog), (LIVENESS_TREE, liveness)] {
            for ((level, index), place, digest, bytes) in made {
                let owner = node_owner(number, 0, level, index);
                nodes.insert(
                    place,
                    PlacedNode {
                        owner,
                        digest,
                        bytes: Buf::copy_of(&bytes).freeze(),
                    },
                );
            }
        }
    }

    /// Nodes of records and catalog parts that no longer exist die; this may change liveness again.
    fn kill_gone(&self, catalog_leaves: u64) {
        let mut gone = self.liveness.borrow().gone(|leaf| self.record_exists(leaf));
        gone.extend(
            self.catalog_tree
                .borrow()
                .gone(|leaf| leaf < catalog_leaves),
        );
        for place in gone {
            self.set_dead(place);
        }
    }

    /// A node of the home's trees dies, unless it has already: one whose last record is gone may get
    /// another in the same commit.
    fn set_dead(&self, place: Place) {
        let segment = self.core.segment(place.segment);
        if segment.is_some_and(|s| s.live.borrow().get(place.block)) {
            self.set_live(place, 1, false);
        }
    }

    /// Finds which parts of the catalog changed.
    fn mark_catalog(&self) {
        let new = self.catalog.borrow().encode();
        let old = self.catalog_bytes.borrow().clone();
        let mut tree = self.catalog_tree.borrow_mut();
        let parts = new.len().max(old.len()).div_ceil(BLOCK);
        for part in 0..parts {
            let cut = |bytes: &[u8]| {
                bytes
                    .get(part * BLOCK..bytes.len().min((part + 1) * BLOCK))
                    .map(<[u8]>::to_vec)
            };
            if cut(&new) != cut(&old) || tree.root().top.is_none() {
                tree.mark(part as u64);
            }
        }
        tree.set_payload_bytes(new.len() as u64);
        *self.catalog_bytes.borrow_mut() = new;
    }

    /// A stripe of nodes was recorded after the image of its segment's record was made: what the image
    /// says of it is behind, and the journal entry makes up for that.
    fn stripe_recorded_after_image(&self, segment: &Segment, stripe: u32, sequence: u64) {
        self.stripe_recorded(segment, stripe, sequence);
        // The last stripe of a course carries the summary and was flushed with it; else rows hang on
        // this sequence, which the cut below keeps.
        if segment.rows_since.get().is_none() && segment.recorded.get() < segment.geometry.stripes()
        {
            // Recovery must learn of this stripe: keep its entry until the next commit's image.
            segment.image_behind.set(Some(sequence));
        }
    }

    fn oldest_rows(&self) -> Option<u64> {
        let segments = self.core.segments.borrow();
        let rows = segments.values().filter_map(|s| s.rows_since.get());
        let rows = rows.filter(|_| !planted::on(Bug::RowsNotPinned));
        rows.chain(segments.values().filter_map(|s| s.image_behind.get()))
            .min()
    }

    /// Seals open segments whose unfinished course keeps the journal from being cut, when that matters.
    async fn seal_pinned(self: &Rc<Self>) {
        let (size, used) = self.journal.usage(Ring::Delta);
        let segments: Vec<Rc<Segment>> = self.core.segments.borrow().values().cloned().collect();
        // Courses just begun are left alone, unless the ring is so small that these few records fill it.
        let young = if used * 4 > size * 3 { 0 } else { 8 };
        for segment in segments {
            segment.image_behind.set(None);
            let pinned = segment
                .rows_since
                .get()
                .is_some_and(|since| used * 3 > size && since + young < self.journal.next());
            let open = !segment.sealed.get();
            let broken = self.core.has_lost_column(&segment) && open;
            // No stream writes into it any more: only a sealed one is ever cleaned and freed.
            let left = segment.retired.get() && open;
            let idle = segment.recorded.get() == segment.next_stripe.get();
            if (pinned || broken || left) && idle {
                self.seal(&segment).await;
            } else if pinned || broken {
                // Its stream goes on elsewhere; once its last stripe is recorded it can be sealed.
                segment.retired.set(true);
            }
        }
    }

    /// Seals every segment without a stripe in flight: nothing of them hangs on the journal then.
    pub(crate) async fn seal_idle(self: &Rc<Self>) {
        let segments: Vec<Rc<Segment>> = self.core.segments.borrow().values().cloned().collect();
        for segment in segments {
            if segment.recorded.get() == segment.next_stripe.get() && !segment.sealed.get() {
                self.seal(&segment).await;
            }
        }
    }

    /// Seals one segment; a stream that writes into it goes on with another.
    pub(crate) async fn seal(self: &Rc<Self>, segment: &Rc<Segment>) {
        let is_current = self
            .meta
            .borrow()
            .current
            .as_ref()
            .is_some_and(|s| s.number == segment.number);
        if is_current {
            self.meta.borrow_mut().current = None;
        }
        stripe::seal(&self.core, segment).await;
        self.mark_header(segment);
        self.members_settled().await;
    }

    // ---- roots and membership ---------------------------------------------------------------------

    /// Writes slot table pages and a new root. After a clean one nothing is journalled: what runs in the
    /// background until the array stops must not make that root untrue.
    ///
    /// The slots of segments that are not `known` stay free in a clean root's table: who opened them since
    /// liveness was imaged has written nothing that counts.
    async fn write_root(self: &Rc<Self>, cut: u64, imaged: u64, known: Option<BTreeSet<u64>>) {
        let clean = known.is_some();
        let _log = self.log_lock.lock().await;
        let mut root = self.root.borrow().clone();
        root.number += 1;
        root.clean = clean;
        root.next_segment = self.next_segment.get();
        root.next_tree = self.next_tree.get();
        root.cut = cut;
        root.imaged = imaged;
        root.delta_tail = self.delta_position(cut);
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
        let mut positions = self.delta_positions.borrow_mut();
        while positions
            .front()
            .is_some_and(|(sequence, _)| *sequence < cut)
        {
            positions.pop_front();
        }
    }

    /// The ring position of the first delta record at or after a sequence.
    fn delta_position(&self, cut: u64) -> RingPosition {
        let positions = self.delta_positions.borrow();
        positions
            .iter()
            .find(|(sequence, _)| *sequence >= cut)
            .map_or(self.journal.positions()[0], |(_, position)| *position)
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
                joins.push(self.core.rt.spawn(async move {
                    if core.member(index).write(offset, vec![bytes]).await.is_err() {
                        core.report_failed(index);
                    }
                }));
            }
        }
        for join in joins {
            join.await;
        }
        let touched: BTreeSet<u16> = written.iter().map(|(member, _)| *member).collect();
        if !planted::on(Bug::PagesNotFlushed) && !planted::on(Bug::RootBeforeNodes) {
            self.flush_members(touched.into_iter().collect()).await;
        }
        written
    }

    /// Makes `root` durable on every root-set device in use, taking out whatever fails on the way by a
    /// generation change. The caller holds the log lock.
    pub(crate) async fn publish(self: &Rc<Self>, mut root: Root) {
        loop {
            if !self.core.failing.borrow().is_empty() {
                self.change_generation(&mut root).await;
            }
            if self.core.closed.get() {
                return;
            }
            if self.core.online().is_empty() {
                self.halt("no device is left");
                return;
            }
            let set = self.superblock.borrow().root_set.clone();
            let bytes = Buf::copy_of(&root.encode(&self.core.array)).freeze();
            let mut joins = Vec::new();
            for index in set {
                if !self.core.member(index).is_online()
                    || (planted::on(Bug::RootOnOneDevice) && !joins.is_empty())
                {
                    continue;
                }
                let (core, bytes) = (self.core.clone(), bytes.clone());
                let offset = self.core.member(index).geometry.root_offset(root.number);
                joins.push(self.core.rt.spawn(async move {
                    let member = core.member(index);
                    if member.write(offset, vec![bytes]).await.is_err()
                        || (!planted::on(Bug::RootNotFlushed) && member.flush().await.is_err())
                    {
                        core.report_failed(index);
                    }
                }));
            }
            for join in joins {
                join.await;
            }
            if self.core.failing.borrow().is_empty() {
                break;
            }
            root.number += 1;
        }
        self.birth.set(root.number);
        *self.root.borrow_mut() = root;
        self.core.settled.open();
    }

    /// Takes failing members out: a new generation, stored by at least half of those counted before,
    /// and a new journal epoch that begins at the next sequence.
    async fn change_generation(self: &Rc<Self>, root: &mut Root) {
        let counted = self.core.online().len();
        let failing = std::mem::take(&mut *self.core.failing.borrow_mut());
        for index in failing {
            let member = self.core.member(index);
            if member.is_online() {
                member.take_out(ashlar_format::superblock::MemberState::Failed);
                let text = format!(
                    "device {index} ({}) failed and is no longer used; what it held is reconstructed onto the others where they have room: see `ashlar status`",
                    member.path()
                );
                self.core.event("device-failed", Some(index), text);
            }
        }
        let stored = if planted::on(Bug::GenerationNotStored) {
            counted
        } else {
            self.store_generation().await
        };
        let failed = |d: &u16| self.core.failing.borrow().contains(d);
        if self.core.online().iter().all(failed) {
            self.halt("no device is left"); // to agree, or to go on with whatever the operator says
            return;
        }
        if stored * 2 < counted && !self.forced.get() {
            self.waiting_quorum.set(Some((stored, counted)));
            let text = format!(
                "only {stored} of {counted} devices are left to agree on a new generation: writes wait; bring devices back, or use `ashlar fail -f` to go on"
            );
            self.core.event("writes-wait", None, text);
            self.force_gate
                .until(|| self.forced.get() || self.core.closed.get())
                .await;
            self.waiting_quorum.set(None);
        }
        let next = self.journal.next();
        root.number += 1;
        self.close_epoch(root, next);
        self.core.progress.open();
    }

    /// Ends the open epoch of `root` at `next` and begins another, of the present generation and with the members
    /// in use.
    pub(crate) fn close_epoch(&self, root: &mut Root, next: u64) {
        let generation = self.superblock.borrow().generation;
        (root.generation, root.generation_id) = (generation.number, generation.id);
        if let Some(last) = root.epochs.last_mut() {
            if last.first == next && last.end.is_none() {
                // Nothing was written under it: it is as if it had not been, but its number is used.
                last.end = Some(next);
            }
            last.end.get_or_insert(next);
        }
        let excluded = self
            .core
            .members
            .iter()
            .filter(|m| !m.is_online())
            .map(|m| m.index)
            .collect();
        let number = root.epochs.last().map_or(1, |e| e.number + 1);
        root.epochs
            .retain(|e| e.end.is_none_or(|end| end > e.first));
        let epoch = Epoch {
            number,
            first: next,
            end: None,
            m: if planted::on(Bug::JournalWithoutParity) {
                0
            } else {
                self.journal_sets().1
            },
            excluded,
        };
        root.epochs.push(epoch.clone());
        assert!(
            root.epoch_bytes() < MAX_EPOCH_BYTES,
            "commits drop epochs before there are too many"
        );
        self.journal.begin_epoch(epoch, self.journal_sets().0);
    }

    /// Sets of members in use, one of which holds each record, and their parity (S5).
    pub(crate) fn journal_sets(&self) -> (Vec<RecordSet>, u16) {
        let in_use = |d| self.core.member(d).is_online();
        record_sets(&self.shape, &self.core.domains, in_use)
    }

    /// Writes a new generation to every member in use; how many stored it.
    pub(crate) async fn store_generation(self: &Rc<Self>) -> usize {
        {
            let mut superblock = self.superblock.borrow_mut();
            let mut id = [0; 16];
            id[..8].copy_from_slice(&self.core.rt.random().to_le_bytes());
            id[8..].copy_from_slice(&self.core.rt.random().to_le_bytes());
            let counted = crate::assemble::online_members(&superblock).count();
            superblock.generation.before = u16::try_from(counted).expect("at most 65,535 members");
            superblock.generation.parent = superblock.generation.id;
            superblock.generation.id = id;
            superblock.generation.number += 1;
            for (entry, member) in superblock.members.iter_mut().zip(&self.core.members) {
                entry.state = member.state();
            }
            let most_lost = self.shape.most_lost();
            superblock.root_set =
                choose_root_set(&self.core.online(), most_lost, &self.core.domains);
        }
        self.store_superblocks().await
    }

    /// Writes the superblock to every member in use (never over its newer copy); how many stored it.
    pub(crate) async fn store_superblocks(self: &Rc<Self>) -> usize {
        self.superblock.borrow_mut().writes += 1;
        let mut joins = Vec::new();
        for member in self.core.members.iter().filter(|m| m.is_online()) {
            let bytes = self.superblock_for(member.index);
            let copy = 1 - member.super_copy.get();
            let (core, index, offset) = (
                self.core.clone(),
                member.index,
                member.geometry.super_offset(copy),
            );
            joins.push(self.core.rt.spawn(async move {
                let member = core.member(index);
                let done =
                    member.write(offset, vec![bytes]).await.is_ok() && member.flush().await.is_ok();
                if done {
                    member.super_copy.set(copy);
                } else {
                    core.report_failed(index);
                }
                done
            }));
        }
        let mut stored = 0;
        for join in joins {
            stored += usize::from(join.await);
        }
        stored
    }

    pub(crate) fn superblock_for(&self, index: u16) -> ashlar_rt::Slice {
        let mut superblock = self.superblock.borrow().clone();
        let member = self.core.member(index);
        superblock.index = index;
        superblock.device = member.uuid;
        superblock.geometry = member.geometry;
        Buf::copy_of(&superblock.encode()).freeze()
    }

    /// Takes out members that were reported, whenever some are.
    pub(crate) async fn watch_members(self: Rc<Self>) {
        while !self.core.closed.get() {
            self.core
                .failing_gate
                .until(|| !self.core.failing.borrow().is_empty() || self.core.closed.get())
                .await;
            if self.core.closed.get() {
                return;
            }
            let _log = self.log_lock.lock().await;
            if self.core.failing.borrow().is_empty() {
                continue;
            }
            // Only the membership and the epoch change: trees, cuts and pages are the last root's.
            let root = self.root.borrow().clone();
            self.publish(root).await;
        }
    }

    /// Waits until no reported member is left to be taken out, and no change waits for the operator.
    pub(crate) async fn members_settled(&self) {
        // A record still waits for the log lock, which the change of membership holds to its end.
        let settled =
            || self.core.failing.borrow().is_empty() && self.waiting_quorum.get().is_none();
        self.core
            .settled
            .until(|| settled() || self.core.closed.get())
            .await;
    }

    /// Stops everything: what cannot go on without breaking a promise.
    pub(crate) fn halt(&self, why: &str) {
        self.core.tell_sums();
        self.core.event("halted", None, why.to_string());
        *self.stopped.borrow_mut() = why.to_string();
        self.core.closed.set(true);
        self.refuse_waiters();
        for shard in &self.shards {
            let _ = shard.send(ShardMessage::Close); // it may be gone already
        }
        for member in &self.core.members {
            member.close();
        }
        self.force_gate.open();
        self.core.failing_gate.open();
        self.core.settled.open();
        self.core.progress.open();
        self.core.event_gate.open();
        self.core.heal_gate.open();
        self.cleaner_gate.open();
        self.commit_wanted.open();
    }
}

/// The devices that hold roots: all up to 16, else max(2M + 3, 9), spread over the domains, where M is how many
/// devices can be lost with every segment readable; at most as many as a superblock names.
pub fn choose_root_set(online: &[u16], most_lost: usize, domains: &Domains) -> Vec<u16> {
    if online.len() <= 16 {
        return online.to_vec();
    }
    let mut by_domain = online.to_vec();
    by_domain.sort_by_key(|d| (domains.of(*d), *d));
    let count = (2 * most_lost + 3).clamp(9, 256).min(online.len());
    let mut chosen: Vec<u16> = (0..count)
        .map(|i| by_domain[i * by_domain.len() / count])
        .collect();
    chosen.sort_unstable();
    chosen
}

fn node_owner(tree: u32, partition: u16, level: u8, index: u64) -> Owner {
    Owner {
        tree,
        kind: level + 1,
        algorithm: 0,
        piece: 0,
        pieces_less_one: 0,
        address: node_owner_address(partition, index),
    }
}

fn placed_node(write: &NodeWrite) -> PlacedNode {
    let (tree, partition, level, index) = write.key;
    PlacedNode {
        owner: node_owner(tree, partition, level, index),
        digest: write.digest,
        bytes: write.bytes.clone(),
    }
}

/// Bytes of one slot, in blocks.
pub fn slot_blocks(slot_bytes: u64) -> u32 {
    u32::try_from(slot_bytes / BLOCK_U64).expect("a slot is at most 1 GiB")
}
