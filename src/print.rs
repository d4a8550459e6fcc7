//! What a verb gets, and how it answers: its text or document to standard output.
//!
//! **Invariants**: a document is one line `{"version":1,"command":...}`; paths are made absolute before they leave this
//! process, since the daemon has another working directory.

use std::io::Write;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::api::VERSION;
use crate::client::Client;
use crate::failure::Failure;

/// What every verb gets.
#[derive(Debug)]
pub(crate) struct Context {
    /// The daemon.
    pub(crate) client: Client,
    /// Whether to print JSON.
    pub(crate) json: bool,
}

impl Context {
    /// Prints `text`, or with `-j` the value as the document of `command`.
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub(crate) fn print(
        &self,
        command: &str,
        value: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        if self.json {
            out(&document(command, value)?)
        } else {
            out(&text())
        }
    }
}

/// `{"version":1,"command":...}` and the value's fields, as a line.
///
/// # Errors
/// Never for plain data.
pub(crate) fn document(command: &str, value: &impl Serialize) -> Result<String, Failure> {
    let value = serde_json::to_value(value)
        .map_err(|e| Failure::broken(format!("the answer cannot be printed: {e}")))?;
    let mut map = serde_json::Map::new();
    map.insert("version".to_string(), VERSION.into());
    map.insert("command".to_string(), command.into());
    if let Value::Object(fields) = value {
        map.extend(fields.into_iter().filter(|(name, _)| name != "version"));
    }
    Ok(Value::Object(map).to_string() + "\n")
}

/// Writes to standard output; a reader that went away (`| head`) is no failure.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn out(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(e) => Err(Failure::broken(format!(
            "standard output cannot be written: {e}"
        ))),
    }
}

/// A path as the daemon must see it.
///
/// # Errors
/// If it is empty or not UTF-8.
pub(crate) fn absolute(path: &Path) -> Result<String, Failure> {
    let absolute = std::path::absolute(path)
        .map_err(|e| Failure::invalid(format!("'{}': {e}; give a path", path.display())))?;
    absolute.to_str().map(str::to_string).ok_or_else(|| {
        Failure::invalid(format!(
            "{}: the path is not UTF-8; use a link to it",
            path.display()
        ))
    })
}
