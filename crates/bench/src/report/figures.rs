//! Figures as people read them.
//!
//! **Invariants**: what was not measured is a dash, never a 0.

use super::rows::{CLOSED_FORM, Row};

/// A rate with a unit that suits it.
pub fn rate(value: f64, unit: &str) -> String {
    if unit != "iops" {
        return match value {
            v if v >= 1e9 => format!("{:.2} GB/s", v / 1e9),
            v => format!("{:.1} MB/s", v / 1e6),
        };
    }
    match value {
        v if v >= 1e6 => format!("{:.2} M/s", v / 1e6),
        v if v >= 1e3 => format!("{:.1} K/s", v / 1e3),
        v => format!("{v:.0} /s"),
    }
}

/// Text for HTML and SVG.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// Whether a row was computed, not run.
pub fn is_computed(row: &Row) -> bool {
    row.limit.starts_with(CLOSED_FORM)
}

/// What kind of number a row has, for people.
pub fn kind(row: &Row) -> &'static str {
    if is_computed(row) {
        "computed"
    } else {
        row.evidence.name()
    }
}

/// Titles of the columns about processors: how busy all of the machine's were, what was done for each percent of them, and
/// how many percent a GB/s takes.
pub const PROCESSOR: [&str; 3] = ["processor", "work per %", "% per GB/s"];

/// Whether any row says how busy the processors were.
pub fn has_processor(rows: &[Row]) -> bool {
    rows.iter().any(|row| row.cpu_percent.is_some())
}

/// The cells of [`PROCESSOR`].
pub fn processor(row: &Row) -> [String; 3] {
    let number = |value: f64| format!("{value:.2}");
    [
        percent(row.cpu_percent.map(|percent| percent / 100.0)),
        row.work_per_cpu
            .map_or("-".to_string(), |work| rate(work, row.unit)),
        row.cpu_per_gb.map_or("-".to_string(), number),
    ]
}

/// A share as percent.
pub fn percent(share: Option<f64>) -> String {
    share.map_or("-".to_string(), |s| format!("{:.1} %", s * 100.0))
}

/// A change as signed percent.
pub fn change(share: Option<f64>) -> String {
    share.map_or("-".to_string(), |s| format!("{:+.2} %", s * 100.0))
}

/// Microseconds, or milliseconds where there are many.
pub fn time(us: Option<f64>) -> String {
    match us {
        None => "-".to_string(),
        Some(us) if us >= 10_000.0 => format!("{:.1} ms", us / 1000.0),
        Some(us) => format!("{us:.0} us"),
    }
}

/// The value with its interval.
pub fn value(row: &Row) -> String {
    let Some(value) = row.value else {
        return "-".to_string();
    };
    let interval = row
        .half_interval
        .map(|half| format!(" +-{:.1} %", half / value * 100.0));
    format!("{}{}", rate(value, row.unit), interval.unwrap_or_default())
}

/// `yes`, or INVALID with the reasons.
pub fn verdict(row: &Row) -> String {
    if row.invalid.is_empty() {
        return "yes".to_string();
    }
    format!("INVALID: {}", row.invalid.join("; "))
}
