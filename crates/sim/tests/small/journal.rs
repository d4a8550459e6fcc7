//! Journal records against loss and recovery (R4): what was acknowledged, and what was once seen
//! after a crash, stays, whatever M devices are lost meanwhile, and nothing appears later that was
//! not seen.
//!
//! One record is written at a time. It has one column on every device; any `devices - M` of them read it. What is
//! written reaches a medium at any moment until its flush ends, or never. A recovery reads what is visible,
//! takes the records up to the first gap, checkpoints where they end, and answers. Devices that a checkpoint
//! does not count never come back.

use crate::explore::{Model, explore};

/// What may be wrong with the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// Acknowledged when as many columns are durable as a read needs.
    AckEarly,
    /// Acknowledged when written, before the flush.
    AckUnflushed,
    /// A record is issued before the one before it is durable.
    Pipelined,
    /// Recovery answers without having made a checkpoint where the records end.
    NoRecoveryCheckpoint,
    /// Recovery does not write the missing columns of the last record it takes over.
    NotCompleted,
    /// The checkpoint of a recovery is acted on when the first device has it.
    CheckpointOnOne,
    /// More than M missing devices are accepted, and a gap is always the end.
    NoCount,
}

const RECORDS: usize = 2;
const CRASHES: usize = 3;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// By record: which devices have its column in their cache, and on their medium.
    cached: [u8; RECORDS],
    medium: [u8; RECORDS],
    /// By record: how many records were acknowledged when it was made, as its columns say.
    told: [u8; RECORDS],
    issued: u8,
    acknowledged: u8,
    /// By recovery: where the records end, and which devices it counts; 0 is the creation.
    ends: [u8; CRASHES + 1],
    sets: [u8; CRASHES + 1],
    /// By device: the newest of these it holds.
    root: [u8; 4],
    recoveries: u8,
    /// What the last recovery showed to clients.
    seen: Option<u8>,
    up: bool,
    crashes: u8,
}

struct Journal {
    devices: u8,
    m: u8,
    bug: Bug,
}

type Go<'a> = dyn FnMut(String, Result<State, &'static str>) + 'a;

impl Journal {
    fn all(&self) -> u8 {
        (1 << self.devices) - 1
    }

    fn readable(&self, columns: u8) -> bool {
        columns.count_ones() >= u32::from(self.devices - self.m)
    }

    fn works(&self, state: &State, go: &mut Go<'_>) {
        let turn = state.issued == state.acknowledged || self.bug == Bug::Pipelined;
        if turn && usize::from(state.issued) < RECORDS {
            let mut next = state.clone();
            let record = usize::from(state.issued);
            next.issued += 1;
            next.cached[record] = self.all();
            next.told[record] = state.acknowledged;
            go(format!("record {} is issued", record + 1), Ok(next));
        }
        for device in 0..self.devices {
            let bit = 1 << device;
            if (0..RECORDS).any(|r| state.cached[r] & bit & !state.medium[r] != 0) {
                let mut next = state.clone();
                for record in 0..RECORDS {
                    next.medium[record] |= next.cached[record] & bit;
                }
                go(format!("device {device} is flushed"), Ok(next));
            }
        }
        let record = usize::from(state.acknowledged);
        if record < usize::from(state.issued) {
            let durable = state.medium[record];
            let enough = match self.bug {
                Bug::AckEarly => self.readable(durable),
                Bug::AckUnflushed => true,
                _ => durable == self.all(),
            };
            if enough {
                let mut next = state.clone();
                next.acknowledged += 1;
                go(format!("record {} is acknowledged", record + 1), Ok(next));
            }
        }
    }

    /// Any part of what is in the caches survives.
    fn crash(&self, state: &State, go: &mut Go<'_>) {
        let volatile: Vec<(usize, u8)> = (0..RECORDS)
            .flat_map(|r| (0..self.devices).map(move |d| (r, 1u8 << d)))
            .filter(|(r, bit)| state.cached[*r] & bit & !state.medium[*r] != 0)
            .collect();
        for kept in 0..1u32 << volatile.len() {
            let mut next = state.clone();
            for (at, (record, bit)) in volatile.iter().enumerate() {
                if kept >> at & 1 == 1 {
                    next.medium[*record] |= bit;
                }
            }
            next.cached = next.medium;
            next.up = false;
            next.crashes -= 1;
            go(
                format!("power cut, columns {:?}", next.medium),
                Ok(next.clone()),
            );
        }
    }

