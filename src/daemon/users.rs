//! Who uses a device, as the kernel tells it: mounts, swap space, devices made of it, loop devices over files.
//!
//! **Invariants**: only reads below the two roots that are given; what they do not tell is no user.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

/// Who uses what is at `path`, or a partition of it, in words; `sys` and `proc` are where these file systems are.
pub(crate) fn user_of(sys: &Path, proc: &Path, path: &Path) -> Option<String> {
    let metadata = std::fs::metadata(path).ok()?;
    if !metadata.file_type().is_block_device() {
        return loop_over(sys, path);
    }
    let entry = std::fs::canonicalize(entry_of(sys, &metadata));
    user_of_block(proc, &entry.ok()?)
}

/// Where sysfs has a block device.
pub(crate) fn entry_of(sys: &Path, metadata: &Metadata) -> PathBuf {
    let (major, minor) = (major(metadata.rdev()), minor(metadata.rdev()));
    sys.join(format!("dev/block/{major}:{minor}"))
}

/// Whether the kernel lets nobody write to the block device at `path`.
pub(crate) fn is_write_protected(sys: &Path, path: &Path) -> bool {
    let Ok(metadata) = std::fs::metadata(path) else {
        return false;
    };
    let flag = entry_of(sys, &metadata).join("ro");
    metadata.file_type().is_block_device() && text_of(&flag) == "1"
}

fn user_of_block(proc: &Path, entry: &Path) -> Option<String> {
    let own = user_of_one(proc, entry);
    own.or_else(|| {
        let entries = std::fs::read_dir(entry).ok()?;
        let mut parts: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
        parts.retain(|path| path.join("partition").exists());
        parts.sort();
        parts.iter().find_map(|part| {
            let user = user_of_one(proc, part)?;
            Some(format!("its partition {} is {user}", name_of(part)))
        })
    })
}

fn user_of_one(proc: &Path, entry: &Path) -> Option<String> {
    let node = format!("/dev/{}", name_of(entry));
    if let Some(at) = mounted_at(proc, &text_of(&entry.join("dev")), &node) {
        return Some(format!("mounted at {at}"));
    }
    let swaps = text_of(&proc.join("swaps"));
    let is_node = |line: &str| line.split_whitespace().next() == Some(&node);
    if swaps.lines().any(is_node) {
        return Some("in use as swap space".to_string());
    }
    let holders = std::fs::read_dir(entry.join("holders")).ok()?;
    let mut holders: Vec<PathBuf> = holders.flatten().map(|e| e.path()).collect();
    holders.sort();
    let holder = holders.first()?;
    Some(match text_of(&holder.join("dm/name")).as_str() {
        "" => format!("part of {}", name_of(holder)),
        name => format!("part of {} ({name})", name_of(holder)),
    })
}

/// Where the file system on a device is mounted, by the device's number or its node.
fn mounted_at(proc: &Path, number: &str, node: &str) -> Option<String> {
    let mounts = text_of(&proc.join("self/mountinfo"));
    mounts.lines().find_map(|line| {
        let (first, rest) = line.split_once(" - ")?;
        let fields: Vec<&str> = first.split(' ').collect();
        let source = rest.split(' ').nth(1)?;
        let here = fields.get(2) == Some(&number) || unescaped(source) == node;
        here.then(|| unescaped(fields.get(4).unwrap_or(&"?")))
    })
}

/// The loop device over a file.
fn loop_over(sys: &Path, path: &Path) -> Option<String> {
    let blocks = std::fs::read_dir(sys.join("block")).ok()?;
    let mut blocks: Vec<PathBuf> = blocks.flatten().map(|e| e.path()).collect();
    blocks.sort();
    let over = |block: &&PathBuf| Path::new(&text_of(&block.join("loop/backing_file"))) == path;
    let found = blocks.iter().find(over)?;
    Some(format!("in use as /dev/{}", name_of(found)))
}

/// The kernel's name of a block device, as below `/dev`.
fn name_of(entry: &Path) -> String {
    let name = entry.file_name().unwrap_or_default().to_string_lossy();
    name.replace('!', "/")
}

fn text_of(path: &Path) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim().to_string()
}

/// Spaces and the like stand as `\040` in the kernel's lists.
fn unescaped(text: &str) -> String {
    let (mut out, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, more)) = rest.split_first() {
        let digits = more.get(..3).filter(|_| *first == b'\\');
        let code = digits.and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 8).ok());
        out.push(code.unwrap_or(*first));
        rest = if code.is_some() { &more[3..] } else { more };
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// A tree that is gone at the end.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Tree {
            let root =
                std::env::temp_dir().join(format!("ashlar-users-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&root).unwrap();
            Tree(root)
        }
        fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn mounts_swap_and_devices_above_are_told_of_disks_and_partitions() {
        let tree = Tree::new("block");
        for (disk, number) in [("sda", "8:0"), ("sdb", "8:16"), ("sdc", "8:32")] {
            tree.write(&format!("sys/{disk}/dev"), &format!("{number}\n"));
            std::fs::create_dir_all(tree.0.join(format!("sys/{disk}/holders"))).unwrap();
        }
        tree.write("sys/sda/sda2/partition", "2\n");
        tree.write("sys/sda/sda2/dev", "8:2\n");
        tree.write("sys/sda/sda1/partition", "1\n");
        tree.write("sys/sda/sda1/dev", "8:1\n");
        tree.write("sys/sdb/holders/dm-0/dm/name", "vg-root\n");
        tree.write("sys/cciss!c0d0/dev", "104:0\n");
        tree.write(
            "proc/self/mountinfo",
            "22 1 8:2 / /srv/my\\040files rw,relatime shared:1 - ext4 /dev/sda2 rw\n\
             23 1 0:44 / /mnt/btrfs rw - btrfs /dev/cciss/c0d0 rw\n",
        );
        tree.write(
            "proc/swaps",
            "Filename Type Size\n/dev/sdc partition 1 0 -2\n",
        );
        let proc = tree.0.join("proc");
        let user = |disk: &str| user_of_block(&proc, &tree.0.join("sys").join(disk));
        let text = |words: &str| Some(words.to_string());
        assert_eq!(
            user("sda"),
            text("its partition sda2 is mounted at /srv/my files")
        );
        assert_eq!(user("sda/sda2"), text("mounted at /srv/my files"));
        assert_eq!(user("sda/sda1"), None);
        assert_eq!(user("sdb"), text("part of dm-0 (vg-root)"));
        assert_eq!(user("sdc"), text("in use as swap space"));
        assert_eq!(user("cciss!c0d0"), text("mounted at /mnt/btrfs"));
        assert_eq!(user("none"), None);
    }

    #[test]
    fn a_loop_device_over_a_file_uses_it() {
        let tree = Tree::new("file");
        tree.write("image", "x");
        let image = tree.0.join("image");
        tree.write("sys/block/loop1/loop/backing_file", "/somewhere/else\n");
        let sys = tree.0.join("sys");
        assert_eq!(user_of(&sys, &tree.0, &image), None);
        let backing = format!("{}\n", image.display());
        tree.write("sys/block/loop2/loop/backing_file", &backing);
        let user = user_of(&sys, &tree.0, &image);
        assert_eq!(user.as_deref(), Some("in use as /dev/loop2"));
        assert!(!is_write_protected(&sys, &image), "a file");
    }

    #[test]
    fn escapes_are_read_and_other_backslashes_left() {
        assert_eq!(unescaped("a\\040b\\134c"), "a b\\c");
        for same in ["", "\\", "\\04", "\\xyz", "\\777"] {
            assert_eq!(unescaped(same), same);
        }
    }
}
