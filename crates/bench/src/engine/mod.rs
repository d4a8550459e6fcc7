//! The engine on modelled devices, in virtual time, beside the same devices without it.
//!
//! **Invariants**: every share is of what the same generator gets from all the array's devices raw,
//! preconditioned, in this run; traffic is counted below the engine; a row whose device bytes are
//! not within [`TOLERANCE`] of the account is marked with the reason. Arrays here are small
//! ([`Row::scale`] says how small) and their bounds are scaled with them.

pub mod account;
pub mod closed;
mod loads;
mod rig;
mod rows;
mod values;

pub use crate::meter::{Regions, Traffic};
pub(crate) use rig::device_count;
pub use values::{
    BenchError, Kind, MOST_AMPLIFICATION, MapCache, Options, PhaseRow, Row, Scale, TOLERANCE,
};

/// Each number of devices that is asked for; `None`, once, if none is.
fn asked_counts(asked: &[u16]) -> Vec<Option<u16>> {
    match asked {
        [] => vec![None],
        asked => asked.iter().copied().map(Some).collect(),
    }
}

/// Measures every row of `options`, `each` being called as soon as one is there.
///
/// # Errors
/// If a layout does not fit the devices. What goes wrong within a row is told by the row.
pub fn run_each(options: &Options, mut each: impl FnMut(&Row)) -> Result<Vec<Row>, BenchError> {
    let mut rows = Vec::new();
    for layout in &options.layouts {
        for asked in asked_counts(&options.devices) {
            let devices = rig::device_count(layout, asked)?;
            for kind in &options.rows {
                for map in &options.maps {
                    let row = rows::measure(options, layout, devices, *kind, *map)?;
                    each(&row);
                    rows.push(row);
                }
            }
        }
    }
    Ok(rows)
}

/// Measures every row of `options`.
///
/// # Errors
/// As [`run_each`].
pub fn run(options: &Options) -> Result<Vec<Row>, BenchError> {
    run_each(options, |_| {})
}
