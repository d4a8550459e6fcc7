//! The one busy-time resource of a modelled device: operations take turns in quanta of 64 KiB.
//!
//! Invariants: the server is never idle while an operation waits; a quantum that has begun is
//! finished; what is left of an operation after its quantum goes behind all that came meanwhile. Time
//! inside is in picoseconds, so that rounding does not add up.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use ashlar_rt::Nanos;

/// Picoseconds.
pub(super) type Picos = u64;

/// Picoseconds of a nanosecond.
pub(super) const PICOS: Picos = 1000;

/// What one operation costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cost {
    /// Quanta, at least 1.
    pub(super) quanta: u64,
    /// The cost of all quanta together.
    pub(super) total: Picos,
}

/// When an operation's service ends, once that is known.
#[derive(Debug, Default)]
pub(super) struct Ticket(Cell<Option<Picos>>);

struct Queued {
    ticket: Rc<Ticket>,
    left: u64,
    /// Each quantum but the last.
    quantum: Picos,
    last: Picos,
}

impl Queued {
    fn next(&self) -> Picos {
        if self.left == 1 {
            self.last
        } else {
            self.quantum
        }
    }

    /// The cost of the next `quanta`, or of all that are left if they are fewer.
    fn of(&self, quanta: u64) -> Picos {
        if quanta >= self.left {
            (self.left - 1) * self.quantum + self.last
        } else {
            quanta * self.quantum
        }
    }
}

#[derive(Default)]
pub(super) struct Server {
    /// In order of turns; the first is being served.
    queue: VecDeque<Queued>,
    /// When the present quantum of the first began, or the last one ended.
    began: Picos,
    /// The sum of the next quanta of all that are queued.
    round: Picos,
    /// The sum of all costs.
    busy: Picos,
}

impl Server {
    /// Adds an operation at `now`.
    pub(super) fn add(&mut self, now: Nanos, cost: Cost) -> Rc<Ticket> {
        assert!(cost.quanta > 0, "an operation has at least one quantum");
        let now = now.saturating_mul(PICOS);
        self.advance(now);
        if self.queue.is_empty() {
            self.began = self.began.max(now);
        }
        let quantum = cost.total / cost.quanta;
        let last = cost.total - quantum * (cost.quanta - 1);
        let queued = Queued {
            ticket: Rc::default(),
            left: cost.quanta,
            quantum,
            last,
        };
        let ticket = queued.ticket.clone();
        self.busy += cost.total;
        self.round += queued.next();
        if queued.left == 1 {
            // Nothing that comes later is served before it.
            ticket.0.set(Some(self.began + self.round));
        }
        self.queue.push_back(queued);
        ticket
    }

    /// Finishes the quanta that have ended by `now`.
    fn advance(&mut self, now: Picos) {
        while let Some(first) = self.queue.front_mut() {
            let cost = first.next();
            if self.began + cost > now {
                return;
            }
            self.began += cost;
            self.round -= cost;
            first.left -= 1;
            let first = self.queue.pop_front().expect("seen above");
            if first.left == 0 {
                first.ticket.0.set(Some(self.began));
            } else {
                self.round += first.next();
                self.queue.push_back(first);
            }
        }
    }

    /// Whether nothing is queued or served at `now`.
    pub(super) fn is_idle(&mut self, now: Nanos) -> bool {
        self.advance(now.saturating_mul(PICOS));
        self.queue.is_empty()
    }

    /// When the operation's service ends if nothing else is added, and whether that is certain.
    pub(super) fn end(&mut self, now: Nanos, ticket: &Rc<Ticket>) -> (Picos, bool) {
        self.advance(now.saturating_mul(PICOS));
        if let Some(end) = ticket.0.get() {
            return (end, true);
        }
        let place = self
            .queue
            .iter()
            .position(|queued| Rc::ptr_eq(&queued.ticket, ticket));
        let place = place.expect("an operation is queued until its end is known");
        let turns = self.queue[place].left;
        let before: Picos = self
            .queue
            .range(..=place)
            .map(|queued| queued.of(turns))
            .sum();
        let after: Picos = if turns == 1 {
            0
        } else {
            self.queue
                .range(place + 1..)
                .map(|queued| queued.of(turns - 1))
                .sum()
        };
        (self.began + before + after, false)
    }

    /// Time that all operations so far take together.
    pub(super) fn busy(&self) -> Nanos {
        self.busy / PICOS
    }

    /// Forgets the busy time so far.
    pub(super) fn reset(&mut self) {
        self.busy = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(quanta: u64, total: Nanos) -> Cost {
        Cost {
            quanta,
            total: total * PICOS,
        }
    }

    #[test]
    fn a_small_operation_waits_for_one_quantum_of_each_before_it() {
        let mut server = Server::default();
        let large = server.add(0, cost(16, 1600));
        let small = server.add(50, cost(1, 10));
        // The quantum that has begun ends at 100.
        assert_eq!(server.end(50, &small), (110 * PICOS, true));
        assert_eq!(server.end(50, &large), (1610 * PICOS, false));
        let other = server.add(105, cost(2, 200));
        assert_eq!(server.end(105, &small), (110 * PICOS, true));
        // 110..210 large, 210..310 other, 310..410 large, 410..510 other.
        assert_eq!(server.end(105, &other), (510 * PICOS, false));
        assert_eq!(server.end(5000, &large), (1810 * PICOS, true));
        assert_eq!(server.busy(), 1810);
    }

    #[test]
    fn an_idle_server_begins_at_once_and_loses_the_idle_time() {
        let mut server = Server::default();
        let first = server.add(1000, cost(1, 10));
        assert_eq!(server.end(1000, &first).0, 1010 * PICOS);
        let second = server.add(5000, cost(3, 30));
        assert_eq!(server.end(5000, &second).0, 5030 * PICOS);
    }

    #[test]
    fn predictions_hold_when_nothing_is_added() {
        // Against a plain simulation of turns.
        let mut state = 7u64;
        let mut below = |bound: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % bound
        };
        for _ in 0..200 {
            let costs: Vec<Cost> = (0..1 + below(8))
                .map(|_| {
                    let quanta = 1 + below(6);
                    cost(quanta, quanta * (1 + below(50)))
                })
                .collect();
            let mut server = Server::default();
            let tickets: Vec<_> = costs.iter().map(|cost| server.add(0, *cost)).collect();
            let mut left: Vec<u64> = costs.iter().map(|cost| cost.quanta).collect();
            let mut ends = vec![0; costs.len()];
            let mut clock = 0;
            while left.iter().any(|left| *left > 0) {
                for i in 0..left.len() {
                    if left[i] > 0 {
                        clock += costs[i].total / costs[i].quanta;
                        left[i] -= 1;
                        ends[i] = clock;
                    }
                }
            }
            for (ticket, end) in tickets.iter().zip(&ends) {
                assert_eq!(server.end(0, ticket).0, *end);
            }
            for (ticket, end) in tickets.iter().zip(&ends) {
                assert_eq!(server.end(1 << 40, ticket), (*end, true));
            }
        }
    }
}
