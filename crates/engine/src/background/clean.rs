//! The cleaner: moves live blocks out of segments that are partly dead, so that checkpoints can free them.
//!
//! Invariants:
//! - It changes no map: live blocks are handed, verified, to their shard, which writes them into a
//!   stream as moves; the segment is freed by a checkpoint once nothing needs it (R8).
//! - Rounds that gain nothing end: until something is overwritten it then only waits.

use std::collections::BTreeMap;
use std::rc::Rc;

use ashlar_digest::Kind;
use ashlar_format::BLOCK;
use ashlar_format::node::Place;
use ashlar_format::partition::Partitioning;
use ashlar_format::summary::{Owner, Row};
use ashlar_rt::Buf;
use ashlar_space::floors::Class;

use crate::background::Background;
use crate::options::LARGEST_VOLUME_BLOCK;
use crate::phases::{Laps, Phase};
use crate::protocol::{Move, Moved, ShardMessage, ask};
use crate::segment::plan::{How, Span};
use crate::segment::read::fetch;
use crate::segment::stripe::row_matches;
use crate::segment::summary::rows_of;
use crate::segment::{Pinned, Segment};
use crate::status::Work;

/// Blocks of a segment that are moved at once, at most, if a stripe has no more: 64 MiB.
const PART: u32 = 1 << 14;

/// Blocks of the largest block of a volume.
const LARGEST_BLOCK: u32 = LARGEST_VOLUME_BLOCK as u32 / BLOCK as u32;

/// Blocks of one strip that were read together.
struct Strip {
    /// The first of them, within the strip.
    first: u32,
    /// `None` if they did not come.
    bytes: Option<Buf>,
    /// Whether they were computed from blocks that match their rows: then they need no row of their own.
    computed: bool,
}

/// The strips that hold what is moved, by stripe and strip.
type Strips = BTreeMap<(u32, u16), Strip>;

/// Stripes of a segment that are moved at once.
fn stripes_of_part(segment: &Segment) -> u32 {
    (PART / segment.geometry.stripe_blocks().max(1)).max(1)
}

impl Background {
    /// Finds out how much the stripes of a segment of an earlier process leave empty ([`Segment::left_empty`]); whether
    /// any, which nobody knew.
    pub(super) async fn learns_padding(&self, segment: &Pinned) -> bool {
        let stripe_blocks = segment.geometry.stripe_blocks();
        if segment.padding.get().is_some() {
            return false;
        }
        let mut padding = 0;
        // Blocks of volumes are powers of two: these fill such stripes.
        let stripes = match stripe_blocks.is_multiple_of(LARGEST_BLOCK) {
            true => 0,
            false => segment.recorded.get(),
        };
        let starts = (0..stripes).step_by(stripes_of_part(segment) as usize);
        for start in starts {
            let part = start..stripes.min(start + stripes_of_part(segment));
            let blocks: Vec<u32> = (part.start * stripe_blocks..part.end * stripe_blocks).collect();
            let rows = rows_of(&self.core, segment, &blocks).await;
            for stripe in part {
                let of_stripe = rows.range(stripe * stripe_blocks..(stripe + 1) * stripe_blocks);
                let owners = of_stripe.map(|(_, row)| Owner::from_bytes(&row.owner));
                let (mut filled, mut largest) = (0, 1);
                for owner in owners.filter(|owner| owner.tree != 0) {
                    filled += 1;
                    largest = largest.max(u32::from(owner.pieces_less_one) + 1);
                }
                padding += segment.left_empty(filled, largest);
            }
        }
        segment.padding.set(Some(padding));
        padding > 0
    }

    /// Moves the live blocks of a data segment: of a large one a part at a time, which is merged before the next, so
    /// that neither what is read nor the deltas of what was moved take memory by the size of a slot.
    pub(super) async fn clean_segment(
        self: &Rc<Self>,
        segment: &Pinned,
        into: (u16, Class),
        work: Work,
    ) -> Moved {
        let mut all = Moved::default();
        let live: Vec<u32> = segment.live.borrow().iter().collect();
        let of_part = |block: &u32| segment.geometry.locate(*block).0 / stripes_of_part(segment);
        for (number, part) in live.chunk_by(|a, b| of_part(a) == of_part(b)).enumerate() {
            if number > 0 {
                self.home.merge().await;
            }
            let moved = self.clean_part(segment, part, into, work).await;
            all.bytes += moved.bytes;
            all.refused = moved.refused;
            if all.refused {
                break;
            }
        }
        all
    }

