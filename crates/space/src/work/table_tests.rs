//! Truth tables of the choice of work.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::capacity::Geometry;
use crate::domains::Domains;
use crate::plan::plan;
use crate::promise::{Promises, Volume};
use crate::template::Plan;
use crate::topology::{Member, Presence};
use crate::work::even::slots_to_even;

const GEOMETRY: Geometry = Geometry::SAMPLE;

const DATA: Area = Area::Group(0);

/// An array with segments, each with the devices of its columns, its data columns, its live percent and when it was
/// closed.
struct Fixture {
    index: Index,
    ledger: Ledger,
    segments: Vec<Vec<Option<u16>>>,
    policy: Policy,
}

struct Columns(Vec<Vec<Option<u16>>>);

impl Table for Columns {
    fn columns(&self, segment: u64) -> Vec<Option<u16>> {
        self.0[segment as usize].clone()
    }

    fn segment_at(&self, device: u16, slot: u32) -> Option<u64> {
        let on = |(_, columns): &(usize, &Vec<Option<u16>>)| columns.contains(&Some(device));
        let found = self.0.iter().enumerate().filter(on).nth(slot as usize);
        found.map(|(number, _)| number as u64)
    }
}

impl Fixture {
    fn new(layout: &str, slots: u32, devices: u16, gone: &[u16]) -> Fixture {
        let layout: ashlar_layout::Layout = layout.parse().unwrap();
        let shape = layout.resolve(devices).unwrap();
        let members = vec![Member::in_use(slots); devices.into()];
        let all = Topology::new(members, shape, Domains::default());
        let all = gone.iter().fold(all, |all, d| all.with(*d, Presence::Gone));
        let plan = plan(&all, &GEOMETRY, &Promises::default(), None);
        Fixture::with(all, plan)
    }

    fn with(topology: Topology, plan: Plan) -> Fixture {
        let mut ledger = Ledger::new(topology, plan.clone());
        ledger.reckon(&GEOMETRY.facts(&plan.nodes, 10, 0));
        Fixture {
            index: Index::new(GEOMETRY),
            ledger,
            segments: Vec::new(),
            policy: Policy {
                paused: Paused::default(),
                narrow: Narrow::Critical,
                reshape: false,
                least_gain: 50,
                spread: 0,
                target: 6,
                now: 100,
            },
        }
    }

    /// A closed segment with columns on these devices (100: missing).
    fn segment(&mut self, k: u16, columns: &[u16], live_percent: u64, closed: u64) -> u64 {
        let number = self.segments.len() as u64;
        let there = |d: &u16| (*d < 100).then_some(*d);
        let columns: Vec<Option<u16>> = columns.iter().map(there).collect();
        let group = columns
            .iter()
            .flatten()
            .next()
            .and_then(|d| self.ledger.topology().group_of(*d));
        let area = Area::Group(group.unwrap_or(0));
        columns
            .iter()
            .flatten()
            .for_each(|d| self.ledger.occupy(*d, 1));
        let plan = self.ledger.plan();
        let facts = SegmentFacts {
            area,
            k,
            m: columns.len() as u16 - k,
            usable: columns.iter().flatten().count() as u16,
            elsewhere: plan.elsewhere(self.ledger.topology(), area, &columns),
            awaited: 0,
            live: GEOMETRY.data_blocks(k) * live_percent / 100,
            padding: 0,
            closed,
        };
        self.index.set(number, facts);
        self.segments.push(columns);
        number
    }

    fn next(&mut self) -> Option<Job> {
        let table = Columns(self.segments.clone());
        let found = next_job(&mut self.index, &mut self.ledger, &table, &self.policy);
        found.map(|(job, claim)| {
            let _ = claim;
            job
        })
    }

    /// The job that moves a column has ended.
    fn move_column(&mut self, segment: u64, column: u16, device: u16) {
        let columns = &mut self.segments[segment as usize];
        let from = columns[usize::from(column)].replace(device).unwrap();
        let claim = Claim::from_number(0);
        assert!(self.ledger.acquire_slot(&claim, device));
        self.ledger.give_back(claim);
        self.ledger.free_later(&[from], false);
        self.ledger.release(&[from]);
        self.index.end(segment);
    }

    fn lack(&self) -> Lack {
        lacks(&self.index, &self.ledger)
    }

