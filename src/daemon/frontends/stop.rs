//! Stopping frontends: what the operator has to know of a device that was taken away.
//!
//! **Invariants**: writes that were lost are told in any case, whatever comes of the verb; they are no success while the
//! array could have kept them, unless force is asked for.

use std::path::Path;

use ashlar_engine::Array;
use ashlar_engine::status::Frontend;
use ashlar_serve::loopdev::{LoopAttachment, LoopError};

use super::{Frontends, Handle, Name, Running, Stopped};
use crate::daemon::names::unlink;
use crate::failure::Failure;

impl Frontends {
    /// Stops frontends of an array: of one volume or of all, these or all. Those of the kernel, which
    /// can refuse, come before those that cut off whoever is connected.
    ///
    /// # Errors
    /// If a client still uses one, or its last writes were lost and the array has not stopped; with what was stopped
    /// before. With `force` never for these reasons.
    pub(crate) async fn stop(
        &self,
        array: &Array,
        volume: Option<&str>,
        which: Option<&[Frontend]>,
        force: bool,
    ) -> Result<Stopped, (Stopped, Failure)> {
        let of_array = array.name();
        let mut wanted: Vec<(bool, Name, Frontend)> = Vec::new();
        for (name, list) in self.running.borrow().iter() {
            if name.0 != of_array || volume.is_some_and(|v| name.1 != v) {
                continue;
            }
            for r in list {
                if which.is_none_or(|w| w.contains(&r.stored)) {
                    let cuts_off = matches!(r.handle, Handle::Nbd { .. });
                    wanted.push((cuts_off, name.clone(), r.stored.clone()));
                }
            }
        }
        wanted.sort_by_key(|(cuts_off, ..)| *cuts_off);
        let mut stopped = Stopped::default();
        if !force && let Err(failure) = self.check_not_held(&wanted).await {
            return Err((stopped, failure));
        }
        for (_, name, stored) in wanted {
            let Some(Running { handle, seen, .. }) = self.take(&name, &stored) else {
                continue;
            };
            let lost_before = stopped.lost.len();
            if let Err((handle, failure)) =
                self.stop_handle(&name, handle, force, &mut stopped).await
            {
                let running = Running {
                    stored,
                    handle,
                    seen,
                };
                self.running
                    .borrow_mut()
                    .entry(name)
                    .or_default()
                    .push(running);
                return Err((stopped, failure));
            }
            if stopped.lost.len() > lost_before && !force && array.is_open() {
                let at = super::shown(&stored).address;
                let failure = Failure::broken(format!(
                    "{}/{}: {at} is gone, and its last writes have failed; try again, which goes on without them",
                    name.0, name.1
                ));
                stopped.gone = Some((name.1, stored));
                return Err((stopped, failure));
            }
            stopped.frontends.push((name.1, stored));
        }
        self.mounts.borrow_mut().retain(|m| !m.has_ended()); // they hold their volumes
        Ok(stopped)
    }

    async fn stop_handle(
        &self,
        name: &Name,
        handle: Handle,
        force: bool,
        stopped: &mut Stopped,
    ) -> Result<(), (Handle, Failure)> {
        let volume = format!("{}/{}", name.0, name.1);
        match &handle {
            Handle::Nbd { address } => self.stop_nbd(address, &volume).await,
            Handle::Fuse(mount) => {
                if let Err(error) = mount.unmount().await {
                    if !force {
                        let failure = Self::not_unmounted(&volume, mount.path(), &error).await;
                        return Err((handle, failure));
                    }
                    mount.abort().await;
                }
            }
            Handle::Loop {
                mount,
                device,
                link,
            } => {
                let mut detached = device.detach(!force).await;
                if let Err(LoopError::Flush { error, then }) = detached {
                    let error = Failure::broken(error.to_string()); // without its number
                    let line = format!(
                        "{volume}: what was written to {link} last could not be kept ({error})"
                    );
                    stopped.lost.push(line.clone());
                    stopped.left.push(line);
                    detached = then.map_or(Ok(()), |then| Err(*then));
                }
                match detached {
                    Ok(()) => {}
                    Err(error) if force => {
                        tracing::warn!(volume, "detached while in use: {error}");
                        stopped.left.extend(release(device).await);
                    }
                    Err(error) => {
                        let failure = self.not_detached(&volume, link, device, &error).await;
                        return Err((handle, failure));
                    }
                }
                // Nobody else can reach a hidden file: what is left of its session may end.
                mount.abort().await;
                unlink(Path::new(link), device.device());
                self.leaving.borrow_mut().remove(device.device());
            }
        }
        Ok(())
    }
}

/// Leaves a loop device to its users; what the operator has to do then.
async fn release(device: &LoopAttachment) -> Option<String> {
    let at = device.device().display();
    match device.release().await {
        Ok(true) => None,
        Ok(false) => Some(format!(
            "{at} is still in use: every access to it fails from now on; 'umount {at}', or stop the program that \
             has it open, and it disappears"
        )),
        Err(error) => Some(format!(
            "{at} could not be removed: {error}; 'losetup -d {at}' removes it"
        )),
    }
}
