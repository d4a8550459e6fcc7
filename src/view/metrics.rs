//! The status as Prometheus reads it: `GET /metrics`.
//!
//! **Invariants**: names and units are those of the exposition format's habits (base units, `_total` for what only
//! grows, `_info` for names); one series for each state that a thing may have, 1 for the one it has; what is not
//! observed has no series; label values are escaped, so that no name from outside breaks a line.

use ashlar_engine::status::{ArrayState, ArrayStatus, Service, TaskStatus};

use crate::api::StatusReply;
use exposition::Exposition;

mod devices;
mod drives;
mod exposition;
mod volumes;

/// What Prometheus reads.
pub(crate) fn metrics(reply: &StatusReply) -> String {
    let mut out = Exposition::default();
    out.family("build_info", "gauge", "The version of the daemon.");
    out.sample("build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    out.family(
        "list_lost",
        "gauge",
        "1 if the list of arrays was damaged, so that some may not have been started.",
    );
    out.sample("list_lost", &[], u8::from(reply.list_lost.is_some()));
    out.family(
        "array_imported",
        "gauge",
        "0 for an array that is known here and could not be started.",
    );
    for array in &reply.arrays {
        out.sample(
            "array_imported",
            &[("array", &array.name), ("uuid", &array.uuid)],
            1,
        );
    }
    for known in &reply.not_imported {
        out.sample(
            "array_imported",
            &[("array", &known.name), ("uuid", &known.uuid)],
            0,
        );
    }
    states(&mut out, &reply.arrays);
    figures(&mut out, &reply.arrays);
    exposure(&mut out, &reply.arrays);
    devices::devices(&mut out, &reply.arrays);
    drives::drives(&mut out, reply);
    drives::health(&mut out, reply);
    tasks(&mut out, &reply.arrays);
    volumes::volumes(&mut out, reply);
    volumes::latency(&mut out, &reply.latency);
    out.0
}

fn states(out: &mut Exposition, arrays: &[ArrayStatus]) {
    out.family("array_info", "gauge", "Layout of an array.");
    for a in arrays {
        out.sample(
            "array_info",
            &[("array", &a.name), ("uuid", &a.uuid), ("layout", &a.layout)],
            1,
        );
    }
    let all = [
        ("optimal", ArrayState::Optimal),
        ("degraded", ArrayState::Degraded),
        ("critical", ArrayState::Critical),
        ("failed", ArrayState::Failed),
    ];
    out.family(
        "array_state",
        "gauge",
        "1 for the state of an array: the redundancy of the worst of its data.",
    );
    for a in arrays {
        for (name, state) in all {
            let labels = [("array", a.name.as_str()), ("state", name)];
            out.sample("array_state", &labels, u8::from(a.state == state));
        }
    }
    let all = [
        ("full", Service::Full),
        ("read-only", Service::ReadOnly),
        ("writes-wait", Service::WritesWait),
        ("stopped", Service::Stopped),
    ];
    out.family(
        "array_service",
        "gauge",
        "1 for the service of an array: which requests it answers.",
    );
    for a in arrays {
        for (name, service) in all {
            let labels = [("array", a.name.as_str()), ("service", name)];
            out.sample("array_service", &labels, u8::from(a.service == service));
        }
    }
}

type Figure = (&'static str, &'static str, fn(&ArrayStatus) -> Option<f64>);

/// The format has no integers; above 2^53 bytes the last bits do not matter.
fn number(value: u64) -> Option<f64> {
    Some(value as f64)
}

