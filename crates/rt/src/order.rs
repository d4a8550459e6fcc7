//! The order in which a task takes locks. Two tasks that take the same two locks in different orders wait for each other
//! for ever; so every lock has a rank, and a task that holds one waits only for locks of a higher rank.
//!
//! Invariant: builds with debug assertions panic where that is broken, whether or not another task waits just then; others
//! do without the bookkeeping. A task that waits for another task, which takes the lock, is not seen.

/// Where a lock stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// Taken after all of a lower one.
    pub place: u8,
    /// The lock's name.
    pub name: &'static str,
}

#[cfg(debug_assertions)]
pub(crate) use held::{Held, enter};

#[cfg(debug_assertions)]
mod held {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;

    use super::Rank;

    /// A runtime and a task of it.
    type Task = (usize, u64);

    thread_local! {
        static CURRENT: Cell<Task> = const { Cell::new((0, 0)) };
        static HELD: RefCell<BTreeMap<Task, Vec<Rank>>> = const { RefCell::new(BTreeMap::new()) };
    }

    /// The task that is polled, until this is dropped.
    pub(crate) struct Current(Task);

    impl Drop for Current {
        fn drop(&mut self) {
            CURRENT.set(self.0);
        }
    }

    /// A task is polled now.
    pub(crate) fn enter(runtime: usize, task: u64) -> Current {
        Current(CURRENT.replace((runtime, task)))
    }

    /// A lock that a task holds, until this is dropped.
    #[derive(Debug)]
    pub(crate) struct Held(Option<(Task, Rank)>);

    impl Held {
        /// Panics if the task that is polled holds a lock that does not stand before this one.
        pub(crate) fn check(rank: Option<Rank>) {
            let Some(rank) = rank else { return };
            HELD.with_borrow(|held| {
                let mine = held.get(&CURRENT.get());
                let last = mine.and_then(|mine| mine.iter().max_by_key(|r| r.place));
                if let Some(last) = last {
                    assert!(
                        last.place < rank.place,
                        "the lock {} is waited for with {} held, which comes after it",
                        rank.name,
                        last.name
                    );
                }
            });
        }

        /// The task that is polled has taken a lock.
        pub(crate) fn new(rank: Option<Rank>) -> Held {
            let task = CURRENT.get();
            if let Some(rank) = rank {
                HELD.with_borrow_mut(|held| held.entry(task).or_default().push(rank));
            }
            Held(rank.map(|rank| (task, rank)))
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            let Some((task, rank)) = self.0 else { return };
            // A thread that ends has no use for it.
            let _ = HELD.try_with(|held| {
                let mut held = held.borrow_mut();
                let mine = held.entry(task).or_default();
                if let Some(at) = mine.iter().position(|r| *r == rank) {
                    mine.swap_remove(at);
                }
                if mine.is_empty() {
                    held.remove(&task);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::Rank;
    use crate::{Lock, Rt};

    const FIRST: Rank = Rank {
        place: 1,
        name: "first",
    };
    const SECOND: Rank = Rank {
        place: 2,
        name: "second",
    };

    #[test]
    fn locks_are_taken_in_their_order() {
        let rt = Rt::simulated(1);
        let (a, b) = (
            Rc::new(Lock::ranked((), FIRST)),
            Rc::new(Lock::ranked((), SECOND)),
        );
        let other = (a.clone(), b.clone());
        let handle = rt.clone();
        rt.block_on(async move {
            let held = b.lock().await;
            // Another task holds nothing.
            let task = handle.spawn(async move {
                let _a = other.0.lock().await;
                let _b = other.1.lock().await;
            });
            handle.sleep(1).await;
            drop(held);
            task.await;
            drop(a.lock().await);
            drop(b.lock().await);
        });
    }

    #[test]
    #[should_panic(expected = "the lock first is waited for with second held")]
    fn the_other_order_is_found_though_nobody_waits() {
        let rt = Rt::simulated(1);
        let (a, b) = (Lock::ranked((), FIRST), Lock::ranked((), SECOND));
        rt.block_on(async move {
            let _b = b.lock().await;
            let _a = a.lock().await;
        });
    }

    #[test]
    #[should_panic(expected = "the lock first is waited for with first held")]
    fn two_of_one_rank_are_found() {
        let rt = Rt::simulated(1);
        let (a, b) = (Lock::ranked((), FIRST), Lock::ranked((), FIRST));
        rt.block_on(async move {
            let _a = a.lock().await;
            let _b = b.lock().await;
        });
    }
}
