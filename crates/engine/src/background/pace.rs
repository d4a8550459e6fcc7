//! How fast background work goes: rebuild, rebalance and scrub read and write each device in pieces, and wait for a turn
//! before each.
//!
//! A piece begins once its device is quiet: for [`QUIET`] no request of a client, or nothing on that device but such
//! pieces, has been under way. It begins not sooner than the kind's maximum allows, and at the latest when its minimum is
//! due. So a kind has exactly its minimum of a device that clients keep busy, the gaps that they leave if these give
//! more, and its maximum without clients.
//!
//! Invariants:
//! - A kind begins no more of a device within any time than its maximum gives in that time and [`LATE`], and one piece;
//!   nor less than its minimum gives but one piece, while it has a piece that waits. What its minimum gave while it had
//!   none, as its pieces waited for other devices, it may have within [`CREDIT`], at twice the minimum at most.
//! - While clients are at work, a piece that begins before its minimum is due is the only one under way on its device.
//! - Who waits for a turn holds no lock but that of its turn. All hold slots or pin segments: while a client waits for
//!   space they wait for no turn. Cleaning and repair never do.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use ashlar_rt::{Gate, Lock, MILLISECOND, Nanos, SECOND};

use crate::background::Background;
use crate::home::work::Bound;
use crate::options::Rates;
use crate::segment::Segment;
use crate::status::Work;

/// For so long clients have asked for nothing once they count as not at work. It is longer than the pauses of one that
/// works without stopping (a few milliseconds between requests, and up to 20 of a seek each on the device), and too short
/// for people to notice.
const QUIET: Nanos = 50 * MILLISECOND;

/// A piece that begins late by less, since a timer or the processor was late, does not put off those after it.
const LATE: Nanos = 10 * MILLISECOND;

/// What a minimum gave and nobody took is kept so long: a segment's pieces lie on many devices, and wait for the latest.
const CREDIT: Nanos = 3 * SECOND;

/// Settings, and whether clients wait for space, are looked at this often.
const LOOK: Nanos = SECOND;

/// Who waits for a turn on which device.
#[derive(Debug, Default)]
pub(super) struct Pace(RefCell<BTreeMap<u16, Rc<Turns>>>);

/// The turns of a device.
#[derive(Debug, Default)]
struct Turns {
    /// Of each kind of work, by its number.
    of: [Turn; Work::ALL.len()],
    /// Opens when a piece has ended.
    ended: Gate,
}

/// The turn of a kind of work.
#[derive(Debug)]
struct Turn {
    /// Held by whoever is next.
    next: Lock<()>,
    last: Cell<Last>,
}

impl Default for Turn {
    fn default() -> Turn {
        Turn {
            next: Lock::new(()),
            last: Cell::default(),
        }
    }
}

/// The last piece that began.
#[derive(Debug, Default, Clone, Copy)]
struct Last {
    /// When it began, or, if it was a little late, should have by the maximum.
    at: Nanos,
    /// When it was due by the minimum: at most [`CREDIT`] before it began, or then.
    due: Nanos,
    bytes: u64,
}

impl Last {
    /// When bytes that began then are over at a rate.
    fn after(self, began: Nanos, rate: Option<u64>) -> Nanos {
        let rate = u128::from(rate.unwrap_or(u64::MAX).max(1));
        let takes = u128::from(self.bytes) * u128::from(SECOND) / rate;
        began.saturating_add(u64::try_from(takes).unwrap_or(u64::MAX))
    }

    /// When the next one may begin, and when it must.
    fn next(self, rates: Rates) -> (Nanos, Nanos) {
        let most = self.after(self.at, rates.max);
        let twice = rates.min.map(|rate| rate.saturating_mul(2));
        let least = self.after(self.due, rates.min);
        (most, least.max(most).max(self.after(self.at, twice)))
    }

