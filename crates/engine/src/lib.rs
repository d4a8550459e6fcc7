//! The engine: an array as a log of full stripes, found and proved by its map.
//!
//! A folder uses those below it only, and `cargo xtask test arrows` holds it to that (ARCHITECTURE.md has the flows):
//! ```text
//! api                   arrays and volumes, as callers see them; requests are split over shards
//! import                devices to an array that runs: generation, root, segments, journal
//! background            cleaner, rebuild, repair of single blocks
//! home                  the actor that owns journal, allocator, liveness, checkpoints and members
//! shard                 the actor that owns deltas, streams and map trees of its partitions
//! protocol              the messages between them
//! options               how an array is imported and runs, its settings
//! map                   nodes of trees in memory, deltas
//! journal               records, the rings that they lie in, what of them can be read after losses
//! segment               columns, stripes and rows: written, read, verified, decoded
//! members               devices, the slots on them, which of them count
//! space                 what fits, and who may take it
//! error status locks     values
//! ```

mod api;
mod background;
mod counters;
mod error;
mod home;
mod import;
mod journal;
mod locks;
mod map;
mod members;
mod options;
mod phases;
#[cfg(feature = "planted")]
pub mod planted;
#[cfg(not(feature = "planted"))]
mod planted;
mod protocol;
mod segment;
mod shard;
mod space;
pub mod status;
#[cfg(test)]
mod testing;

pub use api::array::Array;
pub use api::create::{Create, Plan, default_strip_bytes, plan};
pub use api::members::TakenIn;
pub use api::scrub::ScrubChange;
pub use api::volume::{Volume, VolumeInfo, WriteCache};
pub use api::volumes::VolumeOptions;
pub use ashlar_block::{Extent, VolumeError};
pub use ashlar_digest::Kind as DigestKind;
pub use error::Error;
pub use home::addition::With;
pub use home::growth::Grown;
pub use home::hot_spare::Due;
pub use home::removal::Without;
pub use home::trim::{Left, Trimmed};
pub use import::assemble::probe;
pub use import::decide::{Decision, Holder, decide};
pub use import::watch;
pub use map::delta::DELTA_BYTES;
pub use members::beat::Identity;
pub use members::fence::FENCE;
pub use members::slots::choose_copy;
pub use members::wipe::wipe;
pub use options::{
    DEFAULT_START_WAIT, Import, LARGEST_VOLUME_BLOCK, Label, SETTINGS, Setting, Settings,
    VOLUME_BLOCKS, Waits, Watched, uuid_text,
};
pub use phases::PhaseTally;
pub use segment::behind::{Known, bound_of, is_whole};
pub use segment::coder::{Accelerate, Accelerators, Computing};
pub use status::Work;
