//! Jobs that move columns to other slots.
//!
//! Invariant: no segment gets two columns on one device, nor more in a failure domain than it has elsewhere for it.

use crate::floors::Class;
use crate::index::SegmentFacts;
use crate::ledger::Claim;
use crate::topology::Presence;
use crate::work::{Job, Lack, Search};

impl Search<'_> {
    /// Columns on devices that are drained, or in a domain that has too many, go elsewhere; or the segment is
    /// rewritten.
    pub(super) fn bring(&mut self, number: u64, facts: SegmentFacts) -> Option<(Job, Claim)> {
        let columns = self.table.columns(number);
        let (topology, cap) = (self.topology(), self.ledger.plan().of(facts.area).cap);
        let mut in_domain = std::collections::BTreeMap::new();
        let mut wanted = Vec::new();
        for (column, device) in (0u16..).zip(&columns) {
            let Some(device) = device else { continue };
            let count = in_domain
                .entry(topology.domains().of(*device))
                .or_insert(0u16);
            if topology.presence(*device) == Presence::Draining || *count >= cap {
                wanted.push(column);
            } else {
                *count += 1;
            }
        }
        // A column is computed from K others: with no more than K there none can leave.
        wanted.truncate(facts.usable.saturating_sub(facts.k).into());
        if let Some(job) = self.columns(number, &facts, &columns, &wanted, true) {
            return Some(job);
        }
        self.rewrite(number, &facts, facts.area, Class::Rebuild)
    }

    /// Devices with the most free slots first; of those that have nearly as many, the least busy.
    fn by_room_and_load(&self, devices: &mut [u16]) {
        let free = |d: u16| self.ledger.book(d).free();
        let most = devices.iter().map(|d| free(*d)).max().unwrap_or(0);
        let has_fewer = |d: u16| {
            let near = u64::from(self.topology().slots(d)) * u64::from(self.policy.spread) / 2;
            u64::from(most - free(d)) * 1000 > near
        };
        devices.sort_by_cached_key(|d| match has_fewer(*d) {
            false => (false, self.index.load(*d), most - free(*d)),
            true => (true, most - free(*d), self.index.load(*d)),
        });
    }

    /// Slots for these columns of a segment, or for as many of them as there are: on devices that hold none of its
    /// others, in domains that have room by the plan before others (`within_cap`: in these only).
    pub(super) fn columns(
        &mut self,
        number: u64,
        facts: &SegmentFacts,
        columns: &[Option<u16>],
        wanted: &[u16],
        within_cap: bool,
    ) -> Option<(Job, Claim)> {
        if wanted.is_empty() {
            return None;
        }
        let topology = self.topology();
        let cap = usize::from(self.ledger.plan().of(facts.area).cap);
        let stays =
            |(column, device): (u16, &Option<u16>)| device.filter(|_| !wanted.contains(&column));
        let mut there: Vec<u16> = (0u16..).zip(columns).filter_map(stays).collect();
        // A column that leaves may go to the replacement of its device; others must not.
        let leaving: Vec<u16> = wanted
            .iter()
            .filter_map(|c| columns[usize::from(*c)])
            .collect();
        let mut devices = topology.taking_in(facts.area);
        devices.retain(|d| !leaving.contains(d));
        self.by_room_and_load(&mut devices);
        let (mut to, mut slots) = (Vec::new(), Vec::new());
        let mut some_device = false;
        for column in wanted {
            let in_domain = |d: u16| {
                let of = |d: u16| topology.domains().of(d);
                there.iter().filter(|t| of(**t) == of(d)).count()
            };
            let is_apart = |d: &u16| {
                let identity = topology.identity(*d);
                there.iter().all(|t| topology.identity(*t) != identity)
            };
            let mut free: Vec<u16> = devices.iter().copied().filter(is_apart).collect();
            free.sort_by_key(|d| in_domain(*d) >= cap);
            free.retain(|d| !within_cap || in_domain(*d) < cap);
            some_device |= !free.is_empty();
            let granted = free.into_iter().find(|d| {
                let all: Vec<u16> = slots.iter().copied().chain([*d]).collect();
                self.ledger.grants_slots(Class::Rebuild, &all)
            });
            if let Some(device) = granted {
                to.push((*column, device));
                slots.push(device);
                there.push(device);
            }
        }
        if to.is_empty() {
            self.lack = self.lack.max(if some_device {
                Lack::Room
            } else {
                Lack::Devices
            });
            return None;
        }
        let claim = self.ledger.claim_slots(Class::Rebuild, &slots)?;
        // Columns that are there are copied; for others the rest of the segment is read.
        let copied = to
            .iter()
            .all(|(column, _)| columns[usize::from(*column)].is_some());
        let read = if copied {
            leaving
        } else {
            columns.iter().flatten().copied().collect()
        };
        self.index
            .begin_on(number, [read, slots.clone(), slots].concat());
        Some((
            Job::Columns {
                segment: number,
                to,
            },
            claim,
        ))
    }
}
