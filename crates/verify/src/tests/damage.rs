//! One thing wrong at a time: it is found, named, and nothing else is.

use super::forge::{
    Node, change_node, data_offset, look, look_beside, seal, slot_offset, strip_offset,
};
use super::{End, Images, array};
use crate::array::{Array, Segment};
use crate::digest::StripBlock;
use crate::journal::Record;
use crate::node::{Leaf, Slot};
use crate::report::Report;
use crate::slots::{METADATA, Row};
use crate::wire::BLOCK;
use crate::{Kind, Severity};

fn small() -> Images {
    array("ec4+2", 6, End::Exported)
}

/// A place that the map names, with the volume it is of.
fn mapped(nodes: &[Node], tree: u32) -> crate::node::Place {
    let leaf = nodes.iter().find(|n| n.at.tree == tree && n.at.level == 0);
    let entries = leaf.unwrap().bytes.chunks(32).map(Leaf::parse);
    let mut places = entries.filter_map(|slot| match slot {
        Slot::Entry(entry) => Some(entry.place),
        _ => None,
    });
    places.next().unwrap()
}

fn flip(images: &mut Images, (device, offset): (usize, usize)) {
    images.0[device][offset + 1000] ^= 0x40;
}

#[test]
fn a_flipped_bit_is_decoded_and_reported() {
    for tree in [16, 17] {
        let mut images = small();
        let place = look(&images, |array, nodes| {
            data_offset(array, mapped(nodes, tree))
        });
        flip(&mut images, place);
        let report = images.expect(&[Kind::Strip]);
        assert_eq!(
            (report.counts.healed, report.count_of(Kind::Strip)),
            (1, 1),
            "{report}"
        );
        let finding = report
            .findings
            .iter()
            .find(|f| f.kind == Kind::Strip)
            .unwrap();
        assert_eq!(finding.device, Some(place.0));
        assert!(!report.is_well());
        assert!(report.to_string().contains("nothing is lost"));
    }
}

#[test]
fn beyond_the_redundancy_exactly_what_is_lost_is_named() {
    let mut images = small();
    let places = look(&images, |array, nodes| {
        let place = mapped(nodes, 16);
        let segment = &array.segments[&place.segment];
        let (stripe, column, within) = segment.shape.locate(place.block);
        // The block itself, and two parities.
        [column, 4, 5].map(|c| strip_offset(array, segment, (stripe, c, within)))
    });
    for place in places {
        flip(&mut images, place);
    }
    let report = images.expect(&[Kind::Strip, Kind::BlockLost]);
    assert_eq!(
        (
            report.count_of(Kind::BlockLost),
            report.count_of(Kind::Strip)
        ),
        (1, 3)
    );
    assert_eq!(report.count(Severity::Lost), 1);
}

#[test]
fn without_m_devices_everything_is_decoded_and_without_more_it_is_lost() {
    let mut images = small();
    images.0.truncate(4);
    let report = images.expect(&[Kind::MemberMissing, Kind::ColumnMissing]);
    assert_eq!(
        (report.counts.members_missing, report.count(Severity::Lost)),
        (2, 0)
    );
    assert!(report.counts.healed > 10, "{report}");
    images.0.truncate(3);
    let report = images.verify();
    assert!(report.count(Severity::Lost) > 0, "{report}");
}

#[test]
fn a_leak_is_found() {
    let mut images = small();
    let (segment, block) = look(&images, |array, nodes| {
        let place = mapped(nodes, 16);
        let live = &array.segments[&place.segment].record.as_ref().unwrap().live;
        let dead = (0..200).find(|b| !live.get(*b)).unwrap();
        (place.segment, dead)
    });
    change_record(&mut images, segment, |record| {
        record[64 + block as usize / 8] |= 1 << (block % 8);
        record[13] += 1;
    });
    let report = images.expect(&[Kind::Leak, Kind::Strip, Kind::OwnersDiffer]);
    assert_eq!(report.count_of(Kind::Leak), 1);
    let finding = report
        .findings
        .iter()
        .find(|f| f.kind == Kind::Leak)
        .unwrap();
    assert_eq!(finding.segment, Some(segment));
}

