//! The picture of an array: what `ashlar status` shows.
//!
//! ```text
//! tank  DEGRADED, 1 failed   ec8+3 on 14 devices, 1 spare
//!   space    [######------------------]  312M of 1.20G used (25 %), 712M promised, 193M free
//!   devices  UUUUFUUUUU UUUU             13 online, 1 failed
//!   work     rebuild     [####------]  45 %  120M of 270M  310M/s  2s left
//!   volumes  v      1G   312M used   nbd unix:/tmp/s
//!   next     1 of 14 devices is out of use: 4 (/d4) failed. Free space allows 2 more rebuilds
//! ```
//!
//! **Invariants**: one glyph for each device, in the order of their numbers; what is not as it
//! should be is written out in words under it.

use std::fmt::Write;

use ashlar_engine::status::{
    ArrayState, ArrayStatus, DeviceState, DeviceStatus, Frontend, TaskStatus, VolumeStatus,
};

use crate::api::VolumeNote;
use crate::units::{duration, percent, rate, size_or_exact};
use crate::view::advice::{advice, in_short, of_drives};
use crate::view::scrub;
use crate::view::{Style, Tone, count, safe, table};

mod details;
mod parts;
pub(crate) use details::reserved_text;
use parts::{LABEL, label};
pub(crate) use parts::{More, labelled};

/// The picture.
pub(crate) fn picture(array: &ArrayStatus, style: Style, more: &More<'_>) -> String {
    let mut out = head(array, style);
    out += &space(array, style);
    out += &grid(array, style);
    for task in array
        .tasks
        .iter()
        .filter(|t| t.state != "done" && t.state != "stopped")
    {
        out += &work(task, style);
    }
    let repairs = || array.tasks.iter().filter(|t| t.kind == "heal");
    let found: u64 = repairs().map(|t| t.found).sum();
    let healed: u64 = repairs().map(|t| t.healed).sum();
    if found > 0 {
        let _ = writeln!(
            out,
            "{}{healed} of {}",
            label("repaired"),
            count(usize::try_from(found).unwrap_or(usize::MAX), "bad block")
        );
    }
    if let Some(report) = array.scrub.as_ref().filter(|r| r.ended.is_some()) {
        out += &labelled("scrub", &scrub::line(report), style, None);
    }
    out += &volumes(array, style, more);
    if more.verbose {
        out += &details::details(array, style, more);
    }
    let tone = if array.state >= ArrayState::Critical {
        Tone::Bad
    } else {
        Tone::Warn
    };
    let lines = [advice(array), of_drives(array, more.hardware)].concat();
    for (i, line) in lines.iter().enumerate() {
        let title = if i == 0 { "next" } else { "" };
        out += &labelled(title, line, style, Some(tone));
    }
    out + &drives(array, style, more)
}

/// Which drives those devices are that somebody may go to look for.
fn drives(array: &ArrayStatus, style: Style, more: &More<'_>) -> String {
    let bad = |d: &&DeviceStatus| {
        let well = matches!(d.state, DeviceState::Online | DeviceState::Spare);
        !well || d.errors.read + d.errors.write + d.errors.digest > 0
    };
    let mut out = String::new();
    for device in array.devices.iter().filter(bad) {
        if let Some(drive) = more.drive(&array.name, device.index) {
            let title = if out.is_empty() { "drives" } else { "" };
            let words = drive.words_and_warnings();
            let text = format!("device {}: {}", device.index, safe(&words));
            out += &labelled(title, &text, style, None);
        }
    }
    out
}

/// The state's word and colour.
pub(crate) fn state_word(state: ArrayState) -> (&'static str, Tone) {
    match state {
        ArrayState::Optimal => ("OPTIMAL", Tone::Good),
        ArrayState::Degraded => ("DEGRADED", Tone::Warn),
        ArrayState::Critical => ("CRITICAL", Tone::Bad),
        ArrayState::Failed => ("FAILED", Tone::Bad),
    }
}

