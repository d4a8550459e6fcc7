//! Checkpoint numbers and the slot table's pages (R3, R7): which copy of a page an import believes, as the engine
//! decides it, over several power cuts.
//!
//! A device has two pages in two copies each. A checkpoint takes a number, writes some pages to the copies that the
//! last root does not use, then its root. Power goes at any moment, also while an import replaces what a checkpoint
//! left that never ended. Violated when an import believes a page that its root does not say.

use ashlar_engine::choose_copy;

use crate::explore::{Model, explore};

/// What may be wrong with the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// An import numbers on from its root, and leaves the pages of the checkpoint that died.
    PagesAdopted,
    /// An import takes a number that no page has, and leaves these pages: the next root is above them.
    PagesLeft,
    /// These pages are replaced only while the next checkpoint is under way.
    ReplacedLate,
    /// A page is written over the copy that the last root uses.
    InPlace,
    /// The root is written before the pages have been flushed.
    RootFirst,
}

const PAGES: usize = 2;
const MOST_CHECKPOINTS: u8 = 4;

/// A copy of a page: the checkpoint that wrote it, and what it says.
type Copy = (u8, u8);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    pages: [[Copy; 2]; PAGES],
    /// The newest root: its checkpoint, and what it says of each page.
    root: (u8, [u8; PAGES]),
    host: Host,
    /// Contents given out so far: no two are alike.
    contents: u8,
    crashes: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Host {
    Down,
    Up {
        /// The copy of each page that the root uses.
        used: [u8; PAGES],
        /// The number of the next checkpoint.
        next: u8,
        /// Copies that are to be replaced before anything else.
        replace: Vec<(u8, u8)>,
        /// A checkpoint under way: its number, what its pages will say, and which are still to be written.
        under_way: Option<(u8, [u8; PAGES], Vec<u8>)>,
    },
}

struct Pages(Bug);

type Go<'a> = dyn FnMut(String, Result<State, &'static str>) + 'a;

impl Pages {
    fn import(&self, state: &State, go: &mut Go<'_>) {
        let (checkpoint, says) = state.root;
        let mut used = [0; PAGES];
        let mut replace = Vec::new();
        for page in 0..PAGES {
            let copies = state.pages[page];
            let written_by = copies.map(|copy| Some(u64::from(copy.0)));
            let (newest, others) = choose_copy(written_by, checkpoint.into());
            let believed = newest.map(|copy| copies[usize::from(copy)].1);
            if believed != Some(says[page]) {
                let name = format!("an import from checkpoint {checkpoint}");
                return go(name, Err("a page is believed that the root does not say"));
            }
            used[page] = newest.unwrap_or(0);
            replace.extend(others.into_iter().map(|copy| (page as u8, copy)));
        }
        let on_pages = state.pages.iter().flatten().map(|copy| copy.0);
        let highest = on_pages.fold(checkpoint, u8::max);
        let next = match self.0 {
            Bug::PagesAdopted => checkpoint + 1,
            _ => highest + 1,
        };
        if matches!(self.0, Bug::PagesAdopted | Bug::PagesLeft) {
            replace.clear();
        }
        let mut to = state.clone();
        to.host = Host::Up {
            used,
            next,
            replace,
            under_way: None,
        };
        go(format!("an import from checkpoint {checkpoint}"), Ok(to));
    }

    fn replaces(&self, state: &State, go: &mut Go<'_>) {
        let Host::Up { replace, .. } = &state.host else {
            return;
        };
        for (page, copy) in replace {
            let mut to = state.clone();
            let at = usize::from(*page);
            to.pages[at][usize::from(*copy)] = (state.root.0, state.root.1[at]);
            if let Host::Up { replace, .. } = &mut to.host {
                replace.retain(|other| other != &(*page, *copy));
            }
            go(format!("copy {copy} of page {page} is replaced"), Ok(to));
        }
    }

    fn checkpoints(&self, state: &State, go: &mut Go<'_>) {
        let Host::Up {
            used,
            next,
            replace,
            under_way,
        } = &state.host
        else {
            return;
        };
        let Some((number, says, left)) = under_way else {
            if *next > MOST_CHECKPOINTS || !replace.is_empty() && self.0 != Bug::ReplacedLate {
                return;
            }
            for changed in [vec![0], vec![1], vec![0, 1]] {
                let mut to = state.clone();
                let mut says = state.root.1;
                for page in &changed {
                    to.contents += 1;
                    says[usize::from(*page)] = to.contents;
                }
                let name = format!("checkpoint {next} begins, pages {changed:?}");
                if let Host::Up {
                    next, under_way, ..
                } = &mut to.host
                {
                    *under_way = Some((*next, says, changed));
                    *next += 1;
                }
                go(name, Ok(to));
            }
            return;
        };
        for page in left {
            let mut to = state.clone();
            let at = usize::from(*page);
            let copy = match self.0 {
                Bug::InPlace => used[at],
                _ => 1 - used[at],
            };
            to.pages[at][usize::from(copy)] = (*number, says[at]);
            if let Host::Up {
                under_way: Some((_, _, left)),
                ..
            } = &mut to.host
            {
                left.retain(|other| other != page);
            }
            go(
                format!("page {page} of checkpoint {number} is durable"),
                Ok(to),
            );
        }
        if left.is_empty() || self.0 == Bug::RootFirst {
            let mut to = state.clone();
            to.root = (*number, *says);
            if let Host::Up {
                used, under_way, ..
            } = &mut to.host
            {
                for page in 0..PAGES {
                    used[page] ^= u8::from(says[page] != state.root.1[page]);
                }
                // What is still to be written goes with the power, or is as if it had been.
                *under_way = left.first().map(|_| (*number, *says, left.clone()));
            }
            go(
                format!("the root of checkpoint {number} is durable"),
                Ok(to),
            );
        }
    }
}

impl Model for Pages {
    type State = State;

    fn first(&self) -> State {
        State {
            pages: [[(1, 0), (0, 0)]; PAGES],
            root: (1, [0; PAGES]),
            host: Host::Down,
            contents: 0,
            crashes: 3,
        }
    }

    fn steps(&self, state: &State, go: &mut Go<'_>) {
        if state.host == Host::Down {
            return self.import(state, go);
        }
        self.replaces(state, go);
        self.checkpoints(state, go);
        if state.crashes > 0 {
            let mut to = state.clone();
            (to.host, to.crashes) = (Host::Down, state.crashes - 1);
            go("power cut".into(), Ok(to));
        }
    }
}

fn search(bug: Bug) -> (usize, Option<Vec<String>>) {
    let found = explore(&Pages(bug), 3_000_000);
    (found.states, found.violation)
}

#[test]
fn an_import_believes_the_pages_of_its_root_alone() {
    let (states, violation) = search(Bug::None);
    let told = violation.map(|story| story.join("\n"));
    assert_eq!(told, None, "{states} states");
    assert!(states > 1_000, "{states} states");
}

#[test]
fn each_part_of_the_rule_of_pages_is_needed() {
    for bug in [
        Bug::PagesAdopted,
        Bug::PagesLeft,
        Bug::ReplacedLate,
        Bug::InPlace,
        Bug::RootFirst,
    ] {
        let (_, violation) = search(bug);
        assert!(violation.is_some(), "{bug:?} is not told from the rule");
    }
}
