//! Group commit: makes acknowledged writes durable.
//!
//! Invariants:
//! - One group commit runs at a time. What it names has been flushed; only then is it journalled, and only once
//!   that is durable are the shards told.
//! - A group commit that would fill the delta ring is journalled in parts: what a part has recorded can be merged,
//!   and the ring be cut, before the next.

use std::collections::BTreeSet;
use std::rc::Rc;

use ashlar_format::journal::{Entry, Ring, StripeEntry, entry_bytes};
use ashlar_format::slot::SegmentKind;
use ashlar_rt::{Sender, join_all};

use crate::home::Home;
use crate::home::parts::{Course, Rows, StripeSizes, cut, reach_for, rows_after};
use crate::phases::{Laps, Phase};
use crate::planted::{self, Bug};
use crate::protocol::{ClosedStripe, Collected, Named, Reach, Recorded, ShardMessage, ask};
use crate::segment::{Pinned, Segment, stripe};

/// 256ths of the delta ring that only checkpoints may fill.
const KEPT_FOR_CHECKPOINTS: u64 = 64;

/// What is journalled, and told to the shards, at once.
struct Part {
    /// Entries for the delta ring.
    deltas: Vec<Entry>,
    /// What of each shard they hold.
    told: Vec<Recorded>,
}

impl Home {
    /// Makes durable what shards have acknowledged, as far as `reach` says.
    pub async fn group_commit(self: &Rc<Self>, reach: Reach) {
        let _one = self.log.group_commit.lock().await;
        self.group_commit_locked(reach).await;
    }

    /// The same, by a caller that holds the group commit lock.
    pub(super) async fn group_commit_locked(self: &Rc<Self>, reach: Reach) {
        let mut laps = Laps::begin(&self.core.meters.phases, &self.core.rt);
        let written = self.core.meters.host.get();
        let usage = |ring| self.journal.usage(ring);
        let mut reach = reach_for(reach, usage(Ring::Delta), usage(Ring::Data));
        let mut collected = self.collect(reach).await;
        let data_bytes: usize = collected
            .iter()
            .flat_map(|c| &c.data)
            .map(|d| d.bytes.len() + 64)
            .sum();
        if data_bytes > 0 && !self.journal.has_room(Ring::Data, data_bytes, 0) {
            reach = Reach::Closed;
            collected = self.collect(reach).await;
        }
        laps.end(Phase::Collect);
        // Only then everything acknowledged before is in it.
        let whole = reach != Reach::Written;
        let empty = collected.iter().all(|c| {
            let unmapped = c.unmapped.is_empty() || planted::on(Bug::TrimNotJournalled);
            c.stripes.is_empty() && unmapped && c.data.is_empty()
        });
        if empty && self.log.moves() == 0 {
            if whole {
                self.log.recorded(written);
            }
            return;
        }
        if collected.iter().any(|c| !c.unmapped.is_empty()) {
            self.tasks.borrow_mut().unmapped += 1;
        }
        let mut opened = Vec::new();
        self.flush_collected(&collected, &mut opened).await;
        laps.end(Phase::Flush);
        let extra = self.log.take_moves();
        let mut parts = self.parts(collected, &opened, extra.clone());
        while !parts.is_empty() {
            for again in [false, true] {
                let bytes: usize = parts[0].deltas.iter().map(entry_bytes).sum();
                if bytes == 0
                    || self
                        .journal
                        .has_room(Ring::Delta, bytes, KEPT_FOR_CHECKPOINTS)
                {
                    break;
                }
                let pinned = self.retire_pinned();
                if again {
                    // What keeps the journal from being cut hangs on a stripe begun since the group commit was
                    // collected, and only the next one would bring that: it comes along (#143).
                    let collected = self.collect(Reach::Closed).await;
                    self.flush_collected(&collected, &mut opened).await;
                    parts = self.parts(collected, &opened, extra.clone());
                }
                // A checkpoint journals the rows of its own nodes: it must find room whenever it runs.
                self.release_rows(pinned, &parts).await;
                self.checkpoint(self.journal.next()).await;
            }
            self.record(parts.remove(0)).await;
            opened.clear(); // in the first part
        }
        self.log.moves_recorded(extra.len());
        if whole {
            self.log.recorded(written);
        }
        laps.end(Phase::Record);
        self.core.progress.open();
    }

