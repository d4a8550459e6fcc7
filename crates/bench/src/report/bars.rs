//! Bars of a chart: a label, a figure and a length for each row.
//!
//! **Invariants**: one scale for all bars of a chart; an invalid row is marked; a label and its figure do not run into each
//! other.

use std::fmt::Write as _;

use super::figures::{self, escape};
use super::{Evidence, RAW, Row};

/// Colours: 0 for raw devices, the others in turn.
pub(super) fn colour(targets: &[&str], target: &str) -> usize {
    if target == RAW {
        return 0;
    }
    let others = targets.iter().filter(|t| **t != RAW);
    1 + others.into_iter().position(|t| *t == target).unwrap_or(0) % 7
}

/// What a bar is called: raw devices by their number, figures of others as such.
fn label(row: &Row) -> String {
    let devices = if row.target == RAW {
        format!(" x{}", row.devices)
    } else {
        String::new()
    };
    let kind = if row.evidence == Evidence::Modelled && !figures::is_computed(row) {
        ""
    } else {
        figures::kind(row)
    };
    let parts = [
        format!("{}{devices}", row.target),
        row.state.clone(),
        kind.to_string(),
    ];
    let parts: Vec<String> = parts.into_iter().filter(|p| !p.is_empty()).collect();
    parts.join(", ")
}

/// Letters that a bar's line has room for, label and figure together.
const LINE: usize = 54;

/// Bars of some rows as an SVG drawing, 400 units wide; colours are variables of the page.
pub(super) fn bars(rows: &[&Row], targets: &[&str]) -> String {
    // Operations only where all bars are: one scale for all.
    let mixed = rows.iter().any(|row| row.unit != rows[0].unit);
    let figure = |row: &Row| {
        if mixed {
            (row.bytes_per_second, "B/s")
        } else {
            (row.value, row.unit)
        }
    };
    let most = rows
        .iter()
        .filter_map(|row| figure(row).0)
        .fold(0.0, f64::max);
    let height = rows.len() * 36 + 4;
    let mut svg = format!("<svg viewBox=\"0 0 400 {height}\" role=\"img\">");
    for (index, row) in rows.iter().enumerate() {
        let y = index * 36;
        let (value, unit) = figure(row);
        let length = value.filter(|_| most > 0.0).map_or(0.0, |v| v / most);
        let good = row.invalid.is_empty();
        let label = label(row);
        let value = value.map_or("no number".to_string(), |v| figures::rate(v, unit));
        let (class, mark) = if good { ("n", "") } else { ("bad", "INVALID ") };
        let room = LINE.saturating_sub(label.chars().count() + mark.len() + value.len());
        let share = row.share_of_raw.filter(|_| row.target != RAW);
        let share_of_raw = share.and_then(|s| {
            let percent = format!("{:.1} %", s * 100.0);
            let told = [format!(" ({percent} of raw)"), format!(" ({percent})")];
            told.into_iter().find(|text| text.len() <= room)
        });
        let _ = write!(
            svg,
            "<text x=\"0\" y=\"{}\">{}</text><text class=\"{class}\" x=\"400\" y=\"{}\" text-anchor=\"end\">{mark}{}{}</text>\
             <rect x=\"0\" y=\"{}\" width=\"{:.1}\" height=\"12\" rx=\"2\" fill=\"var(--c{})\" opacity=\"{}\"/>",
            y + 14,
            escape(&label),
            y + 14,
            escape(&value),
            share_of_raw.unwrap_or_default(),
            y + 19,
            (length * 400.0).max(1.0),
            colour(targets, &row.target),
            if good { 1.0 } else { 0.35 },
        );
    }
    svg.push_str("</svg>");
    svg
}

#[cfg(test)]
mod tests {
    use super::super::{Gates, Sample, rows, tests::sample};
    use super::*;

    #[test]
    fn a_share_that_would_run_into_its_label_is_left_out() {
        let samples = [sample(RAW, 300.0, &[]), sample("a", 150.0, &[])];
        let of = |name: &str| {
            let mut rows = rows(&samples, Gates::default());
            rows[1].target = name.to_string();
            bars(&[&rows[1]], &[name])
        };
        assert!(of("a").contains("(50.0 % of raw)"), "{}", of("a"));
        let long = of("read-modify-write 85+15 of a longer name");
        assert!(!long.contains("of raw"), "{long}");
    }

    #[test]
    fn operations_and_bytes_share_one_scale() {
        let bytes = Sample {
            operations_per_second: None,
            bytes_per_second: Some(2e9),
            ..sample("7+1", 0.0, &[])
        };
        let operations = Sample {
            bytes_per_second: Some(1e9),
            ..sample("ec7+1", 1e9 / 4096.0, &[])
        };
        let rows = rows(&[bytes, operations], Gates::default());
        let drawn = bars(&rows.iter().collect::<Vec<_>>(), &["7+1", "ec7+1"]);
        assert!(
            drawn.contains("width=\"400.0\"") && drawn.contains("width=\"200.0\""),
            "{drawn}"
        );
    }
}
