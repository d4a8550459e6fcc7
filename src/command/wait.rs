//! `wait`: until background work has ended, with its progress.
//!
//! **Invariants**: returns success only when the daemon said that nothing of these kinds is left to
//! do; what is left and cannot go on by itself is a failure that says why.

use std::time::{Duration, Instant};

use ashlar_engine::status::{ArrayStatus, TaskStatus};

use crate::api::{Call, StatusReply, WaitReply};
use crate::failure::Failure;
use crate::print::Context;
use crate::units::duration;
use crate::view::picture::{state_word, task_line, work_word};
use crate::view::progress::Progress;
use crate::view::{self, Style, Tone, safe};

/// `wait`.
///
/// # Errors
/// If the daemon cannot be asked, the array goes away, or the work goes on only when the operator acts.
pub(crate) fn wait(context: &Context, array: &str, kinds: &[String]) -> Result<(), Failure> {
    let started = Instant::now();
    let (reply, waited) = until_done(context, array, kinds)?;
    context.print("wait", &reply, || {
        let word = reply.array.as_ref().map_or("", |a| state_word(a.state).0);
        let took = waited.then(|| duration(started.elapsed().as_secs()));
        format!("{array}: {}\n", ended(kinds, took, &word.to_lowercase()))
    })
}

/// How a wait ended; `took` if there was something to wait for.
fn ended(kinds: &[String], took: Option<String>, state: &str) -> String {
    let words: Vec<&str> = kinds.iter().map(|kind| work_word(kind)).collect();
    let of = match words.as_slice() {
        [] => "background work".to_string(),
        words => words.join(", "),
    };
    match took {
        Some(took) => format!("{of} done after {took}; the array is {state}"),
        None => format!("no {of} left to wait for; the array is {state}"),
    }
}

/// The same, which prints progress only; with whether there was something to wait for.
///
/// # Errors
/// As [`wait`].
pub(crate) fn until_done(
    context: &Context,
    array: &str,
    kinds: &[String],
) -> Result<(WaitReply, bool), Failure> {
    let mut progress = Progress::new(context.json);
    let started = Instant::now();
    let mut waited = false;
    loop {
        let call = Call::Wait {
            array: array.to_string(),
            kinds: kinds.to_vec(),
            seconds: 1,
        };
        let reply: WaitReply = context.client.call(&call)?;
        if reply.done {
            progress.end();
            return match &reply.stuck {
                Some(why) => Err(Failure::refused(format!(
                    "{array}: not done, and nothing more is done by itself: {}; 'ashlar status {array}' says \
                     what to do",
                    safe(why)
                ))),
                None => Ok((reply, waited || started.elapsed() >= LONG)),
            };
        }
        waited = true;
        progress.show(&match &reply.array {
            Some(status) => present(status, kinds),
            None => awaited(context, array),
        });
    }
}

/// An answer that took so long was waited for.
const LONG: Duration = Duration::from_millis(100);

/// What an array that is not imported yet waits for.
fn awaited(context: &Context, array: &str) -> String {
    let reply = context.client.call(&Call::Status { array: None });
    let reply: StatusReply = reply.unwrap_or_default();
    let known = reply.not_imported.iter().find(|n| n.name == array);
    match known.and_then(|known| known.waits) {
        Some(waits) => format!(
            "{array}: waiting for its devices: {}",
            view::awaited(&waits)
        ),
        None => format!("{array}: waiting for its devices"),
    }
}

/// The task to show of those that are left of these kinds, and how many others there are.
fn shown<'a>(tasks: &'a [TaskStatus], kinds: &[String]) -> Option<(&'a TaskStatus, usize)> {
    let wanted = |kind: &String| kinds.is_empty() || kinds.contains(kind);
    let left = |t: &&TaskStatus| wanted(&t.kind) && t.state != "done";
    let left: Vec<&TaskStatus> = tasks.iter().filter(left).collect();
    let running = left.iter().find(|t| t.state == "running");
    Some((running.or(left.first())?, left.len() - 1))
}

fn present(array: &ArrayStatus, kinds: &[String]) -> String {
    let Some((task, others)) = shown(&array.tasks, kinds) else {
        return format!("{}: waiting", array.name);
    };
    let (name, work) = (&array.name, work_word(&task.kind));
    let others = match others {
        0 => String::new(),
        n => format!(" (and {n} more)"),
    };
    let reason = safe(&task.reason);
    if task.state != "running" && !reason.is_empty() {
        return format!("{name}: {work} {}{others}: {reason}", task.state); // a bar would stand still
    }
    let style = Style {
        color: false,
        ..Style::detect(false)
    };
    let line = task_line(task, style, Tone::Good);
    let why = match reason.as_str() {
        "" => String::new(),
        reason => format!(": {reason}"),
    };
    format!("{name}: {work} {line}{others}{why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_says_what_was_waited_for() {
        let kinds = ["reconstruct".to_string(), "scrub".to_string()];
        let took = || Some("1m05s".to_string());
        assert_eq!(
            ended(&kinds, took(), "optimal"),
            "rebuild, scrub done after 1m05s; the array is optimal"
        );
        assert_eq!(
            ended(&[], took(), "degraded"),
            "background work done after 1m05s; the array is degraded"
        );
        assert_eq!(
            ended(&kinds[..1], None, "optimal"),
            "no rebuild left to wait for; the array is optimal"
        );
    }

    #[test]
    fn the_task_that_runs_is_shown() {
        let task = |kind: &str, state: &str| TaskStatus {
            id: 1,
            kind: kind.into(),
            state: state.into(),
            done_bytes: 10,
            total_bytes: 100,
            bytes_per_second: 1,
            eta_seconds: None,
            reason: String::new(),
            found: 0,
            healed: 0,
        };
        let tasks = [
            task("rebalance", "done"),
            task("scrub", "waiting"),
            task("reconstruct", "running"),
        ];
        let kind = |kinds: &[&str]| {
            let kinds: Vec<String> = kinds.iter().map(ToString::to_string).collect();
            shown(&tasks, &kinds).map(|(task, others)| (task.kind.clone(), others))
        };
        assert_eq!(kind(&[]), Some(("reconstruct".to_string(), 1)));
        assert_eq!(kind(&["scrub"]), Some(("scrub".to_string(), 0)));
        assert_eq!(kind(&["rebalance"]), None);
    }
}
