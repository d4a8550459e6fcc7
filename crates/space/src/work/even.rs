//! Jobs that even out what devices hold: columns move from devices that hold more than their share to those that hold
//! less.
//!
//! Two reasons. Where room is short, and the same free slots, were they evenly free, took one segment more: then to the
//! last slot. Otherwise where a device is further from its share than the policy allows: one that was added, or that has
//! come in the place of another.
//!
//! Invariants:
//! - A move goes to a device with two free slots more at least: the sum of the squares of free slots falls. So moves end.
//! - No segment gets two columns on one device, nor more columns that the plan wants elsewhere than it has.

use crate::floors::Class;
use crate::index::{Index, SegmentFacts};
use crate::ledger::shares::Share;
use crate::ledger::{Claim, Ledger};
use crate::topology::Area;
use crate::work::{Job, Policy, Search};

/// Slots that a device may have more or fewer free than its share, at least.
const LEAST: i64 = 4;

/// Devices that hold more than their share of which columns are looked for, in one search.
const TRIED: usize = 8;

/// How far from its share a device may be.
fn allowed(ledger: &Ledger, device: u16, policy: &Policy) -> i64 {
    let slots = i64::from(ledger.topology().slots(device));
    (slots * i64::from(policy.spread) / 1000).max(LEAST)
}

/// By how many slots a device is further from its share than the policy allows; less than 0 if it is below its share.
fn too_far(ledger: &Ledger, share: Share, policy: &Policy) -> i64 {
    let far = share.beyond.abs() - allowed(ledger, share.device, policy);
    far.max(0) * share.beyond.signum()
}

/// Slots whose columns are to move before no device is further from its share than the policy allows; 0 if none can.
#[must_use]
pub fn slots_to_even(index: &Index, ledger: &Ledger, policy: &Policy) -> u64 {
    match index.stays_uneven() {
        Some(_) => 0,
        None => uneven_slots(index, ledger, policy),
    }
}

/// The same, be it that none could be moved when last it was tried.
#[must_use]
pub fn uneven_slots(index: &Index, ledger: &Ledger, policy: &Policy) -> u64 {
    if policy.spread == 0 {
        return 0;
    }
    let of = |group: u16| {
        let area = Area::Group(group);
        let shares = ledger.shares(area, index.segments_on(area));
        let far = shares.into_iter().map(|one| too_far(ledger, one, policy));
        let (more, less): (Vec<i64>, Vec<i64>) = far.partition(|far| *far > 0);
        let sum = |all: Vec<i64>| all.into_iter().map(i64::unsigned_abs).sum::<u64>();
        sum(more).max(sum(less))
    };
    (0..ledger.topology().groups()).map(of).sum()
}

impl Search<'_> {
    /// A column moves from one of the devices that hold most beyond their share to one of those that hold least of it.
    pub(super) fn even_out(&mut self, areas: &[Area]) -> Option<(Job, Claim)> {
        let mut stays_uneven = None;
        for area in areas.iter().skip(1) {
            if self.gains_room(*area) {
                let shares = self.ledger.shares(*area, self.index.segments_on(*area));
                if let Some(job) = self.move_column(Class::Clean, &shares) {
                    return Some(job);
                }
                continue;
            }
            let returns = Some(self.ledger.returns());
            let tried = self.index.stays_uneven() == returns;
            if self.policy.paused.bring || self.policy.spread == 0 || tried {
                continue;
            }
            let shares = self.ledger.shares(*area, self.index.segments_on(*area));
            if shares
                .iter()
                .all(|one| too_far(self.ledger, *one, self.policy) == 0)
            {
                continue;
            }
            if let Some(job) = self.move_column(Class::Client, &shares) {
                self.index.set_uneven(None);
                return Some(job);
            }
            stays_uneven = returns;
        }
        if stays_uneven.is_some() {
            self.index.set_uneven(stays_uneven);
        }
        None
    }

    /// Whether clients could be given too few segments, and one more at least if the same slots were evenly free.
    fn gains_room(&self, area: Area) -> bool {
        let coming = self.ledger.coming();
        let devices = self.topology().taking_in(area);
        let all: u32 = devices.iter().map(|d| coming[usize::from(*d)]).sum();
        let fit = self.ledger.laid_in(&coming, area);
        let floor = self.ledger.floors().of(Class::Client).1;
        let laid = u32::from(self.ledger.plan().of(area).laid().max(1));
        fit < self.policy.target && all >= (fit + floor + 1) * laid
    }

    /// Moves a column of some segment between two of these devices. Where it is not for room that clients lack, one of
    /// them is too far from its share, and clients have the slot that it takes.
    fn move_column(&mut self, class: Class, shares: &[Share]) -> Option<(Job, Claim)> {
        for from in shares.iter().take(TRIED) {
            let is_far = |one: &Share| too_far(self.ledger, *one, self.policy) != 0;
            let reason = |to: &Share| class == Class::Clean || is_far(from) || is_far(to);
            let nearer = |to: &&Share| to.free >= from.free + 2 && reason(to);
            let to: Vec<u16> = shares
                .iter()
                .rev()
                .filter(nearer)
                .map(|to| to.device)
                .collect();
            if let Some(job) = self.move_from(class, from.device, to) {
                return Some(job);
            }
        }
        None
    }

    /// Moves a column of some segment from a device to the first of these that may hold it.
    fn move_from(&mut self, class: Class, from: u16, mut to: Vec<u16>) -> Option<(Job, Claim)> {
        for slot in 0..self.topology().slots(from) {
            if to.is_empty() {
                break;
            }
            let Some(number) = self.table.segment_at(from, slot) else {
                continue;
            };
            let Some(facts) = self.index.get(number).copied() else {
                continue;
            };
            let lost = facts.usable < facts.k;
            if facts.live == 0 || lost || !self.index.may_move(number) {
                continue;
            }
            let columns = self.table.columns(number);
            let Some(column) = columns.iter().position(|d| *d == Some(from)) else {
                continue;
            };
            while let Some(device) = self.first_that_holds(&to, &facts, &columns, column) {
                if let Some(claim) = self.ledger.claim_slots(class, &[device]) {
                    self.index.begin(number, None);
                    let column = u16::try_from(column).expect("at most 256 columns");
                    let job = Job::Columns {
                        segment: number,
                        to: vec![(column, device)],
                    };
                    return Some((job, claim));
                }
                to.retain(|d| *d != device);
            }
        }
        None
    }

    /// The first of these devices that may hold a column of a segment.
    fn first_that_holds(
        &self,
        devices: &[u16],
        facts: &SegmentFacts,
        columns: &[Option<u16>],
        column: usize,
    ) -> Option<u16> {
        let topology = self.topology();
        let mut after = columns.to_vec();
        after[column] = None;
        let others: Vec<u16> = after
            .iter()
            .flatten()
            .map(|d| topology.identity(*d))
            .collect();
        let holds = |device: &&u16| {
            after[column] = Some(**device);
            let plan = self.ledger.plan();
            !others.contains(&topology.identity(**device))
                && plan.elsewhere(topology, facts.area, &after) <= facts.elsewhere
        };
        devices.iter().find(holds).copied()
    }
}
