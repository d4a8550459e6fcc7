//! Time to loss of a declustered group: losses that pile up while reconstruct works.
//!
//! A *spell* begins with a failure and ends when all is whole again, or with loss. Within it the
//! state is (f, i): f devices lost in this spell, i strips missing in the worst segments. A failure
//! leads to (f+1, i+1) if it hits one of the worst segments, else to (f+1, i); reconstruct takes the
//! worst class one step back, to (f, i-1), and from i = 1 ends the spell. Since f never falls within
//! a spell, probabilities and times follow layer by layer from the highest f down: sums, products
//! and quotients of non-negative numbers, no cycle, nothing to cancel. Spells being independent,
//! the mean time to loss is their mean length (quiet time before included) over the probability
//! that one ends in loss.
//!
//! The worst class of (f, i) holds the segments with i or more of the f devices (those that had
//! more have been brought back to i): S P(X >= i), X hypergeometric, were nothing reconstructed in
//! between. But each failure finds part of the class before it done already, a uniform share, and
//! the sooner it comes the likelier the next within the time left; over the failures that lead to i
//! this makes the class 1/i as large on average (the product over all steps is 1/M!), and 1/(i+1)
//! when the next failure meets it. (Classes that stem from several failures, f > i, are taken whole:
//! the safe side.) Each segment takes one strip, K reads and a write, shared by the
//! n - f devices left; a failure misses all N of them with probability (1 - (W-i)/(n-f))^N. A class
//! has one segment at least.
//!
//! **Invariants.** All values are finite. Where more devices are lost in one spell than the layers
//! followed, loss is assumed.

use crate::assumptions::{Assumptions, YEAR};
use crate::ln::Ln;
use crate::system::Group;

/// A group's spells.
#[derive(Debug)]
pub(crate) struct Spells {
    m: usize,
    class: Classes,
    /// `loss[f][i]`, `time[f][i]`: from state (f, i), the probability that the spell ends in loss,
    /// and its mean length in seconds.
    loss: Vec<Vec<Ln>>,
    time: Vec<Vec<Ln>>,
}

impl Spells {
    pub(crate) fn new(group: Group, a: &Assumptions) -> Spells {
        let m = usize::from(group.m);
        let n = usize::from(group.devices);
        let layers = (3 * m + 20).min(n - 1);
        let mut spells = Spells {
            m,
            class: Classes::new(group, a),
            loss: vec![vec![Ln::new(1.0); m + 1]; layers + 1],
            time: vec![vec![Ln::ZERO; m + 1]; layers + 1],
        };
        for f in (0..=layers).rev() {
            for i in usize::from(f > 0)..=m.min(f) {
                let (loss, time) = spells.state(f, i, false);
                spells.loss[f][i] = loss;
                spells.time[f][i] = time;
            }
        }
        spells
    }

    /// (loss, time) of a state from those of the states it leads to.
    fn state(&self, f: usize, i: usize, at_once: bool) -> (Ln, Ln) {
        let (lost, class) = (Ln::new(1.0), &self.class);
        let (seconds, hit, unreadable) = if f == 0 {
            (f64::INFINITY, 1.0, 0.0)
        } else {
            class.of(f, i, at_once)
        };
        let fails = (f64::from(class.group.devices) - f as f64) * class.failure;
        let back = 1.0 / seconds;
        let (domain, strips, devices) = class.domain;
        let moves = [
            (fails * hit, self.at(f + 1, i + 1)),
            (fails * (1.0 - hit), self.at(f + 1, i)),
            (domain, self.at(f + devices, i + strips)),
            (back * unreadable, (lost, Ln::ZERO)),
            (
                back * (1.0 - unreadable),
                if i > 1 { self.at(f, i - 1) } else { END },
            ),
            (if f == 0 { class.bare } else { 0.0 }, (lost, Ln::ZERO)),
        ];
        let out: Ln = moves.iter().map(|(rate, _)| Ln::new(*rate)).sum();
        let mean = |of: fn(&(Ln, Ln)) -> Ln| {
            moves
                .iter()
                .map(|(rate, to)| Ln::new(*rate) * of(to))
                .sum::<Ln>()
                / out
        };
        (mean(|to| to.0), mean(|to| to.1) + Ln::new(1.0) / out)
    }

    /// (loss, time) of a state; beyond what is followed, loss.
    fn at(&self, f: usize, i: usize) -> (Ln, Ln) {
        match self.loss.get(f) {
            Some(row) if i <= self.m => (row[i], self.time[f][i]),
            _ => (Ln::new(1.0), Ln::ZERO),
        }
    }

    /// Mean seconds to loss, from all whole.
    pub(crate) fn mean_time(&self) -> Ln {
        self.time[0][0] / self.loss[0][0]
    }

