//! What is measured of an array's life: suites, states, cases, and in which order.
//!
//! **Invariants**: the cases and their order follow from the options.

use ashlar_device::Bed;
use ashlar_layout::Layout;
use serde::Serialize;

use super::load::{Amount, Figure, Order, Work};
use super::suite::{Down, State, Suite};
use crate::report::{RAW, Sample, stats};

/// Operations measured at least for each that is in flight.
pub(super) const ROUNDS: u64 = 64;

/// How often writing workloads write each volume over.
const VOLUMES_MEASURED: u64 = 4;
/// How often random writes overwrite volumes, all arrays together: commits and cleaning come in turns, and a round of the
/// steady-state test must hold many of them, also where there is one array and no other evens it out.
const TURNS: u64 = 24;

/// How much larger the volumes are whose rebuild is measured: it moves little, and must not be over before the load says
/// something.
const REBUILD_VOLUMES: u64 = 4;
/// The same for random operations: they are small, but slow a rebuild down less.
const REBUILD_VOLUMES_RANDOM: u64 = 4;
/// How much larger and fuller the volumes are whose zones are measured.
const ZONE_VOLUMES: u64 = 2;
const ZONE_FILL: f64 = 0.65;
/// Slots and strips of drives that are no disks, of disks, and of disks where many columns make a segment large.
const FAST: (u64, u32) = (256 << 10, 16 << 10);
const DISKS: (u64, u32) = (1 << 20, 128 << 10);
const WIDE_DISKS: (u64, u32) = (256 << 10, 32 << 10);
/// Columns from which on a stripe is a wide one.
const WIDE: u16 = 32;

/// Operations that a figure needs at least for each that is in flight.
pub(super) const ROUNDS_IN_FLIGHT: u64 = 4;

/// Windows that a run is cut into.
pub const WINDOWS: usize = 10;

/// Windows of a round of the steady-state test.
pub(super) const WINDOWS_OF_ROUND: usize = WINDOWS / stats::STEADY_ROUNDS;

/// What to run.
#[derive(Clone, Debug, Serialize)]
pub struct Options {
    /// The suites.
    pub suites: Vec<Suite>,
    /// The states.
    pub states: Vec<State>,
    /// Layouts, as written.
    pub layouts: Vec<String>,
    /// The test bed.
    pub bed: String,
    /// Arrays at once; `None`: one for each host of the bed.
    pub arrays: Option<usize>,
    /// Devices taken out of each array in the states that do.
    pub down: Down,
    /// Runs of each case.
    pub repeat: u32,
    /// Seed of the order and of all runs.
    pub seed: u64,
    /// Bytes of each array's volume.
    pub volume_bytes: u64,
    /// Share of an array's data blocks that the volume takes.
    pub fill: f64,
    /// How often the volume is overwritten at random before random workloads.
    pub overwrites: f64,
    /// 4 KiB operations in flight for each device; an eighth of that for 128 KiB.
    pub depth: usize,
    /// Bytes of a slot; `None`: what suits the bed's drives.
    pub slot_bytes: Option<u64>,
    /// Bytes of a strip; `None`: what suits the bed's drives.
    pub strip_bytes: Option<u32>,
    /// Bytes a second of each device that a check takes at least, beside clients.
    pub check_floor: u64,
    /// Arrays of others, whose bound is computed beside.
    pub rivals: Vec<Rival>,
}

/// An array of others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rival {
    /// Its name in the rows.
    pub name: String,
    /// Its layout, in our words, `4xraid6` for four of them.
    pub layout: String,
    /// Devices of one array.
    pub devices: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            suites: vec![Suite::Ssr, Suite::Sss],
            states: State::ALL.to_vec(),
            layouts: vec!["ec7+1".to_string()],
            bed: Bed::DATA24.name.to_string(),
            arrays: None,
            down: Down::Count(1),
            repeat: 3,
            seed: 1,
            volume_bytes: 64 << 20,
            fill: 0.5,
            overwrites: 1.0,
            depth: 64,
            slot_bytes: None,
            strip_bytes: None,
            check_floor: 10_000_000,
            rivals: Vec::new(),
        }
    }
}

/// One thing to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The suite.
    pub suite: Suite,
    /// The state.
    pub state: State,
    /// The workload.
    pub work: Work,
    /// The layout; `None`: the devices raw.
    pub layout: Option<String>,
    /// Devices of an array.
    pub columns: usize,
    /// Arrays at once.
    pub arrays: usize,
    /// Which run, from 1.
    pub run: u32,
}

