//! Counters of the work since an import, and of what is under way.
//!
//! Invariant: a piece of paced work counts as one I/O under way, from before that begins until it has ended.

use std::cell::Cell;

use ashlar_rt::{Nanos, Rt};

/// Adds to a counter.
pub fn add(counter: &Cell<u64>, amount: u64) {
    counter.set(counter.get() + amount);
}

/// What clients did.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) reads: Cell<u64>,
    pub(crate) writes: Cell<u64>,
    pub(crate) flushes: Cell<u64>,
    pub(crate) read_bytes: Cell<u64>,
    pub(crate) written_bytes: Cell<u64>,
}

/// What is under way: I/O of a device, or requests of clients.
#[derive(Debug, Default)]
pub struct Traffic {
    all: Cell<u32>,
    /// Of these, those of paced background work.
    paced: Cell<u32>,
    /// When anything else was last under way.
    last: Cell<Option<Nanos>>,
}

impl Traffic {
    /// Something begins; it is under way until this is dropped.
    pub fn begin<'a>(&'a self, rt: &'a Rt) -> UnderWay<'a> {
        self.all.set(self.all.get() + 1);
        self.note(rt);
        UnderWay(self, rt)
    }

    /// What begins next is of paced work.
    pub fn begin_paced(&self) {
        self.paced.set(self.paced.get() + 1);
    }

    /// That has ended.
    pub fn end_paced(&self) {
        self.paced.set(self.paced.get() - 1);
    }

    /// How much paced work is under way.
    pub fn paced(&self) -> u32 {
        self.paced.get()
    }

    /// When nothing but paced work will have been under way for so long, if nothing else begins, and what is under way
    /// ends now.
    pub fn quiet_at(&self, now: Nanos, time: Nanos) -> Nanos {
        match self.last.get() {
            _ if self.all.get() > self.paced.get() => now + time,
            Some(last) => last + time,
            None => now,
        }
    }

    fn note(&self, rt: &Rt) {
        if self.all.get() > self.paced.get() {
            self.last.set(Some(rt.now()));
        }
    }
}

/// Something under way.
#[derive(Debug)]
pub struct UnderWay<'a>(&'a Traffic, &'a Rt);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.note(self.1);
        self.0.all.set(self.0.all.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paced_work_leaves_a_device_quiet_and_all_else_does_not() {
        let rt = Rt::simulated(1);
        let handle = rt.clone();
        rt.block_on(async move {
            let (rt, traffic) = (handle, Traffic::default());
            let quiet_at = || traffic.quiet_at(rt.now(), 50);
            assert_eq!(quiet_at(), rt.now(), "nothing was ever under way");
            traffic.begin_paced();
            let piece = traffic.begin(&rt);
            rt.sleep(100).await;
            assert_eq!(quiet_at(), rt.now());
            let other = traffic.begin(&rt);
            rt.sleep(100).await;
            drop(piece);
            traffic.end_paced();
            assert_eq!(quiet_at(), rt.now() + 50, "it is under way");
            drop(other);
            let ended = rt.now();
            rt.sleep(20).await;
            traffic.begin_paced();
            drop(traffic.begin(&rt));
            traffic.end_paced();
            assert_eq!((quiet_at(), traffic.paced()), (ended + 50, 0));
        });
    }
}
