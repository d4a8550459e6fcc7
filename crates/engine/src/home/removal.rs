//! Members that are taken out of the array for good: emptied first, while they serve.
//!
//! Invariants:
//! - A member that leaves is read, written and counted until nothing lies on it: no redundancy is missing meanwhile.
//! - It gets no new column, no record of a new epoch of the journal and no new root.
//!
//! Crash argument. That a member leaves is said by a generation and a new epoch, as any other change of members; a crash
//! before it takes effect leaves a member like the others, a crash after it one that goes on leaving. The generation
//! that it is no member any more is stored once each of its slots is free, which a slot is only after the root that freed
//! it is durable (R3), and once each epoch that the durable root names excludes it: so neither a table nor a record that
//! an import may read names it, and an import before or after that generation needs nothing of it. Its superblocks are
//! erased last. A crash before that leaves a device of an older generation, whose row in the newest one says that it is
//! no member. Members are removed one after the other, each by a generation of its own: those that are left are never
//! fewer than half of those counted before.

use std::rc::Rc;

use ashlar_format::BLOCK_U64;
use ashlar_format::superblock::MemberState;
use ashlar_space::plan::redundant_plan;
use ashlar_space::topology::Topology;
use ashlar_space::usable::{Spare, usable};

use crate::error::Error;
use crate::home::Home;
use crate::home::capacity::narrowest;
use crate::members::wipe::wipe;
use crate::members::{DEADLINE, Member};
use crate::planted::{self, Bug};
use crate::protocol::Reach;
use crate::segment::Segment;

/// What an array is without some of its devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Without {
    /// Bytes of the columns that are to be moved to other devices.
    pub moved_bytes: u64,
    /// Bytes that volumes may be promised in all on the other devices.
    pub usable_bytes: u64,
    /// Of these, bytes that volumes have been promised.
    pub promised_bytes: u64,
}

impl Home {
    fn members_leaving(&self) -> impl Iterator<Item = &Member> {
        let leaves = |m: &&Member| m.state() == MemberState::Removing && m.is_counted();
        self.core.members.iter().filter(leaves)
    }

    /// Members that are to leave.
    pub(crate) fn leaving(&self) -> Vec<u16> {
        self.members_leaving().map(|m| m.index).collect()
    }

    /// Bytes of the columns that lie on members that are to leave; `None` if none is.
    pub(crate) fn bytes_on_leaving(&self) -> Option<u64> {
        let bytes = self.members_leaving().map(|m| self.bytes_on(m));
        bytes.reduce(|all, more| all + more)
    }

    /// A member that is to leave and holds nothing any more.
    pub(crate) fn emptied_member(&self) -> Option<u16> {
        let mut leaving = self.members_leaving();
        let at_once = planted::on(Bug::RemovedBeforeEmpty);
        let empty = leaving.find(|m| m.slots.are_empty() || at_once);
        empty.map(|m| m.index)
    }

    /// What the array is without a member, and without those that are to leave anyway. It can do without it if volumes
    /// may be promised `enough` bytes still, or as many as they were.
    ///
    /// # Errors
    /// Why it cannot do without it.
    pub(crate) fn check_removal(&self, index: u16, enough: u64) -> Result<Without, Error> {
        let topology = self.topology();
        let member = self.core.member(index);
        if member.state() == MemberState::Spare {
            return Ok(self.space_on(&topology)); // nothing lies on it, and nothing is reckoned with it
        }
        let group = topology.group_of(index).ok_or(Error::NoDevice(index))?;
        let left = self.left_without(index, &topology);
        // One that is out of use is missed anyway: only its place in the table goes.
        let counts = |d: &&u16| !member.is_counted() || self.core.member(**d).takes_slots();
        let have = left.group(group).iter().filter(counts).count();
        let need = left.shape().width().into();
        if have < need {
            return Err(Error::TooFewLeft { index, have, need });
        }
        // Spare space is for as many devices as there are beyond K + M, those included that are out of use and whose
        // place it takes. Where another has come in its place (`enough`) there are as many as before.
        let (places, shape) = (left.group(group).len(), left.shape());
        let each = usize::from(shape.spare / left.groups().max(1));
        let leaves = member.state() == MemberState::Online && enough == u64::MAX;
        if leaves && each > 0 && places < need + each {
            return Err(Error::SpareNeeds {
                index,
                have: places,
                need: need + each,
                spare: shape.spare,
            });
        }
        if !member.is_counted() && self.core.is_missing_columns() {
            return Err(Error::NotRebuilt(index));
        }
        let without = Without {
            moved_bytes: match member.is_counted() {
                true => self.bytes_on(member),
                false => 0,
            },
            ..self.space_on(&left)
        };
        match without.usable_bytes >= without.promised_bytes.min(enough) {
            true => Ok(without),
            false => Err(Error::NoRoomWithout {
                index,
                promised: without.promised_bytes,
                usable: without.usable_bytes,
            }),
        }
    }

