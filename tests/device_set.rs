//! What is set of single devices, as an administrator meets it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::Daemon;

const MIB: u64 = 1 << 20;

fn resize(file: &str, bytes: u64) {
    let file = std::fs::File::options().write(true).open(file).unwrap();
    file.set_len(bytes).unwrap();
}

#[test]
fn a_device_that_has_grown_is_used_whole() {
    let mut daemon = Daemon::start("device-set");
    let files = daemon.create_served("ec2+1", 4);
    daemon.write(24 * MIB, 1);
    let before = daemon.usable("t");
    for (index, file) in files.iter().enumerate() {
        resize(file, 160 * MIB);
        let said = match index {
            0 => daemon.ok(&["device", "set", "t", file, "size=max"]),
            _ => daemon.ok(&["device", "set", "t", &index.to_string(), "size=max"]),
        };
        assert!(said.contains("160M of device"), "{said}");
    }
    let after = daemon.usable("t");
    assert!(after > 2 * before, "{before} to {after}");
    let status = daemon.status("t");
    assert!(
        (status["devices"].as_array().unwrap())
            .iter()
            .all(|d| d["size_bytes"] == 160 * MIB)
    );
    assert_eq!(status["state"], "optimal");
    daemon.read(24 * MIB, 1);
    let events = daemon.ok(&["events", "t", "-j"]);
    assert!(events.contains("device-grown"), "{events}");

    // What is new holds data; after a kill, without a device, and after it has grown again.
    let size = format!("{}K", (after - before) / 1024 / 64 * 64);
    daemon.ok(&["volume", "create", "t/w", "--size", &size]);
    daemon.write(24 * MIB, 2);
    daemon.kill9();
    daemon.launch();
    daemon.read(24 * MIB, 2);
    assert!(daemon.usable("t") > 2 * before);
    resize(&files[3], 200 * MIB);
    let set = daemon.json(&["device", "set", "t", "3", "size=max", "-j"]);
    assert_eq!(
        (&set["was_bytes"], &set["size_bytes"]),
        (&(160 * MIB).into(), &(200 * MIB).into())
    );
    daemon.ok(&["fail", "t", "0", "-w"]);
    daemon.read(24 * MIB, 2);
    daemon.ok(&["export", "t"]);
    let inspected = daemon.json(&["inspect", &files[3], "-j"]);
    assert_eq!(inspected["size_bytes"], 200 * MIB);
    let line: Vec<&str> = ["verify"]
        .into_iter()
        .chain(files[1..].iter().map(String::as_str))
        .collect();
    daemon.ok(&line);
}

#[test]
fn a_device_gets_another_failure_domain() {
    let mut daemon = Daemon::start("device-set-domain");
    let files = daemon.create_served("ec2+1", 6);
    daemon.write(24 * MIB, 1);
    for (index, file) in files.iter().enumerate() {
        let shelf = format!("domain=shelf {}", index / 2);
        let said = daemon.ok(&["device", "set", "t", file, &shelf]);
        assert!(said.contains("was in one of its own"), "{said}");
    }
    daemon.ok(&["device", "set", "t", "2", "domain=shelf 0"]);
    let before = daemon.status("t")["generation"].clone();
    let text = daemon.refused(&["device", "set", "t", "3", "domain=shelf 0"]);
    assert!(
        text.contains("could lose data") && text.lines().count() == 1,
        "{text}"
    );
    assert_eq!(daemon.status("t")["generation"], before);
    daemon.ok(&["device", "set", "t", "2", "domain=shelf 1"]);
    let said = daemon.ok(&["device", "set", "t", "2", "domain=shelf 1"]);
    assert!(said.contains("as before"), "{said}");
    daemon.ok(&["wait", "t", "--for", "rebalance"]);
    let set = daemon.json(&["device", "set", "t", "5", "domain=", "-j"]);
    assert_eq!(
        (&set["was_domain"], &set["domain"]),
        (&"shelf 2".into(), &"".into())
    );
    daemon.ok(&["device", "set", "t", "5", "domain=shelf 2"]);
    daemon.ok(&["wait", "t", "--for", "rebalance"]);
    let events = daemon.ok(&["events", "t", "-j"]);
    assert!(events.contains("domain-set"), "{events}");

    // They are known again, and a shelf may go.
    daemon.kill9();
    daemon.launch();
    assert_eq!(daemon.status("t")["devices"][3]["domain"], "shelf 1");
    daemon.read(24 * MIB, 1);
    for index in ["2", "3"] {
        daemon.ok(&["fail", "t", index]);
    }
    daemon.read(24 * MIB, 1);
    daemon.ok(&["wait", "t", "--for", "rebuild"]);
    daemon.ok(&["export", "t"]);
    let left = [&files[0], &files[1], &files[4], &files[5]];
    let line: Vec<&str> = ["verify"]
        .into_iter()
        .chain(left.into_iter().map(String::as_str))
        .collect();
    daemon.ok(&line);
}

