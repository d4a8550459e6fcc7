//! Markov chains in continuous time with one absorbing state (loss).
//!
//! States 0 to n-1 are alive; state n is loss. Mean times and probabilities come from eliminating
//! states from the highest down (Grassmann, Taksar, Heyman 1985): only sums, products and quotients
//! of non-negative numbers, so the result is accurate in every digit that matters even where the
//! rates differ by hundreds of orders of magnitude.
//!
//! **Invariant**: from every state loss can be reached; [`Chain::new`]'s callers see to it by a
//! positive rate upwards from each state.

use crate::ln::Ln;

/// Transition rates per second.
#[derive(Debug, Clone)]
pub struct Chain {
    /// `rates[from][to]`, `to` up to and including the absorbing state.
    rates: Vec<Vec<Ln>>,
}

/// A chain reduced by elimination: the values of a state in terms of those below it.
struct Reduced {
    rates: Vec<Vec<Ln>>,
    gain: Vec<Ln>,
    out: Vec<Ln>,
}

impl Chain {
    /// A chain of `states` living states without transitions.
    #[must_use]
    pub fn new(states: usize) -> Chain {
        Chain {
            rates: vec![vec![Ln::ZERO; states + 1]; states],
        }
    }

    /// Living states.
    #[must_use]
    pub fn states(&self) -> usize {
        self.rates.len()
    }

    /// Adds `rate` (per second) from state `from` to `to`; a `to` beyond the living states is loss.
    pub fn add(&mut self, from: usize, to: usize, rate: Ln) {
        let to = to.min(self.rates.len());
        let entry = self.rates.get_mut(from).and_then(|row| row.get_mut(to));
        if let Some(entry) = entry.filter(|_| from != to) {
            *entry = *entry + rate;
        }
    }

    /// Eliminates states above `last`; `gain` is what a state earns per visit times its rate out.
    fn reduce(&self, last: usize, gain: Vec<Ln>) -> Reduced {
        let n = self.states();
        let mut reduced = Reduced {
            rates: self.rates.clone(),
            gain,
            out: vec![Ln::ZERO; n],
        };
        for top in (last..n).rev() {
            let row = reduced.rates[top].clone();
            let out: Ln = row[..top].iter().copied().sum::<Ln>() + row[n];
            reduced.out[top] = out;
            for from in 0..top {
                let share = reduced.rates[from][top] / out;
                if share.is_zero() {
                    continue;
                }
                reduced.gain[from] = reduced.gain[from] + share * reduced.gain[top];
                for to in (0..top).chain([n]).filter(|&to| to != from) {
                    if !row[to].is_zero() {
                        reduced.rates[from][to] = reduced.rates[from][to] + share * row[to];
                    }
                }
            }
        }
        reduced
    }

    /// Mean time to loss in seconds, from each state.
    #[must_use]
    pub fn mean_times(&self) -> Vec<Ln> {
        let n = self.states();
        let reduced = self.reduce(0, vec![Ln::new(1.0); n]);
        let mut times: Vec<Ln> = Vec::with_capacity(n);
        for state in 0..n {
            let below: Ln = (0..state)
                .map(|to| reduced.rates[state][to] * times[to])
                .sum();
            times.push((reduced.gain[state] + below) / reduced.out[state]);
        }
        times
    }

    /// The probability, from each state, that loss comes before state 0 is reached (again); for
    /// state 0 itself it is given as 0.
    #[must_use]
    pub fn loss_before_zero(&self) -> Vec<Ln> {
        let n = self.states();
        let gain = self.rates.iter().map(|row| row[n]).collect();
        let reduced = self.reduce(1, gain);
        let mut chances = vec![Ln::ZERO; n];
        for state in 1..n {
            let below: Ln = (1..state)
                .map(|to| reduced.rates[state][to] * chances[to])
                .sum();
            chances[state] = (reduced.gain[state] + below) / reduced.out[state];
        }
        chances
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(rates: &[(usize, usize, f64)]) -> Chain {
        let states = rates.iter().map(|r| r.0).max().unwrap_or(0) + 1;
        let mut chain = Chain::new(states);
        rates
            .iter()
            .for_each(|&(from, to, rate)| chain.add(from, to, Ln::new(rate)));
        chain
    }

    fn close(a: Ln, b: f64) -> bool {
        (a.value() / b - 1.0).abs() < 1e-12
    }

    #[test]
    fn closed_forms() {
        // One state.
        assert!(close(chain(&[(0, 1, 0.25)]).mean_times()[0], 4.0));
        // RAID 5 of n devices: ((2n - 1) l + u) / (n (n - 1) l^2).
        let (n, l, u) = (8.0, 1e-6, 1e-2);
        let raid5 = chain(&[(0, 1, n * l), (1, 0, u), (1, 2, (n - 1.0) * l)]);
        assert!(close(
            raid5.mean_times()[0],
            ((2.0 * n - 1.0) * l + u) / (n * (n - 1.0) * l * l)
        ));
        assert!(close(
            raid5.loss_before_zero()[1],
            (n - 1.0) * l / ((n - 1.0) * l + u)
        ));
        // RAID 6 with rates a, b, c up and u, v down: 1/a + 1/b + 1/c + u/ab + v/bc + uv/abc.
        let (a, b, c, u, v) = (3.0, 0.5, 0.25, 7.0, 11.0);
        let raid6 = chain(&[(0, 1, a), (1, 2, b), (2, 3, c), (1, 0, u), (2, 1, v)]);
        let expect = 1.0 / a + 1.0 / b + 1.0 / c + u / (a * b) + v / (b * c) + u * v / (a * b * c);
        assert!(close(raid6.mean_times()[0], expect));
        // A jump: from 0 to loss directly.
        assert!(close(
            chain(&[(0, 1, 1.0), (0, 2, 2.0), (1, 2, 4.0)]).mean_times()[0],
            5.0 / 12.0
        ));
    }

    #[test]
    fn agrees_with_power_series() {
        // A dense chain with jumps both ways: forward integration of the master equation.
        let rates = [
            (0, 1, 1.0),
            (0, 2, 0.3),
            (1, 0, 2.0),
            (1, 2, 0.7),
            (1, 3, 0.1),
            (2, 1, 1.5),
            (2, 0, 0.2),
            (2, 3, 0.9),
        ];
        let times = chain(&rates).mean_times();
        let (mut p, mut mean, dt) = ([1.0, 0.0, 0.0], 0.0, 1e-3);
        for _ in 0..200_000 {
            mean += p.iter().sum::<f64>() * dt;
            let mut next = p;
            for &(from, to, rate) in &rates {
                next[from] -= p[from] * rate * dt;
                if to < 3 {
                    next[to] += p[from] * rate * dt;
                }
            }
            p = next;
        }
        assert!(
            (times[0].value() / mean - 1.0).abs() < 2e-3,
            "{} {mean}",
            times[0].value()
        );
    }

    #[test]
    fn hundreds_of_parities_stay_finite() {
        let mut chain = Chain::new(256);
        for i in 0..256 {
            chain.add(i, i + 1, Ln::new(1e-9));
            if i > 0 {
                chain.add(i, i - 1, Ln::new(1e-2));
            }
        }
        let log = chain.mean_times()[0].log10();
        assert!((log - (255.0 * 7.0 + 9.0)).abs() < 1e-3, "{log}");
        let chance = chain.loss_before_zero()[1].log10();
        assert!((chance + 255.0 * 7.0).abs() < 1e-3, "{chance}");
    }
}
