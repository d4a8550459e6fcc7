//! Devices by system calls made inline: for tmpfs, which io_uring would hand to threads, and for where
//! io_uring is refused. Also the few system calls that opening needs.
//!
//! Invariant: an operation is complete when its method returns; the thread waits for it, so this is
//! for memory-backed files and small machines, not for drives under load.

#![expect(
    unsafe_code,
    reason = "system calls that the standard library does not offer"
)]

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use ashlar_rt::{BLOCK, Buf, Slice};

use crate::erase::erase_now;
use crate::fault::Presence;
use crate::holes::punch_hole;
use crate::{Device, DeviceInfo, DeviceRef, Fault, IoFuture, aligned, check_range, check_write};

/// The most iovecs the kernel takes in one call.
const IOVECS_MAX: usize = 1024;

/// A file or block device, read and written inline.
#[derive(Debug)]
pub struct SyncDevice {
    file: File,
    presence: Presence,
    info: DeviceInfo,
}

impl SyncDevice {
    /// Serves `file`, which is open for what will be asked of it and at least `info.size_bytes` long.
    pub fn new(file: File, info: DeviceInfo) -> SyncDevice {
        SyncDevice {
            presence: Presence::of(&file),
            file,
            info,
        }
    }

    fn write_all(&self, mut offset: u64, data: &[Slice]) -> io::Result<()> {
        let [one] = data else {
            for group in data.chunks(IOVECS_MAX) {
                let total: usize = group.iter().map(|slice| slice.len()).sum();
                let mut done = write_vectored_at(&self.file, group, offset)?;
                if done < total {
                    // Rare: finish slice by slice.
                    for slice in group {
                        let skip = done.min(slice.len());
                        self.file
                            .write_all_at(&slice[skip..], offset + skip as u64)?;
                        done -= skip;
                        offset += slice.len() as u64;
                    }
                } else {
                    offset += total as u64;
                }
            }
            return Ok(());
        };
        self.file.write_all_at(one, offset)
    }
}

/// The size of a file or block device now, in whole blocks.
pub(crate) fn size_of(mut file: &File) -> io::Result<u64> {
    let size = file.seek(SeekFrom::End(0))?;
    Ok(size - size % BLOCK as u64)
}

fn now<T: 'static>(value: T) -> IoFuture<T> {
    Box::pin(std::future::ready(value))
}

fn fault(presence: &Presence, result: io::Result<()>) -> Result<(), Fault> {
    result.map_err(|error| match error.raw_os_error() {
        Some(errno) => presence.fault(errno),
        None => Fault::from_io(&error),
    })
}

/// EBADF, taken for a device that is gone, of a descriptor that is ours and open: it was opened for
/// reading only.
fn written(result: io::Result<()>, presence: &Presence) -> Result<(), Fault> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::EBADF) => Err(Fault::ReadOnly),
        result => fault(presence, result),
    }
}

impl Device for SyncDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, offset: u64, mut buf: Buf) -> IoFuture<(Buf, Result<(), Fault>)> {
        check_range(&self.info, offset, buf.len() as u64);
        let result = fault(&self.presence, self.file.read_exact_at(&mut buf, offset));
        now((buf, result))
    }

    fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<Result<(), Fault>> {
        if check_write(&self.info, offset, &data) == 0 {
            return now(Ok(()));
        }
        let data: Vec<Slice> = data.into_iter().map(aligned).collect();
        now(written(self.write_all(offset, &data), &self.presence))
    }

    fn flush(&self) -> IoFuture<Result<(), Fault>> {
        now(fault(&self.presence, self.file.sync_data()))
    }

    fn discard(&self, offset: u64, length: u64) -> IoFuture<Result<(), Fault>> {
        check_range(&self.info, offset, length);
        if length == 0 || self.info.discard_bytes == 0 {
            return now(Ok(()));
        }
        now(discard_now(&self.file, &self.presence, offset, length))
    }

    fn resized(&self) -> IoFuture<Result<Option<DeviceRef>, Fault>> {
        let again = || -> io::Result<DeviceRef> {
            let info = DeviceInfo {
                size_bytes: size_of(&self.file)?,
                ..self.info.clone()
            };
            Ok(Rc::new(SyncDevice::new(self.file.try_clone()?, info)))
        };
        now(again().map(Some).map_err(|error| Fault::from_io(&error)))
    }

    fn erase(&self) -> IoFuture<Result<(), Fault>> {
        now(erase_now(&self.file, &self.presence))
    }
}

/// Discards and waits for it: a block device's own discard, a hole in a file.
pub(crate) fn discard_now(
    file: &File,
    presence: &Presence,
    offset: u64,
    length: u64,
) -> Result<(), Fault> {
    let result = if presence.is_block() {
        block_discard(file, offset, length)
    } else {
        punch_hole(file, offset, length)
    };
    match result {
        // Discarding is advice; what cannot take it goes without.
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
        result => written(result, presence),
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn write_vectored_at(file: &File, data: &[Slice], offset: u64) -> io::Result<usize> {
    let iovecs: Vec<libc::iovec> = data
        .iter()
        .map(|slice| libc::iovec {
            iov_base: slice.as_ptr().cast_mut().cast(),
            iov_len: slice.len(),
        })
        .collect();
    let count = i32::try_from(iovecs.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let offset = i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    loop {
        // SAFETY: the iovecs describe slices that live, unchanged, until the call returns.
        let done = unsafe { libc::pwritev(file.as_raw_fd(), iovecs.as_ptr(), count, offset) };
        match usize::try_from(done) {
            Ok(done) => return Ok(done),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

fn block_discard(file: &File, offset: u64, length: u64) -> io::Result<()> {
    /// `_IO(0x12, 119)` of the kernel's fs.h, the same on all architectures.
    const BLKDISCARD: libc::c_ulong = 0x1277;
    let range: [u64; 2] = [offset, length];
    // SAFETY: `range` is the two numbers that this call reads, and lives until it returns.
    check(unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD as _, range.as_ptr()) })
}

/// Locks `file` against every other open of it that does the same; `WouldBlock` when one has it.
pub(crate) fn lock_exclusive(file: &File) -> io::Result<()> {
    // SAFETY: takes no pointers.
    check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) })
}

/// What a file lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ground {
    /// Memory.
    Memory,
    /// A program or another machine, which may take any time to answer.
    Others,
    /// A file system of this kernel.
    Own,
}

/// What the file system that holds `file` is.
pub(crate) fn ground_of(file: &File) -> io::Result<Ground> {
    // SAFETY: all zeros is a valid value of this structure of numbers.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is written during the call only.
    check(unsafe { libc::fstatfs(file.as_raw_fd(), &mut stat) })?;
    const RAMFS: u32 = 0x8584_58f6;
    const TMPFS: u32 = 0x0102_1994;
    // FUSE, NFS, CIFS, SMB2, 9p, Ceph, AFS.
    const OTHERS: [u32; 7] = [
        0x6573_5546,
        0x6969,
        0xff53_4d42,
        0xfe53_4d42,
        0x0102_1997,
        0x00c3_6400,
        0x5346_414f,
    ];
    let kind = (stat.f_type & 0xffff_ffff) as u32; // 32 bits, however they are extended
    Ok(match kind {
        RAMFS | TMPFS => Ground::Memory,
        kind if OTHERS.contains(&kind) => Ground::Others,
        _ => Ground::Own,
    })
}
