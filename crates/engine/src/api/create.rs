//! Creation of an array: checks the options, lays out the devices, writes an empty array.
//!
//! Invariants: superblocks are written last, after roots, tables and rings are cleared, so that what was
//! there before is never taken for this array's.

use std::cell::Cell;
use std::rc::Rc;

use ashlar_codec::{Code, CodeKind};
use ashlar_device::DeviceRef;
use ashlar_format::catalog::Catalog;
use ashlar_format::geometry::{DeviceGeometry, ROOT_BYTES, ROOT_COUNT, default_slot_bytes};
use ashlar_format::liveness::RecordShape;
use ashlar_format::root::{Epoch, RingPosition, Root, TreeRoot};
use ashlar_format::slot::{ENTRIES_PER_PAGE, TablePage};
use ashlar_format::superblock::{Generation, MemberEntry, MemberState, NEW_ARRAY, Superblock};
use ashlar_format::{BLOCK, BLOCK_U64};
use ashlar_layout::{Layout, Shape};
use ashlar_rt::{Buf, Rt};
use ashlar_space::domains::Domains;
use ashlar_space::topology::{Member as Site, Topology};
use ashlar_space::usable::usable_whole;

use crate::api::array::Array;
use crate::error::Error;
use crate::home::addition::check_rows;
use crate::home::space::topology_of;
use crate::home::{FIRST_VOLUME, Home, HomeParts};
use crate::journal::Journal;
use crate::map::system::SysTree;
use crate::members::Member;
use crate::members::beat::Beat;
use crate::members::quorum::choose_root_set;
use crate::options::{Settings, check_domain, check_name};
use crate::segment::table::Core;
use crate::shard::start::start_shards;
use crate::space::geometry::{DEFAULT_CLEAN_RESERVE, Sizes, geometry, slot_blocks};

/// Nodes of the catalog of an array without volumes.
const EMPTY_CATALOG: u32 = 4;

/// The least slots of a device.
const LEAST_SLOTS: u32 = 16;

/// What to create.
#[derive(Debug, Clone)]
pub struct Create {
    /// The array's name.
    pub name: String,
    /// Its layout.
    pub layout: Layout,
    /// Bytes of a strip; `None`: 64 KiB up to K = 16, then less.
    pub strip_bytes: Option<u32>,
    /// Bytes of a slot; `None`: from the smallest device.
    pub slot_bytes: Option<u64>,
    /// Devices' worth of spare space.
    pub spare: u16,
    /// Failure domain of each device, or empty.
    pub domains: Vec<String>,
    /// How it runs.
    pub settings: Settings,
}

/// The strip that a layout gets if none is asked for: 64 KiB up to K = 16, then K x strip about 1 MiB.
pub fn default_strip_bytes(k: u16) -> u32 {
    if k <= 16 {
        64 << 10
    } else {
        ((1 << 20) / u32::from(k))
            .next_power_of_two()
            .clamp(4 << 10, 64 << 10)
    }
}

/// What creating would give: the sizes that `create -n` prints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Bytes of a slot.
    pub slot_bytes: u64,
    /// Bytes of a strip.
    pub strip_bytes: u32,
    /// Bytes of all devices.
    pub raw_bytes: u64,
    /// Bytes that a volume may be promised.
    pub usable_bytes: u64,
    /// Geometry of each device.
    pub devices: Vec<DeviceGeometry>,
}

