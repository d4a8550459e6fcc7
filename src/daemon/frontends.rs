//! Frontends that run: NBD servers, FUSE mounts, loop devices; started and stopped by name.
//!
//! **Invariants**: one NBD server per address, shared by the volumes attached there; an entry of
//! `running` is a frontend that serves; a write is acknowledged from memory only where rule R17
//! allows it, which is decided here once, when the frontend starts.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ashlar_engine::WriteCache;
use ashlar_engine::status::Frontend;
use ashlar_rt::{MILLISECOND, Nanos, Rt};
use ashlar_serve::fuse::{FuseError, FuseMount, Place};
use ashlar_serve::loopdev::{LoopAttachment, file_name};
use ashlar_serve::nbd::{Catalog, Limits, NbdListener, NbdServer};
use ashlar_serve::{Pool, Volume};

use crate::api::{Attached, FrontendSpec};
use crate::daemon::names::link;
use crate::daemon::open::on_thread;
use crate::daemon::served::{Seen, Served};
use crate::failure::Failure;

mod address;
mod busy;
mod look;
mod stop;

pub(crate) use address::{
    How, Rights, attach_flag, check_address, check_write_cache, shown, small_sectors, spec, stored,
    under_name,
};
use address::{NbdAt, nbd_address, rights};

/// How long a client that has just closed its connection may take to be gone.
const LEAVING: Nanos = 500 * MILLISECOND;

/// Which array and volume.
pub(crate) type Name = (String, String);

/// What connections may take.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    /// Memory for what is in flight on all of them.
    pub(crate) pool: Rc<Pool>,
    /// Their descriptors are below this number.
    pub(crate) descriptors: i32,
}

/// What was stopped.
#[derive(Debug, Default)]
pub(crate) struct Stopped {
    /// The frontends, each with its volume.
    pub(crate) frontends: Vec<(String, Frontend)>,
    /// What the operator has still to do, or to know, about devices taken away, one line each.
    pub(crate) left: Vec<String>,
    /// Those of them that say that writes were lost.
    pub(crate) lost: Vec<String>,
    /// A frontend, with its volume, that is gone although the verb has failed.
    pub(crate) gone: Option<(String, Frontend)>,
}

/// What runs.
#[derive(Debug)]
pub(crate) struct Frontends {
    rt: Rt,
    room: Room,
    running: RefCell<BTreeMap<Name, Vec<Running>>>,
    servers: RefCell<BTreeMap<String, Server>>,
    /// Requests so far that may have changed what a volume takes of the space.
    changes: RefCell<BTreeMap<Name, Rc<Cell<u64>>>>,
    /// Names that kernel devices should have and do not.
    nameless: RefCell<BTreeSet<String>>,
    /// Kernel devices that go when the last program closes them, since that was asked for.
    leaving: RefCell<BTreeSet<PathBuf>>,
    /// Every mount that may still have a session.
    mounts: RefCell<Vec<FuseMount>>,
}

#[derive(Debug)]
struct Running {
    stored: Frontend,
    handle: Handle,
    seen: Rc<Seen>,
}

#[derive(Debug)]
enum Handle {
    Nbd {
        address: String,
    },
    Fuse(FuseMount),
    Loop {
        mount: FuseMount,
        device: LoopAttachment,
        link: String,
    },
}

/// An NBD server at one address.
#[derive(Clone, Debug)]
struct Server {
    server: NbdServer,
    exports: Rc<Catalog>,
    /// Whose its socket is.
    rights: Rights,
    users: usize,
}

impl Frontends {
    /// None yet.
    pub(crate) fn new(rt: &Rt, room: Room) -> Frontends {
        Frontends {
            rt: rt.clone(),
            room,
            running: RefCell::default(),
            servers: RefCell::default(),
            changes: RefCell::default(),
            nameless: RefCell::default(),
            leaving: RefCell::default(),
            mounts: RefCell::default(),
        }
    }

