//! A volume as a file and as a loop device, through the real kernel. Needs root and `/dev/fuse`;
//! where they are missing each test says so and checks nothing.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};

use ashlar_rt::{OneshotReceiver, Rt, SECOND, oneshot};
use ashlar_serve::fuse::{FuseError, FuseMount, Place};
use ashlar_serve::loopdev::{LoopAttachment, LoopError, clear_stale, file_name};
use ashlar_serve::{MemVolume, Volume};

/// Tests with loop devices go one after another: one of them clears what it finds dead.
static LOOPS: Mutex<()> = Mutex::new(());

/// Why this machine cannot run these tests.
fn missing(needs_loop: bool) -> Option<&'static str> {
    let is_root = fs::metadata("/proc/self").is_ok_and(|found| found.uid() == 0);
    let open = |path: &str| OpenOptions::new().read(true).write(true).open(path).is_ok();
    match () {
        () if !is_root && needs_loop => Some("not root"),
        () if !is_root && run("fusermount3", &["--version"]) != Some(true) => {
            Some("not root, and fusermount3 is not installed")
        }
        () if is_root && !open("/dev/fuse") => Some("/dev/fuse cannot be opened"),
        () if needs_loop && !open("/dev/loop-control") => {
            Some("/dev/loop-control cannot be opened")
        }
        () => None,
    }
}

/// Runs `work` on another thread, as whoever uses the file must.
fn elsewhere<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> OneshotReceiver<T> {
    let (reply, result) = oneshot();
    std::thread::spawn(move || reply.send(work()));
    result
}

fn scratch(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("ashlar-{name}-{}", std::process::id()));
    fs::create_dir(&path).unwrap();
    path
}

