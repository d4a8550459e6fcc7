//! Faults of the data path, by the error numbers of the kernel.

use std::fs::File;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

use crate::Fault;

/// Tells whether a block device is still there: one that was pulled out answers every operation with
/// EIO, as one with a bad spot does.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    /// Its entry in sysfs, which goes with it; none for a file.
    entry: Option<PathBuf>,
}

impl Presence {
    pub(crate) fn of(file: &File) -> Presence {
        let device = file
            .metadata()
            .ok()
            .filter(|meta| meta.file_type().is_block_device());
        let entry = device.map(|meta| {
            let (major, minor) = (libc::major(meta.rdev()), libc::minor(meta.rdev()));
            PathBuf::from(format!("/sys/dev/block/{major}:{minor}"))
        });
        Presence {
            entry: entry.filter(|entry| entry.exists()),
        }
    }

    /// Whether it is a block device that sysfs knew when it was opened.
    pub(crate) fn is_block(&self) -> bool {
        self.entry.is_some()
    }

    /// What an error number stands for on this device.
    pub(crate) fn fault(&self, errno: i32) -> Fault {
        match (Fault::from_errno(errno), &self.entry) {
            (Fault::Media, Some(entry)) if !entry.exists() => Fault::Offline,
            (fault, _) => fault,
        }
    }
}

/// As an operator reads it.
impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Fault::Media => "it cannot read or write some of its blocks",
            Fault::Offline => "it is disconnected",
            Fault::Timeout => "it does not answer in time",
            Fault::ReadOnly => "it refuses writes (read-only)",
            Fault::NoSpace => "the storage below it is full",
        })
    }
}

impl Fault {
    /// The fault that an error number of a read, write, flush or discard stands for. What is not
    /// known is [`Fault::Media`]: it concerns these bytes, and the engine will find out about others.
    pub fn from_errno(errno: i32) -> Fault {
        match errno {
            // EBADE: another host's reservation holds the device.
            libc::ENODEV | libc::ENXIO | libc::EBADF | libc::EBADE | libc::ESHUTDOWN => {
                Fault::Offline
            }
            libc::ENOTCONN | libc::ECONNRESET | libc::ENOLINK | libc::ECANCELED => Fault::Offline,
            // What a file lies on has gone: a FUSE or NFS server, the way to it, a medium that was taken out.
            libc::ECONNABORTED | libc::ECONNREFUSED | libc::ESTALE | libc::EPIPE => Fault::Offline,
            libc::ENETDOWN | libc::ENETUNREACH | libc::EHOSTDOWN | libc::EHOSTUNREACH => {
                Fault::Offline
            }
            libc::ENOMEDIUM => Fault::Offline,
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Fault::NoSpace,
            libc::EROFS | libc::EPERM | libc::EACCES => Fault::ReadOnly,
            libc::ETIMEDOUT | libc::ETIME => Fault::Timeout,
            // EIO, ENODATA (critical medium error), EILSEQ (protection), EREMOTEIO, EBADMSG, ...
            _ => Fault::Media,
        }
    }

    /// As [`Fault::from_errno`], for an error of the standard library.
    pub fn from_io(error: &std::io::Error) -> Fault {
        match (error.raw_os_error(), error.kind()) {
            (Some(errno), _) => Fault::from_errno(errno),
            (None, std::io::ErrorKind::WriteZero) => Fault::NoSpace,
            (None, _) => Fault::Media,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_a_device_that_is_gone_are_not_its_media() {
        let gone = Presence {
            entry: Some("/sys/dev/block/there-is-no-such-device".into()),
        };
        assert_eq!(gone.fault(libc::EIO), Fault::Offline);
        assert_eq!(gone.fault(libc::ENOSPC), Fault::NoSpace);
        let file = File::open("/dev/null").expect("always there");
        assert_eq!(Presence::of(&file).fault(libc::EIO), Fault::Media);
    }

    #[test]
    fn error_numbers_are_sorted_into_faults() {
        let rows: &[(Fault, &[i32])] = &[
            (
                Fault::Media,
                &[libc::EIO, libc::ENODATA, libc::EILSEQ, libc::EINVAL],
            ),
            (
                Fault::Offline,
                &[
                    libc::ENODEV,
                    libc::ENXIO,
                    libc::EBADF,
                    libc::EBADE,
                    libc::ECONNABORTED,
                    libc::ESTALE,
                    libc::EHOSTUNREACH,
                    libc::ENOMEDIUM,
                ],
            ),
            (Fault::NoSpace, &[libc::ENOSPC, libc::EDQUOT]),
            (Fault::ReadOnly, &[libc::EROFS, libc::EPERM]),
            (Fault::Timeout, &[libc::ETIMEDOUT]),
        ];
        for (fault, errnos) in rows {
            for errno in *errnos {
                assert_eq!(Fault::from_errno(*errno), *fault, "{errno}");
                let error = std::io::Error::from_raw_os_error(*errno);
                assert_eq!(Fault::from_io(&error), *fault, "{errno}");
            }
        }
        let short = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
        assert_eq!(Fault::from_io(&short), Fault::Media);
    }
}
