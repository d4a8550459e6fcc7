//! The superblock: identity, geometry and membership. Each device has two, one at each end, written
//! alternately; the valid one with the higher write count is the device's word.
//!
//! Invariants: the member table is part of the hashed bytes; the digest key never changes; a
//! generation's number never goes back.

use crate::wire::{Reader, Writer, seal, unseal};
use crate::{BLOCK, DeviceGeometry, FormatError, VERSION};

/// What a superblock begins with.
pub const MAGIC: &[u8; 8] = b"ASHLAR01";
const CONTEXT: &[u8] = b"ashlar superblock";
/// Incompatible feature: rows of the member table say since which checkpoint a member is out of use, and records of
/// liveness in which one a segment was first sealed.
const RETURNING_MEMBERS: u32 = 1 << 6;
/// Incompatible feature: whoever uses the array renews a beat on its devices.
const BEAT: u32 = 1 << 9;
/// Incompatible feature: rows of the member table say which group a member belongs to, and the superblock K and M.
const ADDED_MEMBERS: u32 = 1 << 12;
/// Incompatible feature: the device has grown, and its superblock says how many pages of its slot table lie in the regions.
const GROWN_DEVICE: u32 = 1 << 13;
/// Incompatible feature: rows of the member table say since when a member is in its failure domain.
const MOVED_MEMBERS: u32 = 1 << 14;
/// The incompatible features of every array.
const EVERY_ARRAY: u32 = RETURNING_MEMBERS | ADDED_MEMBERS;
/// The incompatible features of arrays that are made now.
pub const NEW_ARRAY: u32 = EVERY_ARRAY | BEAT;
/// Incompatible feature bits this program knows.
pub const KNOWN_INCOMPATIBLE: u32 = NEW_ARRAY | GROWN_DEVICE | MOVED_MEMBERS;
/// Read-only compatible feature bits this program knows.
pub const KNOWN_READ_ONLY: u32 = 0;
/// Bytes of a member's entry.
const MEMBER_BYTES: usize = 96;
/// Where a member's entry says since when it is in its failure domain.
const DOMAIN_SINCE_AT: usize = MEMBER_BYTES - 8;
/// The group of a member that belongs to none.
const NO_GROUP: u16 = u16::MAX;
/// Where the identities of past generations stand.
const PAST_AT: usize = 1024;
/// How many identities of past generations there are at most.
pub const PAST_GENERATIONS: usize = 64;
/// Bytes before the member table.
const HEAD_BYTES: usize = PAST_AT + PAST_GENERATIONS * 16;
/// Where it says how many devices the generation before counted.
const BEFORE_AT: usize = PAST_AT - 2;
/// Where it says how many pages of the slot table lie in the regions of a device that has grown.
const REGION_PAGES_AT: usize = BEFORE_AT - 4;

/// A member's part in the array, as of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MemberState {
    /// Counted and in use.
    Online = 1,
    /// Not counted: failed, or missing at an import.
    Failed = 2,
    /// Not counted: taken out by the operator, expected back.
    Offline = 3,
    /// A hot spare: not counted.
    Spare = 4,
    /// Not counted: it was missing, or answered no more; expected back.
    Stale = 5,
    /// Counted and read, and taking nothing new: what lies on it moves to the others.
    Removing = 6,
    /// Not a member any more: its row only keeps the rows behind it in their places.
    Removed = 7,
}

impl MemberState {
    /// All of them, in the order of their bytes.
    const ALL: [MemberState; 7] = [
        MemberState::Online,
        MemberState::Failed,
        MemberState::Offline,
        MemberState::Spare,
        MemberState::Stale,
        MemberState::Removing,
        MemberState::Removed,
    ];

    fn from_byte(byte: u8) -> Result<MemberState, FormatError> {
        let mut states = MemberState::ALL.into_iter();
        states
            .find(|state| *state as u8 == byte)
            .ok_or(FormatError::Value)
    }
}

/// One row of the member table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberEntry {
    /// The device's identity.
    pub uuid: [u8; 16],
    /// Its slots.
    pub slots: u32,
    /// Its part.
    pub state: MemberState,
    /// Of one that is out of use: the last checkpoint whose root counted it; 0 if what it holds does not count.
    pub stale_since: u64,
    /// The independent group that it belongs to.
    pub group: Option<u16>,
    /// Epochs of the journal with a lower number do not know of it.
    pub first_epoch: u64,
    /// Failure domain label, at most 32 bytes.
    pub domain: String,
    /// Epochs of the journal with a lower number are not laid by this label; 0: it never had another.
    pub domain_since: u64,
}

