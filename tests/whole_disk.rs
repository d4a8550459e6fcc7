//! Whole disks: others see that they are taken, the partition is found whatever the kernel makes of the table, nothing
//! recognisable is left when an array is gone. The disks are loop devices that a tree of our own says are disks.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use common::disk::pattern;
use common::{ASHLAR, Daemon, have, have_kernel_devices, tool, try_tool};

const TYPE: &str = "A495C460-4815-4467-B938-B8CDFC7DEE1C";

/// Loop devices that are gone at the end, and a sysfs in which they are whole disks.
#[derive(Debug)]
struct Disks {
    files: Vec<PathBuf>,
    nodes: Vec<String>,
    sysfs: PathBuf,
}

impl Disks {
    /// Of these files, presented with sectors of this size.
    fn attach(files: Vec<PathBuf>, sector: &str, sysfs: &Path) -> Disks {
        let nodes: Vec<String> = files
            .iter()
            .map(|file| {
                let file = file.to_str().unwrap();
                let said = tool("losetup", &["-b", sector, "-f", "--show", file]);
                said.trim().to_string()
            })
            .collect();
        let _ = std::fs::remove_dir_all(sysfs);
        for node in &nodes {
            let number = std::fs::metadata(node).unwrap().rdev();
            let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
            std::fs::create_dir_all(sysfs.join(format!("dev/block/{major}:{minor}/device")))
                .unwrap();
        }
        Disks {
            files,
            nodes,
            sysfs: sysfs.to_path_buf(),
        }
    }

    /// The same files, presented anew.
    fn again(self, sector: &str) -> Disks {
        let (files, sysfs) = (self.files.clone(), self.sysfs.clone());
        drop(self);
        Disks::attach(files, sector, &sysfs)
    }

    fn create(&self, daemon: &Daemon, array: &str, more: &[&str]) -> std::process::Output {
        let mut line = vec!["create", array, "--layout", "ec2+1"];
        line.extend(more);
        line.extend(self.nodes.iter().map(String::as_str));
        daemon.run(&line)
    }

    /// What `wipefs` knows of all of them.
    fn signatures(&self) -> String {
        self.nodes
            .iter()
            .map(|n| tool("wipefs", &["--no-act", n]))
            .collect()
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        for node in &self.nodes {
            let _ = try_tool("losetup", &["-d", node]);
        }
    }
}

fn daemon_with(name: &str) -> Daemon {
    let mut daemon = Daemon::start(name);
    assert!(daemon.stop());
    let sysfs = daemon.text("sysfs");
    daemon
        .environment
        .push(("ASHLAR_TEST_SYSFS".to_string(), sysfs));
    daemon.launch();
    daemon
}

fn files(daemon: &Daemon, bytes: u64) -> Vec<PathBuf> {
    let one = |i| {
        let path = daemon.path(&format!("disk{i}.img"));
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(bytes).unwrap();
        path
    };
    (0..3).map(one).collect()
}

fn failed(output: &std::process::Output, words: &str) -> String {
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "it succeeded");
    assert!(error.contains(words), "{error}");
    error
}

/// Sees to it that everybody sees one partition of Ashlar's type, and that both copies of the table are well.
fn check_seen(disks: &Disks, first: &str) {
    for node in &disks.nodes {
        let seen = tool("blkid", &["-p", "-o", "export", node]);
        assert!(seen.contains("PTTYPE=gpt"), "{seen}");
        let seen = tool("wipefs", &["--no-act", "--output", "TYPE", node]);
        assert_eq!(seen.matches("gpt").count(), 2, "{seen}");
        assert!(seen.contains("PMBR"), "{seen}");
        let seen = tool("sgdisk", &["-v", node]);
        assert!(seen.contains("No problems found"), "{seen}");
        let seen = tool("sgdisk", &["-i", "1", node]);
        let begin = format!("First sector: {first} ");
        assert!(seen.contains(TYPE) && seen.contains(&begin), "{seen}");
        assert!(seen.contains("'ashlar'"), "{seen}");
    }
}

