//! Counters of the operations of a device.

/// Operations and bytes since the counters were made or reset. A failed operation counts too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Reads.
    pub reads: u64,
    /// Bytes asked for by reads.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes given by writes.
    pub written_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Bytes covered by discards.
    pub discarded_bytes: u64,
    /// Operations that ended in a fault.
    pub faults: u64,
}

impl Counters {
    pub(crate) fn count(&mut self, kind: crate::OpKind, bytes: u64) {
        use crate::OpKind::{Discard, Flush, Read, Write};
        match kind {
            Read => {
                self.reads += 1;
                self.read_bytes += bytes;
            }
            Write => {
                self.writes += 1;
                self.written_bytes += bytes;
            }
            Flush => self.flushes += 1,
            Discard => {
                self.discards += 1;
                self.discarded_bytes += bytes;
            }
        }
    }
}
