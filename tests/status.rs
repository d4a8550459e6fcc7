//! What `status`, `wait`, `events` and `plan` tell an operator of arrays that are not as they were.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;

use ashlar_rt::Buf;
use rustix::process::Signal;
use serde_json::Value;

use common::disk::pattern;
use common::{ASHLAR, Daemon, Scratch, have_kernel_devices};

const PIECE: usize = 256 << 10;

fn write(daemon: &Daemon, bytes: u64) {
    let disk = daemon.disk("t");
    assert_eq!(disk.write_range((0, bytes), PIECE, 8, pattern(1)), []);
    disk.flush().unwrap();
}

fn bytes(value: &Value, name: &str) -> u64 {
    value[name]
        .as_u64()
        .unwrap_or_else(|| panic!("no {name} in {value}"))
}

/// Raw and usable space are the sums of their parts.
fn adds_up(array: &Value) {
    let c = &array["capacity"];
    let parts = [
        "usable_bytes",
        "parity_bytes",
        "spare_bytes",
        "reserved_bytes",
    ];
    let parts: u64 = parts.iter().map(|p| bytes(c, p)).sum();
    assert_eq!(bytes(c, "raw_bytes"), parts, "{c}");
    let held = bytes(c, "used_bytes") + bytes(c, "promised_bytes");
    assert_eq!(
        bytes(c, "usable_bytes").max(held),
        held + bytes(c, "free_bytes"),
        "{c}"
    );
}

fn narrow(text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "wider than 80: {line}");
    }
}

/// Regression: `status -x` said "nothing is wrong" until the next import missed the device.
#[test]
fn files_that_are_deleted_replaced_or_cut_off_are_told() {
    let daemon = Daemon::start("storage");
    let files = daemon.create("t", "ec2+3", 6, "64M", &[]);
    write(&daemon, 8 << 20);
    assert_eq!(daemon.ok(&["status", "-x"]), "nothing is wrong\n");
    std::fs::remove_file(&files[2]).unwrap();
    std::fs::remove_file(&files[4]).unwrap();
    daemon.blank("t-4.img", 64 << 20);
    let cut = std::fs::File::options().write(true).open(&files[3]);
    cut.unwrap().set_len(1 << 20).unwrap();
    let said = |index: usize| daemon.status("t")["devices"][index]["storage"].clone();
    for (index, words) in [
        (2, "the file was deleted or moved"),
        (3, "the file has become smaller than the 64M"),
        (4, "another file is at this path now"),
    ] {
        common::wait_until("it to be told", Duration::from_secs(30), || {
            said(index).as_str().unwrap().contains(words)
        });
        let replace = format!("'ashlar replace t {index} NEW'");
        let text = daemon.ok(&["status", "-x"]);
        narrow(&text);
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(words) && text.contains(&replace), "{text}");
        let events = daemon.ok(&["events", "t", "-j"]);
        let events = events.lines().map(|l| serde_json::from_str(l).unwrap());
        let told = events.filter(|e: &Value| e["kind"] == "storage-lost" && e["device"] == index);
        let told: Vec<Value> = told.collect();
        assert!(
            told.len() == 1 && told[0]["severity"] == "error",
            "{told:?}"
        );
    }
    for whole in [0, 1, 5] {
        assert_eq!(said(whole), "", "it was looked at as often as the others");
    }
    let new = daemon.blank("new.img", 96 << 20);
    daemon.ok(&["replace", "t", "2", &new, "-w"]);
    let text = daemon.ok(&["status", "-x"]);
    assert!(
        text.contains("t-3.img") && !text.contains("t-2.img"),
        "{text}"
    );
}

/// A process that is stopped, until this is dropped.
struct Stopped<'a>(&'a Daemon);

