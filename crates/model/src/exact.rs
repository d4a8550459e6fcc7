//! Exact probabilities: x of P devices, chosen at random, fail at the same instant.
//!
//! The number of x-subsets that an array survives is a coefficient of a product of polynomials,
//! one factor a group: a group of n devices that bears m losses contributes the sum over j <= m of
//! C(n, j) z^j; one that is kept c times contributes (1+z)^(cn) - F^c with F the sum over j > m.
//! That product is the paper's recursion over groups (hypergeometric, one group taken off after
//! the other) done once for all x. Everything is counted in integers, so nothing is rounded until
//! the quotient is, once, and 0 and 1 come out as exactly 0 and 1.
//!
//! **Declustered groups** (stripes narrower than the group) lose data when any of their segments
//! does. For x failures in the group a segment is lost with the hypergeometric probability p(x),
//! counted in integers; of S segments, each on an independently chosen set of devices, one is lost
//! with 1 - (1 - p)^S. Groups are then combined by the recursion in doubles, which only adds and
//! multiplies non-negative numbers. The array's own placement uses fewer different sets, so it loses
//! less often and more at once ([`crate::montecarlo`] shows it); the expected *share* lost,
//! [`exposure`], is exact for any placement, since the failed set is random.
//!
//! **Invariants.** [`Probability::value`] is 0.0 or 1.0 only when the probability is 0 or 1;
//! probabilities never decrease with x.

use num_bigint::BigUint;

use crate::system::{Group, System};

/// The most devices the exact method takes; beyond, its integers take seconds.
pub const MAX_DEVICES: u32 = 5_000;

/// Segments that begin on a device, unless said otherwise: the slots of a device.
pub const SLOTS_PER_DEVICE: u32 = 16_384;

/// Why there is no exact answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ExactError {
    /// More failures than devices.
    #[error("{failures} failures, but only {devices} devices")]
    MoreFailuresThanDevices {
        /// Failures asked for.
        failures: u32,
        /// Devices there are.
        devices: u32,
    },
    /// More devices than the exact method takes.
    #[error(
        "{devices} devices; the exact method takes up to {MAX_DEVICES}, use --method montecarlo"
    )]
    TooManyDevices {
        /// Devices there are.
        devices: u32,
    },
    /// Mirrors of a declustered layout.
    #[error(
        "copies of a declustered layout have no exact form here (it depends on the placement); \
         use --method montecarlo"
    )]
    DeclusteredCopies,
    /// Shares by redundancy of a mirrored system.
    #[error(
        "shares by remaining redundancy are for single copies; mirrored systems have two kinds"
    )]
    MirroredExposure,
}

/// A probability and its complement: a quotient of integers, or a pair of doubles that are both
/// precise.
#[derive(Debug, Clone, PartialEq)]
pub struct Probability(Form);

#[derive(Debug, Clone, PartialEq)]
enum Form {
    Counted { part: BigUint, whole: BigUint },
    Computed { value: f64, complement: f64 },
}

impl Probability {
    /// `part / whole`.
    fn counted(part: BigUint, whole: BigUint) -> Probability {
        debug_assert!(part <= whole && whole != BigUint::ZERO);
        Probability(Form::Counted { part, whole })
    }

    /// Neither 0 nor 1: kept within the doubles between.
    fn computed(value: f64, complement: f64) -> Probability {
        let [value, complement] =
            [value, complement].map(|x| x.clamp(f64::MIN_POSITIVE, 1.0 - f64::EPSILON / 2.0));
        Probability(Form::Computed { value, complement })
    }

    /// Whether it cannot happen.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        matches!(&self.0, Form::Counted { part, .. } if *part == BigUint::ZERO)
    }

    /// Whether it is certain.
    #[must_use]
    pub fn is_one(&self) -> bool {
        matches!(&self.0, Form::Counted { part, whole } if part == whole)
    }

    /// The nearest double, except that what is not 0 (1) is kept above 0 (below 1).
    #[must_use]
    pub fn value(&self) -> f64 {
        match &self.0 {
            _ if self.is_zero() => 0.0,
            _ if self.is_one() => 1.0,
            Form::Counted { part, whole } => {
                quotient(part, whole).clamp(f64::MIN_POSITIVE, 1.0 - f64::EPSILON / 2.0)
            }
            Form::Computed { value, .. } => *value,
        }
    }

    /// One minus it, with full precision where the probability is near 1.
    #[must_use]
    pub fn complement(&self) -> Probability {
        Probability(match &self.0 {
            Form::Counted { part, whole } => Form::Counted {
                part: whole - part,
                whole: whole.clone(),
            },
            Form::Computed { value, complement } => Form::Computed {
                value: *complement,
                complement: *value,
            },
        })
    }

    /// Its decimal logarithm, also where the value itself is below the smallest double.
    #[must_use]
    pub fn log10(&self) -> f64 {
        match &self.0 {
            _ if self.is_zero() => f64::NEG_INFINITY,
            Form::Counted { part, whole } => log10(part) - log10(whole),
            Form::Computed { value, .. } => value.log10(),
        }
    }
}

