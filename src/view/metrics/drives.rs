//! Drives: which they are, and how warm.
//!
//! **Invariants**: a drive of which nothing is known has no series.

use super::exposition::Exposition;
use crate::api::StatusReply;

pub(super) fn drives(out: &mut Exposition, reply: &StatusReply) {
    out.family(
        "device_drive_info",
        "gauge",
        "Model, serial number and slot of the drive under a device.",
    );
    for d in &reply.hardware {
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let (index, drive) = (d.index.to_string(), &d.hardware);
        let labels = [
            ("array", d.array.as_str()),
            ("device", &index),
            ("model", &text(&drive.model)),
            ("serial", &text(&drive.serial)),
            ("slot", &text(&drive.slot)),
        ];
        out.sample("device_drive_info", &labels, 1);
    }
    out.family(
        "device_temperature_celsius",
        "gauge",
        "Temperature of the drive under a device.",
    );
    for d in &reply.hardware {
        if let Some(celsius) = d.hardware.celsius {
            let index = d.index.to_string();
            let labels = [("array", d.array.as_str()), ("device", &index)];
            out.sample("device_temperature_celsius", &labels, celsius);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{DeviceHardware, Hardware};

    #[test]
    fn a_drive_is_named_and_its_temperature_told() {
        let drive = |index, celsius| DeviceHardware {
            array: "tank".to_string(),
            index,
            hardware: Hardware {
                model: Some("X \"1\"".to_string()),
                serial: Some("S1".to_string()),
                slot: None,
                celsius,
            },
        };
        let reply = StatusReply {
            hardware: vec![drive(0, Some(41)), drive(1, None)],
            ..StatusReply::default()
        };
        let mut out = Exposition::default();
        drives(&mut out, &reply);
        let name = r#"ashlar_device_drive_info{array="tank",device="0",model="X \"1\"",serial="S1",slot=""} 1"#;
        assert!(out.0.contains(name), "{}", out.0);
        let warm = r#"ashlar_device_temperature_celsius{array="tank",device="0"} 41"#;
        assert!(out.0.contains(warm), "{}", out.0);
        assert_eq!(out.0.matches("temperature_celsius{").count(), 1);
    }
}
