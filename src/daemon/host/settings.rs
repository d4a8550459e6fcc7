//! Settings as people name them: the engine says `reconstruct`, people read `rebuild`.
//!
//! **Invariants**: both names are taken, one is shown; a minimum that somebody sets is never above a set maximum.

use ashlar_engine::{Array, SETTINGS};

use super::answer::failure_of;
use crate::daemon::state::NOTIFY_SETTINGS;
use crate::failure::Failure;
use crate::units::parse_size;

const ENGINES: &str = "reconstruct.";
const SHOWN: &str = "rebuild.";

/// The engine's name of a setting.
pub(super) fn engines(key: &str) -> String {
    match key.strip_prefix(SHOWN) {
        Some(rest) => format!("{ENGINES}{rest}"),
        None => key.to_string(),
    }
}

/// A setting as it is shown: `rebuild.*`, and a time or a share with its unit however it was typed. A rate is as it was
/// given, for scripts.
pub(super) fn shown((key, value): (String, String)) -> (String, String) {
    let value = match key.as_str() {
        "clean.reserve" if value.parse::<u64>().is_ok() => value + "%",
        "start.wait" | "reconstruct.delay" | "slow.timeout" if value.parse::<u64>().is_ok() => {
            value + "s"
        }
        _ => value,
    };
    match key.strip_prefix(ENGINES) {
        Some(rest) => (format!("{SHOWN}{rest}"), value),
        None => (key, value),
    }
}

/// What the engine says of an array's setting, with the names that are shown, and beside its own settings the daemon's.
pub(super) fn explain(error: ashlar_engine::Error) -> Failure {
    let asked = match &error {
        ashlar_engine::Error::NoSetting { key, .. } => Some(key.replace(ENGINES, SHOWN)),
        _ => None,
    };
    let failure = failure_of(error);
    let mut text = failure.text.replace(ENGINES, SHOWN);
    text = text.replace(RATE, &format!("{RATE}, at least 64K"));
    if let Some(asked) = asked {
        for (more, _) in NOTIFY_SETTINGS {
            text += &format!(", {more}");
        }
        let known = SETTINGS.iter().map(|s| s.key.replace(ENGINES, SHOWN));
        let known = known.chain(NOTIFY_SETTINGS.map(|(key, _)| key.to_string()));
        if let Some(near) = nearest(&asked, known) {
            text = text.replacen(';', &format!("; did you mean '{near}'?"), 1);
        }
    }
    Failure { text, ..failure }
}

/// The default of a setting; none if there is no such setting.
pub(super) fn default_of(key: &str) -> Option<&'static str> {
    if NOTIFY_SETTINGS.iter().any(|(known, _)| *known == key) {
        return Some("");
    }
    let key = engines(key);
    let found = SETTINGS.iter().find(|s| s.key == key);
    found.map(|s| s.default)
}

/// Refuses a rate that contradicts its counterpart: a minimum above a maximum that somebody has set, and the reverse.
///
/// # Errors
/// Which, and what to do.
pub(super) fn check_rates(array: &Array, key: &str, value: &str) -> Result<(), Failure> {
    let (shown, key) = (key.replace(ENGINES, SHOWN), engines(key));
    let (kind, bound) = key.rsplit_once('.').unwrap_or_default();
    let other = match bound {
        "min" => "max",
        "max" => "min",
        _ => return Ok(()),
    };
    // A default is nobody's choice, however it is written: it gives way as well.
    let default = default_of(&key).unwrap_or_default();
    if value == default || parse_size(value).is_ok_and(|mine| parse_size(default) == Ok(mine)) {
        return Ok(());
    }
    let counterpart = format!("{kind}.{other}");
    let set = array.get(Some(&counterpart)).unwrap_or_default();
    let Some((_, set)) = set.first() else {
        return Ok(());
    };
    // A minimum that nobody has chosen gives way.
    if default_of(&counterpart) == Some(set.as_str()) {
        return Ok(());
    }
    let (Ok(mine), Ok(others)) = (parse_size(value), parse_size(set)) else {
        return Ok(()); // none
    };
    let (contradicts, is) = match bound {
        "min" => (mine > others, "above"),
        _ => (mine < others, "below"),
    };
    if !contradicts {
        return Ok(());
    }
    let other = counterpart.replace(ENGINES, SHOWN);
    let name = array.name();
    Err(Failure::invalid(format!(
        "{shown}={value} is {is} {other}={set}; set {other} first: 'ashlar set {name} {other}={value}'"
    )))
}

