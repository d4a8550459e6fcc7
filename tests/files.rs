//! `bench files` on real file systems: each way to cheat is tried, and must be stamped with its own reason.
//!
//! **Invariants**: file systems are small, on loop devices that go when their mount does, in a mount namespace of the run
//! alone; whatever happens no mount, loop device, file or process is left. Reasons that a busy machine may add to any row
//! are not looked at, except where that is the cheat.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::bed::{Bed, CHEATS, not_stamped, reasons, rows, stamped};
use common::{ASHLAR, Daemon, Scratch, have, have_kernel_devices, tool, try_tool, wait_until};
use rustix::process::Signal;
use serde_json::Value;

/// Two files of 16 MiB, once, nothing beside; told that the caches are half as large.
const SMALL: [&str; 8] = [
    "--size",
    "16M",
    "--repeat",
    "1",
    "--beside",
    "none",
    "--assume-cache",
    "16M",
];

#[test]
fn an_honest_run_moves_what_it_says_and_leaves_nothing() {
    let Some(bed) = Bed::ext4("files-honest") else {
        return;
    };
    let (document, _) = bed.json(&SMALL);
    let ours = rows(&document, "files");
    assert_eq!(ours.len(), 6, "{document}");
    not_stamped(&document, "files", &CHEATS);
    for row in ours {
        let ratio = row["device_bytes_per_host_byte"].as_f64().unwrap();
        assert!((0.9..1.6).contains(&ratio), "{row}");
        assert!(row["value"].as_f64().unwrap() > 0.0);
        assert_eq!(row["evidence"], "real");
        let warnings = row["warnings"].to_string();
        assert!(warnings.contains("by --assume-cache"), "{warnings}");
    }
    assert_eq!(document["file_system"], "ext4");
    assert_eq!(document["assumed"], true);
    let top = document["levels"][0]["devices"][0].as_str().unwrap();
    assert!(top.starts_with("loop"), "{top}");
    assert_eq!(bed.left(), "");
}

#[test]
fn data_that_fit_into_caches_are_refused_and_forced_ones_stay_stamped() {
    let Some(bed) = Bed::ext4("files-small") else {
        return;
    };
    let small = ["--size", "1M", "--repeat", "1", "--beside", "none"];
    let output = bed.run(&small);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        output.stdout.is_empty() && error.lines().count() == 1,
        "{error}"
    );
    for words in [
        "INVALID",
        "less than twice all caches (page cache (this machine)",
        "--force",
    ] {
        assert!(error.contains(words), "{error}");
    }
    assert_eq!(bed.left(), "", "nothing is written before it is refused");
    let (document, code) = bed.json(&small);
    assert_eq!(
        (document["error"]["code"].as_str(), code),
        (Some("refused"), 1)
    );

    let (document, code) = bed.json(&[&small[..], &["-f"]].concat());
    assert_eq!(code, 0, "it was asked for");
    for row in rows(&document, "files") {
        let invalid = row["invalid"].to_string();
        assert!(invalid.contains("less than twice all caches"), "{invalid}");
    }
    // What was told instead of found decides too.
    let (document, code) = bed.json(&[&SMALL[..6], &["--assume-cache", "17M"]].concat());
    assert_eq!(
        (document["error"]["code"].as_str(), code),
        (Some("refused"), 1)
    );
}

#[test]
fn every_layer_is_listed_before_anything_is_written() {
    let Some(mut bed) = Bed::ext4("files-layers") else {
        return;
    };
    let (document, code) = bed.json(&["-n", "--size", "1M"]);
    assert_eq!(code, 0);
    let page = &document["caches"][0];
    assert_eq!(
        (page["name"].as_str(), page["counted"].as_bool()),
        (Some("page cache"), Some(true))
    );
    let memory = page["bytes"].as_u64().unwrap();
    assert!(memory > 64 << 20, "{memory}");
    assert_eq!(document["caches_bytes"].as_u64(), Some(memory));
    assert!(
        document["refused"]
            .as_str()
            .unwrap()
            .contains("less than twice")
    );
    let (direct, _) = bed.json(&["-n", "--size", "1M", "--direct"]);
    assert_eq!(direct["caches"][0]["counted"], false);
    // A loop device that does not go around the page cache brings it back.
    bed.direct_loop = false;
    let (behind, _) = bed.json(&["-n", "--size", "1M", "--direct"]);
    let layer = behind["caches"].as_array().unwrap().iter();
    let mut layer = layer.filter(|layer| {
        layer["place"]
            .as_str()
            .unwrap()
            .starts_with("file behind loop")
    });
    assert_eq!(layer.next().unwrap()["counted"], true, "{behind}");
    assert_eq!(bed.left(), "");
}

