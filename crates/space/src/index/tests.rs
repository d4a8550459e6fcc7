//! Tests of the index.

#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::measure::measure;

const GEOMETRY: Geometry = Geometry::SAMPLE;

pub(crate) fn plan(k: u16, m: u16, absent: u16) -> Plan {
    let template = Template {
        k,
        m,
        absent,
        cap: k + m,
    };
    Plan {
        groups: vec![template],
        nodes: template,
    }
}

pub(crate) fn facts(k: u16, m: u16, usable: u16, live: u64) -> SegmentFacts {
    SegmentFacts {
        area: Area::Group(0),
        k,
        m,
        usable,
        elsewhere: 0,
        awaited: 0,
        live,
        padding: 0,
        closed: 0,
    }
}

#[test]
fn a_segment_is_in_one_list() {
    let mut index = Index::new(GEOMETRY);
    let heads = |index: &Index| -> Vec<u64> {
        let all = index.variants(Area::Group(0));
        all.flat_map(|(_, bucket)| bucket.heads()).collect()
    };
    index.set(1, facts(8, 2, 10, 100));
    index.set(2, facts(8, 2, 10, 100));
    index.set(3, facts(8, 2, 9, 1800));
    assert_eq!(heads(&index), [3, 1]);
    index.set(1, facts(8, 2, 10, 1800));
    assert_eq!(heads(&index), [3, 2, 1]);
    index.begin(3, Some(Area::Group(0)));
    assert_eq!(
        (heads(&index), index.stream(Area::Group(0)).unplaced),
        (vec![2, 1], 1800)
    );
    index.set(3, facts(8, 2, 9, 1000));
    assert_eq!(
        (heads(&index), index.stream(Area::Group(0)).unplaced),
        (vec![2, 1], 1000)
    );
    index.park(2);
    assert_eq!(heads(&index), [1]);
    index.unpark(0);
    assert_eq!(heads(&index), [1], "nothing came back");
    index.unpark(1);
    assert_eq!(heads(&index), [2, 1]);
    index.give_up(2);
    index.set(2, facts(8, 2, 10, 100));
    assert!(index.has_given_up(), "nothing has changed");
    assert_eq!(heads(&index), [1]);
    index.try_again();
    assert_eq!(heads(&index), [2, 1]);
    index.remove(3);
    assert_eq!((index.len(), index.stream(Area::Group(0)).unplaced), (2, 0));
    index.remove(1);
    assert_eq!(heads(&index), [2]);
}

/// A segment that waits for redundancy in vain is not looked at for that again before something changes that could
/// help it, and may be cleaned meanwhile.
#[test]
fn what_waits_for_redundancy_may_be_cleaned() {
    for (lack, by_slots) in [
        (Lack::Room, true),
        (Lack::Devices, false),
        (Lack::Policy, false),
    ] {
        let mut index = Index::new(GEOMETRY);
        let one = facts(8, 2, 9, 100);
        index.set(1, one);
        index.wait(1, lack);
        assert_eq!((index.lacks_most(), index.wants_room()), (lack, by_slots));
        assert_eq!(index.due(Area::Group(0)).count(), 0);
        assert_eq!(
            index.variants(Area::Group(0)).count(),
            1,
            "it may be cleaned"
        );
        index.unpark(1);
        assert_eq!(index.due(Area::Group(0)).count() > 0, by_slots, "{lack:?}");
        index.unpark_all();
        assert_eq!(index.due(Area::Group(0)).count(), 1);
    }
}

/// However a job ends, the devices that it kept busy are not busy any more; also where the index does not know its
/// segment.
#[test]
fn a_job_that_ends_leaves_no_load() {
    for end in [
        Index::end,
        Index::park,
        Index::give_up,
        Index::remove,
        |index: &mut Index, number| index.wait(number, Lack::Room),
        |index: &mut Index, number| index.begin(number, None),
    ] {
        let mut index = Index::new(GEOMETRY);
        index.set(1, facts(8, 2, 9, 100));
        for number in [1, 2] {
            index.begin_on(number, vec![4, 5, 5]);
            assert_eq!([4, 5, 6].map(|d| index.load(d)), [1, 2, 0]);
            index.set(1, facts(8, 2, 8, 100));
            assert_eq!(index.load(5), 2, "the segment changes under the job");
            end(&mut index, number);
            assert_eq!([4, 5, 6].map(|d| index.load(d)), [0; 3]);
        }
    }
}

/// The totals are those of the segments, wherever they are but in flight.
#[test]
fn totals_follow_the_segments() {
    let plan = plan(8, 2, 0);
    let mut index = Index::new(GEOMETRY);
    let check = |index: &Index, columns: u64, live: u64| {
        let sum = measure(index, &plan, false);
        assert_eq!(index.left(&plan), (sum.missing, sum.elsewhere));
        let data = Held { columns, live };
        assert_eq!(index.held(), (Held::default(), data));
    };
    index.set(1, facts(8, 2, 9, 100));
    index.set(2, facts(8, 2, 8, 100));
    index.set(3, facts(8, 2, 8, 0));
    check(&index, 25, 200);
    assert_eq!(index.left(&plan).0, 3);
    index.wait(1, Lack::Room);
    index.give_up(2);
    check(&index, 25, 200);
    index.begin(1, None);
    check(&index, 25, 200);
    assert_eq!(index.left(&plan).0, 2);
    index.set(2, facts(8, 2, 10, 100));
    index.remove(3);
    check(&index, 19, 200);
}

/// Blocks to move, room in segments being filled, segments claimed: segments to claim.
#[test]
fn moves_share_the_segments_that_they_fill() {
    let full = GEOMETRY.data_blocks(8);
    let mut index = Index::new(GEOMETRY);
    index.set(1, facts(8, 2, 10, full / 2));
    index.begin(1, Some(Area::Group(0)));
    for (more, room, claimed, to_claim) in [
        (full / 2, 0, 0, 1),
        (full / 2, 0, 1, 0),
        (full, 0, 1, 1),
        (full / 2, full, 0, 0),
        (full / 2 + 1, 0, 1, 1),
    ] {
        index.set_stream(Area::Group(0), room, claimed);
        assert_eq!(index.to_claim(Area::Group(0), more, 8), to_claim);
    }
}