/// Changes a segment's record in liveness.
fn change_record(images: &mut Images, segment: u64, change: impl FnOnce(&mut [u8])) {
    let begins = segment.to_le_bytes();
    let of = |bytes: &[u8]| bytes.chunks(128).position(|r| r.starts_with(&begins));
    change_node(
        images,
        |n| n.at.tree == 1 && n.at.level == 0 && of(&n.bytes).is_some(),
        |bytes| {
            let at = of(bytes).unwrap() * 128;
            change(&mut bytes[at..at + 128]);
        },
    );
}

#[test]
fn a_block_that_is_not_live_is_found() {
    let mut images = small();
    let place = look(&images, |_, nodes| mapped(nodes, 16));
    change_record(&mut images, place.segment, |record| {
        record[64 + place.block as usize / 8] &= !(1 << (place.block % 8));
    });
    let report = images.expect(&[
        Kind::NotLive,
        Kind::RecordCount,
        Kind::Strip,
        Kind::OwnersDiffer,
    ]);
    assert_eq!(report.count_of(Kind::NotLive), 1);
}

#[test]
fn a_segment_of_nobody_and_one_that_is_nowhere_are_found() {
    let mut images = small();
    let segment = look(&images, |_, nodes| mapped(nodes, 16).segment);
    change_record(&mut images, segment, |record| {
        record[..8].copy_from_slice(&999_999u64.to_le_bytes());
    });
    let report = images.verify();
    assert_eq!(report.count_of(Kind::SegmentNowhere), 1, "{report}");
    assert_eq!(report.count_of(Kind::SlotOfNobody), 6, "{report}");
    assert!(report.count_of(Kind::OutOfRange) > 0, "{report}");
}

#[test]
fn a_record_that_gives_its_segment_another_shape_is_found() {
    let segment = look(&small(), |_, nodes| mapped(nodes, 16).segment);
    for (at, value) in [(25, 1u8), (27, 1), (29, 9), (30, 7), (31, 3)] {
        let mut images = small();
        change_record(&mut images, segment, |record| record[at] = value);
        let report = images.verify();
        assert_eq!(report.count_of(Kind::RecordShape), 1, "{at}: {report}");
    }
}

#[test]
fn two_owners_of_one_block_are_found() {
    let mut images = small();
    change_node(
        &mut images,
        |n| n.at.tree == 16 && n.at.level == 0 && entries(&n.bytes).len() > 2,
        |bytes| {
            let at = entries(bytes);
            let place: Vec<u8> = bytes[at[0] * 32..at[0] * 32 + 11].to_vec();
            bytes[at[1] * 32..at[1] * 32 + 11].copy_from_slice(&place);
        },
    );
    let report = images.expect(&[
        Kind::DoubleUse,
        Kind::Leak,
        Kind::BlockLost,
        Kind::OwnersDiffer,
        Kind::Strip,
    ]);
    assert_eq!(report.count_of(Kind::DoubleUse), 1);
    assert_eq!(report.count_of(Kind::Leak), 1);
}

/// Which entries of a leaf map something.
fn entries(bytes: &[u8]) -> Vec<usize> {
    let slots = bytes.chunks(32).map(Leaf::parse).enumerate();
    slots
        .filter(|(_, slot)| matches!(slot, Slot::Entry(_)))
        .map(|(at, _)| at)
        .collect()
}

#[test]
fn entries_that_cannot_be_are_found() {
    for (kind, at, value) in [
        (Kind::OutOfRange, 2, 0x10),  // a segment that is not there
        (Kind::Malformed, 5, 0x01),   // a place that is no block
        (Kind::EntryWrong, 15, 0x80), // born later than the root
    ] {
        let mut images = small();
        change_node(
            &mut images,
            |n| n.at.tree == 16 && n.at.level == 0 && !entries(&n.bytes).is_empty(),
            |bytes| {
                let first = entries(bytes)[0];
                bytes[first * 32 + at] ^= value;
            },
        );
        let report = images.verify();
        assert_eq!(report.count_of(kind), 1, "{report}");
    }
}

