//! Steps 4 and 5 of an import, in the order of `import/mod.rs`: a root closes the old epoch, after which no other
//! import can read the journal differently; then deltas and blocks of the journal go to the shards.
//!
//! Invariants: nothing is allocated before the root that closes the old epoch is durable; no group commit and no
//! checkpoint runs before the shards have all that the journal had.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ashlar_format::journal::Entry;
use ashlar_format::partition::Partitioning;
use ashlar_format::root::MAX_EPOCH_BYTES;
use ashlar_format::summary::Owner;
use ashlar_rt::Buf;

use crate::counters::add;
use crate::error::Error;
use crate::home::Home;
use crate::home::beat::Look;
use crate::import::assemble::Spread;
use crate::import::newest_root;
use crate::import::segments::PageCopy;
use crate::import::watch::{Place, watch};
use crate::journal;
use crate::members::quorum::Quorum;
use crate::options::{Import, Watched};
use crate::planted::{self, Bug};
use crate::protocol::{Adopted, Reach, ShardMessage, ask};
use crate::segment::read::summary_stands;

/// Makes the array this host's, before anything else is written. Beats that were not seen before are watched, too.
///
/// # Errors
/// Another host uses it, or has used it since its root was read.
pub(super) async fn claim(
    home: &Rc<Home>,
    spread: &Spread,
    mut watched: Watched,
    options: &Import,
) -> Result<(), Error> {
    let (core, array) = (&home.core, &home.core.identity.array);
    let has_beat = home.superblock.borrow().has_beat();
    let Some(identity) = core.beat.identity().filter(|_| has_beat) else {
        return Ok(());
    };
    // Those that are not here may let another host in until the members have changed.
    let absent = spread.missing.iter().filter(|_| !options.degraded);
    core.beat
        .set_voters([core.counted(), absent.copied().collect()].concat());
    let (looked, look) = loop {
        for member in &core.members {
            let failed = watched
                .seen
                .get(&member.index)
                .map_or(0, |seen| seen.failed);
            add(&member.counters.read_errors, failed);
        }
        let looked = core.beat.fence.now();
        match home.look_again(&mut watched.seen).await {
            Look::New => {}
            look => break (looked, look),
        }
        let place = |index: u16| {
            let member = core.member(index);
            let (device, offset) = (member.held()?, member.geometry().beat_offset());
            Some(Place {
                index,
                device,
                offset,
            })
        };
        let places = core.readable().into_iter().filter_map(place).collect();
        watched = watch(&core.rt, *array, places, identity, options).await?;
    };
    core.beat.has_seen(&watched.seen);
    if options.read_only {
        return Ok(());
    }
    let alone = watched.alone && look == Look::Own;
    home.claim_array(alone.then_some(looked)).await?;
    let newest = newest_root(core).await;
    let found = home.root.borrow().order();
    match newest.is_some_and(|(root, _)| root.order() == found) {
        true => Ok(()),
        false => Err(Error::UsedMeanwhile),
    }
}

