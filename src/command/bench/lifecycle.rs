//! `bench lifecycle`: the papers' suites through the life of an array.
//!
//! **Invariants**: every sample is on disk before the next is taken, so that a run that was cut off goes
//! on; a directory holds one run: with other options it is refused; figures of others stand beside ours
//! as published, never in one number with them.

mod store;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use ashlar_bench::lifecycle::{
    Case, Down, Options, State, Suite, closed_form, measure, measure_processor, unfit,
};
use ashlar_bench::report::{Sample, beside, csv};
use clap::{Args, ValueEnum};
use serde_json::json;

use crate::failure::Failure;
use crate::print::{document, out};
use crate::units::parse_size;
use crate::view::count;
use crate::view::progress::Progress;

use super::paper::Paper;
use super::report::{ReportArgs, build, make, print};
use store::Store;

pub(super) const EXAMPLES: &str = "Examples:
  ashlar bench lifecycle --suite ssr --layouts ec7+1 --arrays 1 --repeat 1
  ashlar bench lifecycle --paper xiraid --out xiraid
  ashlar bench lifecycle --paper supremeraid --out supremeraid
  ashlar bench lifecycle --paper nsulate --out nsulate
  ashlar bench lifecycle --paper gridraid --out gridraid
  ashlar bench lifecycle --paper gridraid-check --out check
  ashlar bench lifecycle --suite raid-check --bed data24-3200 --layouts ec7+1 --states normal
  ashlar bench lifecycle --layouts ec7+1,ec8+1 --bed data24-3200 --compare ec7+1,ec8+1 --weights normal=8
  ashlar bench lifecycle --paper xiraid -n
";

/// `bench lifecycle`.
#[derive(Debug, Args)]
pub(crate) struct LifecycleArgs {
    /// Run as this paper did, with its figures beside
    #[arg(long, value_name = "PAPER", conflicts_with_all = ["bed", "layouts"])]
    paper: Option<Paper>,
    /// ssr (4 KiB: RW, RM, RR), sss (128 KiB: SR, SW, SR-JS, SW-JS), spec (a data sheet: 12 and 20 drives), iozone (64
    /// KiB, 32 threads), raid-check, zones, streams and runs (large transfers) [default: ssr and sss; those of the
    /// paper]
    #[arg(long, value_name = "SUITE", value_delimiter = ',', value_parser = parse_suite)]
    suite: Vec<Suite>,
    /// normal, down, rebuild [default: all; those of the paper]
    #[arg(long, value_name = "STATE", value_delimiter = ',', value_parser = parse_state)]
    states: Vec<State>,
    /// Layouts; 4xec8+2 is four such arrays at once
    #[arg(
        long,
        value_name = "LAYOUT",
        value_delimiter = ',',
        default_value = "ec7+1"
    )]
    layouts: Vec<String>,
    /// Test bed: data24, data24-3200, orion100, sonexion, or a drive of `bench engine --profile`
    #[arg(long, value_name = "NAME", default_value = "data24")]
    bed: String,
    /// Arrays used at once [default: one for each host of the bed]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    arrays: Option<u16>,
    /// Devices that each array loses in the states that lose some: a number, or max-per-group [default: 1; that of the
    /// paper]
    #[arg(long, value_name = "N", value_parser = Down::parse)]
    down: Option<Down>,
    /// Runs of each case
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeat: u32,
    /// Seed of the order and of all runs
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Bytes of each array's volume [default: 64M; that of the paper]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Percent of an array's data blocks that the volume takes [default: 50; that of the paper]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(5..=90))]
    fill: Option<u8>,
    /// Bytes of a strip [default: what suits the drives]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    strip: Option<u64>,
    /// Bytes of a slot [default: what suits the drives]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    slot: Option<u64>,
    /// Bytes a second of each device that a check takes beside clients (raid-check)
    #[arg(long, value_name = "SIZE", default_value = "10M", value_parser = parse_size)]
    check_floor: u64,
    /// Processor time instead: one array, devices in memory, real time; rates are for each second of one processor
    #[arg(long)]
    processor: bool,
    /// Cases at the same time [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: Option<u16>,
    /// How often the volume is overwritten at random before random workloads
    #[arg(long, value_name = "TIMES", default_value_t = 1.0)]
    overwrites: f64,
    /// Directory for samples and report; a run that was cut off goes on there
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Only list what would be run
    #[arg(short = 'n', long)]
    dry_run: bool,
    #[command(flatten)]
    report: ReportArgs,
}

