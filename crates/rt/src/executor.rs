//! The executor: tasks, the ready queue, timers, and the two ways time passes.
//!
//! Invariants: a task is polled only by the thread that owns the [`Rt`]; a wake from any thread puts
//! its task into the ready queue at most once per poll; a simulated executor never sleeps.

mod clock;
pub(crate) mod remote;

pub use remote::Remote;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io::{self, Read};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use crate::reactor::{Epoll, Reactor};
use crate::tasks::{Join, Tasks};
use crate::time::Nanos;

use clock::Clock;
use remote::{Shared, lock};

pub(crate) struct Inner {
    shared: Arc<Shared>,
    pub(crate) tasks: RefCell<Tasks>,
    clock: Rc<Clock>,
    random: Cell<u64>,
    reactor: RefCell<Option<Rc<dyn Reactor>>>,
    epoll: RefCell<Option<Rc<Epoll>>>,
    polls: Cell<u64>,
    /// Tasks that were run out of the ready queue since the reactor was asked.
    turns: Cell<u32>,
}

/// So many tasks are run before the reactor and the timers are asked again.
const TURNS: u32 = 64;

/// Why [`Rt::run_for`] stopped before its future had completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// In simulated time: nothing can ever run again.
    Deadlock,
    /// The polls were used up.
    Polls,
}

/// A handle to the executor of this thread; cheap to clone.
#[derive(Clone)]
pub struct Rt(pub(crate) Rc<Inner>);

impl std::fmt::Debug for Rt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rt")
            .field("tasks", &self.0.tasks.borrow().len())
            .finish_non_exhaustive()
    }
}

impl Rt {
    /// An executor with virtual time, starting at 0, whose schedule and randomness follow `seed`.
    pub fn simulated(seed: u64) -> Rt {
        Rt::new(Clock::simulated(), seed)
    }

    /// An executor on the machine's monotonic clock. `seed` should come from the operating system.
    /// Without a reactor it can only run tasks that never wait for I/O; see [`Rt::set_reactor`].
    pub fn real(seed: u64) -> Rt {
        Rt::new(Clock::real(), seed)
    }

