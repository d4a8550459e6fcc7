//! Whole disks: which block devices are one, and which part of one an array is given.
//!
//! Invariants: pure decisions, of numbers and of what lies under the root of a sysfs; the part depends on the size in
//! bytes alone, so a disk that is presented with sectors of another size has the same one.

use std::path::{Path, PathBuf};

/// Where the partition begins, and what its ends are multiples of.
pub const PART_FIRST: u64 = 1 << 20;
/// The least that is left free at the end of a disk.
const FREE_LEAST: u64 = 8 << 20;
/// The part of a disk that is left free at its end: disks of "the same" size differ by some MB.
const FREE_SHARE: u64 = 1000;

/// A part of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its first byte.
    pub first: u64,
    /// How many it has.
    pub length: u64,
}

/// Why a disk cannot be given a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartError {
    /// Nothing would be left.
    #[error(
        "a disk of {disk_bytes} bytes has no room for a partition: 1 MiB before it and 8 MiB behind it stay free; \
         use a larger one"
    )]
    TooSmall {
        /// The disk's size in bytes.
        disk_bytes: u64,
    },
    /// Sectors that no partition table knows.
    #[error(
        "sectors of {sector} bytes; a partition table takes 512 or 4096, use a disk with these"
    )]
    Sector {
        /// The logical sector in bytes.
        sector: u32,
    },
}

/// The part of a whole disk that an array is given: from 1 MiB on, whole MiB, with 0.1 % of the disk and at least
/// 8 MiB left free at the end.
///
/// # Errors
/// If the disk is too small, or has odd sectors.
pub fn part_of(disk_bytes: u64, sector: u32) -> Result<Part, PartError> {
    if !matches!(sector, 512 | 4096) {
        return Err(PartError::Sector { sector });
    }
    let free = disk_bytes.div_ceil(FREE_SHARE).max(FREE_LEAST);
    let end = disk_bytes.saturating_sub(free) / PART_FIRST * PART_FIRST;
    match end.checked_sub(PART_FIRST) {
        None | Some(0) => Err(PartError::TooSmall { disk_bytes }),
        Some(length) => Ok(Part {
            first: PART_FIRST,
            length,
        }),
    }
}

/// The entry of a block device, by its number.
fn entry(sysfs: &Path, number: u64) -> PathBuf {
    let (major, minor) = (libc::major(number), libc::minor(number));
    sysfs.join(format!("dev/block/{major}:{minor}"))
}

/// Whether a block device is a whole disk: one that a driver of hardware has made. Partitions, loop devices, device
/// mapper and md are none.
pub fn is_whole_disk(sysfs: &Path, number: u64) -> bool {
    let entry = entry(sysfs, number);
    entry.join("device").exists() && !entry.join("partition").exists()
}

/// Whether the kernel knows a partition of this disk that begins where an array's would.
pub fn has_partition_there(sysfs: &Path, number: u64) -> bool {
    let entries = std::fs::read_dir(entry(sysfs, number));
    let mut inside = entries.into_iter().flatten().flatten();
    inside.any(|inside| begins_there(&inside.path()))
}

/// Of a partition that begins where an array's would, the name of its disk.
pub fn disk_of_partition(sysfs: &Path, number: u64) -> Option<String> {
    let entry = std::fs::canonicalize(entry(sysfs, number)).ok()?;
    let disk = entry.parent().filter(|_| begins_there(&entry))?;
    Some(disk.file_name()?.to_str()?.replace('!', "/"))
}

