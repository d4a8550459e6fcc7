//! Arrays through their life: export and import, an orderly stop, SIGKILL, and frontends that come
//! back by themselves.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::Daemon;
use common::disk::pattern;

const PIECE: usize = 256 << 10;

/// Writes the first `end` bytes of `t/v`.
fn write_all(daemon: &Daemon, end: u64, seed: u64) {
    let failed = daemon
        .disk("t")
        .write_range((0, end), PIECE, 8, pattern(seed));
    assert!(failed.is_empty(), "{failed:?}");
}

/// They are what was written.
fn assert_kept(daemon: &Daemon, end: u64, seed: u64) {
    let differ = daemon
        .disk("t")
        .compare_range((0, end), PIECE, 8, pattern(seed));
    assert!(differ.is_empty(), "{differ:?}");
}

#[test]
fn what_was_exported_is_found_and_imported_elsewhere() {
    let one = Daemon::start("export");
    one.create("t", "ec4+2", 6, "64M", &[]);
    let end = 32 << 20;
    {
        let disk = one.disk("t");
        assert!(disk.write_range((0, end), PIECE, 8, pattern(1)).is_empty());
        disk.flush().unwrap();
    }
    let uuid = one.status("t")["uuid"].as_str().unwrap().to_string();
    one.ok(&["export", "t"]);
    assert_eq!(
        one.json(&["status", "-j"])["arrays"]
            .as_array()
            .unwrap()
            .len(),
        0
    );
    let dir = one.scratch.0.to_str().unwrap();
    let label = one.json(&["inspect", "-j", "t-3.img"]);
    assert_eq!(
        (&label["array"], &label["index"], &label["clean"]),
        (&"t".into(), &3.into(), &true.into())
    );

    let journal = one.json(&["inspect", "-j", "t-3.img", "--journal"]);
    let records = journal["journal"].as_array().unwrap();
    assert!(!records.is_empty() && records.iter().all(|r| r["whole"] == true));
    // Of an exported array only the last record is needed, which has the rows of the nodes that the export wrote: it lies
    // on three of the devices, this one or others.
    let (last, before) = records.split_last().unwrap();
    assert!(
        before.iter().all(|r| r["needed"] == false),
        "no data hang on the journal of an exported array: {journal}"
    );
    let bytes = last["payload_bytes"].as_u64().unwrap();
    assert!(
        last["needed"] == false || bytes < 1024,
        "the rows of a stripe or two of nodes: {last}"
    );
    let balance = one.json(&["inspect", "-j", "t-3.img", "--balance"]);
    let shared = balance["shared"].as_array().unwrap();
    assert!(
        shared.len() == 6 && shared.iter().all(|s| *s == balance["segments"]),
        "six columns on six devices: {balance}"
    );
    let images: Vec<String> = (0..6).map(|i| format!("t-{i}.img")).collect();
    let mut inspect: Vec<&str> = images[..4].iter().map(String::as_str).collect();
    inspect.insert(0, "inspect");
    inspect.extend(["--map", "v", "-j"]);
    let map = one.json(&inspect);
    let extents = map["extents"].as_array().unwrap();
    let mapped: u64 = extents
        .iter()
        .map(|e| e["length_bytes"].as_u64().unwrap())
        .sum();
    assert!(
        map["whole"] == true && mapped == end,
        "four of ec4+2 are enough: {map}"
    );
    let (error, _) = one.fails(&["inspect", "t-0.img", "--map", "v"]);
    assert!(error.contains("other devices"), "{error}");

    let other = Daemon::start("elsewhere");
    let found = other.json(&["import", "--scan", dir, "-j"]);
    assert_eq!(found["importable"][0]["name"], "t", "{found}");
    assert_eq!(found["importable"][0]["uuid"], uuid.as_str());
    assert_eq!(
        found["importable"][0]["devices"].as_array().unwrap().len(),
        6
    );
    other.ok(&["import", &uuid, "--scan", dir]);
    assert_eq!(other.status("t")["state"], "optimal");
    // The frontend is kept in the array: it serves at the same socket again.
    assert!(
        one.disk("t")
            .compare_range((0, end), PIECE, 8, pattern(1))
            .is_empty()
    );
    other.ok(&["destroy", "t", "--yes"]);
    let found = other.json(&["import", "--scan", dir, "-j"]);
    assert_eq!(found["importable"].as_array().unwrap().len(), 0, "{found}");
}

