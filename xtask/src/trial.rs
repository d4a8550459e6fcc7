//! `cargo xtask trial [SUITE...]`: the package, installed, used, crashed, upgraded and purged in each Debian that is
//! supported, booted with its own systemd; `packaging/trial` has the steps.
//!
//! **Invariants**: the package is the one that `cargo xtask package` makes of this tree; nothing of a trial stays but
//! the roots in `target/trial`, which the next one uses again; a trial that cannot be run is a failure.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::package::{self, done};
use crate::packages::find;
use crate::place;

/// The Debians that are supported: 12 and 13.
pub(crate) const SUITES: &[&str] = &["bookworm", "trixie"];
/// What a trial needs, and the Debian package that has it.
const NEEDS: &[(&str, &str)] = &[
    ("debootstrap", "debootstrap"),
    ("systemd-nspawn", "systemd-container"),
    ("nbdcopy", "libnbd-bin"),
    ("nsenter", "util-linux"),
    ("lintian", "lintian"),
];

/// Makes the package and tries it.
pub(crate) fn run(suites: &[String]) -> ExitCode {
    let wanted: Vec<&str> = match suites {
        [] => SUITES.to_vec(),
        some => some.iter().map(String::as_str).collect(),
    };
    match all(&wanted) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("trial: {error}");
            ExitCode::FAILURE
        }
    }
}

fn all(suites: &[&str]) -> Result<(), String> {
    if let Some((program, package)) = NEEDS.iter().find(|(program, _)| !find(program)) {
        return Err(format!("{program} is missing: apt install {package}"));
    }
    let made = package::make()?;
    let deb = made.first().ok_or("no package was made")?;
    let target = deb.ancestors().nth(2).ok_or("the package has no folder")?;
    done(
        Command::new("lintian")
            .args(["--fail-on", "error"])
            .arg(deb),
    )?;
    let failed: Vec<&str> = suites
        .iter()
        .filter(|suite| !passes(deb, suite, target))
        .copied()
        .collect();
    match failed.as_slice() {
        [] => Ok(()),
        some => Err(format!("failed on {}", some.join(", "))),
    }
}

/// The trial of a package in a Debian, with its roots below `target`; from an earlier package on, if there is one.
pub(crate) fn command(deb: &Path, suite: &str, target: &Path, earlier: Option<&Path>) -> Command {
    let mut trial = Command::new(place::root().join("packaging/trial/run.sh"));
    trial.arg(deb).arg(suite).arg(target.join("trial"));
    trial.args(earlier);
    trial
}

fn passes(deb: &Path, suite: &str, target: &Path) -> bool {
    match done(&mut command(deb, suite, target, None)) {
        Ok(()) => true,
        Err(error) => {
            eprintln!("trial: {error}");
            false
        }
    }
}
