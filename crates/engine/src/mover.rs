//! Background work: the cleaner, reconstruct, and healing of single blocks.
//!
//! Invariants:
//! - The cleaner changes no map: it hands live blocks, verified, to their shard, which writes them into
//!   a stream; the segment is freed by a commit once nothing needs it (S8).
//! - Reconstruct writes only what was computed from inputs that match their rows (P4), reads it back,
//!   and only then, by a journal record, says where the column is.
//! - A heal rewrites only a block known bad, while it holds the segment (S12).

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ashlar_digest::Kind;
use ashlar_format::BLOCK;
use ashlar_format::journal::Entry;
use ashlar_format::node::Place;
use ashlar_format::slot::{SegmentKind, SlotEntry};
use ashlar_format::summary::{OWNER_BYTES, Owner, Row};
use ashlar_rt::{Buf, MILLISECOND, Nanos, SECOND, Slice};

use crate::alloc::{clean_slots, commit_slots, header_bytes};
use crate::home::Home;
use crate::messages::{Move, ShardMessage, ask};
use crate::partition::Partitioning;
use crate::read::{decode_column, read_column, read_course, read_course_rows, read_verified};
use crate::segment::{Column, Segment};
use crate::stripe::{device_offset, node_address, row_matches, strip_digest, summary_bytes};

/// Rounds of cleaning without any gain after which clients are told that there is no space.
const FRUITLESS_MOST: u32 = 12;

/// Progress of one kind of work.
#[derive(Debug, Default, Clone)]
pub struct Progress {
    /// `running`, `waiting`, `done`; empty: never ran.
    pub state: &'static str,
    /// Bytes done.
    pub done: u64,
    /// Bytes known to be to do.
    pub total: u64,
    /// When it started.
    pub since: Nanos,
    /// Why it waits.
    pub reason: &'static str,
    /// Bad blocks found and healed.
    pub found: u64,
    /// Healed.
    pub healed: u64,
}

/// The background work of an array.
#[derive(Debug, Default)]
pub struct Tasks {
    /// Reconstruct.
    pub reconstruct: Progress,
    /// The cleaner.
    pub clean: Progress,
    /// Healing of single blocks.
    pub heal: Progress,
    /// The last pass of reconstruct moved nothing though something is missing.
    pub stuck: bool,
    /// Whether a volume is being released.
    pub releasing: usize,
}

impl Home {
    /// Starts the background work.
    pub(crate) fn start_background(self: &Rc<Self>) {
        let rt = self.core.rt.clone();
        let home = self.clone();
        rt.spawn(async move { home.clean_forever().await });
        let home = self.clone();
        rt.spawn(async move { home.reconstruct_forever().await });
        let home = self.clone();
        rt.spawn(async move { home.heal_forever().await });
        let home = self.clone();
        rt.spawn(async move { home.commit_now_and_then().await });
    }

    /// Folds what lies in the journal even if nothing presses, so that recovery stays short.
    async fn commit_now_and_then(self: Rc<Self>) {
        let mut last = 0;
        while !self.core.closed.get() {
            self.core.rt.sleep(30 * ashlar_rt::SECOND).await;
            if self.journal.next() > last + 4 && !self.core.closed.get() {
                self.batch(true).await;
                self.commit(self.journal.next()).await;
                last = self.journal.next();
            }
        }
    }

    // ---- the cleaner ------------------------------------------------------------------------------

    /// Asks the cleaner to look now.
    pub(crate) fn ask_cleaner(&self) {
        self.cleaner_gate.open();
    }

    /// Slots per device below which the cleaner works.
    fn clean_below(&self) -> usize {
        let slots = self
            .core
            .members
            .iter()
            .map(|m| m.geometry.slots)
            .min()
            .unwrap_or(0);
        commit_slots(self.core.slot_blocks) + clean_slots(slots) + (slots as usize / 50).max(4)
    }

    /// How many segments' worth of live blocks one round of cleaning may move.
    fn clean_budget(&self) -> u64 {
        let online = self.core.members.iter().filter(|m| m.is_online());
        let lowest = online
            .map(crate::member::Member::free_slots)
            .min()
            .unwrap_or(0);
        (lowest.saturating_sub(commit_slots(self.core.slot_blocks) + 3) as u64).clamp(1, 64)
    }

    fn low_on_slots(&self) -> bool {
        let lowest = self
            .core
            .members
            .iter()
            .filter(|m| m.is_online())
            .map(crate::member::Member::free_slots)
            .min();
        lowest.unwrap_or(0) < self.clean_below()
    }

    /// Whether the cleaner could free anything: then a client may wait instead of getting ENOSPC.
    pub(crate) fn cleaner_can_gain(&self) -> bool {
        if self.fruitless.get() > FRUITLESS_MOST {
            return false;
        }
        self.pick_victims(usize::MAX)
            .iter()
            .map(|(_, dead)| *dead)
            .sum::<u64>()
            > 0
            || self.pending_frees()
    }

    /// Segments that are dead already and only wait for a commit, or blocks that deltas have replaced.
    fn pending_frees(&self) -> bool {
        let segments = self.core.segments.borrow();
        segments
            .values()
            .any(|s| s.live.borrow().is_empty() && s.recorded.get() > 0 && Rc::strong_count(s) == 1)
    }

