//! A simulated disk: what is durable, what is only in its volatile cache, and what a power cut
//! makes of it. It is shared, lives outside every executor, and so survives a crash.
//!
//! Invariants:
//! - `current` is what reads see: durable content with every completed write over it, in the order
//!   of completion. They differ only in pages that a write in `pending` touches.
//! - A write leaves `pending` only when a flush submitted after its completion completes, or when
//!   the power is cut; until then any subset of its 512-byte units may be what remains.
//! - A disk draws from its own generator: its faults do not depend on other disks.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ashlar_device::Fault;
use ashlar_rt::{BLOCK, Buf, Slice};

use crate::pages::Pages;
use crate::rng::Rng;
use crate::trace::Trace;

/// What a power cut keeps or loses as a whole: 512 bytes.
pub const UNIT: usize = 512;
const UNITS: usize = BLOCK / UNIT;
/// Earlier contents of pages that are remembered, to be put back as a lost write would.
const REMEMBERED: usize = 64;

/// How often, in 65,536 operations, a disk misbehaves while its faults are armed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultRates {
    /// A write reported done that changed nothing.
    pub lost_write: u32,
    /// A write that landed elsewhere on the disk.
    pub misdirected_write: u32,
    /// A write that failed, its units partly written.
    pub write_error: u32,
    /// A read that failed and goes on failing until the page is rewritten.
    pub latent_error: u32,
    /// A flush that failed, with some of the cache gone.
    pub flush_error: u32,
    /// A read whose bytes were changed on the way.
    pub read_corruption: u32,
    /// A flush reported done that made nothing durable.
    pub lying_flush: u32,
    /// A read that gave a page as it was before its last write.
    pub stale_read: u32,
    /// A read that gave another page instead of one of those asked for.
    pub misdirected_read: u32,
    /// A write that is done once more, some time later.
    pub duplicate_write: u32,
    /// A write that failed, and lands some time later all the same.
    pub late_write: u32,
}

/// Something that happened to a disk's content, for whoever records it.
#[derive(Clone, Debug)]
pub enum Io {
    /// A write, or a discard that changes something, was submitted.
    Submit {
        /// Its number.
        id: u64,
        /// The first page.
        page: usize,
        /// What goes there.
        pages: Rc<Vec<Slice>>,
    },
    /// It is in the cache; where and what may be another than was submitted.
    Done {
        /// Its number.
        id: u64,
        /// When, in the disk's own counting.
        at: u64,
        /// The first page.
        page: usize,
        /// What went there.
        pages: Rc<Vec<Slice>>,
    },
    /// It is forgotten.
    Gone {
        /// Its number.
        id: u64,
    },
    /// A flush ended: what was in the cache when it was submitted is durable.
    Flush {
        /// When it was submitted, in the disk's own counting.
        submitted: u64,
    },
    /// A page changed at rest.
    Rot {
        /// Which.
        page: usize,
        /// What it holds now.
        content: Slice,
    },
}

/// Hears of everything that happens to the content of disks: the disk's number, and what; called
/// before a submission or a flush counts.
pub type Recorder = Rc<dyn Fn(usize, Io)>;

/// A write that a power cut may still undo.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) id: u64,
    pub(crate) page: usize,
    pub(crate) pages: Rc<Vec<Slice>>,
    /// When it completed, in the disk's own counting; `None` while in flight.
    pub(crate) completed: Option<u64>,
    /// It ended without an answer: whoever still waits for one hears of a failure.
    unanswered: bool,
}

impl Pending {
    /// A write that has just been submitted.
    pub(crate) fn submitted(id: u64, page: usize, pages: Rc<Vec<Slice>>) -> Pending {
        Pending {
            id,
            page,
            pages,
            completed: None,
            unanswered: false,
        }
    }
}

struct State {
    durable: Pages,
    current: Pages,
    pending: Vec<Pending>,
    counter: u64,
    bad: BTreeSet<usize>,
    earlier: BTreeMap<u64, (usize, Slice)>,
    rng: Rng,
    rates: FaultRates,
}

