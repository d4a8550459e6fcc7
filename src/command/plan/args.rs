//! The flags of `plan`.
//!
//! **Invariants**: values only.

use std::path::PathBuf;

use crate::units::parse_size;

/// `plan`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Devices
    #[arg(
        long,
        value_name = "P",
        required_unless_present = "array",
        conflicts_with = "array"
    )]
    pub(super) devices: Option<u32>,
    /// Size of a device
    #[arg(long, value_name = "SIZE", value_parser = parse_size, required_unless_present = "array", conflicts_with = "array")]
    pub(super) size: Option<u64>,
    /// An existing array, in its present state, instead
    #[arg(long, value_name = "ARRAY")]
    pub(super) array: Option<String>,
    /// Share of the devices that fails within a year, in percent
    #[arg(long, value_name = "PERCENT")]
    pub(super) afr: f64,
    /// Compare just these layouts; may be given several times
    #[arg(long, value_name = "LAYOUT", conflicts_with = "array")]
    pub(super) layout: Vec<String>,
    /// Bandwidth that a rebuild gets on each device
    #[arg(long, value_name = "RATE", default_value = "50M", value_parser = parse_size)]
    pub(super) bandwidth: u64,
    /// Usable capacity wanted, after parity, spare space and all reserves
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "array")]
    pub(super) capacity: Option<u64>,
    /// Devices that may fail at once, whichever they are
    #[arg(long, value_name = "N", conflicts_with = "array")]
    pub(super) survive: Option<u16>,
    /// Hours from a failure to full redundancy, at most
    #[arg(long, value_name = "HOURS", conflicts_with = "array")]
    pub(super) rebuild: Option<f64>,
    /// Nines of losing nothing within a year [default without --layout: 5]
    #[arg(long, value_name = "NINES", conflicts_with = "array")]
    pub(super) nines: Option<f64>,
    /// Failure domains (enclosures, hosts) the devices are spread over
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) domains: u16,
    /// Failures of a whole domain per year, for each domain
    #[arg(long, value_name = "RATE", default_value_t = 0.0, requires = "domains")]
    pub(super) domain_failures: f64,
    /// The loss of a whole domain must be survived
    #[arg(long, requires = "domains", conflicts_with = "array")]
    pub(super) survive_domain: bool,
    /// Share of the devices that holds live data, in percent
    #[arg(
        long,
        value_name = "PERCENT",
        default_value_t = 100.0,
        conflicts_with = "array"
    )]
    pub(super) fill: f64,
    /// Hours until a failed device is replaced
    #[arg(long, value_name = "HOURS", default_value_t = 24.0)]
    pub(super) replace: f64,
    /// Unreadable bits per bit read, as data sheets give it
    #[arg(long, value_name = "RATE", default_value = "1e-15")]
    pub(super) unreadable: f64,
    /// Latent errors that arise per device and year
    #[arg(long, value_name = "RATE", default_value_t = 0.1)]
    pub(super) latent: f64,
    /// Days between scrubs; one starts by itself every 30 (setting scrub.every)
    #[arg(long, value_name = "DAYS", default_value_t = 30.0)]
    pub(super) scrub: f64,
    /// The daemon's socket.
    #[clap(from_global)]
    pub(super) socket: Option<PathBuf>,
}
