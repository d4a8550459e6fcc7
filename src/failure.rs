//! What went wrong, as the operator reads it: one line with what, which device or address, and what
//! to do next.
//!
//! **Invariants**: the text is one line (control characters are replaced, since names and paths
//! come from outside); it is made once, where the program meets a typed error, and travels as it is
//! from the daemon to the terminal.

use serde::{Deserialize, Serialize};

/// Longest line, in characters: names that come from outside may be of any length.
const LONGEST: usize = 2000;

/// In the engine's texts this stands for the name of the array.
const WORD: &str = " ARRAY";

/// Which kind of refusal: it decides the HTTP status and the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// The request makes no sense as it stands, whatever there is: wrong usage.
    Invalid,
    /// It names something that is not there.
    NotFound,
    /// It would do harm, or the thing is in use.
    Refused,
    /// It was tried and failed.
    Broken,
    /// The contract has it, this version does not.
    Absent,
}

impl Kind {
    /// Its name in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Invalid => "invalid",
            Kind::NotFound => "not-found",
            Kind::Refused => "refused",
            Kind::Broken => "broken",
            Kind::Absent => "absent",
        }
    }
}

/// One line for the operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    /// Its kind.
    pub(crate) kind: Kind,
    /// The line.
    pub(crate) text: String,
}

impl Failure {
    /// Of this kind.
    pub(crate) fn of_kind(kind: Kind, text: impl Into<String>) -> Failure {
        let text = without_numbers(text.into());
        let mut chars = text.chars();
        let clean = |c: char| if c.is_control() { ' ' } else { c };
        let mut text: String = chars.by_ref().take(LONGEST).map(clean).collect();
        if chars.next().is_some() {
            text += "...";
        }
        Failure { kind, text }
    }

    /// The request makes no sense as it stands.
    pub(crate) fn invalid(text: impl Into<String>) -> Failure {
        Failure::of_kind(Kind::Invalid, text)
    }

    /// It names something that is not there.
    pub(crate) fn not_found(text: impl Into<String>) -> Failure {
        Failure::of_kind(Kind::NotFound, text)
    }

    /// It would do harm, or the thing is in use.
    pub(crate) fn refused(text: impl Into<String>) -> Failure {
        Failure::of_kind(Kind::Refused, text)
    }

    /// What is wrong, and what to do next, where the line says that.
    pub(crate) fn parts(&self) -> (&str, Option<&str>) {
        match self.text.split_once("; ") {
            Some((message, next)) => (message, Some(next)),
            None => (&self.text, None),
        }
    }

    /// As scripts read it: `code`, `message`, `next`.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        let (message, next) = self.parts();
        serde_json::json!({ "code": self.kind.name(), "message": message, "next": next })
    }

    /// The same, of an array with this name.
    #[must_use]
    pub(crate) fn of_array(self, array: &str) -> Failure {
        Failure::of_kind(self.kind, with_name(&self.text, array))
    }

    /// It was tried and failed.
    pub(crate) fn broken(text: impl Into<String>) -> Failure {
        Failure::of_kind(Kind::Broken, text)
    }
}

/// A text without the numbers that Rust gives after the words of the system's errors: ` (os error 2)`.
fn without_numbers(mut text: String) -> String {
    const BEGINS: &str = " (os error ";
    let mut from = 0;
    while let Some(at) = text[from..].find(BEGINS) {
        let at = from + at;
        let rest = &text[at + BEGINS.len()..];
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        from = at + BEGINS.len();
        if digits > 0 && rest[digits..].starts_with(')') {
            text.replace_range(at..from + digits + 1, "");
            from = at;
        }
    }
    text
}

/// A text of the engine with the name of the array in the commands to type, where it has the word for it.
pub(crate) fn with_name(text: &str, array: &str) -> String {
    let name = format!(" {array}");
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(WORD) {
        let after = &rest[at + WORD.len()..];
        let ends = after.is_empty() || after.starts_with([' ', '\'']);
        out += &rest[..at];
        out += if ends { &name } else { WORD };
        rest = after;
    }
    out + rest
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_get_what_and_next_apart() {
        let error =
            Failure::refused("tank: 3 clients at /s; disconnect them; or give -f").to_json();
        assert_eq!(error["code"], "refused");
        assert_eq!(error["message"], "tank: 3 clients at /s");
        assert_eq!(error["next"], "disconnect them; or give -f");
        assert!(Failure::broken("no").to_json()["next"].is_null());
        for kind in [
            Kind::Invalid,
            Kind::NotFound,
            Kind::Refused,
            Kind::Broken,
            Kind::Absent,
        ] {
            assert_eq!(serde_json::json!(kind), kind.name());
        }
    }

    #[test]
    fn commands_to_type_have_the_name_of_the_array() {
        let said = Failure::refused("no: 'ashlar wait ARRAY', 'ashlar add ARRAY DEV' ARRAY");
        assert_eq!(
            said.of_array("tank").text,
            "no: 'ashlar wait tank', 'ashlar add tank DEV' tank"
        );
        let other = "'ashlar volume create ARRAY/VOL': /dev/ARRAY is no ARRAYS";
        assert_eq!(with_name(other, "tank"), other);
        assert_eq!(with_name("'x ARRAY'", "ARRAY ARRAY"), "'x ARRAY ARRAY'");
    }

    #[test]
    fn errors_of_the_system_are_words() {
        let failure = Failure::broken(format!(
            "/a: {}; /b: {} (os error x)",
            std::io::Error::from_raw_os_error(2),
            std::io::Error::from_raw_os_error(13)
        ));
        assert_eq!(
            failure.text,
            "/a: No such file or directory; /b: Permission denied (os error x)"
        );
    }

    #[test]
    fn a_failure_is_one_line_whatever_a_name_contains() {
        let failure = Failure::broken("cannot open a\nb\u{1b}[31m: gone");
        assert_eq!(failure.to_string(), "cannot open a b [31m: gone");
        let long = Failure::broken("x".repeat(1 << 20)).to_string();
        assert!(long.len() == LONGEST + 3 && long.ends_with("x..."));
    }
}
