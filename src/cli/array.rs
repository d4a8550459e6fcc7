//! Arguments of the verbs that make, start, change and end arrays.

use std::path::PathBuf;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use super::complete;
use super::parse::{Attach, parse_attach, parse_pair, parse_volume};
use crate::units::{parse_room, parse_size};

/// A verb that takes an array and nothing else.
#[derive(Debug, Args)]
pub(crate) struct ArrayArgs {
    /// The array's name
    #[arg(add = ArgValueCompleter::new(complete::arrays))]
    pub(crate) array: String,
}

/// `create`.
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// The new array's name
    pub(crate) array: String,
    /// How data and parity are laid out, for example ec8+2
    #[arg(long, add = ArgValueCompleter::new(complete::layouts))]
    pub(crate) layout: String,
    /// Devices' worth of space to keep free for rebuilds
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub(crate) spare: u16,
    /// Consecutive bytes of a stripe on one device [default: by the layout]
    #[arg(long, alias = "chunk", value_name = "SIZE", value_parser = parse_size)]
    pub(crate) strip: Option<u64>,
    /// Unit of allocation on a device [default: by the device's size]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) slot: Option<u64>,
    /// A device's failure domain (enclosure, host, rack); give it for every device or none
    #[arg(long, value_name = "DEV=LABEL", value_parser = parse_pair)]
    pub(crate) domain: Vec<(String, String)>,
    /// A file of failure domains, a line each: a device or a pattern for devices, and the label; --domain wins over it
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(crate) domain_file: Option<PathBuf>,
    /// Make devices that do not exist as sparse files of this size
    #[arg(long, value_name = "SIZE", value_parser = parse_room)]
    pub(crate) file_size: Option<u64>,
    /// Also make a volume, of this size or of all free space
    #[arg(long, value_name = "NAME[=SIZE]", value_parser = parse_volume)]
    pub(crate) volume: Option<(String, Option<u64>)>,
    /// Serve that volume: loop, nbd=unix:PATH, nbd=HOST:PORT or fuse=DIR
    #[arg(long, value_name = "HOW", requires = "volume", value_parser = parse_attach)]
    pub(crate) attach: Option<Attach>,
    /// Dry run: show the result, change nothing
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Overwrite whatever the devices hold
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    /// Print exact numbers
    #[arg(short = 'p', long)]
    pub(crate) exact: bool,
    /// The devices: block devices or files
    #[arg(required = true, value_name = "DEV", value_hint = clap::ValueHint::FilePath)]
    pub(crate) devices: Vec<PathBuf>,
}

/// `import`.
#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// Name or UUID
    #[arg(add = ArgValueCompleter::new(complete::not_imported))]
    pub(crate) array: Option<String>,
    /// The name that it gets, as where another array has its name
    #[arg(value_name = "NEWNAME", conflicts_with_all = ["all", "read_only"])]
    pub(crate) new_name: Option<String>,
    /// Import every array that can be found
    #[arg(long, conflicts_with = "array")]
    pub(crate) all: bool,
    /// Look at the files and devices in this directory too
    #[arg(long, value_name = "DIR")]
    pub(crate) scan: Vec<PathBuf>,
    /// Start even if writes may be lost with devices that are missing
    #[arg(long)]
    pub(crate) degraded: bool,
    /// Write nothing to the devices
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Take the array over from another host that did not export it: that host is switched off
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    /// A device that has come: its array takes it in, starts with it, or waits for more
    #[arg(long, value_name = "DEV", value_hint = clap::ValueHint::FilePath,
        conflicts_with_all = ["array", "all", "scan", "degraded", "read_only", "force", "script"])]
    pub(crate) incremental: Option<PathBuf>,
    /// With --incremental: print KEY=VALUE lines, as udev imports them
    #[arg(long, requires = "incremental")]
    pub(crate) export: bool,
    /// No header, tabs
    #[arg(short = 'H', long)]
    pub(crate) script: bool,
}

/// `destroy`.
#[derive(Debug, Args)]
pub(crate) struct DestroyArgs {
    /// The array's name
    #[arg(add = ArgValueCompleter::new(complete::arrays))]
    pub(crate) array: String,
    /// Yes, destroy it and all its data
    #[arg(long)]
    pub(crate) yes: bool,
    /// Even while NBD clients are connected
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
}

