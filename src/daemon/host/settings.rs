//! Settings as people name them: the engine says `reconstruct`, people read `rebuild`.
//!
//! **Invariants**: both names are taken, one is shown.

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

/// A setting as it is shown: `rebuild.*`, and a percentage with its unit however it was typed.
pub(super) fn shown((key, value): (String, String)) -> (String, String) {
    let value = match key.as_str() {
        "clean.reserve" if value.parse::<u64>().is_ok() => value + "%",
        _ => value,
    };
    match key.strip_prefix(ENGINES) {
        Some(rest) => (format!("{SHOWN}{rest}"), value),
        None => (key, value),
    }
}

/// What the engine says of a setting, with the name that is shown.
pub(super) fn named(failure: Failure) -> Failure {
    Failure {
        text: failure.text.replace(ENGINES, SHOWN),
        ..failure
    }
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
        let said = named(Failure::invalid("reconstruct.narrow cannot be 'x'"));
        assert_eq!(said.text, "rebuild.narrow cannot be 'x'");
    }
}
