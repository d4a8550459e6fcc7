//! Drives and their health: what `smartctl` answers of them reaches whoever looks, is told once, and a drive that does not
//! answer keeps nobody waiting. The answers are those of `tests/drives`; the drives are loop devices.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{Daemon, have, have_kernel_devices, tool, wait_until};
use serde_json::Value;

const SECOND: Duration = Duration::from_secs(1);

/// Loop devices that are gone at the end.
#[derive(Debug)]
struct Loops(Vec<String>);

impl Loops {
    fn of_files(daemon: &Daemon, count: usize) -> Loops {
        let one = |i| {
            let file = daemon.path(&format!("drive{i}.img"));
            let file = file.to_str().unwrap();
            tool("truncate", &["-s", "64M", file]);
            let device = tool("losetup", &["-f", "--show", file]);
            device.trim().to_string()
        };
        Loops((0..count).map(one).collect())
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        for device in &self.0 {
            let _ = common::try_tool("losetup", &["-d", device]);
        }
    }
}

/// Has a drive answer with a file of `tests/drives`.
fn answers(daemon: &Daemon, device: &str, name: &str) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drives");
    let name = from.join(name);
    let to = daemon
        .path("answers")
        .join(device.trim_start_matches("/dev/"));
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    std::fs::copy(name, to).unwrap();
}

/// A daemon that finds a `smartctl` which prints these answers.
fn with_smartctl(name: &str) -> Daemon {
    let mut daemon = Daemon::start(name);
    assert!(daemon.stop());
    std::fs::create_dir(daemon.path("bin")).unwrap();
    let script = format!(
        "#!/bin/sh\nfor last; do :; done\necho \"$@\" >> {0}/asked\n[ -e {0}/hang ] && exec sleep 10\ncat {0}/answers/${{last#/dev/}}\nexit 4\n",
        daemon.scratch.0.display()
    );
    let program = daemon.path("bin/smartctl");
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", daemon.text("bin"), std::env::var("PATH").unwrap());
    daemon.environment.push(("PATH".into(), path));
    daemon
}

fn drives(daemon: &Daemon) -> Vec<Value> {
    let list = daemon.json(&["device", "list", "-j"]);
    let devices = list["devices"].as_array().unwrap().iter();
    devices.map(|d| d["hardware"].clone()).collect()
}

fn events(daemon: &Daemon, kind: &str) -> Vec<Value> {
    let text = daemon.ok(&["events", "t", "-j"]);
    let all = text.lines().map(|l| serde_json::from_str(l).unwrap());
    all.filter(|e: &Value| e["kind"] == kind).collect()
}

fn metrics(daemon: &Daemon) -> String {
    use std::io::{Read, Write};
    let mut stream = std::os::unix::net::UnixStream::connect(daemon.path("control.sock")).unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(request).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn look_at_new_ones(daemon: &Daemon, loops: &Loops) {
    wait_until("drives to be asked", 10 * SECOND, || {
        drives(daemon)[0]["health"].is_object()
    });
    let known = drives(daemon);
    assert_eq!(known[0]["health"]["worn_percent"], 3);
    assert_eq!(known[0]["serial"], "S64HNE0T500123");
    assert_eq!(known[1]["health"]["worn_percent"], 9);
    assert_eq!(known[2]["health"]["passed"], true);
    for nothing in &known[3..] {
        assert!(nothing["health"].is_null(), "{nothing}");
    }
    let rows = daemon.ok(&["device", "list"]);
    let line = |n: usize| rows.lines().nth(n).unwrap();
    assert!(line(0).ends_with("WEAR  HEALTH"), "{rows}");
    assert!(line(1).ends_with("  3%  well"), "{rows}");
    assert!(line(4).ends_with("  -  -"), "{rows}");
    let asked = std::fs::read_to_string(daemon.path("asked")).unwrap();
    let expected = format!(
        "--json=c -n standby,0 -i -H -A -l error -l ssd {}",
        loops.0[0]
    );
    assert!(asked.lines().any(|l| l == expected), "{asked}");
    assert_eq!(daemon.ok(&["status", "-x"]), "nothing is wrong\n");
}

fn look_at_a_worn_one(daemon: &Daemon) {
    let event = events(daemon, "drive-failing").remove(0);
    assert_eq!(
        (&event["severity"], &event["device"]),
        (&"error".into(), &0.into())
    );
    let text = event["text"].as_str().unwrap();
    assert!(
        text.starts_with("the drive of device 0 reports: it is failing; "),
        "{text}"
    );
    assert!(
        text.ends_with("(SAMSUNG MZQL23T8HCLS-00A07, serial S64HNE0T500123)"),
        "{text}"
    );
    let text = metrics(daemon);
    let labels = "{array=\"t\",device=\"0\"";
    for series in [
        format!("ashlar_device_drive_healthy{labels}}} 0\n"),
        format!("ashlar_device_drive_wear_ratio{labels}}} 1.04\n"),
        format!("ashlar_device_drive_media_errors_total{labels}}} 7\n"),
        format!("ashlar_device_drive_warning{labels},warning=\"spare-low\"}} 1\n"),
        format!("ashlar_device_drive_warning{labels},warning=\"temperature\"}} 0\n"),
    ] {
        assert!(text.contains(&series), "{series}");
    }
    let status = daemon.ok(&["status", "-x"]);
    let words = status.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("the drive of device 0 (/dev/loop"),
        "{status}"
    );
    assert!(
        words.contains("free space allows its rebuild: 'ashlar fail t 0'"),
        "{status}"
    );
}

