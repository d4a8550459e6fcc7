//! Frontends: what turns a volume into a block device for others. NBD (server and client), FUSE, and
//! a loop device on top of FUSE. Knows the small trait [`Volume`] of `ashlar-block`, not arrays.
//!
//! Invariants:
//! - Everything runs as tasks on one [`ashlar_rt::Rt`], the thread of the volumes; only mounting,
//!   unmounting and loop devices use a helper thread, since the kernel calls back into the frontend
//!   while they run.
//! - Every request passes one gate (`nbd::gate`, `fuse::gate`) before a volume sees it: range,
//!   overflow, flags, read-only. A volume may rely on it, and checks its range all the same.
//! - A payload reaches the volume whole or not at all.
//! - What is in flight is bounded, in bytes and in requests; beyond the bound the peer waits.
//! - Bytes from a peer or the kernel never panic.

mod flow;
pub mod fuse;
pub mod loopdev;
mod memory;
pub mod nbd;

pub use ashlar_block::{Extent, Fut, Volume, VolumeError, VolumeInfo};
pub use flow::{Pool, on_thread};
pub use memory::{Counters, MemVolume, NullVolume};
