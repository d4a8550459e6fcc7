//! The room of metadata: what its nodes take, may still take, and how wide their segments are.
//!
//! Invariants:
//! - Clients leave metadata room to grow to twice what of it is live, so that cleaning it always gains.
//! - A commit folds no more than what fits what is free (`fold_limit`), and whoever has nodes written anew takes
//!   no more than what fits beside that (`may_renew`), which nobody else takes until that commit
//!   (`MetadataNeed::renewed`): a commit that has begun must end (#136, #155). While one places nodes no others are
//!   reckoned with (`placing`, #163).
//! - No commit writes nodes with less redundancy than others have, unless data keep to shares: then nodes do as well
//!   (`meta_wanted`, #148).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use ashlar_format::slot::SegmentKind;
use ashlar_format::{SegmentGeometry, SegmentNumber};
use ashlar_rt::Lock;

use crate::home::Home;
use crate::home::allocate::Picks;
use crate::locks;
use crate::members::Member;
use crate::space::capacity::segments_that_fit;
use crate::space::shape::FoldLimit;
use crate::space::slots::{
    MetadataNeed, Purpose, meta_shape, metadata_survives, reserve, slots_each,
};

/// Nodes of a segment that the next commit writes anew.
#[derive(Debug, Clone, Copy, Default)]
pub struct Renewed {
    /// These, and those above them.
    pub nodes: usize,
    /// Nodes of the records that this changes where they were.
    pub records: usize,
}

impl Renewed {
    fn and(self, more: Renewed) -> Renewed {
        Renewed {
            nodes: self.nodes + more.nodes,
            records: self.records + more.records,
        }
    }
}

/// What is kept back from some for others.
#[derive(Debug)]
pub struct Reserved {
    /// Device sets picked for the segments to come.
    pub(super) picks: RefCell<Picks>,
    /// The next round of placement.
    pub(super) round: Cell<u64>,
    /// By device: free slots that are left to the commit that is placing nodes.
    pub(super) held: RefCell<Vec<usize>>,
    /// What the next commit writes anew, by metadata segment.
    pub(super) renewed: RefCell<BTreeMap<SegmentNumber, Renewed>>,
    /// Held by a commit while it places nodes, and by whoever has nodes written anew from where it reckons the room
    /// for them until they are marked: so that they go into the commit that they were reckoned for.
    pub(super) placing: Lock<()>,
    /// The share of usable space, in percent, that was last warned of; 0: none.
    pub(super) warned: Cell<u64>,
}

impl Default for Reserved {
    fn default() -> Reserved {
        Reserved {
            picks: RefCell::default(),
            round: Cell::default(),
            held: RefCell::default(),
            renewed: RefCell::default(),
            placing: Lock::ranked((), locks::PLACING),
            warned: Cell::default(),
        }
    }
}

/// What metadata holds.
#[derive(Debug, Default)]
struct Metadata {
    /// Nodes that are live, or will be once every segment's record has been written.
    nodes: usize,
    /// Its segments, by data columns.
    segments: BTreeMap<usize, usize>,
    /// Data columns of the widest that holds a live node.
    widest: usize,
}

impl Home {
    /// Parity columns of metadata segments, before narrowing.
    pub(crate) fn metadata_m(&self) -> usize {
        let devices = self.core.members.len();
        metadata_survives(&self.shape).min(devices.saturating_sub(1))
    }

    /// What metadata holds now.
    fn metadata(&self) -> Metadata {
        let mut metadata = Metadata::default();
        for segment in self.core.segments.borrow().values() {
            if segment.kind == SegmentKind::Meta {
                let (live, k) = (segment.live.borrow().count(), segment.geometry.k.into());
                metadata.nodes += live as usize;
                *metadata.segments.entry(k).or_default() += 1;
                if live > 0 {
                    metadata.widest = metadata.widest.max(k);
                }
            }
        }
        let unwritten = self.liveness.nodes_unwritten();
        metadata.nodes += unwritten;
        metadata
    }

    /// Nodes that a metadata segment of `k` holds.
    fn meta_nodes(&self, k: usize) -> usize {
        let geometry = SegmentGeometry {
            k: u16::try_from(k).expect("at most 8"),
            m: 1,
            strip_blocks: 1,
            slot_blocks: self.core.slot_blocks,
        };
        geometry.data_blocks() as usize
    }

    /// See [`meta_shape`].
    fn meta_shape(&self, devices: &[u16]) -> (usize, usize) {
        meta_shape(&self.shape, &self.core.domains, devices, 0)
    }

    /// What metadata needs of each device.
    pub(crate) fn metadata_need(&self) -> MetadataNeed {
        let online = self.core.taking_slots();
        self.need_of(&self.metadata(), self.meta_wanted(&online), online.len())
    }

