//! Superblocks: what a device says that it is, and where things lie on it.
//!
//! **Invariants**: a geometry that was accepted has all its regions inside the device and apart from each
//! other, so that offsets made from it never overflow; the member table has the device's own row.

use crate::digest::unseal;
use crate::source::Source;
use crate::wire::{BLOCK, BLOCK_BYTES, Fields};

const MAGIC: &[u8; 8] = b"ASHLAR01";
const CONTEXT: &[u8] = b"ashlar superblock";
/// The only version of the format.
const VERSION: u32 = 2;
/// Read-only compatible and incompatible features of every array, as one number: rows of the member table say since when
/// a member is out of use and which group it belongs to, and records of liveness when a segment was sealed.
const FEATURES: u64 = (1 << 6 | 1 << 12) << 32;
/// The feature of an array whose user renews a beat, which says nothing of what the array holds.
const BEAT: u64 = 1 << 9 << 32;
/// The feature of a device that has grown.
const GROWN: u64 = 1 << 13 << 32;
/// The feature of an array of which a member has another failure domain than it had.
const MOVED: u64 = 1 << 14 << 32;
/// Bytes between the two copies of the pages of a slot table that lie at the end of a device.
const APART: u64 = 1 << 20;
/// Entries of a slot table page.
pub(crate) const PAGE_ENTRIES: u32 = 124;
/// Bytes of a root entry.
pub(crate) const ROOT_BYTES: u64 = 16_384;
/// Root entries of a device.
pub(crate) const ROOTS: u64 = 4;

/// Why a superblock does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It cannot be read.
    Unreadable,
    /// There is none.
    Nothing,
    /// Another format version, or a feature that is not known.
    Foreign,
    /// Its seal is wrong.
    Seal,
    /// A value is out of bounds.
    Value,
}

/// Where the regions of a device lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) area: u64,
    /// Bytes of the delta ring and of the data ring.
    pub(crate) rings: [u64; 2],
    pub(crate) slot_bytes: u64,
    pub(crate) slots: u32,
    pub(crate) size: u64,
    /// Of a device that has grown, pages of the slot table that lie in the regions.
    pub(crate) inner_pages: Option<u32>,
}

impl Geometry {
    /// How many pages of the slot table lie in the regions.
    fn inner(&self) -> u32 {
        self.inner_pages.unwrap_or(self.pages())
    }

    /// Bytes of each copy of the pages at the end.
    fn outer_bytes(&self) -> u64 {
        u64::from(self.pages() - self.inner()) * BLOCK_BYTES
    }

    /// Where the second superblock lies.
    pub(crate) fn second(&self) -> Option<u64> {
        self.size.checked_sub(area_of(self.size))
    }

    /// Where the pages at the end begin, in copy 0 or 1.
    fn outer(&self, copy: u32) -> Option<u64> {
        let outer = self.outer_bytes();
        let second = self.second()?.checked_sub(outer)?;
        match copy {
            0 if outer > 0 => second.checked_sub(APART)?.checked_sub(outer),
            _ => Some(second),
        }
    }

    /// Where copy 0 or 1 of the region of roots and slot table begins.
    fn region(&self, copy: u32) -> u64 {
        if copy == 0 {
            self.area
        } else {
            self.ring(1) + self.rings[1]
        }
    }

    pub(crate) fn root(&self, entry: u64) -> u64 {
        let entry = entry % ROOTS;
        self.region(u32::from(entry % 2 == 1)) + ROOT_BYTES * (entry / 2)
    }

    pub(crate) fn pages(&self) -> u32 {
        self.slots.div_ceil(PAGE_ENTRIES)
    }

    pub(crate) fn page(&self, page: u32, copy: u32) -> u64 {
        if page >= self.inner() {
            let first = self.outer(copy).unwrap_or(0); // a sound geometry has it
            return first + BLOCK_BYTES * u64::from(page - self.inner());
        }
        self.region(copy) + ROOTS / 2 * ROOT_BYTES + BLOCK_BYTES * u64::from(page)
    }

