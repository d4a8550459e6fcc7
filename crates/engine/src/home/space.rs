//! Free space: the ledger of slots, the plan of new segments, and the work left.
//!
//! Invariants:
//! - A slot is handed out, freed and set aside in the ledger and in its device's table at once: they say the same.
//! - The ledger holds the members, the layout and the domains: nothing keeps a copy, and a change of members changes
//!   them there.
//! - The index has a segment once it is settled: sealed, with nothing of it that is not merged. It is told of whatever
//!   changes about it (`Core::unsettled`) before it is asked.
//! - A checkpoint and a group commit look at no settled segment: what is open, held, dead, or needs the journal is in
//!   `Core::unsettled`.

use std::cell::{Cell, RefCell, RefMut};
use std::sync::Arc;

use ashlar_format::BLOCK_U64;
use ashlar_format::catalog::VolumeEntry;
use ashlar_format::partition::Partitioning;
use ashlar_format::slot::SegmentKind;
use ashlar_format::superblock::MemberState;
use ashlar_layout::Shape;
use ashlar_space::capacity::Geometry;
use ashlar_space::domains::Domains;
use ashlar_space::floors::{Class, Facts};
use ashlar_space::index::{Index, SegmentFacts};
use ashlar_space::ledger::Ledger;
use ashlar_space::plan::{plan, redundant_plan};
use ashlar_space::promise::{Promises, Volume};
use ashlar_space::template::Plan;
use ashlar_space::topology::{Area, Member as Site, Presence, Topology};
use ashlar_space::usable::{Spare, usable, usable_whole};
use ashlar_space::work::Table;

use crate::home::Home;
use crate::home::allocate::Placing;
use crate::home::jobs::Jobs;
use crate::home::step::Steps;
use crate::home::trim::Trims;
use crate::members::{Member, Members};
use crate::planted::{self, Bug};
use crate::segment::table::Core;
use crate::segment::{Column, Segment};
use crate::space::geometry::{DEFAULT_CLEAN_RESERVE, Sizes, geometry};

/// Free space, and who is about to take it.
#[derive(Debug)]
pub struct Space {
    ledger: RefCell<Ledger>,
    index: RefCell<Index>,
    usable: RefCell<Option<Usable>>,
    /// How new segments are laid.
    pub(super) placing: Placing,
    /// The steps of checkpoints.
    pub(crate) steps: Steps,
    /// Background work under way.
    pub(crate) jobs: Jobs,
    /// Members that are expected back: what lies on them is not computed anew yet.
    pub(super) awaited: RefCell<Vec<u16>>,
    /// The share of usable space, in percent, that was last warned of; 0: none.
    pub(super) warned: Cell<u64>,
    /// The trim under way.
    pub(super) trims: Trims,
}

/// Usable space in blocks, as long as sizes and members are the same.
#[derive(Debug, Clone)]
struct Usable {
    topology: Arc<Topology>,
    geometry: Geometry,
    whole: u64,
    now: u64,
    without_spare: u64,
    best: Plan,
}

/// The members of an array as places for columns: so many data and parity columns, and devices of spare space.
pub fn topology_of(members: &Members, (k, m): (u16, u16), spare: u16) -> Topology {
    let mut groups: Vec<Vec<u16>> = Vec::new();
    // Nothing lies on a device that was never counted, or is no member any more.
    let never = |m: &Member| matches!(m.state(), MemberState::Removed | MemberState::Spare);
    for member in members.iter().filter(|m| !never(m)) {
        if let Some(group) = member.group.map(usize::from) {
            groups.resize(groups.len().max(group + 1), Vec::new());
            groups[group].push(member.index);
        }
    }
    let shape = Shape {
        k,
        m,
        groups,
        spare,
    };
    let site = |m: &Member| Site {
        slots: m.geometry().slots,
        presence: presence_of(m),
        replaces: None,
        is_new: m.is_new(),
    };
    let labels: Vec<String> = members.iter().map(Member::domain).collect();
    let domains = Domains::new(labels.iter().map(String::as_str));
    Topology::new(members.iter().map(site).collect(), shape, domains)
}

fn presence_of(member: &Member) -> Presence {
    if member.takes_slots() {
        Presence::InUse
    } else if member.is_read() {
        Presence::Draining
    } else {
        Presence::Gone
    }
}

