//! Where on a device an array's device lies: of a whole disk in the partition that it was given, of anything else
//! (a file, a partition, a loop device) from its beginning.
//!
//! **Invariants**: what lies at the beginning of a device goes first, so an array made on all of a disk is found as it
//! was; a whole disk is looked at whatever table the kernel has found, or has not. All of this may wait for the device.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use ashlar_device::{OpenError, OpenMode, PART_FIRST, Part, PartError, Unserved, open_unserved};
use ashlar_format::superblock::MAGIC;
use ashlar_verify::FileSource;

use crate::failure::Failure;

/// Only tests have this variable: what lies there says which devices are whole disks, and has their lights.
const SYSFS: &str = "ASHLAR_TEST_SYSFS";

const LOOK: OpenMode = OpenMode {
    read_only: true,
    exclusive: false,
};

/// Where sysfs is.
pub(crate) fn sysfs() -> PathBuf {
    std::env::var_os(SYSFS).map_or("/sys".into(), PathBuf::from)
}

/// The device at `path`, or the part of it that a seat shows, as the verifier reads it.
///
/// # Errors
/// If it cannot be opened.
pub(crate) fn source(path: &Path, shown: Option<Part>) -> Result<FileSource, Failure> {
    let source = match shown {
        Some(part) => FileSource::open_part(path, part.first, part.length),
        None => FileSource::open(path),
    };
    source.map_err(|e| Failure::broken(format!("{}: {e}", path.display())))
}

/// The device, or the partition of it in which one of an array lies or was to lie.
pub(crate) fn seat(opened: Unserved) -> Unserved {
    let part = partition(&opened);
    opened.within(part)
}

/// The partition of a device, opened for looking only, in which one of an array lies; none if that has all of it.
///
/// # Errors
/// If it cannot be opened.
pub(crate) fn place(path: &Path) -> Result<Option<Part>, OpenError> {
    let opened = open_unserved(path, LOOK)?;
    Ok(partition(&opened))
}

fn partition(opened: &Unserved) -> Option<Part> {
    if opened.has(0, MAGIC) {
        return None;
    }
    opened.own_partition().or_else(|| {
        let sysfs = sysfs();
        // Another's table with a partition there: its node is what the array was made on.
        let disk = opened.is_whole_disk(&sysfs) && !opened.has_partition_there(&sysfs);
        let part = opened.part().ok().filter(|_| disk)?;
        opened.has(PART_FIRST, MAGIC).then_some(part)
    })
}

/// The partition that a whole disk would be given; none for anything else.
///
/// # Errors
/// If it cannot be opened, or has no room for one.
pub(crate) fn part_of_disk(path: &Path, metadata: &Metadata) -> Result<Option<Part>, String> {
    let block = metadata.file_type().is_block_device();
    if !block || !ashlar_device::is_whole_disk(&sysfs(), metadata.rdev()) {
        return Ok(None);
    }
    let opened = open_unserved(path, LOOK).map_err(|error| error.to_string())?;
    let part = opened.part();
    let told = |error: PartError| format!("{}: {error}", path.display());
    part.map(Some).map_err(told)
}

/// Whether this is the kernel's node for the partition of a whole disk of ours: one device with the disk itself.
pub(crate) fn is_node_of_own_disk(path: &Path) -> bool {
    let Ok(metadata) = std::fs::metadata(path) else {
        return false;
    };
    let number = metadata
        .file_type()
        .is_block_device()
        .then(|| metadata.rdev());
    let disk = number.and_then(|n| ashlar_device::disk_of_partition(&sysfs(), n));
    let disk = disk.and_then(|name| open_unserved(&Path::new("/dev").join(name), LOOK).ok());
    disk.is_some_and(|disk| disk.own_partition().is_some())
}
