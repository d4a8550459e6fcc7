//! The load: threads that each write or read a file of their own, record by record, as IOzone's throughput mode does.
//!
//! **Invariants**: a test takes each record once, at random in an order without repeats; the time runs from a common start
//! until the last thread has synced and closed its file; what is read is compared with what was written; no thread is left
//! when a test ends.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ashlar_rt::Buf;
use rustix::fs::{Advice, OFlags, fadvise};
use serde::{Deserialize, Serialize};

use super::content::{Content, mix};

/// Windows that a run is cut into, to see whether it was steady.
pub const WINDOWS: usize = 10;
/// How often the bytes so far are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// One test, in IOzone's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// Files are made.
    Write,
    /// All of them again, in order.
    Rewrite,
    /// In order.
    Read,
    /// Again.
    Reread,
    /// Each record once, in random order.
    RandomRead,
    /// Each record once, in random order.
    RandomWrite,
}

impl Test {
    /// All, in the order in which they run.
    pub const ALL: [Test; 6] = [
        Test::Write,
        Test::Rewrite,
        Test::Read,
        Test::Reread,
        Test::RandomRead,
        Test::RandomWrite,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Test::Write => "write",
            Test::Rewrite => "rewrite",
            Test::Read => "read",
            Test::Reread => "reread",
            Test::RandomRead => "random-read",
            Test::RandomWrite => "random-write",
        }
    }

    /// Tests by name, or by IOzone's number: 0 write and rewrite, 1 read and reread, 2 random read and write.
    pub fn named(name: &str) -> Option<Vec<Test>> {
        match name {
            "0" => Some(Test::ALL[..2].to_vec()),
            "1" => Some(Test::ALL[2..4].to_vec()),
            "2" => Some(Test::ALL[4..].to_vec()),
            _ => {
                let found = Test::ALL.into_iter().find(|test| test.name() == name);
                found.map(|test| vec![test])
            }
        }
    }

    /// IOzone's number.
    pub fn number(self) -> &'static str {
        match self {
            Test::Write | Test::Rewrite => "0",
            Test::Read | Test::Reread => "1",
            Test::RandomRead | Test::RandomWrite => "2",
        }
    }

    /// Whether it writes.
    pub fn writes(self) -> bool {
        matches!(self, Test::Write | Test::Rewrite | Test::RandomWrite)
    }

    /// Whether its order is random.
    pub fn is_random(self) -> bool {
        matches!(self, Test::RandomRead | Test::RandomWrite)
    }
}

/// What a test works on.
#[derive(Clone, Debug)]
pub struct Work {
    /// A file for each thread.
    pub files: Vec<PathBuf>,
    /// Bytes of a record.
    pub record: usize,
    /// Bytes of each file: whole records.
    pub size: u64,
    /// Around the page cache.
    pub direct: bool,
    /// Seed of content and order.
    pub seed: u64,
    /// How often the files were written so far; `None`: what they hold is not known, and not compared.
    pub pass: Option<u64>,
    /// Percent of the content that is zeros.
    pub zeros: u8,
}

/// What a test gave.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// From the common start until the last file was closed.
    pub seconds: f64,
    /// Bytes that were written or read.
    pub bytes: u64,
    /// Bytes a second in equal parts of the time.
    pub windows: Vec<f64>,
    /// Mean time of a record, microseconds.
    pub mean_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
}

/// Shared by the threads of a test.
struct Shared {
    start: Barrier,
    bytes: AtomicU64,
    ended: AtomicUsize,
}

/// Counts a thread as ended, however it ends.
struct Ending<'a>(&'a AtomicUsize);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Runs a test. `device_bytes` gives the bytes that devices have written so far, where windows are of what reached them:
/// a write into the page cache says nothing about a device.
///
/// # Errors
/// The file, and what is wrong with it.
pub fn run(
    test: Test,
    work: &Work,
    device_bytes: Option<&dyn Fn() -> u64>,
) -> Result<Outcome, String> {
    let files: Vec<(usize, File, &Path)> = work
        .files
        .iter()
        .enumerate()
        .map(|(index, path)| open(test, work, path).map(|file| (index, file, path.as_path())))
        .collect::<Result<_, _>>()?;
    let count = files.len();
    let shared = Shared {
        start: Barrier::new(count + 1),
        bytes: AtomicU64::new(0),
        ended: AtomicUsize::new(0),
    };
    let before = device_bytes.map_or(0, |look| look());
    let (curve, seconds, results) = thread::scope(|scope| {
        let shared = &shared;
        let threads: Vec<_> = files
            .into_iter()
            .map(|(index, file, path)| {
                scope.spawn(move || {
                    let _ending = Ending(&shared.ended);
                    each(test, work, index, file, shared)
                        .map_err(|error| format!("{}: {error}", path.display()))
                })
            })
            .collect();
        shared.start.wait();
        let began = Instant::now();
        let mut curve = vec![(0.0, 0)];
        while shared.ended.load(Ordering::SeqCst) < count {
            thread::sleep(LOOK_EVERY);
            let bytes = device_bytes.map_or_else(
                || shared.bytes.load(Ordering::Relaxed),
                |look| look().saturating_sub(before),
            );
            curve.push((began.elapsed().as_secs_f64(), bytes));
        }
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or(Err("a thread died".to_string()))
        };
        let results: Result<Vec<(f64, Vec<u32>)>, String> = threads.into_iter().map(join).collect();
        let last = results.as_ref().map_or(0.0, |all| {
            all.iter().map(|(seconds, _)| *seconds).fold(0.0, f64::max)
        });
        (curve, last, results)
    });
    let times = results?.into_iter().flat_map(|(_, times)| times).collect();
    let (mean_us, p99_us) = of_times(times);
    Ok(Outcome {
        seconds,
        bytes: shared.bytes.load(Ordering::SeqCst),
        windows: windows(&curve),
        mean_us,
        p99_us,
    })
}

