//! The fence: a host whose beat is too old submits nothing any more that changes a device, for another may have taken
//! the array over (rule R18).
//!
//! Invariant: every write, flush, discard and erasure of a device of an array goes through [`Fence::guard`].

use std::cell::Cell;
use std::rc::Rc;

use ashlar_device::{Device, DeviceInfo, DeviceRef, Fault, IoFuture};
use ashlar_rt::{Buf, Nanos, Rt, SECOND, Slice};

use crate::members::DEADLINE;
use crate::planted::{self, Bug};

/// A host writes nothing any more once its beat is older than this: longer than a device may take to answer, so that an
/// array outlives devices that hang for a while, and loses those that hang longer to their own deadline.
pub const FENCE: Nanos = DEADLINE + 10 * SECOND;

/// There is no beat that could be too old.
const NEVER: Nanos = Nanos::MAX;
/// It was too old.
const DOWN: Nanos = 0;

/// Up to when devices may be changed. Time in which the machine is suspended counts.
#[derive(Debug)]
pub struct Fence {
    until: Cell<Nanos>,
    rt: Rt,
}

impl Fence {
    /// One that lets everything pass.
    pub fn new(rt: &Rt) -> Rc<Fence> {
        Rc::new(Fence {
            until: Cell::new(NEVER),
            rt: rt.clone(),
        })
    }

    /// The time that it goes by.
    pub fn now(&self) -> Nanos {
        self.rt.now_suspended_too()
    }

    /// Devices may be changed for [`FENCE`] from this moment on, at which a beat was begun that was taken.
    pub fn renewed(&self, begun: Nanos) {
        if self.until.get() != DOWN {
            self.until.set(begun.saturating_add(FENCE));
        }
    }

    /// Whether the beat is too old. Once it is it stays so: what has been missed cannot be known.
    ///
    /// Crash argument: a successor begins to read what decides only once it has seen no beat for [`FENCE`] and what a
    /// device may take for a write, from after the last beat on. What this host submitted before the fence fell is on
    /// the devices by then, or failed; after it nothing is submitted, however long the process, or the machine, stood
    /// still. What is between this look at the clock and the device cannot be fenced by a clock: a machine that stands
    /// still just there takes the operator's word that it is off (`import -f`).
    pub fn is_down(&self) -> bool {
        let until = self.until.get();
        let late = until != NEVER && self.now() > until && !planted::on(Bug::FenceForgotten);
        if late {
            self.until.set(DOWN);
        }
        self.until.get() == DOWN
    }

    /// The device, changed only while the fence is not down.
    pub fn guard(self: &Rc<Self>, device: DeviceRef) -> DeviceRef {
        Rc::new(Guarded {
            device,
            fence: self.clone(),
        })
    }

    fn check(&self) -> Option<Fault> {
        self.is_down().then_some(Fault::Offline)
    }
}

/// A device behind a fence.
struct Guarded {
    device: DeviceRef,
    fence: Rc<Fence>,
}

impl Guarded {
    fn unless_down(
        &self,
        change: impl FnOnce(&DeviceRef) -> IoFuture<Result<(), Fault>>,
    ) -> IoFuture<Result<(), Fault>> {
        match self.fence.check() {
            Some(fault) => Box::pin(std::future::ready(Err(fault))),
            None => change(&self.device),
        }
    }
}

impl Device for Guarded {
    fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    fn read(&self, offset: u64, buf: Buf) -> IoFuture<(Buf, Result<(), Fault>)> {
        self.device.read(offset, buf)
    }

    fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<Result<(), Fault>> {
        self.unless_down(|device| device.write(offset, data))
    }

    fn flush(&self) -> IoFuture<Result<(), Fault>> {
        self.unless_down(|device| device.flush())
    }

    fn discard(&self, offset: u64, length: u64) -> IoFuture<Result<(), Fault>> {
        self.unless_down(|device| device.discard(offset, length))
    }

    fn resized(&self) -> IoFuture<Result<Option<DeviceRef>, Fault>> {
        let (resized, fence) = (self.device.resized(), self.fence.clone());
        Box::pin(async move {
            let device = resized.await?;
            Ok(device.map(|device| fence.guard(device)))
        })
    }

    fn erase(&self) -> IoFuture<Result<(), Fault>> {
        self.unless_down(|device| device.erase())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use ashlar_device::MemDevice;

    use super::*;

    #[test]
    fn nothing_is_changed_behind_a_fence_that_is_down() {
        let rt = Rt::simulated(1);
        let fence = Fence::new(&rt);
        let device = fence.guard(Rc::new(MemDevice::new("mem", 1 << 20)));
        let handle = rt.clone();
        rt.block_on(async move {
            let write = || device.write(0, vec![Slice::zeroed(4096)]);
            handle.stand_still(100 * FENCE);
            assert!(write().await.is_ok(), "without a beat there is no fence");
            fence.renewed(fence.now());
            handle.stand_still(FENCE);
            assert!(write().await.is_ok() && device.flush().await.is_ok());
            handle.stand_still(1);
            assert_eq!(write().await, Err(Fault::Offline));
            assert_eq!(device.flush().await, Err(Fault::Offline));
            assert_eq!(device.discard(0, 4096).await, Err(Fault::Offline));
            assert_eq!(device.erase().await, Err(Fault::Offline));
            let (_, read) = device.read(0, Buf::zeroed(4096)).await;
            assert!(read.is_ok());
        });
    }

    /// A beat that was under way when the fence fell does not lift it.
    #[test]
    fn a_fence_that_is_down_stays_down() {
        let rt = Rt::simulated(1);
        let fence = Fence::new(&rt);
        fence.renewed(fence.now());
        rt.stand_still(FENCE + 1);
        assert!(fence.is_down());
        fence.renewed(fence.now());
        assert!(fence.is_down());
    }
}
