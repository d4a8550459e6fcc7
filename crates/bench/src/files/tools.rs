//! Other programs under the same load: fio and IOzone, command lines and what they print.
//!
//! **Invariants**: the same files, records, threads, order of work and counted syncs as our own tests; a figure is what the
//! program itself says; a program that fails is named with its last line, and never gives a figure.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::load::{Test, Work};

/// A program that can run beside ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tool {
    /// fio, a test at a time.
    Fio,
    /// IOzone, all tests in one run.
    Iozone,
    /// IOR, a test at a time.
    Ior,
    /// mdtest: metadata, in one run.
    Mdtest,
    /// elbencho, a test at a time.
    Elbencho,
}

/// What a program says of a test.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Said {
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// Mean time of a record, microseconds.
    pub mean_us: Option<f64>,
    /// 99th percentile.
    pub p99_us: Option<f64>,
}

/// Whether a program is in PATH.
pub(super) fn is_in_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
}

impl Tool {
    /// All of them.
    pub const ALL: [Tool; 5] = [
        Tool::Fio,
        Tool::Iozone,
        Tool::Ior,
        Tool::Mdtest,
        Tool::Elbencho,
    ];

    /// Its name, that of the program.
    pub fn name(self) -> &'static str {
        match self {
            Tool::Fio => "fio",
            Tool::Iozone => "iozone",
            Tool::Ior => "ior",
            Tool::Mdtest => "mdtest",
            Tool::Elbencho => "elbencho",
        }
    }

    /// By name.
    pub fn named(name: &str) -> Option<Tool> {
        Tool::ALL.into_iter().find(|tool| tool.name() == name)
    }

    /// Whether it is in PATH.
    pub fn is_here(self) -> bool {
        is_in_path(self.name())
    }

    /// The name of its file number `index`.
    pub fn file(self, index: usize) -> String {
        match self {
            Tool::Ior => format!("ior.{index:08}"),
            _ => format!("{}.{index}", self.name()),
        }
    }

    /// What it says of its version.
    pub fn version(self) -> String {
        let argument = match self {
            Tool::Fio | Tool::Elbencho => "--version",
            Tool::Iozone => "-v",
            // Without a load they run one of their own.
            Tool::Ior | Tool::Mdtest => {
                return "it tells its version only when it runs".to_string();
            }
        };
        let output = Command::new(self.name())
            .arg(argument)
            .stdin(Stdio::null())
            .output();
        let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
        let text = text.unwrap_or_default();
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        lines.next().unwrap_or("-").to_string()
    }
}

/// The command line of fio for one test.
pub fn fio_line(test: Test, work: &Work, dir: &Path) -> Vec<String> {
    let rw = match test {
        Test::Write | Test::Rewrite => "write",
        Test::Read | Test::Reread => "read",
        Test::RandomRead => "randread",
        Test::RandomWrite => "randwrite",
    };
    let mut line: Vec<String> = vec![
        format!("--name={}", test.name()),
        format!("--directory={}", dir.display()),
        "--filename_format=fio.$jobnum".to_string(),
        format!("--rw={rw}"),
        format!("--bs={}", work.record),
        format!("--size={}", work.size),
        format!("--numjobs={}", work.files.len()),
        format!("--direct={}", u8::from(work.direct)),
        format!("--randseed={}", work.seed),
        format!("--buffer_compress_percentage={}", work.zeros),
    ];
    let always = [
        "--ioengine=psync",
        "--thread=1",
        "--fallocate=none",
        "--refill_buffers=1",
        "--end_fsync=1",
        "--fsync_on_close=1",
        "--invalidate=1",
        "--group_reporting=1",
        "--output-format=json",
    ];
    line.extend(always.map(str::to_string));
    // Content that was written by another pass stays as it is.
    line.push(format!("--overwrite={}", u8::from(test != Test::Write)));
    line
}

/// Reads what fio says of a test.
///
/// # Errors
/// If it is not JSON with a figure.
pub fn fio_said(test: Test, text: &str) -> Result<Said, String> {
    // Notes may stand before it.
    let start = text.find('{').unwrap_or(0);
    let value: Value =
        serde_json::from_str(&text[start..]).map_err(|_| "fio printed no JSON".to_string())?;
    let job = &value["jobs"][0];
    let side = &job[if test.writes() { "write" } else { "read" }];
    let bytes = side["io_bytes"].as_f64().unwrap_or(0.0);
    // The time of the job, which has the sync at its end in it.
    let seconds = side["runtime"].as_f64().unwrap_or(0.0) / 1e3;
    if job["error"].as_i64() != Some(0) || bytes <= 0.0 || seconds <= 0.0 {
        return Err("fio gave no figure".to_string());
    }
    let times = &side["clat_ns"];
    let micro = |value: &Value| value.as_f64().map(|nanos| nanos / 1e3);
    Ok(Said {
        bytes_per_second: bytes / seconds,
        mean_us: micro(&times["mean"]),
        p99_us: micro(&times["percentile"]["99.000000"]),
    })
}

/// The command line of IOzone for all tests.
pub fn iozone_line(tests: &[Test], work: &Work, dir: &Path) -> Vec<String> {
    let mut line: Vec<String> = Vec::new();
    let mut numbers: Vec<&str> = tests.iter().map(|test| test.number()).collect();
    // It needs files to read, and makes them in test 0.
    numbers.push("0");
    numbers.sort_unstable();
    numbers.dedup();
    for number in numbers {
        line.extend(["-i".to_string(), number.to_string()]);
    }
    line.extend(["-t".to_string(), work.files.len().to_string()]);
    line.extend(["-s".to_string(), format!("{}k", work.size / 1024)]);
    line.extend(["-r".to_string(), format!("{}k", work.record / 1024)]);
    // Close and sync count; each thread does all of its file; files stay, to be looked at.
    line.extend(["-c", "-e", "-x", "-w"].map(str::to_string));
    if work.direct {
        line.push("-I".to_string());
    }
    line.push("-F".to_string());
    let file = |index| dir.join(Tool::Iozone.file(index)).display().to_string();
    line.extend((0..work.files.len()).map(file));
    line
}

