//! Offsets: the regions of a device, and the courses of a segment's slots.
//!
//! ```text
//! device   | superblock | roots, slot table | delta ring | data ring | roots, slot table | slots ... | superblock |
//! slot     | header | course 0 | course 1 | ...
//! course   | strip of stripe 0 | strip of stripe 1 | ... | summary blocks of these strips |
//! ```
//!
//! A device that has grown has further pages of its slot table before the superblock at its end: what lies before its
//! slots stays where it is.
//!
//! Invariants: regions do not overlap; the two copies of anything lie in two regions, with the rings between; a slot
//! begins at a multiple of the smaller of its size and 1 MiB; a course's summary has one 32-byte row for every strip
//! block of the course.

use crate::wire::{Reader, Writer};
use crate::{BLOCK_U64, FormatError};

/// Bytes of one root entry.
pub const ROOT_BYTES: u64 = 16 * 1024;
/// Root entries of a device, written in turn.
pub const ROOT_COUNT: u64 = 4;
/// Rows of a summary block.
pub const ROWS_PER_SUMMARY: u32 = 126;

/// Entries of a table page.
pub const ENTRIES_PER_PAGE: u32 = 124;
/// Bytes between the two copies of further pages of a slot table.
const APART: u64 = 1 << 20;

/// The regions of one device. All devices of an array have the same but for the slot count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceGeometry {
    /// Bytes of each superblock area, one at each end.
    pub super_bytes: u64,
    /// Bytes of the ring of delta records.
    pub delta_ring_bytes: u64,
    /// Bytes of the ring of data records.
    pub data_ring_bytes: u64,
    /// Bytes of a slot.
    pub slot_bytes: u64,
    /// Slots of this device.
    pub slots: u32,
    /// The device's size in bytes when it was added, or when the array began to use more of it.
    pub size_bytes: u64,
    /// Of a device that has grown, the pages of the slot table that lie in the two regions; the others lie at its end.
    pub region_pages: Option<u32>,
}

impl DeviceGeometry {
    /// Lays out a device of `size_bytes`; `None` if fewer than `min_slots` slots fit.
    pub fn lay_out(
        size_bytes: u64,
        slot_bytes: u64,
        rings: (u64, u64),
        min_slots: u32,
    ) -> Option<DeviceGeometry> {
        let size_bytes = size_bytes / BLOCK_U64 * BLOCK_U64;
        let super_bytes = super_bytes(size_bytes);
        let mut geometry = DeviceGeometry {
            super_bytes,
            delta_ring_bytes: rings.0,
            data_ring_bytes: rings.1,
            slot_bytes,
            slots: u32::try_from(size_bytes / slot_bytes).ok()?.min(1 << 24),
            size_bytes,
            region_pages: None,
        };
        geometry.drop_excess()?;
        (geometry.slots >= min_slots && geometry.slots > 0).then_some(geometry)
    }

    /// Leaves out the slots that do not fit.
    fn drop_excess(&mut self) -> Option<()> {
        while self.slots > 0 {
            let needed = self.slot_offset(self.slots).checked_add(self.end_bytes())?;
            if needed <= self.size_bytes {
                break;
            }
            let excess = (needed - self.size_bytes).div_ceil(self.slot_bytes);
            self.slots = self.slots.saturating_sub(u32::try_from(excess).ok()?);
        }
        Some(())
    }

    /// The layout of the device once it has grown to `size_bytes`: regions and slots stay where they are, and slots are
    /// added behind them, no more than a new device of that size has. `None` if that gives no slot more, or if what lies
    /// at the end would not lie wholly behind the end that there was.
    pub fn grown_to(&self, size_bytes: u64) -> Option<DeviceGeometry> {
        let rings = (self.delta_ring_bytes, self.data_ring_bytes);
        let new = DeviceGeometry::lay_out(size_bytes, self.slot_bytes, rings, 1)?;
        let mut grown = DeviceGeometry {
            super_bytes: self.super_bytes,
            region_pages: Some(self.region_pages()),
            ..new
        };
        grown.drop_excess()?;
        let behind = grown.size_bytes.checked_sub(grown.end_bytes())? >= self.size_bytes;
        (behind && grown.slots > self.slots).then_some(grown)
    }