    /// Moves some live blocks of a data segment: those of whole stripes.
    async fn clean_part(
        self: &Rc<Self>,
        segment: &Pinned,
        live: &[u32],
        into: (u16, Class),
        work: Work,
    ) -> Moved {
        let mut laps = Laps::begin(&self.core.meters.phases, &self.core.rt);
        let rows = rows_of(&self.core, segment, live).await;
        laps.end(Phase::CleanRows);
        let strips = self.read_strips(segment, &rows, work).await;
        laps.end(Phase::CleanRead);
        let mut moves: BTreeMap<usize, Vec<Move>> = BTreeMap::new();
        for (block, row) in &rows {
            let owner = Owner::from_bytes(&row.owner);
            if owner.piece != 0 || owner.kind != 0 {
                continue;
            }
            let live = self.take_live(segment, *block, owner, &rows, &strips);
            if let Some((shard, m)) = live.await {
                let m = Move { into, ..m };
                moves.entry(shard).or_default().push(m);
            }
        }
        let mut all = Moved::default();
        for (shard, mut moves) in moves {
            moves.sort_by_key(|m| (m.tree, m.address));
            let relocate = |reply| ShardMessage::Relocate(moves, reply);
            let moved = ask(&self.home.shards[shard], relocate).await;
            let moved = moved.unwrap_or_default();
            all.bytes += moved.bytes;
            all.refused |= moved.refused;
        }
        laps.end(Phase::CleanMove);
        all
    }

    /// Reads, all at once, the strips that hold these blocks, from the first wanted to the last; those of a missing
    /// column are computed. In a tight room a strip that does not come is left to [`Background::take_live`], block by
    /// block: what is moved sooner is there before checkpoints are, which have to free room for it.
    async fn read_strips(
        self: &Rc<Self>,
        segment: &Pinned,
        rows: &BTreeMap<u32, Row>,
        work: Work,
    ) -> Strips {
        let mut spans: BTreeMap<(u32, u16), (u32, u32)> = BTreeMap::new();
        for block in rows.keys() {
            let (stripe, strip, within) = segment.geometry.locate(*block);
            let span = spans.entry((stripe, strip)).or_insert((within, within));
            span.1 = within;
        }
        let compute = !self.home.room_is_tight();
        let read = |((stripe, strip), (first, last)): ((u32, u16), (u32, u32))| {
            let (background, segment) = (self.clone(), segment.clone());
            let (column, count) = (usize::from(strip), last - first + 1);
            let reading = async move {
                let core = &background.core;
                let bytes = u64::from(count) * BLOCK as u64;
                let turn = background.turn_of(work, &segment, column, bytes).await;
                let span = Span {
                    stripe,
                    column,
                    within: first,
                    count,
                };
                let read = fetch(core, &segment, span, How::Read).await;
                drop(turn);
                let computed = read.is_none() && compute;
                let bytes = if computed {
                    fetch(core, &segment, span, How::DecodedVerified).await
                } else {
                    read
                };
                Strip {
                    first,
                    bytes,
                    computed,
                }
            };
            ((stripe, strip), self.core.rt.spawn(reading))
        };
        let reading: Vec<_> = spans.into_iter().map(read).collect();
        let mut strips = Strips::new();
        for (at, strip) in reading {
            strips.insert(at, strip.await);
        }
        strips
    }

    /// A live volume block, verified as its rows say, with the shard that owns it.
    async fn take_live(
        self: &Rc<Self>,
        segment: &Pinned,
        block: u32,
        owner: Owner,
        rows: &BTreeMap<u32, Row>,
        strips: &Strips,
    ) -> Option<(usize, Move)> {
        let pieces = u32::from(owner.pieces_less_one) + 1;
        let kind = Kind::from_tag(owner.algorithm)?;
        let mut bytes = Buf::zeroed(pieces as usize * BLOCK);
        for piece in 0..pieces {
            let (stripe, strip, within) = segment.geometry.locate(block + piece);
            let out = &mut bytes[piece as usize * BLOCK..(piece as usize + 1) * BLOCK];
            let row = rows.get(&(block + piece))?;
            if let Some(known) = strips.get(&(stripe, strip))
                && let Some(read) = &known.bytes
            {
                let at = (within - known.first) as usize * BLOCK;
                let read = &read[at..at + BLOCK];
                let good = known.computed
                    || row_matches(&self.core, segment, stripe, strip, within, row, read);
                if good {
                    out.copy_from_slice(read);
                    continue;
                }
            }
            let span = Span::block(stripe, usize::from(strip), within);
            let good = match fetch(&self.core, segment, span, How::Verified).await {
                Some(good) => good,
                None => fetch(&self.core, segment, span, How::DecodedVerified).await?,
            };
            out.copy_from_slice(&good);
        }
        let digest = self
            .core
            .identity
            .block_digest(kind, owner.tree, owner.address, &bytes);
        let partition = Partitioning::new(self.home.superblock.borrow().partitions, pieces)
            .partition(owner.address);
        let from = Place {
            segment: segment.number,
            block,
        };
        let m = Move {
            tree: owner.tree,
            address: owner.address,
            from,
            into: (0, Class::Clean), // its caller says
            algorithm: owner.algorithm,
            bytes: bytes.freeze(),
            digest,
        };
        Some((usize::from(partition) % self.home.shards.len(), m))
    }
}
