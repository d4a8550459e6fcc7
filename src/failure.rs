//! What went wrong, as the operator reads it: one line with what, which device or address, and what
//! to do next.
//!
//! **Invariants**: the text is one line (control characters are replaced, since names and paths
//! come from outside); it is made once, where the program meets a typed error, and travels as it is
//! from the daemon to the terminal.

use serde::{Deserialize, Serialize};

/// Longest line, in characters: names that come from outside may be of any length.
const LONGEST: usize = 2000;

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
        let text: String = text.into();
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

    /// It was tried and failed.
    pub(crate) fn broken(text: impl Into<String>) -> Failure {
        Failure::of_kind(Kind::Broken, text)
    }
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
    fn a_failure_is_one_line_whatever_a_name_contains() {
        let failure = Failure::broken("cannot open a\nb\u{1b}[31m: gone");
        assert_eq!(failure.to_string(), "cannot open a b [31m: gone");
        let long = Failure::broken("x".repeat(1 << 20)).to_string();
        assert!(long.len() == LONGEST + 3 && long.ends_with("x..."));
    }
}
