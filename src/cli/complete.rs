//! What shells offer at Tab: verbs and flags, and what there is now: arrays, volumes, devices, layouts, settings.
//!
//! **Invariants**: whoever presses Tab never waits longer than [`LIMIT`] for a daemon, and reads no error: where
//! nothing can be told, nothing is offered.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use clap_complete::engine::CompletionCandidate;

use crate::api::{Call, StatusReply};
use crate::client::{Client, socket_path};
use crate::daemon::state::NOTIFY_SETTINGS;
use crate::view::picture::state_word;

/// How long the daemon may take.
const LIMIT: Duration = Duration::from_secs(1);
/// Layouts that are common, and what they are.
const LAYOUTS: &[(&str, &str)] = &[
    ("ec4+2", "4 data, 2 parity, over any number of devices"),
    ("ec8+2", "8 data, 2 parity"),
    ("ec8+3", "8 data, 3 parity"),
    ("ec16+3", "16 data, 3 parity"),
    ("ec80+4", "80 data, 4 parity"),
    ("raid0", "no redundancy"),
    ("raid1", "a copy on every device"),
    ("raid10", "pairs of copies"),
    ("raid5", "one parity, as wide as the devices"),
    ("raid6", "two parities"),
    ("raid7.3", "three parities"),
    ("raid50:2", "two groups of raid5"),
    ("raid60:2", "two groups of raid6"),
    ("raid70:2", "two groups of raid7.3"),
    ("draid2:8d:14c:1s", "as ZFS writes it"),
    ("grid:2(8+2+1)", "as GridRAID writes it"),
    ("jbod", "devices one after another, no redundancy"),
];

fn status() -> Option<StatusReply> {
    let mut words = std::env::args_os();
    let flag = words
        .find(|word| word == "--socket")
        .and_then(|_| words.next())
        .map(PathBuf::from);
    let client = Client::new(socket_path(flag.as_deref())).ok()?;
    let call = Call::Status { array: None };
    client.call_within(&call, Some(LIMIT)).ok()
}

fn candidate(value: &str, help: &str) -> CompletionCandidate {
    CompletionCandidate::new(value).help((!help.is_empty()).then(|| help.to_string().into()))
}

fn beginning(current: &OsStr, all: Vec<(String, String)>) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    let fits = |(value, _): &&(String, String)| value.starts_with(&*current);
    let found = all.iter().filter(fits);
    found.map(|(value, help)| candidate(value, help)).collect()
}

/// Arrays that are imported.
pub(super) fn arrays(current: &OsStr) -> Vec<CompletionCandidate> {
    let arrays = status().map_or(Vec::new(), |s| s.arrays);
    let all = arrays.into_iter().map(|a| {
        let what = format!("{}, {}", a.layout, state_word(a.state).0.to_lowercase());
        (a.name, what)
    });
    beginning(current, all.collect())
}

/// Arrays that are known and not imported.
pub(super) fn not_imported(current: &OsStr) -> Vec<CompletionCandidate> {
    let waiting = status().map_or(Vec::new(), |s| s.not_imported);
    let all = waiting.into_iter().map(|n| (n.name, n.reason));
    beginning(current, all.collect())
}

/// `ARRAY/VOL` of all volumes.
pub(super) fn volumes(current: &OsStr) -> Vec<CompletionCandidate> {
    let mut all = Vec::new();
    for array in status().map_or(Vec::new(), |s| s.arrays) {
        for volume in array.volumes {
            let name = format!("{}/{}", array.name, volume.name);
            all.push((name, crate::units::size(volume.size_bytes)));
        }
    }
    beginning(current, all)
}

/// `ARRAY/`, for a volume that is to be made.
pub(super) fn arrays_of_volumes(current: &OsStr) -> Vec<CompletionCandidate> {
    let arrays = status().map_or(Vec::new(), |s| s.arrays);
    let all = arrays.into_iter().map(|a| (a.name + "/", String::new()));
    beginning(current, all.collect())
}

/// Devices of arrays.
pub(super) fn devices(current: &OsStr) -> Vec<CompletionCandidate> {
    let mut all = Vec::new();
    for array in status().map_or(Vec::new(), |s| s.arrays) {
        for device in array.devices {
            if !device.last_path.is_empty() {
                let what = format!("device {} of {}", device.index, array.name);
                all.push((device.last_path, what));
            }
        }
    }
    beginning(current, all)
}

/// Layouts.
pub(super) fn layouts(current: &OsStr) -> Vec<CompletionCandidate> {
    let all = LAYOUTS
        .iter()
        .map(|(l, what)| (l.to_string(), what.to_string()));
    beginning(current, all.collect())
}

fn keys() -> Vec<(String, String)> {
    let engines = ashlar_engine::SETTINGS.iter().map(|s| {
        let key = s.key.replace("reconstruct.", "rebuild.");
        (key, format!("{} [default: {}]", s.takes, s.default))
    });
    let notify = NOTIFY_SETTINGS
        .iter()
        .map(|(key, takes)| (key.to_string(), format!("{takes}, or nothing")));
    engines.chain(notify).collect()
}

/// Names of settings.
pub(super) fn settings(current: &OsStr) -> Vec<CompletionCandidate> {
    beginning(current, keys())
}

/// `KEY=` of settings, and their values where these are words.
pub(super) fn assignments(current: &OsStr) -> Vec<CompletionCandidate> {
    let mut all = Vec::new();
    for (key, takes) in keys() {
        let listed = takes.split(" [default").next().unwrap_or_default();
        let words = listed.replace(" or ", ", ");
        let words: Vec<&str> = words.split(", ").map(str::trim).collect();
        let word = |w: &&str| w.bytes().all(|b| b.is_ascii_lowercase());
        all.extend(
            words
                .iter()
                .filter(|w| word(w) && **w != "nothing")
                .map(|w| (format!("{key}={w}"), String::new())),
        );
        all.push((format!("{key}="), takes));
    }
    beginning(current, all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(found: Vec<CompletionCandidate>) -> Vec<String> {
        let text = |c: &CompletionCandidate| c.get_value().to_string_lossy().into_owned();
        found.iter().map(text).collect()
    }

    #[test]
    fn every_layout_offered_is_one() {
        for (layout, _) in LAYOUTS {
            assert!(layout.parse::<ashlar_layout::Layout>().is_ok(), "{layout}");
        }
        assert_eq!(values(layouts(OsStr::new("raid1"))), ["raid1", "raid10"]);
    }

    #[test]
    fn settings_are_offered_with_the_words_they_take() {
        let found = values(assignments(OsStr::new("rebuild.narrow=")));
        for word in ["critical", "always", "never"] {
            assert!(
                found.contains(&format!("rebuild.narrow={word}")),
                "{found:?}"
            );
        }
        assert!(values(settings(OsStr::new(""))).contains(&"notify.exec".to_string()));
        assert_eq!(values(assignments(OsStr::new("clean"))), ["clean.reserve="]);
    }
}
