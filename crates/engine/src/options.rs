//! How an array is imported and runs, its settings, and names.
//!
//! Invariants: a setting that the catalog holds has been checked when it was set; one that it does not hold, or holds
//! of a later version, counts as the default.

use std::collections::BTreeMap;
use std::rc::Rc;

use ashlar_accel::Choice;
use ashlar_format::superblock::MAX_DOMAIN;

use crate::error::Error;
use crate::members::beat::{Identity, Seen};
use crate::segment::coder::Accelerators;
use crate::space::geometry::CLEAN_RESERVE;
use crate::status::Work;

/// Bytes of the smallest and of the largest block that volumes may have: a power of two.
pub const VOLUME_BLOCKS: std::ops::RangeInclusive<u64> = 4096..=LARGEST_VOLUME_BLOCK;
/// Bytes of the largest.
pub const LARGEST_VOLUME_BLOCK: u64 = 128 << 10;

/// How an array runs in this process.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Shards: 1 or more.
    pub shards: usize,
    /// Memory for open stripes, deltas and the map's cache, in bytes.
    pub memory_bytes: u64,
    /// Partitions of every volume, fixed at creation; `None`: 64, fewer in tiny arrays.
    pub partitions: Option<u16>,
    /// What computes parity and lost columns, by the array's setting `accelerator`.
    pub accelerators: Accelerators,
    /// The host, as the beat names it; `None`: the array has no beat here.
    pub beat: Option<Identity>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            shards: 1,
            memory_bytes: 256 << 20,
            partitions: None,
            accelerators: Accelerators::default(),
            beat: None,
        }
    }
}

/// How to import.
#[derive(Debug, Clone, Default)]
pub struct Import {
    /// The array that is wanted: a device that says it is of another one is as good as missing. `None`: whichever it
    /// is, as long as all devices say the same.
    pub array: Option<[u8; 16]>,
    /// The array's name from now on, where it gets another one.
    pub name: Option<String>,
    /// Start with fewer devices, or less of the journal, than the rules ask for.
    pub degraded: bool,
    /// Refuse writes, and write nothing to any device: recovery's own writes stay in memory, and nothing is
    /// rebuilt, repaired or cleaned.
    pub read_only: bool,
    /// Take the array over from another host that did not export it: the operator says that it is off.
    pub take_over: bool,
    /// Whom to tell that the import waits, and for what.
    pub waits: Waits,
    /// What a watch of these devices gave; `None`: the import watches them first.
    pub watched: Option<Watched>,
    /// How it runs.
    pub settings: Settings,
}

/// What the devices of an array said of who uses it, at the end of a watch.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    /// By row.
    pub(crate) seen: BTreeMap<u16, Seen>,
    /// No other host can be at an import of the array: this boot used it last.
    pub(crate) alone: bool,
}

/// Told that an import waits, and for what.
#[derive(Clone, Default)]
pub struct Waits(Option<Rc<Told>>);

type Told = dyn Fn(&str);

impl Waits {
    /// With this to be called.
    pub fn new(told: impl Fn(&str) + 'static) -> Waits {
        Waits(Some(Rc::new(told)))
    }

    pub(crate) fn tell(&self, text: &str) {
        if let Some(told) = &self.0 {
            told(text);
        }
    }
}

impl std::fmt::Debug for Waits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Waits")
    }
}

/// What a device says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Label {
    pub array_uuid: [u8; 16],
    pub array_name: String,
    pub device_uuid: [u8; 16],
    pub index: u16,
    pub devices_total: u16,
    pub generation: u64,
    pub layout: String,
    pub size_bytes: u64,
    /// UUIDs of the devices that its generation counts.
    pub counted: Vec<[u8; 16]>,
}

/// Whether the label of a failure domain fits its place.
pub(crate) fn check_domain(label: &str) -> Result<(), Error> {
    match label.len() <= MAX_DOMAIN {
        true => Ok(()),
        false => Err(Error::Domain(label.to_string())),
    }
}

pub(crate) fn check_name(name: &str) -> Result<(), Error> {
    let first = name
        .chars()
        .next()
        .is_some_and(|c| c.is_ascii_alphanumeric());
    let rest = name
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if first && rest && name.len() <= 64 {
        Ok(())
    } else {
        Err(Error::Name(name.to_string()))
    }
}

/// A UUID in its usual form.
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|b| format!("{b:02x}")).collect();
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

/// A setting of an array.
#[derive(Debug)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Setting {
    pub key: &'static str,
    pub default: &'static str,
    /// The values it takes.
    pub takes: &'static str,
}

pub(crate) const ACCELERATOR: Setting = Setting {
    key: "accelerator",
    default: "auto",
    takes: "auto, cpu or cuda:N",
};

pub(crate) const DISCARD: Setting = Setting {
    key: "discard",
    default: "on",
    takes: "on or off",
};

