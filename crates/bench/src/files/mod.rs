//! Real files in IOzone's terms, on whatever file system a folder is on: threads, each with a file of its own, written and
//! read in records, close and sync counted.
//!
//! **Invariants**: every figure is of kind *real*; every cache on the way is looked for, and data below twice their sum
//! are stamped however the run was begun; what devices moved is held against what was asked of them, level by level; files
//! lie in a folder of their own, which is removed at the end.

mod beside;
pub mod content;
pub mod judge;
pub mod layers;
pub mod load;
pub mod machine;
pub mod parallel;
mod session;
pub mod stack;
#[cfg(test)]
mod tests;
pub mod tools;
mod watch;

use std::fs;
use std::path::{Path, PathBuf};

use crate::report::Sample;
use crate::report::honesty::{Cache, Facts};
use load::{Test, Work};
use machine::System;
use stack::{Stack, Volume};
use tools::Tool;
use watch::{Looked, fill, look};

pub use session::{FOLDER, Left, Options, SUITE, Session};
use session::{Folder, PLENTY};

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
        let enough = match self.caches_bytes() {
            0 => PLENTY,
            bytes => bytes.saturating_mul(2),
        };
        let least = enough.div_ceil(self.options.threads.max(1) as u64);
        let size = self.options.size.unwrap_or(least).max(record);
        size.checked_next_multiple_of(record)
            .ok_or_else(|| "--size: too large".to_string())
    }

    /// The folder of the files.
    pub fn folder(&self) -> PathBuf {
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

    /// Whether they are what was told, not what was found.
    pub fn is_assumed(&self) -> bool {
        self.options.assumed_cache.is_some()
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
        if let Some(left) = self.options.left {
            self.of_left(left, &folder, told, &mut samples)?;
        }
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
                    Tool::Iozone => self.iozone(run, &folder.path, &mut samples),
                    Tool::Mdtest => self.mdtest(run, &folder.path, &mut samples),
                    Tool::Fio | Tool::Ior | Tool::Elbencho => {
                        self.by_test(*tool, run, &folder.path, &mut samples);
                    }
                }
            }
        }
        Ok(samples)
    }

    /// What the last run of this session leaves in its files, if they stay.
    pub fn leaves(&self) -> Left {
        let writing = self.options.tests.iter().filter(|test| test.writes());
        Left {
            run: self.options.repeat,
            passes: writing.count() as u64,
        }
    }

    /// The reading tests, on files that an earlier session left: what was written before devices were lost.
    fn of_left(
        &self,
        left: Left,
        folder: &Folder,
        told: &mut dyn FnMut(&str),
        samples: &mut Vec<Sample>,
    ) -> Result<(), String> {
        let mut work = self.work(&folder.path, left.run, &|index| format!("file.{index}"));
        work.pass = Some(left.passes);
        let mut looked = Some(look(&work));
        for run in 1..=self.options.repeat {
            for test in self.options.tests.iter().filter(|test| !test.writes()) {
                self.one(*test, run, &work, &mut looked, told, samples)?;
            }
        }
        Ok(())
    }

    fn make_folder(&self) -> Result<Folder, String> {
        let path = self.folder();
        if !self.options.existing && self.options.left.is_none() {
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
        // Files that are to stay are written over; what another program left is not theirs.
        if self.options.keep && self.options.left.is_none() {
            return Ok(());
        }
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        for entry in fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let removed = if path.is_dir() {
                fs::remove_dir_all(path)
            } else {
                fs::remove_file(path)
            };
            removed.map_err(failed)?;
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
        // What was left is read before; what is written now does not lack what was lost.
        let wanted = |test: &&Test| self.options.left.is_none() || test.writes();
        for test in self.options.tests.iter().filter(wanted) {
            if test.writes() {
                pass += 1;
            }
            work.pass = (pass > 0 || !self.options.existing).then_some(pass);
            self.one(*test, run, &work, &mut looked, told, samples)?;
        }
        Ok(())
    }

    /// One test, once.
    fn one(
        &self,
        test: Test,
        run: u32,
        work: &Work,
        looked: &mut Option<Looked>,
        told: &mut dyn FnMut(&str),
        samples: &mut Vec<Sample>,
    ) -> Result<(), String> {
        told(&format!(
            "{}, run {run} of {}: {}",
            self.options.state,
            self.options.repeat,
            test.name()
        ));
        let foreign = self.settle(&work.files);
        let mark = self.mark();
        let first = self.stack.levels.first();
        let written = || first.map_or(0, |level| level.moved(&self.system).written);
        let watch: Option<&dyn Fn() -> u64> = Some(&written);
        let buffered = test.writes() && !self.options.direct && first.is_some();
        let outcome = load::run(test, work, watch.filter(|_| buffered))?;
        let seen = self.seen(
            &mark,
            test.writes(),
            outcome.bytes,
            outcome.seconds,
            &foreign,
        );
        let looked = *looked.get_or_insert_with(|| look(work));
        let mut sample = self.sample(&self.options.label, test.name(), run, &mark, &seen);
        fill(&mut sample, &outcome);
        sample.invalid = judge::invalid(&self.facts(looked, &foreign), &seen);
        sample.warnings.extend(judge::warnings(&seen));
        samples.push(sample);
        Ok(())
    }
}
