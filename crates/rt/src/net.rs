//! Listening and connecting, over Unix and TCP sockets, for tasks of a real runtime. A connection is
//! an [`AsyncFd`].

use std::io;
use std::net::{SocketAddr, TcpListener as StdTcp};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener as StdUnix;
use std::path::Path;

use crate::executor::Rt;
use crate::fd::AsyncFd;
use crate::reactor::sys;

/// Pause before another try when the queue of connections of a Unix socket is full.
const RETRY: crate::Nanos = crate::MILLISECOND;

/// A TCP socket that accepts connections.
#[derive(Debug)]
pub struct TcpListener {
    rt: Rt,
    std: StdTcp,
    fd: AsyncFd,
}

impl TcpListener {
    /// Listens at `address`; port 0 takes any free one (see [`TcpListener::local_addr`]).
    ///
    /// # Errors
    /// What the kernel says, such as `AddrInUse`.
    pub fn bind(rt: &Rt, address: SocketAddr) -> io::Result<TcpListener> {
        TcpListener::from_std(rt, StdTcp::bind(address)?)
    }

    /// Accepts on a socket that listens already.
    ///
    /// # Errors
    /// As [`AsyncFd::new`].
    pub fn from_std(rt: &Rt, std: StdTcp) -> io::Result<TcpListener> {
        let fd = AsyncFd::new(rt, std.try_clone()?)?;
        Ok(TcpListener {
            rt: rt.clone(),
            std,
            fd,
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.std.local_addr()
    }

    /// The next connection, without delay of small packets (`TCP_NODELAY`), and who made it.
    ///
    /// # Errors
    /// What the kernel says; an error of one connection does not end the listener.
    /// `ConnectionAborted` after [`TcpListener::close`].
    pub async fn accept(&self) -> io::Result<(AsyncFd, SocketAddr)> {
        let (stream, peer) = self.fd.read_with(|| self.std.accept()).await?;
        stream.set_nodelay(true)?;
        Ok((AsyncFd::new(&self.rt, stream)?, peer))
    }

    /// Ends a waiting [`TcpListener::accept`].
    pub fn close(&self) {
        self.fd.close();
    }
}

/// A Unix stream socket that accepts connections.
#[derive(Debug)]
pub struct UnixListener {
    rt: Rt,
    std: StdUnix,
    fd: AsyncFd,
}

impl UnixListener {
    /// Listens at `path`, which must not exist. Nothing removes it afterwards but its owner.
    ///
    /// # Errors
    /// What the kernel says, such as `AddrInUse`.
    pub fn bind(rt: &Rt, path: &Path) -> io::Result<UnixListener> {
        UnixListener::from_std(rt, StdUnix::bind(path)?)
    }

    /// Accepts on a socket that listens already.
    ///
    /// # Errors
    /// As [`AsyncFd::new`].
    pub fn from_std(rt: &Rt, std: StdUnix) -> io::Result<UnixListener> {
        let fd = AsyncFd::new(rt, std.try_clone()?)?;
        Ok(UnixListener {
            rt: rt.clone(),
            std,
            fd,
        })
    }

    /// The next connection.
    ///
    /// # Errors
    /// What the kernel says; an error of one connection does not end the listener.
    /// `ConnectionAborted` after [`UnixListener::close`].
    pub async fn accept(&self) -> io::Result<AsyncFd> {
        let (stream, _) = self.fd.read_with(|| self.std.accept()).await?;
        AsyncFd::new(&self.rt, stream)
    }

    /// Ends a waiting [`UnixListener::accept`].
    pub fn close(&self) {
        self.fd.close();
    }
}

/// Connects to `address`, without delay of small packets.
///
/// # Errors
/// What the kernel says, such as `ConnectionRefused`.
pub async fn connect_tcp(rt: &Rt, address: SocketAddr) -> io::Result<AsyncFd> {
    let (socket, done) = sys::connect_tcp(address)?;
    let stream = std::net::TcpStream::from(socket);
    stream.set_nodelay(true)?;
    let fd = AsyncFd::new(rt, stream)?;
    if !done {
        fd.writable().await?;
        sys::socket_error(&fd.as_fd())?;
    }
    Ok(fd)
}

/// Connects to the Unix socket at `path`, waiting while its queue of connections is full.
///
/// # Errors
/// What the kernel says, such as `NotFound` or `ConnectionRefused`; `InvalidInput` for a path that
/// is too long for a socket.
pub async fn connect_unix(rt: &Rt, path: &Path) -> io::Result<AsyncFd> {
    loop {
        match sys::connect_unix(path) {
            Ok(socket) => return AsyncFd::new(rt, socket),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => rt.sleep(RETRY).await,
            Err(error) => return Err(error),
        }
    }
}
