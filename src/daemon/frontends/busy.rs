//! Frontends that cannot be stopped, since somebody uses them: who, and what to type.
//!
//! **Invariants**: what is mounted is named at once, before anything is stopped; a device that is gone is never said
//! to be in use; what other processes do is only read, on a thread of its own.

use std::path::{Path, PathBuf};

use ashlar_engine::status::Frontend;
use ashlar_serve::fuse::FuseError;
use ashlar_serve::loopdev::{LoopAttachment, LoopError};

use super::{Frontends, Handle, Name};
use crate::daemon::open::on_thread;
use crate::daemon::users::{Hold, Openers, hold_on, openers};
use crate::failure::Failure;

impl Frontends {
    /// Refuses while the kernel has one of these mounted, or made something of it.
    ///
    /// # Errors
    /// Which, where, and what to type.
    pub(super) async fn check_not_held(
        &self,
        wanted: &[(bool, Name, Frontend)],
    ) -> Result<(), Failure> {
        for (_, name, stored) in wanted {
            let found = {
                let running = self.running.borrow();
                let mut of_volume = running.get(name).into_iter().flatten();
                of_volume.find_map(|r| match &r.handle {
                    Handle::Loop { device, link, .. } if r.stored == *stored => {
                        Some((device.device().to_path_buf(), link.clone()))
                    }
                    _ => None,
                })
            };
            let Some((device, link)) = found else {
                continue;
            };
            if let Some(hold) = held(device).await {
                let volume = format!("{}/{}", name.0, name.1);
                return Err(in_use(&volume, &link, &hold));
            }
        }
        Ok(())
    }

    /// Why a loop device could not be taken away.
    pub(super) async fn not_detached(
        &self,
        volume: &str,
        link: &str,
        device: &LoopAttachment,
        error: &LoopError,
    ) -> Failure {
        let at = device.device().to_path_buf();
        if let LoopError::Busy = error
            && let Some(hold) = held(at.clone()).await
        {
            return in_use(volume, link, &hold);
        }
        let programs = match error {
            LoopError::Busy | LoopError::StillOpen => open_in(&at).await,
            _ => Openers::default(),
        };
        let (device, unseen) = (at.display(), unseen(&programs));
        Failure::refused(match (error, programs.named.join(", ")) {
            (LoopError::StillOpen, programs) => {
                self.leaving.borrow_mut().insert(at.clone());
                let who = match programs.as_str() {
                    "" => "a program".to_string(),
                    named => named.to_string(),
                };
                format!(
                    "{volume} at {link}: {device} is still open in {who}; it is detached as soon as that closes it: \
                     end that, then try again{unseen}"
                )
            }
            (_, programs) if programs.is_empty() => {
                format!(
                    "{volume} at {link}: {error}{unseen}; 'ashlar volume detach {volume} -f' detaches it anyway"
                )
            }
            (_, programs) => format!(
                "{volume} at {link} is in use: {device} is open in {programs}; end that, then try again; \
                 'ashlar volume detach {volume} -f' detaches it anyway"
            ),
        })
    }

    /// Why a file could not be unmounted.
    pub(super) async fn not_unmounted(volume: &str, path: &Path, error: &FuseError) -> Failure {
        let programs = match error {
            FuseError::Busy => open_in(path).await,
            _ => Openers::default(),
        };
        let (at, unseen) = (path.display(), unseen(&programs));
        Failure::refused(match programs.named.join(", ") {
            none if none.is_empty() => format!(
                "{volume} at {at}: {error}{unseen}; 'ashlar volume detach {volume} -f' detaches it anyway"
            ),
            programs => format!(
                "{volume} at {at} is in use: it is open in {programs}; end that, then try again; \
                 'ashlar volume detach {volume} -f' detaches it anyway"
            ),
        })
    }
}

fn in_use(volume: &str, link: &str, hold: &Hold) -> Failure {
    let Hold { what, next } = hold;
    Failure::refused(format!(
        "{volume} at {link} is in use: {what}; {next}, then try again; \
                 'ashlar volume detach {volume} -f' detaches it anyway"
    ))
}

async fn held(device: PathBuf) -> Option<Hold> {
    let look = move || hold_on(Path::new("/sys"), Path::new("/proc"), &device);
    on_thread(look).await.ok().flatten()
}

/// What stands behind a refusal where none of those who have it open is known.
fn unseen(programs: &Openers) -> String {
    let unseen = programs.unseen.iter().filter(|_| programs.named.is_empty());
    unseen.map(|text| format!("; {text}")).collect()
}

async fn open_in(path: &Path) -> Openers {
    let path = path.to_path_buf();
    let look = move || openers(Path::new("/proc"), &path);
    on_thread(look).await.unwrap_or_default()
}
