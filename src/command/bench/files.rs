//! `bench files`: real files in IOzone's terms, fio and IOzone beside, every cache on the way listed.
//!
//! **Invariants**: data that caches could hold are refused before anything is written, unless that is asked for, and
//! stay stamped then; figures that must not be used end with exit code 1 where that was not asked for.

mod down;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use ashlar_bench::files::layers::Layer;
use ashlar_bench::files::load::Test;
use ashlar_bench::files::stack::Volume;
use ashlar_bench::files::tools::Tool;
use ashlar_bench::files::{Options, SUITE, Session};
use ashlar_bench::lifecycle::Down;
use ashlar_bench::report::page::{Page, Table};
use ashlar_bench::report::{NORMAL, Sample, text};
use clap::Args;
use serde_json::{Value, json};

use super::report::{ReportArgs, build, make, print_rows, write};
use crate::api::{Call, StatusReply};
use crate::daemon::memory;
use crate::failure::Failure;
use crate::print::{Context, document, out};
use crate::units::{parse_size, size};
use crate::view::progress::Progress;
use crate::view::table;

pub(super) const EXAMPLES: &str = "Examples:
  ashlar bench files /mnt/tank -n
  ashlar bench files /mnt/tank --threads 32 --record 64K --size 8G --out tank
  ashlar bench files /mnt/tank -t 4 --direct --label ec8+2
  systemd-run -t -p MemoryMax=2G ashlar bench files /mnt/tank
  ashlar bench files /mnt/tank --size 64M --force
";

/// How long the daemon may take to tell which volumes there are.
const DAEMON: Duration = Duration::from_secs(4);

/// Tests that a word of `--tests` names.
#[derive(Clone, Debug)]
struct Named(Vec<Test>);

/// `bench files`.
#[derive(Debug, Args)]
pub(crate) struct RealArgs {
    /// A folder on the file system to measure
    path: PathBuf,
    /// write, rewrite, read, reread, random-read, random-write, or IOzone's numbers: 0, 1, 2 [default: all]
    #[arg(short = 'i', long, value_name = "TEST", value_delimiter = ',', value_parser = parse_test)]
    tests: Vec<Named>,
    /// Threads, each with a file of its own
    #[arg(short = 't', long, visible_alias = "numjobs", value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// Bytes of a record
    #[arg(short = 'r', long, visible_alias = "bs", value_name = "SIZE", default_value = "64K", value_parser = parse_size)]
    record: u64,
    /// Bytes of each file [default: so many that all together are twice all caches]
    #[arg(short = 's', long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Around the page cache: O_DIRECT
    #[arg(short = 'I', long)]
    direct: bool,
    /// Runs of each test
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeat: u32,
    /// Seed of content and order
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Programs to run beside: fio, iozone, ior, mdtest, elbencho, none [default: those in PATH]
    #[arg(long, value_name = "PROGRAM", value_delimiter = ',', value_parser = parse_tool)]
    beside: Vec<Option<Tool>>,
    /// Name of the target in the rows
    #[arg(long, value_name = "NAME", default_value = "files")]
    label: String,
    /// State of the array in the rows, where it was brought about by hand
    #[arg(long, value_name = "STATE", default_value = "normal")]
    state: String,
    /// After the tests take so many devices out of the array below, and run them again: a number, or max-per-group
    #[arg(long, value_name = "N", value_parser = Down::parse, requires = "yes", conflicts_with_all = ["existing", "keep"])]
    down: Option<Down>,
    /// Take devices out for good: --down wants it
    #[arg(long)]
    yes: bool,
    /// Wait so many seconds at most for a quiet machine before each test
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    wait_quiet: u64,
    /// Percent of the content that is zeros, as fio names it: above 0 the rows are INVALID
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    buffer_compress_percentage: u8,
    /// Leave in the page cache what is there between tests
    #[arg(long)]
    keep_cache: bool,
    /// Leave the files
    #[arg(short = 'w', long)]
    keep: bool,
    /// Read the files that a run with --keep left, without writing
    #[arg(long)]
    existing: bool,
    /// Take all caches to be this large together, instead of what is found; the report says so
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    assume_cache: Option<u64>,
    /// Measure data that caches can hold; the rows stay INVALID
    #[arg(short = 'f', long)]
    force: bool,
    /// Only list caches and devices
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Directory for samples and report
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    report: ReportArgs,
}

