//! Waiting between tasks of one thread: a counting [`Permits`], an ordered [`Lock`], and a [`Gate`]
//! on which tasks wait for a condition to change.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

#[cfg(debug_assertions)]
use crate::order::Held;
use crate::order::Rank;

/// Tasks wait here until another calls [`Gate::open`]; every waiter then looks at its condition again.
#[derive(Default)]
pub struct Gate {
    /// By number, so in the order of coming.
    waiters: RefCell<BTreeMap<u64, Waker>>,
    next: Cell<u64>,
    epoch: Cell<u64>,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate")
            .field("waiters", &self.waiters.borrow().len())
            .finish()
    }
}

impl Gate {
    /// Wakes everyone who waits.
    pub fn open(&self) {
        self.epoch.set(self.epoch.get() + 1);
        for waker in self.waiters.take().into_values() {
            waker.wake();
        }
    }

    /// Completes at the next [`Gate::open`] after this call, whenever the future is first polled.
    pub fn wait(&self) -> impl Future<Output = ()> + use<'_> {
        Wait {
            gate: self,
            epoch: self.epoch.get(),
            number: None,
        }
    }

    /// Waits, through as many openings as it takes, until `condition` holds.
    pub async fn until(&self, mut condition: impl FnMut() -> bool) {
        while !condition() {
            self.wait().await;
        }
    }
}

struct Wait<'a> {
    gate: &'a Gate,
    epoch: u64,
    number: Option<u64>,
}

impl Future for Wait<'_> {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let gate = self.gate;
        if gate.epoch.get() != self.epoch {
            return Poll::Ready(());
        }
        let number = *self
            .number
            .get_or_insert_with(|| gate.next.replace(gate.next.get() + 1));
        gate.waiters.borrow_mut().insert(number, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.gate.waiters.borrow_mut().remove(&number);
        }
    }
}

/// A counting semaphore, served in the order of asking.
#[derive(Debug)]
pub struct Permits {
    free: Cell<usize>,
    queue: RefCell<VecDeque<Waiter>>,
    next: Cell<u64>,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    count: usize,
    waker: Option<Waker>,
}

impl Permits {
    /// `count` permits.
    pub fn new(count: usize) -> Rc<Permits> {
        Rc::new(Permits {
            free: Cell::new(count),
            queue: RefCell::default(),
            next: Cell::new(0),
        })
    }

    /// Takes `count` permits, waiting behind whoever asked before. `count` above the total waits
    /// for ever.
    pub async fn take(self: &Rc<Self>, count: usize) -> PermitsGuard {
        if let Some(guard) = self.try_take(count) {
            return guard;
        }
        let ticket = self.next.get();
        self.next.set(ticket + 1);
        self.queue.borrow_mut().push_back(Waiter {
            ticket,
            count,
            waker: None,
        });
        let place = Place {
            permits: self,
            ticket,
        };
        std::future::poll_fn(|cx| {
            let mut queue = self.queue.borrow_mut();
            if queue.front().is_some_and(|first| first.ticket == ticket) && self.free.get() >= count
            {
                return Poll::Ready(());
            }
            let waiter = queue.iter_mut().find(|waiter| waiter.ticket == ticket);
            waiter.expect("a waiter keeps its place").waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        self.free.set(self.free.get() - count);
        drop(place); // the next may find enough left
        PermitsGuard {
            permits: self.clone(),
            count,
        }
    }

    /// Takes `count` permits if they are free and nobody waits.
    pub fn try_take(self: &Rc<Self>, count: usize) -> Option<PermitsGuard> {
        if !self.queue.borrow().is_empty() || self.free.get() < count {
            return None;
        }
        self.free.set(self.free.get() - count);
        Some(PermitsGuard {
            permits: self.clone(),
            count,
        })
    }

    /// Permits not taken.
    pub fn free(&self) -> usize {
        self.free.get()
    }

    /// Wakes the first who waits, if there is enough for it.
    fn wake_first(&self) {
        let waker = match self.queue.borrow_mut().front_mut() {
            Some(first) if first.count <= self.free.get() => first.waker.take(),
            _ => None,
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A place in the queue, given up when it has been served or when its task goes away.
struct Place<'a> {
    permits: &'a Permits,
    ticket: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.permits
            .queue
            .borrow_mut()
            .retain(|waiter| waiter.ticket != self.ticket);
        self.permits.wake_first();
    }
}

/// Permits held; given back when dropped.
#[derive(Debug)]
pub struct PermitsGuard {
    permits: Rc<Permits>,
    count: usize,
}

impl Drop for PermitsGuard {
    fn drop(&mut self) {
        self.permits.free.set(self.permits.free.get() + self.count);
        self.permits.wake_first();
    }
}

/// A value that one task at a time may use, across awaits, in the order of asking.
pub struct Lock<T> {
    permits: Rc<Permits>,
    #[cfg(debug_assertions)]
    rank: Option<Rank>,
    value: UnsafeCell<T>,
}

impl<T> std::fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lock")
            .field("free", &self.permits.free())
            .finish_non_exhaustive()
    }
}

impl<T> Lock<T> {
    /// Wraps `value`.
    pub fn new(value: T) -> Lock<T> {
        Lock {
            permits: Permits::new(1),
            #[cfg(debug_assertions)]
            rank: None,
            value: UnsafeCell::new(value),
        }
    }

