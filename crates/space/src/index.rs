//! Closed segments, ordered by the work that they offer, so that no choice has to look at all of them.
//!
//! Segments that are alike but for their live blocks and when they were closed are of one *variant*. The plan's
//! judgement of a segment follows from its variant and its live blocks. So a change of the plan moves no segment here,
//! and the best of a variant is at the head of one of 256 lists by live share, each in the order of closing.
//!
//! Invariants:
//! - A segment is in one list, or in flight, or parked: looked at in vain since slots last came back.
//! - A change of a segment takes time by the logarithm of their number; a choice by the number of variants.

use std::collections::{BTreeMap, BTreeSet};

use crate::capacity::Geometry;
use crate::template::{Plan, Template};
use crate::topology::Area;

/// The facts of a closed segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SegmentFacts {
    /// Where it lies.
    pub area: Area,
    /// Data columns, 1 to 256.
    pub k: u16,
    /// Parity columns.
    pub m: u16,
    /// Columns that are there, 0 to `k + m`.
    pub usable: u16,
    /// Columns that the plan wants elsewhere: [`Plan::elsewhere`].
    pub elsewhere: u16,
    /// Live blocks, 0 to all that it holds.
    pub live: u64,
    /// When it was closed, in any unit that grows.
    pub closed: u64,
}

/// The part of a segment's facts that many segments share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Variant {
    /// Devices that may be lost and its data read; less than 0 if they are lost.
    pub redundancy: i32,
    /// Data columns.
    pub k: u16,
    /// Parity columns.
    pub m: u16,
    /// Columns that are there.
    pub usable: u16,
    /// Columns that the plan wants elsewhere.
    pub elsewhere: u16,
}

impl Variant {
    pub(crate) fn of(facts: &SegmentFacts) -> Variant {
        Variant {
            redundancy: i32::from(facts.usable) - i32::from(facts.k),
            k: facts.k,
            m: facts.m,
            usable: facts.usable,
            elsewhere: facts.elsewhere,
        }
    }

    /// Columns that it lacks beside a segment of the plan; 0 for one that is lost, which nothing mends.
    #[must_use]
    pub fn lacks(&self, template: &Template) -> u16 {
        if self.redundancy < 0 {
            return 0;
        }
        let wanted = i32::from(template.redundancy());
        u16::try_from((wanted - self.redundancy).max(0)).unwrap_or(u16::MAX)
    }

    /// Blocks that its slots would hold, laid by the plan; of a segment of the plan, `full`.
    #[must_use]
    pub fn worth(&self, template: &Template, full: u64) -> u64 {
        full * u64::from(self.usable) / u64::from(template.laid().max(1))
    }
}

/// The work that is left, in the order in which it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Measure {
    /// Columns that segments lack beside segments of the plan.
    pub missing: u64,
    /// Columns that the plan wants elsewhere, and those by which another group gives more redundancy.
    pub elsewhere: u64,
    /// Live blocks in a shape that the plan does not want.
    pub unwanted: u64,
    /// Blocks that the slots of closed segments could hold by the plan, less their live blocks. (Dead blocks of a
    /// segment that is being filled are waste too, as it will be closed: moves into it make none.)
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
        waste: worth.saturating_sub(facts.live),
    }
}

/// The reason why the rest of the work is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lack {
    /// Nothing: all is as the plan wants it, or there is a job.
    Nothing,
    /// Segments have lost more columns than their redundancy.
    Lost,
    /// The room that is left was promised to volumes: the plan itself lacks columns.
    Promised,
    /// Segments are not written narrower by policy.
    Policy,
    /// Too few devices are left to take the columns.
    Devices,
    /// No device has room.
    Room,
}

impl Lack {
    /// All, the weakest first.
    const ALL: [Lack; LACKS] = [
        Lack::Nothing,
        Lack::Lost,
        Lack::Promised,
        Lack::Policy,
        Lack::Devices,
        Lack::Room,
    ];
}

/// The number of reasons.
const LACKS: usize = 6;

/// Blocks that a segment of the plan holds.
pub(crate) fn full(geometry: &Geometry, area: Area, k: u16) -> u64 {
    match area {
        Area::Nodes => geometry.node_blocks(k),
        Area::Group(_) => geometry.data_blocks(k),
    }
}

/// Lists by live share.
const SHARES: usize = 256;

