//! Limits and the end of the work of every frontend: a [`Stop`], a [`Budget`] for a peer, a [`Pool`] that peers
//! share, and helper threads.
//!
//! Invariants: a [`Hold`] and a [`Share`] give back exactly what they took, once; a [`Stop`] that is set stays set;
//! a peer that gives nothing back never keeps another from the pool.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use ashlar_rt::{Gate, oneshot};

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

    /// Bytes taken.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// Waits until everything was given back.
    pub(crate) async fn idle(&self) {
        self.gate.until(|| self.requests.get() == 0).await;
    }
}

/// Memory that peers share. One may take half of what the others leave free, so that something is always left for
/// the next; and what does not fit so, one request at a time, has a lane of its own beside it.
#[derive(Debug)]
pub struct Pool {
    bytes: Cell<usize>,
    max_bytes: usize,
    lane_taken: Cell<bool>,
    gate: Gate,
}

/// A part of a [`Pool`], given back when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    pool: Rc<Pool>,
    bytes: usize,
    in_lane: bool,
}

impl Pool {
    /// A pool of `max_bytes`.
    pub fn new(max_bytes: usize) -> Rc<Pool> {
        Rc::new(Pool {
            bytes: Cell::new(0),
            max_bytes,
            lane_taken: Cell::new(false),
            gate: Gate::default(),
        })
    }

    /// Takes `bytes` for a peer that has taken `own` of its budget, these included; waits until it may.
    pub(crate) async fn take(self: &Rc<Self>, bytes: usize, own: &Budget) -> Share {
        let in_lane = Cell::new(false);
        let may = || {
            let (taken, own) = (self.bytes.get(), own.bytes());
            let others = taken.saturating_sub(own - bytes);
            let share = self.max_bytes.saturating_sub(others) / 2;
            let fits = bytes == 0 || own <= share && taken + bytes <= self.max_bytes;
            in_lane.set(!fits);
            fits || !self.lane_taken.get()
        };
        self.gate.until(may).await;
        if in_lane.get() {
            self.lane_taken.set(true);
        } else {
            self.bytes.set(self.bytes.get() + bytes);
        }
        Share {
            pool: self.clone(),
            bytes,
            in_lane: in_lane.get(),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.in_lane {
            self.pool.lane_taken.set(false);
        } else {
            self.pool.bytes.set(self.pool.bytes.get() - self.bytes);
        }
        self.pool.gate.open();
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::task::Context;

    use super::*;

    const MIB: usize = 1 << 20;

    /// Takes as many requests as are given at once.
    fn take_all(pool: &Rc<Pool>, own: &Rc<Budget>, bytes: usize) -> Vec<(Hold, Share)> {
        let mut all = Vec::new();
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            let hold = match pin!(own.take(bytes)).poll(&mut cx) {
                Poll::Ready(hold) => hold,
                Poll::Pending => return all,
            };
            match pin!(pool.take(bytes, own)).poll(&mut cx) {
                Poll::Ready(share) => all.push((hold, share)),
                Poll::Pending => return all,
            }
        }
    }

    #[test]
    fn peers_that_give_nothing_back_leave_room_for_the_next() {
        for (pool_bytes, request) in [(512, 32), (32, 32), (32, 1), (64, 8)] {
            let pool = Pool::new(pool_bytes * MIB);
            let mut stalled = Vec::new();
            for _ in 0..10 {
                let own = Budget::new(128, 64 * MIB);
                let taken = take_all(&pool, &own, request * MIB);
                stalled.push((own, taken));
            }
            assert!(pool.bytes.get() <= pool.max_bytes);
            let own = Budget::new(128, 64 * MIB);
            let taken = take_all(&pool, &own, 256 << 10);
            // Each leaves half of what it finds, down to the size of its requests; the rest is for smaller ones.
            assert!(taken.len() >= 2, "{pool_bytes} {request}: {}", taken.len());
            drop((taken, stalled));
            assert_eq!((pool.bytes.get(), pool.lane_taken.get()), (0, false));
        }
    }

    #[test]
    fn a_request_larger_than_the_pool_has_a_lane() {
        let pool = Pool::new(MIB);
        let (one, two) = (Budget::new(9, 64 * MIB), Budget::new(9, 64 * MIB));
        let first = take_all(&pool, &one, 32 * MIB);
        assert_eq!((first.len(), pool.bytes.get()), (1, 0));
        assert!(take_all(&pool, &two, 32 * MIB).is_empty(), "one at a time");
        drop(first);
        assert_eq!(take_all(&pool, &two, 32 * MIB).len(), 1);
    }
}
