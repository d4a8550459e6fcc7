//! The papers whose suites are run here, and what stands in them.
//!
//! **Invariants**: values only; figures are as published.

use ashlar_bench::lifecycle::State;
use clap::ValueEnum;

/// A paper whose suites can be run as it ran them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Paper {
    /// SupremeRAID SR-1000 on OpenFlex Data24 (2022): six servers, RAID 5 7+1 on each
    Supremeraid,
    /// xiRAID on OpenFlex Data24 3200 (2023): one server, 7+1 against 8+1
    Xiraid,
}

impl Paper {
    pub(super) fn bed(self) -> &'static str {
        match self {
            Paper::Supremeraid => "data24",
            Paper::Xiraid => "data24-3200",
        }
    }

    pub(super) fn layouts(self) -> &'static [&'static str] {
        match self {
            Paper::Supremeraid => &["ec7+1"],
            Paper::Xiraid => &["ec7+1", "ec8+1"],
        }
    }

    /// The states that it measured and that there are here.
    pub(super) fn states(self) -> &'static [State] {
        match self {
            Paper::Supremeraid => &[State::Normal, State::Down],
            Paper::Xiraid => &State::ALL,
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Paper::Supremeraid => {
                "Ashlar on the test bed of the SupremeRAID SR-1000 white paper (OpenFlex Data24)"
            }
            Paper::Xiraid => {
                "Ashlar on the test bed of the xiRAID white paper (OpenFlex Data24 3200)"
            }
        }
    }

    pub(super) fn published(self) -> &'static str {
        match self {
            Paper::Supremeraid => include_str!("../../../docs/papers/data/supremeraid.csv"),
            Paper::Xiraid => include_str!("../../../docs/papers/data/xiraid.csv"),
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
            Paper::Xiraid => &[["ec7+1", "7+1"], ["ec8+1", "8+1"]],
        };
        pairs.iter().map(|pair| pair.map(str::to_string)).collect()
    }

    pub(super) fn comparisons(self) -> Vec<[String; 2]> {
        match self {
            Paper::Supremeraid => Vec::new(),
            Paper::Xiraid => [["ec7+1", "ec8+1"], ["7+1", "8+1"]]
                .map(|pair| pair.map(str::to_string))
                .to_vec(),
        }
    }
}
