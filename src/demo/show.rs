//! What the demonstration prints.
//!
//! **Invariants**: with `-j` nothing is printed before the one document at the end.

use std::io::Write;
use std::time::Instant;

use serde_json::{Value, json};

use crate::failure::Failure;
use crate::view::{Style, Tone, wrap};

/// What the demonstration prints.
pub(super) struct Show {
    pub(super) started: Instant,
    pub(super) step: u32,
    pub(super) style: Style,
    pub(super) json: bool,
    /// What was shown, with `-j`.
    pub(super) steps: Vec<Value>,
}

impl Show {
    pub(super) fn say(&self, text: &str) -> Result<(), Failure> {
        if self.json {
            return Ok(());
        }
        show_text(&format!("{text}\n"))
    }

    /// Runs a step and prints what came of it, with its time.
    pub(super) fn timed<T>(
        &mut self,
        name: &str,
        step: impl FnOnce(&mut Show) -> Result<T, Failure>,
        text: impl FnOnce(&T) -> String,
    ) -> Result<T, Failure> {
        self.step += 1;
        let started = Instant::now();
        let value = step(self)?;
        let seconds = started.elapsed().as_secs_f64();
        let said = text(&value);
        if self.json {
            let step = json!({ "name": name, "text": said, "seconds": seconds });
            self.steps.push(step);
        }
        let name = self.style.paint(Tone::Strong, &format!("{name:<12}"));
        let text = format!("{said}  ({seconds:.1}s)");
        for (i, line) in wrap(&text, self.style.width.saturating_sub(18))
            .iter()
            .enumerate()
        {
            if i == 0 {
                self.say(&format!("{:>3}  {name} {line}", self.step))?;
            } else {
                self.note(line)?;
            }
        }
        Ok(value)
    }

    /// A line that belongs to the step above.
    pub(super) fn note(&self, text: &str) -> Result<(), Failure> {
        self.say(&format!("     {:<12} {text}", ""))
    }
}

/// Writes to standard output. Whoever reads it may be gone: then it ends, and what it made is removed.
pub(super) fn show_text(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(text.as_bytes());
    written.and_then(|()| stdout.flush()).map_err(|e| {
        Failure::broken(format!(
            "standard output: {e}; the demonstration has ended, and what it made is removed"
        ))
    })
}
