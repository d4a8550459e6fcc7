//! What is under way to a device, how long it takes to answer, and when nobody waits for it any more.
//!
//! Invariants:
//! - A change counts as under way until the device has ended it, also once nobody waits for it ([`Sent::quiet`]), up
//!   to [`DEADLINE`]. Then it is dropped, so that no queue submits it later than the fence allows
//!   (`members/fence.rs`), and nobody knows when it ends ([`Sent::is_unknown`]).
//! - An operation that is late is waited for up to [`DEADLINE`], unless its device is given up: whether the array can do
//!   without it is for the home to say (`home/slow.rs`).

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use ashlar_device::{Fault, IoFuture};
use ashlar_rt::{Gate, MILLISECOND, Nanos, Rt};

use crate::members::DEADLINE;

/// For so long nobody looks whether a device is given up: most operations have ended by then.
const AT_LEAST: Nanos = 250 * MILLISECOND;
/// Fewer answers of a device say nothing of how fast it is.
pub const LEAST_ANSWERS: u64 = 4;
/// So many bytes take a disk about as long as a seek: an operation has one part more for each.
const PART: u64 = 512 << 10;

/// What the members of an array tell of themselves, and how long they may take.
#[derive(Debug)]
pub struct Lateness {
    /// An operation is late after this time.
    pub patience: Cell<Nanos>,
    /// Opens when an operation is late.
    pub late: Gate,
    /// An answer is slow that took longer than this for each part: see `home/slow.rs`.
    pub slow_above: Cell<Nanos>,
    /// Opens once a device has answered enough after this time.
    pub answered: Gate,
    pub compare_at: Cell<Nanos>,
}

impl Default for Lateness {
    fn default() -> Lateness {
        Lateness {
            patience: Cell::new(DEADLINE),
            late: Gate::default(),
            slow_above: Cell::new(Nanos::MAX),
            answered: Gate::default(),
            compare_at: Cell::new(0),
        }
    }
}

/// An operation that somebody waits for.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// When it was begun.
    pub begun: Nanos,
    /// What it reads or writes.
    pub bytes: u64,
}

impl Asked {
    /// One that begins now.
    pub fn now(rt: &Rt, bytes: u64) -> Asked {
        let begun = rt.now();
        Asked { begun, bytes }
    }
}

/// What a device has answered since this was taken last. One that reads and writes much at once is not slower than its
/// peers: times are compared by parts of operations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Answered {
    /// Operations.
    pub count: u64,
    /// Their parts: one each, and one more for each [`PART`] of bytes.
    pub parts: u64,
    /// Of these the parts of operations that were slow.
    pub slow: u64,
    /// How long they took, all together.
    pub took: Nanos,
    /// For how long any was under way.
    pub busy: Nanos,
}

/// What was sent to a device.
#[derive(Debug, Default)]
pub struct Sent {
    /// Operations under way that somebody waits for, and since when there is any.
    waited_for: Cell<usize>,
    busy_since: Cell<Nanos>,
    answered: Cell<Answered>,
    /// Of them those that are late.
    late: Cell<usize>,
    given_up: Cell<bool>,
    /// Opens when it is given up.
    giving_up: Gate,
    /// Writes, flushes and discards under way, whether or not somebody waits for them.
    changing: Cell<usize>,
    /// Opens when there is none.
    quiet: Gate,
    unknown: Cell<bool>,
    left: Cell<bool>,
    lateness: RefCell<Option<Rc<Lateness>>>,
}

/// A write, flush or discard under way.
#[derive(Debug)]
pub struct Change(Rc<Sent>);

impl Drop for Change {
    fn drop(&mut self) {
        let left = self.0.changing.get() - 1;
        self.0.changing.set(left);
        if left == 0 {
            self.0.quiet.open();
        }
    }
}

/// An operation that somebody waits for.
struct Waiting<'a> {
    sent: &'a Sent,
    rt: &'a Rt,
    late: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let sent = self.sent;
        if self.late {
            sent.late.set(sent.late.get() - 1);
        }
        let left = sent.waited_for.get() - 1;
        sent.waited_for.set(left);
        if left == 0 {
            sent.note_busy(self.rt.now());
        }
    }
}

impl Sent {
    /// From now on these are told.
    pub fn tell(&self, lateness: &Rc<Lateness>) {
        self.lateness.replace(Some(lateness.clone()));
    }

