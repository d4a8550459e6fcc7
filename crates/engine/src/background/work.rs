//! The one loop of background work: it takes the next job that the books of free space offer, as many at once as memory
//! allows, and merges what jobs have left.
//!
//! Invariants:
//! - A job holds its claim from when it is offered; what it does not need goes back when it ends.
//! - What was overwritten is known to be dead once it is merged: where room is short that comes first.
//! - When nothing is left to do, the loop says so (`Home::rest`): clients that wait for room are told then.

use std::cell::Cell;
use std::rc::Rc;

use ashlar_format::SegmentGeometry;
use ashlar_rt::{MILLISECOND, Nanos, SECOND};
use ashlar_space::floors::Class;
use ashlar_space::ledger::Claim;
use ashlar_space::topology::{Area, Presence};
use ashlar_space::work::{Job, Lack};

use crate::background::Background;
use crate::background::column::Leaves;
use crate::home::jobs::End;
use crate::home::space::area_of;
use crate::home::work::Redundancy;
use crate::protocol::{Moved, Reach};
use crate::segment::{Column, Segment};
use crate::status::{TaskState, Work};

/// Jobs at once: so many, or as many as what they read at once of all their columns takes so many bytes.
const JOBS_AT_ONCE: usize = 32;
const BYTES_AT_ONCE: (u64, u64) = (64 << 20, 512 << 20);

/// Reads and writes of a device that jobs are to have under way together.
const IN_FLIGHT: u64 = 8;

/// One job more is done at once for so many slots of a device: where slots are few, on few segments.
const SLOTS_PER_JOB: usize = 128;

/// Work is looked for this often, if nothing asks for it.
const LOOK: Nanos = 500 * MILLISECOND;

/// What came to nothing is tried again after such a time at most: a device may have read what it could not.
const LONGEST_PAUSE: Nanos = 3600 * SECOND;

/// What came to nothing, and when it is tried again.
#[derive(Default)]
struct Failed {
    /// What the work depended on when it was looked at last.
    seen: Option<((u64, u64, u64), u64)>,
    /// Tries since that has changed.
    tries: u32,
    /// When it is tried next.
    next: Option<Nanos>,
}

impl Failed {
    /// At rest: tries it again when that is due. Whether it has been tried since something changed, or nothing failed: that
    /// a device was lost in the middle of a job is no reason to say that nothing more can be done.
    fn is_over(&mut self, background: &Background) -> bool {
        let home = &background.home;
        let seen = Some((home.seen().changes(), home.tasks.borrow().gains));
        if self.seen != seen {
            (self.seen, self.tries) = (seen, 0);
        }
        if !home.space.index().has_given_up() {
            self.next = None;
            return true;
        }
        let now = background.core.rt.now();
        let pause = (SECOND << self.tries.min(12)).min(LONGEST_PAUSE);
        // However often something changes, it is not put off.
        let next = self.next.map_or(now + pause, |next| next.min(now + pause));
        self.next = Some(next);
        if now >= next {
            home.try_again();
            self.tries += 1;
            self.next = None;
            return false;
        }
        self.tries > 0
    }
}

impl Background {
    pub(super) async fn work_forever(self: Rc<Self>) {
        let mut tried = None;
        let mut failed = Failed::default();
        while !self.core.closed.get() {
            if !self.core.failing.is_empty() {
                // No columns are missing yet of a device that is about to be taken out.
                self.home.members_settled().await;
                let next = self.core.failing.reported();
                let _ = self.core.rt.timeout(MILLISECOND, next).await;
                continue;
            }
            if self.home.is_degraded() {
                self.settle_broken(&mut tried).await;
            }
            self.home.look_who_is_awaited();
            self.remove_emptied();
            let started = self.start_jobs();
            let merges = self.merge_if_due(started);
            let rests = !started && !merges && self.is_at_rest() && !self.ends_crowded().await;
            let rests = rests && failed.is_over(&self);
            if rests {
                self.home.rest(self.home.seen());
            }
            self.show(rests);
            let asked = self.home.demand.clean_wanted();
            let _ = self.core.rt.timeout(LOOK, asked).await;
        }
    }

