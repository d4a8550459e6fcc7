//! The reference model of volumes, independent of the engine: for every volume block, the states
//! it may be in now and the states a crash may bring back.
//!
//! Invariants:
//! - A *state* is the whole content of one volume block, as runs of versions. A write is atomic
//!   for each block it touches (rule R16), and for nothing larger.
//! - `now` are the states possible at this moment, each with the operations in flight that it
//!   contains. Operations in flight together may take effect in any order.
//! - `past` are states that were possible and no longer are; a crash may bring them back (P3) until
//!   a flush begun after them, or a durable write that they lack, has been acknowledged (P2).
//! - What a read shows is checked against every state possible during the read (P1), and rules out
//!   what it contradicts: after a crash, what was once seen stays (P3).

use std::collections::{BTreeMap, BTreeSet};

use crate::content::{self, Version};

/// A moment in the model's own counting.
pub type Moment = u64;

/// The content of a volume block: runs of (end, version), covering it.
type State = Vec<(u32, Version)>;

/// The most states a block may have before the driver stops adding uncertainty to it.
const CROWDED: usize = 24;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Possible {
    state: State,
    /// Operations in flight that have taken effect in it, in order of number.
    applied: Vec<u64>,
}

#[derive(Clone, Debug)]
struct Past {
    possible: Possible,
    until: Moment,
    /// False once only reads that began earlier may still see it.
    crash: bool,
}

#[derive(Clone, Debug)]
struct InFlight {
    op: u64,
    from: u32,
    to: u32,
    version: Version,
}

#[derive(Clone, Debug)]
struct Block {
    now: Vec<Possible>,
    in_flight: Vec<InFlight>,
    past: Vec<Past>,
    changed: Moment,
}

/// A volume as its client may find it.
#[derive(Clone, Debug)]
pub struct VolumeModel {
    /// The identity in the content of its blocks; never used twice.
    pub id: u16,
    size: u64,
    block_bytes: u64,
    blocks: BTreeMap<u64, Block>,
    ops: BTreeMap<u64, (u64, u64)>,
    reads: BTreeMap<u64, Moment>,
    flushes: BTreeMap<u64, Moment>,
    clock: Moment,
    next: u64,
    newest: Version,
    /// Set when the operator accepted loss: any version ever written may come back.
    pub rolled_back: bool,
    /// Cells that writes began or ended inside of: after an accepted loss they may hold a bit of each.
    shared: BTreeSet<u64>,
    /// Volumes that had its name before: a device with an old state, which an operator has chosen to go
    /// on with, may know one of these by it.
    pub former: Vec<u16>,
}

/// A wrong answer, explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

fn fresh(size: u32) -> Block {
    let state = vec![(size, 0)];
    Block {
        now: vec![Possible {
            state,
            applied: Vec::new(),
        }],
        in_flight: Vec::new(),
        past: Vec::new(),
        changed: 0,
    }
}

/// `state` with `from..to` replaced by `version`.
fn overwrite(state: &State, from: u32, to: u32, version: Version) -> State {
    let mut out: State = Vec::with_capacity(state.len() + 2);
    let mut push = |end: u32, version: Version| match out.last_mut() {
        Some(last) if last.0 >= end => {}
        Some(last) if last.1 == version => last.0 = end,
        _ => out.push((end, version)),
    };
    let mut start = 0;
    for (end, old) in state {
        if start < from {
            push((*end).min(from), *old);
        }
        if *end > from && start <= from {
            push(to, version);
        }
        if *end > to {
            push(*end, *old);
        }
        start = *end;
    }
    out
}

impl Block {
    /// Every state reachable from `now` by operations in flight, in any order.
    fn closure(&self) -> Vec<Possible> {
        let mut all = self.now.clone();
        let mut at = 0;
        while at < all.len() {
            for op in &self.in_flight {
                if all[at].applied.contains(&op.op) {
                    continue;
                }
                let mut applied = all[at].applied.clone();
                let place = applied.partition_point(|other| *other < op.op);
                applied.insert(place, op.op);
                let state = overwrite(&all[at].state, op.from, op.to, op.version);
                let next = Possible { state, applied };
                if !all.contains(&next) {
                    all.push(next);
                }
            }
            at += 1;
        }
        all
    }

    fn remember(&mut self, possible: Possible, until: Moment) {
        let known = self.past.iter_mut().find(|past| past.possible == possible);
        match known {
            Some(past) => {
                past.until = until;
                past.crash = true;
            }
            None => self.past.push(Past {
                possible,
                until,
                crash: true,
            }),
        }
    }

