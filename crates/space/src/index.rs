//! Closed segments, ordered by the work that they offer, so that no choice has to look at all of them.
//!
//! Segments that are alike but for their live blocks and when they were closed are of one *variant*. The plan's
//! judgement of a segment follows from its variant and its live blocks. So a change of the plan moves no segment here,
//! and the best of a variant is at the head of one of 256 lists by live share, each in the order of closing.
//!
//! Invariants:
//! - A segment is in one list, or in flight, or parked, or given up. One that waits for more redundancy in vain is in a
//!   list of its own: it may be cleaned all the same.
//! - A change of a segment takes time by the logarithm of their number; a choice by the number of variants.

use std::collections::{BTreeMap, BTreeSet};

use crate::capacity::Geometry;
use crate::index::bucket::{Bucket, SHARES};
use crate::index::load::Load;
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
    /// Of the columns that are not there, those that are expected back: they are not computed anew meanwhile.
    pub awaited: u16,
    /// Live blocks, 0 to all that it holds.
    pub live: u64,
    /// Blocks that these leave empty in stripes as the plan lays them, as a volume block lies whole in one: rewriting it
    /// gains none of them.
    pub padding: u64,
    /// When it was closed, in any unit that grows.
    pub closed: u64,
}

impl SegmentFacts {
    /// Blocks of stripes that its live blocks take.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.live + self.padding
    }
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
    /// Columns that are expected back.
    pub awaited: u16,
}

