//! `task`: the background work of an array.
//!
//! **Invariants**: the tasks are those that `status` has; a value that nobody gives is `-`.

use ashlar_engine::status::TaskStatus;
use serde_json::json;

use crate::api::{Call, StatusReply};
use crate::cli::{TaskArgs, absent};
use crate::failure::Failure;
use crate::print::Context;
use crate::units::{duration, rate, size_or_exact};
use crate::view::picture::work_word;
use crate::view::{safe, table};

/// `task`.
///
/// # Errors
/// If the array is unknown, or a task is to be changed.
pub(crate) fn task(context: &Context, args: &TaskArgs) -> Result<(), Failure> {
    absent::check_task(&args.array, &args.change)?;
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
    use super::*;

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
