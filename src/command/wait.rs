//! `wait`: until background work has ended, with its progress.
//!
//! **Invariants**: returns success only when the daemon said that nothing of these kinds is left to
//! do; what is left and cannot go on by itself is a failure that says why.

use std::time::Instant;

use ashlar_engine::status::ArrayStatus;

use crate::api::{Call, WaitReply};
use crate::failure::Failure;
use crate::print::Context;
use crate::units::duration;
use crate::view::picture::{state_word, task_line, work_word};
use crate::view::progress::Progress;
use crate::view::{Style, Tone, safe};

/// `wait`.
///
/// # Errors
/// If the daemon cannot be asked, the array goes away, or the work goes on only when the operator acts.
pub(crate) fn wait(context: &Context, array: &str, kinds: &[String]) -> Result<(), Failure> {
    let started = Instant::now();
    let reply = until_done(context, array, kinds)?;
    context.print("wait", &reply, || {
        let word = reply.array.as_ref().map_or("", |a| state_word(a.state).0);
        let took = duration(started.elapsed().as_secs());
        format!("{array}: done after {took}, {}\n", word.to_lowercase())
    })
}

/// The same, which prints progress only.
///
/// # Errors
/// As [`wait`].
pub(crate) fn until_done(
    context: &Context,
    array: &str,
    kinds: &[String],
) -> Result<WaitReply, Failure> {
    let mut progress = Progress::new(context.json);
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
                None => Ok(reply),
            };
        }
        progress.show(&match &reply.array {
            Some(status) => present(status, kinds),
            None => format!("{array}: waiting for its devices"),
        });
    }
}

fn present(array: &ArrayStatus, kinds: &[String]) -> String {
    let wanted = |kind: &String| kinds.is_empty() || kinds.contains(kind);
    let task = array
        .tasks
        .iter()
        .find(|t| wanted(&t.kind) && t.state != "done");
    match task {
        Some(task) => {
            let style = Style {
                color: false,
                ..Style::detect(false)
            };
            let line = task_line(task, style, Tone::Good);
            let why = match task.reason.as_str() {
                "" => String::new(),
                reason => format!(": {}", safe(reason)),
            };
            format!("{}: {} {line}{why}", array.name, work_word(&task.kind))
        }
        None => format!("{}: waiting", array.name),
    }
}
