//! The daemon: one thread that runs the engine with all arrays and frontends, and one that speaks
//! HTTP on the control socket.
//!
//! **Invariants**: one daemon per socket and per state directory (both are locked); the socket is
//! reachable for root and group `ashlar` only; whatever ends the process, arrays stay importable,
//! and the next daemon with the same state directory brings them and their frontends back.

pub(crate) mod actions;
mod addition;
pub(crate) mod arrays;
pub(crate) mod create;
pub(crate) mod destroy;
mod device_set;
pub(crate) mod devices;
pub(crate) mod drives;
pub(crate) mod find;
pub(crate) mod frontends;
pub(crate) mod hardware;
mod health;
pub(crate) mod history;
mod holds;
pub(crate) mod host;
pub(crate) mod http;
mod identity;
mod incremental;
mod job;
mod locate;
pub(crate) mod log;
pub(crate) mod manager;
pub(crate) mod memory;
mod missing;
mod named;
pub(crate) mod names;
mod notifier;
pub(crate) mod notify;
pub(crate) mod open;
mod removal;
mod replacement;
mod resize;
mod restore;
mod returning;
mod scan;
mod scrub;
pub(crate) mod served;
pub(crate) mod severity;
pub(crate) mod signals;
mod smartctl;
pub(crate) mod state;
mod stopping;
mod storage;
mod task;
mod trim;
pub(crate) mod unread;
mod users;
pub(crate) mod volumes;
pub(crate) mod watch;
mod watched;
mod watched_import;
mod wipe;

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use ashlar_accel::Accelerator;
use ashlar_engine::{Accelerators, Settings};
use ashlar_rt::{Mailbox, Rt, SECOND, mailbox};
use ashlar_serve::Pool;
use rustix::fs::{FlockOperation, Gid, flock};

use crate::cli::DaemonArgs;
use crate::daemon::frontends::Room;
use crate::daemon::host::Host;
use crate::daemon::job::Job;
use crate::daemon::state::{Known, State};
use crate::failure::Failure;
use crate::units::size;

/// Least memory that may be given, for the engine and for what is in flight on connections.
const LEAST_MEMORY: u64 = 64 << 20;

/// Most memory for what is in flight on connections.
const MOST_FOR_CONNECTIONS: u64 = 512 << 20;
/// How long the service manager is asked to wait for the end: the kernel's writing out, and clients.
const CLOSING_SECONDS: u64 = 120;

/// Runs the daemon until it is told to stop.
///
/// # Errors
/// What kept it from starting.
pub(crate) fn run(socket: &Path, args: &DaemonArgs) -> Result<(), Failure> {
    log::start();
    let descriptors = raise_file_limit();
    let (mut settings, connections) = settings(args)?;
    let state = State::open(&args.state)?;
    settings.beat = Some(identity::identity(&args.state)?);
    let known = state.load()?;
    let (listener, control) = listen(socket)?;
    let metrics = args.metrics.as_deref().map(listen_metrics).transpose()?;
    let (jobs, requests) = mailbox();
    let (hurry, hurried) = mailbox();
    let rt = Rt::start().map_err(|e| {
        Failure::broken(format!(
            "the engine cannot start: {e}; raise the limit of open files"
        ))
    })?;
    // Before anybody is answered: what is found under the old names then is served.
    rt.block_on(names::clear_dead());
    http::start(listener, metrics, jobs, hurry)
        .map_err(|e| Failure::broken(format!("the control API cannot start: {e}")))?;
    tracing::info!(
        socket = %socket.display(),
        state = %args.state.display(),
        memory = size(settings.memory_bytes + connections as u64),
        of_it_for_connections = size(connections as u64),
        shards = settings.shards,
        "ashlar {} serves",
        env!("CARGO_PKG_VERSION")
    );
    let room = Room {
        pool: Pool::new(connections),
        descriptors,
    };
    let host = Host::new(&rt, settings, state, room);
    rt.block_on(serve(host, known, requests, hurried));
    drop(control);
    tracing::info!("stopped");
    log::flush();
    Ok(())
}

/// Answers requests until told to stop, then closes everything.
async fn serve(
    host: Rc<Host>,
    known: Vec<Known>,
    mut requests: Mailbox<Job>,
    mut hurried: Mailbox<()>,
) {
    host.expect(&known);
    let restoring = {
        let host = host.clone();
        host.rt.clone().spawn(async move {
            host.restore(known).await;
            host.restored();
        })
    };
    host.watch();
    host.watch_hardware();
    host.watch_storage();
    host.watch_returning();
    while let Some(job) = requests.receive().await {
        match job {
            Job::Stop => break,
            Job::Call(call, caller, reply) => {
                let host = host.clone();
                host.rt.clone().spawn(async move {
                    let verb = call.verb();
                    let (array, asks) = (call.array().map(str::to_string), call.only_asks());
                    let mut answer = host.clone().handle(*call, || reply.is_awaited()).await;
                    if let Some(array) = &array {
                        answer = answer.map_err(|failure| failure.of_array(array));
                    }
                    if !asks {
                        let now = host.unix_seconds(host.rt.now());
                        host.actions.note(now, verb, array, caller, &answer);
                    }
                    if let Err(failure) = &answer {
                        tracing::info!(verb, "refused: {failure}");
                    }
                    reply.send(answer);
                });
            }
        }
    }
    drop(requests); // from here on, requests are answered with "stopping"
    tracing::info!("stopping");
    host.stop_restoring();
    host.manager.stopping(CLOSING_SECONDS);
    // Whatever waits for an operator who stops the daemon instead would wait for ever, clients' writes too.
    host.rt.spawn({
        let host = host.clone();
        async move {
            loop {
                for member in host.arrays.borrow().values() {
                    member.array.stop_if_writes_wait();
                }
                host.rt.sleep(SECOND / 2).await;
            }
        }
    });
    host.rt.spawn({
        let host = host.clone();
        async move {
            if hurried.receive().await.is_some() {
                host.hurry().await;
            }
        }
    });
    host.unless_hurried(restoring).await;
    let guard = host.unless_hurried(host.change.lock()).await;
    host.close_all().await;
    drop(guard);
}