    /// The smallest device of the same array with so many slots: what is known of one that is not here.
    pub fn with_slots(self, slots: u32) -> DeviceGeometry {
        let like = DeviceGeometry {
            slots,
            region_pages: None,
            ..self
        };
        DeviceGeometry {
            size_bytes: like.slot_offset(slots) + self.super_bytes,
            ..like
        }
    }

    /// Offset of superblock copy 0 or 1.
    pub fn super_offset(&self, copy: u32) -> u64 {
        if copy == 0 {
            0
        } else {
            self.size_bytes - super_bytes(self.size_bytes)
        }
    }

    /// Offset of the beat: the last block of the first superblock area.
    pub fn beat_offset(&self) -> u64 {
        self.super_bytes - BLOCK_U64
    }

    /// Offset of copy 0 or 1 of the region that has roots and slot table.
    fn region_offset(&self, copy: u64) -> u64 {
        if copy == 0 {
            self.super_bytes
        } else {
            self.data_ring_offset() + self.data_ring_bytes
        }
    }

    /// Offset of root entry `index`: those after each other lie in different regions.
    pub fn root_offset(&self, index: u64) -> u64 {
        self.region_offset(index % 2) + index % ROOT_COUNT / 2 * ROOT_BYTES
    }

    /// Pages of the slot table.
    pub fn table_pages(&self) -> u32 {
        self.slots.div_ceil(ENTRIES_PER_PAGE)
    }

    /// Pages of the slot table that lie in the two regions.
    fn region_pages(&self) -> u32 {
        self.region_pages.unwrap_or(self.table_pages())
    }

    /// Pages of the slot table that lie at the end.
    pub fn further_pages(&self) -> std::ops::Range<u32> {
        self.region_pages()..self.table_pages()
    }

    /// Bytes of each copy of these.
    fn further_bytes(&self) -> u64 {
        self.further_pages().len() as u64 * BLOCK_U64
    }

    /// Bytes behind the last slot that are in use: further pages, twice, and a superblock.
    fn end_bytes(&self) -> u64 {
        let twice = match self.further_bytes() {
            0 => 0,
            bytes => 2 * bytes + APART,
        };
        twice + super_bytes(self.size_bytes)
    }

    /// Offset of the end of the pages in copy 0 or 1 of the region that has roots and slot table.
    fn region_end(&self, copy: u64) -> u64 {
        let pages = u64::from(self.region_pages()) * BLOCK_U64;
        self.region_offset(copy) + ROOT_COUNT / 2 * ROOT_BYTES + pages
    }

    /// Offset of copy 0 or 1 of a slot table page.
    pub fn page_offset(&self, page: u32, copy: u32) -> u64 {
        if let Some(further) = page.checked_sub(self.region_pages()) {
            let end = self.super_offset(1) - u64::from(1 - copy) * (self.further_bytes() + APART);
            return end - self.further_bytes() + u64::from(further) * BLOCK_U64;
        }
        self.region_offset(u64::from(copy))
            + ROOT_COUNT / 2 * ROOT_BYTES
            + u64::from(page) * BLOCK_U64
    }

    /// Offset of the ring of delta records.
    pub fn delta_ring_offset(&self) -> u64 {
        self.region_end(0)
    }

    /// Offset of the ring of data records.
    pub fn data_ring_offset(&self) -> u64 {
        self.delta_ring_offset() + self.delta_ring_bytes
    }

    /// Offset of a slot.
    pub fn slot_offset(&self, slot: u32) -> u64 {
        let align = self.slot_bytes.min(1 << 20);
        let start = self.region_end(1).next_multiple_of(align);
        start + u64::from(slot) * self.slot_bytes
    }