#[test]
fn data_in_the_page_cache_are_stamped() {
    let Some(bed) = Bed::ext4("files-cached") else {
        return;
    };
    let (document, code) = bed.json(&[&SMALL[..], &["--keep-cache"]].concat());
    assert_eq!(code, 1, "figures that must not be used are no success");
    for read in ["read", "reread", "random-read"] {
        stamped(&document, "files", read, "a cache answered");
        stamped(&document, "files", read, "the page cache answered");
    }
    for write in ["write", "rewrite", "random-write"] {
        let found = reasons(&document, "files", write);
        assert!(
            !found.iter().any(|reason| reason.contains("cache answered")),
            "{found:?}"
        );
    }
}

#[test]
fn data_in_the_cache_of_a_file_behind_a_loop_device_are_stamped() {
    let Some(mut bed) = Bed::ext4("files-behind") else {
        return;
    };
    bed.direct_loop = false;
    let (document, _) = bed.json(&[&SMALL[..], &["--direct", "--tests", "write,read"]].concat());
    let Some(below) = document["levels"][1]["devices"].as_array() else {
        let what = document["unseen"].to_string();
        return eprintln!("!!! NOT RUN: no device is visible below the loop device: {what}");
    };
    let below: Vec<&str> = below.iter().map(|name| name.as_str().unwrap()).collect();
    // The loop device itself moved all of it.
    stamped(
        &document,
        "files",
        "read",
        &format!("read of {} where", below.join("+")),
    );
    not_stamped(&document, "files", &["read of loop"]);
}

#[test]
fn sparse_files_are_stamped() {
    let Some(mut bed) = Bed::ext4("files-sparse") else {
        return;
    };
    bed.prepare = "mkdir ashlar-bench-files && truncate -s 16M ashlar-bench-files/file.0 ashlar-bench-files/file.1".to_string();
    let (document, code) = bed.json(&[&SMALL[..], &["--existing"]].concat());
    assert_eq!(code, 1);
    let tests: Vec<&str> = rows(&document, "files")
        .iter()
        .map(|r| r["workload"].as_str().unwrap())
        .collect();
    assert_eq!(tests, ["read", "reread", "random-read"]);
    for test in tests {
        stamped(&document, "files", test, "sparse data: 0.0 MiB of 32.0 MiB");
        stamped(&document, "files", test, "a cache answered");
    }
    assert_eq!(bed.left(), "ashlar-bench-files", "files of others stay");
}

#[test]
fn content_that_compresses_is_stamped() {
    let Some(mut bed) = Bed::ext4("files-content") else {
        return;
    };
    let half = ["--buffer-compress-percentage", "50", "--tests", "write"];
    let (document, _) = bed.json(&[&SMALL[..], &half].concat());
    stamped(&document, "files", "write", "compressible data: 2.0 to 1");
    // Random, but the same record again and again: what a compressor with a short window does not see.
    bed.prepare = "mkdir ashlar-bench-files; head -c 65536 /dev/urandom > r; \
        for f in 0 1; do for i in $(seq 256); do cat r; done > ashlar-bench-files/file.$f; done; rm r; sync"
        .to_string();
    let (document, _) = bed.json(&[&SMALL[..], &["--existing", "--tests", "read"]].concat());
    stamped(&document, "files", "read", "compressible data: ");
    not_stamped(&document, "files", &["sparse", "a cache answered"]);
}

#[test]
fn a_busy_machine_is_stamped() {
    let Some(bed) = Bed::ext4("files-busy") else {
        return;
    };
    let over = AtomicBool::new(false);
    let (document, code) = std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().unwrap().get() {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let found = bed.json(&[&SMALL[..], &["--tests", "write"]].concat());
        over.store(true, Ordering::Relaxed);
        found
    });
    assert_eq!(code, 1);
    stamped(&document, "files", "write", "busy machine: others used");
}

