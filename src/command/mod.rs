//! The verbs, a module for each group: what they ask the daemon (or do themselves) and what they
//! print.
//!
//! **Invariants**: a verb prints its result to standard output and nothing else there; with `-j`
//! that is one JSON document `{"version":1,"command":...}`; paths are made absolute before they
//! leave this process, since the daemon has another working directory.

pub(crate) mod array;
pub(crate) mod bench;
pub(crate) mod device;
pub(crate) mod events;
pub(crate) mod history;
pub(crate) mod inspect;
pub(crate) mod iostat;
pub(crate) mod notify;
pub(crate) mod plan;
pub(crate) mod resilience;
pub(crate) mod status;
pub(crate) mod support;
pub(crate) mod verify;
pub(crate) mod volume;
pub(crate) mod wait;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory;
use serde::Serialize;
use serde_json::Value;

use crate::api::VERSION;
use crate::cli::{Cli, NotifyVerb, Verb, absent, complete};
use crate::client::{Client, socket_path};
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

/// Runs the verb.
///
/// # Errors
/// One line for the operator.
pub(crate) fn run(cli: Cli) -> Result<ExitCode, Failure> {
    let socket = socket_path(cli.socket.as_deref());
    let json = cli.json;
    if let Verb::Daemon(args) = &cli.verb {
        return crate::daemon::run(&socket, args).map(|()| ExitCode::SUCCESS);
    }
    let client = Client::new(socket)?;
    let context = Context {
        client: if json { client } else { client.with_progress() },
        json,
    };
    match cli.verb {
        Verb::Daemon(_) => unreachable!("handled above"),
        Verb::Create(args) => array::create(&context, &args)?,
        Verb::Import(args) => return array::import(&context, &args),
        Verb::Export(args) => array::export(&context, &args.array)?,
        Verb::Destroy(args) => array::destroy(&context, &args)?,
        Verb::Set(args) => array::set(&context, args)?,
        Verb::Get(args) => array::get(&context, args)?,
        Verb::Fail(args) => array::fail(&context, args)?,
        Verb::List(args) => status::list(&context, &args)?,
        Verb::Status(args) => return status::status(&context, &args),
        Verb::Events(args) => events::events(&context, &args)?,
        Verb::History(args) => history::history(&context, &args)?,
        Verb::Support(args) => support::support(&context, &args.file)?,
        Verb::Iostat(args) => iostat::iostat(&context, &args)?,
        Verb::Notify(NotifyVerb::Test) => notify::test(&context)?,
        Verb::Device(verb) => device::run(&context, &verb)?,
        Verb::Volume(verb) => volume::run(&context, verb)?,
        Verb::Wait(args) => {
            let kinds = args.kinds.iter().map(|kind| absent::work(kind));
            wait::wait(
                &context,
                &args.array,
                &kinds.collect::<Result<Vec<_>, _>>()?,
            )?;
        }
        Verb::Inspect(args) => inspect::inspect(&args, json)?,
        Verb::Verify(args) => return verify::verify(&args, json),
        Verb::Demo(args) => crate::demo::run(&args, json)?,
        Verb::Resilience(args) => out(&resilience::run(&args, json)?)?,
        Verb::Plan(args) => out(&plan::run(&args, json)?)?,
        Verb::Bench(verb) => return bench::run(&context, &verb),
        Verb::Completions(args) => out(&complete::script(&args.shell.to_string())?)?,
        Verb::ManPages(args) => man_pages(&args.dir)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// `man-pages`: one for the program, one for each verb.
fn man_pages(dir: &std::path::Path) -> Result<(), Failure> {
    let written =
        std::fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(Cli::command(), dir));
    written.map_err(|e| {
        Failure::broken(format!(
            "man pages in {}: {e}; give another DIR",
            dir.display()
        ))
    })
}