/// A membership: a counter, a random identity, and the identities it follows.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Generation {
    /// Counts changes, from 1.
    pub number: u64,
    /// Random: two histories with the same number differ here.
    pub id: [u8; 16],
    /// The identities of those before it, newest first, at most [`PAST_GENERATIONS`]: a device whose own is
    /// not among them has another history.
    pub past: Vec<[u8; 16]>,
    /// How many devices that one counted: at least half as many must hold this one for it to take
    /// effect. 0 in the first.
    pub before: u16,
}

impl Generation {
    /// The identity of the generation before; `None` in the first.
    pub fn parent(&self) -> Option<[u8; 16]> {
        self.past.first().copied()
    }

    /// The generation that follows this one, which counts `counted` devices.
    pub fn next(&self, id: [u8; 16], counted: u16) -> Generation {
        let before = self.past.iter().copied();
        Generation {
            number: self.number + 1,
            id,
            past: [self.id]
                .into_iter()
                .chain(before)
                .take(PAST_GENERATIONS)
                .collect(),
            before: counted,
        }
    }
}

/// Everything a superblock says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Feature sets: compatible, read-only compatible, incompatible. Whether the device has grown its geometry says, and
    /// whether a member has moved to another failure domain the table.
    pub features: [u32; 3],
    /// The array.
    pub array: [u8; 16],
    /// Key of every keyed digest of the array.
    pub key: [u8; 32],
    /// This device.
    pub device: [u8; 16],
    /// This device's row in the member table.
    pub index: u16,
    /// Counts the writes of this superblock; the higher of two copies is the newer.
    pub writes: u64,
    /// The membership.
    pub generation: Generation,
    /// Where things lie on this device.
    pub geometry: DeviceGeometry,
    /// Name of the array, at most 64 bytes.
    pub name: String,
    /// Layout notation, at most 64 bytes.
    pub layout: String,
    /// Data and parity strips of a stripe, as the layout gave them when the array was made.
    pub shape: (u16, u16),
    /// Erasure code of new segments.
    pub code: u8,
    /// Blocks a strip of new data segments.
    pub strip_blocks: u32,
    /// Partitions of every volume.
    pub partitions: u16,
    /// Devices' worth of spare space.
    pub spare: u16,
    /// Data blocks that a record of liveness has a bit for.
    pub record_blocks: u32,
    /// Devices that hold roots.
    pub root_set: Vec<u16>,
    /// Every member.
    pub members: Vec<MemberEntry>,
}

/// Longest array name and layout notation.
pub const MAX_NAME: usize = 64;
/// The most data blocks that a segment has: 255 slots of 1 GiB.
pub const MAX_RECORD_BLOCKS: u32 = 256 << 18;
/// Longest domain label.
pub const MAX_DOMAIN: usize = 32;

impl MemberEntry {
    fn encode(&self) -> Vec<u8> {
        assert!(self.domain.len() <= MAX_DOMAIN, "nobody could read it");
        let mut row = Writer::new();
        row.bytes(&self.uuid)
            .u32(self.slots)
            .u8(self.state as u8)
            .u64(self.stale_since)
            .u16(self.group.unwrap_or(NO_GROUP))
            .u64(self.first_epoch)
            .string(&self.domain);
        let mut row = Writer(row.padded(DOMAIN_SINCE_AT));
        row.u64(self.domain_since);
        row.0
    }

    fn decode(bytes: &[u8], moved: bool) -> Result<MemberEntry, FormatError> {
        let mut row = Reader::new(bytes);
        let (uuid, slots) = (row.array()?, row.u32()?);
        let state = MemberState::from_byte(row.u8()?)?;
        let stale_since = row.u64()?;
        let (group, first_epoch) = (row.u16()?, row.u64()?);
        Ok(MemberEntry {
            uuid,
            slots,
            state,
            stale_since,
            group: (group != NO_GROUP).then_some(group),
            first_epoch,
            domain: row.string(MAX_DOMAIN)?,
            domain_since: match moved {
                true => Reader::new(&bytes[DOMAIN_SINCE_AT..]).u64()?,
                false => 0,
            },
        })
    }
}

impl Superblock {
    /// Whether whoever uses the array renews a beat: one made before there were beats has none.
    pub fn has_beat(&self) -> bool {
        self.features[2] & BEAT != 0
    }

