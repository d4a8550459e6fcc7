//! The NBD server: accepts connections and ends them.
//!
//! Invariants: connections, and those of them still in their handshake, are bounded, and leave descriptors for
//! others; after [`NbdServer::stop`] no task of the server is left and nothing is in flight.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::rc::Rc;

use ashlar_rt::{AsyncFd, Gate, MILLISECOND, Nanos, Rt, SECOND};

use super::connection::{self, Control};
use super::limits::Limits;
use super::listen::NbdListener;
use super::negotiation::Exports;
use crate::flow::Pool;

/// How often a line tells of clients that were turned away.
const TELL_AGAIN: Nanos = 10 * SECOND;
/// Connections accepted in one go before other tasks get a turn.
const BURST: u32 = 32;

struct Inner {
    rt: Rt,
    /// The socket, until the server stops; then it is closed, so that clients are refused.
    listener: RefCell<Option<Rc<NbdListener>>>,
    address: String,
    tcp_address: Option<SocketAddr>,
    exports: Rc<dyn Exports>,
    limits: Limits,
    /// What all connections have in flight.
    pool: Rc<Pool>,
    /// Connections turned away that no line of the log has told of, and when the last one did.
    turned_away: Cell<(u64, Option<Nanos>)>,
    stopping: Cell<bool>,
    accepting: Cell<bool>,
    next: Cell<u64>,
    connections: RefCell<BTreeMap<u64, Rc<Control>>>,
    /// Opened when a connection, or accepting, has ended.
    ended: Gate,
}

/// A running server. Clones are the same server; it runs until [`NbdServer::stop`], also when every
/// clone is dropped.
#[derive(Clone)]
pub struct NbdServer(Rc<Inner>);

impl std::fmt::Debug for NbdServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NbdServer")
            .field("address", &self.0.address)
            .field("connections", &self.connections())
            .finish_non_exhaustive()
    }
}

impl NbdServer {
    /// Serves `exports` to whoever connects to `listener`, with payloads in memory of `pool`.
    pub fn start(
        rt: &Rt,
        listener: NbdListener,
        exports: Rc<dyn Exports>,
        limits: Limits,
        pool: Rc<Pool>,
    ) -> NbdServer {
        let server = NbdServer(Rc::new(Inner {
            rt: rt.clone(),
            address: listener.address(),
            tcp_address: listener.tcp_address(),
            listener: RefCell::new(Some(Rc::new(listener))),
            exports,
            limits,
            pool,
            turned_away: Cell::default(),
            stopping: Cell::new(false),
            accepting: Cell::new(true),
            next: Cell::new(0),
            connections: RefCell::default(),
            ended: Gate::default(),
        }));
        rt.spawn(server.clone().accept());
        server
    }

    /// Where it listens: `unix:PATH` or `HOST:PORT`.
    pub fn address(&self) -> &str {
        &self.0.address
    }

    /// The TCP address, if it listens on one.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.0.tcp_address
    }

    /// Connections at this time.
    pub fn connections(&self) -> usize {
        self.0.connections.borrow().len()
    }

    /// Connections that have ended so far.
    pub fn connections_ended(&self) -> u64 {
        self.0.next.get() - self.connections() as u64
    }

    /// Connections to the export of this own name, whatever name they asked for.
    pub fn connections_to(&self, name: &str) -> usize {
        let connections = self.0.connections.borrow();
        let of_it = |c: &&Rc<Control>| c.export.borrow().as_deref() == Some(name);
        connections.values().filter(of_it).count()
    }

    /// Ends the connections to the export of this own name, whatever name they asked for, as
    /// [`NbdServer::stop`] does, and waits for them.
    pub async fn disconnect(&self, name: &str) {
        let of_it = |c: &Control| c.export.borrow().as_deref() == Some(name);
        for control in self.0.connections.borrow().values().filter(|c| of_it(c)) {
            control.stop.set();
        }
        let gone = || {
            !self
                .0
                .connections
                .borrow()
                .values()
                .any(|c| of_it(c) && c.stop.is_set())
        };
        self.0.ended.until(gone).await;
    }

    /// Listens no more, reads no more requests, answers those in flight, and waits until every
    /// connection has ended. A peer that does not take its answers is given 5 s. Unix sockets are
    /// removed.
    pub async fn stop(&self) {
        let inner = &self.0;
        inner.stopping.set(true);
        if let Some(listener) = inner.listener.take() {
            listener.close();
        }
        for control in inner.connections.borrow().values() {
            control.stop.set();
        }
        let done = || !inner.accepting.get() && inner.connections.borrow().is_empty();
        inner.ended.until(done).await;
    }

    async fn accept(self) {
        let inner = &self.0;
        let listener = inner.listener.borrow().clone();
        for count in 1u32.. {
            let Some(listener) = listener.as_ref().filter(|_| !inner.stopping.get()) else {
                break;
            };
            match listener.accept().await {
                Ok(io) if !inner.stopping.get() => self.admit(io),
                Ok(_) => {}
                Err(_) if inner.stopping.get() => {}
                Err(error) => {
                    // Out of descriptors, or a peer that left while it waited.
                    self.tell_turned_away(&error.to_string());
                    inner.rt.sleep(50 * MILLISECOND).await;
                }
            }
            // Peers that connect without end, to be turned away, must not keep everybody else waiting.
            if count.is_multiple_of(BURST) {
                inner.rt.yield_now().await;
            }
        }
        drop(listener);
        inner.accepting.set(false);
        inner.ended.open();
    }

    /// Says that a client was turned away; of many in a short time, how many.
    fn tell_turned_away(&self, why: &str) {
        let inner = &self.0;
        let (count, last) = inner.turned_away.get();
        let (count, now) = (count + 1, inner.rt.now());
        if last.is_some_and(|last| now < last + TELL_AGAIN) {
            inner.turned_away.set((count, last));
            return;
        }
        inner.turned_away.set((0, Some(now)));
        tracing::warn!(
            address = inner.address,
            clients = count,
            "nbd: turned away: {why}"
        );
    }

    fn admit(&self, io: AsyncFd) {
        let inner = &self.0;
        let handshakes = inner
            .connections
            .borrow()
            .values()
            .filter(|c| !c.in_transmission.get())
            .count();
        let full = self.connections() >= inner.limits.connections;
        if full || handshakes >= inner.limits.handshakes {
            return self.tell_turned_away("too many connections; have clients disconnect");
        }
        if io.as_raw_fd() >= inner.limits.descriptors {
            return self
                .tell_turned_away("too few file descriptors; raise LimitNOFILE or 'ulimit -n'");
        }
        let id = inner.next.get();
        inner.next.set(id + 1);
        let control = Rc::new(Control::default());
        inner.connections.borrow_mut().insert(id, control.clone());
        let server = self.clone();
        inner.rt.spawn(async move {
            let inner = &server.0;
            let io = Rc::new(io);
            let (rt, exports) = (inner.rt.clone(), inner.exports.clone());
            let pool = inner.pool.clone();
            connection::serve(rt, io, exports, control, inner.limits, pool).await;
            inner.connections.borrow_mut().remove(&id);
            inner.ended.open();
        });
    }
}
