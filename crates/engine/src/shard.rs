//! A shard: the task (a thread, later) that owns some partitions of every volume, with their deltas,
//! trees and streams.
//!
//! Invariants:
//! - A write is in the deltas from the moment it has a place, with its bytes in the stripe; what reads
//!   see, digest, parity and device see is that one private copy (S16).
//! - A version becomes `Recorded` only when the home says that the record naming it is durable.
//! - Only `prepare` folds and places nodes; one at a time.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ashlar_digest::Kind;
use ashlar_format::BLOCK;
use ashlar_format::node::LeafEntry;
use ashlar_format::summary::Owner;
use ashlar_rt::{Buf, Gate, Lock, Mailbox, Sender, Slice};

use crate::core::Core;
use crate::delta::{Deltas, Lookup, State, Version, What};
use crate::error::VolumeError;
use crate::messages::{
    Adopted, HomeMessage, Move, Purpose, ShardMessage, ShardStats, VolumeShape, ask,
};
use crate::partition::Partitioning;
use crate::planted::{self, Bug};
use crate::segment::Segment;
use crate::stream::{Item, OpenStripe, Phase, Stream};
use crate::stripe;
use crate::tree::NodeStore;

/// What a shard may hold before writers wait.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Stripes being written at once.
    pub stripes: usize,
    /// Deltas.
    pub deltas: usize,
}

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
    hot: Lock<Stream>,
    cold: Lock<Stream>,
    /// The stripes the streams are filling: looked at without waiting for the streams.
    filling: RefCell<Vec<Rc<OpenStripe>>>,
    /// Stripes being written.
    writing: RefCell<Vec<Rc<OpenStripe>>>,
    /// Stripes written but not recorded.
    pub(crate) written: RefCell<Vec<Rc<OpenStripe>>>,
    stamp: Cell<u64>,
    birth: Rc<Cell<u64>>,
    bounds: Bounds,
    pub(crate) room: Gate,
    /// A commit has been asked for because of the deltas, and has not folded yet.
    pub(crate) pressed: Cell<bool>,
    /// Leaves folded so far: a block that came from the map may have changed if this has.
    pub(crate) folds: Cell<u64>,
    /// Leaves that could not be read when they were to be folded.
    pub(crate) lost_leaves: RefCell<BTreeSet<crate::fold::Leaf>>,
    /// What was folded but could not be placed, and the oldest sequence it hangs on.
    pub(crate) carry: RefCell<(crate::messages::Prepared, Option<u64>)>,
}

impl std::fmt::Debug for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shard({} of {})", self.index, self.shards)
    }
}

/// What a read-merge-write saw of a block: its stamp in the deltas, and how many leaves had been folded
/// when it began to look.
#[derive(Debug, Clone, Copy)]
struct Seen {
    stamp: u64,
    folds: u64,
}

/// A volume block's bytes, or where they are.
enum Found {
    Zero,
    Bytes(Buf),
    Place {
        segment: Rc<Segment>,
        block: u32,
        digest: [u8; 16],
        algorithm: u8,
    },
}

