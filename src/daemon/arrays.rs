//! Starting and closing arrays.
//!
//! **Invariants**: an array's frontends are stopped before it is closed; what keeps a known array from being
//! started is kept, and said.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ashlar_device::DeviceRef;
use ashlar_engine::status::ArrayStatus;
use ashlar_engine::{Array, uuid_text};
use ashlar_rt::SECOND;

use crate::api::{Import, ImportReply};
use crate::daemon::find::{Devices, Seen, complete, copies};
use crate::daemon::host::{Host, Member, explain, failure_of};
use crate::daemon::open::{Access, on_thread};
use crate::daemon::state::Known;
use crate::daemon::volumes::NOT_TRIED;
use crate::failure::{Failure, Kind};

/// How long an import waits for devices that are in use. A daemon killed just now still holds its
/// devices until the kernel has ended what its rings had in flight, and must: a write that lands
/// after the next import would change what that import has read.
const BUSY_WAIT: ashlar_rt::Nanos = 10 * ashlar_rt::SECOND;
const BUSY_PAUSE: ashlar_rt::Nanos = 100 * ashlar_rt::MILLISECOND;

/// How long a starting daemon waits for devices of its arrays that are not there yet, in all: what it
/// starts without is not taken in again.
const DEVICES_WAIT: ashlar_rt::Nanos = 10 * SECOND;
const DEVICES_PAUSE: ashlar_rt::Nanos = 500 * ashlar_rt::MILLISECOND;

/// How long bringing an array back may take, beside the wait for its devices, before the service manager gives up.
const RESTORE_SECONDS: u64 = 300;
/// What `status` says of an array whose devices are still looked for.
const WAITING: &str = "waiting for its devices";

/// How long the answer to `import` waits until what only the journal has is merged, so that the status told with it
/// and after it says what volumes hold. They are served meanwhile.
const MERGE_WAIT: ashlar_rt::Nanos = 5 * SECOND;

/// The devices of an array that were opened for its import.
#[derive(Default)]
struct Opened {
    devices: Vec<DeviceRef>,
    /// Their paths, in the same order.
    paths: Vec<String>,
    /// Their paths by UUID.
    seen: BTreeMap<String, String>,
}

/// The refusal of an import that would leave out a device.
fn without(name: &str, failure: &Failure) -> Failure {
    Failure::refused(format!(
        "array {name}: {failure}; --degraded imports without this device"
    ))
}

impl Host {
    /// `import`.
    ///
    /// # Errors
    /// Why the array cannot be started.
    pub(crate) async fn import(self: &Rc<Host>, import: Import) -> Result<ImportReply, Failure> {
        let Seen { found, closed, .. } = self.find(&import.scan).await?;
        let mut reply = ImportReply {
            imported: Vec::new(),
            failed: Vec::new(),
            warnings: Vec::new(),
        };
        let Some(wanted) = &import.array else {
            for (uuid, devices) in found {
                let name = devices[0].1.array_name.clone();
                match self
                    .import_devices(&uuid, (devices, &closed), &import, &mut reply.warnings)
                    .await
                {
                    Ok(member) => reply.imported.push(self.merged_status_of(&member).await),
                    Err(failure) => reply.failed.push(format!("{name}: {failure}")),
                }
            }
            return Ok(reply);
        };
        if let Some(member) = self.imported(wanted) {
            let name = member.array.name();
            if member.read_only != import.read_only {
                let how = if member.read_only {
                    "read-only"
                } else {
                    "for reading and writing"
                };
                return Err(Failure::refused(format!(
                    "array {name} is already imported, {how}; export it first"
                )));
            }
            // What was asked for is so: a script that starts after the daemon need not know who was first.
            reply.imported.push(self.status_of(&member).await);
            reply
                .warnings
                .push(format!("array {name} is already imported"));
            return Ok(reply);
        }
        let mut matching = found.into_iter().filter(|(uuid, devices)| {
            uuid == wanted || devices.iter().any(|(_, label)| label.array_name == *wanted)
        });
        let Some((uuid, devices)) = matching.next() else {
            return Err(Failure::not_found(format!(
                "no device of an array {wanted} was found; give --scan DIR to search files too; 'ashlar import' \
                 lists the arrays found"
            )));
        };
        if let Some((other, _)) = matching.next() {
            return Err(Failure::refused(format!(
                "two arrays are named {wanted}: {uuid} and {other}; name the one to import by its UUID"
            )));
        }
        drop(matching);
        let member = self
            .import_devices(&uuid, (devices, &closed), &import, &mut reply.warnings)
            .await?;
        reply.imported.push(self.merged_status_of(&member).await);
        Ok(reply)
    }

    /// The open array of this name or UUID.
    fn imported(&self, wanted: &str) -> Option<Rc<Member>> {
        let arrays = self.arrays.borrow();
        let mut all = arrays.values();
        all.find(|m| m.array.name() == wanted || uuid_text(&m.array.uuid()) == wanted)
            .cloned()
    }