fn begins_there(partition: &Path) -> bool {
    /// Of 512 bytes, whatever the disk has.
    const SECTOR: u64 = 512;
    let start = std::fs::read_to_string(partition.join("start"));
    let start = start.ok().and_then(|text| text.trim().parse().ok());
    partition.join("partition").exists() && start == Some(PART_FIRST / SECTOR)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_partition_is_aligned_and_leaves_room_for_a_smaller_disk() {
        let rows: &[(u64, Option<u64>)] = &[
            // Disk, the partition's length in MiB.
            (0, None),
            (MIB, None),
            (9 * MIB, None),
            (10 * MIB - 1, None),
            (10 * MIB, Some(1)),
            (64 * MIB, Some(55)),
            (64 * MIB + 512, Some(55)),
            (65 * MIB - 1, Some(55)),
            (65 * MIB, Some(56)),
            // Up to 8,000 MiB the least is more than the share.
            (8000 * MIB, Some(7991)),
            (16_000 * MIB, Some(15_983)),
            // 8 TB on the label: 8 GB are left free.
            (8_001_563_222_016, Some(7_623_253)),
            (1 << 60, Some((1 << 40) - 1_099_511_628 - 1)),
            (
                u64::MAX,
                Some((u64::MAX - u64::MAX.div_ceil(1000)) / MIB - 1),
            ),
        ];
        for (disk, length) in rows {
            for sector in [512, 4096] {
                let part = part_of(*disk, sector);
                let expected = length.map(|length| Part {
                    first: MIB,
                    length: length * MIB,
                });
                assert_eq!(part.ok(), expected, "{disk} with {sector}");
                if let Ok(part) = part {
                    let left = disk - part.first - part.length;
                    assert!(left >= 8 * MIB && left >= disk / 1000, "{disk}: {left}");
                    assert!(
                        left < (8 * MIB).max(disk / 1000 + 1) + MIB,
                        "{disk}: {left}"
                    );
                }
            }
        }
        let odd = part_of(1 << 40, 520).unwrap_err();
        assert!(odd.to_string().contains("520 bytes"), "{odd}");
        let small = part_of(MIB, 512).unwrap_err();
        assert!(small.to_string().contains("larger one"), "{small}");
    }

    #[test]
    fn a_whole_disk_is_what_a_driver_made() {
        let root = std::env::temp_dir().join(format!("ashlar-sysfs-{}", std::process::id()));
        let node = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let link = |number: &str, to: &str| {
            std::os::unix::fs::symlink(root.join(to), root.join("dev/block").join(number)).unwrap();
        };
        // A disk with a partition at 1 MiB, one with a partition elsewhere, a loop device, device mapper.
        node("devices/sda/device/model", "DISK");
        node("devices/sda/sda1/partition", "1\n");
        node("devices/sda/sda1/start", "2048\n");
        node("devices/sdb/device/model", "DISK");
        node("devices/sdb/sdb1/partition", "1\n");
        node("devices/sdb/sdb1/start", "4096\n");
        node("devices/cciss!c0d0/device/model", "DISK");
        node("devices/cciss!c0d0/c0d0p1/partition", "1\n");
        node("devices/cciss!c0d0/c0d0p1/start", "2048\n");
        node("devices/loop0/loop/backing_file", "/x\n");
        node("devices/dm-0/dm/name", "x\n");
        std::fs::create_dir_all(root.join("dev/block")).unwrap();
        let all = [
            ("8:0", "sda", true, true, None),
            ("8:1", "sda/sda1", false, false, Some("sda")),
            ("8:16", "sdb", true, false, None),
            ("8:17", "sdb/sdb1", false, false, None),
            ("104:0", "cciss!c0d0", true, true, None),
            (
                "104:1",
                "cciss!c0d0/c0d0p1",
                false,
                false,
                Some("cciss/c0d0"),
            ),
            ("7:0", "loop0", false, false, None),
            ("253:0", "dm-0", false, false, None),
            ("9:9", "gone", false, false, None),
        ];
        for (number, path, whole, there, disk) in all {
            link(number, &format!("devices/{path}"));
            let (major, minor) = number.split_once(':').unwrap();
            let number = libc::makedev(major.parse().unwrap(), minor.parse().unwrap());
            assert_eq!(is_whole_disk(&root, number), whole, "{path}");
            assert_eq!(has_partition_there(&root, number), there, "{path}");
            assert_eq!(disk_of_partition(&root, number).as_deref(), disk, "{path}");
        }
        std::fs::remove_dir_all(root).unwrap();
    }
}
