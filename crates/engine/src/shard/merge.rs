//! Merge: puts recorded deltas into the leaves of the map, and places the changed nodes.
//!
//! Crash argument (R2, R9): merging changes nodes in memory only. They become the map when a root
//! names them; until that root is durable, recovery starts from the old nodes and replays the same
//! deltas, since the journal is cut only by a durable root. Replay starts at the oldest delta that is
//! not merged, in order, so that leaves that are ahead end up the same.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ashlar_format::BLOCK;
use ashlar_format::node::{LEAF_ENTRIES, LEAF_ENTRY, LeafEntry};
use ashlar_rt::join_all;

use crate::map::Key;
use crate::map::delta::{UnmappedRange, What};
use crate::planted::{self, Bug};
use crate::protocol::{HomeMessage, Prepared, ask};
use crate::segment::read::Lost;
use crate::shard::{Shard, flags_of};
use crate::space::shape::{MergeLimit, VolumeShape};

/// Leaves read at once by a merge.
const LOADS_AT_ONCE: usize = 128;

/// Where nodes are brought.
#[derive(Clone, Copy)]
pub(crate) enum LoadInto {
    /// Into memory.
    Cache,
    /// Into the changed set.
    Changed,
    /// The same, and made where there is none.
    ChangedOrNew,
}

/// A leaf: volume, partition, index.
pub type Leaf = (u32, u16, u64);

/// How far merging is.
#[derive(Debug, Default)]
pub struct Merging {
    /// A checkpoint has been asked for because of the deltas, and has not merged yet.
    pub(super) pressed: Cell<bool>,
    /// Leaves merged so far: a block that came from the map may have changed if this has.
    pub(super) count: Cell<u64>,
    /// Leaves that could not be read when they were to be merged.
    pub(super) lost_leaves: RefCell<BTreeSet<Leaf>>,
    /// Unmapped ranges above whose leaves a node could not be read: volume and stamp.
    lost_runs: RefCell<BTreeSet<(u32, u64)>>,
    /// Up to which sequence leaves have been merged, of volumes with an unmapped range that is not merged everywhere.
    merged_to: RefCell<BTreeMap<Leaf, u64>>,
    /// What was merged but could not be placed, and the oldest sequence it hangs on.
    carry: RefCell<(Prepared, Option<u64>)>,
}

impl Merging {
    /// A volume is no more.
    pub(super) fn forget(&self, tree: u32) {
        self.lost_leaves.borrow_mut().retain(|leaf| leaf.0 != tree);
        self.lost_runs.borrow_mut().retain(|run| run.0 != tree);
        self.merged_to.borrow_mut().retain(|leaf, _| leaf.0 != tree);
    }
}

/// Something recorded that is to be merged.
#[derive(Clone, Copy)]
enum Due {
    /// A block of a volume.
    Block(u32, u64),
    Unmapped(UnmappedRange),
}

/// What one step of merging takes.
#[derive(Default)]
struct DueLeaves {
    /// The leaves, in address order.
    leaves: BTreeSet<Leaf>,
    /// At most so many nodes change with them.
    nodes: usize,
    /// At most so many blocks change in them.
    blocks: usize,
    /// Unmapped ranges that are merged with these leaves: volume and stamp.
    done: Vec<(u32, u64)>,
    /// More is due.
    cut_short: bool,
}

