//! The NBD client: one connection, many requests in flight.
//!
//! Invariants:
//! - A request is queued when its method is called; its future only waits for the answer, and
//!   dropping it cancels nothing.
//! - Every answer belongs to a request in flight and covers exactly its range, each byte once; a
//!   server that answers anything else is left, and whatever is in flight fails.
//! - Once the connection has ended every request fails with [`ClientError::Disconnected`].

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::rc::Rc;

use ashlar_rt::{AsyncFd, Buf, Gate, Rt, SECOND, Slice, net, oneshot};

use super::hello::{Hello, Progress};
use super::pending::{Answer, Pending, Waiting};
use super::stream::{Incoming, Outbox, Transport};
use super::wire::{
    self, ExportInfo, MAX_NAME, Reader, RequestHeader, cmd_flag, command, flag, piece,
};
use super::{ClientError, NbdAddress, NbdServerAddress};
use crate::flow::Stop;
use crate::{Extent, Fut};

/// How long connecting and the handshake may take.
const CONNECT: ashlar_rt::Nanos = 10 * SECOND;
/// How long a server may take nothing of what is queued for it before it counts as dead.
const PATIENCE: ashlar_rt::Nanos = 60 * SECOND;
/// The longest block status or error piece that is accepted.
const MAX_PIECE: u32 = 1 << 20;

struct Inner {
    export: ExportInfo,
    outbox: Outbox,
    stop: Rc<Stop>,
    next: Cell<u64>,
    pending: RefCell<BTreeMap<u64, Pending>>,
    ended: Cell<bool>,
    /// Opened when a request is answered and when the connection ends.
    changed: Gate,
}

/// Ends the connection when the last [`NbdClient`] is dropped.
struct Owner(Rc<Inner>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.stop.set();
    }
}

/// A connection to one export. Clones share it; when the last is dropped it ends, and what is then
/// in flight may or may not be carried out (see [`NbdClient::disconnect`]).
#[derive(Clone)]
pub struct NbdClient(Rc<Owner>);

impl std::fmt::Debug for NbdClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NbdClient")
            .field("export", &self.inner().export)
            .finish_non_exhaustive()
    }
}

