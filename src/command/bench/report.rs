//! `bench report`: tables and pages from files of samples or folders of results; the suites make their own the same
//! way.
//!
//! **Invariant**: rows come in the order of the papers, and each conclusion names its kind of evidence.

use std::fs;
use std::path::{Path, PathBuf};

use ashlar_bench::files::load::Test;
use ashlar_bench::lifecycle::{State, Suite};
use ashlar_bench::report::compare::{Weights, compare};
use ashlar_bench::report::page::{Page, Table};
use ashlar_bench::report::{
    Evidence, Gates, RAW, Row, Sample, beside, csv, curve, figures, html, rows, text,
};
use clap::{Args, ValueEnum};
use serde::Deserialize;
use serde_json::{Value, json};

use super::nobackup;
use super::paper::Paper;
use crate::failure::Failure;
use crate::print::{document, out};
use crate::view::table;

pub(super) const REPORT_EXAMPLES: &str = "Examples:
  ashlar bench report xiraid/samples.csv --html xiraid.html
  ashlar bench report tank --markdown tank.md
  ashlar bench report xiraid --paper xiraid --markdown docs/papers/xiraid.md
  ashlar bench report docs/papers/data/nobackup-volume.json docs/papers/data/nobackup-loop.json --paper nobackup --markdown docs/papers/nobackup.md
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

impl ReportArgs {
    /// Whether tables are for scripts.
    pub(super) fn script(&self) -> bool {
        self.script
    }
}

/// A paper beside which results can stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Beside {
    /// SupremeRAID SR-1000 on OpenFlex Data24 (2022)
    Supremeraid,
    /// The data sheet of SupremeRAID SR-1000
    SupremeraidSpec,
    /// xiRAID on OpenFlex Data24 3200 (2023)
    Xiraid,
    /// NSULATE on 100 hard disks
    Nsulate,
    /// Sonexion GridRAID (2014), figures 1 to 7
    Gridraid,
    /// The same paper, figures 15 and 16
    GridraidCheck,
    /// NOBACKUP: caches, and how not to benchmark
    Nobackup,
}

/// `bench report`.
#[derive(Debug, Args)]
pub(crate) struct FilesArgs {
    /// Samples (.csv), a report (.json), or a folder of results, as --out of a suite makes them
    #[arg(required = true, value_name = "FILE|DIR")]
    files: Vec<PathBuf>,
    /// Write the page here
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write all tables as Markdown here; - for standard output
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Set the figures of a paper beside
    #[arg(long, value_name = "PAPER")]
    paper: Option<Beside>,
    /// Title of the page [default: that of the results]
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
    #[command(flatten)]
    report: ReportArgs,
}

/// What a report in JSON gives to another. What is absent is empty.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Known {
    title: Option<String>,
    samples: Vec<Sample>,
    tables: Vec<Table>,
    assumptions: Vec<String>,
    environment: Vec<(String, String)>,
    made_by: Option<String>,
}

/// Adds what is not there yet: several reports of one machine say the same.
fn add_new<T: PartialEq>(all: &mut Vec<T>, more: Vec<T>) {
    for one in more {
        if !all.contains(&one) {
            all.push(one);
        }
    }
}

/// Reads samples, a report, or a folder with either.
fn read(path: &Path) -> Result<Known, Failure> {
    if path.is_dir() {
        let names = ["report.json", "samples.csv"].map(|name| path.join(name));
        let Some(found) = names.iter().find(|name| name.exists()) else {
            return Err(Failure::not_found(format!(
                "{}: neither report.json nor samples.csv is in it; give a folder that --out made",
                path.display()
            )));
        };
        return read(found);
    }
    let shown = path.display();
    let text = fs::read_to_string(path)
        .map_err(|e| Failure::broken(format!("{shown}: {e}; give a file of samples")))?;
    let bad =
        |e: String| Failure::invalid(format!("{shown}: {e}; give what --out of a suite made"));
    if path
        .extension()
        .is_some_and(|extension| extension == "json")
    {
        return serde_json::from_str(&text).map_err(|e| bad(e.to_string()));
    }
    let samples = csv::read(&text).map_err(bad)?;
    Ok(Known {
        samples,
        ..Known::default()
    })
}

