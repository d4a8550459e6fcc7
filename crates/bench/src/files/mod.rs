//! Real files in IOzone's terms, on whatever file system a folder is on: threads, each with a file of its own, written and
//! read in records, close and sync counted.
//!
//! **Invariants**: every figure is of kind *real*; every cache on the way is looked for, and data below twice their sum
//! are stamped however the run was begun; what devices moved is held against what was asked of them, level by level; files
//! lie in a folder of their own, which is removed at the end.

pub mod content;
pub mod judge;
pub mod layers;
pub mod load;
pub mod machine;
pub mod stack;
pub mod tools;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::report::honesty::{Cache, Facts};
use crate::report::{Evidence, Sample};
use judge::Seen;
use layers::Layer;
use load::{Outcome, Test, Work};
use machine::System;
use stack::{Moved, Stack, Volume};
use tools::{Said, Tool};

/// The suite in samples.
pub const SUITE: &str = "iozone";
/// The folder that is made for the files.
pub const FOLDER: &str = "ashlar-bench-files";
/// How long the machine is watched before a test.
const WATCHED: Duration = Duration::from_millis(300);
/// Bytes of each file that are looked at for how well they compress, in pieces.
const LOOKED_AT: u64 = 1 << 20;
const PIECE: u64 = 64 << 10;

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Options {
    /// Where: the files' folder is made in it.
    pub path: PathBuf,
    /// Tests.
    pub tests: Vec<Test>,
    /// Threads, each with a file.
    pub threads: usize,
    /// Bytes of a record.
    pub record: usize,
    /// Bytes of each file; `None`: so many that all are twice the caches.
    pub size: Option<u64>,
    /// Around the page cache.
    pub direct: bool,
    /// Runs of each test.
    pub repeat: u32,
    /// Seed of content and order.
    pub seed: u64,
    /// Percent of the content that is zeros.
    pub zeros: u8,
    /// Leave in the page cache what is there.
    pub keep_cache: bool,
    /// Files stay.
    pub keep: bool,
    /// Read the files that are there.
    pub existing: bool,
    /// What all caches are taken to be, instead of what was found.
    pub assumed_cache: Option<u64>,
    /// Memory that this process may take.
    pub memory_limit: Option<u64>,
    /// Name of the target in the rows.
    pub label: String,
    /// Programs that run beside.
    #[serde(skip)]
    pub tools: Vec<Tool>,
}

/// A run that is prepared: what lies below the folder, and which caches.
#[derive(Debug)]
pub struct Session {
    options: Options,
    system: System,
    /// What lies below.
    pub stack: Stack,
    /// Every cache found.
    pub layers: Vec<Layer>,
    size: u64,
}

