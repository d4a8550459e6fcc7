//! The next job: one that lowers the measure, can be claimed, and is worth most.
//!
//! There are two kinds of work on segments: *columns* get other slots (rebuild, draining a device, evening out), and a
//! segment is *replaced* by segments of the plan (cleaning, giving columns back, writing narrower or wide again, moving
//! between groups, renewing nodes). Each lowers the [`Measure`], in its order: missing columns, columns that the plan
//! wants elsewhere, blocks in a shape that the plan does not want, waste; last how unevenly devices are free. A job
//! that does not lower it is not offered. So work comes to an end by construction, whatever order it is done in.
//!
//! Waste is taken back only where room is short: where clients could be given less than a few segments once all that
//! is under way is done, or where something that is missing has no room. So the next victim is chosen as late as can
//! be, and its blocks have had the time to die.
//!
//! Invariants:
//! - The room for an offered job is claimed, and its segment is in flight, until the engine says that it is done.
//! - Data stay in their group, unless another gives them more redundancy and clients have room there.

use crate::floors::Class;
pub use crate::index::Lack;
use crate::index::{Index, SegmentFacts, Variant, full};
use crate::ledger::{Claim, Ledger};
use crate::topology::{Area, Topology};

#[cfg(doc)]
use crate::measure::Measure;

mod columns;
pub mod even;
mod rewrite;

/// Thousandths of a segment of nodes that are gained at least where it is renewed for its waste.
pub const HALF: u16 = 500;

/// Segments of a variant that one is chosen from by how busy jobs keep its devices.
const AMONG: usize = 32;

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Job {
    /// Columns of a segment get slots on these devices: columns that are missing, or that are to leave their device.
    Columns {
        /// The segment.
        segment: u64,
        /// Columns, and the device of each.
        to: Vec<(u16, u16)>,
    },
    /// The live blocks of a segment of data are moved to new segments, which frees it.
    Rewrite {
        /// The segment.
        segment: u64,
        /// Where they go.
        into: Area,
    },
    /// The live nodes of a segment are written again by the next checkpoint, which frees it.
    Renew {
        /// The segment.
        segment: u64,
    },
    /// A slot that did not keep what was written is tried once more.
    Retry {
        /// Its device.
        device: u16,
    },
}

/// When a segment may be written narrower so that it has its redundancy (`reconstruct.narrow`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Narrow {
    /// Never.
    Never,
    /// When it has none left.
    Critical,
    /// When it lacks any.
    Always,
}

/// Work that is held off. What gives clients room is not: they would find none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Paused {
    /// Segments are not given the redundancy that they lack.
    pub restore: bool,
    /// Columns are not brought where the plan wants them.
    pub bring: bool,
}

/// Settings that the choice of work depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// What is held off.
    pub paused: Paused,
    /// When segments may be written narrower.
    pub narrow: Narrow,
    /// Whether every shape but that of the plan is unwanted: the array is being converted.
    pub reshape: bool,
    /// Thousandths of a segment that are to be gained at least where it is rewritten for its waste, 0 to 1,000.
    pub least_gain: u16,
    /// Columns move until no device has so many thousandths of its slots more or fewer free than its share; 0: they do
    /// not move for that.
    pub spread: u16,
    /// Segments of each area that clients should find, once all is done: below that waste is taken back. At least 1.
    pub target: u32,
    /// The time, in the unit of [`SegmentFacts::closed`].
    pub now: u64,
}

/// The segments of an array as the table has them.
pub trait Table {
    /// The device of each column of a segment; `None` for one that is missing.
    fn columns(&self, segment: u64) -> Vec<Option<u16>>;
    /// The closed segment with a column in the `slot`th slot of a device, if there is one.
    fn segment_at(&self, device: u16, slot: u32) -> Option<u64>;
}

