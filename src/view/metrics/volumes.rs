//! Volumes: their figures, whether they are served and take writes, and how long their requests take.
//!
//! **Invariants**: a bucket counts all requests that took no longer than its bound.

use ashlar_engine::status::{ArrayStatus, VolumeStatus};

use super::exposition::{Count, Exposition};
use crate::api::{LATENCY_BOUNDS, Latency, StatusReply};

const FIGURES: &[Count<VolumeStatus>] = &[
    ("volume_size_bytes", "gauge", "Size of a volume.", |v| {
        v.size_bytes
    }),
    (
        "volume_used_bytes",
        "gauge",
        "Data that a volume holds, as of the last merge.",
        |v| v.used_bytes,
    ),
    (
        "volume_reads_total",
        "counter",
        "Reads by a volume's clients.",
        |v| v.host.reads,
    ),
    (
        "volume_writes_total",
        "counter",
        "Writes by a volume's clients.",
        |v| v.host.writes,
    ),
    (
        "volume_flushes_total",
        "counter",
        "Flushes by a volume's clients.",
        |v| v.host.flushes,
    ),
    (
        "volume_read_bytes_total",
        "counter",
        "Bytes read by a volume's clients.",
        |v| v.host.read_bytes,
    ),
    (
        "volume_written_bytes_total",
        "counter",
        "Bytes written by a volume's clients.",
        |v| v.host.written_bytes,
    ),
];

/// All volumes, each with its array.
fn all(reply: &StatusReply) -> impl Iterator<Item = (&ArrayStatus, &VolumeStatus)> {
    let arrays = reply.arrays.iter();
    arrays.flat_map(|a| a.volumes.iter().map(move |v| (a, v)))
}

pub(super) fn volumes(out: &mut Exposition, reply: &StatusReply) {
    for (name, kind, help, value) in FIGURES {
        out.family(name, kind, help);
        for (a, v) in all(reply) {
            out.sample(name, &[("array", &a.name), ("volume", &v.name)], value(v));
        }
    }
    served(out, reply);
    refused(out, reply);
}

fn served(out: &mut Exposition, reply: &StatusReply) {
    out.family(
        "volume_served",
        "gauge",
        "0 where a volume should be served and is not.",
    );
    for (a, v) in all(reply) {
        for f in &v.frontends {
            let not = reply.not_served.iter().any(|n| {
                (&n.array, &n.volume, &n.kind, &n.address)
                    == (&a.name, &v.name, &f.kind, &f.address)
            });
            let labels = [
                ("array", a.name.as_str()),
                ("volume", &v.name),
                ("kind", &f.kind),
                ("address", &f.address),
            ];
            out.sample("volume_served", &labels, u8::from(!not));
        }
    }
}

fn refused(out: &mut Exposition, reply: &StatusReply) {
    out.family(
        "volume_writes_refused",
        "gauge",
        "1 if a volume refuses writes because no space is free.",
    );
    for (a, v) in all(reply) {
        let refuses = reply
            .refusing
            .iter()
            .any(|r| r.array == a.name && r.volume == v.name);
        let labels = [("array", a.name.as_str()), ("volume", v.name.as_str())];
        out.sample("volume_writes_refused", &labels, u8::from(refuses));
    }
}

pub(super) fn latency(out: &mut Exposition, all: &[Latency]) {
    let name = "volume_request_seconds";
    out.family(
        name,
        "histogram",
        "Time that requests of a volume took, since it is served.",
    );
    for l in all {
        let labels = [
            ("array", l.array.as_str()),
            ("volume", l.volume.as_str()),
            ("operation", l.operation.as_str()),
        ];
        let mut sum = 0;
        for (i, count) in l.counts.iter().enumerate() {
            sum += count;
            let bound = LATENCY_BOUNDS.get(i);
            let bound = bound.map_or("+Inf".to_string(), |nanos| seconds(*nanos));
            let mut labels = labels.to_vec();
            labels.push(("le", &bound));
            out.sample(&format!("{name}_bucket"), &labels, sum);
        }
        out.sample(&format!("{name}_sum"), &labels, seconds(l.nanoseconds));
        out.sample(&format!("{name}_count"), &labels, sum);
    }
    out.family("volume_requests_in_flight", "gauge", "Requests in flight.");
    for l in all {
        let labels = [
            ("array", l.array.as_str()),
            ("volume", l.volume.as_str()),
            ("operation", l.operation.as_str()),
        ];
        out.sample("volume_requests_in_flight", &labels, l.in_flight);
    }
}

/// Nanoseconds as seconds, exactly.
fn seconds(nanos: u64) -> String {
    let text = format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}
