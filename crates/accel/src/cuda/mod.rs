//! GPUs by CUDA.
//!
//! **Invariants**: `unsafe` is here and in regions only.

mod device;
mod driver;
mod kernels;
mod launch;
mod measure;
mod parts;
mod slot;

pub(crate) use device::Device;
pub(crate) use driver::{Context, PinnedMemory};
pub(crate) use measure::Link;
