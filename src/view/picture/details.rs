//! What `status -v` adds: the engine's figures, and a line for every device.
//!
//! **Invariants**: one line for each device.

use std::fmt::Write;

use ashlar_engine::status::ArrayStatus;

use super::parts::{More, label, labelled};
use crate::api::Reserved;
use crate::units::size_or_exact;
use crate::view::{Style, count, safe, table};

pub(super) fn details(array: &ArrayStatus, style: Style, more: &More<'_>) -> String {
    let n = |bytes: u64| size_or_exact(bytes, style.exact);
    let mut out = String::new();
    for (name, text) in figures(array, style, more) {
        out += &labelled(name, &text, style, None);
    }
    for exposure in array.exposure.iter().filter(|e| e.bytes > 0) {
        let _ = writeln!(
            out,
            "{}{} survives {}",
            label("exposure"),
            n(exposure.bytes),
            count(usize::from(exposure.redundancy), "more device failure")
        );
    }
    if array.unreadable_bytes > 0 {
        let _ = writeln!(
            out,
            "{}{} cannot be read without devices that are out of use",
            label("exposure"),
            n(array.unreadable_bytes)
        );
    }
    out + &device_table(array, style, more)
}

/// The engine's figures, each under its name.
fn figures(array: &ArrayStatus, style: Style, more: &More<'_>) -> [(&'static str, String); 9] {
    let n = |bytes: u64| size_or_exact(bytes, style.exact);
    let wa = array
        .clean
        .write_amplification
        .map_or("-".to_string(), |wa| format!("{wa:.2}"));
    [
        (
            "uuid",
            format!("{}, generation {}", array.uuid, array.generation),
        ),
        (
            "geometry",
            format!(
                "strip {}, slot {}",
                n(array.strip_bytes),
                n(array.slot_bytes)
            ),
        ),
        (
            "raw",
            format!(
                "{} = {} usable + {} parity + {} spare + {} reserved",
                n(array.capacity.raw_bytes),
                n(array.capacity.usable_bytes),
                n(array.capacity.parity_bytes),
                n(array.capacity.spare_bytes),
                n(array.capacity.reserved_bytes)
            ),
        ),
        (
            "reserved",
            reserved_text(more.reserved, style)
                .unwrap_or_else(|| "metadata, journal and cleaning".to_string()),
        ),
        (
            "clean",
            format!(
                "write amplification {wa}, {} slots free, {} in reserve",
                array.clean.free_slots, array.clean.reserve_slots
            ),
        ),
        (
            "map",
            format!(
                "{}, {} cached",
                n(array.map.bytes),
                n(array.map.cached_bytes)
            ),
        ),
        (
            "journal",
            format!(
                "{} of {} used on {}",
                n(array.journal.used_bytes),
                n(array.journal.bytes),
                count(
                    usize::try_from(array.journal.devices).unwrap_or(usize::MAX),
                    "device"
                )
            ),
        ),
        (
            "memory",
            format!(
                "{} of {}",
                n(array.memory.used_bytes),
                n(array.memory.limit_bytes)
            ),
        ),
        (
            "computes",
            format!(
                "{}: {}",
                safe(&array.accelerator.chosen),
                safe(&array.accelerator.reason)
            ),
        ),
    ]
}

/// What the reserved space is for.
pub(crate) fn reserved_text(reserved: Option<&Reserved>, style: Style) -> Option<String> {
    let n = |bytes: u64| size_or_exact(bytes, style.exact);
    reserved.map(|r| {
        format!(
            "{} journal, about {} cleaning, {} metadata and recovery",
            n(r.journal_bytes),
            n(r.cleaning_bytes),
            n(r.metadata_bytes)
        )
    })
}

