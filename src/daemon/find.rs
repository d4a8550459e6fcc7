//! Finding arrays: what the devices of this machine, and the files in some directories, say they are.
//!
//! **Invariants**: devices are only read, and never held; one that an array here uses is not looked at.
//! A device that could not be looked at may still be a member: it is told from one that is none. None is
//! waited for long.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ashlar_engine::{Error, Label, probe, uuid_text};

use crate::api::{Found, ImportableReply};
use crate::daemon::devices;
use crate::daemon::host::Host;
use crate::daemon::open::{ANSWER_WAIT, Access, no_answer, on_thread};
use crate::daemon::state::Known;
use crate::failure::{Failure, Kind};
use crate::seat::is_node_of_own_disk;

/// Devices of one array, with what they say of themselves.
pub(crate) type Devices = Vec<(PathBuf, Label)>;
/// Devices that are not in use, by the UUID of their array.
pub(crate) type FoundDevices = BTreeMap<String, Devices>;

/// What a look at a device gave.
enum Look {
    /// It is one of an array.
    Device(Label),
    /// It is none, or nothing is there.
    Nothing,
    /// It is there, and its superblocks cannot be read: as good as gone.
    Unreadable(Failure),
    /// It could not be looked at, which says nothing of what it holds.
    Closed(Failure),
}

/// What looking at many gave.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) found: FoundDevices,
    pub(crate) unreadable: Vec<(PathBuf, Failure)>,
    pub(crate) closed: Vec<(PathBuf, Failure)>,
}

/// What the device of the newest generation says; of several one that it counts.
pub(crate) fn newest(devices: &[(PathBuf, Label)]) -> Option<&Label> {
    let labels = devices.iter().map(|(_, label)| label);
    let generation = labels.clone().map(|label| label.generation).max()?;
    let mut holders = labels.filter(|label| label.generation == generation);
    let first = holders.clone().next();
    holders
        .find(|l| l.counted.contains(&l.device_uuid))
        .or(first)
}

/// The identities of the devices that the newest of these counts: an array that starts without one has lost it.
pub(crate) fn counted(devices: &[(PathBuf, Label)]) -> BTreeSet<[u8; 16]> {
    newest(devices).map_or(BTreeSet::new(), |newest| {
        newest.counted.iter().copied().collect()
    })
}

/// What the devices call their array, of those that the newest counts: an import that was cut off may have given some of
/// them another name. Others say what it was called when they were last in use.
pub(crate) fn names(devices: &[(PathBuf, Label)]) -> BTreeSet<&str> {
    let counted = counted(devices);
    let labels = devices.iter().map(|(_, label)| label);
    let in_use = labels.filter(|label| counted.contains(&label.device_uuid));
    in_use.map(|label| &*label.array_name).collect()
}

/// What the newest device calls its array.
pub(crate) fn name_of(devices: &[(PathBuf, Label)]) -> String {
    newest(devices).map_or_else(String::new, |newest| newest.array_name.clone())
}

/// The identities of these devices.
pub(crate) fn identities(devices: &[(PathBuf, Label)]) -> BTreeSet<[u8; 16]> {
    devices.iter().map(|(_, label)| label.device_uuid).collect()
}

/// Whether all are here that the newest of them counts.
pub(crate) fn complete(devices: &[(PathBuf, Label)]) -> bool {
    let here = identities(devices);
    newest(devices).is_some_and(|newest| newest.counted.iter().all(|uuid| here.contains(uuid)))
}

/// How many devices are here of those that the newest counts, and how many that are.
pub(crate) fn counts(devices: &[(PathBuf, Label)]) -> (usize, usize) {
    let Some(newest) = newest(devices) else {
        return (0, 0);
    };
    let here = identities(devices);
    let found = newest.counted.iter().filter(|uuid| here.contains(*uuid));
    (found.count(), newest.counted.len())
}

/// A line for each device, of those that the newest counts, that is found at more than one place.
pub(crate) fn copies(devices: &[(PathBuf, Label)]) -> Vec<String> {
    let counted = counted(devices);
    let mut places: BTreeMap<[u8; 16], Vec<&(PathBuf, Label)>> = BTreeMap::new();
    for found in devices
        .iter()
        .filter(|(_, l)| counted.contains(&l.device_uuid))
    {
        places.entry(found.1.device_uuid).or_default().push(found);
    }
    let several = places.into_values().filter(|places| places.len() > 1);
    let line = |places: Vec<&(PathBuf, Label)>| {
        let label = &places[0].1;
        let paths: Vec<String> = places
            .iter()
            .map(|(p, _)| p.display().to_string())
            .collect();
        format!(
            "array {}: {} both say that they are device {}: one is a copy; disconnect or move the copy, then \
             import",
            label.array_name,
            paths.join(" and "),
            label.index
        )
    };
    several.map(line).collect()
}

/// How many devices are asked at a time.
const LOOKS: usize = 64;

