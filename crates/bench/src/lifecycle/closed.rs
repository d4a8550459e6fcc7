//! What others can give at most on a bed's drives and links, by arithmetic: read-modify-write in place, and on disks full
//! stripes of narrow groups.
//!
//! **Invariants**: an upper bound: no locks, no processor, of a disk only what its head must do; a small write reads and writes
//! one data and `m` parity blocks, a large one writes full stripes; the array is made by the host, so all of it passes the
//! host's link. Each sample's limit begins with `closed form`.

use ashlar_device::{Bed, Profile};
use ashlar_layout::Shape;

use super::cases::{Options, columns, shape, split_arrays};
use super::load::{Figure, Order, Work};
use super::suite::{State, Suite};
use crate::report::{CLOSED_FORM, Sample};

/// For each byte of the host: drive time in seconds, and bytes over a link in each direction.
struct Cost {
    drive: f64,
    to_host: f64,
    to_drive: f64,
}

/// An array whose bound is computed.
struct Rival {
    name: String,
    k: f64,
    m: f64,
    /// Drives, all groups and arrays together.
    drives: usize,
    arrays: usize,
}

/// The bound of each workload and layout, as samples.
///
/// # Errors
/// As [`Options::cases`].
pub fn closed_form(options: &Options) -> Result<Vec<Sample>, String> {
    let bed = options.bed()?;
    let mut samples = Vec::new();
    for suite in &options.suites {
        for layout in options.layouts_of(*suite) {
            let alone = split_arrays(&layout).1;
            let (columns, shape) = (columns(alone)?, shape(alone)?);
            let arrays = options.arrays_of(*suite, &layout)?;
            let rival = Rival {
                name: format!("read-modify-write {}+{}", shape.k, shape.m),
                k: f64::from(shape.k),
                m: f64::from(shape.m),
                drives: arrays * columns,
                arrays,
            };
            samples.extend(of_suite(&bed, *suite, &rival, columns, State::Normal));
        }
        for (name, shape, arrays) in others(options, *suite)? {
            let rival = Rival {
                name,
                k: f64::from(shape.k),
                m: f64::from(shape.m),
                drives: arrays * shape.devices(),
                arrays,
            };
            for state in [State::Normal, State::Down] {
                if options.states.contains(&state) {
                    samples.extend(of_suite(&bed, *suite, &rival, shape.devices(), state));
                }
            }
        }
    }
    samples.dedup();
    Ok(samples)
}

/// Arrays of others that a suite's readers know, by name and shape.
fn others(options: &Options, suite: Suite) -> Result<Vec<(String, Shape, usize)>, String> {
    let mut all = Vec::new();
    for rival in &options.rivals {
        let (arrays, alone) = split_arrays(&rival.layout);
        let arrays = match arrays {
            Some(arrays) => arrays,
            None => options.arrays_of(suite, alone)?,
        };
        let devices = u16::try_from(rival.devices).unwrap_or(u16::MAX);
        let layout = alone
            .parse::<ashlar_layout::Layout>()
            .map_err(|error| format!("'{alone}' is not a layout: {error}"))?;
        let shape = layout.resolve(devices).map_err(|error| error.to_string())?;
        all.push((rival.name.clone(), shape, arrays));
    }
    Ok(all)
}

fn of_suite(bed: &Bed, suite: Suite, rival: &Rival, columns: usize, state: State) -> Vec<Sample> {
    // One stream, or a tenth of a disk, is bound by what a head does next: nothing that arithmetic knows.
    let known = |work: &Work| {
        let many = !matches!(work.order, Order::Part(..)) && work.slot_bytes == 0;
        let streams = match work.order {
            Order::Streams(streams, _) => streams >= MANY_STREAMS,
            _ => true,
        };
        let plain = work.figure == Figure::Clients && !work.is_checked();
        many && streams && plain
    };
    let works = suite.works(State::Normal, columns).into_iter();
    let sample = |work: Work| {
        let cost = cost(bed, work, rival, state);
        let (rate, limit) = bound(bed, rival, &cost, state);
        let small = work.is_small();
        Sample {
            suite: suite.name().to_string(),
            state: state.name().to_string(),
            workload: work.label(),
            target: rival.name.clone(),
            devices: u32::try_from(rival.drives).unwrap_or(0),
            limit: format!("{CLOSED_FORM}: {limit}"),
            operations_per_second: small.then_some(rate / 4096.0),
            bytes_per_second: Some(rate),
            ..Sample::default()
        }
    };
    works.filter(known).map(sample).collect()
}

