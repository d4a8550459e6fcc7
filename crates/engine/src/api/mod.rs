//! The interface of the engine: arrays, their volumes, settings and status.

pub mod array;
pub mod create;
mod lost;
pub mod members;
pub mod report;
mod resize;
pub mod scrub;
pub mod settings;
mod trim;
pub mod volume;
pub mod volumes;
