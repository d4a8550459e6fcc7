//! Destroying: nothing without a second word, nothing that clients use, and everything that says that
//! it belongs to the array.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::Daemon;
use common::disk::pattern;

/// What an import of the daemon's folder could find.
fn importable(daemon: &Daemon) -> usize {
    let dir = daemon.scratch.0.to_str().unwrap();
    let found = daemon.json(&["import", "--scan", dir, "-j"]);
    found["importable"].as_array().unwrap().len()
}

#[test]
fn a_failed_device_is_wiped_too_and_what_cannot_be_is_named() {
    let daemon = Daemon::start("wipe");
    let files = daemon.create("t", "ec4+2", 9, "64M", &[]);
    let written = daemon
        .disk("t")
        .write_range((0, 4 << 20), 256 << 10, 8, pattern(1));
    assert!(written.is_empty());
    // One fails and stays, one is no longer a device, one has moved to another folder.
    for index in ["1", "4", "6"] {
        daemon.ok(&["fail", "t", index, "-w"]);
    }
    std::fs::remove_file(&files[4]).unwrap();
    let moved = daemon.path("t-moved.img");
    std::fs::rename(&files[6], &moved).unwrap();
    // And somebody has kept a copy of one in use.
    let copy = daemon.path("backup.img");
    std::fs::copy(&files[2], &copy).unwrap();
    let output = daemon.run(&["destroy", "t", "--yes"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(
        lines[0].contains("backup.img is a copy of device 2"),
        "{said}"
    );
    assert!(
        lines[1].contains("device 4") && lines[1].contains("it is missing"),
        "{said}"
    );
    assert_eq!(importable(&daemon), 1, "the copy alone");
    std::fs::remove_file(copy).unwrap();
    assert_eq!(importable(&daemon), 0, "a device still names the array");
    // So all of them can be used again, without --force.
    let kept: Vec<String> = [0, 1, 2, 3, 5, 7, 8]
        .iter()
        .map(|i| files[*i].display().to_string())
        .chain([moved.display().to_string()])
        .collect();
    let mut line = vec!["create", "u", "--layout", "ec4+2"];
    line.extend(kept.iter().map(String::as_str));
    daemon.ok(&line);
}

#[test]
fn a_device_that_failed_before_an_export_is_wiped_by_a_later_destroy() {
    let daemon = Daemon::start("wipelater");
    daemon.create("t", "ec4+2", 8, "64M", &[]);
    daemon.ok(&["fail", "t", "3"]);
    daemon.ok(&["export", "t"]);
    let dir = daemon.scratch.0.to_str().unwrap();
    daemon.ok(&["import", "t", "--scan", dir]);
    daemon.ok(&["destroy", "t", "--yes"]);
    assert_eq!(importable(&daemon), 0);
}

#[test]
fn connected_clients_are_not_cut_off_without_a_word() {
    let daemon = Daemon::start("clients");
    daemon.create("t", "ec2+1", 3, "64M", &[]);
    let address = format!("unix:{}", daemon.text("nbd.sock"));
    let other = format!("unix:{}", daemon.text("other.sock"));
    // More connections of one export, and another address, are no second cache.
    daemon.ok(&["volume", "attach", "t/v", "--nbd", &other]);
    let (one, two) = (daemon.disk("t"), daemon.disk("t"));
    one.write(0, &[1; 4096]).unwrap();
    for line in [
        &["volume", "detach", "t/v"][..],
        &["volume", "detach", "t/v", &address],
        &["volume", "destroy", "t/v", "--yes"],
        &["destroy", "t", "--yes"],
    ] {
        let (error, code) = daemon.fails(line);
        assert!(
            code == 1 && error.contains("2 NBD connections are open") && error.contains("-f"),
            "{error}"
        );
        assert_eq!(two.read(0, 4096).unwrap(), [1; 4096]);
    }
    // Nobody is connected at the other address.
    daemon.ok(&["volume", "detach", "t/v", &other]);
    drop(two);
    let (error, _) = daemon.fails(&["volume", "detach", "t/v"]);
    assert!(error.contains("1 NBD connection is open"), "{error}");
    daemon.ok(&["volume", "detach", "t/v", "-f"]);
    assert!(one.read(0, 4096).is_err(), "it is still connected");
    // Who has left is no obstacle.
    daemon.ok(&["volume", "attach", "t/v", "--nbd", &address]);
    drop(daemon.disk("t"));
    daemon.ok(&["volume", "detach", "t/v"]);
    daemon.ok(&["volume", "attach", "t/v", "--nbd", &address]);
    let disk = daemon.disk("t");
    daemon.ok(&["volume", "destroy", "t/v", "--yes", "-f"]);
    assert!(disk.read(0, 4096).is_err());
    daemon.ok(&["destroy", "t", "--yes"]);
}
