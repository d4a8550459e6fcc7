//! The space of background work under way: claims of moves, segments being emptied, slots that columns have left.
//!
//! Invariants:
//! - The claims of moves are kept by the area that they go to, and given back when nothing moves there any more.
//! - A segment that was emptied is in flight until the checkpoint that frees it has ended; if that finds it alive, it
//!   is due again.
//! - Work that changed nothing about its segment is not tried again before something has changed: so work ends,
//!   whatever cannot be read.
//! - A slot that a column has left is free only after a root whose tables do not name it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ashlar_format::{BLOCK_U64, SegmentNumber};
use ashlar_space::index::SegmentFacts;
use ashlar_space::ledger::{Claim, Ledger};
use ashlar_space::topology::{Area, Topology};
use ashlar_space::work::even::{slots_to_even, uneven_slots};
use ashlar_space::work::{Job, Lack, Narrow, Policy, Table, lacks, next_job};

use crate::home::Home;
use crate::home::left::Left;
use crate::home::space::Segments;
use crate::protocol::{Moved, Reach};
use crate::segment::{Column, Segment};

/// Percent of an area's segments that clients should find free, at least and at most.
const TARGET: (u32, u32) = (1, 8);

/// Thousandths of a segment that are gained at least where it is cleaned, unless less is kept for cleaning.
const LEAST_GAIN: u16 = 50;

/// The same before what was overwritten is merged.
const LEAST_GAIN_UNMERGED: u16 = 200;

/// Thousandths of its slots that a device may have more or fewer free than its share.
const SPREAD: u16 = 50;

/// A segment that is being emptied, or was, and that a merge frees.
#[derive(Debug)]
struct Emptying {
    /// The devices that its slots are expected from.
    devices: Vec<u16>,
    /// The facts that it had; `None` if the job could not do all it was to do.
    facts: Option<SegmentFacts>,
    /// The merge that frees it, if the job has ended.
    by: Option<u64>,
}

/// How a job has ended with a segment that stays.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    /// The segment got something that it lacked, or a device the room that it lacked.
    Gained,
    /// All was done that could be. A segment that still is as it was then is left alone.
    Tried(SegmentFacts),
    /// Others had the room: it is tried again when slots come back.
    Refused,
}

/// Whatever background work depends on. As long as it is the same, work that could not be done cannot be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    generation: u64,
    /// Blocks written by clients: each may have left a dead one.
    written: u64,
    /// Group commits that unmapped something.
    unmapped: u64,
    /// How often slots came back.
    returns: u64,
    /// Whether clients had less room than they should find: only then everything was tried to make some.
    short: bool,
}

impl Seen {
    /// All but the slots that came back.
    pub(crate) fn changes(&self) -> (u64, u64, u64) {
        (self.generation, self.written, self.unmapped)
    }
}

/// Background work under way.
#[derive(Debug, Default)]
pub struct Jobs {
    /// Claims of moves, by where they go.
    moves: RefCell<Vec<(Area, Claim)>>,
    /// How many jobs move blocks to an area.
    moving: RefCell<BTreeMap<Area, usize>>,
    /// Segments that moves fill.
    filling: RefCell<Vec<(Area, SegmentNumber)>>,
    emptying: RefCell<BTreeMap<SegmentNumber, Emptying>>,
    /// Slots that columns have left.
    vacated: RefCell<Vec<Column>>,
    /// Jobs under way.
    pub(crate) running: Cell<usize>,
    /// Merges for what jobs have left: how many have begun, and whether one is under way.
    merges: Cell<u64>,
    merging: Cell<bool>,
    /// What merges have left to do.
    pub(super) left: Left,
    /// Segments that clients should find free.
    ahead: Cell<u32>,
    /// Whether a client has waited for a segment since the last merge.
    waited: Cell<bool>,
    /// Clients that wait for one.
    waiting: Cell<usize>,
    /// What was seen when no work was left to do.
    rested: Cell<Option<Seen>>,
    /// What was seen when all that clients had written was merged.
    merged: Cell<Option<(u64, u64)>>,
}

/// A client waits for a segment.
pub(super) struct Waits<'a>(&'a Jobs);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

