//! What a time to loss is computed from, and what of it is out of range.
//!
//! **Invariants.** What has been checked is finite and in its range.

/// Seconds in a year of 365.25 days.
pub const YEAR: f64 = 31_557_600.0;

/// What is assumed about devices, work and the world.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Assumptions {
    /// Annual failure rate of a device: the share that fails within a year, above 0 and below 1.
    pub afr: f64,
    /// Bytes of a device.
    pub device_bytes: f64,
    /// Bytes a second and device that reconstruct may use.
    pub bandwidth: f64,
    /// Share of the devices that holds live data, above 0 to 1; only that is reconstructed.
    pub fill: f64,
    /// Hours until a failed device is replaced, where the layout cannot reconstruct without.
    pub replace_hours: f64,
    /// Seconds from failure to the start of reconstruct; also the least time a class takes.
    pub detect_seconds: f64,
    /// Unreadable bits per bit read (a data sheet's 1 in 10^15).
    pub unreadable_per_bit: f64,
    /// Latent errors that arise per device and year and wait for the next scrub.
    pub latent_per_year: f64,
    /// Days between scrubs.
    pub scrub_days: f64,
    /// Segments that a device holds strips of: how finely a declustered group is cut.
    pub segments_per_device: f64,
    /// Failure domains per group (enclosures, hosts); 0: none are considered.
    pub domains: u16,
    /// Failures of a domain per year, each taking all its devices at once and for good.
    pub domain_per_year: f64,
}

impl Default for Assumptions {
    fn default() -> Assumptions {
        Assumptions {
            afr: 0.01,
            device_bytes: 1e13,
            bandwidth: 50.0 * 1_048_576.0,
            fill: 1.0,
            replace_hours: 24.0,
            detect_seconds: 60.0,
            unreadable_per_bit: 1e-15,
            latent_per_year: 0.1,
            scrub_days: 30.0,
            segments_per_device: f64::from(crate::exact::SLOTS_PER_DEVICE),
            domains: 0,
            domain_per_year: 0.0,
        }
    }
}

/// An assumption out of range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LifeError {
    /// The annual failure rate.
    #[error("the annual failure rate must be above 0 and below 100 percent")]
    Afr,
    /// The device size.
    #[error("the device size must be above 0 and at most 1 EiB")]
    Size,
    /// The bandwidth.
    #[error("the bandwidth must be above 0")]
    Bandwidth,
    /// The fill.
    #[error("the fill must be above 0 and at most 100 percent")]
    Fill,
    /// Hours, seconds, days or rates below 0 or not numbers.
    #[error("times and rates must be 0 or more")]
    Negative,
}

impl Assumptions {
    /// # Errors
    /// [`LifeError`] for what is out of range.
    pub fn check(&self) -> Result<(), LifeError> {
        let ranges = [
            (self.afr > 0.0 && self.afr < 1.0, LifeError::Afr),
            (
                self.device_bytes >= 1.0 && self.device_bytes <= 1.2e18,
                LifeError::Size,
            ),
            (
                self.bandwidth > 0.0 && self.bandwidth.is_finite(),
                LifeError::Bandwidth,
            ),
            (self.fill > 0.0 && self.fill <= 1.0, LifeError::Fill),
        ];
        let others = [
            self.replace_hours,
            self.detect_seconds,
            self.unreadable_per_bit,
            self.latent_per_year,
            self.scrub_days,
            self.segments_per_device,
            self.domain_per_year,
        ];
        match ranges.into_iter().find(|(good, _)| !good) {
            Some((_, error)) => Err(error),
            None if others
                .iter()
                .any(|x| !x.is_finite() || *x < 0.0 || *x > 1e12) =>
            {
                Err(LifeError::Negative)
            }
            None => Ok(()),
        }
    }

    /// Failures per second and device: a constant hazard that gives the annual rate.
    #[must_use]
    pub fn failure_rate(&self) -> f64 {
        -(-self.afr).ln_1p() / YEAR
    }

    /// Unreadable places per byte read: those of the data sheet, and the latent errors that wait for
    /// the next scrub, half an interval on average.
    pub(crate) fn unreadable_per_byte(&self) -> f64 {
        let latent = self.latent_per_year * self.scrub_days / 365.25 / 2.0;
        8.0 * self.unreadable_per_bit + latent / self.device_bytes
    }

    /// Every assumption, one sentence each.
    #[must_use]
    pub fn statements(&self) -> Vec<String> {
        let mut out = vec![
            format!(
                "Devices fail independently at a constant rate, {:.3} % of them a year.",
                self.afr * 100.0
            ),
            format!(
                "Devices hold {} ({}), {:.0} % of it live; only live data are rebuilt.",
                scaled(self.device_bytes, 1000.0, ["MB", "GB", "TB", "PB", "EB"]),
                scaled(
                    self.device_bytes,
                    1024.0,
                    ["MiB", "GiB", "TiB", "PiB", "EiB"]
                ),
                self.fill * 100.0
            ),
            format!(
                "A rebuild reads and writes {:.1} MB/s ({:.1} MiB/s) per device; it begins {:.0} s \
                 after a failure and treats the least redundant stripes first.",
                self.bandwidth / 1e6,
                self.bandwidth / 1_048_576.0,
                self.detect_seconds
            ),
            format!(
                "Groups as wide as their stripes wait {:.1} h for a replacement and fill one at a \
                 time, at the speed of one device; wider groups rebuild into free space on all \
                 devices at once, and have their devices replaced before that space runs out.",
                self.replace_hours
            ),
            format!(
                "Reading finds {:.1e} unreadable bits per bit, and {:.3} latent errors per device \
                 and year that a scrub every {:.0} days removes; one met with no redundancy left \
                 counts as a loss.",
                self.unreadable_per_bit, self.latent_per_year, self.scrub_days
            ),
            format!(
                "A device holds strips of {:.0} segments; in wider groups a further failure makes \
                 things worse only if it hits one of the worst segments.",
                self.segments_per_device
            ),
            "Times in a state are exponential; what is new is written at full redundancy and not \
             counted; software, operators and fire are not in it."
                .to_string(),
        ];
        if self.domains > 0 {
            out.push(format!(
                "Each group spreads over {} failure domains; one of them fails {} times a year, \
                 with all its devices at once and for good.",
                self.domains, self.domain_per_year
            ));
        } else {
            out.push("No failure takes several devices at once.".to_string());
        }
        out
    }
}

/// Bytes in the largest of the units that leaves at least one, the first being `base` squared bytes.
fn scaled(bytes: f64, base: f64, units: [&str; 5]) -> String {
    let mut value = bytes / (base * base);
    let mut unit = 0;
    while value >= base && unit < units.len() - 1 {
        value /= base;
        unit += 1;
    }
    format!("{value:.2} {}", units[unit])
}
