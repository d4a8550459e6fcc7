//! How much an array holds: what its devices may promise to volumes once parity, spare space, metadata and all
//! reserves are off. One function of sizes and layout for an array that runs, for `create -n` and for `plan`.
//!
//! Invariants:
//! - The parts add up: raw = usable + parity + spare + reserved, and usable = used + promised + free unless
//!   more is used or promised than the devices in use hold.
//! - Devices that are gone count nowhere. Spare space stands for them first: with S of it, S losses leave
//!   what can be promised as it was.

use ashlar_format::BLOCK_U64;
use ashlar_format::catalog::{Catalog, VolumeEntry};
use ashlar_format::partition::Partitioning;
use ashlar_format::superblock::MemberState;
use ashlar_layout::Placement;

use crate::home::Home;
use crate::journal::sets::record_sets;
use crate::members::Member;
use crate::space::capacity::{
    Packing, Share, Space, Spare, Takes, data_slots, greatest, node_room, segments_that_fit,
};
use crate::space::slots::{CLEAN_RESERVE, MetadataNeed, Purpose, reserve};
use crate::space::thin::{Charged, ThinCount};
use crate::status::{Capacity, Health};

impl Home {
    fn usable(&self, spare: Spare, counted: impl Fn(&Member) -> bool) -> u64 {
        self.usable_with(self.clean_reserve_percent(), spare, counted)
    }

    fn usable_with(
        &self,
        clean_reserve: u64,
        spare: Spare,
        counted: impl Fn(&Member) -> bool,
    ) -> u64 {
        let space = Space {
            shape: &self.shape,
            domains: &self.core.domains,
            strip_blocks: self.superblock.borrow().strip_blocks,
            slot_blocks: self.core.slot_blocks,
            least_data: self.least_data_columns(),
            clean_reserve,
        };
        space.usable_bytes(spare, |index| {
            let member = self.core.member(index);
            counted(member).then_some(member.geometry.slots)
        })
    }

    /// Where usable space ends with all devices there, in bytes.
    pub(crate) fn usable_whole(&self) -> u64 {
        self.usable(Spare::Whole, Home::is_no_spare)
    }

    fn is_no_spare(member: &Member) -> bool {
        member.state() != MemberState::Spare
    }

    /// Where usable space ends with the devices in use, in bytes: what volumes may be promised now.
    pub(crate) fn usable_now(&self) -> u64 {
        let whole = self.usable_whole(); // less where domains constrain it
        self.usable(Spare::Left, Member::takes_slots).min(whole)
    }

    /// What segments of a group are laid as where they keep to shares: as on the fewest devices, those in use and
    /// some of those that are gone, that would hold at full redundancy all that volumes were promised (all of
    /// the group, if it needs more). An array that was optimal, and not overpromised, had as many; so after up
    /// to M more losses what is written has all its data columns, and as much redundancy as what was there.
    pub(crate) fn share(&self, group: &[u16]) -> Share {
        let (online, gone) = self.shared(group);
        let share = self.share_on(online.len() + gone.len());
        // A large device would have taken more columns than a small one (#139).
        let slots =
            |d: &u16| data_slots(self.core.member(*d).geometry.slots, self.core.slot_blocks);
        let all = online.iter().chain(&gone);
        let all: Vec<(u64, u16)> = all.map(|d| (slots(d), 0)).collect();
        let most = segments_that_fit(&all, share.width, share.width);
        let taken = |devices: &[u16]| devices.iter().map(|d| slots(d).min(most)).sum::<u64>();
        let (staying, missing) = (taken(&online), taken(&gone));
        if staying == 0 {
            return share;
        }
        Share {
            segments: staying + missing,
            columns: staying * share.width as u64,
            ..share
        }
    }

    /// The devices in use of a group, and those of the others with which it would hold all that was promised.
    pub(crate) fn shared(&self, group: &[u16]) -> (Vec<u16>, Vec<u16>) {
        let online: Vec<u16> = self.online_of(group).collect();
        let mut gone: Vec<u16> = group.to_vec();
        gone.retain(|d| !online.contains(d));
        gone.sort_by_key(|d| std::cmp::Reverse(self.core.member(*d).geometry.slots));
        let fits = |more: &usize| {
            let stays = |m: &Member| m.takes_slots() || gone[..*more].contains(&m.index);
            let takes = Takes {
                packing: self.packing_on(online.len() + more),
                node_bytes: self.node_room(stays),
            };
            self.promised_bytes(takes) <= self.usable(Spare::None, stays)
        };
        let more = (1..=gone.len()).find(fits).unwrap_or(gone.len());
        gone.truncate(more);
        (online, gone)
    }

