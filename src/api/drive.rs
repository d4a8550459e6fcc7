//! Drives: what stands on their labels, and what they say of their health.
//!
//! **Invariants**: a value that nobody gives is absent; fields are only ever added.

use serde::{Deserialize, Serialize};

/// Kinds of warnings, and whether one calls for the operator: the others only tell how a drive ages.
pub(crate) const WARNINGS: [(&str, bool); 12] = [
    ("backup-failed", true),
    ("below-limit", true),
    ("failing", true),
    ("media-errors", false),
    ("memory-region", true),
    ("read-only", true),
    ("reallocated-sectors", false),
    ("spare-low", true),
    ("temperature", true),
    ("unreadable-sectors", true),
    ("unreliable", true),
    ("worn", true),
];

/// Something that a drive warns of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Warning {
    /// One of [`WARNINGS`].
    pub(crate) kind: String,
    /// What it is, in words.
    pub(crate) text: String,
}

/// What a drive says of its health.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Health {
    /// Its own verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) passed: Option<bool>,
    /// How much of its rated life is used up; may be more than 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) worn_percent: Option<u64>,
    /// How long it has been running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) power_on_hours: Option<u64>,
    /// What it could not read or give back: errors or sectors, as the drive counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) media_errors: Option<u64>,
    /// What it warns of.
    #[serde(default)]
    pub(crate) warnings: Vec<Warning>,
}

impl Health {
    /// `well`, what it warns of, or nothing if it says nothing.
    pub(crate) fn words(&self) -> Option<String> {
        let texts: Vec<&str> = self.warnings.iter().map(|w| w.text.as_str()).collect();
        match (texts.is_empty(), self.passed) {
            (false, _) => Some(texts.join("; ")),
            (true, Some(true)) => Some("well".to_string()),
            (true, _) => None,
        }
    }

    /// What it warns of that calls for the operator.
    pub(crate) fn urgent(&self) -> impl Iterator<Item = &Warning> {
        let is_aging = |w: &&Warning| WARNINGS.contains(&(w.kind.as_str(), false));
        self.warnings.iter().filter(move |w| !is_aging(w))
    }
}

/// What is known of a drive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hardware {
    /// Vendor and model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<String>,
    /// The serial number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) serial: Option<String>,
    /// The slot of its enclosure, or of PCI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) slot: Option<String>,
    /// Its temperature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) celsius: Option<i32>,
    /// What it says of its health.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) health: Option<Health>,
}

impl Hardware {
    /// What does not change.
    pub(crate) fn identity(&self) -> (&Option<String>, &Option<String>, &Option<String>) {
        (&self.model, &self.serial, &self.slot)
    }

    /// For whoever goes to look for it: `MODEL, serial SERIAL, slot SLOT`.
    pub(crate) fn words(&self) -> String {
        let serial = self.serial.as_ref().map(|s| format!("serial {s}"));
        let slot = self.slot.as_ref().map(|s| format!("slot {s}"));
        let parts = [self.model.clone(), serial, slot];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// The same, with what it warned of.
    pub(crate) fn words_and_warnings(&self) -> String {
        let health = self.health.as_ref().filter(|h| !h.warnings.is_empty());
        let health = health.and_then(Health::words);
        let health = health.map(|text| format!("the drive reports: {text}"));
        let parts = [Some(self.words()).filter(|w| !w.is_empty()), health];
        parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }
}

/// What is known of the drive under a device of an array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeviceHardware {
    /// The array.
    pub(crate) array: String,
    /// The device's number in it.
    pub(crate) index: u16,
    /// The drive.
    #[serde(flatten)]
    pub(crate) hardware: Hardware,
}
