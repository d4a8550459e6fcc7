//! Filters: devices that wrap another device.