    /// From `missing` devices lost just now: the probability that the spell ends in loss, and the
    /// mean time to loss, in this spell or a later one.
    pub(crate) fn from(&self, missing: usize) -> (Ln, Ln) {
        let (loss, time) = self.at(missing, missing);
        let survived = Ln::new(1.0 - loss.value());
        (
            if missing == 0 { Ln::ZERO } else { loss },
            time + survived * self.mean_time(),
        )
    }

    /// Seconds to bring the worst class one step back after `i` failures at once.
    pub(crate) fn step(&self, i: usize) -> f64 {
        if i == 0 {
            0.0
        } else {
            self.class.of(i, i, true).0
        }
    }
}

/// The end of a spell: no loss, no more time.
const END: (Ln, Ln) = (Ln::ZERO, Ln::ZERO);

/// Sizes of the worst classes, and what follows from them.
#[derive(Debug)]
struct Classes {
    group: Group,
    /// Failures a second and device.
    failure: f64,
    /// Losses a second without a failure, where there is no redundancy.
    bare: f64,
    /// Segments of the group.
    segments: f64,
    /// Seconds of one device to make one strip of a segment again.
    strip_seconds: f64,
    detect: f64,
    /// Probability that reading one segment's K strips meets an unreadable place.
    unreadable: f64,
    /// Logarithms of factorials.
    logs: Vec<f64>,
    /// Failures a second, strips and devices taken by a domain failure.
    domain: (f64, usize, usize),
}

impl Classes {
    fn new(group: Group, a: &Assumptions) -> Classes {
        let (n, w, k) = (
            f64::from(group.devices),
            f64::from(group.width()),
            f64::from(group.k),
        );
        let segments = (a.segments_per_device * n / w).max(1.0);
        let strip = n * a.device_bytes * a.fill / w / segments;
        let logs = std::iter::once(0.0)
            .chain((1..=group.devices).scan(0.0, |sum, i| {
                *sum += f64::from(i).ln();
                Some(*sum)
            }))
            .collect();
        let domains = a.domains.min(group.devices);
        let domain = if domains > 0 && a.domain_per_year > 0.0 {
            let rate = f64::from(domains) * a.domain_per_year / YEAR;
            let strips = usize::from(group.width().div_ceil(domains)).max(1);
            (
                rate,
                strips,
                usize::from(group.devices.div_ceil(domains)).max(1),
            )
        } else {
            (0.0, 1, 1)
        };
        let bare = if group.m == 0 {
            n * a.latent_per_year / YEAR
        } else {
            0.0
        };
        Classes {
            group,
            failure: a.failure_rate(),
            bare,
            segments,
            strip_seconds: strip * (k + 1.0) / a.bandwidth,
            detect: a.detect_seconds,
            unreadable: strip * k * a.unreadable_per_byte(),
            logs,
            domain,
        }
    }

    /// P(X >= i): of f failed devices at least i hold a strip of a given segment.
    fn at_least(&self, f: usize, i: usize) -> f64 {
        let (n, w) = (
            usize::from(self.group.devices),
            usize::from(self.group.width()),
        );
        let choose = |n: usize, k: usize| self.logs[n] - self.logs[k] - self.logs[n - k];
        (i.max((f + w).saturating_sub(n))..=f.min(w))
            .map(|j| (choose(w, j) + choose(n - w, f - j) - choose(n, f)).exp())
            .sum::<f64>()
            .min(1.0)
    }

    /// Of the worst class of (f, i): seconds to take it a step back, the probability that a further
    /// failure hits it, and that its last step meets an unreadable place. `at_once`: the failures
    /// came together, nothing has been reconstructed between them.
    fn of(&self, f: usize, i: usize, at_once: bool) -> (f64, f64, f64) {
        let left = f64::from(self.group.devices) - f as f64;
        let full = self.segments * self.at_least(f, i);
        let (entered, met) = match (f == i, at_once) {
            (true, false) => (1.0 / i as f64, 1.0 / (i as f64 + 1.0)),
            (true, true) => (1.0, 0.5),
            // Left over from earlier in the spell: as if nothing of it were done yet.
            (false, _) => (1.0, 1.0),
        };
        let count = (full * entered).max(1.0);
        let remaining = (full * met).max(1.0);
        let seconds = (count * self.strip_seconds / left)
            .max(self.detect)
            .max(1e-3);
        let touched = (f64::from(self.group.width()) - i as f64) / left;
        let hit = if touched >= 1.0 {
            1.0
        } else {
            -(remaining * (-touched).ln_1p()).exp_m1()
        };
        let last = i == usize::from(self.group.m);
        let unreadable = if last {
            -(-count * self.unreadable).exp_m1()
        } else {
            0.0
        };
        (seconds, hit.clamp(0.0, 1.0), unreadable)
    }
}
