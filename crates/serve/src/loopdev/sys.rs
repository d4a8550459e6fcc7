//! The requests of loop devices to the kernel, after Linux `include/uapi/linux/loop.h`.

use std::ffi::{c_int, c_ulong};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

const LOOP_CLR_FD: c_ulong = 0x4c01;
const LOOP_GET_STATUS64: c_ulong = 0x4c05;
/// `_IO(0x12, 98)` of the kernel's fs.h: how far it reads ahead, in sectors.
const BLKRASET: c_ulong = 0x1262;
const SECTOR: u32 = 512;
const LOOP_CONFIGURE: c_ulong = 0x4c0a;
const LOOP_CTL_GET_FREE: c_ulong = 0x4c82;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// `struct loop_info64` of Linux `include/uapi/linux/loop.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct LoopInfo {
    pub(super) device: u64,
    pub(super) inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    pub(super) file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

impl LoopInfo {
    const EMPTY: LoopInfo = LoopInfo {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: 0,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };

    /// Whether the device does direct I/O on its file.
    pub(super) fn is_direct(&self) -> bool {
        self.flags & LO_FLAGS_DIRECT_IO != 0
    }
}

/// `struct loop_config` of the same file.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopInfo>() == 232 && size_of::<LoopConfig>() == 304);

fn ioctl(fd: &File, request: c_ulong, argument: c_ulong) -> io::Result<c_int> {
    // SAFETY: only for requests whose argument is a number.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request, argument) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// The number of a device that nobody uses; `control` is /dev/loop-control.
pub(super) fn free_number(control: &File) -> io::Result<c_int> {
    ioctl(control, LOOP_CTL_GET_FREE, 0)
}

/// Takes the file from a device; with other users, once they are gone.
pub(super) fn clear(device: &File) -> io::Result<()> {
    ioctl(device, LOOP_CLR_FD, 0).map(drop)
}

/// How far the kernel reads ahead through the page cache.
pub(super) fn set_read_ahead(device: &File, bytes: u32) -> io::Result<()> {
    ioctl(device, BLKRASET, c_ulong::from(bytes / SECTOR)).map(drop)
}

/// How a device is to be.
pub(super) struct Shape<'a> {
    pub(super) name: &'a str,
    pub(super) read_only: bool,
    pub(super) block_size: u32,
}

/// Gives a device its file; it does direct I/O on it if it can.
pub(super) fn configure(device: &File, file: &File, shape: &Shape<'_>) -> io::Result<()> {
    let mut info = LoopInfo::EMPTY;
    info.flags = LO_FLAGS_DIRECT_IO;
    if shape.read_only {
        info.flags |= LO_FLAGS_READ_ONLY;
    }
    let shown = shape.name.as_bytes();
    let shown = &shown[..shown.len().min(info.file_name.len() - 1)];
    info.file_name[..shown.len()].copy_from_slice(shown);
    let config = LoopConfig {
        fd: file.as_raw_fd().cast_unsigned(),
        block_size: shape.block_size,
        info,
        reserved: [0; 8],
    };
    // SAFETY: `config` has the layout that this request reads, and lives during the call.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// What the kernel says of a device.
pub(super) fn status(device: &File) -> io::Result<LoopInfo> {
    let mut info = LoopInfo::EMPTY;
    // SAFETY: `info` has the layout that this request writes, and lives during the call.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(info)
    }
}
