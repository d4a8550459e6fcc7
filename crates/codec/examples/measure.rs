//! Prints encode, decode and update speeds on this machine:
//! `measure [K+M,...] [STRIP,...] [cold] [aligned] [kernel=NAME] [code=NAME] [batches=N] [threads=N] [small]`.
//! Time is that of the thread on a processor; strips are in large pages, unless `small`.

mod machine;

use ashlar_codec::CodeKind;
use ashlar_codec::bench::{Options, limits, run};

fn main() {
    let mut options = Options {
        batch_forms: true,
        clock: machine::on_processor,
        advise: machine::large_pages,
        ..Options::default()
    };
    for argument in std::env::args().skip(1) {
        if argument == "cold" {
            options.cold = true;
        } else if argument == "small" {
            options.advise = |_| {};
        } else if argument == "aligned" {
            options.staggered = false;
        } else if let Some(name) = argument.strip_prefix("kernel=") {
            options.kernels = vec![name.to_owned()];
        } else if let Some(name) = argument.strip_prefix("code=") {
            options.codes = CodeKind::from_name(name).into_iter().collect();
        } else if let Some(count) = argument.strip_prefix("batches=") {
            options.batches = count.parse().unwrap_or(options.batches);
        } else if let Some(count) = argument.strip_prefix("threads=") {
            options.threads = count.parse().unwrap_or(1);
        } else if argument.contains('+') {
            options.shapes = argument
                .split(',')
                .filter_map(|shape| shape.split_once('+'))
                .filter_map(|(k, m)| Some((k.parse().ok()?, m.parse().ok()?)))
                .collect();
        } else {
            options.strips = argument
                .split(',')
                .filter_map(|strip| strip.parse().ok())
                .collect();
        }
    }
    let fastest = ashlar_codec::kernels()
        .next()
        .map_or("portable", |kernel| kernel.name);
    let name = options
        .kernels
        .first()
        .map_or(fastest, String::as_str)
        .to_owned();
    match (limits(&options, &name), run(&options)) {
        (Ok(limits), Ok(rows)) => {
            println!(
                "{name}: multiply {:.1} read {:.1} GB/s",
                limits.multiply / 1e9,
                limits.read / 1e9
            );
            for row in rows {
                println!(
                    "{:13} {:3}+{:<3} {:8} {:12} lost {:3}  {:6.2} best {:6.2} GB/s  {}",
                    row.code.name(),
                    row.k,
                    row.m,
                    row.strip_bytes,
                    row.operation.name(),
                    row.lost,
                    row.bytes_per_second / 1e9,
                    row.best_bytes_per_second / 1e9,
                    match (row.read_limit_fraction, row.gf_limit_fraction) {
                        (Some(f), _) => format!("{:.1} % of reading", f * 100.0),
                        (_, Some(f)) => format!("{:.1} % of multiplying", f * 100.0),
                        _ => String::new(),
                    },
                );
            }
        }
        (Err(error), _) | (_, Err(error)) => eprintln!("{error}"),
    }
}
