//! The effective settings of an array.

use ashlar_space::work::Narrow;

use crate::home::Home;
use crate::home::jobs::narrow_named;
use ashlar_rt::{Nanos, SECOND};

use crate::options::{ACCELERATOR, DELAY, NARROW, RESERVE, Setting, delay, percent};
use crate::space::geometry::DEFAULT_CLEAN_RESERVE;

impl Home {
    /// What is set, or the default.
    pub(crate) fn setting(&self, setting: &Setting) -> String {
        let catalog = self.catalog.borrow();
        let set = catalog.settings.iter().find(|(k, _)| k == setting.key);
        set.map_or_else(|| setting.default.to_string(), |(_, value)| value.clone())
    }

    /// What `clean.reserve` says.
    pub(crate) fn clean_reserve_percent(&self) -> u8 {
        percent(&self.setting(&RESERVE)).unwrap_or(DEFAULT_CLEAN_RESERVE)
    }

    /// What `reconstruct.delay` says.
    pub(crate) fn rebuild_delay(&self) -> Nanos {
        delay(&self.setting(&DELAY)).unwrap_or(0) * SECOND
    }

    /// What `reconstruct.narrow` says.
    pub(crate) fn narrow_policy(&self) -> Narrow {
        narrow_named(&self.setting(&NARROW))
    }

    /// Computes with what `accelerator` says from now on.
    pub(crate) fn choose_accelerator(&self) {
        let choice = self.setting(&ACCELERATOR).parse().unwrap_or_default();
        self.core.coder.choose(choice);
    }
}
