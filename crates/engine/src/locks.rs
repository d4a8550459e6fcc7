//! The order of the engine's locks. A task that holds one waits only for those below it here; builds with debug
//! assertions check that at every lock (`ashlar_rt::Rank`).
//!
//! What the order does not show: a task that holds a lock may wait for another task, which takes locks of its own. A
//! checkpoint waits so for the shards, each of which takes its tree; a group commit waits for checkpoints where the
//! journal is full.

use ashlar_rt::Rank;

const fn rank(place: u8, name: &'static str) -> Rank {
    Rank { place, name }
}

/// Writers of more than one run, one after the other.
pub const ADMISSION: Rank = rank(1, "admission");
/// A stream of a shard.
pub const STREAM: Rank = rank(2, "stream");
/// One merge at a time, for all who asked before it began.
pub const MERGE: Rank = rank(3, "merge");
/// One group commit at a time.
pub const GROUP_COMMIT: Rank = rank(4, "group commit");
/// One checkpoint at a time.
pub const CHECKPOINT: Rank = rank(5, "checkpoint");
/// A checkpoint that places nodes, or whoever has some rewritten.
pub const PLACING: Rank = rank(6, "placing");
/// The trees of a shard.
pub const TREE: Rank = rank(7, "tree");
/// The stripes that nodes get places in.
pub const META: Rank = rank(8, "meta");
/// Records, roots and changes of membership exclude each other.
pub const LOG: Rank = rank(9, "log");
/// One flush of a device at a time.
pub const FLUSH: Rank = rank(10, "flush");