/// A disk's content and its faults.
pub struct SimDisk {
    index: usize,
    pages: usize,
    state: RefCell<State>,
    offline: Cell<bool>,
    slow: Cell<u64>,
    failed_reads: Cell<u64>,
    trace: Rc<Trace>,
    recorder: RefCell<Option<Recorder>>,
}

impl std::fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimDisk")
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}

/// How a power cut treats what was not flushed; see [`SimDisk::power_cut`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Nothing unflushed remains.
    None,
    /// Everything does.
    All,
    /// The units up to some point of the order of submission.
    Prefix,
    /// Each unit with this chance in 100.
    Units(u64),
    /// Each write, whole, with this chance in 100.
    Writes(u64),
    /// All units but one.
    AllButOne,
    /// One unit.
    OnlyOne,
    /// As `Units(50)`, and some of the units are garbage.
    Garbage,
}

impl Cut {
    /// A random way.
    pub fn random(rng: &mut Rng) -> Cut {
        match rng.below(12) {
            0 | 1 => Cut::None,
            2 | 3 => Cut::All,
            4 => Cut::Prefix,
            5 => Cut::Units(10),
            6 => Cut::Units(50),
            7 => Cut::Units(90),
            8 => Cut::Writes(50),
            9 => Cut::AllButOne,
            10 => Cut::OnlyOne,
            _ => Cut::Garbage,
        }
    }
}

impl SimDisk {
    /// An empty disk of `size_bytes`, a multiple of 4096.
    pub fn new(index: usize, size_bytes: u64, seed: u64, trace: Rc<Trace>) -> Rc<SimDisk> {
        let pages = usize::try_from(size_bytes).expect("simulated disks are small") / BLOCK;
        SimDisk::with_pages(index, Pages::new(pages), seed, trace)
    }

    /// A disk that holds `content`, durably.
    pub fn with_pages(index: usize, content: Pages, seed: u64, trace: Rc<Trace>) -> Rc<SimDisk> {
        let pages = content.len();
        let state = State {
            durable: content.clone(),
            current: content,
            pending: Vec::new(),
            counter: 0,
            bad: BTreeSet::new(),
            earlier: BTreeMap::new(),
            rng: Rng::new(seed ^ (index as u64 + 1) << 32),
            rates: FaultRates::default(),
        };
        Rc::new(SimDisk {
            index,
            pages,
            state: RefCell::new(state),
            offline: Cell::new(false),
            slow: Cell::new(1),
            failed_reads: Cell::new(0),
            trace,
            recorder: RefCell::default(),
        })
    }

    /// Tells `recorder` of everything from now on.
    pub fn record(&self, recorder: Option<Recorder>) {
        *self.recorder.borrow_mut() = recorder;
    }

    fn tell(&self, io: impl FnOnce() -> Io) {
        let recorder = self.recorder.borrow().clone();
        if let Some(recorder) = recorder {
            recorder(self.index, io());
        }
    }

    /// What is durable, and what a power cut may still undo.
    pub(crate) fn image(&self) -> (Pages, Vec<Pending>) {
        let state = self.state.borrow();
        (state.durable.clone(), state.pending.clone())
    }

    /// Its number.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Its capacity in bytes.
    pub fn size_bytes(&self) -> u64 {
        (self.pages * BLOCK) as u64
    }

    /// The history it writes to.
    pub fn trace(&self) -> &Rc<Trace> {
        &self.trace
    }

    /// Sets how often it misbehaves from now on.
    pub fn arm(&self, rates: FaultRates) {
        self.state.borrow_mut().rates = rates;
    }

    /// Makes every latency `factor` times as long.
    pub fn set_slow(&self, factor: u64) {
        self.slow.set(factor.max(1));
    }

    /// Takes the disk away; operations fail from now on.
    pub fn set_offline(&self) {
        self.offline.set(true);
    }

    /// Whether it is away.
    pub fn is_offline(&self) -> bool {
        self.offline.get()
    }