#[test]
fn what_cannot_be_set_is_refused_in_one_line() {
    let daemon = Daemon::start("device-set-refused");
    let files = daemon.create_served("ec2+1", 4);
    let before = daemon.status("t");
    let long = format!("domain={}", "x".repeat(33));
    resize(&files[2], 64 * MIB + 8192);
    for (line, says) in [
        (vec!["t", "1", "size=max"], "has not grown"),
        (vec!["t", "2", "size=max"], "by 8K, too few"),
        (vec!["t", "1", "size=10G"], "size=max"),
        (vec!["t", "1", "colour=red"], "no 'colour' to set"),
        (vec!["t", "1", &long], "longer than 32 bytes"),
        (vec!["t", "9", "size=max"], "9 is not a device of t"),
        (vec!["u", "1", "size=max"], "u"),
    ] {
        let line: Vec<&str> = ["device", "set"].into_iter().chain(line).collect();
        let text = daemon.refused(&line);
        assert!(
            text.contains(says) && text.lines().count() == 1,
            "{line:?}: {text}"
        );
    }
    resize(&files[1], 63 * MIB);
    let text = daemon.refused(&["device", "set", "t", "1", "size=max"]);
    assert!(
        text.contains("has shrunk") && text.lines().count() == 1,
        "{text}"
    );
    resize(&files[1], 64 * MIB);
    assert_eq!(daemon.status("t")["devices"], before["devices"]);
    assert_eq!(daemon.status("t")["generation"], before["generation"]);
    resize(&files[3], 128 * MIB);
    daemon.ok(&["offline", "t", "3"]);
    let text = daemon.refused(&["device", "set", "t", "3", "size=max"]);
    assert!(
        text.contains("is not in use") && text.lines().count() == 1,
        "{text}"
    );
    daemon.ok(&["online", "t", "3", "-w"]);
    daemon.ok(&["device", "set", "t", "3", "size=max"]);
    daemon.ok(&["export", "t"]);
    let scan = daemon.text("");
    daemon.ok(&["import", "t", "--scan", &scan, "--read-only"]);
    resize(&files[0], 128 * MIB);
    let text = daemon.refused(&["device", "set", "t", "0", "size=max"]);
    assert!(
        text.contains("read-only") && text.lines().count() == 1,
        "{text}"
    );
}

/// Names move on once a device has died: the one that has a name now is meant by it.
#[test]
fn a_path_means_the_device_that_is_there_now() {
    let mut daemon = Daemon::start("names-moved");
    let files = daemon.create_served("ec2+2", 5);
    daemon.ok(&["set", "t", "start.wait=1s"]);
    assert!(daemon.stop());
    std::fs::remove_file(&files[1]).unwrap();
    std::fs::rename(&files[2], &files[1]).unwrap();
    daemon.launch();
    daemon.ok(&["wait", "t"]);
    let said = daemon.ok(&["offline", "t", &files[1]]);
    assert!(said.contains("device 2 "), "{said}");
    let state = |index| daemon.device_state(index).unwrap();
    assert_eq!((&state(1)[..], &state(2)[..]), ("missing", "offline"));
}

/// A device that was taken out of use comes back under another's name: it is taken in, not the one that had the name.
#[test]
fn online_takes_in_the_device_that_is_at_the_path() {
    let daemon = Daemon::start("names-swapped");
    let files = daemon.create_served("ec2+2", 5);
    let other = daemon.text("other.img");
    daemon.ok(&["offline", "t", "1"]);
    daemon.ok(&["offline", "t", "2"]);
    std::fs::rename(&files[1], &other).unwrap();
    std::fs::rename(&files[2], &files[1]).unwrap();
    std::fs::rename(&other, &files[2]).unwrap();
    let said = daemon.ok(&["online", "t", &files[1], "-w"]);
    assert!(said.contains("device 2 "), "{said}");
    let state = |index| daemon.device_state(index).unwrap();
    assert_eq!((&state(1)[..], &state(2)[..]), ("offline", "online"));
    daemon.ok(&["online", "t", "1", "-w"]);
    assert_eq!(state(1), "online");
}
