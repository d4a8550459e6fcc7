//! Progress of long work: a line that is drawn over on a terminal, plain lines now and then
//! otherwise.
//!
//! **Invariants**: on a terminal the line takes one row, and is erased at the end; in a pipe a line appears when it is
//! another than before, at most every [`PLAIN_EVERY`] seconds, so that a log stays readable.

use std::io::{IsTerminal, Write};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use crate::view::Style;

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
    /// The line that was printed last, and when.
    last: Option<(Instant, String)>,
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
    pub(crate) fn on_terminals(mut self) -> Progress {
        self.quiet |= !self.terminal;
        self
    }

    /// Shows `line`.
    pub(crate) fn show(&mut self, line: &str) {
        if self.quiet {
            return;
        }
        let mut err = std::io::stderr();
        if self.terminal {
            // A longer one would wrap, and only its last row would be erased.
            let row: String = line.chars().take(Style::detect(false).width - 1).collect();
            let _ = write!(err, "\r\u{1b}[K{row}");
            let _ = err.flush();
            self.drawn = true;
        } else if self.is_due(line, Instant::now()) {
            let _ = writeln!(err, "{line}");
        }
    }

    /// Whether a line is to be printed now where it cannot be drawn over.
    fn is_due(&mut self, line: &str, now: Instant) -> bool {
        let is_new = |(at, before): &(Instant, String)| now - *at >= PLAIN_EVERY && before != line;
        let due = self.last.as_ref().is_none_or(is_new);
        if due {
            self.last = Some((now, line.to_string()));
        }
        due
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_printed_when_it_is_another() {
        let mut progress = Progress::new(false);
        let begun = Instant::now();
        let mut due = |seconds, line| progress.is_due(line, begun + Duration::from_secs(seconds));
        assert!(due(0, "waiting"));
        assert!(!due(10, "waiting") && !due(600, "waiting"), "said already");
        assert!(due(601, "5 %"));
        assert!(!due(602, "6 %"), "too soon");
        assert!(due(611, "7 %"));
    }
}
