//! Modelled devices in virtual time: a drive's service times, and the ports, paths and hosts' links that stand between
//! drives and hosts in a [`Bed`].
//!
//! Invariants: those of the drive; whatever stands before it delays answers only.

mod bed;
mod drive;
mod fabric;
mod profile;
mod server;

pub use bed::{Bed, Built, Network};
pub use drive::{Content, ModelCounters, ModelDevice, ModelOptions, QUANTUM, WRITE_POINTS};
pub use fabric::{Link, Namespace, Path};
pub use profile::{Profile, Rotation};