    /// Wraps `value`, in a lock that is taken in the order of ranks (see [`Rank`]).
    pub fn ranked(value: T, rank: Rank) -> Lock<T> {
        let mut lock = Lock::new(value);
        lock.set_rank(rank);
        lock
    }

    #[cfg(debug_assertions)]
    fn set_rank(&mut self, rank: Rank) {
        self.rank = Some(rank);
    }

    #[cfg(not(debug_assertions))]
    fn set_rank(&mut self, _: Rank) {}

    fn guard(&self, permit: PermitsGuard) -> LockGuard<'_, T> {
        LockGuard {
            lock: self,
            _permit: permit,
            #[cfg(debug_assertions)]
            _held: Held::new(self.rank),
        }
    }

    /// The value, if nobody has or waits for it.
    pub fn try_lock(&self) -> Option<LockGuard<'_, T>> {
        Some(self.guard(self.permits.try_take(1)?))
    }

    /// Waits for the value.
    pub async fn lock(&self) -> LockGuard<'_, T> {
        #[cfg(debug_assertions)]
        Held::check(self.rank);
        self.guard(self.permits.take(1).await)
    }
}

/// Sole use of a [`Lock`]'s value.
#[derive(Debug)]
pub struct LockGuard<'a, T> {
    lock: &'a Lock<T>,
    _permit: PermitsGuard,
    #[cfg(debug_assertions)]
    _held: Held,
}

