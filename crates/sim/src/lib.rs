//! The deterministic simulator (development only).
