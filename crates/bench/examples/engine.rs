//! The engine's figures without the program: `engine [-j] [--where] [--layout L,L] [--rows R,R] [...]`.

use std::process::ExitCode;

use ashlar_bench::engine::{Kind, MapCache, Options, Row, run_each};
use ashlar_device::Profile;

fn parse() -> Result<(Options, bool, bool), String> {
    let mut options = Options::default();
    let (mut json, mut phases) = (false, false);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        if arg == "-j" {
            json = true;
            continue;
        }
        if arg == "--where" {
            phases = true;
            continue;
        }
        let value = args.next().ok_or(format!("{arg} wants a value"))?;
        let bad = || format!("{arg}: '{value}' is none");
        let number = || value.parse::<u64>().map_err(|_| bad());
        let list = || value.split(',');
        match arg.as_str() {
            "--layout" => {
                options.layouts = list()
                    .map(|l| l.parse().map_err(|_| bad()))
                    .collect::<Result<_, _>>()?
            }
            "--rows" => {
                options.rows = list()
                    .map(|r| Kind::named(r).ok_or_else(bad))
                    .collect::<Result<_, _>>()?
            }
            "--map-to-cache" => {
                options.maps = list()
                    .map(|m| MapCache::parse(m).ok_or_else(bad))
                    .collect::<Result<_, _>>()?
            }
            "--profile" => options.profile = Profile::named(&value).ok_or_else(bad)?,
            "--devices" => options.devices = vec![number()?.try_into().map_err(|_| bad())?],
            "--depth" => options.depth = number()?.try_into().map_err(|_| bad())?,
            "--slots" => options.slots = number()?.try_into().map_err(|_| bad())?,
            "--volume-mib" => options.volume_bytes = number()? << 20,
            "--seed" => options.seed = number()?,
            "--overwrites" => options.overwrites = value.parse().map_err(|_| bad())?,
            _ => return Err(format!("{arg} is no option")),
        }
    }
    if options.layouts.is_empty() {
        options.layouts = vec!["ec8+2".parse().map_err(|e| format!("{e}"))?];
    }
    Ok((options, json, phases))
}

fn print(row: &Row) {
    let number =
        |v: Option<f64>, digits: usize| v.map_or("-".to_string(), |v| format!("{v:.digits$}"));
    let percent = |v: Option<f64>| v.map_or("-".to_string(), |v| format!("{:.1}%", v * 100.0));
    let share = |v: Option<f64>| row.raw.zip(v).map(|(raw, v)| v / raw);
    println!(
        "{:<16} {:<8} P={:<4} map {:<8} {:<8} {:>12} {:<5} raw {:>12}  {:>7} of raw (closed form {:>7})  bytes {:>6}/{:<6} account {:<6} ops {:>6}  WA {:>5}/{:.2}  busy {:>6}  scattered {:>6}  p99 {:>9} us  {:.1}s  {} {}",
        row.row,
        row.layout,
        row.devices,
        String::from(row.map_to_cache),
        row.durability,
        number(row.value, 1),
        row.unit,
        number(row.raw, 1),
        percent(row.share_of_raw),
        percent(share(row.closed_form)),
        number(row.device_bytes_per_host_byte, 3),
        number(row.closed_form_device_bytes, 3),
        number(row.accounted_device_bytes, 3),
        number(row.device_operations_per_host_operation, 3),
        number(row.write_amplification, 2),
        row.closed_form_write_amplification,
        percent(row.busy),
        percent(row.scattered_writes),
        number(row.p99_us, 1),
        row.real_seconds,
        if row.valid { "valid" } else { "INVALID" },
        row.reason,
    );
}

fn main() -> ExitCode {
    let (options, json, phases) = match parse() {
        Ok(parsed) => parsed,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let result = run_each(&options, |row| {
        if json {
            println!("{}", serde_json::to_string(row).unwrap_or_default());
        } else {
            print(row);
            for p in row.phases.iter().filter(|_| phases) {
                println!(
                    "    {:<24} {:>9} times {:>8.1}% of the time, mean {:>9.1} us, longest {:>9.1} us",
                    p.phase,
                    p.count,
                    p.share * 100.0,
                    p.mean_us,
                    p.most_us
                );
            }
        }
    });
    if let Err(error) = result {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
