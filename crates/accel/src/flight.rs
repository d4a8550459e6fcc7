//! A job on its way through a device, shared by whoever waits for it and whoever works on it.
//!
//! **Invariants**: an answer is given once, the first one counts; the output's memory is looked at only by
//! the device's threads until there is an answer, and after a fault by nobody.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::Fault;
use crate::cpu::Found;
use crate::job::{Piece, Plan};

/// What a device has done.
#[derive(Debug)]
pub(crate) struct Landed {
    pub(crate) found: Found,
    /// Time from the first copy to the last, in nanoseconds.
    pub(crate) nanos: f64,
    /// Whether it had the device for itself.
    pub(crate) alone: bool,
}

#[derive(Default)]
struct Answer {
    given: bool,
    value: Option<Result<Landed, Fault>>,
    waker: Option<Waker>,
}

pub(crate) struct Flight {
    pub(crate) plan: Plan,
    pub(crate) write: Mutex<Vec<Box<dyn Piece>>>,
    /// What it is expected to take of the device, in nanoseconds.
    pub(crate) cost: u64,
    answer: Mutex<Answer>,
    answered: Condvar,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Flight {
    pub(crate) fn new(plan: Plan, write: Vec<Box<dyn Piece>>, cost: u64) -> Arc<Flight> {
        Arc::new(Flight {
            plan,
            write: Mutex::new(write),
            cost,
            answer: Mutex::default(),
            answered: Condvar::new(),
        })
    }

    /// Gives the answer, unless there is one.
    pub(crate) fn answer(&self, value: Result<Landed, Fault>) {
        let mut answer = lock(&self.answer);
        if answer.given {
            return;
        }
        answer.given = true;
        answer.value = Some(value);
        let waker = answer.waker.take();
        drop(answer);
        self.answered.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The answer, once; the task of `cx` is woken when it is there.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<Result<Landed, Fault>> {
        let mut answer = lock(&self.answer);
        match answer.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                answer.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// The answer, once; sleeps until it is there.
    pub(crate) fn wait(&self) -> Result<Landed, Fault> {
        let mut answer = lock(&self.answer);
        loop {
            if let Some(value) = answer.value.take() {
                return value;
            }
            answer = self
                .answered
                .wait(answer)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}
