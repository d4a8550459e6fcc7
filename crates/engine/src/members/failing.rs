//! Failed devices that are still members, and the redundancy until they are taken out.
//!
//! Invariant: while a checkpoint is under way, what it has freed or moved in memory is needed as it was until its root
//! is durable; so is the redundancy that the array had when it began.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use ashlar_format::superblock::MemberState;
use ashlar_rt::Gate;

/// Devices that failed an operation, and are to be taken out by a generation change.
#[derive(Debug)]
pub struct Failing {
    members: RefCell<Vec<u16>>,
    /// Those that are being taken out.
    leaving: RefCell<Vec<u16>>,
    /// What the operator wants them to be from then on.
    asked: RefCell<BTreeMap<u16, MemberState>>,
    /// Opens when a device was added.
    added: Gate,
    /// Opens when those that were reported have been taken out.
    settled: Gate,
    maybe_degraded: Cell<bool>,
    before_checkpoint: Cell<Option<(bool, usize)>>,
}

impl Default for Failing {
    fn default() -> Failing {
        Failing {
            members: RefCell::default(),
            leaving: RefCell::default(),
            asked: RefCell::default(),
            added: Gate::default(),
            settled: Gate::default(),
            maybe_degraded: Cell::new(true),
            before_checkpoint: Cell::default(),
        }
    }
}

impl Failing {
    /// Whether no device is to be taken out.
    pub fn is_empty(&self) -> bool {
        self.members.borrow().is_empty()
    }

    /// How many are to be taken out.
    pub fn count(&self) -> usize {
        self.members.borrow().len()
    }

    /// Whether this one is to be taken out.
    pub fn contains(&self, member: u16) -> bool {
        self.members.borrow().contains(&member)
    }

    /// Whether this one is to be taken out, or is being taken out: what is written now need not be on it.
    pub fn is_leaving(&self, member: u16) -> bool {
        self.contains(member) || self.leaving.borrow().contains(&member)
    }

    /// A device failed; `counts`: it is in use.
    pub fn report(&self, member: u16, counts: bool) {
        if counts && !self.contains(member) {
            self.members.borrow_mut().push(member);
        }
        self.maybe_degraded.set(true);
        let before = self.before_checkpoint.get();
        self.before_checkpoint
            .set(before.map(|(_, losses)| (true, losses.saturating_sub(1))));
        self.added.open();
    }

    /// The operator wants a device to be in this state once it is taken out.
    pub fn ask(&self, member: u16, state: MemberState) {
        self.asked.borrow_mut().insert(member, state);
    }

    /// The state that the operator has asked for, once.
    pub fn take_asked(&self, member: u16) -> Option<MemberState> {
        self.asked.borrow_mut().remove(&member)
    }

    /// Takes those that are to be taken out.
    pub fn take(&self) -> Vec<u16> {
        let members = self.members.take();
        self.leaving.borrow_mut().extend(&members);
        members
    }

    /// Those that were reported have been taken out.
    pub fn settle(&self) {
        self.leaving.take();
        self.settled.open();
    }

    /// Waits for the next report.
    pub async fn reported(&self) {
        self.added.wait().await;
    }

    /// Waits until a device is to be taken out, or the array is `closed`.
    pub async fn wanted(&self, closed: impl Fn() -> bool) {
        self.added.until(|| !self.is_empty() || closed()).await;
    }

    /// Waits, each time those reported have been taken out, until `done`.
    pub async fn settled_until(&self, done: impl FnMut() -> bool) {
        self.settled.until(done).await;
    }

    /// Whoever waits looks again: the array is closed.
    pub fn close(&self) {
        self.added.open();
        self.settled.open();
    }

    /// Whether some segment may have less redundancy than the layout wants: false saves looking.
    pub fn maybe_degraded(&self) -> bool {
        self.maybe_degraded.get()
    }

    /// The same from now on.
    pub fn set_maybe_degraded(&self, maybe: bool) {
        self.maybe_degraded.set(maybe);
    }

    /// A checkpoint begins, in an array that is `degraded` or not and can lose so many more devices.
    pub fn checkpoint_begins(&self, degraded: bool, losses: usize) {
        self.before_checkpoint.set(Some((degraded, losses)));
    }

    /// Its root is durable.
    pub fn checkpoint_ended(&self) {
        self.before_checkpoint.set(None);
    }

    /// While a checkpoint is under way: whether the array was degraded when it began, or a device failed since, and how
    /// many more may be lost.
    pub fn before_checkpoint(&self) -> Option<(bool, usize)> {
        self.before_checkpoint.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that fails is reported once, and each report costs a checkpoint under way one loss to come.
    #[test]
    fn a_device_is_to_be_taken_out_once() {
        let failing = Failing::default();
        failing.checkpoint_begins(false, 2);
        failing.report(1, true);
        assert_eq!(failing.before_checkpoint(), Some((true, 1)));
        failing.report(1, true);
        failing.report(2, false);
        assert_eq!(failing.before_checkpoint(), Some((true, 0)));
        assert_eq!(failing.take(), vec![1]);
        assert!(failing.is_empty() && failing.maybe_degraded());
    }
}