/// The files' folder, removed at the end unless it is to stay.
struct Folder {
    path: PathBuf,
    keep: bool,
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.keep {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Counters of the machine at a moment.
struct Mark {
    at: Instant,
    moved: Vec<Moved>,
    busy: Vec<(String, u64)>,
    processors: Option<machine::Processors>,
    fetched: Option<u64>,
}

/// What is known of the files of a run.
#[derive(Clone, Copy, Debug, Default)]
struct Looked {
    allocated: Option<u64>,
    compression: Option<f64>,
}

impl Session {
    /// Finds out what lies below the folder.
    ///
    /// # Errors
    /// If the folder is none, or the options make no sense.
    pub fn prepare(options: Options, volumes: &[Volume]) -> Result<Session, String> {
        let system = System::default();
        let path = fs::canonicalize(&options.path)
            .map_err(|error| format!("{}: {error}; give a folder", options.path.display()))?;
        if !path.is_dir() {
            return Err(format!("{}: no folder; give one", path.display()));
        }
        if options.record == 0 || !options.record.is_multiple_of(content::BLOCK) {
            return Err("--record: a multiple of 4K, for example 64K".to_string());
        }
        let stack = Stack::below(&system, &path, volumes);
        let asked = layers::Asked {
            direct: options.direct,
            memory_limit: options.memory_limit,
        };
        let layers = layers::find(&system, &stack, volumes, asked);
        let mut session = Session {
            options: Options { path, ..options },
            system,
            stack,
            layers,
            size: 0,
        };
        session.size = session.file_size()?;
        Ok(session)
    }

    fn file_size(&self) -> Result<u64, String> {
        let record = self.options.record as u64;
        if self.options.existing {
            let about = fs::metadata(self.folder().join("file.0"));
            let about = about.map_err(|error| {
                format!(
                    "{}/file.0: {error}; make files with --keep first",
                    self.folder().display()
                )
            })?;
            return Ok(about.len() / record * record);
        }
        let least = (2 * self.caches_bytes()).div_ceil(self.options.threads.max(1) as u64);
        let size = self.options.size.unwrap_or(least).max(record);
        size.checked_next_multiple_of(record)
            .ok_or_else(|| "--size: too large".to_string())
    }

    fn folder(&self) -> PathBuf {
        self.options.path.join(FOLDER)
    }

    /// Bytes of all files together.
    pub fn data_bytes(&self) -> u64 {
        self.size.saturating_mul(self.options.threads as u64)
    }

    /// Bytes of each file.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The caches that count, or what they are taken to be.
    fn caches(&self) -> Vec<Cache> {
        match self.options.assumed_cache {
            None => layers::counted(&self.layers),
            Some(bytes) => vec![Cache {
                name: "all caches as told by --assume-cache".to_string(),
                bytes,
            }],
        }
    }

    /// Their sum.
    pub fn caches_bytes(&self) -> u64 {
        self.caches().iter().map(|cache| cache.bytes).sum()
    }

    /// Why the data are too small to say anything of the devices, if they are.
    pub fn too_small(&self) -> Option<String> {
        let facts = Facts {
            data_bytes: self.data_bytes(),
            caches: self.caches(),
            ..Facts::default()
        };
        crate::report::honesty::reasons(&facts).pop()
    }

    /// Why the files do not fit, if they do not.
    pub fn no_room(&self) -> Option<String> {
        let about = rustix::fs::statvfs(&self.options.path).ok()?;
        let room = about.f_bavail.saturating_mul(about.f_frsize);
        let need = self.data_bytes() + self.data_bytes() / 20;
        let gib = |bytes: u64| format!("{:.2} GiB", bytes as f64 / (1u64 << 30) as f64);
        (!self.options.existing && need > room).then(|| {
            format!(
                "{} is free and {} is needed for files twice as large as all caches",
                gib(room),
                gib(need)
            )
        })
    }

    /// What a reader must know of every row.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if let Some(bytes) = self.options.assumed_cache {
            let found: u64 = layers::counted(&self.layers)
                .iter()
                .map(|cache| cache.bytes)
                .sum();
            remarks.push(format!(
                "caches taken to be {bytes} bytes by --assume-cache; {found} were found"
            ));
        }
        let unknown = layers::unknown(&self.layers);
        if !unknown.is_empty() {
            remarks.push(format!("caches of unknown size: {}", unknown.join("; ")));
        }
        if cfg!(debug_assertions) {
            remarks.push("built with debug assertions".to_string());
        }
        remarks
    }

    /// Runs all tests, ours and those of the programs beside. `told` hears what is about to run.
    ///
    /// # Errors
    /// If files cannot be written or read, or hold what was not written.
    pub fn run(&self, told: &mut dyn FnMut(&str)) -> Result<Vec<Sample>, String> {
        let folder = self.make_folder()?;
        let mut samples = Vec::new();
        for run in 1..=self.options.repeat {
            self.ours(run, &folder, told, &mut samples)?;
            for tool in &self.options.tools {
                self.clear(&folder.path)?;
                told(&format!(
                    "run {run} of {}: {}",
                    self.options.repeat,
                    tool.name()
                ));
                match tool {
                    Tool::Fio => self.fio(run, &folder.path, &mut samples),
                    Tool::Iozone => self.iozone(run, &folder.path, &mut samples),
                }
            }
        }
        Ok(samples)
    }