/// Checks what is asked and lays the devices out.
pub fn plan(sizes: &[u64], options: &Create) -> Result<Plan, Error> {
    check_name(&options.name)?;
    options.domains.iter().try_for_each(|d| check_domain(d))?;
    let shape = options.layout.resolve_with_spare(
        u16::try_from(sizes.len()).unwrap_or(u16::MAX),
        options.spare,
    )?;
    Code::new(
        CodeKind::IsalCauchy,
        usize::from(shape.k),
        usize::from(shape.m),
    )
    .map_err(|_| Error::Size {
        what: "a stripe width",
        value: u64::from(shape.width()),
        must: "at most 256",
    })?;
    let smallest = sizes.iter().copied().min().unwrap_or(0);
    let slot_bytes = options
        .slot_bytes
        .unwrap_or_else(|| default_slot_bytes(smallest));
    if !slot_bytes.is_power_of_two() || !(32 << 10..=1 << 30).contains(&slot_bytes) {
        return Err(Error::Size {
            what: "a slot",
            value: slot_bytes,
            must: "a power of two, 32K to 1G",
        });
    }
    let mut strip_bytes = options
        .strip_bytes
        .unwrap_or_else(|| default_strip_bytes(shape.k));
    if !strip_bytes.is_power_of_two() || !(4 << 10..=1 << 20).contains(&strip_bytes) {
        return Err(Error::Size {
            what: "a strip",
            value: u64::from(strip_bytes),
            must: "a power of two, 4K to 1M",
        });
    }
    if options.strip_bytes.is_none() {
        // At least a dozen stripes a segment.
        while strip_bytes > 4096 && u64::from(strip_bytes) * 12 > slot_bytes {
            strip_bytes /= 2;
        }
    }
    if u64::from(strip_bytes) * 3 > slot_bytes {
        return Err(Error::Size {
            what: "a strip",
            value: u64::from(strip_bytes),
            must: "at most a third of a slot",
        });
    }
    let laid = |sizes: &[u64]| {
        let laid = lay_out(sizes, options, &shape, (slot_bytes, strip_bytes));
        laid.filter(|(_, usable)| *usable > 0)
    };
    let (devices, usable) = laid(sizes).ok_or_else(|| Error::TooSmall {
        device: sizes.iter().position(|s| *s == smallest).unwrap_or(0),
        have: smallest,
        need: least_size(sizes, slot_bytes, |sizes| laid(sizes).is_some()),
    })?;
    check_rows(&devices, sizes.len())?;
    Ok(Plan {
        usable_bytes: usable * BLOCK_U64,
        slot_bytes,
        strip_bytes,
        raw_bytes: sizes.iter().sum(),
        devices,
    })
}

/// The layout of devices of these sizes with such slots and strips, and the blocks that one volume may be promised on
/// them; `None`: one of them has too few slots.
fn lay_out(
    sizes: &[u64],
    options: &Create,
    shape: &Shape,
    (slot_bytes, strip_bytes): (u64, u32),
) -> Option<(Vec<DeviceGeometry>, u64)> {
    let smallest = sizes.iter().copied().min().unwrap_or(0);
    let ring = (smallest / 64).clamp(256 << 10, 64 << 20) / BLOCK_U64 * BLOCK_U64;
    let (mut devices, mut members) = (Vec::new(), Vec::new());
    for size in sizes {
        let geometry = DeviceGeometry::lay_out(*size, slot_bytes, (ring, ring), LEAST_SLOTS)?;
        members.push(Site::in_use(geometry.slots));
        devices.push(geometry);
    }
    let labels = options.domains.iter().map(String::as_str);
    let topology = Topology::new(members, shape.clone(), Domains::new(labels));
    let sizes_of = Sizes {
        strip_blocks: strip_bytes / BLOCK as u32,
        slot_blocks: slot_blocks(slot_bytes),
        least_data: 1,
        clean_reserve: DEFAULT_CLEAN_RESERVE,
        catalog_nodes: EMPTY_CATALOG,
        volumes: 1,
        partitions: partitions(options, sizes.iter().sum()),
    };
    let usable = usable_whole(&topology, &geometry(&topology, &sizes_of));
    Some((devices, usable))
}

/// The size that each device needs at least so that the array `holds_one` volume, to a slot.
fn least_size(sizes: &[u64], slot_bytes: u64, holds_one: impl Fn(&[u64]) -> bool) -> u64 {
    let enough = |least: u64| {
        let raised: Vec<u64> = sizes.iter().map(|size| (*size).max(least)).collect();
        holds_one(&raised)
    };
    let (mut short, mut need) = (0, slot_bytes * u64::from(LEAST_SLOTS));
    while !enough(need) && need < 1 << 50 {
        (short, need) = (need, need * 2);
    }
    while need - short > slot_bytes {
        let middle = short + (need - short) / 2;
        if enough(middle) {
            need = middle;
        } else {
            short = middle;
        }
    }
    need.next_multiple_of(BLOCK_U64)
}