/// The segments of one variant.
#[derive(Debug, Clone)]
pub(crate) struct Bucket {
    lists: Vec<BTreeSet<(u64, u64)>>,
    occupied: [u64; SHARES / 64],
    count: usize,
}

impl Bucket {
    fn new() -> Bucket {
        Bucket {
            lists: vec![BTreeSet::new(); SHARES],
            occupied: [0; SHARES / 64],
            count: 0,
        }
    }

    fn insert(&mut self, share: usize, at: (u64, u64)) {
        if self.lists[share].insert(at) {
            self.count += 1;
        }
        self.occupied[share / 64] |= 1 << (share % 64);
    }

    fn remove(&mut self, share: usize, at: (u64, u64)) {
        if self.lists[share].remove(&at) {
            self.count -= 1;
        }
        if self.lists[share].is_empty() {
            self.occupied[share / 64] &= !(1 << (share % 64));
        }
    }

    /// The segment of each list that was closed first, those with the fewest live blocks before others.
    pub(crate) fn heads(&self) -> impl Iterator<Item = u64> + '_ {
        let lists = (0..SHARES).filter(|s| self.occupied[s / 64] >> (s % 64) & 1 == 1);
        lists.filter_map(|s| self.lists[s].first().map(|(_, number)| *number))
    }
}

/// Moves of one area that are under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Stream {
    /// Live blocks of segments that are being emptied.
    pub unplaced: u64,
    /// Blocks that the segments being filled with moves still take.
    pub open_room: u64,
    /// Segments that were claimed for moves and not acquired.
    pub claimed: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Listed,
    Parked(Lack),
    /// Being worked on; `into`: where its blocks go, if they are moved.
    InFlight {
        into: Option<Area>,
    },
}

/// Closed segments, and the work under way.
#[derive(Debug, Clone)]
pub struct Index {
    geometry: Geometry,
    segments: BTreeMap<u64, (SegmentFacts, Place)>,
    areas: BTreeMap<Area, BTreeMap<Variant, Bucket>>,
    streams: BTreeMap<Area, Stream>,
    parked: BTreeSet<u64>,
    /// Parked segments, by the reason.
    lacking: [usize; LACKS],
    /// How often slots had come back when something was parked last.
    parked_at: u64,
}

impl Index {
    /// An index without segments.
    #[must_use]
    pub fn new(geometry: Geometry) -> Index {
        Index {
            geometry,
            segments: BTreeMap::new(),
            areas: BTreeMap::new(),
            streams: BTreeMap::new(),
            parked: BTreeSet::new(),
            lacking: [0; LACKS],
            parked_at: 0,
        }
    }

