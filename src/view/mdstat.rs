//! `status --mdstat`: arrays as `/proc/mdstat` shows them, for people and scripts that know it.
//!
//! **Invariants**: `[n/m]` is devices counted / devices in use; `[UUU_U]` has one character for
//! each device.

use std::fmt::Write;

use ashlar_engine::status::{ArrayStatus, DeviceState};

use crate::view::safe;

/// The text.
pub(crate) fn mdstat(arrays: &[ArrayStatus]) -> String {
    let mut out = "Personalities : [ashlar]\n".to_string();
    for array in arrays {
        out += &one(array);
    }
    out + "unused devices: <none>\n"
}

fn in_use(state: DeviceState) -> bool {
    matches!(state, DeviceState::Online | DeviceState::Readonly)
}

fn one(array: &ArrayStatus) -> String {
    let mut out = format!("{} : active {}", safe(&array.name), safe(&array.layout));
    for device in &array.devices {
        let name = device
            .path
            .rsplit('/')
            .next()
            .filter(|n| !n.is_empty())
            .unwrap_or("missing");
        let mark = if in_use(device.state) { "" } else { "(F)" };
        let _ = write!(out, " {}[{}]{mark}", safe(name), device.index);
    }
    let up = array.devices.iter().filter(|d| in_use(d.state)).count();
    let flags: String = array
        .devices
        .iter()
        .map(|d| if in_use(d.state) { 'U' } else { '_' })
        .collect();
    let _ = writeln!(
        out,
        "\n      {} blocks {}k chunk, {}+{} [{}/{up}] [{flags}]",
        array.capacity.usable_bytes / 1024,
        array.strip_bytes / 1024,
        array.k,
        array.m,
        array.devices_total,
    );
    for task in array
        .tasks
        .iter()
        .filter(|t| t.state == "running" && t.total_bytes > 0)
    {
        let verb = match task.kind.as_str() {
            "reconstruct" => "recovery", // mdstat's own word, which its readers look for
            "scrub" => "check",
            "rebalance" | "convert" => "reshape",
            other => other,
        };
        let tenths =
            task.done_bytes.min(task.total_bytes) as u128 * 1000 / u128::from(task.total_bytes);
        let done = usize::try_from(tenths / 50).unwrap_or(20);
        let arrow = if done < 20 { ">" } else { "" };
        let bar = format!(
            "{}{arrow}{}",
            "=".repeat(done),
            ".".repeat(20usize.saturating_sub(done))
        );
        let eta = task.eta_seconds.unwrap_or(0);
        let _ = writeln!(
            out,
            "      [{bar}]  {verb} = {}.{}% ({}/{}) finish={}.{}min speed={}K/sec",
            tenths / 10,
            tenths % 10,
            task.done_bytes / 1024,
            task.total_bytes / 1024,
            eta / 60,
            eta % 60 / 6,
            task.bytes_per_second / 1024,
        );
    }
    out.push('\n');
    out
}
