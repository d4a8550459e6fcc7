//! What the devices of an array can hold at full redundancy, and how blocks fill stripes.
//!
//! Invariant: functions of the layout, the devices' slots and the failure domains; an array that is created and one that
//! runs ask the same.

use std::collections::BTreeMap;

use ashlar_format::liveness::RecordShape;
use ashlar_format::{BLOCK_U64, SegmentGeometry};
use ashlar_layout::Shape;
use ashlar_space::domains::Domains;

use crate::space::slots::{clean_slots, commit_slots, meta_shape};

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
                // constrain placement as long as all are there (#157).
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
pub fn node_room(shape: &Shape, domains: &Domains, devices: &[u16], spare: usize) -> u64 {
    let (k, m) = meta_shape(shape, domains, devices, spare);
    let wide = f64::from(shape.width()) / f64::from(shape.k);
    ((k + m) as f64 / k as f64 / wide * 2.0 * BLOCK_U64 as f64) as u64
}

/// What blocks and nodes take on some devices.
#[derive(Debug, Clone, Copy)]
pub struct Takes {
    /// How volume blocks fill stripes there.
    pub packing: Packing,
    /// Bytes of data that a node takes the room of.
    pub node_bytes: u64,
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
pub fn data_slots(slots: u32, slot_blocks: u32) -> u64 {
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
pub fn greatest(mut most: u64, fits: impl Fn(u64) -> bool) -> u64 {
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
