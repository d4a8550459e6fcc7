//! Membership: the devices that count, the generation that lists them, and the roots that a change of it writes.
//!
//! Invariants (R5, R10):
//! - A root is durable on every root-set device in use before anything goes by it; a device that fails meanwhile
//!   is taken out by a new generation first.
//! - A generation that at least half of the devices counted before have stored counts; with fewer, writes wait
//!   for the operator.
//! - Every change of devices begins a new epoch of the journal.
//! - A device that fails writes and still reads is not given up, but by the operator's word, where something would be
//!   lost without it: the array stops instead.

use std::rc::Rc;

use ashlar_format::DeviceGeometry;
use ashlar_format::root::{Epoch, MAX_EPOCH_BYTES, Root};
use ashlar_format::superblock::{MemberState, Superblock};
use ashlar_rt::{BLOCK, Buf, MILLISECOND, Nanos, SECOND, Slice, join_all};
use ashlar_space::topology::Area;

use crate::error::Error;
use crate::home::Home;
use crate::journal::sets::{RecordSet, record_sets};
use crate::members::Member;
use crate::members::fence::FENCE;
use crate::members::quorum::{Quorum, choose_root_set, online_members};
use crate::planted::{self, Bug};

/// A device that fails writes and answers a read within this time is there, and not to be trusted by itself.
const GRACE: Nanos = 250 * MILLISECOND;

/// How many have stored a generation.
#[derive(Debug, Clone, Copy)]
pub struct Agreed {
    /// Members that stored it, of those counted before.
    pub stored: usize,
    /// Members that the generation before counted.
    pub counted: usize,
}

impl Agreed {
    /// Whether it has not taken effect.
    pub fn are_too_few(&self) -> bool {
        2 * self.stored < self.counted
    }
}

/// Nothing can be written any more.
const NONE_LEFT: &str = "no device is left in use, or only such as are to leave; export the array, reconnect its devices \
                         and import it again";

impl Home {
    /// Whether some member is left that holds the journal: one that is to leave does not.
    fn takes_writes(&self) -> bool {
        let failed = |m: &Member| self.core.failing.contains(m.index);
        self.core.members.iter().any(|m| m.journals() && !failed(m))
    }

    /// Makes `root` durable on every root-set device in use, taking out whatever fails on the way by a
    /// generation change. The caller holds the log lock.
    pub(crate) async fn publish(self: &Rc<Self>, mut root: Root) {
        loop {
            // Behind its fence every device fails: none is given up for that.
            if self.stop_if_fenced() {
                return;
            }
            if !self.core.failing.is_empty() {
                self.change_generation(&mut root).await;
            }
            if self.core.closed.get() {
                return;
            }
            if !self.takes_writes() {
                self.halt(NONE_LEFT);
                return;
            }
            let set = self.superblock.borrow().root_set.clone();
            let bytes = Buf::copy_of(&root.encode(&self.core.identity.array)).freeze();
            let mut joins = Vec::new();
            for index in set {
                if !self.core.member(index).is_written()
                    || (planted::on(Bug::RootOnOneDevice) && !joins.is_empty())
                {
                    continue;
                }
                let (core, bytes) = (self.core.clone(), bytes.clone());
                let offset = self.core.member(index).geometry().root_offset(root.number);
                let write = async move {
                    if planted::on(Bug::RootNotFlushed) {
                        return core.write(index, offset, bytes).await;
                    }
                    core.write_durably(index, offset, bytes).await
                };
                joins.push(self.core.rt.spawn(write));
            }
            join_all(joins).await;
            if self.core.failing.is_empty() {
                break;
            }
            root.number += 1;
        }
        self.root.set(root);
        self.core.failing.settle();
    }

