//! Load generator and benchmarks.