/// part / whole to within one unit in the last place; part <= whole.
fn quotient(part: &BigUint, whole: &BigUint) -> f64 {
    let shift = (whole.bits() + 66).saturating_sub(part.bits());
    let scaled: BigUint = (part << shift) / whole;
    let value = scaled
        .iter_u64_digits()
        .rev()
        .fold(0.0, |sum, d| sum * TWO_64 + d as f64);
    // Twice half the shift: 2^-shift alone may not be a double.
    let half = i32::try_from(shift / 2).unwrap_or(i32::MAX);
    let rest = i32::try_from(shift - shift / 2).unwrap_or(i32::MAX);
    value * 2.0_f64.powi(-half) * 2.0_f64.powi(-rest)
}

const TWO_64: f64 = 18_446_744_073_709_551_616.0;

fn log10(x: &BigUint) -> f64 {
    let shift = x.bits().saturating_sub(64);
    let top = (x >> shift).iter_u64_digits().next().unwrap_or(1);
    (top as f64).log10() + shift as f64 * std::f64::consts::LOG10_2
}

/// C(n, 0) to C(n, n).
fn binomials(n: u32) -> Vec<BigUint> {
    let mut row = Vec::with_capacity(n as usize + 1);
    let mut value = BigUint::from(1_u32);
    for j in 0..=n {
        row.push(value.clone());
        value = value * (n - j) / (j + 1);
    }
    row
}

fn product(a: &[BigUint], b: &[BigUint]) -> Vec<BigUint> {
    let mut out = vec![BigUint::ZERO; (a.len() + b.len()).saturating_sub(1)];
    for (i, x) in a.iter().enumerate().filter(|(_, x)| **x != BigUint::ZERO) {
        for (j, y) in b.iter().enumerate().filter(|(_, y)| **y != BigUint::ZERO) {
            out[i + j] += x * y;
        }
    }
    out
}

/// The survived subsets of one group in `copies` copies, by number of failed devices.
fn survived(group: Group, copies: u16) -> Vec<BigUint> {
    let row = binomials(u32::from(group.devices));
    let m = usize::from(group.m).min(row.len() - 1);
    if copies == 1 {
        return row[..=m].to_vec();
    }
    let mut fatal = row;
    fatal[..=m].fill(BigUint::ZERO);
    let mut all_fatal = vec![BigUint::from(1_u32)];
    for _ in 0..copies {
        all_fatal = product(&all_fatal, &fatal);
    }
    binomials(u32::from(group.devices) * u32::from(copies))
        .into_iter()
        .zip(all_fatal)
        .map(|(all, fatal)| all - fatal)
        .collect()
}

/// The probability of any loss, for every number of failed devices.
#[derive(Debug, Clone)]
pub struct LossCurve {
    /// Survived subsets, where they are counted; empty where they are computed.
    survived: Vec<BigUint>,
    /// All subsets.
    all: Vec<BigUint>,
    /// Loss and survival, where they are computed.
    computed: Vec<(f64, f64)>,
    always_survived: u32,
    certain_from: u32,
}

impl LossCurve {
    /// The curve of a system, declustered groups having as many segments as their slots allow.
    ///
    /// # Errors
    /// [`ExactError`] when the system is too large or has copies of a declustered layout.
    pub fn new(system: &System) -> Result<LossCurve, ExactError> {
        LossCurve::with_segments(system, None)
    }

