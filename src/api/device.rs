//! What is asked and answered about single devices.
//!
//! **Invariants**: fields are only ever added, each with a default, so that another version's answer can be read.

use ashlar_engine::status::DeviceErrors;
use serde::{Deserialize, Serialize};

use super::Hardware;

/// Which device takes the place of which.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Replace {
    /// The array.
    pub(crate) array: String,
    /// The device that is replaced: its path, UUID or index.
    pub(crate) old: String,
    /// The absolute path of the one that takes its place; that which is now at the path of the old one if absent, where
    /// that is out of use.
    #[serde(default)]
    pub(crate) new: Option<String>,
    /// Only say what would be.
    #[serde(default)]
    pub(crate) dry_run: bool,
    /// Overwrite what the new one holds, and give up what only the old one has.
    #[serde(default)]
    pub(crate) force: bool,
}

/// A device that was taken in.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TakenInReply {
    /// The array.
    pub(crate) array: String,
    /// The device's index.
    pub(crate) device: u16,
    /// Where it is.
    pub(crate) path: String,
    /// Columns that it holds, and that count again.
    #[serde(default)]
    pub(crate) kept: usize,
    /// Columns that are rebuilt.
    #[serde(default)]
    pub(crate) lacking: usize,
    /// After a device went offline: any so many more may be lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) more_losses: Option<u16>,
    /// It was in use, was to leave, and stays.
    #[serde(default)]
    pub(crate) stays: bool,
    /// The device in use whose place it takes, which serves until it is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) leaves: Option<RemoveReply>,
    /// Nothing was done.
    #[serde(default)]
    pub(crate) dry_run: bool,
}

/// Which devices are to come in.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Add {
    /// The array.
    pub(crate) array: String,
    /// Absolute paths.
    pub(crate) devices: Vec<String>,
    /// The failure domain of each, as pairs of device and label; none if the array's devices have none.
    #[serde(default)]
    pub(crate) domains: Vec<(String, String)>,
    /// They hold nothing until another device is lost.
    #[serde(default)]
    pub(crate) hot_spare: bool,
    /// Only say what would be.
    #[serde(default)]
    pub(crate) dry_run: bool,
    /// Overwrite what they hold.
    #[serde(default)]
    pub(crate) force: bool,
}

/// Devices that were added.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AddReply {
    /// The array.
    pub(crate) array: String,
    /// Their indexes; none if nothing was done.
    pub(crate) devices: Vec<u16>,
    /// Where they are.
    pub(crate) paths: Vec<String>,
    /// Bytes that volumes may be promised in all, before.
    pub(crate) usable_before: u64,
    /// And with them.
    pub(crate) usable_bytes: u64,
    /// Bytes of what is there that move to them.
    #[serde(default)]
    pub(crate) moved_bytes: u64,
    /// And how many seconds that takes at the speed of a hard disk.
    #[serde(default)]
    pub(crate) moved_seconds: u64,
    /// They are hot spares.
    #[serde(default)]
    pub(crate) hot_spare: bool,
    /// Nothing was done.
    #[serde(default)]
    pub(crate) dry_run: bool,
}

/// What of a device is set.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DeviceSet {
    /// Its array.
    pub(crate) array: String,
    /// Path, UUID or index.
    pub(crate) device: String,
    /// What.
    pub(crate) key: String,
    /// To what.
    pub(crate) value: String,
}

/// A device of which something was set.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DeviceSetReply {
    /// The array.
    pub(crate) array: String,
    /// The device's index.
    pub(crate) device: u16,
    /// Where it is.
    pub(crate) path: String,
    /// Bytes of it that the array used before.
    pub(crate) was_bytes: u64,
    /// And uses now.
    pub(crate) size_bytes: u64,
    /// Its failure domain before; empty: one of its own.
    pub(crate) was_domain: String,
    /// And now.
    pub(crate) domain: String,
    /// Bytes that volumes may be promised in all, before.
    pub(crate) usable_before: u64,
    /// And now.
    pub(crate) usable_bytes: u64,
}

/// Which device is to leave.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Remove {
    /// Its array.
    pub(crate) array: String,
    /// Path, UUID or index.
    pub(crate) device: String,
    /// Only say what would be.
    #[serde(default)]
    pub(crate) dry_run: bool,
}

