//! Devices that are taken out of an array for good, as an administrator meets them.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::Daemon;

const MIB: u64 = 1 << 20;

#[test]
fn devices_leave_an_array_that_serves() {
    let mut daemon = Daemon::start("removal");
    let files = daemon.create_served("ec2+2", 6);
    daemon.write(16 * MIB, 1);
    let would = daemon.ok(&["remove", "t", &files[2], "-n"]);
    assert!(
        would.contains("would move") && would.contains("Nothing was changed"),
        "{would}"
    );
    assert_eq!(daemon.device_state(2).as_deref(), Some("online"));

    // It stays, if the operator says so in time.
    daemon.ok(&["offline", "t", "5"]); // what is awaited keeps nothing from moving
    daemon.ok(&["online", "t", "5", "-w"]);
    daemon.ok(&["remove", "t", "2"]);
    let stays = daemon.run(&["online", "t", "2"]);
    let said = String::from_utf8_lossy(&stays.stdout);
    match stays.status.success() {
        true => assert!(said.contains("stays in the array"), "{said}"),
        false => assert_eq!(daemon.device_state(2), None, "it had left already"),
    }

    let said = daemon.ok(&["remove", "t", "3", "-w"]);
    assert!(said.contains("move from device 3"), "{said}");
    assert_eq!(daemon.device_state(3), None);
    assert_eq!(daemon.status("t")["state"], "optimal");
    let found = std::fs::read(&files[3]).unwrap();
    assert!(
        found[..4096].iter().all(|byte| *byte == 0),
        "no superblock is left"
    );
    daemon.read(16 * MIB, 1);
    let again = daemon.run(&["remove", "t", "3"]);
    let text = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(text.contains("3 is not a device of t"), "{text}");

    // The others are found again, and it can be used for something else.
    daemon.kill9();
    daemon.launch();
    daemon.read(16 * MIB, 1);
    daemon.write(16 * MIB, 2);
    assert_eq!(daemon.device_state(3), None);
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
    let instead = format!("'ashlar replace t {first} NEW'");
    assert!(text.contains(&instead), "what to type: {text}");
    daemon.read(16 * MIB, 2);
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
    daemon.create_served("ec2+1", 5);
    daemon.write(16 * MIB, 1);
    daemon.ok(&["fail", "t", "1", "-w"]);
    let said = daemon.ok(&["remove", "t", "1"]);
    assert!(
        said.contains("is no device of the array any more"),
        "{said}"
    );
    assert_eq!(daemon.device_state(1), None);
    assert!(!daemon.ok(&["status", "t"]).contains("failed"));
    daemon.read(16 * MIB, 1);
    let events = daemon.ok(&["events", "t", "-j"]);
    assert!(events.contains("device-removed"), "{events}");
}
