//! `replace`.
//!
//! **Invariants**: what `-n` prints is what a run of the same line does.

use crate::api::{Call, RemoveReply, Replace, TakenInReply};
use crate::cli::ReplaceArgs;
use crate::command::returning::{ask, named, wait_if};
use crate::command::wait;
use crate::failure::Failure;
use crate::print::Context;
use crate::units::{moving_time, size};
use crate::view::{count, safe};

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
    context.print("replace", &shown, || text(&reply))?;
    let waits = args.wait && !args.dry_run;
    match reply.leaves.is_some() {
        true if waits => wait::wait(context, &args.array, &["rebalance".to_string()]),
        true => Ok(()),
        false => wait_if(context, &args.array, waits),
    }
}

fn text(reply: &TakenInReply) -> String {
    if let Some(old) = &reply.leaves {
        return text_in_use(reply, old);
    }
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
}

/// Where the old device is in use.
fn text_in_use(reply: &TakenInReply, old: &RemoveReply) -> String {
    let (array, index, new) = (&reply.array, reply.device, safe(&reply.path));
    let (leaves, path, moved) = (old.device, safe(&old.path), size(old.moved_bytes));
    let time = moving_time(old.moved_seconds);
    let meanwhile = format!(
        "No redundancy is missing meanwhile: {} may fail, as now. Volumes may be promised {} then, and \
         have been promised {}\n",
        count(usize::from(old.more_losses), "more device"),
        size(old.usable_bytes),
        size(old.promised_bytes)
    );
    match reply.dry_run {
        true => format!(
            "{array}: {new} would be added as device {index}, {moved} would move from device {leaves} ({path}) to it and \
             the others, in {time}, and then device {leaves} would leave\n{meanwhile}Nothing was changed\n"
        ),
        false => format!(
            "{array}: {new} is device {index}; {moved} move from device {leaves} ({path}) to it and the others, in {time}, \
             and then device {leaves} leaves; until then it serves, and 'ashlar online {array} {leaves}' lets it \
             stay\n{meanwhile}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replacement_says_what_moves_and_what_is_at_risk() {
        let mut reply = TakenInReply {
            array: "tank".into(),
            device: 6,
            path: "/dev/sdk".into(),
            kept: 0,
            lacking: 0,
            more_losses: None,
            stays: false,
            leaves: Some(RemoveReply {
                array: "tank".into(),
                device: 5,
                path: "/dev/sdf".into(),
                in_use: true,
                moved_bytes: 3 << 30,
                moved_seconds: 65,
                usable_bytes: 20 << 30,
                promised_bytes: 10 << 30,
                more_losses: 2,
                dry_run: false,
            }),
            dry_run: false,
        };
        let meanwhile = "No redundancy is missing meanwhile: 2 more devices may fail, as now. Volumes may be \
                         promised 20G then, and have been promised 10G\n";
        assert_eq!(
            text(&reply),
            format!(
                "tank: /dev/sdk is device 6; 3G move from device 5 (/dev/sdf) to it and the others, in about \
                 1m05s at 50 MB/s a device, and then device 5 leaves; until then it serves, and 'ashlar online tank 5' \
                 lets it stay\n{meanwhile}"
            )
        );
        reply.dry_run = true;
        assert_eq!(
            text(&reply),
            format!(
                "tank: /dev/sdk would be added as device 6, 3G would move from device 5 (/dev/sdf) to it and the \
                 others, in about 1m05s at 50 MB/s a device, and then device 5 would leave\n{meanwhile}Nothing was changed\n"
            )
        );
        (reply.leaves, reply.dry_run) = (None, false);
        assert_eq!(
            text(&reply),
            "tank: /dev/sdk takes the place of device 6, and its data is rebuilt; 'ashlar status tank' shows the \
             rebuild\n"
        );
    }
}
