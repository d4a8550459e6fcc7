//! What is asked about volumes.
//!
//! **Invariants**: fields are only ever added, each with a default, so that another version's request can be read.

use serde::{Deserialize, Serialize};

/// How to make a volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct VolumeCreate {
    /// Its array.
    pub(crate) array: String,
    /// Its name.
    pub(crate) volume: String,
    /// Its size; all that is free if absent.
    #[serde(default)]
    pub(crate) size_bytes: Option<u64>,
    /// May be larger than the space there is.
    #[serde(default)]
    pub(crate) thin: bool,
    /// Bytes a volume block.
    #[serde(default)]
    pub(crate) block_bytes: Option<u64>,
    /// `blake3` or `xxh3`.
    #[serde(default)]
    pub(crate) digest: Option<String>,
    /// `on`, `off` or `auto`.
    #[serde(default)]
    pub(crate) write_cache: Option<String>,
}

/// Which volume to destroy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct VolumeDestroy {
    /// The array.
    pub(crate) array: String,
    /// The volume.
    pub(crate) volume: String,
    /// `ARRAY/VOLUME`: the second word.
    #[serde(default)]
    pub(crate) confirm: Option<String>,
    /// Also while clients use it.
    #[serde(default)]
    pub(crate) force: bool,
}

/// Which size a volume is to have.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct VolumeResize {
    /// The array.
    pub(crate) array: String,
    /// The volume.
    pub(crate) volume: String,
    /// Its size from now on.
    pub(crate) size_bytes: u64,
    /// `ARRAY/VOLUME`: the second word, for a smaller size, which loses what lies beyond it.
    #[serde(default)]
    pub(crate) confirm: Option<String>,
}