/// A device that is taken out for good.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RemoveReply {
    /// The array.
    pub(crate) array: String,
    /// The device's index.
    pub(crate) device: u16,
    /// Where it is, or was.
    pub(crate) path: String,
    /// Whether it is in use, and serves until it is empty.
    pub(crate) in_use: bool,
    /// Bytes on it that move to the others.
    pub(crate) moved_bytes: u64,
    /// And how many seconds that takes at the speed of a hard disk.
    #[serde(default)]
    pub(crate) moved_seconds: u64,
    /// Bytes that volumes may be promised in all on the others.
    pub(crate) usable_bytes: u64,
    /// Bytes of these that volumes have been promised.
    pub(crate) promised_bytes: u64,
    /// How many more devices may fail meanwhile.
    pub(crate) more_losses: u16,
    /// Nothing was done.
    #[serde(default)]
    pub(crate) dry_run: bool,
}

/// `device scan`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ScanReply {
    /// By path.
    pub(crate) devices: Vec<Scanned>,
}

/// A device that was looked at.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Scanned {
    /// Its path.
    pub(crate) path: String,
    /// Its size; 0 if it could not be told.
    #[serde(default)]
    pub(crate) size_bytes: u64,
    /// What it holds, in words.
    #[serde(default)]
    pub(crate) holds: Vec<String>,
    /// The array that it says it is a device of.
    #[serde(default)]
    pub(crate) array: Option<ScannedMember>,
    /// Who uses it, in words.
    #[serde(default)]
    pub(crate) in_use: Option<String>,
    /// `create` takes it without `--force`.
    #[serde(default)]
    pub(crate) free: bool,
    /// Why it could not be looked at, and what to do.
    #[serde(default)]
    pub(crate) unreadable: Option<String>,
    /// Why no array can be made on it all the same.
    #[serde(default)]
    pub(crate) unfit: Option<String>,
    /// The drive under it.
    #[serde(default)]
    pub(crate) hardware: Hardware,
}

/// What a device says of the array that it is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ScannedMember {
    /// The array's name.
    pub(crate) name: String,
    /// The array's UUID.
    pub(crate) uuid: String,
    /// The device's index in it.
    pub(crate) device: u16,
    /// The device's UUID.
    #[serde(default)]
    pub(crate) device_uuid: String,
    /// The generation that it knows.
    #[serde(default)]
    pub(crate) generation: u64,
}

/// `device wipe`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WipeReply {
    /// The device's path.
    pub(crate) device: String,
    /// What was erased, in words; nothing was written if there was nothing.
    pub(crate) erased: Vec<String>,
}

/// `device clear`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ClearReply {
    /// The array.
    pub(crate) array: String,
    /// The device's index.
    pub(crate) device: u16,
    /// Where it is, or was last.
    pub(crate) path: String,
    /// How its counters stood.
    pub(crate) errors: DeviceErrors,
}

/// `device locate`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LocateReply {
    /// The device's path.
    pub(crate) device: String,
    /// Whether its light is on now.
    pub(crate) on: bool,
    /// The slots whose light that is, as the enclosure calls them.
    pub(crate) slots: Vec<String>,
}

/// Whether the array of a device that has come runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Started {
    /// It was started for it.
    Yes,
    /// It waits for other devices.
    No,
    /// It did before.
    Already,
}

/// `import --incremental`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct IncrementalReply {
    /// The device's array.
    pub(crate) array: String,
    /// The array's UUID.
    pub(crate) uuid: String,
    /// The device's index in it.
    pub(crate) device: u16,
    /// Where the device is.
    pub(crate) path: String,
    /// Whether the array runs.
    pub(crate) started: Started,
    /// Whether the array took the device in.
    #[serde(default)]
    pub(crate) joined: bool,
    /// Devices that are here, of those that the array counts.
    pub(crate) here: usize,
    /// Devices that the array counts.
    pub(crate) counted: usize,
    /// Why it waits, if there is more to say.
    #[serde(default)]
    pub(crate) reason: String,
    /// What is wrong though it was started.
    #[serde(default)]
    pub(crate) warnings: Vec<String>,
}