    /// Brings the disk back. What was in flight has happened, partly or not at all; after a `reset`
    /// its volatile cache is gone as in a power cut.
    pub fn set_online(&self, reset: bool) {
        if reset {
            let cut = Cut::random(&mut self.state.borrow_mut().rng);
            self.power_cut(cut);
        } else {
            self.settle_in_flight();
        }
        self.offline.set(false);
    }

    /// A latency for the next operation, in nanoseconds.
    pub(crate) fn latency(&self, bytes: usize) -> u64 {
        let rng = &mut self.state.borrow_mut().rng;
        let tail = if rng.below(24) == 0 {
            rng.range(2, 30)
        } else {
            1
        };
        (rng.range(15_000, 90_000) * tail + bytes as u64 / 2) * self.slow.get()
    }

    fn page_of(&self, offset: u64, len: usize) -> usize {
        let page = usize::try_from(offset).expect("inside the device") / BLOCK;
        assert!(
            offset.is_multiple_of(BLOCK as u64)
                && len.is_multiple_of(BLOCK)
                && page + len / BLOCK <= self.pages,
            "the engine touches whole blocks inside disk {}: {offset}+{len} of {}",
            self.index,
            self.size_bytes()
        );
        page
    }

    /// Registers a write as in flight. `data` are slices of whole pages.
    pub(crate) fn submit_write(&self, offset: u64, data: &[Slice]) -> u64 {
        let len = data.iter().map(|slice| slice.len()).sum();
        let page = self.page_of(offset, len);
        let mut pages = Vec::with_capacity(len / BLOCK);
        for slice in data {
            assert_eq!(slice.len() % BLOCK, 0, "each slice is whole blocks");
            pages.extend((0..slice.len() / BLOCK).map(|i| slice.cut(i * BLOCK..(i + 1) * BLOCK)));
        }
        let pages = Rc::new(pages);
        let next = self.state.borrow().counter + 1;
        self.tell(|| Io::Submit {
            id: next,
            page,
            pages: pages.clone(),
        });
        self.land_late();
        let state = &mut *self.state.borrow_mut();
        state.counter += 1;
        let id = state.counter;
        state.pending.push(Pending::submitted(id, page, pages));
        state.counter
    }

    /// A write that was answered long ago, or failed, may land now.
    fn land_late(&self) {
        let state = &mut *self.state.borrow_mut();
        let late = |p: &Pending| p.unanswered && p.completed.is_none();
        if let Some(at) = state.pending.iter().position(late)
            && state.rng.below(8) == 0
        {
            self.trace.mark("fault: a late write lands");
            let id = state.pending[at].id;
            self.trace
                .line(|| format!("    disk {}: LATE WRITE #{id} lands", self.index));
            state.complete(at);
        }
    }

    /// Registers a discard: afterwards the range reads as zeros, garbage or what it was.
    pub(crate) fn submit_discard(&self, offset: u64, length: u64) -> Option<u64> {
        let first = offset.div_ceil(BLOCK as u64);
        let count = ((offset + length) / BLOCK as u64).saturating_sub(first);
        let kind = self.state.borrow_mut().rng.below(3);
        let data = match kind {
            _ if count == 0 => return None,
            0 => return None,
            1 => Slice::zeroed(BLOCK),
            _ => garbage(&mut self.state.borrow_mut().rng),
        };
        let count = usize::try_from(count).expect("small");
        Some(self.submit_write(first * BLOCK as u64, &vec![data; count]))
    }

    /// Ends a write: its result, with whatever fault is due.
    pub(crate) fn complete_write(&self, id: u64) -> Result<(), Fault> {
        let result = self.end_write(id);
        self.tell_of(id);
        result
    }

    /// Tells of a write that is no longer in flight.
    fn tell_of(&self, id: u64) {
        let done = {
            let state = self.state.borrow();
            match state.pending.iter().find(|p| p.id == id) {
                Some(pending) => pending.completed.map(|at| Io::Done {
                    id,
                    at,
                    page: pending.page,
                    pages: pending.pages.clone(),
                }),
                None => Some(Io::Gone { id }),
            }
        };
        if let Some(io) = done {
            self.tell(|| io);
        }
    }

