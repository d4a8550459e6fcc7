//! `bench`: the program's parts measured on this machine.
//!
//! **Invariants**: the table names kernel, shape and strip of every figure, and the share of what
//! the machine could do at best; the figures come from the libraries' own harnesses.

mod device;
mod files;
mod lifecycle;
mod nobackup;
mod paper;
mod report;

use std::process::ExitCode;
use std::time::Duration;

use ashlar_accel::Choice;
use ashlar_bench::cpu;
use ashlar_bench::engine::{self, Kind, MapCache};
use ashlar_codec::bench::{Options, Row};
use ashlar_codec::{CodeKind, kernels};
use ashlar_device::Profile;
use ashlar_engine::DigestKind;
use ashlar_layout::Layout;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::print::{Context, document, out};
use crate::units::{parse_size, rate, size};
use crate::view::table;

const CODEC_EXAMPLES: &str = "Examples:
  ashlar bench codec
  ashlar bench codec --km 8+3,80+20 --strip 64K --cold
  ashlar bench codec --code fft --km 128+128 --lost 1,max --cpu-time
  ashlar bench codec --km 80+20 --threads 2
  ashlar bench codec --kernel portable,avx2 -j
  ashlar bench codec --accelerator cuda --km 20+4
";

const ENGINE_EXAMPLES: &str = "Examples:
  ashlar bench engine
  ashlar bench engine --layout ec8+2,ec80+20 --rows read,fresh --map-to-cache cached,12
  ashlar bench engine --rows sustained70 --profile nvme-tlc -j
  ashlar bench engine --rows fresh --map-to-cache cached --where
  ashlar bench engine --rows rebuild --profile hdd --devices 10,12,41 --size 40G --map-to-cache cached
  ashlar bench engine --cpu
";

/// `bench ...`.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Measure the engine on modelled devices in virtual time, beside the same devices raw
    #[command(after_help = ENGINE_EXAMPLES)]
    Engine(EngineArgs),
    /// Run the suites of published papers through the life of an array: normal, down, rebuild; modelled drives
    #[command(after_help = lifecycle::EXAMPLES)]
    Lifecycle(Box<lifecycle::LifecycleArgs>),
    /// Write and read real files as IOzone does, beside fio and IOzone; find every cache on the way
    #[command(after_help = files::EXAMPLES)]
    Files(Box<files::RealArgs>),
    /// Make a report of files of samples
    #[command(after_help = report::REPORT_EXAMPLES)]
    Report(report::FilesArgs),
    /// Measure the erasure codes on one core, or on a GPU
    #[command(after_help = CODEC_EXAMPLES)]
    Codec(CodecArgs),
    /// Measure the digest functions on one core, or on a GPU
    #[command(after_help = device::DIGEST_EXAMPLES)]
    Digest(device::DigestArgs),
}

/// `bench codec`.
#[derive(Debug, Args)]
pub(crate) struct CodecArgs {
    /// A code: isal_cauchy, isal_rs, reed_sol_van, cauchy_orig, cauchy_good, fft [default: isal_cauchy]
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = parse_code)]
    code: Vec<CodeKind>,
    /// Data and parity strips [default: a range of them]
    #[arg(long, visible_alias = "shape", value_name = "K+M", value_delimiter = ',', value_parser = parse_shape)]
    km: Vec<(usize, usize)>,
    /// Bytes of a strip [default: 4K, 64K, 1M]
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_size)]
    strip: Vec<u64>,
    /// A kernel by name [default: the fastest here]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    kernel: Vec<String>,
    /// Strips lost in decoding: a number, or max for min(K, M) [default: 1 and max]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = parse_lost)]
    lost: Vec<usize>,
    /// Data from memory instead of the caches
    #[arg(long)]
    cold: bool,
    /// Threads doing the same at the same time; figures are their sums
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// Count time on a processor instead of time that passes: for a machine that others use too
    #[arg(long)]
    cpu_time: bool,
    #[command(flatten)]
    device: device::DeviceArgs,
    /// Milliseconds for each figure
    #[arg(long, value_name = "MS", default_value_t = 100)]
    time: u64,
    /// No header, tabs
    #[arg(short = 'H', long)]
    script: bool,
}

