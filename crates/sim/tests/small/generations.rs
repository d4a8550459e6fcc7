//! Generations and the start rule (R10): who may go on, and who may start by himself.
//!
//! One host at a time loses devices, drops them by a new generation, acknowledges writes under it,
//! loses its power at any moment, and starts again with any devices that happen to be visible.
//! Violated when an array starts by itself from a history that lacks acknowledged writes.

use ashlar_engine::{Holder, decide};
use ashlar_format::superblock::{self, MemberEntry, MemberState};

use crate::explore::{Model, explore};

/// Which rule is modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// Start with more than half of what the newest visible generation counts; a generation takes
    /// effect as soon as those that are left have stored it.
    Majority,
    /// As R10, but a generation with more visible holders wins over a rival of the same number.
    MostHolders,
    /// As R10, but what a start goes on from need not have been in effect.
    AnyNewest,
    /// As R10, but only what the visible devices hold of a generation is looked at: what the others
    /// may hold is forgotten when a rival is set aside.
    VisibleHolders,
    /// R10, a start as the engine decides it: a generation takes effect when half of those counted before have stored
    /// it, and then its root goes to every device; a start needs more than half of those that the newest visible one
    /// counts, or all. A generation of which no root is seen and that too few devices would hold even
    /// if all that are not visible did never took effect: it is set aside, for a rival or for the one
    /// before it; a rival that took effect for certain wins; other rivals are refused. A newest generation that may
    /// have been cut off (no root seen, too few holders visible) needs more than half of those counted before as well,
    /// or all, and is stored again, until it is in effect, before anything else. A device that comes back is counted by a
    /// generation that it stores itself only once that is in effect.
    R10,
    /// As R10, but a device that comes back may be the first to store the generation that counts it.
    ReturningFirst,
}

