//! A device in memory: sparse, without volatility (its flush has nothing to do).

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ashlar_rt::{BLOCK, Buf, Slice};

use crate::sparse::Sparse;
use crate::{Device, DeviceInfo, DeviceRef, Fault, IoFuture, check_range, check_write};

/// Sparse bytes in memory; unwritten blocks read as zero.
#[derive(Debug)]
pub struct MemDevice {
    info: DeviceInfo,
    content: Rc<RefCell<Sparse>>,
    /// Its size now.
    size: Rc<Cell<u64>>,
}

impl MemDevice {
    /// A device of `size_bytes`, a multiple of 4096.
    pub fn new(name: &str, size_bytes: u64) -> MemDevice {
        assert_eq!(size_bytes % BLOCK as u64, 0, "a device is whole blocks");
        let info = DeviceInfo {
            size_bytes,
            rotational: false,
            discard_bytes: BLOCK as u64,
            name: name.to_string(),
            file: None,
        };
        MemDevice {
            info,
            content: Rc::default(),
            size: Rc::new(Cell::new(size_bytes)),
        }
    }

    /// It has another size from now on. The same device with that size; whoever has it open sees it as it was.
    #[must_use]
    pub fn resize(&self, size_bytes: u64) -> MemDevice {
        assert_eq!(size_bytes % BLOCK as u64, 0, "a device is whole blocks");
        self.size.set(size_bytes);
        MemDevice {
            info: DeviceInfo {
                size_bytes,
                ..self.info.clone()
            },
            content: self.content.clone(),
            size: self.size.clone(),
        }
    }

    /// The same, said to have a head: whoever uses it reads and writes in long pieces.
    #[must_use]
    pub fn with_head(mut self) -> MemDevice {
        self.info.rotational = true;
        self
    }

    /// The bytes at `offset`, as [`Device::read`] would give them.
    pub fn peek(&self, offset: u64, out: &mut [u8]) {
        check_range(&self.info, offset, out.len() as u64);
        self.content.borrow().read(offset, out);
    }

    /// Replaces the bytes at `offset`, as [`Device::write`] would.
    pub fn poke(&self, offset: u64, data: &[u8]) {
        check_range(&self.info, offset, data.len() as u64);
        self.content.borrow_mut().write(offset, data);
    }
}

impl Device for MemDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, offset: u64, mut buf: Buf) -> IoFuture<(Buf, Result<(), Fault>)> {
        self.peek(offset, &mut buf);
        Box::pin(std::future::ready((buf, Ok(()))))
    }

    fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<Result<(), Fault>> {
        check_write(&self.info, offset, &data);
        let mut at = offset;
        let mut content = self.content.borrow_mut();
        for slice in &data {
            content.write(at, slice);
            at += slice.len() as u64;
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn flush(&self) -> IoFuture<Result<(), Fault>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn resized(&self) -> IoFuture<Result<Option<DeviceRef>, Fault>> {
        let now: DeviceRef = Rc::new(self.resize(self.size.get()));
        Box::pin(std::future::ready(Ok(Some(now))))
    }

    fn discard(&self, offset: u64, length: u64) -> IoFuture<Result<(), Fault>> {
        check_range(&self.info, offset, length);
        self.content.borrow_mut().clear(offset, length);
        Box::pin(std::future::ready(Ok(())))
    }
}
