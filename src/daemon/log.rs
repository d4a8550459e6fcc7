//! The log: lines on standard error, written by a thread of its own.
//!
//! **Invariants**: nobody waits for a line to be written, and none that cannot be written ends anything: a reader that
//! went away, a full disk or a pipe that nobody empties cost lines, which are counted and told once lines go out again;
//! what is queued is bounded; a file that was renamed is left for a new one of the old name when [`reopen`] is called.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

/// Lines that wait to be written.
const QUEUE: usize = 4096;
/// How long the end of the process waits for them.
const LAST_WORDS: Duration = Duration::from_secs(3);

static LOG: OnceLock<Log> = OnceLock::new();

struct Log {
    lines: SyncSender<Line>,
    lost: AtomicU64,
    /// The file that standard error is, if it is one.
    file: Option<PathBuf>,
}

enum Line {
    Text(Vec<u8>),
    /// Answered when all before it are written.
    Flush(SyncSender<()>),
}

/// Starts it. `ASHLAR_LOG` says from which level on.
pub(crate) fn start() {
    let (lines, queue) = sync_channel(QUEUE);
    let writer = std::thread::Builder::new().name("ashlar-log".to_string());
    if writer.spawn(move || write_out(&queue)).is_err() {
        return; // no thread, no log: the engine will not start either, and says so
    }
    let log = Log {
        lines,
        lost: AtomicU64::new(0),
        file: own_file(),
    };
    let _ = LOG.set(log);
    let filter = tracing_subscriber::EnvFilter::try_from_env("ASHLAR_LOG")
        // The engine's own line for an event names no array; the daemon writes one that does, at the event's level.
        .unwrap_or_else(|_| {
            tracing_subscriber::EnvFilter::new("info,ashlar_engine::members::events=warn")
        });
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Queue)
        .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
        .with_target(false)
        .try_init();
}

/// What the subscriber writes to: a line at a time, and never an error.
struct Queue;

impl Write for Queue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Some(log) = LOG.get() {
            match log.lines.try_send(Line::Text(line.to_vec())) {
                Ok(()) => {}
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                    log.lost.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_out(queue: &Receiver<Line>) {
    let mut stderr = io::stderr();
    while let Ok(line) = queue.recv() {
        match line {
            Line::Text(text) => {
                let lost = LOG.get().map_or(0, |log| log.lost.load(Ordering::Relaxed));
                if lost > 0
                    && writeln!(stderr, "WARN {lost} lines of the log were lost here").is_ok()
                    && let Some(log) = LOG.get()
                {
                    log.lost.fetch_sub(lost, Ordering::Relaxed);
                }
                if stderr.write_all(&text).is_err()
                    && let Some(log) = LOG.get()
                {
                    log.lost.fetch_add(1, Ordering::Relaxed);
                }
            }
            Line::Flush(done) => drop(done.try_send(())),
        }
    }
}

/// Waits a moment for what is queued.
pub(crate) fn flush() {
    let Some(log) = LOG.get() else { return };
    let (done, written) = sync_channel(1);
    if log.lines.try_send(Line::Flush(done)).is_ok() {
        let _ = written.recv_timeout(LAST_WORDS);
    }
}

/// The path of standard error, where that is a file.
fn own_file() -> Option<PathBuf> {
    let link = Path::new("/proc/self/fd/2");
    let kind = std::fs::metadata(link).ok()?.file_type();
    if !kind.is_file() || kind.is_char_device() {
        return None;
    }
    let path = std::fs::read_link(link).ok()?;
    path.is_absolute().then_some(path)
}

/// Goes on in a new file, where standard error is one that was renamed or removed; whether it was one.
///
/// # Errors
/// If it cannot be opened: the old one is kept.
pub(crate) fn reopen() -> io::Result<bool> {
    let Some(path) = LOG.get().and_then(|log| log.file.as_deref()) else {
        return Ok(false);
    };
    let file = File::options().create(true).append(true).open(path)?;
    rustix::stdio::dup2_stderr(&file)?;
    Ok(true)
}
