//! Jobs that even out what devices hold: columns move from devices that hold more than their share to those that hold
//! less.
//!
//! Two reasons. Where room is short, and the same free slots, were they evenly free, took one segment more: then to the
//! last slot. Otherwise where a device is further from its share than the policy allows: one that was added, or that has
//! come in the place of another.
//!
//! Invariants:
//! - For room a move goes to a device with two free slots more at least: the sum of the squares of free slots falls. For
//!   shares it goes from a device above its share to one below: what all are off it falls. So moves end.
//! - No segment gets two columns on one device, nor more columns that the plan wants elsewhere than it has.
//! - A search looks at a bounded number of slots.

use crate::floors::Class;
use crate::index::{Index, SegmentFacts};
use crate::ledger::shares::Share;
use crate::ledger::{Claim, Ledger};
use crate::topology::Area;
use crate::work::{Job, Policy, Search};

/// Slots that a device may be off its share, at least.
const LEAST: i64 = 4;

/// Slots that a search looks at.
const LOOKS: usize = 10_000;

/// By how many slots a device is further from its share than the policy allows; less than 0 if it is above its share.
fn too_far(ledger: &Ledger, share: Share, policy: &Policy) -> i64 {
    let slots = i64::from(ledger.topology().slots(share.device));
    let allowed = (slots * i64::from(policy.spread) / 1000).max(LEAST);
    (share.below.abs() - allowed).max(0) * share.below.signum()
}

/// The slots of an area that are to move before no device is further from its share than the policy allows.
fn slots_of(ledger: &Ledger, policy: &Policy, area: Area) -> u64 {
    let shares = ledger.shares(area).into_iter();
    let far = shares.map(|one| too_far(ledger, one, policy));
    let (below, above): (Vec<i64>, Vec<i64>) = far.partition(|far| *far > 0);
    let sum = |all: Vec<i64>| all.into_iter().map(i64::unsigned_abs).sum::<u64>();
    sum(below).max(sum(above))
}

/// Slots whose columns are to move before no device is further from its share than the policy allows; 0 if none can.
#[must_use]
pub fn slots_to_even(index: &Index, ledger: &Ledger, policy: &Policy) -> u64 {
    slots_where(ledger, policy, |area| index.stays_uneven(area).is_none())
}

/// The same, be it that none could be moved when last it was tried.
#[must_use]
pub fn uneven_slots(ledger: &Ledger, policy: &Policy) -> u64 {
    slots_where(ledger, policy, |_| true)
}

fn slots_where(ledger: &Ledger, policy: &Policy, counts: impl Fn(Area) -> bool) -> u64 {
    let groups = (0..ledger.topology().groups()).map(Area::Group);
    let moves = groups.filter(|area| policy.spread > 0 && counts(*area));
    moves.map(|area| slots_of(ledger, policy, area)).sum()
}

impl Search<'_> {
    /// A column moves from a device that holds more than its share to one that holds less.
    pub(super) fn even_out(&mut self, areas: &[Area]) -> Option<(Job, Claim)> {
        for area in areas.iter().skip(1) {
            let returns = Some(self.ledger.returns());
            let for_room = self.gains_room(*area);
            let held_off = self.policy.paused.bring || self.policy.spread == 0;
            if !for_room && (held_off || self.index.stays_uneven(*area) == returns) {
                continue;
            }
            let shares = self.ledger.shares(*area);
            let far = |one: &Share| too_far(self.ledger, *one, self.policy) != 0;
            let uneven = shares.iter().any(far);
            if !for_room && !uneven {
                continue;
            }
            let found = self.move_column(for_room, &shares);
            let stays = found.is_none() && uneven;
            self.index.set_uneven(*area, returns.filter(|_| stays));
            if found.is_some() {
                return found;
            }
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

    /// Moves a column of some segment between two of these devices: for room that clients lack, or for the share of one
    /// of them, and then clients have the slot that it takes.
    fn move_column(&mut self, for_room: bool, shares: &[Share]) -> Option<(Job, Claim)> {
        let class = if for_room {
            Class::Clean
        } else {
            Class::Client
        };
        let mut looks = LOOKS;
        for from in shares {
            let far = |one: &Share| too_far(self.ledger, *one, self.policy) != 0;
            let nearer = |to: &&Share| match for_room {
                true => to.free >= from.free + 2,
                false => from.below < 0 && to.below > 0 && (far(from) || far(to)),
            };
            let to = shares.iter().rev().filter(nearer).map(|to| to.device);
            let to: Vec<u16> = to.collect();
            if let Some(job) = self.move_from(class, from.device, to, &mut looks) {
                return Some(job);
            }
        }
        None
    }

    /// Moves a column of some segment from a device to the first of these that may hold it.
    fn move_from(
        &mut self,
        class: Class,
        from: u16,
        mut to: Vec<u16>,
        looks: &mut usize,
    ) -> Option<(Job, Claim)> {
        for slot in 0..self.topology().slots(from) {
            if to.is_empty() || *looks == 0 {
                break;
            }
            *looks -= 1;
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
                    self.index.begin_on(number, vec![from, device, device]);
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
