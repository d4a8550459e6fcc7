//! Hot spares: devices that hold nothing until another is lost, and then take its place.
//!
//! Invariants:
//! - A hot spare is a row in state Spare whose device is held: it counts for nothing, and is neither read nor written.
//! - It takes the row of a device that is lost, so that there is no second one for the same loss.
//! - A device is in one row: while one takes another row, nothing else is done with its own (`Member::come`).
//!
//! Crash argument. A generation has the row before the device has superblocks of the array: one that has them is one
//! that a generation named. They are of a generation that is in effect, so the device never makes one look as if it were
//! (`import/decide.rs` counts who holds a generation): they are made under the log lock, and only then. A crash between
//! leaves a row without a device, and a device that holds nothing. A device that was away gets them anew in the same way,
//! one copy after the other, so that one is whole at each moment. In the other direction the device is cleared, and then
//! taken in as a replacement is (`home/returning.rs`), with an identity of its own; the row goes last. So an import finds
//! the device as a spare, or blank, or as the member: a crash between leaves a row without a device, a spare that is
//! absent, which nothing waits for.

use std::rc::Rc;

use ashlar_device::DeviceRef;
use ashlar_format::DeviceGeometry;
use ashlar_format::superblock::MemberState;

use crate::error::Error;
use crate::home::Home;
use crate::members::arrival::Arrival;
use crate::members::{Member, Members};
use crate::planted::{self, Bug};

/// A hot spare that takes the place of a lost device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// The row of the hot spare.
    pub spare: u16,
    /// The row of the device that is lost.
    pub lost: u16,
}

/// Whether it is a hot spare whose device is held.
fn is_here(member: &Member) -> bool {
    member.state() == MemberState::Spare && member.is_held()
}

/// For each lost device the smallest hot spare that can take its place: one that is as large, and in the same failure
/// domain, which the row says. `stays`: no other device may take this row.
fn due(members: &Members, stays: impl Fn(&Member) -> bool) -> Vec<Due> {
    let is_spare = |m: &&Member| is_here(m);
    let is_lost = |m: &&Member| m.is_missed() && !stays(m);
    if !members.iter().any(|m| is_spare(&m)) {
        return Vec::new();
    }
    let pair = |lost: &Member| {
        let fits = |m: &&Member| {
            m.geometry().slots >= lost.geometry().slots && m.domain() == lost.domain()
        };
        let spares = members.iter().filter(is_spare).filter(fits);
        let spare = spares.min_by_key(|m| (m.geometry().slots, m.index))?;
        let (spare, lost) = (spare.index, lost.index);
        Some(Due { spare, lost })
    };
    members.iter().filter(is_lost).filter_map(pair).collect()
}

impl Home {
    /// Adds a device that holds nothing until another is lost.
    pub(crate) async fn add_hot_spare(
        self: &Rc<Self>,
        device: DeviceRef,
        geometry: DeviceGeometry,
        domain: String,
    ) -> Result<u16, Error> {
        self.make_room_for_epochs().await?;
        let uuid = self.core.rt.random_bytes();
        let device = self.core.beat.guard(device);
        let index = self.new_row(uuid, geometry, domain, None).await?;
        let member = self.core.member(index);
        let _coming = member.come().ok_or(Error::ComesIn(index))?;
        let arrival = Arrival::new(index, uuid, device.clone(), geometry);
        match self.claim(&arrival).await {
            Ok(()) => {
                member.hold(device, geometry);
                Ok(index)
            }
            Err(error) => {
                // If that fails the array has stopped.
                let _ = self.restate(index, MemberState::Removed).await;
                Err(error)
            }
        }
    }

    /// A hot spare that was away is here again. Its superblocks are written anew: they may have an old name of the array.
    pub(crate) async fn hold_spare(&self, mut arrival: Arrival) -> Result<(), Error> {
        self.core.beat.comes(arrival.index);
        arrival.device = self.core.beat.guard(arrival.device);
        let member = self.core.member(arrival.index);
        let _coming = member.come().ok_or(Error::ComesIn(member.index))?;
        if member.state() != MemberState::Spare {
            return Err(Error::NotMember);
        }
        if member.is_held() {
            return Err(Error::HotSpare(member.index));
        }
        arrival.check_size()?;
        self.claim(&arrival).await?;
        member.hold(arrival.device, arrival.geometry);
        Ok(())
    }

    /// Makes a device one of the array that takes no part: nothing but its superblocks is on it.
    async fn claim(&self, arrival: &Arrival) -> Result<(), Error> {
        let superblock = {
            let log = self.log.turn.lock().await;
            if *log || self.core.closed.get() {
                return Err(Error::Closed);
            }
            self.superblock_of(arrival.index, arrival.uuid, arrival.geometry)
        };
        let rt = &self.core.rt;
        let written = async {
            if !arrival.returns {
                arrival.clear(rt).await?;
            }
            arrival.write_superblocks(rt, superblock).await
        };
        written.await.map_err(|fault| Error::Device {
            device: arrival.index.into(),
            fault,
        })
    }

    /// Hot spares get the array's name, which an import has changed. One that does not store it is let go. The caller
    /// holds the log lock.
    pub(crate) async fn rename_spares(&self, spares: &[u16]) {
        for index in spares.iter().copied() {
            if self.core.closed.get() {
                return;
            }
            let member = self.core.member(index);
            let Some(device) = member.held() else {
                continue;
            };
            let arrival = Arrival {
                super_copy: member.super_copy.get(),
                ..Arrival::new(index, member.uuid(), device, member.geometry())
            };
            let superblock = self.superblock_for(index);
            let written = arrival.write_superblocks(&self.core.rt, superblock).await;
            if let Err(fault) = written {
                let text = format!(
                    "hot spare {index} ({}) does not store the array's new name, and is not used: {fault}",
                    member.path()
                );
                let events = &self.core.events;
                events.note("hot-spare-failed", Some(index), text);
                member.close();
            }
        }
    }

