//! What is measured of the engine, and the rows that come of it.
//!
//! **Invariants**: values only; names in reports never change.

use ashlar_device::Profile;
use ashlar_engine::{Error, VolumeError};
use ashlar_layout::{Layout, LayoutError};
use serde::Serialize;

use crate::load::Stop;
use crate::meter::Regions;

/// The most write amplification of a valid row, as a multiple of the closed form's.
pub const MOST_AMPLIFICATION: f64 = 1.1;

/// How far device bytes may be from the account, as a share of it.
pub const TOLERANCE: f64 = 0.03;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 4 KiB random reads of a filled volume.
    Read,
    /// As [`Kind::Read`], after one device was taken out.
    DegradedRead,
    /// 4 KiB random overwrites of a filled volume while nothing has to be cleaned.
    Fresh,
    /// As [`Kind::Fresh`], after one device was taken out.
    DegradedWrite,
    /// 4 KiB, 70 of 100 reads, the others overwrites, of a filled volume while nothing has to be cleaned.
    Mixed,
    /// 4 KiB random overwrites of a volume that fills so many percent of the array.
    Sustained(u8),
    /// 128 KiB sequential writes of an empty volume.
    SequentialWrite,
    /// 128 KiB sequential reads of a volume written so.
    SequentialRead,
    /// 4 KiB random writes, each durable, so many at once.
    Durable(u16),
    /// One device of a filled array is lost, and what it held is rebuilt into free space of the others, with no
    /// other load. With no more devices than a stripe has columns: to a replacement.
    Rebuild,
}

impl Kind {
    /// All that `--rows` is by default.
    pub const DEFAULT: [Kind; 9] = [
        Kind::Read,
        Kind::Fresh,
        Kind::Mixed,
        Kind::SequentialWrite,
        Kind::SequentialRead,
        Kind::Durable(1),
        Kind::Durable(32),
        Kind::Sustained(70),
        Kind::Sustained(80),
    ];

    /// Its name in options and results.
    pub fn name(self) -> String {
        match self {
            Kind::Read => "read".to_string(),
            Kind::DegradedRead => "degraded-read".to_string(),
            Kind::Fresh => "fresh".to_string(),
            Kind::DegradedWrite => "degraded-write".to_string(),
            Kind::Mixed => "mixed".to_string(),
            Kind::Sustained(percent) => format!("sustained{percent}"),
            Kind::SequentialWrite => "sequential-write".to_string(),
            Kind::SequentialRead => "sequential-read".to_string(),
            Kind::Durable(depth) => format!("durable{depth}"),
            Kind::Rebuild => "rebuild".to_string(),
        }
    }

    /// From its name.
    pub fn named(name: &str) -> Option<Kind> {
        let number = |text: &str| text.parse::<u16>().ok();
        if let Some(percent) = name.strip_prefix("sustained").and_then(number) {
            let percent = u8::try_from(percent).ok()?;
            return (10..=95)
                .contains(&percent)
                .then_some(Kind::Sustained(percent));
        }
        if let Some(depth) = name.strip_prefix("durable").and_then(number) {
            return (1..=4096).contains(&depth).then_some(Kind::Durable(depth));
        }
        let plain = [
            Kind::Read,
            Kind::DegradedRead,
            Kind::Fresh,
            Kind::DegradedWrite,
            Kind::Mixed,
            Kind::SequentialWrite,
            Kind::SequentialRead,
            Kind::Rebuild,
        ];
        plain.into_iter().find(|kind| kind.name() == name)
    }
}

/// How much of the map the cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(into = "String")]
pub enum MapCache {
    /// All of it, twice over.
    Cached,
    /// The map is so many times as large as the cache.
    Ratio(f64),
}

impl MapCache {
    /// From `cached` or a number of at least 1.
    pub fn parse(text: &str) -> Option<MapCache> {
        if text == "cached" {
            return Some(MapCache::Cached);
        }
        let ratio: f64 = text.trim_end_matches(":1").parse().ok()?;
        (1.0..=1000.0)
            .contains(&ratio)
            .then_some(MapCache::Ratio(ratio))
    }
}

impl From<MapCache> for String {
    fn from(value: MapCache) -> String {
        match value {
            MapCache::Cached => "cached".to_string(),
            MapCache::Ratio(ratio) => format!("{ratio}:1"),
        }
    }
}

/// What to measure, and on what.
#[derive(Clone, Debug)]
pub struct Options {
    /// The drive.
    pub profile: Profile,
    /// Layouts, each measured alone.
    pub layouts: Vec<Layout>,
    /// Numbers of devices, each measured alone; none: as many as a stripe has columns.
    pub devices: Vec<u16>,
    /// What.
    pub rows: Vec<Kind>,
    /// Map to cache.
    pub maps: Vec<MapCache>,
    /// 4 KiB operations in flight for each device; a sixteenth of it for 128 KiB.
    pub depth: usize,
    /// Bytes of the volume, at least 8 MiB, for all but `sustained`, which derives it.
    pub volume_bytes: u64,
    /// Slots of each device in `sustained`.
    pub slots: u32,
    /// How often `sustained` overwrites its volume, 0.1 to 64; the second half is measured.
    pub overwrites: f64,
    /// Seed of the runtime and the load.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            profile: Profile::DATA24,
            layouts: Vec::new(),
            devices: Vec::new(),
            rows: Kind::DEFAULT.to_vec(),
            maps: vec![MapCache::Cached, MapCache::Ratio(12.0)],
            depth: 128,
            volume_bytes: 256 << 20,
            slots: 1100,
            overwrites: 4.0,
            seed: 1,
        }
    }
}

