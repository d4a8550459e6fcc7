//! Samples of a suite, and what is concluded from them: rows with means, variation, intervals and
//! shares of raw, stamped INVALID where a number must not be used.
//!
//! **Invariants**: pure, no devices and no clock; modelled, processor, real and published figures never
//! meet in one number; a row that is stamped keeps its number and says why; an interval or a variation
//! that so few runs do not give is absent.

mod bars;
pub mod beside;
pub mod compare;
pub mod csv;
pub mod curve;
pub mod figures;
pub mod honesty;
pub mod html;
pub mod page;
mod rows;
pub mod stats;
pub mod text;
pub mod time;

pub use compare::{Comparison, Weights, compare};
pub use rows::{CLOSED_FORM, Evidence, Gates, NORMAL, RAW, RUNS, Row, Sample, rows};

#[cfg(test)]
mod tests {
    use super::Sample;

    /// A run of random writes on eight devices, for the tests of what is drawn.
    pub(super) fn sample(target: &str, rate: f64, invalid: &[&str]) -> Sample {
        Sample {
            suite: "ssr".to_string(),
            workload: "RW".to_string(),
            target: target.to_string(),
            devices: 8,
            operations_per_second: Some(rate),
            invalid: invalid.iter().map(|r| (*r).to_string()).collect(),
            ..Sample::default()
        }
    }
}
