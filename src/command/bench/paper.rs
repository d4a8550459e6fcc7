//! The papers whose suites are run here, and what stands in them.
//!
//! **Invariants**: values only; figures are as published.

use ashlar_bench::lifecycle::{Down, Rival, State, Suite};
use clap::ValueEnum;

/// A paper whose suites can be run as it ran them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Paper {
    /// SupremeRAID SR-1000 on OpenFlex Data24 (2022): six servers, RAID 5 7+1 on each
    Supremeraid,
    /// The data sheet in it: RAID 5 on 12 and 20 drives of one server
    SupremeraidSpec,
    /// xiRAID on OpenFlex Data24 3200 (2023): one server, 7+1 against 8+1
    Xiraid,
    /// NSULATE on 100 hard disks: 92+8, 85+15, 80+20, whole and with all that they survive down
    Nsulate,
    /// Sonexion GridRAID (2014), figures 1 to 7: 41 hard disks, zones, streams, runs
    Gridraid,
    /// The same paper, figures 15 and 16: clients while the array is checked
    GridraidCheck,
}

/// What is run of a paper where the command line says nothing else.
pub(super) struct Defaults {
    pub(super) suites: &'static [Suite],
    pub(super) states: &'static [State],
    pub(super) down: Down,
    pub(super) volume_bytes: u64,
    pub(super) fill: u8,
    pub(super) depth: usize,
}

impl Paper {
    /// All of them.
    #[cfg(test)]
    pub(super) const ALL: [Paper; 6] = [
        Paper::Supremeraid,
        Paper::SupremeraidSpec,
        Paper::Xiraid,
        Paper::Nsulate,
        Paper::Gridraid,
        Paper::GridraidCheck,
    ];

