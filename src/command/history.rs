//! `history`: who did what to arrays.
//!
//! **Invariants**: one line for each action in a pipe; with `-j` one document.

use crate::api::{Action, Call, HistoryReply};
use crate::cli::HistoryArgs;
use crate::cli::since::utc;
use crate::failure::Failure;
use crate::print::Context;
use crate::view::safe;

/// `history`.
///
/// # Errors
/// If the daemon cannot be asked.
pub(crate) fn history(context: &Context, args: &HistoryArgs) -> Result<(), Failure> {
    let reply: HistoryReply = context.client.call(&Call::History {
        array: args.array.clone(),
        newest: args.newest,
    })?;
    context.print("history", &reply, || {
        if reply.actions.is_empty() && !args.script {
            return "no command is recorded\n".to_string();
        }
        let lines = reply.actions.iter().map(|a| line(a, args.script));
        lines.collect()
    })
}

fn line(action: &Action, script: bool) -> String {
    let caller = &action.caller;
    let user = caller
        .user
        .clone()
        .unwrap_or_else(|| caller.uid.to_string());
    let who = match &caller.login_user {
        Some(login) => format!("{user} ({login})"),
        None => user,
    };
    let command = match caller.command.as_str() {
        "" => &action.verb,
        command => command,
    };
    let (who, command) = (safe(&who), safe(command));
    if script {
        return format!(
            "{}\t{}\t{who}\t{command}\t{}\t{}\n",
            action.unix_seconds,
            safe(&action.arrays.join(",")),
            if action.ok { "ok" } else { "failed" },
            safe(&action.result),
        );
    }
    let result = if action.ok {
        String::new()
    } else {
        format!("\n    failed: {}", safe(&action.result))
    };
    format!(
        "{}  {who:<8}  {command}{result}\n",
        utc(action.unix_seconds)
    )
}
