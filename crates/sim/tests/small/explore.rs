//! Breadth-first search through every state of a small model.
//!
//! Invariants: states are equal or not by value alone; the story given is a shortest one.

use std::collections::HashSet;
use std::hash::Hash;

/// A protocol as states and steps.
pub trait Model {
    /// Everything that decides what may happen next.
    type State: Clone + Eq + Hash;

    /// Where it begins.
    fn first(&self) -> Self::State;

    /// Calls `go` with every state one step away and the step's name; an `Err` is a violation, with
    /// what was violated.
    fn steps(
        &self,
        state: &Self::State,
        go: &mut dyn FnMut(String, Result<Self::State, &'static str>),
    );
}

/// What a search found.
#[derive(Debug)]
pub struct Found {
    /// States visited.
    pub states: usize,
    /// The shortest story of a violation, its last line what was violated.
    pub violation: Option<Vec<String>>,
}

/// Visits every state; at most `most`, so that a model that grows without bound fails its test.
pub fn explore<M: Model>(model: &M, most: usize) -> Found {
    let mut seen: HashSet<M::State> = HashSet::new();
    let mut states: Vec<(M::State, usize, String)> = Vec::new();
    let first = model.first();
    seen.insert(first.clone());
    states.push((first, 0, String::new()));
    let mut at = 0;
    while at < states.len() {
        let state = states[at].0.clone();
        let mut new = Vec::new();
        let mut bad = None;
        model.steps(&state, &mut |name, next| match next {
            Ok(next) => {
                if seen.insert(next.clone()) {
                    new.push((next, at, name));
                }
            }
            Err(what) => {
                if bad.is_none() {
                    bad = Some((name, what));
                }
            }
        });
        if let Some((name, what)) = bad {
            let mut story = vec![format!("VIOLATED: {what}"), name];
            let mut back = at;
            while back != 0 {
                story.push(states[back].2.clone());
                back = states[back].1;
            }
            story.reverse();
            return Found {
                states: seen.len(),
                violation: Some(story),
            };
        }
        states.extend(new);
        assert!(states.len() <= most, "more than {most} states");
        at += 1;
    }
    Found {
        states: seen.len(),
        violation: None,
    }
}