    /// The status of an array that was just imported.
    async fn merged_status_of(&self, member: &Member) -> ArrayStatus {
        // It goes on where this gives up waiting; one that is read-only, or has stopped, has none.
        let _ = self.rt.timeout(MERGE_WAIT, member.array.merge()).await;
        self.status_of(member).await
    }

    async fn import_devices(
        self: &Rc<Host>,
        uuid: &str,
        (devices, closed): (Devices, &[(PathBuf, Failure)]),
        import: &Import,
        warnings: &mut Vec<String>,
    ) -> Result<Rc<Member>, Failure> {
        let label = &devices[0].1;
        let (name, wanted) = (label.array_name.clone(), label.array_uuid);
        let same_name = self
            .arrays
            .borrow()
            .get(&name)
            .map(|member| uuid_text(&member.array.uuid()));
        if let Some(other) = same_name {
            return Err(Failure::refused(format!(
                "another array named {name} ({other}) is imported; export it before importing {uuid}"
            )));
        }
        if let Some(line) = copies(&devices).into_iter().next() {
            return Err(Failure::refused(line));
        }
        // A device where one of this array was, which may still be it.
        let shut = closed.iter().find(|(path, _)| self.was_at(uuid, path));
        if let Some((_, failure)) = shut
            && !import.degraded
            && !complete(&devices)
        {
            return Err(without(&name, failure));
        }
        let Opened {
            devices,
            paths,
            seen,
        } = self.open_members(devices, import, &name, warnings).await?;
        let options = ashlar_engine::Import {
            array: Some(wanted),
            degraded: import.degraded,
            read_only: import.read_only,
            settings: self.settings_for_one_more().await,
        };
        let given: Vec<&str> = paths.iter().map(String::as_str).collect();
        let array = Array::import(&self.rt, devices, options)
            .await
            .map_err(|error| {
                let failure = explain(&error, &given);
                Failure {
                    text: format!("array {name}: {failure}"),
                    ..failure
                }
            })?;
        let member = Rc::new(Member {
            seen,
            ..Member::new(array, paths, import.read_only)
        });
        let count = member.devices.len();
        self.tell(
            &name,
            "imported",
            None,
            format!("imported with {count} devices"),
        );
        let frontends = self.frontends_to_restore(&member).await;
        // The list is a cache; the array is open, and its volumes are waited for.
        if let Err(failure) = self.insert(member.clone()) {
            warnings.push(failure.text);
        }
        self.restore_frontends(&member, frontends, warnings).await;
        Ok(member)
    }

    /// Opens the devices of array `name`. Without `--degraded` none may be left out that is there.
    async fn open_members(
        &self,
        devices: Devices,
        import: &Import,
        name: &str,
        warnings: &mut Vec<String>,
    ) -> Result<Opened, Failure> {
        let access = if import.read_only {
            Access::Look
        } else {
            Access::Exclusive
        };
        let mut opened = Opened::default();
        let mut last = None;
        let patience = self.rt.now() + BUSY_WAIT;
        for (path, label) in devices {
            let (uuid, at) = (uuid_text(&label.device_uuid), path.display().to_string());
            self.note_path(&uuid, &at);
            match self.open_when_free(&path, access, patience).await {
                Ok(device) => {
                    opened.devices.push(device);
                    opened.paths.push(at.clone());
                    opened.seen.insert(uuid, at);
                }
                // It is there: going on without would leave it behind for good, and cost a loss
                // the array may not have to spare. Whoever has it may be writing to it, too.
                Err(failure) if failure.kind != Kind::NotFound && !import.degraded => {
                    return Err(without(name, &failure));
                }
                Err(failure) => {
                    warnings.push(failure.text.clone());
                    last = Some(failure);
                }
            }
        }
        if opened.devices.is_empty() {
            return Err(last.unwrap_or_else(|| {
                Failure::broken(format!(
                    "no device of array {name} can be opened; the log says why"
                ))
            }));
        }
        Ok(opened)
    }

