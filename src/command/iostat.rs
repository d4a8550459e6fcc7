//! `iostat`: what volumes' clients do, as differences of two statuses.
//!
//! **Invariants**: every figure is of the time between two answers of the daemon; a volume that was not there at both
//! has no row; a counter that went back (the array was imported again) counts from 0.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::api::{Call, LATENCY_BOUNDS, Latency, StatusReply};
use crate::cli::IostatArgs;
use crate::failure::Failure;
use crate::print::{Context, document, out};
use crate::units::rate;
use crate::view::{safe, table};

/// What a volume's clients did in a while.
#[derive(Clone, Debug, Serialize)]
struct Row {
    array: String,
    volume: String,
    reads_per_second: f64,
    writes_per_second: f64,
    flushes_per_second: f64,
    read_bytes_per_second: u64,
    written_bytes_per_second: u64,
    /// By kind of request: mean seconds, none if none ended; requests by the bounds of their times; in flight.
    operations: Vec<Operation>,
}

#[derive(Clone, Debug, Serialize)]
struct Operation {
    operation: String,
    mean_seconds: Option<f64>,
    bounds_seconds: Vec<f64>,
    counts: Vec<u64>,
    in_flight: u64,
}

/// `iostat`.
///
/// # Errors
/// If the words make no sense, or the daemon cannot be asked.
pub(crate) fn iostat(context: &Context, args: &IostatArgs) -> Result<(), Failure> {
    let (array, interval, count) = words(&args.words)?;
    let ask = || -> Result<(StatusReply, Instant), Failure> {
        let array = array.clone();
        let reply = context.client.call(&Call::Status { array })?;
        Ok((reply, Instant::now()))
    };
    let (mut before, mut at) = ask()?;
    for _ in 0..count {
        sleep(interval);
        let (after, now) = ask()?;
        let rows = rows(&before, &after, (now - at).as_secs_f64());
        if context.json {
            out(&document(
                "iostat",
                &serde_json::json!({ "volumes": rows }),
            )?)?;
        } else if args.histogram {
            out(&histogram(&rows, args))?;
        } else {
            out(&figures(&rows, args))?;
        }
        (before, at) = (after, now);
    }
    Ok(())
}

/// Array, interval and count: those that are numbers are the last two.
fn words(words: &[String]) -> Result<(Option<String>, Duration, u64), Failure> {
    let wrong = |word: &str| {
        Failure::invalid(format!(
            "'{word}' is not a number of seconds; for example: ashlar iostat tank 5 12"
        ))
    };
    let (array, numbers) = match words {
        [first, rest @ ..] if first.parse::<f64>().is_err() => (Some(first.clone()), rest),
        [name, interval, count] => (Some(name.clone()), &[interval.clone(), count.clone()][..]),
        _ => (None, words),
    };
    let number = |word: &String| {
        let seconds = word
            .parse::<f64>()
            .ok()
            .filter(|s| (0.1..=86_400.0).contains(s));
        seconds
            .map(Duration::from_secs_f64)
            .ok_or_else(|| wrong(word))
    };
    Ok(match numbers {
        [] => (array, Duration::from_secs(1), 1),
        [interval] => (array, number(interval)?, u64::MAX),
        [interval, count, ..] => {
            let count = count.parse().map_err(|_| wrong(count))?;
            (array, number(interval)?, count)
        }
    })
}

fn rows(before: &StatusReply, after: &StatusReply, seconds: f64) -> Vec<Row> {
    let mut rows = Vec::new();
    for a in &after.arrays {
        for v in &a.volumes {
            let array = before.arrays.iter().find(|b| b.uuid == a.uuid);
            let Some(was) = array.and_then(|b| b.volumes.iter().find(|w| w.name == v.name)) else {
                continue;
            };
            let (h, w) = (&v.host, &was.host);
            let per_second = |now, was| difference(now, was) as f64 / seconds;
            let bytes = |now, was| per_second(now, was) as u64;
            rows.push(Row {
                array: a.name.clone(),
                volume: v.name.clone(),
                reads_per_second: per_second(h.reads, w.reads),
                writes_per_second: per_second(h.writes, w.writes),
                flushes_per_second: per_second(h.flushes, w.flushes),
                read_bytes_per_second: bytes(h.read_bytes, w.read_bytes),
                written_bytes_per_second: bytes(h.written_bytes, w.written_bytes),
                operations: operations(&a.name, &v.name, before, after),
            });
        }
    }
    rows
}

fn difference(now: u64, was: u64) -> u64 {
    now.checked_sub(was).unwrap_or(now)
}

