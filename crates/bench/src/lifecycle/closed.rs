//! What read-modify-write in place can give at most on a bed's drives and links, by arithmetic.
//!
//! **Invariants**: an upper bound: no seeks, no locks, no processor; a small write reads and writes one data and `m` parity
//! blocks, a large one writes full stripes; the array is made by the host, so all of it passes the host's link.

use ashlar_device::Bed;
use ashlar_layout::{Layout, Shape};

use super::cases::{Options, columns};
use super::load::Work;
use crate::report::{CLOSED_FORM, Sample};

/// Bytes for each byte of the host: drive time in seconds per byte, and bytes over a link in each direction.
struct Cost {
    drive: f64,
    to_host: f64,
    to_drive: f64,
}

/// The bound of each workload and layout, as samples. None on disks that rotate.
///
/// # Errors
/// As [`Options::cases`].
pub fn closed_form(options: &Options) -> Result<Vec<Sample>, String> {
    let bed = options.bed()?;
    let arrays = options.array_count(&bed);
    let mut samples = Vec::new();
    if bed.drive.rotation.is_some() {
        return Ok(samples);
    }
    for layout in &options.layouts {
        let columns = columns(layout)?;
        let parsed = layout
            .parse::<Layout>()
            .map_err(|e| format!("'{layout}': {e}"))?;
        let shape = parsed
            .resolve(u16::try_from(columns).unwrap_or(u16::MAX))
            .map_err(|error| error.to_string())?;
        for suite in &options.suites {
            for work in suite.works() {
                let (rate, limit) = bound(&bed, arrays, columns, &cost(&bed, *work, &shape));
                let small = work.bytes == 4096;
                samples.push(Sample {
                    suite: suite.name().to_string(),
                    workload: work.name.to_string(),
                    target: format!("read-modify-write {}+{}", shape.k, shape.m),
                    devices: u32::try_from(arrays * columns).unwrap_or(0),
                    limit: format!("{CLOSED_FORM}: {limit}"),
                    operations_per_second: small.then_some(rate / 4096.0),
                    bytes_per_second: Some(rate),
                    ..Sample::default()
                });
            }
        }
    }
    Ok(samples)
}

/// Bytes a second, and which resource is used up.
fn bound(bed: &Bed, arrays: usize, columns: usize, cost: &Cost) -> (f64, &'static str) {
    let namespaces = arrays * columns;
    let drives = match bed.drives {
        0 => namespaces,
        drives => drives.min(namespaces),
    };
    let drives = drives as f64 / cost.drive;
    let link = bed.network.map_or(0, |n| n.host_bytes_per_second) as f64;
    let links = link * arrays.min(bed.hosts) as f64 / cost.to_host.max(cost.to_drive);
    if link > 0.0 && links < drives {
        (links, "hosts' links")
    } else {
        (drives, "drives")
    }
}

fn cost(bed: &Bed, work: Work, shape: &Shape) -> Cost {
    let drive = bed.drive;
    let reads = work.reads as f64 / 100.0;
    if work.bytes != 4096 {
        let written = f64::from(shape.k + shape.m) / f64::from(shape.k) * (1.0 - reads);
        return Cost {
            drive: reads / drive.read_bytes_per_second as f64
                + written / drive.write_bytes_per_second as f64,
            to_host: reads,
            to_drive: written,
        };
    }
    let touched = f64::from(shape.m) + 1.0;
    let (read, write) = (1.0 / drive.read_iops as f64, 1.0 / drive.write_iops as f64);
    let update = touched * (read + write)
        - touched * write * drive.read_gain_permille.max(0) as f64 / 1000.0;
    Cost {
        drive: (reads * read + (1.0 - reads) * update) / 4096.0,
        to_host: reads + (1.0 - reads) * touched,
        to_drive: (1.0 - reads) * touched,
    }
}
