//! Files that documents name are there: a path in backquotes that ends in `.rs` is the end of a source file's path.
//!
//! **Invariants**: every finding names document and line; decisions tell of their time and are not looked at.

use std::path::Path;

use crate::tidy;

/// Documents that tell where things are.
const DOCUMENTS: &[&str] = &[
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "PROMISES.md",
    "README.md",
    "docs/bugs.md",
    "docs/campaigns.md",
    "docs/format.md",
    "docs/gpu.md",
    "docs/limits.md",
    "docs/performance.md",
    "docs/space.md",
    "docs/testing.md",
    "docs/unsafe.md",
];

/// Findings, one line each.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let mut paths = Vec::new();
    for dir in ["src", "crates", "tests", "xtask", "fuzz"] {
        tidy::collect(&root.join(dir), &mut paths);
    }
    let files: Vec<String> = paths.iter().map(|p| p.display().to_string()).collect();
    let mut lines = Vec::new();
    for document in DOCUMENTS {
        match std::fs::read_to_string(root.join(document)) {
            Ok(text) => lines.extend(findings(document, &text, &files)),
            Err(error) => lines.push(format!("{document}: {error}")),
        }
    }
    lines
}

fn findings(document: &str, text: &str, files: &[String]) -> Vec<String> {
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        // What is between backquotes: every second piece.
        let named = line.split('`').skip(1).step_by(2);
        for name in named.filter(|n| n.ends_with(".rs") && !n.contains([' ', '*', '{'])) {
            let end = format!("/{name}");
            if !files.iter().any(|file| file.ends_with(&end)) {
                lines.push(format!("{document}:{number}: there is no {name}"));
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_gone_is_found() {
        let files = ["/x/crates/engine/src/home/batch.rs".to_string()];
        let of = |text| findings("A.md", text, &files);
        assert!(of("see `home/batch.rs`, `batch`; `batch.rs` and `*tests.rs`\n").is_empty());
        assert_eq!(
            of("\n| `home/gone.rs` |\n"),
            ["A.md:2: there is no home/gone.rs"]
        );
        assert_eq!(of("`atch.rs`").len(), 1);
    }
}
