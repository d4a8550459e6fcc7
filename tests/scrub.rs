//! `ashlar scrub` as an administrator uses it: what it finds against what the independent verifier finds, what it leaves,
//! and that a pause outlives the daemon.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ashlar_rt::Buf;
use serde_json::Value;

use common::disk::pattern;
use common::{Daemon, Random};

const SIZE: u64 = 64 << 20;

/// Overwrites blocks that are in use with noise, at random places of a device.
fn damage(path: &Path, blocks: usize, random: &mut Random) {
    let file = common::open_direct(path);
    let all = file.metadata().unwrap().len() / 4096;
    let mut done = 0;
    while done < blocks {
        // Superblocks, roots and tables have copies and tests of their own.
        let at = (512 + random.below(all - 1024)) * 4096;
        let mut block = Buf::zeroed(4096);
        file.read_exact_at(&mut block, at).unwrap();
        if block.iter().any(|byte| *byte != 0) {
            random.fill(&mut block);
            file.write_all_at(&block, at).unwrap();
            done += 1;
        }
    }
    file.sync_all().unwrap();
}

/// What the verifier finds on devices that are not in use: by kind.
fn verified(daemon: &Daemon, files: &[PathBuf]) -> Value {
    let mut line = vec!["verify", "-j"];
    line.extend(files.iter().map(|f| f.to_str().unwrap()));
    let output = daemon.run(&line);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&document["lost"], &document["structure"]),
        (&0.into(), &0.into())
    );
    document["kinds"].clone()
}

/// The newest report.
fn report(daemon: &Daemon) -> Value {
    let document = daemon.json(&["scrub", "t", "-j"]);
    document["reports"]
        .as_array()
        .unwrap()
        .last()
        .unwrap()
        .clone()
}

/// Bad blocks of a part, on all devices: found and repaired.
fn of_part(report: &Value, part: &str) -> (u64, u64) {
    let findings = report["findings"].as_array().unwrap();
    let of = findings.iter().filter(|f| f["part"] == part);
    let number = |f: &Value, field: &str| f[field].as_u64().unwrap();
    of.fold((0, 0), |(found, repaired), f| {
        let bad = number(f, "unreadable") + number(f, "wrong");
        (found + bad, repaired + number(f, "repaired"))
    })
}

#[test]
fn a_scrub_finds_what_the_verifier_finds_and_leaves_nothing() {
    let daemon = Daemon::start("scrubbed");
    let files = daemon.create("t", "ec4+2", 8, "48M", &[]);
    let disk = daemon.disk("t");
    assert_eq!(disk.write_range((0, SIZE), 256 << 10, 16, pattern(1)), []);
    disk.flush().unwrap();
    drop(disk);
    let said = daemon.ok(&["scrub", "t"]);
    assert!(
        said.contains("no scrub yet; one starts by itself every 30d"),
        "{said}"
    );
    daemon.ok(&["export", "t"]);
    let mut random = Random::new(11);
    for liar in [2, 5] {
        damage(&files[liar], 500, &mut random);
    }
    let bad = verified(&daemon, &files);
    let count = |kinds: &Value, kind: &str| kinds[kind].as_u64().unwrap_or(0);
    assert!(count(&bad, "strip") > 500, "{bad}");

    let folder = files[0].parent().unwrap().to_str().unwrap();
    daemon.ok(&["import", "t", "--scan", folder]);
    let looked = daemon.run(&["scrub", "t", "--check", "-w"]);
    let said = String::from_utf8(looked.stdout).unwrap();
    assert_eq!(looked.status.code(), Some(1), "{said}");
    assert!(
        said.contains("Nothing was repaired: 'ashlar scrub t start'"),
        "{said}"
    );
    assert_eq!(report(&daemon)["repaired"], 0);

    let said = daemon.ok(&["scrub", "t", "start", "-w"]);
    assert!(
        said.contains("(check)") && said.contains("Schedule: one starts"),
        "{said}"
    );
    let done = report(&daemon);
    assert_eq!(done["found"], done["repaired"], "{done}");
    // The checkpoints of an import free segments of nodes.
    let (headers, all) = (of_part(&done, "header"), count(&bad, "header"));
    let near = (all - 4..=all).contains(&headers.0);
    assert!(near && headers.0 == headers.1, "{headers:?} of {all}");
    // An import reads some nodes, and repairs them; below a bad summary the verifier knows of nothing.
    let strips = of_part(&done, "data").0 + of_part(&done, "parity").0;
    assert!(strips + 50 > count(&bad, "strip"), "{strips} of {bad}");
    assert!(strips <= 1000, "{strips}");
    for finding in done["findings"].as_array().unwrap() {
        assert!(
            [2, 5].contains(&finding["device"].as_u64().unwrap()),
            "{finding}"
        );
        assert_eq!(finding["unreadable"], 0);
    }
    let shown = daemon.ok(&["status", "t"]);
    assert!(
        shown.contains("scrub") && shown.contains("bad blocks"),
        "{shown}"
    );
    let events = daemon.ok(&["events", "t"]);
    assert!(
        events.contains("scrub-ended") && events.contains("scrub-started"),
        "{events}"
    );

    daemon.ok(&["scrub", "t", "start", "-w"]);
    assert_eq!(report(&daemon)["found"], 0, "nothing is left");
    let disk = daemon.disk("t");
    assert_eq!(disk.compare_range((0, SIZE), 256 << 10, 16, pattern(1)), []);
    drop(disk);
    daemon.ok(&["export", "t"]);
    let left = verified(&daemon, &files);
    for kind in [
        "strip",
        "summary",
        "header",
        "page",
        "root-copy",
        "rows-unknown",
    ] {
        assert_eq!(count(&left, kind), 0, "{left}");
    }
}

