//! Resilience calculator and advisor.
//!
//! * [`System`]: groups of devices, perhaps mirrored, from layout notations and the papers'.
//! * [`LossCurve`], [`exposure`]: exact probabilities when x devices fail at the same instant.
//! * [`MonteCarlo`]: the same by simulation on the real placement, independent code.
//! * [`life()`], [`outlook`], [`Chain`]: failure and reconstruct rates to mean time to data loss,
//!   probability of loss a year, nines; [`Simulation`] checks them.
//! * [`plan()`], [`prospect`]: which layout for these drives; what a degraded array may expect.
//! * [`answer()`]: questions and answers as data, for `-j` and the page; `write_plot`, `page`.
//!
//! **Invariants.** Pure computation: no clock, no device, no network; randomness only from seeds.
//! No result is NaN or infinite. Probabilities are exactly 0 or 1 only when they are. Whatever is
//! assumed is said in the answer.

mod answer;
mod assumptions;
mod chain;
mod declustered;
mod exact;
mod life;
mod ln;
mod montecarlo;
#[cfg(feature = "page")]
mod page;
mod plan;
#[cfg(feature = "plots")]
mod plot;
mod random;
mod simulate;
mod system;

pub use answer::{
    Answer, AnswerError, LayoutAnswer, LifeAnswer, Method, PointAnswer, Question, answer,
};
pub use assumptions::{Assumptions, LifeError, YEAR};
pub use chain::Chain;
pub use exact::{
    ExactError, Exposure, LossCurve, MAX_DEVICES, Probability, SLOTS_PER_DEVICE, exposure,
};
pub use life::{GroupRates, Life, Outlook, group_mean_time, life, outlook};
pub use ln::Ln;
pub use montecarlo::{Estimate, MonteCarlo, MonteCarloError, Placing, Point};
#[cfg(feature = "page")]
pub use page::page;
pub use plan::{
    CLEAN_RESERVE, Choice, DEFAULT_NINES, LEAST_CAPACITY, METADATA_SHARE, Plan, PlanError, Present,
    Prospect, Reason, Usable, Wish, Wishes, plan, plan_with, prospect,
};
#[cfg(feature = "plots")]
pub use plot::{PlotError, Scale, svg, write_plot};
pub use simulate::{Simulation, Steps};
pub use system::{Group, System, SystemError};
