//! A job on its way: what a caller waits for.
//!
//! **Invariants**: it yields once; a job that a device did not finish is done again by the processor.

use std::fmt;
use std::future::Future;
use std::ops::DerefMut;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::Fault;
use crate::done::Done;
use crate::flight::{Flight, Landed};

/// What makes the result of what a device said.
pub(crate) type Settle<W> = Box<dyn FnOnce(Result<Landed, Fault>) -> Done<W> + Send>;

/// How far a job has come.
pub(crate) enum State<W> {
    Done(Option<Done<W>>),
    Flying(Arc<Flight>, Settle<W>),
}

/// A job that was submitted. A future; dropping it does not stop the job.
pub struct Pending<W>(pub(crate) State<W>);

// Nothing in it is pinned: a `W` is moved only when the job is done.
impl<W> Unpin for Pending<W> {}

impl<W: DerefMut<Target = [u8]> + Send + 'static> Pending<W> {
    /// Sleeps until the job is done. Not for executors.
    ///
    /// # Panics
    /// If the future has been polled to its end.
    pub fn wait(mut self) -> Done<W> {
        let answer = match &self.0 {
            State::Flying(flight, _) => Some(flight.wait()),
            State::Done(_) => None,
        };
        if let Some(answer) = answer {
            self.settle(answer);
        }
        self.take()
    }

    /// Whether it ended inside `submit`.
    pub fn is_done(&self) -> bool {
        matches!(self.0, State::Done(_))
    }

    fn settle(&mut self, answer: Result<Landed, Fault>) {
        let flying = std::mem::replace(&mut self.0, State::Done(None));
        self.0 = match flying {
            State::Flying(_, settle) => State::Done(Some(settle(answer))),
            done @ State::Done(_) => done,
        };
    }

    fn take(&mut self) -> Done<W> {
        match &mut self.0 {
            State::Done(done) => done.take().expect("a job is taken once"),
            State::Flying(..) => unreachable!("settled before"),
        }
    }
}

impl<W: DerefMut<Target = [u8]> + Send + 'static> Future for Pending<W> {
    type Output = Done<W>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Done<W>> {
        if let State::Flying(flight, _) = &self.0 {
            match flight.poll(cx) {
                Poll::Ready(answer) => self.settle(answer),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(self.take())
    }
}

impl<W> fmt::Debug for Pending<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            State::Done(_) => "Pending(done)",
            State::Flying(..) => "Pending(on the device)",
        })
    }
}
