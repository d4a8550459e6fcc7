//! Limits of an accelerator, and how it measures.
//!
//! **Invariants**: values only.

use std::fmt;
use std::sync::Arc;

/// Nanoseconds of a clock that does not go backwards; called from any thread.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Limits, and how to measure.
#[derive(Clone)]
pub struct Options {
    /// Jobs on the device at a time; each has a stream and memory.
    pub slots: usize,
    /// Bytes of input, and of output, of one job. A slot takes about 2.3 times as much on the device and,
    /// pinned, on the host. Halved, down to 64 KiB, if memory is short.
    pub slot_bytes: usize,
    /// Jobs that may wait for a slot.
    pub queue: usize,
    /// Bytes pinned for [`crate::Accelerator::region`].
    pub pinned_bytes: usize,
    /// A device that takes longer than this for what it was given is given up, in milliseconds.
    pub deadline_ms: u32,
    /// One in so many jobs that the device did is done again by the processor and compared; 0: none. A device
    /// that computes something else is given up.
    pub check_one_in: u64,
    /// Bytes that are copied, coded and hashed to measure rates.
    pub calibrate_bytes: usize,
    /// The clock. Without one nothing is measured on the processor, and `auto` never chooses a device.
    pub clock: Option<Clock>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            slots: 4,
            slot_bytes: 8 << 20,
            queue: 8,
            pinned_bytes: 128 << 20,
            deadline_ms: 10_000,
            check_one_in: 64,
            calibrate_bytes: 4 << 20,
            clock: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("slots", &self.slots)
            .field("slot_bytes", &self.slot_bytes)
            .field("queue", &self.queue)
            .field("pinned_bytes", &self.pinned_bytes)
            .field("deadline_ms", &self.deadline_ms)
            .field("check_one_in", &self.check_one_in)
            .finish_non_exhaustive()
    }
}
