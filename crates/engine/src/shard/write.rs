//! Writing: admission, merging, and a place for every block.
//!
//! Invariants:
//! - A shard never holds more than its bounds: writers wait (S15).
//! - A volume block is written as a whole, into one private copy (S16); what is smaller is merged into
//!   verified bytes, again if they changed meanwhile.
//! - A move takes effect only if the block still is where it was moved from (S8).

use std::rc::Rc;

use ashlar_digest::Kind;
use ashlar_format::BLOCK;
use ashlar_format::summary::Owner;
use ashlar_rt::Slice;

use super::Shard;
use super::read::Found;
use crate::contexts::Context;
use crate::delta::{HoleRange, State, Version, What};
use crate::error::VolumeError;
use crate::messages::{HomeMessage, Move, Purpose, VolumeShape, ask};
use crate::planted::{self, Bug};
use crate::stream::Item;
use crate::thin::Charge;

/// With room for fewer blocks left, it is looked up whether a block of a thin volume is a new one.
const LOOKED_UP_FROM: u64 = 1024;

/// What a read-merge-write saw of a block: its stamp in the deltas, and how many leaves had been folded
/// when it began to look.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub(super) stamp: u64,
    pub(super) folds: u64,
}

impl Shard {
    pub(super) async fn write(
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
                let charge = self.admit_thin(shape, address).await?;
                let block = &data[at..at + take];
                self.place_block(shape, address, block, None, Purpose::Client, None)
                    .await?;
                charge.into_iter().for_each(Charge::keep);
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
            let charge = self.admit_thin(shape, address).await?;
            let seen = Seen { stamp, folds };
            if self
                .place_block(shape, address, &block, Some(seen), Purpose::Client, None)
                .await?
            {
                charge.into_iter().for_each(Charge::keep);
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
            let bounds = self.bounds.get();
            let deltas = self.deltas.borrow().len();
            let (leaves, nodes) = self.leaves_of_deltas();
            let (writing, written) = (self.writing.borrow().len(), self.written.borrow().len());
            // Each leaf may be new, with nodes of its own above it: one commit has to fit what is free (S15).
            let most_nodes = self.core.meta_room.get() / 4 / self.shards;
            let full = |of: usize| {
                let scarce = of * nodes >= most_nodes && of * leaves >= bounds.leaves;
                of * deltas >= bounds.deltas || scarce
            };
            if full(2) && !self.pressed.replace(true) {
                // Early, so that folding and writing overlap.
                let _ = self.home.send(HomeMessage::Pressure);
            }
            if !full(1) && writing + written < bounds.stripes {
                return Ok(());
            }
            if full(1) {
                let _ = self.home.send(HomeMessage::Pressure);
            } else if writing == 0 || written * 2 >= bounds.stripes {
                let _ = self.home.send(HomeMessage::Record);
            }
            self.room.wait().await;
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
            // Those that wait for their places with a charge come first: to fold now would make some of them read
            // anew what they change, and what they do not come to take may be enough (S137, S138).
            if thin.is_placing() {
                thin.placed().await;
                continue;
            }
            // Or what was not folded cannot be, and keeps what it was charged.
            let stuck = asked == Some(counted) && counted.oldest.is_some();
            if asked.is_some() && (counted.folded < shape.takes_bytes || stuck) {
                return Err(VolumeError::NoSpace);
            }
            // What was not folded was charged as if each block needed nodes of its own, and what was overwritten
            // as if it were new: see what is left in truth.
            asked = Some(counted);
            ask(&self.home, HomeMessage::Fold).await;
            if self.core.closed.get() {
                return Err(VolumeError::Closed);
            }
        }
    }

    /// Gives a volume block a place in the open stripe of the purpose's stream. False if `expected` is given
    /// and the block has changed since. `from` makes it a move.
    pub(super) async fn place_block(
        self: &Rc<Self>,
        shape: VolumeShape,
        address: u64,
        bytes: &[u8],
        expected: Option<Seen>,
        purpose: Purpose,
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
        let lock = match purpose {
            Purpose::Client => &self.hot,
            Purpose::Clean => &self.cold,
            Purpose::Commit => &self.rescue,
        };
        let mut stream = lock.lock().await;
        let source = from.map(|m| m.from.segment);
        self.make_room(&mut stream, shape.pieces, purpose, source)
            .await?;
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
                let context = Context::piece(shape.tree, address, piece);
                let digest = self.core.digest(kind, context, bytes);
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

    pub(super) async fn trim(
        self: &Rc<Self>,
        tree: u32,
        first: u64,
        count: u64,
    ) -> Result<(), VolumeError> {
        let index = u16::try_from(self.index).expect("few shards");
        let part = (self.shards_u16(), index);
        let hole = self.add_hole(self.shape(tree)?, first, count, part);
        self.core
            .lost
            .borrow_mut()
            .retain(|key, ()| !hole.covers(key.0, key.1));
        self.admit_hole().await;
        Ok(())
    }

    /// A new run of holes, of the addresses that are this part's, not recorded yet.
    pub(super) fn add_hole(
        &self,
        shape: VolumeShape,
        first: u64,
        count: u64,
        part: (u16, u16),
    ) -> HoleRange {
        let hole = HoleRange {
            tree: shape.tree,
            first,
            count,
            part: self.part(shape, part),
            stamp: self.next_stamp(),
            recorded: None,
        };
        self.deltas.borrow_mut().holes.push(hole);
        hole
    }

    /// Runs of holes are looked through one by one: few at a time.
    async fn admit_hole(&self) {
        while self.deltas.borrow().holes.len() > 64 && !self.core.closed.get() {
            let _ = self.home.send(HomeMessage::Pressure);
            self.room.wait().await;
        }
    }
}
