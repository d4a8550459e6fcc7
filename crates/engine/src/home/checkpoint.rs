//! Checkpoints: a new root, and the conditions under which it may be written.
//!
//! Order, and why (R2, R3, R7, R9, R10):
//! 1. Shards merge and place their nodes; liveness becomes the image of these trees.
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

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ashlar_format::journal::{Entry, Ring};
use ashlar_format::node::Place;
use ashlar_format::slot::SegmentKind;
use ashlar_format::summary::{Owner, node_owner_address};
use ashlar_rt::{Buf, Gate, Lock, Sender, join_all};

use crate::home::group_commit::{headers_written, open_entries};
use crate::home::nodes::PlacedNode;
use crate::home::{CATALOG_TREE, Home, LIVENESS_TREE};
use crate::locks;
use crate::map::NodeWrite;
use crate::map::system::NodeId;
use crate::members::{Discard, LateDiscard};
use crate::phases::{Laps, Phase};
use crate::planted::{self, Bug};
use crate::protocol::{Prepared, Reach, ShardMessage, ask};
use crate::segment::{Column, Pinned, Segment, stripe};
use crate::space::shape::MergeLimit;

/// How far checkpoints are.
#[derive(Debug)]
pub struct Checkpoints {
    /// Held by the checkpoint under way.
    pub(super) turn: Lock<()>,
    /// Opens when a checkpoint has ended.
    pub(super) ended: Gate,
    /// Checkpoints begun.
    begun: Cell<u64>,
    /// Whether one is under way.
    pub(super) under_way: Cell<bool>,
    /// Up to where in the journal checkpoints have merged all that they can.
    merged_to: Cell<u64>,
    /// The next sequence when the last checkpoint under pressure had ended.
    pub(super) pressed_at: Cell<u64>,
}

impl Default for Checkpoints {
    fn default() -> Checkpoints {
        Checkpoints {
            turn: Lock::ranked((), locks::CHECKPOINT),
            ended: Gate::default(),
            begun: Cell::default(),
            under_way: Cell::default(),
            merged_to: Cell::default(),
            pressed_at: Cell::default(),
        }
    }
}

/// Whether nothing of a segment lives, and nothing will.
fn is_dead(segment: &Segment) -> bool {
    segment.sealed.get() && segment.live.borrow().is_empty()
}

impl Home {
    /// Makes a new root durable that has merged every delta recorded at or before `target`: in several
    /// steps, each a root, where free space is too short for one. A checkpoint that began while this one waited for its
    /// turn has done all that this one would.
    pub(crate) async fn checkpoint(self: &Rc<Self>, target: u64) {
        let asked = self.checkpoints.begun.get();
        loop {
            let _one = self.checkpoints.turn.lock().await;
            let done =
                self.checkpoints.begun.get() > asked && self.checkpoints.merged_to.get() >= target;
            if self.core.closed.get() || done {
                return;
            }
            // What was recorded meanwhile comes along, so that others who wait need none of their own.
            let recorded = if target > 0 { self.journal.next() } else { 0 };
            if !self.checkpoint_locked(recorded, false).await {
                self.checkpoints
                    .merged_to
                    .set(recorded.max(self.checkpoints.merged_to.get()));
                return;
            }
        }
    }

    /// Merges everything into a root that says that the array is clean.
    ///
    /// Crash argument: nothing is journalled from where both locks are held but what this checkpoint writes, so what
    /// still runs in the background adds nothing to what the root says; after it nothing is journalled at all.
    pub(crate) async fn last_checkpoint(self: &Rc<Self>) {
        self.merge().await;
        let _no_group_commit = self.log.group_commit.lock().await;
        self.group_commit_locked(Reach::Closed).await;
        let _one = self.checkpoints.turn.lock().await;
        self.seal_idle().await;
        self.checkpoint_locked(self.journal.next(), true).await;
    }

