//! Moves requests from `/dev/fuse` to the volume and replies back.
//!
//! Invariants: requests are read only while the budget has room; each gets at most one reply, sent
//! by one system call that never waits; the session ends when the kernel has ended the connection
//! or it was told to close, and then only after all that was begun has ended.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use ashlar_rt::{AsyncFd, Buf, Rt};

use super::gate::{self, Action, Verdict};
use super::sys;
use super::wire::MAX_REQUEST_BYTES;
use super::wire::{self, Request, Shown, WRITE_PAYLOAD, reply_header, seek_reply, write_reply};
use crate::flow::{Budget, Hold, Stop};
use crate::{Volume, VolumeError, VolumeInfo};

/// Requests in flight; the kernel queues at most 128 in the background by itself.
const MAX_IN_FLIGHT: usize = 256;
/// Payload bytes in flight.
const MAX_IN_FLIGHT_BYTES: usize = 64 << 20;
/// Requests begun in one go before other tasks get a turn.
const BURST: u32 = 32;
/// Seeking asks for the state of so many bytes at a time.
const SEEK_STEP: u64 = 1 << 30;

pub(super) struct Session {
    pub(super) rt: Rt,
    /// `/dev/fuse`, until the session ends: closing it is what ends the kernel's side.
    pub(super) fd: RefCell<Option<Rc<AsyncFd>>>,
    pub(super) volume: Rc<dyn Volume>,
    pub(super) info: VolumeInfo,
    /// User and group that own the file.
    pub(super) owner: (u32, u32),
    /// The file is in a folder of its own.
    pub(super) folder: bool,
    /// Set once it is to end: what waits for room in the budget does not wait on.
    pub(super) stop: Stop,
}

/// Serves until the file is unmounted or the session aborted.
pub(super) async fn serve(session: Rc<Session>) {
    let budget = Budget::new(MAX_IN_FLIGHT, MAX_IN_FLIGHT_BYTES);
    // One request, of any length that the kernel may send, is read at a time.
    let mut buf = vec![0; WRITE_PAYLOAD + MAX_REQUEST_BYTES];
    let fd = session.fd.borrow().clone();
    for count in 1u32.. {
        let Some(fd) = &fd else { break };
        match fd.read(&mut buf).await {
            Ok(0) => break,
            Ok(length) => {
                let handled = session.handle(&buf[..length], &budget);
                if session.stop.or(handled).await.is_none() {
                    break;
                }
            }
            // The request was interrupted before it was read.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => {
                tracing::debug!(%error, "fuse: the session ends");
                break;
            }
        }
        if count.is_multiple_of(BURST) {
            session.rt.yield_now().await;
        }
    }
    // Whoever waits for an answer gets an error now, and does not wait for what is in flight.
    drop((fd, session.fd.take()));
    budget.idle().await;
}

impl Session {
    /// Ends the session as if the kernel had.
    pub(super) fn close(&self) {
        self.stop.set();
        if let Some(fd) = &*self.fd.borrow() {
            fd.close();
        }
    }

    async fn handle(self: &Rc<Self>, bytes: &[u8], budget: &Rc<Budget>) {
        let Some(request) = Request::parse(bytes) else {
            tracing::warn!("fuse: a request from the kernel was not understood");
            if let Some(unique) = Request::unique_of(bytes) {
                self.answer(unique, Err(libc::EIO));
            }
            return;
        };
        let shown = Shown {
            uid: self.owner.0,
            gid: self.owner.1,
            folder: self.folder,
            used_bytes: self.volume.used_bytes(),
        };
        match gate::admit(&request, &self.info, shown) {
            Err(error) => self.answer(request.unique, Err(error)),
            Ok(Verdict::Silent) => {}
            Ok(Verdict::Answer(body)) => self.answer(request.unique, Ok(&body)),
            Ok(Verdict::Do(action)) => {
                let (payload, size) = match action {
                    Action::Write { length, .. } => {
                        (Some(Buf::copy_of(&bytes[WRITE_PAYLOAD..])), length as usize)
                    }
                    Action::Read { length, .. } => (None, length),
                    _ => (None, 0),
                };
                let hold = budget.take(size).await;
                let session = self.clone();
                self.rt.begin(async move {
                    session
                        .carry_out(request.unique, action, payload, hold)
                        .await;
                });
            }
        }
    }

    async fn carry_out(&self, unique: u64, action: Action, payload: Option<Buf>, hold: Hold) {
        let volume = &self.volume;
        let done = match action {
            Action::Read { offset, length } => {
                match volume.read(offset, length).await {
                    Ok(buf) if buf.len() == length => self.answer(unique, Ok(&buf)),
                    Ok(_) => self.answer(unique, Err(libc::EIO)),
                    Err(error) => self.answer(unique, Err(error.errno())),
                }
                return drop(hold);
            }
            Action::Write {
                offset,
                length,
                durable,
            } => {
                let data = payload.unwrap_or_else(|| Buf::zeroed(0)).freeze();
                volume
                    .write(offset, data, durable)
                    .await
                    .map(|()| write_reply(length))
            }
            Action::Flush => volume.flush().await.map(|()| Vec::new()),
            Action::Trim { length: 0, .. } | Action::WriteZeroes { length: 0, .. } => {
                Ok(Vec::new())
            }
            Action::Trim { offset, length } => volume
                .trim(offset, length, false)
                .await
                .map(|()| Vec::new()),
            Action::WriteZeroes { offset, length } => volume
                .write_zeroes(offset, length, false, false)
                .await
                .map(|()| Vec::new()),
            Action::Seek { offset, hole } => match self.seek(offset, hole).await {
                Ok(Some(found)) => Ok(seek_reply(found)),
                Ok(None) => {
                    self.answer(unique, Err(libc::ENXIO));
                    return drop(hold);
                }
                Err(error) => Err(error),
            },
        };
        match done {
            Ok(body) => self.answer(unique, Ok(&body)),
            Err(error) => self.answer(unique, Err(error.errno())),
        }
        drop(hold);
    }

    /// The first hole, or the first data, at or behind `at`. The end of the file is a hole.
    async fn seek(&self, mut at: u64, hole: bool) -> Result<Option<u64>, VolumeError> {
        while at < self.info.size_bytes {
            let length = (self.info.size_bytes - at).min(SEEK_STEP);
            let extents = self.volume.block_status(at, length, 2).await?;
            let before = at;
            for extent in extents {
                if extent.hole == hole {
                    return Ok(Some(at));
                }
                at = at.saturating_add(extent.length);
            }
            if at == before {
                return Err(VolumeError::Lost); // a volume that tells nothing
            }
        }
        Ok(hole.then_some(self.info.size_bytes))
    }

    fn answer(&self, unique: u64, result: Result<&[u8], i32>) {
        let (error, body) = match result {
            Ok(body) => (0, body),
            Err(error) => (error, &[][..]),
        };
        let header = reply_header(unique, error, body.len());
        let fd = self.fd.borrow();
        let Some(fd) = &*fd else { return };
        match sys::write_reply(&**fd, &header, body) {
            Ok(()) => {}
            // The request was interrupted, or the connection ended, while it was carried out.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::debug!(%error, "fuse: the kernel did not take a reply"),
        }
    }
}

const _: () = assert!(
    WRITE_PAYLOAD + MAX_REQUEST_BYTES > 8192,
    "what the kernel asks at least"
);
const _: () = assert!(wire::OUT_HEADER == 16);

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
