//! What speaks against a test, as reasons and warnings on its sample.
//!
//! **Invariants**: pure; a level of devices that moved less than was asked of it stamps the test, so does one that others
//! used; what cannot be checked is said.

use super::machine::System;
use super::stack::{Moved, Stack};
use crate::report::honesty::{DEVICE_BYTES, Facts, reasons};

/// Bytes a second that others may move on the devices while nothing of ours runs.
pub const MOST_FOREIGN: f64 = 8e6;
/// What a file system writes of its own beside small files: journal, bitmaps, superblocks.
const OWN_BYTES: u64 = 8 << 20;
/// Below this the windows of a run say nothing of a device.
pub const SHORTEST: f64 = 2.0;

/// What was seen of a test beside the facts that [`reasons`] takes.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Whether the test wrote.
    pub wrote: bool,
    /// Bytes that were asked for.
    pub asked: u64,
    /// Names of the levels, the file system's first, and what each moved.
    pub levels: Vec<(String, Moved)>,
    /// Whether the first level is one device: only then what it writes has an upper bound.
    pub one_device: bool,
    /// Bytes that the kernel fetched from devices for this process.
    pub fetched: Option<u64>,
    /// Bytes a second that others moved just before.
    pub foreign: Option<f64>,
    /// How long it ran.
    pub seconds: f64,
    /// Whether devices are gone below it: more is read then than was asked for, and the kernel computes the rest.
    pub degraded: bool,
}

impl Seen {
    /// Whether the first level has nothing to move but what was asked for: not where it mirrors, nor where it decodes.
    fn is_bounded(&self) -> bool {
        self.one_device || !(self.wrote || self.degraded)
    }
}

