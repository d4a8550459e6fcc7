//! The suites of the papers through the life of an array: normal, with devices down, while it rebuilds;
//! on modelled drives behind ports and links, in virtual time, beside the same drives raw.
//!
//! **Invariants**: every case runs on a rig of its own, filled and preconditioned for its suite; one
//! seed gives one result; the order of cases is shuffled by that seed; a case that fails, or whose
//! figure must not be used, gives a sample that says why.

mod cases;
mod check;
mod closed;
pub mod load;
mod processor;
mod rig;
mod suite;

use ashlar_device::Bed;

use crate::report::{Evidence, Sample, stats};
pub use cases::{Case, Options, Rival, WINDOWS};
use cases::{ROUNDS, ROUNDS_IN_FLIGHT, WINDOWS_OF_ROUND};
pub use closed::closed_form;
use load::{Amount, Figure, Order, Work};
pub use processor::{measure_processor, unfit};
use rig::{Outcome, RAW_BYTES, Rig};
pub use suite::{Down, State, Suite};

/// How much more is measured at most while arrays rebuild: reads slow a rebuild down, so that nothing is rebuilt in
/// [`ROUNDS`].
const REBUILD_ROUNDS: u64 = 16;
/// How far device bytes of reads may be from host bytes.
const READ_BYTES: f64 = 0.03;

/// Runs one case. What goes wrong is told by the sample.
///
/// # Errors
/// If the options are none, for people.
pub fn measure(options: &Options, case: &Case) -> Result<Sample, String> {
    let bed = options.bed()?;
    let seed = case.seed(options.seed);
    let mut sample = Sample {
        suite: case.suite.name().to_string(),
        state: case.state.name().to_string(),
        workload: case.work.label(),
        target: case.target().to_string(),
        devices: u32::try_from(case.arrays * case.columns).unwrap_or(0),
        run: case.run,
        seed,
        evidence: Evidence::Modelled,
        ..Sample::default()
    };
    if case.work.figure == Figure::CheckAlone {
        match check_alone(options, case, &bed, seed) {
            Ok(rate) => sample.bytes_per_second = Some(rate),
            Err(reason) => sample.invalid.push(reason),
        }
        return Ok(sample);
    }
    match outcome(options, case, &bed, seed) {
        Ok((outcome, amount)) => fill_in(&mut sample, case, &outcome, amount),
        Err(reason) => sample.invalid.push(reason),
    }
    Ok(sample)
}

fn check_alone(options: &Options, case: &Case, bed: &Bed, seed: u64) -> Result<f64, String> {
    let layout = case.layout_alone().ok_or("there is nothing to check")?;
    let rig = Rig::arrays(seed, options, bed, case, layout)?;
    rig.fill()?;
    rig.check_alone()
}

fn outcome(
    options: &Options,
    case: &Case,
    bed: &Bed,
    seed: u64,
) -> Result<(Outcome, Amount), String> {
    let small = case.work.is_small();
    let of_device = if small {
        options.depth
    } else {
        options.large_depth()
    };
    let depth = of_device * case.columns;
    let amount = options.amount(case, depth);
    let Some(layout) = case.layout_alone() else {
        let count = match case.work.order {
            Order::Part(_, of) => {
                let units =
                    RAW_BYTES / case.work.bytes as u64 * (case.columns * case.arrays) as u64;
                units / u64::from(of)
            }
            // Threads on raw disks get out of step: many rounds even that out.
            Order::Files(..) => amount.in_flight * ROUNDS * 4,
            _ => amount.in_flight * ROUNDS,
        };
        let amount = Amount { count, ..amount };
        let rig = Rig::raw(seed, bed, case)?;
        return Ok((rig.run(case.work, amount)?, amount));
    };
    let rig = Rig::arrays(seed, options, bed, case, layout)?;
    if let Order::Part(index, of) = case.work.order {
        // What lies before it, and the part itself if it is read.
        let before = index + u16::from(case.work.reads > 0);
        for part in 0..before {
            rig.write_once(Work::fill_part(case.work.bytes, part, of))?;
        }
        return Ok((rig.run(case.work, amount)?, amount));
    }
    rig.fill()?;
    if case.work.order == Order::Random && options.overwrites > 0.0 {
        let units = options.volume_bytes / case.work.bytes as u64 * case.arrays as u64;
        let overwrite = Amount {
            warm: 0,
            count: (units as f64 * options.overwrites) as u64,
            ..amount
        };
        let write = Work {
            reads: 0,
            ..case.work
        };
        rig.run(write, overwrite)?;
        rig.settle()?;
    }
    let outcome = match case.state {
        State::Rebuild => {
            let amount = Amount {
                count: amount.count * REBUILD_ROUNDS,
                ..amount
            };
            rig.run_rebuilding(case.work, amount)?
        }
        State::Down => {
            rig.fail()?;
            rig.run(case.work, amount)?
        }
        State::Normal if case.work.is_checked() => {
            rig.run_checked(case.work, amount, options.check_floor)?
        }
        State::Normal => rig.run(case.work, amount)?,
    };
    Ok((outcome, amount))
}

