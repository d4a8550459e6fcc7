//! `verify`: the independent checker over the devices of one array, without a daemon or an engine.
//!
//! **Invariants**: nothing is written; every device is held while it is read, so that no array on it is
//! started meanwhile, and one in use is refused; the exit code is 0 only if all is well.

use std::process::ExitCode;

use ashlar_device::{OpenError, OpenMode};
use ashlar_verify::{FileSource, Source};

use crate::cli::VerifyArgs;
use crate::command::{document, out};
use crate::failure::Failure;

/// `verify`.
///
/// # Errors
/// If a device cannot be opened, or is in use.
pub(crate) fn verify(args: &VerifyArgs, json: bool) -> Result<ExitCode, Failure> {
    let mode = OpenMode {
        read_only: true,
        exclusive: true,
    };
    let (mut held, mut sources, mut names) = (Vec::new(), Vec::new(), Vec::new());
    for path in &args.devices {
        // Through the device library first: it says best why something cannot be opened.
        let device = ashlar_device::open(None, path, mode).map_err(|error| match error {
            OpenError::InUse { .. } => Failure::refused(error.to_string()),
            error => Failure::broken(error.to_string()),
        })?;
        held.push(device);
        let source = FileSource::open(path);
        sources.push(source.map_err(|e| Failure::broken(format!("{}: {e}", path.display())))?);
        names.push(path.display().to_string());
    }
    let sources: Vec<&dyn Source> = sources.iter().map(|s| s as &dyn Source).collect();
    let report = ashlar_verify::verify(&sources);
    drop(held);
    if json {
        out(&document("verify", &report.to_json(&names))?)?;
    } else {
        out(&report.to_text(&names))?;
    }
    Ok(if report.is_well() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
