//! Every slot of every device, and who may take it: the only judge of free space.
//!
//! A class may take slots that are free above its floor and not claimed by its own class or one below:
//!
//! ```text
//! grant(class) = free - floor(class) - claims of this class and of those below it
//! ```
//!
//! All three are numbers of segments of the plan. [`Sites::adds`] says whether more can be laid beside floor and
//! claims.
//!
//! Invariants:
//! - Each slot of a device in use is free, used, freed or quarantined, and one of these only.
//! - A claim binds its own class and those above, never one below. So acquiring may fail; then its holder waits for
//!   devices, or returns it, and waits for nothing else meanwhile.
//! - A freed slot is free after the root that frees it, and not before.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::fits::{Sites, Wanted, greatest};
use crate::floors::{Class, Floors};
use crate::template::Plan;
use crate::topology::{Area, Member, Presence, Topology};

mod choose;
pub(crate) mod shares;
mod slots;

/// A mistake that tests make on purpose, to see that it is found.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mistake {
    /// None.
    #[default]
    None,
    /// A claim binds those below it as well.
    ClaimsBindAll,
    /// Floors count nothing for the growth of nodes.
    FloorsTooLow,
}

/// The slots of one device, by their state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Book {
    /// All of them; 0 for a device that is gone.
    pub slots: u32,
    /// Those that segments have.
    pub used: u32,
    /// Of those, the slots of segments that are being emptied.
    pub due: u32,
    /// Those that segments had, until the root that frees them is durable and their discards have ended; and free ones
    /// that are being discarded.
    pub freed: u32,
    /// Those that did not keep what was written.
    pub quarantined: u32,
    /// Those that did not when they were tried again either: no slots any more, and not part of `slots`.
    pub worn: u32,
}

impl Book {
    /// Slots that may be given out.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.slots - self.used - self.freed - self.quarantined
    }
}

/// Slots that somebody has claimed and not acquired.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Entry {
    class: Class,
    /// Segments of an area, or none.
    segments: Option<(Area, u32)>,
    /// Slots of these devices.
    slots: Vec<u16>,
}

/// Slots that are spoken for: to be acquired, or returned with [`Ledger::give_back`].
#[derive(Debug, PartialEq, Eq, Hash)]
#[must_use = "a claim binds others until it is given back"]
pub struct Claim {
    number: u32,
}

impl Claim {
    /// Its number, to tell claims apart in a test.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The claim of a number, for tests that keep numbers in their states.
    #[doc(hidden)]
    pub fn from_number(number: u32) -> Claim {
        Claim { number }
    }
}

/// The ledger of an array.
#[derive(Debug, Clone)]
pub struct Ledger {
    topology: Arc<Topology>,
    plan: Plan,
    sites: Sites,
    books: Vec<Book>,
    floors: Floors,
    claims: BTreeMap<u32, Entry>,
    /// How often slots came back: then work that found no room may look again.
    returns: u64,
    mistake: Mistake,
}

impl Ledger {
    /// A ledger in which every slot is free, with no floors until [`Ledger::reckon`].
    #[must_use]
    pub fn new(topology: impl Into<Arc<Topology>>, plan: Plan) -> Ledger {
        let topology = topology.into();
        let book = |m: &Member| Book {
            slots: if m.presence == Presence::Gone {
                0
            } else {
                m.slots
            },
            ..Book::default()
        };
        Ledger {
            books: topology.members().iter().map(book).collect(),
            sites: Sites::new(&topology),
            topology,
            plan,
            floors: Floors::default(),
            claims: BTreeMap::new(),
            returns: 0,
            mistake: Mistake::None,
        }
    }

    /// Makes a mistake from now on.
    #[doc(hidden)]
    pub fn plant(&mut self, mistake: Mistake) {
        self.mistake = mistake;
    }

    /// The members that it counts: the one value that says so, until [`Ledger::change`].
    #[must_use]
    pub fn topology(&self) -> &Arc<Topology> {
        &self.topology
    }

    /// How new segments are laid.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The slots of a device.
    #[must_use]
    pub fn book(&self, device: u16) -> Book {
        self.books
            .get(usize::from(device))
            .copied()
            .unwrap_or_default()
    }

    /// The floors as of the last reckoning.
    #[must_use]
    pub fn floors(&self) -> Floors {
        self.floors
    }

    /// How often slots came back.
    #[must_use]
    pub fn returns(&self) -> u64 {
        self.returns
    }
}

/// The inequality.
impl Ledger {
    /// How many segments of an area this class may claim or acquire now.
    #[must_use]
    pub fn grant(&self, class: Class, area: Area) -> u32 {
        self.grant_of(&self.free(class, None), class, area, None)
    }

    /// Segments of nodes that one step of a checkpoint may take: it leaves the next step its floor.
    #[must_use]
    pub fn for_step(&self) -> u32 {
        self.grant(Class::Rescue, Area::Nodes)
    }