    /// How many members a superblock area of so many bytes has room for.
    pub fn most_members(area: u64) -> usize {
        let room = usize::try_from(area).unwrap_or(usize::MAX);
        // The last block is the beat's.
        let rows = room.saturating_sub(BLOCK + HEAD_BYTES + 32) / MEMBER_BYTES;
        rows.min(u16::MAX.into())
    }

    /// The stored bytes: whole blocks.
    ///
    /// # Panics
    /// If names or tables exceed their places.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.bytes(MAGIC).u32(VERSION);
        let grown = match self.geometry.region_pages {
            Some(_) => GROWN_DEVICE,
            None => 0,
        };
        let [compatible, read_only, incompatible] = self.features;
        w.u32(compatible).u32(read_only);
        let moved = match self.members.iter().any(|m| m.domain_since > 0) {
            true => MOVED_MEMBERS,
            false => 0,
        };
        w.u32(incompatible & !(GROWN_DEVICE | MOVED_MEMBERS) | grown | moved);
        let size = (HEAD_BYTES + self.members.len() * MEMBER_BYTES + 32).next_multiple_of(BLOCK);
        w.u32(u32::try_from(size).expect("65,535 members take 6 MiB"));
        w.bytes(&self.array)
            .bytes(&self.key)
            .bytes(&self.device)
            .u16(self.index)
            .u64(self.writes);
        w.u64(self.generation.number).bytes(&self.generation.id);
        self.geometry.write(&mut w);
        w.string(&self.name).string(&self.layout);
        w.u16(self.shape.0).u16(self.shape.1);
        w.u8(self.code)
            .u32(self.strip_blocks)
            .u16(self.partitions)
            .u16(self.spare)
            .u32(self.record_blocks);
        w.u16(u16::try_from(self.root_set.len()).expect("a root set is small"));
        for index in &self.root_set {
            w.u16(*index);
        }
        w.u16(u16::try_from(self.members.len()).expect("at most 65,535 members"));
        let mut w = Writer(w.padded(REGION_PAGES_AT));
        w.u32(self.geometry.region_pages.unwrap_or(0));
        w.u16(self.generation.before);
        for id in &self.generation.past {
            w.bytes(id);
        }
        let mut w = Writer(w.padded(HEAD_BYTES));
        for member in &self.members {
            w.bytes(&member.encode());
        }
        let mut bytes = w.padded(size);
        seal(CONTEXT, &mut bytes);
        bytes
    }

    /// How many bytes a superblock has, from its first block; so that a reader knows what to read.
    pub fn encoded_bytes(first_block: &[u8]) -> Result<usize, FormatError> {
        let mut r = Reader::new(first_block);
        if r.array::<8>()? != *MAGIC {
            return Err(FormatError::Magic);
        }
        let _version_and_features = [r.u32()?, r.u32()?, r.u32()?, r.u32()?];
        let size = r.u32()? as usize;
        if !size.is_multiple_of(BLOCK) || !(BLOCK..=16 << 20).contains(&size) {
            return Err(FormatError::Value);
        }
        Ok(size)
    }

    /// The size of the device, from the first block of a superblock that may be damaged: where its other copy may lie.
    pub fn likely_size(first_block: &[u8]) -> Option<u64> {
        const SIZE_AT: usize = 8 + 5 * 4 + 16 + 32 + 16 + 2 + 8 + 8 + 16 + 4 * 8 + 4;
        Superblock::encoded_bytes(first_block).ok()?;
        let size = first_block.get(SIZE_AT..SIZE_AT + 8)?;
        Some(u64::from_le_bytes(size.try_into().ok()?))
    }

    /// Reads and checks all bytes of a superblock.
    pub fn decode(bytes: &[u8]) -> Result<Superblock, FormatError> {
        if Superblock::encoded_bytes(bytes)? != bytes.len() {
            return Err(FormatError::Value);
        }
        let mut r = Reader::new(unseal(CONTEXT, bytes)?);
        let mut table = r.clone();
        table.bytes(REGION_PAGES_AT)?;
        let region_pages = table.u32()?;
        let before = table.u16()?;
        let past = table.bytes(HEAD_BYTES - PAST_AT)?.chunks_exact(16);
        let past = past.take_while(|id| id.iter().any(|byte| *byte != 0));
        let past = past.map(|id| id.try_into().expect("16 bytes")).collect();
        r.bytes(8)?;
        // Behind the seal: a version nobody knows is a newer program's, not a flipped bit.
        let version = r.u32()?;
        if version != VERSION {
            return Err(FormatError::Version(version));
        }
        let features = [r.u32()?, r.u32()?, r.u32()?];
        check_features(features)?;
        let [grown, moved] = [GROWN_DEVICE, MOVED_MEMBERS].map(|bit| features[2] & bit != 0);
        r.u32()?;
        let (array, key, device) = (r.array()?, r.array()?, r.array()?);
        let (index, writes) = (r.u16()?, r.u64()?);
        let generation = Generation {
            number: r.u64()?,
            id: r.array()?,
            past,
            before,
        };
        let geometry = DeviceGeometry::read(&mut r, grown.then_some(region_pages))?;
        let (name, layout) = (r.string(MAX_NAME)?, r.string(MAX_NAME)?);
        let shape = (r.u16()?, r.u16()?);
        let (code, strip_blocks, partitions, spare) = (r.u8()?, r.u32()?, r.u16()?, r.u16()?);
        let record_blocks = r.u32()?;
        let root_devices = r.u16()?;
        if root_devices > 256 {
            return Err(FormatError::Value);
        }
        let root_set: Vec<u16> = (0..root_devices)
            .map(|_| r.u16())
            .collect::<Result<_, _>>()?;
        let count = r.u16()?;
        let mut members = Vec::new();
        for _ in 0..count {
            members.push(MemberEntry::decode(table.bytes(MEMBER_BYTES)?, moved)?);
        }
        let groups = members.iter().filter_map(|m| m.group).max();
        let width = u32::from(shape.0) + u32::from(shape.1);
        let sound = index < count
            && shape.0 > 0
            && width <= 256
            && groups.is_none_or(|group| group < count)
            && (1..=256).contains(&strip_blocks)
            && partitions > 0
            && (1..=MAX_RECORD_BLOCKS).contains(&record_blocks)
            && !root_set.is_empty()
            && root_set.iter().all(|i| *i < count)
            && members[usize::from(index)].uuid == device;
        if !sound {
            return Err(FormatError::Value);
        }
        Ok(Superblock {
            features: that_say_something(features, &members),
            array,
            key,
            device,
            index,
            writes,
            generation,
            geometry,
            name,
            layout,
            shape,
            code,
            strip_blocks,
            partitions,
            spare,
            record_blocks,
            root_set,
            members,
        })
    }
}