    /// The same in segments of this shape.
    fn need_of(&self, metadata: &Metadata, shape: (usize, usize), devices: usize) -> MetadataNeed {
        let ((k, m), devices) = (shape, devices.max(1));
        let renewed = (self.written_anew(self.renewed()) * 4).div_ceil(3);
        MetadataNeed {
            once: slots_each(metadata.nodes.div_ceil(self.meta_nodes(k)), k + m, devices),
            growth: self.meta_growth(metadata, k, devices),
            renewed: slots_each(renewed.div_ceil(self.meta_nodes(k)), k + m, devices),
        }
    }

    /// What the next commit was had to write anew.
    fn renewed(&self) -> Renewed {
        let renewed = self.reserved.renewed.borrow();
        renewed
            .values()
            .copied()
            .fold(Renewed::default(), Renewed::and)
    }

    /// Nodes that a commit writes if it is had to write these anew: also the records of the segments that they go to.
    fn written_anew(&self, renewed: Renewed) -> usize {
        if renewed.nodes == 0 {
            return 0;
        }
        let segments = renewed.nodes.div_ceil(self.meta_nodes(1)) + 1;
        let records = renewed.records + segments * self.liveness.leaves_each();
        renewed.nodes + records.min(self.liveness.nodes_total())
    }

    /// Slots of each device that metadata may still take until it is there twice in segments of `k` data
    /// columns, or fewer.
    fn meta_growth(&self, metadata: &Metadata, k: usize, devices: usize) -> usize {
        let m = self.metadata_m();
        let there: usize = metadata.segments.range(..=k).map(|(_, count)| count).sum();
        let twice = (2 * metadata.nodes).div_ceil(self.meta_nodes(k));
        slots_each(twice.saturating_sub(there), k + m, devices)
    }

    /// What metadata may still take of each device where its segments are as narrow as full redundancy has them.
    pub(crate) fn redundant_meta_growth(&self) -> usize {
        let online = self.core.taking_slots();
        let k = self.meta_shape(&online).0;
        self.meta_growth(&self.metadata(), k, online.len())
    }

    /// How many nodes the free slots take.
    pub(crate) fn meta_room(&self) -> usize {
        self.meta_room_in(Member::free_slots)
    }

    /// How many nodes may be written anew for the sake of their redundancy: with those above each, and so that
    /// cleaning keeps its room. Beyond M a node may take more room anew than it did.
    pub(crate) fn redundancy_room(&self) -> usize {
        let (blocks, need) = (self.core.slot_blocks, self.metadata_need());
        let spare = |m: &Member| {
            let kept = reserve(Purpose::Clean, m.geometry.slots, blocks, need);
            m.free_slots().saturating_sub(kept)
        };
        self.meta_room_in(spare) / FoldLimit::LEAF
    }

    /// How many nodes so many slots of the devices in use take.
    fn meta_room_in(&self, slots: impl Fn(&Member) -> usize) -> usize {
        let online = self.core.members.iter().filter(|m| m.takes_slots());
        let with_slots: Vec<u16> = online.filter(|m| slots(m) > 0).map(|m| m.index).collect();
        if with_slots.is_empty() {
            return 0;
        }
        let (k, m) = self.meta_wanted(&with_slots);
        let slots = |d: &u16| slots(self.core.member(*d)) as u64;
        let free = with_slots
            .iter()
            .map(|d| (slots(d), self.core.domains.of(*d)));
        let free: Vec<(u64, u16)> = free.collect();
        let segments = segments_that_fit(&free, (k + m).min(free.len()), m);
        usize::try_from(segments).expect("a count of slots") * self.meta_nodes(k)
    }

    /// Whether the free slots would not take all nodes twice: then a commit may go in steps, and the
    /// segments of nodes that are half dead are emptied before each of them.
    pub(crate) fn room_is_tight(&self) -> bool {
        self.meta_room() < 2 * self.metadata().nodes
    }

    /// What one commit may fold: with the nodes that it was had to write anew, what it writes must fit what is free.
    pub(crate) fn fold_limit(&self) -> FoldLimit {
        let catalog = self.catalog.leaves() * 2 + 2;
        let room = self.meta_room();
        let beside = room.saturating_sub(self.written_anew(self.renewed()));
        FoldLimit {
            nodes: (room / self.fold_share())
                .min(beside)
                .saturating_sub(catalog),
            records: self.liveness.nodes_total(),
        }
    }

    /// By what the room is divided for what one commit may fold. Half of it: the next commit must fit before cleaning
    /// has gained what this one leaves dead. Where room is tight, a quarter: the rest is for that cleaning.
    fn fold_share(&self) -> usize {
        if self.room_is_tight() { 4 } else { 2 }
    }

