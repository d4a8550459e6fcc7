//! Making, finding, starting, closing and destroying arrays.
//!
//! **Invariants**: nothing is written to a device before every device was checked and its signature
//! was clean or overridden; whatever a failing `create` made is taken back; an array's frontends
//! are stopped before it is closed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ashlar_device::{DeviceRef, MemDevice};
use ashlar_engine::{Array, Label, probe, uuid_text};
use ashlar_layout::Layout;
use ashlar_rt::{SECOND, oneshot};

use tracing::Instrument;

use crate::api::{
    Attached, Create, CreateReply, Found, Import, ImportReply, ImportableReply, VolumeCreate,
};
use crate::daemon::devices::{self, Candidate};
use crate::daemon::frontends::check_address;
use crate::daemon::host::{Host, Member, broken, explain};
use crate::daemon::open::Access;
use crate::daemon::state::Known;
use crate::daemon::volumes::make_volume;
use crate::failure::{Failure, Kind};

/// Devices of one array that are not in use, by UUID.
type FoundDevices = BTreeMap<String, Vec<(PathBuf, Label)>>;

/// How long an import waits for devices that are in use. A daemon killed just now still holds its
/// devices until the kernel has ended what its rings had in flight, and must: a write that lands
/// after the next import would change what that import has read.
const BUSY_WAIT: ashlar_rt::Nanos = 10 * ashlar_rt::SECOND;
const BUSY_PAUSE: ashlar_rt::Nanos = 100 * ashlar_rt::MILLISECOND;

impl Host {
    /// `create`.
    ///
    /// # Errors
    /// What stands against it; nothing is left behind then.
    pub(crate) async fn create(self: &Rc<Host>, create: Create) -> Result<CreateReply, Failure> {
        devices::check_name("an array", &create.array)?;
        if let Some((name, _)) = &create.volume {
            devices::check_name("a volume", name)?;
        }
        if let Some(how) = &create.attach {
            check_address(how)?;
        }
        self.check_unused_name(&create.array)?;
        let layout: Layout = create
            .layout
            .parse()
            .map_err(|e| Failure::invalid(format!("--layout {}: {e}", create.layout)))?;
        let count = u16::try_from(create.devices.len()).unwrap_or(u16::MAX);
        layout
            .resolve_with_spare(count, create.spare)
            .map_err(|e| {
                Failure::invalid(format!(
                    "--layout {} on {count} devices: {e}",
                    create.layout
                ))
            })?;
        let candidates = devices::check(&create.devices, create.file_bytes)?;
        let overwritten = self.check_free(&candidates, create.force).await?;
        let files: Vec<String> = candidates
            .iter()
            .filter(|c| c.to_make)
            .map(|c| c.path.display().to_string())
            .collect();
        // In memory first: what stands against it is known before a device is written to.
        let options = |host: &Host| engine_options(host, &create, layout, &candidates);
        let array = self.rehearse(options(self)?, &create, &candidates);
        let array = array.instrument(tracing::info_span!("rehearsal")).await?;
        if create.dry_run {
            let (files_made, dry_run) = (files, true);
            return Ok(CreateReply {
                dry_run,
                array,
                attached: None,
                files_made,
                overwritten,
            });
        }
        let made = devices::make_files(&candidates)?;
        match self.create_on(options(self)?, &create, &candidates).await {
            Ok((array, attached)) => Ok(CreateReply {
                dry_run: false,
                array,
                attached,
                files_made: files,
                overwritten,
            }),
            Err(failure) => {
                devices::remove_files(&made);
                Err(failure)
            }
        }
    }

    /// The same on devices in memory, of which only what is written takes room: what `-n` prints
    /// is what `create` would give.
    async fn rehearse(
        &self,
        options: ashlar_engine::Create,
        create: &Create,
        candidates: &[Candidate],
    ) -> Result<ashlar_engine::status::ArrayStatus, Failure> {
        let devices: Vec<DeviceRef> = candidates
            .iter()
            .map(|c| {
                let bytes = c.size_bytes / 4096 * 4096;
                Rc::new(MemDevice::new(&c.path.display().to_string(), bytes)) as DeviceRef
            })
            .collect();
        let given: Vec<&str> = candidates.iter().map(|c| c.given.as_str()).collect();
        let array = Array::create(&self.rt, devices, options)
            .await
            .map_err(|error| explain(&error, &given))?;
        let volume = match &create.volume {
            Some((name, size)) => make_volume(&array, &plain_volume(create, name, *size)).await,
            None => Ok(()),
        };
        let status = array.status().await;
        array.export().await.map_err(broken)?;
        volume.map(|()| status)
    }

