//! The events of an array, for `ashlar events`: numbered, the last few thousand kept.
//!
//! Invariant: what a device may do any number of times is told at once the first time, and then as a sum.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use ashlar_rt::{Gate, Nanos, Rt, SECOND};

use crate::members::closed::Closed;
use crate::status::Event;

const EVENTS_KEPT: usize = 4096;
/// What comes in numbers is told at once, and then as a sum after these times, the longer the longer it lasts.
const FIRST_SUM: Nanos = 10 * SECOND;
const LAST_SUM: Nanos = 600 * SECOND;

/// What came after an event of the same kind and device was told.
#[derive(Debug)]
struct Sum {
    count: u64,
    /// What the last of them was.
    last: String,
}

/// The events of an array.
#[derive(Debug)]
pub struct Events {
    rt: Rt,
    kept: RefCell<VecDeque<Event>>,
    count: Cell<u64>,
    sums: RefCell<BTreeMap<(&'static str, u16), Sum>>,
    gate: Gate,
    closed: Rc<Closed>,
}

impl Events {
    /// None yet.
    pub fn new(rt: &Rt, closed: &Rc<Closed>) -> Rc<Events> {
        Rc::new(Events {
            rt: rt.clone(),
            kept: RefCell::default(),
            count: Cell::new(0),
            sums: RefCell::default(),
            gate: Gate::default(),
            closed: closed.clone(),
        })
    }

    /// Waits for an event with a number above `number`, or until no more will come.
    pub async fn beyond(&self, number: u64) {
        self.gate
            .until(|| self.last() > number || self.closed.get())
            .await;
    }

    /// Whoever waits looks again: the array is closed, and no more will come.
    pub fn close(&self) {
        self.gate.open();
    }

    /// Notes something for `ashlar events`.
    pub fn note(&self, kind: &str, device: Option<u16>, text: String) {
        self.counted_event(kind, device, text, 1);
    }

    /// Notes something that a device may do any number of times: the first is an event of its own, those that
    /// follow closely are counted, and told in one.
    pub fn repeat(self: &Rc<Self>, kind: &'static str, device: u16, text: String) {
        tracing::debug!(kind, device, "{text}");
        if let Some(sum) = self.sums.borrow_mut().get_mut(&(kind, device)) {
            sum.count += 1;
            sum.last = text;
            return;
        }
        let none = Sum {
            count: 0,
            last: String::new(),
        };
        self.sums.borrow_mut().insert((kind, device), none);
        self.note(kind, Some(device), text);
        // An array that is gone is not kept for this.
        let (events, rt) = (Rc::downgrade(self), self.rt.clone());
        self.rt.spawn(async move {
            let mut wait = FIRST_SUM;
            loop {
                rt.sleep(wait).await;
                let Some(events) = events.upgrade() else {
                    return;
                };
                if events.closed.get() || !events.tell_sum(kind, device) {
                    events.sums.borrow_mut().remove(&(kind, device));
                    return;
                }
                wait = (2 * wait).min(LAST_SUM);
            }
        });
    }

    /// Tells what was counted; whether there was anything.
    fn tell_sum(&self, kind: &'static str, device: u16) -> bool {
        let told = match self.sums.borrow_mut().get_mut(&(kind, device)) {
            Some(sum) if sum.count > 0 => (
                std::mem::take(&mut sum.last),
                std::mem::take(&mut sum.count),
            ),
            _ => return false,
        };
        match told {
            (last, 1) => self.note(kind, Some(device), last),
            (last, count) => {
                let text = format!("{count} more like it, the last: {last}");
                self.counted_event(kind, Some(device), text, count);
            }
        }
        true
    }

    /// Tells all that was counted: no more will come.
    pub fn tell_sums(&self) {
        let kinds: Vec<(&'static str, u16)> = self.sums.borrow().keys().copied().collect();
        for (kind, device) in kinds {
            self.tell_sum(kind, device);
        }
    }

    fn counted_event(&self, kind: &str, device: Option<u16>, text: String, count: u64) {
        tracing::info!(kind, device, "{text}");
        let number = self.count.get() + 1;
        self.count.set(number);
        let mut events = self.kept.borrow_mut();
        if events.len() == EVENTS_KEPT {
            events.pop_front();
        }
        events.push_back(Event {
            number,
            at: self.rt.now(),
            kind: kind.to_string(),
            device,
            text,
            count,
        });
        drop(events);
        self.gate.open();
    }

    /// Events with a number above `after`.
    pub fn after(&self, after: u64) -> Vec<Event> {
        self.kept
            .borrow()
            .iter()
            .filter(|e| e.number > after)
            .cloned()
            .collect()
    }

    /// The number of the last event.
    pub fn last(&self) -> u64 {
        self.count.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of what comes in numbers the first is told at once and the rest as a sum.
    #[test]
    fn events_that_repeat_are_told_as_a_sum() {
        let rt = Rt::simulated(1);
        let events = Events::new(&rt, &Rc::default());
        rt.block_on(async move {
            for n in 0..5 {
                events.repeat("bad-block", 0, format!("number {n}"));
            }
            assert_eq!(events.after(0).len(), 1);
            events.tell_sums();
            let told = events.after(1);
            assert_eq!((told.len(), told[0].count), (1, 4));
            assert!(told[0].text.ends_with("number 4"), "{}", told[0].text);
            events.close();
        });
    }
}
