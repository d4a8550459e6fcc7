//! Devices that leave and come back, and devices that take the place of others.
//!
//! **Invariants**: looking at devices holds no lock and no device; one that hangs keeps nobody but itself. A device is
//! taken in by itself only if the engine awaits it, and only as what its superblock says.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};

use ashlar_device::DeviceRef;
use ashlar_engine::status::{DeviceState, DeviceStatus};
use ashlar_engine::{Label, TakenIn, uuid_text};
use ashlar_rt::{Nanos, SECOND};

use crate::api::{Replace, TakenInReply};
use crate::daemon::devices::{self, Candidate};
use crate::daemon::host::{Host, Member, failure_of};
use crate::daemon::open::{Access, on_thread};
use crate::failure::Failure;

/// How often it is looked whether a missing device answers.
const LOOK_EVERY: Nanos = 2 * SECOND;
/// In how many looks the folders of an array's devices are searched as well.
const SEARCH_EVERY: u32 = 5;
/// A device that was refused, or an array that refused a hot spare, is tried again after this time, then after twice as long, and so on.
const PAUSES: (Nanos, Nanos) = (4 * SECOND, 60 * SECOND);

/// A device is taken in by itself once it has answered in so many looks one after another.
const STEADY: u32 = 3;

/// What is remembered of devices that are awaited, by identity, or of arrays that hot spares are used in.
#[derive(Debug, Default)]
struct Watched {
    /// In how many looks one after another each has answered.
    answered: BTreeMap<[u8; 16], u32>,
    /// Those that were refused: until when they are left alone, and for how long.
    refused: BTreeMap<[u8; 16], (Nanos, Nanos)>,
}

impl Watched {
    /// A look has found these of the devices that are awaited; which of them are steady.
    fn note(&mut self, awaited: &[[u8; 16]], found: &BTreeSet<[u8; 16]>) -> BTreeSet<[u8; 16]> {
        for uuid in awaited {
            let before = self.answered.remove(uuid).unwrap_or(0);
            if found.contains(uuid) {
                self.answered.insert(*uuid, before + 1);
            }
        }
        let steady = |uuid: &&[u8; 16]| self.answered.get(*uuid).is_some_and(|n| *n >= STEADY);
        found.iter().filter(steady).copied().collect()
    }

    /// A device was taken in.
    fn taken(&mut self, uuid: &[u8; 16]) {
        self.answered.remove(uuid);
        self.refused.remove(uuid);
    }

    /// A device was refused; whether for the first time.
    fn refused(&mut self, uuid: [u8; 16], now: Nanos) -> bool {
        let last = self.refused.get(&uuid).map_or(0, |(_, pause)| *pause);
        let pause = (2 * last).clamp(PAUSES.0, PAUSES.1);
        self.refused.insert(uuid, (now + pause, pause));
        last == 0
    }

    fn is_due(&self, uuid: &[u8; 16], now: Nanos) -> bool {
        self.refused
            .get(uuid)
            .is_none_or(|(until, _)| *until <= now)
    }
}

impl Host {
    /// Looks for missing devices for as long as the daemon runs.
    pub(crate) fn watch_returning(self: &Rc<Host>) {
        let (host, rt) = (Rc::downgrade(self), self.rt.clone());
        let (watched, looking) = (Rc::default(), Rc::default());
        let (refusing, replacing) = (Rc::default(), Rc::default());
        self.rt.spawn(async move {
            for count in 1u32.. {
                rt.sleep(LOOK_EVERY).await;
                let Some(host) = Weak::upgrade(&host) else {
                    return;
                };
                if host.ending.get() {
                    return;
                }
                let members: Vec<Rc<Member>> = host.arrays.borrow().values().cloned().collect();
                let search = count.is_multiple_of(SEARCH_EVERY);
                for member in members {
                    let awaits = !member.read_only && member.array.is_open();
                    if awaits && !member.array.hot_spares_due().is_empty() {
                        host.use_hot_spare(member.clone(), &refusing, &replacing);
                    }
                    if awaits && !member.array.awaited().is_empty() {
                        host.look_for_returning(member, search, &watched, &looking);
                    }
                }
            }
        });
    }

