//! The deterministic simulator (development only).
pub mod content;
pub mod device;
pub mod disk;
pub mod model;
pub mod rng;
pub mod trace;