impl Shard {
    /// Merges every leaf that has a delta recorded at or before `target`, as far as `limit` goes, those
    /// with the oldest deltas first; then gives all dirty nodes places. What this changes is the
    /// shard's part of a checkpoint.
    pub(crate) async fn prepare(self: &Rc<Self>, target: u64, limit: MergeLimit) -> Prepared {
        let _one = self.tree_lock.lock().await;
        let (mut prepared, carried) = self.merging.carry.take();
        let give_up = self.core.bad.give_up_lost.get() || self.merging.pressed.get();
        let merged = self.deltas.borrow().newest_recorded();
        let before = [carried, self.deltas.borrow().oldest()]
            .into_iter()
            .flatten()
            .min();
        let due = self.due_leaves(target, limit, give_up).await;
        let leaves: Vec<Leaf> = due.leaves.into_iter().collect();
        let mut done = due.done;
        self.load_leaves(&leaves).await;
        let mut merged_leaves = Vec::new();
        for (tree, partition, leaf) in leaves {
            // A leaf that is lost keeps its deltas, and they their part of the journal, until that is
            // needed: then it is recreated, and what it said of other blocks is lost for good.
            let key = (tree, partition, leaf);
            let merging = self.merge_leaf(tree, partition, leaf, merged, &mut prepared);
            let mut done_with = merging.await;
            if done_with.is_err() {
                self.drop_moves(key);
            }
            if done_with.is_err() && give_up && self.merging.lost_leaves.borrow().contains(&key) {
                self.store.give_up(tree, partition, leaf).await;
                let merging = self.merge_leaf(tree, partition, leaf, merged, &mut prepared);
                done_with = merging.await;
            }
            if done_with.is_ok() {
                prepared.more = due.cut_short;
                self.merging.lost_leaves.borrow_mut().remove(&key);
                merged_leaves.push(key);
            } else {
                done.retain(|(of, _)| *of != tree);
                self.merging.lost_leaves.borrow_mut().insert(key);
            }
        }
        // Only the unmapped ranges that were looked through: one may have become durable meanwhile.
        let finished = |stamp: u64| done.iter().any(|(_, d)| *d == stamp);
        self.deltas
            .borrow_mut()
            .unmapped
            .retain(|h| !finished(h.stamp));
        self.note_merged(merged_leaves, merged);
        let mut closed = self.store.close_dirty().await;
        if closed.is_err() && give_up && carried.is_some() {
            self.store.give_up_above().await;
            closed = self.store.close_dirty().await;
        }
        match closed {
            Ok(count) if count > 0 => {
                if let Some(places) =
                    ask(&self.home, |reply| HomeMessage::Places(count, reply)).await
                {
                    let placed = self.store.place(&mut places.into_iter());
                    prepared
                        .born
                        .extend(placed.writes.iter().map(|w| (w.place, 1)));
                    prepared.dead.extend(placed.freed.iter().map(|p| (*p, 1)));
                    prepared.writes = placed.writes;
                    prepared.map_nodes = placed.nodes;
                }
            }
            Ok(_) => {}
            Err(Lost) => {
                // An inner node is lost beyond its redundancy: what was merged stays in memory, and in
                // the journal, until the node can be read again.
                let roots = self.store.roots();
                self.merging.carry.replace((prepared, before));
                return Prepared {
                    roots,
                    oldest: before,
                    thin_pending: self.thin_pending(),
                    ..Prepared::default()
                };
            }
        }
        prepared.roots = self.store.roots();
        prepared.oldest = self.deltas.borrow().oldest();
        prepared.thin_pending = self.thin_pending();
        self.merging.pressed.set(false);
        self.room.open();
        prepared
    }

    /// Brings leaves into the changed set, many at a time: into the cache, which may be smaller, some would have to be
    /// read again. The nodes above them come first, level by level from the top, and stay clean: what is above a leaf
    /// that does not come is not written for nothing. Whether leaves come is seen when they are merged.
    async fn load_leaves(self: &Rc<Self>, leaves: &[Leaf]) {
        for level in (0..=self.store.highest()).rev() {
            let into = match level {
                0 => LoadInto::ChangedOrNew,
                _ => LoadInto::Cache,
            };
            self.load_nodes(self.store.unchanged_above(leaves, level), into)
                .await;
        }
    }

