//! The settings of an array: what `ashlar set` and `get` know.
//!
//! Invariants: what the catalog holds has been checked when it was set; what it does not hold, or holds of a
//! later version, counts as the default.

use ashlar_accel::Choice;

use crate::alloc::CLEAN_RESERVE;
use crate::array::Array;
use crate::error::Error;
use crate::home::Home;

/// A setting of an array.
#[derive(Debug)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Setting {
    pub key: &'static str,
    pub default: &'static str,
    /// The values it takes.
    pub takes: &'static str,
}

const ACCELERATOR: Setting = Setting {
    key: "accelerator",
    default: "auto",
    takes: "auto, cpu or cuda:N",
};
const RESERVE: Setting = Setting {
    key: "clean.reserve",
    default: "10%",
    takes: "2% to 50%",
};
const NARROW: Setting = Setting {
    key: "reconstruct.narrow",
    default: "critical",
    takes: "critical, always or never",
};

/// All settings of an array.
pub const SETTINGS: &[Setting] = &[ACCELERATOR, RESERVE, NARROW];

impl Setting {
    fn find(key: &str) -> Result<&'static Setting, Error> {
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
    fn parse(&self, value: &str) -> Result<String, Error> {
        let good = match self.key {
            key if key == RESERVE.key => percent(value).map(|_| value.to_string()),
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
fn percent(value: &str) -> Option<u64> {
    let digits = value.strip_suffix('%').unwrap_or(value);
    let percent: u64 = digits.parse().ok()?;
    (percent.to_string() == digits && CLEAN_RESERVE.contains(&percent)).then_some(percent)
}

impl Home {
    /// What is set, or the default.
    fn setting(&self, setting: &Setting) -> String {
        let catalog = self.catalog.borrow();
        let set = catalog.settings.iter().find(|(k, _)| k == setting.key);
        set.map_or_else(|| setting.default.to_string(), |(_, value)| value.clone())
    }

    /// What `clean.reserve` says.
    pub(crate) fn clean_reserve_percent(&self) -> u64 {
        percent(&self.setting(&RESERVE)).unwrap_or(crate::alloc::DEFAULT_CLEAN_RESERVE)
    }

    /// What `reconstruct.narrow` says.
    pub(crate) fn narrow_policy(&self) -> String {
        self.setting(&NARROW)
    }

    /// Computes with what `accelerator` says from now on.
    pub(crate) fn choose_accelerator(&self) {
        let choice = self.setting(&ACCELERATOR).parse().unwrap_or_default();
        self.core.coder.choose(choice);
    }
}

impl Array {
    /// Settings and their values.
    ///
    /// # Errors
    /// [`Error::NoSetting`].
    pub fn get(&self, key: Option<&str>) -> Result<Vec<(String, String)>, Error> {
        let pair = |s: &Setting| (s.key.to_string(), self.0.home.setting(s));
        match key {
            None => Ok(SETTINGS.iter().map(pair).collect()),
            Some(key) => Ok(vec![pair(Setting::find(key)?)]),
        }
    }

    /// Changes a setting.
    ///
    /// # Errors
    /// [`Error::NoSetting`], [`Error::Setting`], and [`Error::Promised`] for a reserve that volumes were
    /// promised.
    pub async fn set(&self, key: &str, value: &str) -> Result<(), Error> {
        self.check_writable()?;
        let value = Setting::find(key)?.parse(value)?;
        let home = &self.0.home;
        if key == RESERVE.key
            && let Some(percent) = percent(&value)
            && percent > home.clean_reserve_percent()
        {
            let most = home.clean_reserve_that_fits().unwrap_or(0);
            if percent > most {
                return Err(Error::Promised { most });
            }
        }
        {
            let mut catalog = home.catalog.borrow_mut();
            catalog.settings.retain(|(k, _)| k != key);
            catalog.settings.push((key.to_string(), value));
        }
        let accelerator = key == ACCELERATOR.key;
        self.keep(async move |home| {
            home.commit(0).await;
            if accelerator {
                home.choose_accelerator();
            }
        })
        .await
    }
}