    /// What segments are laid as on so many devices of a group.
    pub(crate) fn share_on(&self, devices: usize) -> Share {
        let k = self.data_columns_on(devices);
        let width = k + usize::from(self.shape.m);
        Share {
            k,
            width,
            segments: devices.max(1) as u64,
            columns: (width * devices) as u64,
        }
    }

    /// Data columns of a segment on so many devices of a group.
    fn data_columns_on(&self, devices: usize) -> usize {
        let (k, m) = (usize::from(self.shape.k), usize::from(self.shape.m));
        let least = self.least_data_columns().min(k);
        devices.saturating_sub(m).clamp(least, k)
    }

    fn packing_on(&self, devices: usize) -> Packing {
        let strip_blocks = self.superblock.borrow().strip_blocks;
        Packing::new(self.data_columns_on(devices), strip_blocks)
    }

    /// How volume blocks fill stripes with all devices there.
    pub(crate) fn packing_whole(&self) -> Packing {
        Packing::new(self.shape.k.into(), self.superblock.borrow().strip_blocks)
    }

    /// What blocks and nodes take on the devices in use: in the narrowest group.
    fn takes_now(&self) -> Takes {
        let online = |group: &Vec<u16>| self.online_of(group).count();
        let least = self.shape.groups.iter().map(online).min();
        Takes {
            packing: self.packing_on(least.unwrap_or(0)),
            node_bytes: self.node_room(Member::takes_slots),
        }
    }

    /// See [`node_room`]; less what is left of the spare space.
    fn node_room(&self, counted: impl Fn(&Member) -> bool) -> u64 {
        let counted = self.core.members.iter().filter(|m| counted(m));
        let devices: Vec<u16> = counted.map(|m| m.index).collect();
        let gone = self.core.members.len() - devices.len();
        let spare = usize::from(self.shape.spare).saturating_sub(gone);
        node_room(&self.shape, &self.core.domains, &devices, spare)
    }

    /// What thin volumes' blocks and nodes take: blocks as with all devices there, since they do without the
    /// columns of those that are gone where room is short; nodes do not.
    fn takes_thin(&self) -> Takes {
        let (all, online) = (self.core.members.len(), self.core.taking_slots().len());
        let whole = self.node_room(Home::is_no_spare);
        let now = self.node_room(Member::takes_slots) * all as u64 / online.max(1) as u64;
        Takes {
            packing: self.packing_whole(),
            node_bytes: now.max(whole),
        }
    }

    /// What volumes were promised, and what thin ones have taken, their maps included, in bytes of stripes, as of
    /// the last fold.
    fn promised_bytes(&self, takes: Takes) -> u64 {
        let catalog = self.catalog.borrow();
        let bytes = |v: &VolumeEntry| if v.thin { v.mapped_bytes } else { v.size_bytes };
        let promised = catalog.volumes.iter();
        let promised = promised.map(|v| takes.packing.taken(bytes(v), v.block_blocks));
        promised.sum::<u64>() + self.maps_apart(&catalog) * takes.node_bytes
    }

    /// Nodes of thin volumes' maps beyond metadata's share of usable space: one that is written far apart has
    /// a leaf for every few blocks. Others were promised the space of a whole map; of that a thin one may have as
    /// much as of its blocks it has mapped.
    fn maps_apart(&self, catalog: &Catalog) -> u64 {
        let partitions = self.superblock.borrow().partitions;
        let thin = catalog.volumes.iter().filter(|v| v.thin);
        let apart = thin.map(|v| {
            let unit = BLOCK_U64 * u64::from(v.block_blocks.max(1));
            let (blocks, mapped) = (v.size_bytes.div_ceil(unit), v.mapped_bytes.div_ceil(unit));
            let whole =
                Partitioning::new(partitions, v.block_blocks.max(1).into()).map_nodes(blocks);
            let share = u128::from(whole) * u128::from(mapped.min(blocks));
            let share = share.div_ceil(u128::from(blocks.max(1)));
            v.map_nodes
                .saturating_sub(u64::try_from(share).expect("not above the whole"))
        });
        apart.sum()
    }