    /// The curve of a system whose declustered groups have `segments` segments each.
    ///
    /// # Errors
    /// As [`LossCurve::new`].
    pub fn with_segments(system: &System, segments: Option<u32>) -> Result<LossCurve, ExactError> {
        let devices = system.devices();
        if devices > MAX_DEVICES {
            return Err(ExactError::TooManyDevices { devices });
        }
        if system.declustered() {
            if system.copies > 1 {
                return Err(ExactError::DeclusteredCopies);
            }
            return Ok(declustered_curve(system, segments));
        }
        let mut groups = system.groups.clone();
        groups.sort_unstable();
        let mut total = vec![BigUint::from(1_u32)];
        let mut last: Option<(Group, Vec<BigUint>)> = None;
        for group in groups {
            let factor = match last.take() {
                Some((same, factor)) if same == group => factor,
                _ => survived(group, system.copies),
            };
            total = product(&total, &factor);
            last = Some((group, factor));
        }
        while total.last() == Some(&BigUint::ZERO) {
            total.pop();
        }
        let all = binomials(devices);
        let safe = total.iter().zip(&all).take_while(|(s, a)| s == a).count();
        Ok(LossCurve {
            always_survived: small(safe) - 1,
            certain_from: small(total.len()),
            survived: total,
            all,
            computed: Vec::new(),
        })
    }

    /// The probability that something is lost when `failures` devices fail at once.
    ///
    /// # Errors
    /// [`ExactError::MoreFailuresThanDevices`].
    pub fn at(&self, failures: u32) -> Result<Probability, ExactError> {
        let x = failures as usize;
        let all = self.all.get(x).ok_or(ExactError::MoreFailuresThanDevices {
            failures,
            devices: small(self.all.len()) - 1,
        })?;
        if failures <= self.always_survived {
            return Ok(Probability::counted(BigUint::ZERO, all.clone()));
        }
        if failures >= self.certain_from {
            return Ok(Probability::counted(all.clone(), all.clone()));
        }
        Ok(match (self.survived.get(x), self.computed.get(x)) {
            (Some(survived), _) => Probability::counted(all - survived, all.clone()),
            (None, Some(&(loss, survival))) => Probability::computed(loss, survival),
            (None, None) => Probability::counted(all.clone(), all.clone()),
        })
    }

    /// The most failures that are survived whichever devices they are.
    #[must_use]
    pub fn always_survived(&self) -> u32 {
        self.always_survived
    }

    /// The fewest failures that lose something for certain; `None` where even the loss of all
    /// devices cannot be fatal (never, for systems with data).
    #[must_use]
    pub fn certain_from(&self) -> Option<u32> {
        ((self.certain_from as usize) < self.all.len()).then_some(self.certain_from)
    }
}

fn small(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Segments of a group: as said, or as many as its slots allow. One where stripes are as wide as
/// the group, since all its segments are lost together.
pub(crate) fn segments_of(group: Group, segments: Option<u32>) -> u32 {
    if !group.declustered() {
        return 1;
    }
    let slots = u32::from(group.devices) * SLOTS_PER_DEVICE;
    segments.unwrap_or(slots / u32::from(group.width())).max(1)
}

/// Loss and survival of one group for every number of its devices failed.
fn group_losses(group: Group, segments: u32) -> Vec<(f64, f64)> {
    let (n, w, m) = (
        u32::from(group.devices),
        u32::from(group.width()),
        u32::from(group.m),
    );
    let all = binomials(n);
    (0..=n)
        .map(|x| {
            let lost = terms(n, x, w)
                .into_iter()
                .filter(|(j, _)| *j > m)
                .map(|(_, term)| term);
            let lost = lost.fold(BigUint::ZERO, |sum, term| sum + term);
            let one = Probability::counted(lost, all[x as usize].clone());
            if one.is_zero() || one.is_one() {
                return (one.value(), one.complement().value());
            }
            let (p, q) = (one.value(), one.complement().value());
            let log = f64::from(segments) * if p < 0.5 { (-p).ln_1p() } else { q.ln() };
            // Not certain, so never 0 however many segments there are; neither is the loss.
            (
                (-log.exp_m1()).max(f64::MIN_POSITIVE),
                log.exp().max(f64::MIN_POSITIVE),
            )
        })
        .collect()
}

/// The recursion over groups in doubles.
fn declustered_curve(system: &System, segments: Option<u32>) -> LossCurve {
    let devices = system.devices();
    let logs: Vec<f64> = std::iter::once(0.0)
        .chain((1..=devices).scan(0.0, |sum, i| {
            *sum += f64::from(i).ln();
            Some(*sum)
        }))
        .collect();
    let choose = |n: usize, k: usize| logs[n] - logs[k] - logs[n - k];
    let mut kinds: Vec<(Group, Vec<(f64, f64)>)> = Vec::new();
    let mut total = vec![(0.0, 1.0)];
    let mut open = 0;
    for &group in &system.groups {
        if !kinds.iter().any(|(kind, _)| *kind == group) {
            kinds.push((group, group_losses(group, segments_of(group, segments))));
        }
        let Some((_, factor)) = kinds.iter().find(|(kind, _)| *kind == group) else {
            continue;
        };
        open += small(
            factor
                .iter()
                .filter(|(_, survival)| *survival > 0.0)
                .count(),
        ) - 1;
        let (a, b) = (total.len() - 1, factor.len() - 1);
        let mut next = vec![(0.0, 0.0); a + b + 1];
        for (x, (loss, survival)) in next.iter_mut().enumerate() {
            for j in x.saturating_sub(a)..=x.min(b) {
                let weight = (choose(b, j) + choose(a, x - j) - choose(a + b, x)).exp();
                let (here, there) = (factor[j], total[x - j]);
                *loss += weight * (here.0 + here.1 * there.0);
                *survival += weight * here.1 * there.1;
            }
        }
        total = next;
    }
    LossCurve {
        survived: Vec::new(),
        all: binomials(devices),
        computed: total,
        always_survived: system
            .groups
            .iter()
            .map(|g| u32::from(g.m))
            .min()
            .unwrap_or(0),
        certain_from: open + 1,
    }
}

/// Expected shares of the data, by what is left of their redundancy. They sum to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exposure {
    /// More strips lost than the parity covers.
    pub lost: f64,
    /// No redundancy left, though the layout has some.
    pub critical: f64,
    /// Some redundancy lost, some left.
    pub degraded: f64,
    /// Nothing lost.
    pub whole: f64,
}

