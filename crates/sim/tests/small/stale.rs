//! A member that leaves and comes back, twice, perhaps as an older image of itself: which of its columns count is
//! decided by the engine's own functions.
//!
//! One device with two slots beside the others, which hold whatever else there is. Segments are opened, written, sealed,
//! moved and freed; checkpoints have three steps. The device may leave between any two steps, with or without what it
//! had not flushed; one page of its slot table may become unreadable. Violated when a column counts that lacks anything
//! recorded of its segment.

use ashlar_engine::{Known, bound_of, choose_copy, is_whole};
use ashlar_format::slot::{SegmentKind, SlotEntry};

use crate::explore::{Model, explore};

/// Which rule is modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// The engine's.
    Engine,
    /// A segment need not have been sealed before the member left.
    AnySegment,
    /// The member counts as having seen all checkpoints until it left.
    NotProved,
    /// The headers of slots are not looked at.
    NoHeaders,
}

/// Segments at a time.
const SEGMENTS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    /// In this slot of the device.
    On(u8),
    /// On another device.
    Elsewhere,
    Missing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Segment {
    number: u8,
    recorded: u8,
    sealed: bool,
    sealed_in: u8,
    place: Place,
}

/// A slot as it is on the device: of which segment its header and its content are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Slot {
    segment: u8,
    stripes: u8,
    summary: bool,
}

/// A copy of the page of the slot table: the checkpoint, and the segment of each slot (0: none).
type Page = Option<(u8, [u8; 2])>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Disk {
    slots: [Slot; 2],
    pages: [Page; 2],
}

/// How far a checkpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Checkpoint {
    None,
    /// Liveness is imaged, and all devices were flushed.
    Imaged,
    /// The page is written.
    Paged,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    disk: Disk,
    durable: Disk,
    image: Option<Disk>,
    /// What the array says of the device's slots; freed ones wait for the next root.
    table: [u8; 2],
    freed: [bool; 2],
    present: u8,
    segments: Vec<Segment>,
    next: u8,
    checkpoint: u8,
    under_way: Checkpoint,
    /// While the device is away: the last checkpoint whose root counted it.
    away: Option<u8>,
    absences: u8,
    damaged: bool,
}

struct Member {
    rule: Rule,
    /// Segments that are opened in all.
    segments: u8,
    /// Stripes of each.
    stripes: u8,
    checkpoints: u8,
}

fn entry(segment: u8) -> SlotEntry {
    SlotEntry {
        segment: segment.into(),
        column: 0,
        version: 1,
        k: 1,
        m: 1,
        code: 0,
        kind: SegmentKind::Data,
        strip_blocks: 1,
    }
}

impl State {
    fn number(&self) -> u8 {
        self.checkpoint + 1
    }

    fn image_segments(&mut self) {
        let number = self.number();
        for segment in self
            .segments
            .iter_mut()
            .filter(|s| s.sealed && s.sealed_in == 0)
        {
            segment.sealed_in = number;
        }
    }

    fn leaves_slot(&mut self, slot: u8) {
        if self.away.is_none() {
            self.table[usize::from(slot)] = 0;
            self.freed[usize::from(slot)] = true;
        }
    }
}

