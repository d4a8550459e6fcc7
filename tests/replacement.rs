//! Devices in use that others take the place of, as an administrator meets them.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::disk::pattern;
use common::{Daemon, wait_until};

const MIB: u64 = 1 << 20;

fn write(daemon: &Daemon, seed: u64) {
    let disk = daemon.disk("t");
    let written = disk.write_range((0, 24 * MIB), 256 << 10, 8, pattern(seed));
    assert!(written.is_empty(), "{written:?}");
}

fn read(daemon: &Daemon, seed: u64) {
    let disk = daemon.disk("t");
    let wrong = disk.compare_range((0, 24 * MIB), 256 << 10, 8, pattern(seed));
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// An array of three files, as few as its layout takes, with a volume; where they are.
fn created(daemon: &Daemon) -> Vec<String> {
    let attach = format!("nbd=unix:{}", daemon.text("nbd.sock"));
    let files: Vec<String> = (0..3).map(|i| daemon.text(&format!("t-{i}.img"))).collect();
    let line = [
        "create",
        "t",
        "--layout",
        "raid5",
        "--file-size",
        "64M",
        "--volume",
        "v=24M",
        "--attach",
        &attach,
    ];
    let files_given = files.iter().map(String::as_str);
    daemon.ok(&line.into_iter().chain(files_given).collect::<Vec<_>>());
    files
}

/// A blank file of so many bytes.
fn blank(daemon: &Daemon, name: &str, bytes: u64) -> String {
    let path = daemon.text(name);
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(bytes).unwrap();
    path
}

/// The state of a device, by its index; `None` if the array has none of that.
fn state(daemon: &Daemon, index: u64) -> Option<String> {
    let status = daemon.status("t");
    let devices = status["devices"].as_array().unwrap();
    let device = devices.iter().find(|d| d["index"] == index)?;
    Some(device["state"].as_str().unwrap().to_string())
}

#[test]
fn a_device_in_use_is_replaced_while_the_array_serves() {
    let mut daemon = Daemon::start("replacement");
    let mut files = created(&daemon);
    write(&daemon, 1);
    let new = blank(&daemon, "new.img", 64 * MIB);
    let would = daemon.ok(&["replace", "t", "1", &new, "-n"]);
    assert!(
        would.contains("would be added as device 3") && would.contains("Nothing was changed"),
        "{would}"
    );
    let would = daemon.json(&["replace", "t", &files[1], &new, "-n", "-j"]);
    let leaves = &would["leaves"];
    assert_eq!(
        (&would["device"], &leaves["device"]),
        (&3.into(), &1.into())
    );
    assert!(
        leaves["moved_bytes"].as_u64().unwrap() >= 8 * MIB,
        "{would}"
    );
    assert_eq!(daemon.status("t")["devices_total"], 3);

    let said = daemon.ok(&["replace", "t", "1", &new]);
    assert!(
        said.contains("is device 3") && said.contains("ashlar online t 1"),
        "{said}"
    );
    wait_until("it has left", Duration::from_secs(60), || {
        let status = daemon.status("t");
        assert_eq!(status["state"], "optimal");
        status["devices_total"] == 3
    });
    assert_eq!(
        (state(&daemon, 1), state(&daemon, 3)),
        (None, Some("online".into()))
    );
    read(&daemon, 1);
    let found = std::fs::read(&files[1]).unwrap();
    assert!(
        found[..4096].iter().all(|byte| *byte == 0),
        "no superblock is left"
    );
    let events = daemon.ok(&["events", "t", "-j"]);
    for kind in ["device-added", "device-removing", "device-removed"] {
        assert!(events.contains(kind), "{kind}: {events}");
    }

    // The next start finds it; the old one may take the place of another.
    daemon.kill9();
    daemon.launch();
    read(&daemon, 1);
    write(&daemon, 2);
    let old = std::mem::replace(&mut files[1], new);
    daemon.ok(&["replace", "t", "0", &old, "--wait"]);
    files[0] = old;
    assert_eq!(
        (state(&daemon, 0), state(&daemon, 4)),
        (None, Some("online".into()))
    );
    daemon.ok(&["fail", "t", "2"]);
    read(&daemon, 2);
    daemon.ok(&["online", "t", "2", "-f", "-w"]);
    read(&daemon, 2);
    daemon.ok(&["export", "t"]);
    let line = ["verify"]
        .into_iter()
        .chain(files.iter().map(String::as_str));
    daemon.ok(&line.collect::<Vec<_>>());
}

#[test]
fn what_cannot_take_the_place_is_refused_in_one_line() {
    let daemon = Daemon::start("replacement-refused");
    let files = created(&daemon);
    let tiny = blank(&daemon, "tiny.img", 16 * MIB);
    let short = blank(&daemon, "short.img", 24 * MIB);
    let new = blank(&daemon, "new.img", 64 * MIB);
    let used = blank(&daemon, "used.img", 64 * MIB);
    daemon.ok(&["create", "u", "--layout", "raid0", &used]);
    let free = daemon.status("t")["capacity"]["free_bytes"]
        .as_u64()
        .unwrap();
    let most = (free - MIB).to_string();
    daemon.ok(&["volume", "create", "t/w", "--size", &most]);
    let before = daemon.status("t")["devices"].clone();
    let absent = daemon.text("absent.img");
    for (line, says) in [
        (
            vec!["replace", "t", "1"],
            "name the device that takes its place",
        ),
        (vec!["replace", "t", "1"], "'ashlar fail t 1'"),
        (vec!["replace", "t", "1", &tiny], "has room for"),
        (
            vec!["replace", "t", "1", &short],
            "the new device is too small",
        ),
        (vec!["replace", "t", "1", &files[1]], "is device 1 of t"),
        (vec!["replace", "t", "1", &files[2]], "is device 2 of t"),
        (
            vec!["replace", "t", "1", &files[2], "--force"],
            "is device 2 of t",
        ),
        (vec!["replace", "t", "1", &used, "--force"], "in use"),
        (vec!["replace", "t", "1", &absent], "absent.img"),
        (vec!["replace", "t", "7", &new], "7 is not a device of t"),
    ] {
        for more in [&[][..], &["-n"]] {
            let (text, _) = daemon.fails(&[&line[..], more].concat());
            assert!(
                text.contains(says) && text.lines().count() == 1,
                "{line:?}: {text}"
            );
        }
    }
    // Another array's device, which nobody has open.
    daemon.ok(&["export", "u"]);
    let (text, _) = daemon.fails(&["replace", "t", "1", &used]);
    assert!(text.contains("--force"), "{text}");
    // With one device gone too few are left for its layout.
    assert_eq!(daemon.status("t")["devices"], before, "nothing was changed");
    daemon.ok(&["fail", "t", "2"]);
    let (text, _) = daemon.fails(&["replace", "t", "1", &new]);
    assert!(
        text.contains("replace those that are out of use first"),
        "{text}"
    );
    assert_eq!(daemon.status("t")["devices_total"], 3);
}
