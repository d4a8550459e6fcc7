//! The picture, the advice and mdstat of sample arrays.
#![allow(clippy::unwrap_used, reason = "tests")]

use ashlar_engine::status::*;

use super::advice::advice;
use super::mdstat::mdstat;
use super::picture::{More, picture};
use super::{Style, Tone};

/// A device at a path of its own, or at none where it is missing.
pub(crate) fn device(index: u16, state: DeviceState) -> DeviceStatus {
    DeviceStatus {
        index,
        uuid: format!("uuid-{index}"),
        path: if state == DeviceState::Missing {
            String::new()
        } else {
            format!("/dev/sd{index}")
        },
        last_path: String::new(),
        storage: String::new(),
        size_bytes: 1 << 30,
        domain: String::new(),
        state,
        errors: DeviceErrors::default(),
        used_bytes: 0,
        read_bytes: 0,
        written_bytes: 0,
    }
}

pub(super) fn sample(states: &[DeviceState]) -> ArrayStatus {
    let devices: Vec<DeviceStatus> = (0u16..)
        .zip(states)
        .map(|(i, state)| device(i, *state))
        .collect();
    let gone = devices.iter().filter(|d| {
        use DeviceState::{Failed, Missing, Offline};
        matches!(d.state, Failed | Missing | Offline)
    });
    let gone = gone.count();
    ArrayStatus {
        name: "tank".into(),
        uuid: "u".into(),
        state: ArrayState::Optimal,
        health: Health {
            devices_gone: u16::try_from(gone).unwrap(),
            more_losses: 3,
            reconstructs: 3 - u16::try_from(gone.min(3)).unwrap(),
            survives_domain: None,
        },
        attention: Vec::new(),
        service: Service::Full,
        generation: 1,
        layout: "ec8+3".into(),
        k: 8,
        m: 3,
        devices_total: u16::try_from(devices.len()).unwrap(),
        spare: 1,
        strip_bytes: 65_536,
        slot_bytes: 1 << 20,
        capacity: Capacity {
            raw_bytes: 14 << 30,
            usable_bytes: 8 << 30,
            used_bytes: 2 << 30,
            free_bytes: 6 << 30,
            ..Capacity::default()
        },
        clean: Clean::default(),
        map: MapStatus::default(),
        journal: JournalStatus::default(),
        memory: MemoryStatus::default(),
        accelerator: Accelerator {
            chosen: "cpu".into(),
            reason: "only one".into(),
            fault: None,
        },
        exposure: vec![Exposure {
            redundancy: 3,
            bytes: 2 << 30,
        }],
        devices,
        tasks: Vec::new(),
        volumes: Vec::new(),
        lost: Vec::new(),
        scrub: None,
        unreadable_bytes: 0,
    }
}

fn verbose() -> More<'static> {
    More {
        verbose: true,
        ..More::default()
    }
}

fn fourteen(bad: &[(usize, DeviceState)]) -> Vec<DeviceState> {
    let mut states = vec![DeviceState::Online; 14];
    for (index, state) in bad {
        states[*index] = *state;
    }
    states
}

#[test]
fn an_optimal_array_needs_four_lines_and_no_advice() {
    let array = sample(&fourteen(&[]));
    assert!(advice(&array).is_empty());
    let text = picture(&array, Style::PLAIN, &More::default());
    assert_eq!(
        text,
        "tank  OPTIMAL   ec8+3 on 14 devices, 1 spare\n\
         \x20 space    [######------------------]  2G of 8G used (25 %), 6G free\n\
         \x20 devices  UUUUUUUUUU UUUU   14 online\n"
    );
}

