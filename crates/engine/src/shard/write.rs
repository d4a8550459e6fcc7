//! Writing: admission, merging, and a place for every block.
//!
//! Invariants:
//! - A shard never holds more than its bounds: writers wait (R15).
//! - A volume block is written as a whole, into one private copy (R16); what is smaller is merged into
//!   verified bytes, again if they changed meanwhile.
//! - A move takes effect only if the block still is where it was moved from (R8).

use std::cell::Cell;
use std::rc::Rc;

use ashlar_block::VolumeError;
use ashlar_digest::Kind;
use ashlar_format::BLOCK;
use ashlar_format::context::Context;
use ashlar_format::node::Place;
use ashlar_format::summary::Owner;
use ashlar_rt::{Lock, LockGuard, Slice};
use ashlar_space::floors::Class;

use super::Shard;
use super::read::Found;
use crate::map::delta::{State, UnmappedRange, Version, What};
use crate::phases::Phase;
use crate::planted::{self, Bug};
use crate::protocol::{HomeMessage, Move, ask};
use crate::segment::stream::{Item, OpenStripe, Stream};
use crate::space::shape::VolumeShape;
use crate::space::thin::Charge;

/// With room for fewer blocks left, it is looked up whether a block of a thin volume is a new one.
const LOOKED_UP_FROM: u64 = 1024;

/// What a read-merge-write saw of a block: its stamp in the deltas, and how many leaves had been merged
/// when it began to look.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub(super) stamp: u64,
    pub(super) merges: u64,
}

/// For whom a block is placed.
#[derive(Clone, Copy)]
pub(super) enum By<'a> {
    /// For a client that was admitted.
    Client(&'a Credit<'a>),
    /// For a client who wrote it before the array was imported: the journal had it.
    Journal,
    /// For the cleaner, who moves it.
    Move(&'a Move),
    /// For who wrote it into a stripe that could not be written.
    Rescue,
}

/// What clients hold of a shard's memory for stripes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Held {
    /// Blocks admitted, until the stripe that takes them is written.
    pub blocks: usize,
    /// Of these, blocks that have no place yet.
    pub unplaced: usize,
}

/// The right to place so many blocks. What is not placed is given back when it is dropped; what is placed, once its
/// stripe is written.
pub(super) struct Credit<'a> {
    shard: &'a Shard,
    blocks: Cell<usize>,
}

impl Credit<'_> {
    fn take(shard: &Shard, blocks: usize) -> Credit<'_> {
        let held = shard.held.get();
        assert!(
            shard.bounds.get().fits(held.blocks, blocks),
            "no more is admitted than fits"
        );
        shard.held.set(Held {
            blocks: held.blocks + blocks,
            unplaced: held.unplaced + blocks,
        });
        Credit {
            shard,
            blocks: Cell::new(blocks),
        }
    }

    /// The stream's stripe takes blocks, and gives them back ([`Shard::give_back`]).
    fn place(&self, blocks: u32, stream: &Stream) {
        let (blocks, held) = (blocks as usize, self.shard.held.get());
        self.blocks.set(self.blocks.get() - blocks);
        let stripe = stream.current.as_ref().expect("room was made");
        stripe.credits.set(stripe.credits.get() + blocks);
        self.shard.held.set(Held {
            unplaced: held.unplaced - blocks,
            ..held
        });
    }
}

impl Drop for Credit<'_> {
    fn drop(&mut self) {
        let (blocks, held) = (self.blocks.get(), self.shard.held.get());
        if blocks > 0 {
            self.shard.held.set(Held {
                blocks: held.blocks - blocks,
                unplaced: held.unplaced - blocks,
            });
            self.shard.room.open();
        }
    }
}

/// The digest function of a volume's new blocks.
fn kind_of(shape: VolumeShape) -> Result<Kind, VolumeError> {
    Kind::from_tag(shape.algorithm).ok_or(VolumeError::Closed)
}

