//! Devices in use that others take the place of, as an administrator meets them.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::{Daemon, wait_until};

const MIB: u64 = 1 << 20;

#[test]
fn a_device_in_use_is_replaced_while_the_array_serves() {
    let mut daemon = Daemon::start("replacement");
    let mut files = daemon.create_served("raid5", 3);
    daemon.write(24 * MIB, 1);
    let new = daemon.blank("new.img", 64 * MIB);
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
        (daemon.device_state(1), daemon.device_state(3)),
        (None, Some("online".into()))
    );
    daemon.read(24 * MIB, 1);
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
    daemon.read(24 * MIB, 1);
    daemon.write(24 * MIB, 2);
    let old = std::mem::replace(&mut files[1], new);
    daemon.ok(&["replace", "t", "0", &old, "--wait"]);
    files[0] = old;
    assert_eq!(
        (daemon.device_state(0), daemon.device_state(4)),
        (None, Some("online".into()))
    );
    daemon.ok(&["fail", "t", "2"]);
    daemon.read(24 * MIB, 2);
    daemon.ok(&["online", "t", "2", "-f", "-w"]);
    daemon.read(24 * MIB, 2);
    daemon.ok(&["export", "t"]);
    let line = ["verify"]
        .into_iter()
        .chain(files.iter().map(String::as_str));
    daemon.ok(&line.collect::<Vec<_>>());
}

/// A volume has all the space, as `create` makes it: a device of the same size is large enough, again and again.
#[test]
fn a_device_of_the_same_size_is_large_enough_where_volumes_have_all_space() {
    let daemon = Daemon::start("replacement-full");
    daemon.create("t", "ec2+2", 4, "64M", &[]);
    for index in 0..4 {
        let new = daemon.blank(&format!("new-{index}.img"), 64 * MIB);
        daemon.ok(&["replace", "t", &index.to_string(), &new, "-w"]);
    }
    assert_eq!(daemon.status("t")["devices_total"], 4);
}

#[test]
fn what_cannot_take_the_place_is_refused_in_one_line() {
    let daemon = Daemon::start("replacement-refused");
    let files = daemon.create_served("raid5", 3);
    let tiny = daemon.blank("tiny.img", 16 * MIB);
    let short = daemon.blank("short.img", 24 * MIB);
    let new = daemon.blank("new.img", 64 * MIB);
    let used = daemon.blank("used.img", 64 * MIB);
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
