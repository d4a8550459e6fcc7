//! Rates of a device.