fn owner_of(shape: VolumeShape, address: u64, algorithm: u8) -> Owner {
    Owner {
        tree: shape.tree,
        kind: 0,
        algorithm,
        piece: 0,
        pieces_less_one: 0,
        address,
    }
}

/// A block that is to get a place.
struct Block<'a> {
    shape: VolumeShape,
    address: u64,
    bytes: &'a [u8],
    /// For the map, and by which algorithm.
    digest: ([u8; 16], u8),
    /// If it is moved: where it lies.
    from: Option<Place>,
}

impl Shard {
    /// The blocks of a stripe are on the devices.
    pub(super) fn give_back(&self, stripe: &OpenStripe) {
        let held = self.held.get();
        self.held.set(Held {
            blocks: held.blocks - stripe.credits.take(),
            ..held
        });
    }

    pub(super) async fn write(
        self: &Rc<Self>,
        tree: u32,
        offset: u64,
        data: Slice,
    ) -> Result<(), VolumeError> {
        let shape = self.shape(tree)?;
        let pieces = shape.pieces as usize;
        let unit = pieces * BLOCK;
        let mut at = 0;
        while at < data.len() {
            let position = offset + at as u64;
            let address = position / unit as u64;
            let within = usize::try_from(position % unit as u64).expect("below a unit");
            let left = data.len() - at;
            if within > 0 || left < unit {
                let take = (unit - within).min(left);
                let credit = self.admit(pieces).await?;
                self.merge(shape, address, within, &data[at..at + take], &credit)
                    .await?;
                at += take;
                continue;
            }
            let run = (left / unit).min(self.bounds.get().run(pieces));
            let credit = self.admit(run * pieces).await?;
            at += self
                .write_run(shape, address, data.cut(at..at + run * unit), &credit)
                .await?;
        }
        Ok(())
    }

    /// Writes whole volume blocks that follow each other; how many bytes of them: all, or the first block alone where
    /// a thin volume's room is looked at block by block.
    async fn write_run(
        self: &Rc<Self>,
        shape: VolumeShape,
        first: u64,
        bytes: Slice,
        credit: &Credit<'_>,
    ) -> Result<usize, VolumeError> {
        let unit = shape.pieces as usize * BLOCK;
        let thin = &self.core.thin;
        let most = thin.block_bytes(shape);
        let blocks = (bytes.len() / unit) as u64;
        let (bytes, charge) = if !shape.thin {
            (bytes, None)
        } else if blocks > 1 && thin.left() >= most * (LOOKED_UP_FROM + blocks) {
            (bytes, Some(thin.charge(most * blocks)))
        } else {
            (bytes.cut(0..unit), self.admit_thin(shape, first).await?)
        };
        let len = bytes.len();
        self.place_run(shape, first, bytes, credit).await?;
        charge.into_iter().for_each(Charge::keep);
        Ok(len)
    }

    /// A write smaller than a volume block: verified read, merge, write; again if the block changed
    /// meanwhile. Onto a lost block it fails (R16). What changes nothing takes no space: above all zeros
    /// where nothing is mapped.
    async fn merge(
        self: &Rc<Self>,
        shape: VolumeShape,
        address: u64,
        within: usize,
        data: &[u8],
        credit: &Credit<'_>,
    ) -> Result<(), VolumeError> {
        loop {
            let merges = self.merging.count.get();
            let (mut block, stamp) = self.read_block(shape, address).await?;
            let part = &mut block[within..within + data.len()];
            if *part == *data {
                return Ok(());
            }
            part.copy_from_slice(data);
            let charge = self.admit_thin(shape, address).await?;
            let seen = Seen { stamp, merges };
            if self
                .place_block(shape, address, &block, Some(seen), By::Client(credit))
                .await?
            {
                charge.into_iter().for_each(Charge::keep);
                return Ok(());
            }
        }
    }

