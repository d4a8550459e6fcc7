//! The view that the engine has of free space; `ashlar_space` decides how much there is, and who may take it.

pub mod geometry;
pub mod shape;
pub mod thin;