    /// Puts a hot spare in the place of a lost device, in a task of its own, unless one is at it.
    fn use_hot_spare(
        self: &Rc<Host>,
        member: Rc<Member>,
        refusing: &Rc<RefCell<Watched>>,
        replacing: &Rc<RefCell<BTreeSet<[u8; 16]>>>,
    ) {
        let array = member.array.uuid();
        let due = refusing.borrow().is_due(&array, self.rt.now());
        if !due || !replacing.borrow_mut().insert(array) {
            return;
        }
        let (host, refusing, replacing) = (self.clone(), refusing.clone(), replacing.clone());
        self.rt.spawn(async move {
            let before = host.status_of(&member).await.devices;
            let path = |index: u16| {
                before
                    .iter()
                    .find(|d| d.index == index)
                    .map(|d| &d.last_path)
            };
            match member.array.use_hot_spare().await {
                Ok(due) => {
                    refusing.borrow_mut().taken(&array);
                    if let Some(due) = due
                        && let (Some(old), Some(new)) = (path(due.lost), path(due.spare))
                    {
                        host.note_replaced(&member, old, Path::new(new));
                    }
                }
                Err(error) if refusing.borrow_mut().refused(array, host.rt.now()) => {
                    let array = member.array.name();
                    let failure = failure_of(error).of_array(&array);
                    tracing::warn!(array, "no hot spare is taken in: {failure}");
                }
                Err(_) => {}
            }
            replacing.borrow_mut().remove(&array);
        });
    }

    /// Looks for what an array awaits, in a task of its own, unless one is at it.
    fn look_for_returning(
        self: &Rc<Host>,
        member: Rc<Member>,
        search: bool,
        watched: &Rc<RefCell<Watched>>,
        looking: &Rc<RefCell<BTreeSet<[u8; 16]>>>,
    ) {
        let array = member.array.uuid();
        if !looking.borrow_mut().insert(array) {
            return;
        }
        let (host, watched, looking) = (self.clone(), watched.clone(), looking.clone());
        self.rt.spawn(async move {
            host.take_back(&member, search, &watched).await;
            looking.borrow_mut().remove(&array);
        });
    }

    /// Takes those in that answer again of the devices that an array awaits.
    async fn take_back(self: &Rc<Host>, member: &Member, search: bool, watched: &RefCell<Watched>) {
        let now = self.rt.now();
        let mut awaited: Vec<[u8; 16]> = member.array.awaited().into_iter().map(|a| a.1).collect();
        awaited.retain(|uuid| watched.borrow().is_due(uuid, now));
        if awaited.is_empty() {
            return;
        }
        let wanted: Vec<String> = awaited.iter().map(uuid_text).collect();
        let answering = self.answering(member, &wanted, search).await;
        let found = answering
            .iter()
            .map(|(_, label)| label.device_uuid)
            .collect();
        let steady = watched.borrow_mut().note(&awaited, &found);
        for (path, label) in answering {
            let uuid = label.device_uuid;
            self.note_path(&uuid_text(&uuid), &path.display().to_string());
            if !steady.contains(&uuid) {
                continue;
            }
            let taken = async {
                let device = self.opener.open(&path, Access::Exclusive).await?;
                member.array.online(device, false).await.map_err(failure_of)
            };
            match taken.await {
                Ok(_) => {
                    watched.borrow_mut().taken(&uuid);
                    self.note_taken_in(member, &path);
                }
                Err(failure) if watched.borrow_mut().refused(uuid, self.rt.now()) => {
                    let array = member.array.name();
                    let failure = failure.of_array(&array);
                    tracing::warn!(array, "{} is not taken in: {failure}", path.display());
                }
                Err(_) => {}
            }
        }
    }

