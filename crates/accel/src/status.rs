//! How an accelerator stands, in figures and in words.
//!
//! **Invariants**: a device is said to be in use only while it takes jobs.

use std::fmt;

use crate::Fault;
use crate::choice::Choice;
use crate::cost::{DeviceRates, Rates};
use crate::done::Counters;

/// What was chosen, why, and what has been done.
#[derive(Clone, PartialEq, Debug)]
pub struct Status {
    /// What the operator asked for.
    pub choice: Choice,
    /// Number of the GPU that was opened or tried.
    pub number: u16,
    /// Its name, if it was opened.
    pub device: Option<String>,
    /// Why it is not used, if so.
    pub fault: Option<Fault>,
    /// Its measured rates.
    pub device_rates: Option<DeviceRates>,
    /// The processor's; infinite if they were not measured.
    pub cpu_rates: Rates,
    /// Bytes used on the device.
    pub device_memory: usize,
    /// Bytes pinned on the host.
    pub pinned_memory: usize,
    /// What has been done.
    pub counters: Counters,
}

impl Status {
    /// Whether a device takes jobs.
    pub fn is_on_device(&self) -> bool {
        self.device.is_some() && self.fault.is_none()
    }

    /// What is in use: `cpu` or `cuda:N`.
    pub fn chosen(&self) -> String {
        match self.is_on_device() {
            true => format!("cuda:{}", self.number),
            false => "cpu".to_string(),
        }
    }

    /// Why.
    pub fn reason(&self) -> String {
        match (&self.device, self.fault, self.choice) {
            (Some(name), None, Choice::Cuda(_)) => {
                format!("{name}, for every batch it can take, as set")
            }
            (Some(name), None, _) => {
                format!("{name}, for batches that are measured to be cheaper there")
            }
            (_, Some(fault), _) => format!("processor only: {fault}"),
            (None, None, Choice::Cpu) => "processor only, as set".to_string(),
            (None, None, _) => {
                format!("processor only while cuda:{} is being opened", self.number)
            }
        }
    }

    /// What the device was measured to do and what it holds, if one is in use.
    pub(crate) fn rates_text(&self) -> String {
        let Some(rates) = self.device_rates.filter(|_| self.is_on_device()) else {
            return String::new();
        };
        format!(
            "; link {:.1} in and {:.1} out GB/s, {:.0} us for a small batch, {} MiB on the device, {} MiB pinned",
            rates.link_in / 1e9,
            rates.link_out / 1e9,
            rates.fixed_nanos / 1e3,
            self.device_memory >> 20,
            self.pinned_memory >> 20,
        )
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "accelerator {}: ", self.choice)?;
        if self.is_on_device() {
            write!(f, "{} ", self.chosen())?;
        }
        f.write_str(&self.reason())?;
        f.write_str(&self.rates_text())?;
        let c = &self.counters;
        write!(
            f,
            "; batches: {} on the device ({} checked), {} on the processor ({} because it was full, {} after a fault)",
            c.device_jobs, c.checked, c.cpu_jobs, c.full, c.redone
        )
    }
}
