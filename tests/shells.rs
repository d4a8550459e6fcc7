//! Completions in real shells: bash, zsh and fish load the script that `completions` prints, and ask the daemon at Tab.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::process::Command;

use common::{ASHLAR, Daemon, have};

/// What is typed before Tab, and what has to be offered or completed.
const TYPED: [(&str, &str); 5] = [
    ("ashlar status t", "tank"),
    ("ashlar volume attach t", "tank/v"),
    ("ashlar create x --layout ec8+", "ec8+3"),
    ("ashlar set tank rebuild.narrow=n", "rebuild.narrow=never"),
    ("ashlar supp", "support"),
];

/// A daemon with an array, and the script for a shell at `file`.
fn with_script(shell: &str, file: &str) -> Daemon {
    let daemon = Daemon::start(shell);
    daemon.create("tank", "ec2+1", 3, "64M", &[]);
    let script = daemon.ok(&["completions", shell]);
    let path = daemon.path(file);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, script).unwrap();
    daemon
}

/// What a shell prints that runs `script` with these arguments, with the program in its path.
fn said(daemon: &Daemon, shell: &[&str], script: &str, arguments: &[&str]) -> String {
    let program = std::path::Path::new(ASHLAR).parent().unwrap();
    let path = std::env::var("PATH").unwrap();
    let output = Command::new(shell[0])
        .args(&shell[1..])
        .arg(script)
        .args(arguments)
        .env("PATH", format!("{}:{path}", program.display()))
        .env("ASHLAR_SOCKET", daemon.path("control.sock"))
        .env("HOME", daemon.path(""))
        .env("TERM", "dumb")
        .current_dir(&daemon.scratch.0)
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}\n{errors}");
    assert_eq!(errors, "", "whoever presses Tab reads no error");
    text
}

#[test]
fn bash_completes_what_there_is() {
    if !have(&["bash"]) {
        return;
    }
    let daemon = with_script("bash", "ashlar.bash");
    // The function that bash calls at Tab, with what it sets before.
    let script = r#"source ./ashlar.bash
        [[ $(complete -p ashlar) =~ -F\ ([^ ]+) ]] || exit 1
        read -ra COMP_WORDS <<< "$1"; COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMP_LINE=$1; COMP_POINT=${#1}; COMP_TYPE=9
        ${BASH_REMATCH[1]} ashlar "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    for (typed, expected) in TYPED {
        let text = said(&daemon, &["bash", "--norc", "-c"], script, &["bash", typed]);
        assert!(text.lines().any(|l| l == expected), "{typed}: {text}");
    }
}

#[test]
fn fish_completes_what_there_is() {
    if !have(&["fish"]) {
        return;
    }
    let daemon = with_script("fish", "ashlar.fish");
    for (typed, expected) in TYPED {
        let script = format!("source ./ashlar.fish; complete -C '{typed}'");
        let text = said(&daemon, &["fish", "--no-config", "-c"], &script, &[]);
        // Each with what it is behind a tab.
        let found = text.lines().any(|l| l.split('\t').next() == Some(expected));
        assert!(found, "{typed}: {text}");
    }
    let text = said(
        &daemon,
        &["fish", "--no-config", "-c"],
        "source ./ashlar.fish; complete -C 'ashlar status '",
        &[],
    );
    assert!(text.contains("tank\tec2+1, optimal"), "{text}");
}

/// Types into a zsh at a terminal, and waits for what stands on it then.
const ZSH: &str = r#"zmodload zsh/zpty || exit 3
zpty -b z zsh -f -i
out=
wait_for() {
  local n chunk
  for n in {1..400}; do
    while zpty -r -t z chunk; do out+=$chunk; done
    [[ $out == *$1* ]] && return 0
    sleep 0.05
  done
  print -r -- "waited for $1, and there was: ${(q)out}"
  exit 1
}
zpty -w z "PS1='> '; fpath=($PWD/zsh \$fpath); autoload -Uz compinit; compinit -u -D; print REA\DY"
wait_for READY
while (($#)); do
  out=
  zpty -w -n z "$1"$'\t'
  wait_for "$2"
  print -r -- "$1 => $2"
  zpty -w -n z $'\x15'
  shift 2
done
zpty -d z"#;

#[test]
fn zsh_completes_what_there_is() {
    if !have(&["zsh"]) {
        return;
    }
    let daemon = with_script("zsh", "zsh/_ashlar");
    let arguments: Vec<&str> = TYPED.iter().flat_map(|(a, b)| [*a, *b]).collect();
    let arguments = [&["zsh"], &arguments[..]].concat();
    let text = said(&daemon, &["zsh", "-f", "-c"], ZSH, &arguments);
    assert_eq!(text.lines().count(), TYPED.len(), "{text}");
}
