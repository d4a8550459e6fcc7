//! Power cuts of the whole program: its members lie on a FUSE file system of this test, which forgets
//! or tears, at 512 bytes, what was not flushed; ext4 on a loop device on top. Twenty rounds: files are
//! written and synced, the daemon is killed, the power goes, the daemon starts again, the file system
//! is clean and every synced file is there.
//!
//! Invariants: a write that a member acknowledged is undone only if no flush of that member ended
//! after it; damage at rest hits one member only, so that it stays within M.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use ashlar_rt::{Buf, MILLISECOND, Rt, Slice};
use ashlar_serve::fuse::{FuseMount, Place};
use ashlar_serve::{Extent, Fut, Volume, VolumeError, VolumeInfo};
use common::{Daemon, Random, Scratch, have, have_kernel_devices, tool, try_tool};

/// What a power cut keeps or loses as a whole.
const UNIT: usize = 512;
const MEMBER_BYTES: usize = 80 << 20;

/// A write that the power may still undo.
struct Pending {
    offset: usize,
    old: Vec<u8>,
    new: Vec<u8>,
}

/// What a member holds.
struct Content {
    bytes: Vec<u8>,
    pending: Vec<Pending>,
}

impl Content {
    fn write(&mut self, offset: usize, new: &[u8], durable: bool) {
        let place = offset..offset + new.len();
        if durable {
            // Only this write becomes durable: what it covers of older ones is settled with it.
            for older in &mut self.pending {
                let (from, to) = (offset.max(older.offset), place.end);
                let to = to.min(older.offset + older.new.len());
                if from < to {
                    let inside = from - older.offset..to - older.offset;
                    older.old[inside.clone()].copy_from_slice(&new[from - offset..to - offset]);
                    older.new[inside].copy_from_slice(&new[from - offset..to - offset]);
                }
            }
        } else {
            self.pending.push(Pending {
                offset,
                old: self.bytes[place.clone()].to_vec(),
                new: new.to_vec(),
            });
        }
        self.bytes[place].copy_from_slice(new);
    }

    /// The power goes: `percent` of the units that were not flushed remain. How many were lost.
    fn cut(&mut self, random: &mut Random, percent: u64) -> usize {
        for write in self.pending.iter().rev() {
            let place = write.offset..write.offset + write.old.len();
            self.bytes[place].copy_from_slice(&write.old);
        }
        let mut lost = 0;
        for write in std::mem::take(&mut self.pending) {
            for (number, unit) in write.new.chunks(UNIT).enumerate() {
                if random.below(100) < percent {
                    let at = write.offset + number * UNIT;
                    self.bytes[at..at + unit.len()].copy_from_slice(unit);
                } else {
                    lost += 1;
                }
            }
        }
        lost
    }

    /// Damage at rest: noise in `count` blocks.
    fn rot(&mut self, random: &mut Random, count: usize) {
        for _ in 0..count {
            let block = random.below((MEMBER_BYTES / 4096) as u64);
            let at = usize::try_from(block).unwrap() * 4096;
            random.fill(&mut self.bytes[at..at + 4096]);
        }
    }
}

#[derive(Clone)]
struct Member(Arc<Mutex<Content>>);

impl Member {
    fn new() -> Member {
        Member(Arc::new(Mutex::new(Content {
            bytes: vec![0; MEMBER_BYTES],
            pending: Vec::new(),
        })))
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.0.lock().unwrap()
    }

    fn change(&self, offset: u64, new: &[u8], durable: bool) -> Result<(), VolumeError> {
        if !self.info().contains(offset, new.len() as u64) {
            return Err(VolumeError::OutOfRange);
        }
        let offset = usize::try_from(offset).unwrap();
        self.content().write(offset, new, durable);
        Ok(())
    }
}

/// Completes at once.
fn at_once<T: 'static>(value: T) -> Fut<T> {
    Box::pin(std::future::ready(value))
}

impl Volume for Member {
    fn info(&self) -> VolumeInfo {
        VolumeInfo {
            size_bytes: MEMBER_BYTES as u64,
            block_bytes: 4096,
            optimal_bytes: 1 << 20,
            read_only: false,
            write_cache: true,
        }
    }