#[test]
fn devices_that_others_use_are_stamped() {
    let Some(mut bed) = Bed::ext4("files-shared") else {
        return;
    };
    // Another reader of the same device, beside the run, until it is told to end.
    bed.prepare = "d=$(findmnt -n -o SOURCE .); rm -f ../over; \
        timeout 100 sh -c 'while [ ! -e ../over ]; do dd if=$0 of=/dev/null bs=1M count=64 iflag=direct; done' $d 2>/dev/null & "
        .to_string();
    let over = bed.scratch.path("over");
    let (document, _) = std::thread::scope(|scope| {
        let run = scope.spawn(|| bed.json(&[&SMALL[..], &["--tests", "write,read"]].concat()));
        let begun = Instant::now();
        let left = bed.scratch.path("left");
        while !run.is_finished() && !left.exists() && begun.elapsed() < Duration::from_secs(100) {
            std::thread::sleep(Duration::from_millis(50));
        }
        std::fs::write(&over, "").unwrap();
        run.join().unwrap()
    });
    stamped(&document, "files", "write", "busy devices: others moved");
    stamped(&document, "files", "read", "busy devices: others moved");
}

/// What a run of `line` on `at` says, the process behind whose device stops for a while, again and again.
fn stalled(daemon: &Daemon, at: &Path, line: &[&str]) -> Value {
    std::thread::scope(|scope| {
        let run = scope.spawn(|| daemon.run(line));
        // The first stop falls into the writing: before it, it would be no part of what is measured.
        let file = at.join("ashlar-bench-files/file.1");
        wait_until("the first bytes", Duration::from_secs(60), || {
            std::fs::metadata(&file).is_ok_and(|m| m.len() > 0) || run.is_finished()
        });
        // A stop that takes a third of all that has passed is seen, however long the run is: short ones are alike in
        // each part of a long run.
        let begun = Instant::now();
        while !run.is_finished() {
            let part =
                (begun.elapsed() / 2).clamp(Duration::from_millis(700), Duration::from_secs(10));
            daemon.signal(Signal::STOP);
            std::thread::sleep(part);
            daemon.signal(Signal::CONT);
            let going = Instant::now();
            wait_until("the next stop", Duration::from_secs(60), || {
                run.is_finished() || going.elapsed() >= part
            });
        }
        daemon.signal(Signal::CONT);
        let output = run.join().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {error}"))
    })
}

#[test]
fn a_device_that_is_not_steady_is_stamped_and_a_volume_is_looked_behind() {
    if !have(&["mkfs.ext4"]) || !have_kernel_devices() {
        return;
    }
    let mut daemon = Daemon::start("files-unsteady");
    let array = format!("unsteady-{}", std::process::id());
    let create = [
        "create",
        &array,
        "--layout",
        "ec2+1",
        "--file-size",
        "320M",
        "--volume",
        "v",
        "--attach",
        "loop",
        "d0",
        "d1",
        "d2",
        "d3",
    ];
    daemon.ok(&create);
    let device = format!("/dev/ashlar/{array}/v");
    tool(
        "mkfs.ext4",
        &[
            "-q",
            "-E",
            "lazy_itable_init=0,lazy_journal_init=0",
            &device,
        ],
    );
    let at = daemon.mount(&device, "mnt");
    let line = [
        "bench",
        "files",
        at.to_str().unwrap(),
        "-j",
        "--size",
        "256M",
        "--repeat",
        "1",
        "--beside",
        "none",
        "--assume-cache",
        "64M",
        "--direct",
        "--tests",
        "write",
    ];
    let document = stalled(&daemon, &at, &line);
    stamped(&document, "files", "write", "variation within a run is");
    assert_eq!(document["volumes"][0], format!("{array}/v"));
    let layers = document["caches"].as_array().unwrap().iter();
    let engine: Vec<&Value> = layers.filter(|l| l["name"] == "engine memory").collect();
    assert_eq!(engine.len(), 1, "{document}");
    assert!(engine[0]["bytes"].as_u64().unwrap() > 0 && engine[0]["counted"] == true);
    assert!(
        std::fs::read_dir(&at)
            .unwrap()
            .flatten()
            .all(|e| e.file_name() == "lost+found")
    );
    daemon.unmount(&at);
    // A test beside this one may have made a mount namespace, with what was mounted then.
    wait_until("the array to be destroyed", Duration::from_secs(60), || {
        daemon.run(&["destroy", &array, "--yes"]).status.success()
    });
}

