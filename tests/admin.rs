//! What an administrator needs around arrays: who did what, a bundle for those who help, what shells offer at Tab.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use common::{ASHLAR, Daemon, Scratch, have, tool};
use serde_json::Value;

#[test]
fn who_did_what_is_kept_over_restarts_also_what_failed() {
    let mut daemon = Daemon::start("history");
    daemon.create("t", "ec2+1", 3, "64M", &[]);
    daemon.ok(&["set", "t", "clean.reserve=8%"]);
    daemon.fails(&["fail", "t", "nothere"]);
    daemon.ok(&["status"]);
    daemon.ok(&[
        "create",
        "u",
        "--layout",
        "ec2+1",
        "--file-size",
        "64M",
        "-n",
        "x",
        "y",
        "z",
    ]);
    daemon.kill9();
    daemon.launch();
    let history = daemon.json(&["history", "t", "-j"]);
    let actions = history["actions"].as_array().unwrap();
    let verbs: Vec<&str> = actions
        .iter()
        .map(|a| a["verb"].as_str().unwrap())
        .collect();
    assert_eq!(
        verbs,
        ["create", "set", "fail"],
        "asking and dry runs change nothing"
    );
    let me = rustix::process::getuid().as_raw();
    for action in actions {
        assert_eq!(action["caller"]["uid"], me);
        assert!(action["unix_seconds"].as_u64().unwrap() > 1_700_000_000);
    }
    let command = actions[1]["caller"]["command"].as_str().unwrap();
    assert!(command.ends_with("set t clean.reserve=8%"), "{command}");
    assert_eq!(
        (&actions[1]["ok"], &actions[2]["ok"]),
        (&Value::Bool(true), &Value::Bool(false))
    );
    let said = daemon.ok(&["history", "t", "-n", "1"]);
    assert!(
        said.contains("fail t nothere") && said.contains("/nothere is not a device of t"),
        "{said}"
    );
    assert!(
        daemon
            .ok(&["history", "nobody"])
            .contains("no command is recorded")
    );
    let file = std::fs::metadata(daemon.path("state").join("history.jsonl")).unwrap();
    assert_eq!(file.permissions().mode() & 0o077, 0, "not for others");
}

#[test]
fn support_collects_what_helps_with_a_daemon_and_without_one() {
    assert!(have(&["tar"]));
    let daemon = Daemon::start("support");
    daemon.create("t", "ec2+1", 3, "64M", &[]);
    daemon.ok(&["set", "t", "notify.webhook=http://127.0.0.1:9/hook/s3cret"]);
    let at = daemon.text("bundle.tar.gz");
    let said = daemon.ok(&["support", &at]);
    assert!(said.contains("look through it"), "{said}");
    let mode = std::fs::metadata(&at).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    tool("tar", &["-xzf", &at, "-C", &daemon.text("")]);
    let folder = std::fs::read_dir(&daemon.scratch.0).unwrap().flatten();
    let folder = folder
        .map(|e| e.path())
        .find(|p| p.is_dir() && p.display().to_string().contains("ashlar-support-"))
        .unwrap();
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let status: Value = serde_json::from_str(&read("status.json")).unwrap();
    assert_eq!(status["arrays"][0]["name"], "t");
    assert!(read("events.json").contains("created"));
    assert!(read("history.json").contains("notify.webhook=http://127.0.0.1:9/..."));
    assert!(read("settings/t.json").contains("http://127.0.0.1:9/..."));
    assert!(read("inspect/2.json").contains("superblock"));
    assert!(read("system/proc/meminfo").contains("MemTotal"));
    for name in [
        "history.json",
        "settings/t.json",
        "events.json",
        "status.json",
    ] {
        assert!(!read(name).contains("s3cret"), "{name}");
    }
    let (error, code) = daemon.fails(&["support", &at]);
    assert!(code == 1 && error.contains("exists already"), "{error}");

    let scratch = Scratch::new("support-alone");
    let output = Command::new(ASHLAR)
        .arg("support")
        .arg(scratch.path("b.tar.gz"))
        .env("ASHLAR_SOCKET", scratch.path("none"))
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("not in it: status.json: no daemon"), "{said}");
}

