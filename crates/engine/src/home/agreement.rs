//! Agreement on the membership: whether enough devices hold it, and the decision of the operator where they do not.

use std::cell::Cell;

use ashlar_rt::Gate;

use crate::members::quorum::Quorum;

/// What a change of devices goes by.
#[derive(Debug)]
pub struct Agreement {
    quorum: Cell<Quorum>,
    may_lose: Cell<bool>,
    waiting: Cell<Option<(usize, usize)>>,
    changed: Gate,
}

impl Default for Agreement {
    fn default() -> Agreement {
        Agreement {
            quorum: Cell::new(Quorum::Awaited),
            may_lose: Cell::default(),
            waiting: Cell::default(),
            changed: Gate::default(),
        }
    }
}

impl Agreement {
    /// What happens where fewer than half of the devices counted have stored a generation.
    pub fn quorum(&self) -> Quorum {
        self.quorum.get()
    }

    /// The same from now on.
    pub fn set_quorum(&self, quorum: Quorum) {
        self.quorum.set(quorum);
        self.changed.open();
    }

    /// Whether the operator has said that devices may be given up without which something is lost.
    pub fn may_lose(&self) -> bool {
        self.may_lose.get()
    }

    /// The operator says so, or no longer.
    pub fn set_may_lose(&self, may: bool) {
        self.may_lose.set(may);
    }

    /// While writes wait for the operator: how many devices have stored the generation, of how many counted.
    pub fn waiting(&self) -> Option<(usize, usize)> {
        self.waiting.get()
    }

    /// Waits until the operator lets `stored` devices of `counted` be enough, or the array is `closed`.
    pub async fn wait(&self, stored: usize, counted: usize, closed: impl Fn() -> bool) {
        self.waiting.set(Some((stored, counted)));
        let goes_on = || self.quorum.get() == Quorum::Forced || closed();
        self.changed.until(goes_on).await;
        self.waiting.set(None);
    }

    /// Whoever waits looks again: the array is closed.
    pub fn close(&self) {
        self.changed.open();
    }
}
