//! The part of a shard in the next journal record, and the effects once the record is durable.
//!
//! Invariants: stripes of a segment are recorded in order, without gaps; of a block's versions none is recorded after
//! a newer one; a stripe is waited for before it is named.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ashlar_format::BLOCK;
use ashlar_format::journal::{StripeDelta, StripeEntry};

use super::Shard;
use crate::map::delta::{Deltas, UnmappedRange};
use crate::planted::{self, Bug};
use crate::protocol::{ClosedStripe, Collected, Reach, Recorded, StripeId, Unfinished};
use crate::segment::stream::{Item, OpenStripe, Phase};

/// Where in a group commit what is recorded as data comes: after all stripes.
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
        for stream in [&self.hot, &self.rescue] {
            if let Some(mut stream) = stream.try_lock() {
                stream.prune();
            }
        }
        for stream in self.cold.borrow().values() {
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
                // What is moved is durable where it was: its stripes are closed when they are full.
                let moves = stripe.items.borrow().iter().any(|i| i.from.is_some());
                let quarter = filled * 4 >= stripe.segment.geometry.stripe_blocks();
                let worth = close || quarter && !moves;
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
            // What a void stripe held has been placed again, in a stripe that is looked at only now: also if
            // it was closed, and could not be written, while others were waited for.
            void |= open.iter().any(voided);
            if !void {
                return self.build(&required);
            }
        }
    }

    /// Builds a group commit from what is written now and the blocks `required` in addition.
    fn build(&self, required: &[(Item, Rc<OpenStripe>)]) -> Collected {
        let mut group_commit = self.in_order();
        let deltas = self.deltas.borrow();
        let unrecorded = deltas.unmapped.iter().filter(|h| h.recorded.is_none());
        group_commit.unmapped = unrecorded.copied().collect();
        for (item, stripe) in required {
            let in_group_commit = group_commit.stripes.iter().any(|s| Rc::ptr_eq(s, stripe));
            let known = deltas
                .get(item.tree, item.address, item.stamp)
                .is_some_and(|v| !v.journaled);
            if !in_group_commit && known && item.from.is_none() {
                let mut bytes = vec![0; item.pieces as usize * BLOCK];
                stripe.copy(item.block, item.pieces, &mut bytes);
                group_commit.data.push((*item, stripe.clone(), bytes));
            }
        }
        keep_newest(&mut group_commit, &deltas);
        group_commit.name()
    }

    /// The stripes that can be recorded now.
    fn in_order(&self) -> GroupCommit {
        let written = self.stripes.written.borrow();
        let facts = |s: &Rc<OpenStripe>| Facts {
            segment: s.segment.number,
            number: s.number,
            recorded: s.segment.recorded.get(),
            journaled: s.journaled.get(),
        };
        let (order, settling) = in_order(&written.iter().map(facts).collect::<Vec<_>>());
        GroupCommit {
            stripes: order.into_iter().map(|at| written[at].clone()).collect(),
            settling,
            ..GroupCommit::default()
        }
    }

    /// A record is durable.
    pub(super) fn recorded(&self, told: &Recorded, sequence: u64) {
        let mut deltas = self.deltas.borrow_mut();
        for named in &told.stripes {
            for item in &named.live {
                deltas.recorded(item.tree, item.address, item.stamp, sequence);
            }
        }
        let named: BTreeSet<StripeId> = told.stripes.iter().map(|n| n.stripe).collect();
        let mut written = self.stripes.written.borrow_mut();
        written.retain(|stripe| !named.contains(&stripe.id()));
        drop(written);
        for block in &told.data {
            self.stripes.journaled(block.stripe);
            deltas.journaled(block.item.tree, block.item.address, block.item.stamp);
        }
        for unmapped in &told.unmapped {
            deltas.unmapped_recorded(unmapped.stamp, sequence);
        }
        drop(deltas);
        if !planted::on(Bug::LostWakeup) {
            self.room.open();
        }
    }
}

/// A group commit as its shard has it.
#[derive(Default)]
struct GroupCommit {
    stripes: Vec<Rc<OpenStripe>>,
    /// So many stripes, the first ones, let go of the data ring.
    settling: usize,
    /// For each stripe the items that are to count, in order.
    live: Vec<Vec<Item>>,
    unmapped: Vec<UnmappedRange>,
    /// Blocks of unfinished stripes, with their bytes.
    data: Vec<(Item, Rc<OpenStripe>, Vec<u8>)>,
}

impl GroupCommit {
    /// The group commit as others see it.
    fn name(self) -> Collected {
        let closed = |(stripe, live): (Rc<OpenStripe>, Vec<Item>)| ClosedStripe {
            entry: stripe_entry(&stripe, &live),
            written: stripe.phase.get() == Phase::Written,
            held: !stripe.items.borrow().is_empty(),
            live,
        };
        let unfinished = |(item, stripe, bytes): (Item, Rc<OpenStripe>, Vec<u8>)| Unfinished {
            item,
            stripe: stripe.id(),
            place: stripe.segment.place(stripe.block_in_segment(item.block)),
            bytes,
        };
        Collected {
            stripes: self
                .stripes
                .into_iter()
                .zip(self.live)
                .map(closed)
                .collect(),
            settling: self.settling,
            unmapped: self.unmapped,
            data: self.data.into_iter().map(unfinished).collect(),
        }
    }
}

