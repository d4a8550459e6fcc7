//! What lies below a folder: its file system, the devices of that, and what these are made of, down to the drives.
//!
//! **Invariants**: a loop device is followed to its file, a volume of Ashlar to its members, md, dm and bcache to their
//! parts; what cannot be followed is named as an end that is not seen; each device is in one level only.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;

use super::machine::System;

/// A kernel never stacks devices deeper than this.
const DEEPEST: usize = 8;

/// A volume of Ashlar, as its daemon tells of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// ARRAY/VOL.
    pub name: String,
    /// The kernel device, or the folder of its mount.
    pub places: Vec<PathBuf>,
    /// What the array's engine may keep in memory.
    pub memory_bytes: u64,
    /// The array's devices.
    pub members: Vec<PathBuf>,
}

/// A file system on the way down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mount {
    /// Where.
    pub at: PathBuf,
    /// `ext4`, ...
    pub kind: String,
    /// The device, or what stands for it.
    pub source: String,
    #[serde(skip)]
    number: String,
    #[serde(skip)]
    options: String,
}

impl Mount {
    /// A mount that nothing more is known of.
    pub fn of(at: &Path, kind: &str) -> Mount {
        Mount {
            at: at.to_path_buf(),
            kind: kind.to_string(),
            source: String::new(),
            number: String::new(),
            options: String::new(),
        }
    }
}

/// Devices at one depth.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Level {
    /// Their names below `/sys/class/block`.
    pub devices: Vec<String>,
}

/// Everything below a folder.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Stack {
    /// File systems: that of the folder, and those of files that stand for devices.
    pub mounts: Vec<Mount>,
    /// Devices: those of the file system first.
    pub levels: Vec<Level>,
    /// Volumes of Ashlar on the way.
    pub volumes: Vec<String>,
    /// What cannot be looked behind.
    pub unseen: Vec<String>,
}

/// Bytes that devices moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Read.
    pub read: u64,
    /// Written.
    pub written: u64,
}

impl Moved {
    /// What was moved since `before`.
    pub fn since(self, before: Moved) -> Moved {
        Moved {
            read: self.read.saturating_sub(before.read),
            written: self.written.saturating_sub(before.written),
        }
    }
}

/// The lines of `/proc/self/mountinfo`.
fn mounts(text: &str) -> Vec<Mount> {
    let mount = |line: &str| {
        let (head, tail) = line.split_once(" - ")?;
        let head: Vec<&str> = head.split(' ').collect();
        let tail: Vec<&str> = tail.split(' ').collect();
        Some(Mount {
            at: PathBuf::from(unescaped(head.get(4)?)),
            kind: (*tail.first()?).to_string(),
            source: unescaped(tail.get(1)?),
            number: (*head.get(2)?).to_string(),
            options: tail.get(2).map(|o| unescaped(o)).unwrap_or_default(),
        })
    };
    text.lines().filter_map(mount).collect()
}

/// Blanks and backslashes stand as octal numbers.
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\134", "\\")]
        .iter()
        .fold(text.to_string(), |text, (code, plain)| {
            text.replace(code, plain)
        })
}

/// The mount that `path` is on: the deepest, of equals the last, which hides the others.
fn mount_of(mounts: &[Mount], path: &Path) -> Option<Mount> {
    let over = mounts.iter().filter(|mount| path.starts_with(&mount.at));
    over.max_by_key(|mount| mount.at.components().count())
        .cloned()
}

/// Follows one folder down.
struct Walk<'a> {
    system: &'a System,
    volumes: &'a [Volume],
    mounts: Vec<Mount>,
    found: Stack,
}

