//! [`FaultFilter`]: makes a device fail, lie or vanish, by rules.
//!
//! Invariants: an operation that no active rule matches passes unchanged; what a rule does is a
//! function of the operation and of the rule's own count, so a seed replays it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use ashlar_rt::{BLOCK, Buf, Gate, Slice};

use crate::{Device, DeviceInfo, DeviceRef, Fault, IoFuture, OpKind, check_range, check_write};

/// What happens to an operation that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It is not carried out and fails.
    Fail(Fault),
    /// A read succeeds, but one bit is wrong in every block of it that lies in the rule's range; a
    /// write stores such blocks. The same block is always wrong in the same way.
    Corrupt,
    /// A write, flush or discard is acknowledged and not carried out; a read gives zeros.
    Lose,
    /// A read or write takes place this many bytes further on (a multiple of 4096, modulo the size of
    /// the device) and is acknowledged.
    Misdirect(u64),
    /// It is not carried out, and not answered, before [`FaultFilter::release`].
    Hang,
}

/// Which operations something happens to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Which kind of operation.
    pub op: OpKind,
    /// Bytes of the device; operations that touch one of them match. Flushes match always.
    pub range: Range<u64>,
    /// Matching operations to let pass first.
    pub skip: u64,
    /// Matching operations, after those, that the effect happens to; `u64::MAX` for all.
    pub times: u64,
    /// What happens.
    pub effect: Effect,
}

impl Rule {
    /// `effect` for every operation of this kind.
    pub fn always(op: OpKind, effect: Effect) -> Rule {
        Rule {
            op,
            range: 0..u64::MAX,
            skip: 0,
            times: u64::MAX,
            effect,
        }
    }

    /// `effect` for every operation of this kind that touches `range` (bytes).
    pub fn within(op: OpKind, range: Range<u64>, effect: Effect) -> Rule {
        Rule {
            range,
            ..Rule::always(op, effect)
        }
    }

    /// `effect` for one operation of this kind, after `skip` others.
    pub fn once(op: OpKind, skip: u64, effect: Effect) -> Rule {
        Rule {
            skip,
            times: 1,
            ..Rule::always(op, effect)
        }
    }
}

/// Names a rule of one [`FaultFilter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleId(u64);

struct Active {
    rule: Rule,
    /// Matching operations seen.
    seen: u64,
}

/// A device that fails as told.
pub struct FaultFilter {
    inner: DeviceRef,
    rules: RefCell<BTreeMap<RuleId, Active>>,
    next_rule: Cell<u64>,
    offline: Cell<bool>,
    hits: Cell<u64>,
    hanging: Rc<Gate>,
}

impl std::fmt::Debug for FaultFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaultFilter")
            .field("rules", &self.rules.borrow().len())
            .field("offline", &self.offline.get())
            .finish_non_exhaustive()
    }
}

impl FaultFilter {
    /// Wraps `inner`; without rules nothing happens.
    pub fn new(inner: DeviceRef) -> Rc<FaultFilter> {
        Rc::new(FaultFilter {
            inner,
            rules: RefCell::default(),
            next_rule: Cell::new(0),
            offline: Cell::new(false),
            hits: Cell::new(0),
            hanging: Rc::default(),
        })
    }

    /// Adds a rule. Of several that match an operation the first added wins; the others do not count
    /// it.
    pub fn add(&self, rule: Rule) -> RuleId {
        let id = RuleId(self.next_rule.get());
        self.next_rule.set(id.0 + 1);
        self.rules.borrow_mut().insert(id, Active { rule, seen: 0 });
        id
    }

    /// Takes a rule away; true if it was there.
    pub fn remove(&self, id: RuleId) -> bool {
        self.rules.borrow_mut().remove(&id).is_some()
    }

    /// Takes all rules away and puts the device online.
    pub fn clear(&self) {
        self.rules.borrow_mut().clear();
        self.offline.set(false);
    }

    /// Offline, every operation fails with [`Fault::Offline`]; those in flight complete.
    pub fn set_offline(&self, offline: bool) {
        self.offline.set(offline);
    }

    /// Whether the device is switched offline.
    pub fn is_offline(&self) -> bool {
        self.offline.get()
    }

    /// Lets every operation that hangs go on now.
    pub fn release(&self) {
        self.hanging.open();
    }

    /// How many operations something has happened to, being offline included.
    pub fn hits(&self) -> u64 {
        self.hits.get()
    }

