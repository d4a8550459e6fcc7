//! A job on its way: what a caller waits for.
//!
//! **Invariants**: it yields once; a job that a device did not finish is done again by the processor.

use std::fmt;
use std::future::Future;
use std::ops::DerefMut;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::{Accelerator, Done};
use crate::Fault;
use crate::flight::{Flight, Landed};

/// How far a job has come.
pub(super) enum State<W> {
    Done(Option<Done<W>>),
    Flying {
        accelerator: Accelerator,
        flight: Arc<Flight>,
        lengths: Vec<usize>,
        fresh: fn(usize) -> W,
        number: u16,
    },
}

/// A job that was submitted. A future; dropping it does not stop the job.
pub struct Pending<W>(pub(super) State<W>);

// Nothing in it is pinned: a `W` is moved only when the job is done.
impl<W> Unpin for Pending<W> {}

impl<W: DerefMut<Target = [u8]> + Send + 'static> Pending<W> {
    /// Sleeps until the job is done. Not for executors.
    ///
    /// # Panics
    /// If the future has been polled to its end.
    pub fn wait(mut self) -> Done<W> {
        let answer = match &self.0 {
            State::Flying { flight, .. } => Some(flight.wait()),
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
        let State::Flying {
            accelerator,
            flight,
            lengths,
            fresh,
            number,
        } = &self.0
        else {
            return;
        };
        let again = || lengths.iter().map(|bytes| fresh(*bytes)).collect();
        let done = match answer {
            Ok(landed) => {
                let done = accelerator.landed(flight, landed, *number);
                let other = accelerator.is_check_due();
                let other = other.then(|| accelerator.compared(&flight.plan, &done, again()));
                other.flatten().unwrap_or(done)
            }
            Err(fault) => accelerator.run_here(&flight.plan, again(), Some(fault)),
        };
        self.0 = State::Done(Some(done));
    }

    fn take(&mut self) -> Done<W> {
        match &mut self.0 {
            State::Done(done) => done.take().expect("a job is taken once"),
            State::Flying { .. } => unreachable!("settled before"),
        }
    }
}

impl<W: DerefMut<Target = [u8]> + Send + 'static> Future for Pending<W> {
    type Output = Done<W>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Done<W>> {
        if let State::Flying { flight, .. } = &self.0 {
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
            State::Flying { .. } => "Pending(on the device)",
        })
    }
}