/// Where a segment lies. Of data that have no column anywhere it does not matter.
pub fn area_of(topology: &Topology, segment: &Segment) -> Area {
    if segment.kind == SegmentKind::Meta {
        return Area::Nodes;
    }
    let columns = segment.columns.borrow();
    let placed = columns.iter().find(|c| c.is_placed());
    Area::Group(
        placed
            .and_then(|c| topology.group_of(c.device))
            .unwrap_or(0),
    )
}

/// The share of a segment's padding that is due to its live blocks. Stripes of another width fill otherwise: of these
/// nobody knows.
fn padding_of(segment: &Segment, planned: u16, live: u64) -> u64 {
    if segment.geometry.k != planned {
        return 0;
    }
    let (full, padding) = (
        segment.geometry.data_blocks(),
        segment.padding.get().unwrap_or(0),
    );
    let held = u64::from(full.saturating_sub(padding)).max(1);
    (u64::from(padding) * live).div_ceil(held)
}

/// The table of segments, as the choice of work looks at it.
pub struct Segments<'a>(pub &'a Core);

impl Segments<'_> {
    fn columns_of(&self, segment: &Segment) -> Vec<Option<u16>> {
        let columns = segment.columns.borrow();
        let usable = |c: usize| self.0.column_usable(segment, c);
        let device = |(c, column): (usize, &Column)| usable(c).then_some(column.device);
        columns.iter().enumerate().map(device).collect()
    }
}

impl Table for Segments<'_> {
    fn columns(&self, segment: u64) -> Vec<Option<u16>> {
        let segments = self.0.segments.borrow();
        segments
            .get(&segment)
            .map_or_else(Vec::new, |s| self.columns_of(s))
    }

    fn segment_at(&self, device: u16, slot: u32) -> Option<u64> {
        self.0.member(device).slots.segment_in(slot)
    }
}

impl Space {
    /// The space of an array with these members, none of which holds anything.
    pub fn new(topology: Topology, strip_blocks: u32, slot_blocks: u32) -> Space {
        let sizes = Sizes {
            strip_blocks,
            slot_blocks,
            least_data: 1,
            clean_reserve: DEFAULT_CLEAN_RESERVE,
            catalog_nodes: 0,
            volumes: 1,
            partitions: 1,
        };
        let geometry = geometry(&topology, &sizes);
        let plan = plan(&topology, &geometry, &Promises::default(), None);
        Space {
            ledger: RefCell::new(Ledger::new(topology, plan)),
            index: RefCell::new(Index::new(geometry)),
            usable: RefCell::default(),
            placing: Placing::default(),
            steps: Steps::default(),
            jobs: Jobs::default(),
            awaited: RefCell::default(),
            warned: Cell::default(),
            trims: Trims::default(),
        }
    }

    /// The ledger.
    pub fn ledger(&self) -> RefMut<'_, Ledger> {
        self.ledger.borrow_mut()
    }

    /// The index of settled segments.
    pub fn index(&self) -> RefMut<'_, Index> {
        self.index.borrow_mut()
    }
}

impl Home {
    /// Members, layout and failure domains, as they are now.
    pub(crate) fn topology(&self) -> Arc<Topology> {
        self.space.ledger().topology().clone()
    }

    /// How new segments are laid.
    pub(crate) fn plan(&self) -> Plan {
        self.space.ledger().plan().clone()
    }

