//! The command line: verbs, flags, help. The contract other people's scripts rely on: names are
//! added, never changed.
//!
//! **Invariants**: a verb that does not exist yet is not listed; every verb's `--help` shows an
//! example; wrong usage exits with 2, whoever finds it, everything else that fails with 1.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::command::{bench, events, plan, resilience};
use crate::units::parse_size;

/// Software-defined, erasure-coded storage: volumes that no loss within the array's parity damages.
#[derive(Debug, Parser)]
#[command(
    name = "ashlar",
    version,
    disable_help_subcommand = true,
    max_term_width = 100
)]
#[command(after_help = "See it work, without root and without touching a device:\n  ashlar demo\n")]
pub(crate) struct Cli {
    /// The daemon's socket [default: $ASHLAR_SOCKET, else /run/ashlar/ashlar.sock]
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Print JSON: {"version":1,"command":"...",...}
    #[arg(short = 'j', long, global = true)]
    pub(crate) json: bool,
    /// What to do.
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run the service in the foreground (systemd starts it)
    #[command(after_help = "Example:\n  ashlar daemon --state /var/lib/ashlar --memory 4G\n")]
    Daemon(DaemonArgs),
    /// Make an array, and a volume with it if asked
    #[command(after_help = CREATE_EXAMPLES)]
    Create(CreateArgs),
    /// Start arrays found on devices; alone, list what could be started
    #[command(after_help = IMPORT_EXAMPLES)]
    Import(ImportArgs),
    /// Close an array cleanly; its devices can be imported again, here or elsewhere
    #[command(after_help = "Example:\n  ashlar export tank\n")]
    Export(ArrayArgs),
    /// Destroy an array: its devices no longer belong to it, its data are gone
    #[command(after_help = "Example:\n  ashlar destroy tank --yes\n")]
    Destroy(DestroyArgs),
    /// List the arrays, one line each
    #[command(after_help = "Examples:\n  ashlar list\n  ashlar list -Hp\n")]
    List(ListArgs),
    /// Show how arrays are: devices, space, work in progress, what is wrong and what to do
    #[command(after_help = STATUS_EXAMPLES)]
    Status(StatusArgs),
    /// Show what happened
    #[command(after_help = EVENTS_EXAMPLES)]
    Events(EventsArgs),
    /// Try whether people are told of what happens
    #[command(subcommand)]
    Notify(NotifyVerb),
    /// Show what volumes' clients do: requests, throughput, latency
    #[command(after_help = IOSTAT_EXAMPLES)]
    Iostat(IostatArgs),
    /// Make, list, change and serve volumes
    #[command(subcommand)]
    Volume(VolumeVerb),
    /// Take a device out for good; what it held is reconstructed elsewhere
    #[command(after_help = "Examples:\n  ashlar fail tank /dev/sdf\n  ashlar fail tank 5 -w\n")]
    Fail(FailArgs),
    /// Wait until background work has ended
    #[command(after_help = "Examples:\n  ashlar wait tank\n  ashlar wait tank --for reconstruct\n")]
    Wait(WaitArgs),
    /// Show an array's properties
    #[command(after_help = "Examples:\n  ashlar get tank\n  ashlar get tank clean.reserve\n")]
    Get(GetArgs),
    /// Change an array's property
    #[command(after_help = SET_HELP)]
    Set(SetArgs),
    /// Print what a device's own structures say (no daemon needed)
    #[command(after_help = INSPECT_EXAMPLES)]
    Inspect(InspectArgs),
    /// Check all of an array that is not in use: tables, trees, digests, parity (no daemon needed)
    #[command(after_help = VERIFY_EXAMPLES)]
    Verify(VerifyArgs),
    /// See it all work in a temporary folder: losses, corruption, a crash, all data verified
    #[command(after_help = "Example:\n  ashlar demo\n")]
    Demo(DemoArgs),
    /// Compute what a layout survives, beyond its promise
    #[command(after_help = resilience::EXAMPLES)]
    Resilience(resilience::Args),
    /// Compare layouts: capacity, years to data loss, rebuild hours
    #[command(after_help = plan::EXAMPLES)]
    Plan(plan::Args),
    /// Measure parts of the program on this machine
    #[command(subcommand)]
    Bench(bench::Verb),
    /// Print the completions for a shell
    #[command(after_help = "Example:\n  ashlar completions bash > /etc/bash_completion.d/ashlar\n")]
    Completions(CompletionsArgs),
    /// Write the man pages of all verbs into a directory
    #[command(after_help = "Example:\n  ashlar man-pages /usr/local/share/man/man1\n")]
    ManPages(ManPagesArgs),
}

