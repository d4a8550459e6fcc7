//! `events`.
//!
//! **Invariants**: with `-j` every event is a document of its own on a line of its own, so that a
//! follower can read line by line; `-f` never repeats or skips an event of an array it follows.

use std::collections::BTreeMap;
use std::io::IsTerminal;

use crate::api::{ArrayEvent, Call, EventsReply};
use crate::cli::EventsArgs;
use crate::command::{Context, document, out};
use crate::failure::Failure;
use crate::view::{Style, safe, wrap};

/// How long one request of `-f` is held open.
const FOLLOW_SECONDS: u64 = 20;

/// `events`.
///
/// # Errors
/// If the daemon cannot be asked, or ends while it is followed.
pub(crate) fn events(context: &Context, args: &EventsArgs) -> Result<(), Failure> {
    // A file or a pipe gets an event a line.
    let terminal = std::io::stdout().is_terminal();
    let width = terminal.then(|| Style::detect(false).width.saturating_sub(4));
    let mut after = BTreeMap::new();
    let mut wait_seconds = 0;
    loop {
        let call = Call::Events {
            array: args.array.clone(),
            after,
            wait_seconds,
        };
        let reply: EventsReply = context.client.call(&call)?;
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
        after = reply.after;
        wait_seconds = FOLLOW_SECONDS;
    }
}

fn line(event: &ArrayEvent, script: bool, width: Option<usize>) -> String {
    let e = &event.event;
    let device = e.device.map_or("-".to_string(), |d| d.to_string());
    if script {
        return format!(
            "{}\t{}\t{}\t{device}\t{}\n",
            event.unix_seconds,
            safe(&event.array),
            safe(&e.kind),
            safe(&e.text)
        );
    }
    let head = format!(
        "{}  {:<8}  {:<14}  ",
        utc(event.unix_seconds),
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

/// Seconds since the Unix epoch as `2026-01-31 23:59:59Z`.
fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days to a civil date, by Howard Hinnant's public description (eras of 400 years from March).
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_dates() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00Z"),
            (951_782_399, "2000-02-28 23:59:59Z"),
            (951_782_400, "2000-02-29 00:00:00Z"),
            (1_709_251_199, "2024-02-29 23:59:59Z"),
            (4_102_444_800, "2100-01-01 00:00:00Z"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }
}