fn parse_test(text: &str) -> Result<Named, String> {
    let names = Test::ALL.map(Test::name).join(", ");
    let found = Test::named(text).map(Named);
    found.ok_or_else(|| format!("'{text}' is not a test: use {names}, or 0, 1, 2"))
}

fn parse_tool(text: &str) -> Result<Option<Tool>, String> {
    match text {
        "none" => Ok(None),
        _ => Tool::named(text).map(Some).ok_or_else(|| {
            let names = Tool::ALL.map(Tool::name).join(", ");
            format!("'{text}' cannot run beside: use {names} or none")
        }),
    }
}

impl RealArgs {
    fn options(&self) -> Result<Options, Failure> {
        let mut tests: Vec<Test> = if self.tests.is_empty() {
            Test::ALL.to_vec()
        } else {
            let named = self.tests.iter().flat_map(|named| &named.0);
            let named: Vec<&Test> = named.collect();
            Test::ALL
                .into_iter()
                .filter(|test| named.contains(&test))
                .collect()
        };
        if self.existing {
            let asked = !self.tests.is_empty();
            if asked && tests.iter().any(|test| test.writes()) {
                return Err(Failure::invalid(
                    "--existing: only reads files that are there; use --tests read,reread,random-read",
                ));
            }
            tests.retain(|test| !test.writes());
        } else if !tests.contains(&Test::Write) {
            // There is nothing to read or to write again before it.
            tests.insert(0, Test::Write);
        }
        Ok(Options {
            path: self.path.clone(),
            tests,
            threads: usize::from(self.threads),
            record: usize::try_from(self.record).unwrap_or(usize::MAX),
            size: self.size,
            direct: self.direct,
            repeat: self.repeat,
            seed: self.seed,
            zeros: self.buffer_compress_percentage,
            keep_cache: self.keep_cache,
            keep: self.keep,
            existing: self.existing,
            assumed_cache: self.assume_cache,
            memory_limit: Some(memory::limit()),
            label: self.label.clone(),
            state: self.state.clone(),
            wait_quiet: self.wait_quiet,
            left: None,
            tools: self.tools()?,
        })
    }

    fn tools(&self) -> Result<Vec<Tool>, Failure> {
        if self.existing {
            return Ok(Vec::new());
        }
        if self.beside.is_empty() {
            let all = Tool::ALL.into_iter();
            return Ok(all.filter(|tool| tool.is_here()).collect());
        }
        let named: Vec<Tool> = self.beside.iter().flatten().copied().collect();
        if let Some(missing) = named.iter().find(|tool| !tool.is_here()) {
            let name = missing.name();
            return Err(Failure::not_found(format!(
                "{name}: it is not in PATH; install it, or leave it out of --beside"
            )));
        }
        Ok(named)
    }

