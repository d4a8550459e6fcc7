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
        eprint!("{}", commands::USAGE);
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
