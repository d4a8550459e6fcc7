//! From a history that fails to the smallest one that fails in the same way: fewer sessions, clients
//! and operations, without the parts that the failure does not need; and a test of it.
//!
//! Invariants: what is given fails, and fails as the seed did (the text up to its first number). A
//! history with a part left out is another history, so neighbouring seeds are tried as well.

use crate::config::{Mode, Options, Part};
use crate::driver::{Outcome, run_seed};
use crate::store::Subject;

/// A small history that fails.
#[derive(Clone, Debug)]
pub struct Small {
    /// Its seed.
    pub seed: u64,
    /// Its options.
    pub options: Options,
    /// Operations of clients in it.
    pub operations: u64,
    /// How it fails.
    pub failure: String,
    /// What clients, disks and nemesis did, without single device operations.
    pub story: Vec<String>,
}

/// What a failure is about: its text up to the first number.
fn kind(failure: &str) -> &str {
    let end = failure.find(|c: char| c.is_ascii_digit());
    &failure[..end.unwrap_or(failure.len())]
}

/// The smallest history found that fails as `seed` does; `None` if that passes. `tries` seeds are tried
/// for every part that might be left out.
pub fn shrink(subject: &dyn Subject, seed: u64, options: Options, tries: u64) -> Option<Small> {
    let quiet = Options {
        trace: false,
        ..options
    };
    let first = run_seed(subject, seed, quiet);
    let wanted = kind(first.failure.as_ref()?).to_string();
    let mut best = (quiet, first);
    let mut again = true;
    while again {
        again = false;
        for options in smaller(best.0, best.1.operations) {
            if let Some(found) = search(subject, options, best.1.seed, tries, &wanted)
                && (found.operations <= best.1.operations)
            {
                again |= found.operations < best.1.operations;
                best = (options, found);
            }
        }
    }
    let traced = Options {
        trace: true,
        ..best.0
    };
    let told = run_seed(subject, best.1.seed, traced);
    let events = [
        "client", "nemesis", "CRASH", "session", "import,", "damage", "LOST", "fault",
    ];
    let story = told
        .lines
        .into_iter()
        .filter(|line| events.iter().any(|event| line.contains(event)))
        .filter(|line| !line.contains(": Ok(()"))
        .collect();
    Some(Small {
        seed: best.1.seed,
        options: best.0,
        operations: best.1.operations,
        failure: told.failure.unwrap_or(wanted),
        story,
    })
}

/// The first seed from `from` on that fails as wanted.
fn search(
    subject: &dyn Subject,
    options: Options,
    from: u64,
    tries: u64,
    wanted: &str,
) -> Option<Outcome> {
    (from..from + tries)
        .map(|seed| run_seed(subject, seed, options))
        .find(|outcome| {
            outcome
                .failure
                .as_ref()
                .is_some_and(|failure| kind(failure) == wanted)
        })
}

/// Options that leave out one thing more.
fn smaller(options: Options, operations: u64) -> Vec<Options> {
    let mut all = Vec::new();
    if options.clients != Some(1) {
        all.push(Options {
            clients: Some(1),
            ..options
        });
    }
    for rounds in [1, 2] {
        if options.rounds.is_none_or(|now| rounds < now) {
            all.push(Options {
                rounds: Some(rounds),
                ..options
            });
        }
    }
    let now = options.operations.unwrap_or(operations.min(64));
    for fewer in [now / 4, now / 2, now.saturating_sub(1)] {
        if fewer > 0 && fewer < now {
            all.push(Options {
                operations: Some(fewer),
                ..options
            });
        }
    }
    for part in Part::ALL {
        if options.without & part.bit() == 0 {
            all.push(Options {
                without: options.without | part.bit(),
                ..options
            });
        }
    }
    if options.mode.is_none() {
        for mode in [Mode::Crash, Mode::Within] {
            all.push(Options {
                mode: Some(mode),
                ..options
            });
        }
    }
    all
}

impl Small {
    /// A test that fails as long as this history does, with its story.
    pub fn test(&self) -> String {
        let mut text = format!("/// {}\n///\n", one_line(&self.failure));
        for line in self.story.iter().rev().take(24).rev() {
            text += &format!("/// {}\n", one_line(line.trim()));
        }
        let o = &self.options;
        text += &format!(
            "#[test]\nfn seed_{}() {{\n    let options = Options {{\n        mode: {},\n        rounds: {:?},\n        clients: {:?},\n        crash_at: {:?},\n        roomy: {},\n        full: {},\n        grouped: {},\n        pressed: {},\n        told: {},\n        late: {},\n        operations: {:?},\n        without: 0x{:x},\n        ..Options::default()\n    }};\n    assert_eq!(run_seed(&Engine, {}, options).failure, None);\n}}\n",
            self.seed,
            o.mode
                .map_or("None".to_string(), |mode| format!("Some(Mode::{mode:?})")),
            o.rounds,
            o.clients,
            o.crash_at,
            o.roomy,
            o.full,
            o.grouped,
            o.pressed,
            o.told,
            o.late,
            o.operations,
            o.without,
            self.seed
        );
        text
    }
}

fn one_line(text: &str) -> String {
    text.chars()
        .take(110)
        .map(|c| if c == '\n' { ' ' } else { c })
        .collect()
}
