//! Shares: the slots that each device would have in use if all segments were placed anew on the devices that there are.
//!
//! They are reckoned by the rule that places new segments ([`Placement::loads`]): in proportion to the size of devices,
//! within the cap of failure domains, a column of a segment on a device at most. So what placement does is never undone.

use ashlar_layout::Placement;

use crate::ledger::Ledger;
use crate::topology::Area;

/// How a device stands beside others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) device: u16,
    /// Slots that it has free, or will have.
    pub(crate) free: i64,
    /// Slots that it has in use below its share; less than 0 if it has more in use.
    pub(crate) below: i64,
}

impl Ledger {
    /// The devices of an area, those first that have most in use above their share.
    pub(crate) fn shares(&self, area: Area) -> Vec<Share> {
        let coming = self.coming();
        let topology = self.topology();
        let devices = topology.taking_in(area);
        let template = self.plan().of(area);
        let held = |d: u16| {
            let book = self.book(d);
            i64::from(book.used.saturating_sub(book.due))
        };
        let loads = Placement::loads(
            &devices,
            template.laid().into(),
            &|d| topology.domains().of(d),
            template.cap.into(),
            &|d| topology.slots(d).into(),
        );
        let in_use: i64 = devices.iter().map(|d| held(*d)).sum();
        let columns: f64 = loads.iter().map(|(_, load)| load).sum();
        let of = |(device, load): (u16, f64)| Share {
            device,
            free: coming[usize::from(device)].into(),
            below: (in_use as f64 * load / columns.max(1.0)).round() as i64 - held(device),
        };
        let mut shares: Vec<Share> = loads.into_iter().map(of).collect();
        shares.sort_by_key(|share| (share.below, share.device));
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

    /// Slots and used slots of each device, the failure domain of each, and by how much each is below its share.
    #[test]
    fn shares_are_what_placement_gives() {
        let alone = ["", "", "", ""];
        for (devices, domains, below) in [
            (
                [(100, 60), (100, 60), (100, 60), (100, 60)],
                alone,
                [0, 0, 0, 0],
            ),
            // One came new.
            (
                [(100, 60), (100, 60), (100, 60), (100, 0)],
                alone,
                [-15, -15, -15, 45],
            ),
            // In proportion to their size.
            (
                [(100, 50), (100, 50), (100, 50), (50, 25)],
                alone,
                [0, 0, 0, 0],
            ),
            // A large one holds a column of each segment, and no more.
            (
                [(100, 80), (100, 80), (100, 80), (1000, 120)],
                alone,
                [0, 0, 0, 0],
            ),
            // A domain has a column of each segment: what comes new shares that with its neighbour.
            (
                [(100, 60), (100, 60), (100, 60), (100, 0)],
                ["a", "b", "c", "c"],
                [0, 0, -30, 30],
            ),
        ] {
            let layout: ashlar_layout::Layout = "ec2+1".parse().unwrap();
            let shape = layout.resolve(4).unwrap();
            let members = devices.map(|(slots, _)| Member::in_use(slots)).to_vec();
            let all = Topology::new(members, shape, Domains::new(domains.into_iter()));
            let plan = plan(&all, &Geometry::SAMPLE, &Promises::default(), None);
            let mut ledger = Ledger::new(all, plan);
            for (device, (_, used)) in (0u16..).zip(devices) {
                ledger.occupy(device, used);
            }
            let mut shares = ledger.shares(Area::Group(0));
            assert!(shares.is_sorted_by_key(|share| share.below));
            shares.sort_unstable_by_key(|share| share.device);
            let is: Vec<i64> = shares.iter().map(|share| share.below).collect();
            assert_eq!(is, below, "{devices:?}");
        }
    }
}
