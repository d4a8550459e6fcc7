//! Reconstruct: which missing columns of segments get new slots on healthy devices, and when; [`super::column`]
//! computes and writes them.
//!
//! Invariants:
//! - Least redundancy first; a segment that lost more than its M columns is left alone.
//! - What volumes were promised comes before columns that were lost.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use ashlar_format::slot::SegmentKind;
use ashlar_format::{BLOCK, SegmentGeometry};
use ashlar_rt::{MILLISECOND, Nanos, SECOND, join_all};

use crate::background::Background;
use crate::members::Member;
use crate::protocol::Reach;
use crate::segment::{Pinned, Segment};
use crate::space::slots::commit_slots;
use crate::status::TaskState;

/// Between rounds that gain nothing while nothing changes.
const LONGEST_PAUSE: Nanos = 3600 * SECOND;
/// Segments that are reconstructed at once: so many, or as many as a course of each of their columns takes so many bytes.
const SEGMENTS_AT_ONCE: usize = 32;
const BYTES_AT_ONCE: u64 = 64 << 20;
/// Segments that are written anew in one round, of data and of nodes each.
const ANEW_AT_ONCE: usize = 4;

impl Background {
    /// Segments with columns to gain, and how many more each can lose: least redundancy first.
    pub(super) fn to_reconstruct(&self) -> Vec<(usize, Pinned)> {
        if !self.core.failing.maybe_degraded() {
            return Vec::new();
        }
        let all = self.core.pin_where(|_| true).into_iter();
        let mut due: Vec<(usize, Pinned)> = all
            .filter_map(|s| Some((self.columns_to_gain(&s)?, s)))
            .collect();
        due.sort_by_key(|(left, s)| (*left, Reverse(s.number)));
        due
    }

    /// How many more columns a sealed segment can lose, if it holds anything and misses columns that can be had from the
    /// others; whoever asks holds it once.
    fn columns_to_gain(&self, segment: &Pinned) -> Option<usize> {
        let left = self.core.redundancy(segment)?;
        let holds = !segment.live.borrow().is_empty() || segment.pins() > 1;
        let gains = self.core.missing_columns(segment) > 0;
        (segment.sealed.get() && gains && holds).then_some(left)
    }

    pub(super) async fn reconstruct_forever(self: Rc<Self>) {
        let mut pause = SECOND;
        while !self.core.closed.get() {
            let seen = self.home.redundancy();
            let degraded = self.home.is_degraded();
            let gained = degraded && self.reconstruct_once().await;
            self.home
                .tasks
                .borrow_mut()
                .reconstruct_rest
                .round(gained || !degraded, seen);
            let wants_room = degraded
                && !gained
                && !self.home.lacks_room()
                && self.waits_for_room(&self.worst_due());
            self.home.tasks.borrow_mut().wants_room = wants_room;
            if wants_room {
                self.home.demand.clean();
            }
            self.core.progress.open();
            if gained {
                continue;
            }
            self.show_rest(self.home.is_degraded());
            if !self.core.failing.is_empty() {
                // No columns are missing yet of a device that is about to be taken out: it is looked at again once it is
                // out, and the commits that its going makes have begun.
                self.home.members_settled().await;
                let next = self.core.failing.reported();
                let _ = self.core.rt.timeout(MILLISECOND, next).await;
                continue;
            }
            // Looked at again when a member goes or something changes, and now and then in any case: a
            // device may have read what it could not.
            let tried = degraded && self.home.reconstruct_rests();
            pause = if tried {
                (2 * pause).min(LONGEST_PAUSE)
            } else {
                SECOND
            };
            let mut slept = 0;
            while slept < pause && (slept == 0 || self.home.reconstruct_rests()) {
                let wait = self.core.failing.reported();
                let timed_out = self.core.rt.timeout(SECOND, wait).await.is_none();
                slept = if timed_out { slept + SECOND } else { pause };
            }
        }
    }

