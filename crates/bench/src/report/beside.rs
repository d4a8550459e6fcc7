//! What others published, beside what was modelled here.
//!
//! **Invariants**: the two stand beside each other in one unit and are never made one number: shares are of the raw devices of
//! the same evidence; an invalid row says so.

use serde::Serialize;

use super::figures;
use super::rows::{Evidence, Row};

/// One workload in one state, ours and theirs, as texts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// Suite, state, workload.
    pub what: [String; 3],
    /// Our target, its figure, its share of raw.
    pub ours: [String; 3],
    /// Their target, its figure, its share of raw.
    pub theirs: [String; 3],
    /// The busiest resource of ours.
    pub limit: String,
    /// Whether ours may be used: `yes`, `INVALID` or a note.
    pub valid: String,
}

/// The titles of the columns.
pub const TITLES: [&str; 11] = [
    "suite",
    "state",
    "workload",
    "modelled here",
    "figure",
    "of raw",
    "published",
    "figure",
    "of raw",
    "limit here",
    "valid",
];

impl Line {
    /// Its cells, as in [`TITLES`].
    pub fn cells(&self) -> Vec<&str> {
        let groups = [&self.what, &self.ours, &self.theirs];
        let cells = groups.into_iter().flatten().map(String::as_str);
        cells
            .chain([self.limit.as_str(), self.valid.as_str()])
            .collect()
    }
}

/// Each published row of the second of a pair, beside the modelled row of the first.
pub fn lines(rows: &[Row], pairs: &[[String; 2]]) -> Vec<Line> {
    let mut lines = Vec::new();
    for row in rows.iter().filter(|r| r.evidence == Evidence::Modelled) {
        for [_, theirs] in pairs.iter().filter(|[ours, _]| *ours == row.target) {
            let same = |r: &&Row| {
                r.evidence == Evidence::Published
                    && r.target == *theirs
                    && (&r.suite, &r.state, &r.workload) == (&row.suite, &row.state, &row.workload)
            };
            lines.extend(rows.iter().find(same).map(|other| line(row, other)));
        }
    }
    lines
}

fn line(ours: &Row, theirs: &Row) -> Line {
    // In operations only where both are.
    let operations = ours.unit == "iops" && theirs.unit == "iops";
    let figure = |row: &Row| {
        let bytes = if operations {
            row.value
        } else {
            row.bytes_per_second
        };
        let unit = if operations { "iops" } else { "B/s" };
        bytes.map_or("-".to_string(), |v| figures::rate(v, unit))
    };
    let side = |row: &Row| {
        [
            row.target.clone(),
            figure(row),
            figures::percent(row.share_of_raw),
        ]
    };
    Line {
        what: [
            ours.suite.clone(),
            ours.state.clone(),
            ours.workload.clone(),
        ],
        ours: side(ours),
        theirs: side(theirs),
        limit: ours.limit.clone(),
        valid: if ours.invalid.is_empty() {
            "yes".to_string()
        } else {
            "INVALID".to_string()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Gates, Sample, rows};
    use super::*;

    fn sample(target: &str, evidence: Evidence, iops: Option<f64>, bytes: f64) -> Sample {
        Sample {
            suite: "ssr".to_string(),
            workload: "RW".to_string(),
            target: target.to_string(),
            devices: 8,
            evidence,
            operations_per_second: iops,
            bytes_per_second: Some(bytes),
            ..Sample::default()
        }
    }

    #[test]
    fn ours_and_theirs_stand_in_one_unit_with_shares_of_their_own_raw() {
        let samples = [
            sample("raw", Evidence::Modelled, Some(1e6), 4.096e9),
            sample("ec7+1", Evidence::Modelled, Some(5e5), 2.048e9),
            sample("7+1", Evidence::Published, None, 3.13e9),
        ];
        let pairs = [["ec7+1", "7+1"].map(str::to_string)];
        let lines = lines(&rows(&samples, Gates::default()), &pairs);
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].ours, ["ec7+1", "2.05 GB/s", "50.0 %"]);
        assert_eq!(lines[0].theirs, ["7+1", "3.13 GB/s", "-"]);
        assert_eq!(lines[0].cells().len(), TITLES.len());
    }
}
