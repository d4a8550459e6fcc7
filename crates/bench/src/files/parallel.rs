//! IOR, mdtest and elbencho under the same load: command lines, and what they print.
//!
//! **Invariants**: as of [`super::tools`]. IOR and mdtest are programs for MPI: they run under `mpirun` where it is in PATH, and
//! else as the one task that they are without it; how many tasks there were is what they say themselves.

use std::path::Path;

use super::load::{Test, Work};
use super::tools::{Said, Tool, is_in_path};

/// The program that starts tasks of MPI.
pub const MPIRUN: &str = "mpirun";
/// Files that each task of mdtest makes.
const ENTRIES: u64 = 1000;
const MIB: f64 = 1_048_576.0;

/// The command line of one of these programs for a test, its name first.
pub fn line(tool: Tool, test: Test, work: &Work, dir: &Path) -> Vec<String> {
    match tool {
        Tool::Elbencho => elbencho_line(test, work, dir),
        _ => ior_line(test, work, dir),
    }
}

/// Reads what it says.
///
/// # Errors
/// If there is no figure for the test, or it was not the load that was asked for.
pub fn said(tool: Tool, test: Test, work: &Work, text: &str) -> Result<Said, String> {
    match tool {
        Tool::Elbencho => elbencho_said(test, text),
        _ => ior_said(test, work.files.len(), text),
    }
}

/// A program under MPI, where there is one to start it and more than one task is wanted.
fn under_mpi(program: &str, tasks: usize) -> Vec<String> {
    let mut line = Vec::new();
    if tasks > 1 && is_in_path(MPIRUN) {
        line.extend([MPIRUN.to_string(), "-np".to_string(), tasks.to_string()]);
    }
    line.push(program.to_string());
    line
}

fn ior_line(test: Test, work: &Work, dir: &Path) -> Vec<String> {
    let mut line = under_mpi("ior", work.files.len());
    let kind = if test.writes() { "-w" } else { "-r" };
    // A file for each task, synced at the end, kept for the next test; content that does not compress.
    let always = ["-a", "POSIX", kind, "-F", "-e", "-k", "-l", "random"];
    line.extend(always.map(str::to_string));
    line.extend(["-t".to_string(), work.record.to_string()]);
    line.extend(["-b".to_string(), work.size.to_string()]);
    if test != Test::Write && test.writes() {
        line.push("-E".to_string());
    }
    if test.is_random() {
        line.push("-z".to_string());
    }
    if work.direct {
        line.push("--posix.odirect".to_string());
    }
    let files = dir.join("ior").display().to_string();
    line.extend(["-o".to_string(), files]);
    line
}

/// Bytes over the time from opening to closing, as IOR's table of results has them.
fn ior_said(test: Test, tasks: usize, text: &str) -> Result<Said, String> {
    let value = |name: &str| {
        let of = |line: &str| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.trim().to_string())
        };
        text.lines().find_map(of)
    };
    let ran: usize = value("tasks").and_then(|n| n.parse().ok()).unwrap_or(0);
    if ran != tasks {
        return Err(format!(
            "ior ran with {ran} tasks where {tasks} were asked for: install {MPIRUN}"
        ));
    }
    let name = if test.writes() { "write" } else { "read" };
    let row = |line: &&str| line.split_whitespace().next() == Some(name);
    let rows = text
        .lines()
        .skip_while(|line| !line.starts_with("access "))
        .take_while(|line| !line.starts_with("Max "));
    let row: Option<Vec<f64>> = rows
        .filter(row)
        .map(|line| {
            line.split_whitespace()
                .skip(1)
                .map_while(|w| w.parse().ok())
                .collect()
        })
        .next();
    let [_, _, latency, ..] = row.as_deref().unwrap_or_default() else {
        return Err(format!("ior gave no figure for {name}"));
    };
    // The summary has more digits than the table.
    let best = format!("Max {}", if test.writes() { "Write" } else { "Read" });
    let rate: Option<f64> =
        value(&best).and_then(|rest| rest.split_whitespace().next().and_then(|n| n.parse().ok()));
    let rate = rate.ok_or(format!("ior gave no figure for {name}"))?;
    Ok(Said {
        bytes_per_second: rate * MIB,
        mean_us: Some(latency * 1e6),
        p99_us: None,
    })
}

