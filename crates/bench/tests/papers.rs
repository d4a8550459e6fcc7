//! The report, fed with the raw tables of two white papers, gives the papers' own conclusions.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;

use ashlar_bench::report::compare::{Figure, Weights, compare};
use ashlar_bench::report::{Gates, Row, csv, rows};

fn read(name: &str) -> Vec<Row> {
    let path = format!(
        "{}/../../docs/papers/data/{name}.csv",
        env!("CARGO_MANIFEST_DIR")
    );
    let text = std::fs::read_to_string(path).unwrap();
    rows(&csv::read(&text).unwrap(), Gates::default())
}

#[track_caller]
fn close(value: f64, paper: f64, within: f64) {
    assert!(
        (value - paper).abs() <= within,
        "{value} where the paper prints {paper}"
    );
}

/// Percentages of the summary: the paper computed them from figures with more digits than it prints.
#[track_caller]
fn percent(value: Option<f64>, paper: f64) {
    close(value.unwrap() * 100.0, paper, 0.1);
}

#[test]
fn xiraid_normalised_columns_follow_from_its_raw_ones() {
    let rows = read("xiraid");
    // workload, state, bandwidth per device of 7+1 and 8+1, processor percent per GB/s of both.
    let printed = [
        ("RW", "normal", 0.39, 0.38, 11.84, 15.55),
        ("RM", "normal", 0.86, 0.81, 7.37, 7.85),
        ("RR", "normal", 1.43, 1.27, 4.87, 4.59),
        ("RW", "down", 0.30, 0.30, 20.50, 20.15),
        ("RM", "down", 0.58, 0.53, 11.69, 11.53),
        ("RR", "down", 0.82, 0.71, 7.93, 7.88),
        ("RW", "rebuild", 0.25, 0.22, 23.48, 23.01),
        ("RM", "rebuild", 0.45, 0.40, 13.25, 12.66),
        ("RR", "rebuild", 0.67, 0.57, 7.86, 7.89),
        ("SR", "normal", 1.48, 1.31, 0.93, 0.81),
        ("SW", "normal", 1.00, 1.18, 2.71, 1.49),
        ("SR", "down", 1.13, 1.31, 1.28, 1.12),
        ("SW", "down", 0.93, 1.23, 2.89, 1.42),
        ("SR", "rebuild", 1.14, 0.88, 1.04, 1.09),
        ("SW", "rebuild", 0.89, 0.99, 2.68, 1.62),
    ];
    assert_eq!(rows.len(), 2 * printed.len());
    for (workload, state, bw7, bw8, cpu7, cpu8) in printed {
        for (target, bandwidth, cpu) in [("7+1", bw7, cpu7), ("8+1", bw8, cpu8)] {
            let row = rows
                .iter()
                .find(|r| r.workload == workload && r.state == state && r.target == target)
                .unwrap();
            close(row.per_device.unwrap() / 1e9, bandwidth, 0.0051);
            // Raw bandwidths of two decimals carry at most 0.25 % into the quotient.
            close(row.cpu_per_gb.unwrap(), cpu, 0.006 + cpu * 0.003);
        }
    }
}

#[test]
fn xiraid_summary_follows_from_its_raw_table() {
    let rows = read("xiraid");
    let compared = compare(&rows, "7+1", "8+1", &Weights::default()).unwrap();
    let states: BTreeMap<(&str, &str), &Figure> = compared
        .states
        .iter()
        .map(|(suite, state, figure)| ((suite.as_str(), state.as_str()), figure))
        .collect();
    let printed = [
        ("ssr", "normal", -6.31, -7.92),
        ("ssr", "down", -7.45, 1.25),
        ("ssr", "rebuild", -11.73, 2.12),
        ("sss", "normal", 3.08, 48.09),
        ("sss", "down", 24.06, 59.14),
        ("sss", "rebuild", -6.17, 30.45),
    ];
    for (suite, state, bandwidth, cpu) in printed {
        percent(states[&(suite, state)].faster, bandwidth);
        percent(states[&(suite, state)].baseline_uses_more, cpu);
    }
    let suites: BTreeMap<&str, &Figure> = compared
        .suites
        .iter()
        .map(|(suite, figure)| (suite.as_str(), figure))
        .collect();
    percent(suites["ssr"].faster, -8.49);
    percent(suites["ssr"].baseline_uses_more, -1.52);
    percent(suites["sss"].faster, 6.99);
    percent(suites["sss"].baseline_uses_more, 45.89);
    // The paper calls the last one 8+1's advantage. 7+1 uses 46 % more; 8+1 saves 26 %.
    assert!((suites["sss"].challenger_saves.unwrap() - 0.26).abs() < 0.005);
}

#[test]
fn weights_move_the_summary_of_a_suite_and_not_that_of_a_state() {
    let rows = read("xiraid");
    let equal = compare(&rows, "7+1", "8+1", &Weights::default()).unwrap();
    let weights = Weights::parse("normal=1,down=0,rebuild=0").unwrap();
    let normal_only = compare(&rows, "7+1", "8+1", &weights).unwrap();
    assert_eq!(equal.states, normal_only.states);
    let sss = normal_only.suites.iter().find(|(s, _)| s == "sss").unwrap();
    percent(sss.1.faster, 3.08);
    assert!(
        compare(&rows, "7+1", "9+1", &weights)
            .unwrap_err()
            .contains("7+1, 8+1")
    );
}

#[test]
fn supremeraid_shares_follow_from_its_figures() {
    let rows = read("supremeraid");
    let share = |state: &str, workload: &str, target: &str| {
        let row = rows
            .iter()
            .find(|r| r.state == state && r.workload == workload && r.target == target);
        (row.unwrap().share_of_raw.unwrap() * 100.0).round()
    };
    let normal = ["RR", "RM", "RW", "SR", "SW"].map(|w| share("normal", w, "SupremeRAID"));
    assert_eq!(normal, [100.0, 51.0, 42.0, 86.0, 77.0]);
    let down = ["RR", "RM", "RW"].map(|w| share("down", w, "SupremeRAID"));
    assert_eq!(down, [56.0, 38.0, 38.0]);
    let software = ["RR", "RM", "RW", "SW"].map(|w| share("normal", w, "software"));
    assert_eq!(software, [80.0, 49.0, 35.0, 51.0]);
}
