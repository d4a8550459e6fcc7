//! What came of jobs.
//!
//! **Invariants**: values only.

use crate::fault::Fault;

/// Where a result came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ran {
    /// The processor.
    Cpu,
    /// This GPU.
    Cuda(u16),
}

/// What has been done where.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Jobs done by the processor, those redone included.
    pub cpu_jobs: u64,
    /// Bytes of their input.
    pub cpu_bytes: u64,
    /// Jobs done by a device.
    pub device_jobs: u64,
    /// Bytes of their input.
    pub device_bytes: u64,
    /// Jobs that a device did not finish and the processor did again.
    pub redone: u64,
    /// Jobs that the device had no room for.
    pub full: u64,
    /// Jobs of the device that the processor did again to compare.
    pub checked: u64,
}

/// A job's result.
#[derive(Debug)]
pub struct Done<W> {
    /// The output. After a fault it is other memory than what was submitted.
    pub write: Vec<W>,
    /// The digests of all messages, one after the other.
    pub digests: Vec<u8>,
    /// The roots of all strips, if a tree was asked for.
    pub roots: Vec<u8>,
    /// Where it ran.
    pub ran: Ran,
    /// Why a device did not finish it, if it was redone.
    pub fault: Option<Fault>,
}
