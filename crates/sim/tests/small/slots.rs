//! Slot reuse (R3): a slot is written again only when no root that a start may choose still names
//! what was in it.
//!
//! One block moves from slot to slot; each move is followed by a root. Roots go to every device of
//! the set; a write of any device, slot or root, reaches its medium at any moment before its flush
//! ends, or never. A start takes the newest root it sees, with one device possibly lost.

use crate::explore::{Model, explore};

/// What may be wrong with the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// A slot is free as soon as the new root has been issued.
    AtIssue,
    /// A slot is free as soon as one device holds the new root.
    OnOne,
    /// The root is issued before what it names has been flushed.
    RootFirst,
    /// A start allocates before the root it took is on every device of the set that is there.
    NoAgain,
    /// A start that cannot read what the newest root names, damaged since, takes the one before.
    OlderRoot,
}

const SLOTS: usize = 2;
const DEVICES: usize = 3;
const VERSIONS: u8 = 5;

/// A root: the version of the block it names and its slot.
type Root = (u8, u8);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// Slots hold versions of the block: in the cache, and on the medium.
    slots: [u8; SLOTS],
    durable: [u8; SLOTS],
    /// Each device's newest root: as written, and on the medium; 0 is none.
    roots: [u8; DEVICES],
    kept: [u8; DEVICES],
    /// By root number: what it names.
    named: Vec<Root>,
    /// The root the running host has last completed, and one under way.
    now: u8,
    next: Option<u8>,
    up: bool,
    /// The version acknowledged as durable.
    acknowledged: u8,
    /// Devices present.
    present: u8,
    crashes: u8,
}

struct Reuse(Bug);

type Go<'a> = dyn FnMut(String, Result<State, &'static str>) + 'a;

impl Reuse {
    fn works(&self, state: &State, go: &mut Go<'_>) {
        let newest = state.named[usize::from(state.next.unwrap_or(state.now))];
        let complete = |number: u8| {
            (0..DEVICES).all(|d| state.present >> d & 1 == 0 || state.kept[d] >= number)
        };
        let any = |number: u8| (0..DEVICES).any(|d| state.kept[d] >= number);
        // The block is rewritten, into the other slot, once that is free.
        let free = match (self.0, state.next) {
            (Bug::AtIssue, _) => true,
            (Bug::OnOne, Some(next)) => any(next),
            (_, None) => true,
            _ => false,
        };
        let other = 1 - newest.1;
        if free && newest.0 < VERSIONS && usize::from(newest.0) < state.named.len() + 1 {
            let flushed = state.durable[usize::from(newest.1)] == newest.0;
            if flushed || self.0 == Bug::RootFirst {
                let mut to = state.clone();
                to.now = state.next.unwrap_or(state.now);
                to.slots[usize::from(other)] = newest.0 + 1;
                to.named.push((newest.0 + 1, other));
                to.next = Some(to.named.len() as u8 - 1);
                go(
                    format!("version {} goes into slot {other}", newest.0 + 1),
                    Ok(to),
                );
            }
        }
        for slot in 0..SLOTS {
            if state.slots[slot] != state.durable[slot] {
                let mut to = state.clone();
                to.durable[slot] = to.slots[slot];
                go(format!("slot {slot} is flushed"), Ok(to));
            }
        }
        let Some(next) = state.next else { return };
        let root = state.named[usize::from(next)];
        let flushed = state.durable[usize::from(root.1)] == root.0;
        if flushed || self.0 == Bug::RootFirst {
            for device in (0..DEVICES).filter(|d| state.present >> d & 1 == 1) {
                if state.roots[device] < next {
                    let mut to = state.clone();
                    to.roots[device] = next;
                    go(format!("root {next} is sent to device {device}"), Ok(to));
                } else if state.kept[device] < next {
                    let mut to = state.clone();
                    to.kept[device] = next;
                    go(format!("device {device} is flushed"), Ok(to));
                }
            }
        }
        if complete(next) {
            let mut to = state.clone();
            (to.now, to.next) = (next, None);
            to.acknowledged = to.acknowledged.max(root.0);
            go(format!("root {next} counts"), Ok(to));
        }
    }