    /// Leaves so many slots free on each device.
    fn fill(&mut self, free: u32) {
        for device in self.ledger.topology().taking_in(Area::Nodes) {
            let book = self.ledger.book(device);
            self.ledger.occupy(device, book.free() - free);
        }
    }
}

/// Waste is what rewriting gains: not the rest of stripes that the next volume block did not fit into.
#[test]
fn padding_is_not_waste() {
    for (padding_percent, job) in [(0, true), (20, true), (33, false), (40, false)] {
        let mut all = Fixture::new("ec2+1", 100, 3, &[]);
        let one = all.segment(2, &[0, 1, 2], 67, 0);
        all.fill(20);
        all.policy.target = all.ledger.projection(DATA) + 1;
        let padding = GEOMETRY.data_blocks(2) * padding_percent / 100;
        let facts = *all.index.get(one).unwrap();
        all.index.set(one, SegmentFacts { padding, ..facts });
        let expected = job.then_some(Job::Rewrite {
            segment: one,
            into: DATA,
        });
        assert_eq!(all.next(), expected, "{padding_percent} percent");
    }
}

/// With devices that have room, those with least redundancy come first, and all their columns at once.
#[test]
fn missing_columns_come_first() {
    let mut all = Fixture::new("ec2+2", 100, 6, &[]);
    all.segment(2, &[0, 1, 2, 3], 10, 0);
    let one = all.segment(2, &[0, 1, 2, 100], 100, 0);
    let two = all.segment(2, &[0, 100, 2, 100], 100, 0);
    let lost = all.segment(2, &[0, 100, 100, 100], 100, 0);
    let Some(Job::Columns { segment, to }) = all.next() else {
        panic!("columns are missing");
    };
    let columns: Vec<u16> = to.iter().map(|(column, _)| *column).collect();
    assert_eq!((segment, columns), (two, vec![1, 3]));
    assert!(to.iter().all(|(_, d)| ![0, 2].contains(d)) && to[0].1 != to[1].1);
    assert!(matches!(all.next(), Some(Job::Columns { segment, .. }) if segment == one));
    assert_eq!(all.next(), None, "room is not short");
    assert!(all.index.is_in_flight(two) && !all.index.is_in_flight(lost));
    assert_eq!(all.lack(), Lack::Lost);
}

/// Of segments that are alike those come first whose devices no job reads or writes, and of devices that have as much
/// room, those take columns that are not busy.
#[test]
fn jobs_go_to_devices_that_are_not_busy() {
    let mut all = Fixture::new("ec2+2", 1000, 12, &[]);
    all.policy.spread = 50;
    let one = all.segment(2, &[0, 1, 2, 100], 100, 0);
    let beside = all.segment(2, &[0, 1, 3, 100], 100, 1);
    let apart = all.segment(2, &[4, 5, 6, 100], 100, 2);
    let mut taken = Vec::new();
    for expected in [one, apart, beside] {
        let Some(Job::Columns { segment, to }) = all.next() else {
            panic!("columns are missing");
        };
        assert_eq!((segment, to.len()), (expected, 1));
        taken.push(to[0].1);
    }
    let busy = |job: usize, devices: &[u16]| devices.contains(&taken[job]);
    assert!(!busy(1, &[0, 1, 2, taken[0]]), "{taken:?}");
    assert!(!busy(2, &[2, 4, 5, 6, taken[0], taken[1]]), "{taken:?}");
    assert_eq!([0, taken[0]].map(|d| all.index.load(d)), [2, 2]);
    for segment in [one, beside, apart] {
        all.index.end(segment);
    }
    assert_eq!([0, taken[0]].map(|d| all.index.load(d)), [0, 0]);
}

/// Columns that are expected back are not computed anew; what a segment lacks besides is.
#[test]
fn awaited_columns_are_left_alone() {
    for (absent, columns, awaited, given) in [
        (0, &[0, 1, 2, 100], 0, Some(1)),
        (0, &[0, 1, 2, 100], 1, None),
        (0, &[0, 1, 100, 100], 1, Some(1)),
        (0, &[0, 1, 100, 100], 2, None),
        // The plan itself does without a device: with those that are expected back it lays more redundancy.
        (1, &[0, 1, 2, 100], 1, None),
        (1, &[0, 1, 100, 100], 1, Some(1)),
        (1, &[0, 1, 100, 100], 2, None),
    ] {
        let mut all = Fixture::new("ec2+2", 100, 6, &[]);
        if absent > 0 {
            let without = Fixture::new("ec2+2", 100, 4, &[3]);
            let topology = without.ledger.topology().as_ref().clone();
            let mut plan = all.ledger.plan().clone();
            plan.groups[0].absent = absent;
            all = Fixture::with(topology, plan);
        }
        let one = all.segment(2, columns, 100, 0);
        let facts = *all.index.get(one).unwrap();
        all.index.set(one, SegmentFacts { awaited, ..facts });
        let job = all.next();
        let to = job.map(|job| match job {
            Job::Columns { to, .. } => to.len(),
            other => panic!("{other:?}"),
        });
        assert_eq!(to, given, "{columns:?}, {awaited}");
    }
}

