//! Asking drives for their health, which `smartctl` of the package smartmontools does.
//!
//! **Invariants**: nobody waits longer than [`LIMIT`] for a drive, and one that has not answered is not asked again
//! before the program that asks it has ended; no shell reads a path; a disk that sleeps is not woken.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};

/// How long one drive may take.
const LIMIT: Duration = Duration::from_secs(30);
/// Longest answer that is read.
const LONGEST: usize = 4 << 20;
/// What is asked for: identity, verdict, attributes, what could not be corrected, wear.
const ASK: [&str; 10] = [
    "--json=c",
    "-n",
    "standby,0",
    "-i",
    "-H",
    "-A",
    "-l",
    "error",
    "-l",
    "ssd",
];

/// Whoever asks.
#[derive(Debug, Default)]
pub(super) struct Asker {
    /// Programs that were killed and have not ended: the kernel waits for their drives.
    stuck: Vec<(PathBuf, Child)>,
    /// It was said that there is no such program.
    pub(super) missing_told: bool,
}

impl Asker {
    /// What `smartctl` says of a drive, in good or ill; nothing of one that has not answered in time.
    ///
    /// # Errors
    /// If there is no such program, or no process to be had.
    pub(super) fn ask(&mut self, drive: &Path) -> io::Result<Option<Vec<u8>>> {
        self.stuck
            .retain_mut(|(_, child)| !matches!(child.try_wait(), Ok(Some(_))));
        if self.stuck.iter().any(|(path, _)| path == drive) {
            return Ok(None);
        }
        let answer = std::fs::File::from(memfd_create("smartctl", MemfdFlags::CLOEXEC)?);
        let path = std::env::var("PATH").unwrap_or_default();
        let mut child = Command::new("smartctl")
            .args(ASK)
            .arg(drive)
            .env("PATH", format!("{path}:/usr/sbin:/sbin"))
            .env("LC_ALL", "C")
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(answer.try_clone()?)
            .stderr(Stdio::null())
            .spawn()?;
        let until = Instant::now() + LIMIT;
        // What its exit status says stands in the answer too.
        while child.try_wait()?.is_none() {
            if Instant::now() >= until {
                let _ = child.kill();
                self.stuck.push((drive.to_path_buf(), child));
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let length = usize::try_from(answer.metadata()?.len()).unwrap_or(LONGEST);
        let mut bytes = vec![0; length.min(LONGEST)];
        answer.read_exact_at(&mut bytes, 0)?;
        Ok(Some(bytes))
    }
}
