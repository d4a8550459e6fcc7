//! What is measured of real files, and the folder and the facts of one session.
//!
//! **Invariants**: a session's folder goes when the session does.

use std::fs;
use std::path::PathBuf;

use serde::Serialize;

use super::layers::Layer;
use super::load::Test;
use super::machine::System;
use super::stack::Stack;
use super::tools::Tool;

/// The suite in samples.
pub const SUITE: &str = "iozone";

/// The suite of mdtest's samples.
pub(super) const METADATA: &str = "metadata";

/// Bytes of all files together where no cache counts and no size is given.
pub(super) const PLENTY: u64 = 1 << 30;

/// The folder that is made for the files.
pub const FOLDER: &str = "ashlar-bench-files";

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
    /// The state of the array in the rows.
    pub state: String,
    /// Longest time to wait for a quiet machine before each test, seconds.
    pub wait_quiet: u64,
    /// Files of an earlier session that are read first.
    pub left: Option<Left>,
    /// Programs that run beside.
    #[serde(skip)]
    pub tools: Vec<Tool>,
}

/// What a session left in its files: which run wrote them, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Left {
    /// The run.
    pub run: u32,
    /// How many tests of it wrote.
    pub passes: u64,
}

/// A run that is prepared: what lies below the folder, and which caches.
#[derive(Debug)]
pub struct Session {
    pub(super) options: Options,
    pub(super) system: System,
    /// What lies below.
    pub stack: Stack,
    /// Every cache found.
    pub layers: Vec<Layer>,
    pub(super) size: u64,
}

/// The files' folder, removed at the end unless it is to stay.
pub(super) struct Folder {
    pub(super) path: PathBuf,
    pub(super) keep: bool,
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.keep {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}