    /// Brings nodes into memory, many at a time; how many came.
    pub(crate) async fn load_nodes(self: &Rc<Self>, keys: BTreeSet<Key>, into: LoadInto) -> usize {
        let is_there = |key: &Key| match into {
            LoadInto::Cache => self.store.is_cached(*key),
            LoadInto::Changed | LoadInto::ChangedOrNew => self.store.make_cached_dirty(*key),
        };
        let (there, unread): (Vec<Key>, Vec<Key>) = keys.into_iter().partition(is_there);
        let mut came = there.len();
        for group in unread.chunks(LOADS_AT_ONCE) {
            let load = |key: &Key| {
                let (shard, key) = (self.clone(), *key);
                self.core.rt.spawn(async move {
                    match into {
                        LoadInto::Cache => shard.store.load(key).await,
                        LoadInto::Changed => shard.store.make_dirty(key, false).await,
                        LoadInto::ChangedOrNew => shard.store.make_dirty(key, true).await,
                    }
                })
            };
            let loaded = join_all(group.iter().map(load)).await;
            came += loaded.iter().filter(|one| **one == Ok(true)).count();
        }
        came
    }

    /// Notes up to which sequence leaves have been merged, of volumes that have an unmapped range which is not done.
    /// What is recorded from here on has later sequences.
    fn note_merged(&self, leaves: Vec<Leaf>, merged: u64) {
        let deltas = self.deltas.borrow();
        let recorded = deltas.unmapped.iter().filter(|h| h.recorded.is_some());
        let unfinished: BTreeSet<u32> = recorded.map(|h| h.tree).collect();
        let mut merged_to = self.merging.merged_to.borrow_mut();
        merged_to.retain(|leaf, _| unfinished.contains(&leaf.0));
        let leaves = leaves.into_iter().filter(|l| unfinished.contains(&l.0));
        merged_to.extend(leaves.map(|leaf| (leaf, merged)));
    }

    /// Whether a recorded unmapped range has been merged in a leaf.
    fn has_merged(&self, leaf: Leaf, unmapped: &UnmappedRange) -> bool {
        let to = self.merging.merged_to.borrow().get(&leaf).copied();
        to >= unmapped.recorded
    }

    /// What is to be merged: up to `limit`, from the oldest on. An unmapped range that spans more is worked
    /// off piece by piece.
    async fn due_leaves(&self, target: u64, limit: MergeLimit, give_up: bool) -> DueLeaves {
        let mut due: Vec<(u64, Due)> = Vec::new();
        {
            let deltas = self.deltas.borrow();
            let blocks = deltas.recorded_blocks();
            due.extend(blocks.map(|((tree, address), at)| (at, Due::Block(tree, address))));
            let unmapped = deltas.unmapped.iter();
            due.extend(unmapped.filter_map(|h| Some((h.recorded?, Due::Unmapped(*h)))));
        }
        due.retain(|(sequence, _)| *sequence <= target);
        due.sort_by_key(|(sequence, _)| *sequence);
        let mut taken = DueLeaves::default();
        for (_, due) in due {
            taken.cut_short = limit.reached(taken.nodes, taken.blocks);
            if taken.cut_short {
                break;
            }
            match due {
                Due::Block(tree, address) => {
                    if let Ok(shape) = self.shape(tree) {
                        let at = self.partitioning(shape).locate(address);
                        self.take(shape, (tree, at.partition, at.leaf), 1, &mut taken);
                    }
                }
                Due::Unmapped(unmapped) => {
                    self.add_leaves_of(&unmapped, limit, give_up, &mut taken)
                        .await
                }
            }
            if taken.cut_short {
                break;
            }
        }
        taken
    }

    /// Adds a leaf with blocks that change in it. What is lost comes first each time, and must not keep the rest from
    /// being merged: it does not count.
    fn take(&self, shape: VolumeShape, leaf: Leaf, blocks: usize, taken: &mut DueLeaves) {
        taken.blocks += blocks;
        if taken.leaves.insert(leaf) && !self.merging.lost_leaves.borrow().contains(&leaf) {
            let raises = self.store.is_too_low_for(leaf.0, leaf.1, leaf.2);
            let paths = 1 + usize::from(raises); // the other is that from the new top to the old one
            taken.nodes += paths * shape.path_nodes();
        }
    }

