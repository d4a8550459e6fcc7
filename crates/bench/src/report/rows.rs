//! Samples, and the rows that they become.
//!
//! **Invariants**: a row is one case on one target; evidence of different kinds never meets in one row.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::stats;

/// The state that shares are of, and the target that is no array.
pub const NORMAL: &str = "normal";
/// The target of devices without redundancy.
pub const RAW: &str = "raw";
/// Runs of a row that a conclusion needs at least.
pub const RUNS: usize = 3;
/// How the limit of a row begins that was computed: it has one run.
pub const CLOSED_FORM: &str = "closed form";

/// The kind of evidence a number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Evidence {
    /// Modelled devices in virtual time: exact and repeatable, not a measurement of hardware.
    Modelled,
    /// Processor time on the machine named in the report.
    Processor,
    /// Files or devices of the machine named in the report.
    Real,
    /// A figure that somebody else published.
    Published,
}

impl Evidence {
    /// Its name in files and tables.
    pub fn name(self) -> &'static str {
        match self {
            Evidence::Modelled => "modelled",
            Evidence::Processor => "processor",
            Evidence::Real => "real",
            Evidence::Published => "published",
        }
    }

    /// From its name.
    pub fn named(name: &str) -> Option<Evidence> {
        let all = [
            Evidence::Modelled,
            Evidence::Processor,
            Evidence::Real,
            Evidence::Published,
        ];
        all.into_iter().find(|kind| kind.name() == name)
    }
}

/// One run of one workload in one state on one target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// `ssr`, `sss`, ...
    pub suite: String,
    /// `normal`, `down`, `rebuild`.
    pub state: String,
    /// `RR`, `SW`, ...
    pub workload: String,
    /// A layout, [`RAW`], or the name of a rival.
    pub target: String,
    /// Devices of the target, all arrays together; 0 if not known.
    pub devices: u32,
    /// Which run, from 1.
    pub run: u32,
    /// Seed of this run.
    pub seed: u64,
    /// What kind of number.
    pub evidence: Evidence,
    /// Bytes a second.
    pub bytes_per_second: Option<f64>,
    /// Operations a second; where given, this is what the row is about.
    pub operations_per_second: Option<f64>,
    /// Mean time of an operation, microseconds.
    pub mean_us: Option<f64>,
    /// 99th percentile, microseconds.
    pub p99_us: Option<f64>,
    /// Percent of the machine's processors that were busy.
    pub cpu_percent: Option<f64>,
    /// Bytes that reached the devices for each byte of the host.
    pub device_bytes_per_host_byte: Option<f64>,
    /// Device operations for each operation of the host.
    pub device_operations_per_host_operation: Option<f64>,
    /// Share of the time the devices were busy.
    pub device_busy: Option<f64>,
    /// The busiest resource: `drives`, a port or a host's link.
    pub limit: String,
    /// Rates in equal windows of the run, in the unit of the row.
    pub windows: Vec<f64>,
    /// Why it must not be used, as found when it was taken.
    pub invalid: Vec<String>,
    /// What to keep in mind, as found when it was taken.
    #[serde(default)]
    pub warnings: Vec<String>,
}

impl Default for Sample {
    fn default() -> Sample {
        Sample {
            suite: String::new(),
            state: NORMAL.to_string(),
            workload: String::new(),
            target: String::new(),
            devices: 0,
            run: 1,
            seed: 0,
            evidence: Evidence::Modelled,
            bytes_per_second: None,
            operations_per_second: None,
            mean_us: None,
            p99_us: None,
            cpu_percent: None,
            device_bytes_per_host_byte: None,
            device_operations_per_host_operation: None,
            device_busy: None,
            limit: String::new(),
            windows: Vec::new(),
            invalid: Vec::new(),
            warnings: Vec::new(),
        }
    }
}

impl Sample {
    /// What the row is about.
    pub fn rate(&self) -> Option<f64> {
        self.operations_per_second.or(self.bytes_per_second)
    }
}

/// When variation is worth a warning, and when a row must not be used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gates {
    /// Variation above this is a warning.
    pub warn: f64,
    /// Variation above this stamps the row.
    pub fail: f64,
}

impl Default for Gates {
    fn default() -> Gates {
        Gates {
            warn: 0.05,
            fail: 0.15,
        }
    }
}

