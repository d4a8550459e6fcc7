//! The coder on a course of one stripe: parity, lost columns, bad blocks.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::rc::Rc;

use ashlar_digest::Kind;
use ashlar_format::BLOCK;
use ashlar_format::context::Context;
use ashlar_format::summary::{Owner, Row};
use ashlar_rt::{Buf, Slice};

use super::course::{Survivor, decode_course, verify_course};
use super::{Begun, begin, parity};
use crate::segment::Pinned;
use crate::segment::stripe::{Stripe, prepare};
use crate::testing::{Bed, bed, blocks};

const K: usize = 2;
const M: usize = 2;

/// A course of one stripe: its columns as they would be read.
fn course(bed: &Bed) -> (Pinned, Vec<Survivor>) {
    let segment = bed.segment(1, K as u16, M as u16);
    let strip = segment.geometry.strip_blocks;
    let (data, owners) = blocks(&bed.core, K as u32 * strip, 5);
    let (core, of, bytes) = (bed.core.clone(), segment.clone(), data.clone());
    let (stripe, parity) = bed.rt.block_on(async move {
        let number = of.take_stripe();
        let parity = parity::encode(&core, &of, number, vec![bytes.clone()]).await;
        (prepare(core, of, number, bytes, owners).await, parity)
    });
    let strip_bytes = strip as usize * BLOCK;
    let strips = (0..K).map(|c| data.cut(c * strip_bytes..(c + 1) * strip_bytes));
    let strips = strips.chain(parity.0);
    let column = |(column, bytes): (usize, Slice)| survivor(&segment, &stripe, column, bytes);
    let columns = strips.enumerate().map(column).collect();
    (segment.clone(), columns)
}

fn survivor(segment: &Pinned, stripe: &Stripe, column: usize, bytes: Slice) -> Survivor {
    Survivor {
        column,
        place: segment.columns.borrow()[column],
        bytes,
        rows: stripe.rows[column].clone(),
    }
}

fn owners(rows: &[Row]) -> Vec<Owner> {
    rows.iter()
        .map(|row| Owner::from_bytes(&row.owner))
        .collect()
}

/// Parity comes with its digests, bound to where it lies.
#[test]
fn parity_has_the_digests_of_its_blocks() {
    let bed = bed(4);
    let segment = bed.segment(1, K as u16, M as u16);
    let (data, _) = blocks(&bed.core, 4, 1);
    let core = bed.core.clone();
    let (strips, digests) = bed
        .rt
        .block_on(async move { parity::encode(&core, &segment, 3, vec![data]).await });
    assert_eq!((strips.len(), digests.len()), (M, M * 2));
    for (column, strip) in (K as u16..).zip(&strips) {
        for (within, block) in (0u32..).zip(strip.chunks(BLOCK)) {
            let context = Context::parity(1, 3, column, within);
            let at = usize::from(column - K as u16) * 2 + within as usize;
            let digest = bed.core.identity.digest(Kind::Blake3, context, block);
            assert_eq!(digest, digests[at], "{column} {within}");
        }
    }
}

/// Any columns are computed from any K others, with the digests that their rows have.
#[test]
fn lost_columns_are_computed_with_their_digests() {
    let bed = bed(4);
    let (segment, columns) = course(&bed);
    let columns = Rc::new(columns);
    for lost in [[0, 1], [0, 3], [2, 3]] {
        let (core, segment, columns) = (bed.core.clone(), segment.clone(), columns.clone());
        bed.rt.block_on(async move {
            let left = columns.iter().filter(|c| !lost.contains(&c.column));
            let left: Vec<Survivor> = left.map(copy).collect();
            let wanted = lost.map(|c| (c, owners(&columns[c].rows)));
            let made = decode_course(&core, &segment, 0, &left, &wanted)
                .await
                .unwrap();
            assert_eq!(made.bad, vec![Vec::<usize>::new(); K]);
            for ((bytes, digests), column) in made.columns.iter().zip(lost) {
                assert_eq!(bytes[..], columns[column].bytes[..], "{lost:?}: {column}");
                let rows = columns[column].rows.iter().map(|row| Some(row.digest));
                assert_eq!(*digests, rows.collect::<Vec<_>>());
            }
        });
    }
}

fn copy(of: &Survivor) -> Survivor {
    Survivor {
        column: of.column,
        place: of.place,
        bytes: of.bytes.clone(),
        rows: of.rows.clone(),
    }
}

/// A block that is not as its row says is named, whether or not a column is computed from it.
#[test]
fn a_bad_block_is_named() {
    let bed = bed(4);
    let (segment, columns) = course(&bed);
    let mut bytes = Buf::copy_of(&columns[2].bytes);
    bytes[BLOCK + 7] ^= 1;
    let bad = Survivor {
        bytes: bytes.freeze(),
        ..copy(&columns[2])
    };
    let core = bed.core.clone();
    bed.rt.block_on(async move {
        assert_eq!(verify_course(&core, &segment, 0, &bad).await, vec![1]);
        let wanted = [(0, owners(&columns[0].rows))];
        let read = [copy(&columns[1]), bad];
        let made = decode_course(&core, &segment, 0, &read, &wanted)
            .await
            .unwrap();
        assert_eq!(made.bad, vec![vec![], vec![1]]);
        let wrong = columns[0].rows[1].digest;
        assert_ne!(
            made.columns[0].1[1],
            Some(wrong),
            "it was made from the bad block"
        );
    });
}

#[test]
fn fewer_columns_than_k_give_nothing() {
    let bed = bed(4);
    let (segment, columns) = course(&bed);
    let core = bed.core.clone();
    bed.rt.block_on(async move {
        let wanted = [(0, owners(&columns[0].rows))];
        let made = decode_course(&core, &segment, 0, &[copy(&columns[3])], &wanted).await;
        assert!(made.is_none());
    });
}

/// Work that does not wait is done when it is begun.
#[test]
fn work_that_does_not_wait_is_done_at_once() {
    assert!(matches!(begin(async { 1 }), Begun::Done(Some(1))));
    assert!(matches!(
        begin(std::future::pending::<u8>()),
        Begun::Later(_)
    ));
}