    /// Adds the leaves that an unmapped range concerns. Where a node above them is lost the run keeps its part
    /// of the journal, as leaves that are lost do, until that is needed.
    async fn add_leaves_of(
        &self,
        unmapped: &UnmappedRange,
        limit: MergeLimit,
        give_up: bool,
        taken: &mut DueLeaves,
    ) {
        let Ok(shape) = self.shape(unmapped.tree) else {
            return;
        };
        let partitioning = self.partitioning(shape);
        let (first, end) = partitioning.leaf_range(unmapped.first, unmapped.first + unmapped.count);
        let run = (unmapped.tree, unmapped.stamp);
        let give_up = give_up && self.merging.lost_runs.borrow().contains(&run);
        let most = self.bounds.get().unmapped * MergeLimit::LEAF;
        let mut whole = true;
        for partition in self.own_partitions() {
            let leaves = || self.store.leaves_in(unmapped.tree, partition, first, end);
            let mut found = leaves().await;
            if found.is_err() && give_up {
                let covered =
                    partitioning.leaves_within(unmapped.first, unmapped.first + unmapped.count);
                self.store
                    .give_up_between(unmapped.tree, partition, first..end, covered)
                    .await;
                found = leaves().await;
            }
            let Ok(found) = found else {
                whole = false;
                continue;
            };
            let leaves = taken.leaves.len() + found.len();
            let nodes = taken.nodes + found.len() * shape.path_nodes();
            let blocks = taken.blocks + leaves * LEAF_ENTRIES;
            let scarce = nodes >= most || limit.reached(nodes, blocks);
            for leaf in found {
                let key = (unmapped.tree, partition, leaf);
                if taken.leaves.contains(&key)
                    || self.has_merged(key, unmapped)
                    || scarce && !self.is_mapped(shape, key, unmapped).await
                {
                    continue;
                }
                if taken.nodes >= most || limit.reached(taken.nodes, taken.blocks) {
                    taken.cut_short = true;
                    return;
                }
                self.take(shape, key, LEAF_ENTRIES, taken);
            }
        }
        if whole {
            self.merging.lost_runs.borrow_mut().remove(&run);
            taken.done.push(run);
        } else {
            self.merging.lost_runs.borrow_mut().insert(run);
        }
    }

    /// Whether a leaf still maps a block of an unmapped range, as far as can be read.
    async fn is_mapped(&self, shape: VolumeShape, leaf: Leaf, unmapped: &UnmappedRange) -> bool {
        let (tree, partition, index) = leaf;
        let start = self.partitioning(shape).leaf_start(partition, index);
        for slot in 0..LEAF_ENTRIES {
            if unmapped.covers(tree, start + slot as u64) {
                let entry = self.store.leaf_entry(tree, partition, index, slot).await;
                if entry != Ok(None) {
                    return true;
                }
            }
        }
        false
    }

    /// Bytes of stripes that thin volumes' blocks in the deltas may take, but for those that are known to
    /// be in the map already.
    fn thin_pending(&self) -> u64 {
        let volumes = self.volumes.borrow();
        let deltas = self.deltas.borrow();
        let thin = volumes.values().filter(|v| v.thin);
        let new = |v: &VolumeShape| {
            let partitioning = self.partitioning(*v);
            let mapped = |address: u64| {
                let at = partitioning.locate(address);
                let (partition, leaf, slot) = (at.partition, at.leaf, at.slot);
                let entry = (self.store).cached_leaf_entry(v.tree, partition, leaf, slot);
                matches!(entry, Some(Ok(Some(_))))
            };
            deltas.written_of(v.tree).filter(|a| !mapped(*a)).count() as u64
        };
        thin.map(|v| new(v) * self.core.thin.block_bytes(*v)).sum()
    }

