//! One-shot replies and mailboxes: how the engine's actors talk. Both ends may be on any thread.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

struct Once<T> {
    value: Option<T>,
    closed: bool,
    waker: Option<Waker>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sending half of a [`oneshot`]. Dropping it unsent makes the receiver yield `None`.
pub struct OneshotSender<T>(Arc<Mutex<Once<T>>>);

/// The receiving half of a [`oneshot`]: a future of `Option<T>`.
pub struct OneshotReceiver<T>(Arc<Mutex<Once<T>>>);

/// A channel for one value.
pub fn oneshot<T>() -> (OneshotSender<T>, OneshotReceiver<T>) {
    let shared = Arc::new(Mutex::new(Once {
        value: None,
        closed: false,
        waker: None,
    }));
    (OneshotSender(shared.clone()), OneshotReceiver(shared))
}

impl<T> OneshotSender<T> {
    /// Delivers `value`. If the receiver is gone, the value is dropped.
    pub fn send(self, value: T) {
        lock(&self.0).value = Some(value);
    }

    /// Whether somebody may still take it.
    pub fn is_awaited(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

impl<T> Drop for OneshotSender<T> {
    fn drop(&mut self) {
        let waker = {
            let mut once = lock(&self.0);
            once.closed = true;
            once.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> OneshotReceiver<T> {
    /// The value, if it has arrived.
    pub fn try_take(&mut self) -> Option<T> {
        lock(&self.0).value.take()
    }
}

impl<T> Future for OneshotReceiver<T> {
    type Output = Option<T>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut once = lock(&self.0);
        if let Some(value) = once.value.take() {
            return Poll::Ready(Some(value));
        }
        if once.closed {
            return Poll::Ready(None);
        }
        once.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl<T> std::fmt::Debug for OneshotSender<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OneshotSender")
    }
}

impl<T> std::fmt::Debug for OneshotReceiver<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OneshotReceiver")
    }
}

struct Queue<T> {
    items: VecDeque<T>,
    senders: usize,
    receiver_gone: bool,
    waker: Option<Waker>,
}

/// The sending half of a [`mailbox`]; clone it for every sender.
pub struct Sender<T>(Arc<Mutex<Queue<T>>>);

/// The receiving half of a [`mailbox`]. Messages of one sender arrive in the order they were sent.
pub struct Mailbox<T>(Arc<Mutex<Queue<T>>>);

/// An ordered channel of many values. What bounds it is what its senders wait for.
pub fn mailbox<T>() -> (Sender<T>, Mailbox<T>) {
    let shared = Arc::new(Mutex::new(Queue {
        items: VecDeque::new(),
        senders: 1,
        receiver_gone: false,
        waker: None,
    }));
    (Sender(shared.clone()), Mailbox(shared))
}

impl<T> Sender<T> {
    /// Queues `item`; gives it back if the receiver is gone.
    pub fn send(&self, item: T) -> Result<(), T> {
        let waker = {
            let mut queue = lock(&self.0);
            if queue.receiver_gone {
                return Err(item);
            }
            queue.items.push_back(item);
            queue.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        lock(&self.0).senders += 1;
        Sender(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let waker = {
            let mut queue = lock(&self.0);
            queue.senders -= 1;
            if queue.senders == 0 {
                queue.waker.take()
            } else {
                None
            }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Mailbox<T> {
    /// The next message, or `None` when every sender is gone and all messages were taken.
    pub async fn receive(&mut self) -> Option<T> {
        std::future::poll_fn(|cx| {
            let mut queue = lock(&self.0);
            if let Some(item) = queue.items.pop_front() {
                return Poll::Ready(Some(item));
            }
            if queue.senders == 0 {
                return Poll::Ready(None);
            }
            queue.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl<T> Drop for Mailbox<T> {
    fn drop(&mut self) {
        let items = {
            let mut queue = lock(&self.0);
            queue.receiver_gone = true;
            std::mem::take(&mut queue.items)
        };
        drop(items); // replies inside close only now, outside the lock
    }
}

impl<T> std::fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sender")
    }
}

impl<T> std::fmt::Debug for Mailbox<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mailbox")
    }
}
