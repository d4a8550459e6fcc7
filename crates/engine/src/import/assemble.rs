//! Assembling an array: reads from devices what [`decide`] needs to know, and makes members of those that it chooses.
//!
//! Invariants: devices are only read here; which generation counts is not decided here.

use std::collections::BTreeMap;

use ashlar_device::DeviceRef;
use ashlar_format::geometry::{ROOT_BYTES, ROOT_COUNT, super_bytes};
use ashlar_format::root::Root;
use ashlar_format::superblock::{MemberEntry, MemberState, Superblock};
use ashlar_format::{BLOCK, FormatError};
use ashlar_rt::{Buf, Rt};

use crate::error::Error;
use crate::import::decide::{Holder, decide, to_ask};
use crate::import::watch::Place;
use crate::members::Member;
use crate::members::duties::Duties;
use crate::members::quorum::online_members;
use crate::options::Label;
use crate::planted::{self, Bug};
use crate::segment::table::Core;

/// A device with the superblock found on it.
pub struct Candidate {
    device: DeviceRef,
    position: usize,
    superblock: Superblock,
    /// Which copy that is.
    copy: u32,
    /// Whether it is the only good one.
    lone: bool,
    /// Whether it has a root of its generation, or of a later one, if that was looked for.
    rooted: Option<bool>,
}

impl Candidate {
    fn holder(&self) -> Holder<'_> {
        Holder {
            device: self.superblock.device,
            index: self.superblock.index,
            writes: self.superblock.writes,
            generation: &self.superblock.generation,
            members: &self.superblock.members,
            rooted: self.rooted,
        }
    }

    /// Where its beat lies.
    pub(super) fn beat(&self) -> Place {
        Place {
            index: self.superblock.index,
            device: self.device.clone(),
            offset: self.superblock.geometry.beat_offset(),
        }
    }

    /// The name that its superblock gives the array.
    pub(super) fn name(&self) -> &str {
        &self.superblock.name
    }
}

impl std::fmt::Debug for Candidate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Candidate({})", self.position)
    }
}

async fn read_at(device: &DeviceRef, offset: u64, length: usize) -> Option<Buf> {
    let (buf, result) = device.read(offset, Buf::zeroed(length)).await;
    result.ok().map(|()| buf)
}

async fn read_copy(
    device: &DeviceRef,
    offset: u64,
    limit: u64,
) -> Option<Result<Superblock, FormatError>> {
    let first = read_at(device, offset, BLOCK).await?;
    let size = match Superblock::encoded_bytes(&first) {
        Ok(size) if size as u64 <= limit => size,
        Ok(_) => return Some(Err(FormatError::Value)),
        Err(error) => return Some(Err(error)),
    };
    Some(Superblock::decode(&read_at(device, offset, size).await?))
}

/// Reads a device's superblock: the newer of two valid copies, which that is, and whether it is the only one.
/// `Ok(None)`: there is none. Copies that name different devices are refused: a write for one device has landed on the
/// other, and which of the two this is cannot be told from it.
async fn read_superblock(
    device: &DeviceRef,
    position: usize,
) -> Result<Option<(Superblock, u32, bool)>, Error> {
    let size = device.info().size_bytes;
    let area = super_bytes(size);
    if size < 2 * area {
        return Ok(None);
    }
    let mut best: Option<(Superblock, u32)> = None;
    let mut refused = None;
    let (mut read, mut good) = (false, [false; 2]);
    for (offset, copy) in [(0, 0), (size - area, 1)] {
        match read_copy(device, offset, area).await {
            Some(Ok(found)) => {
                (read, good[copy as usize]) = (true, true);
                if let Some((first, _)) = &best
                    && first.device != found.device
                {
                    // Another may have left its own at the end that this one has got since.
                    if inside(device, first).await.is_none() {
                        return Err(Error::TwoDevices(position));
                    }
                    continue;
                }
                if best.as_ref().is_none_or(|(b, _)| found.writes > b.writes) {
                    best = Some((found, copy));
                }
            }
            Some(Err(error)) => {
                read = true;
                if error != FormatError::Magic {
                    refused = Some(error);
                }
            }
            None => {}
        }
    }
    if best.is_none()
        && let Some(found) = inside_torn(device).await
    {
        return Ok(Some((found, 1, true)));
    }
    match (best, refused) {
        (Some((found, copy)), _) => {
            let inside = inside(device, &found).await;
            // What lies at the present end of one that is to be larger is none of the two.
            let kept = inside
                .as_ref()
                .is_some_and(|i| copy == 0 || i.writes >= found.writes);
            let lone = match found.geometry.size_bytes < size {
                true => !kept || !good[0],
                false => good != [true; 2],
            };
            let newer = inside.filter(|inside| inside.writes > found.writes);
            let (found, copy) = newer.map_or((found, copy), |inside| (inside, 1));
            Ok(Some((found, copy, lone)))
        }
        (None, Some(source @ FormatError::Unsupported(_))) => Err(Error::Format {
            device: position,
            source,
        }),
        (None, _) if !read => Err(Error::Device {
            device: position,
            fault: ashlar_device::Fault::Media,
        }),
        (None, _) => Ok(None),
    }
}