impl<T> std::ops::Deref for LockGuard<'_, T> {
    type Target = T;
    #[expect(
        unsafe_code,
        reason = "the one permit makes this guard the only user of the value"
    )]
    fn deref(&self) -> &T {
        // SAFETY: `Lock` is not Sync, and the guard holds its only permit, so no other guard exists.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> std::ops::DerefMut for LockGuard<'_, T> {
    #[expect(
        unsafe_code,
        reason = "the one permit makes this guard the only user of the value"
    )]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; `&mut self` excludes every other borrow through this guard.
        unsafe { &mut *self.lock.value.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rt;

    #[test]
    fn permits_are_served_in_order_and_returned() {
        let rt = Rt::simulated(3);
        let permits = Permits::new(2);
        let order = Rc::new(RefCell::new(Vec::new()));
        let first = rt.clone();
        rt.block_on({
            let (permits, order, rt) = (permits.clone(), order.clone(), first);
            async move {
                let held = permits.take(2).await;
                let mut joins = Vec::new();
                for name in 0..4 {
                    let (permits, order, rt2) = (permits.clone(), order.clone(), rt.clone());
                    joins.push(rt.spawn(async move {
                        rt2.sleep(name).await;
                        let _one = permits.take(1).await;
                        order.borrow_mut().push(name);
                        rt2.sleep(100).await;
                    }));
                }
                rt.sleep(50).await;
                drop(held);
                for join in joins {
                    join.await;
                }
            }
        });
        assert_eq!(*order.borrow(), vec![0, 1, 2, 3]);
        assert_eq!(permits.free(), 2);
    }

    #[test]
    fn a_gate_forgets_who_left_and_counts_from_the_call() {
        let rt = Rt::simulated(3);
        let handle = rt.clone();
        rt.block_on(async move {
            let gate = Gate::default();
            for _ in 0..10 {
                assert!(handle.timeout(5, gate.wait()).await.is_none());
            }
            assert!(gate.waiters.borrow().is_empty());
            let early = gate.wait();
            gate.open();
            early.await; // opened after the call, though before the first poll
            assert!(handle.timeout(5, gate.wait()).await.is_none());
        });
    }

    #[test]
    fn one_release_wakes_one_waiter_and_a_waiter_that_leaves_passes_its_turn_on() {
        let rt = Rt::simulated(3);
        let handle = rt.clone();
        rt.block_on(async move {
            let permits = Permits::new(1);
            let held = permits.take(1).await;
            assert!(permits.try_take(1).is_none());
            let mut joins = Vec::new();
            for _ in 0..100 {
                let permits = permits.clone();
                joins.push(handle.spawn(async move { drop(permits.take(1).await) }));
            }
            handle.sleep(1).await;
            let before = handle.polls();
            // The first in the queue gives up, and with it its place.
            let leaver = handle.spawn({
                let (rt, permits) = (handle.clone(), permits.clone());
                async move { rt.timeout(5, permits.take(1)).await.is_none() }
            });
            assert!(leaver.await);
            drop(held);
            for join in joins {
                join.await;
            }
            assert_eq!(permits.free(), 1);
            let polls = handle.polls() - before;
            assert!(polls < 310, "each waiter is polled about once: {polls}");
        });
    }

    #[test]
    fn a_large_request_is_not_overtaken() {
        let rt = Rt::simulated(9);
        let handle = rt.clone();
        rt.block_on(async move {
            let permits = Permits::new(4);
            let first = permits.take(3).await;
            let order = Rc::new(RefCell::new(Vec::new()));
            let mut joins = Vec::new();
            for (name, count) in [("large", 4), ("small", 1)] {
                let (permits, order, rt) = (permits.clone(), order.clone(), handle.clone());
                joins.push(handle.spawn(async move {
                    rt.sleep(if count == 4 { 1 } else { 2 }).await;
                    let _held = permits.take(count).await;
                    order.borrow_mut().push(name);
                }));
            }
            handle.sleep(10).await;
            assert!(order.borrow().is_empty());
            drop(first);
            for join in joins {
                join.await;
            }
            assert_eq!(*order.borrow(), ["large", "small"]);
        });
    }

    #[test]
    fn a_lock_excludes_across_awaits() {
        let rt = Rt::simulated(5);
        let lock = Rc::new(Lock::new(0u32));
        let handle = rt.clone();
        let shared = lock.clone();
        rt.block_on(async move {
            let mut joins = Vec::new();
            for _ in 0..10 {
                let (lock, rt) = (shared.clone(), handle.clone());
                joins.push(handle.spawn(async move {
                    let mut value = lock.lock().await;
                    let seen = *value;
                    rt.sleep(5).await;
                    *value = seen + 1;
                }));
            }
            for join in joins {
                join.await;
            }
            assert_eq!(*shared.lock().await, 10);
        });
    }
}
