//! `ashlar-sim`: runs seeds of the simulator, or replays one.
//!
//! Invariants: the exit status is 0 when every seed passed, 1 when one failed, 2 for wrong usage;
//! what is printed for a failure includes the command that replays it.

mod commands;

use std::ops::Range;
use std::process::ExitCode;
use std::time::Instant;

use ashlar_sim::config::{Mode, Options};
use ashlar_sim::driver::run_seed;
use ashlar_sim::engine::Engine;
use ashlar_sim::run::{Batch, run_batch_telling, sweep};
use ashlar_sim::shrink::shrink;
use ashlar_sim::store::Subject;
use ashlar_sim::toy::{Plant, Toy};

pub(crate) const USAGE: &str = "\
usage: ashlar-sim run --seeds A..B [--jobs N] [--keep-going N] [--seconds N] [--twice] [OPTIONS]
       ashlar-sim sweep --seeds A..B [--step N] [OPTIONS]
       ashlar-sim replay SEED [--trace] [--lines N] [OPTIONS]
       ashlar-sim shrink SEED [--tries N] [OPTIONS]
       ashlar-sim enumerate [--length N] [--one-in N] [--jobs N] [--seconds N] [--quick]
       ashlar-sim enumerate --layout L --workload A,B --at N --image I [--lost MASK] [--again N --again-image I]
       ashlar-sim planted [--most N] [--seconds N] [--jobs N] [BUG ...]      (built with --features planted)

  run     one random history a seed
  sweep   the first session of each seed, crashed after every N polls (default 1)
  replay  one history, with its story
  shrink  the smallest history that fails as this one does, and a test of it
  enumerate  every workload of up to --length letters (default 2; of the longest ones one in
             --one-in), the power cut after every device operation; or one case, with its story
  planted    in how many seeds each bug that was made on purpose is found

  --mode calm|crash|within|beyond   what may go wrong (default: the seed decides)
  --rounds N, --clients N, --operations N    at most so many
  --without MASK                    parts of the history left out, as shrink says
  --roomy                           no full arrays
  --full                            full arrays only, where K is at most 4
  --grouped                         layouts of several groups only
  --pressed                         crashes as the journal presses, and slow imports
  --told                            a degraded array loses as many more devices as it says it survives
  --late                            parity and lost columns are computed by what answers late
  --crash-at POLLS                  one session, crashed there
  --toy                             drive the built-in toy store instead of the engine
  --marks                           print what was reached, and how often
  --unchecked                       without the checkers, to measure what they cost
  --verify-one-in N                 the independent verifier looks at one seed in N (default: all; 0: none)
  --verify-crashed                  it also looks at what is there before each import (else in one of 16)
  --quiet-panics                    no message at each panic inside a seed
";

#[derive(Clone, Debug, Default)]
struct Arguments {
    seeds: Option<Range<u64>>,
    seed: Option<u64>,
    jobs: usize,
    seconds: Option<u64>,
    step: Option<u64>,
    keep_going: usize,
    shrink: bool,
    tries: u64,
    twice: bool,
    trace: bool,
    lines: usize,
    toy: bool,
    marks: bool,
    quiet: bool,
    options: Options,
}

fn parse(words: &[String]) -> Option<Arguments> {
    let mut out = Arguments {
        jobs: 1,
        keep_going: 1,
        tries: 200,
        lines: 400,
        ..Arguments::default()
    };
    let mut words = words.iter();
    let command = words.next()?;
    if command == "replay" || command == "shrink" {
        out.shrink = command == "shrink";
        out.seed = Some(words.next()?.parse().ok()?);
    } else if command == "sweep" {
        out.step = Some(1);
    } else if command != "run" {
        return None;
    }
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seeds" => {
                let (from, to) = words.next()?.split_once("..")?;
                out.seeds = Some(from.parse().ok()?..to.parse().ok()?);
            }
            "--jobs" => out.jobs = words.next()?.parse().ok()?,
            "--keep-going" => out.keep_going = words.next()?.parse().ok()?,
            "--tries" => out.tries = words.next()?.parse().ok()?,
            "--lines" => out.lines = words.next()?.parse().ok()?,
            "--mode" => out.options.mode = Some(Mode::named(words.next()?)?),
            "--seconds" => out.seconds = Some(words.next()?.parse().ok()?),
            "--step" => out.step = Some(words.next()?.parse().ok()?),
            "--crash-at" => out.options.crash_at = Some(words.next()?.parse().ok()?),
            "--rounds" => out.options.rounds = Some(words.next()?.parse().ok()?),
            "--clients" => out.options.clients = Some(words.next()?.parse().ok()?),
            "--roomy" => out.options.roomy = true,
            "--full" => out.options.full = true,
            "--pressed" => out.options.pressed = true,
            "--grouped" => out.options.grouped = true,
            "--told" => out.options.told = true,
            "--late" => out.options.late = true,
            "--operations" => out.options.operations = Some(words.next()?.parse().ok()?),
            "--without" => {
                out.options.without = u64::from_str_radix(words.next()?, 16).ok()?;
            }
            "--twice" => out.twice = true,
            "--trace" => out.trace = true,
            "--toy" => out.toy = true,
            "--marks" => out.marks = true,
            "--quiet-panics" => out.quiet = true,
            "--verify-one-in" => out.options.verify = Some(words.next()?.parse().ok()?),
            "--verify-crashed" => out.options.verify_crashed = true,
            "--unchecked" => out.options.unchecked = true,
            _ => return None,
        }
    }
    (out.seed.is_some() || out.seeds.is_some()).then_some(out)
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "enumerate") {
        return commands::enumerate(&words[1..]);
    }
    #[cfg(feature = "planted")]
    if words.first().is_some_and(|word| word == "planted") {
        return commands::planted(&words[1..]);
    }
    #[cfg(feature = "planted")]
    if words.first().is_some_and(|word| word == "planted-one") {
        return commands::planted_one(&words[1..]);
    }
    let Some(arguments) = parse(&words) else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    if arguments.quiet {
        std::panic::set_hook(Box::new(|_| ()));
    }
    let passed = match (arguments.seed, &arguments.seeds) {
        (Some(seed), _) if arguments.shrink => shrink_seed(seed, &arguments),
        (Some(seed), _) => replay(seed, &arguments),
        (None, Some(seeds)) => match arguments.step {
            Some(step) => sweep_seeds(seeds.clone(), step, &arguments),
            None => run(seeds.clone(), &arguments),
        },
        (None, None) => false,
    };
    if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The options that a replay must repeat.