impl Case {
    /// What tells it from the others.
    pub fn name(&self) -> String {
        format!(
            "{} {} {} {} x{} run {}",
            self.suite.name(),
            self.state.name(),
            self.work.label(),
            self.target(),
            self.columns,
            self.run
        )
    }

    /// What is measured, by name.
    pub fn target(&self) -> &str {
        self.layout.as_deref().unwrap_or(RAW)
    }

    /// Its layout without the number of arrays before it.
    pub(super) fn layout_alone(&self) -> Option<&str> {
        self.layout.as_deref().map(|layout| split_arrays(layout).1)
    }

    /// Bytes of each array's volume, where most cases have `bytes`.
    pub(super) fn volume_bytes(&self, bytes: u64) -> u64 {
        match (self.state, self.work.is_small()) {
            (State::Rebuild, false) => bytes * REBUILD_VOLUMES,
            (State::Rebuild, true) => bytes * REBUILD_VOLUMES_RANDOM,
            // Several arrays in place of one have its data between them.
            _ => match self
                .layout
                .as_deref()
                .and_then(|layout| split_arrays(layout).0)
            {
                Some(arrays) => bytes / arrays.max(1) as u64,
                None if self.suite == Suite::Zones => bytes * ZONE_VOLUMES,
                None => bytes,
            },
        }
    }

    /// The share of an array's data blocks that its volume takes, where most cases have `fill`: zones are of all of it.
    pub(super) fn fill(&self, fill: f64) -> f64 {
        if self.suite == Suite::Zones {
            fill.max(ZONE_FILL)
        } else {
            fill
        }
    }

    /// Whether `sample` is one of this case.
    pub fn is_of(&self, sample: &Sample) -> bool {
        sample.suite == self.suite.name()
            && sample.state == self.state.name()
            && sample.workload == self.work.label()
            && sample.target == self.target()
            && sample.devices as usize == self.arrays * self.columns
            && sample.run == self.run
    }

    /// The seed of this case: of its name and the seed of all.
    pub(super) fn seed(&self, all: u64) -> u64 {
        let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        self.name().bytes().fold(0xcbf2_9ce4_8422_2325 ^ all, fold)
    }
}

impl Options {
    /// The bed.
    ///
    /// # Errors
    /// If there is none of that name, for people.
    pub fn bed(&self) -> Result<Bed, String> {
        Bed::named(&self.bed).ok_or_else(|| {
            let beds: Vec<&str> = Bed::ALL.iter().map(|bed| bed.name).collect();
            format!(
                "'{}' is not a test bed: use {}, or a drive of `bench engine --profile`",
                self.bed,
                beds.join(", ")
            )
        })
    }

    /// Arrays at once, where a layout names no number of its own.
    pub fn array_count(&self, bed: &Bed) -> usize {
        self.arrays.unwrap_or(bed.hosts).max(1)
    }

    /// All cases, in the order to run them in.
    ///
    /// # Errors
    /// If a layout is none, for people.
    pub fn cases(&self) -> Result<Vec<Case>, String> {
        let mut cases = Vec::new();
        let mut raws = Vec::new();
        for suite in &self.suites {
            for layout in self.layouts_of(*suite) {
                let columns = columns(split_arrays(&layout).1)?;
                let arrays = self.arrays_of(*suite, &layout)?;
                let raw = (suite.name(), columns, arrays);
                if suite.has_raw() && !raws.contains(&raw) {
                    raws.push(raw);
                    self.add(&mut cases, (*suite, State::Normal), None, (columns, arrays));
                }
                for state in &self.states {
                    self.add(
                        &mut cases,
                        (*suite, *state),
                        Some(&layout),
                        (columns, arrays),
                    );
                }
            }
        }
        shuffle(&mut cases, self.seed);
        Ok(cases)
    }

    /// The layouts that a suite runs on.
    pub(super) fn layouts_of(&self, suite: Suite) -> Vec<String> {
        match suite.layouts() {
            // Others would need as much again, and say nothing of them that streams do not.
            [] if suite.is_of_one() => self.layouts.iter().take(1).cloned().collect(),
            [] => self.layouts.clone(),
            own => own.iter().map(|layout| (*layout).to_string()).collect(),
        }
    }

