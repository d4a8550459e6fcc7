//! A report as one HTML page that needs nothing else: charts, tables, who is ahead in each row, what
//! was assumed, how to repeat it.
//!
//! **Invariants**: no script, no font, no address of another host; every text is escaped; readable at
//! 390 pixels, in the dark and on paper; an invalid row is marked wherever it stands.

use std::fmt::Write as _;

use super::bars::{bars, colour};
use super::figures::escape;
use super::page::Page;
use super::{Comparison, RAW, Row, beside, curve, figures, text};

const LIGHT: &str = ":root{--bg:#fff;--fg:#1a1f26;--soft:#5a6572;--line:#d5dae0;--head:#f3f5f7;--bad:#b3261e;--good:#dff0e4;\
--c0:#8a949e;--c1:#2463a6;--c2:#b3560b;--c3:#2f7d4f;--c4:#7b4fa3;--c5:#a03060;--c6:#00796b;--c7:#6b5b00}";
const STYLE: &str = "
@media screen and (prefers-color-scheme:dark){:root{--bg:#14181d;--fg:#e4e8ed;--soft:#9aa5b1;--line:#333b44;--head:#1d232a;
--bad:#ff8a80;--good:#17382a;--c0:#8a949e;--c1:#6aa5e6;--c2:#eba05f;--c3:#74c295;--c4:#b796dd;--c5:#e588ad;--c6:#5cc9bb;--c7:#d6c34a}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1440px;padding:1rem;background:var(--bg);color:var(--fg);
font:16px/1.5 system-ui,sans-serif}h1{font-size:1.6rem;margin:.5rem 0}h2{font-size:1.2rem;margin:2rem 0 .5rem}
h3{font-size:1rem;margin:1rem 0 .25rem}p,ul{margin:.4rem 0;max-width:75rem}code{overflow-wrap:anywhere}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,330px),1fr));gap:1rem}
figure{margin:0;border:1px solid var(--line);border-radius:6px;padding:.6rem}figcaption{font-weight:600;margin-bottom:.2rem}
svg{width:100%;max-width:560px;height:auto;display:block}svg text{fill:var(--fg);font:13px system-ui,sans-serif}svg .n{fill:var(--soft)}
svg .bad{fill:var(--bad)}.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.78rem;width:100%}
th,td{text-align:left;padding:.3rem .35rem;white-space:nowrap;border-bottom:1px solid var(--line);vertical-align:top}th{background:var(--head);vertical-align:bottom}
.rows th{white-space:normal}
td.r{text-align:right}.made td{white-space:normal}td.lead{background:var(--good);font-weight:600}.bad{color:var(--bad)}.soft{color:var(--soft)}
.name{white-space:nowrap}
.key{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin:0 .3em 0 .8em}
@media(max-width:600px){table{font-size:.75rem}th,td{padding:.25rem .3rem}}
@media print{@page{size:A4 landscape;margin:12mm}body{max-width:none;padding:0;font-size:11px}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}.wide{overflow:visible}
h2,h3,h2+p,p.soft,figcaption{break-after:avoid}figure,tr,li{break-inside:avoid}
.charts{grid-template-columns:repeat(3,1fr);gap:.5rem}table{font-size:8px}th,td{padding:.15rem .2rem}.made td{white-space:normal}}
";

/// A workload's name in full.
fn full_name(suite: &str, workload: &str) -> String {
    // Records, not files, where no file system is modelled.
    let known = match workload {
        "RR" => "Random read, 4 KiB",
        "RM" => "Random mixed, 4 KiB, 70 % reads",
        "RW" => "Random write, 4 KiB",
        "SR" => "Sequential read, 128 KiB",
        "SW" => "Sequential write, 128 KiB",
        "SR-512K" => "Sequential read, 512 KiB",
        "SW-512K" => "Sequential write, 512 KiB",
        "SR-JS" => "Sequential read, split by job",
        "SW-JS" => "Sequential write, split by job",
        "write" if suite == "iozone" => "Write",
        "rewrite" => "Rewrite",
        "read" => "Read in order",
        "reread" => "Read in order, again",
        "random-read" => "Random read, by record",
        "random-write" => "Random write, by record",
        other => return capital(other),
    };
    known.to_string()
}

fn distinct<'a>(all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut found = Vec::new();
    for one in all {
        if !found.contains(&one) {
            found.push(one);
        }
    }
    found
}

/// A chart of a suite: what it shows, and its drawing.
struct Chart<'a> {
    suite: &'a str,
    title: String,
    svg: String,
}

