//! System calls of the FUSE frontend that the standard library does not offer.
//!
//! Invariant: every pointer that is passed is valid for the duration of the call and no longer used
//! by the kernel after it.

#![expect(
    unsafe_code,
    reason = "system calls that the standard library does not offer"
)]

use std::ffi::{CStr, CString, c_int, c_ulong};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn check_long(result: libc::c_long) -> io::Result<c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    c_int::try_from(result).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Sends one reply to `/dev/fuse`, which takes it whole or not at all and never waits.
pub(super) fn write_reply(fd: &impl AsRawFd, header: &[u8], body: &[u8]) -> io::Result<()> {
    let parts = [
        libc::iovec {
            iov_base: header.as_ptr().cast_mut().cast(),
            iov_len: header.len(),
        },
        libc::iovec {
            iov_base: body.as_ptr().cast_mut().cast(),
            iov_len: body.len(),
        },
    ];
    let count = if body.is_empty() { 1 } else { 2 };
    // SAFETY: both parts are valid for their lengths during the call, and only read.
    let written = unsafe { libc::writev(fd.as_raw_fd(), parts.as_ptr(), count) };
    if written < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Mounts a FUSE file system at `path`.
pub(super) fn mount(path: &CStr, read_only: bool, options: &CStr) -> io::Result<()> {
    let flags = libc::MS_NOSUID | libc::MS_NODEV | if read_only { libc::MS_RDONLY } else { 0 };
    // SAFETY: all strings end with a zero and live during the call.
    check(unsafe {
        libc::mount(
            c"ashlar".as_ptr(),
            path.as_ptr(),
            c"fuse.ashlar".as_ptr(),
            flags,
            options.as_ptr().cast(),
        )
    })?;
    // From now on nothing that is mounted here goes to other namespaces.
    // SAFETY: as above; the null pointers are allowed for a change of propagation.
    check(unsafe {
        libc::mount(
            std::ptr::null(),
            path.as_ptr(),
            std::ptr::null(),
            libc::MS_PRIVATE,
            std::ptr::null(),
        )
    })?;
    Ok(())
}

/// Takes the mount at `path` away; `lazily`: also if it is in use, then from its name only.
pub(super) fn unmount(path: &CStr, lazily: bool) -> io::Result<()> {
    let flags = libc::UMOUNT_NOFOLLOW | if lazily { libc::MNT_DETACH } else { 0 };
    // SAFETY: the path ends with a zero and lives during the call.
    check(unsafe { libc::umount2(path.as_ptr(), flags) })?;
    Ok(())
}

const FSCONFIG_SET_FLAG: u32 = 0;
const FSCONFIG_SET_STRING: u32 = 1;
const FSCONFIG_CMD_CREATE: u32 = 6;
const FSMOUNT_CLOEXEC: u32 = 1;
const MOUNT_ATTR_NOSUID: u32 = 2;
const MOUNT_ATTR_NODEV: u32 = 4;

/// Makes a FUSE file system that is mounted nowhere: a descriptor of its root. An option without a
/// value is a flag.
pub(super) fn mount_hidden(options: &[(&CStr, Option<CString>)]) -> io::Result<OwnedFd> {
    // SAFETY: the name ends with a zero and lives during the call.
    let context = check_long(unsafe { libc::syscall(libc::SYS_fsopen, c"fuse".as_ptr(), 1u32) })?;
    // SAFETY: the kernel has just returned this descriptor, and nobody else knows it.
    let context = unsafe { OwnedFd::from_raw_fd(context) };
    let configure = |command: u32, key: *const libc::c_char, value: *const libc::c_char| {
        // SAFETY: key and value are null or end with a zero, and live during the call.
        check_long(unsafe {
            libc::syscall(
                libc::SYS_fsconfig,
                context.as_raw_fd(),
                command,
                key,
                value,
                0,
            )
        })
    };
    for (key, value) in options {
        match value {
            Some(value) => configure(FSCONFIG_SET_STRING, key.as_ptr(), value.as_ptr())?,
            None => configure(FSCONFIG_SET_FLAG, key.as_ptr(), std::ptr::null())?,
        };
    }
    configure(FSCONFIG_CMD_CREATE, std::ptr::null(), std::ptr::null())?;
    let attributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
    // SAFETY: takes no pointers.
    let mount = check_long(unsafe {
        libc::syscall(
            libc::SYS_fsmount,
            context.as_raw_fd(),
            FSMOUNT_CLOEXEC,
            attributes,
        )
    })?;
    // SAFETY: as for the context.
    Ok(unsafe { OwnedFd::from_raw_fd(mount) })
}

/// The effective user and group of this process.
pub(super) fn owner() -> (u32, u32) {
    // SAFETY: these calls take nothing and cannot fail.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// Of Linux 5.6; the libc crate does not have it.
const PR_SET_IO_FLUSHER: c_int = 57;

/// Tells the kernel that this thread serves block I/O, so that its own memory allocations do not
/// wait for that I/O. Needs CAP_SYS_RESOURCE; false where it is refused.
pub(super) fn set_io_flusher() -> bool {
    let (on, none): (c_ulong, c_ulong) = (1, 0);
    // SAFETY: takes no pointers.
    unsafe { libc::prctl(PR_SET_IO_FLUSHER, on, none, none, none) == 0 }
}

/// The descriptor that the process at the other end of `socket` passes; `None` if it passes none.
pub(super) fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = 0u8;
    let mut part = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let mut control = [0u64; 8]; // aligned, and longer than one descriptor's message
    // SAFETY: all zeros is a valid message header.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: the header points to one part and to `control`, with their lengths; all are written
    // during the call only.
    let count =
        unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    if count < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has filled in the control part and its length.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    if header.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, so it points to a whole header inside `control`.
    let (level, kind) = unsafe { ((*header).cmsg_level, (*header).cmsg_type) };
    if (level, kind) != (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
        return Ok(None);
    }
    // SAFETY: such a message carries at least one descriptor, which now belongs to this process and
    // which nobody else knows; the data may not be aligned.
    let fd =
        unsafe { OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<c_int>().read_unaligned()) };
    Ok(Some(fd))
}
