//! Every cache that may answer instead of the drives, with its size.
//!
//! **Invariants**: a layer whose size is not told is listed and said to be missing from the sum; memory that two layers
//! share counts once; a layer that reads and writes go around counts nothing and is listed too.

use std::fs;

use serde::{Deserialize, Serialize};

use super::machine::System;
use super::stack::{Stack, Volume};
use crate::report::honesty::Cache;

/// One layer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// What it is: `page cache`, `ZFS ARC`, ...
    pub name: String,
    /// Whose: this machine, a daemon, a drive.
    pub place: String,
    /// Memory, a device.
    pub storage: String,
    /// Its size; `None`: not told.
    pub bytes: Option<u64>,
    /// Whether its size is in the sum; if not, `note` says why.
    pub counted: bool,
    /// How the size was found, or what keeps it out of the sum.
    pub note: String,
}

impl Layer {
    fn new(name: &str, place: &str, storage: &str, bytes: Option<u64>, note: &str) -> Layer {
        Layer {
            name: name.to_string(),
            place: place.to_string(),
            storage: storage.to_string(),
            bytes,
            counted: bytes.is_some(),
            note: note.to_string(),
        }
    }
}

/// What a run asks of the search.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    /// Files are opened with `O_DIRECT`.
    pub direct: bool,
    /// Memory that this process may take, page cache included.
    pub memory_limit: Option<u64>,
}

/// All layers between files on `stack` and its drives.
pub fn find(system: &System, stack: &Stack, volumes: &[Volume], asked: Asked) -> Vec<Layer> {
    let mut layers = vec![page_cache(system, asked)];
    let behind = behind_loops(system, stack, &layers[0], asked);
    layers.extend(behind);
    if stack.mounts.iter().any(|mount| mount.kind == "zfs") {
        layers.extend(arc(&system
            .text("/proc/spl/kstat/zfs/arcstats")
            .unwrap_or_default()));
    }
    for volume in volumes.iter().filter(|v| stack.volumes.contains(&v.name)) {
        let note = "what its engine may keep: map, open stripes, deltas";
        let place = format!("ashlar daemon, {}", volume.name);
        let bytes = Some(volume.memory_bytes);
        layers.push(Layer::new("engine memory", &place, "memory", bytes, note));
    }
    let devices = stack.levels.iter().flat_map(|level| &level.devices);
    for name in devices {
        layers.extend(of_device(system, name));
    }
    for unseen in &stack.unseen {
        let note = "not visible from here: its caches are not in the sum";
        layers.push(Layer::new("unseen", unseen, "-", None, note));
    }
    layers
}

/// Whether a memory limit leaves less than the machine has.
fn is_limited(system: &System, asked: Asked) -> bool {
    asked.memory_limit.is_some() && system.page_cache(asked.memory_limit) != system.page_cache(None)
}

fn page_cache(system: &System, asked: Asked) -> Layer {
    let limited = is_limited(system, asked);
    let note = if limited {
        "what the memory limit of this process leaves"
    } else {
        "memory that is available"
    };
    let bytes = system.page_cache(asked.memory_limit);
    let mut layer = Layer::new("page cache", "this machine", "memory", bytes, note);
    if asked.direct {
        layer.counted = false;
        layer.note = "gone around: O_DIRECT".to_string();
    }
    layer
}

/// Files behind loop devices, which the page cache holds a second time unless the loop goes around it. What it holds of
/// them is not under the memory limit of this process: the kernel reads and writes them.
fn behind_loops(system: &System, stack: &Stack, page_cache: &Layer, asked: Asked) -> Vec<Layer> {
    let mut layers = Vec::new();
    let limited = is_limited(system, asked);
    for name in stack.levels.iter().flat_map(|level| &level.devices) {
        let disk = system.disk(name);
        let Some(direct) = system.text(&format!("/sys/class/block/{disk}/loop/dio")) else {
            continue;
        };
        let place = format!("file behind {disk}");
        let mut layer = Layer::new("page cache", &place, "memory", system.page_cache(None), "");
        layer.counted = false;
        if direct == "1" {
            layer.note = "gone around: the loop device uses O_DIRECT".to_string();
        } else if page_cache.counted && !limited {
            layer.note = "the same memory, counted above".to_string();
        } else {
            layer.counted = true;
            layer.note = match limited && page_cache.counted {
                true => "not under the memory limit; losetup --direct-io=on goes around it",
                false => "the loop device does not use O_DIRECT (losetup --direct-io=on)",
            }
            .to_string();
        }
        layers.push(layer);
    }
    // One memory counts once, however many loops use it.
    let mut seen = false;
    for layer in &mut layers {
        if layer.counted && std::mem::replace(&mut seen, true) {
            layer.counted = false;
            layer.note = "the same memory, counted above".to_string();
        }
    }
    layers
}

