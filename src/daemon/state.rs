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
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ashlar_engine::status::LostRange;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::api::Hardware;
use crate::daemon::drives::Drives;
use crate::failure::Failure;

/// Settings of an array that the daemon keeps, with what they take: `ashlar set --help` has the same.
pub(crate) const NOTIFY_SETTINGS: [(&str, &str); 2] = [
    ("notify.exec", "a path"),
    ("notify.webhook", "http://HOST[:PORT]/PATH"),
];

/// What is set for an array.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NotifySettings {
    /// A program.
    #[serde(default)]
    pub(crate) exec: String,
    /// An address.
    #[serde(default)]
    pub(crate) webhook: String,
}

impl NotifySettings {
    pub(crate) fn is_empty(&self) -> bool {
        self.exec.is_empty() && self.webhook.is_empty()
    }
}

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
    /// How many seconds its start waits for devices.
    #[serde(default = "default_start_wait")]
    pub(crate) start_wait: u64,
}

fn default_start_wait() -> u64 {
    ashlar_engine::DEFAULT_START_WAIT
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
    /// Who is told of what happens to arrays, by their UUID.
    #[serde(default)]
    notify: BTreeMap<String, NotifySettings>,
    /// What drives were, by the UUID of the device on them.
    #[serde(default)]
    hardware: BTreeMap<String, Hardware>,
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
    /// Who is told of what happens to arrays, by their UUID: saved likewise.
    pub(crate) notify: RefCell<BTreeMap<String, NotifySettings>>,
    /// What drives were: saved likewise.
    pub(crate) drives: Rc<Drives>,
    lock: File,
}

impl State {
    /// Opens (and makes) `dir` and takes its lock.
    ///
    /// # Errors
    /// If it cannot be made or another daemon has it.
    pub(crate) fn open(dir: &Path) -> Result<State, Failure> {
        let at = dir.display();
        let mut make = std::fs::DirBuilder::new();
        make.recursive(true).mode(0o700).create(dir).map_err(|e| {
            Failure::broken(format!(
                "cannot make the state directory {at}: {e}; give --state DIR"
            ))
        })?;
        check_own(dir)?;
        let lock = lock_file(&dir.join("lock")).map_err(|e| {
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
            notify: RefCell::default(),
            drives: Rc::default(),
            lock,
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
                *self.notify.borrow_mut() = contents.notify;
                *self.drives.known.borrow_mut() = contents.hardware;
                Ok(contents.arrays)
            }
            Err(error) => {
                tracing::error!(path = %path.display(), %error, "the list of arrays is damaged and set aside; use 'ashlar import'");
                let _ = std::fs::rename(&path, self.damaged());
                Ok(Vec::new())
            }
        }
    }

    fn damaged(&self) -> PathBuf {
        self.dir.join("arrays.damaged")
    }

    /// What the operator has to know where a list of arrays was set aside and nobody has looked at it since.
    pub(crate) fn list_lost(&self) -> Option<String> {
        let path = self.damaged();
        std::fs::symlink_metadata(&path).is_ok().then(|| {
            format!(
                "the list of arrays was damaged and set aside, so arrays may not have been started: 'ashlar import' lists them, 'ashlar import ARRAY' starts one; then 'rm {}'",
                path.display()
            )
        })
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
            notify: self.notify.borrow().clone(),
            hardware: self.drives.known.borrow().clone(),
        };
        let bytes = serde_json::to_vec_pretty(&contents)?;
        let beside = self.dir.join("arrays.json.new");
        match std::fs::remove_file(&beside) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {} // left by a daemon that died here, or not there
        }
        let mut options = File::options();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&beside)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        std::fs::rename(&beside, self.dir.join("arrays.json"))?;
        File::open(&self.dir)?.sync_all()
    }
}

impl Drop for State {
    /// Lets go of the lock, which else a program that is just being started would hold for a moment longer.
    fn drop(&mut self) {
        let _ = flock(&self.lock, FlockOperation::Unlock); // it ends with the file in any case
    }
}

/// Opens (and makes) a file to lock; a link there is not followed.
///
/// # Errors
/// If it cannot be made or opened.
pub(crate) fn lock_file(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(false).mode(0o600);
    let no_links = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    options.custom_flags(no_links).open(path)
}

/// Refuses a directory in which somebody else can put links and files.
fn check_own(dir: &Path) -> Result<(), Failure> {
    let found = std::fs::metadata(dir).map_err(|e| {
        Failure::broken(format!(
            "the state directory {}: {e}; give --state DIR",
            dir.display()
        ))
    })?;
    let own = found.uid() == rustix::process::geteuid().as_raw();
    if own && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    let (at, mode) = (dir.display(), found.mode() & 0o7777);
    if found.mode() & 0o022 == 0 {
        let (me, owner) = (rustix::process::geteuid().as_raw(), found.uid());
        return Err(Failure::refused(format!(
            "the state directory {at} is that of user {owner}, and this is user {me}; run the daemon as that user, or give another --state DIR, and a --socket PATH where this user may write"
        )));
    }
    Err(Failure::refused(format!(
        "the state directory {at} (owner {}, mode {mode:04o}) can be written by others; 'chown root {at} && chmod 700 {at}' after a look at what is in it, or give another --state DIR",
        found.uid()
    )))
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
            start_wait: 7,
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
    fn a_directory_that_others_write_to_is_refused_and_links_are_not_followed() {
        use std::os::unix::fs::PermissionsExt;
        let dir = scratch("others");
        std::fs::create_dir_all(&dir).unwrap();
        let mode = |m| std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(m)).unwrap();
        mode(0o777);
        let refused = State::open(&dir).unwrap_err();
        assert!(refused.text.contains("chmod 700"), "{refused}");
        mode(0o700);
        if rustix::process::geteuid().is_root() {
            let owner = |uid| std::os::unix::fs::chown(&dir, Some(uid), None).unwrap();
            owner(1);
            let refused = check_own(&dir).unwrap_err();
            let said = "is that of user 1, and this is user 0";
            assert!(refused.text.contains(said), "{refused}");
            assert!(!refused.text.contains("by others"), "{refused}");
            owner(0);
        }
        let (victim, lock) = (dir.join("victim"), dir.join("lock"));
        std::fs::write(&victim, b"kept").unwrap();
        std::os::unix::fs::symlink(&victim, &lock).unwrap();
        assert!(State::open(&dir).is_err());
        std::fs::remove_file(&lock).unwrap();
        let state = State::open(&dir).unwrap();
        std::os::unix::fs::symlink(&victim, dir.join("arrays.json.new")).unwrap();
        state.save(&[]).unwrap();
        assert_eq!(std::fs::read(&victim).unwrap(), b"kept");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_damaged_list_is_set_aside() {
        let dir = scratch("damaged");
        let state = State::open(&dir).unwrap();
        std::fs::write(dir.join("arrays.json"), b"{\"version\":1,\"arr").unwrap();
        assert!(state.load().unwrap().is_empty());
        assert!(dir.join("arrays.damaged").exists());
        assert!(state.list_lost().unwrap().contains("list of arrays"));
        assert!(!dir.join("arrays.json").exists());
        std::fs::remove_dir_all(dir).unwrap();
    }
}
