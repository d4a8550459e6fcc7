//! Members that come back, and devices that take the place of others: taken in while the array runs.
//!
//! Order of a take-in, and why:
//! 1. Every epoch that the durable root names excludes the member. Records name places only on members that are read
//!    when they are written (`home/records.rs`): so none that a replay may read says where a column lies on it. And
//!    nothing of the journal is looked for there.
//! 2. Nothing that was sent to it before it left is still under way.
//! 3. Its slot table and the headers of its slots are read; what counts is for [`crate::segment::behind`] to say. Its
//!    table is written anew, with what counts and nothing else, and flushed.
//! 4. A new generation counts it, an epoch of the journal begins with it, a root says so.
//! 5. Only now it is read, and gets new columns.
//!
//! Crash argument: until 4 its superblock is of an older generation than the newest root, so an import takes it for one
//! that is out; a take-in that finds the table written anew already takes none of it, since its number is above the one
//! that the member left at. A crash in 4 leaves a generation that counts it: if the device holds that as well, its
//! table was written before; if it does not, its superblock is older than the newest root, and it is out. One that
//! takes the place of another and fails in 4 leaves that its row (`members/coming.rs`). No checkpoint runs in 4 and 5:
//! none writes pages of a table that is not the member's. A segment may be freed, or get the column elsewhere, after 3:
//! then its slot here is given up by the next checkpoint, as that of a column that has moved; until that, a table that
//! names it says nothing that counts, since a segment's number is never used again and the column elsewhere is named by
//! a table or record of a counted member.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ashlar_format::root::MAX_EPOCH_BYTES;
use ashlar_format::slot::{ENTRIES_PER_PAGE, SlotEntry, TablePage};
use ashlar_format::superblock::MemberState;
use ashlar_rt::{MILLISECOND, Nanos, SECOND, join_all};
use ashlar_space::topology::Area;

use crate::error::Error;
use crate::home::Home;
use crate::home::generation::Agreed;
use crate::home::space::area_of;
use crate::members::Member;
use crate::members::arrival::{Arrival, Brought};
use crate::members::slots::choose_copy;
use crate::planted::{self, Bug};
use crate::protocol::Reach;
use crate::segment::behind::{Known, bound_of, is_whole};
use crate::segment::{Column, Pinned, Segment};

/// How long a take-in waits for the journal to need nothing of a member, and for what was sent to it.
const PATIENCE: Nanos = 120 * SECOND;

/// Headers of slots that are read at once.
const AT_ONCE: usize = 32;

/// What a take-in came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Columns that the member holds, and that count again.
    pub kept: usize,
    /// Segments whose columns it held, or should hold, and that are computed anew.
    pub lacking: usize,
}

/// Columns that count again, by slot.
type Claims = BTreeMap<u32, SlotEntry>;

impl Home {
    /// Whether what lies on a member that is out of use is not computed anew yet.
    pub(super) fn is_awaited(&self, member: &Member) -> bool {
        match member.state() {
            MemberState::Offline => true,
            MemberState::Stale => self.core.rt.now() < member.left_at() + self.rebuild_delay(),
            _ => false,
        }
    }

    /// Notes which members are expected back. If others are than before, the work that is left is another.
    pub(crate) fn look_who_is_awaited(&self) {
        let members = self.core.members.iter().filter(|m| self.is_awaited(m));
        let now: Vec<u16> = members.map(|m| m.index).collect();
        if *self.space.awaited.borrow() != now {
            self.space.awaited.replace(now);
            self.try_again();
            self.look_at_all();
            self.demand.clean();
        }
    }

    /// Whether work on missing columns begins by itself after a time. Once the time has passed it still comes until
    /// [`Home::look_who_is_awaited`] has seen that: only then work is looked for.
    pub(crate) fn rebuild_comes(&self) -> bool {
        let noted = self.space.awaited.borrow();
        let waits = |m: &Member| self.is_awaited(m) || noted.contains(&m.index);
        let stale = |m: &&Member| m.state() == MemberState::Stale;
        self.core.members.iter().filter(stale).any(waits)
    }