    /// Whether the next commit may be had to write these anew as well: with those it is had to write already, and
    /// beside what it folds (#136). All of it is counted: estimates kept cleaning from what would have gained (#165).
    pub(crate) fn may_renew(&self, more: Renewed) -> bool {
        let room = self.meta_room();
        let written = self.written_anew(self.renewed().and(more));
        written <= room - room / self.fold_share()
    }

    /// Data and parity columns of the next metadata segment, with `eligible` devices that have a slot.
    /// Without all devices: as narrow as full redundancy wants if all metadata has room so; else wider,
    /// with the columns of the devices that are gone missing (of none that is only full). Never wider than
    /// the widest segment that holds a node: no commit writes nodes with less redundancy than others have. But
    /// where data keep to shares, as on some of the devices that are gone, nodes are as wide as there.
    pub(crate) fn meta_wanted(&self, eligible: &[u16]) -> (usize, usize) {
        let (narrow, devices) = (self.meta_shape(eligible), eligible.len());
        let (online, all) = (self.core.taking_slots().len(), self.core.members.len());
        if devices < online || online == all {
            return narrow;
        }
        let all: Vec<u16> = self.core.members.iter().map(|m| m.index).collect();
        let (whole, m) = self.meta_shape(&all);
        if narrow.0 >= whole {
            return narrow;
        }
        let metadata = self.metadata();
        let widest = whole.min(devices.saturating_sub(1)).max(narrow.0);
        let fits = |k: &usize| metadata.widest <= *k || self.has_meta_room(&metadata, *k, devices);
        let k = (narrow.0..widest).find(fits).unwrap_or(widest);
        let k = k.max(self.meta_share(&metadata, eligible));
        if k == narrow.0 { narrow } else { (k, m) }
    }

    /// Data columns of metadata segments as on the devices that groups which keep to shares lay data as on
    /// ([`Home::share`]), and those in use of the others; 0 if no group does.
    fn meta_share(&self, metadata: &Metadata, online: &[u16]) -> usize {
        let need = self.need_of(metadata, self.meta_shape(online), online.len());
        let groups = || self.shape.groups.iter();
        if !groups().any(|g| self.keeps_shares(g, need)) {
            return 0;
        }
        let devices = |group: &Vec<u16>| {
            let (online, gone) = self.shared(group);
            let keeps = self.keeps_shares(group, need);
            [online, if keeps { gone } else { Vec::new() }].concat()
        };
        let devices: Vec<u16> = groups().flat_map(devices).collect();
        let most = online.len().saturating_sub(1).max(1);
        self.meta_shape(&devices).0.min(most)
    }

    /// How many nodes a slot of a device in use takes where nodes keep to shares, in hundredths; 0 if they do not.
    pub(crate) fn shared_nodes(&self) -> u64 {
        let online = self.core.taking_slots();
        let k = self.meta_share(&self.metadata(), &online);
        let columns = (k + self.metadata_m()).min(online.len()).max(1);
        (100 * self.meta_nodes(k.max(1)) / columns) as u64 * u64::from(k > 0)
    }

    /// Whether metadata could grow to what it is twice in segments of `k` data columns, while the cleaner finds its
    /// room everywhere and clients theirs in a group (#150). Where more was promised than fits so: theirs in all of
    /// them, and so much beside it that data need not keep to shares for that.
    fn has_meta_room(&self, metadata: &Metadata, k: usize, devices: usize) -> bool {
        let growth = self.meta_growth(metadata, k, devices);
        let overpromised = self.is_overpromised();
        let leaves = |purpose: Purpose, beside: usize, device: u16| {
            let member = self.core.member(device);
            let (all, blocks) = (member.geometry.slots, self.core.slot_blocks);
            let need = MetadataNeed {
                growth,
                ..MetadataNeed::default()
            };
            let beside = beside + if overpromised { all as usize / 8 } else { 0 };
            member.free_slots() >= reserve(purpose, all, blocks, need) + beside
        };
        let for_clients =
            |group: &Vec<u16>| self.online_of(group).all(|d| leaves(Purpose::Client, 0, d));
        let redundancy = |group: &Vec<u16>| self.redundancy_on(self.online_of(group).count());
        let groups = &self.shape.groups;
        if overpromised {
            return groups.iter().all(for_clients);
        }
        let most = groups.iter().map(redundancy).max();
        let mut best = groups
            .iter()
            .filter(|group| Some(redundancy(group)) == most);
        let mut online = self.core.taking_slots().into_iter();
        best.any(for_clients) && online.all(|d| leaves(Purpose::Clean, growth, d))
    }

    /// Data columns of a metadata segment that is made now, and how many lost devices it survives.
    pub(crate) fn meta_anew(&self) -> (usize, usize) {
        let online = self.core.taking_slots();
        let (k, m) = self.meta_wanted(&online);
        (k, m.min(online.len().saturating_sub(k)))
    }
}