/// The journal entry of a closed stripe, with the deltas that count.
fn stripe_entry(stripe: &OpenStripe, live: &[Item]) -> StripeEntry {
    let written = stripe.written.borrow();
    let (used_strips, rows) = match (&*written, stripe.phase.get()) {
        (Some(written), Phase::Written) => (written.used_strips, written.rows.concat()),
        _ => (0, Vec::new()),
    };
    let delta = |item: &Item| StripeDelta {
        block: item.block,
        digest: item.digest,
        from: item.from,
    };
    StripeEntry {
        segment: stripe.segment.number,
        stripe: stripe.number,
        first_block: stripe.block_in_segment(0),
        used_strips,
        birth: 0,
        rows,
        deltas: live.iter().map(delta).collect(),
    }
}

/// A stripe that is closed, and written or void.
#[derive(Clone, Copy, Debug)]
struct Facts {
    segment: u64,
    /// Its number in the segment.
    number: u32,
    /// How many stripes of the segment are recorded.
    recorded: u32,
    /// Records of data hold some of its blocks.
    journaled: bool,
}

/// The stripes that can be recorded, by their place in the list: in order within each segment, without gaps. Those that
/// settle records of data come first, with those before them in their segments, since such a record keeps the journal
/// from being cut until its stripe is recorded (#179). How many these are is given as well.
fn in_order(stripes: &[Facts]) -> (Vec<usize>, usize) {
    let mut settling: BTreeMap<u64, u32> = BTreeMap::new();
    for stripe in stripes.iter().filter(|s| s.journaled) {
        let upto = settling.entry(stripe.segment).or_default();
        *upto = (*upto).max(stripe.number + 1);
    }
    let settles = |s: &Facts| {
        settling
            .get(&s.segment)
            .is_some_and(|upto| s.number < *upto)
    };
    let mut order: Vec<usize> = (0..stripes.len()).collect();
    order.sort_by_key(|at| {
        let stripe = &stripes[*at];
        (!settles(stripe), stripe.segment, stripe.number)
    });
    let mut expected: BTreeMap<u64, u32> = BTreeMap::new();
    order.retain(|at| {
        let stripe = &stripes[*at];
        let next = expected.entry(stripe.segment).or_insert(stripe.recorded);
        let follows = stripe.number == *next;
        *next += u32::from(follows);
        follows
    });
    let first = order.iter().filter(|at| settles(&stripes[**at])).count();
    (order, first)
}

/// A version of a block that a group commit could record.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// Volume and address.
    block: (u32, u64),
    /// The stamp of the version.
    stamp: u64,
    /// Where in the group commit it comes: its stripe, or [`AFTER_STRIPES`].
    at: usize,
    /// Whether deltas still hold it.
    known: bool,
    /// Whether a record of data holds it.
    journaled: bool,
    /// The newest stamp of the block that is durable, or an unmapped range of this group commit.
    floor: u64,
}

/// Which of these count: the newest of each block.
///
/// One counts if nothing newer of its block is durable, nor in this group commit. But one that a record of data
/// holds, which its stripe settles, counts also where the newer one comes only after that stripe: the group commit
/// may be cut between the two, and power go (#167).
fn choose(candidates: &[Candidate]) -> Vec<bool> {
    let mut newest: BTreeMap<(u32, u64), (u64, usize)> = BTreeMap::new();
    for candidate in candidates.iter().filter(|c| c.known) {
        let this = (candidate.stamp, candidate.at);
        let entry = newest.entry(candidate.block).or_insert(this);
        let older = planted::on(Bug::OlderVersionRecorded);
        *entry = if older {
            (*entry).min(this)
        } else {
            (*entry).max(this)
        };
    }
    let counts = |c: &Candidate| {
        let (in_group_commit, newest_at) = newest.get(&c.block).copied().unwrap_or((0, c.at));
        let settled = c.journaled && c.at < newest_at && !planted::on(Bug::SettledBeforeNewer);
        c.known && c.stamp >= c.floor && (c.stamp >= in_group_commit || settled)
    };
    candidates.iter().map(counts).collect()
}

