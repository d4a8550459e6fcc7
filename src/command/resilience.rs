//! `resilience`: what a layout survives beyond its promise, exactly or simulated; needs no daemon.
//!
//! **Invariants**: counted probabilities are printed as 0 and 1 only where they are exactly that
//! (simulated ones stand beside their standard error); nonsense is one line and no output.

use std::fmt::Write as _;
use std::path::PathBuf;

use ashlar_model::{Answer, LayoutAnswer, Method, Placing, PointAnswer, Question, Scale, answer};

use crate::failure::Failure;
use crate::print::document;
use crate::view::table::table;

/// Shown by `--help`.
pub(crate) const EXAMPLES: &str = "Examples:
  ashlar resilience --layout raid60:10 --devices 100 --versus 80:20 --versus 97:3
  ashlar resilience --layout '10x(8+2)' --versus 80:20 --failures 0..25 --plot loss.svg
  ashlar resilience --layout 'grid:41(8+2+2)' --failures 0..4
  ashlar resilience --layout '2*raid60:10' --devices 100 --method montecarlo --trials 100000

Layouts: those of `ashlar create`, and
  10x(8+2)  3x(8+2),7x(17+3)   groups as written        80:20     one code as wide as the array
  2*LAYOUT                     every group mirrored     LAYOUT@P  on P devices
";

/// `resilience`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The layout in question
    #[arg(long, value_name = "LAYOUT")]
    layout: String,
    /// Devices (of one copy), where the layout does not say
    #[arg(long, value_name = "P")]
    devices: Option<u32>,
    /// Numbers of failures, both ends included [default: from 0 to where all is lost]
    #[arg(long, value_name = "A..B", value_parser = parse_range)]
    failures: Option<(u32, u32)>,
    /// Count, or simulate on the real placement
    #[arg(long, value_name = "METHOD", default_value = "exact", value_parser = ["exact", "montecarlo"])]
    method: String,
    /// Trials of the simulation [default: what takes a second or two, at most 20000]
    #[arg(long, value_name = "N")]
    trials: Option<u64>,
    /// Seed of the simulation [default: 1]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Segments of each declustered group [default: as many as 16384 slots a device allow]
    #[arg(long, value_name = "N")]
    segments: Option<u32>,
    /// How the simulation places them: as the array does, or each on a random set of devices, which
    /// is what `exact` assumes
    #[arg(long, value_name = "HOW", default_value = "layout", value_parser = ["layout", "random"])]
    placing: String,
    /// Another layout to compare with; may be given several times
    #[arg(long, value_name = "LAYOUT")]
    versus: Vec<String>,
    /// Draw probability of loss against failed drives; the ending says .svg or .png
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Draw the plot's probabilities on a logarithmic scale
    #[arg(long, requires = "plot")]
    log: bool,
    /// Write a page to play with: it computes by itself, no network needed
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// `3`, `0..25` or `0..=25`.
fn parse_range(text: &str) -> Result<(u32, u32), String> {
    let bad = |_| format!("'{text}' is not a range of failures; write for example 3 or 0..25");
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    let last = last.strip_prefix('=').unwrap_or(last);
    Ok((
        first.trim().parse().map_err(bad)?,
        last.trim().parse().map_err(bad)?,
    ))
}

/// `resilience`: the text to print.
///
/// # Errors
/// One line that says what to change.
pub(crate) fn run(args: &Args, json: bool) -> Result<String, Failure> {
    let question = Question {
        layouts: std::iter::once(&args.layout)
            .chain(&args.versus)
            .cloned()
            .collect(),
        devices: args.devices,
        failures: args.failures,
        method: if args.method == "exact" {
            Method::Exact
        } else {
            Method::MonteCarlo
        },
        trials: args.trials,
        seed: args.seed,
        segments: args.segments,
        placing: match args.placing.as_str() {
            "random" => Placing::Random,
            _ => Placing::Layout,
        },
        afr: None,
        device_bytes: None,
        bandwidth: None,
    };
    let answer = answer(&question).map_err(|e| Failure::invalid(e.to_string()))?;
    if let Some(path) = &args.plot {
        let scale = if args.log {
            Scale::Logarithmic
        } else {
            Scale::Linear
        };
        ashlar_model::write_plot(&answer, scale, path)
            .map_err(|e| Failure::broken(format!("{}: {e}", path.display())))?;
    }
    if let Some(path) = &args.html {
        let page = ashlar_model::page(&question).map_err(|e| Failure::invalid(e.to_string()))?;
        std::fs::write(path, page)
            .map_err(|e| Failure::broken(format!("{}: {e}", path.display())))?;
    }
    if json {
        return document("resilience", &answer);
    }
    let mut text = text(&answer, args.failures.is_some());
    for path in args.plot.iter().chain(&args.html) {
        let _ = writeln!(text, "Written: {}", path.display());
    }
    Ok(text)
}

