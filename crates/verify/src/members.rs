//! Which devices are the array: the newest generation, by the rule of docs/format.md, "How an import finds
//! things".
//!
//! **Invariants**: a device that the deciding generation does not count is no member, whatever it says
//! itself; two devices never get one index; where the rule refuses the array, so does this.

use std::collections::{BTreeMap, BTreeSet};

use crate::report::{At, Kind, Report};
use crate::root::Root;
use crate::source::Source;
use crate::superblock::{Geometry, ROOT_BYTES, ROOTS, Refused, Superblock, area_of};

/// A device with its own word of what it is.
pub(crate) struct Candidate<'a> {
    /// Its place in the list that was given.
    pub(crate) position: usize,
    pub(crate) source: &'a dyn Source,
    pub(crate) superblock: Superblock,
}

/// The members that are here, by index, and the superblock that decides.
pub(crate) struct Members<'a> {
    pub(crate) superblock: Superblock,
    pub(crate) here: BTreeMap<u16, Device<'a>>,
}

/// A member's device.
#[derive(Clone, Copy)]
pub(crate) struct Device<'a> {
    pub(crate) position: usize,
    pub(crate) source: &'a dyn Source,
    pub(crate) geometry: Geometry,
}

/// The superblock of a device: of two good copies the one written later.
fn candidate<'a>(
    position: usize,
    source: &'a dyn Source,
    report: &mut Report,
) -> Option<Candidate<'a>> {
    let size = source.size();
    let area = area_of(size);
    if size < 2 * area {
        report.find(Kind::NoSuperblock).device(position);
        return None;
    }
    let first = Superblock::read(source, 0, area);
    // The other copy lies at the end: of the device as the array has it, should it have grown. The first copy may be
    // another device's, so its word for where that is comes second. Where one is at both ends the newer counts.
    let mut second = Superblock::read(source, size / 4096 * 4096 - area, area);
    let known = first.as_ref().or(second.as_ref()).ok();
    if let Some((known, end)) = known.and_then(|k| Some((k, k.geometry.second()?)))
        && known.geometry.size < size / 4096 * 4096
        && let Ok(inside) = Superblock::read(source, end, area)
        && inside.device == known.device
        && second
            .as_ref()
            .ok()
            .is_none_or(|s| inside.writes > s.writes)
    {
        second = Ok(inside);
    }
    let mut best: Option<Superblock> = None;
    let mut bad = Vec::new();
    for (copy, found) in [(0, first), (1, second)] {
        match found {
            Ok(found) => {
                report.counts.superblocks += 1;
                if best.as_ref().is_some_and(|b| b.device != found.device) {
                    report.find(Kind::TwoDevices).device(position);
                    return None;
                }
                if best.as_ref().is_none_or(|b| found.writes > b.writes) {
                    best = Some(found);
                }
            }
            Err(Refused::Foreign) => {
                report
                    .find(Kind::Unsupported)
                    .device(position)
                    .at(At::Copy(copy));
            }
            Err(_) => bad.push(copy),
        }
    }
    let Some(superblock) = best else {
        report.find(Kind::NoSuperblock).device(position);
        return None;
    };
    for copy in bad {
        report
            .find(Kind::SuperblockCopy)
            .device(position)
            .at(At::Copy(copy));
    }
    Some(Candidate {
        position,
        source,
        superblock,
    })
}

/// All good roots of a device.
pub(crate) fn roots_of(source: &dyn Source, geometry: &Geometry, array: &[u8; 16]) -> Vec<Root> {
    let entries = (0..ROOTS).filter_map(|entry| {
        let mut bytes = vec![0; usize::try_from(ROOT_BYTES).unwrap_or(0)];
        source.read(geometry.root(entry), &mut bytes).ok()?;
        Root::parse(array, &bytes)
    });
    entries.collect()
}

/// One of the generations with the greatest number.
struct Known<'c> {
    superblock: &'c Superblock,
    holders: BTreeSet<[u8; 16]>,
    rooted: bool,
}

impl Known<'_> {
    fn in_effect(&self) -> bool {
        self.rooted || self.holders.len() * 2 >= usize::from(self.superblock.before)
    }

    /// Whether it never took effect, whatever the devices hold that are not here.
    fn never(&self, candidates: &[Candidate<'_>]) -> bool {
        let here: BTreeSet<[u8; 16]> = candidates.iter().map(|c| c.superblock.device).collect();
        let members = &self.superblock.members;
        let counted = members.iter().filter(|m| m.online);
        let unseen = counted.filter(|m| !here.contains(&m.uuid)).count();
        let most = self.holders.len() + unseen;
        !self.in_effect() && most * 2 < usize::from(self.superblock.before)
    }
}

