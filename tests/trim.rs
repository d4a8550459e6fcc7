//! `trim`: the devices of an array are told which space is free.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::os::unix::fs::MetadataExt;

use common::Daemon;

/// Bytes that a file takes on its file system.
fn taken(path: &str) -> u64 {
    std::fs::metadata(path).unwrap().blocks() * 512
}

#[test]
fn a_trim_gives_back_what_files_hold_of_free_space() {
    let daemon = Daemon::start("trim");
    let bytes = 32 << 20;
    let file = |i: usize| daemon.blank(&format!("t-{i}.img"), bytes);
    let files: Vec<String> = (0..4).map(file).collect();
    for file in &files {
        std::fs::write(file, vec![0xA5; bytes as usize]).unwrap();
    }
    let attach = format!("nbd=unix:{}", daemon.text("nbd.sock"));
    let line = ["create", "t", "--layout", "ec2+1", "--force"];
    let volume = ["--volume", "v=24M", "--attach", &attach];
    let line = line.into_iter().chain(volume);
    daemon.ok(&line
        .chain(files.iter().map(String::as_str))
        .collect::<Vec<_>>());
    daemon.ok(&["set", "t", "discard=off"]);
    assert!(daemon.ok(&["get", "t", "discard", "-H"]).contains("off"));
    daemon.write(8 << 20, 1);
    let before: u64 = files.iter().map(|f| taken(f)).sum();
    let reply = daemon.json(&["trim", "t", "-j"]);
    let discarded = reply["discarded_bytes"].as_u64().unwrap();
    let devices = reply["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 4, "{reply}");
    for (device, file) in devices.iter().zip(&files) {
        assert_eq!(device["path"], file.as_str(), "{reply}");
        assert!(device["left"].is_null(), "{reply}");
        assert!(device["discarded_bytes"].as_u64().unwrap() > 8 << 20);
    }
    let after: u64 = files.iter().map(|f| taken(f)).sum();
    let gone = before - after; // a checkpoint may have written some of it again
    assert!(gone > discarded / 10 * 9, "{gone} of {discarded}");
    daemon.read(8 << 20, 1);
    let said = daemon.ok(&["trim", "t"]);
    assert!(
        said.starts_with("t: ") && said.contains("of free space discarded: device 0 "),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    daemon.ok(&["export", "t"]);
    let mut verify = vec!["verify"];
    verify.extend(files.iter().map(String::as_str));
    daemon.ok(&verify);
    let scan = daemon.path("").display().to_string();
    daemon.ok(&["import", "t", "--read-only", "--scan", &scan]);
    let (error, code) = daemon.fails(&["trim", "t"]);
    assert!(code == 1 && error.contains("read-only"), "{error}");
    let (error, code) = daemon.fails(&["trim", "other"]);
    assert!(code == 1 && error.contains("other"), "{error}");
}
