//! What all codes say of strips: how many there may be, those of one stripe, how a matrix is applied to them.
//!
//! **Invariants**: values only.

/// The most strips any code has.
pub(crate) const STRIPS_MAX: usize = 256;

/// The buffers of one stripe in a batch.
#[derive(Debug)]
pub struct Stripe<'s, 'b> {
    /// What is read, in order: the K data strips, or what [`crate::Decoder::reads`] says.
    pub read: &'s [&'b [u8]],
    /// What is written, in order: the M parity strips, or what [`crate::Decoder::writes`] says.
    pub write: &'s mut [&'b mut [u8]],
}

/// How a matrix is applied.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Mode {
    /// Add to what the results hold instead of replacing it.
    pub(crate) add: bool,
    /// Strips are groups of packets.
    pub(crate) packets: bool,
    /// Strips come from memory and results go there: fetch ahead, write around the caches.
    pub(crate) cold: bool,
    /// But results are needed soon: do not write them around the caches.
    pub(crate) kept: bool,
}
