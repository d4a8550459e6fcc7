//! A block device as those who serve one and those who make one agree on it: the trait [`Volume`], its errors and
//! extents.
//!
//! Invariant: no storage, no protocol, no policy.

use std::future::Future;
use std::pin::Pin;

use ashlar_rt::{Buf, Slice};

/// The result of a volume operation in flight. It is driven to its end: a frontend never drops one
/// half way, unless the whole runtime is shut down.
pub type Fut<T> = Pin<Box<dyn Future<Output = T>>>;

/// A block device that a frontend serves. Offsets and lengths are bytes; any alignment, any length.
///
/// Operations in flight together have no order. What completed before a [`Volume::flush`] began is
/// durable when that flush completes, whichever connection it came from.
pub trait Volume {
    /// What it is. Constant while the volume is served.
    fn info(&self) -> VolumeInfo;
    /// About how much of it takes space, in bytes.
    fn used_bytes(&self) -> u64 {
        self.info().size_bytes
    }
    /// `length` bytes from `offset`.
    fn read(&self, offset: u64, length: usize) -> Fut<Result<Buf, VolumeError>>;
    /// Writes `data` at `offset`; with `durable`, completes when it would survive a power cut.
    fn write(&self, offset: u64, data: Slice, durable: bool) -> Fut<Result<(), VolumeError>>;
    /// Makes durable all that completed before.
    fn flush(&self) -> Fut<Result<(), VolumeError>>;
    /// Gives the range's space back; it reads as zeros afterwards.
    fn trim(&self, offset: u64, length: u64, durable: bool) -> Fut<Result<(), VolumeError>>;
    /// Makes the range zero. With `may_trim` its space may be given back; without, it stays reserved.
    fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        durable: bool,
        may_trim: bool,
    ) -> Fut<Result<(), VolumeError>>;
    /// What of the range is allocated: extents from `offset` on, in order, that cover `length`
    /// bytes, or fewer (but at least one) if there are more than `most`, which must not be 0.
    fn block_status(
        &self,
        offset: u64,
        length: u64,
        most: usize,
    ) -> Fut<Result<Vec<Extent>, VolumeError>>;
}

/// What a frontend tells its clients about a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Capacity.
    pub size_bytes: u64,
    /// The unit in which requests cost least; a power of two.
    pub block_bytes: u32,
    /// The length of a request that uses all devices; a multiple of `block_bytes`.
    pub optimal_bytes: u32,
    /// Whether every change is refused.
    pub read_only: bool,
    /// True: a write completes when it is in memory, and only a flush makes it durable.
    pub write_cache: bool,
}

impl VolumeInfo {
    /// Whether `length` bytes from `offset` lie inside the volume.
    pub fn contains(&self, offset: u64, length: u64) -> bool {
        offset
            .checked_add(length)
            .is_some_and(|end| end <= self.size_bytes)
    }
}

/// A run of bytes that is all allocated or all not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes; not 0.
    pub length: u64,
    /// Nothing is stored here, and it reads as zeros.
    pub hole: bool,
}

/// Why a volume refused or failed an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum VolumeError {
    /// The bytes are beyond what the redundancy can give back.
    #[error("the data is lost: more devices failed than the layout survives; see 'ashlar status'")]
    Lost,
    /// No space for the change.
    #[error("no free space: delete and trim data, or destroy a volume")]
    NoSpace,
    /// The range does not lie inside the volume.
    #[error("the range is not inside the volume")]
    OutOfRange,
    /// The volume takes no changes.
    #[error("the volume is read-only")]
    ReadOnly,
    /// The array was exported or the volume destroyed.
    #[error("the volume is closed; import its array again")]
    Closed,
}

impl VolumeError {
    /// The Linux error number that says the same.
    pub fn errno(self) -> i32 {
        match self {
            VolumeError::Lost => libc::EIO,
            VolumeError::NoSpace => libc::ENOSPC,
            VolumeError::OutOfRange => libc::EINVAL,
            VolumeError::ReadOnly => libc::EPERM,
            VolumeError::Closed => libc::ESHUTDOWN,
        }
    }
}