/// Steps 4 and 5 of an import.
pub(super) async fn recover(
    home: &Rc<Home>,
    spread: &Spread,
    replace: &[PageCopy],
    mut rest: Vec<(u64, Entry)>,
    mailbox: ashlar_rt::Mailbox<crate::protocol::HomeMessage>,
    last: Option<&journal::recover::Record>,
    degraded: bool,
) -> Result<(), Error> {
    check_room_for(home, &mut rest, degraded)?;
    // The operator's word holds for devices that fail on the way as it does for those that are missing.
    home.agreement.set_quorum(match degraded {
        true => Quorum::Forced,
        false => Quorum::Needed,
    });
    home.agreement.set_may_lose(degraded);
    // Crash argument: a daemon that died may have left in the devices' caches what this import has read. Of
    // what exists twice, as superblocks do, one copy is written while the other is all there is; and what is
    // told to clients from now on must not go again with the power.
    home.flush_members(home.core.written()).await;
    give_records(home, &rest);
    rewrite_pages(home, replace).await;
    if let Some(last) = last {
        home.journal.complete(last).await;
    }
    let mut root = home.root.borrow().clone();
    for index in &spread.missing {
        home.core.events.note(
            "device-missing",
            Some(*index),
            format!(
                "device {index} is missing; the array goes on without it, and takes it in again when it answers; its \
                 data is rebuilt after rebuild.delay: see 'ashlar status'"
            ),
        );
    }
    {
        let _log = home.log.turn.lock().await;
        settle_generation(home, spread, degraded).await?;
        root.number += 1;
        root.clean = false;
        let next = home.journal.next();
        home.close_epoch(&mut root, next);
        if planted::on(Bug::RecoveryNotCheckpointed) {
            home.root.set(root);
        } else {
            home.publish(root).await;
        }
        home.rename_spares(&spread.renamed).await;
    }
    home.start(mailbox);
    let oldest = rest
        .iter()
        .filter(|(_, e)| matches!(e, Entry::Data(_)))
        .map(|(s, _)| *s)
        .min();
    home.journal.window.set_recovering(oldest);
    let early = planted::on(Bug::GroupCommitsBeforeAdoption);
    if early {
        home.start_group_commits();
    }
    home.unless_closed(replay(home, rest, degraded, early))
        .await;
    if home.core.closed.get() {
        return Err(Error::Stopped(home.core.closed.why()));
    }
    home.agreement.set_quorum(Quorum::Awaited);
    home.agreement.set_may_lose(false);
    Ok(())
}

/// Places and makes durable, on what is left, all that the journal had.
async fn replay(home: &Rc<Home>, rest: Vec<(u64, Entry)>, degraded: bool, early: bool) {
    adopt_all(home, rest).await;
    if !early {
        home.start_group_commits();
    }
    for segment in home.core.pin_where(|s| !s.sealed.get()) {
        if segment.recorded.get() == segment.next_stripe.get()
            && segment.number < home.root.borrow().next_segment
        {
            // Where records are lost, summaries may say more than what is left of the journal: rows that were
            // written over would be gone for good (#147).
            if degraded && summary_stands(&home.core, &segment).await {
                segment.rows.borrow_mut().clear();
            }
            home.seal(&segment).await;
        }
    }
    home.group_commit(Reach::Closed).await;
    home.journal.window.set_recovering(None);
    home.settle_data();
    // Each import adds an epoch, and only checkpoints drop them: an array that crashes again and again before
    // its first one would have more than a root can name.
    if home.root.borrow().epoch_bytes() * 2 > MAX_EPOCH_BYTES {
        home.checkpoint(home.journal.next()).await;
    }
}

/// Blocks that only the journal has need a stripe that holds them. Where too few devices are left for one
/// the array does not start without the operator's word, and with it gives up these blocks: what an
/// earlier root says of them is then what is known.
fn check_room_for(
    home: &Rc<Home>,
    rest: &mut Vec<(u64, Entry)>,
    degraded: bool,
) -> Result<(), Error> {
    if !home.too_few_for_blocks() {
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
        let there = home.catalog.borrow();
        let there = there.volumes.iter().any(|v| v.number == data.tree);
        let place = placed.get(&(data.tree, data.address));
        given_up += u64::from(there && place.is_none_or(|at| at < sequence));
        false
    });
    if given_up > 0 && !degraded {
        return Err(Error::NoPlace(given_up));
    }
    if given_up > 0 {
        home.core.events.note(
            "journal-lost",
            None,
            format!("{given_up} write(s) in the journal are lost: too few devices are left to hold them \
                (--degraded was given)"),
        );
    }
    Ok(())
}