    /// Which frontends of a volume serve now.
    pub(crate) fn running(&self, array: &str, volume: &str) -> Vec<Frontend> {
        let running = self.running.borrow();
        let of_volume = running.get(&(array.to_string(), volume.to_string()));
        of_volume.map_or_else(Vec::new, |list| {
            list.iter().map(|r| r.stored.clone()).collect()
        })
    }

    /// Waits a moment for NBD clients that are leaving; then refuses if others are connected to these
    /// frontends, of one volume or of all.
    ///
    /// # Errors
    /// Where, and how many.
    pub(crate) async fn check_no_clients(
        &self,
        array: &str,
        volume: Option<&str>,
        which: Option<&[Frontend]>,
    ) -> Result<(), Failure> {
        let patience = self.rt.now() + LEAVING;
        loop {
            let Some((volume, address, count)) = self.connected(array, volume, which) else {
                return Ok(());
            };
            if self.rt.now() >= patience {
                return Err(Failure::refused(format!(
                    "{array}/{volume} is in use: {count} NBD connection{} at {address}; disconnect the clients, \
                     or give -f to disconnect them by force",
                    if count == 1 { " is open" } else { "s are open" }
                )));
            }
            self.rt.sleep(20 * MILLISECOND).await;
        }
    }

    /// An NBD frontend that clients are connected to: volume, address, connections.
    fn connected(
        &self,
        array: &str,
        volume: Option<&str>,
        which: Option<&[Frontend]>,
    ) -> Option<(String, String, usize)> {
        let (running, servers) = (self.running.borrow(), self.servers.borrow());
        for (name, list) in running.iter() {
            if name.0 != array || volume.is_some_and(|v| name.1 != v) {
                continue;
            }
            let wanted = |r: &&Running| which.is_none_or(|w| w.contains(&r.stored));
            for running in list.iter().filter(wanted) {
                if let Handle::Nbd { address } = &running.handle
                    && let Some(server) = servers.get(address)
                {
                    let export = format!("{}/{}", name.0, name.1);
                    let count = server.server.connections_to(&export);
                    if count > 0 {
                        return Some((name.1.clone(), address.clone(), count));
                    }
                }
            }
        }
        None
    }

    /// NBD connections that have ended, at the servers that run now: another number means that some have.
    pub(crate) fn connections_ended(&self) -> u64 {
        let servers = self.servers.borrow();
        servers.values().map(|s| s.server.connections_ended()).sum()
    }

    /// Whether this frontend serves now.
    pub(crate) fn runs(&self, array: &str, volume: &str, stored: &Frontend) -> bool {
        self.running(array, volume).contains(stored)
    }

    /// Starts serving.
    ///
    /// # Errors
    /// Why it cannot; nothing is left running then.
    pub(crate) async fn start(
        &self,
        array: &str,
        volume: &str,
        stored: &Frontend,
        handle: ashlar_engine::Volume,
        (read_only, used_bytes): (bool, u64),
    ) -> Result<Attached, Failure> {
        let changes = self.changes_of(&(array.to_string(), volume.to_string()));
        let (spec, seen) = (spec(stored)?, Seen::new(&self.rt, used_bytes, changes));
        let cache = handle.info().write_cache;
        check_write_cache(cache, &spec)?;
        let cached =
            cache == WriteCache::On || cache == WriteCache::Auto && spec == FrontendSpec::Loop;
        let served = Served::new(handle, cached, read_only, seen.clone());
        let served: Rc<dyn Volume> = Rc::new(served);
        let export = format!("{array}/{volume}");
        let (handle, attached) = match &spec {
            FrontendSpec::Nbd(address) => {
                self.start_nbd(address, rights(stored), &export, served)
                    .await?;
                let mut attached = Attached::plain("nbd", address.clone());
                attached.export = export;
                (
                    Handle::Nbd {
                        address: address.clone(),
                    },
                    attached,
                )
            }
            FrontendSpec::Fuse(dir) => {
                let mount = self.start_fuse(dir, volume, served).await?;
                let address = mount.path().display().to_string();
                let attached = Attached::plain("fuse", address);
                (Handle::Fuse(mount), attached)
            }
            FrontendSpec::Loop => {
                let small = small_sectors(stored);
                let name = shown(stored).address;
                let (mount, device) = self.start_loop(&export, served, small).await?;
                if let Err(failure) = link(&name, device.device()) {
                    let _ = device.detach(false).await; // nobody knows it yet
                    mount.abort().await;
                    return Err(failure);
                }
                let mut attached = Attached::plain("loop", name.clone());
                attached.device = Some(device.device().display().to_string());
                (
                    Handle::Loop {
                        mount,
                        device,
                        link: name,
                    },
                    attached,
                )
            }
        };
        let running = Running {
            stored: stored.clone(),
            handle,
            seen,
        };
        let name = (array.to_string(), volume.to_string());
        self.running
            .borrow_mut()
            .entry(name)
            .or_default()
            .push(running);
        Ok(attached)
    }