/// All charts of a page, suite by suite: bars for each workload, a curve where workloads differ in a number only.
fn drawn(page: &Page) -> Vec<Chart<'_>> {
    let targets = distinct(page.rows.iter().map(|row| row.target.as_str()));
    let curves = curve::curves(&page.rows);
    let mut charts = Vec::new();
    for suite in distinct(page.rows.iter().map(|row| row.suite.as_str())) {
        for curve in curves.iter().filter(|curve| curve.suite == suite) {
            charts.push(Chart {
                suite,
                title: capital(&curve.name),
                svg: curve::drawing(curve, &|target| colour(&targets, target)),
            });
        }
        let of_suite = || {
            let rows = page.rows.iter();
            rows.filter(move |row| row.suite == suite && !curve::is_on_curve(row))
        };
        for workload in distinct(of_suite().map(|row| row.workload.as_str())) {
            let rows: Vec<&Row> = of_suite().filter(|row| row.workload == workload).collect();
            charts.push(Chart {
                suite,
                title: full_name(suite, workload),
                svg: bars(&rows, &targets),
            });
        }
    }
    charts
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

fn charts(page: &Page, out: &mut String) {
    let targets = distinct(page.rows.iter().map(|row| row.target.as_str()));
    let charts = drawn(page);
    for suite in distinct(page.rows.iter().map(|row| row.suite.as_str())) {
        let _ = write!(out, "<h2>{}</h2><p>", escape(suite_name(suite)));
        let of_suite = page.rows.iter().filter(|row| row.suite == suite);
        for target in distinct(of_suite.map(|row| row.target.as_str())) {
            let _ = write!(
                out,
                "<span class=\"name\"><span class=\"key\" style=\"background:var(--c{})\"></span>{}</span> ",
                colour(&targets, target),
                escape(target)
            );
        }
        out.push_str("</p>");
        let curved = page
            .rows
            .iter()
            .any(|row| row.suite == suite && curve::is_on_curve(row));
        if curved {
            out.push_str(
                "<p class=\"soft\">Dashed: computed or published. A hollow point is INVALID.</p>",
            );
        }
        out.push_str("<div class=\"charts\">");
        for chart in charts.iter().filter(|chart| chart.suite == suite) {
            let _ = write!(
                out,
                "<figure><figcaption>{}</figcaption>{}</figure>",
                escape(&chart.title),
                chart.svg
            );
        }
        out.push_str("</div>");
    }
}

/// Each chart of a page as an SVG file of its own: a name without folders, and the file.
pub fn drawings(page: &Page) -> Vec<(String, String)> {
    let name = |chart: &Chart<'_>| {
        let text = format!("{} {}", chart.suite, chart.title).to_lowercase();
        let words = text.split(|c: char| !c.is_ascii_alphanumeric());
        let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        format!("{}.svg", words.join("-"))
    };
    drawn(page)
        .iter()
        .map(|chart| (name(chart), file(&chart.title, &chart.svg)))
        .collect()
}

/// A drawing as a file of its own, with the colours of the page on white.
pub(super) fn file(title: &str, svg: &str) -> String {
    let style = format!(
        "<style>{LIGHT}text{{fill:var(--fg);font:13px sans-serif}}.n{{fill:var(--soft)}}.bad{{fill:var(--bad)}}</style>"
    );
    let named = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=";
    let svg = svg.replacen("<svg viewBox=", named, 1);
    let begin = svg.find('>').map_or(0, |end| end + 1);
    let (head, body) = svg.split_at(begin);
    format!("{head}<title>{}</title>{style}{body}\n", escape(title))
}

fn suite_name(suite: &str) -> &str {
    match suite {
        "ssr" => "Spec Sheet Random (SSR)",
        "sss" => "Spec Sheet Sequential (SSS)",
        "spec" => "Data sheet: 4 KiB on 12 drives, 512 KiB on 20",
        "iozone" => "IOzone, throughput mode",
        "raid-check" => "A check of the array beside clients",
        "zones" => "Zones: each part of the array",
        "streams" => "Streams of large transfers",
        "runs" => "Runs on a device, large transfers by 16 streams",
        "metadata" => "Metadata (mdtest)",
        other => other,
    }
}

/// Whether no valid row of the same suite, state and workload beats this one; raw devices do not play.
fn leads(row: &Row, rows: &[Row]) -> bool {
    let plays = |r: &&Row| {
        r.suite == row.suite
            && r.state == row.state
            && r.workload == row.workload
            && r.evidence == row.evidence
            && r.target != RAW
            && !figures::is_computed(r)
            && r.invalid.is_empty()
    };
    let figure = |r: &Row| r.per_device.or(r.value).unwrap_or(0.0);
    let rivals: Vec<&Row> = rows.iter().filter(plays).collect();
    plays(&row) && rivals.len() > 1 && rivals.iter().all(|rival| figure(rival) <= figure(row))
}

