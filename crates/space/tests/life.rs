//! The life of larger arrays: all that was promised is written, overwritten at random, devices are lost and come back
//! empty, and clients can go on. Work is done at once, so it shows plan, measure and evening out rather than orders of
//! steps.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;

use ashlar_space::capacity::{Geometry, capacity};
use ashlar_space::domains::Domains;
use ashlar_space::floors::Class;
use ashlar_space::index::{Index, SegmentFacts};
use ashlar_space::ledger::Ledger;
use ashlar_space::plan::plan;
use ashlar_space::promise::{Promises, Volume};
use ashlar_space::topology::{Area, Member, Presence, Topology};
use ashlar_space::work::{Job, Narrow, Paused, Policy, Table, lacks, next_job};

struct Seg {
    area: Area,
    k: u16,
    m: u16,
    columns: Vec<Option<u16>>,
    written: u64,
    live: u64,
    closed: Option<u64>,
}

#[derive(Default)]
struct Segments(BTreeMap<u64, Seg>);

impl Table for Segments {
    fn columns(&self, segment: u64) -> Vec<Option<u16>> {
        self.0[&segment].columns.clone()
    }

    fn segment_at(&self, device: u16, slot: u32) -> Option<u64> {
        let on = |(_, s): &(&u64, &Seg)| s.closed.is_some() && s.columns.contains(&Some(device));
        self.0.iter().filter(on).nth(slot as usize).map(|(n, _)| *n)
    }
}

struct Life {
    what: String,
    geometry: Geometry,
    promised: u64,
    ledger: Ledger,
    index: Index,
    segments: Segments,
    /// The segment of each block that was written.
    blocks: Vec<u64>,
    open: BTreeMap<(Area, bool), u64>,
    nodes: u64,
    next: u64,
    seed: u64,
    jobs: [u64; 3],
}

impl Life {
    fn new(layout: &str, slots: &[u32], labels: &[&str]) -> Life {
        let geometry = Geometry {
            strip_blocks: 1,
            slot_blocks: 8, // six blocks of data
            least_data: 1,
            clean_reserve: 10,
            step_nodes: 12,
            least_node_k: 8,
            open_segments: 2,
            fixed_nodes: 0,
        };
        let name: ashlar_layout::Layout = layout.parse().unwrap();
        let shape = name.resolve(slots.len() as u16).unwrap();
        let members = slots.iter().map(|s| Member::in_use(*s)).collect();
        let all = Topology::new(members, shape, Domains::new(labels.iter().copied()));
        let first = plan(&all, &geometry, &Promises::default(), None);
        let promised = capacity(&all, &geometry, &first);
        let segments = promised / geometry.data_blocks(first.groups[0].k) + 1;
        let nodes = geometry.nodes_for(segments, first.groups[0].k);
        let mut life = Life {
            what: format!("{layout} on {slots:?} {labels:?}"),
            geometry,
            promised,
            ledger: Ledger::new(all, first),
            index: Index::new(geometry),
            segments: Segments::default(),
            blocks: Vec::new(),
            open: BTreeMap::new(),
            nodes,
            next: 0,
            seed: 7,
            jobs: [0; 3],
        };
        (0..nodes).for_each(|_| {
            life.place(Area::Nodes, true, Class::Checkpoint).unwrap();
        });
        life.checkpoint();
        life
    }

