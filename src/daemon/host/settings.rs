//! Settings as people name them: the engine says `reconstruct`, people read `rebuild`.
//!
//! **Invariants**: both names are taken, one is shown.

use super::answer::failure_of;
use crate::daemon::state::NOTIFY_SETTINGS;
use crate::failure::Failure;

const ENGINES: &str = "reconstruct.";
const SHOWN: &str = "rebuild.";

/// The engine's name of a setting.
pub(super) fn engines(key: &str) -> String {
    match key.strip_prefix(SHOWN) {
        Some(rest) => format!("{ENGINES}{rest}"),
        None => key.to_string(),
    }
}

/// A setting as it is shown: `rebuild.*`, and a number with its unit however it was typed.
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
    let more = match &error {
        ashlar_engine::Error::NoSetting { .. } => NOTIFY_SETTINGS.map(|(key, _)| key).to_vec(),
        _ => Vec::new(),
    };
    let failure = failure_of(error);
    let text = std::iter::once(failure.text.replace(ENGINES, SHOWN))
        .chain(more.iter().map(ToString::to_string))
        .collect::<Vec<_>>()
        .join(", ");
    Failure { text, ..failure }
}

/// How many percent an array keeps for cleaning.
pub(crate) fn clean_reserve(array: &ashlar_engine::Array) -> u64 {
    let value = array.get(Some("clean.reserve")).unwrap_or_default();
    let value = value.first().map_or("", |(_, value)| value);
    value.trim_end_matches('%').parse().unwrap_or(0)
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
        let said = explain(ashlar_engine::Error::NoSetting {
            key: "reconstruct.foo".into(),
            known: "accelerator, reconstruct.narrow".into(),
        });
        assert_eq!(
            said.text,
            "no setting 'rebuild.foo'; the settings are: accelerator, rebuild.narrow, notify.exec, notify.webhook"
        );
    }
}