fn size(bytes: u64) -> String {
    if bytes < 10 << 30 {
        return format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    }
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

/// Reasons not to use the figure.
pub fn invalid(facts: &Facts, seen: &Seen) -> Vec<String> {
    let mut found = reasons(facts);
    let least = (seen.asked as f64 * (1.0 - DEVICE_BYTES)) as u64;
    let most = (seen.asked as f64 * (1.0 + DEVICE_BYTES)) as u64 + OWN_BYTES;
    let verb = if seen.wrote { "written" } else { "read" };
    if seen.levels.is_empty() {
        found.push("no device is visible below it: bytes cannot be checked".to_string());
    }
    for (index, (name, moved)) in seen.levels.iter().enumerate() {
        let bytes = if seen.wrote {
            moved.written
        } else {
            moved.read
        };
        if bytes < least {
            found.push(format!(
                "{} were {verb} of {name} where {} were asked for: a cache answered",
                size(bytes),
                size(seen.asked)
            ));
        } else if index == 0 && bytes > most && seen.is_bounded() {
            found.push(format!(
                "{} were {verb} of {name} where {} were asked for: others used it",
                size(bytes),
                size(seen.asked)
            ));
        }
    }
    if let Some(fetched) = seen.fetched.filter(|_| !seen.wrote && !seen.degraded)
        && fetched < least
        && !seen.levels.is_empty()
    {
        found.push(format!(
            "the kernel fetched {} from devices for this process where {} were asked for: the page cache answered",
            size(fetched),
            size(seen.asked)
        ));
    }
    found.extend(busy_devices(seen));
    found
}

fn busy_devices(seen: &Seen) -> Option<String> {
    let foreign = seen.foreign.filter(|foreign| *foreign > MOST_FOREIGN)?;
    Some(format!(
        "busy devices: others moved {:.0} MB/s on them before the test: stop them",
        foreign / 1e6
    ))
}

/// Reasons that lie in what others did on the machine, where nothing else can be held against a figure.
pub fn disturbed(facts: &Facts, seen: &Seen) -> Vec<String> {
    let only = Facts {
        busy_before: facts.busy_before,
        ..Facts::default()
    };
    let mut found = reasons(&only);
    found.extend(busy_devices(seen));
    found
}

/// What to keep in mind.
pub fn warnings(seen: &Seen) -> Vec<String> {
    let mut found = Vec::new();
    if seen.seconds < SHORTEST {
        found.push(format!(
            "ran {:.2} s: too short to say whether the device is steady",
            seen.seconds
        ));
    }
    if let Some((name, moved)) = seen.levels.first()
        && seen.degraded
        && !seen.wrote
        && moved.read > seen.asked / 20 * 21
    {
        found.push(format!(
            "{} were read of {name} where {} were asked for: what is gone is computed from the rest",
            size(moved.read),
            size(seen.asked)
        ));
    }
    found
}

/// The levels of a stack by name, with what they moved since `before`.
pub fn levels(system: &System, stack: &Stack, before: &[Moved]) -> Vec<(String, Moved)> {
    let now = stack.moved(system);
    let levels = stack.levels.iter().zip(now.iter().zip(before));
    levels
        .map(|(level, (now, before))| (level.devices.join("+"), now.since(*before)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn read(top: u64, below: u64) -> Seen {
        let moved = |read| Moved { read, written: 0 };
        Seen {
            wrote: false,
            asked: 1000 * MIB,
            levels: vec![
                ("loop0".to_string(), moved(top)),
                ("vda".to_string(), moved(below)),
            ],
            one_device: true,
            fetched: Some(1000 * MIB),
            foreign: Some(0.0),
            seconds: 10.0,
            degraded: false,
        }
    }

    #[track_caller]
    fn one(seen: &Seen, words: &str) {
        let found = invalid(&Facts::default(), seen);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(words), "{found:?}");
    }

    #[test]
    fn each_level_must_move_what_was_asked() {
        let honest = read(1000 * MIB, 3000 * MIB);
        assert!(invalid(&Facts::default(), &honest).is_empty());
        one(&read(0, 1000 * MIB), "read of loop0 where");
        one(&read(1000 * MIB, 100 * MIB), "read of vda where");
        one(&read(2000 * MIB, 2000 * MIB), "others used it");
        one(
            &Seen {
                fetched: Some(0),
                ..honest.clone()
            },
            "page cache answered",
        );
        one(
            &Seen {
                foreign: Some(9e7),
                ..honest.clone()
            },
            "others moved 90 MB/s",
        );
        one(
            &Seen {
                levels: Vec::new(),
                ..honest
            },
            "no device is visible",
        );
    }

    #[test]
    fn with_devices_gone_more_is_read_and_the_kernel_computes_but_a_cache_is_still_told() {
        let decoded = Seen {
            degraded: true,
            one_device: false,
            fetched: Some(200 * MIB),
            ..read(6000 * MIB, 6000 * MIB)
        };
        assert!(invalid(&Facts::default(), &decoded).is_empty());
        assert!(warnings(&decoded)[0].contains("computed from the rest"));
        let whole = Seen {
            degraded: false,
            fetched: Some(1000 * MIB),
            ..decoded.clone()
        };
        one(&whole, "others used it");
        let cached = Seen {
            levels: vec![(
                "sda+sdb".to_string(),
                Moved {
                    read: 10 * MIB,
                    written: 0,
                },
            )],
            ..decoded
        };
        one(&cached, "a cache answered");
    }

    #[test]
    fn mirrors_may_write_more_and_what_is_not_known_is_not_judged() {
        let moved = Moved {
            read: 0,
            written: 2000 * MIB,
        };
        let wrote = Seen {
            wrote: true,
            asked: 1000 * MIB,
            levels: vec![("sda+sdb".to_string(), moved)],
            seconds: 1.0,
            ..Seen::default()
        };
        assert!(invalid(&Facts::default(), &wrote).is_empty());
        one(
            &Seen {
                one_device: true,
                ..wrote.clone()
            },
            "others used it",
        );
        assert!(warnings(&wrote)[0].contains("too short"));
        assert!(
            warnings(&Seen {
                seconds: 5.0,
                ..wrote
            })
            .is_empty()
        );
    }
}
