//! One host at a time uses an array (R18): the beat of another host, written into the files as that host would.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ashlar_format::beat::Beat;
use ashlar_format::superblock::Superblock;
use common::{Daemon, open_direct};

const MIB: u64 = 1 << 20;

/// Another host, that used an array and did not export it. Its fence makes the watch as short as it can be: 36 s.
fn other(machine: [u8; 16]) -> Beat {
    Beat {
        counter: 1,
        in_use: true,
        boot: [0xb0; 16],
        machine,
        instance: [0x1d; 16],
        fence_ms: 1_000,
        host: "other-host".into(),
    }
}

/// The block of a host on the devices of an array.
fn write_beat(files: &[impl AsRef<Path>], beat: &Beat) {
    for file in files {
        let file = open_direct(file.as_ref());
        let mut first = ashlar_rt::Buf::zeroed(64 << 10);
        file.read_exact_at(&mut first, 0).unwrap();
        let bytes = Superblock::encoded_bytes(&first).unwrap();
        let superblock = Superblock::decode(&first[..bytes]).unwrap();
        let block = ashlar_rt::Buf::copy_of(&beat.encode(&superblock.array));
        let at = superblock.geometry.beat_offset();
        file.write_all_at(&block, at).unwrap();
    }
}

/// An array with data whose daemon was killed, and that has been used by this host since.
fn used_by(name: &str, host: &Beat) -> (Daemon, Vec<String>) {
    let mut daemon = Daemon::start(name);
    let files = daemon.create_served("ec2+1", 4);
    daemon.write(8 * MIB, 1);
    daemon.kill9();
    write_beat(&files, host);
    (daemon, files)
}

#[test]
fn an_array_that_another_host_uses_is_refused_whatever_is_asked() {
    let (mut daemon, files) = used_by("beat-moves", &other([0xcc; 16]));
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut beat = other([0xcc; 16]);
            while !ends.load(Ordering::Relaxed) {
                beat.counter += 1;
                write_beat(&files, &beat);
                std::thread::sleep(Duration::from_millis(300));
            }
        });
        daemon.launch();
        let folder = daemon.text("");
        let lines: [&[&str]; 4] = [
            &["import", "t", "--scan", &folder],
            &["import", "t", "--scan", &folder, "-f"],
            &["import", "t", "--scan", &folder, "--read-only"],
            &["import", "--incremental", &files[0]],
        ];
        let begun = Instant::now();
        for line in lines {
            let (said, code) = daemon.fails(line);
            assert!(said.contains("host other-host uses it"), "{said}");
            assert_eq!(code, 1, "{said}");
        }
        let took = begun.elapsed();
        ends.store(true, Ordering::Relaxed);
        assert!(took < Duration::from_secs(20), "{took:?}");
        let events = daemon.ok(&["events"]);
        assert!(
            events.contains("not imported") && events.contains("other-host"),
            "{events}"
        );
    });

    // The other host is off now. Whether it is nobody here can know; other arrays do not wait for that.
    let waits = std::thread::scope(|scope| {
        let import = scope.spawn(|| daemon.fails(&["import", "t", "--scan", "."]));
        std::thread::sleep(Duration::from_secs(2));
        let begun = Instant::now();
        daemon.ok(&[
            "create",
            "u",
            "--layout",
            "raid1",
            "--file-size",
            "64M",
            "u-0.img",
            "u-1.img",
        ]);
        assert!(begun.elapsed() < Duration::from_secs(20) && !import.is_finished());
        import.join().unwrap()
    });
    let (said, code) = waits;
    assert!(
        said.contains("other-host") && said.contains("ashlar import t -f") && code == 1,
        "{said}"
    );
}

#[test]
fn a_host_that_is_off_is_followed_by_the_operators_word() {
    let (mut daemon, _files) = used_by("beat-off", &other([0xcc; 16]));
    daemon.launch();
    daemon.ok(&["import", "t", "--scan", ".", "-f"]);
    daemon.read(8 * MIB, 1);
    daemon.write(8 * MIB, 2);
    daemon.ok(&["export", "t"]);
    let begun = Instant::now();
    daemon.ok(&["import", "t", "--scan", "."]);
    assert!(begun.elapsed() < Duration::from_secs(10), "it was exported");
    daemon.read(8 * MIB, 2);
}

#[test]
fn an_earlier_boot_of_this_machine_is_followed_after_ten_seconds() {
    let text = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let Ok(machine) = u128::from_str_radix(text.trim(), 16) else {
        return; // a machine without an identity is another one each time
    };
    let uname = rustix::system::uname();
    let before = Beat {
        host: uname.nodename().to_string_lossy().into_owned(),
        ..other(machine.to_be_bytes())
    };
    let (mut daemon, _files) = used_by("beat-boot", &before);
    daemon.launch();
    common::wait_until("the import", Duration::from_secs(60), || {
        daemon.run(&["status", "t"]).status.success() && daemon.status("t")["state"] == "optimal"
    });
    daemon.read(8 * MIB, 1);
}
