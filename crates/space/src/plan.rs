//! The plan: the shape of new segments, as one value that all readers share.
//!
//! A group of P devices lays K+M columns. Where devices are gone a segment of a group of n devices in use may do
//! without `absent` of its columns, 0 to M: then it has min(K, n + absent - M) data columns. With none absent it is
//! narrow and has full redundancy; with one absent it is laid as on one device more, and so on. The plan takes the
//! fewest absent columns with which volumes have the room they need. So a new segment never lacks more columns than
//! devices went since all had room: with one device fewer, as many segments of w - 1 columns fit as segments of w did
//! before.
//!
//! Invariants:
//! - The plan is a function of its arguments. It changes with the members, and at the end of a checkpoint.
//! - It gives up redundancy only for room that volumes were promised and come to need, and takes it back only with
//!   room to spare: it knows the plan before, and does not go back and forth.
//! - Nodes are laid as on the devices that data are laid as on, unless these are so full that they have to be narrower:
//!   `Ledger::with_room_for_steps`.

use ashlar_layout::{Placement, Shape};

use crate::capacity::{Geometry, capacity};
use crate::domains::Domains;
use crate::promise::Promises;
use crate::template::{Plan, Template};
use crate::topology::{Area, Topology};

/// How many lost devices nodes survive where there are enough: one more than data; and since nodes lie on devices of
/// all groups, M of each group. No codeword has more parity than 255.
#[must_use]
pub fn nodes_survive(shape: &Shape) -> usize {
    let one_more = usize::from(shape.m) + 1;
    one_more.max(2).max(shape.most_lost()).min(255)
}

/// Data and parity columns of segments of nodes on these devices, at full redundancy. No more than the parity lie in
/// one failure domain, unless there is but one.
#[must_use]
pub fn node_shape(shape: &Shape, domains: &Domains, devices: &[u16]) -> (u16, u16) {
    let count = devices.len().max(1);
    let m = nodes_survive(shape).min(count - 1);
    let width = domains.width(devices, m).min(count);
    let k = width.saturating_sub(m).clamp(1, 8.min(256 - m));
    (k as u16, m as u16)
}

/// Data columns of segments of nodes once as many devices of each group are gone as may be.
#[must_use]
pub fn least_node_k(topology: &Topology) -> u16 {
    let (shape, m) = (topology.shape(), usize::from(topology.shape().m));
    let left = |group: &Vec<u16>| group[..group.len().saturating_sub(m).max(1)].to_vec();
    let left: Vec<u16> = shape.groups.iter().flat_map(left).collect();
    node_shape(shape, topology.domains(), &left).0
}

/// How a group lays segments that lack so many columns; `None` if that is no choice there.
///
/// `capped`: no failure domain holds more than M of the columns. It is no choice where the domains cannot carry that.
#[must_use]
pub fn template(
    topology: &Topology,
    geometry: &Geometry,
    group: u16,
    absent: u16,
    capped: bool,
) -> Option<Template> {
    let shape = topology.shape();
    let devices: Vec<u16> = topology.taking(group).collect();
    let count = devices.len() as u64;
    let (absent64, m) = (u64::from(absent), u64::from(shape.m));
    let gone = topology.lacking(group) as u64;
    let least = u64::from(geometry.least_data.min(shape.k).max(1));
    if absent64 > m.min(gone) || count + absent64 < m + least {
        return None;
    }
    let k = (count + absent64 - m).min(u64::from(shape.k)) as u16;
    let laid = k + shape.m - absent;
    let sizes = topology.domain_sizes(&devices);
    let shared = sizes.len() > 1 && sizes.iter().any(|n| *n > usize::from(shape.m.max(1)));
    let carries = shared && Placement::survives_domain(&sizes, laid.into(), shape.m.into());
    if capped && !carries {
        return None;
    }
    Some(Template {
        k,
        m: shape.m,
        absent,
        cap: if capped { shape.m } else { k + shape.m },
    })
}