    fn random(&mut self, below: u64) -> u64 {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.seed >> 33) % below
    }

    fn know(&mut self, number: u64) {
        let seg = &self.segments.0[&number];
        let Some(closed) = seg.closed else { return };
        let elsewhere =
            self.ledger
                .plan()
                .elsewhere(self.ledger.topology(), seg.area, &seg.columns);
        let facts = SegmentFacts {
            area: seg.area,
            k: seg.k,
            m: seg.m,
            usable: seg.columns.iter().flatten().count() as u16,
            elsewhere,
            awaited: 0,
            live: seg.live,
            padding: 0,
            closed,
        };
        self.index.set(number, facts);
    }

    fn close(&mut self, number: u64) {
        self.next += 1;
        self.segments.0.get_mut(&number).unwrap().closed = Some(self.next);
        self.open.retain(|_, open| *open != number);
        self.know(number);
    }

    /// Writes one block; the segment that took it.
    fn place(&mut self, area: Area, moves: bool, class: Class) -> Option<u64> {
        let number = match self.open.get(&(area, moves)) {
            Some(number) => *number,
            None => {
                let template = self.ledger.plan().of(area);
                let devices = self.ledger.take_segment(class, area, &[])?;
                let mut columns: Vec<Option<u16>> = devices.into_iter().map(Some).collect();
                columns.resize(template.width().into(), None);
                let seg = Seg {
                    area,
                    k: template.k,
                    m: template.m,
                    columns,
                    written: 0,
                    live: 0,
                    closed: None,
                };
                self.next += 1;
                self.segments.0.insert(self.next, seg);
                self.open.insert((area, moves), self.next);
                self.next
            }
        };
        let seg = self.segments.0.get_mut(&number).unwrap();
        seg.written += 1;
        seg.live += 1;
        let holds = match area {
            Area::Nodes => self.geometry.node_blocks(seg.k),
            Area::Group(_) => self.geometry.data_blocks(seg.k),
        };
        if seg.written == holds {
            self.close(number);
        }
        Some(number)
    }

    fn kill(&mut self, number: u64) {
        self.segments.0.get_mut(&number).unwrap().live -= 1;
        self.know(number);
    }

    /// Roots are durable: dead segments are free, plan and floors are made again.
    fn checkpoint(&mut self) {
        let dead = |s: &Seg| s.closed.is_some() && s.live == 0;
        let dead: Vec<u64> = self
            .segments
            .0
            .iter()
            .filter(|(_, s)| dead(s))
            .map(|(n, _)| *n)
            .collect();
        for number in dead {
            let seg = self.segments.0.remove(&number).unwrap();
            let devices: Vec<u16> = seg.columns.into_iter().flatten().collect();
            self.ledger.free_later(&devices, true);
            self.ledger.release(&devices);
            self.index.remove(number);
        }
        let topology = Topology::clone(self.ledger.topology());
        self.replan(topology);
        self.ledger.audit().unwrap();
    }

    fn replan(&mut self, topology: Topology) {
        let volume = Volume {
            size_bytes: self.promised * 4096,
            mapped_bytes: self.blocks.len() as u64 * 4096,
            block_blocks: 1,
            ..Volume::default()
        };
        let promises = Promises {
            volumes: vec![volume],
        };
        let before = self.ledger.plan().clone();
        let now = plan(&topology, &self.geometry, &promises, Some(&before));
        if topology != **self.ledger.topology() {
            self.ledger.change(topology, now.clone());
        }
        let now = self.ledger.with_room_for_steps(now, &self.geometry);
        if now != *self.ledger.plan() {
            self.ledger.replan(now);
        }
        let nodes = self.segments.0.values().filter(|s| s.area == Area::Nodes);
        let slots = nodes
            .map(|s| s.columns.iter().flatten().count() as u64)
            .sum();
        let facts = self
            .geometry
            .facts(&self.ledger.plan().nodes, self.nodes, slots);
        self.ledger.reckon(&facts);
    }

    fn lose(&mut self, device: u16) {
        let all = self.ledger.topology().with(device, Presence::Gone);
        let mut open = Vec::new();
        for (number, seg) in &mut self.segments.0 {
            for column in &mut seg.columns {
                if *column == Some(device) {
                    *column = None;
                    if seg.closed.is_none() {
                        open.push(*number);
                    }
                }
            }
            let there = seg.columns.iter().flatten().count();
            assert!(
                seg.live == 0 || there >= seg.k.into(),
                "{}: data are lost",
                self.what
            );
        }
        self.replan(all);
        open.into_iter().for_each(|number| self.close(number));
        let all: Vec<u64> = self.segments.0.keys().copied().collect();
        all.into_iter().for_each(|number| self.know(number));
    }

    /// A device comes in the place of one that went, empty.
    fn come(&mut self, device: u16) {
        let all = self.ledger.topology().with(device, Presence::InUse);
        self.replan(all);
        let all: Vec<u64> = self.segments.0.keys().copied().collect();
        all.into_iter().for_each(|number| self.know(number));
    }

    /// Does one job; whether there was one.
    fn work(&mut self) -> bool {
        let policy = Policy {
            paused: Paused::default(),
            narrow: Narrow::Critical,
            reshape: false,
            least_gain: 20,
            spread: 50,
            target: 2,
            now: self.next,
        };
        let found = next_job(&mut self.index, &mut self.ledger, &self.segments, &policy);
        let Some((job, claim)) = found else {
            return false;
        };
        match job {
            Job::Columns { segment, to } => {
                for (column, device) in to {
                    assert!(self.ledger.acquire_slot(&claim, device));
                    let columns = &mut self.segments.0.get_mut(&segment).unwrap().columns;
                    let old = columns[usize::from(column)].replace(device);
                    self.jobs[usize::from(old.is_some())] += 1;
                    let old: Vec<u16> = old.into_iter().collect();
                    self.ledger.free_later(&old, false);
                    self.ledger.release(&old);
                }
                self.ledger.give_back(claim);
                self.know(segment);
                self.index.end(segment);
            }
            Job::Rewrite { segment, into } => {
                self.ledger.give_back(claim);
                self.rewrite(segment, into);
            }
            Job::Renew { segment } => {
                self.ledger.give_back(claim);
                self.rewrite(segment, Area::Nodes);
            }
            Job::Retry { .. } => unreachable!("no slot is quarantined"),
        }
        for area in [Area::Nodes, Area::Group(0), Area::Group(1)] {
            let open = self.open.get(&(area, true)).map(|n| &self.segments.0[n]);
            let room = open.map_or(0, |s| self.geometry.data_blocks(s.k) - s.written);
            self.index.set_stream(area, room, 0);
        }
        true
    }

    fn rewrite(&mut self, segment: u64, into: Area) {
        self.jobs[2] += 1;
        let place = |life: &mut Life| {
            let to = life.place(into, true, Class::Clean);
            let to = to.unwrap_or_else(|| panic!("{}: claimed room is there", life.what));
            life.kill(segment);
            to
        };
        if into == Area::Nodes {
            while self.segments.0[&segment].live > 0 {
                place(self);
            }
        }
        for block in 0..self.blocks.len() {
            if self.blocks[block] == segment {
                self.blocks[block] = place(self);
            }
        }
    }

    /// A client writes a new block, or one at random once all are written.
    fn write(&mut self) {
        for _ in 0..10_000 {
            let groups = (0..self.ledger.topology().groups()).map(Area::Group);
            let open = self
                .open
                .keys()
                .find(|(a, moves)| *a != Area::Nodes && !moves);
            let granted = |a: &Area| self.ledger.grant(Class::Client, *a);
            let rank = |a: &Area| (self.ledger.plan().of(*a).redundancy(), granted(a));
            let best = groups.filter(|a| granted(a) > 0).max_by_key(rank);
            if let Some(area) = open.map(|(a, _)| *a).or(best) {
                let number = self.place(area, false, Class::Client).unwrap();
                if (self.blocks.len() as u64) < self.promised {
                    self.blocks.push(number);
                } else {
                    let block = self.random(self.promised) as usize;
                    let old = std::mem::replace(&mut self.blocks[block], number);
                    self.kill(old);
                }
                return;
            }
            let worked = self.work();
            self.checkpoint();
            if !worked && !self.work() && self.ledger.grant(Class::Client, Area::Group(0)) == 0 {
                break;
            }
        }
        let free: Vec<u32> = (0..self.ledger.topology().members().len() as u16)
            .map(|d| self.ledger.book(d).free())
            .collect();
        panic!(
            "{}: a client cannot go on: {:?} {:?} free {free:?} {:?}",
            self.what,
            self.ledger.plan(),
            self.ledger.floors(),
            lacks(&self.index, &self.ledger)
        );
    }

    /// Works until all rests.
    fn rest(&mut self) {
        for _ in 0..20_000 {
            let worked = self.work();
            self.checkpoint();
            if !worked && !self.work() {
                return;
            }
        }
        panic!("{}: it does not come to rest", self.what);
    }
}

