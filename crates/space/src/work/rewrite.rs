//! Jobs that rewrite segments into the shape of the plan.
//!
//! Invariant: the claim is the room for the live blocks, less the room in segments that moves fill or have claimed.

use crate::floors::Class;
use crate::index::{SegmentFacts, Variant, full};
use crate::ledger::Claim;
use crate::template::Template;
use crate::topology::Area;
use crate::work::{HALF, Job, Lack, Narrow, Search};

impl Search<'_> {
    /// Missing columns get slots; or the segment is rewritten with more redundancy.
    pub(super) fn restore(&mut self, number: u64, facts: SegmentFacts) -> Option<(Job, Claim)> {
        let columns = self.table.columns(number);
        let missing = (0u16..).zip(&columns).filter(|(_, d)| d.is_none());
        let lacks = self.ledger.plan().of(facts.area);
        let lacks = usize::from(Variant::of(&facts).due(&lacks));
        let wanted: Vec<u16> = missing.map(|(column, _)| column).take(lacks).collect();
        if let Some(job) = self.columns(number, &facts, &columns, &wanted, false) {
            return Some(job);
        }
        self.rewrite_better(number, facts)
    }

    /// Rewrites a segment where its blocks get more redundancy: in its own group, or in another that has room for
    /// clients and lays it no narrower.
    pub(super) fn rewrite_better(
        &mut self,
        number: u64,
        facts: SegmentFacts,
    ) -> Option<(Job, Claim)> {
        let redundancy = i32::from(facts.usable) - i32::from(facts.k);
        if facts.area == Area::Nodes {
            return self.rewrite(number, &facts, Area::Nodes, Class::Rebuild);
        }
        let plan = self.ledger.plan().clone();
        let mut areas: Vec<Area> = self.areas().split_off(1);
        let better = |t: &Template| i32::from(t.redundancy()) > redundancy;
        areas.retain(|a| better(&plan.of(*a)));
        areas.sort_by_key(|a| {
            (
                std::cmp::Reverse(plan.of(*a).redundancy()),
                *a != facts.area,
            )
        });
        for area in areas {
            let narrower = plan.of(area).k < facts.k;
            let allowed = match self.policy.narrow {
                _ if !narrower => true,
                _ if area != facts.area => false,
                Narrow::Never => false,
                Narrow::Critical => redundancy == 0,
                Narrow::Always => true,
            };
            if !allowed {
                self.lack = self.lack.max(Lack::Policy);
                continue;
            }
            let class = if area == facts.area {
                Class::Rebuild
            } else {
                Class::Client
            };
            if let Some(job) = self.rewrite(number, &facts, area, class) {
                return Some(job);
            }
        }
        None
    }

    /// Blocks go to a group that gives them more redundancy.
    pub(super) fn leave_group(&mut self, number: u64, facts: SegmentFacts) -> Option<(Job, Claim)> {
        self.better_groups(facts.area)
            .into_iter()
            .find_map(|a| self.rewrite(number, &facts, a, Class::Client))
    }

    /// Groups that give the blocks of an area more redundancy and have room for clients, the best first.
    pub(super) fn better_groups(&self, area: Area) -> Vec<Area> {
        let plan = self.ledger.plan();
        let own = plan.of(area);
        if area == Area::Nodes || plan.outranked(area) == 0 {
            return Vec::new();
        }
        let mut areas: Vec<Area> = self.areas().split_off(1);
        let better = |t: &Template| t.redundancy() > own.redundancy() && t.k >= own.k;
        areas.retain(|a| better(&plan.of(*a)) && self.ledger.grant(Class::Client, *a) > 0);
        areas.sort_by_key(|a| std::cmp::Reverse(plan.of(*a).redundancy()));
        areas
    }

    pub(super) fn reshape(&mut self, number: u64, facts: SegmentFacts) -> Option<(Job, Claim)> {
        self.rewrite(number, &facts, facts.area, Class::Rebuild)
    }

    /// Claims the room that the blocks of a segment take elsewhere.
    pub(super) fn rewrite(
        &mut self,
        number: u64,
        facts: &SegmentFacts,
        into: Area,
        class: Class,
    ) -> Option<(Job, Claim)> {
        let more = self
            .index
            .to_claim(into, facts.taken(), self.ledger.plan().of(into).k);
        let Some(claim) = self.ledger.claim(class, into, more) else {
            self.lack = self.lack.max(Lack::Room);
            return None;
        };
        self.index.begin(number, Some(into));
        self.index.add_claimed(into, more);
        let devices: Vec<u16> = self.table.columns(number).into_iter().flatten().collect();
        self.ledger.expect(&devices);
        let job = match into {
            Area::Nodes => Job::Renew { segment: number },
            Area::Group(_) => Job::Rewrite {
                segment: number,
                into,
            },
        };
        Some((job, claim))
    }

    /// Takes waste back where room is short. Before nodes are there twice their room is theirs: they are renewed then
    /// only if nothing else gives room.
    pub(super) fn take_back(&mut self, areas: &[Area]) -> Option<(Job, Claim)> {
        let wants_room = self.index.wants_room();
        let (nodes, groups) = areas.split_first()?;
        let short: Vec<bool> = groups.iter().map(|a| self.is_short(*a)).collect();
        let any = wants_room || short.contains(&true);
        let grown = self.ledger.floors().growth == 0;
        let mut found = None;
        if any && grown {
            found = self.clean(*nodes);
        }
        for (group, short) in groups.iter().zip(short) {
            if found.is_none() && (wants_room || short) {
                found = self.clean(*group);
            }
        }
        if found.is_none() && any && !grown && self.ledger.is_settled() {
            found = self.clean(*nodes);
        }
        found
    }

    /// Takes back the waste of the segment of an area that is worth most and has room to go to.
    fn clean(&mut self, area: Area) -> Option<(Job, Claim)> {
        // Nodes are renewed by a step of a checkpoint: beside the room of the next one they need none.
        let class = match area {
            Area::Nodes => Class::Rescue,
            Area::Group(_) => Class::Clean,
        };
        while let Some(number) = self.victim(area) {
            let facts = *self.index.get(number)?;
            if let Some(job) = self.rewrite(number, &facts, area, class) {
                return Some(job);
            }
            self.index.park(number);
        }
        None
    }

    /// The segment of an area whose rewriting gains most for its cost, and for its age: of each
    /// live share the one that was closed first.
    pub(super) fn victim(&self, area: Area) -> Option<u64> {
        let template = self.ledger.plan().of(area);
        let holds = full(self.index.geometry(), area, template.k);
        // Nodes that are written again have others above them written again: half of a segment pays for that.
        let least = match area {
            Area::Nodes => self.policy.least_gain.max(HALF),
            Area::Group(_) => self.policy.least_gain,
        };
        let mut best: Option<(u128, u128, u64)> = None;
        for (variant, bucket) in self.index.variants(area) {
            let worth = variant.worth(&template, holds);
            if variant.redundancy < 0 {
                continue;
            }
            for number in bucket.heads() {
                let Some(facts) = self.index.get(number) else {
                    continue;
                };
                let gain = worth.saturating_sub(facts.taken());
                let enough = gain * 1000 >= worth * u64::from(least);
                if facts.live == 0 || gain == 0 || !enough {
                    continue;
                }
                let age = u128::from(self.policy.now.saturating_sub(facts.closed)) + 1;
                let (value, cost) = (u128::from(gain) * age, u128::from(facts.live));
                // Compared as fractions: value / cost.
                if best.is_none_or(|(v, c, _)| value * c > v * cost) {
                    best = Some((value, cost, number));
                }
            }
        }
        best.map(|(_, _, number)| number)
    }
}
