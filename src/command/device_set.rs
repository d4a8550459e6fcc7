//! `device set`.
//!
//! **Invariants**: what it prints is what has been done.

use crate::api::{Call, DeviceSet, DeviceSetReply};
use crate::cli::DeviceSetArgs;
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
    let sized = key == "size";
    let call = Call::DeviceSet(DeviceSet {
        array: args.array,
        device: named(&args.device),
        key,
        value,
    });
    let (reply, shown): (DeviceSetReply, _) = ask(context, &call)?;
    context.print("device set", &shown, || match sized {
        true => size_text(&reply),
        false => domain_text(&reply),
    })
}

fn size_text(reply: &DeviceSetReply) -> String {
    let (array, device, path) = (safe(&reply.array), reply.device, safe(&reply.path));
    let (now, was) = (size(reply.size_bytes), size(reply.was_bytes));
    let (usable, before) = (size(reply.usable_bytes), size(reply.usable_before));
    format!(
        "{array}: all {now} of device {device} ({path}) are used, {was} before\nVolumes may be promised {usable} in all, \
         {before} before. What moves to it moves by itself: 'ashlar wait {array} --for rebalance' waits for that\n"
    )
}

fn domain_text(reply: &DeviceSetReply) -> String {
    let (array, device, path) = (safe(&reply.array), reply.device, safe(&reply.path));
    let named = |label: &str| match label {
        "" => "one of its own".to_string(),
        label => format!("'{}'", safe(label)),
    };
    let (now, was) = (named(&reply.domain), named(&reply.was_domain));
    if now == was {
        return format!(
            "{array}: device {device} ({path}) is in failure domain {now}, as before\n"
        );
    }
    let (usable, before) = (size(reply.usable_bytes), size(reply.usable_before));
    format!(
        "{array}: device {device} ({path}) is in failure domain {now}, and was in {was}\nVolumes may be promised {usable} \
         in all, {before} before. What has to lie elsewhere moves by itself: 'ashlar wait {array} --for rebalance' waits \
         for that\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_is_told_with_what_follows() {
        let mut reply = DeviceSetReply {
            array: "tank".into(),
            device: 3,
            path: "/dev/sdd".into(),
            was_bytes: 1 << 40,
            size_bytes: 2 << 40,
            was_domain: String::new(),
            domain: String::new(),
            usable_before: 6 << 40,
            usable_bytes: 7 << 40,
        };
        assert_eq!(
            size_text(&reply),
            "tank: all 2T of device 3 (/dev/sdd) are used, 1T before\nVolumes may be promised 7T in all, 6T before. What \
             moves to it moves by itself: 'ashlar wait tank --for rebalance' waits for that\n"
        );
        assert!(domain_text(&reply).contains("domain one of its own, as before"));
        reply.domain = "shelf 2".into();
        let text = domain_text(&reply);
        assert!(text.starts_with(
            "tank: device 3 (/dev/sdd) is in failure domain 'shelf 2', and was in one of its own\n"
        ));
    }
}