/// `bench engine`.
#[derive(Debug, Args)]
pub(crate) struct EngineArgs {
    /// Layouts
    #[arg(
        long,
        value_name = "LAYOUT",
        value_delimiter = ',',
        default_value = "ec8+2"
    )]
    layout: Vec<Layout>,
    /// Modelled drive: data24, nvme-tlc, nvme5-tlc, qlc, hdd, nvdimm, data24-drive, data24-3200, orion100, sonexion
    #[arg(long, value_name = "NAME", default_value = "data24", value_parser = parse_profile)]
    profile: Profile,
    /// Numbers of devices, each measured alone [default: as many as a stripe has columns]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    devices: Vec<u16>,
    /// read, degraded-read, fresh, degraded-write, mixed (70 % reads), sequential-write, sequential-read, durableN (N
    /// at once), sustainedN (N % full), rebuild (with no more than K+M devices: onto a replacement) [default: all but
    /// degraded ones and rebuild, with durable1, durable32, sustained70, sustained80]
    #[arg(long, value_name = "ROW", value_delimiter = ',', value_parser = parse_kind)]
    rows: Vec<Kind>,
    /// Map size : cache size: `cached`, or a number
    #[arg(long, value_name = "RATIO", value_delimiter = ',', default_value = "cached,12", value_parser = parse_map)]
    map_to_cache: Vec<MapCache>,
    /// Bytes of the volume (`sustained` derives its own)
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    size: u64,
    /// How often `sustained` overwrites its volume; the second half is measured
    #[arg(long, value_name = "TIMES", default_value_t = 4.0)]
    overwrites: f64,
    /// Seed of the load
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Also show where the engine's time went: phases of its work, how often and how long
    #[arg(long = "where")]
    phases: bool,
    /// Processor time per operation instead, on devices in memory, for the first layout
    #[arg(long)]
    cpu: bool,
    /// No header, tabs
    #[arg(short = 'H', long)]
    script: bool,
}

fn parse_profile(text: &str) -> Result<Profile, String> {
    let names: Vec<&str> = Profile::ALL.iter().map(|p| p.name).collect();
    Profile::named(text).ok_or_else(|| format!("use one of {}", names.join(", ")))
}

fn parse_kind(text: &str) -> Result<Kind, String> {
    Kind::named(text).ok_or_else(|| format!("'{text}' is not a row; --help lists the rows"))
}

fn parse_map(text: &str) -> Result<MapCache, String> {
    MapCache::parse(text)
        .ok_or_else(|| format!("'{text}' is neither 'cached' nor a number from 1 to 1000"))
}

fn parse_code(text: &str) -> Result<CodeKind, String> {
    let names: Vec<&str> = CodeKind::ALL.into_iter().map(CodeKind::name).collect();
    CodeKind::from_name(text).ok_or_else(|| format!("use one of {}", names.join(", ")))
}

fn parse_lost(text: &str) -> Result<usize, String> {
    if text == "max" {
        return Ok(usize::MAX);
    }
    text.parse()
        .map_err(|_| format!("'{text}' is neither a number nor 'max'"))
}

fn parse_shape(text: &str) -> Result<(usize, usize), String> {
    let read = || {
        let (k, m) = text.strip_prefix("ec").unwrap_or(text).split_once('+')?;
        Some((k.parse().ok()?, m.parse().ok()?))
    };
    read().ok_or_else(|| format!("'{text}' is not K+M, for example 8+3"))
}

/// Runs the verb.
///
/// # Errors
/// If a shape or kernel is none.
pub(crate) fn run(context: &Context, verb: &Verb) -> Result<ExitCode, Failure> {
    let json = context.json;
    let done = match verb {
        Verb::Files(args) => return files::run(context, args),
        Verb::Codec(args) if args.device.accelerator != Choice::Cpu => {
            let asked = device::CodecOnDevice {
                shapes: &args.km,
                strip: args.strip.first().copied(),
                lost: &args.lost,
                time: args.time,
                json,
                script: args.script,
            };
            device::run_codec(&args.device, &asked)
        }
        Verb::Codec(args) => run_codec(args, json),
        Verb::Digest(args) => device::run_digest(args, json),
        Verb::Lifecycle(args) => lifecycle::run(args, json),
        Verb::Report(args) => report::report(args, json),
        Verb::Engine(args) if args.cpu => run_cpu(args, json),
        Verb::Engine(args) => run_engine(args, json),
    };
    done.map(|()| ExitCode::SUCCESS)
}