/// A descriptor for every device and client: as many as the process may have. Those below the number returned are for
/// NBD clients, the rest for the control socket and for devices.
fn raise_file_limit() -> i32 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, most) {
        tracing::warn!(%error, "the limit of open files could not be raised");
    }
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let kept = (most / 4).clamp(8, 256);
    i32::try_from(most.saturating_sub(kept)).unwrap_or(i32::MAX)
}

/// Settings of the engine, and the memory for what is in flight on connections; both are within `--memory`.
fn settings(args: &DaemonArgs) -> Result<(Settings, usize), Failure> {
    let memory_bytes = match args.memory {
        Some(bytes) if bytes < LEAST_MEMORY => {
            return Err(Failure::invalid(format!(
                "--memory {}: give at least {}",
                size(bytes),
                size(LEAST_MEMORY)
            )));
        }
        Some(bytes) => bytes,
        None => (memory::limit() / 4).max(LEAST_MEMORY),
    };
    let defaults = Settings::default();
    let shards = args.shards.map_or(defaults.shards, usize::from);
    let connections = (memory_bytes / 4).min(MOST_FOR_CONNECTIONS);
    let settings = Settings {
        shards,
        memory_bytes: memory_bytes - connections,
        accelerators: accelerators(),
        ..defaults
    };
    Ok((settings, usize::try_from(connections).unwrap_or(usize::MAX)))
}

/// Each array has an accelerator of its own, which is opened in the background.
fn accelerators() -> Accelerators {
    let begun = std::time::Instant::now();
    let clock = move || u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let options = ashlar_accel::Options {
        clock: Some(Arc::new(clock)),
        pinned_bytes: 0, // the engine's buffers are its own
        ..ashlar_accel::Options::default()
    };
    Accelerators(Rc::new(move |choice| {
        Rc::new(Accelerator::new(choice, options.clone()))
    }))
}

/// The control socket's name, held until the end of the process.
#[derive(Debug)]
struct Control {
    path: PathBuf,
    _lock: File,
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Listens on the control socket; a lock beside it tells a living daemon from a dead one's socket.
fn listen(path: &Path) -> Result<(UnixListener, Control), Failure> {
    let at = path.display();
    let cannot = |e: &dyn std::fmt::Display| {
        Failure::broken(format!("cannot listen at {at}: {e}; give --socket PATH"))
    };
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    if !dir.exists() {
        std::fs::create_dir_all(dir).map_err(|e| cannot(&e))?;
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755))
            .map_err(|e| cannot(&e))?;
    }
    let mut lock_name = path.as_os_str().to_os_string();
    lock_name.push(".lock");
    let lock = state::lock_file(Path::new(&lock_name)).map_err(|e| cannot(&e))?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        Failure::refused(format!(
            "another daemon already serves {at}; use it, stop it, or give another --socket PATH"
        ))
    })?;
    match std::fs::symlink_metadata(path) {
        Ok(found) if std::os::unix::fs::FileTypeExt::is_socket(&found.file_type()) => {
            // An Ashlar daemon has the lock; another program's socket is left alone while somebody answers there.
            match std::os::unix::net::UnixStream::connect(path) {
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => {}
                Err(e) => return Err(cannot(&e)),
                Ok(_) => return Err(cannot(&"another program listens there")),
            }
            std::fs::remove_file(path).map_err(|e| cannot(&e))?;
        }
        Ok(_) => return Err(cannot(&"a file that is not a socket has that name")),
        Err(_) => {}
    }
    // Bound without rights for others, which are then given to the group alone.
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o117));
    let bound = UnixListener::bind(path);
    rustix::process::umask(before);
    let listener = bound.map_err(|e| cannot(&e))?;
    if let Some(group) = ashlar_group()
        && let Err(error) = rustix::fs::chown(path, None, Some(group))
    {
        tracing::warn!(%error, "the control socket could not be given to group ashlar");
    }
    Ok((
        listener,
        Control {
            path: path.to_path_buf(),
            _lock: lock,
        },
    ))
}

/// Listens for those who read metrics, on this machine only: whoever asks is answered.
fn listen_metrics(address: &str) -> Result<std::net::TcpListener, Failure> {
    use std::net::ToSocketAddrs;
    let resolved = address
        .to_socket_addrs()
        .ok()
        .and_then(|mut all| all.next());
    let resolved = resolved.ok_or_else(|| {
        Failure::invalid(format!(
            "--metrics {address}: not HOST:PORT, for example 127.0.0.1:9774"
        ))
    })?;
    if !resolved.ip().is_loopback() {
        return Err(Failure::refused(format!(
            "--metrics {address}: only loopback addresses are served, since there is no TLS in this version; use 127.0.0.1 or ::1, and a proxy for others"
        )));
    }
    std::net::TcpListener::bind(resolved).map_err(|e| {
        Failure::broken(format!(
            "cannot serve metrics at {address}: {e}; give another --metrics ADDR"
        ))
    })
}

/// The group `ashlar`, if the machine has one.
fn ashlar_group() -> Option<Gid> {
    let groups = std::fs::read_to_string("/etc/group").ok()?;
    let line = groups.lines().find(|line| line.starts_with("ashlar:"))?;
    line.split(':').nth(2)?.parse().ok().map(Gid::from_raw)
}
