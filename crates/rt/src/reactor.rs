//! The reactor of a real executor: descriptors by epoll, drivers (such as an I/O ring) by a call per
//! turn, other threads by an eventfd. The only module here that makes system calls.
//!
//! Invariants:
//! - A descriptor is registered once, edge-triggered, for both directions. Its readiness flags are
//!   set by [`Epoll::park`] only, and cleared only right before or after the kernel has said that it
//!   would block, both on the executor's thread: no edge is lost and nothing is ever re-armed.
//! - A token is never used twice, so an event for a descriptor deregistered meanwhile finds nothing.
//! - Every driver has a turn before the executor sleeps, and the executor does not sleep when that
//!   turn completed anything.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::time::Nanos;

/// Token of the eventfd with which other threads end a sleep.
const UNPARK: u64 = 0;
/// Events taken from the kernel at once.
const EVENTS_PER_WAIT: usize = 128;
/// Turns of busy drivers after which descriptors are looked at, even if there is always more to do.
const BUSY_TURNS_MAX: u32 = 4;

/// What a real executor parks on: readiness of descriptors and completions of a ring.
pub trait Reactor {
    /// Collects what has completed; with `wait`, sleeps until something has, `until` (on the
    /// runtime's clock) has passed, or another thread nudges.
    fn park(&self, wait: bool, now: Nanos, until: Option<Nanos>);
    /// A function that makes a sleeping [`Reactor::park`] return, from any thread.
    fn unparker(&self) -> Box<dyn Fn() + Send>;
}

/// A direction in which a descriptor can be ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Bytes, a connection or an end can be read.
    Read,
    /// There is room to write, or writing fails at once.
    Write,
}

/// Something that queues work for the kernel by itself and collects what has completed.
pub trait Driver {
    /// Submits what is queued and collects completions, without sleeping. True if anything completed.
    fn turn(&self) -> bool;
}

#[derive(Default)]
struct Side {
    ready: Cell<bool>,
    waiters: RefCell<Vec<Waker>>,
}

impl Side {
    fn wake(&self) {
        for waker in self.waiters.take() {
            waker.wake();
        }
    }
}

/// What is known about one registered descriptor.
#[derive(Default)]
pub(crate) struct Source {
    read: Side,
    write: Side,
    closed: Cell<bool>,
}

impl Source {
    fn side(&self, direction: Direction) -> &Side {
        match direction {
            Direction::Read => &self.read,
            Direction::Write => &self.write,
        }
    }

    /// Forgets readiness: to be called when the kernel says that it would block.
    pub(crate) fn clear(&self, direction: Direction) {
        self.side(direction).ready.set(false);
    }

    /// Ready once the kernel has reported readiness since the last [`Source::clear`].
    pub(crate) fn poll_ready(
        &self,
        direction: Direction,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if self.closed.get() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let side = self.side(direction);
        if side.ready.get() {
            return Poll::Ready(Ok(()));
        }
        let mut waiters = side.waiters.borrow_mut();
        if !waiters.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiters.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Ends every wait, present and future, with an error.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.read.wake();
        self.write.wake();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    fn report(&self, events: u32) {
        let both = sys::ERROR | sys::HANGUP;
        if events & (sys::IN | sys::PEER_CLOSED | both) != 0 {
            self.read.ready.set(true);
            self.read.wake();
        }
        if events & (sys::OUT | both) != 0 {
            self.write.ready.set(true);
            self.write.wake();
        }
    }
}

/// The reactor: an epoll instance with an eventfd in it.
pub struct Epoll {
    epoll: OwnedFd,
    unpark: Arc<OwnedFd>,
    sources: RefCell<BTreeMap<u64, Rc<Source>>>,
    /// Few: each has a turn before every sleep.
    drivers: RefCell<Vec<(u64, Weak<dyn Driver>)>>,
    next_token: Cell<u64>,
    busy_turns: Cell<u32>,
}

impl std::fmt::Debug for Epoll {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Epoll")
            .field("sources", &self.sources.borrow().len())
            .finish_non_exhaustive()
    }
}

