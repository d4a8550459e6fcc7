//! What the command line and the daemon say to each other: JSON bodies of an HTTP API on a Unix
//! socket. `POST /v1/<verb>` with the verb's arguments; `GET /v1/status` for scripts.
//!
//! **Invariants**: fields are only ever added; an unknown verb or a missing argument is an answer
//! with status 400, never a guess; a failure is `{"version":1,"error":{"kind","text"}}`.

use serde::{Deserialize, Serialize};

use ashlar_engine::status::{ArrayStatus, Event};

use crate::failure::Failure;

/// The version of every JSON document the program prints or sends.
pub(crate) const VERSION: u32 = 1;

/// One request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case")]
pub(crate) enum Call {
    /// Is a daemon there, and which?
    Ping,
    /// Make an array.
    Create(Create),
    /// What could be imported.
    Importable {
        /// Directories to look into, besides the block devices.
        #[serde(default)]
        scan: Vec<String>,
    },
    /// Start arrays.
    Import(Import),
    /// Close an array cleanly and forget it.
    Export {
        /// Its name.
        array: String,
    },
    /// Wipe an array's superblocks.
    Destroy {
        /// Its name.
        array: String,
        /// Its name again: the second word.
        #[serde(default)]
        confirm: Option<String>,
        /// Also while clients are connected.
        #[serde(default)]
        force: bool,
    },
    /// How arrays are.
    Status {
        /// Its name; all if absent.
        #[serde(default)]
        array: Option<String>,
    },
    /// What happened.
    Events {
        /// Its name; all if absent.
        #[serde(default)]
        array: Option<String>,
        /// For each array, the last number the asker has seen.
        #[serde(default)]
        after: std::collections::BTreeMap<String, u64>,
        /// Only those with a greater number of this history.
        #[serde(default)]
        since_id: u64,
        /// Only those from this second of the Unix epoch on.
        #[serde(default)]
        since_seconds: u64,
        /// Only so many, the last.
        #[serde(default)]
        newest: Option<usize>,
        /// Wait up to so many seconds for one.
        #[serde(default)]
        wait_seconds: u64,
    },
    /// Try every way of telling people that is set.
    NotifyTest,
    /// Make a volume.
    VolumeCreate(VolumeCreate),
    /// Destroy a volume and what is in it.
    VolumeDestroy(VolumeDestroy),
    /// Change a volume's property.
    VolumeSet {
        /// Its array.
        array: String,
        /// Its name.
        volume: String,
        /// The property.
        key: String,
        /// Its new value.
        value: String,
    },
    /// Serve a volume.
    Attach {
        /// Its array.
        array: String,
        /// Its name.
        volume: String,
        /// How.
        frontend: FrontendSpec,
        /// Bytes of a sector of a kernel device, 512 or 4096; 4096 if absent.
        #[serde(default)]
        sector_bytes: Option<u64>,
        /// Also beside a frontend of another kind.
        #[serde(default)]
        force: bool,
    },
    /// Stop serving a volume.
    Detach {
        /// Its array.
        array: String,
        /// Its name.
        volume: String,
        /// A kind or an address; every frontend if absent.
        #[serde(default)]
        frontend: Option<String>,
        /// Also if a client is connected.
        #[serde(default)]
        force: bool,
    },
    /// Take a device out.
    Fail {
        /// Its array.
        array: String,
        /// Path, UUID or index.
        device: String,
        /// Also if it leaves too few devices to carry on by themselves.
        #[serde(default)]
        force: bool,
    },
    /// Wait until background work of some kinds has ended.
    Wait {
        /// Its array.
        array: String,
        /// Which kinds; all if empty.
        #[serde(default)]
        kinds: Vec<String>,
        /// Answer after so many seconds in any case.
        seconds: u64,
    },
    /// Properties.
    Get {
        /// Its array.
        array: String,
        /// One property; all if absent.
        #[serde(default)]
        key: Option<String>,
    },
    /// Change a property.
    Set {
        /// Its array.
        array: String,
        /// The property.
        key: String,
        /// Its new value.
        value: String,
    },
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

/// How to make an array.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Create {
    /// Its name.
    pub(crate) array: String,
    /// The notation.
    pub(crate) layout: String,
    /// Devices' worth of spare space.
    #[serde(default)]
    pub(crate) spare: u16,
    /// Bytes a strip.
    #[serde(default)]
    pub(crate) strip_bytes: Option<u64>,
    /// Bytes a slot.
    #[serde(default)]
    pub(crate) slot_bytes: Option<u64>,
    /// `DEV=LABEL`.
    #[serde(default)]
    pub(crate) domains: Vec<(String, String)>,
    /// Make devices that do not exist as sparse files of so many bytes.
    #[serde(default)]
    pub(crate) file_bytes: Option<u64>,
    /// A volume to make with it: name, and size unless all there is.
    #[serde(default)]
    pub(crate) volume: Option<(String, Option<u64>)>,
    /// How to serve that volume.
    #[serde(default)]
    pub(crate) attach: Option<FrontendSpec>,
    /// Only say what would be.
    #[serde(default)]
    pub(crate) dry_run: bool,
    /// Overwrite what the devices hold.
    #[serde(default)]
    pub(crate) force: bool,
    /// Absolute paths.
    pub(crate) devices: Vec<String>,
}

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