    /// How many other hot spares there are.
    fn hot_spares_besides(&self, index: u16) -> usize {
        let spares = self.core.members.iter().filter(|m| is_here(m));
        spares.filter(|m| m.index != index).count()
    }

    /// Which hot spare is to take the place of which lost device: of none that is awaited or was to leave anyway, and of
    /// none that something can be had from only.
    pub(crate) fn hot_spares_due(&self) -> Vec<Due> {
        due(&self.core.members, |m| {
            self.is_awaited(m) || m.was_leaving() || self.has_last_copy(m.index)
        })
    }

    /// Puts a hot spare in the place of a lost device.
    pub(crate) async fn use_hot_spare(self: &Rc<Self>, due: Due) -> Result<(), Error> {
        let Due { spare, lost } = due;
        let member = self.core.member(spare);
        let _coming = member.come().ok_or(Error::ComesIn(spare))?;
        let device = member.held().ok_or(Error::NoDevice(spare))?;
        // What the lost device has under way is no fault of this one, nor what keeps it meanwhile.
        self.free_journal_of(lost).await?;
        self.nothing_under_way(self.core.member(lost)).await?;
        if !self.hot_spares_due().iter().any(|due| due.lost == lost) {
            return Err(Error::Awaited(lost));
        }
        let (path, geometry) = (member.path(), member.geometry());
        let uuid = self.core.rt.random_bytes();
        let arrival = Arrival::new(lost, uuid, device, geometry);
        let cleared = arrival.cleared.clone();
        let taken = self.take_in(arrival, false).await;
        let (kind, text) = match &taken {
            Ok(_) => (
                "hot-spare-used",
                format!(
                    "hot spare {spare} ({path}) takes the place of device {lost}: it is device {lost} now, and its data \
                     is rebuilt; hot spares left: {}",
                    self.hot_spares_besides(spare)
                ),
            ),
            Err(_) if !cleared.get() => return taken.map(drop), // nothing was changed
            Err(error) => {
                let why = match error {
                    Error::Device { fault, .. } => fault.to_string(),
                    other => other.to_string(),
                };
                let text = format!(
                    "hot spare {spare} ({path}) could not take the place of device {lost}, and is none any more: {why}"
                );
                ("hot-spare-failed", text)
            }
        };
        self.core.events.note(kind, Some(lost), text);
        if !planted::on(Bug::SpareUsedTwice) {
            member.close(); // whether or not the table can say so
            // If that fails the array has stopped, or its table has no room for more changes now.
            let _ = self.restate(spare, MemberState::Removed).await;
        }
        taken.map(drop)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use ashlar_device::MemDevice;
    use ashlar_rt::Rt;

    use super::*;

    /// Members of a table: state, slots, failure domain, whether a device is held.
    fn members(rows: &[(MemberState, u32, &str, bool)]) -> Members {
        let rt = Rt::simulated(1);
        let geometry = DeviceGeometry::lay_out(1 << 20, 64 << 10, (64 << 10, 64 << 10), 1).unwrap();
        let members = Members::new();
        for ((state, slots, domain, held), index) in rows.iter().zip(0..) {
            let device: DeviceRef = Rc::new(MemDevice::new("mem", 1 << 20));
            members.push(Box::new(Member::new(
                &rt,
                index,
                [0; 16],
                (*domain).to_string(),
                geometry.with_slots(*slots),
                held.then_some(device),
                *state,
            )));
        }
        members
    }

    #[test]
    fn the_smallest_hot_spare_that_fits_is_taken() {
        use MemberState::{Failed, Offline, Online, Removed, Spare, Stale};
        let lost = (Failed, 8, "a", false);
        let found = |rows: &[(MemberState, u32, &str, bool)]| {
            let due = due(&members(rows), |m| m.state() == Offline);
            due.first().map(|due| (due.spare, due.lost))
        };
        let spare = |slots, domain, held| (Spare, slots, domain, held);
        assert_eq!(found(&[lost]), None);
        assert_eq!(
            found(&[lost, spare(9, "a", true), spare(8, "a", true)]),
            Some((2, 0))
        );
        assert_eq!(found(&[lost, spare(7, "a", true)]), None, "too small");
        assert_eq!(
            found(&[lost, spare(8, "b", true)]),
            None,
            "in another failure domain"
        );
        assert_eq!(found(&[lost, spare(8, "a", false)]), None, "not here");
        assert_eq!(
            found(&[lost, (Removed, 8, "a", true)]),
            None,
            "used, or removed"
        );
        let large = (Stale, 9, "a", false);
        assert_eq!(
            found(&[large, lost, spare(8, "a", true)]),
            Some((2, 1)),
            "the first that it fits"
        );
        let both = members(&[large, lost, spare(9, "a", true), spare(8, "a", true)]);
        let pairs = due(&both, |_| false);
        let pairs: Vec<_> = pairs.iter().map(|due| (due.spare, due.lost)).collect();
        assert_eq!(pairs, [(2, 0), (3, 1)], "each that is lost");
        for state in [Offline, Online, Removed, Spare] {
            let row = (state, 8, "a", state == Online);
            assert_eq!(found(&[row, spare(8, "a", true)]), None, "{state:?}");
        }
    }
}