pub(crate) const RESERVE: Setting = Setting {
    key: "clean.reserve",
    default: "10%",
    takes: "2% to 50%",
};

pub(crate) const NARROW: Setting = Setting {
    key: "reconstruct.narrow",
    default: "critical",
    takes: "critical, always or never",
};

pub(crate) const DELAY: Setting = Setting {
    key: "reconstruct.delay",
    default: "10m",
    takes: "0s to 24h, such as 30s or 10m",
};

const RATE: &str = "bytes a second and device, such as 10M, or none";

const fn rate(key: &'static str, default: &'static str) -> Setting {
    Setting {
        key,
        default,
        takes: RATE,
    }
}

const REBUILD_MIN: Setting = rate("reconstruct.min", "20M");
const REBUILD_MAX: Setting = rate("reconstruct.max", "none");
const REBALANCE_MIN: Setting = rate("rebalance.min", "10M");
const REBALANCE_MAX: Setting = rate("rebalance.max", "none");
const SCRUB_MIN: Setting = rate("scrub.min", "10M");
const SCRUB_MAX: Setting = rate("scrub.max", "none");

/// Bytes a second of each device that work of a kind may have while clients are at work, and at any time; `None`: as
/// many as the device gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rates {
    pub min: Option<u64>,
    pub max: Option<u64>,
}

/// The settings that say these of a kind of work that is held back.
pub(crate) fn rates_of(work: Work) -> Option<[&'static Setting; 2]> {
    match work {
        Work::Rebuild => Some([&REBUILD_MIN, &REBUILD_MAX]),
        Work::Rebalance => Some([&REBALANCE_MIN, &REBALANCE_MAX]),
        Work::Scrub => Some([&SCRUB_MIN, &SCRUB_MAX]),
        Work::Clean | Work::Repair => None,
    }
}

pub(crate) const SCRUB_EVERY: Setting = Setting {
    key: "scrub.every",
    default: "30d",
    takes: "1h to 365d, such as 30d, or never",
};

pub(crate) const SLOW_TIMEOUT: Setting = Setting {
    key: "slow.timeout",
    default: "2s",
    takes: "1s to 30s, such as 2s",
};

/// It stands in the superblock, not in the catalog: it says how space is reckoned.
pub(crate) const SPARE: Setting = Setting {
    key: "spare",
    default: "0",
    takes: "a number of devices, such as 1",
};

pub(crate) const START_WAIT: Setting = Setting {
    key: "start.wait",
    default: "180s",
    takes: "0s to 1h, such as 180s or 3m",
};

/// What `start.wait` is where nobody has set it, in seconds.
pub const DEFAULT_START_WAIT: u64 = 180;
const LONGEST_START_WAIT: u64 = 3600;
const LONGEST_DELAY: u64 = DAY;
const DAY: u64 = 24 * 3600;
const SLOW: std::ops::RangeInclusive<u64> = 1..=30;
/// What `slow.timeout` is where nobody has set it, in seconds.
pub(crate) const DEFAULT_SLOW_TIMEOUT: u64 = 2;
const EVERY: std::ops::RangeInclusive<u64> = 3600..=365 * DAY;
/// A lower rate would be no progress.
const LEAST_RATE: u64 = 64 << 10;

/// All settings of an array.
pub const SETTINGS: &[Setting] = &[
    ACCELERATOR,
    RESERVE,
    DISCARD,
    REBALANCE_MAX,
    REBALANCE_MIN,
    DELAY,
    REBUILD_MAX,
    REBUILD_MIN,
    NARROW,
    SCRUB_EVERY,
    SCRUB_MAX,
    SCRUB_MIN,
    SLOW_TIMEOUT,
    SPARE,
    START_WAIT,
];

impl Setting {
    pub(crate) fn find(key: &str) -> Result<&'static Setting, Error> {
        let found = SETTINGS.iter().find(|s| s.key == key);
        found.ok_or_else(|| {
            let known: Vec<&str> = SETTINGS.iter().map(|s| s.key).collect();
            Error::NoSetting {
                key: key.to_string(),
                known: known.join(", "),
            }
        })
    }

    /// What `value` is kept as, if it is one.
    pub(crate) fn parse(&self, value: &str) -> Result<String, Error> {
        let good = match self.key {
            key if key == RESERVE.key => percent(value).map(|_| value.to_string()),
            key if key == DELAY.key => delay(value).map(|_| value.to_string()),
            key if key == START_WAIT.key => start_wait(value).map(|_| value.to_string()),
            key if key == SLOW_TIMEOUT.key => slow_timeout(value).map(|_| value.to_string()),
            key if key == SCRUB_EVERY.key => every(value).map(|_| value.to_string()),
            _ if self.takes == RATE => bytes_a_second(value).map(|_| value.to_string()),
            key if key == SPARE.key => spare(value).map(|spare| spare.to_string()),
            key if key == DISCARD.key => ["on", "off"].contains(&value).then(|| value.to_string()),
            key if key == ACCELERATOR.key => value.parse().ok().map(|c: Choice| c.to_string()),
            _ => {
                let policies = ["critical", "always", "never"];
                policies.contains(&value).then(|| value.to_string())
            }
        };
        good.ok_or_else(|| Error::Setting {
            key: self.key,
            value: value.to_string(),
            takes: self.takes,
            default: self.default,
        })
    }
}