    /// Why missing columns are not computed anew, if that is because a member is expected back.
    pub(crate) fn why_awaiting(&self) -> Option<&'static str> {
        let offline = |m: &Member| m.state() == MemberState::Offline;
        if self.rebuild_comes() && !self.slow.all().is_empty() {
            return Some(
                "a device is slow: it is taken in again once it is as fast as the others, its data is rebuilt once \
                 rebuild.delay has passed",
            );
        }
        if self.rebuild_comes() {
            return Some(
                "a device is missing: its data is rebuilt once rebuild.delay has passed, or at once after 'ashlar fail'",
            );
        }
        self.core.members.iter().any(offline).then_some(
            "a device is offline: 'ashlar online' takes it in again, 'ashlar fail' has its data rebuilt",
        )
    }

    /// Whether every epoch that the durable root names excludes a member.
    pub(super) fn journal_is_free_of(&self, index: u16) -> bool {
        let root = self.root.borrow();
        root.epochs.iter().all(|e| e.excluded.contains(&index))
    }

    /// Whether a root has room for what changes of members add to it: each adds an epoch, which only merges drop.
    fn has_room_for_epochs(&self) -> bool {
        let root = self.root.borrow();
        root.epochs.len() <= 2 || 2 * root.epoch_bytes() <= MAX_EPOCH_BYTES
    }

    /// Merges until a root has room for more changes of members.
    pub(super) async fn make_room_for_epochs(self: &Rc<Self>) -> Result<(), Error> {
        self.merge_until(Home::has_room_for_epochs, Error::EpochsFull)
            .await
    }

    /// Merges until the journal needs nothing of a member that is out.
    pub(super) async fn free_journal_of(self: &Rc<Self>, index: u16) -> Result<(), Error> {
        let done = |home: &Home| home.journal_is_free_of(index) && home.has_room_for_epochs();
        self.merge_until(done, Error::JournalNeeds(index)).await
    }

    pub(super) async fn merge_until(
        self: &Rc<Self>,
        done: impl Fn(&Home) -> bool,
        otherwise: Error,
    ) -> Result<(), Error> {
        let until = self.core.rt.now() + PATIENCE;
        while !done(self) {
            if self.core.closed.get() {
                return Err(Error::Closed);
            }
            if self.core.rt.now() >= until {
                return Err(otherwise);
            }
            self.group_commit(Reach::Closed).await;
            self.end(self.old_rows()).await;
            self.checkpoint(self.journal.next()).await;
            if !done(self) {
                let progress = self.core.progress.wait();
                let _ = self.core.rt.timeout(500 * MILLISECOND, progress).await;
            }
        }
        Ok(())
    }

    /// Has no more written to these segments: they are sealed, at the latest once their last stripe is recorded.
    pub(super) async fn end(self: &Rc<Self>, segments: Vec<Pinned>) {
        for segment in segments {
            match segment.recorded.get() == segment.next_stripe.get() {
                true if !segment.sealed.get() => self.seal(&segment).await,
                _ => segment.retired.set(true),
            }
        }
    }

    /// Waits until nothing that was sent to a member before it left is under way.
    pub(super) async fn nothing_under_way(&self, member: &Member) -> Result<(), Error> {
        let until = self.core.rt.now() + PATIENCE;
        let busy = || Error::Device {
            device: member.index.into(),
            fault: ashlar_device::Fault::Timeout,
        };
        let quiet = async {
            if !planted::on(Bug::LateWriteForgotten) {
                member.sent.quiet().await;
            }
        };
        self.core
            .rt
            .timeout(PATIENCE, quiet)
            .await
            .ok_or_else(busy)?;
        while member.slots.are_coming_back() {
            if self.core.rt.now() >= until {
                return Err(busy());
            }
            self.core.rt.sleep(100 * MILLISECOND).await;
        }
        Ok(())
    }

    /// Takes a device in, as the module says.
    pub(crate) async fn take_in(
        self: &Rc<Self>,
        mut arrival: Arrival,
        force: bool,
    ) -> Result<Taken, Error> {
        self.core.beat.comes(arrival.index);
        if !arrival.guarded {
            arrival.device = self.core.beat.guard(arrival.device);
        }
        let (index, rt) = (arrival.index, self.core.rt.clone());
        let member = self.core.member(index);
        let may_come = || match member.state() {
            _ if member.is_counted() => Err(Error::InUse(index)),
            MemberState::Removed => Err(Error::NoDevice(index)),
            _ => Ok(()),
        };
        let held = arrival.guarded.then(|| arrival.device.clone());
        // The operator may have had it out for another reason meanwhile.
        let still_slow = || {
            held.as_ref()
                .is_none_or(|device| self.slow.is_out(index, device))
        };
        may_come()?;
        arrival.check_size()?;
        // Two at once would each judge what the other writes.
        let _coming = member.come().ok_or(Error::ComesIn(index))?;
        self.free_journal_of(index).await?;
        self.nothing_under_way(member).await?;
        // However long the device takes for this, nobody else waits.
        let device = |fault| Error::Device {
            device: index.into(),
            fault,
        };
        let (brought, claims) = match arrival.returns {
            true => {
                let judged = self.judge(&arrival).await;
                let failed = arrival.failed_reads.take();
                crate::counters::add(&member.counters.read_errors, failed);
                judged.map_err(device)?
            }
            false => (Brought::none(arrival.geometry.table_pages()), Claims::new()),
        };
        let lacking = self.lacking(index, &brought, &claims);
        let loses = || match arrival.returns {
            true => self.is_any_lost(&lacking),
            false => self.has_last_copy(index),
        };
        if !force && loses() {
            return Err(Error::LastCopy(index));
        }
        if self.core.closed.get() {
            return Err(Error::Closed);
        }
        // The device is not let go before this has ended.
        let _changes = member.sent.change();
        if !arrival.returns {
            arrival.clear(&rt).await.map_err(device)?;
        }
        let pages = self.pages_of(&arrival, &claims);
        let array = &self.core.identity.array;
        let written = arrival
            .write_table(&rt, array, &pages, &brought.copies)
            .await;
        let copies = written.map_err(device)?;
        let _checkpoint = self.checkpoints.turn.lock().await;
        let log = self.log.turn.lock().await;
        if *log || self.core.closed.get() {
            return Err(Error::Closed);
        }
        may_come()?;
        if !still_slow() {
            return Err(Error::ComesIn(index));
        }
        self.count_in(&arrival).await?;
        self.slow.let_go(index);
        drop(log);
        Ok(Taken {
            lacking: lacking.len(),
            kept: self.use_again(index, claims, &copies),
        })
    }

    /// The segments that had a column on a member, by what it brings or by what is known here, that does not count.
    fn lacking(&self, index: u16, brought: &Brought, claims: &Claims) -> Vec<u64> {
        let segments = self.core.segments.borrow();
        let lies = |s: &&Rc<Segment>| s.lies_on_any(&[index]);
        let here = segments.values().filter(lies).map(|s| s.number);
        let missing = |e: &SlotEntry| self.known(e).is_some_and(|known| !known.elsewhere);
        let named = brought.entries.iter().filter(|(_, e)| missing(e));
        let mut all: BTreeSet<u64> = named.map(|(_, e)| e.segment).chain(here).collect();
        for entry in claims.values() {
            all.remove(&entry.segment);
        }
        all.into_iter().collect()
    }

    /// Whether one of these segments holds something that its columns in use cannot give.
    fn is_any_lost(&self, numbers: &[u64]) -> bool {
        let segments = self.core.segments.borrow();
        let mut found = numbers.iter().filter_map(|number| segments.get(number));
        found.any(|s| self.is_lost(s))
    }

    fn is_lost(&self, segment: &Rc<Segment>) -> bool {
        !segment.live.borrow().is_empty() && self.core.redundancy(segment).is_none()
    }

    /// Whether something that the array holds may be had only with a member that is out of use.
    pub(crate) fn has_last_copy(&self, index: u16) -> bool {
        let (topology, unread) = (self.topology(), self.core.member(index).is_unread());
        let may_hold = |s: &Segment| {
            let nowhere = s.columns.borrow().iter().any(|c| !c.is_placed());
            nowhere
                && match area_of(&topology, s) {
                    Area::Group(group) => topology.group_of(index) == Some(group),
                    Area::Nodes => true,
                }
        };
        let lies = |s: &&Rc<Segment>| s.lies_on_any(&[index]) || unread && may_hold(s);
        let segments = self.core.segments.borrow();
        let mut here = segments.values().filter(lies);
        here.any(|s| self.is_lost(s))
    }

    /// Which columns count that a member brings back.
    async fn judge(&self, arrival: &Arrival) -> Result<(Brought, Claims), ashlar_device::Fault> {
        let (core, since) = (
            &self.core,
            self.core.member(arrival.index).stale_since.get(),
        );
        let (array, blocks) = (core.identity.array, core.slot_blocks);
        let choose = |copies| choose_copy(copies, since).0;
        let brought = arrival.table(&core.rt, &array, blocks, choose).await?;
        let bound = bound_of(brought.numbers.iter().copied(), since);
        let mut claims = Claims::new();
        for some in brought.entries.chunks(AT_ONCE) {
            let read = |(slot, entry): &(u32, SlotEntry)| {
                let (slot, entry) = (*slot, *entry);
                let (arrival, rt) = (arrival.clone(), core.rt.clone());
                core.rt.spawn(async move {
                    let header = arrival.header(&rt, &array, blocks, slot).await;
                    (slot, entry, header)
                })
            };
            for (slot, entry, header) in join_all(some.iter().map(read)).await {
                let known = self.known(&entry);
                if known.is_some_and(|k| is_whole(&k, &entry, header.as_ref(), bound)) {
                    claims.insert(slot, entry);
                }
            }
        }
        // Of two columns of a segment none counts: the table is not one that this array wrote.
        let mut seen = BTreeMap::new();
        claims
            .values()
            .for_each(|e| *seen.entry(e.segment).or_insert(0) += 1);
        claims.retain(|_, e| seen.get(&e.segment) == Some(&1));
        Ok((brought, claims))
    }

    /// What is known of the segment that a member says it holds a column of.
    fn known(&self, entry: &SlotEntry) -> Option<Known> {
        let segments = self.core.segments.borrow();
        let segment = segments.get(&entry.segment)?;
        let column = usize::from(entry.column);
        let place = *segment.columns.borrow().get(column)?;
        Some(Known {
            entry: segment.slot_entry(entry.column, place.version),
            sealed_in: segment.sealed_in.get(),
            elsewhere: self.core.column_usable(segment, column),
        })
    }

    /// The pages of a table with these entries, as of the durable root.
    fn pages_of(&self, arrival: &Arrival, claims: &Claims) -> Vec<TablePage> {
        let geometry = arrival.geometry;
        let checkpoint = self.root.borrow().checkpoint;
        let page = |page: u32| {
            let first = page * ENTRIES_PER_PAGE;
            let end = geometry.slots.min(first + ENTRIES_PER_PAGE);
            TablePage {
                page,
                checkpoint,
                entries: (first..end)
                    .map(|slot| claims.get(&slot).copied())
                    .collect(),
            }
        };
        (0..geometry.table_pages()).map(page).collect()
    }

    /// A generation and an epoch count the device, and a root says so. The caller holds the log lock.
    async fn count_in(self: &Rc<Self>, arrival: &Arrival) -> Result<(), Error> {
        let member = self.core.member(arrival.index);
        let before = member.state();
        member.super_copy.set(arrival.super_copy);
        let (device, geometry) = (arrival.device.clone(), arrival.geometry);
        match arrival.returns {
            true => member.rejoin(device, geometry),
            false => member.join(device, arrival.uuid, geometry),
        }
        self.change_topology(); // records of the epoch that begins lie on it
        let agreed = self.publish_generation(Some((arrival.index, before))).await;
        if self.core.closed.get() {
            return Err(Error::Closed);
        }
        self.look_who_is_awaited();
        if agreed.are_too_few() {
            let Agreed { stored, counted } = agreed;
            return Err(Error::NoQuorum { stored, counted });
        }
        match member.is_counted() {
            true => Ok(()),
            false => Err(Error::Device {
                device: arrival.index.into(),
                fault: ashlar_device::Fault::Offline,
            }),
        }
    }

    /// The member is read and gets slots from now on. Columns that count lie where it says; what else the table of
    /// segments says of it is no more. Nothing here waits.
    fn use_again(&self, index: u16, claims: Claims, copies: &[u8]) -> usize {
        let member = self.core.member(index);
        let (mut kept, mut left) = (0, Vec::new());
        let is_missing = |entry| self.known(entry).is_some_and(|known| !known.elsewhere);
        let still: Vec<bool> = claims.values().map(is_missing).collect();
        for segment in self.core.segments.borrow().values() {
            for column in segment.columns.borrow_mut().iter_mut() {
                if column.is_placed() && column.device == index {
                    let version = column.version;
                    *column = Column {
                        version,
                        ..Column::MISSING
                    };
                }
            }
        }
        member.joined();
        self.space.jobs.forget_vacated(index);
        for ((slot, entry), wanted) in claims.into_iter().zip(still) {
            member.slots.claim(slot, entry);
            let place = Column {
                device: index,
                slot,
                version: entry.version,
            };
            if wanted && let Some(segment) = self.core.segments.borrow().get(&entry.segment) {
                segment.columns.borrow_mut()[usize::from(entry.column)] = place;
                kept += 1;
            } else {
                member.slots.set(slot, None);
                left.push(place);
            }
        }
        for (page, copy) in (0..).zip(copies) {
            member.slots.set_page_copy(page, *copy);
        }
        self.change_topology();
        let used = u32::try_from(kept + left.len()).expect("no more than slots");
        self.space.ledger().occupy(index, used);
        for place in left {
            self.space.ledger().free_later(&[index], false);
            self.space.jobs.vacate(place);
        }
        self.core.failing.set_maybe_degraded(true);
        self.look_who_is_awaited();
        self.try_again();
        self.look_at_all();
        self.reckon();
        self.demand.clean();
        self.core.progress.open();
        kept
    }

    /// A member that is out of use is in another state from now on: a new generation says so.
    pub(crate) async fn restate(
        self: &Rc<Self>,
        index: u16,
        state: MemberState,
    ) -> Result<(), Error> {
        self.make_room_for_epochs().await?;
        let log = self.log.turn.lock().await;
        if *log || self.core.closed.get() {
            return Err(Error::Closed);
        }
        let member = self.core.member(index);
        if member.is_counted() {
            return Err(Error::InUse(index));
        }
        if member.state() == MemberState::Removed {
            return Err(Error::NoDevice(index));
        }
        self.slow.let_go(index);
        if member.state() == state {
            return Ok(());
        }
        member.take_out(state);
        self.publish_members().await;
        self.look_who_is_awaited();
        match self.core.closed.get() {
            true => Err(Error::Closed),
            false => Ok(()),
        }
    }
}
