//! A volume of the engine as frontends see it.
//!
//! **Invariants**: with `cached` a write completes when it is in memory, without when it is
//! durable; what was asked to be durable always is.

use std::cell::Cell;
use std::rc::Rc;

use ashlar_engine::Volume as EngineVolume;
use ashlar_rt::{Buf, Nanos, Rt, Slice};
use ashlar_serve::{Extent, Fut, Volume, VolumeError, VolumeInfo};

use crate::api::{LATENCY_BOUNDS, Latency};

/// The adapter.
#[derive(Debug)]
pub(crate) struct Served {
    volume: EngineVolume,
    info: VolumeInfo,
    seen: Rc<Seen>,
}

/// What is known of a volume beside its properties.
#[derive(Debug)]
pub(crate) struct Seen {
    rt: Rt,
    /// What it takes of the space, where that is shown.
    pub(crate) used_bytes: Cell<u64>,
    /// When a write was last refused for want of space; 0 for never.
    pub(crate) refused: Cell<Nanos>,
    /// When one was last taken after that.
    pub(crate) accepted: Cell<Nanos>,
    /// Requests so far that may have changed what it takes of the space, however it was served.
    changes: Rc<Cell<u64>>,
    times: [Times; 3],
}

/// The kinds of requests whose times are taken, as indexes.
const OPERATIONS: [&str; 3] = ["read", "write", "flush"];
const READ: usize = 0;
const WRITE: usize = 1;
const FLUSH: usize = 2;

/// How long requests of one kind took.
#[derive(Debug, Default)]
struct Times {
    counts: [Cell<u64>; LATENCY_BOUNDS.len() + 1],
    nanoseconds: Cell<u64>,
    in_flight: Cell<u64>,
}

/// A request that has not ended.
struct Running {
    seen: Rc<Seen>,
    kind: usize,
    since: Nanos,
}

impl Drop for Running {
    fn drop(&mut self) {
        let times = &self.seen.times[self.kind];
        let took = self.seen.rt.now().saturating_sub(self.since);
        let place = LATENCY_BOUNDS.partition_point(|bound| *bound < took);
        times.counts[place].set(times.counts[place].get() + 1);
        times
            .nanoseconds
            .set(times.nanoseconds.get().saturating_add(took));
        times.in_flight.set(times.in_flight.get() - 1);
    }
}

impl Seen {
    /// Nothing yet, but what it takes of the space, and the changes to it so far.
    pub(crate) fn new(rt: &Rt, used_bytes: u64, changes: Rc<Cell<u64>>) -> Rc<Seen> {
        Rc::new(Seen {
            rt: rt.clone(),
            used_bytes: Cell::new(used_bytes),
            refused: Cell::new(0),
            accepted: Cell::new(0),
            changes,
            times: Default::default(),
        })
    }

    /// Takes the time of a request, until what it gives is dropped.
    fn begin(self: &Rc<Seen>, kind: usize) -> Running {
        let in_flight = &self.times[kind].in_flight;
        in_flight.set(in_flight.get() + 1);
        Running {
            seen: self.clone(),
            kind,
            since: self.rt.now(),
        }
    }

    /// The times so far, of every kind.
    pub(crate) fn latency(&self, array: &str, volume: &str) -> Vec<Latency> {
        let of = |(operation, times): (&&str, &Times)| Latency {
            array: array.to_string(),
            volume: volume.to_string(),
            operation: (*operation).to_string(),
            counts: times.counts.iter().map(Cell::get).collect(),
            nanoseconds: times.nanoseconds.get(),
            in_flight: times.in_flight.get(),
        };
        OPERATIONS.iter().zip(&self.times).map(of).collect()
    }

    fn note_change(&self) {
        self.changes.set(self.changes.get() + 1);
    }

    /// Notes how a write ended.
    fn note(&self, written: Result<(), VolumeError>) -> Result<(), VolumeError> {
        self.note_change();
        match written {
            Err(VolumeError::NoSpace) => self.refused.set(self.rt.now()),
            Ok(()) if self.refused.get() > self.accepted.get() => self.accepted.set(self.rt.now()),
            _ => {}
        }
        written
    }
}