    /// Recovery with the devices `visible`.
    fn recover(&self, state: &State, visible: u8, go: &mut Go<'_>) {
        let there = |d: &u8| visible >> d & 1 == 1;
        let root = (0..self.devices)
            .filter(there)
            .map(|d| usize::from(state.root[usize::from(d)]))
            .max()
            .unwrap_or(0);
        let counted = state.sets[root];
        let visible = visible & counted;
        let missing = u32::from(self.devices) - visible.count_ones();
        let starts = visible.count_ones() * 2 > counted.count_ones() || visible == counted;
        if !starts || (missing > u32::from(self.m) && self.bug != Bug::NoCount) {
            return; // the operator is asked
        }
        // A checkpointed end stands; without one, the first gap is the end.
        let mut end = 0;
        let most = if root > 0 { state.ends[root] } else { 2 };
        while end < most && self.readable(state.medium[usize::from(end)] & visible) {
            end += 1;
        }
        let name = format!("recovery with devices {visible:04b} finds {end} records");
        let told = (0..RECORDS)
            .filter(|r| state.medium[*r] & visible != 0)
            .map(|r| state.told[r])
            .max();
        if self.bug == Bug::NoCount || end >= told.unwrap_or(0) {
            if end < state.acknowledged {
                return go(name, Err("an acknowledged record is gone"));
            }
            if state.seen.is_some_and(|seen| end < seen) {
                return go(name, Err("a record that was seen is gone"));
            }
            if state.seen.is_some_and(|seen| end > seen) {
                return go(name, Err("a record appears that was not there before"));
            }
        } else {
            // A gap below what was acknowledged: refused, which M losses must not bring about.
            return go(name, Err("within M, yet refused"));
        }
        let mut next = state.clone();
        next.up = true;
        next.seen = Some(end);
        if self.bug != Bug::NotCompleted && end > 0 {
            next.medium[usize::from(end) - 1] |= visible;
        }
        next.cached = next.medium;
        next.recoveries += 1;
        let number = usize::from(next.recoveries);
        next.ends[number] = end;
        next.sets[number] = visible;
        let holders = match self.bug {
            Bug::NoRecoveryCheckpoint => 0,
            Bug::CheckpointOnOne => visible & visible.wrapping_neg(),
            _ => visible,
        };
        for device in (0..self.devices).filter(|d| holders >> d & 1 == 1) {
            next.root[usize::from(device)] = next.recoveries;
        }
        go(name, Ok(next));
    }
}

impl Model for Journal {
    type State = State;

    fn first(&self) -> State {
        let mut sets = [0; CRASHES + 1];
        sets[0] = self.all();
        State {
            cached: [0; RECORDS],
            medium: [0; RECORDS],
            told: [0; RECORDS],
            issued: 0,
            acknowledged: 0,
            ends: [0; CRASHES + 1],
            sets,
            root: [0; 4],
            recoveries: 0,
            seen: None,
            up: true,
            crashes: CRASHES as u8,
        }
    }

    fn steps(&self, state: &State, go: &mut Go<'_>) {
        if state.up && state.recoveries == 0 {
            self.works(state, go);
        }
        if state.up && state.crashes > 0 {
            self.crash(state, go);
        }
        if !state.up {
            for visible in 1..=self.all() {
                self.recover(state, visible, go);
            }
        }
    }
}

fn search(devices: u8, m: u8, bug: Bug) -> (usize, Option<Vec<String>>) {
    let found = explore(&Journal { devices, m, bug }, 3_000_000);
    (found.states, found.violation)
}

#[test]
fn acknowledged_and_seen_records_stay() {
    for (devices, m) in [
        (1, 0),
        (2, 0),
        (2, 1),
        (3, 1),
        (3, 2),
        (4, 1),
        (4, 2),
        (4, 3),
    ] {
        let (states, violation) = search(devices, m, Bug::None);
        let told = violation.map(|story| story.join("\n"));
        assert_eq!(told, None, "{devices} devices, M = {m}");
        assert!(states > 10, "{states} states");
    }
}

#[test]
fn each_part_of_the_rule_is_needed() {
    for (bug, devices, m) in [
        (Bug::AckEarly, 3, 1),
        (Bug::AckUnflushed, 3, 1),
        (Bug::Pipelined, 3, 1),
        (Bug::NoRecoveryCheckpoint, 3, 1),
        (Bug::NotCompleted, 3, 1),
        (Bug::CheckpointOnOne, 3, 1),
        (Bug::NoCount, 4, 1),
    ] {
        let (_, violation) = search(devices, m, bug);
        assert!(violation.is_some(), "{bug:?} is not told from the rule");
    }
}
