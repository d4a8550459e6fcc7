//! `offline`, `online`.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api::{Call, TakenInReply};
use crate::cli::{OfflineArgs, OnlineArgs};
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

pub(super) fn wait_if(context: &Context, array: &str, wanted: bool) -> Result<(), Failure> {
    match wanted {
        true => wait::wait(context, array, &["reconstruct".to_string()]),
        false => Ok(()),
    }
}
