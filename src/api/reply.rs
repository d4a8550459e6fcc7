//! What the daemon answers.
//!
//! **Invariants**: fields are only ever added, each with a default, so that another version's answer can be read.

use std::collections::BTreeMap;

use ashlar_engine::status::{ArrayStatus, Event};
use serde::{Deserialize, Serialize};

use super::DeviceHardware;
use crate::failure::Failure;

/// `status`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct StatusReply {
    /// The arrays, by name.
    pub(crate) arrays: Vec<ArrayStatus>,
    /// Known arrays that could not be started, with the reason.
    #[serde(default)]
    pub(crate) not_imported: Vec<NotImported>,
    /// Frontends that should serve and do not.
    #[serde(default)]
    pub(crate) not_served: Vec<NotServed>,
    /// The list of arrays was lost, so that some may be missing here: what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) list_lost: Option<String>,
    /// Volumes that refuse writes for want of space.
    #[serde(default)]
    pub(crate) refusing: Vec<Refusing>,
    /// How long the requests of volumes that are served took.
    #[serde(default)]
    pub(crate) latency: Vec<Latency>,
    /// What the reserved space of arrays is for, by their names.
    #[serde(default)]
    pub(crate) reserved: BTreeMap<String, Reserved>,
    /// What is known of the drives under devices.
    #[serde(default)]
    pub(crate) hardware: Vec<DeviceHardware>,
    /// What the engine does not tell of volumes.
    #[serde(default)]
    pub(crate) volumes: Vec<VolumeNote>,
}

impl StatusReply {
    /// What is known of a volume beside its status.
    pub(crate) fn note_on(&self, array: &str, volume: &str) -> Option<&VolumeNote> {
        let mut notes = self.volumes.iter();
        notes.find(|n| n.array == array && n.volume == volume)
    }
}

/// What the engine does not tell of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VolumeNote {
    /// Its array.
    pub(crate) array: String,
    /// Its name.
    pub(crate) volume: String,
    /// It may be larger than the space there is.
    pub(crate) thin: bool,
    /// Its `used_bytes` are from before its last writes: they are counted once its clients rest, within a minute in any
    /// case.
    pub(crate) counting: bool,
}

/// What an array's reserved space is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reserved {
    /// The journal's rings.
    pub(crate) journal_bytes: u64,
    /// Kept free so that cleaning stays quick (`clean.reserve`), parity included: about so much.
    pub(crate) cleaning_bytes: u64,
    /// The rest: the map and other metadata, checkpoints, recovery.
    pub(crate) metadata_bytes: u64,
}

impl Reserved {
    /// Of an array that keeps `percent` for cleaning.
    pub(crate) fn of(array: &ArrayStatus, percent: u64) -> Reserved {
        let all = array.capacity.reserved_bytes;
        let journal_bytes = array.journal.bytes.min(all);
        let left = all - journal_bytes;
        let stripes = array.capacity.raw_bytes.saturating_sub(journal_bytes);
        let cleaning_bytes = (stripes / 100 * percent).min(left);
        Reserved {
            journal_bytes,
            cleaning_bytes,
            metadata_bytes: left - cleaning_bytes,
        }
    }
}

/// How long requests of one kind took since the volume is served.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Latency {
    /// The array.
    pub(crate) array: String,
    /// The volume.
    pub(crate) volume: String,
    /// `read`, `write` or `flush`.
    pub(crate) operation: String,
    /// Requests that have ended, by the bounds of [`LATENCY_BOUNDS`]: each counts those of at most so long that the
    /// bound before does not have; the last those beyond all bounds.
    pub(crate) counts: Vec<u64>,
    /// All their times together.
    pub(crate) nanoseconds: u64,
    /// Requests that have not ended.
    pub(crate) in_flight: u64,
}

/// Bounds of the times that are counted together, in nanoseconds: each is four times the one before, from 16 us on.
pub(crate) const LATENCY_BOUNDS: [u64; 12] = [
    16_384,
    65_536,
    262_144,
    1_048_576,
    4_194_304,
    16_777_216,
    67_108_864,
    268_435_456,
    1_073_741_824,
    4_294_967_296,
    17_179_869_184,
    68_719_476_736,
];

