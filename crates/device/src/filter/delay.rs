//! [`DelayFilter`]: makes a device slower, by a fixed time, by a factor or by a bandwidth.
//!
//! Invariants: the device below gets every operation at once; only the answer comes later. Setting a
//! delay of nothing makes the filter transparent.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use ashlar_rt::{Buf, Nanos, Rt, SECOND, Slice};

use crate::{Device, DeviceInfo, DeviceRef, Fault, IoFuture, OpKind};

/// How much slower answers are. All parts add up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delay {
    /// Added to each read.
    pub read: Nanos,
    /// Added to each write.
    pub write: Nanos,
    /// Added to each flush.
    pub flush: Nanos,
    /// The device's own time is multiplied by this (0 and 1 leave it as it is).
    pub factor: u32,
    /// Reads and writes together move at most so many bytes a second; 0 for no limit.
    pub bytes_per_second: u64,
}

/// A device that answers late.
pub struct DelayFilter {
    rt: Rt,
    inner: DeviceRef,
    delay: Cell<Delay>,
    /// When the bandwidth used so far is paid off.
    paid_until: Cell<Nanos>,
}

impl std::fmt::Debug for DelayFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DelayFilter")
            .field("delay", &self.delay.get())
            .finish_non_exhaustive()
    }
}

impl DelayFilter {
    /// Wraps `inner`, with `delay` to begin with.
    pub fn new(rt: &Rt, inner: DeviceRef, delay: Delay) -> Rc<DelayFilter> {
        let rt = rt.clone();
        Rc::new(DelayFilter {
            rt,
            inner,
            delay: Cell::new(delay),
            paid_until: Cell::new(0),
        })
    }

    /// Changes the delay for operations submitted from now on.
    pub fn set(&self, delay: Delay) {
        self.delay.set(delay);
        self.paid_until.set(0);
    }

    /// The present delay.
    pub fn delay(&self) -> Delay {
        self.delay.get()
    }

    fn late<T: 'static>(
        &self,
        kind: OpKind,
        bytes: u64,
        answer: impl Future<Output = T> + 'static,
    ) -> IoFuture<T> {
        let (rt, delay, start) = (self.rt.clone(), self.delay.get(), self.rt.now());
        let added = match kind {
            OpKind::Read => delay.read,
            OpKind::Write => delay.write,
            OpKind::Flush => delay.flush,
            OpKind::Discard => 0,
        };
        let mut paid = start;
        if delay.bytes_per_second > 0 && matches!(kind, OpKind::Read | OpKind::Write) {
            let cost = u128::from(bytes) * u128::from(SECOND) / u128::from(delay.bytes_per_second);
            paid = self.paid_until.get().max(start) + Nanos::try_from(cost).unwrap_or(Nanos::MAX);
            self.paid_until.set(paid);
        }
        Box::pin(async move {
            let value = answer.await;
            let own = rt.now() - start;
            let factor = u64::from(delay.factor.max(1));
            let until = start + own.saturating_mul(factor) + added;
            rt.sleep_until(until.max(paid + added)).await;
            value
        })
    }
}

impl Device for DelayFilter {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn read(&self, offset: u64, buf: Buf) -> IoFuture<(Buf, Result<(), Fault>)> {
        let bytes = buf.len() as u64;
        self.late(OpKind::Read, bytes, self.inner.read(offset, buf))
    }

    fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<Result<(), Fault>> {
        let bytes = data.iter().map(|slice| slice.len() as u64).sum();
        self.late(OpKind::Write, bytes, self.inner.write(offset, data))
    }

    fn flush(&self) -> IoFuture<Result<(), Fault>> {
        self.late(OpKind::Flush, 0, self.inner.flush())
    }

    fn discard(&self, offset: u64, length: u64) -> IoFuture<Result<(), Fault>> {
        self.late(OpKind::Discard, 0, self.inner.discard(offset, length))
    }
}
