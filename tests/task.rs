//! Background work as an administrator pauses, resumes and cancels it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::Daemon;
use common::disk::pattern;

const MIB: u64 = 1 << 20;

/// The state and reason of a task in `status`; `None` if it is not listed.
fn task(daemon: &Daemon, kind: &str) -> Option<(String, String)> {
    let status = daemon.status("t");
    let tasks = status["tasks"].as_array().unwrap();
    let task = tasks.iter().find(|t| t["kind"] == kind)?;
    let text = |field: &str| task[field].as_str().unwrap().to_string();
    Some((text("state"), text("reason")))
}

fn created(name: &str, layout: &str, devices: usize) -> Daemon {
    let daemon = Daemon::start(name);
    let attach = format!("nbd=unix:{}", daemon.text("nbd.sock"));
    let files: Vec<String> = (0..devices).map(|i| format!("t-{i}.img")).collect();
    let line = ["create", "t", "--layout", layout, "--file-size", "64M"];
    let volume = ["--volume", "v=24M", "--attach", &attach];
    let files = files.iter().map(String::as_str);
    daemon.ok(&line
        .into_iter()
        .chain(volume)
        .chain(files)
        .collect::<Vec<_>>());
    let disk = daemon.disk("t");
    let written = disk.write_range((0, 8 * MIB), 256 << 10, 8, pattern(1));
    assert!(written.is_empty(), "{written:?}");
    daemon
}

