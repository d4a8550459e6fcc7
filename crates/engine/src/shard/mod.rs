//! A shard: the task (a thread, later) that owns some partitions of every volume, with their deltas,
//! trees and streams.
//!
//! Invariants:
//! - A write is in the deltas from the moment it has a place, with its bytes in the stripe; what reads
//!   see, digest, parity and device see is that one private copy (R16).
//! - A version becomes `Recorded` only when the home says that the record naming it is durable.
//! - Only `prepare` merges and places nodes; one at a time.

mod lost;
mod merge;

mod adopt;
mod read;
mod record;
pub mod start;
mod stripes;
mod write;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use ashlar_block::VolumeError;
use ashlar_format::BLOCK;
use ashlar_format::node::LeafEntry;
use ashlar_format::partition::Partitioning;
use ashlar_rt::{Gate, Lock, Mailbox, Sender};

use crate::locks;
use crate::map::NodeStore;
use crate::map::delta::{DELTA_BYTES, Deltas};
use crate::protocol::{Bounds, HomeMessage, ShardMessage, ShardStats};
use crate::segment::stream::Stream;
use crate::segment::table::Core;
use crate::shard::merge::{LoadInto, Merging};
use crate::shard::stripes::Stripes;
use crate::space::shape::VolumeShape;

/// A shard.
pub struct Shard {
    pub(crate) core: Rc<Core>,
    pub(crate) home: Sender<HomeMessage>,
    pub(crate) index: usize,
    pub(crate) shards: usize,
    pub(crate) partitions: u16,
    pub(crate) store: NodeStore,
    pub(crate) tree_lock: Lock<()>,
    pub(crate) deltas: RefCell<Deltas>,
    pub(crate) volumes: RefCell<BTreeMap<u32, VolumeShape>>,
    /// Where clients write, what the cleaner moves, and what a stripe that could not be written held.
    hot: Lock<Stream>,
    /// By the group that it is moved to.
    cold: RefCell<BTreeMap<u16, Rc<Lock<Stream>>>>,
    rescue: Lock<Stream>,
    stripes: Stripes,
    /// Who is first in line to be admitted.
    admission: Lock<()>,
    held: Cell<write::Held>,
    stamp: Cell<u64>,
    birth: Rc<Cell<u64>>,
    pub(crate) bounds: Cell<Bounds>,
    pub(crate) room: Gate,
    merging: Merging,
}

impl std::fmt::Debug for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shard({} of {})", self.index, self.shards)
    }
}

impl Shard {
    /// The stream of what is moved to a group.
    fn cold(&self, group: u16) -> Rc<Lock<Stream>> {
        let mut cold = self.cold.borrow_mut();
        let new = || Rc::new(Lock::ranked(Stream::default(), locks::STREAM));
        cold.entry(group).or_insert_with(new).clone()
    }

    /// A shard that answers `mailbox`. `birth` is the number of the last checkpoint, kept by the home.
    #[expect(clippy::too_many_arguments, reason = "made in one place")]
    pub fn start(
        core: &Rc<Core>,
        home: Sender<HomeMessage>,
        mailbox: Mailbox<ShardMessage>,
        index: usize,
        shards: usize,
        partitions: u16,
        birth: Rc<Cell<u64>>,
        cache_bytes: u64,
        bounds: Bounds,
    ) {
        let shard = Rc::new(Shard {
            core: core.clone(),
            home,
            index,
            shards,
            partitions,
            store: NodeStore::new(core, cache_bytes),
            tree_lock: Lock::ranked((), locks::TREE),
            deltas: RefCell::default(),
            volumes: RefCell::default(),
            hot: Lock::ranked(Stream::default(), locks::STREAM),
            cold: RefCell::default(),
            rescue: Lock::ranked(Stream::default(), locks::STREAM),
            stripes: Stripes::default(),
            admission: Lock::ranked((), locks::ADMISSION),
            held: Cell::default(),
            stamp: Cell::new(0),
            birth,
            bounds: Cell::new(bounds),
            room: Gate::default(),
            merging: Merging::default(),
        });
        core.rt.spawn(shard.serve(mailbox));
    }

    async fn serve(self: Rc<Self>, mut mailbox: Mailbox<ShardMessage>) {
        while let Some(message) = mailbox.receive().await {
            if matches!(message, ShardMessage::Close) {
                self.room.open();
                return;
            }
            let shard = self.clone();
            self.core
                .rt
                .begin(async move { shard.handle(message).await });
        }
    }

