//! Bytes to and from a peer: the [`Transport`] that a connection runs on, buffered reading, and a
//! queue of replies that one task writes out in batches.
//!
//! Invariants: reads stop at once when the connection is told to stop; what the queue holds is
//! bounded by what its senders hold of the [`Budget`], which they get back when it is written.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use ashlar_rt::{AsyncFd, Buf, Gate, Slice};

/// A byte stream to a peer. Dropping a read that waits loses nothing.
pub(super) trait Transport: 'static {
    /// At least one byte, or 0 at the end.
    async fn read(&self, buf: &mut [u8]) -> io::Result<usize>;
    /// All of `parts`.
    async fn write_all(&self, parts: &mut [IoSlice<'_>]) -> io::Result<()>;
    /// Ends every wait with an error.
    fn close(&self);
}

impl Transport for AsyncFd {
    async fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        AsyncFd::read(self, buf).await
    }
    async fn write_all(&self, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        self.write_all_vectored(parts).await
    }
    fn close(&self) {
        AsyncFd::close(self);
    }
}

/// Tells one waiting task, once, to stop.
#[derive(Debug, Default)]
pub(super) struct Stop {
    set: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Stop {
    pub(super) fn set(&self) {
        self.set.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    pub(super) fn is_set(&self) -> bool {
        self.set.get()
    }

    /// `future`'s result, or `None` once told to stop. `future` must be safe to drop.
    pub(super) async fn or<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        std::future::poll_fn(|cx| {
            if self.set.get() {
                return Poll::Ready(None);
            }
            if let Poll::Ready(value) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(value));
            }
            let mut waker = self.waker.borrow_mut();
            if !waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
                *waker = Some(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}

/// Bytes read ahead of a connection.
const READ_AHEAD: usize = 128 << 10;
/// The rest of a payload is read past the buffer from this length on.
const DIRECT: usize = 32 << 10;

/// The reading half of a connection.
pub(super) struct Incoming<T> {
    io: Rc<T>,
    stop: Rc<Stop>,
    buf: Vec<u8>,
    start: usize,
    end: usize,
}

impl<T: Transport> Incoming<T> {
    pub(super) fn new(io: Rc<T>, stop: Rc<Stop>) -> Incoming<T> {
        Incoming { io, stop, buf: vec![0; READ_AHEAD], start: 0, end: 0 }
    }

    /// What has arrived and was not consumed.
    pub(super) fn buffered(&self) -> &[u8] {
        &self.buf[self.start..self.end]
    }

    pub(super) fn consume(&mut self, count: usize) {
        self.start += count;
        assert!(self.start <= self.end, "consumed what had not arrived");
    }

    /// Reads more behind what is buffered. False at the end of the stream, on an error, when told to
    /// stop, and when the buffer is full: in each case nothing more can come of this stream.
    pub(super) async fn fill(&mut self) -> bool {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 && self.end == self.buf.len() {
            self.buf.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = &mut self.buf[self.end..];
        if room.is_empty() {
            return false;
        }
        match self.stop.or(self.io.read(room)).await {
            Some(Ok(count)) => {
                self.end += count;
                count > 0
            }
            Some(Err(_)) | None => false,
        }
    }

    /// Fills `out`. False, with `out` half filled, as [`Incoming::fill`].
    pub(super) async fn exact(&mut self, out: &mut [u8]) -> bool {
        let mut filled = 0;
        loop {
            let take = self.buffered().len().min(out.len() - filled);
            out[filled..filled + take].copy_from_slice(&self.buffered()[..take]);
            self.consume(take);
            filled += take;
            let rest = &mut out[filled..];
            if rest.is_empty() {
                return true;
            }
            if rest.len() < DIRECT {
                if !self.fill().await {
                    return false;
                }
                continue;
            }
            match self.stop.or(self.io.read(rest)).await {
                Some(Ok(count)) if count > 0 => filled += count,
                _ => return false,
            }
        }
    }

    /// The next `N` bytes, or `None` as [`Incoming::fill`].
    pub(super) async fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        loop {
            if let Some(head) = self.buffered().first_chunk::<N>() {
                let head = *head;
                self.consume(N);
                return Some(head);
            }
            if !self.fill().await {
                return None;
            }
        }
    }

    /// Skips `count` bytes. False as [`Incoming::fill`].
    pub(super) async fn skip(&mut self, mut count: usize) -> bool {
        loop {
            let take = self.buffered().len().min(count);
            self.consume(take);
            count -= take;
            if count == 0 {
                return true;
            }
            if !self.fill().await {
                return false;
            }
        }
    }
}

/// What a connection may have in flight.
#[derive(Debug)]
pub(super) struct Budget {
    requests: Cell<usize>,
    bytes: Cell<usize>,
    max_requests: usize,
    max_bytes: usize,
    gate: Gate,
}

/// A share of a [`Budget`], given back when dropped.
#[derive(Debug)]
pub(super) struct Hold {
    budget: Rc<Budget>,
    bytes: usize,
}

impl Budget {
    pub(super) fn new(max_requests: usize, max_bytes: usize) -> Rc<Budget> {
        Rc::new(Budget {
            requests: Cell::new(0),
            bytes: Cell::new(0),
            max_requests,
            max_bytes,
            gate: Gate::default(),
        })
    }

    /// Takes one request of `bytes`, waiting until they fit. `bytes` above the limit wait until
    /// nothing else is in flight.
    pub(super) async fn take(self: &Rc<Self>, bytes: usize) -> Hold {
        self.gate
            .until(|| {
                let fits = self.bytes.get() + bytes <= self.max_bytes || self.bytes.get() == 0;
                fits && self.requests.get() < self.max_requests
            })
            .await;
        self.requests.set(self.requests.get() + 1);
        self.bytes.set(self.bytes.get() + bytes);
        Hold { budget: self.clone(), bytes }
    }

    /// Waits until everything was given back.
    pub(super) async fn idle(&self) {
        self.gate.until(|| self.requests.get() == 0).await;
    }

    /// Requests in flight.
    pub(super) fn requests(&self) -> usize {
        self.requests.get()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let budget = &self.budget;
        budget.requests.set(budget.requests.get() - 1);
        budget.bytes.set(budget.bytes.get() - self.bytes);
        budget.gate.open();
    }
}

/// Bodies up to this length are copied behind their head, so that many replies are one buffer.
const COPY: usize = 16 << 10;
/// A buffer of small things is closed at this length.
const SMALL: usize = 128 << 10;

enum Part {
    Small(Vec<u8>),
    Large(Slice),
}

/// What waits to be written to a peer. One task calls [`Outbox::run`].
#[derive(Default)]
pub(super) struct Outbox {
    parts: RefCell<VecDeque<Part>>,
    holds: RefCell<Vec<Hold>>,
    gate: Gate,
    ended: Cell<bool>,
    broken: Cell<bool>,
}

impl Outbox {
    /// Queues a head (written by `head` into a buffer) and a body behind it. `hold` is given back
    /// when they are written, or at once when the peer is gone.
    pub(super) fn push(
        &self,
        head: impl FnOnce(&mut Vec<u8>),
        body: Option<Slice>,
        hold: Option<Hold>,
    ) {
        if self.broken.get() {
            return;
        }
        let mut parts = self.parts.borrow_mut();
        let was_empty = parts.is_empty();
        if !matches!(parts.back(), Some(Part::Small(small)) if small.len() < SMALL) {
            parts.push_back(Part::Small(Vec::with_capacity(4096)));
        }
        if let Some(Part::Small(small)) = parts.back_mut() {
            head(small);
            match body {
                Some(body) if body.len() <= COPY => small.extend_from_slice(&body),
                Some(body) => parts.push_back(Part::Large(body)),
                None => {}
            }
        }
        drop(parts);
        self.holds.borrow_mut().extend(hold);
        if was_empty {
            self.gate.open();
        }
    }

    /// As `push` of a head and a body that is a fresh buffer.
    pub(super) fn push_buf(&self, head: impl FnOnce(&mut Vec<u8>), body: Buf, hold: Option<Hold>) {
        self.push(head, Some(body.freeze()), hold);
    }

    /// [`Outbox::run`] ends once the queue is empty.
    pub(super) fn end(&self) {
        self.ended.set(true);
        self.gate.open();
    }

    /// Drops what is queued, and from now on whatever is pushed.
    pub(super) fn break_off(&self) {
        self.broken.set(true);
        self.parts.take();
        let holds = self.holds.take();
        drop(holds); // wakes others: no borrow may be open
        self.gate.open();
    }

    /// Writes what is pushed until [`Outbox::end`]; false if the peer went away first.
    pub(super) async fn run<T: Transport>(&self, io: &T) -> bool {
        loop {
            self.gate
                .until(|| {
                    !self.parts.borrow().is_empty() || self.ended.get() || self.broken.get()
                })
                .await;
            let parts = self.parts.take();
            let holds = self.holds.take();
            if parts.is_empty() {
                return !self.broken.get();
            }
            let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(parts.len());
            slices.extend(parts.iter().map(|part| match part {
                Part::Small(bytes) => IoSlice::new(bytes),
                Part::Large(bytes) => IoSlice::new(bytes),
            }));
            for some in slices.chunks_mut(MAX_PARTS) {
                if io.write_all(some).await.is_err() {
                    self.break_off();
                    return false;
                }
            }
            drop(holds);
        }
    }
}

/// Parts of one system call; Linux takes 1024.
const MAX_PARTS: usize = 512;