/// A probability: exact at its ends, otherwise four digits of whichever of it and its complement is
/// small.
fn chance(probability: f64, complement: f64) -> String {
    if probability == 0.0 || probability == 1.0 {
        return format!("{probability}");
    }
    match (probability < 1e-4, complement < 1e-4) {
        (true, _) => format!("{probability:.3e}"),
        (_, true) if complement > 1e-15 => format!("1 - {complement:.2e}"),
        (_, true) if complement > 0.0 => "1 - <1e-15".to_string(),
        _ => format!("{probability:.6}"),
    }
}

fn text(answer: &Answer, all: bool) -> String {
    let mut out = String::new();
    for layout in &answer.layouts {
        out.push_str(&summary(layout));
    }
    out.push('\n');
    let simulated = answer
        .layouts
        .iter()
        .any(|l| l.method == Method::MonteCarlo);
    let mut titles = vec!["FAILED".to_string()];
    for layout in &answer.layouts {
        titles.push(format!("P(LOSS) {}", layout.layout));
        if simulated {
            titles.push("+-".to_string());
        }
    }
    let rows = rows(answer, all).into_iter().map(|failures| {
        let mut row = vec![failures.to_string()];
        for layout in &answer.layouts {
            let point = layout.points.iter().find(|p| p.failures == failures);
            row.push(point.map_or("-".to_string(), |p| chance(p.probability, p.survival)));
            if simulated {
                row.push(point.map_or("-".to_string(), |p| format!("{:.1e}", p.stderr)));
            }
        }
        row
    });
    let titles: Vec<&str> = titles.iter().map(String::as_str).collect();
    let right: Vec<usize> = (0..titles.len()).collect();
    out.push_str(&table(&titles, rows.collect(), &right, false));
    for layout in answer
        .layouts
        .iter()
        .filter(|l| l.declustered && l.copies == 1)
    {
        out.push_str(&shares(layout, answer, all));
    }
    out.push_str("\nAssumed:\n");
    for line in &answer.assumptions {
        let _ = writeln!(out, "  {line}");
    }
    out
}

fn summary(layout: &LayoutAnswer) -> String {
    let code = match (layout.k, layout.m) {
        (Some(k), Some(m)) => format!("{k}+{m}"),
        _ => "mixed".to_string(),
    };
    let copies = if layout.copies > 1 {
        format!(", {} copies", layout.copies)
    } else {
        String::new()
    };
    let groups = if layout.groups == 1 {
        "1 group"
    } else {
        &format!("{} groups", layout.groups)
    };
    let mut out = format!(
        "{}: {} devices, {groups} of {code}{copies}, {:.1} % for data",
        layout.layout,
        layout.devices,
        layout.efficiency * 100.0
    );
    if let Some(always) = layout.always_survived {
        let _ = write!(out, "; any {always} failures survived");
    }
    if let Some(from) = layout.certain_from {
        let _ = write!(out, ", {from} never");
    }
    out.push('\n');
    out
}

/// The numbers of failures worth a row: all where they were asked for, else those where a layout is
/// neither safe nor certainly lost and the first beyond, thinned to about thirty.
fn rows(answer: &Answer, all: bool) -> Vec<u32> {
    let points = || answer.layouts.iter().flat_map(|l| &l.points);
    let last = points().map(|p| p.failures).max().unwrap_or(0);
    let first = points().map(|p| p.failures).min().unwrap_or(0);
    if all {
        return (first..=last).collect();
    }
    let open = |p: &&PointAnswer| p.probability > 0.0 && p.survival > 1e-9;
    let from = points()
        .filter(|p| p.probability > 0.0)
        .map(|p| p.failures)
        .min();
    let to = points()
        .filter(open)
        .map(|p| p.failures + 1)
        .max()
        .unwrap_or(last);
    let from = from.unwrap_or(first).saturating_sub(1);
    let step = (to.saturating_sub(from) / 30).max(1);
    let edges: Vec<u32> = answer
        .layouts
        .iter()
        .flat_map(|l| [l.always_survived, l.certain_from])
        .flatten()
        .flat_map(|x| [x, x + 1])
        .collect();
    (first..=last)
        .filter(|x| ((from..=to).contains(x) && (x - from) % step == 0) || edges.contains(x))
        .collect()
}