fn table(page: &Page, out: &mut String) {
    out.push_str(
        "<h2>Every row</h2><p class=\"soft\">Mean of the runs &plusmn; half of the 95 % interval. The marked cell is ahead per device of its kind of evidence; \
         what is computed is an upper bound that no array reaches, and plays no part. \
         Variation: within a run / between runs.</p><div class=\"wide rows\"><table><thead><tr>",
    );
    let titles = [
        "suite",
        "state",
        "workload",
        "target",
        "evidence",
        "value",
        "valid",
        "of raw",
        "per device",
        "mean",
        "p99",
        "variation",
        "device bytes",
        "device ops",
    ];
    let processor = figures::has_processor(&page.rows);
    let more = if processor {
        &figures::PROCESSOR[..]
    } else {
        &[]
    };
    for title in titles.iter().chain(more).chain(&["runs", "limit"]) {
        let _ = write!(out, "<th>{title}</th>");
    }
    out.push_str("</tr></thead><tbody>");
    let number = |value: Option<f64>| value.map_or("-".to_string(), |v| format!("{v:.2}"));
    for row in &page.rows {
        let lead = if leads(row, &page.rows) { " lead" } else { "" };
        let (class, verdict) = match (row.invalid.is_empty(), row.warnings.is_empty()) {
            (false, _) => ("bad", "INVALID"),
            (true, false) => ("", "yes, with a note"),
            (true, true) => ("", "yes"),
        };
        let per_device = row.per_device.map(|v| figures::rate(v, row.unit));
        let _ = write!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"r\">{}</td>\
             <td class=\"{class}\">{verdict}</td><td class=\"r\">{}</td><td class=\"r{lead}\">{}</td>",
            escape(&row.suite),
            escape(&row.state),
            escape(&row.workload),
            escape(&row.target),
            figures::kind(row),
            figures::value(row).replace("+-", "&plusmn; "),
            figures::percent(row.share_of_raw),
            per_device.unwrap_or("-".to_string()),
        );
        let variation = format!(
            "{} / {}",
            figures::percent(row.variation_within),
            figures::percent(row.variation_between)
        );
        let more = processor.then(|| figures::processor(row));
        let cells = [
            figures::time(row.mean_us),
            figures::time(row.p99_us),
            variation,
            number(row.device_bytes_per_host_byte),
            number(row.device_operations_per_host_operation),
        ];
        for cell in cells.into_iter().chain(more.into_iter().flatten()) {
            let _ = write!(out, "<td class=\"r\">{cell}</td>");
        }
        let _ = write!(
            out,
            "<td class=\"r\">{}</td><td>{}</td></tr>",
            row.runs,
            escape(&row.limit)
        );
    }
    out.push_str("</tbody></table></div>");
    remarks(page, out);
}

/// Why rows are INVALID: each reason once, with its rows.
fn remarks(page: &Page, out: &mut String) {
    let reasons = text::reasons(&page.rows);
    if reasons.is_empty() {
        return;
    }
    out.push_str("<h2 id=\"why\">Why rows are INVALID</h2><ul>");
    for reason in reasons {
        let _ = write!(out, "<li>INVALID: {}</li>", escape(&reason));
    }
    out.push_str("</ul>");
}

