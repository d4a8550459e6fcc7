//! The settings of an array, which `ashlar set` changes and `get` shows.
//!
//! Invariants: what the catalog holds has been checked when it was set; what it does not hold, or holds of a
//! later version, counts as the default.

use crate::api::array::Array;
use crate::error::Error;
use crate::options::{
    ACCELERATOR, DEFAULT_START_WAIT, RESERVE, SETTINGS, SLOW_TIMEOUT, SPARE, START_WAIT, Setting,
    percent, spare, start_wait,
};

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

    /// How many seconds a start waits for devices that are not there yet.
    pub fn start_wait(&self) -> u64 {
        start_wait(&self.0.home.setting(&START_WAIT)).unwrap_or(DEFAULT_START_WAIT)
    }

    /// Changes a setting.
    ///
    /// # Errors
    /// [`Error::NoSetting`], [`Error::Setting`], [`Error::Promised`] for a reserve that volumes were promised, and
    /// why there can be no such spare space.
    pub async fn set(&self, key: &str, value: &str) -> Result<(), Error> {
        self.check_writable()?;
        let value = Setting::find(key)?.parse(value)?;
        if key == SPARE.key {
            let spare = spare(&value).unwrap_or(0);
            return self
                .change_of(async move |home| home.set_spare(spare).await)
                .await;
        }
        let home = &self.0.home;
        if key == RESERVE.key
            && let Some(percent) = percent(&value)
            && percent > home.clean_reserve_percent()
        {
            let most = home.clean_reserve_that_fits().unwrap_or(0);
            if percent > most {
                return Err(Error::Promised { most: most.into() });
            }
        }
        {
            let mut catalog = home.catalog.borrow_mut();
            catalog.settings.retain(|(k, _)| k != key);
            catalog.settings.push((key.to_string(), value));
        }
        let (accelerator, slow) = (key == ACCELERATOR.key, key == SLOW_TIMEOUT.key);
        self.keep(async move |home| {
            home.checkpoint(0).await;
            if slow {
                home.set_patience();
            }
            if accelerator {
                home.choose_accelerator();
            }
            // It may allow work that waits.
            home.space.index().unpark_all();
            home.demand.clean();
        })
        .await
    }
}
