//! A day of a daemon's life in minutes: volumes attached and detached, clients that come and go, clients that take no
//! answers, a log that is rotated. Afterwards memory, descriptors, threads, loop devices and mounts are as at the
//! start, and the volume that was written to all the time has every byte.
//!
//! `cargo xtask soak day` runs it whole, on the release build; the other tests run a fiftieth part of it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::disk::{Disk, pattern};
use common::{Daemon, have_kernel_devices, wait_until};
use rustix::process::Signal;

const SECOND: Duration = Duration::from_secs(1);
/// Counts of a whole day.
const ATTACHES: usize = 5_000;
const CONNECTIONS: usize = 10_000;
const STALLED: usize = 1_000;
const ROTATIONS: usize = 100;
/// Stalled clients at a time.
const AT_A_TIME: usize = 25;
/// How much more memory may be resident than at the start: caches that fill, and what an allocator keeps of what was
/// freed.
const SPARE_MEMORY: u64 = 48 << 20;
/// How much more at the end than at noon: what leaks would go on.
const AFTERNOON_MEMORY: u64 = 12 << 20;

/// What the process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Has {
    memory: u64,
    descriptors: usize,
    threads: usize,
    loops: usize,
    mounts: usize,
    state_bytes: u64,
}

impl Has {
    fn of(daemon: &Daemon) -> Has {
        let at = |name: &str| format!("/proc/{}/{name}", daemon.pid());
        let status = std::fs::read_to_string(at("status")).unwrap();
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
        let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        let count = |name: &str| std::fs::read_dir(at(name)).unwrap().count();
        let tag = format!("/ashlar:{}.", daemon.pid());
        let loops = std::fs::read_dir("/sys/block").unwrap().flatten();
        let behind = |e: &std::fs::DirEntry| {
            std::fs::read_to_string(e.path().join("loop/backing_file")).unwrap_or_default()
        };
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let folder = daemon.text("");
        let state = std::fs::read_dir(daemon.path("state")).unwrap().flatten();
        Has {
            memory: kib << 10,
            descriptors: count("fd"),
            threads: count("task"),
            loops: loops.filter(|e| behind(e).starts_with(&tag)).count(),
            mounts: mounts.lines().filter(|l| l.contains(&folder)).count(),
            state_bytes: state.map(|e| e.metadata().map_or(0, |m| m.len())).sum(),
        }
    }
}

fn exactly(stream: &mut UnixStream, length: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// An NBD client that has come as far as asking.
fn open(socket: &Path, export: &str) -> std::io::Result<UnixStream> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(30 * SECOND))?;
    exactly(&mut stream, 18)?;
    let mut bytes = 3u32.to_be_bytes().to_vec();
    bytes.extend(b"IHAVEOPT");
    bytes.extend(7u32.to_be_bytes()); // GO
    let name = u32::try_from(export.len()).unwrap();
    bytes.extend((name + 6).to_be_bytes());
    bytes.extend(name.to_be_bytes());
    bytes.extend(export.as_bytes());
    bytes.extend([0, 0]);
    stream.write_all(&bytes)?;
    loop {
        let head = exactly(&mut stream, 20)?;
        let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        exactly(&mut stream, number(16) as usize)?;
        match number(12) {
            1 => return Ok(stream),
            3 => {}
            other => return Err(std::io::Error::other(format!("reply {other:#x}"))),
        }
    }
}

