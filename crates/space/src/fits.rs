//! Decides whether given numbers of segments fit into the free slots together: the only function that does.
//!
//! N segments of w columns can be laid if w N columns can be handed to devices so that none gets more than is free on
//! it, nor more than N (a segment has one column on a device at most), and no failure domain more than its cap times
//! N: going round the devices, domain after domain, then gives each segment different devices. Segments of data of a
//! group and segments of nodes share devices: that is a flow from both to the devices, and by the theorem of the least
//! cut it exists if no set of kinds wants more than its bounds.
//!
//! Invariants:
//! - With more free, or less wanted, the answer stays yes.
//! - With one group, or with failure domains that do not cross groups, the answer is exact. Else nodes get a share of
//!   each domain in each group by the free slots there: it may say no where a cleverer split would do, never yes where
//!   nothing does.

use crate::template::{Plan, Template};
use crate::topology::{Area, Topology};

/// Numbers of segments of the plan.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Wanted {
    /// Segments of nodes.
    pub nodes: u32,
    /// Segments of data, by group.
    pub groups: Vec<u32>,
}

impl Wanted {
    /// None, of so many groups.
    #[must_use]
    pub fn none(groups: u16) -> Wanted {
        Wanted {
            nodes: 0,
            groups: vec![0; usize::from(groups)],
        }
    }

    /// How many in an area.
    #[must_use]
    pub fn of(&self, area: Area) -> u32 {
        match area {
            Area::Nodes => self.nodes,
            Area::Group(group) => self.groups.get(usize::from(group)).copied().unwrap_or(0),
        }
    }

    /// The number of an area, to be changed.
    pub fn of_mut(&mut self, area: Area) -> &mut u32 {
        match area {
            Area::Nodes => &mut self.nodes,
            Area::Group(group) => &mut self.groups[usize::from(group)],
        }
    }

    /// Both together.
    pub fn add(&mut self, other: &Wanted) {
        self.nodes = self.nodes.saturating_add(other.nodes);
        for (mine, theirs) in self.groups.iter_mut().zip(&other.groups) {
            *mine = mine.saturating_add(*theirs);
        }
    }
}

/// The devices that take new columns, by group and failure domain: made at a change of members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sites {
    groups: Vec<Vec<Piece>>,
    domains: usize,
}

/// Devices of a group that share a failure domain.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Piece {
    domain: usize,
    devices: Vec<u16>,
}

impl Sites {
    /// Those of this topology.
    #[must_use]
    pub fn new(topology: &Topology) -> Sites {
        let mut numbers = std::collections::BTreeMap::new();
        let mut groups = Vec::new();
        for group in 0..topology.groups() {
            let mut pieces: Vec<Piece> = Vec::new();
            for device in topology.taking(group) {
                let next = numbers.len();
                let of = topology.domains().of(device);
                let domain = *numbers.entry(of).or_insert(next);
                match pieces.iter_mut().find(|p| p.domain == domain) {
                    Some(piece) => piece.devices.push(device),
                    None => pieces.push(Piece {
                        domain,
                        devices: vec![device],
                    }),
                }
            }
            groups.push(pieces);
        }
        Sites {
            groups,
            domains: numbers.len(),
        }
    }

    /// Whether all that is wanted of `area`, and of nodes, can be laid in the `free` slots (by device). Of other
    /// groups as much as can be is laid beside it: `area` cannot give them what they lack.
    #[must_use]
    pub fn fits(&self, free: &[u32], plan: &Plan, wanted: &Wanted, area: Area) -> bool {
        let flow = self.flow(free, plan, wanted);
        let of_area = match area {
            Area::Nodes => true,
            Area::Group(group) => !flow.short.contains(&group),
        };
        of_area && !flow.nodes_short
    }

    /// Wanted columns that can be laid in the `free` slots. Whoever takes a slot without which they are as many
    /// takes nothing from those who want it.
    #[must_use]
    pub fn covers(&self, free: &[u32], plan: &Plan, wanted: &Wanted) -> u64 {
        self.flow(free, plan, wanted).columns
    }

    /// Whether `more` segments of an area can be laid beside all that is kept, so that as much of that can be laid as
    /// without them. A group that is short of its own keeps nobody from another.
    #[must_use]
    pub fn adds(&self, free: &[u32], plan: &Plan, kept: &Wanted, area: Area, more: u32) -> bool {
        let mut wanted = kept.clone();
        let of = wanted.of_mut(area);
        *of = of.saturating_add(more);
        let (before, after) = (self.flow(free, plan, kept), self.flow(free, plan, &wanted));
        let full = match area {
            Area::Nodes => !after.nodes_short,
            Area::Group(group) => !after.short.contains(&group),
        };
        full && after.columns == before.columns + u64::from(more) * u64::from(plan.of(area).laid())
    }