#[test]
fn every_device_is_listed_whatever_is_known_of_its_drive() {
    let daemon = Daemon::start("devices");
    daemon.create("t", "ec2+1", 3, "64M", &[]);
    let rows = daemon.ok(&["device", "list", "-Hp"]);
    assert_eq!(rows.lines().count(), 3, "{rows}");
    let cells: Vec<&str> = rows.lines().next().unwrap().split('\t').collect();
    assert_eq!(cells[..4], ["t", "0", "online", "67108864"]);
    assert_eq!(cells[8..], ["-", "-", "-"], "a file is no drive");
    let list = daemon.json(&["device", "list", "t", "-j"]);
    assert_eq!(list["devices"][2]["index"], 2);
    assert!(
        list["devices"][2]["hardware"]
            .as_object()
            .unwrap()
            .is_empty()
    );
}

/// As the script for bash asks.
fn offered(socket: &str, words: &[&str]) -> Vec<String> {
    let output = Command::new(ASHLAR)
        .arg("--")
        .args(words)
        .env("_ASHLAR_COMPLETE", "bash")
        .env("_CLAP_IFS", "\n")
        .env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string())
        .env("ASHLAR_SOCKET", socket)
        .output()
        .unwrap();
    assert!(output.status.success() && output.stderr.is_empty());
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_string).collect()
}

#[test]
fn shells_offer_what_there_is() {
    let daemon = Daemon::start("tab");
    let files = daemon.create("tank", "ec2+1", 3, "64M", &[]);
    let socket = daemon.text("control.sock");
    let offers = |words: &[&str]| offered(&socket, words);
    assert_eq!(offers(&["ashlar", "export", ""])[0], "tank");
    assert_eq!(offers(&["ashlar", "volume", "attach", "t"]), ["tank/v"]);
    let device = files[1].display().to_string();
    assert!(offers(&["ashlar", "fail", "tank", ""]).contains(&device));
    assert!(offers(&["ashlar", "create", "x", "--layout", "ec8"]).contains(&"ec8+3".to_string()));
    let set = offers(&["ashlar", "set", "tank", "rebuild.narrow=n"]);
    assert_eq!(set, ["rebuild.narrow=never"]);
    assert_eq!(offers(&["ashlar", "supp"]), ["support"]);
    // Without a daemon nothing is offered, and nothing said.
    let none = offered(&daemon.text("none"), &["ashlar", "status", "t"]);
    assert!(none.is_empty(), "{none:?}");
}

#[test]
fn a_demonstration_that_nobody_watches_leaves_nothing_behind() {
    let scratch = Scratch::new("unwatched");
    let line = format!(
        "{ASHLAR} demo --size 8M --dir {} 2>&1 | head -c 100",
        scratch.0.display()
    );
    let output = Command::new("sh").args(["-c", &line]).output().unwrap();
    assert!(
        String::from_utf8(output.stdout)
            .unwrap()
            .starts_with("Ashlar in")
    );
    let left = || std::fs::read_dir(&scratch.0).unwrap().count();
    common::wait_until(
        "nothing to be left",
        std::time::Duration::from_secs(120),
        || left() == 0,
    );
}

