//! The state of a small array: segments, what is claimed, and the ledger that is checked against them.

use ashlar_space::capacity::{Geometry, capacity, capacity_without_nodes};
use ashlar_space::domains::Domains;
use ashlar_space::index::{Index, SegmentFacts};
use ashlar_space::ledger::{Ledger, Mistake};
use ashlar_space::plan::plan;
use ashlar_space::promise::{Promises, Volume};
use ashlar_space::template::{Plan, Template};
use ashlar_space::topology::{Area, Member, Presence, Topology};
use ashlar_space::work::{Narrow, Paused, Policy, Table};

/// A mistake in the rules that the model is to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    Nothing,
    /// A claim binds lower classes.
    HoldAndWait,
    /// Waste is what was written less what lives, not what the slots are worth less what lives.
    WasteOfUsed,
    /// Nodes' own slots are not subtracted from what is promised, nor from what clients may take.
    NodesForgotten,
}

/// A small array.
#[derive(Debug, Clone)]
pub struct Array {
    pub layout: &'static str,
    pub slots: &'static [u32],
    pub labels: &'static [&'static str],
    /// Losses at most.
    pub losses: u32,
    /// Blocks promised at most; what the array holds, if less.
    pub promised: u64,
    pub jobs: usize,
    /// Segments that clients claim at once, at most.
    pub claims: usize,
    pub narrow: Narrow,
    /// Live nodes. Capacity reckons with two for so small an array: one of the map and one of liveness.
    pub nodes: u64,
    pub planted: Planted,
}

impl Array {
    pub fn geometry(&self) -> Geometry {
        Geometry {
            strip_blocks: 1,
            slot_blocks: 3, // a header, a block, its summary
            least_data: 1,
            clean_reserve: 0,
            step_nodes: 2,
            least_node_k: 8,
            open_segments: 2,
            fixed_nodes: 0,
        }
    }

    pub fn topology(&self, lost: u16) -> Topology {
        let layout: ashlar_layout::Layout = self.layout.parse().unwrap();
        let shape = layout.resolve(self.slots.len() as u16).unwrap();
        let member = |(device, slots): (usize, &u32)| Member {
            presence: if lost >> device & 1 == 1 {
                Presence::Gone
            } else {
                Presence::InUse
            },
            ..Member::in_use(*slots)
        };
        let members = self.slots.iter().enumerate().map(member).collect();
        Topology::new(members, shape, Domains::new(self.labels.iter().copied()))
    }

    /// Blocks that its clients were promised.
    pub fn promised(&self) -> u64 {
        let whole = self.topology(0);
        let best = plan(&whole, &self.geometry(), &Promises::default(), None);
        let nodes = self.planted != Planted::NodesForgotten;
        let of = if nodes {
            capacity
        } else {
            capacity_without_nodes
        };
        let holds = of(&whole, &self.geometry(), &best);
        // For nodes beyond these two, each a segment twice.
        let more = if nodes { 2 * (self.nodes - 2) } else { 0 };
        let holds = holds.saturating_sub(more);
        assert!(
            holds > 0,
            "{} on {:?} holds nothing",
            self.layout,
            self.slots
        );
        holds.min(self.promised)
    }

    pub fn policy(&self) -> Policy {
        Policy {
            paused: Paused::default(),
            narrow: self.narrow,
            reshape: false,
            least_gain: 0,
            spread: 0,
            target: 1,
            now: 0,
        }
    }

    /// Devices that are alike: same group, same domain or alone in one, same slots.
    fn class_of(&self, device: u16) -> Class {
        let all = self.topology(0);
        let domain = all.domains().of(device);
        let alone = (0..self.slots.len() as u16)
            .filter(|d| all.domains().of(*d) == domain)
            .count()
            == 1;
        let group = all.group_of(device).unwrap();
        let domain = if alone { u16::MAX } else { domain };
        (group, domain, self.slots[usize::from(device)])
    }
}

/// Group, domain and slots of a device.
type Class = (u16, u16, u32);

/// A small array, and what follows from it.
#[derive(Debug)]
pub struct Small {
    array: Array,
    pub promised: u64,
    classes: Vec<Class>,
    topologies: Vec<Topology>,
}

