//! Arguments of the daemon and of the verbs that need none.

use std::path::PathBuf;

use clap::Args;

use crate::units::parse_size;

/// `daemon`.
#[derive(Debug, Args)]
pub(crate) struct DaemonArgs {
    /// Where the list of known arrays is kept
    #[arg(long, value_name = "DIR", default_value = "/var/lib/ashlar")]
    pub(crate) state: PathBuf,
    /// Memory for open stripes, map changes and map cache [default: a quarter of the machine's]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) memory: Option<u64>,
    /// Parts that arrays are divided into for parallel work [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) shards: Option<u16>,
    /// Also serve /metrics for Prometheus at this loopback address (the socket always serves it)
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) metrics: Option<String>,
}

/// `inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// The device or file
    #[arg(value_name = "DEV")]
    pub(crate) device: PathBuf,
    /// The other devices of its array, for --map
    #[arg(value_name = "OTHER", requires = "map")]
    pub(crate) others: Vec<PathBuf>,
    /// Only the column of this segment: table entry and header
    #[arg(long, value_name = "N")]
    pub(crate) segment: Option<u64>,
    /// Every slot that is in use
    #[arg(long, conflicts_with = "segment")]
    pub(crate) slots: bool,
    /// Every journal record that has a column here, whether it is whole, and whether recovery needs it
    #[arg(long, conflicts_with_all = ["segment", "slots"])]
    pub(crate) journal: bool,
    /// Where each block of a volume lies; needs as many devices as the array starts with
    #[arg(long, value_name = "VOL", conflicts_with_all = ["segment", "slots", "journal"])]
    pub(crate) map: Option<String>,
    /// How evenly segments are spread: how many of this device's segments each other device shares
    #[arg(long, conflicts_with_all = ["segment", "slots", "journal", "map"])]
    pub(crate) balance: bool,
}

/// `verify`.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// All devices of the array
    #[arg(value_name = "DEV", required = true)]
    pub(crate) devices: Vec<PathBuf>,
}

/// `demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Where to make the temporary folder [default: the system's]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// How much data to write
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    pub(crate) size: u64,
}

/// `completions`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

/// `man-pages`.
#[derive(Debug, Args)]
pub(crate) struct ManPagesArgs {
    /// The directory
    pub(crate) dir: PathBuf,
}

/// `support`.
#[derive(Debug, Args)]
pub(crate) struct SupportArgs {
    /// The file to make
    #[arg(value_name = "FILE.tar.gz", value_hint = clap::ValueHint::FilePath)]
    pub(crate) file: PathBuf,
}