    fn make_folder(&self) -> Result<Folder, String> {
        let path = self.folder();
        if !self.options.existing {
            fs::create_dir(&path).map_err(|error| {
                format!(
                    "{}: {error}; remove it if it is left from another run, or read it with --existing",
                    path.display()
                )
            })?;
        }
        Ok(Folder {
            path,
            keep: self.options.keep || self.options.existing,
        })
    }

    /// Removes our files, so that another program has the room.
    fn clear(&self, folder: &Path) -> Result<(), String> {
        if self.options.keep {
            return Ok(());
        }
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        for entry in fs::read_dir(folder).map_err(failed)? {
            fs::remove_file(entry.map_err(failed)?.path()).map_err(failed)?;
        }
        Ok(())
    }

    fn work(&self, folder: &Path, run: u32, name: &dyn Fn(usize) -> String) -> Work {
        Work {
            files: (0..self.options.threads)
                .map(|index| folder.join(name(index)))
                .collect(),
            record: self.options.record,
            size: self.size,
            direct: self.options.direct,
            seed: self.options.seed.wrapping_add(u64::from(run)),
            pass: None,
            zeros: self.options.zeros,
        }
    }

    /// Our own tests, once.
    fn ours(
        &self,
        run: u32,
        folder: &Folder,
        told: &mut dyn FnMut(&str),
        samples: &mut Vec<Sample>,
    ) -> Result<(), String> {
        if !self.options.existing {
            self.clear(&folder.path)?;
        }
        let mut work = self.work(&folder.path, run, &|index| format!("file.{index}"));
        let mut pass = 0;
        let mut looked = self.options.existing.then(|| look(&work));
        for test in &self.options.tests {
            told(&format!(
                "run {run} of {}: {}",
                self.options.repeat,
                test.name()
            ));
            if test.writes() {
                pass += 1;
            }
            work.pass = (pass > 0 || !self.options.existing).then_some(pass);
            let foreign = self.settle(&work.files);
            let mark = self.mark();
            let first = self.stack.levels.first();
            let written = || first.map_or(0, |level| level.moved(&self.system).written);
            let watch: Option<&dyn Fn() -> u64> = Some(&written);
            let buffered = test.writes() && !self.options.direct && first.is_some();
            let outcome = load::run(*test, &work, watch.filter(|_| buffered))?;
            let seen = self.seen(
                &mark,
                test.writes(),
                outcome.bytes,
                outcome.seconds,
                &foreign,
            );
            let looked = *looked.get_or_insert_with(|| look(&work));
            let mut sample = self.sample(&self.options.label, test.name(), run, &mark, &seen);
            fill(&mut sample, &outcome);
            sample.invalid = judge::invalid(&self.facts(looked, &foreign), &seen);
            sample.warnings.extend(judge::warnings(&seen));
            samples.push(sample);
        }
        Ok(())
    }

    /// Waits for what is written, forgets what was read, and watches what others do.
    fn settle(&self, files: &[PathBuf]) -> Foreign {
        if let Ok(dir) = File::open(&self.options.path) {
            let _ = rustix::fs::syncfs(&dir);
        }
        if !self.options.keep_cache {
            load::forget(files);
        }
        let mark = self.mark();
        thread::sleep(WATCHED);
        let seconds = mark.at.elapsed().as_secs_f64();
        let rate = |(now, before): (Moved, &Moved)| {
            let moved = now.since(*before);
            (moved.read + moved.written) as f64 / seconds
        };
        let now = self.stack.moved(&self.system).into_iter();
        let busy = || self.system.processors()?.share_since(mark.processors?);
        Foreign {
            processors: busy(),
            devices: now.zip(&mark.moved).map(rate).reduce(f64::max),
        }
    }