/// All runs of one workload in one state on one target.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// See [`Sample::suite`].
    pub suite: String,
    /// See [`Sample::state`].
    pub state: String,
    /// See [`Sample::workload`].
    pub workload: String,
    /// See [`Sample::target`].
    pub target: String,
    /// See [`Sample::evidence`].
    pub evidence: Evidence,
    /// See [`Sample::devices`].
    pub devices: u32,
    /// Runs that have a number.
    pub runs: usize,
    /// `iops` or `B/s`.
    pub unit: &'static str,
    /// Mean of the runs.
    pub value: Option<f64>,
    /// Mean of the runs in bytes a second.
    pub bytes_per_second: Option<f64>,
    /// Half of the 95 % confidence interval of the mean.
    pub half_interval: Option<f64>,
    /// Coefficient of variation of the windows of a run, mean of the runs.
    pub variation_within: Option<f64>,
    /// Coefficient of variation of the runs.
    pub variation_between: Option<f64>,
    /// `value` / that of the devices raw, in normal state.
    pub share_of_raw: Option<f64>,
    /// `value` / devices.
    pub per_device: Option<f64>,
    /// Processors busy, percent.
    pub cpu_percent: Option<f64>,
    /// Percent of the processors for each GB/s.
    pub cpu_per_gb: Option<f64>,
    /// Work for each percent of the processors, in `unit`.
    pub work_per_cpu: Option<f64>,
    /// Mean time of an operation, microseconds.
    pub mean_us: Option<f64>,
    /// 99th percentile, the worst of the runs, microseconds.
    pub p99_us: Option<f64>,
    /// See [`Sample::device_bytes_per_host_byte`].
    pub device_bytes_per_host_byte: Option<f64>,
    /// See [`Sample::device_operations_per_host_operation`].
    pub device_operations_per_host_operation: Option<f64>,
    /// See [`Sample::device_busy`].
    pub device_busy: Option<f64>,
    /// See [`Sample::limit`].
    pub limit: String,
    /// Reasons not to use it; none: it is valid.
    pub invalid: Vec<String>,
    /// What to keep in mind.
    pub warnings: Vec<String>,
    /// The values of the runs.
    pub values: Vec<f64>,
}

type Key = (String, String, String, String, u32, Evidence);

/// Makes rows of samples, in the order in which they first appear.
pub fn rows(samples: &[Sample], gates: Gates) -> Vec<Row> {
    let mut order: Vec<Key> = Vec::new();
    let mut groups: BTreeMap<Key, Vec<&Sample>> = BTreeMap::new();
    for sample in samples {
        let key = (
            sample.suite.clone(),
            sample.state.clone(),
            sample.workload.clone(),
            sample.target.clone(),
            sample.devices,
            sample.evidence,
        );
        if !groups.contains_key(&key) {
            order.push(key.clone());
        }
        groups.entry(key).or_default().push(sample);
    }
    let mut rows: Vec<Row> = order.iter().map(|key| row(&groups[key], gates)).collect();
    let raws: BTreeMap<_, f64> = rows
        .iter()
        .filter(|row| row.target == RAW && row.state == NORMAL)
        .filter_map(|row| Some((raw_key(row), row.value?)))
        .collect();
    for row in &mut rows {
        let raw = raws.get(&raw_key(row)).filter(|raw| **raw > 0.0);
        row.share_of_raw = row.value.zip(raw).map(|(value, raw)| value / raw);
    }
    rows
}

/// Shares are of the same suite, workload, number of devices and kind of evidence.
fn raw_key(row: &Row) -> (String, String, u32, Evidence) {
    (
        row.suite.clone(),
        row.workload.clone(),
        row.devices,
        row.evidence,
    )
}

fn row(samples: &[&Sample], gates: Gates) -> Row {
    let first = samples[0];
    let of = |f: fn(&Sample) -> Option<f64>| -> Vec<f64> {
        samples.iter().filter_map(|sample| f(sample)).collect()
    };
    let values = of(Sample::rate);
    let value = stats::mean(&values);
    let bytes = stats::mean(&of(|s| s.bytes_per_second));
    let cpu_percent = stats::mean(&of(|s| s.cpu_percent));
    let within: Vec<f64> = samples
        .iter()
        .filter_map(|sample| stats::variation(&sample.windows))
        .collect();
    let ratio = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a / b);
    let devices = (first.devices > 0).then(|| f64::from(first.devices));
    let mut row = Row {
        suite: first.suite.clone(),
        state: first.state.clone(),
        workload: first.workload.clone(),
        target: first.target.clone(),
        evidence: first.evidence,
        devices: first.devices,
        runs: values.len(),
        unit: if first.operations_per_second.is_some() {
            "iops"
        } else {
            "B/s"
        },
        value,
        bytes_per_second: bytes,
        half_interval: stats::half_interval(&values),
        variation_within: stats::mean(&within),
        variation_between: stats::variation(&values),
        share_of_raw: None,
        per_device: ratio(value, devices),
        cpu_percent,
        cpu_per_gb: ratio(cpu_percent, bytes.map(|b| b / 1e9)),
        work_per_cpu: ratio(value, cpu_percent),
        mean_us: stats::mean(&of(|s| s.mean_us)),
        p99_us: of(|s| s.p99_us).into_iter().reduce(f64::max),
        device_bytes_per_host_byte: stats::mean(&of(|s| s.device_bytes_per_host_byte)),
        device_operations_per_host_operation: stats::mean(&of(|s| {
            s.device_operations_per_host_operation
        })),
        device_busy: stats::mean(&of(|s| s.device_busy)),
        limit: first.limit.clone(),
        invalid: Vec::new(),
        warnings: Vec::new(),
        values,
    };
    stamp(&mut row, samples, gates);
    row
}