fn head(array: &ArrayStatus, style: Style) -> String {
    let (word, tone) = state_word(array.state);
    let spare = spare_words(array);
    let code = code(array);
    let short = match in_short(array) {
        short if short.is_empty() => short,
        short => style.paint(Tone::Warn, &format!(", {short}")),
    };
    format!(
        "{}  {}{short}   {}{code} on {}{spare}\n",
        style.paint(Tone::Strong, &safe(&array.name)),
        style.paint(tone, word),
        safe(&array.layout),
        count(usize::from(array.devices_total), "device"),
    )
}

/// How many devices may be lost, one after the other, and rebuilt onto the others: never more than there are in use
/// beyond K + M.
fn spare_words(array: &ArrayStatus) -> String {
    let in_use = |d: &&DeviceStatus| d.state == DeviceState::Online;
    let in_use = array.devices.iter().filter(in_use).count();
    let beyond = in_use.saturating_sub(usize::from(array.k + array.m));
    let left = array.spare.saturating_sub(array.health.devices_gone);
    match (array.spare, left, usize::from(left).min(beyond)) {
        (0, ..) => String::new(),
        (_, 0, _) => ", spare in use".to_string(),
        (_, _, 0) => ", no spare left".to_string(),
        (.., n) => format!(", {}", count(n, "spare")),
    }
}

/// ` (K+M)`, where the notation does not say it.
pub(crate) fn code(array: &ArrayStatus) -> String {
    if array.layout == format!("ec{}+{}", array.k, array.m) {
        return String::new();
    }
    format!(" ({}+{})", array.k, array.m)
}

fn space(array: &ArrayStatus, style: Style) -> String {
    let c = &array.capacity;
    let full = percent(c.used_bytes, c.usable_bytes);
    let tone = match full {
        0..80 => Tone::Good,
        80..95 => Tone::Warn,
        _ => Tone::Bad,
    };
    let n = |bytes: u64| size_or_exact(bytes, style.exact);
    let promised = match c.promised_bytes {
        0 => String::new(),
        bytes => format!("{} promised, ", n(bytes)),
    };
    let text = format!(
        "{} of {} used ({full} %), {promised}{} free",
        n(c.used_bytes),
        n(c.usable_bytes),
        n(c.free_bytes),
    );
    let left = style.width.saturating_sub(LABEL + 4 + text.chars().count());
    let bar = style.bar(tone, c.used_bytes, c.usable_bytes, left.clamp(8, 24));
    format!("{}{bar}  {text}\n", label("space"))
}

fn glyph(state: DeviceState, style: Style) -> String {
    let (ascii, block, tone) = match state {
        DeviceState::Online => ('U', '\u{25a0}', Tone::Good),
        DeviceState::Failed => ('F', 'F', Tone::Bad),
        DeviceState::Missing => ('_', '_', Tone::Bad),
        DeviceState::Offline => ('O', 'O', Tone::Warn),
        DeviceState::Slow => ('S', 'S', Tone::Warn),
        DeviceState::Readonly => ('R', 'R', Tone::Warn),
        DeviceState::Spare => ('s', '\u{25a1}', Tone::Faint),
        DeviceState::Removing => ('-', '-', Tone::Faint),
    };
    style.paint(tone, &if style.unicode { block } else { ascii }.to_string())
}

fn grid(array: &ArrayStatus, style: Style) -> String {
    // Groups of ten with a blank between; rows of 50, or 20 on a narrow terminal.
    let per_row = if style.width >= LABEL + 80 { 50 } else { 20 };
    let summary = summary(array);
    let mut out = String::new();
    let rows = array.devices.chunks(per_row).count();
    for (r, row) in array.devices.chunks(per_row).enumerate() {
        out += &label(if r == 0 { "devices" } else { "" });
        if rows > 1 {
            let _ = write!(out, "{:>4} ", r * per_row);
        }
        for (i, device) in row.iter().enumerate() {
            if i > 0 && i % 10 == 0 {
                out.push(' ');
            }
            out += &glyph(device.state, style);
        }
        if r == 0 {
            let _ = write!(out, "   {summary}");
        }
        out.push('\n');
    }
    out
}