#[test]
fn a_volume_says_that_it_is_thin_and_that_it_is_being_counted() {
    let mut array = sample(&fourteen(&[]));
    let volume = serde_json::json!({
        "name": "vm", "size_bytes": 5u64 << 30, "used_bytes": 1 << 20, "block_bytes": 4096,
        "digest": "blake3", "compress": "off", "layout": "ec8+3", "write_cache": "auto",
        "frontends": [],
        "host": {"reads": 0, "writes": 0, "flushes": 0, "read_bytes": 0, "written_bytes": 0},
    });
    array.volumes = vec![serde_json::from_value(volume).unwrap()];
    let line = |thin, counting| {
        let volumes = [crate::api::VolumeNote {
            array: "tank".into(),
            volume: "vm".into(),
            thin,
            counting,
        }];
        let more = More {
            volumes: &volumes,
            ..More::default()
        };
        let text = picture(&array, Style::PLAIN, &more);
        let line = text.lines().find(|l| l.contains("volumes")).unwrap_or("");
        line.to_string()
    };
    assert!(line(false, false).contains("vm  5G  1M used  not attached"));
    assert!(line(true, false).contains("1M used, thin  not attached"));
    assert!(line(true, true).contains("1M used, thin, counting  not attached"));
}

#[test]
fn a_degraded_array_says_which_device_and_what_happens() {
    let mut array = sample(&fourteen(&[
        (4, DeviceState::Failed),
        (12, DeviceState::Missing),
    ]));
    array.state = ArrayState::Degraded;
    array.exposure = vec![
        Exposure {
            redundancy: 3,
            bytes: 1 << 30,
        },
        Exposure {
            redundancy: 1,
            bytes: 1 << 30,
        },
    ];
    array.tasks = vec![TaskStatus {
        id: 1,
        kind: "reconstruct".into(),
        state: "running".into(),
        done_bytes: 1 << 28,
        total_bytes: 1 << 30,
        bytes_per_second: 100 << 20,
        eta_seconds: Some(95),
        reason: String::new(),
        found: 0,
        healed: 0,
    }];
    let text = picture(&array, Style::PLAIN, &More::default());
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "DEGRADED",
        "UUUUFUUUUU UU_U 12 online, 1 failed, 1 missing",
        "rebuild [#####------------] 25 % 256M of 1G 100M/s 1m35s left",
        "DEGRADED, 2 out of use",
        "2 of 14 devices are out of use: 4 (/dev/sd4) failed, 12 (uuid uuid-12) missing.",
        "Free space allows 1 more rebuild",
        "of data is degraded: the worst of it survives 1 more device failure, normally 3;",
        "being rebuilt",
    ] {
        assert!(words.contains(part), "no '{part}' in:\n{text}");
    }
    assert!(!text.contains("All data has full redundancy"), "{text}");
    assert_narrow(&text);
    let md = mdstat(std::slice::from_ref(&array));
    for part in [
        "[14/12] [UUUU_UUUUUUU_U]",
        "recovery = 25.0%",
        "finish=1.5min",
        "sd4[4](F)",
    ] {
        assert!(md.contains(part), "no '{part}' in:\n{md}");
    }
}

#[test]
fn every_state_but_optimal_has_advice() {
    for state in [
        ArrayState::Degraded,
        ArrayState::Critical,
        ArrayState::Failed,
    ] {
        let mut array = sample(&fourteen(&[]));
        array.state = state;
        assert!(!advice(&array).is_empty(), "{state:?}");
    }
    for state in [
        DeviceState::Failed,
        DeviceState::Missing,
        DeviceState::Offline,
        DeviceState::Readonly,
        DeviceState::Slow,
    ] {
        assert_eq!(
            advice(&sample(&fourteen(&[(3, state)]))).len(),
            1,
            "{state:?}"
        );
    }
    let mut full = sample(&fourteen(&[]));
    full.capacity.used_bytes = full.capacity.usable_bytes / 100 * 96;
    assert!(advice(&full)[0].contains("full"));
    let mut short = sample(&fourteen(&[(3, DeviceState::Failed)]));
    short.capacity.overpromised = true;
    assert!(advice(&short)[1].contains("promised more"));
    let mut stopped = sample(&fourteen(&[(3, DeviceState::Failed)]));
    stopped.service = Service::Stopped;
    assert!(advice(&stopped)[0].contains("ashlar export tank"));
    let mut waiting = sample(&fourteen(&[]));
    waiting.service = Service::WritesWait;
    assert!(advice(&waiting)[0].contains("ashlar fail tank DEV -f"));
    let mut read_only = sample(&fourteen(&[]));
    read_only.service = Service::ReadOnly;
    assert!(advice(&read_only).is_empty(), "that is what was asked for");
    assert!(picture(&read_only, Style::PLAIN, &More::default()).contains("OPTIMAL, read-only"));
}