    /// The sealed segments with the most dead blocks, and how many; at most `count`. A segment is worth
    /// it if cleaning gains at least a twentieth of it.
    fn pick_victims(&self, count: usize) -> Vec<(Rc<Segment>, u64)> {
        let current = self.meta.borrow().current.as_ref().map(|s| s.number);
        let mut victims: Vec<(Rc<Segment>, u64)> = self
            .core
            .segments
            .borrow()
            .values()
            .filter(|s| s.sealed.get() && Some(s.number) != current)
            .map(|s| {
                (
                    s.clone(),
                    u64::from(s.geometry.data_blocks() - s.live.borrow().count()),
                )
            })
            .filter(|(s, dead)| {
                *dead * 20 >= u64::from(s.geometry.data_blocks()) && !s.live.borrow().is_empty()
            })
            .collect();
        victims.sort_by_key(|(s, dead)| {
            std::cmp::Reverse(dead * 1000 / u64::from(s.geometry.data_blocks()))
        });
        victims.truncate(count);
        victims
    }

    async fn clean_forever(self: Rc<Self>) {
        let mut pause = MILLISECOND;
        while !self.core.closed.get() {
            if !self.low_on_slots() {
                pause = MILLISECOND;
                self.tasks.borrow_mut().clean.state = "done";
                let _ = self
                    .core
                    .rt
                    .timeout(500 * MILLISECOND, self.cleaner_gate.wait())
                    .await;
                if !self.low_on_slots() {
                    continue;
                }
            }
            let written = self.core.amplification.0.get();
            if self.fruitless.get() > FRUITLESS_MOST && written == self.fruitless_at.get() {
                // Nothing was overwritten since cleaning last gained nothing: it would gain nothing.
                self.tasks.borrow_mut().clean.state = "waiting";
                self.tasks.borrow_mut().clean.reason = "nothing is left to gain";
                self.core.progress.open();
                self.core.rt.sleep(SECOND).await;
                continue;
            }
            if written != self.fruitless_at.replace(written) {
                self.fruitless.set(0);
            }
            self.tasks.borrow_mut().clean.reason = "";
            self.tasks.borrow_mut().clean.state = "running";
            let before = self.free_slots();
            // What was overwritten is known to be dead only once it has been folded.
            let worth = self
                .pick_victims(1)
                .iter()
                .any(|(s, dead)| dead * 5 > u64::from(s.geometry.data_blocks()));
            if !worth {
                self.batch(false).await;
                self.commit(self.journal.next()).await;
                if !self.low_on_slots() {
                    continue;
                }
            }
            self.clean_once().await;
            self.core.progress.open();
            if self.free_slots() > before {
                pause = MILLISECOND;
                self.fruitless.set(0);
            } else {
                self.fruitless.set(self.fruitless.get() + 1);
                // Nothing to gain now: look again less and less often, until something is overwritten.
                self.core.rt.sleep(pause).await;
                pause = (pause * 2).min(500 * MILLISECOND);
            }
        }
    }

    /// Moves the live blocks of the best victims away and commits.
    async fn clean_once(self: &Rc<Self>) {
        let mut budget = self.clean_budget() * 1000;
        // Nodes first: writing them anew needs only what commits may use, and always gains.
        let (meta, data): (Vec<_>, Vec<_>) = self
            .pick_victims(256)
            .into_iter()
            .partition(|(s, _)| s.kind == SegmentKind::Meta);
        let data = if self.clean_budget() > 1 {
            data
        } else {
            Vec::new()
        };
        let sparse = |(s, dead): &(Rc<Segment>, u64)| {
            data.is_empty() || dead * 2 > u64::from(s.geometry.data_blocks())
        };
        let meta: Vec<_> = meta.into_iter().filter(sparse).take(8).collect();
        for (segment, dead) in meta.into_iter().chain(data) {
            let blocks = u64::from(segment.geometry.data_blocks());
            let live = (blocks - dead) * 1000 / blocks;
            if live > budget {
                break;
            }
            budget -= live;
            self.clean_segment(&segment).await;
        }
        self.batch(true).await;
        self.commit(self.journal.next()).await;
    }

    async fn clean_segment(self: &Rc<Self>, segment: &Rc<Segment>) {
        let live: Vec<u32> = segment.live.borrow().iter().collect();
        let rows = self.rows_of(segment, &live).await;
        if segment.kind == SegmentKind::Meta {
            let owners: Vec<Owner> = rows
                .values()
                .map(|row| Owner::from_bytes(&row.owner))
                .collect();
            self.touch_nodes(&owners).await;
            return;
        }
        let strips = self.read_strips(segment, &rows).await;
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
        for (shard, mut moves) in moves {
            moves.sort_by_key(|m| (m.tree, m.address));
            let bytes: u64 = moves.iter().map(|m| m.bytes.len() as u64).sum();
            if ask(&self.shards[shard], |reply| {
                ShardMessage::Relocate(moves, reply)
            })
            .await
            .flatten()
            .is_some()
            {
                self.tasks.borrow_mut().clean.done += bytes;
            }
        }
    }

