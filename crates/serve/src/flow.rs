//! What every frontend needs to bound and to end its work: a [`Stop`], a [`Budget`], [`begin`], and
//! helper threads.
//!
//! Invariants: a [`Hold`] gives back exactly what it took, once; a [`Stop`] that is set stays set.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use ashlar_rt::{Gate, Rt, oneshot};

/// Runs `work` at once if it need not wait, else as a task of its own. Most work of a volume with a
/// cache does not wait, and a task costs more than such work.
pub(crate) fn begin(rt: &Rt, work: impl Future<Output = ()> + 'static) {
    let mut work = Box::pin(work);
    if work
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
        .is_pending()
    {
        rt.spawn(work); // which polls it again, with a waker that counts
    }
}

/// Runs `work`, which may block, on a thread of its own. `None` if there is no thread to be had.
pub async fn on_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (reply, result) = oneshot();
    let thread = std::thread::Builder::new().name("ashlar-serve".into());
    thread.spawn(move || reply.send(work())).ok()?;
    result.await
}

/// Tells one waiting task, once, to stop.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    set: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Stop {
    pub(crate) fn set(&self) {
        self.set.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    pub(crate) fn is_set(&self) -> bool {
        self.set.get()
    }

    /// `future`'s result, or `None` once told to stop. `future` must be safe to drop.
    pub(crate) async fn or<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        std::future::poll_fn(|cx| {
            if self.set.get() {
                return Poll::Ready(None);
            }
            if let Poll::Ready(value) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(value));
            }
            let mut waker = self.waker.borrow_mut();
            if !waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
                *waker = Some(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}

/// What a peer may have in flight.
#[derive(Debug)]
pub(crate) struct Budget {
    requests: Cell<usize>,
    bytes: Cell<usize>,
    max_requests: usize,
    max_bytes: usize,
    gate: Gate,
}

/// A share of a [`Budget`], given back when dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    budget: Rc<Budget>,
    bytes: usize,
}

impl Budget {
    pub(crate) fn new(max_requests: usize, max_bytes: usize) -> Rc<Budget> {
        Rc::new(Budget {
            requests: Cell::new(0),
            bytes: Cell::new(0),
            max_requests,
            max_bytes,
            gate: Gate::default(),
        })
    }

    /// Takes one request of `bytes`, waiting until they fit. `bytes` above the limit wait until
    /// nothing else is in flight.
    pub(crate) async fn take(self: &Rc<Self>, bytes: usize) -> Hold {
        self.gate
            .until(|| {
                let fits = self.bytes.get() + bytes <= self.max_bytes || self.bytes.get() == 0;
                fits && self.requests.get() < self.max_requests
            })
            .await;
        self.requests.set(self.requests.get() + 1);
        self.bytes.set(self.bytes.get() + bytes);
        Hold {
            budget: self.clone(),
            bytes,
        }
    }

    /// Waits until everything was given back.
    pub(crate) async fn idle(&self) {
        self.gate.until(|| self.requests.get() == 0).await;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let budget = &self.budget;
        budget.requests.set(budget.requests.get() - 1);
        budget.bytes.set(budget.bytes.get() - self.bytes);
        budget.gate.open();
    }
}