    async fn start_nbd(
        &self,
        address: &str,
        rights: Option<Rights>,
        export: &str,
        served: Rc<dyn Volume>,
    ) -> Result<(), Failure> {
        let present = self.servers.borrow().get(address).map(|s| s.rights);
        let whose = rights.unwrap_or(Rights::ROOT_ALONE);
        if present.is_some_and(|given| given != whose) {
            return Err(Failure::refused(format!(
                "other volumes are served at {address} with another owner or mode; give the same ones \
                 ('stat' shows those of the socket), or another address"
            )));
        }
        if present.is_none() {
            let cannot = |e: &dyn std::fmt::Display| {
                Failure::refused(format!("cannot serve NBD at {address}: {e}"))
            };
            let listener = match nbd_address(address)? {
                NbdAt::Unix(path) => {
                    let listener = NbdListener::unix(&self.rt, &path).await;
                    let listener = listener.map_err(|e| cannot(&e))?;
                    if let Some(rights) = rights {
                        on_thread(move || rights.give(&path))
                            .await?
                            .map_err(|e| cannot(&e))?;
                    }
                    listener
                }
                NbdAt::Tcp(address) => {
                    NbdListener::tcp(&self.rt, address).map_err(|e| cannot(&e))?
                }
            };
            let exports = Rc::new(Catalog::default());
            let limits = Limits {
                descriptors: self.room.descriptors,
                ..Limits::default()
            };
            let pool = self.room.pool.clone();
            let server = NbdServer::start(&self.rt, listener, exports.clone(), limits, pool);
            let server = Server {
                server,
                exports,
                rights: whose,
                users: 0,
            };
            self.servers
                .borrow_mut()
                .insert(address.to_string(), server);
        }
        let mut servers = self.servers.borrow_mut();
        let server = servers
            .get_mut(address)
            .expect("inserted above, on this thread");
        server.exports.publish(export, served);
        server.users += 1;
        Ok(())
    }

    async fn stop_nbd(&self, address: &str, export: &str) {
        let server = {
            let mut servers = self.servers.borrow_mut();
            let Some(server) = servers.get_mut(address) else {
                return;
            };
            server.exports.withdraw(export);
            server.users -= 1;
            let server = server.clone();
            if server.users == 0 {
                servers.remove(address);
            }
            server
        };
        if server.users == 0 {
            server.server.stop().await;
        } else {
            server.server.disconnect(export).await;
        }
    }

    fn take(&self, name: &Name, stored: &Frontend) -> Option<Running> {
        let mut running = self.running.borrow_mut();
        let list = running.get_mut(name)?;
        let at = list.iter().position(|r| r.stored == *stored)?;
        let found = list.remove(at);
        if list.is_empty() {
            running.remove(name);
        }
        Some(found)
    }

