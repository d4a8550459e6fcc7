//! Habits that no compiler checks: ASCII source, a header on every module, no test that is switched
//! off, no unfinished code, no file too long to be read in one go.
//!
//! **Invariants**: only files that are the project's own are looked at (`src`, `crates`, `tests`,
//! `xtask`); every finding names file and line, or file and count of lines.

use std::path::{Path, PathBuf};

/// What must not be in any source file, and why.
const BANNED: &[(&str, &str)] = &[
    ("#[ignore", "a test is run or removed"),
    ("todo!(", "unfinished code"),
    ("unimplemented!(", "unfinished code"),
    ("dbg!(", "left over from debugging"),
];

/// The longest that a source file may be, in lines. Files of tests may be longer.
const LONGEST: usize = 600;

/// Findings, one line each.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let mut files = Vec::new();
    for dir in ["src", "crates", "tests", "xtask"] {
        collect(&root.join(dir), &mut files);
    }
    files.sort();
    let mut lines = Vec::new();
    for path in files {
        let name = path
            .strip_prefix(root)
            .unwrap_or(&path)
            .display()
            .to_string();
        match std::fs::read_to_string(&path) {
            Ok(text) => lines.extend(findings(&name, &text)),
            Err(error) => lines.push(format!("{name}: {error}")),
        }
    }
    lines
}

/// The source files below a folder.
pub(crate) fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
}

/// Whether a file is source that its length is checked of: not a file of tests.
fn is_source(name: &str) -> bool {
    let folders: Vec<&str> = name.split('/').collect();
    let source = matches!(
        folders[..],
        ["src", ..] | ["xtask", "src", ..] | ["crates", _, "src", ..]
    );
    source && !name.ends_with("tests.rs")
}

fn findings(name: &str, text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let count = text.lines().count();
    if is_source(name) && count > LONGEST {
        lines.push(format!("{name}: {count} lines, more than {LONGEST}"));
    }
    let mut head = text
        .lines()
        .filter(|line| !line.starts_with("#![") && !line.trim().is_empty());
    if !head.next().is_some_and(|line| line.starts_with("//!")) {
        lines.push(format!("{name}: begins without saying what it is (//!)"));
    }
    for (number, line) in (1..).zip(text.lines()) {
        if !line.is_ascii() {
            lines.push(format!("{name}:{number}: not ASCII"));
        }
        if name.ends_with("tidy.rs") {
            continue; // it names what it looks for
        }
        for (word, why) in BANNED {
            if line.contains(word) {
                lines.push(format!("{name}:{number}: {word} {why}"));
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untidy_source_is_found() {
        let text = "fn f() { todo!() }\n// na\u{ef}ve\n";
        let lines = findings("a.rs", text);
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(findings("b.rs", "//! Fine.\nfn f() {}\n").is_empty());
    }
    #[test]
    fn a_source_file_too_long_is_named_with_its_length() {
        let long = |lines: usize| "//! Long.\n".repeat(lines);
        for name in ["src/a.rs", "xtask/src/a.rs", "crates/a/src/b/c.rs"] {
            assert!(findings(name, &long(LONGEST)).is_empty());
            let found = findings(name, &long(LONGEST + 1));
            assert_eq!(found, [format!("{name}: 601 lines, more than 600")]);
        }
        for name in [
            "tests/a.rs",
            "crates/a/tests/b.rs",
            "crates/a/src/b_tests.rs",
        ] {
            assert!(findings(name, &long(LONGEST + 1)).is_empty(), "{name}");
        }
    }
}