    /// The rows of live blocks, from the summaries; where a column is missing, with decoded owners and
    /// no digest.
    async fn rows_of(self: &Rc<Self>, segment: &Rc<Segment>, live: &[u32]) -> BTreeMap<u32, Row> {
        let mut cache: BTreeMap<(u32, usize), Option<Vec<Row>>> = BTreeMap::new();
        let mut found = BTreeMap::new();
        for block in live {
            let (stripe, strip, within) = segment.geometry.locate(*block);
            let course = segment.geometry.course_of(stripe);
            let column = usize::from(strip);
            if let std::collections::btree_map::Entry::Vacant(e) = cache.entry((course, column)) {
                let mut rows = read_course_rows(&self.core, segment, course, column).await;
                if rows.is_none() {
                    rows = self.decode_owners(segment, course, column).await;
                }
                e.insert(rows);
            }
            let index = (stripe % segment.geometry.course_strips() * segment.geometry.strip_blocks
                + within) as usize;
            if let Some(Some(rows)) = cache.get(&(course, column))
                && let Some(row) = rows.get(index)
            {
                found.insert(*block, *row);
            }
        }
        found
    }

    /// Reads, unverified and all at once, the strips that hold these blocks: by stripe and strip, from
    /// the first block wanted.
    async fn read_strips(
        self: &Rc<Self>,
        segment: &Rc<Segment>,
        rows: &BTreeMap<u32, Row>,
    ) -> BTreeMap<(u32, u16), (u32, Option<Buf>)> {
        let mut spans: BTreeMap<(u32, u16), (u32, u32)> = BTreeMap::new();
        for block in rows.keys() {
            let (stripe, strip, within) = segment.geometry.locate(*block);
            let span = spans.entry((stripe, strip)).or_insert((within, within));
            span.1 = within;
        }
        let mut joins = Vec::new();
        for ((stripe, strip), (first, last)) in spans {
            let (core, segment) = (self.core.clone(), segment.clone());
            joins.push((
                (stripe, strip),
                first,
                self.core.rt.spawn(async move {
                    read_column(
                        &core,
                        &segment,
                        stripe,
                        usize::from(strip),
                        first,
                        last - first + 1,
                    )
                    .await
                }),
            ));
        }
        let mut strips = BTreeMap::new();
        for (key, first, join) in joins {
            strips.insert(key, (first, join.await));
        }
        strips
    }

    /// The owner bytes of a column whose summary cannot be read, decoded from any K others.
    async fn decode_owners(
        self: &Rc<Self>,
        segment: &Rc<Segment>,
        course: u32,
        wanted: usize,
    ) -> Option<Vec<Row>> {
        let mut inputs: Vec<Option<Vec<u8>>> = vec![None; segment.geometry.width()];
        let mut have = 0;
        for (column, input) in inputs.iter_mut().enumerate() {
            if column != wanted && have < usize::from(segment.geometry.k) {
                let rows = read_course_rows(&self.core, segment, course, column).await;
                *input = rows.map(|rows| rows.iter().flat_map(|r| r.owner).collect());
                have += usize::from(input.is_some());
            }
        }
        let bytes = inputs.iter().flatten().next()?.len();
        let mut out = vec![0; bytes];
        let strips: Vec<Option<&[u8]>> = inputs.iter().map(Option::as_deref).collect();
        self.core
            .code(segment)
            .decode(&strips, &[wanted], &mut [&mut out])
            .ok()?;
        let row = |owner: &[u8]| Row {
            digest: [0; 16],
            owner: owner.try_into().expect("sixteen bytes"),
        };
        Some(out.chunks(OWNER_BYTES).map(row).collect())
    }

    async fn touch_nodes(self: &Rc<Self>, owners: &[Owner]) {
        let mut keys: BTreeMap<usize, Vec<crate::tree::Key>> = BTreeMap::new();
        for owner in owners {
            if owner.kind == 0 {
                continue;
            }
            let (partition, index) = node_address(owner.address);
            let level = owner.kind - 1;
            match owner.tree {
                crate::home::LIVENESS_TREE => self.liveness.borrow_mut().touch((level, index)),
                crate::home::CATALOG_TREE => self.catalog_tree.borrow_mut().touch((level, index)),
                tree => {
                    let shard = usize::from(partition) % self.shards.len();
                    keys.entry(shard)
                        .or_default()
                        .push((tree, partition, level, index));
                }
            }
        }
        for (shard, keys) in keys {
            ask(&self.shards[shard], |reply| {
                ShardMessage::Touch(keys, reply)
            })
            .await;
        }
    }

    /// A live volume block, verified as its rows say, with the shard that owns it.
    async fn take_live(
        self: &Rc<Self>,
        segment: &Rc<Segment>,
        block: u32,
        owner: Owner,
        rows: &BTreeMap<u32, Row>,
        strips: &BTreeMap<(u32, u16), (u32, Option<Buf>)>,
    ) -> Option<(usize, Move)> {
        let pieces = u32::from(owner.pieces_less_one) + 1;
        let kind = Kind::from_tag(owner.algorithm)?;
        let mut bytes = Buf::zeroed(pieces as usize * BLOCK);
        for piece in 0..pieces {
            let (stripe, strip, within) = segment.geometry.locate(block + piece);
            let out = &mut bytes[piece as usize * BLOCK..(piece as usize + 1) * BLOCK];
            let row = rows.get(&(block + piece))?;
            if let Some((first, Some(read))) = strips.get(&(stripe, strip)) {
                let at = (within - first) as usize * BLOCK;
                if row_matches(
                    &self.core,
                    segment,
                    stripe,
                    strip,
                    within,
                    row,
                    &read[at..at + BLOCK],
                ) {
                    out.copy_from_slice(&read[at..at + BLOCK]);
                    continue;
                }
            }
            let column = usize::from(strip);
            let good = match read_verified(&self.core, segment, stripe, column, within).await {
                Some(good) => good,
                None => decode_column(&self.core, segment, stripe, column, within, true).await?,
            };
            out.copy_from_slice(&good);
        }
        let digest = self
            .core
            .block_digest(kind, owner.tree, owner.address, &bytes);
        let partition =
            Partitioning::new(self.superblock.borrow().partitions, pieces).partition(owner.address);
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
        Some((usize::from(partition) % self.shards.len(), m))
    }

