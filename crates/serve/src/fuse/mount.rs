//! Mounting and unmounting: from a volume to a file that others can open.
//!
//! Invariants: whatever asks the kernel for something that may come back to the session runs on a
//! helper thread; a file that was made to be covered is removed again.

use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;

use ashlar_rt::{AsyncFd, Gate, Nanos, Rt, SECOND};

use super::session::{self, Session};
use super::sys;
use crate::Volume;
use crate::flow::{Stop, on_thread};

/// How long the kernel may take to end a session whose mount is gone.
const KERNEL_ENDS: Nanos = 2 * SECOND;

/// Where the file is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// At this path: an empty file is made there if there is none, and what is there is covered.
    File(PathBuf),
    /// Nowhere: only this process can open it, by [`FuseMount::path`], which ends with this name. Others see the
    /// name as that of the file behind a loop device, and tell files apart by it. Needs root and Linux 5.2.
    Hidden(String),
}

/// Why a volume cannot be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
pub enum FuseError {
    /// `/dev/fuse` cannot be opened.
    #[error("/dev/fuse cannot be opened ({0}): load the fuse module, or serve the volume over NBD")]
    NoFuse(io::Error),
    /// There is something else at the path.
    #[error("the mount point must be a regular file or not exist")]
    NotAFile,
    /// The mount point cannot be made or looked at.
    #[error("the mount point cannot be used ({0}): give another directory")]
    MountPoint(io::Error),
    /// The kernel, or fusermount3, refused.
    #[error("mounting failed ({0}): it needs root, or fusermount3 and a mount point of your own")]
    Mount(io::Error),
    /// Someone uses the file.
    #[error("the file is in use: unmount the file system on it and detach its loop device first")]
    Busy,
    /// The kernel refused to unmount.
    #[error("unmounting failed ({0})")]
    Unmount(io::Error),
}

enum How {
    Root(CString),
    Fusermount(PathBuf),
    /// The mount lives as long as this descriptor and whatever was opened through it.
    Hidden(#[expect(dead_code, reason = "kept to be dropped")] OwnedFd),
}

struct Inner {
    session: Rc<Session>,
    path: PathBuf,
    how: RefCell<Option<How>>,
    /// The mount point is ours to remove.
    made: Cell<bool>,
    ended: Cell<bool>,
    changed: Gate,
}

/// A volume that is mounted as a file. Clones are the same mount, which stays until
/// [`FuseMount::unmount`] or the end of the process.
#[derive(Clone)]
pub struct FuseMount(Rc<Inner>);

impl std::fmt::Debug for FuseMount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FuseMount")
            .field("path", &self.0.path)
            .finish_non_exhaustive()
    }
}

impl FuseMount {
    /// Mounts `volume` and serves it until it is unmounted.
    ///
    /// # Errors
    /// See [`FuseError`].
    pub async fn start(
        rt: &Rt,
        volume: Rc<dyn Volume>,
        place: Place,
    ) -> Result<FuseMount, FuseError> {
        let info = volume.info();
        let (uid, gid) = sys::owner();
        let is_root = uid == 0;
        let made = match &place {
            Place::File(path) => {
                let path = path.clone();
                on_thread(move || prepare(&path))
                    .await
                    .unwrap_or_else(|| Err(no_thread()))?
            }
            Place::Hidden(_) => false,
        };
        let folder = matches!(place, Place::Hidden(_));
        let mounted = match place {
            Place::File(path) if is_root => mount_as_root(path, info.read_only).await,
            Place::File(path) => mount_by_helper(path, info.read_only).await,
            Place::Hidden(name) => mount_hidden(uid, gid, name).await,
        };
        let Mounted { fuse, path, how } = match mounted {
            Ok(mounted) => mounted,
            Err((path, error)) => {
                if made {
                    let _ = std::fs::remove_file(path); // as it was before
                }
                return Err(error);
            }
        };
        if !sys::set_io_flusher() {
            tracing::debug!("fuse: PR_SET_IO_FLUSHER was refused; it needs CAP_SYS_RESOURCE");
        }
        let fd = AsyncFd::new(rt, fuse).map_err(FuseError::NoFuse)?;
        let fd = RefCell::new(Some(Rc::new(fd)));
        let session = Rc::new(Session {
            rt: rt.clone(),
            fd,
            volume,
            info,
            owner: (uid, gid),
            folder,
            stop: Stop::default(),
        });
        let mount = FuseMount(Rc::new(Inner {
            session: session.clone(),
            path,
            how: RefCell::new(Some(how)),
            made: Cell::new(made),
            ended: Cell::new(false),
            changed: Gate::default(),
        }));
        let inner = mount.0.clone();
        rt.spawn(async move {
            session::serve(session).await;
            inner.ended.set(true);
            inner.changed.open();
        });
        Ok(mount)
    }

