//! Listening addresses of an NBD server: a Unix socket for its owner only, or TCP on the loopback.
//!
//! Invariants: nothing but a socket that nobody answers on is ever replaced; a Unix socket is never
//! reachable with more rights than 0600; without TLS nothing beyond this machine is listened to.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener as StdUnix;
use std::path::{Path, PathBuf};

use ashlar_rt::net::{TcpListener, UnixListener, connect_unix};
use ashlar_rt::{AsyncFd, Rt, SECOND};

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Something that is not a socket has this name.
    #[error("the path exists and is not a socket: choose another, or remove it")]
    NotASocket,
    /// Another process answers there.
    #[error("another server listens there: stop it, or choose another address")]
    InUse,
    /// Not an address of this machine only.
    #[error(
        "only loopback addresses are served, since there is no TLS in this version: use 127.0.0.1, ::1 or a Unix socket"
    )]
    NotLoopback,
    /// The system refused.
    #[error("the system refused to listen there: {0}")]
    System(#[from] io::Error),
}

enum Socket {
    Unix {
        listener: UnixListener,
        path: PathBuf,
        identity: (u64, u64),
    },
    Tcp(TcpListener),
}

/// A socket that accepts NBD clients.
pub struct NbdListener {
    socket: Socket,
}

impl std::fmt::Debug for NbdListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("NbdListener").field(&self.address()).finish()
    }
}

impl NbdListener {
    /// Listens at `path` with mode 0600. A socket there that nobody answers on is replaced.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub async fn unix(rt: &Rt, path: &Path) -> Result<NbdListener, ListenError> {
        if let Ok(found) = fs::symlink_metadata(path) {
            if !found.file_type().is_socket() {
                return Err(ListenError::NotASocket);
            }
            match rt.timeout(SECOND, connect_unix(rt, path)).await {
                Some(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Some(Err(error)) => return Err(error.into()),
                Some(Ok(_)) | None => return Err(ListenError::InUse),
            }
        }
        // Made where nobody else can reach it, then moved to its place with its final rights.
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let private = parent.join(format!(".{:08x}", rt.random() & 0xffff_ffff));
        fs::DirBuilder::new().mode(0o700).create(&private)?;
        let made = make_private(&private.join("s"), path);
        // The directory is empty now unless moving failed.
        let _ = fs::remove_file(private.join("s"));
        let _ = fs::remove_dir(&private);
        let std = made?;
        let found = fs::symlink_metadata(path)?;
        let listener = UnixListener::from_std(rt, std)?;
        let identity = (found.dev(), found.ino());
        Ok(NbdListener {
            socket: Socket::Unix {
                listener,
                path: path.to_owned(),
                identity,
            },
        })
    }

    /// Listens on the loopback; port 0 takes any free one.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn tcp(rt: &Rt, address: SocketAddr) -> Result<NbdListener, ListenError> {
        if !address.ip().is_loopback() {
            return Err(ListenError::NotLoopback);
        }
        match TcpListener::bind(rt, address) {
            Ok(listener) => Ok(NbdListener {
                socket: Socket::Tcp(listener),
            }),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(ListenError::InUse),
            Err(error) => Err(error.into()),
        }
    }

    /// Where it listens, as users write it: `unix:PATH` or `HOST:PORT`.
    pub fn address(&self) -> String {
        match &self.socket {
            Socket::Unix { path, .. } => format!("unix:{}", path.display()),
            Socket::Tcp(listener) => listener
                .local_addr()
                .map_or_else(|_| "tcp".to_owned(), |a| a.to_string()),
        }
    }

    /// The TCP address, if it is one.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        match &self.socket {
            Socket::Unix { .. } => None,
            Socket::Tcp(listener) => listener.local_addr().ok(),
        }
    }

    pub(super) async fn accept(&self) -> io::Result<AsyncFd> {
        match &self.socket {
            Socket::Unix { listener, .. } => listener.accept().await,
            Socket::Tcp(listener) => Ok(listener.accept().await?.0),
        }
    }

    /// Ends a waiting accept, and removes the socket's name if it still is this socket's.
    pub(super) fn close(&self) {
        match &self.socket {
            Socket::Tcp(listener) => listener.close(),
            Socket::Unix {
                listener,
                path,
                identity,
            } => {
                listener.close();
                if fs::symlink_metadata(path).is_ok_and(|m| (m.dev(), m.ino()) == *identity) {
                    let _ = fs::remove_file(path); // gone already is as good
                }
            }
        }
    }
}

fn make_private(temporary: &Path, path: &Path) -> io::Result<StdUnix> {
    let listener = StdUnix::bind(temporary)?;
    fs::set_permissions(temporary, fs::Permissions::from_mode(0o600))?;
    fs::rename(temporary, path)?;
    Ok(listener)
}