const CREATE_EXAMPLES: &str = "Examples:
  ashlar create tank --layout ec8+3 --spare 1 /dev/sd[b-m]
  ashlar create tank --layout raid6 -n /dev/sd[b-m]                    only say what would be
  ashlar create toy --layout ec4+2 --file-size 1G --volume v --attach loop d{0..5}.img

Layouts:
  raid0 raid1 raid1:3 raid10 raid5 raid6 raid7.3 raid50:G raid60:G raid70:G jbod
  ecK+M (ec8+2, ec80+20, ec1+7)   draidM:Kd:Pc:Ss   grid:P(N+K+A)
";
const IMPORT_EXAMPLES: &str = "Examples:
  ashlar import                          list what could be imported
  ashlar import tank
  ashlar import --all --scan /srv/images
  ashlar import tank --degraded          when more devices are gone than it starts with by itself
";
const STATUS_EXAMPLES: &str = "Examples:
  ashlar status
  ashlar status -x                       only what is wrong
  ashlar status tank --watch             again and again
  ashlar status --test && echo optimal   exit code: 0 optimal, 1 degraded, 2 critical or failed,
                                         4 cannot tell
";
const EVENTS_EXAMPLES: &str = "Examples:
  ashlar events tank -n 20
  ashlar events --since 2h
  ashlar events -f -j                    from now on, also over restarts of the daemon
  ashlar events -f -j --since 4711       what came after event 4711, then what comes
";
const IOSTAT_EXAMPLES: &str = "Examples:
  ashlar iostat                          over one second
  ashlar iostat tank -l 5                every 5 s, with the mean time of a request
  ashlar iostat tank -w 10 1             how many requests took how long, over 10 s
";
const SET_HELP: &str = "Examples:
  ashlar set tank clean.reserve=15%
  ashlar set tank reconstruct.narrow=never
  ashlar set tank accelerator=cpu

Settings:
  accelerator         what computes parity and lost data: a GPU where that measures cheaper, the
                      processor alone, GPU N for all it can take
                      auto, cpu or cuda:N [default: auto]
  clean.reserve       space that volumes are not promised, so that cleaning stays quick
                      2% to 50% [default: 10%]
  notify.exec         a program that is run for each event of severity warning or worse, and when all
                      is well again; the event is in ASHLAR_TEXT and so on, and on standard input
                      a path, or nothing [default: nothing]
  notify.webhook      an address that is posted each such event as JSON
                      http://HOST[:PORT]/PATH, or nothing [default: nothing]
  reconstruct.narrow  without a free device, which data are written anew over fewer: those with no
                      redundancy left, all that lack some, none
                      critical, always or never [default: critical]
";
const INSPECT_EXAMPLES: &str = "Examples:
  ashlar inspect /dev/sdf
  ashlar inspect disk3.img --slots
  ashlar inspect disk3.img --segment 17 -j
  ashlar inspect disk3.img --journal
";
const VERIFY_EXAMPLES: &str = "Examples:
  ashlar verify /dev/sd[b-m]
  ashlar verify disk*.img -j

Give all devices of one array, which must not be in use. Nothing is written. The exit code is 0 only if
all is well: nothing damaged, missing or contradictory, and the array was exported. Of an array that was
not, its journal is not replayed, so what was written last is not checked.
";
const VOLUME_CREATE_EXAMPLES: &str = "Examples:
  ashlar volume create tank/home --size 500G
  ashlar volume create tank/vm --size 2T --thin --block-size 16K
";
const ATTACH_EXAMPLES: &str = "Examples:
  ashlar volume attach tank/home --loop                      /dev/ashlar/tank/home
  ashlar volume attach tank/boot --loop --sector-size 512    for images made on disks of such sectors
  ashlar volume attach tank/vm --nbd unix:/run/vm.sock       nbd+unix:///tank/vm?socket=/run/vm.sock
  ashlar volume attach tank/vm --nbd 127.0.0.1:10809
  ashlar volume attach tank/vm --fuse /run/vm                /run/vm/vm
";

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
    /// Serve /metrics for Prometheus there too, on this machine only (the socket has it in any case)
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) metrics: Option<String>,
}

/// A verb that takes an array and nothing else.
#[derive(Debug, Args)]
pub(crate) struct ArrayArgs {
    /// The array's name
    pub(crate) array: String,
}

