//! What an array needs its operator for, in sentences: what is wrong, and what to do next.
//!
//! **Invariants**: every array that is not optimal has at least one line, and so has an optimal one that is not
//! what it was (devices gone, devices with errors, little room); nothing is said about an array with which nothing
//! is wrong; nothing is claimed that the status does not show.

use ashlar_engine::status::{ArrayState, ArrayStatus, DeviceState, DeviceStatus, Service};

use crate::api::{DeviceHardware, Health, Warning};
use crate::units::{percent, size};
use crate::view::{count, safe};

/// Errors from which on a device is taken for failing.
const MANY_ERRORS: u64 = 100;
/// Devices that are named one by one.
const NAMED: usize = 4;

/// The lines, most urgent first.
pub(crate) fn advice(array: &ArrayStatus) -> Vec<String> {
    let mut lines = Vec::new();
    service(array, &mut lines);
    if array.service == Service::Stopped {
        return lines; // nothing else can be told
    }
    lost(array, &mut lines);
    gone(array, &mut lines);
    redundancy(array, &mut lines);
    errors(array, &mut lines);
    space(array, &mut lines);
    if let Some(fault) = &array.accelerator.fault {
        lines.push(format!(
            "the processor does a GPU's work: {}. 'ashlar set {} accelerator=auto' tries again",
            safe(fault),
            safe(&array.name)
        ));
    }
    if lines.is_empty() && array.state != ArrayState::Optimal {
        lines.push("the journal holds what has less redundancy; that ends by itself".to_string());
    }
    lines
}

fn service(array: &ArrayStatus, lines: &mut Vec<String>) {
    let name = safe(&array.name);
    match array.service {
        Service::Full | Service::ReadOnly => {}
        Service::WritesWait => lines.push(format!(
            "writes wait, since too few devices agree on going on: bring devices back, or, for a device that is \
             gone, 'ashlar fail {name} DEV -f'"
        )),
        Service::Stopped => lines.push(format!(
            "the array has stopped ('ashlar events {name}' says why): 'ashlar export {name}', bring its devices \
             back, 'ashlar import {name}'"
        )),
    }
}

fn lost(array: &ArrayStatus, lines: &mut Vec<String>) {
    let Some(first) = array.lost.first() else {
        if array.state == ArrayState::Failed {
            lines.push(
                "data is lost, which will show as it is read; if missing devices can be brought back, \
                 export the array, bring them back and import it"
                    .to_string(),
            );
        }
        return;
    };
    let bytes: u64 = array.lost.iter().map(|l| l.length_bytes).sum();
    lines.push(format!(
        "{} in {} cannot be read (first: {} at byte {}). Found so far: what has not been read may be lost \
         too. Bring devices back, or overwrite these ranges; 'ashlar status {} -j' lists them",
        size(bytes),
        count(array.lost.len(), "range"),
        safe(&first.volume),
        first.offset_bytes,
        safe(&array.name),
    ));
}