    /// The command that gives the same again.
    fn command(&self, options: &Options, size: u64) -> String {
        let tests: Vec<&str> = options.tests.iter().map(|test| test.name()).collect();
        let mut line = format!(
            "ashlar bench files {} --tests {} --threads {} --record {} --size {size} --repeat {} --seed {}",
            options.path.display(),
            tests.join(","),
            options.threads,
            options.record,
            options.repeat,
            options.seed
        );
        let down = self.down.map(|down| format!("--down {down} --yes"));
        let flags = [
            (
                options.state != NORMAL,
                format!("--state {}", options.state),
            ),
            (down.is_some(), down.unwrap_or_default()),
            (
                options.wait_quiet > 0,
                format!("--wait-quiet {}", options.wait_quiet),
            ),
            (options.direct, "--direct".to_string()),
            (options.keep_cache, "--keep-cache".to_string()),
            (options.keep, "--keep".to_string()),
            (options.existing, "--existing".to_string()),
            (self.force, "--force".to_string()),
            (self.dry_run, "--dry-run".to_string()),
            (
                options.zeros > 0,
                format!("--buffer-compress-percentage {}", options.zeros),
            ),
            (
                options.assumed_cache.is_some(),
                format!("--assume-cache {}", options.assumed_cache.unwrap_or(0)),
            ),
        ];
        for (_, flag) in flags.into_iter().filter(|(given, _)| *given) {
            line += &format!(" {flag}");
        }
        line
    }
}

/// Volumes of the daemon, if one answers: one that does not is none to look behind.
fn volumes(context: &Context) -> Vec<Volume> {
    let call = Call::Status { array: None };
    let Ok(reply) = context
        .client
        .call_within::<StatusReply>(&call, Some(DAEMON))
    else {
        return Vec::new();
    };
    let mut volumes = Vec::new();
    for array in reply.arrays {
        for volume in &array.volumes {
            let kernel = volume.frontends.iter().filter(|f| f.kind != "nbd");
            let real = |f: &ashlar_engine::status::Frontend| {
                std::fs::canonicalize(&f.address).unwrap_or(PathBuf::from(&f.address))
            };
            volumes.push(Volume {
                name: format!("{}/{}", array.name, volume.name),
                places: kernel.map(real).collect(),
                memory_bytes: array.memory.limit_bytes,
                members: array
                    .devices
                    .iter()
                    .filter(|device| !device.path.is_empty())
                    .map(|device| PathBuf::from(&device.path))
                    .collect(),
            });
        }
    }
    volumes
}

/// Runs `bench files`.
///
/// # Errors
/// If the options make no sense, the data are too small and that was not asked for, or files cannot be written and
/// read.
pub(super) fn run(context: &Context, args: &RealArgs) -> Result<ExitCode, Failure> {
    let options = args.options()?;
    let session = Session::prepare(options.clone(), &volumes(context)).map_err(Failure::invalid)?;
    if args.dry_run {
        return dry_run(context, args, &options, &session).map(|()| ExitCode::SUCCESS);
    }
    let place = args.path.display();
    if let Some(reason) = session.too_small().filter(|_| !args.force) {
        return Err(Failure::refused(format!(
            "{place}: INVALID: {reason}; --force measures anyway, and the rows stay INVALID"
        )));
    }
    if let Some(reason) = session.no_room() {
        return Err(Failure::refused(format!(
            "{place}: {reason}; give --size, or limit the memory of this process (systemd-run -p MemoryMax=1G)"
        )));
    }
    if !(args.keep || args.existing || session.folder().exists()) {
        clean_up_when_stopped(session.folder());
    }
    let victims = args
        .down
        .map(|down| down::Victims::find(context, &session, down))
        .transpose()?;
    let session = match &victims {
        // The files stay for the second half.
        Some(_) => {
            let kept = Options {
                keep: true,
                ..options.clone()
            };
            Session::prepare(kept, &volumes(context)).map_err(Failure::invalid)?
        }
        None => session,
    };
    let mut progress = Progress::new(context.json);
    let mut samples = session
        .run(&mut |line| progress.show(line))
        .map_err(Failure::broken);
    if let (Some(victims), Ok(first)) = (&victims, &mut samples) {
        let volumes = volumes(context);
        let second = victims.again(context, &options, &session, &volumes, &mut progress);
        match second {
            Ok(second) => first.extend(second),
            Err(failure) => samples = Err(failure),
        }
        let _ = std::fs::remove_dir_all(session.folder());
    }
    progress.end();
    let samples = samples?;
    let page = page(args, &options, &session, &samples)?;
    if let Some(dir) = &args.out {
        write(dir, "bench files", &page, &samples, details(&session))?;
    }
    show(context, args, &session, &page, &samples)?;
    let ours = |row: &&ashlar_bench::report::Row| row.target == options.label;
    let bad = page
        .rows
        .iter()
        .filter(ours)
        .any(|row| !row.invalid.is_empty());
    if !bad || args.force {
        return Ok(ExitCode::SUCCESS);
    }
    if !context.json {
        eprintln!("ashlar: {place}: rows are INVALID, and VALID says why: the exit code is 1");
    }
    Ok(ExitCode::FAILURE)
}

