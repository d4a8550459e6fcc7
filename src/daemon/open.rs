//! Opening devices for the engine: one ring for all of them, the right to use them alone.
//!
//! **Invariants**: what an open array writes to is held exclusively, so a second daemon gets an
//! error, not a second writer; looking never takes that hold. What may wait for a device happens on
//! a thread of its own: the device may be served by this very engine, or not answer at all. None is
//! waited for long, and threads do not pile up that wait for one that does not answer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ashlar_device::{DeviceRef, OpenMode, Ring, Unserved};
use ashlar_rt::{Nanos, Rt};

use crate::failure::Failure;
use crate::seat::seat;

/// How long a device may take to answer: as long as a drive needs to spin up.
const WAIT_SECONDS: u64 = 30;
pub(crate) const ANSWER_WAIT: Nanos = WAIT_SECONDS * ashlar_rt::SECOND;

/// What is said of a device, or directory, that takes longer.
pub(crate) fn no_answer(path: &Path) -> Failure {
    Failure::broken(format!(
        "{}: no answer within {WAIT_SECONDS} s; check the device and its cabling",
        path.display()
    ))
}

/// What a device is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reading its superblock; others may use it.
    Look,
    /// Finding out whether others use it.
    Try,
    /// Being a member of an open array.
    Exclusive,
}

/// Opens devices.
#[derive(Debug)]
pub(crate) struct Opener {
    rt: Rt,
    ring: Option<Ring>,
    asked: Asked,
}

/// What threads wait for, and since when.
#[derive(Clone, Debug, Default)]
struct Asked(Arc<Mutex<BTreeMap<PathBuf, Instant>>>);

impl Asked {
    fn all(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether what is at `path` has not answered for so long that asking again is of no use.
    fn hangs(&self, path: &Path, now: Instant) -> bool {
        let patience = Duration::from_secs(WAIT_SECONDS);
        let all = self.all();
        let since = all.get(path);
        since.is_some_and(|since| now.duration_since(*since) >= patience)
    }

    /// Notes that a thread is to wait for what is at `path`, until what is given back is dropped.
    fn begin(&self, path: &Path) -> Asking {
        let mut all = self.all();
        all.entry(path.into()).or_insert_with(Instant::now);
        Asking(self.clone(), path.into())
    }
}

/// A thread waits for what is at a path, or is about to.
struct Asking(Asked, PathBuf);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.all().remove(&self.1);
    }
}

impl Opener {
    /// With io_uring where the machine has it; without, operations are synchronous.
    pub(crate) fn new(rt: &Rt) -> Opener {
        let ring = Ring::new(rt)
            .inspect_err(|error| {
                tracing::warn!(%error, "no io_uring here: device operations block the engine");
            })
            .ok();
        Opener {
            rt: rt.clone(),
            ring,
            asked: Asked::default(),
        }
    }

    /// Runs `work`, which waits for what is at `path`, on a thread of its own.
    ///
    /// # Errors
    /// If that does not answer: now, or when it was asked before.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        path: &Path,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        if self.asked.hangs(path, Instant::now()) {
            return Err(no_answer(path));
        }
        let asking = self.asked.begin(path);
        let answer = on_thread(move || {
            let _asking = asking;
            work()
        });
        let answer = self.rt.timeout(ANSWER_WAIT, answer).await;
        answer.unwrap_or_else(|| Err(no_answer(path)))
    }

    /// Opens the device at `path`: of a whole disk the partition in which a device of an array lies.
    ///
    /// # Errors
    /// Why it cannot be opened, with what to do.
    pub(crate) async fn open(&self, path: &Path, access: Access) -> Result<DeviceRef, Failure> {
        let bare = self.open_bare(path, access).await?;
        Ok(self.serve(self.ask(path, move || seat(bare)).await?))
    }

    /// Opens all of what is at `path`; nobody serves it yet.
    ///
    /// # Errors
    /// As [`Opener::open`].
    pub(crate) async fn open_bare(&self, path: &Path, access: Access) -> Result<Unserved, Failure> {
        let mode = match access {
            Access::Look => OpenMode {
                read_only: true,
                exclusive: false,
            },
            Access::Try => OpenMode {
                read_only: true,
                exclusive: true,
            },
            Access::Exclusive => OpenMode {
                read_only: false,
                exclusive: true,
            },
        };
        let at = path.to_path_buf();
        let opened = self.ask(path, move || ashlar_device::open_unserved(&at, mode));
        let opened = opened.await?;
        opened.map_err(|error| match error {
            ashlar_device::OpenError::InUse { .. } => Failure::refused(error.to_string()),
            // Nothing is there that could be a device.
            ashlar_device::OpenError::NotFound { .. }
            | ashlar_device::OpenError::NotADevice { .. }
            | ashlar_device::OpenError::TooSmall { .. } => Failure::not_found(error.to_string()),
            error => Failure::broken(error.to_string()),
        })
    }

    /// The device, from here on served.
    pub(crate) fn serve(&self, opened: Unserved) -> DeviceRef {
        opened.serve(self.ring.as_ref())
    }
}

/// Runs `work`, which may wait for devices, on a thread of its own.
///
/// # Errors
/// If there is no thread to be had.
pub(crate) async fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    let none = || Failure::broken("no thread can be started; raise the limit of processes");
    ashlar_serve::on_thread(work).await.ok_or_else(none)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use std::rc::Rc;

    /// A thread each for looks at a drive that hangs would use up those of the system within days.
    #[test]
    fn what_does_not_answer_is_not_asked_again() {
        let rt = Rt::start().unwrap();
        let opener = Rc::new(Opener::new(&rt));
        let (path, other) = (Path::new("/dev/hangs"), Path::new("/dev/other"));
        let (let_go, until) = std::sync::mpsc::channel::<()>();
        rt.clone().block_on(async move {
            let hanging = {
                let opener = opener.clone();
                rt.spawn(async move { opener.ask(path, move || until.recv()).await.is_ok() })
            };
            rt.sleep(20 * ashlar_rt::MILLISECOND).await;
            assert_eq!(opener.ask(path, || 1).await.unwrap(), 1, "not for long yet");
            let long_ago = Instant::now().checked_sub(Duration::from_secs(WAIT_SECONDS));
            opener.asked.all().insert(path.into(), long_ago.unwrap());
            let refused = opener.ask(path, || 2).await.unwrap_err();
            assert!(refused.text.contains("/dev/hangs: no answer within 30 s"));
            assert_eq!(opener.ask(other, || 3).await.unwrap(), 3);
            let_go.send(()).unwrap();
            assert!(hanging.await);
            assert_eq!(opener.ask(path, || 4).await.unwrap(), 4, "it has answered");
        });
    }
}