fn open(test: Test, work: &Work, path: &Path) -> Result<File, String> {
    let mut options = OpenOptions::new();
    options.read(true).write(test.writes());
    options.create(test == Test::Write);
    if work.direct {
        options.custom_flags(i32::try_from(OFlags::DIRECT.bits()).unwrap_or(0));
    }
    let shown = |error: io::Error| format!("{}: {error}", path.display());
    let file = options.open(path).map_err(shown)?;
    let advice = if test.is_random() {
        Advice::Random
    } else {
        Advice::Sequential
    };
    // Some file systems do not know it; it is advice.
    let _ = fadvise(&file, 0, None, advice);
    Ok(file)
}

/// What one thread does. Time until its file was closed, and of each record.
fn each(
    test: Test,
    work: &Work,
    index: usize,
    file: File,
    shared: &Shared,
) -> io::Result<(f64, Vec<u32>)> {
    let records = work.size / work.record as u64;
    let order = Order::new(records, work.seed ^ index as u64, test.is_random());
    let mut times = Vec::with_capacity(usize::try_from(records).unwrap_or(0));
    let mut buffer = Buf::zeroed(work.record);
    let content = work.pass.map(|pass| Content {
        seed: work.seed,
        pass,
        file: index as u64,
        zeros: work.zeros,
    });
    shared.start.wait();
    let began = Instant::now();
    for record in 0..records {
        let offset = order.at(record) * work.record as u64;
        if let Some(content) = content.filter(|_| test.writes()) {
            content.fill(offset, &mut buffer);
        }
        let at = Instant::now();
        if test.writes() {
            file.write_all_at(&buffer, offset)?;
        } else {
            file.read_exact_at(&mut buffer, offset)?;
        }
        times.push(u32::try_from(at.elapsed().as_micros()).unwrap_or(u32::MAX));
        shared
            .bytes
            .fetch_add(work.record as u64, Ordering::Relaxed);
        let wrong = content
            .filter(|_| !test.writes())
            .and_then(|c| c.wrong(offset, &buffer));
        if let Some(offset) = wrong {
            let text = format!("byte {offset} is not what was written");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
    }
    if test.writes() {
        file.sync_all()?;
    }
    drop(file);
    Ok((began.elapsed().as_secs_f64(), times))
}

/// Has the kernel forget what it holds of the files, so that what is read comes from the device.
pub fn forget(files: &[PathBuf]) {
    for path in files {
        if let Ok(file) = File::open(path) {
            let _ = rustix::fs::fsync(&file);
            let _ = fadvise(&file, 0, None, Advice::DontNeed);
        }
    }
}

/// An order of records: all of them, each once.
struct Order {
    records: u64,
    half: u32,
    seed: u64,
    random: bool,
}

impl Order {
    fn new(records: u64, seed: u64, random: bool) -> Order {
        // Halves of the number of bits that the largest record takes.
        let bits = 64 - records.saturating_sub(1).leading_zeros();
        Order {
            records,
            half: bits.div_ceil(2).max(1),
            seed,
            random,
        }
    }

    /// A Feistel network permutes the numbers of `2 * half` bits; those that are no record are permuted again.
    fn at(&self, place: u64) -> u64 {
        if !self.random {
            return place;
        }
        let mask = (1u64 << self.half) - 1;
        let mut value = place;
        loop {
            let (mut left, mut right) = (value >> self.half, value & mask);
            for round in 0..4u64 {
                let key = mix(self.seed ^ (round << 60) ^ right);
                (left, right) = (right, left ^ (key & mask));
            }
            value = left << self.half | right;
            if value < self.records {
                return value;
            }
        }
    }
}

/// Mean and 99th percentile.
fn of_times(mut times: Vec<u32>) -> (f64, f64) {
    if times.is_empty() {
        return (0.0, 0.0);
    }
    times.sort_unstable();
    let sum: u64 = times.iter().map(|time| u64::from(*time)).sum();
    let place = (times.len() * 99).div_ceil(100) - 1;
    (sum as f64 / times.len() as f64, f64::from(times[place]))
}

/// Rates in equal parts of the time, from bytes at moments. None where the run was too short to be looked at often enough.
fn windows(curve: &[(f64, u64)]) -> Vec<f64> {
    let end = curve.last().map_or(0.0, |(time, _)| *time);
    if curve.len() < 3 * WINDOWS || end <= 0.0 {
        return Vec::new();
    }
    let at = |time: f64| {
        let next = curve
            .iter()
            .position(|(t, _)| *t >= time)
            .unwrap_or(curve.len() - 1);
        let (t1, b1) = curve[next];
        let (t0, b0) = curve[next.saturating_sub(1)];
        let part = if t1 > t0 {
            (time - t0) / (t1 - t0)
        } else {
            1.0
        };
        b0 as f64 + (b1 as f64 - b0 as f64) * part
    };
    let width = end / WINDOWS as f64;
    (0..WINDOWS)
        .map(|window| (at((window + 1) as f64 * width) - at(window as f64 * width)) / width)
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use std::fs;

    #[test]
    fn random_orders_take_each_record_once() {
        for records in [1, 2, 3, 16, 1000] {
            let order = Order::new(records, 5, true);
            let mut all: Vec<u64> = (0..records).map(|place| order.at(place)).collect();
            let in_order: Vec<u64> = (0..records).collect();
            assert!(records < 16 || all != in_order);
            all.sort_unstable();
            assert_eq!(all, in_order);
        }
        assert_eq!(Order::new(9, 5, false).at(7), 7);
    }

    #[test]
    fn windows_are_rates_in_equal_parts() {
        let steady: Vec<(f64, u64)> = (0u32..=100)
            .map(|i| (f64::from(i) / 100.0, u64::from(i) * 10))
            .collect();
        let rates = windows(&steady);
        assert_eq!(rates.len(), WINDOWS);
        assert!(
            rates.iter().all(|rate| (rate - 1000.0).abs() < 1e-6),
            "{rates:?}"
        );
        let stalled: Vec<(f64, u64)> = (0u32..=100)
            .map(|i| (f64::from(i) / 100.0, u64::from(i.min(50)) * 10))
            .collect();
        let rates = windows(&stalled);
        assert!(rates[0] > 900.0 && rates[9] < 1.0, "{rates:?}");
        assert!(windows(&steady[..20]).is_empty());
    }

    #[test]
    fn tests_have_the_names_and_numbers_of_iozone() {
        assert_eq!(Test::named("0").unwrap(), [Test::Write, Test::Rewrite]);
        assert_eq!(Test::named("random-read").unwrap(), [Test::RandomRead]);
        assert_eq!(Test::named("3"), None);
        for test in Test::ALL {
            assert!(Test::named(test.number()).unwrap().contains(&test));
            assert_eq!(Test::named(test.name()).unwrap(), [test]);
        }
    }

    #[test]
    fn what_is_written_is_read_back_and_other_content_is_noticed() {
        let dir = std::env::temp_dir().join(format!("ashlar-load-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let work = |pass| Work {
            files: vec![dir.join("0"), dir.join("1")],
            record: 64 << 10,
            size: 1 << 20,
            direct: false,
            seed: 3,
            pass: Some(pass),
            zeros: 0,
        };
        let written = run(Test::Write, &work(1), None).unwrap();
        assert_eq!(written.bytes, 2 << 20);
        assert!(written.seconds > 0.0 && written.p99_us >= 1.0);
        run(Test::RandomRead, &work(1), None).unwrap();
        forget(&work(1).files);
        run(Test::RandomWrite, &work(2), None).unwrap();
        run(Test::Reread, &work(2), None).unwrap();
        let old = run(Test::Read, &work(1), None).unwrap_err();
        assert!(old.contains("byte 0 is not what was written"), "{old}");
        fs::File::options()
            .write(true)
            .open(dir.join("1"))
            .unwrap()
            .set_len(4096)
            .unwrap();
        assert!(run(Test::Read, &work(2), None).is_err());
        fs::remove_file(dir.join("0")).unwrap();
        assert!(
            run(Test::Read, &work(2), None)
                .unwrap_err()
                .contains("/0: ")
        );
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_percentile_is_of_all_records() {
        assert_eq!(of_times((1..=100).collect()), (50.5, 99.0));
        assert_eq!(of_times(vec![]), (0.0, 0.0));
    }
}