/// What is held off is not offered; what gives clients room is, also of a segment that lacks a column.
#[test]
fn paused_work_is_not_offered() {
    let mut all = Fixture::new("ec2+1", 100, 6, &[]);
    all.policy.paused.restore = true;
    let short = all.segment(2, &[0, 1, 100], 100, 0);
    assert_eq!(all.next(), None);
    all.policy.paused.restore = false;
    assert!(matches!(all.next(), Some(Job::Columns { segment, .. }) if segment == short));

    let mut all = Fixture::new("ec2+1", 10, 6, &[]);
    all.policy.paused.restore = true;
    all.policy.target = 100;
    let short = all.segment(2, &[0, 1, 100], 10, 0);
    assert!(matches!(all.next(), Some(Job::Rewrite { segment, .. }) if segment == short));

    let drained = Fixture::new("ec2+1", 100, 6, &[]);
    let topology = drained.ledger.topology().with(1, Presence::Draining);
    let mut all = Fixture::with(topology, drained.ledger.plan().clone());
    all.policy.paused.bring = true;
    let there = all.segment(2, &[0, 1, 2], 100, 0);
    assert_eq!(all.next(), None);
    all.policy.paused.bring = false;
    assert!(matches!(all.next(), Some(Job::Columns { segment, .. }) if segment == there));
}

/// Layout, devices, those that are gone, a segment, policy: what is done about it.
#[test]
fn segments_become_narrower_by_policy() {
    let rewrite = |into| Some(Job::Rewrite { segment: 0, into });
    for (layout, count, gone, columns, narrow, is, lack) in [
        (
            "ec2+2",
            4,
            &[3][..],
            &[0, 1, 2, 100][..],
            Narrow::Critical,
            None,
            Lack::Devices,
        ),
        (
            "ec2+2",
            4,
            &[3],
            &[0, 1, 2, 100],
            Narrow::Always,
            rewrite(DATA),
            Lack::Nothing,
        ),
        (
            "ec2+2",
            4,
            &[2, 3],
            &[0, 1, 100, 100],
            Narrow::Critical,
            rewrite(DATA),
            Lack::Nothing,
        ),
        (
            "ec3+1",
            4,
            &[3],
            &[0, 1, 2, 100],
            Narrow::Critical,
            rewrite(DATA),
            Lack::Nothing,
        ),
        (
            "ec3+1",
            4,
            &[3],
            &[0, 1, 2, 100],
            Narrow::Never,
            None,
            Lack::Devices,
        ),
        (
            "raid1",
            2,
            &[1],
            &[0, 100],
            Narrow::Always,
            None,
            Lack::Promised,
        ),
        (
            "raid10",
            4,
            &[1],
            &[0, 100],
            Narrow::Never,
            rewrite(Area::Group(1)),
            Lack::Nothing,
        ),
    ] {
        let mut all = Fixture::new(layout, 100, count, gone);
        all.policy.narrow = narrow;
        let k = all.ledger.topology().shape().k;
        all.segment(k, columns, 100, 0);
        let what = format!("{layout} without {gone:?} {narrow:?}");
        assert_eq!(all.next(), is, "{what}");
        assert_eq!(all.lack(), lack, "{what}");
    }
}