/// Of a device that has grown, and whose superblock at its start is torn, the one at the end that it had.
async fn inside_torn(device: &DeviceRef) -> Option<Superblock> {
    let size = Superblock::likely_size(&read_at(device, 0, BLOCK).await?)?;
    let area = super_bytes(size);
    let fits =
        (2 * area..device.info().size_bytes).contains(&size) && size.is_multiple_of(BLOCK as u64);
    let found = read_copy(device, size.checked_sub(area).filter(|_| fits)?, area)
        .await?
        .ok()?;
    (found.geometry.size_bytes == size).then_some(found)
}

/// Of a device that has grown, and of which the array does not use what is new, the superblock at the end that it had. One
/// of another device there is none of its own.
async fn inside(device: &DeviceRef, found: &Superblock) -> Option<Superblock> {
    let geometry = found.geometry;
    if geometry.size_bytes >= device.info().size_bytes {
        return None;
    }
    let area = super_bytes(geometry.size_bytes);
    let inside = read_copy(device, geometry.super_offset(1), area)
        .await?
        .ok()?;
    (inside.device == found.device).then_some(inside)
}

/// A device's superblock, and which copy that is; `None`: it has none.
///
/// # Errors
/// It cannot be read, or not told from another.
pub(crate) async fn look(device: &DeviceRef) -> Result<Option<(Superblock, u32)>, Error> {
    let found = read_superblock(device, 0).await?;
    Ok(found.map(|(superblock, copy, _)| (superblock, copy)))
}

/// What a device says of itself.
pub async fn probe(device: &DeviceRef) -> Result<Option<Label>, Error> {
    let found = read_superblock(device, 0).await?;
    let never = |m: &&MemberEntry| matches!(m.state, MemberState::Spare | MemberState::Removed);
    Ok(found.map(|(s, ..)| Label {
        counted: online_members(&s.members)
            .map(|i| s.members[i].uuid)
            .collect(),
        array_uuid: s.array,
        array_name: s.name,
        device_uuid: s.device,
        index: s.index,
        devices_total: u16::try_from(s.members.iter().filter(|m| !never(m)).count())
            .expect("parsed from 16 bits"),
        generation: s.generation.number,
        layout: s.layout,
        size_bytes: device.info().size_bytes,
    }))
}

/// Whether a device has a root of the generation it holds, or of a later one. Of a rival of the same number it may
/// have one as well: it held that, and then an older copy of its superblock came back.
async fn has_root(candidate: &Candidate) -> bool {
    let superblock = &candidate.superblock;
    for entry in 0..ROOT_COUNT {
        let offset = superblock.geometry.root_offset(entry);
        let bytes = read_at(&candidate.device, offset, ROOT_BYTES as usize).await;
        let root = bytes.and_then(|b| Root::decode(&superblock.array, &b).ok());
        let own = &superblock.generation;
        let proves = |r: &Root| {
            r.generation > own.number || (r.generation, r.generation_id) == (own.number, own.id)
        };
        if root.is_some_and(|r| proves(&r)) {
            return true;
        }
    }
    false
}

/// The number of the generation that each member's superblock is of.
pub fn generations(candidates: &[Candidate]) -> Vec<(u16, u64)> {
    let held = |c: &Candidate| (c.superblock.index, c.superblock.generation.number);
    candidates.iter().map(held).collect()
}

/// How far the generation that decides had come when power went.
#[derive(Debug)]
pub struct Spread {
    /// Members that it counts and that are not here.
    pub missing: Vec<u16>,
    /// It may have been cut off before it took effect.
    pub unsure: bool,
    /// Not every member that is here holds it, or has the array's name.
    pub behind: bool,
    /// Members that are here with only one good copy of their superblock: power went while the other was written.
    pub lone: Vec<u16>,
    /// Devices that are hot spares by it.
    pub spares: Vec<Candidate>,
    /// Those of them that have another name than the array, by row.
    pub renamed: Vec<u16>,
}

