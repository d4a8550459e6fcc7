//! What is measured of an array's life: suites, states, cases, and in which order.
//!
//! **Invariants**: the cases and their order follow from the options.

use ashlar_device::Bed;
use ashlar_layout::Layout;
use serde::Serialize;

use super::load::{Amount, Work};
use crate::report::{NORMAL, RAW, Sample, stats};

/// Operations measured at least for each that is in flight.
pub(super) const ROUNDS: u64 = 64;

/// How often writing workloads write each volume over.
const VOLUMES_MEASURED: u64 = 4;

/// How much larger the volumes are whose rebuild is measured with large operations: it moves few of them.
const REBUILD_VOLUMES: u64 = 4;

/// Operations that a figure needs at least for each that is in flight.
pub(super) const ROUNDS_IN_FLIGHT: u64 = 4;

/// Windows that a run is cut into.
pub const WINDOWS: usize = 10;

/// Windows of a round of the steady-state test.
pub(super) const WINDOWS_OF_ROUND: usize = WINDOWS / stats::STEADY_ROUNDS;

/// A suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Suite {
    /// Spec Sheet Random: 4 KiB.
    Ssr,
    /// Spec Sheet Sequential: 128 KiB.
    Sss,
}

impl Suite {
    /// Its name in options and results.
    pub fn name(self) -> &'static str {
        match self {
            Suite::Ssr => "ssr",
            Suite::Sss => "sss",
        }
    }

    /// From its name.
    pub fn named(name: &str) -> Option<Suite> {
        [Suite::Ssr, Suite::Sss]
            .into_iter()
            .find(|suite| suite.name() == name)
    }

    /// Its workloads.
    pub fn works(self) -> &'static [Work] {
        match self {
            Suite::Ssr => &Work::RANDOM,
            Suite::Sss => &Work::SEQUENTIAL,
        }
    }
}

/// A state of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// All devices there.
    Normal,
    /// Devices gone, and nothing rebuilt.
    Down,
    /// Devices gone, and the array rebuilds.
    Rebuild,
}

impl State {
    /// All of them.
    pub const ALL: [State; 3] = [State::Normal, State::Down, State::Rebuild];

    /// Its name in options and results.
    pub fn name(self) -> &'static str {
        match self {
            State::Normal => NORMAL,
            State::Down => "down",
            State::Rebuild => "rebuild",
        }
    }

    /// From its name.
    pub fn named(name: &str) -> Option<State> {
        State::ALL.into_iter().find(|state| state.name() == name)
    }
}

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
    pub down: u16,
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
}

impl Default for Options {
    fn default() -> Options {
        Options {
            suites: vec![Suite::Ssr, Suite::Sss],
            states: State::ALL.to_vec(),
            layouts: vec!["ec7+1".to_string()],
            bed: Bed::DATA24.name.to_string(),
            arrays: None,
            down: 1,
            repeat: 3,
            seed: 1,
            volume_bytes: 64 << 20,
            fill: 0.5,
            overwrites: 1.0,
            depth: 64,
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
            self.work.name,
            self.layout.as_deref().unwrap_or(RAW),
            self.columns,
            self.run
        )
    }

    /// Bytes of each array's volume, where most cases have `bytes`.
    pub(super) fn volume_bytes(&self, bytes: u64) -> u64 {
        match (self.state, self.suite) {
            (State::Rebuild, Suite::Sss) => bytes * REBUILD_VOLUMES,
            _ => bytes,
        }
    }

    /// Whether `sample` is one of this case on so many arrays.
    pub fn is_of(&self, sample: &Sample, arrays: usize) -> bool {
        sample.suite == self.suite.name()
            && sample.state == self.state.name()
            && sample.workload == self.work.name
            && sample.target == self.layout.as_deref().unwrap_or(RAW)
            && sample.devices as usize == arrays * self.columns
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
                "'{}' is no test bed: use {}, or a drive of `bench engine --profile`",
                self.bed,
                beds.join(", ")
            )
        })
    }

    /// Arrays at once.
    pub fn array_count(&self, bed: &Bed) -> usize {
        self.arrays.unwrap_or(bed.hosts).max(1)
    }

    /// All cases, in the order to run them in.
    ///
    /// # Errors
    /// If a layout is none, for people.
    pub fn cases(&self) -> Result<Vec<Case>, String> {
        let mut cases = Vec::new();
        let mut widths = Vec::new();
        for layout in &self.layouts {
            let columns = columns(layout)?;
            if !widths.contains(&columns) {
                widths.push(columns);
                self.add(&mut cases, None, columns, &[State::Normal]);
            }
            self.add(&mut cases, Some(layout), columns, &self.states);
        }
        shuffle(&mut cases, self.seed);
        Ok(cases)
    }

    fn add(
        &self,
        cases: &mut Vec<Case>,
        layout: Option<&String>,
        columns: usize,
        states: &[State],
    ) {
        for suite in &self.suites {
            for state in states {
                for work in suite.works() {
                    for run in 1..=self.repeat {
                        cases.push(Case {
                            suite: *suite,
                            state: *state,
                            work: *work,
                            layout: layout.cloned(),
                            columns,
                            run,
                        });
                    }
                }
            }
        }
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
            "Arrays are small: a volume of {} MiB on each ({} MiB where a rebuild is measured with 128 KiB), {:.0} % of the array's data blocks, strips of 16 KiB, slots of 256 KiB, memory for the whole map.",
            mib(self.volume_bytes),
            mib(self.volume_bytes * REBUILD_VOLUMES),
            self.fill * 100.0,
        ));
        all.push(format!(
            "In flight for each device: {} operations of 4 KiB, {} of 128 KiB. Writes are acknowledged by the write cache, as on the drives raw.",
            self.depth,
            self.large_depth()
        ));
        all.push(format!(
            "Preconditioned apart: the volume is written once in order; before random workloads it is overwritten {} times at random.",
            self.overwrites
        ));
        all.push("Split by job: the addresses are divided between 8 jobs, each goes through its part in order.".to_string());
        all.push(format!(
            "Down: {} device(s) of each array failed, nothing is rebuilt. Rebuild: the same, and the array rebuilds into its own free space, narrower; there is no replacement drive. Only what was done while all arrays rebuilt is measured.",
            self.down
        ));
        Ok(all)
    }

    pub(super) fn large_depth(&self) -> usize {
        self.depth.div_ceil(8)
    }

    /// How much of a workload is measured: many rounds of what is in flight, and each volume written over many times, so
    /// that a window has several commits of each array.
    pub(super) fn amount(&self, work: Work, depth: usize, arrays: usize) -> Amount {
        let in_flight = (depth * arrays) as u64;
        let written = self.volume_bytes * arrays as u64 * VOLUMES_MEASURED / work.bytes as u64;
        let writing = (written * 100).checked_div(100 - work.reads);
        Amount {
            depth,
            warm: in_flight * 8,
            count: writing.unwrap_or(0).max(in_flight * ROUNDS),
        }
    }
}

/// Devices that a stripe of a layout needs.
pub(super) fn columns(layout: &str) -> Result<usize, String> {
    let parsed = layout
        .parse::<Layout>()
        .map_err(|error| format!("'{layout}' is no layout: {error}"))?;
    let devices = crate::engine::device_count(&parsed, None).map_err(|error| error.to_string())?;
    Ok(usize::from(devices))
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
