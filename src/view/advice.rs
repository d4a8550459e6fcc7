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
    redundancy(array, &mut lines);
    gone(array, &mut lines);
    storage(array, &mut lines);
    errors(array, &mut lines);
    space(array, &mut lines);
    if let Some(fault) = &array.accelerator.fault {
        lines.push(format!(
            "the GPU is not used, the processor does its work: {}. 'ashlar set {} accelerator=auto' tries the \
             GPU again",
            safe(fault),
            safe(&array.name)
        ));
    }
    if lines.is_empty() && array.state != ArrayState::Optimal {
        lines.push("some journal entries are degraded; this clears by itself".to_string());
    }
    scrub(array, &mut lines);
    lines
}

fn service(array: &ArrayStatus, lines: &mut Vec<String>) {
    let name = safe(&array.name);
    match array.service {
        Service::Full | Service::ReadOnly => {}
        Service::WritesWait => lines.push(format!(
            "writes are paused: more than half of the devices are out of use, and another host may be using them. \
             For each device that will not come back: 'ashlar fail {name} DEV -f'. 40 s after they went the array stops: \
             then 'ashlar export {name}', 'ashlar import {name} --degraded'"
        )),
        Service::Stopped => lines.push(format!(
            "the array has stopped, and its volumes answer with errors; 'ashlar events {name}' shows why and what to \
             fix. Then: 'ashlar export {name}', 'ashlar import {name}'"
        )),
    }
}

fn lost(array: &ArrayStatus, lines: &mut Vec<String>) {
    let Some(first) = array.lost.first() else {
        if array.state == ArrayState::Failed {
            let what = match array.unreadable_bytes {
                0 => "data cannot be read".to_string(),
                bytes => format!("{} of data cannot be read", size(bytes)),
            };
            lines.push(format!(
                "{what}: more devices are out of use than the layout survives. {}",
                whence(array, "Restore it")
            ));
        }
        return;
    };
    let bytes: u64 = array.lost.iter().map(|l| l.length_bytes).sum();
    lines.push(format!(
        "{} of data in {} could not be read (first: volume {} at byte {}); reading more may find more. {}; \
         'ashlar status {} -j' lists them",
        size(bytes),
        count(array.lost.len(), "range"),
        safe(&first.volume),
        first.offset_bytes,
        whence(array, "Restore these ranges"),
        safe(&array.name),
    ));
}

/// Where lost data comes from: devices that are out of use may have it. A read-only import has left nobody out yet.
fn whence(array: &ArrayStatus, restore: &str) -> String {
    let name = safe(&array.name);
    let any = |state| array.devices.iter().any(|d| d.state == state);
    let which = |state| {
        let of = array.devices.iter().filter(|d| d.state == state);
        let of: Vec<String> = of.map(|d| d.index.to_string()).collect();
        match of.as_slice() {
            [only] => only.clone(),
            _ => "DEV".to_string(),
        }
    };
    let missing = any(DeviceState::Missing);
    if array.service == Service::ReadOnly && missing {
        return format!(
            "Reconnect the missing devices: 'ashlar export {name}', then 'ashlar import {name}'"
        );
    }
    let ways = [
        (missing, "reconnect those that are missing".to_string()),
        (
            any(DeviceState::Offline),
            format!(
                "'ashlar online {name} {}' those that are offline",
                which(DeviceState::Offline)
            ),
        ),
        (
            any(DeviceState::Failed),
            format!(
                "'ashlar online {name} {} -f' those that failed and may be sound",
                which(DeviceState::Failed)
            ),
        ),
    ];
    let ways: Vec<String> = ways
        .into_iter()
        .filter_map(|(is, way)| is.then_some(way))
        .collect();
    match ways.as_slice() {
        [] => format!("{restore} from a backup"),
        some => format!(
            "Devices that are out of use may still have it: {}. {restore} from a backup only if they do not come back",
            some.join("; ")
        ),
    }
}

/// How a device is out of use, if it is, and may come back.
fn out_of_use(device: &DeviceStatus) -> Option<&'static str> {
    match device.state {
        DeviceState::Failed => Some("failed"),
        DeviceState::Missing => Some("missing"),
        DeviceState::Offline => Some("offline"),
        _ => None,
    }
}

