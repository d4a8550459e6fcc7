//! Background work: what runs, how far it is, and whether any of it could still make progress.
//!
//! [`clean`] frees segments that are partly dead, [`reconstruct`] gives lost columns new slots, [`heal`]
//! rewrites single bad blocks. Each is a loop of its own on the home's thread.
//!
//! Invariants:
//! - None of them changes a map; what they write becomes part of the array by a journal record only.
//! - Whether redundancy is whole (`is_degraded`) and whether waiting makes sense (`is_idle`) is derived
//!   from the segments, the journal and the members, never stored.

mod clean;
mod heal;
mod reconstruct;

use std::rc::Rc;

use ashlar_format::slot::SegmentKind;
use ashlar_rt::Nanos;

use crate::home::Home;
use crate::planted::{self, Bug};
use crate::segment::Segment;

/// Progress of one kind of work.
#[derive(Debug, Default, Clone)]
pub struct Progress {
    /// `running`, `waiting`, `done`; empty: never ran.
    pub state: &'static str,
    /// Bytes done.
    pub done: u64,
    /// Bytes known to be to do.
    pub total: u64,
    /// When it started.
    pub since: Nanos,
    /// Why it waits.
    pub reason: &'static str,
    /// Bad blocks found and healed.
    pub found: u64,
    /// Healed.
    pub healed: u64,
}

/// The background work of an array.
#[derive(Debug, Default)]
pub struct Tasks {
    /// Reconstruct.
    pub reconstruct: Progress,
    /// The cleaner.
    pub clean: Progress,
    /// Healing of single blocks.
    pub heal: Progress,
    /// The last pass of reconstruct moved nothing though something is missing.
    pub stuck: bool,
    /// Whether a volume is being released.
    pub releasing: usize,
}

impl Home {
    /// Starts the background work.
    pub(crate) fn start_background(self: &Rc<Self>) {
        let rt = self.core.rt.clone();
        let home = self.clone();
        rt.spawn(async move { home.clean_forever().await });
        let home = self.clone();
        rt.spawn(async move { home.reconstruct_forever().await });
        let home = self.clone();
        rt.spawn(async move { home.heal_forever().await });
        let home = self.clone();
        rt.spawn(async move { home.commit_now_and_then().await });
    }

    /// Folds what lies in the journal even if nothing presses, so that recovery stays short.
    async fn commit_now_and_then(self: Rc<Self>) {
        let mut last = 0;
        while !self.core.closed.get() {
            self.core.rt.sleep(30 * ashlar_rt::SECOND).await;
            if self.journal.next() > last + 4 && !self.core.closed.get() {
                self.batch(true).await;
                self.commit(self.journal.next()).await;
                last = self.journal.next();
            }
        }
    }

    /// Whether some segment has less redundancy than its layout wants.
    pub(crate) fn is_degraded(&self) -> bool {
        let short = || {
            self.core
                .segments
                .borrow()
                .values()
                .any(|s| self.redundancy_lost(s) > 0)
        };
        let journal = self.journal_is_short() && !planted::on(Bug::OptimalTooSoon);
        let degraded = self.core.maybe_degraded.get() && (journal || short());
        // Segments change only for the worse by a failure or by being made narrow: both set the mark.
        let failing = !self.core.failing.borrow().is_empty();
        self.core.maybe_degraded.set(degraded || failing);
        degraded
    }

    /// Whether the journal still needs records of an epoch whose device set has lost a member: what they
    /// hold has less redundancy until a commit has folded it.
    pub(crate) fn journal_is_short(&self) -> bool {
        let online = |index: &u16| self.core.member(*index).is_online();
        let out: Vec<u16> = self
            .core
            .members
            .iter()
            .map(|m| m.index)
            .filter(|i| !online(i))
            .collect();
        self.root
            .borrow()
            .epochs
            .iter()
            .any(|e| out.iter().any(|i| !e.excluded.contains(i)))
    }

    /// By how much a segment's redundancy is below what its kind should have.
    pub(crate) fn redundancy_lost(&self, segment: &Segment) -> usize {
        let (recorded, stripes) = (segment.recorded.get(), segment.geometry.stripes());
        if segment.live.borrow().is_empty() && (recorded == 0 || recorded == stripes) {
            return 0;
        }
        let wanted = match segment.kind {
            SegmentKind::Data => usize::from(self.shape.m),
            SegmentKind::Meta => usize::from(self.meta_m).min(usize::from(self.shape.m)),
        };
        let left =
            usize::from(segment.geometry.m).saturating_sub(self.core.missing_columns(segment));
        wanted.saturating_sub(left)
    }

    /// Whether nothing of these kinds runs or could make progress.
    pub(crate) fn is_idle(&self, kinds: &[&str]) -> bool {
        if self.waiting_quorum.get().is_some() {
            return true; // nothing goes on before the operator has spoken
        }
        let wants = |kind: &str| kinds.is_empty() || kinds.contains(&kind);
        if wants("heal") && !self.core.heals.borrow().is_empty() {
            return false;
        }
        if wants("clean")
            && self.low_on_slots()
            && self.cleaner_can_gain()
            && self.tasks.borrow().clean.state == "running"
        {
            return false;
        }
        if wants("reconstruct") && self.tasks.borrow().reconstruct.state == "running" {
            return false;
        }
        if wants("reconstruct") && self.is_degraded() {
            if self.journal_is_short() || self.has_empty_short() {
                return false; // a commit is due that makes up for it
            }
            let tasks = self.tasks.borrow();
            let waits =
                tasks.reconstruct.state == "waiting" && self.core.failing.borrow().is_empty();
            return waits && (tasks.stuck || !self.reconstruct_could());
        }
        true
    }

    /// Whether some missing column has a device it could go to.
    fn reconstruct_could(&self) -> bool {
        let open = self
            .core
            .segments
            .borrow()
            .values()
            .any(|s| !s.sealed.get() && self.core.missing_columns(s) > 0);
        let free = self.to_reconstruct().iter().any(|(_, s)| {
            (0..s.geometry.width())
                .any(|c| !self.core.column_usable(s, c) && self.device_for(s, c).is_some())
        });
        open || free
    }
}