    fn read(&self, offset: u64, length: usize) -> Fut<Result<Buf, VolumeError>> {
        if !self.info().contains(offset, length as u64) {
            return at_once(Err(VolumeError::OutOfRange));
        }
        let from = usize::try_from(offset).unwrap();
        at_once(Ok(Buf::copy_of(&self.content().bytes[from..from + length])))
    }

    fn write(&self, offset: u64, data: Slice, durable: bool) -> Fut<Result<(), VolumeError>> {
        at_once(self.change(offset, &data, durable))
    }

    fn flush(&self) -> Fut<Result<(), VolumeError>> {
        self.content().pending.clear();
        at_once(Ok(()))
    }

    fn trim(&self, offset: u64, length: u64, durable: bool) -> Fut<Result<(), VolumeError>> {
        self.write_zeroes(offset, length, durable, true)
    }

    fn write_zeroes(
        &self,
        at: u64,
        len: u64,
        durable: bool,
        _: bool,
    ) -> Fut<Result<(), VolumeError>> {
        let zeros = vec![0; usize::try_from(len).unwrap()];
        at_once(self.change(at, &zeros, durable))
    }

    fn block_status(&self, _: u64, length: u64, _: usize) -> Fut<Result<Vec<Extent>, VolumeError>> {
        at_once(Ok(vec![Extent {
            length,
            hole: false,
        }]))
    }
}

/// Members served as files by a thread of their own, until dropped.
struct Members {
    all: Vec<Member>,
    files: Vec<PathBuf>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
    _scratch: Scratch,
}

impl Members {
    fn start(count: usize) -> Members {
        let scratch = Scratch::new("members");
        let all: Vec<Member> = (0..count).map(|_| Member::new()).collect();
        let files: Vec<PathBuf> = (0..count)
            .map(|i| scratch.path(&format!("member{i}")))
            .collect();
        let stop = Arc::new(AtomicBool::new(false));
        let ready = Arc::new(AtomicBool::new(false));
        let thread = {
            let (all, files) = (all.clone(), files.clone());
            let (stop, ready) = (stop.clone(), ready.clone());
            std::thread::spawn(move || serve(all, files, &stop, &ready))
        };
        common::wait_until("the members", Duration::from_secs(20), || {
            ready.load(Ordering::SeqCst)
        });
        Members {
            all,
            files,
            stop,
            thread: Some(thread),
            _scratch: scratch,
        }
    }
}