impl<'a> Stopped<'a> {
    fn new(daemon: &'a Daemon) -> Stopped<'a> {
        daemon.signal(Signal::STOP);
        Stopped(daemon)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.signal(Signal::CONT);
    }
}

/// Regression: while a file system hung, nothing was told of files on others.
#[test]
fn a_file_system_that_hangs_keeps_no_other_from_being_looked_at() {
    if !have_kernel_devices() {
        return;
    }
    let below = Daemon::start("below");
    below.create("t", "ec2+1", 3, "64M", &[]);
    below.ok(&["volume", "detach", "t/v"]);
    below.ok(&["volume", "attach", "t/v", "--fuse", "served"]);
    let served = below.path("served").join("v").display().to_string();

    let daemon = Daemon::start("hangs");
    daemon.ok(&["create", "a", "--layout", "raid0", &served]);
    let files = daemon.create("t", "ec2+1", 3, "64M", &[]);
    let _hung = Stopped::new(&below);
    std::fs::remove_file(&files[1]).unwrap();
    let told = || daemon.ok(&["events", "t", "-j"]).contains("storage-lost");
    common::wait_until("it to be told", Duration::from_secs(30), told);
}

#[test]
fn an_optimal_array_with_devices_gone_says_what_is_left() {
    let daemon = Daemon::start("left");
    daemon.create("t", "ec4+2", 8, "64M", &[]);
    write(&daemon, 16 << 20);
    assert_eq!(daemon.ok(&["status", "-x"]), "nothing is wrong\n");
    let fresh = daemon.status("t");
    adds_up(&fresh);
    assert!(fresh["attention"].as_array().unwrap().is_empty());
    for (n, index) in ["6", "7"].iter().enumerate() {
        daemon.ok(&["fail", "t", index, "-w"]);
        let status = daemon.status("t");
        adds_up(&status);
        assert_eq!(status["state"], "optimal");
        assert_eq!(status["health"]["devices_gone"], n + 1);
        assert_eq!(status["health"]["more_losses"], 2);
        assert_eq!(status["health"]["reconstructs"], 1 - n);
        assert!(
            bytes(&status["capacity"], "usable_bytes") < bytes(&fresh["capacity"], "usable_bytes")
        );
        assert_eq!(
            bytes(&status["capacity"], "raw_bytes"),
            (7 - n as u64) * (64 << 20)
        );
    }
    // Optimal is about redundancy, and so is --test; -x is about what needs the operator.
    assert_eq!(daemon.run(&["status", "--test"]).status.code(), Some(0));
    let text = daemon.ok(&["status", "-x"]);
    narrow(&text);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("t OPTIMAL, 2 failed"), "{text}");
    assert!(
        words.contains("2 of 8 devices are out of use: 6 ("),
        "{text}"
    );
    assert!(
        words.contains("All data has full redundancy again. No device is left"),
        "{text}"
    );
    assert!(
        daemon
            .ok(&["list"])
            .lines()
            .nth(1)
            .unwrap()
            .ends_with("2 failed")
    );
    let attention = daemon.status("t")["attention"].clone();
    assert!(
        attention[0].as_str().unwrap().starts_with("2 of 8"),
        "{attention}"
    );

    // What is out already is said to be.
    let again = daemon.ok(&["fail", "t", "7"]);
    assert!(again.contains("is out of use already"), "{again}");
    assert_eq!(daemon.json(&["fail", "t", "7", "-j"])["already"], true);

