//! `bench codec --accelerator` and `bench digest`: a GPU, or one core, through the accelerator's own harness.
//!
//! **Invariants**: rates are of input bytes; what a figure is compared with was measured in the same run;
//! without a driver the answer says so and has no figures.

use std::sync::Arc;
use std::time::Instant;

use ashlar_accel::bench::{self, Options, Part, Report, Row};
use ashlar_accel::{Choice, Function};
use clap::Args;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::print::{document, out};
use crate::units::{parse_size, rate, size};
use crate::view::table;

pub(super) const DIGEST_EXAMPLES: &str = "Examples:
  ashlar bench digest
  ashlar bench digest --algorithm sha3-512 --block 4K --block 16K
  ashlar bench digest --accelerator cuda -j
";

/// `bench digest`.
#[derive(Debug, Args)]
pub(crate) struct DigestArgs {
    /// A function: blake3, sha256, sha512, sha3-256, sha3-512, crc32c, xxh3 [default: all that run there]
    #[arg(long, value_name = "NAME", value_parser = parse_function)]
    algorithm: Vec<Function>,
    /// Bytes of a block [default: 4K]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    block: Vec<u64>,
    #[command(flatten)]
    device: DeviceArgs,
    /// Milliseconds for each figure
    #[arg(long, value_name = "MS", default_value_t = 300)]
    time: u64,
    /// No header, tabs
    #[arg(short = 'H', long)]
    script: bool,
}

/// Where, and in what portions.
#[derive(Debug, Args)]
pub(crate) struct DeviceArgs {
    /// Where: cpu (one core), cuda or cuda:N
    #[arg(long, value_name = "WHERE", default_value = "cpu", value_parser = parse_place)]
    pub(super) accelerator: Choice,
    /// Bytes of a batch for a GPU
    #[arg(long, value_name = "SIZE", default_value = "8M", value_parser = parse_size)]
    batch: u64,
    /// Batches under way at a time on a GPU
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..=64))]
    slots: u16,
    /// Bytes in a GPU's memory for the kernels alone
    #[arg(long, value_name = "SIZE", default_value = "320M", value_parser = parse_size)]
    memory: u64,
}

/// What `bench codec` passes on.
pub(super) struct CodecOnDevice<'a> {
    pub(super) shapes: &'a [(usize, usize)],
    pub(super) strip: Option<u64>,
    pub(super) lost: &'a [usize],
    pub(super) time: u64,
    pub(super) json: bool,
    pub(super) script: bool,
}

fn parse_function(text: &str) -> Result<Function, String> {
    let names: Vec<&str> = Function::ALL.into_iter().map(Function::name).collect();
    Function::from_name(text).ok_or_else(|| format!("use one of {}", names.join(", ")))
}

fn parse_place(text: &str) -> Result<Choice, String> {
    match text.parse() {
        Ok(choice @ (Choice::Cpu | Choice::Cuda(_))) => Ok(choice),
        _ => Err("use cpu, cuda or cuda:N: a measurement is of one place".to_string()),
    }
}

