//! Devices that leave and come back, and devices that take the place of others, as an administrator meets them.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::disk::pattern;
use common::{Daemon, wait_until};

const MIB: u64 = 1 << 20;

fn write(daemon: &Daemon, seed: u64) {
    let written = daemon
        .disk("t")
        .write_range((0, 8 * MIB), 256 << 10, 8, pattern(seed));
    assert!(written.is_empty(), "{written:?}");
}

fn read(daemon: &Daemon, seed: u64) {
    let wrong = daemon
        .disk("t")
        .compare_range((0, 8 * MIB), 256 << 10, 8, pattern(seed));
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// An array of six files, and where they are.
fn created(daemon: &Daemon) -> Vec<String> {
    let files = daemon.create("t", "ec2+2", 6, "64M", &[]);
    files.iter().map(|f| f.display().to_string()).collect()
}

fn state(daemon: &Daemon, index: usize) -> String {
    daemon.status("t")["devices"][index]["state"]
        .as_str()
        .unwrap()
        .to_string()
}

fn optimal(daemon: &Daemon) {
    wait_until("the array is whole", Duration::from_secs(60), || {
        let status = daemon.status("t");
        let devices = status["devices"].as_array().unwrap();
        status["state"] == "optimal" && devices.iter().all(|d| d["state"] == "online")
    });
}

/// All of the array's files, of one that was exported: the independent verifier finds nothing wrong.
fn verified(daemon: &Daemon, files: &[String]) {
    daemon.ok(&["export", "t"]);
    let mut arguments = vec!["verify"];
    arguments.extend(files.iter().map(String::as_str));
    daemon.ok(&arguments);
}

#[test]
fn a_device_goes_offline_and_comes_back() {
    let daemon = Daemon::start("offline");
    let files = created(&daemon);
    write(&daemon, 1);
    let said = daemon.ok(&["offline", "t", "2"]);
    assert!(said.contains("ashlar online t 2"), "{said}");
    assert!(said.contains("any 1 more device may fail"), "{said}");
    assert_eq!(state(&daemon, 2), "offline");
    write(&daemon, 2);
    assert_eq!(
        daemon.status("t")["state"],
        "degraded",
        "nothing is rebuilt"
    );
    let back = daemon.json(&["online", "t", &files[2], "-j"]);
    assert_eq!(
        (&back["device"], &back["command"]),
        (&2.into(), &"online".into())
    );
    optimal(&daemon);
    assert_eq!(state(&daemon, 2), "online");
    read(&daemon, 2);
    let (again, code) = daemon.fails(&["online", "t", "2"]);
    assert!(code == 1 && again.contains("in use"), "{again}");
    daemon.ok(&["wait", "t"]); // what was written without it lies on it, too

    // The answer says what is at risk, and what to type where no more may go: with more written, some of it lies on
    // both devices, and on one more.
    write(&daemon, 3);
    write(&daemon, 4);
    daemon.ok(&["offline", "t", "2"]);
    let said = daemon.ok(&["offline", "t", "3"]);
    assert!(
        said.contains("CRITICAL: the next device failure loses"),
        "{said}"
    );
    let next = |index: &&str| {
        let output = daemon.run(&["offline", "t", index]);
        if output.status.success() {
            daemon.ok(&["online", "t", index]); // nothing needed that one
        }
        !output.status.success()
    };
    let needed = ["4", "5", "0", "1"].into_iter().find(next);
    let (refused, code) = daemon.fails(&["offline", "t", needed.unwrap()]);
    let words = "'ashlar online t 2' takes it in again first";
    assert!(code == 1 && refused.contains(words), "{refused}");
    daemon.ok(&["online", "t", "2"]);
    daemon.ok(&["online", "t", "3"]);
    optimal(&daemon);
    verified(&daemon, &files);
}

/// A device that was not there is taken in when it answers, without a word from anybody; a restart knows it.
#[test]
fn a_device_that_was_missing_is_taken_in_by_itself() {
    let mut daemon = Daemon::start("late");
    let files = created(&daemon);
    write(&daemon, 1);
    daemon.ok(&["export", "t"]);
    let away = daemon.text("away.img");
    std::fs::rename(&files[4], &away).unwrap();
    let dir = daemon.scratch.0.join("nowhere");
    std::fs::create_dir(&dir).unwrap();
    std::fs::rename(&away, dir.join("away.img")).unwrap();
    let scan = daemon.scratch.0.to_str().unwrap().to_string();
    daemon.ok(&["import", "t", "--scan", &scan]);
    assert_eq!(state(&daemon, 4), "missing");
    assert_eq!(daemon.status("t")["state"], "degraded");
    let written = daemon
        .disk("t")
        .write_range((0, MIB), 256 << 10, 8, pattern(1));
    assert!(written.is_empty());
    std::fs::rename(dir.join("away.img"), &files[4]).unwrap();
    optimal(&daemon);
    let events = daemon.ok(&["events", "t"]);
    let back = events
        .lines()
        .find(|line| line.contains("is back"))
        .unwrap();
    assert!(
        !back.contains(" 0 of its columns"),
        "most of it counts again: {back}"
    );
    read(&daemon, 1);
    assert!(daemon.stop());
    daemon.launch();
    wait_until("it is there again", Duration::from_secs(30), || {
        daemon.json(&["list", "-j"])["arrays"]
            .as_array()
            .is_some_and(|a| !a.is_empty())
    });
    assert_eq!(state(&daemon, 4), "online");
    verified(&daemon, &files);
}

#[test]
fn a_failed_device_is_replaced_or_taken_in_by_force() {
    let daemon = Daemon::start("replace");
    let mut files = created(&daemon);
    write(&daemon, 1);
    let (new, small) = (daemon.text("new.img"), daemon.text("small.img"));
    for (path, bytes) in [(&new, 64 * MIB), (&small, 32 * MIB)] {
        std::fs::File::create(path).unwrap().set_len(bytes).unwrap();
    }
    let (used, code) = daemon.fails(&["replace", "t", "3"]);
    assert!(code == 1 && used.contains("ashlar fail t 3"), "{used}");
    let said = daemon.ok(&["fail", "t", "3", "-w"]);
    assert!(said.contains("ashlar online t 3 -f"), "{said}");
    let (failed, _) = daemon.fails(&["online", "t", "3"]);
    assert!(failed.contains("-f"), "{failed}");
    daemon.ok(&["online", "t", "3", "-f", "-w"]);
    optimal(&daemon);
    daemon.ok(&["fail", "t", "3", "-w"]);
    for (bad, word) in [
        (&small, "slots"),
        (&files[1], "is device 1 of this array"),
        (&daemon.text("none"), "none"),
    ] {
        let (refused, code) = daemon.fails(&["replace", "t", "3", bad]);
        assert!(code == 1 && refused.contains(word), "{refused}");
    }
    let would = daemon.ok(&["replace", "t", "3", &new, "-n"]);
    assert!(would.contains("nothing was changed"), "{would}");
    assert_eq!(state(&daemon, 3), "failed");
    daemon.ok(&["replace", "t", "3", &new, "-w"]);
    optimal(&daemon);
    read(&daemon, 1);
    let old = std::mem::replace(&mut files[3], new);
    let (gone, _) = daemon.fails(&["online", "t", &old]);
    assert!(gone.contains("not one of this array's"), "{gone}");
    verified(&daemon, &files);
    let scan = daemon.scratch.0.to_str().unwrap();
    daemon.ok(&["import", "t", "--scan", scan]);
    assert_eq!(daemon.status("t")["state"], "optimal");
}

#[test]
fn a_failure_by_force_says_how_much_cannot_be_read() {
    let daemon = Daemon::start("forced");
    daemon.create_served("ec2+1", 3);
    daemon.write(8 * MIB, 1);
    // What a device has only counts again, when it is back, if a checkpoint had said so.
    daemon.ok(&["export", "t"]);
    let scan = daemon.scratch.0.to_str().unwrap();
    daemon.ok(&["import", "t", "--scan", scan]);
    daemon.ok(&["task", "t", "rebuild", "pause"]);
    let unreadable = |line: &[&str]| daemon.json(line)["unreadable_bytes"].as_u64().unwrap();
    assert_eq!(unreadable(&["fail", "t", "0", "-j"]), 0);
    let (refused, _) = daemon.fails(&["fail", "t", "1"]);
    assert!(refused.contains("would lose data"), "{refused}");
    let lost = unreadable(&["fail", "t", "1", "-f", "-j"]);
    assert!(lost >= 4 * MIB, "{lost}");
    let said = daemon.ok(&["fail", "t", "1", "-f"]);
    assert!(said.contains("of data cannot be read now"), "{said}");
    daemon.ok(&["online", "t", "1", "-f"]);
    daemon.read(8 * MIB, 1);
}
