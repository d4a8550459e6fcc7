//! Allocation: which devices the next segment lies on, and what is kept back for whom.
//!
//! Invariants:
//! - A slot is handed out only from the free list, and comes back to it only after the root that freed
//!   it is durable (R3).
//! - Free space has ordered reserves (R15): clients stop first, then the cleaner, which may use half of
//!   what is kept for commits, since recovery can have used the rest, and leaves room for all nodes once
//!   as far as that leaves it half of its own; commits and recovery may take the last slot. While a commit
//!   places nodes nobody else takes more than a quarter of what was free when it began (`hold_room`).

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use ashlar_codec::{Code, CodeKind};
use ashlar_format::slot::{SegmentKind, SlotEntry};
use ashlar_format::{SegmentGeometry, SegmentNumber};
use ashlar_layout::Placement;

use crate::home::Home;
use crate::home::nodes::LONGEST_WAIT;
use crate::members::Member;
use crate::protocol::Allocated;
use crate::segment::coder::{Begun, begin};
use crate::segment::header::write_headers;
use crate::segment::{Column, Pinned, Segment};
use crate::space::slots::{MetadataNeed, Purpose, reserve};

/// Device sets picked for the segments to come, by kind and width.
pub(crate) type Picks = BTreeMap<(u8, usize), VecDeque<Vec<u16>>>;

/// The shape of a segment to be made.
#[derive(Debug, Clone)]
struct Wanted {
    k: u16,
    m: u16,
    /// Devices, column by column; `None`: the column is missing from the start.
    devices: Vec<Option<u16>>,
    /// How many columns devices that are gone may cost it.
    spared: usize,
}