/// `create`.
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// The new array's name
    pub(crate) array: String,
    /// How data and parity are laid out, for example ec8+2
    #[arg(long)]
    pub(crate) layout: String,
    /// Devices' worth of space to keep free for reconstruction
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
    /// Make devices that do not exist as sparse files of this size
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) file_size: Option<u64>,
    /// Make a volume too, of this size or of all there is
    #[arg(long, value_name = "NAME[=SIZE]", value_parser = parse_volume)]
    pub(crate) volume: Option<(String, Option<u64>)>,
    /// Serve that volume: loop, nbd=unix:PATH, nbd=HOST:PORT or fuse=DIR
    #[arg(long, value_name = "HOW", requires = "volume", value_parser = parse_attach)]
    pub(crate) attach: Option<Attach>,
    /// Only say what would be
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Overwrite whatever the devices hold
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    /// Print exact numbers
    #[arg(short = 'p', long)]
    pub(crate) exact: bool,
    /// The devices: block devices or files
    #[arg(required = true, value_name = "DEV")]
    pub(crate) devices: Vec<PathBuf>,
}

/// `import`.
#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// Name or UUID
    pub(crate) array: Option<String>,
    /// Import every array that can be found
    #[arg(long, conflicts_with = "array")]
    pub(crate) all: bool,
    /// Look at the files and devices in this directory too
    #[arg(long, value_name = "DIR")]
    pub(crate) scan: Vec<PathBuf>,
    /// Also with fewer devices than the array starts with by itself; says what may be missing
    #[arg(long)]
    pub(crate) degraded: bool,
    /// Write nothing to the devices
    #[arg(long)]
    pub(crate) read_only: bool,
    /// No header, tabs
    #[arg(short = 'H', long)]
    pub(crate) script: bool,
}

/// `destroy`.
#[derive(Debug, Args)]
pub(crate) struct DestroyArgs {
    /// The array's name
    pub(crate) array: String,
    /// Yes, destroy it and all its data
    #[arg(long)]
    pub(crate) yes: bool,
    /// Also while NBD clients are connected
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
}

/// `list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// No header, tabs
    #[arg(short = 'H', long)]
    pub(crate) script: bool,
    /// Print exact numbers
    #[arg(short = 'p', long)]
    pub(crate) exact: bool,
}

/// `status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// One array; all if absent
    pub(crate) array: Option<String>,
    /// More: a line for every device, the map, the journal, memory
    #[arg(short = 'v', long)]
    pub(crate) verbose: bool,
    /// Only what is wrong
    #[arg(short = 'x', long)]
    pub(crate) exceptions: bool,
    /// Print exact numbers
    #[arg(short = 'p', long)]
    pub(crate) exact: bool,
    /// Exit with 0 optimal, 1 degraded, 2 critical or failed, 4 cannot tell
    #[arg(long)]
    pub(crate) test: bool,
    /// As /proc/mdstat shows it
    #[arg(long, conflicts_with = "json")]
    pub(crate) mdstat: bool,
    /// Again every so many seconds
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2")]
    pub(crate) watch: Option<u64>,
}

/// `events`.
#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// One array; all if absent
    pub(crate) array: Option<String>,
    /// Go on, printing events as they happen; alone it begins with the last 10
    #[arg(short = 'f', long)]
    pub(crate) follow: bool,
    /// Only the last N
    #[arg(short = 'n', long = "lines", value_name = "N")]
    pub(crate) newest: Option<usize>,
    /// Only from then on (30m, 2h, 7d, 2026-01-31, '2026-01-31 10:30', in UTC), or after the event of this number
    #[arg(long, value_name = "WHEN|ID", value_parser = events::parse_since)]
    pub(crate) since: Option<events::Since>,
    /// No header, tabs
    #[arg(short = 'H', long)]
    pub(crate) script: bool,
}

/// `iostat`.
#[derive(Debug, Args)]
pub(crate) struct IostatArgs {
    /// One array, the seconds between two reports, and how many: each may be left out
    #[arg(value_name = "ARRAY|INTERVAL|COUNT", num_args = 0..=3)]
    pub(crate) words: Vec<String>,
    /// The mean time of a request
    #[arg(short = 'l', long)]
    pub(crate) latency: bool,
    /// How many requests took how long
    #[arg(short = 'w', long)]
    pub(crate) histogram: bool,
    /// Requests that have not ended
    #[arg(short = 'q', long)]
    pub(crate) queue: bool,
    /// No header, tabs
    #[arg(short = 'H', long)]
    pub(crate) script: bool,
    /// Print exact numbers
    #[arg(short = 'p', long)]
    pub(crate) exact: bool,
}

/// `notify ...`.
#[derive(Debug, Subcommand)]
pub(crate) enum NotifyVerb {
    /// Tell everybody that is set, and say whether it worked
    #[command(
        after_help = "Example:\n  ashlar set tank notify.exec=/usr/share/ashlar/mail && ashlar notify test\n"
    )]
    Test,
}

