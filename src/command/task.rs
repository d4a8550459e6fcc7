//! `task`: the background work of an array.
//!
//! **Invariants**: the tasks are those that `status` has; a value that nobody gives is `-`; whoever pauses work is told
//! what is at risk meanwhile.

use ashlar_engine::Work;
use ashlar_engine::status::TaskStatus;
use serde_json::json;

use crate::api::{Call, StatusReply, Task, TaskChange, TaskReply};
use crate::cli::{Change, TaskArgs, absent};
use crate::command::returning::ask;
use crate::failure::Failure;
use crate::print::Context;
use crate::units::{duration, rate, size, size_or_exact};
use crate::view::picture::work_word;
use crate::view::{count, safe, table};

/// `task`.
///
/// # Errors
/// If the array or the task is unknown, or the task cannot be changed so.
pub(crate) fn task(context: &Context, args: &TaskArgs) -> Result<(), Failure> {
    if let (Some(id), Some(change)) = (&args.id, args.change) {
        return alter(context, &args.array, id, change);
    }
    let reply: StatusReply = context.client.call(&Call::Status {
        array: Some(args.array.clone()),
    })?;
    let tasks = reply.arrays.into_iter().flat_map(|a| a.tasks);
    let tasks: Vec<TaskStatus> = tasks.collect();
    let value = json!({ "array": args.array, "tasks": tasks });
    context.print("task", &value, || {
        if tasks.is_empty() && !args.script {
            return format!("{}: no background work\n", safe(&args.array));
        }
        let titles = [
            "ID", "WORK", "STATE", "DONE", "OF", "RATE", "LEFT", "FOUND", "REPAIRED", "REASON",
        ];
        let rows = tasks.iter().map(|task| row(task, args.exact)).collect();
        table::table(&titles, rows, &[0, 3, 4, 5, 6, 7, 8], args.script)
    })
}

/// Changes a task.
fn alter(context: &Context, array: &str, id: &str, change: Change) -> Result<(), Failure> {
    let call = Call::Task(Task {
        array: array.to_string(),
        id: number(id)?,
        change: match change {
            Change::Pause => TaskChange::Pause,
            Change::Resume => TaskChange::Resume,
            Change::Cancel => TaskChange::Cancel,
        },
    });
    let (reply, shown): (TaskReply, _) = ask(context, &call)?;
    context.print("task", &shown, || text(&reply))
}

/// The number of a task that is named by it, or by its kind.
fn number(id: &str) -> Result<u64, Failure> {
    if let Ok(number) = id.parse() {
        return Ok(number);
    }
    let kind = absent::work(id)?;
    let work = Work::named(&kind).ok_or_else(|| {
        Failure::invalid(format!(
            "'{id}' is no task: give its number ('ashlar task ARRAY' lists them) or its kind, rebuild, rebalance, \
             scrub, clean or repair"
        ))
    })?;
    Ok(work.id())
}

fn text(reply: &TaskReply) -> String {
    let (array, id, word) = (safe(&reply.array), reply.id, work_word(&reply.kind));
    let already = match reply.already {
        true => "already ",
        false => "",
    };
    let mut out = match reply.change {
        TaskChange::Pause if reply.kind == Work::Scrub.name() => format!(
            "{array}: {word} is {already}paused, also after an import; 'ashlar task {array} {id} resume' goes on\n"
        ),
        TaskChange::Pause => format!(
            "{array}: {word} is {already}paused; 'ashlar task {array} {id} resume' goes on, and so does an import\n"
        ),
        TaskChange::Resume if reply.already => format!("{array}: {word} was not paused\n"),
        TaskChange::Resume => format!("{array}: {word} goes on\n"),
        TaskChange::Cancel if reply.kind == Work::Scrub.name() => {
            format!("{array}: {word} was stopped, and does not count as done\n")
        }
        TaskChange::Cancel => format!(
            "{array}: {word} is cancelled; {}, and what has moved stays where it is\n",
            are(&reply.stay, ("stays", "stay"))
        ),
    };
    let rebuild = reply.kind == Work::Rebuild.name();
    if rebuild && reply.change == TaskChange::Pause && reply.degraded {
        out += &match (reply.unprotected_bytes, reply.more_losses) {
            (0, 0) => "At risk: the next device failure loses data\n".to_string(),
            (0, more) => {
                let more = count(usize::from(more), "more device");
                format!("Meanwhile redundancy is missing: {more} may fail\n")
            }
            (bytes, _) => format!(
                "At risk: {} have no redundancy left, and the next device failure loses data\n",
                size(bytes)
            ),
        };
    }
    if rebuild && reply.change == TaskChange::Resume && !reply.offline.is_empty() {
        out += &format!(
            "{} offline, and not rebuilt: 'ashlar online {array} DEV' takes one in again, 'ashlar fail {array} DEV' has \
             its data rebuilt\n",
            are(&reply.offline, ("is", "are"))
        );
    }
    out
}