/// A volume that refuses writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refusing {
    /// Its array.
    pub(crate) array: String,
    /// Its name.
    pub(crate) volume: String,
    /// Since when, in seconds of the Unix epoch.
    pub(crate) since: u64,
}

/// A frontend that could not be restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NotServed {
    /// Its array.
    pub(crate) array: String,
    /// Its volume.
    pub(crate) volume: String,
    /// `nbd`, `fuse` or `loop`.
    pub(crate) kind: String,
    /// Where it should be.
    pub(crate) address: String,
    /// Why it is not, and what to do.
    pub(crate) reason: String,
}

/// A known array that could not be started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NotImported {
    /// Its name.
    pub(crate) name: String,
    /// Its identity.
    pub(crate) uuid: String,
    /// Why, and what to do.
    pub(crate) reason: String,
    /// It waits for its devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) waits: Option<Awaited>,
}

/// What a known array waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Awaited {
    /// Devices that are here, of those that it counts.
    pub(crate) devices_here: usize,
    /// Devices that it counts.
    pub(crate) devices_counted: usize,
    /// Until when it waits, in seconds of the Unix epoch.
    pub(crate) until: u64,
}

/// `create`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CreateReply {
    /// Whether it only says what would be.
    pub(crate) dry_run: bool,
    /// The array.
    pub(crate) array: ArrayStatus,
    /// What its reserved space is for.
    #[serde(default)]
    pub(crate) reserved: Option<Reserved>,
    /// Where its volume is served.
    #[serde(default)]
    pub(crate) attached: Option<Attached>,
    /// Device files that were (or would be) made.
    #[serde(default)]
    pub(crate) files_made: Vec<String>,
    /// Signatures that were (or would be) overwritten, as `DEV: what`.
    #[serde(default)]
    pub(crate) overwritten: Vec<String>,
    /// Whole disks, as they were given, that got (or would get) a partition.
    #[serde(default)]
    pub(crate) partitioned: Vec<String>,
}

/// Where a volume is served.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Attached {
    /// `nbd`, `fuse` or `loop`.
    pub(crate) kind: String,
    /// What a client connects to or opens.
    pub(crate) address: String,
    /// The NBD export name; empty for others.
    #[serde(default)]
    pub(crate) export: String,
    /// The kernel device behind the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) device: Option<String>,
}

impl Attached {
    /// Without an export name or kernel device.
    pub(crate) fn plain(kind: &str, address: String) -> Attached {
        Attached {
            kind: kind.to_string(),
            address,
            export: String::new(),
            device: None,
        }
    }
}

/// An array found on devices that are not in use.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Found {
    /// Its name.
    pub(crate) name: String,
    /// Its identity.
    pub(crate) uuid: String,
    /// Its notation.
    pub(crate) layout: String,
    /// Devices it counts.
    pub(crate) devices_total: u16,
    /// Paths of those that were found, copies too.
    pub(crate) devices: Vec<String>,
    /// How many of the devices that its generation counts are among them.
    #[serde(default)]
    pub(crate) devices_here: u16,
    /// How many its generation counts.
    #[serde(default)]
    pub(crate) devices_counted: u16,
    /// Those of them that were not found, in words.
    #[serde(default)]
    pub(crate) missing: Vec<String>,
    /// Devices of which more than one was found: one line each, with what to do.
    #[serde(default)]
    pub(crate) copies: Vec<String>,
    /// Its generation.
    pub(crate) generation: u64,
}

/// `importable`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ImportableReply {
    /// What was found.
    pub(crate) importable: Vec<Found>,
    /// Devices that could not be read: path and reason.
    #[serde(default)]
    pub(crate) unreadable: Vec<String>,
}

