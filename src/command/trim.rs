//! `trim`.
//!
//! **Invariants**: one line says how much each device has discarded; one more for each reason why some of the free
//! space is left, with the devices and what to do.

use crate::api::{Call, TrimDevice, TrimLeft, TrimReply};
use crate::command::returning::ask;
use crate::failure::Failure;
use crate::print::Context;
use crate::units::size;
use crate::view::safe;

/// `trim`.
///
/// # Errors
/// If the array is only read, has stopped, or is being trimmed.
pub(crate) fn trim(context: &Context, array: String) -> Result<(), Failure> {
    let (reply, shown): (TrimReply, _) = ask(context, &Call::Trim { array })?;
    context.print("trim", &shown, || text(&reply))
}

fn named<'a>(devices: impl Iterator<Item = &'a TrimDevice>) -> String {
    let names = devices.map(|d| format!("{} ({})", d.device, safe(&d.path)));
    names.collect::<Vec<_>>().join(", ")
}

fn text(reply: &TrimReply) -> String {
    let array = safe(&reply.array);
    let discard = |d: &&TrimDevice| d.left != Some(TrimLeft::NoDiscard);
    let each = reply.devices.iter().filter(discard);
    let each = each.map(|d| format!("device {} {}", d.device, size(d.discarded_bytes)));
    let each = each.collect::<Vec<_>>().join(", ");
    let mut out = match each.as_str() {
        "" => format!("{array}: nothing to discard"),
        each => format!(
            "{array}: {} of free space discarded: {each}",
            size(reply.discarded_bytes)
        ),
    };
    let left = |why| reply.devices.iter().filter(move |d| d.left == Some(why));
    if left(TrimLeft::NoDiscard).count() > 0 {
        out += &format!(
            "; these cannot discard: {}",
            named(left(TrimLeft::NoDiscard))
        );
    }
    out.push('\n');
    for device in left(TrimLeft::Failed) {
        out += &format!(
            "Device {} ({}) failed to discard and was told no more: {}; 'ashlar set {array} discard=off' ends discards\n",
            device.device,
            safe(&device.path),
            device.fault
        );
    }
    if left(TrimLeft::Space).count() > 0 {
        out += &format!(
            "Left on {}: the array is short of space, or writes are paused; see 'ashlar status', then trim again\n",
            named(left(TrimLeft::Space))
        );
    }
    if left(TrimLeft::Ended).count() > 0 {
        out += &format!(
            "Left on {}: the device was taken out, or the array was exported or stopped\n",
            named(left(TrimLeft::Ended))
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(device: u16, discarded_bytes: u64, left: Option<TrimLeft>) -> TrimDevice {
        TrimDevice {
            device,
            path: format!("/dev/sd{device}"),
            discarded_bytes,
            left,
            fault: "it does not answer in time".to_string(),
        }
    }

    fn said(devices: Vec<TrimDevice>) -> String {
        text(&TrimReply {
            array: "tank".into(),
            discarded_bytes: devices.iter().map(|d| d.discarded_bytes).sum(),
            devices,
        })
    }

    #[test]
    fn a_trim_says_what_was_discarded_and_what_was_not() {
        assert_eq!(
            said(vec![device(0, 2 << 30, None), device(1, 1 << 30, None)]),
            "tank: 3G of free space discarded: device 0 2G, device 1 1G\n"
        );
        let none = || device(3, 0, Some(TrimLeft::NoDiscard));
        assert_eq!(
            said(vec![device(0, 1 << 30, None), none()]),
            "tank: 1G of free space discarded: device 0 1G; these cannot discard: 3 (/dev/sd3)\n"
        );
        assert_eq!(
            said(vec![none()]),
            "tank: nothing to discard; these cannot discard: 3 (/dev/sd3)\n"
        );
        let all = said(vec![
            device(0, 1 << 20, Some(TrimLeft::Failed)),
            device(1, 0, Some(TrimLeft::Space)),
            device(2, 0, Some(TrimLeft::Ended)),
        ]);
        for words in [
            "device 0 1M, device 1 0",
            "\nDevice 0 (/dev/sd0) failed to discard and was told no more: it does not answer in time; 'ashlar set",
            "\nLeft on 1 (/dev/sd1): the array is short of space",
            "\nLeft on 2 (/dev/sd2): the device was taken out",
        ] {
            assert!(all.contains(words), "{words}: {all}");
        }
    }
}