    /// Ends segments that are written, and whose columns could not move before; whether there are any.
    async fn ends_crowded(&self) -> bool {
        !self.is_paused(Work::Rebalance) && self.home.end_crowded().await
    }

    /// Whether nothing runs, and nothing waits for a merge.
    fn is_at_rest(&self) -> bool {
        let jobs = &self.home.space.jobs;
        jobs.running.get() == 0 && !jobs.is_merging() && !self.waits_for_merge()
    }

    /// Whether jobs have left something that a merge frees; once none runs, also columns that it settles.
    fn waits_for_merge(&self) -> bool {
        let space = &self.home.space;
        let given = self.given.get() > 0 && space.jobs.running.get() == 0;
        space.jobs.waits_for_checkpoint() || space.steps.has_renewals() || given
    }

    /// Merges beside the jobs under way, if nothing else could be begun and it frees something. Whether it does, or one
    /// is under way.
    fn merge_if_due(self: &Rc<Self>, started: bool) -> bool {
        let jobs = &self.home.space.jobs;
        if jobs.is_merging() {
            return true;
        }
        let idle = !started && jobs.running.get() == 0;
        let wants_room = || self.home.is_short() || self.home.lack() == Lack::Room;
        let moves = || self.home.bytes_to_move().is_some() && !self.is_paused(Work::Rebalance);
        let wanted = || wants_room() || moves();
        let overwritten = idle && self.home.is_unmerged() && wanted();
        let left = !started && self.waits_for_merge() && !jobs.is_moving();
        if !overwritten && !left {
            return false;
        }
        jobs.begin_merge();
        // A stripe that is closed before it is full costs room: that only where nothing else is left to do.
        let close = !self.ended.replace(false);
        let background = self.clone();
        self.core.rt.spawn(async move {
            let given = background.given.take();
            background.home.merge_for_jobs(close).await;
            if given > 0 {
                let text =
                    format!("rebuild progress: missing columns written to other devices: {given}");
                background.core.events.note("reconstructed", None, text);
            }
            background.home.demand.clean();
        });
        true
    }

    /// Starts as many jobs as may run at once; whether any.
    fn start_jobs(self: &Rc<Self>) -> bool {
        let (mut any, most) = (false, self.at_once());
        while self.home.space.jobs.running.get() < most
            && !self.core.closed.get()
            && let Some((job, claim)) = self.home.next_job()
        {
            any = true;
            let work = self.kind_of(&job);
            let counter = self.under_way(work);
            counter.set(counter.get() + 1);
            match work {
                Work::Rebuild => self.start_progress(),
                Work::Rebalance => self.start_moving(),
                Work::Clean | Work::Repair | Work::Scrub => {}
            }
            let claim = match job {
                Job::Rewrite { into, .. } => {
                    self.home.begin_moves(into, claim);
                    None
                }
                _ => Some(claim),
            };
            let background = self.clone();
            self.core.rt.spawn(async move {
                background.run(job, work, claim).await;
                let running = &background.home.space.jobs.running;
                running.set(running.get() - 1);
                background.ended.set(true);
                let counter = background.under_way(work);
                counter.set(counter.get() - 1);
                background.home.demand.clean();
                background.core.progress.open();
            });
        }
        any
    }

    /// How many jobs of this kind are under way.
    fn under_way(&self, work: Work) -> &Cell<usize> {
        match work {
            Work::Rebuild => &self.rebuilding,
            Work::Rebalance => &self.moving,
            Work::Clean | Work::Repair | Work::Scrub => &self.cleaning,
        }
    }

    /// Segments of data as the array lays them with all its devices.
    pub(super) fn geometry(&self) -> SegmentGeometry {
        let topology = self.home.topology();
        SegmentGeometry {
            k: topology.shape().k,
            m: topology.shape().m,
            strip_blocks: self.home.superblock.borrow().strip_blocks,
            slot_blocks: self.core.slot_blocks,
        }
    }