/// `fail`.
#[derive(Debug, Args)]
pub(crate) struct FailArgs {
    /// The array's name
    pub(crate) array: String,
    /// The device: its path, UUID or index
    pub(crate) device: String,
    /// Also when too few devices are left to carry on by themselves
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    /// Wait until what it held is reconstructed
    #[arg(short = 'w', long)]
    pub(crate) wait: bool,
}

/// `wait`.
#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// The array's name
    pub(crate) array: String,
    /// Only work of these kinds: reconstruct, heal, rebalance, scrub, clean, convert
    #[arg(long = "for", value_name = "KIND,...", value_delimiter = ',', value_parser = ["reconstruct", "heal", "rebalance", "scrub", "clean", "convert"])]
    pub(crate) kinds: Vec<String>,
}

/// `get`.
#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// The array's name
    pub(crate) array: String,
    /// One property; all if absent
    pub(crate) key: Option<String>,
    /// No header, tabs
    #[arg(short = 'H', long)]
    pub(crate) script: bool,
}

/// `set`.
#[derive(Debug, Args)]
pub(crate) struct SetArgs {
    /// The array's name
    pub(crate) array: String,
    /// The property and its new value
    #[arg(value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) pair: (String, String),
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
    /// How evenly segments are spread: with how many of them each other device shares the columns here
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
    /// How much to write
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

/// `volume ...`.
#[derive(Debug, Subcommand)]
pub(crate) enum VolumeVerb {
    /// Make a volume
    #[command(after_help = VOLUME_CREATE_EXAMPLES)]
    Create(VolumeCreateArgs),
    /// List volumes
    #[command(after_help = "Examples:\n  ashlar volume list\n  ashlar volume list tank -Hp\n")]
    List(VolumeListArgs),
    /// Destroy a volume and what is in it
    #[command(after_help = "Example:\n  ashlar volume destroy tank/home --yes\n")]
    Destroy(VolumeDestroyArgs),
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
    #[arg(value_name = "ARRAY/VOL", value_parser = parse_volume_name)]
    pub(crate) name: (String, String),
    /// Its size
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) size: u64,
    /// It may be larger than the space there is
    #[arg(long)]
    pub(crate) thin: bool,
    /// What it is mapped and hashed in: 4K to 128K [default: 4K]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) block_size: Option<u64>,
    /// Its digest: blake3 or xxh3 [default: blake3]
    #[arg(long, value_name = "ALG")]
    pub(crate) digest: Option<String>,
    /// Whether writes may be acknowledged from memory [default: auto, where that is safe]
    #[arg(long, value_name = "WHEN", value_parser = ["on", "off", "auto"])]
    pub(crate) write_cache: Option<String>,
}

/// `volume list`.
#[derive(Debug, Args)]
pub(crate) struct VolumeListArgs {
    /// One array; all if absent
    pub(crate) array: Option<String>,
    /// No header, tabs
    #[arg(short = 'H', long)]
    pub(crate) script: bool,
    /// Print exact numbers
    #[arg(short = 'p', long)]
    pub(crate) exact: bool,
}

/// `volume destroy`.
#[derive(Debug, Args)]
pub(crate) struct VolumeDestroyArgs {
    /// The volume
    #[arg(value_name = "ARRAY/VOL", value_parser = parse_volume_name)]
    pub(crate) name: (String, String),
    /// Yes, destroy it and all its data
    #[arg(long)]
    pub(crate) yes: bool,
    /// Also while a client uses it
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
}

/// `volume set`.
#[derive(Debug, Args)]
pub(crate) struct VolumeSetArgs {
    /// The volume
    #[arg(value_name = "ARRAY/VOL", value_parser = parse_volume_name)]
    pub(crate) name: (String, String),
    /// The property and its new value
    #[arg(value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) pair: (String, String),
}

/// `volume attach`.
#[derive(Debug, Args)]
pub(crate) struct VolumeAttachArgs {
    /// The volume
    #[arg(value_name = "ARRAY/VOL", value_parser = parse_volume_name)]
    pub(crate) name: (String, String),
    /// How to serve it
    #[command(flatten)]
    pub(crate) how: AttachHow,
    /// Bytes of a sector of --loop: 512 or 4096 [default: 4096; writes of less read and merge a block]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) sector_size: Option<u64>,
    /// Also beside a frontend of another kind: their users must know of each other
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
    #[arg(value_name = "ARRAY/VOL", value_parser = parse_volume_name)]
    pub(crate) name: (String, String),
    /// A kind (nbd, fuse, loop) or an address; every frontend if absent
    pub(crate) frontend: Option<String>,
    /// Also while a client uses it
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
}