#[test]
fn an_orderly_stop_and_a_kill_both_bring_everything_back() {
    let mut daemon = Daemon::start("restart");
    daemon.create("t", "ec4+2", 6, "64M", &[]);
    let end = 24 << 20;
    write_all(&daemon, end, 2);
    for orderly in [true, false, true, false] {
        if orderly {
            assert!(daemon.stop(), "the daemon did not end with success");
        } else {
            daemon.kill9();
        }
        daemon.launch();
        let disk = daemon.disk("t");
        assert!(
            disk.compare_range((0, end), PIECE, 8, pattern(2))
                .is_empty()
        );
        disk.write(end, &[u8::from(orderly); 4096]).unwrap();
        assert_eq!(disk.read(end, 4096).unwrap(), [u8::from(orderly); 4096]);
    }
    assert_eq!(daemon.status("t")["state"], "optimal");
}

#[test]
fn acknowledged_writes_survive_a_kill_at_any_moment() {
    let mut daemon = Daemon::start("kill");
    daemon.create("t", "ec4+2", 6, "96M", &[]);
    let end = 48 << 20;
    write_all(&daemon, end, 100);
    let mut seeds: Vec<u64> = vec![100; usize::try_from(end).unwrap() / PIECE];
    for round in 0..4u64 {
        // A second process-like client: writes until the connection dies under it.
        let disk = daemon.disk("t");
        let pid = daemon.pid();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(300 + 170 * round));
            let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        });
        let seed = 101 + round;
        let failed = disk.write_range((0, end), PIECE, 4, pattern(seed));
        killer.join().unwrap();
        daemon.kill9();
        daemon.launch();
        let disk = daemon.disk("t");
        for (i, known) in seeds.iter_mut().enumerate() {
            let at = (i * PIECE) as u64;
            let read = disk.read(at, PIECE).unwrap();
            let content = |seed| {
                let mut out = vec![0; PIECE];
                pattern(seed)(at, &mut out);
                out
            };
            let (old, new) = (content(*known), content(seed));
            if failed.iter().all(|(failed, _)| *failed != at) {
                assert!(
                    read == new,
                    "round {round}: the acknowledged write at {at} is lost"
                );
                *known = seed;
                continue;
            }
            let blocks = read
                .chunks(4096)
                .zip(old.chunks(4096).zip(new.chunks(4096)));
            for (j, (read, (old, new))) in blocks.enumerate() {
                assert!(
                    read == old || read == new,
                    "round {round}: block {j} at {at} is torn"
                );
            }
            disk.write(at, &new).unwrap(); // known again
            *known = seed;
        }
    }
}

#[test]
fn an_array_that_lost_devices_meanwhile_comes_back_without_them() {
    let mut daemon = Daemon::start("lost");
    let files = daemon.create("t", "ec4+2", 6, "64M", &[]);
    let end = 16 << 20;
    write_all(&daemon, end, 3);
    daemon.ok(&["set", "t", "start.wait=1s"]);
    assert!(daemon.stop());
    std::fs::remove_file(&files[1]).unwrap();
    std::fs::remove_file(&files[4]).unwrap();
    daemon.launch();
    let status = daemon.status("t");
    for device in 0..6 {
        let gone = status["devices"][device]["state"] == "missing";
        assert_eq!(gone, [1, 4].contains(&device), "{status}");
    }
    assert_kept(&daemon, end, 3);
    write_all(&daemon, end, 4);
    assert_kept(&daemon, end, 4);
}

