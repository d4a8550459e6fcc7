//! Workloads that differ in one number only, as curves: rate by streams, by part of an array, by length of a run.
//!
//! **Invariants**: a curve holds one workload of one suite; each of its lines is one target in one state, of one kind of
//! evidence; what is INVALID keeps its mark.

use std::fmt::Write as _;

use super::rows::{Evidence, Row};
use super::{RAW, figures};

/// One chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Its suite.
    pub suite: String,
    /// The workload without its number.
    pub name: String,
    /// What the number is.
    pub of: &'static str,
    /// Values of the number as they are written, in order.
    pub places: Vec<String>,
    /// Its lines.
    pub lines: Vec<Line>,
}

/// One target in one state.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Its target.
    pub target: String,
    /// Target, state where it is not normal, and kind of evidence where it is not modelled.
    pub name: String,
    /// Whether it was computed or published.
    pub is_of_others: bool,
    /// For each place: the rate in bytes a second, and whether the row is valid.
    pub points: Vec<Option<(f64, bool)>>,
}

/// The number in a workload's name, what it is of, and how it is written.
fn number(workload: &str) -> Option<(&str, &'static str, f64, String)> {
    if let Some((name, size)) = workload.split_once(" in runs of ") {
        let (digits, unit) = size.split_at(size.len().checked_sub(1)?);
        let bytes: f64 = digits.parse().ok()?;
        let scale = if unit == "M" { 1024.0 } else { 1.0 };
        return Some((name, "run on a device", bytes * scale, size.to_string()));
    }
    if let Some((name, percent)) = workload.split_once(" to ") {
        let value: f64 = percent.strip_suffix(" %")?.parse().ok()?;
        return Some((name, "part of the array, up to", value, percent.to_string()));
    }
    let (name, streams) = workload.rsplit_once(" x")?;
    let value: f64 = streams.parse().ok()?;
    Some((name, "streams", value, streams.to_string()))
}

/// Whether a row belongs to a curve.
pub fn is_on_curve(row: &Row) -> bool {
    number(&row.workload).is_some()
}

/// The curves of some rows.
pub fn curves(rows: &[Row]) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    for row in rows {
        let Some((name, of, ..)) = number(&row.workload) else {
            continue;
        };
        let known = |c: &Curve| c.suite == row.suite && c.name == name;
        if !curves.iter().any(known) {
            curves.push(Curve {
                suite: row.suite.clone(),
                name: name.to_string(),
                of,
                places: Vec::new(),
                lines: Vec::new(),
            });
        }
    }
    for curve in &mut curves {
        fill(curve, rows);
    }
    curves
}

fn fill(curve: &mut Curve, rows: &[Row]) {
    let of_curve = |row: &&Row| {
        let named = number(&row.workload).is_some_and(|(name, ..)| name == curve.name);
        row.suite == curve.suite && named
    };
    let rows: Vec<&Row> = rows.iter().filter(of_curve).collect();
    let mut places: Vec<(f64, String)> = Vec::new();
    for row in &rows {
        if let Some((.., value, text)) = number(&row.workload)
            && !places.iter().any(|(known, _)| *known == value)
        {
            places.push((value, text));
        }
    }
    places.sort_by(|a, b| a.0.total_cmp(&b.0));
    for row in &rows {
        let name = line_name(row);
        let Some((.., value, _)) = number(&row.workload) else {
            continue;
        };
        let place = places.iter().position(|(known, _)| *known == value);
        if !curve.lines.iter().any(|line| line.name == name) {
            curve.lines.push(Line {
                target: row.target.clone(),
                name: name.clone(),
                is_of_others: is_of_others(row),
                points: vec![None; places.len()],
            });
        }
        let line = curve.lines.iter_mut().find(|line| line.name == name);
        if let (Some(line), Some(place), Some(rate)) = (line, place, row.bytes_per_second) {
            line.points[place] = Some((rate, row.invalid.is_empty()));
        }
    }
    curve.places = places.into_iter().map(|(_, text)| text).collect();
}

fn is_of_others(row: &Row) -> bool {
    row.evidence == Evidence::Published || figures::is_computed(row)
}

fn line_name(row: &Row) -> String {
    let mut name = row.target.clone();
    if row.target == RAW {
        name += &format!(" x{}", row.devices);
    }
    if row.state != super::NORMAL {
        name += &format!(", {}", row.state);
    }
    if row.evidence == Evidence::Modelled && !figures::is_computed(row) {
        return name;
    }
    format!("{name}, {}", figures::kind(row))
}

/// The curve as a Markdown table.
pub fn table(curve: &Curve) -> String {
    let names: Vec<&str> = curve.lines.iter().map(|line| line.name.as_str()).collect();
    let mut text = format!(
        "{} {}:\n\n| {} | {} |\n|---|{}\n",
        curve.suite,
        curve.name,
        curve.of,
        names.join(" | "),
        "---|".repeat(names.len())
    );
    for (place, written) in curve.places.iter().enumerate() {
        let cell = |line: &Line| match line.points[place] {
            None => "-".to_string(),
            Some((rate, true)) => figures::rate(rate, "B/s"),
            Some((rate, false)) => format!("{} INVALID", figures::rate(rate, "B/s")),
        };
        let cells: Vec<String> = curve.lines.iter().map(cell).collect();
        let _ = writeln!(text, "| {written} | {} |", cells.join(" | "));
    }
    text
}

/// Margins and size of the drawing.
const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 230.0;
const LEFT: f64 = 70.0;
const BOTTOM: f64 = 34.0;
const TOP: f64 = 8.0;

