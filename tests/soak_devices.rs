//! Devices that are lost, return, are replaced, added and drained, one step after another, under a file system that is
//! written and verified all the time: not one wrong or lost byte.
//!
//! `cargo xtask soak devices` runs it whole, on the release build: 41 devices, 60 % full. The other tests run it with
//! few small devices.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Daemon, Random, drop_caches, have, have_kernel_devices, tool, try_tool, wait_until};
use serde_json::Value;

const MIB: u64 = 1 << 20;
const SECOND: Duration = Duration::from_secs(1);
/// How long a step may take.
const STEP: Duration = Duration::from_secs(1_800);
/// How long a device that returned may take until the array is optimal.
const RETURN: Duration = Duration::from_secs(10);

/// What a change of members may write to a device, and read.
const EACH: u64 = 128 << 10;

/// How much of it is run.
#[derive(Clone, Copy)]
struct Scale {
    layout: &'static str,
    devices: usize,
    device_mib: u64,
    /// Devices that are added, and as many that are drained.
    more: usize,
    file_bytes: u64,
    fio_mib: u64,
    fio_rate: &'static str,
    away: Duration,
}

const WHOLE: Scale = Scale {
    layout: "grid:41(8+2+2)",
    devices: 41,
    device_mib: 160,
    more: 9,
    file_bytes: 8 * MIB,
    fio_mib: 48,
    fio_rate: "16M,4M",
    away: Duration::from_secs(60),
};

const PART: Scale = Scale {
    layout: "grid:12(4+2+2)",
    devices: 12,
    device_mib: 64,
    more: 2,
    file_bytes: MIB,
    fio_mib: 4,
    fio_rate: "16M,4M",
    away: Duration::from_secs(2),
};

/// fio on the file system: rounds that write a file and verify it, and verify it once more before it is written again.
struct Fio {
    stop: Arc<AtomicBool>,
    pause: Arc<AtomicBool>,
    idle: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    wrong: Arc<Mutex<Vec<String>>>,
    thread: std::thread::JoinHandle<()>,
}

impl Fio {
    fn start(at: &Path, scale: Scale) -> Fio {
        let (stop, pause, idle) = <(Arc<AtomicBool>, Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let (rounds, wrong) = <(Arc<AtomicU64>, Arc<Mutex<Vec<String>>>)>::default();
        let at = at.to_path_buf();
        let shared = (
            stop.clone(),
            pause.clone(),
            idle.clone(),
            rounds.clone(),
            wrong.clone(),
        );
        let thread = std::thread::spawn(move || {
            let (stop, pause, idle, rounds, wrong) = shared;
            let run = |round: u64, only: bool| {
                let output = try_tool(
                    "fio",
                    &fio(&at, scale, round, only).each_ref().map(String::as_str),
                );
                if !output.status.success() {
                    let said = [output.stdout, output.stderr].concat();
                    let said = String::from_utf8_lossy(&said).into_owned();
                    wrong.lock().unwrap().push(format!("round {round}: {said}"));
                }
            };
            for round in 0.. {
                if round >= 2 {
                    run(round - 2, true);
                }
                run(round, false);
                rounds.store(round + 1, Ordering::SeqCst);
                while pause.load(Ordering::SeqCst) && !stop.load(Ordering::SeqCst) {
                    idle.store(true, Ordering::SeqCst);
                    std::thread::sleep(SECOND / 20);
                }
                idle.store(false, Ordering::SeqCst);
                if stop.load(Ordering::SeqCst) {
                    return;
                }
            }
        });
        Fio {
            stop,
            pause,
            idle,
            rounds,
            wrong,
            thread,
        }
    }

    /// Has it begin no round more, and waits for the end of the one under way.
    fn pause(&self) {
        self.pause.store(true, Ordering::SeqCst);
        wait_until("fio to end its round", STEP, || {
            self.idle.load(Ordering::SeqCst)
        });
    }

    fn go_on(&self) {
        self.pause.store(false, Ordering::SeqCst);
    }

    fn wrong(&self) -> Vec<String> {
        self.wrong.lock().unwrap().clone()
    }

    fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::SeqCst)
    }
}

