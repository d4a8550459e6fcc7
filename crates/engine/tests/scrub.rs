//! Scrub: what is bad is found where it is, and repaired; what is under way survives an import.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ashlar_device::{DeviceRef, Effect, Fault, FaultFilter, MemDevice, OpKind, Rule};
use ashlar_engine::status::{ArrayState, ScrubReport};
use ashlar_engine::{Array, Error, Import, ScrubChange, Work};
use ashlar_format::journal::{ColumnHeader, HEADER_BYTES};
use ashlar_format::root::Root;
use ashlar_format::slot::{SegmentKind, SlotEntry, TablePage};
use ashlar_format::summary::{self, Row, SummaryId};
use ashlar_format::superblock::Superblock;
use ashlar_rt::{MILLISECOND, Rt, SECOND};

use crate::common::{
    BLOCK, DISK, SIZE, create, devices, fill, geometry, read, refs, small, story, volume, without,
    write,
};

const SLOT: u64 = 64 << 10;
const ALL: ScrubChange = ScrubChange::Start {
    check: false,
    since: None,
};
const CHECK: ScrubChange = ScrubChange::Start {
    check: true,
    since: None,
};

/// The event that says how many bad blocks a scrub has left.
fn told_left(array: &Array) -> String {
    let mut all = array.events(0).into_iter();
    let left = all.find(|event| event.kind == "scrub-left");
    left.map_or_else(String::new, |event| event.text)
}

fn superblock(disk: &MemDevice) -> Superblock {
    let mut bytes = vec![0; 4096];
    disk.peek(0, &mut bytes);
    bytes.resize(Superblock::encoded_bytes(&bytes).unwrap(), 0);
    disk.peek(0, &mut bytes);
    Superblock::decode(&bytes).unwrap()
}

fn block(disk: &MemDevice, at: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK as usize];
    disk.peek(at, &mut bytes);
    bytes
}

/// Changes some bytes of a block.
fn spoil(disk: &MemDevice, at: u64) {
    let mut bytes = block(disk, at);
    bytes[100..200].iter_mut().for_each(|b| *b ^= 0x5A);
    disk.poke(at, &bytes);
}

/// The slots of a device that hold something, by the newer copy of each page of its table.
fn slots(disk: &MemDevice) -> Vec<(u32, SlotEntry)> {
    let of = superblock(disk);
    let (geometry, blocks) = (of.geometry, u32::try_from(SLOT / BLOCK).unwrap());
    let mut all = Vec::new();
    for page in 0..geometry.table_pages() {
        let copies = [0, 1].map(|copy| block(disk, geometry.page_offset(page, copy)));
        let decode = |b: &Vec<u8>| TablePage::decode(&of.array, of.index, page, blocks, b).ok();
        let newest = copies
            .iter()
            .filter_map(decode)
            .max_by_key(|p| p.checkpoint);
        let entries = (0u32..).zip(newest.unwrap().entries);
        all.extend(entries.filter_map(|(slot, entry)| Some((slot, entry?))));
    }
    all
}

/// Every block of a device that a scrub judges in its slots of such segments, with its part.
fn judged(disk: &MemDevice, kind: SegmentKind) -> Vec<(u64, &'static str)> {
    let of = superblock(disk);
    let mut all = Vec::new();
    for (slot, entry) in slots(disk).into_iter().filter(|(_, e)| e.kind == kind) {
        let shape = entry.geometry(u32::try_from(SLOT / BLOCK).unwrap());
        let start = of.geometry.slot_offset(slot);
        let at = |number: u32| start + u64::from(number) * BLOCK;
        all.push((start, "header"));
        for course in 0..shape.courses() {
            let id = SummaryId {
                segment: entry.segment,
                column: entry.column,
                course,
                part: 0,
            };
            let place = at(shape.summary_block(course));
            let Ok(rows) = summary::decode(&of.array, id, &block(disk, place)) else {
                continue;
            };
            all.push((place, "summary"));
            let part = match entry.column < entry.k {
                true => "data",
                false => "parity",
            };
            let first = shape.strip_block(course * shape.course_strips());
            let written = |row: &Row| row.digest != [0; 16];
            let blocks = (first..).zip(&rows).filter(|(_, row)| written(row));
            all.extend(blocks.map(|(number, _)| (at(number), part)));
        }
    }
    all
}