    fn end_write(&self, id: u64) -> Result<(), Fault> {
        let state = &mut *self.state.borrow_mut();
        let Some(at) = state.pending.iter().position(|p| p.id == id) else {
            return Err(Fault::Offline); // the power was cut in between
        };
        if self.offline.get() || state.pending[at].unanswered {
            return Err(Fault::Offline);
        }
        let rates = state.rates;
        if state.rng.rare(rates.lost_write) {
            state.pending.remove(at);
            self.trace.mark("fault: lost write");
            self.trace
                .line(|| format!("    disk {}: LOST WRITE #{id}", self.index));
            return Ok(());
        }
        if state.rng.rare(rates.misdirected_write) {
            let len = state.pending[at].pages.len();
            let page = state.rng.index(self.pages - len + 1);
            self.trace.mark("fault: misdirected write");
            self.trace.line(|| {
                let from = state.pending[at].page;
                format!(
                    "    disk {}: MISDIRECTED #{id} from page {from} to {page}",
                    self.index
                )
            });
            state.pending[at].page = page;
        }
        if state.rng.rare(rates.late_write) {
            self.trace.mark("fault: write fails and lands late");
            self.trace
                .line(|| format!("    disk {}: WRITE #{id} fails, and lands late", self.index));
            state.pending[at].unanswered = true;
            return Err(Fault::Timeout);
        }
        if state.rng.rare(rates.duplicate_write) {
            self.trace.mark("fault: duplicated write");
            self.trace
                .line(|| format!("    disk {}: WRITE #{id} will be done twice", self.index));
            state.counter += 1;
            let mut again = state.pending[at].clone();
            (again.id, again.unanswered) = (state.counter, true);
            state.pending.push(again);
        }
        if state.rng.rare(rates.write_error) {
            self.trace.mark("fault: write error");
            self.trace
                .line(|| format!("    disk {}: WRITE ERROR #{id}", self.index));
            state.settle(at);
            return Err(Fault::Media);
        }
        state.complete(at);
        Ok(())
    }

