//! Statistics of repeated measurements: means, variation, intervals, the steady-state test.
//!
//! **Invariants**: pure arithmetic; what cannot be said from so few values is `None`, never 0.

/// Rounds that the steady-state test looks at together.
pub const STEADY_ROUNDS: usize = 5;
/// The most that the best and the worst of them may differ, as a share of their mean.
pub const STEADY_RANGE: f64 = 0.20;
/// The most that a straight line through them may rise or fall over all of them, as a share of the mean.
pub const STEADY_SLOPE: f64 = 0.10;

/// The mean.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The standard deviation of the population that `values` are a sample of.
pub fn deviation(values: &[f64]) -> Option<f64> {
    let mean = mean(values)?;
    if values.len() < 2 {
        return None;
    }
    let squares: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
    Some((squares / (values.len() - 1) as f64).sqrt())
}

/// The coefficient of variation: deviation / mean.
pub fn variation(values: &[f64]) -> Option<f64> {
    let (mean, deviation) = (mean(values)?, deviation(values)?);
    (mean > 0.0).then(|| deviation / mean)
}

/// Half the width of the 95 % confidence interval of the mean.
pub fn half_interval(values: &[f64]) -> Option<f64> {
    let freedom = values.len().checked_sub(1)? as f64;
    Some(student(freedom) * deviation(values)? / (values.len() as f64).sqrt())
}

/// The 97.5 % quantile of Student's distribution. Between the tabled degrees of freedom the next
/// lower one counts: intervals come out too wide rather than too narrow.
fn student(freedom: f64) -> f64 {
    const TABLE: [(f64, f64); 22] = [
        (1.0, 12.706),
        (2.0, 4.303),
        (3.0, 3.182),
        (4.0, 2.776),
        (5.0, 2.571),
        (6.0, 2.447),
        (7.0, 2.365),
        (8.0, 2.306),
        (9.0, 2.262),
        (10.0, 2.228),
        (11.0, 2.201),
        (12.0, 2.179),
        (13.0, 2.160),
        (14.0, 2.145),
        (15.0, 2.131),
        (17.0, 2.110),
        (20.0, 2.086),
        (25.0, 2.060),
        (30.0, 2.042),
        (40.0, 2.021),
        (60.0, 2.000),
        (120.0, 1.980),
    ];
    let found = TABLE.iter().rev().find(|(at, _)| *at <= freedom);
    found.map_or(f64::INFINITY, |(_, t)| *t)
}

/// Whether two sets of runs have different means, by Welch's test at 95 %. `None` with fewer than two
/// runs on a side.
pub fn differ(a: &[f64], b: &[f64]) -> Option<bool> {
    let part = |values: &[f64]| Some(deviation(values)?.powi(2) / values.len() as f64);
    let (pa, pb) = (part(a)?, part(b)?);
    let distance = (mean(a)? - mean(b)?).abs();
    if pa + pb == 0.0 {
        return Some(distance > 0.0);
    }
    let below = pa * pa / (a.len() - 1) as f64 + pb * pb / (b.len() - 1) as f64;
    let freedom = (pa + pb).powi(2) / below;
    Some(distance / (pa + pb).sqrt() > student(freedom.max(1.0)))
}

/// How steady a series of rounds is at its steadiest [`STEADY_ROUNDS`] that follow each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steadiness {
    /// The first window that passes ends with this round; `None`: none does.
    pub attained: Option<usize>,
    /// (largest - smallest) / mean of that window, or of the last one.
    pub range: f64,
    /// Rise or fall of the least-squares line over that window / mean.
    pub slope: f64,
}

/// The test of SNIA's performance specification for solid-state drives: five rounds in a row whose
/// range is at most 20 % of their mean and whose straight line moves at most 10 %. `None` with fewer
/// rounds. The slope is that of the whole window: a slope per sample once let a fall of 21 % pass.
pub fn steadiness(rounds: &[f64]) -> Option<Steadiness> {
    let mut last = None;
    for (index, window) in rounds.windows(STEADY_ROUNDS).enumerate() {
        let (range, slope) = excursions(window);
        let passes = range <= STEADY_RANGE && slope <= STEADY_SLOPE;
        let found = Steadiness {
            attained: passes.then_some(index + STEADY_ROUNDS - 1),
            range,
            slope,
        };
        if passes {
            return Some(found);
        }
        last = Some(found);
    }
    last
}

