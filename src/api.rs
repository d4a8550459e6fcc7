//! What the command line and the daemon say to each other: JSON bodies of an HTTP API on a Unix
//! socket. `POST /v1/<verb>` with the verb's arguments; `GET /v1/status` for scripts.
//!
//! **Invariants**: fields are only ever added; an unknown verb or a missing argument is an answer
//! with status 400, never a guess; a failure is `{"version":1,"error":{"kind","text"}}`.

use std::collections::BTreeMap;

use ashlar_engine::Watched;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

#[path = "api/device.rs"]
mod device;
#[path = "api/drive.rs"]
mod drive;
#[path = "api/reply.rs"]
mod reply;
#[path = "api/scrub.rs"]
mod scrub;
#[path = "api/task.rs"]
mod task;
#[path = "api/trim.rs"]
mod trim;
#[path = "api/volume.rs"]
mod volume;

pub(crate) use device::*;
pub(crate) use drive::*;
pub(crate) use reply::*;
pub(crate) use scrub::*;
pub(crate) use task::*;
pub(crate) use trim::*;
pub(crate) use volume::*;

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
    /// A device has come: its array takes it in, starts, or waits for more.
    Incremental {
        /// Its path.
        device: String,
    },
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
        after: BTreeMap<String, u64>,
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
    /// Who did what.
    History {
        /// To which array; to all if absent.
        #[serde(default)]
        array: Option<String>,
        /// Only so many, the last.
        #[serde(default)]
        newest: Option<usize>,
    },
    /// Make a volume.
    VolumeCreate(VolumeCreate),
    /// Destroy a volume and what is in it.
    VolumeDestroy(VolumeDestroy),
    /// Give a volume another name.
    VolumeRename {
        /// Its array.
        array: String,
        /// Its name.
        volume: String,
        /// Its name from now on.
        new_name: String,
    },
    /// Make a volume larger or smaller.
    VolumeResize(VolumeResize),
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
        /// Who may use a Unix socket, beside root.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rights: Option<Rights>,
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
    /// Take a device out of use that is expected back.
    Offline {
        /// Its array.
        array: String,
        /// Path, UUID or index.
        device: String,
    },
    /// Take a device in again.
    Online {
        /// Its array.
        array: String,
        /// Path, UUID or index.
        device: String,
        /// Also one that failed.
        #[serde(default)]
        force: bool,
    },
    /// Put a device in the place of another.
    Replace(Replace),
    /// Take devices in that are new.
    Add(Add),
    /// Take a device out for good.
    Remove(Remove),
    /// Pause, resume or cancel background work.
    Task(Task),
    /// Scrub an array, or change or show that.
    Scrub(Scrub),
    /// Tell devices which space is free.
    Trim {
        /// Their array.
        array: String,
    },
    /// What the devices of this machine hold, and which are free.
    DeviceScan {
        /// Directories to look into, besides the block devices.
        #[serde(default)]
        scan: Vec<String>,
    },
    /// Erase what is recognisable on a device.
    DeviceWipe {
        /// Its absolute path.
        device: String,
        /// Its path again: the second word.
        #[serde(default)]
        confirm: Option<String>,
    },
    /// Use a device otherwise.
    DeviceSet(DeviceSet),
    /// Set a device's counters of errors to zero.
    DeviceClear {
        /// Its array.
        array: String,
        /// Path, UUID or index.
        device: String,
    },
    /// Turn the light of a device's slot on or off.
    DeviceLocate {
        /// Its absolute path.
        device: String,
        /// On, or off.
        on: bool,
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
    /// The array's name from now on.
    #[serde(default)]
    pub(crate) new_name: Option<String>,
    /// Also from another host that did not export it.
    #[serde(default)]
    pub(crate) take_over: bool,
    /// What was seen of other hosts, by UUID.
    #[serde(skip)]
    pub(crate) watched: Watches,
}

/// What watching arrays before their import has given, by UUID.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watches(pub(crate) BTreeMap<String, Result<Watched, Failure>>);

/// Whose a Unix socket is, and what they may do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rights {
    /// The user's number.
    pub(crate) user: u32,
    /// The group's number.
    pub(crate) group: u32,
    /// Permissions, as of a file.
    pub(crate) mode: u32,
}

