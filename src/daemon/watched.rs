//! What was last seen of an array, so that a change is told once.
//!
//! **Invariants**: values only.

use std::collections::{BTreeMap, BTreeSet};

use ashlar_engine::status::ArrayState;
use ashlar_rt::Nanos;

/// What was last seen of an array.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    /// When the last look began.
    pub(super) looked: Nanos,
    pub(super) state: Option<ArrayState>,
    /// When its state was last told, while it is not optimal.
    pub(super) told: Nanos,
    pub(super) lost: bool,
    /// Devices that are slow, and those that take no writes.
    pub(super) odd: BTreeSet<(u16, &'static str)>,
    /// Devices that are out of use and expected back, and when that was first seen.
    pub(crate) away: BTreeMap<u16, Nanos>,
    /// Volumes that refuse writes, and since when.
    pub(super) refusing: Vec<(String, u64)>,
    /// How far changes to volumes had come when what they take was last counted, and when that was.
    pub(crate) counted: BTreeMap<String, u64>,
    pub(super) counted_at: Nanos,
    /// The same when it was last looked.
    pub(super) changes: BTreeMap<String, u64>,
    /// It is being counted.
    pub(super) counting: bool,
}
