//! Shares: how far the free slots of each device are from those that it had if all devices were as evenly free as can
//! be.
//!
//! Evenly free, not evenly full: new segments go to the devices with the most free slots, and devices that differ in
//! size hold the most wide segments so.
//!
//! Invariant: slots that are free, or will be, and those that stay in use are counted once each.

use crate::ledger::Ledger;
use crate::topology::Area;

/// How a device stands beside others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) device: u16,
    /// Slots that it has free, or will have.
    pub(crate) free: i64,
    /// Of these, those beyond its share; less than 0 if it holds more than its share.
    pub(crate) beyond: i64,
}

impl Ledger {
    /// The devices of an area, those that hold most beyond their share first. `segments`: how many the devices hold:
    /// none has two columns of one.
    pub(crate) fn shares(&self, area: Area, segments: u32) -> Vec<Share> {
        let coming = self.coming();
        let devices = self.topology().taking_in(area);
        let free = |d: u16| i64::from(coming[usize::from(d)]);
        let held = |d: u16| {
            let book = self.book(d);
            i64::from(book.used - book.due)
        };
        let most = devices.iter().map(|d| held(*d)).max().unwrap_or(0);
        let most = most.max(segments.into());
        // Free slots of a device where all had `level` of them.
        let share = |d: u16, level: i64| {
            let slots = free(d) + held(d);
            level.clamp((slots - most).max(0), slots)
        };
        let all: i64 = devices.iter().map(|d| free(*d)).sum();
        let (mut level, mut above) = (0, all + 1);
        while above - level > 1 {
            let middle = i64::midpoint(level, above);
            let taken: i64 = devices.iter().map(|d| share(*d, middle)).sum();
            match taken <= all {
                true => level = middle,
                false => above = middle,
            }
        }
        let of = |d: &u16| Share {
            device: *d,
            free: free(*d),
            beyond: free(*d) - share(*d, level),
        };
        let mut shares: Vec<Share> = devices.iter().map(of).collect();
        shares.sort_by_key(|share| share.beyond);
        shares
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::capacity::Geometry;
    use crate::domains::Domains;
    use crate::plan::plan;
    use crate::promise::Promises;
    use crate::topology::{Member, Topology};

    /// Slots and used slots of each device, segments, and what each is free beyond its share.
    #[test]
    fn shares_are_evenly_free() {
        for (devices, segments, beyond) in [
            (
                [(100, 60), (100, 60), (100, 60), (100, 60)],
                80,
                [0, 0, 0, 0],
            ),
            // One came new.
            (
                [(100, 60), (100, 60), (100, 60), (100, 0)],
                60,
                [-15, -15, -15, 45],
            ),
            // A small one is to be empty before it has fewer free slots than others.
            (
                [(100, 60), (100, 60), (100, 60), (20, 9)],
                63,
                [3, 3, 3, -9],
            ),
            // A large one holds a column of each segment, and no more.
            (
                [(100, 90), (100, 90), (100, 90), (1000, 90)],
                120,
                [-10, -10, -10, 30],
            ),
            (
                [(100, 80), (100, 80), (100, 80), (1000, 120)],
                120,
                [0, 0, 0, 0],
            ),
        ] {
            let layout: ashlar_layout::Layout = "ec2+1".parse().unwrap();
            let shape = layout.resolve(4).unwrap();
            let members = devices.map(|(slots, _)| Member::in_use(slots)).to_vec();
            let all = Topology::new(members, shape, Domains::default());
            let plan = plan(&all, &Geometry::SAMPLE, &Promises::default(), None);
            let mut ledger = Ledger::new(all, plan);
            for (device, (_, used)) in (0u16..).zip(devices) {
                ledger.occupy(device, used);
            }
            let mut shares = ledger.shares(Area::Group(0), segments);
            assert!(shares.is_sorted_by_key(|share| share.beyond));
            shares.sort_unstable_by_key(|share| share.device);
            let is: Vec<i64> = shares.iter().map(|share| share.beyond).collect();
            assert_eq!(is, beyond, "{devices:?}");
        }
    }
}
