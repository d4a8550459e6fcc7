//! The directory of a run: its options, every sample as it is taken, and the report.
//!
//! **Invariants**: a directory holds one run; a sample is on disk before the next is taken; a line that was cut off
//! counts as not taken.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use ashlar_bench::lifecycle::Options;
use ashlar_bench::report::page::Page;
use ashlar_bench::report::{Sample, csv};
use serde_json::{Value, json};

use crate::command::bench::report::write;
use crate::failure::Failure;

/// The directory of a run.
pub(super) struct Store {
    dir: PathBuf,
}

impl Store {
    pub(super) fn open(dir: &Path, options: &Options, processor: bool) -> Result<Store, Failure> {
        let store = Store {
            dir: dir.to_path_buf(),
        };
        fs::create_dir_all(dir).map_err(|e| store.failed(dir, &e))?;
        let text =
            serde_json::to_string_pretty(&json!({ "options": options, "processor": processor }))
                .map_err(|e| Failure::broken(format!("the options cannot be written: {e}")))?;
        let path = store.dir.join("options.json");
        match fs::read_to_string(&path) {
            Ok(known) if known == text => {}
            Ok(_) => {
                return Err(Failure::refused(format!(
                    "{}: holds a run with other options; give another --out, or remove it",
                    dir.display()
                )));
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                fs::write(&path, text).map_err(|e| store.failed(&path, &e))?;
            }
            Err(e) => return Err(store.failed(&path, &e)),
        }
        Ok(store)
    }

    fn failed(&self, path: &Path, error: &std::io::Error) -> Failure {
        Failure::broken(format!(
            "{}: {error}; give a directory that can be written with --out",
            path.display()
        ))
    }

    /// What was taken before. A last line that was cut off is taken again.
    pub(super) fn samples(&self) -> Result<Vec<Sample>, Failure> {
        let path = self.dir.join("taken.csv");
        let mut text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => csv::titles(),
            Err(e) => return Err(self.failed(&path, &e)),
        };
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        text.truncate(whole);
        if text.is_empty() {
            text = csv::titles();
        }
        let samples = csv::read(&text).map_err(|e| {
            Failure::broken(format!("{}: {e}; remove it to start again", path.display()))
        })?;
        // With the columns of this version, for the lines that are added.
        fs::write(&path, csv::write(&samples)).map_err(|e| self.failed(&path, &e))?;
        Ok(samples)
    }

    pub(super) fn add(&self, sample: &Sample) -> Result<(), Failure> {
        let path = self.dir.join("taken.csv");
        fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(csv::line(sample).as_bytes()))
            .map_err(|e| self.failed(&path, &e))
    }

    pub(super) fn report(&self, page: &Page, samples: &[Sample]) -> Result<(), Failure> {
        write(&self.dir, "bench lifecycle", page, samples, Value::Null)
    }
}
