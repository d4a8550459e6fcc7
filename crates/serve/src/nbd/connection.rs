//! One connection of the NBD server: handshake, then requests carried out many at a time.
//!
//! Invariants:
//! - A write's payload has arrived whole before the volume hears of it.
//! - A request holds its share of the budget until its reply is written or the peer is gone; the
//!   connection ends only when everything was given back, so nothing outlives it.
//! - A request that was begun is carried out to its end, also when the peer is gone.

use std::cell::{Cell, RefCell};
use std::io::IoSlice;
use std::rc::Rc;

use ashlar_rt::{Buf, Rt, SECOND, Slice};

use super::gate::{self, Command, Refusal};
use super::limits::{Limits, MAX_IN_FLIGHT, MAX_IN_FLIGHT_BYTES};
use super::negotiation::{Exports, Negotiation, Next, Opened};
use super::reply;
use super::stream::{Holds, Incoming, Outbox, Transport};
use super::wire::{ExportInfo, RequestHeader, command};
use crate::flow::{Budget, Pool, Stop};
use crate::{Volume, VolumeError};

/// How long a peer that does not read its replies may delay the end of a connection.
const LINGER: ashlar_rt::Nanos = 5 * SECOND;
/// How long a payload may take from its request on, and a peer to take the answers that are ready:
/// both hold memory that others wait for.
const PATIENCE: ashlar_rt::Nanos = 60 * SECOND;
/// Requests begun in one go before other tasks get a turn.
const BURST: u32 = 32;
/// Bytes that the answer to a question for the state of blocks may take.
const EXTENTS_BYTES: u32 = 8 * reply::MAX_EXTENTS as u32;

/// What the server knows of a connection, and how it ends one.
#[derive(Debug, Default)]
pub(super) struct Control {
    pub(super) stop: Rc<Stop>,
    /// The own name of the export, from the moment on that the client is given it: before it hears so.
    pub(super) export: RefCell<Option<String>>,
    pub(super) in_transmission: Cell<bool>,
}

/// Serves a peer until it leaves, breaks the protocol, or the connection is told to stop.
pub(super) async fn serve<T: Transport>(
    rt: Rt,
    io: Rc<T>,
    exports: Rc<dyn Exports>,
    control: Rc<Control>,
    limits: Limits,
    pool: Rc<Pool>,
) {
    let mut incoming = Incoming::new(io.clone(), control.stop.clone());
    let handshake = handshake(&*io, &mut incoming, &*exports, &control);
    let Some(Some(opened)) = rt.timeout(limits.handshake, handshake).await else {
        return;
    };
    control.in_transmission.set(true);
    tracing::debug!(export = opened.name, "nbd: transmission begins");
    let session = Rc::new(Session {
        rt: rt.clone(),
        volume: opened.volume,
        export: opened.export,
        budget: Budget::new(MAX_IN_FLIGHT, MAX_IN_FLIGHT_BYTES),
        pool,
        outbox: Outbox::default(),
    });
    let writer = rt.spawn({
        let (session, io, stop) = (session.clone(), io.clone(), control.stop.clone());
        async move {
            if !session.outbox.run(&session.rt, &*io, PATIENCE).await {
                stop.set(); // nobody hears the answers: read no more questions
            }
        }
    });
    session.read_requests(&mut incoming, &control.stop).await;
    if rt.timeout(LINGER, session.budget.idle()).await.is_none() {
        io.close();
        session.outbox.break_off();
        session.budget.idle().await;
    }
    session.outbox.end();
    writer.await;
    tracing::debug!(export = opened.name, "nbd: connection ends");
}

/// `None`: close.
async fn handshake<T: Transport>(
    io: &T,
    incoming: &mut Incoming<T>,
    exports: &dyn Exports,
    control: &Control,
) -> Option<Opened> {
    let stop = &control.stop;
    let mut out = Negotiation::greeting();
    let mut negotiation = Negotiation::new();
    loop {
        let (consumed, next) = negotiation.step(incoming.buffered(), exports, &mut out);
        incoming.consume(consumed);
        if let Next::Again = next {
            continue;
        }
        if let Next::Open(opened) = &next {
            *control.export.borrow_mut() = Some(opened.name.clone());
        }
        if !out.is_empty() {
            stop.or(io.write_all(&mut [IoSlice::new(&out)]))
                .await?
                .ok()?;
            out.clear();
        }
        match next {
            Next::Open(opened) => return Some(opened),
            Next::Close => return None,
            Next::Again | Next::More => {}
        }
        if !incoming.fill().await {
            return None;
        }
    }
}

struct Session {
    rt: Rt,
    volume: Rc<dyn Volume>,
    export: ExportInfo,
    budget: Rc<Budget>,
    /// What all connections have in flight together.
    pool: Rc<Pool>,
    outbox: Outbox,
}

