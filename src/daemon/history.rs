//! Events over restarts: what arrays tell is appended to a file in the state directory, and read again by the next
//! daemon.
//!
//! **Invariants**: two files of bounded size, the older replaced by the newer when that is full; a line is one event,
//! and one that cannot be read is passed over; where nothing can be written events are kept in memory all the same,
//! and that is said once; the events of an array (by its name) are numbered on where the last run ended, and so are
//! those of all arrays together, in the order in which they came here, whatever the clock says.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use ashlar_engine::status::Event;
use ashlar_rt::Gate;

use crate::api::ArrayEvent;
use crate::daemon::severity::severity;

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
    last_id: Cell<u64>,
    /// Opened when there is more.
    changed: Gate,
    events: RefCell<BTreeMap<String, VecDeque<ArrayEvent>>>,
}

impl History {
    /// What the last daemons wrote to `dir`.
    pub(crate) fn load(dir: &Path) -> History {
        let history = History {
            dir: dir.to_path_buf(),
            file: RefCell::default(),
            told: Cell::new(false),
            last_id: Cell::new(0),
            changed: Gate::default(),
            events: RefCell::default(),
        };
        for path in [history.older_file(), history.newer_file()] {
            let Ok(file) = File::open(path) else { continue };
            for line in BufReader::new(file).split(b'\n').map_while(Result::ok) {
                if let Ok(mut event) = serde_json::from_slice::<ArrayEvent>(&line) {
                    event.id = event.id.max(history.last_id.get() + 1); // an older version gave none
                    history.last_id.set(event.id);
                    history.keep(event);
                }
            }
        }
        history
    }

    fn newer_file(&self) -> PathBuf {
        self.dir.join("events.jsonl")
    }

    fn older_file(&self) -> PathBuf {
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

    /// Adds events of an array, each with its time; they get their numbers here.
    pub(crate) fn append(&self, array: &str, events: Vec<(u64, Event)>) -> Vec<ArrayEvent> {
        let (mut number, mut lines) = (self.last(array), Vec::new());
        let mut added = Vec::new();
        for (unix_seconds, mut event) in events {
            number += 1;
            event.number = number;
            // An operator's word ends an array too: nobody is woken for that.
            if event.kind == "halted" && ["exported", "destroyed"].contains(&event.text.as_str()) {
                event.kind.clone_from(&event.text);
            }
            self.last_id.set(self.last_id.get() + 1);
            let event = ArrayEvent {
                array: array.to_string(),
                unix_seconds,
                id: self.last_id.get(),
                severity: severity(&event),
                event,
            };
            lines.extend(serde_json::to_vec(&event).unwrap_or_default());
            lines.push(b'\n');
            added.push(event);
        }
        if added.is_empty() {
            return added;
        }
        if let Err(error) = self.write(&lines)
            && !self.told.replace(true)
        {
            tracing::warn!(dir = %self.dir.display(), %error, "events cannot be written to the state directory; \
                a restart forgets them");
        }
        for event in &added {
            self.keep(event.clone());
        }
        self.changed.open();
        added
    }

    /// The number of the last event of all.
    pub(crate) fn last_id(&self) -> u64 {
        self.last_id.get()
    }

    /// Waits until there is an event with a greater number than `id` of an array, or of any, or `or` is so.
    pub(crate) async fn newer(&self, array: Option<&str>, id: u64, or: impl Fn() -> bool) {
        let newer = || {
            let events = self.events.borrow();
            let mut of = events
                .iter()
                .filter(|(name, _)| array.is_none_or(|a| a == *name));
            of.any(|(_, list)| list.back().is_some_and(|e| e.id > id)) || or()
        };
        self.changed.until(newer).await;
    }

    /// Lets those who wait look again.
    pub(crate) fn look_again(&self) {
        self.changed.open();
    }

    fn write(&self, lines: &[u8]) -> std::io::Result<()> {
        let mut open = self.file.borrow_mut();
        let mut file = match open.take() {
            Some(file) => file,
            None => File::options()
                .create(true)
                .append(true)
                .open(self.newer_file())?,
        };
        if file.metadata()?.len() >= FILE_BYTES {
            std::fs::rename(self.newer_file(), self.older_file())?;
            file = File::options()
                .create(true)
                .append(true)
                .open(self.newer_file())?;
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
    use super::*;

    fn event(at: u64, text: &str) -> (u64, Event) {
        let event = Event {
            number: 0,
            at: 0,
            kind: "bad-block".to_string(),
            device: None,
            text: text.to_string(),
            count: 1,
        };
        (at, event)
    }

    #[test]
    fn events_outlive_the_process_in_two_bounded_files() {
        let dir = std::env::temp_dir().join(format!("ashlar-history-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let history = History::load(&dir);
        assert_eq!((history.last("a"), history.arrays().len()), (0, 0));
        let added = history.append("a", vec![event(7, "first")]);
        assert_eq!((added[0].id, added[0].event.number), (1, 1));
        let added = history.append("b", vec![event(5, "the clock went back")]);
        assert_eq!((added[0].id, added[0].event.number), (2, 1));
        assert_eq!(added[0].severity, crate::api::Severity::Warning);
        let text = "x".repeat(1000);
        for number in 2..5000 {
            history.append("a", vec![event(number, &text)]);
        }
        let bytes = |path: PathBuf| std::fs::metadata(path).unwrap().len();
        assert!(bytes(history.newer_file()) <= FILE_BYTES + 2000);
        assert!(bytes(history.older_file()) <= FILE_BYTES + 2000);
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
        assert_eq!((history.last("a"), history.last_id()), (4999, 5000));
        let kept = history.events("a", 0);
        assert!((900..KEPT).contains(&kept.len()), "{}", kept.len());
        history.append("a", vec![event(5000, "next")]);
        assert_eq!(history.events("a", 4999)[0].event.text, "next");
        std::fs::remove_dir_all(&dir).unwrap();
        // Nowhere to write: kept all the same.
        history.append("a", (5001..9000).map(|n| event(n, &text)).collect());
        history.append("a", vec![event(9000, "last")]);
        assert_eq!(history.last("a"), 9000);
    }

    #[test]
    fn what_an_operator_ends_wakes_nobody() {
        let dir = std::env::temp_dir().join(format!("ashlar-ended-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let history = History::load(&dir);
        let halted = |text: &str| {
            let (at, mut event) = event(1, text);
            event.kind = "halted".to_string();
            let kept = history.append("a", vec![(at, event)]).remove(0);
            (kept.event.kind, kept.severity)
        };
        let info = crate::api::Severity::Info;
        assert_eq!(halted("destroyed"), ("destroyed".to_string(), info));
        assert_eq!(halted("exported"), ("exported".to_string(), info));
        assert_eq!(halted("no room").1, crate::api::Severity::Critical);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
