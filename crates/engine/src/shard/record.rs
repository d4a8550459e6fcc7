//! What a shard has for the next record, and what follows once it is durable.
//!
//! Invariants: stripes of a segment are recorded in order, without gaps; of a block's versions none is recorded after
//! a newer one; a stripe is waited for before it is named.

use std::collections::BTreeMap;
use std::rc::Rc;

use ashlar_format::BLOCK;

use super::Shard;
use crate::map::delta::Deltas;
use crate::planted::{self, Bug};
use crate::protocol::{Collected, Reach};
use crate::segment::stream::{Item, OpenStripe, Phase};

/// Where in a batch what is recorded as data comes: after all stripes.
const AFTER_STRIPES: usize = usize::MAX;

impl Shard {
    /// Everything that is to become durable now: stripes closed up to now are waited for; blocks of
    /// unfinished stripes are given as data, unless [`Reach::Closed`] or a quarter of a stripe makes it worth
    /// closing them. With [`Reach::Written`] only the stripes that are written.
    ///
    /// Crash argument of the latter: it records less, in the same order. But a stripe that could not be written is
    /// recorded empty only together with what it held (`place_anew`), so then everything is waited for.
    pub(super) async fn collect(self: &Rc<Self>, reach: Reach) -> Collected {
        // Streams that nobody writes to let go of segments that take no more.
        for stream in [&self.hot, &self.cold, &self.rescue] {
            if let Some(mut stream) = stream.try_lock() {
                stream.prune();
            }
        }
        let voided =
            |s: &Rc<OpenStripe>| s.phase.get() == Phase::Void && !s.items.borrow().is_empty();
        if reach == Reach::Written && !self.stripes.written.borrow().iter().any(voided) {
            return self.build(&[]);
        }
        let close = reach == Reach::Closed;
        loop {
            // Without the streams' locks: a writer that waits for space holds one.
            let filling: Vec<Rc<OpenStripe>> = self.stripes.filling.borrow().clone();
            for stripe in filling {
                let filled = stripe.filled();
                let worth = close || filled * 4 >= stripe.segment.geometry.stripe_blocks();
                // A stripe that took nothing must not keep its segment from being sealed.
                if filled > 0 && worth || filled == 0 && stripe.segment.retired.get() {
                    self.close_stripe(&stripe);
                }
            }
            let pending: Vec<Rc<OpenStripe>> = self.stripes.writing.borrow().clone();
            // With every stripe closed there is nothing left to be given as data.
            let open: Vec<Rc<OpenStripe>> = self.stripes.filling.borrow().clone();
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
                void |= voided(&stripe);
            }
            // What a void stripe held has been placed anew, in a stripe that is looked at only now: also if
            // it was closed, and could not be written, while others were waited for.
            void |= open.iter().any(voided);
            if !void {
                return self.build(&required);
            }
        }
    }

    /// Builds a batch from what is written now and the blocks `required` in addition.
    fn build(&self, required: &[(Item, Rc<OpenStripe>)]) -> Collected {
        let mut batch = self.in_order();
        let deltas = self.deltas.borrow();
        let unrecorded = deltas.holes.iter().filter(|h| h.recorded.is_none());
        batch.holes = unrecorded.copied().collect();
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
        keep_newest(&mut batch, &deltas);
        batch
    }

    /// The stripes that can be recorded now: in order within each segment.
    fn in_order(&self) -> Collected {
        let mut batch = Collected::default();
        let mut written = self.stripes.written.borrow().clone();
        // What a record of data holds keeps the journal from being cut until its stripe is recorded: these come first,
        // with those before them in their segments (#179).
        let mut settling: BTreeMap<u64, u32> = BTreeMap::new();
        for stripe in written.iter().filter(|s| s.journaled.get()) {
            let upto = settling.entry(stripe.segment.number).or_default();
            *upto = (*upto).max(stripe.number + 1);
        }
        let settles = |s: &OpenStripe| {
            let upto = settling.get(&s.segment.number);
            upto.is_some_and(|upto| s.number < *upto)
        };
        written.sort_by_key(|s| (!settles(s), s.segment.number, s.number));
        let mut expected: BTreeMap<u64, u32> = BTreeMap::new();
        for stripe in written {
            let next = expected
                .entry(stripe.segment.number)
                .or_insert(stripe.segment.recorded.get());
            if stripe.number == *next {
                *next += 1;
                batch.settling += usize::from(settles(&stripe));
                batch.stripes.push(stripe);
            }
        }
        batch
    }

    /// The batch is durable.
    pub(super) fn recorded(&self, batch: &Collected, sequence: u64) {
        let mut deltas = self.deltas.borrow_mut();
        for (stripe, live) in batch.stripes.iter().zip(&batch.live) {
            for item in live {
                deltas.recorded(item.tree, item.address, item.stamp, sequence);
            }
            self.stripes
                .written
                .borrow_mut()
                .retain(|s| !Rc::ptr_eq(s, stripe));
        }
        for (item, stripe, _) in &batch.data {
            stripe.journaled.set(true);
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

/// Chooses the items of a batch that count: the newest of each block.
///
/// An item counts if nothing newer of its block is durable, nor in this batch. But one that a record of data
/// holds, which its stripe settles, counts also where the newer one comes only after that stripe: the batch
/// may be cut between the two, and power go (#167).
fn keep_newest(batch: &mut Collected, deltas: &Deltas) {
    let version = |item: &Item| deltas.get(item.tree, item.address, item.stamp);
    let mut newest: BTreeMap<(u32, u64), (u64, usize)> = BTreeMap::new();
    let mut note = |item: &Item, at: usize| {
        if version(item).is_some() {
            let this = (item.stamp, at);
            let entry = newest.entry((item.tree, item.address)).or_insert(this);
            let older = planted::on(Bug::OlderVersionRecorded);
            *entry = if older {
                (*entry).min(this)
            } else {
                (*entry).max(this)
            };
        }
    };
    let written = |s: &OpenStripe| s.phase.get() == Phase::Written;
    for (stripe, at) in batch.stripes.iter().zip(0..).filter(|(s, _)| written(s)) {
        stripe.items.borrow().iter().for_each(|i| note(i, at));
    }
    batch.data.iter().for_each(|d| note(&d.0, AFTER_STRIPES));
    let counts = |item: &Item, at: usize| {
        let newest = newest.get(&(item.tree, item.address)).copied();
        let (in_batch, newest_at) = newest.unwrap_or((0, at));
        let hole = batch
            .holes
            .iter()
            .filter(|h| h.covers(item.tree, item.address))
            .map(|h| h.stamp)
            .max()
            .filter(|_| !planted::on(Bug::TrimResurrects))
            .unwrap_or(0);
        let durable = deltas.durable_stamp(item.tree, item.address);
        version(item).is_some_and(|version| {
            let settled =
                version.journaled && at < newest_at && !planted::on(Bug::SettledBeforeNewer);
            item.stamp >= hole.max(durable) && (item.stamp >= in_batch || settled)
        })
    };
    batch.live = (batch.stripes.iter().zip(0..))
        .map(|(stripe, at)| {
            let items = stripe.items.borrow();
            let live = items.iter().filter(|i| written(stripe) && counts(i, at));
            live.copied().collect()
        })
        .collect();
    let mut kept = (batch.data.iter())
        .map(|d| counts(&d.0, AFTER_STRIPES))
        .collect::<Vec<_>>()
        .into_iter();
    batch.data.retain(|_| kept.next().unwrap_or(false));
}