    // The next loss has no room; that is a failure to wait for it, and says why.
    let output = daemon.run(&["fail", "t", "5", "-w"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("too few devices are left"), "{error}");
    let (error, code) = daemon.fails(&["wait", "t", "--for", "reconstruct"]);
    assert!(
        code == 1 && error.contains("nothing more is done by itself"),
        "{error}"
    );
    daemon.fails(&["wait", "t"]);
    daemon.ok(&["wait", "t", "--for", "clean"]);
    assert_eq!(daemon.run(&["status", "--test"]).status.code(), Some(1));
    narrow(&daemon.ok(&["status", "-v"]));

    // Read-only, nothing is waited for that will not come.
    daemon.ok(&["export", "t"]);
    let dir = daemon.scratch.0.to_str().unwrap().to_string();
    daemon.ok(&["import", "t", "--scan", &dir, "--read-only"]);
    assert_eq!(daemon.status("t")["service"], "read-only");
    let (error, _) = daemon.fails(&["wait", "t"]);
    assert!(error.contains("read-only"), "{error}");
    narrow(&daemon.ok(&["status"]));
}

#[test]
fn what_may_be_promised_is_what_status_says_is_free() {
    let daemon = Daemon::start("free");
    let files: Vec<String> = (0..6).map(|i| daemon.text(&format!("d{i}"))).collect();
    let mut line = vec!["create", "t", "--layout", "ec3+2", "--file-size", "64M"];
    line.extend(files.iter().map(String::as_str));
    daemon.ok(&line);
    let free = |daemon: &Daemon| bytes(&daemon.status("t")["capacity"], "free_bytes");
    let all = free(&daemon);
    daemon.ok(&["volume", "create", "t/a", "--size", "10M"]);
    // A volume has a map, whose nodes take room as well.
    let left = free(&daemon);
    let taken = all - left;
    assert!((10 << 20..11 << 20).contains(&taken), "{taken} of {all}");
    daemon.ok(&["fail", "t", "0"]);
    let less = free(&daemon);
    assert!(less < left - (10 << 20), "{less} of {left}");
    let size = (less + 4096).to_string();
    daemon.fails(&["volume", "create", "t/b", "--size", &size]);
    daemon.ok(&["volume", "create", "t/b", "--size", &less.to_string()]);
    assert_eq!(free(&daemon), 0);
    adds_up(&daemon.status("t"));
}

#[test]
fn plan_and_create_state_the_same_space() {
    let daemon = Daemon::start("same");
    for (layout, count, size) in [
        ("ec4+2", "8", "64M"),
        ("ec8+3", "14", "1G"),
        ("raid10", "4", "10G"),
    ] {
        let plan = Command::new(ASHLAR)
            .args([
                "plan",
                "-j",
                "--afr",
                "1",
                "--devices",
                count,
                "--size",
                size,
                "--layout",
                layout,
            ])
            .output()
            .unwrap();
        let plan: Value = serde_json::from_slice(&plan.stdout).unwrap();
        let files: Vec<String> = (0..count.parse::<usize>().unwrap())
            .map(|i| daemon.text(&format!("d{i}")))
            .collect();
        let mut line = vec![
            "create",
            "t",
            "-j",
            "-n",
            "--layout",
            layout,
            "--file-size",
            size,
        ];
        line.extend(files.iter().map(String::as_str));
        let create = daemon.json(&line);
        let planned = plan["choices"][0]["usable_bytes"].as_f64().unwrap();
        let made = create["array"]["capacity"]["usable_bytes"]
            .as_f64()
            .unwrap();
        assert!(
            (planned - made).abs() < 1.0,
            "{layout}: {planned} planned, {made} made"
        );
    }
    let text = Command::new(ASHLAR)
        .args(["plan", "--afr", "1", "--devices", "24", "--size", "16T"])
        .output()
        .unwrap();
    narrow(&String::from_utf8(text.stdout).unwrap());
    let small = Command::new(ASHLAR)
        .args([
            "plan",
            "--afr",
            "1",
            "--devices",
            "8",
            "--size",
            "1M",
            "--layout",
            "ec4+2",
        ])
        .output()
        .unwrap();
    assert_eq!(
        small.status.code(),
        Some(2),
        "create would refuse such devices"
    );
}

#[test]
fn events_are_kept_over_a_restart_and_numbered_on() {
    let mut daemon = Daemon::start("history");
    daemon.create("t", "ec2+1", 4, "64M", &[]);
    daemon.ok(&["fail", "t", "2", "-w"]);
    let events = |daemon: &Daemon, array: &str| -> Vec<Value> {
        let text = daemon.ok(&["events", array, "-j"]);
        text.lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect()
    };
    let before = events(&daemon, "t");
    assert!(before.iter().any(|e| e["kind"] == "device-failed"));
    daemon.kill9();
    daemon.launch();
    let after = events(&daemon, "t");
    assert_eq!(
        before[..],
        after[..before.len()],
        "what happened before a crash"
    );
    daemon.ok(&["volume", "create", "t/w", "--size", "1M", "--thin"]);
    let more = events(&daemon, "t");
    assert!(more.len() > after.len());
    let numbers: Vec<u64> = more.iter().map(|e| bytes(e, "number")).collect();
    assert_eq!(numbers, (1..=more.len() as u64).collect::<Vec<_>>());
    // Also of an array that is not here any more.
    daemon.ok(&["export", "t"]);
    let exported = events(&daemon, "t");
    assert_eq!(exported.last().unwrap()["text"], "exported");
    assert!(daemon.stop());
    daemon.launch();
    assert_eq!(events(&daemon, "t"), exported);
    daemon.fails(&["events", "nothere"]);
}

#[test]
fn a_missing_device_is_named_by_its_last_path() {
    let mut daemon = Daemon::start("path");
    let files = daemon.create("t", "ec2+1", 4, "64M", &[]);
    daemon.ok(&["fail", "t", "1", "-w"]);
    daemon.ok(&["set", "t", "start.wait=1s"]);
    assert!(daemon.stop());
    std::fs::remove_file(&files[2]).unwrap();
    daemon.launch();
    for again in [false, true] {
        let status = daemon.status("t");
        // One was taken out and is here; the other is not.
        assert_eq!(status["devices"][1]["state"], "failed", "{again}");
        assert_eq!(status["devices"][2]["state"], "missing");
        for index in [1, 2] {
            let last = status["devices"][index]["last_path"].as_str().unwrap();
            assert_eq!(last, files[index].to_str().unwrap());
        }
        let text = daemon.ok(&["status", "-v"]);
        assert!(
            text.contains(&format!("last at {}", files[2].display())),
            "{text}"
        );
        assert!(daemon.stop());
        daemon.launch();
    }
    let (index, path) = ("2", files[2].to_str().unwrap());
    assert!(
        daemon.ok(&["fail", "t", index]).contains(path),
        "by its path, though it is gone"
    );
}

#[test]
fn what_was_found_lost_is_remembered() {
    let mut daemon = Daemon::start("lost");
    let files = daemon.create("t", "ec2+1", 3, "64M", &[]);
    write(&daemon, 8 << 20);
    daemon.ok(&["set", "t", "reconstruct.narrow=never"]);
    daemon.ok(&["fail", "t", "0"]);
    let file = common::open_direct(&files[1]);
    let mut noise = Buf::zeroed(4096);
    noise.fill(0xA5);
    for at in (5 << 19..12 << 20).step_by(68 << 10) {
        file.write_all_at(&noise, at).unwrap();
    }
    file.sync_all().unwrap();
    let disk = daemon.disk("t");
    // Half of it is read: what is lost of the other half nobody knows.
    let failed = disk.compare_range((0, 4 << 20), 4096, 16, pattern(1));
    assert!(!failed.is_empty());
    drop(disk);
    let lost = |daemon: &Daemon| daemon.status("t")["lost"].clone();
    let found = lost(&daemon);
    let total: u64 = found
        .as_array()
        .unwrap()
        .iter()
        .map(|l| bytes(l, "length_bytes"))
        .sum();
    assert_eq!(total, failed.len() as u64 * 4096);
    let words = daemon.ok(&["status"]);
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("reading more may find more"), "{words}");
    let remembered = |daemon: &Daemon| {
        let limit = Duration::from_secs(30);
        common::wait_until("the list to be whole again", limit, || {
            lost(daemon) == found
        });
    };
    daemon.kill9();
    daemon.launch();
    remembered(&daemon);
    daemon.ok(&["export", "t"]);
    let dir = daemon.scratch.0.to_str().unwrap().to_string();
    daemon.ok(&["import", "t", "--scan", &dir]);
    remembered(&daemon);
    // What is overwritten leaves the list for good.
    let disk = daemon.disk("t");
    for (at, _) in &failed {
        let mut block = vec![0; 4096];
        pattern(1)(*at, &mut block);
        disk.write(*at, &block).unwrap();
    }
    drop(disk);
    assert_eq!(lost(&daemon), serde_json::json!([]));
    assert!(daemon.stop());
    daemon.launch();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(lost(&daemon), serde_json::json!([]));
}