    pub(crate) fn write(&self, w: &mut Writer) {
        w.u64(self.super_bytes)
            .u64(self.delta_ring_bytes)
            .u64(self.data_ring_bytes);
        w.u64(self.slot_bytes).u32(self.slots).u64(self.size_bytes);
    }

    /// Reads it; `region_pages` stands elsewhere.
    pub(crate) fn read(
        r: &mut Reader<'_>,
        region_pages: Option<u32>,
    ) -> Result<DeviceGeometry, FormatError> {
        let geometry = DeviceGeometry {
            super_bytes: r.u64()?,
            delta_ring_bytes: r.u64()?,
            data_ring_bytes: r.u64()?,
            slot_bytes: r.u64()?,
            slots: r.u32()?,
            size_bytes: r.u64()?,
            region_pages,
        };
        let plausible = geometry.slot_bytes.is_power_of_two()
            && (32 << 10..=1 << 30).contains(&geometry.slot_bytes)
            && geometry.slots > 0
            && geometry.slots <= 1 << 24
            && region_pages.is_none_or(|pages| (1..=geometry.table_pages()).contains(&pages))
            && geometry.super_bytes <= super_bytes(geometry.size_bytes)
            && geometry.delta_ring_bytes <= 1 << 40
            && geometry.data_ring_bytes <= 1 << 40
            && [
                geometry.delta_ring_bytes,
                geometry.data_ring_bytes,
                geometry.super_bytes,
                geometry.size_bytes,
            ]
            .iter()
            .all(|n| n % BLOCK_U64 == 0 && *n > 0)
            && geometry.size_bytes <= 1 << 60;
        if plausible
            && geometry.slot_offset(geometry.slots) + geometry.end_bytes() <= geometry.size_bytes
        {
            Ok(geometry)
        } else {
            Err(FormatError::Value)
        }
    }
}

/// Bytes of each superblock area of a device: room for the members that devices of its size may have.
pub fn super_bytes(size_bytes: u64) -> u64 {
    match size_bytes {
        0..0x4000_0000 => 64 << 10,
        0x4000_0000..0x4_0000_0000 => 1 << 20,
        _ => 8 << 20,
    }
}

/// The default slot size for a device: size / 16,384 rounded to a power of two, 1 MiB to 1 GiB;
/// smaller, down to 64 KiB, where that gives fewer than 1,024 slots.
pub fn default_slot_bytes(device_bytes: u64) -> u64 {
    let mut slot = (device_bytes / 16_384)
        .next_power_of_two()
        .clamp(1 << 20, 1 << 30);
    while slot > 64 << 10 && device_bytes / slot < 1_100 {
        slot /= 2;
    }
    slot
}

/// How the slots of a segment are cut into strips: all columns alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentGeometry {
    /// Data strips a stripe, 1 to 256.
    pub k: u16,
    /// Parity strips a stripe; k + m <= 256.
    pub m: u16,
    /// Blocks a strip, 1 to 256.
    pub strip_blocks: u32,
    /// Blocks a slot.
    pub slot_blocks: u32,
}

impl SegmentGeometry {
    /// Columns: k + m.
    pub fn width(&self) -> usize {
        usize::from(self.k) + usize::from(self.m)
    }

    /// Strips of a full course.
    pub fn course_strips(&self) -> u32 {
        (ROWS_PER_SUMMARY / self.strip_blocks).max(1)
    }

    /// Summary blocks after `strips` strips.
    pub fn summary_blocks(&self, strips: u32) -> u32 {
        (strips * self.strip_blocks).div_ceil(ROWS_PER_SUMMARY)
    }

    /// Stripes of the segment.
    pub fn stripes(&self) -> u32 {
        let body = self.slot_blocks - 1;
        let full =
            self.course_strips() * self.strip_blocks + self.summary_blocks(self.course_strips());
        let mut stripes = body / full * self.course_strips();
        let rest = body % full;
        let mut last = 0;
        while last < self.course_strips()
            && (last + 1) * self.strip_blocks + self.summary_blocks(last + 1) <= rest
        {
            last += 1;
        }
        stripes += last;
        stripes
    }

