//! Assembling an array: which devices are its members, and which generation they go on from (R10).
//!
//! Invariants:
//! - A generation is set aside only if what is here proves that it never took effect, whatever the devices
//!   that are not here hold. Two that may both have been in effect are refused.
//! - A generation that may have been cut off before it took effect is gone on from only where the one before
//!   would be; [`Spread`] says so, and whoever goes on stores it again before anything else.
//! - Devices are only read here.

use std::collections::{BTreeMap, BTreeSet};

use ashlar_device::DeviceRef;
use ashlar_format::geometry::{ROOT_BYTES, ROOT_COUNT, super_bytes};
use ashlar_format::root::Root;
use ashlar_format::superblock::{MemberState, Superblock};
use ashlar_format::{BLOCK, FormatError};
use ashlar_rt::{Buf, Rt};

use crate::error::Error;
use crate::members::Member;
use crate::members::quorum::online_members;
use crate::options::Label;
use crate::planted::{self, Bug};

/// A device with the superblock found on it.
pub struct Candidate {
    device: DeviceRef,
    position: usize,
    superblock: Superblock,
    /// Which copy that is.
    copy: u32,
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

/// Reads a device's superblock: the newer of two valid copies, and which that is. `Ok(None)`: there is
/// none. Copies that name different devices are refused: a write for one device has landed on the other, and
/// which of the two this is cannot be told from it.
async fn read_superblock(
    device: &DeviceRef,
    position: usize,
) -> Result<Option<(Superblock, u32)>, Error> {
    let size = device.info().size_bytes;
    let area = super_bytes(size);
    if size < 2 * area {
        return Ok(None);
    }
    let mut best: Option<(Superblock, u32)> = None;
    let mut refused = None;
    let mut read = false;
    for (offset, copy) in [(0, 0), (size - area, 1)] {
        match read_copy(device, offset, area).await {
            Some(Ok(found)) => {
                read = true;
                if best.as_ref().is_some_and(|(b, _)| b.device != found.device) {
                    return Err(Error::TwoDevices(position));
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
    match (best, refused) {
        (Some(found), _) => Ok(Some(found)),
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

/// What a device says of itself.
pub async fn probe(device: &DeviceRef) -> Result<Option<Label>, Error> {
    let found = read_superblock(device, 0).await?;
    Ok(found.map(|(s, _)| Label {
        counted: online_members(&s).map(|i| s.members[i].uuid).collect(),
        array_uuid: s.array,
        array_name: s.name,
        device_uuid: s.device,
        index: s.index,
        devices_total: u16::try_from(s.members.len()).expect("parsed from 16 bits"),
        generation: s.generation.number,
        layout: s.layout,
        size_bytes: device.info().size_bytes,
    }))
}

/// One of the generations with the greatest number, as far as the devices here know it.
struct Known {
    /// As its last holder has it.
    superblock: Superblock,
    /// Devices here that hold it.
    holders: BTreeSet<[u8; 16]>,
    /// One of them has a root of it: roots are written once it is in effect.
    rooted: bool,
}

impl Known {
    /// Whether it was in effect for certain.
    fn in_effect(&self) -> bool {
        self.rooted || self.holders.len() * 2 >= self.before()
    }

    fn before(&self) -> usize {
        usize::from(self.superblock.generation.before)
    }

    /// Whether it never took effect for certain: even if every device that it counts and that is not here
    /// held it, they would be too few.
    fn never(&self, candidates: &[Candidate]) -> bool {
        let counted = online_members(&self.superblock);
        let here = |uuid: &[u8; 16]| candidates.iter().any(|c| c.superblock.device == *uuid);
        let unseen = counted
            .filter(|i| !here(&self.superblock.members[*i].uuid))
            .count();
        !self.in_effect() && (self.holders.len() + unseen) * 2 < self.before()
    }
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

/// The generations with the greatest number, by identity.
async fn newest_known(candidates: &[Candidate]) -> Result<Vec<Known>, Error> {
    let numbers = candidates.iter().map(|c| c.superblock.generation.number);
    let number = if planted::on(Bug::GenerationOldestWins) {
        numbers.min()
    } else {
        numbers.max()
    };
    let number = number.ok_or(Error::NoArray)?;
    let holds = |c: &&Candidate| c.superblock.generation.number == number;
    let mut known: BTreeMap<[u8; 16], Known> = BTreeMap::new();
    for superblock in candidates.iter().filter(holds).map(|c| &c.superblock) {
        let one = known.entry(superblock.generation.id).or_insert(Known {
            superblock: superblock.clone(),
            holders: BTreeSet::new(),
            rooted: false,
        });
        one.holders.insert(superblock.device);
        if superblock.writes > one.superblock.writes {
            one.superblock = superblock.clone();
        }
    }
    for one in known.values_mut() {
        for candidate in candidates.iter().filter(holds) {
            let holder = candidate.superblock.generation.id == one.superblock.generation.id;
            if holder && !one.in_effect() {
                one.rooted = has_root(candidate).await;
            }
        }
    }
    Ok(known.into_values().collect())
}

/// The generation that decides, and whether it may have been cut off before it took effect. One that
/// never took effect is set aside, and so are those of which it is not certain beside one of which it is; where that
/// leaves two, histories went apart.
///
/// Of two that the same one made, at most one took effect by itself: the second was made by a start from the one before,
/// which needs more than half of the devices or all, and so saw a holder of the first.
async fn newest_generation(candidates: &[Candidate]) -> Result<(Superblock, bool), Error> {
    let known = newest_known(candidates).await?;
    let number = known.first().map_or(0, |k| k.superblock.generation.number);
    let (never, mut may): (Vec<&Known>, Vec<&Known>) =
        known.iter().partition(|k| k.never(candidates));
    if may.iter().any(|k| k.in_effect()) {
        may.retain(|k| k.in_effect());
    }
    let parents: BTreeSet<[u8; 16]> = never
        .iter()
        .map(|k| k.superblock.generation.parent)
        .collect();
    // Generations are made only by one that is in effect.
    let before = candidates
        .iter()
        .map(|c| &c.superblock)
        .filter(|s| parents.len() == 1 && parents.contains(&s.generation.id))
        .max_by_key(|s| s.writes);
    match (&may[..], before, &never[..]) {
        ([one], _, _) => Ok((one.superblock.clone(), !one.in_effect())),
        ([], Some(before), _) => Ok((before.clone(), false)),
        ([], None, [one]) => Ok((one.superblock.clone(), true)),
        _ => Err(Error::Diverged(number)),
    }
}

/// How far the generation that decides had come when power went.
#[derive(Debug)]
pub struct Spread {
    /// Members that it counts and that are not here.
    pub missing: Vec<u16>,
    /// It may have been cut off before it took effect.
    pub unsure: bool,
    /// Not every member that is here holds it.
    pub behind: bool,
}

/// A generation that may have been cut off: the array must be able to start from the one before as well,
/// or two halves of it could each go on.
fn check_before(newest: &Superblock, candidates: &[Candidate]) -> Result<(), Error> {
    let counted = usize::from(newest.generation.before);
    let holds_before = |c: &&Candidate| c.superblock.generation.id == newest.generation.parent;
    let parent = candidates.iter().find(holds_before);
    // Whom the newest counts, the one before counted too.
    let mut before: BTreeSet<usize> = online_members(newest).collect();
    before.extend(parent.iter().flat_map(|c| online_members(&c.superblock)));
    let here = candidates.iter().filter(|c| {
        let index = usize::from(c.superblock.index);
        let uuid = newest.members.get(index).map(|m| m.uuid);
        before.contains(&index) && uuid == Some(c.superblock.device)
    });
    let seen: BTreeSet<[u8; 16]> = here.map(|c| c.superblock.device).collect();
    let seen = seen.len();
    if seen < counted && seen * 2 <= counted {
        return Err(Error::TooFew {
            seen,
            counted,
            generation: newest.generation.number - 1,
        });
    }
    Ok(())
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
        if let Some((superblock, copy)) = found.filter(|(s, _)| is_wanted(s)) {
            candidates.push(Candidate {
                device,
                position,
                superblock,
                copy,
            });
        }
    }
    let any = candidates.first().ok_or(Error::NoArray)?.superblock.array;
    if candidates.iter().any(|c| c.superblock.array != any) {
        return Err(Error::MixedArrays);
    }
    let (mut newest, unsure) = newest_generation(&candidates).await?;
    if unsure && !degraded {
        check_before(&newest, &candidates)?;
    }
    // What is written from now on is newer than all that was ever seen.
    let writes = candidates.iter().map(|c| c.superblock.writes).max();
    newest.writes = writes.unwrap_or(newest.writes);
    let online = |index: usize| {
        newest
            .members
            .get(index)
            .is_some_and(|m| m.state == MemberState::Online || planted::on(Bug::StaleMemberTrusted))
    };
    candidates.retain(|c| {
        let index = usize::from(c.superblock.index);
        online(index) && newest.members[index].uuid == c.superblock.device
    });
    let mut seen = BTreeSet::new();
    for candidate in &candidates {
        if !seen.insert(candidate.superblock.index) {
            return Err(Error::Duplicate(candidate.superblock.index));
        }
    }
    let counted = online_members(&newest).count();
    let enough = seen.len() == counted || seen.len() * 2 > counted;
    if !enough && !degraded {
        return Err(Error::TooFew {
            seen: seen.len(),
            counted,
            generation: newest.generation.number,
        });
    }
    if seen.is_empty() {
        return Err(Error::NoArray);
    }
    let other = |c: &Candidate| c.superblock.generation.id != newest.generation.id;
    let spread = Spread {
        missing: Vec::new(),
        unsure,
        behind: candidates.iter().any(other),
    };
    Ok((newest, candidates, spread))
}

/// Members in the order of the table; `missing` are those counted but not here.
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
            (None, MemberState::Online) => {
                missing.push(index);
                MemberState::Failed
            }
            (Some(_), _) if planted::on(Bug::StaleMemberTrusted) => MemberState::Online,
            (_, state) => state,
        };
        let copy = candidate.as_ref().map_or(0, |c| c.copy);
        let device = candidate.map(|c| c.device);
        let domain = entry.domain.clone();
        let member = Member::new(rt, index, entry.uuid, domain, geometry, device, state);
        member.super_copy.set(copy);
        members.push(member);
    }
    (members, missing)
}
