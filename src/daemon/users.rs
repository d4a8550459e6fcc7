//! Who uses a device, as the kernel tells it: mounts, swap space, devices made of it, loop devices over files.
//!
//! **Invariants**: only reads below the two roots that are given; what they do not tell is no user.

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::io;
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
    in_words(proc, &entry.ok()?)
}

fn in_words(proc: &Path, entry: &Path) -> Option<String> {
    let found = user_of_block(proc, &[own_mounts(proc)], entry)?;
    Some(what_of(&found, proc))
}

/// Where sysfs has a block device.
pub(crate) fn entry_of(sys: &Path, metadata: &Metadata) -> PathBuf {
    let (major, minor) = (major(metadata.rdev()), minor(metadata.rdev()));
    sys.join(format!("dev/block/{major}:{minor}"))
}

/// The size of a block device as the kernel knows it: the device is not asked.
pub(crate) fn bytes_of(sys: &Path, metadata: &Metadata) -> Option<u64> {
    let sectors = text_of(&entry_of(sys, metadata).join("size"));
    Some(sectors.parse::<u64>().ok()? * 512)
}

/// Whether the kernel lets nobody write to the block device at `path`.
pub(crate) fn is_write_protected(sys: &Path, path: &Path) -> bool {
    let Ok(metadata) = std::fs::metadata(path) else {
        return false;
    };
    let flag = entry_of(sys, &metadata).join("ro");
    metadata.file_type().is_block_device() && text_of(&flag) == "1"
}

/// What uses a block device.
enum User {
    /// Mounts, what was mounted last first; in the mount namespace of that process, if it is not this one's.
    Mounted(Vec<String>, Option<u32>),
    Swap,
    /// A device made of it, by its name in the kernel, and what device mapper calls it.
    Above(PathBuf, String),
}

impl User {
    fn what(&self, proc: &Path) -> String {
        match self {
            User::Mounted(at, process) => {
                let at: Vec<String> = at.iter().map(|path| shown(path)).collect();
                let at = at.join(" and ");
                match process {
                    None => format!("mounted at {at}"),
                    Some(pid) => format!(
                        "mounted at {at} in the mount namespace of {}",
                        program(proc, *pid)
                    ),
                }
            }
            User::Swap => "in use as swap space".to_string(),
            User::Above(device, name) if name.is_empty() => format!("part of {}", name_of(device)),
            User::Above(device, name) => format!("part of {} ({})", name_of(device), shown(name)),
        }
    }

    /// What ends it, of the device at `node`.
    fn next(&self, node: &str) -> String {
        match self {
            User::Mounted(at, process) => {
                let paths: Option<Vec<String>> = at.iter().map(|path| quoted(path)).collect();
                match (paths.map(|paths| paths.join(" ")), process) {
                    (None, _) => "unmount it".to_string(),
                    (Some(paths), None) => format!("'umount {paths}'"),
                    (Some(paths), Some(pid)) => format!("'nsenter -t {pid} -m umount {paths}'"),
                }
            }
            User::Swap => format!("'swapoff {node}'"),
            User::Above(device, _) if device.join("md").exists() => {
                let device = name_of(device);
                format!("unmount what is on it, then 'mdadm --stop /dev/{device}'")
            }
            User::Above(device, name) if device.join("dm").exists() => {
                let name = Some(name.as_str()).filter(|name| !name.is_empty());
                let name = name.and_then(quoted).unwrap_or_else(|| "NAME".to_string());
                format!(
                    "unmount what is on it, then deactivate it ('vgchange -an VG', 'cryptsetup close {name}' or \
                     'dmsetup remove {name}')"
                )
            }
            User::Above(device, _) => format!("stop the use of {}", name_of(device)),
        }
    }
}

/// The mounts of a mount namespace as the kernel lists them, and a process in it if it is not this one's.
type Mounts = (Option<u32>, String);

/// What uses a device of the kernel's, or a partition of it; the partition's name.
fn user_of_block(proc: &Path, mounts: &[Mounts], entry: &Path) -> Option<(User, Option<String>)> {
    if let Some(user) = user_of_one(proc, mounts, entry) {
        return Some((user, None));
    }
    let entries = std::fs::read_dir(entry).ok()?;
    let mut parts: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
    parts.retain(|path| path.join("partition").exists());
    parts.sort();
    parts.iter().find_map(|part| {
        let user = user_of_one(proc, mounts, part)?;
        Some((user, Some(name_of(part))))
    })
}

