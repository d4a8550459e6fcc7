//! The modelled device: service times of a named drive in virtual time.