    async fn handle(self: Rc<Self>, message: ShardMessage) {
        match message {
            ShardMessage::Read(tree, first, count, reply) => {
                reply.send(self.read(tree, first, count).await)
            }
            ShardMessage::Write(tree, offset, data, reply) => {
                reply.send(self.write(tree, offset, data).await)
            }
            ShardMessage::Trim(tree, first, count, reply) => {
                reply.send(self.trim(tree, first, count).await)
            }
            ShardMessage::Mapped(tree, first, count, reply) => {
                reply.send(self.mapped(tree, first, count).await)
            }
            ShardMessage::Collect(reach, reply) => reply.send(self.collect(reach).await),
            ShardMessage::Recorded(told, sequence, reply) => {
                self.recorded(&told, sequence);
                reply.send(());
            }
            ShardMessage::Prepare(target, limit, reply) => {
                reply.send(self.prepare(target, limit).await);
            }
            ShardMessage::Written(reply) => {
                self.store.written();
                reply.send(());
            }
            ShardMessage::Relocate(moves, reply) => reply.send(self.relocate(moves).await),
            ShardMessage::Touch(nodes, mark, reply) => {
                let _one = self.tree_lock.lock().await;
                let path = self.store.path_of(&nodes).await;
                reply.send(match mark {
                    true => self.load_nodes(path, LoadInto::Changed).await,
                    false => path.len(),
                });
            }
            ShardMessage::AddVolume(shape, roots, reply) => {
                self.add_volume(shape, &roots);
                reply.send(());
            }
            ShardMessage::Resize(shape, reply) => reply.send(self.resize_volume(shape)),
            ShardMessage::Leave(tree, reply) => {
                if let Some(shape) = self.volumes.borrow_mut().get_mut(&tree) {
                    shape.leaving = true;
                }
                reply.send(());
            }
            ShardMessage::RemoveVolume(tree, reply) => {
                let _one = self.tree_lock.lock().await;
                self.volumes.borrow_mut().remove(&tree);
                self.store.remove_tree(tree);
                self.deltas.borrow_mut().forget_tree(tree);
                self.merging.forget(tree);
                reply.send(());
            }
            ShardMessage::Stats(reply) => reply.send(self.stats()),
            ShardMessage::Memory(cache_bytes, bounds, reply) => {
                self.store.set_budget(cache_bytes);
                self.bounds.set(bounds);
                self.room.open(); // who waits may have room now, or has to ask for a checkpoint
                reply.send(());
            }
            ShardMessage::Close => {}
            ShardMessage::Adopt(delta, reply) => {
                self.adopt(delta).await;
                reply.send(());
            }
        }
    }

    fn add_volume(&self, shape: VolumeShape, roots: &[Option<ashlar_format::node::NodeEntry>]) {
        let partitioning = Partitioning::new(self.partitions, shape.pieces);
        self.volumes.borrow_mut().insert(shape.tree, shape);
        for (partition, root) in (0u16..).zip(roots) {
            if usize::from(partition) % self.shards == self.index {
                self.store.add_tree(
                    shape.tree,
                    partition,
                    partitioning.leaves(shape.blocks),
                    *root,
                );
            }
        }
    }

    /// Whether no delta is of a block beyond the volume's new end.
    fn resize_volume(&self, shape: VolumeShape) -> bool {
        if let Some(known) = self.volumes.borrow_mut().get_mut(&shape.tree) {
            let leaving = known.leaving;
            *known = VolumeShape { leaving, ..shape };
        }
        let leaves = self.partitioning(shape).leaves(shape.blocks);
        for partition in self.own_partitions() {
            self.store.set_leaves(shape.tree, partition, leaves);
        }
        let deltas = self.deltas.borrow();
        deltas.none_in(shape.tree, shape.blocks, u64::MAX)
    }

    fn stats(&self) -> ShardStats {
        let stripes = self.stripes.filling.borrow().len() + self.stripes.writing.borrow().len();
        let stripe = self.stripes.filling.borrow().first().map_or(0, |s| {
            u64::from(s.segment.geometry.stripe_blocks()) * BLOCK as u64
        });
        let deltas = (self.deltas.borrow().len() * DELTA_BYTES) as u64;
        ShardStats {
            cached_bytes: self.store.cached_bytes(),
            dirty_bytes: deltas + stripes as u64 * stripe,
        }
    }

    pub(crate) fn shape(&self, tree: u32) -> Result<VolumeShape, VolumeError> {
        self.volumes
            .borrow()
            .get(&tree)
            .copied()
            .ok_or(VolumeError::Closed)
    }

    pub(crate) fn partitioning(&self, shape: VolumeShape) -> Partitioning {
        Partitioning::new(self.partitions, shape.pieces)
    }

    fn shards_u16(&self) -> u16 {
        u16::try_from(self.shards).expect("few shards")
    }

    fn part(&self, shape: VolumeShape, part: (u16, u16)) -> crate::map::delta::Part {
        let tile = self.partitioning(shape).tile_blocks();
        crate::map::delta::Part {
            tile,
            partitions: self.partitions,
            of: part.0,
            rest: part.1,
        }
    }

    fn next_stamp(&self) -> u64 {
        self.stamp.set(self.stamp.get() + 1);
        self.stamp.get()
    }
}

/// The digest algorithm a leaf entry names.
pub fn algorithm_of(entry: &LeafEntry) -> u8 {
    u8::try_from(entry.flags >> 3 & 0xF).expect("four bits")
}

/// The flags of a leaf entry.
pub fn flags_of(algorithm: u8) -> u16 {
    u16::from(algorithm & 0xF) << 3
}
