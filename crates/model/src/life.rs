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

use crate::assumptions::{Assumptions, LifeError, YEAR};
use crate::chain::Chain;
use crate::declustered::Spells;
use crate::ln::Ln;
use crate::system::{Group, System};

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
