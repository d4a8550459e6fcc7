//! Parts of the engine stay parts: a struct's methods stand in the folder that defines it, no struct has more cells than a
//! reader can keep in mind, nothing is decided by how many happen to hold an `Rc`, and what needs no array has unit tests.
//!
//! **Invariants**: what tests say is not looked at; every finding names a file.

use std::collections::BTreeMap;
use std::path::Path;

use crate::tidy;

/// The most `Cell`s, `RefCell`s and locks of one struct.
const CELLS: usize = 15;

const ENGINE: &str = "crates/engine/src";

/// Folders of which every file can be tested without an array.
const TESTED: &[&str] = &["journal", "map", "members", "segment"];

/// Findings, one line each.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let mut lines = engine(root);
    let mut paths = Vec::new();
    tidy::collect(&root.join("src"), &mut paths);
    tidy::collect(&root.join("crates"), &mut paths);
    paths.sort();
    for path in paths {
        let name = path.strip_prefix(root).unwrap_or(&path);
        if !name.starts_with(ENGINE)
            && let Ok(text) = std::fs::read_to_string(&path)
        {
            lines.extend(too_many_cells(&name.display().to_string(), &text));
        }
    }
    lines
}

/// Findings of the engine, one line each.
fn engine(root: &Path) -> Vec<String> {
    let engine = root.join(ENGINE);
    let mut paths = Vec::new();
    tidy::collect(&engine, &mut paths);
    paths.sort();
    let read = |path: &Path| {
        let name = path.strip_prefix(&engine).unwrap_or(path);
        Some((
            name.display().to_string(),
            std::fs::read_to_string(path).ok()?,
        ))
    };
    let files: Vec<_> = paths.iter().filter_map(|p| read(p)).collect();
    let untested = untested(&files);
    let code = |(name, text): &(String, String)| {
        let code = text.split("\nmod tests {").next().unwrap_or_default();
        (name.clone(), code.to_string())
    };
    let files = files.iter().filter(|(name, _)| !name.ends_with("tests.rs"));
    [untested, findings(&files.map(code).collect::<Vec<_>>())].concat()
}

/// Files without a unit test at their end or in a file `tests.rs` beside them.
fn untested(files: &[(String, String)]) -> Vec<String> {
    let beside = |name: &str| {
        let tests = format!(
            "{}/tests.rs",
            name.rsplit_once('/').map_or("", |(dir, _)| dir)
        );
        files.iter().any(|(name, _)| *name == tests)
    };
    let wanted = files.iter().filter(|(name, text)| {
        TESTED.contains(&folder(name)) && !text.contains("mod tests") && !beside(name)
    });
    wanted
        .map(|(name, _)| format!("{ENGINE}/{name}: it has no unit test"))
        .collect()
}

/// The folder of a file, or its name where it is in none.
fn folder(file: &str) -> &str {
    let first = file.split('/').next().unwrap_or_default();
    first.trim_end_matches(".rs")
}

/// The name that follows one of these words at the beginning of a line.
fn named<'a>(line: &'a str, words: &[&str]) -> Option<&'a str> {
    let rest = words.iter().find_map(|word| line.strip_prefix(word))?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
    end.map(|end| &rest[..end]).filter(|name| !name.is_empty())
}

const STRUCTS: &[&str] = &[
    "struct ",
    "pub struct ",
    "pub(crate) struct ",
    "pub(super) struct ",
];

fn findings(files: &[(String, String)]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut homes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (file, text) in files {
        for name in text.lines().filter_map(|line| named(line, STRUCTS)) {
            homes.entry(name).or_default().push(folder(file));
        }
    }
    for (file, text) in files {
        for line in text.lines() {
            let name = named(line, &["impl "]);
            if let Some(homes) = name.and_then(|name| homes.get(name))
                && !homes.contains(&folder(file))
            {
                let name = name.unwrap_or_default();
                lines.push(format!(
                    "{ENGINE}/{file}: methods of {name} stand in {}/, which defines it",
                    homes.join("/ or ")
                ));
            }
            if line.contains("strong_count") {
                lines.push(format!(
                    "{ENGINE}/{file}: strong_count decides by accident: count what holds it (`Pinned` does)"
                ));
            }
        }
        lines.extend(too_many_cells(&format!("{ENGINE}/{file}"), text));
    }
    lines
}

/// Structs of a file that have more cells than they may.
fn too_many_cells(file: &str, text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut inside: Option<(&str, usize)> = None;
    for line in text.lines() {
        if let Some(name) = named(line, STRUCTS) {
            inside = Some((name, 0));
        } else if let Some((name, cells)) = &mut inside {
            *cells += usize::from(["Cell<", "Lock<"].iter().any(|cell| line.contains(cell)));
            if line == "}" {
                if *cells > CELLS {
                    lines.push(format!(
                        "{file}: {name} has {cells} cells, more than {CELLS}: make parts of it"
                    ));
                }
                inside = None;
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, String)]) -> Vec<String> {
        let files = files
            .iter()
            .map(|(name, text)| (name.to_string(), text.clone()));
        findings(&files.collect::<Vec<_>>())
    }

    #[test]
    fn methods_outside_of_the_folder_are_found() {
        let home = (
            "home/mod.rs",
            "pub struct Home {\n    a: u8,\n}\n\nimpl Home {\n".to_string(),
        );
        let fine = ("home/b.rs", "impl Home {\n".to_string());
        let other = (
            "background/c.rs",
            "impl Home {\nimpl Debug for Home {\n".to_string(),
        );
        assert_eq!(of(&[home.clone(), fine]).len(), 0);
        assert_eq!(of(&[home, other]).len(), 1);
    }

    #[test]
    fn a_file_without_a_test_is_found() {
        let files = |names: &[&str]| -> Vec<(String, String)> {
            let each = names.iter().map(|name| (name.to_string(), String::new()));
            each.collect()
        };
        assert_eq!(untested(&files(&["map/a.rs", "home/b.rs"])).len(), 1);
        assert!(untested(&files(&["map/x/a.rs", "map/x/tests.rs"])).is_empty());
        let tested = ("map/a.rs".to_string(), "mod tests {".to_string());
        assert!(untested(&[tested]).is_empty());
    }

    #[test]
    fn a_struct_of_too_many_cells_is_found() {
        let with =
            |cells: usize| format!("struct A {{\n{}}}\n", "    a: Cell<u8>,\n".repeat(cells));
        assert!(of(&[("a.rs", with(CELLS))]).is_empty());
        assert_eq!(of(&[("a.rs", with(CELLS + 1))]).len(), 1);
        assert_eq!(
            of(&[("a.rs", "if Rc::strong_count(&s) == 1 {\n".into())]).len(),
            1
        );
    }
}