/// Runs `bench report`.
///
/// # Errors
/// If a file cannot be read, or holds no samples.
pub(super) fn report(args: &FilesArgs, json: bool) -> Result<(), Failure> {
    let mut all = Known::default();
    for path in &args.files {
        let known = read(path)?;
        all.samples.extend(known.samples);
        all.tables.extend(known.tables);
        add_new(&mut all.assumptions, known.assumptions);
        add_new(&mut all.environment, known.environment);
        all.title = all.title.or(known.title);
        all.made_by = all.made_by.or(known.made_by);
    }
    let paper = args.paper.and_then(Beside::of_lifecycle);
    if let Some(paper) = paper {
        set_published(&mut all.samples, paper)?;
    }
    if args.paper == Some(Beside::Nobackup) {
        all.title = Some(nobackup::TITLE.to_string());
        all.tables.splice(0..0, nobackup::tables());
    }
    let pairs = paper.map_or(Vec::new(), Paper::comparisons);
    let title = args.title.clone().or(all.title);
    let title = title.or_else(|| paper.map(|paper| paper.title().to_string()));
    let title = title.unwrap_or("Ashlar: report of samples".to_string());
    let mut page = make(&title, &all.samples, &args.report, pairs)?;
    if let Some(paper) = paper {
        page.beside = beside::lines(&page.rows, &paper.pairs());
    }
    page.tables = all.tables;
    page.assumptions = all.assumptions;
    page.environment = all.environment;
    if !page.environment.iter().any(|(name, _)| name == "build") {
        page.environment
            .push(("build".to_string(), unknown_build(&page.rows)));
    }
    page.command = all.made_by.unwrap_or_else(|| args.command());
    if let Some(path) = &args.html {
        put(path, &html::page(&page), "--html")?;
    }
    match args.markdown.as_deref() {
        Some(path) if path == Path::new("-") => return out(&text::page(&page)),
        Some(path) => put(path, &text::page(&page), "--markdown")?,
        None => {}
    }
    print(&page, &args.report, json, "bench report")
}

/// What is said of the build where the files do not tell it.
fn unknown_build(rows: &[Row]) -> String {
    let timed = |row: &Row| matches!(row.evidence, Evidence::Real | Evidence::Processor);
    if rows.iter().any(timed) {
        "not told by these files".to_string()
    } else {
        "does not matter: virtual time, or figures of others".to_string()
    }
}

/// Puts the paper's figures in: samples of a run with --paper have them already.
fn set_published(samples: &mut Vec<Sample>, paper: Paper) -> Result<(), Failure> {
    samples.retain(|sample| sample.evidence != Evidence::Published);
    samples.extend(csv::read(paper.published()).map_err(Failure::broken)?);
    Ok(())
}

fn put(path: &Path, text: &str, flag: &str) -> Result<(), Failure> {
    fs::write(path, text)
        .map_err(|e| Failure::broken(format!("{}: {e}; give another {flag}", path.display())))
}

impl FilesArgs {
    fn command(&self) -> String {
        let names: Vec<String> = self.files.iter().map(|p| p.display().to_string()).collect();
        format!("ashlar bench report {}", names.join(" "))
    }
}

impl Beside {
    fn of_lifecycle(self) -> Option<Paper> {
        match self {
            Beside::Supremeraid => Some(Paper::Supremeraid),
            Beside::SupremeraidSpec => Some(Paper::SupremeraidSpec),
            Beside::Xiraid => Some(Paper::Xiraid),
            Beside::Nsulate => Some(Paper::Nsulate),
            Beside::Gridraid => Some(Paper::Gridraid),
            Beside::GridraidCheck => Some(Paper::GridraidCheck),
            Beside::Nobackup => None,
        }
    }
}

/// How this program was built, as a report must say.
pub(super) fn build() -> String {
    if cfg!(debug_assertions) {
        "with debug assertions: not for figures of its own work".to_string()
    } else {
        "release, without debug assertions".to_string()
    }
}

