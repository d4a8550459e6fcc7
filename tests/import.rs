//! What an import finds and says: copies, devices that had failed, arrays that are only read.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::{Duration, Instant};

use common::disk::pattern;
use common::{Daemon, wait_until};

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
    assert!(listed.contains("7 of 7"), "{listed}");
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

/// Two arrays of one name, as twin servers' disks have: one of them gets another name, which it keeps.
#[test]
fn an_array_gets_another_name_where_its_name_is_taken() {
    let mut daemon = Daemon::start("newname");
    let mut uuids = Vec::new();
    let scan = |n: usize| daemon.text(&format!("set{n}"));
    let scans = [scan(0), scan(1)];
    for (dir, byte) in scans.iter().zip(0..) {
        std::fs::create_dir(dir).unwrap();
        daemon.create("t", "ec2+1", 3, "64M", &[]);
        daemon.disk("t").write(4096, &[byte; 4096]).unwrap();
        uuids.push(daemon.status("t")["uuid"].as_str().unwrap().to_string());
        daemon.ok(&["volume", "detach", "t/v"]);
        daemon.ok(&["export", "t"]);
        for n in 0..3 {
            let name = format!("t-{n}.img");
            std::fs::rename(daemon.path(&name), format!("{dir}/{name}")).unwrap();
        }
    }
    let (error, _) = daemon.fails(&["import", "t", "--scan", &scans[0], "--scan", &scans[1]]);
    let way = "ashlar import UUID NEWNAME";
    assert!(error.contains(way) && error.contains(&uuids[0]), "{error}");
    daemon.ok(&["import", &uuids[0], "--scan", &scans[0]]);
    let other = ["import", &uuids[1], "--scan", &scans[1]];
    let (error, _) = daemon.fails(&other);
    let way = format!("ashlar import {} NEWNAME", uuids[1]);
    assert!(error.contains(&way), "{error}");
    let renamed = |name| ["import", &uuids[1], name, "--scan", &scans[1]];
    for (name, what) in [("t", "exists here already"), ("a/b", "an array")] {
        let (error, _) = daemon.fails(&renamed(name));
        assert!(error.contains(what), "{error}");
    }
    let with = [&renamed("u")[..], &["--read-only"]].concat();
    assert_eq!(daemon.fails(&with).1, 2);
    daemon.ok(&renamed("u"));
    let events = daemon.ok(&["events", "u"]);
    assert!(events.contains("it was called t before"), "{events}");
    let (error, _) = daemon.fails(&renamed("w"));
    assert!(error.contains("already imported"), "{error}");
    daemon.kill9();
    daemon.launch();
    for (name, byte) in [("t", 0), ("u", 1)] {
        assert_eq!(daemon.status(name)["state"], "optimal");
        let address = format!("unix:{}", daemon.text("nbd.sock"));
        daemon.ok(&["volume", "attach", &format!("{name}/v"), "--nbd", &address]);
        assert_eq!(daemon.disk(name).read(4096, 4096).unwrap(), [byte; 4096]);
        daemon.ok(&["volume", "detach", &format!("{name}/v")]);
    }
    daemon.ok(&["export", "u"]);
    let listed = daemon.ok(&["import", "--scan", &scans[1]]);
    assert!(listed.contains("u ") && !listed.contains("t "), "{listed}");
}

