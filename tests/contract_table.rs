//! The contract of the command line, form by form: `docs/contract.md` says which verbs, flags, values and JSON fields
//! are in this version, and every line of it is run here.
//!
//! **Invariants**: a form is there and works, or says that it is not in this version; none is missing silently. Every
//! flag that the program takes stands in the table.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeSet;

use common::{Daemon, Scratch, have_kernel_devices};
use serde_json::Value;

const TABLE: &str = include_str!("../docs/contract.md");

/// The cells of the rows below `heading` (of all, if empty) that begin with a code span.
fn rows(heading: &str) -> Vec<Vec<&'static str>> {
    let from = TABLE.find(heading).unwrap();
    let part = &TABLE[from..];
    let lines = part.lines().filter(|l| l.starts_with("| `"));
    lines
        .map(|l| l.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect()
}

/// Command lines without the program's name, and whether they are in this version.
fn forms() -> Vec<(&'static str, &'static str)> {
    let line = |cells: Vec<&'static str>| {
        let line = cells[0].trim_matches('`').strip_prefix("ashlar ")?;
        Some((line, cells[1]))
    };
    rows("").into_iter().filter_map(line).collect()
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

#[test]
fn every_form_of_the_contract_works_or_says_that_it_is_to_come() {
    let daemon = Daemon::start("contract-table");
    let (kernel, port) = (have_kernel_devices(), free_port().to_string());
    let forms = forms();
    assert!(forms.len() > 150, "{}", forms.len());
    let mut wrong = Vec::new();
    for (line, here) in forms {
        if here == "yes, as root" && !kernel {
            continue;
        }
        let line = line.replace("PORT", &port);
        let begun = std::time::Instant::now();
        let output = daemon.run(&line.split_whitespace().collect::<Vec<_>>());
        let error = String::from_utf8_lossy(&output.stderr);
        let told = error.contains("is not in this version") && error.lines().count() == 1;
        let right = match here {
            "not yet" => output.status.code() == Some(1) && told && output.stdout.is_empty(),
            "yes" | "yes, as root" => output.status.success(),
            other => panic!("'{other}' says neither yes nor not yet"),
        };
        if begun.elapsed().as_secs() > 4 {
            eprintln!("ashlar {line}: took {:?}", begun.elapsed());
        }
        if !right {
            wrong.push(format!(
                "ashlar {line}\n    {here}, but {}: {error}",
                output.status
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Flags as the man page of a verb lists them.
fn flags_of(page: &str) -> BTreeSet<String> {
    let bare = page
        .replace("\\fB", "")
        .replace("\\fR", "")
        .replace("\\-", "-");
    let mut flags = BTreeSet::new();
    for line in bare.lines().filter(|l| l.starts_with('-')) {
        let words = line
            .split([',', ' ', '=', '['])
            .filter(|w| w.starts_with('-'));
        flags.extend(words.map(ToString::to_string));
    }
    flags
}

#[test]
fn every_flag_of_every_verb_stands_in_the_table() {
    let scratch = Scratch::new("contract-flags");
    let pages = scratch.path("man");
    let made = std::process::Command::new(common::ASHLAR)
        .arg("man-pages")
        .arg(&pages)
        .status();
    assert!(made.unwrap().success());
    let (forms, mut missing, mut seen) = (forms(), Vec::new(), 0);
    for page in std::fs::read_dir(&pages).unwrap() {
        let page = page.unwrap().path();
        let name = page.file_stem().unwrap().to_str().unwrap().to_string();
        let Some(verb) = name.strip_prefix("ashlar-") else {
            continue;
        };
        let text = std::fs::read_to_string(&page).unwrap();
        if text.contains(".SH SUBCOMMANDS") {
            continue;
        }
        let verb = match verb.split_once('-') {
            Some((group @ ("volume" | "device" | "notify" | "bench"), rest)) => {
                format!("{group} {rest}")
            }
            _ => verb.to_string(),
        };
        seen += 1;
        let lines = forms.iter().filter(|(line, here)| {
            here.starts_with("yes") && (*line == verb || line.starts_with(&format!("{verb} ")))
        });
        let words: BTreeSet<&str> = lines
            .flat_map(|(line, _)| line.split_whitespace())
            .collect();
        if words.is_empty() {
            missing.push(format!("ashlar {verb}"));
        }
        // One spelling of two is enough where the other is the letter: letters may be joined (-jvx).
        let letters: String = words
            .iter()
            .filter(|w| w.starts_with('-') && !w.starts_with("--"))
            .copied()
            .collect();
        for flag in flags_of(&text) {
            let everywhere = [
                "--socket",
                "--json",
                "-j",
                "--help",
                "-h",
                "--version",
                "-V",
            ];
            let there = match flag.strip_prefix("--") {
                Some(_) => words.contains(flag.as_str()),
                None => letters.contains(flag.trim_start_matches('-')),
            };
            if !there && !everywhere.contains(&flag.as_str()) {
                missing.push(format!("ashlar {verb} {flag}"));
            }
        }
    }
    assert!(seen > 30, "{seen} man pages");
    assert!(
        missing.is_empty(),
        "not in docs/contract.md:\n{}",
        missing.join("\n")
    );
}

/// The objects at a path such as `arrays[].devices[].errors`.
fn at<'a>(root: &'a Value, path: &str) -> Vec<&'a Value> {
    let mut here = vec![root];
    for part in path.split('.') {
        let list = part.ends_with("[]");
        let values = here.iter().map(|v| &v[part.trim_end_matches("[]")]);
        here = match list {
            true => values
                .flat_map(|v| v.as_array().into_iter().flatten())
                .collect(),
            false => values.collect(),
        };
    }
    here
}

#[test]
fn status_has_every_field_of_the_contract() {
    let daemon = Daemon::start("contract-fields");
    daemon.create(
        "t",
        "ec2+1",
        4,
        "64M",
        &[
            "--domain",
            "t-0.img=a",
            "--domain",
            "t-1.img=b",
            "--domain",
            "t-2.img=c",
            "--domain",
            "t-3.img=d",
        ],
    );
    let disk = daemon.disk("t");
    disk.write(0, &[7; 65536]).unwrap();
    disk.flush().unwrap();
    daemon.ok(&["fail", "t", "3", "-w"]);
    let status = daemon.json(&["status", "-j"]);
    assert_eq!(status["version"], 1);
    assert_eq!(status["command"], "status");
    let (mut wrong, mut fields) = (Vec::new(), 0);
    for row in rows("## Fields of") {
        let objects = at(&status, row[0].trim_matches('`'));
        if objects.is_empty() {
            wrong.push(format!("{}: there is none to look at", row[0]));
        }
        for field in row[1].trim_matches('`').split_whitespace() {
            fields += 1;
            if !objects
                .iter()
                .all(|o| o.as_object().is_some_and(|o| o.contains_key(field)))
            {
                wrong.push(format!("{} has no {field}", row[0]));
            }
        }
    }
    assert!(fields > 70, "{fields}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
