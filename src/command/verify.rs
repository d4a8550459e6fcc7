//! `verify`: the independent checker over the devices of one array, without a daemon or an engine.
//!
//! **Invariants**: nothing is written; every device is held while it is read, so that no array on it is
//! started meanwhile, and one that stays in use is refused; the exit code is 0 only if all is well.

use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ashlar_device::{OpenError, OpenMode, Unserved};
use ashlar_verify::{FileSource, Source, Unreadable};

use crate::cli::VerifyArgs;
use crate::failure::Failure;
use crate::print::{document, out};
use crate::seat::{seat, source};
use crate::units::{duration, rate_over, size};
use crate::view::progress::beside;

/// How long devices that are in use are waited for, and between two tries.
const BUSY_WAIT: Duration = Duration::from_secs(2);
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// A device, and how much is read of all.
struct Counted<'a> {
    source: &'a FileSource,
    read: &'a AtomicU64,
}

impl Source for Counted<'_> {
    fn size(&self) -> u64 {
        self.source.size()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Unreadable> {
        self.read.fetch_add(out.len() as u64, Ordering::Relaxed);
        self.source.read(offset, out)
    }
}

/// What is left can be told only as a bound: just what is live is read.
fn present(read: u64, total: u64, taken: Duration) -> String {
    let seconds = taken.as_secs_f64();
    let millis = u128::from(total.saturating_sub(read)) * taken.as_millis();
    let left = millis.checked_div(u128::from(read) * 1000);
    let left = left.map_or("-".to_string(), |left| {
        duration(u64::try_from(left).unwrap_or(u64::MAX))
    });
    format!(
        "verify: {} read of at most {}  {}  {}, at most {left} left",
        size(read),
        size(total),
        rate_over(read, seconds),
        duration(taken.as_secs())
    )
}

/// `verify`.
///
/// # Errors
/// If a device cannot be opened, or is in use.
pub(crate) fn verify(args: &VerifyArgs, json: bool) -> Result<ExitCode, Failure> {
    let mode = OpenMode {
        read_only: true,
        exclusive: true,
    };
    let free_by = Instant::now() + BUSY_WAIT;
    let (mut held, mut sources, mut names) = (Vec::new(), Vec::new(), Vec::new());
    for path in &args.devices {
        // Through the device library first: it says best why something cannot be opened.
        let opened = seat(open_when_free(path, mode, free_by)?);
        sources.push(source(path, opened.shown())?);
        held.push(opened);
        names.push(path.display().to_string());
    }
    let total = sources.iter().map(Source::size).sum();
    let read = AtomicU64::new(0);
    let counted: Vec<Counted<'_>> = sources
        .iter()
        .map(|source| Counted {
            source,
            read: &read,
        })
        .collect();
    let sources: Vec<&dyn Source> = counted.iter().map(|s| s as &dyn Source).collect();
    let report = beside(
        || ashlar_verify::verify(&sources),
        |begun| present(read.load(Ordering::Relaxed), total, begun.elapsed()),
        json,
    );
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

/// Opens a device; one that is in use is waited for: after an export the kernel's threads hold files for a moment.
fn open_when_free(path: &Path, mode: OpenMode, free_by: Instant) -> Result<Unserved, Failure> {
    loop {
        match ashlar_device::open_unserved(path, mode) {
            Err(OpenError::InUse { .. }) if Instant::now() < free_by => {
                std::thread::sleep(BUSY_PAUSE);
            }
            Err(error @ OpenError::InUse { .. }) => {
                return Err(Failure::refused(error.to_string()));
            }
            outcome => return outcome.map_err(|error| Failure::broken(error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_a_bound_of_what_was_read() {
        let line = present(1 << 20, 5 << 20, Duration::from_secs(30));
        assert!(line.ends_with("30s, at most 2m00s left"), "{line}");
        assert!(present(0, 1 << 20, Duration::ZERO).ends_with("at most - left"));
    }
}