impl Jobs {
    /// Takes the slots of a segment that was claimed for moves to an area.
    pub(super) fn acquire(
        &self,
        ledger: &mut Ledger,
        area: Area,
        preferred: &[u16],
    ) -> Option<Vec<u16>> {
        let moves = self.moves.borrow();
        let mut claims = moves.iter().filter(|(to, _)| *to == area);
        claims.find_map(|(_, claim)| ledger.acquire(claim, preferred))
    }

    /// Moves to an area fill this segment.
    pub(super) fn fills(&self, area: Area, segment: SegmentNumber) {
        self.filling.borrow_mut().push((area, segment));
    }

    /// A job that moves blocks to an area has begun.
    fn begin_moves(&self, ledger: &mut Ledger, area: Area, claim: Claim) {
        *self.moving.borrow_mut().entry(area).or_default() += 1;
        if ledger.left(&claim).0 > 0 {
            self.moves.borrow_mut().push((area, claim));
        } else {
            ledger.give_back(claim);
        }
    }

    /// A job that moves blocks to an area has ended: what no other needs is given back.
    fn end_moves(&self, ledger: &mut Ledger, area: Area) {
        let mut moving = self.moving.borrow_mut();
        let left = moving.entry(area).or_default();
        *left = left.saturating_sub(1);
        if *left > 0 {
            return;
        }
        let mut moves = self.moves.borrow_mut();
        let (back, kept) = moves.drain(..).partition(|(to, _)| *to == area);
        *moves = kept;
        let back: Vec<(Area, Claim)> = back;
        back.into_iter()
            .for_each(|(_, claim)| ledger.give_back(claim));
    }

    /// A client waits for a segment, until this is dropped.
    pub(super) fn wait(&self) -> Waits<'_> {
        self.waited.set(true);
        self.waiting.set(self.waiting.get() + 1);
        Waits(self)
    }

    /// Whether a client waits for a segment: then no work is held back that may free one.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.waiting.get() > 0
    }

    /// A merge has ended: clients should find more than before if one has waited meanwhile, else somewhat less.
    fn adapt(&self, (least, most): (u32, u32)) {
        let ahead = self.ahead.get().clamp(least, most);
        self.ahead.set(if self.waited.replace(false) {
            ahead + (ahead / 8).max(1)
        } else {
            ahead - ahead / 16
        });
    }

    /// A column has left its slot, or the slot is tried once more.
    pub(crate) fn vacate(&self, column: Column) {
        self.vacated.borrow_mut().push(column);
    }

    /// A device has come in another's place, or anew: the slots that columns have left on it are free already.
    pub(super) fn forget_vacated(&self, device: u16) {
        self.vacated.borrow_mut().retain(|c| c.device != device);
    }

    /// The slots that columns have left until now.
    pub(super) fn take_vacated(&self) -> Vec<Column> {
        self.vacated.take()
    }

    /// Whether a checkpoint would free something that a job has left.
    pub(crate) fn waits_for_checkpoint(&self) -> bool {
        let emptied = |e: &Emptying| e.by.is_some();
        self.emptying.borrow().values().any(emptied) || !self.vacated.borrow().is_empty()
    }

    /// Whether a job moves blocks.
    pub(crate) fn is_moving(&self) -> bool {
        self.moving.borrow().values().any(|jobs| *jobs > 0)
    }

    /// Whether a merge for what jobs have left is under way.
    pub(crate) fn is_merging(&self) -> bool {
        self.merging.get()
    }

    /// A merge for what jobs have left begins.
    pub(crate) fn begin_merge(&self) {
        self.merges.set(self.merges.get() + 1);
        self.merging.set(true);
    }

    /// Work may be looked for again, whatever the last merges have left.
    fn forget_merges(&self) {
        self.left.forget();
        self.rested.set(None);
    }

    /// All that clients had written when this was seen is merged.
    pub(super) fn merged(&self, written: u64, unmapped: u64) {
        self.merged.set(Some((written, unmapped)));
    }
}

impl Home {
    /// What could not be done may be tried again.
    pub(crate) fn try_again(&self) {
        self.space.index().try_again();
        self.space.jobs.forget_merges();
    }

    /// What background work depends on, now.
    pub(crate) fn seen(&self) -> Seen {
        let short = self.is_short();
        let returns = self.space.ledger().returns();
        Seen {
            generation: self.superblock.borrow().generation.number,
            written: self.core.meters.host.get(),
            unmapped: self.tasks.borrow().unmapped,
            returns,
            short,
        }
    }

