//! The measure: the work that is left. Each job lowers it.
//!
//! Invariant: the measure of an index is that of its segments as if all work in flight were done.

use crate::capacity::Geometry;
use crate::index::{Index, SegmentFacts, Variant, full};
use crate::template::Plan;

/// The work that is left, in the order in which it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Measure {
    /// Columns that segments lack beside segments of the plan.
    pub missing: u64,
    /// Columns that the plan wants elsewhere, and those by which another group gives more redundancy.
    pub elsewhere: u64,
    /// Live blocks in a shape that the plan does not want.
    pub unwanted: u64,
    /// Blocks that the slots of closed segments could hold by the plan, less those that their live blocks take. (Dead
    /// blocks of a segment that is being filled are waste too, as it will be closed: moves into it make none.)
    pub waste: u64,
}

/// The share of one segment in the measure. `reshape`: whether every shape but that of the plan is unwanted.
#[must_use]
pub fn measure_of(
    facts: &SegmentFacts,
    plan: &Plan,
    geometry: &Geometry,
    reshape: bool,
) -> Measure {
    let (variant, template) = (Variant::of(facts), plan.of(facts.area));
    if facts.live == 0 {
        return Measure::default(); // the next checkpoint frees it
    }
    let other = (facts.k, facts.m) != (template.k, template.m);
    let unwanted = if reshape && other { facts.live } else { 0 };
    let worth = variant.worth(&template, full(geometry, facts.area, template.k));
    Measure {
        missing: variant.lacks(&template).into(),
        elsewhere: u64::from(facts.elsewhere) + u64::from(plan.outranked(facts.area)),
        unwanted,
        waste: worth.saturating_sub(facts.taken()),
    }
}

/// Adds up the measure of all segments: for tests, as it looks at every segment.
#[must_use]
pub fn measure(index: &Index, plan: &Plan, reshape: bool) -> Measure {
    let mut sum = Measure::default();
    for facts in index.at_rest() {
        let one = measure_of(facts, plan, index.geometry(), reshape);
        sum.missing += one.missing;
        sum.elsewhere += one.elsewhere;
        sum.unwanted += one.unwanted;
        sum.waste += one.waste;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::tests::{self, facts};

    const GEOMETRY: Geometry = Geometry::SAMPLE;

    /// Shape and columns of a segment that is all live, shape of the plan: missing columns, unwanted blocks and waste
    /// in tenths of a segment of the plan.
    #[test]
    fn the_measure_goes_by_the_plan() {
        for (segment, plan, is) in [
            ((8, 2, 10), (8, 2, 0), (0, 0, 0)),
            ((8, 2, 9), (8, 2, 0), (1, 0, 0)),
            ((8, 2, 7), (8, 2, 0), (0, 0, 0)), // lost
            ((8, 2, 9), (8, 2, 1), (0, 0, 0)),
            ((8, 2, 10), (8, 2, 1), (0, 0, 1)), // gives a column back
            ((8, 2, 9), (7, 2, 0), (1, 8, 0)),
            ((7, 2, 9), (8, 2, 0), (0, 7, 0)),
            ((1, 1, 2), (2, 1, 0), (0, 1, 1)), // a mirror that was narrow
        ] {
            let (k, m, usable) = segment;
            let plan = tests::plan(plan.0, plan.1, plan.2);
            let live = GEOMETRY.data_blocks(k);
            let one = measure_of(&facts(k, m, usable, live), &plan, &GEOMETRY, true);
            let strips = live / u64::from(k);
            let full = GEOMETRY.data_blocks(plan.groups[0].k);
            let said = (one.missing, one.unwanted / strips, one.waste * 10 / full);
            assert_eq!(said, is, "{segment:?} {plan:?}");
        }
    }
}
