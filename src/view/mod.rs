//! What the program prints for people: the picture of an array, tables, progress.
//!
//! **Invariants**: pure functions from status values to text (only [`Style::detect`] looks at the
//! terminal); colour and other than ASCII characters only on a terminal that shows them; a value
//! nobody observed prints as `-`.

pub(crate) mod advice;
pub(crate) mod mdstat;
pub(crate) mod metrics;
pub(crate) mod picture;
pub(crate) mod progress;
pub(crate) mod scrub;
pub(crate) mod table;
#[cfg(test)]
pub(crate) mod tests;

use std::io::IsTerminal;

use crate::api::Awaited;
use crate::cli::since::utc;

/// What the terminal can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Style {
    /// Colours.
    pub(crate) color: bool,
    /// Block characters.
    pub(crate) unicode: bool,
    /// Columns.
    pub(crate) width: usize,
    /// Exact numbers.
    pub(crate) exact: bool,
}

/// A colour, by meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    /// As it should be.
    Good,
    /// To be looked at.
    Warn,
    /// Wrong.
    Bad,
    /// Less important.
    Faint,
    /// More important.
    Strong,
}

impl Style {
    /// No colour, ASCII, 80 columns: for tests.
    #[cfg(test)]
    pub(crate) const PLAIN: Style = Style {
        color: false,
        unicode: false,
        width: 80,
        exact: false,
    };

    /// What standard output is.
    pub(crate) fn detect(exact: bool) -> Style {
        let stdout = std::io::stdout();
        let terminal = stdout.is_terminal();
        let set = |name: &str| std::env::var_os(name).is_some_and(|v| !v.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
            .iter()
            .find_map(|name| std::env::var(name).ok().filter(|v| !v.is_empty()))
            .unwrap_or_default()
            .to_lowercase();
        let width = rustix::termios::tcgetwinsize(&stdout).map_or(80, |size| size.ws_col);
        Style {
            color: terminal && !set("NO_COLOR"),
            unicode: terminal && (locale.contains("utf-8") || locale.contains("utf8")),
            width: if width < 40 { 80 } else { usize::from(width) },
            exact,
        }
    }

    /// `text` in a colour, if there are colours.
    pub(crate) fn paint(&self, tone: Tone, text: &str) -> String {
        if !self.color {
            return text.to_string();
        }
        let code = match tone {
            Tone::Good => "32",
            Tone::Warn => "33",
            Tone::Bad => "1;31",
            Tone::Faint => "2",
            Tone::Strong => "1",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }

    /// A bar of `width` columns, `part` of `whole` full.
    pub(crate) fn bar(&self, tone: Tone, part: u64, whole: u64, width: usize) -> String {
        let full = if whole == 0 {
            0
        } else {
            let part = u128::from(part.min(whole)) * width as u128;
            usize::try_from(part.div_ceil(u128::from(whole))).unwrap_or(width)
        };
        let (filled, empty) = if self.unicode {
            ("\u{2588}", "\u{2591}")
        } else {
            ("#", "-")
        };
        let bar = self.paint(tone, &filled.repeat(full));
        format!(
            "[{bar}{}]",
            self.paint(Tone::Faint, &empty.repeat(width - full))
        )
    }
}

/// `1 device`, `2 devices`, `3 losses`.
pub(crate) fn count(n: usize, what: &str) -> String {
    let plural = match n {
        1 => "",
        _ if what.ends_with('s') => "es",
        _ => "s",
    };
    format!("{n} {what}{plural}")
}

/// What an array waits for, that was not imported yet: `9 of 10 devices here, until 12:04:05Z`.
pub(crate) fn awaited(waits: &Awaited) -> String {
    let until = utc(waits.until);
    let time = until.split(' ').next_back().unwrap_or(&until);
    let devices = count(waits.devices_counted, "device");
    format!("{} of {devices} here, until {time}", waits.devices_here)
}

/// `text` in lines of at most `width` characters where blanks allow it.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last_mut().expect("there is one");
        let (have, more) = (last.chars().count(), word.chars().count());
        if have > 0 && have + 1 + more > width {
            lines.push(word.to_string());
        } else {
            if have > 0 {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    for line in &mut lines {
        line.truncate(line.trim_end().len());
    }
    lines
}

/// Text from outside (names, paths), safe for a terminal: control characters become `?`.
pub(crate) fn safe(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

/// The same with addresses cut down to their host: the rest may be a secret.
pub(crate) fn cut_addresses(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out += before;
        let end = after
            .find(|c: char| c.is_whitespace() || "'\",\\".contains(c))
            .unwrap_or(after.len());
        let (address, left) = after.split_at(end);
        let authority = address.split(['/', '?']).next().unwrap_or_default();
        let host = authority.rsplit('@').next().unwrap_or_default();
        out += host;
        if host.len() < address.len() {
            out += "/...";
        }
        rest = left;
    }
    out + rest
}

#[cfg(test)]
mod address_tests {
    use super::cut_addresses;

    #[test]
    fn addresses_are_cut_down_to_their_host() {
        for (text, cut) in [
            (
                "http://u:pw@alerts:8080/hook/s3cret?t=1",
                "http://alerts:8080/...",
            ),
            (
                "ashlar set t 'notify.webhook=http://a/b' -j",
                "ashlar set t 'notify.webhook=http://a/...' -j",
            ),
            ("http://alerts", "http://alerts"),
            ("unix:/run/x", "unix:/run/x"),
        ] {
            assert_eq!(cut_addresses(text), cut);
        }
    }
}
