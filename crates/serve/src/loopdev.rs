//! A loop device on top of a mounted volume: a block device on any kernel that has FUSE.
//!
//! Everything here runs on helper threads: opening the file, configuring and clearing the device
//! read and write through the session, which runs on the runtime's thread.
//!
//! Invariants:
//! - The device does direct I/O, or it is not attached: with buffered I/O the kernel would hold
//!   written data below a flush, twice, in memory that it may need to serve this very device.
//! - A device is cleared only if it is still the one that was attached, and only if nobody uses it exclusively (a
//!   mounted file system, a partition, a stacked device): one that is given up all the same ends with its last user.
//! - No descriptor of the device is kept. If the process dies, its exit waits for nothing; the device
//!   then fails every request and stays until [`clear_stale`].

#![expect(
    unsafe_code,
    reason = "mknod, which the standard library does not offer"
)]

mod sys;

use std::ffi::{CString, c_int};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ashlar_rt::Buf;

use sys::{LoopInfo, Shape};

use crate::flow::on_thread;
use crate::fuse::FuseMount;

/// Why a loop device cannot be attached or detached.
#[derive(Debug, thiserror::Error)]
pub enum LoopError {
    /// There is no loop device to be had.
    #[error("no loop device is available ({0}): run 'modprobe loop', and the daemon as root")]
    NoDevice(io::Error),
    /// The volume's file cannot be opened.
    #[error("the volume's file cannot be opened ({0}): is it still mounted?")]
    File(io::Error),
    /// What was opened is not the volume's file.
    #[error("the volume's file is covered by something else: unmount that first")]
    Covered,
    /// The kernel refused to configure the device.
    #[error("the kernel refused to configure the loop device ({0})")]
    Configure(io::Error),
    /// The kernel does not do direct I/O on it.
    #[error("this kernel cannot do direct I/O on the loop device: serve the volume over NBD")]
    NoDirectIo,
    /// Something uses the device.
    #[error("the loop device is in use: unmount it, or stop the program that uses it")]
    Busy,
    /// It is detached, but a process still has it open.
    #[error("a process still has the loop device open: it disappears when that process closes it")]
    StillOpen,
    /// What was written last could not be written to the volume.
    #[error("the last writes to the loop device failed ({error}): see 'ashlar status'")]
    Flush {
        /// Why.
        error: io::Error,
        /// Why the device is not gone; none if it is.
        then: Option<Box<LoopError>>,
    },
}

/// A loop device that is attached to a mounted volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopAttachment {
    device: PathBuf,
    /// Device and inode of the volume's file.
    identity: (u64, u64),
    /// What the kernel shows as its file.
    shown: String,
}

/// What a mount for a loop device is to be called so that the kernel shows whose it is: no other volume of the machine,
/// of this process or another, has this name. `name` is ARRAY/VOLUME.
pub fn file_name(name: &str) -> String {
    format!(
        "{NAME_PREFIX}{}:{}",
        process_tag(None),
        name.replace('/', ":")
    )
}

impl LoopAttachment {
    /// Attaches a free loop device to `mount`. Its unit is 4096 bytes if the volume's size and block
    /// allow that and `small` sectors are not asked for, else 512. `name`, such as ARRAY/VOLUME, is what `losetup`
    /// knows it by.
    ///
    /// # Errors
    /// See [`LoopError`].
    pub async fn attach(
        mount: &FuseMount,
        name: &str,
        small: bool,
    ) -> Result<LoopAttachment, LoopError> {
        let fits = mount.size_bytes().is_multiple_of(4096) && mount.block_bytes() >= 4096;
        let plan = Plan {
            path: mount.path().to_owned(),
            size_bytes: mount.size_bytes(),
            read_only: mount.is_read_only(),
            wide: fits && !small,
            name: format!("{NAME_PREFIX}{}:{name}", process_tag(None)),
        };
        on_thread(move || attach(&plan))
            .await
            .unwrap_or_else(|| Err(no_thread()))
    }

    /// The block device, such as `/dev/loop0`.
    pub fn device(&self) -> &Path {
        &self.device
    }

    /// Whether the device still is this volume's: anybody with the right may detach it, and the kernel gives its name
    /// to the next. Does not block.
    pub fn is_there(&self) -> bool {
        // Without /sys nothing can be said, and what may be in use is not given up.
        self.shown.is_empty() || backing_file(&self.device).is_some_and(|shown| shown == self.shown)
    }

    /// Writes out what the kernel holds, and detaches the device; with `wait` also one that its last user, a file system
    /// that was just unmounted or a program that looks at every device, lets go within three seconds.
    ///
    /// # Errors
    /// [`LoopError::Busy`] while something is mounted on it: then nothing has changed.
    pub async fn detach(&self, wait: bool) -> Result<(), LoopError> {
        let times = if wait { CLEAR_STEPS } else { 1 };
        let (device, identity) = (self.device.clone(), self.identity);
        on_thread(move || detach(&device, identity, times))
            .await
            .unwrap_or_else(|| Err(no_thread()))
    }

