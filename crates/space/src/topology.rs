//! Members, shape and failure domains as one value that does not change.
//!
//! Invariants:
//! - A change of members makes a new value. Nothing here is ever written.
//! - A device belongs to one group at most. Segments of data never cross groups; segments of nodes lie on the
//!   devices of all groups.

use ashlar_layout::Shape;

use crate::domains::Domains;

/// The use that may be made of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Presence {
    /// It is read and written, and takes new columns.
    InUse,
    /// It is read and written, but takes no new columns: its columns are to go elsewhere.
    Draining,
    /// It is not there: its columns are missing.
    Gone,
}

/// One device of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Member {
    /// Its slots, 1 to 2^24; kept when it is gone.
    pub slots: u32,
    /// The use that may be made of it.
    pub presence: Presence,
    /// The device that it is about to replace. Until that one is out, both are one device for placement: no segment
    /// has columns on both, but for the column that moves from one to the other.
    pub replaces: Option<u16>,
    /// It is on its way into the array, and nothing lies on it yet: it is not one that is missing.
    pub is_new: bool,
}

impl Member {
    /// A device in use with so many slots.
    #[must_use]
    pub fn in_use(slots: u32) -> Member {
        Member {
            slots,
            presence: Presence::InUse,
            replaces: None,
            is_new: false,
        }
    }
}

/// Where a segment lies: on the devices of all groups, or on those of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Area {
    /// Segments of nodes: all devices.
    Nodes,
    /// Segments of data: the devices of this group.
    Group(u16),
}

/// The devices of an array and how they belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    members: Vec<Member>,
    shape: Shape,
    domains: Domains,
    group_of: Vec<Option<u16>>,
}

impl Topology {
    /// Devices, in the order of their indexes, with the layout on all of them. A device that `shape` names in no
    /// group belongs to none and takes nothing.
    #[must_use]
    pub fn new(members: Vec<Member>, shape: Shape, domains: Domains) -> Topology {
        let mut group_of = vec![None; members.len()];
        for (group, number) in shape.groups.iter().zip(0u16..) {
            for device in group {
                if let Some(of) = group_of.get_mut(usize::from(*device)) {
                    *of = Some(number);
                }
            }
        }
        Topology {
            members,
            shape,
            domains,
            group_of,
        }
    }

    /// The same with another state of one device.
    #[must_use]
    pub fn with(&self, device: u16, presence: Presence) -> Topology {
        let mut other = self.clone();
        if let Some(member) = other.members.get_mut(usize::from(device)) {
            member.presence = presence;
        }
        other
    }

    /// The group that a new device belongs to: the one with the fewest devices; `None` if there is none.
    #[must_use]
    pub fn group_of_next(&self) -> Option<u16> {
        (0u16..)
            .zip(&self.shape.groups)
            .min_by_key(|(_, group)| group.len())
            .map(|(number, _)| number)
    }

    /// The same with a device more of so many slots, in a group (in that of [`Topology::group_of_next`] if none is given),
    /// and in the failure domain of the device `like` or in one of its own.
    #[must_use]
    pub fn and(&self, slots: u32, group: Option<u16>, like: Option<u16>) -> Topology {
        let mut shape = self.shape.clone();
        let index = u16::try_from(self.members.len()).unwrap_or(u16::MAX);
        let group = group.or_else(|| self.group_of_next()).map(usize::from);
        if let Some(group) = group.and_then(|group| shape.groups.get_mut(group)) {
            group.push(index);
        }
        let mut members = self.members.clone();
        members.push(Member::in_use(slots));
        Topology::new(members, shape, self.domains.and(like))
    }

    /// The same with one device that belongs to no group: it is not one of the array any more.
    #[must_use]
    pub fn without(&self, device: u16) -> Topology {
        let mut shape = self.shape.clone();
        for group in &mut shape.groups {
            group.retain(|d| *d != device);
        }
        let members = self.with(device, Presence::Gone).members;
        Topology::new(members, shape, self.domains.clone())
    }

    /// All devices, by index.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The layout on all devices.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The failure domains.
    #[must_use]
    pub fn domains(&self) -> &Domains {
        &self.domains
    }

    /// The number of groups, at least 1.
    #[must_use]
    pub fn groups(&self) -> u16 {
        u16::try_from(self.shape.groups.len()).unwrap_or(u16::MAX)
    }

    /// All devices of a group, those that are gone included.
    #[must_use]
    pub fn group(&self, group: u16) -> &[u16] {
        self.shape
            .groups
            .get(usize::from(group))
            .map_or(&[], Vec::as_slice)
    }