/// The devices of a segment of `width` columns, those that are missing at another place in each `number`.
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
        self.core
            .members
            .iter()
            .filter(|m| m.takes_slots())
            .map(Member::free_slots)
            .sum()
    }

    /// A data segment to write into, for what is moved out of segment `from` if for any.
    pub(crate) async fn allocate_data(
        self: &Rc<Self>,
        purpose: Purpose,
        from: Option<SegmentNumber>,
    ) -> Option<Allocated> {
        // No client writes yet, no cleaner would make room, and what was acknowledged must get a place.
        let recovering = self.journal.window.is_recovering();
        let purpose = if recovering { Purpose::Commit } else { purpose };
        let since = self.core.rt.now();
        loop {
            if self.core.closed.get() {
                return None;
            }
            if let Some(wanted) = self.want_data(purpose, from) {
                let strip_blocks = self.superblock.borrow().strip_blocks;
                let segment = self.make_segment(SegmentKind::Data, &wanted, strip_blocks);
                self.core.meta_room.set(self.meta_room());
                let online = self.core.taking_slots().len();
                let row = Placement::row_len(online, wanted.devices.len()).max(1);
                // Each open segment holds slots that cleaning cannot reach: few in a small array, where each
                // shard has its own.
                let slots = self
                    .core
                    .members
                    .iter()
                    .map(|m| m.geometry.slots)
                    .min()
                    .unwrap_or(1) as usize;
                return Some(Allocated {
                    segment: segment.number,
                    row: row.min(slots / 64 / self.shards.len()).max(1),
                });
            }
            let too_few = self.too_few_for_blocks();
            if recovering && too_few {
                self.halt("too few devices are left to hold what the journal has; import it again when they are back");
            }
            if purpose != Purpose::Client || too_few {
                return None;
            }
            let wait = self.slots_come_back() && self.core.rt.now() < since + LONGEST_WAIT;
            if !wait && !self.cleaner_can_gain() && !self.give_up_unkept() {
                return None;
            }
            self.demand.clean();
            let progress = self.core.progress.wait();
            let _ = self.core.rt.timeout(LONGEST_WAIT, progress).await;
        }
    }

    /// Whether a device is still discarding slots that were freed: then a client waits for them, or for the device to
    /// be taken out, rather than being told that there is no space (#190).
    fn slots_come_back(&self) -> bool {
        let mut online = self.core.members.iter().filter(|m| m.takes_slots());
        online.any(|m| m.slots.are_coming_back())
    }

    /// The groups, with those of their devices that have a slot: first the one that gives new data the most
    /// redundancy, and of these the one with the most room, so that what is written while one group lacks a device
    /// is redundant as long as another has room.
    pub(crate) fn groups_for(
        &self,
        purpose: Purpose,
        need: MetadataNeed,
    ) -> Vec<(&[u16], Vec<u16>)> {
        let with_slot = |group: &[u16]| -> Vec<u16> {
            let devices = group.iter().copied();
            devices
                .filter(|d| self.has_slot(*d, purpose, need))
                .collect()
        };
        let groups = self.shape.groups.iter();
        let mut groups: Vec<(&[u16], Vec<u16>)> = groups.map(|g| (&g[..], with_slot(g))).collect();
        groups.sort_by_cached_key(|(_, eligible)| {
            let free = eligible.iter().map(|d| self.core.member(*d).free_slots());
            std::cmp::Reverse((self.redundancy_on(eligible.len()), free.sum::<usize>()))
        });
        groups
    }

    /// The next data segment: in the first group that has one. What is moved stays in its group, unless another
    /// gives it more redundancy and has room for clients: what cleaning may use beyond that is for what it gains
    /// there itself. Moved out of other groups, data would take for good what metadata, which is on all devices,
    /// has to grow in (#141).
    fn want_data(&self, purpose: Purpose, from: Option<SegmentNumber>) -> Option<Wanted> {
        let need = self.metadata_need();
        let want = |purpose: Purpose, (group, eligible): &(&[u16], Vec<u16>)| {
            self.want_in(purpose, need, group, eligible)
        };
        let mut groups = self.groups_for(purpose, need);
        let from = from.and_then(|number| self.core.segment(number));
        let own = from.as_deref().and_then(|from| self.group_of(from));
        if let (Some(from), Some(own)) = (&from, own) {
            let is_own = |(group, _): &(&[u16], Vec<u16>)| group.contains(&own[0]);
            let redundancy =
                |(_, eligible): &(&[u16], Vec<u16>)| self.redundancy_on(eligible.len());
            let of_own = |groups: &[(&[u16], Vec<u16>)]| {
                groups.iter().find(|g| is_own(g)).map_or(0, redundancy)
            };
            let mut better = self.groups_for(Purpose::Client, need);
            let (stays, beside) = (of_own(&groups), of_own(&better));
            // What lacks columns gets them there rather than in the room that cleaning its group needs (#145).
            let as_good = beside < stays && self.columns_lacking(from) > 0;
            better.retain(|g| redundancy(g) > stays || as_good && redundancy(g) == stays);
            let better = better.iter().find_map(|g| want(Purpose::Client, g));
            if better.is_some() {
                return better;
            }
            groups.sort_by_key(|g| !is_own(g));
        }
        groups.iter().find_map(|g| want(purpose, g))
    }

    /// The group that a data segment lies on.
    pub(crate) fn group_of(&self, segment: &Segment) -> Option<&[u16]> {
        let columns = segment.columns.borrow();
        let device = columns.iter().find(|c| c.is_placed())?.device;
        let mut groups = self.shape.groups.iter();
        groups.find(|g| g.contains(&device)).map(|g| &g[..])
    }

    /// The next data segment in a group of whose devices these have a slot.
    fn want_in(
        &self,
        purpose: Purpose,
        need: MetadataNeed,
        group: &[u16],
        eligible: &[u16],
    ) -> Option<Wanted> {
        let (k, m) = (usize::from(self.shape.k), usize::from(self.shape.m));
        let full = k + m;
        let online = self.online_of(group).count();
        let least = self.least_data_columns();
        let reach = self.columns_on(eligible, group, full, m);
        let number = usize::try_from(self.root.next_segment() % (1 << 20)).expect("small");
        if self.keeps_shares(group, need)
            && let Some(wanted) = self.want_share(group, eligible, number)
        {
            return Some(wanted);
        }
        if reach >= full {
            let cap = self.domain_cap(group, full, need);
            let devices = self.pick(1, eligible, full, cap);
            return Some(Wanted {
                k: self.shape.k,
                m: self.shape.m,
                devices: devices.into_iter().map(Some).collect(),
                spared: 0,
            });
        }
        if purpose == Purpose::Client && reach < online.min(full) {
            return None; // healthy devices are full: clean, rather than lay narrow stripes
        }
        if reach < online.min(m + least) || reach < least {
            return None; // too few for full redundancy, and not because devices are gone
        }
        let narrow = reach.saturating_sub(m).clamp(least, k);
        let parity = m.min(reach - narrow);
        let picked = self.pick(1, eligible, narrow + parity, parity);
        // As wide as ever, it gets the columns that are missing when there are devices for them.
        let parity = if narrow == k { m } else { parity };
        let width = picked.len().max(narrow + parity);
        Some(Wanted {
            k: u16::try_from(narrow).expect("at most 256"),
            m: u16::try_from(parity).expect("at most 255"),
            devices: with_missing(&picked, width, number),
            spared: width - picked.len(),
        })
    }

    /// The next data segment of a group that keeps to shares, if they cost it a column.
    fn want_share(&self, group: &[u16], eligible: &[u16], number: usize) -> Option<Wanted> {
        let (share, online) = (self.share(group), self.online_of(group).count());
        // Now more columns, now fewer, so that it comes out even.
        let columns = |n: usize| n as u64 * share.columns / share.segments;
        let kept = columns(number + 1) - columns(number);
        let kept = usize::try_from(kept)
            .map_or(online, |kept| kept.min(online))
            .max(share.k);
        if kept >= share.width || eligible.len() < kept {
            return None;
        }
        let picked = self.pick(1, eligible, kept, self.shape.m.into());
        Some(Wanted {
            k: u16::try_from(share.k).expect("not above K"),
            m: self.shape.m,
            devices: with_missing(&picked, share.width, number),
            spared: share.width - kept,
        })
    }

    /// The redundancy of what is written to so many devices of a group.
    pub(crate) fn redundancy_on(&self, devices: usize) -> usize {
        let m = usize::from(self.shape.m);
        m.min(devices.saturating_sub(self.least_data_columns()))
    }

    /// The data columns that a stripe has at least, so that the largest volume block of the array fits:
    /// this comes before the redundancy of what is written with too few devices.
    pub(crate) fn least_data_columns(&self) -> usize {
        let strip_blocks = self.superblock.borrow().strip_blocks as usize;
        let catalog = self.catalog.borrow();
        let blocks = catalog.volumes.iter().map(|v| usize::from(v.block_blocks));
        blocks.max().unwrap_or(1).div_ceil(strip_blocks)
    }

    /// Whether no group has devices left for a stripe that holds the largest volume block: no room would help.
    pub(crate) fn too_few_for_blocks(&self) -> bool {
        let least = self.least_data_columns();
        let mut groups = self.shape.groups.iter();
        !groups.any(|g| self.online_of(g).count() >= least)
    }

    /// The devices of a group that are in use.
    pub(crate) fn online_of<'a>(&'a self, group: &'a [u16]) -> impl Iterator<Item = u16> + 'a {
        let online = |d: &u16| self.core.member(*d).takes_slots();
        group.iter().copied().filter(online)
    }

    /// How many columns these devices take of a segment that has up to `width` of them on a group: with all
    /// of the group there, and domains that can carry it, no more than `m` in a domain. So a device that is
    /// merely full does not cost the loss of a domain either; once devices are gone, what was promised to
    /// volumes comes first.
    pub(crate) fn columns_on(
        &self,
        eligible: &[u16],
        group: &[u16],
        width: usize,
        m: usize,
    ) -> usize {
        let whole = self.online_of(group).count() == group.len();
        let columns = |devices: &[u16]| self.core.domains.columns(devices.iter().copied(), m);
        if whole && columns(group) >= width {
            columns(eligible)
        } else {
            eligible.len()
        }
    }

    /// The devices of a group that have room to spare, by an eighth more than the cleaner sees to (more than
    /// [`Home::pick`] lets devices differ by), where those that are not full cannot take a segment of `width`
    /// columns alone; none otherwise.
    pub(crate) fn roomy(&self, group: &[u16], width: usize, need: MetadataNeed) -> Vec<u16> {
        let with = |more: fn(usize) -> usize| -> Vec<u16> {
            let has = |d: &u16| {
                let member = self.core.member(*d);
                let low = self.clean_below(member, need);
                member.free_slots() >= low + more(low)
            };
            self.online_of(group).filter(has).collect()
        };
        let m = self.shape.m.into();
        if self.columns_on(&with(|_| 0), group, width, m) < width {
            with(|low| (low / 8).max(5))
        } else {
            Vec::new()
        }
    }

    /// How many columns of a new segment may lie in a failure domain: M, but where devices are gone and full ones
    /// are in the way of what was promised (see [`Home::columns_on`]).
    pub(crate) fn domain_cap(&self, group: &[u16], width: usize, need: MetadataNeed) -> usize {
        let whole = self.online_of(group).count() == group.len();
        if whole || self.roomy(group, width, need).is_empty() {
            self.shape.m.into()
        } else {
            width
        }
    }

    /// Whether devices of this group are gone and what is left has too little room for full redundancy:
    /// then new data take no more of each device than they would on as many as they have room on
    /// ([`Home::share`]), and lack the columns of those that are gone, so that what was promised to volumes
    /// still has room. Only columns of devices that are gone may be missing: a device that is merely full
    /// must not cost redundancy.
    pub(crate) fn keeps_shares(&self, group: &[u16], need: MetadataNeed) -> bool {
        let online: Vec<u16> = self.online_of(group).collect();
        if online.len() == group.len() {
            return false;
        }
        // Where stripes must be narrow they take more room at once, so that there they end earlier.
        let narrow = online.len() < usize::from(self.shape.width());
        let scarce = |d: &u16| {
            let member = self.core.member(*d);
            let low = self.clean_below(member, need);
            let early = member.geometry.slots as usize / 8;
            member.free_slots() < if narrow { low.max(early) } else { low }
        };
        online.iter().any(scarce) && self.is_overpromised()
    }

    fn has_slot(&self, device: u16, purpose: Purpose, need: MetadataNeed) -> bool {
        let member = self.core.member(device);
        let (slots, blocks) = (member.geometry.slots, self.core.slot_blocks);
        let mut kept = reserve(purpose, slots, blocks, need);
        if purpose != Purpose::Commit {
            let held = self.reserved.held.borrow();
            let held = held.get(usize::from(device)).copied().unwrap_or(0);
            kept = kept.max(held).max(need.renewed);
        }
        member.takes_slots() && member.free_slots() > kept
    }

    /// A commit is about to place nodes: until [`Home::let_go_of_room`], three quarters of the slots that
    /// are free now are its own. What it may write was reckoned from them, and a commit that has begun
    /// cannot wait for room, since only its end frees any.
    pub(crate) fn hold_room(&self) {
        let free = self.core.members.iter().map(|m| m.free_slots());
        *self.reserved.held.borrow_mut() = free.map(|free| free - free / 4).collect();
    }

    /// All nodes of the commit have their places.
    pub(crate) fn let_go_of_room(&self) {
        self.reserved.held.borrow_mut().clear();
    }

    /// The next device set of a row that covers `eligible` evenly.
    fn pick(&self, kind: u8, eligible: &[u16], width: usize, m: usize) -> Vec<u16> {
        let mut picks = self.reserved.picks.borrow_mut();
        let queue = picks.entry((kind, width)).or_default();
        while let Some(devices) = queue.pop_front() {
            if devices.len() == width && devices.iter().all(|d| eligible.contains(d)) {
                return devices;
            }
        }
        let tile = self.reserved.round.get();
        self.reserved.round.set(tile + 1);
        let domain = |d: u16| self.core.domains.of(d);
        let weight = self.weights(eligible);
        let rows = Placement::new(self.core.identity.array[0].into())
            .row_weighted(tile, eligible, width, &domain, m, &weight);
        queue.extend(rows);
        queue
            .pop_front()
            .unwrap_or_else(|| eligible[..width].to_vec())
    }

    /// How much a device counts where new segments are laid on these: by its free slots. Loads that differ by a few
    /// slots are even; real differences steer.
    pub(crate) fn weights(&self, eligible: &[u16]) -> impl Fn(u16) -> u64 {
        let free = |d: &u16| self.core.member(*d).free_slots();
        let least = eligible.iter().map(free).min().unwrap_or(1);
        let most = eligible.iter().map(free).max().unwrap_or(1);
        let even = most - least <= 4 || (most - least) * 20 < most;
        move |d: u16| {
            if even {
                1
            } else {
                self.core.member(d).free_slots() as u64
            }
        }
    }

    /// A metadata segment; `None` if not even the last reserve has room.
    pub(crate) fn allocate_meta(self: &Rc<Self>) -> Option<Pinned> {
        let eligible: Vec<u16> = self
            .core
            .taking_slots()
            .into_iter()
            .filter(|d| self.has_slot(*d, Purpose::Commit, MetadataNeed::default()))
            .collect();
        let redundant = self.shape.most_lost() + 1;
        if eligible.len() < self.core.taking_slots().len().min(redundant) || eligible.is_empty() {
            return None;
        }
        let (k, m) = self.meta_wanted(&eligible);
        let placed = (k + m).min(eligible.len());
        let shift = usize::try_from(self.root.next_segment() % (k + m) as u64).expect("small");
        let devices = with_missing(&self.pick(2, &eligible, placed, m), k + m, shift);
        let wanted = Wanted {
            k: u16::try_from(k).expect("at most 8"),
            m: u16::try_from(m).expect("at most 255"),
            devices,
            spared: (k + m).saturating_sub(self.core.taking_slots().len()),
        };
        Some(self.make_segment(SegmentKind::Meta, &wanted, 1))
    }

    /// Takes slots, submits their headers and adds the segment to the table: nobody waits for a new segment.
    ///
    /// Crash argument: its `Open` entry goes into a record only after its headers were written and flushed (R1):
    /// whoever takes it from the log waits for [`Segment::headed`] before the flush. A stripe of it that is written
    /// before its header counts as little as the header does, until that record. (Small model: `headers`.)
    fn make_segment(
        self: &Rc<Self>,
        kind: SegmentKind,
        wanted: &Wanted,
        strip_blocks: u32,
    ) -> Pinned {
        let without = wanted.devices.iter().filter(|d| d.is_none()).count();
        let gone = self
            .core
            .members
            .iter()
            .filter(|m| !m.takes_slots())
            .count();
        assert!(
            without <= wanted.spared.min(gone),
            "a device that is full costs no redundancy"
        );
        let number = self.root.take_segment_number();
        let code = self.superblock.borrow().code;
        // One data or one parity strip: the code whose coefficients are all 1 is a copy, or an XOR.
        let code = if wanted.k == 1 || wanted.m == 1 {
            CodeKind::JerasureReedSolVan.tag()
        } else {
            code
        };
        let code_kind = CodeKind::from_tag(code).expect("an import refuses an unknown code");
        let code = match Code::new(code_kind, usize::from(wanted.k), usize::from(wanted.m)) {
            Ok(_) => code,
            Err(_) => CodeKind::IsalCauchy.tag(), // narrowed to a size for which the code is not MDS
        };
        let geometry = SegmentGeometry {
            k: wanted.k,
            m: wanted.m,
            strip_blocks,
            slot_blocks: self.core.slot_blocks,
        };
        let mut columns = Vec::new();
        for (device, column) in wanted.devices.iter().zip(0u16..) {
            let entry = SlotEntry {
                segment: number,
                column,
                version: 1,
                k: wanted.k,
                m: wanted.m,
                code,
                kind,
                strip_blocks,
            };
            let placed = device.and_then(|device| {
                let slot = self.core.member(device).slots.take(entry)?;
                Some(Column {
                    device,
                    slot,
                    version: 1,
                })
            });
            columns.push(placed.unwrap_or(Column::MISSING));
        }
        let segment = Segment::create(
            number,
            kind,
            geometry,
            code,
            columns,
            self.liveness.take_record(number),
        );
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
}
