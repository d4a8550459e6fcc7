//! `ashlar verify`: an array that the daemon made and exported is well; damage, absence and use are said.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use common::Daemon;
use common::disk::pattern;

const MIB: u64 = 1 << 20;

fn exported(name: &str, layout: &str, devices: usize) -> (Daemon, Vec<PathBuf>) {
    let daemon = Daemon::start(name);
    let files = daemon.create("t", layout, devices, "48M", &[]);
    let disk = daemon.disk("t");
    let range = (3 * MIB, 20 * MIB);
    assert_eq!(disk.write_range(range, 64 << 10, 8, pattern(5)), []);
    disk.flush().unwrap();
    drop(disk);
    daemon.ok(&["export", "t"]);
    (daemon, files)
}

/// Runs it over these files: its document, and whether it ended with 0.
fn verify(daemon: &Daemon, files: &[PathBuf]) -> (Value, bool) {
    let mut arguments = vec!["verify", "-j"];
    arguments.extend(files.iter().map(|file| file.to_str().unwrap()));
    let output = daemon.run(&arguments);
    let text = String::from_utf8(output.stdout).unwrap();
    (
        serde_json::from_str(&text).unwrap(),
        output.status.success(),
    )
}

/// Changes a block of the file that is not empty, in the part that holds segments; where.
fn damage(file: &Path) -> u64 {
    let opened = std::fs::File::options()
        .read(true)
        .write(true)
        .open(file)
        .unwrap();
    let blocks = opened.metadata().unwrap().len() / 4096;
    for at in 1024..blocks {
        let mut block = vec![0; 4096];
        opened.read_exact_at(&mut block, at * 4096).unwrap();
        // Not a header or summary: a block of a strip.
        if block[..4096 - 64].iter().filter(|b| **b != 0).count() > 3500 {
            block[77] ^= 1;
            opened.write_all_at(&block, at * 4096).unwrap();
            return at * 4096;
        }
    }
    panic!("{} holds nothing", file.display())
}

#[test]
fn an_exported_array_is_well_and_one_in_use_is_refused() {
    let (daemon, files) = exported("verify", "ec4+2", 6);
    let (document, well) = verify(&daemon, &files);
    assert!(well, "{document}");
    assert_eq!(document["version"], 1);
    assert_eq!(document["command"], "verify");
    assert_eq!(document["array"], "t");
    assert_eq!(
        (&document["clean"], &document["well"]),
        (&true.into(), &true.into())
    );
    for (field, least) in [
        ("members", 6),
        ("volumes", 1),
        ("volume_blocks", 4000),
        ("parity_blocks", 2000),
    ] {
        assert!(
            document["counts"][field].as_u64().unwrap() >= least,
            "{field}: {document}"
        );
    }
    let names: Vec<&str> = files.iter().map(|file| file.to_str().unwrap()).collect();
    let text = daemon.ok(&[&["verify"], &names[..]].concat());
    assert!(text.contains("all is well"), "{text}");
    daemon.ok(&["import", "t", "--scan", daemon.scratch.0.to_str().unwrap()]);
    let (error, code) = daemon.fails(&[&["verify"], &names[..]].concat());
    assert!(code == 1 && error.contains("in use"), "{error}");
    assert_eq!(daemon.fails(&["verify"]).1, 2);
}

/// As right after an export, when the kernel's threads hold a file for a moment still.
#[test]
fn a_device_that_is_held_for_a_moment_is_waited_for() {
    let (daemon, files) = exported("verify-held", "ec2+1", 3);
    let held = std::fs::File::open(&files[1]).unwrap();
    held.lock().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            drop(held);
        });
        let (document, well) = verify(&daemon, &files);
        assert!(well, "{document}");
    });
}

#[test]
fn damage_and_absence_are_said_and_decoded() {
    let (daemon, mut files) = exported("verify-damage", "ec4+2", 6);
    let at = damage(&files[3]);
    let (document, well) = verify(&daemon, &files);
    assert!(!well, "nothing was found at {at}");
    assert_eq!(document["lost"], 0, "{document}");
    assert_eq!(document["structure"], 0, "{document}");
    let finding = &document["findings"][0];
    assert_eq!(finding["severity"], "damage", "{document}");
    assert_eq!(finding["device"], files[3].to_str().unwrap());
    files.remove(5);
    let (document, well) = verify(&daemon, &files);
    assert!(!well && document["lost"] == 0, "{document}");
    assert_eq!(document["counts"]["members_missing"], 1);
    assert!(
        document["counts"]["healed"].as_u64().unwrap() > 100,
        "{document}"
    );
    files.truncate(3);
    let (document, _) = verify(&daemon, &files);
    assert!(document["lost"].as_u64().unwrap() > 0, "{document}");
    let zeros = daemon.path("zeros");
    std::fs::write(&zeros, vec![0; 1 << 20]).unwrap();
    let (document, well) = verify(&daemon, &[zeros]);
    assert!(!well && document["kinds"]["no-array"] == 1, "{document}");
}

#[test]
fn of_a_killed_array_it_says_that_the_journal_was_not_replayed() {
    let mut daemon = Daemon::start("verify-killed");
    let files = daemon.create("t", "raid1", 2, "48M", &[]);
    let disk = daemon.disk("t");
    assert_eq!(disk.write_range((0, 4 * MIB), 64 << 10, 8, pattern(6)), []);
    disk.flush().unwrap();
    drop(disk);
    daemon.kill9();
    let (document, well) = verify(&daemon, &files);
    assert!(!well && document["clean"] == false, "{document}");
    assert_eq!(document["journal_replayed"], false);
    assert_eq!(document["lost"], 0, "{document}");
    assert_eq!(document["structure"], 0, "{document}");
}

/// Small synced writes close stripes short. Reconstruct, which knows of a sealed segment only what summaries say, may
/// write a strip of such a stripe that was not written as padding: that is no damage, and the array can lose as much
/// as ever.
#[test]
fn short_stripes_that_were_reconstructed_are_well() {
    let daemon = Daemon::start("verify-short");
    let mut files = daemon.create("t", "ec4+2", 8, "48M", &[]);
    let disk = daemon.disk("t");
    let mut block = vec![0; 4096];
    for at in 0..300 {
        pattern(7)(at * 4096, &mut block);
        disk.write(at * 4096, &block).unwrap();
        disk.flush().unwrap();
    }
    drop(disk);
    daemon.ok(&["export", "t"]);
    let (document, well) = verify(&daemon, &files);
    assert!(well, "{document}");
    std::fs::remove_file(files.remove(1)).unwrap();
    daemon.ok(&["import", "t", "--scan", daemon.scratch.0.to_str().unwrap()]);
    daemon.ok(&["set", "t", "rebuild.delay=0s"]);
    daemon.ok(&["wait", "t", "--for", "reconstruct"]);
    daemon.ok(&["export", "t"]);
    let (document, well) = verify(&daemon, &files);
    assert!(well, "{document}");
    files.drain(..2);
    let (document, _) = verify(&daemon, &files);
    let mut kinds: Vec<&String> = document["kinds"].as_object().unwrap().keys().collect();
    kinds.retain(|kind| *kind != "journal-column"); // a record has a column on each of the members
    assert_eq!(kinds, ["column-missing", "member-missing"], "{document}");
    assert!(
        document["counts"]["healed"].as_u64().unwrap() > 0,
        "{document}"
    );
}
