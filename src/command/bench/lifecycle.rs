//! `bench lifecycle`: the papers' suites through the life of an array.
//!
//! **Invariants**: every sample is on disk before the next is taken, so that a run that was cut off goes
//! on; a directory holds one run: with other options it is refused; figures of others stand beside ours
//! as published, never in one number with them.

mod store;

use std::path::PathBuf;
use std::time::Instant;

use ashlar_bench::lifecycle::{Case, Options, State, Suite, closed_form, measure};
use ashlar_bench::report::{Sample, beside, csv};
use clap::{Args, ValueEnum};
use serde_json::json;

use crate::failure::Failure;
use crate::print::{document, out};
use crate::units::parse_size;
use crate::view::progress::Progress;

use super::paper::Paper;
use super::report::{ReportArgs, make, print};
use store::Store;

pub(super) const EXAMPLES: &str = "Examples:
  ashlar bench lifecycle --suite ssr --layouts ec7+1 --arrays 1 --repeat 1
  ashlar bench lifecycle --paper xiraid --out xiraid
  ashlar bench lifecycle --paper supremeraid --out supremeraid
  ashlar bench lifecycle --layouts ec7+1,ec8+1 --bed data24-3200 --compare ec7+1,ec8+1 --weights normal=8
  ashlar bench lifecycle --paper xiraid -n
";

/// `bench lifecycle`.
#[derive(Debug, Args)]
pub(crate) struct LifecycleArgs {
    /// Run as this paper did, with its figures beside
    #[arg(long, value_name = "PAPER", conflicts_with_all = ["bed", "layouts"])]
    paper: Option<Paper>,
    /// ssr (4 KiB: RW, RM, RR), sss (128 KiB: SR, SW, SR-JS, SW-JS) [default: both]
    #[arg(long, value_name = "SUITE", value_delimiter = ',', value_parser = parse_suite)]
    suite: Vec<Suite>,
    /// normal, down, rebuild [default: all; those of the paper]
    #[arg(long, value_name = "STATE", value_delimiter = ',', value_parser = parse_state)]
    states: Vec<State>,
    /// Layouts
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
    /// Devices that each array loses in the states that lose some
    #[arg(long, value_name = "N", default_value_t = 1)]
    down: u16,
    /// Runs of each case
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeat: u32,
    /// Seed of the order and of all runs
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Bytes of each array's volume
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_size)]
    size: u64,
    /// Percent of an array's data blocks that the volume takes
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(5..=90))]
    fill: u8,
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
    Suite::named(text).ok_or_else(|| format!("'{text}' is no suite: use ssr or sss"))
}

fn parse_state(text: &str) -> Result<State, String> {
    let unpaid = "initialization: there is none: an array is ready when it is made";
    match text {
        "initialization" => Err(unpaid.to_string()),
        _ => State::named(text)
            .ok_or_else(|| format!("'{text}' is no state: use normal, down or rebuild")),
    }
}

impl LifecycleArgs {
    fn options(&self) -> Options {
        let defaults = Options::default();
        let layouts = self.paper.map_or_else(
            || self.layouts.clone(),
            |paper| paper.layouts().iter().map(|l| (*l).to_string()).collect(),
        );
        Options {
            suites: if self.suite.is_empty() {
                defaults.suites.clone()
            } else {
                self.suite.clone()
            },
            states: if self.states.is_empty() {
                self.paper.map_or(&State::ALL[..], Paper::states).to_vec()
            } else {
                self.states.clone()
            },
            layouts,
            bed: self
                .paper
                .map_or_else(|| self.bed.clone(), |paper| paper.bed().to_string()),
            arrays: self.arrays.map(usize::from),
            down: self.down,
            repeat: self.repeat,
            seed: self.seed,
            volume_bytes: self.size.next_multiple_of(1 << 20).max(16 << 20),
            fill: f64::from(self.fill) / 100.0,
            overwrites: self.overwrites.clamp(0.0, 64.0),
            ..defaults
        }
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
        command
    }
}