    /// Reads into `out`.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Fault> {
        let result = self.read_pages(offset, out);
        if result.is_err() {
            self.failed_reads.set(self.failed_reads.get() + 1);
        }
        result
    }

    /// Reads that failed since the last call of [`SimDisk::forget_failed_reads`].
    pub fn failed_reads(&self) -> u64 {
        self.failed_reads.get()
    }

    /// Counts failed reads from 0 again.
    pub fn forget_failed_reads(&self) {
        self.failed_reads.set(0);
    }

    fn read_pages(&self, offset: u64, out: &mut [u8]) -> Result<(), Fault> {
        let first = self.page_of(offset, out.len());
        if self.offline.get() {
            return Err(Fault::Offline);
        }
        let state = &mut *self.state.borrow_mut();
        let rates = state.rates;
        if state.rng.rare(rates.latent_error) {
            let page = first + state.rng.index(out.len() / BLOCK);
            self.trace.mark("fault: latent error");
            self.trace
                .line(|| format!("    disk {}: page {page} turns unreadable", self.index));
            state.bad.insert(page);
        }
        if state
            .bad
            .range(first..first + out.len() / BLOCK)
            .next()
            .is_some()
        {
            return Err(Fault::Media);
        }
        for (page, bytes) in (first..).zip(out.chunks_mut(BLOCK)) {
            match state.current.get(page) {
                Some(content) => bytes.copy_from_slice(content),
                None => bytes.fill(0),
            }
        }
        let which = first + state.rng.index(out.len() / BLOCK);
        if state.rng.rare(rates.stale_read)
            && let Some((_, old)) = state.earlier.values().find(|(page, _)| *page == which)
        {
            self.trace.mark("fault: stale read");
            self.trace
                .line(|| format!("    disk {}: page {which} read as it was", self.index));
            out[(which - first) * BLOCK..(which - first + 1) * BLOCK].copy_from_slice(old);
        }
        if !out.is_empty() && state.rng.rare(rates.misdirected_read) {
            let other = state.rng.index(self.pages);
            self.trace.mark("fault: misdirected read");
            self.trace
                .line(|| format!("    disk {}: page {other} read for {which}", self.index));
            let bytes = &mut out[(which - first) * BLOCK..(which - first + 1) * BLOCK];
            match state.current.get(other) {
                Some(content) => bytes.copy_from_slice(content),
                None => bytes.fill(0),
            }
        }
        if !out.is_empty() && state.rng.rare(rates.read_corruption) {
            let at = state.rng.index(out.len());
            self.trace.mark("fault: read corruption");
            self.trace
                .line(|| format!("    disk {}: read corrupted at +{at}", self.index));
            out[at] ^= 1 << state.rng.below(8);
        }
        Ok(())
    }

    /// Begins a flush: what has completed by now will be durable when it ends.
    pub(crate) fn submit_flush(&self) -> u64 {
        let state = &mut *self.state.borrow_mut();
        state.counter += 1;
        state.counter
    }

    /// Ends the flush that [`SimDisk::submit_flush`] began.
    pub(crate) fn complete_flush(&self, submitted: u64) -> Result<(), Fault> {
        if self.offline.get() {
            return Err(Fault::Offline);
        }
        let rates = self.state.borrow().rates;
        if self.state.borrow_mut().rng.rare(rates.lying_flush) {
            self.trace.mark("fault: flush that lies");
            self.trace
                .line(|| format!("    disk {}: FLUSH LIES", self.index));
            return Ok(());
        }
        if self.state.borrow_mut().rng.rare(rates.flush_error) {
            self.trace.mark("fault: flush error");
            self.trace
                .line(|| format!("    disk {}: FLUSH ERROR, cache lost", self.index));
            let cut = Cut::random(&mut self.state.borrow_mut().rng);
            self.cut(cut, true);
            return Err(Fault::Media);
        }
        self.tell(|| Io::Flush { submitted });
        let state = &mut *self.state.borrow_mut();
        let mut done: Vec<Pending> = Vec::new();
        let mut rest = Vec::with_capacity(state.pending.len());
        for pending in state.pending.drain(..) {
            match pending.completed {
                Some(at) if at < submitted => done.push(pending),
                _ => rest.push(pending),
            }
        }
        state.pending = rest;
        done.sort_by_key(|pending| pending.completed);
        for pending in done {
            for (page, content) in (pending.page..).zip(&*pending.pages) {
                state.durable.set(page, content.clone());
            }
        }
        Ok(())
    }

    /// Cuts the power: of what was not flushed, `cut` decides what remains; everything volatile is
    /// gone.
    pub fn power_cut(&self, cut: Cut) {
        self.cut(cut, false);
    }

    /// As [`SimDisk::power_cut`]; with `keep_in_flight`, only completed writes are decided.
    fn cut(&self, cut: Cut, keep_in_flight: bool) {
        let state = &mut *self.state.borrow_mut();
        let (kept, mut lost): (Vec<Pending>, Vec<Pending>) = std::mem::take(&mut state.pending)
            .into_iter()
            .partition(|p| keep_in_flight && p.completed.is_none());
        state.pending = kept;
        // Without a flush between them, writes reach the medium in any order.
        if state.rng.chance(50) {
            let order = state.rng.shuffled(lost.len());
            let mut slots: Vec<Option<Pending>> = lost.into_iter().map(Some).collect();
            lost = order.into_iter().filter_map(|i| slots[i].take()).collect();
        } else {
            lost.sort_by_key(|p| p.completed.unwrap_or(u64::MAX));
        }
        let units: usize = lost.iter().map(|p| p.pages.len() * UNITS).sum();
        let edge = state.rng.index(units.max(1));
        let mut number = 0;
        let mut touched = Vec::new();
        for pending in lost {
            let whole = match cut {
                Cut::Writes(percent) => state.rng.chance(percent),
                _ => false,
            };
            for (page, content) in (pending.page..).zip(&*pending.pages) {
                let keep: [bool; UNITS] = std::array::from_fn(|_| {
                    let at = number;
                    number += 1;
                    match cut {
                        Cut::None => false,
                        Cut::All => true,
                        Cut::Prefix => at < edge,
                        Cut::Units(percent) => state.rng.chance(percent),
                        Cut::Writes(_) => whole,
                        Cut::AllButOne => at != edge,
                        Cut::OnlyOne => at == edge,
                        Cut::Garbage => state.rng.chance(50),
                    }
                });
                let spoil = cut == Cut::Garbage && state.rng.below(4) == 0;
                state.apply_units(page, content, keep, spoil);
                touched.push(page);
            }
        }
        for page in touched {
            state.current.copy_page(page, &state.durable);
        }
        if !keep_in_flight {
            self.trace
                .mix(&[self.index as u64, units as u64, edge as u64]);
            self.trace.line(|| {
                format!(
                    "    disk {}: power cut, {cut:?} of {units} unflushed units",
                    self.index
                )
            });
        }
    }

    /// The daemon died but the disk did not: what was in flight has happened, partly or not at
    /// all; the cache lives on.
    pub fn settle_in_flight(&self) {
        let in_flight: Vec<u64> = {
            let state = self.state.borrow();
            let pending = state.pending.iter().filter(|p| p.completed.is_none());
            pending.map(|p| p.id).collect()
        };
        self.settle_all();
        in_flight.into_iter().for_each(|id| self.tell_of(id));
    }

    fn settle_all(&self) {
        let state = &mut *self.state.borrow_mut();
        let mut at = 0;
        while at < state.pending.len() {
            if state.pending[at].completed.is_none() {
                if state.rng.chance(20) {
                    state.pending.remove(at);
                    continue;
                }
                state.settle(at);
                state.pending[at].unanswered = true;
            }
            at += 1;
        }
    }

    /// Damages one page at rest; false if the disk holds nothing.
    pub fn rot(&self, kind: Rot) -> bool {
        let state = &mut *self.state.borrow_mut();
        let Some((page, old)) = state.any_page() else {
            return false;
        };
        let (page, new) = match kind {
            Rot::Bit => {
                let mut bytes = Buf::copy_of(&old);
                let at = state.rng.index(BLOCK);
                bytes[at] ^= 1 << state.rng.below(8);
                (page, bytes.freeze())
            }
            Rot::Garbage => (page, garbage(&mut state.rng)),
            Rot::Zeros => (page, Slice::zeroed(BLOCK)),
            Rot::OtherPage => (page, state.any_page().map_or(old, |other| other.1)),
            Rot::Earlier => {
                let count = state.earlier.len();
                match state.earlier.values().nth(state.rng.index(count)) {
                    Some((page, content)) => (*page, content.clone()),
                    None => return false,
                }
            }
            Rot::Unreadable => {
                state.bad.insert(page);
                (page, old)
            }
        };
        self.becomes(state, page, &new, 77);
        self.trace
            .line(|| format!("    disk {}: {kind:?} damage at page {page}", self.index));
        true
    }

    /// Page `page` holds `content` from now on, durably, though nobody wrote it.
    fn becomes(&self, state: &mut State, page: usize, content: &Slice, kind: u64) {
        state.durable.set(page, content.clone());
        state.current.set(page, content.clone());
        self.tell(|| Io::Rot {
            page,
            content: content.clone(),
        });
        self.trace.mix(&[self.index as u64, page as u64, kind]);
    }

    /// Puts a page of another disk over one of its own, as a write to the wrong disk would.
    pub fn rot_foreign(&self, content: &Slice) -> bool {
        let state = &mut *self.state.borrow_mut();
        let Some((page, _)) = state.any_page() else {
            return false;
        };
        self.becomes(state, page, content, 78);
        self.trace
            .line(|| format!("    disk {}: a foreign page at {page}", self.index));
        true
    }

    /// A page that was written, at random; `None` if none was.
    pub fn any_page(&self, rng: &mut Rng) -> Option<Slice> {
        let pages = &self.state.borrow().durable;
        let written = pages.written();
        let page = (written > 0).then(|| pages.nth_written(rng.index(written)))?;
        pages.get(page?).cloned()
    }

    /// What a read of page `page` would give now, faults aside.
    pub fn peek(&self, page: usize) -> Option<Slice> {
        self.state.borrow().current.get(page).cloned()
    }

    /// How many writes have been submitted and not answered.
    pub fn in_flight(&self) -> usize {
        let state = self.state.borrow();
        let open = |w: &&Pending| w.completed.is_none() && !w.unanswered;
        state.pending.iter().filter(open).count()
    }

    /// How many writes a power cut could still undo.
    pub fn unflushed(&self) -> usize {
        self.state.borrow().pending.len()
    }
}

