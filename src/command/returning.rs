//! `offline`, `online`.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api::{Call, TakenInReply};
use crate::cli::{OfflineArgs, OnlineArgs};
use crate::command::wait;
use crate::failure::{Failure, Kind};
use crate::print::{Context, absolute};
use crate::view::{count, safe};

/// A device as the daemon knows it. What looks like no index and no UUID is a path, also where nothing is there any more.
pub(crate) fn named(device: &str) -> String {
    let Ok(path) = absolute(device.as_ref()) else {
        return device.to_string();
    };
    let known_otherwise = device.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    let full = Path::new(&path);
    match (full.exists(), known_otherwise) {
        (true, _) => path,
        (false, true) => device.to_string(),
        // The daemon has the path without links in it.
        (false, false) => {
            let folder = full.parent().and_then(|dir| dir.canonicalize().ok());
            let there = folder.zip(full.file_name());
            let there = there.and_then(|(dir, name)| Some(dir.join(name).to_str()?.to_string()));
            there.unwrap_or(path)
        }
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
        let risk = match reply.more_losses {
            None => String::new(),
            Some(0) => "At risk, CRITICAL: the next device failure loses data\n".to_string(),
            Some(more) => format!(
                "Meanwhile any {} may fail\n",
                count(usize::from(more), "more device")
            ),
        };
        format!(
            "{0}: device {1} ({2}) is offline; its data is not rebuilt. 'ashlar online {0} {1}' takes it in again, \
             'ashlar fail {0} {1}' has its data rebuilt\n{risk}",
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_device_whose_file_is_gone_is_named_by_its_path() {
        let here = std::env::current_dir().unwrap().canonicalize().unwrap();
        let path = here.join("no-such.img");
        assert_eq!(named("no-such.img"), path.to_str().unwrap());
        assert_eq!(named("./src/../no-such.img"), path.to_str().unwrap());
        for known in ["7", "03c76f3c-5d61-fe81-3b1b-916a4802b2f1"] {
            assert_eq!(named(known), known);
        }
    }
}