    fn flow(&self, free: &[u32], plan: &Plan, wanted: &Wanted) -> Flow {
        let nodes = u64::from(wanted.nodes);
        let mut limits = self.node_limits(free, &plan.nodes, nodes);
        let (mut for_nodes, mut flow) = (0, Flow::default());
        for (at, (pieces, template)) in self.groups.iter().zip(&plan.groups).enumerate() {
            let segments = u64::from(wanted.groups.get(at).copied().unwrap_or(0));
            let columns = segments * u64::from(template.laid());
            let most = u64::from(template.cap) * segments;
            let (mut alone, mut beside, mut joint) = (0, 0, 0);
            for piece in pieces {
                let up_to = |n: u64| -> u64 {
                    let free_of = |d: &u16| u64::from(free[usize::from(*d)]).min(n);
                    piece.devices.iter().map(free_of).sum()
                };
                let (data, of_nodes) = (up_to(segments), up_to(nodes));
                let both = up_to(segments + nodes);
                let limit = limits[piece.domain].share(of_nodes);
                alone += data.min(most);
                beside += of_nodes.min(limit);
                joint += both
                    .min(most + of_nodes)
                    .min(limit + data)
                    .min(most + limit);
            }
            if alone < columns {
                flow.short.push(at as u16);
            }
            flow.columns += alone.min(columns);
            for_nodes += beside.min(joint - alone.min(columns));
        }
        let columns = nodes * u64::from(plan.nodes.laid());
        flow.nodes_short = for_nodes < columns;
        flow.columns += for_nodes.min(columns);
        flow
    }

    /// The columns that nodes may take of each domain.
    fn node_limits(&self, free: &[u32], nodes: &Template, segments: u64) -> Vec<Limit> {
        let most = u64::from(nodes.cap) * segments;
        let none = Limit {
            most,
            there: 0,
            shared: 0,
        };
        let mut limits = vec![none; self.domains];
        for piece in self.groups.iter().flatten() {
            let free_of = |d: &u16| u64::from(free[usize::from(*d)]).min(segments);
            limits[piece.domain].there += piece.devices.iter().map(free_of).sum::<u64>();
        }
        limits
    }
}

/// How many wanted columns can be laid.
#[derive(Debug, Default)]
struct Flow {
    /// Groups that lack room for their own.
    short: Vec<u16>,
    nodes_short: bool,
    /// Columns that can be laid, of all that are wanted.
    columns: u64,
}

/// How many columns of nodes a domain may take, and how many its devices could.
#[derive(Debug, Clone, Copy)]
struct Limit {
    most: u64,
    there: u64,
    /// So many of those have had their share.
    shared: u64,
}

impl Limit {
    /// The share of devices of one group that could take `part` of them. All shares together are what the domain may
    /// take.
    fn share(&mut self, part: u64) -> u64 {
        if self.there <= self.most {
            return part;
        }
        let up_to = |shared: u64| {
            let share = u128::from(self.most) * u128::from(shared) / u128::from(self.there);
            u64::try_from(share).unwrap_or(u64::MAX)
        };
        let share = up_to(self.shared + part) - up_to(self.shared);
        self.shared += part;
        share
    }
}