    /// What may still be promised to a volume, in bytes of stripes, as of the last fold.
    fn unpromised_bytes(&self) -> u64 {
        let promised = self.promised_bytes(self.takes_now());
        self.usable_now().saturating_sub(promised)
    }

    /// The largest volume of such blocks that can be promised all its space, in bytes, as of the last fold.
    pub(crate) fn room_for(&self, block: u16) -> u64 {
        self.takes_now()
            .packing
            .fits(self.unpromised_bytes(), block)
    }

    /// Counts anew what thin volumes may still take: see [`crate::space::thin::Thin::count`].
    pub(crate) fn count_thin(&self, oldest: Option<u64>, pending: u64, before: Charged) {
        let takes = self.takes_thin();
        let folded = self
            .usable_whole()
            .saturating_sub(self.promised_bytes(takes));
        let counted = ThinCount { folded, oldest };
        (self.core.thin).count(counted, pending, before, takes.node_bytes);
    }

    /// Whether devices are gone without which not all of what volumes were promised can be redundant.
    pub(crate) fn lacks_room(&self) -> bool {
        let mut members = self.core.members.iter();
        let gone = |m: &Member| !m.is_counted() && m.state() != MemberState::Spare;
        members.any(gone) && self.is_overpromised()
    }

    /// Whether the devices in use would not hold at full redundancy what volumes were promised.
    pub(crate) fn is_overpromised(&self) -> bool {
        self.promised_bytes(self.takes_now()) > self.usable(Spare::None, Member::takes_slots)
    }

    /// Up to how many percent may be kept for cleaning, so that what volumes were promised still fits; `None`
    /// if not even the least. Were more kept, what is written once devices are gone would have to do without
    /// their columns for the sake of room that there is.
    pub(crate) fn clean_reserve_that_fits(&self) -> Option<u64> {
        let promised = self.promised_bytes(self.takes_now());
        let fits = |percent: &u64| {
            promised <= self.usable_with(*percent, Spare::Left, Member::takes_slots)
        };
        CLEAN_RESERVE.rev().find(fits)
    }

    /// Bytes of stripes that what volumes have mapped takes, and what thin ones' maps take beyond their share, as
    /// of the last fold.
    fn used_bytes(&self) -> u64 {
        let (catalog, takes) = (self.catalog.borrow(), self.takes_now());
        let volumes = catalog.volumes.iter();
        let used = volumes.map(|v| takes.packing.taken(v.mapped_bytes, v.block_blocks));
        used.sum::<u64>() + self.maps_apart(&catalog) * takes.node_bytes
    }

    /// Where the space of the devices in use is.
    pub(crate) fn capacity(&self) -> Capacity {
        let online = || self.core.members.iter().filter(|m| m.takes_slots());
        let (raw, usable, used) = (
            online().map(|m| m.geometry.size_bytes).sum::<u64>(),
            self.usable_now(),
            self.used_bytes(),
        );
        let promised = self.promised_bytes(self.takes_now()).saturating_sub(used);
        let (k, width) = (u128::from(self.shape.k), u128::from(self.shape.width()));
        let with_parity =
            |data: u64| u64::try_from(u128::from(data) * width / k).unwrap_or(u64::MAX);
        let without_spare = self.usable(Spare::None, Member::takes_slots);
        let parity = with_parity(usable) - usable;
        let spare = with_parity(without_spare.saturating_sub(usable));
        Capacity {
            raw_bytes: raw,
            usable_bytes: usable,
            used_bytes: used,
            promised_bytes: promised,
            free_bytes: usable.saturating_sub(used).saturating_sub(promised),
            parity_bytes: parity,
            spare_bytes: spare,
            reserved_bytes: raw.saturating_sub(usable + parity + spare),
            overpromised: self.lacks_room(),
        }
    }

    /// How much more may go wrong.
    pub(crate) fn health(&self) -> Health {
        let members = self.core.members.iter();
        let gone = members.filter(|m| !m.is_counted() && m.state() != MemberState::Spare);
        let online = |group: &Vec<u16>| self.online_of(group).count();
        let devices = self.shape.groups.iter().map(online).max().unwrap_or(0);
        let new_data = usize::from(self.shape.m).min(devices.saturating_sub(1));
        let more_losses = self.losses_left().min(new_data);
        let reconstructs = self.shape.groups.iter().map(|g| self.reconstructs(g)).min();
        let count = |n: usize| u16::try_from(n).expect("16-bit indexes");
        Health {
            devices_gone: count(gone.count()),
            more_losses: count(more_losses),
            reconstructs: count(reconstructs.unwrap_or(0)),
            survives_domain: self.survives_domain(),
        }
    }

