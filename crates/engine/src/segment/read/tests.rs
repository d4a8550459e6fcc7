//! Reading over missing and damaged columns, without an array.
#![allow(clippy::unwrap_used, reason = "tests")]

use ashlar_digest::Kind;
use ashlar_format::superblock::MemberState;

use super::*;
use crate::segment::Pinned;
use crate::segment::stripe::{prepare, write};
use crate::testing::{Bed, bed, blocks};

/// A segment of 3+2 whose first stripe is written, and its bytes.
fn written(bed: &Bed) -> (Pinned, Vec<u8>) {
    let segment = bed.segment(1, 3, 2);
    segment.set_headed();
    let (data, owners) = blocks(&bed.core, 6, 5);
    let (core, of, bytes) = (bed.core.clone(), segment.clone(), data.to_vec());
    bed.rt.block_on(async move {
        let number = of.take_stripe();
        let stripe = prepare(core.clone(), of.clone(), number, data, owners).await;
        write(core, vec![Rc::new(stripe)]).await.unwrap();
        of.recorded.set(1);
    });
    (segment, bytes)
}

/// Reads one block of the stripe as the map would have it read.
fn read(bed: &Bed, segment: &Pinned, block: u32) -> Result<Buf, Lost> {
    read_after(bed, segment, block, None)
}

/// The same, after its device has given something else.
fn read_after(
    bed: &Bed,
    segment: &Pinned,
    block: u32,
    wrong: Option<[u8; BLOCK]>,
) -> Result<Buf, Lost> {
    let (core, segment) = (bed.core.clone(), segment.clone());
    bed.rt.block_on(async move {
        let address = u64::from(block);
        let wanted = segment.rows.borrow()[&0][block as usize / 2][block as usize % 2].digest;
        let digests = core.clone();
        let check = move |bytes: &[u8]| {
            digests
                .identity
                .block_digest(Kind::Blake3, 16, address, bytes)
                == wanted
        };
        let wrong = wrong.as_ref().map(|bytes| &bytes[..]);
        read_unit(&core, &segment, Unit::one(block), wrong, &check).await
    })
}

fn damage(bed: &Bed, segment: &Segment, column: usize) {
    let place = segment.columns.borrow()[column];
    let offset = device_offset(&bed.core, place, segment.geometry.strip_block(0));
    bed.disks[column].poke(offset, &[0xEE; BLOCK]);
}

#[test]
fn what_is_missing_or_wrong_is_decoded_up_to_the_parity() {
    let bed = bed(5);
    let (segment, bytes) = written(&bed);
    assert!(*read(&bed, &segment, 0).unwrap() == bytes[..BLOCK]);
    damage(&bed, &segment, 0);
    assert!(*read(&bed, &segment, 0).unwrap() == bytes[..BLOCK]);
    assert_eq!(bed.core.bad.repairs.borrow().due(), 1, "it is to be healed");
    bed.core.member(1).take_out(MemberState::Failed);
    assert!(*read(&bed, &segment, 0).unwrap() == bytes[..BLOCK]);
    assert!(*read(&bed, &segment, 2).unwrap() == bytes[2 * BLOCK..3 * BLOCK]);
    damage(&bed, &segment, 2);
    assert_eq!(
        read(&bed, &segment, 0).err(),
        Some(Lost),
        "three of 3+2 are gone"
    );
    assert!(
        *read(&bed, &segment, 3).unwrap() == bytes[3 * BLOCK..4 * BLOCK],
        "this row is not"
    );
}

/// A device that gave wrong bytes once is counted, though a second read would be right; where nothing else is left the
/// second read is had.
#[test]
fn a_device_that_was_wrong_once_is_counted() {
    let bed = bed(5);
    let (segment, bytes) = written(&bed);
    let errors = |device| bed.core.member(device).counters.digest_errors.get();
    let read = read_after(&bed, &segment, 0, Some([0xEE; BLOCK])).unwrap();
    assert!(*read == bytes[..BLOCK]);
    assert_eq!((errors(0), errors(1)), (1, 0));
    for gone in [3, 4] {
        bed.core.member(gone).take_out(MemberState::Failed);
    }
    let read = read_after(&bed, &segment, 2, Some([0xEE; BLOCK])).unwrap();
    assert!(*read == bytes[2 * BLOCK..3 * BLOCK]);
    assert_eq!(errors(1), 1);
}

#[test]
fn a_run_is_computed_only_from_columns_that_match() {
    let bed = bed(5);
    let (segment, bytes) = written(&bed);
    damage(&bed, &segment, 1);
    let core = bed.core.clone();
    bed.rt.block_on(async move {
        let run = |within, count| Span {
            stripe: 0,
            column: 0,
            within,
            count,
        };
        let decoded = async |span| fetch(&core, &segment, span, How::DecodedVerified).await;
        let both = decoded(run(0, 2)).await.unwrap();
        assert!(*both == bytes[..2 * BLOCK], "the bad column is passed over");
        core.member(2).take_out(MemberState::Failed);
        assert!(decoded(run(0, 2)).await.is_none());
        // The second block of the bad strip is good: alone it can be used.
        let one = decoded(run(1, 1)).await.unwrap();
        assert!(*one == bytes[BLOCK..2 * BLOCK]);
    });
}
