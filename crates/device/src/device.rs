//! The trait of a device, its values, and what every device asserts of an operation.
//!
//! Invariants: those of the crate.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use ashlar_rt::{BLOCK, Buf, Slice};

/// The result of an operation in flight.
pub type IoFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// Why an operation failed: small, `Copy`, and all that the data path needs to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Fault {
    /// The device could not read or write these bytes; others may be fine.
    Media,
    /// The device is gone.
    Offline,
    /// No answer within the deadline. The operation may still be carried out later.
    Timeout,
    /// The device takes no more writes.
    ReadOnly,
    /// The file or the thin device below has no more space.
    NoSpace,
}

/// The kinds of operation a device knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum OpKind {
    /// [`Device::read`].
    Read,
    /// [`Device::write`].
    Write,
    /// [`Device::flush`].
    Flush,
    /// [`Device::discard`].
    Discard,
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Capacity in bytes, a multiple of 4096.
    pub size_bytes: u64,
    /// Whether it has a moving head.
    pub rotational: bool,
    /// Unit of discard in bytes; 0 if it cannot discard.
    pub discard_bytes: u64,
    /// How it is reached, for people: a path or an address.
    pub name: String,
    /// The file system and the inode of the file that it is; none of anything else.
    pub file: Option<(u64, u64)>,
}

/// A block device. Offsets and lengths are in bytes and multiples of 4096; ranges lie inside
/// [`DeviceInfo::size_bytes`] (anything else is a bug of the caller and may panic).
pub trait Device {
    /// What it is.
    fn info(&self) -> &DeviceInfo;
    /// Fills `buf` from `offset`. The buffer comes back also on failure, its bytes then undefined.
    fn read(&self, offset: u64, buf: Buf) -> IoFuture<(Buf, Result<(), Fault>)>;
    /// Writes the slices one after another from `offset`. Each slice's length is a multiple of 4096.
    fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<Result<(), Fault>>;
    /// Makes durable all that completed before.
    fn flush(&self) -> IoFuture<Result<(), Fault>>;
    /// Tells the device that the range's content is no longer needed; reading it gives anything.
    fn discard(&self, offset: u64, length: u64) -> IoFuture<Result<(), Fault>>;
    /// The same device with the size that it has now; what is under way goes on at the one as it was. `None`: its size
    /// does not change while it is open.
    fn resized(&self) -> IoFuture<Result<Option<DeviceRef>, Fault>> {
        Box::pin(std::future::ready(Ok(None)))
    }
    /// Erases what is recognisable at the ends of the device, for whoever gives it up: signatures of anything, of a
    /// partition of a disk also the disk's partition table; a file becomes one hole. Durable when it ends. What holds no
    /// such thing, as memory, does nothing.
    fn erase(&self) -> IoFuture<Result<(), Fault>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// A device as the engine holds it.
pub type DeviceRef = Rc<dyn Device>;

/// Asserts that a range is whole blocks inside the device.
pub(crate) fn check_range(info: &DeviceInfo, offset: u64, length: u64) {
    let end = offset.checked_add(length).expect("a range ends below 2^64");
    let block = BLOCK as u64;
    assert!(
        end <= info.size_bytes && offset.is_multiple_of(block) && length.is_multiple_of(block),
        "whole blocks inside the device: {offset}+{length} of {}",
        info.size_bytes
    );
}

/// Asserts that a write is whole blocks inside the device; its length in bytes.
pub(crate) fn check_write(info: &DeviceInfo, offset: u64, data: &[Slice]) -> u64 {
    assert!(
        data.iter().all(|slice| slice.len() % BLOCK == 0),
        "each slice is whole blocks"
    );
    let total = data.iter().map(|slice| slice.len() as u64).sum();
    check_range(info, offset, total);
    total
}

/// The same bytes at an address that O_DIRECT takes.
pub(crate) fn aligned(slice: Slice) -> Slice {
    if (slice.as_ptr() as usize).is_multiple_of(BLOCK) {
        slice
    } else {
        Buf::copy_of(&slice).freeze()
    }
}
