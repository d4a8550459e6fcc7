//! The suites of the papers through the life of an array: normal, with devices down, while it rebuilds;
//! on modelled drives behind ports and links, in virtual time, beside the same drives raw.
//!
//! **Invariants**: every case runs on a rig of its own, filled and preconditioned for its suite; one
//! seed gives one result; the order of cases is shuffled by that seed; a case that fails, or whose
//! figure must not be used, gives a sample that says why.

mod cases;
mod closed;
pub mod load;
mod rig;

use ashlar_device::Bed;
use ashlar_layout::Layout;

use crate::report::{Evidence, RAW, Sample, stats};
pub use cases::{Case, Options, State, Suite, WINDOWS};
use cases::{ROUNDS, ROUNDS_IN_FLIGHT, WINDOWS_OF_ROUND};
pub use closed::closed_form;
use load::{Amount, Work};
use rig::{Outcome, Rig};

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
    let arrays = options.array_count(&bed);
    let seed = case.seed(options.seed);
    let mut sample = Sample {
        suite: case.suite.name().to_string(),
        state: case.state.name().to_string(),
        workload: case.work.name.to_string(),
        target: case.layout.clone().unwrap_or(RAW.to_string()),
        devices: u32::try_from(arrays * case.columns).unwrap_or(0),
        run: case.run,
        seed,
        evidence: Evidence::Modelled,
        ..Sample::default()
    };
    match outcome(options, case, &bed, arrays, seed) {
        Ok((outcome, amount)) => fill_in(&mut sample, case, &outcome, amount, arrays),
        Err(reason) => sample.invalid.push(reason),
    }
    Ok(sample)
}

fn outcome(
    options: &Options,
    case: &Case,
    bed: &Bed,
    arrays: usize,
    seed: u64,
) -> Result<(Outcome, Amount), String> {
    let small = case.work.bytes == 4096;
    let of_device = if small {
        options.depth
    } else {
        options.large_depth()
    };
    let depth = of_device * case.columns;
    let amount = options.amount(case.work, depth, arrays);
    let Some(layout) = &case.layout else {
        let amount = Amount {
            count: (depth * arrays) as u64 * ROUNDS,
            ..amount
        };
        let rig = Rig::raw(seed, bed, arrays, case.columns)?;
        return Ok((rig.run(case.work, amount)?, amount));
    };
    let parsed = layout
        .parse::<Layout>()
        .map_err(|e| format!("'{layout}': {e}"))?;
    let shape = (arrays, case.columns);
    let volume_bytes = case.volume_bytes(options.volume_bytes);
    let rig = Rig::arrays(seed, bed, shape, &parsed, volume_bytes, options.fill)?;
    if small && options.overwrites > 0.0 {
        let blocks = (options.volume_bytes / 4096 * arrays as u64) as f64;
        let overwrite = Amount {
            depth,
            warm: 0,
            count: (blocks * options.overwrites) as u64,
        };
        rig.run(Work::RANDOM[0], overwrite)?;
        rig.settle()?;
    }
    let outcome = match case.state {
        State::Rebuild => {
            let amount = Amount {
                count: amount.count * REBUILD_ROUNDS,
                ..amount
            };
            rig.run_rebuilding(case.work, amount, options.down)?
        }
        State::Down => {
            rig.fail(options.down)?;
            rig.run(case.work, amount)?
        }
        State::Normal => rig.run(case.work, amount)?,
    };
    Ok((outcome, amount))
}

fn fill_in(sample: &mut Sample, case: &Case, outcome: &Outcome, amount: Amount, arrays: usize) {
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
    let small = case.work.bytes == 4096;
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
    let in_flight = (amount.depth * arrays) as u64;
    if count < in_flight * ROUNDS_IN_FLIGHT {
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
