//! The format on disk. `docs/format.md` is the norm; this crate is its reading.
//!
//! Invariants:
//! - Little-endian, 4 KiB units, everything self-identifying and hashed. Parsing never panics and
//!   never allocates more than the bytes it was given justify.
//! - A parsed value has been checked: its digest, its identity, its bounds.
//! - It does no I/O and knows no policy.

pub mod beat;
pub mod bitmap;
pub mod catalog;
pub mod context;
pub mod geometry;
pub mod journal;
pub mod liveness;
pub mod node;
pub mod partition;
pub mod root;
pub mod scrub;
pub mod slot;
pub mod summary;
pub mod superblock;
mod values;
pub mod wire;

pub use geometry::{DeviceGeometry, SegmentGeometry};
pub use values::{BLOCK, BLOCK_U64, DigestContext, FormatError, SegmentNumber, VERSION};
