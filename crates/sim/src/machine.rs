//! The machine that one life of an array runs on, and what all parts of a history work with.
//!
//! Invariants: a machine's executor is ended by [`Rt::shutdown`] whatever happens.

use std::rc::Rc;

use ashlar_rt::{Nanos, Rt};

use crate::rng::Rng;
use crate::store::{Store, Subject};
use crate::world::World;

/// Polls without an answer to any client after which a phase counts as a livelock; in an array of few slots.
pub(crate) const LIVELOCK: u64 = 1_500_000;

/// How an attempt to open the array ended.
pub(crate) enum Opened {
    Store(Rc<dyn Store>),
    /// The simulator crashed it.
    Crashed,
    /// It was refused, or failed and was recorded: the seed ends.
    Ended,
}

/// Runs `act`; a panic in it is a failure of the world.
pub(crate) fn guarded(world: &World, act: impl FnOnce()) {
    if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)) {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
            .unwrap_or_default();
        world.fail(|| format!("PANIC: {text}"));
    }
}

/// An executor that is shut down when it goes away, panics included: tasks and executor hold each
/// other.
pub(crate) struct Machine(pub(crate) Rt);

impl Drop for Machine {
    fn drop(&mut self) {
        let rt = self.0.clone();
        let shut = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| rt.shutdown()));
        drop(shut); // a destructor that panics during a panic has nothing to add
    }
}

/// A host that stands still.
pub(crate) struct Paused {
    pub(crate) machine: Rc<Machine>,
    pub(crate) store: Rc<dyn Store>,
    /// How long it does.
    pub(crate) time: Nanos,
}

pub(crate) struct Driver<'a> {
    pub(crate) world: Rc<World>,
    pub(crate) subject: &'a dyn Subject,
    pub(crate) rng: Rng,
    /// Imports are to be read only.
    pub(crate) read_only: bool,
    /// The host that had the array before, and stands still.
    pub(crate) paused: Option<Paused>,
}

impl Driver<'_> {
    pub(crate) fn machine(&mut self) -> Rc<Machine> {
        Rc::new(Machine(Rt::simulated(self.rng.draw())))
    }
}
