//! The engine: an array as a log of full stripes, found and proved by its map.
//!
//! How it hangs together (ARCHITECTURE.md has the flows):
//! ```text
//! array, volume      what users call; splits requests over shards
//! shard              deltas, streams, map trees of its partitions    (fold: deltas into the map)
//! home               journal, allocator, liveness, commits, members  (by message)
//! mover              cleaner, reconstruct, heal
//! stripe, read       one stripe written; one unit read, verified, decoded
//! coder              parity, lost columns and their digests, on the processor or a GPU
//! core               members, segment table: what all of them look at
//! ```

mod alloc;
mod array;
mod assemble;
mod batch;
mod capacity;
mod chain;
mod coder;
mod commit;
mod contexts;
mod core;
mod create;
mod delta;
mod domains;
mod error;
mod fold;
mod home;
mod import;
mod journal;
mod liveness;
mod lost;
mod member;
mod membership;
mod messages;
mod metaroom;
mod metawriter;
mod mover;
mod partition;
mod phases;
#[cfg(feature = "planted")]
pub mod planted;
#[cfg(not(feature = "planted"))]
mod planted;
mod read;
mod record_sets;
mod report;
mod segment;
mod settings;
mod shard;
pub mod status;
mod stream;
mod stripe;
mod systree;
mod thin;
mod tree;
mod volume;
mod volumes;

pub use array::{Array, Import, Label, Settings, wipe};
pub use ashlar_digest::Kind as DigestKind;
pub use assemble::probe;
pub use coder::{Accelerate, Accelerators, Computing};
pub use create::{Create, Plan, default_strip_bytes, plan};
pub use delta::DELTA_BYTES;
pub use error::{Error, VolumeError};
pub use phases::PhaseTally;
pub use report::uuid_text;
pub use settings::{SETTINGS, Setting};
pub use volume::{Extent, Volume, VolumeInfo, WriteCache};
pub use volumes::VolumeOptions;
