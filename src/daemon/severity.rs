//! How bad each kind of event is: what the log's levels and `notify` go by.
//!
//! **Invariants**: a kind that is not in the table is a warning, so that nobody misses what a newer engine tells.

use ashlar_engine::status::Event;

use crate::api::Severity;

const KINDS: &[(&str, Severity)] = &[
    ("accelerator-lost", Severity::Warning),
    ("attached", Severity::Info),
    ("bad-block", Severity::Warning),
    ("created", Severity::Info),
    ("critical", Severity::Critical),
    ("data-lost", Severity::Critical),
    ("degraded", Severity::Warning),
    ("destroyed", Severity::Info),
    ("detached", Severity::Info),
    ("device-added", Severity::Info),
    ("device-awaited", Severity::Error),
    ("device-back", Severity::Info),
    ("device-failed", Severity::Error),
    ("device-grown", Severity::Info),
    ("device-missing", Severity::Error),
    ("device-offline", Severity::Warning),
    ("device-readonly", Severity::Error),
    ("device-removed", Severity::Info),
    ("device-removing", Severity::Info),
    ("device-replaced", Severity::Info),
    ("device-slow", Severity::Warning),
    ("device-wiped", Severity::Info),
    ("domain-set", Severity::Info),
    ("drive-failing", Severity::Error),
    ("drive-warning", Severity::Warning),
    ("errors-cleared", Severity::Info),
    ("exported", Severity::Info),
    ("failed", Severity::Critical),
    ("halted", Severity::Critical),
    ("healed", Severity::Info),
    ("hot-spare-failed", Severity::Error),
    ("hot-spare-unused", Severity::Warning),
    ("hot-spare-used", Severity::Warning),
    ("imported", Severity::Info),
    ("inconsistent", Severity::Error),
    ("journal-full", Severity::Warning),
    ("journal-lost", Severity::Critical),
    ("name-lost", Severity::Error),
    ("node-lost", Severity::Critical),
    ("not-erased", Severity::Warning),
    ("not-imported", Severity::Critical),
    ("not-kept", Severity::Warning),
    ("not-served", Severity::Error),
    ("optimal", Severity::Info),
    ("reconstructed", Severity::Info),
    ("scrub-ended", Severity::Info),
    ("scrub-left", Severity::Warning),
    ("scrub-started", Severity::Info),
    ("scrub-stopped", Severity::Warning),
    ("set", Severity::Info),
    ("space-low", Severity::Warning),
    ("storage-lost", Severity::Error),
    ("test", Severity::Info),
    ("volume-created", Severity::Info),
    ("volume-destroyed", Severity::Info),
    ("volume-renamed", Severity::Info),
    ("volume-resized", Severity::Info),
    ("work-paused", Severity::Warning),
    ("work-resumed", Severity::Info),
    ("writes-accepted", Severity::Info),
    ("writes-lost", Severity::Critical),
    ("writes-refused", Severity::Critical),
    ("writes-wait", Severity::Critical),
];

/// How bad an event is.
pub(crate) fn severity(event: &Event) -> Severity {
    let known = KINDS.iter().find(|(kind, _)| *kind == event.kind);
    known.map_or(Severity::Warning, |(_, severity)| *severity)
}

/// Whether people are told of it, who do not look by themselves: what is wrong, and that it is right again.
pub(crate) fn is_news(kind: &str, severity: Severity) -> bool {
    severity >= Severity::Warning || ["optimal", "writes-accepted"].contains(&kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: &str) -> Severity {
        severity(&Event {
            number: 1,
            at: 0,
            kind: kind.to_string(),
            device: None,
            text: String::new(),
            count: 1,
        })
    }

    #[test]
    fn what_costs_data_is_critical_and_what_nobody_knows_is_a_warning() {
        assert_eq!(of("data-lost"), Severity::Critical);
        assert_eq!(of("device-failed"), Severity::Error);
        assert_eq!(of("degraded"), Severity::Warning);
        assert_eq!(of("healed"), Severity::Info);
        assert_eq!(of("of-a-newer-engine"), Severity::Warning);
        assert!(is_news("optimal", Severity::Info) && !is_news("healed", Severity::Info));
        assert!(KINDS.is_sorted_by(|a, b| a.0 < b.0));
    }
}
