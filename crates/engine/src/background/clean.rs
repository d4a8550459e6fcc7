//! The cleaner: moves live blocks out of segments that are partly dead, so that commits can free them.
//!
//! Invariants:
//! - It changes no map: live blocks are handed, verified, to their shard, which writes them into a
//!   stream as moves; the segment is freed by a commit once nothing needs it (R8).
//! - Rounds that gain nothing end: until something is overwritten it then only waits.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use ashlar_digest::Kind;
use ashlar_format::BLOCK;
use ashlar_format::node::Place;
use ashlar_format::partition::Partitioning;
use ashlar_format::slot::SegmentKind;
use ashlar_format::summary::{Owner, Row};
use ashlar_rt::{Buf, Join, MILLISECOND, SECOND};

use crate::background::Background;
use crate::home::work::Garbage;
use crate::phases::{Laps, Phase};
use crate::protocol::{Move, Reach, ShardMessage, ask};
use crate::segment::plan::{How, Span};
use crate::segment::read::fetch;
use crate::segment::stripe::row_matches;
use crate::segment::summary::rows_of;
use crate::segment::{Pinned, Segment};
use crate::space::shape::FoldLimit;
use crate::status::TaskState;

/// Victims whose blocks are read and moved at once.
const VICTIMS_AT_ONCE: usize = 16;

/// So many blocks, each under a leaf of its own, one commit is to fold of those that a round of cleaning has moved.
const FOLDED_LEAST: usize = 24;

/// Blocks of a segment that are moved at once, at most, if a stripe has no more: 64 MiB.
const PART: u32 = 1 << 14;

/// Victims of a round beside a commit, at most, for each of those that are moved at once.
const ROUND_MOST: usize = 3;

/// How many hold a segment that nobody needs but the list of those that were picked.
const HELD_WHEN_PICKED: u32 = 1;

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

/// Waits for the commit that ended the round before.
async fn wait_for(folding: &mut Option<Join<()>>) {
    if let Some(folding) = folding.take() {
        folding.await;
    }
}

impl Background {
    pub(super) async fn clean_forever(self: Rc<Self>) {
        let mut pause = MILLISECOND;
        let mut folding: Option<Join<()>> = None;
        while !self.core.closed.get() {
            if !self.home.low_on_slots() {
                wait_for(&mut folding).await;
                pause = MILLISECOND;
                self.home.tasks.borrow_mut().clean.state = TaskState::Done;
                let _ = self
                    .core
                    .rt
                    .timeout(500 * MILLISECOND, self.home.demand.clean_wanted())
                    .await;
                if !self.home.low_on_slots() {
                    continue;
                }
            }
            let seen = self.home.garbage();
            if self.home.cleaner_rests() {
                self.home.tasks.borrow_mut().clean.state = TaskState::Waiting;
                self.home.tasks.borrow_mut().clean.reason = "nothing is left to gain";
                self.core.progress.open();
                self.core.rt.sleep(SECOND).await;
                continue;
            }
            self.home.tasks.borrow_mut().clean.reason = "";
            self.home.tasks.borrow_mut().clean.state = TaskState::Running;
            // What was overwritten is known to be dead only once it has been folded.
            let worth = self
                .home
                .pick_victims(None, 1)
                .iter()
                .any(|(s, dead)| dead * 5 > u64::from(s.geometry.data_blocks()));
            if !worth {
                self.home.batch(Reach::All).await;
                self.home.commit(self.home.journal.next()).await;
                if !self.home.low_on_slots() {
                    continue;
                }
            }
            self.home.tasks.borrow_mut().cleaning = true;
            self.clean_once(&mut folding).await;
            self.home.tasks.borrow_mut().cleaning = false;
            self.core.progress.open();
            let gained = self.takes_less(&seen);
            self.home.tasks.borrow_mut().clean_rest.round(gained, seen);
            if gained {
                pause = MILLISECOND;
                self.home.tasks.borrow_mut().gains += 1;
            } else {
                // Nothing to gain now: look again less and less often, until something is overwritten.
                self.core.rt.sleep(pause).await;
                pause = (pause * 2).min(500 * MILLISECOND);
            }
        }
    }

    /// Whether segments take less than after any round since `seen` changed: moving the same few nodes back and forth
    /// gains something every other time, and nothing in the end.
    fn takes_less(&self, seen: &Garbage) -> bool {
        let taken = self.blocks_taken();
        let least = &mut self.home.tasks.borrow_mut().least_taken;
        let best = least.take().filter(|(at, _)| at == seen).map(|(_, n)| n);
        let gained = best.is_none_or(|best| taken < best);
        *least = Some((seen.clone(), best.unwrap_or(taken).min(taken)));
        gained
    }