    /// Counts something that changes the device, until it is dropped.
    pub fn change(self: &Rc<Self>) -> Change {
        add_one(&self.changing);
        Change(self.clone())
    }

    /// Whether no write, flush or discard is under way.
    pub fn is_quiet(&self) -> bool {
        self.changing.get() == 0
    }

    /// Waits until none is.
    pub async fn quiet(&self) {
        self.quiet.until(|| self.is_quiet()).await;
    }

    /// Whether a change was dropped that the device may still make.
    pub fn is_unknown(&self) -> bool {
        self.unknown.get()
    }

    /// Whether a change was given up since it is in use.
    pub fn has_left(&self) -> bool {
        self.left.get()
    }

    /// Waits for a change that nobody else waits for any more, in a task.
    pub fn leave(
        &self,
        rt: &Rt,
        begun: Nanos,
        change: IoFuture<Result<(), Fault>>,
        under_way: Change,
    ) {
        self.left.set(true);
        let left = begun.saturating_add(DEADLINE).saturating_sub(rt.now());
        let rt2 = rt.clone();
        rt.begin(async move {
            if rt2.timeout(left, change).await.is_none() {
                under_way.0.unknown.set(true);
            }
            drop(under_way);
        });
    }

    /// Operations under way that are late.
    pub fn late(&self) -> usize {
        self.late.get()
    }

    /// Nobody waits any more for operations that are late or get late.
    pub fn give_up(&self) {
        self.given_up.set(true);
        self.giving_up.open();
    }

    /// Whether it is: what it does not answer then is no fault of it, but late.
    pub fn is_given_up(&self) -> bool {
        self.given_up.get()
    }

    /// It is waited for again.
    pub fn wait_again(&self) {
        self.given_up.set(false);
        self.unknown.set(false);
        self.left.set(false);
        self.answered.set(Answered::default());
    }

    /// Whether it has answered enough to be compared.
    pub fn has_answered_enough(&self) -> bool {
        self.answered.get().count >= LEAST_ANSWERS
    }

    /// What was answered since this was asked last.
    pub fn take_answered(&self, now: Nanos) -> Answered {
        if self.waited_for.get() > 0 {
            self.note_busy(now);
        }
        self.answered.take()
    }

    fn note_busy(&self, now: Nanos) {
        let mut answered = self.answered.get();
        answered.busy += now.saturating_sub(self.busy_since.replace(now));
        self.answered.set(answered);
    }

    /// What an operation gives; `None` once its device is given up, or it took too long: it is still under way then.
    pub async fn answer<T>(&self, rt: &Rt, asked: Asked, io: &mut IoFuture<T>) -> Option<T> {
        if self.waited_for.get() == 0 {
            self.busy_since.set(rt.now());
        }
        add_one(&self.waited_for);
        let mut waiting = Waiting {
            sent: self,
            rt,
            late: false,
        };
        let left = |limit: Nanos| asked.begun.saturating_add(limit).saturating_sub(rt.now());
        let mut given = rt.timeout(left(AT_LEAST), &mut *io).await;
        if given.is_none() {
            given = self.unless_late(rt, left(self.patience()), io).await;
        }
        if given.is_none() && !self.is_given_up() {
            waiting.late = true;
            add_one(&self.late);
            if let Some(lateness) = &*self.lateness.borrow() {
                lateness.late.open();
            }
            given = self.unless_late(rt, left(DEADLINE), io).await;
        }
        if given.is_some() {
            self.note_answer(rt.now(), asked);
        }
        given
    }

    fn patience(&self) -> Nanos {
        let lateness = self.lateness.borrow();
        lateness.as_ref().map_or(DEADLINE, |l| l.patience.get())
    }

    /// What an operation gives within this time, unless its device is given up.
    pub async fn unless_late<T>(&self, rt: &Rt, limit: Nanos, io: &mut IoFuture<T>) -> Option<T> {
        rt.timeout(limit, self.unless_given_up(io)).await.flatten()
    }

    async fn unless_given_up<T>(&self, io: &mut IoFuture<T>) -> Option<T> {
        let mut given_up = pin!(self.giving_up.until(|| self.given_up.get()));
        poll_fn(|cx| match io.as_mut().poll(cx) {
            Poll::Ready(given) => Poll::Ready(Some(given)),
            Poll::Pending => given_up.as_mut().poll(cx).map(|()| None),
        })
        .await
    }