impl Host {
    /// The array of this daemon that a device belongs to.
    pub(crate) fn user_of(&self, path: &std::path::Path) -> Option<String> {
        let path = path.display().to_string();
        let arrays = self.arrays.borrow();
        let user = arrays.iter().find(|(_, member)| {
            member.devices.borrow().contains(&path) && !member.array.was_removed(&path)
        });
        user.map(|(name, _)| name.clone())
    }

    /// `import` without an array: what could be started.
    ///
    /// # Errors
    /// If a directory cannot be scanned.
    pub(crate) async fn importable(
        self: &Rc<Host>,
        scan: &[String],
    ) -> Result<ImportableReply, Failure> {
        let seen = self.find(scan).await?;
        let shut = seen.unreadable.into_iter().chain(seen.closed);
        let unreadable = shut.map(|(_, failure)| failure.text).collect();
        let mut importable = Vec::new();
        for (uuid, devices) in seen.found {
            let Some(newest) = newest(&devices) else {
                continue;
            };
            let mut here = identities(&devices);
            here.retain(|uuid| newest.counted.contains(uuid));
            let number = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
            importable.push(Found {
                devices_here: number(here.len()),
                devices_counted: number(newest.counted.len()),
                missing: self.missing(&devices).await,
                copies: copies(&devices),
                name: newest.array_name.clone(),
                uuid,
                layout: newest.layout.clone(),
                devices_total: newest.devices_total,
                generation: newest.generation,
                devices: devices
                    .iter()
                    .map(|(path, _)| path.display().to_string())
                    .collect(),
            });
        }
        Ok(ImportableReply {
            importable,
            unreadable,
        })
    }

    pub(crate) async fn find(self: &Rc<Host>, dirs: &[String]) -> Result<Seen, Failure> {
        let paths = self.paths_in(dirs.to_vec()).await?;
        self.seen_at(paths).await
    }

    /// The same in the directories in which these are.
    ///
    /// # Errors
    /// The same.
    pub(super) async fn find_beside(self: &Rc<Host>, paths: Vec<PathBuf>) -> Result<Seen, Failure> {
        let paths = self.paths_beside(paths).await?;
        self.seen_at(paths).await
    }

    /// What is in these places, and where arrays that are not imported had devices.
    async fn seen_at(self: &Rc<Host>, mut paths: Vec<PathBuf>) -> Result<Seen, Failure> {
        for (known, _) in self.waiting.borrow().iter() {
            paths.extend(known.devices.iter().map(PathBuf::from));
        }
        paths.sort();
        paths.dedup();
        let paths = on_thread(move || devices::without_backing(paths)).await?;
        Ok(self.look_at(paths).await)
    }

    /// Files and devices in which an array may be found, see [`devices::scan`].
    ///
    /// # Errors
    /// If a directory cannot be scanned, or does not answer.
    pub(super) async fn paths_in(&self, dirs: Vec<String>) -> Result<Vec<PathBuf>, Failure> {
        let named = match dirs.is_empty() {
            true => "/dev".to_string(),
            false => dirs.join(" "),
        };
        let scan = move || devices::scan(&dirs);
        self.opener.ask(Path::new(&named), scan).await?
    }

    /// The same of the directories in which these are.
    ///
    /// # Errors
    /// The same.
    pub(super) async fn paths_beside(&self, paths: Vec<PathBuf>) -> Result<Vec<PathBuf>, Failure> {
        // Not asked as the devices are: one of them may hang, and others be elsewhere now.
        let parents: BTreeSet<&Path> = paths.iter().filter_map(|path| path.parent()).collect();
        let named: Vec<String> = parents.iter().map(|p| p.display().to_string()).collect();
        let scan = move || devices::scan(&devices::folders(&paths));
        self.opener.ask(Path::new(&named.join(" ")), scan).await?
    }

    /// Looks at devices that no array here uses.
    pub(crate) async fn look_at(self: &Rc<Host>, mut paths: Vec<PathBuf>) -> Seen {
        paths.retain(|path| self.user_of(path).is_none());
        let mut seen = Seen::default();
        // Some at a time: drives may have to spin up first.
        for some in paths.chunks(LOOKS) {
            let look = |path: &PathBuf| {
                let (host, path) = (self.clone(), path.clone());
                self.rt.spawn(async move {
                    let look = host.look(&path).await;
                    (path, look)
                })
            };
            let looks: Vec<_> = some.iter().map(look).collect();
            for look in looks {
                match look.await {
                    (path, Look::Device(label)) => seen
                        .found
                        .entry(uuid_text(&label.array_uuid))
                        .or_default()
                        .push((path, label)),
                    (_, Look::Nothing) => {}
                    (path, Look::Unreadable(failure)) => seen.unreadable.push((path, failure)),
                    (path, Look::Closed(failure)) => seen.closed.push((path, failure)),
                }
            }
        }
        seen
    }

    /// What the device at `path` says of itself, if it is one of an array and can be looked at.
    pub(super) async fn label_at(&self, path: &Path) -> Option<Label> {
        match self.look(path).await {
            Look::Device(label) => Some(label),
            _ => None,
        }
    }