/// Has the generation that decides in effect, with both copies of each superblock, and then one without the members that
/// are missing. Also if a device was growing when the power went: its row may say other slots than it has, or the other way round.
async fn settle_generation(home: &Rc<Home>, spread: &Spread, degraded: bool) -> Result<(), Error> {
    let enough = |stored: usize, counted: usize| {
        if stored * 2 < counted && !degraded {
            return Err(Error::NoQuorum { stored, counted });
        }
        Ok(())
    };
    if spread.unsure || spread.behind {
        let before = usize::from(home.superblock.borrow().generation.before);
        let stored = home.store_superblocks().await;
        if spread.unsure {
            enough(stored, before)?;
        }
    }
    home.complete_superblocks(&spread.lone).await;
    let grew = {
        let superblock = home.superblock.borrow();
        let rows = superblock.members.iter().zip(&home.core.members);
        let mut here = rows.filter(|(_, member)| member.is_written());
        here.any(|(row, member)| row.slots != member.geometry().slots)
    };
    if grew || !spread.missing.is_empty() {
        let counted = home.core.counted().len() + spread.missing.len();
        let stored = home.store_generation().await.stored;
        enough(stored, counted)?;
    }
    Ok(())
}

/// Segments that only the journal names get liveness records; those of which the journal says more
/// than their record are to be rewritten.
fn give_records(home: &Rc<Home>, rest: &[(u64, Entry)]) {
    let mut changed: BTreeSet<u64> = BTreeSet::new();
    for (_, entry) in rest {
        if let Entry::Stripe(stripe) = entry {
            changed.insert(stripe.segment);
        }
    }
    for segment in home.core.segments.borrow().values() {
        let unknown = segment.record.get() == u32::MAX;
        if unknown {
            segment
                .record
                .set(home.liveness.take_record(segment.number));
        }
        if unknown || changed.contains(&segment.number) {
            home.liveness.mark_header(segment);
        }
    }
}

/// Copies of table pages of a checkpoint that never ended, of a history that was lost, or that cannot be read, are
/// replaced by what the root says. That may be both of a page.
///
/// Crash argument: what they claim does not count in this import, so others may be given these slots. Were such a
/// copy read later, under a newer root or because the device can read it again, its claims would count (#192). So
/// they are replaced, durably, before anything is allocated. Power that goes in between leaves some of them as they
/// were, and the next import finds these.
async fn rewrite_pages(home: &Rc<Home>, replace: &[PageCopy]) {
    let checkpoint = home.root.borrow().checkpoint;
    let mut written = BTreeSet::new();
    for (index, page, copy) in replace {
        let member = home.core.member(*index);
        let bytes = member.table_page(&home.core.identity.array, *page, checkpoint, |_| true);
        let offset = member.geometry().page_offset(*page, u32::from(*copy));
        if member.write(offset, vec![bytes]).await.is_err() {
            home.core.report_failed(*index);
        }
        written.insert(*index);
    }
    home.flush_members(written.into_iter().collect()).await;
}

/// Hands the recovered deltas to their shards, in order.
async fn adopt_all(home: &Rc<Home>, rest: Vec<(u64, Entry)>) {
    let pieces: BTreeMap<u32, u32> = home
        .catalog
        .borrow()
        .volumes
        .iter()
        .map(|v| (v.number, u32::from(v.block_blocks)))
        .collect();
    for (sequence, entry) in rest {
        match entry {
            Entry::Stripe(stripe) => {
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
                        segment: stripe.segment,
                        block,
                        digest: delta.digest,
                        algorithm: owner.algorithm,
                        birth: stripe.birth,
                        from: delta.from,
                        sequence,
                    };
                    adopt(home, *pieces, owner.address, adopted).await;
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
                adopt(home, *pieces, data.address, adopted).await;
            }
            Entry::Unmap {
                tree,
                first,
                count,
                part,
            } => {
                for shard in &home.shards {
                    let unmapped = Adopted::Unmapped {
                        tree,
                        first,
                        count,
                        part,
                        sequence,
                    };
                    ask(shard, |reply| ShardMessage::Adopt(unmapped, reply)).await;
                }
            }
            _ => {}
        }
    }
}

async fn adopt(home: &Rc<Home>, pieces: u32, address: u64, adopted: Adopted) {
    let partition =
        Partitioning::new(home.superblock.borrow().partitions, pieces).partition(address);
    let shard = &home.shards[usize::from(partition) % home.shards.len()];
    ask(shard, |reply| ShardMessage::Adopt(adopted, reply)).await;
}
