//! Members in use that another device takes the place of.
//!
//! Invariants:
//! - Nothing has less redundancy meanwhile: the old one is read, written and counted until nothing lies on it.
//! - The new one is of the old one's group: what lay on the old one has where to go.
//! - Both changes are checked before the first is made; the second is checked again when it is made.
//!
//! Crash argument. Two changes of members, one after the other, each with its own argument: the new one is added
//! (`home/addition.rs`), then the old one is told to leave (`home/removal.rs`). In this order, since a generation in
//! which the old one leaves and the new one does not count yet could be of an array that has too few devices for its
//! layout. A crash before the new one counts leaves the array as it was, or with a spare row. A crash between the two
//! leaves an array with a device more, where nothing is missing: `remove` of the old one goes on. A crash after the
//! second leaves one that goes on leaving by itself.

use std::rc::Rc;

use ashlar_device::DeviceRef;
use ashlar_format::DeviceGeometry;
use ashlar_format::superblock::MemberState;

use crate::error::Error;
use crate::home::Home;
use crate::home::removal::Without;
use crate::home::returning::Taken;

impl Home {
    /// What the array is with a device more in the group of a member in use, and without that member.
    ///
    /// # Errors
    /// Why the one cannot take the place of the other.
    pub(crate) fn check_replacement(
        &self,
        old: u16,
        geometry: DeviceGeometry,
    ) -> Result<Without, Error> {
        let member = self.core.member(old);
        let in_use = matches!(member.state(), MemberState::Online | MemberState::Removing);
        if !in_use || !member.is_read() {
            return Err(Error::NotInUse(old));
        }
        self.check_table(&[geometry])?;
        let topology = self.topology();
        let group = topology.group_of(old).ok_or(Error::NoDevice(old))?;
        let with = topology.and(geometry.slots, Some(group), Some(old));
        let left = self.left_without(old, &with);
        let have = left.taking(group).count();
        let need = left.shape().width().into();
        if have < need {
            return Err(Error::TooFewWith { old, have, need });
        }
        let without = Without {
            moved_bytes: self.bytes_on(member),
            ..self.space_on(&left)
        };
        // With devices missing there may be too little space already: then it is enough that there is no less.
        let before = self.space_on(&topology).usable_bytes;
        match without.usable_bytes >= without.promised_bytes.min(before) {
            true => Ok(without),
            false => Err(Error::NoRoomWith {
                old,
                promised: without.promised_bytes,
                usable: without.usable_bytes,
            }),
        }
    }

    /// Adds a device in the group and failure domain of a member in use, and has that member leave.
    pub(crate) async fn add_for(
        self: &Rc<Self>,
        old: u16,
        device: DeviceRef,
        geometry: DeviceGeometry,
    ) -> Result<(u16, Taken), Error> {
        self.check_replacement(old, geometry)?;
        let enough = self.space_on(&self.topology()).usable_bytes;
        let member = self.core.member(old);
        let (domain, group) = (member.domain(), member.group);
        let (index, taken) = self.add(device, geometry, domain, group).await?;
        match self.leave(old, enough).await {
            Ok(()) => Ok((index, taken)),
            // It was to leave already, and has.
            Err(_) if member.state() == MemberState::Removed => Ok((index, taken)),
            Err(why) => Err(Error::OldStays {
                index,
                old,
                why: Box::new(why),
            }),
        }
    }
}