/// Leaves the items in a group commit that count; none of a stripe that is void does.
fn keep_newest(group_commit: &mut GroupCommit, deltas: &Deltas) {
    let candidate = |item: &Item, at: usize| {
        let block = (item.tree, item.address);
        let version = deltas.get(item.tree, item.address, item.stamp);
        let unmapped = group_commit.unmapped.iter();
        let unmapped = unmapped.filter(|h| h.covers(item.tree, item.address));
        let unmapped = unmapped.map(|h| h.stamp).max();
        let unmapped = unmapped.filter(|_| !planted::on(Bug::TrimResurrects));
        Candidate {
            block,
            stamp: item.stamp,
            at,
            known: version.is_some(),
            journaled: version.is_some_and(|v| v.journaled),
            floor: deltas
                .durable_stamp(item.tree, item.address)
                .max(unmapped.unwrap_or(0)),
        }
    };
    let written = |s: &OpenStripe| s.phase.get() == Phase::Written;
    let mut items: Vec<Vec<Item>> = Vec::new();
    let mut candidates = Vec::new();
    for (stripe, at) in group_commit.stripes.iter().zip(0..) {
        items.push(match written(stripe) {
            true => stripe.items.borrow().clone(),
            false => Vec::new(),
        });
        candidates.extend(items[at].iter().map(|item| candidate(item, at)));
    }
    let data = group_commit.data.iter();
    candidates.extend(data.map(|(item, ..)| candidate(item, AFTER_STRIPES)));
    let mut kept = choose(&candidates).into_iter();
    for items in &mut items {
        items.retain(|_| kept.next().unwrap_or(false));
    }
    group_commit.live = items;
    group_commit.data.retain(|_| kept.next().unwrap_or(false));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_are_recorded_in_order_without_gaps() {
        // Segment, number, stripes of the segment that are recorded, whether records of data hold blocks of it.
        let t = |stripes: &[(u64, u32, u32, bool)], order: &[usize], first| {
            let closed = stripes
                .iter()
                .map(|(segment, number, recorded, journaled)| Facts {
                    segment: *segment,
                    number: *number,
                    recorded: *recorded,
                    journaled: *journaled,
                });
            let found = in_order(&closed.collect::<Vec<_>>());
            assert_eq!(found, (order.to_vec(), first), "{stripes:?}");
        };
        t(&[], &[], 0);
        t(&[(1, 0, 0, false)], &[0], 0);
        t(&[(1, 1, 0, false), (1, 0, 0, false)], &[1, 0], 0);
        // Stripe 1 is being written still.
        t(&[(1, 0, 0, false), (1, 2, 0, false)], &[0], 0);
        t(&[(1, 4, 4, false), (1, 5, 4, false)], &[0, 1], 0);
        t(&[(2, 0, 0, false), (1, 0, 0, false)], &[1, 0], 0);
        // Data of segment 2 is journalled: its stripes up to that one come first.
        t(&[(1, 0, 0, false), (2, 0, 0, true)], &[1, 0], 1);
        let before = [
            (1, 0, 0, false),
            (2, 1, 0, true),
            (2, 0, 0, false),
            (2, 2, 0, false),
        ];
        t(&before, &[2, 1, 0, 3], 2);
        // It settles nothing yet: the stripe before it is being written still.
        t(&[(1, 0, 0, false), (2, 1, 0, true)], &[0], 0);
    }

    #[test]
    fn of_a_block_the_newest_version_counts() {
        // Block, stamp, place in the group commit, whether a record of data holds it, the newest durable stamp.
        let t = |versions: &[(u64, u64, usize, bool, u64)], expected: &[bool]| {
            let versions = versions.iter();
            let candidates: Vec<Candidate> = versions
                .map(|(block, stamp, at, journaled, floor)| Candidate {
                    block: (1, *block),
                    stamp: *stamp,
                    at: *at,
                    known: true,
                    journaled: *journaled,
                    floor: *floor,
                })
                .collect();
            assert_eq!(choose(&candidates), expected, "{candidates:?}");
        };
        t(&[(5, 10, 0, false, 0)], &[true]);
        t(&[(5, 10, 0, false, 10)], &[true]); // it is the one that is durable
        t(&[(5, 10, 0, false, 11)], &[false]);
        t(&[(5, 10, 0, false, 0), (6, 11, 1, false, 0)], &[true, true]);
        t(
            &[(5, 10, 0, false, 0), (5, 11, 1, false, 0)],
            &[false, true],
        );
        t(
            &[(5, 11, 0, false, 0), (5, 10, 1, false, 0)],
            &[true, false],
        );
        t(
            &[(5, 10, 0, false, 0), (5, 11, AFTER_STRIPES, false, 0)],
            &[false, true],
        );
        // The older is held by a record of data, and its stripe may be recorded alone.
        t(
            &[(5, 10, 0, true, 10), (5, 11, 1, false, 10)],
            &[true, true],
        );
        t(
            &[(5, 11, 0, false, 10), (5, 10, 1, true, 10)],
            &[true, false],
        );
        t(
            &[(5, 10, 0, true, 10), (5, 11, 0, false, 10)],
            &[false, true],
        );
        t(
            &[(5, 10, 0, true, 11), (5, 11, 1, true, 11)],
            &[false, true],
        );
        let gone = Candidate {
            block: (1, 5),
            stamp: 12,
            at: 0,
            known: false,
            journaled: false,
            floor: 0,
        };
        let there = Candidate {
            stamp: 11,
            known: true,
            ..gone
        };
        assert_eq!(choose(&[gone, there]), [false, true], "one was overwritten");
    }
}
