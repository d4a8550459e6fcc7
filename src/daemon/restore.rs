//! Starting the arrays of the last run.
//!
//! **Invariants**: an array waits for the devices that its newest visible generation counts, as long as its
//! `start.wait` says, and neither another array nor a request nor the end of the process waits for that; what keeps a
//! known array from being started is kept, and said.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use ashlar_engine::uuid_text;
use ashlar_rt::{MILLISECOND, Nanos, SECOND};

use crate::api::{Awaited, Import};
use crate::cli::since::utc;
use crate::daemon::find::{Devices, complete, identities, newest};
use crate::daemon::host::Host;
use crate::daemon::state::Known;
use crate::daemon::volumes::NOT_TRIED;
use crate::failure::Failure;

/// How long until devices that are not there are looked for again: at first, and later.
const PAUSES: [Nanos; 2] = [500 * MILLISECOND, 2 * SECOND];
/// How long the first of them is used.
const AT_FIRST: Nanos = 10 * SECOND;

/// How long bringing an array back may take, beside the wait for its devices, before the service manager gives up.
const RESTORE_SECONDS: u64 = 300;
/// What `status` says of an array whose devices are still looked for.
const WAITING: &str = "waiting for its devices";
/// How many devices are named.
const NAMED: usize = 4;

impl Host {
    /// Notes the arrays of the last run, which [`Host::restore`] starts.
    pub(crate) fn expect(&self, known: &[Known]) {
        let untried = |known: &Known| (known.clone(), NOT_TRIED.to_string());
        self.waiting.borrow_mut().extend(known.iter().map(untried));
        let uuids = known.iter().map(|known| known.uuid.clone());
        self.restoring.borrow_mut().extend(uuids);
    }

    /// Starts the arrays of the last run, each by itself; what cannot be started is kept, with the reason.
    pub(crate) async fn restore(self: &Rc<Host>, all: Vec<Known>) {
        let start = |known: Known| {
            let host = self.clone();
            self.rt.spawn(async move {
                host.bring_back(&known).await;
                host.awaited.borrow_mut().remove(&known.uuid);
                host.restoring.borrow_mut().remove(&known.uuid);
                host.restored_gate.open();
            })
        };
        let starts: Vec<_> = all.into_iter().map(start).collect();
        for start in starts {
            start.await;
        }
    }

    /// The end of the process waits for no device.
    pub(crate) fn stop_restoring(&self) {
        self.ending.set(true);
        self.ending_gate.open();
    }

    /// Why an array is not started yet, if it waits for devices.
    pub(super) fn still_waits(&self, uuid: &str) -> Option<String> {
        let waits = self.restoring.borrow().contains(uuid);
        let waiting = self.waiting.borrow();
        let mut of_array = waiting
            .iter()
            .filter(|(known, _)| waits && known.uuid == uuid);
        of_array.next().map(|(_, reason)| reason.clone())
    }

    /// Whether a known array is still to be started: nobody has imported or forgotten it.
    fn is_awaited(&self, known: &Known) -> bool {
        let waiting = self.waiting.borrow();
        !self.ending.get() && waiting.iter().any(|(other, _)| other.uuid == known.uuid)
    }

