//! `device set`.
//!
//! **Invariants**: what it prints is what has been done.

use crate::api::{Call, DeviceSet, DeviceSetReply};
use crate::cli::{DeviceSetArgs, absent};
use crate::command::returning::{ask, named};
use crate::failure::Failure;
use crate::print::Context;
use crate::units::size;
use crate::view::safe;

/// `device set`.
///
/// # Errors
/// Why it cannot be set.
pub(crate) fn set(context: &Context, args: DeviceSetArgs) -> Result<(), Failure> {
    let (key, value) = args.pair;
    absent::check_device_setting(&key)?;
    let call = Call::DeviceSet(DeviceSet {
        array: args.array,
        device: named(&args.device),
        key,
        value,
    });
    let (reply, shown): (DeviceSetReply, _) = ask(context, &call)?;
    context.print("device set", &shown, || text(&reply))
}

fn text(reply: &DeviceSetReply) -> String {
    let (array, device, path) = (safe(&reply.array), reply.device, safe(&reply.path));
    let (now, was) = (size(reply.size_bytes), size(reply.was_bytes));
    let (usable, before) = (size(reply.usable_bytes), size(reply.usable_before));
    format!(
        "{array}: all {now} of device {device} ({path}) are used, {was} before\nVolumes may be promised {usable} in all, \
         {before} before. What moves to it moves by itself: 'ashlar wait {array} --for rebalance' waits for that\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_has_grown_is_told_with_what_it_gives() {
        let reply = DeviceSetReply {
            array: "tank".into(),
            device: 3,
            path: "/dev/sdd".into(),
            was_bytes: 1 << 40,
            size_bytes: 2 << 40,
            usable_before: 6 << 40,
            usable_bytes: 7 << 40,
        };
        assert_eq!(
            text(&reply),
            "tank: all 2T of device 3 (/dev/sdd) are used, 1T before\nVolumes may be promised 7T in all, 6T before. What \
             moves to it moves by itself: 'ashlar wait tank --for rebalance' waits for that\n"
        );
    }
}
