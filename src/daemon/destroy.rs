//! Destroying an array: no device of it that is here says any more that it belongs to one.
//!
//! **Invariants**: a device is wiped only while this process has it alone, and only if its superblock,
//! read then, names the array. Devices that had failed are wiped too, wherever they are now. A second
//! device with the same identity is a copy, maybe somebody's backup, and left as it is. Whatever of the
//! array is not wiped is named.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ashlar_engine::status::DeviceStatus;
use ashlar_engine::{Error, probe, uuid_text, wipe};
use ashlar_rt::SECOND;

use crate::api::DestroyReply;
use crate::daemon::find::Seen;
use crate::daemon::host::{Host, failure_of};
use crate::daemon::open::Access;
use crate::daemon::stopping::and_left;
use crate::failure::Failure;

/// How long a device is waited for that somebody has open, as udev and its like do for a moment.
const BUSY_WAIT: ashlar_rt::Nanos = 2 * SECOND;

impl Host {
    /// `destroy`.
    ///
    /// # Errors
    /// If it is read-only, has stopped, or a client uses a volume.
    pub(crate) async fn destroy(
        self: &Rc<Host>,
        name: &str,
        force: bool,
    ) -> Result<DestroyReply, Failure> {
        let member = self.member(name)?;
        if !member.array.is_open() {
            return Err(failure_of(Error::Closed)); // nothing can be wiped
        }
        if member.read_only {
            return Err(failure_of(Error::ReadOnly));
        }
        if !force {
            self.frontends.check_no_clients(name, None, None).await?;
        }
        let table = member.array.status().await.devices;
        let stopped = self.stop_frontends(&member, None, None, false).await?;
        match member.array.destroy().await {
            // What could not be wiped is tried again below.
            Ok(()) | Err(Error::Device { .. }) => {}
            Err(error) => return Err(and_left(failure_of(error), &stopped.left)),
        }
        self.arrays.borrow_mut().remove(name); // its devices are looked at from here on
        let uuid = uuid_text(&member.array.uuid());
        let paths = member.devices.borrow().clone();
        let not_wiped = self.wipe_rest(&uuid, &table, &paths).await;
        for line in &not_wiped {
            tracing::warn!(array = name, "{line}");
        }
        self.forget_paths(&member.array);
        let removed = self.remove(name);
        removed.map_err(|failure| and_left(failure, &not_wiped))?;
        Ok(DestroyReply {
            destroyed: name.to_string(),
            not_wiped,
        })
    }

    /// Wipes what still says that it belongs to the array; a line for each device that is left.
    async fn wipe_rest(
        self: &Rc<Host>,
        array: &str,
        table: &[DeviceStatus],
        paths: &[String],
    ) -> Vec<String> {
        let mut seen = self.look_for(table, paths).await;
        let mut by_device: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
        for (path, label) in seen.found.remove(array).unwrap_or_default() {
            let device = uuid_text(&label.device_uuid);
            by_device.entry(device).or_default().push(path);
        }
        let mut lines = Vec::new();
        for device in table {
            let here = by_device.remove(&device.uuid).unwrap_or_default();
            let was_used = device.is_held();
            if here.is_empty()
                && let Some(why) = not_here(device, was_used, &seen)
            {
                lines.push(format!("{} was not wiped: {why}", said(device)));
            }
            let own = here.iter().find(|path| **path == Path::new(&device.path));
            let own = own.or(match &here[..] {
                [only] if !was_used => Some(only),
                _ => None,
            });
            if let Some(own) = own
                && let Err(failure) = self.wipe_one(array, own).await
            {
                lines.push(format!("{} was not wiped: {failure}", said(device)));
            }
            for path in here.iter().filter(|path| Some(*path) != own) {
                // Another path to what has been wiped is no copy.
                let again = self.look_at(vec![path.clone()]).await;
                if again.found.contains_key(array) {
                    lines.push(format!(
                        "{} is a copy of device {} and was not wiped: remove it or create over it with --force, \
                         unless you need it",
                        path.display(),
                        device.index
                    ));
                }
            }
        }
        for path in by_device.into_values().flatten() {
            if let Err(failure) = self.wipe_one(array, &path).await {
                lines.push(format!("{} was not wiped: {failure}", path.display()));
            }
        }
        lines
    }

    /// Looks for devices of the array: where they were, and in all places where they may be now.
    async fn look_for(self: &Rc<Host>, table: &[DeviceStatus], paths: &[String]) -> Seen {
        let known = table.iter().map(|d| &d.path).filter(|p| !p.is_empty());
        let mut paths: Vec<PathBuf> = paths.iter().chain(known).map(PathBuf::from).collect();
        paths.sort();
        paths.dedup();
        let beside = self.paths_beside(paths.clone()).await;
        paths.extend(beside.unwrap_or_default());
        paths.sort();
        paths.dedup();
        self.look_at(paths).await
    }

    async fn wipe_one(&self, array: &str, path: &Path) -> Result<(), Failure> {
        let patience = self.rt.now() + BUSY_WAIT;
        let device = self
            .open_when_free(path, Access::Exclusive, patience)
            .await?;
        let faulty = |fault: &dyn std::fmt::Display| {
            Failure::broken(format!(
                "{fault}; check the device, or take it out of the machine"
            ))
        };
        match probe(&device).await {
            Ok(Some(label)) if uuid_text(&label.array_uuid) == array => {
                wipe(&device).await.map_err(|fault| faulty(&fault))
            }
            Ok(_) => Ok(()), // somebody else was faster
            Err(error) => Err(Failure::broken(error.to_string())),
        }
    }
}

/// Why a device with nothing of the array at hand may hold it all the same.
fn not_here(device: &DeviceStatus, was_used: bool, seen: &Seen) -> Option<String> {
    let at = Path::new(&device.path);
    let shut = seen.unreadable.iter().chain(&seen.closed);
    if let Some((_, failure)) = shut.clone().find(|(path, _)| path == at) {
        return Some(failure.text.clone());
    }
    let gone = device.path.is_empty() || !at.exists();
    (!was_used && gone)
        .then(|| "it is missing; if it is connected again, it still names this array".to_string())
}

fn said(device: &DeviceStatus) -> String {
    if device.path.is_empty() {
        format!("device {} (UUID {})", device.index, device.uuid)
    } else {
        format!("device {} ({})", device.index, device.path)
    }
}
