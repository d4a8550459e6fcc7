//! Opening files and block devices: what they are, how large, who else has them.
//!
//! Invariant: what was opened with [`OpenMode::exclusive`] is held against every other process that
//! opens it so, and a block device also against mounting, until the device is dropped.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ashlar_rt::{BLOCK, Buf};

use crate::sync::{Ground, ground_of, lock_exclusive};
use crate::uring::{Ring, UringDevice};
use crate::window::Window;
use crate::{DeviceInfo, DeviceRef, Part, SyncDevice};

/// How a device is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenMode {
    /// Writing, flushing and discarding will not be asked for (they fail).
    pub read_only: bool,
    /// No other process may have it: the mode for members of a started array.
    pub exclusive: bool,
}

/// Why a device could not be opened or created.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Nothing is there.
    #[error(
        "{path}: there is no such file or device; check the path (`lsblk` lists block devices)"
    )]
    NotFound {
        /// What was to be opened.
        path: PathBuf,
    },
    /// The process may not.
    #[error(
        "{path}: permission denied; the daemon's user, mostly root, needs the right to read and write it"
    )]
    Permission {
        /// What was to be opened.
        path: PathBuf,
    },
    /// Nobody may, root neither.
    #[error(
        "{path}: the kernel refuses to open it, even for root: its driver, a device cgroup or a security module \
         forbids it; leave it out, or allow it there"
    )]
    Forbidden {
        /// What was to be opened.
        path: PathBuf,
    },
    /// Somebody else has it.
    #[error(
        "{path} is in use: it is mounted, part of a started array, or open in another program; stop that first \
         (`lsblk {path}` and `fuser -v {path}` show what uses it)"
    )]
    InUse {
        /// What was to be opened.
        path: PathBuf,
    },
    /// Neither a block device nor a regular file.
    #[error("{path} is neither a block device nor a regular file; give one of these")]
    NotADevice {
        /// What was to be opened.
        path: PathBuf,
    },
    /// Not even one block.
    #[error(
        "{path} is too small: {size_bytes} bytes, less than one block of 4096; use a larger one"
    )]
    TooSmall {
        /// What was to be opened.
        path: PathBuf,
        /// Its size in bytes.
        size_bytes: u64,
    },
    /// It, or what it lies on, cannot be written.
    #[error("{path} is write-protected; make it writable, or open it read-only")]
    ReadOnly {
        /// What was to be opened.
        path: PathBuf,
    },
    /// A file to be created is there already.
    #[error("{path} exists already and was left as it is; choose another name or remove it first")]
    Exists {
        /// What was to be created.
        path: PathBuf,
    },
    /// The file system below is full, or the file is larger than it allows.
    #[error(
        "{path}: the file system has no room for {size_bytes} bytes; free some or choose another"
    )]
    NoSpace {
        /// What was to be created.
        path: PathBuf,
        /// How large it was to be.
        size_bytes: u64,
    },
    /// A size that is not whole blocks.
    #[error("{size_bytes} bytes are not a positive multiple of 4096; round the size of {path}")]
    Size {
        /// What was to be created.
        path: PathBuf,
        /// How large it was to be.
        size_bytes: u64,
    },
    /// Anything else the system says.
    #[error("{path}: {source}; see the kernel's messages (`dmesg`)")]
    Io {
        /// What was to be opened or created.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl OpenError {
    fn new(path: &Path, source: io::Error) -> OpenError {
        let path = path.to_path_buf();
        // A node whose device is gone is as good as no node.
        let gone = [libc::ENXIO, libc::ENODEV, libc::ENOMEDIUM];
        if source.raw_os_error().is_some_and(|e| gone.contains(&e)) {
            return OpenError::NotFound { path };
        }
        match source.kind() {
            io::ErrorKind::NotFound => OpenError::NotFound { path },
            io::ErrorKind::PermissionDenied if source.raw_os_error() == Some(libc::EPERM) => {
                OpenError::Forbidden { path }
            }
            io::ErrorKind::PermissionDenied => OpenError::Permission { path },
            io::ErrorKind::ResourceBusy | io::ErrorKind::WouldBlock => OpenError::InUse { path },
            io::ErrorKind::ExecutableFileBusy => OpenError::InUse { path },
            io::ErrorKind::AlreadyExists => OpenError::Exists { path },
            io::ErrorKind::ReadOnlyFilesystem => OpenError::ReadOnly { path },
            _ => OpenError::Io { path, source },
        }
    }
}

