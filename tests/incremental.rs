//! `import --incremental`: one device after another comes, as udev tells of it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::Daemon;

fn created(daemon: &Daemon) -> Vec<String> {
    let files = daemon.create("t", "ec2+1", 4, "64M", &[]);
    files.iter().map(|f| f.display().to_string()).collect()
}

/// Moves devices to where nobody looks for them, or back.
fn hide(daemon: &Daemon, which: &[usize], gone: bool) {
    std::fs::create_dir_all(daemon.path("hidden")).unwrap();
    for i in which {
        let name = format!("t-{i}.img");
        let (here, there) = (daemon.path(&name), daemon.path("hidden").join(&name));
        match gone {
            true => std::fs::rename(here, there).unwrap(),
            false => std::fs::rename(there, here).unwrap(),
        }
    }
}

#[test]
fn an_array_starts_with_its_last_device() {
    let daemon = Daemon::start("incremental");
    let files = created(&daemon);
    daemon.ok(&["export", "t"]);
    hide(&daemon, &[1, 2, 3], true);
    for (come, here) in [(0, 1), (1, 2), (2, 3)] {
        if come > 0 {
            hide(&daemon, &[come], false);
        }
        let said = daemon.ok(&["import", "--incremental", &files[come]]);
        let waits = format!("t: waiting: {here} of 4 devices are here; 'ashlar import t'");
        assert!(said.starts_with(&waits), "{said}");
        assert_eq!(
            daemon.json(&["list", "-j"])["arrays"]
                .as_array()
                .unwrap()
                .len(),
            0
        );
    }
    hide(&daemon, &[3], false);
    let said = daemon.ok(&["import", "--incremental", &files[3], "--export"]);
    for line in [
        "ASHLAR_ARRAY=t",
        "ASHLAR_DEVICE=3",
        "ASHLAR_STARTED=yes",
        "ASHLAR_HERE=4",
    ] {
        assert!(said.lines().any(|l| l == line), "{said}");
    }
    assert_eq!(daemon.status("t")["state"], "optimal");
    let said = daemon.ok(&["import", "--incremental", &files[3]]);
    assert!(
        said.contains("device 3 (") && said.contains("in use already"),
        "{said}"
    );

    // One that left is taken in; one that failed is not.
    daemon.ok(&["offline", "t", "2"]);
    let reply = daemon.json(&["import", "--incremental", &files[2], "-j"]);
    assert_eq!(
        (&reply["started"], &reply["joined"]),
        (&"already".into(), &true.into())
    );
    daemon.ok(&["wait", "t"]);
    daemon.ok(&["fail", "t", "1", "-w"]);
    let (error, code) = daemon.fails(&["import", "--incremental", &files[1]]);
    assert!(code == 1 && error.contains("online"), "{error}");
}

#[test]
fn what_is_no_device_says_so() {
    let daemon = Daemon::start("incremental-none");
    std::fs::write(daemon.path("plain"), vec![0; 1 << 20]).unwrap();
    let (error, code) = daemon.fails(&["import", "--incremental", &daemon.text("plain")]);
    assert!(
        code == 1 && error.contains("is no device of an array"),
        "{error}"
    );
    let (error, code) = daemon.fails(&["import", "--incremental", &daemon.text("none")]);
    assert!(
        code == 1 && error.contains("name a device that is there"),
        "{error}"
    );
    assert_eq!(daemon.fails(&["import", "t", "--incremental", "x"]).1, 2);
    assert_eq!(daemon.fails(&["import", "--export"]).1, 2);
}

/// What an array may do without it waits for as long as its `start.wait` says, and not longer.
#[test]
fn an_array_that_has_waited_starts_with_what_is_enough() {
    let mut daemon = Daemon::start("incremental-late");
    let files = created(&daemon);
    daemon.ok(&["set", "t", "start.wait=1s"]);
    assert!(daemon.stop());
    hide(&daemon, &[0, 1, 3], true);
    daemon.launch();
    let waited = || {
        let status = daemon.json(&["status", "-j"]);
        let text = status["not_imported"].to_string();
        text.contains("\"t\"") && !text.contains("start.wait")
    };
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !waited() && std::time::Instant::now() < until {
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    assert!(waited());
    let said = daemon.ok(&["import", "--incremental", &files[2]]);
    assert!(said.contains("waiting: 1 of 4"), "{said}");
    hide(&daemon, &[0, 1], false);
    let said = daemon.ok(&["import", "--incremental", &files[0]]);
    assert!(said.contains("imported, 3 of 4 devices are here"), "{said}");
}