#[test]
fn with_too_few_devices_an_array_waits_for_the_operator() {
    let mut daemon = Daemon::start("few");
    let files = daemon.create("t", "ec2+4", 6, "64M", &[]);
    let end = 8 << 20;
    write_all(&daemon, end, 5);
    daemon.ok(&["set", "t", "start.wait=1s"]);
    assert!(daemon.stop());
    std::fs::create_dir(daemon.path("away")).unwrap();
    for file in &files[..3] {
        let name = file.file_name().unwrap();
        std::fs::rename(file, daemon.path("away").join(name)).unwrap();
    }
    daemon.launch();
    let status = daemon.json(&["status", "-j"]);
    assert_eq!(status["arrays"].as_array().unwrap().len(), 0);
    assert_eq!(status["not_imported"][0]["name"], "t");
    assert_eq!(daemon.run(&["status", "--test"]).status.code(), Some(4));
    let dir = daemon.scratch.0.to_str().unwrap().to_string();
    let (error, _) = daemon.fails(&["import", "t", "--scan", &dir]);
    assert!(error.contains("--degraded"), "{error}");
    daemon.ok(&["import", "t", "--scan", &dir, "--degraded"]);
    assert_kept(&daemon, end, 5);
}

/// Devices that are away at a start, as after a reboot, are not done without where data need them.
#[test]
fn devices_away_at_a_start_are_not_lost() {
    let mut daemon = Daemon::start("away");
    let files = daemon.create("t", "ec4+1", 5, "64M", &[]);
    let end = 8 << 20;
    write_all(&daemon, end, 6);
    daemon.ok(&["set", "t", "start.wait=5s"]);
    let generation = daemon.status("t")["generation"].clone();
    assert!(generation.is_u64(), "{generation}");
    // Two of ec4+1, more than it survives, although more than half are here.
    assert!(daemon.stop());
    let folder = daemon.path("away");
    std::fs::create_dir(&folder).unwrap();
    let away = |file: &std::path::Path| folder.join(file.file_name().unwrap());
    let moved: Vec<_> = files[1..3].iter().map(|file| (file, away(file))).collect();
    for (file, away) in &moved {
        std::fs::rename(file, away).unwrap();
    }
    daemon.launch();
    let status = daemon.json(&["status", "-j"]);
    assert_eq!(status["arrays"].as_array().unwrap().len(), 0, "{status}");
    let reason = status["not_imported"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("3 of the 5"), "{reason}");
    for (file, away) in &moved {
        std::fs::rename(away, file).unwrap();
    }
    let dir = daemon.scratch.0.to_str().unwrap().to_string();
    daemon.ok(&["import", "--scan", &dir, "--all"]);
    let status = daemon.status("t");
    assert_eq!(status["state"], "optimal", "{status}");
    assert_eq!(status["generation"], generation);
    assert_kept(&daemon, end, 6);
    // One, under another name beside the others.
    assert!(daemon.stop());
    std::fs::rename(&files[3], daemon.path("renamed.img")).unwrap();
    daemon.launch();
    let status = daemon.status("t");
    assert_eq!(status["state"], "optimal", "{status}");
    assert_eq!(status["generation"], generation);
    assert_kept(&daemon, end, 6);
    // One comes late.
    assert!(daemon.stop());
    let late = folder.join("late.img");
    std::fs::rename(&files[4], &late).unwrap();
    let back = {
        let file = files[4].clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(3));
            std::fs::rename(late, file).unwrap();
        })
    };
    daemon.launch();
    back.join().unwrap();
    let status = daemon.status("t");
    assert_eq!(status["state"], "optimal", "{status}");
    assert_eq!(status["generation"], generation);
    // One is there and cannot be opened: the array could do without, and is not started so.
    assert!(daemon.stop());
    std::fs::rename(&files[0], away(&files[0])).unwrap();
    std::os::unix::fs::symlink(&files[0], &files[0]).unwrap();
    daemon.launch();
    let status = daemon.json(&["status", "-j"]);
    let reason = status["not_imported"][0]["reason"].as_str().unwrap();
    assert!(
        reason.contains(files[0].to_str().unwrap()) && reason.contains("--degraded"),
        "{reason}"
    );
    let (error, _) = daemon.fails(&["import", "t", "--scan", &dir]);
    assert!(error.contains("--degraded"), "{error}");
    std::fs::remove_file(&files[0]).unwrap();
    std::fs::rename(away(&files[0]), &files[0]).unwrap();
    daemon.ok(&["import", "t"]);
    let status = daemon.status("t");
    assert_eq!(status["state"], "optimal", "{status}");
    assert_eq!(status["generation"], generation);
}

