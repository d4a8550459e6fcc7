//! Answers: the engine's errors as the operator reads them, and values as the wire has them.
//!
//! **Invariants**: sizes are in units; a device is named by its path.

use ashlar_device::Fault;
use serde::Serialize;
use serde_json::Value;

use crate::api::VERSION;
use crate::failure::{Failure, Kind};
use crate::units::{readable, size};

/// An engine error about devices that it numbers by their place in a list: with their paths.
pub(crate) fn explain(error: &ashlar_engine::Error, paths: &[&str]) -> Failure {
    use ashlar_engine::Error;
    let path = |device: usize| paths.get(device).copied().unwrap_or("a device");
    match error {
        Error::TooSmall { device, have, need } => Failure::invalid(format!(
            "{}: {} is too small; this slot size needs {}: leave the device out or give a smaller --slot",
            path(*device),
            size(*have),
            size(*need)
        )),
        Error::Device {
            device,
            fault: Fault::ReadOnly,
        } => Failure::refused(format!(
            "{}: is write-protected (read-only); make it writable, or leave it out",
            path(*device)
        )),
        Error::Device { device, fault } => Failure::broken(format!(
            "{}: {fault}; check the device and its cabling, then try again",
            path(*device)
        )),
        Error::Format { device, source } => Failure::broken(format!(
            "{}: {source}; leave it out, or use 'ashlar inspect'",
            path(*device)
        )),
        other => Failure::of_kind(kind_of(other), readable(&other.to_string())),
    }
}

/// An engine error, as the operator reads it.
pub(crate) fn failure_of(error: ashlar_engine::Error) -> Failure {
    match error {
        ashlar_engine::Error::NoSpace { asked, free } => Failure::refused(format!(
            "too little free space: {} asked, {} free; ask for less, use --thin to promise more than is free, or \
             destroy a volume ('ashlar volume list' shows their sizes)",
            size(asked),
            size(free)
        )),
        ashlar_engine::Error::Closed => Failure::broken(
            "the array has stopped ('ashlar events' shows why and what to fix); then export it and import it again",
        ),
        error => Failure::of_kind(kind_of(&error), readable(&error.to_string())),
    }
}

fn kind_of(error: &ashlar_engine::Error) -> Kind {
    use ashlar_engine::Error;
    match error {
        Error::Layout(_)
        | Error::Name(_)
        | Error::Size { .. }
        | Error::Setting { .. }
        | Error::NoSetting { .. } => Kind::Invalid,
        Error::NoVolume(_) | Error::NoDevice(_) | Error::NoArray => Kind::NotFound,
        Error::VolumeExists(_)
        | Error::Resizing(_)
        | Error::NoSpace { .. }
        | Error::Promised { .. }
        | Error::SpareNamed { .. }
        | Error::TooFewToSpare { .. }
        | Error::NoRoomToSpare { .. }
        | Error::WouldLose(_)
        | Error::CleaningNotPaused
        | Error::RepairNotPaused
        | Error::Trimming
        | Error::UsedBy(_)
        | Error::UsedMeanwhile
        | Error::LastUsedBy(_)
        | Error::ReadOnly => Kind::Refused,
        _ => Kind::Broken,
    }
}

/// An answer: the value's fields, and the version.
///
/// # Errors
/// Never for plain data.
pub(crate) fn reply(value: &impl Serialize) -> Result<Value, Failure> {
    let mut value = serde_json::to_value(value)
        .map_err(|e| Failure::broken(format!("the answer cannot be written: {e}")))?;
    if let Value::Object(map) = &mut value {
        map.insert("version".to_string(), VERSION.into());
    }
    Ok(value)
}