    /// What to open. Not from the runtime's own thread: opening waits for an answer of the session.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The size of the file.
    pub fn size_bytes(&self) -> u64 {
        self.0.session.info.size_bytes
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.0.session.info.read_only
    }

    pub(crate) fn block_bytes(&self) -> u32 {
        self.0.session.info.block_bytes
    }

    /// Whether the session has ended, be it because somebody else unmounted the file.
    pub fn has_ended(&self) -> bool {
        self.0.ended.get()
    }

    /// Unmounts and waits for what is in flight. Copies of the mount in other mount namespaces, which
    /// containers and services get without asking, end too. A hidden file is closed when its last user closes
    /// it: detach its loop device first.
    ///
    /// # Errors
    /// [`FuseError::Busy`] while someone uses the file: then it stays mounted.
    pub async fn unmount(&self) -> Result<(), FuseError> {
        let inner = &self.0;
        let how = inner.how.take();
        let Some(how) = how else {
            inner.changed.until(|| inner.ended.get()).await;
            return Ok(());
        };
        if inner.ended.get() && !matches!(how, How::Hidden(_)) {
            self.cleanup(); // unmounted by somebody else
            return Ok(());
        }
        let (how, result) = on_thread(move || take_away(how)).await.unwrap_or((
            None,
            Err(FuseError::Unmount(io::ErrorKind::OutOfMemory.into())),
        ));
        if result.is_err() {
            inner.how.replace(how);
            return result;
        }
        let ended = || inner.changed.until(|| inner.ended.get());
        let rt = &inner.session.rt;
        if rt.timeout(KERNEL_ENDS, ended()).await.is_none() {
            tracing::debug!("fuse: another mount namespace has a copy of the mount; it ends");
            inner.session.close();
            ended().await;
        }
        self.cleanup();
        Ok(())
    }

    /// Ends the session whether or not the file is in use: its users get errors from now on. For
    /// when the array fails or the process must end.
    pub async fn abort(&self) {
        let inner = &self.0;
        inner.session.close();
        inner.changed.until(|| inner.ended.get()).await;
        let how = inner.how.take();
        on_thread(move || match how {
            Some(How::Root(path)) => drop(sys::unmount(&path, true)),
            Some(How::Fusermount(path)) => drop(fusermount_unmount(&path, true)),
            Some(How::Hidden(_)) | None => {}
        })
        .await;
        self.cleanup();
    }

    fn cleanup(&self) {
        if self.0.made.replace(false) {
            let _ = std::fs::remove_file(&self.0.path); // gone already is as good
        }
    }
}

/// Sees to it that there is a regular file at `path`; true if it was made.
fn prepare(path: &Path) -> Result<bool, FuseError> {
    match OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
    {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let found = std::fs::symlink_metadata(path).map_err(FuseError::MountPoint)?;
            if found.is_file() {
                Ok(false)
            } else {
                Err(FuseError::NotAFile)
            }
        }
        Err(error) => Err(FuseError::MountPoint(error)),
    }
}

struct Mounted {
    fuse: OwnedFd,
    path: PathBuf,
    how: How,
}

type MountResult = Result<Mounted, (PathBuf, FuseError)>;

fn open_fuse() -> Result<OwnedFd, FuseError> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK);
    options
        .open("/dev/fuse")
        .map(File::into)
        .map_err(FuseError::NoFuse)
}

fn no_thread() -> FuseError {
    FuseError::Mount(io::ErrorKind::OutOfMemory.into())
}