/// `import`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ImportReply {
    /// Arrays started.
    pub(crate) imported: Vec<ArrayStatus>,
    /// Those that failed, one line each (only with `--all`).
    #[serde(default)]
    pub(crate) failed: Vec<String>,
    /// Frontends that could not be restored, one line each.
    #[serde(default)]
    pub(crate) warnings: Vec<String>,
}

/// `destroy`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct DestroyReply {
    /// The array that is no more.
    pub(crate) destroyed: String,
    /// Devices that may still say that they belong to it, one line each.
    #[serde(default)]
    pub(crate) not_wiped: Vec<String>,
}

/// `events`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct EventsReply {
    /// What happened, array by array, oldest first.
    pub(crate) events: Vec<ArrayEvent>,
    /// For each array, the last number: what to ask `after` next time.
    #[serde(default)]
    pub(crate) after: BTreeMap<String, u64>,
    /// The last number of this history: what to ask `since_id` next time.
    #[serde(default)]
    pub(crate) last_id: u64,
}

/// How bad an event is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// As it should be.
    #[default]
    Info,
    /// Something is not as it was; nothing is lost.
    Warning,
    /// Something does not work any more.
    Error,
    /// Data is lost, or is with the next failure, or nothing can be written.
    Critical,
}

impl Severity {
    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
            Severity::Critical => "critical",
        }
    }
}

/// One way of telling people that was tried.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Told {
    /// The array that has the setting.
    pub(crate) array: String,
    /// `exec` or `webhook`.
    pub(crate) way: String,
    /// The program, or the address.
    pub(crate) target: String,
    /// Why it failed, if it did.
    #[serde(default)]
    pub(crate) error: Option<String>,
}

/// `notify-test`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NotifyReply {
    /// What was tried.
    pub(crate) tried: Vec<Told>,
}

/// Who asked for something, as the kernel says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Caller {
    /// The user's number.
    pub(crate) uid: u32,
    /// Its name, where this machine knows it.
    #[serde(default)]
    pub(crate) user: Option<String>,
    /// Who had logged in, where that is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) login_user: Option<String>,
    /// The process.
    #[serde(default)]
    pub(crate) pid: i32,
    /// Its command line; empty if it was gone already.
    #[serde(default)]
    pub(crate) command: String,
}

/// Something that was done, or tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Action {
    /// When it had ended, in seconds since the Unix epoch.
    pub(crate) unix_seconds: u64,
    /// To which arrays.
    pub(crate) arrays: Vec<String>,
    /// The request.
    pub(crate) verb: String,
    /// Who asked.
    pub(crate) caller: Caller,
    /// Whether it was done.
    pub(crate) ok: bool,
    /// `done`, or why not.
    pub(crate) result: String,
}

/// `history`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HistoryReply {
    /// Oldest first.
    pub(crate) actions: Vec<Action>,
}

/// An event of an array.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ArrayEvent {
    /// The array.
    pub(crate) array: String,
    /// Seconds since the Unix epoch.
    pub(crate) unix_seconds: u64,
    /// Its number among all events of this daemon's state directory: later ones have greater numbers.
    #[serde(default)]
    pub(crate) id: u64,
    /// How bad it is.
    #[serde(default)]
    pub(crate) severity: Severity,
    /// The rest.
    #[serde(flatten)]
    pub(crate) event: Event,
}

/// `wait`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WaitReply {
    /// Whether nothing of these kinds is left to do.
    pub(crate) done: bool,
    /// Why something of these kinds is not done though it goes on only when the operator acts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stuck: Option<String>,
    /// How the array is now; absent while the daemon still looks for its devices.
    #[serde(default)]
    pub(crate) array: Option<ArrayStatus>,
}

/// `get`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct GetReply {
    /// Names and values.
    pub(crate) properties: BTreeMap<String, String>,
}

/// `ping`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PingReply {
    /// The program's version.
    pub(crate) program: String,
    /// The daemon's process.
    pub(crate) pid: u32,
}

/// A failure on the wire.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ErrorReply {
    /// The version of JSON documents.
    pub(crate) version: u32,
    /// What went wrong.
    pub(crate) error: Failure,
}