    /// Where the pages end that lie in copy 0 or 1 of the region.
    fn pages_end(&self, copy: u32) -> u64 {
        let inner = BLOCK_BYTES * u64::from(self.inner());
        self.region(copy) + ROOTS / 2 * ROOT_BYTES + inner
    }

    /// Where ring 0 (delta) or 1 (data) begins.
    pub(crate) fn ring(&self, ring: usize) -> u64 {
        let first = self.pages_end(0);
        if ring == 0 {
            first
        } else {
            first + self.rings[0]
        }
    }

    pub(crate) fn slot(&self, slot: u32) -> u64 {
        let align = self.slot_bytes.min(1 << 20);
        let first = self.pages_end(1).next_multiple_of(align);
        first + u64::from(slot) * self.slot_bytes
    }

    pub(crate) fn slot_blocks(&self) -> u32 {
        u32::try_from(self.slot_bytes / BLOCK_BYTES).unwrap_or(0)
    }

    fn is_sound(&self) -> bool {
        let whole = [self.area, self.rings[0], self.rings[1], self.size];
        self.slot_bytes.is_power_of_two()
            && (32 << 10..=1 << 30).contains(&self.slot_bytes)
            && (1..=1 << 24).contains(&self.slots)
            && whole
                .iter()
                .all(|n| *n > 0 && n.is_multiple_of(BLOCK_BYTES))
            && self.area <= area_of(self.size)
            && self
                .inner_pages
                .is_none_or(|inner| (1..=self.pages()).contains(&inner))
            && self.rings.iter().all(|ring| *ring <= 1 << 40)
            && self.size <= 1 << 60
            && self
                .outer(0)
                .is_some_and(|end| self.slot(self.slots) <= end)
    }
}

/// Bytes of a superblock area of a device of `size` bytes.
pub(crate) fn area_of(size: u64) -> u64 {
    match size {
        0..0x4000_0000 => 64 << 10,
        0x4000_0000..0x4_0000_0000 => 1 << 20,
        _ => 8 << 20,
    }
}

/// A row of the member table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) uuid: [u8; 16],
    pub(crate) slots: u32,
    pub(crate) online: bool,
    /// It is a hot spare: it holds nothing until another is lost.
    pub(crate) spare: bool,
    /// It is counted, and is to leave: new epochs of the journal leave it out.
    pub(crate) leaves: bool,
    /// Its independent group.
    pub(crate) group: Option<u16>,
}

/// What a superblock says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) array: [u8; 16],
    pub(crate) key: [u8; 32],
    pub(crate) device: [u8; 16],
    pub(crate) index: u16,
    pub(crate) writes: u64,
    pub(crate) generation: u64,
    pub(crate) identity: [u8; 16],
    pub(crate) parent: [u8; 16],
    /// Devices that the generation before counted.
    pub(crate) before: u16,
    pub(crate) geometry: Geometry,
    pub(crate) name: String,
    /// How many devices may be lost with every segment readable, at most: M of each group.
    pub(crate) most_lost: u16,
    pub(crate) partitions: u16,
    /// Data blocks that a record of liveness has a bit for.
    pub(crate) record_blocks: u32,
    pub(crate) root_set: Vec<u16>,
    pub(crate) members: Vec<Member>,
}

impl Superblock {
    /// The copy at `offset`, which has `area` bytes of room.
    pub(crate) fn read(source: &dyn Source, offset: u64, area: u64) -> Result<Superblock, Refused> {
        let mut bytes = vec![0; BLOCK];
        source
            .read(offset, &mut bytes)
            .map_err(|_| Refused::Unreadable)?;
        let mut head = Fields(&bytes);
        if head.take(8) != Some(MAGIC) {
            return Err(Refused::Nothing);
        }
        if head.u32() != Some(VERSION) {
            return Err(Refused::Foreign);
        }
        head.take(12);
        let length = head.u32().unwrap_or(0) as usize;
        if length == 0 || !length.is_multiple_of(BLOCK) || length as u64 > area.min(16 << 20) {
            return Err(Refused::Value);
        }
        bytes.resize(length, 0);
        source
            .read(offset, &mut bytes)
            .map_err(|_| Refused::Unreadable)?;
        let body = unseal(CONTEXT, &bytes).ok_or(Refused::Seal)?;
        let features = Fields(body.get(16..24).unwrap_or(&[])).u64();
        let known = features.map(|features| features & !(MOVED | BEAT)); // MOVED is about the journal, of what may be missing
        let grown = known == Some(FEATURES | GROWN);
        let superblock = Superblock::parse(body, grown).ok_or(Refused::Value)?;
        // Read-only compatible ones none, and of the others those that this program knows.
        if !grown && known != Some(FEATURES) {
            return Err(Refused::Foreign);
        }
        Ok(superblock)
    }