    /// Blocks of devices that segments take, as if all their columns were there. Those being emptied do not count: the
    /// next commit frees them; of those being filled, what is full. In whole segments, and with those, rounds that gain
    /// little each did not show beside how many wait for a commit (#191).
    fn blocks_taken(&self) -> u64 {
        let moved = &self.home.tasks.borrow().moved;
        let taken = |s: &Rc<Segment>| {
            let (slot, stripes) = (s.geometry.slot_blocks, s.geometry.stripes());
            let of_slot = if s.sealed.get() {
                u64::from(slot)
            } else {
                u64::from(slot) * u64::from(s.next_stripe.get()) / u64::from(stripes)
            };
            s.geometry.width() as u64 * of_slot
        };
        let segments = self.core.segments.borrow();
        let kept = segments.values().filter(|s| !moved.contains(&s.number));
        kept.map(taken).sum()
    }

    /// Moves the live blocks of the best victims away and commits. With slots enough the commit goes on by itself, and
    /// the next round begins beside it, with other victims; at its end that round waits for it.
    async fn clean_once(self: &Rc<Self>, folding: &mut Option<Join<()>>) {
        let beside = self.at_once(VICTIMS_AT_ONCE) > 1 && !self.home.room_is_tight();
        let background = self.clone();
        let nodes = async move {
            background
                .home
                .clean_metadata(background.home.meta_room() / 8)
                .await
        };
        let taken = if beside {
            let nodes = self.core.rt.spawn(nodes);
            let taken = self.move_victims(true).await;
            nodes.await;
            taken
        } else {
            wait_for(folding).await;
            // Nodes first: writing them anew needs only what commits may use, and always gains.
            nodes.await;
            self.move_victims(false).await
        };
        wait_for(folding).await;
        self.home.tasks.borrow_mut().folding = true;
        let background = self.clone();
        let fold = async move {
            background.home.fold().await;
            let mut tasks = background.home.tasks.borrow_mut();
            tasks.moved.retain(|number| !taken.contains(number));
            tasks.folding = false;
            background.core.progress.open();
        };
        if beside && !self.home.room_is_tight() {
            *folding = Some(self.core.rt.spawn(fold));
        } else {
            fold.await;
        }
    }

    /// Moves the live blocks of the best victims away; which they were. What they go to is room that commits lack, and
    /// until they are folded nothing is free: where one commit would come to fold few of them, those moved so far are
    /// folded first (#181). Not sooner: each commit writes nodes of its own, which may be all that cleaning gains.
    ///
    /// `beside` a commit it ends when that does, with a few at least and not too many: what is moved is freed by the
    /// next one.
    async fn move_victims(self: &Rc<Self>, beside: bool) -> BTreeSet<u64> {
        let mut budget = self.home.clean_budget() * 1000;
        let at_once = self.at_once(VICTIMS_AT_ONCE);
        let least = FOLDED_LEAST.min(self.foldable() / 2);
        let mut unfolded = 0;
        let mut under_way: VecDeque<Join<u64>> = VecDeque::new();
        let mut taken = BTreeSet::new();
        for number in self.victims_now(beside) {
            let enough = taken.len() >= at_once && !self.home.tasks.borrow().folding;
            if beside && (enough || taken.len() >= ROUND_MOST * at_once) {
                break;
            }
            let Some(segment) = self.core.segment(number) else {
                continue;
            };
            let blocks = u64::from(segment.geometry.data_blocks());
            let count = segment.live.borrow().count() as usize;
            let live = count as u64 * 1000 / blocks;
            if live > budget {
                break;
            }
            budget -= live;
            // Several at once, as long as what they are moved to does not have to be folded in between.
            let tight = self.home.room_is_tight();
            let most = if tight { 1 } else { at_once };
            while under_way.len() >= most {
                let first = under_way.pop_front().expect("there are some");
                first.await;
            }
            if unfolded > 0 && tight && self.foldable() < least.min(unfolded) {
                self.home.fold().await;
                unfolded = 0;
            }
            unfolded += count;
            taken.insert(number);
            self.home.tasks.borrow_mut().moved.insert(number);
            let background = self.clone();
            let clean = async move { background.clean_segment(&segment).await };
            under_way.push_back(self.core.rt.spawn(clean));
        }
        for last in under_way {
            last.await;
        }
        taken
    }