/// Damages one of three of these blocks of these devices; how many, by device and part.
fn damage(rt: &Rt, disks: &[Rc<MemDevice>], bad: &[u16], kind: SegmentKind) -> Counts {
    let mut injected = Counts::new();
    for device in bad {
        let disk = &disks[usize::from(*device)];
        for (at, part) in judged(disk, kind) {
            if rt.random_below(3) == 0 {
                spoil(disk, at);
                *injected.entry((*device, part.to_string())).or_default() += 1;
            }
        }
    }
    injected
}

/// Blocks by device and part.
type Counts = BTreeMap<(u16, String), u64>;

/// The wrong blocks of a report.
fn wrong(report: &ScrubReport) -> Counts {
    let all = found(report).into_iter();
    all.map(|(key, (_, wrong, _))| (key, wrong)).collect()
}

/// Found and repaired blocks by device and part.
fn found(report: &ScrubReport) -> BTreeMap<(u16, String), (u64, u64, u64)> {
    let findings = report.findings.iter();
    let row = |f: &ashlar_engine::status::ScrubFinding| {
        (
            (f.device, f.part.clone()),
            (f.unreadable, f.wrong, f.repaired),
        )
    };
    findings.map(row).collect()
}

/// Starts a scrub and waits for its end; its report.
async fn scrub(array: &Array, change: ScrubChange) -> ScrubReport {
    array.scrub(change).await.unwrap();
    array.wait_idle(&[Work::Scrub]).await;
    let report = array.scrubs().pop().unwrap();
    assert_eq!(report.state, "done");
    report
}

async fn import(rt: &Rt, devices: Vec<DeviceRef>) -> Array {
    Array::import(rt, devices, Import::default()).await.unwrap()
}

/// An exported array of which some blocks were overwritten and some trimmed, so that there are dead ones.
async fn written(rt: &Rt, disks: &[Rc<MemDevice>], layout: &str) {
    let array = create(rt, disks, layout).await;
    let v = array.volume("v").unwrap();
    fill(&v, SIZE / 4, 4096, 1, "overwritten").await;
    array.merge().await.unwrap();
    array.export().await.unwrap();
}

/// Blocks of all parts of slots are damaged on as many devices as may be lost: each is found, on its device and under
/// its part, and repaired; a second scrub finds nothing.
#[test]
fn what_was_damaged_is_found_and_repaired() {
    for (layout, bad) in [
        ("ec4+2", &[1u16, 4][..]),
        ("raid1", &[1, 2]),
        ("ec1+1", &[2]),
    ] {
        let count = if layout == "raid1" { 3 } else { 7 };
        let disks = devices(count, 2 * DISK);
        story(async move |rt| {
            written(&rt, &disks, layout).await;
            let array = import(&rt, refs(&disks)).await;
            for _ in 0..3 {
                array.wait_idle(&[]).await;
                array.merge().await.unwrap();
            }
            let injected = damage(&rt, &disks, bad, SegmentKind::Data);
            let total: u64 = injected.values().sum();
            assert!(total > 40, "{layout}: {total}");
            let report = scrub(&array, CHECK).await;
            assert_eq!(report.repaired, 0);
            assert!(told_left(&array).contains(&report.found.to_string()));
            let headers = |all: &Counts| -> u64 {
                let headers = all.iter().filter(|((_, part), _)| part == "header");
                headers.map(|(_, n)| n).sum()
            };
            assert_eq!(headers(&wrong(&report)), headers(&injected), "{layout}");
            // Nothing says what blocks under a bad summary should be: they do not count as verified.
            let summaries = injected.keys().any(|(_, part)| part == "summary");
            assert_eq!(report.skipped_bytes > 0, summaries, "{layout}");

            let report = scrub(&array, ALL).await;
            assert_eq!(wrong(&report), injected, "{layout}");
            assert_eq!((report.found, report.repaired), (total, total), "{layout}");
            assert_eq!((report.skipped_bytes, report.interrupted), (0, 0));
            assert!(report.whole && !report.check && report.ended.is_some());
            let again = scrub(&array, ALL).await;
            assert_eq!(found(&again), BTreeMap::new(), "{layout}");
            assert!(again.done_bytes > SIZE, "{}", again.done_bytes);

            // Nodes of maps: some of their segments are freed before they are looked at.
            let injected = damage(&rt, &disks, bad, SegmentKind::Meta);
            let report = scrub(&array, ALL).await;
            let of = |(key, n): (&(u16, String), &u64)| injected.get(key).is_some_and(|i| n <= i);
            assert!(
                report.found > 0 && wrong(&report).iter().all(of),
                "{report:?}"
            );
            assert_eq!(report.found, report.repaired, "{layout}");
            let again = scrub(&array, ALL).await;
            assert_eq!(found(&again), BTreeMap::new(), "{layout}");
            read(&array, 1, layout).await;
            assert_eq!(array.status().await.state, ArrayState::Optimal);
            assert_eq!(array.scrubs().len(), 5);
            // What is kept is there after an import.
            array.export().await.unwrap();
            let array = import(&rt, refs(&disks)).await;
            assert_eq!(array.scrubs().last(), Some(&again));
        });
    }
}