#[test]
fn arrays_share_the_daemons_memory() {
    let daemon = Daemon::with("memory", &["--memory", "128M"]);
    let create = |name: &str| {
        let files: Vec<String> = (0..3).map(|i| format!("{name}{i}")).collect();
        let mut line = vec!["create", name, "--layout", "ec2+1", "--file-size", "64M"];
        line.extend(files.iter().map(String::as_str));
        daemon.ok(&line);
    };
    let limits = || -> Vec<u64> {
        let status = daemon.json(&["status", "-j"]);
        let arrays = status["arrays"].as_array().unwrap();
        arrays
            .iter()
            .map(|a| bytes(&a["memory"], "limit_bytes"))
            .collect()
    };
    // A quarter is for what is in flight on connections.
    create("a");
    assert_eq!(limits(), [96 << 20]);
    create("b");
    assert_eq!(limits(), [48 << 20; 2]);
    create("c");
    let three = limits();
    assert!(
        three.iter().sum::<u64>() <= 96 << 20 && three[0] > 31 << 20,
        "{three:?}"
    );
    daemon.ok(&["export", "b"]);
    assert_eq!(limits(), [48 << 20; 2]);
    daemon.fails(&["import", "nothere"]);
    assert_eq!(limits(), [48 << 20; 2]);
    let dir = daemon.scratch.0.to_str().unwrap().to_string();
    daemon.ok(&["import", "b", "--scan", &dir]);
    assert!(limits().iter().sum::<u64>() <= 96 << 20);
}