/// `--attach`'s value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Attach {
    /// `loop`.
    Loop,
    /// `nbd=ADDR`.
    Nbd(String),
    /// `fuse=DIR`.
    Fuse(PathBuf),
}

fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_string(), value.to_string())),
        _ => Err(format!("'{text}' is not NAME=VALUE")),
    }
}

fn parse_volume(text: &str) -> Result<(String, Option<u64>), String> {
    match text.split_once('=') {
        Some((name, size)) => Ok((name.to_string(), Some(parse_size(size)?))),
        None => Ok((text.to_string(), None)),
    }
}

fn parse_volume_name(text: &str) -> Result<(String, String), String> {
    match text.split_once('/') {
        Some((array, volume)) if !array.is_empty() && !volume.is_empty() => {
            Ok((array.to_string(), volume.to_string()))
        }
        _ => Err(format!("'{text}' is not ARRAY/VOL")),
    }
}

fn parse_attach(text: &str) -> Result<Attach, String> {
    match text.split_once('=') {
        None if text == "loop" => Ok(Attach::Loop),
        Some(("nbd", address)) if !address.is_empty() => Ok(Attach::Nbd(address.to_string())),
        Some(("fuse", dir)) if !dir.is_empty() => Ok(Attach::Fuse(dir.into())),
        _ => Err(format!(
            "'{text}' is not loop, nbd=unix:PATH, nbd=HOST:PORT or fuse=DIR"
        )),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::daemon::notify::NOTIFY_SETTINGS;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_verb_shows_an_example() {
        fn check(command: &clap::Command, path: &str) {
            for sub in command.get_subcommands() {
                let path = format!("{path} {}", sub.get_name());
                if sub.has_subcommands() {
                    check(sub, &path);
                } else {
                    let help = sub
                        .get_after_help()
                        .map(ToString::to_string)
                        .unwrap_or_default();
                    assert!(help.contains(&path), "{path} --help has no example");
                }
            }
        }
        check(&Cli::command(), "ashlar");
    }

    #[test]
    fn set_shows_every_setting_with_what_it_takes_and_no_other() {
        for setting in ashlar_engine::SETTINGS {
            let entry = format!("{} [default: {}]", setting.takes, setting.default);
            assert!(SET_HELP.contains(&format!("\n  {}  ", setting.key)));
            assert!(SET_HELP.contains(&entry), "{}", setting.key);
        }
        for (key, takes) in NOTIFY_SETTINGS {
            assert!(SET_HELP.contains(&format!("\n  {key}  ")));
            let entry = format!("{takes}, or nothing [default: nothing]");
            assert!(SET_HELP.contains(&entry), "{key}");
        }
        let entries = SET_HELP.matches("[default: ").count();
        assert_eq!(
            entries,
            ashlar_engine::SETTINGS.len() + NOTIFY_SETTINGS.len()
        );
        for example in SET_HELP.lines().filter(|l| l.contains("ashlar set")) {
            let known = |s: &ashlar_engine::Setting| example.contains(&format!(" {}=", s.key));
            assert!(ashlar_engine::SETTINGS.iter().any(known), "{example}");
        }
    }

    #[test]
    fn create_reads_as_the_contract_says() {
        let cli = Cli::try_parse_from([
            "ashlar",
            "create",
            "t",
            "--layout",
            "ec4+2",
            "--chunk",
            "64K",
            "--volume",
            "v=1G",
            "--attach",
            "nbd=unix:/tmp/s",
            "--file-size",
            "1G",
            "-n",
            "--force",
            "a",
            "b",
        ])
        .unwrap();
        let Verb::Create(args) = cli.verb else {
            panic!("{:?}", cli.verb)
        };
        assert_eq!(args.strip, Some(65_536));
        assert_eq!(args.volume, Some(("v".to_string(), Some(1 << 30))));
        assert_eq!(args.attach, Some(Attach::Nbd("unix:/tmp/s".to_string())));
        assert!(args.dry_run && args.force);
        assert_eq!(args.devices.len(), 2);
    }

    #[test]
    fn wrong_usage_is_refused() {
        for line in [
            "ashlar",
            "ashlar frobnicate",
            "ashlar create t a b",
            "ashlar create t --layout ec2+1 --attach loop a b c",
            "ashlar create t --layout ec2+1 --strip 12x a b c",
            "ashlar volume attach t/v",
            "ashlar volume attach t/v --loop --nbd unix:/s",
            "ashlar volume create t --size 1G",
            "ashlar wait t --for coffee",
            "ashlar set t key",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