    /// Whether clients have overwritten or unmapped something that is not merged yet.
    pub(crate) fn is_unmerged(&self) -> bool {
        let now = (self.core.meters.host.get(), self.tasks.borrow().unmapped);
        self.space.jobs.merged.get() != Some(now)
    }

    /// Nothing was left to do when this was seen.
    pub(crate) fn rest(&self, seen: Seen) {
        if self.space.jobs.rested.replace(Some(seen)) != Some(seen) {
            self.core.progress.open();
        }
    }

    /// Whether no work is under way or could be done: then a client that found no room is told so.
    pub(crate) fn work_rests(&self) -> bool {
        let jobs = &self.space.jobs;
        jobs.running.get() == 0
            && !jobs.merging.get()
            && !jobs.waits_for_checkpoint()
            && !self.checkpoints.under_way.get()
            && jobs.rested.get() == Some(self.seen())
    }

    /// Settings that the choice of work depends on. `least_gain`: in thousandths of a segment.
    fn policy(&self, least_gain: u16) -> Policy {
        Policy {
            paused: self.tasks.borrow().paused(),
            narrow: self.narrow_policy(),
            reshape: false,
            least_gain,
            spread: SPREAD,
            target: self.target(),
            now: self.root.next_segment(),
        }
    }

    /// Segments that clients should find free in each area. The later a segment is cleaned, the more of it is dead, so
    /// these are as few as keep clients from waiting: see [`Jobs::adapt`].
    fn target(&self) -> u32 {
        let (least, most) = self.targets();
        self.space.jobs.ahead.get().clamp(least, most)
    }

    /// The least and the most that [`Home::target`] is.
    fn targets(&self) -> (u32, u32) {
        let topology = self.topology();
        let width = u32::from(topology.shape().width());
        let segments = |group: u16| {
            let slots = topology.taking(group).map(|d| topology.slots(d));
            slots.sum::<u32>() / width
        };
        let all = (0..topology.groups()).map(segments).min().unwrap_or(0);
        let part = |percent: u32| (all * percent / 100).max(1);
        (part(TARGET.0), part(TARGET.1))
    }

    /// Whether clients could be given less than they should find, in some group, once all is done that is under way.
    pub(crate) fn is_short(&self) -> bool {
        let target = self.target();
        let ledger = self.space.ledger();
        let groups = ledger.topology().groups();
        !(0..groups).all(|g| ledger.projects(Area::Group(g), target))
    }

    /// Whether free slots would take no more than the next steps of checkpoints: then each has to free room first.
    pub(crate) fn room_is_tight(&self) -> bool {
        self.space.ledger().is_tight()
    }

    /// Thousandths of a segment that are to be gained at least where it is cleaned.
    fn least_gain(&self) -> u16 {
        let reserve = u16::from(self.clean_reserve_percent());
        let least = (reserve * 15 / 2).min(LEAST_GAIN);
        match () {
            () if self.is_fruitless() => u16::MAX,
            // What was overwritten is known to be dead only once it has been merged.
            () if self.is_unmerged() => least.max(LEAST_GAIN_UNMERGED),
            () => least,
        }
    }

    /// The next job, with its claim: it is under way from now on.
    pub(crate) fn next_job(&self) -> Option<(Job, Claim)> {
        self.refresh_index();
        let policy = self.policy(self.least_gain());
        let (mut index, mut ledger) = (self.space.index(), self.space.ledger());
        let jobs = &self.space.jobs;
        let mut filling = jobs.filling.borrow_mut();
        let segments = self.core.segments.borrow();
        // A stream leaves a segment that has lost a column, whatever room it has.
        filling.retain(|(_, number)| {
            let open = segments.get(number);
            open.is_some_and(|s| s.has_room() && !self.core.has_lost_column(s))
        });
        let moves = jobs.moves.borrow();
        let areas: BTreeSet<Area> = (0..ledger.topology().groups())
            .map(Area::Group)
            .chain([Area::Nodes])
            .collect();
        for area in areas {
            // Each shard moves into segments of its own: room in one is nothing to another.
            let open = filling
                .iter()
                .filter(|(to, _)| *to == area && self.shards.len() == 1);
            let open = open.filter_map(|(_, number)| segments.get(number));
            let open = open.map(|s| s.room()).sum();
            let claims = moves.iter().filter(|(to, _)| *to == area);
            let claimed = claims.map(|(_, claim)| ledger.left(claim).0).sum();
            index.set_stream(area, open, claimed);
        }
        drop((moves, filling, segments));
        let found = next_job(&mut index, &mut ledger, &Segments(&self.core), &policy);
        drop((index, ledger));
        if let Some((Job::Rewrite { segment, .. } | Job::Renew { segment }, _)) = &found {
            self.note_emptying(*segment);
        }
        if found.is_some() {
            jobs.running.set(jobs.running.get() + 1);
        }
        found
    }

