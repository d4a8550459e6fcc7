//! Clients: tasks that do random operations on an open array and check every answer with the model.
//!
//! Invariants: the model hears of an operation before the array does, and of its answer before
//! anything else runs, so a crash at any await leaves the model right; every operation has a bound
//! in virtual time.

mod manage;
mod scrub;

use std::future::Future;
use std::rc::Rc;

use ashlar_rt::{Buf, Rt, SECOND};

use crate::config::{Align, Mode};
use crate::content;
use crate::rng::Rng;
use crate::store::{Store, StoreError};
use crate::world::{Presence, World};

/// No operation may take longer than this, in virtual time.
const BOUND: u64 = 900 * SECOND;

/// An open array and the world around it.
#[derive(Clone)]
pub struct Session {
    /// The world.
    pub world: Rc<World>,
    /// The executor of this session.
    pub rt: Rt,
    /// The array.
    pub store: Rc<dyn Store>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("world", &self.world)
            .finish_non_exhaustive()
    }
}

/// Whether too few devices are left to agree on a generation, so that the array waits for the operator: few are sound,
/// or all refuse writes, and it has given up most.
pub async fn hangs_by_design(world: &World, rt: &Rt, store: &Rc<dyn Store>) -> bool {
    if world.waits_for_operator() {
        return true;
    }
    if !world.mishaps.all_refuse.get() {
        return false;
    }
    let counted = world.config.devices - world.budget.borrow().gone.len();
    let status = rt.timeout(BOUND, store.status()).await;
    status.is_some_and(|s| s.online.len() * 2 <= counted)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Write(bool),
    Read,
    Extents,
    Flush,
    Zero(bool),
    Fill,
    Burst,
    Pile,
    Create,
    Destroy,
    Status,
    Discard,
    Fail(bool),
    Set,
    Wait,
    Pause,
}

impl Session {
    /// Waits for `future`, but not for ever: `None`, and a failure, if it hangs.
    pub async fn bounded<T>(&self, what: &str, future: impl Future<Output = T>) -> Option<T> {
        let begun = self.rt.now();
        let value = self.rt.timeout(BOUND, future).await;
        if value.is_none() && hangs_by_design(&self.world, &self.rt, &self.store).await {
            self.world.trace.mark("writes wait for the operator");
        } else if value.is_none() && !self.world.failed() {
            self.describe().await;
            self.world.fail(|| {
                format!(
                    "{what} hangs: no answer {} virtual seconds after its start at {} us",
                    BOUND / SECOND,
                    begun / 1_000
                )
            });
        }
        value
    }

    /// Puts into the story what the array says of itself.
    pub async fn describe(&self) {
        if self.world.trace.is_on()
            && let Some(lines) = self.rt.timeout(BOUND, self.store.describe()).await
        {
            lines
                .into_iter()
                .for_each(|line| self.world.trace.line(|| line));
        }
    }

    fn log(&self, client: u64, text: impl FnOnce() -> String) {
        let at = self.rt.now() / 1_000;
        self.world
            .trace
            .line(|| format!("{at:>9} us client {client}: {}", text()));
    }

    /// The clients of the configuration, side by side, each with a generator of its own and so many operations at most.
    pub async fn clients(&self, rng: &mut Rng, operations: u64) {
        let begin = |number| {
            let own = rng.fork(number);
            let client = self.clone().client(number, own, operations);
            self.rt.spawn(self.world.heard(client))
        };
        let tasks: Vec<_> = (1..=self.world.config.clients).map(begin).collect();
        for task in tasks {
            task.await;
        }
    }

    /// One client's life.
    pub async fn client(self, number: u64, mut rng: Rng, operations: u64) {
        for _ in 0..operations {
            if self.world.failed() {
                return;
            }
            self.world.operations.set(self.world.operations.get() + 1);
            let op = self.choose(&mut rng);
            self.world.trace.mix(&[number, self.rt.now()]);
            self.perform(number, op, &mut rng).await;
        }
    }