    /// One round over everything that misses columns; whether anything was gained.
    async fn reconstruct_once(self: &Rc<Self>) -> bool {
        self.home.tasks.borrow_mut().meta_growth = self.home.redundant_meta_growth();
        let mut gained = self.seal_broken().await;
        let empty = self.empty_short();
        if self.home.journal_is_short() || empty > 0 {
            // Folding what hangs on them makes up for that; no column needs computing.
            let (short, cut) = (self.home.journal_is_short(), self.home.root.borrow().cut);
            self.home.batch(Reach::Closed).await;
            if short {
                self.seal_old_rows().await;
            }
            self.home.commit(self.home.journal.next()).await;
            let folded = self.home.root.borrow().cut > cut;
            gained |=
                self.empty_short() < empty || short && (folded || !self.home.journal_is_short());
        }
        let due = self.to_reconstruct();
        if due.is_empty() {
            return gained;
        }
        self.start_progress(&due);
        // By number: held, none that dies before its turn could be freed, and this may take hours.
        let due: Vec<u64> = due.into_iter().map(|(_, segment)| segment.number).collect();
        let moved = self.reconstruct_all(due.into()).await;
        gained |= self.renew_metadata().await;
        if moved > 0 {
            self.home.batch(Reach::All).await;
            self.home.commit(self.home.journal.next()).await;
            let text = format!("{moved} segments have their columns again");
            self.core.events.note("reconstructed", None, text);
            gained = true;
        }
        gained || self.narrow_critical().await
    }

    /// Reconstructs segments, many at once, begun in this order; how many got columns.
    async fn reconstruct_all(self: &Rc<Self>, due: VecDeque<u64>) -> usize {
        let geometry = |number: &u64| self.core.segment(*number).map(|s| s.geometry);
        let course = |g: SegmentGeometry| {
            let strips = g.width() as u64 * u64::from(g.course_strips().min(g.stripes()));
            strips * u64::from(g.strip_blocks) * BLOCK as u64
        };
        let largest = due
            .iter()
            .filter_map(geometry)
            .map(course)
            .max()
            .unwrap_or(1);
        let fitting = usize::try_from(BYTES_AT_ONCE / largest.max(1)).unwrap_or(usize::MAX);
        let at_once = self.at_once(fitting.clamp(1, SEGMENTS_AT_ONCE));
        let due = Rc::new(RefCell::new(due));
        let mut joins = Vec::new();
        for _ in 0..at_once {
            let (background, due) = (self.clone(), due.clone());
            joins.push(self.core.rt.spawn(async move {
                let mut moved = 0;
                loop {
                    let next = due.borrow_mut().pop_front();
                    let Some(number) = next else { return moved };
                    let segment = background.core.segment(number);
                    let segment = segment.filter(|s| background.columns_to_gain(s).is_some());
                    if let Some(segment) = segment
                        && background.reconstruct_segment(&segment).await
                    {
                        background.home.tasks.borrow_mut().meta_growth =
                            background.home.redundant_meta_growth();
                        moved += 1;
                    }
                }
            }));
        }
        join_all(joins).await.into_iter().sum()
    }

    /// Shows that nothing can be reconstructed now: because nothing is missing, or there is nowhere to go.
    fn show_rest(&self, waits: bool) {
        let reason = if waits { self.why_waiting() } else { "" };
        let task = &mut self.home.tasks.borrow_mut().reconstruct;
        if waits {
            task.state = TaskState::Waiting;
            task.reason = reason;
        } else if task.state != TaskState::New {
            task.state = TaskState::Done;
            task.reason = "";
        }
    }

