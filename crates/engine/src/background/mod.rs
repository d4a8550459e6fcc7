//! Background work: what runs, how far it is, and whether any of it could still make progress.
//!
//! [`clean`] frees segments that are partly dead, [`rebuild`] gives
//! lost columns new slots ([`mod@column`]: how), [`heal`] rewrites single bad blocks. Each is a loop of its own on the
//! home's thread.
//!
//! Invariants:
//! - None of them changes a map; what they write becomes part of the array by a journal record only.
//! - Work that gained nothing ends: it [`Rest`](crate::home::work::Rest)s until something has changed that could let it gain.
//!   What is lost beyond redundancy keeps nothing busy, and nobody waiting.

mod clean;
mod column;
mod heal;
mod rebuild;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::rc::Rc;

use lru::LruCache;

use crate::home::Home;
use crate::segment::table::Core;
use crate::status::{ArrayState, TaskState, Work};

/// One segment more is worked on at once for so many slots of a device.
const SLOTS_PER_SEGMENT: usize = 128;

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
}

impl Background {
    /// The background work of an array; nothing runs yet.
    pub fn new(home: &Rc<Home>) -> Rc<Background> {
        Rc::new(Background {
            home: home.clone(),
            core: home.core.clone(),
            written_strips: RefCell::new(LruCache::new(COURSES_KEPT)),
        })
    }

    /// Starts it.
    pub fn start(self: &Rc<Self>) {
        let rt = self.core.rt.clone();
        let background = self.clone();
        rt.spawn(async move { background.clean_forever().await });
        let background = self.clone();
        rt.spawn(async move { background.reconstruct_forever().await });
        let background = self.clone();
        rt.spawn(async move { background.heal_forever().await });
        let background = self.clone();
        rt.spawn(async move { background.commit_now_and_then().await });
    }

    /// Folds what lies in the journal even if nothing presses, so that recovery stays short and what was
    /// trimmed or overwritten is free.
    async fn commit_now_and_then(self: Rc<Self>) {
        let (mut last, mut folded) = (0, (0, 0));
        while !self.core.closed.get() {
            self.core.rt.sleep(30 * ashlar_rt::SECOND).await;
            // Any write or trim since; or records of the movers. A commit's own are no reason for another.
            let written = self.core.meters.host.get();
            let seen = (written, self.home.tasks.borrow().unmapped);
            let due = seen != folded || self.home.journal.next() > last + 4;
            if due && !self.core.closed.get() {
                self.home.fold().await;
                (last, folded) = (self.home.journal.next(), seen);
            }
        }
    }

    /// On how many segments the cleaner or reconstruct works at once, at most `most`: where slots are few, on few, since
    /// how much room is left is looked at for each as it begins.
    pub(super) fn at_once(&self, most: usize) -> usize {
        let slots = self.core.members.iter().map(|m| m.geometry.slots as usize);
        (slots.min().unwrap_or(0) / SLOTS_PER_SEGMENT).clamp(1, most)
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
        let running = self.home.tasks.borrow().progress(work).state == TaskState::Running;
        match work {
            Work::Repair => self.core.bad.heals.borrow().is_empty(),
            Work::Clean => !(self.home.low_on_slots() && self.home.cleaner_can_gain() && running),
            Work::Rebuild => {
                let waits = self.home.tasks.borrow().wants_room && self.home.cleaner_can_gain();
                let due = self.home.is_degraded() && (!self.home.reconstruct_rests() || waits);
                !running && !due && self.core.failing.is_empty()
            }
        }
    }

    /// Why something of these kinds is not done though none of it can go on without the operator; `None` if
    /// nothing is left to do, or the rest goes on by itself.
    pub(crate) fn stuck(&self, kinds: &[Work], read_only: bool) -> Option<String> {
        if let Some((stored, counted)) = self.home.agreement.waiting() {
            return Some(format!(
                "only {stored} of {counted} devices are left to agree on going on: writes wait, and all other work"
            ));
        }
        let wants = kinds.is_empty() || kinds.contains(&Work::Rebuild);
        if !wants || !self.is_idle(&[Work::Rebuild]) && !read_only || !self.home.is_degraded() {
            return None;
        }
        Some(if read_only {
            "nothing is rebuilt while it is imported read-only".to_string()
        } else if self.home.state() == ArrayState::Failed {
            "data is lost beyond its redundancy".to_string()
        } else {
            self.why_waiting().to_string()
        })
    }
}
