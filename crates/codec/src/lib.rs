//! Erasure codes over GF(2^8): bytes in, bytes out.
//!
//! A code turns K data strips into M parity strips so that any K of the K+M strips give all the
//! others. The parity is byte-equal to that of ISA-L and Jerasure for the codes named after them.
//! `docs/codec.md` has the mathematics, the kernels and how to add one.
//!
//! **Invariants.**
//! - Every code that [`Code::new`] hands out is MDS for its K and M.
//! - The bytes do not depend on the kernel, on the length of the buffers cut differently, on their
//!   alignment, or on whether a matrix came from the cache.
//! - `unsafe` is in `kernel/` only, behind functions that check every range.

mod apply;
pub mod bench;
mod cache;
mod code;
mod fft;
mod gf;
mod kernel;
mod kind;
mod matrix;
mod packets;
mod solve;
mod strips;

pub use code::{Code, Decoder};
pub use kernel::{Kernel, kernels};
pub use kind::{CodeError, CodeKind};
pub use strips::Stripe;