    async fn bring_back(self: &Rc<Host>, known: &Known) {
        let began = self.rt.now();
        let until = began + known.start_wait * SECOND;
        let mut told = None;
        // A device that hangs is looked at for long.
        let line = format!(
            "{WAITING}; they are asked what they are, and waited for until {} (start.wait)",
            utc(self.unix_seconds(until))
        );
        self.keep_waiting(&known.uuid, &line);
        let awaited = |devices_here, devices_counted| Awaited {
            devices_here,
            devices_counted,
            until: self.unix_seconds(until),
        };
        let unseen = awaited(0, known.devices.len());
        self.awaited.borrow_mut().insert(known.uuid.clone(), unseen);
        while self.is_awaited(known) {
            let last = self.rt.now() >= until;
            let (devices, closed) = self.members_of(known).await;
            if last || complete(&devices) {
                self.awaited.borrow_mut().remove(&known.uuid);
                let mut import = Import {
                    read_only: known.read_only,
                    ..Import::default()
                };
                self.watch_known(known, &devices, &mut import).await;
                let guard = self.change.lock().await;
                if self.is_awaited(known) {
                    self.bring_in(known, devices, &closed, &import).await;
                }
                drop(guard);
                return;
            }
            let (here, counted, mut line) = self.what_is_missing(known, &devices, until);
            let seen = awaited(here, counted);
            self.awaited.borrow_mut().insert(known.uuid.clone(), seen);
            if let Some((_, failure)) = closed.first() {
                line += &format!("; {failure}");
            }
            if told.replace(devices.len()) != Some(devices.len()) {
                tracing::warn!(array = known.name, "{line}");
            }
            self.keep_waiting(&known.uuid, &line);
            let now = self.rt.now();
            let seconds = until.saturating_sub(now) / SECOND + RESTORE_SECONDS;
            self.manager
                .wait_longer(seconds, &format!("{}: {line}", known.name));
            let pause = PAUSES[usize::from(now - began >= AT_FIRST)];
            let pause = pause.min(until.saturating_sub(now));
            let ended = self.ending_gate.until(|| self.ending.get());
            self.rt.timeout(pause, ended).await;
        }
    }

    /// How many devices of a known array are here, and of how many; which are waited for, and until when.
    fn what_is_missing(
        &self,
        known: &Known,
        devices: &Devices,
        until: Nanos,
    ) -> (usize, usize, String) {
        let here = identities(devices);
        let (found, counted, missing): (usize, usize, Vec<String>) = match newest(devices) {
            None => (0, known.devices.len(), known.devices.clone()),
            Some(newest) => {
                let away = newest.counted.iter().filter(|uuid| !here.contains(*uuid));
                let paths = self.state.paths.borrow();
                let place = |uuid: &[u8; 16]| {
                    let uuid = uuid_text(uuid);
                    let is_here =
                        |path: &&String| devices.iter().any(|(d, _)| d == Path::new(*path));
                    let path = paths.get(&uuid).filter(|path| !is_here(path));
                    path.cloned().unwrap_or(uuid)
                };
                let missing: Vec<String> = away.map(place).collect();
                let counted = newest.counted.len();
                (counted - missing.len(), counted, missing)
            }
        };
        let mut names = missing.iter().take(NAMED).cloned().collect::<Vec<_>>();
        if missing.len() > NAMED {
            names.push(format!("{} more", missing.len() - NAMED));
        }
        let line = format!(
            "{WAITING}; {found} of {counted} are here, not {}; it waits until {} (start.wait)",
            names.join(", "),
            utc(self.unix_seconds(until))
        );
        (found, counted, line)
    }

    /// Starts a known array with these devices, or keeps why not.
    async fn bring_in(
        self: &Rc<Host>,
        known: &Known,
        devices: Devices,
        closed: &[(PathBuf, Failure)],
        import: &Import,
    ) {
        self.manager
            .wait_longer(RESTORE_SECONDS, &format!("{}: importing", known.name));
        if let Err(failure) = self.restore_one(known, devices, closed, import).await {
            let text = format!("not imported: {failure}");
            self.tell(&known.name, "not-imported", None, text);
            self.keep_waiting(&known.uuid, &failure.text);
        }
    }

    /// Notes why a known array is not imported.
    pub(super) fn keep_waiting(&self, uuid: &str, why: &str) {
        for (other, reason) in self.waiting.borrow_mut().iter_mut() {
            if other.uuid == uuid {
                why.clone_into(reason);
            }
        }
    }

    async fn restore_one(
        self: &Rc<Host>,
        known: &Known,
        devices: Devices,
        closed: &[(PathBuf, Failure)],
        import: &Import,
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
        let mut warnings = Vec::new();
        let member = self
            .import_devices(&known.uuid, (devices, closed), import, &mut warnings)
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
}