/// Runs `bench lifecycle`.
///
/// # Errors
/// If the options are none, or the directory cannot be used.
pub(super) fn run(args: &LifecycleArgs, json: bool) -> Result<(), Failure> {
    let options = args.options();
    let cases = options.cases().map_err(Failure::invalid)?;
    let bed = options.bed().map_err(Failure::invalid)?;
    if args.dry_run {
        return list(&cases, json);
    }
    let store = args
        .out
        .as_deref()
        .map(|dir| Store::open(dir, &options))
        .transpose()?;
    let began = Instant::now();
    let mut samples = take(&options, &cases, store.as_ref())?;
    samples.extend(closed_form(&options).map_err(Failure::invalid)?);
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
    page.assumptions = options.assumptions().map_err(Failure::invalid)?;
    page.command = args.command(&options);
    page.environment = vec![
        (
            "program".to_string(),
            format!("ashlar {}", env!("CARGO_PKG_VERSION")),
        ),
        (
            "test bed".to_string(),
            format!(
                "{}, {} array(s) at once",
                bed.name,
                options.array_count(&bed)
            ),
        ),
        (
            "time".to_string(),
            "virtual: the machine it ran on does not matter".to_string(),
        ),
        (
            "cases".to_string(),
            format!(
                "{}, in an order shuffled by seed {}",
                cases.len(),
                options.seed
            ),
        ),
    ];
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

fn list(cases: &[Case], json: bool) -> Result<(), Failure> {
    let names: Vec<String> = cases.iter().map(Case::name).collect();
    if json {
        return out(&document("bench lifecycle", &json!({ "cases": names }))?);
    }
    out(&format!("{}\n{} cases\n", names.join("\n"), names.len()))
}

/// Takes the samples that are not there yet.
fn take(options: &Options, cases: &[Case], store: Option<&Store>) -> Result<Vec<Sample>, Failure> {
    let arrays = options.array_count(&options.bed().map_err(Failure::invalid)?);
    let done = store.map_or(Ok(Vec::new()), Store::samples)?;
    let left: Vec<&Case> = cases
        .iter()
        .filter(|case| !done.iter().any(|sample| case.is_of(sample, arrays)))
        .collect();
    let mut samples = done;
    let mut progress = Progress::new(false);
    let began = Instant::now();
    for (index, case) in left.iter().enumerate() {
        let each = began.elapsed().as_secs_f64() / index.max(1) as f64;
        let time = if index > 0 {
            format!(", about {:.0} s left", (left.len() - index) as f64 * each)
        } else {
            String::new()
        };
        let place = cases.len() - left.len() + index + 1;
        progress.show(&format!(
            "{place} of {}{time}: {}",
            cases.len(),
            case.name()
        ));
        let sample = measure(options, case).map_err(Failure::invalid)?;
        if let Some(store) = store {
            store.add(&sample)?;
        }
        samples.push(sample);
    }
    progress.end();
    Ok(samples)
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
        let store = Store::open(&dir, &options_1).unwrap();
        let first = take(&options_1, &cases[..2], Some(&store)).unwrap();
        let taken = dir.join("taken.csv");
        let mut text = fs::read_to_string(&taken).unwrap();
        text.truncate(text.len() - 40); // cut off within the second sample
        fs::write(&taken, text).unwrap();
        let store = Store::open(&dir, &options_1).unwrap();
        assert_eq!(store.samples().unwrap().len(), 1);
        let all = take(&options_1, &cases, Some(&store)).unwrap();
        assert_eq!(all.len(), cases.len());
        assert_eq!(all[..2], first[..]);
        assert_eq!(store.samples().unwrap().len(), cases.len());
        let refused = Store::open(&dir, &options(2)).err().unwrap();
        assert!(refused.text.contains("other options"), "{refused}");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn papers_have_published_figures_and_their_comparisons_hold() {
        for paper in [Paper::Supremeraid, Paper::Xiraid] {
            let samples = csv::read(paper.published()).unwrap();
            let rows = rows(&samples, Gates::default());
            assert!(!rows.is_empty());
            assert!(rows.iter().all(|row| row.evidence.name() == "published"));
        }
        assert!(
            parse_state("initialization")
                .unwrap_err()
                .contains("there is none")
        );
    }
}