impl NbdClient {
    /// Connects to an address such as `nbd://127.0.0.1:10809/a/b`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn connect(rt: &Rt, address: &str) -> Result<NbdClient, ClientError> {
        let address = NbdAddress::parse(address)?;
        NbdClient::connect_to(rt, &address).await
    }

    /// Connects to a parsed address. Host names are looked up on this thread: use numbers where
    /// that matters.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn connect_to(rt: &Rt, address: &NbdAddress) -> Result<NbdClient, ClientError> {
        if address.export.len() > MAX_NAME {
            return Err(ClientError::Address);
        }
        let failed = |e: io::Error| ClientError::Connect(e.kind());
        let connecting = async {
            match &address.server {
                NbdServerAddress::Unix(path) => net::connect_unix(rt, path).await.map_err(failed),
                NbdServerAddress::Tcp(host) => {
                    let addresses: Vec<SocketAddr> =
                        host.to_socket_addrs().map_err(failed)?.collect();
                    let mut last = ClientError::Address;
                    for address in addresses {
                        match net::connect_tcp(rt, address).await {
                            Ok(io) => return Ok(io),
                            Err(error) => last = failed(error),
                        }
                    }
                    Err(last)
                }
            }
        };
        let io: AsyncFd = rt
            .timeout(CONNECT, connecting)
            .await
            .ok_or(ClientError::Timeout)??;
        NbdClient::over(rt, Rc::new(io), &address.export).await
    }

    /// Speaks over a stream that is connected.
    pub(super) async fn over<T: Transport>(
        rt: &Rt,
        io: Rc<T>,
        export: &str,
    ) -> Result<NbdClient, ClientError> {
        let stop = Rc::new(Stop::default());
        let mut incoming = Incoming::new(io.clone(), stop.clone());
        let hello = hello(&*io, &mut incoming, export);
        let export = rt
            .timeout(CONNECT, hello)
            .await
            .ok_or(ClientError::Timeout)??;
        let inner = Rc::new(Inner {
            export,
            outbox: Outbox::default(),
            stop,
            next: Cell::new(1),
            pending: RefCell::default(),
            ended: Cell::new(false),
            changed: Gate::default(),
        });
        let (writer, reader) = (inner.clone(), inner.clone());
        let (io_too, writer_rt) = (io.clone(), rt.clone());
        rt.spawn(async move {
            writer.outbox.run(&writer_rt, &*io_too, PATIENCE).await;
            writer.stop.set();
        });
        rt.spawn(async move {
            let result = reader.read_answers(&mut incoming).await;
            if let Err(error) = result {
                tracing::debug!(%error, "nbd client: the connection ends");
            }
            reader.end();
            io.close();
        });
        Ok(NbdClient(Rc::new(Owner(inner))))
    }

    fn inner(&self) -> &Inner {
        &self.0.0
    }

    /// What the server said about the export.
    pub fn info(&self) -> ExportInfo {
        self.inner().export
    }

    /// Whether the export takes no changes.
    pub fn is_read_only(&self) -> bool {
        self.inner().export.has(flag::READ_ONLY)
    }

    /// Requests without an answer.
    pub fn in_flight(&self) -> usize {
        self.inner().pending.borrow().len()
    }

    /// Whether the connection has ended.
    pub fn is_disconnected(&self) -> bool {
        self.inner().ended.get()
    }

    /// `length` bytes from `offset`.
    pub fn read(&self, offset: u64, length: usize) -> Fut<Answer<Buf>> {
        let Some(length) = self.admit(offset, length as u64, true) else {
            return failed(ClientError::OutOfRange);
        };
        if length == 0 {
            return Box::pin(std::future::ready(Ok(Buf::zeroed(0))));
        }
        let (reply, answer) = oneshot();
        let buf = Buf::zeroed(length as usize);
        let waiting = Waiting::Read {
            offset,
            buf,
            came: BTreeMap::new(),
            reply,
        };
        self.ask(command::READ, 0, offset, length, waiting, None);
        wait(answer)
    }

    /// Writes `data` at `offset`; with `durable`, completes when it is on stable storage.
    pub fn write(&self, offset: u64, data: Slice, durable: bool) -> Fut<Answer<()>> {
        let Some(length) = self.admit(offset, data.len() as u64, true) else {
            return failed(ClientError::OutOfRange);
        };
        self.change(command::WRITE, offset, length, durable, 0, Some(data))
    }

    /// Makes durable what completed before.
    pub fn flush(&self) -> Fut<Answer<()>> {
        if !self.inner().export.has(flag::SEND_FLUSH) {
            return Box::pin(std::future::ready(Ok(()))); // a server without it has no cache
        }
        let (reply, answer) = oneshot();
        self.ask(command::FLUSH, 0, 0, 0, Waiting::Done { reply }, None);
        wait(answer)
    }

    /// Gives the range's space back. What it reads as afterwards is up to the server.
    pub fn trim(&self, offset: u64, length: u64, durable: bool) -> Fut<Answer<()>> {
        if !self.inner().export.has(flag::SEND_TRIM) {
            return failed(ClientError::Unsupported);
        }
        match self.admit(offset, length, false) {
            Some(length) => self.change(command::TRIM, offset, length, durable, 0, None),
            None => failed(ClientError::OutOfRange),
        }
    }

    /// Makes the range zero; without `may_trim` its space stays reserved.
    pub fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        durable: bool,
        may_trim: bool,
    ) -> Fut<Answer<()>> {
        if !self.inner().export.has(flag::SEND_WRITE_ZEROES) {
            return failed(ClientError::Unsupported);
        }
        let flags = if may_trim { 0 } else { cmd_flag::NO_HOLE };
        match self.admit(offset, length, false) {
            Some(length) => {
                self.change(command::WRITE_ZEROES, offset, length, durable, flags, None)
            }
            None => failed(ClientError::OutOfRange),
        }
    }

    /// What of the range is allocated: extents from `offset` on that cover `length` bytes or fewer.
    pub fn block_status(&self, offset: u64, length: u64) -> Fut<Answer<Vec<Extent>>> {
        if !self.inner().export.allocation {
            return failed(ClientError::Unsupported);
        }
        let Some(asked) = self
            .admit(offset, length, false)
            .filter(|length| *length > 0)
        else {
            return failed(ClientError::OutOfRange);
        };
        let (reply, answer) = oneshot();
        let waiting = Waiting::Status {
            extents: Vec::new(),
            length,
            reply,
        };
        self.ask(command::BLOCK_STATUS, 0, offset, asked, waiting, None);
        wait(answer)
    }

    /// Waits for what is in flight, tells the server, and closes.
    pub async fn disconnect(&self) {
        let inner = self.inner();
        inner
            .changed
            .until(|| inner.ended.get() || inner.pending.borrow().is_empty())
            .await;
        let header = RequestHeader {
            flags: 0,
            command: command::DISCONNECT,
            cookie: 0,
            offset: 0,
            length: 0,
        };
        inner.outbox.push(|out| header.put(out), None, None);
        inner.outbox.end();
        inner.changed.until(|| inner.ended.get()).await;
    }

    /// The length as the protocol has it, if the request lies inside the export and, with a payload,
    /// the server takes one as long.
    fn admit(&self, offset: u64, length: u64, payload: bool) -> Option<u32> {
        let export = &self.inner().export;
        let inside = offset
            .checked_add(length)
            .is_some_and(|end| end <= export.size_bytes);
        let short = !payload || length <= u64::from(export.maximum_bytes);
        let unit = u64::from(export.minimum_bytes);
        let aligned = offset.is_multiple_of(unit) && length.is_multiple_of(unit);
        u32::try_from(length)
            .ok()
            .filter(|_| inside && short && aligned)
    }

    fn change(
        &self,
        command: u16,
        offset: u64,
        length: u32,
        durable: bool,
        flags: u16,
        body: Option<Slice>,
    ) -> Fut<Answer<()>> {
        if length == 0 && !durable {
            return Box::pin(std::future::ready(Ok(())));
        }
        let fua = durable && self.inner().export.has(flag::SEND_FUA);
        let flags = flags | if fua { cmd_flag::FUA } else { 0 };
        let (reply, answer) = oneshot();
        self.ask(
            command,
            flags,
            offset,
            length,
            Waiting::Done { reply },
            body,
        );
        let written = wait(answer);
        if fua == durable {
            return written;
        }
        let client = self.clone(); // without FUA, a flush does the same
        Box::pin(async move {
            written.await?;
            client.flush().await
        })
    }

    fn ask(
        &self,
        command: u16,
        flags: u16,
        offset: u64,
        length: u32,
        waiting: Waiting,
        body: Option<Slice>,
    ) {
        let inner = self.inner();
        if inner.ended.get() {
            return; // dropping `waiting` says so
        }
        let cookie = inner.next.get();
        inner.next.set(cookie + 1);
        inner.pending.borrow_mut().insert(
            cookie,
            Pending {
                waiting,
                error: None,
            },
        );
        let header = RequestHeader {
            flags,
            command,
            cookie,
            offset,
            length,
        };
        inner.outbox.push(|out| header.put(out), body, None);
    }
}

