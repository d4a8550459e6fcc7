//! `bench report`: tables and a page from files of samples; `bench lifecycle` makes its own the same way.
//!
//! **Invariant**: rows come in the order of the papers, and each conclusion names its kind of evidence.

use std::fs;
use std::path::PathBuf;

use ashlar_bench::lifecycle::State;
use ashlar_bench::report::compare::{Weights, compare};
use ashlar_bench::report::html::Page;
use ashlar_bench::report::{Gates, RAW, Row, Sample, csv, html, rows, text};
use clap::Args;
use serde_json::json;

use crate::command::{document, out};
use crate::failure::Failure;
use crate::view::table;

pub(super) const REPORT_EXAMPLES: &str = "Examples:
  ashlar bench report xiraid/samples.csv --html xiraid.html
  ashlar bench report docs/papers/data/xiraid.csv --compare 7+1,8+1 --weights normal=8,down=1,rebuild=1
";

/// How a report is made.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// Two targets to set against each other: baseline, challenger
    #[arg(long, value_name = "BASE,OTHER", value_delimiter = ',', num_args = 1)]
    compare: Vec<String>,
    /// What a state counts in the figure of a suite [default: all 1]
    #[arg(long, value_name = "STATE=N,...", default_value = "", value_parser = Weights::parse, hide_default_value = true)]
    weights: Weights,
    /// Variation above this many percent is a warning
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    warn: f64,
    /// Variation above this many percent makes a row INVALID
    #[arg(long, value_name = "PERCENT", default_value_t = 15.0)]
    gate: f64,
    /// No header, tabs
    #[arg(short = 'H', long)]
    script: bool,
}

/// `bench report`.
#[derive(Debug, Args)]
pub(crate) struct FilesArgs {
    /// Samples, as `bench lifecycle --out` writes them
    #[arg(required = true, value_name = "FILE.csv")]
    files: Vec<PathBuf>,
    /// Write the page here
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Title of the page
    #[arg(long, value_name = "TEXT", default_value = "Ashlar: report of samples")]
    title: String,
    #[command(flatten)]
    report: ReportArgs,
}

/// Runs `bench report`.
///
/// # Errors
/// If a file cannot be read, or holds no samples.
pub(super) fn report(args: &FilesArgs, json: bool) -> Result<(), Failure> {
    let mut samples = Vec::new();
    for path in &args.files {
        let text = fs::read_to_string(path).map_err(|e| {
            Failure::broken(format!("{}: {e}; give a file of samples", path.display()))
        })?;
        let read = csv::read(&text);
        samples.extend(read.map_err(|e| Failure::invalid(format!("{}: {e}", path.display())))?);
    }
    let mut page = make(&args.title, &samples, &args.report, Vec::new())?;
    let names: Vec<String> = args.files.iter().map(|p| p.display().to_string()).collect();
    page.command = format!("ashlar bench report {}", names.join(" "));
    if let Some(path) = &args.html {
        fs::write(path, html::page(&page)).map_err(|e| {
            Failure::broken(format!("{}: {e}; give another --html", path.display()))
        })?;
    }
    print(&page, &args.report, json, "bench report")
}

pub(super) fn make(
    title: &str,
    samples: &[Sample],
    args: &ReportArgs,
    mut pairs: Vec<[String; 2]>,
) -> Result<Page, Failure> {
    let gates = Gates {
        warn: args.warn / 100.0,
        fail: args.gate / 100.0,
    };
    let mut rows = rows(samples, gates);
    rows.sort_by_key(order);
    if !args.compare.is_empty() {
        let [base, other] = args.compare.as_slice() else {
            return Err(Failure::invalid(
                "--compare takes two targets, for example ec7+1,ec8+1",
            ));
        };
        pairs.insert(0, [base.clone(), other.clone()]);
        pairs.dedup();
    }
    let compared: Result<Vec<_>, String> = pairs
        .iter()
        .map(|[base, other]| compare(&rows, base, other, &args.weights))
        .collect();
    Ok(Page {
        title: title.to_string(),
        reading: reading(&rows),
        comparisons: compared.map_err(|e| Failure::invalid(format!("--compare: {e}")))?,
        rows,
        ..Page::default()
    })
}

/// Suites, workloads and states as the papers order them; raw first.
fn order(row: &Row) -> (String, usize, usize, bool, String) {
    let works = ["RW", "RM", "RR", "SR", "SW", "SR-JS", "SW-JS"];
    let states = State::ALL.map(State::name);
    let place = |all: &[&str], name: &str| all.iter().position(|a| *a == name).unwrap_or(99);
    (
        row.suite.clone(),
        place(&works, &row.workload),
        place(&states, &row.state),
        row.target != RAW,
        format!("{} {}", row.evidence.name(), row.target),
    )
}

/// What a reader may conclude, a sentence for each target and state.
fn reading(rows: &[Row]) -> Vec<String> {
    let mut heads: Vec<(String, String, &'static str)> = Vec::new();
    for row in rows
        .iter()
        .filter(|r| r.target != RAW && r.share_of_raw.is_some())
    {
        let head = (row.target.clone(), row.state.clone(), row.evidence.name());
        if !heads.contains(&head) {
            heads.push(head);
        }
    }
    let sentence = |(target, state, evidence): &(String, String, &'static str)| {
        let parts: Vec<String> = rows
            .iter()
            .filter(|r| r.target == *target && r.state == *state && r.evidence.name() == *evidence)
            .filter_map(|r| {
                let mark = if r.invalid.is_empty() {
                    ""
                } else {
                    " (INVALID)"
                };
                let share = r.share_of_raw? * 100.0;
                Some(format!("{} {share:.1} %{mark}", r.workload))
            })
            .collect();
        format!(
            "{target}, {state}, {evidence}: {} of the raw drives.",
            parts.join(", ")
        )
    };
    heads.iter().map(sentence).collect()
}

pub(super) fn print(
    page: &Page,
    args: &ReportArgs,
    json: bool,
    command: &str,
) -> Result<(), Failure> {
    if json {
        let value = json!({ "rows": page.rows, "comparisons": page.comparisons,
            "assumptions": page.assumptions });
        return out(&document(command, &value)?);
    }
    let titles = [
        "SUITE",
        "STATE",
        "WORK",
        "TARGET",
        "EVIDENCE",
        "VALUE",
        "OF RAW",
        "PER DEVICE",
        "P99",
        "WITHIN",
        "BETWEEN",
        "LIMIT",
        "VALID",
    ];
    let line = |row: &Row| {
        let per_device = row.per_device.map(|v| text::rate(v, row.unit));
        vec![
            row.suite.clone(),
            row.state.clone(),
            row.workload.clone(),
            row.target.clone(),
            row.evidence.name().to_string(),
            text::value(row),
            text::percent(row.share_of_raw),
            per_device.unwrap_or("-".to_string()),
            text::time(row.p99_us),
            text::percent(row.variation_within),
            text::percent(row.variation_between),
            if row.limit.is_empty() {
                "-".to_string()
            } else {
                row.limit.clone()
            },
            text::verdict(row),
        ]
    };
    let lines = page.rows.iter().map(line).collect();
    out(&table::table(
        &titles,
        lines,
        &[5, 6, 7, 8, 9, 10],
        args.script,
    ))?;
    for comparison in &page.comparisons {
        out(&format!("\n{}", text::comparison(comparison)))?;
    }
    Ok(())
}
