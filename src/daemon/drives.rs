//! What is known of drives and of what else devices lie on, and that there are new drives.
//!
//! **Invariants**: values only.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use ashlar_rt::Gate;

use crate::api::Hardware;

/// What is known of drives.
#[derive(Debug, Default)]
pub(crate) struct Drives {
    /// By the UUID of the device on them: saved with the list of arrays.
    pub(crate) known: RefCell<BTreeMap<String, Hardware>>,
    /// There are new ones, which have not been asked.
    new: Cell<bool>,
    gate: Gate,
    /// What is wrong with what lies under devices in use, by their UUID.
    pub(super) stored: RefCell<BTreeMap<String, Stored>>,
    /// Folders of devices in use that are being looked at.
    pub(super) looking: RefCell<BTreeSet<PathBuf>>,
}

/// Something that is wrong with what lies under a device.
#[derive(Debug)]
pub(super) struct Stored {
    /// What, for people.
    pub(super) wrong: String,
    /// It was so twice in a row.
    pub(super) sure: bool,
}

impl Drives {
    /// Notes that an array has come with its drives.
    pub(crate) fn note_new(&self) {
        self.new.set(true);
        self.gate.open();
    }

    /// Whether there are new ones; from here on there are not.
    pub(crate) fn take_new(&self) -> bool {
        self.new.take()
    }

    /// Waits until there are new ones.
    pub(crate) async fn until_new(&self) {
        self.gate.until(|| self.new.get()).await;
    }
}