/// How a group with too few devices for any stripe would lay one: on more than there are, so that nothing fits.
fn nothing_fits(topology: &Topology, geometry: &Geometry) -> Template {
    let shape = topology.shape();
    Template {
        k: geometry.least_data.min(shape.k).max(1),
        m: shape.m,
        absent: shape.m,
        cap: shape.width(),
    }
}

/// The templates that a group may have, the best first: the fewest absent columns, and of these with a cap on domains
/// where they carry it. With all devices there the cap is no choice: a device that is full does not cost the loss of a
/// domain.
fn choices(topology: &Topology, geometry: &Geometry, group: u16) -> Vec<Template> {
    let mut choices = Vec::new();
    for absent in 0..=topology.shape().m {
        let with_cap = template(topology, geometry, group, absent, true);
        let without = template(topology, geometry, group, absent, false);
        let keeps_cap = with_cap.is_some() && topology.is_whole(group);
        choices.extend(with_cap);
        choices.extend(without.filter(|_| !keeps_cap));
    }
    if choices.is_empty() {
        choices.push(nothing_fits(topology, geometry));
    }
    choices
}

/// How nodes are laid beside data that are laid so: as on the devices in use, and as many of those that are gone as
/// data lack columns. Of a group that no data go to while others give them more redundancy, these count where room is
/// short (`short`): nodes that are laid narrower take more.
fn nodes_beside(topology: &Topology, groups: &[Template], short: bool) -> Template {
    let mut counted = topology.taking_in(Area::Nodes);
    let online = counted.clone();
    for (group, template) in (0..topology.groups()).zip(groups) {
        if !short && groups.iter().any(|other| other.outranks(template)) {
            continue;
        }
        let gone = topology.group(group).iter().copied();
        let gone = gone.filter(|d| !online.contains(d));
        counted.extend(gone.take(template.absent.into()));
    }
    let (k, m) = node_shape(topology.shape(), topology.domains(), &counted);
    let width = usize::from(k) + usize::from(m);
    let absent = width.saturating_sub(online.len()).min(m.into()) as u16;
    let laid = width as u16 - absent;
    let sizes = topology.domain_sizes(&online);
    let carries = Placement::survives_domain(&sizes, laid.into(), m.into());
    Template {
        k,
        m,
        absent,
        cap: if carries { m } else { k + m },
    }
}

/// How segments are laid at full redundancy, in as much room as they can have: with all devices there the failure
/// domains are kept, without some the promises come before them. A group that cannot has absent columns.
#[must_use]
pub fn redundant_plan(topology: &Topology, geometry: &Geometry) -> Plan {
    let best = |group: u16| {
        let choices = choices(topology, geometry, group);
        let full = choices.iter().rev().find(|t| t.absent == 0);
        full.copied().unwrap_or(choices[0])
    };
    let groups: Vec<Template> = (0..topology.groups()).map(best).collect();
    let nodes = nodes_beside(topology, &groups, false);
    Plan { groups, nodes }
}

/// How new segments are laid, in this array and with these promises; `before`: the plan until now.
#[must_use]
pub fn plan(
    topology: &Topology,
    geometry: &Geometry,
    promises: &Promises,
    before: Option<&Plan>,
) -> Plan {
    let groups: Vec<Vec<Template>> = (0..topology.groups())
        .map(|g| choices(topology, geometry, g))
        .collect();
    let chosen = |at: &[usize], short: bool| -> Plan {
        let groups: Vec<Template> = groups.iter().zip(at).map(|(c, at)| c[*at]).collect();
        let nodes = nodes_beside(topology, &groups, short);
        Plan { groups, nodes }
    };
    let mut at = vec![0; groups.len()];
    let mut short = false;
    let first = chosen(&at, false);
    if groups.iter().all(|choices| choices.len() == 1) && chosen(&at, true) == first {
        return first;
    }
    loop {
        let plan = chosen(&at, short);
        let holds = capacity(topology, geometry, &plan);
        if has_room(holds, &plan, promises, geometry, before) {
            return plan;
        }
        // The next choice of a group that gives room, and how much there is then.
        let step = |group: usize| -> Option<(u64, usize, usize)> {
            (at[group] + 1..groups[group].len()).find_map(|choice| {
                let mut next = at.clone();
                next[group] = choice;
                let gives = capacity(topology, geometry, &chosen(&next, short));
                (gives > holds).then_some((gives, group, choice))
            })
        };
        let steps = (0..groups.len()).filter_map(step);
        let Some((_, group, choice)) =
            steps.max_by_key(|(gives, group, _)| (*gives, usize::MAX - group))
        else {
            if short {
                return plan;
            }
            short = true;
            continue;
        };
        at[group] = choice;
    }
}