fn fill_in(sample: &mut Sample, case: &Case, outcome: &Outcome, amount: Amount) {
    let bytes = case.work.bytes as f64;
    let count = outcome.series.ends.len() as u64;
    let Some(rate) = outcome.series.per_second() else {
        sample.invalid.push(if case.state == State::Rebuild {
            "the rebuild was over before an operation ended".to_string()
        } else {
            "no operation ended".to_string()
        });
        return;
    };
    if case.work.figure == Figure::Check {
        // What the check read while the clients did so many operations at that rate.
        let seconds = count as f64 / rate;
        sample.bytes_per_second = Some(outcome.checked as f64 / seconds);
        sample.limit.clone_from(&outcome.limit);
        return;
    }
    let small = case.work.is_small();
    sample.bytes_per_second = Some(rate * bytes);
    sample.operations_per_second = small.then_some(rate);
    let unit = if small { 1.0 } else { bytes };
    let windows = outcome.series.windows(WINDOWS);
    sample.windows = windows.iter().map(|w| w * unit).collect();
    if let Some((mean, p99)) = outcome.series.latency() {
        sample.mean_us = Some(mean);
        sample.p99_us = Some(p99);
    }
    let host_bytes = count as f64 * bytes;
    let per_byte = outcome.device.bytes as f64 / host_bytes;
    sample.device_bytes_per_host_byte = Some(per_byte);
    sample.device_operations_per_host_operation =
        Some(outcome.device.operations as f64 / count as f64);
    sample.device_busy = Some(outcome.device.drive_busy);
    sample.limit.clone_from(&outcome.limit);
    let in_flight = amount.in_flight;
    // A part of a disk is written once.
    let once = matches!(case.work.order, Order::Part(..));
    if once {
        sample.windows.clear();
    } else if count < in_flight * ROUNDS_IN_FLIGHT {
        sample.invalid.push(format!(
            "the rebuild lasted for {count} operations only, with {in_flight} in flight"
        ));
        return;
    }
    if case.work.reads == 100 && per_byte < 1.0 - READ_BYTES {
        sample.invalid.push(format!(
            "the devices moved {per_byte:.2} bytes for each byte read: a cache answered"
        ));
    }
    // While an array rebuilds, nothing is steady; the variation within the run tells.
    if case.state != State::Rebuild
        && !once
        && let Some(reason) = unsteady(&sample.windows)
    {
        sample.invalid.push(reason);
    }
}

/// Why a run is not steady, if it is not.
fn unsteady(windows: &[f64]) -> Option<String> {
    let rounds: Vec<f64> = windows
        .chunks(WINDOWS_OF_ROUND)
        .filter_map(stats::mean)
        .collect();
    let found = stats::steadiness(&rounds)?;
    found.attained.is_none().then(|| {
        format!(
            "not steady: five rounds range over {:.0} % of their mean and drift by {:.0} %",
            found.range * 100.0,
            found.slope * 100.0
        )
    })
}

#[cfg(test)]
mod tests;