    // ---- reconstruct ------------------------------------------------------------------------------

    /// Columns that are missing though a device is free for them, least redundancy first.
    fn to_reconstruct(&self) -> Vec<(usize, Rc<Segment>)> {
        if !self.core.maybe_degraded.get() {
            return Vec::new();
        }
        let mut due: Vec<(usize, Rc<Segment>)> = self
            .core
            .segments
            .borrow()
            .values()
            .filter(|s| s.sealed.get())
            .map(|s| (self.core.missing_columns(s), s.clone()))
            .filter(|(missing, s)| {
                *missing > 0
                    && *missing <= usize::from(s.geometry.m)
                    && (!s.live.borrow().is_empty() || Rc::strong_count(s) > 2)
            })
            .collect();
        due.sort_by_key(|(missing, s)| {
            std::cmp::Reverse((*missing as i64 - i64::from(s.geometry.m), s.number))
        });
        due
    }

    /// Whether some segment has less redundancy than its layout wants.
    pub(crate) fn is_degraded(&self) -> bool {
        let short = || {
            self.core
                .segments
                .borrow()
                .values()
                .any(|s| self.redundancy_lost(s) > 0)
        };
        let degraded = self.core.maybe_degraded.get() && (self.journal_is_short() || short());
        // Segments change only for the worse by a failure or by being made narrow: both set the mark.
        let failing = !self.core.failing.borrow().is_empty();
        self.core.maybe_degraded.set(degraded || failing);
        degraded
    }

    /// Whether the journal still needs records of an epoch whose device set has lost a member: what they
    /// hold has less redundancy until a commit has folded it.
    pub(crate) fn journal_is_short(&self) -> bool {
        let online = |index: &u16| self.core.member(*index).is_online();
        let out: Vec<u16> = self
            .core
            .members
            .iter()
            .map(|m| m.index)
            .filter(|i| !online(i))
            .collect();
        self.root
            .borrow()
            .epochs
            .iter()
            .any(|e| out.iter().any(|i| !e.excluded.contains(i)))
    }

    /// By how much a segment's redundancy is below what its kind should have.
    pub(crate) fn redundancy_lost(&self, segment: &Segment) -> usize {
        let (recorded, stripes) = (segment.recorded.get(), segment.geometry.stripes());
        if segment.live.borrow().is_empty() && (recorded == 0 || recorded == stripes) {
            return 0;
        }
        let wanted = match segment.kind {
            SegmentKind::Data => usize::from(self.shape.m),
            SegmentKind::Meta => usize::from(self.meta_m).min(usize::from(self.shape.m)),
        };
        let left =
            usize::from(segment.geometry.m).saturating_sub(self.core.missing_columns(segment));
        wanted.saturating_sub(left)
    }

    async fn reconstruct_forever(self: Rc<Self>) {
        while !self.core.closed.get() {
            if self.is_degraded() {
                self.seal_broken().await;
                if self.journal_is_short() || self.has_empty_short() {
                    // Folding what hangs on them makes up for that; no column needs computing.
                    self.batch(true).await;
                    self.commit(self.journal.next()).await;
                }
            }
            let due = self.to_reconstruct();
            if due.is_empty() {
                let waits = self.is_degraded();
                self.reconstruct_rests(waits);
                if waits {
                    let wait = self.core.failing_gate.wait();
                    let _ = self.core.rt.timeout(SECOND, wait).await;
                } else {
                    let _ = self
                        .core
                        .rt
                        .timeout(1000 * MILLISECOND, self.core.failing_gate.wait())
                        .await;
                }
                continue;
            }
            self.start_progress(&due);
            let mut moved = 0;
            for (_, segment) in due {
                if self.reconstruct_segment(&segment).await {
                    moved += 1;
                }
            }
            let renewed = self.renew_metadata().await;
            if moved > 0 {
                self.batch(false).await;
                self.commit(self.journal.next()).await;
                let text = format!("{moved} segments have their columns again");
                self.core.event("reconstructed", None, text);
            }
            if moved > 0 || renewed {
                self.tasks.borrow_mut().stuck = false;
                continue;
            }
            self.reconstruct_rests(true);
            if !self.narrow_critical().await {
                self.tasks.borrow_mut().stuck = true;
                // Until a device or space comes: each pass reads what it cannot rebuild again.
                let wait = self.core.failing_gate.wait();
                let _ = self.core.rt.timeout(2 * SECOND, wait).await;
            }
        }
    }

