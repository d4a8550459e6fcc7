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
use ashlar_rt::{BLOCK, Slice};

mod damage;
mod faults;
mod image;
mod write;

pub use faults::{Cut, FaultRates, Refusal, Rot};
pub use image::Image;

use crate::pages::Pages;
use crate::rng::Rng;
use crate::trace::Trace;

/// What a power cut keeps or loses as a whole: 512 bytes.
pub const UNIT: usize = 512;
const UNITS: usize = BLOCK / UNIT;
/// No operation takes longer, in nanoseconds, however slow the disk is: the array would go on without the disk, as it
/// does without one that hangs.
const SLOWEST: u64 = 1_200_000_000;
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
    /// Another disk is in its place.
    Replaced,
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
    /// By write and page.
    earlier: BTreeMap<(u64, usize), Slice>,
    rng: Rng,
    rates: FaultRates,
}

/// A disk's content and its faults.
pub struct SimDisk {
    index: usize,
    pages: Cell<usize>,
    /// Fewer than `pages` while it says that it is smaller than it was.
    visible: Cell<usize>,
    /// Writes submitted so far.
    writes: Cell<u64>,
    /// Of them, those of a beat.
    beats: Cell<u64>,
    /// Flushes that did what they say so far.
    flushes: Cell<u64>,
    /// Operations in flight.
    in_flight: Cell<usize>,
    state: RefCell<State>,
    offline: Cell<bool>,
    refusal: Cell<Option<Refusal>>,
    slow: Cell<u64>,
    hang: Cell<u64>,
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
            pages: Cell::new(pages),
            visible: Cell::new(pages),
            writes: Cell::new(0),
            beats: Cell::new(0),
            flushes: Cell::new(0),
            in_flight: Cell::new(0),
            state: RefCell::new(state),
            offline: Cell::new(false),
            refusal: Cell::new(None),
            slow: Cell::new(1),
            hang: Cell::new(0),
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

    /// The capacity in bytes that it says it has.
    pub fn size_bytes(&self) -> u64 {
        (self.visible.get() * BLOCK) as u64
    }

    /// Its true capacity in pages.
    pub fn pages(&self) -> usize {
        self.pages.get()
    }

    /// How many writes were ever submitted.
    pub fn writes(&self) -> u64 {
        self.writes.get()
    }

    /// How many of them were more than a beat.
    pub fn work(&self) -> u64 {
        self.writes.get() - self.beats.get()
    }

    /// How many flushes ever ended, but for those that failed or lied.
    pub fn flushes(&self) -> u64 {
        self.flushes.get()
    }

    /// Whether operations are in flight, those included that nobody waits for any more.
    pub fn is_busy(&self) -> bool {
        self.in_flight.get() > 0
    }

    pub(crate) fn began(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
    }

    pub(crate) fn ended(&self) {
        self.in_flight.set(self.in_flight.get() - 1);
    }

    /// What is durable.
    pub fn durable(&self) -> Pages {
        self.state.borrow().durable.clone()
    }

    /// The history it writes to.
    pub fn trace(&self) -> &Rc<Trace> {
        &self.trace
    }

    /// Sets how often it misbehaves from now on.
    pub fn arm(&self, rates: FaultRates) {
        self.state.borrow_mut().rates = rates;
    }

    /// From now on it does what it is asked, as fast as ever.
    pub fn behave(&self) {
        self.arm(FaultRates::default());
        self.set_slow(1);
        self.set_hanging(0);
    }

    /// Makes every latency `factor` times as long.
    pub fn set_slow(&self, factor: u64) {
        self.slow.set(factor.max(1));
    }

    /// How many times as long every latency is.
    pub fn slowness(&self) -> u64 {
        self.slow.get()
    }

    /// Operations submitted from now on take so many nanoseconds longer: whoever waits for them gives up, and what
    /// they do happens all the same.
    pub fn set_hanging(&self, nanos: u64) {
        self.hang.set(nanos);
    }

    /// Takes the disk away; operations fail from now on.
    pub fn set_offline(&self) {
        self.offline.set(true);
    }

    /// Refuses writes from now on; `None`: takes them again.
    pub fn refuse(&self, refusal: Option<Refusal>) {
        self.refusal.set(refusal);
    }

    /// Which writes it refuses.
    pub fn refusal(&self) -> Option<Refusal> {
        self.refusal.get()
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
        let usual = rng.range(15_000, 90_000) * tail + bytes as u64 / 2;
        (usual * self.slow.get()).min(SLOWEST) + self.hang.get()
    }

    fn page_of(&self, offset: u64, len: usize) -> usize {
        let page = usize::try_from(offset).expect("inside the device") / BLOCK;
        assert!(
            offset.is_multiple_of(BLOCK as u64)
                && len.is_multiple_of(BLOCK)
                && page + len / BLOCK <= self.pages(),
            "the engine touches whole blocks inside disk {}: {offset}+{len} of {}",
            self.index,
            self.pages() * BLOCK
        );
        page
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
        if first + out.len() / BLOCK > self.visible.get() {
            return Err(Fault::Media);
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
            && let Some((_, old)) = state.earlier.iter().find(|((_, page), _)| *page == which)
        {
            self.trace.mark("fault: stale read");
            self.trace
                .line(|| format!("    disk {}: page {which} read as it was", self.index));
            out[(which - first) * BLOCK..(which - first + 1) * BLOCK].copy_from_slice(old);
        }
        if !out.is_empty() && state.rng.rare(rates.misdirected_read) {
            let other = state.rng.index(self.pages());
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
        self.flushes.set(self.flushes.get() + 1);
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

    /// What is on it, for whoever reads it while no array does; with `durable` only what a power cut
    /// would leave of it for certain.
    pub fn at_rest(&self, durable: bool) -> Image {
        let state = self.state.borrow();
        let pages = if durable {
            &state.durable
        } else {
            &state.current
        };
        Image::new(pages.clone(), state.bad.clone(), self.visible.get())
    }
}
