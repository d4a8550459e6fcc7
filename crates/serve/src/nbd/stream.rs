//! Bytes to and from a peer: the [`Transport`] that a connection runs on, buffered reading, and a
//! queue of replies that one task writes out in batches.
//!
//! Invariants: reads stop at once when the connection is told to stop; what the queue holds is
//! bounded by what its senders hold of the budget, which they get back when it is written.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::rc::Rc;

use ashlar_rt::{AsyncFd, Buf, Gate, Nanos, Rt, Slice};

use crate::flow::{Hold, Share, Stop};

/// A request's part of its connection's budget, and of the memory that all connections share.
pub(super) type Holds = (Hold, Share);

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

/// Bytes read ahead of a connection.
const READ_AHEAD: usize = 128 << 10;
/// The same behind a large payload: the next one, likely as large, is then read to where it belongs and not copied.
const HEADS_AHEAD: usize = 4 << 10;
/// The rest of a payload is read past the buffer from this length on.
const DIRECT: usize = 32 << 10;

/// The reading half of a connection.
pub(super) struct Incoming<T> {
    io: Rc<T>,
    stop: Rc<Stop>,
    buf: Vec<u8>,
    start: usize,
    end: usize,
    ahead: usize,
}

impl<T: Transport> Incoming<T> {
    pub(super) fn new(io: Rc<T>, stop: Rc<Stop>) -> Incoming<T> {
        Incoming {
            io,
            stop,
            buf: vec![0; READ_AHEAD],
            start: 0,
            end: 0,
            ahead: READ_AHEAD,
        }
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
        let most = room.len().min(self.ahead);
        let room = &mut room[..most];
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
        self.ahead = match out.len() < DIRECT {
            true => READ_AHEAD,
            false => HEADS_AHEAD,
        };
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
    holds: RefCell<Vec<Holds>>,
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
        hold: impl IntoIterator<Item = Holds>,
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
    pub(super) fn push_buf(
        &self,
        head: impl FnOnce(&mut Vec<u8>),
        body: Buf,
        hold: impl IntoIterator<Item = Holds>,
    ) {
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

    /// Writes what is pushed until [`Outbox::end`]; false if the peer went away first, or did not
    /// take for `patience` what was queued together.
    pub(super) async fn run<T: Transport>(&self, rt: &Rt, io: &T, patience: Nanos) -> bool {
        loop {
            self.gate
                .until(|| !self.parts.borrow().is_empty() || self.ended.get() || self.broken.get())
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
                let written = rt.timeout(patience, io.write_all(some)).await;
                if !matches!(written, Some(Ok(()))) {
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