impl Small {
    pub fn new(array: &Array) -> Small {
        let devices = array.slots.len() as u16;
        Small {
            array: array.clone(),
            promised: array.promised(),
            classes: (0..devices).map(|d| array.class_of(d)).collect(),
            topologies: (0..1 << devices).map(|lost| array.topology(lost)).collect(),
        }
    }

    fn without(&self, lost: u16) -> &Topology {
        &self.topologies[usize::from(lost)]
    }
}

impl std::ops::Deref for Small {
    type Target = Array;

    fn deref(&self) -> &Array {
        &self.array
    }
}

/// What a segment is being used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Use {
    /// Filled by clients, by moves, or with nodes.
    OpenClient,
    OpenMoves,
    OpenNodes,
    Closed,
    /// Emptied into an area.
    Victim(Area),
    /// Columns go to some devices, from some or from none (sets); whether they were acquired.
    Columns {
        to: u16,
        from: u16,
        acquired: bool,
    },
    /// Needed no more: freed by the next root.
    Dead,
    /// Freed by the first, or second, root to come.
    Freed(u8),
}

/// A segment. Columns are a set of devices: which is which does not matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seg {
    pub area: Area,
    pub k: u16,
    pub m: u16,
    pub on: u16,
    pub written: u64,
    pub live: u64,
    pub what: Use,
}

impl Seg {
    pub fn devices(&self) -> Vec<u16> {
        (0..16).filter(|d| self.on >> d & 1 == 1).collect()
    }

    pub fn is_open(&self) -> bool {
        matches!(self.what, Use::OpenClient | Use::OpenMoves | Use::OpenNodes)
    }

    pub fn has_room(&self) -> bool {
        self.is_open() && self.written < u64::from(self.k)
    }

    pub fn is_data(&self) -> bool {
        self.area != Area::Nodes
    }
}

/// Everything that decides what may happen next.
#[derive(Debug, Clone)]
pub struct State {
    pub lost: u16,
    pub segs: Vec<Seg>,
    pub ledger: Ledger,
    /// Claims of clients, of one segment each.
    pub client: Vec<(Area, u32)>,
    /// Claims of moves and of nodes that are renewed.
    pub moves: Vec<(Area, u32)>,
    /// Claims of columns, by the devices that they are on.
    pub columns: Vec<(u16, u32)>,
    /// Nodes that the next step writes.
    pub dirty: u64,
    /// Roots that are not durable yet.
    pub roots: u8,
}

impl State {
    pub fn new(array: &Small) -> State {
        let topology = array.topology(0);
        let template = plan(&topology, &array.geometry(), &Promises::default(), None);
        let mut ledger = Ledger::new(topology, template);
        match array.planted {
            Planted::HoldAndWait => ledger.plant(Mistake::ClaimsBindAll),
            Planted::NodesForgotten => ledger.plant(Mistake::FloorsTooLow),
            _ => (),
        }
        let mut state = State {
            lost: 0,
            segs: Vec::new(),
            ledger,
            client: Vec::new(),
            moves: Vec::new(),
            columns: Vec::new(),
            dirty: 0,
            roots: 0,
        };
        for _ in 0..array.nodes {
            assert!(state.place_node(), "the first nodes have room");
        }
        state.replan(array);
        state
    }

    pub fn plan(&self) -> &Plan {
        self.ledger.plan()
    }

    pub fn data_live(&self) -> u64 {
        self.segs
            .iter()
            .filter(|s| s.is_data())
            .map(|s| s.live)
            .sum()
    }

    /// Plan and floors again.
    pub fn replan(&mut self, array: &Small) {
        let before = self.plan().clone();
        let topology = array.without(self.lost);
        let volume = Volume {
            size_bytes: array.promised * 4096,
            mapped_bytes: self.data_live() * 4096,
            block_blocks: 1,
            ..Volume::default()
        };
        let promises = Promises {
            volumes: vec![volume],
        };
        let now = plan(topology, &array.geometry(), &promises, Some(&before));
        if **self.ledger.topology() != *topology {
            self.ledger.change(topology.clone(), now.clone());
        }
        let now = self.ledger.with_room_for_steps(now, &array.geometry());
        if now != *self.ledger.plan() {
            self.ledger.replan(now);
        }
        self.reckon(array);
    }

    pub fn reckon(&mut self, array: &Small) {
        let facts = array
            .geometry()
            .facts(&self.plan().nodes, array.nodes, self.node_slots());
        self.ledger.reckon(&facts);
    }

