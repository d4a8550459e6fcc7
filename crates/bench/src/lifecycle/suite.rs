//! The suites, the states of an array, and which workloads a suite has in a state.
//!
//! **Invariants**: values only; a workload's label tells it from all others of its suite.

use serde::{Deserialize, Serialize};

use super::load::{Figure, Order, Work};
use crate::report::NORMAL;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// A suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Suite {
    /// Spec Sheet Random: 4 KiB.
    Ssr,
    /// Spec Sheet Sequential: 128 KiB.
    Sss,
    /// The table of a card's data sheet: 4 KiB on 12 drives, 512 KiB on 20.
    Spec,
    /// IOzone's throughput mode: 32 threads, records of 64 KiB, each thread a file of its own.
    Iozone,
    /// What a check of the whole array costs clients, and how fast it is.
    RaidCheck,
    /// The speed of each fifth of the array, written once in order and read.
    Zones,
    /// Large transfers by 1 to 64 streams, buffered and direct.
    Streams,
    /// Large transfers by 16 streams, by how much of a device is written in one go.
    Runs,
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

/// How many devices of an array are taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Down {
    /// So many.
    Count(u16),
    /// As many as each group of the layout survives.
    MaxPerGroup,
}

impl std::fmt::Display for Down {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Down::Count(count) => write!(f, "{count}"),
            Down::MaxPerGroup => write!(f, "max-per-group"),
        }
    }
}

impl Down {
    /// From how it is written.
    ///
    /// # Errors
    /// If it is neither a number nor `max-per-group`, for people.
    pub fn parse(text: &str) -> Result<Down, String> {
        if text == "max-per-group" {
            return Ok(Down::MaxPerGroup);
        }
        let number = text.parse().ok().filter(|n| *n > 0);
        number
            .map(Down::Count)
            .ok_or_else(|| format!("'{text}' is neither a number from 1 nor max-per-group"))
    }

    /// Which devices: the first of all, or the first M of each group.
    pub fn devices(self, shape: &ashlar_layout::Shape) -> Vec<u16> {
        match self {
            Down::Count(count) => (0..count).collect(),
            Down::MaxPerGroup => {
                let of_group = |group: &Vec<u16>| -> Vec<u16> {
                    group.iter().copied().take(usize::from(shape.m)).collect()
                };
                shape.groups.iter().flat_map(of_group).collect()
            }
        }
    }
}

/// Threads of IOzone in NSULATE's paper.
const THREADS: u16 = 32;
/// Records of a thread that the page cache has in flight: 256 KiB read ahead or written behind.
const RECORDS: u16 = 4;
/// Bytes of a transfer: the paper's are of 32 MiB, on arrays that are so much larger.
const TRANSFER: usize = 4 * MIB;
/// Streams of the curves.
const STREAMS: [u16; 4] = [1, 4, 16, 64];
/// Streams where runs are swept.
const MANY: u16 = 16;
/// Transfers of a stream in flight: with a cache one is read ahead or written behind.
const BUFFERED: u16 = 2;
const DIRECT: u16 = 1;
/// Bytes of a device that are written in one go: with 8 data columns 2 to 16 MiB of a file.
const RUNS: [u64; 4] = [256 << 10, 512 << 10, 1 << 20, 2 << 20];
/// Parts of an array whose speed is told apart.
const ZONES: u16 = 5;
/// Drives and layout of the data sheet's rows of 4 KiB, and of those of 512 KiB.
const SPEC: [(&str, usize); 2] = [("ec11+1", 12), ("ec19+1", 20)];

impl Suite {
    /// All of them.
    pub const ALL: [Suite; 8] = [
        Suite::Ssr,
        Suite::Sss,
        Suite::Spec,
        Suite::Iozone,
        Suite::RaidCheck,
        Suite::Zones,
        Suite::Streams,
        Suite::Runs,
    ];

    /// Its name in options and results.
    pub fn name(self) -> &'static str {
        match self {
            Suite::Ssr => "ssr",
            Suite::Sss => "sss",
            Suite::Spec => "spec",
            Suite::Iozone => "iozone",
            Suite::RaidCheck => "raid-check",
            Suite::Zones => "zones",
            Suite::Streams => "streams",
            Suite::Runs => "runs",
        }
    }

    /// From its name.
    pub fn named(name: &str) -> Option<Suite> {
        Suite::ALL.into_iter().find(|suite| suite.name() == name)
    }

    /// The layouts that it is about; none: those of the options.
    pub fn layouts(self) -> &'static [&'static str] {
        const LAYOUTS: [&str; 2] = [SPEC[0].0, SPEC[1].0];
        match self {
            Suite::Spec => &LAYOUTS,
            _ => &[],
        }
    }

    /// Whether it is about the first of the layouts only.
    pub(super) fn is_of_one(self) -> bool {
        matches!(self, Suite::Zones | Suite::Runs)
    }

    /// Whether the drives raw get the same: not where a stream of one raw drive would be set beside one of an array.
    pub(super) fn has_raw(self) -> bool {
        !matches!(self, Suite::Streams | Suite::Runs)
    }

    /// Its workloads in a state, on an array of so many devices.
    pub fn works(self, state: State, columns: usize) -> Vec<Work> {
        match self {
            Suite::Ssr => Work::RANDOM.to_vec(),
            Suite::Sss => Work::SEQUENTIAL.to_vec(),
            Suite::Spec => spec(state, columns),
            Suite::Iozone => iozone(),
            Suite::RaidCheck => raid_check(state),
            Suite::Zones | Suite::Streams | Suite::Runs if state != State::Normal => Vec::new(),
            Suite::Zones => zones(),
            Suite::Streams => transfers(&STREAMS, &[0]),
            Suite::Runs => transfers(&[MANY], &RUNS),
        }
    }
}