impl Stack {
    /// What lies below `path`, which exists.
    pub fn below(system: &System, path: &Path, volumes: &[Volume]) -> Stack {
        let text = system.text("/proc/self/mountinfo").unwrap_or_default();
        let mut walk = Walk {
            system,
            volumes,
            mounts: mounts(&text),
            found: Stack::default(),
        };
        let mut devices = walk.of_path(path);
        for _ in 0..DEEPEST {
            let known = |name: &String| walk.found.levels.iter().any(|l| l.devices.contains(name));
            devices.retain(|name| !known(name));
            devices.sort();
            devices.dedup();
            if devices.is_empty() {
                break;
            }
            walk.found.levels.push(Level {
                devices: devices.clone(),
            });
            devices = devices.iter().flat_map(|name| walk.below(name)).collect();
        }
        walk.found
    }

    /// The file system of the folder.
    pub fn file_system(&self) -> &str {
        self.mounts.first().map_or("-", |mount| mount.kind.as_str())
    }

    /// What each level has moved so far.
    pub fn moved(&self, system: &System) -> Vec<Moved> {
        self.levels
            .iter()
            .map(|level| level.moved(system))
            .collect()
    }
}

impl Level {
    /// What its devices have moved so far.
    pub fn moved(&self, system: &System) -> Moved {
        let mut sum = Moved::default();
        for name in &self.devices {
            let text = system.text(&format!("/sys/class/block/{name}/stat"));
            let numbers: Vec<u64> = text
                .unwrap_or_default()
                .split_whitespace()
                .filter_map(|word| word.parse().ok())
                .collect();
            sum.read += numbers.get(2).copied().unwrap_or(0) * 512;
            sum.written += numbers.get(6).copied().unwrap_or(0) * 512;
        }
        sum
    }
}

impl Walk<'_> {
    /// Devices of the file system that `path` is on.
    fn of_path(&mut self, path: &Path) -> Vec<String> {
        let Some(mount) = mount_of(&self.mounts, path) else {
            return self.end(format!("{}: its file system is not known", path.display()));
        };
        if !self.found.mounts.contains(&mount) {
            self.found.mounts.push(mount.clone());
        }
        let number = &mount.number;
        if let Some(name) = self.device_of(number) {
            return vec![name];
        }
        match mount.kind.as_str() {
            "btrfs" => self.of_btrfs(&mount),
            "zfs" => self.of_zfs(&mount),
            "overlay" => {
                let upper = mount
                    .options
                    .split(',')
                    .find_map(|o| o.strip_prefix("upperdir="));
                match upper.map(PathBuf::from).filter(|upper| upper.is_dir()) {
                    Some(upper) if mount_of(&self.mounts, &upper).is_some_and(|m| m != mount) => {
                        self.of_path(&upper)
                    }
                    _ => self.end("devices behind an overlay of a container".to_string()),
                }
            }
            "tmpfs" | "ramfs" => self.end(format!("{}: memory, no device", mount.kind)),
            kind if kind.starts_with("fuse") => self.of_volume(&mount.at.clone(), kind),
            kind => self.end(format!("devices behind {kind} ({})", mount.source)),
        }
    }

    fn end(&mut self, what: String) -> Vec<String> {
        if !self.found.unseen.contains(&what) {
            self.found.unseen.push(what);
        }
        Vec::new()
    }

    /// The device MAJOR:MINOR by its name.
    fn device_of(&self, number: &str) -> Option<String> {
        let link = fs::canonicalize(self.system.path(&format!("/sys/dev/block/{number}"))).ok()?;
        Some(link.file_name()?.to_string_lossy().into_owned())
    }

    fn of_btrfs(&mut self, mount: &Mount) -> Vec<String> {
        let source = fs::canonicalize(&mount.source).unwrap_or(PathBuf::from(&mount.source));
        let name = source.file_name().map(|n| n.to_string_lossy().into_owned());
        for uuid in self.system.names("/sys/fs/btrfs") {
            let devices = self.system.names(&format!("/sys/fs/btrfs/{uuid}/devices"));
            if name.as_ref().is_some_and(|name| devices.contains(name)) {
                return devices;
            }
        }
        self.end(format!("devices of btrfs ({})", mount.source))
    }

    fn of_zfs(&mut self, mount: &Mount) -> Vec<String> {
        let pool = mount.source.split('/').next().unwrap_or_default();
        let output = Command::new("zpool").args(["list", "-vHPL", pool]).output();
        let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
        let parts = pool_parts(&text.unwrap_or_default());
        if parts.is_empty() {
            return self.end(format!("devices of the pool {pool}"));
        }
        parts.iter().flat_map(|path| self.of_member(path)).collect()
    }

    /// Members of the volume of Ashlar whose device or mount is `place`.
    fn of_volume(&mut self, place: &Path, kind: &str) -> Vec<String> {
        let volumes = self.volumes;
        let here = |volume: &&Volume| volume.places.iter().any(|p| p == place);
        let Some(volume) = volumes.iter().find(here) else {
            return self.end(format!("what serves {kind} at {}", place.display()));
        };
        self.found.volumes.push(volume.name.clone());
        let members = volume.members.iter();
        members.flat_map(|path| self.of_member(path)).collect()
    }

    /// A device by its path, or the devices below a file that stands for one.
    fn of_member(&mut self, path: &Path) -> Vec<String> {
        let Ok(about) = fs::metadata(path) else {
            return self.end(format!("{}: not to be seen from here", path.display()));
        };
        if about.file_type().is_block_device() {
            let number = about.rdev();
            let number = format!(
                "{}:{}",
                rustix::fs::major(number),
                rustix::fs::minor(number)
            );
            return self.device_of(&number).into_iter().collect();
        }
        let path = fs::canonicalize(path).unwrap_or(path.to_path_buf());
        self.of_path(&path)
    }

    /// What a device is made of.
    fn below(&mut self, name: &str) -> Vec<String> {
        let disk = self.system.disk(name);
        let place = Path::new("/dev").join(&disk);
        if self.volumes.iter().any(|v| v.places.contains(&place)) {
            return self.of_volume(&place, "loop");
        }
        if let Some(file) = self
            .system
            .text(&format!("/sys/class/block/{disk}/loop/backing_file"))
        {
            let path = PathBuf::from(&file);
            // The name is that of the namespace that set it up.
            return match fs::metadata(&path) {
                Ok(_) => self.of_member(&path),
                Err(_) => self.end(format!("the file behind {disk} ({file})")),
            };
        }
        self.system
            .names(&format!("/sys/class/block/{disk}/slaves"))
    }
}