impl Served {
    /// `volume`, with or without a volatile write cache; what happens to it is noted in `seen`.
    pub(crate) fn new(
        volume: EngineVolume,
        cached: bool,
        read_only: bool,
        seen: Rc<Seen>,
    ) -> Served {
        let engine = volume.info();
        let info = VolumeInfo {
            size_bytes: engine.size_bytes,
            block_bytes: engine.block_bytes,
            optimal_bytes: engine.optimal_bytes,
            read_only,
            write_cache: cached,
        };
        Served { volume, info, seen }
    }

    fn durable(&self, asked: bool) -> bool {
        asked || !self.info.write_cache
    }
}

/// Most bytes of zeros written at a time.
const ZEROS: usize = 1 << 20;

thread_local! {
    /// The zeros that all requests write: requests without a payload take no memory of their own.
    static ALL_ZEROS: Slice = Slice::zeroed(ZEROS);
}

/// Writes zeros as data, so that their space is taken: what is written there later finds room.
async fn write_zeros(
    volume: &EngineVolume,
    mut offset: u64,
    length: u64,
    durable: bool,
) -> Result<(), VolumeError> {
    let end = offset.checked_add(length).ok_or(VolumeError::OutOfRange)?;
    let zeros = ALL_ZEROS.with(Clone::clone);
    while offset < end {
        let most = usize::try_from(end - offset).unwrap_or(ZEROS).min(ZEROS);
        let last = offset + most as u64 == end;
        // What the last one makes durable are all before it, too.
        let written = volume.write(offset, zeros.cut(0..most), durable && last);
        written.await?;
        offset += most as u64;
    }
    Ok(())
}

impl Volume for Served {
    fn info(&self) -> VolumeInfo {
        self.info
    }

    fn used_bytes(&self) -> u64 {
        self.seen.used_bytes.get()
    }

    fn read(&self, offset: u64, length: usize) -> Fut<Result<Buf, VolumeError>> {
        let (volume, running) = (self.volume.clone(), self.seen.begin(READ));
        Box::pin(async move {
            let read = volume.read(offset, length).await;
            drop(running);
            read
        })
    }

    fn write(&self, offset: u64, data: Slice, durable: bool) -> Fut<Result<(), VolumeError>> {
        let (volume, durable) = (self.volume.clone(), self.durable(durable));
        let (seen, running) = (self.seen.clone(), self.seen.begin(WRITE));
        Box::pin(async move {
            let written = volume.write(offset, data, durable).await;
            drop(running);
            seen.note(written)
        })
    }

    fn flush(&self) -> Fut<Result<(), VolumeError>> {
        let (volume, seen) = (self.volume.clone(), self.seen.clone());
        let running = self.seen.begin(FLUSH);
        Box::pin(async move {
            let flushed = volume.flush().await;
            drop(running);
            match flushed {
                Ok(()) => Ok(()), // nothing was written by it
                refused => seen.note(refused),
            }
        })
    }

    fn trim(&self, offset: u64, length: u64, durable: bool) -> Fut<Result<(), VolumeError>> {
        let (volume, durable) = (self.volume.clone(), self.durable(durable));
        let seen = self.seen.clone();
        Box::pin(async move {
            let trimmed = volume.trim(offset, length, durable).await;
            seen.note_change();
            trimmed
        })
    }

    fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        durable: bool,
        may_trim: bool,
    ) -> Fut<Result<(), VolumeError>> {
        let (volume, durable) = (self.volume.clone(), self.durable(durable));
        // The space of a thick volume is its own also where nothing is mapped.
        let keep = !may_trim && volume.info().thin;
        let seen = self.seen.clone();
        Box::pin(async move {
            if keep {
                return seen.note(write_zeros(&volume, offset, length, durable).await);
            }
            let written = volume.write_zeroes(offset, length, durable).await;
            seen.note_change();
            written
        })
    }

    fn block_status(
        &self,
        offset: u64,
        length: u64,
        most: usize,
    ) -> Fut<Result<Vec<Extent>, VolumeError>> {
        let volume = self.volume.clone();
        Box::pin(async move { volume.block_status(offset, length, most).await })
    }
}
