//! Opening devices for the engine: one ring for all of them, the right to use them alone.
//!
//! **Invariants**: what an open array writes to is held exclusively, so a second daemon gets an
//! error, not a second writer; looking never takes that hold. What may wait for a device happens on
//! a thread of its own: the device may be served by this very engine, or not answer at all.

use std::path::Path;

use ashlar_device::{DeviceRef, OpenMode, Ring, Unserved};
use ashlar_rt::Rt;

use crate::failure::Failure;
use crate::seat::seat;

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
    ring: Option<Ring>,
}

impl Opener {
    /// With io_uring where the machine has it; without, operations are synchronous.
    pub(crate) fn new(rt: &Rt) -> Opener {
        let ring = Ring::new(rt)
            .inspect_err(|error| {
                tracing::warn!(%error, "no io_uring here: device operations block the engine");
            })
            .ok();
        Opener { ring }
    }

    /// Opens the device at `path`: of a whole disk the partition in which a device of an array lies.
    ///
    /// # Errors
    /// Why it cannot be opened, with what to do.
    pub(crate) async fn open(&self, path: &Path, access: Access) -> Result<DeviceRef, Failure> {
        let bare = self.open_bare(path, access).await?;
        Ok(self.serve(on_thread(move || seat(bare)).await?))
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
        let path = path.to_path_buf();
        let opened = on_thread(move || ashlar_device::open_unserved(&path, mode)).await?;
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