/// Damage at rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rot {
    /// One bit.
    Bit,
    /// A whole page of noise.
    Garbage,
    /// A whole page of zeros.
    Zeros,
    /// The content of another page of this disk.
    OtherPage,
    /// What the page held before: a lost write, seen later.
    Earlier,
    /// It cannot be read until it is rewritten.
    Unreadable,
}

impl State {
    /// A page that was written and what it durably holds, at random; `None` if none was.
    fn any_page(&mut self) -> Option<(usize, Slice)> {
        let written = self.durable.written();
        if written == 0 {
            return None;
        }
        let page = self.durable.nth_written(self.rng.index(written))?;
        Some((page, self.durable.get(page)?.clone()))
    }

    /// A write in flight reaches the cache.
    fn complete(&mut self, at: usize) {
        self.counter += 1;
        let (page, id) = (self.pending[at].page, self.pending[at].id);
        self.pending[at].completed = Some(self.counter);
        for (number, content) in (page..).zip(&*self.pending[at].pages) {
            self.bad.remove(&number);
            if let Some(old) = self.current.set(number, content.clone()) {
                self.earlier.insert(id, (number, old));
                if self.earlier.len() > REMEMBERED {
                    self.earlier.pop_first();
                }
            }
        }
    }

    /// A write in flight ends with only some of its units in the cache.
    fn settle(&mut self, at: usize) {
        let percent = self.rng.pick(&[0, 50, 100]);
        for i in 0..self.pending[at].pages.len() {
            let number = self.pending[at].page + i;
            let keep: [bool; UNITS] = std::array::from_fn(|_| self.rng.chance(percent));
            let base = self.current.get(number);
            let mixed = mix_units(base, &self.pending[at].pages[i], keep);
            Rc::make_mut(&mut self.pending[at].pages)[i] = mixed;
        }
        self.complete(at);
    }