    /// Nothing can be reconstructed now: because nothing is missing, or because there is nowhere to go.
    fn reconstruct_rests(&self, waits: bool) {
        let task = &mut self.tasks.borrow_mut().reconstruct;
        if waits {
            task.state = "waiting";
            task.reason = "no device is free for the missing columns: replace or add a device";
        } else if !task.state.is_empty() {
            task.state = "done";
            task.reason = "";
        }
    }

    /// Whether a sealed segment without live blocks misses columns: a commit folds what deltas hold in
    /// it, or frees it.
    fn has_empty_short(&self) -> bool {
        let segments = self.core.segments.borrow();
        segments.values().any(|s| {
            let free = s.live.borrow().is_empty() && Rc::strong_count(s) == 1;
            s.sealed.get() && free && self.core.missing_columns(s) > 0
        })
    }

    /// Nodes in segments wider than what is left of the array are written anew, as wide as now fits.
    async fn renew_metadata(self: &Rc<Self>) -> bool {
        let fits = usize::from(self.meta_m).min(self.core.online().len().saturating_sub(1));
        let short: Vec<Rc<Segment>> = self
            .to_reconstruct()
            .into_iter()
            .filter(|(missing, s)| {
                s.kind == SegmentKind::Meta && fits > usize::from(s.geometry.m) - missing
            })
            .map(|(_, s)| s)
            .collect();
        for segment in &short {
            self.clean_segment(segment).await;
        }
        if short.is_empty() {
            return false;
        }
        let live = || short.iter().map(|s| s.live.borrow().count()).sum::<u32>();
        let before = live();
        self.batch(false).await;
        self.commit(self.journal.next()).await;
        live() < before
    }

    fn start_progress(&self, due: &[(usize, Rc<Segment>)]) {
        let total: u64 = due
            .iter()
            .map(|(missing, s)| *missing as u64 * u64::from(s.geometry.slot_blocks) * BLOCK as u64)
            .sum();
        let mut tasks = self.tasks.borrow_mut();
        let now = self.core.rt.now();
        let task = &mut tasks.reconstruct;
        if task.state != "running" {
            (task.done, task.since) = (0, now);
        }
        task.state = "running";
        task.reason = "";
        task.total = task.done + total;
    }

    /// Open segments with a missing column take no more stripes, so that they can be reconstructed.
    async fn seal_broken(self: &Rc<Self>) {
        let broken: Vec<Rc<Segment>> = self
            .core
            .segments
            .borrow()
            .values()
            .filter(|s| !s.sealed.get() && self.core.missing_columns(s) > 0)
            .cloned()
            .collect();
        if broken.is_empty() {
            return;
        }
        self.batch(true).await;
        for segment in broken {
            if segment.recorded.get() == segment.next_stripe.get() && !segment.sealed.get() {
                self.seal(&segment).await;
            }
        }
    }

    /// With neither spare nor replacement, segments without redundancy left are written anew, narrower
    /// (`reconstruct.narrow = critical`). Whether anything was moved.
    async fn narrow_critical(self: &Rc<Self>) -> bool {
        let setting = self
            .catalog
            .borrow()
            .settings
            .iter()
            .find(|(k, _)| k == "reconstruct.narrow")
            .map(|(_, v)| v.clone());
        let policy = setting.unwrap_or_else(|| "critical".to_string());
        let online = self.core.online().len();
        let critical: Vec<Rc<Segment>> = self
            .to_reconstruct()
            .into_iter()
            .filter(|(missing, s)| match policy.as_str() {
                "never" => false,
                "always" => true,
                _ => *missing == usize::from(s.geometry.m) && s.geometry.width() - *missing > 1,
            })
            .filter(|(_, s)| online > 1 && !s.live.borrow().is_empty())
            .map(|(_, s)| s)
            .take(4)
            .collect();
        // Narrow segments must themselves be better than what they replace.
        if critical.is_empty() || self.low_on_slots() {
            return false;
        }
        let before: u32 = critical.iter().map(|s| s.live.borrow().count()).sum();
        for segment in &critical {
            self.clean_segment(segment).await;
        }
        self.batch(true).await;
        self.commit(self.journal.next()).await;
        let after: u32 = critical.iter().map(|s| s.live.borrow().count()).sum();
        after < before
    }

    /// Gives every missing column of a segment a new slot. Whether at least one was moved.
    async fn reconstruct_segment(self: &Rc<Self>, segment: &Rc<Segment>) -> bool {
        let mut moved = false;
        for column in 0..segment.geometry.width() {
            if self.core.column_usable(segment, column) {
                continue;
            }
            let Some(target) = self.device_for(segment, column) else {
                continue;
            };
            moved |= self.reconstruct_column(segment, column, target).await;
        }
        if moved && self.extra.borrow().len() > 32 {
            self.batch(false).await;
        }
        moved
    }

    /// A device in the segment's group that holds none of its columns, with the most free slots.
    fn device_for(&self, segment: &Segment, column: usize) -> Option<u16> {
        let columns = segment.columns.borrow();
        let used: BTreeSet<u16> = (0..columns.len())
            .filter(|c| self.core.column_usable(segment, *c))
            .map(|c| columns[c].device)
            .collect();
        let lost = columns[column];
        let anchor = if lost.is_placed() {
            Some(lost.device)
        } else {
            used.iter().next().copied()
        };
        let group = self
            .shape
            .groups
            .iter()
            .find(|g| anchor.is_some_and(|a| g.contains(&a)));
        let candidates: Vec<u16> = match (segment.kind, group) {
            (SegmentKind::Data, Some(group)) => group.clone(),
            _ => self.core.online(),
        };
        candidates
            .into_iter()
            .filter(|d| self.core.member(*d).is_online() && !used.contains(d))
            .filter(|d| self.core.member(*d).free_slots() > commit_slots(self.core.slot_blocks))
            .max_by_key(|d| self.core.member(*d).free_slots())
    }

