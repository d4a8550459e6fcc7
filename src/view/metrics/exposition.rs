//! The text that Prometheus reads: families of series and their samples.
//!
//! **Invariants**: label values are escaped, so that no name from outside breaks a line.

use std::fmt::Write;

pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];

/// A family of whole numbers: its name, its kind, its help, and the value that a `T` has.
pub(super) type Count<T> = (&'static str, &'static str, &'static str, fn(&T) -> u64);

/// The text that is given to Prometheus.
#[derive(Debug, Default)]
pub(super) struct Exposition(pub(super) String);

impl Exposition {
    /// What stands before the series of a name.
    pub(super) fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(
            self.0,
            "# HELP ashlar_{name} {help}\n# TYPE ashlar_{name} {kind}"
        );
    }

    pub(super) fn sample(&mut self, name: &str, labels: Labels<'_>, value: impl std::fmt::Display) {
        let _ = write!(self.0, "ashlar_{name}");
        for (i, (label, text)) in labels.iter().enumerate() {
            let before = if i == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{before}{label}=\"{}\"", escape(text));
        }
        let after = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{after} {value}");
    }
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