impl Epoll {
    /// A reactor with nothing registered.
    ///
    /// # Errors
    /// When the process has no descriptors left.
    pub fn new() -> io::Result<Epoll> {
        let epoll = sys::epoll_create()?;
        let unpark = Arc::new(sys::eventfd()?);
        sys::epoll_add(epoll.as_fd(), unpark.as_fd(), sys::IN, UNPARK)?;
        Ok(Epoll {
            epoll,
            unpark,
            sources: RefCell::default(),
            drivers: RefCell::default(),
            next_token: Cell::new(UNPARK + 1),
            busy_turns: Cell::new(0),
        })
    }

    fn watch(&self, fd: BorrowedFd<'_>, events: u32) -> io::Result<u64> {
        let token = self.next_token.get();
        self.next_token.set(token + 1);
        sys::epoll_add(self.epoll.as_fd(), fd, events, token)?;
        Ok(token)
    }

    /// Watches `fd` until [`Epoll::deregister`].
    pub(crate) fn register(&self, fd: BorrowedFd<'_>) -> io::Result<(u64, Rc<Source>)> {
        let source = Rc::new(Source::default());
        let events = sys::IN | sys::OUT | sys::PEER_CLOSED | sys::EDGE;
        let token = self.watch(fd, events)?;
        self.sources.borrow_mut().insert(token, source.clone());
        Ok((token, source))
    }

    /// Gives `driver` its turns, also whenever `fd` is readable, until [`Epoll::deregister`] or until
    /// the driver is gone.
    ///
    /// # Errors
    /// When `fd` cannot be polled.
    pub fn attach(&self, fd: BorrowedFd<'_>, driver: Weak<dyn Driver>) -> io::Result<u64> {
        let token = self.watch(fd, sys::IN | sys::EDGE)?;
        self.drivers.borrow_mut().push((token, driver));
        Ok(token)
    }

    /// Stops watching what `token` names. `fd` is the descriptor it was registered with.
    pub fn deregister(&self, token: u64, fd: BorrowedFd<'_>) {
        self.sources.borrow_mut().remove(&token);
        self.drivers
            .borrow_mut()
            .retain(|(known, _)| *known != token);
        // It fails only if the descriptor is not registered, which is what is wanted.
        let _ = sys::epoll_remove(self.epoll.as_fd(), fd);
    }

    /// One turn for every driver; true if any completed something.
    fn turn_drivers(&self) -> bool {
        let drivers: Vec<Rc<dyn Driver>> = self
            .drivers
            .borrow()
            .iter()
            .filter_map(|(_, driver)| driver.upgrade())
            .collect();
        drivers
            .iter()
            .fold(false, |busy, driver| driver.turn() | busy)
    }

    /// Takes events, sleeping at most `timeout`, and reports them.
    fn collect(&self, timeout: Option<Nanos>) {
        let mut events = [sys::NO_EVENT; EVENTS_PER_WAIT];
        let count = match sys::epoll_wait(self.epoll.as_fd(), &mut events, timeout) {
            Ok(count) => count,
            // A ring that completes work, or a debugger, may end the sleep: the executor looks again.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => panic!("waiting on an epoll descriptor that is ours: {error}"),
        };
        for event in &events[..count] {
            let (token, bits) = (event.u64, event.events);
            if token == UNPARK {
                sys::eventfd_drain(self.unpark.as_fd());
                continue;
            }
            let source = self.sources.borrow().get(&token).cloned();
            if let Some(source) = source {
                source.report(bits);
            }
        }
    }
}

impl Reactor for Epoll {
    fn park(&self, wait: bool, now: Nanos, until: Option<Nanos>) {
        let busy = self.turn_drivers();
        if busy && self.busy_turns.get() < BUSY_TURNS_MAX {
            self.busy_turns.set(self.busy_turns.get() + 1);
            return;
        }
        self.busy_turns.set(0);
        if busy || !wait {
            self.collect(Some(0));
            return;
        }
        self.collect(until.map(|until| until.saturating_sub(now)));
        self.turn_drivers();
    }

    fn unparker(&self) -> Box<dyn Fn() + Send> {
        let unpark = self.unpark.clone();
        Box::new(move || sys::eventfd_signal(unpark.as_fd()))
    }
}

