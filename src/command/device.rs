//! `device list`: the devices of arrays, and the drives under them; and the way to the other verbs about devices.
//!
//! **Invariants**: a line for each device, whatever is known of it; a value that nobody gives is `-`.

use serde_json::json;

use crate::api::{Call, Hardware, Health, StatusReply};
use crate::cli::{ArrayListArgs, DeviceVerb};
use crate::command::{device_set, devices};
use crate::failure::Failure;
use crate::print::Context;
use crate::units::size_or_exact;
use crate::view::{safe, table};

/// Runs the verb.
///
/// # Errors
/// One line for the operator.
pub(crate) fn run(context: &Context, verb: DeviceVerb) -> Result<(), Failure> {
    match verb {
        DeviceVerb::List(args) => list(context, &args),
        DeviceVerb::Scan(args) => devices::scan(context, &args),
        DeviceVerb::Locate(args) => devices::locate(context, &args),
        DeviceVerb::Clear(args) => devices::clear(context, args),
        DeviceVerb::Set(args) => device_set::set(context, args),
        DeviceVerb::Wipe(args) => devices::wipe(context, &args),
    }
}

fn list(context: &Context, args: &ArrayListArgs) -> Result<(), Failure> {
    let reply: StatusReply = context.client.call(&Call::Status {
        array: args.array.clone(),
    })?;
    let none = Hardware::default();
    let drive = |array: &str, index: u16| {
        let of = |d: &&crate::api::DeviceHardware| d.array == array && d.index == index;
        let found = reply.hardware.iter().find(of);
        found.map_or(&none, |d| &d.hardware)
    };
    let (mut rows, mut values) = (Vec::new(), Vec::new());
    for array in &reply.arrays {
        for device in &array.devices {
            let hardware = drive(&array.name, device.index);
            let mut value = json!(device);
            value["array"] = json!(array.name);
            value["hardware"] = json!(hardware);
            values.push(value);
            let known = |text: &Option<String>| text.as_deref().map_or("-".to_string(), safe);
            let (errors, health) = (&device.errors, hardware.health.as_ref());
            let mut row = vec![
                safe(&array.name),
                device.index.to_string(),
                format!("{:?}", device.state).to_lowercase(),
                size_or_exact(device.size_bytes, args.exact),
                (errors.read + errors.write + errors.digest).to_string(),
                hardware
                    .celsius
                    .map_or("-".to_string(), |c| format!("{c}C")),
                match device.last_path.as_str() {
                    "" => "-".to_string(),
                    path => safe(path),
                },
                match device.domain.as_str() {
                    "" => "-".to_string(),
                    domain => safe(domain),
                },
                known(&hardware.serial),
                known(&hardware.slot),
                known(&hardware.model),
            ];
            if !args.script {
                // Scripts count columns, and have "hardware" in -j.
                let worn = health.and_then(|h| h.worn_percent);
                row.push(worn.map_or("-".to_string(), |worn| format!("{worn}%")));
                row.push(known(&health.and_then(Health::words)));
            }
            rows.push(row);
        }
    }
    let value = json!({ "devices": values });
    context.print("device list", &value, || {
        let titles = [
            "ARRAY", "#", "STATE", "SIZE", "ERRORS", "TEMP", "DEVICE", "DOMAIN", "SERIAL", "SLOT",
            "MODEL", "WEAR", "HEALTH",
        ];
        table::table(&titles, rows, &[1, 3, 4, 5, 11], args.script)
    })
}
