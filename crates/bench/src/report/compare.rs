//! Two targets of a report side by side: by how much the challenger is better, for each state and
//! suite, with weights.
//!
//! **Invariants**: everything is per device before it is compared; a mean of ratios, never a ratio of
//! means; processor work is compared for each GB/s. Both ways to say a difference in processor work
//! stand side by side: how much *more* the baseline uses, and how much the challenger *saves*.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Row, stats};

/// What a state counts in the figure of a suite; 1 where it is not named.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Weights(pub BTreeMap<String, f64>);

impl Weights {
    /// From `normal=8,down=1`.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub fn parse(text: &str) -> Result<Weights, String> {
        let mut weights = BTreeMap::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (state, number) = part
                .split_once('=')
                .ok_or_else(|| format!("'{part}' is not STATE=NUMBER, for example normal=8"))?;
            let number: f64 = number
                .parse()
                .ok()
                .filter(|n: &f64| n.is_finite() && *n >= 0.0)
                .ok_or_else(|| format!("'{number}' is not a weight: a number of 0 or more"))?;
            weights.insert(state.to_string(), number);
        }
        Ok(Weights(weights))
    }

    fn of(&self, state: &str) -> f64 {
        self.0.get(state).copied().unwrap_or(1.0)
    }
}

/// One workload in one state.
#[derive(Clone, Debug, Serialize)]
pub struct Pair {
    /// The suite.
    pub suite: String,
    /// The state.
    pub state: String,
    /// The workload.
    pub workload: String,
    /// `iops` or `B/s`.
    pub unit: &'static str,
    /// The baseline's rate per device.
    pub baseline: f64,
    /// The challenger's.
    pub challenger: f64,
    /// challenger / baseline - 1.
    pub change: f64,
    /// Whether the runs say so at 95 %; `None`: too few.
    pub significant: Option<bool>,
    /// Processor percent for each GB/s, baseline and challenger.
    pub cpu: Option<(f64, f64)>,
    /// Whether a row behind it is stamped.
    pub invalid: bool,
}

/// The figure of a suite, or of one of its states.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figure {
    /// Mean of challenger / baseline - 1, per device: how much faster the challenger is.
    pub faster: Option<f64>,
    /// Mean of baseline / challenger - 1 in processor work: how much more the baseline uses.
    pub baseline_uses_more: Option<f64>,
    /// Mean of 1 - challenger / baseline in processor work: how much the challenger saves.
    pub challenger_saves: Option<f64>,
}

/// Two targets side by side.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// What is compared with.
    pub baseline: String,
    /// What is compared.
    pub challenger: String,
    /// The weights used.
    pub weights: Weights,
    /// Each workload in each state.
    pub pairs: Vec<Pair>,
    /// By suite and state.
    pub states: Vec<(String, String, Figure)>,
    /// By suite.
    pub suites: Vec<(String, Figure)>,
}

impl Comparison {
    /// The figure of each suite in each state, then of each suite; `all` stands for the state there.
    pub(super) fn figures<'a>(
        &'a self,
        all: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a str, &'a Figure)> {
        let states = self.states.iter();
        let states = states.map(|(suite, state, figure)| (suite.as_str(), state.as_str(), figure));
        let suites = self.suites.iter();
        states.chain(suites.map(move |(suite, figure)| (suite.as_str(), all, figure)))
    }
}