/// These features, without one that says nothing of these members.
fn that_say_something(mut features: [u32; 3], members: &[MemberEntry]) -> [u32; 3] {
    if members.iter().all(|m| m.domain_since == 0) {
        features[2] &= !MOVED_MEMBERS;
    }
    features
}

/// Whether this program may use an array with these features.
fn check_features(features: [u32; 3]) -> Result<(), FormatError> {
    // A newer writer's read-only compatible features would allow reading; importing writes.
    for (set, known) in [(2, KNOWN_INCOMPATIBLE), (1, KNOWN_READ_ONLY)] {
        if features[set] & !known != 0 {
            return Err(FormatError::Unsupported(features[set]));
        }
    }
    match features[2] & EVERY_ARRAY {
        EVERY_ARRAY => Ok(()),
        _ => Err(FormatError::Unsupported(0)), // an earlier proposal of this format
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_damaged_one_says_how_large_its_device_is() {
        let superblock = sample(3);
        let mut bytes = superblock.encode();
        let size = Some(superblock.geometry.size_bytes);
        assert_eq!(Superblock::likely_size(&bytes), size);
        bytes[1000] ^= 1;
        assert!(Superblock::decode(&bytes).is_err());
        assert_eq!(Superblock::likely_size(&bytes), size);
        bytes[0] ^= 1;
        assert_eq!(Superblock::likely_size(&bytes), None);
    }

    pub(crate) fn sample(members: u16) -> Superblock {
        Superblock {
            features: [0, 0, NEW_ARRAY],
            array: [1; 16],
            key: [2; 32],
            device: [3; 16],
            index: 0,
            writes: 9,
            generation: Generation {
                number: 4,
                id: [5; 16],
                past: vec![[6; 16], [7; 16]],
                before: 0x0203,
            },
            geometry: DeviceGeometry::lay_out(64 << 20, 64 << 10, (1 << 20, 1 << 20), 8).unwrap(),
            name: "tank".into(),
            layout: "ec8+3".into(),
            shape: (8, 3),
            code: 0,
            strip_blocks: 16,
            partitions: 64,
            spare: 1,
            record_blocks: 128,
            root_set: vec![0, 1],
            members: (0..members)
                .map(|_| MemberEntry {
                    uuid: [3; 16],
                    slots: 1000,
                    state: MemberState::Online,
                    stale_since: 77,
                    group: (members > 2).then_some(1),
                    first_epoch: 5,
                    domain: "rack-1".into(),
                    domain_since: 0,
                })
                .collect(),
        }
    }

    #[test]
    fn a_superblock_survives_its_bytes_and_refuses_others() {
        for members in [2, 60, 1000] {
            let block = sample(members);
            let bytes = block.encode();
            assert_eq!(Superblock::encoded_bytes(&bytes).unwrap(), bytes.len());
            assert_eq!(Superblock::decode(&bytes).unwrap(), block);
            assert_eq!(bytes[1022..1024], [3, 2], "as docs/format.md says");
            for at in [0, 8, 40, 700, 1022, 1030, 2100, bytes.len() - 1] {
                let mut torn = bytes.clone();
                torn[at] ^= 0x40;
                assert!(Superblock::decode(&torn).is_err(), "byte {at}");
            }
        }
        let mut newer = sample(2).encode();
        newer[8] = 3;
        assert_eq!(
            Superblock::decode(&newer),
            Err(FormatError::Digest),
            "a flipped bit"
        );
        seal(CONTEXT, &mut newer);
        assert_eq!(Superblock::decode(&newer), Err(FormatError::Version(3)));
    }

    /// A program that does not know of devices that have grown refuses one, and takes the others.
    #[test]
    fn a_device_that_has_grown_says_so() {
        let mut block = sample(2);
        block.geometry = block.geometry.grown_to(96 << 20).unwrap();
        let bytes = block.encode();
        assert_eq!(bytes[20..24], (NEW_ARRAY | 1 << 13).to_le_bytes());
        assert_eq!(
            bytes[1018..1022],
            8_u32.to_le_bytes(),
            "as docs/format.md says"
        );
        let read = Superblock::decode(&bytes).unwrap();
        assert_eq!(
            (read.geometry, read.features[2]),
            (block.geometry, NEW_ARRAY | 1 << 13)
        );
        let other = Superblock {
            geometry: sample(2).geometry,
            ..read
        };
        assert_eq!(other.encode(), sample(2).encode());
    }

    /// So does the superblock of an array of which a member has another failure domain than it had.
    #[test]
    fn a_member_in_another_domain_is_told() {
        let mut block = sample(3);
        block.members[1].domain = "x".repeat(MAX_DOMAIN);
        block.members[1].domain_since = 0x0102;
        let bytes = block.encode();
        let row = HEAD_BYTES + MEMBER_BYTES;
        assert_eq!(
            bytes[row + 88..row + 91],
            [2, 1, 0],
            "as docs/format.md says"
        );
        let read = Superblock::decode(&bytes).unwrap();
        assert_eq!(read.members, block.members);
        assert_eq!(read.features[2], NEW_ARRAY | 1 << 14);
    }

    #[test]
    fn an_area_has_room_for_so_many_members() {
        for area in [64 << 10, 1 << 20, 8 << 20] {
            let most = Superblock::most_members(area);
            let bytes = |members| sample(members).encode().len() as u64;
            let (full, room) = (u16::try_from(most).unwrap(), area - BLOCK as u64);
            assert!(bytes(full) <= room, "{most} in {area}");
            assert!(
                full == u16::MAX || bytes(full + 1) > room,
                "{most} in {area}"
            );
        }
        assert_eq!(Superblock::most_members(64 << 10), 618);
    }

    #[test]
    fn an_array_of_an_earlier_proposal_is_not_guessed_at() {
        let mut old = sample(2);
        old.features[2] = RETURNING_MEMBERS;
        let refused = Superblock::decode(&old.encode());
        assert_eq!(refused, Err(FormatError::Unsupported(0)));
    }

    #[test]
    fn a_generation_knows_those_before_it() {
        let mut now = sample(2).generation;
        for byte in 10..200 {
            let next = now.next([byte; 16], 5);
            assert_eq!((next.number, next.parent()), (now.number + 1, Some(now.id)));
            assert!(next.past.len() <= PAST_GENERATIONS);
            let mut block = sample(2);
            block.generation = next.clone();
            assert_eq!(Superblock::decode(&block.encode()).unwrap(), block);
            now = next;
        }
        assert_eq!(now.past.last(), Some(&[135; 16]), "64 before 199");
    }
}
