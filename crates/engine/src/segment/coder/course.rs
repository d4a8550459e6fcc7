//! A course of columns: verified, and another column computed from them.
//!
//! Invariants: the bytes cross the link once for both; what a digest function without a kernel covers is
//! verified here.

use std::ops::Range;
use std::sync::Arc;

use ashlar_accel::{Coding, Input, Job, Of};
use ashlar_digest::Kind;
use ashlar_format::BLOCK;
use ashlar_format::context::Context;
use ashlar_format::summary::{Owner, Row};
use ashlar_rt::{Buf, Slice};

use super::{Computing, cut, keyed};
use crate::segment::table::Core;
use crate::segment::{Column, Segment};

/// A column of a course as it was read, not verified yet.
#[derive(Debug)]
pub struct Survivor {
    /// Its index.
    pub column: usize,
    /// Where it was read.
    pub place: Column,
    /// Its blocks; those without a row are zeros.
    pub bytes: Slice,
    /// Their rows.
    pub rows: Vec<Row>,
}

/// A column that is to be computed: its index, and the owners of its blocks.
pub type Wanted = (usize, Vec<Owner>);

/// Computed columns of a course.
#[derive(Debug)]
pub struct Decoded {
    /// The blocks of each, with their digests as far as their owners' functions are known.
    pub columns: Vec<(Buf, Vec<Option<[u8; 16]>>)>,
    /// For each survivor the blocks that do not match their rows.
    pub bad: Vec<Vec<usize>>,
}

/// Computes columns of a course from K others, all of them in one pass, and says which blocks of these K are not what
/// their rows say: the bytes cross the link once for all. `None` if the columns are too few.
pub async fn decode_course(
    core: &Core,
    segment: &Segment,
    course: u32,
    survivors: &[Survivor],
    wanted: &[Wanted],
) -> Option<Decoded> {
    let reads = survivors.iter().map(|s| s.column).collect();
    let columns = wanted.iter().map(|(column, _)| *column).collect();
    let coding = core.coder.loss_of(core, segment, reads, columns)?;
    Some(run_course(core, segment, course, survivors, Some((coding, wanted))).await)
}

/// The blocks of a column of a course that are not what their rows say.
pub async fn verify_course(
    core: &Core,
    segment: &Segment,
    course: u32,
    survivor: &Survivor,
) -> Vec<usize> {
    let survivors = std::slice::from_ref(survivor);
    let found = run_course(core, segment, course, survivors, None).await;
    found.bad.concat()
}

/// How columns are computed, and which.
type Made<'a> = (Arc<Coding>, &'a [Wanted]);

/// The digest function and context of each block of a column; `None`: a function that is not known.
type Contexts = Vec<Option<(Kind, Context)>>;

/// Verifies columns, and computes more of them if `made` says so.
async fn run_course(
    core: &Core,
    segment: &Segment,
    course: u32,
    survivors: &[Survivor],
    made: Option<Made<'_>>,
) -> Decoded {
    let blocks = survivors[0].rows.len();
    let mut columns: Vec<Contexts> = Vec::new();
    for survivor in survivors {
        let owners = survivor.rows.iter();
        let owners = owners.map(|row| Owner::from_bytes(&row.owner));
        columns.push(contexts_of(segment, course, survivor.column, owners));
    }
    for (column, owners) in made.iter().flat_map(|(_, wanted)| *wanted) {
        columns.push(contexts_of(
            segment,
            course,
            *column,
            owners.iter().copied(),
        ));
    }
    let count = columns.len() - survivors.len();
    let mut made_bytes: Vec<Buf> = (0..count).map(|_| Buf::scratch(blocks * BLOCK)).collect();
    let mut taken: Vec<Vec<[u8; 16]>> = vec![Vec::with_capacity(blocks); columns.len()];
    let coding = made.map(|(coding, ..)| coding);
    for (range, computing) in submit(core, survivors, coding.as_ref(), &columns) {
        let done = core.coder.done(core, computing).await;
        for (bytes, made) in made_bytes.iter_mut().zip(&done.write) {
            bytes[range.start * BLOCK..range.end * BLOCK].copy_from_slice(made);
        }
        let mut digests = cut(&done.digests);
        for column in &mut taken {
            column.extend(digests.by_ref().take(range.len()));
        }
    }
    let digest = |column: usize, at: usize, block: &[u8]| {
        let (kind, context) = columns[column][at]?;
        let one = || core.identity.digest(kind, context, block);
        Some(taken[column].get(at).copied().unwrap_or_else(one))
    };
    let mut bad = Vec::new();
    for (column, survivor) in survivors.iter().enumerate() {
        let of = survivor.rows.iter().zip(survivor.bytes.chunks(BLOCK));
        let wrong = of.enumerate().filter(|(at, (row, block))| {
            row.digest != [0; 16] && digest(column, *at, block) != Some(row.digest)
        });
        bad.push(wrong.map(|(at, _)| at).collect());
    }
    let with_digests = |(bytes, column): (Buf, usize)| {
        let of = bytes.chunks(BLOCK).enumerate();
        let digests = of.map(|(at, block)| digest(column, at, block)).collect();
        (bytes, digests)
    };
    let made = made_bytes.into_iter().zip(survivors.len()..);
    Decoded {
        columns: made.map(with_digests).collect(),
        bad,
    }
}

/// Submits a course as one job, or as several where it is too large for one; each with its blocks. A job has
/// one digest function: where another than BLAKE3, the one with a kernel, is among them, it takes no digests.
fn submit(
    core: &Core,
    survivors: &[Survivor],
    coding: Option<&Arc<Coding>>,
    columns: &[Contexts],
) -> Vec<(Range<usize>, Computing)> {
    let mut known = columns.iter().flatten().flatten();
    let hashed = known.all(|(kind, _)| *kind == Kind::Blake3);
    if coding.is_none() && !hashed {
        return Vec::new();
    }
    let blocks = columns[0].len();
    let part = core.coder.blocks_at_once(survivors.len()).min(blocks);
    let mut jobs = Vec::new();
    for start in (0..blocks).step_by(part) {
        let range = start..blocks.min(start + part);
        let strip = range.len() * BLOCK;
        let cut = |s: &Survivor| {
            let bytes = s.bytes.cut(range.start * BLOCK..range.end * BLOCK);
            Box::new(bytes) as Input
        };
        let read = survivors.iter().map(cut).collect();
        let write = (survivors.len()..columns.len())
            .map(|_| Buf::scratch(strip))
            .collect();
        let digests = hashed.then(|| {
            let none = Context::block(0, 0); // of an unknown function: its digest is not looked at
            let parts = columns.iter().flat_map(|column| &column[range.clone()]);
            let contexts: Vec<Context> = parts.map(|c| c.map_or(none, |(_, c)| c)).collect();
            keyed(core, Of::Both, &contexts)
        });
        let job = Job::new(strip, read, write, Buf::zeroed, coding.cloned(), digests)
            .expect("columns of one length");
        jobs.push((range, core.coder.submit(job)));
    }
    jobs
}

/// The digest functions and contexts of the blocks of a column of a course.
fn contexts_of(
    segment: &Segment,
    course: u32,
    column: usize,
    owners: impl Iterator<Item = Owner>,
) -> Contexts {
    let column = u16::try_from(column).expect("at most 256 columns");
    let context = |(at, owner): (u32, Owner)| {
        let (stripe, within) = segment.geometry.in_course(course, at);
        segment.context_of((stripe, column, within), &owner)
    };
    (0u32..).zip(owners).map(context).collect()
}
