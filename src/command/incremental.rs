//! `import --incremental`.
//!
//! **Invariants**: a line of `--export` is `ASHLAR_KEY=VALUE` with nothing to quote in it, as udev reads it.

use std::path::Path;

use crate::api::{Call, IncrementalReply, Started};
use crate::failure::Failure;
use crate::print::{Context, absolute};
use crate::view::safe;

/// `import --incremental`.
///
/// # Errors
/// If the device is of no array, or its array does not take it.
pub(crate) fn incremental(context: &Context, device: &Path, export: bool) -> Result<(), Failure> {
    let device = absolute(device)?;
    let reply: IncrementalReply = context.client.call(&Call::Incremental { device })?;
    for warning in &reply.warnings {
        eprintln!("ashlar: warning: {}", safe(warning));
    }
    context.print("import", &reply, || match export {
        true => for_udev(&reply),
        false => text(&reply),
    })
}

fn text(reply: &IncrementalReply) -> String {
    let (array, device, path) = (safe(&reply.array), reply.device, safe(&reply.path));
    let (here, counted) = (reply.here, reply.counted);
    match reply.started {
        Started::Yes => format!("{array}: imported, {here} of {counted} devices are here\n"),
        Started::Already if reply.joined => {
            format!("{array}: device {device} ({path}) is in use again\n")
        }
        Started::Already => format!("{array}: device {device} ({path}) is in use already\n"),
        Started::No => {
            let why = match reply.reason.as_str() {
                "" => format!("'ashlar import {array}' starts it without the others if it may"),
                reason => safe(reason),
            };
            format!("{array}: waiting: {here} of {counted} devices are here; {why}\n")
        }
    }
}

fn for_udev(reply: &IncrementalReply) -> String {
    let started = match reply.started {
        Started::Yes => "yes",
        Started::No => "no",
        Started::Already => "already",
    };
    let joined = if reply.joined { "yes" } else { "no" };
    format!(
        "ASHLAR_ARRAY={}\nASHLAR_UUID={}\nASHLAR_DEVICE={}\nASHLAR_STARTED={started}\nASHLAR_JOINED={joined}\n\
         ASHLAR_HERE={}\nASHLAR_COUNTED={}\n",
        safe(&reply.array),
        safe(&reply.uuid),
        reply.device,
        reply.here,
        reply.counted
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_became_of_a_device_is_said_to_people_and_to_udev() {
        let mut reply = IncrementalReply {
            array: "tank".into(),
            uuid: "u".into(),
            device: 3,
            path: "/dev/sdd".into(),
            started: Started::No,
            joined: false,
            here: 3,
            counted: 5,
            reason: String::new(),
            warnings: Vec::new(),
        };
        let said = text(&reply);
        assert!(said.starts_with("tank: waiting: 3 of 5 devices are here; 'ashlar import tank'"));
        assert_eq!(
            for_udev(&reply),
            "ASHLAR_ARRAY=tank\nASHLAR_UUID=u\nASHLAR_DEVICE=3\nASHLAR_STARTED=no\nASHLAR_JOINED=no\nASHLAR_HERE=3\n\
             ASHLAR_COUNTED=5\n"
        );
        reply.started = Started::Already;
        assert!(text(&reply).contains("in use already"));
        reply.joined = true;
        assert!(text(&reply).contains("in use again"));
    }
}