    /// A claimed slot for a column of a segment whose own does not keep what is written; the segment is in flight.
    pub(crate) fn relocate(&self, segment: &Segment, column: u16) -> Option<(u16, Claim)> {
        self.refresh_index();
        let facts = self.facts(&self.topology(), &self.plan(), segment);
        let (table, policy) = (Segments(&self.core), self.policy(0));
        let (mut index, mut ledger) = (self.space.index(), self.space.ledger());
        let at = (segment.number, column);
        ashlar_space::work::relocate(&mut index, &mut ledger, &table, &policy, at, facts)
    }

    /// Bytes of the columns that are to move: from members that are to leave, from failure domains that have too many of
    /// a segment, and to members that hold less than their share; `None` if none are to, and no member is to leave.
    pub(crate) fn bytes_to_move(&self) -> Option<u64> {
        let policy = self.policy(0);
        let elsewhere = self.columns_elsewhere();
        let uneven = slots_to_even(&self.space.index(), &self.space.ledger(), &policy);
        let bytes = |slots: u64| slots * u64::from(self.core.slot_blocks) * BLOCK_U64;
        let leaving = self.bytes_on_leaving();
        // What lies on members that are to leave lies elsewhere than the plan wants.
        let all = leaving.unwrap_or(0).max(bytes(elsewhere)) + bytes(uneven);
        (all > 0 || leaving.is_some()).then_some(all)
    }

    /// Bytes of the columns that move to other devices once the members are these.
    pub(super) fn bytes_to_even(&self, topology: &Topology) -> u64 {
        let policy = self.policy(0);
        let mut ledger = self.space.ledger().clone();
        let plan = ledger.plan().clone();
        ledger.change(topology.clone(), plan);
        let slots = uneven_slots(&ledger, &policy);
        slots * u64::from(self.core.slot_blocks) * BLOCK_U64
    }

    /// Why the rest of the work waits.
    pub(crate) fn lack(&self) -> Lack {
        lacks(&self.space.index(), &self.space.ledger())
    }

    /// A job moves the blocks of a segment to an area.
    pub(crate) fn begin_moves(&self, area: Area, claim: Claim) {
        (self.space.jobs).begin_moves(&mut self.space.ledger(), area, claim);
    }

    /// A job has moved the blocks of a segment to an area, as far as it could: the next merge tells. If it has moved
    /// none, none need be merged.
    pub(crate) fn end_moves(&self, area: Area, segment: SegmentNumber, moved: Moved) {
        let jobs = &self.space.jobs;
        jobs.end_moves(&mut self.space.ledger(), area);
        if moved.bytes > 0 {
            self.emptied(segment, jobs.merges.get() + 1, moved.refused);
            return;
        }
        let emptying = jobs.emptying.borrow_mut().remove(&segment);
        if let Some(Emptying { devices, facts, .. }) = emptying {
            self.space.ledger().unexpect(&devices);
            let facts = facts.filter(|_| !moved.refused);
            self.end_job(segment, facts.map_or(End::Refused, End::Tried));
        }
    }

    /// The checkpoint under way writes the nodes of a segment elsewhere. `refused`: there was no room for all of them.
    pub(super) fn renewed(&self, segment: SegmentNumber, refused: bool) {
        self.emptied(segment, self.space.jobs.merges.get(), refused);
    }

    /// The checkpoint under way writes some nodes of a segment elsewhere: the next step may go on with it. Were it to
    /// wait for the end of the merge, a few nodes that are left would keep its slots from all steps of that.
    pub(super) fn renewed_in_part(&self, segment: SegmentNumber) {
        if let Some(emptying) = self.space.jobs.emptying.borrow_mut().remove(&segment) {
            self.space.ledger().unexpect(&emptying.devices);
        }
        self.end_job(segment, End::Gained);
    }