    fn node_slots(&self) -> u64 {
        let nodes = self.segs.iter().filter(|s| !s.is_data());
        let there = nodes.filter(|s| !matches!(s.what, Use::Dead | Use::Freed(_)));
        there.map(|s| u64::from(s.on.count_ones())).sum()
    }

    pub fn add(&mut self, area: Area, template: Template, devices: &[u16], what: Use) {
        self.segs.push(Seg {
            area,
            k: template.k,
            m: template.m,
            on: devices.iter().map(|d| 1 << d).sum(),
            written: 0,
            live: 0,
            what,
        });
    }

    /// The closed segments as the engine would know them, by their places here.
    pub fn index(&self, array: &Small) -> Index {
        let mut index = Index::new(array.geometry());
        for (seg, number) in self.segs.iter().zip(0u64..) {
            let facts = self.facts(array, seg);
            match seg.what {
                Use::Closed => index.set(number, facts),
                Use::Victim(into) => {
                    index.set(number, facts);
                    index.begin(number, Some(into));
                }
                Use::Columns { .. } => {
                    index.set(number, facts);
                    index.begin(number, None);
                }
                _ => (),
            }
        }
        for area in self.areas() {
            let open = self.segs.iter().filter(|s| s.area == area && s.has_room());
            let open = open.filter(|s| s.what != Use::OpenClient);
            let room = open.map(|s| u64::from(s.k) - s.written).sum();
            index.set_stream(area, room, self.claimed(area));
        }
        index
    }

    fn facts(&self, array: &Small, seg: &Seg) -> SegmentFacts {
        let columns: Vec<Option<u16>> = seg.devices().into_iter().map(Some).collect();
        let live = match array.planted {
            // As if its slots were worth what was written to them.
            Planted::WasteOfUsed if seg.live == seg.written => u64::from(seg.k) * 2,
            _ => seg.live,
        };
        SegmentFacts {
            area: seg.area,
            k: seg.k,
            m: seg.m,
            usable: seg.on.count_ones() as u16,
            elsewhere: self
                .plan()
                .elsewhere(self.ledger.topology(), seg.area, &columns),
            awaited: 0,
            live,
            padding: 0,
            closed: 0,
        }
    }

    /// What has died in open segments: what they could hold by the plan, less what lives and what is to come.
    pub fn dead_in_open(&self) -> u64 {
        let open = self.segs.iter().filter(|s| s.is_open());
        let of = |s: &Seg| {
            let template = self.plan().of(s.area);
            let worth =
                u64::from(template.k) * u64::from(s.on.count_ones()) / u64::from(template.laid());
            (worth + s.written).saturating_sub(u64::from(s.k) + s.live)
        };
        open.map(of).sum()
    }

    pub fn areas(&self) -> Vec<Area> {
        let groups = 0..self.ledger.topology().groups();
        std::iter::once(Area::Nodes)
            .chain(groups.map(Area::Group))
            .collect()
    }

    /// Segments that are claimed for moves to an area.
    pub fn claimed(&self, area: Area) -> u32 {
        let of = self.moves.iter().filter(|(a, _)| *a == area);
        of.map(|(_, n)| self.left(*n)).sum()
    }

    pub fn left(&self, number: u32) -> u32 {
        let claim = ashlar_space::ledger::Claim::from_number(number);
        self.ledger.left(&claim).0
    }

    /// Orders segments, so that states that are the same look the same.
    pub fn settle(&mut self) {
        self.segs.sort_unstable();
        let ledger = &self.ledger;
        let left = |n: u32| ledger.left(&ashlar_space::ledger::Claim::from_number(n));
        self.client.sort_by_key(|(area, n)| (*area, left(*n)));
        self.moves.sort_by_key(|(area, n)| (*area, left(*n)));
        self.columns
            .sort_by_key(|(devices, n)| (*devices, left(*n)));
    }