/// `fail`.
#[derive(Debug, Args)]
pub(crate) struct FailArgs {
    /// The array's name
    #[arg(add = ArgValueCompleter::new(complete::arrays))]
    pub(crate) array: String,
    /// The device: its path, UUID or index
    #[arg(add = ArgValueCompleter::new(complete::devices))]
    pub(crate) device: String,
    /// Even if data is lost, or too few devices are left to go on without confirmation
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    /// Wait until its data is rebuilt
    #[arg(short = 'w', long)]
    pub(crate) wait: bool,
}

/// `offline`.
#[derive(Debug, Args)]
pub(crate) struct OfflineArgs {
    /// The array's name
    #[arg(add = ArgValueCompleter::new(complete::arrays))]
    pub(crate) array: String,
    /// The device: its path, UUID or index
    #[arg(add = ArgValueCompleter::new(complete::devices))]
    pub(crate) device: String,
}

/// `online`.
#[derive(Debug, Args)]
pub(crate) struct OnlineArgs {
    /// The array's name
    #[arg(add = ArgValueCompleter::new(complete::arrays))]
    pub(crate) array: String,
    /// The device: its path, UUID or index
    #[arg(add = ArgValueCompleter::new(complete::devices))]
    pub(crate) device: String,
    /// Even if it failed, and is sound now
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    /// Wait until what it lacks is rebuilt
    #[arg(short = 'w', long)]
    pub(crate) wait: bool,
}

/// `replace`.
#[derive(Debug, Args)]
pub(crate) struct ReplaceArgs {
    /// The array's name
    #[arg(add = ArgValueCompleter::new(complete::arrays))]
    pub(crate) array: String,
    /// The device that is replaced: its path, UUID or index
    #[arg(add = ArgValueCompleter::new(complete::devices))]
    pub(crate) old: String,
    /// The device that takes its place; if absent, the one now at the path of a device out of use
    #[arg(add = ArgValueCompleter::new(complete::devices))]
    pub(crate) new: Option<String>,
    /// Only say what would be done
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Overwrite what the new device holds
    #[arg(long)]
    pub(crate) force: bool,
    /// Wait until its data is rebuilt, or has moved
    #[arg(short = 'w', long)]
    pub(crate) wait: bool,
}

/// `add`.
#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    /// The array's name
    #[arg(add = ArgValueCompleter::new(complete::arrays))]
    pub(crate) array: String,
    /// New devices, of any size
    #[arg(required = true, value_name = "DEV", add = ArgValueCompleter::new(complete::devices))]
    pub(crate) devices: Vec<std::path::PathBuf>,
    /// A device's failure domain (enclosure, host, rack); give it for every device or none
    #[arg(long, value_name = "DEV=LABEL", value_parser = parse_pair)]
    pub(crate) domain: Vec<(String, String)>,
    /// They hold nothing until another device is lost, and then take its place
    #[arg(long)]
    pub(crate) hot_spare: bool,
    /// Only say what would be done
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Overwrite what the devices hold
    #[arg(long)]
    pub(crate) force: bool,
}

/// `remove`.
#[derive(Debug, Args)]
pub(crate) struct RemoveArgs {
    /// The array's name
    #[arg(add = ArgValueCompleter::new(complete::arrays))]
    pub(crate) array: String,
    /// The device: its path, UUID or index
    #[arg(add = ArgValueCompleter::new(complete::devices))]
    pub(crate) device: String,
    /// Only say what would be done
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Wait until it has left
    #[arg(short = 'w', long)]
    pub(crate) wait: bool,
}

/// `get`.
#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// The array's name
    #[arg(add = ArgValueCompleter::new(complete::arrays))]
    pub(crate) array: String,
    /// One property; all if absent
    #[arg(add = ArgValueCompleter::new(complete::settings))]
    pub(crate) key: Option<String>,
    /// No header, tabs
    #[arg(short = 'H', long)]
    pub(crate) script: bool,
}

/// `set`.
#[derive(Debug, Args)]
pub(crate) struct SetArgs {
    /// The array's name
    #[arg(add = ArgValueCompleter::new(complete::arrays))]
    pub(crate) array: String,
    /// The property and its new value
    #[arg(value_name = "KEY=VALUE", value_parser = parse_pair, add = ArgValueCompleter::new(complete::assignments))]
    pub(crate) pair: (String, String),
}
