//! [`Window`]: a device that shows a part of another one, as a partition does.
//!
//! Invariants: no operation reaches the device below outside the part; [`Device::erase`] alone is for all of it,
//! since who gives the part up gives up the partition table too.

use std::rc::Rc;

use ashlar_rt::{BLOCK, Buf, Slice};

use crate::{Device, DeviceInfo, DeviceRef, Fault, IoFuture, Part, check_range, check_write};

/// A part of a device.
pub struct Window {
    inner: DeviceRef,
    first: u64,
    info: DeviceInfo,
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Window")
            .field("first", &self.first)
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}

impl Window {
    /// The part `part` of `inner`, in which it lies.
    pub fn new(inner: DeviceRef, part: Part) -> Rc<Window> {
        let block = BLOCK as u64;
        let end = part.first.checked_add(part.length);
        assert!(
            part.first.is_multiple_of(block)
                && part.length.is_multiple_of(block)
                && end.is_some_and(|end| end <= inner.info().size_bytes),
            "whole blocks inside the device: {part:?} of {}",
            inner.info().size_bytes
        );
        let info = DeviceInfo {
            size_bytes: part.length,
            ..inner.info().clone()
        };
        let first = part.first;
        Rc::new(Window { inner, first, info })
    }
}

impl Device for Window {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, offset: u64, buf: Buf) -> IoFuture<(Buf, Result<(), Fault>)> {
        check_range(&self.info, offset, buf.len() as u64);
        self.inner.read(self.first + offset, buf)
    }

    fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<Result<(), Fault>> {
        check_write(&self.info, offset, &data);
        self.inner.write(self.first + offset, data)
    }

    fn flush(&self) -> IoFuture<Result<(), Fault>> {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, length: u64) -> IoFuture<Result<(), Fault>> {
        check_range(&self.info, offset, length);
        self.inner.discard(self.first + offset, length)
    }

    fn erase(&self) -> IoFuture<Result<(), Fault>> {
        self.inner.erase()
    }
}