    /// Takes failing members out: a new generation, stored by at least half of those counted before,
    /// and a new journal epoch that begins at the next sequence. Or stops, where that would lose what can be read.
    ///
    /// Crash argument: it stops before anything is written of the change, and nothing was told to anybody that rests
    /// on what the devices refused: it is as safe as a power cut, and with their backing mended nothing is lost.
    async fn change_generation(self: &Rc<Self>, root: &mut Root) {
        let mut failing = self.core.failing.take();
        self.keep_slow(&mut failing);
        // One that is being taken in holds nothing that is read.
        let mut read = failing.clone();
        read.retain(|index| self.core.member(*index).is_read());
        let needed = self.needed_and_read(&read).await;
        if !needed.is_empty() {
            let named = needed.iter().map(|index| {
                let path = self.core.member(*index).path();
                format!("{index} ({path})")
            });
            self.halt(&format!(
                "writes fail on more devices than parity covers, and these still answer reads: {}. No data is \
                 lost. Check whether the storage below them is full or read-only, fix that, then export the \
                 array and import it again ('--read-only' serves it as it is, '--degraded' goes on without them)",
                named.collect::<Vec<_>>().join(", ")
            ));
            return;
        }
        self.take_out(&failing).await;
        self.members_changed();
        let Agreed { stored, counted } = match planted::on(Bug::GenerationNotStored) {
            true => {
                let all = online_members(&self.superblock.borrow().members).count();
                Agreed {
                    stored: all,
                    counted: all,
                }
            }
            false => self.store_generation().await,
        };
        if !self.takes_writes() {
            // Nobody is left to agree, or to go on with whatever the operator says.
            self.halt(NONE_LEFT);
            return;
        }
        let short = stored * 2 < counted;
        if short && self.agreement.quorum() == Quorum::Needed {
            self.halt(&Error::NoQuorum { stored, counted }.to_string());
            return;
        }
        if short && self.agreement.quorum() == Quorum::Awaited {
            let stops = match self.core.beat.is_renewed() {
                true => format!("; after {} s the array stops", FENCE / SECOND),
                false => String::new(),
            };
            let text = format!(
                "writes are paused: only {stored} of {counted} devices are left, fewer than half, and the others \
                 may be in use elsewhere; for each device that will not come back: 'ashlar fail ARRAY DEV -f'{stops}"
            );
            self.core.events.note("writes-wait", None, text);
            let closed = || self.core.closed.get();
            self.agreement.wait(stored, counted, closed).await;
        }
        self.core.beat.set_voters(self.core.counted());
        let next = self.journal.next();
        root.number += 1;
        self.close_epoch(root, next);
        self.core.progress.open();
    }

    /// Takes these out of use. The root that is durable was the last to count them; what one holds that was being taken
    /// in is as of it, too.
    async fn take_out(&self, failing: &[u16]) {
        let since = self.root.borrow().checkpoint;
        let mut unknown = failing.to_vec();
        unknown.retain(|index| self.slow.why(*index).is_none());
        let answer = self.which_answer(&unknown, Some(GRACE)).await;
        for index in failing.iter().copied() {
            let member = self.core.member(index);
            if !member.is_counted() {
                continue;
            }
            let (asked, path) = (self.core.failing.take_asked(index), member.path());
            if member.leave_row() {
                self.slow.let_go(index);
                asked.into_iter().for_each(|state| member.take_out(state));
                let text = format!(
                    "{path} could not be taken in as device {index} and is not used; device {index} is what it was before"
                );
                self.core.events.note("device-failed", Some(index), text);
                continue;
            }
            let state = match asked {
                Some(asked) => asked,
                None if answer.contains(&index) => MemberState::Failed,
                None => MemberState::Stale,
            };
            member.take_out(state);
            if state != MemberState::Stale {
                self.slow.let_go(index);
            }
            member.stale_since.set(since);
            // Whoever looked since it was reported has seen it in use.
            self.core.failing.set_maybe_degraded(true);
            let (kind, text) = match state {
                MemberState::Offline => (
                    "device-offline",
                    format!(
                        "device {index} ({path}) was taken out of use; its data is not rebuilt until 'ashlar online' \
                         or 'ashlar fail'"
                    ),
                ),
                MemberState::Stale if let Some(why) = self.slow.why(index) => {
                    ("device-slow", Home::told_slow(index, &path, why))
                }
                MemberState::Stale => ("device-awaited", Home::told_awaited(index, &path)),
                _ => (
                    "device-failed",
                    format!(
                        "device {index} ({path}) failed and is no longer used; its data is rebuilt onto the other \
                         devices while they have free space: see 'ashlar status'"
                    ),
                ),
            };
            self.core.events.note(kind, Some(index), text);
        }
        self.core.forget_missing();
    }

