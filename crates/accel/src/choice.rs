//! What the operator asked for: `accelerator = auto | cpu | cuda:N`.
//!
//! **Invariants**: what is printed is read back as the same choice.

use std::fmt;
use std::str::FromStr;

/// Which accelerator an array uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Choice {
    /// The first GPU, for the jobs that measure cheaper there.
    #[default]
    Auto,
    /// The processor only; no driver is loaded.
    Cpu,
    /// This GPU for every job that it can take, cheaper or not.
    Cuda(u16),
}

/// A text that is no choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("use auto, cpu, cuda or cuda:N with N the number of the GPU, for example cuda:0")]
pub struct ChoiceError;

impl FromStr for Choice {
    type Err = ChoiceError;
    fn from_str(text: &str) -> Result<Choice, ChoiceError> {
        match text {
            "auto" => Ok(Choice::Auto),
            "cpu" => Ok(Choice::Cpu),
            "cuda" => Ok(Choice::Cuda(0)),
            _ => {
                let number = text.strip_prefix("cuda:").ok_or(ChoiceError)?;
                let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
                let number = if digits { number.parse().ok() } else { None };
                number.map(Choice::Cuda).ok_or(ChoiceError)
            }
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Auto => f.write_str("auto"),
            Choice::Cpu => f.write_str("cpu"),
            Choice::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_and_printed() {
        for (text, choice) in [
            ("auto", Choice::Auto),
            ("cpu", Choice::Cpu),
            ("cuda:0", Choice::Cuda(0)),
            ("cuda:17", Choice::Cuda(17)),
        ] {
            assert_eq!(text.parse(), Ok(choice));
            assert_eq!(choice.to_string(), text);
        }
        assert_eq!("cuda".parse(), Ok(Choice::Cuda(0)));
        for text in [
            "",
            "gpu",
            "cuda:",
            "cuda:-1",
            "cuda:+1",
            "cuda:70000",
            "Auto",
            "cuda:0 ",
        ] {
            assert_eq!(text.parse::<Choice>(), Err(ChoiceError), "{text}");
        }
    }
}
