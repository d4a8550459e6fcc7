//! Floors: the space that each class of work leaves free for those below it.
//!
//! Invariants:
//! - Classes have one order, and floors rise with it: nobody waits for a class above its own.
//! - A floor is a number of segments of the plan that can still be laid, not a number of slots.
//! - A loss of devices raises no floor above what it was on each device that stays: else the cleaner would find no room
//!   where there is most to clean.

use crate::fits::Wanted;

/// Who takes slots, in the order of the floors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Steps of a checkpoint: they may take the last slot.
    Checkpoint,
    /// Stripes that could not be written, recovery, and nodes that are renewed.
    Rescue,
    /// The cleaner.
    Clean,
    /// Columns that are missing or wanted elsewhere, and segments that are rewritten for that.
    Rebuild,
    /// Clients.
    Client,
}

/// The number of classes.
pub const CLASSES: usize = 5;

impl Class {
    /// All, from the lowest floor up.
    pub const ALL: [Class; CLASSES] = [
        Class::Checkpoint,
        Class::Rescue,
        Class::Clean,
        Class::Rebuild,
        Class::Client,
    ];

    /// Its place in the order, 0 to 4.
    #[must_use]
    pub fn rank(self) -> usize {
        self as usize
    }
}

/// Segments of data in each group that a rescue may need below the cleaner.
const RESCUE: u32 = 1;

/// Segments of data in each group that the cleaner may fill below rebuild, besides one for each of those that move
/// blocks at once.
const ROUND: u32 = 1;

/// Segments of data in each group by which clients stop before rebuild does.
const ABOVE_REBUILD: u32 = 1;

/// The facts for the floors. All numbers are of the whole array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Facts {
    /// Nodes that one step of a checkpoint writes at most, with those that it renews.
    pub step_nodes: u64,
    /// Nodes that a segment holds, at least 1, once as many devices are gone as may be: those that are left hold fewer
    /// in as many slots of each, and what was kept of these has to do for a step all the same.
    pub step_segment_nodes: u64,
    /// Nodes that are live, or will be once every record of liveness has been written.
    pub live_nodes: u64,
    /// Slots in segments of nodes, those being filled included.
    pub node_slots: u64,
    /// Nodes that a segment of the plan holds, at least 1.
    pub segment_nodes: u64,
    /// Columns of a segment of nodes that lie on devices, at least 1.
    pub segment_columns: u64,
    /// How many move blocks at once, each into segments of its own; 0 counts as 1.
    pub movers: u32,
}

/// The floors of all classes, in segments of nodes and in segments of data of each group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Floors {
    /// Segments of nodes that one step of a checkpoint may take.
    pub step: u32,
    /// Segments of nodes that may still come before half of all nodes are dead for certain.
    pub growth: u32,
    /// Segments of data of each group that moves may fill below rebuild.
    pub round: u32,
}

impl Floors {
    /// The floors that follow from these facts.
    #[must_use]
    pub fn reckon(facts: &Facts) -> Floors {
        let segments = |nodes: u64| nodes.div_ceil(facts.segment_nodes.max(1));
        // Of the last segment of a step a part may be taken already.
        let step = facts.step_nodes.div_ceil(facts.step_segment_nodes.max(1));
        let step = step.max(1);
        let there = facts.node_slots / facts.segment_columns.max(1);
        let growth = twice(segments(facts.live_nodes)).saturating_sub(there);
        Floors {
            step: u32::try_from(step).unwrap_or(u32::MAX),
            growth: u32::try_from(growth).unwrap_or(u32::MAX),
            round: ROUND + facts.movers.max(1),
        }
    }

    /// The room that this class leaves: segments of nodes, and of data in each group.
    #[must_use]
    pub fn of(&self, class: Class) -> (u32, u32) {
        let two_steps = self.step.saturating_mul(2);
        let grown = two_steps.saturating_add(self.growth);
        match class {
            Class::Checkpoint => (0, 0),
            Class::Rescue => (self.step, 0),
            Class::Clean => (two_steps, RESCUE),
            Class::Rebuild => (grown, RESCUE + self.round),
            Class::Client => (grown, RESCUE + self.round + ABOVE_REBUILD),
        }
    }

    /// The same as numbers for an array of so many groups.
    #[must_use]
    pub fn wanted(&self, class: Class, groups: u16) -> Wanted {
        let (nodes, each) = self.of(class);
        Wanted {
            nodes,
            groups: vec![each; usize::from(groups)],
        }
    }
}

/// Segments up to which nodes may grow before one of them is half dead for certain: twice those that they fill, and
/// the one that is being filled.
#[must_use]
pub fn twice(segments: u64) -> u64 {
    2 * segments + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes of a step, live nodes, slots that nodes have: step and growth, with segments of 100 nodes on 10 devices.
    #[test]
    fn floors_follow_from_nodes() {
        for (step, live, slots, floors) in [
            (0, 0, 0, (1, 1)),
            (1, 1, 0, (1, 3)),
            (100, 100, 10, (1, 2)),
            (101, 100, 10, (2, 2)),
            (560, 1000, 0, (6, 21)),
            (560, 1000, 100, (6, 11)),
            (560, 1000, 210, (6, 0)),
            (560, 1000, 400, (6, 0)),
        ] {
            let facts = Facts {
                step_nodes: step,
                live_nodes: live,
                node_slots: slots,
                segment_nodes: 100,
                step_segment_nodes: 100,
                segment_columns: 10,
                movers: 1,
            };
            let is = Floors::reckon(&facts);
            assert_eq!((is.step, is.growth), floors, "{facts:?}");
        }
    }

    #[test]
    fn floors_rise_with_the_class() {
        for floors in [
            Floors {
                step: 1,
                growth: 0,
                round: 2,
            },
            Floors {
                step: 6,
                growth: 21,
                round: 5,
            },
        ] {
            for pair in Class::ALL.windows(2) {
                let (low, high) = (floors.of(pair[0]), floors.of(pair[1]));
                assert!(pair[0] < pair[1] && pair[0].rank() < pair[1].rank());
                assert!(low.0 <= high.0 && low.1 <= high.1 && low != high);
            }
            assert_eq!(floors.of(Class::Clean).0, 2 * floors.step);
        }
    }
}