/// It rests again and again: what it has found and repaired is told, and once.
#[test]
fn a_pause_forgets_nothing() {
    let disks = devices(6, 2 * DISK);
    story(async move |rt| {
        written(&rt, &disks, "ec4+2").await;
        let array = import(&rt, refs(&disks)).await;
        let injected = damage(&rt, &disks, &[1, 4], SegmentKind::Data);
        array.set("scrub.max", "1M").await.unwrap();
        array.scrub(ALL).await.unwrap();
        let mut rests = 0;
        while array.scrubs().last().unwrap().state != "done" {
            rt.sleep(20 * MILLISECOND).await;
            if array.scrub(ScrubChange::Pause).await.is_ok() {
                rt.sleep(SECOND).await;
                array.scrub(ScrubChange::Resume).await.unwrap();
                rests += 1;
            }
        }
        let report = array.scrubs().pop().unwrap();
        assert!(rests > 5, "{rests} times");
        assert_eq!(wrong(&report), injected);
        assert_eq!(report.found, report.repaired);
    });
}

/// Superblocks, roots, tables and the journal of devices.
#[test]
fn what_devices_keep_of_their_own_is_looked_at() {
    let disks = devices(6, DISK);
    story(async move |rt| {
        let array = create(&rt, &disks, "ec2+2").await;
        array.set("scrub.max", "64K").await.unwrap();
        array.merge().await.unwrap();
        let v = array.volume("v").unwrap();
        fill(&v, 16 * BLOCK, BLOCK, 1, "for the journal").await;
        array.scrub(ALL).await.unwrap();
        rt.sleep(SECOND).await; // its root is written, and no other is before it has found something
        let of = geometry(&disks[0]);
        spoil(&disks[0], of.super_offset(1));
        spoil(&disks[1], of.super_offset(0));
        for copy in 0..2 {
            spoil(&disks[2], of.page_offset(0, copy));
        }
        let array_id = superblock(&disks[3]).array;
        let root = |at: &u64| {
            let mut bytes = vec![0; 16 << 10];
            disks[3].peek(*at, &mut bytes);
            Root::decode(&array_id, &bytes).ok()
        };
        let places = (0..4).map(|index| of.root_offset(index));
        let newest = places.max_by_key(|at| root(at).map(|r| r.order())).unwrap();
        spoil(&disks[3], newest);
        let ring = of.delta_ring_offset()..of.delta_ring_offset() + of.delta_ring_bytes;
        let header = |at: &u64| ColumnHeader::decode(&array_id, &block(&disks[4], *at)).ok();
        let places = ring
            .step_by(BLOCK as usize)
            .filter(|at| header(at).is_some());
        let newest = places
            .max_by_key(|at| header(at).unwrap().sequence)
            .unwrap();
        let mut bytes = block(&disks[4], newest);
        bytes[HEADER_BYTES + 3] ^= 1;
        disks[4].poke(newest, &bytes);

        array.wait_idle(&[Work::Scrub]).await;
        let report = array.scrubs().pop().unwrap();
        let expected = [
            (0, "superblock"),
            (1, "superblock"),
            (2, "table"),
            (3, "root"),
            (4, "journal"),
        ];
        let expected: BTreeMap<_, _> = expected
            .into_iter()
            .map(|(device, part)| ((device, part.to_string()), (0, 1, 1)))
            .collect();
        assert_eq!(found(&report), expected);
        array.set("scrub.max", "none").await.unwrap();
        assert_eq!(scrub(&array, ALL).await.found, 0);
        array.export().await.unwrap();
        read(&import(&rt, refs(&disks)).await, 1, "afterwards").await;
    });
}

