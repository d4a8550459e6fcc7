//! Samples as comma-separated values: every sample of a run, and tables that others published.
//!
//! **Invariants**: columns go by name, in any order; an absent column or an empty field is a value that
//! was not observed; what was written is read back the same. Text fields hold no comma, quote or line
//! end: such are replaced when written. Lines that begin with `#` are remarks.

use super::{Evidence, Sample};

const COLUMNS: [&str; 20] = [
    "suite",
    "state",
    "workload",
    "target",
    "devices",
    "run",
    "seed",
    "evidence",
    "bytes_per_second",
    "operations_per_second",
    "mean_us",
    "p99_us",
    "cpu_percent",
    "device_bytes_per_host_byte",
    "device_operations_per_host_operation",
    "device_busy",
    "limit",
    "windows",
    "invalid",
    "warnings",
];

/// The line of titles.
pub fn titles() -> String {
    COLUMNS.join(",") + "\n"
}

/// Writes samples, with a line of titles.
pub fn write(samples: &[Sample]) -> String {
    let lines: String = samples.iter().map(line).collect();
    titles() + &lines
}

/// One sample as a line.
pub fn line(sample: &Sample) -> String {
    let number = |value: Option<f64>| value.map_or(String::new(), |v| format!("{v}"));
    let windows: Vec<String> = sample.windows.iter().map(|w| format!("{w}")).collect();
    let texts = |all: &[String]| {
        let all: Vec<String> = all.iter().map(|text| plain(text)).collect();
        all.join(" | ")
    };
    let fields = [
        plain(&sample.suite),
        plain(&sample.state),
        plain(&sample.workload),
        plain(&sample.target),
        sample.devices.to_string(),
        sample.run.to_string(),
        sample.seed.to_string(),
        sample.evidence.name().to_string(),
        number(sample.bytes_per_second),
        number(sample.operations_per_second),
        number(sample.mean_us),
        number(sample.p99_us),
        number(sample.cpu_percent),
        number(sample.device_bytes_per_host_byte),
        number(sample.device_operations_per_host_operation),
        number(sample.device_busy),
        plain(&sample.limit),
        windows.join(" "),
        texts(&sample.invalid),
        texts(&sample.warnings),
    ];
    fields.join(",") + "\n"
}

/// Text without what separates fields.
fn plain(text: &str) -> String {
    text.replace([',', '|'], ";")
        .replace(['"', '\n', '\r'], "'")
}

/// Reads samples.
///
/// # Errors
/// The line and what is wrong with it.
pub fn read(text: &str) -> Result<Vec<Sample>, String> {
    let mut lines = (1..)
        .zip(text.lines())
        .filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    let Some((_, titles)) = lines.next() else {
        return Err("it has no line of titles".to_string());
    };
    let titles: Vec<&str> = titles.split(',').map(str::trim).collect();
    if let Some(unknown) = titles.iter().find(|title| !COLUMNS.contains(title)) {
        return Err(format!(
            "line 1: column '{unknown}' is not known; use {}",
            COLUMNS.join(", ")
        ));
    }
    let mut samples = Vec::new();
    for (number, line) in lines {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        if fields.len() != titles.len() {
            return Err(format!(
                "line {number}: {} fields where the titles name {}",
                fields.len(),
                titles.len()
            ));
        }
        let mut sample = Sample::default();
        for (title, field) in titles.iter().zip(&fields) {
            set(&mut sample, title, field).map_err(|what| format!("line {number}: {what}"))?;
        }
        samples.push(sample);
    }
    Ok(samples)
}

fn set(sample: &mut Sample, title: &str, field: &str) -> Result<(), String> {
    if field.is_empty() {
        return Ok(());
    }
    let bad = || format!("{title}: '{field}' is not a number");
    let number = || field.parse::<f64>().map_err(|_| bad());
    match title {
        "suite" => sample.suite = field.to_string(),
        "state" => sample.state = field.to_string(),
        "workload" => sample.workload = field.to_string(),
        "target" => sample.target = field.to_string(),
        "limit" => sample.limit = field.to_string(),
        "devices" => sample.devices = field.parse().map_err(|_| bad())?,
        "run" => sample.run = field.parse().map_err(|_| bad())?,
        "seed" => sample.seed = field.parse().map_err(|_| bad())?,
        "evidence" => {
            sample.evidence = Evidence::named(field).ok_or_else(|| {
                format!("evidence: '{field}' is none of modelled, processor, real, published")
            })?;
        }
        "bytes_per_second" => sample.bytes_per_second = Some(number()?),
        "operations_per_second" => sample.operations_per_second = Some(number()?),
        "mean_us" => sample.mean_us = Some(number()?),
        "p99_us" => sample.p99_us = Some(number()?),
        "cpu_percent" => sample.cpu_percent = Some(number()?),
        "device_bytes_per_host_byte" => sample.device_bytes_per_host_byte = Some(number()?),
        "device_operations_per_host_operation" => {
            sample.device_operations_per_host_operation = Some(number()?);
        }
        "device_busy" => sample.device_busy = Some(number()?),
        "windows" => {
            let parse = |word: &str| word.parse::<f64>().map_err(|_| bad());
            sample.windows = field
                .split_whitespace()
                .map(parse)
                .collect::<Result<_, _>>()?;
        }
        "warnings" => sample.warnings = field.split(" | ").map(str::to_string).collect(),
        _ => sample.invalid = field.split(" | ").map(str::to_string).collect(),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn samples_are_read_back_as_written() {
        let sample = Sample {
            suite: "ssr".to_string(),
            workload: "RM".to_string(),
            target: "ec7+1".to_string(),
            devices: 48,
            run: 2,
            seed: u64::MAX,
            operations_per_second: Some(1.0 / 3.0),
            windows: vec![1.5, 0.1 + 0.2],
            invalid: vec!["not steady".to_string(), "busy".to_string()],
            warnings: vec!["ran 0.5 s".to_string()],
            ..Sample::default()
        };
        let both = [sample, Sample::default()];
        assert_eq!(read(&write(&both)).unwrap(), both);
    }

    #[test]
    fn tables_of_others_may_have_fewer_columns_and_remarks() {
        let text = "# a remark\nworkload,state,bytes_per_second\n\nSR,normal,11.8e9\n";
        let samples = read(text).unwrap();
        assert_eq!(samples[0].bytes_per_second, Some(11.8e9));
        assert_eq!(samples[0].operations_per_second, None);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        assert!(read("").unwrap_err().contains("titles"));
        assert!(read("speed\n1\n").unwrap_err().contains("'speed'"));
        let short = read("suite,run\nssr\n").unwrap_err();
        assert!(short.starts_with("line 2: 1 fields"), "{short}");
        let word = read("suite,run\nssr,x\n").unwrap_err();
        assert_eq!(word, "line 2: run: 'x' is not a number");
    }
}
