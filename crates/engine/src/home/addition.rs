//! Devices that are added to an array while it runs.
//!
//! Invariants:
//! - A row of the member table, once written, keeps its index, and its group.
//! - No epoch of the journal that is older than a member's row lies on it: the row says with which number they begin.
//!
//! Crash argument. First a generation has the row, as that of a spare, which does not count: every epoch there is
//! excludes it, since its row says so, also where the root that says so as well was not written any more; so the device
//! sets of these epochs are what they were. Then the device is taken in as one that takes another's place
//! (`home/returning.rs`); a crash before it counts leaves a row without a device.

use std::rc::Rc;

use ashlar_device::DeviceRef;
use ashlar_format::superblock::{MemberEntry, MemberState, Superblock};
use ashlar_format::{BLOCK_U64, DeviceGeometry};
use ashlar_space::topology::Topology;
use ashlar_space::usable::{Spare, usable};

use crate::error::Error;
use crate::home::Home;
use crate::home::returning::Taken;
use crate::members::Member;
use crate::members::arrival::Arrival;

/// Rows that additions may lead to: roots name those of them that are out of use, for each of a few epochs.
const MOST_ROWS: usize = 2048;

/// What an array is with devices more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct With {
    /// Bytes that volumes may be promised in all, as it is.
    pub usable_before: u64,
    /// The same with these devices.
    pub usable_bytes: u64,
    /// Bytes of what is there that move to them.
    pub moved_bytes: u64,
}

/// Whether the superblocks of devices have room for a table of so many members.
///
/// # Errors
/// [`Error::TooManyMembers`]
pub(crate) fn check_rows<'a>(
    devices: impl IntoIterator<Item = &'a DeviceGeometry>,
    rows: usize,
) -> Result<(), Error> {
    let most = |d: &DeviceGeometry| Superblock::most_members(d.super_bytes);
    match devices.into_iter().map(most).min() {
        Some(most) if most < rows => Err(Error::TooManyMembers { most }),
        _ => Ok(()),
    }
}

impl Home {
    /// Whether the table of members has room for these as well.
    pub(super) fn check_table(&self, new: &[DeviceGeometry]) -> Result<(), Error> {
        let members = &self.core.members;
        let have: Vec<DeviceGeometry> = members.iter().map(|m| m.geometry()).collect();
        let rows = have.len() + new.len();
        if rows > MOST_ROWS {
            return Err(Error::TooManyMembers { most: MOST_ROWS });
        }
        check_rows(have.iter().chain(new), rows)
    }

    /// What the array is with these devices more, each with its failure domain.
    ///
    /// # Errors
    /// [`Error::TooManyMembers`]
    pub(crate) fn check_addition(&self, new: &[(DeviceGeometry, &str)]) -> Result<With, Error> {
        let geometries: Vec<DeviceGeometry> = new.iter().map(|(geometry, _)| *geometry).collect();
        self.check_table(&geometries)?;
        let before = self.topology();
        let mut labels: Vec<String> = self.core.members.iter().map(Member::domain).collect();
        let mut with = (*before).clone();
        for (geometry, label) in new {
            let like = labels.iter().position(|l| l == *label && !l.is_empty());
            let like = like.and_then(|at| u16::try_from(at).ok());
            with = with.and(geometry.slots, None, like);
            labels.push((*label).to_string());
        }
        let usable = |topology: &Topology| {
            usable(topology, &self.geometry_on(topology, 1), Spare::Left) * BLOCK_U64
        };
        Ok(With {
            usable_before: usable(&before),
            usable_bytes: usable(&with),
            moved_bytes: self.bytes_to_even(&with),
        })
    }

    /// Adds a device, in a group; in the smallest if none is given.
    pub(crate) async fn add(
        self: &Rc<Self>,
        device: DeviceRef,
        geometry: DeviceGeometry,
        domain: String,
        group: Option<u16>,
    ) -> Result<(u16, Taken), Error> {
        self.make_room_for_epochs().await?;
        let uuid = self.core.rt.random_bytes();
        let index = self.new_row(uuid, geometry, domain, group).await?;
        let arrival = Arrival::new(index, uuid, device, geometry);
        match self.take_in(arrival, false).await {
            Ok(taken) => Ok((index, taken)),
            Err(error) => {
                // If that fails the array has stopped.
                let _ = self.restate(index, MemberState::Removed).await;
                Err(error)
            }
        }
    }

    /// A generation with a row for a device that does not count yet.
    pub(super) async fn new_row(
        self: &Rc<Self>,
        uuid: [u8; 16],
        geometry: DeviceGeometry,
        domain: String,
        group: Option<u16>,
    ) -> Result<u16, Error> {
        let _checkpoint = self.checkpoints.turn.lock().await;
        let log = self.log.turn.lock().await;
        if *log || self.core.closed.get() {
            return Err(Error::Closed);
        }
        self.check_table(&[geometry])?;
        let index = u16::try_from(self.core.members.len()).expect("checked");
        let group = group.or_else(|| self.topology().group_of_next());
        let first_epoch = self.root.borrow().epochs.last().map_or(1, |e| e.number + 1);
        let state = MemberState::Spare;
        let mut member = Member::new(
            &self.core.rt,
            index,
            uuid,
            domain.clone(),
            geometry,
            None,
            state,
        );
        member.group = group;
        member.first_epoch = first_epoch;
        member.sent.tell(&self.core.lateness);
        self.core.members.push(Box::new(member));
        self.superblock.borrow_mut().members.push(MemberEntry {
            uuid,
            slots: geometry.slots,
            state,
            stale_since: 0,
            group,
            first_epoch,
            domain,
            domain_since: 0,
        });
        self.root.leave_out(index);
        self.publish_members().await;
        drop(log);
        match self.core.closed.get() {
            true => Err(Error::Closed),
            false => Ok(index),
        }
    }
}