    /// The course a stripe belongs to.
    pub fn course_of(&self, stripe: u32) -> u32 {
        stripe / self.course_strips()
    }

    /// The stripe of block `at` of a column's course, and which block of its strip it is.
    pub fn in_course(&self, course: u32, at: u32) -> (u32, u32) {
        let stripe = course * self.course_strips() + at / self.strip_blocks;
        (stripe, at % self.strip_blocks)
    }

    /// Strips of a course: fewer in the last one.
    pub fn strips_in(&self, course: u32) -> u32 {
        (self.stripes() - course * self.course_strips()).min(self.course_strips())
    }

    /// Courses of the segment.
    pub fn courses(&self) -> u32 {
        self.stripes().div_ceil(self.course_strips())
    }

    /// Block, within a slot, at which a stripe's strip begins.
    pub fn strip_block(&self, stripe: u32) -> u32 {
        let course = self.course_of(stripe);
        self.course_block(course) + stripe % self.course_strips() * self.strip_blocks
    }

    fn course_block(&self, course: u32) -> u32 {
        1 + course
            * (self.course_strips() * self.strip_blocks + self.summary_blocks(self.course_strips()))
    }

    /// Block, within a slot, at which a course's summary begins.
    pub fn summary_block(&self, course: u32) -> u32 {
        self.course_block(course) + self.strips_in(course) * self.strip_blocks
    }

    /// Data blocks of a stripe.
    pub fn stripe_blocks(&self) -> u32 {
        u32::from(self.k) * self.strip_blocks
    }

    /// Data blocks of the segment.
    pub fn data_blocks(&self) -> u32 {
        self.stripes() * self.stripe_blocks()
    }

    /// Stripe, data strip and block within the strip of data block `offset`.
    pub fn locate(&self, offset: u32) -> (u32, u16, u32) {
        let within = offset % self.stripe_blocks();
        let strip = u16::try_from(within / self.strip_blocks).expect("below k");
        (
            offset / self.stripe_blocks(),
            strip,
            within % self.strip_blocks,
        )
    }

    /// Whether the numbers make a segment.
    pub fn is_sound(&self) -> bool {
        self.k >= 1
            && self.width() <= 256
            && (1..=256).contains(&self.strip_blocks)
            && (8..=1 << 18).contains(&self.slot_blocks)
            && self.stripes() >= 1
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn regions_follow_each_other_and_fit() {
        for size in [2 << 20, 64 << 20, 1 << 30, 20 << 40] {
            let slot = if size < 64 << 20 {
                32 << 10
            } else {
                default_slot_bytes(size)
            };
            let g = DeviceGeometry::lay_out(size, slot, (256 << 10, 256 << 10), 8).unwrap();
            let mut regions = vec![(g.super_offset(0), g.super_bytes)];
            regions.extend((0..ROOT_COUNT).map(|entry| (g.root_offset(entry), ROOT_BYTES)));
            for copy in 0..2 {
                let pages = 0..g.table_pages();
                regions.extend(pages.map(|page| (g.page_offset(page, copy), BLOCK_U64)));
            }
            regions.push((g.delta_ring_offset(), g.delta_ring_bytes));
            regions.push((g.data_ring_offset(), g.data_ring_bytes));
            regions.push((g.slot_offset(0), u64::from(g.slots) * g.slot_bytes));
            regions.push((g.super_offset(1), g.super_bytes));
            regions.sort_unstable();
            assert!(
                regions.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0),
                "{size}"
            );
            let apart = |a: u64, b: u64| assert!(b - a >= (512 << 10) + BLOCK_U64);
            apart(g.root_offset(0), g.root_offset(1));
            apart(g.page_offset(0, 0), g.page_offset(0, 1));
            assert!(g.slot_offset(g.slots) <= g.super_offset(1));
            assert!(
                g.slot_offset(g.slots + 2) + g.super_bytes > size,
                "no slot is wasted at {size}"
            );
            let mut w = Writer::new();
            g.write(&mut w);
            assert_eq!(
                DeviceGeometry::read(&mut Reader::new(&w.0), None).unwrap(),
                g
            );
        }
    }

