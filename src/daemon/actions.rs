//! Who did what: every request that changes something, with who asked, how, and what came of it; in the state
//! directory, so that it survives restarts.
//!
//! **Invariants**: two files of bounded size, the older replaced by the newer when that is full; a line is one action,
//! and one that cannot be read is passed over; what cannot be written is said once in the log, and keeps nobody from
//! doing it; who asked comes from the kernel, never from what was asked.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::api::{Action, Caller};
use crate::failure::Failure;

/// Bytes of a file.
const FILE_BYTES: u64 = 1 << 20;
/// Actions kept in memory.
const KEPT: usize = 8192;
/// Longest command line and result that is kept, in characters.
const LONGEST: usize = 1000;
/// The number of a login that there was none.
const NO_LOGIN: u32 = u32::MAX;

/// What was done.
#[derive(Debug)]
pub(crate) struct Actions {
    dir: PathBuf,
    told: Cell<bool>,
    all: RefCell<VecDeque<Action>>,
}

impl Actions {
    /// What the last daemons wrote to `dir`.
    pub(crate) fn load(dir: &Path) -> Actions {
        let actions = Actions {
            dir: dir.to_path_buf(),
            told: Cell::new(false),
            all: RefCell::default(),
        };
        for path in [actions.older_file(), actions.newer_file()] {
            let Ok(file) = File::open(path) else { continue };
            for line in BufReader::new(file).split(b'\n').map_while(Result::ok) {
                if let Ok(action) = serde_json::from_slice(&line) {
                    actions.keep(action);
                }
            }
        }
        actions
    }

    fn newer_file(&self) -> PathBuf {
        self.dir.join("history.jsonl")
    }

    fn older_file(&self) -> PathBuf {
        self.dir.join("history.old.jsonl")
    }

    fn keep(&self, action: Action) {
        let mut all = self.all.borrow_mut();
        if all.len() == KEPT {
            all.pop_front();
        }
        all.push_back(action);
    }

    /// Notes who asked for what, and what came of it.
    pub(crate) fn note(
        &self,
        unix_seconds: u64,
        verb: &str,
        array: Option<String>,
        caller: Caller,
        answer: &Result<Value, Failure>,
    ) {
        let mut arrays: Vec<String> = array.into_iter().collect();
        if let Ok(value) = answer {
            // What is asked for by a UUID, or for all, is told by name.
            let imported = value["imported"].as_array().into_iter().flatten();
            let names = imported.filter_map(|a| a["name"].as_str());
            for name in names {
                if !arrays.iter().any(|known| known == name) {
                    arrays.push(name.to_string());
                }
            }
        }
        let failed = match answer {
            Ok(value) => value["failed"][0].as_str().map(str::to_string),
            Err(failure) => Some(failure.text.clone()),
        };
        self.add(Action {
            unix_seconds,
            arrays,
            verb: verb.to_string(),
            caller,
            ok: failed.is_none(),
            result: failed.unwrap_or_else(|| "done".to_string()),
        });
    }

    /// Adds one.
    pub(crate) fn add(&self, mut action: Action) {
        for text in [&mut action.caller.command, &mut action.result] {
            if let Some((at, _)) = text.char_indices().nth(LONGEST) {
                text.truncate(at);
                text.push_str("...");
            }
        }
        if let Err(error) = self.write(&action)
            && !self.told.replace(true)
        {
            tracing::warn!(dir = %self.dir.display(), %error, "the command history cannot be written to the \
                state directory; a restart forgets it");
        }
        self.keep(action);
    }

    fn write(&self, action: &Action) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(action)?;
        line.push(b'\n');
        let open = || {
            let mut options = File::options();
            options.create(true).append(true).mode(0o600);
            options.open(self.newer_file())
        };
        let mut file = open()?;
        if file.metadata()?.len() >= FILE_BYTES {
            std::fs::rename(self.newer_file(), self.older_file())?;
            file = open()?;
        }
        file.write_all(&line)
    }

    /// What was done to an array, or to all; the last so many.
    pub(crate) fn list(&self, array: Option<&str>, newest: Option<usize>) -> Vec<Action> {
        let all = self.all.borrow();
        let of = |a: &&Action| array.is_none_or(|name| a.arrays.iter().any(|n| n == name));
        let mut found: Vec<Action> = all.iter().filter(of).cloned().collect();
        if let Some(newest) = newest {
            found.drain(..found.len().saturating_sub(newest));
        }
        found
    }
}