#[test]
fn a_pause_outlives_the_daemon_and_what_cannot_be_is_one_line() {
    let mut daemon = Daemon::start("scrub-rests");
    daemon.create_served("ec2+1", 4);
    daemon.write(24 << 20, 1);
    for word in ["pause", "resume", "stop"] {
        let said = daemon.refused(&["scrub", "t", word]);
        assert!(said.contains("'ashlar scrub t start' starts one"), "{said}");
    }
    daemon.ok(&["set", "t", "scrub.max=1M"]);
    daemon.ok(&["scrub", "t", "start"]);
    assert!(
        daemon
            .refused(&["scrub", "t", "start"])
            .contains("a scrub runs already")
    );
    let said = daemon.ok(&["scrub", "t"]);
    assert!(
        said.contains("t: scrub running since") && said.contains(" left"),
        "{said}"
    );
    assert!(daemon.ok(&["status", "t"]).contains("scrub"));
    daemon.ok(&["task", "t", "scrub", "pause"]);
    daemon.kill9();
    daemon.launch();
    common::wait_until("the array", std::time::Duration::from_secs(30), || {
        daemon.run(&["scrub", "t"]).status.success()
    });
    assert_eq!(report(&daemon)["state"], "paused");
    assert_eq!(report(&daemon)["interrupted"], 1);
    let (error, code) = daemon.fails(&["wait", "t", "--for", "scrub"]);
    let words = "paused: 'ashlar scrub t resume' goes on";
    assert!(code == 1 && error.contains(words), "{error}");
    let said = daemon.ok(&["scrub", "t"]);
    assert!(said.contains(words) && !said.contains(" left"), "{said}");
    let wrong = daemon.ok(&["status", "-x"]);
    assert!(wrong.contains("a scrub is paused"), "{wrong}");
    daemon.ok(&["scrub", "t", "resume"]);
    daemon.ok(&["set", "t", "scrub.max=none"]);
    daemon.ok(&["wait", "t", "--for", "scrub"]);
    assert_eq!(report(&daemon)["state"], "done");

    daemon.ok(&["set", "t", "scrub.max=1M"]);
    daemon.ok(&["scrub", "t", "start", "--since", "7d"]);
    assert!(
        daemon
            .ok(&["task", "t", "scrub", "cancel"])
            .contains("does not count as done")
    );
    assert_eq!(report(&daemon)["state"], "stopped");
    for line in [
        "scrub t pause --check",
        "scrub t stop -w",
        "scrub t start --since 4711",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let (error, code) = daemon.fails(&words);
        assert!(code == 2 && error.lines().count() == 1, "{line}: {error}");
    }
    for setting in [
        "scrub.max=1",
        "scrub.every=0s",
        "scrub.every=30",
        "scrub.min=never",
    ] {
        daemon.fails(&["set", "t", setting]);
    }
    daemon.read(24 << 20, 1);
}
