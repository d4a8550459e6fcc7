//! What the home is asked for by others: that something becomes durable, that a batch or a commit is made, that all is
//! folded.
//!
//! Invariant: a waiter is answered only after a batch that was collected after it asked.

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
    /// Those that the batch under way answers.
    answering: RefCell<Vec<Waiter>>,
    /// Those who wait for a fold that has not begun.
    folds: RefCell<Vec<OneshotSender<()>>>,
    /// A batch is wanted, by nobody who waits.
    record: Cell<bool>,
    batch_gate: Gate,
    /// Deltas or the journal press.
    pressure: Cell<bool>,
    commit_gate: Gate,
    clean_gate: Gate,
    /// Held by the fold under way.
    fold: Lock<()>,
}

impl Default for Demand {
    fn default() -> Demand {
        Demand {
            waiters: RefCell::default(),
            answering: RefCell::default(),
            folds: RefCell::default(),
            record: Cell::default(),
            batch_gate: Gate::default(),
            pressure: Cell::default(),
            commit_gate: Gate::default(),
            clean_gate: Gate::default(),
            fold: Lock::ranked((), locks::FOLD),
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

    /// Waits for the turn to fold.
    pub async fn fold_turn(&self) -> LockGuard<'_, ()> {
        self.fold.lock().await
    }

    /// Everything acknowledged so far is to become durable.
    pub fn durable(&self, waiter: Waiter) {
        self.waiters.borrow_mut().push(waiter);
        self.batch_gate.open();
    }

    /// Stripes that are written are to be recorded.
    pub fn record(&self) {
        self.record.set(true);
        self.batch_gate.open();
    }

    /// A commit is wanted.
    pub fn press(&self) {
        self.pressure.set(true);
        self.commit_gate.open();
    }

    /// A fold is wanted; whether it is the first that waits for one.
    pub fn fold(&self, reply: OneshotSender<()>) -> bool {
        let mut folds = self.folds.borrow_mut();
        folds.push(reply);
        folds.len() == 1
    }

    /// Those whom the fold that begins now answers.
    pub fn begin_fold(&self) -> Vec<OneshotSender<()>> {
        self.folds.take()
    }

    /// Waits until a batch is wanted, or for so long.
    pub async fn batch_wanted(&self, rt: &Rt, most: Nanos) {
        let wanted = !self.waiters.borrow().is_empty() || self.record.get();
        if !wanted {
            let _ = rt.timeout(most, self.batch_gate.wait()).await;
        }
    }

    /// A batch begins: it answers those who wait now. Whether nobody does, and stripes are only to be recorded.
    pub fn begin_batch(&self) -> bool {
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

    /// The batch is durable.
    pub fn end_batch(&self) {
        for waiter in self.answering.take() {
            waiter.send(Ok(()));
        }
    }

    /// Waits until a commit is wanted, or `closed`.
    pub async fn commit_wanted(&self, closed: &Closed) {
        self.commit_gate
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

    /// The array has stopped: whoever waits for a commit to be wanted goes on.
    pub fn close(&self) {
        self.commit_gate.open();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use ashlar_rt::oneshot;

    use super::*;

    /// Who asks while a batch is under way is answered by the next one.
    #[test]
    fn a_late_waiter_is_answered_by_the_next_batch() {
        let demand = Demand::default();
        let (first, one) = oneshot();
        let (second, two) = oneshot();
        demand.durable(first);
        assert!(!demand.begin_batch());
        demand.durable(second);
        demand.end_batch();
        let rt = Rt::simulated(1);
        assert_eq!(rt.block_on(one).unwrap(), Ok(()));
        assert!(!demand.begin_batch());
        demand.refuse();
        assert_eq!(rt.block_on(two).unwrap(), Err(VolumeError::Closed));
        demand.record();
        assert!(demand.begin_batch(), "only stripes are to be recorded");
        assert!(!demand.begin_batch());
    }

    #[test]
    fn one_fold_answers_all_who_asked_before_it_began() {
        let demand = Demand::default();
        let (first, _one) = oneshot();
        let (second, _two) = oneshot();
        assert!(demand.fold(first) && !demand.fold(second));
        assert_eq!(demand.begin_fold().len(), 2);
        assert!(demand.fold(oneshot().0));
    }
}