#[test]
fn btrfs_is_followed_to_its_devices_and_its_compression_is_seen() {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let Some(mut bed) = Bed::new("files-btrfs", &["mkfs.btrfs", "-q"]) else {
        return;
    };
    if !known.contains("btrfs") && !try_tool("sh", &["-c", "modprobe btrfs"]).status.success() {
        return eprintln!("!!! NOT RUN: this kernel has no btrfs");
    }
    bed.options = "compress-force=zstd:1";
    let zeros = ["--buffer-compress-percentage", "90", "--tests", "write"];
    let output = bed.run(&[&["-j"], &SMALL[..], &zeros].concat());
    if matches!(output.status.code(), Some(124 | 137)) {
        return eprintln!("!!! NOT RUN: btrfs hangs on this kernel: stopped after 120 s");
    }
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["file_system"], "btrfs");
    assert!(
        document["levels"][0]["devices"][0]
            .as_str()
            .unwrap()
            .starts_with("loop")
    );
    stamped(&document, "files", "write", "compressible data: ");
    stamped(&document, "files", "write", "a cache answered");
}

#[test]
fn fio_runs_the_same_beside() {
    if !have(&["fio"]) {
        return;
    }
    let Some(bed) = Bed::ext4("files-fio") else {
        return;
    };
    let (document, _) =
        bed.json(&[&SMALL[..4], &["--beside", "fio", "--assume-cache", "16M"]].concat());
    let names = |target: &str| -> Vec<String> {
        let rows = rows(&document, target);
        rows.iter()
            .map(|row| row["workload"].as_str().unwrap().to_string())
            .collect()
    };
    assert_eq!(names("fio"), names("files"));
    assert_eq!(names("fio").len(), 6);
    for row in rows(&document, "fio") {
        assert!(
            row["value"].as_f64().is_some_and(|value| value > 0.0),
            "{row}"
        );
        assert!(
            (0.9..1.6).contains(&row["device_bytes_per_host_byte"].as_f64().unwrap()),
            "{row}"
        );
    }
    not_stamped(&document, "fio", &CHEATS);
    assert_eq!(bed.left(), "");
}

/// What prints as IOzone does, and writes zeros as it may: IOzone itself is not free software.
const STAND_IN: &str = r#"#!/bin/sh
[ "$1" = -v ] && { echo "stand-in for IOzone"; exit; }
while [ "$1" != -F ]; do shift; done; shift
for file in "$@"; do head -c 16777216 /dev/zero > "$file"; done; sync
for what in "initial writers" rewriters readers re-readers "random readers" "random writers"; do
    echo "	Children see throughput for  2 $what 	=  2048.00 kB/sec"
    echo "	Parent sees throughput for  2 $what 	=  1024.00 kB/sec"
done
"#;

#[test]
fn iozone_runs_beside_and_its_zeros_are_stamped() {
    use std::os::unix::fs::PermissionsExt;
    let Some(mut bed) = Bed::ext4("files-iozone") else {
        return;
    };
    let bin = bed.scratch.path("bin");
    std::fs::create_dir(&bin).unwrap();
    std::fs::write(bin.join("iozone"), STAND_IN).unwrap();
    std::fs::set_permissions(bin.join("iozone"), PermissionsExt::from_mode(0o755)).unwrap();
    bed.path = format!("{}:{}", bin.display(), bed.path);
    let beside = [
        "--beside",
        "iozone",
        "--assume-cache",
        "16M",
        "--label",
        "ext4",
    ];
    let (document, _) = bed.json(&[&SMALL[..4], &beside].concat());
    let theirs = rows(&document, "ext4 iozone");
    assert_eq!(theirs.len(), 6, "{document}");
    assert!(theirs.iter().all(|row| row["value"] == 1024.0 * 1024.0));
    stamped(&document, "ext4 iozone", "read", "compressible data: ");
    stamped(&document, "ext4 iozone", "read", "a cache answered");
    not_stamped(&document, "ext4", &CHEATS);
    // One that fails gives its reason and no figure, and the others go on.
    std::fs::write(
        bin.join("iozone"),
        "#!/bin/sh\necho no licence >&2; exit 3\n",
    )
    .unwrap();
    let (document, _) = bed.json(&[&SMALL[..4], &beside].concat());
    stamped(&document, "ext4 iozone", "read", "no licence");
    assert!(
        rows(&document, "ext4 iozone")
            .iter()
            .all(|row| row["value"].is_null())
    );
    assert_eq!(rows(&document, "ext4").len(), 6);
}

