//! Single devices as an administrator meets them: what each holds, wiping one, its counters, its light.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ashlar_rt::Buf;
use common::disk::pattern;
use common::{Daemon, Random, have, have_kernel_devices, tool, try_tool, wait_until};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// A sparse file in the daemon's folder.
fn file(daemon: &Daemon, name: &str, bytes: u64) -> PathBuf {
    let path = daemon.path(name);
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(bytes).unwrap();
    path
}

/// One that says it is an ext2 file system.
fn ext2(daemon: &Daemon, name: &str) -> PathBuf {
    let path = file(daemon, name, 64 * MIB);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[0x53, 0xef], 1024 + 0x38).unwrap();
    path
}

fn shown(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// What a scan says of a file.
fn scanned(daemon: &Daemon, path: &Path) -> Value {
    let dir = shown(&daemon.scratch.0);
    let all = daemon.json(&["device", "scan", "--scan", dir, "-j"]);
    assert_eq!(
        (&all["version"], &all["command"]),
        (&1.into(), &"device scan".into())
    );
    let devices = all["devices"].as_array().unwrap();
    let of = |d: &&Value| d["path"] == shown(path);
    let found = devices.iter().find(of);
    found
        .unwrap_or_else(|| panic!("{} is not listed", path.display()))
        .clone()
}

/// The events of a kind.
fn events(daemon: &Daemon, kind: &str) -> Vec<Value> {
    let text = daemon.ok(&["events", "t", "-j"]);
    let all = text.lines().map(|l| serde_json::from_str(l).unwrap());
    all.filter(|e: &Value| e["kind"] == kind).collect()
}

fn write_some(daemon: &Daemon) {
    let written = daemon
        .disk("t")
        .write_range((0, 8 * MIB), 256 << 10, 8, pattern(1));
    assert!(written.is_empty(), "{written:?}");
}

fn all_there(daemon: &Daemon) {
    let wrong = daemon
        .disk("t")
        .compare_range((0, 8 * MIB), 256 << 10, 8, pattern(1));
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn a_scan_says_what_is_there_and_what_create_takes() {
    let daemon = Daemon::start("scan");
    let members = daemon.create("t", "ec2+1", 4, "64M", &[]);
    let (free, foreign) = (file(&daemon, "free.img", 64 * MIB), ext2(&daemon, "fs.img"));
    let locked = file(&daemon, "locked.img", 64 * MIB);
    let holder = std::fs::File::open(&locked).unwrap();
    rustix::fs::flock(&holder, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let of = |path: &Path| scanned(&daemon, path);

    let found = of(&free);
    assert_eq!(found["free"], true, "{found}");
    assert_eq!(found["size_bytes"], 64 * MIB);
    assert!(
        found["in_use"].is_null() && found["array"].is_null(),
        "{found}"
    );
    let found = of(&foreign);
    assert_eq!(found["holds"], serde_json::json!(["an ext2 file system"]));
    assert_eq!(found["free"], false);
    let found = of(&locked);
    assert_eq!(
        (&found["in_use"], &found["free"]),
        (&"another program".into(), &false.into())
    );
    drop(holder);
    assert_eq!(of(&locked)["free"], true);

    let found = of(&members[2]);
    assert_eq!(found["in_use"], "device 2 of array t, online");
    assert_eq!(
        (&found["array"]["name"], &found["array"]["device"]),
        (&"t".into(), &2.into())
    );
    daemon.ok(&["fail", "t", "3", "-w"]);
    assert_eq!(of(&members[3])["in_use"], "device 3 of array t, failed");
    let uuid = daemon.status("t")["uuid"].clone();
    daemon.ok(&["export", "t"]);
    let found = of(&members[2]);
    assert!(found["in_use"].is_null(), "{found}");
    assert_eq!(
        (&found["free"], &found["array"]["uuid"]),
        (&false.into(), &uuid)
    );
    assert!(
        found["array"]["generation"].as_u64().unwrap() > 0,
        "{found}"
    );

    // What is free is what 'create' takes, and nothing else is.
    let line = ["create", "u", "--layout", "raid1", "-n"];
    let with = |path: &Path| daemon.run(&[&line[..], &[shown(&locked), shown(path)]].concat());
    assert!(with(&free).status.success());
    for path in [&foreign, &members[2]] {
        assert!(!with(path).status.success(), "{}", path.display());
    }
    let dir = shown(&daemon.scratch.0);
    let text = daemon.ok(&["device", "scan", "--scan", dir]);
    assert!(text.starts_with("DEVICE"), "{text}");
    let rows = daemon.ok(&["device", "scan", "--scan", dir, "-Hp"]);
    let own = rows
        .lines()
        .find(|l| l.starts_with(shown(&foreign)))
        .unwrap();
    let cells: Vec<&str> = own.split('\t').collect();
    assert_eq!(cells[1..5], ["67108864", "no", "an ext2 file system", "-"]);
    let (error, code) = daemon.fails(&["device", "scan", "--scan", "nowhere"]);
    assert!(code == 1 && error.contains("cannot be scanned"), "{error}");
}

/// Regression: files of which nothing was known were free, and `create` took them without a word.
#[test]
fn a_file_with_data_is_not_free_whatever_it_holds() {
    let mut daemon = Daemon::start("plain-data");
    let mut backups = Vec::new();
    for at in [0, 20 * MIB, 40 * MIB - 1] {
        let path = file(&daemon, &format!("backup-{at}"), 40 * MIB);
        let backup = std::fs::File::options().write(true).open(&path).unwrap();
        backup.write_all_at(b"x", at).unwrap();
        backups.push(path);
    }
    let content = || backups.iter().map(|path| std::fs::read(path).unwrap());
    let before: Vec<Vec<u8>> = content().collect();
    let spares = ["s0", "s1", "s2"].map(|name| file(&daemon, name, 64 * MIB));
    let spares: Vec<&str> = spares.iter().map(|path| shown(path)).collect();
    for backup in &backups {
        let found = scanned(&daemon, backup);
        assert_eq!(found["free"], false, "{found}");
        assert_eq!(found["holds"][0], "data that is not known", "{found}");
    }
    let refused = |line: &[&str]| {
        let (error, code) = daemon.fails(line);
        let says = ["data that is not known", "--force"];
        assert!(
            code == 1 && says.iter().all(|s| error.contains(s)),
            "{error}"
        );
    };
    let files = ["u", "--layout", "raid0", "--file-size", "64M"];
    refused(&[&["create"], &files[..], &["new", shown(&backups[0])]].concat());
    assert!(!daemon.path("new").exists());
    let create = ["create", "t", "--layout", "raid1:3"];
    refused(&[&create[..], &[shown(&backups[1]), spares[1], spares[2]]].concat());
    daemon.ok(&[&create[..], &spares].concat());
    refused(&["add", "t", shown(&backups[2])]);
    refused(&["replace", "t", "0", shown(&backups[2])]);
    assert!(content().eq(before), "a file was written to");
    let (error, _) = daemon.fails(&["device", "wipe", shown(&backups[0])]);
    assert!(error.contains("data that is not known"), "{error}");
    daemon.ok(&["device", "wipe", shown(&backups[0]), "--yes"]);
    daemon.ok(&["add", "t", shown(&backups[0])]);
    daemon.ok(&["add", "t", "--force", shown(&backups[1])]);
    // What an array leaves is free, wherever it has written.
    daemon.ok(&["volume", "create", "t/v", "--size", "16M"]);
    daemon.ok(&["destroy", "t", "--yes"]);
    daemon.ok(&[&create[..], &spares].concat());
    assert!(daemon.stop());
}

#[test]
fn a_wipe_is_told_twice_and_leaves_nothing() {
    let daemon = Daemon::start("wipe-device");
    let members = daemon.create("t", "ec2+1", 4, "64M", &[]);
    write_some(&daemon);
    let member = shown(&members[1]);
    for line in [
        &["device", "wipe", member][..],
        &["device", "wipe", member, "--yes"],
    ] {
        let (error, code) = daemon.fails(line);
        assert!(
            code == 1 && error.contains("is device 1 of array t, which is in use here"),
            "{error}"
        );
    }
    all_there(&daemon);
    assert_eq!(daemon.status("t")["state"], "optimal");
    daemon.ok(&["export", "t"]);
    let before = std::fs::read(&members[1]).unwrap();
    let (error, code) = daemon.fails(&["device", "wipe", member]);
    assert!(
        code == 1 && error.contains("device 1 of array t (") && error.contains("--yes"),
        "{error}"
    );
    assert!(
        std::fs::read(&members[1]).unwrap() == before,
        "it was written to"
    );
    let wiped = daemon.json(&["device", "wipe", member, "--yes", "-j"]);
    assert_eq!(wiped["command"], "device wipe");
    assert!(
        wiped["erased"][0]
            .as_str()
            .unwrap()
            .starts_with("device 1 of array t ("),
        "{wiped}"
    );
    assert_eq!(scanned(&daemon, &members[1])["free"], true);
    let after = std::fs::read(&members[1]).unwrap();
    assert!(after.len() == before.len() && after.iter().all(|byte| *byte == 0));
    // The others are as they were.
    daemon.ok(&["import", "t", "--scan", shown(&daemon.scratch.0)]);
    all_there(&daemon);

    let foreign = ext2(&daemon, "fs.img");
    let (error, _) = daemon.fails(&["device", "wipe", shown(&foreign)]);
    assert!(error.contains("an ext2 file system"), "{error}");
    let holder = std::fs::File::open(&foreign).unwrap();
    rustix::fs::flock(&holder, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let (error, code) = daemon.fails(&["device", "wipe", shown(&foreign), "--yes"]);
    assert!(code == 1 && error.contains("in use"), "{error}");
    drop(holder);
    assert_eq!(scanned(&daemon, &foreign)["free"], false);
    let said = daemon.ok(&["device", "wipe", shown(&foreign), "--yes"]);
    assert!(said.contains("erased an ext2 file system"), "{said}");
    assert_eq!(scanned(&daemon, &foreign)["free"], true);
    let said = daemon.ok(&["device", "wipe", shown(&foreign), "--yes"]);
    assert!(said.contains("nothing that is known"), "{said}");
    let (error, code) = daemon.fails(&["device", "wipe", "nowhere", "--yes"]);
    assert!(code == 1 && error.contains("device scan"), "{error}");
}

/// A superblock that is damaged at both places is no array any more, and no free device either.
#[test]
fn what_is_left_of_a_damaged_device_is_not_taken_for_free() {
    let daemon = Daemon::start("illegible");
    let members = daemon.create("t", "ec2+1", 4, "64M", &[]);
    daemon.ok(&["export", "t"]);
    let one = common::open_direct(&members[0]);
    let mut block = Buf::zeroed(4096);
    for at in (0..64 * MIB).step_by(4096) {
        one.read_exact_at(&mut block, at).unwrap();
        let mut last = Buf::zeroed(4096);
        last.copy_from_slice(&block);
        last[64] ^= 1;
        if block.starts_with(ashlar_format::superblock::MAGIC) {
            one.write_all_at(&last, at).unwrap();
        }
    }
    let found = scanned(&daemon, &members[0]);
    assert!(
        found["array"].is_null() && found["free"] == false,
        "{found}"
    );
    assert!(
        found["holds"][0].as_str().unwrap().contains("damaged"),
        "{found}"
    );
    let spare = file(&daemon, "spare.img", 64 * MIB);
    let pair = [shown(&members[0]), shown(&spare)];
    let line = [&["create", "u", "--layout", "raid1", "-n"][..], &pair].concat();
    let (error, code) = daemon.fails(&line);
    assert!(
        code == 1 && error.contains("damaged") && error.contains("--force"),
        "{error}"
    );
    daemon.ok(&["device", "wipe", shown(&members[0]), "--yes"]);
    assert_eq!(scanned(&daemon, &members[0])["free"], true);
    daemon.ok(&line);
}

#[test]
fn a_device_that_may_be_needed_is_not_wiped() {
    let daemon = Daemon::start("needed");
    let members = daemon.create("t", "ec2+2", 6, "64M", &[]);
    write_some(&daemon);
    daemon.ok(&["offline", "t", "3"]);
    let at = shown(&members[3]);
    let (error, code) = daemon.fails(&["device", "wipe", at, "--yes"]);
    assert!(code == 1 && error.contains("expects it back"), "{error}");
    // A copy, or another name, of one in use.
    let copy = daemon.path("copy.img");
    std::fs::copy(&members[1], &copy).unwrap();
    let (error, _) = daemon.fails(&["device", "wipe", shown(&copy), "--yes"]);
    assert!(error.contains("or a copy"), "{error}");
    let found = scanned(&daemon, &copy);
    assert!(
        found["in_use"].as_str().unwrap().contains("or a copy"),
        "{found}"
    );
    daemon.ok(&["fail", "t", "3", "-w"]);
    wait_until("the rebuild", Duration::from_secs(60), || {
        daemon.status("t")["state"] == "optimal"
    });
    let (error, _) = daemon.fails(&["device", "wipe", at]);
    assert!(error.contains("is optimal without it"), "{error}");
    daemon.ok(&["device", "wipe", at, "--yes"]);
    let told = events(&daemon, "device-wiped").remove(0);
    assert_eq!(
        (&told["device"], &told["severity"]),
        (&3.into(), &"info".into())
    );
    let (error, _) = daemon.fails(&["online", "t", "3", "-f"]);
    assert!(!error.is_empty());
    all_there(&daemon);
    daemon.ok(&["replace", "t", "3", at, "-w"]);
    assert_eq!(daemon.status("t")["devices"][3]["state"], "online");
    all_there(&daemon);
}

#[test]
fn a_mounted_device_and_the_file_under_it_are_left_alone() {
    if !have_kernel_devices() || !have(&["losetup", "mkfs.ext4", "mount"]) {
        return;
    }
    let mut daemon = Daemon::start("mounted");
    let image = file(&daemon, "image", 64 * MIB);
    tool("mkfs.ext4", &["-q", shown(&image)]);
    let said = tool("losetup", &["-f", "--show", shown(&image)]);
    let node = said.trim().to_string();
    let gone = Detached(node.clone());
    let at = daemon.mount(&node, "mnt");
    for (device, words) in [(node.as_str(), "mounted at"), (shown(&image), "/dev/loop")] {
        let (error, code) = daemon.fails(&["device", "wipe", device, "--yes"]);
        assert!(code == 1 && error.contains(words), "{error}");
        let found = scanned(&daemon, Path::new(device));
        assert!(found["in_use"].as_str().unwrap().contains(words), "{found}");
        assert_eq!(found["free"], false);
    }
    daemon.unmount(&at);
    let said = daemon.ok(&["device", "wipe", &node, "--yes"]);
    assert!(said.contains("erased an ext4 file system"), "{said}");
    assert_eq!(scanned(&daemon, Path::new(&node))["free"], true);
    assert!(!try_tool("mount", &[&node, shown(&at)]).status.success());
    drop(gone);
}

/// A loop device that goes at the end.
struct Detached(String);

impl Drop for Detached {
    fn drop(&mut self) {
        let _ = try_tool("losetup", &["-d", &self.0]);
    }
}

#[test]
fn counters_of_errors_begin_anew() {
    let daemon = Daemon::start("clear");
    let members = daemon.create("t", "ec2+1", 4, "64M", &[]);
    let disk = daemon.disk("t");
    let all = (0, 48 * MIB);
    assert_eq!(disk.write_range(all, 256 << 10, 8, pattern(1)), []);
    disk.flush().unwrap();
    let liar = common::open_direct(&members[2]);
    let mut random = Random::new(3);
    for at in (8 * MIB..56 * MIB).step_by(4096) {
        let mut block = Buf::zeroed(4096);
        liar.read_exact_at(&mut block, at).unwrap();
        if block.iter().any(|byte| *byte != 0) {
            random.fill(&mut block);
            liar.write_all_at(&block, at).unwrap();
        }
    }
    let well = || assert_eq!(disk.compare_range(all, 256 << 10, 8, pattern(1)), []);
    well();
    let errors = |index: usize| daemon.status("t")["devices"][index]["errors"].clone();
    let counted = errors(2);
    assert!(counted["digest"].as_u64().unwrap() > 0, "{counted}");
    daemon.ok(&["wait", "t"]);
    let tasks = daemon.json(&["task", "t", "-j"]);
    let status = daemon.status("t");
    let (listed, known) = (&tasks["tasks"], &status["tasks"]);
    for field in ["id", "kind", "state", "found", "healed"] {
        assert_eq!(listed[0][field], known[0][field], "{listed}, {known}");
    }
    assert_eq!(
        (&tasks["array"], &listed[0]["kind"]),
        (&"t".into(), &"heal".into())
    );
    let rows = daemon.ok(&["task", "t", "-H"]);
    assert!(rows.contains("\trepair\tdone\t"), "{rows}");
    let counted = errors(2);
    let cleared = daemon.json(&["device", "clear", "t", shown(&members[2]), "-j"]);
    assert_eq!(
        (&cleared["device"], &cleared["errors"]),
        (&2.into(), &counted)
    );
    let zero = serde_json::json!({ "read": 0, "write": 0, "digest": 0 });
    assert_eq!(errors(2), zero);
    let told = events(&daemon, "errors-cleared").remove(0);
    assert_eq!(
        (&told["device"], &told["severity"]),
        (&2.into(), &"info".into())
    );
    let text = told["text"].as_str().unwrap();
    assert!(
        text.contains(&format!("{} digest", counted["digest"])),
        "{text}"
    );
    assert!(!daemon.ok(&["status", "-x"]).contains("gave"));
    let said = daemon.ok(&["device", "clear", "t", "2"]);
    assert!(said.contains("0 read, 0 write and 0 digest"), "{said}");
    let (error, code) = daemon.fails(&["device", "clear", "t", "9"]);
    assert!(code == 1 && error.contains("not a device of t"), "{error}");
    well();
}

#[test]
fn the_light_of_a_drive_is_turned_on_and_off() {
    if !have_kernel_devices() || !have(&["losetup"]) {
        return;
    }
    let mut daemon = Daemon::start("light");
    assert!(daemon.stop());
    let sysfs = daemon.text("sysfs");
    daemon.environment.push(("ASHLAR_TEST_SYSFS".into(), sysfs));
    daemon.launch();
    let image = file(&daemon, "image", 64 * MIB);
    let (error, _) = daemon.fails(&["device", "locate", shown(&image), "on"]);
    assert!(error.contains("no block device"), "{error}");
    let said = tool("losetup", &["-f", "--show", shown(&image)]);
    let gone = Detached(said.trim().to_string());
    let node = gone.0.clone();
    let (error, code) = daemon.fails(&["device", "locate", &node, "on"]);
    let ledctl = format!("ledctl locate={node}");
    assert!(
        code == 1 && error.contains(&ledctl) && error.contains("enclosure"),
        "{error}"
    );
    let name = node.trim_start_matches("/dev/");
    let slot = format!("sysfs/class/block/{name}/device/enclosure_device:Slot 3");
    std::fs::create_dir_all(daemon.path(&slot)).unwrap();
    let light = daemon.path(&slot).join("locate");
    std::fs::write(&light, "0\n").unwrap();
    let is = || std::fs::read_to_string(&light).unwrap().trim().to_string();
    let said = daemon.ok(&["device", "locate", &node, "on"]);
    assert!(said.contains("the light of slot Slot 3 is on"), "{said}");
    assert_eq!(is(), "1");
    let off = daemon.json(&["device", "locate", &node, "off", "-j"]);
    assert_eq!(
        (&off["on"], &off["command"]),
        (&false.into(), &"device locate".into())
    );
    assert_eq!(is(), "0");
    let (_, code) = daemon.fails(&["device", "locate", &node, "bright"]);
    assert_eq!(code, 2);
}