    /// Ends the open epoch of `root` at `next` and begins another, of the present generation and with the members
    /// in use.
    pub(crate) fn close_epoch(&self, root: &mut Root, next: u64) {
        let generation = &self.superblock.borrow().generation;
        (root.generation, root.generation_id) = (generation.number, generation.id);
        if let Some(last) = root.epochs.last_mut() {
            if last.first == next && last.end.is_none() {
                // Nothing was written under it: it is as if it had not been, but its number is used.
                last.end = Some(next);
            }
            last.end.get_or_insert(next);
        }
        let excluded = self
            .core
            .members
            .iter()
            .filter(|m| !m.journals())
            .map(|m| m.index)
            .collect();
        let number = root.epochs.last().map_or(1, |e| e.number + 1);
        root.epochs
            .retain(|e| e.end.is_none_or(|end| end > e.first));
        let epoch = Epoch {
            number,
            id: self.core.rt.random_bytes(),
            first: next,
            end: None,
            m: if planted::on(Bug::JournalWithoutParity) {
                0
            } else {
                self.journal_sets().1
            },
            excluded,
        };
        root.epochs.push(epoch.clone());
        assert!(
            root.epoch_bytes() < MAX_EPOCH_BYTES,
            "changes of members wait for room, and an import makes some"
        );
        self.journal.begin_epoch(epoch, self.journal_sets().0);
    }

    /// Sets of members in use, one of which holds each record, and their parity (R5).
    pub(crate) fn journal_sets(&self) -> (Vec<RecordSet>, u16) {
        let in_use = |d| self.core.member(d).journals();
        let topology = self.topology();
        record_sets(topology.shape(), topology.domains(), in_use)
    }

    /// Whether anything would be lost without these devices, where `gone` are gone as well.
    pub(crate) fn needs_devices(&self, devices: &[u16], gone: &[u16]) -> bool {
        // What is written and not merged yet is nobody's live block, but somebody holds its segment.
        let would_lose = self.core.segments.borrow().values().any(|s| {
            let missing =
                |c| !self.core.column_usable(s, c) || s.lies_on(c, devices) || s.lies_on(c, gone);
            (!s.live.borrow().is_empty() || !s.is_unpinned())
                && s.lies_on_any(devices)
                && s.survives(missing).is_none()
        });
        would_lose || self.journal_needs(devices, gone)
    }

    /// Of the devices that are failing those that still answer reads, where something would be lost without them and
    /// the operator has not said that it may be.
    async fn needed_and_read(&self, failing: &[u16]) -> Vec<u16> {
        let may_lose = self.agreement.may_lose() || planted::on(Bug::NeededGivenUp);
        if may_lose || !self.needs_devices(failing, &[]) {
            return Vec::new();
        }
        let mut reading = self.which_answer(failing, None).await;
        let mut dead = failing.to_vec();
        dead.retain(|index| !reading.contains(index));
        if !self.needs_devices(&reading, &dead) {
            reading.clear();
        }
        reading
    }

    /// Those of these devices that answer a read, within a time if one is given.
    async fn which_answer(&self, devices: &[u16], within: Option<Nanos>) -> Vec<u16> {
        let mut looks = Vec::new();
        for index in devices.iter().copied() {
            let core = self.core.clone();
            looks.push(self.core.rt.spawn(async move {
                let member = core.member(index);
                let offset = member.geometry().super_offset(member.super_copy.get());
                let read = member.read(offset, BLOCK);
                let within = within.unwrap_or(Nanos::MAX);
                let read = core.rt.timeout(within, read).await;
                (index, matches!(read, Some(Ok(_))))
            }));
        }
        let mut answer = Vec::new();
        for look in looks {
            let (index, reads) = look.await;
            if reads {
                answer.push(index);
            }
        }
        answer
    }

