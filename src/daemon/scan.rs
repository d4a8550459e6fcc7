//! `device scan`: all devices of this machine, what each holds, who uses it, which are free.
//!
//! **Invariants**: devices are only read; whether somebody has one open alone is tried, and let go at once; a device
//! that does not answer is listed as that, and keeps no other waiting. "Free" is what `create` takes without `--force`.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ashlar_engine::uuid_text;

use crate::api::{Hardware, ScanReply, Scanned, ScannedMember};
use crate::daemon::hardware;
use crate::daemon::holds::{Here, Holds};
use crate::daemon::host::Host;
use crate::daemon::open::Access;
use crate::daemon::users;
use crate::failure::{Failure, Kind};
use crate::seat::{is_node_of_own_disk, part_of_disk};

/// How many devices are looked at at a time.
const LOOKS: usize = 64;

/// What the system says of a device.
#[derive(Debug, Default)]
struct Facts {
    size_bytes: u64,
    /// The kernel's node of a partition in which a disk of ours has its device.
    of_own_disk: bool,
    user: Option<String>,
    unfit: Option<String>,
    hardware: Hardware,
}

impl Facts {
    fn of(path: &Path) -> Facts {
        let (sys, proc) = (Path::new("/sys"), Path::new("/proc"));
        let Ok(metadata) = std::fs::metadata(path) else {
            return Facts::default();
        };
        let block = metadata.file_type().is_block_device();
        let bytes = users::bytes_of(sys, &metadata).filter(|_| block);
        let protected = users::is_write_protected(sys, path);
        let unfit = protected.then(|| "write-protected".to_string());
        Facts {
            size_bytes: bytes.unwrap_or(metadata.len()),
            of_own_disk: block && is_node_of_own_disk(path),
            user: users::user_of(sys, proc, path),
            unfit: unfit.or_else(|| part_of_disk(path, &metadata).err()),
            hardware: hardware::of_path(sys, path).unwrap_or_default(),
        }
    }
}

impl Host {
    /// `device scan`.
    ///
    /// # Errors
    /// If a directory cannot be scanned.
    pub(super) async fn scan_devices(
        self: &Rc<Host>,
        dirs: &[String],
    ) -> Result<ScanReply, Failure> {
        let paths = self.paths_in(dirs.to_vec()).await?;
        let here = Rc::new(self.devices_here().await);
        let mut reply = ScanReply::default();
        // Some at a time: drives may have to spin up first.
        for some in paths.chunks(LOOKS) {
            let look = |path: &PathBuf| {
                let (host, path, here) = (self.clone(), path.clone(), here.clone());
                self.rt
                    .spawn(async move { host.scan_one(&path, &here).await })
            };
            let looks: Vec<_> = some.iter().map(look).collect();
            for look in looks {
                reply.devices.extend(look.await);
            }
        }
        Ok(reply)
    }

    /// What is at `path`; `None` if nothing is there, or a disk is that is listed by itself.
    async fn scan_one(&self, path: &Path, here: &[Here]) -> Option<Scanned> {
        let at = path.to_path_buf();
        let facts = match self.opener.ask(path, move || Facts::of(&at)).await {
            Ok(facts) => facts,
            Err(failure) => return Some(unanswered(path, failure)),
        };
        if facts.of_own_disk {
            return None;
        }
        let mut scanned = Scanned {
            path: path.display().to_string(),
            size_bytes: facts.size_bytes,
            unfit: facts.unfit,
            hardware: facts.hardware,
            ..Scanned::default()
        };
        if let Some(used) = here.iter().find(|here| here.is_at(path)) {
            scanned.holds = vec![format!(
                "device {} of array {} ({})",
                used.device.index, used.array, used.uuid
            )];
            scanned.array = Some(ScannedMember {
                name: used.array.clone(),
                uuid: used.uuid.clone(),
                device: used.device.index,
                device_uuid: used.device.uuid.clone(),
                generation: used.generation,
            });
            scanned.in_use = Some(used.words());
            return Some(scanned);
        }
        match self.holds(path, Access::Look).await {
            Ok(holds) => note_holds(&mut scanned, &holds),
            Err(failure) if failure.kind == Kind::NotFound => return None,
            Err(failure) => {
                scanned.unreadable = Some(failure.text);
                scanned.unfit = None; // for that very reason
            }
        }
        scanned.in_use = match facts.user {
            Some(user) => Some(user),
            None => self.user_here(path, &scanned, here).await,
        };
        scanned.free = scanned.holds.is_empty()
            && scanned.in_use.is_none()
            && scanned.unreadable.is_none()
            && scanned.unfit.is_none();
        Some(scanned)
    }

    /// Who has a device that the kernel names no user of.
    async fn user_here(&self, path: &Path, scanned: &Scanned, here: &[Here]) -> Option<String> {
        let is_own = |here: &&Here| {
            let member = scanned.array.as_ref();
            member.is_some_and(|m| m.uuid == here.uuid && m.device_uuid == here.device.uuid)
        };
        if let Some(own) = here.iter().find(is_own) {
            let words = own.words();
            return Some(match own.device.path.as_str() {
                "" => words,
                _ if !own.is_at(Path::new(&own.device.path)) => words,
                other => format!("{words} at {other}: the same device, or a copy"),
            });
        }
        if let Some(array) = self.user_of(path) {
            return Some(format!("kept for array {array}"));
        }
        match self.opener.open_bare(path, Access::Try).await {
            Err(failure) if failure.kind == Kind::Refused => Some("another program".to_string()),
            _ => None,
        }
    }
}

fn unanswered(path: &Path, failure: Failure) -> Scanned {
    Scanned {
        path: path.display().to_string(),
        unreadable: Some(failure.text),
        ..Scanned::default()
    }
}

fn note_holds(scanned: &mut Scanned, holds: &Holds) {
    scanned.holds = holds.words();
    scanned.unreadable = holds.unreadable.as_ref().map(|f| f.text.clone());
    scanned.array = holds.label().map(|label| ScannedMember {
        name: label.array_name.clone(),
        uuid: uuid_text(&label.array_uuid),
        device: label.index,
        device_uuid: uuid_text(&label.device_uuid),
        generation: label.generation,
    });
}
