//! `remove`.
//!
//! **Invariants**: what `-n` prints is what a run of the same line does.

use crate::api::{Call, Remove, RemoveReply};
use crate::cli::RemoveArgs;
use crate::command::returning::{ask, named};
use crate::command::wait;
use crate::failure::Failure;
use crate::print::Context;
use crate::units::{moving_time, size};
use crate::view::{count, safe};

/// `remove`.
///
/// # Errors
/// Why the array cannot do without the device.
pub(crate) fn remove(context: &Context, args: RemoveArgs) -> Result<(), Failure> {
    let call = Call::Remove(Remove {
        array: args.array.clone(),
        device: named(&args.device),
        dry_run: args.dry_run,
    });
    let (reply, shown): (RemoveReply, _) = ask(context, &call)?;
    context.print("remove", &shown, || text(&reply))?;
    match args.wait && !args.dry_run && reply.in_use {
        true => wait::wait(context, &args.array, &["rebalance".to_string()]),
        false => Ok(()),
    }
}

fn text(reply: &RemoveReply) -> String {
    let (array, device, path) = (&reply.array, reply.device, safe(&reply.path));
    let done = match (reply.in_use, reply.dry_run) {
        (true, true) => format!(
            "{array}: {} would move from device {device} ({path}) to the others, in {}, and then it would leave",
            size(reply.moved_bytes),
            moving_time(reply.moved_seconds)
        ),
        (true, false) => format!(
            "{array}: {} move from device {device} ({path}) to the others, in {}, and then it leaves; until then it \
             serves, and 'ashlar online {array} {device}' lets it stay",
            size(reply.moved_bytes),
            moving_time(reply.moved_seconds)
        ),
        (false, true) => {
            format!("{array}: device {device} ({path}) would be taken out of the books")
        }
        (false, false) => {
            format!("{array}: device {device} ({path}) is no device of the array any more")
        }
    };
    let meanwhile = match reply.in_use {
        true => format!(
            "Meanwhile {} may fail, as now. ",
            count(usize::from(reply.more_losses), "more device")
        ),
        false => String::new(),
    };
    let nothing = match reply.dry_run {
        true => "Nothing was changed\n",
        false => "",
    };
    format!(
        "{done}\n{meanwhile}Volumes may be promised {} on the others, and have been promised {}\n{nothing}",
        size(reply.usable_bytes),
        size(reply.promised_bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_says_where_data_go_and_how_to_stay() {
        let mut reply = RemoveReply {
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
        };
        assert_eq!(
            text(&reply),
            "tank: 3G move from device 5 (/dev/sdf) to the others, in about 1m05s at 50 MB/s a device, and then \
             it leaves; until then it serves, and 'ashlar online tank 5' lets it stay\nMeanwhile 2 more devices may \
             fail, as now. Volumes may be promised 20G on the others, and have been promised 10G\n"
        );
        reply.dry_run = true;
        assert!(text(&reply).ends_with("Nothing was changed\n"));
        reply.in_use = false;
        assert!(!text(&reply).contains("may fail"));
    }
}
