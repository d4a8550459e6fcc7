//! Starting and closing arrays.
//!
//! **Invariants**: an array's frontends are stopped before it is closed; of two arrays of one name one is open.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use ashlar_device::DeviceRef;
use ashlar_engine::status::ArrayStatus;
use ashlar_engine::{Array, Waits, uuid_text};
use ashlar_rt::SECOND;

use crate::api::{Import, ImportReply};
use crate::daemon::devices::check_name;
use crate::daemon::find::{Devices, Seen, complete, copies, counted, counts, name_of, names};
use crate::daemon::host::{Host, Member, explain, failure_of};
use crate::daemon::missing::not_here;
use crate::daemon::open::{Access, on_thread};
use crate::daemon::stopping::and_left;
use crate::failure::{Failure, Kind};
use crate::view;

/// How long an import waits for devices that are in use. A daemon killed just now still holds its
/// devices until the kernel has ended what its rings had in flight, and must: a write that lands
/// after the next import would change what that import has read.
const BUSY_WAIT: ashlar_rt::Nanos = 10 * ashlar_rt::SECOND;
const BUSY_PAUSE: ashlar_rt::Nanos = 100 * ashlar_rt::MILLISECOND;

/// How long the answer to `import` waits until what only the journal has is merged, so that the status told with it
/// and after it says what volumes hold. They are served meanwhile.
const MERGE_WAIT: ashlar_rt::Nanos = 5 * SECOND;

