//! [`TraceFilter`]: remembers the last operations of a device and counts all of them.
//!
//! Invariant: at most `capacity` entries are kept; the counters cover everything since the last reset.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;

use ashlar_rt::{Buf, Nanos, Rt, Slice};

use crate::{Counters, Device, DeviceInfo, DeviceRef, Fault, IoFuture, OpKind};

/// One operation, as the device was asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEntry {
    /// Number of the operation, from 0.
    pub number: u64,
    /// What was asked.
    pub op: OpKind,
    /// Where, in bytes.
    pub offset: u64,
    /// How much, in bytes.
    pub length: u64,
    /// When it was submitted.
    pub submitted: Nanos,
    /// When it was answered, and how. `None` while it is in flight, or when nobody waited for it.
    pub answered: Option<(Nanos, Result<(), Fault>)>,
}

#[derive(Default)]
struct Trace {
    entries: VecDeque<TraceEntry>,
    next: u64,
    counters: Counters,
}

/// A device that remembers what it was asked.
pub struct TraceFilter {
    rt: Rt,
    inner: DeviceRef,
    capacity: usize,
    trace: Rc<RefCell<Trace>>,
}

impl std::fmt::Debug for TraceFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TraceFilter")
            .field("counters", &self.trace.borrow().counters)
            .finish_non_exhaustive()
    }
}

impl TraceFilter {
    /// Wraps `inner` and keeps the last `capacity` operations (0: counters only).
    pub fn new(rt: &Rt, inner: DeviceRef, capacity: usize) -> Rc<TraceFilter> {
        Rc::new(TraceFilter {
            rt: rt.clone(),
            inner,
            capacity,
            trace: Rc::default(),
        })
    }

    /// The operations kept, oldest first.
    pub fn entries(&self) -> Vec<TraceEntry> {
        self.trace.borrow().entries.iter().copied().collect()
    }

    /// What was asked since the last reset.
    pub fn counters(&self) -> Counters {
        self.trace.borrow().counters
    }

    /// Forgets entries and counters; numbers go on.
    pub fn reset(&self) {
        let mut trace = self.trace.borrow_mut();
        trace.entries.clear();
        trace.counters = Counters::default();
    }

    fn watch<T: 'static>(
        &self,
        (op, offset, length): (OpKind, u64, u64),
        answer: impl Future<Output = T> + 'static,
        result: impl FnOnce(&T) -> Result<(), Fault> + 'static,
    ) -> IoFuture<T> {
        let number = {
            let mut trace = self.trace.borrow_mut();
            let number = trace.next;
            trace.next += 1;
            trace.counters.count(op, length);
            if trace.entries.len() >= self.capacity {
                trace.entries.pop_front();
            }
            if self.capacity > 0 {
                let submitted = self.rt.now();
                let entry = TraceEntry {
                    number,
                    op,
                    offset,
                    length,
                    submitted,
                    answered: None,
                };
                trace.entries.push_back(entry);
            }
            number
        };
        let (rt, trace) = (self.rt.clone(), self.trace.clone());
        Box::pin(async move {
            let value = answer.await;
            let result = result(&value);
            let mut trace = trace.borrow_mut();
            trace.counters.faults += u64::from(result.is_err());
            let first = trace.entries.front().map_or(0, |entry| entry.number);
            let place = number
                .checked_sub(first)
                .and_then(|at| usize::try_from(at).ok());
            if let Some(entry) = place.and_then(|at| trace.entries.get_mut(at)) {
                entry.answered = Some((rt.now(), result));
            }
            value
        })
    }
}

impl Device for TraceFilter {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn read(&self, offset: u64, buf: Buf) -> IoFuture<(Buf, Result<(), Fault>)> {
        let what = (OpKind::Read, offset, buf.len() as u64);
        self.watch(what, self.inner.read(offset, buf), |(_, result)| *result)
    }

    fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<Result<(), Fault>> {
        let length = data.iter().map(|slice| slice.len() as u64).sum();
        let what = (OpKind::Write, offset, length);
        self.watch(what, self.inner.write(offset, data), |result| *result)
    }

    fn flush(&self) -> IoFuture<Result<(), Fault>> {
        self.watch((OpKind::Flush, 0, 0), self.inner.flush(), |result| *result)
    }

    fn discard(&self, offset: u64, length: u64) -> IoFuture<Result<(), Fault>> {
        let what = (OpKind::Discard, offset, length);
        self.watch(what, self.inner.discard(offset, length), |result| *result)
    }
}
