//! Real files of this machine, to be copied onto file systems under test and compared.
//!
//! **Invariants**: only regular, readable files; the comparison is of every byte against the
//! original.

use std::collections::BTreeSet;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Files to copy.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// Their paths, and sizes when they were listed.
    pub files: Vec<(PathBuf, u64)>,
}

impl Tree {
    /// At least `bytes` in at least `count` files, as far as the machine has them.
    pub fn collect(bytes: u64, count: usize) -> Tree {
        let mut tree = Tree::default();
        let mut total = 0;
        let mut todo: Vec<PathBuf> = Vec::new();
        let cargo = std::env::var_os("CARGO_HOME")
            .map(PathBuf::from)
            .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")));
        todo.extend(cargo.map(|dir| dir.join("registry/src")));
        for dir in [
            "/usr/share",
            "/usr/include",
            "/usr/libexec",
            "/usr/bin",
            "/usr/lib",
        ] {
            todo.insert(0, dir.into());
        }
        let mut seen = BTreeSet::new();
        while let Some(dir) = todo.pop() {
            let Ok(entries) = std::fs::read_dir(&dir) else {
                continue;
            };
            let mut entries: Vec<_> = entries.flatten().collect();
            entries.sort_by_key(std::fs::DirEntry::file_name);
            for entry in entries {
                let Ok(metadata) = entry.metadata() else {
                    continue;
                };
                if metadata.is_dir() {
                    todo.push(entry.path());
                    continue;
                }
                if !metadata.is_file() || !seen.insert((metadata.dev(), metadata.ino())) {
                    continue;
                }
                // Where there are enough bytes but not enough files, only small ones are taken.
                if total >= bytes && metadata.len() > 64 << 10 {
                    continue;
                }
                if std::fs::File::open(entry.path()).is_ok() {
                    tree.files.push((entry.path(), metadata.len()));
                    total += metadata.len();
                }
                if total >= bytes && tree.files.len() >= count {
                    return tree;
                }
            }
        }
        tree
    }

    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, size)| size).sum()
    }

    /// Where file `index` goes below `to`.
    pub fn target(to: &Path, index: usize) -> PathBuf {
        to.join(format!("{:03}", index / 500))
            .join(format!("{index:06}"))
    }

    /// Copies a part of the files below `to`; calls `before` with each index.
    pub fn copy(
        &self,
        range: std::ops::Range<usize>,
        to: &Path,
        mut before: impl FnMut(usize),
    ) -> std::io::Result<()> {
        for index in range {
            before(index);
            let target = Tree::target(to, index);
            std::fs::create_dir_all(target.parent().unwrap())?;
            let mut source = std::fs::File::open(&self.files[index].0)?;
            let mut file = std::fs::File::create(&target)?;
            std::io::copy(&mut source, &mut file)?;
        }
        Ok(())
    }

    /// Compares a part of the files with what is below `to`.
    ///
    /// # Panics
    /// At the first that differs.
    pub fn compare(&self, range: std::ops::Range<usize>, to: &Path) {
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for index in range {
            let target = Tree::target(to, index);
            let read = |path: &Path, into: &mut Vec<u8>| {
                into.clear();
                std::fs::File::open(path).and_then(|mut f| f.read_to_end(into))
            };
            read(&self.files[index].0, &mut a).unwrap();
            read(&target, &mut b).unwrap_or_else(|e| panic!("{}: {e}", target.display()));
            assert!(
                a == b,
                "{} differs from {}",
                target.display(),
                self.files[index].0.display()
            );
        }
    }
}
