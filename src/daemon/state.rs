//! What the daemon remembers between runs: which arrays it had imported, and where their devices
//! were. A cache: everything that matters is on the devices.
//!
//! **Invariants**: the file is replaced whole (written beside, flushed, renamed, directory
//! flushed), so that a crash leaves the old list or the new one; a list that cannot be read is set
//! aside with a warning, never guessed at, and one that the system does not give is no empty list;
//! one daemon at a time uses a directory (it holds a lock).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use ashlar_engine::status::LostRange;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// An array that was imported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Known {
    /// Its name.
    pub(crate) name: String,
    /// Its identity, hyphenated.
    pub(crate) uuid: String,
    /// Where its devices were.
    pub(crate) devices: Vec<String>,
    /// Whether it was imported read-only.
    #[serde(default)]
    pub(crate) read_only: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Contents {
    version: u32,
    arrays: Vec<Known>,
    /// Where devices were last seen, by UUID.
    #[serde(default)]
    paths: BTreeMap<String, String>,
    /// What could not be read of arrays, by their UUID.
    #[serde(default)]
    lost: BTreeMap<String, Vec<LostRange>>,
}

/// The state directory, locked.
#[derive(Debug)]
pub(crate) struct State {
    /// Where it is.
    pub(crate) dir: PathBuf,
    /// Where devices were last seen, by UUID: what is saved with the list.
    pub(crate) paths: RefCell<BTreeMap<String, String>>,
    /// What could not be read of arrays, by their UUID: saved likewise, and looked at again after an import.
    pub(crate) lost: RefCell<BTreeMap<String, Vec<LostRange>>>,
    _lock: File,
}

impl State {
    /// Opens (and makes) `dir` and takes its lock.
    ///
    /// # Errors
    /// If it cannot be made or another daemon has it.
    pub(crate) fn open(dir: &Path) -> Result<State, Failure> {
        let at = dir.display();
        std::fs::create_dir_all(dir).map_err(|e| {
            Failure::broken(format!(
                "cannot make the state directory {at}: {e}; give --state DIR"
            ))
        })?;
        let lock = File::create(dir.join("lock")).map_err(|e| {
            Failure::broken(format!(
                "cannot write to the state directory {at}: {e}; give --state DIR"
            ))
        })?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            Failure::refused(format!(
                "another daemon uses the state directory {at}; stop it, or give another --state DIR"
            ))
        })?;
        Ok(State {
            dir: dir.to_path_buf(),
            paths: RefCell::default(),
            lost: RefCell::default(),
            _lock: lock,
        })
    }

    /// The arrays of the last run.
    ///
    /// # Errors
    /// If the list is there and cannot be read: taken for empty, it would be replaced by the next.
    pub(crate) fn load(&self) -> Result<Vec<Known>, Failure> {
        let path = self.dir.join("arrays.json");
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => {
                return Err(Failure::broken(format!(
                    "the list of arrays {} cannot be read: {error}; make it readable, or move it away and use 'ashlar import'",
                    path.display()
                )));
            }
        };
        match serde_json::from_slice::<Contents>(&bytes) {
            Ok(contents) => {
                *self.paths.borrow_mut() = contents.paths;
                *self.lost.borrow_mut() = contents.lost;
                Ok(contents.arrays)
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the list of arrays is damaged and set aside; use 'ashlar import'");
                let _ = std::fs::rename(&path, self.dir.join("arrays.damaged"));
                Ok(Vec::new())
            }
        }
    }

    /// Replaces the list.
    ///
    /// # Errors
    /// If the directory cannot be written.
    pub(crate) fn save(&self, arrays: &[Known]) -> std::io::Result<()> {
        let contents = Contents {
            version: 1,
            arrays: arrays.to_vec(),
            paths: self.paths.borrow().clone(),
            lost: self.lost.borrow().clone(),
        };
        let bytes = serde_json::to_vec_pretty(&contents)?;
        let beside = self.dir.join("arrays.json.new");
        let mut file = File::create(&beside)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        std::fs::rename(&beside, self.dir.join("arrays.json"))?;
        File::open(&self.dir)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("ashlar-state-{name}-{}", std::process::id()))
    }

    #[test]
    fn what_is_saved_is_loaded_and_a_second_daemon_is_refused() {
        let dir = scratch("round");
        let known = Known {
            name: "tank".into(),
            uuid: "u".into(),
            devices: vec!["/a".into(), "/b".into()],
            read_only: false,
        };
        {
            let state = State::open(&dir).unwrap();
            assert!(state.load().unwrap().is_empty());
            let path = ("uuid".to_string(), "/a".to_string());
            state.paths.borrow_mut().extend([path.clone()]);
            state.save(std::slice::from_ref(&known)).unwrap();
            state.paths.borrow_mut().clear();
            assert_eq!(state.load().unwrap(), vec![known]);
            assert_eq!(state.paths.borrow().get(&path.0), Some(&path.1));
            let refused = State::open(&dir).unwrap_err();
            assert!(refused.text.contains("another daemon"), "{refused}");
        }
        State::open(&dir).unwrap();
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_list_that_cannot_be_read_is_not_an_empty_one() {
        let dir = scratch("unreadable");
        let state = State::open(&dir).unwrap();
        let list = dir.join("arrays.json");
        std::os::unix::fs::symlink(&list, &list).unwrap(); // also root cannot follow that
        let failure = state.load().unwrap_err();
        assert!(failure.text.contains("arrays.json"), "{failure}");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_damaged_list_is_set_aside() {
        let dir = scratch("damaged");
        let state = State::open(&dir).unwrap();
        std::fs::write(dir.join("arrays.json"), b"{\"version\":1,\"arr").unwrap();
        assert!(state.load().unwrap().is_empty());
        assert!(dir.join("arrays.damaged").exists());
        assert!(!dir.join("arrays.json").exists());
        std::fs::remove_dir_all(dir).unwrap();
    }
}