    fn crash(&self, state: &State, go: &mut Go<'_>) {
        for kept in 0..1u8 << (SLOTS + DEVICES) {
            let mut to = state.clone();
            for slot in 0..SLOTS {
                if kept >> slot & 1 == 1 {
                    to.durable[slot] = to.slots[slot];
                }
            }
            for device in 0..DEVICES {
                if kept >> (SLOTS + device) & 1 == 1 {
                    to.kept[device] = to.roots[device];
                }
            }
            (to.slots, to.roots) = (to.durable, to.kept);
            (to.up, to.next) = (false, None);
            to.crashes -= 1;
            go(format!("power cut, kept {kept:05b}"), Ok(to));
        }
    }

    fn start(&self, state: &State, visible: u8, go: &mut Go<'_>) {
        let mut there: Vec<u8> = (0..DEVICES)
            .filter(|d| visible >> d & 1 == 1)
            .map(|d| state.kept[d])
            .collect();
        there.sort_unstable();
        let readable = |number: &u8| {
            let (version, slot) = state.named[usize::from(*number)];
            state.durable[usize::from(slot)] == version
        };
        let Some(newest) = there.last().copied() else {
            return;
        };
        if self.0 == Bug::OlderRoot && newest > 0 && readable(&(newest - 1)) {
            // What the newest names cannot be read for other reasons: the entry before it is tried.
            let name = format!("start with devices {visible:03b} from root {}", newest - 1);
            if state.named[usize::from(newest - 1)].0 < state.acknowledged {
                go(name, Err("an acknowledged version is gone"));
            }
            return;
        }
        let name = format!("start with devices {visible:03b} from root {newest}");
        if !readable(&newest) {
            return go(name, Err("the root names a slot that holds something else"));
        }
        if state.named[usize::from(newest)].0 < state.acknowledged {
            return go(name, Err("an acknowledged version is gone"));
        }
        let mut to = state.clone();
        to.up = true;
        to.now = newest;
        to.present = visible;
        // Roots after this one never counted; their numbers are used again by later ones only.
        to.next = (self.0 != Bug::NoAgain).then_some(newest);
        if self.0 == Bug::NoAgain {
            to.acknowledged = to.acknowledged.max(to.named[usize::from(newest)].0);
        }
        go(name, Ok(to));
    }
}

impl Model for Reuse {
    type State = State;

    fn first(&self) -> State {
        State {
            slots: [1, 0],
            durable: [1, 0],
            roots: [0; DEVICES],
            kept: [0; DEVICES],
            named: vec![(1, 0)],
            now: 0,
            next: None,
            up: true,
            acknowledged: 1,
            present: (1 << DEVICES) - 1,
            crashes: 3,
        }
    }

    fn steps(&self, state: &State, go: &mut Go<'_>) {
        if !state.up {
            for visible in [0b111u8, 0b011, 0b101, 0b110] {
                if visible & !state.present == 0 {
                    self.start(state, visible, go);
                }
            }
            return;
        }
        self.works(state, go);
        if state.crashes > 0 {
            self.crash(state, go);
        }
    }
}

fn search(bug: Bug) -> (usize, Option<Vec<String>>) {
    let found = explore(&Reuse(bug), 3_000_000);
    (found.states, found.violation)
}

#[test]
fn a_slot_is_written_again_only_when_nothing_can_name_it() {
    let (states, violation) = search(Bug::None);
    let told = violation.map(|story| story.join("\n"));
    assert_eq!(told, None, "{states} states");
    assert!(states > 1_000, "{states} states");
}

#[test]
fn each_part_of_the_rule_is_needed() {
    for bug in [
        Bug::AtIssue,
        Bug::OnOne,
        Bug::RootFirst,
        Bug::NoAgain,
        Bug::OlderRoot,
    ] {
        let (_, violation) = search(bug);
        assert!(violation.is_some(), "{bug:?} is not told from the rule");
    }
}