/// So many streams keep every drive busy.
const MANY_STREAMS: u16 = 32;

/// Bytes a second, and which resource is used up.
fn bound(bed: &Bed, rival: &Rival, cost: &Cost, state: State) -> (f64, &'static str) {
    let mut drives = match bed.drives {
        0 => rival.drives,
        drives => drives.min(rival.drives),
    } as f64;
    if state == State::Down {
        // The first M of each group are gone.
        drives *= rival.k / (rival.k + rival.m);
    }
    let drives = drives / cost.drive;
    let network = bed.network;
    let link = network.map_or(0, |n| n.host_bytes_per_second) as f64;
    let links = link * rival.arrays.min(bed.hosts) as f64 / cost.to_host.max(cost.to_drive);
    let port = network.map_or(0.0, |n| {
        let groups = bed.drives.div_ceil(n.group.max(1));
        (n.port_bytes_per_second * (groups * n.modules) as u64) as f64
    });
    let ports = port / cost.to_host.max(cost.to_drive);
    let mut least = (drives, "drives");
    for (rate, name) in [(links, "hosts' links"), (ports, "ports")] {
        if rate > 0.0 && rate < least.0 {
            least = (rate, name);
        }
    }
    least
}

fn cost(bed: &Bed, work: Work, rival: &Rival, state: State) -> Cost {
    let drive = bed.drive;
    let reads = work.reads as f64 / 100.0;
    if drive.rotation.is_some() {
        return disk_cost(&drive, work, rival, state);
    }
    if !work.is_small() {
        let written = (rival.k + rival.m) / rival.k * (1.0 - reads);
        return Cost {
            drive: reads / drive.read_bytes_per_second as f64
                + written / drive.write_bytes_per_second as f64,
            to_host: reads,
            to_drive: written,
        };
    }
    let touched = rival.m + 1.0;
    let (read, write) = (1.0 / drive.read_iops as f64, 1.0 / drive.write_iops as f64);
    let update = touched * (read + write)
        - touched * write * drive.read_gain_permille.max(0) as f64 / 1000.0;
    Cost {
        drive: (reads * read + (1.0 - reads) * update) / 4096.0,
        to_host: reads + (1.0 - reads) * touched,
        to_drive: (1.0 - reads) * touched,
    }
}

/// What a disk's head must do. In order it passes over parity too, so a full stripe costs all its columns, read or written;
/// with M devices gone of each group K columns are left, and hold the data. A random operation is a seek and half a turn; an
/// update reads a block of data and `m` of parity and writes them a turn later. A random read of what is gone, as many of all
/// as devices are, reads K others; one write of those that are gone is not done.
fn disk_cost(drive: &Profile, work: Work, rival: &Rival, state: State) -> Cost {
    let reads = work.reads as f64 / 100.0;
    let Some(rotation) = drive.rotation else {
        return Cost {
            drive: 0.0,
            to_host: reads,
            to_drive: 1.0 - reads,
        };
    };
    let width = rival.k + rival.m;
    let down = state == State::Down;
    let rate = (rotation.outer_bytes_per_second + rotation.inner_bytes_per_second) as f64 / 2.0;
    if work.order != Order::Random {
        let columns = if down { rival.k } else { width };
        return Cost {
            drive: columns / rival.k / rate,
            to_host: reads,
            to_drive: (1.0 - reads) * columns / rival.k,
        };
    }
    let bytes = work.bytes as f64;
    let gone = if down { rival.m / width } else { 0.0 };
    let seek = (rotation.seek + rotation.half_turn) as f64 / 1e9 + bytes / rate;
    let turn = 2.0 * rotation.half_turn as f64 / 1e9;
    let touched = (rival.m + 1.0) * (1.0 - gone);
    let read = seek * (1.0 - gone + gone * rival.k);
    let update = touched * (seek + turn);
    Cost {
        drive: (reads * read + (1.0 - reads) * update) / bytes,
        to_host: reads * (1.0 - gone + gone * rival.k) + (1.0 - reads) * touched,
        to_drive: (1.0 - reads) * touched,
    }
}