    /// Has the device end when the last of its users closes it, such as a file system that is unmounted;
    /// until then it stays. True if it is gone already.
    ///
    /// # Errors
    /// [`LoopError::Configure`] if the kernel refuses.
    pub async fn release(&self) -> Result<bool, LoopError> {
        let (device, identity) = (self.device.clone(), self.identity);
        on_thread(move || release(&device, identity))
            .await
            .unwrap_or_else(|| Err(no_thread()))
    }
}

/// Detaches devices that an earlier process attached and whose volume is gone: their process has
/// ended, and reading them fails. To be called before the first attachment: among the devices of
/// this process only reading tells. Each with whether it is gone now: one in use goes with its last user.
pub async fn clear_stale() -> Vec<(PathBuf, bool)> {
    on_thread(find_and_clear).await.unwrap_or_default()
}

/// Whether `device` is a loop device that a living process attached for a volume.
pub fn is_served(device: &Path) -> bool {
    status_of(device)
        .is_ok_and(|info| tag_of(&info.file_name).is_some() && !may_be_stale(&info.file_name))
}

/// Whether `device` is a loop device that another living process attached for a volume. Does not block.
pub fn is_anothers(device: &Path) -> bool {
    let shown = backing_file(device).unwrap_or_default();
    let tag = shown
        .strip_prefix('/')
        .and_then(|name| tag_of(name.as_bytes()));
    tag.is_some_and(|tag| {
        let pid = tag.split('.').next().unwrap_or_default();
        tag != process_tag(None) && tag == process_tag(Some(pid))
    })
}

/// The file behind a loop device, as the kernel shows it; none if there is none.
fn backing_file(device: &Path) -> Option<String> {
    let name = device.file_name()?.to_str()?;
    let text = std::fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok()?;
    Some(text.trim_end().to_string())
}

/// Whether `device` is a loop device that this process attached. May block: the kernel asks the
/// volume's file, so this is for helper threads.
pub fn is_own(device: &Path) -> bool {
    let named = device.file_name().and_then(|name| name.to_str());
    if !named.is_some_and(|name| name.starts_with("loop")) {
        return false;
    }
    status_of(device)
        .is_ok_and(|info| tag_of(&info.file_name).is_some_and(|tag| tag == process_tag(None)))
}

/// What `losetup` shows of our devices begins like this.
const NAME_PREFIX: &str = "ashlar:";
/// Free devices may be taken by others between asking and configuring.
const ATTEMPTS: usize = 64;
/// How long clearing, and waiting for the last user, may take, in steps of [`STEP`].
const CLEAR_STEPS: u32 = 150;
/// How long a device that has users is given to be gone all the same.
const RELEASE_STEPS: u32 = 10;
const STEP: Duration = Duration::from_millis(20);

/// How far the kernel reads ahead through the page cache. Its own 128 KiB keep one or two devices of an array busy; this
/// is the largest request of FUSE, which is read from all devices at once.
const READ_AHEAD_BYTES: u32 = 1 << 20;

struct Plan {
    path: PathBuf,
    size_bytes: u64,
    read_only: bool,
    wide: bool,
    name: String,
}

impl Plan {
    fn shape(&self) -> Shape<'_> {
        Shape {
            name: &self.name,
            read_only: self.read_only,
            block_size: if self.wide { 4096 } else { 512 },
        }
    }
}

fn no_thread() -> LoopError {
    LoopError::NoDevice(io::ErrorKind::OutOfMemory.into())
}

fn attach(plan: &Plan) -> Result<LoopAttachment, LoopError> {
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .write(!plan.read_only)
        .open(&plan.path)
        .map_err(LoopError::File)?;
    let found = file.metadata().map_err(LoopError::File)?;
    if found.len() != plan.size_bytes || !found.is_file() {
        return Err(LoopError::Covered); // such as the empty file below the mount
    }
    let identity = (found.dev(), found.ino());
    let control = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/loop-control");
    let control = control.map_err(LoopError::NoDevice)?;
    let mut last = io::Error::from_raw_os_error(libc::EBUSY);
    for _ in 0..ATTEMPTS {
        let number = sys::free_number(&control).map_err(LoopError::NoDevice)?;
        let device = node(number).map_err(LoopError::NoDevice)?;
        let mut options = OpenOptions::new();
        let opened = options.read(true).write(!plan.read_only).open(&device);
        let opened = opened.map_err(LoopError::NoDevice)?;
        match sys::configure(&opened, &file, &plan.shape()) {
            Ok(()) => {
                let info = sys::status(&opened).map_err(LoopError::Configure)?;
                if !info.is_direct() {
                    let _ = sys::clear(&opened); // as it was before
                    return Err(LoopError::NoDirectIo);
                }
                // It serves with less too, where this is refused.
                let _ = sys::set_read_ahead(&opened, READ_AHEAD_BYTES);
                let shown = backing_file(&device).unwrap_or_default();
                return Ok(LoopAttachment {
                    device,
                    identity,
                    shown,
                });
            }
            // Taken by somebody else meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => last = error,
            Err(error) => return Err(LoopError::Configure(error)),
        }
    }
    Err(LoopError::NoDevice(last))
}