    pub(super) fn bed(self) -> &'static str {
        match self {
            Paper::Supremeraid => "data24",
            Paper::SupremeraidSpec => "nvme-tlc",
            Paper::Xiraid => "data24-3200",
            Paper::Nsulate => "orion100",
            Paper::Gridraid | Paper::GridraidCheck => "sonexion",
        }
    }

    pub(super) fn layouts(self) -> &'static [&'static str] {
        match self {
            Paper::Supremeraid => &["ec7+1"],
            Paper::SupremeraidSpec => &["ec11+1", "ec19+1"],
            Paper::Xiraid => &["ec7+1", "ec8+1"],
            Paper::Nsulate => &["ec92+8", "ec85+15", "ec80+20"],
            Paper::Gridraid => &["grid:41(8+2+2)", "4xec8+2"],
            Paper::GridraidCheck => &["grid:41(8+2+2)"],
        }
    }

    /// What it measured and what there is of it here.
    pub(super) fn defaults(self) -> Defaults {
        const SPEC_SHEET: [Suite; 2] = [Suite::Ssr, Suite::Sss];
        let usual = Defaults {
            suites: &SPEC_SHEET,
            states: &State::ALL,
            down: Down::Count(1),
            volume_bytes: 64 << 20,
            fill: 50,
            depth: 64,
        };
        match self {
            Paper::Supremeraid => Defaults {
                states: &[State::Normal, State::Down],
                ..usual
            },
            Paper::SupremeraidSpec => Defaults {
                suites: &[Suite::Spec],
                states: &[State::Normal, State::Rebuild],
                // Eight operations of 512 KiB in flight for each of 20 drives are 80 MiB.
                volume_bytes: 256 << 20,
                ..usual
            },
            Paper::Xiraid => usual,
            Paper::Nsulate => Defaults {
                suites: &[Suite::Iozone, Suite::Ssr],
                states: &[State::Normal, State::Down],
                down: Down::MaxPerGroup,
                volume_bytes: 1 << 30,
                fill: 40,
                depth: 4,
            },
            Paper::Gridraid => Defaults {
                suites: &[Suite::Zones, Suite::Streams, Suite::Runs],
                states: &[State::Normal],
                volume_bytes: 1 << 30,
                fill: 40,
                ..usual
            },
            Paper::GridraidCheck => Defaults {
                suites: &[Suite::RaidCheck],
                states: &[State::Normal],
                volume_bytes: 1 << 30,
                ..usual
            },
        }
    }

    /// Arrays that the paper compares with, which cannot run in virtual time: their bound is computed.
    pub(super) fn rivals(self) -> Vec<Rival> {
        let rivals: &[(&str, &str, usize)] = match self {
            Paper::Nsulate => &[
                ("10 x raidz2 8+2", "raid60:10", 100),
                ("5 x raidz3 17+3", "raid70:5", 100),
            ],
            Paper::Gridraid => &[("4 x md raid6 8+2", "4xraid6", 10)],
            _ => &[],
        };
        let rival = |(name, layout, devices): &(&str, &str, usize)| Rival {
            name: (*name).to_string(),
            layout: (*layout).to_string(),
            devices: *devices,
        };
        rivals.iter().map(rival).collect()
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Paper::Supremeraid => {
                "Ashlar on the test bed of the SupremeRAID SR-1000 white paper (OpenFlex Data24)"
            }
            Paper::SupremeraidSpec => "Ashlar beside the data sheet of SupremeRAID SR-1000",
            Paper::Xiraid => {
                "Ashlar on the test bed of the xiRAID white paper (OpenFlex Data24 3200)"
            }
            Paper::Nsulate => "Ashlar on the test bed of the NSULATE white paper (100 hard disks)",
            Paper::Gridraid => {
                "Ashlar on the test bed of the Sonexion GridRAID paper (41 hard disks), figures 1 to 7"
            }
            Paper::GridraidCheck => {
                "A check of an array beside its clients, on the test bed of the Sonexion GridRAID paper (41 hard disks)"
            }
        }
    }

    /// The figures that it prints as numbers.
    pub(super) fn published(self) -> &'static str {
        match self {
            Paper::Supremeraid => include_str!("../../../docs/papers/data/supremeraid.csv"),
            Paper::SupremeraidSpec => {
                include_str!("../../../docs/papers/data/supremeraid-spec.csv")
            }
            Paper::Xiraid => include_str!("../../../docs/papers/data/xiraid.csv"),
            Paper::Nsulate => include_str!("../../../docs/papers/data/nsulate.csv"),
            Paper::Gridraid => include_str!("../../../docs/papers/data/gridraid.csv"),
            Paper::GridraidCheck => include_str!("../../../docs/papers/data/gridraid-check.csv"),
        }
    }

    /// Our targets and the paper's that stand beside each other.
    pub(super) fn pairs(self) -> Vec<[String; 2]> {
        let pairs: &[[&str; 2]] = match self {
            Paper::Supremeraid => &[
                ["raw", "raw"],
                ["ec7+1", "SupremeRAID"],
                ["ec7+1", "software"],
            ],
            Paper::SupremeraidSpec => &[["ec11+1", "SupremeRAID"], ["ec19+1", "SupremeRAID"]],
            Paper::Xiraid => &[["ec7+1", "7+1"], ["ec8+1", "8+1"]],
            Paper::Gridraid => &[["raw", "GridRAID reconstruct"]],
            Paper::GridraidCheck => &[["grid:41(8+2+2)", "GridRAID"]],
            Paper::Nsulate => &[],
        };
        pairs.iter().map(|pair| pair.map(str::to_string)).collect()
    }

    pub(super) fn comparisons(self) -> Vec<[String; 2]> {
        match self {
            Paper::Xiraid => [["ec7+1", "ec8+1"], ["7+1", "8+1"]]
                .map(|pair| pair.map(str::to_string))
                .to_vec(),
            // A mean over numbers of streams would say nothing.
            Paper::Gridraid
            | Paper::GridraidCheck
            | Paper::Supremeraid
            | Paper::SupremeraidSpec
            | Paper::Nsulate => Vec::new(),
        }
    }
}