/// Opens the block device or regular file at `path`. With a ring it is served by io_uring, except on
/// tmpfs; O_DIRECT is used where the file system takes it. The size of a file is rounded down to
/// whole blocks of 4096 bytes.
///
/// # Errors
/// See [`OpenError`]; the Display of each says what to do.
pub fn open(ring: Option<&Ring>, path: &Path, mode: OpenMode) -> Result<DeviceRef, OpenError> {
    Ok(open_unserved(path, mode)?.serve(ring))
}

/// A device that is open and that nobody serves yet. Opening may wait for the device, without a
/// limit; this can be had on another thread, and brought to the one that serves it.
#[derive(Debug)]
pub struct Unserved {
    pub(crate) file: File,
    info: DeviceInfo,
    ground: Ground,
    /// Its size to the byte.
    pub(crate) size: u64,
    /// Its logical sectors, in bytes.
    pub(crate) sector: u32,
    /// Of a block device.
    pub(crate) number: Option<u64>,
    /// What of it is shown; none for all.
    pub(crate) part: Option<Part>,
}

impl Unserved {
    /// The device; this does not wait for it.
    pub fn serve(self, ring: Option<&Ring>) -> DeviceRef {
        let all: DeviceRef = match ring {
            Some(ring) if self.ground != Ground::Memory => {
                let slow = self.ground == Ground::Others;
                Rc::new(UringDevice::on(ring, self.file, self.info, slow))
            }
            _ => Rc::new(SyncDevice::new(self.file, self.info)),
        };
        match self.part {
            Some(part) => Window::new(all, part),
            None => all,
        }
    }
}

/// The first half of [`open`]: all of it that may wait for the device.
///
/// # Errors
/// As [`open`].
pub fn open_unserved(path: &Path, mode: OpenMode) -> Result<Unserved, OpenError> {
    let fail = |error| OpenError::new(path, error);
    let meta = std::fs::metadata(path).map_err(fail)?;
    let block = meta.file_type().is_block_device();
    if !block && !meta.is_file() {
        return Err(OpenError::NotADevice {
            path: path.to_path_buf(),
        });
    }
    // On a block device O_EXCL claims it, against mounts too; files are locked below.
    let claim = if block && mode.exclusive {
        libc::O_EXCL
    } else {
        0
    };
    let file = open_file(path, mode, claim).map_err(fail)?;
    if mode.exclusive && !block {
        lock_exclusive(&file).map_err(fail)?;
    }
    let meta = file.metadata().map_err(fail)?; // of what was opened, not of what was looked at
    if meta.file_type().is_block_device() != block {
        return Err(OpenError::NotADevice {
            path: path.to_path_buf(),
        });
    }
    if block && !mode.read_only && is_write_protected(&meta) {
        return Err(OpenError::ReadOnly {
            path: path.to_path_buf(),
        });
    }
    let size = (&file).seek(SeekFrom::End(0)).map_err(fail)?;
    let size_bytes = size - size % BLOCK as u64;
    if size_bytes == 0 {
        return Err(OpenError::TooSmall {
            path: path.to_path_buf(),
            size_bytes: size,
        });
    }
    let queue = Queue::of(&meta, block);
    let info = DeviceInfo {
        size_bytes,
        rotational: queue.rotational,
        discard_bytes: if block {
            queue.discard_bytes
        } else {
            BLOCK as u64
        },
        name: path.display().to_string(),
        file: (!block).then(|| (meta.dev(), meta.ino())),
    };
    let ground = match block {
        true => Ground::Own,
        false => ground_of(&file).map_err(fail)?,
    };
    Ok(Unserved {
        file,
        info,
        ground,
        size,
        sector: if block { queue.sector } else { 512 },
        number: block.then(|| meta.rdev()),
        part: None,
    })
}

/// Opens with O_DIRECT if a read of one block works so, else through the page cache.
fn open_file(path: &Path, mode: OpenMode, claim: i32) -> io::Result<File> {
    let options = |flags: i32| {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(!mode.read_only)
            .custom_flags(flags | claim);
        options
    };
    match options(libc::O_DIRECT).open(path) {
        Ok(file) => {
            let refused = |e: io::Error| e.raw_os_error() == Some(libc::EINVAL);
            if !file.read_at(&mut Buf::zeroed(BLOCK), 0).is_err_and(refused) {
                return Ok(file); // other errors are the device's own and will show
            }
            drop(file); // gives the claim back
            options(0).open(path)
        }
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => options(0).open(path),
        Err(error) => Err(error),
    }
}

