//! `events`.
//!
//! **Invariants**: with `-j` every event is a document of its own on a line of its own, so that a
//! follower can read line by line; `-f` never repeats or skips an event, also when the daemon is restarted.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::api::{ArrayEvent, Call, EventsReply};
use crate::cli::EventsArgs;
use crate::cli::since::{Since, utc};
use crate::failure::{Failure, Kind};
use crate::print::{Context, document, out};
use crate::view::{Style, safe, wrap};

/// How long one request of `-f` is held open.
const FOLLOW_SECONDS: u64 = 20;
/// How long `-f` waits before it asks for a daemon again that is not there.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// With how many events of the past `-f` begins unless told otherwise.
const FOLLOW_LAST: usize = 10;

/// `events`.
///
/// # Errors
/// If the daemon cannot be asked, or the array that is followed is exported. A daemon that goes away while it is
/// followed is waited for.
pub(crate) fn events(context: &Context, args: &EventsArgs) -> Result<(), Failure> {
    // A file or a pipe gets an event a line.
    let terminal = std::io::stdout().is_terminal();
    let width = terminal.then(|| Style::detect(false).width.saturating_sub(4));
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |d| d.as_secs());
    let (mut since_id, since_seconds) = match args.since {
        None => (0, 0),
        Some(Since::Id(id)) => (id, 0),
        Some(Since::Ago(seconds)) => (0, now.saturating_sub(seconds)),
        Some(Since::At(at)) => (0, at),
    };
    let alone = args.follow && args.since.is_none();
    let mut newest = args.newest.or(alone.then_some(FOLLOW_LAST));
    let (mut wait_seconds, mut away) = (0, false);
    loop {
        let call = Call::Events {
            array: args.array.clone(),
            after: BTreeMap::new(),
            since_id,
            since_seconds,
            newest,
            wait_seconds,
        };
        let reply: EventsReply = match context.client.call(&call) {
            Ok(reply) => reply,
            // It is being restarted: its events are numbered on.
            Err(failure) if wait_seconds > 0 && is_away(&failure) => {
                if !std::mem::replace(&mut away, true) {
                    eprintln!("ashlar: {failure}; waiting for it");
                }
                std::thread::sleep(TRY_AGAIN);
                continue;
            }
            Err(failure) => return Err(failure),
        };
        let mut text = String::new();
        for event in &reply.events {
            text += &if context.json {
                document("events", event)?
            } else {
                line(event, args.script, width)
            };
        }
        out(&text)?;
        if !args.follow {
            return Ok(());
        }
        // A history that was lost begins again.
        since_id = reply.last_id;
        (newest, wait_seconds, away) = (None, FOLLOW_SECONDS, false);
    }
}

/// Whether a daemon is not there, or not yet, or not any more.
fn is_away(failure: &Failure) -> bool {
    let is_known = ["could not be imported", "is not imported yet"];
    let is_known = is_known.iter().any(|words| failure.text.contains(words));
    let waits = failure.kind == Kind::NotFound && is_known;
    failure.kind == Kind::Broken || failure.text.contains("stopping") || waits
}

fn line(event: &ArrayEvent, script: bool, width: Option<usize>) -> String {
    let e = &event.event;
    let device = e.device.map_or("-".to_string(), |d| d.to_string());
    if script {
        return format!(
            "{}\t{}\t{}\t{device}\t{}\t{}\t{}\n",
            event.unix_seconds,
            safe(&event.array),
            safe(&e.kind),
            safe(&e.text),
            event.severity.name(),
            event.id,
        );
    }
    let head = format!(
        "{}  {:>5}  {:<8}  {:<8}  {:<16}  ",
        utc(event.unix_seconds),
        event.id,
        event.severity.name(),
        safe(&event.array),
        safe(&e.kind),
    );
    let Some(width) = width else {
        return format!("{head}{}\n", safe(&e.text));
    };
    // What is too long for the line goes below, where it can be told from the next event.
    let mut lines = Vec::new();
    for (i, line) in wrap(&format!("{head}{}", safe(&e.text)), width)
        .iter()
        .enumerate()
    {
        let indent = if i > 0 { "    " } else { "" };
        lines.push(format!("{indent}{line}\n"));
    }
    lines.concat()
}
