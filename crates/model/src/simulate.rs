//! Simulation in time, to check the chains of [`mod@crate::life`] against: independent code, two ways.
//!
//! [`Simulation::by_devices`] follows the single devices of a group as wide as its stripes: who is
//! down, when each next fails. Given exponential reconstruct times it must agree with the chain within its standard
//! error; given constant ones it shows what that assumption is worth.
//!
//! [`Simulation::by_segments`] follows every segment of a declustered group as `ashlar-layout`
//! places it: failures take strips, reconstruct moves the strips of the least redundant segments
//! first, one by one, at the speed of the devices left. It shows what the chain's summary of that
//! (one class a time) is worth.
//!
//! **Invariant**: results depend on the seed and the number of trials alone.

use ashlar_layout::Placement;

use crate::assumptions::Assumptions;
use crate::life::GroupRates;
use crate::montecarlo::Estimate;
use crate::random::Random;
use crate::system::Group;

/// How long a reconstruct step takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Steps {
    /// Exponentially distributed, as in a Markov chain.
    Exponential,
    /// Always the mean.
    Constant,
}

/// How much to simulate.
#[derive(Debug, Clone, Copy)]
pub struct Simulation {
    /// Lives followed to their loss, at least 2.
    pub trials: u32,
    /// Seed of all randomness.
    pub seed: u64,
}

impl Simulation {
    fn estimate(&self, life: impl Fn(&mut Random) -> f64) -> Estimate {
        let trials = self.trials.max(2);
        let (mut sum, mut squares) = (0.0, 0.0);
        for trial in 0..trials {
            let time = life(&mut Random::new(self.seed, u64::from(trial)));
            sum += time;
            squares += time * time;
        }
        let n = f64::from(trials);
        let mean = sum / n;
        Estimate {
            mean,
            stderr: ((squares / n - mean * mean).max(0.0) / (n - 1.0)).sqrt(),
        }
    }

    /// Mean seconds to loss of a group of single devices.
    #[must_use]
    pub fn by_devices(&self, group: Group, rates: &GroupRates, steps: Steps) -> Estimate {
        self.estimate(|random| device_life(group, rates, steps, random))
    }

    /// Mean seconds to loss of a declustered group, cut into segments as the assumptions say.
    #[must_use]
    pub fn by_segments(&self, group: Group, assumptions: &Assumptions) -> Estimate {
        let segments = Segments::new(group, assumptions);
        self.estimate(|random| segments.life(random))
    }
}

fn device_life(group: Group, rates: &GroupRates, steps: Steps, random: &mut Random) -> f64 {
    let m = usize::from(group.m);
    let mut fails_at: Vec<f64> = (0..group.devices)
        .map(|_| random.exponential(rates.failure))
        .collect();
    let mut domain_at = if rates.domain > 0.0 {
        random.exponential(rates.domain)
    } else {
        f64::INFINITY
    };
    let bare_at = if rates.bare > 0.0 {
        random.exponential(rates.bare)
    } else {
        f64::INFINITY
    };
    let mut down: Vec<usize> = Vec::new();
    let mut step_at = f64::INFINITY;
    loop {
        let (first, at) = fails_at
            .iter()
            .copied()
            .enumerate()
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .unwrap_or((0, f64::INFINITY));
        let now = at.min(domain_at).min(step_at).min(bare_at);
        if now == bare_at {
            return now;
        }
        if now == step_at {
            if down.len() == m && random.unit() <= rates.unreadable {
                return now;
            }
            if let Some(device) = down.pop() {
                fails_at[device] = now + random.exponential(rates.failure);
            }
        } else if now == domain_at {
            // A domain takes whichever healthy devices it holds: so many strips of a stripe.
            for _ in 0..rates.domain_strips {
                let up: Vec<usize> = (0..fails_at.len())
                    .filter(|&d| fails_at[d].is_finite())
                    .collect();
                let Some(&device) = up.get(random.below(up.len() as u32) as usize) else {
                    break;
                };
                fails_at[device] = f64::INFINITY;
                down.push(device);
            }
            domain_at = now + random.exponential(rates.domain);
        } else {
            fails_at[first] = f64::INFINITY;
            down.push(first);
        }
        if down.len() > m {
            return now;
        }
        step_at = match (down.len(), steps) {
            (0, _) => f64::INFINITY,
            (_, Steps::Exponential) => now + random.exponential(1.0 / rates.repair),
            (_, Steps::Constant) => now + rates.repair,
        };
    }
}

