//! Allocation: gives new segments to clients, background work and checkpoints.
//!
//! Invariants:
//! - Whether there is a segment for whom, and on how many devices, is the ledger's to say. Here is only which of these
//!   devices it lies on where several would do: placement goes round evenly.
//! - A slot comes back only after the root that freed it is durable (R3).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use ashlar_codec::{Code, CodeKind};
use ashlar_format::SegmentGeometry;
use ashlar_format::slot::{SegmentKind, SlotEntry};
use ashlar_layout::Placement;
use ashlar_space::floors::Class;
use ashlar_space::template::Template;
use ashlar_space::topology::Area;

use crate::home::Home;
use crate::home::nodes::LONGEST_WAIT;
use crate::protocol::Allocated;
use crate::segment::coder::{Begun, begin};
use crate::segment::header::write_headers;
use crate::segment::{Column, Pinned, Segment};

/// One segment more is kept open by a stream for so many slots of a device.
const SLOTS_PER_OPEN: usize = 64;

/// By area, columns and devices of a failure domain at most: device sets.
type Picks = BTreeMap<(Area, usize, usize), VecDeque<Vec<u16>>>;

/// Device sets picked for the segments to come.
#[derive(Debug, Default)]
pub struct Placing {
    picks: RefCell<Picks>,
    /// The next round of placement.
    round: Cell<u64>,
}

impl Placing {
    /// Members or failure domains have changed: what was picked by those before is not to be had any more.
    pub(super) fn forget(&self) {
        self.picks.borrow_mut().clear();
    }
}

/// Devices column by column, those that are missing at another place in each `number`; `None`: missing.
fn with_missing(picked: &[u16], width: usize, number: usize) -> Vec<Option<u16>> {
    let mut devices: Vec<Option<u16>> = picked.iter().copied().map(Some).collect();
    if picked.len() < width {
        devices.resize(width, None);
        devices.rotate_right(number % width);
    }
    devices
}

impl Home {
    /// Slots free, over all devices in use.
    pub(crate) fn free_slots(&self) -> usize {
        let online = self.core.members.iter().filter(|m| m.takes_slots());
        online.map(|m| m.slots.free()).sum()
    }

    /// A data segment to write into, in this group if one is named.
    pub(crate) async fn allocate_data(
        self: &Rc<Self>,
        class: Class,
        into: Option<u16>,
    ) -> Option<Allocated> {
        // No client writes yet, no cleaner would make room, and what was acknowledged must get a place: the room of the
        // step that follows goes last.
        let recovering = self.journal.window.is_recovering();
        let classes = match recovering {
            true => vec![Class::Rescue, Class::Checkpoint],
            false => vec![class],
        };
        let since = self.core.rt.now();
        loop {
            if self.core.closed.get() {
                return None;
            }
            let taken = classes.iter().find_map(|c| self.take_data(*c, into));
            if let Some(segment) = taken {
                return Some(self.allocated(&segment, into.is_some()));
            }
            let too_few = self.too_few_for_blocks();
            if recovering && too_few {
                self.halt("too few devices are left to hold the writes in the journal; reconnect the missing \
                    devices, then import it again");
            }
            if into.is_some() && self.checkpoints.under_way.get() && !too_few {
                // Moves wait for a checkpoint that keeps the room for its step.
                let _ = self
                    .core
                    .rt
                    .timeout(LONGEST_WAIT, self.checkpoints.ended.wait())
                    .await;
                continue;
            }
            if recovering || class != Class::Client || into.is_some() || too_few {
                return None;
            }
            let _waits = self.space.jobs.wait();
            let wait = self.slots_come_back() && self.core.rt.now() < since + LONGEST_WAIT;
            if !wait && self.work_rests() && !self.give_up_unkept() {
                return None;
            }
            self.demand.clean();
            let progress = self.core.progress.wait();
            let _ = self.core.rt.timeout(LONGEST_WAIT, progress).await;
        }
    }

    fn allocated(&self, segment: &Pinned, moves: bool) -> Allocated {
        self.core.meta_room.set(self.meta_room());
        if self.is_short() {
            self.demand.clean();
        }
        let online = self.core.taking_slots().len();
        let row = Placement::row_len(online, segment.geometry.width()).max(1);
        // Each open segment holds slots that cleaning cannot reach: few in a small array, where each shard has its own.
        let slots = self
            .core
            .members
            .iter()
            .map(|m| m.geometry().slots as usize);
        let most = slots.min().unwrap_or(1) / SLOTS_PER_OPEN / self.shards.len();
        Allocated {
            segment: segment.number,
            row: if moves { 1 } else { row.min(most).max(1) },
        }
    }

    /// Whether a device is still discarding slots that were freed: then a client waits for them, or for the device to
    /// be taken out, rather than being told that there is no space.
    fn slots_come_back(&self) -> bool {
        let mut online = self.core.members.iter().filter(|m| m.takes_slots());
        online.any(|m| m.slots.are_coming_back())
    }

