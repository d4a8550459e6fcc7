//! Devices that take a row of the member table: their own again, or that of another.
//!
//! Invariant: until a device is in use in the row of another, nothing of the other is forgotten. If it fails before
//! that, the row is what it was: what lies on the other counts as before, once it is back.

use ashlar_device::DeviceRef;
use ashlar_format::geometry::DeviceGeometry;
use ashlar_format::superblock::MemberState;

use crate::members::Member;
use crate::members::duties::{ComesIn, Row};

/// A take-in under way.
pub struct Coming<'a>(&'a Member);

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.0.come_in(|c| c.judged = false);
    }
}

impl Member {
    /// Begins a take-in; `None`: another one is under way.
    pub fn come(&self) -> Option<Coming<'_>> {
        if self.comes_in.get().judged {
            return None;
        }
        self.come_in(|c| c.judged = true);
        Some(Coming(self))
    }

    /// The device of this row is back: it is written and counted, and not read before [`Member::joined`].
    pub fn rejoin(&self, device: DeviceRef, geometry: DeviceGeometry) {
        self.device.replace(Some(device));
        self.geometry.set(geometry);
        self.state.set(MemberState::Online);
        self.come_in(|c| c.joining = true);
        self.stale_since.set(0);
        self.sent.wait_again();
        // What was flushed on another device, or before it left, says nothing of what is written now.
        self.writes_done.set(self.writes_done.get() + 1);
    }

    /// The same for another device, which is to take this row.
    pub fn join(&self, device: DeviceRef, uuid: [u8; 16], geometry: DeviceGeometry) {
        let before = Row {
            uuid: self.uuid.get(),
            geometry: self.geometry.get(),
            state: self.state.get(),
            stale_since: self.stale_since.get(),
        };
        self.uuid.set(uuid);
        self.rejoin(device, geometry);
        self.come_in(|c| c.before = Some(before));
    }

    /// Lets another device go that was to take this row, which is what it was before; whether there was one.
    ///
    /// Crash argument: no record and no root names a column on it, as none may before it is in use. A crash before the
    /// next generation leaves the new device in the row, missing, and what lay on the other is rebuilt.
    pub fn leave_row(&self) -> bool {
        let Some(before) = self.comes_in.get().before else {
            return false;
        };
        self.close();
        self.uuid.set(before.uuid);
        self.geometry.set(before.geometry);
        self.state.set(before.state);
        self.stale_since.set(before.stale_since);
        self.come_in(|c| (c.joining, c.before) = (false, None));
        self.changed.open();
        true
    }

    /// It is in use, with no slot taken yet.
    pub fn joined(&self) {
        let geometry = self.geometry.get();
        self.slots.renew(geometry.slots, geometry.table_pages());
        self.come_in(|c| {
            *c = ComesIn {
                judged: c.judged,
                ..ComesIn::default()
            };
        });
        self.changed.open();
    }

    /// Whether it was a spare and is not in use yet: nothing lies on it, so none of its columns is missing.
    pub fn is_new(&self) -> bool {
        let before = self.comes_in.get().before;
        before.is_some_and(|row| row.state == MemberState::Spare)
    }

    /// The import does not read its slot table.
    pub fn set_unread(&self) {
        self.come_in(|c| c.unread = true);
    }

    /// Whether nobody has read its slot table since the import: any column that is nowhere may lie on it.
    pub fn is_unread(&self) -> bool {
        self.comes_in.get().unread
    }

    /// Whether it was to leave when it was lost: known until the next import.
    pub fn was_leaving(&self) -> bool {
        self.comes_in.get().was_leaving
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::rc::Rc;

    use ashlar_device::MemDevice;
    use ashlar_rt::Rt;

    use super::*;

    fn member() -> (Member, DeviceGeometry) {
        let rt = Rt::simulated(1);
        let geometry = DeviceGeometry::lay_out(1 << 20, 64 << 10, (64 << 10, 64 << 10), 1).unwrap();
        let (had, has) = (geometry.with_slots(5), geometry.with_slots(7));
        let member = Member::new(
            &rt,
            3,
            [1; 16],
            String::new(),
            had,
            None,
            MemberState::Stale,
        );
        (member, has)
    }

    /// One that is refused does not end the one under way.
    #[test]
    fn one_take_in_is_under_way_at_a_time() {
        let (member, _) = member();
        let first = member.come();
        assert!(first.is_some());
        assert!(member.come().is_none());
        assert!(member.come().is_none(), "still");
        drop(first);
        assert!(member.come().is_some());
    }

    /// A spare that joins holds nothing before it is in use; what lay on a device that is replaced stays lost meanwhile.
    #[test]
    fn a_spare_is_new_until_it_is_in_use() {
        for (state, is_new) in [(MemberState::Spare, true), (MemberState::Stale, false)] {
            let (member, has) = member();
            member.state.set(state);
            assert!(!member.is_new());
            let device: DeviceRef = Rc::new(MemDevice::new("mem", 1 << 20));
            member.join(device, [2; 16], has);
            assert_eq!(member.is_new(), is_new);
            member.joined();
            assert!(!member.is_new());
        }
    }

    /// A device that fails as it takes a row leaves it as it was; one that is in use keeps it.
    #[test]
    fn a_row_is_what_it_was_until_another_device_is_in_use() {
        let (member, has) = member();
        member.stale_since.set(9);
        let row = || {
            let (state, since) = (member.state(), member.stale_since.get());
            (member.uuid(), member.geometry().slots, state, since)
        };
        let before = row();
        assert!(!member.leave_row());
        let device: DeviceRef = Rc::new(MemDevice::new("mem", 1 << 20));
        member.join(device.clone(), [2; 16], has);
        assert_eq!(row(), ([2; 16], 7, MemberState::Online, 0));
        assert!(member.is_counted() && !member.is_read());
        assert!(member.leave_row());
        assert_eq!(row(), before);
        assert!(!member.is_counted() && !member.is_held());
        member.join(device, [2; 16], has);
        member.joined();
        assert!(!member.leave_row());
        assert_eq!(row(), ([2; 16], 7, MemberState::Online, 0));
        assert!(member.is_read());
    }
}
