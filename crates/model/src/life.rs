//! Failure and reconstruct rates to mean time to data loss, probability of loss a year, nines.
//!
//! Each group is a Markov chain whose state is the number of strips missing in its worst stripes
//! (and, where declustered, of devices lost meanwhile).
//! Devices fail at a constant rate; reconstruct treats the stripes with the least redundancy first
//! and brings the worst class one step back at a time. What goes into it is stated by
//! [`Assumptions::statements`], which every output repeats.
//!
//! Reconstruct times. A group as wide as its stripes waits for a replacement, which is then written
//! at the speed of one device: wait + C/b. A declustered group ([`crate::declustered`]) spreads the
//! work over all devices left; for one lost that is the papers' C (K+1) / ((n-1) b): 1.25 h instead
//! of 5.6 h per TB for 41 drives (8+2) at 50 MB/s.
//!
//! **Invariants.** All results are finite; times are positive; more parity at equal width never
//! shortens the mean time to loss.

use crate::chain::Chain;
use crate::declustered::Spells;
use crate::ln::Ln;
use crate::system::{Group, System};

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

/// The rates of a group as wide as its stripes.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupRates {
    /// Failures per second and device.
    pub failure: f64,
    /// Seconds from a failure until its device is replaced and written: one at a time.
    pub repair: f64,
    /// The probability that a reconstruct with no redundancy left meets an unreadable place.
    pub unreadable: f64,
    /// Losses per second without any device failing (latent errors where there is no redundancy).
    pub bare: f64,
    /// Domain failures per second and group.
    pub domain: f64,
    /// Strips of a stripe that a domain failure takes at most.
    pub domain_strips: usize,
}

impl GroupRates {
    /// The rates of `group` under `assumptions`.
    #[must_use]
    pub fn new(group: Group, assumptions: &Assumptions) -> GroupRates {
        let a = assumptions;
        let (n, live) = (f64::from(group.devices), a.device_bytes * a.fill);
        let repair = a.replace_hours * 3600.0 + live / a.bandwidth;
        let read = live * f64::from(group.k) * a.unreadable_per_byte();
        let domains = a.domains.min(group.devices);
        let (domain, domain_strips) = if domains > 0 && a.domain_per_year > 0.0 {
            let strips = usize::from(group.width().div_ceil(domains)).max(1);
            (f64::from(domains) * a.domain_per_year / YEAR, strips)
        } else {
            (0.0, 0)
        };
        GroupRates {
            failure: a.failure_rate(),
            repair: repair.max(a.detect_seconds).max(1e-3),
            unreadable: if group.m == 0 { 0.0 } else { -(-read).exp_m1() },
            bare: if group.m == 0 {
                n * a.latent_per_year / YEAR
            } else {
                0.0
            },
            domain,
            domain_strips,
        }
    }

    /// The chain over the number of devices lost.
    #[must_use]
    pub fn chain(&self, group: Group) -> Chain {
        let m = usize::from(group.m);
        let mut chain = Chain::new(m + 1);
        for i in 0..=m {
            let left = f64::from(group.devices) - i as f64;
            chain.add(i, i + 1, Ln::new(left * self.failure));
            if self.domain > 0.0 {
                chain.add(i, i + self.domain_strips, Ln::new(self.domain));
            }
            if i > 0 {
                let rate = 1.0 / self.repair;
                let fails = if i == m { self.unreadable } else { 0.0 };
                chain.add(i, m + 1, Ln::new(rate * fails));
                chain.add(i, i - 1, Ln::new(rate * (1.0 - fails).max(1e-300)));
            }
        }
        chain.add(0, m + 1, Ln::new(self.bare));
        chain
    }
}

/// Mean seconds to loss of one copy of a group, starting whole.
#[must_use]
pub fn group_mean_time(group: Group, assumptions: &Assumptions) -> Ln {
    if group.declustered() {
        Spells::new(group, assumptions).mean_time()
    } else {
        GroupRates::new(group, assumptions)
            .chain(group)
            .mean_times()[0]
    }
}

/// Seconds from one failure to full redundancy, and for which data with no redundancy left stay so;
/// both 0 without redundancy.
fn repair_times(group: Group, assumptions: &Assumptions) -> (f64, f64) {
    if group.m == 0 {
        (0.0, 0.0)
    } else if group.declustered() {
        let spells = Spells::new(group, assumptions);
        (spells.step(1), spells.step(usize::from(group.m)))
    } else {
        let repair = GroupRates::new(group, assumptions).repair;
        (repair, repair)
    }
}