    /// A segment holds nothing any more once the merge of this number has ended.
    fn emptied(&self, segment: SegmentNumber, by: u64, refused: bool) {
        // It may have died, and been freed, meanwhile.
        if let Some(emptying) = self.space.jobs.emptying.borrow_mut().get_mut(&segment) {
            self.space.index().begin(segment, None); // nothing of it waits for room any more
            emptying.by = Some(by);
            emptying.facts = emptying.facts.filter(|_| !refused);
        }
    }

    /// The checkpoint under way is to write the nodes of a segment elsewhere.
    pub(super) fn begin_renewal(&self, segment: SegmentNumber) {
        self.space.index().begin(segment, None);
        let devices = self.note_emptying(segment);
        self.space.ledger().expect(&devices);
    }

    /// A segment is about to be emptied; the devices that its slots are expected from.
    fn note_emptying(&self, segment: SegmentNumber) -> Vec<u16> {
        let facts = self.space.index().get(segment).copied();
        let devices = Segments(&self.core).columns(segment);
        let devices: Vec<u16> = devices.into_iter().flatten().collect();
        let emptying = Emptying {
            devices: devices.clone(),
            facts,
            by: None,
        };
        let before = (self.space.jobs.emptying.borrow_mut()).insert(segment, emptying);
        debug_assert!(before.is_none(), "a segment is emptied by one job");
        devices
    }

    /// A job is done with a segment, which stays.
    pub(crate) fn end_job(&self, number: SegmentNumber, end: End) {
        if matches!(end, End::Refused) {
            self.space.index().park(number);
            return;
        }
        self.space.index().end(number);
        let segments = self.core.segments.borrow();
        if let (End::Tried(before), Some(segment)) = (end, segments.get(&number)) {
            let now = self.facts(&self.topology(), &self.plan(), segment);
            let mut index = self.space.index();
            index.set(number, now);
            if now == before {
                index.give_up(number);
            }
        }
        self.core.unsettled.borrow_mut().insert(number);
    }

    /// The slots of a segment will be free after the next root.
    pub(super) fn free_slots_of(&self, number: SegmentNumber, columns: &[Column]) {
        let mut ledger = self.space.ledger();
        if let Some(emptying) = self.space.jobs.emptying.borrow_mut().remove(&number) {
            ledger.unexpect(&emptying.devices);
        }
        let placed = columns.iter().filter(|c| c.is_placed());
        let devices: Vec<u16> = placed.map(|c| c.device).collect();
        ledger.free_later(&devices, false);
        self.core.unsettled.borrow_mut().insert(number);
    }

    /// Merges what is recorded, which frees most of what jobs had left when the merge began ([`Jobs::begin_merge`]).
    /// With `close` also what lies in unfinished stripes, which are closed for it; else segments that were emptied into
    /// these wait for the next merge. A segment that is not freed though all was merged is due again.
    pub(crate) async fn merge_for_jobs(self: &Rc<Self>, close: bool) {
        let jobs = &self.space.jobs;
        let merge = jobs.merges.get();
        if close {
            self.merge().await;
        } else {
            self.group_commit(Reach::All).await;
            self.checkpoint(self.journal.next()).await;
        }
        jobs.merging.set(false);
        let is_due = |e: &Emptying| {
            let waits = !close && e.facts.is_some();
            !waits && e.by.is_some_and(|by| by <= merge)
        };
        let (due, kept) = jobs
            .emptying
            .take()
            .into_iter()
            .partition(|(_, e)| is_due(e));
        jobs.emptying.replace(kept);
        let due: BTreeMap<SegmentNumber, Emptying> = due;
        for (number, emptying) in due {
            self.space.ledger().unexpect(&emptying.devices);
            self.end_job(number, emptying.facts.map_or(End::Refused, End::Tried));
        }
        jobs.adapt(self.targets());
        self.note_left();
        self.core.progress.open();
    }
}

/// The policy of a setting's value.
pub fn narrow_named(value: &str) -> Narrow {
    match value {
        "never" => Narrow::Never,
        "always" => Narrow::Always,
        _ => Narrow::Critical,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_has_a_name() {
        for (name, policy) in [
            ("never", Narrow::Never),
            ("always", Narrow::Always),
            ("critical", Narrow::Critical),
        ] {
            assert_eq!(narrow_named(name), policy);
        }
    }
}
