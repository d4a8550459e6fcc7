//! The connections between modelled drives and hosts: links, paths, namespaces.
//!
//! A link is one busy-time resource for each direction, served in turns of [`QUANTUM`] like a drive. A
//! namespace is a part of a drive as one host sees it, over one or more paths of links. The transfer
//! over the links of a path overlaps the drive's service: an operation is answered when the slowest of
//! them is done with it. So throughput is exact, and a transfer adds no time of its own where nothing
//! is short; commands and answers take no room on a link.
//!
//! Invariants:
//! - As for every device, an operation takes effect when it is submitted.
//! - Operations take the paths that are up in turn; with none up they fail as [`Fault::Offline`].

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ashlar_rt::{Buf, Nanos, Rt, Slice};

use super::drive::{ModelDevice, QUANTUM, answer_time, time};
use super::server::{Cost, Server, Ticket};
use crate::{Device, DeviceInfo, Fault, IoFuture, check_range, check_write};

/// A port of an enclosure, or a host's connection to the network.
pub struct Link {
    name: String,
    bytes_per_second: u64,
    up: Cell<bool>,
    to_host: Rc<RefCell<Server>>,
    to_drive: Rc<RefCell<Server>>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("name", &self.name)
            .field("bytes_per_second", &self.bytes_per_second)
            .field("up", &self.up.get())
            .finish_non_exhaustive()
    }
}

impl Link {
    /// A link that carries `bytes_per_second` of content in each direction.
    pub fn new(name: &str, bytes_per_second: u64) -> Rc<Link> {
        Rc::new(Link {
            name: name.to_string(),
            bytes_per_second,
            up: Cell::new(true),
            to_host: Rc::default(),
            to_drive: Rc::default(),
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Cuts it, or mends it. What is under way on it arrives.
    pub fn set_up(&self, up: bool) {
        self.up.set(up);
    }

    /// Nanoseconds that it has been kept busy towards the host and towards the drive.
    pub fn busy(&self) -> (Nanos, Nanos) {
        (self.to_host.borrow().busy(), self.to_drive.borrow().busy())
    }

    fn carry(&self, now: Nanos, to_host: bool, bytes: u64) -> Carried {
        let server = if to_host {
            &self.to_host
        } else {
            &self.to_drive
        };
        let cost = Cost {
            quanta: bytes.div_ceil(QUANTUM).max(1),
            total: time(bytes, self.bytes_per_second),
        };
        let ticket = server.borrow_mut().add(now, cost);
        Carried(server.clone(), ticket)
    }
}

/// A transfer on a link.
struct Carried(Rc<RefCell<Server>>, Rc<Ticket>);

/// A way from a host to a drive.
#[derive(Clone, Debug)]
pub struct Path(pub Vec<Rc<Link>>);

impl Path {
    fn is_up(&self) -> bool {
        self.0.iter().all(|link| link.up.get())
    }
}

/// A part of a drive as one host sees it.
pub struct Namespace {
    rt: Rt,
    info: DeviceInfo,
    drive: Rc<ModelDevice>,
    begin: u64,
    paths: Vec<Path>,
    turn: Cell<usize>,
}

impl std::fmt::Debug for Namespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Namespace")
            .field("info", &self.info)
            .field("begin", &self.begin)
            .field("paths", &self.paths)
            .finish_non_exhaustive()
    }
}

impl Namespace {
    /// `size_bytes` of `drive` from `begin` on, over `paths`; without paths the drive is at hand.
    ///
    /// # Panics
    /// If that is not whole blocks of the drive.
    pub fn new(
        rt: &Rt,
        name: &str,
        drive: Rc<ModelDevice>,
        begin: u64,
        size_bytes: u64,
        paths: Vec<Path>,
    ) -> Namespace {
        check_range(drive.info(), begin, size_bytes);
        let info = DeviceInfo {
            size_bytes,
            name: name.to_string(),
            ..drive.info().clone()
        };
        Namespace {
            rt: rt.clone(),
            info,
            drive,
            begin,
            paths,
            turn: Cell::new(0),
        }
    }

    /// The path of the next operation: `Ok(None)` where the drive is at hand.
    fn path(&self) -> Result<Option<&Path>, Fault> {
        if self.paths.is_empty() {
            return Ok(None);
        }
        let count = self.paths.len();
        let first = self.turn.replace((self.turn.get() + 1) % count);
        let mut turns = (0..count).map(|i| &self.paths[(first + i) % count]);
        turns
            .find(|path| path.is_up())
            .map(Some)
            .ok_or(Fault::Offline)
    }

    /// Takes the links of the next path for a transfer.
    fn carry(&self, to_host: bool, bytes: u64) -> Result<Vec<Carried>, Fault> {
        let now = self.rt.now();
        let links = self.path()?.map_or(&[][..], |path| path.0.as_slice());
        Ok(links
            .iter()
            .map(|link| link.carry(now, to_host, bytes))
            .collect())
    }

    /// The answer of the drive, as soon as the links are done too.
    fn after<T: 'static>(&self, carried: Vec<Carried>, drive: IoFuture<T>) -> IoFuture<T> {
        if carried.is_empty() {
            return drive;
        }
        let rt = self.rt.clone();
        Box::pin(async move {
            let answer = drive.await;
            for Carried(server, ticket) in carried {
                answer_time(&rt, &server, &ticket, 0).await;
            }
            answer
        })
    }
}

impl Device for Namespace {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, offset: u64, buf: Buf) -> IoFuture<(Buf, Result<(), Fault>)> {
        let bytes = buf.len() as u64;
        check_range(&self.info, offset, bytes);
        match self.carry(true, bytes) {
            Ok(carried) => self.after(carried, self.drive.read(self.begin + offset, buf)),
            Err(fault) => Box::pin(std::future::ready((buf, Err(fault)))),
        }
    }

    fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<Result<(), Fault>> {
        let bytes = check_write(&self.info, offset, &data);
        match self.carry(false, bytes) {
            Ok(carried) => self.after(carried, self.drive.write(self.begin + offset, data)),
            Err(fault) => Box::pin(std::future::ready(Err(fault))),
        }
    }

    fn flush(&self) -> IoFuture<Result<(), Fault>> {
        match self.path() {
            Ok(_) => self.drive.flush(),
            Err(fault) => Box::pin(std::future::ready(Err(fault))),
        }
    }

    fn discard(&self, offset: u64, length: u64) -> IoFuture<Result<(), Fault>> {
        check_range(&self.info, offset, length);
        match self.path() {
            Ok(_) => self.drive.discard(self.begin + offset, length),
            Err(fault) => Box::pin(std::future::ready(Err(fault))),
        }
    }
}
