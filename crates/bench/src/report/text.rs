//! Rows and comparisons as Markdown, and how numbers are written for people.
//!
//! **Invariant**: a stamped row says INVALID beside its number, and why.

use std::fmt::Write as _;

use super::figures::{
    PROCESSOR, change, has_processor, kind, percent, processor, rate, time, value, verdict,
};
use super::page::{Page, Table};
use super::rows::alike;
use super::{Comparison, Evidence, Row, beside, curve};

/// The rows of a report as a Markdown table.
pub fn rows(rows: &[Row]) -> String {
    let mut titles = vec![
        "suite",
        "state",
        "workload",
        "target",
        "evidence",
        "value",
        "of raw",
        "per device",
        "mean",
        "p99",
        "variation within / between",
        "device bytes / operations per host",
    ];
    let with_processor = has_processor(rows);
    if with_processor {
        titles.extend(PROCESSOR);
    }
    titles.extend(["limit", "valid"]);
    let mut text = format!(
        "| {} |\n|{}\n",
        titles.join(" | "),
        "---|".repeat(titles.len())
    );
    let number = |value: Option<f64>| value.map_or("-".to_string(), |v| format!("{v:.2}"));
    for row in rows {
        let per_device = row.per_device.map(|v| rate(v, row.unit));
        let limit = if row.limit.is_empty() {
            "-"
        } else {
            row.limit.as_str()
        };
        let mut cells = vec![
            row.suite.clone(),
            row.state.clone(),
            row.workload.clone(),
            row.target.clone(),
            kind(row).to_string(),
            value(row),
            percent(row.share_of_raw),
            per_device.unwrap_or("-".to_string()),
            time(row.mean_us),
            time(row.p99_us),
            format!(
                "{} / {}",
                percent(row.variation_within),
                percent(row.variation_between)
            ),
            format!(
                "{} / {}",
                number(row.device_bytes_per_host_byte),
                number(row.device_operations_per_host_operation)
            ),
        ];
        if with_processor {
            cells.extend(processor(row));
        }
        cells.extend([limit.to_string(), verdict(row)]);
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    text
}

/// A comparison as Markdown.
pub fn comparison(comparison: &Comparison) -> String {
    let (base, other) = (&comparison.baseline, &comparison.challenger);
    let mut text = format!(
        "{other} against {base}, per device; + is {other} ahead.\n\n| suite | state | workload | {base} | {other} | change | differs at 95 % |\n|---|---|---|---|---|---|---|\n"
    );
    for pair in &comparison.pairs {
        let significant = match (pair.invalid, pair.significant) {
            (true, _) => "INVALID",
            (_, Some(true)) => "yes",
            (_, Some(false)) => "no",
            (_, None) => "-",
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {significant} |",
            pair.suite,
            pair.state,
            pair.workload,
            rate(pair.baseline, pair.unit),
            rate(pair.challenger, pair.unit),
            change(Some(pair.change)),
        );
    }
    let _ = writeln!(
        text,
        "\n| suite | state | {other} is faster by | {base} uses more processor by | {other} saves |\n|---|---|---|---|---|"
    );
    for (suite, state, figure) in comparison.figures("all, weighted") {
        let _ = writeln!(
            text,
            "| {suite} | {state} | {} | {} | {} |",
            change(figure.faster),
            change(figure.baseline_uses_more),
            change(figure.challenger_saves),
        );
    }
    text
}

/// What each kind of evidence among the rows means.
pub fn kinds(rows: &[Row]) -> Vec<&'static str> {
    let kinds = [
        (
            Evidence::Modelled,
            "modelled: drives, ports and links with the service times of named devices, in virtual time. Exact and repeatable; not a measurement of hardware.",
        ),
        (
            Evidence::Processor,
            "processor: time that the processors of this machine worked.",
        ),
        (Evidence::Real, "real: files and devices of this machine."),
        (
            Evidence::Published,
            "published: figures that others printed; not run here.",
        ),
    ];
    let here = |kind: &Evidence| rows.iter().any(|row| row.evidence == *kind);
    let found = kinds.into_iter().filter(|(kind, _)| here(kind));
    found.map(|(_, says)| says).collect()
}

/// Warnings of rows, each once, with the rows that have it.
pub fn warnings(rows: &[Row]) -> Vec<String> {
    with_rows(rows, |row| &row.warnings)
}

/// Reasons why rows are INVALID, each once, with the rows that have it.
pub fn reasons(rows: &[Row]) -> Vec<String> {
    with_rows(rows, |row| &row.invalid)
}

/// Remarks that differ in figures only are one, told with the figures of the first.
fn with_rows(rows: &[Row], of: impl Fn(&Row) -> &[String]) -> Vec<String> {
    let mut found: Vec<(&str, Vec<String>)> = Vec::new();
    for row in rows {
        for remark in of(row) {
            let name = format!("{} {} {}", row.target, row.state, row.workload);
            match found.iter_mut().find(|(told, _)| alike(told, remark)) {
                Some((_, names)) => names.push(name),
                None => found.push((remark, vec![name])),
            }
        }
    }
    let line = |(remark, names): (&str, Vec<String>)| {
        let of = match names.len() {
            all if all == rows.len() && all > 1 => "all rows, figures of the first".to_string(),
            1..=4 => names.join(", "),
            many => format!("{}, and {} more rows", names[..3].join(", "), many - 3),
        };
        format!("{remark} ({of})")
    };
    found.into_iter().map(line).collect()
}

