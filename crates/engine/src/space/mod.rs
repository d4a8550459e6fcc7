//! Space as the engine sees it; `ashlar_space` says how much there is, and who may take it.

pub mod geometry;
pub mod shape;
pub mod thin;
