//! What power cuts, the death of the daemon, and damage at rest make of a disk's content.
//!
//! Invariants: as in [`super`]; whatever changes durable content here changes what reads see as well.

use ashlar_rt::{BLOCK, Buf, Slice};

use super::write::{garbage, mix_units};
use super::{Cut, Io, Pending, Rot, SimDisk, State, UNIT, UNITS};
use crate::pages::Pages;
use crate::rng::Rng;

/// How the structures begin that say what they are: superblocks, roots, slot tables, headers, records.
const MAGIC: &[u8] = b"ASH";
/// So often a page of these is looked for.
const AIMED: usize = 8;

impl SimDisk {
    /// Cuts the power: of what was not flushed, `cut` decides what remains; everything volatile is
    /// gone.
    pub fn power_cut(&self, cut: Cut) {
        self.cut(cut, false);
    }

    /// As [`SimDisk::power_cut`]; with `keep_in_flight`, only completed writes are decided.
    pub(super) fn cut(&self, cut: Cut, keep_in_flight: bool) {
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
                match state.earlier.iter().nth(state.rng.index(count)) {
                    Some(((_, page), content)) => (*page, content.clone()),
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

    /// Up to so many pages from a written one on become noise, or zeros: whatever lies there, all at once.
    pub fn rot_region(&self, most: usize, zeros: bool) -> bool {
        let state = &mut *self.state.borrow_mut();
        let Some((first, _)) = state.any_page() else {
            return false;
        };
        let end = self.pages().min(first + 1 + state.rng.index(most));
        for page in first..end {
            let new = match zeros {
                true => Slice::zeroed(BLOCK),
                false => garbage(&mut state.rng),
            };
            self.becomes(state, page, &new, 81);
        }
        self.trace
            .line(|| format!("    disk {}: pages {first}..{end} damaged", self.index));
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

    /// Puts a page of another disk over one of its own, as a write to the wrong disk would: where it lay there, or
    /// anywhere.
    pub fn rot_foreign(&self, at: Option<usize>, content: &Slice) -> bool {
        let state = &mut *self.state.borrow_mut();
        let Some((any, _)) = state.any_page() else {
            return false;
        };
        let page = at.filter(|page| *page < self.pages()).unwrap_or(any);
        self.becomes(state, page, content, 78);
        self.trace
            .line(|| format!("    disk {}: a foreign page at {page}", self.index));
        true
    }

    /// A page that was written, at random, and what it holds; `None` if none was.
    pub fn any_page(&self, rng: &mut Rng) -> Option<(usize, Slice)> {
        self.state.borrow().durable.any_written(rng)
    }

    /// Another disk is put in its place: `content`, an old copy of this one, durably.
    pub fn replace_content(&self, content: &Pages) {
        let state = &mut *self.state.borrow_mut();
        let mut content = content.clone();
        content.grow(self.pages()); // it may have grown since
        state.durable = content.clone();
        state.current = content;
        state.pending.clear();
        state.earlier.clear();
        state.bad.clear();
        self.refusal.set(None);
        self.trace.mix(&[self.index as u64, 79]);
        self.tell(|| Io::Replaced);
    }

    /// It has so many pages more from now on.
    pub fn grow(&self, more: usize) {
        let pages = self.pages() + more;
        let state = &mut *self.state.borrow_mut();
        state.durable.grow(pages);
        state.current.grow(pages);
        self.pages.set(pages);
        self.visible.set(pages);
        self.trace.mix(&[self.index as u64, pages as u64, 82]);
    }

    /// Says from now on that it has only `pages` pages, and fails what lies beyond; `None`: all of them
    /// again, with what they held.
    pub fn shrink(&self, pages: Option<usize>) {
        let pages = pages.map_or(self.pages(), |few| few.min(self.pages()));
        self.visible.set(pages);
        self.trace.mix(&[self.index as u64, pages as u64, 80]);
    }
}

impl State {
    /// A page that was written and what it durably holds, at random, every other time one of those that say what they
    /// are, which are few; `None` if none was written.
    fn any_page(&mut self) -> Option<(usize, Slice)> {
        let mut found = self.durable.any_written(&mut self.rng)?;
        if self.rng.chance(50) {
            for _ in 0..AIMED {
                if found.1.starts_with(MAGIC) {
                    break;
                }
                found = self.durable.any_written(&mut self.rng)?;
            }
        }
        Some(found)
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