fn run_engine(args: &EngineArgs, json: bool) -> Result<(), Failure> {
    let defaults = engine::Options::default();
    let options = engine::Options {
        profile: args.profile,
        layouts: args.layout.clone(),
        devices: args.devices.clone(),
        rows: if args.rows.is_empty() {
            defaults.rows.clone()
        } else {
            args.rows.clone()
        },
        maps: args.map_to_cache.clone(),
        volume_bytes: args.size,
        overwrites: args.overwrites,
        seed: args.seed,
        ..defaults
    };
    let rows = engine::run(&options).map_err(|error| Failure::invalid(error.to_string()))?;
    if json {
        return out(&document("bench engine", &json!({ "rows": rows }))?);
    }
    let titles = [
        "ROW", "LAYOUT", "DEVICES", "MAP", "VALUE", "UNIT", "OF RAW", "FORM", "BYTES", "FORM",
        "ACCOUNT", "BUSY", "VALID",
    ];
    let texts = rows.iter().map(engine_text).collect();
    let right = [2, 4, 6, 7, 8, 9, 10, 11];
    out(&table::table(&titles, texts, &right, args.script))?;
    let rebuilds: Vec<Vec<String>> = rows.iter().filter_map(rebuild_text).collect();
    if !rebuilds.is_empty() {
        let titles = ["DEVICES", "LAYOUT", "ONTO", "OF FORM", "1 TB BACK IN"];
        out(&table::table(&titles, rebuilds, &[0, 3, 4], args.script))?;
    }
    if args.phases {
        for row in &rows {
            out(&phases_text(row, args.script))?;
        }
    }
    Ok(())
}

/// Of a rebuild: on how many devices, where to, and how long it takes to give back 1 TB.
fn rebuild_text(row: &engine::Row) -> Option<Vec<String>> {
    let (rate, form) = row
        .value
        .zip(row.closed_form)
        .filter(|_| row.row == "rebuild")?;
    let onto = if row.onto_replacement {
        "a replacement"
    } else {
        "the devices left"
    };
    Some(vec![
        row.devices.to_string(),
        row.layout.clone(),
        onto.to_string(),
        format!("{:.0}%", rate / form * 100.0),
        format!("{:.2} h", 1e12 / rate / 3600.0),
    ])
}

/// Where the time of a row went.
fn phases_text(row: &engine::Row, script: bool) -> String {
    let titles = ["ROW", "MAP", "PHASE", "COUNT", "OF TIME", "MEAN", "LONGEST"];
    let text = |p: &engine::PhaseRow| {
        vec![
            row.row.clone(),
            String::from(row.map_to_cache),
            p.phase.to_string(),
            p.count.to_string(),
            format!("{:.1}%", p.share * 100.0),
            format!("{:.1} us", p.mean_us),
            format!("{:.1} us", p.most_us),
        ]
    };
    let phases = row.phases.iter().map(text).collect();
    table::table(&titles, phases, &[3, 4, 5, 6], script)
}

fn engine_text(row: &engine::Row) -> Vec<String> {
    let percent =
        |share: Option<f64>| share.map_or("-".to_string(), |s| format!("{:.1}%", s * 100.0));
    let number = |value: Option<f64>| value.map_or("-".to_string(), |v| format!("{v:.3}"));
    let value = row.value.map_or("-".to_string(), |v| format!("{v:.1}"));
    let form = row.closed_form.zip(row.raw).map(|(form, raw)| form / raw);
    vec![
        row.row.clone(),
        row.layout.clone(),
        row.devices.to_string(),
        String::from(row.map_to_cache),
        value,
        row.unit.to_string(),
        percent(row.share_of_raw),
        percent(form),
        number(row.device_bytes_per_host_byte),
        number(row.closed_form_device_bytes),
        number(row.accounted_device_bytes),
        percent(row.busy),
        if row.valid {
            "yes".to_string()
        } else {
            format!("no: {}", row.reason)
        },
    ]
}

fn run_cpu(args: &EngineArgs, json: bool) -> Result<(), Failure> {
    let options = cpu::Options {
        layout: args.layout[0],
        digests: vec![DigestKind::Blake3, DigestKind::Xxh3],
        depths: vec![32, 1],
        volume_bytes: args.size,
        batches: 3,
    };
    let rows = cpu::run_rows(&options).map_err(|error| Failure::invalid(error.to_string()))?;
    if json {
        return out(&document("bench engine", &json!({ "cpu": rows }))?);
    }
    let titles = ["ROW", "LAYOUT", "DIGEST", "DEPTH", "LEAST", "MEDIAN"];
    let text = |row: &cpu::Row| {
        vec![
            row.row.to_string(),
            row.layout.clone(),
            row.digest.to_string(),
            row.depth.to_string(),
            format!("{:.2} us", row.least_us),
            format!("{:.2} us", row.median_us),
        ]
    };
    out(&table::table(
        &titles,
        rows.iter().map(text).collect(),
        &[3, 4, 5],
        args.script,
    ))
}