/// A declustered group, segment by segment.
struct Segments {
    group: Group,
    failure: f64,
    strip_seconds: f64,
    detect: f64,
    placed: Vec<Vec<u16>>,
}

impl Segments {
    fn new(group: Group, a: &Assumptions) -> Segments {
        let members: Vec<u16> = (0..group.devices).collect();
        let width = usize::from(group.width());
        let segments = a.segments_per_device * f64::from(group.devices) / f64::from(group.width());
        let segments = segments.round().max(1.0) as u64;
        let placed: Vec<Vec<u16>> = (0..segments)
            .map(|i| Placement::default().pick(i, &members, width))
            .collect();
        let strips = segments as f64 * f64::from(group.width());
        let strip = f64::from(group.devices) * a.device_bytes * a.fill / strips;
        // Seconds of one device for one strip: K reads and a write.
        let strip_seconds = strip * (f64::from(group.k) + 1.0) / a.bandwidth;
        Segments {
            group,
            failure: a.failure_rate(),
            strip_seconds,
            detect: a.detect_seconds,
            placed,
        }
    }

    /// One life. Between losses the strips wander; when all are whole again the failed devices have
    /// been replaced and rebalance has restored the placement.
    fn life(&self, random: &mut Random) -> f64 {
        let n = usize::from(self.group.devices);
        let m = usize::from(self.group.m);
        let mut now = 0.0;
        loop {
            // Whole: wait for a failure.
            now += random.exponential(self.failure * n as f64);
            let mut up = vec![true; n];
            let mut devices = self.placed.clone();
            let mut missing = vec![0_usize; devices.len()];
            let mut classes: Vec<Vec<usize>> = vec![Vec::new(); m + 2];
            let fail = |up: &mut [bool],
                        devices: &mut [Vec<u16>],
                        missing: &mut [usize],
                        classes: &mut [Vec<usize>],
                        random: &mut Random| {
                let alive: Vec<usize> = (0..n).filter(|&d| up[d]).collect();
                let dead = alive[random.below(alive.len() as u32) as usize];
                up[dead] = false;
                for (segment, set) in devices.iter_mut().enumerate() {
                    let before = set.len();
                    set.retain(|&d| usize::from(d) != dead);
                    if set.len() < before {
                        missing[segment] += 1;
                        classes[missing[segment].min(m + 1)].push(segment);
                    }
                }
                !classes[m + 1].is_empty()
            };
            if fail(&mut up, &mut devices, &mut missing, &mut classes, random) {
                return now;
            }
            let mut ready = now + self.detect;
            loop {
                let alive = up.iter().filter(|up| **up).count();
                let next_failure = now + random.exponential(self.failure * alive as f64);
                // Strips until then, the worst class first.
                let mut clock = now.max(ready);
                let step = self.strip_seconds / alive as f64;
                let mut whole = false;
                loop {
                    let Some(class) = (1..=m).rev().find(|&c| {
                        while let Some(&s) = classes[c].last() {
                            if missing[s] == c {
                                return true;
                            }
                            classes[c].pop();
                        }
                        false
                    }) else {
                        whole = true;
                        break;
                    };
                    if clock + step > next_failure {
                        break;
                    }
                    clock += step;
                    let Some(segment) = classes[class].pop() else {
                        break;
                    };
                    // To a healthy device that holds no strip of it.
                    for _ in 0..10_000 {
                        let target = random.below(n as u32) as u16;
                        if up[usize::from(target)] && !devices[segment].contains(&target) {
                            devices[segment].push(target);
                            break;
                        }
                    }
                    missing[segment] -= 1;
                    if missing[segment] > 0 {
                        classes[missing[segment]].push(segment);
                    }
                }
                if whole {
                    now = clock;
                    break;
                }
                now = next_failure;
                if fail(&mut up, &mut devices, &mut missing, &mut classes, random) {
                    return now;
                }
                ready = now + self.detect;
            }
        }
    }
}