impl System {
    /// The whole disk that a partition is of, or the device itself.
    pub fn disk(&self, name: &str) -> String {
        let partition = format!("/sys/class/block/{name}/partition");
        if self.text(&partition).is_none() {
            return name.to_string();
        }
        let real = fs::canonicalize(self.path(&format!("/sys/class/block/{name}")));
        let parent = real
            .ok()
            .and_then(|real| Some(real.parent()?.file_name()?.to_string_lossy().into_owned()));
        parent.unwrap_or(name.to_string())
    }
}

/// Devices in what `zpool list -vHPL` prints.
fn pool_parts(text: &str) -> Vec<PathBuf> {
    let first = |line: &str| line.split_whitespace().next().map(str::to_string);
    let names = text.lines().filter_map(first);
    names
        .filter(|name| name.starts_with('/'))
        .map(PathBuf::from)
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    const MOUNTS: &str = "27 1 254:0 / / rw - ext4 /dev/vda rw\n\
        40 27 7:3 / /mnt/a\\040b rw - ext4 /dev/loop3 rw\n\
        41 27 0:50 / /mnt/c rw shared:1 - btrfs /dev/sdb rw,space_cache\n\
        42 27 0:51 / /mnt/m rw - tmpfs none rw\n\
        43 27 0:52 / /mnt/n rw - nfs4 server:/x rw\n";

    /// A copy of the kernel's files: folders, and files with a text.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Tree {
            let name = format!("ashlar-stack-{name}-{}", std::process::id());
            let root = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&root);
            let tree = Tree(root);
            tree.file("proc/self/mountinfo", MOUNTS);
            tree
        }

        fn file(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn disk(&self, number: &str, name: &str, read: u64) {
            let class = format!("sys/class/block/{name}");
            self.file(
                &format!("{class}/stat"),
                &format!("1 0 {read} 0 1 0 8 0 0 0 0"),
            );
            let link = self.0.join(format!("sys/dev/block/{number}"));
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(self.0.join(class), link).unwrap();
        }

        fn below(&self, path: &str) -> Stack {
            Stack::below(&System::at(&self.0), Path::new(path), &[])
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_loop_device_is_followed_to_the_disk_of_its_file() {
        let tree = Tree::new("loop");
        tree.disk("254:0", "vda", 100);
        tree.disk("7:3", "loop3", 7);
        tree.file("sys/class/block/loop3/loop/backing_file", "/etc/passwd");
        let stack = tree.below("/mnt/a b/x");
        let names: Vec<&str> = stack.levels.iter().map(|l| l.devices[0].as_str()).collect();
        // The file of the test lies on what `/` is in the copy.
        assert_eq!(names, ["loop3", "vda"]);
        assert_eq!(stack.mounts.len(), 2);
        assert_eq!(stack.file_system(), "ext4");
        let moved = stack.moved(&System::at(&tree.0));
        assert_eq!((moved[0].read, moved[1].read), (7 * 512, 100 * 512));
        assert_eq!(moved[0].since(moved[0]), Moved::default());
        tree.file("sys/class/block/loop3/loop/backing_file", "/gone (deleted)");
        assert!(tree.below("/mnt/a b").unseen[0].contains("behind loop3"));
    }

    #[test]
    fn arrays_and_file_systems_of_several_devices_are_followed() {
        let tree = Tree::new("arrays");
        for (number, name) in [("8:16", "sdb"), ("9:0", "md0"), ("8:32", "sdc")] {
            tree.disk(number, name, 1);
        }
        tree.file("sys/fs/btrfs/features/raid56", "0");
        tree.file("sys/fs/btrfs/01-02/devices/sdb", "");
        tree.file("sys/fs/btrfs/01-02/devices/md0", "");
        tree.file("sys/class/block/md0/slaves/sdc", "");
        let stack = tree.below("/mnt/c");
        assert_eq!(stack.levels[0].devices, ["md0", "sdb"]);
        assert_eq!(stack.levels[1].devices, ["sdc"]);
        assert!(stack.unseen.is_empty());
    }

    #[test]
    fn what_has_no_device_is_named() {
        let tree = Tree::new("none");
        let memory = tree.below("/mnt/m/x");
        assert!(memory.levels.is_empty());
        assert_eq!(memory.unseen, ["tmpfs: memory, no device"]);
        assert_eq!(
            tree.below("/mnt/n").unseen,
            ["devices behind nfs4 (server:/x)"]
        );
        assert!(tree.below("/other").unseen[0].contains("ext4"));
    }

    #[test]
    fn parts_of_a_pool_are_read() {
        let text = "tank\t1T\t1G\n\tmirror-0\t1T\n\t\t/dev/sda1\t-\t-\n\t/dev/sdb\t-\n";
        let parts = pool_parts(text);
        assert_eq!(
            parts,
            [PathBuf::from("/dev/sda1"), PathBuf::from("/dev/sdb")]
        );
    }

    #[test]
    fn a_volume_of_ashlar_is_followed_to_its_members() {
        let tree = Tree::new("volume");
        tree.disk("254:0", "vda", 1);
        tree.disk("7:3", "loop3", 1);
        let volume = Volume {
            name: "tank/v".to_string(),
            places: vec![PathBuf::from("/dev/loop3")],
            memory_bytes: 1 << 20,
            members: vec![PathBuf::from("/etc/passwd"), PathBuf::from("/gone")],
        };
        let system = System::at(&tree.0);
        let stack = Stack::below(&system, Path::new("/mnt/a b"), &[volume]);
        assert_eq!(stack.volumes, ["tank/v"]);
        assert_eq!(stack.levels[1].devices, ["vda"]);
        assert!(stack.unseen[0].contains("/gone"));
    }
}