    async fn create_on(
        self: &Rc<Host>,
        options: ashlar_engine::Create,
        create: &Create,
        candidates: &[Candidate],
    ) -> Result<(ashlar_engine::status::ArrayStatus, Option<Attached>), Failure> {
        let mut opened = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            opened.push(self.opener.open(&candidate.path, Access::Exclusive)?);
        }
        let given: Vec<&str> = candidates.iter().map(|c| c.given.as_str()).collect();
        let array = Array::create(&self.rt, opened, options)
            .await
            .map_err(|error| explain(&error, &given))?;
        let devices = candidates
            .iter()
            .map(|c| c.path.display().to_string())
            .collect();
        let member = Rc::new(Member {
            array: array.clone(),
            devices,
            read_only: false,
        });
        self.insert(member.clone())?;
        let finished = async {
            let Some((name, size)) = &create.volume else {
                return Ok(None);
            };
            make_volume(&array, &plain_volume(create, name, *size)).await?;
            match &create.attach {
                Some(how) => self.attach(&create.array, name, how).await.map(Some),
                None => Ok(None),
            }
        };
        match finished.await {
            Ok(attached) => Ok((self.status_of(&member).await, attached)),
            Err(failure) => {
                let _ = self.frontends.stop(&create.array, None, None, true).await;
                if let Err(error) = array.destroy().await {
                    tracing::warn!(array = create.array, %error, "a half-made array could not be destroyed");
                }
                self.remove(&create.array)?;
                Err(failure)
            }
        }
    }

    fn check_unused_name(&self, name: &str) -> Result<(), Failure> {
        let waiting = self
            .waiting
            .borrow()
            .iter()
            .any(|(known, _)| known.name == name);
        if self.arrays.borrow().contains_key(name) || waiting {
            return Err(Failure::refused(format!(
                "an array {name} is already here; choose another name"
            )));
        }
        Ok(())
    }

    /// Refuses devices that are in use or hold something; returns what would be overwritten.
    async fn check_free(
        &self,
        candidates: &[Candidate],
        force: bool,
    ) -> Result<Vec<String>, Failure> {
        let mut overwritten = Vec::new();
        for candidate in candidates.iter().filter(|c| !c.to_make) {
            let (given, path) = (&candidate.given, &candidate.path);
            if let Some(array) = self.user_of(path) {
                return Err(Failure::refused(format!(
                    "{given} belongs to array {array}, which is in use here; destroy that first or leave the device out"
                )));
            }
            let Some(signature) = self.signature_of(candidate).await? else {
                continue;
            };
            if !force {
                return Err(Failure::refused(format!(
                    "{given} holds {signature}; leave it out, or overwrite it with --force"
                )));
            }
            overwritten.push(format!("{given}: {signature}"));
        }
        Ok(overwritten)
    }

    async fn signature_of(&self, candidate: &Candidate) -> Result<Option<String>, Failure> {
        let device = self.opener.open(&candidate.path, Access::Exclusive)?;
        match probe(&device).await {
            Ok(Some(label)) => {
                return Ok(Some(format!(
                    "device {} of array {} ({})",
                    label.index,
                    label.array_name,
                    uuid_text(&label.array_uuid)
                )));
            }
            Err(ashlar_engine::Error::TwoDevices(_)) => {
                return Ok(Some("superblocks of two devices of an array".to_string()));
            }
            _ => {}
        }
        let found = ashlar_device::signature(&device).await;
        Ok(found.map(str::to_string))
    }

    /// The array of this daemon that a device belongs to.
    fn user_of(&self, path: &std::path::Path) -> Option<String> {
        let path = path.display().to_string();
        let arrays = self.arrays.borrow();
        let user = arrays
            .iter()
            .find(|(_, member)| member.devices.contains(&path));
        user.map(|(name, _)| name.clone())
    }

    /// `import` without an array: what could be started.
    ///
    /// # Errors
    /// If a directory cannot be scanned.
    pub(crate) async fn importable(&self, scan: &[String]) -> Result<ImportableReply, Failure> {
        let (found, unreadable) = self.find(scan).await?;
        let importable = found
            .into_iter()
            .filter_map(|(uuid, devices)| {
                let newest = devices
                    .iter()
                    .map(|(_, label)| label)
                    .max_by_key(|l| l.generation)?;
                Some(Found {
                    name: newest.array_name.clone(),
                    uuid,
                    layout: newest.layout.clone(),
                    devices_total: newest.devices_total,
                    generation: newest.generation,
                    devices: devices
                        .iter()
                        .map(|(path, _)| path.display().to_string())
                        .collect(),
                })
            })
            .collect();
        Ok(ImportableReply {
            importable,
            unreadable,
        })
    }

    async fn find(&self, dirs: &[String]) -> Result<(FoundDevices, Vec<String>), Failure> {
        let mut paths = devices::scan(dirs)?;
        for (known, _) in self.waiting.borrow().iter() {
            paths.extend(
                known
                    .devices
                    .iter()
                    .map(PathBuf::from)
                    .filter(|path| path.exists()),
            );
        }
        paths.sort();
        paths.dedup();
        let mut found = FoundDevices::new();
        let mut unreadable = Vec::new();
        for path in paths {
            if self.user_of(&path).is_some() {
                continue;
            }
            match self.opener.open(&path, Access::Look) {
                Ok(device) => match probe(&device).await {
                    Ok(Some(label)) => {
                        found
                            .entry(uuid_text(&label.array_uuid))
                            .or_default()
                            .push((path, label));
                    }
                    Ok(None) => {}
                    Err(error) => unreadable.push(format!("{}: {error}", path.display())),
                },
                Err(failure) => unreadable.push(failure.text),
            }
        }
        Ok((found, unreadable))
    }

    /// `import`.
    ///
    /// # Errors
    /// Why the array cannot be started.
    pub(crate) async fn import(self: &Rc<Host>, import: Import) -> Result<ImportReply, Failure> {
        let (found, _) = self.find(&import.scan).await?;
        let mut reply = ImportReply {
            imported: Vec::new(),
            failed: Vec::new(),
            warnings: Vec::new(),
        };
        let Some(wanted) = &import.array else {
            for (uuid, devices) in found {
                let name = devices[0].1.array_name.clone();
                match self
                    .import_devices(&uuid, devices, &import, &mut reply.warnings)
                    .await
                {
                    Ok(member) => reply.imported.push(self.status_of(&member).await),
                    Err(failure) => reply.failed.push(format!("{name}: {failure}")),
                }
            }
            return Ok(reply);
        };
        if self.arrays.borrow().contains_key(wanted) {
            return Err(Failure::refused(format!(
                "array {wanted} is already imported"
            )));
        }
        let mut matching = found.into_iter().filter(|(uuid, devices)| {
            uuid == wanted || devices.iter().any(|(_, label)| label.array_name == *wanted)
        });
        let Some((uuid, devices)) = matching.next() else {
            return Err(Failure::not_found(format!(
                "no device of an array {wanted} found; give --scan DIR for files, 'ashlar import' lists what is there"
            )));
        };
        if let Some((other, _)) = matching.next() {
            return Err(Failure::refused(format!(
                "two arrays are named {wanted}: {uuid} and {other}; import one by its UUID"
            )));
        }
        drop(matching);
        let member = self
            .import_devices(&uuid, devices, &import, &mut reply.warnings)
            .await?;
        reply.imported.push(self.status_of(&member).await);
        Ok(reply)
    }

    async fn import_devices(
        self: &Rc<Host>,
        uuid: &str,
        devices: Vec<(PathBuf, Label)>,
        import: &Import,
        warnings: &mut Vec<String>,
    ) -> Result<Rc<Member>, Failure> {
        let name = devices[0].1.array_name.clone();
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
        let access = if import.read_only {
            Access::Look
        } else {
            Access::Exclusive
        };
        let (mut opened, mut paths) = (Vec::new(), Vec::new());
        let mut last = None;
        let patience = self.rt.now() + BUSY_WAIT;
        for (path, _) in devices {
            match self.open_when_free(&path, access, patience).await {
                Ok(device) => {
                    opened.push(device);
                    paths.push(path.display().to_string());
                }
                // Whoever has it may be writing to it: going on without would leave it behind, and
                // cost a loss the array may not have to spare.
                Err(failure) if failure.kind == Kind::Refused && !import.degraded => {
                    return Err(Failure::refused(format!(
                        "array {name}: {failure}; '--degraded' imports without it"
                    )));
                }
                Err(failure) => {
                    warnings.push(failure.text.clone());
                    last = Some(failure);
                }
            }
        }
        if opened.is_empty() {
            return Err(last.unwrap_or_else(|| {
                Failure::broken(format!("no device of array {name} can be opened"))
            }));
        }
        let options = ashlar_engine::Import {
            degraded: import.degraded,
            read_only: import.read_only,
            settings: self.settings.clone(),
        };
        let given: Vec<&str> = paths.iter().map(String::as_str).collect();
        let array = Array::import(&self.rt, opened, options)
            .await
            .map_err(|error| {
                let failure = explain(&error, &given);
                Failure {
                    text: format!("array {name}: {failure}"),
                    ..failure
                }
            })?;
        let read_only = import.read_only;
        let member = Rc::new(Member {
            array,
            devices: paths,
            read_only,
        });
        self.insert(member.clone())?;
        self.restore_frontends(&member, warnings).await;
        Ok(member)
    }

    /// Opens a device; one that is in use is waited for, up to the moment `patience`.
    async fn open_when_free(
        &self,
        path: &Path,
        access: Access,
        patience: ashlar_rt::Nanos,
    ) -> Result<DeviceRef, Failure> {
        loop {
            match self.opener.open(path, access) {
                Err(failure) if failure.kind == Kind::Refused && self.rt.now() < patience => {
                    self.rt.sleep(BUSY_PAUSE).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// Starts the arrays of the last run; what cannot be started is kept, with the reason.
    pub(crate) async fn restore(self: &Rc<Host>) {
        for known in self.known() {
            self.waiting
                .borrow_mut()
                .push((known, "not tried yet".to_string()));
        }
        for device in ashlar_serve::loopdev::clear_stale().await {
            tracing::info!(device = %device.display(), "a dead daemon's loop device was cleared");
        }
        let known: Vec<Known> = self
            .waiting
            .borrow()
            .iter()
            .map(|(k, _)| k.clone())
            .collect();
        for known in known {
            let outcome = self.restore_one(&known).await;
            let mut waiting = self.waiting.borrow_mut();
            match outcome {
                Ok(()) => waiting.retain(|(other, _)| other.uuid != known.uuid),
                Err(failure) => {
                    tracing::error!(array = known.name, "not imported: {failure}");
                    for (other, reason) in waiting.iter_mut() {
                        if other.uuid == known.uuid {
                            reason.clone_from(&failure.text);
                        }
                    }
                }
            }
        }
    }

    async fn restore_one(self: &Rc<Host>, known: &Known) -> Result<(), Failure> {
        let mut devices = Vec::new();
        for path in &known.devices {
            let path = PathBuf::from(path);
            let Ok(device) = self.opener.open(&path, Access::Look) else {
                continue;
            };
            if let Ok(Some(label)) = probe(&device).await
                && uuid_text(&label.array_uuid) == known.uuid
            {
                devices.push((path, label));
            }
        }
        if devices.is_empty() {
            return Err(Failure::not_found(
                "none of its devices is where it was; 'ashlar import' looks for them, with --scan DIR for files",
            ));
        }
        let import = Import {
            read_only: known.read_only,
            ..Import::default()
        };
        let mut warnings = Vec::new();
        let member = self
            .import_devices(&known.uuid, devices, &import, &mut warnings)
            .await?;
        for warning in &warnings {
            tracing::warn!(array = known.name, "{warning}");
        }
        tracing::info!(
            array = known.name,
            devices = member.devices.len(),
            "imported"
        );
        Ok(())
    }

    /// `export`: stops what is served, closes the array and forgets it; also one that has stopped by
    /// itself.
    ///
    /// # Errors
    /// If a client still uses a volume, or the array cannot be closed.
    pub(crate) async fn close(self: &Rc<Host>, name: &str) -> Result<(), Failure> {
        let member = self.member(name)?;
        self.stop_frontends(&member, None, None, false).await?;
        match member.array.export().await {
            Ok(()) => {}
            Err(error @ ashlar_engine::Error::Closed) => {
                tracing::warn!(array = name, "had stopped by itself: {error}");
            }
            Err(error) => return Err(broken(error)),
        }
        self.remove(name)
    }

    /// `destroy`.
    ///
    /// # Errors
    /// As [`Host::close`].
    pub(crate) async fn destroy(self: &Rc<Host>, name: &str) -> Result<(), Failure> {
        let member = self.member(name)?;
        if !member.array.is_open() {
            return Err(broken(ashlar_engine::Error::Closed)); // nothing can be wiped
        }
        if member.read_only {
            return Err(broken(ashlar_engine::Error::ReadOnly));
        }
        self.stop_frontends(&member, None, None, false).await?;
        member.array.destroy().await.map_err(broken)?;
        self.remove(name)
    }

    /// Closes every array for the end of the process; the state file keeps them.
    pub(crate) async fn close_all(self: &Rc<Host>) {
        if self.frontends.has_kernel_devices() {
            self.write_out().await;
        }
        let members: Vec<Rc<Member>> = self.arrays.borrow().values().cloned().collect();
        for member in members {
            let name = member.array.name();
            if let Err((_, failure)) = self.frontends.stop(&name, None, None, true).await {
                tracing::warn!(array = name, "{failure}");
            }
            match member.array.export().await {
                Ok(()) => tracing::info!(array = name, "closed"),
                Err(error) => tracing::error!(array = name, %error, "not closed cleanly"),
            }
            self.arrays.borrow_mut().remove(&name);
        }
    }
}

/// How long the kernel may take to write out what file systems on our devices hold.
const WRITE_OUT: u64 = 30 * SECOND;

impl Host {
    /// Has the kernel write out its file systems, which may stay mounted on devices that end now.
    /// On a thread of its own: what it writes comes back to this one.
    async fn write_out(&self) {
        let (reply, done) = oneshot();
        let thread = std::thread::Builder::new().name("ashlar-sync".to_string());
        let started = thread.spawn(move || {
            rustix::fs::sync();
            reply.send(());
        });
        if started.is_ok() && self.rt.timeout(WRITE_OUT, done).await.is_none() {
            tracing::warn!("the kernel did not write out everything in time");
        }
    }
}

fn engine_options(
    host: &Host,
    create: &Create,
    layout: Layout,
    candidates: &[Candidate],
) -> Result<ashlar_engine::Create, Failure> {
    let strip_bytes = match create.strip_bytes {
        None => None,
        Some(bytes) if bytes.is_power_of_two() && (4096..=1 << 20).contains(&bytes) => {
            u32::try_from(bytes).ok()
        }
        Some(bytes) => {
            return Err(Failure::invalid(format!(
                "--strip {bytes}: a strip is a power of two from 4K to 1M"
            )));
        }
    };
    if let Some(bytes) = create.slot_bytes
        && !(bytes.is_power_of_two() && (64 << 10..=1 << 30).contains(&bytes))
    {
        return Err(Failure::invalid(format!(
            "--slot {bytes}: a slot is a power of two from 64K to 1G"
        )));
    }
    Ok(ashlar_engine::Create {
        name: create.array.clone(),
        layout,
        strip_bytes,
        slot_bytes: create.slot_bytes,
        spare: create.spare,
        domains: domains(create, candidates)?,
        settings: host.settings.clone(),
    })
}

/// One label per device, in the order of the devices.
fn domains(create: &Create, candidates: &[Candidate]) -> Result<Vec<String>, Failure> {
    if create.domains.is_empty() {
        return Ok(Vec::new());
    }
    let mut labels: BTreeMap<String, String> = BTreeMap::new();
    for (device, label) in &create.domains {
        let known = candidates.iter().any(|c| c.given == *device);
        if !known {
            return Err(Failure::invalid(format!(
                "--domain {device}={label}: {device} is not among the devices"
            )));
        }
        labels.insert(device.clone(), label.clone());
    }
    let label = |c: &Candidate| {
        labels.get(&c.given).cloned().ok_or_else(|| {
            Failure::invalid(format!(
                "{} has no --domain; give one for every device",
                c.given
            ))
        })
    };
    candidates.iter().map(label).collect()
}

fn plain_volume(create: &Create, name: &str, size_bytes: Option<u64>) -> VolumeCreate {
    VolumeCreate {
        array: create.array.clone(),
        volume: name.to_string(),
        size_bytes,
        thin: false,
        block_bytes: None,
        digest: None,
        write_cache: None,
    }
}