/// fio's arguments for a round: two files in turn, each round with random numbers of its own.
fn fio(at: &Path, scale: Scale, round: u64, only: bool) -> [String; 14] {
    [
        "--name=round".to_string(),
        format!(
            "--filename={}",
            at.join(format!("fio-{}", round % 2)).display()
        ),
        format!("--size={}M", scale.fio_mib),
        format!("--rate={}", scale.fio_rate),
        format!("--randseed={}", round + 1),
        format!("--verify_only={}", u8::from(only)),
        "--rw=randwrite".to_string(),
        "--bsrange=4k-64k".to_string(),
        "--direct=1".to_string(),
        "--ioengine=libaio".to_string(),
        "--iodepth=4".to_string(),
        "--verify=crc32c".to_string(),
        "--verify_fatal=1".to_string(),
        "--verify_state_save=0".to_string(),
    ]
}

/// What the array's devices have read and written, those that have left included.
#[derive(Clone, Debug, Default)]
struct Traffic {
    last: BTreeMap<String, (u64, u64)>,
    read: u64,
    written: u64,
}

impl Traffic {
    fn note(&mut self, status: &Value) {
        for device in status["devices"].as_array().unwrap() {
            let number = |name: &str| device[name].as_u64().unwrap();
            let now = (number("read_bytes"), number("written_bytes"));
            let uuid = device["uuid"].as_str().unwrap().to_string();
            let was = self.last.insert(uuid, now).unwrap_or_default();
            self.read += now.0.checked_sub(was.0).unwrap_or(now.0);
            self.written += now.1.checked_sub(was.1).unwrap_or(now.1);
        }
    }
}

/// The array under test, and what is on it.
struct Soak {
    daemon: Daemon,
    array: String,
    scale: Scale,
    at: PathBuf,
    count: u64,
    fio: Fio,
    traffic: Traffic,
    lines: Vec<String>,
    /// What `status` said in this step.
    said: Vec<String>,
}

fn content(index: u64, bytes: u64) -> Vec<u8> {
    let mut content = vec![0; usize::try_from(bytes).unwrap()];
    Random::new(index ^ 0x5eed).fill(&mut content);
    content
}

impl Soak {
    fn start(scale: Scale) -> Soak {
        let mut daemon = Daemon::with("soak-devices", &["--memory", "512M"]);
        let array = format!("soak-{}", std::process::id());
        // Two devices share a disk, which is pulled.
        let shelf = daemon.mount_memory("shelf", 2 * scale.device_mib + 16);
        let mut files: Vec<String> = (0..scale.devices).map(|i| format!("d{i}.img")).collect();
        let cable = daemon.mount_memory("cable", scale.device_mib + 16);
        std::fs::create_dir(daemon.path("copy")).unwrap();
        for (index, place) in [(4, &shelf), (5, &shelf), (7, &cable)] {
            files[index] = place.join(&files[index]).display().to_string();
        }
        let size = format!("{}M", scale.device_mib);
        let line = [
            "create",
            &array,
            "--layout",
            scale.layout,
            "--file-size",
            &size,
        ];
        let line = line
            .into_iter()
            .chain(["--volume", "v", "--attach", "loop"]);
        daemon.ok(&line
            .chain(files.iter().map(String::as_str))
            .collect::<Vec<_>>());
        let device = format!("/dev/ashlar/{array}/v");
        tool("mkfs.ext4", &["-q", "-F", &device]);
        let at = daemon.mount(&device, "mnt");
        let volume = daemon.status(&array)["volumes"][0]["size_bytes"]
            .as_u64()
            .unwrap();
        let count = (volume * 6 / 10 - 2 * scale.fio_mib * MIB) / scale.file_bytes;
        for index in 0..count {
            let mut file = std::fs::File::create(at.join(index.to_string())).unwrap();
            file.write_all(&content(index, scale.file_bytes)).unwrap();
        }
        rustix::fs::sync();
        let fio = Fio::start(&at, scale);
        let head = format!(
            "{} of {} MiB each, a volume of {} MiB, {count} files of {} MiB, fio {}",
            scale.layout,
            scale.device_mib,
            volume / MIB,
            scale.file_bytes / MIB,
            scale.fio_rate,
        );
        let mut soak = Soak {
            daemon,
            array,
            scale,
            at,
            count,
            fio,
            traffic: Traffic::default(),
            lines: vec![head],
            said: Vec::new(),
        };
        soak.status();
        soak
    }

