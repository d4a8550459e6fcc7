//! Waiting for a moment.
//!
//! Invariants: a sleep has one timer at most, and takes it along when it is dropped.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::{Nanos, Rt};

/// Completes at its deadline.
pub(super) struct Sleep {
    pub(super) rt: Rt,
    pub(super) deadline: Nanos,
    pub(super) timer: Option<u64>,
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = self.deadline;
        if self.rt.now() >= deadline {
            return Poll::Ready(());
        }
        let inner = self.rt.0.clone();
        let id = *self.timer.get_or_insert_with(|| {
            let id = inner.next_timer.get();
            inner.next_timer.set(id + 1);
            id
        });
        inner
            .timers
            .borrow_mut()
            .insert((deadline, id), cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(id) = self.timer {
            self.rt.0.timers.borrow_mut().remove(&(self.deadline, id));
        }
    }
}