/// An array waits for a device that is away as long as `start.wait` says; another one and the verbs do not wait.
#[test]
fn a_start_waits_for_devices_and_nobody_else_does() {
    let mut daemon = Daemon::start("startwait");
    let files = daemon.create("t", "ec2+1", 3, "64M", &[]);
    daemon.disk("t").write(4096, &[7; 4096]).unwrap();
    let line = |name: &str, wait: &str| format!("{name}={wait}");
    for wrong in ["", "2h", "-1s", "1d", "soon"] {
        let (error, _) = daemon.fails(&["set", "t", &line("start.wait", wrong)]);
        assert!(error.contains("0s to 1h"), "{error}");
    }
    let got = daemon.ok(&["get", "t", "start.wait", "-H"]);
    assert!(got.trim_end().ends_with("180s"), "{got}");
    let other: Vec<String> = (0..3).map(|n| daemon.text(&format!("o{n}"))).collect();
    let mut make = vec!["create", "o", "--layout", "ec2+1", "--file-size", "64M"];
    make.extend(other.iter().map(String::as_str));
    daemon.ok(&make);
    std::fs::create_dir(daemon.path("away")).unwrap();
    let away = daemon.path("away/d.img");
    let reason = |daemon: &Daemon| {
        let status = daemon.json(&["status", "-j"]);
        let reason = status["not_imported"][0]["reason"].as_str();
        reason.unwrap_or_default().to_string()
    };
    // It comes back within the wait.
    daemon.ok(&["set", "t", "start.wait=1m"]);
    assert!(daemon.stop());
    std::fs::rename(&files[0], &away).unwrap();
    daemon.begin();
    wait_until("the wait", Duration::from_secs(10), || {
        reason(&daemon).contains("2 of 3 are here")
    });
    let said = reason(&daemon);
    let path = files[0].to_str().unwrap();
    assert!(
        said.contains(path) && said.contains("it waits until 20"),
        "{said}"
    );
    let listed = daemon.ok(&["list"]);
    assert!(
        listed.contains("waiting") && listed.contains("2 of 3 devices here, until "),
        "{listed}"
    );
    let waits = daemon.json(&["list", "-j"])["not_imported"][0]["waits"].clone();
    assert!(
        waits["devices_here"] == 2 && waits["devices_counted"] == 3,
        "{waits}"
    );
    let (error, _) = daemon.fails(&["status", "t"]);
    assert!(error.contains("is not imported yet"), "{error}");
    let asked = Instant::now();
    daemon.ok(&["wait", "o"]);
    daemon.ok(&["volume", "create", "o/w", "--size", "1M", "--thin"]);
    assert!(asked.elapsed() < Duration::from_secs(10));
    let (error, _) = daemon.fails(&["import", "t"]);
    assert!(
        error.contains("ashlar wait t") && error.contains("--degraded"),
        "{error}"
    );
    std::fs::rename(&away, &files[0]).unwrap();
    daemon.ok(&["wait", "t"]);
    assert!(asked.elapsed() < Duration::from_secs(30));
    assert_eq!(daemon.status("t")["state"], "optimal");
    assert_eq!(daemon.disk("t").read(4096, 4096).unwrap(), [7; 4096]);
    // The end of the process does not wait, and what is waited for stays known.
    assert!(daemon.stop());
    std::fs::rename(&files[0], &away).unwrap();
    daemon.begin();
    let asked = Instant::now();
    assert!(daemon.stop());
    assert!(asked.elapsed() < Duration::from_secs(10));
    // It does not come back.
    std::fs::rename(&away, &files[0]).unwrap();
    daemon.launch();
    daemon.ok(&["set", "t", "start.wait=2s"]);
    assert!(daemon.stop());
    std::fs::rename(&files[0], &away).unwrap();
    daemon.launch();
    let status = daemon.status("t");
    assert_eq!(status["devices"][0]["state"], "missing", "{status}");
    assert_eq!(daemon.disk("t").read(4096, 4096).unwrap(), [7; 4096]);
}

/// Whoever has to look for a device learns its number, its failure domain and where it was.
#[test]
fn devices_that_an_import_lacks_are_named() {
    let daemon = Daemon::start("lacks");
    let files: Vec<String> = (0..6).map(|n| daemon.text(&format!("d{n}"))).collect();
    let domains: Vec<String> = files
        .iter()
        .map(|f| format!("--domain={f}=rack-{}", &f[f.len() - 1..]))
        .collect();
    let mut line = vec!["create", "t", "--layout", "ec2+1", "--file-size", "64M"];
    line.extend(domains.iter().chain(&files).map(String::as_str));
    daemon.ok(&line);
    daemon.ok(&["set", "t", "rebuild.delay=10m"]);
    daemon.ok(&["export", "t"]);
    let dir = daemon.scratch.0.to_str().unwrap();
    std::fs::create_dir(daemon.path("away")).unwrap();
    let away =
        |n: usize| std::fs::rename(&files[n], daemon.path("away").join(n.to_string())).unwrap();
    let named = |n: usize| format!("device {n} (last at {}; domain rack-{n})", files[n]);
    away(4);
    let output = daemon.run(&["import", "--scan", dir]);
    let (listed, said) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert!(listed.contains("5 of 6"), "{listed}");
    assert!(
        said.contains(&format!("array t lacks {}", named(4))),
        "{said}"
    );
    let output = daemon.run(&["import", "t", "--scan", dir]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let words = format!("imported with 5 of 6 devices; not here: {}", named(4));
    assert!(said.contains(&words), "{said}");
    assert!(daemon.ok(&["events", "t"]).contains(&words));
    daemon.ok(&["export", "t"]);
    for n in [1, 2, 3] {
        away(n);
    }
    let (error, _) = daemon.fails(&["import", "t", "--scan", dir]);
    for n in [1, 2, 3] {
        assert!(error.contains(&named(n)), "{error}");
    }
}
