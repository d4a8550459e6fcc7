//! `device scan`, `wipe`, `clear`, `locate`.
//!
//! **Invariants**: a line for each device that was found, whatever is known of it; a value that nobody gives is `-`;
//! what destroys data is confirmed with the device's own path, which only `--yes` sends.

use crate::api::{Call, ClearReply, LocateReply, ScanReply, Scanned, WipeReply};
use crate::cli::{
    DeviceClearArgs, DeviceLocateArgs, DeviceScanArgs, DeviceWipeArgs, Light, absent,
};
use crate::command::returning::named;
use crate::failure::Failure;
use crate::print::{Context, absolute};
use crate::units::size_or_exact;
use crate::view::{safe, table};

/// `device scan`.
///
/// # Errors
/// If a directory cannot be scanned.
pub(crate) fn scan(context: &Context, args: &DeviceScanArgs) -> Result<(), Failure> {
    let dirs = args.scan.iter().map(|dir| absolute(dir));
    let call = Call::DeviceScan {
        scan: dirs.collect::<Result<Vec<_>, Failure>>()?,
    };
    let reply: ScanReply = context.client.call(&call)?;
    context.print("device scan", &reply, || {
        if reply.devices.is_empty() && !args.script {
            return "no device found; give --scan DIR to look at files\n".to_string();
        }
        let titles = [
            "DEVICE", "SIZE", "FREE", "HOLDS", "IN USE", "SERIAL", "SLOT", "MODEL",
        ];
        let rows = reply.devices.iter().map(|d| row(d, args.exact)).collect();
        table::table(&titles, rows, &[1], args.script)
    })?;
    for line in reply.devices.iter().filter_map(|d| d.unreadable.as_ref()) {
        eprintln!("ashlar: {}", safe(line));
    }
    Ok(())
}

fn row(device: &Scanned, exact: bool) -> Vec<String> {
    let known = |text: &Option<String>| text.as_deref().map_or("-".to_string(), safe);
    let holds = match (device.holds.as_slice(), &device.unreadable) {
        ([], None) => "-".to_string(),
        ([], Some(_)) => "unreadable".to_string(),
        (holds, _) => safe(&holds.join(", ")),
    };
    let size = match device.size_bytes {
        0 => "-".to_string(),
        bytes => size_or_exact(bytes, exact),
    };
    vec![
        safe(&device.path),
        size,
        if device.free { "yes" } else { "no" }.to_string(),
        holds,
        known(&device.in_use.clone().or_else(|| device.unfit.clone())),
        known(&device.hardware.serial),
        known(&device.hardware.slot),
        known(&device.hardware.model),
    ]
}

/// `device wipe`.
///
/// # Errors
/// Who has the device; without `--yes` what would be lost.
pub(crate) fn wipe(context: &Context, args: &DeviceWipeArgs) -> Result<(), Failure> {
    absent::check_device(&args.device)?;
    let device = absolute(&args.device)?;
    let call = Call::DeviceWipe {
        confirm: args.yes.then(|| device.clone()),
        device,
    };
    let reply: WipeReply = context.client.call(&call)?;
    context.print("device wipe", &reply, || {
        let device = safe(&reply.device);
        if reply.erased.is_empty() {
            return format!("{device} holds nothing that is known; nothing was written\n");
        }
        let mut text = String::new();
        for erased in &reply.erased {
            text += &format!("{device}: erased {}\n", safe(erased));
        }
        text + &format!(
            "{device}: read back, nothing is left; 'ashlar create' and 'replace' take it as new\n"
        )
    })
}

/// `device clear`.
///
/// # Errors
/// If the array or device is unknown.
pub(crate) fn clear(context: &Context, args: DeviceClearArgs) -> Result<(), Failure> {
    let call = Call::DeviceClear {
        array: args.array,
        device: named(&args.device),
    };
    let reply: ClearReply = context.client.call(&call)?;
    context.print("device clear", &reply, || {
        let errors = &reply.errors;
        format!(
            "{}: device {} ({}): {} read, {} write and {} digest errors were counted; the counters are at zero now\n",
            safe(&reply.array),
            reply.device,
            safe(&reply.path),
            errors.read,
            errors.write,
            errors.digest
        )
    })
}

/// `device locate`.
///
/// # Errors
/// If there is no light, or it cannot be set.
pub(crate) fn locate(context: &Context, args: &DeviceLocateArgs) -> Result<(), Failure> {
    absent::check_device(&args.device)?;
    let call = Call::DeviceLocate {
        device: absolute(&args.device)?,
        on: args.light == Light::On,
    };
    let reply: LocateReply = context.client.call(&call)?;
    context.print("device locate", &reply, || {
        let (device, slots) = (safe(&reply.device), safe(&reply.slots.join(", ")));
        match reply.on {
            true => format!(
                "{device}: the light of slot {slots} is on; 'ashlar device locate {device} off' turns it off\n"
            ),
            false => format!("{device}: the light of slot {slots} is off\n"),
        }
    })
}