/// Nothing but names and paths is wider than the terminal.
fn assert_narrow(text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn an_optimal_array_that_is_not_what_it_was_says_so() {
    let mut array = sample(&fourteen(&[
        (2, DeviceState::Failed),
        (7, DeviceState::Missing),
        (11, DeviceState::Failed),
    ]));
    array.devices[7].last_path = "/dev/disk/by-id/ata-HGST_HUH721212ALN604_8CK4XYZ".into();
    array.devices[5].errors.digest = 412;
    array.devices[6].errors.read = 1;
    assert_eq!(array.state, ArrayState::Optimal);
    let lines = advice(&array);
    assert!(
        lines[0].starts_with("3 of 14 devices are out of use: 2 (/dev/sd2) failed"),
        "{lines:?}"
    );
    assert!(
        lines[0].contains("7 (last at /dev/disk/by-id/ata-HGST"),
        "{lines:?}"
    );
    assert!(
        lines[0].contains("All data has full redundancy again. No device is left"),
        "{lines:?}"
    );
    // With more devices than a stripe is wide it is room that lacks.
    let mut wide = array.clone();
    wide.devices[2].state = DeviceState::Online;
    let said = advice(&wide).join(" ");
    assert!(
        said.contains("There is too little free space to rebuild"),
        "{said}"
    );
    let own = "and there is too little free space to rebuild it: 'ashlar replace tank 5 NEW'";
    assert!(said.contains(own), "{said}");
    assert!(
        lines[1].starts_with("device 5 (/dev/sd5) gave 412 digest errors"),
        "{lines:?}"
    );
    assert!(
        lines[1].contains("and no device is left to rebuild it onto: 'ashlar replace tank 5 NEW'"),
        "{lines:?}"
    );
    assert!(
        lines[2].ends_with(
            "gave 1 read error since the import or 'device clear': few so far: 'ashlar scrub tank start' looks for \
             more; check whether the number grows"
        ),
        "{lines:?}"
    );
    let text = picture(&array, Style::PLAIN, &More::default());
    assert!(
        text.starts_with("tank  OPTIMAL, 3 out of use, 2 with errors   ec8+3"),
        "{text}"
    );
    assert_narrow(&text);
    // With room, what to do about the device is named.
    array.health.reconstructs = 2;
    assert!(advice(&array)[1].contains("'ashlar fail tank 5'"));
    // Of many only the worst are named.
    for device in &mut array.devices {
        device.errors.read += 3;
    }
    let lines = advice(&array);
    assert!(
        lines
            .iter()
            .any(|l| l.starts_with("7 more devices gave errors")),
        "{lines:?}"
    );
}

#[test]
fn healed_is_said_only_once_it_is() {
    let mut array = sample(&fourteen(&[]));
    array.devices[5].errors.digest = 40;
    let heal = |state: &str, healed| TaskStatus {
        id: 3,
        kind: "heal".into(),
        state: state.into(),
        done_bytes: 0,
        total_bytes: 0,
        bytes_per_second: 0,
        eta_seconds: None,
        reason: String::new(),
        found: 40,
        healed,
    };
    for (task, expected) in [
        (
            heal("running", 12),
            Some("12 of 40 bad blocks found are repaired so far"),
        ),
        (
            heal("done", 38),
            Some("2 of 40 bad blocks found could not be repaired"),
        ),
        (heal("done", 40), None),
    ] {
        array.tasks = vec![task];
        let lines = advice(&array);
        let safe_yet = "; no data is lost as long as other devices hold it";
        if array.tasks[0].state == "done" && expected.is_some() {
            assert!(lines[1].ends_with(safe_yet), "{lines:?}");
            let mut lost = array.clone();
            lost.lost = vec![LostRange {
                volume: "v".into(),
                offset_bytes: 0,
                length_bytes: 4096,
            }];
            let said = advice(&lost).join(" ");
            let repaired = said.contains("could not be repaired");
            assert!(repaired && !said.contains("no data is lost"), "{said}");
        }
        assert!(lines[0].contains("40 digest errors"), "{lines:?}");
        match expected {
            Some(text) => assert!(lines[1].starts_with(text), "{lines:?}"),
            None => assert_eq!(lines.len(), 1, "{lines:?}"),
        }
    }
}

#[test]
fn a_scrub_that_left_something_or_is_paused_is_said() {
    let mut array = sample(&fourteen(&[]));
    let said = |array: &ArrayStatus| advice(array).join("\n");
    let report = |state: &str, check, found, repaired| {
        Some(ScrubReport {
            state: state.into(),
            ended: (state == "done").then_some(1_700_003_600),
            check,
            found,
            repaired,
            ..ScrubReport::default()
        })
    };
    for (scrub, expected) in [
        (report("done", false, 3, 3), ""),
        (report("running", false, 3, 1), ""),
        (
            report("paused", false, 0, 0),
            "a scrub is paused: 'ashlar scrub tank resume' goes on",
        ),
        (
            report("done", false, 3, 1),
            "the last scrub left 2 of 3 bad blocks unrepaired: 'ashlar scrub tank'",
        ),
        (
            report("done", true, 1, 0),
            "the last scrub found 1 bad block, and repaired nothing since it only checked",
        ),
    ] {
        array.scrub = scrub;
        let said = said(&array);
        assert!(said.starts_with(expected), "{said}");
        assert_eq!(said.is_empty(), expected.is_empty(), "{said}");
    }
}

#[test]
fn space_names_what_was_promised_and_fits_the_line() {
    let mut array = sample(&fourteen(&[]));
    array.capacity = Capacity {
        usable_bytes: 1023 << 20,
        used_bytes: 1000 << 20,
        promised_bytes: 23 << 20,
        ..Capacity::default()
    };
    let text = picture(&array, Style::PLAIN, &More::default());
    assert!(
        text.contains("1000M of 1023M used (97 %), 23M promised, 0B free"),
        "{text}"
    );
    array.volumes = vec![VolumeStatus {
        name: "v".into(),
        size_bytes: 1 << 30,
        used_bytes: 1 << 20,
        block_bytes: 4096,
        digest: "blake3".into(),
        compress: "off".into(),
        layout: "ec8+3".into(),
        write_cache: "auto".into(),
        frontends: ["/run/short", "/run/a/rather/long/path/to/a/socket.sock"]
            .map(|path| Frontend {
                kind: "nbd".into(),
                address: format!("unix:{path}"),
            })
            .to_vec(),
        host: HostCounters::default(),
    }];
    array.tasks = vec![TaskStatus {
        id: 1,
        kind: "reconstruct".into(),
        state: "waiting".into(),
        done_bytes: 0,
        total_bytes: 1 << 30,
        bytes_per_second: 0,
        eta_seconds: None,
        reason: "the remaining free space is promised to volumes".into(),
        found: 0,
        healed: 0,
    }];
    array.exposure.push(Exposure {
        redundancy: 1,
        bytes: 1 << 20,
    });
    let text = picture(&array, Style::PLAIN, &verbose());
    assert!(
        text.contains("1M survives 1 more device failure\n"),
        "{text}"
    );
    assert_narrow(&text);
    let script = Style {
        width: 200,
        ..Style::PLAIN
    };
    let text = picture(&array, script, &More::default());
    assert!(
        text.contains("1M used  nbd unix:/run/short, nbd unix:/run/a"),
        "{text}"
    );
}

#[test]
fn lost_data_is_said_first_and_exactly() {
    let mut array = sample(&fourteen(&[(1, DeviceState::Failed)]));
    array.state = ArrayState::Failed;
    array.lost = vec![LostRange {
        volume: "v".into(),
        offset_bytes: 4096,
        length_bytes: 8192,
    }];
    let lines = advice(&array);
    assert!(
        lines[0].starts_with(
            "8K of data in 1 range could not be read (first: volume v at byte 4096); reading more"
        ),
        "{lines:?}"
    );
    // What a device that is out of use may have is not given up.
    let all = lines.join("\n");
    assert!(all.contains("'ashlar online tank 1 -f'"), "{all}");
    array.lost.clear();
    array.unreadable_bytes = 1 << 20;
    assert!(advice(&array)[0].starts_with("1M of data cannot be read"));
    array.devices[1].state = DeviceState::Missing;
    let line = &advice(&array)[0];
    assert!(line.contains("reconnect those that are missing"), "{line}");
    array.devices[1].state = DeviceState::Online;
    let line = &advice(&array)[0];
    assert!(line.ends_with("Restore it from a backup"), "{line}");
}

#[test]
fn a_thousand_devices_are_rows_of_one_glyph_each() {
    let mut states = vec![DeviceState::Online; 1000];
    states[777] = DeviceState::Slow;
    let wide = Style {
        width: 120,
        ..Style::PLAIN
    };
    let text = picture(&sample(&states), wide, &More::default());
    let grid: usize = text
        .lines()
        .filter(|line| line.starts_with("  devices") || line.starts_with("           "))
        .map(|line| line.chars().filter(|c| matches!(c, 'U' | 'S')).count())
        .sum();
    assert_eq!(grid, 1000);
    assert!(text.contains(" 750 "), "{text}");
}

#[test]
fn nothing_from_outside_reaches_the_terminal_raw() {
    let mut array = sample(&fourteen(&[(0, DeviceState::Failed)]));
    array.name = "a\u{1b}[2Jb".into();
    array.devices[1].last_path = "/dev/\u{1b}[1m".into();
    array.devices[0].path = "/dev/x\u{7}\n".into();
    let text = picture(&array, Style::PLAIN, &verbose());
    assert!(
        !text.contains('\u{1b}') && !text.contains('\u{7}'),
        "{text:?}"
    );
}

#[test]
fn a_bar_shows_something_as_soon_as_there_is_something() {
    let bar = |part, whole| Style::PLAIN.bar(Tone::Good, part, whole, 10);
    assert_eq!(bar(0, 100), "[----------]");
    assert_eq!(bar(1, 100), "[#---------]");
    assert_eq!(bar(100, 100), "[##########]");
    assert_eq!(bar(500, 100), "[##########]");
    assert_eq!(bar(0, 0), "[----------]");
}

#[test]
fn no_more_spares_are_named_than_devices_beyond_the_layout() {
    let words = |devices: u16, spare: u16, gone: u16| {
        let states: Vec<DeviceState> = (0..devices)
            .map(|i| match i < gone {
                true => DeviceState::Failed,
                false => DeviceState::Online,
            })
            .collect();
        let mut array = sample(&states);
        array.spare = spare;
        let text = picture(&array, Style::PLAIN, &More::default());
        text.lines().next().unwrap().to_string()
    };
    assert!(words(14, 2, 0).ends_with("14 devices, 2 spares"));
    assert!(words(12, 2, 0).ends_with("12 devices, 1 spare"));
    assert!(words(11, 2, 0).ends_with("11 devices, no spare left"));
    assert!(words(11, 2, 1).ends_with("11 devices, no spare left"));
    assert!(words(13, 2, 2).ends_with("13 devices, spare in use"));
}
