//! Progress of long work: a line that is drawn over on a terminal, plain lines now and then
//! otherwise.
//!
//! **Invariants**: on a terminal the line is erased at the end; in a pipe a line appears at most
//! every [`PLAIN_EVERY`] seconds, so that a log stays readable.

use std::io::{IsTerminal, Write};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

/// How often a line is printed where it cannot be drawn over.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

/// How often a line is drawn over.
const DRAWN_EVERY: Duration = Duration::from_millis(500);

/// A progress line on standard error.
#[derive(Debug)]
pub(crate) struct Progress {
    terminal: bool,
    quiet: bool,
    drawn: bool,
    last: Option<Instant>,
}

impl Progress {
    /// Nothing shown yet; with `quiet`, nothing ever.
    pub(crate) fn new(quiet: bool) -> Progress {
        let terminal = std::io::stderr().is_terminal();
        Progress {
            terminal,
            quiet,
            drawn: false,
            last: None,
        }
    }

    /// The same, and nothing where it cannot be drawn over.
    pub(crate) fn on_terminals(self) -> Progress {
        Progress {
            quiet: self.quiet || !self.terminal,
            ..self
        }
    }

    /// Shows `line`.
    pub(crate) fn show(&mut self, line: &str) {
        if self.quiet {
            return;
        }
        let mut err = std::io::stderr();
        if self.terminal {
            let _ = write!(err, "\r\u{1b}[K{line}");
            let _ = err.flush();
            self.drawn = true;
        } else if self.last.is_none_or(|at| at.elapsed() >= PLAIN_EVERY) {
            let _ = writeln!(err, "{line}");
            self.last = Some(Instant::now());
        }
    }

    /// Erases the line.
    pub(crate) fn end(&mut self) {
        if self.drawn {
            let mut err = std::io::stderr();
            let _ = write!(err, "\r\u{1b}[K");
            let _ = err.flush();
            self.drawn = false;
        }
    }
}

/// Does `work` on this thread, and shows from another what `line` says of it, given when it began.
pub(crate) fn beside<T>(
    work: impl FnOnce() -> T,
    line: impl Fn(Instant) -> String + Send,
    quiet: bool,
) -> T {
    let begun = Instant::now();
    let (ended, wait) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut progress = Progress::new(quiet);
            // Until the sender is gone.
            while wait.recv_timeout(DRAWN_EVERY) == Err(RecvTimeoutError::Timeout) {
                progress.show(&line(begun));
            }
        });
        let _ended = ended;
        work()
    })
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}
