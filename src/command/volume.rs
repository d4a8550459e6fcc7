//! `volume create`, `list`, `destroy`, `set`, `attach`, `detach`.
//!
//! **Invariants**: as [`crate::command::array`]: what destroys data wants `--yes`.

use serde::Deserialize;
use serde_json::json;

use crate::api::{
    Attached, Call, FrontendSpec, Rights, StatusReply, VolumeCreate, VolumeDestroy, VolumeNote,
    VolumeResize,
};
use crate::cli::{ArrayListArgs, VolumeAttachArgs, VolumeResizeArgs, VolumeVerb, absent};
use crate::command::array::{attached_text, nbd_address};
use crate::failure::Failure;
use crate::print::{Context, absolute};
use crate::units::{as_given, size_or_exact};
use crate::view::{safe, table};

/// Runs the verb.
///
/// # Errors
/// One line for the operator.
pub(crate) fn run(context: &Context, verb: VolumeVerb) -> Result<(), Failure> {
    match verb {
        VolumeVerb::List(args) => list(context, &args),
        VolumeVerb::Attach(args) => attach(context, args),
        VolumeVerb::Create(args) => {
            let (array, volume) = args.name;
            args.digest
                .as_deref()
                .map_or(Ok(()), absent::check_digest)?;
            let text = format!("{array}/{volume}: created\n");
            let call = Call::VolumeCreate(VolumeCreate {
                array,
                volume,
                size_bytes: Some(args.size),
                thin: args.thin,
                block_bytes: args.block_size,
                digest: args.digest,
                write_cache: args.write_cache,
            });
            simple(context, "volume create", &call, text)
        }
        VolumeVerb::Destroy(args) => {
            let (array, volume) = args.name;
            absent::check_volume(&volume)?;
            if !args.yes {
                return Err(Failure::refused(format!(
                    "destroying {array}/{volume} destroys all its data; if that is meant, give --yes"
                )));
            }
            let text = format!("{array}/{volume}: destroyed\n");
            let confirm = Some(format!("{array}/{volume}"));
            let call = Call::VolumeDestroy(VolumeDestroy {
                array,
                volume,
                confirm,
                force: args.force,
            });
            simple(context, "volume destroy", &call, text)
        }
        VolumeVerb::Rename(args) => {
            let ((array, volume), new_name) = (args.name, args.new);
            absent::check_volume(&volume)?;
            let text = format!("{array}/{volume}: called {array}/{new_name} now\n");
            let call = Call::VolumeRename {
                array,
                volume,
                new_name,
            };
            simple(context, "volume rename", &call, text)
        }
        VolumeVerb::Resize(args) => resize(context, args),
        VolumeVerb::Set(args) => {
            let ((array, volume), (key, value)) = (args.name, args.pair);
            absent::check_volume_setting(&key)?;
            let text = format!("{array}/{volume}: {key}={value}\n");
            simple(
                context,
                "volume set",
                &Call::VolumeSet {
                    array,
                    volume,
                    key,
                    value,
                },
                text,
            )
        }
        VolumeVerb::Detach(args) => {
            let (array, volume) = args.name;
            let text = format!("{array}/{volume}: detached\n");
            let (frontend, force) = (args.frontend, args.force);
            let call = Call::Detach {
                array,
                volume,
                frontend,
                force,
            };
            simple(context, "volume detach", &call, text)
        }
    }
}

fn resize(context: &Context, args: VolumeResizeArgs) -> Result<(), Failure> {
    let (array, volume) = args.name;
    absent::check_volume(&volume)?;
    let whole = format!("{array}/{volume}");
    let text = format!("{whole}: {} now\n", as_given(args.size));
    let call = Call::VolumeResize(VolumeResize {
        array,
        volume,
        size_bytes: args.size,
        confirm: args.yes.then_some(whole),
    });
    simple(context, "volume resize", &call, text)
}

fn simple(context: &Context, command: &str, call: &Call, text: String) -> Result<(), Failure> {
    let reply = context.client.call_value(call)?;
    context.print(command, &reply, || text)?;
    for line in reply["left"].as_array().into_iter().flatten() {
        eprintln!("ashlar: {}", safe(line.as_str().unwrap_or_default()));
    }
    Ok(())
}