    /// Whether the steps to come would take all that is free, if none of them freed any: each has to free room first.
    #[must_use]
    pub fn is_tight(&self) -> bool {
        self.for_step() < 2 * self.floors.step
    }

    /// Whether the next steps have to free as much as this one takes, which has taken so many segments since the floors
    /// were reckoned: nodes are there twice (no growth is left), and clients could leave less than two steps more than
    /// is kept from them. Until then garbage of nodes costs nobody anything.
    #[must_use]
    pub fn step_owes(&self, taken: u32) -> bool {
        let grown = self.floors.growth <= taken;
        grown && self.grant(Class::Client, Area::Nodes) < 2 * self.floors.step
    }

    /// Whether this class may claim a slot of a device now.
    #[must_use]
    pub fn grants_slot(&self, class: Class, device: u16) -> bool {
        self.grants_slots(class, &[device])
    }

    /// Whether this class may claim a slot of each of these devices together.
    #[must_use]
    pub fn grants_slots(&self, class: Class, devices: &[u16]) -> bool {
        self.leaves(class, devices, None)
    }

    /// Slots of each device that are free or will be: those of segments being emptied, and those that wait for a root,
    /// included; less those that are claimed.
    #[must_use]
    pub fn coming(&self) -> Vec<u32> {
        let mut free = self.free(Class::Client, None);
        for (free, book) in free.iter_mut().zip(&self.books) {
            *free += book.due + book.freed;
        }
        self.zero_if_not_taking(&mut free);
        free
    }

    /// Whether nothing is claimed, and no slot is to be free later.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let comes = |book: &Book| book.due > 0 || book.freed > 0;
        self.claims.is_empty() && !self.books.iter().any(comes)
    }

    /// Whether clients could be given a segment of an area if the worn-out slots of a device were free.
    #[must_use]
    pub fn grants_with_worn(&self, area: Area, device: u16) -> bool {
        let mut free = self.coming();
        free[usize::from(device)] += self.book(device).worn;
        self.laid_in(&free, area) > 0
    }

    /// How many segments of an area could be laid in these slots beside the floor of clients, and all that is claimed.
    pub(crate) fn laid_in(&self, free: &[u32], area: Area) -> u32 {
        self.grant_of(free, Class::Client, area, None)
    }

    /// How many segments of an area clients could be given once all is done that is under way: segments being
    /// emptied have been freed, and all claims have been acquired.
    #[must_use]
    pub fn projection(&self, area: Area) -> u32 {
        self.laid_in(&self.coming(), area)
    }

    /// Whether clients could be given so many segments of an area then.
    #[must_use]
    pub fn projects(&self, area: Area, segments: u32) -> bool {
        let kept = self.kept(Class::Client, None);
        self.sites
            .adds(&self.coming(), &self.plan, &kept, area, segments)
    }

    /// Segments of an area beside floor and claims, without the claim `but`.
    fn grant_of(&self, free: &[u32], class: Class, area: Area, but: Option<u32>) -> u32 {
        let kept = self.kept(class, but);
        let laid = u64::from(self.plan.of(area).laid().max(1));
        let all: u64 = free.iter().map(|n| u64::from(*n)).sum();
        let most = u32::try_from(all / laid).unwrap_or(u32::MAX);
        greatest(most, |n| self.sites.adds(free, &self.plan, &kept, area, n))
    }

    /// Whether these slots can be taken without taking any from floor and claims, but the claim `but`: as much of these
    /// can be laid after as before.
    fn leaves(&self, class: Class, slots: &[u16], but: Option<u32>) -> bool {
        let free = self.free(class, but);
        let mut left = free.clone();
        for device in slots {
            let Some(left) = left.get_mut(usize::from(*device)).filter(|n| **n > 0) else {
                return false;
            };
            *left -= 1;
        }
        let kept = self.kept(class, but);
        let covers = |free: &[u32]| self.sites.covers(free, &self.plan, &kept);
        covers(&left) == covers(&free)
    }

    /// Free slots by device, without those that this class or one below has claimed one by one.
    fn free(&self, class: Class, but: Option<u32>) -> Vec<u32> {
        let mut free: Vec<u32> = self.books.iter().map(Book::free).collect();
        self.zero_if_not_taking(&mut free);
        for (number, entry) in &self.claims {
            if self.binds(entry, class) && Some(*number) != but {
                for device in &entry.slots {
                    let free = &mut free[usize::from(*device)];
                    *free = free.saturating_sub(1);
                }
            }
        }
        free
    }

    fn zero_if_not_taking(&self, free: &mut [u32]) {
        for (free, member) in free.iter_mut().zip(self.topology.members()) {
            if member.presence != Presence::InUse {
                *free = 0;
            }
        }
    }

    /// The floor of a class, and the segments that it or one below has claimed.
    fn kept(&self, class: Class, but: Option<u32>) -> Wanted {
        let mut kept = self.floors.wanted(class, self.topology.groups());
        for (number, entry) in &self.claims {
            if let Some((area, segments)) = entry.segments
                && self.binds(entry, class)
                && Some(*number) != but
            {
                *kept.of_mut(area) += segments;
            }
        }
        kept
    }

    /// Whether a claim binds a class.
    fn binds(&self, entry: &Entry, class: Class) -> bool {
        entry.class <= class || self.mistake == Mistake::ClaimsBindAll
    }
}