/// Waste is taken back where clients would find too little, the best first; what is under way counts.
#[test]
fn waste_is_taken_back_where_room_is_short() {
    let mut all = Fixture::new("ec8+2", 100, 12, &[]);
    let columns: Vec<u16> = (0..10).collect();
    let sparse = all.segment(8, &columns, 20, 50);
    let old = all.segment(8, &columns, 50, 10);
    let young = all.segment(8, &columns, 50, 90);
    all.segment(8, &columns, 97, 0);
    assert_eq!(all.next(), None);
    all.fill(20);
    all.policy.target = all.ledger.projection(DATA) + 1;
    let job = |segment| {
        Some(Job::Rewrite {
            segment,
            into: DATA,
        })
    };
    // The first gives a segment and takes one, which has room for the second: that gives enough.
    assert_eq!(
        [all.next(), all.next(), all.next()],
        [job(sparse), job(old), None]
    );
    all.policy.target += 20;
    assert_eq!([all.next(), all.next()], [job(young), None]);
    assert_eq!(
        all.index.stream(DATA).claimed,
        2,
        "1.2 segments of live blocks"
    );
}

/// With columns absent by the plan, those of full segments are waste.
#[test]
fn columns_are_given_back_where_room_is_short() {
    let whole = Fixture::new("ec8+2", 1100, 12, &[]);
    let holds = crate::capacity::capacity(whole.ledger.topology(), &GEOMETRY, whole.ledger.plan());
    let volume = Volume {
        size_bytes: holds * 4096,
        mapped_bytes: holds * 4096,
        block_blocks: 1,
        ..Volume::default()
    };
    let promises = Promises {
        volumes: vec![volume],
    };
    let all = whole.ledger.topology().with(11, Presence::Gone);
    let lacking = plan(&all, &GEOMETRY, &promises, None);
    assert_eq!(lacking.groups[0].absent, 1);
    let mut all = Fixture::with(all, lacking);
    let columns: Vec<u16> = (0..10).collect();
    let full = all.segment(8, &columns, 100, 0);
    let mut lacks: Vec<u16> = (0..9).collect();
    lacks.push(100);
    all.segment(8, &lacks, 100, 0);
    assert_eq!(all.next(), None);
    assert_eq!(all.lack(), Lack::Promised);
    all.policy.target = 10_000;
    let job = Job::Rewrite {
        segment: full,
        into: DATA,
    };
    assert_eq!([all.next(), all.next()], [Some(job), None]);
}

/// Columns leave a device that is drained, and a domain that holds too many.
#[test]
fn columns_go_where_the_plan_wants_them() {
    let layout: ashlar_layout::Layout = "ec2+1".parse().unwrap();
    let shape = layout.resolve(6).unwrap();
    let members = vec![Member::in_use(100); 6];
    let labels = ["a", "a", "b", "b", "c", "c"];
    let all = Topology::new(members, shape, Domains::new(labels.into_iter()));
    for (drained, columns, to) in [
        (None, [0, 2, 4], None),
        (None, [0, 1, 4], Some((1, vec![2, 3]))),
        (Some(0), [0, 2, 4], Some((0, vec![1]))),
        (Some(0), [1, 2, 4], None),
    ] {
        let all = drained.map_or(all.clone(), |d| all.with(d, Presence::Draining));
        let plan = plan(&all, &GEOMETRY, &Promises::default(), None);
        let mut all = Fixture::with(all, plan);
        all.segment(2, &columns, 100, 0);
        let said = all.next().map(|job| match job {
            Job::Columns { to, .. } => to[0],
            other => panic!("{other:?}"),
        });
        let is = said.map(|(column, device)| {
            to.as_ref()
                .is_some_and(|(c, devices)| *c == column && devices.contains(&device))
        });
        assert_eq!(
            is,
            to.as_ref().map(|_| true),
            "{drained:?} {columns:?}: {said:?}"
        );
    }
}

/// While a device is replaced, a column moves to its replacement, and no other column goes there.
#[test]
fn a_replacement_takes_the_columns_of_what_it_replaces() {
    let layout: ashlar_layout::Layout = "ec2+1".parse().unwrap();
    let mut shape = layout.resolve(3).unwrap();
    shape.groups[0].push(3);
    let mut members = vec![Member::in_use(100); 4];
    members[3].replaces = Some(0);
    members[0].presence = Presence::Draining;
    let all = Topology::new(members, shape, Domains::default());
    let plan = plan(&all, &GEOMETRY, &Promises::default(), None);
    let mut fixture = Fixture::with(all, plan);
    let moves = fixture.segment(2, &[0, 1, 2], 100, 0);
    let job = Job::Columns {
        segment: moves,
        to: vec![(0, 3)],
    };
    assert_eq!(fixture.next(), Some(job));
    let lacking = fixture.segment(2, &[0, 100, 2], 100, 0);
    let job = fixture.next();
    assert!(
        !matches!(&job, Some(Job::Columns { segment, to }) if *segment == lacking && to.contains(&(1, 3))),
        "{job:?}"
    );
}