    /// Waits while this shard holds as much as it may (R15: dirty state is bounded). Writers are admitted in the order
    /// in which they come: the first of them looks, the others wait behind it. So a place that becomes free wakes one,
    /// and is not taken by several.
    async fn admit(&self, blocks: usize) -> Result<Credit<'_>, VolumeError> {
        let since = self.core.rt.now();
        let _first = match planted::on(Bug::AdmittedTogether) {
            true => None,
            false => Some(self.admission.lock().await),
        };
        loop {
            if self.core.closed.get() {
                return Err(VolumeError::Closed);
            }
            let bounds = self.bounds.get();
            let held = self.held.get();
            let unrecorded = self.stripes.written.borrow().len();
            // What was admitted and has no place yet becomes deltas too.
            let deltas = self.deltas.borrow().len() + held.unplaced;
            let (leaves, nodes) = self.leaves_of_deltas();
            // Each leaf may be new, with nodes of its own above it: one checkpoint has to fit what is free (R15).
            let most_nodes = self.core.meta_room.get() / 4 / self.shards;
            let full = |of: usize| {
                let scarce = of * nodes >= most_nodes && of * leaves >= bounds.leaves;
                of * deltas >= bounds.deltas || scarce
            };
            if full(2) && !self.merging.pressed.replace(true) {
                // Early, so that merging and writing overlap.
                let _ = self.home.send(HomeMessage::Pressure);
            }
            let fits = bounds.fits(held.blocks, blocks) && unrecorded < bounds.unrecorded;
            if !full(1) && fits {
                self.core
                    .meters
                    .phases
                    .end(Phase::Admit, &self.core.rt, since);
                return Ok(Credit::take(self, blocks));
            }
            if full(1) {
                let _ = self.home.send(HomeMessage::Pressure);
            } else if unrecorded > 0
                && (unrecorded >= bounds.unrecorded || self.stripes.writing.borrow().is_empty())
            {
                let _ = self.home.send(HomeMessage::Record);
            }
            self.room.wait().await;
            if planted::on(Bug::AdmittedTogether) {
                return Ok(Credit::take(self, blocks));
            }
        }
    }

    /// Leaves that the deltas are of, and nodes that they may take.
    fn leaves_of_deltas(&self) -> (usize, usize) {
        let (deltas, volumes) = (self.deltas.borrow(), self.volumes.borrow());
        let own_nodes = |tree| volumes.get(&tree).map_or(1, VolumeShape::own_nodes);
        let leaves = deltas.leaves();
        leaves.fold((0, 0), |(all, nodes), (tree, leaves)| {
            (all + leaves, nodes + leaves * own_nodes(tree))
        })
    }

    /// Refuses a block that a thin volume does not have yet where only promised space is left: volumes
    /// that are not thin never run out. Where little is left, only such blocks are charged for: what
    /// overwrites others never keeps a new one waiting.
    async fn admit_thin(
        &self,
        shape: VolumeShape,
        address: u64,
    ) -> Result<Option<Charge<'_>>, VolumeError> {
        if !shape.thin {
            return Ok(None);
        }
        let thin = &self.core.thin;
        let mut asked = None;
        loop {
            let most = thin.block_bytes(shape);
            let roomy = thin.left() >= most * LOOKED_UP_FROM;
            if !roomy && !matches!(self.find(shape, address).await?.0, Found::Zero) {
                return Ok(None); // overwritten, it takes no more than it has
            }
            let (left, counted) = (thin.left(), thin.counted());
            // The last blocks come one by one: most need no node of their own.
            let alone = thin.is_exact() && left >= shape.takes_bytes;
            if left >= most || alone {
                return Ok(Some(thin.charge(most)));
            }
            // Those that wait for their places with a charge come first: to merge now would make some of them read
            // again what they change, and what they do not come to take may be enough (#137, #138).
            if thin.is_placing() {
                thin.placed().await;
                continue;
            }
            // Or what was not merged cannot be, and keeps what it was charged.
            let stuck = asked == Some(counted) && counted.oldest.is_some();
            if asked.is_some() && (counted.merged < shape.takes_bytes || stuck) {
                return Err(VolumeError::NoSpace);
            }
            // What was not merged was charged as if each block needed nodes of its own, and what was overwritten
            // as if it were new: see what is left in truth.
            asked = Some(counted);
            ask(&self.home, HomeMessage::Merge).await;
            if self.core.closed.get() {
                return Err(VolumeError::Closed);
            }
        }
    }

    /// Gives a volume block a place in the open stripe of a stream. False if `expected` is given and the block has
    /// changed since.
    pub(super) async fn place_block(
        self: &Rc<Self>,
        shape: VolumeShape,
        address: u64,
        bytes: &[u8],
        expected: Option<Seen>,
        by: By<'_>,
    ) -> Result<bool, VolumeError> {
        let cold;
        let (lock, class, into, from) = match by {
            By::Client(_) | By::Journal => (&self.hot, Class::Client, None, None),
            By::Move(m) => {
                cold = self.cold(m.into.0);
                (&*cold, m.into.1, Some(m.into.0), Some(m))
            }
            By::Rescue => (&self.rescue, Class::Rescue, None, None),
        };
        let (digest, algorithm) = match from {
            Some(m) => (m.digest, m.algorithm),
            None => {
                let kind = kind_of(shape)?;
                let digest = self
                    .core
                    .identity
                    .block_digest(kind, shape.tree, address, bytes);
                (digest, shape.algorithm)
            }
        };
        let mut stream = self.take_stream(lock).await;
        self.make_room(&mut stream, shape.pieces, class, into)
            .await?;
        let credit = match by {
            By::Client(credit) => Some(credit),
            _ => None,
        };
        let block = Block {
            shape,
            address,
            bytes,
            digest: (digest, algorithm),
            from: from.map(|m| m.from),
        };
        self.place_now(&mut stream, block, expected, credit)
    }

    /// Gives a block a place in the stream's stripe, which has room for it. False if it has changed since it was
    /// `expected`, or since it was read to be moved. Nothing can come between the look and the place.
    fn place_now(
        self: &Rc<Self>,
        stream: &mut Stream,
        block: Block<'_>,
        expected: Option<Seen>,
        credit: Option<&Credit<'_>>,
    ) -> Result<bool, VolumeError> {
        // The volume may be gone by now: nothing would ever merge what is said of it, and the journal would keep it for
        // ever. Or it may be smaller: what lies beyond its end would be there again once it grows.
        let now = self.shape(block.shape.tree)?;
        if now.leaving {
            return Err(VolumeError::Closed);
        }
        if block.address >= now.blocks {
            return Err(VolumeError::OutOfRange);
        }
        let stamp = || {
            let deltas = self.deltas.borrow();
            deltas.lookup(block.shape.tree, block.address).stamp()
        };
        let changed = match (block.from, expected) {
            (Some(_), _) => stamp() != 0 && !planted::on(Bug::MoveOverWrite),
            (None, Some(seen)) => {
                // Without a delta the block came from the map, which a merge may have changed since.
                let merged = seen.stamp == 0 && self.merging.count.get() != seen.merges;
                !planted::on(Bug::MergeUnchecked) && (stamp() != seen.stamp || merged)
            }
            (None, None) => false,
        };
        if changed {
            return Ok(false);
        }
        if let Some(credit) = credit {
            credit.place(block.shape.pieces, stream);
        }
        self.put(stream, block);
        Ok(true)
    }

    /// Gives volume blocks of a client that follow each other their places.
    async fn place_run(
        self: &Rc<Self>,
        shape: VolumeShape,
        first: u64,
        bytes: Slice,
        credit: &Credit<'_>,
    ) -> Result<(), VolumeError> {
        let unit = shape.pieces as usize * BLOCK;
        let (at, shared) = ((shape.tree, first), Rc::new(bytes.clone()));
        let identity = &self.core.identity;
        let digests = identity.digests_in_company(&self.core.rt, kind_of(shape)?, at, shared, unit);
        let digests = digests.await;
        let mut stream = self.take_stream(&self.hot).await;
        let blocks = bytes.chunks(unit);
        for ((address, bytes), digest) in (first..).zip(blocks).zip(digests) {
            self.make_room(&mut stream, shape.pieces, Class::Client, None)
                .await?;
            let block = Block {
                shape,
                address,
                bytes,
                digest: (digest, shape.algorithm),
                from: None,
            };
            self.place_now(&mut stream, block, None, Some(credit))?;
        }
        Ok(())
    }

    async fn take_stream<'a>(&self, stream: &'a Lock<Stream>) -> LockGuard<'a, Stream> {
        let since = self.core.rt.now();
        let stream = stream.lock().await;
        self.core
            .meters
            .phases
            .end(Phase::StreamLock, &self.core.rt, since);
        stream
    }

    /// Puts a block into the stream's stripe, which has room for it, and into the deltas.
    fn put(self: &Rc<Self>, stream: &mut Stream, block: Block<'_>) {
        let Block {
            shape,
            address,
            bytes,
            digest: (digest, algorithm),
            from,
        } = block;
        let stripe = stream.current.clone().expect("room was made");
        let stamp = self.next_stamp();
        let block = match shape.pieces {
            1 => stripe.push(bytes, &[(owner_of(shape, address, algorithm), digest)]),
            _ => {
                let rows = self.piece_rows(shape, address, algorithm, bytes);
                stripe.push(bytes, &rows)
            }
        };
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
            if !self.core.bad.lost.borrow().is_empty() {
                self.core
                    .bad
                    .lost
                    .borrow_mut()
                    .remove(&(shape.tree, address));
            }
            crate::counters::add(&self.core.meters.host, u64::from(shape.pieces));
        }
        if stripe.room() == 0 {
            self.close(stream);
        }
    }

    /// The rows of a volume block of several pieces.
    fn piece_rows(
        &self,
        shape: VolumeShape,
        address: u64,
        algorithm: u8,
        bytes: &[u8],
    ) -> Vec<(Owner, [u8; 16])> {
        let kind = Kind::from_tag(algorithm).expect("an import refuses an unknown digest");
        let last = u8::try_from(shape.pieces - 1).expect("at most 32 pieces");
        let row = |(piece, bytes): (u8, &[u8])| {
            let context = Context::piece(shape.tree, address, piece);
            let owner = Owner {
                piece,
                pieces_less_one: last,
                ..owner_of(shape, address, algorithm)
            };
            (owner, self.core.identity.digest(kind, context, bytes))
        };
        (0u8..).zip(bytes.chunks(BLOCK)).map(row).collect()
    }

    pub(super) async fn trim(
        self: &Rc<Self>,
        tree: u32,
        first: u64,
        count: u64,
    ) -> Result<(), VolumeError> {
        let index = u16::try_from(self.index).expect("few shards");
        let part = (self.shards_u16(), index);
        let unmapped = self.add_unmapped(self.shape(tree)?, first, count, part);
        self.core
            .bad
            .lost
            .borrow_mut()
            .retain(|key| !unmapped.covers(key.0, key.1));
        self.admit_unmapped().await;
        Ok(())
    }

    /// A new unmapped range, of the addresses that are this part's, not recorded yet.
    pub(super) fn add_unmapped(
        &self,
        shape: VolumeShape,
        first: u64,
        count: u64,
        part: (u16, u16),
    ) -> UnmappedRange {
        let unmapped = UnmappedRange {
            tree: shape.tree,
            first,
            count,
            part: self.part(shape, part),
            stamp: self.next_stamp(),
            recorded: None,
        };
        self.deltas.borrow_mut().unmapped.push(unmapped);
        unmapped
    }

    /// Unmapped ranges are looked through one by one: few at a time.
    async fn admit_unmapped(&self) {
        while self.deltas.borrow().unmapped.len() > 64 && !self.core.closed.get() {
            let _ = self.home.send(HomeMessage::Pressure);
            self.room.wait().await;
        }
    }
}