    fn choose(&self, rng: &mut Rng) -> Op {
        let w = &self.world.config.weights;
        let table = [
            (w.write, Op::Write(false)),
            (w.durable, Op::Write(true)),
            (w.read, Op::Read),
            (w.extents, Op::Extents),
            (w.flush, Op::Flush),
            (w.trim, Op::Zero(true)),
            (w.zeroes, Op::Zero(false)),
            (w.fill, Op::Fill),
            (w.burst, Op::Burst),
            (w.pile, Op::Pile),
            (w.create, Op::Create),
            (w.destroy, Op::Destroy),
            (w.status, Op::Status),
            (w.discard, Op::Discard),
            (w.fail, Op::Fail(false)),
            (w.forced_fail, Op::Fail(true)),
            (w.set, Op::Set),
            (w.wait, Op::Wait),
            (w.pause, Op::Pause),
        ];
        let mut at = rng.below(table.iter().map(|(weight, _)| weight).sum());
        for (weight, op) in table {
            if at < weight {
                return op;
            }
            at -= weight;
        }
        Op::Read
    }

    /// A volume that is there, or none.
    fn pick_volume(&self, rng: &mut Rng) -> Option<String> {
        let volumes = self.world.volumes.borrow();
        let there: Vec<&String> = volumes
            .iter()
            .filter(|(_, entry)| entry.presence == Presence::Present)
            .map(|(name, _)| name)
            .collect();
        (!there.is_empty()).then(|| there[rng.index(there.len())].clone())
    }

    /// A range of `volume`, biased to collide.
    fn pick_range(&self, volume: &str, rng: &mut Rng, align: Align) -> (u64, u64) {
        self.world
            .with_volume(volume, |entry| {
                let (size, block) = (entry.model.size(), entry.model.block_bytes());
                let longest = self.world.config.longest;
                let length = if rng.chance(50) {
                    block
                } else {
                    rng.magnitude(longest)
                };
                let at = match rng.below(10) {
                    0..5 => entry.hot[rng.index(entry.hot.len())],
                    5..7 => entry.cursor,
                    _ => rng.below(size),
                };
                let step = match align {
                    Align::Block => block,
                    Align::Unit => 512,
                    Align::Byte => 1,
                };
                let at = (at.min(size - 1) / step) * step;
                let length = length.div_ceil(step) * step;
                let length = length.min(size - at);
                entry.cursor = (at + length) % size;
                (at, length)
            })
            .unwrap_or((0, 0))
    }

    async fn perform(&self, client: u64, op: Op, rng: &mut Rng) {
        let config = &self.world.config;
        match op {
            Op::Pause => {
                let delay = rng.magnitude(20_000_000);
                self.rt.sleep(delay).await;
            }
            Op::Create => self.create_volume(client, rng).await,
            Op::Pile => self.pile(client, rng).await,
            Op::Status => self.status(client).await,
            Op::Discard => self.discard(client, rng).await,
            Op::Fail(force) => self.fail_device(client, force).await,
            Op::Set => self.set(client, rng).await,
            Op::Wait => {
                self.log(client, || "wait_idle".to_string());
                self.bounded("wait_idle", self.store.wait_idle()).await;
            }
            _ => {
                let Some(volume) = self.pick_volume(rng) else {
                    return;
                };
                match op {
                    Op::Write(durable) => {
                        let (at, length) = self.pick_range(&volume, rng, config.align);
                        self.write(client, &volume, at, length, durable).await;
                    }
                    Op::Read => {
                        let align = if rng.chance(20) {
                            Align::Byte
                        } else {
                            config.align
                        };
                        let (at, length) = self.pick_range(&volume, rng, align);
                        self.read(client, &volume, at, length).await;
                    }
                    Op::Extents => {
                        let (at, length) = self.pick_range(&volume, rng, Align::Byte);
                        self.extents(client, &volume, at, length).await;
                    }
                    Op::Zero(trim) => {
                        let (at, length) = self.pick_range(&volume, rng, config.align);
                        let length = if rng.chance(20) { length * 8 } else { length };
                        let durable = rng.chance(30);
                        self.zero(client, &volume, at, length, trim, durable).await;
                    }
                    Op::Fill => self.fill(client, &volume, rng).await,
                    Op::Burst => self.burst(client, &volume, rng).await,
                    Op::Flush => self.flush(client, &volume).await,
                    Op::Destroy => self.destroy_volume(client, &volume).await,
                    _ => {}
                }
            }
        }
    }

    /// Marks `volume` as in use, unless it is going away.
    fn enter(&self, volume: &str) -> bool {
        self.world
            .with_volume(volume, |entry| {
                let there = entry.presence == Presence::Present;
                entry.busy += u64::from(there);
                there
            })
            .unwrap_or(false)
    }

