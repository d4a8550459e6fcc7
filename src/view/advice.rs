//! What is wrong with an array and what to do next, in sentences.
//!
//! **Invariants**: every array that is not optimal has at least one line; nothing is said about an
//! array with which nothing is wrong; each line that can be acted on names the command.

use ashlar_engine::status::{ArrayState, ArrayStatus, DeviceState, DeviceStatus};

use crate::units::{percent, size};
use crate::view::safe;

/// The lines, most urgent first.
pub(crate) fn advice(array: &ArrayStatus) -> Vec<String> {
    let mut lines = Vec::new();
    lost(array, &mut lines);
    devices(array, &mut lines);
    redundancy(array, &mut lines);
    space(array, &mut lines);
    lines
}

fn lost(array: &ArrayStatus, lines: &mut Vec<String>) {
    if array.lost.is_empty() {
        if array.state == ArrayState::Failed {
            lines.push(
                "data is lost: bring missing devices back, then 'ashlar export' and 'ashlar import'"
                    .to_string(),
            );
        }
        return;
    }
    let bytes: u64 = array.lost.iter().map(|l| l.length_bytes).sum();
    let count = array.lost.len();
    let first = &array.lost[0];
    lines.push(format!(
        "{} in {count} range{} cannot be read (first: {} at byte {}); everything else can. \
         Bring devices back, or overwrite these ranges; 'ashlar status {} -j' lists them",
        size(bytes),
        if count == 1 { "" } else { "s" },
        safe(&first.volume),
        first.offset_bytes,
        array.name,
    ));
}

fn devices(array: &ArrayStatus, lines: &mut Vec<String>) {
    for (state, what, next) in [
        (DeviceState::Failed, "failed", "replace it when convenient"),
        (DeviceState::Missing, "missing", "check its cable and power"),
        (DeviceState::Offline, "offline", "bring it back"),
        (
            DeviceState::Readonly,
            "read-only",
            "it is still read, but takes no writes",
        ),
        (
            DeviceState::Slow,
            "slow",
            "it is read around; replace it if that lasts",
        ),
    ] {
        let of: Vec<&DeviceStatus> = array.devices.iter().filter(|d| d.state == state).collect();
        let Some(first) = of.first() else { continue };
        let name = device_name(first);
        lines.push(match of.len() {
            1 => format!("device {name} is {what}: {next}"),
            n => format!("{n} devices are {what} (first: {name}): {next}"),
        });
    }
    let faulty = array
        .devices
        .iter()
        .filter(|d| d.state == DeviceState::Online);
    for device in faulty {
        let e = &device.errors;
        if e.read + e.write + e.digest > 0 {
            lines.push(format!(
                "device {} gave {} read, {} write and {} digest errors; what was found is healed, watch it",
                device_name(device),
                e.read,
                e.write,
                e.digest
            ));
        }
    }
}

fn redundancy(array: &ArrayStatus, lines: &mut Vec<String>) {
    let below: u64 = array
        .exposure
        .iter()
        .filter(|e| e.redundancy < array.m)
        .map(|e| e.bytes)
        .sum();
    if below == 0 {
        if array.state == ArrayState::Degraded || array.state == ArrayState::Critical {
            lines.push(format!(
                "redundancy is below {}; see the devices above",
                array.m
            ));
        }
        return;
    }
    let least = array
        .exposure
        .iter()
        .filter(|e| e.bytes > 0)
        .map(|e| e.redundancy)
        .min();
    let task = array.tasks.iter().find(|t| t.kind == "reconstruct");
    let next = match task {
        Some(task) if task.state == "running" => "being reconstructed".to_string(),
        Some(task) if task.state == "waiting" || task.state == "paused" => {
            let why = if task.reason.is_empty() {
                "no reason given"
            } else {
                &task.reason
            };
            format!("reconstruction is {}: {}", task.state, safe(why))
        }
        _ => "add or replace a device".to_string(),
    };
    let still = match least {
        Some(0) => "one more loss loses data".to_string(),
        Some(1) => "survives 1 more loss".to_string(),
        Some(n) => format!("survives {n} more losses"),
        None => String::new(),
    };
    lines.push(format!(
        "{} of data has less than {} redundancies ({still}): {next}",
        size(below),
        array.m
    ));
}

fn space(array: &ArrayStatus, lines: &mut Vec<String>) {
    let capacity = &array.capacity;
    if capacity.overpromised {
        lines.push(format!(
            "volumes were promised more than the devices left hold at full redundancy: as they fill, new data \
             will have less than {} redundancies; add or replace a device",
            array.m
        ));
    }
    let full = percent(capacity.used_bytes, capacity.usable_bytes);
    if full >= 80 {
        lines.push(format!(
            "{full} % full: writes get slower as it fills; trim, destroy a volume, or use a larger array{}",
            if full >= 95 { " now" } else { "" }
        ));
    }
}

/// A device as people find it again.
pub(crate) fn device_name(device: &DeviceStatus) -> String {
    if device.path.is_empty() {
        format!("{} (uuid {})", device.index, device.uuid)
    } else {
        format!("{} ({})", device.index, safe(&device.path))
    }
}
