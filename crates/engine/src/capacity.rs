//! How much an array holds: what its devices may promise to volumes once parity, spare space, metadata and all
//! reserves are off. One function of sizes and layout for an array that runs, for `create -n` and for `plan`.
//!
//! Invariants:
//! - The parts add up: raw = usable + parity + spare + reserved, and usable = used + promised + free unless
//!   more is used or promised than the devices in use hold.
//! - Devices that are gone count nowhere. Spare space stands for them first: with S of it, S losses leave
//!   what can be promised as it was.

use ashlar_format::superblock::MemberState;
use ashlar_format::{BLOCK_U64, SegmentGeometry};
use ashlar_layout::Shape;

use crate::alloc::{clean_slots, commit_slots};
use crate::home::{Home, metadata_survives};
use crate::liveness::RecordShape;
use crate::member::Member;
use crate::status::{Capacity, Health};

/// Slots of a device in segments that are being filled: two streams of a few shards, and nodes.
const OPEN_SLOTS: usize = 8;

/// What the space of an array follows from, besides its devices.
#[derive(Debug, Clone, Copy)]
pub struct Space<'a> {
    /// The layout on all devices.
    pub shape: &'a Shape,
    /// All devices, those that are gone included.
    pub devices: usize,
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
            let counted = group.iter().filter_map(|d| slots(*d));
            let kept = |slots: u32| commit_slots(self.slot_blocks) + clean_slots(slots);
            let left =
                |slots: u32| u64::from(slots).saturating_sub((kept(slots) + OPEN_SLOTS) as u64);
            let mut slots: Vec<u64> = counted.map(left).collect();
            let devices = slots.len();
            slots.sort_unstable();
            slots.truncate(devices.saturating_sub(self.spare_of(spare, group, devices))); // without the largest
            let k = devices
                .saturating_sub(m)
                .clamp(self.least_data, usize::from(full.k));
            let geometry = SegmentGeometry {
                k: u16::try_from(k).expect("not above K"),
                ..full
            };
            // With M devices or fewer there is no full redundancy.
            segments_that_fit(&slots, (k + m) as u64) * u64::from(geometry.data_blocks())
        };
        let data = self.shape.groups.iter().map(of_group).sum::<u64>() * BLOCK_U64;
        let reserve = data / 100 * self.clean_reserve;
        let metadata = data / 100_000 * self.metadata_share(&full);
        data.saturating_sub(reserve).saturating_sub(metadata) / BLOCK_U64 * BLOCK_U64
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

    /// Metadata per data, in 1/100,000 of the data's space: 32 bytes a block for the map and a record a
    /// segment for liveness, at their own redundancy, twice, since what commits replace is cleaned later.
    fn metadata_share(&self, geometry: &SegmentGeometry) -> u64 {
        let devices = self.devices.max(1);
        let m = metadata_survives(self.shape).min(255).min(devices - 1);
        let k = (devices - m).clamp(1, 8);
        let map = 32.0 / 4096.0 * (1.0 + 1.0 / 63.0);
        let record = RecordShape::new(self.slot_blocks, self.shape.k).leaves_per_record()
            / f64::from(geometry.data_blocks());
        let overhead =
            (k + m) as f64 / k as f64 * f64::from(self.shape.k) / f64::from(self.shape.width());
        ((map + record) * overhead * 2.0 * 100_000.0) as u64
    }
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

/// How many segments of `width` columns, each on a device of its own, fit devices with so many slots.
pub(crate) fn segments_that_fit(slots: &[u64], width: u64) -> u64 {
    let fits = |n: u64| slots.iter().map(|s| (*s).min(n)).sum::<u64>() >= n * width;
    greatest(slots.iter().sum::<u64>() / width.max(1), fits)
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
        let space = Space {
            shape: &self.shape,
            devices: self.core.members.len(),
            strip_blocks: self.superblock.borrow().strip_blocks,
            slot_blocks: self.core.slot_blocks,
            least_data: self.least_data_columns(),
            clean_reserve: self.clean_reserve_percent(),
        };
        space.usable_bytes(spare, |index| {
            let member = self.core.member(index);
            counted(member).then_some(member.geometry.slots)
        })
    }

    /// Where usable space ends with all devices there, in bytes: up to that thin volumes may write, with what
    /// redundancy there is room for.
    pub(crate) fn usable_whole(&self) -> u64 {
        self.usable(Spare::Whole, |m| m.state() != MemberState::Spare)
    }

    /// Where usable space ends with the devices in use, in bytes: what volumes may be promised now.
    pub(crate) fn usable_now(&self) -> u64 {
        self.usable(Spare::Left, Member::is_online)
    }

    /// What volumes were promised, and what thin ones have taken, in bytes, as of the last fold.
    fn promised_bytes(&self) -> u64 {
        let catalog = self.catalog.borrow();
        let promised = catalog
            .volumes
            .iter()
            .map(|v| if v.thin { v.mapped_bytes } else { v.size_bytes });
        promised.sum()
    }

    /// What may still be promised to a volume, in bytes, as of the last fold.
    pub(crate) fn unpromised_bytes(&self) -> u64 {
        self.usable_now().saturating_sub(self.promised_bytes())
    }

    /// Counts anew what thin volumes may still take: `pending` bytes of theirs are not folded, and since
    /// that was counted so many more were `charged`.
    pub(crate) fn count_thin(&self, pending: u64, charged: u64) {
        let left = self.usable_whole().saturating_sub(self.promised_bytes());
        let left = left.saturating_sub(pending);
        self.core.thin_left.set(left.saturating_sub(charged));
    }

    /// Whether devices are gone without which not all of what volumes were promised can be redundant.
    pub(crate) fn lacks_room(&self) -> bool {
        let mut members = self.core.members.iter();
        let gone = |m: &Member| !m.is_online() && m.state() != MemberState::Spare;
        members.any(gone) && self.is_overpromised()
    }

    /// Whether the devices in use would not hold at full redundancy what volumes were promised.
    pub(crate) fn is_overpromised(&self) -> bool {
        self.promised_bytes() > self.usable(Spare::None, Member::is_online)
    }

    /// Bytes of volumes that are mapped, as of the last fold.
    fn used_bytes(&self) -> u64 {
        let catalog = self.catalog.borrow();
        catalog.volumes.iter().map(|v| v.mapped_bytes).sum()
    }

    /// Where the space of the devices in use is.
    pub(crate) fn capacity(&self) -> Capacity {
        let online = || self.core.members.iter().filter(|m| m.is_online());
        let (raw, usable, used) = (
            online().map(|m| m.geometry.size_bytes).sum::<u64>(),
            self.usable_now(),
            self.used_bytes(),
        );
        let promised = self.promised_bytes().saturating_sub(used);
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
        let segments = self.core.segments.borrow();
        let holding = segments
            .values()
            .filter(|s| !s.live.borrow().is_empty() || s.recorded.get() > 0);
        let left =
            holding.map(|s| usize::from(s.geometry.m).saturating_sub(self.core.missing_columns(s)));
        let more_losses = left.min().map_or(new_data, |least| least.min(new_data));
        let reconstructs = self.shape.groups.iter().map(|g| self.reconstructs(g)).min();
        let count = |n: usize| u16::try_from(n).expect("16-bit indexes");
        Health {
            devices_gone: count(gone.count()),
            more_losses: count(more_losses),
            reconstructs: count(reconstructs.unwrap_or(0)),
        }
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
