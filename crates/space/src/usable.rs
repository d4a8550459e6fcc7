//! Usable space: how much volumes may be promised in all.
//!
//! Invariant: functions of members and layout; an array that is created and one that runs ask the same.

use crate::capacity::{Geometry, capacity_where};
use crate::plan::redundant_plan;
use crate::topology::{Presence, Topology};

/// How much of the spare space may not be promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spare {
    /// All of it, as with every device there.
    Whole,
    /// The part that devices which are gone have left of it.
    Left,
    /// None.
    None,
}

/// Blocks that volumes may be promised in all on the devices in use, at full redundancy, less the spare space.
#[must_use]
pub fn usable(topology: &Topology, geometry: &Geometry, spare: Spare) -> u64 {
    let mut left = topology.clone();
    for group in 0..topology.groups() {
        let mut taking: Vec<u16> = topology.taking(group).collect();
        let gone = topology.group(group).len() - taking.len();
        let each = usize::from(topology.shape().spare) / usize::from(topology.groups().max(1));
        let kept = match spare {
            Spare::Whole => each,
            Spare::Left => each.saturating_sub(gone),
            Spare::None => 0,
        };
        taking.sort_by_key(|d| std::cmp::Reverse(topology.slots(*d)));
        for device in taking.into_iter().take(kept) {
            left = left.with(device, Presence::Gone); // the largest stand for the spare space
        }
    }
    // With all devices there the failure domains constrain placement, which may leave less.
    redundant(&left, geometry).min(redundant(topology, geometry))
}

/// Blocks that groups with full redundancy hold.
fn redundant(topology: &Topology, geometry: &Geometry) -> u64 {
    let plan = redundant_plan(topology, geometry);
    capacity_where(topology, geometry, &plan, |template| template.absent == 0)
}

/// Blocks that may be promised on all devices, as if none were gone; but for those that are to leave.
#[must_use]
pub fn usable_whole(topology: &Topology, geometry: &Geometry) -> u64 {
    let count = topology.members().len() as u16;
    let whole = (0..count).fold(topology.clone(), |all, d| match all.presence(d) {
        Presence::Draining => all.without(d),
        _ => all.with(d, Presence::InUse),
    });
    usable(&whole, geometry, Spare::Whole)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::domains::Domains;
    use crate::topology::Member;

    /// Spare space stands for devices that are gone: with one, a loss leaves the usable space as it was.
    #[test]
    fn spare_space_stands_for_what_is_gone() {
        let geometry = Geometry::SAMPLE;
        let layout: ashlar_layout::Layout = "ec8+2".parse().unwrap();
        let shape = layout.resolve_with_spare(12, 1).unwrap();
        let members = vec![Member::in_use(1100); 12];
        let all = Topology::new(members, shape, Domains::default());
        let without = all.with(3, Presence::Gone);
        let whole = usable(&all, &geometry, Spare::Whole);
        assert_eq!(whole, usable_whole(&without, &geometry));
        assert_eq!(whole, usable(&without, &geometry, Spare::Left));
        assert!(whole < usable(&all, &geometry, Spare::None));
        let left = all.without(3);
        let eleven = Topology::new(
            vec![Member::in_use(1100); 11],
            layout.resolve_with_spare(11, 1).unwrap(),
            Domains::default(),
        );
        for spare in [Spare::Whole, Spare::Left, Spare::None] {
            let of = |all| usable(all, &geometry, spare);
            assert_eq!(of(&left), of(&eleven), "{spare:?}");
        }
        assert_eq!(
            usable_whole(&left, &geometry),
            usable_whole(&eleven, &geometry)
        );
        let leaving = usable_whole(&all.with(3, Presence::Draining), &geometry);
        assert!(leaving < whole, "of eleven devices one is still spare");
        let two = without.with(4, Presence::Gone);
        assert!(whole > usable(&two, &geometry, Spare::Left));
    }
}