    fn mark(&self) -> Mark {
        let names = self.stack.levels.iter().flat_map(|level| &level.devices);
        let ticks = |name: &String| {
            let text = self.system.text(&format!("/sys/class/block/{name}/stat"))?;
            let ticks = text.split_whitespace().nth(9)?.parse().ok()?;
            Some((name.clone(), ticks))
        };
        Mark {
            busy: names.filter_map(ticks).collect(),
            moved: self.stack.moved(&self.system),
            processors: self.system.processors(),
            fetched: self.system.fetched(),
            at: Instant::now(),
        }
    }

    fn seen(&self, mark: &Mark, wrote: bool, asked: u64, seconds: f64, foreign: &Foreign) -> Seen {
        Seen {
            wrote,
            asked,
            levels: judge::levels(&self.system, &self.stack, &mark.moved),
            one_device: self
                .stack
                .levels
                .first()
                .is_some_and(|level| level.devices.len() == 1),
            fetched: self
                .system
                .fetched()
                .zip(mark.fetched)
                .map(|(now, before)| now.saturating_sub(before)),
            foreign: foreign.devices,
            seconds,
        }
    }

    fn facts(&self, looked: Looked, foreign: &Foreign) -> Facts {
        Facts {
            data_bytes: self.data_bytes(),
            caches: self.caches(),
            allocated_bytes: looked.allocated,
            compression: looked.compression,
            device_bytes: None,
            busy_before: foreign.processors,
        }
    }

    /// A sample with what the machine's counters say.
    fn sample(&self, target: &str, workload: &str, run: u32, mark: &Mark, seen: &Seen) -> Sample {
        let bottom = self.stack.levels.last();
        let busy = self.busy(mark);
        let processors = || self.system.processors()?.share_since(mark.processors?);
        let first = seen.levels.first();
        let bytes = first.map(|(_, moved)| {
            if seen.wrote {
                moved.written
            } else {
                moved.read
            }
        });
        let processors = processors();
        let mut all: Vec<(String, f64)> = busy.clone();
        all.extend(processors.map(|share| ("processors".to_string(), share)));
        let limit = all.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
        Sample {
            suite: SUITE.to_string(),
            workload: workload.to_string(),
            target: target.to_string(),
            devices: bottom.map_or(0, |level| u32::try_from(level.devices.len()).unwrap_or(0)),
            run,
            seed: self.options.seed,
            evidence: Evidence::Real,
            cpu_percent: processors.map(|share| share * 100.0),
            device_bytes_per_host_byte: bytes.map(|bytes| bytes as f64 / seen.asked.max(1) as f64),
            device_busy: busy.iter().map(|(_, share)| *share).reduce(f64::max),
            limit: limit.map_or(String::new(), |(name, share)| {
                format!("{name} {:.0} %", share * 100.0)
            }),
            warnings: self.remarks(),
            ..Sample::default()
        }
    }

    /// Share of the time since `mark` that each device was busy.
    fn busy(&self, mark: &Mark) -> Vec<(String, f64)> {
        let millis = (mark.at.elapsed().as_secs_f64() * 1e3).max(1.0);
        let now = self.mark().busy.into_iter();
        now.zip(&mark.busy)
            .map(|((name, now), (_, before))| {
                (name, (now.saturating_sub(*before) as f64 / millis).min(1.0))
            })
            .collect()
    }
}

/// What others did before a test.
#[derive(Clone, Copy, Debug, Default)]
struct Foreign {
    processors: Option<f64>,
    devices: Option<f64>,
}

fn fill(sample: &mut Sample, outcome: &Outcome) {
    sample.bytes_per_second =
        (outcome.seconds > 0.0).then(|| outcome.bytes as f64 / outcome.seconds);
    sample.mean_us = Some(outcome.mean_us);
    sample.p99_us = Some(outcome.p99_us);
    if outcome.seconds >= judge::SHORTEST {
        sample.windows.clone_from(&outcome.windows);
    }
}

