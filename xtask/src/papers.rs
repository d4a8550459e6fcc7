//! `cargo xtask papers`: runs the papers' suites and puts samples and pages into `docs/papers`, ready to be committed.
//!
//! **Invariants**: a run that was cut off goes on with the same command; a page is made of the samples beside it, and of no
//! other; nothing in `docs` is touched before a run is whole.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use crate::place::root;

/// A paper, and what its command has beside `--paper`.
const PAPERS: &[(&str, &[&str])] = &[
    ("supremeraid", &[]),
    ("xiraid", &[]),
    ("supremeraid-spec", &[]),
    ("gridraid-check", &[]),
    ("gridraid", &[]),
    ("nsulate", &["--suite", "iozone"]),
];
/// What runs where none is named: both white papers.
const BOTH: [&str; 2] = ["supremeraid", "xiraid"];

/// Runs the papers that `words` name; `None` if one is none.
pub(crate) fn run(words: &[String]) -> Option<ExitCode> {
    let named: Vec<&str> = words.iter().map(String::as_str).collect();
    let wanted = match named.as_slice() {
        [] => BOTH.to_vec(),
        ["all"] => PAPERS.iter().map(|(name, _)| *name).collect(),
        _ => named,
    };
    let found: Option<Vec<_>> = wanted
        .iter()
        .map(|name| PAPERS.iter().find(|(known, _)| known == name))
        .collect();
    for (name, more) in found? {
        if let Err(reason) = one(name, more) {
            eprintln!("xtask papers: {name}: {reason}");
            return Some(ExitCode::FAILURE);
        }
    }
    Some(ExitCode::SUCCESS)
}

fn one(name: &str, more: &[&str]) -> Result<(), String> {
    let root = root();
    let out = root.join("target/papers").join(name);
    let docs = root.join("docs/papers");
    let began = Instant::now();
    eprintln!("{name}: to {}", out.display());
    let folder = out.display().to_string();
    let mut line = vec!["bench", "lifecycle", "--paper", name, "--out", &folder];
    line.extend(more);
    let mut cargo = Command::new("cargo");
    cargo.args(["run", "--release", "-q", "--"]).args(line);
    let status = cargo.current_dir(&root).status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => return Err(format!("it ended with {status}; the same command goes on")),
        Err(error) => return Err(format!("cargo: {error}")),
    }
    let read =
        |path: &Path| fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()));
    let put = |path: &Path, text: &str| {
        fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
    };
    let samples = read(&out.join("samples.csv"))?;
    put(
        &docs.join(format!("data/{name}-modelled.csv")),
        &ours(&samples)?,
    )?;
    put(
        &docs.join(format!("{name}.md")),
        &read(&out.join("report.md"))?,
    )?;
    eprintln!(
        "{name}: {:.0} s; docs/papers/{name}.md and docs/papers/data/{name}-modelled.csv are made anew; commit them",
        began.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Samples without those that others published: they have a file of their own.
fn ours(samples: &str) -> Result<String, String> {
    let titles = samples.lines().next().unwrap_or_default();
    let column = titles.split(',').position(|title| title == "evidence");
    let column = column.ok_or("samples.csv has no column 'evidence'")?;
    let kept = samples
        .split_inclusive('\n')
        .filter(|line| line.split(',').nth(column) != Some("published"));
    Ok(kept.collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn what_others_published_is_left_out_and_unknown_papers_are_refused() {
        let text = "suite,evidence,x\nssr,modelled,1\nssr,published,2\n";
        assert_eq!(ours(text).unwrap(), "suite,evidence,x\nssr,modelled,1\n");
        assert!(ours("a,b\n").is_err());
        assert!(run(&["nothing".to_string()]).is_none());
    }
}