fn attach(context: &Context, args: VolumeAttachArgs) -> Result<(), Failure> {
    #[derive(Deserialize)]
    struct Reply {
        attached: Attached,
    }
    let (array, volume) = args.name;
    let frontend = match (args.how.nbd, args.how.fuse, args.how.loop_device) {
        (Some(address), _, _) => FrontendSpec::Nbd(nbd_address(&address)?),
        (_, Some(dir), _) => FrontendSpec::Fuse(absolute(&dir)?),
        _ => FrontendSpec::Loop,
    };
    let call = Call::Attach {
        array: array.clone(),
        volume: volume.clone(),
        frontend,
        sector_bytes: args.sector_size,
        rights: rights(args.owner.as_deref(), args.mode)?,
        force: args.force,
    };
    let reply: Reply = context.client.call(&call)?;
    let value = json!({ "array": array, "volume": volume, "attached": reply.attached });
    context.print("volume attach", &value, || {
        format!("{array}/{volume}: {}\n", attached_text(&reply.attached))
    })
}

/// Who may use a socket: numbers for what was typed.
fn rights(owner: Option<&str>, mode: Option<u32>) -> Result<Option<Rights>, Failure> {
    if owner.is_none() && mode.is_none() {
        return Ok(None);
    }
    let (user, group) = match owner.unwrap_or("0").split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (owner.unwrap_or("0"), None),
    };
    let user = match user {
        "" => 0,
        user => number_of("passwd", "user", user)?,
    };
    let given = group.is_some();
    let group = match group {
        None | Some("") => 0,
        Some(group) => number_of("group", "group", group)?,
    };
    Ok(Some(Rights {
        user,
        group,
        mode: mode.unwrap_or(if given { 0o660 } else { 0o600 }),
    }))
}

/// The number of a user or group, wherever the system keeps them.
fn number_of(database: &str, what: &str, name: &str) -> Result<u32, Failure> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let none = || Failure::not_found(format!("--owner: there is no {what} '{name}' here"));
    let asked = std::process::Command::new("getent")
        .args([database, "--", name])
        .output();
    let asked = asked
        .map_err(|e| Failure::broken(format!("--owner {name}: getent: {e}; give the number")))?;
    let line = String::from_utf8_lossy(&asked.stdout).into_owned();
    let number = line.split(':').nth(2).and_then(|n| n.trim().parse().ok());
    number.ok_or_else(none)
}

fn list(context: &Context, args: &ArrayListArgs) -> Result<(), Failure> {
    let reply: StatusReply = context.client.call(&Call::Status {
        array: args.array.clone(),
    })?;
    let mut volumes = Vec::new();
    for array in &reply.arrays {
        for volume in &array.volumes {
            volumes.push((array.name.clone(), volume));
        }
    }
    let value = json!({ "volumes": volumes.iter().map(|(array, volume)| {
        let note = reply.note_on(array, &volume.name);
        let mut value = json!(volume);
        value["array"] = json!(array);
        value["thin"] = json!(note.is_some_and(|n| n.thin));
        value["counting"] = json!(note.is_some_and(|n| n.counting));
        value
    }).collect::<Vec<_>>() });
    context.print("volume list", &value, || {
        let n = |bytes: u64| size_or_exact(bytes, args.exact);
        let kind = |array: &str, volume: &str| match reply.note_on(array, volume) {
            Some(note) if note.thin => "thin".to_string(),
            Some(_) => "thick".to_string(),
            None => "-".to_string(),
        };
        let rows = volumes
            .iter()
            .map(|(array, v)| {
                let served: Vec<String> = v
                    .frontends
                    .iter()
                    .map(|f| format!("{} {}", f.kind, safe(&f.address)))
                    .collect();
                let mut row = vec![
                    format!("{}/{}", safe(array), safe(&v.name)),
                    n(v.size_bytes),
                    used_so_far(n(v.used_bytes), reply.note_on(array, &v.name), args.script),
                    n(v.block_bytes),
                    safe(&v.digest),
                    safe(&v.layout),
                    safe(&v.write_cache),
                    if served.is_empty() {
                        "-".to_string()
                    } else {
                        served.join(", ")
                    },
                ];
                if !args.script {
                    row.push(kind(array, &v.name)); // scripts count columns, and have "thin" in -j
                }
                row
            })
            .collect();
        let titles = [
            "VOLUME", "SIZE", "USED", "BLOCK", "DIGEST", "LAYOUT", "CACHE", "ATTACHED", "KIND",
        ];
        table::table(&titles, rows, &[1, 2, 3], args.script)
    })
}

/// What is used; people are told where it is from before the last writes.
fn used_so_far(used: String, note: Option<&VolumeNote>, script: bool) -> String {
    match note {
        Some(note) if note.counting && !script => used + ", counting",
        _ => used,
    }
}
