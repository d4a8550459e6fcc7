//! What the kernel was given, compared with what is there: devices that somebody took away, names that are lost or
//! another's, sectors, and the space that a file shows.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use common::{Daemon, Random, have_kernel_devices, open_direct, tool, try_tool, wait_until};

const SECOND: Duration = Duration::from_secs(1);

/// An array of a name that no other test has, with a volume `v` of 16 MiB.
fn array(daemon: &Daemon, name: &str) -> String {
    let array = format!("{name}-{}", std::process::id());
    let files: Vec<String> = (0..3).map(|i| daemon.text(&format!("d{i}"))).collect();
    let mut line = vec!["create", &array, "--layout", "ec2+1", "--file-size", "64M"];
    line.extend(files.iter().map(String::as_str));
    daemon.ok(&line);
    daemon.ok(&["volume", "create", &format!("{array}/v"), "--size", "16M"]);
    array
}

/// Attaches `v` as a kernel device. The device.
fn attach(daemon: &Daemon, array: &str, more: &[&str]) -> String {
    let volume = format!("{array}/v");
    let line = [&["volume", "attach", &volume, "--loop", "-j"], more].concat();
    let reply = daemon.json(&line);
    reply["attached"]["device"].as_str().unwrap().to_string()
}

fn leads_to(name: &str) -> Option<String> {
    let to = std::fs::read_link(name).ok()?;
    Some(to.display().to_string())
}

#[test]
fn a_device_that_somebody_detached_is_said_and_its_name_goes() {
    if !have_kernel_devices() {
        return;
    }
    let daemon = Daemon::start("detached");
    let array = array(&daemon, "detached");
    let device = attach(&daemon, &array, &[]);
    let name = format!("/dev/ashlar/{array}/v");
    assert_eq!(leads_to(&name).as_ref(), Some(&device));
    tool("losetup", &["-d", &device]);
    wait_until("the name to go", 3 * SECOND, || {
        !Path::new(&name).exists() && leads_to(&name).is_none()
    });
    let status = daemon.json(&["status", "-j"]);
    let reason = status["not_served"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("losetup -d"), "{reason}");
    let line = format!("'ashlar volume attach {array}/v --loop' serves it again");
    assert!(reason.contains(&line), "{reason}");
    let told = daemon.ok(&["events", &array, "-j"]);
    assert!(
        told.lines()
            .any(|l| l.contains("\"not-served\"") && l.contains("\"error\"")),
        "{told}"
    );
    attach(&daemon, &array, &[]);
    assert!(
        daemon.json(&["status", "-j"])["not_served"]
            .as_array()
            .unwrap()
            .is_empty()
    );
    daemon.ok(&["volume", "detach", &format!("{array}/v")]);
}

#[test]
fn a_lost_name_is_made_again_and_where_it_cannot_be_the_device_serves_on() {
    if !have_kernel_devices() {
        return;
    }
    let mut daemon = Daemon::start("names");
    let array = array(&daemon, "names");
    let name = format!("/dev/ashlar/{array}/v");
    // Something else has the name: nothing is served under it.
    std::fs::create_dir_all(&name).unwrap();
    let (error, _) = daemon.fails(&["volume", "attach", &format!("{array}/v"), "--loop"]);
    assert!(
        error.contains(&name) && error.contains("not a link"),
        "{error}"
    );
    assert!(
        daemon.status(&array)["volumes"][0]["frontends"]
            .as_array()
            .unwrap()
            .is_empty()
    );
    std::fs::remove_dir(&name).unwrap();
    let device = attach(&daemon, &array, &[]);
    tool("mkfs.ext4", &["-q", "-F", &name]);
    let at = daemon.mount(&name, "mnt");
    std::fs::write(at.join("file"), b"kept").unwrap();
    std::fs::remove_file(&name).unwrap();
    wait_until("the name", 3 * SECOND, || {
        leads_to(&name).as_ref() == Some(&device)
    });
    std::fs::remove_file(&name).unwrap();
    std::fs::create_dir(&name).unwrap();
    let told = || daemon.ok(&["events", &array, "-j"]);
    wait_until("what is said of the name", 3 * SECOND, || {
        told().contains("name-lost")
    });
    let frontend = daemon.status(&array)["volumes"][0]["frontends"][0].clone();
    assert_eq!(frontend["address"], device, "where it is found now");
    rustix::fs::sync();
    common::drop_caches();
    assert_eq!(std::fs::read(at.join("file")).unwrap(), b"kept");
    std::fs::remove_dir(&name).unwrap();
    wait_until("the name again", 3 * SECOND, || {
        leads_to(&name).as_ref() == Some(&device)
    });
    assert_eq!(told().matches("name-lost").count(), 1);
    daemon.unmount(&at);
    daemon.ok(&["volume", "detach", &format!("{array}/v")]);
}

