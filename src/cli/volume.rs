//! Arguments of the verbs of volumes.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;

use super::complete;
use super::help::{ATTACH_EXAMPLES, VOLUME_CREATE_EXAMPLES, VOLUME_RESIZE_EXAMPLES};
use super::look::ArrayListArgs;
use super::parse::{parse_mode, parse_pair, parse_volume_name};
use crate::units::{parse_room, parse_size};

/// `volume ...`.
#[derive(Debug, Subcommand)]
pub(crate) enum VolumeVerb {
    /// Make a volume
    #[command(after_help = VOLUME_CREATE_EXAMPLES)]
    Create(VolumeCreateArgs),
    /// List volumes
    #[command(after_help = "Examples:\n  ashlar volume list\n  ashlar volume list tank -Hp\n")]
    List(ArrayListArgs),
    /// Destroy a volume and all its data
    #[command(after_help = "Example:\n  ashlar volume destroy tank/home --yes\n")]
    Destroy(VolumeDestroyArgs),
    /// Give a volume another name; it must not be attached
    #[command(after_help = "Example:\n  ashlar volume rename tank/home users\n")]
    Rename(VolumeRenameArgs),
    /// Make a volume larger or smaller; it must not be attached
    #[command(after_help = VOLUME_RESIZE_EXAMPLES)]
    Resize(VolumeResizeArgs),
    /// Change a volume's property
    #[command(after_help = "Example:\n  ashlar volume set tank/home write-cache=off\n")]
    Set(VolumeSetArgs),
    /// Serve a volume; kept in the array and restored at import
    #[command(after_help = ATTACH_EXAMPLES)]
    Attach(VolumeAttachArgs),
    /// Stop serving a volume
    #[command(
        after_help = "Examples:\n  ashlar volume detach tank/home\n  ashlar volume detach tank/home loop\n"
    )]
    Detach(VolumeDetachArgs),
}

/// `volume create`.
#[derive(Debug, Args)]
pub(crate) struct VolumeCreateArgs {
    /// The new volume
    #[arg(value_name = "ARRAY/VOL", value_parser = parse_volume_name, add = ArgValueCompleter::new(complete::arrays_of_volumes))]
    pub(crate) name: (String, String),
    /// Its size
    #[arg(long, value_name = "SIZE", value_parser = parse_room)]
    pub(crate) size: u64,
    /// Promise no space: the volume may be larger than the free space, and writes fail when that ends
    #[arg(long)]
    pub(crate) thin: bool,
    /// The unit of its map and digests: 4K to 128K [default: 4K]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) block_size: Option<u64>,
    /// Its digest: blake3 or xxh3 [default: blake3]
    #[arg(long, value_name = "ALG")]
    pub(crate) digest: Option<String>,
    /// Whether writes may be acknowledged from memory [default: auto, where that is safe]
    #[arg(long, value_name = "WHEN", value_parser = ["on", "off", "auto"])]
    pub(crate) write_cache: Option<String>,
}

/// `volume destroy`.
#[derive(Debug, Args)]
pub(crate) struct VolumeDestroyArgs {
    /// The volume
    #[arg(value_name = "ARRAY/VOL", value_parser = parse_volume_name, add = ArgValueCompleter::new(complete::volumes))]
    pub(crate) name: (String, String),
    /// Yes, destroy it and all its data
    #[arg(long)]
    pub(crate) yes: bool,
    /// Even while a client uses it
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
}

/// `volume rename`.
#[derive(Debug, Args)]
pub(crate) struct VolumeRenameArgs {
    /// The volume
    #[arg(value_name = "ARRAY/VOL", value_parser = parse_volume_name, add = ArgValueCompleter::new(complete::volumes))]
    pub(crate) name: (String, String),
    /// Its new name, without the array
    #[arg(value_name = "NEW")]
    pub(crate) new: String,
}

/// `volume resize`.
#[derive(Debug, Args)]
pub(crate) struct VolumeResizeArgs {
    /// The volume
    #[arg(value_name = "ARRAY/VOL", value_parser = parse_volume_name, add = ArgValueCompleter::new(complete::volumes))]
    pub(crate) name: (String, String),
    /// Its new size
    #[arg(value_name = "SIZE", value_parser = parse_room)]
    pub(crate) size: u64,
    /// Yes, make it smaller: what lies beyond the new end is lost
    #[arg(long)]
    pub(crate) yes: bool,
}

/// `volume set`.
#[derive(Debug, Args)]
pub(crate) struct VolumeSetArgs {
    /// The volume
    #[arg(value_name = "ARRAY/VOL", value_parser = parse_volume_name, add = ArgValueCompleter::new(complete::volumes))]
    pub(crate) name: (String, String),
    /// The property and its new value
    #[arg(value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) pair: (String, String),
}

/// `volume attach`.
#[derive(Debug, Args)]
pub(crate) struct VolumeAttachArgs {
    /// The volume
    #[arg(value_name = "ARRAY/VOL", value_parser = parse_volume_name, add = ArgValueCompleter::new(complete::volumes))]
    pub(crate) name: (String, String),
    /// How to serve it
    #[command(flatten)]
    pub(crate) how: AttachHow,
    /// Bytes of a sector of --loop: 512 or 4096 [default: 4096; smaller writes read and merge a block]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) sector_size: Option<u64>,
    /// Owner of the socket of --nbd unix:PATH: USER, USER:GROUP or :GROUP [default: root]
    #[arg(long, value_name = "USER:GROUP", requires = "nbd")]
    pub(crate) owner: Option<String>,
    /// Permissions of that socket [default: 600, with a group 660]
    #[arg(long, value_name = "MODE", requires = "nbd", value_parser = parse_mode)]
    pub(crate) mode: Option<u32>,
    /// Even if it is attached in another way: the users must coordinate their writes
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
}

/// One way to serve a volume.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct AttachHow {
    /// Over NBD, at unix:PATH or HOST:PORT (a loopback address: NBD has no authentication)
    #[arg(long, value_name = "ADDR")]
    pub(crate) nbd: Option<String>,
    /// As a file in this directory, over FUSE
    #[arg(long, value_name = "DIR")]
    pub(crate) fuse: Option<PathBuf>,
    /// As a kernel block device, /dev/ashlar/ARRAY/VOL
    #[arg(long = "loop")]
    pub(crate) loop_device: bool,
}

/// `volume detach`.
#[derive(Debug, Args)]
pub(crate) struct VolumeDetachArgs {
    /// The volume
    #[arg(value_name = "ARRAY/VOL", value_parser = parse_volume_name, add = ArgValueCompleter::new(complete::volumes))]
    pub(crate) name: (String, String),
    /// A kind (nbd, fuse, loop) or an address; every frontend if absent
    pub(crate) frontend: Option<String>,
    /// Even while a client uses it
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
}
