//! `scrub`: everything that is stored is read and verified, and what is bad is repaired.
//!
//! **Invariants**: a scrub that was waited for and that left bad blocks ends with exit code 1; a report names every
//! device and part that something was found in.

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use ashlar_engine::status::{ScrubFinding, ScrubReport};

use crate::api::{Call, Scrub, ScrubReply, ScrubVerb};
use crate::cli::since::Since;
use crate::cli::{ScrubArgs, ScrubWord};
use crate::command::returning::ask;
use crate::command::wait;
use crate::failure::Failure;
use crate::print::Context;
use crate::units::{duration, rate, size};
use crate::view::scrub::line;
use crate::view::{safe, table};

/// `scrub`.
///
/// # Errors
/// If the array is unknown, or there is no scrub that could be changed so.
pub(crate) fn scrub(context: &Context, args: &ScrubArgs) -> Result<ExitCode, Failure> {
    let starts = args.check || args.wait || args.since.is_some();
    let change = match args.change {
        None if starts => ScrubVerb::Start,
        None => ScrubVerb::Show,
        Some(ScrubWord::Start) => ScrubVerb::Start,
        Some(ScrubWord::Pause) => ScrubVerb::Pause,
        Some(ScrubWord::Resume) => ScrubVerb::Resume,
        Some(ScrubWord::Stop) => ScrubVerb::Stop,
    };
    if (args.check || args.since.is_some()) && change != ScrubVerb::Start {
        return Err(Failure::invalid(
            "--check and --since are for a scrub that starts: 'ashlar scrub ARRAY start --check'",
        ));
    }
    if args.wait && !matches!(change, ScrubVerb::Start | ScrubVerb::Resume) {
        return Err(Failure::invalid(
            "-w is for a scrub that starts or goes on: 'ashlar scrub ARRAY start -w'",
        ));
    }
    let call = |change| {
        Ok(Call::Scrub(Scrub {
            array: args.array.clone(),
            change,
            check: args.check,
            since: args.since.map(seconds).transpose()?,
        }))
    };
    let (mut reply, mut shown): (ScrubReply, _) = ask(context, &call(change)?)?;
    if args.wait {
        wait::until_done(context, &args.array, &["scrub".to_string()])?;
        (reply, shown) = ask(context, &call(ScrubVerb::Show)?)?;
    }
    context.print("scrub", &shown, || text(&reply, change, args.wait))?;
    let left = reply.reports.last().map_or(0, |r| r.found - r.repaired);
    Ok(match args.wait && left > 0 {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

/// The second of the Unix epoch that is meant.
fn seconds(since: Since) -> Result<u64, Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_secs());
    match since {
        Since::Ago(seconds) => Ok(now.saturating_sub(seconds)),
        Since::At(seconds) => Ok(seconds),
        Since::Id(id) => Err(Failure::invalid(format!(
            "--since {id} is no time: give 7d, 12h, 2026-01-31 or '2026-01-31 10:30'"
        ))),
    }
}

fn text(reply: &ScrubReply, change: ScrubVerb, waited: bool) -> String {
    let array = safe(&reply.array);
    let already = match reply.already {
        true => "already ",
        false => "",
    };
    match change {
        _ if waited => shown(reply),
        ScrubVerb::Show => shown(reply),
        ScrubVerb::Start => format!(
            "{array}: a scrub was started; 'ashlar scrub {array}' shows it, 'ashlar wait {array} --for scrub' waits for \
             its end\n"
        ),
        ScrubVerb::Pause => format!(
            "{array}: the scrub is {already}paused, also after an import; 'ashlar scrub {array} resume' goes on\n"
        ),
        ScrubVerb::Resume => format!("{array}: the scrub {already}goes on\n"),
        ScrubVerb::Stop => format!(
            "{array}: the scrub was stopped, and does not count as done; 'ashlar scrub {array} start' begins anew\n"
        ),
    }
}

/// All reports, the newest in full.
fn shown(reply: &ScrubReply) -> String {
    let array = safe(&reply.array);
    let by_itself = match reply.every.as_str() {
        "never" => "none starts by itself (scrub.every=never)".to_string(),
        every => format!("one starts by itself every {every}"),
    };
    let Some(last) = reply.reports.last() else {
        return format!(
            "{array}: no scrub yet; {by_itself}, 'ashlar scrub {array} start' starts one now\n"
        );
    };
    let mut out = format!("{array}: scrub {}\n", line(last));
    if let Some(task) = reply.task.as_ref().filter(|_| last.ended.is_none()) {
        out += &format!(
            "  {} of {} verified",
            size(task.done_bytes),
            size(task.total_bytes)
        );
        if task.state == "running" {
            let left = task.eta_seconds.map_or("-".to_string(), duration);
            out += &format!(", {}, {left} left", rate(task.bytes_per_second));
        }
        out += "\n";
        if task.state == "paused" {
            out += &format!("  {}\n", safe(&task.reason)); // it says that it is
        } else if !task.reason.is_empty() {
            out += &format!("  {}: {}\n", task.state, safe(&task.reason));
        }
    }
    out += &findings(last);
    out += &advice(&array, last);
    let before = &reply.reports[..reply.reports.len() - 1];
    if !before.is_empty() {
        out += "Before:\n";
    }
    for report in before.iter().rev() {
        out += &format!("  {}\n", line(report));
    }
    out + &format!("Schedule: {by_itself}\n")
}

fn findings(report: &ScrubReport) -> String {
    if report.findings.is_empty() {
        return String::new();
    }
    let row = |f: &ScrubFinding| {
        vec![
            f.device.to_string(),
            f.part.clone(),
            f.unreadable.to_string(),
            f.wrong.to_string(),
            f.repaired.to_string(),
        ]
    };
    let titles = ["DEVICE", "PART", "UNREADABLE", "WRONG", "REPAIRED"];
    let rows = report.findings.iter().map(row).collect();
    table::table(&titles, rows, &[0, 2, 3, 4], false)
}

/// What to do about what was found.
fn advice(array: &str, report: &ScrubReport) -> String {
    let left = report.found - report.repaired;
    if left == 0 {
        return String::new();
    }
    if report.check {
        return format!(
            "Nothing was repaired: 'ashlar scrub {array} start' repairs what it finds\n"
        );
    }
    format!(
        "{left} could not be repaired: 'ashlar status {array}' says whether data is lost; a device that keeps giving bad \
         blocks is replaced with 'ashlar replace {array} DEV NEW'\n"
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use ashlar_engine::status::TaskStatus;

    fn report() -> ScrubReport {
        ScrubReport {
            state: "done".into(),
            whole: true,
            started: 1_700_000_000,
            ended: Some(1_700_003_600),
            done_bytes: 3 << 30,
            ..ScrubReport::default()
        }
    }

    #[test]
    fn a_report_says_what_is_left_to_do() {
        let mut report = report();
        (report.found, report.repaired) = (3, 2);
        report.findings = vec![ScrubFinding {
            device: 4,
            uuid: String::new(),
            part: "parity".into(),
            unreadable: 1,
            wrong: 2,
            repaired: 2,
        }];
        let table = findings(&report);
        assert!(table.lines().nth(1).unwrap().contains("parity"), "{table}");
        assert!(advice("tank", &report).starts_with("1 could not be repaired"));
        report.check = true;
        assert!(advice("tank", &report).contains("'ashlar scrub tank start'"));
    }

    #[test]
    fn a_scrub_that_does_not_run_has_no_speed() {
        let mut reply = ScrubReply {
            array: "tank".into(),
            already: false,
            every: "30d".into(),
            task: Some(TaskStatus {
                id: 5,
                kind: "scrub".into(),
                state: "running".into(),
                done_bytes: 1 << 20,
                total_bytes: 4 << 20,
                bytes_per_second: 1 << 20,
                eta_seconds: Some(3),
                reason: String::new(),
                found: 0,
                healed: 0,
            }),
            reports: vec![ScrubReport {
                ended: None,
                ..report()
            }],
        };
        let said = shown(&reply);
        assert!(
            said.contains("  1M of 4M verified, 1M/s, 3s left\n"),
            "{said}"
        );
        let task = reply.task.as_mut().unwrap();
        (task.state, task.eta_seconds) = ("paused".into(), None);
        task.reason = "paused: 'ashlar scrub tank resume' goes on".into();
        let said = shown(&reply);
        let words = "  1M of 4M verified\n  paused: 'ashlar scrub tank resume' goes on\n";
        assert!(said.contains(words), "{said}");
    }

    #[test]
    fn whoever_has_no_scrub_is_told_when_one_comes() {
        let mut reply = ScrubReply {
            array: "tank".into(),
            already: false,
            every: "30d".into(),
            task: None,
            reports: Vec::new(),
        };
        let said = text(&reply, ScrubVerb::Show, false);
        assert!(
            said.contains("no scrub yet; one starts by itself every 30d"),
            "{said}"
        );
        reply.every = "never".into();
        assert!(text(&reply, ScrubVerb::Show, false).contains("scrub.every=never"));
        reply.reports = vec![report(), report()];
        let said = text(&reply, ScrubVerb::Show, false);
        assert_eq!(said.lines().count(), 4, "{said}");
        assert!(seconds(Since::Id(4711)).is_err() && seconds(Since::Ago(7)).is_ok());
    }
}