fn parse_suite(text: &str) -> Result<Suite, String> {
    let names = Suite::ALL.map(Suite::name).join(", ");
    Suite::named(text).ok_or_else(|| format!("'{text}' is not a suite: use {names}"))
}

fn parse_state(text: &str) -> Result<State, String> {
    let unpaid = "initialization: there is none: an array is ready when it is made";
    match text {
        "initialization" => Err(unpaid.to_string()),
        _ => State::named(text)
            .ok_or_else(|| format!("'{text}' is not a state: use normal, down or rebuild")),
    }
}

impl LifecycleArgs {
    fn options(&self) -> Options {
        let defaults = Options::default();
        let of_paper = self.paper.map(Paper::defaults);
        let of_paper = of_paper.as_ref();
        let layouts = self.paper.map_or_else(
            || self.layouts.clone(),
            |paper| paper.layouts().iter().map(|l| (*l).to_string()).collect(),
        );
        Options {
            suites: if self.suite.is_empty() {
                of_paper.map_or(defaults.suites.clone(), |paper| paper.suites.to_vec())
            } else {
                self.suite.clone()
            },
            states: if self.states.is_empty() {
                of_paper
                    .map_or(&State::ALL[..], |paper| paper.states)
                    .to_vec()
            } else {
                self.states.clone()
            },
            layouts,
            bed: self
                .paper
                .map_or_else(|| self.bed.clone(), |paper| paper.bed().to_string()),
            arrays: self.arrays.map(usize::from),
            down: self
                .down
                .or(of_paper.map(|paper| paper.down))
                .unwrap_or(defaults.down),
            repeat: self.repeat,
            seed: self.seed,
            volume_bytes: self
                .size
                .or(of_paper.map(|paper| paper.volume_bytes))
                .unwrap_or(defaults.volume_bytes)
                .next_multiple_of(1 << 20)
                .max(16 << 20),
            fill: f64::from(self.fill.or(of_paper.map(|paper| paper.fill)).unwrap_or(50)) / 100.0,
            overwrites: self.overwrites.clamp(0.0, 64.0),
            depth: of_paper.map_or(defaults.depth, |paper| paper.depth),
            slot_bytes: self.slot,
            strip_bytes: self
                .strip
                .map(|strip| u32::try_from(strip).unwrap_or(u32::MAX)),
            check_floor: self.check_floor,
            rivals: self.paper.map_or(Vec::new(), Paper::rivals),
        }
    }

    fn jobs(&self) -> usize {
        if self.processor {
            // The processor time is that of the process.
            return 1;
        }
        let all = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        self.jobs.map_or_else(all, usize::from)
    }

    fn title(&self) -> String {
        let plain = "Ashlar through the life of an array: modelled drives in virtual time";
        self.paper.map_or(plain, Paper::title).to_string()
    }

    /// The command that gives the same again.
    fn command(&self, options: &Options) -> String {
        let names = |all: Vec<&str>| all.join(",");
        let mut command = "ashlar bench lifecycle".to_string();
        match self.paper.and_then(|paper| paper.to_possible_value()) {
            Some(paper) => command += &format!(" --paper {}", paper.get_name()),
            None => {
                command += &format!(
                    " --bed {} --layouts {}",
                    options.bed,
                    options.layouts.join(",")
                );
            }
        }
        if let Some(arrays) = options.arrays {
            command += &format!(" --arrays {arrays}");
        }
        command += &format!(
            " --suite {} --states {} --down {} --repeat {} --seed {} --size {} --fill {:.0} --overwrites {} --out DIR",
            names(options.suites.iter().map(|s| s.name()).collect()),
            names(options.states.iter().map(|s| s.name()).collect()),
            options.down,
            options.repeat,
            options.seed,
            options.volume_bytes,
            options.fill * 100.0,
            options.overwrites
        );
        if self.processor {
            command += " --processor";
        }
        if let Some(strip) = options.strip_bytes {
            command += &format!(" --strip {strip}");
        }
        if let Some(slot) = options.slot_bytes {
            command += &format!(" --slot {slot}");
        }
        if options.suites.contains(&Suite::RaidCheck) {
            command += &format!(" --check-floor {}", options.check_floor);
        }
        command
    }
}