/// Partitions of every volume: 64, fewer in tiny arrays, or as many as are asked for.
fn partitions(options: &Create, raw_bytes: u64) -> u16 {
    let default = if raw_bytes < 4 << 30 { 8 } else { 64 };
    options.settings.partitions.unwrap_or(default).max(1)
}

fn new_superblock(rt: &Rt, options: &Create, plan: &Plan, shape: &Shape) -> Superblock {
    let groups = |index: usize| {
        let at = |group: &Vec<u16>| group.iter().any(|d| usize::from(*d) == index);
        let group = shape.groups.iter().position(at);
        group.and_then(|group| u16::try_from(group).ok())
    };
    let members: Vec<MemberEntry> = (0..plan.devices.len())
        .map(|index| MemberEntry {
            uuid: rt.random_bytes(),
            slots: plan.devices[index].slots,
            state: MemberState::Online,
            stale_since: 0,
            group: groups(index),
            first_epoch: 1,
            domain_since: 0,
            domain: options.domains.get(index).cloned().unwrap_or_default(),
        })
        .collect();
    let all: Vec<u16> = (0..u16::try_from(members.len()).expect("checked by the layout")).collect();
    let domains = Domains::new(members.iter().map(|m| m.domain.as_str()));
    Superblock {
        features: [0, 0, NEW_ARRAY],
        array: rt.random_bytes(),
        key: rt.random_bytes(),
        device: members[0].uuid,
        index: 0,
        writes: 0,
        generation: Generation {
            number: 1,
            id: rt.random_bytes(),
            past: Vec::new(),
            before: 0,
        },
        geometry: plan.devices[0],
        name: options.name.clone(),
        layout: options.layout.to_string(),
        shape: (shape.k, shape.m),
        code: CodeKind::IsalCauchy.tag(),
        strip_blocks: plan.strip_bytes / BLOCK as u32,
        partitions: partitions(options, plan.raw_bytes),
        spare: shape.spare,
        record_blocks: RecordShape::data_blocks(slot_blocks(plan.slot_bytes), shape.k),
        root_set: choose_root_set(&all, shape.most_lost(), &domains),
        members,
    }
}

/// Clears a member's roots and slot table.
async fn clear_member(member: &Member, array: &[u8; 16]) -> Result<(), ashlar_device::Fault> {
    let geometry = member.geometry();
    let nothing = Buf::zeroed(usize::try_from(ROOT_BYTES).expect("16 KiB")).freeze();
    for entry in 0..ROOT_COUNT {
        let offset = geometry.root_offset(entry);
        member.write(offset, vec![nothing.clone()]).await?;
    }
    for page in 0..geometry.table_pages() {
        let count = (geometry.slots - page * ENTRIES_PER_PAGE).min(ENTRIES_PER_PAGE);
        let table = TablePage {
            page,
            checkpoint: 0,
            entries: vec![None; count as usize],
        };
        let empty = Buf::copy_of(&table.encode(array, member.index));
        for (copy, bytes) in [(0, empty), (1, Buf::zeroed(BLOCK))] {
            let offset = geometry.page_offset(page, copy);
            member.write(offset, vec![bytes.freeze()]).await?;
        }
    }
    for ring in [geometry.delta_ring_offset(), geometry.data_ring_offset()] {
        member
            .write(ring, vec![Buf::zeroed(BLOCK).freeze()])
            .await?;
    }
    member.flush().await
}

fn members_of(
    rt: &Rt,
    devices: Vec<DeviceRef>,
    plan: &Plan,
    superblock: &Superblock,
) -> Vec<Member> {
    let places = plan.devices.iter().zip(&superblock.members).zip(0u16..);
    let member = |(device, ((geometry, entry), index)): (
        DeviceRef,
        ((&DeviceGeometry, &MemberEntry), u16),
    )| {
        let mut member = Member::new(
            rt,
            index,
            entry.uuid,
            entry.domain.clone(),
            *geometry,
            Some(device),
            MemberState::Online,
        );
        member.group = entry.group;
        member
    };
    devices.into_iter().zip(places).map(member).collect()
}

