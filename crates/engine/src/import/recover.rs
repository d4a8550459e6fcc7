//! Steps 4 and 5 of an import, in the order of `import/mod.rs`: a root closes the old epoch, after which no other import
//! can read the journal differently; then deltas and blocks of the journal go to the shards.
//!
//! Invariants: nothing is allocated before the root that closes the old epoch is durable; no batch and no
//! commit runs before the shards have all that the journal had.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ashlar_format::SegmentGeometry;
use ashlar_format::journal::Entry;
use ashlar_format::partition::Partitioning;
use ashlar_format::root::MAX_EPOCH_BYTES;
use ashlar_format::summary::Owner;
use ashlar_rt::Buf;

use crate::error::Error;
use crate::home::Home;
use crate::import::assemble::Spread;
use crate::import::segments::PageCopy;
use crate::journal;
use crate::members::quorum::Quorum;
use crate::planted::{self, Bug};
use crate::protocol::{Adopted, Reach, ShardMessage, ask};
use crate::segment::read::summary_stands;
use crate::segment::{Column, Pinned, Segment};

/// A stand-in, outside the table, for a segment that was freed since the stripe was recorded.
fn gone_segment(stripe: &ashlar_format::journal::StripeEntry) -> Option<Pinned> {
    let geometry = SegmentGeometry {
        k: 1,
        m: 0,
        strip_blocks: 1,
        slot_blocks: 8,
    };
    let kind = ashlar_format::slot::SegmentKind::Data;
    (!stripe.rows.is_empty()).then(|| {
        Segment::create(
            stripe.segment,
            kind,
            geometry,
            0,
            vec![Column::MISSING],
            u32::MAX,
        )
    })
}

impl Home {
    /// Steps 4 and 5 of an import.
    pub(super) async fn recover(
        self: &Rc<Self>,
        spread: &Spread,
        replace: &[PageCopy],
        mut rest: Vec<(u64, Entry)>,
        mailbox: ashlar_rt::Mailbox<crate::protocol::HomeMessage>,
        last: Option<&journal::recover::Record>,
        degraded: bool,
    ) -> Result<(), Error> {
        self.check_room_for(&mut rest, degraded)?;
        self.quorum.set(Quorum::Needed);
        self.may_lose.set(degraded);
        // Crash argument: a daemon that died may have left in the devices' caches what this import has read. Of
        // what exists twice, as superblocks do, one copy is written while the other is all there is; and what is
        // told to clients from now on must not go again with the power.
        self.flush_members(self.core.online()).await;
        self.give_records(&rest);
        self.rewrite_pages(replace).await;
        if let Some(last) = last {
            self.journal.complete(last).await;
        }
        let mut root = self.root.borrow().clone();
        for index in &spread.missing {
            self.core.events.note(
                "device-missing",
                Some(*index),
                format!("device {index} is missing; the array goes on without it"),
            );
        }
        {
            let _log = self.log_lock.lock().await;
            self.settle_generation(spread, degraded).await?;
            root.number += 1;
            root.clean = false;
            let next = self.journal.next();
            self.close_epoch(&mut root, next);
            if planted::on(Bug::RecoveryNotCommitted) {
                *self.root.borrow_mut() = root;
            } else {
                self.publish(root).await;
            }
        }
        self.start(mailbox);
        let oldest = rest
            .iter()
            .filter(|(_, e)| matches!(e, Entry::Data(_)))
            .map(|(s, _)| *s)
            .min();
        self.window.set_recovering(oldest);
        let early = planted::on(Bug::BatchesBeforeAdoption);
        if early {
            self.start_batches();
        }
        self.unless_closed(self.replay(rest, degraded, early)).await;
        if self.core.closed.get() {
            return Err(Error::Stopped(self.stopped.borrow().clone()));
        }
        self.quorum.set(Quorum::Awaited);
        self.may_lose.set(false);
        Ok(())
    }