/// How long a system lasts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Life {
    /// Mean time to the first loss of data, in years, as a decimal logarithm.
    pub mttdl_log10_years: f64,
    /// The probability of any loss within a year.
    pub annual_loss: f64,
    /// Its decimal logarithm (finite also where the probability is below the smallest double).
    pub annual_loss_log10: f64,
    /// Hours from one failure to full redundancy again, the longest of any group; 0 without
    /// redundancy.
    pub rebuild_hours: f64,
    /// Hours that data with no redundancy left stay so, after M failures at once; 0 without
    /// redundancy.
    pub critical_hours: f64,
}

impl Life {
    /// Years to the first loss, at most the largest double.
    #[must_use]
    pub fn mttdl_years(&self) -> f64 {
        10.0_f64.powf(self.mttdl_log10_years).min(f64::MAX)
    }

    /// Nines of not losing anything within a year: 4.0 is 99.99 %.
    #[must_use]
    pub fn nines(&self) -> f64 {
        (-self.annual_loss_log10).max(0.0)
    }
}

fn group_loss_rate(group: Group, copies: u16, assumptions: &Assumptions) -> Ln {
    let one = Ln::new(1.0);
    let lost = one / group_mean_time(group, assumptions);
    if copies == 1 {
        return lost;
    }
    // Copies: each is lost at that rate and copied back from another, device by device in parallel.
    let a = assumptions;
    let back = a.replace_hours * 3600.0 + a.device_bytes * a.fill / a.bandwidth;
    let mut chain = Chain::new(usize::from(copies));
    for i in 0..usize::from(copies) {
        chain.add(i, i + 1, lost * Ln::new((usize::from(copies) - i) as f64));
        if i > 0 {
            chain.add(i, i - 1, Ln::new(1.0 / back));
        }
    }
    one / chain.mean_times()[0]
}

/// How long `system` lasts under `assumptions`, starting whole.
///
/// # Errors
/// [`LifeError`] for assumptions out of range.
pub fn life(system: &System, assumptions: &Assumptions) -> Result<Life, LifeError> {
    assumptions.check()?;
    let mut kinds: Vec<(Group, f64)> = Vec::new();
    for group in &system.groups {
        match kinds.iter_mut().find(|(kind, _)| kind == group) {
            Some((_, count)) => *count += 1.0,
            None => kinds.push((*group, 1.0)),
        }
    }
    let (mut rate, mut rebuild, mut critical) = (Ln::ZERO, 0.0_f64, 0.0_f64);
    for (group, count) in kinds {
        let (whole, no_longer_critical) = repair_times(group, assumptions);
        rate = rate + Ln::new(count) * group_loss_rate(group, system.copies, assumptions);
        rebuild = rebuild.max(whole);
        critical = critical.max(no_longer_critical);
    }
    let annual = (rate * Ln::new(YEAR)).at_least_one();
    Ok(Life {
        mttdl_log10_years: (Ln::new(1.0 / YEAR) / rate).log10(),
        annual_loss: annual.value(),
        annual_loss_log10: annual.log10(),
        rebuild_hours: rebuild / 3600.0,
        critical_hours: critical / 3600.0,
    })
}

/// What becomes of an array that is degraded now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outlook {
    /// The probability that data are lost before full redundancy is back.
    pub loss_before_whole: f64,
    /// Its decimal logarithm.
    pub loss_before_whole_log10: f64,
    /// Hours until full redundancy is back, if nothing else fails.
    pub hours_to_whole: f64,
    /// Mean time to loss from now, in years, as a decimal logarithm.
    pub mttdl_log10_years: f64,
}

/// The outlook of a group whose worst stripes miss `missing` strips now; `None` where that is more
/// than its parity (data are lost already).
///
/// # Errors
/// [`LifeError`] for assumptions out of range.
pub fn outlook(
    group: Group,
    missing: u16,
    assumptions: &Assumptions,
) -> Result<Option<Outlook>, LifeError> {
    assumptions.check()?;
    if missing > group.m {
        return Ok(None);
    }
    let state = usize::from(missing);
    let (chance, time, seconds) = if group.declustered() {
        let spells = Spells::new(group, assumptions);
        let (chance, time) = spells.from(state);
        (
            chance,
            time,
            (1..=state).map(|i| spells.step(i)).sum::<f64>(),
        )
    } else {
        let rates = GroupRates::new(group, assumptions);
        let chain = rates.chain(group);
        let chance = chain.loss_before_zero()[state];
        (
            chance,
            chain.mean_times()[state],
            rates.repair * state as f64,
        )
    };
    Ok(Some(Outlook {
        loss_before_whole: chance.value(),
        loss_before_whole_log10: chance.log10().max(-1e6),
        hours_to_whole: seconds / 3600.0,
        mttdl_log10_years: (time / Ln::new(YEAR)).log10(),
    }))
}
