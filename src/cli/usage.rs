//! The command line as it was typed: which verb that is, and wrong usage in one line.
//!
//! **Invariants**: help and versions are printed as clap has them; everything else that clap finds wrong is
//! one line that names the verb to ask for help; what the contract has and this version has not says so.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};

use super::{Cli, absent};
use crate::failure::Failure;

/// What was typed.
#[derive(Debug)]
pub(crate) struct Typed {
    /// The verb, such as `volume attach`; empty if there is none.
    pub(crate) verb: String,
    /// Whether errors are to be JSON.
    pub(crate) json: bool,
}

impl Typed {
    /// From the words after the program's name.
    pub(crate) fn new(words: &[OsString]) -> Typed {
        let words: Vec<String> = words
            .iter()
            .map(|w| w.to_string_lossy().into_owned())
            .take_while(|w| w != "--")
            .collect();
        let short = |w: &str| {
            w.strip_prefix('-').is_some_and(|letters| {
                letters.contains('j') && letters.bytes().all(|b| b.is_ascii_alphabetic())
            })
        };
        let json = words.iter().any(|w| w == "--json" || short(w));
        let (mut at, mut verb) = (Cli::command(), Vec::new());
        for word in &words {
            let found = at.find_subcommand(word).cloned();
            let path = [verb.join(" ").as_str(), word].join(" ");
            match found {
                Some(next) => {
                    verb.push(word.clone());
                    at = next;
                }
                None if absent::verb(path.trim()).is_some() && at.has_subcommands() => {
                    verb.push(word.clone());
                    break;
                }
                None => {}
            }
            if !at.has_subcommands() {
                break;
            }
        }
        Typed {
            verb: verb.join(" "),
            json,
        }
    }
}

/// Reads the command line; help and versions are printed, and end the process.
///
/// # Errors
/// Wrong usage, in one line.
pub(crate) fn read(typed: &Typed) -> Result<Cli, Failure> {
    Cli::try_parse_from(as_flags(std::env::args_os().collect())).map_err(|error| {
        use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
        match error.kind() {
            DisplayHelp | DisplayVersion => error.exit(),
            DisplayHelpOnMissingArgumentOrSubcommand if !typed.json => error.exit(),
            _ => failure(&error, typed),
        }
    })
}

/// `ashlar help VERB` and `ashlar version`, as they are typed for other programs, in the words of this one.
fn as_flags(mut words: Vec<OsString>) -> Vec<OsString> {
    match words.get(1).and_then(|word| word.to_str()) {
        Some("help") => {
            words.remove(1);
            words.push("--help".into());
        }
        Some("version") if words.len() == 2 => words[1] = "--version".into(),
        _ => {}
    }
    words
}

/// A verb of volumes, devices and so on that was typed without that word: where it is.
fn of_a_group(given: &str) -> Option<Failure> {
    let command = Cli::command();
    let has = |group: &&clap::Command| group.find_subcommand(given).is_some();
    let group = command.get_subcommands().find(has)?.get_name();
    Some(Failure::invalid(format!(
        "'ashlar {given}' is 'ashlar {group} {given}'; 'ashlar {group} {given} --help' shows what it takes"
    )))
}

fn failure(error: &clap::Error, typed: &Typed) -> Failure {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let absent = match error.kind() {
        ErrorKind::InvalidSubcommand => absent::verb(&typed.verb).or_else(|| {
            let given = context(ContextKind::InvalidSubcommand)?;
            of_a_group(given).filter(|_| typed.verb.is_empty())
        }),
        ErrorKind::UnknownArgument => {
            let given = context(ContextKind::InvalidArg).unwrap_or_default();
            absent::flag(&typed.verb, given)
        }
        ErrorKind::ValueValidation => {
            let part = |kind| context(kind).unwrap_or_default();
            let (flag, value) = (
                part(ContextKind::InvalidArg),
                part(ContextKind::InvalidValue),
            );
            absent::value(&typed.verb, flag, value)
        }
        _ => None,
    };
    absent.unwrap_or_else(|| Failure::invalid(one_line(&error.to_string(), &typed.verb)))
}