    /// A line of the result.
    fn note(&mut self, line: &str) {
        println!("{line}");
        self.lines.push(line.to_string());
    }

    fn ok(&self, words: &str) -> String {
        let words: Vec<&str> = words
            .split(' ')
            .map(|w| if w == "@" { &*self.array } else { w })
            .collect();
        self.daemon.ok(&words)
    }

    fn status(&mut self) -> Value {
        let status = self.daemon.status(&self.array);
        self.traffic.note(&status);
        let exposed = status["exposure"].as_array().unwrap().iter();
        let exposed = exposed
            .filter(|e| e["bytes"] != 0)
            .map(|e| e["redundancy"].as_u64().unwrap());
        let state = status["state"].as_str().unwrap();
        let said = format!("{state}/{}", exposed.min().unwrap_or(0));
        if self.said.last() != Some(&said) {
            self.said.push(said);
        }
        status
    }

    /// Looks at `status` until it is as it should be.
    fn until(
        &mut self,
        limit: Duration,
        what: &str,
        mut is: impl FnMut(&Value) -> bool,
    ) -> Duration {
        let began = Instant::now();
        while !{
            let status = self.status();
            is(&status)
        } {
            assert!(
                began.elapsed() < limit,
                "{what}: {}\n{}",
                self.ok("status @ -v"),
                self.ok("events @")
            );
            std::thread::sleep(SECOND / 10);
        }
        began.elapsed()
    }

    /// Waits until nothing is to be rebuilt or moved.
    fn settled(&mut self, what: &str) {
        let mut quiet = 0;
        self.until(STEP, what, |status| {
            let done =
                status["state"] == "optimal" && !works(status, &["reconstruct", "rebalance"]);
            quiet = if done { quiet + 1 } else { 0 };
            quiet >= 5
        });
    }

    /// A step: what it does, how long that takes, what was read and written, and that every byte is there.
    fn step(&mut self, name: &str, work: impl FnOnce(&mut Soak)) {
        self.status();
        self.said.clear();
        let (began, before, rounds) = (Instant::now(), self.traffic.clone(), self.fio.rounds());
        work(self);
        self.status();
        let took = began.elapsed().as_secs_f64();
        let (read, written) = (
            self.traffic.read - before.read,
            self.traffic.written - before.written,
        );
        let said = std::mem::take(&mut self.said).join(", ");
        // The round that fio was at in the step ends with everything verified.
        wait_until("fio to end a round", STEP, || self.fio.rounds() > rounds);
        let wrong = self.wrong_files();
        let line = format!(
            "{name:<44} {took:>7.1} s {:>7} MiB read {:>7} MiB written, fio {} rounds {} errors, {wrong} files wrong; {said}",
            read / MIB,
            written / MIB,
            self.fio.rounds() - rounds,
            self.fio.wrong().len(),
        );
        self.note(&line);
        assert_eq!((self.fio.wrong(), wrong), (vec![], 0), "{name}");
    }

    /// How many files do not hold what was written.
    fn wrong_files(&self) -> usize {
        drop_caches();
        let is_wrong = |index: &u64| {
            let found = std::fs::read(self.at.join(index.to_string()));
            found.ok() != Some(content(*index, self.scale.file_bytes))
        };
        (0..self.count).filter(is_wrong).count()
    }

