//! Events over restarts: what arrays tell is appended to a file in the state directory, and read again by the next
//! daemon.
//!
//! **Invariants**: two files of bounded size, the older replaced by the newer when that is full; a line is one event,
//! and one that cannot be read is passed over; where nothing can be written events are kept in memory all the same,
//! and that is said once; the events of an array (by its name) are numbered on where the last run ended.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use crate::api::ArrayEvent;

/// Bytes of a file.
const FILE_BYTES: u64 = 1 << 20;
/// Events of an array that are kept in memory.
const KEPT: usize = 4096;

/// The events of all arrays.
#[derive(Debug)]
pub(crate) struct History {
    dir: PathBuf,
    file: RefCell<Option<File>>,
    told: Cell<bool>,
    events: RefCell<BTreeMap<String, VecDeque<ArrayEvent>>>,
}

impl History {
    /// What the last daemons wrote to `dir`.
    pub(crate) fn load(dir: &Path) -> History {
        let history = History {
            dir: dir.to_path_buf(),
            file: RefCell::default(),
            told: Cell::new(false),
            events: RefCell::default(),
        };
        for path in [history.older(), history.newer()] {
            let Ok(file) = File::open(path) else { continue };
            for line in BufReader::new(file).split(b'\n').map_while(Result::ok) {
                if let Ok(event) = serde_json::from_slice::<ArrayEvent>(&line) {
                    history.keep(event);
                }
            }
        }
        history
    }

    fn newer(&self) -> PathBuf {
        self.dir.join("events.jsonl")
    }

    fn older(&self) -> PathBuf {
        self.dir.join("events.old.jsonl")
    }

    fn keep(&self, event: ArrayEvent) {
        let mut events = self.events.borrow_mut();
        let of_array = events.entry(event.array.clone()).or_default();
        if of_array.len() == KEPT {
            of_array.pop_front();
        }
        of_array.push_back(event);
    }

    /// Adds events.
    pub(crate) fn append(&self, events: Vec<ArrayEvent>) {
        if events.is_empty() {
            return;
        }
        let mut lines = Vec::new();
        for event in &events {
            lines.extend(serde_json::to_vec(event).unwrap_or_default());
            lines.push(b'\n');
        }
        if let Err(error) = self.write(&lines)
            && !self.told.replace(true)
        {
            tracing::warn!(dir = %self.dir.display(), %error, "events cannot be written; a restart forgets them");
        }
        for event in events {
            self.keep(event);
        }
    }

    fn write(&self, lines: &[u8]) -> std::io::Result<()> {
        let mut open = self.file.borrow_mut();
        let mut file = match open.take() {
            Some(file) => file,
            None => File::options()
                .create(true)
                .append(true)
                .open(self.newer())?,
        };
        if file.metadata()?.len() >= FILE_BYTES {
            std::fs::rename(self.newer(), self.older())?;
            file = File::options()
                .create(true)
                .append(true)
                .open(self.newer())?;
        }
        file.write_all(lines)?;
        *open = Some(file);
        Ok(())
    }

    /// The number of an array's last event; 0 if there was none.
    pub(crate) fn last(&self, array: &str) -> u64 {
        let events = self.events.borrow();
        let last = events.get(array).and_then(VecDeque::back);
        last.map_or(0, |event| event.event.number)
    }

    /// An array's events with a number above `after`.
    pub(crate) fn events(&self, array: &str, after: u64) -> Vec<ArrayEvent> {
        let events = self.events.borrow();
        let of_array = events.get(array).into_iter().flatten();
        let newer = of_array.filter(|event| event.event.number > after);
        newer.cloned().collect()
    }

    /// Names of the arrays that ever told anything.
    pub(crate) fn arrays(&self) -> Vec<String> {
        self.events.borrow().keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use ashlar_engine::status::Event;

    use super::*;

    fn event(array: &str, number: u64, text: &str) -> ArrayEvent {
        ArrayEvent {
            array: array.to_string(),
            unix_seconds: number,
            event: Event {
                number,
                at: 0,
                kind: "k".to_string(),
                device: None,
                text: text.to_string(),
                count: 1,
            },
        }
    }

    #[test]
    fn events_outlive_the_process_in_two_bounded_files() {
        let dir = std::env::temp_dir().join(format!("ashlar-history-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let history = History::load(&dir);
        assert_eq!((history.last("a"), history.arrays().len()), (0, 0));
        history.append(vec![event("a", 1, "first"), event("b", 1, "other")]);
        let text = "x".repeat(1000);
        for number in 2..5000 {
            history.append(vec![event("a", number, &text)]);
        }
        let bytes = |path: PathBuf| std::fs::metadata(path).unwrap().len();
        assert!(bytes(history.newer()) <= FILE_BYTES + 2000);
        assert!(bytes(history.older()) <= FILE_BYTES + 2000);
        assert_eq!(history.events("a", 0).len(), KEPT);
        assert_eq!(history.events("b", 0).len(), 1);
        drop(history);
        // A line that a crash cut off costs that line only.
        let mut file = File::options()
            .append(true)
            .open(dir.join("events.jsonl"))
            .unwrap();
        file.write_all(b"{\"array\":\"a\",\"num\n").unwrap();
        let history = History::load(&dir);
        assert_eq!(history.last("a"), 4999);
        let kept = history.events("a", 0);
        assert!((900..KEPT).contains(&kept.len()), "{}", kept.len());
        history.append(vec![event("a", 5000, "next")]);
        assert_eq!(history.events("a", 4999)[0].event.text, "next");
        std::fs::remove_dir_all(&dir).unwrap();
        // Nowhere to write: kept all the same.
        history.append((5001..9000).map(|n| event("a", n, &text)).collect());
        history.append(vec![event("a", 9000, "last")]);
        assert_eq!(history.last("a"), 9000);
    }
}