fn read(daemon: &Daemon) {
    let disk = daemon.disk("t");
    let wrong = disk.compare_range((0, 8 * MIB), 256 << 10, 8, pattern(1));
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn a_rebuild_is_paused_and_resumed() {
    let mut daemon = created("task", "ec2+1", 5);
    let said = daemon.ok(&["task", "t", "rebuild", "pause"]);
    assert!(said.contains("'ashlar task t 1 resume' goes on"), "{said}");
    assert_eq!(said.lines().count(), 1, "nothing is at risk: {said}");
    daemon.ok(&["fail", "t", "1"]);
    let (error, code) = daemon.fails(&["wait", "t"]);
    assert!(code == 1 && error.contains("task t 1 resume"), "{error}");
    let (state, reason) = task(&daemon, "reconstruct").unwrap();
    assert_eq!(state, "paused");
    assert!(
        reason.contains("paused with 'ashlar task t 1 pause'"),
        "{reason}"
    );
    let shown = daemon.ok(&["status", "t"]);
    assert!(shown.contains("  paused\n"), "{shown}");
    let rows = daemon.ok(&["task", "t", "-H"]);
    assert!(rows.contains("1\trebuild\tpaused\t"), "{rows}");
    // What is not merged yet is counted once it is.
    let begun = std::time::Instant::now();
    let again = loop {
        let again = daemon.json(&["task", "t", "1", "pause", "-j"]);
        let counted = again["unprotected_bytes"].as_u64().unwrap() > 0;
        if counted || begun.elapsed() > std::time::Duration::from_secs(40) {
            break again;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    };
    assert_eq!(
        (&again["already"], &again["degraded"], &again["more_losses"]),
        (&true.into(), &true.into(), &0.into())
    );
    assert!(again["unprotected_bytes"].as_u64().unwrap() > 0, "{again}");
    let said = daemon.ok(&["task", "t", "1", "pause"]);
    assert!(
        said.contains("the next device failure loses data"),
        "{said}"
    );
    for kinds in ["rebuild", "rebuild,clean"] {
        let (error, code) = daemon.fails(&["wait", "t", "--for", kinds]);
        assert!(code == 1 && error.contains("paused"), "{error}");
    }
    daemon.ok(&["wait", "t", "--for", "clean"]);
    let (error, _) = daemon.fails(&["task", "t", "1", "cancel"]);
    assert!(
        error.contains("cannot be cancelled") && error.contains("1 pause"),
        "{error}"
    );
    daemon.ok(&["task", "t", "1", "resume"]);
    daemon.ok(&["wait", "t", "--for", "rebuild"]);
    assert_eq!(daemon.status("t")["state"], "optimal");
    read(&daemon);

    // A pause that was forgotten ends with the daemon.
    daemon.ok(&["task", "t", "1", "pause"]);
    daemon.ok(&["fail", "t", "2"]);
    daemon.kill9();
    daemon.launch();
    daemon.ok(&["wait", "t", "--for", "rebuild"]);
    assert_eq!(daemon.status("t")["state"], "optimal");
    let events = daemon.ok(&["events", "t", "-j"]);
    assert!(
        events.contains("work-paused") && events.contains("work-resumed"),
        "{events}"
    );
}

#[test]
fn a_rebalance_is_paused_and_cancelled() {
    let daemon = created("task-cancel", "ec2+1", 5);
    for kind in ["2", "clean", "repair", "heal"] {
        for change in ["pause", "cancel"] {
            let (error, code) = daemon.fails(&["task", "t", kind, change]);
            assert!(
                code == 1 && error.contains(&format!("cannot be {change}")),
                "{error}"
            );
        }
    }
    let (error, _) = daemon.fails(&["task", "t", "4", "cancel"]);
    assert!(error.contains("no device is to leave"), "{error}");
    let (error, code) = daemon.fails(&["task", "t", "9", "pause"]);
    assert!(code == 1 && error.contains("no task 9"), "{error}");
    assert_eq!(daemon.fails(&["task", "t", "1"]).1, 2);
    assert_eq!(daemon.fails(&["task", "t", "1", "stop"]).1, 2);

    daemon.ok(&["task", "t", "rebalance", "pause"]);
    daemon.ok(&["remove", "t", "1"]);
    let (error, code) = daemon.fails(&["wait", "t", "--for", "rebalance"]);
    assert!(code == 1 && error.contains("task t 4 resume"), "{error}");
    let state = |index: usize| daemon.status("t")["devices"][index]["state"].clone();
    assert_eq!(state(1), "removing");
    let said = daemon.ok(&["task", "t", "4", "cancel"]);
    assert!(said.contains("device 1 stays"), "{said}");
    assert_eq!(state(1), "online");
    daemon.ok(&["wait", "t"]);
    read(&daemon);

    // What is offline is not rebuilt, paused or not.
    daemon.ok(&["task", "t", "1", "pause"]);
    daemon.ok(&["offline", "t", "3"]);
    let said = daemon.ok(&["task", "t", "1", "resume"]);
    assert!(said.contains("device 3 is offline"), "{said}");
    let (error, _) = daemon.fails(&["wait", "t"]);
    assert!(error.contains("a device is offline"), "{error}");
    daemon.ok(&["online", "t", "3", "-w"]);
    daemon.ok(&["remove", "t", "3", "-w"]);
    read(&daemon);
}

#[test]
fn a_setting_says_what_it_is_and_goes_back_to_its_default() {
    let daemon = Daemon::start("settings");
    daemon.create("t", "ec2+1", 3, "64M", &[]);
    let set = |pair: &str| daemon.ok(&["set", "t", pair]);
    assert_eq!(
        set("rebuild.min=100000"),
        "t: rebuild.min=100000 (97.6K/s of each device)\n"
    );
    assert_eq!(set("start.wait=60"), "t: start.wait=60s (given as 60)\n");
    assert_eq!(
        set("rebuild.min=default"),
        "t: rebuild.min=20M (the default)\n"
    );
    assert_eq!(
        set("notify.exec=default"),
        "t: notify.exec= (the default)\n"
    );
    // A minimum that nobody has set gives way; one that somebody has is not contradicted.
    set("scrub.max=1M");
    let (error, code) = daemon.fails(&["set", "t", "scrub.min=5M"]);
    assert!(
        code == 2 && error.contains("scrub.min=5M is above scrub.max=1M"),
        "{error}"
    );
    set("scrub.min=1M");
    let (error, _) = daemon.fails(&["set", "t", "scrub.max=512K"]);
    assert!(error.contains("'ashlar set t scrub.min=512K'"), "{error}");
    set("scrub.min=none");
    set("scrub.max=512K");
}

#[test]
fn a_rebuild_that_is_delayed_says_for_how_long() {
    let daemon = created("delay", "ec2+2", 6);
    daemon.ok(&["set", "t", "rebuild.delay=10m"]);
    daemon.ok(&["export", "t"]);
    std::fs::rename(daemon.path("t-1.img"), daemon.path("t-1.away")).unwrap();
    std::fs::write(daemon.path("t-1.away"), b"").unwrap();
    let dir = daemon.scratch.0.to_str().unwrap().to_string();
    daemon.ok(&["import", "t", "--scan", &dir]);
    let (state, reason) = task(&daemon, "reconstruct").unwrap();
    assert_eq!(state, "waiting");
    let words = ["is rebuilt in 9m", "is rebuilt in 10m00s"];
    let says = words.iter().any(|words| reason.contains(words));
    assert!(says && reason.contains("(rebuild.delay=10m)"), "{reason}");
    let shown = daemon.ok(&["status", "t"]);
    assert!(shown.contains("(rebuild.delay=10m)"), "{shown}");
    // Without one it begins, and ends with what was waited for.
    daemon.ok(&["set", "t", "rebuild.delay=0s"]);
    let said = daemon.ok(&["wait", "t", "--for", "rebuild"]);
    assert!(said.contains("rebuild"), "{said}");
    let said = daemon.ok(&["wait", "t", "--for", "rebuild"]);
    assert_eq!(
        said,
        "t: no rebuild left to wait for; the array is optimal\n"
    );
    read(&daemon);
}