fn serve(all: Vec<Member>, files: Vec<PathBuf>, stop: &AtomicBool, ready: &AtomicBool) {
    let rt = Rt::start().unwrap();
    let mut mounts = Vec::new();
    for (member, file) in all.into_iter().zip(files) {
        let handle = rt.clone();
        let starting =
            async move { FuseMount::start(&handle, Rc::new(member), Place::File(file)).await };
        mounts.push(rt.block_on(starting).unwrap());
    }
    ready.store(true, Ordering::SeqCst);
    let handle = rt.clone();
    while !stop.load(Ordering::SeqCst) {
        let handle = handle.clone();
        rt.block_on(async move { handle.sleep(20 * MILLISECOND).await });
    }
    for mount in mounts {
        let handle = handle.clone();
        rt.block_on(async move {
            // Whoever had the file open may take a moment to let it go.
            for _ in 0..100 {
                if mount.unmount().await.is_ok() {
                    return;
                }
                handle.sleep(50 * MILLISECOND).await;
            }
            mount.abort().await;
        });
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What a file held when it was last synced: the seed of its bytes, and how many.
type Synced = BTreeMap<String, (u64, usize)>;

fn bytes_of(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Random::new(seed).fill(&mut bytes);
    bytes
}

/// Writes and syncs files, old ones too, until writing fails; then what was synced. A file that was
/// being written at the end may be anything.
fn write_files(at: &Path, mut synced: Synced, seed: u64) -> Synced {
    let mut random = Random::new(seed);
    for number in 0.. {
        let name = format!("f{}", random.below(60));
        let (content, length) = (seed * 1_000_000 + number, random.below(200_000));
        let length = usize::try_from(length).unwrap();
        // Until it is synced anew it may be either: it is compared only after.
        synced.remove(&name);
        let written = (|| {
            // A new file under another name, synced, then renamed: the way programs do it.
            let fresh = at.join(format!("{name}.new"));
            let mut file = std::fs::File::create(&fresh)?;
            file.write_all(&bytes_of(content, length))?;
            file.sync_all()?;
            std::fs::rename(&fresh, at.join(&name))?;
            std::fs::File::open(at)?.sync_all()
        })();
        if written.is_err() {
            return synced; // the power is gone
        }
        synced.insert(name, (content, length));
    }
    synced
}

fn compare(at: &Path, synced: &Synced, round: u64) {
    for (name, (seed, length)) in synced {
        let read = std::fs::read(at.join(name));
        let read = read.unwrap_or_else(|e| panic!("round {round}: {name} was synced: {e}"));
        assert!(
            read == bytes_of(*seed, *length),
            "round {round}: {name} is not what was synced"
        );
    }
}

#[test]
fn a_member_forgets_what_was_not_flushed_and_nothing_else() {
    let member = Member::new();
    let mut random = Random::new(1);
    member.change(0, &[1; 4096], false).unwrap();
    drop(member.flush());
    member.change(0, &[2; 4096], false).unwrap();
    member.change(8192, &[3; 512], true).unwrap();
    assert_eq!(member.content().cut(&mut random, 0), 8);
    assert!(member.content().bytes[..4096].iter().all(|b| *b == 1));
    assert_eq!(member.content().bytes[8192..8704], [3; 512]);
    member.change(0, &[4; 4096], false).unwrap();
    assert_eq!(member.content().cut(&mut random, 100), 0);
    assert!(member.content().bytes[..4096].iter().all(|b| *b == 4));
}

#[test]
fn twenty_power_cuts_keep_every_synced_file() {
    if !have(&["mkfs.ext4", "fsck.ext4"]) || !have_kernel_devices() {
        return;
    }
    let members = Members::start(4);
    let mut daemon = Daemon::with("power", &["--memory", "256M"]);
    let array = format!("power-{}", std::process::id());
    let mut line = vec![
        "create", &array, "--layout", "ec2+1", "--volume", "v", "--attach", "loop",
    ];
    line.extend(members.files.iter().map(|file| file.to_str().unwrap()));
    daemon.ok(&line);
    let device = format!("/dev/ashlar/{array}/v");
    tool("mkfs.ext4", &["-q", "-F", &device]);
    let mut random = Random::new(0x90E4);
    let mut synced = Synced::new();
    let (mut lost, mut written) = (0, 0);
    for round in 0..20 {
        let at = daemon.mount(&device, "mnt");
        compare(&at, &synced, round);
        let writer = {
            let (at, synced) = (at.clone(), synced.clone());
            std::thread::spawn(move || write_files(&at, synced, round + 1))
        };
        std::thread::sleep(Duration::from_millis(200 + random.below(900)));
        daemon.kill9();
        // The power: what the daemon had submitted reaches the members, or not.
        for (number, member) in members.all.iter().enumerate() {
            let percent = [0, 10, 50, 90, 100][usize::try_from(random.below(5)).unwrap()];
            let mut content = member.content();
            lost += content.cut(&mut random, percent);
            if number == 0 && round % 3 == 2 {
                content.rot(&mut random, 300);
            }
        }
        let before = synced.len();
        synced = writer.join().unwrap();
        written += synced.len().abs_diff(before) + 1;
        common::wait_until("unmounting", Duration::from_secs(30), || {
            try_tool("umount", &[at.to_str().unwrap()]).status.success()
                || !std::fs::read_to_string("/proc/self/mounts")
                    .unwrap()
                    .contains(at.to_str().unwrap())
        });
        daemon.launch();
        wait_for_volume(&daemon, &array, &device);
        // The file system replays its own journal; then it must be clean, and all synced files there.
        let at = daemon.mount(&device, "mnt");
        compare(&at, &synced, round);
        daemon.unmount(&at);
        tool("fsck.ext4", &["-f", "-n", &device]);
    }
    assert!(lost > 0, "no power cut took anything back");
    assert!(written > 20, "hardly anything was written");
    daemon.ok(&["volume", "detach", &format!("{array}/v")]);
    daemon.ok(&["export", &array]);
    assert!(daemon.stop());
}

/// Waits until the array serves its volume again.
fn wait_for_volume(daemon: &Daemon, array: &str, device: &str) {
    let begun = Instant::now();
    while !Path::new(device).exists() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{device} does not come back: {}",
            daemon.run(&["status", array]).status
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}
