//! What to measure of codes.
//!
//! **Invariants**: values only.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::CodeKind;

/// Bytes that cold stripes go through in turn.
pub const COLD_BYTES: usize = 320 << 20;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Codes; those that refuse a shape are left out of it.
    pub codes: Vec<CodeKind>,
    /// K and M.
    pub shapes: Vec<(usize, usize)>,
    /// Bytes of a strip.
    pub strips: Vec<usize>,
    /// Kernels by name; empty for the fastest.
    pub kernels: Vec<String>,
    /// How many strips, data first, are lost in decoding; more than min(M, K) counts as that.
    pub lost: Vec<usize>,
    /// Stripes from memory instead of one in the caches.
    pub cold: bool,
    /// Let each strip begin 320 bytes further into its page than the one before. Without it all
    /// strips begin at multiples of 4096 and, if longer, at powers of two, and share cache sets.
    pub staggered: bool,
    /// For cold stripes, measure the batch forms too.
    pub batch_forms: bool,
    /// Least time of a batch.
    pub batch: Duration,
    /// Batches for each figure.
    pub batches: usize,
    /// Threads that each do all of it at the same time, with stripes of their own; figures are their
    /// sums.
    pub threads: usize,
    /// Called with the stripes' memory before it is used: to ask for large pages.
    pub advise: fn(&mut [u8]),
    /// Time so far: of this thread on a processor, or of the wall clock.
    pub clock: fn() -> Duration,
}

/// Time since the first call, by the wall clock.
fn wall() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

impl Default for Options {
    fn default() -> Options {
        Options {
            codes: vec![CodeKind::IsalCauchy],
            shapes: vec![(8, 2), (8, 3), (17, 3), (10, 4), (92, 8), (80, 20)],
            strips: vec![4 << 10, 64 << 10, 1 << 20],
            kernels: Vec::new(),
            lost: vec![1, usize::MAX],
            cold: false,
            staggered: true,
            batch_forms: false,
            batch: Duration::from_millis(20),
            batches: 7,
            threads: 1,
            advise: |_| {},
            clock: wall,
        }
    }
}

/// The verb measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// All parity from all data.
    Encode,
    /// Lost data strips from what is left.
    Decode,
    /// The same by a [`crate::Decoder`], which looks nothing up.
    Decoder,
    /// All parity after one data strip has changed.
    Update,
    /// Encoding of batches of stripes.
    EncodeBatch,
    /// Decoding of batches of stripes.
    DecodeBatch,
}

impl Operation {
    /// The name in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Operation::Encode => "encode",
            Operation::Decode => "decode",
            Operation::Decoder => "decoder",
            Operation::Update => "update",
            Operation::EncodeBatch => "encode_batch",
            Operation::DecodeBatch => "decode_batch",
        }
    }
}