    /// Drops the moves of blocks under a leaf that is lost: kept, they would have it given up once the journal presses,
    /// with all it says of other blocks (#178).
    ///
    /// Crash argument: nothing was freed for a move that was not merged, so the blocks are where they were. Replay may
    /// adopt the move again, if its segment is still there, and with it what was moved.
    fn drop_moves(&self, (tree, partition, leaf): Leaf) {
        if let Ok(shape) = self.shape(tree) {
            let start = self.partitioning(shape).leaf_start(partition, leaf);
            let blocks = start..start + LEAF_ENTRIES as u64;
            self.deltas.borrow_mut().drop_moves(tree, blocks);
        }
    }

    pub(super) fn own_partitions(&self) -> impl Iterator<Item = u16> + use<> {
        let (shards, index) = (self.shards, self.index);
        (0..self.partitions).filter(move |p| usize::from(*p) % shards == index)
    }

    async fn merge_leaf(
        &self,
        tree: u32,
        partition: u16,
        leaf: u64,
        merged: u64,
        prepared: &mut Prepared,
    ) -> Result<(), Lost> {
        let Ok(shape) = self.shape(tree) else {
            return Ok(());
        };
        let start = self.partitioning(shape).leaf_start(partition, leaf);
        let change = |bytes: &mut [u8]| {
            self.merging.count.set(self.merging.count.get() + 1);
            let mut deltas = self.deltas.borrow_mut();
            for address in deltas.recorded_in(tree, start, start + LEAF_ENTRIES as u64) {
                let Some(what) = deltas.take_recorded(tree, address) else {
                    continue;
                };
                let slot = usize::try_from(address - start).expect("within a leaf");
                let entry = &mut bytes[slot * LEAF_ENTRY..(slot + 1) * LEAF_ENTRY];
                apply(shape, &what, entry, prepared);
            }
        };
        self.store
            .change_leaf(tree, partition, leaf, merged, change)
            .await
    }
}

/// Applies one delta to a leaf entry, and notes which blocks come to life and which die.
fn apply(shape: VolumeShape, what: &What, entry: &mut [u8], prepared: &mut Prepared) {
    let old = LeafEntry::read(entry).ok().flatten();
    let mapped = prepared.mapped.entry(shape.tree).or_insert(0);
    match what {
        What::Unmapped => {
            if let Some(old) = old {
                prepared.dead.push((old.place, shape.pieces));
                *mapped -= i64::from(shape.pieces) * BLOCK as i64;
            }
            LeafEntry::write(None, entry); // also one that is lost
        }
        What::Block {
            segment,
            block,
            from: Some(from),
            ..
        } => {
            let any = planted::on(Bug::UnconditionalMove);
            let Some(old) = old.filter(|old| any || old.place == *from) else {
                return;
            };
            let new = LeafEntry {
                place: segment.place(*block),
                ..old
            };
            prepared.dead.push((old.place, shape.pieces));
            prepared.born.push((new.place, shape.pieces));
            LeafEntry::write(Some(&new), entry);
        }
        What::Block {
            segment,
            block,
            digest,
            algorithm,
            birth,
            from: None,
        } => {
            let new = LeafEntry {
                place: segment.place(*block),
                length: u16::try_from(shape.pieces * 8).expect("at most 32 pieces"),
                flags: flags_of(*algorithm),
                birth: *birth,
                digest: *digest,
            };
            match old {
                Some(old) if old.place == new.place => {}
                Some(old) => {
                    if !planted::on(Bug::OverwrittenStaysLive) {
                        prepared.dead.push((old.place, shape.pieces));
                    }
                    prepared.born.push((new.place, shape.pieces));
                }
                None => {
                    prepared.born.push((new.place, shape.pieces));
                    *mapped += i64::from(shape.pieces) * BLOCK as i64;
                }
            }
            LeafEntry::write(Some(&new), entry);
        }
    }
}
