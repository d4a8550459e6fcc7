//! How much an array holds: what its devices may promise to volumes once parity, spare space, metadata and all
//! reserves are off. One function of sizes and layout for an array that runs, for `create -n` and for `plan`.
//!
//! Invariants:
//! - The parts add up: raw = usable + parity + spare + reserved, and usable = used + promised + free unless
//!   more is used or promised than the devices in use hold.
//! - Devices that are gone count nowhere. Spare space stands for them first: with S of it, S losses leave
//!   what can be promised as it was.

use std::collections::BTreeMap;

use ashlar_format::catalog::{Catalog, VolumeEntry};
use ashlar_format::superblock::MemberState;
use ashlar_format::{BLOCK_U64, SegmentGeometry};
use ashlar_layout::{Placement, Shape};

use crate::alloc::{CLEAN_RESERVE, clean_slots, commit_slots};
use crate::domains::Domains;
use crate::home::Home;
use crate::liveness::RecordShape;
use crate::member::Member;
use crate::metaroom::meta_shape;
use crate::partition::Partitioning;
use crate::record_sets::record_sets;
use crate::status::{Capacity, Health};
use crate::thin::{Charged, ThinCount};

/// Slots of a device in segments that are being filled: two streams of a few shards, and nodes.
const OPEN_SLOTS: usize = 8;

/// What the space of an array follows from, besides its devices.
#[derive(Debug, Clone, Copy)]
pub struct Space<'a> {
    /// The layout on all devices.
    pub shape: &'a Shape,
    /// The failure domains of all devices.
    pub domains: &'a Domains,
    /// Blocks of a strip.
    pub strip_blocks: u32,
    /// Blocks of a slot.
    pub slot_blocks: u32,
    /// The data columns that a stripe has at least, so that the largest volume block fits.
    pub least_data: usize,
    /// Percent of the space that is kept for cleaning (`clean.reserve`).
    pub clean_reserve: u64,
}

impl Space<'_> {
    /// What volumes may be promised in bytes, at full redundancy, by devices with so many `slots` (`None`: not
    /// counted), less `spare` of them in each group; in narrow stripes where they are too few.
    pub fn usable_bytes(&self, spare: Spare, slots: impl Fn(u16) -> Option<u32>) -> u64 {
        let m = usize::from(self.shape.m);
        let full = SegmentGeometry {
            k: self.shape.k,
            m: self.shape.m,
            strip_blocks: self.strip_blocks,
            slot_blocks: self.slot_blocks,
        };
        let of_group = |group: &Vec<u16>| {
            let left = |slots: u32| data_slots(slots, self.slot_blocks);
            let counted = |d: &u16| Some((left(slots(*d)?), self.domains.of(*d)));
            let mut slots: Vec<(u64, u16)> = group.iter().filter_map(counted).collect();
            let devices = slots.len();
            slots.sort_unstable();
            let all = slots.clone();
            slots.truncate(devices.saturating_sub(self.spare_of(spare, group, devices))); // without the largest
            // Without all devices what was promised comes before the loss of a domain.
            let whole = devices == group.len();
            let domains = if whole { m } else { 0 };
            let k = devices
                .saturating_sub(m)
                .clamp(self.least_data, usize::from(full.k));
            let geometry = SegmentGeometry {
                k: u16::try_from(k).expect("not above K"),
                ..full
            };
            // With M devices or fewer there is no full redundancy.
            let mut segments = segments_that_fit(&slots, k + m, domains);
            if whole {
                // The domains may carry their loss only with the devices that stand for the spare space: then they
                // constrain placement as long as all are there (S157).
                segments = segments.min(segments_that_fit(&all, full.width(), m));
            }
            segments * u64::from(geometry.data_blocks())
        };
        let data = self.shape.groups.iter().map(of_group).sum::<u64>() * BLOCK_U64;
        let reserve = data / 100 * self.clean_reserve;
        let spares = |group: &Vec<u16>| {
            let counted = group.iter().filter(|d| slots(**d).is_some()).count();
            self.spare_of(spare, group, counted)
        };
        let groups = self.shape.groups.iter();
        let counted = groups.clone().flatten().filter(|d| slots(**d).is_some());
        let counted: Vec<u16> = counted.copied().collect();
        let spares = groups.map(spares).sum();
        let node_bytes = node_room(self.shape, self.domains, &counted, spares);
        let overhead = node_bytes as f64 / BLOCK_U64 as f64;
        let share = (self.metadata_share(&full) * overhead) as u64;
        let left = data.saturating_sub(reserve);
        // As if all were promised, which is a little much. Of hundreds of groups it can be more than there is, as
        // nodes have parity for a device of each: then it is reckoned of what can be promised, less a tenth.
        let most = left / (100_000 + share) * 90_000;
        let usable = left.saturating_sub(data / 100_000 * share).max(most);
        usable / BLOCK_U64 * BLOCK_U64
    }

    /// Devices' worth of spare space in a group of which so many are counted.
    fn spare_of(&self, spare: Spare, group: &[u16], counted: usize) -> usize {
        let each = usize::from(self.shape.spare) / self.shape.groups.len().max(1);
        match spare {
            Spare::Whole => each,
            Spare::Left => each.saturating_sub(group.len() - counted),
            Spare::None => 0,
        }
    }

    /// Metadata per data, in 1/100,000: 32 bytes a block for the map, and a record a segment for liveness.
    fn metadata_share(&self, geometry: &SegmentGeometry) -> f64 {
        let map = 32.0 / 4096.0 * (1.0 + 1.0 / 63.0);
        let record = RecordShape::new(self.slot_blocks, self.shape.k).leaves_per_record()
            / f64::from(geometry.data_blocks());
        (map + record) * 100_000.0
    }
}