    /// How many jobs may run at once.
    fn at_once(&self) -> usize {
        let topology = self.home.topology();
        let slots = topology.members().iter().map(|m| m.slots as usize);
        let by_slots = slots.min().unwrap_or(0) / SLOTS_PER_JOB;
        let bytes = self.bytes_at_once(self.geometry());
        let in_use = topology
            .members()
            .iter()
            .filter(|m| m.presence != Presence::Gone);
        let most = IN_FLIGHT * self.stretch_bytes() * in_use.count() as u64;
        let most = most.clamp(BYTES_AT_ONCE.0, BYTES_AT_ONCE.1);
        let fitting = usize::try_from(most / bytes.max(1));
        fitting.unwrap_or(1).min(by_slots).clamp(1, JOBS_AT_ONCE)
    }

    /// Whether the operator has paused work of a kind.
    pub(super) fn is_paused(&self, work: Work) -> bool {
        self.home.tasks.borrow().is_paused(work)
    }

    /// What a job does: whatever it is, with too little redundancy it is rebuild. Else it is a move where columns move, or
    /// lie elsewhere than the plan wants. While that is paused it gives clients room, as cleaning does.
    fn kind_of(&self, job: &Job) -> Work {
        let segment = match job {
            Job::Columns { segment, .. }
            | Job::Rewrite { segment, .. }
            | Job::Renew { segment } => *segment,
            Job::Retry { .. } => return Work::Clean,
        };
        let segments = self.core.segments.borrow();
        let short = |s: &Rc<Segment>| self.home.columns_lacking(s) > 0;
        let lies_elsewhere = || {
            let index = self.home.space.index();
            index.get(segment).is_some_and(|facts| facts.elsewhere > 0)
        };
        if segments.get(&segment).is_some_and(short) && !self.is_paused(Work::Rebuild) {
            Work::Rebuild
        } else if self.is_paused(Work::Rebalance) {
            Work::Clean
        } else if matches!(job, Job::Columns { .. }) || lies_elsewhere() {
            Work::Rebalance
        } else {
            Work::Clean
        }
    }

    /// Bytes of the columns that a segment misses, as progress counts them.
    fn missing_bytes(&self, number: u64) -> u64 {
        let segments = self.core.segments.borrow();
        let segment = segments.get(&number);
        segment.map_or(0, |s| self.home.bytes_missing_of(s))
    }

    async fn run(self: &Rc<Self>, job: Job, work: Work, claim: Option<Claim>) {
        let back = |claim: Option<Claim>| {
            if let Some(claim) = claim {
                self.home.space.ledger().give_back(claim);
            }
        };
        match job {
            Job::Columns { segment, to } => {
                self.give_columns(segment, (&to, claim), work).await;
            }
            Job::Rewrite { segment, into } => {
                let missing = self.missing_bytes(segment);
                let moved = self.empty_into(segment, into, work).await;
                self.home.end_moves(into, segment, moved);
                let (work, bytes) = match work {
                    Work::Rebuild => (work, if moved.refused { 0 } else { missing }),
                    Work::Rebalance => (work, moved.bytes),
                    _ => (Work::Clean, moved.bytes),
                };
                self.advance(work, bytes);
            }
            Job::Renew { segment: number } => match (self.core.segment(number), claim) {
                (Some(segment), Some(claim)) => {
                    let missing = self.missing_bytes(number);
                    self.home.renew_later(&segment, claim).await;
                    self.advance(Work::Rebuild, missing);
                }
                (_, claim) => back(claim),
            },
            Job::Retry { device } => {
                if let Some(slot) = self.core.member(device).slots.take_aside() {
                    self.home.space.ledger().retry(device);
                    let version = 0;
                    self.home.space.jobs.vacate(Column {
                        device,
                        slot,
                        version,
                    });
                }
                back(claim);
            }
        }
    }