/// A line for each device, however wide: what is searched for with `grep` stands on one line. Traffic is left out
/// where that makes it fit.
fn device_table(array: &ArrayStatus, style: Style, more: &More<'_>) -> String {
    let n = |bytes: u64| size_or_exact(bytes, style.exact);
    let titles = [
        "#", "state", "size", "used", "read", "written", "rd", "wr", "digest", "device", "",
    ];
    let mut rows = vec![titles.map(str::to_string).to_vec()];
    for d in &array.devices {
        let state = format!("{:?}", d.state).to_lowercase();
        let path = match (d.path.as_str(), d.last_path.as_str()) {
            ("", "") => "-".to_string(),
            ("", last) => format!("last at {}", safe(last)),
            (path, _) => safe(path),
        };
        let domain = if d.domain.is_empty() {
            String::new()
        } else {
            format!(" [{}]", safe(&d.domain))
        };
        rows.push(vec![
            d.index.to_string(),
            state,
            n(d.size_bytes),
            n(d.used_bytes),
            n(d.read_bytes),
            n(d.written_bytes),
            d.errors.read.to_string(),
            d.errors.write.to_string(),
            d.errors.digest.to_string(),
            path + &domain,
            more.drive(&array.name, d.index)
                .map_or(String::new(), |drive| safe(&drive.words_and_warnings())),
        ]);
    }
    let fits = |lines: &[String]| {
        lines
            .iter()
            .all(|line| 2 + line.chars().count() <= style.width)
    };
    let mut lines = table::columns(&rows, &[0, 2, 3, 4, 5, 6, 7, 8]);
    if !fits(&lines) {
        for row in &mut rows {
            row.drain(4..6);
        }
        lines = table::columns(&rows, &[0, 2, 3, 4, 5, 6]);
    }
    lines.iter().map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{DeviceHardware, Hardware, Health, Warning};
    use crate::view::tests::sample;
    use ashlar_engine::status::DeviceState;

    #[test]
    fn each_of_84_devices_has_one_line_whatever_its_path() {
        let mut array = sample(&[DeviceState::Online; 84]);
        for device in &mut array.devices {
            device.path = format!(
                "/dev/disk/by-path/pci-0000:5e:00.0-sas-exp0x500304801ea4b23f-phy{}-lun-0",
                device.index
            );
            device.domain = "shelf-1".to_string();
        }
        let table = device_table(&array, Style::PLAIN, &More::default());
        assert_eq!(table.lines().count(), 85);
        let line = table.lines().find(|l| l.contains("-phy41-")).unwrap_or("");
        assert!(line.trim_start().starts_with("41  online"), "{line}");
        assert!(line.ends_with("[shelf-1]"), "{line}");
        assert!(!table.contains("written"), "{table}");
        for device in &mut array.devices {
            device.path = "/dev/sdb".to_string();
        }
        assert!(device_table(&array, Style::PLAIN, &More::default()).contains("written"));
        let hardware = [DeviceHardware {
            array: "tank".to_string(),
            index: 41,
            hardware: Hardware {
                model: Some("SEAGATE ST16000NM002G".to_string()),
                serial: Some("ZL2ABCDE".to_string()),
                slot: Some("Slot 07".to_string()),
                celsius: Some(33),
                health: Some(Health {
                    warnings: vec![Warning {
                        kind: "unreadable-sectors".to_string(),
                        text: "8 unreadable sectors".to_string(),
                    }],
                    ..Health::default()
                }),
            },
        }];
        let more = More {
            hardware: &hardware,
            ..More::default()
        };
        let table = device_table(&array, Style::PLAIN, &more);
        let line = table.lines().find(|l| l.contains("ZL2ABCDE")).unwrap_or("");
        assert!(line.trim_start().starts_with("41  online"), "{table}");
        assert!(
            line.ends_with("the drive reports: 8 unreadable sectors"),
            "{line}"
        );
        // What it warns of calls for somebody, with what can be done.
        let said = crate::view::advice::of_drives(&array, &hardware);
        let expected =
            "the drive of device 41 (/dev/sdb) reports: 8 unreadable sectors: free space allows";
        assert!(said[0].starts_with(expected), "{said:?}");
        array.devices[41].state = DeviceState::Missing;
        assert!(crate::view::advice::of_drives(&array, &hardware).is_empty());
        // Without more being asked for, a device that somebody may look for is named all the same.
        array.devices[41].state = DeviceState::Failed;
        let text = crate::view::picture::picture(&array, Style::PLAIN, &more);
        let drive = "drives   device 41: SEAGATE ST16000NM002G, serial ZL2ABCDE, slot Slot 07";
        assert!(text.contains(drive), "{text}");
    }
}