fn failed<T: 'static>(error: ClientError) -> Fut<Answer<T>> {
    Box::pin(std::future::ready(Err(error)))
}

fn wait<T: 'static>(answer: ashlar_rt::OneshotReceiver<Answer<T>>) -> Fut<Answer<T>> {
    Box::pin(async move { answer.await.unwrap_or(Err(ClientError::Disconnected)) })
}

async fn hello<T: Transport>(
    io: &T,
    incoming: &mut Incoming<T>,
    export: &str,
) -> Result<ExportInfo, ClientError> {
    let mut hello = Hello::new(export);
    let mut out = Vec::new();
    loop {
        let (used, progress) = hello.step(incoming.buffered(), &mut out)?;
        incoming.consume(used);
        match progress {
            Progress::Ready(export) => return Ok(export),
            Progress::Again => continue,
            Progress::More => {}
        }
        if !out.is_empty() {
            let sent = io.write_all(&mut [io::IoSlice::new(&out)]).await;
            sent.map_err(|_| ClientError::Disconnected)?;
            out.clear();
        }
        if !incoming.fill().await {
            return Err(ClientError::Disconnected);
        }
    }
}

impl Inner {
    fn end(&self) {
        self.ended.set(true);
        self.outbox.end();
        self.outbox.break_off();
        let pending = self.pending.take();
        drop(pending); // every waiter learns that its answer will not come
        self.changed.open();
    }