    /// The sizes that it reckons with.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// How many segments it knows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.segments.len()
    }

    /// Whether it knows none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// The facts of a segment.
    #[must_use]
    pub fn get(&self, number: u64) -> Option<&SegmentFacts> {
        self.segments.get(&number).map(|(facts, _)| facts)
    }

    /// Whether a segment is being worked on.
    #[must_use]
    pub fn is_in_flight(&self, number: u64) -> bool {
        let place = self.segments.get(&number).map(|(_, place)| *place);
        matches!(place, Some(Place::InFlight { .. }))
    }

    /// A segment was closed, or something about it has changed.
    pub fn set(&mut self, number: u64, facts: SegmentFacts) {
        let place = match self.segments.get(&number) {
            Some((old, place)) => {
                let (old, place) = (*old, *place);
                if old == facts && !matches!(place, Place::Parked(_)) {
                    return;
                }
                self.take_out(number, &old, place);
                place
            }
            None => Place::Listed,
        };
        let place = match place {
            Place::Parked(_) => Place::Listed,
            other => other,
        };
        self.put(number, facts, place);
    }

    /// A segment is no more.
    pub fn remove(&mut self, number: u64) {
        if let Some((facts, place)) = self.segments.remove(&number) {
            self.take_out(number, &facts, place);
        }
    }

    /// A job has taken a segment; `into`: where its blocks are moved to, if they are.
    pub fn begin(&mut self, number: u64, into: Option<Area>) {
        self.move_to(number, Place::InFlight { into });
    }

    /// A job is done with a segment, which stays.
    pub fn end(&mut self, number: u64) {
        self.move_to(number, Place::Listed);
    }

    /// A job was not to be had for a segment: it is left alone until slots come back, or it changes.
    pub(crate) fn park(&mut self, number: u64, lack: Lack) {
        self.move_to(number, Place::Parked(lack));
    }

    /// The strongest reason why parked segments wait.
    pub(crate) fn lacks_most(&self) -> Lack {
        let waits = |lack: &&Lack| self.lacking[**lack as usize] > 0;
        let lack = Lack::ALL.iter().rev().find(waits);
        lack.copied().unwrap_or(Lack::Nothing)
    }

    /// Whether segments wait for room.
    pub(crate) fn wants_room(&self) -> bool {
        self.lacking[Lack::Room as usize] > 0
    }

    /// Lists parked segments again, if slots came back since.
    pub(crate) fn unpark(&mut self, returns: u64) {
        if self.parked_at != returns {
            self.parked_at = returns;
            self.unpark_all();
        }
    }

    /// Lists all parked segments again: after a change of policy.
    pub fn unpark_all(&mut self) {
        for number in std::mem::take(&mut self.parked) {
            self.move_to(number, Place::Listed);
        }
    }

    fn move_to(&mut self, number: u64, place: Place) {
        if let Some((facts, old)) = self.segments.get(&number) {
            let (facts, old) = (*facts, *old);
            self.take_out(number, &facts, old);
            self.put(number, facts, place);
        }
    }

    fn share(&self, facts: &SegmentFacts) -> usize {
        let holds = full(&self.geometry, facts.area, facts.k).max(1);
        let share = (facts.live * (SHARES as u64 - 1)).div_ceil(holds);
        usize::try_from(share).unwrap_or(SHARES - 1).min(SHARES - 1)
    }

    fn put(&mut self, number: u64, facts: SegmentFacts, place: Place) {
        match place {
            Place::Listed => {
                let share = self.share(&facts);
                let area = self.areas.entry(facts.area).or_default();
                let bucket = area.entry(Variant::of(&facts)).or_insert_with(Bucket::new);
                bucket.insert(share, (facts.closed, number));
            }
            Place::Parked(lack) => {
                self.lacking[lack as usize] += 1;
                self.parked.insert(number);
            }
            Place::InFlight { into } => {
                if let Some(into) = into {
                    self.streams.entry(into).or_default().unplaced += facts.live;
                }
            }
        }
        self.segments.insert(number, (facts, place));
    }

    fn take_out(&mut self, number: u64, facts: &SegmentFacts, place: Place) {
        match place {
            Place::Listed => {
                let (share, variant) = (self.share(facts), Variant::of(facts));
                if let Some(area) = self.areas.get_mut(&facts.area)
                    && let Some(bucket) = area.get_mut(&variant)
                {
                    bucket.remove(share, (facts.closed, number));
                    if bucket.count == 0 {
                        area.remove(&variant);
                    }
                }
            }
            Place::Parked(lack) => {
                self.lacking[lack as usize] -= 1;
                self.parked.remove(&number);
            }
            Place::InFlight { into } => {
                if let Some(stream) = into.and_then(|into| self.streams.get_mut(&into)) {
                    stream.unplaced = stream.unplaced.saturating_sub(facts.live);
                }
            }
        }
    }

    /// A segment of a variant: of those with the fewest live blocks the one that was closed first.
    pub(crate) fn first(&self, area: Area, variant: &Variant) -> Option<u64> {
        self.areas.get(&area)?.get(variant)?.heads().next()
    }

    /// So many segments more were claimed for moves to an area.
    pub(crate) fn add_claimed(&mut self, area: Area, segments: u32) {
        self.streams.entry(area).or_default().claimed += segments;
    }

    /// The variants of an area, those with the least redundancy first.
    pub(crate) fn variants(&self, area: Area) -> impl Iterator<Item = (&Variant, &Bucket)> {
        self.areas.get(&area).into_iter().flatten()
    }

    /// The moves of an area.
    #[must_use]
    pub fn stream(&self, area: Area) -> Stream {
        self.streams.get(&area).copied().unwrap_or_default()
    }

    /// The segments being filled with moves of an area take so many blocks more, and so many segments are claimed for
    /// moves and not acquired.
    pub fn set_stream(&mut self, area: Area, open_room: u64, claimed: u32) {
        let stream = self.streams.entry(area).or_default();
        stream.open_room = open_room;
        stream.claimed = claimed;
    }

    /// Segments to be claimed so that so many blocks more can be moved to an area.
    #[must_use]
    pub(crate) fn to_claim(&self, area: Area, more: u64, k: u16) -> u32 {
        let stream = self.stream(area);
        let blocks = (stream.unplaced + more).saturating_sub(stream.open_room);
        let segments = blocks.div_ceil(full(&self.geometry, area, k).max(1));
        u32::try_from(segments)
            .unwrap_or(u32::MAX)
            .saturating_sub(stream.claimed)
    }

    /// Adds up the measure of all segments, as if all work in flight were done: for tests and `status`, as it looks at
    /// every segment.
    #[must_use]
    pub fn measure(&self, plan: &Plan, reshape: bool) -> Measure {
        let mut sum = Measure::default();
        for (facts, place) in self.segments.values() {
            if !matches!(place, Place::InFlight { .. }) {
                let one = measure_of(facts, plan, &self.geometry, reshape);
                sum.missing += one.missing;
                sum.elsewhere += one.elsewhere;
                sum.unwanted += one.unwanted;
                sum.waste += one.waste;
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    const GEOMETRY: Geometry = Geometry {
        strip_blocks: 16,
        slot_blocks: 256,
        least_data: 1,
        clean_reserve: 10,
        step_nodes: 560,
        open_segments: 8,
    };

    fn plan(k: u16, m: u16, absent: u16) -> Plan {
        let template = Template {
            k,
            m,
            absent,
            cap: k + m,
        };
        Plan {
            groups: vec![template],
            nodes: template,
        }
    }

    fn facts(k: u16, m: u16, usable: u16, live: u64) -> SegmentFacts {
        SegmentFacts {
            area: Area::Group(0),
            k,
            m,
            usable,
            elsewhere: 0,
            live,
            closed: 0,
        }
    }

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
            let plan = self::plan(plan.0, plan.1, plan.2);
            let live = GEOMETRY.data_blocks(k);
            let one = measure_of(&facts(k, m, usable, live), &plan, &GEOMETRY, true);
            let strips = live / u64::from(k);
            let full = GEOMETRY.data_blocks(plan.groups[0].k);
            let said = (one.missing, one.unwanted / strips, one.waste * 10 / full);
            assert_eq!(said, is, "{segment:?} {plan:?}");
        }
    }

    #[test]
    fn a_segment_is_in_one_list() {
        let mut index = Index::new(GEOMETRY);
        let heads = |index: &Index| -> Vec<u64> {
            let all = index.variants(Area::Group(0));
            all.flat_map(|(_, bucket)| bucket.heads()).collect()
        };
        index.set(1, facts(8, 2, 10, 100));
        index.set(2, facts(8, 2, 10, 100));
        index.set(3, facts(8, 2, 9, 1800));
        assert_eq!(heads(&index), [3, 1]);
        index.set(1, facts(8, 2, 10, 1800));
        assert_eq!(heads(&index), [3, 2, 1]);
        index.begin(3, Some(Area::Group(0)));
        assert_eq!(
            (heads(&index), index.stream(Area::Group(0)).unplaced),
            (vec![2, 1], 1800)
        );
        index.set(3, facts(8, 2, 9, 1000));
        assert_eq!(
            (heads(&index), index.stream(Area::Group(0)).unplaced),
            (vec![2, 1], 1000)
        );
        index.park(2, Lack::Room);
        assert!(index.wants_room());
        assert_eq!(heads(&index), [1]);
        index.unpark(0);
        assert_eq!(heads(&index), [1], "nothing came back");
        index.unpark(1);
        assert_eq!(heads(&index), [2, 1]);
        index.remove(3);
        assert_eq!((index.len(), index.stream(Area::Group(0)).unplaced), (2, 0));
        index.remove(1);
        assert_eq!(heads(&index), [2]);
    }

    /// Blocks to move, room in segments being filled, segments claimed: segments to claim.
    #[test]
    fn moves_share_the_segments_that_they_fill() {
        let full = GEOMETRY.data_blocks(8);
        let mut index = Index::new(GEOMETRY);
        index.set(1, facts(8, 2, 10, full / 2));
        index.begin(1, Some(Area::Group(0)));
        for (more, room, claimed, to_claim) in [
            (full / 2, 0, 0, 1),
            (full / 2, 0, 1, 0),
            (full, 0, 1, 1),
            (full / 2, full, 0, 0),
            (full / 2 + 1, 0, 1, 1),
        ] {
            index.set_stream(Area::Group(0), room, claimed);
            assert_eq!(index.to_claim(Area::Group(0), more, 8), to_claim);
        }
    }
}