    /// One step of [`Home::checkpoint`], by a caller that holds the checkpoint lock. `clean` marks the array
    /// exported. Whether more is left to merge, and can be.
    async fn checkpoint_locked(self: &Rc<Self>, target: u64, clean: bool) -> bool {
        let mut laps = Laps::begin(&self.core.meters.phases, &self.core.rt);
        self.checkpoints.begun.set(self.checkpoints.begun.get() + 1);
        self.checkpoints.under_way.set(true);
        let applied = self.applied();
        let charged = self.core.thin.charged();
        self.seal_pinned().await;
        let (degraded, losses) = self.before_checkpoint();
        self.core.failing.checkpoint_begins(degraded, losses);
        let seen = (self.log.recorded_at(), self.tasks.borrow().unmapped);
        // Slots that columns have left, or that are tried once more.
        //
        // Crash argument: as for slots that are freed. Tables that name what lay there are replaced by this
        // checkpoint's, and only then the slots are released.
        let vacated = self.space.jobs.take_vacated();
        let placing = self.space.steps.placing.lock().await;
        self.begin_step().await;
        let prepared = self.prepare_shards(target, self.merge_limit()).await;
        laps.end(Phase::Merge);
        let oldest = prepared.iter().filter_map(|p| p.oldest).min();
        let more = prepared.iter().any(|p| p.more);
        let pending = prepared.iter().map(|p| p.thin_pending).sum();
        let mut nodes = BTreeMap::new();
        for part in prepared {
            self.take_part(part, &mut nodes);
        }
        let imaged = self.journal.next();
        let mut freed = self.free_segments();
        freed.extend(self.place_system_nodes(&mut nodes).await);
        // What liveness knows: a clean root has no journal that could tell of others.
        let known: Option<BTreeSet<u64>> =
            clean.then(|| self.core.segments.borrow().keys().copied().collect());
        self.end_step(nodes.len());
        drop(placing);
        laps.end(Phase::PlaceNodes);
        let Ok(stripes) = self.meta_write(&nodes).await else {
            self.halt(
                "a checkpoint could not be written: more devices failed at once than metadata survives; export \
                 the array, reconnect these devices and import it again",
            );
            return false;
        };
        for shard in &self.shards {
            ask(shard, ShardMessage::Written).await;
        }
        laps.end(Phase::WriteNodes);
        let opened = self.log.take_opened(SegmentKind::Meta);
        headers_written(&opened).await;
        let mut online = self.core.written();
        online.retain(|_| !planted::on(Bug::RootBeforeNodes));
        self.flush(online).await;
        laps.end(Phase::FlushNodes);
        self.record_nodes(&stripes, opened).await;
        laps.end(Phase::RecordNodes);
        let cut = self.cut(applied, oldest);
        if planted::on(Bug::SlotsFreedEarly) {
            self.release(freed.clone()).await;
        }
        self.write_root(cut, imaged, known).await;
        self.core.failing.checkpoint_ended();
        laps.end(Phase::WriteRoot);
        self.release(freed).await;
        self.release_columns(vacated).await;
        laps.end(Phase::Discard);
        self.count_thin(oldest, pending, charged);
        self.reckon();
        self.warn_of_space();
        if !more && target + 1 >= applied {
            self.space.jobs.merged(seen.0, seen.1);
        }
        self.check_books();
        self.checkpoints.under_way.set(false);
        self.checkpoints.ended.open();
        self.core.progress.open();
        more
    }

    /// Journals the rows of nodes' stripes, with the segments opened for them. Where the ring has no room for that, the
    /// summaries have the rows.
    async fn record_nodes(self: &Rc<Self>, stripes: &[(Pinned, u32, Entry)], opened: Vec<Pinned>) {
        let mut entries: Vec<Entry> = open_entries(&opened);
        entries.extend(stripes.iter().map(|(_, _, entry)| entry.clone()));
        if entries.is_empty() {
            return;
        }
        match self.journal_deltas(&entries, true).await {
            Some(sequence) => {
                for (segment, stripe, _) in stripes {
                    self.stripe_recorded_after_image(segment, *stripe, sequence);
                }
            }
            None => {
                self.log.opened_again(opened);
                self.seal_instead(stripes).await;
            }
        }
    }