    /// A device is away for a while, and returns; what that cost, with no client at work.
    fn returning(&mut self, leaves: impl FnOnce(&Daemon), returns: impl FnOnce(&Daemon)) {
        leaves(&self.daemon);
        let began = Instant::now();
        self.until(SECOND * 60, "it is away", |s| s["state"] != "optimal");
        let before = self.traffic.clone();
        while began.elapsed() < self.scale.away {
            self.status();
            std::thread::sleep(SECOND / 4);
        }
        self.fio.pause();
        rustix::fs::sync();
        self.quiet();
        let meanwhile = self.traffic.written - before.written;
        let before = self.traffic.clone();
        let began = Instant::now();
        returns(&self.daemon);
        self.until(STEP, "optimal after the return", |s| {
            s["state"] == "optimal"
        });
        let took = began.elapsed();
        let read = self.traffic.read - before.read;
        let written = self.traffic.written - before.written;
        let (kept, lacking) = self.came_back();
        let status = self.status();
        let number = |name: &str| status[name].as_u64().unwrap();
        let anew = lacking * number("slot_bytes");
        let line = format!(
            "    optimal {:.1} s after the return: {kept} columns count again, {lacking} of at most {} KiB are computed \
             anew from {}; {} KiB read, {} KiB written; all devices had written {} KiB while it was away",
            took.as_secs_f64(),
            number("slot_bytes") / 1024,
            number("k"),
            read / 1024,
            written / 1024,
            meanwhile / 1024,
        );
        self.note(&line);
        self.fio.go_on();
        assert!(took < RETURN, "{took:?}");
        // A change of members has each device written; of each column that counts again the header is read.
        let change = number("devices_total") * EACH;
        assert!(written <= anew * 11 / 10 + change, "{line}");
        let (k, headers) = (number("k"), kept * 4096);
        assert!(read <= (k * anew + headers) * 11 / 10 + change, "{line}");
    }

    /// Waits until the devices are idle, or nearly so.
    fn quiet(&mut self) {
        for _ in 0..20 {
            let before = self.traffic.written;
            std::thread::sleep(2 * SECOND);
            self.status();
            if self.traffic.written == before {
                return;
            }
        }
    }

    /// How many columns of the device that came back last count again, and how many do not.
    fn came_back(&self) -> (u64, u64) {
        let events = self.ok("events @");
        let back = events.lines().rfind(|line| line.contains(" is back: "));
        let (_, said) = back.unwrap().rsplit_once(" is back: ").unwrap();
        let mut numbers = said.split(' ').filter_map(|word| word.parse().ok());
        (numbers.next().unwrap(), numbers.next().unwrap())
    }

    fn lose_one_more(&mut self, shelf: &Path) {
        self.daemon.lose(shelf);
        let gone = |s: &Value| (4..6).all(|d| s["devices"][d]["state"] != "online");
        self.until(SECOND * 60, "both are seen to be lost", gone);
        let took = self.until(STEP, "nothing is at redundancy 0", |s| {
            s["state"] != "critical"
        });
        let line = format!(
            "    nothing at redundancy 0 after {:.1} s",
            took.as_secs_f64()
        );
        self.note(&line);
        self.ok("fail @ 6");
        self.until(STEP, "nothing is at redundancy 0", |s| {
            s["state"] != "critical"
        });
        // They were pulled: they would be waited for.
        self.ok("fail @ 4");
        self.ok("fail @ 5");
        self.settled("rebuilt after two and one");
    }

    fn replace(&mut self) {
        for index in [3, 4, 5, 6, 8] {
            let new = self
                .daemon
                .blank(&format!("n{index}.img"), self.scale.device_mib * MIB);
            self.ok(&format!("replace @ {index} {new}"));
            self.settled("replaced");
        }
        let devices = self.scale.devices as u64;
        self.until(STEP, "the old one has left", |s| {
            s["devices_total"] == devices
        });
    }