    /// Gives up a device that nothing would be lost without, and that would leave clients room had its slots kept what
    /// was written there, also when they were tried again: a volume was promised that room. Whether there is one.
    pub(crate) fn give_up_unkept(&self) -> bool {
        let topology = self.topology();
        let costs = |m: &&Member| {
            let area = topology.group_of(m.index).map(Area::Group);
            m.slots.unkept() > 0
                && area.is_some_and(|area| self.space.ledger().grants_with_worn(area, m.index))
        };
        let mut online = self.core.members.iter().filter(|m| m.takes_slots());
        let Some(member) = online.find(|m| costs(m) && !self.needs_devices(&[m.index], &[])) else {
            return false;
        };
        let text = format!(
            "device {} ({}) did not store writes to {} slots, nor when they were repeated, and has too little \
             space without these slots: it is failed",
            member.index,
            member.path(),
            member.slots.unkept(),
        );
        self.core.events.note("not-kept", Some(member.index), text);
        self.core.report_failed(member.index);
        true
    }

    /// Writes a new generation to every member in use; how many of those that the one before counted stored it.
    ///
    /// Crash argument: one that is being taken in stores it only once at least half of those counted before have: so it
    /// never makes a generation look as if it had taken effect, and never votes for one that has not (small model:
    /// `generations`). It stores it in both places, one after the other: whatever it held, and with the first durable the
    /// second may be torn.
    pub(crate) async fn store_generation(self: &Rc<Self>) -> Agreed {
        let (counted, newcomers) = self.make_generation();
        let stored = self.store_on(|m| !newcomers.contains(&m.index)).await;
        let agreed = Agreed { stored, counted };
        if !agreed.are_too_few() {
            for _ in 0..2 {
                self.store_on(|m| newcomers.contains(&m.index)).await;
            }
            self.core.beat.set_voters(self.core.counted());
        }
        agreed
    }

    /// A generation and an epoch of the members as they are now, and a root that says so. The caller holds the log lock.
    /// A newcomer of a generation that does not take effect is out again, in this state.
    ///
    /// Crash argument: a generation is made only from one that is in effect (docs/format.md). One that too few stored is
    /// taken back, and those that did not store it are failing: `publish` makes the next from the same one, with that
    /// one's members as those who have to agree.
    pub(super) async fn publish_generation(
        self: &Rc<Self>,
        newcomer: Option<(u16, MemberState)>,
    ) -> Agreed {
        let before = self.superblock.borrow().clone();
        let mut root = self.root.borrow().clone();
        let agreed = self.store_generation().await;
        if agreed.are_too_few() {
            let writes = self.superblock.borrow().writes;
            self.superblock.replace(Superblock { writes, ..before });
            if let Some((index, state)) = newcomer {
                self.core.failing.ask(index, state);
                self.core.report_failed(index);
            }
        } else {
            root.number += 1;
            self.close_epoch(&mut root, self.journal.next());
        }
        self.publish(root).await;
        agreed
    }

    /// Makes a new generation in memory; how many members the one before counted, and those in use that it did not.
    fn make_generation(&self) -> (usize, Vec<u16>) {
        let mut superblock = self.superblock.borrow_mut();
        let before: Vec<usize> = online_members(&superblock.members).collect();
        let counted = u16::try_from(before.len()).expect("at most 65,535 members");
        superblock.generation = superblock
            .generation
            .next(self.core.rt.random_bytes(), counted);
        for (entry, member) in superblock.members.iter_mut().zip(&self.core.members) {
            entry.state = member.state();
            (entry.uuid, entry.slots) = (member.uuid(), member.geometry().slots);
            (entry.domain, entry.domain_since) = (member.domain(), member.domain_since());
            entry.stale_since = match member.is_counted() {
                true => 0,
                false => member.stale_since.get(),
            };
        }
        let topology = self.topology();
        let most_lost = topology.shape().most_lost();
        let written = self.core.written();
        let journalling = self.core.journalling();
        superblock.root_set = choose_root_set(&journalling, most_lost, topology.domains());
        superblock.writes += 1;
        let is_new = |index: &u16| !before.contains(&usize::from(*index));
        (before.len(), written.into_iter().filter(is_new).collect())
    }

