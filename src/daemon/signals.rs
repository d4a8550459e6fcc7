//! Signals: an orderly end at TERM and INT, a new log file at HUP; every other that would end the process is told and
//! does nothing.
//!
//! **Invariants**: no signal but KILL, and those of the processor's own faults, ends a daemon that serves, except TERM
//! and INT in order; a write beyond the limit of file sizes (XFSZ) is an error of that write.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ashlar_rt::Sender;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::daemon::job::Job;
use crate::daemon::log;

/// Signals that end a process which does not ask for them, by number and name.
const IGNORED: &[(i32, &str)] = &[
    (3, "QUIT"),
    (10, "USR1"),
    (12, "USR2"),
    (14, "ALRM"),
    (16, "STKFLT"),
    (24, "XCPU"),
    (25, "XFSZ"),
    (26, "VTALRM"),
    (27, "PROF"),
    (29, "IO"),
    (30, "PWR"),
];

/// Those without a name of their own; the C library keeps two for itself.
const REAL_TIME: std::ops::RangeInclusive<i32> = 34..=64;

/// Asks for all of them. To be called on the runtime that then runs [`Signals::serve`].
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn ask() -> std::io::Result<Signals> {
    let mut ignored = Vec::new();
    for (number, name) in IGNORED {
        ignored.push((*name, signal(SignalKind::from_raw(*number))?));
    }
    for number in REAL_TIME {
        ignored.push(("RT", signal(SignalKind::from_raw(number))?));
    }
    Ok(Signals {
        ending: vec![
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
        ],
        hangup: signal(SignalKind::hangup())?,
        ignored,
    })
}

/// The signals of this process.
#[derive(Debug)]
pub(crate) struct Signals {
    ending: Vec<Signal>,
    hangup: Signal,
    ignored: Vec<(&'static str, Signal)>,
}

impl Signals {
    /// Heeds them for as long as the runtime lives. `hurry` hears of the second that asks for the end.
    pub(crate) fn serve(self, jobs: &Sender<Job>, hurry: &Sender<()>) {
        let asked = Arc::new(AtomicUsize::new(0));
        for signal in self.ending {
            let (jobs, hurry) = (jobs.clone(), hurry.clone());
            tokio::spawn(stop_on(signal, asked.clone(), jobs, hurry));
        }
        tokio::spawn(reopen_on(self.hangup));
        for (name, mut signal) in self.ignored {
            tokio::spawn(async move {
                while signal.recv().await.is_some() {
                    tracing::info!("SIG{name}: ignored; SIGTERM stops the daemon");
                }
            });
        }
    }
}

async fn reopen_on(mut signal: Signal) {
    while signal.recv().await.is_some() {
        match log::reopen() {
            Ok(true) => tracing::info!("SIGHUP: the log goes on here"),
            Ok(false) => tracing::info!("SIGHUP: the log is not a file; nothing to reopen"),
            Err(error) => {
                tracing::warn!(%error, "SIGHUP: the log cannot be reopened and goes on in the old file")
            }
        }
    }
}

/// The first signal, of either kind, asks for an orderly end; the second, that it waits for no client;
/// the third ends at once (arrays stay importable).
async fn stop_on(
    mut signal: Signal,
    asked: Arc<AtomicUsize>,
    jobs: Sender<Job>,
    hurry: Sender<()>,
) {
    while signal.recv().await.is_some() {
        match asked.fetch_add(1, Ordering::SeqCst) {
            0 => {
                let _ = jobs.send(Job::Stop); // unless it is stopping already
            }
            1 => {
                tracing::warn!("second signal: clients are disconnected by force");
                let _ = hurry.send(()); // unless it has stopped already
            }
            _ => {
                tracing::warn!("third signal: ending without closing the arrays");
                log::flush();
                std::process::exit(1);
            }
        }
    }
}