    fn parse(body: &[u8], grown: bool) -> Option<Superblock> {
        let mut f = Fields(body);
        f.take(28)?;
        let inner_pages = Fields(body.get(1018..)?).u32()?;
        let (array, key, device) = (f.array()?, f.array()?, f.array()?);
        let (index, writes) = (f.u16()?, f.u64()?);
        let (generation, identity) = (f.u64()?, f.array()?);
        let geometry = Geometry {
            area: f.u64()?,
            rings: [f.u64()?, f.u64()?],
            slot_bytes: f.u64()?,
            slots: f.u32()?,
            size: f.u64()?,
            inner_pages: grown.then_some(inner_pages),
        };
        let (name, _layout) = (f.string(64)?, f.string(64)?);
        let (k, m) = (f.u16()?, f.u16()?);
        let (_code, strip, partitions, _spare) = (f.u8()?, f.u32()?, f.u16()?, f.u16()?);
        let record_blocks = f.u32()?;
        let count = f.u16()?;
        let root_set: Vec<u16> = (0..count).map(|_| f.u16()).collect::<Option<_>>()?;
        let count = f.u16()?;
        let mut table = Fields(body.get(1022..)?);
        let before = table.u16()?;
        // Identities of past generations; zeros where there was none.
        let parent = table.array()?;
        table.take(1024 - 16)?;
        let members: Vec<Member> = (0..count)
            .map(|_| member(table.take(96)?))
            .collect::<Option<_>>()?;
        let own = members.get(usize::from(index))?;
        let groups = members.iter().filter_map(|row| row.group).max();
        let groups = groups.map_or(0, |last| u32::from(last) + 1);
        let most_lost = u16::try_from(groups * u32::from(m)).ok()?;
        let sound = geometry.is_sound()
            && k > 0
            && u32::from(k) + u32::from(m) <= 256
            && groups <= u32::from(count)
            && (1..=256).contains(&strip)
            && partitions > 0
            && (1..=256 << 18).contains(&record_blocks)
            && (1..=256).contains(&root_set.len())
            && root_set.iter().all(|i| *i < count)
            && own.uuid == device;
        sound.then_some(Superblock {
            array,
            key,
            device,
            index,
            writes,
            generation,
            identity,
            parent,
            before,
            geometry,
            name,
            most_lost,
            partitions,
            record_blocks,
            root_set,
            members,
        })
    }

    /// Indexes of the members that new epochs of the journal lie on.
    pub(crate) fn journalling(&self) -> impl Iterator<Item = u16> + '_ {
        let leaves = |index: &u16| self.members[usize::from(*index)].leaves;
        self.counted().filter(move |index| !leaves(index))
    }

    /// Indexes of the members that this generation counts.
    pub(crate) fn counted(&self) -> impl Iterator<Item = u16> + '_ {
        let rows = (0u16..).zip(&self.members);
        rows.filter(|(_, member)| member.online)
            .map(|(index, _)| index)
    }
}

fn member(row: &[u8]) -> Option<Member> {
    let mut f = Fields(row);
    let (uuid, slots, state) = (f.array()?, f.u32()?, f.u8()?);
    f.u64()?; // stale since: of one that is not in use
    let group = f.u16()?;
    f.u64()?; // its first epoch: records say which devices they lie on
    f.string(32)?;
    (1..=7).contains(&state).then_some(Member {
        uuid,
        slots,
        online: [1, 6].contains(&state),
        spare: state == 4,
        leaves: state == 6,
        group: (group != u16::MAX && state != 7).then_some(group),
    })
}
