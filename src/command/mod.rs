//! The verbs, a module for each group: what they ask the daemon (or do themselves) and what they
//! print.
//!
//! **Invariants**: a verb prints its result to standard output and nothing else there; with `-j`
//! that is one JSON document `{"version":1,"command":...}`; paths are made absolute before they
//! leave this process, since the daemon has another working directory.

mod addition;
pub(crate) mod array;
pub(crate) mod bench;
pub(crate) mod completions;
pub(crate) mod device;
mod device_set;
mod devices;
mod domains;
pub(crate) mod events;
pub(crate) mod history;
mod incremental;
pub(crate) mod inspect;
pub(crate) mod iostat;
pub(crate) mod notify;
pub(crate) mod plan;
mod removal;
mod replacement;
pub(crate) mod resilience;
mod returning;
mod scrub;
pub(crate) mod status;
pub(crate) mod support;
mod task;
mod trim;
pub(crate) mod verify;
pub(crate) mod volume;
pub(crate) mod wait;

use std::process::ExitCode;

use clap::CommandFactory;

use crate::cli::{Cli, NotifyVerb, Verb, absent};
use crate::client::{Client, socket_path};
use crate::failure::Failure;
use crate::print::{Context, out};

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
        Verb::Offline(args) => returning::offline(&context, args)?,
        Verb::Online(args) => returning::online(&context, args)?,
        Verb::Replace(args) => replacement::replace(&context, args)?,
        Verb::Add(args) => addition::add(&context, args)?,
        Verb::Remove(args) => removal::remove(&context, args)?,
        Verb::List(args) => status::list(&context, &args)?,
        Verb::Status(args) => return status::status(&context, &args),
        Verb::Events(args) => events::events(&context, &args)?,
        Verb::History(args) => history::history(&context, &args)?,
        Verb::Support(args) => support::support(&context, &args.file)?,
        Verb::Iostat(args) => iostat::iostat(&context, &args)?,
        Verb::Notify(NotifyVerb::Test) => notify::test(&context)?,
        Verb::Device(verb) => device::run(&context, verb)?,
        Verb::Volume(verb) => volume::run(&context, verb)?,
        Verb::Wait(args) => {
            let kinds = args.kinds.iter().map(|kind| absent::work(kind));
            wait::wait(
                &context,
                &args.array,
                &kinds.collect::<Result<Vec<_>, _>>()?,
            )?;
        }
        Verb::Task(args) => task::task(&context, &args)?,
        Verb::Scrub(args) => return scrub::scrub(&context, &args),
        Verb::Trim(args) => trim::trim(&context, args.array)?,
        Verb::Inspect(args) => inspect::inspect(&args, json)?,
        Verb::Verify(args) => return verify::verify(&args, json),
        Verb::Demo(args) => crate::demo::run(&args, json)?,
        Verb::Resilience(args) => out(&resilience::run(&args, json)?)?,
        Verb::Plan(args) => out(&plan::run(&args, json)?)?,
        Verb::Bench(verb) => return bench::run(&context, &verb),
        Verb::Completions(args) => out(&completions::script(&args.shell.to_string())?)?,
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