impl Shard {
    /// A shard that answers `mailbox`. `birth` is the number of the last root, kept by the home.
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
            tree_lock: Lock::new(()),
            deltas: RefCell::default(),
            volumes: RefCell::default(),
            hot: Lock::new(Stream::default()),
            cold: Lock::new(Stream::default()),
            filling: RefCell::default(),
            writing: RefCell::default(),
            written: RefCell::default(),
            stamp: Cell::new(0),
            birth,
            bounds,
            room: Gate::default(),
            lost_leaves: RefCell::default(),
            carry: RefCell::default(),
            pressed: Cell::new(false),
            folds: Cell::new(0),
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
                .spawn(async move { shard.handle(message).await });
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
            ShardMessage::Collect(close, reply) => reply.send(self.collect(close).await),
            ShardMessage::Recorded(batch, sequence, reply) => {
                self.recorded(&batch, sequence);
                reply.send(());
            }
            ShardMessage::Prepare(target, limit, reply) => {
                reply.send(self.prepare(target, limit).await);
            }
            ShardMessage::Relocate(moves, reply) => reply.send(self.relocate(moves).await),
            ShardMessage::Touch(keys, reply) => {
                let _one = self.tree_lock.lock().await;
                for key in keys {
                    let _ = self.store.touch(key).await; // a lost node is found again by whoever reads it
                }
                reply.send(());
            }
            ShardMessage::AddVolume(shape, roots, reply) => {
                self.add_volume(shape, &roots);
                reply.send(());
            }
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
                reply.send(());
            }
            ShardMessage::Stats(reply) => reply.send(self.stats()),
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

    fn stats(&self) -> ShardStats {
        let stripes = self.filling.borrow().len() + self.writing.borrow().len();
        let stripe = self.filling.borrow().first().map_or(0, |s| {
            u64::from(s.segment.geometry.stripe_blocks()) * BLOCK as u64
        });
        let deltas = self.deltas.borrow().len() as u64 * 200;
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

    fn part(&self, shape: VolumeShape, part: (u16, u16)) -> crate::delta::Part {
        let tile = self.partitioning(shape).tile_blocks();
        crate::delta::Part {
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

    // ---- reading ------------------------------------------------------------------------------

    /// Finds a volume block; the stamp of what was found lets a read-merge-write see a change.
    async fn find(&self, shape: VolumeShape, address: u64) -> Result<(Found, u64), VolumeError> {
        let at = self.partitioning(shape).locate(address);
        loop {
            let lookup = self.deltas.borrow().lookup(shape.tree, address);
            let stamp = lookup.stamp();
            let moved = match lookup {
                Lookup::Hole(_) => return Ok((Found::Zero, stamp)),
                Lookup::Version(Version {
                    what:
                        What::Block {
                            segment,
                            block,
                            digest,
                            algorithm,
                            from,
                            ..
                        },
                    state,
                    ..
                }) => {
                    if from.is_none() {
                        if let State::Open(stripe) = &state {
                            let mut buf = Buf::zeroed(shape.pieces as usize * BLOCK);
                            let within = block - stripe.block_in_segment(0);
                            stripe.copy(within, shape.pieces, &mut buf);
                            return Ok((Found::Bytes(buf), stamp));
                        }
                        return Ok((
                            Found::Place {
                                segment,
                                block,
                                digest,
                                algorithm,
                            },
                            stamp,
                        ));
                    }
                    // A move whose stripe is still open is read from its old place.
                    matches!(state, State::Recorded(_)).then_some((from, segment, block))
                }
                Lookup::Unknown | Lookup::Version(_) => None,
            };
            let entry =
                match self
                    .store
                    .cached_leaf_entry(shape.tree, at.partition, at.leaf, at.slot)
                {
                    Some(entry) => entry,
                    None => {
                        self.store
                            .leaf_entry(shape.tree, at.partition, at.leaf, at.slot)
                            .await
                    }
                };
            let entry = match entry {
                Ok(Some(entry)) => entry,
                Ok(None) => return Ok((Found::Zero, stamp)),
                Err(_) => {
                    let leaf = self.store.load((shape.tree, at.partition, 0, at.leaf));
                    if leaf.await.is_ok() {
                        // The leaf was lost once, and written anew: of this entry nothing is known.
                        let mut listed = self.core.lost.borrow_mut();
                        listed.insert((shape.tree, address), ());
                        return Err(VolumeError::Lost);
                    }
                    return Err(self.lost_leaf(shape, at.partition, at.leaf));
                }
            };
            let algorithm = algorithm_of(&entry);
            if let Some((from, segment, block)) = moved
                && from == Some(entry.place)
            {
                return Ok((
                    Found::Place {
                        segment,
                        block,
                        digest: entry.digest,
                        algorithm,
                    },
                    stamp,
                ));
            }
            match self.core.segment(entry.place.segment) {
                Some(segment) => {
                    let block = entry.place.block;
                    return Ok((
                        Found::Place {
                            segment,
                            block,
                            digest: entry.digest,
                            algorithm,
                        },
                        stamp,
                    ));
                }
                // The block moved on and its old segment was freed while the leaf was read: look again.
                None if self.deltas.borrow().lookup(shape.tree, address).stamp() != stamp => {}
                None => {
                    let again = self
                        .store
                        .leaf_entry(shape.tree, at.partition, at.leaf, at.slot)
                        .await;
                    if again == Ok(Some(entry)) {
                        return Err(VolumeError::Lost);
                    }
                }
            }
        }
    }

    fn check_of(
        &self,
        shape: VolumeShape,
        address: u64,
        digest: [u8; 16],
        algorithm: u8,
    ) -> impl Fn(&[u8]) -> bool + 'static {
        let core = self.core.clone();
        move |bytes: &[u8]| {
            Kind::from_tag(algorithm)
                .is_some_and(|kind| core.block_digest(kind, shape.tree, address, bytes) == digest)
        }
    }

    /// Reads one volume block.
    async fn read_block(
        &self,
        shape: VolumeShape,
        address: u64,
    ) -> Result<(Buf, u64), VolumeError> {
        let bytes = shape.pieces as usize * BLOCK;
        loop {
            let (found, stamp) = self.find(shape, address).await?;
            match found {
                Found::Zero => return Ok((Buf::zeroed(bytes), stamp)),
                Found::Bytes(buf) => return Ok((buf, stamp)),
                Found::Place {
                    segment,
                    block,
                    digest,
                    algorithm,
                } => {
                    let check = self.check_of(shape, address, digest, algorithm);
                    let read =
                        crate::read::read_unit(&self.core, &segment, block, shape.pieces, &check)
                            .await;
                    if let Ok(buf) = read {
                        return Ok((buf, stamp));
                    }
                    // Judged only after the map has been looked up again (S12).
                    if let (
                        Found::Place {
                            segment: now,
                            block: at,
                            ..
                        },
                        _,
                    ) = self.find(shape, address).await?
                        && now.number == segment.number
                        && at == block
                    {
                        self.core
                            .lost
                            .borrow_mut()
                            .insert((shape.tree, address), ());
                        if planted::on(Bug::LostReadsAsZeros) {
                            return Ok((Buf::zeroed(bytes), stamp));
                        }
                        return Err(VolumeError::Lost);
                    }
                }
            }
        }
    }

    async fn read(
        self: &Rc<Self>,
        tree: u32,
        first: u64,
        count: u64,
    ) -> Result<Slice, VolumeError> {
        let shape = self.shape(tree)?;
        let unit = shape.pieces as usize * BLOCK;
        let mut out = Buf::zeroed(usize::try_from(count).expect("a read is bounded") * unit);
        let mut runs: Vec<Run> = Vec::new();
        for (address, out) in (first..first + count).zip(out.chunks_mut(unit)) {
            match self.find(shape, address).await?.0 {
                Found::Zero => {}
                Found::Bytes(buf) => out.copy_from_slice(&buf),
                Found::Place {
                    segment,
                    block,
                    digest,
                    algorithm,
                } => {
                    Run::add(
                        &mut runs,
                        shape,
                        address,
                        segment,
                        block,
                        (digest, algorithm),
                    );
                }
            }
        }
        let mut joins = Vec::new();
        for run in runs {
            let shard = self.clone();
            joins.push(
                self.core
                    .rt
                    .spawn(async move { shard.read_run(shape, run).await }),
            );
        }
        let mut result = Ok(());
        for join in joins {
            match join.await {
                Ok((address, bytes)) => {
                    let start = usize::try_from(address - first).expect("a read is bounded") * unit;
                    out[start..start + bytes.len()].copy_from_slice(&bytes);
                }
                Err(error) => result = Err(error),
            }
        }
        result.map(|()| out.freeze())
    }

    /// Reads volume blocks that follow each other in one strip with one device read.
    async fn read_run(
        self: &Rc<Self>,
        shape: VolumeShape,
        run: Run,
    ) -> Result<(u64, Buf), VolumeError> {
        let unit = shape.pieces as usize * BLOCK;
        let count = u32::try_from(run.checks.len()).expect("a read is bounded") * shape.pieces;
        let (stripe, strip, within) = run.segment.geometry.locate(run.block);
        let fits = within + count <= run.segment.geometry.strip_blocks;
        let read = if fits {
            crate::read::read_column(
                &self.core,
                &run.segment,
                stripe,
                usize::from(strip),
                within,
                count,
            )
            .await
        } else {
            None
        };
        let came = read.is_some();
        let mut out = read.unwrap_or_else(|| Buf::zeroed(count as usize * BLOCK));
        for ((address, check), bytes) in (run.address..).zip(&run.checks).zip(out.chunks_mut(unit))
        {
            let kind = Kind::from_tag(check.1).ok_or(VolumeError::Lost)?;
            let unverified = planted::on(Bug::ReadUnverified);
            let digest = self.core.block_digest(kind, shape.tree, address, bytes);
            if !came || (digest != check.0 && !unverified) {
                let (good, _) = self.read_block(shape, address).await?;
                bytes.copy_from_slice(&good);
            }
        }
        Ok((run.address, out))
    }

    async fn mapped(&self, tree: u32, first: u64, count: u64) -> Result<Vec<bool>, VolumeError> {
        let shape = self.shape(tree)?;
        let mut mapped = Vec::new();
        for address in first..first + count {
            mapped.push(!matches!(self.find(shape, address).await?.0, Found::Zero));
        }
        Ok(mapped)
    }

    // ---- writing ------------------------------------------------------------------------------

    async fn write(
        self: &Rc<Self>,
        tree: u32,
        offset: u64,
        data: Slice,
    ) -> Result<(), VolumeError> {
        let shape = self.shape(tree)?;
        let unit = shape.pieces as usize * BLOCK;
        let unit_u64 = unit as u64;
        let mut at = 0;
        while at < data.len() {
            let position = offset + at as u64;
            let (address, within) = (
                position / unit_u64,
                usize::try_from(position % unit_u64).expect("below a unit"),
            );
            let take = (unit - within).min(data.len() - at);
            self.admit().await?;
            if take == unit {
                self.admit_thin(shape, address).await?;
                self.place_block(shape, address, &data[at..at + take], None, None)
                    .await?;
            } else {
                self.merge(shape, address, within, &data[at..at + take])
                    .await?;
            }
            at += take;
        }
        Ok(())
    }

    /// A write smaller than a volume block: verified read, merge, write; again if the block changed
    /// meanwhile. Onto a lost block it fails (S16). What changes nothing takes no space: above all zeros
    /// where nothing is mapped.
    async fn merge(
        self: &Rc<Self>,
        shape: VolumeShape,
        address: u64,
        within: usize,
        data: &[u8],
    ) -> Result<(), VolumeError> {
        loop {
            let folds = self.folds.get();
            let (mut block, stamp) = self.read_block(shape, address).await?;
            let part = &mut block[within..within + data.len()];
            if *part == *data {
                return Ok(());
            }
            part.copy_from_slice(data);
            self.admit_thin(shape, address).await?;
            let seen = Seen { stamp, folds };
            if self
                .place_block(shape, address, &block, Some(seen), None)
                .await?
            {
                return Ok(());
            }
        }
    }

    /// Waits while this shard holds as much as it may (S15: dirty state is bounded).
    async fn admit(&self) -> Result<(), VolumeError> {
        loop {
            if self.core.closed.get() {
                return Err(VolumeError::Closed);
            }
            let deltas = self.deltas.borrow().len();
            let (writing, written) = (self.writing.borrow().len(), self.written.borrow().len());
            if deltas * 2 >= self.bounds.deltas && !self.pressed.replace(true) {
                // Early, so that folding and writing overlap.
                let _ = self.home.send(HomeMessage::Pressure);
            }
            if deltas < self.bounds.deltas && writing + written < self.bounds.stripes {
                return Ok(());
            }
            if deltas >= self.bounds.deltas {
                let _ = self.home.send(HomeMessage::Pressure);
            } else if writing == 0 || written * 2 >= self.bounds.stripes {
                let _ = self.home.send(HomeMessage::Record);
            }
            self.room.wait().await;
        }
    }

    /// Refuses a block that a thin volume does not have yet where only promised space is left: volumes
    /// that are not thin never run out.
    async fn admit_thin(&self, shape: VolumeShape, address: u64) -> Result<(), VolumeError> {
        if !shape.thin {
            return Ok(());
        }
        let bytes = u64::from(shape.pieces) * BLOCK as u64;
        for again in [true, false] {
            let left = self.core.thin_left.get();
            if left >= bytes {
                self.core.thin_left.set(left - bytes);
                crate::member::add(&self.core.thin_charged, bytes);
                return Ok(());
            }
            if !matches!(self.find(shape, address).await?.0, Found::Zero) {
                return Ok(()); // overwritten, it takes no more than it has
            }
            if again {
                // Overwritten blocks were counted twice: see what is left in truth.
                ask(&self.home, HomeMessage::Fold).await;
            }
        }
        Err(VolumeError::NoSpace)
    }

    /// Gives a volume block a place in the open stripe. False if `expected` is given and the block has
    /// changed since. `from` makes it a move.
    async fn place_block(
        self: &Rc<Self>,
        shape: VolumeShape,
        address: u64,
        bytes: &[u8],
        expected: Option<Seen>,
        from: Option<&Move>,
    ) -> Result<bool, VolumeError> {
        let (digest, algorithm) = match from {
            Some(m) => (m.digest, m.algorithm),
            None => {
                let kind = Kind::from_tag(shape.algorithm).ok_or(VolumeError::Closed)?;
                (
                    self.core.block_digest(kind, shape.tree, address, bytes),
                    shape.algorithm,
                )
            }
        };
        let rows = self.owner_rows(shape, address, algorithm, digest, bytes);
        let (lock, purpose) = if from.is_some() {
            (&self.cold, Purpose::Clean)
        } else {
            (&self.hot, Purpose::Client)
        };
        let mut stream = lock.lock().await;
        self.make_room(&mut stream, shape.pieces, purpose).await?;
        // From here to the end nothing waits. The volume may be gone by now: nothing would ever fold what is
        // said of it, and the journal would keep it for ever.
        if self.shape(shape.tree)?.leaving {
            return Err(VolumeError::Closed);
        }
        let lookup = self.deltas.borrow().lookup(shape.tree, address);
        let changed = match from {
            Some(_) => lookup.stamp() != 0 && !planted::on(Bug::MoveOverWrite),
            None => {
                !planted::on(Bug::MergeUnchecked)
                    && expected.is_some_and(|seen| {
                        // Without a delta the block came from the map, which a fold may have changed since.
                        let folded = seen.stamp == 0 && self.folds.get() != seen.folds;
                        lookup.stamp() != seen.stamp || folded
                    })
            }
        };
        if changed {
            return Ok(false);
        }
        let stripe = stream.current.clone().expect("room was made");
        let stamp = self.next_stamp();
        let block = stripe.push(bytes, &rows);
        let from = from.map(|m| m.from);
        stripe.items.borrow_mut().push(Item {
            tree: shape.tree,
            address,
            block,
            pieces: shape.pieces,
            digest,
            algorithm,
            stamp,
            from,
        });
        let what = What::Block {
            segment: stripe.segment.clone(),
            block: stripe.block_in_segment(block),
            digest,
            algorithm,
            birth: self.birth.get(),
            from,
        };
        let version = Version {
            stamp,
            what,
            state: State::Open(stripe.clone()),
            journaled: false,
        };
        self.deltas.borrow_mut().push(shape.tree, address, version);
        if from.is_none() {
            self.core.lost.borrow_mut().remove(&(shape.tree, address));
            crate::member::add(&self.core.amplification.0, u64::from(shape.pieces));
        }
        if stripe.room() == 0 {
            self.close(&mut stream);
        }
        Ok(true)
    }

    fn owner_rows(
        &self,
        shape: VolumeShape,
        address: u64,
        algorithm: u8,
        digest: [u8; 16],
        bytes: &[u8],
    ) -> Vec<(Owner, [u8; 16])> {
        let owner = Owner {
            tree: shape.tree,
            kind: 0,
            algorithm,
            piece: 0,
            pieces_less_one: 0,
            address,
        };
        if shape.pieces == 1 {
            return vec![(owner, digest)];
        }
        let kind = Kind::from_tag(algorithm).expect("an import refuses an unknown digest");
        let last = u8::try_from(shape.pieces - 1).expect("at most 32 pieces");
        (0u8..)
            .zip(bytes.chunks(BLOCK))
            .map(|(piece, bytes)| {
                let digest = self
                    .core
                    .piece_digest(kind, shape.tree, address, piece, bytes);
                (
                    Owner {
                        piece,
                        pieces_less_one: last,
                        ..owner
                    },
                    digest,
                )
            })
            .collect()
    }

    /// Sees to it that the stream's stripe takes `pieces` more blocks.
    async fn make_room(
        self: &Rc<Self>,
        stream: &mut Stream,
        pieces: u32,
        purpose: Purpose,
    ) -> Result<(), VolumeError> {
        if stream
            .current
            .as_ref()
            .is_some_and(|s| s.phase.get() == Phase::Filling && s.room() >= pieces)
        {
            return Ok(());
        }
        self.close(stream);
        let mut wanted_row = stream.open_segments().max(1);
        let mut grow = stream.open_segments() == 0;
        loop {
            let broken: Vec<Rc<Segment>> = stream
                .row
                .iter()
                .filter(|s| self.core.has_lost_column(s))
                .cloned()
                .collect();
            if !broken.is_empty() {
                // A device of these failed: new data go where they have full redundancy at once.
                stream
                    .row
                    .retain(|s| !broken.iter().any(|b| b.number == s.number));
                grow = true;
            }
            if grow || stream.open_segments() < wanted_row {
                match ask(&self.home, |reply| HomeMessage::Allocate(purpose, reply)).await {
                    Some(Some(allocated)) => {
                        wanted_row = allocated.row;
                        stream.row.push_back(allocated.segment);
                        grow = false;
                        continue;
                    }
                    Some(None) if self.core.closed.get() => return Err(VolumeError::Closed),
                    Some(None) if stream.open_segments() == 0 => return Err(VolumeError::NoSpace),
                    Some(None) => wanted_row = 0,
                    None => return Err(VolumeError::Closed),
                }
            }
            if let Some(segment) = stream.next_segment() {
                let stripe = OpenStripe::open(&segment);
                self.filling.borrow_mut().push(stripe.clone());
                stream.current = Some(stripe);
                if segment.geometry.stripe_blocks() < pieces {
                    return Err(VolumeError::NoSpace);
                }
                return Ok(());
            }
            grow = true;
        }
    }

    /// Ends the stream's stripe and writes it.
    fn close(self: &Rc<Self>, stream: &mut Stream) {
        if let Some(stripe) = stream.current.take() {
            self.close_stripe(&stripe);
        }
    }

    fn close_stripe(self: &Rc<Self>, stripe: &Rc<OpenStripe>) {
        if stripe.phase.get() != Phase::Filling {
            return;
        }
        self.filling.borrow_mut().retain(|s| !Rc::ptr_eq(s, stripe));
        self.writing.borrow_mut().push(stripe.clone());
        stripe.phase.set(Phase::Writing);
        let data = stripe.freeze();
        let owners = stripe.owners.borrow().clone();
        if owners.is_empty() {
            let (shard, stripe) = (self.clone(), stripe.clone());
            self.core
                .rt
                .spawn(async move { shard.end_void(&stripe).await });
            return;
        }
        let written = Rc::new(stripe::prepare(
            &self.core,
            &stripe.segment,
            stripe.number,
            &data,
            &owners,
        ));
        *stripe.written.borrow_mut() = Some(written.clone());
        let (shard, stripe) = (self.clone(), stripe.clone());
        self.core.rt.spawn(async move {
            match stripe::write(&shard.core, &written).await {
                Ok(()) => shard.stripe_done(&stripe, Phase::Written),
                Err(stripe::TooFewColumns) => shard.place_anew(&stripe).await,
            }
        });
    }

    fn stripe_done(&self, stripe: &Rc<OpenStripe>, phase: Phase) {
        stripe.phase.set(phase);
        self.writing.borrow_mut().retain(|s| !Rc::ptr_eq(s, stripe));
        self.written.borrow_mut().push(stripe.clone());
        stripe.gate.open();
        self.room.open();
    }

    /// A stripe that could not be written: its live blocks get new places, then it is recorded empty.
    async fn place_anew(self: &Rc<Self>, stripe: &Rc<OpenStripe>) {
        let items = stripe.items.borrow().clone();
        for item in items {
            let newest = self.deltas.borrow().lookup(item.tree, item.address).stamp() == item.stamp;
            let Ok(shape) = self.shape(item.tree) else {
                continue;
            };
            if item.from.is_some() {
                self.deltas
                    .borrow_mut()
                    .remove(item.tree, item.address, item.stamp);
                continue;
            }
            if !newest {
                continue;
            }
            let mut bytes = Buf::zeroed(item.pieces as usize * BLOCK);
            stripe.copy(item.block, item.pieces, &mut bytes);
            let (stamp, folds) = (item.stamp, self.folds.get());
            let seen = Seen { stamp, folds };
            while let Err(VolumeError::NoSpace) = self
                .place_block(shape, item.address, &bytes, Some(seen), None)
                .await
            {
                self.core.progress.wait().await;
            }
        }
        self.end_void(stripe).await;
    }

    /// Ends a stripe that holds nothing. The last one of a course is written with the course's summary:
    /// where it is not written, the summary is, before the rows can be forgotten.
    async fn end_void(self: &Rc<Self>, stripe: &Rc<OpenStripe>) {
        let (segment, number) = (&stripe.segment, stripe.number);
        segment.rows.borrow_mut().remove(&number);
        segment.short.borrow_mut().insert(number, 0);
        let geometry = segment.geometry;
        let course = geometry.course_of(number);
        if number + 1 == course * geometry.course_strips() + geometry.strips_in(course) {
            stripe::write_summary(&self.core, segment, number + 1).await;
        }
        self.stripe_done(stripe, Phase::Void);
    }

    async fn trim(self: &Rc<Self>, tree: u32, first: u64, count: u64) -> Result<(), VolumeError> {
        let part = self.part(
            self.shape(tree)?,
            (
                self.shards_u16(),
                u16::try_from(self.index).expect("few shards"),
            ),
        );
        let stamp = self.next_stamp();
        let hole = crate::delta::HoleRange {
            tree,
            first,
            count,
            part,
            stamp,
            recorded: None,
        };
        self.deltas.borrow_mut().holes.push(hole);
        self.core
            .lost
            .borrow_mut()
            .retain(|key, ()| !hole.covers(key.0, key.1));
        self.admit_hole().await;
        Ok(())
    }

    /// Runs of holes are looked through one by one: few at a time.
    async fn admit_hole(&self) {
        while self.deltas.borrow().holes.len() > 64 && !self.core.closed.get() {
            let _ = self.home.send(HomeMessage::Pressure);
            self.room.wait().await;
        }
    }

    // ---- for the mover and recovery ---------------------------------------------------------------

    async fn relocate(self: &Rc<Self>, moves: Vec<Move>) -> Option<usize> {
        let mut taken = 0;
        for m in moves {
            let Ok(shape) = self.shape(m.tree) else {
                continue;
            };
            match self
                .place_block(shape, m.address, &m.bytes, None, Some(&m))
                .await
            {
                Ok(true) => taken += 1,
                Ok(false) => {}
                Err(_) => return None,
            }
        }
        Some(taken)
    }

    async fn adopt(self: &Rc<Self>, delta: Adopted) {
        match delta {
            Adopted::Block {
                tree,
                address,
                segment,
                block,
                digest,
                algorithm,
                birth,
                from,
                sequence,
            } => {
                let stamp = self.next_stamp();
                let what = What::Block {
                    segment,
                    block,
                    digest,
                    algorithm,
                    birth,
                    from,
                };
                let mut deltas = self.deltas.borrow_mut();
                let what = match deltas.moved_onto(tree, address, &what) {
                    Some(onto) => onto,
                    None if from.is_some() && deltas.lookup(tree, address).stamp() != 0 => return,
                    None => what,
                };
                deltas.push(
                    tree,
                    address,
                    Version {
                        stamp,
                        what,
                        state: State::Recorded(sequence),
                        journaled: false,
                    },
                );
                deltas.recorded(tree, address, stamp, sequence);
            }
            Adopted::Holes {
                tree,
                first,
                count,
                part,
                sequence,
            } => {
                let Ok(shape) = self.shape(tree) else { return };
                let stamp = self.next_stamp();
                let part = self.part(shape, part);
                let hole = crate::delta::HoleRange {
                    tree,
                    first,
                    count,
                    part,
                    stamp,
                    recorded: None,
                };
                let mut deltas = self.deltas.borrow_mut();
                deltas.holes.push(hole);
                deltas.hole_recorded(stamp, sequence);
            }
            Adopted::Data {
                tree,
                address,
                algorithm,
                digest,
                bytes,
            } => {
                let Ok(shape) = self.shape(tree) else { return };
                let kept = Kind::from_tag(algorithm)
                    .map(|kind| self.core.block_digest(kind, tree, address, &bytes));
                if kept != Some(digest) || planted::on(Bug::DataNotReplayed) {
                    return; // the record's hash covers these bytes, so this cannot be: do not invent data
                }
                while let Err(VolumeError::NoSpace) =
                    self.place_block(shape, address, &bytes, None, None).await
                {
                    self.core.progress.wait().await;
                }
            }
        }
    }

    // ---- making durable ---------------------------------------------------------------------------

    /// Everything that is to become durable now: stripes closed up to now are waited for; blocks of
    /// unfinished stripes are given as data, unless `close` or a quarter of a stripe makes it worth
    /// closing them.
    async fn collect(self: &Rc<Self>, close: bool) -> crate::messages::Collected {
        // Streams that nobody writes to let go of segments that take no more.
        for stream in [&self.hot, &self.cold] {
            if let Some(mut stream) = stream.try_lock() {
                stream.prune();
            }
        }
        loop {
            // Without the streams' locks: a writer that waits for space holds one.
            let filling: Vec<Rc<OpenStripe>> = self.filling.borrow().clone();
            for stripe in filling {
                let filled = stripe.filled();
                let worth = close || filled * 4 >= stripe.segment.geometry.stripe_blocks();
                // A stripe that took nothing must not keep its segment from being sealed.
                if filled > 0 && worth || filled == 0 && stripe.segment.retired.get() {
                    self.close_stripe(&stripe);
                }
            }
            let pending: Vec<Rc<OpenStripe>> = self.writing.borrow().clone();
            // With every stripe closed there is nothing left to be given as data.
            let open: Vec<Rc<OpenStripe>> = self.filling.borrow().clone();
            let items = |s: &Rc<OpenStripe>| -> Vec<(Item, Rc<OpenStripe>)> {
                s.items.borrow().iter().map(|i| (*i, s.clone())).collect()
            };
            let required: Vec<(Item, Rc<OpenStripe>)> = open.iter().flat_map(items).collect();
            let mut void = false;
            for stripe in pending {
                if planted::on(Bug::WritingNotWaitedFor) {
                    continue;
                }
                stripe
                    .gate
                    .until(|| matches!(stripe.phase.get(), Phase::Written | Phase::Void))
                    .await;
                void |= stripe.phase.get() == Phase::Void && !stripe.items.borrow().is_empty();
            }
            // What a void stripe held has been placed anew, in a stripe that is looked at only now.
            if !void {
                return self.build(&required);
            }
        }
    }

    /// Builds a batch from what is written now and the blocks `required` in addition.
    fn build(&self, required: &[(Item, Rc<OpenStripe>)]) -> crate::messages::Collected {
        let mut batch = crate::messages::Collected::default();
        let mut written = self.written.borrow().clone();
        written.sort_by_key(|s| (s.segment.number, s.number));
        let mut expected: BTreeMap<u64, u32> = BTreeMap::new();
        for stripe in written {
            let next = expected
                .entry(stripe.segment.number)
                .or_insert(stripe.segment.recorded.get());
            if stripe.number == *next {
                *next += 1;
                batch.stripes.push(stripe);
            }
        }
        let deltas = self.deltas.borrow();
        batch.holes = deltas
            .holes
            .iter()
            .filter(|h| h.recorded.is_none())
            .copied()
            .collect();
        for (item, stripe) in required {
            let in_batch = batch.stripes.iter().any(|s| Rc::ptr_eq(s, stripe));
            let known = deltas
                .get(item.tree, item.address, item.stamp)
                .is_some_and(|v| !v.journaled);
            if !in_batch && known && item.from.is_none() {
                let mut bytes = vec![0; item.pieces as usize * BLOCK];
                stripe.copy(item.block, item.pieces, &mut bytes);
                batch.data.push((*item, stripe.clone(), bytes));
            }
        }
        // An item counts if nothing newer of its block is durable or in this batch.
        let mut newest: BTreeMap<(u32, u64), u64> = BTreeMap::new();
        let in_stripes = batch
            .stripes
            .iter()
            .filter(|s| s.phase.get() == Phase::Written);
        let items: Vec<Item> = in_stripes
            .flat_map(|s| s.items.borrow().clone())
            .chain(batch.data.iter().map(|d| d.0))
            .collect();
        for item in &items {
            if deltas.get(item.tree, item.address, item.stamp).is_some() {
                let entry = newest.entry((item.tree, item.address)).or_insert(0);
                let older = planted::on(Bug::OlderVersionRecorded) && *entry > 0;
                *entry = if older {
                    (*entry).min(item.stamp)
                } else {
                    (*entry).max(item.stamp)
                };
            }
        }
        let counts = |item: &Item| {
            let in_batch = newest.get(&(item.tree, item.address)).copied().unwrap_or(0);
            let hole = batch
                .holes
                .iter()
                .filter(|h| h.covers(item.tree, item.address))
                .map(|h| h.stamp)
                .max()
                .filter(|_| !planted::on(Bug::TrimResurrects))
                .unwrap_or(0);
            let durable = deltas.durable_stamp(item.tree, item.address);
            deltas.get(item.tree, item.address, item.stamp).is_some()
                && item.stamp >= in_batch.max(hole).max(durable)
        };
        batch.live = batch
            .stripes
            .iter()
            .map(|s| {
                let written = s.phase.get() == Phase::Written;
                s.items
                    .borrow()
                    .iter()
                    .filter(|i| written && counts(i))
                    .copied()
                    .collect()
            })
            .collect();
        let kept: Vec<bool> = batch.data.iter().map(|d| counts(&d.0)).collect();
        let mut keep = kept.into_iter();
        batch.data.retain(|_| keep.next().unwrap_or(false));
        batch
    }

    /// The batch is durable.
    fn recorded(&self, batch: &crate::messages::Collected, sequence: u64) {
        let mut deltas = self.deltas.borrow_mut();
        for (stripe, live) in batch.stripes.iter().zip(&batch.live) {
            for item in live {
                deltas.recorded(item.tree, item.address, item.stamp, sequence);
            }
            self.written.borrow_mut().retain(|s| !Rc::ptr_eq(s, stripe));
        }
        for (item, _, _) in &batch.data {
            deltas.journaled(item.tree, item.address, item.stamp);
        }
        for hole in &batch.holes {
            deltas.hole_recorded(hole.stamp, sequence);
        }
        drop(deltas);
        if !planted::on(Bug::LostWakeup) {
            self.room.open();
        }
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

/// Volume blocks that follow each other in one strip.
struct Run {
    address: u64,
    segment: Rc<Segment>,
    block: u32,
    checks: Vec<([u8; 16], u8)>,
}

impl Run {
    fn add(
        runs: &mut Vec<Run>,
        shape: VolumeShape,
        address: u64,
        segment: Rc<Segment>,
        block: u32,
        check: ([u8; 16], u8),
    ) {
        if let Some(run) = runs.last_mut() {
            let blocks = u32::try_from(run.checks.len()).expect("a read is bounded") * shape.pieces;
            let follows = run.address + run.checks.len() as u64 == address
                && run.segment.number == segment.number
                && run.block + blocks == block;
            let strip = segment.geometry.strip_blocks;
            let same_strip = run.block / strip == (block + shape.pieces - 1) / strip;
            if follows && same_strip {
                run.checks.push(check);
                return;
            }
        }
        runs.push(Run {
            address,
            segment,
            block,
            checks: vec![check],
        });
    }
}
