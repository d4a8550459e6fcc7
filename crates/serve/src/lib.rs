//! Frontends: NBD and FUSE; knows a small volume trait, not arrays.