    /// A segment of data that this class may take: in the group that is named, or in that which gives new data most
    /// redundancy, and of these in the one with the most room, so that what is written while one group lacks a device
    /// is redundant as long as another has room.
    fn take_data(self: &Rc<Self>, class: Class, into: Option<u16>) -> Option<Pinned> {
        if let Some(group) = into {
            let area = Area::Group(group);
            let preferred = self.preferred(area);
            let claimed = self
                .space
                .jobs
                .acquire(&mut self.space.ledger(), area, &preferred);
            let devices =
                claimed.or_else(|| self.space.ledger().take_segment(class, area, &preferred))?;
            let segment = self.make_segment(area, &devices);
            self.space.jobs.fills(area, segment.number);
            return Some(segment);
        }
        let topology = self.topology();
        let mut groups: Vec<u16> = (0..topology.groups()).collect();
        groups.sort_by_cached_key(|group| {
            let ledger = self.space.ledger();
            let free = topology
                .taking(*group)
                .map(|d| u64::from(ledger.book(d).free()));
            let redundancy = ledger.plan().of(Area::Group(*group)).redundancy();
            std::cmp::Reverse((redundancy, free.sum::<u64>()))
        });
        groups.into_iter().find_map(|group| {
            let area = Area::Group(group);
            if self.space.ledger().grant(class, area) == 0 {
                return None;
            }
            let preferred = self.preferred(area);
            let devices = self.space.ledger().take_segment(class, area, &preferred)?;
            Some(self.make_segment(area, &devices))
        })
    }

    /// A segment of nodes, for the checkpoint under way; `None` if not even the last slots are enough.
    pub(crate) fn allocate_meta(self: &Rc<Self>) -> Option<Pinned> {
        let preferred = self.preferred(Area::Nodes);
        let mut ledger = self.space.ledger();
        let claimed = self.space.steps.acquire(&mut ledger, &preferred);
        let devices =
            claimed.or_else(|| ledger.take_segment(Class::Checkpoint, Area::Nodes, &preferred))?;
        drop(ledger);
        Some(self.make_segment(Area::Nodes, &devices))
    }

    /// The next devices of a round that covers those with free slots evenly, by how many they have.
    fn preferred(&self, area: Area) -> Vec<u16> {
        let topology = self.topology();
        let template = self.space.ledger().plan().of(area);
        let laid = usize::from(template.laid());
        let free = |d: u16| self.core.member(d).slots.free();
        let mut eligible = topology.taking_in(area);
        eligible.retain(|d| free(*d) > 0);
        if eligible.len() < laid {
            return Vec::new();
        }
        let placing = &self.space.placing;
        let mut picks = placing.picks.borrow_mut();
        let queue = picks.entry((area, laid, template.cap.into())).or_default();
        while let Some(devices) = queue.pop_front() {
            if devices.iter().all(|d| eligible.contains(d)) {
                return devices;
            }
        }
        let round = placing.round.get();
        placing.round.set(round + 1);
        // Loads that differ by a few slots are even; real differences steer.
        let (least, most) = eligible.iter().fold((usize::MAX, 0), |(least, most), d| {
            (least.min(free(*d)), most.max(free(*d)))
        });
        let even = most - least <= 4 || (most - least) * 20 < most;
        let weight = |d: u16| if even { 1 } else { free(d) as u64 };
        let domain = |d: u16| topology.domains().of(d);
        let seed = self.core.identity.array[0].into();
        let cap = usize::from(template.cap);
        let rows = Placement::new(seed).row_weighted(round, &eligible, laid, &domain, cap, &weight);
        queue.extend(rows);
        queue.pop_front().unwrap_or_default()
    }

    /// Takes slots on these devices, submits their headers and adds the segment to the table: nobody waits for a new
    /// segment.
    ///
    /// Crash argument: its `Open` entry goes into a record only after its headers were written and flushed (R1):
    /// whoever takes it from the log waits for [`Segment::headed`] before the flush. A stripe of it that is written
    /// before its header counts as little as the header does, until that record. (Small model: `headers`.)
    fn make_segment(self: &Rc<Self>, area: Area, devices: &[u16]) -> Pinned {
        let Template { k, m, .. } = self.space.ledger().plan().of(area);
        let (kind, strip_blocks) = match area {
            Area::Nodes => (SegmentKind::Meta, 1),
            Area::Group(_) => (SegmentKind::Data, self.superblock.borrow().strip_blocks),
        };
        let number = self.root.take_segment_number();
        let code = self.code_for(k, m);
        let geometry = SegmentGeometry {
            k,
            m,
            strip_blocks,
            slot_blocks: self.core.slot_blocks,
        };
        let turn = usize::try_from(number % (1 << 20)).expect("small");
        let mut columns = Vec::new();
        for (device, column) in (with_missing(devices, geometry.width(), turn).iter()).zip(0u16..) {
            let entry = SlotEntry {
                segment: number,
                column,
                version: 1,
                k,
                m,
                code,
                kind,
                strip_blocks,
            };
            let place = |device: u16| Column {
                device,
                slot: (self.core.member(device).slots.take(entry)).expect("the ledger gave it"),
                version: 1,
            };
            columns.push(device.map_or(Column::MISSING, place));
        }
        let record = self.liveness.take_record(number);
        let segment = Segment::create(number, kind, geometry, code, columns, record);
        segment.padding.set(Some(0));
        if self.columns_lacking(&segment) > 0 {
            self.core.failing.set_maybe_degraded(true);
        }
        self.core.add_segment(&segment);
        self.liveness.mark_header(&segment);
        if let Begun::Later(writing) = begin(write_headers(self.core.clone(), segment.clone())) {
            self.core.rt.spawn(writing);
        }
        self.log.opened(segment.clone());
        segment
    }

    /// The code of segments with so many data and parity columns.
    fn code_for(&self, k: u16, m: u16) -> u8 {
        if k == 1 || m == 1 {
            // One data or one parity strip: the code whose coefficients are all 1 is a copy, or an XOR.
            return CodeKind::JerasureReedSolVan.tag();
        }
        let code = self.superblock.borrow().code;
        let kind = CodeKind::from_tag(code).expect("an import refuses an unknown code");
        match Code::new(kind, k.into(), m.into()) {
            Ok(_) => code,
            Err(_) => CodeKind::IsalCauchy.tag(), // narrowed to a size for which the code is not MDS
        }
    }
}