#[test]
fn promised_room_can_be_written_again_and_again() {
    for (layout, slots, labels, lost) in [
        ("ec4+2", &[60; 8][..], &[][..], &[0, 5][..]),
        ("ec4+2", &[60; 6], &[], &[1, 2]),
        ("ec4+2", &[120, 60, 60, 60, 60, 60, 60, 30], &[], &[0, 3]),
        ("ec4+2", &[120, 120, 60, 60, 60, 60, 60, 60], &[], &[0, 1]),
        ("ec2+1", &[60; 5], &["a", "a", "b", "b", "c"], &[4]),
        (
            "ec2+1",
            &[60; 7],
            &["a", "a", "a", "a", "b", "b", "c"],
            &[4],
        ),
        (
            "ec2+1",
            &[60; 7],
            &["a", "a", "a", "a", "b", "b", "c"],
            &[6],
        ),
        (
            "ec4+2",
            &[60; 10],
            &["a", "a", "a", "a", "b", "b", "b", "c", "c", "c"],
            &[4, 7],
        ),
        ("raid10", &[60; 4], &[], &[2]),
        ("raid50:2", &[60; 8], &[], &[1, 6]),
        ("raid1", &[60; 3], &[], &[0, 1]),
    ] {
        let mut life = Life::new(layout, slots, labels);
        let writes = life.promised * 3;
        (0..writes).for_each(|_| life.write());
        for device in lost {
            life.lose(*device);
            life.rest();
            (0..writes).for_each(|_| life.write());
        }
        life.rest();
        for device in lost {
            life.come(*device);
        }
        life.rest();
        let measure = ashlar_space::measure::measure(&life.index, life.ledger.plan(), false);
        assert_eq!(measure.missing, 0, "{}: all is redundant again", life.what);
        (0..writes).for_each(|_| life.write());
        life.rest();
        let whole = life.ledger.plan().groups.iter().all(|t| t.absent == 0);
        assert!(whole, "{}", life.what);
        let template = life.ledger.plan().groups[0];
        println!(
            "{}: {} blocks, lost {lost:?}: {}+{} less {}, cap {}; {} columns rebuilt, {} moved, {} segments rewritten",
            life.what,
            life.promised,
            template.k,
            template.m,
            template.absent,
            template.cap,
            life.jobs[0],
            life.jobs[1],
            life.jobs[2]
        );
    }
}
