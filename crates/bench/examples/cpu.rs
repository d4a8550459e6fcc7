//! Processor time of the engine per operation: `cpu [LAYOUT [MIB [BATCHES]]]`.

use std::process::ExitCode;

use ashlar_bench::cpu::{Options, run_rows};
use ashlar_engine::DigestKind;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let text =
        |index: usize, default: &str| args.get(index).map_or(default.to_string(), Clone::clone);
    let Ok(layout) = text(0, "ec8+2").parse() else {
        eprintln!("usage: cpu [LAYOUT [MIB [BATCHES]]]");
        return ExitCode::from(2);
    };
    let options = Options {
        layout,
        digests: vec![DigestKind::Blake3, DigestKind::Xxh3],
        depths: vec![32, 1],
        volume_bytes: text(1, "256").parse::<u64>().unwrap_or(256) << 20,
        batches: text(2, "3").parse().unwrap_or(3),
    };
    match run_rows(&options) {
        Ok(rows) => {
            for r in rows {
                println!(
                    "{:<12} {} {:<7} depth {:<3} least {:>6.2} us  median {:>6.2} us  ({} operations a batch)",
                    r.row, r.layout, r.digest, r.depth, r.least_us, r.median_us, r.operations
                );
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
