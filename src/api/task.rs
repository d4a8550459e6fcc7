//! What is asked and answered about background work.
//!
//! **Invariants**: fields are only ever added, each with a default, so that another version's answer can be read.

use serde::{Deserialize, Serialize};

/// What is to become of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TaskChange {
    /// It rests until it is resumed.
    Pause,
    /// It goes on.
    Resume,
    /// It is given up.
    Cancel,
}

/// What is to become of which task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    /// The array.
    pub(crate) array: String,
    /// The task's number, as in `status`.
    pub(crate) id: u64,
    /// What is to become of it.
    pub(crate) change: TaskChange,
}

/// What became of a task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TaskReply {
    /// The array.
    pub(crate) array: String,
    /// The task's number.
    pub(crate) id: u64,
    /// Its kind, as in `status`.
    pub(crate) kind: String,
    /// What became of it.
    pub(crate) change: TaskChange,
    /// It was so before.
    #[serde(default)]
    pub(crate) already: bool,
    /// Devices that were to leave, and stay.
    #[serde(default)]
    pub(crate) stay: Vec<u16>,
    /// Devices that are offline: their data is not rebuilt, paused or not.
    #[serde(default)]
    pub(crate) offline: Vec<u16>,
    /// Whether some redundancy is missing now.
    #[serde(default)]
    pub(crate) degraded: bool,
    /// Bytes of data with no redundancy left.
    #[serde(default)]
    pub(crate) unprotected_bytes: u64,
    /// How many more devices may fail now.
    #[serde(default)]
    pub(crate) more_losses: u16,
}
