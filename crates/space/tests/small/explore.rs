//! Breadth-first search through every state, and the run to rest from each.

use std::collections::{HashMap, HashSet};

use crate::state::{Array, Small, State};
use crate::steps::{
    check, checkpoint_step, client_can, give_up, go_on, in_flight, root, start_job, steps,
};

/// What a search found.
#[derive(Debug)]
pub struct Found {
    pub states: usize,
    pub steps: usize,
    /// The shortest story of a violation; its last line says what was violated.
    pub violation: Option<Vec<String>>,
}

/// Visits every state.
pub fn explore(array: &Array, most: usize) -> Found {
    let array = &Small::new(array);
    let mut search = Search {
        array,
        seen: HashMap::new(),
        story: Vec::new(),
        rests: HashSet::new(),
    };
    let first = State::new(array);
    search.seen.insert(first.key(array), 0);
    search.story.push((0, String::new()));
    let mut waiting = std::collections::VecDeque::from([(0usize, first)]);
    let mut taken = 0;
    while let Some((at, state)) = waiting.pop_front() {
        let checked = check(array, &state).and_then(|()| search.comes_to_rest(&state));
        if let Err(what) = checked {
            return search.found(taken, at, vec![show(&state), format!("VIOLATED: {what}")]);
        }
        let mut bad = None;
        steps(array, &state, &mut |name, next| {
            taken += 1;
            match next {
                Ok(mut next) => {
                    next.settle();
                    let key = next.key(array);
                    let number = search.story.len();
                    if let std::collections::hash_map::Entry::Vacant(entry) = search.seen.entry(key)
                    {
                        entry.insert(number);
                        search.story.push((at, name.to_string()));
                        waiting.push_back((number, next));
                    }
                }
                Err(what) => {
                    bad.get_or_insert_with(|| vec![name.to_string(), format!("VIOLATED: {what}")]);
                }
            }
        });
        if let Some(bad) = bad {
            return search.found(taken, at, [vec![show(&state)], bad].concat());
        }
        assert!(search.seen.len() <= most, "more than {most} states");
    }
    search.found(taken, 0, Vec::new())
}

struct Search<'a> {
    array: &'a Small,
    seen: HashMap<Vec<u8>, usize>,
    /// The state before each, and the step from it.
    story: Vec<(usize, String)>,
    /// States from which the array is known to come to rest, with room for clients.
    rests: HashSet<Vec<u8>>,
}

impl Search<'_> {
    fn found(&self, steps: usize, mut at: usize, end: Vec<String>) -> Found {
        let mut story: Vec<String> = end;
        if story.is_empty() {
            return Found {
                states: self.seen.len(),
                steps,
                violation: None,
            };
        }
        while at != 0 {
            story.insert(0, self.story[at].1.clone());
            at = self.story[at].0;
        }
        Found {
            states: self.seen.len(),
            steps,
            violation: Some(story),
        }
    }

    /// Whether jobs and checkpoints end, each job with a lower measure, and clients can go on then.
    fn comes_to_rest(&mut self, state: &State) -> Result<(), &'static str> {
        let mut way: Vec<Vec<u8>> = Vec::new();
        let mut state = state.clone();
        let mut before = None;
        // Whether a job was begun and done since.
        let mut worked = false;
        for _ in 0..300 {
            let key = state.key(self.array);
            if self.rests.contains(&key) {
                self.rests.extend(way);
                return Ok(());
            }
            way.push(key);
            if in_flight(&state) == 0 && state.roots == 0 && state.dirty == 0 {
                let mut measure =
                    ashlar_space::measure::measure(&state.index(self.array), state.plan(), false);
                measure.waste += state.dead_in_open();
                let uneven: u64 = state
                    .ledger
                    .coming()
                    .iter()
                    .map(|n| u64::from(*n).pow(2))
                    .sum();
                let now = (measure, uneven);
                let lower = |before| if worked { now < before } else { now <= before };
                if !before.is_none_or(lower) {
                    return Err("a job does not lower the measure");
                }
                before = Some(now);
                worked = false;
            }
            match self.next(&state)? {
                Some(next) => {
                    worked |= in_flight(&next) > in_flight(&state);
                    state = next;
                }
                None if client_can(&state) => {
                    self.rests.extend(way);
                    return Ok(());
                }
                None => {
                    if std::env::var("ASHLAR_SHOW").is_ok() {
                        println!("AT REST\n{}", show(&state));
                    }
                    return Err("a client cannot go on");
                }
            }
            state.settle();
        }
        Err("it does not come to rest")
    }

    /// The next step but for clients, losses and reckonings.
    fn next(&self, state: &State) -> Result<Option<State>, &'static str> {
        if let Some(next) = root(self.array, state) {
            return Ok(Some(next));
        }
        let going = (0..state.segs.len()).find_map(|at| go_on(state, at));
        if let Some(next) = going {
            return Ok(Some(next));
        }
        if in_flight(state) == 0
            && let Some(next) = start_job(self.array, state)
        {
            return Ok(Some(next));
        }
        if let Some(next) = checkpoint_step(self.array, state).into_iter().next() {
            return next.map(Some);
        }
        Ok(give_up(state))
    }
}

/// A state in a few lines.
fn show(state: &State) -> String {
    let mut text = format!(
        "lost {:b} plan {:?} floors {:?} client {:?} moves {:?} columns {:?} dirty {} roots {}\n",
        state.lost,
        state.plan(),
        state.ledger.floors(),
        state.client,
        state.moves,
        state.columns,
        state.dirty,
        state.roots
    );
    for seg in &state.segs {
        text += &format!(
            "  {:?} {}+{} on {:b} written {} live {} {:?}\n",
            seg.area, seg.k, seg.m, seg.on, seg.written, seg.live, seg.what
        );
    }
    for device in 0..state.ledger.topology().members().len() as u16 {
        text += &format!(
            "  {device}: {:?} free {}\n",
            state.ledger.book(device),
            state.ledger.book(device).free()
        );
    }
    text
}
