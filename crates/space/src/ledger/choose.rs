//! Chooses the devices of a new segment.
//!
//! Invariant: the devices chosen leave the room that has to be kept, and no more of them than the plan says are of one
//! failure domain, or none are chosen.

use std::collections::BTreeMap;

use crate::fits::Wanted;
use crate::floors::Class;
use crate::ledger::Ledger;
use crate::topology::Area;

impl Ledger {
    /// Devices for one segment that leave `kept`: those preferred, else those with the most free slots, else the first
    /// of these that leave enough, one after another.
    pub(super) fn choose(
        &self,
        class: Class,
        area: Area,
        kept: &Wanted,
        preferred: &[u16],
    ) -> Option<Vec<u16>> {
        let template = self.plan.of(area);
        let laid = usize::from(template.laid());
        let free = self.free(class, None);
        let mut devices = self.topology.taking_in(area);
        devices.retain(|d| free[usize::from(*d)] > 0);
        devices.sort_by_key(|d| std::cmp::Reverse(free[usize::from(*d)]));
        if !self.sites.adds(&free, &self.plan, kept, area, 1) {
            return None;
        }
        let covers = |free: &[u32]| self.sites.covers(free, &self.plan, kept);
        let all = covers(&free);
        let leaves = |free: &[u32]| covers(free) == all;
        let good = |chosen: &[u16]| {
            let mut left = free.clone();
            let takes = |d: &u16| {
                let free = &mut left[usize::from(*d)];
                *free = free.saturating_sub(1);
            };
            chosen.iter().for_each(takes);
            chosen.len() == laid && leaves(&left)
        };
        let all_free = preferred.iter().all(|d| devices.contains(d));
        let apart = self.within_cap(preferred, laid, template.cap, |_| true) == preferred;
        if all_free && apart && good(preferred) {
            return Some(preferred.to_vec());
        }
        let most_free = self.within_cap(&devices, laid, template.cap, |_| true);
        if good(&most_free) {
            return Some(most_free);
        }
        let mut left = free.clone();
        let chosen = self.within_cap(&devices, laid, template.cap, |device| {
            left[usize::from(device)] -= 1;
            let enough = leaves(&left);
            if !enough {
                left[usize::from(device)] += 1;
            }
            enough
        });
        good(&chosen).then_some(chosen)
    }

    /// The first `laid` of these devices that are `wanted`, with no more than the cap in a failure domain and none
    /// that counts as another of them.
    fn within_cap(
        &self,
        devices: &[u16],
        laid: usize,
        cap: u16,
        mut wanted: impl FnMut(u16) -> bool,
    ) -> Vec<u16> {
        let mut chosen: Vec<u16> = Vec::with_capacity(laid);
        let mut in_domain: BTreeMap<u16, u16> = BTreeMap::new();
        for device in devices {
            if chosen.len() == laid {
                break;
            }
            let count = in_domain
                .entry(self.topology.domains().of(*device))
                .or_insert(0);
            let identity = self.topology.identity(*device);
            let twice = chosen
                .iter()
                .any(|d| self.topology.identity(*d) == identity);
            if *count < cap && !twice && wanted(*device) {
                *count += 1;
                chosen.push(*device);
            }
        }
        chosen
    }
}