/// Writes a report and its samples into a folder; `more` goes into its JSON.
///
/// # Errors
/// If it cannot be written.
pub(super) fn write(
    dir: &Path,
    command: &str,
    page: &Page,
    samples: &[Sample],
    more: Value,
) -> Result<(), Failure> {
    let mut json = json!({ "title": page.title, "rows": page.rows, "beside": page.beside, "comparisons": page.comparisons,
        "samples": samples, "tables": page.tables, "assumptions": page.assumptions, "environment": page.environment,
        "made_by": page.command });
    if let (Some(fields), Value::Object(more)) = (json.as_object_mut(), more) {
        fields.extend(more);
    }
    let files = [
        ("samples.csv", csv::write(samples)),
        ("report.html", html::page(page)),
        ("report.md", text::page(page)),
        ("report.json", document(command, &json)?),
    ];
    fs::create_dir_all(dir)
        .map_err(|e| Failure::broken(format!("{}: {e}; give another --out", dir.display())))?;
    for (name, text) in files {
        put(&dir.join(name), &text, "--out")?;
    }
    let drawings = html::drawings(page);
    if drawings.is_empty() {
        return Ok(());
    }
    let charts = dir.join("charts");
    fs::create_dir_all(&charts)
        .map_err(|e| Failure::broken(format!("{}: {e}; give another --out", charts.display())))?;
    for (name, svg) in drawings {
        put(&charts.join(name), &svg, "--out")?;
    }
    Ok(())
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
    let mut works = vec!["RW", "RM", "RR", "SR", "SW", "SR-JS", "SW-JS"];
    works.extend(Test::ALL.map(Test::name));
    let states = State::ALL.map(State::name);
    let place = |all: &[&str], name: &str| all.iter().position(|a| *a == name).unwrap_or(99);
    // Those of a suite that sweeps a number come in its own order.
    let swept = || {
        let suite = Suite::named(&row.suite)?;
        let own = suite.works(State::Normal, row.devices as usize);
        own.iter().position(|work| work.label() == row.workload)
    };
    let known = works.contains(&row.workload.as_str());
    let work = if known { None } else { swept() };
    (
        row.suite.clone(),
        work.map_or_else(|| place(&works, &row.workload), |place| 100 + place),
        place(&states, &row.state),
        row.target != RAW,
        format!("{} {}", figures::kind(row), row.target),
    )
}

/// What a reader may conclude, a sentence for each target and state.
fn reading(rows: &[Row]) -> Vec<String> {
    let mut heads: Vec<(String, String, &'static str)> = Vec::new();
    for row in rows
        .iter()
        .filter(|r| r.target != RAW && r.share_of_raw.is_some() && !curve::is_on_curve(r))
    {
        let head = (row.target.clone(), row.state.clone(), figures::kind(row));
        if !heads.contains(&head) {
            heads.push(head);
        }
    }
    let sentence = |(target, state, evidence): &(String, String, &'static str)| {
        let parts: Vec<String> = rows
            .iter()
            .filter(|r| r.target == *target && r.state == *state && figures::kind(r) == *evidence)
            .filter(|r| !curve::is_on_curve(r))
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
            "assumptions": page.assumptions, "tables": page.tables });
        return out(&document(command, &value)?);
    }
    print_rows(page, args.script)
}