fn excursions(window: &[f64]) -> (f64, f64) {
    let count = window.len() as f64;
    let mean = window.iter().sum::<f64>() / count;
    if mean <= 0.0 {
        return (f64::INFINITY, f64::INFINITY);
    }
    let high = window.iter().copied().fold(f64::MIN, f64::max);
    let low = window.iter().copied().fold(f64::MAX, f64::min);
    let middle = (count - 1.0) / 2.0;
    let (mut above, mut below) = (0.0, 0.0);
    for (index, value) in window.iter().enumerate() {
        let x = index as f64 - middle;
        above += x * (value - mean);
        below += x * x;
    }
    let slope = (above / below * (count - 1.0)).abs();
    ((high - low) / mean, slope / mean)
}

/// Mean of `values` with `weights`; `None` where no weight is above 0.
pub fn weighted(values: &[(f64, f64)]) -> Option<f64> {
    let all: f64 = values.iter().map(|(_, weight)| weight).sum();
    (all > 0.0).then(|| values.iter().map(|(v, w)| v * w).sum::<f64>() / all)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn close(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-3 * b.abs().max(1.0), "{a} against {b}");
    }

    #[test]
    fn moments_and_intervals_are_those_of_the_textbook() {
        let values = [9.8, 10.1, 10.4];
        close(mean(&values).unwrap(), 10.1);
        close(deviation(&values).unwrap(), 0.3);
        close(variation(&values).unwrap(), 0.029_703);
        close(half_interval(&values).unwrap(), 4.303 * 0.3 / 3f64.sqrt());
        assert_eq!(mean(&[]), None);
        assert_eq!(half_interval(&[5.0]), None);
        assert_eq!(variation(&[0.0, 0.0]), None);
        close(student(16.0), 2.131);
        close(student(1000.0), 1.980);
    }

    #[test]
    fn means_that_differ_less_than_their_runs_do_not_differ() {
        assert_eq!(
            differ(&[100.0, 101.0, 99.0], &[110.0, 111.0, 109.0]),
            Some(true)
        );
        assert_eq!(
            differ(&[100.0, 120.0, 80.0], &[110.0, 90.0, 125.0]),
            Some(false)
        );
        assert_eq!(differ(&[100.0], &[110.0, 111.0]), None);
        assert_eq!(differ(&[5.0, 5.0], &[5.0, 5.0]), Some(false));
        assert_eq!(differ(&[5.0, 5.0], &[6.0, 6.0]), Some(true));
    }

    #[test]
    fn a_series_that_falls_is_not_steady() {
        // 53 to 36 to 48: a tool with a slope per sample called this steady.
        let misfire = [53.0, 47.0, 36.0, 41.0, 48.0];
        let found = steadiness(&misfire).unwrap();
        assert_eq!(found.attained, None);
        close(found.range, 17.0 / 45.0);
        let falling = [100.0, 97.0, 94.0, 91.0, 88.0];
        let found = steadiness(&falling).unwrap();
        assert_eq!(found.attained, None);
        close(found.slope, 12.0 / 94.0);
        assert!(found.range < STEADY_RANGE);
    }

    #[test]
    fn a_series_becomes_steady_at_the_first_window_that_passes() {
        let rounds = [200.0, 150.0, 101.0, 99.0, 100.0, 102.0, 98.0, 50.0];
        assert_eq!(steadiness(&rounds).unwrap().attained, Some(6));
        assert_eq!(steadiness(&rounds[..4]), None);
        assert_eq!(steadiness(&[0.0; 5]).unwrap().attained, None);
    }

    #[test]
    fn weights_weigh() {
        close(weighted(&[(10.0, 8.0), (20.0, 2.0)]).unwrap(), 12.0);
        assert_eq!(weighted(&[(10.0, 0.0)]), None);
    }
}