async fn mount_as_root(path: PathBuf, read_only: bool) -> MountResult {
    let keep = path.clone();
    let work = move || {
        let path = std::fs::canonicalize(&path).map_err(FuseError::MountPoint)?;
        let fuse = open_fuse()?;
        let options = format!(
            "fd={},rootmode=100600,user_id=0,group_id=0,default_permissions,allow_other",
            fuse.as_raw_fd()
        );
        let c_path = c_string(path.as_os_str().as_bytes())?;
        let options = c_string(options.as_bytes())?;
        sys::mount(&c_path, read_only, &options).map_err(FuseError::Mount)?;
        Ok(Mounted {
            fuse,
            path,
            how: How::Root(c_path),
        })
    };
    on_thread(work)
        .await
        .unwrap_or_else(|| Err(no_thread()))
        .map_err(|error| (keep, error))
}

async fn mount_hidden(uid: u32, gid: u32, name: String) -> MountResult {
    let work = move || {
        let fuse = open_fuse()?;
        let text = |value: String| CString::new(value).ok();
        let options = [
            (c"source", text("ashlar".into())),
            (c"fd", text(fuse.as_raw_fd().to_string())),
            (c"rootmode", text("40500".into())),
            (c"user_id", text(uid.to_string())),
            (c"group_id", text(gid.to_string())),
            (c"default_permissions", None),
            (c"allow_other", None),
        ];
        let root = sys::mount_hidden(&options).map_err(FuseError::Mount)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}/{name}", root.as_raw_fd()));
        Ok(Mounted {
            fuse,
            path,
            how: How::Hidden(root),
        })
    };
    let result = on_thread(work).await.unwrap_or_else(|| Err(no_thread()));
    result.map_err(|error| (PathBuf::new(), error))
}

/// Without root: the set-user-id helper of libfuse opens `/dev/fuse`, mounts, and passes the
/// descriptor over the socket that is its standard input.
async fn mount_by_helper(path: PathBuf, read_only: bool) -> MountResult {
    let keep = path.clone();
    let work = move || {
        let path = std::fs::canonicalize(&path).map_err(FuseError::MountPoint)?;
        let (ours, theirs) = UnixStream::pair().map_err(FuseError::Mount)?;
        let mut options =
            String::from("nosuid,nodev,fsname=ashlar,subtype=ashlar,default_permissions");
        options.push_str(if read_only { ",ro" } else { ",rw" });
        let mut child = Command::new("fusermount3")
            .args(["-o", &options, "--"])
            .arg(&path)
            .env("_FUSE_COMMFD", "0")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(FuseError::Mount)?;
        let received = sys::receive_descriptor(&ours);
        let status = child.wait().map_err(FuseError::Mount)?;
        let fuse = received.map_err(FuseError::Mount)?;
        match fuse.filter(|_| status.success()) {
            Some(fuse) => Ok(Mounted {
                fuse,
                path: path.clone(),
                how: How::Fusermount(path),
            }),
            None => Err(FuseError::Mount(io::ErrorKind::PermissionDenied.into())),
        }
    };
    on_thread(work)
        .await
        .unwrap_or_else(|| Err(no_thread()))
        .map_err(|error| (keep, error))
}

fn c_string(bytes: &[u8]) -> Result<CString, FuseError> {
    CString::new(bytes).map_err(|_| FuseError::MountPoint(io::ErrorKind::InvalidInput.into()))
}

/// Unmounts; gives `how` back if that failed.
fn take_away(how: How) -> (Option<How>, Result<(), FuseError>) {
    let result = match &how {
        How::Root(path) => sys::unmount(path, false),
        How::Fusermount(path) => fusermount_unmount(path, false),
        How::Hidden(_) => Ok(()),
    };
    let result = match result {
        Ok(()) => return (None, Ok(())), // `how` is dropped here: a hidden mount ends on this thread
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Err(FuseError::Busy),
        Err(error) => Err(FuseError::Unmount(error)),
    };
    (Some(how), result)
}

/// Says only whether it worked; being in use is why it usually does not.
fn fusermount_unmount(path: &Path, lazily: bool) -> io::Result<()> {
    let mut command = Command::new("fusermount3");
    command
        .arg("-u")
        .args(lazily.then_some("-z"))
        .arg("--")
        .arg(path);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if command.status()?.success() {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }
}