    /// The group of a device.
    #[must_use]
    pub fn group_of(&self, device: u16) -> Option<u16> {
        self.group_of.get(usize::from(device)).copied().flatten()
    }

    /// The use that may be made of a device; [`Presence::Gone`] for one that is not known.
    #[must_use]
    pub fn presence(&self, device: u16) -> Presence {
        self.members
            .get(usize::from(device))
            .map_or(Presence::Gone, |m| m.presence)
    }

    /// The slots of a device.
    #[must_use]
    pub fn slots(&self, device: u16) -> u32 {
        self.members.get(usize::from(device)).map_or(0, |m| m.slots)
    }

    /// The devices of a group that take new columns.
    pub fn taking(&self, group: u16) -> impl Iterator<Item = u16> + '_ {
        let takes = |d: &u16| self.presence(*d) == Presence::InUse;
        self.group(group).iter().copied().filter(takes)
    }

    /// The devices of an area that take new columns.
    #[must_use]
    pub fn taking_in(&self, area: Area) -> Vec<u16> {
        match area {
            Area::Nodes => (0..self.groups()).flat_map(|g| self.taking(g)).collect(),
            Area::Group(group) => self.taking(group).collect(),
        }
    }

    /// How many devices of a group take no new columns, be they gone or about to go; those that are new do not count.
    #[must_use]
    pub fn lacking(&self, group: u16) -> usize {
        let is_new = |d: &u16| self.members.get(usize::from(*d)).is_some_and(|m| m.is_new);
        let all = self.group(group).iter().filter(|d| !is_new(d));
        all.filter(|d| self.presence(**d) != Presence::InUse)
            .count()
    }

    /// Whether every device of a group takes new columns.
    #[must_use]
    pub fn is_whole(&self, group: u16) -> bool {
        self.lacking(group) == 0
    }

    /// The device that this one counts as where columns are to lie on different devices.
    #[must_use]
    pub fn identity(&self, device: u16) -> u16 {
        let member = self.members.get(usize::from(device));
        let replaced = member.and_then(|m| m.replaces);
        let there = |d: &u16| self.presence(*d) != Presence::Gone;
        replaced.filter(there).unwrap_or(device)
    }

    /// How many devices of each domain take new columns, of these.
    #[must_use]
    pub fn domain_sizes(&self, devices: &[u16]) -> Vec<usize> {
        let counts = self.domains.count(devices.iter().copied());
        counts.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn topology() -> Topology {
        let layout: ashlar_layout::Layout = "raid10".parse().unwrap();
        let shape = layout.resolve(4).unwrap();
        let members = vec![Member::in_use(10); 4];
        Topology::new(members, shape, Domains::new(["", "", "", ""].into_iter()))
    }

    #[test]
    fn devices_belong_to_groups_and_areas() {
        let all = topology();
        let table = [(0, Some(0)), (1, Some(0)), (3, Some(1)), (9, None)];
        for (device, group) in table {
            assert_eq!(all.group_of(device), group);
        }
        assert_eq!(all.taking_in(Area::Nodes), [0, 1, 2, 3]);
        assert!(all.is_whole(0));
        let without = all.with(1, Presence::Gone);
        assert_eq!(without.taking_in(Area::Group(0)), [0]);
        assert_eq!(without.taking_in(Area::Nodes), [0, 2, 3]);
        assert!(!without.is_whole(0) && without.is_whole(1));
        assert!(!all.with(2, Presence::Draining).is_whole(1));
        assert_eq!(without.presence(7), Presence::Gone);
    }

    #[test]
    fn a_new_device_is_of_the_group_that_is_said() {
        let all = topology().without(3);
        for (said, group) in [(None, 1), (Some(0), 0), (Some(1), 1)] {
            let with = all.and(7, said, Some(0));
            assert_eq!((with.group_of(4), with.slots(4)), (Some(group), 7));
            assert_eq!(with.domains().of(4), 0);
        }
    }

    /// A device and its replacement are one device as long as both are there.
    #[test]
    fn a_replacement_counts_as_what_it_replaces() {
        let mut members = vec![Member::in_use(10); 4];
        members[3].replaces = Some(2);
        let shape = topology().shape().clone();
        let all = Topology::new(members, shape, Domains::default());
        assert_eq!([0, 2, 3].map(|d| all.identity(d)), [0, 2, 2]);
        assert_eq!(all.with(2, Presence::Draining).identity(3), 2);
        let without = all.without(2);
        assert_eq!((without.group(1), without.group_of(2)), (&[3][..], None));
        assert_eq!((without.shape().devices(), without.members().len()), (3, 4));
        assert!(without.is_whole(1), "it counts no more");
        assert_eq!(all.with(2, Presence::Gone).identity(3), 3);
    }
}
