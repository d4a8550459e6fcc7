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

pub use compare::{Comparison, Weights, compare};
pub use rows::{CLOSED_FORM, Evidence, Gates, NORMAL, RAW, RUNS, Row, Sample, rows};
