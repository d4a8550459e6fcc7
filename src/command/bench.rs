//! `bench`: the program's parts measured on this machine.
//!
//! **Invariants**: the table names kernel, shape and strip of every figure, and the share of what
//! the machine could do at best; the figures come from the libraries' own harnesses.

use std::time::Duration;

use ashlar_codec::bench::{Options, Row};
use ashlar_codec::{CodeKind, kernels};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::command::{document, out};
use crate::failure::Failure;
use crate::units::{parse_size, rate, size};
use crate::view::table;

const CODEC_EXAMPLES: &str = "Examples:
  ashlar bench codec
  ashlar bench codec --shape 8+3 --shape 80+20 --strip 64K --cold
  ashlar bench codec --kernel portable --kernel avx2 -j
";

/// `bench ...`.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Measure the erasure codes on one core
    #[command(after_help = CODEC_EXAMPLES)]
    Codec(CodecArgs),
}

/// `bench codec`.
#[derive(Debug, Args)]
pub(crate) struct CodecArgs {
    /// A code: isal_cauchy, isal_rs, reed_sol_van, cauchy_orig, cauchy_good [default: isal_cauchy]
    #[arg(long, value_name = "NAME", value_parser = parse_code)]
    code: Vec<CodeKind>,
    /// K+M [default: a range of them]
    #[arg(long, value_name = "K+M", value_parser = parse_shape)]
    shape: Vec<(usize, usize)>,
    /// Bytes of a strip [default: 4K, 64K, 1M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    strip: Vec<u64>,
    /// A kernel by name [default: the fastest here]
    #[arg(long, value_name = "NAME")]
    kernel: Vec<String>,
    /// Strips lost in decoding [default: 1 and M]
    #[arg(long, value_name = "N")]
    lost: Vec<usize>,
    /// Data from memory instead of the caches
    #[arg(long)]
    cold: bool,
    /// Milliseconds for each figure
    #[arg(long, value_name = "MS", default_value_t = 100)]
    time: u64,
    /// No header, tabs
    #[arg(short = 'H', long)]
    script: bool,
}

fn parse_code(text: &str) -> Result<CodeKind, String> {
    let names: Vec<&str> = CodeKind::ALL.into_iter().map(CodeKind::name).collect();
    CodeKind::from_name(text).ok_or_else(|| format!("use one of {}", names.join(", ")))
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
pub(crate) fn run(verb: &Verb, json: bool) -> Result<(), Failure> {
    let Verb::Codec(args) = verb;
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
        shapes: if args.shape.is_empty() {
            defaults.shapes
        } else {
            args.shape.clone()
        },
        strips: or(strips, defaults.strips),
        kernels: args.kernel.clone(),
        lost: or(args.lost.clone(), defaults.lost),
        cold: args.cold,
        batch: Duration::from_millis((args.time / batches as u64).max(1)),
        ..defaults
    }
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
    let limit = match row.read_limit_fraction {
        Some(fraction) => format!("{:.0}% of memory", fraction * 100.0),
        None => format!("{:.0}%", row.gf_limit_fraction * 100.0),
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
    fn shapes_and_codes_are_read() {
        assert_eq!(parse_shape("8+3").unwrap(), (8, 3));
        assert_eq!(parse_shape("ec80+20").unwrap(), (80, 20));
        assert!(parse_shape("8").is_err() && parse_shape("8+x").is_err());
        assert_eq!(
            parse_code("reed_sol_van").unwrap(),
            CodeKind::JerasureReedSolVan
        );
        assert!(parse_code("md5").unwrap_err().contains("isal_cauchy"));
    }
}