fn spec(state: State, columns: usize) -> Vec<Work> {
    let [write, _, read] = Work::RANDOM;
    let large = |name, reads| Work::new(name, reads, 512 * KIB, Order::Sequential);
    match (state, columns == SPEC[0].1) {
        (State::Normal, true) => vec![read, write],
        (State::Rebuild, true) => vec![read],
        (State::Normal, false) => vec![large("SR-512K", 100), large("SW-512K", 0)],
        _ => Vec::new(),
    }
}

fn iozone() -> Vec<Work> {
    let files = Order::Files(THREADS, RECORDS);
    let work = |name, reads| Work::new(name, reads, 64 * KIB, files);
    vec![work("write", 0), work("read", 100)]
}

fn raid_check(state: State) -> Vec<Work> {
    if state != State::Normal {
        return Vec::new();
    }
    let [write, mixed, read] = Work::RANDOM;
    let [in_order, written, ..] = Work::SEQUENTIAL;
    let clients = [in_order, written, read, mixed, write];
    let of = |figure| clients.map(|work| Work { figure, ..work });
    let alone = Work {
        figure: Figure::CheckAlone,
        ..in_order
    };
    let beside = clients.map(|work| Work {
        name: checked(work.name),
        ..work
    });
    [&clients[..], &beside, &of(Figure::Check), &[alone]].concat()
}

/// The name of a client's workload while a check runs.
fn checked(name: &str) -> &'static str {
    match name {
        "SR" => "SR while checked",
        "SW" => "SW while checked",
        "RR" => "RR while checked",
        "RM" => "RM while checked",
        _ => "RW while checked",
    }
}

fn zones() -> Vec<Work> {
    let part = |name, reads, index| Work::new(name, reads, MIB, Order::Part(index, ZONES));
    let kinds = [("write", 0), ("read", 100)];
    let of = |(name, reads)| (0..ZONES).map(move |index| part(name, reads, index));
    kinds.into_iter().flat_map(of).collect()
}

fn transfers(streams: &[u16], runs: &[u64]) -> Vec<Work> {
    let kinds = [
        ("buffered write", 0, BUFFERED),
        ("buffered read", 100, BUFFERED),
        ("direct write", 0, DIRECT),
        ("direct read", 100, DIRECT),
    ];
    // The paper sweeps what is allocated at once with buffered transfers only.
    let kinds = if runs.len() > 1 { &kinds[..2] } else { &kinds };
    let mut works = Vec::new();
    for (name, reads, ahead) in kinds {
        for streams in streams {
            for slot_bytes in runs {
                let order = Order::Streams(*streams, *ahead);
                works.push(Work {
                    slot_bytes: *slot_bytes,
                    ..Work::new(name, *reads, TRANSFER, order)
                });
            }
        }
    }
    works
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn labels_tell_the_works_of_a_suite_apart() {
        for suite in Suite::ALL {
            for state in State::ALL {
                for columns in [8, 12, 20, 41] {
                    let works = suite.works(state, columns);
                    let mut labels: Vec<String> = works.iter().map(Work::label).collect();
                    let count = labels.len();
                    labels.sort();
                    labels.dedup();
                    assert_eq!(labels.len(), count, "{suite:?} {state:?}");
                }
            }
        }
        let labels: Vec<String> = Suite::Zones
            .works(State::Normal, 41)
            .iter()
            .map(Work::label)
            .collect();
        assert_eq!(labels[0], "write to 20 %");
        let runs = Suite::Runs.works(State::Normal, 41);
        assert_eq!(runs[0].label(), "buffered write in runs of 256K");
        assert_eq!(runs[3].label(), "buffered write in runs of 2M");
    }

    #[test]
    fn what_is_taken_out_is_a_number_or_all_that_a_layout_survives() {
        assert_eq!(Down::parse("2").unwrap(), Down::Count(2));
        assert_eq!(Down::parse("max-per-group").unwrap(), Down::MaxPerGroup);
        for bad in ["0", "-1", "max", ""] {
            assert!(Down::parse(bad).is_err(), "{bad}");
        }
        let shape = |layout: &str, devices| {
            let layout: ashlar_layout::Layout = layout.parse().unwrap();
            layout.resolve(devices).unwrap()
        };
        let lost = Down::MaxPerGroup.devices(&shape("ec80+20", 100));
        assert_eq!(lost.len(), 20);
        let lost = Down::MaxPerGroup.devices(&shape("raid60:2", 10));
        assert_eq!(lost, [0, 1, 5, 6]);
        assert_eq!(Down::Count(3).devices(&shape("ec8+3", 11)), [0, 1, 2]);
    }
}
