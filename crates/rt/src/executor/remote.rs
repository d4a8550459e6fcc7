//! Calls from other threads: they wake tasks of an executor, and run closures on its thread.
//!
//! Invariants: what is to be found is queued before the executor's sleep is ended; no lock is held
//! while a closure runs.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

type RemoteCall = Box<dyn FnOnce() + Send>;

/// What other threads may touch: wakes and calls.
pub(crate) struct Shared {
    /// The thread that runs the executor; its own wakes need no nudge.
    owner: std::thread::ThreadId,
    pub(super) ready: Mutex<VecDeque<u64>>,
    calls: Mutex<Vec<RemoteCall>>,
    /// Whether there are calls, to be asked without a lock.
    called: AtomicBool,
    /// Called after a wake or a call from another thread, so that a parked reactor returns.
    pub(super) unpark: Mutex<Option<Box<dyn Fn() + Send>>>,
    pub(super) parked: AtomicBool,
}

impl Shared {
    pub(super) fn new() -> Shared {
        Shared {
            owner: std::thread::current().id(),
            ready: Mutex::default(),
            calls: Mutex::default(),
            called: AtomicBool::new(false),
            unpark: Mutex::default(),
            parked: AtomicBool::new(false),
        }
    }

    /// Puts a task behind the others that are ready.
    pub(crate) fn make_ready(&self, id: u64) {
        lock(&self.ready).push_back(id);
        self.nudge();
    }

    /// Runs the calls of other threads that have come so far; false if there were none.
    pub(super) fn run_calls(&self) -> bool {
        if !self.called.load(Ordering::Acquire) {
            return false;
        }
        let calls = {
            let mut calls = lock(&self.calls);
            self.called.store(false, Ordering::Release);
            std::mem::take(&mut *calls)
        };
        for call in calls {
            call();
        }
        true
    }

    /// Whether nothing waits to be run.
    pub(super) fn is_idle(&self) -> bool {
        lock(&self.ready).is_empty() && lock(&self.calls).is_empty()
    }

    /// Ends the sleep of the executor's thread, once per sleep. What to find is queued before.
    fn nudge(&self) {
        if self.parked.load(Ordering::SeqCst)
            && std::thread::current().id() != self.owner
            && self.parked.swap(false, Ordering::SeqCst)
            && let Some(unpark) = &*lock(&self.unpark)
        {
            unpark();
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Runs closures on the executor's thread, from any thread.
#[derive(Clone)]
pub struct Remote(pub(super) Arc<Shared>);

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Remote")
    }
}

impl Remote {
    /// Queues `call`; it runs on the executor's thread between two polls, and may spawn.
    pub fn call(&self, call: impl FnOnce() + Send + 'static) {
        {
            let mut calls = lock(&self.0.calls);
            calls.push(Box::new(call));
            self.0.called.store(true, Ordering::Release);
        }
        self.0.nudge();
    }
}