/// The devices of an array that were opened for its import.
#[derive(Default)]
struct Opened {
    devices: Vec<DeviceRef>,
    /// Their paths, in the same order.
    paths: Vec<String>,
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
                let name = name_of(&devices);
                let imported = async {
                    self.check_not_here(&uuid)?;
                    self.check_complete(&uuid, &devices, &import)?;
                    let given = (devices, &closed[..]);
                    self.import_devices(&uuid, given, &import, &mut reply.warnings)
                        .await
                };
                match imported.await {
                    Ok(member) => reply.imported.push(self.merged_status_of(&member).await),
                    Err(failure) => reply.failed.push(format!("{name}: {failure}")),
                }
            }
            return Ok(reply);
        };
        if let Some(member) = self.imported(wanted) {
            let name = member.array.name();
            if let Some(new) = import.new_name.as_ref().filter(|new| **new != name) {
                return Err(Failure::refused(format!(
                    "array {name} is already imported; 'ashlar export {name}', then import it as {new}"
                )));
            }
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
        let mut matching = found
            .into_iter()
            .filter(|(uuid, devices)| uuid == wanted || names(devices).contains(&wanted[..]));
        let Some((uuid, devices)) = matching.next() else {
            return Err(Failure::not_found(format!(
                "no device of an array {wanted} was found; give --scan DIR to search files too; 'ashlar import' \
                 lists the arrays found"
            )));
        };
        if let Some((other, _)) = matching.next() {
            return Err(Failure::refused(format!(
                "two arrays are named {wanted}: {uuid} and {other}; import one by its UUID, and the other by \
                 'ashlar import UUID NEWNAME'"
            )));
        }
        drop(matching);
        self.check_not_here(&uuid)?;
        self.check_complete(&uuid, &devices, &import)?;
        let member = self
            .import_devices(&uuid, (devices, &closed), &import, &mut reply.warnings)
            .await?;
        reply.imported.push(self.merged_status_of(&member).await);
        Ok(reply)
    }

    /// Refuses what was found of an array that is open: a device that is back, or a copy of one.
    fn check_not_here(&self, uuid: &str) -> Result<(), Failure> {
        let Some(member) = self.imported(uuid) else {
            return Ok(());
        };
        let name = member.array.name();
        Err(Failure::refused(format!(
            "array {name} ({uuid}) is already imported, and more devices of it were found: one that is back is taken in \
             by 'ashlar online {name} PATH', a copy of one is not ('ashlar device scan' lists them)"
        )))
    }

    /// The open array of this name or UUID.
    pub(super) fn imported(&self, wanted: &str) -> Option<Rc<Member>> {
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

    pub(super) async fn import_devices(
        self: &Rc<Host>,
        uuid: &str,
        (devices, closed): (Devices, &[(PathBuf, Failure)]),
        import: &Import,
        warnings: &mut Vec<String>,
    ) -> Result<Rc<Member>, Failure> {
        let (mut name, wanted) = (name_of(&devices), devices[0].1.array_uuid);
        self.check_name_is_free(uuid, &devices, import)?;
        if let Some(line) = copies(&devices).into_iter().next() {
            return Err(Failure::refused(line));
        }
        // A device where one was that is not here, which may still be it.
        let places = self.places_of_missing(uuid, &devices);
        let shut = closed.iter().find(|(path, _)| places.contains(path));
        if let Some((_, failure)) = shut
            && !import.degraded
        {
            return Err(without(&name, failure));
        }
        let missing = self.missing(&devices).await;
        let (here, counted) = counts(&devices);
        let Opened { devices, paths } = self.open_members(devices, import, &name, warnings).await?;
        let options = ashlar_engine::Import {
            array: Some(wanted),
            name: import.new_name.clone(),
            degraded: import.degraded,
            read_only: import.read_only,
            take_over: import.take_over,
            watched: import.watched.0.get(uuid).cloned().transpose()?,
            waits: Waits::default(),
            settings: self.settings_for_one_more().await,
        };
        let given: Vec<&str> = paths.iter().map(String::as_str).collect();
        let array = Array::import(&self.rt, devices, options)
            .await
            .map_err(|error| {
                let failure = explain(&error, &given);
                let away = not_here(&missing);
                Failure {
                    text: format!("array {name}: {failure}{away}"),
                    ..failure
                }
            })?;
        let member = Rc::new(Member::new(array, paths, import.read_only));
        let mut text = match missing.is_empty() {
            true => format!("imported with {}", view::count(here, "device")),
            false => {
                let of = view::count(counted, "device");
                let text = format!("imported with {here} of {of}{}", not_here(&missing));
                warnings.push(format!("array {name}: {text}"));
                text
            }
        };
        let was = std::mem::replace(&mut name, member.array.name());
        if was != name {
            text += &format!("; it was called {was} before");
        }
        self.tell(&name, "imported", None, text);
        let frontends = self.frontends_to_restore(&member).await;
        // The list is a cache; the array is open, and its volumes are waited for.
        if let Err(failure) = self.insert(member.clone()) {
            warnings.push(failure.text);
        }
        self.restore_frontends(&member, frontends, warnings).await;
        Ok(member)
    }

    /// Refuses an import without devices that the start of the daemon still waits for.
    fn check_complete(
        &self,
        uuid: &str,
        devices: &Devices,
        import: &Import,
    ) -> Result<(), Failure> {
        let waits = match import.degraded || complete(devices) {
            true => None,
            false => self.still_waits(uuid),
        };
        let name = name_of(devices);
        waits.map_or(Ok(()), |line| {
            Err(Failure::refused(format!(
                "array {name}: {line}; 'ashlar wait {name}' waits for it, --degraded imports it without them"
            )))
        })
    }

    /// Refuses an import under a name that another array has here.
    fn check_name_is_free(
        &self,
        uuid: &str,
        devices: &Devices,
        import: &Import,
    ) -> Result<(), Failure> {
        let other = |name: &str| {
            let arrays = self.arrays.borrow();
            arrays.get(name).map(|m| uuid_text(&m.array.uuid()))
        };
        let Some(new) = import.new_name.as_deref() else {
            let taken = names(devices)
                .into_iter()
                .find_map(|n| Some((n, other(n)?)));
            return taken.map_or(Ok(()), |(name, other)| {
                Err(Failure::refused(format!(
                    "another array named {name} ({other}) is imported; 'ashlar import {uuid} NEWNAME' imports \
                     this one under another name"
                )))
            });
        };
        check_name("an array", new)?;
        if import.read_only {
            return Err(Failure::invalid(
                "an import that is read-only writes no new name; leave out --read-only, or the name",
            ));
        }
        let waiting = self.waiting.borrow();
        let known = waiting.iter().any(|(k, _)| k.name == new && k.uuid != uuid);
        if known || other(new).is_some() {
            return Err(Failure::refused(format!(
                "an array {new} exists here already; choose another name"
            )));
        }
        Ok(())
    }

    /// Opens the devices of array `name`. Without `--degraded` none may be left out that is there and in use: a hot spare,
    /// or one that failed, may be.
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
        let counted = counted(&devices);
        for (path, label) in devices {
            let (uuid, at) = (uuid_text(&label.device_uuid), path.display().to_string());
            let in_use = counted.contains(&label.device_uuid);
            self.note_path(&uuid, &at);
            match self.open_when_free(&path, access, patience).await {
                Ok(device) => {
                    opened.devices.push(device);
                    opened.paths.push(at);
                }
                // It is there: going on without would leave it behind for good, and cost a loss
                // the array may not have to spare. Whoever has it may be writing to it, too.
                Err(failure) if in_use && failure.kind != Kind::NotFound && !import.degraded => {
                    return Err(without(name, &failure));
                }
                Err(failure) => {
                    warnings.push(match in_use {
                        true => failure.text.clone(),
                        false => format!(
                            "array {name} is imported without device {}, which was not in use: {failure}",
                            label.index
                        ),
                    });
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

    /// `export`: stops what is served, closes the array and forgets it, also one that has stopped by
    /// itself; one that could not be imported is only forgotten. What is to be known beside that, a line each.
    ///
    /// # Errors
    /// If a client still uses a volume, or the array cannot be closed.
    pub(crate) async fn close(self: &Rc<Host>, name: &str) -> Result<Vec<String>, Failure> {
        if !self.arrays.borrow().contains_key(name) {
            return self.forget(name).map(|()| Vec::new());
        }
        let member = self.member(name)?;
        let stopped = self.stop_frontends(&member, None, None, false).await?;
        for line in &stopped.left {
            tracing::warn!(array = name, "{line}");
        }
        self.status_of(&member).await; // what could not be read is remembered
        match member.array.export().await {
            Ok(()) => {}
            Err(error @ ashlar_engine::Error::Closed) => {
                tracing::warn!(array = name, "stopped before it was exported: {error}");
            }
            Err(error) => return Err(and_left(failure_of(error), &stopped.left)),
        }
        let mut left = stopped.left;
        if let Err(failure) = self.remove(name) {
            left.push(format!(
                "{name} is exported, but the next start of the daemon may import it again: {failure}"
            ));
        }
        // What it took, which the allocator would keep; its tasks let go of it a moment later.
        let rt = self.rt.clone();
        self.rt.spawn(async move {
            rt.sleep(ashlar_rt::SECOND).await;
            ashlar_rt::give_back_memory();
        });
        Ok(left)
    }

    /// Closes every array for the end of the process; the state file keeps them.
    pub(crate) async fn close_all(self: &Rc<Host>) {
        if self.frontends.has_kernel_devices() {
            self.write_out().await;
        }
        let members: Vec<Rc<Member>> = self.arrays.borrow().values().cloned().collect();
        for member in members {
            let name = member.array.name();
            let stopped = self.frontends.stop(&member.array, None, None, true);
            match self.unless_hurried(stopped).await {
                Some(Ok(stopped)) => {
                    self.tell_lost(&member, &stopped);
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