    /// An executor on the machine's clock with an [`Epoll`] reactor and a seed of the operating
    /// system: what programs use.
    ///
    /// # Errors
    /// When the process has no descriptors left.
    pub fn start() -> io::Result<Rt> {
        let mut seed = [0; 8];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut seed)?;
        let rt = Rt::real(u64::from_le_bytes(seed));
        let epoll = Rc::new(Epoll::new()?);
        rt.set_reactor(epoll.clone());
        *rt.0.epoll.borrow_mut() = Some(epoll);
        Ok(rt)
    }

    /// The reactor of an executor made by [`Rt::start`].
    pub fn epoll(&self) -> Option<Rc<Epoll>> {
        self.0.epoll.borrow().clone()
    }

    fn new(clock: Clock, seed: u64) -> Rt {
        Rt(Rc::new(Inner {
            shared: Arc::new(Shared::new()),
            tasks: RefCell::default(),
            clock: Rc::new(clock),
            random: Cell::new(seed ^ 0x5851_F42D_4C95_7F2D),
            reactor: RefCell::default(),
            epoll: RefCell::default(),
            polls: Cell::new(0),
            turns: Cell::new(0),
        }))
    }

    /// Gives the executor something to park on. Done once, before the first task waits for I/O.
    pub fn set_reactor(&self, reactor: Rc<dyn Reactor>) {
        *lock(&self.0.shared.unpark) = Some(reactor.unparker());
        *self.0.reactor.borrow_mut() = Some(reactor);
    }

    /// The current time.
    pub fn now(&self) -> Nanos {
        self.0.clock.now()
    }

    /// Time that also goes on while the machine is suspended, from any beginning: for what other machines count on.
    pub fn now_suspended_too(&self) -> Nanos {
        self.0.clock.now_suspended_too()
    }

    /// Seconds since 1970, for people: this clock may be set.
    pub fn unix_seconds(&self) -> u64 {
        self.0.clock.unix_seconds()
    }

    /// The process stands still for so long, in virtual time.
    pub fn stand_still(&self, time: Nanos) {
        self.0.clock.advance(self.now().saturating_add(time));
    }

    /// Whether time is virtual.
    pub fn is_simulated(&self) -> bool {
        self.0.clock.is_simulated()
    }

    /// How many times a task has been polled: the length of the history so far.
    pub fn polls(&self) -> u64 {
        self.0.polls.get()
    }

    /// The next number of the runtime's generator (splitmix64).
    pub fn random(&self) -> u64 {
        let state = self.0.random.get().wrapping_add(0x9E37_79B9_7F4A_7C15);
        self.0.random.set(state);
        let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which must not be 0.
    pub fn random_below(&self, bound: u64) -> u64 {
        assert!(bound > 0, "an empty range has no number");
        self.random() % bound
    }

    /// So many random bytes.
    pub fn random_bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        for chunk in bytes.chunks_mut(8) {
            let random = self.random().to_le_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
        bytes
    }

    /// Starts `future`; it runs whether or not the [`Join`] is kept.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Join<T> {
        let (finish, join) = Join::new();
        let task = async move { finish.send(future.await) };
        let id = self.0.tasks.borrow_mut().insert(&self.0.shared, task);
        self.0.shared.make_ready(id);
        join
    }

    /// Runs `work` at once, as far as it goes without waiting; what is left is a task. Most work on a volume with a
    /// cache does not wait, and the way through the ready queue costs more than such work.
    pub fn begin(&self, work: impl Future<Output = ()> + 'static) {
        let id = self.0.tasks.borrow_mut().insert(&self.0.shared, work);
        self.poll_task(id);
    }

    /// Completes `delay` from now.
    pub fn sleep(&self, delay: Nanos) -> impl Future<Output = ()> + use<> {
        self.sleep_until(self.now().saturating_add(delay))
    }

    /// Completes at `deadline`.
    pub fn sleep_until(&self, deadline: Nanos) -> impl Future<Output = ()> + use<> {
        self.0.clock.sleep_until(deadline)
    }

    /// Lets every other ready task run once.
    pub fn yield_now(&self) -> impl Future<Output = ()> + use<> {
        let mut yielded = false;
        std::future::poll_fn(move |cx| {
            if yielded {
                return Poll::Ready(());
            }
            yielded = true;
            cx.waker().wake_by_ref();
            Poll::Pending
        })
    }

    /// `future`'s result, or `None` once `delay` has passed. The future must be safe to drop.
    pub async fn timeout<F: Future>(&self, delay: Nanos, future: F) -> Option<F::Output> {
        let mut future = std::pin::pin!(future);
        let mut sleep = std::pin::pin!(self.sleep(delay));
        std::future::poll_fn(move |cx| {
            if let Poll::Ready(value) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(value));
            }
            sleep.as_mut().poll(cx).map(|()| None)
        })
        .await
    }

    /// A handle with which other threads run closures on this executor's thread.
    pub fn remote(&self) -> Remote {
        Remote(self.0.shared.clone())
    }

    /// Runs until `future` completes. Other tasks keep their state for the next call.
    ///
    /// # Panics
    /// In simulated time, when nothing can ever run again: a lost wakeup or a deadlock.
    pub fn block_on<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        self.try_block_on(future)
            .expect("deadlock: no task can run and no timer is set")
    }

    /// As [`Rt::block_on`], but `None` when (in simulated time) nothing can ever run again.
    pub fn try_block_on<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Option<T> {
        let join = self.spawn(future);
        loop {
            if let Some(value) = join.try_take() {
                return Some(value);
            }
            if !self.turn() {
                return None;
            }
        }
    }

    /// As [`Rt::block_on`], but stops after `polls` more polls of tasks: how a simulator crashes at
    /// any point of a history. The future stays spawned, with every other task.
    ///
    /// # Errors
    /// [`Stopped`] says why there is no result.
    pub fn run_for<T: 'static>(
        &self,
        polls: u64,
        future: impl Future<Output = T> + 'static,
    ) -> Result<T, Stopped> {
        let join = self.spawn(future);
        let limit = self.polls().saturating_add(polls);
        loop {
            if let Some(value) = join.try_take() {
                return Ok(value);
            }
            if self.polls() >= limit {
                return Err(Stopped::Polls);
            }
            if !self.turn() {
                return Err(Stopped::Deadlock);
            }
        }
    }

    /// Drops every task and timer, as a crash would: nothing spawned on this runtime runs again.
    pub fn shutdown(&self) {
        loop {
            let tasks = self.0.tasks.borrow_mut().take_all();
            let timers = self.0.clock.take_all();
            lock(&self.0.shared.ready).clear();
            if tasks.is_none() && timers.len() == 0 {
                return;
            }
            drop(timers);
            drop(tasks); // destructors may spawn: look again
        }
    }

    /// Runs one ready task, or lets time pass. False when (in simulated time) nothing is left to do.
    fn turn(&self) -> bool {
        let called = self.0.shared.run_calls();
        if let Some(id) = self.next_ready() {
            self.poll_task(id);
            self.0.turns.set(self.0.turns.get() + 1);
            if !self.is_simulated() && self.0.turns.get() >= TURNS {
                self.0.turns.set(0);
                self.0.clock.fire();
                self.park(false, None);
            }
            return true;
        }
        if called {
            return true;
        }
        let clock = &self.0.clock;
        match (clock.is_simulated(), clock.next()) {
            (true, None) => false,
            (true, Some(at)) => {
                clock.advance(at);
                clock.fire();
                true
            }
            (false, next) => {
                if !clock.fire() {
                    self.park(true, next);
                    clock.fire();
                }
                true
            }
        }
    }

    fn next_ready(&self) -> Option<u64> {
        let mut ready = lock(&self.0.shared.ready);
        if self.is_simulated() && ready.len() > 1 {
            let pick = usize::try_from(self.random_below(ready.len() as u64)).unwrap_or(0);
            return ready.swap_remove_back(pick);
        }
        ready.pop_front()
    }

    fn poll_task(&self, id: u64) {
        let Some(mut task) = self.0.tasks.borrow_mut().take(id) else {
            return;
        };
        self.0.polls.set(self.0.polls.get() + 1);
        #[cfg(debug_assertions)]
        let _current = crate::order::enter(Rc::as_ptr(&self.0) as usize, id);
        // What is dropped at the end has destructors that may spawn.
        let _gone = if task.poll() {
            self.0.tasks.borrow_mut().remove(id);
            Some(task)
        } else {
            self.0.tasks.borrow_mut().put_back(id, task)
        };
    }

    fn park(&self, wait: bool, until: Option<Nanos>) {
        let reactor = self.0.reactor.borrow().clone();
        let Some(reactor) = reactor else {
            assert!(
                !wait || until.is_some(),
                "a task waits, but this runtime has no reactor"
            );
            if let (true, Some(until)) = (wait, until) {
                let delay = until.saturating_sub(self.now());
                std::thread::sleep(std::time::Duration::from_nanos(delay));
            }
            return;
        };
        let shared = &self.0.shared;
        shared.parked.store(wait, Ordering::SeqCst);
        let idle = shared.is_idle();
        reactor.park(wait && idle, self.now(), until);
        shared.parked.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Timers and the reactor were looked at when the number of polls was a multiple of 64: a task that begins another
    /// each time it runs may never come by one.
    #[test]
    fn tasks_that_are_always_ready_do_not_keep_timers_from_firing() {
        let rt = Rt::real(1);
        let handle = rt.clone();
        let fired = rt.block_on(async move {
            let fired = Rc::new(Cell::new(false));
            let (timer, note) = (handle.clone(), fired.clone());
            handle.begin(async move {
                timer.sleep(crate::MILLISECOND).await;
                note.set(true);
            });
            let begun = std::time::Instant::now();
            while !fired.get() && begun.elapsed() < std::time::Duration::from_secs(10) {
                handle.begin(async {});
                handle.yield_now().await;
            }
            fired.get()
        });
        assert!(fired);
    }

    #[test]
    fn virtual_time_jumps_to_the_next_timer() {
        let rt = Rt::simulated(1);
        let handle = rt.clone();
        let times = rt.block_on(async move {
            let slow = handle.spawn({
                let rt = handle.clone();
                async move {
                    rt.sleep(5_000).await;
                    rt.now()
                }
            });
            handle.sleep(1_000).await;
            (handle.now(), slow.await)
        });
        assert_eq!(times, (1_000, 5_000));
    }

    #[test]
    fn a_seed_gives_one_history() {
        let history = |seed| {
            let rt = Rt::simulated(seed);
            let log = Rc::new(RefCell::new(Vec::new()));
            for name in 0..20 {
                let (rt, log) = (rt.clone(), log.clone());
                rt.clone().spawn(async move {
                    rt.yield_now().await;
                    log.borrow_mut().push(name);
                });
            }
            let handle = rt.clone();
            rt.block_on(async move { handle.sleep(1).await });
            Rc::try_unwrap(log).expect("tasks ended").into_inner()
        };
        assert_eq!(history(7), history(7));
        assert_ne!(history(7), history(8));
    }

    #[test]
    fn a_deadlock_is_seen_in_virtual_time() {
        let rt = Rt::simulated(1);
        assert_eq!(rt.try_block_on(std::future::pending::<()>()), None);
    }

    #[test]
    fn a_run_stops_after_its_polls_and_goes_on_in_the_next() {
        let rt = Rt::simulated(1);
        let (handle, count) = (rt.clone(), Rc::new(Cell::new(0)));
        let counted = count.clone();
        let endless = async move {
            loop {
                counted.set(counted.get() + 1);
                handle.yield_now().await;
            }
        };
        assert_eq!(rt.run_for::<()>(10, endless), Err(Stopped::Polls));
        assert_eq!(count.get(), 10);
        assert_eq!(rt.run_for(10, async { 5 }), Ok(5));
        rt.shutdown();
        assert_eq!(
            rt.run_for(10, std::future::pending::<()>()),
            Err(Stopped::Deadlock)
        );
    }

    #[test]
    fn timeout_gives_up_at_its_time() {
        let rt = Rt::simulated(1);
        let handle = rt.clone();
        let value = rt.block_on(async move {
            let none = handle.timeout(10, std::future::pending::<u8>()).await;
            let some = handle.timeout(10, async { 3 }).await;
            (none, some, handle.now())
        });
        assert_eq!(value, (None, Some(3), 10));
    }
}