/// How much of the files is allocated, and how well a part of them compresses.
fn look(work: &Work) -> Looked {
    let mut looked = Looked::default();
    let mut content = Vec::new();
    for path in &work.files {
        let Ok(file) = File::open(path) else {
            return Looked::default();
        };
        if let Ok(about) = file.metadata() {
            *looked.allocated.get_or_insert(0) += about.blocks() * 512;
        }
        let pieces = (LOOKED_AT / PIECE).min(work.size / PIECE).max(1);
        for piece in 0..pieces {
            let mut bytes = vec![0; usize::try_from(PIECE).unwrap_or(0)];
            let offset = piece * (work.size / pieces) / PIECE * PIECE;
            let read = file.read_at(&mut bytes, offset).unwrap_or(0);
            content.extend_from_slice(&bytes[..read]);
        }
    }
    looked.compression = (!content.is_empty()).then(|| content::compression(&content));
    looked
}

/// Programs beside ours.
impl Session {
    /// fio, a test at a time. What it does not do is a sample without a figure, with the reason.
    fn fio(&self, run: u32, folder: &Path, samples: &mut Vec<Sample>) {
        let work = self.work(folder, run, &|index| Tool::Fio.file(index));
        let target = self.target(Tool::Fio);
        let mut looked = None;
        for test in &self.options.tests {
            let foreign = self.settle(&work.files);
            let mark = self.mark();
            let line = tools::fio_line(*test, &work, folder);
            let said =
                tools::run(Tool::Fio, &line, folder).and_then(|text| tools::fio_said(*test, &text));
            let seconds = mark.at.elapsed().as_secs_f64();
            let mut seen = self.seen(&mark, test.writes(), self.data_bytes(), seconds, &foreign);
            seen.fetched = None; // of another process
            let looked = *looked.get_or_insert_with(|| look(&work));
            let mut sample = self.sample(&target, test.name(), run, &mark, &seen);
            sample.invalid = judge::invalid(&self.facts(looked, &foreign), &seen);
            sample.warnings.extend(judge::warnings(&seen));
            say(&mut sample, said);
            samples.push(sample);
        }
    }

    /// IOzone, all tests in one run: devices are held against the sum of what it asks.
    fn iozone(&self, run: u32, folder: &Path, samples: &mut Vec<Sample>) {
        let tests = &self.options.tests;
        let work = self.work(folder, run, &|index| Tool::Iozone.file(index));
        let foreign = self.settle(&[]);
        let mark = self.mark();
        let line = tools::iozone_line(tests, &work, folder);
        let text = tools::run(Tool::Iozone, &line, folder);
        let seconds = mark.at.elapsed().as_secs_f64();
        // Each number is two tests, and without files there is nothing to read.
        let runs = |test: &&Test| {
            let number = test.number();
            number == "0" || tests.iter().any(|asked| asked.number() == number)
        };
        let ran: Vec<&Test> = Test::ALL.iter().filter(runs).collect();
        let looked = look(&work);
        for test in tests {
            let count = ran
                .iter()
                .filter(|ran| ran.writes() == test.writes())
                .count() as u64;
            let asked = count * self.data_bytes();
            let mut seen = self.seen(&mark, test.writes(), asked, seconds, &foreign);
            seen.fetched = None;
            let mut sample =
                self.sample(&self.target(Tool::Iozone), test.name(), run, &mark, &seen);
            sample.invalid = judge::invalid(&self.facts(looked, &foreign), &seen);
            let said = text.clone().and_then(|text| {
                tools::iozone_said(*test, &text).ok_or("iozone gave no figure".to_string())
            });
            say(&mut sample, said);
            samples.push(sample);
        }
    }

    fn target(&self, tool: Tool) -> String {
        match self.options.label.as_str() {
            "files" => tool.name().to_string(),
            label => format!("{label} {}", tool.name()),
        }
    }
}

