//! What is asked and answered about scrubs.
//!
//! **Invariants**: fields are only ever added, each with a default, so that another version's answer can be read.

use ashlar_engine::status::{ScrubReport, TaskStatus};
use serde::{Deserialize, Serialize};

/// What is to become of the scrub of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ScrubVerb {
    /// Its reports are only asked for.
    Show,
    /// One starts.
    Start,
    /// The one under way rests.
    Pause,
    /// It goes on.
    Resume,
    /// It ends.
    Stop,
}

/// What is to become of the scrub of which array.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Scrub {
    /// The array.
    pub(crate) array: String,
    /// What is to become of it.
    pub(crate) change: ScrubVerb,
    /// One that starts repairs nothing.
    #[serde(default)]
    pub(crate) check: bool,
    /// One that starts looks only at what was written since this second of the Unix epoch.
    #[serde(default)]
    pub(crate) since: Option<u64>,
}

/// How scrubs are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ScrubReply {
    /// The array.
    pub(crate) array: String,
    /// It was so before.
    #[serde(default)]
    pub(crate) already: bool,
    /// How often one is started by itself: the setting `scrub.every`.
    #[serde(default)]
    pub(crate) every: String,
    /// The last one as background work, if there was any.
    #[serde(default)]
    pub(crate) task: Option<TaskStatus>,
    /// Reports of the last ones, the newest last.
    #[serde(default)]
    pub(crate) reports: Vec<ScrubReport>,
}