#[test]
fn a_write_of_a_small_sector_changes_nothing_beside_it() {
    if !have_kernel_devices() {
        return;
    }
    let mut daemon = Daemon::start("sectors");
    let array = array(&daemon, "sectors");
    let device = attach(&daemon, &array, &["--sector-size", "512"]);
    let size = |device: &str| tool("blockdev", &["--getss", device]).trim().to_string();
    assert_eq!(size(&device), "512");
    let mut random = Random::new(36);
    let mut model = vec![0u8; 1 << 20];
    let file = open_direct(Path::new(&device));
    let mut sector = Aligned([0; 512]);
    for _ in 0..500 {
        let at = usize::try_from(random.below(model.len() as u64 / 512)).unwrap() * 512;
        random.fill(&mut sector.0);
        file.write_all_at(&sector.0, at as u64).unwrap();
        model[at..at + 512].copy_from_slice(&sector.0);
    }
    file.sync_all().unwrap();
    drop(file);
    let compare = |device: &str| {
        let (file, mut read) = (open_direct(Path::new(device)), Aligned([0; 512]));
        for (i, sector) in model.chunks(512).enumerate() {
            file.read_exact_at(&mut read.0, i as u64 * 512).unwrap();
            assert!(read.0 == sector, "sector {i} differs");
        }
    };
    compare(&device);
    // It is so after a restart too, and shown under its own name.
    assert!(daemon.stop());
    daemon.launch();
    let name = format!("/dev/ashlar/{array}/v");
    assert_eq!(
        daemon.status(&array)["volumes"][0]["frontends"][0]["address"],
        name
    );
    let device = leads_to(&name).unwrap();
    assert_eq!(size(&device), "512");
    compare(&device);
    daemon.ok(&["volume", "detach", &format!("{array}/v"), &name]);
    let (error, code) = daemon.fails(&[
        "volume",
        "attach",
        &format!("{array}/v"),
        "--loop",
        "--sector-size",
        "1K",
    ]);
    assert!(code == 2 && error.contains("512 or 4096"), "{error}");
}

/// Memory as O_DIRECT wants it.
#[repr(align(4096))]
struct Aligned([u8; 512]);

#[test]
fn a_file_shows_the_space_its_volume_takes() {
    if !have_kernel_devices() {
        return;
    }
    let mut daemon = Daemon::start("blocks");
    let array = array(&daemon, "blocks");
    let dir = daemon.text("files");
    std::fs::create_dir(&dir).unwrap();
    daemon.ok(&["volume", "attach", &format!("{array}/v"), "--fuse", &dir]);
    let file = format!("{dir}/v");
    let blocks = || std::fs::metadata(&file).unwrap().blocks();
    assert_eq!(blocks(), 8, "empty, and yet not skipped by archivers");
    let opened = std::fs::File::options().write(true).open(&file).unwrap();
    opened.write_all_at(&vec![7; 8 << 20], 0).unwrap();
    opened.sync_all().unwrap();
    drop(opened);
    // An import counts what only the journal had.
    daemon.kill9();
    daemon.launch();
    wait_until("the space that was written", 60 * SECOND, || {
        (15_000..=20_000).contains(&blocks())
    });
    // Unmounted by somebody: said, and served again when asked for.
    assert!(try_tool("umount", &[&file]).status.success());
    let gone = || {
        daemon.json(&["status", "-j"])["not_served"][0]["reason"]
            .as_str()
            .unwrap_or_default()
            .to_string()
    };
    wait_until("what is said of the mount", 3 * SECOND, || {
        gone().contains("unmounted")
    });
    assert!(gone().contains(&format!("--fuse {dir}")), "{}", gone());
    daemon.ok(&["volume", "attach", &format!("{array}/v"), "--fuse", &dir]);
    daemon.ok(&["volume", "detach", &format!("{array}/v")]);
}

