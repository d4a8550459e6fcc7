//! Trim: the devices are told to discard every slot that is free.
//!
//! Invariants:
//! - A slot that is being discarded is nobody's, in its device's table and in the ledger, until the device has ended
//!   the discard, however late that is.
//! - One slot of a device at a time, and only where clients could still be given a segment in each group: nobody waits
//!   for a trim who would not have waited without it.
//! - One trim of an array at a time.
//!
//! Crash argument: only a slot that is free is discarded, and the list of free slots has one for three reasons. A root
//! is durable that frees it, or whose tables do not name it any more (R3, `home/checkpoint.rs`). Or an import has found
//! nothing in it that counts, as every import before the next root finds again (`settle_segments`). Or it was taken
//! from the list and comes back to it, and no record names it (`give_column`, and here). So neither the durable root
//! nor the journal reaches anything in it. A discard loses no more than a new segment does, which may be given this
//! slot and writes its header at once, before any record tells of it. A crash in the middle of a discard leaves the
//! slot as free as it was, with any content.
//!
//! While the array runs a late discard could destroy what is written after it: so the slot leaves the list before its
//! discard begins, and comes back after that has ended. A device that leaves meanwhile is taken in again only when no
//! discard of its slots is under way ([`Home::nothing_under_way`]): the slot that comes back is its own.

use std::cell::Cell;
use std::rc::Rc;

use ashlar_device::Fault;
use ashlar_rt::{Gate, MILLISECOND, Nanos, join_all};

use crate::error::Error;
use crate::home::Home;
use crate::members::{Discard, Member};

/// While no slot may be taken it is tried again after such a time, so often before the rest is left.
const PAUSE: Nanos = 500 * MILLISECOND;
const TRIES: u32 = 60;

/// Why a device was not told to discard all of its free slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// It cannot discard a slot.
    NoDiscard,
    /// It failed to, or was too long at one.
    Fault(Fault),
    /// Clients need what is free, or writes are paused.
    Space,
    /// It left, or the array is being exported or has stopped.
    Ended,
}

/// What a trim has done on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trimmed {
    /// Its index.
    pub index: u16,
    /// Where it is.
    pub path: String,
    /// Bytes that it has discarded.
    pub discarded_bytes: u64,
    /// Why some of its free slots are left, if any are.
    pub left: Option<Left>,
}

/// The trim under way, if there is one.
#[derive(Debug, Default)]
pub struct Trims {
    under_way: Cell<bool>,
    ended: Gate,
}

/// A trim, until it is dropped.
struct UnderWay<'a>(&'a Trims);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.set(false);
        self.0.ended.open();
    }
}

impl Trims {
    fn begin(&self) -> Result<UnderWay<'_>, Error> {
        match self.under_way.replace(true) {
            true => Err(Error::Trimming),
            false => Ok(UnderWay(self)),
        }
    }
}

impl Home {
    /// Waits until no trim is under way.
    pub(crate) async fn trim_has_ended(&self) {
        let trims = &self.space.trims;
        trims.ended.until(|| !trims.under_way.get()).await;
    }

    /// Tells all devices to discard the slots that are free now, until there are none left or `stops` says so.
    pub(crate) async fn trim(
        self: &Rc<Self>,
        stops: impl Fn() -> bool + Clone + 'static,
    ) -> Result<Vec<Trimmed>, Error> {
        let _one = self.space.trims.begin()?;
        let in_use = self.core.members.iter().filter(|m| m.takes_slots());
        let trim = |member: &Member| {
            let (home, stops, index) = (self.clone(), stops.clone(), member.index);
            let trim = async move { home.trim_member(index, stops).await };
            self.core.rt.spawn(trim)
        };
        let trims: Vec<_> = in_use.map(trim).collect();
        Ok(join_all(trims).await)
    }

    async fn trim_member(self: Rc<Self>, index: u16, stops: impl Fn() -> bool) -> Trimmed {
        let member = self.core.member(index);
        let mut trimmed = Trimmed {
            index,
            path: member.path(),
            discarded_bytes: 0,
            left: None,
        };
        if !member.discards() {
            trimmed.left = Some(Left::NoDiscard);
            return trimmed;
        }
        let (mut next, mut tries) = (0, 0);
        while let Some(slot) = member.slots.free_from(next) {
            if stops() || !member.takes_slots() {
                trimmed.left = Some(Left::Ended);
                break;
            }
            if !self.lend(member, slot) {
                tries += 1;
                if tries > TRIES {
                    trimmed.left = Some(Left::Space);
                    break;
                }
                self.core.rt.sleep(PAUSE).await;
                continue;
            }
            (next, tries) = (slot + 1, 0);
            match member.discard_slot(slot).await {
                Discard::Ended(done) => {
                    self.discard_has_ended((index, slot));
                    match done {
                        Ok(()) => trimmed.discarded_bytes += member.geometry().slot_bytes,
                        Err(fault) => trimmed.left = Some(Left::Fault(fault)),
                    }
                }
                Discard::Late(late) => {
                    self.comes_back_after((index, slot), late);
                    trimmed.left = Some(Left::Fault(Fault::Timeout));
                }
            }
            if trimmed.left.is_some() {
                break;
            }
        }
        trimmed
    }

    /// Takes a free slot to have it discarded; whether it may be taken now. Nothing here waits.
    fn lend(&self, member: &Member, slot: u32) -> bool {
        if self.agreement.waiting().is_some() || !self.space.ledger().lend(member.index) {
            return false;
        }
        member.slots.take_for_discard(slot);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_trim_at_a_time() {
        let trims = Trims::default();
        let first = trims.begin();
        assert!(first.is_ok() && matches!(trims.begin(), Err(Error::Trimming)));
        drop(first);
        assert!(trims.begin().is_ok());
    }
}