/// What a device does not give counts as that, block for block, and is not said to be wrong.
#[test]
fn what_cannot_be_read_is_told_as_such() {
    let disks = devices(6, 2 * DISK);
    story(async move |rt| {
        written(&rt, &disks, "ec2+2").await;
        let filters: Vec<_> = refs(&disks).into_iter().map(FaultFilter::new).collect();
        let seen = filters.iter().map(|f| f.clone() as DeviceRef).collect();
        let array = import(&rt, seen).await;
        let mut injected: BTreeMap<(u16, String), (u64, u64, u64)> = BTreeMap::new();
        for (at, part) in judged(&disks[3], SegmentKind::Data).into_iter().step_by(7) {
            let fault = Effect::Fail(Fault::Media);
            filters[3].add(Rule::within(OpKind::Read, at..at + BLOCK, fault));
            injected.entry((3, part.to_string())).or_default().0 += 1;
        }
        let report = scrub(&array, CHECK).await;
        let all: BTreeMap<_, _> = found(&report);
        assert_eq!(
            all.keys().collect::<BTreeSet<_>>(),
            injected.keys().collect()
        );
        assert!(all.values().all(|(_, wrong, _)| *wrong == 0), "{all:?}");
        let digest = array.status().await.devices[3].errors.digest;
        assert_eq!(digest, 0);
    });
}

/// A scrub that rests stays so over an import; one that runs goes on where it was, and its report says so.
#[test]
fn an_import_goes_on_with_it() {
    let disks = devices(6, 2 * DISK);
    story(async move |rt| {
        written(&rt, &disks, "ec2+2").await;
        let array = import(&rt, refs(&disks)).await;
        for change in [ScrubChange::Pause, ScrubChange::Resume, ScrubChange::Stop] {
            assert!(matches!(array.scrub(change).await, Err(Error::NoScrub)));
        }
        array.set("scrub.max", "64K").await.unwrap();
        array.scrub(ALL).await.unwrap();
        assert!(matches!(array.scrub(ALL).await, Err(Error::ScrubRuns)));
        rt.sleep(4 * SECOND).await;
        assert!(array.scrub(ScrubChange::Pause).await.unwrap());
        assert!(!array.scrub(ScrubChange::Pause).await.unwrap());
        assert!(matches!(array.scrub(CHECK).await, Err(Error::ScrubPaused)));
        let rests = array.scrubs().pop().unwrap();
        assert!(rests.done_bytes > 0, "it was under way");
        let task = |status: ashlar_engine::status::ArrayStatus| {
            status
                .tasks
                .into_iter()
                .find(|t| t.kind == "scrub")
                .unwrap()
        };
        let shown = task(array.status().await);
        assert_eq!(
            (shown.state.as_str(), shown.done_bytes),
            ("paused", rests.done_bytes)
        );
        assert!(shown.total_bytes > shown.done_bytes);
        assert!(array.stuck(&[Work::Scrub]).unwrap().contains("paused"));
        array.export().await.unwrap();

        let array = import(&rt, refs(&disks)).await;
        rt.sleep(60 * SECOND).await;
        let still = array.scrubs().pop().unwrap();
        assert_eq!(
            (still.state.as_str(), still.done_bytes),
            ("paused", rests.done_bytes)
        );
        array.scrub(ScrubChange::Resume).await.unwrap();
        rt.sleep(SECOND).await;
        array.export().await.unwrap();
        let array = import(&rt, refs(&disks)).await;
        array.wait_idle(&[Work::Scrub]).await;
        let done = array.scrubs().pop().unwrap();
        assert_eq!(
            (done.state.as_str(), done.interrupted, done.found),
            ("done", 2, 0)
        );
        let whole = scrub(&array, ALL).await.done_bytes;
        assert_eq!(done.done_bytes, whole, "each segment was looked at once");

        array.scrub(ALL).await.unwrap();
        array.scrub(ScrubChange::Stop).await.unwrap();
        let stopped = array.scrubs().pop().unwrap();
        assert!(stopped.state == "stopped" && stopped.ended.is_some());
        assert!(array.scrub(ScrubChange::Resume).await.is_err());
    });
}