impl Variant {
    pub(crate) fn of(facts: &SegmentFacts) -> Variant {
        Variant {
            redundancy: i32::from(facts.usable) - i32::from(facts.k),
            k: facts.k,
            m: facts.m,
            usable: facts.usable,
            elsewhere: facts.elsewhere,
            awaited: facts.awaited,
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

    /// Of the columns that it lacks, those that are to be computed anew: the ones that are expected back are waited for.
    /// Those without which the plan lays segments are not among what it lacks.
    #[must_use]
    pub fn due(&self, template: &Template) -> u16 {
        let waited_for = self.awaited.saturating_sub(template.absent);
        self.lacks(template).saturating_sub(waited_for)
    }

    /// Blocks that its slots would hold, laid by the plan; of a segment of the plan, `full`.
    #[must_use]
    pub fn worth(&self, template: &Template, full: u64) -> u64 {
        full * u64::from(self.usable) / u64::from(template.laid().max(1))
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

/// Moves of one area that are under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Stream {
    /// Blocks of stripes that the live blocks of segments take that are being emptied.
    pub unplaced: u64,
    /// Blocks that the segments being filled with moves still take.
    pub open_room: u64,
    /// Segments that were claimed for moves and not acquired.
    pub claimed: u32,
}

/// What segments hold together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    /// Columns that are there.
    pub columns: u64,
    /// Live blocks.
    pub live: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Listed,
    /// No job betters it, for this reason; it may be cleaned.
    Waiting(Lack),
    /// There is no room for a job on it.
    Parked,
    /// A job has changed nothing about it.
    GivenUp,
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
    listed: Lists,
    /// Those that wait, by variant and by reason.
    waiting: Lists,
    lacking: [BTreeSet<u64>; LACKS],
    streams: BTreeMap<Area, Stream>,
    parked: BTreeSet<u64>,
    given_up: BTreeSet<u64>,
    /// Segments of each variant that hold something, and those of them that are in flight.
    counts: BTreeMap<(Area, Variant), [u64; 2]>,
    /// What segments of nodes hold, and what those of data do.
    held: [Held; 2],
    /// How often slots had come back when something was parked last.
    parked_at: u64,
    /// How often they had when no column could be moved that evens out what devices hold, though it is uneven, by area.
    stay_uneven: BTreeMap<Area, u64>,
    /// How busy jobs keep devices.
    load: Load,
}

type Lists = BTreeMap<Area, BTreeMap<Variant, Bucket>>;

impl Index {
    /// An index without segments.
    #[must_use]
    pub fn new(geometry: Geometry) -> Index {
        Index {
            geometry,
            segments: BTreeMap::new(),
            listed: Lists::new(),
            waiting: Lists::new(),
            lacking: Default::default(),
            streams: BTreeMap::new(),
            parked: BTreeSet::new(),
            given_up: BTreeSet::new(),
            counts: BTreeMap::new(),
            held: [Held::default(); 2],
            parked_at: 0,
            stay_uneven: BTreeMap::new(),
            load: Load::default(),
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

    /// Whether a column of a segment may be moved: no work is under way on it, and none has come to nothing.
    pub(crate) fn may_move(&self, number: u64) -> bool {
        let place = self.segments.get(&number).map(|(_, place)| *place);
        matches!(place, Some(Place::Listed | Place::Waiting(_)))
    }

    /// What the devices of an area hold stays uneven, since slots had come back so often; `None`: it does not.
    pub(crate) fn set_uneven(&mut self, area: Area, returns: Option<u64>) {
        match returns {
            Some(returns) => drop(self.stay_uneven.insert(area, returns)),
            None => drop(self.stay_uneven.remove(&area)),
        }
    }

    /// How often slots had come back when nothing more of an area could be evened out.
    pub(crate) fn stays_uneven(&self, area: Area) -> Option<u64> {
        self.stay_uneven.get(&area).copied()
    }

    /// A segment was closed, or something about it has changed.
    pub fn set(&mut self, number: u64, facts: SegmentFacts) {
        let mut place = Place::Listed;
        if let Some((old, now)) = self.segments.get(&number).copied() {
            place = match now {
                Place::InFlight { .. } => now,
                Place::Listed | Place::GivenUp if old == facts => return,
                _ => Place::Listed,
            };
            self.take_out(number, &old, now);
        }
        self.put(number, facts, place);
    }

    /// A segment is no more.
    pub fn remove(&mut self, number: u64) {
        self.load.end(number);
        if let Some((facts, place)) = self.segments.remove(&number) {
            self.take_out(number, &facts, place);
        }
    }

    /// A job has taken a segment; `into`: where its blocks are moved to, if they are.
    pub fn begin(&mut self, number: u64, into: Option<Area>) {
        self.move_to(number, Place::InFlight { into });
    }

    /// A job has taken a segment to give columns of it other slots. It reads and writes these devices.
    pub(crate) fn begin_on(&mut self, number: u64, devices: Vec<u16>) {
        self.begin(number, None);
        self.load.begin(number, devices);
    }

    /// How busy such jobs keep a device: the columns that they read and write there.
    #[must_use]
    pub fn load(&self, device: u16) -> u32 {
        self.load.of(device)
    }

    /// A job is done with a segment, which stays.
    pub fn end(&mut self, number: u64) {
        self.move_to(number, Place::Listed);
    }

    /// A segment has no better redundancy to get, for this reason, until slots come back or something changes. It may
    /// be cleaned.
    pub(crate) fn wait(&mut self, number: u64, lack: Lack) {
        self.move_to(number, Place::Waiting(lack));
    }

    /// There was no room for a job on a segment: it is left alone until slots come back, or it changes.
    pub fn park(&mut self, number: u64) {
        self.move_to(number, Place::Parked);
    }

    /// A job has done all that it could with a segment, and has changed nothing about it: it is left alone until it
    /// changes, or [`Index::try_again`].
    pub fn give_up(&mut self, number: u64) {
        self.move_to(number, Place::GivenUp);
    }

    /// Whether segments were given up.
    #[must_use]
    pub fn has_given_up(&self) -> bool {
        !self.given_up.is_empty()
    }

    /// Lists those that were given up again.
    pub fn try_again(&mut self) {
        self.stay_uneven.clear();
        let given_up = std::mem::take(&mut self.given_up);
        self.list(given_up);
    }

    /// The strongest reason why segments wait.
    pub(crate) fn lacks_most(&self) -> Lack {
        let waits = |lack: &&Lack| !self.lacking[**lack as usize].is_empty();
        let lack = Lack::ALL.iter().rev().find(waits);
        lack.copied().unwrap_or(Lack::Nothing)
    }

    /// Whether segments wait for room.
    pub(crate) fn wants_room(&self) -> bool {
        !self.lacking[Lack::Room as usize].is_empty()
    }

    /// Lists segments again that slots could help, if some came back since.
    pub(crate) fn unpark(&mut self, returns: u64) {
        if self.parked_at != returns {
            self.parked_at = returns;
            let room = [Lack::Nothing, Lack::Room].map(|lack| lack as usize);
            let waiting = room.map(|lack| std::mem::take(&mut self.lacking[lack]));
            self.list(waiting.into_iter().flatten());
            let parked = std::mem::take(&mut self.parked);
            self.list(parked);
        }
    }

    /// Lists all segments again that wait for something: after a change of policy or plan.
    pub fn unpark_all(&mut self) {
        self.stay_uneven.clear();
        let waiting = std::mem::take(&mut self.lacking);
        self.list(waiting.into_iter().flatten());
        let parked = std::mem::take(&mut self.parked);
        self.list(parked);
    }

    fn list(&mut self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            self.move_to(number, Place::Listed);
        }
    }

    fn move_to(&mut self, number: u64, place: Place) {
        self.load.end(number);
        if let Some((facts, old)) = self.segments.get(&number) {
            let (facts, old) = (*facts, *old);
            self.take_out(number, &facts, old);
            self.put(number, facts, place);
        }
    }

    fn share(&self, facts: &SegmentFacts) -> usize {
        let holds = full(&self.geometry, facts.area, facts.k).max(1);
        let share = (facts.taken() * (SHARES as u64 - 1)).div_ceil(holds);
        usize::try_from(share).unwrap_or(SHARES - 1).min(SHARES - 1)
    }

    fn put(&mut self, number: u64, facts: SegmentFacts, place: Place) {
        let (variant, share) = (Variant::of(&facts), self.share(&facts));
        let held = &mut self.held[usize::from(facts.area != Area::Nodes)];
        held.columns += u64::from(facts.usable);
        held.live += facts.live;
        if facts.live > 0 {
            let count = self.counts.entry((facts.area, variant)).or_default();
            count[0] += 1;
            count[1] += u64::from(matches!(place, Place::InFlight { .. }));
        }
        let list = |lists: &mut Lists| {
            let area = lists.entry(facts.area).or_default();
            let bucket = area.entry(variant).or_insert_with(Bucket::new);
            bucket.insert(share, (facts.closed, number));
        };
        match place {
            Place::Listed => list(&mut self.listed),
            Place::Waiting(lack) => {
                list(&mut self.waiting);
                self.lacking[lack as usize].insert(number);
            }
            Place::Parked => {
                self.parked.insert(number);
            }
            Place::GivenUp => {
                self.given_up.insert(number);
            }
            Place::InFlight { into: Some(into) } => {
                self.streams.entry(into).or_default().unplaced += facts.taken();
            }
            Place::InFlight { into: None } => {}
        }
        self.segments.insert(number, (facts, place));
    }

    fn take_out(&mut self, number: u64, facts: &SegmentFacts, place: Place) {
        let (variant, share) = (Variant::of(facts), self.share(facts));
        let held = &mut self.held[usize::from(facts.area != Area::Nodes)];
        held.columns -= u64::from(facts.usable);
        held.live -= facts.live;
        if facts.live > 0
            && let Some(count) = self.counts.get_mut(&(facts.area, variant))
        {
            count[0] -= 1;
            count[1] -= u64::from(matches!(place, Place::InFlight { .. }));
            if count[0] == 0 {
                self.counts.remove(&(facts.area, variant));
            }
        }
        let unlist = |lists: &mut Lists| {
            if let Some(area) = lists.get_mut(&facts.area)
                && let Some(bucket) = area.get_mut(&variant)
            {
                bucket.remove(share, (facts.closed, number));
                if bucket.count == 0 {
                    area.remove(&variant);
                }
            }
        };
        match place {
            Place::Listed => unlist(&mut self.listed),
            Place::Waiting(lack) => {
                unlist(&mut self.waiting);
                self.lacking[lack as usize].remove(&number);
            }
            Place::Parked => {
                self.parked.remove(&number);
            }
            Place::GivenUp => {
                self.given_up.remove(&number);
            }
            Place::InFlight { into } => {
                if let Some(stream) = into.and_then(|into| self.streams.get_mut(&into)) {
                    stream.unplaced = stream.unplaced.saturating_sub(facts.taken());
                }
            }
        }
    }

    /// Some listed segments of a variant: those with the fewest live blocks, of these the ones that were closed first.
    pub(crate) fn first(&self, area: Area, variant: &Variant, most: usize) -> Vec<u64> {
        let bucket = self.listed.get(&area).and_then(|area| area.get(variant));
        bucket.map_or_else(Vec::new, |bucket| bucket.all().take(most).collect())
    }

    /// The variants of an area of which segments are listed, those with the least redundancy first.
    pub(crate) fn due(&self, area: Area) -> impl Iterator<Item = &Variant> {
        self.listed.get(&area).into_iter().flatten().map(|(v, _)| v)
    }

    /// So many segments more were claimed for moves to an area.
    pub(crate) fn add_claimed(&mut self, area: Area, segments: u32) {
        self.streams.entry(area).or_default().claimed += segments;
    }

    /// The variants of an area, with their segments that may be cleaned: listed, or waiting.
    pub(crate) fn variants(&self, area: Area) -> impl Iterator<Item = (&Variant, &Bucket)> {
        let lists = [&self.listed, &self.waiting].into_iter();
        lists.filter_map(move |lists| lists.get(&area)).flatten()
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

    /// Columns that segments lack, and that lie elsewhere than the plan wants, as if all work in flight were done.
    #[must_use]
    pub fn left(&self, plan: &Plan) -> (u64, u64) {
        let of = |((area, variant), [all, in_flight]): (&(Area, Variant), &[u64; 2])| {
            let count = all - in_flight;
            let missing = u64::from(variant.lacks(&plan.of(*area)));
            let elsewhere = u64::from(variant.elsewhere) + u64::from(plan.outranked(*area));
            (missing * count, elsewhere * count)
        };
        let add = |sum: (u64, u64), one: (u64, u64)| (sum.0 + one.0, sum.1 + one.1);
        self.counts.iter().map(of).fold((0, 0), add)
    }

    /// Columns that lie elsewhere than the plan wants, of segments that hold something and can be read, also while jobs
    /// move them.
    #[must_use]
    pub fn elsewhere(&self) -> u64 {
        let counts = self.counts.iter();
        let readable = counts.filter(|((_, variant), _)| variant.redundancy >= 0);
        let columns = readable.map(|((_, variant), [all, _])| u64::from(variant.elsewhere) * all);
        columns.sum()
    }

    /// The facts of the segments that no job works on: of all, so for tests.
    pub(crate) fn at_rest(&self) -> impl Iterator<Item = &SegmentFacts> {
        let rests = |place: &Place| !matches!(place, Place::InFlight { .. });
        let segments = self.segments.values();
        segments
            .filter(move |(_, place)| rests(place))
            .map(|(facts, _)| facts)
    }

    /// The variants of segments that hold something, and where these lie.
    pub fn holding(&self) -> impl Iterator<Item = &(Area, Variant)> {
        self.counts.keys()
    }

    /// What its segments of nodes hold, and what those of data do.
    #[must_use]
    pub fn held(&self) -> (Held, Held) {
        (self.held[0], self.held[1])
    }
}

mod bucket;
mod load;
#[cfg(test)]
pub(crate) mod tests;
