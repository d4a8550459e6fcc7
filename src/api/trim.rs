//! What is answered about a trim.
//!
//! **Invariants**: fields are only ever added, each with a default, so that another version's answer can be read.

use serde::{Deserialize, Serialize};

/// Why a device has not discarded all free space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TrimLeft {
    /// It cannot discard.
    NoDiscard,
    /// It failed to, or took too long.
    Failed,
    /// The array is short of space, or its writes are paused.
    Space,
    /// It left, or the array was exported or stopped.
    Ended,
}

/// What a device has discarded.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TrimDevice {
    /// Its index.
    pub(crate) device: u16,
    /// Where it is.
    pub(crate) path: String,
    /// Bytes that it has discarded.
    pub(crate) discarded_bytes: u64,
    /// Why some free space is left, if any is.
    #[serde(default)]
    pub(crate) left: Option<TrimLeft>,
    /// What went wrong; empty if nothing did.
    #[serde(default)]
    pub(crate) fault: String,
}

/// What came of a trim.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TrimReply {
    /// The array.
    pub(crate) array: String,
    /// Bytes that its devices have discarded.
    pub(crate) discarded_bytes: u64,
    /// Its devices in use.
    #[serde(default)]
    pub(crate) devices: Vec<TrimDevice>,
}
