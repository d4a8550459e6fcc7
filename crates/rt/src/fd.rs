//! [`AsyncFd`]: a descriptor on which tasks wait instead of the thread.
//!
//! Invariants: an operation is tried first and waited for only when the kernel says it would block;
//! a reader and a writer wait independently of each other; whoever waits is woken when the
//! descriptor is closed.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;

use crate::executor::Rt;
use crate::reactor::{Direction, Epoll, Source, sys};

/// A non-blocking descriptor watched by the runtime's reactor: a socket, pipe, eventfd, timer or
/// character device (not a regular file, which is always ready and which epoll refuses).
///
/// Any number of tasks may wait for one direction; usually one reads and one writes. Dropping it
/// deregisters and closes the descriptor.
pub struct AsyncFd {
    file: File,
    source: Rc<Source>,
    token: u64,
    reactor: Rc<Epoll>,
}

impl std::fmt::Debug for AsyncFd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AsyncFd")
            .field("fd", &self.file.as_raw_fd())
            .finish_non_exhaustive()
    }
}

impl AsyncFd {
    /// Takes over `fd`, makes it non-blocking and watches it.
    ///
    /// # Errors
    /// `Unsupported` when `rt` was not made by [`Rt::start`]; else what the kernel says, such as
    /// `PermissionDenied` for a regular file.
    pub fn new(rt: &Rt, fd: impl Into<OwnedFd>) -> io::Result<AsyncFd> {
        let reactor = rt.epoll().ok_or(io::ErrorKind::Unsupported)?;
        let fd: OwnedFd = fd.into();
        sys::set_nonblocking(fd.as_fd())?;
        let (token, source) = reactor.register(fd.as_fd())?;
        Ok(AsyncFd {
            file: File::from(fd),
            source,
            token,
            reactor,
        })
    }

    async fn ready(&self, direction: Direction) -> io::Result<()> {
        std::future::poll_fn(|cx| self.source.poll_ready(direction, cx)).await
    }

    async fn settled(&self, direction: Direction) -> io::Result<()> {
        loop {
            if self.source.is_closed() {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            self.source.clear(direction);
            if sys::is_ready(self.file.as_fd(), direction == Direction::Write) {
                return Ok(());
            }
            self.ready(direction).await?;
        }
    }

    /// Completes when the descriptor can be read without blocking, be it only its end or an error.
    ///
    /// # Errors
    /// `ConnectionAborted` after [`AsyncFd::close`].
    pub async fn readable(&self) -> io::Result<()> {
        self.settled(Direction::Read).await
    }

    /// Completes when the descriptor can be written without blocking, be it only to get an error.
    ///
    /// # Errors
    /// `ConnectionAborted` after [`AsyncFd::close`].
    pub async fn writable(&self) -> io::Result<()> {
        self.settled(Direction::Write).await
    }

    async fn attempt<T>(
        &self,
        direction: Direction,
        mut operation: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            if self.source.is_closed() {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            match operation() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.source.clear(direction);
                    self.ready(direction).await?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    /// Repeats `operation`, which must fail with `WouldBlock` rather than block, whenever the
    /// descriptor becomes readable, until it does anything else.
    ///
    /// # Errors
    /// Those of `operation`; `ConnectionAborted` after [`AsyncFd::close`].
    pub async fn read_with<T>(&self, operation: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        self.attempt(Direction::Read, operation).await
    }

    /// As [`AsyncFd::read_with`], for an operation that writes.
    ///
    /// # Errors
    /// Those of `operation`; `ConnectionAborted` after [`AsyncFd::close`].
    pub async fn write_with<T>(&self, operation: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        self.attempt(Direction::Write, operation).await
    }

    /// Reads at least one byte into `buf` and says how many; 0 at the end (or if `buf` is empty).
    ///
    /// # Errors
    /// What the kernel says; `ConnectionAborted` after [`AsyncFd::close`].
    pub async fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.attempt(Direction::Read, || (&self.file).read(buf))
            .await
    }

    /// Fills `buf`.
    ///
    /// # Errors
    /// As [`AsyncFd::read`], and `UnexpectedEof` when the end comes before `buf` is full.
    pub async fn read_exact(&self, buf: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < buf.len() {
            match self.read(&mut buf[filled..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => filled += count,
            }
        }
        Ok(())
    }

    /// Writes at least one byte of `data` and says how many.
    ///
    /// # Errors
    /// What the kernel says; `ConnectionAborted` after [`AsyncFd::close`].
    pub async fn write(&self, data: &[u8]) -> io::Result<usize> {
        self.attempt(Direction::Write, || (&self.file).write(data))
            .await
    }

    /// Writes at least one byte of `parts`, in order, and says how many.
    ///
    /// # Errors
    /// What the kernel says; `ConnectionAborted` after [`AsyncFd::close`].
    pub async fn write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.attempt(Direction::Write, || (&self.file).write_vectored(parts))
            .await
    }

    /// Writes all of `data`.
    ///
    /// # Errors
    /// As [`AsyncFd::write`]; how much was written is then unknown.
    pub async fn write_all(&self, data: &[u8]) -> io::Result<()> {
        self.write_all_vectored(&mut [IoSlice::new(data)]).await
    }

    /// Writes all of `parts`, in order; they are used up.
    ///
    /// # Errors
    /// As [`AsyncFd::write`]; how much was written is then unknown.
    pub async fn write_all_vectored(&self, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        IoSlice::advance_slices(&mut parts, 0); // drops leading empty parts
        while !parts.is_empty() {
            match self.write_vectored(parts).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => IoSlice::advance_slices(&mut parts, count),
            }
        }
        Ok(())
    }

    /// Ends every wait on this descriptor, now and later, with `ConnectionAborted`. The descriptor
    /// itself is closed when the last user drops the `AsyncFd`.
    pub fn close(&self) {
        self.source.close();
    }
}

impl AsFd for AsyncFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl AsRawFd for AsyncFd {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

impl Drop for AsyncFd {
    fn drop(&mut self) {
        self.reactor.deregister(self.token, self.file.as_fd());
        self.source.close();
    }
}