    /// How many arrays of a layout are used at once.
    pub(super) fn arrays_of(&self, suite: Suite, layout: &str) -> Result<usize, String> {
        let of_bed = || self.bed().map(|bed| self.array_count(&bed));
        match (split_arrays(layout).0, suite) {
            (Some(arrays), _) => Ok(arrays),
            (None, Suite::Spec) => Ok(1),
            (None, _) => of_bed(),
        }
    }

    fn add(
        &self,
        cases: &mut Vec<Case>,
        (suite, state): (Suite, State),
        layout: Option<&String>,
        (columns, arrays): (usize, usize),
    ) {
        for work in suite.works(state, columns) {
            // Raw devices have nothing to check.
            let checks = work.figure != Figure::Clients || work.is_checked();
            if layout.is_none() && checks {
                continue;
            }
            for run in 1..=self.repeat {
                cases.push(Case {
                    suite,
                    state,
                    work,
                    layout: layout.cloned(),
                    columns,
                    arrays,
                    run,
                });
            }
        }
    }

    /// Slots and strips of an array of so many data columns.
    pub(super) fn sizes(&self, bed: &Bed, work: Work, k: u16) -> (u64, u32) {
        let (slot, strip) = match bed.drive.rotation {
            None => FAST,
            Some(_) if k >= WIDE => WIDE_DISKS,
            Some(_) => DISKS,
        };
        let slot = self.slot_bytes.unwrap_or(slot);
        let slot = if work.slot_bytes > 0 {
            work.slot_bytes
        } else {
            slot
        };
        let strip = self.strip_bytes.unwrap_or(strip);
        // A slot holds a few strips at least.
        let most = u32::try_from(slot / 8).unwrap_or(u32::MAX).max(4096);
        (slot, strip.min(most))
    }

    /// What a reader must know of the figures.
    ///
    /// # Errors
    /// As [`Options::bed`].
    pub fn assumptions(&self) -> Result<Vec<String>, String> {
        let bed = self.bed()?;
        let mib = |bytes: u64| bytes >> 20;
        let mut all = vec![
            format!("Test bed {}: {}.", bed.name, bed.source),
            format!("Drive {}: {}.", bed.drive.name, bed.drive.source),
        ];
        all.extend(bed.assumed.iter().map(|text| (*text).to_string()));
        all.push(format!(
            "Arrays are small: a volume of {} MiB on each ({} MiB where a rebuild is measured), {:.0} % of the array's data blocks, {}, memory for the whole map.",
            mib(self.volume_bytes),
            mib(self.volume_bytes * REBUILD_VOLUMES),
            self.fill * 100.0,
            self.sizes_told(&bed)?,
        ));
        all.push(format!(
            "In flight for each device: {} operations of 4 KiB, {} of 64 KiB and more, unless a suite has threads or streams of its own. Writes are acknowledged by the write cache, as on the drives raw. Processors cost no time; digests are xxh3.",
            self.depth,
            self.large_depth()
        ));
        all.push(format!(
            "Preconditioned apart: the volume is written once in order; before random workloads it is overwritten {} times at random.",
            self.overwrites
        ));
        all.extend(self.suites.iter().flat_map(|suite| self.assumed_by(*suite)));
        all.push(format!(
            "Down: {} device(s) of each array failed, nothing is rebuilt. Rebuild: the same, and the array rebuilds into its own free space, narrower; there is no replacement drive. Only what was done while all arrays rebuilt is measured.",
            self.down
        ));
        Ok(all)
    }

    /// Slots and strips of each layout.
    fn sizes_told(&self, bed: &Bed) -> Result<String, String> {
        let mut told: Vec<String> = Vec::new();
        for suite in &self.suites {
            for layout in self.layouts_of(*suite) {
                let shape = shape(split_arrays(&layout).1)?;
                let (slot, strip) = self.sizes(bed, Work::FILL, shape.k);
                let text = format!(
                    "strips of {} KiB and slots of {} KiB",
                    strip >> 10,
                    slot >> 10
                );
                if !told.contains(&text) {
                    told.push(text);
                }
            }
        }
        Ok(told.join(" or "))
    }

