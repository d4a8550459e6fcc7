//! Makes the kernel read the partition table of a disk again.
//!
//! Invariant: only the exclusive holder of a disk can; with partitions in use the kernel refuses and keeps what it knew.

#![expect(
    unsafe_code,
    reason = "a system call that the standard library does not offer"
)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Asks for it.
pub(crate) fn reread_partitions(file: &File) -> io::Result<()> {
    /// `_IO(0x12, 95)` of the kernel's fs.h, the same on all architectures.
    const BLKRRPART: libc::c_ulong = 0x125f;
    // SAFETY: takes no pointers.
    match unsafe { libc::ioctl(file.as_raw_fd(), BLKRRPART as _) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