/// Devices that are not used any more, and what that leaves.
fn gone(array: &ArrayStatus, lines: &mut Vec<String>) {
    let state = |d: &DeviceStatus| match d.state {
        DeviceState::Failed => Some("failed"),
        DeviceState::Missing => Some("missing"),
        DeviceState::Offline => Some("offline"),
        _ => None,
    };
    let gone = array.devices.iter().filter_map(|d| Some((d, state(d)?)));
    let gone: Vec<(&DeviceStatus, &str)> = gone.collect();
    if !gone.is_empty() {
        let names = gone.iter().take(NAMED);
        let names: Vec<String> = names
            .map(|(d, state)| format!("{} {state}", device_name(d)))
            .collect();
        let more = match gone.len() - names.len() {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        let verb = if gone.len() == 1 { "is" } else { "are" };
        lines.push(format!(
            "{} of {} {verb} gone: {}{more}. {}",
            gone.len(),
            count(usize::from(array.devices_total), "device"),
            names.join(", "),
            room(array),
        ));
    }
    for (state, what) in [
        (DeviceState::Readonly, "takes no writes; it is still read"),
        (DeviceState::Slow, "is slow; it is read around"),
    ] {
        let mut of = array.devices.iter().filter(|d| d.state == state);
        let Some(first) = of.next() else { continue };
        let others = match of.count() {
            0 => String::new(),
            n => format!(" (and {n} more)"),
        };
        lines.push(format!("device {}{others} {what}", device_name(first)));
    }
}

/// What more losses would do to an array that has lost some.
fn room(array: &ArrayStatus) -> String {
    let whole = if array.state == ArrayState::Optimal {
        "All data has its redundancy again. "
    } else {
        ""
    };
    // Of several groups no more is told than that one of them has none left over.
    let online = array
        .devices
        .iter()
        .filter(|d| d.state == DeviceState::Online);
    let wide = usize::from(array.k) + usize::from(array.m);
    match array.health.reconstructs {
        0 if online.count() <= wide => format!(
            "{whole}No device is left over to rebuild another loss onto: what that leaves without redundancy is \
             written anew over fewer devices, where there is room ('rebuild.narrow'). Devices cannot be added yet: \
             copy the data to a new array in time"
        ),
        0 => format!(
            "{whole}There is no room to rebuild another loss, and devices cannot be added yet: copy the data \
             to a new array in time"
        ),
        n => format!(
            "{whole}There is room to rebuild {}",
            count(usize::from(n), "more loss"),
        ),
    }
}

fn redundancy(array: &ArrayStatus, lines: &mut Vec<String>) {
    let below = array.exposure.iter().filter(|e| e.redundancy < array.m);
    let below: u64 = below.map(|e| e.bytes).sum();
    let waiting = array.tasks.iter().find(|t| t.kind == "reconstruct");
    let next = match waiting {
        Some(task) if task.state == "running" => "it is being rebuilt".to_string(),
        Some(task) if !task.reason.is_empty() => {
            format!("it is not rebuilt: {}", safe(&task.reason))
        }
        _ if array.service == Service::ReadOnly => {
            "nothing is rebuilt while it is imported read-only".to_string()
        }
        _ => "the rebuild has not begun".to_string(),
    };
    if below == 0 {
        if array.state == ArrayState::Degraded || array.state == ArrayState::Critical {
            lines.push(format!("redundancy of metadata is lost; {next}"));
        }
        return;
    }
    let held = array.exposure.iter().filter(|e| e.bytes > 0);
    let still = match held.map(|e| e.redundancy).min() {
        Some(0) => "one more loss loses data".to_string(),
        Some(n) => format!("survives {}", count(usize::from(n), "more loss")),
        None => String::new(),
    };
    let wanted = match array.m {
        1 => "has lost its redundancy".to_string(),
        m => format!("has less than {m} redundancies"),
    };
    lines.push(format!(
        "{} of data {wanted} ({still}); {next}",
        size(below)
    ));
}

/// Devices in use that gave errors.
fn errors(array: &ArrayStatus, lines: &mut Vec<String>) {
    let mut faulty: Vec<(u64, &DeviceStatus)> = array
        .devices
        .iter()
        .filter(|d| d.state == DeviceState::Online)
        .map(|d| (d.errors.read + d.errors.write + d.errors.digest, d))
        .filter(|(errors, _)| *errors > 0)
        .collect();
    faulty.sort_by_key(|(errors, d)| (std::cmp::Reverse(*errors), d.index));
    for (errors, device) in faulty.iter().take(NAMED) {
        let e = &device.errors;
        let kinds = [(e.read, "read"), (e.write, "write"), (e.digest, "digest")];
        let kinds = kinds.iter().filter(|(n, _)| *n > 0);
        let kinds: Vec<String> = kinds.map(|(n, kind)| format!("{n} {kind}")).collect();
        let next = if *errors < MANY_ERRORS && e.write == 0 {
            "watch it".to_string()
        } else if array.health.reconstructs > 0 {
            format!(
                "it may be failing; there is room to do without it: 'ashlar fail {} {}'",
                safe(&array.name),
                device.index
            )
        } else {
            "it may be failing, and there is no room to rebuild what it holds".to_string()
        };
        lines.push(format!(
            "device {} gave {} error{} since the import: {next}",
            device_name(device),
            kinds.join(" and "),
            if *errors == 1 { "" } else { "s" },
        ));
    }
    if faulty.len() > NAMED {
        lines.push(format!(
            "{} gave errors; 'ashlar status {} -v' shows all",
            count(faulty.len() - NAMED, "more device"),
            safe(&array.name)
        ));
    }
    if let Some(heal) = array.tasks.iter().find(|t| t.kind == "heal") {
        let left = heal.found.saturating_sub(heal.healed);
        if left > 0 && heal.state == "running" {
            lines.push(format!(
                "{} of {} bad blocks found are repaired so far",
                heal.healed, heal.found
            ));
        } else if left > 0 {
            lines.push(format!(
                "{left} of {} found could not be repaired; as long as other devices have it, nothing is lost",
                count(usize::try_from(heal.found).unwrap_or(usize::MAX), "bad block"),
            ));
        }
    }
}

/// What drives in use warn of that calls for the operator.
pub(crate) fn of_drives(array: &ArrayStatus, hardware: &[DeviceHardware]) -> Vec<String> {
    let of = |index| {
        let known = hardware
            .iter()
            .find(|d| d.array == array.name && d.index == index);
        known.and_then(|d| d.hardware.health.as_ref())
    };
    let online = array
        .devices
        .iter()
        .filter(|d| d.state == DeviceState::Online);
    let mut lines = Vec::new();
    for device in online {
        let urgent: Vec<&Warning> = of(device.index)
            .into_iter()
            .flat_map(Health::urgent)
            .collect();
        if urgent.is_empty() {
            continue;
        }
        let next = if urgent.iter().all(|w| w.kind == "temperature") {
            "see to its cooling".to_string()
        } else if array.health.reconstructs > 0 {
            format!(
                "there is room to do without it: 'ashlar fail {} {}'",
                safe(&array.name),
                device.index
            )
        } else {
            "there is no room to rebuild what it holds".to_string()
        };
        let texts: Vec<String> = urgent.iter().map(|w| safe(&w.text)).collect();
        lines.push(format!(
            "the drive of device {} reports: {}: {next}",
            device_name(device),
            texts.join("; ")
        ));
    }
    if lines.len() > NAMED {
        let more = count(lines.len() - NAMED, "more drive");
        lines.truncate(NAMED);
        lines.push(format!(
            "{more} warn; 'ashlar device list {}' shows all",
            safe(&array.name)
        ));
    }
    lines
}

fn space(array: &ArrayStatus, lines: &mut Vec<String>) {
    let capacity = &array.capacity;
    if capacity.overpromised {
        lines.push(
            "volumes were promised more than the devices left hold at full redundancy: as they fill, new data \
             will have less; destroy what is not needed"
                .to_string(),
        );
    }
    let full = percent(capacity.used_bytes, capacity.usable_bytes);
    if full >= 80 {
        lines.push(format!(
            "{full} % full: writes get slower as it fills; trim, destroy a volume, or use a larger array{}",
            if full >= 95 { " now" } else { "" }
        ));
    }
}

/// In a few words for a table: `1 gone, 2 with errors`; empty if there is nothing.
pub(crate) fn in_short(array: &ArrayStatus) -> String {
    let mut parts = Vec::new();
    match array.service {
        Service::Full => {}
        Service::ReadOnly => parts.push("read-only".to_string()),
        Service::WritesWait => parts.push("writes wait".to_string()),
        Service::Stopped => return "stopped".to_string(),
    }
    if array.health.devices_gone > 0 {
        parts.push(format!("{} gone", array.health.devices_gone));
    }
    let online = array
        .devices
        .iter()
        .filter(|d| d.state == DeviceState::Online);
    let faulty = online.filter(|d| d.errors.read + d.errors.write + d.errors.digest > 0);
    match faulty.count() {
        0 => {}
        n => parts.push(format!("{n} with errors")),
    }
    if !array.lost.is_empty() {
        parts.push("data lost".to_string());
    }
    parts.join(", ")
}

/// A device as people find it again.
pub(crate) fn device_name(device: &DeviceStatus) -> String {
    if !device.path.is_empty() {
        format!("{} ({})", device.index, safe(&device.path))
    } else if !device.last_path.is_empty() {
        format!("{} (last at {})", device.index, safe(&device.last_path))
    } else {
        format!("{} (uuid {})", device.index, device.uuid)
    }
}