/// The list of arrays is a cache: where it cannot be written, arrays serve and nothing half-made stays.
#[test]
fn a_state_directory_that_cannot_be_written_stops_no_array() {
    let mut daemon = Daemon::start("unwritable");
    let files = daemon.create("t", "ec2+1", 3, "64M", &[]);
    let end = 8 << 20;
    write_all(&daemon, end, 7);
    daemon.ok(&["export", "t"]);
    let block = daemon.path("state").join("arrays.json.new");
    std::fs::create_dir(&block).unwrap(); // the file cannot be made there, also not by root
    let dir = daemon.scratch.0.to_str().unwrap().to_string();
    let imported = daemon.run(&["import", "t", "--scan", &dir]);
    let warning = String::from_utf8(imported.stderr).unwrap();
    assert!(imported.status.success(), "{warning}");
    assert!(warning.contains("cannot be written"), "{warning}");
    assert!(
        daemon
            .disk("t")
            .compare_range((0, end), PIECE, 8, pattern(7))
            .is_empty(),
        "its volume is not served"
    );
    let line = [
        "create",
        "u",
        "--layout",
        "ec2+1",
        "--file-size",
        "64M",
        "u0",
        "u1",
        "u2",
    ];
    let (error, _) = daemon.fails(&line);
    assert!(error.contains("cannot be written"), "{error}");
    let arrays = daemon.json(&["status", "-j"])["arrays"].clone();
    assert_eq!(
        arrays.as_array().unwrap().len(),
        1,
        "u is half there: {arrays}"
    );
    assert!(!daemon.path("u0").exists(), "a file was left");
    std::fs::remove_dir(&block).unwrap();
    daemon.ok(&line);
    daemon.ok(&["destroy", "u", "--yes"]);
    assert_eq!(daemon.status("t")["state"], "optimal");

    // An array whose devices are gone for good is forgotten by exporting it.
    daemon.ok(&["set", "t", "start.wait=0s"]);
    assert!(daemon.stop());
    for file in &files {
        std::fs::remove_file(file).unwrap();
    }
    daemon.launch();
    let not_imported = |daemon: &Daemon| {
        let status = daemon.json(&["status", "-j"]);
        status["not_imported"].as_array().unwrap().len()
    };
    assert_eq!(not_imported(&daemon), 1);
    daemon.fails(&["export", "other"]);
    daemon.ok(&["export", "t"]);
    assert_eq!(not_imported(&daemon), 0);
    assert!(daemon.stop());
    daemon.launch();
    assert_eq!(not_imported(&daemon), 0);
}

#[test]
fn an_array_that_lost_every_device_is_exported_and_imported_again() {
    if !common::have_kernel_devices() {
        return; // it mounts
    }
    let mut daemon = Daemon::start("halted");
    let at = daemon.mount_memory("gone", 256);
    let (vanishing, kept) = (daemon.text("gone"), daemon.text("kept"));
    let attach = format!("nbd=unix:{}", daemon.text("nbd.sock"));
    let line = format!(
        "create t --layout raid0 --file-size 64M --volume v --attach {attach} gone/0.img gone/1.img"
    );
    daemon.ok(&line.split(' ').collect::<Vec<_>>());
    let end = 8 << 20;
    let written = daemon.disk("t").write_range((0, end), PIECE, 8, pattern(6));
    assert!(written.is_empty());
    daemon.ok(&["export", "t"]);
    common::tool("cp", &["-r", &vanishing, &kept]);
    daemon.ok(&["import", "t", "--scan", &vanishing]);
    let disk = daemon.disk("t");
    daemon.lose(&at);
    common::wait_until("the array stops", Duration::from_secs(30), || {
        !disk.write_range((0, end), PIECE, 8, pattern(7)).is_empty()
            && daemon.ok(&["events", "t"]).contains("no device is left")
    });
    let (error, code) = daemon.fails(&["wait", "t"]);
    assert!(code == 1 && error.contains("closed"), "{error}");
    for line in [
        &["destroy", "t", "--yes"][..],
        &["volume", "create", "t/w", "--size", "1M"],
    ] {
        let (error, code) = daemon.fails(line);
        assert!(code == 1 && error.contains("export it"), "{error}");
    }
    daemon.ok(&["export", "t"]);
    daemon.ok(&["import", "t", "--scan", &kept]);
    let differ = daemon
        .disk("t")
        .compare_range((0, end), PIECE, 8, pattern(6));
    assert!(differ.is_empty(), "{differ:?}");
}