    async fn start_fuse(
        &self,
        dir: &str,
        volume: &str,
        served: Rc<dyn Volume>,
    ) -> Result<FuseMount, Failure> {
        // Whatever looks at files may ask one of our own mounts, so it is not done on this thread.
        let asked = PathBuf::from(dir);
        let made = on_thread(move || {
            std::fs::create_dir_all(&asked)?;
            std::fs::canonicalize(&asked)
        });
        let made = made.await?.map_err(|e| {
            Failure::broken(format!(
                "{dir}: cannot be made: {e}; give another --fuse DIR"
            ))
        })?;
        let path = made.join(volume);
        if let Some((array, other)) = self.mounted_at(&path) {
            return Err(Failure::refused(format!(
                "{} serves {array}/{other} already; give another --fuse DIR, or detach that volume",
                path.display()
            )));
        }
        let at = path.clone();
        on_thread(move || clear_dead_mount(&at)).await?;
        self.mount(served, Place::File(path.clone()))
            .await
            .map_err(|e| Failure::broken(format!("{}: {e}", path.display())))
    }

    /// Which volume is the file at `path`, a path without links.
    fn mounted_at(&self, path: &Path) -> Option<Name> {
        let running = self.running.borrow();
        let at_path = |r: &Running| matches!(&r.handle, Handle::Fuse(m) if m.path() == path && !m.has_ended());
        let found = running.iter().find(|(_, list)| list.iter().any(at_path));
        found.map(|(name, _)| name.clone())
    }

    async fn start_loop(
        &self,
        name: &str,
        served: Rc<dyn Volume>,
        small: bool,
    ) -> Result<(FuseMount, LoopAttachment), Failure> {
        let mount = self
            .mount(served, Place::Hidden(file_name(name)))
            .await
            .map_err(|e| {
                Failure::broken(format!("{name}: cannot be attached as a loop device: {e}"))
            })?;
        match LoopAttachment::attach(&mount, name, small).await {
            Ok(device) => {
                self.leaving.borrow_mut().remove(device.device()); // the kernel gives a name again
                Ok((mount, device))
            }
            Err(error) => {
                mount.abort().await;
                Err(Failure::broken(format!("{name}: {error}")))
            }
        }
    }

    /// Ends the sessions of all kernel frontends, also of those that are being stopped: whatever waits
    /// for one of them gets errors, and goes on.
    pub(crate) fn cut_off_kernel(&self) {
        for mount in self.mounts.borrow().iter().filter(|m| !m.has_ended()) {
            let mount = mount.clone();
            self.rt.spawn(async move { mount.abort().await });
        }
    }

    /// Mounts a volume, and remembers that for [`Frontends::cut_off_kernel`].
    async fn mount(&self, served: Rc<dyn Volume>, place: Place) -> Result<FuseMount, FuseError> {
        let mount = FuseMount::start(&self.rt, served, place).await?;
        let mut mounts = self.mounts.borrow_mut();
        mounts.retain(|m| !m.has_ended());
        mounts.push(mount.clone());
        Ok(mount)
    }

    /// Whether a kernel device is served.
    pub(crate) fn has_kernel_devices(&self) -> bool {
        let running = self.running.borrow();
        let mut all = running.values().flatten();
        all.any(|r| matches!(r.handle, Handle::Loop { .. } | Handle::Fuse(_)))
    }
}

/// Takes away a mount whose daemon died: everything under it answers "not connected".
fn clear_dead_mount(path: &Path) {
    let dead = std::fs::metadata(path)
        .is_err_and(|e| e.raw_os_error() == Some(rustix::io::Errno::NOTCONN.raw_os_error()));
    if !dead {
        return;
    }
    let detached = rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH);
    if detached.is_err() {
        let _ = std::process::Command::new("fusermount3")
            .arg("-uz")
            .arg(path)
            .status();
    }
}