/// The node of device `number`; made if nobody else makes nodes here.
fn node(number: c_int) -> io::Result<PathBuf> {
    let path = PathBuf::from(format!("/dev/loop{number}"));
    if path.exists() {
        return Ok(path);
    }
    let text = std::fs::read_to_string(format!("/sys/block/loop{number}/dev"))?;
    let numbers = text
        .trim()
        .split_once(':')
        .ok_or(io::ErrorKind::InvalidData)?;
    let parse = |part: &str| part.parse::<u32>().map_err(|_| io::ErrorKind::InvalidData);
    let device = libc::makedev(parse(numbers.0)?, parse(numbers.1)?);
    let c_path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path ends with a zero and lives during the call.
    let made = unsafe { libc::mknod(c_path.as_ptr(), libc::S_IFBLK | 0o600, device) };
    if made < 0 && !path.exists() {
        return Err(io::Error::last_os_error());
    }
    Ok(path)
}

fn detach(device: &Path, identity: (u64, u64), times: u32) -> Result<(), LoopError> {
    let Some(opened) = open_exclusively(device, times)? else {
        return Ok(());
    };
    match sys::status(&opened) {
        Ok(info) if (info.device, info.inode) == identity => {}
        _ => return Ok(()), // cleared by somebody else, and perhaps attached anew
    }
    let flushed = opened.sync_all();
    let cleared = clear(opened, device, identity, CLEAR_STEPS);
    let Err(error) = flushed else { return cleared };
    // The kernel tells of it once: whatever comes of the device.
    let then = cleared.err().map(Box::new);
    Err(LoopError::Flush { error, then })
}

fn release(device: &Path, identity: (u64, u64)) -> Result<bool, LoopError> {
    let Ok(opened) = File::open(device) else {
        return Ok(true);
    };
    match sys::status(&opened) {
        Ok(info) if (info.device, info.inode) == identity => {}
        _ => return Ok(true), // cleared by somebody else, and perhaps attached anew
    }
    // With other users, this is kept by the kernel until they are gone.
    match clear(opened, device, identity, RELEASE_STEPS) {
        Ok(()) => Ok(true),
        Err(LoopError::StillOpen) => Ok(false),
        Err(error) => Err(error),
    }
}

/// `None` if there is no such device any more. One in use is tried so many times, a [`STEP`] apart.
fn open_exclusively(device: &Path, times: u32) -> Result<Option<File>, LoopError> {
    for _ in 0..times {
        let mut options = OpenOptions::new();
        match options.read(true).custom_flags(libc::O_EXCL).open(device) {
            Ok(opened) => return Ok(Some(opened)),
            Err(error) => match error.raw_os_error() {
                Some(libc::EBUSY) => std::thread::sleep(STEP),
                Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => return Ok(None),
                _ => return Err(LoopError::NoDevice(error)),
            },
        }
    }
    Err(LoopError::Busy)
}

/// Clears the device, which happens when its last user closes it, and waits for that.
fn clear(opened: File, device: &Path, identity: (u64, u64), steps: u32) -> Result<(), LoopError> {
    match sys::clear(&opened) {
        Err(error) if error.raw_os_error() != Some(libc::ENXIO) => {
            return Err(LoopError::Configure(error));
        }
        _ => drop(opened),
    }
    for _ in 0..steps {
        let Ok(again) = File::open(device) else {
            return Ok(());
        };
        match sys::status(&again) {
            Ok(info) if (info.device, info.inode) == identity => {}
            _ => return Ok(()),
        }
        drop(again);
        std::thread::sleep(STEP); // udev and its like look at new devices for a moment
    }
    Err(LoopError::StillOpen)
}

