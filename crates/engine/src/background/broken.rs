//! Segments that lost a column, before a rebuild can take them: seals the open ones, and merges the deltas of
//! degraded journal records.
//!
//! Invariant: nothing here gives a column back; that is a job for those that are settled.

use std::rc::Rc;

use crate::background::Background;
use crate::background::work::Tried;
use crate::protocol::Reach;
use crate::segment::Segment;

impl Background {
    /// Settles what lost columns and is not settled, unless it was `tried` in vain and nothing has changed since.
    pub(super) async fn settle_broken(self: &Rc<Self>, tried: &mut Tried) {
        let seen = self.home.redundancy();
        if tried.as_ref() == Some(&seen) {
            return;
        }
        let sealed = self.seal_broken().await;
        let empty = self.empty_short();
        let mut gained = sealed;
        if self.home.journal_is_short() || empty > 0 {
            // Merging what hangs on them makes up for that; no column needs computing.
            let (short, cut) = (self.home.journal_is_short(), self.home.root.borrow().cut);
            self.home.group_commit(Reach::Closed).await;
            if short {
                self.seal_old_rows().await;
            }
            self.home.checkpoint(self.home.journal.next()).await;
            let merged = self.home.root.borrow().cut > cut;
            gained |=
                self.empty_short() < empty || short && (merged || !self.home.journal_is_short());
        } else if sealed {
            self.home.checkpoint(self.home.journal.next()).await;
        }
        self.core.progress.open();
        *tried = (!gained).then_some(seen);
    }

    /// How many sealed segments without live blocks miss columns: a checkpoint merges what deltas hold in
    /// them, or frees them.
    fn empty_short(&self) -> usize {
        let short = |s: &Segment| {
            let free = s.live.borrow().is_empty() && s.is_unpinned();
            s.sealed.get() && free && self.core.missing_columns(s) > 0
        };
        self.core.pin_unsettled(short).len()
    }

    /// Open segments that have less redundancy than what is written now takes no more stripes, so that they can be
    /// mended or replaced. Whether any was sealed.
    async fn seal_broken(self: &Rc<Self>) -> bool {
        let is_broken = |s: &Segment| {
            let short = self.core.has_lost_column(s) || self.home.falls_short(s);
            !s.sealed.get() && short
        };
        let broken = self.core.pin_unsettled(is_broken);
        if broken.is_empty() {
            return false;
        }
        // Of these the group commit closes stripes that took nothing as well.
        broken.iter().for_each(|s| s.retired.set(true));
        self.home.group_commit(Reach::Closed).await;
        for segment in &broken {
            if segment.recorded.get() == segment.next_stripe.get() && !segment.sealed.get() {
                self.home.seal(segment).await;
            }
        }
        broken.iter().any(|s| s.sealed.get())
    }

    /// Open segments whose rows lie in records of a closed epoch take no more stripes: what their summaries
    /// say no longer keeps these records.
    async fn seal_old_rows(self: &Rc<Self>) {
        for segment in self.home.old_rows() {
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
}