    /// Where the journal is cut: at the oldest record that anything still needs, `oldest` by shards.
    fn cut(&self, applied: u64, oldest: Option<u64>) -> u64 {
        let needed = [
            Some(applied),
            oldest,
            self.journal.window.oldest_data(),
            self.oldest_rows(),
            self.journal.window.oldest_recovering(),
        ];
        let cut = needed.into_iter().flatten().min();
        let cut = cut.filter(|_| !planted::on(Bug::CutTooLate));
        cut.unwrap_or(applied)
    }

    /// The journal has no room for the rows of this checkpoint's nodes: their segments are sealed, so that
    /// the rows stand in summaries before the root names the nodes. What the image says of these
    /// segments is behind; recovery takes every stripe with a live block as recorded.
    async fn seal_instead(self: &Rc<Self>, stripes: &[(Pinned, u32, Entry)]) {
        for (segment, stripe, _) in stripes {
            self.stripe_recorded(segment, *stripe, self.journal.next());
        }
        for (segment, _, _) in stripes {
            self.seal(segment).await;
        }
    }

    async fn prepare_shards(&self, target: u64, mut limit: MergeLimit) -> Vec<Prepared> {
        limit.nodes /= self.shards.len();
        let (size, used) = self.journal.usage(Ring::Delta);
        self.core.bad.give_up_lost.set(used * 2 > size);
        let prepare = |shard: &Sender<ShardMessage>| {
            let shard = shard.clone();
            self.core.rt.spawn(async move {
                ask(&shard, |reply| ShardMessage::Prepare(target, limit, reply)).await
            })
        };
        let prepared = join_all(self.shards.iter().map(prepare)).await;
        prepared
            .into_iter()
            .map(Option::unwrap_or_default)
            .collect()
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
            self.liveness.set_live(&self.core, place, count, true);
        }
        for (place, count) in part.dead {
            self.liveness.set_live(&self.core, place, count, false);
        }
        for write in part.writes {
            nodes.insert(write.place, placed_node(&write));
        }
    }

    /// Takes the segments out of the table that nothing needs.
    fn free_segments(&self) -> Vec<Pinned> {
        let segments = self.core.segments.borrow();
        let unsettled = self.core.unsettled.borrow();
        for segment in unsettled.iter().filter_map(|n| segments.get(n)) {
            // A full segment is sealed by its last stripe.
            if segment.recorded.get() == segment.geometry.stripes()
                && !segment.sealed.get()
                && !self.nodes.is_current(segment)
            {
                segment.sealed.set(true);
                self.liveness.mark_header(segment);
            }
        }
        drop((segments, unsettled));
        // Where the journal had no room to tell of segments of nodes (see `seal_instead`), the roots since do;
        // of those that died there is nothing to tell (#140).
        self.log
            .forget_opened(|s| s.kind == SegmentKind::Meta && is_dead(s));
        self.free_dead(&[SegmentKind::Data, SegmentKind::Meta])
    }

    /// Takes segments of these kinds out of the table that are dead, and held by nobody else. Only what has changed can
    /// have died.
    fn free_dead(&self, kinds: &[SegmentKind]) -> Vec<Pinned> {
        let mut segments = self.core.segments.borrow_mut();
        let unsettled: Vec<u64> = self.core.unsettled.borrow().iter().copied().collect();
        let dead = |s: &Segment| {
            is_dead(s)
                && kinds.contains(&s.kind)
                && (s.is_unpinned() || planted::on(Bug::FreedInUse))
                && !self.nodes.is_current(s)
        };
        let mut freed = Vec::new();
        for number in unsettled {
            if segments.get(&number).is_some_and(|s| dead(s)) {
                freed.extend(segments.remove(&number).map(|s| s.pin()));
            }
        }
        drop(segments);
        for segment in &freed {
            self.liveness.give_up(segment);
            let columns = segment.columns.borrow();
            for column in columns.iter().filter(|c| c.is_placed()) {
                self.core.member(column.device).slots.set(column.slot, None);
            }
            self.free_slots_of(segment.number, &columns);
        }
        freed
    }

    /// After the root: the freed slots may be written again. All are discarded at once.
    async fn release(self: &Rc<Self>, freed: Vec<Pinned>) {
        let mut columns = Vec::new();
        for segment in freed {
            self.liveness.release(&segment);
            columns.extend(segment.columns.take());
        }
        self.release_columns(columns).await;
    }

    /// After the root: these slots may be written again.
    async fn release_columns(self: &Rc<Self>, columns: Vec<Column>) {
        let placed = columns.into_iter().filter(|c| c.is_placed());
        let places = placed.map(|c| (c.device, c.slot));
        if !self.discards() {
            places.for_each(|place| self.came_back(place));
            return;
        }
        let mut discards = Vec::new();
        for (device, slot) in places {
            let core = self.core.clone();
            let discard = async move { core.member(device).discard_slot(slot).await };
            discards.push(((device, slot), self.core.rt.spawn(discard)));
        }
        for (place, discard) in discards {
            match discard.await {
                Discard::Ended(_) => self.came_back(place),
                Discard::Late(late) => {
                    self.core.member(place.0).slots.discard_goes_on();
                    self.comes_back_after(place, late);
                }
            }
        }
    }

    /// A slot is free once its discard has ended, which is under way and counted.
    pub(super) fn comes_back_after(self: &Rc<Self>, place: (u16, u32), late: LateDiscard) {
        let home = self.clone();
        self.core.rt.spawn(async move {
            // Discarding is advice. One that has not begun when the array stops never does.
            let ended = async {
                let _ = late.await;
            };
            home.unless_closed(ended).await;
            home.discard_has_ended(place);
        });
    }

    /// A discard that no checkpoint waits for has ended: its slot is free.
    pub(super) fn discard_has_ended(&self, place: (u16, u32)) {
        self.core.member(place.0).slots.discard_has_ended();
        self.came_back(place);
        self.core.progress.open();
    }

    /// A slot is free.
    fn came_back(&self, (device, slot): (u16, u32)) {
        self.core.member(device).slots.release(slot);
        self.space.ledger().release(&[device]);
    }

    /// Places catalog and liveness nodes until nothing new is to be placed, then makes their bytes. Gives the
    /// segments of nodes whose last ones this replaced: freed now rather than by the next checkpoint, which may
    /// need their room.
    ///
    /// Crash argument: as for those that were dead before. What the journal is told of since liveness was
    /// imaged must not name a freed segment as opened; one that is yet to be told of is held by
    /// `opened` or by the stripes to be written, and stays. (Data segments may be opened meanwhile.)
    async fn place_system_nodes(
        self: &Rc<Self>,
        nodes: &mut BTreeMap<Place, PlacedNode>,
    ) -> Vec<Pinned> {
        let mut freed = Vec::new();
        self.catalog.mark();
        let catalog_leaves = self.catalog.leaves() as u64;
        loop {
            freed.extend(self.free_dead(&[SegmentKind::Meta]));
            self.kill_gone(catalog_leaves);
            let catalog_ids = self.catalog.tree().unplaced(|leaf| leaf < catalog_leaves);
            let liveness_ids = self
                .liveness
                .tree()
                .unplaced(|leaf| self.liveness.has_leaf(leaf));
            if catalog_ids.is_empty() && liveness_ids.is_empty() {
                break;
            }
            let tree = |number| match number {
                CATALOG_TREE => self.catalog.tree(),
                _ => self.liveness.tree(),
            };
            for (number, ids) in [(CATALOG_TREE, catalog_ids), (LIVENESS_TREE, liveness_ids)] {
                for id in ids {
                    let place = self.meta_place().await;
                    let old = tree(number).set_place(id, place);
                    self.liveness.set_live(&self.core, place, 1, true);
                    if let Some(old) = old {
                        self.liveness.set_live(&self.core, old, 1, false);
                    }
                }
            }
        }
        let digest_in = |tree: u32| {
            move |(level, index): NodeId, bytes: &[u8]| {
                (self.core.identity).node_digest(tree, 0, level, index, bytes)
            }
        };
        let catalog_leaf = |leaf| self.catalog.leaf_bytes(leaf);
        let catalog = (self.catalog.tree()).finish(digest_in(CATALOG_TREE), catalog_leaf);
        let checkpoint = self.root.next_checkpoint();
        let record_leaf = |leaf| self.liveness.leaf_bytes(&self.core, leaf, checkpoint);
        let liveness = (self.liveness.tree()).finish(digest_in(LIVENESS_TREE), record_leaf);
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
        freed
    }

    /// Nodes of records and catalog parts that no longer exist die; this may change liveness again.
    fn kill_gone(&self, catalog_leaves: u64) {
        let (mut liveness, mut catalog) = (self.liveness.tree(), self.catalog.tree());
        let mut gone = liveness.gone(|leaf| self.liveness.has_leaf(leaf));
        gone.extend(catalog.gone(|leaf| leaf < catalog_leaves));
        drop((liveness, catalog));
        for place in gone {
            self.liveness.set_live(&self.core, place, 1, false);
        }
    }

    /// A stripe of nodes was recorded after the image of its segment's record was made: what the image
    /// says of it is behind, and the journal entry makes up for that.
    fn stripe_recorded_after_image(&self, segment: &Segment, stripe: u32, sequence: u64) {
        self.stripe_recorded(segment, stripe, sequence);
        // The last stripe of a course carries the summary and was flushed with it; else rows hang on
        // this sequence, which the cut below keeps.
        if segment.rows_since.get().is_none() && segment.recorded.get() < segment.geometry.stripes()
        {
            // Recovery must learn of this stripe: keep its entry until the next checkpoint's image.
            segment.image_behind.set(Some(sequence));
            self.core.unsettled.borrow_mut().insert(segment.number);
        }
    }

    fn oldest_rows(&self) -> Option<u64> {
        let (segments, unsettled) = (self.core.segments.borrow(), self.core.unsettled.borrow());
        let unsettled = || unsettled.iter().filter_map(|number| segments.get(number));
        let rows = unsettled().filter_map(|s| s.rows_since.get());
        let rows = rows.filter(|_| !planted::on(Bug::RowsNotPinned));
        rows.chain(unsettled().filter_map(|s| s.image_behind.get()))
            .min()
    }

    /// Seals open segments whose unfinished course keeps the journal from being cut, when that matters.
    async fn seal_pinned(self: &Rc<Self>) {
        let (size, used) = self.journal.usage(Ring::Delta);
        // Courses just begun are left alone, unless the ring is so small that these few records fill it.
        let young = if used * 4 > size * 3 { 0 } else { 8 };
        for segment in self.core.pin_unsettled(|_| true) {
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
    async fn seal_idle(self: &Rc<Self>) {
        for segment in self.core.pin_unsettled(|_| true) {
            if segment.recorded.get() == segment.next_stripe.get() && !segment.sealed.get() {
                self.seal(&segment).await;
            }
        }
    }

    /// Seals one segment; a stream that writes into it goes on with another.
    pub(crate) async fn seal(self: &Rc<Self>, segment: &Pinned) {
        self.nodes.leave(segment);
        stripe::seal(&self.core, segment).await;
        self.liveness.mark_header(segment);
        self.members_settled().await;
    }
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
