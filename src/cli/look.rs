//! Arguments of the verbs that only look: lists, status, events, figures, waiting.

use clap::{Args, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCompleter;

use super::complete;
use super::parse::parse_seconds;
use super::since::{Since, parse_since};

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
    #[arg(add = ArgValueCompleter::new(complete::arrays))]
    pub(crate) array: Option<String>,
    /// Show more: a line for every device, the map, the journal, memory
    #[arg(short = 'v', long)]
    pub(crate) verbose: bool,
    /// Only what is wrong
    #[arg(short = 'x', long)]
    pub(crate) exceptions: bool,
    /// Print exact numbers
    #[arg(short = 'p', long)]
    pub(crate) exact: bool,
    /// Exit with 0 optimal, 1 degraded, 2 critical, failed or refusing writes, 4 cannot tell
    #[arg(long)]
    pub(crate) test: bool,
    /// As /proc/mdstat shows it
    #[arg(long, conflicts_with = "json")]
    pub(crate) mdstat: bool,
    /// Repeat every SECONDS
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = parse_seconds)]
    pub(crate) watch: Option<u64>,
}

/// `events`.
#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// One array; all if absent
    #[arg(add = ArgValueCompleter::new(complete::arrays))]
    pub(crate) array: Option<String>,
    /// Follow: print events as they happen; without other options, start with the last 10
    #[arg(short = 'f', long)]
    pub(crate) follow: bool,
    /// Only the last N
    #[arg(short = 'n', long = "lines", value_name = "N")]
    pub(crate) newest: Option<usize>,
    /// Only events since a time (30m, 2h, 7d, 2026-01-31, '2026-01-31 10:30', in UTC) or after an event's number
    #[arg(long, value_name = "WHEN|ID", value_parser = parse_since)]
    pub(crate) since: Option<Since>,
    /// No header, tabs
    #[arg(short = 'H', long)]
    pub(crate) script: bool,
}

/// `history`.
#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    /// One array; all if absent
    #[arg(add = ArgValueCompleter::new(complete::arrays))]
    pub(crate) array: Option<String>,
    /// Only the last N
    #[arg(short = 'n', long = "lines", value_name = "N")]
    pub(crate) newest: Option<usize>,
    /// No header, tabs
    #[arg(short = 'H', long)]
    pub(crate) script: bool,
}

/// `device list` and `volume list`.
#[derive(Debug, Args)]
pub(crate) struct ArrayListArgs {
    /// One array; all if absent
    #[arg(add = ArgValueCompleter::new(complete::arrays))]
    pub(crate) array: Option<String>,
    /// No header, tabs
    #[arg(short = 'H', long)]
    pub(crate) script: bool,
    /// Print exact numbers
    #[arg(short = 'p', long)]
    pub(crate) exact: bool,
}

/// `iostat`.
#[derive(Debug, Args)]
pub(crate) struct IostatArgs {
    /// One array, the seconds between two reports, and how many: each may be left out
    #[arg(value_name = "ARRAY|INTERVAL|COUNT", num_args = 0..=3)]
    pub(crate) words: Vec<String>,
    /// Show the mean time of a request
    #[arg(short = 'l', long)]
    pub(crate) latency: bool,
    /// Show a histogram of request times
    #[arg(short = 'w', long)]
    pub(crate) histogram: bool,
    /// Show requests in flight
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
    /// Send a test event to every notify setting, and report which of them worked
    #[command(
        after_help = "Example:\n  ashlar set tank notify.exec=/usr/share/ashlar/mail && ashlar notify test\n"
    )]
    Test,
}

/// What is to become of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Change {
    /// It rests until it is resumed, the array is exported or the daemon ends
    Pause,
    /// It goes on
    Resume,
    /// It is given up: devices that were to leave stay
    Cancel,
}

/// `task`.
#[derive(Debug, Args)]
pub(crate) struct TaskArgs {
    /// The array's name
    #[arg(add = ArgValueCompleter::new(complete::arrays))]
    pub(crate) array: String,
    /// A task: its number, or its kind
    #[arg(requires = "change")]
    pub(crate) id: Option<String>,
    /// What is to become of it
    pub(crate) change: Option<Change>,
    /// No header, tabs
    #[arg(short = 'H', long)]
    pub(crate) script: bool,
    /// Print exact numbers
    #[arg(short = 'p', long)]
    pub(crate) exact: bool,
}

/// What is to become of a scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ScrubWord {
    /// Start one
    Start,
    /// Pause it, also over an import
    Pause,
    /// Go on
    Resume,
    /// End it
    Stop,
}

/// `scrub`.
#[derive(Debug, Args)]
pub(crate) struct ScrubArgs {
    /// The array's name
    #[arg(add = ArgValueCompleter::new(complete::arrays))]
    pub(crate) array: String,
    /// What is to become of the scrub; alone, its reports are shown
    pub(crate) change: Option<ScrubWord>,
    /// Only look: repair nothing
    #[arg(long)]
    pub(crate) check: bool,
    /// Only what was written since then: 7d, 12h, 2026-01-31. Times are known by the scrubs that began then
    #[arg(long, value_name = "WHEN", value_parser = parse_since)]
    pub(crate) since: Option<Since>,
    /// Wait until it has ended, and show its report; exit code 1 if bad blocks are left
    #[arg(short = 'w', long)]
    pub(crate) wait: bool,
}

/// `wait`.
#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// The array's name
    #[arg(add = ArgValueCompleter::new(complete::arrays))]
    pub(crate) array: String,
    /// Only work of these kinds: rebuild (or reconstruct), repair (or heal), clean
    #[arg(long = "for", value_name = "KIND,...", value_delimiter = ',', value_parser = ["rebuild", "reconstruct", "repair", "heal", "rebalance", "scrub", "clean", "convert"])]
    pub(crate) kinds: Vec<String>,
}
