//! The command line: verbs, flags, help. The contract other people's scripts rely on: names are
//! added, never changed.
//!
//! **Invariants**: a verb that does not exist yet is not listed, and says so when it is typed; every verb's `--help`
//! shows an example; wrong usage exits with 2, whoever finds it, everything else that fails with 1.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::command::{bench, plan, resilience};

pub(crate) mod absent;
mod array;
mod complete;
mod device;
mod help;
mod look;
mod other;
mod parse;
pub(crate) mod since;
pub(crate) mod usage;
mod volume;

pub(crate) use array::{
    AddArgs, ArrayArgs, CreateArgs, DestroyArgs, FailArgs, GetArgs, ImportArgs, OfflineArgs,
    OnlineArgs, RemoveArgs, ReplaceArgs, SetArgs,
};
pub(crate) use device::{
    DeviceClearArgs, DeviceLocateArgs, DeviceScanArgs, DeviceSetArgs, DeviceVerb, DeviceWipeArgs,
    Light,
};
use help::{
    CREATE_EXAMPLES, EVENTS_EXAMPLES, IMPORT_EXAMPLES, INSPECT_EXAMPLES, IOSTAT_EXAMPLES, SET_HELP,
    STATUS_EXAMPLES, VERIFY_EXAMPLES,
};
pub(crate) use look::{
    ArrayListArgs, Change, EventsArgs, HistoryArgs, IostatArgs, ListArgs, NotifyVerb, ScrubArgs,
    ScrubWord, StatusArgs, TaskArgs, WaitArgs,
};
pub(crate) use other::{
    CompletionsArgs, DaemonArgs, DemoArgs, InspectArgs, ManPagesArgs, SupportArgs, VerifyArgs,
};
pub(crate) use parse::Attach;
pub(crate) use volume::{VolumeAttachArgs, VolumeResizeArgs, VolumeVerb};

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
    /// Make an array, with --volume also a volume
    #[command(after_help = CREATE_EXAMPLES)]
    Create(CreateArgs),
    /// Start arrays found on devices; alone, list what could be started
    #[command(after_help = IMPORT_EXAMPLES)]
    Import(ImportArgs),
    /// Close an array cleanly; its devices can be imported again, here or elsewhere
    #[command(after_help = "Example:\n  ashlar export tank\n")]
    Export(ArrayArgs),
    /// Destroy an array and all its data; its devices are free for other use
    #[command(after_help = "Example:\n  ashlar destroy tank --yes\n")]
    Destroy(DestroyArgs),
    /// List the arrays, one line each
    #[command(after_help = "Examples:\n  ashlar list\n  ashlar list -Hp\n")]
    List(ListArgs),
    /// Show the state of arrays: devices, space, work in progress, what is wrong and what to do
    #[command(after_help = STATUS_EXAMPLES)]
    Status(StatusArgs),
    /// Show what happened
    #[command(after_help = EVENTS_EXAMPLES)]
    Events(EventsArgs),
    /// Show who did what to arrays: the user, the command line, the result
    #[command(after_help = "Examples:\n  ashlar history tank\n  ashlar history -n 50\n")]
    History(HistoryArgs),
    /// Test the notifications of events
    #[command(subcommand)]
    Notify(NotifyVerb),
    /// Show the load on volumes: requests, throughput, latency
    #[command(after_help = IOSTAT_EXAMPLES)]
    Iostat(IostatArgs),
    /// List devices and the drives under them, find, wipe and light single ones
    #[command(subcommand)]
    Device(DeviceVerb),
    /// Make, list, change and serve volumes
    #[command(subcommand)]
    Volume(VolumeVerb),
    /// Take a device out of use for a while; its data is not rebuilt until 'online' or 'fail'
    #[command(after_help = "Examples:\n  ashlar offline tank /dev/sdf\n  ashlar offline tank 5\n")]
    Offline(OfflineArgs),
    /// Take a device in again: what it still holds counts, what it lacks is rebuilt
    #[command(
        after_help = "Examples:\n  ashlar online tank /dev/sdf\n  ashlar online tank 5 -f -w\n"
    )]
    Online(OnlineArgs),
    /// Put a new device in the place of another; one in use serves until its data has moved
    #[command(
        after_help = "Examples:\n  ashlar replace tank 5 /dev/sdk\n  ashlar replace tank 5 -n\n"
    )]
    Replace(ReplaceArgs),
    /// Add devices: new data lie on them as well
    #[command(
        after_help = "Examples:\n  ashlar add tank /dev/sdk -n\n  ashlar add tank /dev/sdm --hot-spare\n  ashlar add tank /dev/sdk /dev/sdl\n"
    )]
    Add(AddArgs),
    /// Take a device out for good: it is emptied first, and serves until then
    #[command(
        after_help = "'ashlar online ARRAY DEV' lets it stay.\n\nExamples:\n  ashlar remove tank /dev/sdf -n\n  ashlar remove tank 5 -w\n"
    )]
    Remove(RemoveArgs),
    /// Take a device out, not to be awaited; its data is rebuilt on the other devices
    #[command(after_help = "Examples:\n  ashlar fail tank /dev/sdf\n  ashlar fail tank 5 -w\n")]
    Fail(FailArgs),
    /// Wait until background work has ended
    #[command(after_help = "Examples:\n  ashlar wait tank\n  ashlar wait tank --for rebuild\n")]
    Wait(WaitArgs),
    /// Read and verify all that an array stores and repair what is bad; alone, show the reports
    #[command(
        after_help = "Examples:\n  ashlar scrub tank\n  ashlar scrub tank start -w\n  ashlar scrub tank start --check --since 7d\n  ashlar scrub tank pause\n"
    )]
    Scrub(ScrubArgs),
    /// List an array's background work, pause it, resume it, or cancel it
    #[command(
        after_help = "Examples:\n  ashlar task tank\n  ashlar task tank 1 pause\n  ashlar task tank rebuild resume\n"
    )]
    Task(TaskArgs),
    /// Tell an array's devices which space is free, so that they can erase it ahead
    #[command(
        after_help = "It does not free space of volumes: 'fstrim MOUNTPOINT' does.\n\nExample:\n  ashlar trim tank\n"
    )]
    Trim(ArrayArgs),
    /// Show an array's properties
    #[command(after_help = "Examples:\n  ashlar get tank\n  ashlar get tank clean.reserve\n")]
    Get(GetArgs),
    /// Change an array's property
    #[command(after_help = SET_HELP)]
    Set(SetArgs),
    /// Print the structures on a device (no daemon needed)
    #[command(after_help = INSPECT_EXAMPLES)]
    Inspect(InspectArgs),
    /// Check all of an array that is not in use: tables, trees, digests, parity (no daemon needed)
    #[command(after_help = VERIFY_EXAMPLES)]
    Verify(VerifyArgs),
    /// Try everything in a temporary folder: device failures, corruption, a crash, all data verified
    #[command(after_help = "Example:\n  ashlar demo\n")]
    Demo(DemoArgs),
    /// Compute the probability of data loss by the number of failed devices
    #[command(after_help = resilience::EXAMPLES)]
    Resilience(resilience::Args),
    /// Compare layouts: capacity, years to data loss, rebuild hours
    #[command(after_help = plan::EXAMPLES)]
    Plan(plan::Args),
    /// Collect status, events, log and devices in one file for those who help (no volume data)
    #[command(after_help = "Example:\n  ashlar support /tmp/ashlar.tar.gz\n")]
    Support(SupportArgs),
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::daemon::state::NOTIFY_SETTINGS;
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
            let key = setting.key.replace("reconstruct.", "rebuild.");
            assert!(SET_HELP.contains(&format!("\n  {key}  ")), "{key}");
            assert!(SET_HELP.contains(&entry), "{key}");
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
            let known = |s: &ashlar_engine::Setting| {
                let key = s.key.replace("reconstruct.", "rebuild.");
                example.contains(&format!(" {key}="))
            };
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