/// The curve as an SVG drawing; `colour` gives the number of a target's colour.
pub(super) fn drawing(curve: &Curve, colour: &dyn Fn(&str) -> usize) -> String {
    let points = curve.lines.iter().flat_map(|line| line.points.iter());
    let most = points.flatten().map(|(rate, _)| *rate).fold(0.0, f64::max);
    let top = round_up(most);
    let steps = curve.places.len().max(2) - 1;
    let x = |place: usize| LEFT + 8.0 + (WIDTH - LEFT - 20.0) * place as f64 / steps as f64;
    let y = |rate: f64| TOP + (HEIGHT - BOTTOM - TOP) * (1.0 - rate / top);
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH:.0} {HEIGHT:.0}\" role=\"img\">");
    for quarter in 0..=4 {
        let rate = top * f64::from(quarter) / 4.0;
        let _ = write!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{0:.1}\" y2=\"{0:.1}\" stroke=\"var(--line)\"/>\
             <text class=\"n\" x=\"{1}\" y=\"{2:.1}\" text-anchor=\"end\">{3}</text>",
            y(rate),
            LEFT - 4.0,
            y(rate) + 4.0,
            figures::rate(rate, "B/s")
                .replace("/s", "")
                .replace(".0 MB", " MB")
        );
    }
    for (place, text) in curve.places.iter().enumerate() {
        let _ = write!(
            svg,
            "<text class=\"n\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            x(place),
            HEIGHT - BOTTOM + 16.0,
            figures::escape(text.trim_end_matches(" %"))
        );
    }
    let _ = write!(
        svg,
        "<text class=\"n\" x=\"{WIDTH}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
        HEIGHT - 3.0,
        figures::escape(curve.of)
    );
    for line in &curve.lines {
        let colour = colour(&line.target);
        let dash = if line.is_of_others {
            " stroke-dasharray=\"5 4\""
        } else {
            ""
        };
        let found = line.points.iter().enumerate();
        let found: Vec<(usize, f64, bool)> = found
            .filter_map(|(place, point)| point.map(|(rate, valid)| (place, rate, valid)))
            .collect();
        let path: Vec<String> = found
            .iter()
            .map(|(place, rate, _)| format!("{:.1},{:.1}", x(*place), y(*rate)))
            .collect();
        let _ = write!(
            svg,
            "<polyline fill=\"none\" stroke=\"var(--c{colour})\" stroke-width=\"2.5\"{dash} points=\"{}\"/>",
            path.join(" ")
        );
        for (place, rate, valid) in found {
            let fill = if valid {
                format!("var(--c{colour})")
            } else {
                "var(--bg)".to_string()
            };
            let _ = write!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\" fill=\"{fill}\" stroke=\"var(--c{colour})\" stroke-width=\"1.5\"/>",
                x(place),
                y(rate)
            );
        }
    }
    svg.push_str("</svg>");
    svg
}

/// The next of 1, 2, 2.5, 5 times a power of ten, or four of them for the lines.
pub(super) fn round_up(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    let steps = [1.0, 1.2, 1.6, 2.0, 2.4, 3.2, 4.0, 5.0, 6.0, 8.0, 10.0];
    let found = steps.into_iter().find(|step| step * power >= value);
    found.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::super::{Gates, Sample, rows};
    use super::*;

    fn sample(workload: &str, target: &str, rate: f64) -> Sample {
        Sample {
            suite: "streams".to_string(),
            workload: workload.to_string(),
            target: target.to_string(),
            bytes_per_second: Some(rate),
            ..Sample::default()
        }
    }

    #[test]
    fn numbers_in_names_are_places_on_a_curve_in_their_order() {
        let samples = [
            sample("direct read x16", "a", 4e9),
            sample("direct read x2", "a", 1e9),
            sample("direct read x2", "b", 2e9),
            sample("plain", "a", 9e9),
            Sample {
                invalid: vec!["not steady".to_string()],
                ..sample("direct read x16", "b", 3e9)
            },
        ];
        let rows = rows(&samples, Gates::default());
        let curves = curves(&rows);
        assert_eq!(curves.len(), 1, "what has no number is on none");
        let curve = &curves[0];
        assert_eq!((curve.name.as_str(), curve.of), ("direct read", "streams"));
        assert_eq!(curve.places, ["2", "16"]);
        assert_eq!(
            curve.lines[0].points,
            [Some((1e9, true)), Some((4e9, true))]
        );
        let text = table(curve);
        assert!(
            text.contains("| 16 | 4.00 GB/s | 3.00 GB/s INVALID |"),
            "{text}"
        );
        let drawn = drawing(curve, &|_| 1);
        assert_eq!(drawn.matches("<circle").count(), 4);
        assert_eq!(drawn.matches("fill=\"var(--bg)\"").count(), 1);
    }

    #[test]
    fn each_way_to_write_a_number_is_read() {
        let of = |workload| number(workload).map(|(name, _, value, _)| (name, value));
        assert_eq!(of("write to 30 %"), Some(("write", 30.0)));
        assert_eq!(
            of("buffered read in runs of 4M"),
            Some(("buffered read", 4096.0))
        );
        assert_eq!(
            of("buffered read in runs of 256K"),
            Some(("buffered read", 256.0))
        );
        assert_eq!(of("direct write x64"), Some(("direct write", 64.0)));
        for plain in ["RW", "SR-JS", "check beside SR", "random-read"] {
            assert_eq!(of(plain), None, "{plain}");
        }
        assert!((round_up(3.1e9) - 3.2e9).abs() < 1.0);
        assert!((round_up(9e8) - 1e9).abs() < 1.0);
    }
}
