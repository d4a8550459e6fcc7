//! The demonstration's temporary folder and processes, and taking all of it away again.
//!
//! **Invariants**: whatever ends the demonstration (success, failure, a signal), its daemon is
//! stopped, its mounts are gone and its folder is removed; nothing outside the folder is written
//! to. The list of what to undo is shared with the signal thread, and undone once.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::api::Call;
use crate::client::Client;
use crate::failure::Failure;

/// The array.
pub(super) const ARRAY: &str = "demo";
/// How long a daemon may take to start or stop.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is there and must go.
#[derive(Debug, Default)]
struct Undo {
    dir: Option<PathBuf>,
    mount: Option<PathBuf>,
    daemon: Option<Child>,
}

/// The folder and the daemon in it.
#[derive(Debug)]
pub(super) struct Stage {
    /// The folder.
    pub(super) dir: PathBuf,
    undo: Arc<Mutex<Undo>>,
}

fn lock(undo: &Mutex<Undo>) -> MutexGuard<'_, Undo> {
    undo.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stage {
    /// A new folder under `parent`, cleaned up also when the process is interrupted.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(super) fn new(parent: &Path) -> Result<Stage, Failure> {
        let dir = parent.join(format!("ashlar-demo-{}", std::process::id()));
        std::fs::create_dir(&dir).map_err(|e| {
            Failure::broken(format!(
                "cannot make {}: {e}; give --dir DIR",
                dir.display()
            ))
        })?;
        let undo = Arc::new(Mutex::new(Undo {
            dir: Some(dir.clone()),
            ..Undo::default()
        }));
        let stage = Stage { dir, undo };
        stage.watch_signals()?;
        Ok(stage)
    }

    fn watch_signals(&self) -> Result<(), Failure> {
        use tokio::signal::unix::{SignalKind, signal};
        let failed = |e: std::io::Error| Failure::broken(format!("signals cannot be watched: {e}"));
        let undo = self.undo.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let signals = {
            let _entered = runtime.enter();
            [
                SignalKind::interrupt(),
                SignalKind::terminate(),
                SignalKind::hangup(),
            ]
            .map(signal)
        };
        let mut streams = Vec::new();
        for stream in signals {
            streams.push(stream.map_err(failed)?);
        }
        std::thread::spawn(move || {
            runtime.block_on(std::future::poll_fn(|cx| {
                let came = streams
                    .iter_mut()
                    .any(|stream| stream.poll_recv(cx).is_ready());
                if came {
                    std::task::Poll::Ready(())
                } else {
                    std::task::Poll::Pending
                }
            }));
            eprintln!("\nashlar: interrupted, cleaning up");
            clean(&undo);
            std::process::exit(130);
        });
        Ok(())
    }

    /// A path in the folder.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A client of the daemon.
    ///
    /// # Errors
    /// If the process can have no more descriptors.
    pub(super) fn client(&self) -> Result<Client, Failure> {
        Client::new(self.path("control.sock"))
    }

    /// Starts a daemon of this program and waits until it answers.
    ///
    /// # Errors
    /// What the daemon's log says.
    pub(super) fn start_daemon(&self) -> Result<(), Failure> {
        let program = std::env::current_exe()
            .map_err(|e| Failure::broken(format!("this program cannot find itself: {e}")))?;
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.path("daemon.log"))
            .map_err(|e| Failure::broken(format!("cannot write the daemon's log: {e}")))?;
        let child = Command::new(program)
            .arg("daemon")
            .arg("--socket")
            .arg(self.path("control.sock"))
            .arg("--state")
            .arg(self.path("state"))
            .args(["--memory", "256M"])
            .env("ASHLAR_LOG", "info,ashlar_engine::core=debug") // each bad block by name
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0)
            .spawn()
            .map_err(|e| Failure::broken(format!("the daemon cannot be started: {e}")))?;
        lock(&self.undo).daemon = Some(child);
        let client = self.client()?;
        let until = Instant::now() + PATIENCE;
        while client.call_value(&Call::Ping).is_err() {
            let ended = match &mut lock(&self.undo).daemon {
                Some(child) => child.try_wait().ok().flatten().is_some(),
                None => true,
            };
            if ended || Instant::now() > until {
                return Err(Failure::broken(format!(
                    "the daemon did not start: {}",
                    self.last_log()
                )));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// All that daemons have said.
    pub(super) fn log(&self) -> String {
        std::fs::read_to_string(self.path("daemon.log")).unwrap_or_default()
    }

    /// The last line of the daemon's log.
    pub(super) fn last_log(&self) -> String {
        self.log()
            .lines()
            .last()
            .unwrap_or("its log is empty")
            .to_string()
    }

    /// Kills the daemon with SIGKILL.
    pub(super) fn kill_daemon(&self) {
        let child = lock(&self.undo).daemon.take();
        if let Some(mut child) = child {
            let _ = child.kill(); // SIGKILL; an error means it is gone already
            let _ = child.wait();
        }
    }

    /// Remembers a mount that must be undone.
    pub(super) fn mounted(&self, at: Option<PathBuf>) {
        lock(&self.undo).mount = at;
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        clean(&self.undo);
    }
}

/// Undoes everything, once.
fn clean(undo: &Mutex<Undo>) {
    let mut undo = lock(undo);
    if let Some(mount) = undo.mount.take() {
        let _ = Command::new("umount")
            .arg("-l")
            .arg(mount)
            .stderr(Stdio::null())
            .status();
    }
    if let Some(mut child) = undo.daemon.take() {
        stop(&mut child);
    }
    if let Some(dir) = undo.dir.take()
        && let Err(error) = std::fs::remove_dir_all(&dir)
    {
        eprintln!("ashlar: {} could not be removed: {error}", dir.display());
    }
}

/// Asks a daemon to end, so that kernel devices go away; kills it if it does not.
fn stop(child: &mut Child) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        let _ = kill_process(pid, Signal::TERM);
    }
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    let _ = child.wait();
}
