//! Devices: their states, faults and figures.

use ashlar_engine::status::{ArrayStatus, DeviceState, DeviceStatus};

use super::exposition::{Count, Exposition};

const DEVICE_STATES: [(&str, DeviceState); 8] = [
    ("online", DeviceState::Online),
    ("offline", DeviceState::Offline),
    ("failed", DeviceState::Failed),
    ("missing", DeviceState::Missing),
    ("slow", DeviceState::Slow),
    ("readonly", DeviceState::Readonly),
    ("spare", DeviceState::Spare),
    ("removing", DeviceState::Removing),
];

const FIGURES: &[Count<DeviceStatus>] = &[
    ("device_size_bytes", "gauge", "Capacity of a device.", |d| {
        d.size_bytes
    }),
    (
        "device_used_bytes",
        "gauge",
        "Space in allocated slots of a device.",
        |d| d.used_bytes,
    ),
    (
        "device_read_bytes_total",
        "counter",
        "Bytes read from a device since import.",
        |d| d.read_bytes,
    ),
    (
        "device_written_bytes_total",
        "counter",
        "Bytes written to a device since import.",
        |d| d.written_bytes,
    ),
];

pub(super) fn devices(out: &mut Exposition, arrays: &[ArrayStatus]) {
    let all = || {
        arrays
            .iter()
            .flat_map(|a| a.devices.iter().map(move |d| (a, d)))
    };
    out.family(
        "device_info",
        "gauge",
        "Path and failure domain of a device.",
    );
    for (a, d) in all() {
        let index = d.index.to_string();
        let labels = [
            ("array", a.name.as_str()),
            ("device", &index),
            ("uuid", &d.uuid),
            ("path", &d.last_path),
            ("domain", &d.domain),
        ];
        out.sample("device_info", &labels, 1);
    }
    out.family("device_state", "gauge", "1 for the state of a device.");
    for (a, d) in all() {
        for (name, state) in DEVICE_STATES {
            let labels = [
                ("array", a.name.as_str()),
                ("device", &d.index.to_string()),
                ("state", name),
            ];
            out.sample("device_state", &labels, u8::from(d.state == state));
        }
    }
    out.family(
        "device_errors_total",
        "counter",
        "Errors of a device since import.",
    );
    for (a, d) in all() {
        let e = &d.errors;
        for (kind, count) in [("read", e.read), ("write", e.write), ("digest", e.digest)] {
            let labels = [
                ("array", a.name.as_str()),
                ("device", &d.index.to_string()),
                ("kind", kind),
            ];
            out.sample("device_errors_total", &labels, count);
        }
    }
    for (name, kind, help, value) in FIGURES {
        out.family(name, kind, help);
        for (a, d) in all() {
            let labels = [("array", a.name.as_str()), ("device", &d.index.to_string())];
            out.sample(name, &labels, value(d));
        }
    }
}
