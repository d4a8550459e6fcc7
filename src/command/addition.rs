//! `add`.
//!
//! **Invariants**: what `-n` prints is what a run of the same line does.

use crate::api::{Add, AddReply, Call};
use crate::cli::{AddArgs, absent};
use crate::command::domains;
use crate::command::returning::ask;
use crate::failure::Failure;
use crate::print::{Context, absolute};
use crate::units::{moving_time, size};
use crate::view::safe;

/// `add`.
///
/// # Errors
/// Why the array cannot take the devices.
pub(crate) fn add(context: &Context, args: AddArgs) -> Result<(), Failure> {
    for device in &args.devices {
        absent::check_device(device)?;
    }
    let devices = args.devices.iter().map(|path| absolute(path));
    let call = Call::Add(Add {
        array: args.array,
        devices: devices.collect::<Result<_, Failure>>()?,
        domains: domains::given(&args.domain)?,
        hot_spare: args.hot_spare,
        dry_run: args.dry_run,
        force: args.force,
    });
    let (reply, shown): (AddReply, _) = ask(context, &call)?;
    context.print("add", &shown, || text(&reply))
}

fn text(reply: &AddReply) -> String {
    let array = &reply.array;
    let paths: Vec<String> = reply
        .paths
        .iter()
        .map(|path| safe(path).to_string())
        .collect();
    let space = |is: &str| {
        let (now, before) = (size(reply.usable_bytes), size(reply.usable_before));
        format!("Volumes {is} promised {now} in all, {before} without\n")
    };
    if reply.hot_spare {
        return spares(reply, &paths);
    }
    let (moved, time) = (size(reply.moved_bytes), moving_time(reply.moved_seconds));
    if reply.dry_run {
        let moves = match reply.moved_bytes {
            0 => String::new(),
            _ => format!("{moved} of what is there would move to them, in {time}\n"),
        };
        return format!(
            "{array}: {} would be added\n{}{moves}Nothing was changed\n",
            paths.join(", "),
            space("could be")
        );
    }
    let moves = match reply.moved_bytes {
        0 => "New data lie on all devices".to_string(),
        _ => format!(
            "{moved} of what is there move to them, in {time}: 'ashlar wait {array} --for rebalance' waits for that"
        ),
    };
    let added = reply.devices.iter().zip(&paths);
    let added: String = added
        .map(|(index, path)| format!("{array}: {path} is device {index}\n"))
        .collect();
    format!("{added}{}{moves}\n", space("may be"))
}

/// What is said of hot spares.
fn spares(reply: &AddReply, paths: &[String]) -> String {
    let array = &reply.array;
    if reply.dry_run {
        return format!(
            "{array}: {} would be added as hot spares\nNothing was changed\n",
            paths.join(", ")
        );
    }
    let added = reply.devices.iter().zip(paths);
    let added: String = added
        .map(|(index, path)| format!("{array}: {path} is hot spare {index}\n"))
        .collect();
    format!("{added}The smallest that is large enough takes the place of a device that is lost\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_addition_says_what_it_gives() {
        let mut reply = AddReply {
            array: "tank".into(),
            devices: vec![],
            paths: vec!["/dev/sdk".into(), "/dev/sdl".into()],
            usable_before: 20 << 30,
            usable_bytes: 30 << 30,
            moved_bytes: 5 << 30,
            moved_seconds: 54,
            hot_spare: false,
            dry_run: true,
        };
        assert_eq!(
            text(&reply),
            "tank: /dev/sdk, /dev/sdl would be added\nVolumes could be promised 30G in all, 20G without\n5G of what is \
             there would move to them, in about 54s at 50 MB/s a device\nNothing was changed\n"
        );
        (reply.dry_run, reply.devices) = (false, vec![5, 6]);
        assert_eq!(
            text(&reply),
            "tank: /dev/sdk is device 5\ntank: /dev/sdl is device 6\nVolumes may be promised 30G in all, 20G \
             without\n5G of what is there move to them, in about 54s at 50 MB/s a device: 'ashlar wait tank --for \
             rebalance' waits for that\n"
        );
        reply.moved_bytes = 0;
        assert!(text(&reply).ends_with("\nNew data lie on all devices\n"));
        reply.hot_spare = true;
        assert!(text(&reply).starts_with("tank: /dev/sdk is hot spare 5\n"));
    }
}