impl Member {
    /// The device comes back. What counts of it must be whole.
    fn come(&self, state: &State, since: u8) -> Result<State, &'static str> {
        let numbers = state
            .disk
            .pages
            .map(|page| page.map(|(number, _)| u64::from(number)));
        let chosen = choose_copy(numbers, since.into()).0;
        let proved = bound_of(numbers.into_iter().flatten(), since.into());
        let bound = match self.rule {
            Rule::AnySegment => u64::MAX,
            Rule::NotProved => since.into(),
            _ => proved,
        };
        let page = chosen.and_then(|copy| state.disk.pages[usize::from(copy)]);
        let mut next = state.clone();
        next.table = [0; 2];
        for segment in &mut next.segments {
            if matches!(segment.place, Place::On(_)) {
                segment.place = Place::Missing;
            }
        }
        for (slot, named) in page
            .map_or([0; 2], |(_, named)| named)
            .into_iter()
            .enumerate()
        {
            let on_disk = state.disk.slots[slot];
            let Some(segment) = next.segments.iter_mut().find(|s| s.number == named) else {
                continue;
            };
            let known = Known {
                entry: entry(named),
                sealed_in: match self.rule {
                    Rule::AnySegment => 1,
                    _ => segment.sealed_in.into(),
                },
                elsewhere: segment.place == Place::Elsewhere,
            };
            let header = match self.rule {
                Rule::NoHeaders => entry(named),
                _ => entry(on_disk.segment),
            };
            if !is_whole(&known, &entry(named), Some(&header), bound) {
                continue;
            }
            let whole = on_disk.segment == named
                && on_disk.stripes == segment.recorded
                && (on_disk.summary || !segment.sealed);
            if !whole {
                return Err("a column counts that is not whole");
            }
            segment.place = Place::On(slot as u8);
            next.table[slot] = named;
        }
        next.freed = [false; 2];
        next.disk.pages = [Some((state.checkpoint, next.table)); 2];
        (next.durable, next.away, next.present) = (next.disk, None, 0);
        Ok(next)
    }

    fn segments_change(
        &self,
        state: &State,
        go: &mut dyn FnMut(String, Result<State, &'static str>),
    ) {
        let here = state.away.is_none();
        for (at, segment) in state.segments.iter().enumerate() {
            let on = match segment.place {
                Place::On(slot) if here => Some(usize::from(slot)),
                _ => None,
            };
            let number = segment.number;
            let with = |change: &dyn Fn(&mut State)| {
                let mut next = state.clone();
                change(&mut next);
                Ok(next)
            };
            if !segment.sealed && segment.recorded < self.stripes {
                let written = with(&|next| {
                    next.segments[at].recorded += 1;
                    if let Some(slot) = on {
                        next.disk.slots[slot].stripes += 1;
                        next.durable = next.disk; // what a record names was flushed
                    }
                });
                go(format!("a stripe of {number} is recorded"), written);
            }
            if !segment.sealed && segment.recorded > 0 {
                let sealed = with(&|next| {
                    next.segments[at].sealed = true;
                    if let Some(slot) = on {
                        next.disk.slots[slot].summary = true;
                    }
                });
                go(format!("{number} is sealed"), sealed);
            }
            let freed = with(&|next| {
                if let Some(slot) = on {
                    next.leaves_slot(slot as u8);
                }
                next.segments.remove(at);
            });
            go(format!("{number} is freed"), freed);
            if segment.sealed && segment.place != Place::Elsewhere {
                let moved = with(&|next| {
                    if let Some(slot) = on {
                        next.leaves_slot(slot as u8);
                    }
                    next.segments[at].place = Place::Elsewhere;
                });
                go(format!("the column of {number} goes elsewhere"), moved);
            }
            if segment.place == Place::Elsewhere {
                let lost = with(&|next| next.segments[at].place = Place::Missing);
                go(format!("the column of {number} is lost elsewhere"), lost);
            }
        }
        let free = (0..2).find(|slot| state.table[*slot] == 0 && !state.freed[*slot]);
        if let Some(slot) = free.filter(|_| here)
            && state.segments.len() < SEGMENTS
            && state.next <= self.segments
        {
            let mut next = state.clone();
            let number = state.next;
            next.next += 1;
            next.table[slot] = number;
            next.disk.slots[slot] = Slot {
                segment: number,
                ..Slot::default()
            };
            next.segments.push(Segment {
                number,
                recorded: 0,
                sealed: false,
                sealed_in: 0,
                place: Place::On(slot as u8),
            });
            go(format!("{number} is opened"), Ok(next));
        }
    }

    fn checkpoint(&self, state: &State, go: &mut dyn FnMut(String, Result<State, &'static str>)) {
        let mut next = state.clone();
        let here = state.away.is_none();
        match state.under_way {
            Checkpoint::None if state.checkpoint < self.checkpoints => {
                next.image_segments();
                if here {
                    next.durable = next.disk;
                }
                next.under_way = Checkpoint::Imaged;
                go("a checkpoint is imaged".to_string(), Ok(next));
            }
            Checkpoint::None => {}
            Checkpoint::Imaged => {
                if here {
                    let copy = 1 - usize::from(state.present);
                    next.disk.pages[copy] = Some((state.number(), state.table));
                }
                next.under_way = Checkpoint::Paged;
                go("its page is written".to_string(), Ok(next));
            }
            Checkpoint::Paged => {
                if here {
                    next.durable = next.disk;
                    next.present = 1 - state.present;
                    next.freed = [false; 2];
                }
                next.checkpoint = state.number();
                next.under_way = Checkpoint::None;
                go("its root is durable".to_string(), Ok(next));
            }
        }
    }
}

impl Model for Member {
    type State = State;

    fn first(&self) -> State {
        let disk = Disk {
            pages: [Some((0, [0; 2])), None],
            ..Disk::default()
        };
        State {
            disk,
            durable: disk,
            image: None,
            table: [0; 2],
            freed: [false; 2],
            present: 0,
            segments: Vec::new(),
            next: 1,
            checkpoint: 0,
            under_way: Checkpoint::None,
            away: None,
            absences: 0,
            damaged: false,
        }
    }

    fn steps(&self, state: &State, go: &mut dyn FnMut(String, Result<State, &'static str>)) {
        // A table that the array changes while a checkpoint writes it is the next one's.
        if state.under_way == Checkpoint::None {
            self.segments_change(state, go);
        }
        self.checkpoint(state, go);
        match state.away {
            None if state.absences < 2 => {
                for disk in [state.disk, state.durable] {
                    let mut next = state.clone();
                    (next.disk, next.durable) = (disk, disk);
                    next.away = Some(state.checkpoint);
                    next.absences += 1;
                    go("the device leaves".to_string(), Ok(next));
                }
            }
            None => {}
            Some(since) => {
                // A take-in and a checkpoint exclude each other.
                if state.under_way == Checkpoint::None {
                    go("the device is back".to_string(), self.come(state, since));
                }
                if let Some(image) = state.image.filter(|image| *image != state.disk) {
                    let mut next = state.clone();
                    (next.disk, next.durable) = (image, image);
                    go("an older image takes its place".to_string(), Ok(next));
                }
                let mut next = state.clone();
                for segment in &mut next.segments {
                    if matches!(segment.place, Place::On(_)) {
                        segment.place = Place::Missing;
                    }
                }
                if next != *state && state.under_way == Checkpoint::None {
                    go("an import without it".to_string(), Ok(next));
                }
                for copy in (0..2).filter(|_| !state.damaged) {
                    let mut next = state.clone();
                    next.damaged = true;
                    next.disk.pages[copy] = None;
                    next.durable = next.disk;
                    go(format!("copy {copy} of its page is unreadable"), Ok(next));
                }
            }
        }
        if state.image.is_none() {
            let mut next = state.clone();
            next.image = Some(state.durable);
            go("its image is kept".to_string(), Ok(next));
        }
    }
}

/// Segments, stripes of each, and checkpoints.
type Size = (u8, u8, u8);

fn search(rule: Rule, (segments, stripes, checkpoints): Size) -> (usize, Option<Vec<String>>) {
    let model = Member {
        rule,
        segments,
        stripes,
        checkpoints,
    };
    let found = explore(&model, 6_000_000);
    (found.states, found.violation)
}

/// In these sizes each weaker rule is found out: the second segment takes the slot of the first.
const SIZES: [(Rule, Size); 3] = [
    (Rule::AnySegment, (1, 2, 3)),
    (Rule::NotProved, (1, 2, 4)),
    (Rule::NoHeaders, (2, 1, 2)),
];

#[test]
fn a_member_that_was_away_counts_for_what_is_whole() {
    for (_, size) in SIZES {
        let (states, violation) = search(Rule::Engine, size);
        let told = violation.map(|story| story.join("\n"));
        assert_eq!(told, None, "{size:?}: {states} states");
        assert!(states > 1_000, "{states} states");
    }
}

#[test]
fn weaker_rules_count_what_is_not_whole() {
    for (rule, size) in SIZES {
        let (states, violation) = search(rule, size);
        assert!(violation.is_some(), "{rule:?}: none in {states} states");
    }
}