/// The `failures`-subsets of `devices` that hold exactly j of `width` given ones, for each j that
/// can be: C(width, j) C(devices - width, failures - j), each from the one before.
fn terms(devices: u32, failures: u32, width: u32) -> Vec<(u32, BigUint)> {
    let others = devices - width;
    let (first, last) = (failures.saturating_sub(others), failures.min(width));
    let mut term = choose(width, first) * choose(others, failures - first);
    let mut out = Vec::new();
    for j in first..=last {
        out.push((j, term.clone()));
        if j < last {
            term = term * (width - j) * (failures - j) / (j + 1) / (others + j + 1 - failures);
        }
    }
    out
}

fn choose(n: u32, k: u32) -> BigUint {
    let k = k.min(n - k.min(n));
    (0..k).fold(BigUint::from(1_u32), |value, j| value * (n - j) / (j + 1))
}

/// Expected shares of the data after `failures` random failures. Exact for any placement.
///
/// # Errors
/// [`ExactError`] for more failures than devices, too many devices, or mirrored systems (whose
/// copies have no single redundancy).
pub fn exposure(system: &System, failures: u32) -> Result<Exposure, ExactError> {
    let devices = system.devices();
    if failures > devices {
        return Err(ExactError::MoreFailuresThanDevices { failures, devices });
    }
    if devices > MAX_DEVICES {
        return Err(ExactError::TooManyDevices { devices });
    }
    if system.copies > 1 {
        return Err(ExactError::MirroredExposure);
    }
    let mut kinds: Vec<(Group, f64)> = Vec::new();
    for group in &system.groups {
        let data = f64::from(group.devices) * f64::from(group.k) / f64::from(group.width());
        match kinds
            .iter_mut()
            .find(|(kind, _)| (kind.k, kind.m) == (group.k, group.m))
        {
            Some((_, weight)) => *weight += data,
            None => kinds.push((*group, data)),
        }
    }
    let total: f64 = kinds.iter().map(|(_, weight)| weight).sum();
    let whole = choose(devices, failures);
    let mut out = Exposure {
        lost: 0.0,
        critical: 0.0,
        degraded: 0.0,
        whole: 0.0,
    };
    for (group, weight) in kinds {
        let (width, m) = (u32::from(group.width()), u32::from(group.m));
        let terms = terms(devices, failures, width);
        let of = |range: std::ops::RangeInclusive<u32>| {
            let part = terms
                .iter()
                .filter(|(j, _)| range.contains(j))
                .fold(BigUint::ZERO, |sum, (_, term)| sum + term);
            Probability::counted(part, whole.clone()).value()
        };
        let share = weight / total;
        out.lost += share * of(m + 1..=width);
        out.critical += if m > 0 { share * of(m..=m) } else { 0.0 };
        out.degraded += if m > 1 { share * of(1..=m - 1) } else { 0.0 };
        out.whole += share * of(0..=0);
    }
    Ok(out)
}