#[test]
fn the_demonstration_keeps_its_word_when_it_is_small() {
    let scratch = Scratch::new("demo");
    let demo = |size: &str| {
        Command::new(ASHLAR)
            .args(["demo", "--size", size, "--dir"])
            .arg(&scratch.0)
            .output()
            .unwrap()
    };
    let output = demo("32M");
    let text = String::from_utf8(output.stdout).unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{text}{error}");
    narrow(text.split("\n\n").nth(1).unwrap());
    // Without the room for it nothing is begun.
    let output = demo("900T");
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error.lines().count() == 1 && error.contains("--size"),
        "{error}"
    );
    assert!(output.stdout.is_empty());
    assert_eq!(
        std::fs::read_dir(&scratch.0).unwrap().count(),
        0,
        "nothing is left behind"
    );
}

/// What computes is set, kept, and told with its reason. (With a GPU, `crates/accel` runs arrays on it.)
#[test]
fn the_accelerator_is_set_and_told() {
    let mut daemon = Daemon::start("accelerator");
    daemon.create("t", "ec2+1", 3, "64M", &[]);
    let told = |daemon: &Daemon| daemon.status("t")["accelerator"].clone();
    let reason = |daemon: &Daemon| told(daemon)["reason"].as_str().unwrap().to_string();
    assert!(daemon.ok(&["get", "t", "accelerator"]).contains("auto"));
    daemon.ok(&["set", "t", "accelerator=cpu"]);
    assert!(
        told(&daemon)["chosen"]
            .as_str()
            .unwrap()
            .starts_with("cpu (")
    );
    assert_eq!(reason(&daemon), "the fastest kernel this processor has");
    daemon.ok(&["set", "t", "accelerator=cuda:9"]);
    let limit = Duration::from_secs(60);
    common::wait_until("an answer about cuda:9", limit, || {
        !reason(&daemon).contains("being opened")
    });
    // No machine has ten of them.
    let why = reason(&daemon);
    assert!(why.starts_with("processor only: "), "{why}");
    write(&daemon, 4 << 20);
    let words = daemon.ok(&["status"]);
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("the GPU is not used, the processor does its work: "),
        "{words}"
    );
    assert!(daemon.ok(&["status", "-v"]).contains("processor only: "));
    assert!(daemon.stop());
    daemon.launch();
    assert!(daemon.ok(&["get", "t", "accelerator"]).contains("cuda:9"));
    daemon
        .disk("t")
        .compare_range((0, 4 << 20), 4096, 16, pattern(1));
}

#[test]
fn what_a_volume_takes_is_counted_once_its_clients_rest_and_said_to_be_counted_until_then() {
    let daemon = Daemon::start("used");
    daemon.create("t", "ec2+1", 3, "64M", &[]);
    let listed = || daemon.json(&["volume", "list", "-j"])["volumes"][0].clone();
    let volume = listed();
    let expected = (&Value::Bool(false), &Value::Bool(false));
    assert_eq!((&volume["counting"], &volume["thin"]), expected);
    write(&daemon, 16 << 20);
    // Whatever is told is not told for all there is, unless it is.
    let volume = listed();
    assert!(
        volume["counting"] == true || bytes(&volume, "used_bytes") == 16 << 20,
        "{volume}"
    );
    let exact = |used| {
        let volume = listed();
        volume["counting"] == false && bytes(&volume, "used_bytes") == used
    };
    common::wait_until("the count", Duration::from_secs(10), || exact(16 << 20));
    assert!(!daemon.ok(&["status"]).contains("counting"));
    // It holds for what is given back too, and for a volume that is not served any more.
    let disk = daemon.disk("t");
    disk.trim(0, 8 << 20).unwrap();
    drop(disk);
    daemon.ok(&["volume", "detach", "t/v", "-f"]);
    common::wait_until("the count", Duration::from_secs(10), || exact(8 << 20));
}