/// Reads what IOzone says of a test: bytes over the time of all, as its parent process sees them.
pub fn iozone_said(test: Test, text: &str) -> Option<Said> {
    let words = match test {
        Test::Write => "initial writers",
        Test::Rewrite => "rewriters",
        Test::Read => "readers",
        Test::Reread => "re-readers",
        Test::RandomRead => "random readers",
        Test::RandomWrite => "random writers",
    };
    let of_test = |line: &&str| {
        let what = line.trim().strip_prefix("Parent sees throughput for")?;
        let what = what
            .trim()
            .trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ');
        let (name, rest) = what.split_once('=')?;
        (name.trim() == words).then(|| rest.trim().to_string())
    };
    let rest = text.lines().find_map(|line| of_test(&line))?;
    let mut parts = rest.split_whitespace();
    let number: f64 = parts.next()?.parse().ok()?;
    let unit = match parts.next()?.to_ascii_lowercase().as_str() {
        "kb/sec" | "kbytes/sec" => 1024.0,
        "bytes/sec" => 1.0,
        _ => return None,
    };
    Some(Said {
        bytes_per_second: number * unit,
        ..Said::default()
    })
}

/// Runs a program until it ends. What it printed.
///
/// # Errors
/// If it cannot be started, or fails: its last line.
pub fn run(tool: Tool, line: &[String], dir: &Path) -> Result<String, String> {
    run_program(tool, tool.name(), line, dir)
}

/// Runs a program, `tool` or what starts it. What it printed.
///
/// # Errors
/// As [`run`].
pub fn run_program(
    tool: Tool,
    program: &str,
    line: &[String],
    dir: &Path,
) -> Result<String, String> {
    let output = Command::new(program)
        .args(line)
        .current_dir(dir)
        // Open MPI refuses root, and more tasks than processors, unless it is told; others do not know these.
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("OMPI_MCA_rmaps_base_oversubscribe", "1")
        .env("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let error = String::from_utf8_lossy(&output.stderr);
    let last = error.lines().rfind(|line| !line.trim().is_empty());
    let last = last.unwrap_or("it said nothing");
    Err(format!("{}: {}: {last}", tool.name(), output.status))
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use std::path::PathBuf;

    pub(crate) fn work(threads: usize) -> Work {
        Work {
            files: (0..threads).map(|n| PathBuf::from(n.to_string())).collect(),
            record: 64 << 10,
            size: 8 << 30,
            direct: true,
            seed: 3,
            pass: Some(1),
            zeros: 0,
        }
    }

    #[test]
    fn command_lines_are_those_of_the_programs() {
        let fio = fio_line(Test::RandomWrite, &work(2), Path::new("/mnt")).join(" ");
        for part in [
            "--rw=randwrite",
            "--bs=65536",
            "--numjobs=2",
            "--direct=1",
            "--end_fsync=1",
            "--overwrite=1",
        ] {
            assert!(fio.contains(part), "{fio}");
        }
        let iozone = iozone_line(&[Test::Read, Test::Reread], &work(2), Path::new("/mnt"));
        assert_eq!(
            iozone.join(" "),
            "-i 0 -i 1 -t 2 -s 8388608k -r 64k -c -e -x -w -I -F /mnt/iozone.0 /mnt/iozone.1"
        );
    }

    #[test]
    fn what_fio_says_is_read() {
        let text = r#"fio: a note
{"jobs":[{"error":0,"read":{"io_bytes":0,"runtime":0},"write":{"io_bytes":1000000,"runtime":500,
"clat_ns":{"mean":25000.0,"percentile":{"99.000000":90000}}}}]}"#;
        let said = fio_said(Test::Write, text).unwrap();
        assert_eq!(said.bytes_per_second, 2e6);
        assert_eq!((said.mean_us, said.p99_us), (Some(25.0), Some(90.0)));
        assert!(fio_said(Test::Read, text).is_err());
        assert!(fio_said(Test::Write, "nonsense").is_err());
    }

    #[test]
    fn what_iozone_says_is_read() {
        let text = "
	Children see throughput for  2 initial writers 	=  203776.00 kB/sec
	Parent sees throughput for  2 initial writers 	=  100000.50 kB/sec
	Min throughput per process 			=  100000.00 kB/sec
	Parent sees throughput for  2 rewriters 	=  2.00 kB/sec
	Parent sees throughput for  2 readers 		=  3.00 KB/sec
	Parent sees throughput for 2 re-readers 	=  4.00 kB/sec
	Parent sees throughput for 2 random readers 	=  5.00 kB/sec
	Parent sees throughput for 2 random writers 	=  6.00 furlongs/sec
";
        let of = |test| iozone_said(test, text).map(|said| said.bytes_per_second / 1024.0);
        assert_eq!(of(Test::Write), Some(100_000.5));
        let others = [Test::Rewrite, Test::Read, Test::Reread, Test::RandomRead].map(of);
        assert_eq!(others, [2.0, 3.0, 4.0, 5.0].map(Some));
        assert_eq!(of(Test::RandomWrite), None);
    }
}