/// Bytes of data that a node takes the room of: at the redundancy that metadata has on these devices without the
/// spare, twice, since what commits replace is cleaned later.
fn node_room(shape: &Shape, domains: &Domains, devices: &[u16], spare: usize) -> u64 {
    let (k, m) = meta_shape(shape, domains, devices, spare);
    let wide = f64::from(shape.width()) / f64::from(shape.k);
    ((k + m) as f64 / k as f64 / wide * 2.0 * BLOCK_U64 as f64) as u64
}

/// What blocks and nodes take on some devices.
#[derive(Debug, Clone, Copy)]
struct Takes {
    /// How volume blocks fill stripes there.
    packing: Packing,
    /// Bytes of data that a node takes the room of.
    node_bytes: u64,
}

/// How volume blocks fill stripes. Each lies whole in one, so where a stripe is no multiple of them a part of
/// it stays empty, which counts as taken.
#[derive(Debug, Clone, Copy)]
pub struct Packing {
    stripe_blocks: u64,
}

impl Packing {
    /// Stripes of `k` strips.
    pub fn new(k: usize, strip_blocks: u32) -> Packing {
        Packing {
            stripe_blocks: k as u64 * u64::from(strip_blocks),
        }
    }

    /// Volume blocks of so many blocks that a stripe holds, and whether they fill it.
    fn each(self, block: u16) -> (u64, bool) {
        let block = u64::from(block.max(1));
        let each = (self.stripe_blocks / block).max(1);
        (each, each * block >= self.stripe_blocks)
    }

    /// Bytes of stripes that `bytes` of volume blocks of so many blocks take.
    pub fn taken(self, bytes: u64, block: u16) -> u64 {
        let (each, filled) = self.each(block);
        if filled {
            return bytes;
        }
        let blocks = bytes.div_ceil(u64::from(block) * BLOCK_U64);
        let taken = u128::from(blocks) * u128::from(self.stripe_blocks * BLOCK_U64);
        u64::try_from(taken.div_ceil(u128::from(each))).unwrap_or(u64::MAX)
    }