const FIGURES: &[Figure] = &[
    ("array_devices", "Devices that an array counts.", |a| {
        number(a.devices_total.into())
    }),
    (
        "array_devices_gone",
        "Devices that an array no longer uses: failed, missing or offline.",
        |a| number(a.health.devices_gone.into()),
    ),
    (
        "array_more_losses",
        "Devices that may fail at once without loss of data.",
        |a| number(a.health.more_losses.into()),
    ),
    (
        "array_attention",
        "Number of conditions that need the operator.",
        |a| number(a.attention.len() as u64),
    ),
    ("array_raw_bytes", "Capacity of the devices in use.", |a| {
        number(a.capacity.raw_bytes)
    }),
    (
        "array_usable_bytes",
        "Space that volumes may be promised.",
        |a| number(a.capacity.usable_bytes),
    ),
    ("array_used_bytes", "Data that volumes hold.", |a| {
        number(a.capacity.used_bytes)
    }),
    (
        "array_promised_bytes",
        "Space that volumes were promised and do not use yet.",
        |a| number(a.capacity.promised_bytes),
    ),
    (
        "array_free_bytes",
        "Space that volumes may still be promised.",
        |a| number(a.capacity.free_bytes),
    ),
    (
        "array_parity_bytes",
        "Space for the parity of all usable space.",
        |a| number(a.capacity.parity_bytes),
    ),
    ("array_spare_bytes", "Space kept free for rebuilds.", |a| {
        number(a.capacity.spare_bytes)
    }),
    (
        "array_reserved_bytes",
        "Space kept for metadata, journal, cleaning and recovery.",
        |a| number(a.capacity.reserved_bytes),
    ),
    (
        "array_overpromised",
        "1 if volumes were promised more than the remaining devices hold at full redundancy.",
        |a| number(a.capacity.overpromised.into()),
    ),
    (
        "array_write_amplification",
        "Blocks written for each that clients wrote, since import.",
        |a| a.clean.write_amplification,
    ),
    ("array_free_slots", "Slots that are free.", |a| {
        number(a.clean.free_slots)
    }),
    (
        "array_reserve_slots",
        "Slots kept for cleaning, checkpoints and recovery.",
        |a| number(a.clean.reserve_slots),
    ),
    ("array_map_bytes", "Size of the map of all volumes.", |a| {
        number(a.map.bytes)
    }),
    (
        "array_map_cached_bytes",
        "Part of the map that is in memory.",
        |a| number(a.map.cached_bytes),
    ),
    ("array_journal_bytes", "Capacity of the journal.", |a| {
        number(a.journal.bytes)
    }),
    (
        "array_journal_used_bytes",
        "Part of the journal that recovery would replay.",
        |a| number(a.journal.used_bytes),
    ),
    (
        "array_memory_limit_bytes",
        "Memory that the array may take.",
        |a| number(a.memory.limit_bytes),
    ),
    (
        "array_memory_used_bytes",
        "Memory that the array takes.",
        |a| number(a.memory.used_bytes),
    ),
    ("array_lost_bytes", "Data that was found lost.", |a| {
        number(a.lost.iter().map(|l| l.length_bytes).sum())
    }),
];

fn figures(out: &mut Exposition, arrays: &[ArrayStatus]) {
    for (name, help, value) in FIGURES {
        out.family(name, "gauge", help);
        for a in arrays {
            if let Some(value) = value(a) {
                out.sample(name, &[("array", &a.name)], value);
            }
        }
    }
}

fn exposure(out: &mut Exposition, arrays: &[ArrayStatus]) {
    out.family(
        "array_exposure_bytes",
        "gauge",
        "Data by the number of further device failures that it survives.",
    );
    for a in arrays {
        for e in &a.exposure {
            let labels = [
                ("array", a.name.as_str()),
                ("redundancy", &e.redundancy.to_string()),
            ];
            out.sample("array_exposure_bytes", &labels, e.bytes);
        }
    }
    out.family(
        "array_unreadable_bytes",
        "gauge",
        "Data that cannot be read without devices that are out of use.",
    );
    for a in arrays {
        let labels = [("array", a.name.as_str())];
        out.sample("array_unreadable_bytes", &labels, a.unreadable_bytes);
    }
}

