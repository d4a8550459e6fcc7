//! Drives: which they are, and how warm.
//!
//! **Invariants**: a drive of which nothing is known has no series.

use super::exposition::Exposition;
use crate::api::{DeviceHardware, Health, StatusReply, WARNINGS};

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

type Figure = (
    &'static str,
    &'static str,
    &'static str,
    fn(&Health) -> Option<f64>,
);

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
const FIGURES: [Figure; 4] = [
    (
        "device_drive_healthy",
        "gauge",
        "1 if the drive reports that it is healthy, 0 if it reports that it is failing.",
        |h| h.passed.map(|passed| f64::from(u8::from(passed))),
    ),
    (
        "device_drive_wear_ratio",
        "gauge",
        "Share of the drive's rated life that is used up; may be more than 1.",
        |h| h.worn_percent.map(|percent| percent as f64 / 100.0),
    ),
    (
        "device_drive_power_on_seconds_total",
        "counter",
        "Time that the drive has been powered on.",
        |h| h.power_on_hours.map(|hours| hours as f64 * 3600.0),
    ),
    (
        "device_drive_media_errors_total",
        "counter",
        "Media errors, as the drive counts them.",
        |h| h.media_errors.map(|errors| errors as f64),
    ),
];

/// What drives say of their health.
pub(super) fn health(out: &mut Exposition, reply: &StatusReply) {
    let all = || {
        let told = |d: &'_ &DeviceHardware| d.hardware.health.is_some();
        reply.hardware.iter().filter(told)
    };
    for (name, kind, help, value) in FIGURES {
        out.family(name, kind, help);
        for d in all() {
            if let Some(value) = d.hardware.health.as_ref().and_then(value) {
                let labels = [
                    ("array", d.array.as_str()),
                    ("device", &d.index.to_string()),
                ];
                out.sample(name, &labels, value);
            }
        }
    }
    out.family(
        "device_drive_warning",
        "gauge",
        "1 if the drive reports this warning.",
    );
    for d in all() {
        let warnings = d
            .hardware
            .health
            .as_ref()
            .map_or(&[][..], |h| &h.warnings[..]);
        for (kind, _) in WARNINGS {
            let index = d.index.to_string();
            let labels = [
                ("array", d.array.as_str()),
                ("device", &index),
                ("warning", kind),
            ];
            let warns = warnings.iter().any(|w| w.kind == kind);
            out.sample("device_drive_warning", &labels, u8::from(warns));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Hardware, Warning};

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
                health: celsius.map(|_| Health {
                    passed: Some(false),
                    worn_percent: Some(104),
                    power_on_hours: Some(2),
                    media_errors: None,
                    warnings: vec![Warning {
                        kind: "worn".to_string(),
                        text: "104 % of its rated life is used up".to_string(),
                    }],
                }),
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