fn operations(
    array: &str,
    volume: &str,
    before: &StatusReply,
    after: &StatusReply,
) -> Vec<Operation> {
    let of = |l: &&Latency| l.array == array && l.volume == volume;
    let mut all = Vec::new();
    for now in after.latency.iter().filter(of) {
        let was = before
            .latency
            .iter()
            .filter(of)
            .find(|l| l.operation == now.operation);
        let was = was.cloned().unwrap_or_default();
        let old = |i: usize| was.counts.get(i).copied().unwrap_or(0);
        let counts = now.counts.iter().enumerate();
        let counts: Vec<u64> = counts.map(|(i, n)| difference(*n, old(i))).collect();
        let ended: u64 = counts.iter().sum();
        let nanos = difference(now.nanoseconds, was.nanoseconds) as f64;
        all.push(Operation {
            operation: now.operation.clone(),
            mean_seconds: (ended > 0).then(|| nanos / 1e9 / ended as f64),
            bounds_seconds: LATENCY_BOUNDS.iter().map(|b| *b as f64 / 1e9).collect(),
            counts,
            in_flight: now.in_flight,
        });
    }
    all
}

fn figures(rows: &[Row], args: &IostatArgs) -> String {
    let mut titles = vec![
        "VOLUME",
        "READS/S",
        "WRITES/S",
        "FLUSHES/S",
        "READ",
        "WRITTEN",
    ];
    if args.latency {
        titles.extend(["READ TIME", "WRITE TIME", "FLUSH TIME"]);
    }
    if args.queue {
        titles.extend(["READING", "WRITING", "FLUSHING"]);
    }
    let bytes = |b: u64| if args.exact { b.to_string() } else { rate(b) };
    let lines = rows.iter().map(|row| {
        let mut line = vec![
            format!("{}/{}", safe(&row.array), safe(&row.volume)),
            format!("{:.0}", row.reads_per_second),
            format!("{:.0}", row.writes_per_second),
            format!("{:.0}", row.flushes_per_second),
            bytes(row.read_bytes_per_second),
            bytes(row.written_bytes_per_second),
        ];
        let of = |name: &str| row.operations.iter().find(|o| o.operation == name);
        for name in ["read", "write", "flush"].iter().filter(|_| args.latency) {
            let mean = of(name).and_then(|o| o.mean_seconds);
            line.push(mean.map_or("-".to_string(), |s| time(s, args.exact)));
        }
        for name in ["read", "write", "flush"].iter().filter(|_| args.queue) {
            line.push(of(name).map_or("-".to_string(), |o| o.in_flight.to_string()));
        }
        line
    });
    let right: Vec<usize> = (1..titles.len()).collect();
    table::table(&titles, lines.collect(), &right, args.script)
}

fn histogram(rows: &[Row], args: &IostatArgs) -> String {
    let titles = ["VOLUME", "UP TO", "READS", "WRITES", "FLUSHES"];
    let mut lines = Vec::new();
    for row in rows {
        for i in 0..=LATENCY_BOUNDS.len() {
            let bound = LATENCY_BOUNDS.get(i);
            let bound = bound.map_or("longer".to_string(), |b| time(*b as f64 / 1e9, args.exact));
            let mut line = vec![format!("{}/{}", safe(&row.array), safe(&row.volume)), bound];
            for name in ["read", "write", "flush"] {
                let of = row.operations.iter().find(|o| o.operation == name);
                let count = of.and_then(|o| o.counts.get(i)).copied();
                line.push(count.map_or("-".to_string(), |c| c.to_string()));
            }
            lines.push(line);
        }
    }
    table::table(&titles, lines, &[1, 2, 3, 4], args.script)
}

/// A time with its unit; exact in seconds.
fn time(seconds: f64, exact: bool) -> String {
    if exact {
        format!("{seconds:.9}")
    } else if seconds < 1e-3 {
        format!("{:.0}us", seconds * 1e6)
    } else if seconds < 1.0 {
        format!("{:.1}ms", seconds * 1e3)
    } else {
        format!("{seconds:.1}s")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn words_are_an_array_an_interval_and_a_count() {
        let read = |text: &str| {
            let all: Vec<String> = text.split_whitespace().map(str::to_string).collect();
            words(&all)
        };
        let second = Duration::from_secs(1);
        assert_eq!(read("").unwrap(), (None, second, 1));
        assert_eq!(read("5").unwrap(), (None, 5 * second, u64::MAX));
        assert_eq!(read("5 2").unwrap(), (None, 5 * second, 2));
        let tank = Some("tank".to_string());
        assert_eq!(read("tank").unwrap(), (tank.clone(), second, 1));
        assert_eq!(read("tank 0.5 3").unwrap(), (tank, second / 2, 3));
        for bad in ["tank five", "tank 0", "5 many"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_have_units() {
        assert_eq!(time(0.000_016_384, false), "16us");
        assert_eq!(time(0.25, false), "250.0ms");
        assert_eq!(time(17.2, false), "17.2s");
        assert_eq!(difference(3, 10), 3, "imported anew");
    }
}