/// Free slots by device: a column moves from the fullest device to the one with most room, where evenness gains room.
#[test]
fn devices_are_evened_out_where_that_gives_room() {
    for (free, from) in [
        ([60, 60, 60, 60], None),
        ([2, 2, 2, 60], Some(3)),
        ([2, 2, 60, 60], Some(3)),
        ([4, 4, 4, 5], None),
    ] {
        let mut all = Fixture::new("ec2+1", 100, 4, &[]);
        let segment = all.segment(2, &[0, 1, 2], 100, 0);
        for (device, free) in (0u16..).zip(free) {
            let book = all.ledger.book(device);
            all.ledger.occupy(device, book.free() - free);
        }
        let moved = all.next().map(|job| match job {
            Job::Columns { segment: of, to } if of == segment => to[0].1,
            other => panic!("{other:?}"),
        });
        assert_eq!(moved, from, "{free:?}");
    }
}

/// A converted array wants no other shape than that of the plan.
#[test]
fn shapes_change_in_a_conversion_only() {
    let mut all = Fixture::new("ec2+1", 100, 4, &[]);
    let mirror = all.segment(1, &[0, 1], 100, 0);
    all.segment(2, &[0, 1, 2], 100, 0);
    assert_eq!(all.next(), None);
    all.policy.reshape = true;
    let job = Job::Rewrite {
        segment: mirror,
        into: DATA,
    };
    assert_eq!([all.next(), all.next()], [Some(job), None]);
}

/// Slots that were set aside are tried again where room is short.
#[test]
fn bad_slots_are_tried_again_where_room_is_short() {
    let mut all = Fixture::new("ec2+1", 100, 4, &[]);
    all.segment(2, &[0, 1, 2], 100, 0);
    all.ledger.quarantine(1);
    assert_eq!(all.next(), None);
    all.fill(2);
    assert_eq!(all.next(), Some(Job::Retry { device: 1 }));
}

/// Segments that devices hold, then a device more: columns go there until no device is further from its share than the
/// policy allows, and never for less.
#[test]
fn columns_spread_to_a_device_that_holds_less_than_its_share() {
    for (spread, held, moves) in [
        (50, 60, true),
        (0, 60, false),   // by policy
        (50, 6, false),   // too little to move
        (900, 60, false), // as the policy allows
    ] {
        let mut all = Fixture::new("ec2+1", 100, 4, &[]);
        all.policy.spread = spread;
        for _ in 0..held {
            all.segment(2, &[0, 1, 2], 100, 0);
        }
        let due = slots_to_even(&all.index, &all.ledger, &all.policy);
        assert_eq!(due > 0, moves, "{spread} {held}");
        let mut moved = 0;
        while let Some(job) = all.next() {
            let Job::Columns { segment, to } = job else {
                panic!("{job:?}");
            };
            let (column, device) = to[0];
            assert_eq!(device, 3);
            all.move_column(segment, column, device);
            moved += 1;
        }
        assert_eq!(slots_to_even(&all.index, &all.ledger, &all.policy), 0);
        // Each holds 45 in the end; one may hold 5 fewer.
        let most = if moves { 40..=45 } else { 0..=0 };
        assert!(most.contains(&moved), "{spread} {held}: {moved}");
        assert_eq!(all.lack(), Lack::Nothing);
    }
}

/// While the operator has paused moves nothing is spread; where no column can be moved the rest stays, until slots come
/// back or members change.
#[test]
fn what_cannot_be_spread_stays() {
    let mut all = Fixture::new("ec2+1", 100, 4, &[]);
    all.policy.spread = 50;
    for _ in 0..60 {
        let one = all.segment(2, &[0, 1, 2], 100, 0);
        all.index.give_up(one);
    }
    all.policy.paused.bring = true;
    assert_eq!(all.next(), None);
    let due = |all: &Fixture| slots_to_even(&all.index, &all.ledger, &all.policy) > 0;
    assert!(due(&all), "it is only paused");
    all.policy.paused.bring = false;
    assert_eq!(all.next(), None);
    assert!(!due(&all), "each was tried before");
    all.index.unpark_all();
    assert!(due(&all));
    assert_eq!(all.next(), None);
    all.index.try_again();
    assert!(due(&all));
    assert!(matches!(all.next(), Some(Job::Columns { .. })));
}