    /// Places and makes durable, on what is left, all that the journal had.
    async fn replay(self: &Rc<Self>, rest: Vec<(u64, Entry)>, degraded: bool, early: bool) {
        self.adopt_all(rest).await;
        if !early {
            self.start_batches();
        }
        for segment in self.core.pin_where(|s| !s.sealed.get()) {
            if segment.recorded.get() == segment.next_stripe.get()
                && segment.number < self.root.borrow().next_segment
            {
                // Where records are lost, summaries may say more than what is left of the journal: rows that were
                // written over would be gone for good (#147).
                if degraded && summary_stands(&self.core, &segment).await {
                    segment.rows.borrow_mut().clear();
                }
                self.seal(&segment).await;
            }
        }
        self.batch(Reach::Closed).await;
        self.window.set_recovering(None);
        self.settle_data();
        // Each import adds an epoch, and only commits drop them: an array that crashes again and again before
        // its first one would have more than a root can name.
        if self.root.borrow().epoch_bytes() * 2 > MAX_EPOCH_BYTES {
            self.commit(self.journal.next()).await;
        }
    }

    /// Blocks that only the journal has need a stripe that holds them. Where too few devices are left for one
    /// the array does not start without the operator's word, and with it gives up these blocks: what an
    /// earlier root says of them is then what is known.
    fn check_room_for(&self, rest: &mut Vec<(u64, Entry)>, degraded: bool) -> Result<(), Error> {
        if !self.too_few_for_blocks() {
            return Ok(());
        }
        // A block that a later record names in a stripe has its place.
        let mut placed: BTreeMap<(u32, u64), u64> = BTreeMap::new();
        for (sequence, entry) in rest.iter() {
            let Entry::Stripe(stripe) = entry else {
                continue;
            };
            let written = stripe.deltas.iter().filter(|d| d.from.is_none());
            for row in written.filter_map(|d| stripe.rows.get(d.block as usize)) {
                let owner = Owner::from_bytes(&row.owner);
                placed.insert((owner.tree, owner.address), *sequence);
            }
        }
        let mut given_up = 0;
        rest.retain(|(sequence, entry)| {
            let Entry::Data(data) = entry else {
                return true;
            };
            let there = self.catalog.borrow();
            let there = there.volumes.iter().any(|v| v.number == data.tree);
            let place = placed.get(&(data.tree, data.address));
            given_up += u64::from(there && place.is_none_or(|at| at < sequence));
            false
        });
        if given_up > 0 && !degraded {
            return Err(Error::NoPlace(given_up));
        }
        if given_up > 0 {
            self.core.events.note(
                "journal-lost",
                None,
                format!("{given_up} write(s) that only the journal had are given up: too few devices are left to hold them"),
            );
        }
        Ok(())
    }

    /// Has the generation that decides in effect, and then one without the members that are missing.
    async fn settle_generation(
        self: &Rc<Self>,
        spread: &Spread,
        degraded: bool,
    ) -> Result<(), Error> {
        let enough = |stored: usize, counted: usize| {
            if stored * 2 < counted && !degraded {
                return Err(Error::NoQuorum { stored, counted });
            }
            Ok(())
        };
        if spread.unsure || spread.behind {
            let before = usize::from(self.superblock.borrow().generation.before);
            let stored = self.store_superblocks().await;
            if spread.unsure {
                enough(stored, before)?;
            }
        }
        if !spread.missing.is_empty() {
            if degraded {
                self.quorum.set(Quorum::Forced);
            }
            let counted = self.core.online().len() + spread.missing.len();
            let stored = self.store_generation().await;
            enough(stored, counted)?;
        }
        Ok(())
    }

    /// Segments that only the journal names get liveness records; those of which the journal says more
    /// than their record are to be written anew.
    fn give_records(&self, rest: &[(u64, Entry)]) {
        let mut changed: BTreeSet<u64> = BTreeSet::new();
        for (_, entry) in rest {
            if let Entry::Stripe(stripe) = entry {
                changed.insert(stripe.segment);
            }
        }
        for segment in self.core.segments.borrow().values() {
            let unknown = segment.record.get() == u32::MAX;
            if unknown {
                segment.record.set(self.records.take(segment.number));
            }
            if unknown || changed.contains(&segment.number) {
                self.mark_header(segment);
            }
        }
    }