/// The root of an array that holds nothing.
fn first_root(superblock: &Superblock, epoch: &Epoch) -> Root {
    Root {
        generation: superblock.generation.number,
        generation_id: superblock.generation.id,
        number: 0,
        checkpoint: 0,
        clean: false,
        next_segment: 1,
        next_tree: FIRST_VOLUME,
        cut: 1,
        imaged: 1,
        delta_tail: RingPosition::default(),
        data_tail: RingPosition::default(),
        epochs: vec![epoch.clone()],
        catalog: TreeRoot::default(),
        liveness: TreeRoot::default(),
        forwarding: TreeRoot::default(),
        dead: TreeRoot::default(),
    }
}

impl Array {
    /// Creates an array on these devices and opens it. What was on them is lost.
    pub async fn create(rt: &Rt, devices: Vec<DeviceRef>, options: Create) -> Result<Array, Error> {
        let sizes: Vec<u64> = devices.iter().map(|d| d.info().size_bytes).collect();
        let plan = plan(&sizes, &options)?;
        let shape = options
            .layout
            .resolve_with_spare(u16::try_from(sizes.len()).expect("checked"), options.spare)?;
        let superblock = new_superblock(rt, &options, &plan, &shape);
        let beat = Beat::new(rt, options.settings.beat.clone());
        let devices = devices.into_iter().map(|d| beat.guard(d)).collect();
        let members = members_of(rt, devices, &plan, &superblock);
        let core = Core::new(
            rt,
            superblock.array,
            superblock.key,
            slot_blocks(plan.slot_bytes),
            members,
            &options.settings.accelerators,
            &beat,
        );
        for member in &core.members {
            let device = usize::from(member.index);
            clear_member(member, &core.identity.array)
                .await
                .map_err(|fault| Error::Device { device, fault })?;
        }
        let topology = topology_of(&core.members, superblock.shape, superblock.spare);
        let birth = Rc::new(Cell::new(0));
        let (shards, to_home, at_home) = start_shards(
            &core,
            topology.shape(),
            &superblock,
            &options.settings,
            &birth,
        );
        let epoch = Epoch {
            number: 1,
            id: rt.random_bytes(),
            first: 1,
            end: None,
            m: topology.shape().m.max(1),
            excluded: Vec::new(),
        };
        let root = first_root(&superblock, &epoch);
        let start = [RingPosition::default(); 2];
        let journal = Journal::new(&core, epoch, 1, start, start);
        let home = Home::new(HomeParts {
            core,
            journal,
            shards,
            topology,
            superblock,
            catalog: Catalog::default(),
            root,
            next_checkpoint: 1,
            birth,
            liveness: SysTree::default(),
            catalog_tree: SysTree::default(),
        });
        home.journal.set_groups(home.journal_sets().0);
        for _ in 0..2 {
            home.store_superblocks().await;
        }
        home.start(at_home);
        home.start_group_commits();
        home.checkpoint(0).await;
        home.core.beat.set_voters(home.core.counted());
        home.begin_beat().await;
        home.core.beat.hold();
        Ok(Array::open(
            home,
            to_home,
            false,
            options.settings.memory_bytes,
        ))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// Devices on which no volume has room are refused, and the size that is named is enough, and not much too large.
    #[test]
    fn devices_that_are_too_small_are_told_a_size_that_is_enough() {
        for (layout, count) in [("ec2+1", 3), ("ec4+2", 8), ("ec8+2", 12)] {
            let options = Create {
                name: "tank".to_string(),
                layout: layout.parse().unwrap(),
                strip_bytes: None,
                slot_bytes: Some(64 << 10),
                spare: 0,
                domains: Vec::new(),
                settings: Settings::default(),
            };
            let mut sizes = vec![64 << 20; count];
            sizes[1] = 1 << 20;
            let Err(Error::TooSmall { device, have, need }) = plan(&sizes, &options) else {
                panic!("{layout}: such devices have no room");
            };
            assert_eq!((device, have), (1, 1 << 20));
            let with = |size: u64| plan(&vec![size; count], &options);
            let Err(Error::TooSmall { need, .. }) = with(need / 2) else {
                panic!("{layout}: half of {need} is not enough");
            };
            assert!(with(need).unwrap().usable_bytes > 0, "{layout} {need}");
            assert!(with(need - 2 * (64 << 10)).is_err(), "{layout} {need}");
        }
    }
}