/// `device 3 stays`, `devices 3, 4 stay`.
fn are(devices: &[u16], (one, many): (&str, &str)) -> String {
    let devices: Vec<String> = devices.iter().map(ToString::to_string).collect();
    match devices.as_slice() {
        [only] => format!("device {only} {one}"),
        all => format!("devices {} {many}", all.join(", ")),
    }
}

fn row(task: &TaskStatus, exact: bool) -> Vec<String> {
    // Of one that does not run it is how fast it was.
    let speed = match (task.bytes_per_second, exact) {
        (0, _) => "-".to_string(),
        _ if task.state != "running" => "-".to_string(),
        (bytes, true) => bytes.to_string(),
        (bytes, false) => rate(bytes),
    };
    let left = task.eta_seconds.map(|seconds| match exact {
        true => seconds.to_string(),
        false => duration(seconds),
    });
    let reason = match task.reason.as_str() {
        "" => "-".to_string(),
        reason => safe(reason),
    };
    vec![
        task.id.to_string(),
        work_word(&task.kind).to_string(),
        task.state.clone(),
        size_or_exact(task.done_bytes, exact),
        size_or_exact(task.total_bytes, exact),
        speed,
        left.unwrap_or("-".to_string()),
        task.found.to_string(),
        task.healed.to_string(),
        reason,
    ]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_task_is_named_by_number_or_kind() {
        for (id, number_of) in [
            ("1", 1),
            ("rebuild", 1),
            ("reconstruct", 1),
            ("rebalance", 4),
        ] {
            assert_eq!(number(id).unwrap(), number_of, "{id}");
        }
        assert!(number("coffee").unwrap_err().text.contains("rebalance"));
    }

    #[test]
    fn whoever_pauses_a_rebuild_is_told_what_is_at_risk() {
        let mut reply = TaskReply {
            array: "tank".into(),
            id: 1,
            kind: "reconstruct".into(),
            change: TaskChange::Pause,
            already: false,
            stay: Vec::new(),
            offline: vec![2],
            degraded: true,
            unprotected_bytes: 2 << 30,
            more_losses: 0,
        };
        let said = text(&reply);
        assert!(
            said.starts_with("tank: rebuild is paused; 'ashlar task tank 1 resume'"),
            "{said}"
        );
        assert!(
            said.contains("At risk: 2G have no redundancy left"),
            "{said}"
        );
        (reply.unprotected_bytes, reply.more_losses) = (0, 1);
        assert!(text(&reply).contains("1 more device may fail"));
        reply.degraded = false;
        assert_eq!(text(&reply).lines().count(), 1);
        reply.change = TaskChange::Resume;
        assert!(text(&reply).contains("rebuild goes on\ndevice 2 is offline"));
        (reply.kind, reply.change) = ("rebalance".into(), TaskChange::Cancel);
        reply.stay = vec![3, 4];
        assert!(text(&reply).contains("devices 3, 4 stay"));
    }

    #[test]
    fn a_task_is_a_line_and_what_is_not_known_a_dash() {
        let mut task = TaskStatus {
            id: 3,
            kind: "reconstruct".to_string(),
            state: "waiting".to_string(),
            done_bytes: 1 << 20,
            total_bytes: 4 << 20,
            bytes_per_second: 0,
            eta_seconds: None,
            reason: "no device is free".to_string(),
            found: 0,
            healed: 0,
        };
        let expected = ["3", "rebuild", "waiting", "1M", "4M", "-", "-", "0", "0"];
        assert_eq!(row(&task, false)[..9], expected);
        assert_eq!(row(&task, false)[9], "no device is free");
        (task.bytes_per_second, task.eta_seconds) = (2 << 20, Some(90));
        assert_eq!(row(&task, true)[5], "-", "it does not run");
        task.state = "running".to_string();
        assert_eq!(
            row(&task, true)[3..7],
            ["1048576", "4194304", "2097152", "90"]
        );
    }
}