fn published(page: &Page, out: &mut String) {
    if page.beside.is_empty() {
        return;
    }
    out.push_str(
        "<h2>The paper's figures beside ours</h2><p class=\"soft\">Ours are modelled, theirs were measured by others: shares are of \
         the raw devices of the same side.</p><div class=\"wide\"><table><thead><tr>",
    );
    for title in beside::TITLES {
        let _ = write!(out, "<th>{title}</th>");
    }
    out.push_str("</tr></thead><tbody>");
    for line in &page.beside {
        out.push_str("<tr>");
        for cell in line.cells() {
            let class = if cell == "INVALID" {
                " class=\"bad\""
            } else {
                ""
            };
            let _ = write!(out, "<td{class}>{}</td>", escape(cell));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
}

fn comparisons(page: &Page, out: &mut String) {
    for comparison in &page.comparisons {
        let (base, other) = (escape(&comparison.baseline), escape(&comparison.challenger));
        let _ = write!(
            out,
            "<h2>{other} against {base}</h2><p class=\"soft\">Per device; + is {other} ahead. Means of ratios; states weighted: {}.</p>\
             <div class=\"wide\"><table><thead><tr><th>suite</th><th>state</th><th>{other} is faster by</th>\
             <th>{base} uses more processor by</th><th>{other} saves</th></tr></thead><tbody>",
            weights(comparison)
        );
        for (suite, state, figure) in comparison.figures("all") {
            let _ = write!(
                out,
                "<tr><td>{}</td><td>{}</td><td class=\"r\">{}</td><td class=\"r\">{}</td><td class=\"r\">{}</td></tr>",
                escape(suite),
                escape(state),
                figures::change(figure.faster),
                figures::change(figure.baseline_uses_more),
                figures::change(figure.challenger_saves)
            );
        }
        out.push_str("</tbody></table></div>");
    }
}

fn weights(comparison: &Comparison) -> String {
    if comparison.weights.0.is_empty() {
        return "all equal".to_string();
    }
    let each = comparison.weights.0.iter();
    let each: Vec<String> = each
        .map(|(state, weight)| format!("{state} {weight}"))
        .collect();
    escape(&each.join(", "))
}

fn tables(page: &Page, out: &mut String) {
    for table in &page.tables {
        let _ = write!(
            out,
            "<h2>{}</h2><p>{}</p><div class=\"wide made\"><table><thead><tr>",
            escape(&table.title),
            escape(&table.note)
        );
        for title in &table.titles {
            let _ = write!(out, "<th>{}</th>", escape(title));
        }
        out.push_str("</tr></thead><tbody>");
        for line in &table.lines {
            out.push_str("<tr>");
            for cell in line {
                let _ = write!(out, "<td>{}</td>", escape(cell));
            }
            out.push_str("</tr>");
        }
        out.push_str("</tbody></table></div>");
    }
}

/// What to keep in mind of valid rows too.
fn warnings(page: &Page, out: &mut String) {
    let warnings = text::warnings(&page.rows);
    if warnings.is_empty() {
        return;
    }
    out.push_str("<h2>Keep in mind</h2><ul>");
    for warning in warnings {
        let _ = write!(out, "<li>{}</li>", escape(&warning));
    }
    out.push_str("</ul>");
}

fn evidence(page: &Page, out: &mut String) {
    out.push_str("<h2>What kind of numbers these are</h2><ul>");
    for says in text::kinds(&page.rows) {
        let _ = write!(out, "<li>{says}</li>");
    }
    out.push_str("</ul>");
}

/// The page.
pub fn page(page: &Page) -> String {
    let title = escape(&page.title);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>{title}</title><style>{LIGHT}{STYLE}</style></head><body><h1>{title}</h1>"
    );
    let invalid = page.invalid();
    if invalid > 0 {
        let _ = write!(
            out,
            "<p class=\"bad\"><strong>{invalid} of {} rows are INVALID: do not use their numbers.</strong> <a class=\"bad\" href=\"#why\">Why.</a></p>",
            page.rows.len()
        );
    }
    if !page.reading.is_empty() {
        out.push_str("<ul>");
        for sentence in &page.reading {
            let _ = write!(out, "<li>{}</li>", escape(sentence));
        }
        out.push_str("</ul>");
    }
    evidence(page, &mut out);
    tables(page, &mut out);
    published(page, &mut out);
    charts(page, &mut out);
    comparisons(page, &mut out);
    table(page, &mut out);
    warnings(page, &mut out);
    if !page.assumptions.is_empty() {
        out.push_str("<h2>Assumed</h2><ul>");
        for assumption in &page.assumptions {
            let _ = write!(out, "<li>{}</li>", escape(assumption));
        }
        out.push_str("</ul>");
    }
    out.push_str("<h2>Made on, and how to repeat it</h2><div class=\"wide made\"><table><tbody>");
    for (name, value) in &page.environment {
        let _ = write!(
            out,
            "<tr><th>{}</th><td>{}</td></tr>",
            escape(name),
            escape(value)
        );
    }
    let _ = writeln!(
        out,
        "</tbody></table></div><p><code>{}</code></p></body></html>",
        escape(&page.command)
    );
    out
}

#[cfg(test)]
mod tests {
    use super::super::{Gates, rows, tests::sample};
    use super::*;

    #[test]
    fn the_page_needs_nothing_else_and_marks_what_is_invalid_and_who_leads() {
        let samples = [
            sample(RAW, 300.0, &[]),
            sample("a<b", 200.0, &[]),
            sample("c", 100.0, &[]),
            sample("fast", 900.0, &["not steady"]),
        ];
        let html = page(&Page {
            title: "T".to_string(),
            rows: rows(&samples, Gates::default()),
            command: "ashlar bench <x>".to_string(),
            ..Page::default()
        });
        assert!(html.contains("1 of 4 rows are INVALID"));
        assert!(html.contains("a&lt;b") && !html.contains("a<b"));
        assert_eq!(html.matches("class=\"r lead\"").count(), 1);
        assert!(html.contains("INVALID: not steady"));
        let bars = html.matches("width=\"400.0\"").count();
        assert_eq!(bars, 1, "the longest bar is the largest figure");
        for outside in ["http:", "https:", "<script", "@import", "url("] {
            assert!(!html.contains(outside), "{outside}");
        }
    }
}