    /// What happens to this operation, and in which range the rule that says so applies.
    fn effect(&self, op: OpKind, offset: u64, length: u64) -> Option<(Effect, Range<u64>)> {
        let hit = |effect| {
            self.hits.set(self.hits.get() + 1);
            Some(effect)
        };
        if self.offline.get() {
            return hit((Effect::Fail(Fault::Offline), 0..u64::MAX));
        }
        let end = offset + length;
        for active in self.rules.borrow_mut().values_mut() {
            let rule = &active.rule;
            let touches =
                op == OpKind::Flush || (offset < rule.range.end && rule.range.start < end);
            let spent = active.seen >= rule.skip.saturating_add(rule.times);
            if rule.op != op || !touches || spent {
                continue;
            }
            active.seen += 1;
            if active.seen <= rule.skip {
                return None;
            }
            return hit((rule.effect, rule.range.clone()));
        }
        None
    }

    fn misdirected(&self, offset: u64, length: u64, by: u64) -> u64 {
        assert_eq!(by % BLOCK as u64, 0, "operations go astray by whole blocks");
        let room = self.info().size_bytes - length + BLOCK as u64;
        (offset + by) % room
    }
}

/// Makes one bit wrong in each block of `bytes`, which lie at `offset`, that `range` touches.
fn corrupt(bytes: &mut [u8], offset: u64, range: &Range<u64>) {
    let block = BLOCK as u64;
    for (at, bytes) in (offset..).step_by(BLOCK).zip(bytes.chunks_mut(BLOCK)) {
        if at < range.end && range.start < at + block {
            let mixed = (at / block).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let bit = usize::try_from(mixed >> 49).expect("15 bits");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

fn now<T: 'static>(value: T) -> IoFuture<T> {
    Box::pin(std::future::ready(value))
}

impl Device for FaultFilter {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn read(&self, offset: u64, mut buf: Buf) -> IoFuture<(Buf, Result<(), Fault>)> {
        check_range(self.info(), offset, buf.len() as u64);
        let length = buf.len() as u64;
        let Some((effect, range)) = self.effect(OpKind::Read, offset, length) else {
            return self.inner.read(offset, buf);
        };
        match effect {
            Effect::Fail(fault) => now((buf, Err(fault))),
            Effect::Corrupt => {
                let read = self.inner.read(offset, buf);
                Box::pin(async move {
                    let (mut buf, result) = read.await;
                    corrupt(&mut buf, offset, &range);
                    (buf, result)
                })
            }
            Effect::Lose => {
                buf.fill(0);
                now((buf, Ok(())))
            }
            Effect::Misdirect(by) => self.inner.read(self.misdirected(offset, length, by), buf),
            Effect::Hang => {
                let (gate, inner) = (self.hanging.clone(), self.inner.clone());
                Box::pin(async move {
                    gate.wait().await;
                    inner.read(offset, buf).await
                })
            }
        }
    }

    fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<Result<(), Fault>> {
        let length = check_write(self.info(), offset, &data);
        let Some((effect, range)) = self.effect(OpKind::Write, offset, length) else {
            return self.inner.write(offset, data);
        };
        match effect {
            Effect::Fail(fault) => now(Err(fault)),
            Effect::Corrupt => {
                let mut at = offset;
                let wrong = data.iter().map(|slice| {
                    let mut copy = Buf::copy_of(slice);
                    corrupt(&mut copy, at, &range);
                    at += slice.len() as u64;
                    copy.freeze()
                });
                self.inner.write(offset, wrong.collect())
            }
            Effect::Lose => now(Ok(())),
            Effect::Misdirect(by) => self.inner.write(self.misdirected(offset, length, by), data),
            Effect::Hang => {
                let (gate, inner) = (self.hanging.clone(), self.inner.clone());
                Box::pin(async move {
                    gate.wait().await;
                    inner.write(offset, data).await
                })
            }
        }
    }

    fn flush(&self) -> IoFuture<Result<(), Fault>> {
        match self.effect(OpKind::Flush, 0, 0) {
            None | Some((Effect::Corrupt | Effect::Misdirect(_), _)) => self.inner.flush(),
            Some((Effect::Fail(fault), _)) => now(Err(fault)),
            Some((Effect::Lose, _)) => now(Ok(())),
            Some((Effect::Hang, _)) => {
                let (gate, inner) = (self.hanging.clone(), self.inner.clone());
                Box::pin(async move {
                    gate.wait().await;
                    inner.flush().await
                })
            }
        }
    }

    fn discard(&self, offset: u64, length: u64) -> IoFuture<Result<(), Fault>> {
        match self.effect(OpKind::Discard, offset, length) {
            None | Some((Effect::Corrupt | Effect::Misdirect(_), _)) => {
                self.inner.discard(offset, length)
            }
            Some((Effect::Fail(fault), _)) => now(Err(fault)),
            Some((Effect::Lose, _)) => now(Ok(())),
            Some((Effect::Hang, _)) => {
                let (gate, inner) = (self.hanging.clone(), self.inner.clone());
                Box::pin(async move {
                    gate.wait().await;
                    inner.discard(offset, length).await
                })
            }
        }
    }
}
