//! `status` and `list`.
//!
//! **Invariants**: `--test` exits with 0 only if every array asked for was seen and is optimal; what
//! cannot be told is 4, never 0.

use std::process::ExitCode;
use std::time::Duration;

use ashlar_engine::status::{ArrayState, ArrayStatus};

use crate::api::{Call, NotImported, StatusReply};
use crate::cli::{ListArgs, StatusArgs};
use crate::failure::Failure;
use crate::print::{Context, document, out};
use crate::units::{percent, size_or_exact};
use crate::view::advice::{advice, in_short, of_drives};
use crate::view::picture::{More, labelled, picture, state_word};
use crate::view::{Style, Tone, awaited, mdstat, safe, table};

/// `status --test` when nothing can be said.
const CANNOT_TELL: u8 = 4;

/// How long `status --test` waits for an answer: who monitors must hear of a daemon that hangs.
const TEST_LIMIT: Duration = Duration::from_secs(4);

/// `status`.
///
/// # Errors
/// If the daemon cannot be asked (with `--test`, that is exit code 4 instead).
pub(crate) fn status(context: &Context, args: &StatusArgs) -> Result<ExitCode, Failure> {
    let Some(seconds) = args.watch else {
        return once(context, args);
    };
    let clear = Style::detect(false).color;
    loop {
        if clear {
            out("\u{1b}[H\u{1b}[J")?;
        }
        once(context, args)?;
        std::thread::sleep(Duration::from_secs(seconds));
    }
}

fn once(context: &Context, args: &StatusArgs) -> Result<ExitCode, Failure> {
    let call = Call::Status {
        array: args.array.clone(),
    };
    let limit = args.test.then_some(TEST_LIMIT);
    let mut reply: StatusReply = match context.client.call_within(&call, limit) {
        Ok(reply) => reply,
        Err(failure) if args.test => {
            eprintln!("ashlar: {failure}");
            return Ok(ExitCode::from(CANNOT_TELL));
        }
        Err(failure) => return Err(failure),
    };
    let code = if args.test { test_code(&reply) } else { 0 };
    if args.exceptions {
        let hardware = &reply.hardware;
        let is_well = |a: &ArrayStatus| advice(a).is_empty() && of_drives(a, hardware).is_empty();
        reply.arrays.retain(|a| !is_well(a));
    }
    if context.json {
        out(&document("status", &reply)?)?;
    } else if args.mdstat {
        out(&mdstat::mdstat(&reply.arrays))?;
    } else if !args.test || args.verbose {
        out(&pictures(&reply, args))?;
    }
    Ok(ExitCode::from(code))
}

/// 0 optimal, 1 degraded, 2 critical, failed or refusing writes, 4 cannot tell. Of several arrays: 2 if that is known
/// of one, else 4 if one cannot be told, else the worst.
fn test_code(reply: &StatusReply) -> u8 {
    let worst = reply.arrays.iter().map(|a| a.state).max();
    match worst {
        Some(ArrayState::Critical | ArrayState::Failed) => 2,
        _ if !reply.refusing.is_empty() => 2,
        _ if !reply.not_imported.is_empty() || reply.list_lost.is_some() => CANNOT_TELL,
        Some(ArrayState::Degraded) => 1,
        Some(ArrayState::Optimal) => 0,
        None => CANNOT_TELL,
    }
}

