//! Devices that are added to an array while it serves, as an administrator meets them.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Daemon, have, have_kernel_devices, tool, try_tool};

const MIB: u64 = 1 << 20;

#[test]
fn an_array_grows_while_it_serves() {
    let mut daemon = Daemon::start("addition");
    let files = daemon.create_served("ec2+1", 4);
    daemon.write(24 * MIB, 1);
    let before = daemon.usable("t");
    let (same, large) = (
        daemon.blank("same.img", 64 * MIB),
        daemon.blank("large.img", 96 * MIB),
    );
    let would = daemon.ok(&["add", "t", &same, &large, "-n"]);
    assert!(
        would.contains("would be added") && would.contains("Nothing was changed"),
        "{would}"
    );
    let would: serde_json::Value =
        serde_json::from_str(&daemon.ok(&["add", "t", &same, &large, "-n", "-j"])).unwrap();
    assert_eq!(daemon.usable("t"), before);
    assert_eq!(daemon.status("t")["devices_total"], 4);

    let said = daemon.ok(&["add", "t", &same, &large]);
    assert!(
        said.contains("is device 4") && said.contains("is device 5"),
        "{said}"
    );
    let after = daemon.usable("t");
    assert!(after > before * 14 / 10, "{before} to {after}");
    let foretold = would["usable_bytes"].as_u64().unwrap();
    assert_eq!(would["usable_before"], before);
    assert!(
        foretold.abs_diff(after) * 100 <= after,
        "{foretold} foretold, {after} there"
    );
    let status = daemon.status("t");
    assert_eq!(
        (&status["state"], &status["devices_total"]),
        (&"optimal".into(), &6.into())
    );
    daemon.read(24 * MIB, 1);
    daemon.write(24 * MIB, 2);
    let used = |index: usize| {
        daemon.status("t")["devices"][index]["used_bytes"]
            .as_u64()
            .unwrap()
    };
    assert!(used(4) > 0 && used(5) > 0, "new data lie on new devices");

    // They are found again, and one of them may go as any other.
    daemon.kill9();
    daemon.launch();
    daemon.read(24 * MIB, 2);
    daemon.ok(&["fail", "t", "4", "-w"]);
    daemon.read(24 * MIB, 2);
    assert_eq!(daemon.status("t")["state"], "optimal");
    daemon.ok(&["remove", "t", "4"]);
    daemon.ok(&["remove", "t", "5", "-w"]);
    let again = daemon.usable("t");
    assert!(
        again.abs_diff(before) * 50 <= before,
        "{before}, then {again}"
    );
    daemon.read(24 * MIB, 2);
    daemon.ok(&["export", "t"]);
    let line: Vec<&str> = ["verify"]
        .into_iter()
        .chain(files.iter().map(String::as_str))
        .collect();
    daemon.ok(&line);
}