/// Rows and comparisons, for people or scripts.
///
/// # Errors
/// If standard output cannot be written.
pub(super) fn print_rows(page: &Page, script: bool) -> Result<(), Failure> {
    let mut titles = vec![
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
    ];
    let mut right = vec![5, 6, 7, 8, 9, 10];
    let processor = figures::has_processor(&page.rows);
    if processor {
        titles.extend(["PROCESSOR", "WORK PER %"]);
        right.extend([11, 12]);
    }
    titles.extend(["LIMIT", "VALID"]);
    let line = |row: &Row| {
        let per_device = row.per_device.map(|v| figures::rate(v, row.unit));
        let mut cells = vec![
            row.suite.clone(),
            row.state.clone(),
            row.workload.clone(),
            row.target.clone(),
            figures::kind(row).to_string(),
            figures::value(row),
            figures::percent(row.share_of_raw),
            per_device.unwrap_or("-".to_string()),
            figures::time(row.p99_us),
            figures::percent(row.variation_within),
            figures::percent(row.variation_between),
        ];
        if processor {
            let [busy, work, _] = figures::processor(row);
            cells.extend([busy, work]);
        }
        let limit = if row.limit.is_empty() {
            "-".to_string()
        } else {
            row.limit.clone()
        };
        cells.extend([limit, figures::verdict(row)]);
        cells
    };
    let lines = page.rows.iter().map(line).collect();
    out(&table::table(&titles, lines, &right, script))?;
    for comparison in &page.comparisons {
        out(&format!("\n{}", text::comparison(comparison)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn pages_in_docs_have_the_tables_of_their_data() {
        let modelled = [
            (
                Paper::Xiraid,
                include_str!("../../../docs/papers/data/xiraid-modelled.csv"),
                include_str!("../../../docs/papers/xiraid.md"),
            ),
            (
                Paper::Supremeraid,
                include_str!("../../../docs/papers/data/supremeraid-modelled.csv"),
                include_str!("../../../docs/papers/supremeraid.md"),
            ),
            (
                Paper::Nsulate,
                include_str!("../../../docs/papers/data/nsulate-modelled.csv"),
                include_str!("../../../docs/papers/nsulate.md"),
            ),
            (
                Paper::Gridraid,
                include_str!("../../../docs/papers/data/gridraid-modelled.csv"),
                include_str!("../../../docs/papers/gridraid.md"),
            ),
            (
                Paper::GridraidCheck,
                include_str!("../../../docs/papers/data/gridraid-check-modelled.csv"),
                include_str!("../../../docs/papers/gridraid-check.md"),
            ),
            (
                Paper::SupremeraidSpec,
                include_str!("../../../docs/papers/data/supremeraid-spec-modelled.csv"),
                include_str!("../../../docs/papers/supremeraid-spec.md"),
            ),
        ];
        for (paper, data, page) in modelled {
            let mut samples = csv::read(data).unwrap();
            set_published(&mut samples, paper).unwrap();
            let mut rows = rows(&samples, Gates::default());
            rows.sort_by_key(order);
            let table = text::rows(&rows);
            assert!(table.lines().count() >= 20);
            assert!(
                page.contains(&table),
                "{}: its rows are not those of its data",
                paper.title()
            );
        }
    }

    #[test]
    fn a_report_says_of_which_build_it_is_or_that_it_is_not_told() {
        let sample = |evidence| Sample {
            evidence,
            ..Sample::default()
        };
        let of = |evidence| unknown_build(&rows(&[sample(evidence)], Gates::default()));
        assert!(of(Evidence::Real).contains("not told"));
        assert!(of(Evidence::Modelled).contains("does not matter"));
        assert!(build().contains("debug assertions"));
    }

    #[test]
    fn a_folder_is_read_whole_and_an_empty_one_is_refused() {
        let dir = std::env::temp_dir().join(format!("ashlar-report-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        assert!(
            read(&dir)
                .unwrap_err()
                .text
                .contains("neither report.json nor samples.csv")
        );
        let sample = Sample {
            target: "files".to_string(),
            bytes_per_second: Some(1e6),
            ..Sample::default()
        };
        fs::write(
            dir.join("samples.csv"),
            csv::write(std::slice::from_ref(&sample)),
        )
        .unwrap();
        assert_eq!(read(&dir).unwrap().samples, std::slice::from_ref(&sample));
        let page = Page {
            title: "t".to_string(),
            tables: vec![Table::default()],
            command: "ashlar bench files x".to_string(),
            environment: vec![("build".to_string(), build())],
            ..Page::default()
        };
        write(
            &dir,
            "bench files",
            &page,
            std::slice::from_ref(&sample),
            json!({ "more": 1 }),
        )
        .unwrap();
        let known = read(&dir).unwrap();
        assert_eq!(known.samples, [sample]);
        assert_eq!(known.tables, page.tables);
        assert_eq!(
            (known.title.as_deref(), known.made_by),
            (Some("t"), Some(page.command))
        );
        assert_eq!(known.environment, page.environment);
        let text = fs::read_to_string(dir.join("report.json")).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&value["command"], &value["more"]),
            (&json!("bench files"), &json!(1))
        );
        fs::write(dir.join("report.json"), "{").unwrap();
        assert!(read(&dir).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }
}
