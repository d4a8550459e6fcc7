//! Background work: its tasks, their progress, and whether more progress is possible.
//!
//! [`mod@work`] does the jobs that the books of free space offer: [`mod@clean`] moves live blocks out of segments,
//! [`mod@column`] gives columns other slots. [`mod@broken`] makes segments that lost columns ready for that;
//! [`mod@stretch`] reads ahead for that; [`mod@repair`] rewrites single bad blocks; [`mod@scrub`] looks for
//! them. [`mod@pace`] says how fast rebuild, rebalance and scrub may go.
//!
//! Invariants:
//! - None of it changes a map; what it writes becomes part of the array by a journal record only.
//! - A job is offered only if it gains something, and not again if it came to nothing: work ends. What is lost beyond
//!   redundancy keeps nothing busy, and nobody waiting.

mod broken;
mod clean;
mod column;
mod pace;
mod repair;
mod scrub;
mod slow;
mod stretch;
mod work;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::rc::Rc;

use lru::LruCache;

use crate::background::pace::Pace;
use crate::home::Home;
use crate::segment::table::Core;
use crate::status::{ArrayState, Work};

/// Which stripes of courses were written, by segment and course, counted from the course's first.
type WrittenStrips = LruCache<(u64, u32), BTreeSet<u32>>;

/// Courses of which is kept which of their stripes were written.
const COURSES_KEPT: NonZeroUsize = NonZeroUsize::new(256).expect("some");

/// The background work of an array.
pub struct Background {
    home: Rc<Home>,
    core: Rc<Core>,
    /// Which stripes of the courses looked at last were written.
    written_strips: RefCell<WrittenStrips>,
    /// Jobs under way that give segments redundancy, and others.
    rebuilding: Cell<usize>,
    cleaning: Cell<usize>,
    /// Columns that move from one device to another.
    moving: Cell<usize>,
    /// Whether an emptied member is being removed.
    removing: Cell<bool>,
    /// Columns that segments got, and no merge has told of.
    given: Cell<usize>,
    /// Whether jobs have ended since the last merge for them began.
    ended: Cell<bool>,
    /// When work may have each device next.
    pace: Pace,
}

impl Background {
    /// The background work of an array; nothing runs yet.
    pub fn new(home: &Rc<Home>) -> Rc<Background> {
        Rc::new(Background {
            home: home.clone(),
            core: home.core.clone(),
            written_strips: RefCell::new(LruCache::new(COURSES_KEPT)),
            rebuilding: Cell::default(),
            cleaning: Cell::default(),
            moving: Cell::default(),
            removing: Cell::default(),
            given: Cell::default(),
            ended: Cell::default(),
            pace: Pace::default(),
        })
    }

    /// Starts it.
    pub fn start(self: &Rc<Self>) {
        let rt = self.core.rt.clone();
        let background = self.clone();
        rt.spawn(async move { background.work_forever().await });
        let background = self.clone();
        rt.spawn(async move { background.repair_forever().await });
        let background = self.clone();
        rt.spawn(async move { background.scrub_forever().await });
        self.watch_slow();
        let background = self.clone();
        rt.spawn(async move { background.checkpoint_now_and_then().await });
    }

    /// Merges what lies in the journal even if nothing presses, so that recovery stays short and what was
    /// trimmed or overwritten is free.
    async fn checkpoint_now_and_then(self: Rc<Self>) {
        let (mut last, mut merged) = (0, (0, 0));
        while !self.core.closed.get() {
            self.core.rt.sleep(30 * ashlar_rt::SECOND).await;
            // Any write or trim since; or records of the movers. A checkpoint's own are no reason for another.
            let written = self.core.meters.host.get();
            let seen = (written, self.home.tasks.borrow().unmapped);
            let due = seen != merged || self.home.journal.next() > last + 4;
            if due && !self.core.closed.get() {
                self.home.merge().await;
                (last, merged) = (self.home.journal.next(), seen);
            }
        }
    }

    /// Whether nothing of these kinds, or of any if none is named, runs or could make progress.
    pub(crate) fn is_idle(&self, kinds: &[Work]) -> bool {
        let all = kinds.is_empty().then_some(&Work::ALL[..]);
        // Without enough devices that agree, everything waits for the operator.
        self.home.agreement.waiting().is_some()
            || all.unwrap_or(kinds).iter().all(|work| self.rests(*work))
    }

    /// Whether nothing of this kind runs or could make progress.
    fn rests(&self, work: Work) -> bool {
        let settled = || self.core.failing.is_empty() && self.home.work_rests();
        match work {
            Work::Repair => self.core.bad.repairs.borrow().is_empty(),
            Work::Scrub => self.home.scrubs.aim().is_none(),
            Work::Clean => self.cleaning.get() == 0 && (settled() || !self.home.is_short()),
            Work::Rebalance => {
                let to_move = self.home.bytes_to_move();
                let stays = || settled() && self.home.emptied_member().is_none();
                let rests = to_move.is_none() || self.is_paused(work) || stays();
                self.moving.get() == 0 && !self.removing.get() && rests
            }
            Work::Rebuild => {
                let due = !self.core.failing.is_empty() || self.home.is_degraded();
                let rests = || !self.home.rebuild_comes() && settled();
                self.rebuilding.get() == 0 && (!due || self.is_paused(work) || rests())
            }
        }
    }

    /// Why something of these kinds is not done though none of it can go on without the operator; `None` if
    /// nothing is left to do, or the rest goes on by itself.
    pub(crate) fn stuck(&self, kinds: &[Work], read_only: bool) -> Option<String> {
        if let Some((stored, counted)) = self.home.agreement.waiting() {
            return Some(format!(
                "writes and background work are paused: only {stored} of {counted} devices are left, fewer than \
                 half"
            ));
        }
        let wants = |work| kinds.is_empty() || kinds.contains(&work);
        let paused = |work: &Work| wants(*work) && self.is_paused(*work) && self.home.is_due(*work);
        if !read_only && let Some(work) = Work::ALL.into_iter().find(paused) {
            return Some(self.home.why_paused(work));
        }
        if wants(Work::Rebalance)
            && self.is_idle(&[Work::Rebalance])
            && self.home.bytes_to_move().is_some()
        {
            return Some(self.why_not_moved().to_string());
        }
        if !wants(Work::Rebuild)
            || !self.is_idle(&[Work::Rebuild]) && !read_only
            || !self.home.is_degraded()
        {
            return None;
        }
        Some(if read_only {
            "a read-only import rebuilds nothing".to_string()
        } else if self.home.state() == ArrayState::Failed {
            "data is lost: more devices are out of use than parity covers".to_string()
        } else {
            self.why_waiting().to_string()
        })
    }
}
