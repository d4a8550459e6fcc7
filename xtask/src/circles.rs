//! No file of a crate uses another that uses it, be it through further files: a check of the source against that.
//!
//! **Invariants**: a path counts for the deepest file that it names, a `mod` line for none; what only tests see does not
//! count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::paths::{self, Source};

/// The folder whose files may form circles with each other, not with those of other folders.
const WITHIN_FOLDERS: &str = "crates/engine/src";

/// The files of a crate by the names of their modules.
type Files = BTreeMap<Vec<String>, Source>;

/// A file and one that it uses, with a path that says so.
type Arrows = BTreeMap<(Vec<String>, Vec<String>), String>;

/// Circles of files, one line each.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    for file in roots(root) {
        let mut files = Files::new();
        let folder = file.parent().unwrap_or(root).to_path_buf();
        if let Err(error) = collect(&file, &folder, Vec::new(), &mut files) {
            lines.push(error);
            continue;
        }
        let name = file
            .strip_prefix(root)
            .unwrap_or(&file)
            .display()
            .to_string();
        let mut arrows = arrows(&files);
        if name.starts_with(WITHIN_FOLDERS) {
            arrows.retain(|(from, to), _| from.first() != to.first());
        }
        for circle in circles(&arrows) {
            lines.push(format!("{name}: a circle: {}", circle.join(", ")));
        }
    }
    lines
}

/// The files that crates begin with.
fn roots(root: &Path) -> Vec<PathBuf> {
    let mut folders = vec![root.join("src"), root.join("xtask/src")];
    for entry in std::fs::read_dir(root.join("crates"))
        .into_iter()
        .flatten()
        .flatten()
    {
        folders.push(entry.path().join("src"));
    }
    folders.sort();
    let files = folders
        .iter()
        .flat_map(|f| [f.join("lib.rs"), f.join("main.rs")]);
    files.filter(|file| file.exists()).collect()
}

/// Reads a file and those of the modules below it, which lie in `folder`.
fn collect(
    file: &Path,
    folder: &Path,
    module: Vec<String>,
    files: &mut Files,
) -> Result<(), String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let source = paths::read(&text).map_err(|e| format!("{}: {e}", file.display()))?;
    for child in &source.children {
        let below = folder.join(child);
        let beside = folder.join(format!("{child}.rs"));
        let file = if beside.exists() {
            beside
        } else {
            below.join("mod.rs")
        };
        let module = [&module[..], std::slice::from_ref(child)].concat();
        collect(&file, &below, module, files)?;
    }
    files.insert(module, source);
    Ok(())
}

fn arrows(files: &Files) -> Arrows {
    let mut arrows = Arrows::new();
    for (from, source) in files {
        for path in &source.paths {
            let to = absolute(files, from, source, path).and_then(|full| used(files, full));
            if let Some(to) = to.filter(|to| to != from) {
                let arrow = arrows.entry((from.clone(), to));
                arrow.or_insert_with(|| path.join("::"));
            }
        }
    }
    arrows
}

/// The file in which lies what a path names; none where it names a module, as those do that other paths go on from.
fn used(files: &Files, mut full: Vec<String>) -> Option<Vec<String>> {
    loop {
        let mut above = (0..full.len()).rev().map(|n| &full[..n]);
        let module = above.find(|m| files.contains_key(*m))?.to_vec();
        if files.contains_key(&full) {
            return None;
        }
        // A name that the file itself has from elsewhere, perhaps from another crate.
        let source = &files[&module];
        let Some(named) = source.names.get(&full[module.len()]) else {
            return Some(module);
        };
        let named = absolute(files, &module, source, named)?;
        let further = [&named, &full[module.len() + 1..]].concat();
        if further == full {
            return Some(module);
        }
        full = further;
    }
}

/// A path from the crate's root; none where it leads to another crate or stays in the file.
fn absolute(
    files: &Files,
    from: &[String],
    source: &Source,
    path: &[String],
) -> Option<Vec<String>> {
    let (first, rest) = path.split_first()?;
    match first.as_str() {
        "crate" => Some(rest.to_vec()),
        "self" => Some([from, rest].concat()),
        "super" => {
            let up = path.iter().take_while(|name| *name == "super").count();
            let above = &from[..from.len().checked_sub(up)?];
            Some([above, &path[up..]].concat())
        }
        _ if source.children.contains(first) => Some([from, path].concat()),
        _ => {
            let named = source
                .names
                .get(first)
                .filter(|named| named.first() != Some(first))?;
            let module = absolute(files, from, source, named)?;
            files
                .contains_key(&module)
                .then(|| [&module, rest].concat())
        }
    }
}