fn newest<'c>(candidates: &'c [Candidate<'_>]) -> Vec<Known<'c>> {
    let number = candidates.iter().map(|c| c.superblock.generation).max();
    let mut known: BTreeMap<[u8; 16], Known<'c>> = BTreeMap::new();
    for candidate in candidates {
        let superblock = &candidate.superblock;
        if Some(superblock.generation) != number {
            continue;
        }
        let one = known.entry(superblock.identity).or_insert(Known {
            superblock,
            holders: BTreeSet::new(),
            rooted: false,
        });
        one.holders.insert(superblock.device);
        let roots = roots_of(candidate.source, &superblock.geometry, &superblock.array);
        let this = (superblock.generation, superblock.identity);
        let rooted = |r: &Root| r.generation > this.0 || (r.generation, r.identity) == this;
        one.rooted |= roots.iter().any(rooted);
        if superblock.writes > one.superblock.writes {
            one.superblock = superblock;
        }
    }
    known.into_values().collect()
}

/// The generation that decides; `None` if histories went apart.
fn deciding<'c>(candidates: &'c [Candidate<'_>]) -> Option<&'c Superblock> {
    let known = newest(candidates);
    let (never, mut may): (Vec<_>, Vec<_>) = known.iter().partition(|k| k.never(candidates));
    if may.iter().any(|k| k.in_effect()) {
        may.retain(|k| k.in_effect());
    }
    let parents: BTreeSet<[u8; 16]> = never.iter().map(|k| k.superblock.parent).collect();
    let before = candidates
        .iter()
        .map(|c| &c.superblock)
        .filter(|s| parents.len() == 1 && parents.contains(&s.identity))
        .max_by_key(|s| s.writes);
    match (&may[..], before, &never[..]) {
        ([one], _, _) => Some(one.superblock),
        ([], Some(before), _) => Some(before),
        ([], None, [one]) => Some(one.superblock),
        _ => None,
    }
}

/// Finds out which devices are the array's members.
pub(crate) fn assemble<'a>(devices: &[&'a dyn Source], report: &mut Report) -> Option<Members<'a>> {
    let mut candidates: Vec<Candidate<'a>> = Vec::new();
    for (position, source) in devices.iter().enumerate() {
        candidates.extend(candidate(position, *source, report));
    }
    let Some(first) = candidates.first() else {
        report.find(Kind::NoArray);
        return None;
    };
    let array = first.superblock.array;
    if let Some(other) = candidates.iter().find(|c| c.superblock.array != array) {
        report.find(Kind::OtherArray).device(other.position);
        return None;
    }
    let Some(superblock) = deciding(&candidates).cloned() else {
        report.find(Kind::Diverged);
        return None;
    };
    let mut here: BTreeMap<u16, Device<'a>> = BTreeMap::new();
    for candidate in &candidates {
        let own = &candidate.superblock;
        let row = superblock.members.get(usize::from(own.index));
        if row.is_none_or(|row| !row.online || row.uuid != own.device) {
            let spare = row.is_some_and(|row| row.spare && row.uuid == own.device);
            let kind = if spare {
                Kind::HotSpare
            } else {
                Kind::NotAMember
            };
            report.find(kind).device(candidate.position);
            continue;
        }
        if own.identity != superblock.identity {
            report.find(Kind::Behind).device(candidate.position);
        }
        check_geometry(candidate, &superblock, report)?;
        let device = Device {
            position: candidate.position,
            source: candidate.source,
            geometry: own.geometry,
        };
        if here.insert(own.index, device).is_some() {
            report.find(Kind::IndexTwice).device(candidate.position);
            return None;
        }
    }
    for index in superblock
        .counted()
        .filter(|index| !here.contains_key(index))
    {
        report.counts.members_missing += 1;
        report.find(Kind::MemberMissing).at(At::Member(index));
    }
    report.counts.members = here.len() as u64;
    if here.is_empty() {
        report.find(Kind::NoArray);
        return None;
    }
    Some(Members { superblock, here })
}

/// All devices of an array have the same slots and rings. How many slots a device has it says itself; so does the table,
/// unless the power went while the device grew, until the next import.
fn check_geometry(
    candidate: &Candidate<'_>,
    superblock: &Superblock,
    report: &mut Report,
) -> Option<()> {
    let (own, common) = (candidate.superblock.geometry, superblock.geometry);
    if (own.slot_bytes, own.rings) != (common.slot_bytes, common.rings) {
        report.find(Kind::Geometry).device(candidate.position);
        return None;
    }
    let index = usize::from(candidate.superblock.index);
    let slots = superblock.members.get(index).map(|row| row.slots);
    if slots != Some(own.slots) {
        report.find(Kind::Growing).device(candidate.position);
    }
    Some(())
}