    /// These members without one, and without those that are to leave anyway.
    pub(super) fn left_without(&self, index: u16, topology: &Topology) -> Topology {
        let leaving = self.leaving().into_iter().chain([index]);
        leaving.fold(topology.clone(), |all, d| all.without(d))
    }

    /// Bytes of the columns that lie on a member.
    pub(super) fn bytes_on(&self, member: &Member) -> u64 {
        member.slots.used() as u64 * u64::from(self.core.slot_blocks) * BLOCK_U64
    }

    /// The space of an array with these members; nothing is to be moved.
    pub(super) fn space_on(&self, topology: &Topology) -> Without {
        let geometry = self.geometry_on(topology, 0);
        let plan = redundant_plan(topology, &geometry);
        let promised = self.promises();
        let (promised, _) = promised.blocks(&geometry, &narrowest(&plan), &plan.nodes);
        Without {
            moved_bytes: 0,
            usable_bytes: usable(topology, &geometry, Spare::Left) * BLOCK_U64,
            promised_bytes: promised * BLOCK_U64,
        }
    }

    /// A member in use is to leave from now on. Then volumes may be promised so many bytes still, or as many as they were.
    pub(crate) async fn leave(self: &Rc<Self>, index: u16, enough: u64) -> Result<(), Error> {
        self.leave_or_stay(index, Some(enough)).await
    }

    /// A member that was to leave stays.
    pub(crate) async fn stay(self: &Rc<Self>, index: u16) -> Result<(), Error> {
        self.leave_or_stay(index, None).await
    }

    async fn leave_or_stay(self: &Rc<Self>, index: u16, leaves: Option<u64>) -> Result<(), Error> {
        self.make_room_for_epochs().await?;
        let log = self.log.turn.lock().await;
        if *log || self.core.closed.get() {
            return Err(Error::Closed);
        }
        let member = self.core.member(index);
        let (from, to) = match leaves.is_some() {
            true => (MemberState::Online, MemberState::Removing),
            false => (MemberState::Removing, MemberState::Online),
        };
        if member.state() == to {
            return Ok(());
        }
        if member.state() != from || !member.is_read() {
            return Err(Error::NotInUse(index));
        }
        if let Some(enough) = leaves {
            self.check_removal(index, enough)?;
        }
        member.leave_or_stay(leaves.is_some());
        self.publish_members().await;
        drop(log);
        if leaves.is_some() {
            // What is half written there is finished: only then can it move.
            let open = |s: &Segment| !s.sealed.get() && s.lies_on_any(&[index]);
            self.end(self.core.pin_unsettled(open)).await;
            self.group_commit(Reach::Closed).await;
            self.end(self.core.pin_unsettled(open)).await;
        }
        match self.core.closed.get() {
            true => Err(Error::Closed),
            false => Ok(()),
        }
    }

    /// Columns are placed by the members as they are now, and a generation says so. The caller holds the log lock.
    pub(super) async fn publish_members(self: &Rc<Self>) {
        self.members_changed();
        self.publish_generation(None).await;
        self.core.progress.open();
    }

    /// A member that holds nothing is no member any more, be it in use or not.
    pub(crate) async fn remove(self: &Rc<Self>, index: u16) -> Result<(), Error> {
        let member = self.core.member(index);
        let _coming = member.come().ok_or(Error::ComesIn(index))?;
        self.free_journal_of(index).await?;
        let checkpoint = self.checkpoints.turn.lock().await;
        let log = self.log.turn.lock().await;
        if *log || self.core.closed.get() {
            return Err(Error::Closed);
        }
        let empty = member.slots.are_empty() || planted::on(Bug::RemovedBeforeEmpty);
        let emptied = member.state() == MemberState::Removing && empty;
        if member.is_counted() && !emptied {
            return Err(Error::InUse(index));
        }
        if member.state() == MemberState::Removed {
            return Ok(());
        }
        // It may have been told to stay and to leave again meanwhile.
        if !self.journal_is_free_of(index) {
            return Err(Error::JournalNeeds(index));
        }
        if !member.is_counted() {
            self.check_removal(index, u64::MAX)?;
        }
        let slow = self.slow.one(index).map(|out| out.device);
        let (device, path) = (member.held().or(slow), member.path());
        member.take_out(MemberState::Removed);
        self.slow.let_go(index);
        self.publish_members().await;
        drop((log, checkpoint));
        if self.core.closed.get() {
            return Err(Error::Closed);
        }
        let text =
            format!("device {index} ({path}) was removed: the array has nothing on it any more");
        self.core.events.note("device-removed", Some(index), text);
        if let Some(device) = device {
            let wiped = self.core.rt.timeout(DEADLINE, wipe(&device));
            if !matches!(wiped.await, Some(Ok(()))) {
                let text = format!(
                    "device {index} ({path}) was removed, and its superblocks could not be erased: erase them \
                     before it is used elsewhere, 'ashlar device wipe'"
                );
                self.core.events.note("not-erased", Some(index), text);
            }
        }
        Ok(())
    }
}