/// The greatest number up to `most` that fits, or 0; with one that fits all below it fit.
pub fn greatest(mut most: u32, fits: impl Fn(u32) -> bool) -> u32 {
    let mut least = 0;
    while least < most {
        let middle = least + (most - least).div_ceil(2);
        if fits(middle) {
            least = middle;
        } else {
            most = middle - 1;
        }
    }
    least
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::domains::Domains;
    use crate::topology::Member;

    fn template(k: u16, m: u16, cap: u16) -> Template {
        Template {
            k,
            m,
            absent: 0,
            cap,
        }
    }

    fn sites(layout: &str, labels: &[&str]) -> (Sites, u16) {
        let layout: ashlar_layout::Layout = layout.parse().unwrap();
        let devices = u16::try_from(labels.len()).unwrap();
        let shape = layout.resolve(devices).unwrap();
        let members = vec![Member::in_use(1); labels.len()];
        let groups = u16::try_from(shape.groups.len()).unwrap();
        let domains = Domains::new(labels.iter().copied());
        (Sites::new(&Topology::new(members, shape, domains)), groups)
    }

    fn most_data(
        layout: &str,
        labels: &[&str],
        free: &[u32],
        nodes: (u32, Template),
        data: Template,
    ) -> u32 {
        let (sites, groups) = sites(layout, labels);
        let plan = Plan {
            groups: vec![data; usize::from(groups)],
            nodes: nodes.1,
        };
        greatest(1000, |n| {
            let mut wanted = Wanted::none(groups);
            wanted.nodes = nodes.0;
            wanted.groups[0] = n;
            sites.fits(free, &plan, &wanted, Area::Group(0))
        })
    }

    /// Free slots, segments of nodes beside (on 4 devices), and how many of 2+1 fit.
    #[test]
    fn segments_fit_where_columns_find_devices() {
        let none: [&str; 4] = [""; 4];
        let nodes = template(2, 2, 4);
        for (free, beside, fit) in [
            ([10, 10, 10, 10], 0, 13),
            ([10, 10, 10, 0], 0, 10),
            ([10, 10, 0, 0], 0, 0),
            ([10, 10, 10, 1], 0, 10),
            ([30, 10, 10, 10], 0, 15),
            ([30, 10, 3, 2], 0, 5),
            ([10, 10, 10, 10], 2, 10),
            ([10, 10, 10, 2], 2, 8),
            ([10, 10, 10, 1], 2, 0), // nodes do not fit
            ([3, 3, 3, 3], 3, 0),
            ([4, 4, 4, 4], 3, 1),
        ] {
            let data = template(2, 1, 3);
            assert_eq!(
                most_data("ec2+1", &none, &free, (beside, nodes), data),
                fit,
                "{free:?} beside {beside}"
            );
        }
    }

    /// No more than the cap lies in a domain, and no segment twice on a device.
    #[test]
    fn domains_bound_what_fits() {
        let labels = ["a", "a", "b", "b", "c", "c"];
        for (free, cap, fit) in [
            ([10, 10, 10, 10, 10, 10], 2, 15),
            ([10, 10, 10, 10, 10, 10], 4, 15),
            ([10, 10, 10, 10, 0, 0], 2, 10),
            ([10, 10, 10, 0, 10, 0], 1, 0),
            ([10, 10, 10, 0, 10, 0], 2, 10),
            ([20, 20, 5, 5, 5, 5], 2, 10),
            ([20, 20, 5, 5, 5, 5], 4, 10),
        ] {
            let data = template(2, 2, cap);
            let nodes = template(1, 1, 2);
            assert_eq!(
                most_data("ec2+2", &labels, &free, (0, nodes), data),
                fit,
                "{free:?} {cap}"
            );
        }
    }

    /// What another group lacks keeps nobody from this one, unless nodes need it.
    #[test]
    fn groups_stand_beside_each_other() {
        let none: [&str; 4] = [""; 4];
        let data = template(1, 1, 2);
        for (free, beside, width, fit) in [
            ([10, 10, 0, 0], 0, 4, 10),
            ([10, 10, 5, 5], 2, 4, 8),
            ([10, 10, 0, 5], 2, 4, 0),
            ([10, 10, 0, 5], 2, 3, 8),
            ([10, 10, 9, 9], 2, 2, 10), // nodes lie on the other pair
        ] {
            let nodes = (beside, template(1, width - 1, width));
            assert_eq!(
                most_data("raid10", &none, &free, nodes, data),
                fit,
                "{free:?} beside {beside} of {width}"
            );
        }
    }

    /// Against laying segments one by one in every way, on small arrays.
    #[test]
    fn the_answer_is_that_of_every_way_to_lay_them() {
        let (sites, _) = sites("ec2+1", &["a", "a", "", ""]);
        for cap in [1u16, 2, 3] {
            let plan = Plan {
                groups: vec![template(2, 1, cap)],
                nodes: template(1, 1, 1),
            };
            for code in 0..256u32 {
                let free: Vec<u32> = (0..4).map(|d| code >> (2 * d) & 3).collect();
                for nodes in 0..3 {
                    for data in 0..3 {
                        let wanted = Wanted {
                            nodes,
                            groups: vec![data],
                        };
                        let said = sites.fits(&free, &plan, &wanted, Area::Group(0));
                        let is = lays(&free, nodes, data, cap);
                        assert_eq!(said, is, "{free:?} {nodes} nodes {data} data cap {cap}");
                    }
                }
            }
        }
    }

    /// Whether so many pairs of nodes (not both on devices 0 and 1) and triples of data can be laid.
    fn lays(free: &[u32], nodes: u32, data: u32, cap: u16) -> bool {
        if nodes + data == 0 {
            return true;
        }
        let width = if nodes > 0 { 2 } else { 3 };
        (0u32..16).any(|set| {
            let in_domain = (set & 1) + (set >> 1 & 1);
            let most = if nodes > 0 { 1 } else { u32::from(cap) };
            if set.count_ones() != width || in_domain > most {
                return false;
            }
            let mut left = free.to_vec();
            for (d, free) in left.iter_mut().enumerate() {
                if set >> d & 1 == 1 {
                    if *free == 0 {
                        return false;
                    }
                    *free -= 1;
                }
            }
            if nodes > 0 {
                lays(&left, nodes - 1, data, cap)
            } else {
                lays(&left, 0, data - 1, cap)
            }
        })
    }
}