    fn answered(&self) {
        self.world.answers.set(self.world.answers.get() + 1);
    }

    fn leave(&self, volume: &str) {
        self.answered();
        self.world.with_volume(volume, |entry| entry.busy -= 1);
    }

    /// Judges an error: within the promises, an operation does not fail.
    async fn judge(&self, what: &str, error: &StoreError) {
        let world = &self.world;
        let excused = match error {
            StoreError::Lost => !world.promised(),
            // Space that was promised (thick) stays, whatever devices go within the redundancy.
            StoreError::NoSpace => {
                !world.promised() || !world.promised_space(&self.store.status().await)
            }
            _ => world.config.mode == Mode::Beyond || world.mishaps.all_refuse.get(),
        };
        world.trace.mark(match error {
            StoreError::Lost => "answer: lost",
            StoreError::NoSpace => "answer: no space",
            _ => "answer: other error",
        });
        if !excused {
            self.describe().await;
            let budget = world.budget.borrow();
            world.fail(|| {
                format!(
                    "{what} failed with {error:?}, damaged devices {:?} of M = {}",
                    budget.damaged, world.config.m
                )
            });
        }
    }

    /// Writes a new version to a range.
    pub async fn write(&self, client: u64, volume: &str, at: u64, length: u64, durable: bool) {
        let crowded = self
            .world
            .with_volume(volume, |entry| entry.model.crowded(at, length))
            .unwrap_or(true);
        if crowded || length == 0 || !self.enter(volume) {
            return self.rt.sleep(50_000).await;
        }
        let version = self.world.version();
        let begun = self.world.with_volume(volume, |entry| {
            let mut data = Buf::zeroed(usize::try_from(length).expect("small"));
            content::fill(entry.model.id, at, version, &mut data);
            (entry.model.begin_write(at, length, version), data.freeze())
        });
        let Some((op, data)) = begun else { return };
        let kind = if durable { "durable write" } else { "write" };
        self.log(client, || {
            format!("{kind} {volume} {at}+{length} version {version} ...")
        });
        let future = self.store.write(volume, at, data, durable);
        let Some(result) = self.bounded(kind, future).await else {
            return;
        };
        self.log(client, || {
            format!("{kind} {volume} version {version}: {result:?}")
        });
        self.world
            .with_volume(volume, |e| e.model.end_write(op, result.is_ok(), durable));
        self.leave(volume);
        if durable && result.is_ok() {
            self.world.durable(kind);
        }
        if let Err(error) = &result {
            self.judge_write(volume, kind, error).await;
        }
    }

    /// Judges an error of what takes space: a thin volume was promised none; the others keep theirs.
    async fn judge_write(&self, volume: &str, kind: &str, error: &StoreError) {
        let thin = self.world.with_volume(volume, |e| e.config.thin);
        if *error == StoreError::NoSpace && thin != Some(false) && !self.world.thin_fits() {
            self.world.trace.mark("answer: no space for a thin volume");
            return;
        }
        self.judge(kind, error).await;
    }

    /// Trims or zeroes a range.
    pub async fn zero(
        &self,
        client: u64,
        volume: &str,
        at: u64,
        len: u64,
        trim: bool,
        durable: bool,
    ) {
        let size = self
            .world
            .with_volume(volume, |e| e.model.size())
            .unwrap_or(0);
        let len = len.min(size.saturating_sub(at));
        let crowded = self
            .world
            .with_volume(volume, |e| e.model.crowded(at, len))
            .unwrap_or(true);
        if crowded || len == 0 || !self.enter(volume) {
            return;
        }
        let op = self
            .world
            .with_volume(volume, |e| e.model.begin_write(at, len, 0));
        let kind = if trim { "trim" } else { "write zeroes" };
        self.log(client, || {
            format!("{kind} {volume} {at}+{len} durable {durable} ...")
        });
        let future = self.store.zero(volume, at, len, trim, durable);
        let Some(result) = self.bounded(kind, future).await else {
            return;
        };
        self.log(client, || format!("{kind} {volume} {at}+{len}: {result:?}"));
        self.world.with_volume(volume, |entry| {
            entry
                .model
                .end_write(op.unwrap_or(0), result.is_ok(), durable);
        });
        self.leave(volume);
        if durable && result.is_ok() {
            self.world.durable(kind);
        }
        if let Err(error) = &result {
            // Whole blocks are unmapped, which takes no space; parts of blocks are written.
            let unit = self.world.with_volume(volume, |e| e.config.block_bytes);
            let whole =
                unit.is_some_and(|unit| at.is_multiple_of(unit) && len.is_multiple_of(unit));
            match whole {
                true => self.judge(kind, error).await,
                false => self.judge_write(volume, kind, error).await,
            }
        }
    }

