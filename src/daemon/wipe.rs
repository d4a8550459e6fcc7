//! `device wipe`: erases what says what a device holds, so that it is taken as new. `device clear`: counters of errors.
//!
//! **Invariants**: nothing is written while anybody else has the device, nor to one that an array here uses, expects
//! back, or may still need; nothing before the device was named twice; what was erased is looked for again.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ashlar_device::Unserved;
use ashlar_engine::Label;
use ashlar_engine::status::{ArrayState, DeviceState};
use ashlar_rt::{MILLISECOND, Nanos, SECOND};

use crate::api::{ClearReply, WipeReply};
use crate::daemon::holds::{Held, Here, Holds};
use crate::daemon::host::{Host, failure_of};
use crate::daemon::open::{Access, on_thread};
use crate::daemon::users;
use crate::failure::{Failure, Kind};
use crate::seat::seat;

/// How long a device is waited for that somebody has open, as udev and its like do for a moment.
const BUSY_WAIT: Nanos = 2 * SECOND;
const BUSY_PAUSE: Nanos = 100 * MILLISECOND;
/// How long a device may take to say what it holds: as long as a drive needs to spin up.
const LOOK_WAIT: Nanos = 30 * SECOND;
/// How long it may take to erase it.
const ERASE_WAIT: Nanos = 120 * SECOND;
/// Under what was erased something older may lie.
const ROUNDS: usize = 3;

impl Host {
    /// `device wipe`.
    ///
    /// # Errors
    /// Who has the device or may need it; without its path again, what would be lost: nothing was written then.
    pub(super) async fn wipe_device(
        self: &Rc<Host>,
        given: &str,
        confirm: Option<&str>,
    ) -> Result<WipeReply, Failure> {
        let look = self.hold_and_look(given);
        let (path, bare, holds) = self.in_time(LOOK_WAIT, given, look).await?;
        let here = self.devices_here().await;
        let own = match holds.label() {
            Some(label) => check_not_needed(given, label, &here)?,
            None => None,
        };
        let mut reply = WipeReply {
            device: given.to_string(),
            erased: erased_words(&holds),
        };
        if reply.erased.is_empty() {
            return Ok(reply);
        }
        if confirm != Some(given) {
            let words = reply.erased.join(", ");
            let loses = would_lose(holds.label(), own.is_some());
            return Err(Failure::refused(format!(
                "{given} holds {words}; {loses}; if that is meant, give --yes"
            )));
        }
        let erase = self.erase_all(given, &path, bare);
        let more = self.in_time(ERASE_WAIT, given, erase).await?;
        reply.erased.extend(more);
        tracing::info!(device = given, "wiped: {}", reply.erased.join(", "));
        if let Some(own) = own {
            let index = own.device.index;
            let text = format!("device {index} ({given}), which had failed, was wiped");
            self.tell(&own.array, "device-wiped", Some(index), text);
        }
        Ok(reply)
    }

    /// Has a device for this process alone, and looks at what it holds.
    async fn hold_and_look(&self, given: &str) -> Result<(PathBuf, Unserved, Holds), Failure> {
        let path = self.unused_path(given).await?;
        let bare = self.open_bare_when_free(&path).await?;
        // Looking needs no hold of its own.
        let holds = self.holds(&path, Access::Look).await?;
        Ok((path, bare, holds))
    }

    /// One that does not answer keeps no other request waiting for long.
    async fn in_time<T>(
        &self,
        wait: Nanos,
        given: &str,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let done = self.rt.timeout(wait, work).await;
        done.unwrap_or_else(|| {
            Err(Failure::broken(format!(
                "{given}: no answer within {} s; check the device and its cabling ('dmesg'), or take it out of the \
                 machine",
                wait / SECOND
            )))
        })
    }

    /// The absolute path of a device that nobody is known to use.
    async fn unused_path(&self, given: &str) -> Result<PathBuf, Failure> {
        let at = given.to_string();
        let looked = on_thread(move || {
            let path = std::fs::canonicalize(&at)?;
            let user = users::user_of(Path::new("/sys"), Path::new("/proc"), &path);
            Ok((path, user))
        });
        let (path, user) = looked.await?.map_err(|error: std::io::Error| {
            let why = match error.kind() {
                ErrorKind::NotFound => "there is no such file or device".to_string(),
                _ => error.to_string(),
            };
            Failure::not_found(format!(
                "{given}: {why}; 'ashlar device scan' lists devices"
            ))
        })?;
        let here = self.devices_here().await;
        if let Some(used) = here.iter().find(|here| here.is_at(&path)) {
            return Err(Failure::refused(format!(
                "{given} is device {0} of array {1}, which is in use here; take it out first ('ashlar fail {1} {0}'), \
                 or destroy the array",
                used.device.index, used.array
            )));
        }
        match user {
            Some(user) => Err(Failure::refused(format!(
                "{given} is in use: {user}; end that first, 'lsblk' shows what lies on what"
            ))),
            None => Ok(path),
        }
    }