    /// Writes the superblock to every member in use (never over its newer copy); how many stored it.
    pub(crate) async fn store_superblocks(self: &Rc<Self>) -> usize {
        self.superblock.borrow_mut().writes += 1;
        self.store_on(|_| true).await
    }

    /// Writes the superblock to these members where their other copy lies. One that does not take it has the copy that it
    /// had: no reason to go on without it.
    pub(crate) async fn complete_superblocks(&self, members: &[u16]) {
        for index in members {
            let member = self.core.member(*index);
            let copy = 1 - member.super_copy.get();
            let (offset, bytes) = (
                member.geometry().super_offset(copy),
                self.superblock_for(*index),
            );
            let written = member.write(offset, vec![bytes]).await;
            if written.is_ok() && member.flush().await.is_ok() {
                member.super_copy.set(copy);
            }
        }
    }

    async fn store_on(self: &Rc<Self>, wanted: impl Fn(&Member) -> bool) -> usize {
        let store = |member: &Member| {
            let bytes = self.superblock_for(member.index);
            let copy = 1 - member.super_copy.get();
            let (core, index) = (self.core.clone(), member.index);
            let offset = member.geometry().super_offset(copy);
            self.core.rt.spawn(async move {
                let done = core.write_durably(index, offset, bytes).await;
                if done {
                    core.member(index).super_copy.set(copy);
                }
                done
            })
        };
        let online = self.core.members.iter();
        let online = online.filter(|m| m.is_written() && wanted(m));
        let stored = join_all(online.map(store)).await;
        stored.into_iter().filter(|done| *done).count()
    }

    pub(crate) fn superblock_for(&self, index: u16) -> Slice {
        let member = self.core.member(index);
        self.superblock_of(index, member.uuid(), member.geometry())
    }

    /// The superblock of a device of this row.
    pub(super) fn superblock_of(
        &self,
        index: u16,
        device: [u8; 16],
        geometry: DeviceGeometry,
    ) -> Slice {
        let superblock = Superblock {
            index,
            device,
            geometry,
            ..self.superblock.borrow().clone()
        };
        Buf::copy_of(&superblock.encode()).freeze()
    }

    /// Takes out members that were reported, whenever some are.
    pub(crate) async fn watch_members(self: Rc<Self>) {
        while !self.core.closed.get() {
            let closed = || self.core.closed.get();
            self.core.failing.wanted(closed).await;
            if self.core.closed.get() {
                return;
            }
            let _log = self.log.turn.lock().await;
            if self.core.failing.is_empty() {
                continue;
            }
            // Only the membership and the epoch change: trees, cuts and pages are the last root's.
            let root = self.root.borrow().clone();
            self.publish(root).await;
        }
    }

    /// Waits until what was reported has been taken out; `forced`: the operator has said that the array goes on without
    /// it. That word is for the devices that are gone now, not for a majority that goes later.
    pub(crate) async fn settle_failed(self: &Rc<Self>, forced: bool) {
        if forced {
            self.agreement.set_quorum(Quorum::Forced);
        }
        self.members_settled().await;
        // A change of membership that is under way holds it to its end.
        drop(self.log.turn.lock().await);
        if forced {
            self.agreement.set_may_lose(false);
            self.agreement.set_quorum(Quorum::Awaited);
        }
    }

    /// Waits until no reported member is left to be taken out, and no change waits for the operator.
    pub(crate) async fn members_settled(&self) {
        // A record still waits for the log lock, which the change of membership holds to its end.
        let settled = || self.core.failing.is_empty() && self.agreement.waiting().is_none();
        self.core
            .failing
            .settled_until(|| settled() || self.core.closed.get())
            .await;
    }
}
