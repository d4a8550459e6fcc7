//! Space: how much there is of it, who may take it, and what may be promised. Values and functions of facts.

pub mod capacity;
pub mod shape;
pub mod slots;
pub mod thin;