/// Where the catalog has the content root of the first map.
fn content_root(images: &Images) -> impl Fn(&[u8]) -> Option<usize> + use<> {
    let content = look(images, |array, nodes| {
        let top = nodes.iter().find(|n| n.at.tree == 16).unwrap();
        let step = if top.at.level == 0 { 32 } else { 64 };
        let parts = top.bytes.chunks(step).map(|e| &e[step / 2..]);
        array.key.content(top.at, parts).unwrap()
    });
    move |bytes| bytes.windows(32).position(|w| w == content)
}

/// The height of a map's tree stands in the catalog: one that no tree can have makes nothing of it.
#[test]
fn a_height_that_cannot_be_is_found() {
    let mut images = small();
    let find = content_root(&images);
    change_node(
        &mut images,
        |n| n.at.tree == 2 && find(&n.bytes).is_some(),
        |bytes| {
            let entry = find(bytes).unwrap() - 32;
            bytes[entry + 9] = 11;
        },
    );
    let report = images.verify();
    assert_eq!(report.count_of(Kind::Malformed), 1, "{report}");
}

#[test]
fn a_wrong_content_root_is_found() {
    let mut images = small();
    let find = content_root(&images);
    change_node(
        &mut images,
        |n| n.at.tree == 2 && find(&n.bytes).is_some(),
        |bytes| {
            let at = find(bytes).unwrap();
            bytes[at] ^= 1;
        },
    );
    let report = images.expect(&[Kind::ContentRoot, Kind::Strip, Kind::OwnersDiffer]);
    assert_eq!(report.count_of(Kind::ContentRoot), 1);
}

/// A data segment with a summary, and a written stripe of it.
fn sealed<'s>(array: &'s Array<'_>) -> (&'s Segment, u32) {
    let mut segments = array.segments.values().filter(|s| s.shape.kind != METADATA);
    let segment = segments.find(|s| s.written() > 1).unwrap();
    (segment, 0)
}

