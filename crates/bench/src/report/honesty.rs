//! What makes a benchmark lie, as checks on facts that others gathered.
//!
//! **Invariants**: pure; each check gives one line that says what was found and what to do; a fact that
//! was not observed gives no verdict.

use serde::{Deserialize, Serialize};

/// Content that compresses better than this is not what `incompressible` means.
pub const MOST_COMPRESSION: f64 = 1.05;
/// How far the bytes seen at the devices may be from those expected, as a share of them.
pub const DEVICE_BYTES: f64 = 0.10;
/// Processors that others kept busier than this before the run make it a busy machine.
pub const MOST_BUSY: f64 = 0.20;

/// A layer that may answer instead of the devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cache {
    /// Which.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
}

/// What was observed about a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Bytes of the data set.
    pub data_bytes: u64,
    /// Caches that the run's reads and writes pass; none where it goes around them.
    pub caches: Vec<Cache>,
    /// Bytes that were allocated for the data set.
    pub allocated_bytes: Option<u64>,
    /// How many times smaller a compressor makes the content.
    pub compression: Option<f64>,
    /// Bytes that the devices moved, and bytes that they must have.
    pub device_bytes: Option<(u64, u64)>,
    /// Share of the processors that others used just before.
    pub busy_before: Option<f64>,
}

/// Reasons not to use what was measured; none: nothing speaks against it.
pub fn reasons(facts: &Facts) -> Vec<String> {
    let gib = |bytes: u64| match bytes as f64 / (1u64 << 30) as f64 {
        small if small < 1.0 => format!("{:.1} MiB", small * 1024.0),
        large => format!("{large:.2} GiB"),
    };
    let mut reasons = Vec::new();
    let caches: u64 = facts.caches.iter().map(|cache| cache.bytes).sum();
    if facts.data_bytes < 2 * caches {
        let names: Vec<String> = facts
            .caches
            .iter()
            .map(|cache| format!("{} {}", cache.name, gib(cache.bytes)))
            .collect();
        reasons.push(format!(
            "data of {} is less than twice all caches ({}): use at least {}, or go around them",
            gib(facts.data_bytes),
            names.join(", "),
            gib(2 * caches)
        ));
    }
    if let Some(allocated) = facts.allocated_bytes
        && allocated < facts.data_bytes / 100 * 95
    {
        reasons.push(format!(
            "sparse data: {} of {} are allocated: write all of it first",
            gib(allocated),
            gib(facts.data_bytes)
        ));
    }
    if let Some(ratio) = facts.compression
        && ratio > MOST_COMPRESSION
    {
        reasons.push(format!(
            "compressible data: {ratio:.1} to 1, more than {MOST_COMPRESSION} to 1: use random content"
        ));
    }
    if let Some((seen, expected)) = facts.device_bytes {
        let far = (seen as f64 - expected as f64).abs() > DEVICE_BYTES * expected as f64;
        if far {
            reasons.push(format!(
                "the devices moved {} where {} must be moved: a cache answered, or others used them",
                gib(seen),
                gib(expected)
            ));
        }
    }
    if let Some(busy) = facts.busy_before
        && busy > MOST_BUSY
    {
        reasons.push(format!(
            "busy machine: others used {:.0} % of the processors before the run: stop them",
            busy * 100.0
        ));
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    fn honest() -> Facts {
        Facts {
            data_bytes: 64 << 30,
            caches: vec![Cache {
                name: "page cache".to_string(),
                bytes: 24 << 30,
            }],
            allocated_bytes: Some(64 << 30),
            compression: Some(1.01),
            device_bytes: Some((80 << 30, 80 << 30)),
            busy_before: Some(0.03),
        }
    }

    #[track_caller]
    fn caught(change: impl Fn(&mut Facts), word: &str) {
        let mut facts = honest();
        change(&mut facts);
        let found = reasons(&facts);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(word), "{found:?}");
    }

    #[test]
    fn each_way_to_cheat_is_caught_with_its_own_reason() {
        assert!(reasons(&honest()).is_empty());
        caught(|f| f.data_bytes = 40 << 30, "page cache 24.00 GiB");
        caught(|f| f.allocated_bytes = Some(1 << 30), "sparse");
        caught(|f| f.compression = Some(1008.0), "compressible");
        caught(
            |f| f.device_bytes = Some((2 << 30, 80 << 30)),
            "a cache answered",
        );
        caught(|f| f.busy_before = Some(0.9), "busy machine");
    }

    #[test]
    fn what_was_not_observed_gives_no_verdict() {
        let facts = Facts {
            data_bytes: 1,
            ..Facts::default()
        };
        assert!(reasons(&facts).is_empty());
    }
}