/// Whether two texts differ in figures only.
pub(super) fn alike(one: &str, other: &str) -> bool {
    let words = |text: &str| {
        text.replace(|c: char| c.is_ascii_digit(), "")
            .replace('.', "")
    };
    words(one) == words(other)
}

/// Says what speaks against a row.
fn stamp(row: &mut Row, samples: &[&Sample], gates: Gates) {
    let reasons = samples.iter().flat_map(|sample| &sample.invalid);
    for reason in reasons {
        // Once, though each run has figures of its own: they are among the samples.
        if !row.invalid.iter().any(|told| alike(told, reason)) {
            row.invalid.push(reason.clone());
        }
    }
    for warning in samples.iter().flat_map(|sample| &sample.warnings) {
        if !row.warnings.iter().any(|told| alike(told, warning)) {
            row.warnings.push(warning.clone());
        }
    }
    if row.value.is_none() && row.invalid.is_empty() {
        row.invalid.push("no run gave a number".to_string());
    }
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let kinds = [
        ("between runs", row.variation_between),
        ("within a run", row.variation_within),
    ];
    for (kind, variation) in kinds {
        let Some(variation) = variation else {
            continue;
        };
        if variation > gates.fail {
            let limit = percent(gates.fail);
            row.invalid.push(format!(
                "variation {kind} is {}, above {limit}",
                percent(variation)
            ));
        } else if variation > gates.warn {
            row.warnings
                .push(format!("variation {kind} is {}", percent(variation)));
        }
    }
    let computed = row.limit.starts_with(CLOSED_FORM);
    if row.evidence != Evidence::Published && !computed && row.runs < RUNS {
        row.warnings
            .push(format!("{} of {RUNS} runs: no conclusion", row.runs));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn sample(target: &str, run: u32, rate: f64, windows: &[f64]) -> Sample {
        Sample {
            suite: "ssr".to_string(),
            workload: "RW".to_string(),
            target: target.to_string(),
            devices: 8,
            run,
            operations_per_second: Some(rate),
            windows: windows.to_vec(),
            ..Sample::default()
        }
    }

    #[test]
    fn rows_have_means_shares_and_both_variations() {
        let steady = [100.0, 101.0, 99.0];
        let samples = [
            sample(RAW, 1, 200.0, &steady),
            sample("ec7+1", 1, 98.0, &steady),
            sample("ec7+1", 2, 102.0, &steady),
            sample("ec7+1", 3, 100.0, &steady),
        ];
        let rows = rows(&samples, Gates::default());
        assert_eq!(rows.len(), 2);
        let row = &rows[1];
        assert_eq!((row.value, row.share_of_raw), (Some(100.0), Some(0.5)));
        assert_eq!(row.per_device, Some(12.5));
        assert!((row.variation_between.unwrap() - 0.02).abs() < 1e-9);
        assert!((row.variation_within.unwrap() - 0.01).abs() < 1e-9);
        assert!(row.half_interval.unwrap() > 4.9 && row.half_interval.unwrap() < 5.0);
        assert!(row.invalid.is_empty() && row.warnings.is_empty());
        assert_eq!(rows[0].warnings, ["1 of 3 runs: no conclusion"]);
    }

    #[test]
    fn what_varies_too_much_is_stamped_and_keeps_its_number() {
        let samples = [
            sample("a", 1, 100.0, &[100.0, 100.0]),
            sample("a", 2, 140.0, &[108.0, 92.0]),
            sample("a", 3, 100.0, &[100.0, 100.0]),
        ];
        let rows = rows(&samples, Gates::default());
        assert_eq!(
            rows[0].invalid,
            ["variation between runs is 20.4 %, above 15.0 %"]
        );
        assert!(rows[0].value.is_some());
        let lenient = Gates {
            warn: 0.01,
            fail: 0.5,
        };
        let row = &super::rows(&samples, lenient)[0];
        assert!(row.invalid.is_empty());
        assert_eq!(row.warnings.len(), 2);
    }

    #[test]
    fn a_sample_that_is_invalid_stamps_its_row_once() {
        let bad = |run| Sample {
            invalid: vec![format!("not steady: a range of {run}.5 %")],
            ..sample("a", run, 100.0, &[])
        };
        let row = &rows(&[bad(1), bad(20)], Gates::default())[0];
        assert_eq!(row.invalid, ["not steady: a range of 1.5 %"]);
        let none = Sample {
            operations_per_second: None,
            ..sample("a", 1, 0.0, &[])
        };
        assert_eq!(
            rows(&[none], Gates::default())[0].invalid,
            ["no run gave a number"]
        );
    }

    #[test]
    fn kinds_of_evidence_are_never_mixed() {
        let published = Sample {
            evidence: Evidence::Published,
            ..sample(RAW, 1, 1000.0, &[])
        };
        let rows = rows(&[published, sample("a", 1, 100.0, &[])], Gates::default());
        assert_eq!(rows[1].share_of_raw, None);
    }
}