/// The members of the newest generation among the devices, its superblock, and how far it had come. Of the array that
/// is `wanted`, or of the one that all devices are of.
pub async fn assemble(
    devices: Vec<DeviceRef>,
    wanted: Option<[u8; 16]>,
    degraded: bool,
) -> Result<(Superblock, Vec<Candidate>, Spread), Error> {
    let mut candidates = Vec::new();
    for (position, device) in devices.into_iter().enumerate() {
        // A device that cannot be read, told from another, or taken for one of this array is as good as missing.
        let found = match read_superblock(&device, position).await {
            Err(Error::Device { .. } | Error::TwoDevices(_)) => None,
            other => other?,
        };
        let is_wanted = |s: &Superblock| wanted.is_none_or(|array| array == s.array);
        if let Some((superblock, copy, lone)) = found.filter(|(s, ..)| is_wanted(s)) {
            candidates.push(Candidate {
                device,
                position,
                superblock,
                copy,
                lone,
                rooted: None,
            });
        }
    }
    let any = candidates.first().ok_or(Error::NoArray)?.superblock.array;
    if candidates.iter().any(|c| c.superblock.array != any) {
        return Err(Error::MixedArrays);
    }
    let found = loop {
        let holders: Vec<Holder<'_>> = candidates.iter().map(Candidate::holder).collect();
        match to_ask(&holders) {
            None => break decide(&holders, degraded)?,
            Some(at) => candidates[at].rooted = Some(has_root(&candidates[at]).await),
        }
    };
    let mut newest = candidates[found.newest].superblock.clone();
    // What is written from now on is newer than all that was ever seen.
    let writes = candidates.iter().map(|c| c.superblock.writes).max();
    newest.writes = writes.unwrap_or(newest.writes);
    let all = candidates.into_iter().enumerate();
    let (chosen, others): (Vec<_>, Vec<_>) = all.partition(|(at, _)| found.members.contains(at));
    let is_spare = |c: &Candidate| {
        let row = newest.members.get(usize::from(c.superblock.index));
        row.is_some_and(|r| r.state == MemberState::Spare && r.uuid == c.superblock.device)
    };
    let spares = others
        .into_iter()
        .map(|(_, c)| c)
        .filter(is_spare)
        .collect();
    let spread = Spread {
        missing: Vec::new(),
        spares,
        renamed: Vec::new(),
        unsure: found.unsure,
        behind: found.behind,
        lone: (chosen.iter().filter(|(_, c)| c.lone))
            .map(|(_, c)| c.superblock.index)
            .collect(),
    };
    let chosen = chosen.into_iter().map(|(_, c)| c).collect();
    Ok((newest, chosen, spread))
}

/// Holds the devices that are hot spares; those that have another name than the array, by row.
pub fn hold_spares(core: &Core, spares: Vec<Candidate>, name: &str) -> Vec<u16> {
    let mut renamed = Vec::new();
    for spare in spares {
        let Some(member) = core.members.get(usize::from(spare.superblock.index)) else {
            continue;
        };
        let (have, need) = (
            spare.device.info().size_bytes,
            spare.superblock.geometry.size_bytes,
        );
        if have < need {
            let path = &spare.device.info().name;
            let text = format!(
                "hot spare {} ({path}) has shrunk from {need} bytes to {have}, and is not used: 'ashlar remove' takes it \
                 out",
                member.index
            );
            core.events
                .note("hot-spare-failed", Some(member.index), text);
            continue;
        }
        if spare.name() != name {
            renamed.push(member.index);
        }
        member.super_copy.set(spare.copy);
        member.hold(spare.device, spare.superblock.geometry);
    }
    renamed
}

/// Members in the order of the table, and those that are counted and not here.
pub fn make_members(
    rt: &Rt,
    newest: &Superblock,
    candidates: Vec<Candidate>,
) -> (Vec<Member>, Vec<u16>) {
    let mut found: BTreeMap<u16, Candidate> = candidates
        .into_iter()
        .map(|c| (c.superblock.index, c))
        .collect();
    let mut members = Vec::new();
    let mut missing = Vec::new();
    for (index, entry) in (0u16..).zip(&newest.members) {
        let candidate = found.remove(&index);
        let geometry = match &candidate {
            Some(candidate) => candidate.superblock.geometry,
            None => newest.geometry.with_slots(entry.slots),
        };
        let state = match (&candidate, entry.state) {
            (None, state) if Duties::of(state, true).counted => {
                missing.push(index);
                MemberState::Stale
            }
            (Some(_), _) if planted::on(Bug::StaleMemberTrusted) => MemberState::Online,
            (_, state) => state,
        };
        let copy = candidate.as_ref().map_or(0, |c| c.copy);
        let device = candidate.map(|c| c.device);
        let device = device.filter(|_| state != MemberState::Removed);
        let domain = entry.domain.clone();
        let mut member = Member::new(rt, index, entry.uuid, domain, geometry, device, state);
        if !member.is_held() {
            member.set_unread();
        }
        member.super_copy.set(copy);
        member.stale_since.set(entry.stale_since);
        member.group = entry.group;
        member.first_epoch = entry.first_epoch;
        member.set_domain(entry.domain.clone(), entry.domain_since);
        members.push(member);
    }
    (members, missing)
}