/// The best job that can be claimed and lowers the measure; `None`: everything rests.
pub fn next_job(
    index: &mut Index,
    ledger: &mut Ledger,
    table: &dyn Table,
    policy: &Policy,
) -> Option<(Job, Claim)> {
    Search::new(index, ledger, table, policy).run()
}

/// A slot elsewhere for a column of a segment whose slot does not keep what is written: on another device, or in
/// another slot of its own if there is none. `None`: there is no room, or the segment is being worked on.
pub fn relocate(
    index: &mut Index,
    ledger: &mut Ledger,
    table: &dyn Table,
    policy: &Policy,
    (segment, column): (u64, u16),
    facts: SegmentFacts,
) -> Option<(u16, Claim)> {
    if index.is_in_flight(segment) {
        return None;
    }
    let columns = table.columns(segment);
    let mut search = Search::new(index, ledger, table, policy);
    let found = search.columns(segment, &facts, &columns, &[column], false);
    if let Some((Job::Columns { to, .. }, claim)) = found {
        return to.first().map(|(_, device)| (*device, claim));
    }
    let own = columns.get(usize::from(column)).copied().flatten()?;
    let claim = ledger.claim_slots(Class::Rebuild, &[own])?;
    index.begin(segment, None);
    Some((own, claim))
}

/// The reason why the rest of the work waits, for the words of `status`: of the last search for a job.
#[must_use]
pub fn lacks(index: &Index, ledger: &Ledger) -> Lack {
    let groups = (0..ledger.topology().groups()).map(Area::Group);
    let mut lack = index.lacks_most();
    for variant in groups.chain([Area::Nodes]).flat_map(|a| index.due(a)) {
        if variant.redundancy < 0 {
            lack = lack.max(Lack::Lost);
        } else if variant.redundancy < i32::from(variant.m) {
            lack = lack.max(Lack::Promised);
        }
    }
    lack
}

/// The segment of nodes that holds the fewest live ones for its room, if at least `least` thousandths of that would be
/// gained. A step of a checkpoint renews these as well: where nodes are there twice (no growth is left) at least as
/// many as it dirties.
#[must_use]
pub fn sparsest_nodes(index: &Index, ledger: &Ledger, least: u16) -> Option<u64> {
    let template = ledger.plan().nodes;
    let holds = full(index.geometry(), Area::Nodes, template.k);
    let heads = index.variants(Area::Nodes).flat_map(|(variant, bucket)| {
        let worth = variant.worth(&template, holds);
        bucket.heads().map(move |number| (worth, number))
    });
    let gain = |(worth, number): (u64, u64)| {
        let live = index.get(number)?.live;
        let gain = worth
            .checked_sub(live)
            .filter(|gain| *gain > 0 && live > 0)?;
        Some((gain * 1000 / worth, number))
    };
    let best = heads
        .filter_map(gain)
        .filter(|(gain, _)| *gain >= u64::from(least))
        .max_by_key(|(gain, number)| (*gain, u64::MAX - number));
    best.map(|(_, number)| number)
}

/// One search for a job.
struct Search<'a> {
    index: &'a mut Index,
    ledger: &'a mut Ledger,
    table: &'a dyn Table,
    policy: &'a Policy,
    /// The reason why there is no job for the segment that is looked at.
    lack: Lack,
}