    /// Opens all of a device for this process alone; others may have it open for a moment.
    async fn open_bare_when_free(&self, path: &Path) -> Result<Unserved, Failure> {
        let patience = self.rt.now() + BUSY_WAIT;
        loop {
            match self.opener.open_bare(path, Access::Exclusive).await {
                Err(failure) if failure.kind == Kind::Refused && self.rt.now() < patience => {
                    self.rt.sleep(BUSY_PAUSE).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// Erases until nothing is found any more; what came to light meanwhile.
    async fn erase_all(
        &self,
        given: &str,
        path: &Path,
        mut bare: Unserved,
    ) -> Result<Vec<String>, Failure> {
        let mut more: Vec<String> = Vec::new();
        for _ in 0..ROUNDS {
            let (back, erased) = on_thread(move || {
                let bare = seat(bare);
                let erased = bare.erase();
                (bare, erased)
            })
            .await?;
            bare = back;
            erased.map_err(|error| {
                Failure::broken(format!(
                    "{given} cannot be erased: {error}; part of it may be erased by now: check the device ('dmesg'), \
                     or take it out of the machine"
                ))
            })?;
            let holds = self.holds(path, Access::Look).await?;
            if let Some(failure) = holds.unreadable {
                return Err(Failure::broken(format!(
                    "{given} was erased and cannot be read back: {failure}; do not use it"
                )));
            }
            if holds.held.is_empty() {
                return Ok(more);
            }
            more.extend(holds.held.iter().map(Held::words));
        }
        Err(Failure::broken(format!(
            "{given} still holds {} after it was erased; it does not keep what is written to it: do not use it",
            more.last().map_or("something", String::as_str)
        )))
    }

    /// `device clear`.
    ///
    /// # Errors
    /// If the device is unknown.
    pub(super) async fn clear_errors(
        &self,
        name: &str,
        device: &str,
    ) -> Result<ClearReply, Failure> {
        let member = self.member(name)?;
        let found = self.device_named(&member, device).await?;
        let errors = member.array.clear_errors(found.index).map_err(failure_of)?;
        let text = format!(
            "error counters of device {} ({}) were set to zero by hand; they stood at {} read, {} write, {} digest",
            found.index, found.last_path, errors.read, errors.write, errors.digest
        );
        self.tell(name, "errors-cleared", Some(found.index), text);
        Ok(ClearReply {
            array: name.to_string(),
            device: found.index,
            path: found.last_path,
            errors,
        })
    }
}

/// What wiping a device erases: all it is known to hold, and what cannot be read of it.
fn erased_words(holds: &Holds) -> Vec<String> {
    let mut words = holds.words();
    if holds.unreadable.is_some() {
        words.push("places that cannot be read".to_string());
    }
    words
}

/// What wiping a device loses, which an array here may have given up.
fn would_lose(label: Option<&Label>, given_up: bool) -> String {
    match label {
        Some(label) if given_up => format!(
            "array {} has given it up and is optimal without it",
            label.array_name
        ),
        Some(label) => format!(
            "wiping it takes it from array {} for good, which has one device less then",
            label.array_name
        ),
        None => "wiping it loses that, and all that lies in it".to_string(),
    }
}

/// Refuses a device that an array here uses, expects back or may need; gives the one that it has given up.
fn check_not_needed(given: &str, label: &Label, here: &[Here]) -> Result<Option<Here>, Failure> {
    let Some(own) = here.iter().find(|here| here.says(label)) else {
        return Ok(None);
    };
    let (index, array) = (own.device.index, &own.array);
    match own.device.state {
        state if state.is_in_use() => Err(Failure::refused(format!(
            "{given} says that it is device {index} of array {array}, which is in use at {}; it is the same device \
             under another name, or a copy: delete a copy in a file, wipe another when {array} is exported",
            own.device.path
        ))),
        DeviceState::Spare => Err(Failure::refused(format!(
            "{given} is a hot spare of array {array}; 'ashlar remove {array} {index}' takes it out and erases it"
        ))),
        DeviceState::Failed if own.array_state == ArrayState::Optimal => Ok(Some(own.clone())),
        DeviceState::Failed => Err(Failure::refused(format!(
            "{given} is device {index} of array {array}, which failed, and its data is not rebuilt yet: it may hold what \
             is needed; 'ashlar wait {array} --for rebuild' waits for the rebuild, then wipe it"
        ))),
        _ => Err(Failure::refused(format!(
            "{given} is device {index} of array {array}, which expects it back; 'ashlar online {array} {index}' takes it \
             in, 'ashlar fail {array} {index} -w' gives it up and rebuilds its data, then it can be wiped"
        ))),
    }
}