    /// Whether the next one may begin; else until when to wait if nothing changes, and for which rate. `quiet`: when the
    /// device is quiet. `alone`: no other piece is under way there, or clients are not at work.
    fn may_begin(
        self,
        rates: Rates,
        now: Nanos,
        quiet: Nanos,
        alone: bool,
    ) -> Result<(), (Nanos, Bound)> {
        let (earliest, latest) = self.next(rates);
        match () {
            () if now < earliest => Err((earliest, Bound::Max)),
            () if now >= latest || now >= quiet && alone => Ok(()),
            () if now < quiet => Err((latest.min(quiet), Bound::Min)),
            () => Err((latest, Bound::Min)),
        }
    }

    /// The next one begins now.
    fn begin(self, rates: Rates, now: Nanos, bytes: u64) -> Last {
        let (earliest, latest) = self.next(rates);
        let late = |due: &Nanos| now >= *due && now - due < LATE;
        let at = [latest, earliest].into_iter().find(late);
        // Work that has just begun has nothing to make up for.
        let goes_on = self.bytes > 0 && now <= self.at.saturating_add(CREDIT);
        let due = if goes_on {
            self.after(self.due, rates.min)
        } else {
            now
        };
        Last {
            at: at.unwrap_or(now),
            due: due.clamp(now.saturating_sub(CREDIT), now),
            bytes,
        }
    }
}

/// A piece under way, until it is dropped.
pub(super) struct Piece(Rc<Background>, u16);

impl Drop for Piece {
    fn drop(&mut self) {
        let Piece(background, device) = self;
        let traffic = &background.core.member(*device).counters.traffic;
        traffic.end_paced();
        background.turns(*device).ended.open();
    }
}

impl Background {
    /// Waits until so many bytes of a device may be read or written for this work.
    pub(super) async fn turn(self: &Rc<Self>, work: Work, device: u16, bytes: u64) -> Piece {
        if self.home.rates(work).is_some() {
            let turns = self.turns(device);
            let turn = &turns.of[usize::try_from(work.id()).expect("few") - 1];
            let _next = turn.next.lock().await;
            let (rt, last) = (&self.core.rt, turn.last.get());
            while let Err((until, bound)) = self.may_begin(work, device, last) {
                let now = rt.now();
                self.home.tasks.borrow_mut().progress_mut(work).held = Some((now, bound));
                let most = until.saturating_sub(now).min(LOOK);
                let _ = rt.timeout(most, turns.ended.wait()).await;
            }
            if let Some(rates) = self.home.rates(work) {
                turn.last.set(last.begin(rates, rt.now(), bytes));
            }
        }
        self.core.member(device).counters.traffic.begin_paced();
        Piece(self.clone(), device)
    }

    /// The same of the device of a column, if it is there.
    pub(super) async fn turn_of(
        self: &Rc<Self>,
        work: Work,
        segment: &Segment,
        column: usize,
        bytes: u64,
    ) -> Option<Piece> {
        let usable = self.core.column_usable(segment, column);
        let device = segment.columns.borrow()[column].device;
        match usable {
            true => Some(self.turn(work, device, bytes).await),
            false => None,
        }
    }

    fn may_begin(&self, work: Work, device: u16, last: Last) -> Result<(), (Nanos, Bound)> {
        if self.core.closed.get() || self.home.space.jobs.is_waited_for() {
            return Ok(());
        }
        let Some(rates) = self.home.rates(work) else {
            return Ok(());
        };
        let now = self.core.rt.now();
        let traffic = &self.core.member(device).counters.traffic;
        let clients = self.core.clients.quiet_at(now, QUIET);
        let quiet = clients.min(traffic.quiet_at(now, QUIET));
        let alone = clients <= now || traffic.paced() == 0;
        last.may_begin(rates, now, quiet, alone)
    }

