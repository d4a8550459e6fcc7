//! Benchmarks: what the engine makes of its devices, in virtual time, and what it costs in processor
//! time.
//!
//! **Invariants**: a result says what it was measured on and at what scale; one generator drives raw
//! devices and volumes alike; a result whose traffic is not what the closed form says is marked, not
//! dropped; nothing here has a threshold that a result must pass.

pub mod cpu;
pub mod engine;
pub mod files;
pub mod lifecycle;
pub mod load;
mod meter;
pub mod pace;
pub mod report;

pub use load::{Durability, Load, Measured, Op, Pattern, Stop, Target};
