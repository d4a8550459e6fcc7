//! What is worth cleaning: the segments that give back more than their live blocks take, written anew.
//!
//! Invariants:
//! - A segment is worth cleaning if that gains at least a twentieth of it, or less where less is kept for cleaning:
//!   so once what is kept is dead, some segment is worth it (#149).
//! - Where devices of a group are full while others of it are not, what counts is the room on the full ones:
//!   live blocks go where there is room, so that what was promised to volumes can be written (#106).

use std::collections::BTreeSet;

use ashlar_format::slot::SegmentKind;
use ashlar_layout::Placement;

use crate::home::Home;
use crate::members::Member;
use crate::segment::{Pinned, Segment};
use crate::space::capacity::Share;
use crate::space::slots::{MetadataNeed, Purpose, reserve};

/// Below so many thousandths that are dead a segment is not worth cleaning, unless less is kept for cleaning
/// (`clean.reserve`).
const NOT_CLEANED: u64 = 50;

/// How a group lays the data that are written anew, where that is not as all its devices would have it.
struct Anew<'a> {
    group: &'a [u16],
    share: Share,
    /// How many of its devices are in use.
    online: usize,
    /// Those of them that want room: all, unless some are full and others have room to spare.
    wanting: BTreeSet<u16>,
    /// How many columns of `share.segments` new segments lie on these; at least 1.
    columns: u64,
}

impl Anew<'_> {
    /// Whether some devices of the group are full and others have room to spare.
    fn is_uneven(&self) -> bool {
        self.wanting.len() < self.online
    }

    /// What new data would hold in `placed` slots on the devices that want room, each of which holds `slot` now.
    fn holds(&self, placed: u64, slot: u64) -> u64 {
        let data = u128::from(placed) * self.share.k as u128 * u128::from(self.share.segments);
        let holds = u128::from(slot) * data / u128::from(self.columns);
        u64::try_from(holds).unwrap_or(u64::MAX)
    }
}

/// How many thousandths of `worth` a gain is that is no more than that.
fn thousandths(gain: u64, worth: u64) -> u64 {
    let part = u128::from(gain) * 1000 / u128::from(worth);
    u64::try_from(part).expect("at most a thousand")
}

impl Home {
    /// How many segments' worth of live blocks one round of cleaning may move: what the slots hold that
    /// are free above what cleaning must leave, less one for an open segment. Where some devices are full, what
    /// fits on these, if anything does; else new stripes are narrow, on the others.
    pub(crate) fn clean_budget(&self) -> u64 {
        let (blocks, need) = (self.core.slot_blocks, self.metadata_need());
        let spare = |m: &Member| {
            let kept = reserve(Purpose::Clean, m.geometry.slots, blocks, need) + 1;
            m.free_slots().saturating_sub(kept) as u64
        };
        let online = self.core.members.iter().filter(|m| m.takes_slots());
        let all = online.map(spare).sum::<u64>() / u64::from(self.shape.width());
        let on_wanting = |anew: &Anew| {
            let wanting = anew.wanting.iter().map(|d| spare(self.core.member(*d)));
            wanting.sum::<u64>() * anew.share.segments / anew.columns
        };
        let uneven = self.anew(need).into_iter().filter(Anew::is_uneven);
        let most = uneven.map(|a| on_wanting(&a)).filter(|most| *most > 1);
        most.fold(all, u64::min).min(64)
    }

    /// The sealed segments of a kind, or of both, with the most to gain, and how many blocks; at most `count`.
    pub(crate) fn pick_victims(
        &self,
        kind: Option<SegmentKind>,
        count: usize,
    ) -> Vec<(Pinned, u64)> {
        let anew = self.anew(self.metadata_need());
        let nodes = self.shared_nodes();
        let least = (self.clean_reserve_percent() * 15 / 2).min(NOT_CLEANED);
        let mut victims: Vec<(Pinned, u64, u64)> = self
            .core
            .segments
            .borrow()
            .values()
            .filter(|s| s.sealed.get() && !self.nodes.is_current(s))
            .filter(|s| kind.is_none_or(|kind| s.kind == kind))
            .map(|s| {
                let worth = self.worth(s, &anew, nodes);
                let gain = worth.saturating_sub(100 * u64::from(s.live.borrow().count()));
                (s.pin(), gain / 100, thousandths(gain, worth))
            })
            .filter(|(s, _, share)| *share >= least && !s.live.borrow().is_empty())
            .collect();
        victims.sort_by_key(|(_, _, share)| std::cmp::Reverse(*share));
        victims.truncate(count);
        let gain = |(segment, gain, _)| (segment, gain);
        victims.into_iter().map(gain).collect()
    }