fn user_of_one(proc: &Path, mounts: &[Mounts], entry: &Path) -> Option<User> {
    let (number, node) = (text_of(&entry.join("dev")), node_of(entry));
    for (process, mounts) in mounts {
        let mut at = mounts_in(mounts, &number, &node);
        at.reverse(); // what was mounted last has to go first
        at.truncate(NAMED);
        if !at.is_empty() {
            return Some(User::Mounted(at, *process));
        }
    }
    let swaps = text_of(&proc.join("swaps"));
    let is_node = |line: &str| line.split_whitespace().next() == Some(&node);
    if swaps.lines().any(is_node) {
        return Some(User::Swap);
    }
    let holders = std::fs::read_dir(entry.join("holders")).ok()?;
    let mut holders: Vec<PathBuf> = holders.flatten().map(|e| e.path()).collect();
    holders.sort();
    let holder = holders.into_iter().next()?;
    let name = text_of(&holder.join("dm/name"));
    Some(User::Above(holder, name))
}

fn what_of((user, part): &(User, Option<String>), proc: &Path) -> String {
    let what = user.what(proc);
    match part {
        Some(part) => format!("its partition {part} is {what}"),
        None => what,
    }
}

/// Where a device is mounted, by its number, in the text of a `mountinfo`. File systems of several devices have a
/// number of their own there, and the node as their source; of others the source is whatever the mounter wrote.
fn mounts_in(mounts: &str, number: &str, node: &str) -> Vec<String> {
    let at = |line: &str| {
        let (first, rest) = line.split_once(" - ")?;
        let fields: Vec<&str> = first.split(' ').collect();
        let (mounted, mut of) = (*fields.get(2)?, rest.split(' '));
        let (kind, source) = (of.next()?, of.next()?);
        let by_source = mounted.starts_with("0:") && ["btrfs", "bcachefs"].contains(&kind);
        let here = mounted == number || by_source && unescaped(source) == node;
        here.then(|| unescaped(fields.get(4).unwrap_or(&"?")))
    };
    mounts.lines().filter_map(at).collect()
}

/// What keeps a kernel device from being taken away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    /// For people: what it is.
    pub(crate) what: String,
    /// What ends it.
    pub(crate) next: String,
}

/// How many mounts, or programs, are named.
const NAMED: usize = 3;

/// Who holds the block device `device`: a mount, in this mount namespace or in another one, swap space, or a device
/// made of it. A program that only has it open is none of these.
pub(crate) fn hold_on(sys: &Path, proc: &Path, device: &Path) -> Option<Hold> {
    let entry = sys.join("block").join(device.file_name()?);
    if text_of(&entry.join("dev")).is_empty() {
        return None;
    }
    let found = user_of_block(proc, &namespaces(proc), &entry)?;
    let node = found.1.as_ref().map(|part| format!("/dev/{part}"));
    let node = node.unwrap_or_else(|| device.display().to_string());
    Some(Hold {
        what: what_of(&found, proc),
        next: found.0.next(&node),
    })
}

/// The mounts of every mount namespace that can be seen: of this process's first, then of others, each with the
/// process that was found in it. Which namespace a process is in may be hidden, its mounts are not.
fn namespaces(proc: &Path) -> Vec<Mounts> {
    let namespace = |who: &str| std::fs::read_link(proc.join(who).join("ns/mnt")).ok();
    let mut all = vec![own_mounts(proc)];
    let mut seen: BTreeSet<PathBuf> = namespace("self").into_iter().collect();
    let mut texts: BTreeSet<String> = all.iter().map(|(_, text)| text.clone()).collect();
    for pid in processes(proc) {
        if namespace(&pid.to_string()).is_some_and(|other| !seen.insert(other)) {
            continue;
        }
        let mounts = text_of(&proc.join(pid.to_string()).join("mountinfo"));
        if texts.insert(mounts.clone()) {
            all.push((Some(pid), mounts));
        }
    }
    all
}

fn own_mounts(proc: &Path) -> Mounts {
    (None, text_of(&proc.join("self/mountinfo")))
}

fn processes(proc: &Path) -> Vec<u32> {
    let names = std::fs::read_dir(proc).into_iter().flatten().flatten();
    let numbers = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut numbers: Vec<u32> = numbers.collect();
    numbers.sort_unstable();
    numbers
}

/// For people: a process by its number and name.
fn program(proc: &Path, pid: u32) -> String {
    match text_of(&proc.join(pid.to_string()).join("comm")).as_str() {
        "" => format!("process {pid}"),
        name => format!("process {pid} ({})", shown(name)),
    }
}

/// Who has something open.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Openers {
    /// For people: the processes, beside this one, that can be seen.
    pub(crate) named: Vec<String>,
    /// For people, if what some processes have open cannot be seen: that, and what shows it.
    pub(crate) unseen: Option<String>,
}