impl Rule {
    /// Whether starts are decided by the engine.
    fn is_engines(self) -> bool {
        matches!(self, Rule::R10 | Rule::ReturningFirst)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Generation {
    number: u8,
    counted: u8,
    parent: u8,
    acknowledged: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Host {
    Down,
    Up {
        now: u8,
        pending: Option<u8>,
        reach: u8,
        /// `now` may never have been in effect: it is stored again first.
        unsure: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    generations: Vec<Generation>,
    stored: [u8; 6],
    /// Devices with a root of the generation they store.
    rooted: u8,
    host: Host,
}

struct Membership {
    devices: u8,
    generations: usize,
    rule: Rule,
    /// States that differ only in the numbers of the devices count as one.
    symmetric: bool,
}

/// What decides how a device differs from another: what it stores, whether it has a root of that and is
/// reached, and which generations count it.
type Signature = (u8, [u8; 2], Vec<u8>);

fn ones(mask: u8) -> u32 {
    mask.count_ones()
}

/// More than half of `counted`, or all.
fn enough(visible: u8, counted: u8) -> bool {
    let there = visible & counted;
    ones(there) * 2 > ones(counted) || there == counted
}

impl State {
    fn holders(&self, generation: u8, among: u8) -> u8 {
        (0..6u8)
            .filter(|d| among & (1 << d) != 0 && self.stored[usize::from(*d)] == generation)
            .fold(0, |mask, d| mask | 1 << d)
    }

    /// The same state with its devices in a fixed order.
    fn canonical(&self, devices: u8) -> State {
        let reach = match self.host {
            Host::Up { reach, .. } => reach,
            Host::Down => 0,
        };
        let bit = |mask: u8, device: u8| mask >> device & 1;
        let mut all: Vec<Signature> = (0..devices)
            .map(|d| {
                let counted = self.generations.iter().map(|g| bit(g.counted, d));
                (
                    self.stored[usize::from(d)],
                    [bit(reach, d), bit(self.rooted, d)],
                    counted.collect(),
                )
            })
            .collect();
        all.sort_unstable();
        let mut next = self.clone();
        let mask = |of: &dyn Fn(&Signature) -> u8| {
            (0u8..)
                .zip(&all)
                .fold(0, |mask, (d, all)| mask | of(all) << d)
        };
        for (number, generation) in next.generations.iter_mut().enumerate() {
            generation.counted = mask(&|all| all.2[number]);
        }
        if let Host::Up { reach, .. } = &mut next.host {
            *reach = mask(&|all| all.1[0]);
        }
        next.rooted = mask(&|all| all.1[1]);
        for (slot, all) in next.stored.iter_mut().zip(&all) {
            *slot = all.0;
        }
        next
    }

    fn counted(&self, generation: u8) -> u8 {
        self.generations[usize::from(generation)].counted
    }

    /// What superblocks of the generations say, of `devices` devices.
    fn superblocks(&self, devices: u8) -> Vec<(superblock::Generation, Vec<MemberEntry>)> {
        let id = |number: u8| [number + 1; 16];
        let superblock = |(number, generation): (u8, &Generation)| {
            let first = number == 0;
            let before = self.counted(generation.parent).count_ones() as u16;
            let state = |device: u8| match generation.counted >> device & 1 {
                1 => MemberState::Online,
                _ => MemberState::Failed,
            };
            let member = |device| MemberEntry {
                uuid: id(device),
                slots: 0,
                state: state(device),
                stale_since: 0,
                group: Some(0),
                first_epoch: 1,
                domain_since: 0,
                domain: String::new(),
            };
            let says = superblock::Generation {
                number: generation.number.into(),
                id: id(number),
                past: match first {
                    true => Vec::new(),
                    false => vec![id(generation.parent)],
                },
                before: if first { 0 } else { before },
            };
            (says, (0..devices).map(member).collect())
        };
        (0u8..).zip(&self.generations).map(superblock).collect()
    }

    /// Whether `old` is `generation` or one of those it comes from.
    fn descends(&self, mut generation: u8, old: u8) -> bool {
        loop {
            if generation == old {
                return true;
            }
            if generation == 0 {
                return false;
            }
            generation = self.generations[usize::from(generation)].parent;
        }
    }
}

impl Membership {
    /// The generation that `visible` devices start from by themselves, and whether it may never have
    /// been in effect.
    fn start(&self, state: &State, visible: u8) -> Option<(u8, bool)> {
        match self.rule {
            rule if rule.is_engines() => self.engine_start(state, visible),
            _ => self.weak_start(state, visible),
        }
    }

    /// As the engine decides it.
    fn engine_start(&self, state: &State, visible: u8) -> Option<(u8, bool)> {
        let said = state.superblocks(self.devices);
        let there = (0..self.devices).filter(|d| visible >> d & 1 == 1);
        let holder = |device: u8| {
            let (generation, members) = &said[usize::from(state.stored[usize::from(device)])];
            Holder {
                device: members[usize::from(device)].uuid,
                index: device.into(),
                writes: 0,
                generation,
                members,
                rooted: Some(state.rooted >> device & 1 == 1),
            }
        };
        let here: Vec<Holder<'_>> = there.map(holder).collect();
        let decision = decide(&here, false).ok()?;
        let chosen = here[decision.newest].generation.id[0] - 1;
        let members = self.members(state, visible, chosen);
        enough(members, state.counted(chosen)).then_some((chosen, decision.unsure))
    }

    /// The visible devices that an import uses: of those that are counted not the ones whose superblock is older than
    /// the newest root that is visible.
    fn members(&self, state: &State, visible: u8, chosen: u8) -> u8 {
        let number = |d: u8| {
            let stored = state.stored[usize::from(d)];
            state.generations[usize::from(stored)].number
        };
        let counted = (0..self.devices).filter(|d| visible & state.counted(chosen) >> d & 1 == 1);
        let rooted = (0..self.devices).filter(|d| (visible & state.rooted) >> d & 1 == 1);
        let root = rooted.map(number).max().unwrap_or(0);
        let used = counted.filter(|d| !self.rule.is_engines() || number(*d) >= root);
        used.fold(0, |mask, d| mask | 1 << d)
    }

    /// As a weaker rule would have it.
    fn weak_start(&self, state: &State, visible: u8) -> Option<(u8, bool)> {
        let seen = |g: &u8| state.holders(*g, visible) != 0;
        let known: Vec<u8> = (0..state.generations.len() as u8).filter(seen).collect();
        let number = |g: &u8| state.generations[usize::from(*g)].number;
        let newest = known.iter().map(number).max()?;
        let rivals: Vec<u8> = known.into_iter().filter(|g| number(g) == newest).collect();
        let parent = |g: u8| state.generations[usize::from(g)].parent;
        let sure = |g: u8| self.surely_in_effect(state, visible, g);
        let (chosen, in_effect) = match self.rule {
            Rule::MostHolders => {
                let chosen = self.most_holders(state, visible, &rivals)?;
                (chosen, sure(chosen))
            }
            Rule::VisibleHolders => {
                let (never, mut may): (Vec<u8>, Vec<u8>) =
                    rivals.iter().partition(|g| self.never(state, visible, **g));
                if may.iter().any(|g| sure(*g)) {
                    may.retain(|g| sure(*g));
                }
                let before = never.first().map(|g| parent(*g));
                let before = before.filter(|p| never.iter().all(|g| parent(*g) == *p));
                let before = before.filter(|p| state.holders(*p, visible) != 0);
                match (may[..].as_ref(), before, &never[..]) {
                    ([one], _, _) => (*one, sure(*one)),
                    ([], Some(before), _) => (before, true),
                    ([], None, [one]) => (*one, false),
                    _ => return None,
                }
            }
            _ if rivals.len() > 1 => return None,
            _ => (rivals[0], true),
        };
        if !enough(visible, state.counted(chosen)) {
            return None;
        }
        let before = state.counted(parent(chosen));
        (in_effect || enough(visible, before)).then_some((chosen, !in_effect))
    }

    /// Whether what is visible proves that a generation was in effect.
    fn surely_in_effect(&self, state: &State, visible: u8, generation: u8) -> bool {
        let holders = state.holders(generation, visible);
        let before = state.counted(state.generations[usize::from(generation)].parent);
        generation == 0 || ones(holders) * 2 >= ones(before)
    }

    /// Whether a generation never took effect, if nobody holds it but those that are visible.
    fn never(&self, state: &State, visible: u8, generation: u8) -> bool {
        let holders = state.holders(generation, visible);
        let before = state.counted(state.generations[usize::from(generation)].parent);
        generation != 0 && holders & state.rooted == 0 && ones(holders) * 2 < ones(before)
    }

    /// The rival that most of the visible devices hold, if no other can have been in effect.
    fn most_holders(&self, state: &State, visible: u8, rivals: &[u8]) -> Option<u8> {
        let held = |g: &u8| ones(state.holders(*g, visible));
        let all = rivals.iter().fold(0, |mask, g| mask | state.counted(*g));
        let winner = *rivals.iter().max_by_key(|g| held(g))?;
        let beaten = |g: &u8| held(g) < held(&winner) && held(g) * 2 < ones(all);
        rivals
            .iter()
            .all(|g| *g == winner || beaten(g))
            .then_some(winner)
    }

    fn starts(&self, state: &State, go: &mut dyn FnMut(String, Result<State, &'static str>)) {
        for visible in 1..1u8 << self.devices {
            let Some((chosen, unsure)) = self.start(state, visible) else {
                continue;
            };
            let name = format!(
                "devices {visible:06b} are visible: starts by itself from generation {chosen}"
            );
            let lost = (0..state.generations.len() as u8).any(|g| {
                state.generations[usize::from(g)].acknowledged && !state.descends(chosen, g)
            });
            if lost {
                go(name, Err("acknowledged writes are silently gone"));
                continue;
            }
            let mut next = state.clone();
            next.host = Host::Up {
                now: chosen,
                pending: None,
                reach: self.members(state, visible, chosen),
                unsure,
            };
            go(name, Ok(next));
        }
    }

    /// Whether `pending` is in effect.
    fn in_effect(&self, state: &State, now: u8, pending: u8, reach: u8) -> bool {
        let stored = state.holders(pending, 0x3F);
        let counted = state.counted(now);
        match self.rule {
            Rule::Majority => stored & state.counted(pending) == state.counted(pending) & reach,
            _ => ones(stored & counted) * 2 >= ones(counted),
        }
    }

    /// Each device that is reached and counted may store a generation.
    fn stores(
        &self,
        state: &State,
        generation: u8,
        reach: u8,
        go: &mut dyn FnMut(String, Result<State, &'static str>),
    ) {
        let mut may = reach & state.counted(generation) & !state.holders(generation, 0x3F);
        let before = state.generations[usize::from(generation)].parent;
        let effective = self.in_effect(state, before, generation, reach);
        if generation > 0 && !effective && self.rule != Rule::ReturningFirst {
            may &= state.counted(before);
        }
        for device in (0..self.devices).filter(|d| may & (1 << d) != 0) {
            let mut next = state.clone();
            next.stored[usize::from(device)] = generation;
            next.rooted &= !(1 << device);
            go(
                format!("device {device} stores generation {generation}"),
                Ok(next),
            );
        }
    }

    fn runs(
        &self,
        state: &State,
        (now, pending, reach, unsure): (u8, Option<u8>, u8, bool),
        go: &mut dyn FnMut(String, Result<State, &'static str>),
    ) {
        let with = |host: Host| State {
            host,
            ..state.clone()
        };
        go("power cut".to_string(), Ok(with(Host::Down)));
        let up = |now, pending, reach, unsure| Host::Up {
            now,
            pending,
            reach,
            unsure,
        };
        for device in (0..self.devices).filter(|d| reach & (1 << d) != 0 && ones(reach) > 1) {
            let lost = up(now, pending, reach & !(1 << device), unsure);
            go(format!("device {device} drops out"), Ok(with(lost)));
        }
        let counted = state.counted(now);
        if unsure {
            self.stores(state, now, reach, go);
            let before = state.generations[usize::from(now)].parent;
            if self.in_effect(state, before, now, reach) {
                let host = up(now, None, reach, false);
                go(format!("generation {now} is in effect"), Ok(with(host)));
            }
            return;
        }
        if pending.is_none() && self.rule.is_engines() {
            self.stores(state, now, reach, go);
            let stored = state.holders(now, reach & counted);
            let may = if stored == reach & counted {
                stored & !state.rooted
            } else {
                0
            };
            for device in (0..self.devices).filter(|d| may & (1 << d) != 0) {
                let mut next = state.clone();
                next.rooted |= 1 << device;
                go(
                    format!("device {device} has a root of generation {now}"),
                    Ok(next),
                );
            }
        }
        if pending.is_none() && self.rule.is_engines() && reach & counted == counted {
            self.returns(state, now, reach, go);
        }
        let everywhere = state.holders(now, counted) & state.rooted == counted;
        match pending {
            None if reach & counted == counted && self.rule.is_engines() && !everywhere => {}
            None if reach & counted == counted => {
                let mut next = state.clone();
                next.generations[usize::from(now)].acknowledged = true;
                go(format!("generation {now} acknowledges a write"), Ok(next));
            }
            None if state.generations.len() < self.generations => {
                let mut next = state.clone();
                let made = next.generations.len() as u8;
                next.generations.push(Generation {
                    number: state.generations[usize::from(now)].number + 1,
                    counted: reach & counted,
                    parent: now,
                    acknowledged: false,
                });
                next.host = up(now, Some(made), reach, unsure);
                go(
                    format!("generation {made} is made, of {:06b}", reach & counted),
                    Ok(next),
                );
            }
            None => {}
            Some(made) => {
                self.stores(state, made, reach, go);
                if self.in_effect(state, now, made, reach) {
                    let host = up(made, None, reach, false);
                    go(format!("generation {made} takes effect"), Ok(with(host)));
                }
            }
        }
    }
}

impl Membership {
    /// Each device that is not counted may come back, as it is.
    fn returns(
        &self,
        state: &State,
        now: u8,
        reach: u8,
        go: &mut dyn FnMut(String, Result<State, &'static str>),
    ) {
        if state.generations.len() >= self.generations {
            return;
        }
        let counted = state.counted(now);
        for device in (0..self.devices).filter(|d| counted >> d & 1 == 0) {
            let mut next = state.clone();
            let made = next.generations.len() as u8;
            next.generations.push(Generation {
                number: state.generations[usize::from(now)].number + 1,
                counted: counted | 1 << device,
                parent: now,
                acknowledged: false,
            });
            next.host = Host::Up {
                now,
                pending: Some(made),
                reach: reach | 1 << device,
                unsure: false,
            };
            go(
                format!("generation {made} is made: device {device} comes back"),
                Ok(next),
            );
        }
    }
}

impl Model for Membership {
    type State = State;

    fn first(&self) -> State {
        State {
            generations: vec![Generation {
                number: 1,
                counted: ((1u16 << self.devices) - 1) as u8,
                parent: 0,
                acknowledged: true,
            }],
            stored: [0; 6],
            rooted: ((1u16 << self.devices) - 1) as u8,
            host: Host::Down,
        }
    }

    fn steps(&self, state: &State, go: &mut dyn FnMut(String, Result<State, &'static str>)) {
        let go: &mut dyn FnMut(String, Result<State, &'static str>) = &mut |name, next| {
            let next = next.map(|next| match self.symmetric {
                true => next.canonical(self.devices),
                false => next,
            });
            go(name, next);
        };
        match state.host {
            Host::Down => self.starts(state, go),
            Host::Up {
                now,
                pending,
                reach,
                unsure,
            } => self.runs(state, (now, pending, reach, unsure), go),
        }
    }
}

fn search(devices: u8, generations: usize, rule: Rule) -> (usize, Option<Vec<String>>) {
    let model = Membership {
        devices,
        generations,
        rule,
        symmetric: rule.is_engines(),
    };
    let found = explore(&model, 4_000_000);
    (found.states, found.violation)
}

#[test]
fn s10_never_starts_from_a_history_that_lacks_acknowledged_writes() {
    for (devices, generations) in [(1, 4), (2, 5), (3, 5), (4, 4), (5, 3), (6, 3)] {
        let (states, violation) = search(devices, generations, Rule::R10);
        let told = violation.as_ref().map(|story| story.join("\n"));
        assert_eq!(told, None, "P = {devices}, {states} states");
        assert!(states > 1, "P = {devices}: {states} states");
    }
}

#[test]
fn weaker_rules_lose_acknowledged_writes() {
    let cases = [
        (Rule::Majority, 3..=6),
        (Rule::MostHolders, 5..=5),
        (Rule::AnyNewest, 5..=6),
        (Rule::VisibleHolders, 5..=6),
        (Rule::ReturningFirst, 4..=5),
    ];
    for (rule, devices) in cases {
        for devices in devices {
            let generations = if rule == Rule::ReturningFirst { 4 } else { 3 };
            let (_, violation) = search(devices, generations, rule);
            let story = violation.unwrap_or_else(|| panic!("{rule:?}, P = {devices}: none found"));
            assert!(story.last().unwrap().contains("silently gone"), "{story:?}");
        }
    }
}

/// What is visible decides: 9 devices lost 4 at once; of the 5 that go on, 3 are found again.
#[test]
fn a_root_of_the_newest_generation_is_enough_where_too_few_holders_are_left() {
    let model = Membership {
        devices: 6,
        generations: 2,
        rule: Rule::R10,
        symmetric: false,
    };
    let mut state = model.first();
    state.generations.push(Generation {
        number: 2,
        counted: 0b000_111,
        parent: 0,
        acknowledged: true,
    });
    state.stored = [1, 1, 1, 0, 0, 0];
    state.rooted = 0b111_111;
    assert_eq!(model.start(&state, 0b000_011), Some((1, false)));
    assert_eq!(model.start(&state, 0b000_001), None);
    // Without a root it may have been cut off.
    state.rooted = 0b111_000;
    assert_eq!(model.start(&state, 0b000_011), None);
    assert_eq!(model.start(&state, 0b011_011), Some((1, true)));
    // Known to be on too few: the one before holds.
    state.stored = [1, 1, 0, 0, 0, 0];
    assert_eq!(model.start(&state, 0b011_111), Some((0, false)));
    assert_eq!(model.start(&state, 0b011_011), Some((1, true)));
}
