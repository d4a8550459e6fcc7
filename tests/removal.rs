//! Devices that are taken out of an array for good, as an administrator meets them.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::Daemon;
use common::disk::pattern;

const MIB: u64 = 1 << 20;

fn write(daemon: &Daemon, seed: u64) {
    let disk = daemon.disk("t");
    let written = disk.write_range((0, 16 * MIB), 256 << 10, 8, pattern(seed));
    assert!(written.is_empty(), "{written:?}");
}

fn read(daemon: &Daemon, seed: u64) {
    let disk = daemon.disk("t");
    let wrong = disk.compare_range((0, 16 * MIB), 256 << 10, 8, pattern(seed));
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// An array of so many files with a volume that leaves room; where they are.
fn created(daemon: &Daemon, layout: &str, devices: usize) -> Vec<String> {
    let attach = format!("nbd=unix:{}", daemon.text("nbd.sock"));
    let files: Vec<String> = (0..devices)
        .map(|i| daemon.text(&format!("t-{i}.img")))
        .collect();
    let line = [
        "create",
        "t",
        "--layout",
        layout,
        "--file-size",
        "64M",
        "--volume",
        "v=24M",
        "--attach",
        &attach,
    ];
    let line: Vec<&str> = line
        .into_iter()
        .chain(files.iter().map(String::as_str))
        .collect();
    daemon.ok(&line);
    files
}

/// The state of a device, by its index; `None` if the array has none of that.
fn state(daemon: &Daemon, index: u64) -> Option<String> {
    let status = daemon.status("t");
    let devices = status["devices"].as_array().unwrap();
    let device = devices.iter().find(|d| d["index"] == index)?;
    Some(device["state"].as_str().unwrap().to_string())
}

#[test]
fn devices_leave_an_array_that_serves() {
    let mut daemon = Daemon::start("removal");
    let files = created(&daemon, "ec2+2", 6);
    write(&daemon, 1);
    let would = daemon.ok(&["remove", "t", &files[2], "-n"]);
    assert!(
        would.contains("would move") && would.contains("Nothing was changed"),
        "{would}"
    );
    assert_eq!(state(&daemon, 2).as_deref(), Some("online"));

    // It stays, if the operator says so in time.
    daemon.ok(&["offline", "t", "5"]); // what is awaited keeps nothing from moving
    daemon.ok(&["online", "t", "5", "-w"]);
    daemon.ok(&["remove", "t", "2"]);
    let stays = daemon.run(&["online", "t", "2"]);
    let said = String::from_utf8_lossy(&stays.stdout);
    match stays.status.success() {
        true => assert!(said.contains("stays in the array"), "{said}"),
        false => assert_eq!(state(&daemon, 2), None, "it had left already"),
    }

    let said = daemon.ok(&["remove", "t", "3", "-w"]);
    assert!(said.contains("move from device 3"), "{said}");
    assert_eq!(state(&daemon, 3), None);
    assert_eq!(daemon.status("t")["state"], "optimal");
    let found = std::fs::read(&files[3]).unwrap();
    assert!(
        found[..4096].iter().all(|byte| *byte == 0),
        "no superblock is left"
    );
    read(&daemon, 1);
    let again = daemon.run(&["remove", "t", "3"]);
    let text = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(text.contains("3 is not a device of t"), "{text}");

    // The others are found again, and it can be used for something else.
    daemon.kill9();
    daemon.launch();
    read(&daemon, 1);
    write(&daemon, 2);
    assert_eq!(state(&daemon, 3), None);
    while daemon.status("t")["devices_total"].as_u64().unwrap() > 4 {
        let devices = daemon.status("t")["devices"].clone();
        let last = devices.as_array().unwrap().last().unwrap()["index"].to_string();
        daemon.ok(&["remove", "t", &last, "-w"]);
    }
    let first = daemon.status("t")["devices"][0]["index"].to_string();
    let refused = daemon.run(&["remove", "t", &first]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        text.contains("3 devices would be left, and the layout needs 4"),
        "{text}"
    );
    read(&daemon, 2);
    let left: Vec<String> = daemon.status("t")["devices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|d| d["path"].as_str().unwrap().to_string())
        .collect();
    daemon.ok(&["export", "t"]);
    let line: Vec<&str> = ["verify"]
        .into_iter()
        .chain(left.iter().map(String::as_str))
        .collect();
    daemon.ok(&line);
    daemon.ok(&["create", "u", "--layout", "raid1", &files[3], &files[5]]);
}

/// A device that failed is rebuilt, and then nothing speaks of it any more.
#[test]
fn a_dead_device_is_taken_out_of_the_books() {
    let daemon = Daemon::start("removal-dead");
    created(&daemon, "ec2+1", 5);
    write(&daemon, 1);
    daemon.ok(&["fail", "t", "1", "-w"]);
    let said = daemon.ok(&["remove", "t", "1"]);
    assert!(
        said.contains("is no device of the array any more"),
        "{said}"
    );
    assert_eq!(state(&daemon, 1), None);
    assert!(!daemon.ok(&["status", "t"]).contains("failed"));
    read(&daemon, 1);
    let events = daemon.ok(&["events", "t", "-j"]);
    assert!(events.contains("device-removed"), "{events}");
}