    /// Flushes what a group commit has collected, and takes along the segments opened up to now.
    async fn flush_collected(&self, collected: &[Collected], opened: &mut Vec<Pinned>) {
        self.members_settled().await;
        let new = self.log.take_opened(SegmentKind::Data);
        headers_written(&new).await;
        opened.extend(new);
        self.flush_for(collected, opened).await;
    }

    /// Cuts a group commit into parts of at most a quarter of the delta ring. The stripes of a shard keep their order:
    /// of a block's versions none is recorded after a newer one.
    ///
    /// Crash argument: who waits for the group commit is answered after its last part. What was durable before stays so
    /// in between: where a part settles a record of data, what that held, or something newer, is in this part or
    /// in one before (`Shard::build`). What a void stripe held may lie anywhere: a group commit with one is not cut.
    /// Segments and unmapped ranges are journalled before anything that relies on them; an unmapped range is told to
    /// its shard with the part that journals it, so that no checkpoint between two parts cuts it off.
    fn parts(
        &self,
        mut collected: Vec<Collected>,
        opened: &[Pinned],
        extra: Vec<Entry>,
    ) -> Vec<Part> {
        let mut stripes = collected.iter().flat_map(|c| &c.stripes);
        let most = match stripes.any(|s| s.held && !s.written) {
            true => usize::MAX,
            false => 2 * self.journal.max_payload(Ring::Delta),
        };
        let shards = collected.len();
        let empty = |deltas| Part {
            deltas,
            told: (0..shards).map(|_| Recorded::default()).collect(),
        };
        let mut part = empty(open_entries(opened));
        // Unmapped ranges first: what an unmapped range of this group commit unmaps is not among the group commit's
        // live items.
        for (group_commit, first) in collected.iter_mut().zip(&mut part.told) {
            first.unmapped = std::mem::take(&mut group_commit.unmapped);
            part.deltas
                .extend(first.unmapped.iter().map(|h| Entry::Unmap {
                    tree: h.tree,
                    first: h.first,
                    count: h.count,
                    part: (h.part.of, h.part.rest),
                }));
        }
        let first: usize = part.deltas.iter().map(entry_bytes).sum();
        let (mut stripes, mut sizes, mut data) = (Vec::new(), Vec::new(), Vec::new());
        for group_commit in collected {
            let named = |closed: ClosedStripe| self.name(closed);
            let of_group_commit: Vec<(Entry, Named)> =
                group_commit.stripes.into_iter().map(named).collect();
            let bytes = of_group_commit.iter().map(|(entry, _)| entry_bytes(entry));
            sizes.push(StripeSizes {
                settling: group_commit.settling,
                bytes: bytes.collect(),
            });
            stripes.push(of_group_commit.into_iter());
            data.push(group_commit.data);
        }
        let mut parts = Vec::new();
        for shards in cut(first, &sizes, most) {
            for shard in shards {
                let next = stripes[shard].next();
                let (entry, named) = next.expect("it is cut as long as it is");
                part.deltas.push(entry);
                part.told[shard].stripes.push(named);
            }
            parts.push(std::mem::replace(&mut part, empty(Vec::new())));
        }
        let last = parts.last_mut().expect("there is one");
        last.deltas.extend(extra);
        for (told, data) in last.told.iter_mut().zip(data) {
            told.data = data;
        }
        parts
    }

    /// What a record says of a stripe, and what its shard is told.
    fn name(&self, closed: ClosedStripe) -> (Entry, Named) {
        let named = Named {
            stripe: (closed.entry.segment, closed.entry.stripe),
            written: closed.written,
            live: closed.live,
        };
        let entry = StripeEntry {
            birth: self.root.birth(),
            ..closed.entry
        };
        (Entry::Stripe(entry), named)
    }

    /// Journals one part, and tells the shards.
    async fn record(self: &Rc<Self>, part: Part) {
        self.journal.window.set_untold(Some(self.journal.next()));
        let first = self
            .journal_deltas(&part.deltas, false)
            .await
            .expect("only a commit gives up");
        self.journal_data(&part.told).await;
        self.note_recorded(&part.told, first);
        let tell = |(shard, told): (&Sender<ShardMessage>, Recorded)| {
            let shard = shard.clone();
            self.core.rt.spawn(async move {
                ask(&shard, |reply| ShardMessage::Recorded(told, first, reply)).await
            })
        };
        join_all(self.shards.iter().zip(part.told).map(tell)).await;
        self.journal.window.set_untold(None);
    }