    /// Computes a column from verified inputs, writes it to a new slot, reads it back, and journals its
    /// new place.
    ///
    /// Crash argument: the new slot belongs to nobody until the `Column` entry is durable, which is
    /// after everything in it was flushed and read back; its version is higher than the lost column's,
    /// so that the two can never be confused. A crash before leaves the slot free.
    async fn reconstruct_column(
        self: &Rc<Self>,
        segment: &Rc<Segment>,
        index: usize,
        target: u16,
    ) -> bool {
        let old = segment.columns.borrow()[index];
        let column = u16::try_from(index).expect("at most 256 columns");
        let entry = SlotEntry {
            segment: segment.number,
            column,
            version: old.version + 1,
            k: segment.geometry.k,
            m: segment.geometry.m,
            code: segment.code,
            kind: segment.kind,
            strip_blocks: segment.geometry.strip_blocks,
        };
        let Some(slot) = self.core.member(target).take_slot(entry) else {
            return false;
        };
        let new = Column {
            device: target,
            slot,
            version: old.version + 1,
        };
        let done = self.fill_column(segment, index, new).await;
        let unchanged = segment.columns.borrow()[index] == old && !self.core.closed.get();
        if !done || !unchanged {
            // Nothing names the slot: it is as free as it was.
            self.core.member(target).set_slot(slot, None);
            self.core.member(target).release_slot(slot);
            return false;
        }
        segment.columns.borrow_mut()[index] = new;
        self.extra.borrow_mut().push(Entry::Column {
            segment: segment.number,
            column,
            version: new.version,
            device: target,
            slot,
        });
        if old.is_placed() {
            // The old slot's device is not in use; should it ever be again, its table is not believed.
            self.core.member(old.device).set_slot(old.slot, None);
        }
        self.tasks.borrow_mut().reconstruct.done +=
            u64::from(segment.geometry.slot_blocks) * BLOCK as u64;
        true
    }

    async fn fill_column(
        self: &Rc<Self>,
        segment: &Rc<Segment>,
        index: usize,
        new: Column,
    ) -> bool {
        let member = self.core.member(new.device);
        let geometry = segment.geometry;
        let mut devices: Vec<u16> = segment.columns.borrow().iter().map(|c| c.device).collect();
        devices[index] = new.device;
        let header = header_bytes(&self.core.array, segment, index, new, devices);
        if member
            .write(member.geometry.slot_offset(new.slot), vec![header])
            .await
            .is_err()
        {
            self.core.report_failed(new.device);
            return false;
        }
        let recorded = segment.recorded.get();
        for course in 0..geometry.courses() {
            if course * geometry.course_strips() >= recorded {
                break;
            }
            let Some((mut strips, rows)) = self.compute_course(segment, index, course).await else {
                return false;
            };
            strips.push(summary_bytes(&self.core, segment, course, index, &rows));
            let offset = device_offset(
                &self.core,
                new,
                geometry.strip_block(course * geometry.course_strips()),
            );
            if member.write(offset, strips).await.is_err() {
                self.core.report_failed(new.device);
                return false;
            }
        }
        if member.flush().await.is_err() {
            self.core.report_failed(new.device);
            return false;
        }
        self.read_back(segment, index, new).await
    }

    /// Computes the strips of one course of a column, and their rows. Whole strips at once from the
    /// first K columns that can be read; what does not verify there is computed block by block.
    async fn compute_course(
        self: &Rc<Self>,
        segment: &Rc<Segment>,
        index: usize,
        course: u32,
    ) -> Option<(Vec<Slice>, Vec<Row>)> {
        let geometry = segment.geometry;
        let (k, column) = (
            usize::from(geometry.k),
            u16::try_from(index).expect("at most 256 columns"),
        );
        let first = course * geometry.course_strips();
        let blocks = geometry.strips_in(course) * geometry.strip_blocks;
        let owners = self.decode_owners(segment, course, index).await?;
        let mut others =
            (0..geometry.width()).filter(|c| *c != index && self.core.column_usable(segment, *c));
        let mut inputs: Vec<Option<Buf>> = (0..geometry.width()).map(|_| None).collect();
        let mut doubtful = BTreeSet::new();
        let mut have = 0;
        while have < k {
            let mut joins = Vec::new();
            for other in others.by_ref().take(k - have) {
                let (core, segment) = (self.core.clone(), segment.clone());
                joins.push((
                    other,
                    self.core
                        .rt
                        .spawn(async move { read_course(&core, &segment, course, other).await }),
                ));
            }
            if joins.is_empty() {
                return None;
            }
            for (other, join) in joins {
                if let Some((bytes, bad)) = join.await {
                    doubtful.extend(bad);
                    inputs[other] = Some(bytes);
                    have += 1;
                }
            }
        }
        let mut out = Buf::zeroed(blocks as usize * BLOCK);
        let strips: Vec<Option<&[u8]>> = inputs.iter().map(Option::as_deref).collect();
        let whole = self
            .core
            .code(segment)
            .decode(&strips, &[index], &mut [&mut out])
            .is_ok();
        let mut rows = Vec::new();
        for at in 0..blocks {
            let (stripe, within) = (
                first + at / geometry.strip_blocks,
                at % geometry.strip_blocks,
            );
            if !self.is_written(segment, stripe, index).await? {
                out[at as usize * BLOCK..(at as usize + 1) * BLOCK].fill(0);
                rows.push(Row::default());
                continue;
            }
            let bytes = &mut out[at as usize * BLOCK..(at as usize + 1) * BLOCK];
            if !whole || doubtful.contains(&at) {
                bytes.copy_from_slice(
                    &decode_column(&self.core, segment, stripe, index, within, true).await?,
                );
            }
            let owner_bytes = owners.get(at as usize)?.owner;
            let owner = Owner::from_bytes(&owner_bytes);
            let place = (stripe, column, within);
            let digest = strip_digest(&self.core, segment, place, &owner, bytes)?;
            rows.push(Row {
                digest,
                owner: owner_bytes,
            });
        }
        Some((vec![out.freeze()], rows))
    }

