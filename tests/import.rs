//! What an import finds and says: copies, devices that had failed, arrays that are only read.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::Daemon;
use common::disk::pattern;

#[test]
fn a_copy_of_a_device_is_not_counted_and_named() {
    let daemon = Daemon::start("copy");
    let files = daemon.create("t", "ec4+2", 8, "64M", &[]);
    daemon.ok(&["export", "t"]);
    let copy = daemon.path("backup.img");
    std::fs::copy(&files[3], &copy).unwrap();
    let dir = daemon.scratch.0.to_str().unwrap();
    let output = daemon.run(&["import", "--scan", dir]);
    let (listed, said) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert!(
        output.status.success() && listed.contains("8 of 8"),
        "{listed}"
    );
    let named = |text: &str| {
        text.contains("backup.img") && text.contains("t-3.img") && text.contains("device 3")
    };
    assert!(named(&said), "{said}");
    let (error, code) = daemon.fails(&["import", "t", "--scan", dir]);
    assert!(code == 1 && named(&error), "{error}");
    std::fs::remove_file(copy).unwrap();
    daemon.ok(&["import", "t", "--scan", dir]);
    assert_eq!(daemon.status("t")["state"], "optimal");
}

#[test]
fn a_device_that_failed_is_failed_and_not_missing_after_an_import() {
    let daemon = Daemon::start("stillfailed");
    let files = daemon.create("t", "ec4+2", 8, "64M", &[]);
    daemon.ok(&["fail", "t", "3", "-w"]);
    let state =
        |daemon: &Daemon, index: usize| daemon.status("t")["devices"][index]["state"].clone();
    assert_eq!(state(&daemon, 3), "failed");
    daemon.ok(&["export", "t"]);
    let dir = daemon.scratch.0.to_str().unwrap();
    let listed = daemon.ok(&["import", "--scan", dir]);
    assert!(listed.contains("7 of 8"), "{listed}");
    // Another one is not there at all.
    std::fs::remove_file(&files[5]).unwrap();
    daemon.ok(&["import", "t", "--scan", dir]);
    assert_eq!(state(&daemon, 3), "failed");
    assert_eq!(state(&daemon, 5), "missing");
}

#[test]
fn an_array_that_is_only_read_says_so() {
    let mut daemon = Daemon::start("readonly");
    daemon.create("t", "ec2+1", 3, "64M", &[]);
    let written = daemon
        .disk("t")
        .write_range((0, 4 << 20), 256 << 10, 8, pattern(1));
    assert!(written.is_empty());
    assert_eq!(daemon.status("t")["service"], "full");
    daemon.ok(&["export", "t"]);
    let dir = daemon.scratch.0.to_str().unwrap().to_string();
    let said = daemon.ok(&["import", "t", "--scan", &dir, "--read-only"]);
    assert!(said.contains("read-only"), "{said}");
    let address = daemon.text("other.sock");
    daemon.ok(&[
        "volume",
        "attach",
        "t/v",
        "--nbd",
        &format!("unix:{address}"),
    ]);
    for orderly in [true, false] {
        assert_eq!(daemon.status("t")["service"], "read-only");
        assert!(daemon.ok(&["status"]).contains("read-only"));
        assert!(daemon.ok(&["list"]).contains("optimal, read-only"));
        if orderly {
            // What was attached by hand is listed while it serves.
            let served = daemon.ok(&["volume", "list"]);
            assert!(served.contains("other.sock"), "{served}");
            daemon.ok(&["volume", "detach", "t/v", &format!("unix:{address}")]);
            assert!(!daemon.path("other.sock").exists());
            let served = daemon.ok(&["volume", "list"]);
            assert!(!served.contains("other.sock") && served.contains("nbd.sock"));
            assert!(daemon.stop());
            daemon.launch();
        }
    }
    daemon.ok(&["export", "t"]);
    daemon.ok(&["import", "t", "--scan", &dir]);
    assert!(!daemon.ok(&["status"]).contains("read-only"));
    let differ = daemon
        .disk("t")
        .compare_range((0, 4 << 20), 256 << 10, 8, pattern(1));
    assert!(differ.is_empty(), "{differ:?}");
}