/// What a row was measured on.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Scale {
    /// Bytes of the volume.
    pub volume_bytes: u64,
    /// Bytes of a device.
    pub device_bytes: u64,
    /// Bytes of a slot.
    pub slot_bytes: u64,
    /// Bytes of a strip.
    pub strip_bytes: u64,
    /// The engine's memory setting.
    pub memory_bytes: u64,
    /// Operations measured.
    pub operations: u64,
    /// Operations before that, those that filled the volume not counted.
    pub warm: u64,
    /// Operations in flight.
    pub depth: usize,
}

/// How a phase of the engine's work took part in a row.
#[derive(Clone, Debug, Serialize)]
pub struct PhaseRow {
    /// Its name.
    pub phase: &'static str,
    /// Passes.
    pub count: u64,
    /// Time of all passes as a share of the time measured: above 1 where several pass at once.
    pub share: f64,
    /// Mean time of a pass, in microseconds.
    pub mean_us: f64,
    /// The longest since the array was there, in microseconds.
    pub most_us: f64,
}

/// One measured row. Rates are operations a second (`iops`) or bytes a second (`B/s`); `us` is the
/// mean time of one operation. Of `rebuild` the rate is that of lost bytes given back, and raw is the write rate of one
/// drive: what bounds a rebuild onto a replacement.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What, see [`Kind::name`].
    pub row: String,
    /// The drive's name.
    pub profile: &'static str,
    /// The layout as written.
    pub layout: String,
    /// Devices.
    pub devices: u16,
    /// Of `rebuild`: whether what was lost came back on a device in the place of the lost one.
    pub onto_replacement: bool,
    /// Map size : cache size.
    pub map_to_cache: MapCache,
    /// `cached` or `durable`.
    pub durability: &'static str,
    /// What was measured; `None` if the run ended early.
    pub value: Option<f64>,
    /// `iops`, `B/s` or `us`.
    pub unit: &'static str,
    /// The same of all devices raw (for `us`: of one device).
    pub raw: Option<f64>,
    /// `value / raw`.
    pub share_of_raw: Option<f64>,
    /// What the closed form says `value` can be.
    pub closed_form: Option<f64>,
    /// Bytes read and written on devices for each byte the host read or wrote.
    pub device_bytes_per_host_byte: Option<f64>,
    /// The same by the closed form.
    pub closed_form_device_bytes: Option<f64>,
    /// What the account says they should be, given what the run counted: see [`super::account`].
    pub accounted_device_bytes: Option<f64>,
    /// Device operations, flushes not counted, for each host operation.
    pub device_operations_per_host_operation: Option<f64>,
    /// Whether device bytes are within [`TOLERANCE`] of the account, and the write amplification at most
    /// [`MOST_AMPLIFICATION`] of the closed form's.
    pub valid: bool,
    /// Why not.
    pub reason: String,
    /// Share of the time that the devices were busy, mean over devices.
    pub busy: Option<f64>,
    /// Share of device writes that the model charges as random ones.
    pub scattered_writes: Option<f64>,
    /// 99th percentile of an operation's time, in microseconds.
    pub p99_us: Option<f64>,
    /// Data blocks written for each block the host wrote.
    pub write_amplification: Option<f64>,
    /// The same by the closed form.
    pub closed_form_write_amplification: f64,
    /// L: leaves that must be read and written for each map change, by the closed form.
    pub leaves_per_change: f64,
    /// Where the device traffic went.
    pub regions: Regions,
    /// At what scale.
    pub scale: Scale,
    /// Where the engine's time went.
    pub phases: Vec<PhaseRow>,
    /// Real seconds that this row took.
    pub real_seconds: f64,
}

/// Why a bench could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The layout does not fit the devices.
    #[error("the layout does not fit: {0}; give --devices, or another --layout")]
    Layout(#[from] LayoutError),
    /// The engine refused.
    #[error("the array could not be made: {0}")]
    Engine(#[from] Error),
    /// The volume is not there.
    #[error("the volume is gone: {0:?}")]
    Volume(VolumeError),
    /// A load ended early.
    #[error("{0}")]
    Stop(#[from] Stop),
    /// Nothing can ever run again.
    #[error("the engine hangs: no task can run and no timer is set")]
    Deadlock,
    /// Operations wait for something that never comes.
    #[error("the engine hangs: a load was not done after {0} seconds of virtual time")]
    Stuck(u64),
    /// It does not come to an end.
    #[error("the engine made no end of it in {0} polls")]
    Endless(u64),
}
