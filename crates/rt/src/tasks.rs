//! The tasks of an executor, and the results that wait for them.
//!
//! Invariants: an id is used once (an index and how often it has been used), so a wake that comes too
//! late finds nothing; a task is in its slot except while it is polled.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use crate::executor::remote::Shared;

/// Wakes one task, from any thread.
pub(crate) struct TaskWaker {
    id: u64,
    queued: AtomicBool,
    shared: Arc<Shared>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::SeqCst) {
            self.shared.make_ready(self.id);
        }
    }
}

/// A future with its waker.
pub(crate) struct Task {
    future: Pin<Box<dyn Future<Output = ()>>>,
    waker: Waker,
    state: Arc<TaskWaker>,
}

impl Task {
    /// Polls the future; true if it has ended. A wake from now on makes it ready again.
    pub(crate) fn poll(&mut self) -> bool {
        self.state.queued.store(false, Ordering::SeqCst);
        let mut context = Context::from_waker(&self.waker);
        self.future.as_mut().poll(&mut context).is_ready()
    }
}

#[derive(Default)]
struct Slot {
    generation: u32,
    used: bool,
    task: Option<Task>,
}

/// All tasks of an executor.
#[derive(Default)]
pub(crate) struct Tasks {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

fn id(index: u32, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(index)
}

impl Tasks {
    /// Adds a future, for whoever polls it first or makes it ready.
    pub(crate) fn insert(
        &mut self,
        shared: &Arc<Shared>,
        future: impl Future<Output = ()> + 'static,
    ) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 tasks at once")
        });
        let slot = &mut self.slots[index as usize];
        let id = id(index, slot.generation);
        let state = Arc::new(TaskWaker {
            id,
            queued: AtomicBool::new(true),
            shared: shared.clone(),
        });
        slot.used = true;
        slot.task = Some(Task {
            future: Box::pin(future),
            waker: Waker::from(state.clone()),
            state,
        });
        id
    }

    fn slot(&mut self, id: u64) -> Option<&mut Slot> {
        let index = usize::try_from(id & u64::from(u32::MAX)).ok()?;
        let slot = self.slots.get_mut(index)?;
        (slot.used && u64::from(slot.generation) == id >> 32).then_some(slot)
    }

    /// Takes a task out for polling, if it is there.
    pub(crate) fn take(&mut self, id: u64) -> Option<Task> {
        self.slot(id)?.task.take()
    }

    /// Puts a task back after polling; gives it back if it was dropped meanwhile.
    pub(crate) fn put_back(&mut self, id: u64, task: Task) -> Option<Task> {
        match self.slot(id) {
            Some(slot) => slot.task.replace(task),
            None => Some(task),
        }
    }

    /// Frees the slot of a task that has ended.
    pub(crate) fn remove(&mut self, id: u64) {
        let Some(slot) = self.slot(id) else { return };
        slot.used = false;
        slot.generation = slot.generation.wrapping_add(1);
        self.free
            .push(u32::try_from(id & u64::from(u32::MAX)).expect("32 bits"));
    }

    /// Takes every task out for good, one that is being polled included; `None` if there is none.
    pub(crate) fn take_all(&mut self) -> Option<Vec<Task>> {
        let mut any = false;
        let mut tasks = Vec::new();
        for (index, slot) in (0..).zip(&mut self.slots) {
            if slot.used {
                any = true;
                slot.used = false;
                slot.generation = slot.generation.wrapping_add(1);
                tasks.extend(slot.task.take());
                self.free.push(index);
            }
        }
        any.then_some(tasks)
    }

    /// How many tasks there are.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