    /// Where these devices of an array answer, each at one place.
    async fn answering(
        self: &Rc<Host>,
        member: &Member,
        wanted: &[String],
        search: bool,
    ) -> Vec<(PathBuf, Label)> {
        let used: BTreeSet<String> = member
            .array
            .device_paths()
            .into_iter()
            .map(|p| p.1)
            .collect();
        let paths = self.state.paths.borrow().clone();
        let mut places: BTreeSet<PathBuf> = wanted
            .iter()
            .filter_map(|uuid| paths.get(uuid).map(PathBuf::from))
            .collect();
        let known = member.devices.borrow().clone();
        places.extend(known.iter().map(PathBuf::from));
        if search {
            let own: Vec<PathBuf> = known.iter().map(PathBuf::from).collect();
            places.extend(self.paths_beside(own).await.unwrap_or_default());
        }
        places.retain(|path| !used.contains(&path.display().to_string()));
        let looks: Vec<_> = places
            .into_iter()
            .map(|path| {
                let host = self.clone();
                let look = async move { (host.label_at(&path).await, path) };
                self.rt.spawn(look)
            })
            .collect();
        let mut answering: BTreeMap<String, (PathBuf, Label)> = BTreeMap::new();
        for look in looks {
            if let (Some(label), path) = look.await
                && label.array_uuid == member.array.uuid()
                && let uuid = uuid_text(&label.device_uuid)
                && wanted.contains(&uuid)
            {
                // Of two names of a device that under which it was used last.
                let last = paths.get(&uuid).map(Path::new) == Some(path.as_path());
                if last || !answering.contains_key(&uuid) {
                    answering.insert(uuid, (path, label));
                }
            }
        }
        answering.into_values().collect()
    }

    /// A device of an array is at this path from now on: the next start finds it.
    pub(super) fn note_taken_in(&self, member: &Member, path: &Path) {
        let path = path.display().to_string();
        if !member.devices.borrow().contains(&path) {
            member.devices.borrow_mut().push(path);
        }
        let mut paths = self.state.paths.borrow_mut();
        paths.extend(member.array.device_paths());
        drop(paths);
        self.state.drives.note_new();
        if let Err(failure) = self.save() {
            tracing::warn!("{failure}");
        }
    }

    /// A device has taken the place of the one that was at `old`.
    fn note_replaced(&self, member: &Member, old: &str, new: &Path) {
        member.devices.borrow_mut().retain(|path| path != old);
        self.note_taken_in(member, new);
    }

    /// `offline`.
    ///
    /// # Errors
    /// If the device is unknown, or data would be left without a copy.
    pub(super) async fn offline(&self, name: &str, device: &str) -> Result<TakenInReply, Failure> {
        let member = self.member(name)?;
        let found = self.device_named(&member, device).await?;
        if let Err(error) = member.array.offline(found.index).await {
            return Err(self.not_offline(&member, error).await);
        }
        let health = self.status_of(&member).await.health;
        Ok(TakenInReply {
            array: name.to_string(),
            device: found.index,
            path: found.last_path,
            kept: 0,
            lacking: 0,
            more_losses: Some(health.more_losses),
            stays: false,
            leaves: None,
            dry_run: false,
        })
    }

    /// Why a device does not go offline. Where others are, no rebuild comes that could be waited for.
    async fn not_offline(&self, member: &Member, error: ashlar_engine::Error) -> Failure {
        let name = member.array.name();
        let devices = self.status_of(member).await.devices;
        let offline = devices.iter().find(|d| d.state == DeviceState::Offline);
        match (&error, offline) {
            (ashlar_engine::Error::Needed(index), Some(first)) => Failure::refused(format!(
                "taking device {index} out of use now would leave data that the other devices cannot compute; device \
                 {} is offline: 'ashlar online {name} {0}' takes it in again first",
                first.index
            )),
            _ => failure_of(error),
        }
    }