/// The processes that have the file or device at `path` open.
pub(crate) fn openers(proc: &Path, path: &Path) -> Openers {
    let (mut named, mut hidden) = (Vec::new(), false);
    let is_hidden = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    for pid in processes(proc) {
        if pid == std::process::id() {
            continue;
        }
        let descriptors = std::fs::read_dir(proc.join(pid.to_string()).join("fd"));
        hidden |= descriptors.as_ref().is_err_and(is_hidden);
        for descriptor in descriptors.into_iter().flatten().flatten() {
            // The link is read, not followed: what it leads to may not answer.
            match std::fs::read_link(descriptor.path()) {
                Ok(to) if to == path => {
                    named.push(program(proc, pid));
                    break;
                }
                Ok(_) => {}
                Err(error) => hidden |= is_hidden(&error),
            }
        }
    }
    if named.len() > NAMED {
        let more = named.split_off(NAMED).len();
        named.push(format!("{more} more"));
    }
    let unseen = hidden.then(|| match path.to_str().and_then(quoted) {
        Some(path) => format!("some programs cannot be seen; see 'fuser -v {path}'"),
        None => "some programs cannot be seen".to_string(),
    });
    Openers { named, unseen }
}

/// A path as a shell takes it inside a line that stands in single quotes; none if it has what a shell takes for more
/// than itself.
fn quoted(path: &str) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%=,".contains(c);
    let literal = |c: char| {
        c.is_alphanumeric() || c == ' ' || c.is_ascii_punctuation() && !"$`\"\\'!".contains(c)
    };
    match path.chars().all(plain) {
        true if !path.starts_with('-') => Some(path.to_string()),
        _ if path.starts_with('-') || !path.chars().all(literal) => None,
        _ => Some(format!("\"{path}\"")),
    }
}

