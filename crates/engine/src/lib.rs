//! The engine: segments, journal, map, read plans, health, mover.

pub mod status;
