//! Which crate may use which: the table of the design, and a check of the manifests against it.
//!
//! **Invariants**: a crate that is not in the table is a finding, as is an arrow that the table does
//! not have; test-only arrows (dev-dependencies) have a table of their own.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Crate, and what of ours it may use.
const ARROWS: &[(&str, &[&str])] = &[
    ("ashlar-rt", &[]),
    ("ashlar-block", &["rt"]),
    ("ashlar-codec", &[]),
    ("ashlar-digest", &[]),
    ("ashlar-layout", &[]),
    ("ashlar-accel", &["codec", "digest"]),
    ("ashlar-format", &["digest"]),
    ("ashlar-space", &["format", "layout"]),
    ("ashlar-device", &["rt"]),
    (
        "ashlar-engine",
        &[
            "block", "rt", "device", "format", "layout", "space", "codec", "digest", "accel",
        ],
    ),
    ("ashlar-serve", &["block", "rt"]),
    ("ashlar-model", &["layout"]),
    (
        "ashlar-bench",
        &[
            "rt", "device", "engine", "layout", "codec", "digest", "accel",
        ],
    ),
    (
        "ashlar-sim",
        &[
            "rt", "device", "engine", "format", "layout", "digest", "verify", "accel",
        ],
    ),
    ("ashlar-verify", &[]),
    (
        "ashlar",
        &[
            "rt", "device", "engine", "format", "layout", "serve", "model", "codec", "digest",
            "bench", "verify", "accel",
        ],
    ),
    ("xtask", &[]),
];

/// More that tests may use.
const TEST_ARROWS: &[(&str, &[&str])] = &[
    ("ashlar-accel", &["rt", "device", "engine"]),
    ("ashlar-engine", &["sim"]),
    ("ashlar-serve", &["device"]),
    (
        "ashlar-verify",
        &["engine", "device", "rt", "layout", "codec"],
    ),
];

/// One dependency of a crate of ours on another.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Arrow {
    from: String,
    to: String,
    test_only: bool,
}

/// Arrows that are not allowed, one line each.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(root)
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output();
    let metadata = match output {
        Ok(output) if output.status.success() => output.stdout,
        _ => return vec!["cargo metadata failed".to_string()],
    };
    match serde_json::from_slice::<Value>(&metadata) {
        Ok(value) => findings(&members(&value), &arrows(&value)),
        Err(error) => vec![format!("cargo metadata: {error}")],
    }
}

fn packages(metadata: &Value) -> impl Iterator<Item = &Value> {
    metadata["packages"].as_array().into_iter().flatten()
}

fn members(metadata: &Value) -> Vec<String> {
    packages(metadata)
        .filter_map(|p| p["name"].as_str())
        .map(str::to_string)
        .collect()
}

fn arrows(metadata: &Value) -> Vec<Arrow> {
    let members = members(metadata);
    let mut arrows = Vec::new();
    for package in packages(metadata) {
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let (Some(from), Some(to)) = (package["name"].as_str(), dependency["name"].as_str())
            else {
                continue;
            };
            if members.iter().any(|m| m == to) {
                let test_only = dependency["kind"] == "dev";
                arrows.push(Arrow {
                    from: from.to_string(),
                    to: to.to_string(),
                    test_only,
                });
            }
        }
    }
    arrows
}

fn findings(members: &[String], arrows: &[Arrow]) -> Vec<String> {
    let in_table = |table: &[(&str, &[&str])], arrow: &Arrow| {
        let row = table.iter().find(|(from, _)| *from == arrow.from);
        row.is_some_and(|(_, to)| to.iter().any(|to| arrow.to == format!("ashlar-{to}")))
    };
    let unknown = members
        .iter()
        .filter(|m| !ARROWS.iter().any(|(name, _)| name == m));
    let mut lines: Vec<String> = unknown
        .map(|m| format!("{m} is not in the table of xtask/src/arrows.rs"))
        .collect();
    for arrow in arrows {
        let allowed = in_table(ARROWS, arrow) || arrow.test_only && in_table(TEST_ARROWS, arrow);
        if !allowed {
            let kind = if arrow.test_only {
                "dev-dependency"
            } else {
                "dependency"
            };
            lines.push(format!("{} must not use {} ({kind})", arrow.from, arrow.to));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrow(from: &str, to: &str, test_only: bool) -> Arrow {
        Arrow {
            from: from.to_string(),
            to: to.to_string(),
            test_only,
        }
    }

    #[test]
    fn an_arrow_that_points_the_wrong_way_is_found() {
        let bad = [
            arrow("ashlar-rt", "ashlar-engine", false),
            arrow("ashlar-serve", "ashlar-engine", false),
            arrow("ashlar", "ashlar-sim", false),
            arrow("ashlar-engine", "ashlar-sim", false),
            arrow("ashlar-verify", "ashlar-format", true),
        ];
        assert_eq!(findings(&[], &bad).len(), bad.len());
        let good = [
            arrow("ashlar-engine", "ashlar-rt", false),
            arrow("ashlar-engine", "ashlar-sim", true),
            arrow("ashlar", "ashlar-engine", false),
        ];
        assert!(findings(&[], &good).is_empty());
        assert_eq!(findings(&["ashlar-new".to_string()], &[]).len(), 1);
    }

    #[test]
    fn the_table_has_no_circle() {
        // Each row may only use crates whose rows come to an end.
        let mut done: Vec<&str> = Vec::new();
        for _ in ARROWS {
            for (name, to) in ARROWS {
                let ready = to
                    .iter()
                    .all(|to| done.iter().any(|d| d.strip_prefix("ashlar-") == Some(*to)));
                if ready && !done.contains(name) {
                    done.push(name);
                }
            }
        }
        assert_eq!(done.len(), ARROWS.len(), "{done:?}");
    }

    #[test]
    fn manifests_are_read() {
        let metadata = serde_json::json!({"packages": [
            {"name": "ashlar-rt", "dependencies": [{"name": "libc", "kind": null}]},
            {"name": "ashlar-serve", "dependencies": [{"name": "ashlar-rt", "kind": null}, {"name": "ashlar-rt", "kind": "dev"}]},
        ]});
        let expected = vec![
            arrow("ashlar-serve", "ashlar-rt", false),
            arrow("ashlar-serve", "ashlar-rt", true),
        ];
        assert_eq!(arrows(&metadata), expected);
    }
}