/// Whoever has a file system of a volume mounted is told so at once, with the mount point and the command.
#[test]
fn a_mount_is_named_at_once_by_whatever_it_stops() {
    if !have_kernel_devices() {
        return;
    }
    let mut daemon = Daemon::start("mounted");
    let array = array(&daemon, "mounted");
    let device = attach(&daemon, &array, &[]);
    tool("mkfs.ext4", &["-q", "-F", &device]);
    let at = daemon.mount(&device, "mnt");
    for line in [
        &["volume", "detach", &format!("{array}/v")][..],
        &["export", &array],
        &["destroy", &array, "--yes"],
    ] {
        let asked = std::time::Instant::now();
        let (error, code) = daemon.fails(line);
        assert!(asked.elapsed() < SECOND, "{:?}: {error}", asked.elapsed());
        let umount = format!("'umount {}'", at.display());
        let mounted = format!("is in use: mounted at {}", at.display());
        assert!(
            code == 1 && error.contains(&umount) && error.contains(&mounted),
            "{error}"
        );
    }
    daemon.unmount(&at);
    daemon.ok(&["export", &array]);
}

/// It is not the operator who detached a device that went when its last user closed it.
#[test]
fn a_program_that_has_a_device_open_is_named_and_nobody_else_blamed() {
    if !have_kernel_devices() {
        return;
    }
    let daemon = Daemon::start("open");
    let array = array(&daemon, "open");
    let device = attach(&daemon, &array, &[]);
    let open = std::fs::File::open(&device).unwrap();
    let (error, code) = daemon.fails(&["export", &array]);
    let who = format!("process {} (", std::process::id());
    assert!(
        code == 1 && error.contains(&who) && error.contains(&device),
        "{error}"
    );
    drop(open);
    wait_until("its end to be told", 5 * SECOND, || {
        !daemon.json(&["status", "-j"])["not_served"]
            .as_array()
            .unwrap()
            .is_empty()
    });
    let told = daemon.ok(&["events", &array]);
    assert!(
        told.contains("was to be detached") && !told.contains("losetup"),
        "{told}"
    );
    daemon.ok(&["export", &array]);
}

/// What its clients wrote last has nowhere to go: that is said, and the array is let go.
#[test]
fn an_array_that_has_stopped_is_exported_at_once() {
    if !have_kernel_devices() {
        return;
    }
    let daemon = Daemon::start("stopped");
    let array = array(&daemon, "stopped");
    let device = attach(&daemon, &array, &[]);
    for (index, force) in [("0", ""), ("1", "-f"), ("2", "-f")] {
        let line = ["fail", &array, index, force];
        daemon.ok(&line[..line.len() - usize::from(force.is_empty())]);
    }
    wait_until("the array to stop", 10 * SECOND, || {
        daemon.status(&array)["service"] == "stopped"
    });
    // In the kernel's memory only.
    let file = std::fs::File::options().write(true).open(&device).unwrap();
    file.write_all_at(&[7; 4096], 0).unwrap();
    drop(file);
    let output = daemon.run(&["export", &array]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("could not be kept"), "{said}");
    assert!(!Path::new(&format!("/dev/ashlar/{array}/v")).exists());
    let told = daemon.ok(&["events", &array]);
    assert!(told.contains("writes-lost"), "{told}");
    assert!(!told.contains("losetup"), "{told}");
}

/// A dead daemon's device that is mounted is told of, and goes with its mount.
#[test]
fn a_dead_daemons_device_goes_when_it_is_unmounted() {
    if !have_kernel_devices() {
        return;
    }
    let mut daemon = Daemon::start("deadmount");
    let array = array(&daemon, "deadmount");
    let device = attach(&daemon, &array, &[]);
    tool("mkfs.ext4", &["-q", "-F", &device]);
    let at = daemon.mount(&device, "mnt");
    let number = device.rsplit('/').next().unwrap();
    let backing = format!("/sys/block/{number}/loop/backing_file");
    let before = std::fs::read_to_string(&backing).unwrap();
    daemon.kill9();
    daemon.launch();
    let log = std::fs::read_to_string(daemon.path("daemon.log")).unwrap();
    let line = format!("still mounted at {}", at.display());
    assert!(log.contains(&line) && log.contains("'umount "), "{log}");
    daemon.unmount(&at);
    wait_until("the device to go", 5 * SECOND, || {
        std::fs::read_to_string(&backing).map_or(true, |now| now != before)
    });
    daemon.ok(&["export", &array]);
}