    /// Whether a lost column's strip of a stripe was written: a parity strip if any parity row of the
    /// stripe exists, a data strip if also its owners or a later strip's rows say so. A strip that was
    /// not written decodes to zeros, which is what it counts as; writing it as padding is as good.
    async fn is_written(
        self: &Rc<Self>,
        segment: &Rc<Segment>,
        stripe: u32,
        index: usize,
    ) -> Option<bool> {
        if stripe >= segment.recorded.get() {
            return Some(false);
        }
        if index >= usize::from(segment.geometry.k) || segment.geometry.m == 0 {
            // A void stripe has no rows anywhere.
            return self.stripe_has_rows(segment, stripe).await;
        }
        if let Some(used) = segment.short.borrow().get(&stripe) {
            return Some(index < usize::from(*used));
        }
        self.stripe_has_rows(segment, stripe).await
    }

    /// Whether any column's row of the stripe is not empty; `None` if no summary can be read.
    async fn stripe_has_rows(self: &Rc<Self>, segment: &Rc<Segment>, stripe: u32) -> Option<bool> {
        if let Some(rows) = segment.rows.borrow().get(&stripe) {
            return Some(rows.iter().any(|column| !column.is_empty()));
        }
        let course = segment.geometry.course_of(stripe);
        let at = stripe % segment.geometry.course_strips();
        let key = (segment.number, course);
        if let Some((cached, written)) = &*self.written_strips.borrow()
            && *cached == key
        {
            return Some(written.contains(&at));
        }
        let mut written = BTreeSet::new();
        let mut seen = false;
        // The first data strip and every parity strip are written with every stripe that is; at most M
        // of these M + 1 columns are missing.
        let parity = usize::from(segment.geometry.k)..segment.geometry.width();
        for column in std::iter::once(0).chain(parity) {
            if let Some(rows) = read_course_rows(&self.core, segment, course, column).await {
                seen = true;
                let strips = rows.chunks(segment.geometry.strip_blocks as usize);
                written.extend(
                    (0u32..)
                        .zip(strips)
                        .filter(|(_, r)| r[0].digest != [0; 16])
                        .map(|(strip, _)| strip),
                );
            }
        }
        if !seen {
            return None;
        }
        let answer = written.contains(&at);
        *self.written_strips.borrow_mut() = Some((key, written));
        Some(answer)
    }

    /// Reads a column that was just written and compares it with its own summary.
    async fn read_back(self: &Rc<Self>, segment: &Rc<Segment>, index: usize, new: Column) -> bool {
        let geometry = segment.geometry;
        let copy = Segment::new(
            segment.number,
            segment.kind,
            geometry,
            segment.code,
            {
                let mut columns = segment.columns.borrow().clone();
                columns[index] = new;
                columns
            },
            u32::MAX,
        );
        for course in 0..geometry.courses() {
            if course * geometry.course_strips() >= segment.recorded.get() {
                break;
            }
            match read_course(&self.core, &copy, course, index).await {
                Some((_, bad)) if bad.is_empty() => {}
                _ => return false,
            }
        }
        true
    }

    // ---- heal -------------------------------------------------------------------------------------

    async fn heal_forever(self: Rc<Self>) {
        while !self.core.closed.get() {
            self.core
                .heal_gate
                .until(|| !self.core.heals.borrow().is_empty() || self.core.closed.get())
                .await;
            let Some(next) = self.core.heals.borrow().front().copied() else {
                continue;
            };
            let healed = self.heal(next).await;
            self.core.heals.borrow_mut().pop_front();
            let mut tasks = self.tasks.borrow_mut();
            tasks.heal.found += 1;
            tasks.heal.healed += u64::from(healed);
            drop(tasks);
            self.core.progress.open();
        }
    }