/// A volume keeps its content under its new name, over a restart too. One that is served is not renamed, since its
/// clients know it by its name.
#[test]
fn a_volume_is_renamed_where_nobody_knows_it() {
    let mut daemon = Daemon::start("rename");
    daemon.create("t", "ec2+1", 3, "64M", &[]);
    daemon.disk("t").write(4096, &[7; 4096]).unwrap();
    let (error, code) = daemon.fails(&["volume", "rename", "t/v", "w"]);
    assert!(
        code == 1 && error.contains("is attached as nbd") && error.contains("volume detach t/v"),
        "{error}"
    );
    daemon.ok(&["volume", "detach", "t/v"]);
    daemon.ok(&["volume", "create", "t/other", "--size", "1M", "--thin"]);
    for (from, to, what) in [
        ("t/v", "other", "exists already"),
        ("t/none", "w", "no volume none"),
        ("t/v", "a/b", "a volume"),
    ] {
        let (error, _) = daemon.fails(&["volume", "rename", from, to]);
        assert!(error.contains(what), "{error}");
    }
    daemon.ok(&["volume", "rename", "t/v", "w"]);
    let events = daemon.ok(&["events", "t"]);
    assert!(events.contains("volume v is called w now"), "{events}");
    daemon.kill9();
    daemon.launch();
    daemon.ok(&["volume", "rename", "t/w", "v"]);
    let address = format!("unix:{}", daemon.text("nbd.sock"));
    daemon.ok(&["volume", "attach", "t/v", "--nbd", &address]);
    assert_eq!(daemon.disk("t").read(4096, 4096).unwrap(), [7; 4096]);
}

/// A volume that nobody uses grows and keeps its content, and becomes smaller for who says so twice; what it gets when it
/// grows again is zeros, also after a `kill -9`.
#[test]
fn a_volume_gets_another_size_where_nobody_uses_it() {
    let mut daemon = Daemon::start("resize");
    daemon.create("t", "ec2+1", 3, "64M", &[]);
    let size = daemon.disk("t").size();
    daemon.disk("t").write(size - 4096, &[7; 4096]).unwrap();
    let refused = |daemon: &Daemon, line: &[&str], what: &str| {
        let (error, _) = daemon.fails(line);
        let lines = error.trim_end().lines().count();
        assert!(error.contains(what) && lines == 1, "{line:?}: {error}");
    };
    let attached = "then resize it and attach it again";
    refused(&daemon, &["volume", "resize", "t/v", "16M"], attached);
    daemon.ok(&["volume", "detach", "t/v"]);
    refused(&daemon, &["volume", "resize", "t/w", "16M"], "no volume w");
    refused(
        &daemon,
        &["volume", "resize", "t/v", "5000"],
        "a multiple of the volume's block, 4K",
    );
    refused(
        &daemon,
        &["volume", "resize", "t/v", "1T"],
        "too little free space",
    );
    daemon.ok(&["volume", "resize", "t/v", "8M", "--yes"]);
    let smaller = "t/v has 8M: at 4M the last 4M of it are lost";
    refused(&daemon, &["volume", "resize", "t/v", "4M"], smaller);
    let volume = |daemon: &Daemon| daemon.status("t")["volumes"][0]["size_bytes"].clone();
    assert_eq!(volume(&daemon), 8 << 20);
    let address = format!("unix:{}", daemon.text("nbd.sock"));
    let attach = ["volume", "attach", "t/v", "--nbd", &address];
    daemon.ok(&attach);
    daemon
        .disk("t")
        .write((4 << 20) - 4096, &[5; 8192])
        .unwrap();
    daemon.ok(&["volume", "detach", "t/v"]);
    let said = daemon.ok(&["volume", "resize", "t/v", "4M", "--yes"]);
    assert_eq!(said, "t/v: 4M now\n");
    let said = daemon.json(&["volume", "resize", "t/v", "12M", "-j"]);
    assert_eq!(
        (&said["size_bytes"], &said["was_bytes"]),
        (&(12 << 20).into(), &(4 << 20).into())
    );
    daemon.kill9();
    daemon.launch();
    assert_eq!(volume(&daemon), 12 << 20);
    daemon.ok(&attach);
    let disk = daemon.disk("t");
    assert_eq!(disk.size(), 12 << 20);
    assert_eq!(disk.read((4 << 20) - 4096, 4096).unwrap(), [5; 4096]);
    let new = disk.read(4 << 20, 8 << 20).unwrap();
    assert!(new.iter().all(|byte| *byte == 0));
    let events = daemon.ok(&["events", "t"]);
    let told = "volume v has 12M now, it had 4M";
    assert!(events.contains(told), "{events}");
}