/// ZFS's own cache in memory, and that on devices.
fn arc(stats: &str) -> Vec<Layer> {
    let value = |name: &str| {
        let line = stats
            .lines()
            .find(|line| line.split_whitespace().next() == Some(name))?;
        line.split_whitespace().nth(2)?.parse::<u64>().ok()
    };
    let most = "the most it may take (c_max)";
    let mut layers = vec![Layer::new(
        "ZFS ARC",
        "this machine",
        "memory",
        value("c_max"),
        most,
    )];
    if let Some(bytes) = value("l2_size").filter(|bytes| *bytes > 0) {
        let note = "what it holds now";
        layers.push(Layer::new(
            "ZFS L2ARC",
            "this machine",
            "device",
            Some(bytes),
            note,
        ));
    }
    layers
}

/// Caches of a device: bcache above it, its own, and those of a host that makes it up.
fn of_device(system: &System, name: &str) -> Vec<Layer> {
    let mut layers = Vec::new();
    let disk = system.disk(name);
    let base = format!("/sys/class/block/{disk}");
    let set = format!("{base}/bcache/cache");
    for cache in system.names(&set).iter().filter(|n| n.starts_with("cache")) {
        let real = fs::canonicalize(system.path(&format!("{set}/{cache}"))).ok();
        let sectors = real
            .and_then(|real| fs::read_to_string(real.parent()?.join("size")).ok())
            .and_then(|text| text.trim().parse::<u64>().ok());
        let bytes = sectors.map(|sectors| sectors * 512);
        layers.push(Layer::new(
            "bcache",
            &disk,
            "device",
            bytes,
            "the size of its cache device",
        ));
    }
    let made_of_others = !system.names(&format!("{base}/slaves")).is_empty()
        || system.path(&format!("{base}/loop")).exists();
    if made_of_others {
        return layers;
    }
    let vendor = system
        .text(&format!("{base}/device/vendor"))
        .unwrap_or_default();
    let virtual_disk = disk.starts_with("vd")
        || disk.starts_with("xvd")
        || disk.starts_with("nbd")
        || ["QEMU", "VMware", "Msft", "Virtual"]
            .iter()
            .any(|v| vendor.contains(v));
    if virtual_disk {
        let note = "not visible from inside: not in the sum";
        layers.push(Layer::new("cache of the host", &disk, "memory", None, note));
    }
    let write_cache = system.text(&format!("{base}/queue/write_cache"));
    if write_cache.as_deref() == Some("write back") {
        let note = "there is one; its size is not told, and not in the sum";
        layers.push(Layer::new("cache of the drive", &disk, "drive", None, note));
    }
    layers
}

/// The layers that count, for the test of the size.
pub fn counted(layers: &[Layer]) -> Vec<Cache> {
    let cache = |layer: &Layer| {
        Some(Cache {
            name: format!("{} ({})", layer.name, layer.place),
            bytes: layer.bytes.filter(|_| layer.counted)?,
        })
    };
    layers.iter().filter_map(cache).collect()
}