fn run_codec(args: &CodecArgs, json: bool) -> Result<(), Failure> {
    let unknown = args
        .kernel
        .iter()
        .find(|name| !kernels().any(|k| k.name == name.as_str()));
    if let Some(name) = unknown {
        let names: Vec<&str> = kernels()
            .filter(|k| k.available())
            .map(|k| k.name)
            .collect();
        return Err(Failure::invalid(format!(
            "--kernel {name}: here are {}",
            names.join(", ")
        )));
    }
    let rows = ashlar_codec::bench::run(&options(args))
        .map_err(|error| Failure::invalid(error.to_string()))?;
    if json {
        let rows: Vec<Value> = rows.iter().map(row_json).collect();
        return out(&document("bench codec", &json!({ "rows": rows }))?);
    }
    let titles = [
        "CODE",
        "SHAPE",
        "STRIP",
        "KERNEL",
        "OPERATION",
        "LOST",
        "DATA",
        "OF LIMIT",
    ];
    let rows = rows.iter().map(row_text).collect();
    out(&table::table(&titles, rows, &[2, 5, 6, 7], args.script))
}

fn options(args: &CodecArgs) -> Options {
    let defaults = Options::default();
    let or = |given: Vec<usize>, default| if given.is_empty() { default } else { given };
    let strips = args
        .strip
        .iter()
        .filter_map(|bytes| usize::try_from(*bytes).ok())
        .collect();
    let batches = defaults.batches;
    Options {
        codes: if args.code.is_empty() {
            defaults.codes
        } else {
            args.code.clone()
        },
        shapes: if args.km.is_empty() {
            defaults.shapes
        } else {
            args.km.clone()
        },
        strips: or(strips, defaults.strips),
        kernels: args.kernel.clone(),
        lost: or(args.lost.clone(), defaults.lost),
        cold: args.cold,
        threads: usize::from(args.threads),
        advise: ashlar_rt::ask_large_pages,
        clock: if args.cpu_time {
            on_processor
        } else {
            defaults.clock
        },
        batch: Duration::from_millis((args.time / batches as u64).max(1)),
        ..defaults
    }
}

/// Time that this thread has spent on a processor.
fn on_processor() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(now).unwrap_or_default()
}

fn row_json(row: &Row) -> Value {
    json!({
        "code": row.code.name(),
        "k": row.k,
        "m": row.m,
        "strip_bytes": row.strip_bytes,
        "kernel": row.kernel,
        "operation": row.operation.name(),
        "lost": row.lost,
        "cold": row.cold,
        "bytes_per_second": row.bytes_per_second,
        "best_bytes_per_second": row.best_bytes_per_second,
        "limit_bytes_per_second": row.limit_bytes_per_second,
        "gf_limit_fraction": row.gf_limit_fraction,
        "read_limit_fraction": row.read_limit_fraction,
    })
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "for people"
)]
fn row_text(row: &Row) -> Vec<String> {
    let limit = match (row.read_limit_fraction, row.gf_limit_fraction) {
        (Some(fraction), _) => format!("{:.0}% of memory", fraction * 100.0),
        (None, Some(fraction)) => format!("{:.0}%", fraction * 100.0),
        (None, None) => "-".to_string(),
    };
    vec![
        row.code.name().to_string(),
        format!("{}+{}", row.k, row.m),
        size(row.strip_bytes as u64),
        row.kernel.to_string(),
        row.operation.name().to_string(),
        row.lost.to_string(),
        rate(row.bytes_per_second as u64),
        limit,
    ]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn rows_profiles_and_ratios_are_read() {
        assert_eq!(parse_kind("sustained85").unwrap(), Kind::Sustained(85));
        assert!(parse_kind("sustained99").is_err() && parse_kind("fast").is_err());
        assert_eq!(parse_map("12").unwrap(), MapCache::Ratio(12.0));
        assert!(parse_map("0.5").is_err());
        assert!(parse_profile("floppy").unwrap_err().contains("data24"));
    }

    #[test]
    fn shapes_and_codes_are_read() {
        assert_eq!(parse_shape("8+3").unwrap(), (8, 3));
        assert_eq!(parse_shape("ec80+20").unwrap(), (80, 20));
        assert!(parse_shape("8").is_err() && parse_shape("8+x").is_err());
        assert_eq!(parse_lost("max").unwrap(), usize::MAX);
        assert_eq!(parse_lost("3").unwrap(), 3);
        assert!(parse_lost("all").is_err());
        assert_eq!(
            parse_code("reed_sol_van").unwrap(),
            CodeKind::JerasureReedSolVan
        );
        assert!(parse_code("md5").unwrap_err().contains("isal_cauchy"));
    }
}