/// An array whose writes wait, since two of its three devices went at once; a client that writes, and
/// a change of the array, wait for it in the background.
fn waiting(name: &str) -> (Daemon, std::thread::JoinHandle<usize>, std::process::Child) {
    let mut daemon = Daemon::start(name);
    let at = daemon.mount_memory("gone", 256);
    let attach = format!("nbd=unix:{}", daemon.text("nbd.sock"));
    let line = format!(
        "create t --layout raid1 --file-size 64M --volume v --attach {attach} 0.img gone/1.img gone/2.img"
    );
    daemon.ok(&line.split(' ').collect::<Vec<_>>());
    let (socket, end) = (daemon.path("nbd.sock"), 4 << 20);
    let disk = daemon.disk("t");
    let written = disk.write_range((0, end), PIECE, 8, pattern(1));
    assert!(written.is_empty());
    daemon.lose(&at);
    let writer = std::thread::spawn(move || {
        let disk = common::disk::Disk::connect(&socket, "t/v");
        disk.write_range((0, end), PIECE, 8, pattern(2)).len()
    });
    common::wait_until("writes wait", Duration::from_secs(30), || {
        daemon.ok(&["events", "t"]).contains("writes are paused")
    });
    let change = std::process::Command::new(common::ASHLAR)
        .args(["volume", "create", "t/w", "--size", "1M", "--thin"])
        .env("ASHLAR_SOCKET", daemon.path("control.sock"))
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_secs(1));
    (daemon, writer, change)
}

#[test]
fn the_word_to_go_on_is_heard_while_a_change_waits_for_it() {
    if !common::have_kernel_devices() {
        return; // it mounts
    }
    let (daemon, writer, mut change) = waiting("goon");
    assert!(change.try_wait().unwrap().is_none(), "nothing waited");
    let began = std::time::Instant::now();
    daemon.ok(&["fail", "t", "1", "-f"]);
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(writer.join().unwrap(), 0, "writes failed");
    assert!(change.wait().unwrap().success());
    let differ = daemon
        .disk("t")
        .compare_range((0, 4 << 20), PIECE, 8, pattern(2));
    assert!(differ.is_empty(), "{differ:?}");
    daemon.ok(&["export", "t"]);
}

#[test]
fn the_word_to_go_on_is_heard_while_an_export_waits_for_it() {
    if !common::have_kernel_devices() {
        return; // it mounts
    }
    let (daemon, writer, mut change) = waiting("goonexport");
    let mut export = std::process::Command::new(common::ASHLAR)
        .args(["export", "t"])
        .env("ASHLAR_SOCKET", daemon.path("control.sock"))
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_secs(1));
    daemon.ok(&["fail", "t", "1", "-f"]);
    change.wait().unwrap();
    let _ = writer.join().unwrap(); // some were cut off by the export
    assert!(export.wait().unwrap().success());
}

#[test]
fn a_daemon_whose_array_waits_for_the_operator_can_be_stopped() {
    if !common::have_kernel_devices() {
        return; // it mounts
    }
    let (mut daemon, writer, mut change) = waiting("stopwaiting");
    let began = std::time::Instant::now();
    assert!(daemon.stop());
    assert!(began.elapsed() < Duration::from_secs(20));
    writer.join().unwrap();
    change.wait().unwrap();
}

