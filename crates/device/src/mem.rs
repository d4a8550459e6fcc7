//! A device in memory: sparse, without volatility (its flush has nothing to do).

use std::cell::RefCell;
use std::collections::BTreeMap;

use ashlar_rt::{BLOCK, Buf, Slice};

use crate::{Device, DeviceInfo, Fault, IoFuture};

/// Sparse bytes in memory; unwritten blocks read as zero.
#[derive(Debug)]
pub struct MemDevice {
    info: DeviceInfo,
    blocks: RefCell<BTreeMap<u64, Box<[u8]>>>,
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
        };
        MemDevice { info, blocks: RefCell::default() }
    }

    /// The bytes at `offset`, as [`Device::read`] would give them.
    pub fn peek(&self, offset: u64, out: &mut [u8]) {
        self.check(offset, out.len());
        let blocks = self.blocks.borrow();
        for (number, chunk) in (offset / BLOCK as u64..).zip(out.chunks_mut(BLOCK)) {
            match blocks.get(&number) {
                Some(bytes) => chunk.copy_from_slice(bytes),
                None => chunk.fill(0),
            }
        }
    }

    /// Replaces the bytes at `offset`, as [`Device::write`] would.
    pub fn poke(&self, offset: u64, data: &[u8]) {
        self.check(offset, data.len());
        let mut blocks = self.blocks.borrow_mut();
        for (number, chunk) in (offset / BLOCK as u64..).zip(data.chunks(BLOCK)) {
            blocks.insert(number, chunk.into());
        }
    }

    fn check(&self, offset: u64, len: usize) {
        let end = offset.checked_add(len as u64).expect("a range ends below 2^64");
        assert!(
            end <= self.info.size_bytes && offset % BLOCK as u64 == 0 && len % BLOCK == 0,
            "whole blocks inside the device: {offset}+{len} of {}",
            self.info.size_bytes
        );
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
        let mut at = offset;
        for slice in &data {
            self.poke(at, slice);
            at += slice.len() as u64;
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn flush(&self) -> IoFuture<Result<(), Fault>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn discard(&self, offset: u64, length: u64) -> IoFuture<Result<(), Fault>> {
        let first = offset.div_ceil(BLOCK as u64);
        let end = (offset + length) / BLOCK as u64;
        let mut blocks = self.blocks.borrow_mut();
        let gone: Vec<u64> = blocks.range(first..end.max(first)).map(|(n, _)| *n).collect();
        for number in gone {
            blocks.remove(&number);
        }
        Box::pin(std::future::ready(Ok(())))
    }
}