    /// Opens a device; one that is in use is waited for, up to the moment `patience`.
    pub(crate) async fn open_when_free(
        &self,
        path: &Path,
        access: Access,
        patience: ashlar_rt::Nanos,
    ) -> Result<DeviceRef, Failure> {
        loop {
            match self.opener.open(path, access).await {
                Err(failure) if failure.kind == Kind::Refused && self.rt.now() < patience => {
                    self.rt.sleep(BUSY_PAUSE).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// Starts the arrays of the last run; what cannot be started is kept, with the reason.
    pub(crate) async fn restore(self: &Rc<Host>, mut left: Vec<Known>) {
        let untried = |known: &Known| (known.clone(), NOT_TRIED.to_string());
        self.waiting.borrow_mut().extend(left.iter().map(untried));
        let patience = self.rt.now() + DEVICES_WAIT;
        let mut told = false;
        loop {
            let last = self.rt.now() >= patience;
            let mut incomplete = Vec::new();
            for known in left {
                let (devices, closed) = self.members_of(&known).await;
                if last || complete(&devices) {
                    self.manager
                        .wait_longer(RESTORE_SECONDS, &format!("{}: importing", known.name));
                    let outcome = self.restore_one(&known, devices, &closed).await;
                    if let Err(failure) = outcome {
                        let text = format!("not imported: {failure}");
                        self.tell(&known.name, "not-imported", None, text);
                        self.keep_waiting(&known, &failure.text);
                    }
                    continue;
                }
                let newest = devices.iter().map(|(_, l)| l).max_by_key(|l| l.generation);
                let all = newest.map_or(known.devices.len(), |l| l.counted.len());
                let line = format!("{WAITING}; {} of {all} are here", devices.len());
                if !told {
                    tracing::warn!(
                        array = known.name,
                        seconds = DEVICES_WAIT / SECOND,
                        "{line}"
                    );
                }
                self.keep_waiting(&known, &line);
                let seconds = DEVICES_WAIT / SECOND + RESTORE_SECONDS;
                self.manager
                    .wait_longer(seconds, &format!("{}: {line}", known.name));
                incomplete.push(known);
            }
            if incomplete.is_empty() {
                return;
            }
            (left, told) = (incomplete, true);
            self.rt.sleep(DEVICES_PAUSE).await;
        }
    }

    /// Notes why a known array is not imported.
    fn keep_waiting(&self, known: &Known, why: &str) {
        for (other, reason) in self.waiting.borrow_mut().iter_mut() {
            if other.uuid == known.uuid {
                why.clone_into(reason);
            }
        }
    }

    async fn restore_one(
        self: &Rc<Host>,
        known: &Known,
        devices: Devices,
        closed: &[(PathBuf, Failure)],
    ) -> Result<(), Failure> {
        if devices.is_empty() {
            if let Some((_, failure)) = closed.first() {
                return Err(failure.clone());
            }
            return Err(Failure::not_found(
                "none of its devices is at its last path; 'ashlar import' searches for them, with --scan DIR \
                 also among files",
            ));
        }
        let import = Import {
            read_only: known.read_only,
            ..Import::default()
        };
        let mut warnings = Vec::new();
        let member = self
            .import_devices(&known.uuid, (devices, closed), &import, &mut warnings)
            .await?;
        for warning in &warnings {
            tracing::warn!(array = known.name, "{warning}");
        }
        let array = member.array.clone();
        self.rt.spawn(async move {
            let _ = array.merge().await; // one that is read-only, or has stopped, has none
        });
        Ok(())
    }

    /// `export`: stops what is served, closes the array and forgets it, also one that has stopped by
    /// itself; one that could not be imported is only forgotten.
    ///
    /// # Errors
    /// If a client still uses a volume, or the array cannot be closed.
    pub(crate) async fn close(self: &Rc<Host>, name: &str) -> Result<(), Failure> {
        if !self.arrays.borrow().contains_key(name) {
            return self.forget(name);
        }
        let member = self.member(name)?;
        self.stop_frontends(&member, None, None, false).await?;
        self.status_of(&member).await; // what could not be read is remembered
        match member.array.export().await {
            Ok(()) => {}
            Err(error @ ashlar_engine::Error::Closed) => {
                tracing::warn!(array = name, "stopped before it was exported: {error}");
            }
            Err(error) => return Err(failure_of(error)),
        }
        self.remove(name)?;
        // What it took, which the allocator would keep; its tasks let go of it a moment later.
        let rt = self.rt.clone();
        self.rt.spawn(async move {
            rt.sleep(ashlar_rt::SECOND).await;
            ashlar_rt::give_back_memory();
        });
        Ok(())
    }

    /// Closes every array for the end of the process; the state file keeps them.
    pub(crate) async fn close_all(self: &Rc<Host>) {
        if self.frontends.has_kernel_devices() {
            self.write_out().await;
        }
        let members: Vec<Rc<Member>> = self.arrays.borrow().values().cloned().collect();
        for member in members {
            let name = member.array.name();
            let stopped = self.frontends.stop(&name, None, None, true);
            match self.unless_hurried(stopped).await {
                Some(Ok(stopped)) => {
                    for line in stopped.left {
                        tracing::warn!(array = name, "{line}");
                    }
                }
                Some(Err((_, failure))) => tracing::warn!(array = name, "{failure}"),
                // What its clients still ask is refused once it is being closed.
                None => tracing::warn!(array = name, "its clients are disconnected"),
            }
            self.status_of(&member).await; // what could not be read is remembered
            match member.array.export().await {
                Ok(()) => tracing::info!(array = name, "closed"),
                Err(error) => tracing::error!(array = name, %error, "not closed cleanly"),
            }
            self.record_events(&member);
            self.arrays.borrow_mut().remove(&name);
        }
    }
}

/// How long the kernel may take to write out what file systems on our devices hold.
const WRITE_OUT: u64 = 30 * SECOND;

impl Host {
    /// Has the kernel write out its file systems, which may stay mounted on devices that end now.
    /// On a thread of its own: what it writes comes back to this one.
    pub(crate) async fn write_out(&self) {
        let sync = on_thread(rustix::fs::sync);
        let sync = self.unless_hurried(sync);
        if self.rt.timeout(WRITE_OUT, sync).await.is_none() {
            tracing::warn!("the kernel did not write out all file systems in time");
        }
    }
}
