//! Hot spares, as an administrator meets them.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::{Daemon, wait_until};

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(60);

/// An array `t` of four devices with a hot spare; where it is, and where the devices are.
fn created(daemon: &Daemon) -> (String, Vec<String>) {
    let files = daemon.create_served("ec2+1", 4);
    daemon.write(24 * MIB, 1);
    let path = daemon.blank("spare.img", 64 * MIB);
    let would = daemon.ok(&["add", "t", &path, "--hot-spare", "-n"]);
    assert!(would.contains("Nothing was changed"), "{would}");
    let said = daemon.ok(&["add", "t", &path, "--hot-spare"]);
    assert!(said.contains("is hot spare 4"), "{said}");
    is_spare(daemon, &path);
    (path, files)
}

/// It is shown as the hot spare of an array that lacks nothing.
fn is_spare(daemon: &Daemon, path: &str) {
    let status = daemon.status("t");
    let spare = &status["devices"][4];
    assert_eq!(
        (&spare["state"], &spare["path"], &spare["used_bytes"]),
        (&"spare".into(), &path.into(), &0.into())
    );
    assert_eq!(
        (&status["state"], &status["devices_total"]),
        (&"optimal".into(), &4.into())
    );
    let shown = daemon.ok(&["status", "t", "-v"]);
    let row = shown.lines().find(|line| line.contains(path));
    assert!(row.is_some_and(|row| row.contains("spare")), "{shown}");
    let here = daemon.scratch.0.to_str().unwrap();
    let scanned = daemon.json(&["device", "scan", "--scan", here, "-j"]);
    let devices = scanned["devices"].as_array().unwrap();
    let found = devices.iter().find(|d| d["path"] == path).unwrap();
    assert_eq!(found["in_use"], "device 4 of array t, spare", "{found}");
}

/// It is device `lost` soon, and all data is there.
fn until_used(daemon: &Daemon, lost: u64, path: &str) {
    wait_until("the hot spare is used", LIMIT, || {
        daemon.status("t")["devices"][usize::try_from(lost).unwrap()]["path"] == path
    });
    daemon.ok(&["wait", "t", "--for", "rebuild"]);
    let status = daemon.status("t");
    assert_eq!(status["state"], "optimal");
    assert_eq!(status["devices"].as_array().unwrap().len(), 4, "{status}");
    let events = daemon.ok(&["events", "t", "-j"]);
    assert_eq!(events.matches("hot-spare-used").count(), 1, "{events}");
    daemon.read(24 * MIB, 1);
}

/// Starts the daemon again; the array is imported.
fn restarted(daemon: &mut Daemon) {
    daemon.kill9();
    daemon.launch();
    wait_until("it is imported", LIMIT, || {
        let all = daemon.json(&["list", "-j"]);
        all["arrays"].as_array().is_some_and(|a| !a.is_empty())
    });
}

#[test]
fn a_hot_spare_takes_the_place_of_a_device_that_fails() {
    let mut daemon = Daemon::start("hot-spare");
    let (path, files) = created(&daemon);
    // Nobody else gets it, and nothing but a removal can be done with it.
    let (error, _) = daemon.fails(&["create", "u", "--layout", "raid0", &path, "--force"]);
    assert!(error.contains("in use"), "{error}");
    let refused: [&[&str]; 5] = [
        &["fail", "t", "4"],
        &["offline", "t", "4"],
        &["online", "t", "4"],
        &["device", "set", "t", "4", "domain=x"],
        &["device", "set", "t", "4", "size=max"],
    ];
    for line in refused {
        let (error, _) = daemon.fails(line);
        assert!(error.contains("hot spare"), "{line:?}: {error}");
    }
    let said = daemon.ok(&["import", "--incremental", &path]);
    assert!(said.contains("in use already"), "{said}");
    is_spare(&daemon, &path);

    daemon.ok(&["fail", "t", "1"]);
    until_used(&daemon, 1, &path);
    // The lost one is nobody's; the next start finds the other in its place.
    daemon.ok(&["device", "wipe", &files[1], "--yes"]);
    restarted(&mut daemon);
    until_used(&daemon, 1, &path);
    assert_eq!(daemon.device_state(4), None);
}

#[test]
fn a_hot_spare_outlives_a_restart_and_is_erased_when_removed() {
    let mut daemon = Daemon::start("hot-spare-restart");
    let (path, _) = created(&daemon);
    restarted(&mut daemon);
    is_spare(&daemon, &path);
    let said = daemon.ok(&["remove", "t", "4"]);
    assert!(said.contains("no device of the array any more"), "{said}");
    assert_eq!(daemon.device_state(4), None);
    let bytes = std::fs::read(&path).unwrap();
    assert!(bytes[..4096].iter().all(|b| *b == 0), "erased");
    let said = daemon.ok(&["add", "t", &path, "--hot-spare"]);
    assert!(said.contains("is hot spare 5"), "{said}");
    restarted(&mut daemon);
    daemon.ok(&["fail", "t", "2"]);
    until_used(&daemon, 2, &path);
}