    /// The groups whose new data are not laid as on all their devices: they keep to shares (`keeps_shares`), or
    /// are unevenly full.
    fn anew(&self, need: MetadataNeed) -> Vec<Anew<'_>> {
        // What is moved goes where there is room. Where a group has room for clients and lays all columns, nothing
        // is gained by moving what others would lay without them (#135), and no client waits for it.
        let lays_all = |(group, eligible): &(&[u16], Vec<u16>)| {
            eligible.len() == self.online_of(group).count() && !self.keeps_shares(group, need)
        };
        let groups = self.groups_for(Purpose::Client, need);
        let shares = !groups.iter().any(lays_all);
        let groups = self.shape.groups.iter();
        groups
            .filter_map(|g| self.anew_in(g, shares && self.keeps_shares(g, need), need))
            .collect()
    }

    fn anew_in<'a>(
        &'a self,
        group: &'a [u16],
        short: bool,
        need: MetadataNeed,
    ) -> Option<Anew<'a>> {
        let online: Vec<u16> = self.online_of(group).collect();
        let share = if short {
            self.share(group)
        } else {
            self.share_on(online.len())
        };
        // Columns of a new segment on the devices in use.
        let width = usize::try_from(share.columns.div_ceil(share.segments)).expect("a width");
        let roomy = self.roomy(group, width, need);
        if !short && roomy.is_empty() {
            return None;
        }
        let columns = if roomy.is_empty() {
            share.columns
        } else {
            let (domain, weight) = (|d| self.core.domains.of(d), self.weights(&online));
            let cap = self.domain_cap(group, width, need);
            let on_wanting = |width: usize| -> f64 {
                let loads = Placement::loads(&online, width, &domain, cap, &weight);
                let wanting = loads.iter().filter(|(d, _)| !roomy.contains(d));
                wanting.map(|(_, load)| load).sum()
            };
            // Some segments have a column less than others: what leaves out any device leaves out one that wants
            // room. With all as wide as the widest nothing seemed worth cleaning (#176).
            let wide = share.columns - (width as u64 - 1) * share.segments;
            let narrow = share.segments - wide;
            let of_narrow = if narrow > 0 && width > 1 {
                on_wanting(width - 1)
            } else {
                0.0
            };
            (wide as f64 * on_wanting(width) + narrow as f64 * of_narrow) as u64
        };
        Some(Anew {
            group,
            share,
            online: online.len(),
            wanting: online.into_iter().filter(|d| !roomy.contains(d)).collect(),
            columns: columns.max(1),
        })
    }

    /// How much the slots of a segment are worth, in hundredths of a block (in whole ones small segments would not tell
    /// of what makes less than a block, #166): what it holds, or, in a group that lays data otherwise now, what new
    /// data would hold in its slots on the devices that want room. So columns that were laid while there was room give
    /// it back, and what lies on full devices goes to others. Nodes the same, of which a slot takes `nodes` hundredths
    /// now.
    fn worth(&self, segment: &Segment, anew: &[Anew<'_>], nodes: u64) -> u64 {
        let holds = 100 * u64::from(segment.geometry.data_blocks());
        if segment.kind == SegmentKind::Meta {
            let usable = |c: &usize| self.core.column_usable(segment, *c);
            let placed = (0..segment.geometry.width()).filter(usable).count() as u64;
            return holds.max(placed * nodes);
        }
        if anew.is_empty() {
            return holds;
        }
        let columns = segment.columns.borrow();
        let on = |d: &u16| columns.iter().any(|c| c.is_placed() && c.device == *d);
        let Some(anew) = anew.iter().find(|a| a.group.iter().any(on)) else {
            return holds;
        };
        let usable = |c: &usize| {
            self.core.column_usable(segment, *c) && anew.wanting.contains(&columns[*c].device)
        };
        let placed = (0..segment.geometry.width()).filter(usable).count() as u64;
        let worth = anew.holds(placed, holds / u64::from(segment.geometry.k));
        if anew.is_uneven() {
            worth.max(1)
        } else {
            worth.max(holds)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_format::SegmentGeometry;

    /// A slot of an array as large as can be is worth what it holds, and a little more where columns are left out.
    #[test]
    fn slots_of_large_arrays_are_worth_what_they_hold() {
        let geometry = SegmentGeometry {
            k: 200,
            m: 56,
            strip_blocks: 256,
            slot_blocks: 1 << 18,
        };
        let holds = 100 * u64::from(geometry.data_blocks());
        // A thousand devices of 16 TiB, ten of which are gone.
        let slots = 16 << 10;
        let anew = Anew {
            group: &[],
            share: Share {
                k: 200,
                width: 256,
                segments: 1000 * slots,
                columns: 990 * slots * 256,
            },
            online: 990,
            wanting: (0..990).collect(),
            columns: 990 * slots * 256,
        };
        let slot = holds / 200;
        assert_eq!(anew.holds(256, slot), slot * 200 * 1000 / 990);
        assert_eq!(anew.holds(0, slot), 0);
        // Where next to nothing is laid on those that want room, all they give is gain.
        let none = Anew { columns: 1, ..anew };
        let worth = none.holds(256, slot);
        assert_eq!(thousandths(worth - holds, worth), 999);
    }
}
