//! The shapes of new segments, in each group and of nodes: what a plan says.
//!
//! Invariant: values only; [`crate::plan`] makes them.

use crate::topology::{Area, Presence, Topology};

/// How a segment is laid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Template {
    /// Data columns, 1 to 256.
    pub k: u16,
    /// Parity columns, 0 to 255; `k + m` is at most 256.
    pub m: u16,
    /// Columns that it lacks from the start, 0 to `m`: those of devices that are gone.
    pub absent: u16,
    /// Columns that may lie in one failure domain; `k + m` where domains do not constrain.
    pub cap: u16,
}

impl Template {
    /// All columns.
    #[must_use]
    pub fn width(&self) -> u16 {
        self.k + self.m
    }

    /// Columns that lie on devices.
    #[must_use]
    pub fn laid(&self) -> u16 {
        self.width() - self.absent
    }

    /// Whether it gives more redundancy than another, and lays data no narrower.
    #[must_use]
    pub fn outranks(&self, other: &Template) -> bool {
        self.k >= other.k && self.redundancy() > other.redundancy()
    }

    /// How many devices may be lost and its data read.
    #[must_use]
    pub fn redundancy(&self) -> u16 {
        self.m - self.absent
    }
}

/// How new segments are laid.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Plan {
    /// Data, by group.
    pub groups: Vec<Template>,
    /// Nodes.
    pub nodes: Template,
}

impl Plan {
    /// The template of an area.
    #[must_use]
    pub fn of(&self, area: Area) -> Template {
        match area {
            Area::Nodes => self.nodes,
            Area::Group(group) => self.groups[usize::from(group)],
        }
    }

    /// The same with one data column fewer in segments of nodes; `None` where they have but one.
    #[must_use]
    pub fn with_narrower_nodes(&self) -> Option<Plan> {
        let nodes = self.nodes;
        let constrained = nodes.cap < nodes.width();
        let k = nodes.k.checked_sub(1).filter(|k| *k > 0)?;
        let nodes = Template {
            k,
            cap: if constrained { nodes.cap } else { k + nodes.m },
            ..nodes
        };
        Some(Plan {
            nodes,
            ..self.clone()
        })
    }

    /// How much more redundancy another group gives, that lays data no narrower: where it is more than 0, the plan
    /// wants data of this group there. 0 for nodes.
    #[must_use]
    pub fn outranked(&self, area: Area) -> u16 {
        let Area::Group(_) = area else {
            return 0;
        };
        let own = self.of(area);
        let better = self.groups.iter().filter(|t| t.outranks(&own));
        let best = better.map(Template::redundancy).max().unwrap_or(0);
        best.saturating_sub(own.redundancy())
    }

    /// Columns that a segment has elsewhere than the plan wants them: on devices that are being drained, and more in
    /// a failure domain than the plan puts there. `columns`: the device of each; `None` for one that is missing.
    #[must_use]
    pub fn elsewhere(&self, topology: &Topology, area: Area, columns: &[Option<u16>]) -> u16 {
        let cap = usize::from(self.of(area).cap);
        let there = columns.iter().flatten().copied();
        let (stay, go): (Vec<u16>, Vec<u16>) =
            there.partition(|d| topology.presence(*d) != Presence::Draining);
        let counts = topology.domains().count(stay.into_iter());
        let beyond: usize = counts.values().map(|n| n.saturating_sub(cap)).sum();
        u16::try_from(go.len() + beyond).unwrap_or(u16::MAX)
    }
}
