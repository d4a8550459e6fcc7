//! What stands for GPUs in a build without the feature `cuda`: none can be opened, so nothing here is ever called.
//!
//! **Invariants**: no device exists, and the compiler knows.

mod device;
mod memory;

pub(crate) use device::{Device, Link};
pub(crate) use memory::{Context, PinnedMemory};