/// Claims and slots.
impl Ledger {
    /// Claims so many segments of an area, if they are granted; with 0 it claims nothing yet.
    pub fn claim(&mut self, class: Class, area: Area, segments: u32) -> Option<Claim> {
        if segments > 0 && self.grant(class, area) < segments {
            return None;
        }
        Some(self.enter(Entry {
            class,
            segments: Some((area, segments)),
            slots: Vec::new(),
        }))
    }

    /// Claims a slot of each of these devices, if they are granted together.
    pub fn claim_slots(&mut self, class: Class, devices: &[u16]) -> Option<Claim> {
        if !self.leaves(class, devices, None) {
            return None;
        }
        Some(self.enter(Entry {
            class,
            segments: None,
            slots: devices.to_vec(),
        }))
    }

    /// Claims so many segments more, if they are granted.
    pub fn extend(&mut self, claim: &mut Claim, more: u32) -> bool {
        let Some((class, area)) = self.area_of(claim) else {
            return more == 0;
        };
        if more > 0 && self.grant(class, area) < more {
            return false;
        }
        if let Some(Entry {
            segments: Some((_, segments)),
            ..
        }) = self.claims.get_mut(&claim.number)
        {
            *segments += more;
        }
        true
    }

    fn area_of(&self, claim: &Claim) -> Option<(Class, Area)> {
        let entry = self.claims.get(&claim.number)?;
        Some((entry.class, entry.segments?.0))
    }

    fn enter(&mut self, entry: Entry) -> Claim {
        // The least number that is free: histories that claim the same have the same numbers.
        let number = (0..)
            .find(|n| !self.claims.contains_key(n))
            .unwrap_or(u32::MAX);
        self.claims.insert(number, entry);
        Claim { number }
    }

    /// Segments and slots that a claim has left.
    #[must_use]
    pub fn left(&self, claim: &Claim) -> (u32, usize) {
        let entry = self.claims.get(&claim.number);
        entry.map_or((0, 0), |e| (e.segments.map_or(0, |s| s.1), e.slots.len()))
    }

    /// Takes the slots of one segment of a claim: its devices, as many as the plan lays columns. `preferred`: devices
    /// that would do best, where they leave as much room as others. `None`: a class below has taken the claimed slots,
    /// or devices are gone. The claim stays, and its holder waits for devices or gives it back.
    pub fn acquire(&mut self, claim: &Claim, preferred: &[u16]) -> Option<Vec<u16>> {
        let (class, area) = self.area_of(claim)?;
        if self.left(claim).0 == 0 {
            return None;
        }
        let mut kept = self.kept(class, None);
        *kept.of_mut(area) -= 1;
        let devices = self.choose(class, area, &kept, preferred)?;
        if let Some(Entry {
            segments: Some((_, segments)),
            ..
        }) = self.claims.get_mut(&claim.number)
        {
            *segments -= 1;
        }
        self.take(&devices);
        Some(devices)
    }

    /// Claims and acquires one segment at once.
    pub fn take_segment(
        &mut self,
        class: Class,
        area: Area,
        preferred: &[u16],
    ) -> Option<Vec<u16>> {
        let kept = self.kept(class, None);
        let devices = self.choose(class, area, &kept, preferred)?;
        self.take(&devices);
        Some(devices)
    }

    /// Takes a slot that was claimed by itself; whether it is still to be had.
    pub fn acquire_slot(&mut self, claim: &Claim, device: u16) -> bool {
        let Some(entry) = self.claims.get(&claim.number) else {
            return false;
        };
        let Some(at) = entry.slots.iter().position(|d| *d == device) else {
            return false;
        };
        // Granted again, with this slot left out of the claim.
        let class = entry.class;
        let mut without = self.clone_claims_but(claim.number, at);
        std::mem::swap(&mut self.claims, &mut without);
        if !self.leaves(class, &[device], None) {
            self.claims = without;
            return false;
        }
        self.take(&[device]);
        true
    }

    fn clone_claims_but(&self, number: u32, at: usize) -> BTreeMap<u32, Entry> {
        let mut claims = self.claims.clone();
        if let Some(entry) = claims.get_mut(&number) {
            entry.slots.remove(at);
        }
        claims
    }

    /// Returns the rest of a claim.
    pub fn give_back(&mut self, claim: Claim) {
        if let Some(entry) = self.claims.remove(&claim.number)
            && (entry.segments.is_some_and(|s| s.1 > 0) || !entry.slots.is_empty())
        {
            self.returns += 1;
        }
    }
}

#[cfg(test)]
mod table_tests;