/// Files that reach each other, each with the arrows among them.
fn circles(arrows: &Arrows) -> Vec<Vec<String>> {
    let reached: BTreeMap<&Vec<String>, BTreeSet<&Vec<String>>> = arrows
        .keys()
        .map(|(from, _)| (from, reach(arrows, from)))
        .collect();
    let mut circles: BTreeMap<&Vec<String>, Vec<String>> = BTreeMap::new();
    for ((from, to), path) in arrows {
        let back = reached.get(to).is_some_and(|r| r.contains(from));
        if back {
            let all = &reached[from];
            let first = all
                .iter()
                .find(|m| reached.get(**m).is_some_and(|r| r.contains(from)));
            let name = |module: &Vec<String>| match module.is_empty() {
                true => "the root".to_string(),
                false => module.join("/"),
            };
            let line = format!("{} -> {} ({path})", name(from), name(to));
            circles
                .entry(first.unwrap_or(&from))
                .or_default()
                .push(line);
        }
    }
    circles.into_values().collect()
}

/// All files that one leads to.
fn reach<'a>(arrows: &'a Arrows, from: &Vec<String>) -> BTreeSet<&'a Vec<String>> {
    let mut reached = BTreeSet::new();
    let mut next = vec![from];
    while let Some(file) = next.pop() {
        for (_, to) in arrows.keys().filter(|(from, _)| from == file) {
            if reached.insert(to) {
                next.push(to);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crate_of(files: &[(&[&str], &str)]) -> Files {
        let read = |(module, text): &(&[&str], &str)| {
            let module = module.iter().map(ToString::to_string).collect();
            (module, paths::read(text).unwrap_or_default())
        };
        files.iter().map(read).collect()
    }

    fn found(files: &[(&[&str], &str)]) -> Vec<Vec<String>> {
        circles(&arrows(&crate_of(files)))
    }

    #[test]
    fn a_planted_circle_is_found() {
        let files: [(&[&str], &str); 4] = [
            (&[], "mod a; mod b; mod c; pub use a::A;"),
            (
                &["a"],
                "use crate::b::{self, B};\npub struct A;\nfn f() { b::run() }",
            ),
            (&["b"], "pub struct B;\npub fn run() { super::c::C.go() }"),
            (
                &["c"],
                "/* crate::b */ pub struct C; impl C { fn go(&self) -> &crate::A { \"crate::b\" } }",
            ),
        ];
        let circles = found(&files);
        assert_eq!(circles.len(), 1, "{circles:?}");
        let expected = [
            "a -> b (crate::b::B)",
            "b -> c (super::c::C)",
            "c -> a (crate::A)",
        ];
        assert_eq!(circles[0], expected);
    }

    #[test]
    fn a_folder_whose_files_use_what_its_head_defines_is_one() {
        let head = "mod low; pub struct Shared; fn f() { low::act() }";
        let low = "use super::Shared; pub fn act(_: Shared) {}";
        let root: (&[&str], &str) = (&[], "mod x; fn main() { x::f() }");
        let circles = found(&[root, (&["x"], head), (&["x", "low"], low)]);
        assert_eq!(circles.len(), 1, "{circles:?}");
        let below = "mod low; mod shared; pub use shared::Shared; fn f() { low::act() }";
        let shared: (&[&str], &str) = (&["x", "shared"], "pub struct Shared;");
        let circles = found(&[root, (&["x"], below), (&["x", "low"], low), shared]);
        assert!(circles.is_empty(), "{circles:?}");
    }

    #[test]
    fn what_only_tests_see_and_other_crates_do_not_count() {
        let files: [(&[&str], &str); 3] = [
            (&[], "mod a; mod b; pub use other::Extent; fn f() { a::A; }"),
            (&["a"], "use crate::b::B; use crate::Extent; pub struct A;"),
            (
                &["b"],
                "#[cfg(test)]\nuse crate::a::A;\npub(in crate::a) struct B;\n#[cfg(test)]\nmod tests { use super::super::a::A; }",
            ),
        ];
        assert_eq!(found(&files), Vec::<Vec<String>>::new());
    }
}
