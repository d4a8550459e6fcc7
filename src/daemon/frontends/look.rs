//! What is seen of frontends while they serve: whether the kernel still has what it was given, which volumes refuse
//! writes, how long requests take.
//!
//! **Invariants**: nothing here waits for a device or a client; what somebody has open is never taken away for its
//! name; what is taken out is returned, for somebody to be told.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use ashlar_engine::status::Frontend;
use ashlar_rt::Nanos;
use ashlar_serve::fuse::FuseMount;

use super::{Frontends, Handle, Name, Running, shown};
use crate::api::Latency;
use crate::daemon::names::{leads_to, link, unlink};

/// What the kernel does not have as it was given.
#[derive(Debug, Default)]
pub(crate) struct Compared {
    /// Frontends that serve no more and were taken out, with the reason.
    pub(crate) gone: Vec<(Name, Frontend, String)>,
    /// Volumes whose device has lost its name since the last look, with what is to be said.
    pub(crate) nameless: Vec<(Name, String)>,
    /// What is left of those that are gone: to be aborted once that is said.
    pub(crate) ending: Vec<FuseMount>,
}

/// A volume that refused a write for want of space: when last, and when it took one after that.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) volume: String,
    pub(crate) last: Nanos,
    pub(crate) accepted: Nanos,
}

impl Frontends {
    /// Takes out what the kernel does not have any more: loop devices that somebody detached, files that somebody
    /// unmounted. A name that is gone is made again; a device whose name cannot be made goes on serving without.
    pub(crate) fn compare(&self) -> Compared {
        let mut compared = Compared::default();
        for (name, list) in self.running.borrow().iter() {
            for running in list {
                let why = match &running.handle {
                    Handle::Nbd { .. } => None,
                    Handle::Fuse(mount) => mount
                        .has_ended()
                        .then(|| format!("somebody unmounted {}", mount.path().display())),
                    Handle::Loop { device, .. } if !device.is_there() => {
                        Some(self.why_gone(device.device()))
                    }
                    Handle::Loop { device, link, .. } => {
                        let lost = self.keep_name(link, device.device());
                        let lost = lost.map(|text| (name.clone(), text));
                        compared.nameless.extend(lost);
                        None
                    }
                };
                if let Some(why) = why {
                    compared
                        .gone
                        .push((name.clone(), running.stored.clone(), why));
                }
            }
        }
        for (name, stored, _) in &compared.gone {
            match self.take(name, stored).map(|running| running.handle) {
                Some(Handle::Loop {
                    mount,
                    device,
                    link,
                }) => {
                    unlink(Path::new(&link), device.device());
                    compared.ending.push(mount);
                }
                Some(Handle::Fuse(mount)) => compared.ending.push(mount),
                Some(Handle::Nbd { .. }) | None => {}
            }
        }
        compared
    }

    /// Why a kernel device is there no more.
    fn why_gone(&self, device: &Path) -> String {
        let at = device.display();
        match self.leaving.borrow_mut().remove(device) {
            true => format!(
                "{at} was to be detached, and the last program that had it open has closed it"
            ),
            false => format!("somebody detached {at} (losetup -d)"),
        }
    }

    /// Sees to it that the name still leads to its device; what is to be said where it cannot any more.
    fn keep_name(&self, name: &str, device: &Path) -> Option<String> {
        let mut nameless = self.nameless.borrow_mut();
        if leads_to(Path::new(name)).is_some_and(|to| to == device) {
            nameless.remove(name);
            return None;
        }
        match link(name, device) {
            Ok(()) => {
                nameless.remove(name);
                tracing::warn!(name, device = %device.display(), "the link was missing or pointed elsewhere; it \
                    is made again");
                None
            }
            // Whoever has the device open goes on.
            Err(failure) => nameless
                .insert(name.to_string())
                .then(|| format!("served at {} only: {failure}", device.display())),
        }
    }