    /// Gives columns of a segment the slots that were claimed for them.
    async fn give_columns(
        self: &Rc<Self>,
        number: u64,
        (to, claim): (&[(u16, u16)], Option<Claim>),
        work: Work,
    ) {
        let before = self.home.space.index().get(number).copied();
        let mut targets = Vec::new();
        if let Some(claim) = claim {
            let mut ledger = self.home.space.ledger();
            let acquired = to.iter().filter(|(_, d)| ledger.acquire_slot(&claim, *d));
            targets.extend(acquired.map(|(column, device)| (usize::from(*column), *device)));
            ledger.give_back(claim);
        }
        let (mut given, mut changed) = (0, false);
        match self.core.segment(number) {
            Some(segment) => {
                let columns = segment.columns.borrow().clone();
                let is_missing = |(c, _): &&(usize, u16)| !self.core.column_usable(&segment, *c);
                let missing = targets.iter().filter(is_missing).count();
                given = self
                    .rebuild_columns(&segment, &targets, (work, Leaves::Sound))
                    .await;
                self.given.set(self.given.get() + given.min(missing));
                // A device may have come back, or taken the place of another.
                changed = columns != *segment.columns.borrow();
                if self.home.log.moves() > 32 {
                    self.home.group_commit(Reach::Written).await;
                }
            }
            None => {
                let devices: Vec<u16> = targets.iter().map(|(_, device)| *device).collect();
                self.home.space.ledger().put_back(&devices);
            }
        }
        let end = match before {
            _ if given > 0 || changed => End::Gained,
            Some(before) if targets.len() == to.len() => End::Tried(before),
            _ => End::Refused,
        };
        self.home.end_job(number, end);
    }

    /// Moves the live blocks of a segment to a group.
    async fn empty_into(self: &Rc<Self>, number: u64, into: Area, work: Work) -> Moved {
        let (Some(segment), Area::Group(group)) = (self.core.segment(number), into) else {
            return Moved::default();
        };
        // In another group it takes only the room that is there for clients.
        let own = area_of(&self.home.topology(), &segment) == into;
        let class = if own { Class::Clean } else { Class::Client };
        // What is laid otherwise is rewritten for its shape, however it was filled.
        let planned = self.home.plan().of(into).k == segment.geometry.k;
        if own && planned && work == Work::Clean && self.learns_padding(&segment).await {
            return Moved::default(); // it is worth less than it seemed
        }
        self.clean_segment(&segment, (group, class), work).await
    }

    /// Shows how work is, for people.
    fn show(&self, rests: bool) {
        let degraded = self.home.is_degraded();
        let to_move = self.home.bytes_to_move();
        let states = [
            (Work::Rebuild, self.rebuilding.get(), degraded),
            (Work::Clean, self.cleaning.get(), self.home.is_short()),
            (Work::Rebalance, self.moving.get(), to_move.is_some()),
        ];
        for (work, running, due) in states {
            if self.is_paused(work) {
                self.home.tasks.borrow_mut().show_paused(work, running, due);
                continue;
            }
            let (state, reason) = match (running, due) {
                (0, false) => (TaskState::Done, ""),
                (0, true) if rests && work == Work::Clean => {
                    (TaskState::Waiting, "no segment is worth cleaning now")
                }
                (0, true) if rests && work == Work::Rebalance => {
                    (TaskState::Waiting, self.why_not_moved())
                }
                (0, true) if rests => (TaskState::Waiting, self.why_waiting()),
                (0, true) => continue,
                _ => (TaskState::Running, ""),
            };
            let mut tasks = self.home.tasks.borrow_mut();
            let progress = tasks.progress_mut(work);
            if state == TaskState::Waiting && progress.is_over() && work != Work::Clean {
                progress.done = 0; // what was done before is of an earlier loss, or move
            }
            if state != TaskState::Done || progress.state != TaskState::New {
                (progress.state, progress.reason) = (state, reason);
            }
            if work == Work::Rebalance {
                progress.total = progress.done + to_move.unwrap_or(0);
            }
        }
    }