/// Devices that are not used any more, and what that leaves.
fn gone(array: &ArrayStatus, lines: &mut Vec<String>) {
    let gone = array.devices.iter();
    let gone = gone.filter_map(|d| Some((d, out_of_use(d)?)));
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
            "{} of {} {verb} out of use: {}{more}. {}",
            gone.len(),
            count(usize::from(array.devices_total), "device"),
            names.join(", "),
            room(array, &gone),
        ));
    }
    for (state, what) in [
        (DeviceState::Readonly, "refuses writes; it is still read"),
        (
            DeviceState::Slow,
            "is slow; it is used again by itself once it is as fast as the others: if it stays slow, replace it",
        ),
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

/// Devices in use that lie on something that is not as it was.
fn storage(array: &ArrayStatus, lines: &mut Vec<String>) {
    let wrong: Vec<&DeviceStatus> = array
        .devices
        .iter()
        .filter(|d| !d.storage.is_empty())
        .collect();
    for device in wrong.iter().take(NAMED) {
        lines.push(format!(
            "device {}: {}: 'ashlar replace {} {} NEW'",
            device_name(device),
            safe(&device.storage),
            safe(&array.name),
            device.index
        ));
    }
    if wrong.len() > NAMED {
        lines.push(format!(
            "{} like that; 'ashlar status {} -j' lists them",
            count(wrong.len() - NAMED, "more device"),
            safe(&array.name)
        ));
    }
}

/// What more losses would do to an array that has lost some.
fn room(array: &ArrayStatus, gone: &[(&DeviceStatus, &str)]) -> String {
    if array.state == ArrayState::Failed {
        return "Replace none of them before that: what only they hold is lost then".to_string();
    }
    let name = safe(&array.name);
    let (old, replace, place) = match gone {
        [(device, _)] => {
            let words = "replace the one that is out of use";
            (device.index.to_string(), words, "its place")
        }
        _ => {
            let words = "replace those that are out of use";
            ("OLD".to_string(), words, "the place of each")
        }
    };
    let whole = if array.state == ArrayState::Optimal {
        "All data has full redundancy again. "
    } else {
        ""
    };
    match array.health.reconstructs {
        0 if !has_device_over(array) => format!(
            "{whole}No device is left to rebuild onto if another fails: data left without redundancy is then \
             rewritten across fewer devices while there is free space (setting rebuild.narrow): {replace}, \
             'ashlar replace {name} {old} NEW'"
        ),
        0 => format!(
            "{whole}There is too little free space to rebuild another failed device: {replace}, 'ashlar replace \
             {name} {old} NEW'"
        ),
        n => format!(
            "{whole}Free space allows {}; 'ashlar replace {name} {old} NEW' puts another device in {place}",
            count(usize::from(n), "more rebuild"),
        ),
    }
}

/// Whether there are more devices in use than a stripe is wide. Of several groups no more is told than that one of them
/// has none left over.
fn has_device_over(array: &ArrayStatus) -> bool {
    let online = array.devices.iter();
    let online = online.filter(|d| d.state == DeviceState::Online);
    online.count() > usize::from(array.k) + usize::from(array.m)
}

/// Why a device in use could not be rebuilt if it failed.
fn why_no_rebuild(array: &ArrayStatus) -> &'static str {
    match has_device_over(array) {
        true => "there is too little free space to rebuild it",
        false => "no device is left to rebuild it onto",
    }
}