#[test]
fn a_hot_spare_takes_the_place_of_a_device_that_an_import_misses() {
    let daemon = Daemon::start("hot-spare-missing");
    let (path, files) = created(&daemon);
    daemon.ok(&["set", "t", "rebuild.delay=1h"]);
    daemon.ok(&["export", "t"]);
    std::fs::remove_file(&files[3]).unwrap();
    let scan = daemon.scratch.0.to_str().unwrap();
    daemon.ok(&["import", "t", "--scan", scan]);
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(daemon.device_state(3).as_deref(), Some("missing"));
    assert_eq!(daemon.device_state(4).as_deref(), Some("spare"));
    daemon.ok(&["set", "t", "rebuild.delay=0s"]);
    until_used(&daemon, 3, &path);
}

#[test]
fn a_hot_spare_is_told_by_verify_and_has_the_name_of_its_array() {
    let daemon = Daemon::start("hot-spare-verify");
    let (path, files) = created(&daemon);
    daemon.ok(&["export", "t"]);
    let mut line = vec!["verify", "-j"];
    line.extend(files.iter().map(String::as_str).chain([path.as_str()]));
    let verified = daemon.json(&line);
    let findings = verified["findings"].as_array().unwrap();
    let kinds: Vec<_> = findings
        .iter()
        .map(|f| f["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["hot-spare"], "{verified}");

    // Under another name; the first is free for another array.
    let scan = daemon.scratch.0.to_str().unwrap();
    let said = daemon.ok(&["import", "--scan", scan]);
    assert!(said.contains("4 of 4"), "{said}");
    daemon.ok(&["import", "t", "u", "--scan", scan]);
    assert_eq!(daemon.status("u")["devices"][4]["state"], "spare");
    daemon.ok(&["export", "u"]);
    let other = daemon.blank("other.img", 64 * MIB);
    daemon.ok(&["create", "t", "--layout", "raid0", &other]);
    daemon.ok(&["import", "u", "--scan", scan]);
    assert_eq!(daemon.status("u")["devices"][4]["state"], "spare");
    let said = daemon.ok(&["destroy", "u", "--yes"]);
    assert!(!said.contains("not wiped"), "{said}");
    let bytes = std::fs::read(&path).unwrap();
    assert!(bytes[..4096].iter().all(|b| *b == 0), "erased");
}

/// An import goes on without a hot spare that it cannot open; `online` takes it in once that is mended.
#[test]
fn a_hot_spare_that_is_in_use_elsewhere_does_not_stop_an_import() {
    let daemon = Daemon::start("hot-spare-busy");
    let (path, _) = created(&daemon);
    daemon.ok(&["export", "t"]);
    let holder = std::fs::File::open(&path).unwrap();
    rustix::fs::flock(&holder, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let scan = daemon.scratch.0.to_str().unwrap();
    daemon.ok(&["import", "t", "--scan", scan]);
    let status = daemon.status("t");
    assert_eq!(
        (&status["state"], &status["devices"][4]["path"]),
        (&"optimal".into(), &"".into()),
        "{status}"
    );
    drop(holder);
    let (error, _) = daemon.fails(&["add", "t", &path, "--hot-spare"]);
    assert!(
        error.contains("'ashlar online t 4' takes that in"),
        "{error}"
    );
    daemon.ok(&["online", "t", "4"]);
    is_spare(&daemon, &path);
    let (error, _) = daemon.fails(&["add", "t", &path, "--hot-spare"]);
    assert!(error.contains("it is a hot spare"), "{error}");
}

/// A hot spare that was away has the name that its array had before, which another array may have got meanwhile.
#[test]
fn a_hot_spare_with_an_old_name_does_not_stop_an_import() {
    let mut daemon = Daemon::start("hot-spare-name");
    let (path, _) = created(&daemon);
    let scan = daemon.scratch.0.to_str().unwrap().to_string();
    let away = format!("{scan}/away");
    std::fs::create_dir(&away).unwrap();
    let away = format!("{away}/spare.img");
    daemon.ok(&["export", "t"]);
    std::fs::rename(&path, &away).unwrap();
    daemon.ok(&["import", "t", "u", "--scan", &scan]);
    let other = daemon.blank("other.img", 64 * MIB);
    daemon.ok(&["create", "t", "--layout", "raid0", &other]);
    daemon.ok(&["export", "u"]);
    daemon.ok(&["export", "t"]);
    std::fs::rename(&away, &path).unwrap();
    daemon.ok(&["import", "t", "--scan", &scan]);
    daemon.ok(&["import", "u", "--scan", &scan]);
    let is_there = |daemon: &Daemon| {
        let spare = &daemon.status("u")["devices"][4];
        assert_eq!(
            (&spare["state"], &spare["path"]),
            (&"spare".into(), &path[..].into())
        );
    };
    is_there(&daemon);
    restarted(&mut daemon);
    wait_until("both are imported", LIMIT, || {
        let all = daemon.json(&["list", "-j"]);
        all["arrays"].as_array().is_some_and(|a| a.len() == 2)
    });
    is_there(&daemon);
}