    /// What lies on a device that grows stays where it is; what is at its end lies wholly in what is new.
    #[test]
    fn a_device_that_grows_keeps_what_lies_on_it() {
        const MIB: u64 = 1 << 20;
        for (size, slot, sizes) in [
            (8 * MIB, 64 << 10, &[12 * MIB, 16 * MIB, 64 * MIB][..]),
            (64 * MIB, 64 << 10, &[65 * MIB, 1500 * MIB, 20_000 * MIB]),
            (1 << 40, 64 * MIB, &[2 << 40, 20 << 40]),
        ] {
            let mut old = DeviceGeometry::lay_out(size, slot, (MIB / 4, MIB / 4), 8).unwrap();
            for to in sizes {
                let grown = old.grown_to(*to).unwrap();
                let new = DeviceGeometry::lay_out(*to, slot, (MIB / 4, MIB / 4), 8).unwrap();
                assert!(grown.slots > old.slots && grown.slots <= new.slots);
                assert!(
                    u64::from(new.slots - grown.slots) <= 20 * MIB / slot + 1,
                    "{to}"
                );
                for slot in [0, 1, old.slots - 1] {
                    assert_eq!(grown.slot_offset(slot), old.slot_offset(slot));
                }
                assert_eq!(grown.root_offset(3), old.root_offset(3));
                assert_eq!(grown.data_ring_offset(), old.data_ring_offset());
                let mut last = grown.slot_offset(grown.slots);
                for copy in 0..2 {
                    for page in grown.further_pages() {
                        let at = grown.page_offset(page, copy);
                        assert!(
                            at >= last && at >= old.size_bytes,
                            "page {page}, copy {copy}"
                        );
                        last = at + BLOCK_U64;
                    }
                    for page in 0..grown.region_pages() {
                        assert_eq!(grown.page_offset(page, copy), old.page_offset(page, copy));
                    }
                }
                assert!(last <= grown.super_offset(1));
                assert_eq!(grown.super_offset(1) + super_bytes(*to), *to);
                let mut w = Writer::new();
                grown.write(&mut w);
                let read = DeviceGeometry::read(&mut Reader::new(&w.0), grown.region_pages);
                assert_eq!(read.unwrap(), grown);
                old = grown;
            }
            let (end, none) = (old.size_bytes, None);
            for to in [0, end / 2, end, end + 4096, end + super_bytes(end) - 4096] {
                assert_eq!(old.grown_to(to), none, "{end} to {to}");
            }
        }
    }

    #[test]
    fn every_block_of_a_slot_has_one_use() {
        for (strip_blocks, slot_blocks) in [
            (1, 8),
            (1, 16),
            (4, 16),
            (16, 256),
            (16, 1024),
            (256, 4096),
            (5, 300),
        ] {
            let g = SegmentGeometry {
                k: 3,
                m: 2,
                strip_blocks,
                slot_blocks,
            };
            assert!(g.is_sound());
            let mut used = vec![0u8; slot_blocks as usize];
            used[0] += 1;
            for stripe in 0..g.stripes() {
                for block in 0..strip_blocks {
                    used[(g.strip_block(stripe) + block) as usize] += 1;
                }
            }
            for course in 0..g.courses() {
                for block in 0..g.summary_blocks(g.strips_in(course)) {
                    used[(g.summary_block(course) + block) as usize] += 1;
                }
            }
            assert!(
                used.iter().all(|n| *n <= 1),
                "strip {strip_blocks} slot {slot_blocks}"
            );
            let wasted = used.iter().filter(|n| **n == 0).count();
            assert!(wasted <= strip_blocks as usize + 2, "{wasted} wasted");
        }
    }
}