fn redundancy(array: &ArrayStatus, lines: &mut Vec<String>) {
    let below = array.exposure.iter().filter(|e| e.redundancy < array.m);
    let below: u64 = below.map(|e| e.bytes).sum();
    let waiting = array.tasks.iter().find(|t| t.kind == "reconstruct");
    let next = match waiting {
        Some(task) if task.state == "running" => "it is being rebuilt".to_string(),
        Some(task) if !task.reason.is_empty() => {
            format!("the rebuild waits: {}", safe(&task.reason))
        }
        _ if array.service == Service::ReadOnly => {
            "a read-only import rebuilds nothing".to_string()
        }
        _ => "the rebuild has not begun".to_string(),
    };
    if below == 0 {
        if array.state == ArrayState::Degraded || array.state == ArrayState::Critical {
            lines.push(format!("metadata is degraded; {next}"));
        }
        return;
    }
    let held = array.exposure.iter().filter(|e| e.bytes > 0);
    let still = match held.map(|e| e.redundancy).min().unwrap_or(0) {
        0 if array.state == ArrayState::Failed => "part of it cannot be read".to_string(),
        0 => "the next device failure loses data".to_string(),
        n => format!(
            "the worst of it survives {}, normally {}",
            count(usize::from(n), "more device failure"),
            array.m
        ),
    };
    lines.push(format!(
        "{} of data is degraded: {still}; {next}",
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
            format!(
                "few so far: 'ashlar scrub {} start' looks for more; check whether the number grows",
                safe(&array.name)
            )
        } else if array.health.reconstructs > 0 {
            format!(
                "it may be failing, and free space allows its rebuild: 'ashlar fail {} {}'",
                safe(&array.name),
                device.index
            )
        } else {
            format!(
                "it may be failing, and {}: 'ashlar replace {} {} NEW'",
                why_no_rebuild(array),
                safe(&array.name),
                device.index
            )
        };
        lines.push(format!(
            "device {} gave {} error{} since the import or 'device clear': {next}",
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
            let bad = count(
                usize::try_from(heal.found).unwrap_or(usize::MAX),
                "bad block",
            );
            let safe_yet = match array.lost.is_empty() && array.state != ArrayState::Failed {
                true => "; no data is lost as long as other devices hold it",
                false => "",
            };
            lines.push(format!(
                "{left} of {bad} found could not be repaired{safe_yet}"
            ));
        }
    }
}

/// A scrub that waits for the operator, or has left something bad.
fn scrub(array: &ArrayStatus, lines: &mut Vec<String>) {
    let (Some(last), name) = (&array.scrub, safe(&array.name)) else {
        return;
    };
    let many = |n: u64| count(usize::try_from(n).unwrap_or(usize::MAX), "bad block");
    let left = last.found.saturating_sub(last.repaired);
    if last.state == "paused" && array.service != Service::ReadOnly {
        lines.push(format!(
            "a scrub is paused: 'ashlar scrub {name} resume' goes on, 'ashlar scrub {name} stop' ends it"
        ));
    } else if left > 0 && last.ended.is_some() && last.check {
        lines.push(format!(
            "the last scrub found {}, and repaired nothing since it only checked: 'ashlar scrub {name} start' repairs",
            many(left)
        ));
    } else if left > 0 && last.ended.is_some() {
        lines.push(format!(
            "the last scrub left {left} of {} unrepaired: 'ashlar scrub {name}' shows on which devices, 'ashlar scrub \
             {name} start' looks again, and repairs those that can be",
            many(last.found)
        ));
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
            "check its cooling".to_string()
        } else if array.health.reconstructs > 0 {
            format!(
                "free space allows its rebuild: 'ashlar fail {} {}'",
                safe(&array.name),
                device.index
            )
        } else {
            format!(
                "{}: 'ashlar replace {} {} NEW'",
                why_no_rebuild(array),
                safe(&array.name),
                device.index
            )
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
            "{more} with warnings; 'ashlar device list {}' shows all",
            safe(&array.name)
        ));
    }
    lines
}

fn space(array: &ArrayStatus, lines: &mut Vec<String>) {
    let (capacity, name) = (&array.capacity, safe(&array.name));
    if capacity.overpromised {
        lines.push(format!(
            "over-committed: volumes were promised more space than the remaining devices hold at full \
             redundancy. As they fill, new data is written with less redundancy; replace those that are out of \
             use, add devices ('ashlar add {name} DEV...'), destroy volumes that are not needed, or delete files \
             and trim ('fstrim')"
        ));
    }
    let full = percent(capacity.used_bytes, capacity.usable_bytes);
    if full >= 80 {
        lines.push(format!(
            "{full} % full, and writes get slower as it fills: delete files and trim ('fstrim'), destroy a \
             volume, or add devices ('ashlar add {name} DEV...'){}",
            if full >= 95 { " now" } else { "" }
        ));
    }
}

/// In a few words for a table: `1 failed, 2 with errors`; empty if there is nothing.
pub(crate) fn in_short(array: &ArrayStatus) -> String {
    let mut parts = Vec::new();
    match array.service {
        Service::Full => {}
        Service::ReadOnly => parts.push("read-only".to_string()),
        Service::WritesWait => parts.push("writes paused".to_string()),
        Service::Stopped => return "stopped".to_string(),
    }
    let states = [
        (DeviceState::Failed, "failed"),
        (DeviceState::Missing, "missing"),
        (DeviceState::Offline, "offline"),
    ]
    .map(|(state, word)| {
        let of = array.devices.iter().filter(|d| d.state == state);
        (of.count(), word)
    });
    let gone: usize = states.iter().map(|(n, _)| n).sum();
    match states.iter().find(|(n, _)| *n == gone) {
        _ if gone == 0 => {}
        Some((_, word)) => parts.push(format!("{gone} {word}")),
        None => parts.push(format!("{gone} out of use")),
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
    match array
        .devices
        .iter()
        .filter(|d| !d.storage.is_empty())
        .count()
    {
        0 => {}
        n => parts.push(format!("{n} deleted or cut off")),
    }
    if !array.lost.is_empty() {
        let text = match array.devices.iter().any(|d| out_of_use(d).is_some()) {
            true => "data not readable", // which these may have
            false => "data lost",
        };
        parts.push(text.to_string());
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