/// Changes a row of a column's summary.
fn change_row(
    images: &mut Images,
    column: u16,
    change: impl Fn(&Array<'_>, &Segment, u32, &mut Row),
) {
    let (device, offset, bytes) = look(images, |array, _| {
        let (segment, stripe) = sealed(array);
        let course = segment.shape.course_of(stripe);
        let place = segment.shape.summary(course).0;
        let bytes = array
            .read(segment.columns[usize::from(column)], place, 1)
            .unwrap();
        let mut bytes = bytes;
        let mut row = Row {
            digest: bytes[32..48].try_into().unwrap(),
            owner: bytes[48..64].try_into().unwrap(),
        };
        change(array, segment, stripe, &mut row);
        bytes[32..48].copy_from_slice(&row.digest);
        bytes[48..64].copy_from_slice(&row.owner);
        seal(&array.id, &mut bytes);
        let (device, offset) = slot_offset(array, segment, column, place);
        (device, offset, bytes)
    });
    images.0[device][offset..offset + BLOCK].copy_from_slice(&bytes);
}

/// A record may name the new place of a column of a segment that was freed since, and the slot's header be there still.
/// That is no slot of nobody: no table names it.
#[test]
fn a_freed_segment_that_an_old_record_names_is_none() {
    const FREED: u64 = 9999;
    let mut images = small();
    let (at, header, slot) = look(&images, |array, _| {
        let segments = array.segments.values();
        let columns: Vec<_> = segments.flat_map(|s| s.columns.iter().flatten()).collect();
        let used = columns.iter().find(|c| c.device == 0).unwrap();
        let device = array.device(0).unwrap();
        let taken = |slot| columns.iter().any(|c| (c.device, c.slot) == (0, slot));
        let slot = (0..device.geometry.slots).find(|s| !taken(*s)).unwrap();
        let mut header = array.read(Some(**used), 0, 1).unwrap();
        header[8..16].copy_from_slice(&FREED.to_le_bytes());
        header[16..20].copy_from_slice(&2u32.to_le_bytes());
        seal(&array.id, &mut header);
        let at = device.geometry.slot(slot) as usize;
        ((device.position, at), header, slot)
    });
    images.0[at.0][at.1..at.1 + BLOCK].copy_from_slice(&header);
    let mut moved = vec![6];
    moved.extend(FREED.to_le_bytes());
    moved.extend(&header[20..22]); // the column
    moved.extend(2u32.to_le_bytes());
    moved.extend(0u16.to_le_bytes());
    moved.extend(slot.to_le_bytes());
    let mut report = Report::default();
    let there = look_beside(&images, vec![Record::saying(moved)], &mut report, |a, _| {
        a.segments.contains_key(&FREED)
    });
    assert!(!there && report.clean && report.counts.segments > 0);
    assert_eq!(report.count_of(Kind::SlotOfNobody), 0, "{report}");
}

#[test]
fn wrong_parity_under_a_right_digest_is_found() {
    let mut images = small();
    let (device, offset, at) = look(&images, |array, _| {
        let (segment, stripe) = sealed(array);
        let (device, offset) = strip_offset(array, segment, (stripe, 5, 0));
        (device, offset, segment.number)
    });
    flip(&mut images, (device, offset));
    let bytes = images.0[device][offset..offset + BLOCK].to_vec();
    change_row(&mut images, 5, |array, segment, stripe, row| {
        let at = StripBlock {
            segment: segment.number,
            stripe,
            column: 5,
            block: 0,
        };
        row.digest = array.key.parity(at, &bytes).unwrap();
    });
    let report = images.expect(&[Kind::ParityWrong]);
    assert_eq!(report.count_of(Kind::ParityWrong), 1);
    assert_eq!(
        report
            .findings
            .iter()
            .find(|f| f.kind == Kind::ParityWrong)
            .unwrap()
            .segment,
        Some(at)
    );
}

#[test]
fn wrong_owners_are_found() {
    let mut images = small();
    change_row(&mut images, 4, |_, _, _, row| row.owner[3] ^= 1);
    let report = images.expect(&[Kind::OwnerParity]);
    assert!(report.count_of(Kind::OwnerParity) > 0);
}

#[test]
fn damaged_summaries_and_headers_are_damage() {
    for (block_of, kind) in [(0, Kind::Header), (1, Kind::Summary)] {
        let mut images = small();
        let place = look(&images, |array, _| {
            let (segment, stripe) = sealed(array);
            let summary = segment.shape.summary(segment.shape.course_of(stripe)).0;
            slot_offset(array, segment, 2, summary * block_of)
        });
        flip(&mut images, place);
        let report = images.expect(&[kind]);
        assert_eq!(report.count_of(kind), 1, "{report}");
    }
}

#[test]
fn without_rows_a_block_is_decoded_by_its_digest_alone() {
    let mut images = small();
    let places = look(&images, |array, nodes| {
        let place = mapped(nodes, 17);
        let segment = &array.segments[&place.segment];
        let (stripe, column, within) = segment.shape.locate(place.block);
        let summary = segment.shape.summary(segment.shape.course_of(stripe)).0;
        [
            strip_offset(array, segment, (stripe, column, within)),
            slot_offset(array, segment, column, summary),
            slot_offset(array, segment, 4, summary),
        ]
    });
    for place in places {
        flip(&mut images, place);
    }
    let report = images.expect(&[Kind::Summary]);
    let found = (report.counts.healed, report.count_of(Kind::Summary));
    assert!(found.0 >= 1 && found.1 == 2, "{report}");
}

#[test]
fn a_stale_table_page_is_found() {
    let images = small();
    // What a device's table said a session ago is put in the place of both copies of a page.
    let earlier = array("ec4+2", 6, End::Earlier);
    let mut found = 0;
    for device in 0..images.0.len() {
        let mut images = images.clone();
        let table = look(&images, |array, _| {
            let here = array.members.here.values();
            let geometry = here
                .clone()
                .find(|d| d.position == device)
                .unwrap()
                .geometry;
            [0, 1].map(|copy| geometry.page(0, copy) as usize)
        });
        let written_by = |images: &Images, copy: usize| {
            let at = table[copy] + 8;
            u64::from_le_bytes(images.0[device][at..at + 8].try_into().unwrap())
        };
        let old = usize::from(written_by(&earlier, 0) < written_by(&earlier, 1));
        let was = written_by(&earlier, old);
        assert!(0 < was && was < written_by(&images, 0).max(written_by(&images, 1)));
        for copy in [0, 1] {
            images.0[device][table[copy]..][..BLOCK]
                .copy_from_slice(&earlier.0[device][table[old]..][..BLOCK]);
        }
        let report = images.verify();
        assert_eq!(report.count(Severity::Lost), 0, "{report}");
        let differs = [Kind::SlotOfNobody, Kind::ColumnMissing, Kind::HeaderDiffers];
        found += differs
            .iter()
            .map(|kind| report.count_of(*kind))
            .sum::<u64>();
    }
    assert!(found > 5, "{found}");
}

#[test]
fn what_is_no_array_is_said_to_be_none() {
    let zeros = Images(vec![vec![0; 1 << 20]; 2]);
    zeros.expect(&[Kind::NoArray]);
    Images(vec![Vec::new(), vec![1; 100]]).expect(&[Kind::NoArray]);
    let mut one = small();
    let mut other = one.0[0].clone();
    for at in [0, other.len() - (64 << 10)] {
        other[at + 28] ^= 1;
        seal(b"ashlar superblock", &mut other[at..at + 4096]);
    }
    one.0.push(other);
    one.expect(&[Kind::OtherArray]);
    let mut twice = small();
    let copy = twice.0[0].clone();
    twice.0.push(copy);
    twice.expect(&[Kind::IndexTwice]);
}

/// A write for one device has landed on another of another size: the other copy is where this one ends (#132).
#[test]
fn a_superblock_of_another_device_makes_none_of_it() {
    let mut images = small();
    let first = images.0[0][..4096].to_vec();
    assert!(images.0[0].len() != images.0[1].len());
    images.0[1][..4096].copy_from_slice(&first);
    let report = images.expect(&[Kind::MemberMissing, Kind::ColumnMissing]);
    assert_eq!(report.count_of(Kind::TwoDevices), 1, "{report}");
    // One that has grown since it was added keeps its place.
    let mut images = small();
    images.0[1].resize(7 << 20, 0);
    images.expect(&[]);
}

#[test]
fn an_older_root_is_not_taken_for_the_newest() {
    let mut images = small();
    let offset = look(&images, |array, _| {
        let geometry = array.members.superblock.geometry;
        geometry.root(array.root.number) as usize
    });
    // On one device: a copy is missing. On all: the one before was not clean.
    flip(&mut images, (0, offset));
    images.expect(&[Kind::RootCopy]);
    (1..6).for_each(|device| flip(&mut images, (device, offset)));
    assert!(!images.verify().clean);
}

/// The root of an array that went on without a device, and told nobody.
#[test]
fn a_device_that_only_the_journal_does_without_is_found() {
    let mut images = small();
    let (offset, id) = look(&images, |array, _| {
        let geometry = array.members.superblock.geometry;
        (geometry.root(array.root.number) as usize, array.id)
    });
    for device in &mut images.0 {
        let root = &mut device[offset..offset + 16_384];
        let count = u16::from_le_bytes([root[401], root[402]]);
        let mut at = 403;
        for _ in 1..count {
            let absent = u16::from_le_bytes([root[at + 59], root[at + 60]]);
            at += 61 + 2 * usize::from(absent);
        }
        assert_eq!(root[at + 59..at + 61], [0, 0]);
        root[at + 59] = 1;
        root[at + 61] = 5;
        seal(&id, root);
    }
    images.expect(&[Kind::EpochDiffers]);
}
