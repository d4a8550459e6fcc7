//! `cargo xtask soak [day|devices|upgrade]`: what takes too long for every run, on the release build; what came of it is
//! kept in `docs/soak`.
//!
//! **Invariants**: a result is kept only where everything passed; it names the commit and nothing of the machine but its
//! kernel and processors.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use crate::package::{self, done, output};
use crate::place::root;
use crate::trial;

/// What is taken for the earlier version unless another is named: the first commit that made a package.
const EARLIER: &str = "d8f677b";

/// The soaks there are.
const SOAKS: [(&str, Soak); 3] = [("day", day), ("devices", devices), ("upgrade", upgrade)];

/// From what was typed behind its name to the lines of its result.
type Soak = fn(&[String]) -> Result<Vec<String>, String>;

/// Runs the one named, or all.
pub(crate) fn run(words: &[String]) -> Option<ExitCode> {
    let (wanted, more) = match words {
        [] => (None, &[][..]),
        [name, more @ ..] => (Some(name.as_str()), more),
    };
    if let Some(name) = wanted
        && !SOAKS.iter().any(|(known, _)| *known == name)
    {
        eprintln!("no soak {name}: there are day, devices and upgrade");
        return None;
    }
    let mut failed = false;
    for (name, soak) in SOAKS.iter().filter(|(n, _)| wanted.is_none_or(|w| w == *n)) {
        println!("-- soak {name}");
        match soak(more).and_then(|lines| keep(name, &lines)) {
            Ok(path) => println!("kept in {}", path.display()),
            Err(error) => {
                eprintln!("soak {name}: {error}");
                failed = true;
            }
        }
    }
    Some(ExitCode::from(u8::from(failed)))
}

/// A day in minutes: `tests/soak.rs`, whole.
fn day(_: &[String]) -> Result<Vec<String>, String> {
    test("soak", ("ASHLAR_SOAK_PART", "1"), "a day, 1/1 of it")
}

/// Devices that come and go: `tests/soak_devices.rs`, whole.
fn devices(_: &[String]) -> Result<Vec<String>, String> {
    let whole = ("ASHLAR_SOAK_WHOLE", "1");
    test("soak_devices", whole, "devices that come and go")
}

/// Runs a test whole, as the variable has it; what it printed from the line that has these words on.
fn test(name: &str, (variable, value): (&str, &str), words: &str) -> Result<Vec<String>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(root())
        .args(["test", "--release", "--test", name, "--"])
        .arg("--nocapture")
        .env(variable, value);
    let lines = shown(&mut command)?;
    let from = lines.iter().position(|l| l.contains(words));
    let from = from.ok_or("the test printed no result")?;
    let result = lines[from..].iter().take_while(|l| !l.starts_with("test "));
    Ok(result.cloned().collect())
}

/// A package of an earlier commit, installed, used, upgraded to this one: `packaging/trial` in each Debian.
fn upgrade(words: &[String]) -> Result<Vec<String>, String> {
    let earlier = words.first().map_or(EARLIER, String::as_str);
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        output(command.current_dir(root()).args(arguments))
    };
    let commit = git(&["rev-parse", "--short=12", earlier])?;
    let commit = commit.trim();
    let new = package::make()?;
    let new = new.first().ok_or("no package was made")?;
    let target = new.ancestors().nth(2).ok_or("the package has no folder")?;
    let tree = target.join("soak/earlier");
    if !tree.exists() {
        let at = tree.display().to_string();
        git(&["worktree", "add", "--detach", &at, commit])?;
    }
    let mut checkout = Command::new("git");
    done(checkout.current_dir(&tree).args(["checkout", "-q", commit]))?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build
        .current_dir(&tree)
        .args(["run", "--quiet", "--package", "xtask", "--", "package"])
        .env_remove("CARGO_TARGET_DIR");
    let made = output(&mut build)?;
    let old = made.lines().find(|l| l.ends_with(".deb"));
    let old = PathBuf::from(old.ok_or("the earlier commit made no package")?);
    let mut lines = vec![format!("from commit {commit}")];
    for suite in trial::SUITES {
        lines.extend(shown(&mut trial::command(new, suite, target, Some(&old)))?);
    }
    Ok(lines)
}

/// Runs a command to its end, showing what it says.
///
/// # Errors
/// How it ended, if not with success.
fn shown(command: &mut Command) -> Result<Vec<String>, String> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child = child.map_err(|e| format!("{command:?}: {e}"))?;
    let mut lines = Vec::new();
    if let Some(out) = child.stdout.take() {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            println!("{line}");
            lines.push(line);
        }
    }
    match child.wait() {
        Ok(status) if status.success() => Ok(lines),
        Ok(status) => Err(format!("{command:?} ended with {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

/// Keeps a result.
fn keep(name: &str, lines: &[String]) -> Result<PathBuf, String> {
    let mut git = Command::new("git");
    let commit = output(
        git.current_dir(root())
            .args(["rev-parse", "--short=12", "HEAD"]),
    )?;
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kernel: Vec<&str> = kernel.trim().split(['.', '-']).take(2).collect();
    let processors = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let mut text = format!(
        "cargo xtask soak {name}, commit {}, Linux {}, {processors} processors\n\n",
        commit.trim(),
        kernel.join(".")
    );
    text += &lines.join("\n");
    let path = root().join("docs/soak").join(format!("{name}.txt"));
    write(&path, &(text + "\n")).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(path)
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, text)
}
