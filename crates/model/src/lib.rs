//! Resilience calculator and advisor.