    fn turns(&self, device: u16) -> Rc<Turns> {
        let mut turns = self.pace.0.borrow_mut();
        turns.entry(device).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = MILLISECOND;

    fn rates(min: u64, max: Option<u64>) -> Rates {
        let min = Some(min);
        Rates { min, max }
    }

    /// A piece of so many bytes that began at 0.
    fn first(bytes: u64) -> Last {
        Last {
            bytes,
            ..Last::default()
        }
    }

    /// A maximum holds also after a time without pieces.
    #[test]
    fn no_maximum_is_saved_up() {
        let rates = rates(1000, Some(1000));
        let mut last = first(100).begin(rates, 4000 * MS, 100);
        for turn in 1..5 {
            assert_eq!(
                last.next(rates),
                (4000 * MS + turn * 100 * MS, 4000 * MS + turn * 100 * MS)
            );
            last = last.begin(rates, 4000 * MS + turn * 100 * MS, 100);
        }
    }

    /// When pieces of 100 bytes begin that always wait, until a time: `quiet` says when the device is quiet.
    fn begun(rates: Rates, until: Nanos, quiet: impl Fn(Nanos) -> Nanos) -> Vec<Nanos> {
        let (mut last, mut now, mut begun) = (Last::default(), 0, Vec::new());
        while now < until {
            match last.may_begin(rates, now, quiet(now), true) {
                Ok(()) => {
                    last = last.begin(rates, now, 100);
                    begun.push(now);
                    now += MS; // it is read
                }
                Err((next, _)) => now = next,
            }
        }
        begun
    }

    #[test]
    fn beside_clients_that_never_rest_a_kind_has_its_minimum() {
        let busy = |now| now + QUIET;
        let at = begun(rates(1000, None), SECOND, busy);
        assert_eq!(at, (0..10).map(|n| n * 100 * MS).collect::<Vec<_>>());
        let at = begun(rates(1000, Some(500)), SECOND, busy);
        assert_eq!(at, (0..5).map(|n| n * 200 * MS).collect::<Vec<_>>());
    }

    #[test]
    fn without_clients_it_has_its_maximum() {
        let at = begun(rates(1000, Some(5000)), SECOND, |_| 0);
        assert_eq!(at, (0..50).map(|n| n * 20 * MS).collect::<Vec<_>>());
        let at = begun(rates(1000, None), SECOND, |_| 0);
        assert_eq!(at.len(), 1000, "one after the other");
    }

    #[test]
    fn clients_leave_it_the_gaps() {
        // A request at every fifth of a second.
        let quiet = |now: Nanos| now / (200 * MS) * (200 * MS) + QUIET;
        let at = begun(rates(1000, None), 2 * SECOND, quiet);
        let within = at.iter().filter(|at| **at % (200 * MS) < QUIET).count();
        assert!(at.len() > 10 * 140 && within <= 10, "{} {within}", at.len());
    }

    #[test]
    fn what_begins_late_puts_nothing_off_and_saves_little_up() {
        let (rates, last) = (rates(1000, None), first(100));
        let next = |now| last.begin(rates, now, 100).next(rates).1;
        assert_eq!(next(103 * MS), 200 * MS);
        assert_eq!(next(50 * MS), 150 * MS, "it began in a gap");
        // Pieces that came late make up for three seconds, at twice the rate.
        let (mut last, mut at, mut now) = (last, Vec::new(), 3000 * MS);
        while now < 12_000 * MS {
            last = last.begin(rates, now, 100);
            at.push(now);
            now = last.next(rates).1;
        }
        let begins = first(100).begin(rates, 4000 * MS, 100).next(rates).1;
        assert_eq!(begins, 4100 * MS, "work that has rested begins anew");
        let each: Vec<Nanos> = at.windows(2).map(|w| (w[1] - w[0]) / MS).collect();
        assert_eq!((each[0], each[50], each[70]), (50, 50, 100), "{each:?}");
    }

    #[test]
    fn in_a_gap_one_piece_is_under_way() {
        let (rates, last) = (rates(1000, None), first(100));
        assert_eq!(last.may_begin(rates, 60 * MS, 50 * MS, true), Ok(()));
        let waits = Err((100 * MS, Bound::Min));
        assert_eq!(last.may_begin(rates, 60 * MS, 50 * MS, false), waits);
        assert_eq!(last.may_begin(rates, 100 * MS, 50 * MS, false), Ok(()));
    }
}
