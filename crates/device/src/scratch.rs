//! Files for unit tests.
//!
//! Invariant: a file is gone when its test ends, be it by a panic.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs::File;
use std::path::PathBuf;

/// A sparse file, and where it is.
pub(crate) struct Scratch(pub(crate) File, PathBuf);

impl Scratch {
    /// One of this size.
    pub(crate) fn new(name: &str, bytes: u64) -> Scratch {
        let name = format!("ashlar-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .unwrap();
        file.set_len(bytes).unwrap();
        Scratch(file, path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.1);
    }
}