fn tasks(out: &mut Exposition, arrays: &[ArrayStatus]) {
    let one = |out: &mut Exposition, name: &str, help: &str, value: fn(&TaskStatus) -> u64| {
        out.family(name, "gauge", help);
        for a in arrays {
            for t in &a.tasks {
                let labels = [
                    ("array", a.name.as_str()),
                    ("id", &t.id.to_string()),
                    ("kind", &t.kind),
                    ("state", &t.state),
                ];
                out.sample(name, &labels, value(t));
            }
        }
    };
    one(
        out,
        "task_done_bytes",
        "Finished part of a background task.",
        |t| t.done_bytes,
    );
    one(out, "task_size_bytes", "Size of a background task.", |t| {
        t.total_bytes
    });
    one(
        out,
        "task_bytes_per_second",
        "Speed of a background task.",
        |t| t.bytes_per_second,
    );
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use ashlar_engine::status::DeviceState;

    use super::*;
    use crate::api::{
        DeviceHardware, Hardware, Health, LATENCY_BOUNDS, Latency, NotImported, Refusing,
    };

    fn reply() -> StatusReply {
        StatusReply {
            arrays: vec![crate::view::tests::sample(&[DeviceState::Online; 12])],
            not_imported: vec![NotImported {
                name: "o\"dd\\\n".to_string(),
                uuid: "u".to_string(),
                reason: String::new(),
                waits: None,
            }],
            not_served: Vec::new(),
            reserved: std::collections::BTreeMap::new(),
            hardware: vec![DeviceHardware {
                array: "tank".to_string(),
                index: 3,
                hardware: Hardware {
                    celsius: Some(41),
                    health: Some(Health {
                        passed: Some(true),
                        worn_percent: Some(3),
                        ..Health::default()
                    }),
                    ..Hardware::default()
                },
            }],
            volumes: Vec::new(),
            list_lost: None,
            refusing: vec![Refusing {
                array: "tank".to_string(),
                volume: "vm".to_string(),
                since: 1,
            }],
            latency: vec![Latency {
                array: "tank".to_string(),
                volume: "vm".to_string(),
                operation: "read".to_string(),
                counts: vec![1; LATENCY_BOUNDS.len() + 1],
                nanoseconds: 1_500_000_000,
                in_flight: 2,
            }],
        }
    }

    #[test]
    fn every_line_is_a_comment_or_a_sample_of_the_family_above() {
        let text = metrics(&reply());
        let mut family = String::new();
        let mut seen = std::collections::BTreeSet::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                family = rest.split(' ').next().unwrap().to_string();
                assert!(seen.insert(family.clone()), "{family} twice");
                continue;
            }
            if line.starts_with("# TYPE ") {
                continue;
            }
            let (series, value) = line.rsplit_once(' ').unwrap();
            assert!(series.starts_with(&family), "{line} is not of {family}");
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
        assert!(text.contains("ashlar_array_imported{array=\"o\\\"dd\\\\\\n\",uuid=\"u\"} 0"));
        assert!(text.contains("le=\"+Inf\"} 13"), "buckets add up");
        assert!(text.contains("le=\"0.000016384\"} 1\n"));
        assert!(text.contains(
            "volume_request_seconds_sum{array=\"tank\",volume=\"vm\",operation=\"read\"} 1.5\n"
        ));
    }

    /// Names of series of Ashlar's that a text asks for, in order.
    fn asked_for(text: &str) -> impl Iterator<Item = &str> {
        text.split("ashlar_").skip(1).map(|part| {
            let end = part.find(|c: char| c != '_' && !c.is_ascii_lowercase());
            &part[..end.unwrap_or(part.len())]
        })
    }

    #[test]
    fn every_alert_asks_for_series_that_are_there() {
        let (text, alerts) = (
            metrics(&reply()),
            include_str!("../../packaging/alerts.yml"),
        );
        let mut asked = 0;
        for expression in alerts
            .lines()
            .filter_map(|l| l.trim().strip_prefix("expr: "))
        {
            for name in asked_for(expression) {
                assert!(text.contains(&format!("# TYPE ashlar_{name} ")), "{name}");
                asked += 1;
            }
            for (label, values) in expression
                .split(['{', ','])
                .filter_map(|p| p.split_once("=~\"").or(p.split_once("=\"")))
            {
                for value in values
                    .split('"')
                    .next()
                    .unwrap()
                    .split('|')
                    .filter(|_| label != "job")
                {
                    assert!(
                        text.contains(&format!("{label}=\"{value}\"")),
                        "{label} {value}"
                    );
                }
            }
        }
        assert!(asked >= 10);
    }

    #[test]
    fn every_panel_of_the_dashboard_asks_for_series_that_are_there() {
        let text = metrics(&reply());
        let board = include_str!("../../packaging/grafana.json");
        let board: serde_json::Value = serde_json::from_str(board).unwrap();
        let panels = board["panels"].as_array().unwrap();
        for panel in panels {
            for target in panel["targets"].as_array().unwrap() {
                let expression = target["expr"].as_str().unwrap();
                assert!(asked_for(expression).count() > 0, "{expression}");
                for name in asked_for(expression) {
                    let family = name.strip_suffix("_bucket").unwrap_or(name);
                    assert!(
                        text.contains(&format!("# TYPE ashlar_{family} ")),
                        "{family}"
                    );
                    // What the legend names is a label of the series.
                    let samples = text
                        .lines()
                        .filter(|l| l.starts_with(&format!("ashlar_{name}{{")));
                    let legend = target["legendFormat"].as_str().unwrap();
                    for label in legend.split("{{").skip(1) {
                        let label = label.split("}}").next().unwrap();
                        let has = |l: &str| l.contains(&format!("{label}=\""));
                        assert!(samples.clone().all(has), "{name}: {label}");
                    }
                }
            }
        }
        assert!(panels.len() >= 15);
    }

    #[test]
    fn an_array_has_one_state_and_every_state_a_series() {
        let text = metrics(&reply());
        let states: Vec<&str> = text
            .lines()
            .filter(|l| l.starts_with("ashlar_array_state{"))
            .collect();
        assert_eq!(states.len(), 4);
        assert_eq!(states.iter().filter(|l| l.ends_with(" 1")).count(), 1);
    }
}
