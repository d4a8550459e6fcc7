//! The contract of the command line, where it is about words: units, errors as JSON, verbs to come, rights of sockets.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Output};

use common::{ASHLAR, Daemon, Scratch};
use serde_json::Value;

fn offline(line: &str) -> Output {
    let scratch = Scratch::new("contract");
    Command::new(ASHLAR)
        .args(line.split_whitespace())
        .env("ASHLAR_SOCKET", scratch.path("none"))
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn verbs_to_come_say_so_in_one_line_and_suggest_no_other() {
    for line in [
        "snapshot tank/v@monday",
        "upgrade tank -n",
        "create t --layout ec2+1 --journal j a b c",
        "volume attach t/v --ublk",
        "wait t --for convert",
    ] {
        let output = offline(line);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "ashlar {line}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.contains("is not in this version"), "{error}");
        assert!(!error.contains("similar"), "{error}");
    }
    let error = text(&offline("lst").stderr);
    assert!(
        error.contains("'list'") && error.lines().count() == 1,
        "{error}"
    );
}

#[test]
fn errors_under_j_are_one_json_document() {
    for (line, command, code, exit) in [
        ("status -j", "status", "broken", 1),
        ("-j volume attach t", "volume attach", "invalid", 2),
        ("list -j frob", "list", "invalid", 2),
        ("upgrade tank -j", "upgrade", "absent", 1),
        ("destroy t --json", "destroy", "refused", 1),
        ("-j", "", "invalid", 2),
    ] {
        let output = offline(line);
        assert_eq!(output.status.code(), Some(exit), "ashlar {line}");
        assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(document["version"], 1);
        assert_eq!(document["command"], command, "ashlar {line}");
        assert_eq!(document["error"]["code"], code, "ashlar {line}");
        assert!(document["error"]["message"].as_str().unwrap().len() > 5);
        assert!(document["error"]["next"].as_str().unwrap().len() > 5);
    }
}

#[test]
fn sizes_on_drive_labels_are_powers_of_ten() {
    let usable = |size: &str| {
        let line = format!("plan --devices 12 --size {size} --afr 1 --layout ec8+2 -j");
        let output = offline(&line);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    assert_eq!(usable("8TB"), usable("8000000000000"));
    assert_eq!(usable("8T"), usable("8TiB"));
    assert_ne!(usable("8T"), usable("8TB"));
}

#[test]
fn sizes_are_told_in_units_and_kept_as_asked() {
    let daemon = Daemon::start("units");
    daemon.create("t", "ec2+1", 3, "64M", &[]);
    daemon.ok(&["volume", "destroy", "t/v", "--yes"]);
    let (error, code) = daemon.fails(&["volume", "create", "t/big", "--size", "100G"]);
    assert!(code == 1 && error.contains("100G asked"), "{error}");
    let (error, _) = daemon.fails(&[
        "volume",
        "create",
        "t/odd",
        "--size",
        "1M",
        "--block-size",
        "3K",
    ]);
    assert!(error.contains("--block-size 3K:"), "{error}");
    daemon.ok(&["volume", "create", "t/v", "--size", "10MB"]);
    let size = daemon.json(&["volume", "list", "-j"])["volumes"][0]["size_bytes"].clone();
    assert_eq!(size, 77 << 17, "10,000,000 bytes, in whole blocks");
    let why = daemon.ok(&["status", "-v"]);
    assert!(why.contains("journal, about"), "{why}");
    let (error, code) = daemon.fails(&[
        "create",
        "u",
        "--layout",
        "ec2+1",
        "nbd://127.0.0.1:1/x",
        "b",
        "c",
    ]);
    assert!(
        code == 1 && error.contains("over NBD is not in this version"),
        "{error}"
    );
    // Both names of a setting are taken, the one people read is shown.
    daemon.ok(&["set", "t", "reconstruct.narrow=never"]);
    let all = daemon.ok(&["get", "t"]);
    assert!(
        all.contains("rebuild.narrow") && !all.contains("reconstruct"),
        "{all}"
    );
    assert!(
        daemon
            .ok(&["get", "t", "rebuild.narrow", "-H"])
            .contains("never")
    );
    daemon.ok(&["wait", "t", "--for", "rebuild"]);
}

#[test]
fn a_socket_is_given_to_whom_it_is_for_and_that_is_kept() {
    let mut daemon = Daemon::start("owner");
    daemon.create("t", "ec2+1", 3, "64M", &[]);
    daemon.ok(&["volume", "detach", "t/v"]);
    let (path, at) = (
        daemon.path("v.sock"),
        format!("unix:{}", daemon.text("v.sock")),
    );
    let rights = || {
        let found = std::fs::metadata(&path).unwrap();
        (found.uid(), found.gid(), found.permissions().mode() & 0o777)
    };
    daemon.ok(&[
        "volume",
        "attach",
        "t/v",
        "--nbd",
        &at,
        "--owner",
        "nobody:12345",
    ]);
    let nobody = rights().0;
    assert!(nobody > 0);
    assert_eq!(rights(), (nobody, 12345, 0o660));
    assert_eq!(
        daemon.status("t")["volumes"][0]["frontends"][0]["address"],
        at.as_str()
    );
    assert!(daemon.stop());
    daemon.launch();
    assert_eq!(rights(), (nobody, 12345, 0o660));
    let (error, _) = daemon.fails(&["volume", "attach", "t/v", "--nbd", &at]);
    assert!(error.contains("already attached"), "{error}");
    daemon.ok(&["volume", "detach", "t/v", &at]);
    daemon.ok(&["volume", "attach", "t/v", "--nbd", &at, "--mode", "666"]);
    assert_eq!(rights(), (0, 0, 0o666));
    // A second volume there would be open to all too, or not to whom it is for.
    daemon.ok(&["volume", "create", "t/w", "--size", "4M", "--thin"]);
    for given in [&[][..], &["--mode", "660"]] {
        let line = [&["volume", "attach", "t/w", "--nbd", &at], given].concat();
        let (error, _) = daemon.fails(&line);
        assert!(error.contains("another owner or mode"), "{error}");
    }
    daemon.ok(&["volume", "attach", "t/w", "--nbd", &at, "--mode", "666"]);
    daemon.ok(&["volume", "detach", "t/w"]);
    daemon.ok(&["volume", "detach", "t/v"]);
    for (line, code, words) in [
        ("--nbd 127.0.0.1:10809 --owner 1:1", 2, "Unix socket"),
        ("--loop --mode 660", 2, "--nbd"),
        (
            "--nbd unix:/x --owner nosuchuser",
            1,
            "no user 'nosuchuser'",
        ),
        ("--nbd unix:/x --mode 999", 2, "not permissions"),
    ] {
        let mut all = vec!["volume", "attach", "t/v"];
        all.extend(line.split(' '));
        let (error, found) = daemon.fails(&all);
        assert!(
            found == code && error.contains(words),
            "{line}: {found} {error}"
        );
    }
}