/// Runs `bench lifecycle`.
///
/// # Errors
/// If the options are none, or the directory cannot be used.
pub(super) fn run(args: &LifecycleArgs, json: bool) -> Result<(), Failure> {
    let options = args.options();
    let mut cases = options.cases().map_err(Failure::invalid)?;
    if args.processor {
        cases.retain(|case| unfit(case).is_none());
        for case in &mut cases {
            case.arrays = 1;
        }
    }
    let bed = options.bed().map_err(Failure::invalid)?;
    if args.dry_run {
        return list(&cases, json);
    }
    let store = args
        .out
        .as_deref()
        .map(|dir| Store::open(dir, &options, args.processor))
        .transpose()?;
    let began = Instant::now();
    let measure = if args.processor {
        measure_processor
    } else {
        measure
    };
    let mut samples = take(&options, &cases, store.as_ref(), args.jobs(), measure)?;
    if !args.processor {
        samples.extend(closed_form(&options).map_err(Failure::invalid)?);
    }
    let mut comparisons = Vec::new();
    if let Some(paper) = args.paper {
        let published = csv::read(paper.published());
        samples.extend(published.map_err(Failure::broken)?);
        comparisons = paper.comparisons();
    }
    let mut page = make(&args.title(), &samples, &args.report, comparisons)?;
    if let Some(paper) = args.paper {
        page.beside = beside::lines(&page.rows, &paper.pairs());
    }
    page.assumptions = if args.processor {
        processor_assumptions(&options)
    } else {
        options.assumptions().map_err(Failure::invalid)?
    };
    page.command = args.command(&options);
    page.environment = vec![(
        "program".to_string(),
        format!("ashlar {}", env!("CARGO_PKG_VERSION")),
    )];
    if args.processor {
        page.environment.push(("build".to_string(), build()));
        page.environment
            .push(("processor".to_string(), processor_name()));
    } else {
        let array_count = options.array_count(&bed);
        let bed = format!("{}, {} at once", bed.name, count(array_count, "array"));
        page.environment.push(("test bed".to_string(), bed));
        let time = "virtual: the machine it ran on does not matter";
        page.environment
            .push(("time".to_string(), time.to_string()));
    }
    page.environment.extend([(
        "cases".to_string(),
        format!(
            "{}, in an order shuffled by seed {}",
            cases.len(),
            options.seed
        ),
    )]);
    if let Some(store) = &store {
        store.report(&page, &samples)?;
    }
    print(&page, &args.report, json, "bench lifecycle")?;
    if let Some(dir) = args.out.as_ref().filter(|_| !json) {
        eprintln!(
            "{} cases in {:.0} s; report: {}",
            cases.len(),
            began.elapsed().as_secs_f64(),
            dir.join("report.html").display()
        );
    }
    Ok(())
}

fn processor_assumptions(options: &Options) -> Vec<String> {
    vec![
        "Rates are operations or bytes for each second that one processor works: of the load generator, of copies to and from devices in memory, and of the array; on devices raw, of the first two. No device, kernel or frontend is in them.".to_string(),
        format!(
            "One array of each layout with a volume of {} MiB, one thread; what was written is durable at the end.",
            options.volume_bytes >> 20
        ),
        "Processor percent: 100 is one processor. Papers count all of a machine: compare ratios, not percentages.".to_string(),
    ]
}

/// What the processor calls itself.
fn processor_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let name = name.and_then(|rest| rest.split_once(':'));
    name.map_or("-".to_string(), |(_, name)| name.trim().to_string())
}

fn list(cases: &[Case], json: bool) -> Result<(), Failure> {
    let names: Vec<String> = cases.iter().map(Case::name).collect();
    if json {
        return out(&document("bench lifecycle", &json!({ "cases": names }))?);
    }
    out(&format!("{}\n{} cases\n", names.join("\n"), names.len()))
}

