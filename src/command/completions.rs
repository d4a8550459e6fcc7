//! Answers to a shell that asks what it may offer at Tab, and the script that has it ask.
//!
//! **Invariants**: whoever is asked by a shell does nothing else.

use clap::CommandFactory;
use clap_complete::CompleteEnv;
use clap_complete::env::Shells;

use crate::cli::Cli;
use crate::failure::Failure;

/// Tells the program that a shell asks, and which.
const VARIABLE: &str = "_ASHLAR_COMPLETE";

/// Answers a shell that asks, and ends the process then.
pub(crate) fn answer() {
    CompleteEnv::with_factory(Cli::command)
        .var(VARIABLE)
        .complete();
}

/// The script that has a shell ask.
///
/// # Errors
/// If there is no such shell.
pub(crate) fn script(shell: &str) -> Result<String, Failure> {
    let shells = Shells::builtins();
    let completer = shells.completer(shell);
    let completer =
        completer.ok_or_else(|| Failure::invalid(format!("{shell}: not a shell known here")))?;
    let mut text = Vec::new();
    completer
        .write_registration(VARIABLE, "ashlar", "ashlar", "ashlar", &mut text)
        .map_err(|e| Failure::broken(format!("completions for {shell}: {e}")))?;
    let mut text = String::from_utf8_lossy(&text).into_owned();
    if shell == "zsh" {
        // The file is a function that zsh loads at the first Tab, which is to be answered too.
        text += "\n[[ ${funcstack[1]} == _ashlar ]] && _clap_dynamic_completer_ashlar \"$@\"\n";
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn each_shell_has_a_script() {
        for shell in ["bash", "zsh", "fish"] {
            assert!(script(shell).unwrap().contains(VARIABLE), "{shell}");
        }
        assert!(script("klingon").is_err());
    }
}