/// Refuses `default` for what has to be chosen: spare space is given up only by a number.
///
/// # Errors
/// What to type.
pub(super) fn check_default(array: &str, key: &str) -> Result<(), Failure> {
    match key {
        "spare" => Err(Failure::refused(format!(
            "spare=default would give up the spare space of {array}; if that is meant, 'ashlar set {array} spare=0'"
        ))),
        _ => Ok(()),
    }
}

/// How the engine says what a rate is.
const RATE: &str = "bytes a second and device";

/// The name that was probably meant.
fn nearest(asked: &str, known: impl Iterator<Item = String>) -> Option<String> {
    let is_part = |name: &String| {
        let last = name.rsplit('.').next();
        last == Some(asked) || name.starts_with(asked)
    };
    let far = |name: &String| match is_part(name) {
        true => 1,
        false => distance(asked, name),
    };
    known.filter(|name| far(name) <= FAR).min_by_key(far)
}

/// Most letters that a name which was meant may differ in.
const FAR: usize = 2;

/// How many letters have to be put in, taken out, changed, or swapped with the next to make one word of the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let before = &rows[i - 1];
            let changed = before[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = changed.min(before[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

/// How many percent an array keeps for cleaning.
pub(crate) fn clean_reserve(array: &Array) -> u64 {
    let value = array.get(Some("clean.reserve")).unwrap_or_default();
    let value = value.first().map_or("", |(_, value)| value);
    value.trim_end_matches('%').parse().unwrap_or(0)
}

/// How many seconds what lies on a device that is expected back is not rebuilt, and how that is set.
pub(super) fn rebuild_delay(array: &Array) -> (u64, String) {
    let value = array.get(Some("reconstruct.delay")).unwrap_or_default();
    let value = value.into_iter().next().unwrap_or_default();
    let value = shown(value).1;
    (seconds(&value), value)
}

/// A time as the engine has checked it.
fn seconds(value: &str) -> u64 {
    let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &value[digits.len()..] {
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => 1,
    };
    digits.parse::<u64>().unwrap_or(0).saturating_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_names_are_taken_and_one_is_shown() {
        for key in ["rebuild.narrow", "reconstruct.narrow"] {
            assert_eq!(engines(key), "reconstruct.narrow");
        }
        assert_eq!(engines("discard"), "discard");
        let (key, value) = shown(("reconstruct.narrow".into(), "never".into()));
        assert_eq!((key.as_str(), value.as_str()), ("rebuild.narrow", "never"));
        assert_eq!(shown(("clean.reserve".into(), "5".into())).1, "5%");
        let said = explain(ashlar_engine::Error::Setting {
            key: "reconstruct.narrow",
            value: "x".into(),
            takes: "critical, always or never",
            default: "critical",
        });
        assert!(said.text.starts_with("rebuild.narrow cannot be 'x'"));
        assert!(said.text.ends_with("(default: critical)"), "{said}");
        assert_eq!(shown(("scrub.max".into(), "131072".into())).1, "131072");
        assert!(
            check_default("tank", "spare").is_err() && check_default("tank", "scrub.max").is_ok()
        );
        let said = explain(ashlar_engine::Error::NoSetting {
            key: "reconstruct.foo".into(),
            known: "accelerator, reconstruct.narrow".into(),
        });
        assert_eq!(
            said.text,
            "no setting 'rebuild.foo'; the settings are: accelerator, rebuild.narrow, notify.exec, notify.webhook"
        );
    }
    #[test]
    fn a_name_that_is_nearly_one_is_recognised() {
        let meant = |asked: &str| {
            let error = ashlar_engine::Error::NoSetting {
                key: engines(asked),
                known: "accelerator".into(),
            };
            let said = explain(error).text;
            let at = said.split_once("did you mean '").map(|(_, rest)| rest);
            at.and_then(|rest| rest.split('\'').next().map(str::to_string))
        };
        for (asked, name) in [
            ("rebuild.mni", Some("rebuild.min")),
            ("scrub_every", Some("scrub.every")),
            ("narrow", Some("rebuild.narrow")),
            ("notify.web", Some("notify.webhook")),
            ("colour", None),
        ] {
            assert_eq!(meant(asked).as_deref(), name, "{asked}");
        }
        for (value, expected) in [("10m", 600), ("90", 90), ("5s", 5), ("24h", 86_400)] {
            assert_eq!(seconds(value), expected, "{value}");
        }
        assert_eq!(default_of("rebuild.delay"), Some("10m"));
        assert_eq!(default_of("notify.exec"), Some(""));
        assert_eq!(default_of("foo"), None);
    }
}