/// What takes the sample of a case.
type Measure = fn(&Options, &Case) -> Result<Sample, String>;

/// Takes the samples that are not there yet, some at the same time: each case has a world of its own, so the figures do
/// not depend on that. They come in the order of the cases.
fn take(
    options: &Options,
    cases: &[Case],
    store: Option<&Store>,
    jobs: usize,
    measure: Measure,
) -> Result<Vec<Sample>, Failure> {
    let done = store.map_or(Ok(Vec::new()), Store::samples)?;
    let is_done = |case: &Case| done.iter().any(|sample| case.is_of(sample));
    let left: Vec<&Case> = cases.iter().filter(|case| !is_done(case)).collect();
    let mut progress = Progress::new(false);
    let began = Instant::now();
    let next = AtomicUsize::new(0);
    let (send, receive) = mpsc::channel();
    let mut taken = Vec::new();
    let failed = thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            let (send, next, left) = (send.clone(), &next, &left);
            scope.spawn(move || {
                while let Some(case) = left.get(next.fetch_add(1, Ordering::SeqCst)) {
                    if send.send(measure(options, case)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        for sample in &receive {
            let kept = sample.map_err(Failure::invalid).and_then(|sample| {
                store.map_or(Ok(()), |store| store.add(&sample))?;
                Ok(sample)
            });
            match kept {
                Ok(sample) => taken.push(sample),
                Err(failure) => {
                    // No other case is begun.
                    next.store(left.len(), Ordering::SeqCst);
                    return Err(failure);
                }
            }
            let each = began.elapsed().as_secs_f64() / taken.len() as f64;
            let seconds = (left.len() - taken.len()) as f64 * each;
            let place = cases.len() - left.len() + taken.len();
            progress.show(&format!(
                "{place} of {}, about {seconds:.0} s left",
                cases.len()
            ));
        }
        Ok(())
    });
    drop(receive);
    progress.end();
    failed?;
    let all: Vec<Sample> = done.into_iter().chain(taken).collect();
    let of_case = |case: &Case| all.iter().find(|sample| case.is_of(sample)).cloned();
    Ok(cases.iter().filter_map(of_case).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use ashlar_bench::report::{Gates, rows};
    use std::fs;

    fn options(seed: u64) -> Options {
        Options {
            suites: vec![Suite::Ssr],
            states: vec![State::Normal],
            layouts: vec!["ec3+1".to_string()],
            arrays: Some(1),
            repeat: 1,
            seed,
            volume_bytes: 8 << 20,
            depth: 8,
            ..Options::default()
        }
    }

    #[test]
    fn a_run_that_was_cut_off_goes_on_and_another_is_refused() {
        let dir = std::env::temp_dir().join(format!("ashlar-lifecycle-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let options_1 = options(1);
        let cases = options_1.cases().unwrap();
        let store = Store::open(&dir, &options_1, false).unwrap();
        let first = take(&options_1, &cases[..2], Some(&store), 1, measure).unwrap();
        let taken = dir.join("taken.csv");
        let mut text = fs::read_to_string(&taken).unwrap();
        text.truncate(text.len() - 40); // cut off within the second sample
        fs::write(&taken, text).unwrap();
        let store = Store::open(&dir, &options_1, false).unwrap();
        assert_eq!(store.samples().unwrap().len(), 1);
        let all = take(&options_1, &cases, Some(&store), 2, measure).unwrap();
        assert_eq!(all.len(), cases.len());
        assert_eq!(all[..2], first[..]);
        assert_eq!(store.samples().unwrap().len(), cases.len());
        let refused = Store::open(&dir, &options(2), false).err().unwrap();
        assert!(refused.text.contains("other options"), "{refused}");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn papers_have_published_figures_and_their_comparisons_hold() {
        for paper in Paper::ALL {
            let samples = csv::read(paper.published()).unwrap();
            let rows = rows(&samples, Gates::default());
            // The charts of one have no numbers.
            assert_eq!(rows.is_empty(), paper == Paper::Nsulate);
            assert!(rows.iter().all(|row| row.evidence.name() == "published"));
        }
        assert!(
            parse_state("initialization")
                .unwrap_err()
                .contains("there is none")
        );
    }
}