impl<'a> Search<'a> {
    fn new(
        index: &'a mut Index,
        ledger: &'a mut Ledger,
        table: &'a dyn Table,
        policy: &'a Policy,
    ) -> Search<'a> {
        index.unpark(ledger.returns());
        Search {
            index,
            ledger,
            table,
            policy,
            lack: Lack::Nothing,
        }
    }

    fn run(&mut self) -> Option<(Job, Claim)> {
        let areas = self.areas();
        let template = |search: &Search<'_>, area| search.ledger.plan().of(area);
        let missing = |s: &Search<'_>, a, v: &Variant| v.due(&template(s, a)) > 0;
        let elsewhere = |_: &Search<'_>, _, v: &Variant| v.redundancy >= 0 && v.elsewhere > 0;
        // Where no better group has room, its segments are left to the cleaner.
        let outranked =
            |s: &Search<'_>, a, v: &Variant| v.redundancy >= 0 && !s.better_groups(a).is_empty();
        let unwanted = |s: &Search<'_>, a, v: &Variant| {
            let wanted = template(s, a);
            s.policy.reshape && v.redundancy >= 0 && (v.k, v.m) != (wanted.k, wanted.m)
        };
        let paused = self.policy.paused;
        let restored = match paused.restore {
            true => None,
            false => self.first_of(&areas, missing, Search::restore),
        };
        let brought = |search: &mut Self| match paused.bring {
            true => None,
            false => search.first_of(&areas, elsewhere, Search::bring),
        };
        let left = |search: &mut Self| match paused.restore {
            true => None,
            false => search.first_of(&areas, outranked, Search::leave_group),
        };
        restored
            .or_else(|| brought(self))
            .or_else(|| left(self))
            .or_else(|| self.first_of(&areas, unwanted, Search::reshape))
            .or_else(|| self.take_back(&areas))
            .or_else(|| self.even_out(&areas))
            .or_else(|| self.retry(&areas))
    }

    fn areas(&self) -> Vec<Area> {
        let groups = 0..self.ledger.topology().groups();
        std::iter::once(Area::Nodes)
            .chain(groups.map(Area::Group))
            .collect()
    }

    /// Whether clients could be given less than they should find, once all is done that is under way.
    fn is_short(&self, area: Area) -> bool {
        !self.ledger.projects(area, self.policy.target)
    }

    fn topology(&self) -> &Topology {
        self.ledger.topology()
    }

    /// A segment of these variants, those with the least redundancy first, for which there is a job.
    fn first_of(
        &mut self,
        areas: &[Area],
        of: impl Fn(&Search<'_>, Area, &Variant) -> bool,
        job: impl Fn(&mut Search<'a>, u64, SegmentFacts) -> Option<(Job, Claim)>,
    ) -> Option<(Job, Claim)> {
        let mut variants: Vec<(i32, Area, Variant)> = Vec::new();
        for area in areas {
            let due = self.index.due(*area).filter(|v| of(self, *area, v));
            variants.extend(due.map(|v| (v.redundancy, *area, *v)));
        }
        variants.sort_unstable();
        for (_, area, variant) in variants {
            loop {
                let some = self.least_busy_first(self.index.first(area, &variant, AMONG));
                if some.is_empty() {
                    break;
                }
                for number in some {
                    let facts = *self.index.get(number)?;
                    self.lack = Lack::Nothing;
                    if facts.live > 0
                        && let Some(found) = job(self, number, facts)
                    {
                        return Some(found);
                    }
                    self.index.wait(number, self.lack);
                }
            }
        }
        None
    }

    /// Segments whose devices jobs keep least busy first. One device that is busy with two counts more than two that
    /// are with one each: a job is as slow as the slowest of its devices.
    fn least_busy_first(&self, mut segments: Vec<u64>) -> Vec<u64> {
        segments.sort_by_cached_key(|number| {
            let columns = self.table.columns(*number);
            let loads = columns
                .iter()
                .flatten()
                .map(|d| u64::from(self.index.load(*d)));
            loads.map(|load| load * load).sum::<u64>()
        });
        segments
    }

    /// Tries slots again that were set aside, where their area is short of room.
    fn retry(&mut self, areas: &[Area]) -> Option<(Job, Claim)> {
        for area in areas.iter().skip(1) {
            if !self.is_short(*area) {
                continue;
            }
            for device in self.topology().taking_in(*area) {
                if self.ledger.book(device).quarantined > 0 {
                    let claim = self.ledger.claim(Class::Rebuild, *area, 0)?;
                    return Some((Job::Retry { device }, claim));
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod table_tests;