#[test]
fn volumes_come_and_go() {
    let daemon = Daemon::start("volumes");
    daemon.ok(&[
        "create",
        "t",
        "--layout",
        "ec4+2",
        "--file-size",
        "64M",
        "0",
        "1",
        "2",
        "3",
        "4",
        "5",
    ]);
    let address = format!("unix:{}", daemon.text("many.sock"));
    for name in ["a", "b", "c"] {
        daemon.ok(&["volume", "create", &format!("t/{name}"), "--size", "16M"]);
        daemon.ok(&["volume", "attach", &format!("t/{name}"), "--nbd", &address]);
    }
    let connect =
        |name: &str| common::disk::Disk::connect(&daemon.path("many.sock"), &format!("t/{name}"));
    for (name, seed) in [("a", 11), ("b", 12), ("c", 13)] {
        let disk = connect(name);
        assert_eq!(disk.size(), 16 << 20);
        assert!(
            disk.write_range((0, 16 << 20), PIECE, 4, pattern(seed))
                .is_empty()
        );
    }
    let (error, _) = daemon.fails(&["volume", "create", "t/a", "--size", "16M"]);
    assert!(error.contains('a'), "{error}");
    daemon.ok(&["volume", "destroy", "t/b", "--yes"]);
    assert!(
        connect("a")
            .compare_range((0, 16 << 20), PIECE, 4, pattern(11))
            .is_empty()
    );
    assert!(
        connect("c")
            .compare_range((0, 16 << 20), PIECE, 4, pattern(13))
            .is_empty()
    );
    daemon.ok(&["volume", "create", "t/b", "--size", "16M"]);
    daemon.ok(&["volume", "attach", "t/b", "--nbd", &address]);
    assert!(
        connect("b")
            .read(0, 1 << 20)
            .unwrap()
            .iter()
            .all(|byte| *byte == 0),
        "old data shows"
    );
    let listed = daemon.json(&["volume", "list", "-j"]);
    assert_eq!(listed["volumes"].as_array().unwrap().len(), 3);
    let (error, _) = daemon.fails(&["volume", "set", "t/a", "write-cache=on"]);
    assert!(error.contains("outlive"), "{error}");
    daemon.ok(&["volume", "detach", "t/a"]);
    daemon.ok(&["volume", "set", "t/a", "write-cache=on"]);
    let (error, _) = daemon.fails(&["volume", "attach", "t/a", "--nbd", &address]);
    assert!(error.contains("outlive"), "{error}");
}

#[test]
fn a_device_in_use_is_waited_for_and_not_left_behind() {
    let mut daemon = Daemon::start("busy");
    let files = daemon.create("t", "ec4+2", 8, "64M", &[]);
    let end = 8 << 20;
    write_all(&daemon, end, 1);
    daemon.kill9();
    // Somebody else holds one device for a while, as the kernel does for a daemon just killed.
    let holder = std::fs::File::open(&files[3]).unwrap();
    common::wait_until("the device is let go", Duration::from_secs(30), || {
        holder.try_lock().is_ok()
    });
    let release = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(2));
        holder.unlock().unwrap();
    });
    daemon.launch();
    release.join().unwrap();
    assert_eq!(daemon.status("t")["state"], "optimal");
    daemon.ok(&["export", "t"]);

    // Held for good, it is not silently done without: that would cost a loss.
    let holder = std::fs::File::open(&files[3]).unwrap();
    holder.try_lock().unwrap();
    let dir = daemon.scratch.0.to_str().unwrap().to_string();
    let (error, code) = daemon.fails(&["import", "t", "--scan", &dir]);
    assert!(
        code == 1 && error.contains("is in use") && error.contains("--degraded"),
        "{error}"
    );
    daemon.ok(&["import", "t", "--scan", &dir, "--degraded"]);
    assert_eq!(daemon.status("t")["devices"][3]["state"], "missing");
    drop(holder);
    assert_kept(&daemon, end, 1);
}

