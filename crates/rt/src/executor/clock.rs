//! The clock of an executor, virtual or the machine's, and waiting for a moment of it.
//!
//! Invariants: virtual time goes on when it is told to only; a sleep has one timer at most, and takes it along when
//! it is dropped.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::time::{Nanos, SECOND};

/// When virtual time begins, in seconds since 1970.
const VIRTUAL_BEGIN: u64 = 1_700_000_000;

enum Time {
    Virtual(Cell<Nanos>),
    Real(std::time::Instant),
}

/// Time, and who waits for it.
pub(super) struct Clock {
    time: Time,
    timers: RefCell<BTreeMap<(Nanos, u64), Waker>>,
    next_timer: Cell<u64>,
}

impl Clock {
    /// A clock that begins at 0 and stands still.
    pub(super) fn simulated() -> Clock {
        Clock::new(Time::Virtual(Cell::new(0)))
    }

    /// The machine's clock.
    pub(super) fn real() -> Clock {
        Clock::new(Time::Real(std::time::Instant::now()))
    }

    fn new(time: Time) -> Clock {
        Clock {
            time,
            timers: RefCell::default(),
            next_timer: Cell::new(0),
        }
    }

    /// The current time.
    pub(super) fn now(&self) -> Nanos {
        match &self.time {
            Time::Virtual(now) => now.get(),
            Time::Real(start) => u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX),
        }
    }

    /// Time that also goes on while the machine is suspended, from any beginning.
    pub(super) fn now_suspended_too(&self) -> Nanos {
        match &self.time {
            Time::Virtual(now) => now.get(),
            Time::Real(_) => {
                let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
                let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
                seconds * SECOND + u64::try_from(now.tv_nsec).unwrap_or(0)
            }
        }
    }

    /// Seconds since 1970, as people count them: a clock that is set may jump. Virtual time begins in 2023.
    pub(super) fn unix_seconds(&self) -> u64 {
        match &self.time {
            Time::Virtual(now) => VIRTUAL_BEGIN + now.get() / SECOND,
            Time::Real(_) => std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
        }
    }

    /// Whether time is virtual.
    pub(super) fn is_simulated(&self) -> bool {
        matches!(self.time, Time::Virtual(_))
    }

    /// When the next timer is due.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.timers.borrow().keys().next().map(|key| key.0)
    }

    /// Moves virtual time on to `at`.
    pub(super) fn advance(&self, at: Nanos) {
        if let Time::Virtual(now) = &self.time {
            now.set(now.get().max(at));
        }
    }

    /// Wakes whoever waits for a moment that has come. Returns whether there was one.
    pub(super) fn fire(&self) -> bool {
        let now = self.now();
        let mut fired = false;
        loop {
            let waker = {
                let mut timers = self.timers.borrow_mut();
                match timers.first_entry() {
                    Some(entry) if entry.key().0 <= now => entry.remove(),
                    _ => break,
                }
            };
            waker.wake();
            fired = true;
        }
        fired
    }

    /// Forgets whoever waits. Their wakers are to be dropped where nothing is borrowed.
    pub(super) fn take_all(&self) -> impl ExactSizeIterator + use<> {
        std::mem::take(&mut *self.timers.borrow_mut()).into_iter()
    }

    /// Completes at `deadline`.
    pub(super) fn sleep_until(self: &Rc<Clock>, deadline: Nanos) -> Sleep {
        Sleep {
            clock: self.clone(),
            deadline,
            timer: None,
        }
    }
}

/// Completes at its deadline.
pub(super) struct Sleep {
    clock: Rc<Clock>,
    deadline: Nanos,
    timer: Option<u64>,
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.clock.now() >= self.deadline {
            return Poll::Ready(());
        }
        let clock = self.clock.clone();
        let id = *self
            .timer
            .get_or_insert_with(|| clock.next_timer.replace(clock.next_timer.get() + 1));
        let key = (self.deadline, id);
        clock.timers.borrow_mut().insert(key, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(id) = self.timer {
            self.clock.timers.borrow_mut().remove(&(self.deadline, id));
        }
    }
}