fn run(command: &str, arguments: &[&str]) -> Option<bool> {
    let output = Command::new(command).args(arguments).output().ok()?;
    if !output.status.success() {
        eprintln!(
            "{command} {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Some(output.status.success())
}

#[test]
fn a_copy_of_the_mount_in_another_namespace_does_not_keep_it() {
    if let Some(why) = missing(true) {
        return eprintln!("SKIPPED: {why}");
    }
    let rt = Rt::start().unwrap();
    let handle = rt.clone();
    rt.block_on(async move {
        let directory = scratch("copied");
        let path = directory.join("disk");
        let volume = Rc::new(MemVolume::new(1 << 20));
        let mount = FuseMount::start(&handle, volume.clone(), Place::File(path.clone()))
            .await
            .unwrap();
        let mut holder = Command::new("unshare")
            .args(["-m", "--propagation", "private", "sleep", "60"])
            .spawn()
            .unwrap();
        let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/mnt")).ok();
        let pid = holder.id().to_string();
        let is = format!("/proc/{pid}/comm");
        while namespace(&pid) == namespace("self")
            || fs::read_to_string(&is).is_ok_and(|name| name.trim() != "sleep")
        {
            handle.sleep(SECOND / 100).await;
        }
        let began = handle.now();
        let unmounted = handle.timeout(20 * SECOND, mount.unmount()).await;
        let took = handle.now() - began;
        holder.kill().unwrap();
        holder.wait().unwrap();
        unmounted.unwrap().unwrap();
        assert!(took < 5 * SECOND, "unmounting took {took} ns");
        assert!(mount.has_ended() && !path.exists());
        drop(mount);
        assert_eq!(Rc::strong_count(&volume), 1);
        fs::remove_dir(directory).unwrap();
    });
}

#[test]
fn a_mounted_file_is_the_volume() {
    if let Some(why) = missing(false) {
        return eprintln!("SKIPPED: {why}");
    }
    let rt = Rt::start().unwrap();
    let handle = rt.clone();
    rt.block_on(async move {
        let directory = scratch("file");
        let path = directory.join("disk");
        let volume = Rc::new(MemVolume::new(64 << 20));
        let place = Place::File(path.clone());
        let mount = FuseMount::start(&handle, volume.clone(), place)
            .await
            .unwrap();
        let open = mount.path().to_owned();
        let held = elsewhere(move || {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .open(&open)
                .unwrap();
            assert_eq!(file.metadata().unwrap().len(), 64 << 20);
            let pattern: Vec<u8> = (0..3_000_000u32).map(|n| (n * 7 / 8) as u8).collect();
            file.write_all_at(&pattern, 12_345).unwrap();
            let mut back = vec![0; pattern.len()];
            file.read_exact_at(&mut back, 12_345).unwrap();
            assert!(back == pattern);
            file.sync_all().unwrap();
            let end = file.write_at(&[1; 8], (64 << 20) - 4);
            assert_eq!(
                end.unwrap_err().raw_os_error(),
                Some(28),
                "beyond the end: no space"
            );
            let mut last = [1; 8];
            assert_eq!(file.read_at(&mut last, (64 << 20) - 4).unwrap(), 4);
            assert!(file.set_len(1).is_err(), "the size is the volume's");
            file
        })
        .await
        .unwrap();
        assert!(volume.counters().flushes >= 1, "fsync is a flush");
        assert!(volume.read(12_345, 8).await.unwrap()[..] != [0; 8]);
        assert!(matches!(mount.unmount().await, Err(FuseError::Busy)));
        let held = elsewhere(move || drop(held)).await;
        assert!(held.is_some());
        mount.unmount().await.unwrap();
        assert!(mount.has_ended());
        assert!(!path.exists(), "the mount point was made, and is removed");
        drop(mount);
        assert_eq!(
            Rc::strong_count(&volume),
            1,
            "nothing of the session is left"
        );
        fs::remove_dir(&directory).unwrap();
    });
}

#[test]
fn an_aborted_file_fails_and_hangs_nobody() {
    if let Some(why) = missing(false) {
        return eprintln!("SKIPPED: {why}");
    }
    let rt = Rt::start().unwrap();
    let handle = rt.clone();
    rt.block_on(async move {
        let directory = scratch("abort");
        let path = directory.join("disk");
        fs::write(&path, b"was here").unwrap();
        let volume = Rc::new(MemVolume::new(1 << 20));
        let place = Place::File(path.clone());
        let mount = FuseMount::start(&handle, volume, place).await.unwrap();
        let open = mount.path().to_owned();
        let file = elsewhere(move || File::open(open).unwrap()).await.unwrap();
        mount.abort().await;
        drop(mount);
        let read = elsewhere(move || file.read_at(&mut [0; 8], 0))
            .await
            .unwrap();
        assert!(read.is_err());
        assert_eq!(
            fs::read(&path).unwrap(),
            b"was here",
            "what was covered is back"
        );
        fs::remove_dir_all(&directory).unwrap();
    });
}

/// Formats, fills, checks; what happens on the loop device's side.
fn use_file_system(device: &Path, directory: &Path) -> Result<(), &'static str> {
    let device = device.to_str().unwrap();
    let point = directory.join("mounted");
    let point_text = point.to_str().unwrap();
    match run("mkfs.ext4", &["-q", "-F", device]) {
        None => return Err("mkfs.ext4 is not installed"),
        Some(done) => assert!(done),
    }
    fs::create_dir(&point).unwrap();
    assert_eq!(run("mount", &[device, point_text]), Some(true));
    let pattern: Vec<u8> = (0..20_000_000u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    fs::write(point.join("file"), &pattern).unwrap();
    File::open(point.join("file")).unwrap().sync_all().unwrap();
    assert_eq!(run("umount", &[point_text]), Some(true));
    assert_eq!(run("mount", &[device, point_text]), Some(true));
    assert!(fs::read(point.join("file")).unwrap() == pattern);
    fs::remove_file(point.join("file")).unwrap();
    run("fstrim", &[point_text]);
    Ok(())
}

#[test]
fn a_file_system_on_a_loop_device_keeps_its_files() {
    let _one_at_a_time = LOOPS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(why) = missing(true) {
        return eprintln!("SKIPPED: {why}");
    }
    let rt = Rt::start().unwrap();
    let handle = rt.clone();
    rt.block_on(async move {
        let directory = scratch("loop");
        let volume = Rc::new(MemVolume::new(256 << 20));
        let mount = match FuseMount::start(&handle, volume.clone(), Place::Hidden(file_name("t/v")))
            .await
        {
            Ok(mount) => mount,
            Err(error) => return eprintln!("SKIPPED: {error}"),
        };
        let attached = match LoopAttachment::attach(&mount, "test/volume", false).await {
            Ok(attached) => attached,
            Err(LoopError::NoDevice(error)) => {
                return eprintln!("SKIPPED: no loop device: {error}");
            }
            Err(error) => panic!("{error}"),
        };
        assert!(
            clear_stale()
                .await
                .iter()
                .all(|(d, _)| d != attached.device()),
            "it is alive"
        );
        let number = attached.device().file_name().unwrap().to_str().unwrap();
        let ahead = fs::read_to_string(format!("/sys/block/{number}/queue/read_ahead_kb")).unwrap();
        assert_eq!(ahead.trim(), "1024", "KiB read ahead");
        let (device, place) = (attached.device().to_owned(), directory.clone());
        let used = elsewhere(move || use_file_system(&device, &place))
            .await
            .unwrap();
        if let Err(why) = used {
            eprintln!("SKIPPED: {why}");
        } else {
            let counters = volume.counters();
            assert!(
                counters.flushes > 0,
                "a flush of the device reaches the volume"
            );
            assert!(
                counters.trims > 0,
                "a discard of the device reaches the volume"
            );
            assert!(matches!(attached.detach(false).await, Err(LoopError::Busy)));
            let point = directory.join("mounted");
            let point_text = point.to_str().unwrap().to_owned();
            let unmounted = elsewhere(move || run("umount", &[&point_text]))
                .await
                .unwrap();
            assert_eq!(unmounted, Some(true));
            let device = attached.device().to_str().unwrap().to_owned();
            let checked = elsewhere(move || run("e2fsck", &["-fn", &device]))
                .await
                .unwrap();
            assert_eq!(checked, Some(true));
        }
        attached.detach(false).await.unwrap();
        attached.detach(false).await.unwrap(); // a second time changes nothing
        mount.unmount().await.unwrap();
        drop(mount);
        assert_eq!(Rc::strong_count(&volume), 1);
        fs::remove_dir_all(&directory).unwrap();
    });
}

#[test]
fn a_loop_device_whose_volume_died_is_found_and_cleared() {
    let _one_at_a_time = LOOPS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(why) = missing(true) {
        return eprintln!("SKIPPED: {why}");
    }
    let rt = Rt::start().unwrap();
    let handle = rt.clone();
    rt.block_on(async move {
        let volume = Rc::new(MemVolume::new(8 << 20));
        let mount = match FuseMount::start(&handle, volume, Place::Hidden(file_name("t/v"))).await {
            Ok(mount) => mount,
            Err(error) => return eprintln!("SKIPPED: {error}"),
        };
        let attached = match LoopAttachment::attach(&mount, "test/stale", false).await {
            Ok(attached) => attached,
            Err(LoopError::NoDevice(error)) => {
                return eprintln!("SKIPPED: no loop device: {error}");
            }
            Err(error) => panic!("{error}"),
        };
        mount.abort().await;
        drop(mount);
        assert!(
            clear_stale()
                .await
                .iter()
                .any(|(device, gone)| device == attached.device() && *gone)
        );
        attached.detach(false).await.unwrap();
    });
}