/// Puts what a program says into a sample, or why it says nothing.
fn say(sample: &mut Sample, said: Result<Said, String>) {
    match said {
        Ok(said) => {
            sample.bytes_per_second = Some(said.bytes_per_second);
            sample.mean_us = said.mean_us;
            sample.p99_us = said.p99_us;
        }
        Err(reason) => sample.invalid = vec![reason],
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn options(path: &Path) -> Options {
        Options {
            path: path.to_path_buf(),
            tests: vec![Test::Write, Test::Read],
            threads: 2,
            record: 64 << 10,
            size: Some(1 << 20),
            direct: false,
            repeat: 1,
            seed: 1,
            zeros: 0,
            keep_cache: false,
            keep: false,
            existing: false,
            assumed_cache: None,
            memory_limit: None,
            label: "files".to_string(),
            tools: Vec::new(),
        }
    }

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Dir {
            let dir = std::env::temp_dir().join(format!("ashlar-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(&dir).unwrap();
            Dir(dir)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn small_data_are_told_and_stamped_and_nothing_stays() {
        let dir = Dir::new("files-small");
        let session = Session::prepare(options(&dir.0), &[]).unwrap();
        assert_eq!(session.data_bytes(), 2 << 20);
        assert!(
            session
                .too_small()
                .unwrap()
                .contains("less than twice all caches (page cache")
        );
        let samples = session.run(&mut |_| {}).unwrap();
        assert_eq!(samples.len(), 2);
        for sample in &samples {
            assert!(
                sample.invalid.iter().any(|r| r.contains("less than twice")),
                "{sample:?}"
            );
            assert!(sample.bytes_per_second.unwrap() > 0.0);
            assert_eq!(sample.evidence, Evidence::Real);
            assert!(sample.warnings.iter().any(|w| w.contains("too short")));
        }
        assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 0);
    }

    #[test]
    fn what_is_assumed_is_said_and_decides() {
        let dir = Dir::new("files-assumed");
        let assumed = Options {
            assumed_cache: Some(1 << 20),
            ..options(&dir.0)
        };
        let session = Session::prepare(assumed.clone(), &[]).unwrap();
        assert_eq!(session.too_small(), None);
        assert!(session.remarks()[0].contains("1048576 bytes by --assume-cache"));
        let larger = Options {
            assumed_cache: Some((1 << 20) + 1),
            ..assumed.clone()
        };
        assert!(Session::prepare(larger, &[]).unwrap().too_small().is_some());
        let derived = Options {
            size: None,
            ..assumed
        };
        assert_eq!(Session::prepare(derived, &[]).unwrap().size(), 1 << 20);
    }

    #[test]
    fn options_that_make_no_sense_are_refused() {
        let dir = Dir::new("files-bad");
        let refused = |options: Options| Session::prepare(options, &[]).unwrap_err();
        let odd = Options {
            record: 5000,
            ..options(&dir.0)
        };
        assert!(refused(odd).contains("multiple of 4K"));
        assert!(refused(options(&dir.0.join("none"))).contains("give a folder"));
        let existing = Options {
            existing: true,
            ..options(&dir.0)
        };
        assert!(refused(existing).contains("--keep"));
        let endless = Options {
            size: Some(u64::MAX),
            ..options(&dir.0)
        };
        assert!(refused(endless).contains("too large"));
        let huge = Options {
            size: Some(1 << 60),
            ..options(&dir.0)
        };
        assert!(Session::prepare(huge, &[]).unwrap().no_room().is_some());
        fs::create_dir(dir.0.join(FOLDER)).unwrap();
        let session = Session::prepare(options(&dir.0), &[]).unwrap();
        assert!(
            session
                .run(&mut |_| {})
                .unwrap_err()
                .contains("left from another run")
        );
        assert!(dir.0.join(FOLDER).exists(), "what another run left stays");
    }

    #[test]
    fn a_program_that_fails_gives_a_reason_and_no_figure() {
        let mut sample = Sample::default();
        say(&mut sample, Err("fio: exit status: 1: no".to_string()));
        assert_eq!(sample.rate(), None);
        assert_eq!(sample.invalid, ["fio: exit status: 1: no"]);
    }
}