/// At TERM or INT removes the files, and ends the process.
fn clean_up_when_stopped(folder: PathBuf) {
    use tokio::signal::unix::{SignalKind, signal};
    let wait = async {
        let (Ok(mut stop), Ok(mut interrupt)) = (
            signal(SignalKind::terminate()),
            signal(SignalKind::interrupt()),
        ) else {
            return std::future::pending().await;
        };
        std::future::poll_fn(|context| {
            if stop.poll_recv(context).is_ready() || interrupt.poll_recv(context).is_ready() {
                return std::task::Poll::Ready(());
            }
            std::task::Poll::Pending
        })
        .await;
    };
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let Ok(runtime) = runtime else {
            return; // as if it had not been asked for
        };
        runtime.block_on(wait);
        let left = std::fs::remove_dir_all(&folder);
        let place = folder.display();
        match left {
            Ok(()) => eprintln!("ashlar: stopped; {place} is removed"),
            Err(error) => eprintln!("ashlar: stopped; {place}: {error}; remove it"),
        }
        std::process::exit(1);
    });
}

fn dry_run(
    context: &Context,
    args: &RealArgs,
    options: &Options,
    session: &Session,
) -> Result<(), Failure> {
    let page = page(args, options, session, &[])?;
    if let Some(dir) = &args.out {
        write(dir, "bench files", &page, &[], details(session))?;
    }
    show(context, args, session, &page, &[])
}

/// Caches, levels and sums, for scripts.
fn details(session: &Session) -> Value {
    json!({
        "data_bytes": session.data_bytes(),
        "caches_bytes": session.caches_bytes(),
        "assumed": session.is_assumed(),
        "refused": session.too_small(),
        "caches": session.layers,
        "file_system": session.stack.file_system(),
        "mounts": session.stack.mounts,
        "levels": session.stack.levels,
        "volumes": session.stack.volumes,
        "unseen": session.stack.unseen,
    })
}

fn page(
    args: &RealArgs,
    options: &Options,
    session: &Session,
    samples: &[Sample],
) -> Result<Page, Failure> {
    let title = format!(
        "Real files in IOzone's terms on {}",
        session.stack.file_system()
    );
    let mut page = make(&title, samples, &args.report, Vec::new())?;
    let cell = |text: &str| text.to_string();
    let levels = session.stack.levels.iter();
    let levels: Vec<String> = levels.map(|level| level.devices.join("+")).collect();
    page.tables = vec![Table {
        title: format!(
            "Caches found below {} ({} on {})",
            args.path.display(),
            session.stack.file_system(),
            levels.join(", on ")
        ),
        note: "Evidence: real, this machine. The data must be at least twice the sum of those that count.".to_string(),
        titles: CACHES.map(str::to_lowercase).to_vec(),
        lines: session.layers.iter().map(cache_line).collect(),
    }];
    page.assumptions = session.remarks();
    page.assumptions.push(assumption(options));
    page.command = args.command(options, session.size());
    page.environment = vec![
        (
            cell("program"),
            format!("ashlar {}", env!("CARGO_PKG_VERSION")),
        ),
        (cell("build"), build()),
        (cell("kernel"), kernel()),
        (cell("processors"), processors()),
        (cell("file system"), session.stack.file_system().to_string()),
        (cell("devices, top down"), levels.join(", ")),
        (
            cell("data"),
            format!(
                "{} in {} files",
                size(session.data_bytes()),
                options.threads
            ),
        ),
    ];
    for tool in &options.tools {
        page.environment.push((cell(tool.name()), tool.version()));
    }
    Ok(page)
}