/// A name that somebody else gave, for people.
fn shown(name: &str) -> String {
    match quoted(name) {
        Some(_) => name.to_string(),
        None => name.escape_debug().to_string(),
    }
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

fn node_of(entry: &Path) -> String {
    format!("/dev/{}", name_of(entry))
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
        let user = |disk: &str| in_words(&proc, &tree.0.join("sys").join(disk));
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
    fn a_mount_is_named_in_whichever_namespace_it_is() {
        let tree = Tree::new("hold");
        let (sys, proc) = (tree.0.join("sys"), tree.0.join("proc"));
        let hold = || hold_on(&sys, &proc, Path::new("/dev/loop3"));
        tree.write("sys/block/loop3/dev", "7:3\n");
        std::fs::create_dir_all(sys.join("block/loop3/holders")).unwrap();
        let namespace = |process: &str, name: &str, mounts: &str| {
            tree.write(&format!("proc/{process}/mountinfo"), mounts);
            let ns = proc.join(process).join("ns");
            std::fs::create_dir_all(&ns).unwrap();
            let _ = std::fs::remove_file(ns.join("mnt"));
            std::os::unix::fs::symlink(name, ns.join("mnt")).unwrap();
        };
        let other = "9 1 7:2 / /other rw - ext4 /dev/loop2 rw\n";
        namespace("self", "mnt:[1]", other);
        namespace("20", "mnt:[1]", other);
        assert_eq!(hold(), None);
        tree.write("proc/77/comm", "bash\n");
        let mount = "31 1 7:3 / /srv/my\\040files rw - ext4 /dev/loop3 rw\n";
        namespace("77", "mnt:[2]", mount);
        let found = hold().unwrap();
        assert_eq!(
            found.what,
            "mounted at /srv/my files in the mount namespace of process 77 (bash)"
        );
        assert_eq!(found.next, "'nsenter -t 77 -m umount \"/srv/my files\"'");
        // By its node, as btrfs has it; the one on top first; and this process's before another's.
        let own =
            "40 1 0:44 / /a rw - btrfs /dev/loop3 rw\n41 1 0:44 /x /a/b rw - btrfs /dev/loop3 rw\n";
        namespace("self", "mnt:[1]", own);
        let found = hold().unwrap();
        assert_eq!(found.what, "mounted at /a/b and /a");
        assert_eq!(found.next, "'umount /a/b /a'");
        namespace("self", "mnt:[1]", other);
        namespace("77", "mnt:[2]", other);
        tree.write("proc/swaps", "Filename Type\n/dev/loop3 partition 1 0 -2\n");
        assert_eq!(hold().unwrap().next, "'swapoff /dev/loop3'");
        // Where the namespace of a process is hidden, its mounts tell.
        tree.write("proc/80/mountinfo", mount);
        assert_eq!(
            hold().unwrap().next,
            "'nsenter -t 80 -m umount \"/srv/my files\"'"
        );
    }

    #[test]
    fn what_a_user_writes_is_neither_believed_nor_typed() {
        let tree = Tree::new("untrusted");
        let (sys, proc) = (tree.0.join("sys"), tree.0.join("proc"));
        let hold = || hold_on(&sys, &proc, Path::new("/dev/loop3"));
        tree.write("sys/block/loop3/dev", "7:3\n");
        let mounts = |line: &str| tree.write("proc/self/mountinfo", line);
        mounts(
            "9 1 0:44 / /home/u/m rw - fuse.x /dev/loop3 rw\n8 1 0:45 / /b rw - fuse.btrfs /dev/loop3 rw\n",
        );
        assert_eq!(hold(), None);
        for (at, what) in [
            ("/a$(id)", "/a$(id)"),
            ("/a\\012b", "/a\\nb"),
            ("/a`id`", "/a`id`"),
            ("/a\"b", "/a\\\"b"),
            ("/a'b", "/a\\'b"),
            ("/a!b", "/a!b"),
            ("/a\\134b", "/a\\\\b"),
        ] {
            mounts(&format!("9 1 7:3 / {at} rw - ext4 /dev/x rw\n"));
            let found = hold().unwrap();
            assert_eq!(found.what, format!("mounted at {what}"));
            assert_eq!(found.next, "unmount it");
        }
        assert_eq!(quoted("/a;b").as_deref(), Some("\"/a;b\""));
        assert_eq!(quoted("-x"), None);
    }

    #[test]
    fn each_use_says_how_it_is_ended() {
        let tree = Tree::new("next");
        let (sys, proc) = (tree.0.join("sys"), tree.0.join("proc"));
        let hold = || hold_on(&sys, &proc, Path::new("/dev/loop3")).unwrap();
        tree.write("sys/block/loop3/dev", "7:3\n");
        tree.write("sys/block/loop3/loop3p1/dev", "259:1\n");
        tree.write("sys/block/loop3/loop3p1/partition", "1\n");
        tree.write("sys/block/loop3/holders/dm-0/dm/name", "swap-crypt\n");
        let found = hold();
        assert_eq!(found.what, "part of dm-0 (swap-crypt)");
        let next = "unmount what is on it, then deactivate it ('vgchange -an VG', 'cryptsetup close swap-crypt' or \
                    'dmsetup remove swap-crypt')";
        assert_eq!(found.next, next);
        std::fs::remove_dir_all(sys.join("block/loop3/holders/dm-0")).unwrap();
        tree.write("sys/block/loop3/holders/md127/md/level", "raid1\n");
        let next = "unmount what is on it, then 'mdadm --stop /dev/md127'";
        assert_eq!(hold().next, next);
        std::fs::remove_dir_all(sys.join("block/loop3/holders/md127")).unwrap();
        tree.write(
            "proc/self/mountinfo",
            "9 1 259:1 / /mnt/swap rw - ext4 /dev/loop3p1 rw\n",
        );
        let found = hold();
        assert_eq!(found.what, "its partition loop3p1 is mounted at /mnt/swap");
        assert_eq!(found.next, "'umount /mnt/swap'");
        tree.write("proc/self/mountinfo", "");
        tree.write(
            "proc/swaps",
            "Filename Type\n/dev/loop3p1 partition 1 0 -2\n",
        );
        assert_eq!(hold().next, "'swapoff /dev/loop3p1'");
    }

    #[test]
    fn programs_that_have_a_device_open_are_named() {
        let tree = Tree::new("openers");
        let open = |pid: u32, name: &str, to: &str| {
            tree.write(&format!("{pid}/comm"), name);
            let fd = tree.0.join(format!("{pid}/fd"));
            std::fs::create_dir_all(&fd).unwrap();
            std::os::unix::fs::symlink(to, fd.join("3")).unwrap();
        };
        for (pid, name) in [(5, "dd"), (7, "less"), (60, "blkid"), (61, "fio")] {
            open(pid, name, "/dev/loop1");
        }
        open(6, "cat", "/dev/loop10");
        open(std::process::id(), "this", "/dev/loop1");
        let found = openers(&tree.0, Path::new("/dev/loop1"));
        let all = "process 5 (dd), process 7 (less), process 60 (blkid), 1 more";
        assert_eq!(found.named.join(", "), all);
        let found = openers(&tree.0, Path::new("/dev/loop10"));
        assert_eq!(
            (found.named, found.unseen),
            (vec!["process 6 (cat)".to_string()], None)
        );
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