    /// Data segments whose rows keep the journal from being cut: they take no more stripes.
    fn retire_pinned(&self) -> Vec<Pinned> {
        let pins = |s: &Segment| s.kind == SegmentKind::Data && s.rows_since.get().is_some();
        let pinned = self.core.pin_unsettled(pins);
        pinned.iter().for_each(|s| s.retired.set(true));
        pinned
    }

    /// Segments that keep the journal from being cut let go of it: the rows of their unfinished course, also of
    /// its stripes in this group commit, stand in its summary from here on. Else a group commit could wait for room
    /// that only its own record would make.
    ///
    /// Crash argument: every stripe of the group commit was written and flushed, so its rows are true whether or not it
    /// is ever recorded; the rows that the journal is cut of are in a flushed summary. Nobody else writes that
    /// summary meanwhile: every stripe of the course that was begun is in the group commit, and no more are.
    async fn release_rows(&self, pinned: Vec<Pinned>, parts: &[Part]) {
        for segment in pinned {
            let geometry = segment.geometry;
            let course = geometry.course_of(segment.recorded.get());
            let first = course * geometry.course_strips();
            let course = Course {
                first,
                end: first + geometry.strips_in(course),
                recorded: segment.recorded.get(),
                begun: segment.next_stripe.get(),
            };
            let named = parts.iter().flat_map(|p| &p.told).flat_map(|t| &t.stripes);
            let stripes = named.filter(|s| s.stripe.0 == segment.number);
            let released = match rows_after(course, stripes.map(|s| (s.stripe.1, s.written))) {
                Rows::Kept => false,
                Rows::InSummary => true,
                Rows::ToSummary(upto) => stripe::write_summary(&self.core, &segment, upto).await,
            };
            if released {
                segment.rows_since.set(None);
            }
        }
        self.members_settled().await;
    }

    async fn collect(&self, reach: Reach) -> Vec<Collected> {
        let mut joins = Vec::new();
        for shard in &self.shards {
            if planted::on(Bug::FlushOfOneShard) && !joins.is_empty() && reach != Reach::Closed {
                continue;
            }
            let shard = shard.clone();
            joins.push(self.core.rt.spawn(async move {
                ask(&shard, |reply| ShardMessage::Collect(reach, reply)).await
            }));
        }
        let collected = join_all(joins).await;
        collected
            .into_iter()
            .map(Option::unwrap_or_default)
            .collect()
    }

    /// Flushes every device that holds a column of the group commit's stripes or of a segment just opened.
    async fn flush_for(&self, collected: &[Collected], opened: &[Pinned]) {
        let mut devices: BTreeSet<u16> = BTreeSet::new();
        let stripes = collected.iter().flat_map(|c| &c.stripes);
        let segments = stripes.filter_map(|s| self.core.segment(s.entry.segment));
        for segment in segments.chain(opened.iter().cloned()) {
            let columns = segment.columns.borrow();
            let placed = columns.iter().filter(|c| c.is_placed());
            devices.extend(placed.map(|c| c.device));
        }
        if planted::on(Bug::StripeNotFlushed) {
            devices.clear();
        }
        self.flush(devices.into_iter().collect()).await;
    }

    /// Bookkeeping once a group commit is durable: stripes count as recorded, data records settle.
    fn note_recorded(&self, told: &[Recorded], sequence: u64) {
        for named in told.iter().flat_map(|t| &t.stripes) {
            let segment = self.core.segment(named.stripe.0);
            let segment = segment.expect("its shard holds it until it is told");
            self.stripe_recorded(&segment, named.stripe.1, sequence);
        }
    }
}

/// Waits until the headers of new segments are written, so that a flush covers them.
pub(crate) async fn headers_written(opened: &[Pinned]) {
    for segment in opened {
        if !planted::on(Bug::HeaderNotWaitedFor) {
            segment.headed().await;
        }
    }
}

/// `Open` entries of segments whose headers have been flushed.
pub(crate) fn open_entries(opened: &[Pinned]) -> Vec<Entry> {
    opened
        .iter()
        .map(|s| Entry::Open {
            segment: s.number,
            kind: s.kind,
            code: s.code,
            k: s.geometry.k,
            m: s.geometry.m,
            strip_blocks: s.geometry.strip_blocks,
            columns: s
                .columns
                .borrow()
                .iter()
                .map(|c| (c.device, c.slot))
                .collect(),
        })
        .collect()
}