    /// What this state is, with devices that are alike in one order: bytes to compare.
    pub fn key(&self, array: &Small) -> Vec<u8> {
        let order = self.order(array);
        let turn = |set: u16| -> u16 {
            (0..16)
                .filter(|d| set >> d & 1 == 1)
                .map(|d| 1u16 << order[d])
                .sum()
        };
        let mut key = Vec::with_capacity(16 + 12 * self.segs.len());
        key.extend(turn(self.lost).to_le_bytes());
        key.extend([self.dirty as u8, self.roots]);
        let floors = self.ledger.floors();
        key.extend([floors.step as u8, floors.growth as u8]);
        for template in self.plan().groups.iter().chain([&self.plan().nodes]) {
            key.extend([template.k, template.m, template.absent, template.cap].map(|n| n as u8));
        }
        let area = |area: Area| match area {
            Area::Nodes => 0,
            Area::Group(group) => group as u8 + 1,
        };
        let mut segs: Vec<[u8; 12]> = Vec::new();
        for seg in &self.segs {
            let on = turn(seg.on).to_le_bytes();
            let (what, to) = match seg.what {
                Use::OpenClient => (0, 0),
                Use::OpenMoves => (1, 0),
                Use::OpenNodes => (2, 0),
                Use::Closed => (3, 0),
                Use::Victim(into) => (4, u16::from(area(into))),
                Use::Columns { to, acquired, .. } => (5 + u8::from(acquired), turn(to)),
                Use::Dead => (7, 0),
                Use::Freed(root) => (7 + root, 0),
            };
            let from = match seg.what {
                Use::Columns { from, .. } => turn(from).to_le_bytes(),
                _ => [0; 2],
            };
            let to = to.to_le_bytes();
            let of = [seg.k as u8, seg.m as u8, seg.written as u8, seg.live as u8];
            segs.push([
                area(seg.area),
                of[0],
                of[1],
                on[0],
                on[1],
                of[2],
                of[3],
                what,
                to[0],
                to[1],
                from[0],
                from[1],
            ]);
        }
        segs.sort_unstable();
        segs.iter().for_each(|seg| key.extend(seg));
        for (claims, tag) in [(&self.client, 200u8), (&self.moves, 201)] {
            let mut claims: Vec<[u8; 3]> = claims
                .iter()
                .map(|(a, n)| [tag, area(*a), self.left(*n) as u8])
                .collect();
            claims.sort_unstable();
            claims.iter().for_each(|claim| key.extend(claim));
        }
        key
    }

    /// A place for each device: those that are alike are ordered by what lies on them.
    fn order(&self, array: &Small) -> Vec<usize> {
        let count = array.slots.len();
        let sign = |device: usize| -> (u64, Vec<u64>) {
            let mut on: Vec<u64> = self
                .segs
                .iter()
                .filter(|s| s.on >> device & 1 == 1)
                .map(|s| {
                    let what = match s.what {
                        Use::OpenClient => 0,
                        Use::OpenMoves => 1,
                        Use::OpenNodes => 2,
                        Use::Closed => 3,
                        Use::Victim(_) => 4,
                        Use::Columns { .. } => 5,
                        Use::Dead => 6,
                        Use::Freed(n) => 6 + u64::from(n),
                    };
                    let rest = u64::from(s.on.count_ones()) << 24 | u64::from(s.k) << 16;
                    what << 32 | rest | s.written << 8 | s.live | u64::from(s.is_data()) << 40
                })
                .collect();
            on.sort_unstable();
            (u64::from(self.lost >> device & 1), on)
        };
        let mut devices: Vec<usize> = (0..count).collect();
        devices.sort_by_cached_key(|d| (array.classes[*d], sign(*d), *d));
        // Devices of a class get the places of that class, in this order.
        let mut order = vec![0; 16];
        let mut places: Vec<usize> = (0..count).collect();
        places.sort_by_key(|d| (array.classes[*d], *d));
        for (device, place) in devices.into_iter().zip(places) {
            order[device] = place;
        }
        order
    }
}

impl Table for State {
    fn columns(&self, segment: u64) -> Vec<Option<u16>> {
        let seg = &self.segs[segment as usize];
        let mut columns: Vec<Option<u16>> = seg.devices().into_iter().map(Some).collect();
        columns.resize(usize::from(seg.k + seg.m), None);
        columns
    }

    fn segment_at(&self, device: u16, slot: u32) -> Option<u64> {
        let on = |(_, s): &(usize, &Seg)| s.what == Use::Closed && s.on >> device & 1 == 1;
        let found = self.segs.iter().enumerate().filter(on).nth(slot as usize);
        found.map(|(at, _)| at as u64)
    }
}