/// Layers of which only the name is known.
pub fn unknown(layers: &[Layer]) -> Vec<String> {
    let unknown = layers.iter().filter(|layer| layer.bytes.is_none());
    unknown
        .map(|layer| format!("{} ({})", layer.name, layer.place))
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::super::stack::{Level, Mount};
    use super::*;
    use std::path::{Path, PathBuf};

    /// Some of the kernel's files.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Tree {
            let name = format!("ashlar-layers-{name}-{}", std::process::id());
            let tree = Tree(std::env::temp_dir().join(name));
            let _ = fs::remove_dir_all(&tree.0);
            tree.file("proc/meminfo", "MemAvailable: 1048576 kB");
            tree
        }

        fn file(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn find(&self, devices: &[&str], kind: &str, direct: bool) -> Vec<Layer> {
            self.find_within(devices, kind, direct, None)
        }

        fn find_within(
            &self,
            devices: &[&str],
            kind: &str,
            direct: bool,
            memory_limit: Option<u64>,
        ) -> Vec<Layer> {
            let mount = Mount::of(Path::new("/mnt"), kind);
            let devices = devices.iter().map(ToString::to_string).collect();
            let stack = Stack {
                mounts: vec![mount],
                levels: vec![Level { devices }],
                volumes: vec!["tank/v".to_string()],
                unseen: Vec::new(),
            };
            let volume = Volume {
                name: "tank/v".to_string(),
                memory_bytes: 5 << 20,
                ..Volume::default()
            };
            let asked = Asked {
                direct,
                memory_limit,
            };
            find(&System::at(&self.0), &stack, &[volume], asked)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn sum(layers: &[Layer]) -> u64 {
        counted(layers).iter().map(|cache| cache.bytes).sum()
    }

    #[test]
    fn the_page_cache_and_the_engine_count() {
        let tree = Tree::new("plain");
        tree.file("sys/class/block/vda/queue/write_cache", "write back");
        let layers = tree.find(&["vda"], "ext4", false);
        assert_eq!(sum(&layers), (1 << 30) + (5 << 20));
        let names: Vec<&str> = layers.iter().map(|l| l.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "page cache",
                "engine memory",
                "cache of the host",
                "cache of the drive"
            ]
        );
        assert_eq!(unknown(&layers).len(), 2);
        assert_eq!(sum(&tree.find(&["vda"], "ext4", true)), 5 << 20);
    }

    #[test]
    fn a_loop_without_direct_io_brings_the_page_cache_back() {
        let tree = Tree::new("loop");
        for name in ["loop1", "loop2"] {
            tree.file(&format!("sys/class/block/{name}/loop/dio"), "0");
        }
        let around = tree.find(&["loop1", "loop2"], "ext4", true);
        assert_eq!(sum(&around), (1 << 30) + (5 << 20), "{around:?}");
        let through = tree.find(&["loop1", "loop2"], "ext4", false);
        assert_eq!(sum(&through), (1 << 30) + (5 << 20), "{through:?}");
        // A limit holds for what this process reads, not for what the kernel reads of the file behind.
        let limited = tree.find_within(&["loop1"], "ext4", false, Some(1 << 20));
        assert_eq!(
            sum(&limited),
            (1 << 20) + (1 << 30) + (5 << 20),
            "{limited:?}"
        );
        tree.file("sys/class/block/loop1/loop/dio", "1");
        let limited = tree.find_within(&["loop1"], "ext4", false, Some(1 << 20));
        assert_eq!(sum(&limited), (1 << 20) + (5 << 20), "{limited:?}");
        assert_eq!(sum(&tree.find(&["loop1"], "ext4", true)), 5 << 20);
    }

    #[test]
    fn caches_of_zfs_and_bcache_have_their_sizes() {
        let tree = Tree::new("zfs");
        tree.file(
            "proc/spl/kstat/zfs/arcstats",
            "13 1 0x01\nname type data\nc_max 4 4096\nl2_size 4 512\n",
        );
        tree.file("sys/class/block/bcache0/slaves/sdb", "");
        tree.file("sys/class/block/nvme0n1/size", "16");
        tree.file("sys/class/block/nvme0n1/bcache/name", "");
        let set = tree.0.join("sys/class/block/bcache0/bcache/cache");
        fs::create_dir_all(&set).unwrap();
        let device = tree.0.join("sys/class/block/nvme0n1/bcache");
        std::os::unix::fs::symlink(device, set.join("cache0")).unwrap();
        let layers = tree.find(&["bcache0"], "zfs", true);
        let of = |name: &str| layers.iter().find(|l| l.name == name).unwrap().bytes;
        assert_eq!(of("ZFS ARC"), Some(4096));
        assert_eq!(of("ZFS L2ARC"), Some(512));
        assert_eq!(of("bcache"), Some(16 * 512));
        // Without its figures the cache of ZFS is there, of unknown size.
        assert_eq!(arc("")[0].bytes, None);
    }
}