fn elbencho_line(test: Test, work: &Work, dir: &Path) -> Vec<String> {
    let kind = if test.writes() { "-w" } else { "-r" };
    let mut line: Vec<String> = vec![
        "elbencho".to_string(),
        kind.to_string(),
        "--nolive".to_string(),
        "-t".to_string(),
        work.files.len().to_string(),
        "-b".to_string(),
        work.record.to_string(),
        "-s".to_string(),
        work.size.to_string(),
    ];
    if test.writes() {
        // Content that does not compress; what is written is synced, in a phase that counts.
        line.extend(["--blockvarpct", "100", "--sync"].map(str::to_string));
    }
    if test.is_random() {
        line.push("--rand".to_string());
    }
    if work.direct {
        line.push("--direct".to_string());
    }
    let file = |index| dir.join(Tool::Elbencho.file(index)).display().to_string();
    line.extend((0..work.files.len()).map(file));
    line
}

/// Bytes over the time until the last thread was done, with the time of the sync after it.
fn elbencho_said(test: Test, text: &str) -> Result<Said, String> {
    let wanted = if test.writes() { "WRITE" } else { "READ" };
    let mut phase = String::new();
    let (mut seconds, mut mib, mut said) = (0.0, None, Said::default());
    for line in text.lines() {
        let Some((head, values)) = line.split_once(':') else {
            continue;
        };
        let first = head.split_whitespace().next().unwrap_or_default();
        if !line.starts_with(char::is_whitespace) && first.chars().all(|c| c.is_ascii_uppercase()) {
            phase = first.to_string();
        }
        let last = values.split_whitespace().last().unwrap_or_default();
        let counted = phase == wanted || (test.writes() && phase == "SYNC");
        if head.contains("Elapsed time") && counted {
            seconds += duration(last).ok_or(format!("elbencho printed the time '{last}'"))?;
        }
        if phase == wanted && head.contains("Total MiB") {
            mib = last.parse::<f64>().ok();
        }
        if phase == wanted && head.contains("IO lat") {
            said.mean_us = said.mean_us.or_else(|| mean(values));
        }
    }
    let mib = mib.filter(|mib| *mib > 0.0 && seconds > 0.0);
    let mib = mib.ok_or("elbencho gave no figure".to_string())?;
    said.bytes_per_second = mib * MIB / seconds;
    Ok(said)
}

/// The mean of `[ min=108us avg=469us max=14.5ms ]`, microseconds.
fn mean(values: &str) -> Option<f64> {
    let text = values
        .split_whitespace()
        .find_map(|w| w.strip_prefix("avg="))?;
    Some(duration(text)? * 1e6)
}

/// Seconds of `1h2m5.755s`, `588ms`, `469us`.
fn duration(text: &str) -> Option<f64> {
    let mut seconds = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(end);
        let letters = tail
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let scale = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" => 1e-6,
            _ => return None,
        };
        seconds += number.parse::<f64>().ok()? * scale;
        rest = tail;
    }
    (seconds > 0.0).then_some(seconds)
}

/// The command line of mdtest: files are made, looked at, read and removed, one folder for each task.
pub fn mdtest_line(tasks: usize, dir: &Path) -> Vec<String> {
    let mut line = under_mpi("mdtest", tasks);
    line.extend(["-F", "-C", "-T", "-r", "-u", "-n"].map(str::to_string));
    line.push(ENTRIES.to_string());
    line.extend(["-d".to_string(), dir.join("mdtest").display().to_string()]);
    line
}