    /// The same, or why there is none.
    ///
    /// # Errors
    /// If it is no device of an array, or cannot be looked at.
    pub(super) async fn label_of(&self, path: &Path) -> Result<Label, Failure> {
        match self.look(path).await {
            Look::Device(label) => Ok(label),
            Look::Unreadable(failure) | Look::Closed(failure) => Err(failure),
            Look::Nothing => Err(Failure::refused(format!(
                "{} is no device of an array; 'ashlar device scan' lists what devices hold",
                path.display()
            ))),
        }
    }

    /// What the device at `path` says of itself; one that does not answer is not waited for long.
    async fn look(&self, path: &Path) -> Look {
        let look = async {
            let device = match self.opener.open(path, Access::Look).await {
                Ok(device) => device,
                Err(failure) if failure.kind == Kind::NotFound => return Look::Nothing,
                Err(failure) => return Look::Closed(failure),
            };
            let line = |error| Failure::broken(format!("{}: {error}", path.display()));
            match probe(&device).await {
                Ok(Some(label)) => {
                    let at = path.to_path_buf();
                    match self
                        .opener
                        .ask(path, move || is_node_of_own_disk(&at))
                        .await
                    {
                        Ok(true) => Look::Nothing, // found as the disk
                        _ => Look::Device(label),
                    }
                }
                Ok(None) => Look::Nothing,
                Err(error @ (Error::Device { .. } | Error::TwoDevices(_))) => {
                    Look::Unreadable(line(error))
                }
                Err(error) => Look::Closed(line(error)),
            }
        };
        let looked = self.rt.timeout(ANSWER_WAIT, look).await;
        looked.unwrap_or_else(|| Look::Closed(no_answer(path)))
    }

    /// Where those were last that the newest of these counts and that are not among them; where any were of an array
    /// whose start is still waited for.
    pub(crate) fn places_of_missing(
        &self,
        uuid: &str,
        devices: &[(PathBuf, Label)],
    ) -> BTreeSet<PathBuf> {
        if complete(devices) {
            return BTreeSet::new();
        }
        let here = identities(devices);
        let paths = self.state.paths.borrow();
        let missing = counted(devices).into_iter().filter(|u| !here.contains(u));
        let last = missing.filter_map(|uuid| paths.get(&uuid_text(&uuid)));
        let waiting = self.waiting.borrow();
        let of_array = waiting.iter().filter(|(known, _)| known.uuid == uuid);
        let known = of_array.flat_map(|(known, _)| &known.devices);
        last.chain(known).map(PathBuf::from).collect()
    }

    /// A known array's devices: where they were, and, if some are not there, wherever they are now.
    pub(crate) async fn members_of(
        self: &Rc<Host>,
        known: &Known,
    ) -> (Devices, Vec<(PathBuf, Failure)>) {
        let paths: Vec<PathBuf> = known.devices.iter().map(PathBuf::from).collect();
        let mut seen = self.look_at(paths.clone()).await;
        let mut devices = seen.found.remove(&known.uuid).unwrap_or_default();
        if !complete(&devices)
            && let Ok(mut more) = self.find_beside(paths).await
        {
            let here = identities(&devices);
            let more = more.found.remove(&known.uuid).unwrap_or_default();
            let new = more
                .into_iter()
                .filter(|(_, l)| !here.contains(&l.device_uuid));
            devices.extend(new);
        }
        (devices, seen.closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Devices of an array, the first two of which their newest counts: generation, name.
    fn devices(labels: &[(u64, &str)]) -> Devices {
        let label = |(at, (generation, name)): (u8, &(u64, &str))| Label {
            array_uuid: [9; 16],
            array_name: (*name).to_string(),
            device_uuid: [at; 16],
            index: at.into(),
            devices_total: 2,
            generation: *generation,
            layout: "raid1".into(),
            size_bytes: 1 << 30,
            counted: vec![[0; 16], [1; 16]],
        };
        let path = |at: u8| PathBuf::from(format!("/dev/d{at}"));
        let all = (0u8..).zip(labels);
        all.map(|(at, given)| (path(at), label((at, given))))
            .collect()
    }

    /// A hot spare, or a device that failed, may have the name that the array had before.
    #[test]
    fn the_name_is_that_of_devices_in_use() {
        let t = |labels: &[(u64, &str)], expected: &[&str]| {
            let devices = devices(labels);
            let found: Vec<&str> = names(&devices).into_iter().collect();
            assert_eq!(found, expected, "{labels:?}");
            let newest = newest(&devices).map(|l| &*l.array_name);
            assert_eq!(newest, expected.first().copied(), "{labels:?}");
        };
        t(&[(5, "pool"), (5, "pool")], &["pool"]);
        t(&[(5, "pool"), (5, "pool"), (4, "tank")], &["pool"]);
        t(&[(5, "pool"), (5, "pool"), (5, "tank")], &["pool"]);
        t(&[(5, "a"), (5, "b"), (5, "tank")], &["a", "b"]);
        t(&[], &[]);
    }
}