/// Compares `challenger` with `baseline`.
///
/// # Errors
/// If they have no row in common, for people.
pub fn compare(
    rows: &[Row],
    baseline: &str,
    challenger: &str,
    weights: &Weights,
) -> Result<Comparison, String> {
    let mut pairs = Vec::new();
    for base in rows.iter().filter(|row| row.target == baseline) {
        let same = |row: &&Row| {
            row.target == challenger
                && row.suite == base.suite
                && row.state == base.state
                && row.workload == base.workload
                && row.evidence == base.evidence
        };
        pairs.extend(rows.iter().find(same).and_then(|row| pair(base, row)));
    }
    if pairs.is_empty() {
        let mut known: Vec<&str> = rows.iter().map(|row| row.target.as_str()).collect();
        known.sort_unstable();
        known.dedup();
        return Err(format!(
            "{baseline} and {challenger} have no row in common; here are {}",
            known.join(", ")
        ));
    }
    let states = of_states(&pairs);
    let suites = of_suites(&states, weights);
    Ok(Comparison {
        baseline: baseline.to_string(),
        challenger: challenger.to_string(),
        weights: weights.clone(),
        pairs,
        states,
        suites,
    })
}

fn pair(base: &Row, other: &Row) -> Option<Pair> {
    // Where the devices are not known, rates as they are.
    let norm = |row: &Row| row.per_device.or(row.value);
    let (baseline, challenger) = (norm(base)?, norm(other)?);
    let each = |row: &Row| -> Vec<f64> {
        let devices = f64::from(row.devices.max(1));
        row.values.iter().map(|value| value / devices).collect()
    };
    Some(Pair {
        suite: base.suite.clone(),
        state: base.state.clone(),
        workload: base.workload.clone(),
        unit: base.unit,
        baseline,
        challenger,
        change: challenger / baseline - 1.0,
        significant: stats::differ(&each(base), &each(other)),
        cpu: base.cpu_per_gb.zip(other.cpu_per_gb),
        invalid: !(base.invalid.is_empty() && other.invalid.is_empty()),
    })
}

fn of_states(pairs: &[Pair]) -> Vec<(String, String, Figure)> {
    let mut states: Vec<(String, String, Figure)> = Vec::new();
    for pair in pairs {
        let known = states
            .iter()
            .any(|(suite, state, _)| *suite == pair.suite && *state == pair.state);
        if known {
            continue;
        }
        let same: Vec<&Pair> = pairs
            .iter()
            .filter(|p| p.suite == pair.suite && p.state == pair.state)
            .collect();
        let changes: Vec<f64> = same.iter().map(|p| p.change).collect();
        let cpu: Vec<(f64, f64)> = same.iter().filter_map(|p| p.cpu).collect();
        let more: Vec<f64> = cpu.iter().map(|(base, other)| base / other - 1.0).collect();
        let saves: Vec<f64> = cpu.iter().map(|(base, other)| 1.0 - other / base).collect();
        let figure = Figure {
            faster: stats::mean(&changes),
            baseline_uses_more: stats::mean(&more),
            challenger_saves: stats::mean(&saves),
        };
        states.push((pair.suite.clone(), pair.state.clone(), figure));
    }
    states
}

fn of_suites(states: &[(String, String, Figure)], weights: &Weights) -> Vec<(String, Figure)> {
    let mut suites: Vec<(String, Figure)> = Vec::new();
    for (suite, ..) in states {
        if suites.iter().any(|(known, _)| known == suite) {
            continue;
        }
        let all = |field: fn(&Figure) -> Option<f64>| {
            let parts: Vec<(f64, f64)> = states
                .iter()
                .filter(|(name, ..)| name == suite)
                .filter_map(|(_, state, figure)| Some((field(figure)?, weights.of(state))))
                .collect();
            stats::weighted(&parts)
        };
        let figure = Figure {
            faster: all(|f| f.faster),
            baseline_uses_more: all(|f| f.baseline_uses_more),
            challenger_saves: all(|f| f.challenger_saves),
        };
        suites.push((suite.clone(), figure));
    }
    suites
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn weights_are_read_and_refused() {
        let weights = Weights::parse("normal=8,down=0.5").unwrap();
        assert_eq!((weights.of("normal"), weights.of("rebuild")), (8.0, 1.0));
        for bad in ["normal", "normal=-1", "normal=x", "normal=inf"] {
            assert!(Weights::parse(bad).is_err(), "{bad}");
        }
    }
}
