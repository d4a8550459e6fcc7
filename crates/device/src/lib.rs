//! Devices: the trait the engine writes to, the leaf devices that implement it, and filters that
//! wrap another device. No device knows of arrays.
//!
//! Invariants:
//! - An operation is submitted when the method is called, not when its future is polled; the device
//!   owns the buffers until the operation has completed, also if the future is dropped.
//! - Operations in flight together have no order. What completed before a [`Device::flush`] was
//!   submitted is durable when that flush completes; nothing else is promised.

mod counters;
mod device;
mod discard;
mod disk;
mod erase;
mod fault;
pub mod filter;
mod holes;
pub mod mem;
pub mod model;
mod open;
mod reread;
#[cfg(test)]
mod scratch;
mod signature;
mod sparse;
mod stamp;
mod sync;
mod table;
mod trimmed;
mod uring;
mod whole;
mod window;

pub use counters::Counters;
pub use device::{Device, DeviceInfo, DeviceRef, Fault, IoFuture, OpKind};
pub(crate) use device::{aligned, check_range, check_write};
pub use filter::{Delay, DelayFilter, Effect, FaultFilter, Rule, RuleId, TraceEntry, TraceFilter};
pub use mem::MemDevice;
pub use model::{
    Bed, Built, Content, Link, ModelCounters, ModelDevice, ModelOptions, Namespace, Network, Path,
    Profile,
};
pub use open::{OpenError, OpenMode, Unserved, create_file, open, open_unserved};
pub use signature::signature;
pub use stamp::find_same;
pub use sync::SyncDevice;
pub use table::PARTITION_TYPE;
pub use uring::{Ring, UringDevice};
pub use whole::{PART_FIRST, Part, PartError, disk_of_partition, is_whole_disk, part_of};
pub use window::Window;
