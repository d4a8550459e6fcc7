//! What each call takes, by the number of segments: the work of a call must not grow with it.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Instant;

use ashlar_space::capacity::Geometry;
use ashlar_space::domains::Domains;
use ashlar_space::floors::Class;
use ashlar_space::index::{Index, SegmentFacts};
use ashlar_space::ledger::Ledger;
use ashlar_space::plan::plan;
use ashlar_space::promise::Promises;
use ashlar_space::topology::{Area, Member, Presence, Topology};
use ashlar_space::work::{Job, Narrow, Paused, Policy, Table, next_job};

const DEVICES: u16 = 12;
const DATA: Area = Area::Group(0);

/// Segment n lies on ten devices from n on, round the twelve.
struct Round;

impl Table for Round {
    fn columns(&self, segment: u64) -> Vec<Option<u16>> {
        (0..10)
            .map(|c| Some(((segment + c) % u64::from(DEVICES)) as u16))
            .collect()
    }

    fn segment_at(&self, _: u16, _: u32) -> Option<u64> {
        None
    }
}

fn geometry() -> Geometry {
    Geometry {
        strip_blocks: 16,
        slot_blocks: 256,
        least_data: 1,
        clean_reserve: 10,
        step_nodes: 560,
        least_node_k: 8,
        open_segments: 8,
        fixed_nodes: 0,
    }
}

fn facts(number: u64, live: u64) -> SegmentFacts {
    SegmentFacts {
        area: DATA,
        k: 8,
        m: 2,
        usable: 10,
        elsewhere: 0,
        awaited: 0,
        live,
        padding: 0,
        closed: number,
    }
}

fn mix(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

fn devices_of(segment: u64) -> Vec<u16> {
    Round.columns(segment).into_iter().flatten().collect()
}

/// An array that is nearly full of segments.
struct Full {
    ledger: Ledger,
    index: Index,
    count: u64,
    policy: Policy,
    times: Vec<(&'static str, u64)>,
}

impl Full {
    fn new(slots: u32) -> Full {
        let layout: ashlar_layout::Layout = "ec8+2".parse().unwrap();
        let shape = layout.resolve(DEVICES).unwrap();
        let members = vec![Member::in_use(slots); DEVICES.into()];
        let topology = Topology::new(members, shape, Domains::default());
        let template = plan(&topology, &geometry(), &Promises::default(), None);
        let mut ledger = Ledger::new(topology, template.clone());
        let (live, there) = (u64::from(slots) * 18, u64::from(slots) / 8);
        ledger.reckon(&geometry().facts(&template.nodes, live, there));
        let count = u64::from(slots) * 12 / 10 * 95 / 100;
        for device in (0..count).flat_map(devices_of) {
            ledger.occupy(device, 1);
        }
        Full {
            ledger,
            index: Index::new(geometry()),
            count,
            policy: Policy {
                paused: Paused::default(),
                narrow: Narrow::Critical,
                reshape: false,
                least_gain: 50,
                spread: 50,
                target: u32::MAX,
                now: 2 * count,
            },
            times: Vec::new(),
        }
    }

    /// Notes how long each of `count` calls takes.
    fn each(&mut self, name: &'static str, count: u64, mut call: impl FnMut(&mut Full, u64)) {
        let since = Instant::now();
        (0..count).for_each(|n| call(self, n));
        let taken = since.elapsed().as_nanos() as u64 / count;
        self.times.push((name, taken));
    }

    fn segments(&mut self) {
        let full = geometry().data_blocks(8);
        self.each("index a segment", self.count, |all, n| {
            let live = full / 3 + mix(n) % (full * 2 / 3);
            all.index.set(n, facts(n, live));
        });
        self.each("change live blocks", 20_000, |all, n| {
            let number = mix(n) % all.count;
            let live = all.index.get(number).unwrap().live;
            all.index.set(number, facts(number, live - 1));
        });
    }

    fn jobs(&mut self) {
        let mut victims = Vec::new();
        self.each("next job, a victim", 500, |all, _| {
            let job = next_job(&mut all.index, &mut all.ledger, &Round, &all.policy);
            if let Some((Job::Rewrite { segment, .. }, claim)) = job {
                all.ledger.give_back(claim);
                victims.push(segment);
            }
        });
        for number in victims {
            self.ledger.free_later(&devices_of(number), true);
            self.ledger.release(&devices_of(number));
            self.index.remove(number);
        }
        self.index.set_stream(DATA, 0, 0);
        self.policy.target = 1;
        self.each("next job, at rest", 2_000, |all, _| {
            let job = next_job(&mut all.index, &mut all.ledger, &Round, &all.policy);
            assert!(job.is_none());
        });
    }

    fn slots(&mut self) {
        self.each("grant", 2_000, |all, _| {
            assert!(all.ledger.grant(Class::Client, DATA) > 0);
        });
        self.each("claim, acquire, free", 400, |all, _| {
            let claim = all.ledger.claim(Class::Client, DATA, 1).unwrap();
            let devices = all.ledger.acquire(&claim, &[]).unwrap();
            all.ledger.give_back(claim);
            all.ledger.free_later(&devices, false);
            all.ledger.release(&devices);
        });
    }

    fn members(&mut self) {
        let without = self.ledger.topology().with(3, Presence::Gone);
        self.each("plan, a device gone", 20, |all, _| {
            let before = all.ledger.plan();
            let _ = plan(&without, &geometry(), &Promises::default(), Some(before));
        });
        self.each("a loss, all segments", 1, |all, _| {
            for number in 0..all.count {
                let old = all.index.get(number).copied();
                if let Some(old) = old.filter(|_| devices_of(number).contains(&3)) {
                    all.index.set(number, SegmentFacts { usable: 9, ..old });
                }
            }
        });
    }
}

/// Calls by name, in nanoseconds.
fn measure(slots: u32) -> Vec<(&'static str, u64)> {
    let mut all = Full::new(slots);
    all.segments();
    all.jobs();
    all.slots();
    all.members();
    all.times
}

#[test]
fn a_call_takes_as_long_with_many_segments() {
    let all: Vec<_> = [1_000, 16_384, 262_144].map(measure).into_iter().collect();
    println!(
        "{:<24} {:>12} {:>12} {:>12} ns",
        "slots a device", 1_000, 16_384, 262_144
    );
    for (at, (name, few)) in all[0].iter().enumerate() {
        let (some, many) = (all[1][at].1, all[2][at].1);
        println!("{name:<24} {few:>12} {some:>12} {many:>12}");
        // Deeper trees, and memory that is no longer in the cache.
        let most = (few * 16).max(20_000);
        assert!(
            *name == "a loss, all segments" || many < most,
            "{name}: {few} ns, then {many}"
        );
    }
}
