//! `create --domain-file`: the failure domain of each device, from a file.
//!
//! **Invariants**: each device gets one label, or the daemon is not asked; what is wrong with the file names file and
//! line; the order of lines does not matter.

use std::path::{Path, PathBuf};

use glob::{MatchOptions, Pattern};

use crate::failure::Failure;
use crate::print::absolute;
use crate::view::safe;

/// As a shell has it: `*` stops at a slash.
const AS_A_SHELL: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

/// A device of the new array.
#[derive(Debug)]
struct Device {
    /// As it was typed.
    given: String,
    /// From the root on.
    path: String,
    /// With no link in it, if it exists.
    real: Option<PathBuf>,
}

/// A line of the file.
#[derive(Debug)]
struct Line {
    number: usize,
    pattern: String,
    parsed: Pattern,
    label: String,
    /// What is there that the pattern matches, with no link in it.
    real: Vec<PathBuf>,
}

/// How a line matches a device; the better one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Match {
    Pattern,
    Exact,
}

/// What `--domain` gives, with the absolute paths of the devices.
///
/// # Errors
/// If there is no current folder that a path could be relative to.
pub(super) fn given(pairs: &[(String, String)]) -> Result<Vec<(String, String)>, Failure> {
    let whole =
        |(device, label): &(String, String)| Ok((absolute(device.as_ref())?, label.clone()));
    pairs.iter().map(whole).collect()
}

/// The label of each device but those that `given` has one for, and those.
///
/// # Errors
/// If the file cannot be read or understood, or a device has no label by it, or two.
pub(super) fn from_file(
    file: &Path,
    devices: &[PathBuf],
    given: Vec<(String, String)>,
) -> Result<Vec<(String, String)>, Failure> {
    let name = safe(&file.display().to_string());
    let text = std::fs::read_to_string(file)
        .map_err(|e| Failure::invalid(format!("--domain-file {name}: cannot be read: {e}")))?;
    let lines = parse(&name, &text)?;
    let mut domains = given;
    for device in devices {
        let device = Device {
            given: device.display().to_string(),
            path: absolute(device)?,
            real: std::fs::canonicalize(device).ok(),
        };
        if domains.iter().all(|(path, _)| *path != device.path) {
            let label = label_of(&name, &lines, &device)?;
            domains.push((device.path, label));
        }
    }
    Ok(domains)
}

/// The lines that say something.
fn parse(name: &str, text: &str) -> Result<Vec<Line>, Failure> {
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let words = words.split(|word| word.starts_with('#')).next();
        let (pattern, label) = match words.unwrap_or_default() {
            [] => continue,
            [pattern, label] => (*pattern, *label),
            _ => {
                return Err(Failure::invalid(format!(
                    "{name}:{number}: a line is a device or a pattern, and a label: '/dev/sd[a-m] shelf1'; a space in \
                     a path is '?'"
                )));
            }
        };
        let parsed = Pattern::new(pattern).map_err(|e| {
            Failure::invalid(format!(
                "{name}:{number}: '{}' is no pattern: {}",
                safe(pattern),
                e.msg
            ))
        })?;
        let found = glob::glob_with(pattern, AS_A_SHELL).into_iter().flatten();
        let found = found.filter_map(Result::ok);
        lines.push(Line {
            number,
            pattern: pattern.to_string(),
            parsed,
            label: label.to_string(),
            real: found
                .filter_map(|path| std::fs::canonicalize(path).ok())
                .collect(),
        });
    }
    Ok(lines)
}

impl Line {
    fn matches(&self, device: &Device) -> Option<Match> {
        let names = [&device.given, &device.path];
        let exact = || {
            names.contains(&&self.pattern)
                || absolute(Path::new(&self.pattern)).ok().as_ref() == Some(&device.path)
        };
        let is_plain = Pattern::escape(&self.pattern) == self.pattern;
        let there = || {
            device
                .real
                .as_ref()
                .is_some_and(|real| self.real.contains(real))
        };
        let matches = |name: &&String| self.parsed.matches_with(name, AS_A_SHELL);
        match () {
            () if exact() || is_plain && there() => Some(Match::Exact),
            () if names.iter().any(matches) || there() => Some(Match::Pattern),
            () => None,
        }
    }
}