/// What clap says in several lines, in one.
fn one_line(text: &str, verb: &str) -> String {
    let mut parts = text.split("\n\n");
    let first = parts.next().unwrap_or_default();
    let first = first.strip_prefix("error: ").unwrap_or(first);
    let mut what = String::new();
    for (i, line) in first.lines().map(str::trim).enumerate() {
        match i {
            0 => {}
            1 => what.push(' '),
            _ => what.push_str(", "),
        }
        what += line;
    }
    let tip = parts
        .flat_map(str::lines)
        .find_map(|l| l.trim().strip_prefix("tip: ").map(str::to_string));
    let tip = tip.map_or(String::new(), |tip| format!(" ({tip})"));
    let space = if verb.is_empty() { "" } else { " " };
    format!("{what}{tip}; 'ashlar {verb}{space}--help' shows what it takes")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::failure::Kind;

    fn typed(line: &str) -> Typed {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        Typed::new(&words)
    }

    #[test]
    fn the_verb_is_found_behind_flags() {
        for (line, verb, json) in [
            (
                "--socket /run/x volume attach t/v --loop",
                "volume attach",
                false,
            ),
            ("-j replace tank 4", "replace", true),
            ("status -xj", "status", true),
            ("device set t/v", "device set", false),
            ("create -- -j", "create", false),
            ("frobnicate", "", false),
        ] {
            let typed = typed(line);
            assert_eq!((typed.verb.as_str(), typed.json), (verb, json), "{line}");
        }
    }

    #[test]
    fn help_and_version_are_verbs_too() {
        let parsed = |line: &str| {
            let words = as_flags(line.split(' ').map(OsString::from).collect());
            let error = Cli::try_parse_from(words).unwrap_err();
            (error.kind(), error.to_string())
        };
        let (kind, text) = parsed("ashlar help volume attach");
        assert_eq!(kind, ErrorKind::DisplayHelp);
        assert!(text.contains("Usage: ashlar volume attach "), "{text}");
        assert!(parsed("ashlar help").1.contains("Commands:"));
        assert_eq!(parsed("ashlar version").0, ErrorKind::DisplayVersion);
        assert_eq!(
            parsed("ashlar help frobnicate").0,
            ErrorKind::InvalidSubcommand
        );
    }

    fn said(line: &str) -> Failure {
        let error = Cli::try_parse_from(format!("ashlar {line}").split(' ')).unwrap_err();
        failure(&error, &typed(line))
    }

    #[test]
    fn wrong_usage_is_one_line_that_says_where_help_is() {
        for (line, what) in [
            (
                "list frob",
                "unexpected argument 'frob' found; 'ashlar list --help'",
            ),
            (
                "create t",
                "--layout <LAYOUT>, <DEV>...; 'ashlar create --help'",
            ),
            (
                "wait t --for coffee",
                "[possible values: rebuild, reconstruct",
            ),
            ("statsu", "'status'"),
            (
                "attach t/v --loop",
                "'ashlar attach' is 'ashlar volume attach'; 'ashlar volume attach --help'",
            ),
            ("status --watch abc", "'abc' is not a number of seconds"),
        ] {
            let failure = said(line);
            assert_eq!(failure.kind, Kind::Invalid, "{line}");
            assert!(failure.text.contains(what), "{line}: {failure}");
            assert_eq!(failure.text.lines().count(), 1);
        }
    }

    #[test]
    fn a_verb_or_flag_to_come_says_so_and_suggests_no_other() {
        for line in [
            "upgrade tank",
            "snapshot t/v@now",
            "create t --layout ec2+1 --journal x a b c",
            "volume attach t/v --ublk",
            "daemon --listen 0.0.0.0:1",
        ] {
            let failure = said(line);
            assert_eq!(failure.kind, Kind::Absent, "{line}: {failure}");
            assert!(failure.text.contains("is not in this version"), "{failure}");
            assert!(!failure.text.contains("similar"), "{failure}");
        }
    }
}