/// Whether the kernel lets nobody write to a block device. It opens one for writing all the same, and then refuses
/// each write.
fn is_write_protected(meta: &Metadata) -> bool {
    let number = meta.rdev();
    let (major, minor) = (libc::major(number), libc::minor(number));
    let flag = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/ro"));
    flag.is_ok_and(|flag| flag.trim() == "1")
}

/// What sysfs says of the block device that is, or lies below, a file.
struct Queue {
    rotational: bool,
    discard_bytes: u64,
    sector: u32,
}

impl Queue {
    fn of(meta: &Metadata, block: bool) -> Queue {
        let number = if block { meta.rdev() } else { meta.dev() };
        let (major, minor) = (libc::major(number), libc::minor(number));
        let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        // A partition has its queue one level up.
        let queue = [device.join("queue"), device.join("../queue")]
            .into_iter()
            .find(|queue| queue.is_dir())
            .unwrap_or_default();
        let read = |name: &str| -> u64 {
            let text = std::fs::read_to_string(queue.join(name)).unwrap_or_default();
            text.trim().parse().unwrap_or(0)
        };
        // virtio does not say what it is, and the kernel's default for that is "rotational".
        let unknown = std::fs::canonicalize(&device).is_ok_and(|path| {
            path.components()
                .any(|c| c.as_os_str().to_string_lossy().starts_with("virtio"))
        });
        let discards = read("discard_max_bytes") > 0;
        Queue {
            rotational: read("rotational") == 1 && !unknown,
            discard_bytes: if discards {
                read("discard_granularity")
                    .next_multiple_of(BLOCK as u64)
                    .max(BLOCK as u64)
            } else {
                0
            },
            sector: u32::try_from(read("logical_block_size")).unwrap_or(0),
        }
    }
}

/// Makes a sparse file of `size_bytes`, readable and writable by its owner only. An empty file is taken as it is: one
/// that was cut off between being made and being given its size.
///
/// # Errors
/// [`OpenError::Exists`] if there is anything else at `path`; see the others for the rest. On an error no
/// file is left behind.
pub fn create_file(path: &Path, size_bytes: u64) -> Result<(), OpenError> {
    if size_bytes == 0 || !size_bytes.is_multiple_of(BLOCK as u64) {
        return Err(OpenError::Size {
            path: path.to_path_buf(),
            size_bytes,
        });
    }
    let file = new_or_empty(path).map_err(|error| OpenError::new(path, error))?;
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let grown = file
        .set_len(size_bytes)
        .and_then(|()| file.sync_all())
        .and_then(|()| File::open(folder.unwrap_or(Path::new(".")))?.sync_all());
    grown.map_err(|source| {
        // Nothing more can be done if this fails too.
        let _ = std::fs::remove_file(path);
        match source.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::FileTooLarge
            | io::ErrorKind::QuotaExceeded => OpenError::NoSpace {
                path: path.to_path_buf(),
                size_bytes,
            },
            _ => OpenError::new(path, source),
        }
    })
}

/// A new file, or one that is there and empty, locked against others that would take it.
fn new_or_empty(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    let there = || io::Error::from(io::ErrorKind::AlreadyExists);
    let file = match options.clone().create_new(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let meta = std::fs::symlink_metadata(path)?;
            if !meta.is_file() || meta.len() > 0 {
                return Err(there());
            }
            options.open(path)?
        }
        file => file?,
    };
    lock_exclusive(&file)?;
    let meta = file.metadata()?;
    if meta.is_file() && meta.len() == 0 {
        Ok(file)
    } else {
        Err(there())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_root_may_not_open_either_is_not_answered_with_become_root() {
        let said = |code| {
            let error = io::Error::from_raw_os_error(code);
            OpenError::new(Path::new("/dev/x"), error).to_string()
        };
        assert!(said(libc::EACCES).contains("mostly root, needs the right"));
        let forbidden = said(libc::EPERM);
        assert!(forbidden.contains("cgroup"), "{forbidden}");
        assert!(!forbidden.contains("needs the right"), "{forbidden}");
    }
}