fn request(kind: u16, handle: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
    bytes.extend(0u16.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(handle.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}

/// Clients that ask for 4 KiB and go: in good order, without a word, or in the middle of the greeting.
fn come_and_go(socket: &Path, count: usize) {
    for n in 0..count {
        if n % 10 == 9 {
            drop(UnixStream::connect(socket).unwrap());
            continue;
        }
        let mut stream = open(socket, "t/v").unwrap();
        stream.write_all(&request(0, 7, 4096, 4096)).unwrap();
        let answer = exactly(&mut stream, 16 + 4096).unwrap();
        assert_eq!(answer[4..8], [0; 4], "an error");
        if n % 2 == 0 {
            stream.write_all(&request(2, 0, 0, 0)).unwrap();
        }
    }
}

/// Clients that ask for much and take nothing, a few at a time, on the volume's socket and on the daemon's.
fn stall(daemon: &Daemon, count: usize) {
    for begin in (0..count).step_by(AT_A_TIME) {
        let mut stalled = Vec::new();
        for n in begin..count.min(begin + AT_A_TIME) {
            let mut stream = if n % 5 == 4 {
                let mut stream = UnixStream::connect(daemon.path("control.sock")).unwrap();
                let ask = b"GET /v1/status HTTP/1.1\r\nhost: x\r\n\r\n".repeat(50);
                stream.write_all(&ask).unwrap();
                stream
            } else {
                open(&daemon.path("nbd.sock"), "t/v").unwrap()
            };
            if n % 5 != 4 {
                for handle in 0..8 {
                    let ask = request(0, handle, (handle % 4) << 20, 1 << 20);
                    stream.write_all(&ask).unwrap();
                }
            }
            stalled.push(stream);
        }
        // Whoever does take answers gets them meanwhile.
        let began = Instant::now();
        let mut other = open(&daemon.path("nbd.sock"), "t/v").unwrap();
        other.write_all(&request(0, 1, 0, 4096)).unwrap();
        exactly(&mut other, 16 + 4096).unwrap();
        let took = began.elapsed();
        assert!(took < 10 * SECOND, "beside stalled clients: {took:?}");
        for stream in stalled {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Volumes that are served and no more, in every way there is here.
fn attach_and_detach(daemon: &Daemon, count: usize) {
    let kernel = have_kernel_devices();
    let nbd = format!("unix:{}", daemon.text("other.sock"));
    std::fs::create_dir_all(daemon.path("fuse")).unwrap();
    for n in 0..count {
        let how: &[&str] = match n % 3 {
            0 if kernel => &["--loop"],
            1 if kernel => &["--fuse", "fuse"],
            _ => &["--nbd", &nbd],
        };
        daemon.ok(&[&["volume", "attach", "t/w"], how].concat());
        daemon.ok(&["volume", "detach", "t/w"]);
    }
}

/// Rotates the log as logrotate does; each new file has its line.
fn rotate(daemon: &Daemon, count: usize) {
    for n in 0..count {
        let old = daemon.path(&format!("daemon.log.{n}"));
        std::fs::rename(daemon.path("daemon.log"), &old).unwrap();
        daemon.signal(Signal::HUP);
        wait_until("the new log", 10 * SECOND, || {
            let text = std::fs::read_to_string(daemon.path("daemon.log"));
            text.unwrap_or_default().contains("SIGHUP")
        });
        let text = std::fs::read_to_string(&old).unwrap();
        assert!(!text.contains("lines of the log were lost"), "{text}");
        std::fs::remove_file(&old).unwrap();
    }
}

/// A client that writes all the time, until it is told to stop; the seed of what it wrote last.
fn write_on(socket: &Path, stop: &AtomicBool) -> u64 {
    let disk = Disk::connect(socket, "t/v");
    let mut seed = 1;
    loop {
        let wrong = disk.write_range((0, 8 << 20), 128 << 10, 4, pattern(seed));
        assert_eq!(wrong, []);
        disk.flush().unwrap();
        if stop.load(Ordering::SeqCst) {
            return seed;
        }
        seed += 1;
        std::thread::sleep(SECOND / 20);
    }
}

#[test]
fn a_day_leaves_memory_and_descriptors_as_they_were() {
    let part = std::env::var("ASHLAR_SOAK_PART").map_or(50, |part| part.parse().unwrap());
    let daemon = Daemon::start("soak");
    daemon.create("t", "ec2+1", 4, "256M", &[]);
    // What `create` gave to the volume is everything: room for the other.
    daemon.ok(&["volume", "detach", "t/v"]);
    daemon.ok(&["volume", "destroy", "t/v", "--yes"]);
    daemon.ok(&["volume", "create", "t/v", "--size", "64M"]);
    daemon.ok(&["volume", "create", "t/w", "--size", "16M"]);
    let address = format!("unix:{}", daemon.text("nbd.sock"));
    daemon.ok(&["volume", "attach", "t/v", "--nbd", &address]);
    let (socket, stop) = (daemon.path("nbd.sock"), Arc::new(AtomicBool::new(false)));
    let writer = {
        let (socket, stop) = (socket.clone(), stop.clone());
        std::thread::spawn(move || write_on(&socket, &stop))
    };
    // What is taken once and kept is taken before the start.
    live_through(&daemon, 100);
    let settled = |daemon: &Daemon| {
        // The daemon gives memory back every 10 seconds, where clients have gone.
        std::thread::sleep(12 * SECOND);
        Has::of(daemon)
    };
    let before = settled(&daemon);
    let began = Instant::now();
    let mut said = live_through(&daemon, 2 * part);
    let noon = settled(&daemon);
    said.extend(live_through(&daemon, 2 * part));
    let took = began.elapsed();
    let mut after = settled(&daemon);
    // The kernel closes what a client has closed a moment later.
    let until = Instant::now() + 70 * SECOND;
    while (after.descriptors, after.threads) != (before.descriptors, before.threads)
        && Instant::now() < until
    {
        after = settled(&daemon);
    }
    stop.store(true, Ordering::SeqCst);
    let seed = writer.join().unwrap();
    let disk = Disk::connect(&socket, "t/v");
    let wrong = disk.compare_range((0, 8 << 20), 128 << 10, 4, pattern(seed));
    assert_eq!(wrong, [], "what was written last");
    drop(disk);
    println!("a day, 1/{part} of it, in {} s", took.as_secs());
    said.iter().for_each(|line| println!("{line}"));
    println!("{seed:>6} times 8 MiB written beside it, the last compared");
    show(&[before, noon, after]);
    assert_eq!(after.descriptors, before.descriptors);
    assert_eq!((after.loops, after.mounts), (0, 0));
    // Threads of io_uring come and go by themselves.
    assert!(after.threads <= before.threads + 4, "{after:?} {before:?}");
    assert!(after.memory < before.memory + SPARE_MEMORY, "{after:?}");
    assert!(after.memory < noon.memory + AFTERNOON_MEMORY, "{noon:?}");
    assert!(after.state_bytes < 8 << 20, "{after:?}");
    assert_eq!(daemon.ok(&["status", "-x"]), "nothing is wrong\n");
}

/// One in `part` of a day; a line for each kind of thing that happens in it.
fn live_through(daemon: &Daemon, part: usize) -> Vec<String> {
    let socket = daemon.path("nbd.sock");
    let mut said = Vec::new();
    let mut time = |what: &str, count: usize, work: &dyn Fn(usize)| {
        let count = count.div_ceil(part);
        let begun = Instant::now();
        work(count);
        let seconds = begun.elapsed().as_secs_f64();
        said.push(format!("{count:>6} {what:<34} {seconds:>7.1} s"));
    };
    time("volumes attached and detached", ATTACHES, &|n| {
        attach_and_detach(daemon, n);
    });
    time("connections", CONNECTIONS, &|n| come_and_go(&socket, n));
    time("clients that took no answers", STALLED, &|n| {
        stall(daemon, n);
    });
    time("rotations of the log", ROTATIONS, &|n| rotate(daemon, n));
    said
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// What is shown of a time of the day.
type Row = (&'static str, fn(&Has) -> String);

const ROWS: [Row; 6] = [
    ("memory", |h| mib(h.memory)),
    ("descriptors", |h| h.descriptors.to_string()),
    ("threads", |h| h.threads.to_string()),
    ("loop devices", |h| h.loops.to_string()),
    ("mounts", |h| h.mounts.to_string()),
    ("state directory", |h| mib(h.state_bytes)),
];

fn show(times: &[Has]) {
    println!(
        "{:<16} {:>12} {:>12} {:>12}",
        "", "at the start", "at noon", "at the end"
    );
    for (what, value) in ROWS {
        let values: Vec<String> = times.iter().map(|t| format!("{:>12}", value(t))).collect();
        println!("{what:<16} {}", values.join(" "));
    }
}