    /// See [`Health::survives_domain`].
    fn survives_domain(&self) -> Option<bool> {
        let (width, m) = (self.shape.width().into(), self.shape.m.into());
        let sizes = |group: &Vec<u16>| -> Vec<usize> {
            let domains = self.core.domains.count(group.iter().copied());
            domains.into_values().collect()
        };
        let shared = sizes(&self.shape.groups.concat()).iter().any(|n| *n > 1);
        let mut groups = self.shape.groups.iter();
        let data = |g: &Vec<u16>| Placement::survives_domain(&sizes(g), width, m);
        let records = || record_sets(&self.shape, &self.core.domains, |_| true).0;
        shared.then(|| groups.all(data) && records().iter().all(|set| set.survives_domains))
    }

    /// How many more devices of a group can be lost, one after another, and what is written now be
    /// reconstructed onto the others.
    fn reconstructs(&self, group: &[u16]) -> usize {
        let mut largest: Vec<u16> = self.online_of(group).collect();
        largest.sort_by_key(|d| std::cmp::Reverse(self.core.member(*d).geometry.slots));
        let used = self.used_bytes();
        let fits = |gone: u64| {
            let gone = &largest[..usize::try_from(gone).expect("a count of devices")];
            let stays = |m: &Member| m.takes_slots() && !gone.contains(&m.index);
            used <= self.usable(Spare::None, stays)
        };
        let most = largest
            .len()
            .saturating_sub(usize::from(self.shape.width()));
        usize::try_from(greatest(most as u64, fits)).expect("a count of devices")
    }

    /// Free slots of a device below which the cleaner works.
    pub(crate) fn clean_below(&self, member: &Member, need: MetadataNeed) -> usize {
        let slots = member.geometry.slots;
        let kept = reserve(Purpose::Client, slots, self.core.slot_blocks, need);
        kept + (slots as usize / 50).max(4)
    }

    /// Free slots of a device that are not for data that was lost. What cleaning needs is its own: garbage may have
    /// left what was lost no room, and only cleaning ends that; metadata need some to be redundant (#142). Where more
    /// was promised than fits at full redundancy without the devices that are gone, that comes first as well.
    pub(crate) fn kept_from_lost(&self) -> impl Fn(&Member) -> usize + '_ {
        let promised = self.lacks_room().then(|| self.metadata_need());
        let growth = self.tasks.borrow().meta_growth;
        move |member| match promised {
            Some(need) => self.kept_for_promises(member, need),
            None => {
                let need = MetadataNeed {
                    growth,
                    ..MetadataNeed::default()
                };
                let (slots, blocks) = (member.geometry.slots, self.core.slot_blocks);
                reserve(Purpose::Client, slots, blocks, need)
            }
        }
    }

    /// Free slots of a device that are not for what was lost: what volumes were promised comes first, and
    /// the cleaner would only take them back.
    pub(crate) fn kept_for_promises(&self, member: &Member, need: MetadataNeed) -> usize {
        let below = self.clean_below(member, need);
        below + below / 4
    }

    /// An event when 80, 90 or 95 % of usable space are reached; again only after it was 3 % below.
    pub(crate) fn warn_of_space(&self) {
        let Capacity {
            used_bytes,
            usable_bytes,
            ..
        } = self.capacity();
        let percent = used_bytes.saturating_mul(100) / usable_bytes.max(1);
        let reached = |percent: u64| {
            [95, 90, 80]
                .into_iter()
                .find(|p| percent >= *p)
                .unwrap_or(0)
        };
        let warned = self.reserved.warned.get();
        if reached(percent) > warned {
            let text = match usable_bytes {
                0 => "the devices in use have no room for data: bring back those that are missing"
                    .to_string(),
                _ => format!(
                    "{percent} % of usable space is in use: trim, destroy a volume, or use a larger array"
                ),
            };
            self.core.events.note("space-low", None, text);
        }
        self.reserved
            .warned
            .set(reached(percent).max(warned.min(reached(percent + 3))));
    }
}