/// Whether a plan that holds so many blocks has the room that volumes need: all that they were promised, or what they
/// hold and a part of the array more, if that is less. A plan with more redundancy than before wants more room to
/// spare.
fn has_room(
    holds: u64,
    plan: &Plan,
    promises: &Promises,
    geometry: &Geometry,
    before: Option<&Plan>,
) -> bool {
    let absent = |plan: &Plan| plan.groups.iter().map(|t| u64::from(t.absent)).sum::<u64>();
    let gains = before.is_some_and(|before| absent(before) > absent(plan));
    let part = if gains { holds / 8 } else { holds / 32 };
    let segments = plan.groups.iter().map(|t| geometry.data_blocks(t.k));
    let spare = part.max(2 * segments.max().unwrap_or(0));
    let Some(narrowest) = plan.groups.iter().min_by_key(|t| t.k) else {
        return true;
    };
    let (promised, used) = promises.blocks(geometry, narrowest, &plan.nodes);
    promised.min(used + spare) <= holds
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::promise::Volume;
    use crate::topology::{Member, Presence};

    fn topology(layout: &str, slots: &[u32], labels: &[&str], gone: &[u16]) -> Topology {
        let layout: ashlar_layout::Layout = layout.parse().unwrap();
        let shape = layout.resolve(slots.len() as u16).unwrap();
        let members = slots.iter().map(|s| Member::in_use(*s)).collect();
        let all = Topology::new(members, shape, Domains::new(labels.iter().copied()));
        gone.iter().fold(all, |all, d| all.with(*d, Presence::Gone))
    }

    /// A thick volume of so many percent of what the whole array holds, written to so many percent of that.
    fn promises(layout: &str, slots: &[u32], percent: u64, written: u64) -> Promises {
        let whole = topology(layout, slots, &[], &[]);
        let none = Promises::default();
        let all = capacity(
            &whole,
            &Geometry::SAMPLE,
            &plan(&whole, &Geometry::SAMPLE, &none, None),
        ) * 4096;
        let size_bytes = all / 100 * percent;
        Promises {
            volumes: vec![Volume {
                size_bytes,
                mapped_bytes: size_bytes / 100 * written,
                block_blocks: 1,
                ..Volume::default()
            }],
        }
    }

    fn said(template: Template) -> (u16, u16, u16) {
        (template.k, template.m, template.absent)
    }

    /// Layout, devices, those that are gone, percent promised, percent of that written: K, M and absent columns.
    #[test]
    fn redundancy_is_given_up_only_for_room_that_is_needed() {
        for (layout, count, gone, percent, written, is) in [
            ("ec8+2", 12, &[][..], 100, 100, (8, 2, 0)),
            ("ec8+2", 12, &[3], 90, 100, (8, 2, 0)),
            ("ec8+2", 12, &[3], 100, 100, (8, 2, 1)),
            ("ec8+2", 12, &[3], 100, 50, (8, 2, 0)),
            ("ec8+2", 12, &[3, 4], 100, 100, (8, 2, 2)),
            ("ec8+2", 10, &[3], 80, 100, (7, 2, 0)),
            ("ec8+2", 10, &[3], 100, 100, (8, 2, 1)),
            ("ec8+2", 10, &[3, 4], 70, 100, (6, 2, 0)),
            ("ec8+2", 10, &[3, 4], 85, 100, (7, 2, 1)),
            ("ec8+2", 10, &[3, 4], 100, 100, (8, 2, 2)),
            ("ec8+2", 10, &[3, 4, 5], 10, 100, (5, 2, 0)),
            ("raid1", 3, &[0], 100, 100, (1, 2, 1)), // no narrower copy
            ("raid1", 2, &[0], 100, 100, (1, 1, 1)),
            ("raid5", 3, &[0], 100, 100, (2, 1, 1)),
            ("raid5", 3, &[0], 40, 100, (1, 1, 0)),
            ("raid0", 3, &[0], 100, 100, (2, 0, 0)),
        ] {
            let slots = vec![1100; count];
            let all = topology(layout, &slots, &[], gone);
            let promised = promises(layout, &slots, percent, written);
            let plan = plan(&all, &Geometry::SAMPLE, &promised, None);
            assert_eq!(
                said(plan.groups[0]),
                is,
                "{layout} on {count} without {gone:?}, {percent} % promised, {written} % written"
            );
        }
    }

    /// The plan goes back to more redundancy with room to spare only, and stays what it is in between.
    #[test]
    fn a_plan_does_not_go_back_and_forth() {
        let slots = [1100; 10];
        let all = topology("ec8+2", &slots, &[], &[9]);
        let with = |written: u64, before: Option<&Plan>| {
            plan(
                &all,
                &Geometry::SAMPLE,
                &promises("ec8+2", &slots, 100, written),
                before,
            )
        };
        let (narrow, lacking) = (with(50, None), with(100, None));
        assert_eq!(
            (said(narrow.groups[0]), said(lacking.groups[0])),
            ((7, 2, 0), (8, 2, 1))
        );
        // 7/8 of what the whole array holds has room in narrow segments.
        for (written, from_narrow, from_lacking) in [
            (60, 0, 0),
            (70, 0, 0),
            (79, 0, 1),
            (82, 0, 1),
            (86, 1, 1),
            (95, 1, 1),
        ] {
            let absent = |before: &Plan| with(written, Some(before)).groups[0].absent;
            assert_eq!(
                (absent(&narrow), absent(&lacking)),
                (from_narrow, from_lacking),
                "{written} %"
            );
        }
    }

    /// Where the largest volume block needs more strips than full redundancy leaves, redundancy gives way.
    #[test]
    fn a_stripe_holds_the_largest_volume_block() {
        let wide = Geometry {
            least_data: 7,
            ..Geometry::SAMPLE
        };
        for (gone, is) in [
            (&[1][..], (7, 2, 0)),
            (&[1, 2], (7, 2, 1)),
            (&[1, 2, 3], (7, 2, 2)),
        ] {
            let all = topology("ec8+2", &[1100; 10], &[], gone);
            let plan = plan(&all, &wide, &Promises::default(), None);
            assert_eq!(said(plan.groups[0]), is, "without {gone:?}");
        }
        let all = topology("ec8+2", &[1100; 10], &[], &[1, 2, 3, 4]);
        let plan = plan(&all, &wide, &Promises::default(), None);
        assert!(plan.groups[0].laid() > 6, "no stripe fits on six devices");
    }

    /// With all devices there no domain holds more than M columns; once some are gone room comes first.
    #[test]
    fn a_domain_gives_way_to_what_was_promised() {
        let labels = ["a", "a", "a", "a", "b", "b", "b", "c", "c", "c"];
        let slots = [1100; 10];
        let promised = |percent: u64| {
            let mut promises = promises("ec4+2", &slots, 100, 100);
            let whole = topology("ec4+2", &slots, &labels, &[]);
            let holds = capacity(
                &whole,
                &Geometry::SAMPLE,
                &plan(&whole, &Geometry::SAMPLE, &promises, None),
            );
            let volume = &mut promises.volumes[0];
            volume.size_bytes = holds * 4096 / 100 * percent;
            volume.mapped_bytes = volume.size_bytes;
            promises
        };
        for (gone, percent, is) in [
            (&[][..], 40, (0, 2)),
            (&[], 100, (0, 2)),
            (&[4], 40, (0, 2)),
            (&[4], 99, (0, 6)),
            (&[4, 5], 40, (0, 6)), // the domains cannot carry it any more
        ] {
            let all = topology("ec4+2", &slots, &labels, gone);
            let template = plan(&all, &Geometry::SAMPLE, &promised(percent), None).groups[0];
            let said = (template.absent, template.cap);
            assert_eq!(said, is, "without {gone:?}, {percent} %");
        }
    }

    /// Nodes have one redundancy more than data, M for each group, and lie as on the devices that data lie as on.
    #[test]
    fn nodes_lie_as_data_do() {
        for (layout, count, gone, percent, is) in [
            ("ec8+2", 12, &[][..], 100, (8, 3, 0)),
            ("ec8+2", 10, &[], 100, (7, 3, 0)),
            ("ec8+2", 10, &[3], 50, (6, 3, 0)),
            ("ec8+2", 10, &[3], 100, (7, 3, 1)),
            ("raid10", 8, &[], 100, (4, 4, 0)),
            ("raid10", 8, &[0], 50, (3, 4, 0)), // data go to whole pairs
            ("raid10", 8, &[0], 100, (4, 4, 1)), // and narrower nodes would take the room
            ("raid1", 2, &[], 100, (1, 1, 0)),
        ] {
            let slots = vec![1100; count];
            let all = topology(layout, &slots, &[], gone);
            let plan = plan(
                &all,
                &Geometry::SAMPLE,
                &promises(layout, &slots, percent, 100),
                None,
            );
            assert_eq!(said(plan.nodes), is, "{layout} on {count} without {gone:?}");
        }
    }

    /// Redundancy and data columns of two groups: by how much the other outranks the first.
    #[test]
    fn a_group_is_outranked_by_one_with_more_redundancy() {
        for (own, other, by) in [
            ((8, 2, 0), (8, 2, 0), 0),
            ((8, 2, 1), (8, 2, 0), 1),
            ((8, 2, 0), (8, 2, 1), 0),
            ((8, 2, 1), (7, 2, 0), 0), // it would be narrower
            ((7, 2, 1), (8, 2, 0), 1),
            ((1, 1, 1), (1, 1, 0), 1),
        ] {
            let template = |(k, m, absent)| Template {
                k,
                m,
                absent,
                cap: k + m,
            };
            let plan = Plan {
                groups: vec![template(own), template(other)],
                nodes: template(other),
            };
            assert_eq!(plan.outranked(Area::Group(0)), by, "{own:?} {other:?}");
            assert_eq!(plan.outranked(Area::Nodes), 0);
        }
    }

    #[test]
    fn columns_on_drained_devices_and_crowded_domains_are_elsewhere() {
        let labels = ["a", "a", "b", "b", "c", "c"];
        let all = topology("ec2+1", &[100; 6], &labels, &[]);
        let plan = plan(&all, &Geometry::SAMPLE, &Promises::default(), None);
        assert_eq!(plan.groups[0].cap, 1);
        for (columns, drained, is) in [
            ([Some(0), Some(2), Some(4)], None, 0),
            ([Some(0), Some(1), Some(4)], None, 1),
            ([Some(0), Some(1), None], None, 1),
            ([Some(0), Some(2), Some(4)], Some(2), 1),
            ([Some(0), Some(1), Some(4)], Some(1), 1),
            ([Some(0), Some(1), Some(4)], Some(4), 2),
        ] {
            let all = drained.map_or(all.clone(), |d| all.with(d, Presence::Draining));
            assert_eq!(
                plan.elsewhere(&all, Area::Group(0), &columns),
                is,
                "{columns:?}"
            );
        }
    }
}
