//! Slots that are taken, freed, set aside and lost; plan and floors again.
//!
//! Invariant: a slot goes from free to used, from used to freed, and after the root to free again; or it is
//! quarantined.

use std::sync::Arc;

use crate::capacity::Geometry;
use crate::fits::{Sites, Wanted, greatest};
use crate::floors::{Class, Facts, Floors};
use crate::ledger::{Book, Ledger, Mistake};
use crate::template::Plan;
use crate::topology::{Area, Presence, Topology};

impl Ledger {
    pub(super) fn take(&mut self, devices: &[u16]) {
        for device in devices {
            let book = &mut self.books[usize::from(*device)];
            assert!(book.free() > 0, "a slot is given once");
            book.used += 1;
        }
    }

    /// Segments that an import has found have so many slots of a device.
    pub fn occupy(&mut self, device: u16, slots: u32) {
        let book = &mut self.books[usize::from(device)];
        assert!(book.free() >= slots, "no more than there are");
        book.used += slots;
    }

    /// A segment with columns on these devices is being emptied: its slots will come back.
    pub fn expect(&mut self, devices: &[u16]) {
        for device in devices {
            let book = &mut self.books[usize::from(*device)];
            book.due = (book.due + 1).min(book.used);
        }
    }

    /// A segment with columns on these devices is needed no more. Its slots are free after the root that frees it.
    /// `expected`: they were announced with [`Ledger::expect`].
    pub fn free_later(&mut self, devices: &[u16], expected: bool) {
        for device in devices {
            let book = &mut self.books[usize::from(*device)];
            if book.slots == 0 {
                continue; // gone meanwhile, and its slots with it
            }
            assert!(book.used > 0, "only what is used is freed");
            book.used -= 1;
            book.freed += 1;
            if expected {
                book.due = book.due.saturating_sub(1);
            }
        }
    }

    /// Takes a free slot of a device for a discard alone, which can wait: only where clients could still be given a
    /// segment in each group, so that nobody waits for it. It is free again with [`Ledger::release`].
    pub fn lend(&mut self, device: u16) -> bool {
        if !self.leaves(Class::Client, &[device], None) {
            return false;
        }
        let mut free = self.free(Class::Client, None);
        free[usize::from(device)] -= 1;
        let kept = self.kept(Class::Client, None);
        let adds = |g| self.sites.adds(&free, &self.plan, &kept, Area::Group(g), 1);
        let lent = (0..self.topology.groups()).all(adds);
        if lent {
            self.books[usize::from(device)].freed += 1;
        }
        lent
    }

    /// The root that frees them is durable, their discards have ended: slots of these devices are free.
    pub fn release(&mut self, devices: &[u16]) {
        for device in devices {
            let book = &mut self.books[usize::from(*device)];
            book.freed = book.freed.saturating_sub(1);
        }
        self.returns += 1;
    }

    /// A slot of a device did not keep what was written: it is used no more.
    pub fn quarantine(&mut self, device: u16) {
        let book = &mut self.books[usize::from(device)];
        if book.used > 0 {
            book.used -= 1;
            book.quarantined += 1;
        }
    }

    /// A quarantined slot of a device is tried once more: it is free after the next root. Whether there was one.
    pub fn retry(&mut self, device: u16) -> bool {
        let book = &mut self.books[usize::from(device)];
        let some = book.quarantined > 0;
        if some {
            book.quarantined -= 1;
            book.freed += 1;
        }
        some
    }

    /// A quarantined slot of a device has failed again: it is no slot any more.
    pub fn wear_out(&mut self, device: u16) {
        let book = &mut self.books[usize::from(device)];
        if book.quarantined > 0 {
            book.quarantined -= 1;
            book.slots -= 1;
            book.worn += 1;
        }
    }

    /// Slots that were acquired on these devices hold nothing, and nothing names them: they are free at once.
    pub fn put_back(&mut self, devices: &[u16]) {
        for device in devices {
            let book = &mut self.books[usize::from(*device)];
            book.used = book.used.saturating_sub(1); // it may be gone meanwhile
        }
        self.returns += 1;
    }

    /// The slots of a segment that was being emptied stay its own: the job has ended before.
    pub fn unexpect(&mut self, devices: &[u16]) {
        for device in devices {
            let book = &mut self.books[usize::from(*device)];
            book.due = book.due.saturating_sub(1);
        }
    }