    /// Why what is missing cannot be reconstructed now.
    pub(super) fn why_waiting(&self) -> &'static str {
        let width = usize::from(self.home.shape.width());
        let mut groups = self.home.shape.groups.iter();
        let narrow = groups.any(|g| self.home.online_of(g).count() < width.min(g.len()));
        let due = self.worst_due();
        if due.is_empty() {
            "what is missing was lost beyond its redundancy, or is written with less for want of room"
        } else if self.waits_for_room(&due) {
            "the room that is left was promised to volumes"
        } else if due.iter().any(|(_, s)| self.can_gain(s)) {
            "what is missing could not be computed from what can be read, or not be written"
        } else if narrow {
            "too few devices are left to take the missing columns"
        } else {
            "no device has room for the missing columns"
        }
    }

    /// Whether columns of these are missing for which some device has room, but none that is for what was lost: some device then
    /// has no more free than is kept from it.
    fn waits_for_room(&self, due: &[(usize, Pinned)]) -> bool {
        let waits = |s: &Segment| {
            let mut missing = self.core.missing(s);
            missing.any(|c| {
                self.device_for(s, c).is_none() && self.device_with_room(s, c, &[], true).is_some()
            })
        };
        due.iter().any(|(_, s)| waits(s))
    }

    /// Of what is to be reconstructed those that lost most: they tell why it waits.
    fn worst_due(&self) -> Vec<(usize, Pinned)> {
        let mut due = self.to_reconstruct();
        due.truncate(256);
        due
    }

    /// How many sealed segments without live blocks miss columns: a commit folds what deltas hold in
    /// them, or frees them.
    fn empty_short(&self) -> usize {
        let segments = self.core.segments.borrow();
        let short = |s: &&Rc<Segment>| {
            let free = s.live.borrow().is_empty() && s.is_unpinned();
            s.sealed.get() && free && self.core.missing_columns(s) > 0
        };
        segments.values().filter(short).count()
    }

    /// Nodes in segments wider than what is left of the array are written anew, as wide as now fits.
    async fn renew_metadata(self: &Rc<Self>) -> bool {
        let (_, survives) = self.home.meta_anew();
        let short: Vec<Pinned> = self
            .to_reconstruct()
            .into_iter()
            .filter(|(left, s)| s.kind == SegmentKind::Meta && survives > *left)
            .map(|(_, s)| s)
            .collect();
        let live = || short.iter().map(|s| s.live.borrow().count()).sum::<u32>();
        let before = live();
        if !self.home.renew(&short, self.home.redundancy_room()).await {
            return false;
        }
        self.home.batch(Reach::All).await;
        self.home.commit(self.home.journal.next()).await;
        live() < before
    }

    fn start_progress(&self, due: &[(usize, Pinned)]) {
        let total: u64 = due
            .iter()
            .map(|(_, s)| {
                let missing = self.core.missing_columns(s) as u64;
                missing * u64::from(s.geometry.slot_blocks) * BLOCK as u64
            })
            .sum();
        let mut tasks = self.home.tasks.borrow_mut();
        let now = self.core.rt.now();
        let task = &mut tasks.reconstruct;
        if task.state != TaskState::Running {
            (task.done, task.since) = (0, now);
        }
        task.state = TaskState::Running;
        task.reason = "";
        task.total = task.done + total;
    }

    /// Open segments that lost a column, or could have one that they never had, take no more stripes, so
    /// that they can be reconstructed; nor do those of nodes that a narrower one would replace (#146). (Others go
    /// on: what would replace them would lack the same columns.) Whether any was sealed.
    async fn seal_broken(self: &Rc<Self>) -> bool {
        let is_broken = |s: &Segment| {
            let replaced = s.kind == SegmentKind::Meta && self.home.falls_short(s);
            !s.sealed.get() && (self.core.has_lost_column(s) || replaced || self.can_gain(s))
        };
        let broken = self.core.pin_where(is_broken);
        if broken.is_empty() {
            return false;
        }
        // Of these the batch closes stripes that took nothing as well.
        broken.iter().for_each(|s| s.retired.set(true));
        self.home.batch(Reach::Closed).await;
        for segment in &broken {
            if segment.recorded.get() == segment.next_stripe.get() && !segment.sealed.get() {
                self.home.seal(segment).await;
            }
        }
        broken.iter().any(|s| s.sealed.get())
    }

    /// Whether a missing column of a segment has a device to go to.
    fn can_gain(&self, segment: &Segment) -> bool {
        let mut missing = self.core.missing(segment);
        missing.any(|c| self.device_for(segment, c).is_some())
    }

    /// Open segments whose rows lie in records of a closed epoch take no more stripes: what their summaries
    /// say no longer keeps these records.
    async fn seal_old_rows(self: &Rc<Self>) {
        let end = self
            .home
            .root
            .borrow()
            .epochs
            .iter()
            .filter_map(|e| e.end)
            .max();
        let old = |s: &Segment| s.rows_since.get().is_some_and(|since| Some(since) < end);
        for segment in self.core.pin_where(old) {
            if segment.sealed.get() {
                continue;
            }
            if segment.recorded.get() == segment.next_stripe.get() {
                self.home.seal(&segment).await;
            } else {
                segment.retired.set(true); // sealed once its last stripe is recorded
            }
        }
    }

    /// With neither spare nor replacement, segments without redundancy left are written anew, narrower
    /// (`reconstruct.narrow = critical`); those that miss any column, where another group takes them whole, whatever
    /// that says. Whether anything was moved.
    async fn narrow_critical(self: &Rc<Self>) -> bool {
        let policy = self.home.narrow_policy();
        let (online, roomy) = (self.core.taking_slots().len(), self.has_roomy_group());
        let (_, survives) = self.home.meta_anew();
        let critical: Vec<Pinned> = self
            .to_reconstruct()
            .into_iter()
            .filter(|(left, s)| match policy.as_str() {
                // Another group takes it whole (#145): nothing becomes narrower, whatever the policy (#177).
                _ if roomy && s.kind == SegmentKind::Data => true,
                "never" => false,
                "always" => true,
                // A last copy is written anew only where there is room for two.
                _ => *left == 0 && s.geometry.k > 1,
            })
            .filter(|(_, s)| online > 1 && !s.live.borrow().is_empty())
            .filter(|(left, s)| {
                // As wide as it is for the sake of large volume blocks, or for want of room for narrow
                // metadata, it would only be written again.
                match s.kind {
                    SegmentKind::Meta => survives > *left,
                    SegmentKind::Data => roomy || self.redundancy_anew(s) > *left,
                }
            })
            .map(|(_, s)| s)
            .collect();
        // What replaces them must be better than they are.
        let need = self.home.metadata_need();
        let short = |g: &Vec<u16>| self.home.keeps_shares(g, need);
        if critical.is_empty() || self.home.shape.groups.iter().any(short) {
            return false;
        }
        let (data, mut nodes): (Vec<_>, Vec<_>) =
            (critical.into_iter()).partition(|s| s.kind == SegmentKind::Data);
        nodes.truncate(ANEW_AT_ONCE);
        // By number, as in `reconstruct_once`.
        let data: Vec<u64> = data.into_iter().map(|s| s.number).collect();
        let live = |s: &Pinned| u64::from(s.live.borrow().count());
        let (mut anew, mut before) = (Vec::new(), nodes.iter().map(live).sum::<u64>());
        for number in data {
            let Some(segment) = self.core.segment(number) else {
                continue;
            };
            let there = live(&segment);
            // One whose blocks cannot be moved does not keep the others from it.
            if self.clean_segment(&segment).await > 0 {
                anew.push(segment);
                before += there;
            }
            if anew.len() == ANEW_AT_ONCE {
                break;
            }
        }
        if !self.home.renew(&nodes, self.home.redundancy_room()).await && anew.is_empty() {
            return false;
        }
        self.home.fold().await;
        let after: u64 = anew.iter().chain(&nodes).map(live).sum();
        self.home.tasks.borrow_mut().reconstruct.done +=
            before.saturating_sub(after) * BLOCK as u64;
        after < before
    }

    /// The redundancy that a data segment's blocks have once they are written anew in its group, where that takes
    /// only room that is for what was lost (#151, #152).
    fn redundancy_anew(&self, segment: &Segment) -> usize {
        let kept = self.home.kept_from_lost();
        let has_room = |d: &u16| {
            let member = self.core.member(*d);
            member.free_slots() > kept(member)
        };
        let group = self.home.group_of(segment);
        group.map_or(0, |g| {
            self.home
                .redundancy_on(self.home.online_of(g).filter(has_room).count())
        })
    }

    /// Whether some group takes data segments whole, and so much that neither the cleaner nor what was promised
    /// would be in want of it.
    fn has_roomy_group(&self) -> bool {
        let (need, width) = (
            self.home.metadata_need(),
            usize::from(self.home.shape.width()),
        );
        let roomy = |d: &u16| {
            let member = self.core.member(*d);
            member.free_slots() > self.home.kept_for_promises(member, need)
        };
        let m = self.home.shape.m.into();
        // As new segments are laid: full devices may leave room in too few failure domains (#160).
        let takes_whole = |g: &Vec<u16>| {
            let devices: Vec<u16> = self.home.online_of(g).filter(roomy).collect();
            self.home.columns_on(&devices, g, width, m) >= width
        };
        self.home.shape.groups.iter().any(takes_whole)
    }

    /// Gives every missing column of a segment a new slot. Whether at least one was moved.
    async fn reconstruct_segment(self: &Rc<Self>, segment: &Pinned) -> bool {
        let mut targets: Vec<(usize, u16)> = Vec::new();
        for column in 0..segment.geometry.width() {
            if !self.core.column_usable(segment, column) {
                let taken: Vec<u16> = targets.iter().map(|(_, device)| *device).collect();
                let device = self.device_with_room(segment, column, &taken, false);
                targets.extend(device.map(|device| (column, device)));
            }
        }
        let moved = !targets.is_empty() && self.reconstruct_columns(segment, &targets).await > 0;
        if moved && self.home.log.moves() > 32 {
            self.home.batch(Reach::Written).await;
        }
        moved
    }

    /// A device in the segment's group that holds none of its other columns: in a domain with fewer than M of
    /// them if there is one, with the most free slots; that of the column itself only if there is no other.
    pub(super) fn device_for(&self, segment: &Segment, column: usize) -> Option<u16> {
        self.device_with_room(segment, column, &[], false)
    }

    /// The same, but none of those that other columns of it are about to take; with `promised`, also one whose room was
    /// promised to volumes.
    fn device_with_room(
        &self,
        segment: &Segment,
        column: usize,
        taken: &[u16],
        promised: bool,
    ) -> Option<u16> {
        let columns = segment.columns.borrow();
        let used: BTreeSet<u16> = (0..columns.len())
            .filter(|c| *c != column && self.core.column_usable(segment, *c))
            .map(|c| columns[c].device)
            .chain(taken.iter().copied())
            .collect();
        let lost = columns[column];
        let candidates: Vec<u16> = match segment.kind {
            SegmentKind::Data => self.home.group_of(segment).unwrap_or_default().to_vec(),
            SegmentKind::Meta => self.core.taking_slots(),
        };
        let from_lost =
            (segment.kind == SegmentKind::Data && !promised).then(|| self.home.kept_from_lost());
        let kept = |member: &Member| match &from_lost {
            Some(kept) => kept(member),
            None => commit_slots(self.core.slot_blocks),
        };
        let in_domain = self.core.domains.count(used.iter().copied());
        let most = usize::from(segment.geometry.m).max(1);
        let survives = |d: u16| {
            in_domain
                .get(&self.core.domains.of(d))
                .is_none_or(|n| *n < most)
        };
        let free = |d: u16| self.core.member(d).free_slots();
        candidates
            .into_iter()
            .filter(|d| self.core.member(*d).takes_slots() && !used.contains(d))
            .filter(|d| free(*d) > kept(self.core.member(*d)))
            .max_by_key(|d| (survives(*d), *d != lost.device, free(*d)))
    }
}