fn bytes(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

fn empty(device: &DeviceArgs, milliseconds: u64) -> Options {
    let begun = Instant::now();
    let wall = move || u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let processor = || {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap_or(0)
    };
    let number = match device.accelerator {
        Choice::Cuda(number) => number,
        Choice::Auto | Choice::Cpu => 0,
    };
    Options {
        number,
        shapes: Vec::new(),
        losses: Vec::new(),
        with: vec![None, Some(Function::Sha3_512)],
        functions: Vec::new(),
        blocks: vec![4096],
        strip: 64 << 10,
        batch_bytes: bytes(device.batch).clamp(64 << 10, 1 << 30),
        slots: usize::from(device.slots),
        memory_bytes: bytes(device.memory).clamp(64 << 10, 4 << 30),
        nanos: milliseconds.max(1).saturating_mul(1_000_000),
        clock: Arc::new(wall),
        processor_clock: Arc::new(processor),
    }
}

/// `bench codec --accelerator cuda`: products, and products with digests.
pub(super) fn run_codec(device: &DeviceArgs, asked: &CodecOnDevice<'_>) -> Result<(), Failure> {
    let mut options = empty(device, asked.time);
    options.shapes = match asked.shapes {
        [] => vec![(8, 2), (20, 2), (20, 4), (20, 8), (20, 20)],
        shapes => shapes.to_vec(),
    };
    let lost = asked.lost.first().copied().unwrap_or(usize::MAX);
    options.losses = match asked.shapes {
        [] => vec![(80, 20, 20)],
        shapes => shapes
            .iter()
            .map(|&(k, m)| (k, m, lost.clamp(1, m)))
            .collect(),
    };
    options.losses.retain(|(_, m, _)| *m > 0);
    options.shapes.retain(|(_, m)| *m > 0);
    if let Some(strip) = asked.strip {
        options.strip = bytes(strip).max(16);
    }
    let report = bench::run(&options).map_err(|fault| Failure::broken(fault.to_string()))?;
    print("bench codec", &report, asked.json, asked.script)
}

/// `bench digest`.
pub(super) fn run_digest(args: &DigestArgs, json: bool) -> Result<(), Failure> {
    let mut options = empty(&args.device, args.time);
    if !args.block.is_empty() {
        options.blocks = args
            .block
            .iter()
            .map(|block| bytes(*block).max(1))
            .collect();
    }
    options.functions = args.algorithm.clone();
    let on_device = args.device.accelerator != Choice::Cpu;
    if args.algorithm.is_empty() {
        let all = if on_device {
            &Function::ON_DEVICE[..]
        } else {
            &Function::ALL[..]
        };
        options.functions = all.to_vec();
    }
    if on_device && let Some(none) = options.functions.iter().find(|f| **f == Function::Xxh3) {
        return Err(Failure::invalid(format!(
            "{} runs on the processor only",
            none.name()
        )));
    }
    let report = if on_device {
        bench::run(&options)
    } else {
        bench::run_on_one_core(&options)
    };
    let report = report.map_err(|fault| Failure::broken(fault.to_string()))?;
    print("bench digest", &report, json, args.script)
}

fn print(command: &str, report: &Report, json: bool, script: bool) -> Result<(), Failure> {
    if json {
        let rows: Vec<Value> = report.rows.iter().map(row_json).collect();
        let value = json!({ "device": report.device, "rows": rows });
        return out(&document(command, &value)?);
    }
    let titles = [
        "WHERE",
        "OPERATION",
        "STRIPS",
        "DIGEST",
        "BLOCK",
        "DATA",
        "OF LINK",
        "CORE S/GB",
    ];
    let rows = report.rows.iter().map(row_text).collect();
    let mut text = table::table(&titles, rows, &[4, 5, 6, 7], script);
    if !script {
        text = format!("{}\n{text}", report.device);
    }
    out(&text)
}

fn row_json(row: &Row) -> Value {
    json!({
        "where": row.part.name(),
        "operation": row.operation,
        "k": row.k,
        "m": row.rows,
        "algorithm": row.function.map(Function::name),
        "block_bytes": row.block,
        "bytes_per_second": row.bytes_per_second,
        "link_fraction": row.link_fraction,
        "processor_seconds_per_gb": row.processor_seconds_per_gb,
    })
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "for people"
)]
fn row_text(row: &Row) -> Vec<String> {
    let dash = || "-".to_string();
    let strips = if row.k == 0 {
        dash()
    } else {
        format!("{} -> {}", row.k, row.rows)
    };
    let block = if row.block == 0 {
        dash()
    } else {
        size(row.block as u64)
    };
    let share = |share: f64| format!("{:.1}%", share * 100.0);
    vec![
        row.part.name().to_string(),
        row.operation.to_string(),
        if row.part == Part::Link {
            dash()
        } else {
            strips
        },
        row.function.map_or_else(dash, |f| f.name().to_string()),
        block,
        rate(row.bytes_per_second as u64),
        row.link_fraction.map_or_else(dash, share),
        row.processor_seconds_per_gb
            .map_or_else(dash, |s| format!("{s:.3}")),
    ]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn places_and_functions_are_read() {
        assert_eq!(parse_place("cuda:2").unwrap(), Choice::Cuda(2));
        assert!(parse_place("auto").is_err() && parse_place("gpu").is_err());
        assert_eq!(parse_function("sha3-512").unwrap(), Function::Sha3_512);
        assert!(parse_function("md5").unwrap_err().contains("blake3"));
    }

    #[test]
    fn one_core_gives_a_row_for_each_function_and_block() {
        let device = DeviceArgs {
            accelerator: Choice::Cpu,
            batch: 64 << 10,
            slots: 1,
            memory: 1 << 20,
        };
        let mut options = empty(&device, 1);
        options.functions = vec![Function::Crc32c, Function::Sha256];
        options.blocks = vec![4096, 16384];
        let report = bench::run_on_one_core(&options).unwrap();
        assert_eq!(report.rows.len(), 4);
        assert!(report.rows.iter().all(|row| row_text(row)[0] == "one core"));
        assert!(
            report
                .rows
                .iter()
                .all(|row| row.processor_seconds_per_gb.is_some())
        );
    }
}