fn summary(array: &ArrayStatus) -> String {
    let count_of = |state| array.devices.iter().filter(|d| d.state == state).count();
    let mut parts = Vec::new();
    for (state, word) in [
        (DeviceState::Online, "online"),
        (DeviceState::Failed, "failed"),
        (DeviceState::Missing, "missing"),
        (DeviceState::Offline, "offline"),
        (DeviceState::Slow, "slow"),
        (DeviceState::Readonly, "read-only"),
        (DeviceState::Spare, "spare"),
        (DeviceState::Removing, "being removed"),
    ] {
        let n = count_of(state);
        if n > 0 {
            parts.push(format!("{n} {word}"));
        }
    }
    let bad = array
        .devices
        .iter()
        .filter(|d| d.errors.read + d.errors.write + d.errors.digest > 0);
    let bad = bad.count();
    if bad > 0 {
        parts.push(format!("{bad} with errors"));
    }
    parts.join(", ")
}

fn work(task: &TaskStatus, style: Style) -> String {
    let tone = if task.state == "running" {
        Tone::Good
    } else {
        Tone::Warn
    };
    let mut out = format!(
        "{}{:<11} {}\n",
        label("work"),
        work_word(&task.kind),
        task_line(task, style, tone)
    );
    if !task.reason.is_empty() {
        out += &labelled("", &safe(&task.reason), style, None);
    }
    out
}

/// The word people read for a kind of work.
pub(crate) fn work_word(kind: &str) -> &str {
    match kind {
        "reconstruct" => "rebuild",
        "heal" => "repair",
        other => other,
    }
}

/// A task's bar, figures and time left.
pub(crate) fn task_line(task: &TaskStatus, style: Style, tone: Tone) -> String {
    let mut out = format!(
        " {:>3} %  {} of {}",
        percent(task.done_bytes, task.total_bytes),
        size_or_exact(task.done_bytes, style.exact),
        size_or_exact(task.total_bytes, style.exact),
    );
    if task.state == "running" {
        let left = task.eta_seconds.map_or("-".to_string(), duration);
        let _ = write!(out, "  {}  {left} left", rate(task.bytes_per_second));
    } else {
        let _ = write!(out, "  {}", task.state);
    }
    let room = style
        .width
        .saturating_sub(LABEL + 12 + 2 + out.chars().count());
    let bar = style.bar(tone, task.done_bytes, task.total_bytes, room.clamp(8, 20));
    bar + &out
}

fn volumes(array: &ArrayStatus, style: Style, more: &More<'_>) -> String {
    let row = |volume: &VolumeStatus| {
        let note = more.volume(&array.name, &volume.name);
        let is = |what: fn(&VolumeNote) -> bool| note.is_some_and(what);
        let thin = if is(|n| n.thin) { ", thin" } else { "" };
        let counting = if is(|n| n.counting) { ", counting" } else { "" };
        vec![
            safe(&volume.name),
            size_or_exact(volume.size_bytes, style.exact),
            format!(
                "{} used{thin}{counting}",
                size_or_exact(volume.used_bytes, style.exact)
            ),
        ]
    };
    let rows: Vec<Vec<String>> = array.volumes.iter().map(row).collect();
    let lines = table::columns(&rows, &[1]);
    let width = lines.iter().map(|l| l.chars().count()).max().unwrap_or(0);
    let beside: Vec<String> = lines
        .iter()
        .zip(&array.volumes)
        .map(|(line, volume)| format!("{line:<width$}  {}", served(volume).join(", ")))
        .collect();
    let fits = |line: &String| LABEL + line.chars().count() <= style.width;
    let lines = if beside.iter().all(fits) {
        beside
    } else {
        // How a volume is served stands below it, where it has the line to itself.
        let mut below = Vec::new();
        for (line, volume) in lines.into_iter().zip(&array.volumes) {
            below.push(line);
            below.extend(served(volume).iter().map(|how| format!("  {how}")));
        }
        below
    };
    let mut out = String::new();
    for (i, line) in lines.iter().enumerate() {
        let _ = writeln!(out, "{}{line}", label(if i == 0 { "volumes" } else { "" }));
    }
    out
}

/// Each way a volume is served.
fn served(volume: &VolumeStatus) -> Vec<String> {
    if volume.frontends.is_empty() {
        return vec!["not attached".to_string()];
    }
    let how = |f: &Frontend| format!("{} {}", f.kind, safe(&f.address));
    volume.frontends.iter().map(how).collect()
}