/// The label that the lines give a device: that of its own line, or of the patterns that match it.
fn label_of(name: &str, lines: &[Line], device: &Device) -> Result<String, Failure> {
    let how = |line: &Line| line.matches(device);
    let best = lines.iter().filter_map(how).max();
    let path = safe(&device.given);
    let mut matching = lines
        .iter()
        .filter(|line| best.is_some() && how(line) == best);
    let Some(first) = matching.next() else {
        return Err(Failure::invalid(format!(
            "{name}: no line matches {path}; add one, a device or a pattern and its label, or give it with '--domain \
             {path}=LABEL'"
        )));
    };
    match matching.find(|line| line.label != first.label) {
        None => Ok(first.label.clone()),
        Some(other) => Err(Failure::invalid(format!(
            "{name}:{}: {path} is in '{}' by this line, and in '{}' by line {}; give the device a line of its own, \
             which comes before patterns, or '--domain {path}=LABEL'",
            other.number,
            safe(&other.label),
            safe(&first.label),
            first.number
        ))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn device(given: &str) -> Device {
        Device {
            given: given.to_string(),
            path: absolute(given.as_ref()).unwrap(),
            real: None,
        }
    }

    fn label(text: &str, given: &str) -> Result<String, String> {
        let lines = parse("f", text).map_err(|e| e.text)?;
        label_of("f", &lines, &device(given)).map_err(|e| e.text)
    }

    #[test]
    fn a_line_of_its_own_comes_before_patterns_wherever_it_stands() {
        let text = "# shelves\n/dev/no/sd[a-m]  shelf1 # left\n\n/dev/no/sdb shelf2\n*.img files\nd0 near\n";
        for (given, expected) in [
            ("/dev/no/sda", "shelf1"),
            ("/dev/no/sdb", "shelf2"),
            ("x.img", "files"),
            ("d0", "near"),
        ] {
            assert_eq!(label(text, given).unwrap(), expected, "{given}");
        }
        let here = absolute("d0".as_ref()).unwrap();
        assert_eq!(label(text, &here).unwrap(), "near");
        assert_eq!(label("/dev/?? a\n/dev/n* a\n", "/dev/no").unwrap(), "a");
    }

    #[test]
    fn what_is_wrong_names_file_and_line() {
        for (text, words) in [
            ("\n/dev/sdb\n", "f:2: a line is"),
            ("/dev/sdb my shelf\n", "f:1: a line is"),
            ("# x\n/dev/sd[a x\n", "f:2: '/dev/sd[a' is no pattern"),
            (
                "/dev/no/* a\n/dev/no/sd? b\n",
                "f:2: /dev/no/sdb is in 'b' by this line, and in 'a' by line 1",
            ),
            ("# nothing\n", "f: no line matches /dev/no/sdb"),
            ("/dev/* a\n", "f: no line matches /dev/no/sdb"),
        ] {
            let error = label(text, "/dev/no/sdb").unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
            assert_eq!(error.lines().count(), 1);
        }
    }

    #[test]
    fn a_device_is_found_by_its_other_names_and_the_flag_wins() {
        let dir = std::env::temp_dir().join(format!("ashlar-domains-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("by-path")).unwrap();
        let dir = std::fs::canonicalize(dir).unwrap();
        let devices = [dir.join("a"), dir.join("b"), dir.join("c")];
        for (number, device) in devices.iter().enumerate() {
            std::fs::write(device, "").unwrap();
            let link = dir.join(format!("by-path/shelf-{number}"));
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(device, link).unwrap();
        }
        let at = dir.display();
        let file = dir.join("domains");
        std::fs::write(
            &file,
            format!("{at}/by-path/shelf-[01] left\n{at}/by-path/shelf-2 right\n"),
        )
        .unwrap();
        let path = |i: usize| devices[i].display().to_string();
        let found = from_file(&file, &devices, vec![(path(1), "top".to_string())]).unwrap();
        let expected = [(1, "top"), (0, "left"), (2, "right")];
        assert_eq!(
            found,
            expected.map(|(i, label)| (path(i), label.to_string()))
        );
        let none = from_file(&dir.join("none"), &devices, Vec::new()).unwrap_err();
        assert!(none.text.contains("cannot be read"), "{none}");
        std::fs::remove_dir_all(dir).unwrap();
    }
}