    fn apply_units(&mut self, page: usize, content: &Slice, keep: [bool; UNITS], spoil: bool) {
        if keep == [false; UNITS] {
            return;
        }
        let mut mixed = mix_units(self.durable.get(page), content, keep);
        if spoil {
            let unit = (0..UNITS).find(|unit| keep[*unit]).unwrap_or(0);
            let mut bytes = Buf::copy_of(&mixed);
            for word in bytes[unit * UNIT..(unit + 1) * UNIT].chunks_mut(8) {
                word.copy_from_slice(&self.rng.draw().to_le_bytes()[..word.len()]);
            }
            mixed = bytes.freeze();
        }
        self.bad.remove(&page);
        self.durable.set(page, mixed);
    }
}

fn mix_units(base: Option<&Slice>, content: &Slice, keep: [bool; UNITS]) -> Slice {
    if keep == [true; UNITS] {
        return content.clone();
    }
    let mut bytes = match base {
        Some(base) => Buf::copy_of(base),
        None => Buf::zeroed(BLOCK),
    };
    for (unit, _) in keep.iter().enumerate().filter(|(_, keep)| **keep) {
        let range = unit * UNIT..(unit + 1) * UNIT;
        bytes[range.clone()].copy_from_slice(&content[range]);
    }
    bytes.freeze()
}

fn garbage(rng: &mut Rng) -> Slice {
    let mut bytes = Buf::zeroed(BLOCK);
    for word in bytes.chunks_mut(8) {
        word.copy_from_slice(&rng.draw().to_le_bytes()[..word.len()]);
    }
    bytes.freeze()
}