impl Session {
    /// Reads requests and begins them, until there are no more.
    async fn read_requests<T: Transport>(self: &Rc<Self>, incoming: &mut Incoming<T>, stop: &Stop) {
        for count in 1u32.. {
            let Some(head) = incoming.array().await else {
                return;
            };
            let Some(request) = RequestHeader::parse(&head) else {
                tracing::debug!("nbd: not a request; the peer is dropped");
                return;
            };
            match gate::admit(&request, &self.export) {
                Ok(Command::Disconnect) | Err(Refusal::Drop) => return,
                Ok(command) => {
                    let bytes = match command {
                        Command::Read { length, .. } | Command::Write { length, .. } => length,
                        Command::BlockStatus { .. } => EXTENTS_BYTES,
                        _ => 0,
                    };
                    let Some(hold) = stop.or(self.take(bytes as usize)).await else {
                        return;
                    };
                    let mut payload = None;
                    if let Command::Write { length, .. } = command {
                        let Some(whole) = self.payload(incoming, length as usize).await else {
                            return; // not whole: never applied
                        };
                        payload = Some(whole);
                    }
                    let session = self.clone();
                    self.rt.begin(async move {
                        session.carry_out(request, command, payload, hold).await;
                    });
                }
                Err(Refusal::Answer { errno, skip }) => {
                    let Some(hold) = stop.or(self.take(0)).await else {
                        return;
                    };
                    if !incoming.skip(skip as usize).await {
                        return;
                    }
                    self.answer_error(&request, errno, hold);
                }
            }
            if count.is_multiple_of(BURST) {
                self.rt.yield_now().await;
            }
        }
    }

    async fn take(&self, bytes: usize) -> Holds {
        let hold = self.budget.take(bytes).await;
        (hold, self.pool.take(bytes, &self.budget).await)
    }

    /// A write's payload, if it comes whole and in time: memory is set aside for it.
    async fn payload<T: Transport>(
        &self,
        incoming: &mut Incoming<T>,
        length: usize,
    ) -> Option<Slice> {
        let mut buf = Buf::scratch(length); // given on only if it was filled
        let whole = if incoming.buffered().len() >= length {
            incoming.exact(&mut buf).await
        } else {
            let whole = self.rt.timeout(PATIENCE, incoming.exact(&mut buf)).await;
            whole.unwrap_or(false)
        };
        whole.then(|| buf.freeze())
    }

    async fn carry_out(
        &self,
        request: RequestHeader,
        command: Command,
        payload: Option<Slice>,
        hold: Holds,
    ) {
        let volume = &self.volume;
        let done = match command {
            Command::Read { offset, length } => {
                return self.read(request, offset, length, hold).await;
            }
            Command::BlockStatus {
                offset,
                length,
                one,
            } => {
                return self.block_status(request, offset, length, one, hold).await;
            }
            Command::Write {
                offset, durable, ..
            } => match payload {
                Some(data) if !data.is_empty() => volume.write(offset, data, durable).await,
                _ => Ok(()),
            },
            Command::Flush => volume.flush().await,
            Command::Trim {
                offset,
                length,
                durable,
            } => volume.trim(offset, u64::from(length), durable).await,
            Command::WriteZeroes {
                offset,
                length,
                durable,
                may_trim,
            } => {
                volume
                    .write_zeroes(offset, u64::from(length), durable, may_trim)
                    .await
            }
            Command::Nothing | Command::Disconnect => Ok(()),
        };
        let error = done.map_or_else(reply::errno_of, |()| 0);
        self.outbox.push(
            |out| reply::put_simple(out, request.cookie, error),
            None,
            [hold],
        );
    }

    async fn read(&self, request: RequestHeader, offset: u64, length: u32, hold: Holds) {
        let buf = match self.volume.read(offset, length as usize).await {
            // A short or long answer would put the stream out of step.
            Ok(buf) if buf.len() == length as usize => buf,
            Ok(_) => return self.answer_error(&request, reply::errno_of(VolumeError::Lost), hold),
            Err(error) => return self.answer_error(&request, reply::errno_of(error), hold),
        };
        let head = |out: &mut Vec<u8>| {
            if self.export.structured {
                reply::put_data_head(out, request.cookie, offset, length);
            } else {
                reply::put_simple(out, request.cookie, 0);
            }
        };
        self.outbox.push_buf(head, buf, [hold]);
    }

    async fn block_status(
        &self,
        request: RequestHeader,
        offset: u64,
        length: u32,
        one: bool,
        hold: Holds,
    ) {
        let most = if one { 1 } else { reply::MAX_EXTENTS };
        let asked = self.volume.block_status(offset, u64::from(length), most);
        match asked.await {
            Ok(extents) if extents.iter().any(|e| e.length > 0) => {
                let head = |out: &mut Vec<u8>| {
                    reply::put_block_status(out, request.cookie, length, &extents, most);
                };
                self.outbox.push(head, None, [hold]);
            }
            Ok(_) => self.answer_error(&request, reply::errno_of(VolumeError::Lost), hold),
            Err(error) => self.answer_error(&request, reply::errno_of(error), hold),
        }
    }

    fn answer_error(&self, request: &RequestHeader, errno: u32, hold: Holds) {
        let structured = self.export.structured
            && matches!(request.command, command::READ | command::BLOCK_STATUS);
        let head = |out: &mut Vec<u8>| {
            if structured {
                reply::put_error_piece(out, request.cookie, errno);
            } else {
                reply::put_simple(out, request.cookie, errno);
            }
        };
        self.outbox.push(head, None, [hold]);
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