    /// The device of an array that answers at this path, by what it says of itself: since it left, another may have
    /// taken its name.
    async fn answering_at(&self, member: &Member, path: &Path) -> Option<DeviceStatus> {
        if !path.is_absolute() {
            return None;
        }
        let label = self.label_at(path).await?;
        let own = label.array_uuid == member.array.uuid();
        let uuid = own.then(|| uuid_text(&label.device_uuid))?;
        let mut devices = self.status_of(member).await.devices.into_iter();
        devices.find(|d| d.uuid == uuid)
    }

    /// `online`: a device of the array by its path, UUID or index, wherever it answers.
    ///
    /// # Errors
    /// Why it is not taken in.
    pub(super) async fn online(
        self: &Rc<Host>,
        name: &str,
        device: &str,
        force: bool,
    ) -> Result<TakenInReply, Failure> {
        let member = self.member(name)?;
        let at = PathBuf::from(device);
        let here = self.answering_at(&member, &at).await;
        let is_here = here.is_some();
        let known = match here {
            Some(known) => Ok(known),
            None => self.device_named(&member, device).await,
        };
        let path = match known {
            Ok(known) if known.state == DeviceState::Removing => {
                return self.stay(&member, &known).await;
            }
            Ok(known) if known.state == DeviceState::Slow => {
                let taken = member.array.online_slow(known.index, force).await;
                let (taken, path) = (taken.map_err(failure_of)?, PathBuf::from(&known.path));
                self.note_taken_in(&member, &path);
                return Ok(reply_of(name, taken, &path));
            }
            Ok(known) if is_here && !known.is_held() => at,
            Ok(known) => self.place_of(&member, &known).await?,
            Err(failure) => {
                let path = at.clone();
                match on_thread(move || path.exists()).await? {
                    true => at,
                    false => return Err(failure),
                }
            }
        };
        let opened = self.opener.open(&path, Access::Exclusive).await?;
        let taken = member.array.online(opened, force).await;
        let taken = taken.map_err(failure_of)?;
        self.note_taken_in(&member, &path);
        Ok(reply_of(name, taken, &path))
    }

    /// Where a device of an array answers that is out of use.
    async fn place_of(
        self: &Rc<Host>,
        member: &Member,
        known: &DeviceStatus,
    ) -> Result<PathBuf, Failure> {
        if known.is_held() {
            let error = match known.state {
                DeviceState::Spare => ashlar_engine::Error::HotSpare(known.index),
                _ => ashlar_engine::Error::InUse(known.index),
            };
            return Err(failure_of(error));
        }
        let last = PathBuf::from(&known.last_path);
        let label = self.label_at(&last).await;
        if label.is_some_and(|label| uuid_text(&label.device_uuid) == known.uuid) {
            return Ok(last);
        }
        let known_as = std::slice::from_ref(&known.uuid);
        let found = self.answering(member, known_as, true).await;
        let place = found.into_iter().next().map(|(path, _)| path);
        place.ok_or_else(|| {
            Failure::not_found(format!(
                "device {} of {} does not answer at {}; connect it, or name its path: 'ashlar online {} PATH'",
                known.index,
                member.array.name(),
                known.last_path,
                member.array.name()
            ))
        })
    }

    /// `replace`.
    ///
    /// # Errors
    /// What stands against it: nothing is changed then.
    pub(super) async fn replace(self: &Rc<Host>, call: Replace) -> Result<TakenInReply, Failure> {
        let member = self.member(&call.array)?;
        let old = self.device_named(&member, &call.old).await?;
        if old.state.is_in_use() {
            return self.replace_in_use(&member, old, call).await;
        }
        let new = call.new.clone().unwrap_or_else(|| old.last_path.clone());
        let given = vec![new.clone()];
        let candidates = on_thread(move || devices::check(&given, None)).await??;
        let candidate = &candidates[0];
        let bytes = candidate.size_bytes;
        let fits = member.array.check_replacement(old.index, bytes, call.force);
        fits.map_err(failure_of)?;
        self.check_replacement(&member, &old, candidate, call.force)
            .await?;
        let mut reply = TakenInReply {
            array: call.array.clone(),
            device: old.index,
            path: candidate.path.display().to_string(),
            kept: 0,
            lacking: 0,
            more_losses: None,
            stays: false,
            leaves: None,
            dry_run: call.dry_run,
        };
        if call.dry_run {
            return Ok(reply);
        }
        // Others may have failed meanwhile; what it holds is erased now.
        let fits = member.array.check_replacement(old.index, bytes, call.force);
        fits.map_err(failure_of)?;
        let device = self.take_one(candidate).await?;
        let taken = member.array.replace(old.index, device, call.force).await;
        let taken = taken.map_err(failure_of)?;
        self.note_replaced(&member, &old.last_path, &candidate.path);
        (reply.kept, reply.lacking) = (taken.kept, taken.lacking);
        Ok(reply)
    }