    async fn read_answers<T: Transport>(
        &self,
        incoming: &mut Incoming<T>,
    ) -> Result<(), ClientError> {
        loop {
            let Some(magic) = incoming.array().await else {
                return Err(ClientError::Disconnected);
            };
            match u32::from_be_bytes(magic) {
                wire::SIMPLE_REPLY_MAGIC => self.simple(incoming).await?,
                wire::STRUCTURED_REPLY_MAGIC => self.structured(incoming).await?,
                _ => return Err(ClientError::Protocol),
            }
        }
    }

    fn take(&self, cookie: u64) -> Result<Pending, ClientError> {
        self.pending
            .borrow_mut()
            .remove(&cookie)
            .ok_or(ClientError::Protocol)
    }

    async fn simple<T: Transport>(&self, incoming: &mut Incoming<T>) -> Result<(), ClientError> {
        let head: [u8; 12] = incoming.array().await.ok_or(ClientError::Disconnected)?;
        let mut reader = Reader(&head);
        let (error, cookie) = (reader.u32().unwrap_or(0), reader.u64().unwrap_or(0));
        let mut pending = self.take(cookie)?;
        if error != 0 {
            pending.error = Some(ClientError::Remote(error));
        } else if let Waiting::Read { buf, came, .. } = &mut pending.waiting {
            if self.export.structured || !came.is_empty() {
                return Err(ClientError::Protocol); // reads must then be structured
            }
            if !incoming.exact(buf).await {
                return Err(ClientError::Disconnected);
            }
            came.insert(0, u32::try_from(buf.len()).unwrap_or(u32::MAX));
        }
        self.settle(pending)
    }

    async fn structured<T: Transport>(
        &self,
        incoming: &mut Incoming<T>,
    ) -> Result<(), ClientError> {
        let head: [u8; 16] = incoming.array().await.ok_or(ClientError::Disconnected)?;
        let mut reader = Reader(&head);
        let (Some(flags), Some(kind), Some(cookie), Some(length)) =
            (reader.u16(), reader.u16(), reader.u64(), reader.u32())
        else {
            return Err(ClientError::Protocol);
        };
        if !self.export.structured {
            return Err(ClientError::Protocol);
        }
        let mut pending = self.take(cookie)?;
        if kind == piece::OFFSET_DATA {
            let at = incoming.array().await.ok_or(ClientError::Disconnected)?;
            let length = length.checked_sub(8).ok_or(ClientError::Protocol)?;
            let part = pending.claim(u64::from_be_bytes(at), length)?;
            if !incoming.exact(part).await {
                return Err(ClientError::Disconnected);
            }
        } else {
            if length > MAX_PIECE {
                return Err(ClientError::Protocol);
            }
            let mut payload = vec![0; length as usize];
            if !incoming.exact(&mut payload).await {
                return Err(ClientError::Disconnected);
            }
            pending.piece(kind, &payload)?;
        }
        if flags & piece::DONE != 0 {
            return self.settle(pending);
        }
        self.pending.borrow_mut().insert(cookie, pending);
        Ok(())
    }

    /// Answers the request.
    fn settle(&self, pending: Pending) -> Result<(), ClientError> {
        pending.settle()?;
        self.changed.open();
        Ok(())
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