#[test]
fn results_become_tables_by_one_command() {
    let Some(bed) = Bed::ext4("files-report") else {
        return;
    };
    let results = bed.scratch.path("results").display().to_string();
    let output = bed.run(
        &[
            &SMALL[..],
            &["--tests", "write", "--keep-cache", "--out", &results],
        ]
        .concat(),
    );
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(
        shown.contains("page cache") && shown.contains("iozone"),
        "{shown}"
    );
    let page = bed.scratch.path("page.md").display().to_string();
    let made = |arguments: &[&str]| {
        let output = Command::new(ASHLAR)
            .args(["bench", "report"])
            .args(arguments)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{error}");
        String::from_utf8(output.stdout).unwrap()
    };
    made(&[&results, "--markdown", &page]);
    let text = std::fs::read_to_string(&page).unwrap();
    for words in [
        "## Caches found",
        "| page cache | this machine | memory |",
        "| iozone | normal | write | files | real |",
        "build: ",
    ] {
        assert!(text.contains(words), "{words} is not in:\n{text}");
    }
    // The samples alone have rows, and say what was assumed.
    let samples = format!("{results}/samples.csv");
    let text = made(&[&samples, "--markdown", "-"]);
    assert!(
        text.contains("| iozone | normal | write | files | real |"),
        "{text}"
    );
    assert!(text.contains("by --assume-cache"), "{text}");
    let text = made(&[&results, "--paper", "nobackup", "--markdown", "-"]);
    assert!(
        text.contains("Evidence: published") && text.contains("## Caches found"),
        "{text}"
    );
}

#[test]
fn a_run_that_is_stopped_leaves_no_files() {
    let scratch = Scratch::new("files-stopped");
    let place = scratch.0.display().to_string();
    let line = [
        "bench",
        "files",
        &place,
        "--size",
        "8M",
        "--repeat",
        "100",
        "--beside",
        "none",
        "--assume-cache",
        "1M",
    ];
    let child = Command::new(ASHLAR)
        .args(line)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let folder = scratch.path("ashlar-bench-files");
    wait_until("its files", Duration::from_secs(30), || {
        folder.join("file.1").exists()
    });
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains("stopped; ") && error.contains("is removed"),
        "{error}"
    );
    assert!(!folder.exists());
}

#[test]
fn the_document_has_the_fields_of_the_contract() {
    let Some(bed) = Bed::ext4("files-fields") else {
        return;
    };
    let contract = include_str!("../docs/contract.md");
    let fields = |object: &str| -> Vec<&str> {
        let start = format!("| {object} | ");
        let line = contract
            .lines()
            .find_map(|line| line.strip_prefix(&start))
            .unwrap();
        let spans = line.split('`').collect::<Vec<_>>();
        let lists = spans.into_iter().skip(1).step_by(2);
        lists
            .filter(|span| span.contains(' '))
            .flat_map(str::split_whitespace)
            .collect()
    };
    let (document, _) = bed.json(&[&SMALL[..], &["--tests", "write"]].concat());
    let objects = [
        ("the document", &document),
        ("each of `caches`", &document["caches"][0]),
        ("each of `rows`", &document["rows"][0]),
    ];
    for (name, object) in objects {
        let fields = fields(name);
        assert!(fields.len() > 5, "{name}: {fields:?}");
        for field in fields {
            assert!(
                object.get(field).is_some(),
                "{name} has no {field}: {object}"
            );
        }
    }
}