    /// The sizes that free space is reckoned with.
    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry_on(&self.topology(), 0)
    }

    /// The same with other members, and so many volumes more.
    pub(crate) fn geometry_on(&self, topology: &Topology, more: usize) -> Geometry {
        geometry(topology, &self.sizes(self.clean_reserve_percent(), more))
    }

    /// The same, with so many percent kept for cleaning, and so many volumes more.
    pub(crate) fn geometry_with(&self, clean_reserve: u8, more: usize) -> Geometry {
        geometry(&self.topology(), &self.sizes(clean_reserve, more))
    }

    fn sizes(&self, clean_reserve: u8, more: usize) -> Sizes {
        Sizes {
            strip_blocks: self.superblock.borrow().strip_blocks,
            slot_blocks: self.core.slot_blocks,
            least_data: self.least_data_columns(),
            clean_reserve,
            catalog_nodes: u32::try_from(self.catalog_nodes()).unwrap_or(u32::MAX),
            volumes: self.catalog.borrow().volumes.len() + more,
            partitions: self.superblock.borrow().partitions,
        }
    }

    /// Nodes of the catalog, all of which a checkpoint may write.
    pub(crate) fn catalog_nodes(&self) -> usize {
        2 * self.catalog.leaves() + 2
    }

    /// The data columns that a stripe has at least, so that the largest volume block of the array fits: this comes
    /// before the redundancy of what is written with too few devices.
    pub(crate) fn least_data_columns(&self) -> u16 {
        let strip_blocks = self.superblock.borrow().strip_blocks;
        let catalog = self.catalog.borrow();
        let blocks = catalog.volumes.iter().map(|v| u32::from(v.block_blocks));
        let columns = blocks.max().unwrap_or(1).div_ceil(strip_blocks).max(1);
        u16::try_from(columns).expect("a volume block has at most 32 blocks")
    }

    /// Whether no group has devices left for a stripe that holds the largest volume block: no room would help.
    pub(crate) fn too_few_for_blocks(&self) -> bool {
        let (topology, least) = (self.topology(), usize::from(self.least_data_columns()));
        !(0..topology.groups()).any(|g| topology.taking(g).count() >= least)
    }

    /// The promises to volumes, as of the last merge.
    pub(crate) fn promises(&self) -> Promises {
        let catalog = self.catalog.borrow();
        let volume = |v: &VolumeEntry| Volume {
            size_bytes: v.size_bytes,
            mapped_bytes: v.mapped_bytes,
            block_blocks: v.block_blocks,
            thin: v.thin,
            nodes_apart: self.nodes_apart(v),
        };
        Promises {
            volumes: catalog.volumes.iter().map(volume).collect(),
        }
    }

    /// Nodes of a thin volume's maps beyond its share of usable space: one that is written far apart has a leaf for
    /// every few blocks. Others were promised the space of a whole map; of that a thin one may have as much as of its
    /// blocks it has mapped.
    fn nodes_apart(&self, volume: &VolumeEntry) -> u64 {
        if !volume.thin {
            return 0;
        }
        let pieces = volume.block_blocks.max(1);
        let unit = BLOCK_U64 * u64::from(pieces);
        let blocks = volume.size_bytes.div_ceil(unit);
        let mapped = volume.mapped_bytes.div_ceil(unit).min(blocks);
        let partitions = self.superblock.borrow().partitions;
        let whole = Partitioning::new(partitions, pieces.into()).map_nodes(blocks);
        let share = (u128::from(whole) * u128::from(mapped)).div_ceil(u128::from(blocks.max(1)));
        let share = u64::try_from(share).expect("not above the whole");
        volume.map_nodes.saturating_sub(share)
    }

    /// Counts the slots that an import has found in use, and reckons the floors.
    pub(crate) fn take_stock(&self) {
        for member in self.core.members.iter().filter(|m| m.is_read()) {
            let used = u32::try_from(member.slots.used()).expect("slots have 32-bit numbers");
            self.space.ledger().occupy(member.index, used);
        }
        self.look_at_all();
        self.reckon();
    }

    /// Members have changed: what is gone has no slots any more, and new segments are laid otherwise.
    pub(crate) fn members_changed(&self) {
        self.change_topology();
        self.try_again();
        self.look_at_all();
        self.reckon();
        self.demand.clean();
    }

    /// The ledger is told of the members.
    pub(super) fn change_topology(&self) {
        let (before, members) = (self.topology(), &self.core.members);
        let shape = before.shape();
        let spare = self.superblock.borrow().spare;
        let topology = topology_of(members, (shape.k, shape.m), spare);
        let before = self.plan();
        let geometry = self.geometry_on(&topology, 0);
        let plan = plan(&topology, &geometry, &self.promises(), Some(&before));
        self.space.ledger().change(topology, plan);
        self.space.placing.forget();
        self.space.index().unpark_all();
    }

    /// Every segment may have other facts.
    pub(super) fn look_at_all(&self) {
        let segments = self.core.segments.borrow();
        self.core.unsettled.borrow_mut().extend(segments.keys());
    }

    /// The plan, and the floors, by what volumes hold now: at the end of a checkpoint.
    pub(crate) fn reckon(&self) {
        let geometry = self.geometry();
        let before = self.plan();
        let plan = plan(&self.topology(), &geometry, &self.promises(), Some(&before));
        let plan = self.space.ledger().with_room_for_steps(plan, &geometry);
        if plan != before {
            let shapes = |plan: &Plan| -> Vec<(u16, u16)> {
                let all = plan.groups.iter().chain([&plan.nodes]);
                all.map(|target| (target.k, target.cap)).collect()
            };
            if shapes(&plan) != shapes(&before) {
                self.look_at_all();
            }
            self.space.ledger().replan(plan.clone());
            self.space.index().unpark_all();
        }
        let (nodes, slots) = self.nodes_there();
        let facts = Facts {
            movers: u32::try_from(self.shards.len()).expect("few shards"),
            ..geometry.facts(&plan.nodes, nodes, slots)
        };
        self.space.ledger().reckon(&facts);
        self.core.meta_room.set(self.meta_room());
    }

    /// Nodes that are live, or will be once every segment's record has been written, and slots in segments of nodes.
    fn nodes_there(&self) -> (u64, u64) {
        self.refresh_index();
        let index = self.space.index();
        let (mut nodes, _) = index.held();
        let unknown = |s: &Segment| s.kind == SegmentKind::Meta && index.get(s.number).is_none();
        for segment in self.core.pin_unsettled(unknown) {
            let columns = segment.geometry.width() - self.core.missing_columns(&segment);
            nodes.columns += columns as u64;
            nodes.live += u64::from(segment.live.borrow().count());
        }
        let unwritten = self.liveness.nodes_unwritten() as u64;
        (nodes.live + unwritten, nodes.columns)
    }

    /// Nodes that a segment of the plan holds.
    pub(super) fn segment_nodes(&self, ledger: &Ledger) -> u64 {
        let index = self.space.index();
        index.geometry().node_blocks(ledger.plan().nodes.k)
    }

    /// How many nodes the free slots take.
    pub(crate) fn meta_room(&self) -> usize {
        let ledger = self.space.ledger();
        let segments = u64::from(ledger.grant(Class::Checkpoint, Area::Nodes));
        let nodes = segments * self.segment_nodes(&ledger);
        usize::try_from(nodes).unwrap_or(usize::MAX)
    }

    /// Tells the index of every segment that may have changed. Those that are not settled are looked at again.
    pub(crate) fn refresh_index(&self) {
        let (topology, plan) = (self.topology(), self.plan());
        let segments = self.core.segments.borrow();
        let mut index = self.space.index();
        self.core.unsettled.borrow_mut().retain(|number| {
            let Some(segment) = segments.get(number) else {
                index.remove(*number);
                return false;
            };
            if !segment.sealed.get() && index.get(*number).is_none() {
                return true;
            }
            let facts = self.facts(&topology, &plan, segment);
            // With columns missing, or to be moved, it is looked at sooner.
            let soon = self.core.missing_columns(segment) > 0 || facts.elsewhere > 0;
            if !segment.is_unpinned() && !soon && index.get(*number).is_none() {
                return true;
            }
            let settled = segment.sealed.get() && segment.is_unpinned() && !segment.needs_journal();
            index.set(*number, facts);
            !settled || facts.live == 0 // the next checkpoint frees it
        });
    }

    /// Columns that lie elsewhere than the plan wants: on members that are to leave, or where a failure domain has too many
    /// of their segment. Those of segments are among them that are written still, or not merged: no job moves these yet.
    pub(crate) fn columns_elsewhere(&self) -> u64 {
        self.refresh_index();
        let (topology, plan) = (self.topology(), self.plan());
        let (segments, index) = (self.core.segments.borrow(), self.space.index());
        let unmerged = self.is_unmerged();
        let unsettled = self.core.unsettled.borrow();
        let young = unsettled.iter().filter_map(|number| segments.get(number));
        let young = young.filter(|s| {
            let written = s.next_stripe.get() > 0 && !s.is_unpinned();
            let known = index.get(s.number).is_some_and(|facts| facts.live > 0);
            !known && (written && unmerged || !s.live.borrow().is_empty())
        });
        let columns = young.map(|s| u64::from(self.facts(&topology, &plan, s).elsewhere));
        columns.sum::<u64>() + index.elsewhere()
    }

    /// The facts of a segment.
    pub(crate) fn facts(
        &self,
        topology: &Topology,
        plan: &Plan,
        segment: &Segment,
    ) -> SegmentFacts {
        let area = area_of(topology, segment);
        let columns = Segments(&self.core).columns_of(segment);
        let usable = columns.iter().flatten().count();
        let live = segment.live.borrow().count().into();
        SegmentFacts {
            area,
            k: segment.geometry.k,
            m: segment.geometry.m,
            usable: u16::try_from(usable).expect("at most 256 columns"),
            elsewhere: plan.elsewhere(topology, area, &columns),
            awaited: self.awaited_columns(segment),
            live,
            padding: padding_of(segment, plan.of(area).k, live),
            closed: segment.number,
        }
    }

    /// How many of a segment's missing columns are expected back: where it has no redundancy left, only those that the
    /// operator has taken out. After an import nobody knows which of them lie on a device that was not there.
    fn awaited_columns(&self, segment: &Segment) -> u16 {
        let mut awaited = self.space.awaited.borrow().clone();
        if awaited.is_empty() {
            return 0;
        }
        let topology = self.topology();
        if let Area::Group(group) = area_of(&topology, segment) {
            awaited.retain(|d| topology.group_of(*d) == Some(group));
        }
        if !awaited.is_empty() && self.core.redundancy(segment).unwrap_or(0) == 0 {
            awaited.retain(|d| self.core.member(*d).state() == MemberState::Offline);
        }
        if awaited.is_empty() {
            return 0;
        }
        let columns = segment.columns.borrow();
        let on_awaited = |c: &&Column| !c.is_placed() || awaited.contains(&c.device);
        let missing = self.core.missing(segment);
        let count = missing.filter(|c| on_awaited(&&columns[*c])).count();
        u16::try_from(count.min(awaited.len())).expect("at most 256 columns")
    }

    /// By how much less redundancy a segment has than the plan gives what is written now.
    pub(crate) fn falls_short(&self, segment: &Segment) -> bool {
        let ledger = self.space.ledger();
        let template = ledger.plan().of(area_of(ledger.topology(), segment));
        let left = self.core.redundancy(segment);
        left.is_none_or(|left| left < usize::from(template.redundancy()))
    }

    /// Usable space in blocks, reckoned once for each change of sizes or members.
    fn usable(&self) -> Usable {
        let (topology, geometry) = (self.topology(), self.geometry());
        let known = self.space.usable.borrow().clone();
        if let Some(known) = known
            && known.geometry == geometry
            && Arc::ptr_eq(&known.topology, &topology)
        {
            return known;
        }
        let usable = Usable {
            whole: usable_whole(&topology, &geometry),
            now: usable(&topology, &geometry, Spare::Left),
            without_spare: usable(&topology, &geometry, Spare::None),
            best: redundant_plan(&topology, &geometry),
            topology,
            geometry,
        };
        *self.space.usable.borrow_mut() = Some(usable.clone());
        usable
    }

    /// Blocks that volumes may be promised with all devices there.
    pub(super) fn usable_whole(&self) -> u64 {
        self.usable().whole
    }

    /// Blocks that volumes may be promised with the devices in use.
    pub(super) fn usable_now(&self) -> u64 {
        let usable = self.usable();
        usable.now.min(usable.whole) // less where domains constrain it
    }

    /// The same, with nothing kept for devices to come.
    pub(super) fn usable_without_spare(&self) -> u64 {
        self.usable().without_spare
    }

    /// How new segments are laid on the devices in use where no room is lacking.
    pub(super) fn best_plan(&self) -> Plan {
        self.usable().best
    }

    /// Whether ledger and slot tables say the same: for builds with assertions.
    pub(crate) fn check_books(&self) {
        if !cfg!(debug_assertions) || planted::on(Bug::DoubleAllocation) {
            return;
        }
        let ledger = self.space.ledger();
        for member in self.core.members.iter().filter(|m| m.takes_slots()) {
            let book = ledger.book(member.index);
            let free = member.slots.free();
            assert_eq!(
                book.free() as usize,
                free,
                "device {}: {book:?}",
                member.index
            );
        }
        assert_eq!(ledger.audit(), Ok(()), "each slot has one state");
    }
}