fn shares(layout: &LayoutAnswer, answer: &Answer, all: bool) -> String {
    let wanted = rows(answer, all);
    let rows = layout
        .points
        .iter()
        .filter(|p| wanted.contains(&p.failures))
        .map(|p| {
            let share = |value: Option<f64>| match value {
                Some(value) if value == 0.0 || value == 1.0 => format!("{} %", value * 100.0),
                Some(value) if value < 1e-4 => format!("{:.2e} %", value * 100.0),
                Some(value) => format!("{:.3} %", value * 100.0),
                None => "-".to_string(),
            };
            vec![
                p.failures.to_string(),
                share(p.degraded),
                share(p.critical),
                share(p.lost),
            ]
        });
    let titles = ["FAILED", "DEGRADED", "CRITICAL", "LOST"];
    format!(
        "\nExpected share of the data of {}:\n{}",
        layout.layout,
        table(&titles, rows.collect(), &[0, 1, 2, 3], false)
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn args(layout: &str, devices: Option<u32>, failures: Option<(u32, u32)>) -> Args {
        Args {
            layout: layout.to_string(),
            devices,
            failures,
            method: "exact".to_string(),
            trials: None,
            seed: None,
            segments: None,
            placing: "layout".to_string(),
            versus: Vec::new(),
            plot: None,
            log: false,
            html: None,
        }
    }

    #[test]
    fn ranges() {
        assert_eq!(parse_range("3"), Ok((3, 3)));
        assert_eq!(parse_range("0..25"), Ok((0, 25)));
        assert_eq!(parse_range("1..=4"), Ok((1, 4)));
        for text in ["", "..", "a..b", "-1..2", "1...2", "3.."] {
            assert!(parse_range(text).is_err(), "{text}");
        }
    }

    #[test]
    fn certain_failure_is_printed_as_one_and_nothing_else_is() {
        let text = run(&args("10x(8+2)", None, Some((2, 21))), false).unwrap();
        assert!(text.contains("any 2 failures survived, 21 never"), "{text}");
        let of = |failures: &str| {
            let row = text
                .lines()
                .find(|l| l.trim_start().starts_with(&format!("{failures} ")));
            row.unwrap()
                .split_whitespace()
                .skip(1)
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!((of("2").as_str(), of("21").as_str()), ("0", "1"));
        assert_eq!(of("3"), "0.007421");
        assert!(of("20").starts_with("1 - "));
    }

    #[test]
    fn json_keeps_the_contract() {
        let text = run(&args("raid60:10", Some(100), Some((3, 3))), true).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["version"], 1);
        assert_eq!(value["command"], "resilience");
        let layout = &value["layouts"][0];
        for (field, expect) in [("devices", 100), ("groups", 10), ("k", 8), ("m", 2)] {
            assert_eq!(layout[field], expect, "{field}");
        }
        assert_eq!(layout["layout"], "raid60:10");
        assert_eq!(layout["method"], "exact");
        assert_eq!(layout["efficiency"], 0.8);
        assert_eq!(layout["points"][0]["failures"], 3);
        assert!((layout["points"][0]["probability"].as_f64().unwrap() - 0.00742115).abs() < 1e-7);
        assert_eq!(layout["points"][0]["stderr"], 0.0);
    }

    #[test]
    fn nonsense_is_one_clear_line() {
        for (layout, devices, failures, expect) in [
            (
                "raid6",
                Some(10),
                Some((0, 11)),
                "11 failures, but only 10 devices",
            ),
            ("raid6", Some(0), None, "at least one device"),
            ("raid6", None, None, "--devices"),
            ("raid60:3", Some(100), None, "do not divide"),
            ("raid9", Some(10), None, "unknown layout"),
            ("ec8+2", Some(9), None, "at least 10 devices"),
            ("ec200+100", Some(1000), None, "at most 256"),
            ("raid6", Some(10), Some((5, 2)), "ends before it begins"),
            ("10x(8+2)", Some(99), None, "99 given"),
        ] {
            let error = run(&args(layout, devices, failures), false).unwrap_err();
            assert!(
                error.text.contains(expect) && error.text.lines().count() == 1,
                "{layout}: {error}"
            );
        }
    }
}