    /// The data segments to clean next, by number: held, none could be freed by what is folded in between. Without those
    /// whose blocks were moved already, which counts only once it is folded; `beside` a commit also without those that
    /// hold what is not folded yet: it is not known to live there.
    fn victims_now(&self, beside: bool) -> Vec<u64> {
        let picked = self.home.pick_victims(Some(SegmentKind::Data), usize::MAX);
        let moved = &self.home.tasks.borrow().moved;
        let settled = |s: &Pinned| !beside || s.pins() == HELD_WHEN_PICKED;
        let now = picked
            .into_iter()
            .filter(|(s, _)| settled(s) && !moved.contains(&s.number));
        now.map(|(s, _)| s.number).take(256).collect()
    }

    /// How many blocks one commit can fold, each under a leaf of its own.
    fn foldable(&self) -> usize {
        self.home.fold_limit().nodes / FoldLimit::LEAF
    }

    /// Moves the live blocks of a data segment: of a large one a part at a time, which is folded before the next, so
    /// that neither what is read nor the deltas of what was moved take memory by the size of a slot. How many
    /// bytes it moved.
    pub(super) async fn clean_segment(self: &Rc<Self>, segment: &Pinned) -> u64 {
        let mut moved = 0;
        let live: Vec<u32> = segment.live.borrow().iter().collect();
        let of_part = |block: &u32| segment.geometry.locate(*block).0 / stripes_of_part(segment);
        for (number, part) in live.chunk_by(|a, b| of_part(a) == of_part(b)).enumerate() {
            if number > 0 {
                self.home.fold().await;
            }
            moved += self.clean_part(segment, part).await;
        }
        moved
    }

    /// Moves some live blocks of a data segment: those of whole stripes. How many bytes it moved.
    async fn clean_part(self: &Rc<Self>, segment: &Pinned, live: &[u32]) -> u64 {
        let mut laps = Laps::begin(&self.core.meters.phases, &self.core.rt);
        let rows = rows_of(&self.core, segment, live).await;
        laps.end(Phase::CleanRows);
        let strips = self.read_strips(segment, &rows).await;
        laps.end(Phase::CleanRead);
        let mut moves: BTreeMap<usize, Vec<Move>> = BTreeMap::new();
        for (block, row) in &rows {
            let owner = Owner::from_bytes(&row.owner);
            if owner.piece != 0 || owner.kind != 0 {
                continue;
            }
            if let Some((shard, m)) = self.take_live(segment, *block, owner, &rows, &strips).await {
                moves.entry(shard).or_default().push(m);
            }
        }
        let mut moved = 0;
        for (shard, mut moves) in moves {
            moves.sort_by_key(|m| (m.tree, m.address));
            let relocate = |reply| ShardMessage::Relocate(moves, reply);
            let bytes = ask(&self.home.shards[shard], relocate).await.unwrap_or(0);
            self.home.tasks.borrow_mut().clean.done += bytes;
            moved += bytes;
        }
        laps.end(Phase::CleanMove);
        moved
    }

    /// Reads, all at once, the strips that hold these blocks, from the first wanted to the last; those of a missing column
    /// are computed. In a tight room a strip that does not come is left to [`Background::take_live`], block by block: what is
    /// moved sooner is there before commits are, which have to free room for it.
    async fn read_strips(self: &Rc<Self>, segment: &Pinned, rows: &BTreeMap<u32, Row>) -> Strips {
        let mut spans: BTreeMap<(u32, u16), (u32, u32)> = BTreeMap::new();
        for block in rows.keys() {
            let (stripe, strip, within) = segment.geometry.locate(*block);
            let span = spans.entry((stripe, strip)).or_insert((within, within));
            span.1 = within;
        }
        let compute = !self.home.room_is_tight();
        let read = |((stripe, strip), (first, last)): ((u32, u16), (u32, u32))| {
            let (core, segment, column) = (self.core.clone(), segment.clone(), usize::from(strip));
            let count = last - first + 1;
            let reading = async move {
                let span = Span {
                    stripe,
                    column,
                    within: first,
                    count,
                };
                let read = fetch(&core, &segment, span, How::Read).await;
                let computed = read.is_none() && compute;
                let bytes = if computed {
                    fetch(&core, &segment, span, How::DecodedVerified).await
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
            algorithm: owner.algorithm,
            bytes: bytes.freeze(),
            digest,
        };
        Some((usize::from(partition) % self.home.shards.len(), m))
    }
}