#[expect(
    unsafe_code,
    reason = "system calls that the standard library does not offer"
)]
pub(crate) mod sys {
    use std::io;
    use std::mem::{size_of, zeroed};
    use std::net::SocketAddr;
    use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use crate::time::Nanos;

    pub(crate) const IN: u32 = libc::EPOLLIN as u32;
    pub(crate) const OUT: u32 = libc::EPOLLOUT as u32;
    pub(crate) const ERROR: u32 = libc::EPOLLERR as u32;
    pub(crate) const HANGUP: u32 = libc::EPOLLHUP as u32;
    pub(crate) const PEER_CLOSED: u32 = libc::EPOLLRDHUP as u32;
    pub(crate) const EDGE: u32 = libc::EPOLLET as u32;
    pub(crate) const NO_EVENT: libc::epoll_event = libc::epoll_event { events: 0, u64: 0 };

    fn check(result: libc::c_int) -> io::Result<libc::c_int> {
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(result)
        }
    }

    fn own(result: libc::c_int) -> io::Result<OwnedFd> {
        let fd: RawFd = check(result)?;
        // SAFETY: the kernel has just returned this descriptor, and nobody else knows it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    pub(super) fn epoll_create() -> io::Result<OwnedFd> {
        // SAFETY: takes no pointers.
        own(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
    }

    pub(super) fn eventfd() -> io::Result<OwnedFd> {
        // SAFETY: takes no pointers.
        own(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
    }

    pub(super) fn eventfd_signal(fd: BorrowedFd<'_>) {
        // It fails only when the counter is full, and then the reader is woken anyway.
        // SAFETY: takes no pointers.
        let _ = unsafe { libc::eventfd_write(fd.as_raw_fd(), 1) };
    }

    pub(super) fn eventfd_drain(fd: BorrowedFd<'_>) {
        let mut value = 0;
        // It fails only when there is nothing to drain.
        // SAFETY: `value` is written during the call only.
        let _ = unsafe { libc::eventfd_read(fd.as_raw_fd(), &mut value) };
    }

    pub(super) fn epoll_add(
        epoll: BorrowedFd<'_>,
        fd: BorrowedFd<'_>,
        events: u32,
        token: u64,
    ) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: token };
        let (epoll, fd) = (epoll.as_raw_fd(), fd.as_raw_fd());
        // SAFETY: `event` is read during the call only.
        check(unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &mut event) })?;
        Ok(())
    }

    pub(super) fn epoll_remove(epoll: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> io::Result<()> {
        let (epoll, fd) = (epoll.as_raw_fd(), fd.as_raw_fd());
        // SAFETY: removing takes no event.
        check(unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) })?;
        Ok(())
    }

    /// Waits with the precision of nanoseconds where the kernel has it (5.11), else of milliseconds.
    pub(super) fn epoll_wait(
        epoll: BorrowedFd<'_>,
        events: &mut [libc::epoll_event],
        timeout: Option<Nanos>,
    ) -> io::Result<usize> {
        let room = i32::try_from(events.len()).unwrap_or(i32::MAX);
        let spec = timeout.map(|nanos| libc::timespec {
            tv_sec: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(nanos % 1_000_000_000).unwrap_or(0),
        });
        let spec = spec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: `events` has room for `room` entries and `spec` is null or valid; both are used
        // during the call only, and there is no signal mask.
        let result = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                epoll.as_raw_fd(),
                events.as_mut_ptr(),
                room,
                spec,
                std::ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        if let Ok(count) = usize::try_from(result) {
            return Ok(count);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ENOSYS) {
            return Err(error);
        }
        let millis = timeout.map_or(-1, |nanos| {
            i32::try_from(nanos.div_ceil(1_000_000)).unwrap_or(i32::MAX)
        });
        // SAFETY: as above.
        let count = check(unsafe {
            libc::epoll_wait(epoll.as_raw_fd(), events.as_mut_ptr(), room, millis)
        })?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Whether `fd` is ready now; never waits.
    pub(crate) fn is_ready(fd: BorrowedFd<'_>, write: bool) -> bool {
        let events = if write {
            libc::POLLOUT
        } else {
            libc::POLLIN | libc::POLLRDHUP
        };
        let mut entry = libc::pollfd {
            fd: fd.as_raw_fd(),
            events,
            revents: 0,
        };
        // SAFETY: `entry` is one entry, used during the call only.
        unsafe { libc::poll(&mut entry, 1, 0) > 0 }
    }

    pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: takes no pointers.
        let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
        if flags & libc::O_NONBLOCK == 0 {
            // SAFETY: takes no pointers.
            check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) })?;
        }
        Ok(())
    }

    fn socket(family: libc::c_int) -> io::Result<OwnedFd> {
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: takes no pointers.
        own(unsafe { libc::socket(family, kind, 0) })
    }

    /// # Safety
    /// `A` is the address structure of the socket's family.
    unsafe fn connect<A>(socket: &OwnedFd, address: &A, len: usize) -> io::Result<bool> {
        let len = libc::socklen_t::try_from(len).unwrap_or(0);
        let address: *const A = address;
        // SAFETY: `address` is valid for `len` bytes, which are read during the call only.
        let result = unsafe { libc::connect(socket.as_raw_fd(), address.cast(), len) };
        match check(result) {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Begins a connection; the flag says whether it is already made. If not, it is once the
    /// descriptor is writable and [`socket_error`] is none.
    pub(crate) fn connect_tcp(address: SocketAddr) -> io::Result<(OwnedFd, bool)> {
        match address {
            SocketAddr::V4(v4) => {
                // SAFETY: all zeros is a valid address structure.
                let mut raw: libc::sockaddr_in = unsafe { zeroed() };
                raw.sin_family = libc::sa_family_t::try_from(libc::AF_INET).unwrap_or(0);
                raw.sin_port = v4.port().to_be();
                raw.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
                let socket = socket(libc::AF_INET)?;
                // SAFETY: the structure belongs to this family.
                let done = unsafe { connect(&socket, &raw, size_of::<libc::sockaddr_in>()) }?;
                Ok((socket, done))
            }
            SocketAddr::V6(v6) => {
                // SAFETY: all zeros is a valid address structure.
                let mut raw: libc::sockaddr_in6 = unsafe { zeroed() };
                raw.sin6_family = libc::sa_family_t::try_from(libc::AF_INET6).unwrap_or(0);
                raw.sin6_port = v6.port().to_be();
                raw.sin6_addr.s6_addr = v6.ip().octets();
                raw.sin6_flowinfo = v6.flowinfo();
                raw.sin6_scope_id = v6.scope_id();
                let socket = socket(libc::AF_INET6)?;
                // SAFETY: the structure belongs to this family.
                let done = unsafe { connect(&socket, &raw, size_of::<libc::sockaddr_in6>()) }?;
                Ok((socket, done))
            }
        }
    }

    /// Connects to the Unix socket at `path`. `WouldBlock` when its queue of connections is full.
    pub(crate) fn connect_unix(path: &Path) -> io::Result<OwnedFd> {
        // SAFETY: all zeros is a valid address structure.
        let mut raw: libc::sockaddr_un = unsafe { zeroed() };
        raw.sun_family = libc::sa_family_t::try_from(libc::AF_UNIX).unwrap_or(0);
        let bytes = path.as_os_str().as_bytes();
        if bytes.len() >= raw.sun_path.len() || bytes.contains(&0) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (to, from) in raw.sun_path.iter_mut().zip(bytes) {
            *to = *from as libc::c_char;
        }
        let socket = socket(libc::AF_UNIX)?;
        // SAFETY: the structure belongs to this family.
        unsafe { connect(&socket, &raw, size_of::<libc::sockaddr_un>()) }?;
        Ok(socket)
    }

    /// What a connection that was begun has failed with, if it has.
    pub(crate) fn socket_error(fd: &impl AsFd) -> io::Result<()> {
        let mut error: libc::c_int = 0;
        let mut len = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(0);
        let raw = fd.as_fd().as_raw_fd();
        let value: *mut libc::c_int = &mut error;
        // SAFETY: `error` and `len` are written during the call only, and `len` is the size of `error`.
        check(unsafe {
            libc::getsockopt(
                raw,
                libc::SOL_SOCKET,
                libc::SO_ERROR,
                value.cast(),
                &mut len,
            )
        })?;
        if error == 0 {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(error))
        }
    }
}
