//! What settings may be found as: of the array, and of its volumes.
//!
//! Invariants: a change is known here before the array hears of it, and two changes of one setting are
//! never under way at once; a setting that was acknowledged survives every crash, one that was under way
//! may or may not, and what an import has shown stays.

use std::collections::BTreeMap;

use crate::rng::Rng;
use crate::store::Store;

/// Settings of the array, and the values that clients give them; the first is what an array begins with.
const ARRAY: [(&str, &[&str]); 2] = [
    ("clean.reserve", &["10%", "2%", "5%", "25%", "50%"]),
    ("reconstruct.narrow", &["critical", "always", "never"]),
];
/// The same of one that clients change beside trims.
pub const DISCARD: (&str, &[&str]) = ("discard", &["on", "off"]);
/// The same of those that sessions with scrubs change: how fast background work goes.
pub(crate) const RATES: [(&str, &[&str]); 5] = [
    ("scrub.max", &["none", "64K", "1M"]),
    ("reconstruct.min", &["20M", "64K", "1M"]),
    ("reconstruct.max", &["none", "64K", "1M"]),
    ("rebalance.min", &["10M", "64K", "1M"]),
    ("rebalance.max", &["none", "64K", "1M"]),
];
/// The same of a volume as the simulator makes it.
const VOLUME: [(&str, &[&str]); 1] = [("write-cache", &["on", "off", "auto"])];

/// A setting of a volume, or of the array.
pub type Key = (Option<String>, &'static str);

/// Every setting that was ever changed.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    known: BTreeMap<Key, Setting>,
}

#[derive(Clone, Debug)]
struct Setting {
    /// What it may be found as.
    possible: Vec<&'static str>,
    changing: bool,
}

type Table = &'static [(&'static str, &'static [&'static str])];

/// The settings of a volume, or of the array.
fn table(volume: bool) -> Table {
    if volume { &VOLUME } else { &ARRAY }
}

/// A setting and a value for it, of `volume` or of the array.
pub fn draw(volume: Option<String>, rng: &mut Rng) -> (Key, &'static str) {
    let (key, values) = rng.pick(table(volume.is_some()));
    ((volume, key), rng.pick(values))
}

/// Whether a setting says how fast background work goes.
pub(crate) fn is_rate(key: &str) -> bool {
    RATES.iter().any(|(name, _)| *name == key)
}

/// The values of a setting, the one that it begins with first.
fn values(key: &Key) -> &'static [&'static str] {
    let others = [&DISCARD].into_iter().chain(&RATES);
    let mut table = table(key.0.is_some()).iter().chain(others);
    let found = table.find(|(name, _)| *name == key.1);
    found.map_or(&[], |(_, values)| values)
}

impl Settings {
    /// A change is about to be asked for; false if another one of the same setting is under way.
    pub fn begin(&mut self, key: &Key, value: &'static str) -> bool {
        let setting = self.known.entry(key.clone()).or_insert_with(|| Setting {
            possible: values(key)[..1].to_vec(),
            changing: false,
        });
        if setting.changing {
            return false;
        }
        setting.changing = true;
        setting.possible.push(value);
        true
    }

    /// It was acknowledged (`ok`), or failed: then it may have happened.
    pub fn end(&mut self, key: &Key, ok: bool) {
        if let Some(setting) = self.known.get_mut(key) {
            setting.changing = false;
            if ok {
                let last = setting.possible.len() - 1;
                setting.possible.drain(..last);
            }
        }
    }

    /// A volume is made, or gone: what was known of one with its name is not true of it.
    pub fn forget(&mut self, volume: &str) {
        self.known
            .retain(|(of, _), _| of.as_deref() != Some(volume));
    }

    /// The array has stopped: no change is under way any more.
    pub fn stopped(&mut self) {
        self.known.values_mut().for_each(|s| s.changing = false);
    }

    /// Compares what is known with what `store` says after an import, and learns from it; what is wrong,
    /// if anything. With `any` every value may have come back.
    pub fn check(&mut self, store: &dyn Store, any: bool) -> Option<String> {
        let mut wrong = None;
        self.known.retain(|(volume, key), setting| {
            let Some(found) = store.setting(volume.as_deref(), key) else {
                return false; // no such volume: whether that is right is judged elsewhere
            };
            let key = (volume.clone(), *key);
            let value = values(&key).iter().find(|value| **value == found);
            match value.copied() {
                Some(value) if any || setting.possible.contains(&value) => {
                    setting.possible = vec![value];
                }
                _ => {
                    wrong = Some(format!(
                        "{key:?} is {found:?} after an import, may be {:?}",
                        setting.possible
                    ));
                }
            }
            true
        });
        wrong
    }
}