    /// Copies of table pages of a commit that never ended, of a history that was lost, or that cannot be read, are
    /// replaced by what the root says. That may be both of a page.
    ///
    /// Crash argument: what they claim does not count in this import, so others may be given these slots. Were such a
    /// copy read later, under a newer root or because the device can read it again, its claims would count (#192). So
    /// they are replaced, durably, before anything is allocated. Power that goes in between leaves some of them as they
    /// were, and the next import finds these.
    async fn rewrite_pages(&self, replace: &[PageCopy]) {
        let number = self.root.borrow().number;
        let mut written = BTreeSet::new();
        for (index, page, copy) in replace {
            let member = self.core.member(*index);
            let bytes = member.table_page(&self.core.array, *page, number, |_| true);
            let offset = member.geometry.page_offset(*page, u32::from(*copy));
            if member.write(offset, vec![bytes]).await.is_err() {
                self.core.report_failed(*index);
            }
            written.insert(*index);
        }
        self.flush_members(written.into_iter().collect()).await;
    }

    /// Hands the recovered deltas to their shards, in order.
    async fn adopt_all(self: &Rc<Self>, rest: Vec<(u64, Entry)>) {
        let pieces: BTreeMap<u32, u32> = self
            .catalog
            .borrow()
            .volumes
            .iter()
            .map(|v| (v.number, u32::from(v.block_blocks)))
            .collect();
        for (sequence, entry) in rest {
            match entry {
                Entry::Stripe(stripe) => {
                    // A segment freed since: its deltas are replaced by later ones, which may be moves
                    // that say where from.
                    let segment = self
                        .core
                        .segment(stripe.segment)
                        .or_else(|| gone_segment(&stripe));
                    let Some(segment) = segment else { continue };
                    for delta in &stripe.deltas {
                        let Some(row) = stripe.rows.get(delta.block as usize) else {
                            continue;
                        };
                        let owner = Owner::from_bytes(&row.owner);
                        let Some(pieces) = pieces.get(&owner.tree) else {
                            continue;
                        };
                        let block = stripe.first_block + delta.block;
                        let adopted = Adopted::Block {
                            tree: owner.tree,
                            address: owner.address,
                            segment: segment.clone(),
                            block,
                            digest: delta.digest,
                            algorithm: owner.algorithm,
                            birth: stripe.birth,
                            from: delta.from,
                            sequence,
                        };
                        self.adopt(*pieces, owner.address, adopted).await;
                    }
                }
                Entry::Data(data) => {
                    let Some(pieces) = pieces.get(&data.tree) else {
                        continue;
                    };
                    let bytes = Buf::copy_of(&data.bytes).freeze();
                    let adopted = Adopted::Data {
                        tree: data.tree,
                        address: data.address,
                        algorithm: data.algorithm,
                        digest: data.digest,
                        bytes,
                    };
                    self.adopt(*pieces, data.address, adopted).await;
                }
                Entry::Hole {
                    tree,
                    first,
                    count,
                    part,
                } => {
                    for shard in &self.shards {
                        let hole = Adopted::Holes {
                            tree,
                            first,
                            count,
                            part,
                            sequence,
                        };
                        ask(shard, |reply| ShardMessage::Adopt(hole, reply)).await;
                    }
                }
                _ => {}
            }
        }
    }

    async fn adopt(&self, pieces: u32, address: u64, adopted: Adopted) {
        let partition =
            Partitioning::new(self.superblock.borrow().partitions, pieces).partition(address);
        let shard = &self.shards[usize::from(partition) % self.shards.len()];
        ask(shard, |reply| ShardMessage::Adopt(adopted, reply)).await;
    }
}