/// `scrub.max` bounds what is read of each device, also where the array has more devices than a stripe.
#[test]
fn it_keeps_below_its_bound() {
    let disks = devices(9, 2 * DISK);
    story(async move |rt| {
        written(&rt, &disks, "ec2+1").await;
        let array = import(&rt, refs(&disks)).await;
        array.set("scrub.max", "256K").await.unwrap();
        let read = async || -> Vec<u64> {
            let status = array.status().await;
            status.devices.iter().map(|d| d.read_bytes).collect()
        };
        let (begun, before) = (rt.now(), read().await);
        scrub(&array, ALL).await;
        let seconds = (rt.now() - begun) as f64 / SECOND as f64;
        for (after, before) in read().await.into_iter().zip(before) {
            let rate = (after - before) as f64 / seconds / 1024.0;
            assert!(
                (64.0..300.0).contains(&rate),
                "{rate} KiB/s over {seconds} s"
            );
        }
    });
}

/// The schedule starts one; not again before its time, nor at once after one that was stopped.
#[test]
fn one_is_started_when_it_is_due() {
    let disks = devices(4, DISK);
    story(async move |rt| {
        let array = create(&rt, &disks, "ec2+1").await;
        let minutes = async |count: u64| {
            rt.sleep(60 * count * SECOND).await;
            array.scrubs().len()
        };
        assert_eq!(array.get(Some("scrub.every")).unwrap()[0].1, "30d");
        array.set("scrub.every", "2h").await.unwrap();
        assert_eq!(minutes(118).await, 0);
        assert_eq!(minutes(4).await, 1);
        assert_eq!(minutes(114).await, 1);
        array.set("scrub.every", "never").await.unwrap();
        assert_eq!(minutes(60).await, 1);
        array.set("scrub.max", "64K").await.unwrap();
        array.scrub(ALL).await.unwrap();
        array.scrub(ScrubChange::Stop).await.unwrap();
        array.set("scrub.every", "1h").await.unwrap();
        assert_eq!(minutes(58).await, 2);
        assert_eq!(minutes(4).await, 3);
        let reports = array.scrubs();
        let states: Vec<&str> = reports.iter().map(|r| r.state.as_str()).collect();
        assert_eq!(states[..2], ["done", "stopped"]);
    });
}

/// A device that was added, or took the place of another, has all that others have: nothing of it is bad.
#[test]
fn nothing_of_a_new_device_is_bad() {
    let disks = devices(7, DISK);
    story(async move |rt| {
        let array = create(&rt, &disks[..5], "ec2+2").await;
        array.add(disks[5].clone(), "").await.unwrap();
        array.fail(1, false).await.unwrap();
        array.replace(1, disks[6].clone(), false).await.unwrap();
        array.wait_idle(&[Work::Rebuild]).await;
        let report = scrub(&array, ALL).await;
        assert_eq!((report.found, report.skipped_bytes), (0, 0), "{report:?}");
        for disk in &disks[5..] {
            let of = superblock(disk);
            let both = [0, 1].map(|copy| block(disk, of.geometry.super_offset(copy)));
            assert!(both.iter().all(|b| Superblock::decode(b).is_ok()));
        }
    });
}

