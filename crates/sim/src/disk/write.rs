//! Writes and discards: from their submission to the cache, with the faults that befall them.
//!
//! Invariants: as in [`super`]; what a write leaves in the cache is whole units of what was submitted.

use std::rc::Rc;

use ashlar_device::Fault;
use ashlar_rt::{BLOCK, Buf, Slice};

use super::{Io, Pending, Refusal, SimDisk, State, UNIT, UNITS};
use crate::content::zeros;
use crate::rng::Rng;

/// Earlier contents of pages that are remembered, to be put back as a lost write would.
const REMEMBERED: usize = 256;

impl SimDisk {
    /// Registers a write as in flight. `data` are slices of whole pages.
    pub(crate) fn submit_write(&self, offset: u64, data: &[Slice]) -> u64 {
        let len = data.iter().map(|slice| slice.len()).sum();
        let page = self.page_of(offset, len);
        let mut pages = Vec::with_capacity(len / BLOCK);
        for slice in data {
            assert_eq!(slice.len() % BLOCK, 0, "each slice is whole blocks");
            pages.extend((0..slice.len() / BLOCK).map(|i| slice.cut(i * BLOCK..(i + 1) * BLOCK)));
        }
        self.writes.set(self.writes.get() + 1);
        let beat = |slice: &Slice| slice.starts_with(ashlar_format::beat::MAGIC);
        if data.first().is_some_and(beat) {
            self.beats.set(self.beats.get() + 1);
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
    pub(super) fn tell_of(&self, id: u64) {
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
        if state.pending[at].page + state.pending[at].pages.len() > self.visible.get() {
            state.pending.remove(at);
            return Err(Fault::Media);
        }
        if let Some(refusal) = self.refusal.get()
            && state.refuse(refusal, at)
        {
            return Err(refusal.fault());
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
            let page = state.rng.index(self.pages() - len + 1);
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
}

impl State {
    /// A write in flight reaches the cache.
    pub(super) fn complete(&mut self, at: usize) {
        self.counter += 1;
        let (page, id) = (self.pending[at].page, self.pending[at].id);
        self.pending[at].completed = Some(self.counter);
        for (number, content) in (page..).zip(&*self.pending[at].pages) {
            self.bad.remove(&number);
            if let Some(old) = self.current.set(number, content.clone()) {
                self.earlier.insert((id, number), old);
                if self.earlier.len() > REMEMBERED {
                    self.earlier.pop_first();
                }
            }
        }
    }

    /// Ends a write in flight that `refusal` refuses, if it does, with what it may keep in the cache.
    fn refuse(&mut self, refusal: Refusal, at: usize) -> bool {
        let pages = &self.pending[at].pages;
        let holds = |page| {
            self.current
                .get(page)
                .is_some_and(|content| !zeros(content))
        };
        let taken = match refusal {
            Refusal::ReadOnly | Refusal::Full => 0,
            Refusal::FullForNew => (self.pending[at].page..)
                .zip(&**pages)
                .take_while(|(page, _)| holds(*page))
                .count(),
        };
        if taken == pages.len() {
            return false;
        }
        if taken == 0 {
            self.pending.remove(at);
        } else {
            Rc::make_mut(&mut self.pending[at].pages).truncate(taken);
            self.complete(at);
        }
        true
    }

    /// A write in flight ends with only some of its units in the cache.
    pub(super) fn settle(&mut self, at: usize) {
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
}

/// The units of `content` to be kept, over those of `base`.
pub(super) fn mix_units(base: Option<&Slice>, content: &Slice, keep: [bool; UNITS]) -> Slice {
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

pub(super) fn garbage(rng: &mut Rng) -> Slice {
    let mut bytes = Buf::zeroed(BLOCK);
    for word in bytes.chunks_mut(8) {
        word.copy_from_slice(&rng.draw().to_le_bytes()[..word.len()]);
    }
    bytes.freeze()
}