fn assumption(options: &Options) -> String {
    let cache = match (options.direct, options.keep_cache) {
        (true, _) => "files are opened with O_DIRECT",
        (false, true) => "the page cache keeps what it holds between tests (--keep-cache)",
        (false, false) => "before each test the files are synced and dropped from the page cache",
    };
    format!(
        "suite {SUITE}: throughput of {} threads with records of {}, close and fsync in the time; {cache}",
        options.threads,
        size(options.record as u64)
    )
}

fn kernel() -> String {
    let about = rustix::system::uname();
    let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    format!("{} {}", text(about.sysname()), text(about.release()))
}

fn processors() -> String {
    let count = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    count.to_string()
}

const CACHES: [&str; 6] = ["CACHE", "WHOSE", "STORAGE", "SIZE", "COUNTS", "NOTE"];

fn cache_line(layer: &Layer) -> Vec<String> {
    vec![
        layer.name.clone(),
        layer.place.clone(),
        layer.storage.clone(),
        layer.bytes.map_or("-".to_string(), size),
        if layer.counted { "yes" } else { "no" }.to_string(),
        layer.note.clone(),
    ]
}

fn show(
    context: &Context,
    args: &RealArgs,
    session: &Session,
    page: &Page,
    samples: &[Sample],
) -> Result<(), Failure> {
    if context.json {
        let mut value = details(session);
        value["rows"] = json!(page.rows);
        value["samples"] = json!(samples);
        value["assumptions"] = json!(page.assumptions);
        value["environment"] = json!(page.environment);
        return out(&document("bench files", &value)?);
    }
    let script = args.report.script();
    if samples.is_empty() || !script {
        let lines = session.layers.iter().map(cache_line).collect();
        out(&table::table(&CACHES, lines, &[3], script))?;
    }
    if !script {
        let told = if session.is_assumed() {
            "taken to be"
        } else {
            "together"
        };
        let verdict = session
            .too_small()
            .map_or("enough".to_string(), |r| format!("INVALID: {r}"));
        out(&format!(
            "caches {told} {}, data {}: {verdict}\n",
            size(session.caches_bytes()),
            size(session.data_bytes())
        ))?;
    }
    if samples.is_empty() {
        return Ok(());
    }
    print_rows(page, script)?;
    if !script {
        let notes: Vec<String> = text::warnings(&page.rows);
        out(&notes
            .iter()
            .map(|note| format!("note: {note}\n"))
            .collect::<String>())?;
        if let Some(dir) = &args.out {
            eprintln!("report: {}", Path::new(dir).join("report.html").display());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn words_are_read_in_the_terms_of_iozone() {
        assert_eq!(parse_test("1").unwrap().0, [Test::Read, Test::Reread]);
        assert!(
            parse_test("mmap")
                .unwrap_err()
                .contains("random-write, or 0, 1, 2")
        );
        assert_eq!(parse_tool("none").unwrap(), None);
        assert_eq!(parse_tool("fio").unwrap(), Some(Tool::Fio));
        assert!(parse_tool("dd").unwrap_err().contains("iozone"));
    }

    #[test]
    fn a_cache_of_unknown_size_is_a_dash() {
        let layer = Layer {
            name: "cache of the drive".to_string(),
            ..Layer::default()
        };
        let line = cache_line(&layer);
        assert_eq!((line[3].as_str(), line[4].as_str()), ("-", "no"));
        assert_eq!(line.len(), CACHES.len());
    }
}