    /// Bytes of such volume blocks that `free` bytes of stripes take.
    pub fn fits(self, free: u64, block: u16) -> u64 {
        let (each, filled) = self.each(block);
        if filled {
            return free;
        }
        free / (self.stripe_blocks * BLOCK_U64) * each * u64::from(block) * BLOCK_U64
    }
}

/// How segments are laid that keep to shares.
pub(crate) struct Share {
    /// Data columns.
    pub k: usize,
    /// Columns, those of devices that are gone included.
    pub width: usize,
    /// So many segments ...
    pub segments: u64,
    /// ... have so many columns on the devices in use.
    pub columns: u64,
}

/// How much of the spare space is kept out of what may be promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spare {
    /// All of it, as with every device there.
    Whole,
    /// What devices that are gone have left of it.
    Left,
    /// None.
    None,
}

/// Slots of a device with so many `slots` that data may take, with none left open.
fn data_slots(slots: u32, slot_blocks: u32) -> u64 {
    let kept = commit_slots(slot_blocks) + clean_slots(slots) + OPEN_SLOTS;
    u64::from(slots).saturating_sub(kept as u64)
}

/// How many segments of `width` columns, each on a device of its own, fit devices with so many slots, each in
/// a failure domain; with at most `m` columns of a segment in a domain where the domains can carry that.
pub(crate) fn segments_that_fit(slots: &[(u64, u16)], width: usize, m: usize) -> u64 {
    let columns = |n: u64, most: usize| -> u64 {
        let mut domains: BTreeMap<u16, u64> = BTreeMap::new();
        for (free, domain) in slots {
            *domains.entry(*domain).or_default() += (*free).min(n);
        }
        let most = n.saturating_mul(most as u64);
        domains.values().map(|columns| (*columns).min(most)).sum()
    };
    let width_of = |n: u64| n * width as u64;
    let most = if columns(1, m) >= width_of(1) {
        m
    } else {
        width
    };
    let all = slots.iter().map(|(free, _)| free).sum::<u64>();
    greatest(all / width.max(1) as u64, |n| {
        columns(n, most) >= width_of(n)
    })
}