    fn note_answer(&self, now: Nanos, asked: Asked) {
        let (took, parts) = (now.saturating_sub(asked.begun), 1 + asked.bytes / PART);
        let mut answered = self.answered.get();
        answered.count += 1;
        answered.parts += parts;
        answered.took = answered.took.saturating_add(took);
        if let Some(lateness) = &*self.lateness.borrow() {
            if took / parts > lateness.slow_above.get() {
                answered.slow += parts;
            }
            if answered.count >= LEAST_ANSWERS && now >= lateness.compare_at.get() {
                lateness.answered.open();
            }
        }
        self.answered.set(answered);
    }
}

fn add_one(count: &Cell<usize>) {
    count.set(count.get() + 1);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use ashlar_rt::SECOND;

    use super::*;

    /// An operation that takes so long.
    fn io(rt: &Rt, takes: Nanos) -> IoFuture<u8> {
        let sleep = rt.sleep(takes);
        Box::pin(async move {
            sleep.await;
            7
        })
    }

    #[test]
    fn what_is_late_is_waited_for_unless_its_device_is_given_up() {
        let rt = Rt::simulated(1);
        let (sent, lateness) = (Rc::new(Sent::default()), Rc::new(Lateness::default()));
        lateness.patience.set(SECOND);
        sent.tell(&lateness);
        let (rt2, sent2) = (rt.clone(), sent.clone());
        let took = rt.block_on(async move {
            let (rt, sent) = (rt2, sent2);
            assert_eq!(
                sent.answer(&rt, Asked::now(&rt, 0), &mut io(&rt, 5 * SECOND))
                    .await,
                Some(7)
            );
            assert_eq!(
                sent.answer(&rt, Asked::now(&rt, 0), &mut io(&rt, 40 * SECOND))
                    .await,
                None
            );
            let asked = Asked::now(&rt, 0);
            let begun = asked.begun;
            let (late, all) = (lateness.clone(), sent.clone());
            rt.spawn(async move {
                late.late.wait().await;
                assert_eq!(all.late(), 1);
                all.give_up();
            });
            assert_eq!(
                sent.answer(&rt, asked, &mut io(&rt, 40 * SECOND)).await,
                None
            );
            assert_eq!(sent.late(), 0);
            rt.now() - begun
        });
        assert_eq!(took, SECOND);
    }

    #[test]
    fn answers_are_counted_with_the_time_that_the_device_was_busy() {
        let rt = Rt::simulated(1);
        let sent = Rc::new(Sent::default());
        let (rt2, of) = (rt.clone(), sent.clone());
        rt.block_on(async move {
            let rt = rt2;
            for beside in [2, 1] {
                let all = (0..beside).map(|_| {
                    let (rt, of) = (rt.clone(), of.clone());
                    rt.clone().spawn(async move {
                        of.answer(&rt, Asked::now(&rt, PART), &mut io(&rt, SECOND))
                            .await
                    })
                });
                ashlar_rt::join_all(all).await;
                rt.sleep(SECOND).await;
            }
        });
        let answered = sent.take_answered(rt.now());
        assert_eq!(
            (answered.count, answered.parts, answered.took, answered.busy),
            (3, 6, 3 * SECOND, 2 * SECOND)
        );
        assert_eq!(sent.take_answered(rt.now()), Answered::default());
    }

    /// One that nobody waits for is under way until it ends; one that does not end in time is dropped.
    #[test]
    fn what_is_left_under_way_is_known_for_a_time() {
        for (takes, unknown) in [(DEADLINE - SECOND, false), (DEADLINE + SECOND, true)] {
            let rt = Rt::simulated(1);
            let sent = Rc::new(Sent::default());
            let (rt2, of) = (rt.clone(), sent.clone());
            rt.block_on(async move {
                let rt = rt2;
                let write = rt.sleep(takes);
                let write = Box::pin(async move {
                    write.await;
                    Ok(())
                });
                of.leave(&rt, rt.now(), write, of.change());
                assert!(!of.is_quiet());
                of.quiet().await;
                assert_eq!(rt.now(), takes.min(DEADLINE));
            });
            assert_eq!(sent.is_unknown(), unknown);
        }
    }

    #[test]
    fn a_change_is_under_way_until_it_is_dropped() {
        let sent = Rc::new(Sent::default());
        let (one, two) = (sent.change(), sent.change());
        drop(one);
        assert!(!sent.is_quiet());
        drop(two);
        assert!(sent.is_quiet());
    }
}