    /// Reads a range and checks it.
    pub async fn read(&self, client: u64, volume: &str, at: u64, length: u64) {
        if length == 0 || !self.enter(volume) {
            return;
        }
        let number = self
            .world
            .with_volume(volume, |e| e.model.begin_read())
            .unwrap_or(0);
        let len = usize::try_from(length).expect("small");
        let future = self.store.read(volume, at, len);
        let Some(result) = self.bounded("read", future).await else {
            return;
        };
        self.log(client, || {
            let result = result.as_ref().map(|bytes| content::explain(at, bytes));
            format!("read {volume} {at}+{length}: {result:?}")
        });
        let mut error = None;
        self.world.with_volume(volume, |entry| match &result {
            Ok(bytes) => {
                self.world
                    .trace
                    .mix(&[bytes.len() as u64, u64::from(bytes[0])]);
                if self.world.config.unchecked {
                    return entry.model.forget_read(number);
                }
                match entry.model.end_read(number, at, bytes) {
                    Ok(()) => {}
                    Err(violation) => self.world.fail(|| format!("WRONG BYTES: {}", violation.0)),
                }
            }
            Err(e) => {
                entry.model.forget_read(number);
                error = Some(e.clone());
            }
        });
        if result.as_ref().is_ok_and(|bytes| bytes.len() != len) {
            self.world
                .fail(|| format!("a read of {length} bytes gave another length"));
        }
        self.leave(volume);
        if let Some(error) = error {
            self.judge(&format!("read of {volume} at {at}+{length}"), &error)
                .await;
        }
    }

    /// Asks for the holes of a range: a hole must be allowed to read as zeros.
    async fn extents(&self, client: u64, volume: &str, at: u64, length: u64) {
        if length == 0 || !self.enter(volume) {
            return;
        }
        let number = self
            .world
            .with_volume(volume, |e| e.model.begin_read())
            .unwrap_or(0);
        let future = self.store.extents(volume, at, length);
        let Some(result) = self.bounded("block status", future).await else {
            return;
        };
        self.log(client, || {
            format!("block status {volume} {at}+{length}: {result:?}")
        });
        let extents = match &result {
            Ok(extents) => extents,
            Err(error) => {
                self.world
                    .with_volume(volume, |entry| entry.model.forget_read(number));
                self.leave(volume);
                return self.judge("block status", error).await;
            }
        };
        if extents.iter().map(|(len, _)| len).sum::<u64>() != length {
            self.world
                .fail(|| format!("block status of {length} bytes covers {extents:?}"));
        }
        let mut start = at;
        for (len, hole) in extents {
            let zeros = self
                .world
                .with_volume(volume, |e| e.model.may_be_zero(number, start, *len));
            if *hole && zeros == Some(false) {
                self.world
                    .fail(|| format!("{start}+{len} of {volume} is no hole"));
            }
            start += len;
        }
        self.world
            .with_volume(volume, |entry| entry.model.forget_read(number));
        self.leave(volume);
    }

    /// Flushes a volume.
    pub async fn flush(&self, client: u64, volume: &str) {
        if !self.enter(volume) {
            return;
        }
        let number = self
            .world
            .with_volume(volume, |e| e.model.begin_flush())
            .unwrap_or(0);
        self.log(client, || format!("flush {volume} ..."));
        let Some(result) = self.bounded("flush", self.store.flush(volume)).await else {
            return;
        };
        self.log(client, || format!("flush {volume}: {result:?}"));
        self.world
            .with_volume(volume, |e| e.model.end_flush(number, result.is_ok()));
        self.leave(volume);
        if result.is_ok() {
            self.world.durable("flush");
        }
        if let Err(error) = &result {
            self.judge("flush", error).await;
        }
    }
}