/// The greatest number up to `most` that fits, or 0; with one that fits all below it fit.
fn greatest(mut most: u64, fits: impl Fn(u64) -> bool) -> u64 {
    let mut least = 0;
    while least < most {
        let middle = (least + most).div_ceil(2);
        if fits(middle) {
            least = middle;
        } else {
            most = middle - 1;
        }
    }
    least
}

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
        self.usable(Spare::Whole, Home::is_counted)
    }

    fn is_counted(member: &Member) -> bool {
        member.state() != MemberState::Spare
    }

    /// Where usable space ends with the devices in use, in bytes: what volumes may be promised now.
    pub(crate) fn usable_now(&self) -> u64 {
        let whole = self.usable_whole(); // less where domains constrain it
        self.usable(Spare::Left, Member::is_online).min(whole)
    }

    /// What segments of a group are laid as where they keep to shares: as on the fewest devices, those in use and
    /// some of those that are gone, that would hold at full redundancy all that volumes were promised (all of
    /// the group, if it needs more). An array that was optimal, and not overpromised, had as many; so after up
    /// to M more losses what is written has all its data columns, and as much redundancy as what was there.
    pub(crate) fn share(&self, group: &[u16]) -> Share {
        let (online, gone) = self.shared(group);
        let share = self.share_on(online.len() + gone.len());
        // A large device would have taken more columns than a small one (S139).
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
            let stays = |m: &Member| m.is_online() || gone[..*more].contains(&m.index);
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
            node_bytes: self.node_room(Member::is_online),
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
        let (all, online) = (self.core.members.len(), self.core.online().len());
        let whole = self.node_room(Home::is_counted);
        let now = self.node_room(Member::is_online) * all as u64 / online.max(1) as u64;
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

    /// Counts anew what thin volumes may still take: see [`crate::thin::Thin::count`].
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
        let gone = |m: &Member| !m.is_online() && m.state() != MemberState::Spare;
        members.any(gone) && self.is_overpromised()
    }

    /// Whether the devices in use would not hold at full redundancy what volumes were promised.
    pub(crate) fn is_overpromised(&self) -> bool {
        self.promised_bytes(self.takes_now()) > self.usable(Spare::None, Member::is_online)
    }

    /// Up to how many percent may be kept for cleaning, so that what volumes were promised still fits; `None`
    /// if not even the least. Were more kept, what is written once devices are gone would have to do without
    /// their columns for the sake of room that there is.
    pub(crate) fn clean_reserve_that_fits(&self) -> Option<u64> {
        let promised = self.promised_bytes(self.takes_now());
        let fits =
            |percent: &u64| promised <= self.usable_with(*percent, Spare::Left, Member::is_online);
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
        let online = || self.core.members.iter().filter(|m| m.is_online());
        let (raw, usable, used) = (
            online().map(|m| m.geometry.size_bytes).sum::<u64>(),
            self.usable_now(),
            self.used_bytes(),
        );
        let promised = self.promised_bytes(self.takes_now()).saturating_sub(used);
        let (k, width) = (u128::from(self.shape.k), u128::from(self.shape.width()));
        let with_parity =
            |data: u64| u64::try_from(u128::from(data) * width / k).unwrap_or(u64::MAX);
        let without_spare = self.usable(Spare::None, Member::is_online);
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
        let gone = members.filter(|m| !m.is_online() && m.state() != MemberState::Spare);
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
            let stays = |m: &Member| m.is_online() && !gone.contains(&m.index);
            used <= self.usable(Spare::None, stays)
        };
        let most = largest
            .len()
            .saturating_sub(usize::from(self.shape.width()));
        usize::try_from(greatest(most as u64, fits)).expect("a count of devices")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// What is promised leaves nodes the room that they take in segments as they are laid: with hundreds of parity
    /// columns these have few of data.
    #[test]
    fn nodes_take_what_is_left_for_them() {
        let domains = Domains::new(std::iter::empty());
        for (layout, devices, k, m) in [
            ("ec8+2", 12, 8, 3),
            ("ec4+2", 8, 5, 3),
            ("raid10", 496, 8, 248),
            ("raid10", 498, 7, 249),
            ("raid10", 512, 1, 255),
            ("ec1+255", 257, 1, 255),
        ] {
            let layout: ashlar_layout::Layout = layout.parse().unwrap();
            let shape = layout.resolve(devices).unwrap();
            let all: Vec<u16> = (0..devices).collect();
            let wide = u64::from(shape.width()) * k;
            let taken = 2 * BLOCK_U64 * (k + m) * u64::from(shape.k) / wide;
            assert_eq!(node_room(&shape, &domains, &all, 0), taken, "{layout}");
        }
    }

    /// However much of the room nodes take, something is left for what they are for.
    #[test]
    fn hundreds_of_pairs_hold_something() {
        for (devices, percent) in [(12, 95), (300, 79), (496, 69), (508, 42), (600, 28)] {
            let layout: ashlar_layout::Layout = "raid10".parse().unwrap();
            let space = Space {
                shape: &layout.resolve(devices).unwrap(),
                domains: &Domains::new(std::iter::empty()),
                strip_blocks: 16,
                slot_blocks: 16 << 10,
                least_data: 1,
                clean_reserve: 10,
            };
            let usable = space.usable_bytes(Spare::Whole, |_| Some(16 << 10));
            // Without the copies and what is kept for cleaning.
            let all = u64::from(devices / 2) * (1 << 40) / 10 * 9;
            assert_eq!(usable * 100 / all, percent, "{devices}");
        }
    }
}
