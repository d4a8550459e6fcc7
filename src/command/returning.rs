//! `offline`, `online`, `replace`.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api::{Call, Replace, TakenInReply};
use crate::cli::{OfflineArgs, OnlineArgs, ReplaceArgs};
use crate::command::wait;
use crate::failure::{Failure, Kind};
use crate::print::{Context, absolute};
use crate::view::safe;

/// A path that exists is meant as a path; anything else as the daemon knows the device.
pub(crate) fn named(device: &str) -> String {
    match absolute(device.as_ref()) {
        Ok(path) if std::path::Path::new(&path).exists() => path,
        _ => device.to_string(),
    }
}

pub(super) fn ask<T: DeserializeOwned>(
    context: &Context,
    call: &Call,
) -> Result<(T, Value), Failure> {
    let value: Value = context.client.call_value(call)?;
    let broken = |e: serde_json::Error| {
        Failure::of_kind(
            Kind::Broken,
            format!("the daemon's answer is not understood: {e}"),
        )
    };
    let reply = serde_json::from_value(value.clone()).map_err(broken)?;
    Ok((reply, value))
}

/// `offline`.
///
/// # Errors
/// If the device is unknown, or data would be left without a copy.
pub(crate) fn offline(context: &Context, args: OfflineArgs) -> Result<(), Failure> {
    let call = Call::Offline {
        array: args.array,
        device: named(&args.device),
    };
    let (reply, shown): (TakenInReply, _) = ask(context, &call)?;
    context.print("offline", &shown, || {
        format!(
            "{0}: device {1} ({2}) is offline; its data is not rebuilt. 'ashlar online {0} {1}' takes it in again, \
             'ashlar fail {0} {1}' has its data rebuilt\n",
            reply.array,
            reply.device,
            safe(&reply.path)
        )
    })
}

/// `online`.
///
/// # Errors
/// Why the device is not taken in.
pub(crate) fn online(context: &Context, args: OnlineArgs) -> Result<(), Failure> {
    let call = Call::Online {
        array: args.array.clone(),
        device: named(&args.device),
        force: args.force,
    };
    let (reply, shown): (TakenInReply, _) = ask(context, &call)?;
    context.print("online", &shown, || match reply.stays {
        true => format!(
            "{}: device {} ({}) stays in the array\n",
            reply.array,
            reply.device,
            safe(&reply.path)
        ),
        false => format!(
            "{0}: device {1} ({2}) is in use again: {3} of its columns count, {4} are rebuilt; 'ashlar status {0}' \
             shows it\n",
            reply.array,
            reply.device,
            safe(&reply.path),
            reply.kept,
            reply.lacking
        ),
    })?;
    wait_if(context, &args.array, args.wait)
}

/// `replace`.
///
/// # Errors
/// What stands against it.
pub(crate) fn replace(context: &Context, args: ReplaceArgs) -> Result<(), Failure> {
    let new = args.new.as_deref().map(named);
    let call = Call::Replace(Replace {
        array: args.array.clone(),
        old: named(&args.old),
        new,
        dry_run: args.dry_run,
        force: args.force,
    });
    let (reply, shown): (TakenInReply, _) = ask(context, &call)?;
    context.print("replace", &shown, || {
        let does = match reply.dry_run {
            true => "would take the place of",
            false => "takes the place of",
        };
        let next = match reply.dry_run {
            true => "; nothing was changed".to_string(),
            false => format!("; 'ashlar status {}' shows the rebuild", reply.array),
        };
        format!(
            "{}: {} {does} device {}, and its data is rebuilt{next}\n",
            reply.array,
            safe(&reply.path),
            reply.device
        )
    })?;
    wait_if(context, &args.array, args.wait && !args.dry_run)
}

fn wait_if(context: &Context, array: &str, wanted: bool) -> Result<(), Failure> {
    match wanted {
        true => wait::wait(context, array, &["reconstruct".to_string()]),
        false => Ok(()),
    }
}