    /// Members have changed. A device that is gone has no slots any more, and nothing that was claimed of it; one that
    /// came has its slots, all free, until [`Ledger::occupy`] takes those that segments have; one that has grown has
    /// more.
    pub fn change(&mut self, topology: impl Into<Arc<Topology>>, plan: Plan) {
        let topology = topology.into();
        let groups = topology.groups();
        self.books.resize(topology.members().len(), Book::default());
        for (book, member) in self.books.iter_mut().zip(topology.members()) {
            let gone = member.presence == Presence::Gone;
            if gone {
                *book = Book::default();
            } else {
                book.slots = member.slots - book.worn;
            }
        }
        for entry in self.claims.values_mut() {
            entry
                .slots
                .retain(|d| topology.presence(*d) != Presence::Gone);
            if let Some((Area::Group(group), segments)) = &mut entry.segments
                && *group >= groups
            {
                *segments = 0;
            }
        }
        self.sites = Sites::new(&topology);
        self.topology = topology;
        self.plan = plan;
        self.returns += 1;
    }

    /// Another plan, as volumes hold more or less: at the end of a checkpoint.
    pub fn replan(&mut self, plan: Plan) {
        self.plan = plan;
        self.returns += 1;
    }

    /// The plan with nodes laid so that what is free takes two steps of a checkpoint, as wide as that goes; or as many
    /// nodes of these as can be.
    ///
    /// Where nodes lie on all devices but a few, the floors may rest on those with room: once one of these is gone,
    /// a device that is full would be needed for every segment, and no step had room, whatever the others have. But as
    /// many segments as fitted with w columns fit with one device fewer and one column fewer each. So after j losses
    /// two steps of k data columns hold (k - j) / k of their nodes: one step at least, as long as half of the columns
    /// are left.
    #[must_use]
    pub fn with_room_for_steps(&self, plan: Plan, geometry: &Geometry) -> Plan {
        let free = self.free(Class::Checkpoint, None);
        let none = Wanted::none(self.topology.groups());
        let two_steps = 2 * u64::from(geometry.step_nodes);
        let room = |plan: &Plan| {
            let floors = Floors::reckon(&geometry.facts(&plan.nodes, 0, 0));
            let most = floors.of(Class::Clean).0;
            let fits = |n| self.sites.adds(&free, plan, &none, Area::Nodes, n);
            let segments = u64::from(greatest(most, fits));
            (segments * geometry.node_blocks(plan.nodes.k)).min(two_steps)
        };
        let (mut best, mut most) = (plan.clone(), room(&plan));
        let narrower = std::iter::successors(plan.with_narrower_nodes(), Plan::with_narrower_nodes);
        for plan in narrower {
            if most == two_steps {
                break;
            }
            let nodes = room(&plan);
            if nodes > most {
                (best, most) = (plan, nodes);
            }
        }
        best
    }

    /// Floors again: at the end of a checkpoint, and at a change of members.
    pub fn reckon(&mut self, facts: &Facts) {
        self.floors = Floors::reckon(facts);
        if self.mistake == Mistake::FloorsTooLow {
            self.floors.growth = 0;
        }
    }

    /// Whether the sums are right: each slot has one state, and claimed devices are there.
    ///
    /// # Errors
    /// Names the first device whose sums are wrong.
    pub fn audit(&self) -> Result<(), u16> {
        for (book, device) in self.books.iter().zip(0u16..) {
            let taken = u64::from(book.used) + u64::from(book.freed) + u64::from(book.quarantined);
            let gone = self.topology.presence(device) == Presence::Gone;
            if taken > u64::from(book.slots) || book.due > book.used || (gone && book.slots > 0) {
                return Err(device);
            }
        }
        let mut slots = self.claims.values().flat_map(|e| &e.slots);
        match slots.find(|d| self.topology.presence(**d) == Presence::Gone) {
            Some(device) => Err(*device),
            None => Ok(()),
        }
    }

    /// Slots of each device that clients may not take though nothing is used: the sum of all floors, rounded up.
    #[must_use]
    pub fn withheld(&self, area: Area) -> u32 {
        let mut empty = self.clone();
        empty.claims.clear();
        for book in &mut empty.books {
            *book = Book {
                slots: book.slots,
                ..Book::default()
            };
        }
        let devices = self.topology.taking_in(area).len().max(1) as u32;
        let laid = u32::from(self.plan.of(area).laid());
        let all = empty.grant(Class::Client, area) * laid;
        let slots: u32 = self
            .topology
            .taking_in(area)
            .iter()
            .map(|d| self.topology.slots(*d))
            .sum();
        (slots - all).div_ceil(devices)
    }
}