fn pictures(reply: &StatusReply, args: &StatusArgs) -> String {
    let style = Style::detect(args.exact);
    let mut blocks: Vec<String> = reply
        .arrays
        .iter()
        .map(|array| {
            let more = More {
                verbose: args.verbose,
                reserved: reply.reserved.get(&array.name),
                hardware: &reply.hardware,
                volumes: &reply.volumes,
            };
            picture(array, style, &more)
        })
        .collect();
    for missing in &reply.not_imported {
        let state = match &missing.waits {
            Some(waits) => style.paint(Tone::Warn, "WAITING") + &format!(", {}", awaited(waits)),
            None => style.paint(Tone::Bad, "NOT IMPORTED"),
        };
        blocks.push(format!(
            "{}  {state}\n{}",
            style.paint(Tone::Strong, &safe(&missing.name)),
            labelled("next", &safe(&missing.reason), style, None)
        ));
    }
    for missing in &reply.not_served {
        let address = format!(
            "should be served as {} {}",
            missing.kind,
            safe(&missing.address)
        );
        blocks.push(format!(
            "{}/{}  {}\n{}{}",
            safe(&missing.array),
            safe(&missing.volume),
            style.paint(Tone::Bad, "NOT SERVED"),
            labelled("what", &address, style, None),
            labelled("next", &safe(&missing.reason), style, None)
        ));
    }
    for refusing in &reply.refusing {
        let next = format!(
            "no free space is left for it: delete files and trim ('fstrim'), add devices, or destroy a volume; 'ashlar events \
             {}' shows since when",
            safe(&refusing.array)
        );
        blocks.push(format!(
            "{}/{}  {}\n{}",
            safe(&refusing.array),
            safe(&refusing.volume),
            style.paint(Tone::Bad, "WRITES REFUSED"),
            labelled("next", &next, style, None)
        ));
    }
    if let Some(lost) = &reply.list_lost {
        blocks.push(format!(
            "{}\n{}",
            style.paint(Tone::Bad, "LIST OF ARRAYS DAMAGED"),
            labelled("next", &safe(lost), style, None)
        ));
    }
    if blocks.is_empty() {
        return if args.exceptions {
            "nothing is wrong\n".to_string()
        } else {
            "no arrays; 'ashlar import' lists those that could be imported, 'ashlar create' makes one\n"
                .to_string()
        };
    }
    blocks.join("\n")
}

/// `list`.
///
/// # Errors
/// If the daemon cannot be asked.
pub(crate) fn list(context: &Context, args: &ListArgs) -> Result<(), Failure> {
    let reply: StatusReply = context.client.call(&Call::Status { array: None })?;
    context.print("list", &reply, || {
        let mut rows: Vec<Vec<String>> = reply
            .arrays
            .iter()
            .map(|array| list_row(array, args))
            .collect();
        if !args.script {
            // Scripts count columns, and have "attention" in -j.
            for (row, array) in rows.iter_mut().zip(&reply.arrays) {
                let drives = of_drives(array, &reply.hardware);
                let drives = drives.first().map(|_| "drive warnings".to_string());
                let notes = [Some(in_short(array)).filter(|n| !n.is_empty()), drives];
                let notes: Vec<String> = notes.into_iter().flatten().collect();
                row.push(match notes.is_empty() {
                    true => "-".to_string(),
                    false => notes.join(", "),
                });
            }
        }
        let shown = !args.script; // scripts get arrays that are open, as ever; -j has the others
        rows.extend(reply.not_imported.iter().filter(|_| shown).map(not_open));
        let titles = [
            "ARRAY", "STATE", "LAYOUT", "DEVICES", "USABLE", "USED", "FREE", "FULL", "NOTE",
        ];
        table::table(&titles, rows, &[3, 4, 5, 6, 7], args.script)
    })
}

/// The row of an array that is not open.
fn not_open(array: &NotImported) -> Vec<String> {
    let (state, devices, note) = match &array.waits {
        Some(waits) => ("waiting", waits.devices_counted.to_string(), awaited(waits)),
        None => (
            "not imported",
            "-".to_string(),
            "'ashlar status' says why".to_string(),
        ),
    };
    let unknown = || "-".to_string();
    let mut row = vec![safe(&array.name), state.to_string(), unknown(), devices];
    row.resize_with(8, unknown);
    row.push(note);
    row
}

fn list_row(array: &ArrayStatus, args: &ListArgs) -> Vec<String> {
    let (c, exact) = (&array.capacity, args.exact);
    let mut state = state_word(array.state).0.to_lowercase();
    if array.service == ashlar_engine::status::Service::ReadOnly && !args.script {
        state += ", read-only";
    }
    let full = percent(c.used_bytes, c.usable_bytes);
    vec![
        safe(&array.name),
        state,
        safe(&array.layout),
        array.devices_total.to_string(),
        size_or_exact(c.usable_bytes, exact),
        size_or_exact(c.used_bytes, exact),
        size_or_exact(c.free_bytes, exact),
        if exact {
            full.to_string()
        } else {
            format!("{full}%")
        },
    ]
}
