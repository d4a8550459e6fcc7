//! The picture, the advice and mdstat of sample arrays.
#![allow(clippy::unwrap_used, reason = "tests")]

use ashlar_engine::status::*;

use super::advice::advice;
use super::mdstat::mdstat;
use super::picture::picture;
use super::{Style, Tone};

fn device(index: u16, state: DeviceState) -> DeviceStatus {
    DeviceStatus {
        index,
        uuid: format!("uuid-{index}"),
        path: if state == DeviceState::Missing {
            String::new()
        } else {
            format!("/dev/sd{index}")
        },
        size_bytes: 1 << 30,
        domain: String::new(),
        state,
        errors: DeviceErrors::default(),
        used_bytes: 0,
        read_bytes: 0,
        written_bytes: 0,
    }
}

fn sample(states: &[DeviceState]) -> ArrayStatus {
    let devices: Vec<DeviceStatus> = (0u16..)
        .zip(states)
        .map(|(i, state)| device(i, *state))
        .collect();
    ArrayStatus {
        name: "tank".into(),
        uuid: "u".into(),
        state: ArrayState::Optimal,
        read_only: false,
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
        },
        exposure: vec![Exposure {
            redundancy: 3,
            bytes: 2 << 30,
        }],
        devices,
        tasks: Vec::new(),
        volumes: Vec::new(),
        lost: Vec::new(),
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
    let text = picture(&array, Style::PLAIN, false);
    assert_eq!(
        text,
        "tank  OPTIMAL   ec8+3 on 14 devices, 1 spare\n\
         \x20 space    [######------------------]  2G of 8G used (25 %), 6G free\n\
         \x20 devices  UUUUUUUUUU UUUU   14 online\n"
    );
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
    let text = picture(&array, Style::PLAIN, false);
    for part in [
        "DEGRADED",
        "UUUUFUUUUU UU_U   12 online, 1 failed, 1 missing",
        "reconstruct [#####---------------]  25 %  256M of 1G  100M/s  1m35s left",
        "device 4 (/dev/sd4) is failed",
        "device 12 (uuid uuid-12) is missing",
        "survives 1 more loss",
        "being reconstructed",
    ] {
        assert!(text.contains(part), "no '{part}' in:\n{text}");
    }
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
        lines[0].starts_with("8K in 1 range cannot be read (first: v at byte 4096)"),
        "{lines:?}"
    );
}

#[test]
fn a_thousand_devices_are_rows_of_one_glyph_each() {
    let mut states = vec![DeviceState::Online; 1000];
    states[777] = DeviceState::Slow;
    let wide = Style {
        width: 120,
        ..Style::PLAIN
    };
    let text = picture(&sample(&states), wide, false);
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
    array.devices[0].path = "/dev/x\u{7}\n".into();
    let text = picture(&array, Style::PLAIN, true);
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
