//! The setup that unit tests of the lower folders share: members in memory with a table of segments, and no array.

use std::rc::Rc;

use ashlar_device::MemDevice;
use ashlar_digest::Kind;
use ashlar_format::geometry::DeviceGeometry;
use ashlar_format::slot::SegmentKind;
use ashlar_format::summary::Owner;
use ashlar_format::superblock::MemberState;
use ashlar_format::{BLOCK, SegmentGeometry};
use ashlar_rt::{Buf, Rt, Slice};

use crate::members::Member;
use crate::members::beat::Beat;
use crate::segment::coder::Accelerators;
use crate::segment::table::Core;
use crate::segment::{Column, Pinned, Segment};

/// Bytes of a slot.
const SLOT_BYTES: u64 = 64 << 10;
/// Bytes of each ring of the journal.
pub const RING_BYTES: u64 = 64 << 10;

/// Members on devices in memory.
pub struct Bed {
    /// The runtime, in virtual time.
    pub rt: Rt,
    /// The devices.
    pub disks: Vec<Rc<MemDevice>>,
    /// Members and segments.
    pub core: Rc<Core>,
}

/// So many members of 1 MiB each.
pub fn bed(devices: u16) -> Bed {
    let rt = Rt::simulated(1);
    let disk = |d| Rc::new(MemDevice::new(&format!("mem{d}"), 1 << 20));
    let disks: Vec<Rc<MemDevice>> = (0..devices).map(disk).collect();
    let rings = (RING_BYTES, RING_BYTES);
    let geometry = DeviceGeometry::lay_out(1 << 20, SLOT_BYTES, rings, 4).expect("it fits");
    let member = |(disk, index): (&Rc<MemDevice>, u16)| {
        let (uuid, domain) = ([index as u8; 16], format!("{index}"));
        let device = Some(disk.clone() as ashlar_device::DeviceRef);
        Member::new(
            &rt,
            index,
            uuid,
            domain,
            geometry,
            device,
            MemberState::Online,
        )
    };
    let members = disks.iter().zip(0..).map(member).collect();
    let slot_blocks = u32::try_from(SLOT_BYTES).expect("small") / 4096;
    let none = Accelerators::default();
    let core = Core::new(
        &rt,
        [7; 16],
        [9; 32],
        slot_blocks,
        members,
        &none,
        &Beat::new(&rt, None),
    );
    Bed { rt, disks, core }
}

impl Bed {
    /// A segment of `k` and `m`, each column in the lowest free slot of the device of its number.
    pub fn segment(&self, number: u64, k: u16, m: u16) -> Pinned {
        let geometry = SegmentGeometry {
            k,
            m,
            strip_blocks: 2,
            slot_blocks: self.core.slot_blocks,
        };
        let columns = vec![Column::MISSING; geometry.width()];
        let segment = Segment::create(number, SegmentKind::Data, geometry, 1, columns, 0);
        for index in 0..k + m {
            let entry = segment.slot_entry(index, 1);
            let slot = self
                .core
                .member(index)
                .slots
                .take(entry)
                .expect("there is one");
            let column = Column {
                device: index,
                slot,
                version: 1,
            };
            segment.columns.borrow_mut()[usize::from(index)] = column;
        }
        self.core.add_segment(&segment);
        segment
    }
}

/// Data blocks that are all different, with owners and digests as a volume's.
pub fn blocks(core: &Core, count: u32, seed: u8) -> (Slice, Vec<(Owner, [u8; 16])>) {
    let mut data = Buf::zeroed(count as usize * BLOCK);
    let mut owners = Vec::new();
    for (at, block) in (0u64..).zip(data.chunks_mut(BLOCK)) {
        block.fill(seed ^ at as u8);
        block[..8].copy_from_slice(&at.to_le_bytes());
        let owner = Owner {
            tree: 16,
            algorithm: Kind::Blake3.tag(),
            address: at,
            ..Owner::default()
        };
        owners.push((
            owner,
            core.identity.block_digest(Kind::Blake3, 16, at, block),
        ));
    }
    (data.freeze(), owners)
}