    /// Columns begin to move, if they have not.
    fn start_moving(&self) {
        let mut tasks = self.home.tasks.borrow_mut();
        let task = &mut tasks.rebalance;
        if task.state != TaskState::Running {
            task.begin(self.core.rt.now());
        }
    }

    /// So many bytes more of this work are done.
    fn advance(&self, work: Work, bytes: u64) {
        let mut tasks = self.home.tasks.borrow_mut();
        tasks.progress_mut(work).advance(self.core.rt.now(), bytes);
    }

    /// A member that was to leave and has been emptied is removed.
    fn remove_emptied(self: &Rc<Self>) {
        let Some(index) = self.home.emptied_member() else {
            return;
        };
        if self.is_paused(Work::Rebalance) {
            return;
        }
        if self.removing.replace(true) {
            return;
        }
        let background = self.clone();
        self.core.rt.spawn(async move {
            let home = &background.home;
            home.unless_closed(async {
                if home.remove(index).await.is_err() {
                    // It was told to stay, it failed, or the journal needs it still.
                    background.core.rt.sleep(LOOK).await;
                }
            })
            .await;
            background.removing.set(false);
            home.demand.clean();
        });
    }

    /// Why columns are left that are to move.
    pub(super) fn why_not_moved(&self) -> &'static str {
        match self.home.lack() {
            _ if self.home.leaving().is_empty() && self.home.columns_elsewhere() > 0 => {
                "too many columns of some data are in one failure domain, which may not be lost, and the devices of the \
                 others have too little free space for them: delete files and trim ('fstrim'), or add devices there \
                 ('ashlar add')"
            }
            _ if self.home.leaving().is_empty() => {
                "no more data can be moved to the emptier devices now"
            }
            _ if self.home.emptied_member().is_some() => {
                "a device is empty, and is removed in a moment"
            }
            Lack::Room | Lack::Promised => {
                "the other devices have too little free space for what a device that is to leave holds: 'ashlar online' \
                 lets it stay"
            }
            _ => {
                "what a device that is to leave holds cannot be moved to the others: 'ashlar online' lets it stay"
            }
        }
    }

    /// Work on lost columns begins, if it has not: how much there is.
    fn start_progress(&self) {
        if self.home.tasks.borrow().rebuild.state == TaskState::Running {
            return;
        }
        let total = self.home.bytes_missing();
        let mut tasks = self.home.tasks.borrow_mut();
        let task = &mut tasks.rebuild;
        task.begin(self.core.rt.now());
        task.total = total;
    }

    /// Why what is missing cannot be had now.
    pub(super) fn why_waiting(&self) -> &'static str {
        let lost = "cannot restore redundancy: data is lost, or there is too little free space";
        if let Some(why) = self.home.why_awaiting() {
            return why;
        }
        match self.home.lack() {
            Lack::Devices | Lack::Promised if self.home.lacks_devices() => {
                "too few devices are left for the layout: replace one that is out of use ('ashlar replace'), or add \
                 one ('ashlar add')"
            }
            Lack::Room => "no device has free space for the missing columns",
            Lack::Devices => "too few devices are left to hold the missing columns",
            Lack::Policy => {
                "too few devices are left to hold the missing columns, and the setting rebuild.narrow forbids \
                 rewriting this data across fewer"
            }
            Lack::Promised if self.home.lacks_room() => {
                "the remaining free space is promised to volumes"
            }
            _ if self.home.space.index().has_given_up() => {
                "rebuild failed: not enough readable strips, or the target could not be written"
            }
            Lack::Promised => "too few devices are left to hold the missing columns",
            Lack::Lost | Lack::Nothing => lost,
        }
    }
}

/// What was seen when broken segments could not be settled any further.
pub(super) type Tried = Option<Redundancy>;