fn find_and_clear() -> Vec<(PathBuf, bool)> {
    let Ok(entries) = std::fs::read_dir("/sys/block") else {
        return Vec::new();
    };
    let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    let loops = names
        .iter()
        .filter_map(|name| name.to_str())
        .filter(|n| n.starts_with("loop"));
    let devices: Vec<PathBuf> = loops.map(|name| Path::new("/dev").join(name)).collect();
    // Side by side: one that a program still has open takes a moment, and is gone when that closes it.
    let cleared = std::thread::scope(|scope| {
        let clear = |device: &PathBuf| {
            let device = device.clone();
            scope.spawn(move || clear_if_stale(&device))
        };
        let threads: Vec<_> = devices.iter().map(clear).collect();
        let ended = threads.into_iter().map(|t| t.join().unwrap_or(None));
        ended.collect::<Vec<Option<bool>>>()
    });
    let pairs = devices.into_iter().zip(cleared);
    pairs
        .filter_map(|(device, gone)| Some((device, gone?)))
        .collect()
}

/// Whether a device that is stale is gone now; `None` if it is not stale.
fn clear_if_stale(device: &Path) -> Option<bool> {
    let is_block = std::fs::metadata(device).is_ok_and(|found| found.file_type().is_block_device());
    let found = is_block.then(|| status_of(device).ok())??;
    if !may_be_stale(&found.file_name) {
        return None;
    }
    // A living volume answers, and is not disturbed further; the page cache must not answer for it.
    let direct = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(device);
    let alive = direct.and_then(|direct| direct.read_at(&mut Buf::zeroed(4096), 0));
    if alive.is_ok() {
        return None;
    }
    Some(release(device, (found.device, found.inode)).unwrap_or(false))
}

/// Who this process, or process `pid`, is for as long as the machine runs: numbers are used again,
/// a number together with its start time is not.
fn process_tag(pid: Option<&str>) -> String {
    let who = pid.unwrap_or("self");
    let text = std::fs::read_to_string(format!("/proc/{who}/stat")).unwrap_or_default();
    let number = text.split(' ').next().unwrap_or_default();
    // The name, in parentheses, may hold anything; state, flags and start time are the first, seventh and 20th field
    // behind it.
    let behind = text.rsplit_once(") ").map_or("", |(_, behind)| behind);
    let mut fields = behind.split(' ');
    let state = fields.next().unwrap_or_default();
    let flags = fields.nth(5).map_or(Ok(0), str::parse::<u64>).unwrap_or(0);
    let started = fields.nth(12).unwrap_or_default();
    if pid.is_some() && (matches!(state, "Z" | "X") || flags & PF_EXITING != 0) {
        return String::new(); // killed: it serves nothing any more, whoever has yet to ask how it ended
    }
    format!("{number}.{started}")
}

/// The kernel's flag of a process that is ending.
const PF_EXITING: u64 = 0x4;

/// The [`process_tag`] in a device's name, if it is one of this program's.
fn tag_of(file_name: &[u8]) -> Option<String> {
    let text = file_name
        .split(|byte| *byte == 0)
        .next()
        .unwrap_or_default();
    let text = String::from_utf8_lossy(text);
    let (tag, _) = text.strip_prefix(NAME_PREFIX)?.split_once(':')?;
    Some(tag.to_string())
}

/// Whether a device of this name is ours and its process may be gone. It is not enough that reading
/// fails: a living volume may have lost just this block.
fn may_be_stale(file_name: &[u8]) -> bool {
    let Some(tag) = tag_of(file_name) else {
        return false;
    };
    let pid = tag.split('.').next().unwrap_or_default();
    tag == process_tag(None) || tag != process_tag(Some(pid))
}

fn status_of(device: &Path) -> std::io::Result<LoopInfo> {
    File::open(device).and_then(|opened| sys::status(&opened))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn only_devices_of_processes_that_are_gone_may_be_stale() {
        let own = process_tag(None);
        assert!(own.len() > 3 && !own.ends_with('.'), "{own}");
        let name = |tag: &str| {
            let mut bytes = format!("{NAME_PREFIX}{tag}:array/volume").into_bytes();
            bytes.resize(64, 0);
            bytes
        };
        let parent = std::os::unix::process::parent_id().to_string();
        assert!(
            !may_be_stale(&name(&process_tag(Some(&parent)))),
            "it lives"
        );
        assert!(
            may_be_stale(&name(&format!("{parent}.1"))),
            "a number used again"
        );
        assert!(may_be_stale(&name("4194305.77")), "no such process");
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        let living = process_tag(Some(&child.id().to_string()));
        assert!(!may_be_stale(&name(&living)), "it lives");
        child.kill().unwrap();
        let killed = std::time::Instant::now();
        while !may_be_stale(&name(&living)) {
            let waited = killed.elapsed();
            assert!(
                waited < std::time::Duration::from_secs(10),
                "killed, and nobody has asked how it ended"
            );
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        child.wait().unwrap();
        assert!(may_be_stale(&name(&own)));
        for foreign in [
            &b"/var/lib/disk.img\0"[..],
            b"",
            b"ashlar",
            b"ashlar:",
            &[0xff; 64],
        ] {
            assert!(!may_be_stale(foreign));
        }
    }
}
