//! Answers questions about resilience: one JSON question per line on standard input, one JSON answer
//! per line on standard output, `{"error": "..."}` where a question makes no sense.
//!
//! Compiled to WebAssembly (see `page/build.sh`) this is what the page of `ashlar resilience --html`
//! runs, so the page computes with the same code as the program.

use std::io::{BufRead, Write};

use ashlar_model::{Question, answer};

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let text = match serde_json::from_str::<Question>(&line) {
            Err(error) => serde_json::json!({ "error": error.to_string() }).to_string(),
            Ok(question) => match answer(&question) {
                Err(error) => serde_json::json!({ "error": error.to_string() }).to_string(),
                Ok(answer) => serde_json::to_string(&answer)?,
            },
        };
        writeln!(out, "{text}")?;
    }
    Ok(())
}