    /// Rewrites one bad block with what the others say it is, if that can be verified; flushed and read
    /// back. If the device does not keep it, the column is reconstructed elsewhere.
    async fn heal(self: &Rc<Self>, (number, column, stripe, within): (u64, u16, u32, u32)) -> bool {
        let Some(segment) = self.core.segment(number) else {
            return false;
        };
        let index = usize::from(column);
        if !self.core.column_usable(&segment, index) || stripe >= segment.geometry.stripes() {
            return false;
        }
        let place = segment.columns.borrow()[index];
        self.heal_summary(&segment, index, stripe).await;
        if read_verified(&self.core, &segment, stripe, index, within)
            .await
            .is_some()
            && !self.map_disagrees(&segment, index, stripe, within).await
        {
            return true; // read again, it was fine
        }
        let Some(good) = decode_column(&self.core, &segment, stripe, index, within, true).await
        else {
            return false;
        };
        let offset = device_offset(
            &self.core,
            place,
            segment.geometry.strip_block(stripe) + within,
        );
        let member = self.core.member(place.device);
        if member.write(offset, vec![good.freeze()]).await.is_err() || member.flush().await.is_err()
        {
            self.core.report_failed(place.device);
            return false;
        }
        let kept = read_verified(&self.core, &segment, stripe, index, within)
            .await
            .is_some();
        if kept {
            let text = format!(
                "device {}: segment {number} column {column} stripe {stripe} block {within} was healed and read back",
                place.device
            );
            self.core.event("healed", Some(place.device), text);
        }
        kept
    }

    /// A block whose row agrees with it may still not be what the map says: row and block were lost
    /// together. Its owner's digest in the map decides; here the other columns do.
    async fn map_disagrees(
        self: &Rc<Self>,
        segment: &Rc<Segment>,
        index: usize,
        stripe: u32,
        within: u32,
    ) -> bool {
        let Some(mine) = read_verified(&self.core, segment, stripe, index, within).await else {
            return true;
        };
        match decode_column(&self.core, segment, stripe, index, within, true).await {
            Some(theirs) => *mine != *theirs,
            None => false,
        }
    }

    /// Rewrites a column's summary if it cannot be read, from decoded owners and verified blocks.
    async fn heal_summary(self: &Rc<Self>, segment: &Rc<Segment>, index: usize, stripe: u32) {
        let geometry = segment.geometry;
        let course = geometry.course_of(stripe);
        if !segment.sealed.get()
            || read_course_rows(&self.core, segment, course, index)
                .await
                .is_some()
        {
            return;
        }
        let place = segment.columns.borrow()[index];
        let column = u16::try_from(index).expect("at most 256 columns");
        let Some(owners) = self.decode_owners(segment, course, index).await else {
            return;
        };
        let mut rows: Vec<Row> = Vec::new();
        for at in 0..geometry.strips_in(course) * geometry.strip_blocks {
            let stripe = course * geometry.course_strips() + at / geometry.strip_blocks;
            let within = at % geometry.strip_blocks;
            let Some(true) = self.is_written(segment, stripe, index).await else {
                rows.push(Row::default());
                continue;
            };
            let Some(bytes) = decode_column(&self.core, segment, stripe, index, within, true).await
            else {
                return;
            };
            let owner_bytes = owners[at as usize].owner;
            let owner = Owner::from_bytes(&owner_bytes);
            let place = (stripe, column, within);
            let Some(digest) = strip_digest(&self.core, segment, place, &owner, &bytes) else {
                return;
            };
            rows.push(Row {
                digest,
                owner: owner_bytes,
            });
        }
        let summary = summary_bytes(&self.core, segment, course, index, &rows);
        let member = self.core.member(place.device);
        let offset = device_offset(&self.core, place, geometry.summary_block(course));
        if member.write(offset, vec![summary]).await.is_err() || member.flush().await.is_err() {
            self.core.report_failed(place.device);
            return;
        }
        let text = format!(
            "device {}: the summary of segment {} column {index} course {course} was healed",
            place.device, segment.number
        );
        self.core.event("healed", Some(place.device), text);
    }

    /// Whether nothing of these kinds runs or could make progress.
    pub(crate) fn is_idle(&self, kinds: &[&str]) -> bool {
        let wants = |kind: &str| kinds.is_empty() || kinds.contains(&kind);
        if wants("heal") && !self.core.heals.borrow().is_empty() {
            return false;
        }
        if wants("clean")
            && self.low_on_slots()
            && self.cleaner_can_gain()
            && self.tasks.borrow().clean.state == "running"
        {
            return false;
        }
        if wants("reconstruct") && self.tasks.borrow().reconstruct.state == "running" {
            return false;
        }
        if wants("reconstruct") && self.is_degraded() {
            if self.journal_is_short() || self.has_empty_short() {
                return false; // a commit is due that makes up for it
            }
            let tasks = self.tasks.borrow();
            let waits =
                tasks.reconstruct.state == "waiting" && self.core.failing.borrow().is_empty();
            return waits && (tasks.stuck || !self.reconstruct_could());
        }
        true
    }

    /// Whether some missing column has a device it could go to.
    fn reconstruct_could(&self) -> bool {
        let open = self
            .core
            .segments
            .borrow()
            .values()
            .any(|s| !s.sealed.get() && self.core.missing_columns(s) > 0);
        let free = self.to_reconstruct().iter().any(|(_, s)| {
            (0..s.geometry.width())
                .any(|c| !self.core.column_usable(s, c) && self.device_for(s, c).is_some())
        });
        open || free
    }
}