    /// Ends operation `op`; with `certain` it has taken effect, else it may have.
    fn end(&mut self, op: u64, certain: bool, moment: Moment) {
        let mut now: Vec<Possible> = Vec::new();
        for mut possible in self.closure() {
            let has = possible.applied.contains(&op);
            if !has {
                self.remember(possible.clone(), moment);
            }
            if has || !certain {
                possible.applied.retain(|other| *other != op);
                if !now.contains(&possible) {
                    now.push(possible);
                }
            }
        }
        self.in_flight.retain(|other| other.op != op);
        self.now = now;
        self.changed = moment;
    }
}

impl VolumeModel {
    /// A new volume: all zeros.
    pub fn new(id: u16, size: u64, block_bytes: u64) -> VolumeModel {
        VolumeModel {
            id,
            size,
            block_bytes,
            blocks: BTreeMap::new(),
            ops: BTreeMap::new(),
            reads: BTreeMap::new(),
            flushes: BTreeMap::new(),
            clock: 1,
            next: 1,
            newest: 0,
            rolled_back: false,
            shared: BTreeSet::new(),
            former: Vec::new(),
        }
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes a volume block.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    fn tick(&mut self) -> Moment {
        self.clock += 1;
        self.clock
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The blocks of a range, and the part of each inside it.
    fn parts(&self, offset: u64, length: u64) -> impl Iterator<Item = (u64, u32, u32)> + use<> {
        let size = self.block_bytes;
        let end = offset + length;
        let first = offset / size;
        let small = |n: u64| u32::try_from(n).expect("a block is small");
        (first..end.div_ceil(size)).map(move |block| {
            let start = block * size;
            (
                block,
                small(offset.max(start) - start),
                small(end.min(start + size) - start),
            )
        })
    }

    fn block(&mut self, number: u64) -> &mut Block {
        let size = u32::try_from(self.block_bytes).expect("a block is small");
        self.blocks.entry(number).or_insert_with(|| fresh(size))
    }

    /// Whether so much is uncertain in the range that more writes in flight there would make the
    /// model slow rather than stricter.
    pub fn crowded(&self, offset: u64, length: u64) -> bool {
        self.parts(offset, length).any(|(number, ..)| {
            self.blocks.get(&number).is_some_and(|block| {
                block.now.len() > CROWDED
                    || (!block.in_flight.is_empty() && block.now.len() > 4)
                    || block.in_flight.len() >= 3
            })
        })
    }

    /// A write, trim or zeroing (version 0) is submitted. Gives the operation's number.
    pub fn begin_write(&mut self, offset: u64, length: u64, version: Version) -> u64 {
        let op = self.number();
        let moment = self.tick();
        self.newest = self.newest.max(version);
        self.ops.insert(op, (offset, length));
        self.shared.extend(content::cut_cells(offset, length));
        for (number, from, to) in self.parts(offset, length) {
            let block = self.block(number);
            block.in_flight.push(InFlight {
                op,
                from,
                to,
                version,
            });
            block.changed = moment;
        }
        op
    }

    /// The operation has been answered: done (`ok`), or failed, having taken effect or not in each
    /// block. `durable`: its acknowledgement promises that it survives a crash.
    pub fn end_write(&mut self, op: u64, ok: bool, durable: bool) {
        let moment = self.tick();
        let Some((offset, length)) = self.ops.remove(&op) else {
            return;
        };
        let oldest_read = self.reads.values().min().copied();
        for (number, ..) in self.parts(offset, length) {
            let block = self.block(number);
            block.end(op, ok, moment);
            if ok && durable {
                for past in &mut block.past {
                    past.crash &= past.possible.applied.contains(&op);
                }
                prune(block, oldest_read);
            }
        }
    }

    /// A flush is submitted.
    pub fn begin_flush(&mut self) -> u64 {
        let number = self.number();
        let moment = self.tick();
        self.flushes.insert(number, moment);
        number
    }

    /// A flush is acknowledged (`ok`) or has failed.
    pub fn end_flush(&mut self, number: u64, ok: bool) {
        let Some(begun) = self.flushes.remove(&number) else {
            return;
        };
        if !ok {
            return;
        }
        let oldest_read = self.reads.values().min().copied();
        for block in self.blocks.values_mut() {
            for past in &mut block.past {
                past.crash &= past.until >= begun;
            }
            prune(block, oldest_read);
        }
    }

    /// A read is submitted.
    pub fn begin_read(&mut self) -> u64 {
        let number = self.number();
        let moment = self.tick();
        self.reads.insert(number, moment);
        number
    }

    /// A read has failed.
    pub fn forget_read(&mut self, number: u64) {
        self.reads.remove(&number);
    }

    /// A read is answered with `bytes`.
    pub fn end_read(&mut self, number: u64, offset: u64, bytes: &[u8]) -> Result<(), Violation> {
        let begun = self.reads.remove(&number).unwrap_or(0);
        let moment = self.tick();
        for (block, from, to) in self.parts(offset, bytes.len() as u64) {
            let start = block * self.block_bytes;
            let at = usize::try_from(start + u64::from(from) - offset).expect("inside the read");
            let part = &bytes[at..at + (to - from) as usize];
            if self.rolled_back {
                self.check_any(start + u64::from(from), part)?;
            } else {
                self.check_block(block, from, part, begun, moment)?;
            }
        }
        Ok(())
    }

    /// Whether a range may have been zeros at some time since read `number` began.
    pub fn may_be_zero(&self, number: u64, offset: u64, length: u64) -> bool {
        // A few bytes of what a client writes can be zeros too, and need no room then.
        let zero = |block: u64, state: &State, from: u32, to: u32| {
            let mut begin = 0;
            state.iter().all(|(end, version)| {
                let (first, last) = (begin.max(from), (*end).min(to));
                begin = *end;
                let length = last.saturating_sub(first) as usize;
                let at = block * self.block_bytes + u64::from(first);
                length == 0
                    || *version == 0
                    || length < 16 && content::matches(self.id, at, *version, &[0; 16][..length])
            })
        };
        let begun = self.reads.get(&number).copied().unwrap_or(0);
        self.rolled_back
            || self.parts(offset, length).all(|(number, from, to)| {
                let Some(block) = self.blocks.get(&number) else {
                    return true;
                };
                let past = block.past.iter().filter(|past| past.until >= begun);
                block
                    .closure()
                    .iter()
                    .chain(past.map(|p| &p.possible))
                    .any(|p| zero(number, &p.state, from, to))
            })
    }

    fn check_block(
        &mut self,
        number: u64,
        from: u32,
        bytes: &[u8],
        begun: Moment,
        moment: Moment,
    ) -> Result<(), Violation> {
        let (id, start) = (self.id, number * self.block_bytes);
        let Some(block) = self.blocks.get_mut(&number) else {
            if content::zeros(bytes) {
                return Ok(());
            }
            let found = content::explain(start + u64::from(from), bytes);
            return Err(Violation(format!(
                "volume {id}: never written, yet it reads {found}"
            )));
        };
        let fits = |state: &State| shows(id, start, state, from, bytes);
        let before = block.changed < begun;
        if before && block.in_flight.is_empty() {
            // Nothing moved while the read was under way: what it contradicts was never so.
            let (now, gone): (Vec<_>, Vec<_>) = std::mem::take(&mut block.now)
                .into_iter()
                .partition(|possible| fits(&possible.state));
            block.now = now;
            if !block.now.is_empty() {
                return Ok(());
            }
            block.now = gone;
            return Err(violation(id, start, from, bytes, block, begun));
        }
        let closure = block.closure();
        if closure.iter().any(|possible| fits(&possible.state)) {
            if before {
                let (now, gone): (Vec<_>, Vec<_>) = closure
                    .into_iter()
                    .partition(|possible| fits(&possible.state));
                block.now = now;
                if !gone.is_empty() {
                    // A read that began before this one ended may have seen what came before.
                    block.changed = moment;
                }
                for possible in gone {
                    block.remember(possible, moment);
                }
            }
            return Ok(());
        }
        if block
            .past
            .iter()
            .any(|past| past.until >= begun && fits(&past.possible.state))
        {
            return Ok(());
        }
        Err(violation(id, start, from, bytes, block, begun))
    }

    /// After an accepted loss: every cell is zeros or some write to this very place, but where writes begin or end
    /// inside it.
    fn check_any(&self, offset: u64, bytes: &[u8]) -> Result<(), Violation> {
        let mut at = offset.next_multiple_of(content::CELL);
        let skip = usize::try_from(at - offset).expect("below 16");
        let cells: &[[u8; 16]] = bytes.get(skip..).unwrap_or(&[]).as_chunks().0;
        // Of volumes that had the name before it is known only that a write is beside it.
        let of_former = |n: usize| {
            let mut beside = [n.wrapping_sub(1), n + 1].into_iter();
            let is_write = |cell| matches!(content::origin(cell), content::Origin::Write { .. });
            !self.former.is_empty() && beside.any(|n| cells.get(n).is_some_and(is_write))
        };
        for (n, cell) in cells.iter().enumerate() {
            let fine = match content::origin(cell) {
                content::Origin::Zeros => true,
                content::Origin::Write {
                    volume,
                    offset,
                    version,
                } => {
                    let known = volume == self.id && version <= self.newest;
                    offset == at && (known || self.former.contains(&volume))
                }
                content::Origin::Unknown => self.shared.contains(&at) || of_former(n),
            };
            if !fine {
                let found = content::explain(offset, bytes);
                return Err(Violation(format!(
                    "volume {} at {at}: bytes never written there: {found}",
                    self.id
                )));
            }
            at += content::CELL;
        }
        Ok(())
    }

    /// The power is cut, or the daemon dies: whatever is not durable may be lost.
    pub fn crash(&mut self) {
        self.ops.clear();
        self.reads.clear();
        self.flushes.clear();
        let moment = self.tick();
        for block in self.blocks.values_mut() {
            let mut states: Vec<Possible> = Vec::new();
            let past = block
                .past
                .iter()
                .filter(|past| past.crash)
                .map(|past| &past.possible);
            for possible in block.closure().iter().chain(past) {
                let state = possible.state.clone();
                if !states.iter().any(|other| other.state == state) {
                    states.push(Possible {
                        state,
                        applied: Vec::new(),
                    });
                }
            }
            *block = Block {
                now: states,
                in_flight: Vec::new(),
                past: Vec::new(),
                changed: moment,
            };
        }
    }

    /// Everything acknowledged is durable: a clean export has ended.
    pub fn all_durable(&mut self) {
        for block in self.blocks.values_mut() {
            block.past.clear();
        }
    }

    /// Ranges that were ever written, as far as blocks go, each as offset and length.
    pub fn touched(&self) -> Vec<(u64, u64)> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for number in self.blocks.keys() {
            let at = number * self.block_bytes;
            let length = self.block_bytes.min(self.size - at);
            match ranges.last_mut() {
                Some((start, len)) if *start + *len == at => *len += length,
                _ => ranges.push((at, length)),
            }
        }
        ranges
    }

    /// Blocks whose content is not known for certain.
    pub fn uncertain(&self) -> usize {
        self.blocks
            .values()
            .filter(|block| block.now.len() > 1)
            .count()
    }
}

fn prune(block: &mut Block, oldest_read: Option<Moment>) {
    block
        .past
        .retain(|past| past.crash || oldest_read.is_some_and(|begun| past.until >= begun));
}

/// Whether a block in `state` reads as `bytes` from its byte `from` on.
fn shows(volume: u16, start: u64, state: &State, from: u32, bytes: &[u8]) -> bool {
    let to = from + u32::try_from(bytes.len()).expect("a block is small");
    let mut begin = 0;
    for (end, version) in state {
        let (a, b) = (begin.max(from), (*end).min(to));
        if a < b {
            let part = &bytes[(a - from) as usize..(b - from) as usize];
            if !content::matches(volume, start + u64::from(a), *version, part) {
                return false;
            }
        }
        begin = *end;
    }
    true
}

fn violation(
    id: u16,
    start: u64,
    from: u32,
    bytes: &[u8],
    block: &Block,
    begun: Moment,
) -> Violation {
    let found = content::explain(start + u64::from(from), bytes);
    let name = |state: &State| {
        let mut begin = 0;
        let mut text = String::new();
        for (end, version) in state.iter().take(8) {
            text += &format!("[{begin}..{end} v{version}]");
            begin = *end;
        }
        text
    };
    let now: Vec<String> = block
        .closure()
        .iter()
        .take(8)
        .map(|p| name(&p.state))
        .collect();
    let past: Vec<String> = block
        .past
        .iter()
        .filter(|past| past.until >= begun)
        .take(8)
        .map(|past| name(&past.possible.state))
        .collect();
    let (now, past) = (now.join(" or "), past.join(" or "));
    Violation(format!(
        "volume {id} block at {start}, from byte {from}: read {found}; may be {now}; was lately {past}"
    ))
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
