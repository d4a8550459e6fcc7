//! Batches of coding and digests, on the processor or on a GPU, whichever measures cheaper.
//!
//! A [`Job`] says what is to be done with which bytes: multiply strips by a code's matrix (encode or
//! decode), take digests of what is read and of what is written, or both in one pass.
//! [`Accelerator::submit`] takes it and gives a [`Pending`], a future that any executor can await: it is
//! woken from another thread and needs nothing from whoever polls it. `docs/gpu.md` has the design.
//!
//! **Invariants.**
//! - The bytes do not depend on where a job ran.
//! - Nothing waits for a GPU it does not need: when the device has as much as it may, is lost, or does
//!   not take a job of this kind, the processor does it, in `submit`, on the calling thread.
//! - A job that the device did not finish is redone on the processor into fresh memory by whoever polls
//!   its [`Pending`]; what a lost device may still write to is never handed out again.
//! - Depth and memory are bounded by [`Options`]; nothing is allocated on the device after it is opened.
//! - Without a driver nothing is loaded, no thread is started, and a job ends inside `submit`: a
//!   simulation is the same every time. Without the feature `cuda` there is no code for a device either.

#![cfg_attr(
    not(feature = "cuda"),
    allow(dead_code, reason = "only a device calls it")
)]

mod accelerator;
pub mod bench;
mod choice;
mod cost;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "none/mod.rs"]
mod cuda;
mod done;
mod fault;
mod flight;
mod function;
mod job;
mod options;
mod pending;
mod region;
mod status;

pub use accelerator::Accelerator;
pub use choice::{Choice, ChoiceError};
pub use cost::{DeviceRates, Rates};
pub use done::{Counters, Done, Ran};
pub use fault::Fault;
pub use function::Function;
pub use job::{CONTEXT_MAX, Coding, Digests, Form, Input, Job, JobError, Of, Shape};
pub use options::{Clock, Options};
pub use pending::Pending;
pub use region::Region;
pub use status::Status;