/// A reserve for cleaning, in percent.
pub(crate) fn percent(value: &str) -> Option<u8> {
    let digits = value.strip_suffix('%').unwrap_or(value);
    let percent: u8 = digits.parse().ok()?;
    (percent.to_string() == digits && CLEAN_RESERVE.contains(&percent)).then_some(percent)
}

/// Devices' worth of spare space.
pub(crate) fn spare(value: &str) -> Option<u16> {
    let spare: u16 = value.parse().ok()?;
    (spare.to_string() == value).then_some(spare)
}

/// How long a start waits for devices, in seconds.
pub(crate) fn start_wait(value: &str) -> Option<u64> {
    seconds(value).filter(|seconds| *seconds <= LONGEST_START_WAIT)
}

/// How long what lies on a missing device is not rebuilt, in seconds.
pub(crate) fn delay(value: &str) -> Option<u64> {
    seconds(value).filter(|seconds| *seconds <= LONGEST_DELAY)
}

/// How long a device may take to answer before the array goes on without it, in seconds.
pub(crate) fn slow_timeout(value: &str) -> Option<u64> {
    seconds(value).filter(|seconds| SLOW.contains(seconds))
}

/// How often something is repeated, in seconds; `Some(None)`: never.
pub(crate) fn every(value: &str) -> Option<Option<u64>> {
    if value == "never" {
        return Some(None);
    }
    let every = seconds(value).filter(|seconds| EVERY.contains(seconds))?;
    Some(Some(every))
}

/// Bytes a second of a device; `Some(None)`: as many as it gives.
pub(crate) fn bytes_a_second(value: &str) -> Option<Option<u64>> {
    if value == "none" {
        return Some(None);
    }
    let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match &value[digits.len()..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    let count: u64 = digits.parse().ok()?;
    let bytes = count
        .checked_mul(unit)
        .filter(|bytes| *bytes >= LEAST_RATE)?;
    (count.to_string() == digits).then_some(Some(bytes))
}

fn seconds(value: &str) -> Option<u64> {
    let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &value[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => DAY,
        _ => return None,
    };
    let count: u64 = digits.parse().ok()?;
    let seconds = count.checked_mul(unit)?;
    (count.to_string() == digits).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spare_space_is_a_number_of_devices() {
        for (value, devices) in [
            ("0", Some(0)),
            ("65535", Some(65_535)),
            ("65536", None),
            ("-1", None),
            ("+1", None),
            ("01", None),
            ("1G", None),
            ("", None),
        ] {
            assert_eq!(spare(value), devices, "{value}");
        }
    }

    #[test]
    fn a_scrub_is_repeated_and_bounded_within_reason() {
        for (value, seconds) in [
            ("never", Some(None)),
            ("1h", Some(Some(3600))),
            ("30d", Some(Some(30 * DAY))),
            ("365d", Some(Some(365 * DAY))),
            ("366d", None),
            ("59m", None),
            ("0s", None),
            ("none", None),
        ] {
            assert_eq!(every(value), seconds, "{value}");
        }
        for (value, bytes) in [
            ("none", Some(None)),
            ("64K", Some(Some(64 << 10))),
            ("100M", Some(Some(100 << 20))),
            ("65535", None),
            ("0", None),
            ("1T", None),
            ("-1M", None),
            ("never", None),
        ] {
            assert_eq!(bytes_a_second(value), bytes, "{value}");
        }
    }

    #[test]
    fn a_start_waits_up_to_an_hour() {
        assert_eq!(delay(DELAY.default), Some(600));
        assert_eq!((delay("24h"), delay("25h")), (Some(86_400), None));
        assert_eq!(start_wait(START_WAIT.default), Some(DEFAULT_START_WAIT));
        for (value, seconds) in [
            ("0s", Some(0)),
            ("60", Some(60)),
            ("3m", Some(180)),
            ("1h", Some(3600)),
            ("3600s", Some(3600)),
            ("3601s", None),
            ("61m", None),
            ("2h", None),
            ("-1s", None),
            ("+1s", None),
            ("1d", None),
            ("0d", Some(0)),
            ("1 s", None),
            ("s", None),
            ("", None),
            ("18446744073709551615h", None),
        ] {
            assert_eq!(start_wait(value), seconds, "{value}");
        }
    }
}