/// Makes an array over old tables, with something in its volume.
fn make(daemon: &Daemon, disks: &Disks, name: &str, first: &str) {
    let node = disks.nodes[0].as_str();
    tool("sgdisk", &["-n", "1:0:0", node]);
    failed(&disks.create(daemon, name, &[]), "a GPT partition table");
    let output = disks.create(daemon, name, &["--force", "-n"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        said.contains("3 whole disks would get a partition each"),
        "{said}"
    );
    assert!(tool("sgdisk", &["-i", "1", node]).contains("Linux filesystem"));
    let output = disks.create(daemon, name, &["--force", "-j"]);
    assert!(output.status.success(), "{output:?}");
    let made: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(made["partitioned"].as_array().unwrap().len(), 3);
    let device = &daemon.status(name)["devices"][0];
    assert_eq!(device["path"], node);
    assert_eq!(device["size_bytes"], 55 << 20);
    check_seen(disks, first);
    let socket = format!("unix:{}", daemon.text("nbd.sock"));
    let volume = format!("{name}/v");
    daemon.ok(&["volume", "create", &volume, "--size", "8M"]);
    daemon.ok(&["volume", "attach", &volume, "--nbd", &socket]);
    let written = daemon
        .disk(name)
        .write_range((0, 4 << 20), 64 << 10, 8, pattern(1));
    assert!(written.is_empty());
}

/// Of one disk the first MiB goes, of another both tables, of the last one superblock 0 too: it is all found.
fn check_found_without_tables(daemon: &Daemon, disks: &Disks, name: &str) {
    let zeros = vec![0; 1 << 20];
    let zero = |disk: usize, at: u64, length: usize| {
        let file = std::fs::File::options()
            .write(true)
            .open(&disks.nodes[disk]);
        let file = file.unwrap();
        file.write_all_at(&zeros[..length], at).unwrap();
        file.sync_all().unwrap();
    };
    zero(0, 0, 1 << 20);
    zero(1, 0, 1 << 20);
    zero(1, 63 << 20, 1 << 20);
    zero(2, 0, 1 << 20);
    zero(2, 1 << 20, 4096);
    let run = |line: &[&str], disks: &[String]| {
        let mut command = Command::new(ASHLAR);
        command.env("ASHLAR_TEST_SYSFS", daemon.text("sysfs"));
        let output = command.args(line).args(disks).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let said = run(&["inspect"], &disks.nodes[2..]);
    assert!(said.contains(name), "{said}");
    let said = run(&["verify"], &disks.nodes);
    assert!(said.contains(name), "{said}");
    daemon.ok(&["import", name]);
    let found = daemon.disk(name).read(1 << 20, 4096).unwrap();
    let mut expected = vec![0; 4096];
    pattern(1)(1 << 20, &mut expected);
    assert!(found == expected, "the volume holds something else");
}

#[test]
fn a_whole_disk_is_seen_to_be_taken_and_given_back_without_a_trace() {
    let wanted = [
        "losetup",
        "sgdisk",
        "wipefs",
        "blkid",
        "mkfs.ext4",
        "mkfs.btrfs",
    ];
    if !have_kernel_devices() || !have(&wanted) {
        return;
    }
    for (sector, other, first) in [("512", "4096", "2048"), ("4096", "512", "256")] {
        let daemon = daemon_with(&format!("disk{sector}"));
        let name = format!("whole{sector}p{}", std::process::id());
        let disks = Disks::attach(files(&daemon, 64 << 20), sector, &daemon.path("sysfs"));
        let node = disks.nodes[0].clone();
        make(&daemon, &disks, &name, first);
        failed(&try_tool("mkfs.ext4", &["-q", &node]), "in use");
        daemon.ok(&["export", &name]);
        check_seen(&disks, first);
        failed(&try_tool("mkfs.btrfs", &["-q", &node]), "gpt");
        failed(
            &disks.create(&daemon, "other", &[]),
            &format!("of array {name}"),
        );

        // Presented with other sectors the table is invisible to others, not to Ashlar.
        let disks = disks.again(other);
        assert!(!tool("wipefs", &["--no-act", &disks.nodes[0]]).contains("gpt"));
        daemon.ok(&["import", &name]);
        daemon.ok(&["export", &name]);
        let disks = disks.again(sector);
        check_found_without_tables(&daemon, &disks, &name);

        daemon.ok(&["destroy", &name, "--yes", "-f"]);
        assert_eq!(disks.signatures(), "");
        // So each can be used again, without --force, also where presented with other sectors.
        let disks = disks.again(other);
        assert_eq!(disks.signatures(), "");
        let output = disks.create(&daemon, &name, &[]);
        assert!(output.status.success(), "{output:?}");
        daemon.ok(&["destroy", &name, "--yes"]);
        assert_eq!(disks.signatures(), "");
    }
}

#[test]
fn a_wiped_disk_is_one_without_a_table() {
    if !have_kernel_devices() || !have(&["losetup", "sgdisk", "wipefs", "blkid"]) {
        return;
    }
    let daemon = daemon_with("wipedisk");
    let disks = Disks::attach(files(&daemon, 64 << 20), "512", &daemon.path("sysfs"));
    let name = format!("wiped{}", std::process::id());
    make(&daemon, &disks, &name, "2048");
    let node = disks.nodes[0].as_str();
    let (error, _) = daemon.fails(&["device", "wipe", node, "--yes"]);
    assert!(error.contains("which is in use here"), "{error}");
    daemon.ok(&["export", &name]);
    check_seen(&disks, "2048");
    let (error, _) = daemon.fails(&["device", "wipe", node]);
    assert!(error.contains("Ashlar's partition table"), "{error}");
    for node in &disks.nodes {
        let said = daemon.ok(&["device", "wipe", node, "--yes"]);
        assert!(said.contains(&format!("of array {name}")), "{said}");
        let said = daemon.ok(&["device", "wipe", node, "--yes"]);
        assert!(said.contains("nothing that is known"), "{said}");
    }
    assert_eq!(disks.signatures(), "");
    for file in &disks.files {
        let bytes = std::fs::read(file).unwrap();
        // Of the disk and of the partition in it, which ends 8 MiB before the disk does.
        for place in [0..5 << 20, 52 << 20..56 << 20, 60 << 20..64 << 20] {
            assert!(bytes[place].iter().all(|byte| *byte == 0));
        }
    }
    let output = disks.create(&daemon, &name, &[]);
    assert!(output.status.success(), "{output:?}");
    daemon.ok(&["destroy", &name, "--yes"]);
}

#[test]
fn an_array_made_on_all_of_a_disk_is_found_as_it_was() {
    if !have_kernel_devices() || !have(&["losetup"]) {
        return;
    }
    let daemon = daemon_with("olddisk");
    let name = format!("old{}", std::process::id());
    let disks = Disks::attach(files(&daemon, 64 << 20), "512", &daemon.path("sysfs"));
    // No disks yet.
    std::fs::remove_dir_all(daemon.path("sysfs")).unwrap();
    let output = disks.create(&daemon, &name, &[]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(daemon.status(&name)["devices"][0]["size_bytes"], 64 << 20);
    daemon.ok(&["export", &name]);
    let disks = disks.again("512");
    daemon.ok(&["import", &name]);
    assert_eq!(daemon.status(&name)["devices"][0]["size_bytes"], 64 << 20);
    daemon.ok(&["destroy", &name, "--yes"]);
    assert_eq!(disks.signatures(), "");
}

#[test]
fn a_disk_too_small_for_a_partition_is_refused_before_anything_is_written() {
    if !have_kernel_devices() || !have(&["losetup"]) {
        return;
    }
    let daemon = daemon_with("smalldisk");
    let disks = Disks::attach(files(&daemon, 20 << 20), "512", &daemon.path("sysfs"));
    failed(&disks.create(&daemon, "s", &["--force"]), "too small");
    assert_eq!(disks.signatures(), "");
}

#[test]
fn nothing_recognisable_is_left_in_files() {
    let wanted = [
        "sgdisk",
        "wipefs",
        "mkfs.ext4",
        "mkfs.btrfs",
        "mkswap",
        "losetup",
    ];
    if !have_kernel_devices() || !have(&wanted) {
        return;
    }
    let daemon = Daemon::start("traces");
    let signatures = |path: &str| tool("wipefs", &["--no-act", path]);
    // An odd size: the backup header lies behind the last whole block.
    for (round, bytes) in [128 << 20, (128 << 20) + 512].into_iter().enumerate() {
        let all = files(&daemon, bytes);
        let paths: Vec<&str> = all.iter().map(|p| p.to_str().unwrap()).collect();
        tool("sgdisk", &["-n", "1:0:0", paths[0]]);
        if round == 0 {
            let at = tool("losetup", &["-b", "4096", "-f", "--show", paths[1]]);
            tool("sgdisk", &["-n", "1:0:0", at.trim()]);
            tool("losetup", &["-d", at.trim()]);
            tool("mkfs.btrfs", &["-q", "-f", paths[2]]);
        } else {
            tool("mkfs.ext4", &["-q", "-F", paths[1]]);
            tool("mkswap", &[paths[2]]);
        }
        let mut line = vec!["create", "t", "--layout", "ec2+1"];
        line.extend(&paths);
        let (error, _) = daemon.fails(&line);
        assert!(error.contains("--force"), "{error}");
        line.push("--force");
        daemon.ok(&line);
        for path in &paths {
            assert_eq!(signatures(path), "", "{path} in use");
        }
        daemon.ok(&["destroy", "t", "--yes"]);
        for path in &paths {
            assert_eq!(signatures(path), "", "{path} afterwards");
        }
        line.pop();
        daemon.ok(&line);
        daemon.ok(&["destroy", "t", "--yes"]);
    }
}
