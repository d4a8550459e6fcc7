//! Arguments of the verbs about single devices.
//!
//! **Invariants**: what destroys data wants `--yes`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCompleter;

use super::complete;
use super::help::{
    DEVICE_CLEAR_EXAMPLES, DEVICE_LOCATE_EXAMPLES, DEVICE_SCAN_EXAMPLES, DEVICE_SET_EXAMPLES,
    DEVICE_WIPE_EXAMPLES,
};
use super::look::ArrayListArgs;
use super::parse::parse_pair;

/// `device ...`.
#[derive(Debug, Subcommand)]
pub(crate) enum DeviceVerb {
    /// List devices of arrays: state, errors, temperature, path, serial number, slot, model
    #[command(after_help = "Examples:\n  ashlar device list\n  ashlar device list tank -Hp\n")]
    List(ArrayListArgs),
    /// List all devices of this machine: what each holds, who uses it, which are free
    #[command(after_help = DEVICE_SCAN_EXAMPLES)]
    Scan(DeviceScanArgs),
    /// Turn the light of a device's slot on or off, to find the drive
    #[command(after_help = DEVICE_LOCATE_EXAMPLES)]
    Locate(DeviceLocateArgs),
    /// Set a device's counters of errors to zero
    #[command(after_help = DEVICE_CLEAR_EXAMPLES)]
    Clear(DeviceClearArgs),
    /// Change how an array uses a device
    #[command(after_help = DEVICE_SET_EXAMPLES)]
    Set(DeviceSetArgs),
    /// Erase what says what a device holds, so that it is taken as new; its data is lost
    #[command(after_help = DEVICE_WIPE_EXAMPLES)]
    Wipe(DeviceWipeArgs),
}

/// `device scan`.
#[derive(Debug, Args)]
pub(crate) struct DeviceScanArgs {
    /// Look at the files and devices in this directory too
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub(crate) scan: Vec<PathBuf>,
    /// No header, tabs
    #[arg(short = 'H', long)]
    pub(crate) script: bool,
    /// Print exact numbers
    #[arg(short = 'p', long)]
    pub(crate) exact: bool,
}

/// A light.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Light {
    /// It blinks, or burns.
    On,
    /// It does not.
    Off,
}

/// `device locate`.
#[derive(Debug, Args)]
pub(crate) struct DeviceLocateArgs {
    /// The device
    #[arg(value_name = "DEV", add = ArgValueCompleter::new(complete::devices))]
    pub(crate) device: PathBuf,
    /// Whether its light is to be on
    pub(crate) light: Light,
}

/// `device clear`.
#[derive(Debug, Args)]
pub(crate) struct DeviceClearArgs {
    /// The array's name
    #[arg(add = ArgValueCompleter::new(complete::arrays))]
    pub(crate) array: String,
    /// The device: its path, UUID or index
    #[arg(value_name = "DEV", add = ArgValueCompleter::new(complete::devices))]
    pub(crate) device: String,
}

/// `device set`.
#[derive(Debug, Args)]
pub(crate) struct DeviceSetArgs {
    /// The array's name
    #[arg(add = ArgValueCompleter::new(complete::arrays))]
    pub(crate) array: String,
    /// The device: its path, UUID or index
    #[arg(value_name = "DEV", add = ArgValueCompleter::new(complete::devices))]
    pub(crate) device: String,
    /// size=max: use all of a device that has grown; domain=LABEL: what it can fail together with
    #[arg(value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) pair: (String, String),
}

/// `device wipe`.
#[derive(Debug, Args)]
pub(crate) struct DeviceWipeArgs {
    /// The device: a block device or file
    #[arg(value_name = "DEV", value_hint = clap::ValueHint::FilePath)]
    pub(crate) device: PathBuf,
    /// Yes, erase it; without this only what would be lost is said
    #[arg(long)]
    pub(crate) yes: bool,
}
