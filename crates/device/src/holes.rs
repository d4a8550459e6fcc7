//! Holes of files: making them, and finding them.
//!
//! Invariant: a file keeps its size.

#![expect(
    unsafe_code,
    reason = "system calls that the standard library does not offer"
)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Makes a hole of a range.
pub(crate) fn punch_hole(file: &File, offset: u64, length: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let offset = i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    let length = i64::try_from(length).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: takes no pointers.
    match unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Where data, or a hole, begins at or after `at`; none if there is no more data.
pub(crate) fn seek(file: &File, at: u64, what: libc::c_int) -> io::Result<Option<u64>> {
    let offset = i64::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: takes no pointers.
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset, what) };
    match u64::try_from(found) {
        Ok(found) => Ok(Some(found)),
        Err(_) => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            error => Err(error),
        },
    }
}