/// Who is at the other end of a connection.
pub(crate) fn caller(stream: &tokio::net::UnixStream) -> Caller {
    let Ok(peer) = stream.peer_cred() else {
        return Caller::default();
    };
    let pid = peer.pid().unwrap_or(0);
    let login = std::fs::read_to_string(format!("/proc/{pid}/loginuid")).ok();
    let login = login.and_then(|text| text.trim().parse().ok());
    let uid = peer.uid();
    let login = login.filter(|login| *login != NO_LOGIN && *login != uid);
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    Caller {
        uid,
        user: user_name(uid),
        login_user: login.map(|uid| user_name(uid).unwrap_or_else(|| uid.to_string())),
        pid,
        command: command_line(&command),
    }
}

/// As it may have been typed: words with anything odd are quoted.
fn command_line(bytes: &[u8]) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:=,+@%{}".contains(c);
    let words = bytes.split(|b| *b == 0).filter(|word| !word.is_empty());
    let words: Vec<String> = words
        .map(|word| {
            let word = String::from_utf8_lossy(word);
            match word.chars().all(plain) {
                true => word.into_owned(),
                false => format!("'{}'", word.replace('\'', "'\\''")),
            }
        })
        .collect();
    words.join(" ")
}

/// The name of a local user.
fn user_name(uid: u32) -> Option<String> {
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    let of = |line: &&str| line.split(':').nth(2) == Some(uid.to_string().as_str());
    let line = users.lines().find(of)?;
    line.split(':').next().map(str::to_string)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn action(array: &str, command: &str) -> Action {
        Action {
            unix_seconds: 1_700_000_000,
            arrays: vec![array.to_string()],
            verb: "set".to_string(),
            caller: Caller {
                uid: 0,
                command: command.to_string(),
                ..Caller::default()
            },
            ok: true,
            result: "done".to_string(),
        }
    }

    #[test]
    fn actions_outlive_the_process_in_two_bounded_files() {
        let dir = std::env::temp_dir().join(format!("ashlar-actions-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let actions = Actions::load(&dir);
        actions.add(action("a", "ashlar set a x=1"));
        actions.add(action("b", &"x".repeat(5000)));
        let cut = actions.list(Some("b"), None)[0].caller.command.len();
        assert_eq!(cut, LONGEST + 3);
        for _ in 0..4000 {
            actions.add(action("a", &"y".repeat(900)));
        }
        actions.add(action("a", "last"));
        let bytes = |path: PathBuf| std::fs::metadata(path).unwrap().len();
        assert!(bytes(actions.newer_file()) <= FILE_BYTES + 3000);
        assert!(bytes(actions.older_file()) <= FILE_BYTES + 3000);
        let actions = Actions::load(&dir);
        let last = actions.list(Some("a"), Some(1));
        assert_eq!(last[0].caller.command, "last");
        assert!(actions.list(None, None).len() > 900);
        assert!(actions.list(Some("nobody"), None).is_empty());
        std::fs::remove_dir_all(&dir).unwrap();
        actions.add(action("a", "nowhere to write")); // kept all the same
        assert_eq!(
            actions.list(None, Some(1))[0].caller.command,
            "nowhere to write"
        );
    }

    #[test]
    fn command_lines_can_be_typed_again() {
        let bytes = b"ashlar\0create\0t\0it's\0a b\0--layout\0ec8+3\0";
        assert_eq!(
            command_line(bytes),
            "ashlar create t 'it'\\''s' 'a b' --layout ec8+3"
        );
        assert_eq!(user_name(0).as_deref(), Some("root"));
    }
}
