//! Filters: devices that wrap another device. Each is made as an `Rc`, which is both the device that
//! is handed to the engine and the handle by which it is controlled while in use.

mod delay;
mod fault;
mod trace;

pub use delay::{Delay, DelayFilter};
pub use fault::{Effect, FaultFilter, Rule, RuleId};
pub use trace::{TraceEntry, TraceFilter};
