//! Time on the runtime's clock.
//!
//! Invariants: values only.

/// Nanoseconds on the runtime's own monotonic clock.
pub type Nanos = u64;

/// One second in [`Nanos`].
pub const SECOND: Nanos = 1_000_000_000;

/// One millisecond in [`Nanos`].
pub const MILLISECOND: Nanos = 1_000_000;

/// One microsecond in [`Nanos`].
pub const MICROSECOND: Nanos = 1_000;