/// Regression: of a loop device and the file under it, one was added before the other was refused; an import took them
/// for a device and its copy.
#[test]
fn a_loop_device_and_the_file_under_it_are_one_device() {
    if !have_kernel_devices() || !have(&["losetup"]) {
        return;
    }
    let mut daemon = Daemon::start("addition-loop");
    daemon.create_served("ec2+1", 4);
    let image = daemon.blank("new.img", 64 * MIB);
    let node = tool("losetup", &["-f", "--show", &image]);
    let node = node.trim();
    let gone = Detached(node.to_string());
    let before = daemon.status("t")["devices"].clone();
    for line in [
        &["add", "t", node, &image][..],
        &["add", "t", &image, node, "-n"],
        &["create", "u", "--layout", "raid1", &image, node, "-n"],
    ] {
        let text = daemon.refused(line);
        assert!(text.contains("are the same device"), "{line:?}: {text}");
    }
    assert_eq!(daemon.status("t")["devices"], before, "nothing was changed");
    daemon.ok(&["add", "t", node]);
    daemon.write(8 * MIB, 1);
    daemon.ok(&["export", "t"]);
    let dir = daemon.scratch.0.display().to_string();
    let found = daemon.json(&["import", "--scan", &dir, "-j"]);
    let found = &found["importable"][0];
    assert_eq!(found["copies"], serde_json::json!([]), "{found}");
    daemon.ok(&["import", "t", "--scan", &dir]);
    assert_eq!(daemon.status("t")["devices"][4]["path"], node);
    daemon.read(8 * MIB, 1);
    assert!(daemon.stop());
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
fn what_cannot_be_added_is_refused_in_one_line() {
    let daemon = Daemon::start("addition-refused");
    let files = daemon.create_served("ec2+1", 4);
    let before = daemon.status("t")["devices"].clone();
    let (blank_one, tiny) = (
        daemon.blank("new.img", 64 * MIB),
        daemon.blank("tiny.img", MIB),
    );
    let short = daemon.blank("short.img", 16 * MIB);
    let used = daemon.blank("used.img", 64 * MIB);
    daemon.ok(&["create", "u", "--layout", "raid0", &used]);
    let absent = daemon.text("absent.img");
    for (line, says) in [
        (vec!["add", "t", &tiny], "too small"),
        (vec!["add", "t", &short], "has room for"),
        (vec!["add", "t", &files[1]], "is device 1 of t"),
        (vec!["add", "t", &files[1], "--force"], "is device 1 of t"),
        (vec!["add", "t", &used], "in use"),
        (vec!["add", "t", &used, "--force"], "in use"),
        (vec!["add", "t", &blank_one, &blank_one], "twice"),
        (vec!["add", "t", &blank_one, &absent], "absent.img"),
        (
            vec!["add", "t", &blank_one, "--domain", "/dev/null=x"],
            "is not one of the devices",
        ),
        (vec!["add", "nothing", &blank_one], "nothing"),
    ] {
        let text = daemon.refused(&line);
        assert!(
            text.contains(says) && text.lines().count() == 1,
            "{line:?}: {text}"
        );
    }
    // Another array's device, which nobody has open.
    daemon.ok(&["export", "u"]);
    let text = daemon.refused(&["add", "t", &used]);
    assert!(text.contains("--force"), "{text}");
    assert_eq!(daemon.status("t")["devices"], before, "nothing was changed");
    daemon.ok(&["add", "t", &used, "--force"]);
    assert_eq!(daemon.status("t")["devices_total"], 5);
}

#[test]
fn spare_space_is_set_once_there_are_devices_for_it() {
    let mut daemon = Daemon::start("addition-spare");
    daemon.create_served("ec2+1", 4);
    daemon.write(24 * MIB, 1);
    let text = daemon.refused(&["set", "t", "spare=2"]);
    assert!(
        text.contains("takes 5 devices") && text.contains("has 4") && text.lines().count() == 1,
        "{text}"
    );
    let before = daemon.usable("t");
    daemon.ok(&["add", "t", &daemon.blank("new.img", 64 * MIB)]);
    let more = daemon.usable("t");
    daemon.ok(&["set", "t", "spare=2"]);
    let less = daemon.usable("t");
    assert!(
        less < before,
        "{more} of five devices, {less} with two spare"
    );
    assert_eq!(daemon.status("t")["spare"], 2);
    let generation = daemon.status("t")["generation"].clone();
    daemon.ok(&["set", "t", "spare=2"]);
    assert_eq!(daemon.status("t")["generation"], generation, "as it was");
    let text = daemon.ok(&["status"]);
    assert!(text.contains("2 spares"), "{text}");

    // What is promised is not taken back, and what is spare is not promised.
    daemon.ok(&["set", "t", "spare=1"]);
    let free = daemon.status("t")["capacity"]["free_bytes"].clone();
    let size = format!("{}K", free.as_u64().unwrap() / 1024 / 64 * 64);
    daemon.ok(&["volume", "create", "t/w", "--size", &size]);
    let text = daemon.refused(&["set", "t", "spare=2"]);
    assert!(
        text.contains("have been promised") && text.lines().count() == 1,
        "{text}"
    );
    daemon.kill9();
    daemon.launch();
    let got = daemon.json(&["get", "t", "spare", "-j"]);
    assert_eq!(got["properties"]["spare"], "1", "{got}");
    daemon.ok(&["fail", "t", "0", "-w"]);
    let status = daemon.status("t");
    assert_eq!(
        (&status["state"], &status["spare"]),
        (&"optimal".into(), &1.into())
    );
    daemon.read(24 * MIB, 1);
}
