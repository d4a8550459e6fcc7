//! Which folder of the engine may use which: each only those below it, and a check of the source against that.
//!
//! **Invariants**: a folder that is not in the list is a finding, as is a path that points up; a path counts wherever it
//! stands, in a `use` or in the code, but not in comments and tests.

use std::collections::BTreeSet;
use std::path::Path;

use crate::tidy;

/// The engine's folders and files, each above all that it may use; those of one row may not use each other.
const ROWS: &[&[&str]] = &[
    &["api", "testing"],
    &["import"],
    &["background"],
    &["home"],
    &["shard"],
    &["protocol"],
    &["options"],
    &["map"],
    &["journal"],
    &["segment"],
    &["members"],
    &["space"],
    &["counters", "error", "locks", "phases", "planted", "status"],
];

const ENGINE: &str = "crates/engine/src";

/// Paths that point up, one line each.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let engine = root.join(ENGINE);
    let mut files = Vec::new();
    tidy::collect(&engine, &mut files);
    files.sort();
    let mut lines = Vec::new();
    for path in files {
        let name = path.strip_prefix(&engine).unwrap_or(&path);
        let folder = name
            .components()
            .next()
            .and_then(|c| c.as_os_str().to_str());
        let folder = folder.unwrap_or_default().trim_end_matches(".rs");
        if folder == "lib" || name.ends_with("tests.rs") {
            continue; // it names what callers see; tests may use all
        }
        match std::fs::read_to_string(&path) {
            Ok(text) => lines.extend(findings(&name.display().to_string(), folder, &text)),
            Err(error) => lines.push(format!("{}: {error}", name.display())),
        }
    }
    lines
}

fn row_of(folder: &str) -> Option<usize> {
    ROWS.iter().position(|row| row.contains(&folder))
}

fn findings(file: &str, folder: &str, text: &str) -> Vec<String> {
    let Some(row) = row_of(folder) else {
        return vec![format!(
            "{ENGINE}/{file}: {folder} is not in the list of xtask/src/folders.rs"
        )];
    };
    let mut lines = Vec::new();
    for (number, used) in used(text) {
        let below = used == folder || row_of(&used).is_some_and(|other| other > row);
        if !below {
            lines.push(format!(
                "{ENGINE}/{file}:{number}: {folder} must not use {used}, which is not below it"
            ));
        }
    }
    lines
}

/// The folders that a file names, each with the first line that does.
fn used(text: &str) -> Vec<(usize, String)> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    let code = (1..).zip(text.lines());
    for (number, line) in code.take_while(|(_, line)| !line.starts_with("mod tests")) {
        let line = line.split("//").next().unwrap_or_default();
        for path in line.split("crate::").skip(1) {
            let name: String = path
                .chars()
                .take_while(|c| c.is_ascii_lowercase() || *c == '_')
                .collect();
            if !name.is_empty() && seen.insert(name.clone()) {
                found.push((number, name));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_points_up_is_found() {
        let up = "use crate::home::Home;\nfn f() { crate::map::load() }\n";
        assert_eq!(findings("segment/a.rs", "segment", up).len(), 2);
        assert_eq!(findings("new/a.rs", "new", "").len(), 1);
        let down = "use crate::segment::{self, Segment};\n// crate::api\n#[cfg(test)]\nmod tests {\n    use crate::api::Array;\n}\n";
        assert!(findings("home/a.rs", "home", down).is_empty());
        let beside = "use crate::status::Event;\n";
        assert_eq!(findings("error.rs", "error", beside).len(), 1);
    }

    #[test]
    fn folders_stand_in_one_row_each() {
        let names: Vec<&str> = ROWS.concat();
        let once: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(once.len(), names.len());
    }
}