    /// Refuses a replacement of a device out of use that holds something, or that is a member under another name.
    async fn check_replacement(
        self: &Rc<Host>,
        member: &Member,
        old: &DeviceStatus,
        candidate: &Candidate,
        force: bool,
    ) -> Result<(), Failure> {
        let label = self.label_at(&candidate.path).await;
        let own = label.filter(|label| label.array_uuid == member.array.uuid());
        if let Some(label) = own {
            let uuids = member.array.device_uuids();
            let row = uuids
                .iter()
                .position(|uuid| *uuid == uuid_text(&label.device_uuid));
            return match row {
                // The device itself: it is written anew.
                Some(row) if row == usize::from(old.index) => Ok(()),
                Some(row) => Err(Failure::refused(format!(
                    "{} is device {row} of this array, or a copy of it; use another device",
                    candidate.given
                ))),
                None if force => Ok(()),
                None => Err(Failure::refused(format!(
                    "{} was device {} of this array; overwrite what it holds with --force",
                    candidate.given, label.index
                ))),
            };
        }
        // At the path of a device that is out another one may be by now.
        if candidate.path.as_path() != Path::new(&old.last_path) {
            self.check_unused(candidate)?;
        }
        self.check_holds_nothing(candidate, force).await.map(drop)
    }
}

fn reply_of(name: &str, taken: TakenIn, path: &Path) -> TakenInReply {
    TakenInReply {
        array: name.to_string(),
        device: taken.index,
        path: path.display().to_string(),
        kept: taken.kept,
        lacking: taken.lacking,
        more_losses: None,
        stays: false,
        leaves: None,
        dry_run: false,
    }
}

impl Host {
    /// Opens a device that is to become a member, erases old signatures, and gives a whole disk its partition.
    pub(super) async fn take_one(
        self: &Rc<Host>,
        candidate: &Candidate,
    ) -> Result<DeviceRef, Failure> {
        let mut taken = self.take_all(std::slice::from_ref(candidate)).await?;
        let none = || Failure::broken(format!("{} cannot be opened", candidate.given));
        taken.pop().ok_or_else(none)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_steady_once_it_has_answered_again_and_again() {
        let (mut watched, one) = (Watched::default(), [1; 16]);
        let (here, away) = (BTreeSet::from([one]), BTreeSet::new());
        let mut look = |found| !watched.note(&[one], found).is_empty();
        assert!(!look(&here) && !look(&here));
        assert!(!look(&away), "it was away once more");
        assert!(!look(&here) && !look(&here) && look(&here));
    }

    #[test]
    fn a_device_that_is_refused_is_left_alone_longer_and_longer() {
        let (mut watched, one) = (Watched::default(), [1; 16]);
        assert!(watched.is_due(&one, 0));
        assert!(watched.refused(one, 0), "it is said");
        assert!(!watched.is_due(&one, PAUSES.0 - 1) && watched.is_due(&one, PAUSES.0));
        assert!(!watched.refused(one, PAUSES.0), "and not again");
        assert!(!watched.is_due(&one, 3 * PAUSES.0 - 1) && watched.is_due(&one, 3 * PAUSES.0));
        watched.taken(&one);
        assert!(watched.is_due(&one, 0));
    }
}
