//! Requests to the home: for durability, a group commit, a checkpoint, or a merge of everything.
//!
//! Invariant: a waiter is answered only after a group commit that was collected after it asked.

use std::cell::{Cell, RefCell};

use ashlar_block::VolumeError;
use ashlar_rt::{Gate, Lock, LockGuard, Nanos, OneshotSender, Rt};

use crate::locks;
use crate::members::closed::Closed;

/// Someone who waits for durability.
pub type Waiter = OneshotSender<Result<(), VolumeError>>;

/// Who asks for what.
#[derive(Debug)]
pub struct Demand {
    waiters: RefCell<Vec<Waiter>>,
    /// Those that the group commit under way answers.
    answering: RefCell<Vec<Waiter>>,
    /// Those who wait for a merge that has not begun.
    merges: RefCell<Vec<OneshotSender<()>>>,
    /// A group commit is wanted, by nobody who waits.
    record: Cell<bool>,
    group_commit_gate: Gate,
    /// Deltas or the journal press.
    pressure: Cell<bool>,
    checkpoint_gate: Gate,
    clean_gate: Gate,
    /// Held by the merge under way.
    merge: Lock<()>,
}

impl Default for Demand {
    fn default() -> Demand {
        Demand {
            waiters: RefCell::default(),
            answering: RefCell::default(),
            merges: RefCell::default(),
            record: Cell::default(),
            group_commit_gate: Gate::default(),
            pressure: Cell::default(),
            checkpoint_gate: Gate::default(),
            clean_gate: Gate::default(),
            merge: Lock::ranked((), locks::MERGE),
        }
    }
}

impl Demand {
    /// The cleaner is to look now.
    pub fn clean(&self) {
        self.clean_gate.open();
    }

    /// Waits until the cleaner is to look.
    pub async fn clean_wanted(&self) {
        self.clean_gate.wait().await;
    }

    /// Waits for the turn to merge.
    pub async fn merge_turn(&self) -> LockGuard<'_, ()> {
        self.merge.lock().await
    }

    /// Everything acknowledged so far is to become durable.
    pub fn durable(&self, waiter: Waiter) {
        self.waiters.borrow_mut().push(waiter);
        self.group_commit_gate.open();
    }

    /// Stripes that are written are to be recorded.
    pub fn record(&self) {
        self.record.set(true);
        self.group_commit_gate.open();
    }

    /// A checkpoint is wanted.
    pub fn press(&self) {
        self.pressure.set(true);
        self.checkpoint_gate.open();
    }

    /// A merge is wanted; whether it is the first that waits for one.
    pub fn merge(&self, reply: OneshotSender<()>) -> bool {
        let mut merges = self.merges.borrow_mut();
        merges.push(reply);
        merges.len() == 1
    }

    /// Those whom the merge that begins now answers.
    pub fn begin_merge(&self) -> Vec<OneshotSender<()>> {
        self.merges.take()
    }

    /// Waits until a group commit is wanted, or for so long.
    pub async fn group_commit_wanted(&self, rt: &Rt, most: Nanos) {
        let wanted = !self.waiters.borrow().is_empty() || self.record.get();
        if !wanted {
            let _ = rt.timeout(most, self.group_commit_gate.wait()).await;
        }
    }

    /// A group commit begins: it answers those who wait now. Whether nobody does, and stripes are only to be recorded.
    pub fn begin_group_commit(&self) -> bool {
        let asked = self.record.replace(false);
        let waiters = self.waiters.take();
        *self.answering.borrow_mut() = waiters;
        asked && self.answering.borrow().is_empty()
    }

    /// Those who came since it began are answered with it: a mistake that is made on purpose.
    pub fn take_late(&self) {
        let late = self.waiters.take();
        self.answering.borrow_mut().extend(late);
    }

    /// The group commit is durable.
    pub fn end_group_commit(&self) {
        for waiter in self.answering.take() {
            waiter.send(Ok(()));
        }
    }

    /// Waits until a checkpoint is wanted, or `closed`.
    pub async fn checkpoint_wanted(&self, closed: &Closed) {
        self.checkpoint_gate
            .until(|| self.pressure.get() || closed.get())
            .await;
        self.pressure.set(false);
    }

    /// Tells everyone who waits that nothing becomes durable any more.
    pub fn refuse(&self) {
        for waiter in self.answering.take().into_iter().chain(self.waiters.take()) {
            waiter.send(Err(VolumeError::Closed));
        }
    }

    /// The array has stopped: whoever waits for a checkpoint to be wanted goes on.
    pub fn close(&self) {
        self.checkpoint_gate.open();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use ashlar_rt::oneshot;

    use super::*;

    /// Who asks while a group commit is under way is answered by the next one.
    #[test]
    fn a_late_waiter_is_answered_by_the_next_group_commit() {
        let demand = Demand::default();
        let (first, one) = oneshot();
        let (second, two) = oneshot();
        demand.durable(first);
        assert!(!demand.begin_group_commit());
        demand.durable(second);
        demand.end_group_commit();
        let rt = Rt::simulated(1);
        assert_eq!(rt.block_on(one).unwrap(), Ok(()));
        assert!(!demand.begin_group_commit());
        demand.refuse();
        assert_eq!(rt.block_on(two).unwrap(), Err(VolumeError::Closed));
        demand.record();
        assert!(
            demand.begin_group_commit(),
            "only stripes are to be recorded"
        );
        assert!(!demand.begin_group_commit());
    }

    #[test]
    fn one_merge_answers_all_who_asked_before_it_began() {
        let demand = Demand::default();
        let (first, _one) = oneshot();
        let (second, _two) = oneshot();
        assert!(demand.merge(first) && !demand.merge(second));
        assert_eq!(demand.begin_merge().len(), 2);
        assert!(demand.merge(oneshot().0));
    }
}