fn table(table: &Table, text: &mut String) {
    let _ = writeln!(text, "## {}\n\n{}\n", table.title, table.note);
    let _ = writeln!(text, "| {} |", table.titles.join(" | "));
    let _ = writeln!(text, "|{}", "---|".repeat(table.titles.len()));
    for line in &table.lines {
        let cells: Vec<String> = line.iter().map(|cell| cell.replace('|', "/")).collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    text.push('\n');
}

/// A report as Markdown.
pub fn page(page: &Page) -> String {
    let mut text = format!("# {}\n\n", page.title);
    let invalid = page.invalid();
    if invalid > 0 {
        let _ = writeln!(
            text,
            "**{invalid} of {} rows are INVALID: do not use their numbers.** The table says why.\n",
            page.rows.len()
        );
    }
    let list = |text: &mut String, items: &[String]| {
        if items.is_empty() {
            return;
        }
        for item in items {
            let _ = writeln!(text, "* {item}");
        }
        text.push('\n');
    };
    let kinds = kinds(&page.rows);
    list(&mut text, &page.reading);
    for says in &kinds {
        let _ = writeln!(text, "Evidence, {says}");
    }
    if !kinds.is_empty() {
        text.push('\n');
    }
    for one in &page.tables {
        table(one, &mut text);
    }
    if !page.beside.is_empty() {
        text.push_str("## The paper's figures beside ours\n\nOurs are modelled, theirs were measured by others: shares are of the raw devices of the same side.\n\n");
        let _ = writeln!(text, "| {} |", beside::TITLES.join(" | "));
        let _ = writeln!(text, "|{}", "---|".repeat(beside::TITLES.len()));
        for line in &page.beside {
            let _ = writeln!(text, "| {} |", line.cells().join(" | "));
        }
        text.push('\n');
    }
    let curves = curve::curves(&page.rows);
    if !curves.is_empty() {
        text.push_str("## Curves\n\n");
    }
    for one in &curves {
        text.push_str(&curve::table(one));
        text.push('\n');
    }
    if !page.rows.is_empty() {
        text.push_str("## Rows\n\n");
        text.push_str(&rows(&page.rows));
    }
    for one in &page.comparisons {
        let _ = write!(
            text,
            "\n## {} against {}\n\n{}",
            one.challenger,
            one.baseline,
            comparison(one)
        );
    }
    let mut part = |title: &str, items: &[String]| {
        if !items.is_empty() {
            let _ = writeln!(text, "\n## {title}\n");
            list(&mut text, items);
        }
    };
    part("Keep in mind", &warnings(&page.rows));
    part("Assumed", &page.assumptions);
    text.push_str("## How to repeat it\n\n");
    let environment: Vec<String> = page
        .environment
        .iter()
        .map(|(n, v)| format!("{n}: {v}"))
        .collect();
    list(&mut text, &environment);
    let _ = writeln!(text, "    {}", page.command);
    text
}

#[cfg(test)]
mod tests {
    use super::super::{Gates, Sample};
    use super::*;

    #[test]
    fn a_page_has_its_tables_and_what_to_keep_in_mind() {
        let sample = |workload: &str| Sample {
            workload: workload.to_string(),
            target: "files".to_string(),
            bytes_per_second: Some(1e6),
            warnings: vec!["caches taken to be 1 byte".to_string()],
            ..Sample::default()
        };
        let mut shown = Page {
            tables: vec![Table {
                title: "Caches".to_string(),
                note: "Evidence: real.".to_string(),
                titles: vec!["layer".to_string(), "size".to_string()],
                lines: vec![vec!["page|cache".to_string(), "1 GiB".to_string()]],
            }],
            rows: super::super::rows(&[sample("read"), sample("write")], Gates::default()),
            ..Page::default()
        };
        let text = page(&shown);
        assert!(text.contains("## Caches\n\nEvidence: real.\n\n| layer | size |\n|---|---|\n| page/cache | 1 GiB |"), "{text}");
        assert!(
            text.contains("* caches taken to be 1 byte (all rows, figures of the first)"),
            "{text}"
        );
        shown.rows.clear();
        let text = page(&shown);
        assert!(
            !text.contains("## Rows") && !text.contains("Keep in mind"),
            "{text}"
        );
    }

    #[test]
    fn numbers_suit_people() {
        assert_eq!(rate(15.3e6, "iops"), "15.30 M/s");
        assert_eq!(rate(11.8e9, "B/s"), "11.80 GB/s");
        assert_eq!(rate(50e6, "B/s"), "50.0 MB/s");
        assert_eq!(rate(78.0, "iops"), "78 /s");
        assert_eq!(
            (percent(Some(0.515)), percent(None)),
            ("51.5 %".to_string(), "-".to_string())
        );
        assert_eq!(time(Some(34_700.0)), "34.7 ms");
    }
}
