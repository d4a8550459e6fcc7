//! Processor time of the engine per operation: devices in memory, in process, no virtual time.
//!
//! **Invariants**: the clock is the processor time of the whole process, all threads; what is counted
//! includes copying to and from the devices in memory; `write` counts until the last is durable,
//! `write-folded` until the array is exported, with everything in its map. A first run, which meets
//! fresh memory, is not counted. Figures are the least and the median of batches: on a busy machine
//! the caches are shared.

use std::rc::Rc;

use ashlar_device::{DeviceRef, MemDevice};
use ashlar_engine::{Array, Create, DigestKind, Settings, VolumeOptions, WriteCache};
use ashlar_layout::Layout;
use ashlar_rt::Rt;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::engine::BenchError;
use crate::load::{Durability, Load, Op, Pattern, Target, run};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// The layout; devices are as many as a stripe has columns.
    pub layout: Layout,
    /// Digests.
    pub digests: Vec<DigestKind>,
    /// Operations in flight.
    pub depths: Vec<usize>,
    /// Bytes of the volume.
    pub volume_bytes: u64,
    /// Batches of one volume's blocks for each figure.
    pub batches: usize,
}

/// One figure.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// `write`, `write-folded` (the mean of all batches), `read`, or `device-read`: the same reads
    /// from the devices, without the engine.
    pub row: &'static str,
    /// The layout.
    pub layout: String,
    /// The digest.
    pub digest: &'static str,
    /// Operations in flight.
    pub depth: usize,
    /// Least microseconds of processor time for an operation over the batches.
    pub least_us: f64,
    /// The median.
    pub median_us: f64,
    /// Operations of a batch.
    pub operations: u64,
    /// Bytes of the volume.
    pub volume_bytes: u64,
}

/// Processor time of this process, in seconds.
fn processor() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Measures every row.
///
/// # Errors
/// If the array cannot be made or a load ends early.
pub fn run_rows(options: &Options) -> Result<Vec<Row>, BenchError> {
    // Not counted: memory that the kernel has to find for the first time costs as much again.
    let first = options.digests.first().zip(options.depths.first());
    if let Some((digest, depth)) = first {
        one(options, *digest, *depth)?;
    }
    let mut rows = Vec::new();
    for digest in &options.digests {
        for depth in &options.depths {
            rows.extend(one(options, *digest, *depth)?);
        }
    }
    Ok(rows)
}

/// An array of devices in memory, with one volume.
struct Bed {
    rt: Rt,
    array: Array,
    /// Its devices.
    raw: Target,
    /// Operations in flight.
    depth: usize,
    /// Blocks of the volume: operations of a batch.
    blocks: u64,
}

impl Bed {
    fn new(options: &Options, digest: DigestKind, depth: usize) -> Result<Bed, BenchError> {
        let rt = Rt::real(7);
        let devices = super::engine::device_count(&options.layout, None)?;
        let device = |i| Rc::new(MemDevice::new(&format!("mem{i}"), 4 << 30)) as DeviceRef;
        let members: Vec<DeviceRef> = (0..devices).map(device).collect();
        let raw = Target::Raw(members.clone());
        let create = Create {
            name: "cpu".to_string(),
            layout: options.layout,
            strip_bytes: None,
            slot_bytes: None,
            spare: 0,
            domains: Vec::new(),
            settings: Settings::default(),
        };
        let volume_options = VolumeOptions {
            size_bytes: options.volume_bytes,
            thin: true,
            digest,
            write_cache: WriteCache::On,
            ..VolumeOptions::default()
        };
        let handle = rt.clone();
        let array = rt.block_on(async move {
            let array = Array::create(&handle, members, create).await?;
            array.volume_create("cpu", volume_options).await?;
            Ok::<Array, BenchError>(array)
        })?;
        Ok(Bed {
            rt,
            array,
            raw,
            depth,
            blocks: options.volume_bytes / 4096,
        })
    }

    fn volume(&self) -> Result<Target, BenchError> {
        self.array
            .volume("cpu")
            .map(Target::Volume)
            .ok_or(BenchError::Volume(ashlar_engine::VolumeError::Closed))
    }

    fn load(&self, op: Op) -> Load {
        Load {
            op,
            pattern: Pattern::Random,
            bytes: 4096,
            depth: self.depth,
            durability: Durability::Cached,
            warm: 0,
            count: self.blocks,
        }
    }

    /// Writes all of the volume, in order.
    fn fill(&self, options: &Options) -> Result<(), BenchError> {
        let fill = Load {
            pattern: Pattern::Sequential,
            bytes: 128 << 10,
            count: options.volume_bytes >> 17,
            ..self.load(Op::Write)
        };
        let (handle, target) = (self.rt.clone(), self.volume()?);
        self.rt
            .block_on(async move { run(&handle, &target, fill, || {}).await })?;
        Ok(())
    }

    /// Seconds of processor time that a batch takes.
    fn batch(&self, op: Op, target: Target) -> Result<f64, BenchError> {
        let (handle, load) = (self.rt.clone(), self.load(op));
        let before = processor();
        self.rt.block_on(async move {
            run(&handle, &target, load, || {}).await?;
            if let (Op::Write, Target::Volume(volume)) = (op, &target) {
                volume.flush().await.map_err(BenchError::Volume)?;
            }
            Ok::<(), BenchError>(())
        })?;
        Ok(processor() - before)
    }
}

fn one(options: &Options, digest: DigestKind, depth: usize) -> Result<Vec<Row>, BenchError> {
    let bed = Bed::new(options, digest, depth)?;
    let row = |name, times: &[f64]| {
        let mut sorted = times.to_vec();
        sorted.sort_by(f64::total_cmp);
        let operations = bed.blocks;
        let each = |seconds: f64| seconds * 1e6 / operations as f64;
        Row {
            row: name,
            layout: options.layout.to_string(),
            digest: digest.name(),
            depth,
            least_us: each(sorted[0]),
            median_us: each(sorted[sorted.len() / 2]),
            operations,
            volume_bytes: options.volume_bytes,
        }
    };
    bed.fill(options)?;
    let mut reads = Vec::new();
    let mut device_reads = Vec::new();
    for _ in 0..options.batches.max(1) {
        reads.push(bed.batch(Op::Read, bed.volume()?)?);
        device_reads.push(bed.batch(Op::Read, bed.raw.clone())?);
    }
    let mut writes = Vec::new();
    let before = processor();
    for _ in 0..options.batches.max(1) {
        writes.push(bed.batch(Op::Write, bed.volume()?)?);
    }
    let (rt, array) = (bed.rt.clone(), bed.array);
    rt.block_on(async move { array.export().await })?;
    let folded = (processor() - before) / writes.len() as f64;
    rt.shutdown();
    Ok(vec![
        row("write", &writes),
        row("write-folded", &[folded]),
        row("read", &reads),
        row("device-read", &device_reads),
    ])
}