    fn grow(&mut self) {
        let size = self.scale.device_mib * MIB;
        let new: Vec<String> = (0..self.scale.more)
            .map(|i| self.daemon.blank(&format!("m{i}.img"), size))
            .collect();
        self.ok(&format!("add @ {}", new.join(" ")));
        self.settled("moved to the new ones");
    }

    fn drain(&mut self) {
        for index in 10..10 + self.scale.more {
            self.ok(&format!("remove @ {index}"));
        }
        let devices = self.scale.devices as u64;
        self.until(STEP, "they have left", |s| s["devices_total"] == devices);
        self.settled("drained");
    }

    /// Everything stops; the file system and the array are looked at by others.
    fn end(mut self) -> Vec<String> {
        self.fio.stop.store(true, Ordering::SeqCst);
        let rounds = self.fio.rounds.clone();
        self.fio.thread.join().unwrap();
        assert_eq!(*self.fio.wrong.lock().unwrap(), Vec::<String>::new());
        self.daemon.unmount(&self.at);
        tool(
            "fsck.ext4",
            &["-f", "-n", &format!("/dev/ashlar/{}/v", self.array)],
        );
        let status = self.daemon.status(&self.array);
        let devices = status["devices"].as_array().unwrap().iter();
        let files: Vec<String> = devices
            .map(|d| d["path"].as_str().unwrap().to_string())
            .collect();
        self.daemon.ok(&["export", &self.array]);
        let line = ["verify"]
            .into_iter()
            .chain(files.iter().map(String::as_str));
        self.daemon.ok(&line.collect::<Vec<_>>());
        let rounds = rounds.load(Ordering::SeqCst);
        self.lines.push(format!(
            "fio: {rounds} rounds of {} MiB, no error; fsck and verify find nothing",
            self.scale.fio_mib
        ));
        self.lines
    }
}

/// Whether work of one of these kinds is left.
fn works(status: &Value, kinds: &[&str]) -> bool {
    let mut tasks = status["tasks"].as_array().unwrap().iter();
    tasks.any(|t| kinds.iter().any(|k| t["kind"] == **k) && t["state"] != "done")
}

#[test]
fn devices_come_and_go_without_a_lost_byte() {
    if !have(&["fio", "mkfs.ext4", "fsck.ext4"]) || !have_kernel_devices() {
        return;
    }
    let scale = if std::env::var("ASHLAR_SOAK_WHOLE").is_ok() {
        WHOLE
    } else {
        PART
    };
    let mut soak = Soak::start(scale);
    let shelf = soak.daemon.path("shelf");
    soak.step("one lost, rebuilt", |soak| {
        soak.ok("fail @ 3");
        soak.settled("rebuilt");
    });
    soak.step("two pulled at once, one more, rebuilt", |soak| {
        soak.lose_one_more(&shelf)
    });
    let (cable, copy) = (soak.daemon.path("cable"), soak.daemon.path("copy"));
    soak.step("one pulled for a while, put back", |soak| {
        let pulled = |daemon: &Daemon| daemon.pull(&cable, &copy);
        soak.returning(pulled, |_| Daemon::put_back(&cable, &copy));
    });
    soak.step("one offline for a while, online", |soak| {
        let array = soak.array.clone();
        let word = |word| {
            let array = array.clone();
            move |daemon: &Daemon| drop(daemon.ok(&[word, &array, "9"]))
        };
        soak.returning(word("offline"), word("online"));
    });
    soak.step("four lost ones replaced, one in use", Soak::replace);
    soak.step("devices added, data moved to them", Soak::grow);
    soak.step("as many drained", Soak::drain);
    let lines = soak.end();
    println!("devices that come and go");
    lines.iter().for_each(|line| println!("{line}"));
}
