//! Waiting between tasks of one thread: a counting [`Permits`], an ordered [`Lock`], and a [`Gate`]
//! on which tasks wait for a condition to change.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Tasks wait here until another calls [`Gate::open`]; every waiter then looks at its condition again.
#[derive(Default)]
pub struct Gate {
    waiters: RefCell<Vec<Waker>>,
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
        for waker in self.waiters.take() {
            waker.wake();
        }
    }

    /// Completes at the next [`Gate::open`] after this call.
    pub async fn wait(&self) {
        let epoch = self.epoch.get();
        std::future::poll_fn(|cx| {
            if self.epoch.get() != epoch {
                return Poll::Ready(());
            }
            self.waiters.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Waits, through as many openings as it takes, until `condition` holds.
    pub async fn until(&self, mut condition: impl FnMut() -> bool) {
        while !condition() {
            self.wait().await;
        }
    }
}

/// A counting semaphore, served in the order of asking.
#[derive(Debug)]
pub struct Permits {
    free: Cell<usize>,
    queue: RefCell<VecDeque<u64>>,
    next: Cell<u64>,
    gate: Gate,
}

impl Permits {
    /// `count` permits.
    pub fn new(count: usize) -> Rc<Permits> {
        Rc::new(Permits {
            free: Cell::new(count),
            queue: RefCell::default(),
            next: Cell::new(0),
            gate: Gate::default(),
        })
    }

    /// Takes `count` permits, waiting behind whoever asked before. `count` above the total waits
    /// for ever.
    pub async fn take(self: &Rc<Self>, count: usize) -> PermitsGuard {
        let ticket = self.next.get();
        self.next.set(ticket + 1);
        self.queue.borrow_mut().push_back(ticket);
        let mut place = Place {
            permits: self,
            ticket,
            taken: false,
        };
        self.gate
            .until(|| self.queue.borrow().front() == Some(&ticket) && self.free.get() >= count)
            .await;
        self.free.set(self.free.get() - count);
        place.taken = true;
        drop(place);
        PermitsGuard {
            permits: self.clone(),
            count,
        }
    }

    /// Permits not taken.
    pub fn free(&self) -> usize {
        self.free.get()
    }
}

/// A place in the queue, given up when its task goes away.
struct Place<'a> {
    permits: &'a Permits,
    ticket: u64,
    taken: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.permits
            .queue
            .borrow_mut()
            .retain(|t| *t != self.ticket);
        let _ = self.taken;
        self.permits.gate.open();
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
        self.permits.gate.open();
    }
}

/// A value that one task at a time may use, across awaits, in the order of asking.
pub struct Lock<T> {
    permits: Rc<Permits>,
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
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the value.
    pub async fn lock(&self) -> LockGuard<'_, T> {
        let permit = self.permits.take(1).await;
        LockGuard {
            lock: self,
            _permit: permit,
        }
    }
}

/// Sole use of a [`Lock`]'s value.
#[derive(Debug)]
pub struct LockGuard<'a, T> {
    lock: &'a Lock<T>,
    _permit: PermitsGuard,
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