    /// Where a frontend of a volume is found now: a kernel device that has lost its name, under the kernel's.
    pub(crate) fn found_at(&self, array: &str, volume: &str, stored: &Frontend) -> Frontend {
        let mut found = shown(stored);
        let running = self.running.borrow();
        let of_volume = running.get(&(array.to_string(), volume.to_string()));
        let all = of_volume.into_iter().flatten();
        for running in all.filter(|r| r.stored == *stored) {
            if let Handle::Loop { device, link, .. } = &running.handle
                && self.nameless.borrow().contains(link)
            {
                found.address = device.device().display().to_string();
            }
        }
        found
    }

    /// Notes what a volume takes of the space, for those who look at its file.
    pub(crate) fn note_used(&self, array: &str, volume: &str, bytes: u64) {
        let running = self.running.borrow();
        let of_volume = running.get(&(array.to_string(), volume.to_string()));
        for one in of_volume.into_iter().flatten() {
            one.seen.used_bytes.set(bytes);
        }
    }

    /// How many requests may have changed what each volume of an array takes of the space, since it was imported.
    pub(crate) fn changes(&self, array: &str) -> BTreeMap<String, u64> {
        let changes = self.changes.borrow();
        let of = changes
            .iter()
            .filter(|(name, count)| name.0 == array && count.get() > 0);
        of.map(|(name, count)| (name.1.clone(), count.get()))
            .collect()
    }

    /// The count of those of a volume.
    pub(super) fn changes_of(&self, name: &Name) -> Rc<Cell<u64>> {
        let mut changes = self.changes.borrow_mut();
        changes.entry(name.clone()).or_default().clone()
    }

    /// Begins again with an array that was exported.
    pub(crate) fn forget_changes(&self, array: &str) {
        self.changes.borrow_mut().retain(|name, _| name.0 != array);
    }

    /// Volumes of an array that refused a write since they are served.
    pub(crate) fn refused(&self, array: &str) -> Vec<Refused> {
        let mut all: Vec<Refused> = Vec::new();
        for ((_, volume), list) in self.running.borrow().iter().filter(|(n, _)| n.0 == array) {
            let last = list.iter().map(|r| r.seen.refused.get()).max().unwrap_or(0);
            let accepted = list
                .iter()
                .map(|r| r.seen.accepted.get())
                .max()
                .unwrap_or(0);
            if last > 0 {
                let volume = volume.clone();
                all.push(Refused {
                    volume,
                    last,
                    accepted,
                });
            }
        }
        all
    }

    /// How long requests took, of an array or of all; of a volume that is served in several ways, all together.
    pub(crate) fn latency(&self, array: Option<&str>) -> Vec<Latency> {
        let mut all = Vec::new();
        for ((name, volume), list) in self.running.borrow().iter() {
            if array.is_some_and(|a| a != name) {
                continue;
            }
            let mut of_volume: Vec<Latency> = Vec::new();
            for one in list.iter().map(|r| r.seen.latency(name, volume)) {
                if of_volume.is_empty() {
                    of_volume = one;
                    continue;
                }
                for (sum, more) in of_volume.iter_mut().zip(one) {
                    let counts = sum.counts.iter_mut().zip(more.counts);
                    counts.for_each(|(sum, more)| *sum += more);
                    sum.nanoseconds += more.nanoseconds;
                    sum.in_flight += more.in_flight;
                }
            }
            all.extend(of_volume);
        }
        all
    }

    /// The arrays of which a volume is served as a file.
    pub(crate) fn arrays_with_files(&self) -> Vec<String> {
        let running = self.running.borrow();
        let file = |list: &Vec<Running>| list.iter().any(|r| matches!(r.handle, Handle::Fuse(_)));
        let mut names: Vec<String> = Vec::new();
        for ((array, _), _) in running.iter().filter(|(_, list)| file(list)) {
            if names.last() != Some(array) {
                names.push(array.clone());
            }
        }
        names
    }
}
