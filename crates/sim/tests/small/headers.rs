//! A new segment (R1): its stripes are sent to the devices before its headers are on them, and a record names both only
//! once both have been flushed.
//!
//! One segment of 2+1 columns takes slots that held others, and one stripe. A write of a device reaches its medium at
//! any moment after it was sent, or, without a flush that began after it had ended, never. A device may fail at any
//! moment; devices are alike, so states that differ in their order are one. A start has the devices that are left, or
//! all but one; of a column it uses the strip if the header before it is the segment's, and it replays the record if
//! that is durable: then an older version of the block is given up for what the stripe holds.

use crate::explore::{Model, explore};

/// What may be wrong with the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// The flush is begun though headers are still on their way.
    HeaderNotWaitedFor,
    /// The flush is begun though strips are still on their way.
    StripNotWaitedFor,
    /// A flush that was begun before counts for what has been written since.
    OlderFlush,
    /// The record is written without a flush.
    NotFlushed,
    /// The record is written once as many devices as the stripe needs have flushed, whichever wrote it.
    FlushOfSome,
}

const DEVICES: usize = 3;
const K: usize = 2;

/// How far a write of a device has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Write {
    None,
    Sent,
    Ended,
    Durable,
}

/// A device: the header and the strip of its column, and its flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Device {
    writes: [Write; 2],
    /// A flush is under way, and covers these writes.
    flushing: Option<[bool; 2]>,
    /// The flush of the batch has ended.
    flushed: bool,
    failed: bool,
}

const HEADER: usize = 0;
const STRIP: usize = 1;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    devices: [Device; DEVICES],
    /// The batch that is to record the stripe has begun to flush.
    batch: bool,
    record: Write,
    up: bool,
}

struct Opening(Bug);

type Go<'a> = dyn FnMut(String, Result<State, &'static str>) + 'a;

impl State {
    fn with(&self, device: usize, change: impl FnOnce(&mut Device)) -> Result<State, &'static str> {
        let mut to = self.clone();
        change(&mut to.devices[device]);
        to.devices.sort_unstable();
        Ok(to)
    }

    /// Whether a write has ended on every device that it could.
    fn ended(&self, what: usize) -> bool {
        let there = self.devices.iter().filter(|d| !d.failed);
        let mut writes = there.map(|d| d.writes[what]);
        writes.all(|w| w >= Write::Ended)
    }
}

impl Opening {
    fn devices(&self, state: &State, go: &mut Go<'_>) {
        let failed = state.devices.iter().filter(|d| d.failed).count();
        for (n, device) in state.devices.iter().enumerate().filter(|(_, d)| !d.failed) {
            for (what, name) in [(HEADER, "header"), (STRIP, "strip")] {
                // Headers are submitted where the segment is made, strips where the stripe is closed: both at any time.
                let next = match device.writes[what] {
                    Write::None => Write::Sent,
                    Write::Sent => Write::Ended,
                    _ => continue,
                };
                let to = state.with(n, |d| d.writes[what] = next);
                go(format!("the {name} of a device: {next:?}"), to);
            }
            let wanted = state.batch || self.0 == Bug::OlderFlush;
            if wanted && device.flushing.is_none() && !device.flushed {
                let covered = device.writes.map(|w| w == Write::Ended);
                let to = state.with(n, |d| d.flushing = Some(covered));
                go("a flush of a device begins".to_string(), to);
            }
            if let Some(covered) = device.flushing {
                let to = state.with(n, |d| {
                    for (write, covered) in d.writes.iter_mut().zip(covered) {
                        *write = if covered { Write::Durable } else { *write };
                    }
                    (d.flushing, d.flushed) = (None, true);
                });
                go("a flush of a device ends".to_string(), to);
            }
            if failed < DEVICES - K {
                go(
                    format!("device {n} fails"),
                    state.with(n, |d| d.failed = true),
                );
            }
        }
    }

    fn home(&self, state: &State, go: &mut Go<'_>) {
        let headers = state.ended(HEADER) || self.0 == Bug::HeaderNotWaitedFor;
        let strips = state.ended(STRIP) || self.0 == Bug::StripNotWaitedFor;
        if !state.batch && headers && strips {
            let mut to = state.clone();
            to.batch = true;
            go("the batch flushes".to_string(), Ok(to));
        }
        let flushed = state.devices.iter().filter(|d| d.flushed).count();
        let all = state.devices.iter().all(|d| d.flushed || d.failed);
        let enough = self.0 == Bug::FlushOfSome && flushed >= K - 1;
        if state.batch && state.record == Write::None {
            if all || enough || self.0 == Bug::NotFlushed {
                let mut to = state.clone();
                to.record = Write::Sent;
                go("the record is sent".to_string(), Ok(to));
            }
        } else if state.record == Write::Sent {
            let mut to = state.clone();
            to.record = Write::Durable;
            go("the record is durable".to_string(), Ok(to));
        }
    }

    fn crash(&self, state: &State, go: &mut Go<'_>) {
        for kept in 0..1u32 << (2 * DEVICES + 1) {
            let mut left = kept;
            let mut settle = |write: &mut Write| {
                let stays = *write == Write::Durable || *write != Write::None && left & 1 == 1;
                *write = if stays { Write::Durable } else { Write::None };
                left >>= 1;
            };
            let mut to = state.clone();
            for device in &mut to.devices {
                device.writes.iter_mut().for_each(&mut settle);
                (device.flushing, device.flushed) = (None, false);
            }
            settle(&mut to.record);
            to.devices.sort_unstable();
            (to.up, to.batch) = (false, false);
            go(format!("power cut, kept {kept:07b}"), Ok(to));
        }
    }

    fn start(&self, state: &State, go: &mut Go<'_>) {
        if state.record != Write::Durable {
            return; // nothing of the segment counts, and its slots are free
        }
        let left: Vec<&Device> = state.devices.iter().filter(|d| !d.failed).collect();
        let may_lack = left.len() - K;
        let readable = left
            .iter()
            .filter(|d| d.writes == [Write::Durable; 2])
            .count();
        if readable < K + may_lack {
            let story = format!("a start that lacks {may_lack} devices replays the record");
            go(story, Err("the record names a stripe that cannot be read"));
        }
    }
}

impl Model for Opening {
    type State = State;

    fn first(&self) -> State {
        let device = Device {
            writes: [Write::None; 2],
            flushing: None,
            flushed: false,
            failed: false,
        };
        State {
            devices: [device; DEVICES],
            batch: false,
            record: Write::None,
            up: true,
        }
    }

    fn steps(&self, state: &State, go: &mut Go<'_>) {
        if !state.up {
            return self.start(state, go);
        }
        self.devices(state, go);
        self.home(state, go);
        self.crash(state, go);
    }
}

fn search(bug: Bug) -> (usize, Option<Vec<String>>) {
    let found = explore(&Opening(bug), 3_000_000);
    (found.states, found.violation)
}

#[test]
fn a_record_names_only_what_was_flushed_with_its_headers() {
    let (states, violation) = search(Bug::None);
    let told = violation.map(|story| story.join("\n"));
    assert_eq!(told, None, "{states} states");
    assert!(states > 500, "{states} states");
}

#[test]
fn each_part_of_the_rule_is_needed() {
    for bug in [
        Bug::HeaderNotWaitedFor,
        Bug::StripNotWaitedFor,
        Bug::OlderFlush,
        Bug::NotFlushed,
        Bug::FlushOfSome,
    ] {
        let (_, violation) = search(bug);
        assert!(violation.is_some(), "{bug:?} is not told from the rule");
    }
}