/// Operations a second by workload, as the first table of mdtest has them; what it did not do is left out.
///
/// # Errors
/// If there is no table, or it ran with other tasks than were asked for.
pub fn mdtest_said(tasks: usize, text: &str) -> Result<Vec<(&'static str, f64)>, String> {
    let launched = |line: &str| {
        let (_, rest) = line.split_once("was launched with ")?;
        rest.split_whitespace().next()?.parse::<usize>().ok()
    };
    let ran = text.lines().find_map(launched).unwrap_or(0);
    if ran != tasks {
        return Err(format!(
            "mdtest ran with {ran} tasks where {tasks} were asked for: install {MPIRUN}"
        ));
    }
    let names = [
        ("File creation", "create"),
        ("File stat", "stat"),
        ("File removal", "remove"),
    ];
    let table = text
        .lines()
        .skip_while(|line| !line.starts_with("SUMMARY rate"))
        .take_while(|line| !line.starts_with("SUMMARY time"));
    let mut found = Vec::new();
    for line in table {
        for (words, name) in names {
            let Some(rest) = line.trim().strip_prefix(words) else {
                continue;
            };
            // Some versions have a colon; the third number is the mean.
            let numbers = rest
                .split_whitespace()
                .filter_map(|w| w.parse::<f64>().ok());
            found.extend(
                numbers
                    .skip(2)
                    .take(1)
                    .filter(|n| *n > 0.0)
                    .map(|n| (name, n)),
            );
        }
    }
    if found.is_empty() {
        return Err("mdtest gave no figure".to_string());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::super::tools::tests::work;
    use super::*;

    #[test]
    fn command_lines_are_those_of_the_programs() {
        let of = |tool, test| line(tool, test, &work(1), Path::new("/mnt")).join(" ");
        assert_eq!(
            of(Tool::Ior, Test::RandomWrite),
            "ior -a POSIX -w -F -e -k -l random -t 65536 -b 8589934592 -E -z --posix.odirect -o /mnt/ior"
        );
        assert!(!of(Tool::Ior, Test::Write).contains(" -E"));
        assert_eq!(
            of(Tool::Elbencho, Test::Write),
            "elbencho -w --nolive -t 1 -b 65536 -s 8589934592 --blockvarpct 100 --sync --direct /mnt/elbencho.0"
        );
        assert!(of(Tool::Elbencho, Test::RandomRead).contains("-r --nolive"));
        let mdtest = mdtest_line(1, Path::new("/mnt")).join(" ");
        assert_eq!(mdtest, "mdtest -F -C -T -r -u -n 1000 -d /mnt/mdtest");
    }

    /// Of a run of IOR 4.1.0+dev with 10 tasks on a file system of DAOS, as somebody published it; shortened.
    const IOR: &str = "\
IOR-4.1.0+dev: MPI Coordinated Test of Parallel I/O
Began               : Fri Jul 18 16:11:05 2025
Options: 
api                 : POSIX
nodes               : 1
tasks               : 10
clients per node    : 10
xfersize            : 1 MiB
blocksize           : 10 MiB
aggregate filesize  : 100 MiB

Results: 

access    bw(MiB/s)  IOPS       Latency(s)  block(KiB) xfer(KiB)  open(s)    wr/rd(s)   close(s)   total(s)   iter
------    ---------  ----       ----------  ---------- ---------  --------   --------   --------   --------   ----
write     284.17     284.84     0.035106    10240      1024.00    0.001105   0.351069   0.000144   0.351902   0   
Verifying contents of the file(s) just written.

read      11530      11963      0.000827    10240      1024.00    0.000195   0.008359   0.000210   0.008673   0   
remove    -          -          -           -          -          -          -          -          0.001194   0   
Max Write: 284.17 MiB/sec (297.97 MB/sec)
Max Read:  11530.10 MiB/sec (12090.18 MB/sec)
";

    #[test]
    fn what_ior_says_is_read() {
        let of = |test, tasks| said(Tool::Ior, test, &work(tasks), IOR);
        let write = of(Test::Write, 10).unwrap();
        assert!((write.bytes_per_second / 1e6 - 297.97).abs() < 0.01);
        assert!((write.mean_us.unwrap() - 35_106.0).abs() < 1e-6);
        let read = of(Test::RandomRead, 10).unwrap();
        assert!((read.bytes_per_second / 1e6 - 12_090.18).abs() < 0.01);
        let alone = of(Test::Write, 2).unwrap_err();
        assert!(alone.contains("10 tasks where 2"), "{alone}");
        let nothing = "tasks : 10\n";
        let error = said(Tool::Ior, Test::Read, &work(10), nothing).unwrap_err();
        assert!(error.contains("no figure for read"), "{error}");
    }

    /// As elbencho's documentation prints it (96 threads), and a sync after it in the same form.
    const ELBENCHO: &str = "
OPERATION   RESULT TYPE         FIRST DONE   LAST DONE
=========== ================    ==========   =========
WRITE       Elapsed time     :    2m3.241s    2m5.755s
            IOPS             :       33395       33352
            Throughput MiB/s :       33395       33352
            Total MiB        :     4115703     4194304
";

    #[test]
    fn what_elbencho_says_is_read_with_its_sync() {
        let of = |test, text: &str| said(Tool::Elbencho, test, &work(1), text);
        let write = of(Test::Write, ELBENCHO).unwrap();
        assert!((write.bytes_per_second / MIB - 33_352.0).abs() < 5.0);
        let synced =
            format!("{ELBENCHO}---\nSYNC        Elapsed time     :     10.000s    2m5.755s\n");
        let half = of(Test::Write, &synced).unwrap();
        assert!((half.bytes_per_second * 2.0 - write.bytes_per_second).abs() < 1.0);
        assert!(of(Test::Read, ELBENCHO).is_err());
        let read = "READ        Elapsed time     :       586ms       588ms
            IO latency       : [ min=108us avg=469us max=14.5ms ]
            Total MiB        :        9949       10000
";
        let read = of(Test::Read, read).unwrap();
        assert!((read.bytes_per_second - 10_000.0 * MIB / 0.588).abs() < 1.0);
        assert!((read.mean_us.unwrap() - 469.0).abs() < 1e-6);
    }

    #[test]
    fn durations_are_read_in_all_units() {
        let close = |text, seconds: f64| {
            let found = duration(text).unwrap();
            assert!((found - seconds).abs() < 1e-9, "{text}: {found}");
        };
        close("1h2m5.5s", 3725.5);
        close("588ms", 0.588);
        close("469us", 0.000_469);
        for bad in ["", "12", "s", "3days"] {
            assert_eq!(duration(bad), None, "{bad}");
        }
    }

    /// Of a run of mdtest 4.1.0+dev, as somebody published it; shortened.
    const MDTEST: &str = "\
-- started at 07/18/2025 16:11:20 --
mdtest-4.1.0+dev was launched with 10 total task(s) on 1 node(s)
10 tasks, 33340 files

SUMMARY rate (in ops/sec): (of 1 iterations)
   Operation                     Max            Min           Mean        Std Dev
   ---------                     ---            ---           ----        -------
   File creation                1200.016       1200.016       1200.016          0.000
   File stat                       0.000          0.000          0.000          0.000
   File read                       0.000          0.000          0.000          0.000
   File removal                    0.000          0.000          0.000          0.000
   Tree creation                1808.669       1808.669       1808.669          0.000
-- finished at 07/18/2025 16:11:49 --
";

    #[test]
    fn what_mdtest_says_is_read_and_what_it_did_not_do_is_left_out() {
        assert_eq!(mdtest_said(10, MDTEST).unwrap(), [("create", 1200.016)]);
        assert!(
            mdtest_said(2, MDTEST)
                .unwrap_err()
                .contains("10 tasks where 2")
        );
        let old = MDTEST.replace("File stat        ", "File stat       :");
        let old = old.replace("   0.000          0.000          0.000", "   1.0  2.0  3.0");
        let all = mdtest_said(10, &old).unwrap();
        assert!(all.contains(&("stat", 3.0)), "{all:?}");
        assert!(mdtest_said(10, "was launched with 10 total").is_err());
    }
}