    /// What a reader must know of a suite.
    fn assumed_by(&self, suite: Suite) -> Vec<String> {
        let text = match suite {
            Suite::Ssr => return Vec::new(),
            Suite::Sss => "Split by job: the addresses are divided between 8 jobs, each goes through its part in order.".to_string(),
            Suite::Spec => "Suite spec: one array, RAID 5 on 12 drives for 4 KiB and on 20 for 512 KiB; the data sheet names no layout.".to_string(),
            Suite::Iozone => "Suite iozone: 32 threads, each with a part of the volume for a file, records of 64 KiB; a page cache keeps 4 records of each thread in flight. No file system is modelled. Files are written over, so write and rewrite are the same, and nothing is cached, so read and reread are.".to_string(),
            Suite::RaidCheck => format!(
                "Suite raid-check: a check reads all devices of an array in order, {} MB/s of each beside clients and as fast as they give without. It stands for the reads of a check of data and parity: the engine has none of its own yet, and nothing is compared.",
                self.check_floor / 1_000_000
            ),
            Suite::Zones => "Suite zones: the array is written once in order, and each fifth of what is written is timed and read on its own, with 1 MiB at a time. They are of the first layout.".to_string(),
            Suite::Streams | Suite::Runs => "Suites streams and runs: each stream goes through a part of the addresses in order, all arrays together, with 4 MiB at a time (the paper has 32 MiB, on an array that is so much larger); direct has one transfer of each in flight, buffered two: one is read ahead or written behind. A run is what is written to a device in one go: a slot.".to_string(),
        };
        vec![text]
    }

    pub(super) fn large_depth(&self) -> usize {
        self.depth.div_ceil(8)
    }

    /// How much of a workload is measured: many rounds of what is in flight, and each volume written over many times, so
    /// that a window has several commits of each array.
    pub(super) fn amount(&self, case: &Case, depth: usize) -> Amount {
        let (work, arrays) = (case.work, case.arrays as u64);
        let in_flight = match work.order {
            Order::Streams(streams, ahead) | Order::Files(streams, ahead) => {
                u64::from(streams) * u64::from(ahead)
            }
            _ => depth as u64 * arrays,
        };
        let units = case.volume_bytes(self.volume_bytes) * arrays / work.bytes as u64;
        if let Order::Part(_, of) = work.order {
            return Amount {
                depth,
                warm: 0,
                count: (units / u64::from(of)).max(1),
                in_flight,
            };
        }
        let disks = self.bed().is_ok_and(|bed| bed.drive.rotation.is_some());
        let times = match work.order {
            // A disk does few of them: so much is a long time already.
            Order::Random if disks => 1,
            Order::Random => VOLUMES_MEASURED.max(TURNS / arrays),
            Order::Streams(..) | Order::Files(..) => 1,
            _ => VOLUMES_MEASURED,
        };
        let writing = (units * times * 100).checked_div(100 - work.reads);
        // Streams of large transfers: each volume read or written once at least, in place of very many rounds.
        let (rounds, least) = match work.order {
            Order::Streams(..) | Order::Files(..) => (ROUNDS_IN_FLIGHT, units),
            _ => (ROUNDS, 0),
        };
        Amount {
            depth,
            warm: in_flight * if rounds == ROUNDS { 8 } else { 1 },
            count: writing.unwrap_or(least).max(in_flight * rounds),
            in_flight,
        }
    }
}

/// Devices that a stripe of a layout needs.
pub(super) fn columns(layout: &str) -> Result<usize, String> {
    let parsed = layout
        .parse::<Layout>()
        .map_err(|error| format!("'{layout}' is not a layout: {error}"))?;
    let devices = crate::engine::device_count(&parsed, None).map_err(|error| error.to_string())?;
    Ok(usize::from(devices))
}

/// The number of arrays before a layout, `4xec8+2`, and the layout.
pub(super) fn split_arrays(layout: &str) -> (Option<usize>, &str) {
    let split = layout.split_once('x');
    let found = split.and_then(|(arrays, rest)| Some((arrays.parse().ok()?, rest)));
    found.map_or((None, layout), |(arrays, rest)| (Some(arrays), rest))
}

/// The shape of a layout on as many devices as it needs.
pub(super) fn shape(layout: &str) -> Result<ashlar_layout::Shape, String> {
    let parsed = layout
        .parse::<Layout>()
        .map_err(|error| format!("'{layout}' is not a layout: {error}"))?;
    let devices = u16::try_from(columns(layout)?).map_err(|_| "too many devices".to_string())?;
    parsed.resolve(devices).map_err(|error| error.to_string())
}

fn shuffle(cases: &mut [Case], seed: u64) {
    let mut state = seed ^ 0x9E37_79B9_7F4A_7C15;
    for last in (1..cases.len()).rev() {
        // SplitMix64.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let other = usize::try_from((mixed ^ (mixed >> 31)) % (last as u64 + 1));
        cases.swap(last, other.expect("an index"));
    }
}