fn flags(arguments: &Arguments) -> String {
    let mut text = String::new();
    if let Some(mode) = arguments.options.mode {
        text += &format!(" --mode {}", format!("{mode:?}").to_lowercase());
    }
    if let Some(at) = arguments.options.crash_at {
        text += &format!(" --crash-at {at}");
    }
    if let Some(rounds) = arguments.options.rounds {
        text += &format!(" --rounds {rounds}");
    }
    if let Some(clients) = arguments.options.clients {
        text += &format!(" --clients {clients}");
    }
    if arguments.options.roomy {
        text += " --roomy";
    }
    if arguments.options.full {
        text += " --full";
    }
    if arguments.options.grouped {
        text += " --grouped";
    }
    if arguments.options.pressed {
        text += " --pressed";
    }
    if arguments.options.told {
        text += " --told";
    }
    if arguments.options.late {
        text += " --late";
    }
    if let Some(operations) = arguments.options.operations {
        text += &format!(" --operations {operations}");
    }
    if arguments.options.without != 0 {
        text += &format!(" --without {:x}", arguments.options.without);
    }
    if let Some(one_in) = arguments.options.verify {
        text += &format!(" --verify-one-in {one_in}");
    }
    if arguments.options.verify_crashed {
        text += " --verify-crashed";
    }
    if arguments.options.unchecked {
        text += " --unchecked";
    }
    if arguments.toy {
        text += " --toy";
    }
    text
}

fn run(seeds: Range<u64>, arguments: &Arguments) -> bool {
    let batch = Batch {
        jobs: arguments.jobs,
        most_failures: arguments.keep_going.max(1),
        twice: arguments.twice,
        seconds: arguments.seconds,
        options: arguments.options,
    };
    let begun = Instant::now();
    let flags = flags(arguments);
    // At once: a long run is looked at before its end.
    let tell = |seed: u64, failure: &str| {
        println!("seed {seed} FAILED: {failure}");
        println!("  replay: ashlar-sim replay {seed} --trace{flags}");
    };
    let summary = if arguments.toy {
        run_batch_telling(seeds, batch, || Toy(Plant::Nothing), tell)
    } else {
        run_batch_telling(seeds, batch, || Engine, tell)
    };
    let seconds = begun.elapsed().as_secs_f64();
    if arguments.marks {
        for (mark, count) in &summary.marks {
            println!("{count:>10}  {mark}");
        }
    }
    println!(
        "{} seeds, {} operations, histories {:016x}, {} failed, {seconds:.1} s, {:.0} seeds/s",
        summary.seeds,
        summary.operations,
        summary.hash,
        summary.failures.len(),
        summary.seeds as f64 / seconds.max(1e-9)
    );
    summary.failures.is_empty()
}

fn sweep_seeds(seeds: Range<u64>, step: u64, arguments: &Arguments) -> bool {
    let (mut total, mut failures) = (0, 0);
    for seed in seeds {
        let subject = subject(arguments.toy);
        let (points, failure) = sweep(&*subject, seed, step, arguments.options);
        total += points;
        if let Some((at, failure)) = failure {
            println!("seed {seed} crashed at poll {at} FAILED: {failure}");
            let flags = flags(arguments);
            println!("  replay: ashlar-sim replay {seed} --trace --crash-at {at}{flags}");
            failures += 1;
            if failures >= arguments.keep_going {
                break;
            }
        }
    }
    println!("{total} crash points, {failures} seeds failed");
    failures == 0
}

fn shrink_seed(seed: u64, arguments: &Arguments) -> bool {
    let subject = subject(arguments.toy);
    let Some(small) = shrink(&*subject, seed, arguments.options, arguments.tries) else {
        println!("seed {seed} passes");
        return true;
    };
    let mut found = arguments.clone();
    found.options = small.options;
    println!("{}", small.failure);
    println!("{} operations", small.operations);
    println!(
        "  replay: ashlar-sim replay {} --trace{}",
        small.seed,
        flags(&found)
    );
    println!("\n{}", small.test());
    false
}

fn subject(toy: bool) -> Box<dyn Subject> {
    if toy {
        Box::new(Toy(Plant::Nothing))
    } else {
        Box::new(Engine)
    }
}

fn replay(seed: u64, arguments: &Arguments) -> bool {
    let options = Options {
        trace: arguments.trace,
        ..arguments.options
    };
    let outcome = run_seed(&*subject(arguments.toy), seed, options);
    let from = outcome.lines.len().saturating_sub(arguments.lines);
    for line in &outcome.lines[from..] {
        println!("{line}");
    }
    println!(
        "seed {seed}: history {:016x}, {} operations",
        outcome.hash, outcome.operations
    );
    match &outcome.failure {
        Some(failure) => println!("FAILED: {failure}"),
        None => println!("passed"),
    }
    outcome.failure.is_none()
}