struct Outcome<T> {
    value: Cell<Option<T>>,
    ended: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// The task's end of a [`Join`].
pub(crate) struct Finish<T>(Rc<Outcome<T>>);

impl<T> Finish<T> {
    pub(crate) fn send(self, value: T) {
        self.0.value.set(Some(value));
    }
}

impl<T> Drop for Finish<T> {
    fn drop(&mut self) {
        self.0.ended.set(true);
        let waker = self.0.waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The result of a spawned task; awaiting it waits for the task. Dropping it does not stop the task.
pub struct Join<T>(Rc<Outcome<T>>);

impl<T> Join<T> {
    pub(crate) fn new() -> (Finish<T>, Join<T>) {
        let outcome = Rc::new(Outcome {
            value: Cell::new(None),
            ended: Cell::new(false),
            waker: RefCell::new(None),
        });
        (Finish(outcome.clone()), Join(outcome))
    }

    /// The result, once, if the task has ended.
    pub(crate) fn try_take(&self) -> Option<T> {
        self.0.value.take()
    }
}

/// Waits for all of these tasks: what each gave, in order. All are started before this waits for the first.
pub async fn join_all<T>(joins: impl IntoIterator<Item = Join<T>>) -> Vec<T> {
    let joins: Vec<Join<T>> = joins.into_iter().collect();
    let mut results = Vec::with_capacity(joins.len());
    for join in joins {
        results.push(join.await);
    }
    results
}

impl<T> std::fmt::Debug for Join<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Join")
            .field("ended", &self.0.ended.get())
            .finish_non_exhaustive()
    }
}

impl<T> Future for Join<T> {
    type Output = T;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        if let Some(value) = self.0.value.take() {
            return Poll::Ready(value);
        }
        assert!(
            !self.0.ended.get(),
            "a task sends its result, once, before it ends"
        );
        let mut waker = self.0.waker.borrow_mut();
        match &mut *waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => *waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MILLISECOND, Rt};

    #[test]
    fn a_late_wake_does_not_reach_the_next_task_in_the_slot() {
        let rt = Rt::simulated(1);
        let handle = rt.clone();
        rt.block_on(async move {
            let kept = Rc::new(RefCell::new(None::<Waker>));
            let first = handle.spawn({
                let kept = kept.clone();
                std::future::poll_fn(move |cx| {
                    *kept.borrow_mut() = Some(cx.waker().clone());
                    Poll::Ready(())
                })
            });
            first.await;
            let polls = Rc::new(Cell::new(0));
            let second = handle.spawn({
                let polls = polls.clone();
                std::future::poll_fn(move |_| {
                    polls.set(polls.get() + 1);
                    Poll::<()>::Pending
                })
            });
            handle.sleep(1).await;
            let late = kept.take();
            late.expect("kept above").wake();
            handle.sleep(1).await;
            assert_eq!(polls.get(), 1);
            drop(second);
        });
    }

    #[test]
    fn shutdown_from_inside_a_task_drops_every_task() {
        struct Count(Rc<Cell<u32>>);
        impl Drop for Count {
            fn drop(&mut self) {
                self.0.set(self.0.get() + 1);
            }
        }
        let rt = Rt::simulated(1);
        let dropped = Rc::new(Cell::new(0));
        for _ in 0..10 {
            let count = Count(dropped.clone());
            rt.spawn(async move {
                let _count = count;
                std::future::pending::<()>().await;
            });
        }
        let (count, handle) = (Count(dropped.clone()), rt.clone());
        rt.spawn(async move {
            let _count = count;
            handle.sleep(5).await;
            handle.shutdown();
            handle.sleep(5).await; // never ends
        });
        assert_eq!(rt.try_block_on(std::future::pending::<()>()), None);
        assert_eq!(dropped.get(), 11);
        // What is spawned afterwards runs.
        assert_eq!(rt.block_on(async { 3 }), 3);
        assert_eq!(rt.0.tasks.borrow().len(), 0);
    }

    #[test]
    fn calls_of_other_threads_do_not_starve_tasks() {
        let rt = Rt::start().expect("descriptors");
        let stop = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (remote, stop) = (rt.remote(), stop.clone());
                std::thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        remote.call(|| {});
                    }
                })
            })
            .collect();
        let handle = rt.clone();
        rt.block_on(async move {
            for _ in 0..100 {
                handle.yield_now().await;
            }
            handle.sleep(MILLISECOND).await;
        });
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().expect("a thread that only calls");
        }
    }
}