/// One that is started in the second in which another was stopped takes nothing over from it: that one only looked.
#[test]
fn one_takes_nothing_over_from_another() {
    let disks = devices(6, 2 * DISK);
    story(async move |rt| {
        written(&rt, &disks, "ec2+2").await;
        let array = import(&rt, refs(&disks)).await;
        array.wait_idle(&[]).await;
        let injected: u64 = damage(&rt, &disks, &[3], SegmentKind::Data).values().sum();
        array.set("scrub.max", "64K").await.unwrap();
        for change in [CHECK, ScrubChange::Stop, ALL] {
            array.scrub(change).await.unwrap();
        }
        array.set("scrub.max", "none").await.unwrap();
        array.wait_idle(&[Work::Scrub]).await;
        let reports = array.scrubs();
        assert_eq!(reports[0].started, reports[1].started, "at once");
        let (found, repaired) = (reports[1].found, reports[1].repaired);
        assert!(injected > 0 && found > 0, "{reports:?}");
        assert_eq!(found, repaired);
        assert_eq!(scrub(&array, ALL).await.found, 0);
    });
}

/// One of what was written since another began looks at less, and at all of that.
#[test]
fn only_what_is_new_can_be_looked_at() {
    let disks = devices(6, 2 * DISK);
    story(async move |rt| {
        written(&rt, &disks, "ec2+2").await;
        let array = import(&rt, refs(&disks)).await;
        let all = scrub(&array, ALL).await;
        rt.sleep(3600 * SECOND).await;
        let v = array.volume("v").unwrap();
        fill(&v, SIZE / 8, 4096, 1, "new").await;
        array.merge().await.unwrap();
        let since = ScrubChange::Start {
            check: false,
            since: Some(all.started + 60),
        };
        let new = scrub(&array, since).await;
        assert!(!new.whole && new.done_bytes >= SIZE / 4, "{new:?}");
        assert!(
            new.done_bytes < all.done_bytes,
            "{} {}",
            new.done_bytes,
            all.done_bytes
        );
        let ever = ScrubChange::Start {
            check: false,
            since: Some(all.started - 60),
        };
        assert!(
            scrub(&array, ever).await.whole,
            "nothing tells of an earlier time"
        );
    });
}

/// A device that is away is not looked at: its bytes are told, and nothing is found on it.
#[test]
fn what_is_away_is_told() {
    let disks = devices(6, 2 * DISK);
    story(async move |rt| {
        written(&rt, &disks, "ec4+2").await;
        let array = import(&rt, without(&disks, &[2])).await;
        let report = scrub(&array, ALL).await;
        assert!(report.skipped_bytes > 0 && report.found == 0, "{report:?}");
        read(&array, 1, "degraded").await;
    });
}

/// Clients write and trim while it runs: nothing of theirs is found bad.
#[test]
fn clients_go_on() {
    let disks = devices(6, 2 * DISK);
    story(async move |rt| {
        let array = Array::create(&rt, refs(&disks), small("ec2+2"))
            .await
            .unwrap();
        array.volume_create("v", volume(SIZE)).await.unwrap();
        write(&array, 1).await;
        array.set("scrub.max", "128K").await.unwrap();
        array.scrub(ALL).await.unwrap();
        let mut version = 1;
        while array.scrubs()[0].state == "running" {
            version += 1;
            write(&array, version).await;
            rt.sleep(SECOND / 10).await;
        }
        assert!(version > 5, "{version}");
        let report = array.scrubs().pop().unwrap();
        assert_eq!((report.found, report.state.as_str()), (0, "done"));
        read(&array, version, "afterwards").await;
    });
}
