//! `import --incremental`: a device has come, and its array takes it in, starts, or waits for more.
//!
//! **Invariants**: a device goes to the array only that it says it is of; an array starts with all devices that its
//! newest device counts, or with fewer once it has waited as long as its `start.wait` says; nothing is remembered from
//! one call to the next.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use ashlar_engine::status::DeviceStatus;
use ashlar_engine::{Label, uuid_text};

use crate::api::{Import, IncrementalReply, Started};
use crate::daemon::find::{Devices, complete, counts};
use crate::daemon::host::{Host, Member};
use crate::failure::Failure;

/// What is here of an array that does not run.
struct Looked {
    found: Devices,
    closed: Vec<(PathBuf, Failure)>,
    /// It starts with these.
    starts: bool,
    read_only: bool,
    /// What it waits for otherwise, if anything.
    waits: Option<String>,
}

impl Host {
    /// `import --incremental`.
    ///
    /// # Errors
    /// If the device is of no array, or its array does not take it.
    pub(super) async fn incremental(
        self: &Rc<Host>,
        device: &str,
    ) -> Result<IncrementalReply, Failure> {
        let path = std::fs::canonicalize(device).map_err(|e| {
            Failure::not_found(format!("{device}: {e}; name a device that is there"))
        })?;
        let label = self.label_of(&path).await?;
        if let Some(member) = self.imported(&uuid_text(&label.array_uuid)) {
            return self.take_into(&member, &label, &path).await;
        }
        let (mut import, mut was_watched) = (Import::default(), false);
        let guard = loop {
            let looked = self.looked_for(&label, &path).await?;
            if looked.starts && !was_watched {
                let watched = self.watch_others(&looked.found, &import).await.transpose();
                let watched = watched.map(|watched| (uuid_text(&label.array_uuid), watched));
                import.watched.0.extend(watched);
                was_watched = true;
            }
            let guard = self.change.lock().await;
            // Another device may have come meanwhile: nobody else waits while the array is watched for that.
            if was_watched || !self.looked_for(&label, &path).await?.starts {
                break guard;
            }
        };
        let outcome = match self.imported(&uuid_text(&label.array_uuid)) {
            // Another call was first.
            Some(member) => self.take_into(&member, &label, &path).await,
            None => self.start_or_wait(&label, &path, import).await,
        };
        self.share_memory(0).await;
        drop(guard);
        outcome
    }

    /// The array runs: it takes the device in, unless it has it.
    async fn take_into(
        self: &Rc<Host>,
        member: &Member,
        label: &Label,
        path: &Path,
    ) -> Result<IncrementalReply, Failure> {
        let name = member.array.name();
        let uuid = uuid_text(&label.device_uuid);
        let row = |devices: Vec<DeviceStatus>| devices.into_iter().find(|d| d.uuid == uuid);
        let before = row(self.status_of(member).await.devices).ok_or_else(|| {
            Failure::refused(format!(
                "{} was a device of {name}, and is none any more; 'ashlar device wipe {0}' makes it new",
                path.display()
            ))
        })?;
        let mut joined = false;
        if !before.is_held() {
            let taken = self.online(&name, &path.display().to_string(), false).await;
            joined = taken.is_ok();
            let now = row(self.status_of(member).await.devices);
            // The daemon looks for it as well, and may have been first.
            if !now.is_some_and(|d| d.is_held()) {
                taken?;
            }
        }
        let status = self.status_of(member).await;
        let here = status
            .devices
            .iter()
            .filter(|d| d.state.is_in_use())
            .count();
        let total = usize::from(status.devices_total);
        let mut reply = reply_of(label, path, Started::Already, (here, total));
        (reply.array, reply.joined) = (name, joined);
        Ok(reply)
    }

    /// What is here of the array of a device that has come.
    async fn looked_for(self: &Rc<Host>, label: &Label, path: &Path) -> Result<Looked, Failure> {
        let uuid = uuid_text(&label.array_uuid);
        let known = {
            let waiting = self.waiting.borrow();
            let mut all = waiting.iter().map(|(known, _)| known);
            all.find(|known| known.uuid == uuid).cloned()
        };
        let mut places = vec![path.to_path_buf()];
        places.extend(
            known
                .iter()
                .flat_map(|k| k.devices.iter().map(PathBuf::from)),
        );
        let mut seen = self.find_beside(places).await?;
        let found: Devices = seen.found.remove(&uuid).unwrap_or_default();
        let waits = self.still_waits(&uuid);
        let has_waited = known.is_some() && waits.is_none();
        Ok(Looked {
            starts: !found.is_empty() && (complete(&found) || has_waited),
            read_only: known.is_some_and(|k| k.read_only),
            found,
            closed: seen.closed,
            waits,
        })
    }

    /// The array does not run: it starts if all devices are here that it counts, or if it has waited long enough.
    async fn start_or_wait(
        self: &Rc<Host>,
        label: &Label,
        path: &Path,
        import: Import,
    ) -> Result<IncrementalReply, Failure> {
        let looked = self.looked_for(label, path).await?;
        let (uuid, found) = (uuid_text(&label.array_uuid), looked.found);
        let counts = counts(&found);
        if !looked.starts {
            let mut reply = reply_of(label, path, Started::No, counts);
            reply.reason = looked.waits.unwrap_or_default();
            return Ok(reply);
        }
        let read_only = looked.read_only;
        let import = Import {
            read_only,
            ..import
        };
        let whole = complete(&found);
        let given = (found, &looked.closed[..]);
        let mut warnings = Vec::new();
        let started = self
            .import_devices(&uuid, given, &import, &mut warnings)
            .await;
        let mut reply = match started {
            Ok(member) => {
                let mut reply = reply_of(label, path, Started::Yes, counts);
                reply.array = member.array.name();
                reply
            }
            Err(failure) if whole => return Err(failure),
            Err(failure) => {
                let mut reply = reply_of(label, path, Started::No, counts);
                reply.reason = failure.text;
                reply
            }
        };
        reply.warnings = warnings;
        Ok(reply)
    }
}

fn reply_of(
    label: &Label,
    path: &Path,
    started: Started,
    (here, counted): (usize, usize),
) -> IncrementalReply {
    IncrementalReply {
        array: label.array_name.clone(),
        uuid: uuid_text(&label.array_uuid),
        device: label.index,
        path: path.display().to_string(),
        started,
        joined: false,
        here,
        counted,
        reason: String::new(),
        warnings: Vec::new(),
    }
}
