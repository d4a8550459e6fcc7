//! What the contract names and this version does not have: an administrator who types it is told so, and
//! what to do meanwhile; no other verb is suggested.
//!
//! **Invariants**: nothing here is a verb, flag or value that the command line takes.

use crate::failure::{Failure, Kind};

const SNAPSHOTS: &str = "use snapshots of the file system on the volume, or copy it";

/// Verbs, as they are typed, and what to do instead.
const VERBS: &[(&str, &str)] = &[
    ("clone", SNAPSHOTS),
    (
        "convert",
        "make another array of that layout, and copy the data",
    ),
    (
        "digest",
        "blocks are verified on every read; 'ashlar verify DEV...' checks all of an exported array",
    ),
    ("rollback", SNAPSHOTS),
    ("snapshot", SNAPSHOTS),
    (
        "upgrade",
        "the format has one version so far, so there is nothing to upgrade",
    ),
];

/// Flags of verbs there are.
const FLAGS: &[(&str, &[&str])] = &[
    ("create", &["--code", "--journal", "--key", "--optimize"]),
    (
        "daemon",
        &["--listen", "--tls-dir", "--cpus", "--web", "--no-keeper"],
    ),
    (
        "volume create",
        &["--sector-size", "--compress", "--layout"],
    ),
    ("volume list", &["-t"]),
    ("volume attach", &["--ublk", "--vhost-user", "--nvme-tcp"]),
];

/// Settings of a volume.
const OF_VOLUMES: &[&str] = &["compress", "layout"];

/// Kinds of work that `wait --for` takes by the contract.
const WORK: &[&str] = &["convert"];

fn not_yet(what: &str, next: &str) -> Failure {
    let version = env!("CARGO_PKG_VERSION");
    Failure::of_kind(
        Kind::Absent,
        format!("{what} is not in this version ({version}); {next}"),
    )
}

/// For a verb that was not known: what to say if the contract has it.
pub(crate) fn verb(path: &str) -> Option<Failure> {
    let (_, next) = VERBS.iter().find(|(verb, _)| *verb == path)?;
    Some(not_yet(&format!("'ashlar {path}'"), next))
}

/// For a flag or word that was not known: what to say if the contract has it.
pub(crate) fn flag(path: &str, flag: &str) -> Option<Failure> {
    let (_, flags) = FLAGS.iter().find(|(verb, _)| *verb == path)?;
    flags
        .contains(&flag)
        .then(|| not_yet(&format!("'ashlar {path} {flag}'"), &without(path)))
}

/// For a value that was not taken: what to say if the contract has it.
pub(crate) fn value(path: &str, flag: &str, value: &str) -> Option<Failure> {
    let ublk = path == "create" && flag.starts_with("--attach") && value == "ublk";
    ublk.then(|| not_yet("'ashlar create --attach ublk'", &without(path)))
}

/// A setting of a volume.
///
/// # Errors
/// If it is to come.
pub(crate) fn check_volume_setting(key: &str) -> Result<(), Failure> {
    if OF_VOLUMES.contains(&key) {
        let next = "the only setting of a volume is write-cache";
        return Err(not_yet(&format!("the setting '{key}' of a volume"), next));
    }
    Ok(())
}

/// The digest of a new volume.
///
/// # Errors
/// If it is shortened, `ALG:BYTES`.
pub(crate) fn check_digest(digest: &str) -> Result<(), Failure> {
    match digest.split_once(':') {
        Some((whole, _)) => Err(not_yet(
            &format!("'--digest {digest}', a shortened digest,"),
            &format!("use '--digest {whole}'"),
        )),
        None => Ok(()),
    }
}

/// A volume's name.
///
/// # Errors
/// If it is a snapshot's.
pub(crate) fn check_volume(name: &str) -> Result<(), Failure> {
    match name.split_once('@') {
        Some((volume, _)) => Err(not_yet(
            &format!("'{name}', a snapshot,"),
            &format!("name the volume, '{volume}', or {SNAPSHOTS}"),
        )),
        None => Ok(()),
    }
}

/// A device over NBD, which the contract takes wherever a device is named.
///
/// # Errors
/// If it is one.
pub(crate) fn check_device(given: &std::path::Path) -> Result<(), Failure> {
    let given = given.to_string_lossy();
    if given.starts_with("nbd://") || given.starts_with("nbd+unix://") {
        return Err(not_yet(
            &format!("{given}: a device over NBD"),
            "attach it with nbd-client, and give its /dev/nbdN",
        ));
    }
    Ok(())
}

/// A kind of work for `wait --for`, as the daemon calls it.
///
/// # Errors
/// If this version has no such work.
pub(crate) fn work(kind: &str) -> Result<String, Failure> {
    if WORK.contains(&kind) {
        return Err(not_yet(
            &format!("'{kind}' work"),
            "'ashlar wait ARRAY' waits for all background work",
        ));
    }
    let engines = match kind {
        "rebuild" => "reconstruct",
        "repair" => "heal",
        other => other,
    };
    Ok(engines.to_string())
}

fn without(path: &str) -> String {
    format!("'ashlar {path} --help' lists the flags of this version")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use clap::CommandFactory;

    fn find(path: &str) -> Option<clap::Command> {
        let mut at = crate::cli::Cli::command();
        for word in path.split(' ') {
            at = at.find_subcommand(word)?.clone();
        }
        Some(at)
    }

    #[test]
    fn what_is_called_absent_is() {
        for (verb, _) in VERBS {
            assert!(find(verb).is_none(), "{verb} is there");
        }
        for (verb, flags) in FLAGS {
            let command = find(verb).unwrap();
            for flag in *flags {
                let there = command.get_arguments().any(|a| {
                    a.get_long().is_some_and(|l| format!("--{l}") == *flag)
                        || a.get_short().is_some_and(|s| format!("-{s}") == *flag)
                });
                assert!(!there, "{verb} {flag} is there");
            }
        }
    }
}