/// A second signal, of either kind, ends the wait for clients and devices; what is durable is kept.
#[test]
fn a_second_signal_waits_for_nobody() {
    use rustix::process::Signal;
    let mut daemon = Daemon::start("signals");
    let files = daemon.create("t", "ec2+1", 3, "64M", &[]);
    let end = 8 << 20;
    write_all(&daemon, end, 9);
    assert!(daemon.stop());
    // A daemon that looks for devices which are away would go on doing so for start.wait, 180 s.
    let away = daemon.path("away");
    std::fs::create_dir(&away).unwrap();
    for file in &files {
        std::fs::rename(file, away.join(file.file_name().unwrap())).unwrap();
    }
    for (first, second) in [(Signal::TERM, Signal::INT), (Signal::TERM, Signal::TERM)] {
        daemon.begin();
        let began = std::time::Instant::now();
        daemon.signal(first);
        std::thread::sleep(Duration::from_millis(500));
        daemon.signal(second);
        assert!(daemon.ended(), "it did not end with success");
        assert!(began.elapsed() < Duration::from_secs(5), "it waited");
    }
    for file in &files {
        std::fs::rename(away.join(file.file_name().unwrap()), file).unwrap();
    }
    daemon.launch();
    assert_kept(&daemon, end, 9);
    // A client that takes no answers would be waited for, too.
    let stalled = stalled_client(&daemon);
    write_all(&daemon, end, 10);
    let began = std::time::Instant::now();
    daemon.signal(Signal::TERM);
    std::thread::sleep(Duration::from_millis(500));
    daemon.signal(Signal::INT);
    assert!(daemon.ended(), "it did not end with success");
    assert!(began.elapsed() < Duration::from_secs(4), "it waited");
    drop(stalled);
    let log = std::fs::read_to_string(daemon.path("daemon.log")).unwrap();
    assert!(!log.contains("panicked"), "{log}");
    daemon.launch();
    assert_kept(&daemon, end, 10);
    assert_eq!(daemon.status("t")["state"], "optimal");
}

/// A connection that asks for much and takes none of it.
fn stalled_client(daemon: &Daemon) -> std::os::unix::net::UnixStream {
    use std::io::{Read, Write};
    let mut stream = std::os::unix::net::UnixStream::connect(daemon.path("nbd.sock")).unwrap();
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).unwrap();
    stream.write_all(&3u32.to_be_bytes()).unwrap(); // fixed newstyle, no zeroes
    stream.write_all(b"IHAVEOPT").unwrap();
    stream.write_all(&1u32.to_be_bytes()).unwrap(); // EXPORT_NAME
    stream.write_all(&3u32.to_be_bytes()).unwrap();
    stream.write_all(b"t/v").unwrap();
    stream.read_exact(&mut [0; 10]).unwrap();
    for cookie in 0..16u64 {
        let mut request = Vec::new();
        request.extend(0x2560_9513u32.to_be_bytes());
        request.extend([0; 4]); // no flags, READ
        request.extend(cookie.to_be_bytes());
        request.extend(0u64.to_be_bytes());
        request.extend((1u32 << 20).to_be_bytes());
        stream.write_all(&request).unwrap();
    }
    std::thread::sleep(Duration::from_millis(200));
    stream
}

/// What only the journal has is folded after an import: `status` says what volumes hold, not 0.
#[test]
fn what_the_journal_has_is_told_as_used_after_an_import() {
    let mut daemon = Daemon::start("journal-used");
    daemon.create("t", "ec4+2", 6, "64M", &[]);
    let end = 8 << 20;
    let used = |status: &serde_json::Value| {
        let of = |value: &serde_json::Value| value["used_bytes"].as_u64().unwrap();
        (of(&status["capacity"]), of(&status["volumes"][0]))
    };
    write_all(&daemon, end, 4);
    daemon.disk("t").flush().unwrap();
    daemon.kill9();
    daemon.launch();
    common::wait_until("the fold after a start", Duration::from_secs(10), || {
        let (array, volume) = used(&daemon.status("t"));
        array >= end && volume == end
    });
    write_all(&daemon, 2 * end, 5);
    daemon.disk("t").flush().unwrap();
    daemon.kill9();
    std::fs::remove_dir_all(daemon.path("state")).unwrap();
    daemon.launch();
    let dir = daemon.scratch.0.to_str().unwrap();
    let imported = daemon.json(&["import", "t", "--scan", dir, "-j"]);
    let (array, volume) = used(&imported["imported"][0]);
    assert_eq!(volume, 2 * end, "{imported}");
    assert!(array >= 2 * end, "{imported}");
    assert_eq!(used(&daemon.status("t")), (array, volume));
    assert_kept(&daemon, 2 * end, 5);
}