/// Which arrays to start, and how.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Import {
    /// Name or UUID; all that can be found if absent.
    #[serde(default)]
    pub(crate) array: Option<String>,
    /// Directories to look into.
    #[serde(default)]
    pub(crate) scan: Vec<String>,
    /// Also with too few devices.
    #[serde(default)]
    pub(crate) degraded: bool,
    /// Write nothing.
    #[serde(default)]
    pub(crate) read_only: bool,
}

/// A way to serve a volume, as the operator asks for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "address", rename_all = "lowercase")]
pub(crate) enum FrontendSpec {
    /// NBD at `unix:PATH` or `HOST:PORT`.
    Nbd(String),
    /// A file in a directory, over FUSE.
    Fuse(String),
    /// A kernel block device.
    Loop,
}

/// `status`.
#[derive(Debug, Serialize, Deserialize)]
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
}

/// `create`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CreateReply {
    /// Whether it only says what would be.
    pub(crate) dry_run: bool,
    /// The array.
    pub(crate) array: ArrayStatus,
    /// Where its volume is served.
    #[serde(default)]
    pub(crate) attached: Option<Attached>,
    /// Device files that were (or would be) made.
    #[serde(default)]
    pub(crate) files_made: Vec<String>,
    /// Signatures that were (or would be) overwritten, as `DEV: what`.
    #[serde(default)]
    pub(crate) overwritten: Vec<String>,
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
    pub(crate) after: std::collections::BTreeMap<String, u64>,
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
    pub(crate) properties: std::collections::BTreeMap<String, String>,
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
    /// [`VERSION`].
    pub(crate) version: u32,
    /// What went wrong.
    pub(crate) error: Failure,
}

/// Nothing destroys data without being told twice: refuses unless `confirm` names `what` again.
///
/// # Errors
/// What to send.
pub(crate) fn check_confirmed(what: &str, confirm: Option<&str>) -> Result<(), Failure> {
    if confirm == Some(what) {
        return Ok(());
    }
    Err(Failure::refused(format!(
        "destroying {what} destroys all its data; if that is meant, give \"confirm\":\"{what}\" ('ashlar' does with --yes)"
    )))
}

impl Call {
    /// The verb, as it stands in the path.
    pub(crate) fn verb(&self) -> &'static str {
        match self {
            Call::Ping => "ping",
            Call::Create(_) => "create",
            Call::Importable { .. } => "importable",
            Call::Import(_) => "import",
            Call::Export { .. } => "export",
            Call::Destroy { .. } => "destroy",
            Call::Status { .. } => "status",
            Call::Events { .. } => "events",
            Call::NotifyTest => "notify-test",
            Call::VolumeCreate(_) => "volume-create",
            Call::VolumeDestroy(_) => "volume-destroy",
            Call::VolumeSet { .. } => "volume-set",
            Call::Attach { .. } => "attach",
            Call::Detach { .. } => "detach",
            Call::Fail { .. } => "fail",
            Call::Wait { .. } => "wait",
            Call::Get { .. } => "get",
            Call::Set { .. } => "set",
        }
    }

    /// The body that goes with [`Call::verb`]'s path.
    pub(crate) fn body(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("requests are plain data")
    }

    /// Reads a request from its path and body.
    ///
    /// # Errors
    /// What is missing or unknown.
    pub(crate) fn parse(verb: &str, body: &[u8]) -> Result<Call, Failure> {
        let value = if body.is_empty() {
            serde_json::json!({})
        } else {
            serde_json::from_slice(body)
                .map_err(|e| Failure::invalid(format!("the body is not JSON: {e}")))?
        };
        let serde_json::Value::Object(mut map) = value else {
            return Err(Failure::invalid("the body must be a JSON object"));
        };
        map.insert("verb".to_string(), verb.into());
        serde_json::from_value(serde_json::Value::Object(map))
            .map_err(|e| Failure::invalid(format!("{verb}: {e}; see docs/operating.md, HTTP API")))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_call_survives_the_wire() {
        let call = Call::Attach {
            array: "tank".into(),
            volume: "v".into(),
            frontend: FrontendSpec::Nbd("unix:/tmp/s".into()),
            sector_bytes: None,
            force: false,
        };
        let read = Call::parse(call.verb(), &call.body()).unwrap();
        assert_eq!(format!("{call:?}"), format!("{read:?}"));
    }

    #[test]
    fn garbage_is_answered_with_what_is_wrong() {
        assert!(
            Call::parse("status", b"{")
                .unwrap_err()
                .text
                .contains("not JSON")
        );
        assert!(
            Call::parse("status", b"[1]")
                .unwrap_err()
                .text
                .contains("JSON object")
        );
        assert!(
            Call::parse("format-c", b"{}")
                .unwrap_err()
                .text
                .contains("format-c")
        );
        assert!(
            Call::parse("export", b"{}")
                .unwrap_err()
                .text
                .contains("array")
        );
        assert!(matches!(
            Call::parse("status", b"").unwrap(),
            Call::Status { array: None }
        ));
    }
}