impl Rights {
    /// Those of a socket that was given to nobody.
    pub(crate) const ROOT_ALONE: Rights = Rights {
        user: 0,
        group: 0,
        mode: 0o600,
    };
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
            Call::Incremental { .. } => "incremental",
            Call::Export { .. } => "export",
            Call::Destroy { .. } => "destroy",
            Call::Status { .. } => "status",
            Call::Events { .. } => "events",
            Call::NotifyTest => "notify-test",
            Call::History { .. } => "history",
            Call::VolumeCreate(_) => "volume-create",
            Call::VolumeDestroy(_) => "volume-destroy",
            Call::VolumeRename { .. } => "volume-rename",
            Call::VolumeResize(_) => "volume-resize",
            Call::VolumeSet { .. } => "volume-set",
            Call::Attach { .. } => "attach",
            Call::Detach { .. } => "detach",
            Call::Fail { .. } => "fail",
            Call::Offline { .. } => "offline",
            Call::Online { .. } => "online",
            Call::Replace(_) => "replace",
            Call::DeviceScan { .. } => "device-scan",
            Call::DeviceWipe { .. } => "device-wipe",
            Call::DeviceClear { .. } => "device-clear",
            Call::DeviceSet(_) => "device-set",
            Call::DeviceLocate { .. } => "device-locate",
            Call::Add(_) => "add",
            Call::Remove(_) => "remove",
            Call::Task(_) => "task",
            Call::Scrub(_) => "scrub",
            Call::Trim { .. } => "trim",
            Call::Wait { .. } => "wait",
            Call::Get { .. } => "get",
            Call::Set { .. } => "set",
        }
    }

    /// Whether it only asks.
    pub(crate) fn only_asks(&self) -> bool {
        match self {
            Call::Ping
            | Call::Importable { .. }
            | Call::Status { .. }
            | Call::Events { .. }
            | Call::NotifyTest
            | Call::History { .. }
            | Call::DeviceScan { .. }
            | Call::DeviceWipe { confirm: None, .. }
            | Call::Wait { .. }
            | Call::Get { .. } => true,
            Call::Create(create) => create.dry_run,
            Call::Replace(replace) => replace.dry_run,
            Call::Add(add) => add.dry_run,
            Call::Remove(remove) => remove.dry_run,
            Call::Scrub(scrub) => scrub.change == ScrubVerb::Show,
            _ => false,
        }
    }

    /// The array that it is about, if it names one.
    pub(crate) fn array(&self) -> Option<&str> {
        match self {
            Call::Create(Create { array, .. })
            | Call::VolumeCreate(VolumeCreate { array, .. })
            | Call::VolumeDestroy(VolumeDestroy { array, .. })
            | Call::Export { array }
            | Call::Destroy { array, .. }
            | Call::VolumeRename { array, .. }
            | Call::VolumeResize(VolumeResize { array, .. })
            | Call::VolumeSet { array, .. }
            | Call::Attach { array, .. }
            | Call::Detach { array, .. }
            | Call::Fail { array, .. }
            | Call::Offline { array, .. }
            | Call::Online { array, .. }
            | Call::Replace(Replace { array, .. })
            | Call::DeviceClear { array, .. }
            | Call::DeviceSet(DeviceSet { array, .. })
            | Call::Add(Add { array, .. })
            | Call::Remove(Remove { array, .. })
            | Call::Task(Task { array, .. })
            | Call::Scrub(Scrub { array, .. })
            | Call::Trim { array }
            | Call::Wait { array, .. }
            | Call::Get { array, .. }
            | Call::Set { array, .. } => Some(array),
            Call::Import(Import { array, .. })
            | Call::Status { array }
            | Call::Events { array, .. }
            | Call::History { array, .. } => array.as_deref(),
            Call::Ping
            | Call::Importable { .. }
            | Call::NotifyTest
            | Call::Incremental { .. }
            | Call::DeviceScan { .. }
            | Call::DeviceWipe { .. }
            | Call::DeviceLocate { .. } => None,
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
            rights: None,
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