#[test]
fn wear_and_warnings_of_drives_reach_whoever_looks_and_are_told_once() {
    if !have_kernel_devices() || !have(&["losetup", "truncate"]) {
        return;
    }
    let mut daemon = with_smartctl("drives");
    let loops = Loops::of_files(&daemon, 5);
    for (device, name) in loops.0.iter().zip([
        "nvme-well.json",
        "sata-ssd.json",
        "sas-ssd.json",
        "none.json",
        "standby.json",
    ]) {
        answers(&daemon, device, name);
    }
    daemon.launch();
    let mut line = vec!["create", "t", "--layout", "ec2+1"];
    line.extend(loops.0.iter().map(String::as_str));
    daemon.ok(&line);
    look_at_new_ones(&daemon, &loops);

    // It wears, and is asked again.
    answers(&daemon, &loops.0[0], "nvme-worn.json");
    assert!(daemon.stop());
    daemon.launch();
    wait_until("the event", 10 * SECOND, || {
        !events(&daemon, "drive-failing").is_empty()
    });
    look_at_a_worn_one(&daemon);

    // What was told is not told again, and whoever pulls the drive reads what it warned of.
    daemon.kill9();
    daemon.launch();
    wait_until("drives to be asked", 10 * SECOND, || {
        let asked = std::fs::read_to_string(daemon.path("asked")).unwrap();
        asked.lines().filter(|l| l.ends_with(&loops.0[0])).count() >= 3
    });
    daemon.ok(&["fail", "t", "0", "-w"]);
    assert_eq!(events(&daemon, "drive-failing").len(), 1);
    let failed = events(&daemon, "device-failed").remove(0);
    let text = failed["text"].as_str().unwrap();
    assert!(
        text.contains("serial S64HNE0T500123; the drive reports: it is failing"),
        "{text}"
    );
    assert!(daemon.stop());
}

#[test]
fn a_drive_that_does_not_answer_keeps_nobody_waiting() {
    if !have_kernel_devices() || !have(&["losetup", "truncate"]) {
        return;
    }
    let mut daemon = with_smartctl("deaf");
    let loops = Loops::of_files(&daemon, 3);
    std::fs::write(daemon.path("hang"), "").unwrap();
    daemon.launch();
    let mut line = vec!["create", "t", "--layout", "ec2+1"];
    line.extend(loops.0.iter().map(String::as_str));
    daemon.ok(&line);
    wait_until("a drive to be asked", 10 * SECOND, || {
        daemon.path("asked").exists()
    });
    let began = Instant::now();
    assert_eq!(drives(&daemon).len(), 3);
    daemon.ok(&["volume", "create", "t/v", "--size", "8M"]);
    daemon.ok(&["export", "t"]);
    assert!(daemon.stop());
    let took = began.elapsed();
    assert!(took < 5 * SECOND, "{took:?}");
}
